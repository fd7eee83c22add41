//! One open file: what was said of it once, its body if it is small and hot, and which of its pages were seen warm.

use crate::clock::Nanos;
use crate::http::validator::Validators;
use crate::ring::op::SharedFd;
use crate::sys::{self, Residency, Stat};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::time::Duration;

/// Pages seen warm are believed for this long: a check of a megabyte costs about 2 % of sending it.
const BELIEVE: Duration = Duration::from_secs(1);
/// Smallest stretch of a file whose warmth is remembered.
const GRANULE: u64 = 256 << 10;
/// Most stretches remembered per file: 16 KiB of memory.
const GRANULES: u64 = 4096;
/// Where cachestat(2) is refused, one page in this many bytes is tried.
const SAMPLE: u64 = 64 << 10;

/// How this file's residency can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    /// Not tried yet.
    Unasked,
    /// cachestat(2): exact.
    Cachestat,
    /// preadv2(2) with RWF_NOWAIT on samples.
    Sample,
    /// Neither works on this file system.
    Unknown,
}

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    fd: SharedFd,
    stat: Stat,
    validators: Validators,
    content_type: Vec<u8>,
    content: RefCell<Option<Bytes>>,
    ask: Cell<Ask>,
    granule: u64,
    /// Written by this process alone: it does not change under a reader.
    ours: bool,
    /// Milliseconds of the clock when a stretch was last seen warm, plus one; 0 is never.
    warm: RefCell<Vec<u32>>,
}

impl OpenFile {
    /// A file just opened.
    pub fn new(fd: SharedFd, stat: Stat, content_type: Vec<u8>) -> Self {
        Self {
            fd,
            stat,
            validators: Validators::new(stat.len, stat.mtime, stat.mtime_nanos),
            content_type,
            content: RefCell::new(None),
            ask: Cell::new(Ask::Unasked),
            granule: GRANULE.max((stat.len / GRANULES).next_power_of_two()),
            ours: false,
            warm: RefCell::default(),
        }
    }

    /// A file of the cache, of `len` bytes when it is whole; what is not written yet is not asked for.
    pub fn stored(fd: SharedFd, len: u64) -> Self {
        let kind = sys::FileKind::Regular;
        let stat = Stat { dev: 0, ino: 0, len, mtime: 0, mtime_nanos: 0, ctime: 0, ctime_nanos: 0, kind };
        Self { ours: true, ..Self::new(fd, stat, Vec::new()) }
    }

