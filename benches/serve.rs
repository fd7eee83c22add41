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

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use bench::{CONGESTION, Place, Sample, bulk, median, medians, milliseconds, size_name, small, spread};
use std::time::{Duration, Instant};
use support::load::{Downloaders, Times};
use support::{Client, Server, Start, load, nginx::Nginx, process, tree};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    if has("--help") || has("-h") {
        println!("cargo bench --bench serve [-- [--quick] [--markdown] | accept [--quick] [NUMBER...]]");
        return;
    }
    bench::enter_namespace();
    let place = Place::here();
    place.tell();
    let quick = has("--quick");
    if has("accept") {
        let chosen: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
        std::process::exit(accept(&place, &chosen, quick));
    }
    compare(&place, quick, has("--markdown"));
}

/// Starts one side on the shared tree.
fn start(place: &Place, side: &str) -> Server {
    if side == "nginx" {
        return Nginx { root: tree::shared().to_owned(), sendfile: true, pin: Some(place.server_cpu), log: None }
            .spawn();
    }
    Start::new(tree::shared()).engine(side).core(place.server_cpu).with("--congestion", CONGESTION).spawn()
}

fn compare(place: &Place, quick: bool, markdown: bool) {
    let (rounds, window) = if quick { (2, Duration::from_millis(700)) } else { (5, Duration::from_millis(1500)) };
    let sizes = [1024, 65536, tree::MIB, 16 * tree::MIB, 256 * tree::MIB];
    let mut sides = vec!["auto", "send", "send-zc", "splice", "sendfile"];
    if place.nginx {
        sides.insert(0, "nginx");
    }
    let servers: Vec<Server> = sides.iter().map(|side| start(place, side)).collect();
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
    let (ours, theirs) = (start(place, "auto"), start(place, "nginx"));
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
        let server = start(place, side);
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
    let servers: Vec<Server> = sides.iter().map(|side| start(place, side)).collect();
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
        let server = start(place, side);
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
    let mut server = start(place, "auto");
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
