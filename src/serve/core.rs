//! What one core has: its ring, files, transfers, connections, clock, and the numbers it counts.

use super::connection::Conn;
use super::route::Router;
use crate::clock::{Clock, Nanos};
use crate::config::Config;
use crate::http::date;
use crate::ring::op::Frame;
use crate::ring::{Ring, TaskId};
use crate::shard::ShardPublic;
use crate::shard::timer::Wheel;
use crate::store::Store;
use crate::telemetry::tally::{ConnState, Limit, Tally};
use crate::transfer::drive::Mover;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Response heads kept for reuse.
const SPARE_HEADS: usize = 512;
/// A head that grew larger than this is freed rather than kept.
const HEAD_KEPT: usize = 16 << 10;

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
    pub wheel: RefCell<Wheel>,
    /// Accept nothing, close after each response.
    pub draining: Cell<bool>,
    /// Connections whose receive ran out of provided buffers.
    pub dry: RefCell<Vec<Rc<Conn>>>,
    /// Connections that have input and no task yet; the worker spawns one for each.
    pub spawn: RefCell<Vec<Rc<Conn>>>,
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
        clock: Clock,
    ) -> Self {
        let router = Router::new(&config.routes);
        let now = clock.now();
        let core = Self {
            config,
            public,
            ring,
            store,
            mover,
            router,
            conns: RefCell::default(),
            wheel: RefCell::new(Wheel::new(now)),
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

    /// The task polled now.
    pub fn current_task(&self) -> TaskId {
        self.ring.current()
    }
}
