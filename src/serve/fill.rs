//! From an origin into the cache: the one fetch of a missing slice, for all who wait for it.
//!
//! A fill is a task of its own: the client that made it start may leave. It claims a slice, asks the origin for it and what
//! follows, and goes on from slice to slice until what was asked for is there or the next slice is somebody else's. Each
//! piece is written, then the watermark moves, then the readers are woken: what a reader sees below the watermark is in the
//! file.
//!
//! Every request for a part carries the object's validator (If-Range), and the answer must name the part that was asked
//! for, the length that is known and the same validator. Anything else is another version, and ends this generation.
//!
//! Invariant: a claimed slice is completed or released on every way out, and who waits is woken.

use super::core::{Core, Local};
use super::proxy::{self, Own, Request};
use crate::cache::journal::Record;
use crate::cache::object::{Meta, Object, Trouble, UNKNOWN};
use crate::cache::policy::{self, Asked, CacheControl, NoStore, Pin};
use crate::cache::{Cache, Outcome, Pending, key};
use crate::config::OnLeave;
use crate::http::Status;
use crate::http::headers::{Headers, end_to_end};
use crate::http::range::content_range;
use crate::http::response::{BodyLength, ResponseHead};
use crate::ring::completion::Errno;
use crate::ring::op::Op;
use crate::store::file::OpenFile;
use crate::telemetry::tally::{Eviction, FillResult, StoreFailure};
use crate::upstream::exchange::{Ask, Cut, Failure, Incoming, Response};
use crate::upstream::origin::Origin;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Where the first request's task finds a response that is not kept.
pub type Slot = Rc<RefCell<Option<Response>>>;

/// One request's way to the origin on behalf of all.
#[derive(Debug)]
pub struct Lead {
    /// The request that came first.
    pub request: Rc<Request>,
    /// Its key.
    pub key: Arc<[u8]>,
    /// Who waits.
    pub pending: Arc<Pending>,
    /// The stored response that is to be asked for again.
    pub old: Option<Arc<Object>>,
    /// The part that is wanted, if not all: first byte, and the last where the client named it.
    pub want: Option<(u64, Option<u64>)>,
    /// For a response that is not kept.
    pub slot: Slot,
}

/// Asks an origin on the cache's own account.
async fn ask(core: &Rc<Core>, request: &Request, head: bool, fields: &[(&str, &[u8])]) -> Result<Response, Failure> {
    let own = Own { head, fields };
    let write = |origin: &Origin, out: &mut Vec<u8>| proxy::write_request(core, request, origin, Some(own), out);
    let ask = Ask { route: request.route, path: &request.target, head, safe: true, write: &write };
    core.upstream.ask(&ask).await
}

/// Asks for what nobody knows yet, or for whether it is still as it was; everybody who waits is told.
pub async fn lead(core: Rc<Core>, cache: Arc<Cache>, lead: Lead) {
    let (outcome, rest) = learn(&core, &cache, &lead).await;
    if let Some(old) = &lead.old {
        old.refreshing.store(false, Relaxed);
    }
    core.wake_waiters(cache.settle(&lead.key, &lead.pending, outcome, core.unix_seconds()));
    if let Some(rest) = rest {
        fill(&core, &cache, &lead.request, rest).await;
    }
}

/// A slice claimed, and a body that brings it.
#[derive(Debug)]
struct Rest {
    object: Arc<Object>,
    file: Rc<Local>,
    body: Option<Incoming>,
    slice: u32,
    /// One past the last slice claimed.
    until: u32,
    /// Where what was asked for ends.
    end: u64,
}

/// The sizes a body can be stored with: of a part its place, of a whole its length.
struct Extent {
    start: u64,
    size: u64,
    partial: bool,
}

