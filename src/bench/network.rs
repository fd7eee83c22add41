//! `nics`: several links between two network namespaces, each limited, all to be full at once.
//!
//! The namespaces have no names: each is held by a process that waits on a pipe from this one. When this process ends,
//! however it ends, the pipes close, the holders end, and namespaces and interfaces are gone with them.

use super::ends::{self, Interrupted, Owned, Sink};
use super::profiles::words;
use super::table::{Chart, Table};
use super::{Outcome, Settings};
use crate::blast::report::Report;
use crate::config::allowed_cpus;
use crate::error::{Error, Kind, Result};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Links.
const LINKS: usize = 4;
/// Megabits a second of each.
const LIMIT: u32 = 1000;
/// Of the slow one, in the second run.
const SLOW: u32 = 250;

/// A network namespace that lives as long as this value, at most as long as this process.
pub struct Namespace {
    holder: Owned,
}

impl Namespace {
    fn new() -> Result<Self> {
        let failed = |cause: String| {
            Error::new(Kind::NotPermitted, "make a network namespace", cause)
                .remedy("run as root, with util-linux's unshare and nsenter")
        };
        let mut command = Command::new("unshare");
        // `echo` says that the namespace is there; `cat` lives until the pipe from this process closes.
        command.args(["--net", "--", "sh", "-c", "echo ready; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = Owned(command.spawn().map_err(|error| failed(format!("unshare: {error}")))?);
        let mut line = String::new();
        if let Some(out) = holder.0.stdout.take() {
            // What cannot be read is no `ready`.
            let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line);
        }
        if line.trim() != "ready" {
            let mut told = String::new();
            if let Some(mut errors) = holder.0.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut errors, &mut told);
            }
            return Err(failed(told.trim().to_owned()));
        }
        Ok(Self { holder })
    }

    fn pid(&self) -> u32 {
        self.holder.0.id()
    }

    /// The words that lead a command into it.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.pid()), "--".into()]
    }

    fn run(&self, line: &str) -> Result<()> {
        let enter = self.enter();
        let done = Command::new(&enter[0]).args(&enter[1..]).args(words(line)).stdin(Stdio::null()).output();
        let failed = |cause: String| Error::new(Kind::Runtime, format!("run `{line}` in a namespace"), cause);
        let done = done.map_err(|error| failed(error.to_string()).remedy("install util-linux and iproute2"))?;
        if done.status.success() {
            return Ok(());
        }
        let told = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        Err(failed(told).remedy("install iproute2, and see that the kernel has veth and sch_tbf"))
    }
}

/// A namespace with nothing but a loopback device of 1500-byte packets, which TCP may fill 64 KiB at a time (segmentation
/// offload) or has to cut itself.
///
/// # Errors
/// Namespaces cannot be made here, or a tool is missing.
pub fn loopback(offload: bool) -> Result<Namespace> {
    let namespace = Namespace::new()?;
    let segments = if offload { 65_535 } else { 1 };
    namespace.run(&format!("ip link set dev lo mtu 1500 gso_max_segs {segments} up"))?;
    Ok(namespace)
}

/// Two namespaces and the links between them.
struct Links {
    sender: Namespace,
    receiver: Namespace,
}

impl Links {
    fn new(limits: &[u32; LINKS]) -> Result<Self> {
        let links = Self { sender: Namespace::new()?, receiver: Namespace::new()? };
        for end in [&links.sender, &links.receiver] {
            end.run("ip link set lo up")?;
        }
        for (number, limit) in limits.iter().enumerate() {
            let device = format!("link{number}");
            links
                .sender
                .run(&format!("ip link add {device} type veth peer name {device} netns {}", links.receiver.pid()))?;
            for (end, last) in [(&links.sender, 1), (&links.receiver, 2)] {
                // A network of its own for each link, from the range for benchmarks (RFC 2544).
                end.run(&format!("ip address add 198.18.{number}.{last}/24 dev {device}"))?;
                // Large frames: the interface counts a large segment's head once, the limit counts it for every frame.
                end.run(&format!("ip link set {device} mtu 9000 up"))?;
            }
            // A bucket of a few milliseconds, since timers of a busy machine are late.
            links
                .sender
                .run(&format!("tc qdisc add dev {device} root tbf rate {limit}mbit burst 256kb latency 20ms"))?;
        }
        Ok(links)
    }

