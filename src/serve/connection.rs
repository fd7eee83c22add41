//! One connection, top to bottom: the file to read first.
//!
//! A connection is a small record; it has a task only while it has input to answer. Bytes arrive by a multishot receive
//! into buffers the kernel picks, and wait in the inbox. A task takes requests out of it one by one: parse, route,
//! look the file up, decide, send the head, let the mover send the body. When the inbox is empty the task ends, and an
//! idle connection holds no buffer, no task and no operation but its receive.
//!
//! | phase | what holds | leaves by |
//! |---|---|---|
//! | Reading | a request head is awaited or incomplete | complete head → Writing; header timeout → 408, Closing |
//! | Writing | a task answers | response out → Idle or Reading; abort → Closing |
//! | Idle | kept alive between requests | first byte → Reading; keep-alive timeout, drain → Closing |
//! | Closing | our direction is shut; input is thrown away until the client ends too | EOF or two seconds → gone |
//!
//! Invariants: one response at a time per connection (R5); bytes of a request body never become the next request.

use super::cached;
use super::core::{Core, Job};
use super::proxy;
use super::route::Found as Routed;
use crate::clock::Nanos;
use crate::config::{EngineChoice, Route, Source};
use crate::http::chunked::{self, BodySkip, SkipState};
use crate::http::framing::Framing;
use crate::http::head::{self, HeadLimits, Method, Parse, RequestHead, Version};
use crate::http::range::{self, RangeAnswer};
use crate::http::reply::{self, FileHead};
use crate::http::target;
use crate::http::validator::{self, Precondition};
use crate::http::{Refusal, Status};
use crate::ring::TaskId;
use crate::ring::buffers::RecvLease;
use crate::ring::completion::Outcome;
use crate::ring::op::{Op, SharedFd};
use crate::ring::token::Token;
use crate::shard::patience::TASK_KEY;
use crate::store::file::OpenFile;
use crate::store::{Found, Missing};
use crate::sys::socket;
use crate::telemetry::access;
use crate::telemetry::tally::{
    AbortReason, CacheResult, CloseReason, CodeClass, ConnState, Engine, Limit, MethodLabel, RangeKind,
};
use crate::transfer::drive::{Abort, Flow, Order};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A client that ended its direction while it waits for an origin may still read: for so long.
const HALF_CLOSED: Duration = Duration::from_secs(2);
/// How long a closing connection may still send before it is cut.
const LINGER: Duration = Duration::from_secs(2);
/// Bodies up to this are copied behind their head into one send; above, a vectored send shares them with the cache.
const COPY_MOST: usize = 4 << 10;

/// The kind of event a stream operation's tag names, in its top byte; a connection's key lies below.
pub const TAG_CONN: u64 = 2 << 56;

/// One connection.
#[derive(Debug)]
pub struct Conn {
    /// Index in the core's table.
    pub index: u32,
    /// Tells this connection from an earlier one at the same index.
    pub generation: u32,
    /// The socket and its progress.
    pub flow: Flow,
    state: Cell<ConnState>,
    /// When the state began (or, writing, see `flow.progressed`).
    since: Cell<Nanos>,
    /// When the earliest live entry of the wheel fires.
    timer: Cell<Nanos>,
    /// The receive operation, while it is armed.
    recv: Cell<Option<Token>>,
    /// A cancel of the receive is on its way.
    paused: Cell<bool>,
    inbox: RefCell<VecDeque<RecvLease>>,
    /// Bytes of the front lease already used.
    used: Cell<usize>,
    /// An incomplete head, joined.
    partial: RefCell<Vec<u8>>,
    /// A request body being dropped.
    skip: RefCell<Option<BodySkip>>,
    eof: Cell<bool>,
    task: Cell<Option<TaskId>>,
    requests: Cell<u64>,
    why: Cell<CloseReason>,
    gone: Cell<bool>,
    /// The origin is waited for: the client is not to blame, its clock stands still.
    held: Cell<bool>,
    /// The client's direction ended with an error: it is gone, not only silent.
    reset: Cell<bool>,
    /// When its direction ended.
    ended_at: Cell<Nanos>,
    /// The task that waits for an origin, to be told when the client leaves.
    holder: Cell<Option<TaskId>>,
    /// A task that wants the next input of this connection (a request body on its way to an origin).
    reader: Cell<Option<TaskId>>,
    /// For the access log, where there is one: the client, and its request as it was said.
    peer: Cell<Option<IpAddr>>,
    words: RefCell<access::Words>,
}

impl Conn {
    /// A connection just accepted.
    pub fn new(index: u32, generation: u32, socket: SharedFd, listener: u16, now: Nanos) -> Self {
        Self {
            index,
            generation,
            flow: Flow {
                socket,
                route: listener,
                progressed: Cell::new(now),
                pinned: Rc::default(),
                sent: Cell::new(0),
            },
            state: Cell::new(ConnState::Reading),
            since: Cell::new(now),
            timer: Cell::new(Nanos(u64::MAX)),
            recv: Cell::new(None),
            paused: Cell::new(false),
            inbox: RefCell::default(),
            used: Cell::new(0),
            partial: RefCell::default(),
            skip: RefCell::default(),
            eof: Cell::new(false),
            task: Cell::new(None),
            requests: Cell::new(0),
            why: Cell::new(CloseReason::Client),
            gone: Cell::new(false),
            held: Cell::new(false),
            reset: Cell::new(false),
            ended_at: Cell::new(Nanos(0)),
            holder: Cell::new(None),
            reader: Cell::new(None),
            peer: Cell::new(None),
            words: RefCell::default(),
        }
    }

