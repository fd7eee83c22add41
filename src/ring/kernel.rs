//! Backend: operations to SQEs on the real io_uring.
//!
//! SQEs are staged in a plain list and pushed when the ring is entered, so that a full submission queue splits no chain
//! and loses no cancel (R3). One `io_uring_enter` per turn in the usual case.

use super::buffers::{Arena, RECV_GROUP, RecvPool};
use super::completion::Cqe;
use super::op::Op;
use super::token::{Part, Token};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Submission queue entries; chains of three for hundreds of clients fit one enter.
const SQ_ENTRIES: u32 = 1024;
/// Completion queue entries: zero-copy sends post two completions, multishot operations any number.
const CQ_ENTRIES: u32 = 8192;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
/// IORING_RECVSEND_POLL_FIRST is 1, FIXED_BUF 4 (set by the crate), this asks for the usage report.
const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;

/// What setting up the ring gave, on the EINVAL ladder from best to plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetupFlags {
    /// IORING_SETUP_NO_SQARRAY (Linux 6.6).
    pub no_sqarray: bool,
    /// IORING_SETUP_DEFER_TASKRUN (6.1).
    pub defer_taskrun: bool,
    /// IORING_SETUP_SINGLE_ISSUER (6.0).
    pub single_issuer: bool,
    /// IORING_SETUP_COOP_TASKRUN (5.19), where DEFER_TASKRUN is not to be had.
    pub coop_taskrun: bool,
    /// IORING_SETUP_SUBMIT_ALL (5.18).
    pub submit_all: bool,
}

/// The ladder: each rung drops what the next older kernel does not know.
const LADDER: [SetupFlags; 6] = {
    const fn rung(no_sqarray: bool, defer: bool, single: bool, coop: bool, all: bool) -> SetupFlags {
        SetupFlags { no_sqarray, defer_taskrun: defer, single_issuer: single, coop_taskrun: coop, submit_all: all }
    }
    [
        rung(true, true, true, false, true),
        rung(false, true, true, false, true),
        rung(false, false, true, true, true),
        rung(false, false, false, true, true),
        rung(false, false, false, false, true),
        rung(false, false, false, false, false),
    ]
};

/// What one enter did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Entered {
    /// SQEs the kernel took.
    pub sqes: u64,
    /// Times the submission queue was full.
    pub sq_full: u64,
    /// System calls.
    pub enters: u64,
}

/// The real ring of one thread.
pub struct Kernel {
    ring: IoUring,
    staged: Vec<Entry>,
    flags: SetupFlags,
    no_iowait: bool,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("flags", &self.flags).field("staged", &self.staged.len()).finish()
    }
}

impl Kernel {
    /// Sets the ring up on the calling thread, stepping down the ladder on EINVAL.
    ///
    /// `tight` makes small queues, for a small RLIMIT_MEMLOCK: queues count against it since Linux 6.14.
    pub fn new(tight: bool) -> io::Result<Self> {
        let shrink = if tight { 6 } else { 0 };
        Self::with_entries(SQ_ENTRIES >> shrink, CQ_ENTRIES >> shrink)
    }

