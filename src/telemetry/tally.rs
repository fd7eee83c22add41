//! Plain per-core integers: the only thing the request path ever touches to be measured.
//!
//! One [`Tally`] per core, written by its core alone with relaxed load + store (a plain add in machine code, no
//! `lock` prefix), read by the control thread. It exists apart from the names and the rendering so that the data path
//! imports no strings. Invariant: every cell has exactly one writing thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter or gauge with one writer and any number of readers.
#[derive(Default, Debug)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds `n`; only the owning core may call this.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Subtracts `n`, for gauges; only the owning core may call this.
    #[inline(always)]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }
    /// Sets the value, for gauges; only the owning core may call this.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
    /// Reads the value, from any thread.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A histogram with fixed bucket bounds; values and bounds are integers (nanoseconds for times).
#[derive(Debug)]
pub struct Buckets<const N: usize> {
    bounds: &'static [u64; N],
    cells: [Cell; N],
    over: Cell,
    sum: Cell,
}

impl<const N: usize> Buckets<N> {
    /// An empty histogram over ascending, inclusive upper `bounds`.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        Self { bounds, cells: std::array::from_fn(|_| Cell::default()), over: Cell::default(), sum: Cell::default() }
    }
    /// Counts one observation; only the owning core may call this.
    #[inline]
    pub fn record(&self, value: u64) {
        self.sum.add(value);
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.cells.get(at).unwrap_or(&self.over).add(1);
    }
    /// The inclusive upper bounds, ascending, without the last (+Inf) one.
    pub fn bounds(&self) -> &'static [u64; N] {
        self.bounds
    }
    /// Observations per bucket, not cumulative; the last entry is what lay above every bound.
    pub fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.cells.iter().chain(std::iter::once(&self.over)).map(Cell::get)
    }
    /// The sum of all observed values, in the unit of the bounds.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

/// 1-2.5-5 steps from 50 us to 10 s, in nanoseconds: time to first byte.
pub static TTFB_NS: [u64; 17] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
/// 1-2.5-5 steps from 1 ms to 300 s, in nanoseconds: whole transfers.
pub static TRANSFER_NS: [u64; 17] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
];
/// 50 us to 1 s, in nanoseconds: one turn of the loop, one storage read, one zero-copy notification.
pub static LOOP_NS: [u64; 14] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];
/// Powers of two from 1 to 1024: completions reaped per enter.
pub static BATCH: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Declares an enum whose variants index an array of cells and spell one label value each.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[allow(missing_docs)]
        pub enum $name { $($variant),+ }
        impl $name {
            /// Every value, in the order of the cells.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The label value as it stands in the metrics.
            pub fn label(self) -> &'static str { match self { $($name::$variant => $text),+ } }
        }
    };
}

label!(/// Which engine carried bytes to a client.
    Engine { Send = "send", SendZc = "send_zc", Splice = "splice", Sendfile = "sendfile" });
label!(/// The kernel's verdict on one zero-copy send.
    ZcResult { ZeroCopied = "zerocopied", Copied = "copied", Unreported = "unreported" });
label!(/// Where file bytes came from.
    ReadSource { PageCache = "page_cache", Storage = "storage" });
label!(/// Outcome of a lookup in the open-file cache.
    FileLookup { Hit = "hit", Miss = "miss", Stale = "stale", Negative = "negative" });
label!(/// Outcome of a lookup in the content cache.
    ContentLookup { Hit = "hit", Miss = "miss" });
label!(/// What a connection is doing.
    ConnState { Reading = "reading", Writing = "writing", Idle = "idle", Closing = "closing" });
label!(/// Why a connection ended.
    CloseReason { Client = "client", Done = "done", KeepAlive = "keepalive", HeaderTimeout = "header_timeout", SendTimeout = "send_timeout", Refused = "refused", Error = "error", Drain = "drain" });
label!(/// Why a connection was not served.
    RejectReason { Limit = "limit", Emfile = "emfile", Error = "error" });
