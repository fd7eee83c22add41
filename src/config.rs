//! What it means: flags over environment over a TOML file, one validated [`Config`].
//!
//! Settings are one table: key, kind, default, help. Flags, environment names, TOML keys, `--print-effective` and the
//! help text are all made from it, so they cannot drift apart. Everything here is pure: texts in, one [`Config`] out.

use crate::error::{Error, Kind as ErrorKind, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Which engine the operator asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EngineChoice {
    /// `transfer::plan` decides per transfer.
    #[default]
    Auto,
    /// Copy from RAM.
    Send,
    /// SEND_ZC from the registered arena.
    SendZc,
    /// SPLICE through the ring.
    Splice,
    /// sendfile(2) on the ring thread.
    Sendfile,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Where a route's bytes come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A directory, served by name.
    Directory(PathBuf),
    /// HTTP servers, asked in our client's place.
    Origin(Box<OriginRoute>),
}

/// How a route chooses among its origins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest exchanges in flight on this core.
    LeastInFlight,
    /// By consistent hash of the path, so that an origin's own cache sees the same objects.
    Hash,
}

/// What the origin sees as Host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HostRule {
    /// The origin's own name and port.
    #[default]
    Origin,
    /// What the client sent.
    Client,
    /// This.
    Fixed(String),
}

/// What becomes of Forwarded and X-Forwarded-*.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForwardedRule {
    /// Our client is added to what it sent.
    #[default]
    Append,
    /// Only our client stands there.
    Replace,
    /// What the client sent passes, nothing is added.
    Off,
}

/// One origin: an `http://` URL without query.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OriginUrl {
    /// Name or address, lower case, IPv6 without its brackets.
    pub host: String,
    /// Port, 80 if none was given.
    pub port: u16,
    /// Path in front of the request's, without a final slash; may be empty.
    pub prefix: String,
}

impl OriginUrl {
    /// The authority as in Host: the port where it is not 80, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 80 { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.prefix)
    }
}

/// Where the bucket's name stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum S3Style {
    /// First in the path.
    #[default]
    Path,
    /// First in the host name.
    Host,
}

/// An origin that wants its requests signed (AWS Signature Version 4).
#[derive(Clone, PartialEq, Eq)]
pub struct S3 {
    /// Region of the signature.
    pub region: String,
    /// Bucket, if the URL does not name it.
    pub bucket: Option<String>,
    /// Where the bucket's name stands.
    pub style: S3Style,
    /// Access key, secret key and session token of the route; else the file, else the environment.
    pub keys: Option<(String, String, Option<String>)>,
    /// A shared credentials file.
    pub file: Option<PathBuf>,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets reach no log.
        f.debug_struct("S3").field("region", &self.region).field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

/// How a route asks its origins and what it keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginRoute {
    /// The origins, at least one.
    pub origins: Vec<OriginUrl>,
    /// How one is chosen.
    pub balance: Balance,
    /// Methods that pass; GET and HEAD unless said otherwise.
    pub methods: Vec<String>,
    /// Whether responses may be kept, where there is a cache.
    pub cache: bool,
    /// Host towards the origin.
    pub host: HostRule,
    /// Forwarded and X-Forwarded-*.
    pub forwarded: ForwardedRule,
    /// Target of active health checks, if any.
    pub health_path: Option<String>,
    /// Time between two of them.
    pub health_interval: Duration,
    /// Freshness where the origin gives none.
    pub ttl: Option<Duration>,
    /// Freshness whatever the origin says.
    pub ttl_override: Option<Duration>,
    /// Freshness of 404 and 410 where the origin gives none.
    pub negative_ttl: Duration,
    /// How long a stale response may be used while it is revalidated, where the origin does not say.
    pub stale_while_revalidate: Duration,
    /// How long a stale response may be used when the origin fails, where the origin does not say.
    pub stale_if_error: Duration,
    /// Signed requests.
    pub s3: Option<S3>,
}

/// What becomes of a fill when its last client leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnLeave {
    /// It stops at once; the slice in progress is lost.
    Stop,
    /// It finishes the slice in progress.
    #[default]
    Slice,
    /// It goes on to the end of what was asked for.
    Finish,
}

/// The cache of origin routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Its directory; one process at a time.
    pub dir: PathBuf,
    /// Bytes it may hold.
    pub bytes: u64,
    /// Objects it may hold.
    pub objects: usize,
    /// Bytes left free on its file system.
    pub free_bytes: u64,
    /// Largest object kept.
    pub object_bytes: u64,
    /// Bytes of a slice, a power of two.
    pub slice: u64,
    /// What happens when nobody waits any more.
    pub on_leave: OnLeave,
}

/// Where the admin address is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket; who may open it may purge.
    Unix(PathBuf),
}

/// One route: host and path prefix to a source, with its own options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Host to match (lower case, no port); `None` matches every host.
    pub host: Option<String>,
    /// Path prefix to match, beginning and ending with `/`; it is cut off before the name is looked up.
    pub prefix: String,
    /// Where the bytes come from.
    pub source: Source,
    /// Engine for this route.
    pub engine: EngineChoice,
    /// Files served for a directory, in order of preference (default `index.html`).
    pub index: Vec<String>,
    /// How stale a cached descriptor may be.
    pub revalidate: Duration,
    /// Content-Type where the extension is unknown (default `application/octet-stream`).
    pub default_type: String,
    /// Cache-Control header value, if any.
    pub cache_control: Option<String>,
}

/// Every bound has a name here and a counter in `telemetry::tally::Limit`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a request head (431 above), default 16 KiB.
    pub head_bytes: usize,
    /// Header fields of a request (431 above), default 64.
    pub header_count: usize,
    /// Bytes of a request target (414 above), default 8 KiB.
    pub target_bytes: usize,
    /// Bytes of an unwanted request body that are read and dropped (413 above), default 1 MiB.
    pub discard_body_bytes: u64,
    /// Connections per core, default 65536.
    pub connections_per_core: usize,
    /// Operations in flight per core; 0: derived from connections.
    pub ops_per_core: usize,
    /// Provided receive buffers per core (a power of two), default 512, of 4 KiB each.
    pub recv_buffers_per_core: usize,
    /// Bytes of the registered arena per core, default 16 MiB.
    pub arena_bytes_per_core: usize,
    /// Pipes per core for the splice engine, default 64.
    pub pipes_per_core: usize,
    /// Bytes wanted of one pipe, default 1 MiB.
    pub pipe_bytes: usize,
    /// Descriptors in the open-file cache per core, default 1024.
    pub open_files_per_core: usize,
    /// Bytes of the content cache per core, default 64 MiB.
    pub content_cache_bytes: usize,
    /// Largest body kept in the content cache, default 64 KiB.
    pub content_object_bytes: usize,
    /// Bytes one transfer moves in one turn, default 1 MiB.
    pub turn_bytes: usize,
    /// Time one turn of the loop gives to bulk transfers before it looks at the ring again, default 500 us.
    pub turn_time: Duration,
    /// io-wq workers per core: bounded, default 2.
    pub workers_bounded: u32,
    /// io-wq workers per core: unbounded (splices), default 4.
    pub workers_unbounded: u32,
    /// Requests on one connection before it is closed; 0: no limit (default 0).
    pub keepalive_requests: u64,
    /// From accept or the first byte of a request to its complete head (408 after), default 10 s.
    pub header_timeout: Duration,
    /// Idle between requests, default 60 s.
    pub keepalive_timeout: Duration,
    /// No byte accepted by the client's socket, default 60 s.
    pub send_timeout: Duration,
    /// Connections waiting in the kernel's accept queue per listener and core, default 4096 (somaxconn caps it).
    pub backlog: u32,
    /// Received buffers of 4 KiB one connection may hold before its receive is stopped, default 8.
    pub inbox_buffers: usize,
    /// Bytes of the access log that may wait to be written, default 1 MiB; records above are dropped and counted.
    pub access_log_bytes_per_core: usize,
    /// Connections to one origin per core, in use and idle, default 64.
    pub origin_connections_per_core: usize,
    /// Idle connections kept to one origin per core, default 32.
    pub origin_idle_connections: usize,
    /// How long an idle connection to an origin is kept, default 30 s.
    pub origin_idle_timeout: Duration,
    /// Requests that may wait for a connection to one origin per core (503 above), default 1024.
    pub origin_queue: usize,
    /// How long one may wait (503 after), default 5 s.
    pub origin_queue_timeout: Duration,
    /// To connect to an origin (504 after), default 3 s.
    pub origin_connect_timeout: Duration,
    /// From the request to the first byte of its response (504 after), default 30 s.
    pub origin_first_byte_timeout: Duration,
    /// No byte of a body from the origin, default 30 s.
    pub origin_progress_timeout: Duration,
    /// Times a safe request is tried again, default 1.
    pub origin_retries: u32,
    /// Bytes of a response head from an origin (502 above), default 32 KiB.
    pub origin_head_bytes: usize,
    /// How long a name's addresses are used before it is looked up again, default 30 s.
    pub origin_resolve: Duration,
}

