//! What is asked of the kernel: one variant per operation, owning all the kernel may touch (R1).

use super::buffers::ArenaLease;
use super::completion::Outcome;
use super::pipes::Pipe;
use bytes::Bytes;
use socket2::SockAddr;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A descriptor that stays open while any operation or connection holds it.
pub type SharedFd = Rc<OwnedFd>;

/// One operation.
#[derive(Debug)]
pub enum Op {
    /// Nothing, for benches and tests.
    Nop,
    /// Multishot accept: non-blocking, close-on-exec descriptors.
    Accept {
        /// The listener.
        listener: SharedFd,
    },
    /// Multishot receive into the provided-buffer ring.
    Recv {
        /// The socket.
        socket: SharedFd,
    },
    /// Multishot poll for input (the mailbox's eventfd).
    Watch {
        /// What to watch.
        fd: SharedFd,
    },
    /// One poll for `events` (POLLOUT, POLLIN).
    Poll {
        /// What to poll.
        fd: SharedFd,
        /// Poll bits.
        events: u32,
    },
    /// Send all of `bytes`; the kernel retries until everything is taken (MSG_WAITALL).
    Send {
        /// The socket (R5).
        socket: SharedFd,
        /// What to send.
        bytes: Vec<u8>,
        /// More follows at once (MSG_MORE).
        more: bool,
    },
    /// Send a head and a shared body in one message, all of it.
    SendPair {
        /// The socket (R5).
        socket: SharedFd,
        /// The head.
        head: Vec<u8>,
        /// The body, shared with the content cache.
        body: Bytes,
        /// Kernel-visible message header, filled when the operation is staged.
        frame: Box<Frame>,
    },
    /// Send part of an arena buffer by copy; short or EAGAIN when the socket is full.
    SendLease {
        /// The socket (R5).
        socket: SharedFd,
        /// The buffer.
        lease: ArenaLease,
        /// Bytes of it to send, from `from`.
        len: u32,
        /// First byte of it.
        from: u32,
    },
    /// Send part of an arena buffer without copying; the buffer comes home with the notification.
    SendZc {
        /// The socket (R5).
        socket: SharedFd,
        /// The buffer, registered.
        lease: ArenaLease,
        /// Bytes of it to send, from `from`.
        len: u32,
        /// First byte of it.
        from: u32,
        /// For whom, so that the kernel's verdict is credited to the right estimator.
        route: u16,
        /// Ask for the usage report (Linux 6.2).
        reports: bool,
    },
    /// Read a file into an arena buffer; a cold page waits in the kernel without a worker where the file system can.
    ReadFixed {
        /// The file.
        file: SharedFd,
        /// Where to.
        lease: ArenaLease,
        /// Bytes wanted.
        len: u32,
        /// From where in the file.
        offset: u64,
    },
    /// Write part of an arena buffer to a file.
    WriteFixed {
        /// The file.
        file: SharedFd,
        /// Where from.
        lease: ArenaLease,
        /// Bytes of it, from `from`.
        len: u32,
        /// First byte of it.
        from: u32,
        /// Where to in the file.
        offset: u64,
    },
    /// Connect a socket.
    Connect {
        /// The socket.
        socket: SharedFd,
        /// Where to.
        address: Box<SockAddr>,
    },
    /// openat2(2) under a root.
    OpenAt {
        /// The root.
        root: SharedFd,
        /// A relative path.
        path: CString,
        /// Flags and resolution rules.
        how: Box<io_uring::types::OpenHow>,
    },
    /// `POLL_ADD -> SPLICE file->pipe (hard link, CQE skip) -> SPLICE pipe->socket`, one completion in the usual case.
    Chain {
        /// The socket, O_NONBLOCK (R5).
        socket: SharedFd,
        /// The file.
        file: SharedFd,
        /// An empty pipe.
        pipe: Pipe,
        /// From where in the file.
        offset: u64,
        /// Bytes, at most the pipe's size.
        len: u32,
        /// Wait for room first.
        poll: bool,
    },
}

/// Message header and vectors of a [`Op::SendPair`]; boxed once and reused with the operation.
#[derive(Debug)]
pub struct Frame {
    pub(crate) message: libc::msghdr,
    pub(crate) vectors: [libc::iovec; 2],
}

impl Default for Frame {
    fn default() -> Self {
        // SAFETY: msghdr and iovec are plain C structs for which all-zero is a valid, empty value.
        unsafe { std::mem::zeroed() }
    }
}

impl Op {
    /// Gives up a result nobody waits for: an accepted or opened descriptor is closed (R3).
    pub fn dispose(&self, result: Outcome) {
        if let (Op::Accept { .. } | Op::OpenAt { .. }, Ok(fd)) = (self, result) {
            drop(crate::sys::own(fd as i32));
        }
    }

    /// The operation's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Nop => "nop",
            Op::Accept { .. } => "accept",
            Op::Recv { .. } => "recv",
            Op::Watch { .. } | Op::Poll { .. } => "poll",
            Op::Send { .. } | Op::SendLease { .. } => "send",
            Op::SendPair { .. } => "sendmsg",
            Op::SendZc { .. } => "send_zc",
            Op::ReadFixed { .. } => "read_fixed",
            Op::WriteFixed { .. } => "write_fixed",
            Op::Connect { .. } => "connect",
            Op::OpenAt { .. } => "openat2",
            Op::Chain { .. } => "splice",
        }
    }
}
