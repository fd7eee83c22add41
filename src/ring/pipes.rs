//! The pipe pool: a budget, sizes as really granted, and no pipe that is not empty.
//!
//! Unprivileged users share `fs.pipe-user-pages-soft` pages (64 MiB): past it F_SETPIPE_SZ is EPERM and new pipes are
//! silently 8 KiB, so every pipe's size is read back. Invariant: a pooled pipe is empty; a dirty one is emptied into
//! /dev/null or closed (its bytes would reach the next client).

use crate::sys;
use crate::telemetry::tally::{Limit, PipeFailure, Tally};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

/// A pipe smaller than this moves so little per splice that copying is cheaper.
const WORTH: usize = 64 << 10;

/// The pool of one core.
#[derive(Debug)]
pub struct PipePool {
    idle: RefCell<Vec<Ends>>,
    made: Cell<usize>,
    most: usize,
    want: usize,
    null: OwnedFd,
    returned: Cell<bool>,
    tally: Arc<Tally>,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

impl PipePool {
    /// A pool of at most `most` pipes, each of `want` bytes where the kernel grants it.
    pub fn new(most: usize, want: usize, tally: Arc<Tally>) -> io::Result<Rc<Self>> {
        let null = OwnedFd::from(std::fs::OpenOptions::new().write(true).open("/dev/null")?);
        Ok(Rc::new(Self {
            idle: RefCell::default(),
            made: Cell::new(0),
            most,
            want,
            null,
            returned: Cell::new(false),
            tally,
        }))
    }

    /// Borrows an empty pipe; `None` at the budget, or where the kernel grants none worth having.
    pub fn lease(self: &Rc<Self>) -> Option<Pipe> {
        let idle = self.idle.borrow_mut().pop();
        let ends = match idle {
            Some(ends) => ends,
            None => self.make()?,
        };
        let pipe = Pipe { ends: Some(ends), pool: Rc::clone(self) };
        self.count();
        Some(pipe)
    }

    /// Whether a pipe came home since this was last asked.
    pub fn take_returned(&self) -> bool {
        self.returned.replace(false)
    }

    /// Whether a pipe can be had now or after waiting for one that is lent.
    pub fn can_lease(&self) -> bool {
        self.made.get() > 0 || self.ready()
    }

    /// Whether fewer than one in `of` pipes is free or could still be made.
    pub fn is_scarce(&self, of: u64) -> bool {
        let free = self.idle.borrow().len() + self.most.saturating_sub(self.made.get());
        (free as u64) < self.most as u64 / of
    }

    /// Makes sure that there is at least one pipe; false where the kernel grants none worth having.
    fn ready(&self) -> bool {
        match self.make() {
            Some(ends) => {
                self.idle.borrow_mut().push(ends);
                true
            }
            None => false,
        }
    }

    fn make(&self) -> Option<Ends> {
        if self.made.get() >= self.most {
            self.tally.hit(Limit::Pipes);
            return None;
        }
        let made = sys::pipe().and_then(|(read, write)| {
            // 1 MiB first; a refusal leaves what pipe2 gave, so step down before giving up.
            let mut size = sys::size_pipe(write.as_fd(), self.want)?;
            if size < self.want {
                self.tally.pipe_failures[PipeFailure::PagesLimit as usize].add(1);
                size = sys::size_pipe(write.as_fd(), (self.want / 4).max(WORTH))?;
            }
            Ok(Ends { read, write, size })
        });
        match made {
            Ok(ends) if ends.size < WORTH => {
                self.tally.pipe_failures[PipeFailure::PagesLimit as usize].add(1);
                None
            }
            Ok(ends) => {
                self.made.set(self.made.get() + 1);
                self.tally.pipe_capacity_bytes.add(ends.size as u64);
                Some(ends)
            }
            Err(error) => {
                let reason = match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => PipeFailure::Emfile,
                    _ => PipeFailure::Other,
                };
                self.tally.pipe_failures[reason as usize].add(1);
                None
            }
        }
    }

    fn count(&self) {
        let idle = self.idle.borrow().len();
        self.tally.pipes_idle.set(idle as u64);
        self.tally.pipes_busy.set((self.made.get() - idle) as u64);
    }

    fn retire(&self, ends: &Ends) {
        self.made.set(self.made.get() - 1);
        self.tally.pipe_capacity_bytes.sub(ends.size as u64);
    }
}

/// One pipe, exclusively; dropped, it goes back to the pool empty or is closed.
#[derive(Debug)]
pub struct Pipe {
    ends: Option<Ends>,
    pool: Rc<PipePool>,
}

impl Pipe {
    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("a leased pipe has its ends until it is dropped")
    }
    /// The reading end.
    pub fn read(&self) -> &OwnedFd {
        &self.ends().read
    }
    /// The writing end.
    pub fn write(&self) -> &OwnedFd {
        &self.ends().write
    }
    /// Bytes the kernel granted.
    pub fn size(&self) -> usize {
        self.ends().size
    }
    /// Bytes in it now.
    pub fn held(&self) -> io::Result<usize> {
        sys::pipe_bytes(self.read().as_fd())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        self.pool.returned.set(true);
        // FIONREAD is the kernel's own count, so this holds whatever our bookkeeping believes.
        let clean = sys::pipe_bytes(ends.read.as_fd()).and_then(|held| {
            if held == 0 {
                return Ok(true);
            }
            self.pool.tally.pipe_discarded_bytes.add(held as u64);
            sys::discard(ends.read.as_fd(), self.pool.null.as_fd(), held)?;
            Ok(sys::pipe_bytes(ends.read.as_fd())? == 0)
        });
        match clean {
            Ok(true) => self.pool.idle.borrow_mut().push(ends),
            _ => self.pool.retire(&ends),
        }
        self.pool.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pool(most: usize) -> (Rc<PipePool>, Arc<Tally>) {
        let tally = Arc::new(Tally::new(1));
        (PipePool::new(most, 256 << 10, Arc::clone(&tally)).expect("pool"), tally)
    }

    #[test]
    fn a_dirty_pipe_comes_back_empty() {
        let (pool, tally) = pool(1);
        let pipe = pool.lease().expect("pipe");
        std::fs::File::from(pipe.write().try_clone().expect("dup")).write_all(b"of another client").expect("write");
        assert_eq!(pipe.held().expect("held"), 17);
        drop(pipe);
        let again = pool.lease().expect("the same pipe");
        assert_eq!(again.held().expect("held"), 0);
        assert_eq!(tally.pipe_discarded_bytes.get(), 17);
    }

    #[test]
    fn the_budget_is_kept_and_counted() {
        let (pool, tally) = pool(2);
        let both = (pool.lease().expect("one"), pool.lease().expect("two"));
        assert!(pool.lease().is_none());
        assert_eq!(tally.limit_hits[Limit::Pipes as usize].get(), 1);
        assert_eq!((tally.pipes_busy.get(), tally.pipes_idle.get()), (2, 0));
        drop(both);
        assert_eq!((tally.pipes_busy.get(), tally.pipes_idle.get()), (0, 2));
    }
}
