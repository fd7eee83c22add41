//! A deadline for what a task awaits: it moves as the work moves, and costs one entry in the wheel, not one per step.
//!
//! The wheel wakes the task by its number; the future that is pending then looks at the clock itself, so that a wake
//! too many changes nothing. Invariant: while a future is pending under a [`Patience`], the wheel holds an entry for its
//! task that fires no later than a tick after the deadline.

use super::timer::Wheel;
use crate::clock::{Clock, Nanos};
use crate::ring::Ring;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Keys of the wheel that are tasks carry this bit; a connection's key never has it.
pub const TASK_KEY: u64 = 1 << 63;

/// One core's wheel, and what a deadline needs beside it.
#[derive(Debug)]
pub struct Timers {
    /// Deadlines of connections and tasks.
    pub wheel: RefCell<Wheel>,
    ring: Rc<Ring>,
    clock: Clock,
}

/// The time was up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut;

impl Timers {
    /// Timers over an empty wheel.
    pub fn new(ring: Rc<Ring>, clock: Clock) -> Rc<Self> {
        Rc::new(Self { wheel: RefCell::new(Wheel::new(clock.now())), ring, clock })
    }

    /// Now, precisely.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// A deadline `after` now.
    pub fn patience(self: &Rc<Self>, after: Duration) -> Patience {
        Patience {
            timers: Rc::clone(self),
            until: Cell::new(self.now().after(after)),
            armed: Cell::new(Nanos(u64::MAX)),
        }
    }
}

/// A deadline.
#[derive(Debug)]
pub struct Patience {
    timers: Rc<Timers>,
    until: Cell<Nanos>,
    /// When the earliest live entry of the wheel fires.
    armed: Cell<Nanos>,
}

impl Patience {
    /// Moves the deadline to `after` now.
    pub fn renew(&self, after: Duration) {
        self.until.set(self.timers.now().after(after));
    }

    /// Awaits `work` until the deadline; what it was doing is dropped when the time is up.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, TimedOut> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            let now = self.timers.now();
            if now >= self.until.get() {
                return Poll::Ready(Err(TimedOut));
            }
            if self.armed.get() <= now {
                self.armed.set(Nanos(u64::MAX));
            }
            if self.until.get() < self.armed.get() {
                self.armed.set(self.until.get());
                let key = TASK_KEY | u64::from(self.timers.ring.current().0);
                self.timers.wheel.borrow_mut().set(self.until.get(), key);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::TaskId;
    use crate::ring::sim::{Faults, Sim};
    use crate::telemetry::tally::Tally;
    use std::future::pending;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    #[test]
    fn a_pending_wait_ends_with_its_time_and_its_task_is_woken() {
        let clock = Clock::start();
        let ring = Rc::new(Ring::simulated(Sim::new(1, Faults::NONE, None), 8, None, Arc::new(Tally::new(1)), clock));
        ring.set_current(TaskId(7));
        let timers = Timers::new(ring, clock);
        let patience = timers.patience(Duration::from_millis(20));
        let mut wait = pin!(patience.within(pending::<()>()));
        let mut poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert!(poll().is_pending(), "and a second look sets no second entry");
        std::thread::sleep(Duration::from_millis(100));
        let mut keys = Vec::new();
        timers.wheel.borrow_mut().expire(timers.now(), |_, key| keys.push(key));
        assert_eq!(keys, [TASK_KEY | 7]);
        assert_eq!(poll(), Poll::Ready(Err(TimedOut)));
    }
}