    fn blast(&self, settings: &Settings, interrupted: &Interrupted) -> Result<Report> {
        let cpus = allowed_cpus(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let (first, last) = (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
        let mut listen = words(&format!("--cores {last}"));
        listen.extend(words("--listen 198.18.0.2:5209"));
        for number in 1..LINKS {
            listen.extend(words(&format!("--listen 198.18.{number}.2:5209")));
        }
        let sink = Sink::start(&listen, &self.receiver.enter())?;
        let mut all: Vec<String> = (0..LINKS).map(|number| format!("198.18.{number}.2:5209")).collect();
        for number in 0..LINKS {
            all.extend(words(&format!("--via 198.18.{number}.1")));
        }
        // A second of warm-up at least: the bucket is full at first.
        let settings = Settings { omit: settings.omit.max(Duration::from_secs(1)), ..settings.clone() };
        all.extend(super::profiles::blast_words(&settings, Some(first)));
        all.extend(words(&format!("--flows {} --engine sendfile --size 64M --receive trunc", 2 * LINKS)));
        let report = ends::blast(&all, &self.sender.enter(), settings.time + settings.omit, interrupted)?;
        sink.finish();
        Ok(report)
    }
}

/// The profile.
///
/// # Errors
/// Namespaces cannot be made, a tool is missing, or an end fails.
pub fn nics(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut table = Table::new(
        "Measured: veth pairs between two namespaces, each limited by tbf; wire bytes are the interface's own count",
        &["run", "link", "limit Mb/s", "payload Mb/s", "wire Mb/s", "% of limit", "drops", "cores"],
    );
    let mut series = Vec::new();
    for (name, limits) in [("equal", [LIMIT; LINKS]), ("one slower", [LIMIT, LIMIT, LIMIT, SLOW])] {
        let links = Links::new(&limits)?;
        let report = links.blast(settings, interrupted)?;
        outcome.keep(name, &report);
        let mut sum = 0.0;
        let mut worst: f64 = 0.0;
        let mut drawn = Vec::new();
        for (via, limit) in report.end.vias.iter().zip(limits) {
            let (wire, limit) = (via.wire_bits_per_second / 1e6, f64::from(limit));
            sum += wire;
            worst = worst.max((wire / limit - 1.0).abs() * 100.0);
            let cores: Vec<String> = via.cores.iter().map(u64::to_string).collect();
            table.row(vec![
                name.to_owned(),
                via.device.clone(),
                format!("{limit:.0}"),
                format!("{:.1}", via.bits_per_second / 1e6),
                format!("{wire:.1}"),
                format!("{:.1}", 100.0 * wire / limit),
                via.drops.to_string(),
                cores.join(","),
            ]);
            drawn.push(Some(wire));
        }
        let whole: f64 = limits.iter().map(|limit| f64::from(*limit)).sum();
        let off = (sum / whole - 1.0).abs() * 100.0;
        outcome.judge(format!("{name}: the sum is within 3 % of {whole:.0} Mb/s on the wire"), off, off <= 3.0);
        outcome.judge(format!("{name}: each link is within 5 % of its limit"), worst, worst <= 5.0);
        series.push((name.to_owned(), drawn));
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "Four links at once, all limited to 1 Gb/s, then one to 250 Mb/s".into(),
        x: "link".into(),
        y: "Mb/s on the wire".into(),
        categories: (0..LINKS).map(|number| format!("link{number}")).collect(),
        series,
        lines: false,
    });
    Ok(outcome)
}
