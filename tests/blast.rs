//! The tester from outside: both ends as processes, their report against what /proc, the servers' logs and the clients
//! say, and every way a run can break.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use support::nginx::Nginx;
use support::process::{self, Cpu};
use support::{Start, has, tree};

/// Each end wants a CPU: one run after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn ringway(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The last CPU this process may use, and the first.
fn ends() -> (String, String) {
    let cpus = process::cpus();
    (cpus.first().expect("a CPU").to_string(), cpus.last().expect("a CPU").to_string())
}

/// A process that is killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).expect("a signal");
    }

    /// Waits for its end: code, output, errors.
    fn end(mut self, limit: Duration) -> (Option<i32>, String, String) {
        let (mut out, mut errors) = (self.0.stdout.take().expect("piped"), self.0.stderr.take().expect("piped"));
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let status = process::wait(&mut self.0, limit).expect("it ends by itself, and in time");
        let mut told = String::new();
        let _ = errors.read_to_string(&mut told);
        (status.code(), reader.join().expect("reader"), told)
    }
}

/// A sink on a free port.
struct Sink {
    process: Running,
    address: String,
}

fn sink(words: &[&str]) -> Sink {
    let (_, last) = ends();
    let mut all = vec!["sink", "--listen", "127.0.0.1:0"];
    if !words.contains(&"--cores") {
        all.extend(["--cores", &last]);
    }
    all.extend(words);
    let mut process = Running(ringway(&all).spawn().expect("a sink"));
    let mut errors = BufReader::new(process.0.stderr.take().expect("piped"));
    let mut address = String::new();
    while address.is_empty() {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).expect("a line") > 0, "the sink says where it listens");
        if let Some(at) = line.trim().strip_prefix("listening on ") {
            address = at.to_owned();
        }
    }
    process.0.stderr = Some(errors.into_inner());
    Sink { process, address }
}

fn blast(target: &str, words: &[&str]) -> Running {
    let (first, _) = ends();
    let mut all = vec!["blast", target];
    if !words.contains(&"--cores") {
        all.extend(["--cores", &first]);
    }
    all.extend(words);
    Running(ringway(&all).spawn().expect("a blast"))
}

fn report(target: &str, words: &[&str]) -> Value {
    let mut all = words.to_vec();
    all.push("--json");
    let (code, out, errors) = blast(target, &all).end(Duration::from_secs(60));
    assert_eq!(code, Some(0), "{words:?}: {errors}\n{out}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{words:?}: {error}: {out}"))
}

fn int(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn every_engine_brings_every_byte_and_counts_it() {
    let _alone = alone();
    let sink = sink(&[]);
    // The last bytes of a page, several pages, and a file that is no multiple of anything.
    for (engine, what) in [
        ("send", ["--message", "8K"]),
        ("send-zc", ["--message", "64K"]),
        ("auto", ["--size", "3000001"]),
        ("send", ["--size", "3000001"]),
        ("send-zc", ["--size", "3000001"]),
        ("splice", ["--size", "3000001"]),
        ("splice2", ["--size", "3000001"]),
        ("sendfile", ["--size", "3000001"]),
    ] {
        let words = ["--engine", engine, what[0], what[1], "--flows", "3", "--bytes", "90M", "--verify"];
        let told = report(&sink.address, &words);
        assert_eq!(int(&told, "/end/sum_sent/bytes"), 90 << 20, "{words:?}");
        assert_eq!(int(&told, "/end/sum_received/bytes"), 90 << 20, "{words:?}");
        assert!(int(&told, "/end/sum_received/verified_blocks") > 1000, "{words:?}");
        let engines = told["end"]["sender"]["engines"].as_object().expect("engines");
        let sum: u64 = engines.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, 90 << 20, "{words:?}: {engines:?}");
        if engine != "auto" {
            assert!(engines.contains_key(&support::engine_label(engine)), "{words:?}: {engines:?}");
        }
        if engine == "send-zc" {
            let share = told["end"]["sender"]["zero_copy_copied_share"].as_f64().expect("a share");
            assert!((share - 1.0).abs() < 1e-9, "loopback copies all of it, the kernel says: {share}");
        }
    }
}