label!(/// Request methods, folded.
    MethodLabel { Get = "GET", Head = "HEAD", Other = "other" });
label!(/// Classes of status codes.
    CodeClass { C1 = "1xx", C2 = "2xx", C3 = "3xx", C4 = "4xx", C5 = "5xx" });
label!(/// Why a body was cut short after its status line.
    AbortReason { ClientReset = "client_reset", SendTimeout = "send_timeout", FileShrank = "file_shrank", FileChanged = "file_changed", ReadError = "read_error", SendError = "send_error", Drain = "drain", Upstream = "upstream" });
label!(/// Kinds of range requests.
    RangeKind { Single = "single", Multi = "multi", Unsatisfiable = "unsatisfiable" });
label!(/// Stages of a splice.
    SpliceStage { FileToPipe = "file_to_pipe", PipeToSocket = "pipe_to_socket" });
label!(/// Results of one splice.
    SpliceResult { Full = "full", Short = "short", Again = "again" });
label!(/// Why a pipe could not be had as wanted.
    PipeFailure { Emfile = "emfile", PagesLimit = "pages_limit", Other = "other" });
label!(/// Why one engine was left for another.
    FallbackReason { Cold = "cold", Warm = "warm", RouteCopies = "route_copies", NoPipe = "no_pipe", NoArena = "no_arena", SlowNotify = "slow_notify", Unsupported = "unsupported" });
label!(/// Negative completions by errno, bounded.
    RingErrno { Again = "EAGAIN", Canceled = "ECANCELED", Pipe = "EPIPE", ConnReset = "ECONNRESET", NoBufs = "ENOBUFS", Time = "ETIME", NoMem = "ENOMEM", Mfile = "EMFILE", Noent = "ENOENT", Xdev = "EXDEV", Inval = "EINVAL", Already = "EALREADY", Other = "other" });
label!(/// Named limits, counted when they were hit.
    Limit { Connections = "connections_per_core", HeadBytes = "head_bytes", HeaderCount = "header_count", TargetBytes = "target_bytes", BodyBytes = "discard_body_bytes", HeaderTimeout = "header_timeout", KeepAliveTimeout = "keepalive_timeout", SendTimeout = "send_timeout", Ops = "ops_per_core", RecvBuffers = "recv_buffers_per_core", Arena = "arena_bytes_per_core", Pipes = "pipes_per_core", OpenFiles = "open_files_per_core", ContentCache = "content_cache_bytes", ContentObject = "content_object_bytes", TurnBytes = "turn_bytes", TurnTime = "turn_time", KeepAliveRequests = "keepalive_requests", Inbox = "inbox_buffers", DrainTimeout = "drain_timeout", OriginConnections = "origin_connections_per_core", OriginQueue = "origin_queue", OriginQueueTimeout = "origin_queue_timeout", OriginConnectTimeout = "origin_connect_timeout", OriginFirstByteTimeout = "origin_first_byte_timeout", OriginProgressTimeout = "origin_progress_timeout", OriginRetries = "origin_retries", OriginHeadBytes = "origin_head_bytes", CacheObjectBytes = "cache_object_bytes", CacheBytes = "cache_bytes", CacheObjects = "cache_objects", CacheFreeBytes = "cache_free_bytes" });
label!(/// How a connect to an origin ended.
    ConnectResult { Ok = "ok", Timeout = "timeout", Refused = "refused", Error = "error" });
label!(/// Why an exchange with an origin failed.
    UpstreamError { Connect = "connect", Timeout = "timeout", Reset = "reset", ShortBody = "short_body", Protocol = "protocol", Auth = "auth", Queue = "queue" });
label!(/// Classes of an origin's status codes.
    UpstreamCode { C1 = "1xx", C2 = "2xx", C3 = "3xx", C4 = "4xx", C5 = "5xx", None = "none" });
