//! Names to open files: confined to a root, cached per core, and never blocked by what is not a regular file.
//!
//! Everything is opened relative to a root with openat2(2) RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS through the ring:
//! symbolic links that stay inside work, others do not exist. Invariant: an [`OpenFile`] is what one fstat(2) said of
//! one descriptor; if the file changes, a new one is made.

pub mod file;
pub mod open_cache;
pub mod resolve;

use crate::clock::Nanos;
use crate::ring::Ring;
use crate::ring::completion::Errno;
use crate::ring::op::{Op, SharedFd};
use crate::sys::{self, FileKind, Stat};
use crate::telemetry::tally::{ContentLookup, FileLookup, Limit, Tally};
use file::OpenFile;
use open_cache::{Lookup, OpenCache};
use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What a name stands for.
#[derive(Clone, Debug)]
pub enum Found {
    /// A regular file.
    File(Rc<OpenFile>),
    /// A directory asked for without its slash.
    Directory,
    /// Nothing to serve.
    Missing(Missing),
}

/// Why there is nothing to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// No such file, or not one that is served (FIFO, socket, device, a link out of the root).
    NotFound,
    /// Not readable for this process, or a directory without an index.
    Forbidden,
    /// Out of descriptors or memory: worth another try (not cached).
    Busy,
    /// The disk failed (not cached).
    Failed(Errno),
}

/// What a store needs to know of one route.
#[derive(Clone, Debug)]
pub struct Root {
    /// The directory.
    pub fd: SharedFd,
    /// Index files, in order of preference.
    pub index: Vec<String>,
    /// How stale a cached descriptor may be.
    pub revalidate: Duration,
    /// Content-Type where the extension is unknown.
    pub default_type: String,
}

/// One core's files.
#[derive(Debug)]
pub struct Store {
    roots: Vec<Root>,
    cache: RefCell<OpenCache<Found>>,
    content_budget: usize,
    content_object: usize,
    tally: Arc<Tally>,
}

/// RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH, see openat2(2).
const RESOLVE: u64 = 0x02 | 0x08;
/// A lookup that raced with a rename answers EAGAIN under RESOLVE_BENEATH; it is tried again this often.
const RACES: u32 = 8;

impl Store {
    /// A store over `roots` (one per route) with at most `open_files` descriptors and `content_budget` bytes of bodies.
    pub fn new(
        roots: Vec<Root>,
        open_files: usize,
        content_budget: usize,
        content_object: usize,
        tally: Arc<Tally>,
    ) -> Self {
        Self { roots, cache: RefCell::new(OpenCache::new(open_files)), content_budget, content_object, tally }
    }

    /// What is known of a name without asking the kernel; `None` means [`Store::open`].
    ///
    /// `path` is absolute within the route (it begins with `/`), decoded and without dot segments.
    #[inline]
    pub fn known(&self, route: usize, path: &[u8], now: Nanos) -> Option<Found> {
        let cache = self.cache.borrow();
        let (lookup, found) = match cache.find(route, path, now, self.roots[route].revalidate) {
            Lookup::Fresh(found @ Found::Missing(_)) => (FileLookup::Negative, Some(found.clone())),
            Lookup::Fresh(found) => (FileLookup::Hit, Some(found.clone())),
            Lookup::Stale(_) => (FileLookup::Stale, None),
            Lookup::Miss => (FileLookup::Miss, None),
        };
        self.tally.file_lookups[lookup as usize].add(1);
        found
    }

    /// Opens a name, or confirms what the cache has; the answer is cached if it is worth it.
    pub async fn open(&self, ring: &Ring, route: usize, path: &[u8], now: Nanos) -> Found {
        let found = self.look(ring, route, path).await;
        let worth = !matches!(found, Found::Missing(Missing::Busy | Missing::Failed(_)));
        let mut cache = self.cache.borrow_mut();
        if !worth {
            return found;
        }
        let found = match (cache.peek(route, path), found) {
            // Nothing changed: keep the old descriptor with its content and its warm pages.
            (Some(Found::File(old)), Found::File(new)) if old.stat() == new.stat() => Found::File(Rc::clone(old)),
            (_, found) => found,
        };
        cache.insert(route, path, found.clone(), now, |old, evicted| {
            if evicted {
                self.tally.hit(Limit::OpenFiles);
            }
            // The same descriptor put back is not gone.
            if !matches!((&old, &found), (Found::File(old), Found::File(new)) if Rc::ptr_eq(old, new)) {
                self.gone(&old);
            }
        });
        self.tally.open_files.set(cache.len() as u64);
        found
    }

    /// Drops a name from the cache: what it stood for was seen to have changed.
    pub fn forget(&self, route: usize, path: &[u8]) {
        let mut cache = self.cache.borrow_mut();
        if let Some(old) = cache.remove(route, path) {
            self.gone(&old);
        }
        self.tally.open_files.set(cache.len() as u64);
    }

    /// A file that is kept elsewhere leaves: its body is given up.
    pub fn release(&self, file: &OpenFile) {
        if let Some(body) = file.take_content() {
            self.tally.content_bytes.sub(body.len() as u64);
            self.tally.content_objects.sub(1);
        }
    }

