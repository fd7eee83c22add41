//! How long a request body is, and what is refused because two parties could disagree about it.
//!
//! Apart from the head parser because it is the whole defence against request smuggling: the rules of RFC 9112
//! sections 6.1 to 6.3 and RFC 9110 section 8.6, each read in the strict way. Imports only the layer's own types.
//!
//! Invariant: a [`Framing`] exists only where every reader of the same head must come to the same length.

use super::head::Version;
use super::{Refusal, Status};

/// How a request body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// No body follows the head.
    None,
    /// As many bytes as Content-Length said.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

impl Framing {
    /// Whether any byte follows the head.
    pub fn has_body(self) -> bool {
        !matches!(self, Framing::None | Framing::Length(0))
    }
}

/// What the framing fields of one head said so far.
#[derive(Default, Debug)]
pub struct FramingFields {
    length: Option<u64>,
    coding: Coding,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Coding {
    #[default]
    Absent,
    Chunked,
    Other,
}

impl FramingFields {
    /// One Content-Length line. The same value again is allowed, a list in one line is not (RFC 9110 section 8.6 lets
    /// a server refuse it).
    pub fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        let length = digits(value).ok_or(Refusal::bad("Content-Length is not a number"))?;
        match self.length {
            Some(earlier) if earlier != length => Err(Refusal::bad("Content-Length values differ")),
            _ => {
                self.length = Some(length);
                Ok(())
            }
        }
    }

    /// One Transfer-Encoding line. Lines form one list, so a second one is never exactly `chunked`.
    pub fn transfer_encoding(&mut self, value: &[u8]) {
        self.coding = match self.coding {
            Coding::Absent if value.eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
            _ => Coding::Other,
        };
    }

    /// The length of the body, once the head has ended.
    pub fn decide(&self, version: Version) -> Result<Framing, Refusal> {
        match (self.coding, self.length) {
            (Coding::Absent, None) => Ok(Framing::None),
            (Coding::Absent, Some(length)) => Ok(Framing::Length(length)),
            // RFC 9112 section 6.1: the framing of such a message is faulty, even with a Content-Length.
            _ if version == Version::Http10 => Err(Refusal::bad("Transfer-Encoding in HTTP/1.0")),
            // RFC 9112 section 6.3 rule 3: "ought to be handled as an error".
            (_, Some(_)) => Err(Refusal::bad("both Transfer-Encoding and Content-Length")),
            (Coding::Other, None) => Err(Refusal::new(Status::NOT_IMPLEMENTED, "Transfer-Encoding is not chunked")),
            (Coding::Chunked, None) => Ok(Framing::Chunked),
        }
    }
}

/// 1*DIGIT within u64: no sign, no space, no overflow.
pub fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(version: Version, fields: &[(&str, &str)]) -> Result<Framing, u16> {
        let mut all = FramingFields::default();
        for (name, value) in fields {
            match *name {
                "cl" => all.content_length(value.as_bytes()).map_err(|refusal| refusal.status.0)?,
                _ => all.transfer_encoding(value.as_bytes()),
            }
        }
        all.decide(version).map_err(|refusal| refusal.status.0)
    }

    #[test]
    fn a_body_has_one_length_or_is_refused() {
        let table: &[(&[(&str, &str)], Result<Framing, u16>)] = &[
            (&[], Ok(Framing::None)),
            (&[("cl", "0")], Ok(Framing::Length(0))),
            (&[("cl", "18446744073709551615")], Ok(Framing::Length(u64::MAX))),
            (&[("cl", "18446744073709551616")], Err(400)),
            (&[("cl", "5"), ("cl", "5")], Ok(Framing::Length(5))),
            (&[("cl", "5"), ("cl", "6")], Err(400)),
            (&[("cl", "5, 5")], Err(400)),
            (&[("cl", "+5")], Err(400)),
            (&[("cl", "-5")], Err(400)),
            (&[("cl", "5 5")], Err(400)),
            (&[("cl", "0x5")], Err(400)),
            (&[("cl", "")], Err(400)),
            (&[("te", "chunked")], Ok(Framing::Chunked)),
            (&[("te", "Chunked")], Ok(Framing::Chunked)),
            (&[("te", "chunked"), ("cl", "5")], Err(400)),
            (&[("cl", "5"), ("te", "chunked")], Err(400)),
            (&[("te", "gzip"), ("cl", "5")], Err(400)),
            (&[("te", "gzip, chunked")], Err(501)),
            (&[("te", "xchunked")], Err(501)),
            (&[("te", "chunked;a=b")], Err(501)),
            (&[("te", "chunked\u{b}")], Err(501)),
            (&[("te", "identity")], Err(501)),
            (&[("te", "")], Err(501)),
            (&[("te", "chunked"), ("te", "chunked")], Err(501)),
            (&[("te", "gzip"), ("te", "chunked")], Err(501)),
        ];
        for (fields, expected) in table {
            assert_eq!(decide(Version::Http11, fields), *expected, "{fields:?}");
        }
    }

    #[test]
    fn http_1_0_has_no_transfer_coding() {
        assert_eq!(decide(Version::Http10, &[("te", "chunked")]), Err(400));
        assert_eq!(decide(Version::Http10, &[("te", "gzip")]), Err(400));
        assert_eq!(decide(Version::Http10, &[("cl", "7")]), Ok(Framing::Length(7)));
    }
}
