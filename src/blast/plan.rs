//! What a run is to do, apart from how it was said: payload, flows, placement, and when it ends.

use super::payload::Payload;
use super::send::Engine;
use super::wire::Receive;
use crate::config::{allowed_cpus, parse_cpu_list};
use crate::error::{Error, Kind, Result, describe};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a sink listens if nothing else is said.
pub const PORT: u16 = 5209;
/// Flows at most: each is a descriptor at both ends and a line of the report.
pub const FLOWS_MOST: usize = 10_000;
/// Repeats at most.
pub const REPEATS_MOST: u32 = 1000;
/// A run that bytes or a count end lasts no longer.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Bytes of memory that are sent over and over where no file is named.
const MEMORY: usize = super::core::MESSAGE_MOST;
/// Where payload made here begins.
const SEED: u64 = 0x7269_6e67_7761_7921;

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// Memory.
    Memory,
    /// A file of so many bytes that exists in memory only.
    Size(u64),
    /// A file.
    File(PathBuf),
    /// Every file of a directory.
    Files(PathBuf),
}

impl From {
    /// The payload, its files read once so that no disk is measured.
    ///
    /// # Errors
    /// A file cannot be read, or memory is short.
    pub fn payload(&self) -> Result<Payload> {
        let payload = match self {
            Self::Memory => Payload::memory(MEMORY, SEED),
            Self::Size(bytes) => Payload::memory_file(*bytes, SEED)?,
            Self::File(path) => Payload::file(path)?,
            Self::Files(path) => Payload::directory(path)?,
        };
        payload.warm()?;
        Ok(payload)
    }
}

/// When the measured window ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Until {
    /// After so long.
    Time(Duration),
    /// When so many bytes were sent, by all flows.
    Bytes(u64),
    /// When so many requests were answered (HTTP).
    Count(u64),
}

/// One way out of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Via {
    /// As named.
    pub name: String,
    /// The source address of its flows.
    pub address: IpAddr,
    /// The interface that has the address.
    pub device: String,
    /// CPUs of the cores that run its flows; empty: any.
    pub cpus: Vec<usize>,
}

/// What both kinds of run have.
#[derive(Clone, Debug)]
pub struct Common {
    /// As given.
    pub targets: Vec<String>,
    /// Flows, or connections.
    pub flows: usize,
    /// When it ends.
    pub until: Until,
    /// Warm-up before the window.
    pub omit: Duration,
    /// Between lines.
    pub interval: Duration,
    /// One core per entry.
    pub cpus: Vec<Option<usize>>,
    /// Ways out; empty: the routing table's.
    pub vias: Vec<Via>,
    /// TCP_CONGESTION.
    pub congestion: Option<String>,
    /// SO_RCVBUF; 0 leaves autotuning.
    pub receive_buffer: u64,
    /// Messages or requests a second in all; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// Check what arrives.
    pub verify: bool,
    /// Repeats; more than one where a confidence is wanted.
    pub repeats: u32,
    /// Level and width in percent that end the repeats early.
    pub confidence: Option<(f64, f64)>,
}

/// A run against sinks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What both kinds have.
    pub common: Common,
    /// Where the targets are.
    pub addresses: Vec<SocketAddr>,
    /// How.
    pub engine: Engine,
    /// As it was named.
    pub engine_name: String,
    /// What.
    pub from: From,
    /// Bytes of one call from memory.
    pub message: usize,
    /// How the sink receives.
    pub receive: Receive,
    /// TCP_NOTSENT_LOWAT; 0 leaves the system's.
    pub notsent_lowat: u32,
    /// SO_SNDBUF; 0 leaves autotuning.
    pub send_buffer: u64,
}

impl Common {
    /// Adds the CPUs that vias name and no core has yet; the first via's CPUs replace a default.
    pub fn adopt_cpus(&mut self, were_given: bool) {
        let named: Vec<usize> = self.vias.iter().flat_map(|via| via.cpus.iter().copied()).collect();
        if named.is_empty() || self.cpus.first() == Some(&None) {
            return;
        }
        if !were_given {
            self.cpus.clear();
        }
        for cpu in named {
            if !self.cpus.contains(&Some(cpu)) {
                self.cpus.push(Some(cpu));
            }
        }
    }

    /// The via of a flow.
    pub fn via_of(&self, flow: usize) -> Option<(usize, &Via)> {
        let at = flow % self.vias.len().max(1);
        self.vias.get(at).map(|via| (at, via))
    }

    /// The target of a flow: with as many vias as targets, each via has the target in its place.
    pub fn target_of(&self, flow: usize) -> usize {
        flow % self.targets.len().max(1)
    }

