//! What one core has: its ring, files, transfers, connections, clock, and the numbers it counts.

use super::connection::Conn;
use super::route::Router;
use crate::cache::Cache;
use crate::cache::object::{Meta, Object, Waiter};
use crate::cache::policy::{CacheControl, Reuse};
use crate::clock::{Clock, Nanos};
use crate::config::Config;
use crate::http::date;
use crate::ring::completion::Errno;
use crate::ring::op::{Frame, Op, SharedFd};
use crate::ring::{Ring, TaskId};
use crate::shard::ShardPublic;
use crate::shard::patience::Timers;
use crate::store::Store;
use crate::store::file::OpenFile;
use crate::store::open_cache::{Lookup, OpenCache};
use crate::telemetry::access::Lane;
use crate::telemetry::tally::{ConnState, Limit, Tally};
use crate::transfer::drive::Mover;
use crate::upstream::exchange::Upstream;
use crate::upstream::origin::Origin;
use crate::upstream::sigv4::{Bucket, Credentials};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Response heads kept for reuse.
const SPARE_HEADS: usize = 512;
/// A head that grew larger than this is freed rather than kept.
const HEAD_KEPT: usize = 16 << 10;

/// What all cores share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Per route, its origins.
    pub origins: Vec<Vec<Arc<Origin>>>,
    /// The cache, if any.
    pub cache: Option<Arc<Cache>>,
    /// Every core.
    pub shards: Arc<[Arc<ShardPublic>]>,
    /// Every core's lane of the access log; empty where there is none.
    pub lanes: Vec<Arc<Lane>>,
    /// Per route, how its requests are signed.
    pub signers: Arc<[Option<Signer>]>,
}

/// What signs the requests of a route.
#[derive(Debug)]
pub struct Signer {
    /// Who we are to the origin.
    pub credentials: Credentials,
    /// Region of the signature.
    pub region: String,
    /// Per origin of the route, its bucket where one is named.
    pub buckets: Vec<Option<Bucket>>,
}

/// A file of the cache, open on one core.
#[derive(Debug)]
pub struct Local {
    object: Arc<Object>,
    /// The file, as long as the object was known to be when it was opened.
    pub file: Rc<OpenFile>,
    sized: RefCell<Option<Rc<OpenFile>>>,
}

impl Local {
    /// The file with the length the object has now.
    pub fn sized(&self, object: &Object) -> Rc<OpenFile> {
        let size = object.size();
        if self.file.len() == size {
            return Rc::clone(&self.file);
        }
        let mut sized = self.sized.borrow_mut();
        match &*sized {
            Some(file) if file.len() == size => Rc::clone(file),
            _ => Rc::clone(sized.insert(Rc::new(OpenFile::stored(Rc::clone(self.file.fd()), size)))),
        }
    }
}

