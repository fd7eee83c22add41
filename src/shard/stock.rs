//! What one core lends to its tasks: arena buffers and pipes. Who finds none waits in line, and costs nothing meanwhile.
//!
//! Invariant: a task in the line is woken once for every time something came home, and looks again by itself.

use crate::ring::buffers::{Arena, ArenaLease};
use crate::ring::pipes::{Pipe, PipePool};
use crate::ring::{Ring, TaskId};
use crate::telemetry::tally::{Limit, Tally};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Puts the current task into a queue and returns when it is polled again.
pub async fn queue(ring: &Ring, queue: &RefCell<VecDeque<TaskId>>) {
    let mut queued = false;
    poll_fn(|_| {
        if queued {
            return Poll::Ready(());
        }
        queued = true;
        queue.borrow_mut().push_back(ring.current());
        Poll::Pending
    })
    .await;
}

/// The stock.
#[derive(Debug)]
pub struct Stock {
    ring: Rc<Ring>,
    arena: Rc<Arena>,
    pipes: Rc<PipePool>,
    starved: RefCell<VecDeque<TaskId>>,
    tally: Arc<Tally>,
}

impl Stock {
    /// A stock of these.
    pub fn new(ring: Rc<Ring>, arena: Rc<Arena>, pipes: Rc<PipePool>, tally: Arc<Tally>) -> Rc<Self> {
        Rc::new(Self { ring, arena, pipes, starved: RefCell::default(), tally })
    }

    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The pipes.
    pub fn pipes(&self) -> &PipePool {
        &self.pipes
    }

    /// Waits until something has come home.
    pub async fn starve(&self) {
        queue(&self.ring, &self.starved).await;
    }

    /// Borrows an arena buffer, waiting for one if all are lent.
    pub async fn lease(&self) -> ArenaLease {
        loop {
            match self.arena.lease() {
                Some(lease) => return lease,
                None => {
                    self.tally.hit(Limit::Arena);
                    self.starve().await;
                }
            }
        }
    }

    /// Borrows an empty pipe, waiting for one if all are lent.
    pub async fn pipe(&self) -> Pipe {
        loop {
            match self.pipes.lease() {
                Some(pipe) => return pipe,
                None => self.starve().await,
            }
        }
    }

    /// Borrows an empty pipe if there is one now.
    pub fn try_pipe(&self) -> Option<Pipe> {
        self.pipes.lease()
    }

    /// Wakes whoever waits for a buffer or a pipe, if one came home; called once a turn.
    pub fn wake_starved(&self) {
        let arena = self.arena.take_returned();
        if !self.pipes.take_returned() && !arena {
            return;
        }
        let mut starved = self.starved.borrow_mut();
        while let Some(task) = starved.pop_front() {
            self.ring.wake(task);
        }
    }
}
