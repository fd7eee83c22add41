//! Dropping a request body that nobody wanted, resumable at any byte (RFC 9112 7.1).
//!
//! Strict: CRLF only, no LF inside an extension, bounded lines. Invariant: every way to cut the input gives the same
//! number of consumed bytes and the same verdict.

use super::Refusal;
use super::framing::Framing;

/// Bytes of one chunk-size line with its extensions, and of one trailer line.
const LINE_MOST: u32 = 4096;
/// Bytes of all trailers.
const TRAILERS_MOST: u32 = 16 << 10;

/// Progress of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Length(u64),
    Size { digits: u32, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// A body being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodySkip {
    at: At,
    left: u64,
    line: u32,
    trailers: u32,
    refused: Option<Refusal>,
}

/// What became of a piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Bytes that belong to the body.
    pub consumed: usize,
    /// Whether it goes on.
    pub state: SkipState,
}

/// Whether a body goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipState {
    /// More of it comes.
    More,
    /// It is over; what follows is the next request.
    Done,
    /// It is malformed or too long.
    Refuse(Refusal),
}

const BAD: Refusal = Refusal::new(400, "the chunked body is malformed");
const LONG: Refusal = Refusal::new(413, "a request body is not wanted here");

impl BodySkip {
    /// A body framed so, of at most `limit` bytes.
    pub fn new(framing: Framing, limit: u64) -> Self {
        let (at, refused) = match framing {
            Framing::None => (At::Done, None),
            Framing::Length(length) => (At::Length(length), (length > limit).then_some(LONG)),
            Framing::Chunked => (At::Size { digits: 0, size: 0 }, None),
        };
        Self { at, left: limit, line: 0, trailers: 0, refused }
    }

    /// Drops what belongs to the body from the front of `bytes`.
    pub fn feed(&mut self, bytes: &[u8]) -> Skip {
        let mut used = 0;
        while self.refused.is_none() && self.at != At::Done {
            let rest = &bytes[used..];
            match self.at {
                At::Length(left) | At::Data(left) if left > 0 => {
                    let take = left.min(rest.len() as u64);
                    if take == 0 {
                        break;
                    }
                    used += take as usize;
                    self.at =
                        if matches!(self.at, At::Length(_)) { At::Length(left - take) } else { At::Data(left - take) };
                }
                At::Length(_) => self.at = At::Done,
                At::Data(_) => self.at = At::DataCr,
                _ => {
                    let Some(byte) = rest.first() else { break };
                    used += 1;
                    match self.step(*byte) {
                        Ok(at) => self.at = at,
                        Err(refusal) => self.refused = Some(refusal),
                    }
                }
            }
        }
        let state = match self.refused {
            Some(refusal) => SkipState::Refuse(refusal),
            None if self.at == At::Done => SkipState::Done,
            None => SkipState::More,
        };
        Skip { consumed: used, state }
    }

    fn step(&mut self, byte: u8) -> Result<At, Refusal> {
        self.line += 1;
        if self.line > LINE_MOST {
            return Err(BAD);
        }
        let at = match (self.at, byte) {
            (At::Size { digits, size }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < 16 => {
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                At::Size { digits: digits + 1, size: size << 4 | digit }
            }
            (At::Size { digits: 1.., size }, b'\r') => At::SizeLf { size },
            (At::Size { digits: 1.., size }, b';' | b' ' | b'\t') => At::Extension { size },
            (At::Extension { size }, b'\r') => At::SizeLf { size },
            (At::Extension { size }, byte) if byte != b'\n' && byte != 0 => At::Extension { size },
            (At::SizeLf { size: 0 }, b'\n') => {
                self.line = 0;
                At::TrailerStart
            }
            (At::SizeLf { size }, b'\n') => {
                self.left = self.left.checked_sub(size).ok_or(LONG)?;
                self.line = 0;
                At::Data(size)
            }
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.line = 0;
                At::Size { digits: 0, size: 0 }
            }
            (At::TrailerStart, b'\r') => At::EndLf,
            (At::TrailerStart | At::Trailer, byte) if byte != b'\n' && byte != 0 && byte != b'\r' => At::Trailer,
            (At::Trailer, b'\r') => At::TrailerLf,
            (At::TrailerLf, b'\n') => {
                self.trailers += self.line;
                self.line = 0;
                if self.trailers > TRAILERS_MOST {
                    return Err(BAD);
                }
                At::TrailerStart
            }
            (At::EndLf, b'\n') => At::Done,
            _ => return Err(BAD),
        };
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drop_all(body: &[u8]) -> Skip {
        BodySkip::new(Framing::Chunked, 1000).feed(body)
    }

    #[test]
    fn the_table() {
        let done = |consumed| Skip { consumed, state: SkipState::Done };
        assert_eq!(drop_all(b"0\r\n\r\nGET"), done(5));
        assert_eq!(drop_all(b"3\r\nabc\r\n0\r\n\r\nG"), done(13));
        assert_eq!(drop_all(b"3;a=\"b\"\r\nabc\r\n0\r\nT: u\r\n\r\n"), done(25));
        assert_eq!(drop_all(b"0000000000000003\r\nabc\r\n0\r\n\r\n"), done(28));
        assert_eq!(drop_all(b"3\r\nab").state, SkipState::More);
        for bad in [
            b"\r\n".as_slice(),
            b"g\r\n",
            b"3\nabc",
            b"3\r\nabcd",
            b"3;a\nb\r\n",
            b"-3\r\n",
            b"00000000000000003\r\n",
            b"0\r\nT: u\n\r\n",
            b"3\r\nabc\n",
            b" 3\r\n",
        ] {
            assert_eq!(drop_all(bad).state, SkipState::Refuse(BAD), "{:?}", String::from_utf8_lossy(bad));
        }
        assert_eq!(drop_all(b"3e9\r\n").state, SkipState::Refuse(LONG));
        assert_eq!(drop_all(b"ffffffffffffffff\r\n").state, SkipState::Refuse(LONG));
        assert_eq!(BodySkip::new(Framing::Length(1001), 1000).feed(b"").state, SkipState::Refuse(LONG));
        assert_eq!(BodySkip::new(Framing::Length(3), 1000).feed(b"abcGET"), done(3));
        assert_eq!(BodySkip::new(Framing::None, 0).feed(b"GET"), done(0));
        let endless = [b"1;".as_slice(), &[b'x'; 5000]].concat();
        assert_eq!(drop_all(&endless).state, SkipState::Refuse(BAD), "an extension is bounded");
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_same_answer(body in "([0-9a-f]{1,2}(;[a-z]{0,3})?\r\n[a-z\r\n]{0,20}){0,4}(0\r\n)?(\r\n)?[a-z]{0,3}", cuts in proptest::collection::vec(1usize..9, 0..60)) {
            let body = body.as_bytes();
            let whole = drop_all(body);
            let mut skip = BodySkip::new(Framing::Chunked, 1000);
            let (mut at, mut cuts) = (0, cuts.into_iter().chain(std::iter::repeat(1)));
            let mut state = SkipState::More;
            while at < body.len() && state == SkipState::More {
                let end = (at + cuts.next().unwrap_or(1)).min(body.len());
                let fed = skip.feed(&body[at..end]);
                at += fed.consumed;
                state = fed.state;
                if state == SkipState::More { prop_assert_eq!(at, end); }
            }
            prop_assert_eq!(Skip { consumed: at, state }, if body.is_empty() { Skip { consumed: 0, state } } else { whole });
        }

        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop_all(&body);
        }
    }
}
