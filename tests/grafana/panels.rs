//! What the dashboards show: the one source of `grafana/dashboards/`.

use super::model::Kind::{Bars, Gauge, Heatmap, Lines, Stacked, Stat, Table, Timeline};
use super::model::{Dashboard, Panel, Row, Steps, Variable, panel};

/// Variables of every dashboard.
pub const COMMON: &[Variable] = &[
    Variable { name: "job", label: "Job", query: "label_values(ringway_build_info, job)" },
    Variable {
        name: "instance",
        label: "Instance",
        query: "label_values(ringway_build_info{job=~\"$job\"}, instance)",
    },
];

/// Name, colour and expression of what is marked on every time axis.
pub const ANNOTATIONS: &[(&str, &str, &str)] = &[
    ("Started", "blue", "changes(process_start_time_seconds{$S}[$R]) > 0"),
    ("Draining", "orange", "ringway_draining{$S} > 0"),
];

/// The four.
pub fn all() -> Vec<Dashboard> {
    vec![overview(), cores(), data(), test()]
}

fn busiest() -> Panel {
    panel(
        "Busiest core",
        Stat,
        "percentunit",
        3,
        "max(sum by (instance, core) (rate(ringway_core_loop_seconds_total{$S,state=\"busy\"}[$R])))",
        "busy",
    )
    .about("Share of wall time the busiest core works. At 1 this core is the limit, whatever the others do.")
    .steps(Steps::Load)
    .max(1.0)
}

fn demand(width: u32) -> Panel {
    panel("CPU per KiB", Stat, "ns", width,
        "1e9 * 1024 * sum(rate(ringway_core_cpu_seconds_total{$S}[$R])) / sum(rate(ringway_sent_bytes_total{$S}[$R]))", "per KiB")
        .about("Service demand: CPU time of ring threads and their io-wq workers for each KiB sent. Lower is better; it rises when small responses prevail.")
}

fn egress(width: u32) -> Panel {
    panel("Egress", Stat, "bps", width, "8 * sum(rate(ringway_sent_bytes_total{$S}[$R]))", "egress")
        .about("Bits a second given to client sockets, heads and bodies, all engines.")
}

fn busy_bars(width: u32) -> Panel {
    panel("Busy now, by core", Bars, "percentunit", width,
        "sum by (instance, core) (rate(ringway_core_loop_seconds_total{$S,state=\"busy\"}[$R]))", "core {{core}}")
        .about("One bar per core, share of wall time at work. One red bar among green ones is imbalance; all red is saturation.")
        .steps(Steps::Load).max(1.0)
}

fn by_engine(width: u32) -> Panel {
    panel("Egress by engine", Stacked, "bps", width, "8 * sum by (engine) (rate(ringway_sent_bytes_total{$S}[$R]))", "{{engine}}")
        .about("Who carried the bytes. A sudden change of colours is a change of plan: look at fallbacks on the cores dashboard.")
}