/// A complete object as one core knows it.
#[derive(Debug)]
pub struct Front {
    /// The object.
    pub object: Arc<Object>,
    /// Its head, as of `version`.
    pub meta: Arc<Meta>,
    version: u64,
    /// What every whole answer begins with, written once.
    pub prefix: Vec<u8>,
    /// Last-Modified, parsed once.
    pub modified: Option<u64>,
    /// Its file.
    pub file: Rc<OpenFile>,
}

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
    /// The cache, shared by all cores.
    pub cache: Option<Arc<Cache>>,
    /// The cache's directory.
    cache_root: Option<SharedFd>,
    /// Files of the cache this core has open.
    locals: RefCell<OpenCache<Rc<Local>>>,
    /// Complete objects by target as it is sent, for hits without a lock.
    front: RefCell<OpenCache<Rc<Front>>>,
    /// Objects that had left the cache when their files were last looked through.
    buried: Cell<u64>,
    /// Every core, to wake its tasks.
    shards: Arc<[Arc<ShardPublic>]>,
    /// Per route, how its requests are signed.
    pub signers: Arc<[Option<Signer>]>,
    /// This core's lane of the access log, if there is one.
    pub lane: Option<Arc<Lane>>,
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
        shared: &Shared,
        cache_root: Option<SharedFd>,
        clock: Clock,
    ) -> Self {
        let origins = &shared.origins;
        let router = Router::new(&config.routes);
        let now = clock.now();
        let timers = Timers::new(Rc::clone(&ring), clock);
        let tally = Arc::clone(&public.tally);
        let (own, stock) = (Rc::clone(&ring), Rc::clone(mover.stock()));
        let upstream = Upstream::new(own, Rc::clone(&timers), stock, Arc::clone(&config), origins, tally);
        let core = Self {
            cache: shared.cache.clone(),
            cache_root,
            locals: RefCell::new(OpenCache::new(config.limits.open_files_per_core)),
            front: RefCell::new(OpenCache::new(config.limits.open_files_per_core)),
            buried: Cell::new(0),
            shards: Arc::clone(&shared.shards),
            signers: Arc::clone(&shared.signers),
            lane: shared.lanes.get(public.core).cloned(),
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

    /// Wakes tasks that waited for a fill, on whatever core they are.
    pub fn wake_waiters(&self, waiters: Vec<Waiter>) {
        if waiters.is_empty() {
            return;
        }
        let own = self.public.core;
        for waiter in waiters.iter().filter(|waiter| waiter.core == own) {
            self.ring.wake(waiter.task);
        }
        for (core, shard) in self.shards.iter().enumerate().filter(|(core, _)| *core != own) {
            let tasks: Vec<TaskId> =
                waiters.iter().filter(|waiter| waiter.core == core).map(|waiter| waiter.task).collect();
            if !tasks.is_empty() {
                shard.mailbox.wake_tasks(&tasks);
            }
        }
    }

    /// Opens a file of the cache's directory.
    ///
    /// # Errors
    /// What the kernel says; ENOENT without a cache.
    pub async fn open_stored(&self, path: CString, flags: u64) -> Result<SharedFd, Errno> {
        let Some(root) = &self.cache_root else { return Err(Errno(libc::ENOENT)) };
        let mode = if flags & libc::O_CREAT as u64 == 0 { 0 } else { 0o600 };
        let how = io_uring::types::OpenHow::new().flags(flags).mode(mode);
        let done = self.ring.submit(Op::OpenAt { root: Rc::clone(root), path, how: Box::new(how) }).await;
        done.result.map(|fd| Rc::new(crate::sys::own(fd as i32)))
    }

    /// Keeps the open file of an object on this core.
    pub fn keep_local(&self, object: &Arc<Object>, file: &OpenFile) -> Rc<Local> {
        let local = Rc::new(Local {
            object: Arc::clone(object),
            file: Rc::new(OpenFile::stored(Rc::clone(file.fd()), object.size())),
            sized: RefCell::default(),
        });
        let key = object.id.to_le_bytes();
        let mut locals = self.locals.borrow_mut();
        locals.insert(0, &key, Rc::clone(&local), self.now(), |old, evicted| {
            if evicted {
                self.hit(Limit::OpenFiles);
            }
            self.release(&old);
        });
        local
    }

    fn release(&self, local: &Local) {
        self.store.release(&local.file);
        if let Some(file) = &*local.sized.borrow() {
            self.store.release(file);
        }
    }

    /// The open file of an object on this core.
    ///
    /// # Errors
    /// It is gone, or there are no descriptors.
    pub async fn local(&self, cache: &Cache, object: &Arc<Object>) -> Result<Rc<Local>, Errno> {
        let key = object.id.to_le_bytes();
        let found = self.locals.borrow().peek(0, &key).cloned();
        let local = match found {
            Some(local) => local,
            None => {
                let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
                let fd = self.open_stored(cache.keeper.path(object.id), flags).await?;
                self.keep_local(object, &OpenFile::stored(fd, object.size()))
            }
        };
        Ok(local)
    }

    /// Closes the files of objects that left the cache: an unlinked file gives its blocks back with its last descriptor.
    /// Called about once a second.
    pub fn close_buried(&self) {
        let Some(cache) = &self.cache else { return };
        let buried = cache.buried();
        if self.buried.replace(buried) == buried {
            return;
        }
        self.front.borrow_mut().retain(|front| !front.object.is_dead(), drop);
        self.locals.borrow_mut().retain(|local| !local.object.is_dead(), |local| self.release(&local));
    }

    /// Remembers a complete object under the target it was asked by, if every request for that gets the same.
    pub fn keep_front(&self, route: usize, target: &[u8], object: &Arc<Object>, meta: &Arc<Meta>, local: &Rc<Local>) {
        let version = object.version();
        if !object.is_complete()
            || object.is_dead()
            || !meta.vary.is_empty()
            || meta.status != 200
            || !meta.headers.contains("date")
        {
            return;
        }
        let front = Rc::new(Front {
            object: Arc::clone(object),
            meta: Arc::clone(meta),
            version,
            prefix: super::cached::prefix(meta),
            modified: meta.headers.get_only("last-modified").and_then(date::parse),
            file: local.sized(object),
        });
        self.front.borrow_mut().insert(route, target, front, self.now(), |_, _| {});
    }

    /// The complete, fresh object a target stands for, if this core has had it lately.
    #[inline]
    pub fn front(&self, route: usize, target: &[u8]) -> Option<Rc<Front>> {
        let mut cache = self.front.borrow_mut();
        let front = cache.find(route, target, Nanos(0), Duration::MAX);
        let (Lookup::Fresh(front) | Lookup::Stale(front)) = front else { return None };
        let good = !front.object.is_dead()
            && front.object.version() == front.version
            && front.meta.times.reuse(&CacheControl::default(), self.unix_seconds()) == Reuse::Fresh;
        if !good {
            cache.remove(route, target);
            return None;
        }
        front.object.touch();
        Some(Rc::clone(front))
    }

    /// The task polled now.
    pub fn current_task(&self) -> TaskId {
        self.ring.current()
    }
}
