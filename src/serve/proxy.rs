//! One request of a route with origins: relayed, or answered from the cache.
//!
//! | request | goes |
//! |---|---|
//! | a method the route does not pass | 405 |
//! | GET, HEAD on a cached route | `cached`: a hit is a file, a miss is a fill that every client reads from |
//! | anything else | relayed; its body is streamed by a task of its own, so that both directions flow at once |
//!
//! Invariant: a response that did not come whole from the origin never ends as if it had.

use super::cached;
use super::connection::{self, Conn};
use super::core::Core;
use super::relay;
use crate::cache::policy::Overrides;
use crate::config::{EngineChoice, ForwardedRule, OriginRoute, Route, Source};
use crate::http::chunked::ChunkedBody;
use crate::http::framing::Framing;
use crate::http::head::{Fields, Method, RequestHead, Version};
use crate::http::headers::{end_to_end, write_field};
use crate::http::response::{BodyLength, ResponseHead};
use crate::http::target;
use crate::http::{Status, reply};
use crate::ring::op::{Op, SharedFd};
use crate::sys::socket;
use crate::telemetry::tally::MethodLabel;
use crate::transfer::drive::Abort;
use crate::upstream::exchange::{Ask, Failure, Response};
use crate::upstream::hop::{self, Conditions, Forwarded, HostRule, OutgoingRequest};
use crate::upstream::origin::Origin;
use crate::upstream::sigv4;
use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

/// A request for an origin, on its own: the buffers it came in are free again.
#[derive(Debug)]
pub struct Request {
    raw: Vec<u8>,
    verb: Vec<u8>,
    /// Where in it its fields begin.
    lines: usize,
    /// What the client sent as Host.
    pub host: Option<Vec<u8>>,
    /// The client.
    pub peer: IpAddr,
    /// For the counters.
    pub method: MethodLabel,
    /// HEAD: no body goes back.
    pub is_head: bool,
    /// The route passes this method.
    pub allowed: bool,
    /// Sending it twice changes nothing (RFC 9110 section 9.2.2).
    pub safe: bool,
    /// The route.
    pub route: usize,
    /// What goes behind the origin's own prefix, query included; begins with `/`.
    pub target: Vec<u8>,
    /// Version of the client.
    pub version: Version,
    /// The connection may last.
    pub keep: bool,
    /// How its body ends.
    pub framing: Framing,
    /// The client waits for a 100.
    pub expects: bool,
}

impl Request {
    /// From a parsed head; `path` is its decoded path, of which `cut` bytes are the route's.
    pub fn new(
        head: &RequestHead<'_>,
        raw: &[u8],
        path: &[u8],
        (route, cut): (usize, usize),
        keep: bool,
        origin: &OriginRoute,
    ) -> Self {
        let method = head.method_name;
        let label = match head.method {
            Method::Get => MethodLabel::Get,
            Method::Head => MethodLabel::Head,
            Method::Known | Method::Unknown => MethodLabel::Other,
        };
        let bodiless = matches!(head.framing, Framing::None | Framing::Length(0));
        Self {
            raw: raw.to_vec(),
            verb: method.to_vec(),
            // The fields are the rest of the head.
            lines: raw.len() - head.field_lines.len(),
            host: head.host.map(<[u8]>::to_vec),
            peer: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            method: label,
            is_head: head.method == Method::Head,
            allowed: origin.methods.iter().any(|allowed| allowed.as_bytes() == method),
            safe: bodiless && matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"PUT" | b"DELETE"),
            route,
            target: target::below(head.target, path, cut),
            version: head.version,
            keep,
            framing: head.framing,
            expects: head.expect_continue,
        }
    }

    /// The method as it was sent.
    pub fn verb(&self) -> &[u8] {
        &self.verb
    }

    /// Its head as it was received.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Every field of its head.
    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.raw[self.lines..])
    }

    /// The fields that can choose a variant: what Connection hides from the origin cannot.
    pub fn varying(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        end_to_end(self.fields())
    }

    fn has_body(&self) -> bool {
        self.framing.has_body()
    }
}

/// The route's own options.
pub fn origin_route(route: &Route) -> &OriginRoute {
    match &route.source {
        Source::Origin(origin) => origin,
        Source::Directory(_) => unreachable!("only routes with origins make a proxy request"),
    }
}

