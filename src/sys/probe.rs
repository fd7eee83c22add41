//! What this kernel really does, found out by doing it: never by its version string (distributions backport).
//!
//! Each probe is bounded in time and leaves nothing behind. Results are types that `transfer::plan` reads, lines in the
//! start-up message, and `ringway_capability_enabled` in the metrics.

#![allow(unsafe_code)]

use super::memory::Mapping;
use io_uring::{IoUring, opcode, types};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Whether splice passes references to page-cache pages or copies them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplicePages {
    /// References: zero copy; a write to the file shows up in bytes already "sent".
    Shares,
    /// Copies: hardened kernels.
    Copies,
    /// No writable place to find out.
    Unknown,
}

/// What the kernel gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// SEND_ZC works on TCP.
    pub send_zc: bool,
    /// SEND_ZC tells whether it copied (Linux 6.2).
    pub zc_reports: bool,
    /// SPLICE works through the ring and a full non-blocking socket gives EAGAIN instead of holding a worker.
    pub splice: bool,
    /// What splice does with pages.
    pub splice_pages: SplicePages,
    /// Bytes of a pipe that asked for `pipe_bytes_wanted`.
    pub pipe_bytes: usize,
    /// cachestat(2) works on a file of ours (6.5).
    pub cachestat: bool,
    /// RWF_NOWAIT reads work.
    pub nowait_read: bool,
    /// Waiting in the ring is not accounted as iowait (6.15).
    pub no_iowait: bool,
}

impl Capabilities {
    /// Everything at its best: for tests of what is decided from it.
    pub fn all() -> Self {
        Self {
            send_zc: true,
            zc_reports: true,
            splice: true,
            splice_pages: SplicePages::Shares,
            pipe_bytes: 1 << 20,
            cachestat: true,
            nowait_read: true,
            no_iowait: true,
        }
    }

    /// As label values of `ringway_capability_enabled`.
    pub fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("send_zc", self.send_zc),
            ("send_zc_usage_report", self.zc_reports),
            ("splice", self.splice),
            ("splice_shares_pages", self.splice_pages == SplicePages::Shares),
            ("cachestat", self.cachestat),
            ("nowait_read", self.nowait_read),
            ("no_iowait", self.no_iowait),
        ]
    }
}

/// What could not be had that ringway cannot do without.
#[derive(Debug)]
pub struct ProbeError {
    /// What was tried.
    pub step: &'static str,
    /// What the kernel said.
    pub error: io::Error,
}

fn at(step: &'static str) -> impl Fn(io::Error) -> ProbeError {
    move |error| ProbeError { step, error }
}

/// Runs every probe; fails only where ringway cannot work at all.
pub fn run(pipe_bytes_wanted: usize) -> Result<Capabilities, ProbeError> {
    let mut ring = IoUring::new(8).map_err(at("set up an io_uring"))?;
    let mut known = io_uring::Probe::new();
    ring.submitter().register_probe(&mut known).map_err(at("ask which io_uring operations there are"))?;
    let needed: [(&'static str, u8); 7] = [
        ("use io_uring accept", opcode::AcceptMulti::CODE),
        ("use io_uring recv", opcode::RecvMulti::CODE),
        ("use io_uring send", opcode::Send::CODE),
        ("use io_uring sendmsg", opcode::SendMsg::CODE),
        ("use io_uring poll", opcode::PollAdd::CODE),
        ("use io_uring read", opcode::Read::CODE),
        ("use io_uring openat2", opcode::OpenAt2::CODE),
    ];
    for (step, code) in needed {
        if !known.is_supported(code) {
            return Err(ProbeError { step, error: io::Error::from_raw_os_error(libc::EOPNOTSUPP) });
        }
    }
    multishot_recv(&mut ring).map_err(at("receive with one multishot operation and provided buffers (Linux 6.0)"))?;
    let (send_zc, zc_reports) = if known.is_supported(opcode::SendZc::CODE) { zero_copy() } else { (false, false) };
    let splice = known.is_supported(opcode::Splice::CODE) && splice_gives_again().unwrap_or(false);
    let pipe_bytes =
        super::pipe().and_then(|(_read, write)| super::size_pipe(write.as_fd(), pipe_bytes_wanted)).unwrap_or(0);
    let file = temporary();
    let splice_pages = file.as_ref().and_then(|file| pages(file).ok()).unwrap_or(SplicePages::Unknown);
    let cachestat = file.as_ref().is_some_and(|file| super::cached_pages(file.as_fd(), 0, 4096).is_ok());
    let nowait_read = file.as_ref().is_some_and(|file| super::read_cached(file.as_fd(), 0, &mut [0; 1]).is_ok());
    let no_iowait = ring.params().is_feature_no_iowait();
    Ok(Capabilities { send_zc, zc_reports, splice, splice_pages, pipe_bytes, cachestat, nowait_read, no_iowait })
}

/// Submits and waits up to 300 ms for one completion; `None` if none came.
fn one(ring: &mut IoUring) -> io::Result<Option<(i32, u32)>> {
    if let Some(cqe) = ring.completion().next() {
        return Ok(Some((cqe.result(), cqe.flags())));
    }
    let spec = types::Timespec::from(Duration::from_millis(300));
    let args = types::SubmitArgs::new().timespec(&spec);
    match ring.submitter().submit_with_args(1, &args) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
        Err(error) => return Err(error),
    }
    Ok(ring.completion().next().map(|cqe| (cqe.result(), cqe.flags())))
}