    /// The core of a flow: in turn, among those of its via where it names CPUs.
    pub fn core_of(&self, flow: usize) -> usize {
        let cores = self.cpus.len().max(1);
        let Some((_, via)) = self.via_of(flow) else { return flow % cores };
        let near: Vec<usize> =
            (0..self.cpus.len()).filter(|core| self.cpus[*core].is_some_and(|cpu| via.cpus.contains(&cpu))).collect();
        let turn = flow / self.vias.len().max(1);
        if near.is_empty() { flow % cores } else { near[turn % near.len()] }
    }
}

/// Bytes of flow `flow` where `bytes` are shared by `flows`.
pub fn bytes_of_flow(bytes: u64, flows: usize, flow: usize) -> u64 {
    let flows = flows.max(1) as u64;
    bytes / flows + u64::from((flow as u64) < bytes % flows)
}

/// `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT` as an address; the name's first address is taken.
///
/// # Errors
/// It is none of these, or the name is not known.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    let tried = || format!("reach {text}");
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, PORT));
    }
    let with_port = match text.rsplit_once(':') {
        Some(_) => text.to_owned(),
        None => format!("{text}:{PORT}"),
    };
    let mut found = with_port.to_socket_addrs().map_err(|error| {
        Error::new(Kind::Usage, tried(), describe(&error)).remedy("a target is HOST, HOST:PORT or http://HOST/PATH")
    })?;
    found.next().ok_or_else(|| Error::new(Kind::Runtime, tried(), "its name has no address"))
}

fn interfaces() -> Result<Vec<if_addrs::Interface>> {
    if_addrs::get_if_addrs().map_err(|error| Error::os("list this machine's addresses", &error))
}

/// `ADDRESS` or `ADDRESS=CPUS`.
///
/// # Errors
/// It is not that, or no interface has the address.
pub fn via(text: &str) -> Result<Via> {
    let wrong = |cause: String| Error::new(Kind::Usage, format!("use --via {text}"), cause);
    let (address, cpus) = text.split_once('=').unwrap_or((text, ""));
    let parsed: IpAddr =
        address.parse().map_err(|_| wrong(format!("`{address}` is not an address, such as 10.0.0.1=0-3")))?;
    let cpus = if cpus.is_empty() {
        Vec::new()
    } else {
        parse_cpu_list(cpus).map_err(|why| wrong(format!("`{cpus}` {why}")))?
    };
    let device = interfaces()?.into_iter().find(|one| one.ip() == parsed).map(|one| one.name);
    let device = device.ok_or_else(|| wrong(format!("no interface of this machine has {parsed}")))?;
    Ok(Via { name: address.to_owned(), address: parsed, device, cpus })
}

/// An interface by name: its first address of the target's family, and the CPUs its interrupts come to.
///
/// # Errors
/// There is no such interface, or it has no such address.
pub fn nic(device: &str, ipv6: bool, root: &Path) -> Result<Via> {
    let tried = || format!("use --nic {device}");
    let all = interfaces()?;
    if !all.iter().any(|one| one.name == device) {
        let mut names: Vec<String> = all.into_iter().map(|one| one.name).collect();
        names.dedup();
        return Err(Error::new(Kind::Usage, tried(), "there is no such interface with an address")
            .remedy(format!("there are {}", names.join(", "))));
    }
    let fits = |one: &&if_addrs::Interface| one.name == device && one.ip().is_ipv6() == ipv6;
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    let found = all.iter().find(fits);
    let found = found.ok_or_else(|| Error::new(Kind::Usage, tried(), format!("it has no {family} address")))?;
    Ok(Via { name: device.to_owned(), address: found.ip(), device: device.to_owned(), cpus: near(device, root) })
}

/// CPUs that an interface's interrupts are delivered to; empty for one without (veth, lo).
fn near(device: &str, root: &Path) -> Vec<usize> {
    let base = root.join("sys/class/net").join(device).join("device");
    let mut cpus = Vec::new();
    for entry in std::fs::read_dir(base.join("msi_irqs")).into_iter().flatten().flatten() {
        let irq = root.join("proc/irq").join(entry.file_name());
        let list = std::fs::read_to_string(irq.join("effective_affinity_list")).unwrap_or_default();
        cpus.extend(parse_cpu_list(list.trim()).unwrap_or_default());
    }
    if cpus.is_empty() {
        let list = std::fs::read_to_string(base.join("local_cpulist")).unwrap_or_default();
        cpus = parse_cpu_list(list.trim()).unwrap_or_default();
    }
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// The cores of an end: `none` (one core, not pinned), a list, or by default up to `most` of the allowed CPUs, from the
/// front, or from the back, so that two ends on one machine meet as late as they can.
///
/// # Errors
/// The list is malformed, or names a CPU that this process may not use.
pub fn cpus(given: Option<&str>, most: usize, from_the_end: bool) -> Result<Vec<Option<usize>>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    choose(given, most, from_the_end, &allowed_cpus(&status))
}

