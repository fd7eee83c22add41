//! One core's thread: pin, set the ring up, then turn until told to stop.
//!
//! A turn: reap, handle events (accepts, received bytes, notifications, orders), run what is ready, give bulk transfers
//! a bounded time, fire timers, enter the ring once. Nothing is acted on inside the reap.

use super::connection::{self, Conn, TAG_CONN};
use super::core::{Core, Job, Shared};
use crate::clock::{Clock, Nanos};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::ring::buffers::RecvPool;
use crate::ring::kernel::Kernel;
use crate::ring::op::{Op, SharedFd};
use crate::ring::pipes::PipePool;
use crate::ring::token::Token;
use crate::ring::{Event, Ring, TaskId};
use crate::shard::ShardPublic;
use crate::shard::exec::Exec;
use crate::shard::mailbox::Order;
use crate::shard::patience::TASK_KEY;
use crate::shard::setup::{RingFeatures, TIGHT, patiently, register_arena};
use crate::store::{Root, Store};
use crate::sys::probe::{self, Capabilities};
use crate::sys::{self, affinity, socket};
use crate::telemetry::tally::{Limit, RejectReason};
use crate::transfer::drive::Mover;
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

const TAG_ACCEPT: u64 = 1 << 56;
const TAG_MAILBOX: u64 = 3 << 56;
/// After EMFILE or ENOBUFS on accept: try again then, do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A wait never lasts longer, so that an idle core still shows that it turns.
const WAIT_MOST: Duration = Duration::from_secs(1);
/// Every connection needs a receive and may need one more operation; the rest is for opens, accepts and cancels.
const OPS_SPARE: usize = 1024;

/// Idle connections to origins are looked through so often.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// What a worker tells the thread that started it.
#[derive(Debug)]
pub enum Started {
    /// Every listener accepts.
    Ready(RingFeatures),
    /// It could not start, or had to stop.
    Failed(Error),
    /// It has stopped as it was told.
    Ended,
}

/// Everything one core's thread starts from.
#[derive(Debug)]
pub struct Worker {
    /// The configuration.
    pub config: Arc<Config>,
    /// What was probed.
    pub capabilities: Capabilities,
    /// What the control thread sees of this core.
    pub public: Arc<ShardPublic>,
    /// This core's listeners, in the order of `config.listen`.
    pub listeners: Vec<OwnedFd>,
    /// One directory per route, shared by all cores.
    pub roots: Vec<Arc<OwnedFd>>,
    /// What all cores share.
    pub shared: Shared,
    /// The cache's directory, if there is one.
    pub cache_root: Option<Arc<OwnedFd>>,
    /// The process's clock.
    pub clock: Clock,
    /// Bytes this core may register; `None` is any number.
    pub lockable: Option<usize>,
}

