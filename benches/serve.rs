//! Engines and nginx side by side on loopback, by file size; and the acceptance figures with their exact numbers.
//!
//!     cargo bench --bench serve                     the table: GB/s, requests/s, server CPU per request and per KiB, p50, p99
//!     cargo bench --bench serve -- --quick          shorter windows, two rounds
//!     cargo bench --bench serve -- --markdown       the table as the README has it
//!     cargo bench --bench serve -- accept [3 4 ...]  PASS or FAIL for each figure, with what was measured
//!
//! Method. Server on the first CPU, clients on the last. Sides alternate within each round, so that a slow minute hits
//! all of them; medians over rounds are shown, and a spread that makes them doubtful is said. Server CPU is what the
//! kernel's scheduler booked for all threads of the server's processes, io-wq workers included. Everything runs in a
//! network namespace of its own with `net.ipv4.tcp_congestion_control=cubic`, since a pacing default (bbr without fq)
//! measures timers, and nginx cannot choose for itself. The large-file client discards in the kernel (MSG_TRUNC) and
//! verifies status and length of each response; small files are asked for by wrk, where it is installed.

#[path = "../tests/support/mod.rs"]
mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use support::load::{Downloaders, Times};
use support::process::{self, Cpu};
use support::{Client, Server, Start, load, nginx::Nginx, tree};

const NAMESPACE: &str = "RINGWAY_BENCH_NAMESPACE";
const CONGESTION: &str = "cubic";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    if has("--help") || has("-h") {
        println!("cargo bench --bench serve [-- [--quick] [--markdown] | accept [--quick] [NUMBER...]]");
        return;
    }
    enter_namespace();
    let place = Place::here();
    place.tell();
    let quick = has("--quick");
    if has("accept") {
        let chosen: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
        std::process::exit(accept(&place, &chosen, quick));
    }
    compare(&place, quick, has("--markdown"));
}

/// Starts this program again in a network namespace of its own, where that is allowed.
fn enter_namespace() {
    if std::env::var_os(NAMESPACE).is_some() {
        return;
    }
    let tools = support::which("unshare").is_some() && support::which("ip").is_some();
    if tools && Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        let set = format!(
            "ip link set lo up && echo {CONGESTION} >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$0\" \"$@\""
        );
        let program = std::env::current_exe().expect("the name of this program");
        let failed = Command::new("unshare")
            .args(["-n", "sh", "-c", &set])
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(NAMESPACE, "1")
            .exec();
        eprintln!("cannot start again in a network namespace: {failed}");
    }
}

/// Where this runs.
struct Place {
    server_cpu: usize,
    client_cpu: usize,
    nginx: bool,
    wrk: bool,
}

impl Place {
    fn here() -> Self {
        let cpus = process::cpus();
        Self {
            server_cpu: cpus[0],
            client_cpu: cpus[cpus.len() - 1],
            nginx: support::which("nginx").is_some(),
            wrk: support::which("wrk").is_some(),
        }
    }

    fn tell(&self) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let model = read("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown CPU");
        println!("kernel {}, {}", read("/proc/sys/kernel/osrelease"), model.trim_start_matches([' ', '\t', ':']));
        let nginx = Command::new(support::which("nginx").unwrap_or("nginx".into())).arg("-v").output();
        let nginx = nginx.map(|told| String::from_utf8_lossy(&told.stderr).trim().to_owned());
        println!("{}", nginx.unwrap_or_else(|_| "nginx is not installed: no comparison with it".to_owned()));
        println!("loopback; server on CPU {}, clients on CPU {}", self.server_cpu, self.client_cpu);
        let control = read("/proc/sys/net/ipv4/tcp_congestion_control");
        if std::env::var_os(NAMESPACE).is_some() {
            println!("congestion control {control} for all sides, in a network namespace made for this run");
        } else {
            println!(
                "WARNING: no network namespace (needs root, unshare and ip); congestion control here is {control},"
            );
            println!(
                "         ringway is told {CONGESTION}, nginx cannot be told: ratios with nginx mean little if they differ"
            );
        }
        let load: f64 = read("/proc/loadavg").split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        if load > 0.7 {
            println!(
                "WARNING: load average {load} before the start: something else runs here, delays and rates will suffer"
            );
        }
        if self.server_cpu == self.client_cpu {
            println!("WARNING: one CPU only; server and clients take turns on it, and delays mean little");
        }
        if support::against_nginx() {
            println!("NOTE: every side is nginx (RINGWAY_TEST_SERVER): this measures the noise of the method");
        }
        println!();
    }

    fn start(&self, side: &str) -> Server {
        if side == "nginx" {
            return Nginx { root: tree::shared().to_owned(), sendfile: true, pin: Some(self.server_cpu) }.spawn();
        }
        Start::new(tree::shared()).engine(side).core(self.server_cpu).with("--congestion", CONGESTION).spawn()
    }
}

