//! Memory the kernel reads and writes: the registered arena and the provided-buffer ring. A lease is a borrowed buffer.
//!
//! Leases go home by being dropped, wherever that happens: in a task, in an orphaned slot, after a notification. The
//! mapping lives as long as any lease (`Rc`), and the ring is drained before it is unmapped (R6).

use crate::sys::memory::Mapping;
use crate::telemetry::tally::Tally;
use io_uring::types::BufRingEntry;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes of one arena buffer: four default pipes, the size where per-operation cost stops mattering.
pub const ARENA_BUFFER: usize = 256 << 10;

/// The arena: one mapping, registered once as buffer 0, handed out in [`ARENA_BUFFER`] pieces.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    free: RefCell<Vec<u16>>,
    count: usize,
    registered: Cell<bool>,
    returned: Cell<bool>,
    tally: Arc<Tally>,
}

impl Arena {
    /// An arena of at least one buffer and at most `bytes`.
    pub fn new(bytes: usize, tally: Arc<Tally>) -> io::Result<Rc<Self>> {
        let count = (bytes / ARENA_BUFFER).clamp(1, usize::from(u16::MAX));
        let memory = Mapping::new(count * ARENA_BUFFER)?;
        tally.buffers_idle.set(count as u64);
        tally.buffers_busy.set(0);
        tally.buffer_pool_bytes.set(memory.len() as u64);
        let free = RefCell::new((0..count as u16).rev().collect());
        Ok(Rc::new(Self { memory, free, count, registered: Cell::new(false), returned: Cell::new(false), tally }))
    }

    /// The whole of it, for registration as fixed buffer 0.
    pub fn vector(&self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.base().cast(), iov_len: self.memory.len() }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Says whether the ring has it as fixed buffer 0.
    pub fn set_registered(&self, registered: bool) {
        self.registered.set(registered);
    }

    /// Whether the ring has it as fixed buffer 0.
    pub fn is_registered(&self) -> bool {
        self.registered.get()
    }

    /// Whether a buffer came home since this was last asked.
    pub fn take_returned(&self) -> bool {
        self.returned.replace(false)
    }

    /// Buffers in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Buffers nobody holds.
    pub fn idle(&self) -> usize {
        self.free.borrow().len()
    }

    /// Borrows a buffer; `None` when all are lent.
    pub fn lease(self: &Rc<Self>) -> Option<ArenaLease> {
        let index = self.free.borrow_mut().pop()?;
        self.count_lent();
        Some(ArenaLease { arena: Rc::clone(self), index, pinned: None })
    }

    fn count_lent(&self) {
        let idle = self.free.borrow().len();
        self.tally.buffers_idle.set(idle as u64);
        self.tally.buffers_busy.set((self.count - idle) as u64);
    }
}

/// One arena buffer, exclusively.
#[derive(Debug)]
pub struct ArenaLease {
    arena: Rc<Arena>,
    index: u16,
    pinned: Option<Rc<Cell<u32>>>,
}

impl ArenaLease {
    /// Its first byte, for the kernel.
    pub fn pointer(&self) -> *mut u8 {
        // SAFETY: index < count, so the offset lies inside the mapping.
        unsafe { self.arena.memory.base().add(usize::from(self.index) * ARENA_BUFFER) }
    }

    /// Whether it may be named as part of fixed buffer 0.
    pub fn is_registered(&self) -> bool {
        self.arena.is_registered()
    }

    /// Counts this buffer in `pinned` until it comes home.
    pub fn pinned_by(mut self, pinned: &Rc<Cell<u32>>) -> Self {
        pinned.set(pinned.get() + 1);
        self.pinned = Some(Rc::clone(pinned));
        self
    }

    /// The first `len` bytes.
    pub fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the lease is exclusive and no operation holds it (it would own it, R1), so nobody writes.
        unsafe { std::slice::from_raw_parts(self.pointer(), len.min(ARENA_BUFFER)) }
    }

    /// `len` bytes from `from`, fewer where the buffer ends before.
    pub fn part(&self, from: u32, len: u32) -> &[u8] {
        let bytes = self.bytes(ARENA_BUFFER);
        let from = (from as usize).min(bytes.len());
        &bytes[from..bytes.len().min(from + len as usize)]
    }

    /// The first `len` bytes, to fill.
    pub fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), len.min(ARENA_BUFFER)) }
    }
}

