//! Async: one request to an origin and its response, on a connection that is kept or made for it.
//!
//! A request that waits costs a poll: buffers are borrowed when bytes have arrived, not before. Retries are made only
//! where nothing can have happened twice: safe methods, nothing of the answer seen, and a kept connection that turns out
//! to be closed does not count as a try.
//!
//! | step | limit | failure |
//! |---|---|---|
//! | a connection: kept, made, or waited for | `origin_connections_per_core`, `origin_queue`, `origin_queue_timeout`, `origin_connect_timeout` | 503, 504, 502 |
//! | the head out | `origin_progress_timeout` | 502 |
//! | the response's head | `origin_first_byte_timeout`, `origin_head_bytes` | 504, 502 |
//! | the body | `origin_progress_timeout` between two bytes | the response is cut |
//!
//! Invariant: a connection goes back to its pool only after a response that ended where its framing said, with not a
//! byte behind it.

use super::balance;
use super::origin::Origin;
use crate::clock::Nanos;
use crate::config::{Balance, Config, Source};
use crate::http::Status;
use crate::http::chunked::ChunkedBody;
use crate::http::response::{self, BodyLength, Parse, ResponseHead, ResponseLimits};
use crate::ring::buffers::{ARENA_BUFFER, ArenaLease};
use crate::ring::op::{Op, SharedFd};
use crate::ring::{Ring, TaskId};
use crate::shard::patience::{Patience, TimedOut, Timers};
use crate::shard::stock::{Stock, queue};
use crate::sys::{self, socket};
use crate::telemetry::tally::{ConnectResult, Limit, OriginTally, Tally, UpstreamCode, UpstreamError};
use socket2::SockAddr;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

/// Header fields of an origin's response.
const HEADERS_MOST: usize = 128;

/// Why there is no response, and what to tell the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// As it is counted.
    pub kind: UpstreamError,
    /// What the client is told.
    pub status: Status,
    /// In words.
    pub detail: Cow<'static, str>,
}

impl Failure {
    /// A failure of a kind, as status and words.
    pub fn new(kind: UpstreamError, status: u16, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, status: Status(status), detail: detail.into() }
    }
}

/// What is asked.
pub struct Ask<'a> {
    /// The route.
    pub route: usize,
    /// What a balance by hash goes by.
    pub path: &'a [u8],
    /// The method is HEAD.
    pub head: bool,
    /// May be sent twice.
    pub safe: bool,
    /// Writes the request's head for an origin.
    pub write: &'a dyn Fn(&Origin, &mut Vec<u8>) -> Result<(), Failure>,
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("route", &self.route).finish_non_exhaustive()
    }
}

/// Connections of one core to one origin.
#[derive(Debug)]
struct Pool {
    origin: Arc<Origin>,
    /// Row in the tally.
    row: usize,
    /// Idle ones, the latest used last.
    idle: RefCell<VecDeque<(SharedFd, Nanos)>>,
    /// In use, being made, and idle.
    open: Cell<usize>,
    /// Exchanges in flight.
    busy: Cell<usize>,
    queue: RefCell<VecDeque<TaskId>>,
}

/// A place in a pool's queue: given up by being dropped, wherever that happens, or it would wake nobody in its turn.
struct Place<'p> {
    pool: &'p Pool,
    task: TaskId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.queue.borrow_mut().retain(|waiting| *waiting != self.task);
    }
}

/// One connect in progress, counted until it is dropped.
struct Connecting<'t>(&'t OriginTally);

impl<'t> Connecting<'t> {
    fn new(row: &'t OriginTally) -> Self {
        row.connecting.add(1);
        Self(row)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.sub(1);
    }
}

#[derive(Debug)]
struct RoutePools {
    pools: Vec<Rc<Pool>>,
    balance: Balance,
    turn: Cell<usize>,
    weights: Vec<balance::Peer>,
}

/// One core's way to every origin.
#[derive(Debug)]
pub struct Upstream {
    ring: Rc<Ring>,
    timers: Rc<Timers>,
    stock: Rc<Stock>,
    config: Arc<Config>,
    routes: Vec<Option<RoutePools>>,
    tally: Arc<Tally>,
    spare: OriginTally,
}

