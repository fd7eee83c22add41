//! One flow of the sending end: the payload's cycle into a socket by the engine asked for, until told to stop.
//!
//! Files go by the server's own mover. Memory goes by the same ring operations from an arena buffer that holds the
//! cycle. splice(2) on the ring thread is here only: the server does not use it for files, and the comparison wants it.

use super::core::{Core, Task};
use super::count::FlowCount;
use super::payload::Payload;
use crate::clock::Nanos;
use crate::config::EngineChoice;
use crate::ring::completion::Errno;
use crate::ring::op::Op;
use crate::ring::pipes::Pipe;
use crate::store::file::OpenFile;
use crate::sys;
use crate::telemetry::tally::AbortReason;
use crate::transfer::drive::{Abort, Flow, Order, lost, lost_io};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What moves the bytes of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// The server's engines, or its choice among them.
    Server(EngineChoice),
    /// splice(2) on the ring thread.
    Splice2,
}

impl Engine {
    /// Every engine, as it is given.
    pub const NAMES: [&'static str; 6] = ["auto", "send", "send-zc", "splice", "splice2", "sendfile"];

    /// From what was given.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "auto" => Self::Server(EngineChoice::Auto),
            "send" => Self::Server(EngineChoice::Send),
            "send-zc" => Self::Server(EngineChoice::SendZc),
            "splice" => Self::Server(EngineChoice::Splice),
            "splice2" => Self::Splice2,
            "sendfile" => Self::Server(EngineChoice::Sendfile),
            _ => return None,
        })
    }
}

/// What one flow is to do.
#[derive(Debug)]
pub struct Sending {
    /// Its socket, connected and non-blocking.
    pub socket: OwnedFd,
    /// What to send.
    pub payload: Arc<Payload>,
    /// How.
    pub engine: Engine,
    /// Bytes of one call from memory.
    pub message: usize,
    /// Bytes to send; `None`: until told to stop.
    pub bytes: Option<u64>,
    /// Time between the starts of messages on a schedule; `None`: as fast as it goes.
    pub every: Option<Duration>,
    /// End at the next quantum.
    pub stop: Arc<AtomicBool>,
    /// What it counts.
    pub count: Arc<FlowCount>,
}

/// Starts a flow on its core.
pub fn start(core: &Rc<Core>, sending: Sending) -> Task {
    let core = Rc::clone(core);
    Box::pin(async move {
        let count = Arc::clone(&sending.count);
        if let Err(Abort(reason)) = run(&core, sending).await {
            core.counts.errors.add(1);
            core.counts.fail(match reason {
                AbortReason::ClientReset => "the receiver closed a flow".to_owned(),
                other => format!("a flow ended: {}", other.label()),
            });
        }
        count.ended.store(true, Ordering::Release);
    })
}

async fn run(core: &Rc<Core>, sending: Sending) -> Result<(), Abort> {
    let socket: Rc<OwnedFd> = Rc::new(sending.socket);
    let flow = Flow {
        socket: Rc::clone(&socket),
        route: 0,
        progressed: Cell::new(core.now()),
        pinned: Rc::default(),
        sent: Cell::new(0),
    };
    let job = Job {
        core,
        flow,
        payload: &sending.payload,
        engine: sending.engine,
        message: sending.message,
        bytes: sending.bytes,
        every: sending.every,
        stop: &sending.stop,
        count: &sending.count,
    };
    let done = if sending.payload.files.is_empty() { job.memory().await } else { job.files().await };
    job.count.sent.set(job.flow.sent.get());
    // The receiver sees the end behind the last byte.
    sys::socket::shutdown_send(socket.as_fd());
    done
}

struct Job<'a> {
    core: &'a Rc<Core>,
    flow: Flow,
    payload: &'a Payload,
    engine: Engine,
    message: usize,
    bytes: Option<u64>,
    every: Option<Duration>,
    stop: &'a AtomicBool,
    count: &'a FlowCount,
}

