//! Request heads: one pass of httparse in place, then one pass over the fields that matter to a file server.
//!
//! Apart from everything else because it reads what strangers write, on every request. It imports only the layer's own
//! types. The answer borrows from the bytes; nothing is copied or allocated.
//!
//! Invariant: the answer depends on the bytes alone, never on how they arrived. Once some prefix is refused, every
//! longer prefix is refused for the same reason; once some prefix is a request, every longer one is the same request.
//! Two things keep that true: bytes beyond the limit are not looked at, and limits are judged before what follows
//! them.

use std::mem::MaybeUninit;

use super::framing::{Framing, FramingFields};
use super::{Refusal, Status};

/// Header fields one head can have, whatever the configured limit: the slots are on the stack (32 bytes each), and are
/// never initialised beyond those in use.
pub const HEADERS_MAX: usize = 256;

/// Lines of one list-valued field that are kept. Clients send one; more than this is refused with 431.
pub const LINES_MAX: usize = 4;

/// The head is longer than allowed.
pub const HEAD_TOO_LONG: Refusal = Refusal::new(Status::HEADER_FIELDS_TOO_LARGE, "request head too long");
/// There are more header fields than allowed.
pub const TOO_MANY_HEADERS: Refusal = Refusal::new(Status::HEADER_FIELDS_TOO_LARGE, "too many header fields");
/// The request target is longer than allowed.
pub const TARGET_TOO_LONG: Refusal = Refusal::new(Status::URI_TOO_LONG, "request target too long");

/// Bounds of a request head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadLimits {
    /// Bytes from the first one received to the empty line, both included; 431 above.
    pub head_bytes: usize,
    /// Header fields; 431 above. At most [`HEADERS_MAX`].
    pub header_count: usize,
    /// Bytes of the request target; 414 above.
    pub target_bytes: usize,
}

/// The protocol version of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// What is asked for, as far as a file server tells methods apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD: the reply to GET without its body.
    Head,
    /// A method of RFC 9110 or RFC 5789 that no file has: 405.
    Known,
    /// No method we know: 501.
    Unknown,
}

/// The values of one field that may come in several lines, in order, without allocation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lines<'b> {
    values: [&'b [u8]; LINES_MAX],
    count: u8,
}

impl<'b> Lines<'b> {
    /// Adds a line; false when there is no room for it.
    #[must_use]
    pub fn push(&mut self, value: &'b [u8]) -> bool {
        let Some(slot) = self.values.get_mut(usize::from(self.count)) else { return false };
        *slot = value;
        self.count += 1;
        true
    }

    /// Whether the field was absent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values, in the order of their lines.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'b [u8]> + '_ {
        self.values[..usize::from(self.count)].iter().copied()
    }
}

/// A complete request head. Every slice points into the bytes it was parsed from.
///
/// A single-valued conditional field that came twice holds an empty value, which no rule accepts: as good as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHead<'b> {
    /// What is asked for.
    pub method: Method,
    /// The version of the request.
    pub version: Version,
    /// Origin form (begins with `/`) for GET and HEAD: of an absolute form, the part after the authority. For other
    /// methods whatever was sent.
    pub target: &'b [u8],
    /// The authority asked for, port included: of an absolute-form target, else of Host. May be empty.
    pub host: Option<&'b [u8]>,
    /// Whether the client wants the connection to last.
    pub keep_alive: bool,
    /// How the request body ends.
    pub framing: Framing,
    /// Whether the client waits for a 100 (or a final status) before it sends its body.
    pub expect_continue: bool,
    /// Range, for GET only (RFC 9110 section 14.2: other methods ignore it), and only if it came once.
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
    /// User-Agent, for the access log: the first one.
    pub user_agent: Option<&'b [u8]>,
    /// Referer, for the access log: the first one.
    pub referer: Option<&'b [u8]>,
    /// The method as it was sent, for an origin.
    pub method_name: &'b [u8],
    /// The header lines as they were sent, for an origin: read them with [`RequestHead::fields`].
    pub field_lines: &'b [u8],
}

