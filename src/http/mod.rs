//! HTTP/1 as plain functions: bytes in, decisions out.
//!
//! Everything a peer can send is judged here, and nothing here can wait, allocate per request, read a clock or touch a
//! descriptor. That is why it is a layer of its own: each rule is a table test, and each parser a property over every
//! split of its input. It imports nothing else of ours.
//!
//! ```text
//!   bytes ──head::parse──▶ RequestHead ──target::decode_path──▶ Target ──(the store opens it)──┐
//!             │ framing::Framing ──chunked::BodySkip──▶ body dropped                           │
//!             ▼                                                                                ▼
//!          Refusal ──reply::write_error                    validator::evaluate, range::answer ──▶ reply::write_file_head
//! ```
//!
//! Invariant: a [`Refusal`] closes the connection. Where the bytes of a request cannot be trusted, neither can the
//! place where the next one begins (RFC 9112 section 11.2).

pub mod chunked;
pub mod content_type;
pub mod date;
pub mod framing;
pub mod head;
pub mod headers;
pub mod range;
pub mod reply;
pub mod response;
pub mod target;
pub mod validator;

/// A status code this server can answer with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status(pub u16);

#[allow(missing_docs)]
impl Status {
    pub const OK: Status = Status(200);
    pub const PARTIAL_CONTENT: Status = Status(206);
    pub const MOVED_PERMANENTLY: Status = Status(301);
    pub const NOT_MODIFIED: Status = Status(304);
    pub const BAD_REQUEST: Status = Status(400);
    pub const FORBIDDEN: Status = Status(403);
    pub const NOT_FOUND: Status = Status(404);
    pub const METHOD_NOT_ALLOWED: Status = Status(405);
    pub const REQUEST_TIMEOUT: Status = Status(408);
    pub const PRECONDITION_FAILED: Status = Status(412);
    pub const CONTENT_TOO_LARGE: Status = Status(413);
    pub const URI_TOO_LONG: Status = Status(414);
    pub const RANGE_NOT_SATISFIABLE: Status = Status(416);
    pub const EXPECTATION_FAILED: Status = Status(417);
    pub const HEADER_FIELDS_TOO_LARGE: Status = Status(431);
    pub const INTERNAL_SERVER_ERROR: Status = Status(500);
    pub const NOT_IMPLEMENTED: Status = Status(501);
    pub const SERVICE_UNAVAILABLE: Status = Status(503);
    pub const VERSION_NOT_SUPPORTED: Status = Status(505);
}

impl Status {
    /// The reason phrase of the HTTP status code registry; empty for a code that is not in it.
    pub const fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            201 => "Created",
            202 => "Accepted",
            203 => "Non-Authoritative Information",
            204 => "No Content",
            205 => "Reset Content",
            206 => "Partial Content",
            207 => "Multi-Status",
            208 => "Already Reported",
            226 => "IM Used",
            300 => "Multiple Choices",
            301 => "Moved Permanently",
            302 => "Found",
            303 => "See Other",
            304 => "Not Modified",
            305 => "Use Proxy",
            307 => "Temporary Redirect",
            308 => "Permanent Redirect",
            400 => "Bad Request",
            401 => "Unauthorized",
            402 => "Payment Required",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            406 => "Not Acceptable",
            407 => "Proxy Authentication Required",
            408 => "Request Timeout",
            409 => "Conflict",
            410 => "Gone",
            411 => "Length Required",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            421 => "Misdirected Request",
            422 => "Unprocessable Content",
            423 => "Locked",
            424 => "Failed Dependency",
            425 => "Too Early",
            426 => "Upgrade Required",
            428 => "Precondition Required",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            451 => "Unavailable For Legal Reasons",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            505 => "HTTP Version Not Supported",
            506 => "Variant Also Negotiates",
            507 => "Insufficient Storage",
            508 => "Loop Detected",
            511 => "Network Authentication Required",
            _ => "",
        }
    }
}

/// Why a request is not answered as asked. The connection closes after the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status to answer with.
    pub status: Status,
    /// What was wrong, for the body of the reply and for the log.
    pub reason: &'static str,
}

impl Refusal {
    /// A refusal with `status`.
    pub const fn new(status: Status, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// A 400.
    pub const fn bad(reason: &'static str) -> Self {
        Self::new(Status::BAD_REQUEST, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_that_can_be_sent_has_a_reason_phrase() {
        for code in [200, 206, 301, 304, 400, 403, 404, 405, 408, 412, 413, 414, 416, 417, 431, 500, 501, 503, 505] {
            assert_ne!(Status(code).reason(), "", "{code}");
        }
        assert_eq!(Status(299).reason(), "");
    }
}
