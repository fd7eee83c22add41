//! What flows count: per core and per flow, each cell written by one thread and read by the one that controls.

use super::latency::Latencies;
use crate::telemetry::tally::Cell;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// What the flows of one core count beside the tally of its ring and mover.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests answered, or files sent whole.
    pub requests: Cell,
    /// Requests that failed.
    pub errors: Cell,
    /// Bytes received.
    pub received: Cell,
    /// Bytes of `received` that are bodies of responses.
    pub body: Cell,
    /// Calls and operations that moved bytes, beside those the mover counts.
    pub calls: Cell,
    /// Their nanoseconds.
    pub call_ns: Cell,
    /// Those that moved less than asked.
    pub short: Cell,
    /// Those that found the socket full or empty.
    pub again: Cell,
    /// Waits for a socket, beside those the mover counts.
    pub waits: Cell,
    /// Bytes by splice(2) on the ring thread.
    pub splice2: Cell,
    /// Bytes from memory by `send`.
    pub send: Cell,
    /// Bytes from memory by `send-zc`.
    pub send_zc: Cell,
    /// Blocks that were checked and right.
    pub verified: Cell,
    /// Drop every flow.
    pub clear: AtomicBool,
    /// What went wrong first.
    trouble: Mutex<Option<String>>,
    /// How long requests took.
    pub latencies: Latencies,
}

impl Counts {
    /// Remembers what went wrong, if it is the first.
    pub fn fail(&self, what: String) {
        if let Ok(mut trouble) = self.trouble.lock() {
            trouble.get_or_insert(what);
        }
    }

    /// Forgets what went wrong, before the next repeat.
    pub fn forgive(&self) {
        if let Ok(mut trouble) = self.trouble.lock() {
            *trouble = None;
        }
    }

    /// What went wrong first.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().ok().and_then(|trouble| trouble.clone())
    }
}

/// What one flow counts.
#[derive(Debug, Default)]
pub struct FlowCount {
    /// Bytes its socket took.
    pub sent: Cell,
    /// Bytes its socket gave.
    pub received: Cell,
    /// Blocks that were checked and right.
    pub verified: Cell,
    /// It has ended.
    pub ended: AtomicBool,
}
