//! A request of a cached route: answered from what is stored, while the rest of it is fetched.
//!
//! By the time bytes are sent they are a file: a hit is sent as a file is, a miss becomes a growing file behind its fill's
//! watermark, and every client reads at its own pace. A head leaves only when the first byte of its body can: until then a
//! failure of the origin is a status and not a cut response.
//!
//! | known of the key | the request |
//! |---|---|
//! | fresh | is answered |
//! | stale, usable | is answered; one task asks the origin again |
//! | stale | waits for one question to the origin: 304 renews it, anything else replaces it |
//! | nothing | waits for one question to the origin, whoever else waits for the same |
//! | not to be kept | is relayed |

use super::connection::{self, Conn};
use super::core::{Core, Front, Local};
use super::fill::{self, Lead, Slot};
use super::proxy::{self, Answered, Framed, Request};
use super::relay;
use crate::cache::object::{Look, Meta, Object, Reading, Trouble, UNKNOWN, Waiter};
use crate::cache::policy::{CacheControl, Pin, Reuse};
use crate::cache::status::{CacheStatus, Forward, Outcome as StatusOutcome, Reason};
use crate::cache::{Cache, Found, Outcome, key};
use crate::config::HostRule;
use crate::http::Status;
use crate::http::head::{HeadLimits, Parse, RequestHead, Version};
use crate::http::headers::write_field;
use crate::http::range::{self, RangeAnswer};
use crate::http::validator::{self, Known, Precondition};
use crate::http::{date, reply};
use crate::telemetry::tally::{AbortReason, CacheResult, RangeKind};
use crate::transfer::drive::{Abort, CORK_FROM, Order};
use std::future::poll_fn;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::task::Poll;

/// Times a request looks again after what it found was replaced under it.
const LOOKS: u32 = 4;

/// How a request came by its object, for Cache-Status and the counters.
#[derive(Clone, Copy, Debug)]
struct Way {
    result: CacheResult,
    status: CacheStatus<'static>,
}

impl Way {
    fn hit(result: CacheResult) -> Self {
        Self { result, status: CacheStatus { outcome: StatusOutcome::Hit, ttl: None, detail: None } }
    }

    fn forward(result: CacheResult, forward: Forward) -> Self {
        Self { result, status: CacheStatus { outcome: StatusOutcome::Forward(forward), ttl: None, detail: None } }
    }

    fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(64);
        self.status.write(&mut text);
        text
    }
}

/// The primary key of a request.
pub fn key_of(core: &Core, request: &Request) -> Arc<[u8]> {
    let route = &core.config.routes[request.route];
    let host = match &proxy::origin_route(route).host {
        HostRule::Client => request.host.as_deref().unwrap_or_default(),
        _ => b"",
    };
    Arc::from(key::primary(&proxy::route_name(route), host, &request.target))
}