/// Lines of the access log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessLogFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// An object per line.
    Json,
}

/// Where requests are logged, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessLog {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// How its lines look.
    pub format: AccessLogFormat,
}

/// One validated meaning of everything that was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Addresses to serve on; port 0 picks a free port.
    pub listen: Vec<SocketAddr>,
    /// CPU numbers, one ring thread each.
    pub cores: Vec<usize>,
    /// Address of the admin listener; `None` is off.
    pub admin: Option<AdminAddress>,
    /// What purges on the admin address must say as a bearer token; empty: only a Unix socket may purge.
    pub admin_token: String,
    /// The cache of origin routes, if any.
    pub cache: Option<CacheConfig>,
    /// Routes, most specific first.
    pub routes: Vec<Route>,
    /// TCP_CONGESTION of the listeners, if any.
    pub congestion: Option<String>,
    /// TCP_NOTSENT_LOWAT of the listeners, default 128 KiB; 0 leaves the system's.
    pub notsent_lowat: u32,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The access log, if any.
    pub access_log: Option<AccessLog>,
    /// Only warnings and errors.
    pub quiet: bool,
    /// How long a drain may take.
    pub drain_timeout: Duration,
    /// Every bound.
    pub limits: Limits,
}

impl Config {
    /// Descriptors held before the first client comes, with some to spare.
    ///
    /// A start with fewer meets EMFILE in the middle of it, partly in code that is not ours and panics.
    pub fn least_descriptors(&self) -> u64 {
        // The process: standard streams, signals, the control plane's ring, admin. 25 were counted with two cores.
        const PROCESS: u64 = 24;
        // Ring, event, a pipe for splices and one to spare, besides the listeners.
        const CORE: u64 = 6;
        // Its directory, and what looks after an origin.
        const ROUTE: u64 = 4;
        const CACHE: u64 = 8;
        PROCESS
            + self.cores.len() as u64 * (CORE + self.listen.len() as u64)
            + ROUTE * self.routes.len() as u64
            + if self.cache.is_some() { CACHE } else { 0 }
    }
}

/// How a setting's text is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// Several texts: a flag given again, a comma-separated variable, a TOML array.
    List,
    /// Bytes: `131072`, `128KiB`, `1MiB`, `64k`.
    Size,
    /// Time: `30s`, `500ms`, `2m`, plain seconds.
    Time,
    /// A whole number.
    Count,
    /// True or false.
    Switch,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The TOML key; the flag has dashes for underscores, the variable is `RINGWAY_` and the key in capitals.
    pub key: &'static str,
    /// In the `[limits]` table.
    pub limit: bool,
    /// How it is read.
    pub kind: Kind,
    /// The default as text; empty means none, or found out at start.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
}

const fn setting(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { key, limit: false, kind, default, help }
}

const fn limit(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { key, limit: true, kind, default, help }
}

/// Every setting.
pub const SETTINGS: &[Setting] = &[
    setting(
        "listen",
        Kind::List,
        "127.0.0.1:8080",
        "Address to serve on: 127.0.0.1:8080, [::1]:8080; port 0 picks a free one; again for more",
    ),
    setting(
        "cores",
        Kind::Text,
        "",
        "CPUs to run one ring thread on each, such as 0-3,6 [default: all this process may use]",
    ),
    setting(
        "admin",
        Kind::Text,
        "127.0.0.1:9880",
        "Address of /metrics, /healthz, /readyz and the cache's commands: ADDR:PORT, unix:PATH, or off",
    ),
    setting(
        "admin_token",
        Kind::Text,
        "",
        "Bearer token that purges over TCP must show; without one only a unix: admin address may purge",
    ),
    setting("cache", Kind::Text, "", "Directory of the cache for origins [default: none, everything is relayed]"),
    setting("cache_bytes", Kind::Size, "10GiB", "Bytes the cache may hold"),
    setting("cache_objects", Kind::Count, "1000000", "Objects (files) the cache may hold"),
    setting("cache_free_bytes", Kind::Size, "1GiB", "Bytes left free on the cache's file system"),
    setting(
        "cache_object_bytes",
        Kind::Size,
        "0",
        "Largest object kept, larger ones stream through; 0: half the cache",
    ),
    setting("cache_slice", Kind::Size, "8MiB", "Bytes of a slice, the unit of fetching: a power of two"),
    setting(
        "cache_on_leave",
        Kind::Text,
        "slice",
        "When the last client of a fill leaves: stop, finish the slice, or finish what was asked for",
    ),
    setting("engine", Kind::Text, "auto", "How bodies leave: auto, send, send-zc, splice, sendfile"),
    setting(
        "congestion",
        Kind::Text,
        "",
        "TCP congestion control of accepted connections, such as cubic [default: the system's]",
    ),
    setting(
        "notsent_lowat",
        Kind::Size,
        "128KiB",
        "TCP_NOTSENT_LOWAT: unsent bytes a socket may hold; 0 leaves the system's",
    ),
    setting("log_format", Kind::Text, "text", "Log lines: text or json"),
    setting(
        "access_log",
        Kind::Text,
        "",
        "File that gets a line per request, - for standard output; SIGUSR1 opens it again [default: none]",
    ),
    setting(
        "access_log_format",
        Kind::Text,
        "combined",
        "Lines of the access log: combined (as nginx writes it) or json",
    ),
    setting("quiet", Kind::Switch, "false", "Log warnings and errors only"),
    setting("drain_timeout", Kind::Time, "30s", "How long SIGTERM waits for responses in flight"),
    setting("revalidate", Kind::Time, "1s", "How stale a cached descriptor may be"),
    setting("index", Kind::List, "index.html", "File served for a directory; again for more, in order of preference"),
    // A usual head is under 1 KiB; cookies make some 8 KiB.
    limit("head_bytes", Kind::Size, "16KiB", "Bytes of a request head (431 above)"),
    limit("header_count", Kind::Count, "64", "Header fields of a request (431 above), at most 128"),
    limit("target_bytes", Kind::Size, "8KiB", "Bytes of a request target (414 above)"),
    limit("discard_body_bytes", Kind::Size, "1MiB", "Bytes of an unwanted request body that are dropped (413 above)"),
    limit("connections_per_core", Kind::Count, "65536", "Connections of one core (503 above)"),
    // 0: two per connection (its receive and one more) and a thousand to spare.
    limit("ops_per_core", Kind::Count, "0", "Ring operations in flight per core; 0: enough for its connections"),
    limit("recv_buffers_per_core", Kind::Count, "512", "Receive buffers of 4 KiB per core, a power of two"),
    limit("arena_bytes_per_core", Kind::Size, "16MiB", "Registered memory per core for zero-copy sends and cold reads"),
    limit("pipes_per_core", Kind::Count, "64", "Pipes per core for the splice engine"),
    limit("pipe_bytes", Kind::Size, "1MiB", "Bytes of one pipe; 1 MiB costs least per KiB"),
    limit("open_files_per_core", Kind::Count, "1024", "Names in the open-file cache per core"),
    limit("content_cache_bytes", Kind::Size, "64MiB", "Bodies of small hot files kept in memory per core"),
    limit("content_object_bytes", Kind::Size, "64KiB", "Largest body kept in memory"),
    limit("turn_bytes", Kind::Size, "1MiB", "Bytes one transfer moves in its turn"),
    limit("turn_time", Kind::Time, "500us", "Time bulk transfers get before small requests are looked at again"),
    limit("workers_bounded", Kind::Count, "2", "Kernel workers per core for files"),
    limit("workers_unbounded", Kind::Count, "4", "Kernel workers per core for splices"),
    limit("keepalive_requests", Kind::Count, "0", "Requests on one connection; 0: any number"),
    limit("header_timeout", Kind::Time, "10s", "Time for a request head to arrive (408 after)"),
    limit("keepalive_timeout", Kind::Time, "60s", "Time a connection may be idle between requests"),
    limit("send_timeout", Kind::Time, "60s", "Time in which a client must take at least one byte"),
    limit("backlog", Kind::Count, "4096", "Connections waiting in the accept queue (net.core.somaxconn caps it)"),
    limit("inbox_buffers", Kind::Count, "8", "Receive buffers one pipelining client may hold"),
    limit("access_log_bytes_per_core", Kind::Size, "1MiB", "Bytes of access log waiting to be written (dropped above)"),
    limit("origin_connections_per_core", Kind::Count, "64", "Connections of one core to one origin"),
    limit("origin_idle_connections", Kind::Count, "32", "Idle connections of one core kept to one origin"),
    limit("origin_idle_timeout", Kind::Time, "30s", "Time an idle connection to an origin is kept"),
    limit("origin_queue", Kind::Count, "1024", "Requests of one core waiting for an origin's connection (503 above)"),
    limit("origin_queue_timeout", Kind::Time, "5s", "Time a request waits for an origin's connection (503 after)"),
    limit("origin_connect_timeout", Kind::Time, "3s", "Time to connect to an origin (504 after)"),
    limit("origin_first_byte_timeout", Kind::Time, "30s", "Time to the first byte of a response (504 after)"),
    limit("origin_progress_timeout", Kind::Time, "30s", "Time in which an origin must send at least one byte"),
    limit("origin_retries", Kind::Count, "1", "Times a safe request is tried again"),
    limit("origin_head_bytes", Kind::Size, "32KiB", "Bytes of an origin's response head (502 above)"),
    limit(
        "origin_resolve",
        Kind::Time,
        "30s",
        "Time an origin's addresses are used before its name is looked up again",
    ),
];

