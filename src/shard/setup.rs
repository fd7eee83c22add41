//! What every core's thread sets up before its first turn: the ring's features, its arena, its share of RLIMIT_MEMLOCK.

use crate::error::{Error, Result, describe};
use crate::ring::buffers::{ARENA_BUFFER, Arena};
use crate::ring::kernel::{Kernel, SetupFlags};
use crate::sys;
use crate::telemetry::tally::Tally;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A core that may register less than this makes its queues small.
pub const TIGHT: usize = 1 << 20;

/// Tries again for a while: a ring that was closed gives its locked memory back a moment later: ENOMEM may pass.
pub fn patiently<T>(mut step: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    for _ in 0..10 {
        match step() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
    step()
}

/// What the first core's ring came to.
#[derive(Clone, Debug)]
pub struct RingFeatures {
    /// The rung of the set-up ladder.
    pub setup: SetupFlags,
    /// Bytes registered for zero-copy sends and fixed reads; 0 where RLIMIT_MEMLOCK allows none.
    pub arena_bytes: usize,
    /// Waiting is not accounted as iowait.
    pub no_iowait: bool,
    /// What is worse than it could be, as (kind, words).
    pub warnings: Vec<(&'static str, String)>,
}

impl RingFeatures {
    /// For the start-up line.
    pub fn describe(&self) -> String {
        let mut names = vec!["ring"];
        for (name, on) in self.flags() {
            if on && name != "registered_buffers" {
                names.push(name);
            }
        }
        names.join(" ")
    }

    /// As label values of `ringway_capability_enabled`.
    pub fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("defer_taskrun", self.setup.defer_taskrun),
            ("single_issuer", self.setup.single_issuer),
            ("no_sqarray", self.setup.no_sqarray),
            ("coop_taskrun", self.setup.coop_taskrun),
            ("submit_all", self.setup.submit_all),
            ("registered_buffers", self.arena_bytes > 0),
        ]
    }
}

/// Registers the arena, smaller where RLIMIT_MEMLOCK wants it; what cannot be registered still serves, by copies.
///
/// # Errors
/// The arena cannot be mapped.
pub fn register_arena(
    kernel: &Kernel,
    want: usize,
    lockable: Option<usize>,
    tally: &Arc<Tally>,
    features: &mut RingFeatures,
) -> Result<Rc<Arena>> {
    const RAISE: &str = "raise RLIMIT_MEMLOCK (LimitMEMLOCK= in systemd, --ulimit memlock in Docker)";
    let map = |bytes| Arena::new(bytes, Arc::clone(tally)).map_err(|error| Error::os("map the arena", &error));
    let mut bytes = lockable.map_or(want, |most| want.min(most / ARENA_BUFFER * ARENA_BUFFER));
    let mut why = "its share of RLIMIT_MEMLOCK is too small".to_owned();
    while bytes >= ARENA_BUFFER {
        let arena = map(bytes)?;
        match kernel.register_arena(&arena) {
            Ok(()) => {
                features.arena_bytes = arena.bytes();
                if bytes < want {
                    let (got, want) = (bytes >> 10, want >> 10);
                    let text = format!("only {got} KiB of {want} KiB per core could be registered: {RAISE}");
                    features.warnings.push(("memlock", text));
                }
                return Ok(arena);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => bytes /= 2,
            Err(error) => {
                why = describe(&error);
                break;
            }
        }
    }
    let text = format!("no buffer could be registered ({why}), zero-copy sends pin memory one by one: {RAISE}");
    features.warnings.push(("memlock", text));
    map(want)
}

/// Bytes each core may register, so that the first does not take all; `None` with CAP_IPC_LOCK or without a limit.
pub fn lockable(cores: usize) -> Option<usize> {
    /// Queues and receive rings of one core, which count too.
    const RINGS: u64 = 256 << 10;
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let (soft, _) = sys::rlimit(libc::RLIMIT_MEMLOCK).ok()?;
    if effective & CAP_IPC_LOCK != 0 || soft == libc::RLIM_INFINITY {
        return None;
    }
    let cores = cores as u64;
    Some((soft.saturating_sub(cores * RINGS) / cores.max(1)) as usize)
}
