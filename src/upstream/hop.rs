//! What changes on the way through: the request an origin gets, and the fields of its answer a client gets.
//!
//! Apart because each rule here is a promise to both sides (RFC 9110 sections 7.2 and 7.6, RFC 7239). Pure: imports the
//! HTTP layer only.
//!
//! Invariant: Host, the framing fields, Via and what [`OutgoingRequest::set`] names are written by us, once; nothing of
//! the client's can add to or remove from them.

use std::net::IpAddr;

use crate::http::framing::Framing;
use crate::http::head::{Fields, RequestHead, Version};
use crate::http::headers::{end_to_end, starts_with, tokens, write_field};
use crate::http::response::ResponseHead;

/// Our name in Via (RFC 9110 section 7.6.3).
pub const PSEUDONYM: &str = "ringway";

/// Fields by which a client could steer an answer that others then get from the cache: no key has them. A fetch whose
/// answer may be stored drops them and tells nothing about the client ([`Forwarded::Off`]), since it is for all.
pub const UNKEYED: &[&str] = &[
    "forwarded",
    "x-forwarded-*",
    "x-real-ip",
    "x-host",
    "x-original-*",
    "x-rewrite-*",
    "x-http-method*",
    "x-method-override",
];

/// What is told about the client, in X-Forwarded-For, -Proto, -Host and Forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Forwarded {
    /// Added to what the client sent: right behind a proxy that is trusted.
    Append,
    /// What the client sent is dropped: right where clients connect directly, and the default.
    #[default]
    Replace,
    /// Nothing is told; what the client sent passes like any other field.
    Off,
}

/// Which Host an origin is asked for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum HostRule {
    /// The origin's own authority.
    #[default]
    Origin,
    /// The one the client asked for; the origin's where the client named none.
    Client,
    /// This one.
    Fixed(String),
}

/// Whose conditions an origin is asked to evaluate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conditions<'a> {
    /// The client's Range and If-* fields pass.
    Client,
    /// They are dropped, and these fields are written instead: a slice, a revalidation.
    Ours(&'a [(&'a str, &'a [u8])]),
}

/// A request as an origin gets it.
#[derive(Clone, Debug)]
pub struct OutgoingRequest<'a> {
    /// The method.
    pub method: &'a [u8],
    /// Origin form, as the origin names it; `*` for OPTIONS. Whoever lets other methods pass refuses other forms.
    pub target: &'a [u8],
    /// The client's fields.
    pub fields: Fields<'a>,
    /// The version the client spoke, for Via.
    pub client_version: Version,
    /// The authority the client asked for.
    pub client_host: Option<&'a [u8]>,
    /// The client's address.
    pub peer: IpAddr,
    /// The scheme the client used: `http` or `https`.
    pub proto: &'a str,
    /// The origin's authority, with its port unless that is the default one.
    pub origin_host: &'a [u8],
    /// Which Host is sent.
    pub host: &'a HostRule,
    /// What is told about the client.
    pub forwarded: Forwarded,
    /// Whose conditions are sent.
    pub conditions: Conditions<'a>,
    /// Fields of the client that do not pass; a name that ends in `*` is a prefix.
    pub drop: &'a [&'a str],
    /// Fields written instead of the client's of the same name: credentials, an Accept-Encoding.
    pub set: &'a [(&'a str, &'a [u8])],
    /// The request's body.
    pub body: Framing,
    /// Whether the connection is wanted afterwards.
    pub keep_alive: bool,
}

impl<'a> OutgoingRequest<'a> {
    /// The client's request as it is, on a connection that lasts, to the origin with this authority.
    pub fn new(head: &RequestHead<'a>, peer: IpAddr, origin_host: &'a [u8]) -> Self {
        Self {
            method: head.method_name,
            target: head.target,
            fields: head.fields(),
            client_version: head.version,
            client_host: head.host,
            peer,
            proto: "http",
            origin_host,
            host: &HostRule::Origin,
            forwarded: Forwarded::default(),
            conditions: Conditions::Client,
            drop: &[],
            set: &[],
            body: head.framing,
            keep_alive: true,
        }
    }

