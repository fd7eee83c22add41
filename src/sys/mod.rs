//! Unsafe floor, part 1: plain system calls, each wrapped so that its caller cannot misuse it.
//!
//! Nothing here knows what a request is. Rule of the folder: a wrapper takes borrowed descriptors and slices, so that
//! the compiler proves what the kernel needs (the descriptor is open, the memory is live for the call).

#![allow(unsafe_code)]

pub mod affinity;
pub mod disk;
pub mod memory;
pub mod probe;
pub mod socket;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Turns the `-1` convention into a `Result`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that the kernel has just handed to us and nobody else knows of.
pub fn own(fd: RawFd) -> OwnedFd {
    assert!(fd >= 0, "a descriptor from the kernel is never negative");
    // SAFETY: callers pass only descriptors received from an accept or open completion, exactly once (R3).
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// An eventfd, non-blocking and close-on-exec.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed; the result is checked before it is owned.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    Ok(own(fd))
}

/// A pipe whose ends are non-blocking and close-on-exec (a splice whose first hop moved nothing must not wait).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is two ints, as pipe2(2) wants, and lives for the call.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) })?;
    Ok((own(ends[0]), own(ends[1])))
}

/// Asks for a pipe of `bytes` and returns what was granted (F_SETPIPE_SZ, then F_GETPIPE_SZ).
///
/// A refusal (EPERM above pipe-max-size or pipe-user-pages-soft) is not an error here: the granted size tells.
pub fn size_pipe(pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let want = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: fcntl with an integer argument touches no memory of ours.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, want) };
    // SAFETY: as above.
    let granted = check(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) })?;
    Ok(granted as usize)
}

/// Bytes waiting in a pipe (FIONREAD).
pub fn pipe_bytes(pipe: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which lives for the call.
    check(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut bytes) })?;
    Ok(bytes.max(0) as usize)
}

/// splice(2) without offsets for pipes and sockets; `offset` only where `from` is a file.
pub fn splice(from: BorrowedFd<'_>, offset: Option<u64>, into: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let mut position = offset.unwrap_or(0) as libc::loff_t;
    let at = if offset.is_some() { &mut position as *mut _ } else { std::ptr::null_mut() };
    // SAFETY: `at` is null or points to a live loff_t; the descriptors are borrowed for the call.
    check_size(unsafe {
        libc::splice(
            from.as_raw_fd(),
            at,
            into.as_raw_fd(),
            std::ptr::null_mut(),
            len,
            libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
        )
    })
}

/// sendfile(2) from an explicit offset; returns the bytes the socket took.
pub fn sendfile(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
    let mut position = offset as libc::off_t;
    // SAFETY: `position` lives for the call; the descriptors are borrowed.
    check_size(unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &mut position, len) })
}

/// send(2) that never waits and never raises SIGPIPE; `more` sets MSG_MORE.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the slice is live for the call.
    check_size(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// recv(2) that never waits: bytes, zero at the end of the stream, or EAGAIN.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the slice is live and exclusively borrowed for the call.
    check_size(unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) })
}

/// read(2): takes bytes back out of a pipe.
pub fn read(from: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: as above.
    check_size(unsafe { libc::read(from.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) })
}

/// Reads what a non-blocking pipe still holds, and forgets it.
pub fn discard_rest(pipe: BorrowedFd<'_>) {
    let mut bytes = [0; 4096];
    while read(pipe, &mut bytes).is_ok_and(|n| n > 0) {}
}

/// preadv2(2) with RWF_NOWAIT: bytes that are in the page cache now, or EAGAIN.
pub fn read_cached(file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: one iovec over a live, exclusively borrowed slice.
    check_size(unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, offset as libc::off_t, libc::RWF_NOWAIT) })
}

/// How many pages of `len` bytes from `offset` are in the page cache (cachestat(2), Linux 6.5).
///
/// EPERM on a file that this user neither owns nor may write, ENOSYS before 6.5.
pub fn cached_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [offset, len];
    let mut stat = [0u64; 5];
    // SAFETY: the kernel reads two u64 (struct cachestat_range) and writes five (struct cachestat), both live.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd() as libc::c_uint, range.as_ptr(), stat.as_mut_ptr(), 0u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(stat[0]) }
}

/// What is known of the pages about to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// In the page cache.
    Warm,
    /// Some are not.
    Cold,
    /// The kernel does not tell for this file.
    Unknown,
}