    /// Whether it has ended for good.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Whether its client ran into the send timeout.
    pub fn is_timed_out(&self) -> bool {
        self.why.get() == CloseReason::SendTimeout
    }

    /// Awaits what an origin does; the client's clock stands still meanwhile.
    ///
    /// # Errors
    /// The client left. One that only ended its own direction is given a moment, since it may still read.
    pub async fn hold<T>(&self, core: &Core, work: impl Future<Output = T>) -> Result<T, Abort> {
        self.held.set(true);
        let mut work = pin!(work);
        let mut armed = Nanos(0);
        let done = poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            self.holder.set(Some(core.current_task()));
            let mut left = self.gone.get() || self.reset.get();
            if self.eof.get() && !left {
                // Counted from the last sign of life: what is sent to one that is gone ends in a reset soon enough.
                let until = self.ended_at.get().max(self.flow.progressed.get()).after(HALF_CLOSED);
                if armed < until {
                    armed = until;
                    core.timers.wheel.borrow_mut().set(until, TASK_KEY | u64::from(core.current_task().0));
                }
                left = core.clock().now() >= until;
            }
            if left { Poll::Ready(Err(Abort(AbortReason::ClientReset))) } else { Poll::Pending }
        })
        .await;
        self.holder.set(None);
        self.held.set(false);
        self.flow.progressed.set(core.clock().now());
        self.set_timer(core);
        done
    }

    /// The next bytes of input, whatever they are; `None` when none are here.
    pub fn take_input(&self) -> Option<Vec<u8>> {
        let mut partial = self.partial.borrow_mut();
        if !partial.is_empty() {
            return Some(std::mem::take(&mut *partial));
        }
        let lease = self.inbox.borrow_mut().pop_front()?;
        Some(lease.bytes()[self.used.replace(0)..].to_vec())
    }

    /// Gives input back that was not used; it comes again first.
    pub fn return_input(&self, bytes: &[u8]) {
        let mut partial = self.partial.borrow_mut();
        partial.splice(0..0, bytes.iter().copied());
    }

    /// Wakes the task that waits for input, if there is one.
    pub fn wake_reader(&self, core: &Core) {
        if let Some(reader) = self.reader.take() {
            core.ring.wake(reader);
        }
    }

    /// Waits for input; false when there will be none.
    pub async fn input(self: &Rc<Self>, core: &Rc<Core>) -> bool {
        poll_fn(|_| {
            if self.gone.get() || self.buffered() || !self.partial.borrow().is_empty() {
                return Poll::Ready(!self.gone.get());
            }
            if self.eof.get() {
                return Poll::Ready(false);
            }
            self.reader.set(Some(core.current_task()));
            arm_later(core, self);
            Poll::Pending
        })
        .await
    }

    /// Index and generation, as the wheel and the tags carry them.
    pub fn key(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Its task, while it has one.
    pub fn task(&self) -> Option<TaskId> {
        self.task.get()
    }

    /// Remembers its task.
    pub fn set_task(&self, task: TaskId) {
        self.task.set(Some(task));
    }

    fn enter(&self, core: &Core, state: ConnState) {
        let old = self.state.replace(state);
        if old != state {
            core.count_state(Some(old), Some(state));
        }
        self.since.set(core.now());
        self.set_timer(core);
    }

    fn deadline(&self, core: &Core) -> Nanos {
        let limits = &core.config.limits;
        match self.state.get() {
            ConnState::Reading => self.since.get().after(limits.header_timeout),
            ConnState::Idle => self.since.get().after(limits.keepalive_timeout),
            ConnState::Writing if self.held.get() => Nanos(u64::MAX),
            ConnState::Writing => self.flow.progressed.get().max(self.since.get()).after(limits.send_timeout),
            ConnState::Closing => self.since.get().after(LINGER),
        }
    }

    /// Makes sure that the wheel looks at this connection no later than its deadline.
    fn set_timer(&self, core: &Core) {
        let deadline = self.deadline(core);
        if deadline < self.timer.get() {
            self.timer.set(deadline);
            core.timers.wheel.borrow_mut().set(deadline, self.key());
        }
    }

    fn buffered(&self) -> bool {
        !self.inbox.borrow().is_empty()
    }
}

/// Takes an accepted socket in: admission, record, receive.
pub fn admit(core: &Rc<Core>, socket: SharedFd, listener: u16) {
    let tally = core.tally();
    tally.accepted[usize::from(listener).min(tally.accepted.len() - 1)].add(1);
    let mut conns = core.conns.borrow_mut();
    if conns.len() >= core.config.limits.connections_per_core {
        tally.rejected[crate::telemetry::tally::RejectReason::Limit as usize].add(1);
        core.hit(Limit::Connections);
        drop(conns);
        return turn_away(core, &socket);
    }
    let entry = conns.vacant_entry();
    let conn = Rc::new(Conn::new(entry.key() as u32, core.next_generation(), socket, listener, core.now()));
    entry.insert(Rc::clone(&conn));
    drop(conns);
    if core.lane.is_some() {
        // Asked now: a client that has left has no address any more.
        conn.peer.set(socket::peer(conn.flow.socket.as_fd()).map(|peer| peer.ip()));
    }
    core.count_state(None, Some(ConnState::Reading));
    conn.set_timer(core);
    arm(core, &conn);
}

/// Over the limit: a 503 if the socket takes it at once, then the end.
fn turn_away(core: &Core, socket: &SharedFd) {
    let mut head = core.take_head();
    reply::write_error(
        &mut head,
        Status(503),
        "connections per core are at their limit",
        &[("Retry-After", b"1")],
        false,
        Version::Http11,
        &core.date(),
        true,
    );
    // Best effort: this client is not worth an operation.
    if let Ok(n) = crate::sys::send(socket.as_fd(), &head, false) {
        core.tally().head_bytes.add(n as u64);
    }
    socket::shutdown_send(socket.as_fd());
    core.give_head(head);
}