/// One measurement of one side.
#[derive(Clone, Debug)]
struct Sample {
    gigabytes: f64,
    requests: f64,
    request_us: f64,
    kib_us: f64,
    p50: Duration,
    p99: Duration,
}

/// Bulk: `connections` keep-alive downloads; CPU and bytes of the same window, after a warm-up that is cut.
fn bulk(place: &Place, server: &Server, size: u64, connections: usize, warm: Duration, window: Duration) -> Sample {
    let path = format!("/{}", tree::name_of(size));
    let downloads = Downloaders::start(server.address(), &path, size, connections, Some(place.client_cpu));
    std::thread::sleep(warm);
    let pids = server.pids();
    downloads.take_times();
    let (start, cpu, bytes, requests) = (Instant::now(), Cpu::of(&pids), downloads.bytes(), downloads.requests());
    std::thread::sleep(window);
    let took = start.elapsed().as_secs_f64();
    let cpu = Cpu::of(&pids).since(cpu) as f64 / 1000.0;
    let bytes = (downloads.bytes() - bytes) as f64;
    let requests = (downloads.requests() - requests) as f64;
    let times = downloads.take_times();
    downloads.stop();
    Sample {
        gigabytes: bytes / took / 1e9,
        requests: requests / took,
        // Where a window ends within long responses, bytes tell how many they were.
        request_us: cpu / (bytes / size.max(1) as f64).max(1.0),
        kib_us: cpu / (bytes / 1024.0).max(1.0),
        p50: times.percentile(0.5),
        p99: times.percentile(0.99),
    }
}

/// Small files: `wrk -t1 -c64`, or our own client where wrk is not installed.
fn small(place: &Place, server: &Server, size: u64, window: Duration) -> Sample {
    if !place.wrk {
        return bulk(place, server, size, 64, window / 4, window);
    }
    let pids = server.pids();
    let url = server.url(&format!("/{}", tree::name_of(size)));
    let cpu = Cpu::of(&pids);
    let cpu_client = place.client_cpu;
    let seconds = window.as_secs().max(1).to_string();
    let told = std::thread::spawn(move || {
        process::pin(cpu_client);
        support::output(Command::new("wrk").args(["-t1", "-c64", "--latency", "-d", &seconds, &url]))
    });
    let told = String::from_utf8(told.join().expect("wrk")).expect("wrk prints text");
    let cpu = Cpu::of(&pids).since(cpu) as f64 / 1000.0;
    let word = |after: &str| {
        let line = told.lines().map(str::trim).find(|line| line.starts_with(after));
        line.and_then(|line| line[after.len()..].split_whitespace().next()).unwrap_or_default().to_owned()
    };
    assert!(!told.contains("Non-2xx") && !told.contains("Socket errors"), "{told}");
    let total = told.lines().find(|line| line.contains(" requests in ")).expect("wrk's total");
    let total: f64 = total.split_whitespace().next().and_then(|word| word.parse().ok()).expect("wrk's total");
    let rate: f64 = word("Requests/sec:").parse().expect("wrk's rate");
    Sample {
        gigabytes: rate * size as f64 / 1e9,
        requests: rate,
        request_us: cpu / total.max(1.0),
        kib_us: cpu / (total * size as f64 / 1024.0).max(1.0),
        p50: wrk_time(&word("50%")),
        p99: wrk_time(&word("99%")),
    }
}

