//! Messages from the control thread to a shard: an eventfd that the shard's ring polls, and the latest order.
//!
//! Orders only ever grow (run, drain, stop), so one atomic holds the whole conversation and nothing can be lost. Tasks
//! that wait for what another core does (a fill of the cache) are woken through it too: by number, which a task that has
//! ended makes a spurious wake and nothing worse.

use crate::ring::TaskId;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// What a shard is told to do; later orders replace earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Order {
    /// Serve.
    Run = 0,
    /// Accept nothing new, finish what is in flight, close idle connections.
    Drain = 1,
    /// Close everything now.
    Stop = 2,
}

/// One shard's mailbox.
#[derive(Debug)]
pub struct Mailbox {
    order: AtomicU8,
    event: File,
    tasks: Mutex<Vec<TaskId>>,
}

impl Mailbox {
    /// An empty mailbox over an eventfd.
    pub fn new(event: std::os::fd::OwnedFd) -> Self {
        Self { order: AtomicU8::new(Order::Run as u8), event: File::from(event), tasks: Mutex::default() }
    }
    /// Raises the order (never lowers it) and wakes the shard.
    pub fn send(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        self.wake();
    }
    /// Wakes the shard without a new order.
    pub fn wake(&self) {
        // An eventfd write fails only at u64::MAX - 1 pending wakes, when the shard is awake anyway.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }
    /// Wakes tasks of the shard, from another thread.
    pub fn wake_tasks(&self, tasks: &[TaskId]) {
        let Ok(mut waiting) = self.tasks.lock() else { return };
        let quiet = waiting.is_empty();
        waiting.extend_from_slice(tasks);
        drop(waiting);
        // Whoever found it empty rings; the others' tasks are taken with that ring.
        if quiet {
            self.wake();
        }
    }
    /// Hands the tasks woken since the last time to `each`; the shard calls it when its watch fired.
    pub fn woken(&self, each: impl FnMut(TaskId)) {
        let tasks = self.tasks.lock().map(|mut tasks| std::mem::take(&mut *tasks)).unwrap_or_default();
        tasks.into_iter().for_each(each);
    }
    /// The latest order.
    pub fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Run,
            1 => Order::Drain,
            _ => Order::Stop,
        }
    }
    /// The descriptor the shard's ring watches.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    /// Takes the wakes that have arrived; the shard calls it when its watch fired.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // EAGAIN: somebody took them already.
        let _ = (&self.event).read(&mut count);
    }
}
