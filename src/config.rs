//! What it means: flags over environment over a TOML file, one validated [`Config`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Time one turn of the loop gives to bulk transfers before it looks at the ring again, default 250 us.
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
