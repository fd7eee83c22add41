//! Work at idle priority: what the machine can still do while something else runs, which no accounting can hide.
//!
//! One thread per CPU, SCHED_IDLE (sched(7)): it gets what nobody else wants. What it counts are rounds of a fixed
//! calculation that stays in registers, so that caches and memory are left to what is measured.

use super::ends::Interrupted;
use crate::clock::{Clock, Nanos};
use crate::error::{Error, Kind, Result};
use crate::sys::affinity;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Rounds between two looks at the flag: some tens of microseconds.
const ROUNDS: u64 = 20_000;

/// Soaks up what is left of some CPUs.
#[derive(Debug)]
pub struct Soaker {
    clock: Clock,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// Work at a moment, or between two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Soaked {
    at: Nanos,
    seconds: f64,
    batches: u64,
}

impl Soaked {
    /// Work between `before` and this.
    pub fn since(self, before: Self) -> Self {
        Self { at: self.at, seconds: self.at.since(before.at).as_secs_f64(), batches: self.batches - before.batches }
    }

    /// Work a second.
    pub fn pace(self) -> f64 {
        if self.seconds > 0.0 { self.batches as f64 / self.seconds } else { 0.0 }
    }
}

impl Soaker {
    /// Starts one thread per CPU.
    ///
    /// # Errors
    /// A CPU cannot be had, or the kernel has no idle priority.
    pub fn start(cpus: &[usize]) -> Result<Self> {
        if cpus.is_empty() {
            return Err(Error::new(Kind::Runtime, "soak up idle time", "there is no CPU to do it on"));
        }
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (tell, told) = std::sync::mpsc::channel();
        let mut soaker =
            Self { clock: Clock::start(), stop: Arc::clone(&stop), done: Arc::clone(&done), threads: Vec::new() };
        for cpu in cpus.iter().copied() {
            let (stop, done, tell) = (Arc::clone(&stop), Arc::clone(&done), tell.clone());
            let work = move || {
                let ready = affinity::pin(cpu).and_then(|()| affinity::idle_priority());
                let fine = ready.is_ok();
                let _ = tell.send(ready);
                let mut state = cpu as u64 + 1;
                while fine && !stop.load(Ordering::Relaxed) {
                    for _ in 0..ROUNDS {
                        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    }
                    state = black_box(state);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            };
            let thread = std::thread::Builder::new().name("soak".into()).spawn(work);
            soaker.threads.push(thread.map_err(|error| Error::os("start a soaker", &error))?);
        }
        drop(tell);
        for ready in told.iter().take(cpus.len()) {
            ready.map_err(|error| Error::os("run at idle priority", &error))?;
        }
        Ok(soaker)
    }

    /// What was done up to now.
    pub fn look(&self) -> Soaked {
        Soaked { at: self.clock.now(), seconds: 0.0, batches: self.done.load(Ordering::Relaxed) }
    }

    /// What is done in so long.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn after(&self, time: Duration, interrupted: &Interrupted) -> Result<Soaked> {
        let before = self.look();
        while self.look().since(before).seconds < time.as_secs_f64() {
            if interrupted.is_asked() {
                return Err(Error::new(Kind::Runtime, "soak up idle time", "interrupted"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self.look().since(before))
    }
}

impl Drop for Soaker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_works_and_stops() {
        let cpus = crate::config::allowed_cpus(&std::fs::read_to_string("/proc/self/status").expect("status"));
        let soaker = Soaker::start(&cpus[..1]).expect("a soaker");
        let done = soaker.after(Duration::from_millis(200), &Interrupted::default()).expect("time");
        assert!(done.pace() > 0.0 && done.seconds >= 0.2, "{done:?}");
        assert!(Soaker::start(&[]).is_err());
        assert!(Soaker::start(&[100_000]).is_err());
    }
}
