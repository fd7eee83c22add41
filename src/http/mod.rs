//! Pure HTTP/1.1: bytes in, decisions out. Imports nothing of ours, allocates nothing on the usual path, takes `now`.
//!
//! The rules are RFC 9110 (semantics) and RFC 9112 (framing); each file names its sections. Invariant: whatever the
//! bytes, and however they are cut, the answer is the same and nothing panics.

pub mod chunked;
pub mod content_type;
pub mod date;
pub mod framing;
pub mod head;
pub mod range;
pub mod reply;
pub mod target;
pub mod validator;

/// A status code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

impl Status {
    /// The reason phrase (RFC 9110 15); empty for a code ringway never sends.
    pub fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            206 => "Partial Content",
            301 => "Moved Permanently",
            304 => "Not Modified",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "",
        }
    }
}

/// Why a request cannot be answered; the connection ends after it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status to tell.
    pub status: Status,
    /// One sentence for the client.
    pub reason: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: u16, reason: &'static str) -> Self {
        Self { status: Status(status), reason }
    }
}
