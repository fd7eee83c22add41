//! A tiny executor for one kind of task: a slot per task, reused without allocating, polled by number.
//!
//! Tasks are woken by the ring's ready queue, which knows them as numbers; no `Waker` is kept. A spurious poll is
//! allowed. Invariant: a future never moves once it was polled (it lives in a pinned box until it ends).

use crate::ring::TaskId;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

/// Boxes kept for reuse after a burst; more are freed, so that memory follows load down.
const SPARE: usize = 256;

/// The executor.
pub struct Exec<F> {
    slots: Vec<Option<Pin<Box<Option<F>>>>>,
    free: Vec<u32>,
    spare: Vec<Pin<Box<Option<F>>>>,
    running: usize,
}

impl<F> std::fmt::Debug for Exec<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("running", &self.running).finish()
    }
}

impl<F: Future<Output = ()>> Default for Exec<F> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), spare: Vec::new(), running: 0 }
    }
}

impl<F: Future<Output = ()>> Exec<F> {
    /// The number the next spawned task will get.
    pub fn next_id(&self) -> TaskId {
        TaskId(self.free.last().copied().unwrap_or(self.slots.len() as u32))
    }

    /// Takes a task in; it runs when it is first polled.
    pub fn spawn(&mut self, future: F) -> TaskId {
        let id = self.next_id();
        let boxed = match self.spare.pop() {
            Some(mut boxed) => {
                boxed.set(Some(future));
                boxed
            }
            None => Box::pin(Some(future)),
        };
        match self.free.pop() {
            Some(at) => self.slots[at as usize] = Some(boxed),
            None => self.slots.push(Some(boxed)),
        }
        self.running += 1;
        id
    }

    /// Polls a task once; a number that no task has is ignored.
    #[inline]
    pub fn poll(&mut self, id: TaskId) {
        let Some(boxed) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let Some(future) = boxed.as_mut().as_pin_mut() else { return };
        if future.poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return;
        }
        if let Some(mut boxed) = self.slots[id.0 as usize].take() {
            boxed.set(None);
            if self.spare.len() < SPARE {
                self.spare.push(boxed);
            }
        }
        self.free.push(id.0);
        self.running -= 1;
    }

    /// Tasks that have not ended.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Drops every task where it stands; operations they await are orphaned (R3).
    pub fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.running = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    #[test]
    fn a_task_runs_to_its_end_and_its_slot_is_used_again() {
        let done = Rc::new(Cell::new(0));
        let make = |polls: u32| {
            let done = Rc::clone(&done);
            async move {
                let mut left = polls;
                poll_fn(|_| {
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    left -= 1;
                    Poll::Pending
                })
                .await;
                done.set(done.get() + 1);
            }
        };
        let mut exec = Exec::default();
        let first = exec.spawn(make(1));
        let second = exec.spawn(make(0));
        exec.poll(second);
        assert_eq!((done.get(), exec.running()), (1, 1));
        exec.poll(first);
        exec.poll(first);
        assert_eq!((done.get(), exec.running()), (2, 0));
        assert!(exec.spawn(make(0)).0 < 2, "slots are reused");
        exec.poll(TaskId(99));
    }
}