#[rustfmt::skip]
fn overview() -> Dashboard {
    Dashboard {
        uid: "ringway-overview",
        title: "ringway / Overview",
        about: "Is it well, how much does it carry, and what limits it.",
        variables: vec![],
        rows: vec![
            Row { title: "Headline", panels: vec![
                egress(3),
                panel("Requests", Stat, "reqps", 3, "sum(rate(ringway_http_requests_total{$S}[$R]))", "requests")
                    .about("Requests answered a second."),
                panel("Error ratio", Stat, "percentunit", 3,
                    "(sum(rate(ringway_http_requests_total{$S,code=\"5xx\"}[$R])) + sum(rate(ringway_http_aborted_responses_total{$S,reason!~\"client_reset|drain\"}[$R]))) / clamp_min(sum(rate(ringway_http_requests_total{$S}[$R])), 1e-9)", "errors")
                    .about("Share of requests answered 5xx or cut short by us; clients that left are not counted.").steps(Steps::NeverAbove),
                panel("TTFB p99", Stat, "s", 3, "histogram_quantile(0.99, sum by (le) (rate(ringway_http_ttfb_seconds_bucket{$S}[$R])))", "p99")
                    .about("99 of 100 requests get their first byte within this, counted from their whole head."),
                busiest(),
                panel("Zero copy kept", Stat, "percentunit", 3,
                    "sum(rate(ringway_sent_bytes_total{$S,engine=~\"splice|sendfile\"}[$R])) / sum(rate(ringway_sent_bytes_total{$S}[$R])) + sum(rate(ringway_zerocopy_bytes_total{$S,result=\"zerocopied\"}[$R])) / sum(rate(ringway_sent_bytes_total{$S}[$R]))", "share")
                    .about("Share of bytes that no CPU copied into the socket: splice, sendfile, and those zero-copy sends which the kernel says it did not copy.").max(1.0),
                demand(3),
                panel("Ready", Stat, "short", 3, "sum(ringway_ready{$S})", "instances")
                    .about("Instances whose /readyz says yes.").steps(Steps::Up),
            ]},
            Row { title: "What limits it", panels: vec![
                busy_bars(8),
                by_engine(8),
                panel("Host CPU around the cores", Lines, "percentunit", 8,
                    "sum by (mode) (rate(ringway_host_cpu_seconds_total{$S,mode=~\"softirq|steal|system|user\"}[$R])) / scalar(count(ringway_core_info{$S}))", "{{mode}}")
                    .about("Time of the CPUs that carry cores, mean of all. High softirq: the network stack is the limit; steal: the hypervisor is.").steps(Steps::Load),
            ]},
            Row { title: "Interfaces", panels: vec![
                panel("Link use now", Bars, "percentunit", 8, "rate(ringway_nic_transmit_bytes_total{$S}[$R]) / on (job, instance, device) (ringway_nic_speed_bytes{$S} > 0)", "{{device}}")
                    .about("Sent bytes of the link's speed, one bar per interface: a red one is the bottleneck. Empty where no driver knows its speed.").steps(Steps::Load).max(1.0),
                panel("Wire", Lines, "Bps", 8, "sum by (instance, device) (rate(ringway_nic_transmit_bytes_total{$S}[$R]))", "{{device}} sent")
                    .and("sum by (instance, device) (rate(ringway_nic_receive_bytes_total{$S}[$R]))", "{{device}} received")
                    .about("Bytes of each interface, headers and other programs included."),
                panel("Dropped packets", Lines, "ops", 8, "sum by (instance, device) (rate(ringway_nic_transmit_drop_total{$S}[$R]))", "{{device}} sent")
                    .and("sum by (instance, device) (rate(ringway_nic_receive_drop_total{$S}[$R]))", "{{device}} received")
                    .about("Packets the interfaces dropped.").steps(Steps::NeverAbove),
            ]},
            Row { title: "Traffic", panels: vec![
                panel("Requests by class", Stacked, "reqps", 8, "sum by (code) (rate(ringway_http_requests_total{$S}[$R]))", "{{code}}")
                    .about("Requests answered, by class of status."),
                panel("Requests by route", Stacked, "reqps", 8, "sum by (route) (rate(ringway_http_requests_total{$S}[$R]))", "{{route}}")
                    .about("Requests answered, by route of the configuration."),
                panel("Received from clients and origins", Lines, "Bps", 8, "sum(rate(ringway_received_bytes_total{$S}[$R]))", "clients")
                    .and("sum(rate(ringway_upstream_received_bytes_total{$S}[$R]))", "origins")
                    .about("Bytes read from clients (requests) and from origins (bodies)."),
            ]},
            Row { title: "Latency", panels: vec![
                panel("TTFB", Lines, "s", 8, "histogram_quantile(0.5, sum by (le) (rate(ringway_http_ttfb_seconds_bucket{$S}[$R])))", "p50")
                    .and("histogram_quantile(0.9, sum by (le) (rate(ringway_http_ttfb_seconds_bucket{$S}[$R])))", "p90")
                    .and("histogram_quantile(0.99, sum by (le) (rate(ringway_http_ttfb_seconds_bucket{$S}[$R])))", "p99")
                    .about("Whole head to first byte taken by the socket."),
                panel("TTFB, all requests", Heatmap, "s", 8, "sum by (le) (increase(ringway_http_ttfb_seconds_bucket{$S}[$R]))", "{{le}}")
                    .about("Where the requests are: a second band high up is a second population, such as cold files or a slow origin."),
                panel("TTFB p99 by route", Lines, "s", 8, "histogram_quantile(0.99, sum by (le, route) (rate(ringway_http_ttfb_seconds_bucket{$S}[$R])))", "{{route}}")
                    .about("Which route is slow."),
            ]},
            Row { title: "Saturation", panels: vec![
                panel("Connections", Stacked, "short", 6, "sum by (state) (ringway_connections{$S})", "{{state}}")
                    .about("Open connections by what they do. Many writing and little egress: the clients are slow."),
                panel("Rejected, cut and limited", Lines, "ops", 6, "sum by (reason) (rate(ringway_connections_rejected_total{$S}[$R]))", "rejected: {{reason}}")
                    .and("sum by (reason) (rate(ringway_http_aborted_responses_total{$S}[$R]))", "cut: {{reason}}")
                    .and("sum by (limit) (rate(ringway_limit_hits_total{$S}[$R])) > 0", "limit: {{limit}}")
                    .about("Connections not served, bodies cut short, limits of the configuration that were met."),
                panel("Descriptors", Lines, "percentunit", 6, "process_open_fds{$S} / process_max_fds{$S}", "{{instance}}")
                    .about("Open descriptors of those allowed.").steps(Steps::Load),
                panel("Memory", Lines, "bytes", 6, "process_resident_memory_bytes{$S}", "{{instance}}")
                    .about("Resident memory of the process."),
            ]},
            Row { title: "Alerts and build", panels: vec![
                panel("Firing", Table, "short", 12, "ALERTS{$S,alertstate=\"firing\"}", "{{alertname}}")
                    .about("Alerts of grafana/alerts that fire now. Empty is good."),
                panel("Kernel features in use", Table, "short", 12, "sum by (instance, capability) (ringway_capability_enabled{$S})", "{{capability}}")
                    .about("What was probed at start: 1 is in use."),
            ]},
        ],
    }
}

