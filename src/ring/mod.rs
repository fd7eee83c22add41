//! Unsafe floor, part 2: one io_uring per core, and who owns what the kernel may touch.
//!
//! Everything above this folder asks with an [`op::Op`] and is answered with an [`Outcome`]; SQEs and CQEs exist only
//! here. The rules every `SAFETY` comment of the folder cites:
//!
//! - **R1 The slot owns it.** Descriptors, buffers, paths and message headers live in the slot's `Op` until the last
//!   CQE; not in the future, not in the caller.
//! - **R2 The table never moves.** Its capacity is fixed at boot. Full means *wait*, not grow: stable addresses
//!   without a box per operation, bounded memory, and backpressure.
//! - **R3 Dropping a future frees nothing.** It orphans the slot and stages a cancel that cannot be lost; when the CQE
//!   comes, the `Op` disposes of its own result (an accepted or opened descriptor is closed).
//! - **R4 Read flags before sign.** Token, generation, `NOTIF`, `MORE`, then the sign of `res`: a notification's `res`
//!   may have the high bit set. A slot is free only when `MORE` is clear.
//! - **R5 One direction, one send.** At most one stream send (or pipe-to-socket splice) is in flight per socket.
//! - **R6 Drain, then close, then free.** Cancel everything, reap until the table is empty, drop the ring, free the
//!   arenas. If a deadline passes, leak the memory the kernel may still write, and say so.
//!
//! May import: `sys` and the plain counters of `telemetry::tally`.

#![allow(unsafe_code)]

pub mod buffers;
pub mod completion;
pub mod kernel;
pub mod op;
pub mod pipes;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod slot;
pub mod submitted;
pub mod token;

#[cfg(test)]
mod tests;

use crate::clock::{Clock, Nanos};
use crate::telemetry::tally::{RingErrno, Tally};
use buffers::{RecvLease, RecvPool};
use completion::{Cqe, Errno, Outcome};
use op::Op;
use slot::{Effect, Owner, Table};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use submitted::Submitted;
use token::Token;

/// A task of the shard's executor, as the ring knows it: a number to hand back when something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct TaskId(pub u32);

/// What a multishot operation or a zero-copy notification reported; queued by the reap, handled after it.
#[derive(Debug)]
pub enum Event {
    /// One completion of a multishot operation.
    Stream {
        /// What the operation was started with.
        tag: u64,
        /// The result: bytes received, a descriptor, poll events.
        result: Outcome,
        /// The buffer the kernel chose, on a receive.
        buffer: Option<RecvLease>,
        /// False: the operation has ended and must be started again if wanted.
        more: bool,
    },
    /// The kernel let go of a zero-copy send's memory.
    Notified {
        /// The route the send was made for.
        route: u16,
        /// The task that sent it, to wake if it waits for its memory.
        task: Option<TaskId>,
        /// Bytes the send moved.
        bytes: u32,
        /// `Some(true)`: at least part was copied; `Some(false)`: none was; `None`: the kernel cannot tell.
        copied: Option<bool>,
        /// Send result to notification.
        waited: Duration,
    },
}

/// Who performs the operations.
#[derive(Debug)]
enum Backend {
    Kernel(Box<kernel::Kernel>),
    #[cfg(any(test, feature = "sim"))]
    Sim(Box<sim::Sim>),
}

/// One core's ring: submit, turn, drain. Single-threaded; every method may be called from any task of its thread.
#[derive(Debug)]
pub struct Ring {
    table: RefCell<Table>,
    backend: RefCell<Backend>,
    ready: RefCell<VecDeque<TaskId>>,
    events: RefCell<VecDeque<Event>>,
    waiters: RefCell<VecDeque<TaskId>>,
    current: Cell<TaskId>,
    recv_pool: Option<Rc<RecvPool>>,
    tally: Arc<Tally>,
    clock: Clock,
}