/// Starts the receive, if there is room for its operation.
fn arm(core: &Rc<Core>, conn: &Rc<Conn>) {
    if conn.recv.get().is_some() || conn.eof.get() || conn.gone.get() {
        return;
    }
    match core.ring.stream(Op::Recv { socket: Rc::clone(&conn.flow.socket) }, TAG_CONN | conn.key()) {
        Ok(token) => conn.recv.set(Some(token)),
        Err(_) => {
            core.hit(Limit::Ops);
            core.dry.borrow_mut().push(Rc::clone(conn));
        }
    }
}

/// Starts the receive of every connection that had run out of buffers, now that some may have come home.
pub fn arm_dry(core: &Rc<Core>) {
    if core.dry.borrow().is_empty() || core.tally().ring_buffers_available.get() == 0 {
        return;
    }
    for conn in core.dry.take() {
        arm(core, &conn);
    }
}

/// A completion of the receive.
pub fn received(core: &Rc<Core>, conn: &Rc<Conn>, result: Outcome, buffer: Option<RecvLease>, more: bool) {
    if !more {
        conn.recv.set(None);
        conn.paused.set(false);
    }
    match (result, buffer) {
        (Ok(0), _) => conn.eof.set(true),
        (Ok(n), Some(lease)) => {
            core.tally().received_bytes.add(u64::from(n));
            if conn.state.get() == ConnState::Closing {
                // Lingering: thrown away, so that our last response is not lost to a reset.
            } else {
                take_in(core, conn, lease);
            }
        }
        (Ok(_), None) => conn.eof.set(true),
        (Err(errno), _) if errno.0 == libc::ENOBUFS => {
            core.hit(Limit::RecvBuffers);
            core.dry.borrow_mut().push(Rc::clone(conn));
        }
        (Err(errno), _) if errno.is_canceled() && !conn.gone.get() => {}
        (Err(_), _) => {
            conn.reset.set(true);
            conn.eof.set(true);
        }
    }
    if conn.eof.get() {
        conn.ended_at.set(core.now());
        if let Some(holder) = conn.holder.take() {
            core.ring.wake(holder);
        }
    }
    conn.wake_reader(core);
    if conn.task.get().is_some() {
        return;
    }
    if conn.buffered() {
        wake(core, conn);
    } else if conn.eof.get() {
        close(core, conn);
    } else {
        arm_later(core, conn);
    }
}

fn arm_later(core: &Rc<Core>, conn: &Rc<Conn>) {
    if conn.recv.get().is_none() && !conn.eof.get() && !core.dry.borrow().iter().any(|dry| Rc::ptr_eq(dry, conn)) {
        arm(core, conn);
    }
}

fn take_in(core: &Rc<Core>, conn: &Rc<Conn>, lease: RecvLease) {
    let mut inbox = conn.inbox.borrow_mut();
    inbox.push_back(lease);
    if inbox.len() >= core.config.limits.inbox_buffers
        && !conn.paused.get()
        && let Some(token) = conn.recv.get()
    {
        core.hit(Limit::Inbox);
        conn.paused.set(true);
        core.ring.cancel(token);
    }
}

/// Input for a connection without a task: it gets one.
fn wake(core: &Rc<Core>, conn: &Rc<Conn>) {
    if conn.state.get() == ConnState::Idle {
        conn.enter(core, ConnState::Reading);
    }
    core.spawn.borrow_mut().push(Job::Answer(Rc::clone(conn)));
}

/// The connection's entry in the wheel fired.
pub fn timer_fired(core: &Rc<Core>, conn: &Rc<Conn>, at: Nanos) {
    if conn.timer.get() != at || conn.gone.get() {
        return;
    }
    conn.timer.set(Nanos(u64::MAX));
    if conn.deadline(core) > core.now() {
        conn.set_timer(core);
        return;
    }
    match conn.state.get() {
        ConnState::Reading => {
            conn.why.set(CloseReason::HeaderTimeout);
            core.hit(Limit::HeaderTimeout);
            // A connection that never said anything gets no answer, one in the middle of a head is told.
            if conn.task.get().is_none() && (!conn.partial.borrow().is_empty() || conn.skip.borrow().is_some()) {
                refuse_now(core, conn, Status(408), "the request did not arrive in time");
            }
            close(core, conn);
        }
        ConnState::Idle => {
            conn.why.set(CloseReason::KeepAlive);
            core.hit(Limit::KeepAliveTimeout);
            close(core, conn);
        }
        ConnState::Writing => {
            conn.why.set(CloseReason::SendTimeout);
            core.hit(Limit::SendTimeout);
            // The task wakes with an error, counts the abort and closes; unsent bytes are freed at once.
            socket::reset_on_close(conn.flow.socket.as_fd());
            socket::shutdown(conn.flow.socket.as_fd());
            conn.since.set(core.now());
            conn.flow.progressed.set(core.now());
            conn.set_timer(core);
        }
        ConnState::Closing => close(core, conn),
    }
}

/// An answer outside any task: the socket takes it at once or not at all.
fn refuse_now(core: &Core, conn: &Conn, status: Status, detail: &str) {
    let mut head = core.take_head();
    reply::write_error(&mut head, status, detail, &[], false, Version::Http11, &core.date(), true);
    if let Ok(n) = crate::sys::send(conn.flow.socket.as_fd(), &head, false) {
        core.tally().head_bytes.add(n as u64);
    }
    conn.words.borrow_mut().clear();
    count_request(core, conn, 0, MethodLabel::Other, status, (core.now(), conn.flow.sent.get()));
    core.give_head(head);
}

