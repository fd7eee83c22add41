//! Page-aligned anonymous memory that the kernel may keep reading: arenas and provided-buffer rings.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// One anonymous mapping, never moved, unmapped on drop.
///
/// It hands out raw pointers only; who may touch which part when is decided by the ring's buffer pools (R1).
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` zeroed bytes in small pages, whatever the system's transparent-huge-page setting.
    ///
    /// A zero-copy send from a registered buffer accounts `length + offset within the (huge) page` as the packet's
    /// true size (`io_sg_from_iter`, Linux 6.18): from 2 MiB pages a 5 KiB packet was seen charged 460 KiB to the
    /// receiver's buffer, which closed its window until the persist timer, again and again.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(4096);
        // SAFETY: a fresh anonymous mapping, no address is forced.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on our own fresh mapping; a refusal (no THP in this kernel) changes nothing.
        unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { base, len })
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a mapping has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory up for good: used when the kernel could not be made to let go of it in time (R6).
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are of our own mmap, and the owner drops it only after the ring is gone (R6).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