/// `1.23ms`, `456.00us`, `1.02s`.
fn wrk_time(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Duration::from_secs_f64(number.parse::<f64>().unwrap_or(0.0) * scale)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn medians(samples: &[Sample]) -> Sample {
    let of = |field: fn(&Sample) -> f64| median(samples.iter().map(field).collect());
    Sample {
        gigabytes: of(|sample| sample.gigabytes),
        requests: of(|sample| sample.requests),
        request_us: of(|sample| sample.request_us),
        kib_us: of(|sample| sample.kib_us),
        p50: Duration::from_secs_f64(of(|sample| sample.p50.as_secs_f64())),
        p99: Duration::from_secs_f64(of(|sample| sample.p99.as_secs_f64())),
    }
}

/// How far apart the rounds lie, as a share of the median of CPU per KiB.
fn spread(samples: &[Sample]) -> f64 {
    let values: Vec<f64> = samples.iter().map(|sample| sample.kib_us).collect();
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    (high - low) / median(values)
}

fn size_name(size: u64) -> String {
    if size >= tree::MIB { format!("{} MiB", size / tree::MIB) } else { format!("{} KiB", size / 1024) }
}

fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e3;
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn compare(place: &Place, quick: bool, markdown: bool) {
    let (rounds, window) = if quick { (2, Duration::from_millis(700)) } else { (5, Duration::from_millis(1500)) };
    let sizes = [1024, 65536, tree::MIB, 16 * tree::MIB, 256 * tree::MIB];
    let mut sides = vec!["auto", "send", "send-zc", "splice", "sendfile"];
    if place.nginx {
        sides.insert(0, "nginx");
    }
    let servers: Vec<Server> = sides.iter().map(|side| place.start(side)).collect();
    let mut samples = vec![vec![Vec::new(); sides.len()]; sizes.len()];
    for round in 0..rounds {
        eprint!("round {} of {rounds}:", round + 1);
        for (row, size) in sizes.into_iter().enumerate() {
            eprint!(" {}", size_name(size));
            for (column, server) in servers.iter().enumerate() {
                let sample = if size <= 65536 {
                    small(place, server, size, window)
                } else {
                    bulk(place, server, size, 16, window / 4, window)
                };
                samples[row][column].push(sample);
            }
        }
        eprintln!();
    }
    let heads = [
        "file",
        "server",
        "GB/s",
        "requests/s",
        "CPU us/request",
        "CPU us/KiB",
        "p50 ms",
        "p99 ms",
        "GB/s : nginx",
        "CPU : nginx",
    ];
    if markdown {
        println!("| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    } else {
        println!(
            "{:>8} {:<9} {:>7} {:>11} {:>15} {:>11} {:>8} {:>8} {:>13} {:>12}",
            heads[0], heads[1], heads[2], heads[3], heads[4], heads[5], heads[6], heads[7], heads[8], heads[9]
        );
    }
    let mut doubtful = Vec::new();
    for (row, size) in sizes.into_iter().enumerate() {
        let reference = place.nginx.then(|| medians(&samples[row][0]));
        for (column, side) in sides.iter().enumerate() {
            let one = medians(&samples[row][column]);
            if spread(&samples[row][column]) > 0.3 {
                doubtful.push(format!("{} {side}: {:.0} %", size_name(size), spread(&samples[row][column]) * 100.0));
            }
            let ratio = |of: fn(&Sample) -> f64| {
                reference.as_ref().map_or("-".to_owned(), |nginx| format!("{:.2}", of(&one) / of(nginx)))
            };
            let cells = [
                size_name(size),
                (*side).to_owned(),
                format!("{:.2}", one.gigabytes),
                format!("{:.0}", one.requests),
                format!("{:.1}", one.request_us),
                format!("{:.3}", one.kib_us),
                milliseconds(one.p50),
                milliseconds(one.p99),
                ratio(|sample| sample.gigabytes),
                ratio(|sample| sample.request_us),
            ];
            if markdown {
                println!("| {} |", cells.join(" | "));
            } else {
                println!(
                    "{:>8} {:<9} {:>7} {:>11} {:>15} {:>11} {:>8} {:>8} {:>13} {:>12}",
                    cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8], cells[9]
                );
            }
        }
    }
    println!(
        "\nmedians of {rounds} alternating rounds of {window:?}; up to 64 KiB by wrk -t1 -c64, above by 16 discarding connections"
    );
    if !doubtful.is_empty() {
        println!(
            "WARNING: CPU per KiB of these differs by more than 30 % between rounds, read them with care: {}",
            doubtful.join(", ")
        );
    }
}

/// One numbered part of the acceptance: where, what it found, and whether in haste.
type Part = fn(&Place, &mut Verdict, bool);

/// Counts what held and what did not.
#[derive(Default)]
struct Verdict {
    failed: u32,
    passed: u32,
}

impl Verdict {
    fn say(&mut self, holds: bool, what: &str) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        println!("{} {what}", if holds { "PASS" } else { "FAIL" });
    }
}

