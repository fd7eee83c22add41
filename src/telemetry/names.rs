//! Every metric: group, type, unit, labels, name, help. Nothing else in the tree spells one.
//!
//! This table is what `/metrics` is rendered from, what `--list-metrics` prints and what grafana/METRICS.md is made of.
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

/// What belongs together: one `/metrics?collect[]=` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Group {
    Identity,
    Core,
    Ring,
    Engine,
    Connection,
    Http,
    File,
    Upstream,
    Cache,
    Nic,
    Process,
    Events,
    Tester,
}

impl Group {
    /// All of them, in the order they are rendered.
    pub const ALL: &'static [Group] = &[
        Group::Identity,
        Group::Core,
        Group::Ring,
        Group::Engine,
        Group::Connection,
        Group::Http,
        Group::File,
        Group::Upstream,
        Group::Cache,
        Group::Nic,
        Group::Process,
        Group::Events,
        Group::Tester,
    ];

    /// As it is asked for.
    pub fn text(self) -> &'static str {
        match self {
            Group::Identity => "identity",
            Group::Core => "core",
            Group::Ring => "ring",
            Group::Engine => "engine",
            Group::Connection => "connection",
            Group::Http => "http",
            Group::File => "file",
            Group::Upstream => "upstream",
            Group::Cache => "cache",
            Group::Nic => "nic",
            Group::Process => "process",
            Group::Events => "events",
            Group::Tester => "tester",
        }
    }
}

