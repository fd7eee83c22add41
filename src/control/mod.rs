//! The control thread, on tokio-uring: signals, the drain's deadline, one sample of /proc a second, the admin address.
//!
//! It never touches a data core's ring: it reads their cells and writes their mailboxes. It is not pinned. Its ring is
//! tokio-uring's own (default flags: its driver reads completions without entering, which DEFER_TASKRUN would stall).

mod admin;
pub mod client;

use crate::clock::{Clock, Nanos};
use crate::config::Config;
use crate::error::{Error, Kind, Result, describe};
use crate::shard::ShardPublic;
use crate::shard::mailbox::Order;
use crate::telemetry::access;
use crate::telemetry::names::Group;
use crate::telemetry::nic;
use crate::telemetry::process::{Sample, Sampler};
use crate::telemetry::publish::{self, Rare};
use crate::telemetry::render::{self, View};
use crate::telemetry::tally::CacheCounts;
use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// A core that has not turned for so long is hung: /healthz says so and the watchdog is not fed.
const HUNG: Duration = Duration::from_secs(10);
/// A sample younger than this serves the next scrape too.
const SAMPLE_FRESH: Duration = Duration::from_millis(100);

/// Its queues count against RLIMIT_MEMLOCK, and more operations than these only wait.
const ENTRIES: u32 = 16;

/// What the control thread needs.
#[derive(Debug)]
pub struct Control {
    /// The admin listener, bound and non-blocking; `None` is off.
    pub admin: Option<AdminListener>,
    /// Names and health of the origins.
    pub origins: Health,
    /// What the cache counts, if there is one.
    pub cache: Option<Arc<CacheCounts>>,
    /// The cache's commands, if there is one.
    pub cache_admin: Option<Box<dyn CacheAdmin>>,
    /// The access log, if there is one.
    pub log: Option<Arc<access::Wishes>>,
    /// The cores.
    pub shards: Arc<[Arc<ShardPublic>]>,
    /// The configuration.
    pub config: Arc<Config>,
    /// Probed features, for `/metrics`.
    pub capabilities: Vec<(&'static str, bool)>,
    /// How long a drain may take before everything is stopped.
    pub drain_timeout: Duration,
    /// Kinds of the start's warnings, to be counted.
    pub warnings: Vec<&'static str>,
    /// RLIMIT_MEMLOCK leaves little.
    pub tight: bool,
    /// The process's clock.
    pub clock: Clock,
}

/// What the admin address may do with the cache. Errors say what is wrong with the URL.
pub trait CacheAdmin: Send + std::fmt::Debug {
    /// Stored objects, at most `most`, as lines of text.
    fn list(&self, prefix: Option<&str>, most: usize) -> std::result::Result<String, String>;
    /// Figures of the whole, as lines of text.
    fn stat(&self) -> String;
    /// Takes out what a URL has; how many objects that was.
    fn purge(&self, url: &str) -> std::result::Result<usize, String>;
    /// Takes out what every URL with this beginning has.
    fn purge_prefix(&self, url: &str) -> std::result::Result<usize, String>;
}

/// Names and health of the origins now, in the order of the tallies' rows.
pub struct Health(pub Box<dyn Fn(Nanos) -> Vec<(String, bool)> + Send>);

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Health")
    }
}

/// Where the admin address listens.
#[derive(Debug)]
pub enum AdminListener {
    /// On TCP.
    Tcp(TcpListener),
    /// On a Unix socket; its file is removed in the end.
    Unix(UnixListener, PathBuf),
}

impl AdminListener {
    /// Binds a Unix socket that only this user and group may open; a dead one's file is taken over.
    ///
    /// # Errors
    /// The path cannot be bound, or another process answers there.
    pub fn unix(path: &Path) -> Result<Self> {
        let failed =
            |error: &std::io::Error| Error::os(format!("start the admin address unix:{}", path.display()), error);
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(failed(&std::io::ErrorKind::AddrInUse.into())
                .remedy("another program answers there: stop it, or use another --admin"));
        }
        if std::fs::symlink_metadata(path)
            .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()))
        {
            // Nobody answers: it was left behind.
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path).map_err(|error| failed(&error))?;
        let only_us = std::os::unix::fs::PermissionsExt::from_mode(0o660);
        std::fs::set_permissions(path, only_us).map_err(|error| failed(&error))?;
        listener.set_nonblocking(true).map_err(|error| failed(&error))?;
        Ok(Self::Unix(listener, path.to_owned()))
    }

    /// As it is told at start.
    pub fn describe(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| format!("http://{address}")).unwrap_or_default(),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

/// The running control thread.
#[derive(Debug)]
pub struct ControlHandle {
    finish: Arc<Notify>,
    done: std::sync::mpsc::Receiver<()>,
}

