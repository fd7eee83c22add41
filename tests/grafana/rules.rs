//! Recording and alert rules, and for each alert two series of samples: with which it fires and with which it does not.
//! The one source of `grafana/alerts/`.

use std::fmt::Write;

/// Recorded name and expression.
pub const RECORDS: &[(&str, &str)] = &[
    ("instance:ringway_sent_bytes_total:rate5m", "sum by (job, instance) (rate(ringway_sent_bytes_total[5m]))"),
    (
        "instance:ringway_core_cpu_seconds_total:rate5m",
        "sum by (job, instance) (rate(ringway_core_cpu_seconds_total[5m]))",
    ),
    (
        "ringway:cpu_seconds_per_byte:ratio5m",
        "instance:ringway_core_cpu_seconds_total:rate5m / instance:ringway_sent_bytes_total:rate5m",
    ),
    (
        "ringway:core_busy:ratio5m",
        "sum by (job, instance, core) (rate(ringway_core_loop_seconds_total{state=\"busy\"}[5m]))",
    ),
];

/// Windows of the error ratio that burn rates are made of.
pub const WINDOWS: &[&str] = &["5m", "30m", "1h", "6h", "3d"];

/// The recorded error ratio over a window: answered 5xx, or cut short by us.
pub fn error_ratio(window: &str) -> String {
    format!(
        "(sum by (job) (rate(ringway_http_requests_total{{code=\"5xx\"}}[{window}])) + \
         sum by (job) (rate(ringway_http_aborted_responses_total{{reason!~\"client_reset|drain\"}}[{window}]))) / \
         (sum by (job) (rate(ringway_http_requests_total[{window}])) > 0)"
    )
}

/// One alert.
pub struct Alert {
    pub name: &'static str,
    pub expr: &'static str,
    pub lasts: &'static str,
    pub severity: &'static str,
    pub summary: &'static str,
    /// What to look at and what to do.
    pub remedy: &'static str,
    /// Series with their values, once a minute, with which it fires...
    pub fires: &'static [(&'static str, &'static str)],
    /// ... and with which it does not.
    pub quiet: &'static [(&'static str, &'static str)],
    /// When that is looked at.
    pub at: &'static str,
    /// Labels of the firing alert beside job, instance and severity.
    pub labels: &'static [(&'static str, &'static str)],
    /// The alert speaks of a job and not of an instance.
    pub of_job: bool,
}

const fn alert(name: &'static str, severity: &'static str, lasts: &'static str, expr: &'static str) -> Alert {
    Alert {
        name,
        expr,
        lasts,
        severity,
        summary: "",
        remedy: "",
        fires: &[],
        quiet: &[],
        at: "30m",
        labels: &[],
        of_job: false,
    }
}

impl Alert {
    const fn says(mut self, summary: &'static str, remedy: &'static str) -> Self {
        self.summary = summary;
        self.remedy = remedy;
        self
    }

    const fn proof(
        mut self,
        fires: &'static [(&'static str, &'static str)],
        quiet: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.fires = fires;
        self.quiet = quiet;
        self
    }

    const fn labelled(mut self, labels: &'static [(&'static str, &'static str)]) -> Self {
        self.labels = labels;
        self
    }

    const fn of_job(mut self, at: &'static str) -> Self {
        self.of_job = true;
        self.at = at;
        self
    }
}