/// A connection in use.
#[derive(Debug)]
pub struct Peer {
    /// The socket.
    pub socket: SharedFd,
    pool: Rc<Pool>,
    tally: Arc<Tally>,
    ring: Rc<Ring>,
    timers: Rc<Timers>,
    reused: bool,
    keep: Cell<bool>,
    keep_most: usize,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let pool = &self.pool;
        pool.busy.set(pool.busy.get() - 1);
        let mut idle = pool.idle.borrow_mut();
        let row = self.tally.origins.get(pool.row);
        if self.keep.get() && idle.len() < self.keep_most {
            idle.push_back((Rc::clone(&self.socket), self.timers.now()));
        } else {
            // Whatever operation still holds the descriptor ends now.
            socket::shutdown(self.socket.as_fd());
            pool.open.set(pool.open.get() - 1);
        }
        if let Some(row) = row {
            row.busy.set(pool.busy.get() as u64);
            row.idle.set(idle.len() as u64);
        }
        if let Some(task) = pool.queue.borrow_mut().pop_front() {
            self.ring.wake(task);
        }
    }
}

/// A response whose body is still to come.
#[derive(Debug)]
pub struct Response {
    /// Its head.
    pub head: ResponseHead,
    /// Its body.
    pub body: Incoming,
}

/// How a body comes.
#[derive(Debug)]
enum Left {
    Exact(u64),
    Chunked(ChunkedBody),
    UntilClose,
    Done,
}

/// The body of a response, piece by piece.
#[derive(Debug)]
pub struct Incoming {
    peer: Option<Peer>,
    keep: bool,
    left: Left,
    lease: Option<ArenaLease>,
    /// Bytes of the lease that were received and not looked at.
    raw: Range<usize>,
    /// Received bytes that gave their buffer back before they were looked at.
    apart: Vec<u8>,
    patience: Patience,
    stock: Rc<Stock>,
    ring: Rc<Ring>,
    config: Arc<Config>,
    tally: Arc<Tally>,
    row: usize,
}

impl Upstream {
    /// A way to `origins`: one list per route, empty for routes without.
    pub fn new(
        ring: Rc<Ring>,
        timers: Rc<Timers>,
        stock: Rc<Stock>,
        config: Arc<Config>,
        origins: &[Vec<Arc<Origin>>],
        tally: Arc<Tally>,
    ) -> Self {
        let mut row = 0;
        let routes = config.routes.iter().zip(origins).map(|(route, origins)| {
            let Source::Origin(route) = &route.source else { return None };
            let pools = origins.iter().map(|origin| {
                let pool = Pool {
                    origin: Arc::clone(origin),
                    row: row.min(crate::telemetry::tally::ORIGINS_MAX - 1),
                    idle: RefCell::default(),
                    open: Cell::new(0),
                    busy: Cell::new(0),
                    queue: RefCell::default(),
                };
                row += 1;
                Rc::new(pool)
            });
            let pools: Vec<Rc<Pool>> = pools.collect();
            let weights = pools.iter().map(|pool| balance::Peer::new(&pool.origin.name)).collect();
            Some(RoutePools { pools, balance: route.balance, turn: Cell::new(0), weights })
        });
        let routes = routes.collect();
        Self { ring, timers, stock, routes, config, tally, spare: OriginTally::default() }
    }

    fn row(&self, row: usize) -> &OriginTally {
        self.tally.origins.get(row).unwrap_or(&self.spare)
    }

    /// The origin to ask: by the route's balance among those that are up, or among all if none is.
    fn choose(&self, route: &RoutePools, path: &[u8], tried: &[usize]) -> usize {
        let now = self.timers.now();
        let count = route.pools.len();
        let up = |at: &usize| route.pools[*at].origin.is_up(now) && !tried.contains(at);
        let order: Vec<usize> = match route.balance {
            Balance::RoundRobin => {
                let turn = route.turn.get();
                route.turn.set(turn.wrapping_add(1));
                (0..count).map(|at| (turn + at) % count).collect()
            }
            Balance::LeastInFlight => {
                let turn = route.turn.get();
                route.turn.set(turn.wrapping_add(1));
                let mut order: Vec<usize> = (0..count).map(|at| (turn + at) % count).collect();
                order.sort_by_key(|at| route.pools[*at].busy.get());
                order
            }
            Balance::Hash => balance::rank(&route.weights, path),
        };
        let fresh = |at: &usize| !tried.contains(at);
        let found = order.iter().copied().find(up).or_else(|| order.iter().copied().find(fresh));
        found.unwrap_or(order[0])
    }

