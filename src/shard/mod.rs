//! One shard per CPU: an executor, timers, a mailbox, and what the control thread may see of it.
//!
//! The data path's loop itself lives in `serve::worker`; this layer knows no request. May import: `ring`, `sys`,
//! `clock`, `telemetry::tally`.

pub mod exec;
pub mod mailbox;
pub mod patience;
pub mod setup;
pub mod stock;
pub mod timer;

use crate::telemetry::tally::Tally;
use mailbox::Mailbox;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};

/// What the control thread may see of a shard: plain cells and a mailbox, nothing of the data path.
#[derive(Debug)]
pub struct ShardPublic {
    /// Index of the worker (the `core` label).
    pub core: usize,
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// Kernel thread id of the ring thread once it runs, 0 before; its io-wq helpers are named `iou-wrk-<tid>`.
    pub tid: AtomicI32,
    /// Every listener of this shard accepts.
    pub ready: AtomicBool,
    /// The ring thread has ended.
    pub ended: AtomicBool,
    /// What it counts.
    pub tally: Arc<Tally>,
    /// How it is told to drain and stop.
    pub mailbox: Mailbox,
}
