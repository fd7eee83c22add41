//! A hashed timing wheel, pure: deadlines of connections without a ring operation each.
//!
//! Deadlines move later all the time (every byte of progress) and are almost never met, so the wheel is lazy: an entry
//! fires when it was first set to, and its owner looks whether the deadline is still there or sets a new one.

use crate::clock::Nanos;
use std::time::Duration;

/// 64 ms a slot: no timeout of a server needs better, and an idle core wakes seldom.
const TICK: u64 = 64_000_000;
/// 1024 slots are 65 s; later deadlines wait in the last slot and are set again.
const SLOTS: u64 = 1024;

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    slots: Vec<Vec<(Nanos, u64)>>,
    /// Tick up to which everything has fired.
    tick: u64,
    entries: usize,
}

impl Wheel {
    /// An empty wheel that starts `now`.
    pub fn new(now: Nanos) -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), tick: now.0 / TICK, entries: 0 }
    }

    /// Sets an entry: `key` fires at or up to one tick after `at`.
    pub fn set(&mut self, at: Nanos, key: u64) {
        let due = at.0.div_ceil(TICK).max(self.tick + 1).min(self.tick + SLOTS - 1);
        self.slots[(due % SLOTS) as usize].push((at, key));
        self.entries += 1;
    }

    /// Hands every entry that is due to `fire`, with the time it was set for.
    pub fn expire(&mut self, now: Nanos, mut fire: impl FnMut(Nanos, u64)) {
        let until = now.0 / TICK;
        // After a long sleep every slot is visited once, not once per lap.
        let first = (self.tick + 1).max(until.saturating_sub(SLOTS - 1));
        for tick in first..=until {
            self.tick = tick;
            let due = std::mem::take(&mut self.slots[(tick % SLOTS) as usize]);
            self.entries -= due.len();
            for (at, key) in due {
                if at.0.div_ceil(TICK) <= until { fire(at, key) } else { self.set(at, key) }
            }
        }
        self.tick = self.tick.max(until);
    }

    /// How long until something could be due; `None` when nothing is set.
    pub fn next(&self, now: Nanos) -> Option<Duration> {
        if self.entries == 0 {
            return None;
        }
        let due = (1..SLOTS).find(|ahead| !self.slots[((self.tick + ahead) % SLOTS) as usize].is_empty())?;
        Some(Nanos((self.tick + due) * TICK).since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fired(wheel: &mut Wheel, now: Nanos) -> Vec<u64> {
        let mut keys = Vec::new();
        wheel.expire(now, |_, key| keys.push(key));
        keys.sort_unstable();
        keys
    }

    #[test]
    fn nothing_fires_early_and_everything_fires_once() {
        let mut wheel = Wheel::new(Nanos(0));
        wheel.set(Nanos(1_000_000_000), 1);
        wheel.set(Nanos(200_000_000_000), 2);
        assert_eq!(fired(&mut wheel, Nanos(999_000_000)), Vec::<u64>::new());
        assert_eq!(fired(&mut wheel, Nanos(1_064_000_000)), [1]);
        assert_eq!(fired(&mut wheel, Nanos(199_000_000_000)), Vec::<u64>::new());
        assert_eq!(fired(&mut wheel, Nanos(200_100_000_000)), [2]);
        assert_eq!(wheel.next(Nanos(0)), None);
    }

    proptest! {
        #[test]
        fn any_deadlines_over_any_steps(
            sets in proptest::collection::vec(0u64..300_000, 1..60),
            steps in proptest::collection::vec(1u64..70_000, 1..60),
        ) {
            let mut wheel = Wheel::new(Nanos(0));
            for (key, ms) in sets.iter().enumerate() {
                wheel.set(Nanos(ms * 1_000_000), key as u64);
            }
            let mut left: Vec<bool> = vec![true; sets.len()];
            let mut now = 0;
            for step in steps {
                now += step;
                let at = Nanos(now * 1_000_000);
                let mut early = None;
                wheel.expire(at, |set, key| {
                    if set > at || !left[key as usize] { early = Some(key) }
                    left[key as usize] = false;
                });
                prop_assert_eq!(early, None);
                for (key, ms) in sets.iter().enumerate() {
                    prop_assert!(!(left[key] && ms * 1_000_000 + TICK <= at.0), "{} is late", key);
                }
                if let Some(wait) = wheel.next(at) {
                    let soonest = sets.iter().zip(&left).filter(|(_, left)| **left).map(|(ms, _)| ms * 1_000_000).min();
                    let wake = at.after(wait).0;
                    prop_assert!(soonest.is_some_and(|soonest| wake <= soonest.max(at.0) + 2 * TICK));
                }
            }
        }
    }
}