    /// The descriptor.
    pub fn fd(&self) -> &SharedFd {
        &self.fd
    }
    /// What fstat(2) said when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }
    /// Bytes, when it was opened.
    pub fn len(&self) -> u64 {
        self.stat.len
    }
    /// Whether it was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.stat.len == 0
    }
    /// ETag and Last-Modified.
    pub fn validators(&self) -> &Validators {
        &self.validators
    }
    /// Content-Type.
    pub fn content_type(&self) -> &[u8] {
        &self.content_type
    }
    /// The body, where it is kept.
    pub fn content(&self) -> Option<Bytes> {
        self.content.borrow().clone()
    }
    /// Keeps the body.
    pub fn set_content(&self, body: Bytes) {
        *self.content.borrow_mut() = Some(body);
    }
    /// Gives the body up.
    pub fn take_content(&self) -> Option<Bytes> {
        self.content.borrow_mut().take()
    }

    /// Whether the file is still what it was when it was opened (a rename over it leaves this one as it was).
    pub fn is_unchanged(&self) -> bool {
        self.ours
            || sys::fstat(self.fd.as_fd()).is_ok_and(|now| {
                (now.len, now.mtime, now.mtime_nanos) == (self.stat.len, self.stat.mtime, self.stat.mtime_nanos)
            })
    }

    /// Whether `len` bytes from `offset` are in the page cache.
    pub fn residency(&self, offset: u64, len: u64, now: Nanos) -> Residency {
        let end = offset.saturating_add(len).min(self.stat.len);
        if offset >= end {
            return Residency::Warm;
        }
        let stamp = (now.0 / 1_000_000) as u32;
        let believed = BELIEVE.as_millis() as u32;
        let mut warm = self.warm.borrow_mut();
        for granule in offset / self.granule..=(end - 1) / self.granule {
            let at = granule as usize;
            let seen = warm.get(at).copied().unwrap_or(0);
            if seen != 0 && stamp.wrapping_sub(seen.wrapping_sub(1)) < believed {
                continue;
            }
            // The whole stretch if it is all there; else just the part that is wanted, without remembering it.
            let start = granule * self.granule;
            let stop = (start + self.granule).min(self.stat.len);
            match self.ask(start, stop) {
                Residency::Warm => {
                    if warm.len() <= at {
                        warm.resize((self.stat.len / self.granule + 1) as usize, 0);
                    }
                    warm[at] = stamp.wrapping_add(1).max(1);
                }
                Residency::Cold if (start, stop) != (start.max(offset), stop.min(end)) => {
                    match self.ask(start.max(offset), stop.min(end)) {
                        Residency::Warm => {}
                        other => return other,
                    }
                }
                other => return other,
            }
        }
        Residency::Warm
    }

    fn ask(&self, start: u64, end: u64) -> Residency {
        let fd = self.fd.as_fd();
        if matches!(self.ask.get(), Ask::Unasked | Ask::Cachestat) {
            let first = start & !4095;
            match sys::cached_pages(fd, first, end - first) {
                Ok(pages) => {
                    self.ask.set(Ask::Cachestat);
                    let whole = (end - first).div_ceil(4096);
                    return if pages >= whole { Residency::Warm } else { Residency::Cold };
                }
                // EPERM: neither owner nor writer; ENOSYS: before Linux 6.5; EOPNOTSUPP: hugetlbfs.
                Err(_) => self.ask.set(Ask::Sample),
            }
        }
        if self.ask.get() == Ask::Sample {
            let mut at = start;
            let mut byte = [0; 1];
            while at < end {
                match sys::read_cached(fd, at, &mut byte) {
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Residency::Cold,
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                    Err(_) => {
                        self.ask.set(Ask::Unknown);
                        return Residency::Unknown;
                    }
                }
                at += SAMPLE;
            }
            return Residency::Warm;
        }
        Residency::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::rc::Rc;

    fn open(len: usize) -> (tempfile::NamedTempFile, OpenFile) {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        file.write_all(&vec![7; len]).expect("write");
        file.as_file().sync_all().expect("sync");
        let fd = std::os::fd::OwnedFd::from(std::fs::File::open(file.path()).expect("open"));
        let stat = sys::fstat(fd.as_fd()).expect("fstat");
        let open = OpenFile::new(Rc::new(fd), stat, Vec::new());
        (file, open)
    }

    #[test]
    fn written_pages_are_warm_and_dropped_ones_are_not() {
        let (_keep, file) = open(1 << 20);
        assert_eq!(file.residency(0, 1 << 20, Nanos(0)), Residency::Warm);
        sys::drop_cached(file.fd().as_fd());
        assert_eq!(file.residency(0, 1 << 20, Nanos(0)), Residency::Warm, "believed for a second");
        let later = Nanos(2_000_000_000);
        if file.residency(0, 1 << 20, later) == Residency::Warm {
            eprintln!("skipped: this file system keeps pages that were advised away");
        }
    }

    #[test]
    fn a_changed_file_is_seen() {
        let (named, file) = open(100);
        assert!(file.is_unchanged());
        named.as_file().set_len(50).expect("truncate");
        assert!(!file.is_unchanged());
    }

    #[test]
    fn a_range_past_the_end_asks_nothing() {
        let (_keep, file) = open(10);
        assert_eq!(file.residency(10, 100, Nanos(0)), Residency::Warm);
        assert_eq!(file.residency(u64::MAX, 1, Nanos(0)), Residency::Warm);
    }
}