fn choose(given: Option<&str>, most: usize, from_the_end: bool, allowed: &[usize]) -> Result<Vec<Option<usize>>> {
    let wrong = |text: &str, cause: String| Error::new(Kind::Usage, format!("use --cores {text}"), cause);
    match given {
        Some("none") => Ok(vec![None]),
        Some(text) => {
            let list = parse_cpu_list(text).map_err(|why| wrong(text, format!("it {why}, and not `none`")))?;
            if let Some(cpu) = list.iter().find(|cpu| !allowed.contains(cpu)) {
                let cause = format!("CPU {cpu} is not in this process's affinity mask");
                return Err(
                    wrong(text, cause).remedy(format!("allowed are {}", crate::config::write_cpu_list(allowed)))
                );
            }
            Ok(list.into_iter().map(Some).collect())
        }
        None => {
            let most = most.clamp(1, allowed.len().max(1));
            let order: Vec<usize> =
                if from_the_end { allowed.iter().rev().copied().collect() } else { allowed.to_vec() };
            Ok(order.into_iter().take(most).map(Some).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(cpus: &[usize], vias: &[(&str, &[usize])], targets: usize) -> Common {
        Common {
            targets: vec![String::new(); targets],
            flows: 8,
            until: Until::Time(Duration::from_secs(1)),
            omit: Duration::ZERO,
            interval: Duration::from_secs(1),
            cpus: cpus.iter().copied().map(Some).collect(),
            vias: vias
                .iter()
                .map(|(address, cpus)| Via {
                    name: (*address).to_owned(),
                    address: address.parse().expect("address"),
                    device: "eth".into(),
                    cpus: cpus.to_vec(),
                })
                .collect(),
            congestion: None,
            receive_buffer: 0,
            rate: None,
            verify: false,
            repeats: 1,
            confidence: None,
        }
    }

    #[test]
    fn flows_go_to_the_cores_near_their_interface() {
        let mut run = common(&[0], &[("10.0.0.1", &[2, 3]), ("10.0.1.1", &[5])], 2);
        run.adopt_cpus(false);
        assert_eq!(run.cpus, [Some(2), Some(3), Some(5)]);
        let placed: Vec<_> =
            (0..5).map(|flow| (run.via_of(flow).map(|(at, _)| at), run.target_of(flow), run.core_of(flow))).collect();
        assert_eq!(placed, [(Some(0), 0, 0), (Some(1), 1, 2), (Some(0), 0, 1), (Some(1), 1, 2), (Some(0), 0, 0)]);
        let plain = common(&[0, 1], &[], 1);
        assert_eq!((0..4).map(|flow| plain.core_of(flow)).collect::<Vec<_>>(), [0, 1, 0, 1]);
    }

    #[test]
    fn bytes_are_shared_to_the_last() {
        assert_eq!((0..3).map(|flow| bytes_of_flow(10, 3, flow)).collect::<Vec<_>>(), [4, 3, 3]);
    }

    #[test]
    fn targets_and_what_is_none() {
        assert_eq!(resolve("127.0.0.1").expect("address").to_string(), "127.0.0.1:5209");
        assert_eq!(resolve("::1").expect("address").to_string(), "[::1]:5209");
        assert_eq!(resolve("[::1]:7").expect("address").to_string(), "[::1]:7");
        assert!(resolve("127.0.0.1:x").expect_err("no port").to_string().contains("HOST:PORT"));
        assert_eq!(via("127.0.0.1=0-1").expect("loopback").device, "lo");
        assert!(via("192.0.2.77").expect_err("not here").to_string().contains("no interface"));
        assert!(via("eth0").expect_err("no address").to_string().contains("not an address"));
        assert_eq!(nic("lo", false, Path::new("/")).expect("loopback").address.to_string(), "127.0.0.1");
        assert!(nic("nic9", false, Path::new("/")).expect_err("none").to_string().contains("lo"));
    }

    #[test]
    fn cores_of_two_ends_meet_last() {
        assert_eq!(choose(None, 2, false, &[0, 1, 4]).expect("front"), [Some(0), Some(1)]);
        assert_eq!(choose(None, 2, true, &[0, 1, 4]).expect("back"), [Some(4), Some(1)]);
        assert_eq!(choose(Some("none"), 2, true, &[0]).expect("none"), [None]);
        assert!(choose(Some("9"), 1, false, &[0, 1]).expect_err("not ours").to_string().contains("allowed are 0-1"));
        assert!(choose(Some("x"), 1, false, &[0]).expect_err("no list").to_string().contains("list of CPUs"));
    }
}