impl Ring {
    /// A ring over the real kernel with `ops` slots; `recv_pool` serves multishot receives.
    pub fn new(
        kernel: kernel::Kernel,
        ops: usize,
        recv_pool: Option<Rc<RecvPool>>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> Self {
        Self::over(Backend::Kernel(Box::new(kernel)), ops, recv_pool, tally, clock)
    }

    /// A ring over the simulated kernel.
    #[cfg(any(test, feature = "sim"))]
    pub fn simulated(
        sim: sim::Sim,
        ops: usize,
        recv_pool: Option<Rc<RecvPool>>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> Self {
        Self::over(Backend::Sim(Box::new(sim)), ops, recv_pool, tally, clock)
    }

    fn over(backend: Backend, ops: usize, recv_pool: Option<Rc<RecvPool>>, tally: Arc<Tally>, clock: Clock) -> Self {
        Self {
            table: RefCell::new(Table::new(ops)),
            backend: RefCell::new(backend),
            ready: RefCell::new(VecDeque::new()),
            events: RefCell::new(VecDeque::new()),
            waiters: RefCell::new(VecDeque::new()),
            current: Cell::new(TaskId::default()),
            recv_pool,
            tally,
            clock,
        }
    }

    /// The simulated world behind a simulated ring.
    #[cfg(any(test, feature = "sim"))]
    pub fn with_sim<T>(&self, look: impl FnOnce(&mut sim::Sim) -> T) -> T {
        match &mut *self.backend.borrow_mut() {
            Backend::Sim(sim) => look(sim),
            Backend::Kernel(_) => panic!("not a simulated ring"),
        }
    }

    /// Starts `op` for the current task; await the result, or drop it and the slot is orphaned (R3).
    #[must_use = "an operation starts when its future is first polled"]
    pub fn submit(&self, op: Op) -> Submitted<'_> {
        Submitted::new(self, op)
    }

    /// Starts a multishot operation whose completions arrive as [`Event::Stream`] with `tag`; gives the operation back
    /// if the table is full.
    pub fn stream(&self, op: Op, tag: u64) -> Result<Token, Op> {
        self.start(op, Owner::Stream(tag))
    }

    fn start(&self, op: Op, owner: Owner) -> Result<Token, Op> {
        let token = self.table.borrow_mut().insert(op, owner)?;
        let table = self.table.borrow();
        match &mut *self.backend.borrow_mut() {
            Backend::Kernel(kernel) => kernel.stage(token, table.op(token)),
            #[cfg(any(test, feature = "sim"))]
            Backend::Sim(sim) => sim.stage(token, table.op(token)),
        }
        Ok(token)
    }

    /// Cancels what `token` started; its last completion still comes. A token that has ended is left alone.
    pub fn cancel(&self, token: Token) {
        if self.table.borrow().is_live(token) {
            self.stage_cancel(token);
        }
    }

    fn stage_cancel(&self, token: Token) {
        let chain = matches!(self.table.borrow().op(token), Op::Chain { .. });
        match &mut *self.backend.borrow_mut() {
            Backend::Kernel(kernel) => kernel.stage_cancel(token, chain),
            #[cfg(any(test, feature = "sim"))]
            Backend::Sim(sim) => sim.stage_cancel(token),
        }
    }

    /// Submits what is staged and lets completions arrive: at once (`None`), or waiting up to a time for one.
    pub fn enter(&self, wait: Option<Duration>) -> io::Result<()> {
        let submitted = match &mut *self.backend.borrow_mut() {
            Backend::Kernel(kernel) => kernel.enter(wait)?,
            #[cfg(any(test, feature = "sim"))]
            Backend::Sim(sim) => sim.enter(wait)?,
        };
        self.tally.ring_sqes.add(submitted.sqes);
        self.tally.ring_sq_full.add(submitted.sq_full);
        let enters = if wait.is_some() { &self.tally.ring_enters_wait } else { &self.tally.ring_enters_submit };
        enters.add(submitted.enters);
        Ok(())
    }

    /// Takes every completion that has arrived: results go to their slots, tasks to the ready queue, multishot results
    /// to the event queue. Nothing is acted on in here. Returns how many there were.
    pub fn reap(&self) -> usize {
        let now = self.clock.now();
        let mut count = 0;
        let mut table = self.table.borrow_mut();
        let mut take = |cqe: Cqe| {
            count += 1;
            self.complete(&mut table, cqe, now);
        };
        match &mut *self.backend.borrow_mut() {
            Backend::Kernel(kernel) => self.tally.ring_overflows.set(kernel.reap(&mut take)),
            #[cfg(any(test, feature = "sim"))]
            Backend::Sim(sim) => sim.reap(&mut take),
        }
        self.tally.ring_inflight.set(table.len() as u64);
        if count > 0 {
            self.tally.ring_cqes.add(count as u64);
            self.tally.ring_batch.record(count as u64);
        }
        count
    }

    fn complete(&self, table: &mut Table, cqe: Cqe, now: Nanos) {
        // The kernel's buffer choice is read from every completion, error or not, or the buffer would be lost.
        let buffer = match (cqe.buffer(), &self.recv_pool) {
            (Some(id), Some(pool)) => Some(pool.lease(id, cqe.res.max(0) as u32)),
            _ => None,
        };
        if let Err(errno) = cqe.outcome()
            && !cqe.is_notification()
            && !cqe.is_cancel()
        {
            self.tally.ring_errors[errno.label() as usize].add(1);
        }
        match table.complete(&cqe, buffer, now) {
            Effect::Nothing => {}
            Effect::Wake(task) => self.ready.borrow_mut().push_back(task),
            Effect::Event(event) => self.events.borrow_mut().push_back(event),
            Effect::WakeAnd(task, event) => {
                self.ready.borrow_mut().push_back(task);
                self.events.borrow_mut().push_back(event);
            }
        }
        self.wake_waiter(table);
    }

    /// A slot may be free: whoever waits longest for one tries again (R2).
    fn wake_waiter(&self, table: &Table) {
        if !table.is_full()
            && let Some(task) = self.waiters.borrow_mut().pop_front()
        {
            self.ready.borrow_mut().push_back(task);
        }
    }

    /// The next event of the last reap.
    pub fn next_event(&self) -> Option<Event> {
        self.events.borrow_mut().pop_front()
    }

    /// The next task with something to do.
    pub fn next_ready(&self) -> Option<TaskId> {
        self.ready.borrow_mut().pop_front()
    }

    /// Whether any task has something to do.
    pub fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Puts a task on the ready queue.
    pub fn wake(&self, task: TaskId) {
        self.ready.borrow_mut().push_back(task);
    }

    /// Says which task is polled now, so that operations it starts wake it.
    pub fn set_current(&self, task: TaskId) {
        self.current.set(task);
    }

    /// The task that is polled now.
    pub fn current(&self) -> TaskId {
        self.current.get()
    }

    /// Operations in the table.
    pub fn in_flight(&self) -> usize {
        self.table.borrow().len()
    }

    /// R6: cancels everything and reaps until the table is empty or `deadline` has passed; true if it is empty.
    pub fn drain(&self, deadline: Duration) -> bool {
        let end = self.clock.now().after(deadline);
        let tokens: Vec<Token> = self.table.borrow_mut().orphan_all();
        for token in tokens {
            self.stage_cancel(token);
        }
        loop {
            self.reap();
            self.events.borrow_mut().clear();
            self.ready.borrow_mut().clear();
            if self.in_flight() == 0 {
                return true;
            }
            if self.clock.now() >= end || self.enter(Some(Duration::from_millis(20))).is_err() {
                return false;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // R6: what could not be drained is leaked by the table (see Table::leak), never freed under the kernel.
        if !self.drain(Duration::from_millis(100)) {
            let left = self.table.borrow_mut().leak();
            tracing::warn!(operations = left, "the kernel still holds memory of these operations; leaking it");
        }
    }
}

/// The label under which an errno is counted.
impl Errno {
    fn label(self) -> RingErrno {
        match self.0 {
            libc::EAGAIN => RingErrno::Again,
            libc::ECANCELED => RingErrno::Canceled,
            libc::EPIPE => RingErrno::Pipe,
            libc::ECONNRESET => RingErrno::ConnReset,
            libc::ENOBUFS => RingErrno::NoBufs,
            libc::ETIME => RingErrno::Time,
            libc::ENOMEM => RingErrno::NoMem,
            libc::EMFILE => RingErrno::Mfile,
            libc::ENOENT => RingErrno::Noent,
            libc::EXDEV => RingErrno::Xdev,
            libc::EINVAL => RingErrno::Inval,
            libc::EALREADY => RingErrno::Already,
            _ => RingErrno::Other,
        }
    }
}