/// Keys a `[[route]]` may have.
const ROUTE_KEYS: &[(&str, Kind)] = &[
    ("host", Kind::Text),
    ("path", Kind::Text),
    ("source", Kind::Text),
    ("engine", Kind::Text),
    ("index", Kind::List),
    ("revalidate", Kind::Time),
    ("default_type", Kind::Text),
    ("cache_control", Kind::Text),
    ("origins", Kind::List),
    ("balance", Kind::Text),
    ("methods", Kind::List),
    ("cache", Kind::Switch),
    ("host_header", Kind::Text),
    ("forwarded", Kind::Text),
    ("health_path", Kind::Text),
    ("health_interval", Kind::Time),
    ("ttl", Kind::Time),
    ("ttl_override", Kind::Time),
    ("negative_ttl", Kind::Time),
    ("stale_while_revalidate", Kind::Time),
    ("stale_if_error", Kind::Time),
    ("s3_region", Kind::Text),
    ("s3_bucket", Kind::Text),
    ("s3_access_key", Kind::Text),
    ("s3_secret_key", Kind::Text),
    ("s3_session_token", Kind::Text),
    ("s3_credentials_file", Kind::Text),
    ("s3_style", Kind::Text),
];
/// The first of them that only an origin has.
const ORIGIN_KEYS: usize = 8;

/// Where a value was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nowhere.
    Default,
    /// `file:line:column`.
    File(String),
    /// An environment variable.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(place) => f.write_str(place),
            Origin::Variable(name) => write!(f, "environment {name}"),
            Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// What was said of one setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// The texts (one, except for lists).
    pub values: Vec<String>,
    /// Where.
    pub origin: Origin,
}

/// What was said of one route.
#[derive(Clone, Debug, Default)]
struct SaidRoute {
    place: String,
    values: BTreeMap<&'static str, Said>,
}

/// Everything that was said, before it is understood.
#[derive(Clone, Debug, Default)]
pub struct Sayings {
    /// SOURCE of the command line.
    pub source: Option<String>,
    settings: BTreeMap<&'static str, Said>,
    routes: Vec<SaidRoute>,
    /// The configuration file's directory, for relative sources.
    base: Option<PathBuf>,
    /// Things to warn of.
    pub warnings: Vec<String>,
}

/// The setting of a key.
pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|key| (strsim::damerau_levenshtein(word, key), key))
        .min()
        .filter(|(distance, key)| *distance <= (key.len() / 2).max(2))
        .map(|(_, key)| format!("; did you mean `{key}`?"))
        .unwrap_or_default()
}

fn bad(origin: &Origin, key: &str, why: impl fmt::Display) -> Error {
    let place = match origin {
        Origin::File(place) => format!("{place}: `{key}`"),
        Origin::Variable(name) => name.clone(),
        Origin::Flag(name) => name.clone(),
        Origin::Default => format!("`{key}`"),
    };
    // What a flag says is usage; what a file or the environment says is configuration, and so is what SOURCE names.
    let kind = match origin {
        Origin::Flag(name) if name != "SOURCE" => ErrorKind::Usage,
        _ => ErrorKind::Config,
    };
    Error::new(kind, format!("use {place}"), why.to_string())
}

