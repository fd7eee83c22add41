//! Run the server: probe, bind, start one worker per core, answer for them, stop in order.

pub mod admin;
pub mod cached;
pub mod connection;
pub mod core;
pub mod fill;
pub mod proxy;
pub mod relay;
pub mod route;
pub mod worker;

use self::core::{Shared, Signer};
use crate::cache::Cache;
use crate::clock::Clock;
use crate::config::{AdminAddress, Config, EngineChoice, LogFormat, S3Style, Source};
use crate::control;
use crate::error::{Error, Kind, Result};
use crate::shard::mailbox::{Mailbox, Order};
use crate::shard::{ShardPublic, setup};
use crate::sys::probe::{self, Capabilities, SplicePages};
use crate::sys::socket::{self, Listen};
use crate::sys::{self};
use crate::telemetry::access::{Lane, Log};
use crate::telemetry::tally::Tally;
use crate::upstream::origin::{Origin, Watch, Watched};
use crate::upstream::sigv4::{Bucket, Credentials, Style};
use std::ffi::CString;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use worker::{Started, Worker};

/// Serves `config` until it is told to stop; returns when every connection is done or the drain ran out.
///
/// Fails before anything is served if a step of the start fails; a core that dies later stops the others.
pub fn run(config: Config) -> Result<()> {
    let config = Arc::new(config);
    let nofile = sys::raise_nofile().map_err(|error| Error::os("raise RLIMIT_NOFILE", &error))?;
    let least = config.least_descriptors();
    if nofile < least {
        let why = format!("EMFILE ahead: {nofile} descriptors are allowed, {} cores need {least}", config.cores.len());
        return Err(Error::new(Kind::NotPermitted, "start", why)
            .remedy("raise RLIMIT_NOFILE (LimitNOFILE= in systemd, --ulimit nofile in Docker), or use fewer --cores"));
    }
    let mut warnings = Vec::new();
    if nofile < 1024 {
        warnings.push(("nofile", format!("only {nofile} descriptors allowed: raise RLIMIT_NOFILE")));
    }
    let capabilities = probe::run(config.limits.pipe_bytes).map_err(|failed| {
        let kind = match failed.error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENOMEM) => Kind::NotPermitted,
            _ => Kind::Runtime,
        };
        Error::os(failed.step, &failed.error).kind_is(kind).remedy(probe::why_denied(&failed.error))
    })?;
    check_forced(&config, &capabilities)?;
    let roots = open_roots(&config)?;
    let (addresses, mut listeners) = bind(&config)?;
    let admin_listener = config.admin.as_ref().map(bind_admin).transpose()?;
    let admin_address = admin_listener.as_ref().map(control::AdminListener::describe);

    let origins: Vec<Vec<Arc<Origin>>> = config.routes.iter().map(origins_of).collect();
    let origin_count = origins.iter().map(Vec::len).sum();
    let shards: Arc<[Arc<ShardPublic>]> = config
        .cores
        .iter()
        .enumerate()
        .map(|(core, &cpu)| {
            let event = sys::eventfd().map_err(|error| Error::os("create an eventfd", &error))?;
            Ok(Arc::new(ShardPublic {
                core,
                cpu,
                tid: AtomicI32::new(0),
                ready: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                tally: Arc::new(Tally::with_origins(config.routes.len(), origin_count)),
                mailbox: Mailbox::new(event),
            }))
        })
        .collect::<Result<_>>()?;

    let lockable = setup::lockable(config.cores.len());
    let clock = Clock::start();
    let (_watch, unknown) = watch(&config, &origins, clock)?;
    warnings.extend(unknown.into_iter().map(|text| ("origin", text)));
    let cache = config.cache.clone().filter(|_| origin_count > 0).map(Cache::open).transpose()?;
    let cache_root = cache.as_ref().map(|cache| open_root(&cache.config.dir)).transpose()?;
    let signers: Arc<[Option<Signer>]> = config.routes.iter().map(signer).collect::<Result<_>>()?;
    let lane = |shard: &Arc<ShardPublic>| {
        Arc::new(Lane::new(shard.core, config.limits.access_log_bytes_per_core, Arc::clone(&shard.tally)))
    };
    let lanes: Vec<_> = shards.iter().filter(|_| config.access_log.is_some()).map(lane).collect();
    let log = config.access_log.as_ref().map(|log| Log::start(log, lanes.clone())).transpose()?;
    let shared = Shared { origins: origins.clone(), cache: cache.clone(), shards: Arc::clone(&shards), lanes, signers };
    let (tell, told) = mpsc::channel();
    let mut threads = Vec::new();
    for (public, listeners) in shards.iter().zip(listeners.drain(..)) {
        let worker = Worker {
            config: Arc::clone(&config),
            capabilities: capabilities.clone(),
            public: Arc::clone(public),
            listeners,
            roots: roots.clone(),
            shared: shared.clone(),
            cache_root: cache_root.clone(),
            clock,
            lockable,
        };
        let tell = tell.clone();
        let spawned = std::thread::Builder::new().name(format!("ringway-{}", public.core)).spawn(move || {
            let public = Arc::clone(&worker.public);
            let result = worker.run(&tell);
            public.ended.store(true, Ordering::Release);
            // The main thread may have given up on the start already.
            let _ = tell.send(match result {
                Ok(()) => Started::Ended,
                Err(error) => Started::Failed(error),
            });
        });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop(&shards);
                return Err(Error::os(format!("start the thread of core {}", public.core), &error));
            }
        }
    }
    drop(tell);
    let mut features = None;
    let mut ready = 0;
    while ready < threads.len() {
        match told.recv() {
            Ok(Started::Ready(ring)) => {
                ready += 1;
                warnings.extend(ring.warnings.iter().cloned());
                features.get_or_insert(ring);
            }
            Ok(Started::Failed(error)) => {
                stop(&shards);
                join(threads);
                return Err(error);
            }
            Ok(Started::Ended) | Err(_) => {
                stop(&shards);
                join(threads);
                return Err(Error::new(Kind::Runtime, "start every core", "a ring thread ended at once"));
            }
        }
    }
    let features = features.expect("there is at least one core");
    let mut flags = capabilities.flags();
    flags.extend(features.flags());
    warnings.sort();
    warnings.dedup();
    for (kind, text) in &warnings {
        tracing::warn!(kind, "{text}");
    }
    let seen = origins.clone();
    let control = control::spawn(control::Control {
        cache: cache.as_ref().map(|cache| Arc::clone(&cache.counts)),
        cache_admin: cache.as_ref().map(|cache| -> Box<dyn control::CacheAdmin> {
            Box::new(admin::Admin::new(Arc::clone(cache), Arc::clone(&config), clock))
        }),
        origins: control::Health(Box::new(move |now| health(&seen, now))),
        admin: admin_listener,
        log: log.as_ref().map(|log| Arc::clone(&log.wishes)),
        shards: Arc::clone(&shards),
        config: Arc::clone(&config),
        capabilities: flags,
        drain_timeout: config.drain_timeout,
        warnings: warnings.iter().map(|(kind, _)| *kind).collect(),
        tight: lockable.is_some_and(|bytes| bytes < setup::TIGHT),
        clock,
    })
    .inspect_err(|_| stop(&shards))?;

    announce(&config, &addresses, admin_address, &capabilities, &features);
    // Only where NOTIFY_SOCKET is set; a manager that does not listen is no reason not to serve.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut failure = None;
    for event in told {
        if let Started::Failed(error) = event {
            tracing::error!("{error}");
            failure.get_or_insert(error);
            stop(&shards);
        }
    }
    join(threads);
    if let Some(cache) = &cache {
        cache.flush();
    }
    if let Some(log) = log {
        log.finish();
    }
    control.finish();
    match failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Name and health of every origin, in the order of the tallies' rows.