fn accept(place: &Place, chosen: &[u32], quick: bool) -> i32 {
    let mut verdict = Verdict::default();
    let parts: [(u32, Part); 5] = [(3, cost), (4, stalled), (5, mice_and_elephants), (6, idle), (7, drain)];
    println!("1 and 2 are tests: tests/run (serve::engines, load::five_gib, serve::foreign)");
    for (number, part) in parts {
        if chosen.is_empty() || chosen.contains(&number) {
            part(place, &mut verdict, quick);
        }
    }
    println!("{} passed, {} failed", verdict.passed, verdict.failed);
    i32::from(verdict.failed > 0)
}

/// 3: CPU per request and per KiB, and throughput, against nginx.
fn cost(place: &Place, verdict: &mut Verdict, quick: bool) {
    if !place.nginx {
        verdict.say(false, "3: nginx is not installed, nothing to compare with");
        return;
    }
    let (rounds, window) = if quick { (3, Duration::from_secs(1)) } else { (7, Duration::from_secs(3)) };
    let (ours, theirs) = (place.start("auto"), place.start("nginx"));
    let both = |measure: &dyn Fn(&Server) -> Sample| {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // Who is first changes with each round.
            if round % 2 == 0 {
                a.push(measure(&ours));
                b.push(measure(&theirs));
            } else {
                b.push(measure(&theirs));
                a.push(measure(&ours));
            }
        }
        let ratio = |of: fn(&Sample) -> f64| median(a.iter().zip(&b).map(|(a, b)| of(a) / of(b)).collect());
        (medians(&a), medians(&b), ratio(|sample| sample.request_us), ratio(|sample| sample.gigabytes))
    };
    let (a, b, cpu, _) = both(&|server| small(place, server, 1024, window));
    verdict.say(
        cpu <= 0.75,
        &format!(
            "3: 1 KiB, wrk -t1 -c64: {:.2} us CPU per request, nginx {:.2}: {cpu:.2} x (at most 0.75); {:.0}/s, nginx {:.0}/s",
            a.request_us, b.request_us, a.requests, b.requests
        ),
    );
    for size in [16 * tree::MIB, 256 * tree::MIB] {
        let (a, b, cpu, rate) = both(&|server| bulk(place, server, size, 16, window / 4, window));
        let name = size_name(size);
        verdict.say(
            cpu <= 1.1,
            &format!(
                "3: {name}, 16 clients: {:.4} us CPU per KiB, nginx {:.4}: {cpu:.2} x (at most 1.1)",
                a.kib_us, b.kib_us
            ),
        );
        verdict.say(
            rate >= 0.95,
            &format!(
                "3: {name}, 16 clients: {:.2} GB/s, nginx {:.2}: {rate:.2} x (at least 0.95)",
                a.gigabytes, b.gigabytes
            ),
        );
    }
}