impl Sayings {
    /// Takes a configuration file in; `name` is how it is called in messages.
    pub fn file(&mut self, name: &str, text: &str) -> Result<()> {
        let place = |at: usize| {
            let before = &text[..at.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
            format!("{name}:{line}:{column}")
        };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Error::new(ErrorKind::Config, format!("read {}", place(at)), error.message().to_owned())
        })?;
        self.base = Some(Path::new(name).parent().map(Path::to_path_buf).unwrap_or_default());
        for (key, value) in table.get_ref() {
            let at = place(key.span().start);
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("source", value) => {
                    let value = texts(&at, "source", Kind::Text, &Spanned::new(0..0, value.clone()))?;
                    let origin = Origin::File(at.clone());
                    let values = BTreeMap::from([("source", Said { values: value, origin })]);
                    self.routes.push(SaidRoute { place: at, values });
                }
                ("limits", DeValue::Table(limits)) => {
                    for (key, value) in limits {
                        self.file_setting(&place, key.get_ref(), key.span().start, value, true)?;
                    }
                }
                ("route", DeValue::Array(routes)) => {
                    for route in routes.iter() {
                        let DeValue::Table(table) = route.get_ref() else {
                            return Err(wrong(&place(route.span().start), "route", "a table: write [[route]]"));
                        };
                        let said = file_route(&place, place(route.span().start), table)?;
                        self.routes.push(said);
                    }
                }
                ("limits", _) => return Err(wrong(&at, "limits", "a table: write [limits]")),
                ("route", _) => return Err(wrong(&at, "route", "an array of tables: write [[route]]")),
                (name, _) => self.file_setting(&place, name, key.span().start, value, false)?,
            }
        }
        Ok(())
    }

    fn file_setting(
        &mut self,
        place: &impl Fn(usize) -> String,
        key: &str,
        at: usize,
        value: &Spanned<DeValue<'_>>,
        limits: bool,
    ) -> Result<()> {
        let here = place(at);
        let Some(setting) = find(key).filter(|setting| setting.limit == limits) else {
            let hint = match find(key) {
                Some(_) if limits => "; it stands outside [limits]".to_owned(),
                Some(_) => "; it belongs into [limits]".to_owned(),
                None => {
                    let own = SETTINGS.iter().filter(|setting| setting.limit == limits).map(|setting| setting.key);
                    nearest(
                        key,
                        own.chain(if limits { [].as_slice() } else { &["limits", "route", "source"] }.iter().copied()),
                    )
                }
            };
            return Err(Error::new(ErrorKind::Config, format!("use {here}"), format!("unknown key `{key}`{hint}")));
        };
        let values = texts(&here, setting.key, setting.kind, value)?;
        self.settings.insert(setting.key, Said { values, origin: Origin::File(here) });
        Ok(())
    }

    /// Takes the environment in: every `RINGWAY_*` variable (RINGWAY_LOG is the log filter's own).
    pub fn environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in variables {
            let Some(key) = name.strip_prefix("RINGWAY_").filter(|key| *key != "LOG") else { continue };
            let lower = key.to_ascii_lowercase();
            match find(&lower) {
                Some(setting) => {
                    let values = match setting.kind {
                        Kind::List => value.split(',').map(|text| text.trim().to_owned()).collect(),
                        _ => vec![value],
                    };
                    self.settings.insert(setting.key, Said { values, origin: Origin::Variable(name) });
                }
                None if lower == "config" || lower == "source" => {}
                None => {
                    let hint = nearest(&lower, SETTINGS.iter().map(|setting| setting.key));
                    self.warnings.push(format!("{name} in the environment is no setting{hint}"));
                }
            }
        }
    }

    /// Takes a flag in.
    pub fn flag(&mut self, key: &str, values: Vec<String>) {
        if let Some(setting) = find(key) {
            let origin = Origin::Flag(format!("--{}", key.replace('_', "-")));
            self.settings.insert(setting.key, Said { values, origin });
        }
    }

    fn get(&self, key: &'static str) -> Said {
        self.settings.get(key).cloned().unwrap_or_else(|| {
            let default = find(key).map_or("", |setting| setting.default);
            let values = if default.is_empty() { Vec::new() } else { vec![default.to_owned()] };
            Said { values, origin: Origin::Default }
        })
    }

    fn read<T>(&self, key: &'static str, read: impl Fn(&str) -> std::result::Result<T, String>) -> Result<T> {
        let said = self.get(key);
        let text = said.values.last().map(String::as_str).unwrap_or_default();
        read(text).map_err(|why| bad(&said.origin, key, format!("`{text}` {why}")))
    }

    fn size(&self, key: &'static str, least: u64, most: u64) -> Result<u64> {
        self.read(key, |text| size(text).and_then(|value| within(value, least, most)))
    }

    fn count(&self, key: &'static str, least: u64, most: u64) -> Result<u64> {
        self.read(key, |text| count(text).and_then(|value| within(value, least, most)))
    }

    fn time(&self, key: &'static str, least: Duration, most: Duration) -> Result<Duration> {
        self.read(key, |text| {
            let value = time(text)?;
            if value < least || value > most {
                return Err(format!("must lie between {least:?} and {most:?}"));
            }
            Ok(value)
        })
    }

    /// Understands everything; `allowed` are the CPUs this process may use.
    pub fn understand(&self, allowed: &[usize]) -> Result<Config> {
        let mut listen = Vec::new();
        let said = self.get("listen");
        for text in &said.values {
            let address: SocketAddr = text.parse().map_err(|_| {
                bad(
                    &said.origin,
                    "listen",
                    format!("`{text}` is not an address with a port, such as 127.0.0.1:8080 or [::1]:8080"),
                )
            })?;
            if address.port() != 0 && listen.contains(&address) {
                return Err(bad(&said.origin, "listen", format!("{address} stands there twice")));
            }
            listen.push(address);
        }
        if listen.is_empty() {
            return Err(bad(&said.origin, "listen", "at least one address is needed"));
        }
        let admin = self.read("admin", |text| match (text, text.strip_prefix("unix:")) {
            ("off", _) => Ok(None),
            (_, Some("")) => Err("has no path".to_owned()),
            (_, Some(path)) => Ok(Some(AdminAddress::Unix(PathBuf::from(path)))),
            (text, None) => match text.parse() {
                Ok(address) => Ok(Some(AdminAddress::Tcp(address))),
                Err(_) => Err("is neither an address with a port, unix:PATH nor off".to_owned()),
            },
        })?;
        if let Some(AdminAddress::Tcp(address)) = &admin
            && address.port() != 0
            && listen.contains(address)
        {
            return Err(bad(&self.get("admin").origin, "admin", format!("{address} is an address to serve on too")));
        }
        let congestion = Some(self.read("congestion", |text| Ok(text.to_owned()))?).filter(|name| !name.is_empty());
        let limits = self.limits()?;
        Ok(Config {
            listen,
            cores: self.cores(allowed)?,
            admin,
            admin_token: self.read("admin_token", |text| match text.bytes().all(|byte| byte.is_ascii_graphic()) {
                true => Ok(text.to_owned()),
                false => Err("must be printable ASCII without spaces".to_owned()),
            })?,
            cache: self.cache()?,
            routes: self.routes()?,
            congestion,
            notsent_lowat: self.size("notsent_lowat", 0, 1 << 30)? as u32,
            log_format: self.read("log_format", |text| match text {
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                _ => Err("is neither text nor json".to_owned()),
            })?,
            access_log: self.access_log()?,
            quiet: self.read("quiet", |text| text.parse().map_err(|_| "is neither true nor false".to_owned()))?,
            drain_timeout: self.time("drain_timeout", Duration::ZERO, DAY)?,
            limits,
        })
    }

    fn access_log(&self) -> Result<Option<AccessLog>> {
        let format = self.read("access_log_format", |text| match text {
            "combined" => Ok(AccessLogFormat::Combined),
            "json" => Ok(AccessLogFormat::Json),
            _ => Err("is neither combined nor json".to_owned()),
        })?;
        let path = self.read("access_log", |text| Ok(PathBuf::from(text)))?;
        Ok(Some(AccessLog { path, format }).filter(|log| !log.path.as_os_str().is_empty()))
    }

    fn cores(&self, allowed: &[usize]) -> Result<Vec<usize>> {
        let said = self.get("cores");
        let Some(text) = said.values.last() else { return Ok(allowed.to_vec()) };
        let cores = parse_cpu_list(text).map_err(|why| bad(&said.origin, "cores", format!("`{text}` {why}")))?;
        match cores.iter().find(|core| !allowed.contains(core)) {
            Some(core) => Err(bad(
                &said.origin,
                "cores",
                format!("CPU {core} is not among those this process may use ({})", write_cpu_list(allowed)),
            )),
            None => Ok(cores),
        }
    }

    fn limits(&self) -> Result<Limits> {
        const K: u64 = 1 << 10;
        const M: u64 = 1 << 20;
        const G: u64 = 1 << 30;
        const TICK: Duration = Duration::from_millis(100);
        let multiple = |key: &'static str, of: u64, value: u64| {
            if value.is_multiple_of(of) {
                return Ok(value as usize);
            }
            Err(bad(&self.get(key).origin, key, format!("must be a multiple of {of} bytes")))
        };
        let recv_buffers_per_core = self.count("recv_buffers_per_core", 8, 32768)? as usize;
        if !recv_buffers_per_core.is_power_of_two() {
            let near = recv_buffers_per_core.next_power_of_two();
            return Err(bad(
                &self.get("recv_buffers_per_core").origin,
                "recv_buffers_per_core",
                format!("must be a power of two, such as {near}"),
            ));
        }
        Ok(Limits {
            head_bytes: self.size("head_bytes", 256, 64 * K)? as usize,
            header_count: self.count("header_count", 1, 128)? as usize,
            target_bytes: self.size("target_bytes", 64, 64 * K)? as usize,
            discard_body_bytes: self.size("discard_body_bytes", 0, 1 << 40)?,
            connections_per_core: self.count("connections_per_core", 1, 4 << 20)? as usize,
            ops_per_core: self.read("ops_per_core", |text| match count(text)? {
                0 => Ok(0),
                value => within(value, 64, 16 << 20).map(|value| value as usize),
            })?,
            recv_buffers_per_core,
            arena_bytes_per_core: multiple(
                "arena_bytes_per_core",
                256 * K,
                self.size("arena_bytes_per_core", 256 * K, G)?,
            )?,
            pipes_per_core: self.count("pipes_per_core", 1, 65536)? as usize,
            pipe_bytes: multiple("pipe_bytes", 4 * K, self.size("pipe_bytes", 64 * K, 64 * M)?)?,
            open_files_per_core: self.count("open_files_per_core", 1, 4 << 20)? as usize,
            content_cache_bytes: self.size("content_cache_bytes", 0, 1 << 40)? as usize,
            content_object_bytes: self.size("content_object_bytes", 0, 256 * K - 1)? as usize,
            turn_bytes: self.size("turn_bytes", 64 * K, G)? as usize,
            turn_time: self.time("turn_time", Duration::from_micros(1), Duration::from_secs(1))?,
            workers_bounded: self.count("workers_bounded", 1, 1024)? as u32,
            workers_unbounded: self.count("workers_unbounded", 1, 1024)? as u32,
            keepalive_requests: self.count("keepalive_requests", 0, u64::MAX)?,
            header_timeout: self.time("header_timeout", TICK, DAY)?,
            keepalive_timeout: self.time("keepalive_timeout", TICK, DAY)?,
            send_timeout: self.time("send_timeout", TICK, DAY)?,
            backlog: self.count("backlog", 1, 1 << 20)? as u32,
            inbox_buffers: self.count("inbox_buffers", 1, 4096)? as usize,
            access_log_bytes_per_core: self.size("access_log_bytes_per_core", 32 * K, G)? as usize,
            origin_connections_per_core: self.count("origin_connections_per_core", 1, 1 << 20)? as usize,
            origin_idle_connections: self.count("origin_idle_connections", 0, 1 << 20)? as usize,
            origin_idle_timeout: self.time("origin_idle_timeout", TICK, DAY)?,
            origin_queue: self.count("origin_queue", 0, 1 << 20)? as usize,
            origin_queue_timeout: self.time("origin_queue_timeout", TICK, DAY)?,
            origin_connect_timeout: self.time("origin_connect_timeout", TICK, DAY)?,
            origin_first_byte_timeout: self.time("origin_first_byte_timeout", TICK, DAY)?,
            origin_progress_timeout: self.time("origin_progress_timeout", TICK, DAY)?,
            origin_retries: self.count("origin_retries", 0, 16)? as u32,
            // A head must fit the buffer it is received into.
            origin_head_bytes: self.size("origin_head_bytes", 256, 128 * K)? as usize,
            origin_resolve: self.time("origin_resolve", TICK, DAY)?,
        })
    }

    fn cache(&self) -> Result<Option<CacheConfig>> {
        const K: u64 = 1 << 10;
        let dir = self.read("cache", |text| Ok(PathBuf::from(text)))?;
        let bytes = self.size("cache_bytes", 64 * K, 1 << 60)?;
        let slice = self.read("cache_slice", |text| match within(size(text)?, 64 * K, 1 << 30)? {
            slice if slice.is_power_of_two() => Ok(slice),
            slice => Err(format!("must be a power of two, such as {}", slice.next_power_of_two())),
        })?;
        let object_bytes = match self.size("cache_object_bytes", 0, 1 << 60)? {
            0 => bytes / 2,
            most => most.min(bytes),
        };
        let cache = CacheConfig {
            dir,
            bytes,
            objects: self.count("cache_objects", 1, 1 << 32)? as usize,
            free_bytes: self.size("cache_free_bytes", 0, 1 << 60)?,
            object_bytes,
            slice,
            on_leave: self.read("cache_on_leave", |text| match text {
                "stop" => Ok(OnLeave::Stop),
                "slice" => Ok(OnLeave::Slice),
                "finish" => Ok(OnLeave::Finish),
                _ => Err("is none of stop, slice, finish".to_owned()),
            })?,
        };
        Ok(Some(cache).filter(|cache| !cache.dir.as_os_str().is_empty()))
    }

    fn routes(&self) -> Result<Vec<Route>> {
        let mut routes = Vec::new();
        for said in &self.routes {
            routes.push(self.route(said)?);
        }
        if let Some(source) = &self.source {
            let mut own = SaidRoute { place: "SOURCE".to_owned(), ..SaidRoute::default() };
            let origin = Origin::Flag("SOURCE".to_owned());
            own.values.insert("source", Said { values: vec![source.clone()], origin });
            let mut route = self.route(&own)?;
            // The command line's SOURCE is relative to where the command was given, not to the file.
            if let Source::Directory(path) = &mut route.source {
                *path = PathBuf::from(source);
            }
            routes.push(route);
        }
        if routes.is_empty() {
            let kind = if self.base.is_some() { ErrorKind::Config } else { ErrorKind::Usage };
            return Err(Error::new(kind, "serve nothing", "no SOURCE was given and no [[route]] has one")
                .remedy("ringway serve DIRECTORY, or ringway serve http://HOST:PORT"));
        }
        for (at, route) in routes.iter().enumerate() {
            if routes[..at].iter().any(|other| (&other.host, &other.prefix) == (&route.host, &route.prefix)) {
                let place = self.routes.get(at).map_or("SOURCE", |said| said.place.as_str());
                let host = route.host.as_deref().unwrap_or("any host");
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("use {place}"),
                    format!("another route has {host} and path {} already", route.prefix),
                ));
            }
        }
        // Most specific first: a host before any host, then the longer path.
        routes.sort_by_key(|route| (route.host.is_none(), std::cmp::Reverse(route.prefix.len())));
        Ok(routes)
    }

    fn route(&self, said: &SaidRoute) -> Result<Route> {
        let own = |key: &str| said.values.get(key);
        let text = |key: &str| own(key).and_then(|said| said.values.last()).map(String::as_str);
        let refuse = |key: &str, why: String| {
            let origin = own(key).map_or(Origin::File(said.place.clone()), |said| said.origin.clone());
            bad(&origin, key, why)
        };
        let source = match (own("origins"), text("source")) {
            (Some(_), Some(_)) => {
                return Err(refuse("origins", "a route has a source or origins, not both".to_owned()));
            }
            (None, None) => return Err(refuse("source", "a route needs a source".to_owned())),
            (None, Some(path)) if !path.contains("://") => {
                if let Some((key, _)) = ROUTE_KEYS[ORIGIN_KEYS..].iter().find(|(key, _)| own(key).is_some()) {
                    return Err(refuse(key, "only a route whose source is an http:// URL has this".to_owned()));
                }
                Source::Directory(match &self.base {
                    Some(base) => base.join(path),
                    None => PathBuf::from(path),
                })
            }
            (origins, url) => {
                let key = if origins.is_some() { "origins" } else { "source" };
                let urls = origins.map_or_else(|| vec![url.unwrap_or_default().to_owned()], |said| said.values.clone());
                let urls =
                    urls.iter().map(|text| origin_url(text).map_err(|why| refuse(key, format!("`{text}` {why}"))));
                let urls = urls.collect::<Result<Vec<_>>>()?;
                if let Some((_, again)) = urls.iter().enumerate().find(|(at, url)| urls[..*at].contains(url)) {
                    return Err(refuse(key, format!("{again} stands there twice")));
                }
                if urls.is_empty() {
                    return Err(refuse(key, "at least one origin is needed".to_owned()));
                }
                Source::Origin(Box::new(origin_route(urls, &self.base, &own, &refuse)?))
            }
        };
        let mut prefix = text("path").unwrap_or("/").to_owned();
        if !prefix.starts_with('/')
            || prefix.contains("//")
            || prefix.split('/').any(|part| part == ".." || part == ".")
        {
            return Err(refuse("path", format!("`{prefix}` must begin with / and have no empty, . or .. part")));
        }
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        let engine = match text("engine") {
            Some(text) => engine(text).map_err(|why| refuse("engine", format!("`{text}` {why}")))?,
            None => self.read("engine", engine)?,
        };
        let revalidate = match text("revalidate") {
            Some(text) => time(text).map_err(|why| refuse("revalidate", format!("`{text}` {why}")))?,
            None => self.time("revalidate", Duration::ZERO, DAY)?,
        };
        let index = own("index").cloned().unwrap_or_else(|| self.get("index"));
        if let Some(name) = index.values.iter().find(|name| name.is_empty() || name.contains(['/', '\0'])) {
            return Err(bad(&index.origin, "index", format!("`{name}` is not a file name")));
        }
        let value = |key: &'static str| match text(key) {
            Some(text) if !text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) => {
                Err(refuse(key, "a header value is printable ASCII on one line".to_owned()))
            }
            text => Ok(text.map(str::to_owned)),
        };
        Ok(Route {
            host: text("host").map(|host| host.trim_end_matches('.').to_ascii_lowercase()),
            prefix,
            source,
            engine,
            index: index.values,
            revalidate,
            default_type: value("default_type")?.unwrap_or_else(|| "application/octet-stream".to_owned()),
            cache_control: value("cache_control")?,
        })
    }

    /// The merged settings as TOML, each with its origin in a comment.
    pub fn print_effective(&self, config: &Config) -> String {
        let mut out = String::new();
        for limits in [false, true] {
            if limits {
                out.push_str("\n[limits]\n");
            }
            for setting in SETTINGS.iter().filter(|setting| setting.limit == limits) {
                let said = self.get(setting.key);
                let quote = |text: &String| format!("{text:?}");
                let value = match (setting.kind, setting.key) {
                    (_, "cores") => format!("{:?}", write_cpu_list(&config.cores)),
                    (Kind::List, _) => format!("[{}]", said.values.iter().map(quote).collect::<Vec<_>>().join(", ")),
                    // A printed configuration goes into tickets and chats.
                    (_, "admin_token") if said.values.last().is_some_and(|text| !text.is_empty()) => {
                        "\"(set, not shown)\"".to_owned()
                    }
                    (Kind::Switch | Kind::Count, _) => said.values.last().cloned().unwrap_or_default(),
                    _ => said.values.last().map(quote).unwrap_or_else(|| "\"\"".to_owned()),
                };
                out.push_str(&format!("{} = {value} # {}\n", setting.key, said.origin));
            }
        }
        for route in &config.routes {
            out.push_str("\n[[route]]\n");
            if let Some(host) = &route.host {
                out.push_str(&format!("host = {host:?}\n"));
            }
            out.push_str(&format!("path = {:?}\n", route.prefix));
            match &route.source {
                Source::Directory(source) => out.push_str(&format!("source = {:?}\n", source.display().to_string())),
                Source::Origin(origin) => print_origin(&mut out, origin),
            }
            let engine = match route.engine {
                EngineChoice::Auto => "auto",
                EngineChoice::Send => "send",
                EngineChoice::SendZc => "send-zc",
                EngineChoice::Splice => "splice",
                EngineChoice::Sendfile => "sendfile",
            };
            out.push_str(&format!("engine = {engine:?}\nindex = {:?}\n", route.index));
            out.push_str(&format!("revalidate = {:?}\n", write_time(route.revalidate)));
            out.push_str(&format!("default_type = {:?}\n", route.default_type));
            if let Some(value) = &route.cache_control {
                out.push_str(&format!("cache_control = {value:?}\n"));
            }
        }
        out
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// The longest a response may be called fresh or usable: a year, as RFC 9111 readers expect.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// An `http://` URL without user, query or fragment.
pub fn origin_url(text: &str) -> std::result::Result<OriginUrl, String> {
    let rest = match text.split_once("://") {
        Some(("http", rest)) => rest,
        Some(("https", _)) => return Err("wants TLS, which ringway does not speak: use http://".to_owned()),
        _ => return Err("is not an http:// URL".to_owned()),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let target = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'<' | b'>' | b'\\');
    if !path.bytes().all(target) || path.contains("//") || path.split('/').any(|part| part == "." || part == "..") {
        return Err("has a path with an empty, . or .. part, a query, or bytes that must be percent-encoded".to_owned());
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            let port = port.parse().ok().filter(|port| *port != 0);
            (host, port.ok_or_else(|| "has no valid port".to_owned())?)
        }
        _ => (authority, 80),
    };
    let bare = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(six) if six.parse::<std::net::Ipv6Addr>().is_ok() => six,
        Some(_) => return Err("has no valid IPv6 address in its brackets".to_owned()),
        None => host,
    };
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if bare.is_empty() || bare == host && !bare.bytes().all(letter) {
        return Err("has no valid host name".to_owned());
    }
    Ok(OriginUrl { host: bare.to_ascii_lowercase(), port, prefix: path.trim_end_matches('/').to_owned() })
}

