//! Where an end's CPU went between two moments: one snapshot at each, their difference as a [`Side`].
//!
//! The whole bill is getrusage(2)'s, which has every thread, io-wq workers included. What of it belongs to which core is
//! /proc's (schedstat, exact). Helpers that ended between two snapshots are in the whole and may be missing in a core.

use super::core::Cores;
use super::report::{CoreUse, HostCpu, Side, Utilization, service_demand};
use crate::clock::Nanos;
use crate::sys::{self, Usage};
use crate::telemetry::process::{CoreTimes, Sampler, parse_cpu_modes};
use crate::telemetry::tally::{Engine, Tally, ZcResult};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

/// What one core had counted at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    received: u64,
    engines: [u64; 4],
    splice2: u64,
    zero_copy: [u64; 3],
    enters: u64,
    ops: u64,
    completions: u64,
    calls: u64,
    call_ns: u64,
    short: u64,
    again: u64,
    waits: u64,
    requests: u64,
    errors: u64,
    verified: u64,
    body: u64,
}

fn sum(cells: &[crate::telemetry::tally::Cell]) -> u64 {
    cells.iter().map(crate::telemetry::tally::Cell::get).sum()
}

impl Counted {
    fn of(tally: &Tally, counts: &super::count::Counts) -> Self {
        let mut engines: [u64; 4] = std::array::from_fn(|at| tally.body_bytes[at].get());
        engines[Engine::Send as usize] += counts.send.get();
        engines[Engine::SendZc as usize] += counts.send_zc.get();
        Self {
            received: counts.received.get(),
            engines,
            splice2: counts.splice2.get(),
            zero_copy: std::array::from_fn(|at| tally.zc_bytes[at].get()),
            enters: tally.ring_enters_submit.get() + tally.ring_enters_wait.get(),
            ops: tally.ring_sqes.get(),
            completions: tally.ring_cqes.get(),
            calls: sum(&tally.quanta) + counts.calls.get(),
            call_ns: sum(&tally.quantum_ns) + counts.call_ns.get(),
            short: sum(&tally.quanta_short) + counts.short.get(),
            again: sum(&tally.quanta_full) + counts.again.get(),
            waits: tally.socket_waits.get() + counts.waits.get(),
            requests: counts.requests.get(),
            errors: counts.errors.get(),
            verified: counts.verified.get(),
            body: counts.body.get(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            engines: std::array::from_fn(|at| self.engines[at] - before.engines[at]),
            splice2: self.splice2 - before.splice2,
            zero_copy: std::array::from_fn(|at| self.zero_copy[at] - before.zero_copy[at]),
            enters: self.enters - before.enters,
            ops: self.ops - before.ops,
            completions: self.completions - before.completions,
            calls: self.calls - before.calls,
            call_ns: self.call_ns - before.call_ns,
            short: self.short - before.short,
            again: self.again - before.again,
            waits: self.waits - before.waits,
            requests: self.requests - before.requests,
            errors: self.errors - before.errors,
            verified: self.verified - before.verified,
            body: self.body - before.body,
        }
    }

    fn sent(&self) -> u64 {
        self.engines.iter().sum::<u64>() + self.splice2
    }
}

/// One moment of one end.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When.
    pub at: Nanos,
    usage: Usage,
    times: Vec<CoreTimes>,
    stat: String,
    counted: Vec<Counted>,
}

impl Snapshot {
    /// Bytes the sockets took, ever.
    pub fn sent(&self) -> u64 {
        self.counted.iter().map(Counted::sent).sum()
    }
    /// The same, core by core.
    pub fn sent_by_core(&self) -> Vec<u64> {
        self.counted.iter().map(Counted::sent).collect()
    }
    /// Bytes the sockets gave, ever.
    pub fn received(&self) -> u64 {
        self.counted.iter().map(|counted| counted.received).sum()
    }
    /// The same, core by core.
    pub fn received_by_core(&self) -> Vec<u64> {
        self.counted.iter().map(|counted| counted.received).collect()
    }
    /// Bytes of bodies received, ever.
    pub fn bodies(&self) -> u64 {
        self.counted.iter().map(|counted| counted.body).sum()
    }
    /// Requests or whole files, ever.
    pub fn requests(&self) -> u64 {
        self.counted.iter().map(|counted| counted.requests).sum()
    }
    /// Failed ones, ever.
    pub fn errors(&self) -> u64 {
        self.counted.iter().map(|counted| counted.errors).sum()
    }
    /// Blocks or bodies that were checked and right, ever.
    pub fn verified(&self) -> u64 {
        self.counted.iter().map(|counted| counted.verified).sum()
    }
    /// CPU seconds of the process so far.
    pub fn cpu(&self) -> f64 {
        self.usage.user + self.usage.system
    }
    /// CPU seconds of each core so far, helpers included.
    pub fn cpu_by_core(&self) -> Vec<f64> {
        self.times.iter().map(|core| whole(&core.thread) + whole(&core.workers)).collect()
    }
}