    /// Sends a request and reads the head of its response; tries again where that is safe.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn ask(&self, ask: &Ask<'_>) -> Result<Response, Failure> {
        let mut tried = Vec::new();
        let mut fresh = false;
        loop {
            let (at, peer) = self.open(ask, &tried, fresh).await?;
            let reused = peer.reused;
            let answer = self.respond(peer, ask.head).await;
            let (failure, seen) = match answer {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            if reused && !seen && ask.safe && failure.kind == UpstreamError::Reset {
                // The origin closed it while it was idle: nobody's failure. The next one is made for this request.
                fresh = true;
                continue;
            }
            let pool = &self.pools(ask.route).pools[at];
            self.failed(pool, &failure);
            tried.push(at);
            if !ask.safe || seen || tried.len() > self.config.limits.origin_retries as usize {
                if ask.safe && !seen {
                    self.tally.hit(Limit::OriginRetries);
                }
                return Err(failure);
            }
            self.row(pool.row).retries.add(1);
        }
    }

    /// An origin gave no answer: counted, and held against it. Waiting in our own queue is not its failure.
    fn failed(&self, pool: &Pool, failure: &Failure) {
        let row = self.row(pool.row);
        row.errors[failure.kind as usize].add(1);
        row.requests[UpstreamCode::None as usize].add(1);
        if failure.kind != UpstreamError::Queue {
            pool.origin.failed(self.timers.now());
        }
    }

    fn pools(&self, route: usize) -> &RoutePools {
        self.routes[route].as_ref().expect("only routes with origins are asked")
    }