/// Ends a connection for good. Its receive may still be armed: that holds the descriptor until the kernel lets go.
pub fn close(core: &Rc<Core>, conn: &Rc<Conn>) {
    if conn.gone.replace(true) {
        return;
    }
    core.count_state(Some(conn.state.get()), None);
    core.tally().closed[conn.why.get() as usize].add(1);
    socket::shutdown(conn.flow.socket.as_fd());
    if let Some(token) = conn.recv.take() {
        core.ring.cancel(token);
    }
    conn.inbox.borrow_mut().clear();
    core.conns.borrow_mut().try_remove(conn.index as usize);
}

/// Our direction ends after the last response; what the client still sends is thrown away for a moment, because a close
/// with unread input would reset the connection and could take the response with it.
fn linger(core: &Rc<Core>, conn: &Rc<Conn>) {
    conn.inbox.borrow_mut().clear();
    conn.used.set(0);
    *conn.partial.borrow_mut() = Vec::new();
    *conn.skip.borrow_mut() = None;
    if conn.eof.get() {
        return close(core, conn);
    }
    conn.enter(core, ConnState::Closing);
    socket::shutdown_send(conn.flow.socket.as_fd());
    arm_later(core, conn);
}

/// The drain began: what is idle ends now, what is answering ends after its response.
pub fn drain_idle(core: &Rc<Core>) {
    let idle: Vec<Rc<Conn>> = core
        .conns
        .borrow()
        .iter()
        .filter(|(_, conn)| conn.state.get() == ConnState::Idle && conn.task.get().is_none() && !conn.buffered())
        .map(|(_, conn)| Rc::clone(conn))
        .collect();
    for conn in idle {
        conn.why.set(CloseReason::Drain);
        linger(core, &conn);
    }
}

/// What to do with the bytes at hand.
enum Decision {
    /// More is needed.
    Partial,
    /// Not a request that can be answered: say why and end.
    Refuse(Refusal),
    /// The name is not known: open it and decide again.
    Open { route: usize, path: Vec<u8> },
    /// Answer.
    Answer(Answer),
    /// Ask an origin.
    Proxy(Box<proxy::Request>),
}

impl Decision {
    /// Bytes of the input it answers for.
    fn used(&self) -> usize {
        match self {
            Decision::Answer(answer) => answer.used,
            Decision::Proxy(request) => request.raw().len(),
            _ => 0,
        }
    }
}

struct Answer {
    head: Vec<u8>,
    body: Option<Body>,
    status: Status,
    method: MethodLabel,
    route: usize,
    keep: bool,
    used: usize,
    skip: Option<BodySkip>,
}

/// A range of a file as the body of a response.
pub struct Body {
    file: Rc<OpenFile>,
    start: u64,
    end: u64,
    path: Vec<u8>,
    /// From the cache: counted as served by it.
    stored: bool,
}

impl Body {
    /// A range of a file of the cache, which no name of the store leads to.
    pub fn stored(file: Rc<OpenFile>, start: u64, end: u64) -> Self {
        Self { file, start, end, path: Vec::new(), stored: false }
    }
}

/// Answers requests until the input is used up; then the task ends and the connection is idle, partial or closing.
pub async fn answer(core: Rc<Core>, conn: Rc<Conn>) {
    let mut found: Option<Found> = None;
    loop {
        if conn.gone.get() {
            break;
        }
        if !drop_body(&core, &conn) {
            break;
        }
        match decide_next(&core, &conn, found.take()) {
            Decision::Partial => {
                rest(&core, &conn);
                break;
            }
            Decision::Refuse(refusal) => {
                refuse(&core, &conn, refusal).await;
                break;
            }
            Decision::Open { route, path } => {
                found = Some(core.store.open(&core.ring, route, &path, core.now()).await);
            }
            Decision::Answer(answer) => {
                if !respond(&core, &conn, answer).await {
                    break;
                }
            }
            Decision::Proxy(request) => {
                // Boxed: what a relay keeps is large, and most tasks never relay.
                if !Box::pin(proxy::answer(&core, &conn, *request)).await {
                    break;
                }
            }
        }
    }
    conn.task.set(None);
    if !conn.gone.get() {
        // Input may have come between the last look and here.
        if conn.buffered() && conn.state.get() != ConnState::Closing {
            wake(&core, &conn);
        } else if conn.eof.get() {
            close(&core, &conn);
        } else {
            arm_later(&core, &conn);
        }
    }
}

/// No more input: idle between requests, or reading an incomplete head.
fn rest(core: &Rc<Core>, conn: &Rc<Conn>) {
    let partial = !conn.partial.borrow().is_empty() || conn.skip.borrow().is_some();
    match (partial, conn.state.get()) {
        // The clock of a head runs from its first byte, not from its last.
        (true, ConnState::Reading) => {}
        (true, _) => conn.enter(core, ConnState::Reading),
        (false, ConnState::Reading) if conn.requests.get() == 0 => {}
        (false, _) if core.draining.get() => {
            conn.why.set(CloseReason::Drain);
            linger(core, conn);
        }
        (false, _) => conn.enter(core, ConnState::Idle),
    }
}