/// Answers a GET or HEAD.
pub async fn answer(core: &Rc<Core>, conn: &Rc<Conn>, cache: &Arc<Cache>, request: Request) -> Answered {
    let request = Rc::new(request);
    let key = key_of(core, &request);
    let control = CacheControl::of_request(request.fields());
    for _ in 0..LOOKS {
        let mut alone = false;
        let now = core.unix_seconds();
        let (old, reason) = match cache.find(&key, request.varying(), &control, now) {
            Found::Fresh(object) => {
                let mut way = Way::hit(CacheResult::Hit);
                way.status.ttl = Some(object.meta().times.ttl(now));
                match from(core, conn, cache, &request, object, way).await {
                    Some(answered) => return answered,
                    None => continue,
                }
            }
            Found::Stale(object) => {
                if !object.refreshing.swap(true, AcqRel) {
                    refresh(core, cache, &request, &key, &object);
                }
                let mut way = Way::hit(CacheResult::Stale);
                way.status.ttl = Some(object.meta().times.ttl(now));
                match from(core, conn, cache, &request, object, way).await {
                    Some(answered) => return answered,
                    None => continue,
                }
            }
            // Not kept a moment ago, so that nobody queues behind the question; but the answer may be kept by now.
            Found::Pass(_) if !request.is_head && want(&request).is_none() => {
                alone = true;
                (None, Reason::UriMiss)
            }
            Found::Pass(why) => {
                let mut way = Way::forward(CacheResult::Bypass, Forward::new(Reason::UriMiss));
                way.status.detail = Some(why.text());
                return relayed(core, conn, &request, way).await;
            }
            Found::Old(object) => {
                let fresh = object.meta().times.reuse(&CacheControl::default(), now) == Reuse::Fresh;
                (Some(object), if fresh { Reason::Request } else { Reason::Stale })
            }
            Found::Nothing(varies) => (None, if varies { Reason::VaryMiss } else { Reason::UriMiss }),
        };
        if control.only_if_cached {
            let way = Way::forward(CacheResult::Error, Forward::new(reason));
            let why = "it is not in the cache, and only that was wanted";
            return tell(core, conn, &request, &way, Status(504), why, &[]).await;
        }
        if control.no_store || request.is_head && old.is_none() {
            // What a HEAD brings is no body to keep; what the client wants nobody to keep is not kept.
            return relayed(core, conn, &request, Way::forward(CacheResult::Bypass, Forward::new(reason))).await;
        }
        let slot: Slot = Slot::default();
        let (pending, first) = if alone { (Arc::default(), true) } else { cache.lead(&key) };
        if first {
            let lead = Lead {
                request: Rc::clone(&request),
                key: Arc::clone(&key),
                pending: Arc::clone(&pending),
                old: old.clone(),
                want: want(&request),
                slot: Rc::clone(&slot),
            };
            core.spawn(fill::lead(Rc::clone(core), Arc::clone(cache), lead));
        }
        let waiter = |core: &Core| Waiter { core: core.public.core, task: core.current_task() };
        let outcome = waiting(
            core,
            conn,
            poll_fn(|_| match pending.outcome(waiter(core)) {
                Some(outcome) => Poll::Ready(outcome),
                None => Poll::Pending,
            }),
        )
        .await;
        let mut forward = Forward { collapsed: !first, ..Forward::new(reason) };
        let result = if first { CacheResult::Miss } else { CacheResult::Coalesced };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(abort) => return proxy::left(abort),
        };
        match outcome {
            Outcome::Object(object, asked) => {
                let meta = object.meta();
                if key::secondary(&meta.vary, request.varying()).as_deref() != Some(&meta.secondary) {
                    // Another variant than this client's.
                    continue;
                }
                let same = old.as_ref().is_some_and(|old| old.id == object.id);
                let way = if asked {
                    forward.status = Some(304);
                    Way::forward(CacheResult::Revalidated, forward)
                } else if same {
                    // The origin fails and what is stored may be used.
                    let mut way = Way::forward(CacheResult::Stale, forward);
                    way.status.ttl = Some(meta.times.ttl(core.unix_seconds()));
                    way
                } else {
                    (forward.status, forward.stored) = (Some(meta.status), true);
                    Way::forward(result, forward)
                };
                if let Some(answered) = from(core, conn, cache, &request, object, way).await {
                    return answered;
                }
            }
            Outcome::Pass(why) => {
                let mut way = Way::forward(CacheResult::Bypass, forward);
                way.status.detail = Some(why.text());
                let response = slot.borrow_mut().take();
                return match response {
                    Some(response) if !request.is_head => {
                        count(core, way.result);
                        let text = way.text();
                        let extra: [(&str, &[u8]); 1] = [("Cache-Status", &text)];
                        proxy::pass_on(core, conn, &request, response, request.keep, &extra).await
                    }
                    _ => relayed(core, conn, &request, way).await,
                };
            }
            Outcome::Failed(status, detail) => {
                let way = Way::forward(CacheResult::Error, forward);
                return tell(core, conn, &request, &way, status, &detail, &[]).await;
            }
        }
    }
    // It changes faster than it can be read.
    relayed(core, conn, &request, Way::forward(CacheResult::Bypass, Forward::new(Reason::Miss))).await
}

fn count(core: &Core, result: CacheResult) {
    core.tally().cache_requests[result as usize].add(1);
}

/// An answer of our own, counted and with its Cache-Status.
async fn tell(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    request: &Request,
    way: &Way,
    status: Status,
    detail: &str,
    extra: &[(&str, &[u8])],
) -> Answered {
    count(core, way.result);
    let text = way.text();
    let extra: Vec<(&str, &[u8])> = extra.iter().copied().chain([("Cache-Status", text.as_slice())]).collect();
    proxy::tell(core, conn, request, status, detail, &extra, request.keep).await
}