#[test]
fn every_way_to_receive_and_files_of_a_directory() {
    let _alone = alone();
    let sink = sink(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [("a", 1usize), ("b", 65_537), ("c", 1 << 20)] {
        std::fs::write(folder.path().join(name), vec![name.as_bytes()[0]; bytes]).expect("a file");
    }
    let path = folder.path().to_str().expect("UTF-8");
    for receive in ["copy", "trunc", "splice"] {
        let told = report(&sink.address, &["--files", path, "--bytes", "40M", "--receive", receive, "--flows", "2"]);
        assert_eq!(int(&told, "/end/sum_received/bytes"), 40 << 20, "{receive}");
        assert_eq!(told["start"]["test_start"]["receive"], receive);
        assert_eq!(int(&told, "/start/test_start/files"), 3);
    }
    let told = report(&sink.address, &["--files", path, "--bytes", "40M", "--verify"]);
    assert!(int(&told, "/end/sum_received/verified_blocks") > 600);
}

#[test]
fn cpu_agrees_with_proc_at_both_ends() {
    let _alone = alone();
    let sink = sink(&[]);
    let mut sender = blast(&sink.address, &["--time", "5", "--congestion", "cubic", "--json-lines"]);
    let pids = [sender.0.id(), sink.process.0.id()];
    let mut lines = BufReader::new(sender.0.stdout.take().expect("piped")).lines();
    let mut taken: Vec<([Cpu; 2], f64, f64)> = Vec::new();
    for line in lines.by_ref() {
        let event: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        if event["event"] == "interval" {
            let used = ["cpu_seconds", "remote_cpu_seconds"].map(|key| event["data"][key].as_f64().expect("seconds"));
            taken.push((pids.map(|pid| Cpu::of(&[pid])), used[0], used[1]));
        }
        if event["event"] == "end" {
            break;
        }
    }
    assert!(taken.len() >= 5, "{} intervals", taken.len());
    let (first, last) = (taken[0].0, taken[taken.len() - 1].0);
    for (end, name) in ["sender", "receiver"].iter().enumerate() {
        let by_proc = last[end].since(first[end]) as f64 / 1e9;
        let told: f64 = taken[1..].iter().map(|(_, sender, receiver)| if end == 0 { *sender } else { *receiver }).sum();
        println!("{name}: reported {told:.3} s, /proc {by_proc:.3} s");
        // The two look at moments a few milliseconds apart.
        assert!((told - by_proc).abs() <= 0.02 * by_proc + 0.02, "{name}: reported {told:.3} s, /proc {by_proc:.3} s");
        assert!(by_proc > 0.5, "{name} worked: {by_proc}");
    }
}

/// Runs to its end within 2 s of `begin`.
fn ends_soon(process: Running, what: &str, code: i32, words: &[&str]) {
    let begin = Instant::now();
    let (got, out, errors) = process.end(Duration::from_secs(10));
    assert!(begin.elapsed() < Duration::from_secs(2), "{what}: took {:?}", begin.elapsed());
    assert_eq!(got, Some(code), "{what}: {errors}\n{out}");
    for word in words {
        assert!(errors.contains(word), "{what}: `{word}` in: {errors}");
    }
}

#[test]
fn what_is_no_sink_is_told() {
    let _alone = alone();
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address").to_string();
    ends_soon(blast(&closed, &[]), "a closed port", 1, &["ECONNREFUSED", "ringway sink"]);
    // Another version, something else that answers, and something that says nothing.
    let speaks = |answer: Option<Vec<u8>>| -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("accept");
            let mut hello = [0; 32];
            let _ = peer.read_exact(&mut hello);
            match answer {
                Some(bytes) => drop(peer.write_all(&bytes)),
                None => std::thread::sleep(Duration::from_secs(5)),
            }
        });
        address
    };
    let mut newer = [0u8; 32];
    newer[..10].copy_from_slice(b"RWBLAST\n\0\x07");
    ends_soon(blast(&speaks(Some(newer.to_vec())).to_string(), &[]), "another version", 1, &["version 7"]);
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
    ends_soon(blast(&speaks(Some(http)).to_string(), &[]), "a web server", 1, &["http://HOST/PATH"]);
    ends_soon(blast(&speaks(None).to_string(), &[]), "silence", 1, &["did not answer"]);
    let sink = sink(&[]);
    let taken = Running(ringway(&["sink", "--listen", &sink.address]).spawn().expect("a sink"));
    ends_soon(taken, "a taken port", 1, &["EADDRINUSE", "--listen"]);
    // A client of another version is told ours; one that is none gets no byte; data without a handshake is refused.
    for (hello, wanted) in [(newer.to_vec(), 32), (b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n".to_vec(), 0), {
        let mut data = [0u8; 32];
        data[..11].copy_from_slice(b"RWBLAST\n\0\x01\x01");
        (data.to_vec(), 0)
    }] {
        let mut peer = std::net::TcpStream::connect(&sink.address).expect("connect");
        peer.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
        peer.write_all(&hello).expect("hello");
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        assert_eq!(answer.len(), wanted, "{hello:?}");
    }
}

