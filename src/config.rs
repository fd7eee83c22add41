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
}

/// One validated meaning of everything that was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Addresses to serve on; port 0 picks a free port.
    pub listen: Vec<SocketAddr>,
    /// CPU numbers, one ring thread each.
    pub cores: Vec<usize>,
    /// Address of the admin listener; `None` is off.
    pub admin: Option<SocketAddr>,
    /// Routes, most specific first.
    pub routes: Vec<Route>,
    /// TCP_CONGESTION of the listeners, if any.
    pub congestion: Option<String>,
    /// TCP_NOTSENT_LOWAT of the listeners, default 128 KiB; 0 leaves the system's.
    pub notsent_lowat: u32,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Only warnings and errors.
    pub quiet: bool,
    /// How long a drain may take.
    pub drain_timeout: Duration,
    /// Every bound.
    pub limits: Limits,
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
    setting("admin", Kind::Text, "127.0.0.1:9880", "Address of /metrics, /healthz and /readyz, or off"),
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
];

/// Keys a `[[route]]` may have.
const ROUTE_KEYS: &[&str] =
    &["host", "path", "source", "engine", "index", "revalidate", "default_type", "cache_control"];

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
        let admin = self.read("admin", |text| match text {
            "off" => Ok(None),
            text => text.parse().map(Some).map_err(|_| "is not an address with a port, nor off".to_owned()),
        })?;
        if let Some(address) = admin.filter(|address: &SocketAddr| address.port() != 0 && listen.contains(address)) {
            return Err(bad(&self.get("admin").origin, "admin", format!("{address} is an address to serve on too")));
        }
        let congestion = Some(self.read("congestion", |text| Ok(text.to_owned()))?).filter(|name| !name.is_empty());
        let limits = self.limits()?;
        Ok(Config {
            listen,
            cores: self.cores(allowed)?,
            admin,
            routes: self.routes()?,
            congestion,
            notsent_lowat: self.size("notsent_lowat", 0, 1 << 30)? as u32,
            log_format: self.read("log_format", |text| match text {
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                _ => Err("is neither text nor json".to_owned()),
            })?,
            quiet: self.read("quiet", |text| text.parse().map_err(|_| "is neither true nor false".to_owned()))?,
            drain_timeout: self.time("drain_timeout", Duration::ZERO, DAY)?,
            limits,
        })
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
        })
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
            route.source = Source::Directory(PathBuf::from(source));
            routes.push(route);
        }
        if routes.is_empty() {
            let kind = if self.base.is_some() { ErrorKind::Config } else { ErrorKind::Usage };
            return Err(Error::new(kind, "serve nothing", "no SOURCE was given and no [[route]] has one")
                .remedy("ringway serve DIRECTORY"));
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
        let source = text("source").ok_or_else(|| refuse("source", "a route needs a source".to_owned()))?;
        if source.contains("://") {
            return Err(refuse("source", format!("`{source}`: only directories can be served so far, not origins")));
        }
        let source = match &self.base {
            Some(base) => base.join(source),
            None => PathBuf::from(source),
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
            source: Source::Directory(source),
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
                    (Kind::Switch | Kind::Count, _) => said.values.last().cloned().unwrap_or_default(),
                    _ => said.values.last().map(quote).unwrap_or_else(|| "\"\"".to_owned()),
                };
                out.push_str(&format!("{} = {value} # {}\n", setting.key, said.origin));
            }
        }
        for route in &config.routes {
            let Source::Directory(source) = &route.source;
            out.push_str("\n[[route]]\n");
            if let Some(host) = &route.host {
                out.push_str(&format!("host = {host:?}\n"));
            }
            out.push_str(&format!("path = {:?}\nsource = {:?}\n", route.prefix, source.display().to_string()));
            let engine = match route.engine {
                EngineChoice::Auto => "auto",
                EngineChoice::Send => "send",
                EngineChoice::SendZc => "send-zc",
                EngineChoice::Splice => "splice",
                EngineChoice::Sendfile => "sendfile",
            };
            out.push_str(&format!("engine = {engine:?}\nindex = {:?}\n", route.index));
            out.push_str(&format!("revalidate = \"{}us\"\n", route.revalidate.as_micros()));
            out.push_str(&format!("default_type = {:?}\n", route.default_type));
            if let Some(value) = &route.cache_control {
                out.push_str(&format!("cache_control = {value:?}\n"));
            }
        }
        out
    }
}

const DAY: Duration = Duration::from_secs(86_400);

fn file_route(place: &impl Fn(usize) -> String, at: String, table: &DeTable<'_>) -> Result<SaidRoute> {
    let mut said = SaidRoute { place: at, ..SaidRoute::default() };
    for (key, value) in table {
        let here = place(key.span().start);
        let name = key.get_ref().as_ref();
        let Some(known) = ROUTE_KEYS.iter().find(|known| **known == name) else {
            let hint = nearest(name, ROUTE_KEYS.iter().copied());
            let why = format!("unknown key `{name}` of a route{hint}");
            return Err(Error::new(ErrorKind::Config, format!("use {here}"), why));
        };
        let kind = match *known {
            "index" => Kind::List,
            "revalidate" => Kind::Time,
            _ => Kind::Text,
        };
        let values = texts(&here, known, kind, value)?;
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
            ("[[route]]\nsource = \"http://o\"", "only directories"),
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
