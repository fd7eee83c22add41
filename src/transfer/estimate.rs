//! Pure: what the kernel's usage reports say about one route.
//!
//! Loopback, veth and packet taps copy every zero-copy send; nothing but the report tells. Over half of the last 64
//! copied means: use a plain send here, and try again after a minute.

use crate::clock::Nanos;
use std::time::Duration;

/// How long a route that copies is left alone.
pub const RETRY_AFTER: Duration = Duration::from_secs(60);

const WINDOW: u32 = 64;
/// Enough reports to judge by after a fresh start: a wrong guess costs 16 sends.
const ENOUGH: u32 = 16;

/// The last reports of one route.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// One bit a report, newest lowest: 1 is copied.
    window: u64,
    seen: u32,
    closed_until: Option<Nanos>,
}

impl Estimate {
    /// Takes one report.
    pub fn report(&mut self, copied: bool, now: Nanos) {
        self.window = self.window << 1 | u64::from(copied);
        self.seen = (self.seen + 1).min(WINDOW);
        if self.seen >= ENOUGH && self.window.count_ones() * 2 > self.seen {
            self.closed_until = Some(now.after(RETRY_AFTER));
        }
    }

    /// Whether zero-copy sends are known to be copied now.
    pub fn copies(&mut self, now: Nanos) -> bool {
        match self.closed_until {
            Some(until) if now < until => true,
            Some(_) => {
                // Try again from nothing: the route may have changed.
                *self = Self::default();
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_copies_is_left_alone_for_a_minute() {
        let mut estimate = Estimate::default();
        let now = Nanos(5);
        for _ in 0..ENOUGH - 1 {
            estimate.report(true, now);
            assert!(!estimate.copies(now));
        }
        estimate.report(true, now);
        assert!(estimate.copies(now));
        assert!(estimate.copies(now.after(RETRY_AFTER - Duration::from_nanos(1))));
        assert!(!estimate.copies(now.after(RETRY_AFTER)));
        assert!(!estimate.copies(now.after(RETRY_AFTER)), "and it starts from nothing");
    }

    #[test]
    fn half_copied_is_still_worth_it() {
        let mut estimate = Estimate::default();
        for report in 0..200 {
            estimate.report(report % 2 == 0, Nanos(report));
        }
        // 32 of 64 is not over half; the odd window sizes of the start are the only exception looked at here.
        let mut settled = Estimate { window: u64::MAX / 3, seen: 64, closed_until: None };
        settled.report(false, Nanos(1));
        assert!(!settled.copies(Nanos(1)));
    }
}