fn health(origins: &[Vec<Arc<Origin>>], now: crate::clock::Nanos) -> Vec<(String, bool)> {
    origins.iter().flatten().map(|origin| (origin.name.clone(), origin.is_up(now))).collect()
}

fn origins_of(route: &crate::config::Route) -> Vec<Arc<Origin>> {
    match &route.source {
        Source::Origin(origin) => origin.origins.iter().map(|url| Arc::new(Origin::new(url.clone()))).collect(),
        Source::Directory(_) => Vec::new(),
    }
}

/// What signs the requests of a route: its own keys, else its file's, else the environment's.
fn signer(route: &crate::config::Route) -> Result<Option<Signer>> {
    let Source::Origin(origin) = &route.source else { return Ok(None) };
    let Some(s3) = &origin.s3 else { return Ok(None) };
    let what = || format!("sign the requests of route {}", route.prefix);
    let bad = |why: String| Error::new(Kind::Config, what(), why);
    let credentials = match (&s3.keys, &s3.file) {
        (Some((access, secret, token)), _) => {
            Credentials::new(access, secret, token.as_deref()).map_err(|error| bad(error.to_string()))?
        }
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| Error::os(format!("read {}", file.display()), &error).kind_is(Kind::Config))?;
            let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
            Credentials::from_file(&text, &profile).map_err(|error| bad(format!("{}: {error}", file.display())))?
        }
        (None, None) => Credentials::from_environment(|name| std::env::var(name).ok())
            .map_err(|error| bad(error.to_string()))?
            .ok_or_else(|| {
                bad("there are no credentials".to_owned())
                    .remedy("set s3_access_key and s3_secret_key, s3_credentials_file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            })?,
    };
    let style = match s3.style {
        S3Style::Path => Style::Path,
        S3Style::Host => Style::VirtualHost,
    };
    let bucket = |url: &crate::config::OriginUrl| match &s3.bucket {
        Some(name) => Bucket::new(&url.authority(), name, style).map(Some).map_err(|why| bad(why.to_owned())),
        None => Ok(None),
    };
    let buckets = origin.origins.iter().map(bucket).collect::<Result<_>>()?;
    Ok(Some(Signer { credentials, region: s3.region.clone(), buckets }))
}

/// Starts the thread that looks origins up and checks them; `None` where there are none.
fn watch(config: &Config, origins: &[Vec<Arc<Origin>>], clock: Clock) -> Result<(Option<Watch>, Vec<String>)> {
    let watched: Vec<Watched> = config
        .routes
        .iter()
        .zip(origins)
        .filter_map(|(route, origins)| match &route.source {
            Source::Origin(route) => Some(Watched { origins: origins.clone(), route: (**route).clone() }),
            Source::Directory(_) => None,
        })
        .collect();
    if watched.is_empty() {
        return Ok((None, Vec::new()));
    }
    let (watch, unknown) = Watch::start(watched, config.limits.origin_resolve, clock)
        .map_err(|error| Error::os("start the thread that watches origins", &error))?;
    Ok((Some(watch), unknown))
}

fn stop(shards: &[Arc<ShardPublic>]) {
    for shard in shards {
        shard.mailbox.send(Order::Stop);
    }
}

fn join(threads: Vec<std::thread::JoinHandle<()>>) {
    for thread in threads {
        // A panic of a ring thread was printed by its hook; the process aborts on one in release builds.
        let _ = thread.join();
    }
}

fn check_forced(config: &Config, capabilities: &Capabilities) -> Result<()> {
    for route in &config.routes {
        let (name, works, why) = match route.engine {
            EngineChoice::SendZc => ("send-zc", capabilities.send_zc, "this kernel's SEND_ZC does not work"),
            EngineChoice::Splice => (
                "splice",
                capabilities.splice && capabilities.pipe_bytes >= 64 << 10,
                "a ring splice to a full socket does not give EAGAIN here, or no pipe of 64 KiB is granted",
            ),
            _ => continue,
        };
        if !works {
            return Err(Error::new(Kind::Runtime, format!("force engine {name} on route {}", route.prefix), why)
                .remedy("use --engine auto"));
        }
    }
    Ok(())
}

fn open_root(path: &std::path::Path) -> Result<Arc<OwnedFd>> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Kind::Config, format!("open {}", path.display()), "the path has a NUL byte"))?;
    sys::open_root(&name).map(Arc::new).map_err(|error| {
        let failed = Error::os(format!("open the directory {}", path.display()), &error);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {
                failed.kind_is(Kind::Config).remedy("SOURCE must be a directory that exists, or an http:// URL")
            }
            Some(libc::EACCES) => failed.remedy("this user must be able to read and enter it"),
            _ => failed,
        }
    })
}