fn origin_route<'s>(
    origins: Vec<OriginUrl>,
    base: &Option<PathBuf>,
    own: &impl Fn(&str) -> Option<&'s Said>,
    refuse: &impl Fn(&str, String) -> Error,
) -> Result<OriginRoute> {
    let text = |key: &str| own(key).and_then(|said| said.values.last()).map(String::as_str);
    let time_of = |key: &'static str, least: Duration| match text(key) {
        None => Ok(None),
        Some(value) => match time(value) {
            Ok(value) if value < least || value > YEAR => {
                Err(refuse(key, format!("must lie between {least:?} and {YEAR:?}")))
            }
            Ok(value) => Ok(Some(value)),
            Err(why) => Err(refuse(key, format!("`{value}` {why}"))),
        },
    };
    let value = |key: &'static str| match text(key) {
        Some(text) if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(refuse(key, "must be printable ASCII without spaces".to_owned()))
        }
        text => Ok(text.map(str::to_owned)),
    };
    let choice = |key: &'static str, known: &[&str]| match text(key) {
        None => Ok(0),
        Some(word) => known
            .iter()
            .position(|known| *known == word)
            .ok_or_else(|| refuse(key, format!("`{word}` is none of {}", known.join(", ")))),
    };
    let balance = [Balance::RoundRobin, Balance::LeastInFlight, Balance::Hash]
        [choice("balance", &["round-robin", "least-in-flight", "hash"])?];
    let forwarded = [ForwardedRule::Append, ForwardedRule::Replace, ForwardedRule::Off]
        [choice("forwarded", &["append", "replace", "off"])?];
    let style = [S3Style::Path, S3Style::Host][choice("s3_style", &["path", "host"])?];
    let methods = own("methods").map_or_else(|| vec!["GET".to_owned(), "HEAD".to_owned()], |said| said.values.clone());
    let token = |method: &String| !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if let Some(method) = methods.iter().find(|method| !token(method) || *method == "CONNECT" || *method == "TRACE") {
        return Err(refuse("methods", format!("`{method}` is no method that can be passed on, such as GET or POST")));
    }
    let health_path = value("health_path")?;
    if health_path.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(refuse("health_path", "must begin with /".to_owned()));
    }
    let s3 = match value("s3_region")? {
        Some(region) => {
            let keys = match (value("s3_access_key")?, value("s3_secret_key")?) {
                (Some(access), Some(secret)) => Some((access, secret, value("s3_session_token")?)),
                (None, None) => None,
                _ => {
                    let why = "s3_access_key and s3_secret_key go together".to_owned();
                    return Err(refuse(
                        if text("s3_access_key").is_some() { "s3_access_key" } else { "s3_secret_key" },
                        why,
                    ));
                }
            };
            let bucket = value("s3_bucket")?;
            if style == S3Style::Host && bucket.is_none() {
                return Err(refuse("s3_style", "a bucket in the host name must be named by s3_bucket".to_owned()));
            }
            let file = text("s3_credentials_file").map(|file| match base {
                Some(base) => base.join(file),
                None => PathBuf::from(file),
            });
            Some(S3 { region, bucket, style, keys, file })
        }
        None => {
            const REST: [&str; 6] =
                ["s3_bucket", "s3_access_key", "s3_secret_key", "s3_session_token", "s3_credentials_file", "s3_style"];
            if let Some(key) = REST.iter().find(|key| own(key).is_some()) {
                return Err(refuse(key, "a route with signed requests needs s3_region".to_owned()));
            }
            None
        }
    };
    if s3.is_some() && methods.iter().any(|method| method != "GET" && method != "HEAD") {
        return Err(refuse("methods", "a route with signed requests passes GET and HEAD only".to_owned()));
    }
    Ok(OriginRoute {
        origins,
        balance,
        methods,
        cache: text("cache") != Some("false"),
        host: match text("host_header") {
            None | Some("origin") => HostRule::Origin,
            Some("client") => HostRule::Client,
            Some(_) => HostRule::Fixed(value("host_header")?.unwrap_or_default()),
        },
        forwarded,
        health_path,
        health_interval: time_of("health_interval", Duration::from_millis(100))?.unwrap_or(Duration::from_secs(5)),
        ttl: time_of("ttl", Duration::ZERO)?,
        ttl_override: time_of("ttl_override", Duration::ZERO)?,
        negative_ttl: time_of("negative_ttl", Duration::ZERO)?.unwrap_or(Duration::from_secs(5)),
        stale_while_revalidate: time_of("stale_while_revalidate", Duration::ZERO)?.unwrap_or_default(),
        stale_if_error: time_of("stale_if_error", Duration::ZERO)?.unwrap_or_default(),
        s3,
    })
}

