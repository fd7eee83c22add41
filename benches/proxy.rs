//! A relay beside HAProxy and nginx, and a cache hit beside a plain file, on loopback.
//!
//!     cargo bench --bench proxy                  two tables in Markdown, then PASS or FAIL for each figure
//!     cargo bench --bench proxy -- --quick       shorter windows, fewer rounds
//!     cargo bench --bench proxy -- relay|hits    one of the two
//!     cargo bench --bench proxy -- ours          ringway alone (to work on it)
//!
//! Method. The proxy on the first CPU, clients and origin together on the last, each proxy with one thread. The origin is
//! nginx that serves the same files by sendfile. Sides alternate within each round and the order turns; medians over
//! rounds and medians of the ratios within a round are shown. CPU is what the kernel's scheduler booked for all threads
//! of the proxy's processes, kernel workers (iou-wrk-*) included. 16 keep-alive clients discard in the kernel and verify
//! status and length of every response. Everything is in a network namespace of its own with cubic.
//!
//! HAProxy has `option splice-response` and default buffers and pipes. nginx has keep-alive to the origin, no temporary
//! files (they would only cost it more), and otherwise default buffers; it keeps nothing.

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use bench::{CONGESTION, Place, Sample, bulk, median, medians, milliseconds, size_name, small, spread};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Server, Start, nginx::Nginx, process, tree};

const CLIENTS: usize = 16;
/// Proxy CPU per KiB of ringway, at most so many times that of the other.
const HAPROXY_MOST: f64 = 0.95;
const NGINX_MOST: f64 = 0.4;
/// CPU per KiB of a hit, at most so many times that of a file.
const HIT_MOST: f64 = 1.05;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    if has("--help") || has("-h") {
        println!("cargo bench --bench proxy [-- [--quick] [relay | hits] [ours]]");
        return;
    }
    bench::enter_namespace();
    let place = Place::here();
    place.tell();
    if !place.nginx {
        println!("nginx is not installed: there is no origin to ask (apt-get install nginx-light)");
        return;
    }
    let (rounds, window) =
        if has("--quick") { (3, Duration::from_millis(700)) } else { (7, Duration::from_millis(1500)) };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch folder");
    for size in [16 * tree::KIB, tree::MIB, 256 * tree::MIB] {
        tree::put(folder.path(), &tree::name_of(size), size, size);
    }
    let origin =
        Nginx { root: folder.path().to_owned(), sendfile: true, pin: Some(place.client_cpu), log: None }.spawn();
    let mut passed = true;
    if !has("hits") {
        passed &= relay(&place, &origin, rounds, window, has("ours"));
    }
    if !has("relay") {
        passed &= hits(&place, &origin, folder.path(), rounds, window);
    }
    std::process::exit(i32::from(!passed));
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a server that announces nothing, on one CPU; its socket accepting is the sign.
fn foreign(mut command: Command, address: SocketAddr, scratch: tempfile::TempDir, cpu: usize) -> Server {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // A child inherits the CPUs of the thread that starts it.
    let child = std::thread::spawn(move || {
        process::pin(cpu);
        command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    });
    let server = Server::foreign(child.join().expect("a child"), address, scratch);
    support::eventually("it accepts", Duration::from_secs(10), || TcpStream::connect(address).is_ok());
    server
}

fn haproxy(place: &Place, origin: SocketAddr) -> Server {
    let (scratch, address) = (tempfile::tempdir().unwrap(), free_address());
    let file = scratch.path().join("haproxy.cfg");
    let config = format!(
        "global
  nbthread 1
  maxconn 4000
defaults
  mode http
  option splice-response
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend front
  bind {address}
  default_backend back
backend back
  server origin {origin}\n"
    );
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(support::which("haproxy").expect("haproxy"));
    command.args(["-db", "-q", "-f"]).arg(&file);
    foreign(command, address, scratch, place.server_cpu)
}

fn nginx(place: &Place, origin: SocketAddr) -> Server {
    let (scratch, address) = (tempfile::tempdir().unwrap(), free_address());
    let folder = scratch.path().display().to_string();
    let file = scratch.path().join("nginx.conf");
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "daemon off; pid {folder}/pid; worker_processes 1; {user} worker_rlimit_nofile 20000;
events {{ worker_connections 8000; use epoll; multi_accept on; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 300s;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream origin {{ server {origin}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen {address} backlog=4096;
    location / {{
      proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_max_temp_file_size 0;
    }}
  }}
}}\n"
    );
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(support::which("nginx").expect("nginx"));
    command.arg("-p").arg(scratch.path()).arg("-c").arg(&file).arg("-e").arg(scratch.path().join("error.log"));
    foreign(command, address, scratch, place.server_cpu)
}

fn version(tool: &str, argument: &str) -> String {
    let told = Command::new(support::which(tool).unwrap_or(tool.into())).arg(argument).output();
    let told = told.map(|told| [told.stdout, told.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&told).lines().next().unwrap_or_default().to_owned()
}

/// Samples of each side, alternating; who is first turns with each round.
fn alternate(sides: usize, rounds: usize, mut measure: impl FnMut(usize) -> Sample) -> Vec<Vec<Sample>> {
    let mut samples = vec![Vec::new(); sides];
    for round in 0..rounds {
        for step in 0..sides {
            let side = (round + step) % sides;
            samples[side].push(measure(side));
        }
    }
    samples
}

/// Median over rounds of how many times the second side's CPU per KiB the first one's is.
fn cpu_ratio(ours: &[Sample], theirs: &[Sample]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours.kib_us / theirs.kib_us).collect())
}

