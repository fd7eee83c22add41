//! An origin's response heads: one pass of httparse, and the one length its body can have.
//!
//! Apart from request heads because an origin is trusted a little more and read differently: its fields are kept whole,
//! for the client and the cache, and some of its bodies end with the connection. Imports only the layer's own types.
//!
//! Invariant: the answer depends on the bytes alone, never on how they arrived; a head is `Done` only where every
//! reader of it must come to the same body length.

use std::mem::MaybeUninit;

use super::framing::digits;
use super::head::{HEADERS_MAX, Version};
use super::headers::Headers;

/// Bounds of a response head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseLimits {
    /// Bytes to the empty line of the final head, interim (1xx) heads before it included.
    pub head_bytes: usize,
    /// Header fields of one head. At most [`HEADERS_MAX`].
    pub header_count: usize,
}

/// A final response head (never 1xx).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResponseHead {
    /// The version the origin speaks.
    pub version: Version,
    /// 200 to 599.
    pub status: u16,
    /// Every field, as sent.
    pub headers: Headers,
    /// How the body ends.
    pub body: BodyLength,
}

/// How a response body ends (RFC 9112 section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    /// No body follows: HEAD, 204, 304.
    None,
    /// So many bytes.
    Exact(u64),
    /// Chunked transfer coding.
    Chunked,
    /// Everything until the origin closes. A body that was cut short cannot be told from a whole one.
    UntilClose,
}

/// What some bytes amount to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parse {
    /// No complete final head yet, and nothing wrong so far.
    Partial,
    /// A head, and the bytes it took (interim heads included): the body begins there.
    Done {
        /// The head.
        head: ResponseHead,
        /// What to consume.
        used: usize,
    },
    /// Not a response that can be relayed; the connection must close.
    Bad(BadResponse),
}

/// Why a response is not taken: 502 to the client, and the reason counted and logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum BadResponse {
    /// Longer than [`ResponseLimits::head_bytes`].
    #[error("response head too long")]
    TooLong,
    /// More fields than [`ResponseLimits::header_count`].
    #[error("too many header fields in the response")]
    TooManyHeaders,
    /// Not HTTP/1.0 or HTTP/1.1.
    #[error("not an HTTP/1 response")]
    Version,
    /// No three-digit status from 100 to 599, or a malformed reason phrase.
    #[error("malformed response status")]
    Status,
    /// A malformed field or line end.
    #[error("malformed response header field")]
    Field,
    /// 101, which nobody asked for.
    #[error("the origin switches protocols unasked")]
    Switching,
    /// Content-Length is not one number within u64.
    #[error("the response's Content-Length is not a number")]
    ContentLength,
    /// Several Content-Length lines that differ.
    #[error("the response's Content-Length values differ")]
    ContentLengthConflict,
    /// A transfer coding other than `chunked` alone.
    #[error("the response's Transfer-Encoding is not chunked")]
    TransferEncoding,
    /// Both, which is how responses are smuggled (RFC 9112 section 6.3 rule 3).
    #[error("the response has both Transfer-Encoding and Content-Length")]
    TransferEncodingAndLength,
    /// HTTP/1.0 has no transfer codings (RFC 9112 section 6.1).
    #[error("the response has Transfer-Encoding in HTTP/1.0")]
    TransferEncodingInHttp10,
}

/// Parses the response at the start of `input`; interim responses (1xx) before it are skipped.
///
/// Framing fields are judged even where no body follows: a client would be told them.
pub fn parse(input: &[u8], method_is_head: bool, limits: &ResponseLimits) -> Parse {
    // What lies beyond the limit must not change the answer, so it is not shown to the parser.
    let window = &input[..input.len().min(limits.head_bytes)];
    let mut start = 0;
    loop {
        let mut slots = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; HEADERS_MAX];
        let slots = &mut slots[..limits.header_count.min(HEADERS_MAX)];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let used = match config.parse_response_with_uninit_headers(&mut response, &window[start..], slots) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) if window.len() == limits.head_bytes => {
                return Parse::Bad(BadResponse::TooLong);
            }
            Ok(httparse::Status::Partial) => return Parse::Partial,
            Err(error) => return Parse::Bad(syntax(error)),
        };
        start += used;
        match response.code {
            Some(101) => return Parse::Bad(BadResponse::Switching),
            Some(100..=199) => continue,
            Some(status @ 200..=599) => {
                return match assemble(&response, status, method_is_head) {
                    Ok(head) => Parse::Done { head, used: start },
                    Err(reason) => Parse::Bad(reason),
                };
            }
            _ => return Parse::Bad(BadResponse::Status),
        }
    }
}