fn extent(head: &ResponseHead, asked: Option<u64>) -> Result<Extent, Failure> {
    let wrong = |why: &'static str| Failure::new(crate::telemetry::tally::UpstreamError::Protocol, 502, why);
    if head.status != 206 {
        let size = match head.body {
            BodyLength::None => 0,
            BodyLength::Exact(size) => size,
            BodyLength::Chunked | BodyLength::UntilClose => UNKNOWN,
        };
        return Ok(Extent { start: 0, size, partial: false });
    }
    let told = head.headers.get_only("content-range").and_then(content_range);
    let (Some((start, end, Some(size))), Some(asked)) = (told, asked) else {
        return Err(wrong("the origin sent a part without saying of what"));
    };
    if start != asked || matches!(head.body, BodyLength::Exact(length) if length != end - start) {
        return Err(wrong("the origin sent another part than it was asked for"));
    }
    Ok(Extent { start, size, partial: true })
}

async fn learn(core: &Rc<Core>, cache: &Arc<Cache>, lead: &Lead) -> (Outcome, Option<Rest>) {
    let request = &lead.request;
    let old = lead.old.as_ref();
    let slice = cache.config.slice;
    let asked_at = core.unix_seconds();
    // A part is asked for where nothing is known; a conditional request asks for the whole.
    let part = lead.want.filter(|_| old.is_none()).map(|(first, last)| {
        let start = first / slice * slice;
        let end = last.map(|last| (last / slice + 1).saturating_mul(slice));
        (start, end)
    });
    let range = part.map(|(start, end)| match end {
        Some(end) => format!("bytes={start}-{}", end - 1),
        None => format!("bytes={start}-"),
    });
    let old_meta = old.map(|old| old.meta());
    let mut fields: Vec<(&str, &[u8])> = Vec::new();
    if let Some(range) = &range {
        fields.push(("Range", range.as_bytes()));
    }
    if let Some(meta) = &old_meta {
        fields.extend(meta.headers.get_only("etag").map(|tag| ("If-None-Match", tag)));
        fields.extend(meta.headers.get_only("last-modified").map(|date| ("If-Modified-Since", date)));
    }
    let answer = ask(core, request, false, &fields).await;
    let now = core.unix_seconds();
    let usable = old.filter(|old| old.meta().times.usable_on_error(now));
    let response = match answer {
        Ok(response) => response,
        Err(failure) => {
            return match usable {
                Some(old) => (Outcome::Object(Arc::clone(old), false), None),
                None => (Outcome::Failed(failure.status, failure.detail), None),
            };
        }
    };
    let control = CacheControl::of_request(request.fields());
    let authorized = request.fields().any(|(name, _)| name.eq_ignore_ascii_case(b"authorization"));
    let asked = Asked { control, authorized, at: asked_at, answered: now };
    let overrides = proxy::overrides(core, request.route);
    if let (304, Some(old), Some(meta)) = (response.head.status, old, &old_meta) {
        if !policy::is_about(&meta.headers, &response.head) {
            cache.remove(old, Eviction::Changed);
            return (
                Outcome::Failed(Status(502), "the origin confirmed another version than it was asked for".into()),
                None,
            );
        }
        return (freshen(cache, old, &response.head, &asked, &overrides), None);
    }
    if matches!(response.head.status, 500 | 502 | 503 | 504)
        && let Some(old) = usable
    {
        return (Outcome::Object(Arc::clone(old), false), None);
    }
    let pass = |why, response: Response| {
        if let Some(old) = old {
            // What it was replaced by is not kept; it is of no use to anybody.
            cache.remove(old, Eviction::Changed);
        }
        if why == NoStore::TooLarge {
            core.tally().cache_fills[FillResult::TooLarge as usize].add(1);
        }
        // A part that was rounded is not what the client asked for.
        if part.is_none() {
            *lead.slot.borrow_mut() = Some(response);
        }
        (Outcome::Pass(why), None)
    };
    let extent = match extent(&response.head, part.map(|(start, _)| start)) {
        Ok(extent) => extent,
        Err(failure) => return (Outcome::Failed(failure.status, failure.detail), None),
    };
    let head = &response.head;
    let times = match policy::storable(&asked, head, &overrides) {
        Ok(times) => times,
        Err(why) => return pass(why, response),
    };
    if extent.partial && Pin::of(&head.headers) == Pin::None {
        return pass(NoStore::NoValidator, response);
    }
    let Some(vary) = key::vary(&head.headers) else { return pass(NoStore::Vary, response) };
    let Some(secondary) = key::secondary(&vary, request.varying()) else { return pass(NoStore::Vary, response) };
    if let Err(why) = cache.admits(extent.size) {
        core.hit(match why {
            NoStore::TooLarge => crate::telemetry::tally::Limit::CacheObjectBytes,
            _ => crate::telemetry::tally::Limit::CacheFreeBytes,
        });
        return pass(why, response);
    }
    let meta = Meta {
        status: if extent.partial { 200 } else { head.status },
        headers: kept(&head.headers),
        times,
        vary,
        secondary,
        ranges: extent.partial
            || part.is_none()
                && extent.size != UNKNOWN
                && head.headers.get("accept-ranges").is_none_or(|value| !value.eq_ignore_ascii_case(b"none")),
    };
    let id = cache.keeper.next_id();
    let file = match create(core, cache, id).await {
        Ok(file) => file,
        Err(errno) => {
            cache.counts.not_stored(failure_of(errno));
            return pass(NoStore::NoRoom, response);
        }
    };
    let end = part.filter(|_| extent.partial).and_then(|(_, end)| end).unwrap_or(UNKNOWN).min(extent.size);
    let first = (extent.start / slice) as u32;
    // Of a part what was asked for, as far as a run goes; of a whole the beginning, so that others may ask for the middle.
    let count = match (extent.size, extent.partial) {
        (0, _) => 0,
        (_, true) => (end - extent.start).div_ceil(slice).clamp(1, u64::from(RUN_MOST)) as u32,
        (_, false) => 1,
    };
    if cache.is_full_of_objects() {
        core.hit(crate::telemetry::tally::Limit::CacheObjects);
    }
    let object = cache.add(id, &lead.key, extent.size, meta, (first, count));
    let file = core.keep_local(&object, &file);
    if let Some(old) = old {
        cache.remove(old, Eviction::Changed);
    }
    let outcome = Outcome::Object(Arc::clone(&object), false);
    let body = Some(response.body);
    let rest = (count > 0).then_some(Rest { object, file, body, slice: first, until: first + count, end });
    (outcome, rest)
}