fn open_roots(config: &Config) -> Result<Vec<Arc<OwnedFd>>> {
    config
        .routes
        .iter()
        .map(|route| match &route.source {
            Source::Directory(path) => open_root(path),
            // Nothing is opened under it: its names go to the origin.
            Source::Origin(_) => open_root(std::path::Path::new("/")),
        })
        .collect()
}

/// Every core's listeners, core by core (the kernel numbers a SO_REUSEPORT group in order), and the real addresses.
fn bind(config: &Config) -> Result<(Vec<SocketAddr>, Vec<Vec<OwnedFd>>)> {
    let mut addresses = config.listen.clone();
    let mut listeners: Vec<Vec<OwnedFd>> = Vec::new();
    for _ in &config.cores {
        let mut own = Vec::new();
        for address in &mut addresses {
            if listeners.is_empty() && address.port() != 0 {
                refuse_shared(*address)?;
            }
            let want = Listen {
                address: *address,
                backlog: config.limits.backlog,
                congestion: config.congestion.as_deref(),
                notsent_lowat: config.notsent_lowat,
                reuse_port: true,
            };
            let (fd, bound) = socket::listen(&want)
                .map_err(|failed| explain_listen(*address, failed.step, &failed.error, config.congestion.as_deref()))?;
            *address = bound;
            own.push(fd);
        }
        listeners.push(own);
    }
    Ok((addresses, listeners))
}