label!(/// What the cache did for a request.
    CacheResult { Hit = "hit", Miss = "miss", Stale = "stale", Revalidated = "revalidated", Bypass = "bypass", Coalesced = "coalesced", Error = "error" });
label!(/// How a fill ended.
    FillResult { Ok = "ok", Aborted = "aborted", TooLarge = "too_large", Error = "error" });
label!(/// Why an object left the cache.
    Eviction { Capacity = "capacity", Expired = "expired", Purge = "purge", Changed = "changed", Broken = "broken" });
label!(/// Why bytes were served and not stored.
    StoreFailure { NoSpace = "enospc", Io = "eio", LowSpace = "low_space", Journal = "journal", Other = "other" });

/// Routes beyond this many share the last row of the per-route cells.
pub const ROUTES_MAX: usize = 32;
/// Origins beyond this many share the last row of the per-origin cells.
pub const ORIGINS_MAX: usize = 64;
/// Listeners beyond this many share the last cell.
pub const LISTENERS_MAX: usize = 16;

/// One row per route.
#[derive(Debug)]
pub struct RouteTally {
    /// Requests by method and code class.
    pub requests: [[Cell; 5]; 3],
    /// Bodies cut short, by reason.
    pub aborted: [Cell; AbortReason::ALL.len()],
    /// Range requests by kind.
    pub ranges: [Cell; 3],
    /// Request head complete to first byte queued.
    pub ttfb: Buckets<17>,
    /// First byte to last byte accepted by the socket.
    pub transfer: Buckets<17>,
}

impl Default for RouteTally {
    fn default() -> Self {
        Self {
            requests: Default::default(),
            aborted: Default::default(),
            ranges: Default::default(),
            ttfb: Buckets::new(&TTFB_NS),
            transfer: Buckets::new(&TRANSFER_NS),
        }
    }
}

/// One row per origin.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct OriginTally {
    pub connects: [Cell; ConnectResult::ALL.len()],
    /// Requests on a kept connection.
    pub reuses: Cell,
    pub requests: [Cell; UpstreamCode::ALL.len()],
    pub errors: [Cell; UpstreamError::ALL.len()],
    pub retries: Cell,
    /// Request sent to first byte.
    pub ttfb: Buckets<17>,
    /// Time in the queue for a connection.
    pub pool_wait: Buckets<17>,
    /// Body bytes received.
    pub received: Cell,
    pub idle: Cell,
    pub busy: Cell,
    pub connecting: Cell,
}

impl Default for OriginTally {
    fn default() -> Self {
        Self {
            connects: Default::default(),
            reuses: Default::default(),
            requests: Default::default(),
            errors: Default::default(),
            retries: Default::default(),
            ttfb: Buckets::new(&TTFB_NS),
            pool_wait: Buckets::new(&TTFB_NS),
            received: Default::default(),
            idle: Default::default(),
            busy: Default::default(),
            connecting: Default::default(),
        }
    }
}

/// What the cache counts for the whole process: slow-path events only, so any thread may add.
#[derive(Default, Debug)]
#[allow(missing_docs)]
pub struct CacheCounts {
    pub size_bytes: AtomicU64,
    pub capacity_bytes: AtomicU64,
    pub objects: AtomicU64,
    pub evictions: [AtomicU64; Eviction::ALL.len()],
    pub store_failures: [AtomicU64; StoreFailure::ALL.len()],
    /// Slices that did not have the checksum they were stored with.
    pub verify_failures: AtomicU64,
    /// Slices read back and found right after a restart.
    pub verified: AtomicU64,
}

impl CacheCounts {
    /// Counts an object that left.
    pub fn evicted(&self, reason: Eviction) {
        self.evictions[reason as usize].fetch_add(1, Relaxed);
    }
    /// Counts something that could not be stored.
    pub fn not_stored(&self, reason: StoreFailure) {
        self.store_failures[reason as usize].fetch_add(1, Relaxed);
    }
}