    /// A connection with the request's head sent; connects are tried again on other origins.
    ///
    /// # Errors
    /// No connection could be had, or the head could not be sent.
    pub async fn open(&self, ask: &Ask<'_>, tried: &[usize], fresh: bool) -> Result<(usize, Peer), Failure> {
        let route = self.pools(ask.route);
        let mut tried = tried.to_vec();
        loop {
            let at = self.choose(route, ask.path, &tried);
            let pool = &route.pools[at];
            let mut head = Vec::with_capacity(1024);
            (ask.write)(&pool.origin, &mut head)?;
            let failure = match self.connection(pool, fresh).await {
                Ok(peer) => {
                    let reused = peer.reused;
                    match self.send(&peer, head).await {
                        Ok(()) => return Ok((at, peer)),
                        // Closed while idle: the next one is a new connection sooner or later, since this one is gone.
                        Err(_) if reused && ask.safe => continue,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            self.failed(pool, &failure);
            if failure.kind == UpstreamError::Queue {
                return Err(failure);
            }
            tried.push(at);
            // No whole head was sent, so that another try is safe whatever the method.
            if tried.len() > self.config.limits.origin_retries as usize {
                self.tally.hit(Limit::OriginRetries);
                return Err(failure);
            }
            self.row(pool.row).retries.add(1);
        }
    }

    async fn connection(&self, pool: &Rc<Pool>, fresh: bool) -> Result<Peer, Failure> {
        let limits = &self.config.limits;
        let began = self.timers.now();
        let patience = self.timers.patience(limits.origin_queue_timeout);
        loop {
            let now = self.timers.now();
            while let Some((socket, since)) = (!fresh).then(|| pool.idle.borrow_mut().pop_back()).flatten() {
                if now.since(since) < limits.origin_idle_timeout && socket::is_quiet(socket.as_fd()) {
                    self.row(pool.row).reuses.add(1);
                    return Ok(self.lend(pool, socket, true));
                }
                pool.open.set(pool.open.get() - 1);
            }
            if fresh && let Some(_closed) = pool.idle.borrow_mut().pop_front() {
                // Room for the connection to be made, and the oldest of those that may be closed as well.
                pool.open.set(pool.open.get() - 1);
            }
            if pool.open.get() < limits.origin_connections_per_core {
                let waited = now.since(began);
                self.row(pool.row).pool_wait.record(waited.as_nanos() as u64);
                return self.connect(pool).await;
            }
            self.tally.hit(Limit::OriginConnections);
            if pool.queue.borrow().len() >= limits.origin_queue {
                self.tally.hit(Limit::OriginQueue);
                return Err(Failure::new(UpstreamError::Queue, 503, "too many requests wait for the origin"));
            }
            let place = Place { pool, task: self.ring.current() };
            let waited = patience.within(queue(&self.ring, &pool.queue)).await;
            drop(place);
            if waited == Err(TimedOut) {
                self.tally.hit(Limit::OriginQueueTimeout);
                return Err(Failure::new(UpstreamError::Queue, 503, "no connection to the origin came free in time"));
            }
        }
    }

    async fn connect(&self, pool: &Rc<Pool>) -> Result<Peer, Failure> {
        let row = self.row(pool.row);
        let failed = |result: ConnectResult, failure: Failure| {
            row.connects[result as usize].add(1);
            Err(failure)
        };
        let Some(address) = pool.origin.address() else {
            let why = format!("the address of {} is not known", pool.origin.name);
            return failed(ConnectResult::Error, Failure::new(UpstreamError::Connect, 502, why));
        };
        let socket = match socket::stream(address, self.config.congestion.as_deref()) {
            Ok(socket) => Rc::new(socket),
            Err(error) => {
                let why = format!("no socket for the origin: {}", crate::error::describe(&error));
                return failed(ConnectResult::Error, Failure::new(UpstreamError::Connect, 503, why));
            }
        };
        pool.open.set(pool.open.get() + 1);
        // Counted as open until here or in the peer's drop; a task that is dropped in between closes it too.
        let peer = self.lend(pool, Rc::clone(&socket), false);
        let connecting = Connecting::new(row);
        let address = Box::new(SockAddr::from(address));
        let patience = self.timers.patience(self.config.limits.origin_connect_timeout);
        let done = patience.within(self.ring.submit(Op::Connect { socket, address })).await;
        drop(connecting);
        let failure = match done.map(|done| done.result) {
            Ok(Ok(_)) => {
                row.connects[ConnectResult::Ok as usize].add(1);
                return Ok(peer);
            }
            Ok(Err(errno)) => {
                let result = match errno.0 {
                    libc::ECONNREFUSED => ConnectResult::Refused,
                    libc::ETIMEDOUT => ConnectResult::Timeout,
                    _ => ConnectResult::Error,
                };
                let status = if result == ConnectResult::Timeout { 504 } else { 502 };
                let why = format!("cannot connect to {}: {errno}", pool.origin.name);
                return failed(result, Failure::new(UpstreamError::Connect, status, why));
            }
            Err(TimedOut) => {
                self.tally.hit(Limit::OriginConnectTimeout);
                Failure::new(
                    UpstreamError::Timeout,
                    504,
                    format!("{} did not accept a connection in time", pool.origin.name),
                )
            }
        };
        failed(ConnectResult::Timeout, failure)
    }

    fn lend(&self, pool: &Rc<Pool>, socket: SharedFd, reused: bool) -> Peer {
        pool.busy.set(pool.busy.get() + 1);
        let row = self.row(pool.row);
        row.busy.set(pool.busy.get() as u64);
        row.idle.set(pool.idle.borrow().len() as u64);
        Peer {
            socket,
            pool: Rc::clone(pool),
            tally: Arc::clone(&self.tally),
            ring: Rc::clone(&self.ring),
            reused,
            keep: Cell::new(false),
            keep_most: self.config.limits.origin_idle_connections,
            timers: Rc::clone(&self.timers),
        }
    }

    /// Sends bytes to an origin, all of them.
    ///
    /// # Errors
    /// The origin closed, or took nothing in time.
    pub async fn send(&self, peer: &Peer, bytes: Vec<u8>) -> Result<(), Failure> {
        let want = bytes.len();
        let patience = self.timers.patience(self.config.limits.origin_progress_timeout);
        let op = Op::Send { socket: Rc::clone(&peer.socket), bytes, more: false };
        match patience.within(self.ring.submit(op)).await.map(|done| done.result) {
            Ok(Ok(n)) if n as usize == want => Ok(()),
            Ok(_) => Err(Failure::new(UpstreamError::Reset, 502, "the origin closed the connection")),
            Err(TimedOut) => {
                self.tally.hit(Limit::OriginProgressTimeout);
                Err(Failure::new(UpstreamError::Timeout, 504, "the origin does not take the request"))
            }
        }
    }

    /// Reads the head of the response to a request that cannot be sent again.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn respond_once(&self, peer: Peer, is_head: bool) -> Result<Response, Failure> {
        let pool = Rc::clone(&peer.pool);
        self.respond(peer, is_head).await.map_err(|(failure, _)| {
            self.failed(&pool, &failure);
            failure
        })
    }

    /// Reads the head of a response; an error says too whether any byte had come.
    async fn respond(&self, peer: Peer, is_head: bool) -> Result<Response, (Failure, bool)> {
        let limits = &self.config.limits;
        let head_limits = ResponseLimits { head_bytes: limits.origin_head_bytes, header_count: HEADERS_MOST };
        let pool = Rc::clone(&peer.pool);
        let row = self.row(pool.row);
        let began = self.timers.now();
        let patience = self.timers.patience(limits.origin_first_byte_timeout);
        let mut lease: Option<ArenaLease> = None;
        let mut filled = 0;
        loop {
            let seen = filled > 0;
            let failed =
                |kind, status, detail: Cow<'static, str>| Err((Failure { kind, status: Status(status), detail }, seen));
            if patience.within(readable(&self.ring, &peer.socket)).await == Err(TimedOut) {
                self.tally.hit(Limit::OriginFirstByteTimeout);
                return failed(UpstreamError::Timeout, 504, "the origin did not answer in time".into());
            }
            let mut buffer = match lease.take() {
                Some(lease) => lease,
                None => self.stock.lease().await,
            };
            let got = sys::receive(peer.socket.as_fd(), &mut buffer.bytes_mut(ARENA_BUFFER)[filled..]);
            match got {
                Ok(0) => {
                    let why = if seen {
                        "the origin closed within its response's head"
                    } else {
                        "the origin closed without an answer"
                    };
                    return failed(UpstreamError::Reset, 502, why.into());
                }
                Ok(n) => {
                    if filled == 0 {
                        row.ttfb.record(self.timers.now().since(began).as_nanos() as u64);
                    }
                    filled += n;
                }
                Err(error)
                    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) =>
                {
                    // Woken for nothing: the buffer goes home if it holds nothing.
                    lease = Some(buffer).filter(|_| filled > 0);
                    continue;
                }
                Err(_) => return failed(UpstreamError::Reset, 502, "the origin reset the connection".into()),
            }
            let parsed = response::parse(buffer.bytes(filled), is_head, &head_limits);
            match parsed {
                Parse::Partial if filled < limits.origin_head_bytes => lease = Some(buffer),
                Parse::Partial => {
                    self.tally.hit(Limit::OriginHeadBytes);
                    return failed(UpstreamError::Protocol, 502, "the origin's response head is too long".into());
                }
                Parse::Bad(reason) => {
                    if reason == response::BadResponse::TooLong {
                        self.tally.hit(Limit::OriginHeadBytes);
                    }
                    let why = format!("the origin's response is no HTTP: {reason}");
                    return Err((Failure::new(UpstreamError::Protocol, 502, why), true));
                }
                Parse::Done { head, used } => {
                    pool.origin.worked();
                    let class = match head.status / 100 {
                        1 => UpstreamCode::C1,
                        2 => UpstreamCode::C2,
                        3 => UpstreamCode::C3,
                        4 => UpstreamCode::C4,
                        _ => UpstreamCode::C5,
                    };
                    row.requests[class as usize].add(1);
                    let left = match head.body {
                        BodyLength::None | BodyLength::Exact(0) => Left::Done,
                        BodyLength::Exact(length) => Left::Exact(length),
                        BodyLength::Chunked => Left::Chunked(ChunkedBody::new()),
                        BodyLength::UntilClose => Left::UntilClose,
                    };
                    let mut body = Incoming {
                        keep: head.keep_alive() && !matches!(left, Left::UntilClose),
                        peer: Some(peer),
                        left,
                        lease: Some(buffer),
                        raw: used..filled,
                        apart: Vec::new(),
                        patience: self.timers.patience(limits.origin_progress_timeout),
                        stock: Rc::clone(&self.stock),
                        ring: Rc::clone(&self.ring),
                        config: Arc::clone(&self.config),
                        tally: Arc::clone(&self.tally),
                        row: pool.row,
                    };
                    body.settle();
                    return Ok(Response { head, body });
                }
            }
        }
    }

    /// Closes idle connections that were idle for too long; called about once a second.
    pub fn expire(&self) {
        let now = self.timers.now();
        let most = self.config.limits.origin_idle_timeout;
        for pool in self.routes.iter().flatten().flat_map(|route| &route.pools) {
            let mut idle = pool.idle.borrow_mut();
            while idle.front().is_some_and(|(_, since)| now.since(*since) >= most) {
                idle.pop_front();
                pool.open.set(pool.open.get() - 1);
            }
            self.row(pool.row).idle.set(idle.len() as u64);
        }
    }
}

/// Waits until a socket has bytes, or its end, to read.
pub async fn readable(ring: &Ring, socket: &SharedFd) {
    // An error wakes as well: the read that follows tells it.
    ring.submit(Op::Poll { fd: Rc::clone(socket), events: (libc::POLLIN | libc::POLLRDHUP) as u32 }).await;
}

/// Why a body did not come whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// It ended before its length.
    Short,
    /// The connection was reset.
    Reset,
    /// No byte came in time.
    Stalled,
    /// Its chunks are malformed.
    Malformed,
}