/// A 304: the stored bytes stand, their head is renewed.
fn freshen(
    cache: &Cache,
    old: &Arc<Object>,
    head: &ResponseHead,
    asked: &Asked,
    overrides: &policy::Overrides,
) -> Outcome {
    let mut meta = (*old.meta()).clone();
    policy::freshen(&mut meta.headers, head);
    let whole = ResponseHead {
        version: head.version,
        status: meta.status,
        headers: meta.headers.clone(),
        body: BodyLength::None,
    };
    match policy::storable(asked, &whole, overrides) {
        Ok(times) => {
            meta.times = times;
            let size = Some(old.size()).filter(|size| *size != UNKNOWN);
            cache.keeper.record(Record::Meta { id: old.id, size, meta: meta.encode() });
            old.set_meta(meta);
        }
        // Not to be kept any longer; it may answer those who asked for it.
        Err(_) => cache.remove(old, Eviction::Expired),
    }
    Outcome::Object(Arc::clone(old), true)
}

/// What of an origin's fields is kept: not what frames one message or one part.
fn kept(headers: &Headers) -> Headers {
    const NOT: [&[u8]; 4] = [b"content-length", b"content-range", b"age", b"via"];
    let mut kept = Headers::with_capacity(headers.len(), headers.bytes());
    for (name, value) in end_to_end(headers.iter()) {
        if !NOT.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            kept.push(name, value);
        }
    }
    kept
}

fn failure_of(errno: Errno) -> StoreFailure {
    match errno.0 {
        libc::ENOSPC | libc::EDQUOT => StoreFailure::NoSpace,
        libc::EIO => StoreFailure::Io,
        _ => StoreFailure::Other,
    }
}

async fn create(core: &Rc<Core>, cache: &Cache, id: u64) -> Result<OpenFile, Errno> {
    let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC) as u64;
    core.open_stored(cache.keeper.path(id), flags).await.map(|fd| OpenFile::stored(fd, UNKNOWN))
}

/// Slices one request asks for beyond what a stream brings: few enough that who waits for the last of them does not wait
/// long, enough that a round trip between two requests is nothing beside them.
pub const RUN_MOST: u32 = 4;

