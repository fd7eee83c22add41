//! Time, read in one place: the only `Instant::now()` in the tree is here.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic nanoseconds since the process's first reading.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
    /// This plus a duration, saturating.
    pub fn after(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The real clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at zero.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }
    /// Now.
    #[inline]
    pub fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }
    /// Wall-clock time since 1970, for Date headers and revalidation stamps.
    pub fn unix(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