    /// A cached answer left: its body, if it had one, is given up with it.
    fn gone(&self, found: &Found) -> usize {
        let Found::File(file) = found else { return 0 };
        let Some(body) = file.take_content() else { return 0 };
        self.tally.content_bytes.sub(body.len() as u64);
        self.tally.content_objects.sub(1);
        body.len()
    }

    /// Whether a file's body may be kept in memory.
    pub fn may_keep(&self, file: &OpenFile) -> bool {
        file.len() <= self.content_object as u64 && self.content_budget > 0
    }

    /// Keeps a body with its file, making room by forgetting bodies that were not asked for lately.
    pub fn keep(&self, file: &OpenFile, body: bytes::Bytes) {
        let budget = self.content_budget;
        let mut held = self.tally.content_bytes.get() as usize + body.len();
        if held > budget {
            self.tally.hit(Limit::ContentCache);
            self.cache.borrow_mut().sweep(|found| {
                held -= self.gone(found);
                held > budget
            });
        }
        if held <= budget && file.content().is_none() {
            self.tally.content_bytes.add(body.len() as u64);
            self.tally.content_objects.add(1);
            file.set_content(body);
        }
    }

    /// Counts a lookup of the content cache.
    #[inline]
    pub fn content(&self, file: &OpenFile) -> Option<bytes::Bytes> {
        let body = file.content();
        let lookup = if body.is_some() { ContentLookup::Hit } else { ContentLookup::Miss };
        self.tally.content_lookups[lookup as usize].add(1);
        body
    }

    async fn look(&self, ring: &Ring, route: usize, path: &[u8]) -> Found {
        let root = &self.roots[route];
        for candidate in resolve::candidates(path, &root.index) {
            match self.look_at(ring, root, &candidate).await {
                Ok(found) => return found,
                Err(Missing::NotFound) => {}
                Err(missing) => return Found::Missing(missing),
            }
        }
        // A directory that exists but has no index is there and not shown.
        if path.ends_with(b"/")
            && let Ok(directory) = resolve::relative(path)
            && let Ok(fd) = open(ring, &root.fd, directory, libc::O_PATH | libc::O_DIRECTORY).await
        {
            drop(fd);
            return Found::Missing(Missing::Forbidden);
        }
        Found::Missing(Missing::NotFound)
    }

    async fn look_at(&self, ring: &Ring, root: &Root, path: &CString) -> Result<Found, Missing> {
        // O_PATH first: opening a FIFO or a device for reading has side effects even when it does not block.
        let name = open(ring, &root.fd, path.clone(), libc::O_PATH).await?;
        match stat(&name)?.kind {
            FileKind::Other => return Err(Missing::NotFound),
            FileKind::Directory if path.as_bytes().ends_with(b"/") || path.as_bytes() == b"." => {
                return Err(Missing::NotFound);
            }
            FileKind::Directory => return Ok(Found::Directory),
            FileKind::Regular => {}
        }
        drop(name);
        let fd = open(ring, &root.fd, path.clone(), libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY).await?;
        let stat = stat(&fd)?;
        if stat.kind != FileKind::Regular {
            return Err(Missing::NotFound);
        }
        let content_type = crate::http::content_type::of(path.as_bytes(), root.default_type.as_bytes()).into_owned();
        Ok(Found::File(Rc::new(OpenFile::new(fd, stat, content_type))))
    }
}

fn stat(fd: &SharedFd) -> Result<Stat, Missing> {
    sys::fstat(fd.as_fd()).map_err(|error| Missing::Failed(Errno(error.raw_os_error().unwrap_or(libc::EIO))))
}

async fn open(ring: &Ring, root: &SharedFd, path: CString, flags: i32) -> Result<SharedFd, Missing> {
    let mut path = path;
    for _ in 0..RACES {
        let how = io_uring::types::OpenHow::new().flags((flags | libc::O_CLOEXEC) as u64).resolve(RESOLVE);
        let opened = ring.submit(Op::OpenAt { root: Rc::clone(root), path, how: Box::new(how) }).await;
        let errno = match opened.result {
            Ok(fd) => return Ok(Rc::new(sys::own(fd as i32))),
            Err(errno) => errno,
        };
        match (errno.0, opened.op) {
            (libc::EAGAIN | libc::EINTR, Some(Op::OpenAt { path: again, .. })) => path = again,
            _ => return Err(missing(errno)),
        }
    }
    Err(Missing::Busy)
}

fn missing(errno: Errno) -> Missing {
    match errno.0 {
        libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EXDEV | libc::ENXIO | libc::ENODEV => {
            Missing::NotFound
        }
        libc::EACCES | libc::EPERM => Missing::Forbidden,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::ECANCELED => Missing::Busy,
        _ => Missing::Failed(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_name() {
        assert_eq!(missing(Errno(libc::ENOENT)), Missing::NotFound);
        assert_eq!(missing(Errno(libc::EXDEV)), Missing::NotFound, "a link out of the root does not exist");
        assert_eq!(missing(Errno(libc::EACCES)), Missing::Forbidden);
        assert_eq!(missing(Errno(libc::EMFILE)), Missing::Busy);
        assert_eq!(missing(Errno(libc::EIO)), Missing::Failed(Errno(libc::EIO)));
    }
}