/// Fetches `count` slices from `slice` on, which the caller has claimed; of an origin without ranges, all that follows.
pub async fn fetch(
    core: Rc<Core>,
    cache: Arc<Cache>,
    request: Rc<Request>,
    object: Arc<Object>,
    file: Rc<Local>,
    slice: u32,
    count: u32,
) {
    let size = object.size();
    let until = slice + count;
    let end = if object.is_stream() { size } else { (u64::from(until) * object.slice).min(size) };
    fill(&core, &cache, &request, Rest { object, file, body: None, slice, until, end }).await;
}

/// How a body ended.
enum Ended {
    /// What was asked for is there, or the next slice is somebody else's.
    Done,
    /// Nobody waits any more.
    Left,
    /// The origin's connection.
    Cut(Cut),
    /// The disk.
    Disk(StoreFailure),
}

/// Where a fill stands.
struct Progress {
    slice: u32,
    /// One past the last slice claimed.
    until: u32,
    at: u64,
    crc: u32,
    booked: u64,
}

/// Gives up what is claimed and not complete; who waits is woken.
fn give_up(core: &Rc<Core>, object: &Object, progress: &Progress, trouble: Option<Trouble>) {
    for slice in progress.slice..progress.until {
        core.wake_waiters(object.release(slice, trouble.clone()));
    }
}

async fn fill(core: &Rc<Core>, cache: &Arc<Cache>, request: &Request, rest: Rest) {
    let tally = core.tally();
    tally.cache_fills_in_flight.add(1);
    let Rest { object, file, body, slice, until, end } = rest;
    let mut progress = Progress { slice, until, at: u64::from(slice) * object.slice, crc: 0, booked: 0 };
    let result = match run(core, cache, request, &object, &file, body, end, &mut progress).await {
        Ok(true) => FillResult::Ok,
        Ok(false) => FillResult::Aborted,
        Err(trouble) => {
            if trouble == Trouble::Changed {
                cache.remove(&object, Eviction::Changed);
            }
            if object.pin == Pin::None || object.size() == UNKNOWN {
                // What is there cannot be joined to anything.
                cache.remove(&object, Eviction::Broken);
            }
            cache.unbook(&object, progress.booked);
            give_up(core, &object, &progress, Some(trouble));
            FillResult::Error
        }
    };
    tally.cache_fills[result as usize].add(1);
    tally.cache_fills_in_flight.sub(1);
}

/// Bodies into slices, with another request where a connection broke; true if all that was asked for is there.
#[allow(clippy::too_many_arguments)] // the parts of one fill, taken apart by its caller
async fn run(
    core: &Rc<Core>,
    cache: &Arc<Cache>,
    request: &Request,
    object: &Arc<Object>,
    file: &Local,
    mut body: Option<Incoming>,
    end: u64,
    progress: &mut Progress,
) -> Result<bool, Trouble> {
    let mut failures = 0;
    loop {
        let before = progress.at;
        let (mut incoming, skip) = match body.take() {
            Some(body) => (body, 0),
            None => more(core, request, object, progress.at, end).await?,
        };
        let cut = match pump(core, cache, object, file, &mut incoming, end, skip, progress).await {
            Ended::Done => return Ok(true),
            Ended::Left => {
                cache.unbook(object, progress.booked);
                give_up(core, object, progress, None);
                return Ok(false);
            }
            Ended::Disk(why) => {
                cache.counts.not_stored(why);
                return Err(Trouble::Disk);
            }
            Ended::Cut(cut) => cut,
        };
        let resumable = object.meta().ranges && object.pin != Pin::None && object.size() != UNKNOWN;
        failures = if progress.at > before { 1 } else { failures + 1 };
        if !resumable || failures > core.config.limits.origin_retries {
            return Err(Trouble::Origin(
                Status(502),
                match cut {
                    Cut::Short => "the origin ended within the body",
                    Cut::Reset => "the origin reset the connection within the body",
                    Cut::Stalled => "the origin stalled within the body",
                    Cut::Malformed => "the origin's chunks are malformed",
                }
                .into(),
            ));
        }
    }
}

