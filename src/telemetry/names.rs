//! Every metric: name, type, help. Nothing else in the tree spells one.
//!
//! Prometheus conventions: one prefix, base units, `_total` on counters; a sum over all labels of a family means
//! something. Labels: `core` is the worker's index, `route` and `listener` come from the configuration.

/// Type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

impl Type {
    /// As in a TYPE line.
    pub fn text(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        }
    }
}

/// A family of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: Type,
    /// One sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident $kind:ident $name:literal $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Family = Family { name: $name, kind: Type::$kind, help: $help };)*
        /// All of them, in the order they are rendered.
        pub const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD_INFO Gauge "ringway_build_info" "Constant 1 with version and target as labels.";
    CAPABILITY Gauge "ringway_capability_enabled" "Whether a kernel feature was found by probing and is in use.";
    READY Gauge "ringway_ready" "What /readyz says now.";
    DRAINING Gauge "ringway_draining" "Whether a drain is in progress.";
    CORE_INFO Gauge "ringway_core_info" "Constant 1 that maps a core to its CPU.";
    MEMLOCK_LIMIT Gauge "ringway_memlock_limit_bytes" "RLIMIT_MEMLOCK (soft) in bytes; -1 is unlimited.";
    SENT_BYTES Counter "ringway_sent_bytes_total" "Bytes given to client sockets by the engine that carried them, response heads and bodies told apart (heads always go by send).";
    RECEIVED_BYTES Counter "ringway_received_bytes_total" "Bytes read from clients.";
    CORE_REQUESTS Counter "ringway_core_requests_total" "Requests answered on a core.";
    CORE_CPU Counter "ringway_core_cpu_seconds_total" "CPU time of the ring thread (worker) and of its io-wq helpers (iowq).";
    CORE_LOOP Counter "ringway_core_loop_seconds_total" "Wall time of the event loop: busy outside a waiting enter, wait inside one (which also submits).";
    CORE_LOOP_DURATION Histogram "ringway_core_loop_duration_seconds" "Work of one turn of the event loop, all cores.";
    CORE_LAST_LOOP Gauge "ringway_core_last_loop_timestamp_seconds" "Unix time of a core's last turn.";
    CORE_RUN_DELAY Counter "ringway_core_run_delay_seconds_total" "Time a ring thread was runnable but not running.";
    CORE_SWITCHES Counter "ringway_core_context_switches_total" "Context switches of a ring thread.";
    HOST_CPU Counter "ringway_host_cpu_seconds_total" "Time of the CPUs that carry cores, by mode, as /proc/stat has it.";
    RING_SQES Counter "ringway_ring_sqes_total" "Submission queue entries taken by the kernel.";
    RING_CQES Counter "ringway_ring_cqes_total" "Completions reaped.";
    RING_ENTERS Counter "ringway_ring_enters_total" "io_uring_enter calls that only submitted (submit) or could wait (wait).";
    RING_INFLIGHT Gauge "ringway_ring_inflight" "Operations submitted and not yet completed.";
    RING_BATCH Histogram "ringway_ring_batch_size" "Completions reaped at once, all cores.";
    RING_OVERFLOWS Counter "ringway_ring_cq_overflows_total" "Completion queue overflows as the kernel counts them.";
    RING_SQ_FULL Counter "ringway_ring_sq_full_total" "Times the submission queue was full.";
    RING_ERRORS Counter "ringway_ring_errors_total" "Failed completions by errno.";
    RING_WORKERS Gauge "ringway_ring_iowq_workers" "io-wq threads alive.";
    RING_BUFFERS Gauge "ringway_ring_buffers_available" "Receive buffers the kernel may choose from.";
    RING_ORPHANS Counter "ringway_ring_orphans_total" "Operations whose owner left before they completed.";
    ZC_SENDS Counter "ringway_zerocopy_sends_total" "Zero-copy sends by the kernel's own verdict.";
    ZC_BYTES Counter "ringway_zerocopy_bytes_total" "Bytes of zero-copy sends by the kernel's own verdict.";
    ZC_PENDING Gauge "ringway_zerocopy_pending_bytes" "Bytes sent zero-copy whose notification is outstanding.";
    ZC_NOTIFY Histogram "ringway_zerocopy_notify_seconds" "Send result to notification, all cores.";
    FALLBACKS Counter "ringway_engine_fallbacks_total" "Changes of engine within a transfer, by reason.";
    SPLICES Counter "ringway_splice_calls_total" "Splices through the ring by stage and result.";
    PIPE_DISCARDED Counter "ringway_pipe_discarded_bytes_total" "Bytes emptied out of pipes because a socket was full (they are read again).";
    PIPES Gauge "ringway_pipes" "Pipes of the pool.";
    PIPE_CAPACITY Gauge "ringway_pipe_capacity_bytes" "Bytes of all pipes as granted by the kernel.";
    PIPE_FAILURES Counter "ringway_pipe_failures_total" "Pipes that could not be had as wanted.";
    BUFFERS Gauge "ringway_buffers" "Arena buffers of 256 KiB.";
    BUFFER_POOL Gauge "ringway_buffer_pool_bytes" "Bytes of the arena.";
    CONNECTIONS Gauge "ringway_connections" "Connections by state.";
    ACCEPTED Counter "ringway_connections_accepted_total" "Connections accepted.";
    CLOSED Counter "ringway_connections_closed_total" "Connections ended, by reason.";
    REJECTED Counter "ringway_connections_rejected_total" "Connections not served, by reason.";
    LIMIT_HITS Counter "ringway_limit_hits_total" "Times a named limit of the configuration was met.";
    HTTP_REQUESTS Counter "ringway_http_requests_total" "Requests answered by route, method and class of status.";
    HTTP_IN_FLIGHT Gauge "ringway_http_requests_in_flight" "Requests being answered.";
    HTTP_TTFB Histogram "ringway_http_ttfb_seconds" "Request head complete to the first byte taken by the socket.";
    HTTP_TRANSFER Histogram "ringway_http_transfer_seconds" "Request head complete to the last byte taken by the socket.";
    HTTP_ABORTED Counter "ringway_http_aborted_responses_total" "Bodies cut short after their status line, by reason.";
    HTTP_RANGES Counter "ringway_http_range_requests_total" "Range requests by kind.";
    LISTEN_OVERFLOWS Counter "ringway_host_listen_overflows_total" "Accept queue overflows of this network namespace.";
    FILE_READ_BYTES Counter "ringway_file_read_bytes_total" "Bytes read into our memory, from the page cache or from storage.";
    FILE_READS Counter "ringway_file_reads_total" "Reads into our memory, from the page cache or from storage.";
    FILE_READ_SECONDS Histogram "ringway_file_read_seconds" "Time of one read, all cores.";
    STORAGE_READ Counter "ringway_storage_read_bytes_total" "Bytes this process caused to be read from storage, as /proc/self/io has it.";
    OPEN_FILES Gauge "ringway_open_files" "Names in the open-file cache.";
    FILE_LOOKUPS Counter "ringway_file_cache_lookups_total" "Lookups in the open-file cache by result.";
    CONTENT_LOOKUPS Counter "ringway_content_cache_lookups_total" "Lookups of small bodies kept in memory by result.";
    CONTENT_BYTES Gauge "ringway_content_cache_bytes" "Bytes of small bodies kept in memory.";
    CONTENT_OBJECTS Gauge "ringway_content_cache_objects" "Small bodies kept in memory.";
    UPSTREAM_CONNECTIONS Gauge "ringway_upstream_connections" "Connections to an origin by state.";
    UPSTREAM_CONNECTS Counter "ringway_upstream_connects_total" "Connects to an origin by result.";
    UPSTREAM_REUSES Counter "ringway_upstream_connection_reuses_total" "Requests sent on a kept connection.";
    UPSTREAM_REQUESTS Counter "ringway_upstream_requests_total" "Requests to an origin by class of its answer; none: it gave none.";
    UPSTREAM_ERRORS Counter "ringway_upstream_errors_total" "Exchanges with an origin that failed, by reason.";
    UPSTREAM_RETRIES Counter "ringway_upstream_retries_total" "Requests sent again, to this origin or another.";
    UPSTREAM_TTFB Histogram "ringway_upstream_ttfb_seconds" "Request sent to the first byte of the answer, all cores.";
    UPSTREAM_POOL_WAIT Histogram "ringway_upstream_pool_wait_seconds" "Time queued for a connection, all cores.";
    UPSTREAM_RECEIVED Counter "ringway_upstream_received_bytes_total" "Body bytes received from an origin.";
    UPSTREAM_HEALTHY Gauge "ringway_upstream_peer_healthy" "Whether an origin is asked: neither active checks nor failures in a row say no.";
    CACHE_REQUESTS Counter "ringway_cache_requests_total" "Requests to cached routes by what the cache did.";
    CACHE_SERVED Counter "ringway_cache_served_bytes_total" "Body bytes sent on cached routes by what the cache did.";
    CACHE_FILL_BYTES Counter "ringway_cache_fill_bytes_total" "Bytes written into the cache.";
    CACHE_FILLS Counter "ringway_cache_fills_total" "Fetches into the cache by how they ended.";
    CACHE_IN_FLIGHT Gauge "ringway_cache_fills_in_flight" "Fetches into the cache in progress.";
    CACHE_WAITERS Gauge "ringway_cache_coalesced_waiters" "Requests waiting for bytes that are being fetched.";
    CACHE_SIZE Gauge "ringway_cache_size_bytes" "Bytes stored.";
    CACHE_CAPACITY Gauge "ringway_cache_capacity_bytes" "Bytes that may be stored.";
    CACHE_OBJECTS Gauge "ringway_cache_objects" "Objects stored.";
    CACHE_EVICTIONS Counter "ringway_cache_evictions_total" "Objects that left, by reason.";
    CACHE_STORE_FAILURES Counter "ringway_cache_store_failures_total" "Writes that failed or were not tried; the clients were served from the origin.";
    CACHE_VERIFIED Counter "ringway_cache_verified_slices_total" "Slices checked against their checksum on first use after a restart.";
    CACHE_VERIFY_FAILURES Counter "ringway_cache_verify_failures_total" "Slices that did not have their checksum and were fetched again.";
    COLLECTOR_SECONDS Gauge "ringway_scrape_collector_duration_seconds" "Cost of each part of the last scrape.";
    PROCESS_CPU Counter "process_cpu_seconds_total" "CPU time of this process, user and system.";
    PROCESS_RESIDENT Gauge "process_resident_memory_bytes" "Resident memory in bytes.";
    PROCESS_VIRTUAL Gauge "process_virtual_memory_bytes" "Virtual memory in bytes.";
    PROCESS_FDS Gauge "process_open_fds" "Open descriptors.";
    PROCESS_MAX_FDS Gauge "process_max_fds" "Most descriptors allowed.";
    PROCESS_THREADS Gauge "process_threads" "Threads, io-wq helpers included.";
    PROCESS_START Gauge "process_start_time_seconds" "Unix time this process started.";
    STARTUP_WARNINGS Counter "ringway_startup_warnings_total" "Things at start that were worse than they could be.";
    ADMIN_REQUESTS Counter "ringway_admin_requests_total" "Requests to the admin address by path and status.";
}

/// Families that the `metrics` facade renders: they appear with their first event.
pub const RARE: &[Family] = &[STARTUP_WARNINGS, ADMIN_REQUESTS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for (at, family) in ALL.iter().enumerate() {
            assert!(family.name.starts_with("ringway_") || family.name.starts_with("process_"), "{}", family.name);
            assert_eq!(family.name.ends_with("_total"), family.kind == Type::Counter, "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{}", family.name);
            assert!(ALL[..at].iter().all(|other| other.name != family.name), "{} stands twice", family.name);
        }
    }
}