async fn waiting<T>(core: &Rc<Core>, conn: &Rc<Conn>, work: impl Future<Output = T>) -> Result<T, Abort> {
    core.tally().cache_waiters.add(1);
    let done = conn.hold(core, work).await;
    core.tally().cache_waiters.sub(1);
    done
}

async fn relayed(core: &Rc<Core>, conn: &Rc<Conn>, request: &Request, way: Way) -> Answered {
    count(core, way.result);
    let text = way.text();
    proxy::relayed(core, conn, request, &[("Cache-Status", &text)]).await
}

/// One task asks whether a stored response still stands, nobody waits for it.
fn refresh(core: &Rc<Core>, cache: &Arc<Cache>, request: &Rc<Request>, key: &Arc<[u8]>, old: &Arc<Object>) {
    let (pending, first) = cache.lead(key);
    if !first {
        old.refreshing.store(false, Relaxed);
        return;
    }
    let lead = Lead {
        request: Rc::clone(request),
        key: Arc::clone(key),
        pending,
        old: Some(Arc::clone(old)),
        want: None,
        slot: Slot::default(),
    };
    core.spawn(fill::lead(Rc::clone(core), Arc::clone(cache), lead));
}

/// The part a request wants, where that can be asked for before the length is known: one range from the beginning on. A
/// suffix wants the length first, and gets it with the first slice.
fn want(request: &Request) -> Option<(u64, Option<u64>)> {
    let value = request.fields().find(|(name, _)| name.eq_ignore_ascii_case(b"range"))?.1;
    let (first, last) = range::single(value)?;
    match first {
        Some(first) => Some((first, last)),
        None => Some((0, Some(0))),
    }
}

/// Answers from an object; `None` if it turned out to be gone before anything was sent.
async fn from(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    cache: &Arc<Cache>,
    request: &Rc<Request>,
    object: Arc<Object>,
    way: Way,
) -> Option<Answered> {
    let reading = Reading::new(&object);
    if !matches!(way.result, CacheResult::Miss | CacheResult::Coalesced) {
        // What brought it here does not make it worth keeping; coming back for it does.
        object.touch();
    }
    let file = match core.local(cache, &object).await {
        Ok(file) => file,
        // Evicted a moment ago, or taken away under us.
        Err(errno) if errno.0 == libc::ENOENT => {
            cache.remove(&object, crate::telemetry::tally::Eviction::Broken);
            return None;
        }
        // Out of descriptors or memory: what is stored is good.
        Err(_) => return Some(relayed(core, conn, request, way).await),
    };
    let meta = object.meta();
    let size = object.size();
    let raw = request.raw();
    let limits =
        HeadLimits { head_bytes: usize::MAX, header_count: crate::http::head::HEADERS_MAX, target_bytes: usize::MAX };
    let Parse::Request(head, _) = crate::http::head::parse(raw, &limits) else { return None };
    let etag = meta.headers.get_only("etag");
    let modified = meta.headers.get_only("last-modified").and_then(|value| Some((date::parse(value)?, value)));
    let known = Known { etag, modified };
    let sized = size != UNKNOWN;
    let ordinary = meta.status == 200;
    let mut part = None;
    if ordinary {
        match validator::evaluate_known(&head, &known) {
            Precondition::Proceed => {}
            Precondition::Failed => {
                let why = "the object is not what was asked for";
                return Some(tell(core, conn, request, &way, Status(412), why, &[]).await);
            }
            Precondition::NotModified => {
                count(core, way.result);
                let out = write_head(core, &**request, &meta, Status(304), Framed::None, None, &way);
                let (out, sent) = core.mover.send_head(&conn.flow, out, false).await;
                core.give_head(out);
                return Some(Answered { status: Status(304), keep: request.keep, sent });
            }
        }
        let ranges = &core.tally().routes[connection::row(core, request.route)].ranges;
        if let Some(value) = head.range
            && sized
            && validator::if_range_holds_known(&head, &known, core.unix_seconds())
        {
            match range::answer(value, size) {
                RangeAnswer::Full => {}
                RangeAnswer::Multi => ranges[RangeKind::Multi as usize].add(1),
                RangeAnswer::Part(found) => {
                    ranges[RangeKind::Single as usize].add(1);
                    part = Some(found);
                }
                RangeAnswer::Unsatisfiable => {
                    ranges[RangeKind::Unsatisfiable as usize].add(1);
                    let range = format!("bytes */{size}");
                    let extra: [(&str, &[u8]); 1] = [("Content-Range", range.as_bytes())];
                    return Some(tell(core, conn, request, &way, Status(416), "", &extra).await);
                }
            }
        }
    }
    let Range { start, end } = part.clone().unwrap_or(0..size);
    let mut reader = Reader { core, conn, cache, request, object: &object, file, end };
    if !request.is_head && start < end {
        match reader.ready(start).await {
            Ok(_) => {}
            Err(NotReady::Left(abort)) => return Some(proxy::left(abort)),
            Err(NotReady::Trouble(Trouble::Changed)) => return None,
            Err(NotReady::Trouble(Trouble::Disk)) => return Some(relayed(core, conn, request, way).await),
            Err(NotReady::Trouble(Trouble::Origin(status, detail))) => {
                let way = Way { result: CacheResult::Error, ..way };
                return Some(tell(core, conn, request, &way, status, &detail, &[]).await);
            }
        }
    }
    count(core, way.result);
    let began = core.now();
    // The length may have become known while the first byte was awaited.
    let size = object.size();
    let end = if end == UNKNOWN { size } else { end };
    reader.end = end;
    let framed = match (end, request.version) {
        (UNKNOWN, Version::Http11) => Framed::Chunked,
        (UNKNOWN, Version::Http10) => Framed::Close,
        _ => Framed::Length(end - start),
    };
    let keep = request.keep && framed != Framed::Close;
    let status = Status(if part.is_some() { 206 } else { meta.status });
    let range = part.map(|part| (part, size));
    let out = write_head(core, &**request, &meta, status, framed, range, &way);
    if request.is_head || start == end {
        let (out, sent) = core.mover.send_head(&conn.flow, out, false).await;
        core.give_head(out);
        drop(reading);
        return Some(Answered { status, keep, sent });
    }
    let before: u64 = conn.flow.sent.get();
    core.keep_front(request.route, head.target, &object, &meta, &reader.file);
    let sent = reader.send(out, start, framed, began).await;
    core.tally().cache_served[way.result as usize].add(conn.flow.sent.get() - before);
    drop(reading);
    Some(Answered { status, keep, sent })
}

