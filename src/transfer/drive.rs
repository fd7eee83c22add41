//! Async: performs the pump's steps on the ring, one quantum at a time, each by the engine the plan names.
//!
//! What a client costs while it does not read: one armed poll. Pipes and arena buffers are borrowed for a quantum and
//! go back before the wait, so a thousand stalled clients hold none.

use super::estimate::Estimate;
use super::plan::{Facts, Plan, Reason, RelayFacts, plan};
use super::pump::{Pump, Step};
use crate::clock::{Clock, Nanos};
use crate::config::EngineChoice;
use crate::ring::buffers::{ARENA_BUFFER, Arena, ArenaLease};
use crate::ring::completion::{Errno, Outcome};
use crate::ring::op::{Op, SharedFd};
use crate::ring::pipes::PipePool;
use crate::ring::{Ring, TaskId};
use crate::shard::stock::{Stock, queue};
use crate::store::file::OpenFile;
use crate::sys::probe::Capabilities;
use crate::sys::{self, Residency};
use crate::telemetry::tally::{
    AbortReason, Engine, FallbackReason, Limit, ReadSource, SpliceResult, SpliceStage, Tally, ZcResult,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Zero-copy sends of one connection whose memory may wait for its notification: 4 buffers are 1 MiB.
const PINNED_MOST: u32 = 4;

/// One in so many arena buffers is never given to a zero-copy send.
const ARENA_RESERVE: usize = 4;

/// Bodies from here on are corked: two system calls are nothing beside their segments.
pub const CORK_FROM: u64 = 256 << 10;

/// Below this a call costs more than the time it gives back.
const PACE_LEAST: u32 = 128 << 10;

/// A connection as a transfer sees it.
#[derive(Debug)]
pub struct Flow {
    /// The socket, non-blocking.
    pub socket: SharedFd,
    /// For whom zero-copy reports are estimated: the listener.
    pub route: u16,
    /// When the socket last took a byte; the send timeout counts from here.
    pub progressed: Cell<Nanos>,
    /// Arena buffers that wait for a notification.
    pub pinned: Rc<Cell<u32>>,
    /// Body bytes the socket took so far.
    pub sent: Cell<u64>,
}

/// Why a body did not get out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abort(pub AbortReason);

/// What one body asks for.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The file.
    pub file: &'a OpenFile,
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Engine the operator asked for.
    pub choice: EngineChoice,
}

/// What all transfers of one core share.
#[derive(Debug)]
pub struct Mover {
    ring: Rc<Ring>,
    stock: Rc<Stock>,
    capabilities: Capabilities,
    turn_bytes: u32,
    turn_time: Duration,
    /// Bytes that one inline call moves in about a turn's time, learnt from the last ones.
    pace: Cell<u32>,
    estimates: RefCell<Vec<Estimate>>,
    bulk: RefCell<VecDeque<TaskId>>,
    tally: Arc<Tally>,
    clock: Clock,
}

/// What one engine's quantum came to.
enum Moved {
    /// `drained` of `filled` of what was asked.
    Through { filled: u32, drained: u32 },
    /// The socket was full.
    Full,
}