/// 4: 2,000 clients that stop reading in the middle of a 64 MiB file.
fn stalled(place: &Place, verdict: &mut Verdict, _quick: bool) {
    const CROWD: usize = 2000;
    process::raise_descriptors(3 * CROWD as u64);
    let path = format!("/{}.bin", 64 * tree::MIB);
    let mut sides = vec!["auto", "send", "send-zc", "splice", "sendfile"];
    if place.nginx {
        sides.push("nginx");
    }
    for side in sides {
        let server = place.start(side);
        let pids = server.pids();
        drop(load::stalled(server.address(), &path, 20, 1_000_000));
        load::round_trips(server.address(), "/1024.bin", 1024, 200, Duration::ZERO);
        let before = process::resident_bytes(&pids);
        let address = server.address();
        let Ok(crowd) =
            std::thread::scope(|scope| scope.spawn(|| load::stalled(address, &path, CROWD, 1_000_000)).join())
        else {
            let told = format!("4 {side}: some of {CROWD} clients got no first megabyte while the others stall");
            if side == "auto" {
                verdict.say(false, &told)
            } else {
                println!("note {told}")
            }
            continue;
        };
        let each = process::resident_bytes(&pids).saturating_sub(before) as f64 / CROWD as f64 / 1024.0;
        let threads = process::threads(&pids);
        let times = quick_client(place, &server, 5000, Duration::ZERO);
        let p99 = times.percentile(0.99);
        let told =
            format!("4 {side}: {threads} threads, {each:.2} KiB each, p99 of a quick client {} ms", milliseconds(p99));
        if side != "auto" {
            println!("note {told}");
            continue;
        }
        // One core, its io-wq caps (2 bounded, 4 unbounded unless told otherwise), and two more.
        let most = 1 + 6 + 2;
        verdict.say(threads <= most, &format!("4: {CROWD} stalled clients: {threads} threads (at most {most})"));
        verdict.say(each < 10.0, &format!("4: {CROWD} stalled clients: {each:.2} KiB of memory each (less than 10)"));
        verdict.say(
            p99 < Duration::from_millis(2),
            &format!("4: 1 KiB beside {CROWD} stalled clients: p99 {} ms (under 2)", milliseconds(p99)),
        );
        if server.admin.is_some() {
            let metrics = server.metrics();
            let writing = metrics.sum("ringway_connections", &[("state", "writing")]);
            let pipes = metrics.sum("ringway_pipes", &[("state", "busy")]);
            let workers = metrics.sum("ringway_ring_iowq_workers", &[]);
            let resident = metrics.sum("process_resident_memory_bytes", &[]);
            verdict.say(
                writing as usize >= CROWD && resident > 0.0,
                &format!("4: visible: {writing} connections writing, {pipes} pipes busy, {workers} workers, {resident} bytes resident"),
            );
        }
        drop(crowd);
    }
}

/// A client of its own thread on the client CPU, first in line there: what it waits for is the server, not its neighbours.
fn quick_client(place: &Place, server: &Server, count: usize, pause: Duration) -> Times {
    let (address, cpu) = (server.address(), place.client_cpu);
    let run = std::thread::spawn(move || {
        process::pin(cpu);
        let _ = rustix::process::setpriority_process(None, -20);
        load::round_trips(address, "/1024.bin", 1024, count, pause)
    });
    run.join().expect("a quick client")
}