fn print_origin(out: &mut String, route: &OriginRoute) {
    let urls: Vec<String> = route.origins.iter().map(OriginUrl::to_string).collect();
    let balance = match route.balance {
        Balance::RoundRobin => "round-robin",
        Balance::LeastInFlight => "least-in-flight",
        Balance::Hash => "hash",
    };
    let forwarded = match route.forwarded {
        ForwardedRule::Append => "append",
        ForwardedRule::Replace => "replace",
        ForwardedRule::Off => "off",
    };
    let host = match &route.host {
        HostRule::Origin => "origin",
        HostRule::Client => "client",
        HostRule::Fixed(name) => name,
    };
    out.push_str(&format!("origins = {urls:?}\nbalance = {balance:?}\nmethods = {:?}\n", route.methods));
    out.push_str(&format!("cache = {}\nhost_header = {host:?}\nforwarded = {forwarded:?}\n", route.cache));
    if let Some(path) = &route.health_path {
        out.push_str(&format!("health_path = {path:?}\nhealth_interval = {:?}\n", write_time(route.health_interval)));
    }
    let times = [
        ("ttl", route.ttl),
        ("ttl_override", route.ttl_override),
        ("negative_ttl", Some(route.negative_ttl)),
        ("stale_while_revalidate", Some(route.stale_while_revalidate)),
        ("stale_if_error", Some(route.stale_if_error)),
    ];
    for (key, time) in times {
        if let Some(time) = time {
            out.push_str(&format!("{key} = {:?}\n", write_time(time)));
        }
    }
    if let Some(s3) = &route.s3 {
        let style = if s3.style == S3Style::Path { "path" } else { "host" };
        out.push_str(&format!("s3_region = {:?}\ns3_style = {style:?}\n", s3.region));
        if let Some(bucket) = &s3.bucket {
            out.push_str(&format!("s3_bucket = {bucket:?}\n"));
        }
        if s3.keys.is_some() {
            out.push_str("# s3_access_key and s3_secret_key are set and not shown\n");
        }
    }
}

