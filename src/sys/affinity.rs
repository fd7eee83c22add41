//! CPUs and pinning: one ring thread stays on one CPU for its life, and its io-wq workers with it.

#![allow(unsafe_code)]

use std::io;

/// A CPU set holding exactly `cpu`; `None` if the number does not fit the kernel's set.
pub fn only(cpu: usize) -> Option<libc::cpu_set_t> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return None;
    }
    // SAFETY: cpu_set_t is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` was checked against the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    Some(set)
}

/// Pins the calling thread to one CPU (sched_setaffinity(2)); EINVAL if it is offline or outside the cpuset.
pub fn pin(cpu: usize) -> io::Result<()> {
    let set = only(cpu).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the set is live and of the size given; 0 means the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The CPU the calling thread runs on now.
pub fn current() -> Option<usize> {
    // SAFETY: takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Makes the calling thread run only when nobody else wants the CPU (SCHED_IDLE, sched(7)).
pub fn idle_priority() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sched_param, and its priority must be 0 for this policy.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is live for the call; 0 names the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_runs_where_it_was_pinned() {
        let cpu = super::current().expect("sched_getcpu");
        std::thread::spawn(move || {
            super::pin(cpu).expect("pin to the CPU we run on");
            assert_eq!(super::current(), Some(cpu));
        })
        .join()
        .expect("thread");
        assert!(super::only(1 << 20).is_none());
    }
}