/// Why there is nothing to read.
enum NotReady {
    /// The fill ended.
    Trouble(Trouble),
    /// The client did.
    Left(Abort),
}

/// A client reading an object.
struct Reader<'a> {
    core: &'a Rc<Core>,
    conn: &'a Rc<Conn>,
    cache: &'a Arc<Cache>,
    request: &'a Rc<Request>,
    object: &'a Arc<Object>,
    file: Rc<Local>,
    /// One past the last byte wanted.
    end: u64,
}

impl Reader<'_> {
    /// Waits until there is something to read at `at`; where to, or nothing if the object ends there.
    async fn ready(&self, at: u64) -> Result<Option<u64>, NotReady> {
        let object = self.object;
        let epoch = object.epoch();
        loop {
            match object.look(at) {
                Look::Ready(until) => return Ok(Some(until.min(self.end))),
                Look::End => return Ok(None),
                Look::Missing(_) if object.is_dead() => return Err(NotReady::Trouble(Trouble::Changed)),
                Look::Missing(slice) => {
                    let stream = object.is_stream();
                    // A stream passes what is before on its way, and that is kept.
                    let slice = if stream { object.first_absent() } else { slice };
                    let most = if stream { 1 } else { fill::RUN_MOST };
                    let count = object.claim_run(slice, most, self.end);
                    if count > 0 {
                        let parts = (Rc::clone(self.core), Arc::clone(self.cache), Rc::clone(self.request));
                        let (object, file) = (Arc::clone(object), Rc::clone(&self.file));
                        self.core.spawn(fill::fetch(parts.0, parts.1, parts.2, object, file, slice, count));
                    }
                }
                Look::Unchecked(slice) => {
                    if object.claim(slice) {
                        let (core, cache) = (Rc::clone(self.core), Arc::clone(self.cache));
                        self.core.spawn(fill::check(core, cache, Arc::clone(object), Rc::clone(&self.file), slice));
                    }
                }
                Look::Wait => {}
            }
            let waits = poll_fn(|_| {
                let waiter = Waiter { core: self.core.public.core, task: self.core.current_task() };
                if object.wait(at, epoch, waiter) { Poll::Pending } else { Poll::Ready(()) }
            });
            waiting(self.core, self.conn, waits).await.map_err(NotReady::Left)?;
            if let Some(trouble) = object.trouble(at, epoch) {
                return Err(NotReady::Trouble(trouble));
            }
        }
    }

    async fn send(&self, out: Vec<u8>, start: u64, framed: Framed, began: crate::clock::Nanos) -> Result<(), Abort> {
        let (core, conn) = (self.core, self.conn);
        if self.object.is_complete()
            && let Framed::Length(_) = framed
        {
            // Nothing to wait for: sent as a file of a directory is.
            let body = connection::Body::stored(self.file.sized(self.object), start, self.end);
            return connection::send_body(core, conn, self.request.route, out, body).await;
        }
        let (out, sent) = core.mover.send_head(&conn.flow, out, true).await;
        core.give_head(out);
        sent?;
        connection::first_byte(core, self.request.route, began);
        let corked = self.end - start >= CORK_FROM;
        if corked {
            crate::sys::socket::cork(conn.flow.socket.as_fd(), true);
        }
        let sent = self.pump(start, framed).await;
        if corked {
            crate::sys::socket::cork(conn.flow.socket.as_fd(), false);
        }
        sent
    }

    async fn pump(&self, start: u64, framed: Framed) -> Result<(), Abort> {
        let (core, conn) = (self.core, self.conn);
        let choice = core.config.routes[self.request.route].engine;
        let mut at = start;
        while at < self.end {
            let look = self.object.look(at);
            let until = match look {
                Look::Ready(until) => Some(until.min(self.end)),
                _ => {
                    if self.end - at >= CORK_FROM {
                        // What is here is not held back while the rest is awaited.
                        crate::sys::socket::cork(conn.flow.socket.as_fd(), false);
                    }
                    match self.ready(at).await {
                        Ok(until) => until,
                        Err(NotReady::Trouble(Trouble::Disk)) if framed != Framed::Chunked => {
                            return self.rest(at).await;
                        }
                        Err(NotReady::Left(abort)) => return Err(abort),
                        Err(_) => return Err(Abort(AbortReason::Upstream)),
                    }
                }
            };
            let Some(until) = until else { break };
            if framed == Framed::Chunked {
                let size = format!("{:x}\r\n", until - at).into_bytes();
                core.mover.send_head(&conn.flow, size, true).await.1?;
            }
            let file = self.file.sized(self.object);
            core.mover.send_part(&conn.flow, Order { file: &file, start: at, end: until, choice }).await?;
            if framed == Framed::Chunked {
                core.mover.send_head(&conn.flow, b"\r\n".to_vec(), true).await.1?;
            }
            at = until;
            if at < self.end {
                core.mover.give_way().await;
            }
        }
        match framed {
            Framed::Chunked => core.mover.send_head(&conn.flow, b"0\r\n\r\n".to_vec(), false).await.1,
            Framed::Length(_) if at < self.end => Err(Abort(AbortReason::Upstream)),
            _ => Ok(()),
        }
    }

    /// What cannot be stored still reaches the client: the rest of the same version, straight from the origin.
    async fn rest(&self, at: u64) -> Result<(), Abort> {
        let (core, conn) = (self.core, self.conn);
        if self.end == UNKNOWN || self.object.pin == Pin::None {
            return Err(Abort(AbortReason::Upstream));
        }
        let more = fill::more(core, self.request, self.object, at, self.end);
        let (mut body, mut skip) = conn.hold(core, more).await?.map_err(|_| Abort(AbortReason::Upstream))?;
        while skip > 0 {
            match conn.hold(core, body.piece(skip)).await? {
                Ok(Some(piece)) => skip -= piece.len() as u64,
                _ => return Err(Abort(AbortReason::Upstream)),
            }
        }
        let choice = core.config.routes[self.request.route].engine;
        if body.left() != Some(self.end - at) {
            return Err(Abort(AbortReason::Upstream));
        }
        relay::body(core, conn, &mut body, false, choice).await
    }
}