impl<'b> RequestHead<'b> {
    /// Every header field, in order.
    pub fn fields(&self) -> Fields<'b> {
        Fields(self.field_lines)
    }
}

/// The fields of header lines that [`parse`] has accepted, taken apart again: nothing of them is kept per request,
/// since a file needs none of them.
#[derive(Clone, Debug)]
pub struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    /// The fields of `lines`: a copy of what a head held ([`RequestHead::field_lines`]), for work that outlives it.
    pub fn new(lines: &'b [u8]) -> Self {
        Self(lines)
    }
}

impl<'b> Iterator for Fields<'b> {
    /// Name and value, the value without surrounding whitespace.
    type Item = (&'b [u8], &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let end = self.0.iter().position(|&byte| byte == b'\n')?;
        let (line, rest) = (&self.0[..end], &self.0[end + 1..]);
        self.0 = rest;
        // The empty line has no colon.
        let colon = line.iter().position(|&byte| byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    }
}

/// What some bytes amount to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // built and matched in one place, never stored: a Box would allocate per request
pub enum Parse<'b> {
    /// No complete head yet, and nothing wrong so far.
    Partial,
    /// A request, and the length of its head: what to consume.
    Request(RequestHead<'b>, usize),
    /// A request that is not served.
    Refuse(Refusal),
}

/// Parses the head at the start of `bytes`.
///
/// Empty lines before the request line are skipped and counted in the length (RFC 9112 section 2.2). Lines may end
/// in a bare LF (same section); a bare CR, a folded line, whitespace before a colon and control bytes are refused.
pub fn parse<'b>(bytes: &'b [u8], limits: &HeadLimits) -> Parse<'b> {
    // What lies beyond the limit must not change the answer, so it is not shown to the parser.
    let window = &bytes[..bytes.len().min(limits.head_bytes)];
    let mut slots = [const { MaybeUninit::<httparse::Header<'b>>::uninit() }; HEADERS_MAX];
    let slots = &mut slots[..limits.header_count.min(HEADERS_MAX)];
    let mut request = httparse::Request::new(&mut []);
    let outcome = request.parse_with_uninit_headers(window, slots);
    if let Some(refusal) = target_refusal(window, &request, limits) {
        return Parse::Refuse(refusal);
    }
    match outcome {
        Ok(httparse::Status::Complete(length)) => match assemble(&request, &window[..length]) {
            Ok(head) => Parse::Request(head, length),
            Err(refusal) => Parse::Refuse(refusal),
        },
        Ok(httparse::Status::Partial) if window.len() == limits.head_bytes => Parse::Refuse(HEAD_TOO_LONG),
        Ok(httparse::Status::Partial) => Parse::Partial,
        Err(error) => Parse::Refuse(syntax_refusal(window, &request, error)),
    }
}

/// 414 as soon as the target is known to be too long, finished or not: a client that sends an endless target should
/// not be told that its header fields are too large.
#[inline]
fn target_refusal(window: &[u8], request: &httparse::Request<'_, '_>, limits: &HeadLimits) -> Option<Refusal> {
    let length = match (request.path, request.method) {
        (Some(path), _) => path.len(),
        (None, Some(method)) => {
            // The method is followed by one space, then the target as far as it has come.
            let start = offset_in(window, method.as_bytes()) + method.len() + 1;
            window[start..].iter().take_while(|&&byte| byte > b' ' && byte != 0x7f).count()
        }
        (None, None) => 0,
    };
    (length > limits.target_bytes).then_some(TARGET_TOO_LONG)
}

#[cold]
fn syntax_refusal(window: &[u8], request: &httparse::Request<'_, '_>, error: httparse::Error) -> Refusal {
    match error {
        httparse::Error::TooManyHeaders => TOO_MANY_HEADERS,
        httparse::Error::Version => {
            // `HTTP/` and a digit is a version, only not ours; anything else is noise. One digit is all that is looked
            // at: httparse gives up there when no more has come, and the answer must not change when more does.
            let start = request.path.map_or(0, |path| offset_in(window, path.as_bytes()) + path.len() + 1);
            match window[start..].strip_prefix(b"HTTP/") {
                Some([digit, ..]) if digit.is_ascii_digit() => {
                    Refusal::new(Status::VERSION_NOT_SUPPORTED, "only HTTP/1.0 and HTTP/1.1 are spoken here")
                }
                _ => Refusal::bad("malformed HTTP version"),
            }
        }
        httparse::Error::HeaderName => Refusal::bad("malformed header name"),
        httparse::Error::HeaderValue => Refusal::bad("malformed header value"),
        httparse::Error::NewLine => Refusal::bad("malformed line ending"),
        httparse::Error::Token | httparse::Error::Status => Refusal::bad("malformed request line"),
    }
}

/// Where `part` begins within `whole`, of which it must be a slice.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

#[inline]
fn assemble<'b>(request: &httparse::Request<'_, 'b>, bytes: &'b [u8]) -> Result<RequestHead<'b>, Refusal> {
    // httparse sets all three before it says Complete.
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(Refusal::bad("malformed request line"));
    };
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    let mut head = RequestHead {
        method: method_of(method.as_bytes()),
        version,
        target: target.as_bytes(),
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
        user_agent: None,
        referer: None,
        method_name: method.as_bytes(),
        field_lines: request.headers.first().map_or(b"", |first| &bytes[offset_in(bytes, first.name.as_bytes())..]),
    };
    let mut framing = FramingFields::default();
    let mut connection = ConnectionTokens::default();
    for header in request.headers.iter() {
        field(&mut head, &mut framing, &mut connection, header.name.as_bytes(), header.value)?;
    }
    head.framing = framing.decide(version)?;
    // RFC 9112 section 9.3: close wins over everything, then the default of the version.
    head.keep_alive = !connection.close && (version == Version::Http11 || connection.keep_alive);
    // RFC 9112 section 3.2: a 1.1 request without Host is refused, whatever the form of its target.
    if head.host.is_none() && version == Version::Http11 {
        return Err(Refusal::bad("no Host"));
    }
    // An empty value is the mark of a field that came twice (see `once`).
    if head.method != Method::Get || head.range == Some(b"") {
        head.range = None;
    }
    if head.target.first() != Some(&b'/') {
        resolve_form(&mut head)?;
    }
    Ok(head)
}

