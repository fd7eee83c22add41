//! Messages from the control thread to a shard: an eventfd that the shard's ring polls, and the latest order.
//!
//! Orders only ever grow (run, drain, stop), so one atomic holds the whole conversation and nothing can be lost.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
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
}

impl Mailbox {
    /// An empty mailbox over an eventfd.
    pub fn new(event: std::os::fd::OwnedFd) -> Self {
        Self { order: AtomicU8::new(Order::Run as u8), event: File::from(event) }
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