#[cold]
fn syntax(error: httparse::Error) -> BadResponse {
    match error {
        httparse::Error::TooManyHeaders => BadResponse::TooManyHeaders,
        httparse::Error::Version => BadResponse::Version,
        httparse::Error::Status | httparse::Error::Token => BadResponse::Status,
        httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine => BadResponse::Field,
    }
}

fn assemble(
    response: &httparse::Response<'_, '_>,
    status: u16,
    method_is_head: bool,
) -> Result<ResponseHead, BadResponse> {
    let version = if response.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let bytes = response.headers.iter().map(|field| field.name.len() + field.value.len()).sum();
    let mut headers = Headers::with_capacity(response.headers.len(), bytes);
    response.headers.iter().for_each(|field| headers.push(field.name.as_bytes(), field.value));
    let declared = declared(&headers, version)?;
    let body = if method_is_head || matches!(status, 204 | 304) { BodyLength::None } else { declared };
    Ok(ResponseHead { version, status, headers, body })
}

/// What the framing fields say, whether a body follows or not.
fn declared(headers: &Headers, version: Version) -> Result<BodyLength, BadResponse> {
    let mut length = None;
    for value in headers.get_all("content-length") {
        let value = digits(value).ok_or(BadResponse::ContentLength)?;
        if length.is_some_and(|earlier| earlier != value) {
            return Err(BadResponse::ContentLengthConflict);
        }
        length = Some(value);
    }
    let mut codings = headers.get_all("transfer-encoding");
    match (codings.next(), length) {
        (None, None) => Ok(BodyLength::UntilClose),
        (None, Some(length)) => Ok(BodyLength::Exact(length)),
        (Some(_), _) if version == Version::Http10 => Err(BadResponse::TransferEncodingInHttp10),
        (Some(_), Some(_)) => Err(BadResponse::TransferEncodingAndLength),
        // Lines form one list, so a second one is never exactly `chunked`.
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none() => {
            Ok(BodyLength::Chunked)
        }
        (Some(_), None) => Err(BadResponse::TransferEncoding),
    }
}

impl ResponseHead {
    /// Whether the connection may carry another request once the body has been read to its end (RFC 9112 section 9.3).
    ///
    /// A 204 that announces a body is not trusted to have none: some origins send it.
    pub fn keep_alive(&self) -> bool {
        let said = |token: &[u8]| self.headers.tokens("connection").any(|other| other.eq_ignore_ascii_case(token));
        let doubtful = self.status == 204
            && (self.headers.contains("transfer-encoding") || self.content_length().is_some_and(|length| length > 0));
        self.body != BodyLength::UntilClose
            && !doubtful
            && !said(b"close")
            && (self.version == Version::Http11 || said(b"keep-alive"))
    }