#[derive(Default)]
struct ConnectionTokens {
    close: bool,
    keep_alive: bool,
}

/// Takes one header field into the head. Length first: most fields of a browser are none of ours and cost one jump.
#[inline]
fn field<'b>(
    head: &mut RequestHead<'b>,
    framing: &mut FramingFields,
    connection: &mut ConnectionTokens,
    name: &'b [u8],
    value: &'b [u8],
) -> Result<(), Refusal> {
    match name.len() {
        4 if name.eq_ignore_ascii_case(b"host") => {
            if head.host.is_some() {
                return Err(Refusal::bad("more than one Host"));
            }
            if !is_authority(value) {
                return Err(Refusal::bad("malformed Host"));
            }
            head.host = Some(value);
        }
        5 if name.eq_ignore_ascii_case(b"range") => once(&mut head.range, value),
        // RFC 9110 section 10.1.1: a 1.0 client cannot mean it; any other expectation is 417.
        6 if name.eq_ignore_ascii_case(b"expect") && head.version == Version::Http11 => {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                return Err(Refusal::new(Status::EXPECTATION_FAILED, "only 100-continue can be expected"));
            }
            head.expect_continue = true;
        }
        7 if name.eq_ignore_ascii_case(b"referer") => first(&mut head.referer, value),
        8 if name.eq_ignore_ascii_case(b"if-range") => once(&mut head.if_range, value),
        8 if name.eq_ignore_ascii_case(b"if-match") => line(&mut head.if_match, value)?,
        10 if name.eq_ignore_ascii_case(b"user-agent") => first(&mut head.user_agent, value),
        10 if name.eq_ignore_ascii_case(b"connection") => connection_tokens(connection, value),
        13 if name.eq_ignore_ascii_case(b"if-none-match") => line(&mut head.if_none_match, value)?,
        14 if name.eq_ignore_ascii_case(b"content-length") => framing.content_length(value)?,
        17 if name.eq_ignore_ascii_case(b"transfer-encoding") => framing.transfer_encoding(value),
        17 if name.eq_ignore_ascii_case(b"if-modified-since") => once(&mut head.if_modified_since, value),
        19 if name.eq_ignore_ascii_case(b"if-unmodified-since") => once(&mut head.if_unmodified_since, value),
        _ => {}
    }
    Ok(())
}

