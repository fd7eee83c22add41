//! What a file system has left, and a lock on a file between processes.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What an unprivileged process may still use of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes.
    pub bytes: u64,
    /// Inodes; `None` where the file system makes them as needed (btrfs).
    pub inodes: Option<u64>,
}

/// fstatvfs(3) of the file system that holds this file.
pub fn space(file: BorrowedFd<'_>) -> io::Result<Space> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the descriptor is borrowed; the call fills the struct when it returns 0.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call above succeeded, so every field is written.
    let stat = unsafe { stat.assume_init() };
    Ok(Space {
        bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: (stat.f_files > 0).then_some(stat.f_favail),
    })
}

/// flock(2), exclusive, without waiting: false where another open file description holds it. Closing the file, or the
/// death of its process, lets go.
pub fn try_lock(file: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: no memory of ours is touched; the descriptor is borrowed.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn space_is_told_and_a_lock_is_held_until_it_is_closed() {
        let file = tempfile::NamedTempFile::new().expect("file");
        assert!(space(file.as_file().as_fd()).expect("statvfs").bytes > 0);
        let other = std::fs::File::open(file.path()).expect("open");
        assert!(try_lock(file.as_file().as_fd()).expect("lock"));
        assert!(!try_lock(other.as_fd()).expect("lock"));
        drop(file);
        assert!(try_lock(other.as_fd()).expect("lock"));
    }
}