/// Everything one core counts. Index arrays by `EnumVariant as usize`.
#[repr(align(128))]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Tally {
    /// Bytes given to client sockets by the engine that carried them, bodies only.
    pub body_bytes: [Cell; 4],
    /// Response heads (and bodies of error replies), always carried by `send`.
    pub head_bytes: Cell,
    /// Bytes read from clients.
    pub received_bytes: Cell,
    pub requests: Cell,
    pub requests_in_flight: Cell,
    pub routes: Vec<RouteTally>,
    pub accepted: [Cell; LISTENERS_MAX],
    pub closed: [Cell; CloseReason::ALL.len()],
    pub rejected: [Cell; RejectReason::ALL.len()],
    pub connections: [Cell; 4],
    pub limit_hits: [Cell; Limit::ALL.len()],
    /// Nanoseconds the loop worked.
    pub loop_busy_ns: Cell,
    /// Nanoseconds the loop waited in the kernel.
    pub loop_wait_ns: Cell,
    pub loop_turn: Buckets<14>,
    /// Unix time of the last turn, in milliseconds.
    pub last_turn_unix_ms: Cell,
    pub ring_sqes: Cell,
    pub ring_cqes: Cell,
    /// Enters that did not wait.
    pub ring_enters_submit: Cell,
    /// Enters that waited.
    pub ring_enters_wait: Cell,
    pub ring_inflight: Cell,
    pub ring_overflows: Cell,
    pub ring_sq_full: Cell,
    pub ring_errors: [Cell; RingErrno::ALL.len()],
    pub ring_batch: Buckets<11>,
    pub ring_buffers_available: Cell,
    /// Operations whose owner left before their completion.
    pub ring_orphans: Cell,
    pub zc_sends: [Cell; 3],
    pub zc_bytes: [Cell; 3],
    pub zc_pending_bytes: Cell,
    pub zc_notify: Buckets<14>,
    /// Engine switches, indexed by from, to and reason.
    pub fallbacks: [[[Cell; FallbackReason::ALL.len()]; 4]; 4],
    pub splices: [[Cell; 3]; 2],
    /// Bytes thrown out of pipes because the socket did not take them (they are read again).
    pub pipe_discarded_bytes: Cell,
    pub pipes_idle: Cell,
    pub pipes_busy: Cell,
    pub pipe_capacity_bytes: Cell,
    pub pipe_failures: [Cell; 3],
    /// Arena buffers.
    pub buffers_idle: Cell,
    pub buffers_busy: Cell,
    pub buffer_pool_bytes: Cell,
    pub slow_clients: Cell,
    /// Quanta of bodies by engine: one call, chain, or read and send each.
    pub quanta: [Cell; 4],
    /// Nanoseconds from the start of a quantum to its result.
    pub quantum_ns: [Cell; 4],
    /// Quanta that moved less than they asked for.
    pub quanta_short: [Cell; 4],
    /// Quanta that found the socket full.
    pub quanta_full: [Cell; 4],
    /// Waits of a transfer for room in its socket.
    pub socket_waits: Cell,
    pub file_read_bytes: [Cell; 2],
    pub file_reads: [Cell; 2],
    pub file_read_page_cache: Buckets<14>,
    pub file_read_storage: Buckets<14>,
    pub open_files: Cell,
    pub file_lookups: [Cell; 4],
    pub content_lookups: [Cell; 2],
    pub content_bytes: Cell,
    pub content_objects: Cell,
    /// Records of the access log for which its lane had no room.
    pub log_dropped: Cell,
    /// Lines written; the log's thread is the writer.
    pub log_written: Cell,
    /// Lines lost because they could not be written; the log's thread is the writer.
    pub log_failed: Cell,
    /// One row per origin, in the order of the routes.
    pub origins: Vec<OriginTally>,
    pub cache_requests: [Cell; CacheResult::ALL.len()],
    pub cache_served: [Cell; CacheResult::ALL.len()],
    /// Bytes written into the cache.
    pub cache_fill_bytes: Cell,
    pub cache_fills: [Cell; FillResult::ALL.len()],
    pub cache_fills_in_flight: Cell,
    /// Requests waiting for bytes that are being filled.
    pub cache_waiters: Cell,
}