fn whole(times: &crate::telemetry::process::ThreadTimes) -> f64 {
    times.user + times.system
}

/// Takes snapshots.
#[derive(Debug)]
pub struct Meter {
    sampler: Sampler,
    cpus: Vec<usize>,
}

impl Meter {
    /// A meter for these cores; where they are not pinned it looks at every CPU of the machine.
    pub fn new(cores: &Cores) -> Self {
        let mut cpus: Vec<usize> = cores.all().iter().filter_map(|core| core.cpu).collect();
        if cpus.is_empty() {
            let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
            cpus = (0..4096).filter(|cpu| parse_cpu_modes(&stat, *cpu).is_some()).collect();
        }
        cpus.sort_unstable();
        cpus.dedup();
        Self { sampler: Sampler::new(Path::new("/proc"), cores.all().len()), cpus }
    }

    /// Now. Take one about once a second: helpers that end take their numbers with them.
    pub fn snap(&mut self, cores: &Cores) -> Snapshot {
        let tids: Vec<i32> = cores.all().iter().map(|core| core.public.tid.load(Ordering::Acquire)).collect();
        let sample = self.sampler.sample(&tids);
        Snapshot {
            at: cores.clock.now(),
            usage: sys::usage(),
            times: sample.cores,
            stat: sample.stat,
            counted: cores.all().iter().map(|core| Counted::of(&core.public.tally, &core.counts)).collect(),
        }
    }

    /// What lies between two moments. `sends`: this end's bytes are those its sockets took, not those they gave.
    pub fn side(&self, cores: &Cores, from: &Snapshot, to: &Snapshot, sends: bool) -> Side {
        let user = (to.usage.user - from.usage.user).max(0.0);
        let system = (to.usage.system - from.usage.system).max(0.0);
        let mut side = Side {
            seconds: to.at.since(from.at).as_secs_f64(),
            user_seconds: user,
            system_seconds: system,
            ..Side::default()
        };
        let mut engines = [0; 4];
        let mut splice2 = 0;
        let mut zero_copy = [0; 3];
        let mut call_ns = 0;
        let mut accounted = 0.0;
        for (at, core) in cores.all().iter().enumerate() {
            let counted = to.counted[at].since(from.counted[at]);
            let used = self.core(core, at, &counted, &from.times[at], &to.times[at], sends);
            side.bytes += used.bytes;
            side.iowq_seconds += used.iowq_seconds;
            side.voluntary_switches += used.voluntary_switches;
            side.involuntary_switches += used.involuntary_switches;
            accounted += used.user_seconds + used.system_seconds + used.iowq_seconds;
            side.cores.push(used);
            engines.iter_mut().zip(counted.engines).for_each(|(sum, more)| *sum += more);
            zero_copy.iter_mut().zip(counted.zero_copy).for_each(|(sum, more)| *sum += more);
            splice2 += counted.splice2;
            call_ns += counted.call_ns;
            side.enters += counted.enters;
            side.ops += counted.ops;
            side.completions += counted.completions;
            side.calls += counted.calls;
            side.short += counted.short;
            side.again += counted.again;
            side.waits += counted.waits;
        }
        side.control_seconds = (user + system - accounted).max(0.0);
        side.seconds_per_call = if side.calls == 0 { 0.0 } else { call_ns as f64 / 1e9 / side.calls as f64 };
        side.service_demand = service_demand(user + system, side.bytes);
        side.host = self.host(from, to);
        let softirq: f64 = side.host.iter().map(|cpu| cpu.softirq + cpu.irq).sum();
        side.service_demand_with_softirq = service_demand(user + system + softirq, side.bytes);
        for engine in Engine::ALL {
            keep(&mut side.engines, engine.label(), engines[*engine as usize]);
        }
        keep(&mut side.engines, "splice2", splice2);
        for result in ZcResult::ALL {
            keep(&mut side.zero_copy, result.label(), zero_copy[*result as usize]);
        }
        let judged = zero_copy[ZcResult::Copied as usize] + zero_copy[ZcResult::ZeroCopied as usize];
        side.zero_copy_copied_share = (judged > 0).then(|| zero_copy[ZcResult::Copied as usize] as f64 / judged as f64);
        side
    }

