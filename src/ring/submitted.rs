//! The future of one operation: await it, or drop it and the slot is orphaned (R3).

use super::Ring;
use super::op::Op;
use super::slot::{Completion, Owner};
use super::token::Token;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[derive(Debug)]
enum State {
    /// Not yet in the table: not polled so far, or the table is full.
    Waiting(Op),
    InFlight(Token),
    Done,
}

/// An operation on its way. Wakes the task that first polled it, by the ring's own ready queue (no waker is kept).
#[derive(Debug)]
#[must_use = "an operation starts when its future is first polled"]
pub struct Submitted<'r> {
    ring: &'r Ring,
    state: State,
}

impl<'r> Submitted<'r> {
    pub(super) fn new(ring: &'r Ring, op: Op) -> Self {
        Self { ring, state: State::Waiting(op) }
    }
}

impl Future for Submitted<'_> {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Completion> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Waiting(op) => {
                let task = self.ring.current();
                self.state = match self.ring.start(op, Owner::Task(task)) {
                    Ok(token) => State::InFlight(token),
                    Err(op) => {
                        // R2: a full table means wait, first come first served.
                        self.ring.tally.hit(crate::telemetry::tally::Limit::Ops);
                        self.ring.waiters.borrow_mut().push_back(task);
                        State::Waiting(op)
                    }
                };
                Poll::Pending
            }
            State::InFlight(token) => {
                let mut table = self.ring.table.borrow_mut();
                match table.take(token) {
                    Some(completion) => {
                        self.ring.wake_waiter(&table);
                        Poll::Ready(completion)
                    }
                    None => {
                        drop(table);
                        self.state = State::InFlight(token);
                        Poll::Pending
                    }
                }
            }
            State::Done => panic!("an operation was polled after its result was taken"),
        }
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let State::InFlight(token) = self.state else { return };
        let in_flight = self.ring.table.borrow_mut().orphan(token);
        if in_flight {
            self.ring.tally.ring_orphans.add(1);
            self.ring.stage_cancel(token);
        } else {
            self.ring.wake_waiter(&self.ring.table.borrow());
        }
    }
}