/// A route's own times.
pub fn overrides(core: &Core, route: usize) -> Overrides {
    let route = origin_route(&core.config.routes[route]);
    Overrides {
        ttl: route.ttl.map(|ttl| ttl.as_secs()),
        ttl_override: route.ttl_override.map(|ttl| ttl.as_secs()),
        negative_ttl: route.negative_ttl.as_secs(),
        stale_while_revalidate: route.stale_while_revalidate.as_secs(),
        stale_if_error: route.stale_if_error.as_secs(),
    }
}

/// A route's name in the keys of the cache: where it is reached, and the first of its origins.
pub fn route_name(route: &Route) -> String {
    let host = route.host.as_deref().unwrap_or("*");
    let origin = origin_route(route).origins.first().map(ToString::to_string).unwrap_or_default();
    format!("{host}{} {origin}", route.prefix)
}

/// What was answered.
pub struct Answered {
    /// The status that was sent.
    pub status: Status,
    /// The connection may go on.
    pub keep: bool,
    /// Whether all of it was.
    pub sent: Result<(), Abort>,
}

/// Answers one request; true if the connection goes on.
pub async fn answer(core: &Rc<Core>, conn: &Rc<Conn>, mut request: Request) -> bool {
    if let Some(peer) = socket::peer(conn.flow.socket.as_fd()) {
        request.peer = peer.ip();
    }
    let began = connection::begin(core, conn);
    let (route, method) = (request.route, request.method);
    let answered = if !request.allowed {
        let mut allow = Vec::new();
        for name in &origin_route(&core.config.routes[route]).methods {
            allow.extend_from_slice(if allow.is_empty() { b"" } else { b", " });
            allow.extend_from_slice(name.as_bytes());
        }
        let keep = request.keep && !request.has_body();
        tell(core, conn, &request, Status(405), "this route does not pass the method on", &[("Allow", &allow)], keep)
            .await
    } else if hop::times_seen(request.fields()) >= HOPS_MOST {
        let keep = request.keep && !request.has_body();
        tell(core, conn, &request, Status(508), "this request goes round in circles (see its Via)", &[], keep).await
    } else {
        match &core.cache {
            Some(cache) if origin_route(&core.config.routes[route]).cache => {
                let cache = Arc::clone(cache);
                if matches!(method, MethodLabel::Get | MethodLabel::Head) && !request.has_body() {
                    cached::answer(core, conn, &cache, request).await
                } else {
                    let key = cached::key_of(core, &request);
                    let unsafe_method = !matches!(request.verb(), b"GET" | b"HEAD" | b"OPTIONS");
                    let answered = relayed(core, conn, &request, &[]).await;
                    // RFC 9111 section 4.4: what it may have changed is not used again.
                    if unsafe_method && matches!(answered.status.0, 200..=399) {
                        cache.purge(&key);
                    }
                    answered
                }
            }
            _ => relayed(core, conn, &request, &[]).await,
        }
    };
    connection::finish(core, conn, route, method, answered.status, answered.keep, began, answered.sent)
}

/// Sends an answer of our own.
pub async fn tell(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    request: &Request,
    status: Status,
    detail: &str,
    extra: &[(&str, &[u8])],
    keep: bool,
) -> Answered {
    let mut head = core.take_head();
    reply::write_error(&mut head, status, detail, extra, keep, request.version, &core.date(), !request.is_head);
    let (head, sent) = core.mover.send_head(&conn.flow, head, false).await;
    core.give_head(head);
    Answered { status, keep, sent }
}

