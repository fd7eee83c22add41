//! What every comparison stands on: a network namespace of its own, a CPU for the server and one for the clients, windows
//! with CPU and bytes of the same time, medians.
#![allow(dead_code)] // each bench uses its own part

use crate::support::load::Downloaders;
use crate::support::process::{self, Cpu};
use crate::support::{self, Server, tree};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

pub const NAMESPACE: &str = "RINGWAY_BENCH_NAMESPACE";
pub const CONGESTION: &str = "cubic";

/// Starts this program again in a network namespace of its own, where that is allowed.
pub fn enter_namespace() {
    if std::env::var_os(NAMESPACE).is_some() {
        return;
    }
    let tools = support::which("unshare").is_some() && support::which("ip").is_some();
    if tools && Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        allow_congestion();
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

/// A namespace may only choose among the algorithms that the whole machine allows to everybody (tcp(7)); one that is
/// available and not allowed is added to the list, which takes nothing from anybody.
fn allow_congestion() {
    const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let allowed = read(ALLOWED);
    let has = |list: &str| list.split_ascii_whitespace().any(|name| name == CONGESTION);
    if has(&allowed) || !has(&read("/proc/sys/net/ipv4/tcp_available_congestion_control")) {
        return;
    }
    match std::fs::write(ALLOWED, format!("{} {CONGESTION}", allowed.trim())) {
        Ok(()) => println!("{CONGESTION} was not among net.ipv4.tcp_allowed_congestion_control: added for this"),
        Err(error) => println!("{CONGESTION} is not allowed in a namespace, and cannot be: {error}"),
    }
}

/// Where this runs.
pub struct Place {
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub nginx: bool,
    pub wrk: bool,
}

impl Place {
    pub fn here() -> Self {
        let cpus = process::cpus();
        Self {
            server_cpu: cpus[0],
            client_cpu: cpus[cpus.len() - 1],
            nginx: support::which("nginx").is_some(),
            wrk: support::which("wrk").is_some(),
        }
    }

    pub fn tell(&self) {
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
}

/// One measurement of one side.
#[derive(Clone, Debug)]
pub struct Sample {
    pub gigabytes: f64,
    pub requests: f64,
    pub request_us: f64,
    pub kib_us: f64,
    pub p50: Duration,
    pub p99: Duration,
}

/// Bulk: `connections` keep-alive downloads; CPU and bytes of the same window, after a warm-up that is cut.
pub fn bulk(place: &Place, server: &Server, size: u64, connections: usize, warm: Duration, window: Duration) -> Sample {
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
pub fn small(place: &Place, server: &Server, size: u64, window: Duration) -> Sample {
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
pub fn wrk_time(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Duration::from_secs_f64(number.parse::<f64>().unwrap_or(0.0) * scale)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn medians(samples: &[Sample]) -> Sample {
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
pub fn spread(samples: &[Sample]) -> f64 {
    let values: Vec<f64> = samples.iter().map(|sample| sample.kib_us).collect();
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    (high - low) / median(values)
}

pub fn size_name(size: u64) -> String {
    if size >= tree::MIB { format!("{} MiB", size / tree::MIB) } else { format!("{} KiB", size / 1024) }
}

pub fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e3;
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