    fn core(
        &self,
        core: &super::core::Handle,
        at: usize,
        counted: &Counted,
        from: &CoreTimes,
        to: &CoreTimes,
        sends: bool,
    ) -> CoreUse {
        let bytes = if sends { counted.sent() } else { counted.received };
        let user = (to.thread.user - from.thread.user).max(0.0);
        let system = (to.thread.system - from.thread.system).max(0.0);
        let iowq = (whole(&to.workers) - whole(&from.workers)).max(0.0);
        let both = |pick: fn(&crate::telemetry::process::ThreadTimes) -> u64| {
            (pick(&to.thread) + pick(&to.workers)).saturating_sub(pick(&from.thread) + pick(&from.workers))
        };
        CoreUse {
            core: at as u64,
            cpu: core.cpu.and_then(|_| pinned_to(core.public.tid.load(Ordering::Acquire))),
            node: core.cpu.and_then(node_of),
            bytes,
            user_seconds: user,
            system_seconds: system,
            iowq_seconds: iowq,
            run_delay_seconds: (to.thread.run_delay - from.thread.run_delay).max(0.0),
            voluntary_switches: both(|times| times.voluntary),
            involuntary_switches: both(|times| times.involuntary),
            service_demand: service_demand(user + system + iowq, bytes),
        }
    }

    fn host(&self, from: &Snapshot, to: &Snapshot) -> Vec<HostCpu> {
        let one = |cpu: &usize| {
            let (before, after) = (parse_cpu_modes(&from.stat, *cpu)?, parse_cpu_modes(&to.stat, *cpu)?);
            let mode = |at: usize| (after[at].1 - before[at].1).max(0.0);
            Some(HostCpu {
                cpu: *cpu as u64,
                user: mode(0) + mode(1),
                system: mode(2),
                idle: mode(3),
                iowait: mode(4),
                irq: mode(5),
                softirq: mode(6),
                steal: mode(7),
            })
        };
        self.cpus.iter().filter_map(one).collect()
    }
}

fn keep(map: &mut BTreeMap<String, u64>, name: &str, bytes: u64) {
    if bytes > 0 {
        map.insert(name.to_owned(), bytes);
    }
}

/// The one CPU a thread may run on, as the kernel says.
fn pinned_to(tid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// The NUMA node of a CPU.
fn node_of(cpu: usize) -> Option<u64> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// In the manner of iperf3: percent of one CPU, of both ends.
pub fn utilization(local: &Side, remote: Option<&Side>) -> Utilization {
    let percent = |seconds: f64, side: &Side| if side.seconds > 0.0 { 100.0 * seconds / side.seconds } else { 0.0 };
    let mut used = Utilization {
        host_user: percent(local.user_seconds, local),
        host_system: percent(local.system_seconds, local),
        ..Utilization::default()
    };
    used.host_total = used.host_user + used.host_system;
    if let Some(remote) = remote {
        used.remote_user = percent(remote.user_seconds, remote);
        used.remote_system = percent(remote.system_seconds, remote);
        used.remote_total = used.remote_user + used.remote_system;
    }
    used
}

/// Adds another sink's side to this one: several receivers are one receiving end.
pub fn merge(into: &mut Side, more: Side) {
    into.seconds = into.seconds.max(more.seconds);
    into.bytes += more.bytes;
    into.user_seconds += more.user_seconds;
    into.system_seconds += more.system_seconds;
    into.iowq_seconds += more.iowq_seconds;
    into.control_seconds += more.control_seconds;
    into.voluntary_switches += more.voluntary_switches;
    into.involuntary_switches += more.involuntary_switches;
    into.enters += more.enters;
    into.ops += more.ops;
    into.completions += more.completions;
    let busy = into.seconds_per_call * into.calls as f64 + more.seconds_per_call * more.calls as f64;
    into.calls += more.calls;
    into.seconds_per_call = if into.calls == 0 { 0.0 } else { busy / into.calls as f64 };
    into.short += more.short;
    into.again += more.again;
    into.waits += more.waits;
    into.cores.extend(more.cores);
    into.host.extend(more.host);
    let softirq: f64 = into.host.iter().map(|cpu| cpu.softirq + cpu.irq).sum();
    let cpu = into.user_seconds + into.system_seconds;
    into.service_demand = service_demand(cpu, into.bytes);
    into.service_demand_with_softirq = service_demand(cpu + softirq, into.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_receivers_are_one_end() {
        let side = |bytes, cpu| Side {
            seconds: 1.0,
            bytes,
            user_seconds: cpu,
            calls: 2,
            seconds_per_call: 0.5,
            ..Side::default()
        };
        let mut both = side(1 << 20, 0.25);
        merge(&mut both, Side { seconds_per_call: 1.5, ..side(1 << 20, 0.75) });
        assert_eq!((both.bytes, both.calls, both.seconds_per_call), (2 << 20, 4, 1.0));
        assert!((both.service_demand - 1e6 / 2048.0).abs() < 1e-9);
        let used = utilization(&both, Some(&side(1, 0.5)));
        assert_eq!((used.host_total, used.remote_total), (100.0, 50.0));
    }
}
