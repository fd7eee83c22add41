//! What the kernel tells about a process: CPU time, memory, threads, and its end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// Waits for a child's end without a busy loop: a pidfd is readable once it has ended.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Ok(Some(status)) = child.try_wait() {
        return Some(status);
    }
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("pidfd_open");
    let timeout = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&timeout));
    child.try_wait().expect("waitpid")
}

/// Children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let told = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    told.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// CPU time of processes from two accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// Nanoseconds on a CPU of the threads alive now, io-wq workers included (`task/*/schedstat`); exact, but threads
    /// that ended are gone from it.
    pub alive: u64,
    /// `utime + stime` of the whole group, ended threads included; rounded down to ticks of 10 ms.
    pub group: u64,
}

impl Cpu {
    pub fn of(pids: &[u32]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let told = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                sum.alive += told.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            }
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Fields are counted behind the command's closing parenthesis: utime is 14, stime 15 of the whole line.
            let fields: Vec<u64> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .skip(11)
                .take(2)
                .filter_map(|word| word.parse().ok())
                .collect();
            let hertz = rustix::param::clock_ticks_per_second().max(1);
            sum.group += fields.iter().sum::<u64>() * (1_000_000_000 / hertz);
        }
        sum
    }

    /// Nanoseconds since `earlier`: the exact account, unless threads ended meanwhile and took their part with them.
    pub fn since(self, earlier: Self) -> u64 {
        let alive = self.alive.saturating_sub(earlier.alive);
        let group = self.group.saturating_sub(earlier.group);
        // Rounding explains two ticks per process; beyond that the group's account knows of ended threads.
        if group > alive + alive / 50 + 40_000_000 { group } else { alive }
    }
}

fn status_field(pid: u32, name: &str) -> u64 {
    let told = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    told.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Resident bytes.
pub fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| status_field(*pid, "VmRSS") * 1024).sum()
}

/// Threads, io-wq workers included.
pub fn threads(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| status_field(*pid, "Threads")).sum()
}

/// Open descriptors.
pub fn descriptors(pids: &[u32]) -> usize {
    pids.iter().map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)).sum()
}

/// Raises this process's limit of open descriptors as far as it may go, and says how far that was.
pub fn raise_descriptors(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(wanted);
    // Root may raise the hard limit too.
    for maximum in [hard.max(wanted), hard] {
        let current = wanted.max(now.current.unwrap_or(0)).min(maximum);
        if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: Some(maximum) }).is_ok() {
            return current;
        }
    }
    now.current.unwrap_or(0)
}

/// Puts the calling thread on one CPU.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// CPUs this process may use.
pub fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).expect("affinity");
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}