/// Asks for the rest of an object; the body, and the bytes of it that are not wanted.
pub async fn more(
    core: &Rc<Core>,
    request: &Request,
    object: &Arc<Object>,
    at: u64,
    end: u64,
) -> Result<(Incoming, u64), Trouble> {
    let trouble = |status: Status, detail: Cow<'static, str>| Err(Trouble::Origin(status, detail));
    let meta = object.meta();
    let range = format!("bytes={at}-{}", end - 1);
    let mut fields: Vec<(&str, &[u8])> = Vec::new();
    if meta.ranges {
        fields.push(("Range", range.as_bytes()));
        fields.extend(object.pin.if_range().map(|pin| ("If-Range", pin)));
    }
    let response = match ask(core, request, false, &fields).await {
        Ok(response) => response,
        Err(failure) => return trouble(failure.status, failure.detail),
    };
    let same = Pin::of(&response.head.headers) == object.pin && object.pin != Pin::None;
    match response.head.status {
        206 => match extent(&response.head, Some(at)) {
            Ok(extent) if same && extent.size == object.size() => Ok((response.body, 0)),
            Ok(_) => Err(Trouble::Changed),
            Err(failure) => trouble(failure.status, failure.detail),
        },
        200 => match extent(&response.head, None) {
            // The same version by one that does not do parts: from the beginning, then.
            Ok(extent) if same && extent.size == object.size() => {
                object.set_meta(Meta { ranges: false, ..(*object.meta()).clone() });
                Ok((response.body, at))
            }
            _ => Err(Trouble::Changed),
        },
        404 | 410 | 412 | 416 => Err(Trouble::Changed),
        status => trouble(Status(502), format!("the origin answered {status} for a part").into()),
    }
}

/// One body into the slices it covers.
#[allow(clippy::too_many_arguments)] // as above
async fn pump(
    core: &Rc<Core>,
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    file: &Local,
    incoming: &mut Incoming,
    end: u64,
    mut skip: u64,
    progress: &mut Progress,
) -> Ended {
    loop {
        let size = object.size();
        let boundary = (u64::from(progress.slice) + 1).saturating_mul(object.slice).min(size);
        if progress.at == boundary {
            match next_slice(core, cache, object, end, progress) {
                Some(ended) => return ended,
                None => continue,
            }
        }
        if progress.booked == 0 {
            let bytes =
                if size == UNKNOWN { object.slice } else { boundary - u64::from(progress.slice) * object.slice };
            progress.booked = bytes;
            if !cache.book(object, bytes) {
                core.hit(crate::telemetry::tally::Limit::CacheBytes);
                if size != UNKNOWN || cache.keeper.is_low() {
                    return Ended::Disk(StoreFailure::LowSpace);
                }
                // Its length was not known, or it would not have begun: those who read it may finish, nobody else finds it.
                cache.remove(object, Eviction::Capacity);
            }
        }
        let most = if skip > 0 { skip } else { boundary - progress.at };
        let piece = match incoming.piece(most).await {
            Ok(Some(piece)) => piece,
            Ok(None) if size == UNKNOWN => {
                whole(core, cache, object, progress);
                return Ended::Done;
            }
            Ok(None) => return Ended::Cut(Cut::Short),
            Err(cut) => return Ended::Cut(cut),
        };
        if skip > 0 {
            skip -= piece.len() as u64;
            continue;
        }
        let Some(mut lease) = incoming.take() else { return Ended::Cut(Cut::Short) };
        progress.crc = crc32c::crc32c_append(progress.crc, &lease.bytes(piece.end)[piece.start..]);
        let (mut from, mut left) = (piece.start as u32, piece.len() as u32);
        while left > 0 {
            let op = Op::WriteFixed { file: Rc::clone(file.file.fd()), lease, len: left, from, offset: progress.at };
            let done = core.ring.submit(op).await;
            match done.op {
                Some(Op::WriteFixed { lease: back, .. }) => lease = back,
                _ => return Ended::Disk(StoreFailure::Other),
            }
            match done.result {
                Ok(0) => return Ended::Disk(StoreFailure::Other),
                Ok(n) => {
                    from += n;
                    left -= n;
                    progress.at += u64::from(n);
                }
                Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
                Err(errno) => return Ended::Disk(failure_of(errno)),
            }
        }
        incoming.give(lease);
        core.tally().cache_fill_bytes.add(piece.len() as u64);
        if progress.at == boundary {
            // Not told before the next slice is claimed: a reader at the edge would claim it.
            continue;
        }
        core.wake_waiters(object.advance(progress.slice, progress.at));
        if object.readers() == 0 && cache.config.on_leave == OnLeave::Stop && !object.is_complete() {
            return Ended::Left;
        }
        // Readers and small requests have their turn between two pieces.
        core.mover.give_way().await;
    }
}

