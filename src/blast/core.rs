//! One core of one end: a thread with a ring, the server's own mover, and flows as tasks.
//!
//! Turns as the server's worker does: reap, events, what is ready, bulk transfers within a bounded time, timers, one
//! enter. It has no connections to accept and no requests to parse: flows are handed in by the thread that controls.

use super::count::Counts;
use crate::clock::{Clock, Nanos};
use crate::error::{Error, Kind, Result};
use crate::ring::buffers::{ARENA_BUFFER, ArenaLease};
use crate::ring::kernel::Kernel;
use crate::ring::op::{Op, SharedFd};
use crate::ring::pipes::PipePool;
use crate::ring::{Event, Ring, TaskId};
use crate::shard::ShardPublic;
use crate::shard::exec::Exec;
use crate::shard::mailbox::{Mailbox, Order};
use crate::shard::patience::{TASK_KEY, Timers};
use crate::shard::setup::{self, RingFeatures, TIGHT, patiently, register_arena};
use crate::sys::probe::{self, Capabilities};
use crate::sys::{self, affinity};
use crate::telemetry::tally::Tally;
use crate::transfer::drive::Mover;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

/// What one transfer moves in its turn, as the server's default.
const TURN_BYTES: usize = 1 << 20;
/// Bulk transfers of one turn, as the server's default.
const TURN_TIME: Duration = Duration::from_micros(500);
/// Pipes of 256 KiB a core may make.
const PIPES: usize = 256;
const PIPE_BYTES: usize = 256 << 10;
/// Registered memory of a core.
const ARENA: usize = 16 << 20;
/// Operations at once: a flow has at most two, and a few are the core's own.
const OPS: usize = 32 << 10;
/// A wait never lasts longer.
const WAIT_MOST: Duration = Duration::from_millis(500);
/// Completions that a stopping core waits for.
const DRAIN: Duration = Duration::from_millis(300);

/// A flow on its core.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Makes a flow on the core it is sent to.
pub type Start = Box<dyn FnOnce(&Rc<Core>) -> Task + Send>;

/// One core, on its own thread.
#[derive(Debug)]
pub struct Core {
    /// Which.
    pub index: usize,
    /// The ring.
    pub ring: Rc<Ring>,
    /// Transfers, as the server makes them.
    pub mover: Mover,
    /// What the ring and the mover count.
    pub tally: Arc<Tally>,
    /// What flows count.
    pub counts: Arc<Counts>,
    /// What was probed.
    pub capabilities: Capabilities,
    /// Addresses of arena buffers that hold the payload's cycle: nothing else is ever put there where memory is sent.
    pub primed: RefCell<HashSet<usize>>,
    /// One buffer that receivers share: each uses it within one system call.
    pub scratch: RefCell<Option<ArenaLease>>,
    /// Deadlines of what flows wait for.
    pub deadlines: Rc<Timers>,
    clock: Clock,
    timers: RefCell<BinaryHeap<Reverse<(Nanos, u32)>>>,
}

impl Core {
    /// Now.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Waits until `at`; returns at once if it has passed.
    pub async fn sleep_until(&self, at: Nanos) {
        let mut set = false;
        poll_fn(|_| {
            if self.clock.now() >= at {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut set, true) {
                self.timers.borrow_mut().push(Reverse((at, self.ring.current().0)));
            }
            Poll::Pending
        })
        .await;
    }

    fn fire(&self, now: Nanos) {
        let mut timers = self.timers.borrow_mut();
        while let Some(Reverse((at, task))) = timers.peek().copied() {
            if at > now {
                break;
            }
            timers.pop();
            self.ring.wake(TaskId(task));
        }
        self.deadlines.wheel.borrow_mut().expire(now, |_, key| {
            if key & TASK_KEY != 0 {
                self.ring.wake(TaskId(key as u32));
            }
        });
    }

    fn next_timer(&self, now: Nanos) -> Duration {
        let deadline = self.deadlines.wheel.borrow().next(now).unwrap_or(WAIT_MOST);
        let timer = self.timers.borrow().peek().map_or(WAIT_MOST, |Reverse((at, _))| at.since(now).min(WAIT_MOST));
        timer.min(deadline)
    }
}

/// The cores of one end.
#[derive(Debug)]
pub struct Cores {
    handles: Vec<Handle>,
    /// What was probed.
    pub capabilities: Capabilities,
    /// What is worse than it could be.
    pub warnings: Vec<String>,
    /// The process's clock.
    pub clock: Clock,
}

