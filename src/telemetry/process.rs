//! What /proc says of us: CPU of each ring thread and its io-wq helpers, switches, memory, descriptors.
//!
//! Helpers exit after five idle seconds and take their numbers with them, so whoever uses this samples about once a
//! second and [`Workers`] keeps what was seen: its sums never fall. Parsers are pure; the root is a parameter.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// CPU time and switches of one thread.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ThreadTimes {
    /// Seconds in user mode.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// Seconds runnable but not running.
    pub run_delay: f64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
}

/// Clock ticks a second of /proc's times: fixed at 100 for user space on every Linux architecture in use.
const TICKS: f64 = 100.0;

/// utime and stime in ticks, from the text of a stat file (the name may hold spaces and parentheses).
pub fn parse_stat_times(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The thread's times from its stat, schedstat and status texts: schedstat is exact, stat only tells the split.
pub fn parse_thread(stat: &str, schedstat: &str, status: &str) -> Option<ThreadTimes> {
    let (user, system) = parse_stat_times(stat)?;
    let mut sched = schedstat.split_ascii_whitespace();
    let run: f64 = sched.next()?.parse::<u64>().ok()? as f64 / 1e9;
    let run_delay = sched.next()?.parse::<u64>().ok()? as f64 / 1e9;
    let ticks = user + system;
    // Before the first tick nobody knows; a server's time is mostly the kernel's.
    let share = if ticks == 0 { 0.0 } else { user as f64 / ticks as f64 };
    let line = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse().ok()
    };
    Some(ThreadTimes {
        user: run * share,
        system: run * (1.0 - share),
        run_delay,
        voluntary: line("voluntary_ctxt_switches:").unwrap_or(0),
        involuntary: line("nonvoluntary_ctxt_switches:").unwrap_or(0),
    })
}

/// Seconds by mode of one CPU, from the text of /proc/stat.
pub fn parse_cpu_modes(stat: &str, cpu: usize) -> Option<[(&'static str, f64); 8]> {
    const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    let name = format!("cpu{cpu} ");
    let mut fields = stat.lines().find_map(|line| line.strip_prefix(&name))?.split_ascii_whitespace();
    let mut modes = [("", 0.0); 8];
    for (slot, mode) in modes.iter_mut().zip(MODES) {
        *slot = (mode, fields.next()?.parse::<u64>().ok()? as f64 / TICKS);
    }
    Some(modes)
}

/// ListenOverflows from the text of /proc/net/netstat.
pub fn parse_listen_overflows(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let at = lines.next()?.split(' ').position(|name| name == "ListenOverflows")?;
    lines.next()?.split(' ').nth(at)?.parse().ok()
}

/// Process-wide numbers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ProcessTimes {
    /// CPU seconds.
    pub cpu: f64,
    /// Resident bytes.
    pub resident: u64,
    /// Virtual bytes.
    pub virtual_: u64,
    /// Threads.
    pub threads: u64,
    /// Unix seconds of the start.
    pub start: f64,
    /// Bytes read from storage.
    pub storage_read: u64,
    /// Open descriptors.
    pub fds: u64,
    /// Most descriptors allowed.
    pub max_fds: u64,
    /// RLIMIT_MEMLOCK; `None` is unlimited.
    pub memlock: Option<u64>,
}

/// One ring thread with its helpers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CoreTimes {
    /// The ring thread.
    pub thread: ThreadTimes,
    /// Its io-wq helpers, gone ones included.
    pub workers: ThreadTimes,
    /// Helpers alive.
    pub alive: u64,
}

/// Sums over helpers that come and go.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    gone: ThreadTimes,
    alive: HashMap<i32, ThreadTimes>,
}

impl Workers {
    /// Takes what is alive now; returns the sum over everything ever seen.
    pub fn update(&mut self, now: HashMap<i32, ThreadTimes>) -> ThreadTimes {
        for (tid, last) in &self.alive {
            // A thread id that starts again from less is another thread.
            if now.get(tid).is_none_or(|times| times.user + times.system < last.user + last.system) {
                add(&mut self.gone, last);
            }
        }
        self.alive = now;
        let mut sum = self.gone;
        self.alive.values().for_each(|times| add(&mut sum, times));
        sum
    }
}

fn add(sum: &mut ThreadTimes, more: &ThreadTimes) {
    sum.user += more.user;
    sum.system += more.system;
    sum.run_delay += more.run_delay;
    sum.voluntary += more.voluntary;
    sum.involuntary += more.involuntary;
}

/// Reads /proc for a set of ring threads.
#[derive(Debug)]
pub struct Sampler {
    root: PathBuf,
    cores: Vec<(Workers, ThreadTimes)>,
}

/// Everything one sample has.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// One entry per core.
    pub cores: Vec<CoreTimes>,
    /// The process.
    pub process: ProcessTimes,
    /// The text of /proc/stat, for the CPUs' modes.
    pub stat: String,
    /// ListenOverflows.
    pub listen_overflows: u64,
}