impl Incoming {
    /// Bytes still to come, where that is known.
    pub fn left(&self) -> Option<u64> {
        match self.left {
            Left::Exact(left) => Some(left),
            Left::Done => Some(0),
            Left::Chunked(_) | Left::UntilClose => None,
        }
    }

    /// Bytes of the body that are here already, undecoded.
    pub fn at_hand(&self) -> usize {
        self.raw.len() + self.apart.len()
    }

    /// Whether all of it was handed out.
    pub fn is_done(&self) -> bool {
        matches!(self.left, Left::Done)
    }

    /// The socket the rest comes from.
    pub fn socket(&self) -> Option<&SharedFd> {
        self.peer.as_ref().map(|peer| &peer.socket)
    }

    /// When the body is over, the connection goes home, or ends.
    fn go_home(&mut self) {
        if self.is_done()
            && let Some(peer) = self.peer.take()
        {
            // A byte too many would be taken for the next response.
            peer.keep.set(self.keep && self.raw.is_empty() && self.apart.is_empty());
            drop(peer);
        }
    }

    /// The buffer goes home, whatever it still holds: its owner is about to wait for a slow client.
    pub fn let_go(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.apart = lease.bytes(self.raw.end)[self.raw.start..].to_vec();
            self.raw = 0..0;
        }
    }

    /// The last piece is used: a buffer that holds nothing else goes home.
    pub fn used(&mut self) {
        if self.raw.is_empty() {
            self.lease = None;
        }
    }

    fn settle(&mut self) {
        self.go_home();
        if self.raw.is_empty() {
            self.lease = None;
        }
    }

    fn cut(&mut self, cut: Cut) -> Cut {
        let kind = match cut {
            Cut::Short => UpstreamError::ShortBody,
            Cut::Reset => UpstreamError::Reset,
            Cut::Stalled => UpstreamError::Timeout,
            Cut::Malformed => UpstreamError::Protocol,
        };
        if cut == Cut::Stalled {
            self.tally.hit(Limit::OriginProgressTimeout);
        }
        if let Some(row) = self.tally.origins.get(self.row) {
            row.errors[kind as usize].add(1);
        }
        self.peer = None;
        self.lease = None;
        self.raw = 0..0;
        self.apart = Vec::new();
        cut
    }

    fn count(&self, bytes: usize) {
        if let Some(row) = self.tally.origins.get(self.row) {
            row.received.add(bytes as u64);
        }
    }

    /// Waits for bytes, or the end of the stream.
    ///
    /// # Errors
    /// None came in time.
    pub async fn wait(&mut self) -> Result<(), Cut> {
        let Some(socket) = self.socket().map(Rc::clone) else { return Ok(()) };
        self.patience.renew(self.config.limits.origin_progress_timeout);
        match self.patience.within(readable(&self.ring, &socket)).await {
            Ok(()) => Ok(()),
            Err(TimedOut) => Err(self.cut(Cut::Stalled)),
        }
    }

    /// The next piece of the body, decoded, of at most `most` bytes; `None` at its end. See [`Incoming::bytes`].
    ///
    /// # Errors
    /// It will not come whole.
    pub async fn piece(&mut self, most: u64) -> Result<Option<Range<usize>>, Cut> {
        loop {
            if self.is_done() {
                self.settle();
                return Ok(None);
            }
            if !self.apart.is_empty() {
                let mut lease = self.stock.lease().await;
                let bytes = std::mem::take(&mut self.apart);
                lease.bytes_mut(bytes.len()).copy_from_slice(&bytes);
                self.raw = 0..bytes.len();
                self.lease = Some(lease);
            }
            if self.raw.is_empty() && !self.receive().await? {
                return match self.left {
                    Left::UntilClose => {
                        self.left = Left::Done;
                        self.settle();
                        Ok(None)
                    }
                    _ => Err(self.cut(Cut::Short)),
                };
            }
            let start = self.raw.start;
            let here = usize::try_from(most).unwrap_or(usize::MAX).min(self.raw.len());
            let piece = match &mut self.left {
                Left::Exact(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(here);
                    *left -= n as u64;
                    if *left == 0 {
                        self.left = Left::Done;
                    }
                    self.raw.start += n;
                    start..start + n
                }
                Left::UntilClose => {
                    self.raw.start += here;
                    start..start + here
                }
                Left::Chunked(chunks) => {
                    let received = self.lease.as_ref().map_or(&[][..], |lease| &lease.bytes(start + here)[start..]);
                    let Ok(fed) = chunks.feed(received) else { return Err(self.cut(Cut::Malformed)) };
                    if fed.done {
                        self.left = Left::Done;
                    }
                    self.raw.start += fed.consumed;
                    fed.data.map_or(start..start, |data| start + data.start..start + data.end)
                }
                Left::Done => continue,
            };
            self.go_home();
            if !piece.is_empty() {
                self.count(piece.len());
                return Ok(Some(piece));
            }
        }
    }

    /// Waits for bytes and receives them into a buffer; false at the end of the stream.
    async fn receive(&mut self) -> Result<bool, Cut> {
        self.lease = None;
        loop {
            let Some(peer) = &self.peer else { return Ok(false) };
            let mut lease = self.stock.lease().await;
            // A byte behind the body stays in the socket, where the pool will find it.
            let most = match self.left {
                Left::Exact(left) => usize::try_from(left).unwrap_or(usize::MAX).min(ARENA_BUFFER),
                _ => ARENA_BUFFER,
            };
            match sys::receive(peer.socket.as_fd(), lease.bytes_mut(most)) {
                Ok(n) => {
                    self.raw = 0..n;
                    self.lease = Some(lease);
                    return Ok(n > 0);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    drop(lease);
                    self.wait().await?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.cut(Cut::Reset)),
            }
        }
    }

    /// The bytes of a piece.
    pub fn bytes(&self, piece: &Range<usize>) -> &[u8] {
        self.lease.as_ref().map_or(&[], |lease| &lease.bytes(piece.end)[piece.start..])
    }

    /// Lends the buffer of the last piece to an operation; it must come back by [`Incoming::give`].
    pub fn take(&mut self) -> Option<ArenaLease> {
        self.lease.take()
    }

    /// Takes the buffer back.
    pub fn give(&mut self, lease: ArenaLease) {
        self.lease = Some(lease);
    }

    /// Counts bytes that left the socket by another way (a splice).
    pub fn spliced(&mut self, bytes: u64) {
        self.count(bytes as usize);
        if let Left::Exact(left) = &mut self.left {
            assert!(bytes <= *left, "a splice moved more than the body has");
            *left -= bytes;
            if *left == 0 {
                self.left = Left::Done;
                self.settle();
            }
        }
    }

    /// The stream ended or broke before the body did.
    pub fn broken(&mut self, cut: Cut) -> Cut {
        self.cut(cut)
    }
}