impl ControlHandle {
    /// Ends the thread; waits a moment for a scrape in flight, no longer.
    pub fn finish(self) {
        self.finish.notify_one();
        // Disconnected or timed out: either way there is nothing left to wait for.
        let _ = self.done.recv_timeout(Duration::from_millis(200));
    }
}

/// Starts the control thread; when this returns, signals are caught.
///
/// # Errors
/// The thread, its ring or its signal handlers could not be had.
pub fn spawn(control: Control) -> Result<ControlHandle> {
    let finish = Arc::new(Notify::new());
    let (tell, told) = std::sync::mpsc::channel::<std::io::Result<()>>();
    let (ended, done) = std::sync::mpsc::channel();
    let end = Arc::clone(&finish);
    let run = move || {
        // tokio-uring panics where it gets no ring, so ask first. A closed ring gives its locked memory back a moment
        // later, which matters where that is scarce.
        let mut tries = 0;
        while let Err(error) = io_uring::IoUring::new(ENTRIES) {
            tries += 1;
            if error.raw_os_error() != Some(libc::ENOMEM) || tries > 10 {
                let _ = tell.send(Err(error));
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if control.tight {
            std::thread::sleep(Duration::from_millis(100));
        }
        tokio_uring::builder().entries(ENTRIES).start(async move { run(control, end, tell).await });
        let _ = ended.send(());
    };
    let failed = |error: &std::io::Error| Error::os("start the control thread", error);
    std::thread::Builder::new().name("control".to_owned()).spawn(run).map_err(|error| failed(&error))?;
    match told.recv() {
        Ok(Ok(())) => Ok(ControlHandle { finish, done }),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(Error::new(Kind::Runtime, "start the control thread", "it ended at once")),
    }
}

/// What the tasks of the control thread share.
#[derive(Debug)]
struct State {
    shards: Arc<[Arc<ShardPublic>]>,
    config: Arc<Config>,
    capabilities: Vec<(&'static str, bool)>,
    sampler: RefCell<Sampler>,
    sample: RefCell<(Option<Nanos>, Sample)>,
    draining: Cell<bool>,
    drain_timeouts: Cell<u64>,
    clock: Clock,
    origins: Health,
    cache: Option<Arc<CacheCounts>>,
    cache_admin: Option<Box<dyn CacheAdmin>>,
    /// The control thread is about to end.
    ended: Cell<bool>,
    rare: Rare,
    /// Seconds the last rendering took: this one's are told by the next.
    rendered: Cell<f64>,
    /// Admin connections open now.
    open: Cell<usize>,
}

impl State {
    fn sample(&self, fresh_for: Duration) {
        let now = self.clock.now();
        let mut sample = self.sample.borrow_mut();
        if sample.0.is_none_or(|at| now.since(at) >= fresh_for) {
            let tids: Vec<i32> = self.shards.iter().map(|shard| shard.tid.load(Ordering::Acquire)).collect();
            *sample = (Some(now), self.sampler.borrow_mut().sample(&tids));
        }
    }

    fn ready(&self) -> bool {
        !self.draining.get() && render::all_ready(&self.shards)
    }

    /// The first core that has ended though nobody told it to, or that has not turned lately.
    fn hung(&self) -> Option<usize> {
        let now = self.clock.unix().as_millis() as u64;
        let late = HUNG.as_millis() as u64;
        self.shards
            .iter()
            .find(|shard| {
                if shard.ended.load(Ordering::Acquire) {
                    return !self.draining.get();
                }
                now.saturating_sub(shard.tally.last_turn_unix_ms.get()) > late
            })
            .map(|shard| shard.core)
    }

    fn metrics(&self, groups: &[Group]) -> String {
        let began = self.clock.now();
        self.sample(SAMPLE_FRESH);
        let sampled = self.clock.now();
        let asked = groups.contains(&Group::Nic);
        let nics = if asked { nic::interfaces(Path::new("/sys/class/net")) } else { Vec::new() };
        // Kernels without it have no such numbers.
        let softnet = std::fs::read_to_string("/proc/net/softnet_stat").ok().filter(|_| asked).unwrap_or_default();
        let looked = self.clock.now();
        let sample = self.sample.borrow();
        let origins = (self.origins.0)(looked);
        let view = View {
            shards: &self.shards,
            config: &self.config,
            capabilities: &self.capabilities,
            sample: &sample.1,
            ready: self.ready(),
            draining: self.draining.get(),
            drain_timeouts: self.drain_timeouts.get(),
            origins: &origins,
            cache: self.cache.as_deref(),
            nics: &nics,
            softnet: &softnet,
            collectors: &[
                ("proc", sampled.since(began).as_secs_f64()),
                ("nic", looked.since(sampled).as_secs_f64()),
                ("render", self.rendered.get()),
            ],
        };
        let mut text = render::render(&view, groups);
        self.rendered.set(self.clock.now().since(looked).as_secs_f64());
        if groups.contains(&Group::Events) {
            text.push_str(&self.rare.render());
        }
        text
    }

    fn order(&self, order: Order) {
        for shard in self.shards.iter() {
            shard.mailbox.send(order);
        }
    }
}

async fn run(control: Control, finish: Arc<Notify>, tell: std::sync::mpsc::Sender<std::io::Result<()>>) {
    let handlers = || -> std::io::Result<_> {
        Ok((
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::quit())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined1())?,
        ))
    };
    let (mut terminate, mut interrupt, mut quit, mut hangup, mut rotated) = match handlers() {
        Ok(handlers) => handlers,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let Control {
        admin,
        origins,
        cache,
        cache_admin,
        log,
        shards,
        config,
        capabilities,
        drain_timeout,
        warnings,
        tight: _,
        clock,
    } = control;
    let cores = shards.len();
    let state = Rc::new(State {
        shards,
        config,
        capabilities,
        sampler: RefCell::new(Sampler::new(Path::new("/proc"), cores)),
        sample: RefCell::default(),
        draining: Cell::new(false),
        drain_timeouts: Cell::new(0),
        clock,
        origins,
        cache,
        cache_admin,
        ended: Cell::new(false),
        rare: Rare::install(),
        rendered: Cell::new(0.0),
        open: Cell::new(0),
    });
    warnings.into_iter().for_each(publish::startup_warning);
    // The descriptor is kept to end the accept with, whatever the runtime holds.
    let mut stopper: Option<std::os::fd::OwnedFd> = None;
    let mut socket_file = None;
    match admin {
        Some(AdminListener::Tcp(listener)) => {
            stopper = listener.try_clone().ok().map(Into::into);
            tokio_uring::spawn(admin::serve(Rc::clone(&state), tokio_uring::net::TcpListener::from_std(listener)));
        }
        Some(AdminListener::Unix(listener, path)) => {
            // Tokio's own: the ring runtime makes its Unix listeners with SO_REUSEPORT, which kernels refuse them now.
            match tokio::net::UnixListener::from_std(listener) {
                Ok(listener) => tokio_uring::spawn(admin::serve(Rc::clone(&state), listener)),
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            socket_file = Some(path);
        }
        None => {}
    }
    let _ = tell.send(Ok(()));

    let watchdog = sd_notify::watchdog_enabled().is_some();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut deadline: Deadline = None;
    loop {
        let expired = async {
            match &mut deadline {
                Some(sleep) => sleep.as_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => drain(&state, drain_timeout, &mut deadline, "SIGTERM"),
            _ = quit.recv() => drain(&state, drain_timeout, &mut deadline, "SIGQUIT"),
            _ = interrupt.recv() => {
                tracing::info!("SIGINT: stopping at once");
                state.draining.set(true);
                state.order(Order::Stop);
            }
            _ = hangup.recv() => tracing::warn!("SIGHUP: the configuration is read at start only; ignored"),
            _ = rotated.recv() => match &log {
                Some(log) => log.reopen.store(true, Ordering::Release),
                None => tracing::warn!("SIGUSR1: there is no access log (see access_log); ignored"),
            },
            _ = expired => {
                deadline = None;
                state.drain_timeouts.set(state.drain_timeouts.get() + 1);
                tracing::warn!("the drain took longer than drain_timeout ({drain_timeout:?}): stopping");
                state.order(Order::Stop);
            }
            _ = tick.tick() => {
                state.sample(SAMPLE_FRESH);
                state.rare.upkeep();
                if watchdog && state.hung().is_none() {
                    // A manager that does not listen is its own trouble.
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
            }
            _ = finish.notified() => break,
        }
    }
    if let Some(listener) = stopper {
        // Ends the accept; without this the runtime would wait for it.
        if let Err(error) = socket2::SockRef::from(&listener).shutdown(std::net::Shutdown::Both) {
            tracing::debug!("admin address: {}", describe(&error));
        }
    }
    if let Some(path) = socket_file {
        // The accept ends with one more connection; it sees that the end has come.
        state.ended.set(true);
        drop(std::os::unix::net::UnixStream::connect(&path));
        // Whoever removed it before has done our work.
        let _ = std::fs::remove_file(path);
    }
}

/// When the drain has taken too long.
type Deadline = Option<std::pin::Pin<Box<tokio::time::Sleep>>>;

/// The first order drains, the second stops.
fn drain(state: &State, timeout: Duration, deadline: &mut Deadline, signal: &str) {
    if state.draining.replace(true) {
        tracing::info!("{signal} again: stopping at once");
        state.order(Order::Stop);
        return;
    }
    let connections: u64 = state.shards.iter().flat_map(|shard| &shard.tally.connections).map(|cell| cell.get()).sum();
    tracing::info!(connections, "{signal}: draining for at most {timeout:?}");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    state.order(Order::Drain);
    *deadline = Some(Box::pin(tokio::time::sleep(timeout)));
}