    /// The Host that is sent; a signature covers it.
    pub fn host(&self) -> &'a [u8] {
        match self.host {
            HostRule::Origin => self.origin_host,
            HostRule::Client => self.client_host.filter(|host| !host.is_empty()).unwrap_or(self.origin_host),
            HostRule::Fixed(host) => host.as_bytes(),
        }
    }

    /// Whether a field of the client reaches the origin as it is, given that it is end-to-end.
    fn passes(&self, name: &[u8]) -> bool {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let written_by_us = is("host") || is("content-length") || self.set.iter().any(|(other, _)| is(other));
        // The client's server side has answered the expectation: an interim response of the origin is not relayed.
        let answered_here = is("expect");
        let conditional = matches!(self.conditions, Conditions::Ours(_)) && is_conditional(name);
        let about_the_client = match self.forwarded {
            Forwarded::Off => false,
            Forwarded::Append => is("x-forwarded-for") || is("forwarded"),
            Forwarded::Replace => starts_with(name, b"x-forwarded-") || is("forwarded") || is("x-real-ip"),
        };
        let dropped = self.drop.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => starts_with(name, prefix.as_bytes()),
            None => is(pattern),
        });
        !(written_by_us || answered_here || conditional || about_the_client || dropped)
    }
}

/// Whether a field makes an answer depend on what the client already holds (RFC 9110 sections 13.1 and 14.2).
pub fn is_conditional(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] =
        [b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"];
    NAMES.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Appends the head of the request to the origin.
pub fn request_head(out: &mut Vec<u8>, req: &OutgoingRequest<'_>) {
    let clean = |bytes: &[u8]| bytes.iter().all(|&byte| byte > b' ' && byte != 0x7f);
    debug_assert!(clean(req.method) && clean(req.target), "a request line has two spaces");
    out.extend_from_slice(req.method);
    out.push(b' ');
    out.extend_from_slice(req.target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_field(out, b"Host", req.host());
    let fields = end_to_end(req.fields.clone());
    for (name, value) in fields.clone().filter(|(name, _)| req.passes(name)) {
        write_field(out, name, value);
    }
    let ours = if let Conditions::Ours(fields) = req.conditions { fields } else { &[] };
    for (name, value) in ours.iter().chain(req.set) {
        write_field(out, name.as_bytes(), value);
    }
    match req.body {
        Framing::None => {}
        Framing::Length(length) => write_field(out, b"Content-Length", itoa::Buffer::new().format(length).as_bytes()),
        Framing::Chunked => write_field(out, b"Transfer-Encoding", b"chunked"),
    }
    if req.forwarded != Forwarded::Off {
        write_forwarded(out, req, fields);
    }
    // Behind the client's own Via lines: lines of one name are one list, in order.
    write_field(out, b"Via", via(req.client_version));
    if !req.keep_alive {
        write_field(out, b"Connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
}

fn via(received: Version) -> &'static [u8] {
    match received {
        Version::Http10 => b"1.0 ringway",
        Version::Http11 => b"1.1 ringway",
    }
}

/// How often a request has been through here (or a namesake): a loop shows as a number that grows.
pub fn times_seen<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> usize {
    let ours = |hop: &&[u8]| hop.split(|&byte| byte == b' ').nth(1) == Some(PSEUDONYM.as_bytes());
    fields
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"via"))
        .flat_map(|(_, value)| tokens(value))
        .filter(ours)
        .count()
}

fn write_forwarded<'a>(
    out: &mut Vec<u8>,
    req: &OutgoingRequest<'_>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
) {
    // One line each: many origins read the first line only, or the last.
    let list = |out: &mut Vec<u8>, name: &str| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        if req.forwarded == Forwarded::Append {
            let theirs = fields.clone().filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
            for (_, value) in theirs.filter(|(_, value)| !value.is_empty()) {
                out.extend_from_slice(value);
                out.extend_from_slice(b", ");
            }
        }
    };
    // A mapped address is the IPv4 client it stands for.
    let peer = req.peer.to_canonical();
    let host = req.client_host.filter(|host| !host.is_empty());
    list(out, "X-Forwarded-For");
    out.extend_from_slice(peer.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
    // The first proxy knows what the client asked for; later ones only what it said.
    let told = |name: &str| {
        req.forwarded == Forwarded::Append
            && fields.clone().any(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()) && req.passes(other))
    };
    if !told("x-forwarded-proto") {
        write_field(out, b"X-Forwarded-Proto", req.proto.as_bytes());
    }
    if let Some(host) = host.filter(|_| !told("x-forwarded-host")) {
        write_field(out, b"X-Forwarded-Host", host);
    }
    list(out, "Forwarded");
    // RFC 7239 section 6: an IPv6 address is bracketed, and brackets and colons need quotes.
    match peer {
        IpAddr::V4(address) => out.extend_from_slice(format!("for={address}").as_bytes()),
        IpAddr::V6(address) => out.extend_from_slice(format!("for=\"[{address}]\"").as_bytes()),
    }
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(req.proto.as_bytes());
    if let Some(host) = host {
        // An authority holds neither quotes nor backslashes.
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(host);
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
}