/// Drops a request body that nobody wanted; false when the connection must wait or end.
fn drop_body(core: &Rc<Core>, conn: &Rc<Conn>) -> bool {
    loop {
        let state = {
            let mut skip = conn.skip.borrow_mut();
            let Some(body) = skip.as_mut() else { return true };
            let mut inbox = conn.inbox.borrow_mut();
            let partial = !conn.partial.borrow().is_empty();
            if partial {
                let mut bytes = conn.partial.borrow_mut();
                let fed = body.feed(&bytes);
                bytes.drain(..fed.consumed);
                fed.state
            } else if let Some(lease) = inbox.front() {
                let bytes = &lease.bytes()[conn.used.get()..];
                let fed = body.feed(bytes);
                if fed.consumed == bytes.len() {
                    conn.used.set(0);
                    inbox.pop_front();
                } else {
                    conn.used.set(conn.used.get() + fed.consumed);
                }
                fed.state
            } else {
                SkipState::More
            }
        };
        match state {
            SkipState::Done => *conn.skip.borrow_mut() = None,
            SkipState::More if conn.buffered() || !conn.partial.borrow().is_empty() => {}
            SkipState::More => {
                rest(core, conn);
                return false;
            }
            SkipState::Refuse(refusal) => {
                // Its request was answered already; a second answer would be taken for the next request's.
                count_refusal(core, refusal);
                conn.why.set(CloseReason::Refused);
                linger(core, conn);
                return false;
            }
        }
    }
}

/// Looks at the input: one head, wherever its bytes lie.
fn decide_next(core: &Rc<Core>, conn: &Conn, found: Option<Found>) -> Decision {
    let mut found = found;
    loop {
        let mut partial = conn.partial.borrow_mut();
        let mut inbox = conn.inbox.borrow_mut();
        if partial.is_empty() {
            // The usual case: a head lies whole in the buffer it was received into.
            let Some(lease) = inbox.front() else { return Decision::Partial };
            let bytes = &lease.bytes()[conn.used.get()..];
            match decide(core, conn, bytes, found.take()) {
                Decision::Partial => {
                    partial.extend_from_slice(bytes);
                    inbox.pop_front();
                    conn.used.set(0);
                }
                decided @ (Decision::Answer(_) | Decision::Proxy(_)) => {
                    let used = conn.used.get() + decided.used();
                    if used >= lease.bytes().len() {
                        inbox.pop_front();
                        conn.used.set(0);
                    } else {
                        conn.used.set(used);
                    }
                    return decided;
                }
                other => return other,
            }
        } else {
            match decide(core, conn, &partial, found.take()) {
                Decision::Partial => {}
                decided @ (Decision::Answer(_) | Decision::Proxy(_)) => {
                    partial.drain(..decided.used());
                    if partial.is_empty() {
                        *partial = Vec::new();
                    }
                    return decided;
                }
                other => return other,
            }
            let Some(lease) = inbox.pop_front() else { return Decision::Partial };
            partial.extend_from_slice(&lease.bytes()[conn.used.get()..]);
            conn.used.set(0);
        }
    }
}

fn head_limits(core: &Core) -> HeadLimits {
    let limits = &core.config.limits;
    HeadLimits { head_bytes: limits.head_bytes, header_count: limits.header_count, target_bytes: limits.target_bytes }
}

/// Bytes to decision, without waiting for anything: `found` is what an open just said.
fn decide(core: &Rc<Core>, conn: &Conn, bytes: &[u8], found: Option<Found>) -> Decision {
    let (request, used) = match head::parse(bytes, &head_limits(core)) {
        Parse::Partial => return Decision::Partial,
        Parse::Refuse(refusal) => return Decision::Refuse(refusal),
        Parse::Request(request, used) => (request, used),
    };
    if core.lane.is_some() {
        let RequestHead { method_name, target, host, referer, user_agent, .. } = request;
        let [host, referer, agent] = [host, referer, user_agent].map(Option::unwrap_or_default);
        let old = request.version == Version::Http10;
        conn.words.borrow_mut().set(old, [method_name, target, host, referer, agent]);
    }
    let most = core.config.limits.keepalive_requests;
    let keep = request.keep_alive && !core.draining.get() && (most == 0 || conn.requests.get() + 1 < most);
    if most != 0 && conn.requests.get() + 1 == most {
        core.hit(Limit::KeepAliveRequests);
    }
    let context = Context { core, request: &request, keep, used };
    if core.has_origins
        && let Some(decision) = context.of_origin(&bytes[..used])
    {
        return decision;
    }
    let limit = core.config.limits.discard_body_bytes;
    let skip = match request.framing {
        Framing::None | Framing::Length(0) => None,
        framing => Some(BodySkip::new(framing, limit)),
    };
    if let Framing::Length(length) = request.framing
        && length > limit
    {
        return Decision::Refuse(chunked::BODY_TOO_LONG);
    }
    let context = Context { keep: keep && !(request.expect_continue && skip.is_some()), ..context };
    let decision = match request.method {
        Method::Get | Method::Head => {
            let mut scratch = core.paths().borrow_mut();
            let path = match target::decode_path(request.target, &mut scratch) {
                Ok(target) => target.path,
                Err(refusal) => return Decision::Refuse(refusal),
            };
            context.of_path(path, found)
        }
        Method::Known => {
            let allow: [(&str, &[u8]); 1] = [("Allow", b"GET, HEAD")];
            Decision::Answer(context.error(Status(405), "only GET and HEAD are served", &allow, 0))
        }
        Method::Unknown => Decision::Answer(context.error(Status(501), "this method is not known", &[], 0)),
    };
    match decision {
        Decision::Answer(answer) => Decision::Answer(Answer { skip, ..answer }),
        other => other,
    }
}

/// One request being decided.
struct Context<'a> {
    core: &'a Rc<Core>,
    request: &'a RequestHead<'a>,
    keep: bool,
    used: usize,
}

