//! Request heads, in place (RFC 9112 2-3, 9.3), over httparse.
//!
//! httparse finds the lines; this file holds what they may say: limits, one Host, no smuggling (see `framing`).

use super::Refusal;
use super::framing::{Framing, FramingLines};
use std::mem::MaybeUninit;

/// Bounds of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadLimits {
    /// Bytes, 431 above.
    pub head_bytes: usize,
    /// Field lines, 431 above; at most [`HEADERS_MOST`].
    pub header_count: usize,
    /// Bytes of the target, 414 above.
    pub target_bytes: usize,
}

/// Field lines there is room for.
pub const HEADERS_MOST: usize = 128;

/// The protocol version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// The method, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// Another one of RFC 9110 or 5789: 405.
    Known,
    /// None of them: 501.
    Unknown,
}

/// The values of a field that may stand on several lines; the usual one needs no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines<'b> {
    first: Option<&'b [u8]>,
    more: Vec<&'b [u8]>,
}

impl<'b> Lines<'b> {
    fn push(&mut self, value: &'b [u8]) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.more.push(value),
        }
    }
    /// Whether there is no such field.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
    /// Every line's value.
    pub fn iter(&self) -> impl Iterator<Item = &'b [u8]> + '_ {
        self.first.iter().chain(&self.more).copied()
    }
}

/// A request head, borrowed from the bytes it was received in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead<'b> {
    /// The method.
    pub method: Method,
    /// The version.
    pub version: Version,
    /// The target in origin form (from an absolute form, its path part).
    pub target: &'b [u8],
    /// Host, with its port if it has one.
    pub host: Option<&'b [u8]>,
    /// The client wants to go on after the response.
    pub keep_alive: bool,
    /// How the body is framed.
    pub framing: Framing,
    /// The client waits for 100 before it sends its body.
    pub expect_continue: bool,
    /// Range, if there is exactly one.
    pub range: Option<&'b [u8]>,
    /// If-Range.
    pub if_range: Option<&'b [u8]>,
    /// If-Match.
    pub if_match: Lines<'b>,
    /// If-None-Match.
    pub if_none_match: Lines<'b>,
    /// If-Modified-Since.
    pub if_modified_since: Option<&'b [u8]>,
    /// If-Unmodified-Since.
    pub if_unmodified_since: Option<&'b [u8]>,
}

/// What the bytes are.
#[derive(Debug, PartialEq, Eq)]
pub enum Parse<'b> {
    /// The beginning of a head.
    Partial,
    /// A head and its length.
    Request(RequestHead<'b>, usize),
    /// Nothing that can be answered with anything but this.
    Refuse(Refusal),
}

const TOO_LONG: Refusal = Refusal::new(431, "the request head is too long");
/// The refusal of a head with too many field lines.
pub const TOO_MANY: Refusal = Refusal::new(431, "the request has too many header fields");