/// A hit that needs nobody: status, head, and the range of the body. Counted here.
pub fn hit(
    core: &Core,
    route: usize,
    front: &Front,
    head: &RequestHead<'_>,
    keep: bool,
) -> Option<(Status, Vec<u8>, Range<u64>)> {
    let meta = &front.meta;
    let size = front.file.len();
    let mut way = Way::hit(CacheResult::Hit);
    way.status.ttl = Some(meta.times.ttl(core.unix_seconds()));
    if head.range.is_none() && !has_conditions(head) {
        count(core, CacheResult::Hit);
        let mut out = core.take_head();
        out.extend_from_slice(&front.prefix);
        let mut digits = itoa::Buffer::new();
        write_field(&mut out, b"Age", digits.format(meta.times.age(core.unix_seconds())).as_bytes());
        out.extend_from_slice(b"Cache-Status: ");
        way.status.write(&mut out);
        out.extend_from_slice(b"\r\n");
        proxy::write_end(&mut out, head.version, Framed::Length(size), keep, &[]);
        return Some((Status(200), out, 0..size));
    }
    let etag = meta.headers.get_only("etag");
    let modified = front.modified.zip(meta.headers.get_only("last-modified"));
    let known = Known { etag, modified };
    let hop = Hop { version: head.version, keep };
    match validator::evaluate_known(head, &known) {
        Precondition::Proceed => {}
        Precondition::NotModified => {
            count(core, CacheResult::Hit);
            return Some((Status(304), write_head(core, hop, meta, Status(304), Framed::None, None, &way), 0..0));
        }
        // Rare, and told at length by the other way.
        Precondition::Failed => return None,
    }
    let part = match head.range.filter(|_| validator::if_range_holds_known(head, &known, core.unix_seconds())) {
        None => None,
        Some(value) => match range::answer(value, size) {
            RangeAnswer::Part(part) => Some(part),
            RangeAnswer::Full => None,
            RangeAnswer::Multi | RangeAnswer::Unsatisfiable => return None,
        },
    };
    count(core, CacheResult::Hit);
    let body = part.clone().unwrap_or(0..size);
    if part.is_some() {
        core.tally().routes[connection::row(core, route)].ranges[RangeKind::Single as usize].add(1);
    }
    let status = if part.is_some() { Status(206) } else { Status(200) };
    let framed = Framed::Length(body.end - body.start);
    let out = write_head(core, hop, meta, status, framed, part.map(|part| (part, size)), &way);
    Some((status, out, body))
}