fn push(ring: &mut IoUring, entry: io_uring::squeue::Entry) -> io::Result<()> {
    // SAFETY: each caller keeps what the entry points to alive until its completion was reaped or the ring is dropped
    // after a cancel (R1, R6); the probes use leaked or longer-lived memory where a completion may not come.
    unsafe { ring.submission().push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
}

fn multishot_recv(ring: &mut IoUring) -> io::Result<()> {
    let table = Mapping::new(4096)?;
    let buffer = Mapping::new(4096)?;
    // SAFETY: both mappings are unmapped at the end of this function, after the group was unregistered.
    unsafe { ring.submitter().register_buf_ring_with_flags(table.base() as u64, 1, 0, 0) }?;
    let base: *mut types::BufRingEntry = table.base().cast();
    // SAFETY: entry 0 lies in the mapping and the kernel has not been told of it yet.
    let entry = unsafe { &mut *base };
    entry.set_addr(buffer.base() as u64);
    entry.set_len(4096);
    entry.set_bid(0);
    // SAFETY: the tail lies in the mapping; nothing else writes it.
    unsafe { types::BufRingEntry::tail(base).cast_mut().write_volatile(1) };
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    push(ring, opcode::RecvMulti::new(types::Fd(theirs.as_raw_fd()), 0).build())?;
    ring.submit()?;
    ours.write_all(b"x")?;
    let first = one(ring)?;
    drop(ours);
    let ok = matches!(first, Some((1, flags)) if io_uring::cqueue::more(flags));
    // The closed peer ends the operation; wait for that before the memory goes.
    if matches!(first, Some((_, flags)) if io_uring::cqueue::more(flags)) {
        one(ring)?;
    }
    ring.submitter().unregister_buf_ring(0)?;
    match first {
        _ if ok => Ok(()),
        Some((result, _)) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    Ok((ours, theirs))
}

/// Whether SEND_ZC works, and whether it reports its usage.
fn zero_copy() -> (bool, bool) {
    let attempt = |reports: bool| -> io::Result<bool> {
        let mut ring = IoUring::new(8)?;
        let (ours, _theirs) = tcp_pair()?;
        let memory: &'static [u8; 4096] = &[0; 4096];
        let flags = if reports { 1 << 3 } else { 0 };
        push(
            &mut ring,
            opcode::SendZc::new(types::Fd(ours.as_raw_fd()), memory.as_ptr(), memory.len() as u32)
                .zc_flags(flags)
                .build(),
        )?;
        let Some((sent, flags)) = one(&mut ring)? else { return Ok(false) };
        if io_uring::cqueue::more(flags) && one(&mut ring)?.is_none() {
            return Ok(false);
        }
        Ok(sent == memory.len() as i32)
    };
    if attempt(true).unwrap_or(false) { (true, true) } else { (attempt(false).unwrap_or(false), false) }
}

/// Times the probe's socket is filled.
const FILLS: usize = 50;

/// Whether a splice to a full non-blocking socket answers EAGAIN rather than parking a worker.
fn splice_gives_again() -> io::Result<bool> {
    let mut ring = IoUring::new(8)?;
    let (ours, _theirs) = tcp_pair()?;
    ours.set_nonblocking(true)?;
    let chunk = [0u8; 16 << 10];
    let (read, write) = super::pipe()?;
    let mut result = None;
    // A full socket may make room again when what it sent is acknowledged: then it is filled again.
    for _ in 0..FILLS {
        while (&ours).write(&chunk).is_ok() {}
        std::fs::File::from(write.try_clone()?).write_all(&chunk[..4096])?;
        push(
            &mut ring,
            opcode::Splice::new(types::Fd(read.as_raw_fd()), -1, types::Fd(ours.as_raw_fd()), -1, 4096).build(),
        )?;
        result = one(&mut ring)?;
        match result {
            Some((moved, _)) if moved >= 0 => super::discard_rest(read.as_fd()),
            _ => break,
        }
    }
    if result.is_none() {
        // An older kernel waits here: end the wait by ending the connection, then reap.
        super::socket::shutdown(ours.as_fd());
        one(&mut ring)?;
    }
    Ok(matches!(result, Some((result, _)) if result == -libc::EAGAIN))
}

fn temporary() -> Option<std::fs::File> {
    temporary_in(&std::env::temp_dir())
}

/// A nameless file there, one page long.
fn temporary_in(folder: &Path) -> Option<std::fs::File> {
    let file = std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder).ok()?;
    file.write_all_at(&[b'a'; 4096], 0).ok()?;
    Some(file)
}

/// What splice does with pages of files in a directory.
pub fn splice_pages_in(folder: &Path) -> SplicePages {
    temporary_in(folder).and_then(|file| pages(&file).ok()).unwrap_or(SplicePages::Unknown)
}

/// Whether files of a directory can be opened with O_DIRECT; `None` where no file can be made to try it with.
pub fn direct_read(folder: &Path) -> Option<bool> {
    temporary_in(folder)?;
    // Opening is where a file system without it says EINVAL.
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_DIRECT);
    Some(options.open(folder).is_ok())
}