impl Mover {
    /// A mover for `routes` listeners; `turn` bounds what one transfer does at a time, in bytes and time.
    pub fn new(
        ring: Rc<Ring>,
        arena: Rc<Arena>,
        pipes: Rc<PipePool>,
        capabilities: Capabilities,
        turn: (usize, Duration),
        routes: usize,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> Self {
        Self {
            stock: Stock::new(Rc::clone(&ring), arena, pipes, Arc::clone(&tally)),
            ring,
            capabilities,
            turn_bytes: u32::try_from(turn.0).unwrap_or(u32::MAX),
            turn_time: turn.1,
            pace: Cell::new(u32::try_from(turn.0).unwrap_or(u32::MAX)),
            estimates: RefCell::new(vec![Estimate::default(); routes.max(1)]),
            bulk: RefCell::default(),
            tally,
            clock,
        }
    }

    /// What the core lends to its transfers, for others that need some of it.
    pub fn stock(&self) -> &Rc<Stock> {
        &self.stock
    }

    /// Lets everything else of this core have its turn.
    pub async fn give_way(&self) {
        queue(&self.ring, &self.bulk).await;
    }

    /// The next bulk transfer whose turn it is.
    pub fn next_bulk(&self) -> Option<TaskId> {
        self.bulk.borrow_mut().pop_front()
    }

    /// Whether any bulk transfer waits for its turn.
    pub fn has_bulk(&self) -> bool {
        !self.bulk.borrow().is_empty()
    }

    /// Credits the kernel's verdict on one zero-copy send.
    pub fn notified(&self, route: u16, bytes: u32, copied: Option<bool>, waited: Duration) {
        let result = match copied {
            Some(true) => ZcResult::Copied,
            Some(false) => ZcResult::ZeroCopied,
            None => ZcResult::Unreported,
        };
        self.tally.zc_sends[result as usize].add(1);
        self.tally.zc_bytes[result as usize].add(u64::from(bytes));
        self.tally.zc_pending_bytes.sub(u64::from(bytes));
        self.tally.zc_notify.record(waited.as_nanos() as u64);
        if let (Some(copied), Some(estimate)) = (copied, self.estimates.borrow_mut().get_mut(usize::from(route))) {
            estimate.report(copied, self.clock.now());
        }
    }

    /// Waits for room in the socket, holding nothing but the poll.
    pub async fn room(&self, flow: &Flow) -> Result<(), Abort> {
        self.tally.socket_waits.add(1);
        let poll = Op::Poll { fd: Rc::clone(&flow.socket), events: libc::POLLOUT as u32 };
        match self.ring.submit(poll).await.result {
            Ok(events) if events & (libc::POLLERR | libc::POLLHUP) as u32 != 0 => Err(Abort(AbortReason::ClientReset)),
            Ok(_) => Ok(()),
            Err(errno) => Err(lost(errno)),
        }
    }

    /// Sends a head; at once if the socket has room, else through the ring.
    pub async fn send_head(&self, flow: &Flow, head: Vec<u8>, more: bool) -> (Vec<u8>, Result<(), Abort>) {
        let mut head = head;
        let len = head.len() as u64;
        if more {
            // The body follows in this very turn, so the head need not wait for the next enter.
            match sys::send(flow.socket.as_fd(), &head, true) {
                Ok(n) if n == head.len() => {
                    self.took(flow, len);
                    return (head, Ok(()));
                }
                Ok(n) => {
                    head.drain(..n);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return (head, Err(lost_io(&error))),
            }
        }
        let want = head.len() as u32;
        let done = self.ring.submit(Op::Send { socket: Rc::clone(&flow.socket), bytes: head, more }).await;
        let head = match done.op {
            Some(Op::Send { bytes, .. }) => bytes,
            _ => Vec::new(),
        };
        let result = match done.result {
            Ok(n) if n == want => {
                self.took(flow, len);
                Ok(())
            }
            Ok(n) => {
                self.took(flow, len - u64::from(want - n));
                Err(Abort(AbortReason::ClientReset))
            }
            Err(errno) => Err(lost(errno)),
        };
        (head, result)
    }

    fn took(&self, flow: &Flow, head_bytes: u64) {
        self.tally.head_bytes.add(head_bytes);
        flow.progressed.set(self.clock.now());
    }

    /// Sends a file range and returns when the socket has taken every byte, counted as it does.
    ///
    /// On an abort the response is incomplete and the connection must end.
    pub async fn send_body(&self, flow: &Flow, order: Order<'_>) -> Result<(), Abort> {
        // A forced zero-copy send waits for notifications, which a corked segment would hold back for 200 ms.
        let corked = order.end - order.start >= CORK_FROM && order.choice != EngineChoice::SendZc;
        if corked {
            // A socket that fills up takes odd amounts; each would end in a short segment of its own.
            sys::socket::cork(flow.socket.as_fd(), true);
        }
        let sent = self.move_body(flow, order).await;
        if corked {
            sys::socket::cork(flow.socket.as_fd(), false);
        }
        sent
    }

    /// Sends a part of a body whose rest follows: as [`Mover::send_body`], corked or not by the caller.
    pub async fn send_part(&self, flow: &Flow, order: Order<'_>) -> Result<(), Abort> {
        self.move_body(flow, order).await
    }

    async fn move_body(&self, flow: &Flow, order: Order<'_>) -> Result<(), Abort> {
        let file = order.file;
        let mut pump = Pump::new(order.start..order.end, self.turn_bytes);
        let mut last: Option<Engine> = None;
        let mut quanta = 0u32;
        loop {
            let (offset, len) = match pump.next() {
                Step::Done => return Ok(()),
                Step::Wait => {
                    self.room(flow).await?;
                    pump.room();
                    // Woken by its poll, a transfer still queues behind the small requests of this turn.
                    self.give_way().await;
                    continue;
                }
                Step::Move { offset, len } => (offset, len),
            };
            if quanta > 0 && !file.is_unchanged() {
                // A clean end would vouch for a mixture of two files: better an end the client can see, and soon. One
                // fstat(2) is nothing beside a quantum.
                return Err(Abort(AbortReason::FileChanged));
            }
            let facts = self.facts(flow, &order, &pump, offset, len);
            let Plan { mut engine, mut reason } = plan(&facts);
            if engine == Engine::SendZc && self.stock.arena().idle() < self.stock.arena().count() / ARENA_RESERVE {
                // Clients that acknowledge nothing hold what they were sent without a copy. The rest of the arena is
                // kept for sends that give their buffer back at once, so that the others go on.
                (engine, reason) = (Engine::Send, Reason::Fallback(FallbackReason::NoArena));
                self.tally.hit(Limit::Arena);
            }
            self.count_switch(last, engine, reason);
            last = Some(engine);
            let began = self.clock.now();
            let (engine, asked, moved) = match engine {
                Engine::Sendfile => {
                    let len = len.min(self.pace.get());
                    let moved = self.sendfile(flow, file, offset, len)?;
                    self.keep_pace(len, &moved, self.clock.now().since(began));
                    (engine, len, moved)
                }
                Engine::Splice => {
                    let (asked, moved) = self.splice(flow, file, offset, len, quanta > 0).await?;
                    (engine, asked, moved)
                }
                Engine::Send | Engine::SendZc => {
                    let len = len.min(ARENA_BUFFER as u32);
                    let (engine, moved) = self.copy(flow, file, offset, len, engine).await?;
                    (engine, len, moved)
                }
            };
            quanta = quanta.saturating_add(1);
            self.count_quantum(engine, asked, &moved, began);
            match moved {
                Moved::Full => pump.full(),
                Moved::Through { filled, drained } => {
                    pump.through(asked, filled, drained);
                    self.tally.body_bytes[engine as usize].add(u64::from(drained));
                    flow.sent.set(flow.sent.get() + u64::from(drained));
                    if drained > 0 {
                        flow.progressed.set(self.clock.now());
                    }
                }
            }
            if matches!(pump.next(), Step::Move { .. }) {
                if engine == Engine::Splice && !sys::socket::has_room(flow.socket.as_fd()) {
                    // Known full: the next chain would only hold its pipe for a slow client.
                    pump.full();
                    continue;
                }
                self.tally.hit(Limit::TurnBytes);
                self.give_way().await;
            }
        }
    }

    fn count_quantum(&self, engine: Engine, asked: u32, moved: &Moved, began: Nanos) {
        let at = engine as usize;
        self.tally.quanta[at].add(1);
        self.tally.quantum_ns[at].add(self.clock.now().since(began).as_nanos() as u64);
        match moved {
            Moved::Full => self.tally.quanta_full[at].add(1),
            Moved::Through { drained, .. } if *drained < asked => self.tally.quanta_short[at].add(1),
            Moved::Through { .. } => {}
        }
    }

    /// What a relay's plan reads, for a body that comes from a socket.
    pub fn relay_facts(&self, flow: &Flow, choice: EngineChoice, left: Option<u64>) -> RelayFacts {
        let now = self.clock.now();
        let copies =
            self.estimates.borrow_mut().get_mut(usize::from(flow.route)).is_some_and(|route| route.copies(now));
        RelayFacts {
            choice,
            left,
            pipe: self.capabilities.pipe_bytes >= 64 << 10 && self.stock.pipes().can_lease(),
            send_zc: self.capabilities.send_zc,
            route_copies: copies,
            notify_slow: flow.pinned.get() >= PINNED_MOST,
        }
    }

    /// Sends `len` bytes of a buffer from `from` without copying them; what is not taken is the caller's to send again.
    pub async fn send_without_copy(&self, flow: &Flow, lease: ArenaLease, from: u32, len: u32) -> Outcome {
        self.send_zc(flow, lease, from, len).await
    }

    /// Bytes one transfer moves in its turn.
    pub fn turn_bytes(&self) -> u32 {
        self.turn_bytes
    }

    fn facts(&self, flow: &Flow, order: &Order<'_>, pump: &Pump, offset: u64, len: u32) -> Facts {
        let auto = order.choice == EngineChoice::Auto;
        let now = self.clock.now();
        let residency = if auto { order.file.residency(offset, u64::from(len), now) } else { Residency::Unknown };
        let wants_pipe = order.choice == EngineChoice::Splice || auto && residency == Residency::Unknown;
        let copies =
            || self.estimates.borrow_mut().get_mut(usize::from(flow.route)).is_some_and(|route| route.copies(now));
        Facts {
            choice: order.choice,
            left: pump.left(),
            residency,
            send_zc: self.capabilities.send_zc,
            route_copies: auto && residency == Residency::Cold && copies(),
            notify_slow: flow.pinned.get() >= PINNED_MOST,
            splice: self.capabilities.splice,
            pipe: wants_pipe && self.stock.pipes().can_lease(),
        }
    }

    /// Counts a change of engine within a body.
    pub fn count_switch(&self, last: Option<Engine>, engine: Engine, reason: Reason) {
        let Some(last) = last.filter(|last| *last != engine) else { return };
        let reason = match reason {
            Reason::Fallback(reason) => reason,
            Reason::Warm => FallbackReason::Warm,
            _ => FallbackReason::Cold,
        };
        self.tally.fallbacks[last as usize][engine as usize][reason as usize].add(1);
    }

    /// An inline call that took longer than a turn may moves less next time, on this core whoever's it is: memory that is
    /// slow today must not make small requests wait.
    fn keep_pace(&self, asked: u32, moved: &Moved, took: Duration) {
        let whole = matches!(moved, Moved::Through { drained, .. } if *drained == asked);
        if took > self.turn_time {
            self.pace.set((asked / 2).max(PACE_LEAST).min(self.turn_bytes));
        } else if whole && took < self.turn_time / 3 {
            self.pace.set(self.pace.get().saturating_mul(2).min(self.turn_bytes));
        }
    }

    /// Engine `sendfile`: inline on the ring thread. For pages known to be warm it cannot wait.
    fn sendfile(&self, flow: &Flow, file: &OpenFile, offset: u64, len: u32) -> Result<Moved, Abort> {
        loop {
            return match sys::sendfile(flow.socket.as_fd(), file.fd().as_fd(), offset, len as usize) {
                Ok(0) => Err(Abort(AbortReason::FileShrank)),
                // On a short write sendfile gives its private pipe up itself; what it filled does not matter.
                Ok(n) => Ok(Moved::Through { filled: len, drained: n as u32 }),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Moved::Full),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => Err(lost_io(&error)),
            };
        }
    }

    /// Engine `splice`: file to pipe to socket on the ring, one chain a quantum.
    async fn splice(
        &self,
        flow: &Flow,
        file: &OpenFile,
        offset: u64,
        len: u32,
        poll: bool,
    ) -> Result<(u32, Moved), Abort> {
        let pipe = self.stock.pipe().await;
        // Slots hold pages: an unaligned offset needs one more, so ask for one page less than the pipe has.
        let most = pipe.size() - if offset.is_multiple_of(4096) { 0 } else { 4096 };
        let len = len.min(u32::try_from(most).unwrap_or(u32::MAX));
        let op = Op::Chain { socket: Rc::clone(&flow.socket), file: Rc::clone(file.fd()), pipe, offset, len, poll };
        let done = self.ring.submit(op).await;
        let count = |stage: SpliceStage, result| self.tally.splices[stage as usize][result as usize].add(1);
        let filled = match done.filled {
            None => len,
            Some(Ok(n)) => n,
            Some(Err(errno)) if errno.is_canceled() => 0,
            Some(Err(_)) => return Err(Abort(AbortReason::ReadError)),
        };
        count(SpliceStage::FileToPipe, if filled == len { SpliceResult::Full } else { SpliceResult::Short });
        match done.result {
            Ok(n) => {
                let filled = filled.max(n);
                count(SpliceStage::PipeToSocket, if n == filled { SpliceResult::Full } else { SpliceResult::Short });
                Ok((len, Moved::Through { filled, drained: n }))
            }
            // An empty pipe says EAGAIN too: nothing came from the file because it ends here.
            Err(errno) if errno.is_again() && done.filled == Some(Ok(0)) => Err(Abort(AbortReason::FileShrank)),
            Err(errno) if errno.is_again() => {
                count(SpliceStage::PipeToSocket, SpliceResult::Again);
                Ok((len, Moved::Full))
            }
            Err(errno) => Err(lost(errno)),
        }
        // The pipe went with the operation and comes back empty, whatever it still held (its drop sees to that).
    }

    /// Engines `send` and `send_zc`: read into an arena buffer, then send it by copy or in place.
    async fn copy(
        &self,
        flow: &Flow,
        file: &OpenFile,
        offset: u64,
        len: u32,
        engine: Engine,
    ) -> Result<(Engine, Moved), Abort> {
        // Forced zero-copy waits here for its own oldest notification; `auto` never comes here with a full hand.
        while engine == Engine::SendZc && flow.pinned.get() >= PINNED_MOST {
            self.stock.starve().await;
        }
        let (lease, filled) = self.read(file, offset, len).await?;
        if filled == 0 {
            return Err(Abort(AbortReason::FileShrank));
        }
        let result = match engine {
            Engine::SendZc => self.send_zc(flow, lease, 0, filled).await,
            _ => self.send_lease(flow, lease, filled).await,
        };
        match result {
            Ok(drained) => Ok((engine, Moved::Through { filled, drained })),
            Err(errno) if errno.is_again() => Ok((engine, Moved::Full)),
            // RLIMIT_MEMLOCK allows no more pages to be pinned now: the same bytes by copy.
            Err(Errno(libc::ENOMEM | libc::ENOBUFS)) if engine == Engine::SendZc => {
                self.tally.fallbacks[Engine::SendZc as usize][Engine::Send as usize][FallbackReason::NoArena as usize]
                    .add(1);
                let (lease, filled) = self.read(file, offset, len).await?;
                if filled == 0 {
                    return Err(Abort(AbortReason::FileShrank));
                }
                match self.send_lease(flow, lease, filled).await {
                    Ok(drained) => Ok((Engine::Send, Moved::Through { filled, drained })),
                    Err(errno) if errno.is_again() => Ok((Engine::Send, Moved::Full)),
                    Err(errno) => Err(lost(errno)),
                }
            }
            Err(errno) => Err(lost(errno)),
        }
    }

    async fn send_zc(&self, flow: &Flow, lease: ArenaLease, from: u32, len: u32) -> Outcome {
        let lease = lease.pinned_by(&flow.pinned);
        let (socket, route, reports) = (Rc::clone(&flow.socket), flow.route, self.capabilities.zc_reports);
        // The notification takes off what was sent, the result what was not; in either order this never dips below
        // zero.
        self.tally.zc_pending_bytes.add(u64::from(len));
        let done = self.ring.submit(Op::SendZc { socket, lease, len, from, route, reports }).await;
        self.tally.zc_pending_bytes.sub(u64::from(len - done.result.unwrap_or(0)));
        done.result
    }

    async fn send_lease(&self, flow: &Flow, lease: ArenaLease, len: u32) -> Outcome {
        self.ring.submit(Op::SendLease { socket: Rc::clone(&flow.socket), lease, len, from: 0 }).await.result
    }

    /// Reads up to `len` bytes: from the page cache at once, or from storage through the ring.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: u32) -> Result<(ArenaLease, u32), Abort> {
        let mut lease = self.stock.lease().await;
        let len = len.min(ARENA_BUFFER as u32);
        let began = self.clock.now();
        let (source, outcome) = match sys::read_cached(file.fd().as_fd(), offset, lease.bytes_mut(len as usize)) {
            Ok(n) if n > 0 => (ReadSource::PageCache, Ok(n as u32)),
            // EAGAIN: cold. EOPNOTSUPP: this file system cannot say, so it may be. Zero is no proof of the end either
            // (preadv2(2), BUGS: RWF_NOWAIT may return 0 before it).
            _ => {
                let op = Op::ReadFixed { file: Rc::clone(file.fd()), lease, len, offset };
                let done = self.ring.submit(op).await;
                match done.op {
                    Some(Op::ReadFixed { lease: back, .. }) => lease = back,
                    _ => return Err(Abort(AbortReason::ReadError)),
                }
                (ReadSource::Storage, done.result)
            }
        };
        self.count_read(source, outcome, began);
        match outcome {
            Ok(n) => Ok((lease, n)),
            Err(_) => Err(Abort(AbortReason::ReadError)),
        }
    }

    fn count_read(&self, source: ReadSource, outcome: Outcome, began: Nanos) {
        let took = self.clock.now().since(began).as_nanos() as u64;
        self.tally.file_reads[source as usize].add(1);
        self.tally.file_read_bytes[source as usize].add(u64::from(outcome.unwrap_or(0)));
        match source {
            ReadSource::PageCache => self.tally.file_read_page_cache.record(took),
            ReadSource::Storage => self.tally.file_read_storage.record(took),
        }
    }
}

/// What a failed send means for the response.
pub fn lost(errno: Errno) -> Abort {
    Abort(if errno.is_gone() || errno.is_canceled() { AbortReason::ClientReset } else { AbortReason::SendError })
}

/// The same for a system call's error.
pub fn lost_io(error: &std::io::Error) -> Abort {
    match error.raw_os_error() {
        // sendfile(2) reports the file's trouble and the socket's by the same way.
        Some(libc::EIO) => Abort(AbortReason::ReadError),
        Some(errno) => lost(Errno(errno)),
        None => Abort(AbortReason::SendError),
    }
}