/// The fields of an origin's answer that pass to the client, Via added.
///
/// Content-Length is not among them, since whoever writes the head states the length of the body, once:
/// [`ResponseHead::body`], or [`ResponseHead::content_length`] where no body follows.
pub fn response_headers(head: &ResponseHead) -> impl Iterator<Item = (&[u8], &[u8])> {
    end_to_end(head.headers.iter())
        .filter(|(name, _)| !name.eq_ignore_ascii_case(b"content-length"))
        .chain(std::iter::once((b"Via".as_slice(), via(head.version))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::{HeadLimits, Parse, parse};
    use crate::http::response::{self, ResponseLimits};
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes: 8192, header_count: 64, target_bytes: 256 };

    fn outgoing<'a>(text: &'a str, change: impl FnOnce(&mut OutgoingRequest<'a>)) -> String {
        let Parse::Request(head, _) = parse(text.as_bytes(), &LIMITS) else { panic!("a request: {text}") };
        let mut req = OutgoingRequest::new(&head, "192.0.2.7".parse().unwrap(), b"origin:9000");
        req.forwarded = Forwarded::Off;
        change(&mut req);
        let mut out = Vec::new();
        request_head(&mut out, &req);
        let sent = String::from_utf8(out).unwrap();
        assert!(matches!(parse(sent.as_bytes(), &LIMITS), Parse::Request(_, used) if used == sent.len()), "{sent}");
        sent
    }

    /// The lines that an outgoing request has of one field.
    fn lines<'t>(sent: &'t str, name: &str) -> Vec<&'t str> {
        let of = |line: &'t str| line.split_once(": ").filter(|(other, _)| other.eq_ignore_ascii_case(name));
        sent.lines().filter_map(of).map(|(_, value)| value).collect()
    }

    fn get(fields: &str) -> String {
        format!("GET /a?b HTTP/1.1\r\nHost: client.example\r\n{fields}\r\n")
    }

    #[test]
    fn a_request_passes_without_what_belongs_to_the_clients_connection() {
        let sent = outgoing(
            &get("Accept: x\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n\
                  Upgrade: h2c\r\nProxy-Authorization: x\r\nVia: 1.0 fred\r\nRange: bytes=0-1\r\nIf-None-Match: \"a\"\r\n\
                  X-Forwarded-For: 203.0.113.1\r\n"),
            |_| {},
        );
        assert_eq!(
            sent,
            "GET /a?b HTTP/1.1\r\nHost: origin:9000\r\nAccept: x\r\nVia: 1.0 fred\r\nRange: bytes=0-1\r\n\
             If-None-Match: \"a\"\r\nX-Forwarded-For: 203.0.113.1\r\nVia: 1.1 ringway\r\n\r\n"
        );
    }

    #[test]
    fn a_body_is_framed_by_us_whatever_the_client_wrote() {
        let post =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        let sent = outgoing(post, |_| {});
        assert_eq!((lines(&sent, "content-length"), lines(&sent, "expect")), (vec!["5"], vec![]));
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
        assert_eq!(lines(&outgoing(chunked, |_| {}), "transfer-encoding"), ["chunked"]);
        // Naming the framing in Connection does not take it away.
        let hidden = "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length, host\r\nContent-Length: 5\r\n\r\n";
        let sent = outgoing(hidden, |_| {});
        assert_eq!((lines(&sent, "content-length"), lines(&sent, "host")), (vec!["5"], vec!["origin:9000"]));
        assert_eq!(lines(&outgoing(&get(""), |req| req.keep_alive = false), "connection"), ["close"]);
    }

    #[test]
    fn the_host_is_chosen_by_rule() {
        let table = [
            (HostRule::Origin, "client.example", "origin:9000"),
            (HostRule::Client, "client.example", "client.example"),
            (HostRule::Client, "", "origin:9000"),
            (HostRule::Fixed("bucket.example".into()), "client.example", "bucket.example"),
        ];
        for (rule, client, expected) in table {
            let text = format!("GET / HTTP/1.1\r\nHost: {client}\r\n\r\n");
            assert_eq!(lines(&outgoing(&text, |req| req.host = &rule), "host"), [expected], "{rule:?}");
        }
    }

    #[test]
    fn the_client_is_told_about_by_rule() {
        let theirs = "X-Forwarded-For: 203.0.113.1\r\nx-forwarded-for: 203.0.113.2, 203.0.113.3\r\n\
                      X-Forwarded-Proto: https\r\nX-Forwarded-Host: first\r\nForwarded: for=203.0.113.1\r\n\
                      X-Forwarded-Port: 1\r\nX-Real-IP: 203.0.113.1\r\n";
        let ours = "for=192.0.2.7;proto=http;host=\"client.example\"";
        let sent = outgoing(&get(theirs), |req| req.forwarded = Forwarded::Append);
        assert_eq!(lines(&sent, "x-forwarded-for"), ["203.0.113.1, 203.0.113.2, 203.0.113.3, 192.0.2.7"]);
        assert_eq!(
            (lines(&sent, "x-forwarded-proto"), lines(&sent, "x-forwarded-host")),
            (vec!["https"], vec!["first"])
        );
        assert_eq!(lines(&sent, "forwarded"), [format!("for=203.0.113.1, {ours}")]);
        let sent = outgoing(&get(theirs), |req| req.forwarded = Forwarded::Replace);
        assert_eq!(lines(&sent, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(lines(&sent, "x-forwarded-proto"), ["http"]);
        assert_eq!(lines(&sent, "x-forwarded-host"), ["client.example"]);
        assert_eq!(lines(&sent, "forwarded"), [ours]);
        assert!(!sent.contains("203.0.113") && !sent.contains("Port"), "nothing of the client's is left: {sent}");
        // A client cannot take our word away, nor smuggle its own past the rule, by naming it in Connection.
        let hidden = format!("Connection: x-forwarded-for, forwarded, x-forwarded-proto\r\n{theirs}");
        let sent = outgoing(&get(&hidden), |req| req.forwarded = Forwarded::Append);
        assert_eq!((lines(&sent, "x-forwarded-for"), lines(&sent, "forwarded")), (vec!["192.0.2.7"], vec![ours]));
        assert_eq!(lines(&sent, "x-forwarded-proto"), ["http"]);
    }

    #[test]
    fn an_ipv6_client_is_quoted_where_the_grammar_wants_it() {
        for (peer, plain, node) in [
            ("2001:db8::1", "2001:db8::1", "for=\"[2001:db8::1]\""),
            ("::ffff:192.0.2.7", "192.0.2.7", "for=192.0.2.7"),
        ] {
            let sent = outgoing("GET / HTTP/1.0\r\n\r\n", |req| {
                req.peer = peer.parse().unwrap();
                req.forwarded = Forwarded::Replace;
            });
            assert_eq!(lines(&sent, "x-forwarded-for"), [plain]);
            assert_eq!(lines(&sent, "forwarded"), [format!("{node};proto=http")]);
            assert_eq!((lines(&sent, "x-forwarded-host"), lines(&sent, "via")), (vec![], vec!["1.0 ringway"]));
        }
    }

    #[test]
    fn conditions_and_credentials_of_ours_replace_the_clients() {
        let theirs = "Range: bytes=5-\r\nIf-Range: \"a\"\r\nIf-Match: *\r\nIf-None-Match: \"a\"\r\nIf-Modified-Since: x\r\n\
                      If-Unmodified-Since: x\r\nAuthorization: theirs\r\nX-Amz-Security-Token: theirs\r\nCookie: c\r\n";
        let sent = outgoing(&get(theirs), |req| {
            req.conditions = Conditions::Ours(&[("Range", b"bytes=0-99"), ("If-Range", b"\"b\"")]);
            req.set = &[("Authorization", b"ours")];
            req.drop = &["x-amz-*", "cookie"];
        });
        assert_eq!(
            sent,
            "GET /a?b HTTP/1.1\r\nHost: origin:9000\r\nRange: bytes=0-99\r\nIf-Range: \"b\"\r\nAuthorization: ours\r\n\
             Via: 1.1 ringway\r\n\r\n"
        );
    }

    #[test]
    fn a_fetch_for_all_says_nothing_of_one() {
        let theirs =
            "X-Forwarded-Host: evil\r\nX-Original-URL: /admin\r\nX-HTTP-Method-Override: DELETE\r\nAccept: a\r\n";
        let sent = outgoing(&get(theirs), |req| req.drop = UNKEYED);
        assert_eq!(sent, "GET /a?b HTTP/1.1\r\nHost: origin:9000\r\nAccept: a\r\nVia: 1.1 ringway\r\n\r\n");
    }

    #[test]
    fn a_loop_can_be_seen() {
        let fields: [(&[u8], &[u8]); 3] =
            [(b"via", b"1.1 ringway, 1.0 fred"), (b"Via", b"1.1 ringway (x)"), (b"x", b"1.1 ringway")];
        assert_eq!(times_seen(fields.into_iter()), 2);
    }

    #[test]
    fn an_answer_passes_without_its_framing_and_with_via() {
        let text = "HTTP/1.0 200 OK\r\nServer: x\r\nContent-Length: 5\r\nConnection: X-Hop\r\nX-Hop: 1\r\nSet-Cookie: a\r\n\
                    set-cookie: b\r\nProxy-Authenticate: x\r\nVia: 1.1 a\r\n\r\n";
        let limits = ResponseLimits { head_bytes: 4096, header_count: 32 };
        let response::Parse::Done { head, .. } = response::parse(text.as_bytes(), false, &limits) else { panic!() };
        let expected: [(&[u8], &[u8]); 5] = [
            (b"Server", b"x"),
            (b"Set-Cookie", b"a"),
            (b"set-cookie", b"b"),
            (b"Via", b"1.1 a"),
            (b"Via", b"1.0 ringway"),
        ];
        assert_eq!(response_headers(&head).collect::<Vec<_>>(), expected);
    }

    proptest! {
        #[test]
        fn an_origin_reads_one_request_with_our_host_and_framing(
            names in prop::collection::vec((prop_oneof![
                Just("connection"), Just("X-Forwarded-For"), Just("forwarded"), Just("Via"), Just("Cookie"), Just("expect-x"), Just("Range"),
            ], "[ -~]{0,30}"), 0..12),
            rule in prop_oneof![Just(Forwarded::Append), Just(Forwarded::Replace), Just(Forwarded::Off)], length in 0u64..9,
        ) {
            let fields: String = names.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let text = format!("PUT /x HTTP/1.1\r\nHost: c\r\nContent-Length: {length}\r\n{fields}\r\n");
            // `outgoing` parses what it made with the strict parser.
            let sent = outgoing(&text, |req| req.forwarded = rule);
            prop_assert_eq!(lines(&sent, "host"), ["origin:9000"]);
            prop_assert_eq!(lines(&sent, "content-length"), [length.to_string()]);
            prop_assert_eq!(lines(&sent, "via").pop(), Some("1.1 ringway"));
            if rule == Forwarded::Replace {
                prop_assert_eq!(lines(&sent, "x-forwarded-for"), ["192.0.2.7"]);
            }
        }
    }
}
