//! What is told agrees with what happened, in names and types that do not change.

use crate::support::metrics::Metrics;
use crate::support::{Client, Start, against_nginx, eventually, has, tree};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Families every dashboard stands on, with labels that must be there at zero.
const FROM_THE_START: &[(&str, &[(&str, &str)])] = &[
    ("ringway_build_info", &[]),
    ("ringway_capability_enabled", &[("capability", "splice")]),
    ("ringway_capability_enabled", &[("capability", "send_zc")]),
    ("ringway_ready", &[]),
    ("ringway_draining", &[]),
    ("ringway_core_info", &[]),
    ("ringway_sent_bytes_total", &[("engine", "send"), ("part", "head")]),
    ("ringway_sent_bytes_total", &[("engine", "send"), ("part", "body")]),
    ("ringway_sent_bytes_total", &[("engine", "send_zc"), ("part", "body")]),
    ("ringway_sent_bytes_total", &[("engine", "splice"), ("part", "body")]),
    ("ringway_sent_bytes_total", &[("engine", "sendfile"), ("part", "body")]),
    ("ringway_core_cpu_seconds_total", &[("thread", "worker"), ("mode", "user")]),
    ("ringway_core_cpu_seconds_total", &[("thread", "iowq"), ("mode", "system")]),
    ("ringway_core_loop_seconds_total", &[("state", "busy")]),
    ("ringway_core_loop_seconds_total", &[("state", "wait")]),
    ("ringway_ring_sqes_total", &[]),
    ("ringway_ring_cqes_total", &[]),
    ("ringway_ring_enters_total", &[]),
    ("ringway_ring_inflight", &[]),
    ("ringway_ring_cq_overflows_total", &[]),
    ("ringway_zerocopy_sends_total", &[("result", "zerocopied")]),
    ("ringway_zerocopy_sends_total", &[("result", "copied")]),
    ("ringway_zerocopy_bytes_total", &[("result", "copied")]),
    ("ringway_pipes", &[("state", "idle")]),
    ("ringway_pipes", &[("state", "busy")]),
    ("ringway_buffers", &[("state", "busy")]),
    ("ringway_connections", &[("state", "reading")]),
    ("ringway_connections", &[("state", "writing")]),
    ("ringway_connections", &[("state", "idle")]),
    ("ringway_connections_accepted_total", &[]),
    ("ringway_http_requests_total", &[("method", "GET"), ("code", "2xx")]),
    ("ringway_http_requests_total", &[("method", "HEAD"), ("code", "4xx")]),
    ("ringway_http_aborted_responses_total", &[]),
    ("ringway_http_ttfb_seconds_count", &[]),
    ("ringway_http_transfer_seconds_count", &[]),
    ("ringway_open_files", &[]),
    ("ringway_file_cache_lookups_total", &[("result", "hit")]),
    ("ringway_file_cache_lookups_total", &[("result", "miss")]),
    ("process_cpu_seconds_total", &[]),
    ("process_resident_memory_bytes", &[]),
    ("process_open_fds", &[]),
    ("process_max_fds", &[]),
    ("process_start_time_seconds", &[]),
];

#[test]
fn everything_is_there_from_the_start_and_counters_are_zero() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let metrics = server.metrics();
    let missing: Vec<_> = FROM_THE_START.iter().filter(|(name, labels)| !metrics.has(name, labels)).collect();
    assert!(missing.is_empty(), "missing: {missing:#?}");
    for name in [
        "ringway_sent_bytes_total",
        "ringway_http_requests_total",
        "ringway_http_aborted_responses_total",
        "ringway_connections_accepted_total",
        "ringway_zerocopy_sends_total",
        "ringway_connections",
    ] {
        assert!(metrics.sum(name, &[]).abs() < f64::EPSILON, "{name} before the first request");
    }
    assert!((metrics.sum("ringway_ready", &[]) - 1.0).abs() < f64::EPSILON);
    // The same series later: nothing appears only when it first happens.
    let mut client = server.client();
    for path in ["/1.bin", "/1048577.bin", "/none", "/"] {
        client.get(path);
    }
    client.get_with("/65537.bin", "Range: bytes=1-2\r\n");
    client.get_with("/65537.bin", "Range: bytes=99999999-\r\n");
    let series = |metrics: &Metrics| {
        let name = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
        let lines = metrics.text.lines().filter(|line| !line.starts_with('#') && line.starts_with("ringway_"));
        lines.map(name).collect::<std::collections::BTreeSet<_>>()
    };
    let later = server.metrics();
    let appeared: Vec<_> = series(&later).difference(&series(&metrics)).cloned().collect();
    assert!(appeared.is_empty(), "appeared only later: {appeared:#?}");
}