impl Drop for ArenaLease {
    fn drop(&mut self) {
        if let Some(pinned) = &self.pinned {
            pinned.set(pinned.get() - 1);
        }
        self.arena.returned.set(true);
        self.arena.free.borrow_mut().push(self.index);
        self.arena.count_lent();
    }
}

/// Bytes of one receive buffer: holds a usual request head whole, so that it is parsed in place.
pub const RECV_BUFFER: usize = 4 << 10;

/// The provided-buffer group of multishot receives.
pub const RECV_GROUP: u16 = 0;

/// The provided-buffer ring: user-allocated memory (not the kernel's mmap of it, see CVE-2024-0582).
#[derive(Debug)]
pub struct RecvPool {
    ring: Mapping,
    memory: Mapping,
    entries: u16,
    tail: Cell<u16>,
    available: Cell<u32>,
    tally: Arc<Tally>,
}

impl RecvPool {
    /// A pool of `entries` buffers (a power of two, at most 32768), all of them provided.
    pub fn new(entries: usize, tally: Arc<Tally>) -> io::Result<Rc<Self>> {
        let entries = u16::try_from(entries.next_power_of_two().min(32768)).unwrap_or(32768);
        let pool = Rc::new(Self {
            ring: Mapping::new(usize::from(entries) * size_of::<BufRingEntry>())?,
            memory: Mapping::new(usize::from(entries) * RECV_BUFFER)?,
            entries,
            tail: Cell::new(0),
            available: Cell::new(0),
            tally,
        });
        for id in 0..entries {
            pool.provide(id);
        }
        Ok(pool)
    }

    /// Address of the ring, for registration.
    pub fn ring_address(&self) -> u64 {
        self.ring.base() as u64
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Buffers the kernel may choose from.
    pub fn available(&self) -> u32 {
        self.available.get()
    }

    /// The buffer the kernel named in a completion.
    pub(super) fn lease(self: &Rc<Self>, id: u16, len: u32) -> RecvLease {
        assert!(id < self.entries, "the kernel names only buffers it was given");
        self.available.set(self.available.get().saturating_sub(1));
        self.tally.ring_buffers_available.set(u64::from(self.available.get()));
        RecvLease { pool: Rc::clone(self), id, len }
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: id < entries (asserted where ids enter), so the offset lies inside the mapping.
        unsafe { self.memory.base().add(usize::from(id) * RECV_BUFFER) }
    }

    fn provide(&self, id: u16) {
        let base: *mut BufRingEntry = self.ring.base().cast();
        let tail = self.tail.get();
        let at = usize::from(tail & (self.entries - 1));
        // SAFETY: `at` < entries; entries between head and tail belong to the kernel, this one is past the tail, so it
        // is ours. Only addr, len and bid are written: entry 0's last field is the tail itself.
        let entry = unsafe { &mut *base.add(at) };
        entry.set_addr(self.buffer(id) as u64);
        entry.set_len(RECV_BUFFER as u32);
        entry.set_bid(id);
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: the tail is a u16 inside the mapping, aligned; the kernel reads it with acquire.
        let shared = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
        shared.store(self.tail.get(), Ordering::Release);
        self.available.set(self.available.get() + 1);
        self.tally.ring_buffers_available.set(u64::from(self.available.get()));
    }

    /// The buffer provided at one position of the ring, as the kernel would read it.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn provided_at(&self, head: u16) -> u16 {
        let base: *const BufRingEntry = self.ring.base().cast();
        // SAFETY: the index is masked to the ring's size.
        unsafe { (*base.add(usize::from(head & (self.entries - 1)))).bid() }
    }

    /// The simulated kernel chooses a buffer and writes into it.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn write_simulated(&self, id: u16, bytes: &[u8]) {
        assert!(id < self.entries && bytes.len() <= RECV_BUFFER);
        // SAFETY: the buffer lies inside the mapping and was provided, so no lease reads it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer(id), bytes.len()) };
    }
}

/// One filled receive buffer; dropping it provides it again.
#[derive(Debug)]
pub struct RecvLease {
    pool: Rc<RecvPool>,
    id: u16,
    len: u32,
}

impl RecvLease {
    /// What was received.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the kernel wrote `len` bytes and does not touch the buffer until it is provided again (on drop).
        unsafe { std::slice::from_raw_parts(self.pool.buffer(self.id), (self.len as usize).min(RECV_BUFFER)) }
    }
}

impl Drop for RecvLease {
    fn drop(&mut self) {
        self.pool.provide(self.id);
    }
}
