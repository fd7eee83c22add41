//! `user_data`: which part of which generation of which slot a completion belongs to.
//!
//! It exists apart because a bare index would credit a late completion to whoever uses the slot next. Invariant:
//! a token compares unequal to every other token of the last 2^24 operations.

/// Which SQE of an operation a completion answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Part {
    /// The only one, or the last of a chain: its completion settles the operation.
    Main = 0,
    /// The poll that heads a chain; posts a completion only when it fails, and then the rest stays silent.
    Poll = 1,
    /// The file-to-pipe hop of a chain; posts a completion only when it was short or failed.
    Fill = 2,
    /// A cancel request: its own completion tells nothing the cancelled operation's does not.
    Cancel = 3,
}

/// Identity of one operation: generation and index of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Generations wrap here: they share 64 bits with the index and the part.
pub(crate) const GENERATIONS: u32 = 1 << 24;

impl Token {
    /// As `user_data`: part in the top byte, then generation, then index.
    pub fn encode(self, part: Part) -> u64 {
        (part as u64) << 56 | u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// From `user_data`; `None` for a part that was never encoded.
    pub fn decode(data: u64) -> Option<(Token, Part)> {
        let part = match data >> 56 {
            0 => Part::Main,
            1 => Part::Poll,
            2 => Part::Fill,
            3 => Part::Cancel,
            _ => return None,
        };
        Some((Token { index: data as u32, generation: (data >> 32) as u32 & (GENERATIONS - 1) }, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(index: u32, generation in 0..GENERATIONS, part in 0u8..4) {
            let part = [Part::Main, Part::Poll, Part::Fill, Part::Cancel][part as usize];
            let token = Token { index, generation };
            prop_assert_eq!(Token::decode(token.encode(part)), Some((token, part)));
        }
    }

    #[test]
    fn an_unknown_part_is_no_token() {
        assert_eq!(Token::decode(9 << 56), None);
    }
}