#[test]
fn either_end_may_go_at_any_time() {
    let _alone = alone();
    let rest = || std::thread::sleep(Duration::from_millis(700));
    let first = sink(&[]);
    let sender = blast(&first.address, &["--time", "30", "--size", "64M"]);
    rest();
    let _ = &first.process.0.id();
    first.process.signal(Signal::KILL);
    ends_soon(sender, "the sink was killed", 1, &["is gone"]);

    let second = sink(&["--once", "--json"]);
    let mut sender = blast(&second.address, &["--time", "30"]);
    rest();
    sender.0.kill().expect("kill");
    let begin = Instant::now();
    let (code, out, errors) = second.process.end(Duration::from_secs(10));
    assert!(begin.elapsed() < Duration::from_secs(2), "the sender was killed");
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("the sender is gone"), "{errors}");
    let told: Value = serde_json::from_str(&out).expect("a report");
    assert!(told["partial"].as_str().is_some_and(|why| why.contains("gone")), "{told}");
    assert!(int(&told, "/end/sum_received/bytes") > 0);

    let third = sink(&["--once"]);
    let sender = blast(&third.address, &["--time", "30", "--json"]);
    rest();
    sender.signal(Signal::INT);
    let begin = Instant::now();
    let (code, out, _) = sender.end(Duration::from_secs(10));
    assert!(begin.elapsed() < Duration::from_secs(2), "^C at the sender");
    assert_eq!(code, Some(130));
    let told: Value = serde_json::from_str(&out).expect("a report");
    assert!(told["partial"].as_str().is_some_and(|why| why.contains("interrupted")), "{told}");
    assert!(int(&told, "/end/sum_sent/bytes") > 0);
    ends_soon(third.process, "its sink", 1, &["interrupted at the sender"]);

    let fourth = sink(&[]);
    let sender = blast(&fourth.address, &["--time", "30"]);
    rest();
    fourth.process.signal(Signal::INT);
    ends_soon(fourth.process, "^C at the sink", 130, &["interrupted at the sink"]);
    ends_soon(sender, "its sender", 1, &["interrupted at the sink"]);
}

