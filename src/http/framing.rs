//! How long a request body is (RFC 9112 6), and what is refused because two readers could disagree (smuggling).

use super::Refusal;
use super::head::{Version, tokens};

/// The body after a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// None.
    None,
    /// So many bytes, at least one.
    Length(u64),
    /// Chunks until the last.
    Chunked,
}

/// What the framing fields said so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct FramingLines {
    length: Option<u64>,
    encoded: bool,
    chunked: u32,
    other: bool,
}

impl FramingLines {
    /// A Content-Length line: digits only, and every one the same (RFC 9110 8.6).
    pub fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        const BAD: Refusal = Refusal::new(400, "Content-Length is malformed");
        let mut any = false;
        for part in value.split(|byte| *byte == b',') {
            let digits = part.trim_ascii();
            if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
                return Err(BAD);
            }
            let length =
                digits.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
            let length = length.ok_or(BAD)?;
            if self.length.is_some_and(|other| other != length) {
                return Err(Refusal::new(400, "two Content-Lengths disagree"));
            }
            self.length = Some(length);
            any = true;
        }
        if any { Ok(()) } else { Err(BAD) }
    }

    /// A Transfer-Encoding line.
    pub fn transfer_encoding(&mut self, value: &[u8]) {
        self.encoded = true;
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"chunked") { self.chunked += 1 } else { self.other = true }
        }
    }

    /// The decision.
    pub fn decide(self, version: Version) -> Result<Framing, Refusal> {
        match (self.encoded, self.length) {
            (false, None | Some(0)) => Ok(Framing::None),
            (false, Some(length)) => Ok(Framing::Length(length)),
            (true, Some(_)) => Err(Refusal::new(400, "Content-Length and Transfer-Encoding exclude each other")),
            (true, None) if version == Version::Http10 => Err(Refusal::new(400, "HTTP/1.0 has no Transfer-Encoding")),
            (true, None) if self.other => Err(Refusal::new(501, "only the chunked transfer coding is known")),
            (true, None) if self.chunked == 1 => Ok(Framing::Chunked),
            (true, None) => Err(Refusal::new(400, "Transfer-Encoding is malformed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(lengths: &[&str], encodings: &[&str], version: Version) -> Result<Framing, u16> {
        let mut lines = FramingLines::default();
        for length in lengths {
            lines.content_length(length.as_bytes()).map_err(|refusal| refusal.status.0)?;
        }
        for encoding in encodings {
            lines.transfer_encoding(encoding.as_bytes());
        }
        lines.decide(version).map_err(|refusal| refusal.status.0)
    }

    #[test]
    fn the_table() {
        use Version::{Http10, Http11};
        let rows: &[(&[&str], &[&str], Version, Result<Framing, u16>)] = &[
            (&[], &[], Http11, Ok(Framing::None)),
            (&["0"], &[], Http11, Ok(Framing::None)),
            (&["5"], &[], Http11, Ok(Framing::Length(5))),
            (&["5", "5"], &[], Http11, Ok(Framing::Length(5))),
            (&["5, 5"], &[], Http11, Ok(Framing::Length(5))),
            (&["5", "6"], &[], Http11, Err(400)),
            (&["+5"], &[], Http11, Err(400)),
            (&["-5"], &[], Http11, Err(400)),
            (&["0x5"], &[], Http11, Err(400)),
            (&["5 5"], &[], Http11, Err(400)),
            (&[""], &[], Http11, Err(400)),
            (&["99999999999999999999"], &[], Http11, Err(400)),
            (&[], &["chunked"], Http11, Ok(Framing::Chunked)),
            (&[], &["Chunked"], Http11, Ok(Framing::Chunked)),
            (&[], &["chunked", "chunked"], Http11, Err(400)),
            (&[], &["gzip, chunked"], Http11, Err(501)),
            (&[], &["chunked, identity"], Http11, Err(501)),
            (&[], &["xchunked"], Http11, Err(501)),
            (&[], &[""], Http11, Err(400)),
            (&[], &["chunked"], Http10, Err(400)),
            (&["5"], &["chunked"], Http11, Err(400)),
        ];
        for (lengths, encodings, version, want) in rows {
            assert_eq!(decide(lengths, encodings, *version), *want, "{lengths:?} {encodings:?} {version:?}");
        }
    }
}