/// A field that means something only if it comes once: a second line spoils it.
fn once<'b>(slot: &mut Option<&'b [u8]>, value: &'b [u8]) {
    *slot = Some(if slot.is_some() { b"" } else { value });
}

fn first<'b>(slot: &mut Option<&'b [u8]>, value: &'b [u8]) {
    slot.get_or_insert(value);
}

fn line<'b>(lines: &mut Lines<'b>, value: &'b [u8]) -> Result<(), Refusal> {
    if lines.push(value) { Ok(()) } else { Err(TOO_MANY_HEADERS) }
}

fn connection_tokens(tokens: &mut ConnectionTokens, value: &[u8]) {
    for token in value.split(|&byte| byte == b',') {
        let token = token.trim_ascii();
        tokens.close |= token.eq_ignore_ascii_case(b"close");
        tokens.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
    }
}

fn method_of(method: &[u8]) -> Method {
    match method {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" | b"PUT" | b"DELETE" | b"OPTIONS" | b"PATCH" | b"TRACE" | b"CONNECT" => Method::Known,
        _ => Method::Unknown,
    }
}

/// Every target form that is not the origin form (RFC 9112 section 3.2).
#[cold]
fn resolve_form(head: &mut RequestHead<'_>) -> Result<(), Refusal> {
    // `*` and `host:port` belong to methods that get their 405 or 501 whatever the target is.
    if !matches!(head.method, Method::Get | Method::Head) {
        return Ok(());
    }
    let rest = scheme_stripped(head.target).ok_or(Refusal::bad("request target is not a path"))?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    // RFC 9110 section 4.2.1: an http URI without a host is invalid. User information is not a host character.
    if authority.is_empty() || authority[0] == b':' || !is_authority(authority) {
        return Err(Refusal::bad("malformed authority in the request target"));
    }
    // RFC 9112 section 3.2.2: Host is ignored in favour of the target.
    head.host = Some(authority);
    // `http://host?query`: the path is empty, which is `/`; a query selects no file and is let go.
    head.target = if path.first() == Some(&b'/') { path } else { b"/" };
    Ok(())
}

fn scheme_stripped(target: &[u8]) -> Option<&[u8]> {
    [b"http://".as_slice(), b"https://"].into_iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// `uri-host [ ":" port ]` (RFC 9110 section 7.2). Empty is allowed: a URI without authority has an empty Host.
fn is_authority(value: &[u8]) -> bool {
    let port = match value {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else { return false };
            if end == 0 || !rest[..end].iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')) {
                return false;
            }
            match &rest[end + 1..] {
                [] => return true,
                [b':', port @ ..] => port,
                _ => return false,
            }
        }
        _ => {
            let end = value.iter().position(|&byte| !HOST_BYTES[usize::from(byte)]).unwrap_or(value.len());
            match &value[end..] {
                [] => return true,
                [b':', port @ ..] => port,
                _ => return false,
            }
        }
    };
    port.iter().all(u8::is_ascii_digit)
}