/// SO_REUSEPORT would silently share the port with another ringway of this user: a bind without it tells.
fn refuse_shared(address: SocketAddr) -> Result<()> {
    let want = Listen { address, backlog: 1, congestion: None, notsent_lowat: 0, reuse_port: false };
    match socket::listen(&want) {
        Err(failed) => Err(explain_listen(address, failed.step, &failed.error, None)),
        Ok(_) => Ok(()),
    }
}

fn explain_listen(address: SocketAddr, step: &str, error: &std::io::Error, congestion: Option<&str>) -> Error {
    let failed = Error::os(format!("listen on {address} ({step})"), error);
    match (step, error.raw_os_error()) {
        ("set TCP_CONGESTION", Some(libc::EPERM)) => failed.remedy(format!(
            "{} is not allowed to this user: add it to net.ipv4.tcp_allowed_congestion_control, or grant CAP_NET_ADMIN",
            congestion.unwrap_or_default()
        )),
        ("set TCP_CONGESTION", _) => {
            let known =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
            failed.kind_is(Kind::Config).remedy(format!(
                "{} is not available here; this kernel has: {}",
                congestion.unwrap_or_default(),
                known.trim()
            ))
        }
        (_, Some(libc::EADDRINUSE)) => failed.remedy("another program listens there: stop it, or use another --listen"),
        (_, Some(libc::EACCES)) => failed.remedy(
            "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE; use a higher port or grant it",
        ),
        (_, Some(libc::EADDRNOTAVAIL)) => failed.remedy("no interface of this machine has that address"),
        _ => failed,
    }
}

fn bind_admin(address: &AdminAddress) -> Result<control::AdminListener> {
    let address = match address {
        AdminAddress::Tcp(address) => *address,
        AdminAddress::Unix(path) => return control::AdminListener::unix(path),
    };
    let want = Listen { address, backlog: 128, congestion: None, notsent_lowat: 0, reuse_port: false };
    match socket::listen(&want) {
        Ok((fd, _)) => Ok(control::AdminListener::Tcp(TcpListener::from(fd))),
        Err(failed) => {
            let error = explain_listen(address, failed.step, &failed.error, None);
            Err(Error::new(
                error.kind(),
                format!("start the admin address: {error}"),
                "use another --admin, or --admin off",
            ))
        }
    }
}

/// The one line that says it serves: where, on which cores, with what.
fn announce(
    config: &Config,
    addresses: &[SocketAddr],
    admin: Option<String>,
    capabilities: &Capabilities,
    ring: &setup::RingFeatures,
) {
    let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let listening: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let admin = admin.unwrap_or_else(|| "off".to_owned());
    let pages = match capabilities.splice_pages {
        SplicePages::Shares => "shares",
        SplicePages::Copies => "copies",
        SplicePages::Unknown => "unknown",
    };
    let features = [
        ring.describe(),
        format!(
            "send_zc {}",
            if capabilities.send_zc { if capabilities.zc_reports { "reporting" } else { "yes" } } else { "no" }
        ),
        format!("splice {} ({pages} pages)", if capabilities.splice { "yes" } else { "no" }),
        format!("pipe {} KiB", capabilities.pipe_bytes >> 10),
        format!("arena {} KiB", ring.arena_bytes >> 10),
    ];
    let cores = list(&config.cores);
    if config.log_format == LogFormat::Json {
        let quote = |text: &str| format!("\"{text}\"");
        let array = |items: &[String]| items.iter().map(|item| quote(item)).collect::<Vec<_>>().join(",");
        eprintln!(
            "{{\"level\":\"INFO\",\"message\":\"listening on {}\",\"listen\":[{}],\"admin\":{},\"cores\":[{}],\"features\":[{}]}}",
            listening.join(" "),
            array(&listening),
            quote(&admin),
            cores,
            array(&features)
        );
    } else {
        eprintln!(
            "ringway: listening on {}; admin {admin}; cores {cores}; {}",
            listening.join(" "),
            features.join(", ")
        );
    }
}