/// A family of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// What it belongs to.
    pub group: Group,
    /// Type.
    pub kind: Type,
    /// Unit of its values: `bytes`, `seconds`, or `1` where things are counted or said.
    pub unit: &'static str,
    /// Labels of its series, in the order they are written (`le` of histograms not named).
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident $group:ident $kind:ident $unit:literal [$($label:literal),*] $name:literal $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Family = Family {
            name: $name,
            group: Group::$group,
            kind: Type::$kind,
            unit: $unit,
            labels: &[$($label),*],
            help: $help,
        };)*
        /// All of them, in the order they are rendered.
        pub const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD_INFO Identity Gauge "1" ["version", "target"] "ringway_build_info"
        "Constant 1 with version and target as labels.";
    CAPABILITY Identity Gauge "1" ["capability"] "ringway_capability_enabled"
        "Whether a kernel feature was found by probing and is in use.";
    READY Identity Gauge "1" [] "ringway_ready"
        "What /readyz says now.";
    DRAINING Identity Gauge "1" [] "ringway_draining"
        "Whether a drain is in progress.";
    CORE_INFO Identity Gauge "1" ["core", "cpu"] "ringway_core_info"
        "Constant 1 that maps a core to its CPU.";
    MEMLOCK_LIMIT Identity Gauge "bytes" [] "ringway_memlock_limit_bytes"
        "RLIMIT_MEMLOCK (soft) in bytes; -1 is unlimited.";
    SENT_BYTES Core Counter "bytes" ["core", "engine", "part"] "ringway_sent_bytes_total"
        "Bytes given to client sockets by the engine that carried them, response heads and bodies told apart (heads always go by send).";
    RECEIVED_BYTES Core Counter "bytes" ["core", "source"] "ringway_received_bytes_total"
        "Bytes read from clients.";
    CORE_REQUESTS Core Counter "1" ["core"] "ringway_core_requests_total"
        "Requests answered on a core.";
    CORE_CPU Core Counter "seconds" ["core", "thread", "mode"] "ringway_core_cpu_seconds_total"
        "CPU time of the ring thread (worker) and of its io-wq helpers (iowq).";
    CORE_LOOP Core Counter "seconds" ["core", "state"] "ringway_core_loop_seconds_total"
        "Wall time of the event loop: busy outside a waiting enter, wait inside one (which also submits).";
    CORE_LOOP_DURATION Core Histogram "seconds" [] "ringway_core_loop_duration_seconds"
        "Work of one turn of the event loop, all cores.";
    CORE_LAST_LOOP Core Gauge "seconds" ["core"] "ringway_core_last_loop_timestamp_seconds"
        "Unix time of a core's last turn.";
    CORE_RUN_DELAY Core Counter "seconds" ["core"] "ringway_core_run_delay_seconds_total"
        "Time a ring thread was runnable but not running.";
    CORE_SWITCHES Core Counter "1" ["core", "kind"] "ringway_core_context_switches_total"
        "Context switches of a ring thread.";
    HOST_CPU Core Counter "seconds" ["cpu", "mode"] "ringway_host_cpu_seconds_total"
        "Time of the CPUs that carry cores, by mode, as /proc/stat has it.";
    RING_SQES Ring Counter "1" ["core"] "ringway_ring_sqes_total"
        "Submission queue entries taken by the kernel.";
    RING_CQES Ring Counter "1" ["core"] "ringway_ring_cqes_total"
        "Completions reaped.";
    RING_ENTERS Ring Counter "1" ["core", "kind"] "ringway_ring_enters_total"
        "io_uring_enter calls that only submitted (submit) or could wait (wait).";
    RING_INFLIGHT Ring Gauge "1" ["core"] "ringway_ring_inflight"
        "Operations submitted and not yet completed.";
    RING_BATCH Ring Histogram "1" [] "ringway_ring_batch_size"
        "Completions reaped at once, all cores.";
    RING_OVERFLOWS Ring Counter "1" ["core"] "ringway_ring_cq_overflows_total"
        "Completion queue overflows as the kernel counts them.";
    RING_SQ_FULL Ring Counter "1" ["core"] "ringway_ring_sq_full_total"
        "Times the submission queue was full.";
    RING_ERRORS Ring Counter "1" ["core", "errno"] "ringway_ring_errors_total"
        "Failed completions by errno.";
    RING_WORKERS Ring Gauge "1" ["core"] "ringway_ring_iowq_workers"
        "io-wq threads alive.";
    RING_BUFFERS Ring Gauge "1" ["core"] "ringway_ring_buffers_available"
        "Receive buffers the kernel may choose from.";
    RING_ORPHANS Ring Counter "1" ["core"] "ringway_ring_orphans_total"
        "Operations whose owner left before they completed.";
    ZC_SENDS Engine Counter "1" ["core", "result"] "ringway_zerocopy_sends_total"
        "Zero-copy sends by the kernel's own verdict.";
    ZC_BYTES Engine Counter "bytes" ["core", "result"] "ringway_zerocopy_bytes_total"
        "Bytes of zero-copy sends by the kernel's own verdict.";
    ZC_PENDING Engine Gauge "bytes" ["core"] "ringway_zerocopy_pending_bytes"
        "Bytes sent zero-copy whose notification is outstanding.";
    ZC_NOTIFY Engine Histogram "seconds" [] "ringway_zerocopy_notify_seconds"
        "Send result to notification, all cores.";
    FALLBACKS Engine Counter "1" ["from", "to", "reason"] "ringway_engine_fallbacks_total"
        "Changes of engine within a transfer, by reason.";
    SPLICES Engine Counter "1" ["core", "stage", "result"] "ringway_splice_calls_total"
        "Splices through the ring by stage and result.";
    PIPE_DISCARDED Engine Counter "bytes" ["core"] "ringway_pipe_discarded_bytes_total"
        "Bytes emptied out of pipes because a socket was full (they are read again).";
    PIPES Engine Gauge "1" ["core", "state"] "ringway_pipes"
        "Pipes of the pool.";
    PIPE_CAPACITY Engine Gauge "bytes" ["core"] "ringway_pipe_capacity_bytes"
        "Bytes of all pipes as granted by the kernel.";
    PIPE_FAILURES Engine Counter "1" ["core", "reason"] "ringway_pipe_failures_total"
        "Pipes that could not be had as wanted.";
    BUFFERS Engine Gauge "1" ["core", "state"] "ringway_buffers"
        "Arena buffers of 256 KiB.";
    BUFFER_POOL Engine Gauge "bytes" ["core"] "ringway_buffer_pool_bytes"
        "Bytes of the arena.";
    QUANTA Engine Counter "1" ["core", "engine"] "ringway_quanta_total"
        "Steps of a body through its engine: one call, one chain, or one read and send each.";
    QUANTUM_SECONDS Engine Counter "seconds" ["core", "engine"] "ringway_quantum_seconds_total"
        "Time from the start of each step of a body to its result.";
    QUANTA_SHORT Engine Counter "1" ["core", "engine"] "ringway_quanta_short_total"
        "Steps of a body that moved less than they asked for.";
    QUANTA_FULL Engine Counter "1" ["core", "engine"] "ringway_quanta_full_total"
        "Steps of a body that found the socket full.";
    SOCKET_WAITS Engine Counter "1" ["core"] "ringway_socket_waits_total"
        "Waits of a body for room in its socket.";
    CONNECTIONS Connection Gauge "1" ["core", "state"] "ringway_connections"
        "Connections by state.";
    ACCEPTED Connection Counter "1" ["core", "listener"] "ringway_connections_accepted_total"
        "Connections accepted.";
    CLOSED Connection Counter "1" ["core", "reason"] "ringway_connections_closed_total"
        "Connections ended, by reason.";
    REJECTED Connection Counter "1" ["core", "reason"] "ringway_connections_rejected_total"
        "Connections not served, by reason.";
    LIMIT_HITS Connection Counter "1" ["limit"] "ringway_limit_hits_total"
        "Times a named limit of the configuration was met.";
    HTTP_REQUESTS Http Counter "1" ["route", "method", "code"] "ringway_http_requests_total"
        "Requests answered by route, method and class of status.";
    HTTP_IN_FLIGHT Http Gauge "1" ["core"] "ringway_http_requests_in_flight"
        "Requests being answered.";
    HTTP_TTFB Http Histogram "seconds" ["route"] "ringway_http_ttfb_seconds"
        "Request head complete to the first byte taken by the socket.";
    HTTP_TRANSFER Http Histogram "seconds" ["route"] "ringway_http_transfer_seconds"
        "Request head complete to the last byte taken by the socket.";
    HTTP_ABORTED Http Counter "1" ["route", "reason"] "ringway_http_aborted_responses_total"
        "Bodies cut short after their status line, by reason.";
    HTTP_RANGES Http Counter "1" ["route", "kind"] "ringway_http_range_requests_total"
        "Range requests by kind.";
    LISTEN_OVERFLOWS Http Counter "1" [] "ringway_host_listen_overflows_total"
        "Accept queue overflows of this network namespace.";
    FILE_READ_BYTES File Counter "bytes" ["core", "source"] "ringway_file_read_bytes_total"
        "Bytes read into our memory, from the page cache or from storage.";
    FILE_READS File Counter "1" ["core", "source"] "ringway_file_reads_total"
        "Reads into our memory, from the page cache or from storage.";
    FILE_READ_SECONDS File Histogram "seconds" ["source"] "ringway_file_read_seconds"
        "Time of one read, all cores.";
    STORAGE_READ File Counter "bytes" [] "ringway_storage_read_bytes_total"
        "Bytes this process caused to be read from storage, as /proc/self/io has it.";
    OPEN_FILES File Gauge "1" ["core"] "ringway_open_files"
        "Names in the open-file cache.";
    FILE_LOOKUPS File Counter "1" ["core", "result"] "ringway_file_cache_lookups_total"
        "Lookups in the open-file cache by result.";
    CONTENT_LOOKUPS File Counter "1" ["core", "result"] "ringway_content_cache_lookups_total"
        "Lookups of small bodies kept in memory by result.";
    CONTENT_BYTES File Gauge "bytes" ["core"] "ringway_content_cache_bytes"
        "Bytes of small bodies kept in memory.";
    CONTENT_OBJECTS File Gauge "1" ["core"] "ringway_content_cache_objects"
        "Small bodies kept in memory.";
    UPSTREAM_CONNECTIONS Upstream Gauge "1" ["upstream", "state"] "ringway_upstream_connections"
        "Connections to an origin by state.";
    UPSTREAM_CONNECTS Upstream Counter "1" ["upstream", "result"] "ringway_upstream_connects_total"
        "Connects to an origin by result.";
    UPSTREAM_REUSES Upstream Counter "1" ["upstream"] "ringway_upstream_connection_reuses_total"
        "Requests sent on a kept connection.";
    UPSTREAM_REQUESTS Upstream Counter "1" ["upstream", "code"] "ringway_upstream_requests_total"
        "Requests to an origin by class of its answer; none: it gave none.";
    UPSTREAM_ERRORS Upstream Counter "1" ["upstream", "reason"] "ringway_upstream_errors_total"
        "Exchanges with an origin that failed, by reason.";
    UPSTREAM_RETRIES Upstream Counter "1" ["upstream"] "ringway_upstream_retries_total"
        "Requests sent again, to this origin or another.";
    UPSTREAM_TTFB Upstream Histogram "seconds" ["upstream"] "ringway_upstream_ttfb_seconds"
        "Request sent to the first byte of the answer, all cores.";
    UPSTREAM_POOL_WAIT Upstream Histogram "seconds" ["upstream"] "ringway_upstream_pool_wait_seconds"
        "Time queued for a connection, all cores.";
    UPSTREAM_RECEIVED Upstream Counter "bytes" ["upstream"] "ringway_upstream_received_bytes_total"
        "Body bytes received from an origin.";
    UPSTREAM_HEALTHY Upstream Gauge "1" ["upstream", "peer"] "ringway_upstream_peer_healthy"
        "Whether an origin is asked: neither active checks nor failures in a row say no.";
    CACHE_REQUESTS Cache Counter "1" ["core", "result"] "ringway_cache_requests_total"
        "Requests to cached routes by what the cache did.";
    CACHE_SERVED Cache Counter "bytes" ["core", "result"] "ringway_cache_served_bytes_total"
        "Body bytes sent on cached routes by what the cache did.";
    CACHE_FILL_BYTES Cache Counter "bytes" ["core"] "ringway_cache_fill_bytes_total"
        "Bytes written into the cache.";
    CACHE_FILLS Cache Counter "1" ["core", "result"] "ringway_cache_fills_total"
        "Fetches into the cache by how they ended.";
    CACHE_IN_FLIGHT Cache Gauge "1" ["core"] "ringway_cache_fills_in_flight"
        "Fetches into the cache in progress.";
    CACHE_WAITERS Cache Gauge "1" ["core"] "ringway_cache_coalesced_waiters"
        "Requests waiting for bytes that are being fetched.";
    CACHE_SIZE Cache Gauge "bytes" [] "ringway_cache_size_bytes"
        "Bytes stored.";
    CACHE_CAPACITY Cache Gauge "bytes" [] "ringway_cache_capacity_bytes"
        "Bytes that may be stored.";
    CACHE_OBJECTS Cache Gauge "1" [] "ringway_cache_objects"
        "Objects stored.";
    CACHE_EVICTIONS Cache Counter "1" ["reason"] "ringway_cache_evictions_total"
        "Objects that left, by reason.";
    CACHE_STORE_FAILURES Cache Counter "1" ["reason"] "ringway_cache_store_failures_total"
        "Writes that failed or were not tried; the clients were served from the origin.";
    CACHE_VERIFIED Cache Counter "1" [] "ringway_cache_verified_slices_total"
        "Slices checked against their checksum on first use after a restart.";
    CACHE_VERIFY_FAILURES Cache Counter "1" [] "ringway_cache_verify_failures_total"
        "Slices that did not have their checksum and were fetched again.";
    NIC_INFO Nic Gauge "1" ["device", "driver", "numa_node", "mtu"] "ringway_nic_info"
        "Constant 1 with facts of a network interface.";
    NIC_SENT Nic Counter "bytes" ["device"] "ringway_nic_transmit_bytes_total"
        "Bytes an interface sent, headers and other programs included.";
    NIC_RECEIVED Nic Counter "bytes" ["device"] "ringway_nic_receive_bytes_total"
        "Bytes an interface received, headers and other programs included.";
    NIC_SPEED Nic Gauge "bytes" ["device"] "ringway_nic_speed_bytes"
        "Speed of an interface's link in bytes a second; absent where the driver does not know it.";
    NIC_SENT_DROPS Nic Counter "1" ["device"] "ringway_nic_transmit_drop_total"
        "Packets an interface dropped on their way out.";
    NIC_RECEIVED_DROPS Nic Counter "1" ["device"] "ringway_nic_receive_drop_total"
        "Packets an interface dropped or missed on their way in.";
    SOFTNET_SQUEEZED Nic Counter "1" ["cpu"] "ringway_softnet_times_squeezed_total"
        "Times the receive work of a CPU that carries a core ran out of its budget.";
    SOFTNET_DROPPED Nic Counter "1" ["cpu"] "ringway_softnet_dropped_total"
        "Packets dropped because the backlog of a CPU that carries a core was full.";
    LOG_RECORDS Process Counter "1" ["core", "log"] "ringway_log_records_total"
        "Lines written to a log.";
    LOG_DROPPED Process Counter "1" ["core", "log", "reason"] "ringway_log_records_dropped_total"
        "Lines a log lost: its buffer had no room (full), or they could not be written (write).";
    COLLECTOR_SECONDS Process Gauge "seconds" ["collector"] "ringway_scrape_collector_duration_seconds"
        "Cost of each part of the last scrape.";
    PROCESS_CPU Process Counter "seconds" [] "process_cpu_seconds_total"
        "CPU time of this process, user and system.";
    PROCESS_RESIDENT Process Gauge "bytes" [] "process_resident_memory_bytes"
        "Resident memory in bytes.";
    PROCESS_VIRTUAL Process Gauge "bytes" [] "process_virtual_memory_bytes"
        "Virtual memory in bytes.";
    PROCESS_FDS Process Gauge "1" [] "process_open_fds"
        "Open descriptors.";
    PROCESS_MAX_FDS Process Gauge "1" [] "process_max_fds"
        "Most descriptors allowed.";
    PROCESS_THREADS Process Gauge "1" [] "process_threads"
        "Threads, io-wq helpers included.";
    PROCESS_START Process Gauge "seconds" [] "process_start_time_seconds"
        "Unix time this process started.";
    STARTUP_WARNINGS Events Counter "1" ["kind"] "ringway_startup_warnings_total"
        "Things at start that were worse than they could be.";
    ADMIN_REQUESTS Events Counter "1" ["path", "code"] "ringway_admin_requests_total"
        "Requests to the admin address by path and status.";
    TESTER_RUN Tester Gauge "1" ["end", "engine"] "ringway_tester_run_info"
        "Constant 1: which end of which run this is (blast and sink with --metrics only, as all of the group).";
    TESTER_STREAMS Tester Gauge "1" [] "ringway_tester_streams"
        "Flows or connections of the run; 0 between runs.";
    TESTER_SENT Tester Counter "bytes" ["core"] "ringway_tester_sent_bytes_total"
        "Payload bytes that the sending end's sockets took.";
    TESTER_RECEIVED Tester Counter "bytes" ["core"] "ringway_tester_received_bytes_total"
        "Payload bytes received by a sink, or bodies by an HTTP client.";
    TESTER_VIA Tester Counter "bytes" ["via"] "ringway_tester_via_sent_bytes_total"
        "Payload bytes sent by each interface or address named.";
    TESTER_CPU Tester Counter "seconds" ["side"] "ringway_tester_cpu_seconds_total"
        "CPU seconds of this end's process and of the other's.";
    TESTER_REQUESTS Tester Counter "1" [] "ringway_tester_requests_total"
        "Requests answered, or whole files sent.";
    TESTER_RETRANSMITS Tester Counter "1" [] "ringway_tester_retransmits_total"
        "Segments sent again.";
    TESTER_UNSENT Tester Gauge "bytes" [] "ringway_tester_unsent_bytes"
        "Bytes in sockets that were not sent yet.";
    TESTER_CWND Tester Gauge "bytes" [] "ringway_tester_snd_cwnd_bytes"
        "Congestion window of a flow, mean.";
    TESTER_RTT Tester Gauge "seconds" [] "ringway_tester_rtt_seconds"
        "Smoothed round trip of a flow, mean.";
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
            let base = family.name.trim_end_matches("_total");
            assert_eq!(base.ends_with("_bytes"), family.unit == "bytes", "{}", family.name);
            assert_eq!(base.ends_with("_seconds"), family.unit == "seconds", "{}", family.name);
            assert!(["bytes", "seconds", "1"].contains(&family.unit), "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{}", family.name);
            assert!(ALL[..at].iter().all(|other| other.name != family.name), "{} stands twice", family.name);
        }
    }
}