/// Asks an origin and passes its answer on as it comes; `extra` stands in its head.
pub async fn relayed(core: &Rc<Core>, conn: &Rc<Conn>, request: &Request, extra: &[(&str, &[u8])]) -> Answered {
    let write = |origin: &Origin, out: &mut Vec<u8>| write_request(core, request, origin, None, out);
    let ask =
        Ask { route: request.route, path: &request.target, head: request.is_head, safe: request.safe, write: &write };
    if !request.has_body() {
        return match conn.hold(core, core.upstream.ask(&ask)).await {
            Ok(Ok(response)) => pass_on(core, conn, request, response, request.keep, extra).await,
            Ok(Err(failure)) => fail(core, conn, request, &failure, request.keep, extra).await,
            Err(abort) => left(abort),
        };
    }
    let (_, peer) = match conn.hold(core, core.upstream.open(&ask, &[], false)).await {
        Ok(Ok(opened)) => opened,
        // The body was not read, so the place of the next request is not known.
        Ok(Err(failure)) => return fail(core, conn, request, &failure, false, extra).await,
        Err(abort) => return left(abort),
    };
    if request.expects {
        let (_, sent) = core.mover.send_head(&conn.flow, b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), false).await;
        if let Err(abort) = sent {
            return left(abort);
        }
    }
    let upload = Rc::new(Upload::default());
    let socket = Rc::clone(&peer.socket);
    core.spawn(send_body(Rc::clone(core), Rc::clone(conn), socket, request.framing, Rc::clone(&upload)));
    let answered = match conn.hold(core, core.upstream.respond_once(peer, request.is_head)).await {
        Err(abort) => left(abort),
        Ok(Ok(response)) => {
            // An answer that comes before the body is through ends the connection behind it.
            let keep = request.keep && upload.done.get();
            pass_on(core, conn, request, response, keep, extra).await
        }
        Ok(Err(_)) if upload.refused.get() => {
            tell(core, conn, request, Status(400), "the request body is malformed or did not come", extra, false).await
        }
        Ok(Err(failure)) => fail(core, conn, request, &failure, false, extra).await,
    };
    upload.stop.set(true);
    conn.wake_reader(core);
    answered
}

/// The client left before there was an answer; counted as nginx's users know it.
pub fn left(abort: Abort) -> Answered {
    Answered { status: Status(499), keep: false, sent: Err(abort) }
}

/// Says why there is no answer from the origin.
pub async fn fail(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    request: &Request,
    failure: &Failure,
    keep: bool,
    extra: &[(&str, &[u8])],
) -> Answered {
    tracing::debug!(status = failure.status.0, "{}", failure.detail);
    tell(core, conn, request, failure.status, &failure.detail, extra, keep).await
}

/// Passes a response on.
pub async fn pass_on(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    request: &Request,
    response: Response,
    keep: bool,
    extra: &[(&str, &[u8])],
) -> Answered {
    let Response { head, body: mut incoming, .. } = response;
    let status = Status(head.status);
    let framed = framing_for(head.body, request);
    let keep = keep && framed != Framed::Close;
    let mut out = core.take_head();
    write_head(core, &mut out, request, &head, framed, keep, extra);
    let choice = core.config.routes[request.route].engine;
    let sent = send_response(core, conn, out, &mut incoming, framed, choice).await;
    Answered { status, keep, sent }
}

async fn send_response(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    mut out: Vec<u8>,
    incoming: &mut crate::upstream::exchange::Incoming,
    framed: Framed,
    choice: EngineChoice,
) -> Result<(), Abort> {
    // A short body that came with its head leaves with it, in one send.
    if let Framed::Length(length) = framed
        && length > 0
        && length as usize <= SMALL
        && incoming.at_hand() as u64 >= length
        && let Ok(Some(piece)) = incoming.piece(length).await
        && piece.len() as u64 == length
    {
        let head = out.len();
        out.extend_from_slice(incoming.bytes(&piece));
        // Gives the connection to the origin home before the client has taken a byte.
        let over = incoming.piece(u64::MAX).await;
        debug_assert!(matches!(over, Ok(None)), "a body of a length ends with it");
        return connection::send_whole(core, conn, out, head).await;
    }
    let more = !incoming.is_done();
    let (out, sent) = core.mover.send_head(&conn.flow, out, more).await;
    core.give_head(out);
    sent?;
    relay::body(core, conn, incoming, framed == Framed::Chunked, choice).await
}

/// A request that came through here so often goes round in circles.
const HOPS_MOST: usize = 8;

/// Bodies up to this are copied behind their head.
const SMALL: usize = 16 << 10;

/// How a body goes to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framed {
    /// None.
    None,
    /// So many bytes.
    Length(u64),
    /// As chunks.
    Chunked,
    /// Until the end of the connection, for HTTP/1.0.
    Close,
}