impl Tally {
    /// A tally at zero for `routes` routes.
    pub fn new(routes: usize) -> Self {
        Self::with_origins(routes, 0)
    }

    /// A tally at zero for `routes` routes and `origins` origins.
    pub fn with_origins(routes: usize, origins: usize) -> Self {
        let rows = routes.clamp(1, ROUTES_MAX);
        Self {
            body_bytes: Default::default(),
            head_bytes: Default::default(),
            received_bytes: Default::default(),
            requests: Default::default(),
            requests_in_flight: Default::default(),
            routes: (0..rows).map(|_| RouteTally::default()).collect(),
            accepted: Default::default(),
            closed: Default::default(),
            rejected: Default::default(),
            connections: Default::default(),
            limit_hits: Default::default(),
            loop_busy_ns: Default::default(),
            loop_wait_ns: Default::default(),
            loop_turn: Buckets::new(&LOOP_NS),
            last_turn_unix_ms: Default::default(),
            ring_sqes: Default::default(),
            ring_cqes: Default::default(),
            ring_enters_submit: Default::default(),
            ring_enters_wait: Default::default(),
            ring_inflight: Default::default(),
            ring_overflows: Default::default(),
            ring_sq_full: Default::default(),
            ring_errors: Default::default(),
            ring_batch: Buckets::new(&BATCH),
            ring_buffers_available: Default::default(),
            ring_orphans: Default::default(),
            zc_sends: Default::default(),
            zc_bytes: Default::default(),
            zc_pending_bytes: Default::default(),
            zc_notify: Buckets::new(&LOOP_NS),
            fallbacks: Default::default(),
            splices: Default::default(),
            pipe_discarded_bytes: Default::default(),
            pipes_idle: Default::default(),
            pipes_busy: Default::default(),
            pipe_capacity_bytes: Default::default(),
            pipe_failures: Default::default(),
            buffers_idle: Default::default(),
            buffers_busy: Default::default(),
            buffer_pool_bytes: Default::default(),
            slow_clients: Default::default(),
            quanta: Default::default(),
            quantum_ns: Default::default(),
            quanta_short: Default::default(),
            quanta_full: Default::default(),
            socket_waits: Default::default(),
            file_read_bytes: Default::default(),
            file_reads: Default::default(),
            file_read_page_cache: Buckets::new(&LOOP_NS),
            file_read_storage: Buckets::new(&LOOP_NS),
            open_files: Default::default(),
            file_lookups: Default::default(),
            content_lookups: Default::default(),
            content_bytes: Default::default(),
            content_objects: Default::default(),
            log_dropped: Default::default(),
            log_written: Default::default(),
            log_failed: Default::default(),
            origins: (0..origins.min(ORIGINS_MAX)).map(|_| OriginTally::default()).collect(),
            cache_requests: Default::default(),
            cache_served: Default::default(),
            cache_fill_bytes: Default::default(),
            cache_fills: Default::default(),
            cache_fills_in_flight: Default::default(),
            cache_waiters: Default::default(),
        }
    }

    /// Counts one hit of a named limit.
    #[inline]
    pub fn hit(&self, limit: Limit) {
        self.limit_hits[limit as usize].add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_lands_in_the_first_bucket_that_is_not_below_it() {
        static BOUNDS: [u64; 3] = [10, 20, 30];
        let buckets = Buckets::new(&BOUNDS);
        for value in [0, 10, 11, 20, 30, 31, 1 << 60] {
            buckets.record(value);
        }
        assert_eq!(buckets.counts().collect::<Vec<_>>(), [2, 2, 1, 2]);
        assert_eq!(buckets.sum(), 10 + 11 + 20 + 30 + 31 + (1 << 60));
    }
}