    /// The value of Content-Length, also where no body follows (HEAD, 304): the length of what GET would have sent.
    pub fn content_length(&self) -> Option<u64> {
        self.headers.get("content-length").and_then(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: ResponseLimits = ResponseLimits { head_bytes: 512, header_count: 8 };

    fn head(text: &str, is_head: bool) -> Result<ResponseHead, BadResponse> {
        match parse(text.as_bytes(), is_head, &LIMITS) {
            Parse::Done { head, used } => {
                assert_eq!(used, text.len(), "the whole input is one head");
                Ok(head)
            }
            Parse::Bad(reason) => Err(reason),
            Parse::Partial => panic!("partial: {text}"),
        }
    }

    #[test]
    fn a_body_has_the_length_rfc_9112_section_6_3_gives_it() {
        use BadResponse as Bad;
        use BodyLength::{Chunked, Exact, None, UntilClose};
        let table: &[(&str, &str, bool, Result<BodyLength, Bad>)] = &[
            ("1.1 200 OK", "Content-Length: 5", false, Ok(Exact(5))),
            ("1.1 200 OK", "Content-Length: 0", false, Ok(Exact(0))),
            ("1.1 200 OK", "Content-Length: 5\r\ncontent-length: 5", false, Ok(Exact(5))),
            ("1.1 200 OK", "Content-Length: 18446744073709551615", false, Ok(Exact(u64::MAX))),
            ("1.1 200 OK", "Content-Length: 18446744073709551616", false, Err(Bad::ContentLength)),
            ("1.1 200 OK", "Content-Length: 5\r\nContent-Length: 6", false, Err(Bad::ContentLengthConflict)),
            ("1.1 200 OK", "Content-Length: 5, 5", false, Err(Bad::ContentLength)),
            ("1.1 200 OK", "Content-Length: +5", false, Err(Bad::ContentLength)),
            ("1.1 200 OK", "Content-Length: -1", false, Err(Bad::ContentLength)),
            ("1.1 200 OK", "Content-Length: 5\r\nContent-Length:", false, Err(Bad::ContentLength)),
            ("1.1 200 OK", "A: b", false, Ok(UntilClose)),
            ("1.0 200 OK", "A: b", false, Ok(UntilClose)),
            ("1.1 404 Not Found", "A: b", false, Ok(UntilClose)),
            ("1.1 200 OK", "Transfer-Encoding: Chunked", false, Ok(Chunked)),
            ("1.1 200 OK", "Transfer-Encoding: gzip, chunked", false, Err(Bad::TransferEncoding)),
            (
                "1.1 200 OK",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                false,
                Err(Bad::TransferEncoding),
            ),
            ("1.1 200 OK", "Transfer-Encoding: identity", false, Err(Bad::TransferEncoding)),
            ("1.1 200 OK", "Transfer-Encoding: xchunked", false, Err(Bad::TransferEncoding)),
            ("1.1 200 OK", "Transfer-Encoding:", false, Err(Bad::TransferEncoding)),
            (
                "1.1 200 OK",
                "Transfer-Encoding: chunked\r\nContent-Length: 5",
                false,
                Err(Bad::TransferEncodingAndLength),
            ),
            ("1.1 200 OK", "Content-Length: 5\r\nTransfer-Encoding: gzip", false, Err(Bad::TransferEncodingAndLength)),
            ("1.0 200 OK", "Transfer-Encoding: chunked", false, Err(Bad::TransferEncodingInHttp10)),
            ("1.1 200 OK", "Content-Length: 5", true, Ok(None)),
            ("1.1 200 OK", "A: b", true, Ok(None)),
            ("1.1 200 OK", "Transfer-Encoding: chunked", true, Ok(None)),
            ("1.1 200 OK", "Content-Length: x", true, Err(Bad::ContentLength)),
            ("1.1 204 No Content", "A: b", false, Ok(None)),
            ("1.1 304 Not Modified", "Content-Length: 5", false, Ok(None)),
            ("1.1 304", "A: b", false, Ok(None)),
            ("1.1 206 Partial Content", "Content-Length: 7", false, Ok(Exact(7))),
        ];
        for (start, fields, is_head, expected) in table {
            let text = format!("HTTP/{start}\r\n{fields}\r\n\r\n");
            assert_eq!(head(&text, *is_head).map(|head| head.body), *expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_response_is_refused_with_its_reason() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(600));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(9));
        let table = [
            ("SSH-2.0-OpenSSH_9\r\n", BadResponse::Version),
            ("HTTP/2 200 OK\r\n\r\n", BadResponse::Version),
            ("GET / HTTP/1.1\r\n\r\n", BadResponse::Version),
            ("HTTP/1.1 20 OK\r\n\r\n", BadResponse::Status),
            ("HTTP/1.1 600 OK\r\n\r\n", BadResponse::Status),
            ("HTTP/1.1 099 OK\r\n\r\n", BadResponse::Status),
            ("HTTP/1.1 x00 OK\r\n\r\n", BadResponse::Status),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n", BadResponse::Switching),
            ("HTTP/1.1 200 OK\r\nA b\r\n\r\n", BadResponse::Field),
            ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", BadResponse::Field),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", BadResponse::Field),
            ("HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", BadResponse::Field),
            (&long, BadResponse::TooLong),
            (&many, BadResponse::TooManyHeaders),
        ];
        for (text, expected) in table {
            assert_eq!(head(text, false), Err(expected), "{text}");
        }
    }

    #[test]
    fn interim_responses_are_skipped_within_the_limit() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        assert_eq!(parse(interim.as_bytes(), false, &LIMITS), Parse::Partial);
        let found = head(&format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), false).unwrap();
        assert_eq!((found.status, found.body, found.headers.len()), (200, BodyLength::Exact(3), 1));
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(99);
        assert_eq!(parse(endless.as_bytes(), false, &LIMITS), Parse::Bad(BadResponse::TooLong));
    }

    #[test]
    fn a_connection_lasts_only_where_the_next_response_can_be_found() {
        let table = [
            ("1.1 200 OK\r\nContent-Length: 1", true),
            ("1.1 200 OK\r\nTransfer-Encoding: chunked", true),
            ("1.1 200 OK\r\nContent-Length: 1\r\nConnection: a, CLOSE", false),
            ("1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\nConnection: close", false),
            ("1.1 200 OK\r\nA: b", false),
            ("1.0 200 OK\r\nContent-Length: 1", false),
            ("1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive", true),
            ("1.0 200 OK\r\nConnection: keep-alive", false),
            ("1.1 304 Not Modified\r\nContent-Length: 9", true),
            ("1.1 204 No Content\r\nContent-Length: 0", true),
            ("1.1 204 No Content\r\nContent-Length: 5", false),
            ("1.1 204 No Content\r\nTransfer-Encoding: chunked", false),
        ];
        for (text, expected) in table {
            let found = head(&format!("HTTP/{text}\r\n\r\n"), false).unwrap();
            assert_eq!(found.keep_alive(), expected, "{text}");
        }
        let found = head("HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n", true).unwrap();
        assert_eq!((found.keep_alive(), found.content_length()), (true, Some(42)));
    }

    fn response() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            Just("HTTP/1.1 200 OK"),
            Just("HTTP/1.0 404"),
            Just("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 Partial"),
            Just("HTTP/1.1 999 x"),
            Just("HTTP/3 200 x"),
        ];
        let field = prop_oneof![
            Just("Content-Length: 5\r\n"),
            Just("Content-Length: 6\n"),
            Just("Transfer-Encoding: chunked\r\n"),
            Just("Connection: close\r\n"),
            Just("A:\t b \r\n"),
            Just("B c\r\n"),
        ];
        (line, prop::collection::vec(field, 0..10), "[a-z\r\n]{0,6}")
            .prop_map(|(line, fields, tail)| format!("{line}\r\n{}\r\n{tail}", fields.concat()).into_bytes())
    }

    proptest! {
        #[test]
        fn every_prefix_is_partial_until_the_answer_which_then_stays(bytes in response(), is_head in any::<bool>()) {
            let mut settled = None;
            for end in 0..=bytes.len() {
                let found = parse(&bytes[..end], is_head, &LIMITS);
                if let Some(earlier) = &settled {
                    prop_assert_eq!(earlier, &found, "at {}", end);
                } else if found != Parse::Partial {
                    settled = Some(found);
                }
            }
        }

        #[test]
        fn no_bytes_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            parse(&bytes, false, &LIMITS);
            parse(&[b"HTTP/1.1 200 OK\r\n", bytes.as_slice()].concat(), false, &LIMITS);
        }
    }
}
