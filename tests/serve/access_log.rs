//! The access log has a line for every request that was counted, and holds nobody up.

use crate::support::load::Downloaders;
use crate::support::{Client, Server, Start, against_nginx, eventually, has, tree};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Every request that the metrics know has its line, and the log says so itself.
fn agreed(server: &Server, path: &Path, least: usize) -> Vec<String> {
    let mut found = Vec::new();
    eventually("lines, requests and records are as many", Duration::from_secs(5), || {
        let metrics = server.metrics();
        found = lines(path);
        let count = found.len();
        count >= least
            && metrics.sum("ringway_http_requests_total", &[]) as usize == count
            && metrics.sum("ringway_core_requests_total", &[]) as usize == count
            && metrics.sum("ringway_log_records_total", &[("log", "access")]) as usize == count
    });
    assert_eq!(server.metrics().sum("ringway_log_records_dropped_total", &[]) as usize, 0);
    found
}

#[test]
fn every_request_has_its_line_whatever_became_of_it() {
    if against_nginx() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let server = Start::new(tree::shared()).with("--access-log", path.display()).spawn();
    let mut client = server.client();
    client.get_with("/1.bin?q=1", "Referer: http://r/\r\nUser-Agent: a \"b\"\r\n");
    client.get("/none");
    client.head_of("/4096.bin");
    client.get_with("/4096.bin", "Range: bytes=0-9\r\n");
    client.get_with("/4096.bin", "If-None-Match: *\r\n");
    // Two at once, and nonsense behind them.
    client.send(&b"GET /1.bin HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2));
    assert_eq!((client.reply().status, client.reply().status), (200, 200));
    client.send(b"no request\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    // One that leaves in the middle.
    let mut gone = Client::connect_small(server.address());
    gone.send(format!("GET /{}.bin HTTP/1.1\r\nHost: h\r\n\r\n", 16 * tree::MIB).as_bytes());
    gone.head();
    gone.reset();
    let found = agreed(&server, &path, 9);
    let behind = |line: &str| line.split_once('"').unwrap().1.to_owned();
    // Lines of one core are in order, two cores are not: the two clients are told apart.
    let large = format!("GET /{}.bin ", 16 * tree::MIB);
    let (cut, seen): (Vec<String>, Vec<String>) =
        found.iter().map(|line| behind(line)).partition(|line| line.starts_with(&large));
    assert!(found.iter().all(|line| line.starts_with("127.0.0.1 - - [") && line.contains(" +0000] \"")), "{found:#?}");
    assert_eq!(
        seen,
        [
            "GET /1.bin?q=1 HTTP/1.1\" 200 1 \"http://r/\" \"a \\x22b\\x22\"",
            "GET /none HTTP/1.1\" 404 0 \"-\" \"-\"",
            "HEAD /4096.bin HTTP/1.1\" 200 0 \"-\" \"-\"",
            "GET /4096.bin HTTP/1.1\" 206 10 \"-\" \"-\"",
            "GET /4096.bin HTTP/1.1\" 304 0 \"-\" \"-\"",
            "GET /1.bin HTTP/1.1\" 200 1 \"-\" \"-\"",
            "GET /1.bin HTTP/1.1\" 200 1 \"-\" \"-\"",
            "\" 400 0 \"-\" \"-\"",
        ]
    );
    assert_eq!(cut.len(), 1, "{cut:#?}");
    let sent: u64 = cut[0].split(' ').nth(4).unwrap().parse().unwrap();
    assert!(sent < 16 * tree::MIB, "the bytes that were sent, not those that were asked for: {}", cut[0]);
}

#[test]
fn under_load_lines_requests_and_bytes_agree_with_the_clients() {
    if against_nginx() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    // Room for a machine so busy that the log's thread waits long for its turn.
    let server = Start::new(tree::shared())
        .with("--access-log", path.display())
        .with("--access-log-format", "json")
        .with("--access-log-bytes-per-core", "64MiB")
        .spawn();
    let load: Vec<_> = (0..2).map(|_| Downloaders::start(server.address(), "/1.bin", 1, 8, None)).collect();
    std::thread::sleep(Duration::from_millis(700));
    let asked = || load.iter().map(Downloaders::requests).sum::<u64>();
    eventually("a thousand requests", Duration::from_secs(20), || asked() > 1000);
    load.into_iter().for_each(Downloaders::stop);
    // They left with requests on the way, which are answered still.
    eventually("every connection has ended", Duration::from_secs(10), || {
        server.metrics().sum("ringway_connections", &[]) as u64 == 0
    });
    let found = agreed(&server, &path, 1000);
    let mut bytes = 0;
    for line in &found {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!((&value["method"], &value["target"]), (&"GET".into(), &"/1.bin".into()));
        assert!(value["seconds"].as_f64().unwrap() < 60.0, "{line}");
        bytes += value["body_bytes"].as_u64().unwrap();
    }
    assert_eq!(bytes, server.metrics().sum("ringway_sent_bytes_total", &[("part", "body")]) as u64);
}

#[test]
fn a_rotated_log_is_opened_again() {
    if against_nginx() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let mut server = Start::new(tree::shared()).with("--access-log", path.display()).spawn();
    server.client().get("/1.bin");
    eventually("the first line", Duration::from_secs(5), || lines(&path).len() == 1);
    std::fs::rename(&path, &old).unwrap();
    server.client().get("/2.none");
    eventually("the old file is used until the signal", Duration::from_secs(5), || lines(&old).len() == 2);
    server.signal(Signal::USR1);
    eventually("a new file", Duration::from_secs(5), || path.exists());
    server.client().get("/3.none");
    // What is still in the lane is written before the end.
    server.term();
    assert_eq!(server.end(Duration::from_secs(5)).and_then(|status| status.code()), Some(0));
    assert_eq!((lines(&old).len(), lines(&path).len()), (2, 1), "{}", server.log.text());
    assert!(lines(&path)[0].contains("GET /3.none"));
}

#[test]
fn a_log_nobody_reads_costs_lines_and_nothing_else() {
    if against_nginx() || !has("mkfifo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Open for both, so that opening it for writing does not wait; never read.
    let held = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut server = Start::new(tree::shared())
        .with("--access-log", path.display())
        .with("--access-log-bytes-per-core", "32KiB")
        .spawn();
    let mut client = server.client();
    let long = format!("User-Agent: {}\r\n", "x".repeat(900));
    let begun = Instant::now();
    eventually("lines are dropped", Duration::from_secs(30), || {
        for _ in 0..100 {
            assert_eq!(client.get_with("/1.bin", &long).status, 200);
        }
        server.metrics().sum("ringway_log_records_dropped_total", &[("reason", "full")]) > 0.0
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(client.get("/1.bin").status, 200);
    drop(client);
    server.term();
    let ended = server.end(Duration::from_secs(8)).expect("ends though its log is stuck");
    assert_eq!(ended.code(), Some(0), "{}", server.log.text());
    drop(held);
}

#[test]
fn a_log_that_cannot_be_opened_is_told_at_the_start() {
    if against_nginx() {
        return;
    }
    let (code, said) = Start::new(tree::shared()).with("--access-log", "/nowhere/access.log").refused();
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("/nowhere/access.log") && said.contains("directory must exist"), "{said}");
    let (code, said) = Start::new(tree::shared()).with("--access-log-format", "xml").refused();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("neither combined nor json"), "{said}");
}