/// Nothing where no response began and ended within a window.
fn time(time: Duration) -> String {
    if time.is_zero() { "-".to_owned() } else { milliseconds(time) }
}

fn rows(size: u64, names: &[&str], samples: &[Vec<Sample>], doubtful: &mut Vec<String>) {
    for (name, own) in names.iter().zip(samples) {
        let one = medians(own);
        println!(
            "| {} | {name} | {:.2} | {:.4} | {} | {} | {:.2} |",
            size_name(size),
            one.gigabytes,
            one.kib_us,
            time(one.p50),
            time(one.p99),
            cpu_ratio(&samples[0], own),
        );
        if spread(own) > 0.3 {
            doubtful.push(format!("{} {name}: {:.0} %", size_name(size), spread(own) * 100.0));
        }
    }
}

fn head(what: &str) {
    println!(
        "| {what} | server | GB/s | CPU us/KiB | p50 ms | p99 ms | first : this, CPU/KiB |\n|---|---|---|---|---|---|---|"
    );
}

fn tell(verdicts: Vec<(bool, String)>, doubtful: Vec<String>) -> bool {
    println!();
    for (holds, what) in &verdicts {
        println!("{} {what}", if *holds { "PASS" } else { "FAIL" });
    }
    if !doubtful.is_empty() {
        println!("WARNING: CPU per KiB differs by more than 30 % between rounds: {}", doubtful.join(", "));
    }
    println!();
    verdicts.iter().all(|(holds, _)| *holds)
}

fn relay(place: &Place, origin: &Server, rounds: usize, window: Duration, ours_only: bool) -> bool {
    let (mut names, mut servers) = (vec!["ringway"], Vec::new());
    servers.push(Start::new(origin.url("")).core(place.server_cpu).with("--congestion", CONGESTION).spawn());
    if !ours_only {
        if support::which("haproxy").is_some() {
            println!("{}", version("haproxy", "-v"));
            names.push("HAProxy");
            servers.push(haproxy(place, origin.address()));
        } else {
            println!("haproxy is not installed: no comparison with it (apt-get install haproxy)");
        }
        names.push("nginx");
        servers.push(nginx(place, origin.address()));
    }
    head("relay of");
    let (mut verdicts, mut doubtful) = (Vec::new(), Vec::new());
    for size in [tree::MIB, 256 * tree::MIB] {
        let samples =
            alternate(servers.len(), rounds, |side| bulk(place, &servers[side], size, CLIENTS, window / 3, window));
        rows(size, &names, &samples, &mut doubtful);
        for (name, theirs) in names.iter().zip(&samples).skip(1) {
            let (most, ratio) =
                (if *name == "nginx" { NGINX_MOST } else { HAPROXY_MOST }, cpu_ratio(&samples[0], theirs));
            verdicts.push((
                ratio <= most,
                format!("relay of {}: {ratio:.2} x the CPU per KiB of {name} (at most {most})", size_name(size)),
            ));
        }
    }
    // How the bytes went, so that the figures can be understood.
    let metrics = servers[0].metrics();
    for engine in ["send", "send_zc", "splice"] {
        let labels = [("engine", engine), ("part", "body")];
        if metrics.has("ringway_sent_bytes_total", &labels) {
            println!("ringway sent {:.1} GB by {engine}", metrics.sum("ringway_sent_bytes_total", &labels) / 1e9);
        }
    }
    tell(verdicts, doubtful)
}

fn hits(place: &Place, origin: &Server, folder: &Path, rounds: usize, window: Duration) -> bool {
    let cache = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch folder");
    // The origin says nothing of freshness; the route does.
    let config = format!(
        "congestion = \"{CONGESTION}\"\ncache = \"{}\"\n[[route]]\npath = \"/\"\nsource = \"{}\"\nttl = \"1h\"\n",
        cache.path().display(),
        origin.url("")
    );
    let cached = Start::configured(&config).core(place.server_cpu).spawn();
    let file = Start::new(folder).core(place.server_cpu).with("--congestion", CONGESTION).spawn();
    let (names, servers) = (["cache hit", "file"], [cached, file]);
    let sizes = [16 * tree::KIB, tree::MIB, 256 * tree::MIB];
    for size in sizes {
        let right = support::sha256(&tree::content(size, size));
        for server in &servers {
            for _ in 0..2 {
                let (head, count, hash) = server.client().hash(&format!("/{}", tree::name_of(size)));
                assert_eq!((head.status, count, &hash), (200, size, &right));
            }
        }
    }
    head("hit of");
    let (mut verdicts, mut doubtful) = (Vec::new(), Vec::new());
    for size in sizes {
        let samples = alternate(2, rounds, |side| match size {
            0..=65_536 => small(place, &servers[side], size, window),
            _ => bulk(place, &servers[side], size, CLIENTS, window / 3, window),
        });
        rows(size, &names, &samples, &mut doubtful);
        let ratio = cpu_ratio(&samples[0], &samples[1]);
        verdicts.push((
            ratio <= HIT_MOST,
            format!("hit of {}: {ratio:.2} x the CPU per KiB of a file (at most {HIT_MOST})", size_name(size)),
        ));
    }
    let hits = servers[0].metrics().sum("ringway_cache_requests_total", &[("result", "hit")]);
    println!("{hits:.0} hits");
    tell(verdicts, doubtful)
}