/// A slice is complete; the next one is claimed, or the fill has ended.
fn next_slice(
    core: &Rc<Core>,
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    end: u64,
    progress: &mut Progress,
) -> Option<Ended> {
    let more = progress.at < end;
    // At the end of a process only readers are a reason to go on.
    let wanted = object.readers() > 0
        || !core.draining.get()
            && match cache.config.on_leave {
                OnLeave::Stop => false,
                // What cannot be taken up again where it ended is one slice in this respect.
                OnLeave::Slice => object.is_stream(),
                OnLeave::Finish => true,
            };
    let next = progress.slice + 1;
    // What is claimed already is gone on with; another client's fill of what follows ends this one.
    let own = next < progress.until;
    let claimed = finish_slice(core, cache, object, progress, (more && wanted && !own).then_some(next));
    if claimed || own && more && wanted {
        progress.slice = next;
        progress.until = progress.until.max(next + 1);
        return None;
    }
    progress.slice = next;
    Some(if more && !wanted { Ended::Left } else { Ended::Done })
}

/// All of a slice is in the file; true if `next` is this fill's now.
fn finish_slice(
    core: &Rc<Core>,
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    progress: &mut Progress,
    next: Option<u32>,
) -> bool {
    let len = (progress.at - u64::from(progress.slice) * object.slice) as u32;
    if !object.is_dead() {
        cache.keeper.record(Record::Slice { id: object.id, index: progress.slice, len, crc: progress.crc });
    }
    (progress.crc, progress.booked) = (0, 0);
    let (waiters, claimed) = object.complete_and_claim(progress.slice, next);
    core.wake_waiters(waiters);
    claimed
}

/// A body of unknown length has ended: now it is known.
fn whole(core: &Rc<Core>, cache: &Arc<Cache>, object: &Arc<Object>, progress: &mut Progress) {
    let size = progress.at;
    object.set_size(size);
    if !object.is_dead() {
        cache.keeper.record(Record::Meta { id: object.id, size: Some(size), meta: object.meta().encode() });
    }
    let begun = u64::from(progress.slice) * object.slice;
    let booked = progress.booked;
    if size > begun {
        finish_slice(core, cache, object, progress, None);
    } else {
        object.settle_size();
        core.wake_waiters(object.release(progress.slice, None));
    }
    cache.unbook(object, booked.saturating_sub(size - begun));
}

/// Reads a slice from before a restart back and compares its checksum; the caller has claimed it.
pub async fn check(core: Rc<Core>, cache: Arc<Cache>, object: Arc<Object>, file: Rc<Local>, slice: u32) {
    let Some((len, want)) = object.expected(slice) else {
        core.wake_waiters(object.release(slice, None));
        return;
    };
    let start = u64::from(slice) * object.slice;
    let mut at = 0;
    let mut crc = 0;
    while at < len {
        match core.mover.read(&file.file, start + u64::from(at), len - at).await {
            Ok((lease, n)) if n > 0 => {
                crc = crc32c::crc32c_append(crc, lease.bytes(n as usize));
                at += n;
            }
            _ => break,
        }
        core.mover.give_way().await;
    }
    if at == len && crc == want {
        cache.counts.verified.fetch_add(1, Relaxed);
        core.wake_waiters(object.complete(slice));
    } else {
        tracing::warn!(object = object.id, slice, "a stored slice does not have its checksum and is fetched again");
        cache.counts.verify_failures.fetch_add(1, Relaxed);
        cache.unbook(&object, u64::from(len));
        core.wake_waiters(object.release(slice, None));
    }
}