#[rustfmt::skip]
fn cores() -> Dashboard {
    Dashboard {
        uid: "ringway-cores",
        title: "ringway / Cores and rings",
        about: "Which core, what it does with its time, and what its ring says.",
        variables: vec![Variable { name: "core", label: "Core", query: "label_values(ringway_core_info{job=~\"$job\",instance=~\"$instance\"}, core)" }],
        rows: vec![
            Row { title: "Balance", panels: vec![
                busy_bars(6),
                panel("Imbalance", Stat, "short", 3,
                    "max(sum by (instance, core) (rate(ringway_core_loop_seconds_total{$S,state=\"busy\"}[$R]))) / avg(sum by (instance, core) (rate(ringway_core_loop_seconds_total{$S,state=\"busy\"}[$R])))", "max / mean")
                    .about("Busiest core over the mean of all: 1 is even, the number of cores is the worst."),
                panel("Busy by core", Lines, "percentunit", 8, "sum by (instance, core) (rate(ringway_core_loop_seconds_total{$S,state=\"busy\",core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("Share of wall time at work.").steps(Steps::Load).max(1.0),
                panel("Egress by core", Lines, "bps", 7, "8 * sum by (instance, core) (rate(ringway_sent_bytes_total{$S,core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("Bits a second each core gave to its clients."),
            ]},
            Row { title: "CPU", panels: vec![
                panel("CPU by thread", Stacked, "short", 8, "sum by (thread, mode) (rate(ringway_core_cpu_seconds_total{$S,core=~\"$core\"}[$R]))", "{{thread}} {{mode}}")
                    .about("CPUs in use. worker: the ring threads; iowq: kernel helpers, which mean work that could not be done inline."),
                panel("Share of io-wq", Lines, "percentunit", 8, "sum by (instance) (rate(ringway_core_cpu_seconds_total{$S,thread=\"iowq\"}[$R])) / sum by (instance) (rate(ringway_core_cpu_seconds_total{$S}[$R]))", "{{instance}}")
                    .about("Share of CPU time spent in kernel helpers.").max(1.0),
                panel("softirq and steal", Lines, "percentunit", 8, "sum by (instance, cpu, mode) (rate(ringway_host_cpu_seconds_total{$S,mode=~\"softirq|steal\"}[$R]))", "cpu {{cpu}} {{mode}}")
                    .about("What the network stack and the hypervisor take from the CPUs that carry cores.").steps(Steps::Load),
                panel("Run delay", Lines, "percentunit", 8, "sum by (instance, core) (rate(ringway_core_run_delay_seconds_total{$S,core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("Share of time a ring thread could run and did not: somebody else is on its CPU."),
                panel("Context switches per request", Lines, "short", 8, "sum by (instance, kind) (rate(ringway_core_context_switches_total{$S,core=~\"$core\"}[$R])) / on (instance) group_left sum by (instance) (rate(ringway_core_requests_total{$S,core=~\"$core\"}[$R]))", "{{kind}}")
                    .about("Voluntary: it slept for want of work. Involuntary: it was pushed aside."),
                panel("Turn of the loop p99", Lines, "s", 8, "histogram_quantile(0.99, sum by (le) (rate(ringway_core_loop_duration_seconds_bucket{$S}[$R])))", "p99")
                    .about("How long one turn works: the longest a small request waits behind others on its core."),
            ]},
            Row { title: "Ring", panels: vec![
                panel("Completions per enter", Lines, "short", 8, "sum by (instance, core) (rate(ringway_ring_cqes_total{$S,core=~\"$core\"}[$R])) / sum by (instance, core) (rate(ringway_ring_enters_total{$S,core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("Batching: the more completions each system call brings, the cheaper they are."),
                panel("Enters per request", Lines, "short", 8, "sum by (instance, core) (rate(ringway_ring_enters_total{$S,core=~\"$core\"}[$R])) / sum by (instance, core) (rate(ringway_core_requests_total{$S,core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("System calls for each request. Falls under load, when one call serves many."),
                panel("Submitted and completed", Lines, "ops", 8, "sum(rate(ringway_ring_sqes_total{$S,core=~\"$core\"}[$R]))", "submitted")
                    .and("sum(rate(ringway_ring_cqes_total{$S,core=~\"$core\"}[$R]))", "completed")
                    .and("sum(rate(ringway_ring_enters_total{$S,core=~\"$core\"}[$R]))", "enters")
                    .about("Operations a second; multishot operations complete more than once."),
                panel("In flight", Lines, "short", 8, "sum by (instance, core) (ringway_ring_inflight{$S,core=~\"$core\"})", "core {{core}}")
                    .about("Operations submitted and not yet completed."),
                panel("Overflows and full queues", Lines, "ops", 8, "sum(rate(ringway_ring_cq_overflows_total{$S,core=~\"$core\"}[$R]))", "cq overflows")
                    .and("sum(rate(ringway_ring_sq_full_total{$S,core=~\"$core\"}[$R]))", "sq full")
                    .and("sum by (errno) (rate(ringway_ring_errors_total{$S,core=~\"$core\",errno!~\"EAGAIN|ECANCELED|ETIME|EALREADY|ENOENT|EPIPE|ECONNRESET\"}[$R]))", "{{errno}}")
                    .about("An overflow means the completion queue is too small for the load. Errors that clients cause are left out.").steps(Steps::NeverAbove),
                panel("io-wq workers and free receive buffers", Lines, "short", 8, "sum by (instance) (ringway_ring_iowq_workers{$S,core=~\"$core\"})", "workers")
                    .and("min(ringway_ring_buffers_available{$S,core=~\"$core\"})", "fewest free buffers of a core")
                    .about("Kernel helpers alive; receive buffers left on the core that has fewest."),
            ]},
            Row { title: "Engines", panels: vec![
                by_engine(8),
                panel("Zero-copy sends: the kernel's verdict", Stacked, "Bps", 8, "sum by (result) (rate(ringway_zerocopy_bytes_total{$S,core=~\"$core\"}[$R]))", "{{result}}")
                    .about("Copied means the kernel copied after all (loopback always does): zero copy then costs and gains nothing."),
                panel("Fallbacks", Lines, "ops", 8, "sum by (from, to, reason) (rate(ringway_engine_fallbacks_total{$S}[$R])) > 0", "{{from}} to {{to}}: {{reason}}")
                    .about("Changes of engine within a transfer, and why."),
                panel("Pinned bytes of the memlock limit", Lines, "percentunit", 8, "sum by (job, instance) (ringway_zerocopy_pending_bytes{$S}) / on (job, instance) (ringway_memlock_limit_bytes{$S} > 0)", "{{instance}}")
                    .about("Bytes awaiting the kernel's notification, of RLIMIT_MEMLOCK. Empty where there is no limit.").steps(Steps::Load),
                panel("Notification delay p99", Lines, "s", 8, "histogram_quantile(0.99, sum by (le) (rate(ringway_zerocopy_notify_seconds_bucket{$S}[$R])))", "p99")
                    .about("Result of a zero-copy send to the moment its memory is free again."),
                panel("Splices that moved less", Lines, "percentunit", 8, "sum by (stage) (rate(ringway_splice_calls_total{$S,core=~\"$core\",result!=\"full\"}[$R])) / sum by (stage) (rate(ringway_splice_calls_total{$S,core=~\"$core\"}[$R]))", "{{stage}}")
                    .about("Share of splices through the ring that came back short or empty.").max(1.0),
                panel("Pipes", Stacked, "short", 8, "sum by (state) (ringway_pipes{$S,core=~\"$core\"})", "{{state}}")
                    .about("Pipes of the pool; busy ones hold bytes of a transfer."),
                panel("Arena buffers", Stacked, "short", 8, "sum by (state) (ringway_buffers{$S,core=~\"$core\"})", "{{state}}")
                    .about("Registered buffers of 256 KiB; busy ones hold bytes of a transfer."),
                panel("Thrown out of pipes", Lines, "Bps", 8, "sum(rate(ringway_pipe_discarded_bytes_total{$S,core=~\"$core\"}[$R]))", "discarded")
                    .and("sum(rate(ringway_pipe_failures_total{$S,core=~\"$core\"}[$R]))", "pipes not had (per second)")
                    .about("Bytes read again because a slow client's pipe was wanted elsewhere."),
            ]},
        ],
    }
}

#[rustfmt::skip]
fn data() -> Dashboard {
    Dashboard {
        uid: "ringway-data",
        title: "ringway / Files, cache, origins",
        about: "Where the bytes come from.",
        variables: vec![Variable { name: "upstream", label: "Origin", query: "label_values(ringway_upstream_peer_healthy{job=~\"$job\",instance=~\"$instance\"}, upstream)" }],
        rows: vec![
            Row { title: "Files", panels: vec![
                panel("Read into memory", Stacked, "Bps", 8, "sum by (source) (rate(ringway_file_read_bytes_total{$S}[$R]))", "{{source}}")
                    .about("Bytes read by the send engines. splice and sendfile read nothing into our memory."),
                panel("Storage, as the kernel counts", Lines, "Bps", 8, "sum by (instance) (rate(ringway_storage_read_bytes_total{$S}[$R]))", "{{instance}}")
                    .about("Bytes this process made the disks read, whatever the engine: the truth beside the panel on the left."),
                panel("Read time p99", Lines, "s", 8, "histogram_quantile(0.99, sum by (le, source) (rate(ringway_file_read_seconds_bucket{$S}[$R])))", "{{source}}")
                    .about("Time of one read into our memory."),
                panel("Open-file cache", Stacked, "ops", 8, "sum by (result) (rate(ringway_file_cache_lookups_total{$S}[$R]))", "{{result}}")
                    .about("A miss opens the file; stale ones are looked at again after the revalidation time."),
                panel("Small bodies in memory", Stacked, "ops", 8, "sum by (result) (rate(ringway_content_cache_lookups_total{$S}[$R]))", "{{result}}")
                    .about("Lookups of small bodies; a hit needs no read at all."),
                panel("Memory of the caches", Lines, "bytes", 8, "sum by (instance) (ringway_content_cache_bytes{$S})", "small bodies")
                    .and("sum by (instance) (ringway_buffer_pool_bytes{$S})", "arena")
                    .and("sum by (instance) (ringway_pipe_capacity_bytes{$S})", "pipes")
                    .about("What the process keeps for files."),
            ]},
            Row { title: "Cache", panels: vec![
                panel("Hit ratio", Stat, "percentunit", 4, "sum(rate(ringway_cache_requests_total{$S,result=~\"hit|stale|revalidated|coalesced\"}[$R])) / sum(rate(ringway_cache_requests_total{$S,result!=\"bypass\"}[$R]))", "requests")
                    .about("Share of requests of cached routes that needed no fetch of their own.").steps(Steps::Share).max(1.0),
                panel("Origin offload", Stat, "percentunit", 4, "1 - sum(rate(ringway_cache_fill_bytes_total{$S}[$R])) / sum(rate(ringway_cache_served_bytes_total{$S}[$R]))", "bytes")
                    .about("Share of served bytes that were not fetched for it; negative while more is fetched than served.").steps(Steps::Share).max(1.0),
                panel("Fullness", Gauge, "percentunit", 4, "sum by (instance) (ringway_cache_size_bytes{$S}) / (sum by (instance) (ringway_cache_capacity_bytes{$S}) > 0)", "{{instance}}")
                    .about("Bytes stored of those allowed. Full is normal: what was asked for once goes first.").max(1.0),
                panel("What the cache did", Stacked, "reqps", 12, "sum by (result) (rate(ringway_cache_requests_total{$S}[$R]))", "{{result}}")
                    .about("Requests of cached routes. Coalesced ones waited for bytes another request fetched."),
                panel("Served and filled", Lines, "Bps", 8, "sum(rate(ringway_cache_served_bytes_total{$S}[$R]))", "served")
                    .and("sum(rate(ringway_cache_fill_bytes_total{$S}[$R]))", "filled")
                    .about("Bytes to clients of cached routes, and bytes written into the cache."),
                panel("Fills, waiters", Lines, "short", 8, "sum(ringway_cache_fills_in_flight{$S})", "fills in flight")
                    .and("sum(ringway_cache_coalesced_waiters{$S})", "waiting requests")
                    .about("Fetches in progress and the requests that wait for their bytes."),
                panel("Evictions and failures", Lines, "ops", 8, "sum by (reason) (rate(ringway_cache_evictions_total{$S}[$R]))", "evicted: {{reason}}")
                    .and("sum by (reason) (rate(ringway_cache_store_failures_total{$S}[$R]))", "not stored: {{reason}}")
                    .and("sum(rate(ringway_cache_verify_failures_total{$S}[$R]))", "wrong checksum")
                    .about("Objects that left, and writes that failed: clients were served from the origin."),
            ]},
            Row { title: "Origins", panels: vec![
                panel("Healthy", Timeline, "bool_yes_no", 12, "min by (upstream) (ringway_upstream_peer_healthy{$S,upstream=~\"$upstream\"})", "{{upstream}}")
                    .about("Whether an origin is asked: neither its health checks nor failures in a row say no."),
                panel("Received", Stacked, "Bps", 12, "sum by (upstream) (rate(ringway_upstream_received_bytes_total{$S,upstream=~\"$upstream\"}[$R]))", "{{upstream}}")
                    .about("Body bytes from each origin."),
                panel("Answers by class", Lines, "reqps", 8, "sum by (upstream, code) (rate(ringway_upstream_requests_total{$S,upstream=~\"$upstream\"}[$R])) > 0", "{{upstream}} {{code}}")
                    .about("Requests to origins by class of their answer; none: no answer came."),
                panel("Errors and retries", Lines, "ops", 8, "sum by (reason) (rate(ringway_upstream_errors_total{$S,upstream=~\"$upstream\"}[$R]))", "{{reason}}")
                    .and("sum(rate(ringway_upstream_retries_total{$S,upstream=~\"$upstream\"}[$R]))", "retries")
                    .about("Exchanges that failed, and requests sent again.").steps(Steps::NeverAbove),
                panel("TTFB p99", Lines, "s", 8, "histogram_quantile(0.99, sum by (le, upstream) (rate(ringway_upstream_ttfb_seconds_bucket{$S,upstream=~\"$upstream\"}[$R])))", "{{upstream}}")
                    .about("Request sent to first byte of the answer."),
                panel("Connections", Stacked, "short", 8, "sum by (state) (ringway_upstream_connections{$S,upstream=~\"$upstream\"})", "{{state}}")
                    .about("Pooled connections, all cores."),
                panel("Reuse", Lines, "percentunit", 8, "sum by (upstream) (rate(ringway_upstream_connection_reuses_total{$S,upstream=~\"$upstream\"}[$R])) / sum by (upstream) (rate(ringway_upstream_requests_total{$S,upstream=~\"$upstream\"}[$R]))", "{{upstream}}")
                    .about("Share of requests that went over a kept connection.").max(1.0),
                panel("Queue for a connection p99", Lines, "s", 8, "histogram_quantile(0.99, sum by (le) (rate(ringway_upstream_pool_wait_seconds_bucket{$S,upstream=~\"$upstream\"}[$R])))", "p99")
                    .about("Time requests queued because every connection to their origin was taken. Empty while none had to."),
            ]},
        ],
    }
}

#[rustfmt::skip]
fn test() -> Dashboard {
    Dashboard {
        uid: "ringway-test",
        title: "ringway / Saturation test",
        about: "How far a server under test is from its limits, and what a byte costs there.",
        variables: vec![Variable { name: "core", label: "Core", query: "label_values(ringway_core_info{job=~\"$job\",instance=~\"$instance\"}, core)" }],
        rows: vec![
            Row { title: "Run", panels: vec![
                egress(5),
                panel("Requests", Stat, "reqps", 5, "sum(rate(ringway_http_requests_total{$S}[$R]))", "requests").about("Requests answered a second."),
                busiest(),
                demand(5),
                panel("Cores for 100 Gb/s", Stat, "short", 6, "1.25e10 * sum(rate(ringway_core_cpu_seconds_total{$S}[$R])) / sum(rate(ringway_sent_bytes_total{$S}[$R]))", "cores")
                    .about("How many fully busy cores this mix would need for 100 Gb/s, softirq not counted."),
            ]},
            Row { title: "Limits", panels: vec![
                busy_bars(8),
                panel("Egress by core", Stacked, "bps", 8, "8 * sum by (core) (rate(ringway_sent_bytes_total{$S,core=~\"$core\"}[$R]))", "core {{core}}")
                    .about("When the load grows and this does not, the limit is reached: see which bar is red."),
                panel("CPUs of the cores by mode", Stacked, "percentunit", 8, "avg by (mode) (rate(ringway_host_cpu_seconds_total{$S}[$R]))", "{{mode}}")
                    .about("Time of the CPUs that carry cores. softirq is the network stack's part, steal what the hypervisor took.").max(1.0),
            ]},
            Row { title: "Cost", panels: vec![
                panel("CPU seconds per GiB", Lines, "s", 8, "2^30 * sum by (instance, thread) (rate(ringway_core_cpu_seconds_total{$S,core=~\"$core\"}[$R])) / on (instance) group_left sum by (instance) (rate(ringway_sent_bytes_total{$S,core=~\"$core\"}[$R]))", "{{thread}}")
                    .about("Service demand of a GiB, ring threads and kernel helpers told apart."),
                panel("CPU per request", Lines, "s", 8, "sum by (instance) (rate(ringway_core_cpu_seconds_total{$S,core=~\"$core\"}[$R])) / sum by (instance) (rate(ringway_core_requests_total{$S,core=~\"$core\"}[$R]))", "{{instance}}")
                    .about("CPU time of one request of this mix."),
                panel("Operations per request", Lines, "short", 8, "sum by (instance) (rate(ringway_ring_sqes_total{$S,core=~\"$core\"}[$R])) / sum by (instance) (rate(ringway_core_requests_total{$S,core=~\"$core\"}[$R]))", "submissions")
                    .and("sum by (instance) (rate(ringway_ring_enters_total{$S,core=~\"$core\"}[$R])) / sum by (instance) (rate(ringway_core_requests_total{$S,core=~\"$core\"}[$R]))", "enters")
                    .about("Submissions and system calls for each request."),
            ]},
            Row { title: "The tester's own view", panels: vec![
                panel("Goodput", Stacked, "bps", 8, "8 * sum by (instance, core) (rate(ringway_tester_sent_bytes_total{$S}[$R]))", "sent, core {{core}}")
                    .and("8 * sum by (instance, core) (rate(ringway_tester_received_bytes_total{$S}[$R]))", "received, core {{core}}")
                    .about("Payload of blast (sent) and sink or an HTTP client (received), run with --metrics. Choose all instances to see it."),
                panel("CPU of both ends", Lines, "short", 8, "sum by (side) (rate(ringway_tester_cpu_seconds_total{$S}[$R]))", "{{side}}")
                    .about("CPUs in use by this end and the other. The end that uses up its cores is the limit."),
                panel("Segments sent again", Lines, "ops", 4, "sum by (instance) (rate(ringway_tester_retransmits_total{$S}[$R]))", "{{instance}}")
                    .about("Retransmissions: the network between the ends drops."),
                panel("Round trip", Lines, "s", 4, "ringway_tester_rtt_seconds{$S}", "{{instance}}")
                    .about("Smoothed round trip of a flow, mean. It grows with queues on the way."),
            ]},
            Row { title: "Latency and honesty", panels: vec![
                panel("Transfer", Lines, "s", 8, "histogram_quantile(0.5, sum by (le) (rate(ringway_http_transfer_seconds_bucket{$S}[$R])))", "p50")
                    .and("histogram_quantile(0.99, sum by (le) (rate(ringway_http_transfer_seconds_bucket{$S}[$R])))", "p99")
                    .and("histogram_quantile(0.999, sum by (le) (rate(ringway_http_transfer_seconds_bucket{$S}[$R])))", "p99.9")
                    .about("Whole head to last byte taken by the socket."),
                panel("Completions reaped at once", Heatmap, "short", 8, "sum by (le) (increase(ringway_ring_batch_size_bucket{$S}[$R]))", "{{le}}")
                    .about("Batches grow as a core nears its limit."),
                panel("What spoils a run", Lines, "ops", 8, "sum by (reason) (rate(ringway_http_aborted_responses_total{$S}[$R]))", "cut: {{reason}}")
                    .and("sum(rate(ringway_host_listen_overflows_total{$S}[$R]))", "accept queue overflows")
                    .and("sum(rate(ringway_core_run_delay_seconds_total{$S}[$R]))", "run delay (s/s)")
                    .about("Cut bodies, lost connections, and CPUs shared with others: figures taken while these are above zero are not the server's limit."),
            ]},
        ],
    }
}