fn pages(file: &std::fs::File) -> io::Result<SplicePages> {
    let (read, write) = super::pipe()?;
    super::splice(file.as_fd(), Some(0), write.as_fd(), 4096)?;
    file.write_all_at(&[b'b'; 4096], 0)?;
    let mut seen = [0u8; 1];
    io::Read::read_exact(&mut std::fs::File::from(read), &mut seen)?;
    Ok(if seen[0] == b'b' { SplicePages::Shares } else { SplicePages::Copies })
}

/// Why io_uring may be refused here, as a remedy a person can act on.
pub fn why_denied(error: &io::Error) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let disabled = read("/proc/sys/kernel/io_uring_disabled").trim().to_owned();
    let seccomp = read("/proc/self/status").lines().any(|line| line == "Seccomp:\t2");
    match error.raw_os_error() {
        Some(libc::EPERM) if disabled == "1" || disabled == "2" => format!(
            "the sysctl kernel.io_uring_disabled is {disabled}: set it to 0{}",
            if disabled == "1" { ", or add this user to the group in kernel.io_uring_group" } else { "" }
        ),
        Some(libc::EPERM | libc::EACCES) if seccomp => "a seccomp filter denies io_uring (container run-times do by \
             default): run with a profile that allows io_uring_setup, io_uring_enter and io_uring_register"
            .to_owned(),
        Some(libc::ENOSYS) => "this kernel has no io_uring, or a sandbox hides it: use Linux 6.1 or newer, and a \
             seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register"
            .to_owned(),
        Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (LimitMEMLOCK= in systemd, --ulimit memlock in Docker)".to_owned(),
        Some(libc::EMFILE) => "raise RLIMIT_NOFILE (LimitNOFILE= in systemd)".to_owned(),
        _ => "ringway needs Linux 6.1 or newer with io_uring".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_end_and_leave_no_descriptor() {
        let count = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let before = count();
        let capabilities = match run(1 << 20) {
            Ok(capabilities) => capabilities,
            Err(ProbeError { step, error }) => {
                eprintln!("skipped: cannot {step}: {error}");
                return;
            }
        };
        assert!(capabilities.pipe_bytes >= 4096);
        // Other tests of this process open and close descriptors meanwhile: allow a few.
        assert!(count() <= before + 16, "descriptors leaked");
    }
}
