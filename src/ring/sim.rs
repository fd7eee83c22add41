//! Backend: a seeded, simulated kernel for the completion contract only.
//!
//! It knows short results, order within a descriptor, EOF, EPIPE, EAGAIN, ECANCELED, ENOBUFS, MORE and NOTIF, pipe and
//! socket capacity, and cancels that win or lose their race. It knows no page cache, no TCP and no time. Like the real
//! one it writes late: into leases whose owner may be gone. A seed decides everything; the same seed replays.

use super::buffers::{RECV_BUFFER, RecvPool};
use super::completion::Cqe;
use super::kernel::Entered;
use super::op::Op;
use super::token::{Part, Token};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

/// How often each fault happens, in 256ths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A transfer moves less than it could.
    pub short: u8,
    /// A send or splice is told EAGAIN though there was room.
    pub again: u8,
    /// A completion is kept back for another turn.
    pub late: u8,
    /// A cancel loses its race: the operation completes as if nothing had happened.
    pub cancel_loses: u8,
    /// A receive finds no buffer.
    pub nobufs: u8,
    /// A zero-copy send was copied after all.
    pub copied: u8,
}

impl Faults {
    /// None: for scenarios that want one fault at a time.
    pub const NONE: Faults = Faults { short: 0, again: 0, late: 0, cancel_loses: 0, nobufs: 0, copied: 0 };
    /// Often enough that every pair of faults meets in a few hundred operations.
    pub const MANY: Faults = Faults { short: 90, again: 40, late: 100, cancel_loses: 128, nobufs: 20, copied: 128 };
}

/// A simulated socket: what we sent, what it may still take, what will be received.
#[derive(Debug, Default)]
pub struct Peer {
    /// Every byte we sent, in order.
    pub taken: Vec<u8>,
    /// Bytes the socket's buffer still takes.
    pub room: usize,
    /// What the client sends, piece by piece.
    pub input: VecDeque<Vec<u8>>,
    /// The client has ended its direction.
    pub ended: bool,
    /// The client is gone: sends fail with EPIPE.
    pub gone: bool,
}

#[derive(Debug)]
enum What {
    Nop,
    Accept,
    Recv { fd: RawFd },
    Watch,
    Poll { fd: RawFd },
    Send { fd: RawFd, bytes: (*const u8, usize), second: (*const u8, usize), whole: bool },
    SendZc { fd: RawFd, bytes: (*const u8, usize) },
    Read { fd: RawFd, into: *mut u8, len: usize, offset: u64 },
    Write { fd: RawFd, bytes: (*const u8, usize), offset: u64 },
    Connect { fd: RawFd },
    Open,
    Chain { socket: RawFd, file: RawFd, pipe: usize, offset: u64, len: usize, poll: bool },
}

#[derive(Debug)]
struct Pending {
    token: Token,
    what: What,
    cancelled: bool,
    /// Bytes of a whole send that are already out.
    sent: usize,
}

/// The world and its kernel.
#[derive(Debug)]
pub struct Sim {
    seed: u64,
    faults: Faults,
    pending: Vec<Pending>,
    notifications: Vec<(Token, bool)>,
    ready: VecDeque<Cqe>,
    /// Sockets by descriptor.
    pub peers: HashMap<RawFd, Peer>,
    /// Files by descriptor.
    pub files: HashMap<RawFd, Vec<u8>>,
    /// Descriptors that will be accepted.
    pub arrivals: VecDeque<RawFd>,
    recv_pool: Option<Rc<RecvPool>>,
    next_buffer: u16,
    sqes: u64,
    /// Cancels that were asked for.
    pub cancels: u64,
}