#[test]
fn promtool_finds_nothing_to_say() {
    if against_nginx() || !has("promtool") {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    client.get("/1.bin");
    client.get("/none");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    promtool.stdin.take().unwrap().write_all(server.metrics().text.as_bytes()).unwrap();
    let result = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned();
    assert!(result.status.success() && said.trim().is_empty(), "{said}");
}

#[test]
fn requests_are_counted_by_method_and_class() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    for _ in 0..5 {
        client.get("/1.bin");
    }
    client.head_of("/1.bin");
    client.get("/none");
    client.get_with("/4096.bin", "Range: bytes=0-1\r\n");
    client.get_with("/4096.bin", "If-None-Match: *\r\n");
    eventually("counts agree", Duration::from_secs(3), || {
        let metrics = server.metrics();
        let count =
            |method, code| metrics.sum("ringway_http_requests_total", &[("method", method), ("code", code)]) as u64;
        (count("GET", "2xx"), count("HEAD", "2xx"), count("GET", "4xx"), count("GET", "3xx")) == (6, 1, 1, 1)
    });
    assert_eq!(server.metrics().sum("ringway_connections_accepted_total", &[]) as u64, 1);
    assert_eq!(server.metrics().sum("ringway_connections", &[]) as u64, 1);
    drop(client);
    eventually("a closed connection is gone", Duration::from_secs(3), || {
        server.metrics().sum("ringway_connections", &[]) as u64 == 0
    });
}

#[test]
fn counters_never_fall() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    let mut last = server.metrics();
    for round in 0..10 {
        client.get("/65537.bin");
        let now = server.metrics();
        for sample in last.samples.iter().filter(|sample| sample.name.ends_with("_total")) {
            let labels: Vec<(&str, &str)> = sample.labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let after = now.sum(&sample.name, &labels);
            assert!(
                after >= sample.value,
                "round {round}: {} {labels:?} fell from {} to {after}",
                sample.name,
                sample.value
            );
        }
        last = now;
    }
}

#[test]
fn a_slow_scraper_slows_nobody() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let admin = server.admin.unwrap();
    // They ask and never read; more of them than a small pool has places.
    let mut slow: Vec<Client> = (0..20).map(|_| Client::connect_small(admin)).collect();
    for client in &mut slow {
        client.send(&b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n".repeat(20));
    }
    let times = crate::support::load::round_trips(server.address(), "/1.bin", 1, 200, Duration::ZERO);
    assert!(times.percentile(0.5) < Duration::from_millis(20), "{:?}", times.percentile(0.5));
    assert!(!server.metrics().text.is_empty(), "another scraper is answered");
}

#[test]
fn the_admin_address_knows_its_paths() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let admin = server.admin.unwrap();
    let ask = |path: &str| {
        let mut client = Client::connect(admin);
        client.get_with(path, "Connection: close\r\n")
    };
    let metrics = ask("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"), "{metrics:?}");
    assert_eq!(ask("/healthz").status, 200);
    assert_eq!(ask("/readyz").status, 200);
    assert_eq!(ask("/1.bin").status, 404, "no files here");
    assert_eq!(ask("/../metrics-not").status, 404);
    // Nor metrics on the public side.
    assert_eq!(server.client().get("/metrics").status, 404);
    // Nonsense does not end it.
    Client::connect(admin).send(b"\x00\x01nonsense\r\n\r\n");
    assert_eq!(ask("/healthz").status, 200);
}