impl Job<'_> {
    /// Bytes that may still be sent; `None`: it is over.
    fn left(&self) -> Option<u64> {
        if self.stop.load(Ordering::Acquire) {
            return None;
        }
        let Some(bytes) = self.bytes else { return Some(u64::MAX) };
        bytes.checked_sub(self.flow.sent.get()).filter(|left| *left > 0)
    }

    /// Waits for the schedule, if there is one.
    async fn due(&self, began: Nanos, number: &mut u32) {
        if let Some(every) = self.every {
            self.core.sleep_until(began.after(every.saturating_mul(*number))).await;
            *number = number.saturating_add(1);
        }
    }

    async fn files(&self) -> Result<(), Abort> {
        let mut files = Vec::with_capacity(self.payload.files.len());
        for (_, file, _) in &self.payload.files {
            let fd = file.as_fd().try_clone_to_owned().map_err(|error| lost_io(&error))?;
            let stat = sys::fstat(fd.as_fd()).map_err(|error| lost_io(&error))?;
            files.push(OpenFile::new(Rc::new(fd), stat, Vec::new()));
        }
        let span = u64::from(self.core.mover.turn_bytes());
        // As the server corks a large body: a full socket takes odd amounts, and each would end in a short segment.
        let corked = self.engine != Engine::Server(EngineChoice::SendZc) && self.every.is_none();
        if corked {
            sys::socket::cork(self.flow.socket.as_fd(), true);
        }
        let (began, mut number) = (self.core.now(), 0);
        let mut pipe = None;
        let mut done = Ok(());
        'all: for file in files.iter().cycle() {
            self.due(began, &mut number).await;
            let mut at = 0;
            while at < file.len() {
                let Some(left) = self.left() else { break 'all };
                let end = file.len().min(at + span.min(left));
                let moved = match self.engine {
                    Engine::Server(choice) => {
                        self.core.mover.send_part(&self.flow, Order { file, start: at, end, choice }).await
                    }
                    Engine::Splice2 => self.splice2(file, at, end, &mut pipe).await,
                };
                self.count.sent.set(self.flow.sent.get());
                if moved.is_err() {
                    done = moved;
                    break 'all;
                }
                at = end;
                self.core.mover.give_way().await;
            }
            self.core.counts.requests.add(1);
        }
        if corked {
            sys::socket::cork(self.flow.socket.as_fd(), false);
        }
        done
    }

    /// splice(2) from the file to a pipe and from the pipe to the socket, both on this thread.
    async fn splice2(&self, file: &OpenFile, mut at: u64, end: u64, kept: &mut Option<Pipe>) -> Result<(), Abort> {
        let pipe = match kept.take() {
            Some(pipe) => pipe,
            None => self.core.mover.stock().pipe().await,
        };
        let counts = &self.core.counts;
        while at < end {
            let began = self.core.now();
            let most = ((end - at) as usize).min(pipe.size() - if at.is_multiple_of(4096) { 0 } else { 4096 });
            let filled = again(|| sys::splice(file.fd().as_fd(), Some(at), pipe.write().as_fd(), most))
                .map_err(|error| lost_io(&error))?;
            if filled == 0 {
                return Err(Abort(AbortReason::FileShrank));
            }
            let mut drained = 0;
            while drained < filled {
                match again(|| sys::splice(pipe.read().as_fd(), None, self.flow.socket.as_fd(), filled - drained)) {
                    Ok(0) => return Err(Abort(AbortReason::SendError)),
                    Ok(n) => {
                        if n < filled - drained {
                            counts.short.add(1);
                        }
                        drained += n;
                        counts.splice2.add(n as u64);
                        self.flow.sent.set(self.flow.sent.get() + n as u64);
                        self.count.sent.set(self.flow.sent.get());
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        counts.again.add(1);
                        self.core.mover.room(&self.flow).await?;
                    }
                    Err(error) => return Err(lost_io(&error)),
                }
            }
            counts.calls.add(2);
            counts.call_ns.add(self.core.now().since(began).as_nanos() as u64);
            at += filled as u64;
        }
        *kept = Some(pipe);
        Ok(())
    }

    async fn memory(&self) -> Result<(), Abort> {
        let cycle = &self.payload.memory;
        let zero_copy = self.engine == Engine::Server(EngineChoice::SendZc);
        let counts = &self.core.counts;
        let (began, mut number) = (self.core.now(), 0);
        let mut lease = None;
        let mut at = 0;
        while let Some(left) = self.left() {
            if at == 0 || self.message < cycle.len() {
                self.due(began, &mut number).await;
            }
            let len = self.message.min(cycle.len() - at).min(usize::try_from(left).unwrap_or(usize::MAX)) as u32;
            let started = self.core.now();
            let result = if zero_copy {
                self.memory_zc(at, len).await
            } else {
                let held = match lease.take() {
                    Some(held) => held,
                    None => {
                        let mut fresh = self.core.mover.stock().lease().await;
                        fresh.bytes_mut(cycle.len()).copy_from_slice(cycle);
                        fresh
                    }
                };
                let socket = Rc::clone(&self.flow.socket);
                let done = self.core.ring.submit(Op::SendLease { socket, lease: held, len, from: at as u32 }).await;
                if let Some(Op::SendLease { lease: back, .. }) = done.op {
                    lease = Some(back);
                }
                done.result
            };
            counts.calls.add(1);
            counts.call_ns.add(self.core.now().since(started).as_nanos() as u64);
            match result {
                Ok(n) => {
                    if n < len {
                        counts.short.add(1);
                    }
                    if zero_copy {
                        counts.send_zc.add(u64::from(n))
                    } else {
                        counts.send.add(u64::from(n))
                    }
                    self.flow.sent.set(self.flow.sent.get() + u64::from(n));
                    self.count.sent.set(self.flow.sent.get());
                    at = (at + n as usize) % cycle.len();
                    if n < len {
                        self.core.mover.room(&self.flow).await?;
                    }
                }
                Err(errno) if errno.is_again() => {
                    counts.again.add(1);
                    self.core.mover.room(&self.flow).await?;
                }
                Err(errno) => return Err(lost(errno)),
            }
        }
        Ok(())
    }

    /// One zero-copy send from memory: every buffer holds the cycle, and comes home with its notification.
    async fn memory_zc(&self, at: usize, len: u32) -> Result<u32, Errno> {
        const PINNED_MOST: u32 = 4;
        while self.flow.pinned.get() >= PINNED_MOST {
            self.core.mover.stock().starve().await;
        }
        let mut lease = self.core.mover.stock().lease().await;
        if self.core.primed.borrow_mut().insert(lease.pointer() as usize) {
            let cycle = &self.payload.memory;
            lease.bytes_mut(cycle.len()).copy_from_slice(cycle);
        }
        self.core.mover.send_without_copy(&self.flow, lease, at as u32, len).await
    }
}

/// A call that a signal cut off is made again.
fn again<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