impl Context<'_> {
    fn method(&self) -> MethodLabel {
        match self.request.method {
            Method::Get => MethodLabel::Get,
            Method::Head => MethodLabel::Head,
            Method::Known | Method::Unknown => MethodLabel::Other,
        }
    }

    /// A hit of the cache that needs nothing but this core: the object is complete, fresh and the same for everybody.
    fn of_front(&self, route: usize) -> Option<Answer> {
        let request = self.request;
        if !matches!(request.method, Method::Get | Method::Head) || request.framing.has_body() {
            return None;
        }
        let front = self.core.front(route, request.target)?;
        let asks = |name: &[u8]| name.eq_ignore_ascii_case(b"cache-control") || name.eq_ignore_ascii_case(b"pragma");
        if request.fields().any(|(name, _)| asks(name)) {
            return None;
        }
        let (status, head, range) = cached::hit(self.core, route, &front, request, self.keep)?;
        let body = (request.method == Method::Get && range.start < range.end)
            .then(|| Body { stored: true, ..Body::stored(Rc::clone(&front.file), range.start, range.end) });
        Some(self.answer(head, body, status, route))
    }

    /// The decision where the target belongs to a route with origins; `None` where it does not.
    fn of_origin(&self, raw: &[u8]) -> Option<Decision> {
        let core = self.core;
        let mut scratch = core.paths().borrow_mut();
        // An escaped slash is an ordinary name to many origins; our own files have no such names.
        let path = target::decode_path_keeping_slashes(self.request.target, &mut scratch).ok()?.path;
        match core.router.find(self.request.host, path)? {
            Routed::Route { route, cut } => {
                let Source::Origin(origin) = &core.config.routes[route].source else { return None };
                if core.cache.is_some()
                    && let Some(answer) = self.of_front(route)
                {
                    return Some(Decision::Answer(answer));
                }
                Some(Decision::Proxy(Box::new(proxy::Request::new(
                    self.request,
                    raw,
                    path,
                    (route, cut),
                    self.keep,
                    origin,
                ))))
            }
            Routed::Redirect { .. } => None,
        }
    }

    fn error(&self, status: Status, detail: &str, extra: &[(&str, &[u8])], route: usize) -> Answer {
        let mut head = self.core.take_head();
        let body = self.request.method != Method::Head;
        let date = self.core.date();
        reply::write_error(&mut head, status, detail, extra, self.keep, self.request.version, &date, body);
        self.answer(head, None, status, route)
    }

    fn answer(&self, head: Vec<u8>, body: Option<Body>, status: Status, route: usize) -> Answer {
        Answer { head, body, status, method: self.method(), route, keep: self.keep, used: self.used, skip: None }
    }

    fn of_path(&self, path: &[u8], found: Option<Found>) -> Decision {
        let core = self.core;
        let (route, name) = match core.router.find(self.request.host, path) {
            None => return Decision::Answer(self.error(Status(404), "no route for this host and path", &[], 0)),
            Some(Routed::Redirect { route }) => return Decision::Answer(self.redirect(route)),
            Some(Routed::Route { route, cut }) => (route, &path[cut..]),
        };
        let just_opened = found.is_some();
        let found = match found.or_else(|| core.store.known(route, name, core.now())) {
            // Its bytes will be read now, and they must be those the head will tell of.
            Some(Found::File(file)) if !just_opened && file.content().is_none() && !file.is_unchanged() => {
                core.store.forget(route, name);
                return Decision::Open { route, path: name.to_vec() };
            }
            Some(found) => found,
            None => return Decision::Open { route, path: name.to_vec() },
        };
        Decision::Answer(match found {
            Found::File(file) => self.of_file(file, route, name),
            Found::Directory => self.redirect(route),
            Found::Missing(Missing::NotFound) => self.error(Status(404), "no such file", &[], route),
            Found::Missing(Missing::Forbidden) => self.error(Status(403), "not readable here", &[], route),
            Found::Missing(Missing::Busy) => {
                self.error(Status(503), "out of descriptors or memory", &[("Retry-After", b"1")], route)
            }
            Found::Missing(Missing::Failed(_)) => self.error(Status(500), "the file could not be read", &[], route),
        })
    }

    fn redirect(&self, route: usize) -> Answer {
        let mut location = Vec::new();
        target::write_redirect_location(&mut location, self.request.target);
        self.error(Status(301), "it is a directory", &[("Location", &location)], route)
    }

    fn of_file(&self, file: Rc<OpenFile>, route: usize, name: &[u8]) -> Answer {
        let (core, request) = (self.core, self.request);
        let len = file.len();
        match validator::evaluate(request, file.validators()) {
            Precondition::Proceed => {}
            Precondition::Failed => return self.error(Status(412), "the file is not what was asked for", &[], route),
            Precondition::NotModified => {
                let mut head = core.take_head();
                self.write_head(&mut head, Status(304), &file, None, route);
                return self.answer(head, None, Status(304), route);
            }
        }
        let ranges = &core.tally().routes[row(core, route)].ranges;
        let part = match request.range {
            Some(range)
                if request.method == Method::Get
                    && validator::if_range_holds(request, file.validators(), core.unix_seconds()) =>
            {
                match range::answer(range, len) {
                    RangeAnswer::Full => None,
                    RangeAnswer::Multi => {
                        ranges[RangeKind::Multi as usize].add(1);
                        None
                    }
                    RangeAnswer::Part(part) => {
                        ranges[RangeKind::Single as usize].add(1);
                        Some(part)
                    }
                    RangeAnswer::Unsatisfiable => {
                        ranges[RangeKind::Unsatisfiable as usize].add(1);
                        let mut head = core.take_head();
                        let date = core.date();
                        reply::write_range_error(&mut head, len, self.keep, request.version, &date, true);
                        return self.answer(head, None, Status(416), route);
                    }
                }
            }
            _ => None,
        };
        let status = if part.is_some() { Status(206) } else { Status(200) };
        let std::ops::Range { start, end } = part.clone().unwrap_or(0..len);
        let mut head = core.take_head();
        self.write_head(&mut head, status, &file, part, route);
        let body = (request.method == Method::Get && start < end).then(|| Body {
            file,
            start,
            end,
            path: name.to_vec(),
            stored: false,
        });
        self.answer(head, body, status, route)
    }

    fn write_head(
        &self,
        head: &mut Vec<u8>,
        status: Status,
        file: &OpenFile,
        part: Option<std::ops::Range<u64>>,
        route: usize,
    ) {
        let config: &Route = &self.core.config.routes[route];
        reply::write_file_head(
            head,
            &FileHead {
                status,
                len: file.len(),
                part,
                content_type: file.content_type(),
                validators: file.validators(),
                cache_control: config.cache_control.as_deref().map(str::as_bytes),
                keep_alive: self.keep,
                version: self.request.version,
                date: &self.core.date(),
            },
        );
    }
}