impl Worker {
    /// Runs until an order to stop, or until a drain is done.
    pub fn run(self, tell: &Sender<Started>) -> Result<()> {
        let core = self.public.core;
        affinity::pin(self.public.cpu).map_err(|error| {
            Error::os(format!("pin core {core} to CPU {}", self.public.cpu), &error)
                .remedy("name CPUs of this process's affinity mask in --cores")
        })?;
        self.public.tid.store(sys::gettid(), Ordering::Release);
        let limits = self.config.limits.clone();
        let tally = Arc::clone(&self.public.tally);
        let tight = self.lockable.is_some_and(|bytes| bytes < TIGHT);
        let kernel = patiently(|| Kernel::new(tight)).map_err(|error| {
            Error::os(format!("set up the io_uring of core {core}"), &error)
                .kind_is(Kind::NotPermitted)
                .remedy(probe::why_denied(&error))
        })?;
        let mut features =
            RingFeatures { setup: kernel.flags(), arena_bytes: 0, no_iowait: kernel.no_iowait(), warnings: Vec::new() };
        if let Err(error) = kernel.bound_workers(self.public.cpu, limits.workers_bounded, limits.workers_unbounded) {
            features
                .warnings
                .push(("workers", format!("io-wq workers could not be bounded: {}", crate::error::describe(&error))));
        }
        // One page of ring entries.
        let recv_buffers = if tight { limits.recv_buffers_per_core.min(256) } else { limits.recv_buffers_per_core };
        let recv = RecvPool::new(recv_buffers, Arc::clone(&tally))
            .map_err(|error| Error::os("map receive buffers", &error))?;
        patiently(|| kernel.register_recv_pool(&recv))
            .map_err(|error| Error::os("register receive buffers", &error).remedy(probe::why_denied(&error)))?;
        let arena = register_arena(&kernel, limits.arena_bytes_per_core, self.lockable, &tally, &mut features)?;
        let pipes = PipePool::new(limits.pipes_per_core, limits.pipe_bytes, Arc::clone(&tally))
            .map_err(|error| Error::os("open /dev/null", &error))?;
        if self.capabilities.pipe_bytes < limits.pipe_bytes {
            features.warnings.push((
                "pipes",
                format!(
                    "pipes are {} KiB instead of {} KiB: raise fs.pipe-max-size or fs.pipe-user-pages-soft",
                    self.capabilities.pipe_bytes >> 10,
                    limits.pipe_bytes >> 10
                ),
            ));
        }
        let ops = match limits.ops_per_core {
            0 => 2 * limits.connections_per_core + OPS_SPARE,
            ops => ops,
        };
        let ring = Rc::new(Ring::new(kernel, ops, Some(recv), Arc::clone(&tally), self.clock));
        let roots = self
            .roots
            .iter()
            .zip(&self.config.routes)
            .map(|(fd, route)| {
                let fd = sys::duplicate(fd.as_fd()).map_err(|error| Error::os("duplicate a root", &error))?;
                Ok(Root {
                    fd: Rc::new(fd),
                    index: route.index.clone(),
                    revalidate: route.revalidate,
                    default_type: route.default_type.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let store = Store::new(
            roots,
            limits.open_files_per_core,
            limits.content_cache_bytes,
            limits.content_object_bytes,
            Arc::clone(&tally),
        );
        let mover = Mover::new(
            Rc::clone(&ring),
            arena,
            pipes,
            self.capabilities.clone(),
            (limits.turn_bytes, limits.turn_time),
            self.listeners.len(),
            tally,
            self.clock,
        );
        let cache_root = match &self.cache_root {
            Some(fd) => {
                let fd = sys::duplicate(fd.as_fd()).map_err(|error| Error::os("duplicate the cache's root", &error))?;
                Some(Rc::new(fd))
            }
            None => None,
        };
        let core =
            Rc::new(Core::new(self.config, self.public, ring, store, mover, &self.shared, cache_root, self.clock));
        let listeners = self.listeners.into_iter().map(Rc::new).collect();
        turn_until_stopped(core, listeners, || {
            // The starter may have given up already; then a stop is on its way.
            let _ = tell.send(Started::Ready(features));
        })
    }
}

/// The listeners of one core: accepting, pausing after a refusal, or closed.
struct Doors {
    listeners: Vec<SharedFd>,
    accepts: Vec<Cell<Option<Token>>>,
    pause_until: Cell<Option<Nanos>>,
}

impl Doors {
    fn open(&self, core: &Rc<Core>) {
        for (at, listener) in self.listeners.iter().enumerate() {
            if self.accepts[at].get().is_none() {
                match core.ring.stream(Op::Accept { listener: Rc::clone(listener) }, TAG_ACCEPT | at as u64) {
                    Ok(token) => self.accepts[at].set(Some(token)),
                    Err(_) => self.pause_until.set(Some(core.now().after(ACCEPT_PAUSE))),
                }
            }
        }
    }

    fn accepted(&self, core: &Rc<Core>, at: usize, result: crate::ring::completion::Outcome, more: bool) {
        if !more {
            self.accepts[at].set(None);
        }
        match result {
            Ok(fd) => connection::admit(core, Rc::new(sys::own(fd as i32)), at as u16),
            // Cancelled, or shut down for a drain.
            Err(errno) if errno.is_canceled() || core.draining.get() => return,
            Err(errno) => {
                let reason = match errno.0 {
                    libc::EMFILE | libc::ENFILE => RejectReason::Emfile,
                    _ => RejectReason::Error,
                };
                core.tally().rejected[reason as usize].add(1);
                self.pause_until.set(Some(core.now().after(ACCEPT_PAUSE)));
                return;
            }
        }
        if !more && !core.draining.get() {
            self.open(core);
        }
    }

    /// Whoever already stands in the queue of a listener is let in before it closes; a reset would be no refusal.
    fn close(&mut self, core: &Rc<Core>) {
        for (at, listener) in self.listeners.drain(..).enumerate() {
            if let Some(token) = self.accepts[at].take() {
                core.ring.cancel(token);
            }
            while let Ok(socket) = socket::accept(listener.as_fd()) {
                connection::admit(core, Rc::new(socket), at as u16);
            }
            // The armed accept holds the descriptor until its cancel is through; this refuses new ones at once.
            socket::shutdown(listener.as_fd());
        }
        self.pause_until.set(None);
    }
}

/// The one kind of task.
async fn work(core: Rc<Core>, job: Job) {
    match job {
        Job::Answer(conn) => connection::answer(core, conn).await,
        Job::Other(work) => work.await,
    }
}

fn turn_until_stopped(core: Rc<Core>, listeners: Vec<SharedFd>, ready: impl FnOnce()) -> Result<()> {
    let accepts = listeners.iter().map(|_| Cell::new(None)).collect();
    let mut doors = Doors { listeners, accepts, pause_until: Cell::new(None) };
    let mailbox: SharedFd = {
        let fd = core.public.mailbox.event();
        Rc::new(sys::duplicate(fd).map_err(|error| Error::os("duplicate an eventfd", &error))?)
    };
    let watch = |core: &Rc<Core>| core.ring.stream(Op::Watch { fd: Rc::clone(&mailbox) }, TAG_MAILBOX).is_ok();
    let mut watched = watch(&core);
    doors.open(&core);
    let failed = |error: std::io::Error| Error::os("enter the io_uring", &error);
    core.ring.enter(None).map_err(failed)?;
    core.public.ready.store(true, Ordering::Release);
    ready();

    let mut exec = Exec::default();
    let spawn = |exec: &mut Exec<_>, job: Job| {
        if let Job::Answer(conn) = &job {
            if conn.task().is_some() {
                return;
            }
            conn.set_task(exec.next_id());
        }
        let id = exec.spawn(work(Rc::clone(&core), job));
        core.ring.wake(id);
    };
    let run = |exec: &mut Exec<_>, id: TaskId| {
        core.ring.set_current(id);
        exec.poll(id);
    };
    let turn_time = core.config.limits.turn_time;
    let mut order = Order::Run;
    let mut slept_from;
    let mut expired = core.now();
    loop {
        let now = core.tick();
        core.ring.reap();
        while let Some(event) = core.ring.next_event() {
            match event {
                Event::Stream { tag, result, buffer, more } => match tag >> 56 << 56 {
                    TAG_CONN => {
                        let conn = find(&core, tag & !TAG_CONN);
                        if let Some(conn) = conn {
                            connection::received(&core, &conn, result, buffer, more);
                        }
                    }
                    TAG_ACCEPT => doors.accepted(&core, (tag & 0xffff) as usize, result, more),
                    _ => {
                        core.public.mailbox.clear();
                        core.public.mailbox.woken(|task| core.ring.wake(task));
                        watched = more || watch(&core);
                    }
                },
                Event::Notified { route, bytes, copied, waited, .. } => {
                    core.mover.notified(route, bytes, copied, waited);
                }
            }
        }
        if !watched {
            watched = watch(&core);
        }
        let told = core.public.mailbox.order();
        if told > order {
            order = told;
            if order >= Order::Drain && !core.draining.replace(true) {
                doors.close(&core);
                connection::drain_idle(&core);
            }
        }
        // Fills go on while clients of other cores read them.
        let drained = order == Order::Drain && core.conns.borrow().is_empty() && exec.running() == 0;
        if order == Order::Stop || drained {
            break;
        }

        // Small requests and everything freshly woken first.
        loop {
            let fresh = core.spawn.take();
            let any = !fresh.is_empty();
            for job in fresh {
                spawn(&mut exec, job);
            }
            while let Some(id) = core.ring.next_ready() {
                run(&mut exec, id);
            }
            if !any && core.spawn.borrow().is_empty() {
                break;
            }
        }
        // Then bulk transfers, one quantum each, until the turn's time is up: elephants do not starve mice.
        if core.mover.has_bulk() {
            let end = core.clock().now().after(turn_time);
            while let Some(id) = core.mover.next_bulk() {
                run(&mut exec, id);
                if core.mover.has_bulk() && core.clock().now() >= end {
                    core.hit(Limit::TurnTime);
                    break;
                }
            }
        }
        core.mover.stock().wake_starved();
        connection::arm_dry(&core);

        let after = core.clock().now();
        let mut fired = Vec::new();
        core.timers.wheel.borrow_mut().expire(now, |at, key| fired.push((at, key)));
        for (at, key) in fired {
            if key & TASK_KEY != 0 {
                core.ring.wake(TaskId(key as u32));
            } else if let Some(conn) = find(&core, key) {
                connection::timer_fired(&core, &conn, at);
            }
        }
        if let Some(until) = doors.pause_until.get()
            && now >= until
        {
            doors.pause_until.set(None);
            doors.open(&core);
        }

        if core.has_origins && now.since(expired) >= EXPIRE_EVERY {
            expired = now;
            core.upstream.expire();
            core.close_buried();
        }

        let tally = core.tally();
        let busy = after.since(now).as_nanos() as u64;
        tally.loop_busy_ns.add(busy);
        tally.loop_turn.record(busy);
        let over = order == Order::Drain && core.conns.borrow().is_empty() && exec.running() == 0;
        let work = over || core.ring.has_ready() || core.mover.has_bulk() || !core.spawn.borrow().is_empty();
        let wait = (!work).then(|| {
            let timer = core.timers.wheel.borrow().next(now).unwrap_or(WAIT_MOST);
            let pause = doors.pause_until.get().map_or(WAIT_MOST, |until| until.since(now));
            timer.min(pause).min(WAIT_MOST)
        });
        slept_from = after;
        core.ring.enter(wait).map_err(failed)?;
        let slept = core.clock().now().since(slept_from).as_nanos() as u64;
        // An enter that does not wait works: it submits and runs completions.
        if wait.is_some() { tally.loop_wait_ns.add(slept) } else { tally.loop_busy_ns.add(slept) }
    }
    exec.clear();
    let left: Vec<Rc<Conn>> = core.conns.borrow().iter().map(|(_, conn)| Rc::clone(conn)).collect();
    for conn in left {
        connection::close(&core, &conn);
    }
    core.ring.drain(Duration::from_millis(500));
    Ok(())
}

fn find(core: &Core, key: u64) -> Option<Rc<Conn>> {
    let conns = core.conns.borrow();
    let conn = conns.get((key & 0xffff_ffff) as usize)?;
    (conn.key() == key).then(|| Rc::clone(conn))
}