impl Sim {
    /// A world from a seed.
    pub fn new(seed: u64, faults: Faults, recv_pool: Option<Rc<RecvPool>>) -> Self {
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            faults,
            pending: Vec::new(),
            notifications: Vec::new(),
            ready: VecDeque::new(),
            peers: HashMap::new(),
            files: HashMap::new(),
            arrivals: VecDeque::new(),
            recv_pool,
            next_buffer: 0,
            sqes: 0,
            cancels: 0,
        }
    }

    fn random(&mut self) -> u64 {
        // xorshift64*: enough to shuffle a world, and every seed replays.
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn happens(&mut self, chance: u8) -> bool {
        (self.random() & 0xff) < u64::from(chance)
    }

    fn shorten(&mut self, len: usize) -> usize {
        if len > 1 && self.happens(self.faults.short) { 1 + self.random() as usize % len } else { len }
    }

    /// Takes an operation over.
    pub fn stage(&mut self, token: Token, op: &Op) {
        let slice = |bytes: &[u8]| (bytes.as_ptr(), bytes.len());
        let what = match op {
            Op::Nop => What::Nop,
            Op::Accept { .. } => What::Accept,
            Op::Recv { socket } => What::Recv { fd: socket.as_raw_fd() },
            Op::Watch { .. } => What::Watch,
            Op::Poll { fd, .. } => What::Poll { fd: fd.as_raw_fd() },
            Op::Send { socket, bytes, .. } => {
                What::Send { fd: socket.as_raw_fd(), bytes: slice(bytes), second: slice(&[]), whole: true }
            }
            Op::SendPair { socket, head, body, .. } => {
                What::Send { fd: socket.as_raw_fd(), bytes: slice(head), second: slice(body), whole: true }
            }
            Op::SendLease { socket, lease, len, from } => What::Send {
                fd: socket.as_raw_fd(),
                bytes: (lease.part(*from, *len).as_ptr().cast_mut(), *len as usize),
                second: slice(&[]),
                whole: false,
            },
            Op::SendZc { socket, lease, len, from, .. } => What::SendZc {
                fd: socket.as_raw_fd(),
                bytes: (lease.part(*from, *len).as_ptr().cast_mut(), *len as usize),
            },
            Op::ReadFixed { file, lease, len, offset } => {
                What::Read { fd: file.as_raw_fd(), into: lease.pointer(), len: *len as usize, offset: *offset }
            }
            Op::WriteFixed { file, lease, len, from, offset } => What::Write {
                fd: file.as_raw_fd(),
                bytes: (lease.pointer().wrapping_add(*from as usize), *len as usize),
                offset: *offset,
            },
            Op::Connect { socket, .. } => What::Connect { fd: socket.as_raw_fd() },
            Op::OpenAt { .. } => What::Open,
            Op::Chain { socket, file, pipe, offset, len, poll } => What::Chain {
                socket: socket.as_raw_fd(),
                file: file.as_raw_fd(),
                pipe: pipe.size(),
                offset: *offset,
                len: *len as usize,
                poll: *poll,
            },
        };
        self.sqes += 1;
        self.pending.push(Pending { token, what, cancelled: false, sent: 0 });
    }

    /// Takes a cancel over; its own completion is of no interest and may come at any time.
    pub fn stage_cancel(&mut self, token: Token) {
        self.cancels += 1;
        self.sqes += 1;
        let loses = self.happens(self.faults.cancel_loses);
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.token == token) {
            // A cancel that loses today is noticed tomorrow: the operation may complete first, but not hang for ever.
            pending.cancelled = !loses || matches!(pending.what, What::Recv { .. } | What::Accept | What::Watch);
            if loses {
                pending.cancelled |= matches!(pending.what, What::Poll { .. } | What::Chain { .. });
            }
        }
        let res = if loses { -libc::EALREADY } else { 0 };
        self.ready.push_back(Cqe { user_data: token.encode(Part::Cancel), res, flags: 0 });
    }

    /// Lets the world move one turn.
    pub fn enter(&mut self, _wait: Option<Duration>) -> io::Result<Entered> {
        let mut at = 0;
        while at < self.pending.len() {
            if self.happens(self.faults.late) {
                at += 1;
                continue;
            }
            let mut pending = self.pending.swap_remove(at);
            if self.perform(&mut pending) {
                // Something else lies at this index now.
                continue;
            }
            self.pending.push(pending);
            let last = self.pending.len() - 1;
            self.pending.swap(at, last);
            at += 1;
        }
        let mut at = 0;
        while at < self.notifications.len() {
            if self.happens(self.faults.late) {
                at += 1;
                continue;
            }
            let (token, copied) = self.notifications.swap_remove(at);
            let res = if copied { i32::MIN } else { 0 };
            self.ready.push_back(Cqe {
                user_data: token.encode(Part::Main),
                res,
                flags: Cqe::flags_of(false, true, None),
            });
        }
        let sqes = std::mem::take(&mut self.sqes);
        Ok(Entered { sqes, sq_full: 0, enters: 1 })
    }

    /// Hands completions out.
    pub fn reap(&mut self, take: &mut impl FnMut(Cqe)) {
        while let Some(cqe) = self.ready.pop_front() {
            take(cqe);
        }
    }

    fn post(&mut self, token: Token, part: Part, res: i32, more: bool, buffer: Option<u16>) {
        self.ready.push_back(Cqe { user_data: token.encode(part), res, flags: Cqe::flags_of(more, false, buffer) });
    }

    /// Performs what can be performed; true when the operation has ended.
    fn perform(&mut self, pending: &mut Pending) -> bool {
        let token = pending.token;
        if pending.cancelled {
            let res = [-libc::ECANCELED, -libc::EINTR, -512][self.random() as usize % 3];
            match pending.what {
                What::SendZc { .. } => {
                    // Failed zero-copy sends carry MORE and a notification too.
                    self.post(token, Part::Main, res, true, None);
                    self.notifications.push((token, false));
                }
                What::Chain { poll: true, .. } => self.post(token, Part::Poll, res, false, None),
                _ => self.post(token, Part::Main, res, false, None),
            }
            return true;
        }
        match pending.what {
            What::Nop => self.post(token, Part::Main, 0, false, None),
            What::Watch => return false,
            What::Open => {
                let fd = std::fs::File::open("/dev/null").expect("/dev/null").into_raw_fd();
                self.post(token, Part::Main, fd, false, None);
            }
            What::Accept => match self.arrivals.pop_front() {
                Some(fd) => {
                    self.post(token, Part::Main, fd, true, None);
                    return false;
                }
                None => return false,
            },
            What::Recv { fd } => return self.receive(token, fd),
            What::Poll { fd } => {
                let peer = self.peers.entry(fd).or_default();
                if peer.room == 0 && !peer.gone {
                    return false;
                }
                let events = if peer.gone { libc::POLLERR | libc::POLLHUP } else { libc::POLLOUT };
                self.post(token, Part::Main, i32::from(events), false, None);
            }
            What::Send { fd, bytes, second, whole } => {
                let total = bytes.1 + second.1;
                let mut all = Vec::with_capacity(total);
                // SAFETY: the op owns both until its last completion (R1), and this is the kernel's side of that.
                unsafe {
                    all.extend_from_slice(std::slice::from_raw_parts(bytes.0, bytes.1));
                    all.extend_from_slice(std::slice::from_raw_parts(second.0, second.1));
                }
                if self.peers.entry(fd).or_default().gone {
                    self.post(token, Part::Main, -libc::EPIPE, false, None);
                    return true;
                }
                let moved = self.take(fd, &all[pending.sent..]);
                pending.sent += moved;
                if whole && pending.sent < total {
                    return false;
                }
                let res = if moved == 0 && total > 0 { -libc::EAGAIN } else { pending.sent as i32 };
                self.post(token, Part::Main, res, false, None);
            }
            What::SendZc { fd, bytes } => {
                // SAFETY: as above.
                let all = unsafe { std::slice::from_raw_parts(bytes.0, bytes.1) }.to_vec();
                let moved = self.take(fd, &all);
                let gone = self.peers[&fd].gone;
                let res = if gone {
                    -libc::EPIPE
                } else if moved == 0 {
                    -libc::EAGAIN
                } else {
                    moved as i32
                };
                self.post(token, Part::Main, res, true, None);
                let copied = self.happens(self.faults.copied);
                self.notifications.push((token, copied));
            }
            What::Read { fd, into, len, offset } => {
                let from = self.files.get(&fd).cloned().unwrap_or_default();
                let start = (offset as usize).min(from.len());
                let len = self.shorten(len.min(from.len() - start));
                // SAFETY: the op owns the buffer until its last completion, wherever its future is (R1, R3).
                unsafe { std::ptr::copy_nonoverlapping(from[start..].as_ptr(), into, len) };
                self.post(token, Part::Main, len as i32, false, None);
            }
            What::Write { fd, bytes, offset } => {
                let len = self.shorten(bytes.1);
                // SAFETY: as above.
                let from = unsafe { std::slice::from_raw_parts(bytes.0, len) };
                let file = self.files.entry(fd).or_default();
                let end = offset as usize + len;
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[offset as usize..end].copy_from_slice(from);
                self.post(token, Part::Main, len as i32, false, None);
            }
            What::Connect { fd } => {
                let res = if self.peers.entry(fd).or_default().gone { -libc::ECONNREFUSED } else { 0 };
                self.post(token, Part::Main, res, false, None);
            }
            What::Chain { socket, file, pipe, offset, len, poll } => {
                let peer = self.peers.entry(socket).or_default();
                if poll && peer.room == 0 && !peer.gone {
                    return false;
                }
                let gone = peer.gone;
                let from = self.files.get(&file).cloned().unwrap_or_default();
                let start = (offset as usize).min(from.len());
                let filled = self.shorten(len.min(pipe).min(from.len() - start));
                if filled != len {
                    self.post(token, Part::Fill, filled as i32, false, None);
                }
                let drained = if gone { 0 } else { self.take(socket, &from[start..start + filled]) };
                let res = match drained {
                    0 if gone => -libc::EPIPE,
                    0 => -libc::EAGAIN,
                    n => n as i32,
                };
                self.post(token, Part::Main, res, false, None);
            }
        }
        true
    }

    fn take(&mut self, fd: RawFd, bytes: &[u8]) -> usize {
        if self.happens(self.faults.again) {
            return 0;
        }
        let want = self.shorten(bytes.len());
        let peer = self.peers.entry(fd).or_default();
        if peer.gone {
            return 0;
        }
        let moved = want.min(peer.room);
        peer.room -= moved;
        peer.taken.extend_from_slice(&bytes[..moved]);
        moved
    }

    fn receive(&mut self, token: Token, fd: RawFd) -> bool {
        let Some(pool) = self.recv_pool.clone() else { return false };
        let peer = self.peers.entry(fd).or_default();
        if peer.input.is_empty() {
            if peer.ended || peer.gone {
                self.post(token, Part::Main, 0, false, None);
                return true;
            }
            return false;
        }
        if pool.available() == 0 || self.happens(self.faults.nobufs) {
            self.post(token, Part::Main, -libc::ENOBUFS, false, None);
            return true;
        }
        let peer = self.peers.entry(fd).or_default();
        let mut piece = peer.input.pop_front().expect("checked above");
        if piece.len() > RECV_BUFFER {
            peer.input.push_front(piece.split_off(RECV_BUFFER));
        }
        // Like the kernel: the oldest provided buffer, in ring order.
        let id = pool.provided_at(self.next_buffer);
        self.next_buffer = self.next_buffer.wrapping_add(1);
        pool.write_simulated(id, &piece);
        self.post(token, Part::Main, piece.len() as i32, true, Some(id));
        false
    }
}