fn framing_for(body: BodyLength, request: &Request) -> Framed {
    match body {
        BodyLength::None => Framed::None,
        BodyLength::Exact(length) => Framed::Length(length),
        BodyLength::Chunked | BodyLength::UntilClose if request.version == Version::Http11 => Framed::Chunked,
        BodyLength::Chunked | BodyLength::UntilClose => Framed::Close,
    }
}

/// The head of an origin's response as the client gets it.
pub fn write_head(
    core: &Core,
    out: &mut Vec<u8>,
    request: &Request,
    head: &ResponseHead,
    framed: Framed,
    keep: bool,
    extra: &[(&str, &[u8])],
) {
    reply::write_status_line(out, Status(head.status));
    let mut dated = false;
    for (name, value) in hop::response_headers(head) {
        dated |= name.eq_ignore_ascii_case(b"date");
        write_field(out, name, value);
    }
    // What a bodiless answer says of the body it would have had passes.
    if framed == Framed::None
        && let Some(length) = head.content_length()
    {
        write_field(out, b"Content-Length", itoa::Buffer::new().format(length).as_bytes());
    }
    if !dated {
        write_field(out, b"Date", &core.date());
    }
    write_end(out, request.version, framed, keep, extra);
}

/// The fields that are ours, and the empty line.
pub fn write_end(out: &mut Vec<u8>, version: Version, framed: Framed, keep: bool, extra: &[(&str, &[u8])]) {
    match framed {
        Framed::None | Framed::Close => {}
        Framed::Length(length) => {
            let mut digits = itoa::Buffer::new();
            write_field(out, b"Content-Length", digits.format(length).as_bytes());
        }
        Framed::Chunked => write_field(out, b"Transfer-Encoding", b"chunked"),
    }
    for (name, value) in extra {
        write_field(out, name.as_bytes(), value);
    }
    match (keep, version) {
        (false, _) => write_field(out, b"Connection", b"close"),
        (true, Version::Http10) => write_field(out, b"Connection", b"keep-alive"),
        (true, Version::Http11) => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// A request body on its way to an origin.
#[derive(Debug, Default)]
struct Upload {
    /// All of it was sent.
    done: Cell<bool>,
    /// It was malformed, or the client left or stalled within it.
    refused: Cell<bool>,
    /// The answer is out: nothing more is wanted.
    stop: Cell<bool>,
}

/// Streams a request body: as it is where its length is known, chunk by chunk where not. Holds one piece at a time; the
/// client's receive pauses when its inbox is full, and that is the backpressure.
async fn send_body(core: Rc<Core>, conn: Rc<Conn>, socket: SharedFd, framing: Framing, upload: Rc<Upload>) {
    let mut left = match framing {
        Framing::Length(length) => length,
        _ => 0,
    };
    let mut chunks = ChunkedBody::new();
    let patience = core.timers.patience(core.config.limits.send_timeout);
    let failed = loop {
        patience.renew(core.config.limits.send_timeout);
        if !matches!(patience.within(conn.input(&core)).await, Ok(true)) {
            break !upload.stop.get();
        }
        if upload.stop.get() {
            break false;
        }
        let Some(bytes) = conn.take_input() else { continue };
        let mut out = Vec::with_capacity(bytes.len() + 32);
        let (used, done) = match framing {
            Framing::Length(_) => {
                let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                out.extend_from_slice(&bytes[..n]);
                left -= n as u64;
                (n, left == 0)
            }
            _ => match rechunk(&mut chunks, &bytes, &mut out) {
                Some(fed) => fed,
                None => break true,
            },
        };
        if used < bytes.len() {
            conn.return_input(&bytes[used..]);
        }
        let want = out.len();
        patience.renew(core.config.limits.origin_progress_timeout);
        let send = core.ring.submit(Op::Send { socket: Rc::clone(&socket), bytes: out, more: false });
        match patience.within(send).await.map(|done| done.result) {
            Ok(Ok(n)) if n as usize == want => {}
            // The origin does not want it; what it answered is read by the other task.
            _ => return,
        }
        if done {
            upload.done.set(true);
            return;
        }
    };
    if failed {
        upload.refused.set(true);
        // The other task reads the end of the stream and tells the client.
        socket::shutdown(socket.as_fd());
    }
}

/// Chunks in, chunks out; how much was used and whether the body is over. `None`: malformed.
fn rechunk(chunks: &mut ChunkedBody, bytes: &[u8], out: &mut Vec<u8>) -> Option<(usize, bool)> {
    let mut used = 0;
    while used < bytes.len() {
        let fed = chunks.feed(&bytes[used..]).ok()?;
        if let Some(data) = fed.data {
            out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            out.extend_from_slice(&bytes[used + data.start..used + data.end]);
            out.extend_from_slice(b"\r\n");
        }
        used += fed.consumed;
        if fed.done {
            out.extend_from_slice(b"0\r\n\r\n");
            return Some((used, true));
        }
        if fed.consumed == 0 {
            break;
        }
    }
    Some((used, false))
}

/// What the cache asks for on its own account.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    /// HEAD instead of GET.
    pub head: bool,
    /// Fields that replace the client's range and conditions.
    pub fields: &'a [(&'a str, &'a [u8])],
}

/// Writes the head of a request for an origin, signed where the route says so.
///
/// # Errors
/// No credentials could be had.
pub fn write_request(
    core: &Core,
    request: &Request,
    origin: &Origin,
    own: Option<Own<'_>>,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let route = origin_route(&core.config.routes[request.route]);
    let mut target = origin.url.prefix.clone().into_bytes();
    target.extend_from_slice(&request.target);
    let authority = origin.url.authority();
    let method = match own {
        Some(Own { head: true, .. }) => b"HEAD".as_slice(),
        Some(_) => b"GET",
        None => request.verb(),
    };
    let mut host_rule = match &route.host {
        crate::config::HostRule::Origin => HostRule::Origin,
        crate::config::HostRule::Client => HostRule::Client,
        crate::config::HostRule::Fixed(name) => HostRule::Fixed(name.clone()),
    };
    let signed = match &core.signers[request.route] {
        Some(signer) => {
            let at = route.origins.iter().position(|url| *url == origin.url).unwrap_or(0);
            if let Some(Some(bucket)) = signer.buckets.get(at) {
                target = bucket.target(&target);
                host_rule = HostRule::Fixed(bucket.host().to_owned());
            }
            let host = match &host_rule {
                HostRule::Fixed(name) => name.as_bytes(),
                HostRule::Client => request.host.as_deref().unwrap_or(authority.as_bytes()),
                HostRule::Origin => authority.as_bytes(),
            };
            let method = if method == b"HEAD" { "HEAD" } else { "GET" };
            let now = core.unix_seconds();
            let asked = sigv4::Request { method, host, target: &target, fields: &[], region: &signer.region, now };
            let signed = sigv4::sign(&signer.credentials, &asked);
            target.clone_from(&signed.target);
            Some(signed)
        }
        None => None,
    };
    let set = signed.as_ref().map(sigv4::Signed::fields).unwrap_or_default();
    // What no key has must not choose what others then get; a signature is ours alone.
    let mut drop: Vec<&str> = Vec::new();
    if own.is_some() {
        drop.extend_from_slice(hop::UNKEYED);
    }
    if signed.is_some() {
        drop.extend_from_slice(&["authorization", "x-amz-*"]);
    }
    hop::request_head(
        out,
        &OutgoingRequest {
            method,
            target: &target,
            fields: request.fields(),
            client_version: request.version,
            client_host: request.host.as_deref(),
            peer: request.peer,
            proto: "http",
            origin_host: authority.as_bytes(),
            host: &host_rule,
            forwarded: match route.forwarded {
                // What is fetched for all tells nothing of one.
                _ if own.is_some() => Forwarded::Off,
                ForwardedRule::Append => Forwarded::Append,
                ForwardedRule::Replace => Forwarded::Replace,
                ForwardedRule::Off => Forwarded::Off,
            },
            conditions: own.map_or(Conditions::Client, |own| Conditions::Ours(own.fields)),
            drop: &drop,
            set: &set,
            body: if own.is_some() { Framing::None } else { request.framing },
            keep_alive: true,
        },
    );
    Ok(())
}
