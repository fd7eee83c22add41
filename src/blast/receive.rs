//! One flow of the receiving end: bytes out of the socket and away, by the way asked for, until the sender's end.

use super::core::{Core, Task};
use super::count::FlowCount;
use super::payload::{Block, Checker};
use super::wire::Receive;
use crate::ring::buffers::ARENA_BUFFER;
use crate::ring::op::Op;
use crate::ring::pipes::Pipe;
use crate::sys;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of one receive by copy, as the receivers of 2001 had it.
pub const CHUNK: usize = 64 << 10;
/// Receives of one flow before the others of its core have their turn.
const TURN: u32 = 16;

/// What one flow is to do.
#[derive(Debug)]
pub struct Receiving {
    /// Its socket, connected and non-blocking.
    pub socket: OwnedFd,
    /// How.
    pub mode: Receive,
    /// What to check against; empty: nothing.
    pub blocks: Arc<[Block]>,
    /// What it counts.
    pub count: Arc<FlowCount>,
}

/// Starts a flow on its core.
pub fn start(core: &Rc<Core>, receiving: Receiving) -> Task {
    let core = Rc::clone(core);
    Box::pin(async move {
        let count = Arc::clone(&receiving.count);
        if let Err(error) = run(&core, receiving).await {
            core.counts.errors.add(1);
            core.counts.fail(error);
        }
        count.ended.store(true, Ordering::Release);
    })
}

/// Takes bytes out of one socket.
pub struct Taker {
    mode: Receive,
    pipe: Option<Pipe>,
    null: Option<std::fs::File>,
    checker: Option<RefCell<Checker>>,
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").field("mode", &self.mode).finish()
    }
}

impl Taker {
    /// A taker; `blocks` are what it checks, if there are any.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub async fn new(core: &Core, mode: Receive, blocks: &Arc<[Block]>) -> io::Result<Self> {
        let splices = mode == Receive::Splice;
        let null = if splices { Some(std::fs::OpenOptions::new().write(true).open("/dev/null")?) } else { None };
        let pipe = if splices { Some(core.mover.stock().pipe().await) } else { None };
        if core.scratch.borrow().is_none() {
            let lease = core.mover.stock().lease().await;
            core.scratch.borrow_mut().get_or_insert(lease);
        }
        let checker = (!blocks.is_empty()).then(|| RefCell::new(Checker::new(Arc::clone(blocks))));
        Ok(Self { mode, pipe, null, checker })
    }

    /// Bytes one call asks for.
    pub fn chunk(&self) -> usize {
        match self.mode {
            Receive::Copy => CHUNK,
            Receive::Trunc => ARENA_BUFFER,
            Receive::Splice => self.pipe.as_ref().map_or(CHUNK, Pipe::size),
        }
    }

    /// Takes up to `most` bytes: how many, zero at the end, EAGAIN when there are none.
    ///
    /// # Errors
    /// The socket's, or wrong payload as `InvalidData`.
    pub fn take(&self, core: &Core, socket: &OwnedFd, most: usize) -> io::Result<usize> {
        match (self.mode, &self.pipe, &self.null) {
            (Receive::Trunc, ..) => sys::socket::receive_truncated(socket.as_fd(), most),
            (Receive::Splice, Some(pipe), Some(null)) => {
                let n = sys::splice(socket.as_fd(), None, pipe.write().as_fd(), most)?;
                sys::discard(pipe.read().as_fd(), null.as_fd(), n)?;
                Ok(n)
            }
            _ => {
                let mut scratch = core.scratch.borrow_mut();
                let Some(lease) = scratch.as_mut() else { return Err(io::ErrorKind::OutOfMemory.into()) };
                let buffer = lease.bytes_mut(most.min(CHUNK));
                let n = sys::receive(socket.as_fd(), buffer)?;
                if let Some(checker) = &self.checker {
                    checker.borrow_mut().take(&buffer[..n]).map_err(|wrong| {
                        let (offset, wanted, got) = (wrong.offset, wrong.wanted, wrong.got);
                        let text = format!(
                            "the block at byte {offset} of the flow has CRC32C {got:08x}, sent was {wanted:08x}"
                        );
                        io::Error::new(io::ErrorKind::InvalidData, text)
                    })?;
                }
                Ok(n)
            }
        }
    }

    /// Blocks that were checked and right.
    pub fn verified(&self) -> u64 {
        self.checker.as_ref().map_or(0, |checker| checker.borrow().verified())
    }
}

/// Waits until a socket has something to say.
pub async fn readable(core: &Core, socket: &Rc<OwnedFd>) {
    core.counts.waits.add(1);
    let poll = Op::Poll { fd: Rc::clone(socket), events: libc::POLLIN as u32 };
    // Whatever ended the wait, the next receive tells.
    core.ring.submit(poll).await;
}

async fn run(core: &Rc<Core>, receiving: Receiving) -> Result<(), String> {
    let Receiving { socket, mode, blocks, count } = receiving;
    let socket = Rc::new(socket);
    let taker = Taker::new(core, mode, &blocks).await.map_err(|error| format!("open /dev/null: {error}"))?;
    let counts = &core.counts;
    let chunk = taker.chunk();
    let done = 'all: loop {
        for _ in 0..TURN {
            let began = core.now();
            let taken = taker.take(core, &socket, chunk);
            match taken {
                Ok(0) => break 'all Ok(()),
                Ok(n) => {
                    counts.calls.add(1);
                    counts.call_ns.add(core.now().since(began).as_nanos() as u64);
                    counts.received.add(n as u64);
                    count.received.set(count.received.get() + n as u64);
                    count.verified.set(taker.verified());
                    if n < chunk {
                        // It is empty, as like as not: the poll will say.
                        counts.short.add(1);
                        readable(core, &socket).await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counts.again.add(1);
                    readable(core, &socket).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    break 'all Err(format!("wrong payload: {error}"));
                }
                Err(error) => break 'all Err(format!("a flow ended: {}", crate::error::describe(&error))),
            }
        }
        core.mover.give_way().await;
    };
    counts.verified.add(taker.verified());
    done
}