impl Sampler {
    /// A sampler for `cores` ring threads; `root` is /proc but in tests.
    pub fn new(root: &Path, cores: usize) -> Self {
        Self { root: root.to_owned(), cores: vec![Default::default(); cores] }
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn thread(&self, tid: i32) -> Option<ThreadTimes> {
        let file = |name: &str| self.read(&format!("self/task/{tid}/{name}"));
        parse_thread(&file("stat"), &file("schedstat"), &file("status"))
    }

    /// Samples; `tids` are the ring threads in core order (0 where one has not started).
    pub fn sample(&mut self, tids: &[i32]) -> Sample {
        let mut helpers: HashMap<i32, HashMap<i32, ThreadTimes>> = HashMap::new();
        for entry in std::fs::read_dir(self.root.join("self/task")).into_iter().flatten().flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let name = self.read(&format!("self/task/{tid}/comm"));
            let Some(parent) = name.trim().strip_prefix("iou-wrk-").and_then(|tid| tid.parse().ok()) else { continue };
            if let Some(times) = self.thread(tid) {
                helpers.entry(parent).or_default().insert(tid, times);
            }
        }
        let mut cores = Vec::with_capacity(tids.len());
        for (at, tid) in tids.iter().enumerate() {
            let own = self.thread(*tid);
            let now = helpers.remove(tid).unwrap_or_default();
            let alive = now.len() as u64;
            let Some((workers, last)) = self.cores.get_mut(at) else { continue };
            // A thread that has ended keeps its last numbers.
            *last = own.unwrap_or(*last);
            cores.push(CoreTimes { thread: *last, workers: workers.update(now), alive });
        }
        Sample {
            cores,
            process: self.process(),
            stat: self.read("stat"),
            listen_overflows: parse_listen_overflows(&self.read("net/netstat")).unwrap_or(0),
        }
    }

    fn process(&self) -> ProcessTimes {
        let stat = self.read("self/stat");
        let fields: Vec<u64> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
            .unwrap_or_default();
        let field = |at: usize| fields.get(at).copied().unwrap_or(0);
        let limits = self.read("self/limits");
        let limit = |name: &str| {
            let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_ascii_whitespace().next()?.parse().ok()
        };
        let whole = self.read("stat");
        let boot = whole.lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok()).unwrap_or(0.0);
        let io = self.read("self/io");
        ProcessTimes {
            cpu: (field(11) + field(12)) as f64 / TICKS,
            threads: field(17),
            start: boot + field(19) as f64 / TICKS,
            virtual_: field(20),
            resident: field(21) * 4096,
            storage_read: io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok()).unwrap_or(0),
            fds: std::fs::read_dir(self.root.join("self/fd")).map(|dir| dir.count() as u64).unwrap_or(0),
            max_fds: limit("Max open files").unwrap_or(0),
            memlock: limit("Max locked memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a ) (b) R 1 2 3 4 5 6 7 8 9 10 30 70 0 0 20 0 1 0 500 0 0";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        assert_eq!(parse_stat_times(STAT), Some((30, 70)));
        assert_eq!(parse_stat_times("42 (x"), None);
    }

    #[test]
    fn the_exact_total_is_split_as_the_ticks_are() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let times = parse_thread(STAT, "2000000000 500000000 9\n", status).expect("good");
        assert!((times.user - 0.6).abs() < 1e-9 && (times.system - 1.4).abs() < 1e-9);
        assert_eq!((times.run_delay, times.voluntary, times.involuntary), (0.5, 5, 2));
    }

    #[test]
    fn sums_of_helpers_never_fall() {
        let busy = |user: f64| ThreadTimes { user, ..Default::default() };
        let mut workers = Workers::default();
        assert_eq!(workers.update(HashMap::from([(1, busy(1.0)), (2, busy(2.0))])).user, 3.0);
        assert_eq!(workers.update(HashMap::from([(2, busy(2.5))])).user, 3.5, "1 has ended");
        assert_eq!(workers.update(HashMap::from([(2, busy(0.5))])).user, 4.0, "2 is another thread now");
        assert_eq!(workers.update(HashMap::new()).user, 4.0);
    }

    #[test]
    fn modes_of_a_cpu() {
        let stat = "cpu  1 1 1 1 1 1 1 1\ncpu0 9 9 9 9 9 9 9 9 0 0\ncpu1 100 0 200 300 0 0 50 25 0 0\n";
        let modes = parse_cpu_modes(stat, 1).expect("there");
        assert_eq!((modes[0], modes[6], modes[7]), (("user", 1.0), ("softirq", 0.5), ("steal", 0.25)));
        assert_eq!(parse_cpu_modes(stat, 10), None);
    }

    #[test]
    fn overflows_are_found_by_name() {
        assert_eq!(parse_listen_overflows("TcpExt: A ListenOverflows B\nTcpExt: 1 7 3\n"), Some(7));
        assert_eq!(parse_listen_overflows(""), None);
    }

    #[test]
    fn this_very_process_is_seen() {
        let tid = crate::sys::gettid();
        let mut sampler = Sampler::new(Path::new("/proc"), 1);
        let sample = sampler.sample(&[tid]);
        assert!(sample.process.resident > 0 && sample.process.fds > 0 && sample.process.threads > 0);
        // A thread's time is booked when it is switched or ticked; until then a new thread has none.
        let used = |sample: &Sample| sample.cores[0].thread.user + sample.cores[0].thread.system;
        assert!((0..100_000).any(|_| used(&sampler.sample(&[tid])) > 0.0));
    }
}
