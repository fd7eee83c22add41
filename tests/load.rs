//! What needs the machine for itself: very large files, crowds that stall, delays of one client beside others.
//! One test at a time; the numbers are scaled down from those of `cargo bench --bench serve -- accept`, and times are
//! generous where a busy machine could miss them without a fault in the server.

mod support;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::{Client, Start, against_nginx, eventually, is_root, load, process, tree};

/// Held by each test here: one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `ring thread + control` and what io-wq may add per core, as the default limits have it (2 bounded, 4 unbounded).
fn most_threads(cores: u64) -> u64 {
    cores * (1 + 6) + 2
}

fn five_gib(engine: &str) {
    let _alone = alone();
    let (name, size) = tree::SPARSE;
    let server = Start::new(tree::shared()).engine(engine).spawn();
    let mut client = server.client();
    let (head, count, hash) = client.hash(&format!("/{name}"));
    assert_eq!((head.length(), count), (Some(size), size), "{engine}");
    assert_eq!(hash, tree::hash_of(size), "{engine}");
    // Where 32-bit arithmetic breaks: around 2 and 4 GiB, and at the end.
    for first in [2 * tree::GIB - 10, 4 * tree::GIB - 10, size - 20] {
        let reply = client.get_with(&format!("/{name}"), &format!("Range: bytes={first}-{}\r\n", first + 19));
        assert_eq!(reply.status, 206);
        let expected = read_at(&tree::shared().join(name), first, 20);
        assert_eq!(reply.body, expected, "{engine}, 20 bytes at {first}");
    }
    let reply = client.get_with(&format!("/{name}"), "Range: bytes=-20\r\n");
    assert_eq!(reply.header("content-range"), Some(format!("bytes {}-{}/{size}", size - 20, size - 1).as_str()));
    if !against_nginx() {
        eventually("sent bytes agree", Duration::from_secs(3), || {
            server.metrics().sum("ringway_sent_bytes_total", &[("part", "body")]) as u64 == client.body_bytes
        });
    }
}

fn read_at(path: &std::path::Path, offset: u64, length: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; length];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn five_gib_arrive_byte_exact_by_auto() {
    five_gib("auto");
}

#[test]
fn five_gib_arrive_byte_exact_by_send() {
    five_gib("send");
}

#[test]
fn five_gib_arrive_byte_exact_by_send_zc() {
    five_gib("send-zc");
}

#[test]
fn five_gib_arrive_byte_exact_by_splice() {
    five_gib("splice");
}

#[test]
fn five_gib_arrive_byte_exact_by_sendfile() {
    five_gib("sendfile");
}

fn a_stalled_crowd_costs_little(engine: &str) {
    const CROWD: usize = 500;
    let _alone = alone();
    let cpu = process::cpus()[0];
    let server = Start::new(tree::shared()).engine(engine).core(cpu).spawn();
    let (pids, path) = (server.pids(), format!("/{}.bin", 64 * tree::MIB));
    // Warm: what the first clients allocate is not what each one costs.
    drop(load::stalled(server.address(), &path, 20, 300_000));
    load::round_trips(server.address(), "/1024.bin", 1024, 100, Duration::ZERO);
    let before = process::resident_bytes(&pids);
    let crowd = load::stalled(server.address(), &path, CROWD, 300_000);
    let grown = process::resident_bytes(&pids).saturating_sub(before) / CROWD as u64;
    let threads = process::threads(&pids);
    let times = load::round_trips(server.address(), "/1024.bin", 1024, 2000, Duration::ZERO);
    let p99 = times.percentile(0.99);
    println!("{engine}: {grown} B each, {threads} threads, p99 {p99:?}");
    assert!(grown < 10 * 1024, "{engine}: {grown} bytes for each stalled client");
    assert!(p99 < Duration::from_millis(10), "{engine}: a quick client waits {p99:?} beside them");
    if !against_nginx() {
        assert!(threads <= most_threads(1), "{engine}: {threads} threads");
        let metrics = server.metrics();
        assert!(metrics.sum("ringway_connections", &[("state", "writing")]) as usize >= CROWD, "{engine}: visible");
        assert!(metrics.sum("ringway_pipes", &[("state", "busy")]) as usize <= 64, "{engine}: none holds a pipe");
        // And no CPU while nobody moves.
        let used = process::Cpu::of(&pids);
        std::thread::sleep(Duration::from_millis(300));
        let used = Duration::from_nanos(process::Cpu::of(&pids).since(used));
        assert!(used < Duration::from_millis(60), "{engine}: {used:?} of CPU in 300 ms for clients that do nothing");
    }
    // They wake up, and each gets the rest.
    for stream in crowd.into_iter().take(3) {
        let mut client = Client::over(stream);
        assert!(client.read_body(40 * tree::MIB, |_| ()) == 40 * tree::MIB, "{engine}: woken");
    }
}

#[test]
fn a_stalled_crowd_costs_little_by_auto() {
    a_stalled_crowd_costs_little("auto");
}

#[test]
fn a_stalled_crowd_costs_little_by_send() {
    a_stalled_crowd_costs_little("send");
}

#[test]
fn a_stalled_crowd_costs_little_by_send_zc() {
    a_stalled_crowd_costs_little("send-zc");
}

#[test]
fn a_stalled_crowd_costs_little_by_splice() {
    a_stalled_crowd_costs_little("splice");
}

#[test]
fn a_stalled_crowd_costs_little_by_sendfile() {
    a_stalled_crowd_costs_little("sendfile");
}