/// A time in the largest unit that says it exactly.
fn write_time(time: Duration) -> String {
    match time.as_micros() {
        micros if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        micros if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
        micros => format!("{micros}us"),
    }
}

fn file_route(place: &impl Fn(usize) -> String, at: String, table: &DeTable<'_>) -> Result<SaidRoute> {
    let mut said = SaidRoute { place: at, ..SaidRoute::default() };
    for (key, value) in table {
        let here = place(key.span().start);
        let name = key.get_ref().as_ref();
        let Some((known, kind)) = ROUTE_KEYS.iter().find(|(known, _)| *known == name) else {
            let hint = nearest(name, ROUTE_KEYS.iter().map(|(known, _)| *known));
            let why = format!("unknown key `{name}` of a route{hint}");
            return Err(Error::new(ErrorKind::Config, format!("use {here}"), why));
        };
        let values = texts(&here, known, *kind, value)?;
        said.values.insert(known, Said { values, origin: Origin::File(here) });
    }
    Ok(said)
}

fn wrong(place: &str, key: &str, want: &str) -> Error {
    Error::new(ErrorKind::Config, format!("use {place}: `{key}`"), format!("it must be {want}"))
}

/// A TOML value as texts, refused where its type does not fit the kind.
fn texts(place: &str, key: &str, kind: Kind, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>> {
    let one = |value: &DeValue<'_>| match (kind, value) {
        (Kind::Text | Kind::List | Kind::Size | Kind::Time, DeValue::String(text)) => Some(text.to_string()),
        (Kind::Size | Kind::Time | Kind::Count, DeValue::Integer(number)) => Some(number.to_string()),
        (Kind::Switch, DeValue::Boolean(on)) => Some(on.to_string()),
        _ => None,
    };
    let want = match kind {
        Kind::Text => "a text in quotes",
        Kind::List => "a text in quotes or an array of them",
        Kind::Size => "a number of bytes or a text such as \"128KiB\"",
        Kind::Time => "a number of seconds or a text such as \"30s\"",
        Kind::Count => "a whole number",
        Kind::Switch => "true or false",
    };
    let values = match (kind, value.get_ref()) {
        (Kind::List, DeValue::Array(items)) => items.iter().map(|item| one(item.get_ref())).collect(),
        (_, value) => one(value).map(|text| vec![text]),
    };
    values.ok_or_else(|| wrong(place, key, want))
}

fn within(value: u64, least: u64, most: u64) -> std::result::Result<u64, String> {
    if value < least || value > most {
        return Err(format!("must lie between {least} and {most}"));
    }
    Ok(value)
}

fn engine(text: &str) -> std::result::Result<EngineChoice, String> {
    Ok(match text {
        "auto" => EngineChoice::Auto,
        "send" => EngineChoice::Send,
        "send-zc" | "send_zc" => EngineChoice::SendZc,
        "splice" => EngineChoice::Splice,
        "sendfile" => EngineChoice::Sendfile,
        _ => return Err("is none of auto, send, send-zc, splice, sendfile".to_owned()),
    })
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '_').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn count(text: &str) -> std::result::Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| "is not a whole number".to_owned())
}

/// Bytes: a number, or one with k, KiB, M, MiB, G or GiB (all powers of 1024).
pub fn size(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("is not a size, such as 131072, 128KiB or 1MiB".to_owned()),
    };
    let number = count(digits).map_err(|_| "is not a size, such as 131072, 128KiB or 1MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "is too large".to_owned())
}

/// Time: a number of seconds, or one with us, ms, s, m or h.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    const BAD: &str = "is not a time, such as 30s, 500ms or 2m";
    let (digits, unit) = split_unit(text);
    let micros: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(BAD.to_owned()),
    };
    let number = count(digits).map_err(|_| BAD.to_owned())?;
    number.checked_mul(micros).map(Duration::from_micros).ok_or_else(|| "is too long".to_owned())
}