/// The row of a route in the tally: routes past the table share the last.
pub fn row(core: &Core, route: usize) -> usize {
    route.min(core.tally().routes.len() - 1)
}

/// Counts a request that was answered, and logs it where there is a log.
fn count_request(core: &Core, conn: &Conn, route: usize, method: MethodLabel, status: Status, (began, before): Began) {
    let class = match status.0 / 100 {
        1 => CodeClass::C1,
        2 => CodeClass::C2,
        3 => CodeClass::C3,
        4 => CodeClass::C4,
        _ => CodeClass::C5,
    };
    core.tally().routes[row(core, route)].requests[method as usize][class as usize].add(1);
    core.tally().requests.add(1);
    if let Some(lane) = &core.lane {
        let clock = core.clock();
        let outcome = access::Outcome {
            unix_ns: clock.unix().as_nanos() as u64,
            took_ns: clock.now().since(began).as_nanos() as u64,
            bytes: conn.flow.sent.get() - before,
            status: status.0,
            peer: conn.peer.get(),
        };
        let mut words = conn.words.borrow_mut();
        lane.put(&words, &outcome);
        words.clear();
    }
}

fn count_refusal(core: &Core, refusal: Refusal) {
    if refusal == head::TOO_MANY_HEADERS {
        core.hit(Limit::HeaderCount);
    } else if refusal == head::HEAD_TOO_LONG {
        core.hit(Limit::HeadBytes);
    } else if refusal == head::TARGET_TOO_LONG {
        core.hit(Limit::TargetBytes);
    } else if refusal == chunked::BODY_TOO_LONG {
        core.hit(Limit::BodyBytes);
    }
}

/// Says why a request cannot be answered, and ends the connection.
async fn refuse(core: &Rc<Core>, conn: &Rc<Conn>, refusal: Refusal) {
    count_refusal(core, refusal);
    let began = (core.now(), conn.flow.sent.get());
    let mut head = core.take_head();
    let date = core.date();
    reply::write_error(&mut head, refusal.status, refusal.reason, &[], false, Version::Http11, &date, true);
    conn.enter(core, ConnState::Writing);
    let (head, _) = core.mover.send_head(&conn.flow, head, false).await;
    core.give_head(head);
    count_request(core, conn, 0, MethodLabel::Other, refusal.status, began);
    if !conn.gone.get() {
        conn.why.set(CloseReason::Refused);
        linger(core, conn);
    }
}

/// Where a response began: the time its histograms count from, and the body bytes its connection had sent before.
pub type Began = (Nanos, u64);

/// A response begins.
pub fn begin(core: &Rc<Core>, conn: &Rc<Conn>) -> Began {
    conn.flow.progressed.set(core.now());
    conn.enter(core, ConnState::Writing);
    conn.requests.set(conn.requests.get() + 1);
    core.tally().requests_in_flight.add(1);
    (core.now(), conn.flow.sent.get())
}

/// A response has ended one way or the other; true if the connection goes on.
#[allow(clippy::too_many_arguments)] // each is one fact of the response that ended
pub fn finish(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    route: usize,
    method: MethodLabel,
    status: Status,
    keep: bool,
    began: Began,
    sent: Result<(), Abort>,
) -> bool {
    let tally = core.tally();
    tally.requests_in_flight.sub(1);
    count_request(core, conn, route, method, status, began);
    let routes = &tally.routes[row(core, route)];
    let took = core.now().since(began.0).as_nanos() as u64;
    routes.transfer.record(took);
    if let Err(Abort(reason)) = sent {
        let reason = if conn.is_timed_out() { AbortReason::SendTimeout } else { reason };
        routes.aborted[reason as usize].add(1);
        match reason {
            AbortReason::ClientReset => conn.why.set(CloseReason::Client),
            AbortReason::SendTimeout => {}
            _ => conn.why.set(CloseReason::Error),
        }
        if reason == AbortReason::Upstream {
            // A body that ends with the connection must not look whole to a client of HTTP/1.0.
            socket::reset_on_close(conn.flow.socket.as_fd());
        }
        close(core, conn);
        return false;
    }
    if keep && !conn.gone.get() {
        return true;
    }
    if !conn.gone.get() {
        conn.why.set(if core.draining.get() { CloseReason::Drain } else { CloseReason::Done });
        linger(core, conn);
    }
    false
}