#[test]
fn idle_connections_cost_little() {
    const CROWD: usize = 3000;
    let _alone = alone();
    process::raise_descriptors(CROWD as u64 + 500);
    let server = Start::new(tree::shared()).core(process::cpus()[0]).spawn();
    let pids = server.pids();
    drop(load::idle(server.address(), "/1024.bin", 100));
    let before = process::resident_bytes(&pids);
    let crowd = load::idle(server.address(), "/1024.bin", CROWD);
    let grown = process::resident_bytes(&pids).saturating_sub(before) / CROWD as u64;
    println!("{grown} B for each idle connection");
    assert!(grown <= 2048, "{grown} bytes for each idle connection");
    if !against_nginx() {
        let idle = server.metrics().sum("ringway_connections", &[("state", "idle")]) as usize;
        assert!(idle >= CROWD, "{idle} idle in metrics");
        // An idle connection holds no receive buffer.
        assert_eq!(server.metrics().sum("ringway_buffers", &[("state", "busy")]) as u64, 0);
    }
    let mut last = Client::over(crowd.into_iter().next_back().unwrap());
    assert_eq!(last.get("/1024.bin").status, 200, "an idle connection still works");
}

#[test]
fn mice_beside_elephants_are_quick() {
    let _alone = alone();
    let cpus = process::cpus();
    let (one, other) = (cpus[0], cpus[cpus.len() - 1]);
    for engine in support::ENGINES {
        // Where the system's default paces with timers (bbr without fq), the timers are what would be measured.
        let server = Start::new(tree::shared()).engine(engine).core(one).with("--congestion", "cubic").spawn();
        let size = 256 * tree::MIB;
        let elephants = load::Downloaders::start(server.address(), &format!("/{size}.bin"), size, 8, Some(other));
        eventually("the elephants run", Duration::from_secs(10), || elephants.bytes() > 64 * tree::MIB);
        let times = load::round_trips(server.address(), "/1024.bin", 1024, 300, Duration::from_millis(1));
        let p99 = times.percentile(0.99);
        println!("{engine}: p50 {:?} p99 {p99:?}", times.percentile(0.5));
        assert!(p99 < Duration::from_millis(25), "{engine}: a mouse waits {p99:?}");
        let before = elephants.bytes();
        eventually("the elephants still run", Duration::from_secs(10), || elephants.bytes() > before + 64 * tree::MIB);
        elephants.stop();
    }
}

#[test]
fn a_cold_file_does_not_stall_the_others() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let size = 96 * tree::MIB;
    tree::put(folder.path(), "cold", 12, size);
    tree::put(folder.path(), "1024.bin", 13, 1024);
    let hash = support::sha256(&tree::content(12, size));
    for engine in support::ENGINES {
        let file = std::fs::File::open(folder.path().join("cold")).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let server = Start::new(folder.path()).engine(engine).core(process::cpus()[0]).spawn();
        std::thread::scope(|scope| {
            let cold = scope.spawn(|| server.client().hash("/cold").2);
            let times = load::round_trips(server.address(), "/1024.bin", 1024, 200, Duration::from_millis(1));
            println!("{engine}: p99 {:?} beside a cold file", times.percentile(0.99));
            assert!(times.percentile(0.9) < Duration::from_millis(25), "{engine}: {:?}", times.percentile(0.9));
            assert_eq!(cold.join().unwrap(), hash, "{engine}: a cold file is whole");
        });
    }
}

#[test]
fn many_requests_leave_nothing_behind() {
    let _alone = alone();
    let server = Start::new(tree::shared()).spawn();
    let pids = server.pids();
    let ask = |count: usize| {
        for round in 0..count {
            let mut client = server.client();
            client.get_with("/65537.bin", "Range: bytes=0-1,5-9,100-\r\n");
            client.get("/none");
            client.get_with("/1048577.bin", "Range: bytes=5-70000\r\n");
            if round % 3 == 0 {
                client.send(b"GET /67108864.bin HTTP/1.1\r\nHost: test\r\n\r\n");
                client.head();
                client.reset();
            }
        }
    };
    ask(100);
    let settle = || {
        if !against_nginx() {
            eventually("all connections are gone", Duration::from_secs(5), || {
                server.metrics().sum("ringway_connections", &[]) as u64 == 0
            });
        }
        (process::descriptors(&pids), process::resident_bytes(&pids))
    };
    let before = settle();
    ask(1000);
    let after = settle();
    assert!(after.0 <= before.0 + 16, "descriptors: {} before, {} after", before.0, after.0);
    assert!(after.1 < before.1 + 8 * tree::MIB, "memory: {} before, {} after", before.1, after.1);
}

#[test]
fn many_slow_clients_without_privileges_meet_no_cliff() {
    use std::os::unix::fs::PermissionsExt;
    let _alone = alone();
    if !is_root() || against_nginx() {
        return;
    }
    // Pipe memory is limited per user, not per process: 64 MiB for all who are not root.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let binary = folder.path().join("ringway");
    std::fs::copy(support::BINARY, &binary).unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let content = tree::put(&root, "file", 14, 16 * tree::MIB);
    let server = Start::new(&root).binary(&binary).user(65534).engine("splice").spawn();
    let _crowd = load::stalled(server.address(), "/file", 400, 200_000);
    let mut client = server.client();
    for _ in 0..3 {
        assert!(client.get("/file").body == content);
    }
    assert!(process::threads(&server.pids()) <= most_threads(process::cpus().len() as u64));
}
