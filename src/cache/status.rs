//! Cache-Status (RFC 9211): what the cache did about a request, in the words of the standard.
//!
//! Apart because it is read by people who look for a reason, so every reason has its word. Imports nothing.
//!
//! Invariant: an answer is a hit or was forwarded, never both, and what is told about forwarding goes with forwarding.

/// What the cache did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheStatus<'a> {
    /// Hit or forwarded.
    pub outcome: Outcome,
    /// Seconds of freshness left; negative once stale.
    pub ttl: Option<i64>,
    /// Anything more: the engine's own word for it.
    pub detail: Option<&'a str>,
}

/// Where the answer came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// From the cache, without asking.
    Hit,
    /// The origin was asked.
    Forward(Forward),
}

/// A forwarded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Why.
    pub reason: Reason,
    /// The status the origin answered with.
    pub status: Option<u16>,
    /// Whether the answer was stored.
    pub stored: bool,
    /// Whether this request shared the fetch of another one.
    pub collapsed: bool,
}

/// Why a request was forwarded (RFC 9211 section 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Configured not to be handled by the cache.
    Bypass,
    /// The method is not served from the cache.
    Method,
    /// Nothing is stored for this URL.
    UriMiss,
    /// Something is, for other request fields.
    VaryMiss,
    /// Nothing usable is stored, of whatever kind.
    Miss,
    /// A fresh answer was stored, but the request asked for more (no-cache, max-age, min-fresh).
    Request,
    /// What is stored is stale.
    Stale,
    /// Only a part of it is stored.
    Partial,
}

impl Reason {
    /// Its token.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

impl Forward {
    /// Forwarded for `reason`, and nothing known yet about the answer.
    pub const fn new(reason: Reason) -> Self {
        Self { reason, status: None, stored: false, collapsed: false }
    }
}

impl CacheStatus<'_> {
    /// Appends the value of the field. Caches nearer to the origin come first, so the line goes behind theirs.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        out.extend_from_slice(b"ringway");
        match self.outcome {
            Outcome::Hit => out.extend_from_slice(b"; hit"),
            Outcome::Forward(Forward { reason, status, stored, collapsed }) => {
                out.extend_from_slice(b"; fwd=");
                out.extend_from_slice(reason.token().as_bytes());
                if let Some(status) = status {
                    out.extend_from_slice(b"; fwd-status=");
                    out.extend_from_slice(number.format(status).as_bytes());
                }
                if stored {
                    out.extend_from_slice(b"; stored");
                }
                if collapsed {
                    out.extend_from_slice(b"; collapsed");
                }
            }
        }
        if let Some(ttl) = self.ttl {
            out.extend_from_slice(b"; ttl=");
            // An sf-integer has 15 digits (RFC 8941 section 3.3.1).
            out.extend_from_slice(number.format(ttl.clamp(-999_999_999_999_999, 999_999_999_999_999)).as_bytes());
        }
        if let Some(detail) = self.detail.filter(|detail| !detail.is_empty()) {
            out.extend_from_slice(b"; detail=");
            write_bare_item(out, detail);
        }
    }
}

/// An sf-token where the text is one, else an sf-string; what a string cannot hold becomes `?`.
fn write_bare_item(out: &mut Vec<u8>, text: &str) {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
    if text.bytes().all(is_token) && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '*') {
        return out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend([b'\\', letter as u8]),
            ' '..='~' => out.push(letter as u8),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_says_what_the_cache_did() {
        let forward = |reason| Outcome::Forward(Forward::new(reason));
        let stored = Forward { reason: Reason::UriMiss, status: Some(200), stored: true, collapsed: true };
        let table = [
            (Outcome::Hit, Some(376), None, "ringway; hit; ttl=376"),
            (Outcome::Hit, Some(-412), None, "ringway; hit; ttl=-412"),
            (Outcome::Hit, Some(i64::MIN), None, "ringway; hit; ttl=-999999999999999"),
            (forward(Reason::Bypass), None, Some("too-large"), "ringway; fwd=bypass; detail=too-large"),
            (forward(Reason::Method), None, None, "ringway; fwd=method"),
            (forward(Reason::VaryMiss), None, None, "ringway; fwd=vary-miss"),
            (forward(Reason::Miss), None, None, "ringway; fwd=miss"),
            (forward(Reason::Request), None, None, "ringway; fwd=request"),
            (forward(Reason::Stale), None, None, "ringway; fwd=stale"),
            (forward(Reason::Partial), None, Some(""), "ringway; fwd=partial"),
            (
                Outcome::Forward(stored),
                Some(60),
                Some("a \"b\\\" \u{fc}\n"),
                "ringway; fwd=uri-miss; fwd-status=200; stored; collapsed; ttl=60; detail=\"a \\\"b\\\\\\\" ??\"",
            ),
            (forward(Reason::Miss), None, Some("9lives"), "ringway; fwd=miss; detail=\"9lives\""),
        ];
        for (outcome, ttl, detail, expected) in table {
            let mut out = Vec::new();
            CacheStatus { outcome, ttl, detail }.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