/// 5: a 1 KiB request beside 8 clients that pull 256 MiB files on the same core.
fn mice_and_elephants(place: &Place, verdict: &mut Verdict, quick: bool) {
    let (rounds, mice) = if quick { (1, 1000) } else { (3, 3000) };
    let size = 256 * tree::MIB;
    let mut sides = vec!["auto"];
    if place.nginx {
        sides.push("nginx");
    }
    let servers: Vec<Server> = sides.iter().map(|side| place.start(side)).collect();
    let mut results = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (server, results) in servers.iter().zip(&mut results) {
            let elephants =
                Downloaders::start(server.address(), &format!("/{size}.bin"), size, 8, Some(place.client_cpu));
            std::thread::sleep(Duration::from_millis(500));
            let (start, bytes) = (Instant::now(), elephants.bytes());
            let times = quick_client(place, server, mice, Duration::from_millis(1));
            let rate = (elephants.bytes() - bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
            assert!(elephants.alive(), "the elephants ended early");
            elephants.stop();
            results.push((times.percentile(0.5).as_secs_f64(), times.percentile(0.99).as_secs_f64(), rate));
        }
    }
    let of = |results: &[(f64, f64, f64)]| {
        let pick = |field: fn(&(f64, f64, f64)) -> f64| median(results.iter().map(field).collect());
        (pick(|one| one.0) * 1e3, pick(|one| one.1) * 1e3, pick(|one| one.2))
    };
    let (p50, p99, rate) = of(&results[0]);
    let nginx = results.get(1).map(|results| of(results));
    let told = nginx.map_or("nginx is not installed".to_owned(), |(p50, p99, rate)| {
        format!("nginx p50 {p50:.2} p99 {p99:.2} ms at {rate:.2} GB/s")
    });
    verdict.say(p99 < 2.0, &format!("5: 1 KiB beside 8 x 256 MiB: p50 {p50:.2} p99 {p99:.2} ms (p99 under 2); {told}"));
    // 8 GB/s where nginx has 9: on another machine, as much of what nginx has there.
    let least = nginx.map_or(8.0, |(_, _, theirs)| theirs * 8.0 / 9.0);
    verdict.say(
        rate >= least,
        &format!("5: the elephants have {rate:.2} GB/s (at least {least:.2}: 8 where nginx has 9); {told}"),
    );
}

/// 6: 10,000 idle keep-alive connections.
fn idle(place: &Place, verdict: &mut Verdict, _quick: bool) {
    const CROWD: usize = 10_000;
    let granted = process::raise_descriptors(CROWD as u64 + 2000);
    if granted < CROWD as u64 + 500 {
        verdict.say(false, &format!("6: only {granted} descriptors may be open here"));
        return;
    }
    let mut sides = vec!["auto"];
    if place.nginx {
        sides.push("nginx");
    }
    for side in sides {
        let server = place.start(side);
        let pids = server.pids();
        drop(load::idle(server.address(), "/1024.bin", 200));
        let before = process::resident_bytes(&pids);
        let crowd = load::idle(server.address(), "/1024.bin", CROWD);
        let each = process::resident_bytes(&pids).saturating_sub(before) as f64 / CROWD as f64 / 1024.0;
        let times = quick_client(place, &server, 2000, Duration::ZERO);
        let told = format!(
            "{CROWD} idle connections: {each:.2} KiB each; p99 beside them {} ms",
            milliseconds(times.percentile(0.99))
        );
        if side == "auto" {
            verdict.say(each <= 2.0, &format!("6: {told} (at most 2 KiB)"));
        } else {
            println!("note 6 {side}: {told}");
        }
        drop(crowd);
    }
}

/// 7: TERM during 100 downloads.
fn drain(place: &Place, verdict: &mut Verdict, _quick: bool) {
    const CROWD: usize = 100;
    let size = 16 * tree::MIB;
    let mut server = place.start("auto");
    let address = server.address();
    let mut clients: Vec<Client> = (0..CROWD)
        .map(|_| {
            let mut client = Client::connect_small(address);
            client.send(format!("GET /{size}.bin HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
            assert_eq!(client.head().length(), Some(size));
            client
        })
        .collect();
    server.term();
    let start = Instant::now();
    while std::net::TcpStream::connect(address).is_ok() && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = std::net::TcpStream::connect(address).is_err();
    let took = start.elapsed();
    let expected = tree::hash_of(size);
    let exact = clients.iter_mut().filter_map(|client| (client.hash_body(size).1 == expected).then_some(())).count();
    verdict
        .say(exact == CROWD, &format!("7: {exact} of {CROWD} downloads of {} byte-exact after TERM", size_name(size)));
    verdict.say(refused, &format!("7: new connections refused after {took:?}"));
    let code = server.end(Duration::from_secs(31)).and_then(|status| status.code());
    verdict.say(code == Some(0), &format!("7: exit code {code:?} (0)"));
}