/// reg-name of RFC 3986: unreserved, sub-delims and the percent sign.
static HOST_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric()
            || matches!(byte as u8, b'-' | b'.' | b'_' | b'~' | b'%')
            || matches!(byte as u8, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes: 512, header_count: 8, target_bytes: 64 };

    fn request(bytes: &[u8]) -> RequestHead<'_> {
        match parse(bytes, &LIMITS) {
            Parse::Request(head, length) => {
                assert_eq!(length, bytes.len(), "the whole input is one head");
                head
            }
            other => panic!("{:?} for {:?}", other, String::from_utf8_lossy(bytes)),
        }
    }

    fn status(bytes: &[u8]) -> u16 {
        match parse(bytes, &LIMITS) {
            Parse::Request(..) => 200,
            Parse::Partial => 100,
            Parse::Refuse(refusal) => refusal.status.0,
        }
    }

    fn with_fields(fields: &str) -> Vec<u8> {
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes()
    }

    #[test]
    fn every_field_a_file_server_needs_is_found_in_any_case() {
        let bytes = b"GET /a?b HTTP/1.1\r\nhOsT: example.org:8080\r\nRANGE: bytes=0-\r\nif-range: \"x\"\r\n\
            If-Match: *\r\nIf-None-Match: \"y\"\r\nIf-Modified-Since: m\r\nIf-Unmodified-Since: u\r\nUser-Agent: curl\r\n\r\n";
        let head = request(bytes);
        assert_eq!((head.method, head.version, head.target), (Method::Get, Version::Http11, b"/a?b".as_slice()));
        assert_eq!(head.host, Some(b"example.org:8080".as_slice()));
        assert_eq!(head.range, Some(b"bytes=0-".as_slice()));
        assert_eq!(head.if_range, Some(b"\"x\"".as_slice()));
        assert_eq!(head.if_match.iter().collect::<Vec<_>>(), [b"*".as_slice()]);
        assert_eq!(head.if_none_match.iter().collect::<Vec<_>>(), [b"\"y\"".as_slice()]);
        assert_eq!(head.if_modified_since, Some(b"m".as_slice()));
        assert_eq!(head.if_unmodified_since, Some(b"u".as_slice()));
        assert_eq!(head.user_agent, Some(b"curl".as_slice()));
        assert_eq!(request(&with_fields("Referer: r\r\n")).referer, Some(b"r".as_slice()));
        assert!(head.keep_alive && !head.expect_continue && head.framing == Framing::None);
    }

    #[test]
    fn bad_syntax_is_refused_with_its_status() {
        let table: &[(&[u8], u16)] = &[
            (b"GET /\r\n\r\n", 400),                        // HTTP/0.9
            (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),   // two spaces
            (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400), // a space in the target
            (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
            (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
            (b"GET / HTTP/2\r\nHost: a\r\n\r\n", 505),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400), // whitespace before the colon
            (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400), // obs-fold
            (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400), // bare CR
            (b"GET / HTTP/1.1\rHost: a\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
            (b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\0\x01\0", 400), // a TLS ClientHello
            (b"GET \xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET / HTTP/1.1\nHost: a\n\n", 200), // bare LF: RFC 9112 2.2 allows it
            (b"GET / HTTP/1.0\r\n\r\n", 200),
            (b"GET / HT", 100),
            (b"", 100),
            (b"\r\n", 100),
        ];
        for (bytes, expected) in table {
            assert_eq!(status(bytes), *expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_request_of_http_1_1_has_exactly_one_well_formed_host() {
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status(b"GET http://a/ HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status(&with_fields("Host: a\r\n")), 400);
        for good in
            ["", "a", "a:80", "a:", "127.0.0.1:8080", "[::1]", "[::1]:80", "xn--bcher-kva.example", "a_b", "%41"]
        {
            assert_eq!(status(format!("GET / HTTP/1.1\r\nHost: {good}\r\n\r\n").as_bytes()), 200, "{good}");
        }
        for bad in [
            "a/b", "a b", "u@a", "a?", "a#", "a\\b", "a:b", "a:1:2", "[::1", "[]", "[g]", "[::1]x", "b\u{fc}", "<a>",
            "a, b",
        ] {
            assert_eq!(status(format!("GET / HTTP/1.1\r\nHost: {bad}\r\n\r\n").as_bytes()), 400, "{bad}");
        }
    }

    #[test]
    fn limits_are_named_by_their_status_even_before_the_head_ends() {
        let fields = |count: usize| with_fields(&"X: y\r\n".repeat(count));
        assert_eq!(status(&fields(7)), 200);
        assert_eq!(status(&fields(8)), 431);
        let target =
            |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(length - 1)).into_bytes();
        assert_eq!(status(&target(64)), 200);
        assert_eq!(status(&target(65)), 414);
        assert_eq!(status(&target(65)[..4 + 64]), 100);
        assert_eq!(status(&target(65)[..4 + 65]), 414);
        assert_eq!(status(&target(2000)), 414);
        let head = |length: usize| {
            let fixed = with_fields("X: \r\n").len();
            with_fields(&format!("X: {}\r\n", "y".repeat(length - fixed)))
        };
        assert_eq!(status(&head(512)), 200);
        assert_eq!(status(&head(512)[..511]), 100);
        assert_eq!(status(&head(513)), 431);
        assert_eq!(status(&head(513)[..512]), 431);
        assert_eq!(status(&[b'A'; 512]), 431);
        assert_eq!(status(&with_fields(&"If-None-Match: x\r\n".repeat(LINES_MAX + 1))), 431);
    }

    #[test]
    fn empty_lines_before_a_request_are_skipped_and_counted() {
        let bytes = b"\r\n\r\nGET / HTTP/1.0\r\n\r\nGET";
        let Parse::Request(head, length) = parse(bytes, &LIMITS) else { panic!("a request") };
        assert_eq!((head.target, &bytes[length..]), (b"/".as_slice(), b"GET".as_slice()));
    }

    #[test]
    fn the_connection_lasts_by_version_and_token_and_close_wins() {
        let table = [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: Close\r\n", false),
            ("1.1", "Connection: upgrade , close,\r\n", false),
            ("1.1", "Connection: upgrade\r\nConnection: close\r\n", false),
            ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
            ("1.1", "Connection: closed\r\n", true),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: close, keep-alive\r\n", false),
        ];
        for (version, fields, lasts) in table {
            let bytes = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
            assert_eq!(request(bytes.as_bytes()).keep_alive, lasts, "{version} {fields}");
        }
    }

    #[test]
    fn methods_are_told_apart_as_a_file_server_needs_them() {
        let table = [
            ("GET", Method::Get),
            ("HEAD", Method::Head),
            ("POST", Method::Known),
            ("PUT", Method::Known),
            ("DELETE", Method::Known),
            ("PATCH", Method::Known),
            ("TRACE", Method::Known),
            ("get", Method::Unknown),
            ("BREW", Method::Unknown),
        ];
        for (name, method) in table {
            assert_eq!(request(format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).method, method, "{name}");
        }
        assert_eq!(request(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Known);
        assert_eq!(request(b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n").method, Method::Known);
    }

    #[test]
    fn an_absolute_target_brings_its_own_host() {
        let ask = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: other\r\n\r\n").into_bytes();
        let table = [
            ("http://a/b?c", "a", "/b?c"),
            ("HTTPS://a:80/b", "a:80", "/b"),
            ("http://a", "a", "/"),
            ("http://a?c", "a", "/"),
            ("http://[::1]:8/x", "[::1]:8", "/x"),
        ];
        for (target, host, path) in table {
            let bytes = ask(target);
            let head = request(&bytes);
            assert_eq!((head.host, head.target), (Some(host.as_bytes()), path.as_bytes()), "{target}");
        }
        for bad in ["http:///b", "http://u@a/b", "http://:80/", "ftp://a/b", "http:/a", "http://a b/", "a:80"] {
            assert_eq!(status(&ask(bad)), 400, "{bad}");
        }
    }

    #[test]
    fn a_range_counts_once_and_with_get_only() {
        assert_eq!(request(&with_fields("Range: bytes=0-1\r\nRange: bytes=2-3\r\n")).range, None);
        assert_eq!(request(b"HEAD / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n").range, None);
        assert_eq!(request(&with_fields("If-Range: \"a\"\r\nIf-Range: \"a\"\r\n")).if_range, Some(b"".as_slice()));
    }

    #[test]
    fn an_expectation_is_100_continue_or_417_and_1_0_has_none() {
        assert!(request(&with_fields("Expect: 100-Continue\r\n")).expect_continue);
        assert_eq!(status(&with_fields("Expect: tea\r\n")), 417);
        assert!(!request(b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expect_continue);
    }

    #[test]
    fn every_field_can_be_read_again_as_it_was_sent() {
        let bytes = b"POST http://a/b HTTP/1.1\nhost:a\r\nX: \t\xfcb:c \t\nEmpty:\r\nx:2\r\n\r\nrest: 1\r\n";
        let Parse::Request(head, _) = parse(bytes, &LIMITS) else { panic!("a request") };
        let fields: Vec<_> = head.fields().collect();
        let expected: [(&[u8], &[u8]); 4] = [(b"host", b"a"), (b"X", b"\xfcb:c"), (b"Empty", b""), (b"x", b"2")];
        assert_eq!((head.method_name, fields.as_slice()), (b"POST".as_slice(), expected.as_slice()));
        assert_eq!(request(b"GET / HTTP/1.0\r\n\r\n").fields().count(), 0);
    }

    /// Requests that are nearly right, so that every rule is near.
    fn heads() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            Just("GET / HTTP/1.1"),
            Just("GET /a%20b?c HTTP/1.0"),
            Just("\r\nHEAD http://h/x HTTP/1.1"),
            Just("PRI * HTTP/2.0"),
            Just("GET /\u{fc} HTTP/1.1"),
            Just("GET / HTTX/1.1"),
            Just("GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0 HTTP/1.1"),
            Just("GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/3"),
        ];
        let field = prop_oneof![
            Just("Host: a"),
            Just("Host: a b"),
            Just("Content-Length: 5"),
            Just("Content-Length: 6"),
            Just("Transfer-Encoding: chunked"),
            Just("Range: bytes=0-1"),
            Just("If-None-Match: \"a\""),
            Just("Connection: close"),
            Just(
                "X-Long: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
            ),
            Just(" folded"),
            Just("Bad : x"),
            Just("X: \r"),
        ];
        (line, prop::collection::vec(field, 0..10), prop_oneof![9 => Just("\r\n"), 1 => Just("\n")], "[ -~]{0,8}")
            .prop_map(|(line, fields, end, rest)| {
                let mut bytes = Vec::new();
                for line in [line].into_iter().chain(fields) {
                    bytes.extend_from_slice(line.as_bytes());
                    bytes.extend_from_slice(end.as_bytes());
                }
                bytes.extend_from_slice(end.as_bytes());
                bytes.extend_from_slice(rest.as_bytes());
                bytes
            })
    }

    fn growth_does_not_matter(bytes: &[u8]) -> Result<(), TestCaseError> {
        let whole = parse(bytes, &LIMITS);
        let first = (0..=bytes.len()).map(|end| parse(&bytes[..end], &LIMITS)).find(|answer| *answer != Parse::Partial);
        prop_assert_eq!(first.unwrap_or(Parse::Partial), whole);
        Ok(())
    }

    proptest! {
        #[test]
        fn how_a_request_arrives_does_not_change_its_meaning(bytes in heads()) {
            growth_does_not_matter(&bytes)?;
        }

        #[test]
        fn a_mutated_request_means_the_same_however_it_arrives(
            mut bytes in heads(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            growth_does_not_matter(&bytes)?;
        }

        #[test]
        fn fields_are_what_the_parser_saw(values in prop::collection::vec(("[A-Za-z-]{1,9}", "[ -~\t]{0,20}"), 0..7), lf in any::<bool>()) {
            let end = if lf { "\n" } else { "\r\n" };
            let lines: String = values.iter().map(|(name, value)| format!("X{name}:{value}{end}")).collect();
            let bytes = format!("GET / HTTP/1.0{end}{lines}{end}");
            let mut slots = [httparse::EMPTY_HEADER; 8];
            let mut theirs = httparse::Request::new(&mut slots);
            prop_assert!(theirs.parse(bytes.as_bytes()).is_ok_and(|status| status.is_complete()));
            let theirs: Vec<_> = theirs.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
            prop_assert_eq!(request(bytes.as_bytes()).fields().collect::<Vec<_>>(), theirs);
        }

        #[test]
        fn no_bytes_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..700), head_bytes in 0usize..800) {
            parse(&bytes, &HeadLimits { head_bytes, ..LIMITS });
        }
    }
}