/// posix_fadvise(2): drop these pages from the page cache if nothing else holds them (tests and probes).
pub fn drop_cached(file: BorrowedFd<'_>) {
    // SAFETY: no memory of ours is touched.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// What fstat(2) says that a file server wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Device, to tell one file from another.
    pub dev: u64,
    /// Inode, to tell one file from another (never told to a client).
    pub ino: u64,
    /// Bytes.
    pub len: u64,
    /// Modification time, whole seconds since 1970 (negative before).
    pub mtime: i64,
    /// Modification time, nanoseconds within the second.
    pub mtime_nanos: u32,
    /// Status change time: catches a rewrite that restored the modification time.
    pub ctime: i64,
    /// Nanoseconds within that second.
    pub ctime_nanos: u32,
    /// What it is.
    pub kind: FileKind,
}

/// Kinds of file that matter to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A FIFO, socket, device or anything else: never opened for reading.
    Other,
}

/// fstat(2); works on O_PATH descriptors too.
pub fn fstat(file: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the struct when it returns 0.
    check(unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call above succeeded, so every field is written.
    let stat = unsafe { stat.assume_init() };
    Ok(Stat {
        dev: stat.st_dev,
        ino: stat.st_ino,
        len: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: stat.st_mtime,
        mtime_nanos: stat.st_mtime_nsec as u32,
        ctime: stat.st_ctime,
        ctime_nanos: stat.st_ctime_nsec as u32,
        kind: match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            _ => FileKind::Other,
        },
    })
}

/// Opens a directory as a root for openat2(2).
pub fn open_root(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path is NUL-terminated and live.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_DIRECTORY | libc::O_RDONLY | libc::O_CLOEXEC) })?;
    Ok(own(fd))
}

/// A copy of a descriptor (F_DUPFD_CLOEXEC).
pub fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

/// The kernel's id of the calling thread.
pub fn gettid() -> i32 {
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// The effective user of this process.
pub fn user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// CPU time and context switches of this process, every thread it ever had included (getrusage(2), RUSAGE_SELF).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Seconds in user mode.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary ones.
    pub involuntary: u64,
}

/// What this process has used so far.
pub fn usage() -> Usage {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the struct, which lives for the call; zeroed is a valid value if it does not.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage {
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        voluntary: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
        involuntary: u64::try_from(usage.ru_nivcsw).unwrap_or(0),
    }
}

/// A file in memory without a name (memfd_create(2)), close-on-exec; its pages are page cache as any file's.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated and live; the result is checked before it is owned.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    Ok(own(fd))
}

/// Makes a child be killed when the thread that starts it ends (PR_SET_PDEATHSIG, prctl(2)), so that none is left behind.
pub fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec only prctl(2) is called, which is async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    };
}

/// Soft and hard limit of one resource (`libc::RLIMIT_*`).
pub fn rlimit(resource: libc::__rlimit_resource_t) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct lives for the call.
    check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Raises the soft limit of open files to the hard one; returns what holds now.
pub fn raise_nofile() -> io::Result<u64> {
    let (soft, hard) = rlimit(libc::RLIMIT_NOFILE)?;
    if soft < hard {
        let limit = libc::rlimit { rlim_cur: hard, rlim_max: hard };
        // SAFETY: the struct lives for the call.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    }
    Ok(hard)
}

/// Sends everything in a pipe to nowhere, so that the next user finds it empty; returns the bytes thrown away.
///
/// The pages are only references, so this costs one system call whatever the amount.
pub fn discard(pipe: BorrowedFd<'_>, null: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let mut gone = 0;
    while gone < bytes {
        match splice(pipe, None, null, bytes - gone) {
            Ok(0) => break,
            Ok(moved) => gone += moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_sized_pipe_tells_what_was_granted_and_a_discard_empties_it() {
        let (read, write) = pipe().expect("pipe");
        let granted = size_pipe(write.as_fd(), 256 << 10).expect("size");
        assert!(granted >= 4096);
        let file = std::fs::File::from(write);
        std::io::Write::write_all(&mut &file, b"left over").expect("write");
        assert_eq!(pipe_bytes(read.as_fd()).expect("FIONREAD"), 9);
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("/dev/null");
        assert_eq!(discard(read.as_fd(), null.as_fd(), 9).expect("discard"), 9);
        assert_eq!(pipe_bytes(read.as_fd()).expect("FIONREAD"), 0);
    }

    #[test]
    fn fstat_tells_files_from_the_rest() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(fstat(file.as_fd()).expect("fstat").kind, FileKind::Other);
        let dir = open_root(c".").expect("open .");
        assert_eq!(fstat(dir.as_fd()).expect("fstat").kind, FileKind::Directory);
    }
}
