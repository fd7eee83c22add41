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
        // Interfaces come and go with the host.
        let lines = lines.filter(|line| !line.contains("{device="));
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

#[test]
fn a_scrape_may_ask_for_groups_and_for_gzip() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let ask = |path: &str, fields: &str| Client::connect(server.admin.unwrap()).get_with(path, fields);
    let part = ask("/metrics?collect[]=ring&collect[]=process", "");
    let part = String::from_utf8(part.body).unwrap();
    for line in part.lines().filter(|line| !line.starts_with('#')) {
        let name = line.trim_start_matches("ringway_");
        let known = ["ring_", "process_", "scrape_", "log_"].iter().any(|begin| name.starts_with(begin));
        assert!(known, "{line}");
    }
    assert!(part.contains("ringway_ring_cqes_total") && part.contains("process_open_fds"), "{part}");
    let wrong = ask("/metrics?collect[]=rings", "");
    assert_eq!(wrong.status, 400);
    assert!(String::from_utf8_lossy(&wrong.body).contains("identity, core, ring"));

    let whole = ask("/metrics", "");
    assert_eq!((whole.header("content-encoding"), whole.header("vary")), (None, Some("Accept-Encoding")));
    let squeezed = ask("/metrics", "Accept-Encoding: gzip\r\n");
    assert_eq!(squeezed.header("content-encoding"), Some("gzip"));
    assert!(squeezed.body.len() * 5 < whole.body.len(), "{} of {}", squeezed.body.len(), whole.body.len());
    let mut gzip = Command::new("gzip").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
    gzip.stdin.take().unwrap().write_all(&squeezed.body).unwrap();
    let plain = String::from_utf8(gzip.wait_with_output().unwrap().stdout).unwrap();
    let names = |text: &str| {
        let types = text.lines().filter(|line| line.starts_with("# TYPE "));
        types.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&plain), names(&String::from_utf8(whole.body).unwrap()));
}

#[test]
fn what_is_scraped_is_what_is_listed() {
    if against_nginx() {
        return;
    }
    let listed = Command::new(env!("CARGO_BIN_EXE_ringway")).arg("--list-metrics").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let server = Start::new(tree::shared()).spawn();
    let metrics = server.metrics();
    let types: Vec<_> = metrics.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let row = |name: &str| listed.lines().map(|line| line.split('\t')).find(|row| row.clone().next() == Some(name));
    for (name, kind) in &types {
        let row = row(name).unwrap_or_else(|| panic!("{name} is not listed"));
        assert_eq!(row.clone().nth(1), Some(*kind), "{name}");
    }
    // Those of events appear with their first one; the tester tells its own.
    let names = listed.lines().map(|line| line.split('\t').next().unwrap());
    let missing = names.filter(|name| !name.trim_start_matches("ringway_").starts_with("tester_"));
    let missing: Vec<_> = missing.filter(|name| !types.iter().any(|(other, _)| other == name)).collect();
    assert!(
        missing.iter().all(|name| ["ringway_startup_warnings_total", "ringway_admin_requests_total"].contains(name)),
        "{missing:?}"
    );
}

#[test]
fn bytes_requests_and_wire_agree_with_what_a_client_received() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let before = server.metrics();
    let mut client = server.client();
    let (mut bodies, mut requests) = (0, 0);
    for path in ["/1.bin", "/4096.bin", "/65537.bin", "/1048577.bin"] {
        for _ in 0..3 {
            bodies += client.get(path).body.len() as u64;
            requests += 1;
        }
    }
    let mut now = server.metrics();
    let grown =
        |now: &Metrics, name: &str, labels: &[(&str, &str)]| (now.sum(name, labels) - before.sum(name, labels)) as u64;
    eventually("counts agree", Duration::from_secs(3), || {
        now = server.metrics();
        grown(&now, "ringway_sent_bytes_total", &[("part", "body")]) == bodies
            && grown(&now, "ringway_http_transfer_seconds_count", &[]) == requests
    });
    assert_eq!(grown(&now, "ringway_core_requests_total", &[]), requests);
    assert_eq!(grown(&now, "ringway_http_ttfb_seconds_count", &[]), requests);
    assert!(grown(&now, "ringway_quanta_total", &[]) > 0, "bodies of megabytes go step by step");
    // The wire has them and the headers of their packets, and whatever else runs here.
    let wire = grown(&now, "ringway_nic_transmit_bytes_total", &[("device", "lo")]);
    assert!(wire >= bodies, "{wire} on the wire for {bodies}");
    // Loopback cannot send without copying, and the kernel says so.
    assert_eq!(now.sum("ringway_zerocopy_bytes_total", &[("result", "zerocopied")]) as u64, 0);
}

#[test]
fn cpu_of_the_cores_is_what_the_kernel_says() {
    if against_nginx() {
        return;
    }
    // A splice through the ring runs on a worker, whose time is told too.
    let server = Start::new(tree::shared()).engine("splice").spawn();
    eventually("workers' time is told", Duration::from_secs(8), || {
        crate::support::load::round_trips(server.address(), "/1048577.bin", 1_048_577, 300, Duration::ZERO);
        server.metrics().sum("ringway_core_cpu_seconds_total", &[("thread", "iowq")]) > 0.0
    });
    // Idle now, so both readings are of the same moment: schedstat of every ring thread and io-wq helper.
    eventually("CPU agrees within 2 %", Duration::from_secs(8), || {
        let counted = server.metrics().sum("ringway_core_cpu_seconds_total", &[]);
        let task = format!("/proc/{}/task", server.pid());
        let seconds = |thread: std::fs::DirEntry| {
            let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
            let ours = name.starts_with("ringway-") || name.starts_with("iou-wrk-");
            let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            ours.then(|| stat.split(' ').next()?.parse::<f64>().ok())?.map(|nanos| nanos / 1e9)
        };
        let real: f64 = std::fs::read_dir(task).unwrap().flatten().filter_map(seconds).sum();
        println!("told {counted:.4} s, the kernel has {real:.4} s");
        real > 0.02 && (counted / real - 1.0).abs() < 0.02
    });
}