/// One core as the controlling thread sees it.
pub struct Handle {
    /// Its tally, thread and mailbox.
    pub public: Arc<ShardPublic>,
    /// What flows count.
    pub counts: Arc<Counts>,
    /// CPU it is pinned to.
    pub cpu: Option<usize>,
    inbox: Arc<Mutex<Vec<Start>>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("cpu", &self.cpu).finish()
    }
}

impl Cores {
    /// Starts one thread per entry of `cpus`, pinned where it is a CPU.
    ///
    /// # Errors
    /// io_uring is denied, a CPU cannot be had, or memory cannot be mapped.
    pub fn start(cpus: &[Option<usize>], clock: Clock) -> Result<Self> {
        let capabilities = probe::run(PIPE_BYTES).map_err(|failed| {
            Error::os(failed.step, &failed.error).kind_is(Kind::NotPermitted).remedy(probe::why_denied(&failed.error))
        })?;
        // Errors of one core and another's start come by the same way.
        let (tell, told) = channel();
        let lockable = setup::lockable(cpus.len());
        let mut cores = Self { handles: Vec::new(), capabilities, warnings: Vec::new(), clock };
        for (index, cpu) in cpus.iter().enumerate() {
            cores.handles.push(spawn(index, *cpu, cores.capabilities.clone(), lockable, clock, tell.clone())?);
        }
        drop(tell);
        for _ in cpus {
            match told.recv() {
                Ok(Ok(features)) => {
                    for (_, text) in features.warnings {
                        if !cores.warnings.contains(&text) {
                            cores.warnings.push(text);
                        }
                    }
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(Error::new(Kind::Runtime, "start the cores", "one of them ended")),
            }
        }
        Ok(cores)
    }

    /// All of them.
    pub fn all(&self) -> &[Handle] {
        &self.handles
    }

    /// Puts a flow on a core.
    pub fn give(&self, core: usize, start: Start) {
        let Some(handle) = self.handles.get(core) else { return };
        if let Ok(mut inbox) = handle.inbox.lock() {
            inbox.push(start);
        }
        handle.public.mailbox.wake();
    }

    /// Wakes every core, so that flows look whether they are to stop.
    pub fn wake(&self) {
        self.handles.iter().for_each(|handle| handle.public.mailbox.wake());
    }

    /// Drops every flow where it stands, on every core; they may be given new ones.
    pub fn clear(&self) {
        for handle in &self.handles {
            handle.counts.clear.store(true, Ordering::Release);
            handle.public.mailbox.wake();
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.public.mailbox.send(Order::Stop);
        }
        for handle in &mut self.handles {
            if let Some(thread) = handle.thread.take() {
                // A panic was printed by its hook.
                let _ = thread.join();
            }
        }
    }
}

fn spawn(
    index: usize,
    cpu: Option<usize>,
    capabilities: Capabilities,
    lockable: Option<usize>,
    clock: Clock,
    tell: Sender<Result<RingFeatures>>,
) -> Result<Handle> {
    let tally = Arc::new(Tally::new(1));
    let public = Arc::new(ShardPublic {
        core: index,
        cpu: cpu.unwrap_or(usize::MAX),
        tid: AtomicI32::new(0),
        ready: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        tally: Arc::clone(&tally),
        mailbox: Mailbox::new(sys::eventfd().map_err(|error| Error::os("make an eventfd", &error))?),
    });
    let counts = Arc::new(Counts::default());
    let inbox: Arc<Mutex<Vec<Start>>> = Arc::default();
    let thread = {
        let (public, counts, inbox) = (Arc::clone(&public), Arc::clone(&counts), Arc::clone(&inbox));
        std::thread::Builder::new()
            .name(format!("core-{index}"))
            .spawn(move || {
                let made = make(index, cpu, &public, counts, capabilities, lockable, clock);
                match made {
                    Ok((core, features)) => {
                        public.ready.store(true, Ordering::Release);
                        let _ = tell.send(Ok(features));
                        drop(tell);
                        if let Err(error) = turn_until_stopped(&core, &public, &inbox) {
                            core.counts.fail(error.to_string());
                        }
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                    }
                }
                public.ended.store(true, Ordering::Release);
            })
            .map_err(|error| Error::os(format!("start the thread of core {index}"), &error))?
    };
    Ok(Handle { public, counts, cpu, inbox, thread: Some(thread) })
}

fn make(
    index: usize,
    cpu: Option<usize>,
    public: &Arc<ShardPublic>,
    counts: Arc<Counts>,
    capabilities: Capabilities,
    lockable: Option<usize>,
    clock: Clock,
) -> Result<(Rc<Core>, RingFeatures)> {
    if let Some(cpu) = cpu {
        affinity::pin(cpu).map_err(|error| {
            Error::os(format!("pin core {index} to CPU {cpu}"), &error)
                .remedy("name CPUs of this process's affinity mask in --cores, or use --cores none")
        })?;
    }
    public.tid.store(sys::gettid(), Ordering::Release);
    let tally = Arc::clone(&public.tally);
    let tight = lockable.is_some_and(|bytes| bytes < TIGHT);
    let kernel = patiently(|| Kernel::new(tight)).map_err(|error| {
        Error::os(format!("set up the io_uring of core {index}"), &error)
            .kind_is(Kind::NotPermitted)
            .remedy(probe::why_denied(&error))
    })?;
    let mut features =
        RingFeatures { setup: kernel.flags(), arena_bytes: 0, no_iowait: kernel.no_iowait(), warnings: Vec::new() };
    if let Some(cpu) = cpu
        && let Err(error) = kernel.bound_workers(cpu, 2, 4)
    {
        let text = format!("io-wq workers could not be bounded: {}", crate::error::describe(&error));
        features.warnings.push(("workers", text));
    }
    let arena = register_arena(&kernel, ARENA, lockable, &tally, &mut features)?;
    let pipes =
        PipePool::new(PIPES, PIPE_BYTES, Arc::clone(&tally)).map_err(|error| Error::os("open /dev/null", &error))?;
    let ring = Rc::new(Ring::new(kernel, OPS, None, Arc::clone(&tally), clock));
    let mover = Mover::new(
        Rc::clone(&ring),
        arena,
        pipes,
        capabilities.clone(),
        (TURN_BYTES, TURN_TIME),
        1,
        Arc::clone(&tally),
        clock,
    );
    let core = Core {
        index,
        deadlines: Timers::new(Rc::clone(&ring), clock),
        ring,
        mover,
        tally,
        counts,
        capabilities,
        primed: RefCell::default(),
        scratch: RefCell::default(),
        clock,
        timers: RefCell::default(),
    };
    Ok((Rc::new(core), features))
}

const TAG_MAILBOX: u64 = 1;

fn turn_until_stopped(core: &Rc<Core>, public: &ShardPublic, inbox: &Mutex<Vec<Start>>) -> Result<()> {
    let failed = |error: std::io::Error| Error::os("enter the io_uring", &error);
    let mailbox: SharedFd =
        Rc::new(sys::duplicate(public.mailbox.event()).map_err(|error| Error::os("duplicate an eventfd", &error))?);
    let watch = || core.ring.stream(Op::Watch { fd: Rc::clone(&mailbox) }, TAG_MAILBOX).is_ok();
    let mut watched = watch();
    let mut exec: Exec<Task> = Exec::default();
    let run = |exec: &mut Exec<Task>, id: TaskId| {
        core.ring.set_current(id);
        exec.poll(id);
    };
    loop {
        core.ring.reap();
        while let Some(event) = core.ring.next_event() {
            match event {
                Event::Stream { more, .. } => {
                    public.mailbox.clear();
                    watched = more;
                }
                Event::Notified { route, bytes, copied, waited, task } => {
                    core.mover.notified(route, bytes, copied, waited);
                    if let Some(task) = task {
                        core.ring.wake(task);
                    }
                }
            }
        }
        if !watched {
            watched = watch();
        }
        if public.mailbox.order() == Order::Stop {
            break;
        }
        if core.counts.clear.swap(false, Ordering::AcqRel) {
            exec.clear();
            core.timers.borrow_mut().clear();
        }
        let fresh = inbox.lock().map(|mut inbox| std::mem::take(&mut *inbox)).unwrap_or_default();
        for start in fresh {
            let id = exec.spawn(start(core));
            core.ring.wake(id);
        }
        while let Some(id) = core.ring.next_ready() {
            run(&mut exec, id);
        }
        if core.mover.has_bulk() {
            let end = core.now().after(TURN_TIME);
            while let Some(id) = core.mover.next_bulk() {
                run(&mut exec, id);
                if core.now() >= end {
                    break;
                }
            }
        }
        core.mover.stock().wake_starved();
        let now = core.now();
        core.fire(now);
        let work = core.ring.has_ready() || core.mover.has_bulk();
        core.ring.enter((!work).then(|| core.next_timer(now))).map_err(failed)?;
    }
    exec.clear();
    core.scratch.borrow_mut().take();
    core.ring.drain(DRAIN);
    Ok(())
}

/// Most bytes of one `send` or `send-zc` call.
pub const MESSAGE_MOST: usize = ARENA_BUFFER;