    /// Entries of the submission queue that were granted.
    pub fn entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    /// As [`Kernel::new`] with given queue sizes (probes and tests want small ones).
    pub fn with_entries(sq: u32, cq: u32) -> io::Result<Self> {
        let mut last = io::Error::from_raw_os_error(libc::EINVAL);
        for flags in LADDER {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp().setup_cqsize(cq);
            if flags.no_sqarray {
                builder.setup_no_sqarray();
            }
            if flags.defer_taskrun {
                builder.setup_defer_taskrun();
            }
            if flags.single_issuer {
                builder.setup_single_issuer();
            }
            if flags.coop_taskrun {
                builder.setup_coop_taskrun();
            }
            if flags.submit_all {
                builder.setup_submit_all();
            }
            match builder.build(sq) {
                Ok(ring) => {
                    let no_iowait = ring.params().is_feature_no_iowait();
                    return Ok(Self { ring, staged: Vec::with_capacity(sq as usize), flags, no_iowait });
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// The rung of the ladder that held.
    pub fn flags(&self) -> SetupFlags {
        self.flags
    }

    /// Waiting is not accounted as iowait (Linux 6.15).
    pub fn no_iowait(&self) -> bool {
        self.no_iowait
    }

    /// The crate's ring, for registration and probes.
    pub fn inner(&self) -> &IoUring {
        &self.ring
    }

    /// Registers the arena as fixed buffer 0; ENOMEM where RLIMIT_MEMLOCK does not allow it.
    pub fn register_arena(&self, arena: &Arena) -> io::Result<()> {
        // SAFETY: the arena outlives the ring: it is unmapped only after the ring was drained and dropped (R6).
        unsafe { self.ring.submitter().register_buffers(&[arena.vector()]) }?;
        arena.set_registered(true);
        Ok(())
    }

    /// Registers the provided-buffer ring of multishot receives.
    pub fn register_recv_pool(&self, pool: &RecvPool) -> io::Result<()> {
        // SAFETY: the pool's mappings outlive the ring, as the arena does (R6).
        unsafe {
            self.ring.submitter().register_buf_ring_with_flags(pool.ring_address(), pool.entries(), RECV_GROUP, 0)
        }
    }

    /// Caps the io-wq workers of this thread and pins them to `cpu`.
    pub fn bound_workers(&self, cpu: usize, bounded: u32, unbounded: u32) -> io::Result<()> {
        if let Some(set) = crate::sys::affinity::only(cpu) {
            self.ring.submitter().register_iowq_aff(&set)?;
        }
        self.ring.submitter().register_iowq_max_workers(&mut [bounded.max(1), unbounded.max(1)])
    }

    /// Stages the SQEs of an operation that lies at its final address in the table.
    pub fn stage(&mut self, token: Token, op: &Op) {
        let data = token.encode(Part::Main);
        let entry = match op {
            Op::Nop => opcode::Nop::new().build(),
            Op::Accept { listener } => opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd()))
                .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
                .build(),
            Op::Recv { socket } => opcode::RecvMulti::new(types::Fd(socket.as_raw_fd()), RECV_GROUP).build(),
            Op::Watch { fd } => {
                opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).multi(true).build()
            }
            Op::Poll { fd, events } => opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), *events).build(),
            Op::Send { socket, bytes, more } => {
                let more = if *more { libc::MSG_MORE } else { 0 };
                opcode::Send::new(types::Fd(socket.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL | more)
                    .build()
            }
            Op::SendPair { socket, head, body, frame } => {
                let frame = &raw const **frame as *mut super::op::Frame;
                // SAFETY: the frame is boxed in the op, which the slot owns until the last CQE (R1); it is not in flight
                // yet, so nobody reads it while it is filled; head and body are heap memory the op owns.
                unsafe {
                    (*frame).vectors = [
                        libc::iovec { iov_base: head.as_ptr() as *mut _, iov_len: head.len() },
                        libc::iovec { iov_base: body.as_ptr() as *mut _, iov_len: body.len() },
                    ];
                    (*frame).message.msg_iov = (&raw mut (*frame).vectors).cast();
                    (*frame).message.msg_iovlen = 2;
                    opcode::SendMsg::new(types::Fd(socket.as_raw_fd()), &raw const (*frame).message)
                        .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                        .build()
                }
            }
            Op::SendLease { socket, lease, len, from } => {
                // `part` stays inside the buffer whatever was asked for.
                let bytes = lease.part(*from, *len);
                opcode::Send::new(types::Fd(socket.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
                    .build()
            }
            Op::SendZc { socket, lease, len, from, reports, .. } => {
                let bytes = lease.part(*from, *len);
                opcode::SendZc::new(types::Fd(socket.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
                    .buf_index(lease.is_registered().then_some(0))
                    .zc_flags(if *reports { SEND_ZC_REPORT_USAGE } else { 0 })
                    .build()
            }
            Op::ReadFixed { file, lease, len, offset } => {
                let fd = types::Fd(file.as_raw_fd());
                if lease.is_registered() {
                    opcode::ReadFixed::new(fd, lease.pointer(), *len, 0).offset(*offset).build()
                } else {
                    opcode::Read::new(fd, lease.pointer(), *len).offset(*offset).build()
                }
            }
            Op::WriteFixed { file, lease, len, from, offset } => {
                let fd = types::Fd(file.as_raw_fd());
                let bytes = lease.pointer().wrapping_add(*from as usize);
                if lease.is_registered() {
                    opcode::WriteFixed::new(fd, bytes, *len, 0).offset(*offset).build()
                } else {
                    opcode::Write::new(fd, bytes, *len).offset(*offset).build()
                }
            }
            Op::Connect { socket, address } => {
                opcode::Connect::new(types::Fd(socket.as_raw_fd()), address.as_ptr().cast(), address.len()).build()
            }
            Op::OpenAt { root, path, how } => {
                opcode::OpenAt2::new(types::Fd(root.as_raw_fd()), path.as_ptr(), &raw const **how).build()
            }
            Op::Chain { socket, file, pipe, offset, len, poll } => {
                let socket = types::Fd(socket.as_raw_fd());
                if *poll {
                    self.staged.push(
                        opcode::PollAdd::new(socket, libc::POLLOUT as u32)
                            .build()
                            .flags(Flags::IO_LINK | Flags::SKIP_SUCCESS)
                            .user_data(token.encode(Part::Poll)),
                    );
                }
                self.staged.push(
                    opcode::Splice::new(
                        types::Fd(file.as_raw_fd()),
                        *offset as i64,
                        types::Fd(pipe.write().as_raw_fd()),
                        -1,
                        *len,
                    )
                    .build()
                    .flags(Flags::IO_HARDLINK | Flags::SKIP_SUCCESS)
                    .user_data(token.encode(Part::Fill)),
                );
                opcode::Splice::new(types::Fd(pipe.read().as_raw_fd()), -1, socket, -1, *len).build()
            }
        };
        self.staged.push(entry.user_data(data));
    }

    /// Stages the cancel of an operation: for a chain, of whichever part is waiting.
    pub fn stage_cancel(&mut self, token: Token, chain: bool) {
        let parts: &[Part] = if chain { &[Part::Poll, Part::Fill, Part::Main] } else { &[Part::Main] };
        for &part in parts {
            self.staged
                .push(opcode::AsyncCancel::new(token.encode(part)).build().user_data(token.encode(Part::Cancel)));
        }
    }

    /// Pushes what is staged and enters; waits for one completion up to `wait`, or not at all.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<Entered> {
        let mut entered = Entered::default();
        let mut pushed = 0;
        loop {
            let mut queue = self.ring.submission();
            let room = queue.capacity() - queue.len();
            let mut take = (self.staged.len() - pushed).min(room);
            // A chain split over two submissions would lose its links.
            while take > 0 && pushed + take < self.staged.len() && is_linked(&self.staged[pushed + take - 1]) {
                take -= 1;
            }
            // SAFETY: every entry was staged from an op that its slot owns until the last CQE (R1, R2).
            let full = unsafe { queue.push_multiple(&self.staged[pushed..pushed + take]) }.is_err();
            drop(queue);
            pushed += if full { 0 } else { take };
            let last = pushed == self.staged.len();
            if !last {
                entered.sq_full += 1;
            }
            let got = self.enter_once(if last { wait } else { None });
            entered.enters += 1;
            match got {
                Ok(sqes) => entered.sqes += sqes as u64,
                Err(error) => match error.raw_os_error() {
                    // A signal, or the wait ran out: both are a turn of the loop.
                    Some(libc::EINTR | libc::ETIME) => {}
                    // The completion queue is full: reap, then come again.
                    Some(libc::EBUSY | libc::EAGAIN) => {
                        self.staged.drain(..pushed);
                        return Ok(entered);
                    }
                    _ => return Err(error),
                },
            }
            if last {
                self.staged.clear();
                return Ok(entered);
            }
        }
    }

    fn enter_once(&mut self, wait: Option<Duration>) -> io::Result<usize> {
        let submit = self.ring.submission().len() as u32;
        let spec;
        let mut args = types::SubmitArgs::new();
        let mut flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
        let mut want = 0;
        if let Some(wait) = wait {
            spec = types::Timespec::from(wait);
            args = args.timespec(&spec);
            want = 1;
            if self.no_iowait {
                flags |= ENTER_NO_IOWAIT;
            }
        }
        // SAFETY: EXT_ARG goes with a SubmitArgs, whose timespec lives until the call returns; the SQEs were pushed
        // under R1.
        unsafe { self.ring.submitter().enter(submit, want, flags, Some(&args)) }
    }

    /// Hands every completion that has arrived to `take`; returns the kernel's overflow count.
    pub fn reap(&mut self, mut take: impl FnMut(Cqe)) -> u64 {
        let mut queue = self.ring.completion();
        for cqe in &mut queue {
            take(Cqe { user_data: cqe.user_data(), res: cqe.result(), flags: cqe.flags() });
        }
        u64::from(queue.overflow())
    }
}

/// Only the first parts of a chain carry a link flag; the crate does not show an entry's flags, its token does.
fn is_linked(entry: &Entry) -> bool {
    matches!(Token::decode(entry.get_user_data()), Some((_, Part::Poll | Part::Fill)))
}