/// The first byte of a response is out.
pub fn first_byte(core: &Core, route: usize, began: Nanos) {
    core.tally().routes[row(core, route)].ttfb.record(core.clock().now().since(began).as_nanos() as u64);
}

/// Sends one response; true if the connection goes on.
async fn respond(core: &Rc<Core>, conn: &Rc<Conn>, answer: Answer) -> bool {
    let tally = core.tally();
    let Answer { head, body, status, method, route, keep, skip, .. } = answer;
    let began = begin(core, conn);
    *conn.skip.borrow_mut() = skip;
    let sent = match body {
        None => {
            let (head, sent) = core.mover.send_head(&conn.flow, head, false).await;
            core.give_head(head);
            sent
        }
        Some(body) => {
            let (stored, before) = (body.stored, conn.flow.sent.get());
            let sent = send_body(core, conn, route, head, body).await;
            if stored {
                tally.cache_served[CacheResult::Hit as usize].add(conn.flow.sent.get() - before);
            }
            sent
        }
    };
    finish(core, conn, route, method, status, keep, began, sent)
}

/// Sends a head of `head` bytes with its body behind it, all by one send.
pub async fn send_whole(core: &Rc<Core>, conn: &Rc<Conn>, bytes: Vec<u8>, head: usize) -> Result<(), Abort> {
    let whole = bytes.len();
    let done = core.ring.submit(Op::Send { socket: Rc::clone(&conn.flow.socket), bytes, more: false }).await;
    if let Some(Op::Send { bytes, .. }) = done.op {
        core.give_head(bytes);
    }
    sent(core, conn, done.result, head as u64, whole as u64)
}

/// Counts what a send of head and body came to.
fn sent(core: &Core, conn: &Conn, result: Outcome, head: u64, whole: u64) -> Result<(), Abort> {
    let taken = result.map(u64::from).unwrap_or(0);
    core.tally().head_bytes.add(taken.min(head));
    core.tally().body_bytes[Engine::Send as usize].add(taken.saturating_sub(head));
    conn.flow.sent.set(conn.flow.sent.get() + taken.saturating_sub(head));
    conn.flow.progressed.set(core.now());
    match result {
        Ok(_) if taken == whole => Ok(()),
        Ok(_) => Err(Abort(AbortReason::ClientReset)),
        Err(errno) if errno.is_gone() || errno.is_canceled() => Err(Abort(AbortReason::ClientReset)),
        Err(_) => Err(Abort(AbortReason::SendError)),
    }
}

/// Sends head and body: from the content cache in one send, or by the mover.
pub async fn send_body(core: &Rc<Core>, conn: &Rc<Conn>, route: usize, head: Vec<u8>, body: Body) -> Result<(), Abort> {
    let ttfb = &core.tally().routes[row(core, route)].ttfb;
    let choice = core.config.routes[route].engine;
    let began = core.now();
    if matches!(choice, EngineChoice::Auto | EngineChoice::Send) && core.store.may_keep(&body.file) {
        let content = match core.store.content(&body.file) {
            Some(content) => Some(content),
            None => load(core, &body.file).await?,
        };
        let Some(content) = content else {
            // Cut since its head was made a moment ago; nothing was sent, and nothing can be that would be true.
            core.store.forget(route, &body.path);
            core.give_head(head);
            return Err(Abort(AbortReason::FileChanged));
        };
        let content = content.slice(body.start as usize..body.end as usize);
        let sent = send_content(core, conn, head, content).await;
        ttfb.record(core.now().since(began).as_nanos() as u64);
        return sent;
    }
    let (head, sent) = core.mover.send_head(&conn.flow, head, true).await;
    core.give_head(head);
    sent?;
    ttfb.record(core.clock().now().since(began).as_nanos() as u64);
    let order = Order { file: &body.file, start: body.start, end: body.end, choice };
    let sent = core.mover.send_body(&conn.flow, order).await;
    if matches!(sent, Err(Abort(AbortReason::FileShrank | AbortReason::FileChanged))) {
        core.store.forget(route, &body.path);
    }
    sent
}

/// Reads a small file whole, in as many reads as its warm and cold pages need; `None` if it is shorter than its stat.
async fn load(core: &Rc<Core>, file: &OpenFile) -> Result<Option<Bytes>, Abort> {
    let mut content = Vec::with_capacity(file.len() as usize);
    while (content.len() as u64) < file.len() {
        let left = (file.len() - content.len() as u64) as u32;
        let (lease, n) = core.mover.read(file, content.len() as u64, left).await?;
        if n == 0 {
            return Ok(None);
        }
        content.extend_from_slice(lease.bytes(n as usize));
    }
    let content = Bytes::from(content);
    core.store.keep(file, content.clone());
    Ok(Some(content))
}

/// One send of head and body.
async fn send_content(core: &Rc<Core>, conn: &Rc<Conn>, head: Vec<u8>, content: Bytes) -> Result<(), Abort> {
    let socket = Rc::clone(&conn.flow.socket);
    let head_len = head.len() as u64;
    let whole = head_len + content.len() as u64;
    let op = if content.len() <= COPY_MOST {
        let mut bytes = head;
        bytes.extend_from_slice(&content);
        Op::Send { socket, bytes, more: false }
    } else {
        Op::SendPair { socket, head, body: content, frame: core.take_frame() }
    };
    let done = core.ring.submit(op).await;
    match done.op {
        Some(Op::Send { bytes, .. }) => core.give_head(bytes),
        Some(Op::SendPair { head, frame, .. }) => {
            core.give_head(head);
            core.give_frame(frame);
        }
        _ => {}
    }
    sent(core, conn, done.result, head_len, whole)
}