fn has_conditions(head: &RequestHead<'_>) -> bool {
    !head.if_match.is_empty()
        || !head.if_none_match.is_empty()
        || head.if_modified_since.is_some()
        || head.if_unmodified_since.is_some()
}

/// What every whole answer from a stored response begins with.
pub fn prefix(meta: &Meta) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    reply::write_status_line(&mut out, Status(meta.status));
    for (name, value) in meta.headers.iter() {
        write_field(&mut out, name, value);
    }
    if !meta.headers.contains("accept-ranges") {
        write_field(&mut out, b"Accept-Ranges", b"bytes");
    }
    write_field(&mut out, b"Via", b"1.1 ringway");
    out
}

/// What the client's connection asks of a head.
#[derive(Clone, Copy)]
struct Hop {
    version: Version,
    keep: bool,
}

impl From<&Request> for Hop {
    fn from(request: &Request) -> Self {
        Self { version: request.version, keep: request.keep }
    }
}

fn write_head(
    core: &Core,
    hop: impl Into<Hop>,
    meta: &Meta,
    status: Status,
    framed: Framed,
    part: Option<(Range<u64>, u64)>,
    way: &Way,
) -> Vec<u8> {
    let hop = hop.into();
    let mut out = core.take_head();
    reply::write_status_line(&mut out, status);
    let mut dated = false;
    let mut ranged = false;
    for (name, value) in meta.headers.iter() {
        dated |= name.eq_ignore_ascii_case(b"date");
        ranged |= name.eq_ignore_ascii_case(b"accept-ranges");
        write_field(&mut out, name, value);
    }
    if !dated {
        write_field(&mut out, b"Date", &core.date());
    }
    if !ranged && meta.status == 200 && framed != Framed::Chunked {
        write_field(&mut out, b"Accept-Ranges", b"bytes");
    }
    let mut digits = itoa::Buffer::new();
    write_field(&mut out, b"Age", digits.format(meta.times.age(core.unix_seconds())).as_bytes());
    if let Some((part, size)) = part {
        let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        write_field(&mut out, b"Content-Range", text.as_bytes());
    }
    write_field(&mut out, b"Via", b"1.1 ringway");
    let text = way.text();
    proxy::write_end(&mut out, hop.version, framed, hop.keep && framed != Framed::Close, &[("Cache-Status", &text)]);
    out
}