/// All of them. `{I}` in a test series stands for job and instance.
#[rustfmt::skip]
pub const ALERTS: &[Alert] = &[
    alert("RingwayDown", "page", "1m", "up{job=\"ringway\"} == 0")
        .says("Prometheus cannot scrape it.", "Is the process there (systemctl status ringway)? Is the admin address reachable?")
        .proof(&[("up{I}", "1x10 0x30")], &[("up{I}", "1x40")]),
    alert("RingwayNotReady", "page", "2m", "ringway_ready == 0 unless on (job, instance) ringway_draining == 1")
        .says("It runs and does not serve, and nobody drains it.", "/readyz of the admin address says why; the log has the last error.")
        .proof(&[("ringway_ready{I}", "0x40"), ("ringway_draining{I}", "0x40")], &[("ringway_ready{I}", "0x40"), ("ringway_draining{I}", "1x40")]),
    alert("RingwayDrainStuck", "ticket", "15m", "ringway_draining == 1")
        .says("A drain has not ended.", "Clients hold transfers open; --drain-timeout bounds it, a second SIGTERM ends it.")
        .proof(&[("ringway_draining{I}", "1x40")], &[("ringway_draining{I}", "1x10 0x30")]),
    alert("RingwayCoreHung", "page", "1m", "time() - ringway_core_last_loop_timestamp_seconds > 30")
        .says("A core's event loop has not turned for 30 s.", "Its requests hang. /debug/rings of the admin address, the stack in /proc/PID/task/TID/stack; then restart.")
        .proof(&[("ringway_core_last_loop_timestamp_seconds{I,core=\"1\"}", "0+60x10 600x30")], &[("ringway_core_last_loop_timestamp_seconds{I,core=\"1\"}", "0+60x40")])
        .labelled(&[("core", "1")]),
    alert("RingwayCoresSaturated", "ticket", "10m", "avg by (job, instance) (ringway:core_busy:ratio5m) > 0.95")
        .says("All cores work all the time.", "More cores or more instances. See the cores dashboard for what the time goes into.")
        .proof(&[("ringway_core_loop_seconds_total{I,core=\"0\",state=\"busy\"}", "0+60x40")], &[("ringway_core_loop_seconds_total{I,core=\"0\",state=\"busy\"}", "0+50x40")]),
    alert("RingwayCoreImbalance", "ticket", "15m", "max by (job, instance) (ringway:core_busy:ratio5m) > 2 * avg by (job, instance) (ringway:core_busy:ratio5m) and on (job, instance) max by (job, instance) (ringway:core_busy:ratio5m) > 0.5")
        .says("One core works more than twice the mean.", "Few long connections land unevenly; look at receive queue (RSS) and IRQ placement.")
        .proof(
            &[("ringway_core_loop_seconds_total{I,core=\"0\",state=\"busy\"}", "0+55x40"), ("ringway_core_loop_seconds_total{I,core=\"1\",state=\"busy\"}", "0+1x40"), ("ringway_core_loop_seconds_total{I,core=\"2\",state=\"busy\"}", "0+1x40")],
            &[("ringway_core_loop_seconds_total{I,core=\"0\",state=\"busy\"}", "0+55x40"), ("ringway_core_loop_seconds_total{I,core=\"1\",state=\"busy\"}", "0+40x40"), ("ringway_core_loop_seconds_total{I,core=\"2\",state=\"busy\"}", "0+40x40")]),
    alert("RingwayCompletionOverflow", "ticket", "0m", "sum by (job, instance) (increase(ringway_ring_cq_overflows_total[10m])) > 0")
        .says("A completion queue overflowed.", "Raise ops_per_core, or spread the load over more cores.")
        .proof(&[("ringway_ring_cq_overflows_total{I,core=\"0\"}", "0x25 3x15")], &[("ringway_ring_cq_overflows_total{I,core=\"0\"}", "3x40")]),
    alert("RingwayIoWqDominates", "ticket", "10m", "sum by (job, instance) (rate(ringway_core_cpu_seconds_total{thread=\"iowq\"}[5m])) > 0.5 * instance:ringway_core_cpu_seconds_total:rate5m and instance:ringway_core_cpu_seconds_total:rate5m > 0.2")
        .says("Kernel helpers use more CPU than the ring threads.", "Cold files or splices handed to io-wq: try engine = \"send\" on the route, or more memory for the page cache.")
        .proof(
            &[("ringway_core_cpu_seconds_total{I,core=\"0\",thread=\"iowq\",mode=\"system\"}", "0+40x40"), ("ringway_core_cpu_seconds_total{I,core=\"0\",thread=\"worker\",mode=\"system\"}", "0+10x40")],
            &[("ringway_core_cpu_seconds_total{I,core=\"0\",thread=\"iowq\",mode=\"system\"}", "0+10x40"), ("ringway_core_cpu_seconds_total{I,core=\"0\",thread=\"worker\",mode=\"system\"}", "0+40x40")]),
    alert("RingwayZeroCopyCopied", "info", "15m", "sum by (job, instance) (rate(ringway_zerocopy_bytes_total{result=\"copied\"}[5m])) > 0.5 * sum by (job, instance) (rate(ringway_zerocopy_bytes_total[5m])) and sum by (job, instance) (rate(ringway_zerocopy_bytes_total[5m])) > 1e6")
        .says("The kernel copies most zero-copy sends.", "The device lacks scatter/gather or checksum offload (ethtool -k), or traffic is looped back: use splice or sendfile there.")
        .proof(
            &[("ringway_zerocopy_bytes_total{I,core=\"0\",result=\"copied\"}", "0+1e9x40"), ("ringway_zerocopy_bytes_total{I,core=\"0\",result=\"zerocopied\"}", "0x40")],
            &[("ringway_zerocopy_bytes_total{I,core=\"0\",result=\"copied\"}", "0+1e8x40"), ("ringway_zerocopy_bytes_total{I,core=\"0\",result=\"zerocopied\"}", "0+1e9x40")]),
    alert("RingwayMemlockNearLimit", "ticket", "5m", "sum by (job, instance) (ringway_zerocopy_pending_bytes) > on (job, instance) (0.8 * (ringway_memlock_limit_bytes > 0))")
        .says("Pinned memory is near RLIMIT_MEMLOCK.", "Raise LimitMEMLOCK; clients that do not read pin what was sent to them.")
        .proof(
            &[("ringway_zerocopy_pending_bytes{I,core=\"0\"}", "900x40"), ("ringway_memlock_limit_bytes{I}", "1000x40")],
            &[("ringway_zerocopy_pending_bytes{I,core=\"0\"}", "900x40"), ("ringway_memlock_limit_bytes{I}", "-1x40")]),
    alert("RingwayPipesScarce", "ticket", "5m", "sum by (job, instance, reason) (increase(ringway_pipe_failures_total[10m])) > 0")
        .says("Pipes could not be had as wanted.", "pages_limit: raise fs.pipe-user-pages-soft; emfile: raise LimitNOFILE.")
        .proof(&[("ringway_pipe_failures_total{I,core=\"0\",reason=\"pages_limit\"}", "0+1x40")], &[("ringway_pipe_failures_total{I,core=\"0\",reason=\"pages_limit\"}", "7x40")])
        .labelled(&[("reason", "pages_limit")]),
    alert("RingwayDescriptorsNearLimit", "ticket", "5m", "process_open_fds{job=\"ringway\"} > 0.8 * process_max_fds{job=\"ringway\"}")
        .says("Descriptors are near their limit.", "Raise LimitNOFILE, or lower connections_per_core and open_files_per_core.")
        .proof(&[("process_open_fds{I}", "900x40"), ("process_max_fds{I}", "1000x40")], &[("process_open_fds{I}", "500x40"), ("process_max_fds{I}", "1000x40")]),
    alert("RingwayConnectionsRejected", "ticket", "5m", "sum by (job, instance, reason) (rate(ringway_connections_rejected_total[5m])) > 0")
        .says("Connections are turned away.", "limit: raise connections_per_core; emfile: raise LimitNOFILE.")
        .proof(&[("ringway_connections_rejected_total{I,core=\"0\",reason=\"limit\"}", "0+5x40")], &[("ringway_connections_rejected_total{I,core=\"0\",reason=\"limit\"}", "5x40")])
        .labelled(&[("reason", "limit")]),
    alert("RingwayAcceptQueueOverflows", "ticket", "5m", "rate(ringway_host_listen_overflows_total[5m]) > 0")
        .says("Accept queues of this network namespace overflow.", "Raise net.core.somaxconn and the backlog; a core may be too busy to accept.")
        .proof(&[("ringway_host_listen_overflows_total{I}", "0+5x40")], &[("ringway_host_listen_overflows_total{I}", "5x40")]),
    alert("RingwayStealHigh", "ticket", "10m", "sum by (job, instance, cpu) (rate(ringway_host_cpu_seconds_total{mode=\"steal\"}[5m])) > 0.1")
        .says("The hypervisor takes more than a tenth of a core's CPU.", "Move the machine, or give it dedicated CPUs.")
        .proof(&[("ringway_host_cpu_seconds_total{I,cpu=\"0\",mode=\"steal\"}", "0+12x40")], &[("ringway_host_cpu_seconds_total{I,cpu=\"0\",mode=\"steal\"}", "0+3x40")])
        .labelled(&[("cpu", "0")]),
    alert("RingwaySoftirqSaturated", "ticket", "10m", "sum by (job, instance, cpu) (rate(ringway_host_cpu_seconds_total{mode=\"softirq\"}[5m])) > 0.8")
        .says("The network stack fills a core's CPU.", "Spread receive queues (RSS, RPS) or keep interrupts off the CPUs of the cores.")
        .proof(&[("ringway_host_cpu_seconds_total{I,cpu=\"0\",mode=\"softirq\"}", "0+55x40")], &[("ringway_host_cpu_seconds_total{I,cpu=\"0\",mode=\"softirq\"}", "0+30x40")])
        .labelled(&[("cpu", "0")]),
    alert("RingwayOriginDown", "page", "2m", "min by (job, instance, upstream) (ringway_upstream_peer_healthy) == 0")
        .says("An origin is not asked any more.", "Its health check or three exchanges in a row failed; the data dashboard says with which error.")
        .proof(&[("ringway_upstream_peer_healthy{I,upstream=\"a:1\",peer=\"a:1\"}", "0x40")], &[("ringway_upstream_peer_healthy{I,upstream=\"a:1\",peer=\"a:1\"}", "1x40")])
        .labelled(&[("upstream", "a:1")]),
    alert("RingwayOriginErrors", "ticket", "10m", "sum by (job, instance, upstream) (rate(ringway_upstream_errors_total[5m])) > 0.05 * sum by (job, instance, upstream) (rate(ringway_upstream_requests_total[5m]))")
        .says("More than 5 % of the exchanges with an origin fail.", "By reason on the data dashboard: timeout and reset are the origin's, queue is ours (origin_connections_per_core).")
        .proof(
            &[("ringway_upstream_errors_total{I,upstream=\"a:1\",reason=\"reset\"}", "0+10x40"), ("ringway_upstream_requests_total{I,upstream=\"a:1\",code=\"2xx\"}", "0+100x40")],
            &[("ringway_upstream_errors_total{I,upstream=\"a:1\",reason=\"reset\"}", "0+1x40"), ("ringway_upstream_requests_total{I,upstream=\"a:1\",code=\"2xx\"}", "0+100x40")])
        .labelled(&[("upstream", "a:1")]),
    alert("RingwayCacheStoreFailing", "ticket", "5m", "sum by (job, instance, reason) (rate(ringway_cache_store_failures_total[5m])) > 0")
        .says("Bytes are served and cannot be stored.", "enospc, low_space: the disk is full (cache_bytes, cache_free_bytes); eio: the disk is ill.")
        .proof(&[("ringway_cache_store_failures_total{I,reason=\"enospc\"}", "0+2x40")], &[("ringway_cache_store_failures_total{I,reason=\"enospc\"}", "2x40")])
        .labelled(&[("reason", "enospc")]),
    alert("RingwayCacheCorrupt", "ticket", "0m", "increase(ringway_cache_verify_failures_total[1h]) > 0")
        .says("Stored slices did not have their checksum.", "They were fetched again; the disk or its file system loses data.")
        .proof(&[("ringway_cache_verify_failures_total{I}", "0x20 1x20")], &[("ringway_cache_verify_failures_total{I}", "1x40")]),
    alert("RingwayErrorBudgetFast", "page", "2m", "ringway:http_error:ratio1h > 14.4 * 0.001 and ringway:http_error:ratio5m > 14.4 * 0.001")
        .says("Errors would use up a month's budget (0.1 %) in two days.", "Error ratio by route on the overview; 5xx of a cached route are its origin's.")
        .proof(
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+970x90"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0+30x90"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x90")],
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+1000x90"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0x90"), ("ringway_http_aborted_responses_total{I,reason=\"client_reset\"}", "0+900x90"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x90")])
        .of_job("80m"),
    alert("RingwayErrorBudgetSlow", "page", "15m", "ringway:http_error:ratio6h > 6 * 0.001 and ringway:http_error:ratio30m > 6 * 0.001")
        .says("Errors would use up a month's budget (0.1 %) in five days.", "As above; a smaller and longer trouble.")
        .proof(
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+990x480"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0+10x480"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x480")],
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+990x480"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0+10x180 1810x300"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x480")])
        .of_job("450m"),
    alert("RingwayErrorBudgetTicket", "ticket", "1h", "ringway:http_error:ratio3d > 0.001 and ringway:http_error:ratio6h > 0.001")
        .says("Errors use up the month's budget (0.1 %).", "As above; not urgent, and not to be left.")
        .proof(
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+990x480"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0+2x480"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x480")],
            &[("ringway_http_requests_total{I,code=\"2xx\"}", "0+10000x480"), ("ringway_http_requests_total{I,code=\"5xx\"}", "0+2x480"), ("ringway_http_aborted_responses_total{I,reason=\"read_error\"}", "0x480")])
        .of_job("450m"),
];

const MADE: &str = "# Made by UPDATE=1 cargo test --test grafana from tests/grafana/rules.rs\n";

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// `grafana/alerts/ringway.rules.yml`.
pub fn rules() -> String {
    let mut text = format!("{MADE}groups:\n  - name: ringway.records\n    rules:\n");
    let mut record = |name: &str, expr: &str| {
        let _ = write!(text, "      - record: {name}\n        expr: {}\n", quoted(expr));
    };
    for (name, expr) in RECORDS {
        record(name, expr);
    }
    for window in WINDOWS {
        record(&format!("ringway:http_error:ratio{window}"), &error_ratio(window));
    }
    text.push_str("  - name: ringway.alerts\n    rules:\n");
    for alert in ALERTS {
        let Alert { name, expr, lasts, severity, summary, remedy, .. } = alert;
        let _ = write!(text, "      - alert: {name}\n        expr: {}\n        for: {lasts}\n", quoted(expr));
        let _ = write!(text, "        labels:\n          severity: {severity}\n        annotations:\n");
        let _ = write!(text, "          summary: {}\n          description: {}\n", quoted(summary), quoted(remedy));
        let _ = writeln!(text, "          runbook: \"grafana/ALERTS.md#{}\"", name.to_lowercase());
    }
    text
}

/// `grafana/alerts/ringway.test.yml`: for `promtool test rules`.
pub fn proofs() -> String {
    let mut text = format!("{MADE}rule_files: [ringway.rules.yml]\nevaluation_interval: 1m\ntests:\n");
    for alert in ALERTS {
        for (series, fires) in [(alert.fires, true), (alert.quiet, false)] {
            let word = if fires { "fires" } else { "is quiet" };
            let _ = write!(text, "  - name: {} {word}\n    interval: 1m\n    input_series:\n", alert.name);
            for (series, values) in series {
                let series = series.replace("{I", "{job=\"ringway\",instance=\"a\"");
                let _ = writeln!(text, "      - {{ series: '{series}', values: '{values}' }}");
            }
            let _ = write!(
                text,
                "    alert_rule_test:\n      - eval_time: {}\n        alertname: {}\n",
                alert.at, alert.name
            );
            if !fires {
                text.push_str("        exp_alerts: []\n");
                continue;
            }
            let _ = write!(
                text,
                "        exp_alerts:\n          - exp_labels:\n              severity: {}\n              job: ringway\n",
                alert.severity
            );
            if !alert.of_job {
                text.push_str("              instance: a\n");
            }
            for (label, value) in alert.labels {
                let _ = writeln!(text, "              {label}: {}", quoted(value));
            }
            let _ = write!(
                text,
                "            exp_annotations:\n              summary: {}\n              description: {}\n              runbook: \"grafana/ALERTS.md#{}\"\n",
                quoted(alert.summary),
                quoted(alert.remedy),
                alert.name.to_lowercase()
            );
        }
    }
    // The recorded values themselves: 6e7 bytes and 6 CPU seconds a minute.
    text.push_str(
        "  - name: recorded values\n    interval: 1m\n    input_series:\n      \
         - { series: 'ringway_sent_bytes_total{job=\"ringway\",instance=\"a\",core=\"0\"}', values: '0+6e7x20' }\n      \
         - { series: 'ringway_core_cpu_seconds_total{job=\"ringway\",instance=\"a\",core=\"0\"}', values: '0+6x20' }\n    \
         promql_expr_test:\n      - expr: ringway:cpu_seconds_per_byte:ratio5m * 1e9\n        eval_time: 15m\n        \
         exp_samples: [{ labels: '{job=\"ringway\",instance=\"a\"}', value: 100 }]\n",
    );
    text
}

/// `grafana/ALERTS.md`: the runbook.
pub fn runbook() -> String {
    let mut text = String::from(
        "# Alerts\n\nMade by `UPDATE=1 cargo test --test grafana`. Rules: `alerts/ringway.rules.yml` (Prometheus rule files; the job \
         is called `ringway`); `promtool test rules alerts/ringway.test.yml` shows each alert firing and not firing.\n",
    );
    for Alert { name, expr, lasts, severity, summary, remedy, .. } in ALERTS {
        let _ = write!(text, "\n## {name}\n\n{severity}, after {lasts}. {summary} {remedy}\n\n    {expr}\n");
    }
    text
}