/// A list of CPU numbers such as `0-3,6`, in the order given.
pub fn parse_cpu_list(text: &str) -> std::result::Result<Vec<usize>, String> {
    const BAD: &str = "is not a list of CPUs, such as 0-3,6";
    /// The kernel's own limit of a CPU set here.
    const MOST: usize = 1024;
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|cpu| *cpu < MOST).ok_or(BAD);
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if last < first {
            return Err(BAD.to_owned());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("names CPU {cpu} twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// The same in short.
pub fn write_cpu_list(cpus: &[usize]) -> String {
    let mut out = String::new();
    let mut at = 0;
    while at < cpus.len() {
        let mut end = at;
        while end + 1 < cpus.len() && cpus[end + 1] == cpus[end] + 1 {
            end += 1;
        }
        let comma = if out.is_empty() { "" } else { "," };
        match end - at {
            0 => out.push_str(&format!("{comma}{}", cpus[at])),
            _ => out.push_str(&format!("{comma}{}-{}", cpus[at], cpus[end])),
        }
        at = end + 1;
    }
    out
}

/// The CPUs this process may use, from the text of /proc/self/status.
pub fn allowed_cpus(status: &str) -> Vec<usize> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .and_then(|list| parse_cpu_list(list.trim()).ok())
        .unwrap_or_else(|| vec![0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn understand(file: &str) -> std::result::Result<Config, String> {
        let mut sayings = Sayings::default();
        sayings.file("etc/r.toml", file).map_err(|error| error.to_string())?;
        sayings.understand(&[0, 1, 4]).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_refused_and_where() {
        let rows = [
            ("lissten = []", "cannot use etc/r.toml:1:1: unknown key `lissten`; did you mean `listen`?"),
            ("\n\nquiet = 5", "cannot use etc/r.toml:3:1: `quiet`: it must be true or false"),
            ("quiet = ", "cannot read etc/r.toml:1:9"),
            ("head_bytes = 500", "cannot use etc/r.toml:1:1: unknown key `head_bytes`; it belongs into [limits]"),
            ("[limits]\nquiet = true", "cannot use etc/r.toml:2:1: unknown key `quiet`; it stands outside [limits]"),
            ("[limits]\nhead_bites = 5", "unknown key `head_bites`; did you mean `head_bytes`?"),
            (
                "[limits]\nrecv_buffers_per_core = 100",
                "etc/r.toml:2:1: `recv_buffers_per_core`: must be a power of two, such as 128",
            ),
            ("[limits]\npipe_bytes = 70000", "must be a multiple of 4096 bytes"),
            ("[limits]\nheader_timeout = \"soon\"", "`soon` is not a time"),
            ("[limits]\nhead_bytes = \"1GiB\"", "must lie between 256 and 65536"),
            ("[limits]\nbacklog = \"many\"", "it must be a whole number"),
            ("limits = 5", "it must be a table"),
            ("route = 5", "write [[route]]"),
            ("[[route]]\npath = \"/\"", "etc/r.toml:1:1: `source`: a route needs a source"),
            ("[[route]]\nsorce = \"x\"", "etc/r.toml:2:1: unknown key `sorce` of a route; did you mean `source`?"),
            ("[[route]]\nsource = \"https://o\"", "`https://o` wants TLS, which ringway does not speak: use http://"),
            ("[[route]]\nsource = \"ftp://o\"", "is not an http:// URL"),
            ("[[route]]\nsource = \"http://\"", "has no valid host name"),
            ("[[route]]\nsource = \"http://o:0\"", "has no valid port"),
            ("[[route]]\nsource = \"http://[::1\"", "has no valid host name"),
            ("[[route]]\nsource = \"http://o/a?b\"", "a query"),
            ("[[route]]\nsource = \"http://o/../a\"", "an empty, . or .. part"),
            ("[[route]]\nsource = \"http://o\"\norigins = [\"http://p\"]", "a source or origins, not both"),
            ("[[route]]\norigins = [\"http://p\", \"http://P\"]", "http://p stands there twice"),
            ("[[route]]\norigins = []", "at least one origin is needed"),
            (
                "[[route]]\nsource = \"x\"\nttl = 5",
                "r.toml:3:1: `ttl`: only a route whose source is an http:// URL has this",
            ),
            ("[[route]]\nsource = \"http://o\"\nbalance = \"best\"", "is none of round-robin, least-in-flight, hash"),
            ("[[route]]\nsource = \"http://o\"\nmethods = [\"get\"]", "`get` is no method"),
            ("[[route]]\nsource = \"http://o\"\nhealth_path = \"x\"", "must begin with /"),
            ("[[route]]\nsource = \"http://o\"\ns3_style = \"path\"", "needs s3_region"),
            ("[[route]]\nsource = \"http://o\"\ns3_region = \"r\"\ns3_access_key = \"k\"", "go together"),
            ("cache_slice = 100000", "`100000` must be a power of two, such as 131072"),
            ("cache_on_leave = \"wait\"", "is none of stop, slice, finish"),
            ("admin = \"unix:\"", "`unix:` has no path"),
            ("[[route]]\nsource = \"x\"\npath = \"a\"", "must begin with /"),
            ("[[route]]\nsource = \"x\"\ncache_control = \"a\\r\\nb\"", "printable ASCII"),
            ("[[route]]\nsource = \"x\"\n[[route]]\nsource = \"y\"", "another route has any host and path / already"),
            ("[[route]]\nsource = \"x\"\nengine = \"warp\"", "`warp` is none of auto, send"),
            ("cores = \"0-3\"", "CPU 2 is not among those this process may use (0-1,4)"),
            ("cores = \"0,0\"", "names CPU 0 twice"),
            ("listen = [\"x\"]", "`x` is not an address"),
            ("listen = [\"1.2.3.4:5\", \"1.2.3.4:5\"]", "stands there twice"),
            ("listen = \"1.2.3.4:5\"\nadmin = \"1.2.3.4:5\"", "an address to serve on too"),
            ("", "no SOURCE was given"),
        ];
        for (file, want) in rows {
            // Order matters only where a row is about it.
            let file = if file.contains("route") || file.is_empty() {
                file.to_owned()
            } else {
                format!("{file}\n[[route]]\nsource = \"x\"")
            };
            let told = understand(&file).expect_err(&file);
            assert!(told.contains(want), "{file:?}: {told}");
        }
    }

    #[test]
    fn flags_beat_the_environment_beats_the_file() {
        let mut sayings = Sayings::default();
        sayings.file("r.toml", "listen = \"1.1.1.1:1\"\nengine = \"send\"\ndrain_timeout = 5\n").expect("file");
        sayings.environment([
            ("RINGWAY_LISTEN".into(), "2.2.2.2:2, 3.3.3.3:3".into()),
            ("RINGWAY_ENGINE".into(), "splice".into()),
            ("RINGWAY_LOG".into(), "debug".into()),
            ("RINGWAY_ENGIN".into(), "x".into()),
            ("PATH".into(), "x".into()),
        ]);
        sayings.flag("engine", vec!["sendfile".into()]);
        sayings.source = Some("site".into());
        let config = sayings.understand(&[0]).expect("good");
        assert_eq!(config.listen.len(), 2);
        assert_eq!(config.drain_timeout, Duration::from_secs(5));
        assert_eq!(config.routes[0].engine, EngineChoice::Sendfile);
        assert_eq!(config.routes[0].source, Source::Directory("site".into()), "not relative to the file");
        assert_eq!(sayings.warnings, ["RINGWAY_ENGIN in the environment is no setting; did you mean `engine`?"]);
        let printed = sayings.print_effective(&config);
        for line in [
            "listen = [\"2.2.2.2:2\", \"3.3.3.3:3\"] # environment RINGWAY_LISTEN",
            "engine = \"sendfile\" # --engine",
            "drain_timeout = \"5\" # r.toml:3:1",
            "head_bytes = \"16KiB\" # default",
        ] {
            assert!(printed.contains(line), "{line} in\n{printed}");
        }
    }

    #[test]
    fn what_is_printed_means_the_same_again() {
        let mut sayings = Sayings::default();
        sayings.file("/r.toml", "[[route]]\nsource = \"/a\"\nhost = \"H.example.\"\npath = \"/p\"\n").expect("file");
        sayings.source = Some("/b".into());
        let config = sayings.understand(&[0, 1]).expect("good");
        let mut again = Sayings::default();
        again.file("/again.toml", &sayings.print_effective(&config)).expect("printed");
        assert_eq!(again.understand(&[0, 1]).expect("good"), config);
        assert_eq!(config.routes[0].host.as_deref(), Some("h.example"));
        assert_eq!(config.routes[0].prefix, "/p/");
    }

    #[test]
    fn every_default_is_good() {
        let mut sayings = Sayings { source: Some("x".into()), ..Sayings::default() };
        sayings.flag("quiet", vec!["true".into()]);
        let config = sayings.understand(&[0]).expect("defaults");
        assert_eq!(config.limits.turn_time, Duration::from_micros(500));
        assert_eq!(config.notsent_lowat, 131_072);
        assert!(config.quiet);
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(size("128KiB"), Ok(131_072));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("1_000"), Ok(1000));
        assert!(size("").is_err() && size("x").is_err() && size("1TiB").is_err() && size("99999999999G").is_err());
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(time("7"), Ok(Duration::from_secs(7)));
        assert!(time("").is_err() && time("1d").is_err() && time("-1s").is_err());
    }

    proptest! {
        #[test]
        fn a_cpu_list_is_read_as_written(mut cpus in proptest::collection::btree_set(0usize..200, 1..30)) {
            let cpus: Vec<usize> = std::mem::take(&mut cpus).into_iter().collect();
            prop_assert_eq!(parse_cpu_list(&write_cpu_list(&cpus)), Ok(cpus));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse_cpu_list(&text);
            let _ = size(&text);
            let _ = time(&text);
            let _ = understand(&text);
        }
    }
}