/// Parses the head that `bytes` begin with; the same bytes give the same answer however they arrived.
pub fn parse<'b>(bytes: &'b [u8], limits: &HeadLimits) -> Parse<'b> {
    let mut room = [const { MaybeUninit::<httparse::Header<'b>>::uninit() }; HEADERS_MOST];
    let count = limits.header_count.min(HEADERS_MOST);
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(bytes, &mut room[..count]) {
        Ok(httparse::Status::Complete(used)) if used > limits.head_bytes => Parse::Refuse(TOO_LONG),
        Ok(httparse::Status::Complete(used)) => match understand(&parsed, limits) {
            Ok(head) => Parse::Request(head, used),
            Err(refusal) => Parse::Refuse(refusal),
        },
        Ok(httparse::Status::Partial) => partial(bytes, limits),
        Err(httparse::Error::TooManyHeaders) => Parse::Refuse(TOO_MANY),
        Err(httparse::Error::Version) => match version_line(bytes) {
            VersionLine::Other => Parse::Refuse(Refusal::new(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")),
            VersionLine::Bad => Parse::Refuse(Refusal::new(400, "the request line is not HTTP")),
        },
        Err(httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine) => {
            Parse::Refuse(Refusal::new(400, "a header field is malformed"))
        }
        Err(_) => Parse::Refuse(Refusal::new(400, "the request line is malformed")),
    }
}

fn partial<'b>(bytes: &[u8], limits: &HeadLimits) -> Parse<'b> {
    // A target that never ends is told as such, not as a long head.
    let line = bytes.iter().position(|byte| *byte == b'\n').is_none();
    if line && bytes.len() > limits.target_bytes + 64 {
        return Parse::Refuse(Refusal::new(414, "the request target is too long"));
    }
    if bytes.len() >= limits.head_bytes { Parse::Refuse(TOO_LONG) } else { Parse::Partial }
}

enum VersionLine {
    Other,
    Bad,
}

fn version_line(bytes: &[u8]) -> VersionLine {
    let line = bytes.split(|byte| *byte == b'\n').find(|line| !matches!(line, [] | [b'\r'])).unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let version = words.next().unwrap_or_default();
    let version = version.strip_suffix(b"\r").unwrap_or(version);
    match version.strip_prefix(b"HTTP/") {
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() && words.next().is_none() => {
            VersionLine::Other
        }
        _ => VersionLine::Bad,
    }
}

fn understand<'b>(parsed: &httparse::Request<'_, 'b>, limits: &HeadLimits) -> Result<RequestHead<'b>, Refusal> {
    let method = match parsed.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH" | "TRACE" | "CONNECT" => Method::Known,
        _ => Method::Unknown,
    };
    let version = if parsed.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let target = parsed.path.unwrap_or_default().as_bytes();
    if target.len() > limits.target_bytes {
        return Err(Refusal::new(414, "the request target is too long"));
    }
    let mut head = RequestHead {
        method,
        version,
        target,
        host: None,
        keep_alive: version == Version::Http11,
        framing: Framing::None,
        expect_continue: false,
        range: None,
        if_range: None,
        if_match: Lines::default(),
        if_none_match: Lines::default(),
        if_modified_since: None,
        if_unmodified_since: None,
    };
    let mut framing = FramingLines::default();
    let (mut hosts, mut ranges, mut close) = (0, 0, false);
    for header in parsed.headers.iter() {
        let (name, value) = (header.name.as_bytes(), header.value);
        // Length first: most fields of most requests are none of these.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                hosts += 1;
                head.host = Some(value);
            }
            5 if name.eq_ignore_ascii_case(b"range") => {
                ranges += 1;
                head.range = Some(value);
            }
            6 if name.eq_ignore_ascii_case(b"expect") => {
                head.expect_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            8 if name.eq_ignore_ascii_case(b"if-match") => head.if_match.push(value),
            8 if name.eq_ignore_ascii_case(b"if-range") => head.if_range = Some(value),
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for token in tokens(value) {
                    if token.eq_ignore_ascii_case(b"close") {
                        close = true;
                    } else if token.eq_ignore_ascii_case(b"keep-alive") {
                        head.keep_alive = true;
                    }
                }
            }
            13 if name.eq_ignore_ascii_case(b"if-none-match") => head.if_none_match.push(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => framing.content_length(value)?,
            17 if name.eq_ignore_ascii_case(b"if-modified-since") => head.if_modified_since = Some(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => framing.transfer_encoding(value),
            19 if name.eq_ignore_ascii_case(b"if-unmodified-since") => head.if_unmodified_since = Some(value),
            _ => {}
        }
    }
    head.keep_alive &= !close;
    if ranges > 1 {
        head.range = None;
    }
    head.framing = framing.decide(version)?;
    // RFC 9112 3.2: exactly one Host in HTTP/1.1, and it must look like one.
    if hosts > 1 || hosts == 0 && version == Version::Http11 {
        return Err(Refusal::new(400, "a request needs exactly one Host"));
    }
    if head.host.is_some_and(|host| !host.iter().all(|byte| is_host_byte(*byte))) {
        return Err(Refusal::new(400, "the Host is malformed"));
    }
    if method != Method::Known {
        absolute_form(&mut head)?;
    }
    Ok(head)
}

/// RFC 9112 3.2.2: the host of an absolute form replaces Host.
fn absolute_form(head: &mut RequestHead<'_>) -> Result<(), Refusal> {
    if head.target.first() == Some(&b'/') {
        return Ok(());
    }
    let rest = [b"http://".as_slice(), b"https://"].iter().find_map(|scheme| {
        let (start, rest) = head.target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let Some(rest) = rest else { return Err(Refusal::new(400, "the request target is malformed")) };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    if host.is_empty() || !host.iter().all(|byte| is_host_byte(*byte)) {
        return Err(Refusal::new(400, "the host of the request target is malformed"));
    }
    head.host = Some(host);
    head.target = if path.first() == Some(&b'/') { path } else { b"/" };
    Ok(())
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']' | b'~' | b'%')
}

/// The members of a comma-separated list, trimmed.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes: 2048, header_count: 8, target_bytes: 1000 };

    fn request(bytes: &[u8]) -> RequestHead<'_> {
        match parse(bytes, &LIMITS) {
            Parse::Request(head, used) => {
                assert_eq!(used, bytes.len());
                head
            }
            other => panic!("{other:?}"),
        }
    }

    fn refused(bytes: &[u8]) -> u16 {
        match parse(bytes, &LIMITS) {
            Parse::Refuse(refusal) => refusal.status.0,
            other => panic!("{:?}: {other:?}", String::from_utf8_lossy(bytes)),
        }
    }

    #[test]
    fn what_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(1000));
        let fat = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(2100));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(9));
        let rows: &[(&str, u16)] = &[
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("nonsense\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}", 400),
            ("GET example.org/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (&long, 414),
            (&fat, 431),
            (&many, 431),
        ];
        for (bytes, status) in rows {
            assert_eq!(refused(bytes.as_bytes()), *status, "{bytes:?}");
        }
        assert_eq!(refused(format!("GET /{}", "a".repeat(3000)).as_bytes()), 414, "a target that never ends");
    }

    #[test]
    fn who_goes_on() {
        let rows: &[(&str, bool)] = &[
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
            ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ];
        for (bytes, keep) in rows {
            assert_eq!(request(bytes.as_bytes()).keep_alive, *keep, "{bytes:?}");
        }
    }

    #[test]
    fn methods_and_forms() {
        assert_eq!(request(b"DELETE /x HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Known);
        assert_eq!(request(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Known);
        assert_eq!(request(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Known);
        assert_eq!(request(b"BREW /x HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Unknown);
        let absolute = request(b"GET http://b:80/c?d HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((absolute.host, absolute.target), (Some(b"b:80".as_slice()), b"/c?d".as_slice()));
        assert_eq!(request(b"GET http://b HTTP/1.1\r\nHost: a\r\n\r\n").target, b"/");
        let two = request(b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nRange: bytes=2-3\r\n\r\n");
        assert_eq!(two.range, None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, &LIMITS);
        }

        /// A prefix is Partial, or refused for what the whole would be refused for too.
        #[test]
        fn growing_input_never_changes_its_mind(
            path in "/[a-z%.?/]{0,40}",
            headers in proptest::collection::vec("[A-Za-z-]{1,12}: ?[ -~]{0,30}", 0..7),
            junk in proptest::collection::vec(any::<u8>(), 0..5),
        ) {
            let mut bytes = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{}\r\n", headers.iter().map(|h| format!("{h}\r\n")).collect::<String>()).into_bytes();
            let head = bytes.len();
            bytes.extend(junk);
            let whole = parse(&bytes, &LIMITS);
            for cut in 0..bytes.len() {
                match parse(&bytes[..cut], &LIMITS) {
                    Parse::Partial => prop_assert!(cut < head),
                    Parse::Request(request, used) => prop_assert_eq!(&Parse::Request(request, used), &whole),
                    Parse::Refuse(_) => prop_assert!(matches!(whole, Parse::Refuse(_))),
                }
            }
        }
    }
}
