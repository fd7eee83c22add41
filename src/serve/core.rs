//! What one core has: its ring, files, transfers, connections, clock, and the numbers it counts.

use super::connection::Conn;
use super::route::Router;
use crate::clock::{Clock, Nanos};
use crate::config::Config;
use crate::http::date;
use crate::ring::op::Frame;
use crate::ring::{Ring, TaskId};
use crate::shard::ShardPublic;
use crate::shard::patience::Timers;
use crate::store::Store;
use crate::telemetry::tally::{ConnState, Limit, Tally};
use crate::transfer::drive::Mover;
use crate::upstream::exchange::Upstream;
use crate::upstream::origin::Origin;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// Response heads kept for reuse.
const SPARE_HEADS: usize = 512;
/// A head that grew larger than this is freed rather than kept.
const HEAD_KEPT: usize = 16 << 10;

/// Work for a task.
pub enum Job {
    /// A connection has input.
    Answer(Rc<Conn>),
    /// Something that outlives or accompanies an answer: a fill, a request body.
    Other(Pin<Box<dyn Future<Output = ()>>>),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Job::Answer(_)) { "Answer" } else { "Other" })
    }
}

/// One core.
#[derive(Debug)]
pub struct Core {
    /// The configuration, shared and immutable.
    pub config: Arc<Config>,
    /// What the control thread sees.
    pub public: Arc<ShardPublic>,
    /// The ring.
    pub ring: Rc<Ring>,
    /// Files.
    pub store: Store,
    /// Transfers.
    pub mover: Mover,
    /// Host and path to route.
    pub router: Router,
    /// Connections by index; a key carries the generation too.
    pub conns: RefCell<Slab<Rc<Conn>>>,
    /// Deadlines.
    pub timers: Rc<Timers>,
    /// Accept nothing, close after each response.
    pub draining: Cell<bool>,
    /// Connections whose receive ran out of provided buffers.
    pub dry: RefCell<Vec<Rc<Conn>>>,
    /// What the worker is to make a task for.
    pub spawn: RefCell<Vec<Job>>,
    /// The way to origins.
    pub upstream: Upstream,
    /// Whether any route has origins.
    pub has_origins: bool,
    generation: Cell<u32>,
    clock: Clock,
    now: Cell<Nanos>,
    date: Cell<[u8; 29]>,
    date_second: Cell<u64>,
    heads: RefCell<Vec<Vec<u8>>>,
    // Boxed as they go into an operation: the box is what is reused.
    #[allow(clippy::vec_box)]
    frames: RefCell<Vec<Box<Frame>>>,
    paths: RefCell<Vec<u8>>,
}

impl Core {
    /// A core from its parts.
    pub fn new(
        config: Arc<Config>,
        public: Arc<ShardPublic>,
        ring: Rc<Ring>,
        store: Store,
        mover: Mover,
        origins: &[Vec<Arc<Origin>>],
        clock: Clock,
    ) -> Self {
        let router = Router::new(&config.routes);
        let now = clock.now();
        let timers = Timers::new(Rc::clone(&ring), clock);
        let tally = Arc::clone(&public.tally);
        let (own, stock) = (Rc::clone(&ring), Rc::clone(mover.stock()));
        let upstream = Upstream::new(own, Rc::clone(&timers), stock, Arc::clone(&config), origins, tally);
        let core = Self {
            has_origins: origins.iter().any(|origins| !origins.is_empty()),
            upstream,
            config,
            public,
            ring,
            store,
            mover,
            router,
            conns: RefCell::default(),
            timers,
            draining: Cell::new(false),
            dry: RefCell::default(),
            spawn: RefCell::default(),
            generation: Cell::new(0),
            clock,
            now: Cell::new(now),
            date: Cell::new([b' '; 29]),
            date_second: Cell::new(u64::MAX),
            heads: RefCell::default(),
            frames: RefCell::default(),
            paths: RefCell::default(),
        };
        core.tick();
        core
    }

    /// What it counts.
    #[inline]
    pub fn tally(&self) -> &Tally {
        &self.public.tally
    }

    /// Reads the clock once for this turn.
    pub fn tick(&self) -> Nanos {
        let now = self.clock.now();
        self.now.set(now);
        let unix = self.clock.unix();
        self.tally().last_turn_unix_ms.set(unix.as_millis() as u64);
        if unix.as_secs() != self.date_second.get() {
            self.date_second.set(unix.as_secs());
            self.date.set(date::format(unix.as_secs()));
        }
        now
    }

    /// The time of this turn.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// The clock itself, where a turn's time is too coarse.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Wall-clock seconds of this turn.
    pub fn unix_seconds(&self) -> u64 {
        self.date_second.get()
    }

    /// The Date header's value.
    #[inline]
    pub fn date(&self) -> [u8; 29] {
        self.date.get()
    }

    /// An empty buffer for a response head.
    pub fn take_head(&self) -> Vec<u8> {
        self.heads.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(2048))
    }

    /// Gives a head buffer back.
    pub fn give_head(&self, mut head: Vec<u8>) {
        let mut heads = self.heads.borrow_mut();
        if heads.len() < SPARE_HEADS && head.capacity() <= HEAD_KEPT {
            head.clear();
            heads.push(head);
        }
    }

    /// A message frame for a vectored send.
    pub fn take_frame(&self) -> Box<Frame> {
        self.frames.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives a frame back.
    pub fn give_frame(&self, frame: Box<Frame>) {
        let mut frames = self.frames.borrow_mut();
        if frames.len() < SPARE_HEADS {
            frames.push(frame);
        }
    }

    /// The scratch buffer paths are decoded into.
    pub fn paths(&self) -> &RefCell<Vec<u8>> {
        &self.paths
    }

    /// Counts a connection moving from one state to another.
    pub fn count_state(&self, from: Option<ConnState>, to: Option<ConnState>) {
        if let Some(from) = from {
            self.tally().connections[from as usize].sub(1);
        }
        if let Some(to) = to {
            self.tally().connections[to as usize].add(1);
        }
    }

    /// Counts a hit of a named limit.
    pub fn hit(&self, limit: Limit) {
        self.tally().hit(limit);
    }

    /// A fresh generation for a connection's key.
    pub fn next_generation(&self) -> u32 {
        let generation = self.generation.get().wrapping_add(1) & 0x00ff_ffff;
        self.generation.set(generation);
        generation
    }

    /// Gives work a task of its own.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        self.spawn.borrow_mut().push(Job::Other(Box::pin(work)));
    }

    /// The task polled now.
    pub fn current_task(&self) -> TaskId {
        self.ring.current()
    }
}