#[test]
fn a_full_disk_under_the_report_is_an_error() {
    let _alone = alone();
    let sink = sink(&[]);
    let (first, _) = ends();
    for words in [&["--json"][..], &[][..]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut all = vec!["blast", &sink.address, "--time", "0.3", "--cores", &first];
        all.extend(words);
        let mut process = ringway(&all).stdout(full).spawn().expect("a blast");
        let status = process::wait(&mut process, Duration::from_secs(10)).expect("it ends");
        let mut told = String::new();
        process.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
        assert_eq!(status.code(), Some(1), "{told}");
        assert!(told.contains("ENOSPC"), "{told}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut process = ringway(&["sink", "--listen", "127.0.0.1:0", "--once"]).stdout(full).spawn().expect("a sink");
    let mut errors = BufReader::new(process.stderr.take().expect("piped"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
    let sender = blast(&address, &["--time", "10"]);
    let status = process::wait(&mut process, Duration::from_secs(10)).expect("it ends");
    assert_eq!(status.code(), Some(1));
    ends_soon(sender, "the sender of a sink that cannot write", 1, &["is gone"]);
}

#[test]
fn prometheus_sees_the_run_while_it_goes_on() {
    let _alone = alone();
    let sink = sink(&[]);
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address").to_string();
    let sender = blast(&sink.address, &["--time", "3", "--json", "--interval", "0.2", "--metrics", &free]);
    let address: SocketAddr = free.parse().expect("address");
    let mut seen = 0.0;
    support::eventually("bytes are shown", Duration::from_secs(3), || {
        if std::net::TcpStream::connect(address).is_ok() {
            seen = support::metrics::Metrics::scrape(address).sum("ringway_tester_sent_bytes_total", &[]);
        }
        seen > 0.0
    });
    let shown = support::metrics::Metrics::scrape(address);
    assert_eq!(shown.sum("ringway_tester_streams", &[]), 1.0);
    assert!(shown.sum("ringway_tester_cpu_seconds_total", &[("side", "remote")]) > 0.0);
    let (code, out, errors) = sender.end(Duration::from_secs(10));
    assert_eq!(code, Some(0), "{errors}");
    let told: Value = serde_json::from_str(&out).expect("a report");
    assert!(int(&told, "/end/sum_sent/bytes") as f64 >= seen);
}

#[test]
fn assertions_and_repeats() {
    let _alone = alone();
    let sink = sink(&[]);
    let words = ["--time", "0.2", "--repeats", "3", "--confidence", "95,99", "--assert", "throughput>=1Kb/s"];
    let told = report(&sink.address, &words);
    assert!((1..=3).contains(&told["repeats"].as_array().expect("repeats").len()), "{told}");
    assert_eq!(told["asserts"][0]["held"], true);
    let words = ["--time", "0.2", "--quiet", "--assert", "throughput>=900000Gb/s"];
    let (code, out, _) = blast(&sink.address, &words).end(Duration::from_secs(10));
    assert_eq!((code, out.as_str()), (Some(3), ""));
    // Not met, and said even where nothing else is.
    let words = ["--time", "0.2", "--quiet", "--repeats", "2", "--confidence", "99,0.0001"];
    let (code, _, errors) = blast(&sink.address, &words).end(Duration::from_secs(10));
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("was not reached"), "{errors}");
}

#[test]
fn a_busy_sink_refuses_and_goes_on() {
    let _alone = alone();
    let sink = sink(&[]);
    let long = blast(&sink.address, &["--time", "3", "--json"]);
    std::thread::sleep(Duration::from_millis(700));
    ends_soon(blast(&sink.address, &["--time", "1"]), "a second sender", 1, &["busy"]);
    let (code, ..) = long.end(Duration::from_secs(10));
    assert_eq!(code, Some(0), "the first is undisturbed");
    report(&sink.address, &["--time", "0.2"]);
}

const ASKED: u64 = 60;

fn ask(url: &str, bytes: u64, sha256: &str) {
    let count = ASKED.to_string();
    let told = report(url, &["--count", &count, "--flows", "4", "--sha256", sha256]);
    assert_eq!(int(&told, "/end/sum_received/requests"), ASKED);
    assert_eq!(int(&told, "/end/sum_received/bytes"), ASKED * bytes);
    assert_eq!(int(&told, "/end/sum_received/verified_blocks"), ASKED);
    assert_eq!(int(&told, "/end/latency/count"), ASKED);
    let told = report(url, &["--count", &count, "--flows", "4", "--rate", "300"]);
    assert_eq!(int(&told, "/end/sum_received/bytes"), ASKED * bytes, "thrown away, and counted");
    assert!(told["end"]["sum_received"]["seconds"].as_f64().expect("seconds") >= 0.19, "on schedule");
}

fn a_file() -> (tempfile::TempDir, u64, String) {
    let root = tempfile::tempdir().expect("a folder");
    let bytes = tree::content(7, 1_500_003);
    std::fs::write(root.path().join("f.bin"), &bytes).expect("a file");
    let hash = support::sha256(&bytes);
    (root, bytes.len() as u64, hash)
}

#[test]
fn our_server_sent_what_blast_counts() {
    let _alone = alone();
    let (root, bytes, hash) = a_file();
    let server = Start::new(root.path()).spawn();
    ask(&server.url("/f.bin"), bytes, &hash);
    let metrics = server.metrics();
    assert_eq!(metrics.sum("ringway_sent_bytes_total", &[("part", "body")]), (2 * ASKED * bytes) as f64);
}

/// Bytes of bodies and requests in an access log of `BYTES` per line.
fn logged(path: &std::path::Path) -> (u64, u64) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let sizes: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    (sizes.len() as u64, sizes.iter().sum())
}

#[test]
fn nginx_logs_what_blast_counts() {
    if !has("nginx") {
        return;
    }
    let _alone = alone();
    let (root, bytes, hash) = a_file();
    let log = root.path().join("access.log");
    let server = Nginx { root: root.path().to_owned(), sendfile: true, pin: None, log: Some(log.clone()) }.spawn();
    ask(&server.url("/f.bin"), bytes, &hash);
    support::eventually("nginx has written its log", Duration::from_secs(5), || logged(&log).0 == 2 * ASKED);
    assert_eq!(logged(&log), (2 * ASKED, 2 * ASKED * bytes));
}

#[test]
fn lighttpd_logs_what_blast_counts() {
    if !has("lighttpd") {
        return;
    }
    let _alone = alone();
    let (root, bytes, hash) = a_file();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let config = format!(
        "server.document-root = \"{}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
         server.modules = (\"mod_accesslog\")\naccesslog.filename = \"{}\"\naccesslog.format = \"%b\"\n\
         server.max-keep-alive-requests = 1000\n",
        root.path().display(),
        log.display()
    );
    let file = folder.path().join("lighttpd.conf");
    std::fs::write(&file, config).expect("lighttpd.conf");
    let binary = support::which("lighttpd").expect("lighttpd");
    let server = Command::new(binary).arg("-D").arg("-f").arg(&file).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let server = Running(server.expect("lighttpd starts"));
    support::eventually("lighttpd accepts", Duration::from_secs(10), || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    ask(&format!("http://127.0.0.1:{port}/f.bin"), bytes, &hash);
    // It writes its log when it ends.
    server.signal(Signal::INT);
    support::eventually("lighttpd has written its log", Duration::from_secs(10), || logged(&log).0 == 2 * ASKED);
    assert_eq!(logged(&log), (2 * ASKED, 2 * ASKED * bytes));
}

#[test]
fn a_server_that_fails_is_told() {
    let _alone = alone();
    let (root, ..) = a_file();
    let server = Start::new(root.path()).spawn();
    ends_soon(blast(&server.url("/none"), &["--count", "2", "--quiet"]), "404", 1, &["answered 404"]);
    let wrong = "0".repeat(64);
    let words = ["--count", "1", "--quiet", "--sha256", &wrong];
    ends_soon(blast(&server.url("/f.bin"), &words), "another body", 1, &["SHA-256"]);
    let running = blast(&server.url("/f.bin"), &["--time", "30", "--json"]);
    std::thread::sleep(Duration::from_millis(700));
    server.kill();
    ends_soon(running, "the server was killed", 1, &["ECONNREFUSED"]);
    // A body that ends early, by a server that lies.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for peer in listener.incoming().take(2).flatten() {
            let mut peer = peer;
            let mut request = [0; 512];
            let _ = peer.read(&mut request);
            let _ = peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
        }
    });
    let words = ["--count", "1", "--quiet"];
    ends_soon(blast(&format!("http://{address}/"), &words), "a short body", 1, &["ended after 5 of 10 bytes"]);
}
