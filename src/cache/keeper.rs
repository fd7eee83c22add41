//! The cache directory and the one thread that owns it: journal, unlinking, what the disk has left.
//!
//! DIR/version says whose directory it is, DIR/lock which process has it, DIR/journal what is known, DIR/data/xx/ID holds
//! an object's bytes (ID in hex, xx its low byte). The cores write the data files; everything here may block and therefore
//! runs on a thread of its own, fed by a queue.
//!
//! Invariant: what a restart believes was recorded before and is not known to be wrong.
//! - A file without a record is swept, a record without its file is dropped, so a removal holds as soon as either the
//!   unlink or the record reaches the disk. Ids are never reused, so no old record can claim a new file.
//! - Nothing is synced (but a compacted journal before it replaces the old one): records may be lost, and a slice's bytes
//!   may be missing though its record is there. Whoever reads a recovered slice first must check its CRC32C.
//! - A journal that cannot be written keeps its records in memory for a while and tries again. Beyond a bound they are
//!   lost, and then so is the whole journal: it starts anew, empty, rather than with metas that were replaced since.

use super::journal::{self, Record, Recovered};
use crate::clock::{Clock, Nanos};
use crate::error::{Error, Kind, Result, describe};
use crate::sys::disk;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What DIR/version says.
const VERSION: &str = "ringway cache 1\n";
/// Records wait at most this long, and at most `BATCH_BYTES`, for others to be written with.
const BATCH_TIME: Duration = Duration::from_millis(50);
const BATCH_BYTES: usize = 64 << 10;
/// Between two attempts at what failed.
const RETRY: Duration = Duration::from_secs(1);
/// Between two looks at what the disk has left.
const LOOK: Duration = Duration::from_millis(200);
/// Bytes written by the cores that call for a look at once.
const LOOK_BYTES: u64 = 64 << 20;
/// Most files whose unlink failed that are tried again; the next start sweeps the others.
const RETRY_MOST: usize = 64 << 10;
/// Most ids a run skips, at random, so that ids of records that were lost come up again in no later run.
const ID_GAP: u64 = 1 << 40;

/// Bounds of the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeeperOptions {
    /// Bytes to leave free on the file system: fewer are "low".
    pub keep_free: u64,
    /// Inodes to leave free.
    pub keep_inodes: u64,
    /// Most messages in the queue; records beyond it are lost (removals never are).
    pub queue_most: usize,
    /// Most bytes of records that wait for a journal that cannot be written.
    pub pending_most: usize,
    /// A journal shorter than this is not compacted.
    pub compact_from: u64,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self {
            keep_free: 1 << 30,
            keep_inodes: 1024,
            queue_most: 1 << 18,
            pending_most: 4 << 20,
            compact_from: 1 << 20,
        }
    }
}

/// What the keeper did and met, since it was opened.
#[derive(Default, Debug)]
pub struct KeeperCounts {
    /// Messages that wait (gauge).
    pub depth: AtomicUsize,
    /// Records written to the journal.
    pub records: AtomicU64,
    /// Bytes written to the journal.
    pub journal_bytes: AtomicU64,
    /// Writes to the journal.
    pub batches: AtomicU64,
    /// Records that will not survive: too long, the queue full, the journal not writable for long.
    pub lost: AtomicU64,
    /// Failed writes of the journal for lack of space (ENOSPC, EDQUOT).
    pub enospc: AtomicU64,
    /// Failed writes of the journal by the disk (EIO).
    pub eio: AtomicU64,
    /// Other failed writes of the journal.
    pub other_errors: AtomicU64,
    /// Times the journal started anew, because records were lost: objects from before will not survive a restart.
    pub resets: AtomicU64,
    /// The journal takes what it is given (gauge, 1 or 0): objects stored now are expected to survive.
    pub persistent: AtomicBool,
    /// Compactions done.
    pub compactions: AtomicU64,
    /// Compactions that failed; the old journal went on.
    pub compact_errors: AtomicU64,
    /// Files removed because their objects were.
    pub unlinked: AtomicU64,
    /// Unlinks that failed (tried again).
    pub unlink_errors: AtomicU64,
    /// Files no record knew, removed after the start.
    pub swept_files: AtomicU64,
    /// Bytes on disk those files had.
    pub swept_bytes: AtomicU64,
    /// Files still to be swept (gauge).
    pub sweeping: AtomicUsize,
    /// Records dropped at the start because their file was missing or shorter than its slices.
    pub dropped: AtomicU64,
    /// Bytes of a torn or bad tail cut off the journal at the start.
    pub torn_bytes: AtomicU64,
    /// Looks at the free space that failed; the figure before stands.
    pub space_errors: AtomicU64,
}

impl KeeperCounts {
    fn failed_write(&self, error: &io::Error) {
        let count = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => &self.enospc,
            Some(libc::EIO) => &self.eio,
            _ => &self.other_errors,
        };
        count.fetch_add(1, Relaxed);
        self.persistent.store(false, Relaxed);
    }
}

enum Message {
    Record(Record),
    Remove(u64),
    Look,
    Flush(SyncSender<bool>),
    Settle(Box<dyn FnOnce(bool) + Send>),
    /// Another file in the journal's place; the answer is the one it had.
    #[cfg(test)]
    Swap(File, SyncSender<File>),
}

/// What handles and thread share.
struct Common {
    options: KeeperOptions,
    counts: KeeperCounts,
    next_id: AtomicU64,
    /// Bytes and inodes free at the last look, and bytes reported written since.
    free: AtomicU64,
    inodes: AtomicU64,
    written: AtomicU64,
    /// A record was lost for lack of room in the queue.
    overflow: AtomicBool,
    /// Tests: end without writing, as a killed process does.
    killed: AtomicBool,
}

struct Handle {
    common: Arc<Common>,
    /// `None` only while being dropped: closing it ends the thread.
    queue: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Handle {
    /// Ends the thread, which writes what waits first.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            drop(thread.join());
        }
    }
}

/// Handle to the thread that owns a cache directory. The last one to go ends it.
#[derive(Clone)]
pub struct Keeper(Arc<Handle>);

impl Keeper {
    /// Takes a cache directory (made if missing), replays its journal, and starts the thread: the objects whose files are
    /// there, none of whose slices is verified yet.
    ///
    /// Refused: a directory another process has, one that is not empty and not a cache, one of another version.
    pub fn open(dir: &Path, options: KeeperOptions) -> Result<(Keeper, Vec<Recovered>)> {
        let lock = claim(dir)?;
        let failed = |what: &str, error: &io::Error| {
            Error::os(format!("{what} in the cache directory {}", dir.display()), error)
                .remedy("check the directory's owner and its file system, or choose another with --cache")
        };
        for low in 0..=255u8 {
            make_dir(&dir.join(format!("data/{low:02x}"))).map_err(|error| failed("make data folders", &error))?;
        }
        let handle = File::open(dir).map_err(|error| failed("look", &error))?;
        // What a compaction left that did not come to its end.
        match fs::remove_file(dir.join("journal.new")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove an unfinished journal", &error));
            }
            _ => {}
        }
        let file =
            private().read(true).open(dir.join("journal")).map_err(|error| failed("open the journal", &error))?;
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).map_err(|error| failed("read the journal", &error))?;
        let replay = journal::replay(&bytes);
        let torn = bytes.len() - replay.used;
        drop(bytes);
        if torn > 0 {
            // What follows would otherwise stand behind bytes that no replay gets past.
            let cut = file.set_len(replay.used as u64).and_then(|()| file.sync_data());
            cut.map_err(|error| failed("cut the torn end off the journal", &error))?;
        }
        let found = inspect(dir, replay.objects).map_err(|error| failed("list the data files", &error))?;
        let gap = 1 + std::hash::RandomState::new().build_hasher().finish() % ID_GAP;
        let highest = replay.highest.max(found.highest).unwrap_or(0);
        let Some(next_id) = highest.checked_add(gap) else {
            return Err(Error::new(
                Kind::Runtime,
                format!("use the cache directory {}", dir.display()),
                "no ids are left",
            )
            .remedy("remove the directory"));
        };
        let common = Arc::new(Common {
            options,
            counts: KeeperCounts::default(),
            next_id: AtomicU64::new(next_id),
            free: AtomicU64::new(0),
            inodes: AtomicU64::new(u64::MAX),
            written: AtomicU64::new(0),
            overflow: AtomicBool::new(false),
            killed: AtomicBool::new(false),
        });
        let counts = &common.counts;
        counts.torn_bytes.store(torn as u64, Relaxed);
        counts.dropped.store(found.dropped.len() as u64, Relaxed);
        counts.sweeping.store(found.leaked.len(), Relaxed);
        counts.persistent.store(true, Relaxed);
        let live: HashMap<u64, u64, RandomState> =
            found.objects.iter().map(|object| (object.id, object.journal_bytes())).collect();
        let mut worker = Worker {
            clock: Clock::start(),
            dir: dir.to_owned(),
            handle,
            _lock: lock,
            journal: file,
            end: replay.used as u64,
            torn: false,
            anew: false,
            live_bytes: live.values().sum(),
            compacted: live.values().sum(),
            live,
            pending: Vec::new(),
            pending_records: 0,
            write_at: None,
            look_at: Nanos(0),
            sweep: found.leaked,
            unlink_again: Vec::new(),
            unlink_at: Nanos(0),
            common: common.clone(),
        };
        worker.look().map_err(|error| failed("see what is free", &error))?;
        for id in found.dropped {
            // Their files are in `sweep` where they exist. Not in `live`, so the record must be made here.
            journal::encode(&Record::Gone { id }, &mut worker.pending);
            worker.pending_records += 1;
        }
        let (queue, messages) = channel();
        let thread = std::thread::Builder::new()
            .name("cache-keeper".to_owned())
            .spawn(move || worker.run(&messages))
            .map_err(|error| failed("start a thread for the journal", &error))?;
        Ok((Keeper(Arc::new(Handle { common, queue: Some(queue), thread: Some(thread) })), found.objects))
    }

    /// The file of an object, relative to the cache directory: for openat2(2) under it.
    pub fn path(&self, id: u64) -> CString {
        CString::new(path(id)).expect("hex has no NUL")
    }

    /// An id that no object had before, in this run or an earlier one.
    pub fn next_id(&self) -> u64 {
        self.0.common.next_id.fetch_add(1, Relaxed)
    }

    /// Queues a record; never blocks. An `Object` must come before its other records, a `Slice` after its bytes are
    /// written. `Gone` is `remove`.
    pub fn record(&self, record: Record) {
        if let Record::Gone { id } = record {
            return self.remove(id);
        }
        let Common { counts, options, overflow, .. } = &*self.0.common;
        if overflow.load(Relaxed) || counts.depth.load(Relaxed) >= options.queue_most {
            overflow.store(true, Relaxed);
            counts.persistent.store(false, Relaxed);
            counts.lost.fetch_add(1, Relaxed);
            return;
        }
        self.send(Message::Record(record));
    }

    /// Queues the end of an object: its record and its file. Never blocks, is never lost. Open descriptors stay good; the
    /// file must not be made again.
    pub fn remove(&self, id: u64) {
        self.send(Message::Remove(id));
    }

    /// Reports bytes written into data files, so that the figures of the free space keep up.
    pub fn wrote(&self, bytes: u64) {
        let before = self.0.common.written.fetch_add(bytes, Relaxed);
        if before / LOOK_BYTES != (before + bytes) / LOOK_BYTES {
            self.send(Message::Look);
        }
    }

    /// Bytes the file system has left for us: at the last look, less what was reported written since.
    pub fn free_bytes(&self) -> u64 {
        let common = &self.0.common;
        common.free.load(Relaxed).saturating_sub(common.written.load(Relaxed))
    }

    /// Fewer bytes or inodes are left than were to be left free.
    pub fn is_low(&self) -> bool {
        let Common { options, inodes, .. } = &*self.0.common;
        self.free_bytes() < options.keep_free || inodes.load(Relaxed) < options.keep_inodes
    }

    /// Blocks until everything queued before is written (not synced); false where it could not be. For stop and tests.
    pub fn flush(&self) -> bool {
        let (answer, done) = sync_channel(1);
        self.send(Message::Flush(answer));
        done.recv().unwrap_or(false)
    }

    /// Calls back, on the keeper's thread, when everything queued before is written and synced (true) or cannot be
    /// (false): a purge that was acknowledged then holds over a power loss. Never blocks.
    pub fn settle(&self, done: impl FnOnce(bool) + Send + 'static) {
        self.send(Message::Settle(Box::new(done)));
    }

    /// What it did and met.
    pub fn counts(&self) -> &KeeperCounts {
        &self.0.common.counts
    }

    fn send(&self, message: Message) {
        self.0.common.counts.depth.fetch_add(1, Relaxed);
        let queue = self.0.queue.as_ref().expect("open while a handle lives");
        // The thread ends after its last handle only.
        if queue.send(message).is_err() {
            self.0.common.counts.depth.fetch_sub(1, Relaxed);
        }
    }
}

fn path(id: u64) -> String {
    format!("data/{:02x}/{id:016x}", id & 0xFF)
}

/// The id whose file this name is, in the folder `low`.
fn parse(name: &str, low: u8) -> Option<u64> {
    let id = u64::from_str_radix(name, 16).ok()?;
    (format!("{id:016x}") == name && id as u8 == low).then_some(id)
}

/// Files only their owner reads: what is cached may not be for everybody.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options
}

fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Makes the directory ours, or finds that it is, and locks it.
fn claim(dir: &Path) -> Result<File> {
    let tried = || format!("use the cache directory {}", dir.display());
    let failed = |error: &io::Error| Error::os(tried(), error).remedy("check its path, its owner and its permissions");
    make_dir(dir).map_err(|error| failed(&error))?;
    let is_ours =
        |empty_is: bool| match fs::read(dir.join("version")).map(|text| String::from_utf8_lossy(&text).into_owned()) {
            Ok(version) if version == VERSION => Ok(true),
            Ok(version) => {
                let cause = format!("it was made by another version ({})", version.trim().escape_debug());
                Err(Error::new(Kind::Config, tried(), cause).remedy("remove it, or choose another with --cache"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(empty_is),
            Err(error) => Err(failed(&error)),
        };
    if !is_ours(false)? {
        // What a start that was killed leaves, and what is in the root of a file system.
        const HARMLESS: [&str; 3] = ["lock", "version.new", "lost+found"];
        for entry in fs::read_dir(dir).map_err(|error| failed(&error))? {
            let name = entry.map_err(|error| failed(&error))?.file_name();
            if !HARMLESS.iter().any(|harmless| name == *harmless) {
                let cause = format!("it is not empty and not a cache (it holds {name:?}, and no file named version)");
                return Err(Error::new(Kind::Config, tried(), cause)
                    .remedy("choose an empty or new directory with --cache: files of others would be deleted"));
            }
        }
    }
    let mut lock = private().read(true).open(dir.join("lock")).map_err(|error| failed(&error))?;
    if !disk::try_lock(lock.as_fd()).map_err(|error| failed(&error))? {
        let mut pid = String::new();
        drop(lock.read_to_string(&mut pid));
        let who = match pid.trim().parse::<u32>() {
            Ok(pid) => format!("process {pid}"),
            Err(_) => "another process".to_owned(),
        };
        return Err(Error::new(Kind::Runtime, tried(), format!("{who} is using it"))
            .remedy("stop that process, or give this one a directory of its own with --cache"));
    }
    let write_pid = || {
        lock.set_len(0)?;
        lock.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
    };
    // Only the message of a second process needs it, and a full disk must not keep a cache from starting.
    drop(write_pid());
    if !is_ours(false)? {
        let name = || {
            let new = dir.join("version.new");
            let mut file = private().truncate(true).open(&new)?;
            file.write_all(VERSION.as_bytes())?;
            file.sync_all()?;
            fs::rename(new, dir.join("version"))
        };
        name().map_err(|error| failed(&error))?;
    }
    Ok(lock)
}

/// What records and files agree on, and what they do not.
struct Found {
    objects: Vec<Recovered>,
    /// Objects without their bytes.
    dropped: Vec<u64>,
    /// Files without an object.
    leaked: Vec<PathBuf>,
    highest: Option<u64>,
}

fn inspect(dir: &Path, objects: Vec<Recovered>) -> io::Result<Found> {
    let known: HashMap<u64, usize, RandomState> =
        objects.iter().enumerate().map(|(at, object)| (object.id, at)).collect();
    let mut whole = vec![false; objects.len()];
    let (mut leaked, mut highest) = (Vec::new(), None);
    for low in 0..=255u8 {
        for entry in fs::read_dir(dir.join(format!("data/{low:02x}")))? {
            let entry = entry?;
            let id = entry.file_name().to_str().and_then(|name| parse(name, low));
            highest = highest.max(id);
            match id.and_then(|id| known.get(&id)) {
                Some(&at) => {
                    let file = fs::symlink_metadata(entry.path())?;
                    whole[at] = file.is_file() && is_covered(&objects[at], file.len());
                    if !whole[at] {
                        leaked.push(entry.path());
                    }
                }
                None => leaked.push(entry.path()),
            }
        }
    }
    let mut whole = whole.into_iter();
    let (objects, dropped): (Vec<_>, Vec<_>) = objects.into_iter().partition(|_| whole.next() == Some(true));
    Ok(Found { objects, dropped: dropped.iter().map(|object| object.id).collect(), leaked, highest })
}

/// Every slice lies within the object and within a file of this length.
fn is_covered(object: &Recovered, file: u64) -> bool {
    let most = object.size.unwrap_or(u64::MAX).min(file);
    object.slices.iter().all(|&(index, len, _)| {
        len <= object.slice && u64::from(index) * u64::from(object.slice) + u64::from(len) <= most
    })
}

struct Worker {
    common: Arc<Common>,
    clock: Clock,
    dir: PathBuf,
    /// The directory, to ask its file system.
    handle: File,
    /// Held as long as the thread lives.
    _lock: File,
    journal: File,
    /// Bytes of whole records in the journal.
    end: u64,
    /// There may be something behind `end`.
    torn: bool,
    /// Records were lost: the journal must start anew before it is written again.
    anew: bool,
    /// Objects the journal knows, with the bytes of their records (replaced metas not counted).
    live: HashMap<u64, u64, RandomState>,
    live_bytes: u64,
    /// The journal's length after the last compaction, or attempt at one.
    compacted: u64,
    pending: Vec<u8>,
    pending_records: u64,
    /// When to write what is pending.
    write_at: Option<Nanos>,
    look_at: Nanos,
    sweep: Vec<PathBuf>,
    unlink_again: Vec<u64>,
    unlink_at: Nanos,
}

impl Worker {
    fn run(mut self, messages: &Receiver<Message>) {
        if !self.pending.is_empty() {
            self.write_at = Some(self.clock.now().after(BATCH_TIME));
        }
        loop {
            let now = self.clock.now();
            let due = self.write_at.unwrap_or(self.look_at).min(self.look_at);
            // Messages come first; a file is swept where none waits.
            let wait = if self.sweep.is_empty() { due.since(now) } else { Duration::ZERO };
            let message = messages.recv_timeout(wait);
            if self.common.killed.load(Relaxed) {
                return;
            }
            match message {
                Ok(message) => {
                    self.common.counts.depth.fetch_sub(1, Relaxed);
                    self.take(message);
                }
                Err(RecvTimeoutError::Timeout) => self.sweep_one(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.write();
                    return;
                }
            }
            self.turn();
        }
    }

    fn counts(&self) -> &KeeperCounts {
        &self.common.counts
    }

    /// What is due.
    fn turn(&mut self) {
        let now = self.clock.now();
        // Lost for lack of room: what was queued before must be out of the way before the journal starts anew.
        if self.common.overflow.load(Relaxed) && self.counts().depth.load(Relaxed) == 0 {
            self.give_up();
            self.common.overflow.store(false, Relaxed);
        }
        if self.write_at.is_some_and(|at| at <= now) && self.write() {
            self.compact();
        }
        if self.look_at <= now && self.look().is_err() {
            self.counts().space_errors.fetch_add(1, Relaxed);
        }
        if self.unlink_at <= now && !self.unlink_again.is_empty() {
            for id in std::mem::take(&mut self.unlink_again) {
                self.unlink(id);
            }
            self.unlink_at = now.after(RETRY);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Record(record) => self.add(&record),
            Message::Remove(id) => {
                self.forget(id);
                self.unlink(id);
            }
            Message::Look => self.look_at = Nanos(0),
            Message::Flush(answer) => drop(answer.send(self.write())),
            Message::Settle(done) => {
                // A record that is gone is enough: should its file come back, it is swept.
                let synced = self.write() && self.journal.sync_data().is_ok();
                done(synced);
            }
            #[cfg(test)]
            Message::Swap(file, answer) => drop(answer.send(std::mem::replace(&mut self.journal, file))),
        }
    }

    fn add(&mut self, record: &Record) {
        let id = record.id();
        let before = self.pending.len();
        let is_object = matches!(record, Record::Object { .. });
        // Records of an object whose own was lost, or that is removed, say nothing.
        if self.anew || !is_object && !self.live.contains_key(&id) || !journal::encode(record, &mut self.pending) {
            self.counts().lost.fetch_add(1, Relaxed);
            if matches!(record, Record::Meta { .. }) {
                // What it was to replace must not be believed.
                self.forget(id);
            }
            return;
        }
        if !matches!(record, Record::Meta { .. }) {
            let bytes = (self.pending.len() - before) as u64;
            *self.live.entry(id).or_default() += bytes;
            self.live_bytes += bytes;
        }
        self.added();
    }

    /// The journal forgets an object, if it knows it.
    fn forget(&mut self, id: u64) {
        if let Some(bytes) = self.live.remove(&id) {
            self.live_bytes -= bytes;
            journal::encode(&Record::Gone { id }, &mut self.pending);
            self.added();
        }
    }

    fn added(&mut self) {
        self.pending_records += 1;
        let now = self.clock.now();
        let at = *self.write_at.get_or_insert_with(|| now.after(BATCH_TIME));
        // A full batch goes at once; where the journal has just failed, only what is too much to keep.
        if self.pending.len() >= if self.torn { self.common.options.pending_most } else { BATCH_BYTES } {
            self.write_at = Some(at.min(now));
        }
    }

    /// Writes what is pending; true if nothing is any more. What cannot be written is tried again, up to a bound.
    fn write(&mut self) -> bool {
        self.write_at = None;
        let Err(error) = self.try_write() else {
            if !self.common.overflow.load(Relaxed) {
                self.counts().persistent.store(true, Relaxed);
            }
            return true;
        };
        self.counts().failed_write(&error);
        let first = !std::mem::replace(&mut self.torn, true);
        if first {
            tracing::warn!(
                "cannot write the cache journal in {}: {}; objects stored now may not survive a restart",
                self.dir.display(),
                describe(&error)
            );
        }
        if self.pending.len() > self.common.options.pending_most {
            self.give_up();
        }
        self.write_at = Some(self.clock.now().after(RETRY));
        false
    }

    fn try_write(&mut self) -> io::Result<()> {
        if self.anew {
            self.journal.set_len(0)?;
            self.journal.sync_data()?;
            (self.end, self.compacted, self.torn, self.anew) = (0, 0, false, false);
            self.counts().resets.fetch_add(1, Relaxed);
        }
        if self.torn {
            self.journal.set_len(self.end)?;
            self.torn = false;
        }
        if !self.pending.is_empty() {
            self.journal.write_all_at(&self.pending, self.end)?;
            self.end += self.pending.len() as u64;
            self.counts().records.fetch_add(self.pending_records, Relaxed);
            self.counts().journal_bytes.fetch_add(self.pending.len() as u64, Relaxed);
            self.counts().batches.fetch_add(1, Relaxed);
            self.pending.clear();
            self.pending_records = 0;
        }
        Ok(())
    }

    /// Records are lost: nothing the journal knows is up to date for certain, so it must start anew.
    fn give_up(&mut self) {
        self.counts().persistent.store(false, Relaxed);
        self.counts().lost.fetch_add(self.pending_records, Relaxed);
        self.pending = Vec::new();
        self.pending_records = 0;
        self.live = HashMap::default();
        self.live_bytes = 0;
        self.anew = true;
        self.write_at = Some(self.clock.now());
    }

    /// Leaves dead records out, where they are more than half. (Slices recorded twice count as live until then, so a
    /// journal that grew to many times its length is worth a look, too.)
    fn compact(&mut self) {
        let dead = self.end.saturating_sub(self.live_bytes);
        let from = self.common.options.compact_from;
        let due = dead * 2 > self.end || self.end / 8 > self.compacted.max(from);
        // After a failure, or where metas grew, not before there is more to do.
        if self.end < from || !due || self.end < self.compacted + self.compacted / 4 {
            return;
        }
        let count = match self.try_compact() {
            Ok(()) => &self.common.counts.compactions,
            Err(error) => {
                tracing::warn!("cannot compact the cache journal in {}: {}", self.dir.display(), describe(&error));
                drop(fs::remove_file(self.dir.join("journal.new")));
                &self.common.counts.compact_errors
            }
        };
        count.fetch_add(1, Relaxed);
        self.compacted = self.end;
    }

    fn try_compact(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; self.end as usize];
        self.journal.read_exact_at(&mut bytes, 0)?;
        let new = self.dir.join("journal.new");
        let mut file = BufWriter::with_capacity(BATCH_BYTES, private().read(true).truncate(true).open(&new)?);
        let mut live: HashMap<u64, u64, RandomState> = HashMap::default();
        journal::compact(
            &bytes,
            |id| self.live.contains_key(&id),
            |id, records| {
                live.insert(id, records.len() as u64);
                file.write_all(records)
            },
        )?;
        let file = file.into_inner().map_err(|error| error.into_error())?;
        // Else a power loss could leave the new name with nothing behind it.
        file.sync_data()?;
        fs::rename(&new, self.dir.join("journal"))?;
        (self.journal, self.live_bytes, self.live) = (file, live.values().sum(), live);
        self.end = self.live_bytes;
        // What is settled from here on is in the new file, so its name must hold, too.
        self.handle.sync_all()
    }

    /// Removes the file of an object; one that is not there is as good as removed.
    fn unlink(&mut self, id: u64) {
        match fs::remove_file(self.dir.join(path(id))) {
            Ok(()) => _ = self.counts().unlinked.fetch_add(1, Relaxed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => {
                self.counts().unlink_errors.fetch_add(1, Relaxed);
                if self.unlink_again.len() < RETRY_MOST {
                    self.unlink_again.push(id);
                }
                self.unlink_at = self.clock.now().after(RETRY);
            }
        }
    }

    fn sweep_one(&mut self) {
        let Some(path) = self.sweep.pop() else { return };
        let bytes = fs::symlink_metadata(&path).map_or(0, |file| file.blocks() * 512);
        if fs::remove_file(&path).is_ok() {
            self.counts().swept_files.fetch_add(1, Relaxed);
            self.counts().swept_bytes.fetch_add(bytes, Relaxed);
        } else {
            self.counts().unlink_errors.fetch_add(1, Relaxed);
        }
        self.counts().sweeping.store(self.sweep.len(), Relaxed);
    }

    fn look(&mut self) -> io::Result<()> {
        self.look_at = self.clock.now().after(LOOK);
        let space = disk::space(self.handle.as_fd())?;
        self.common.written.store(0, Relaxed);
        self.common.free.store(space.bytes, Relaxed);
        self.common.inodes.store(space.inodes.unwrap_or(u64::MAX), Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::tests::on_cpu;
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Instant;

    const SLICE: u32 = 4096;

    fn open(dir: &Path) -> (Keeper, Vec<Recovered>) {
        Keeper::open(dir, KeeperOptions { keep_free: 0, ..Default::default() }).expect("open")
    }

    /// Waits until it holds, twenty seconds at most.
    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed().as_secs() < 20, "not within twenty seconds: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn swept(keeper: &Keeper) {
        until("swept", || keeper.counts().sweeping.load(Relaxed) == 0);
    }

    /// A slice's bytes follow from whose they are.
    fn content(id: u64, index: u32, len: u32) -> Vec<u8> {
        (0..len).map(|at| (id as u32 ^ index.wrapping_mul(977) ^ at.wrapping_mul(31)) as u8).collect()
    }

    /// Stores an object as the cores do: file, record, then bytes and record slice by slice.
    fn store(keeper: &Keeper, dir: &Path, key: &str, slices: u32) -> u64 {
        let id = keeper.next_id();
        let file = File::create_new(dir.join(keeper.path(id).to_str().unwrap())).expect("create");
        let (key, meta) = (key.as_bytes().to_vec(), b"first".to_vec());
        keeper.record(Record::Object { id, key, size: None, slice: SLICE, meta });
        for index in 0..slices {
            let bytes = content(id, index, SLICE);
            file.write_all_at(&bytes, u64::from(index) * u64::from(SLICE)).expect("write");
            keeper.wrote(bytes.len() as u64);
            keeper.record(Record::Slice { id, index, len: SLICE, crc: crc32c::crc32c(&bytes) });
        }
        id
    }

    fn files(dir: &Path) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for low in 0..=255u8 {
            for entry in fs::read_dir(dir.join(format!("data/{low:02x}"))).unwrap() {
                found.insert(parse(entry.unwrap().file_name().to_str().unwrap(), low).unwrap());
            }
        }
        found
    }

    /// What was recovered is right to the byte, and nothing else is on the disk.
    fn verify(keeper: &Keeper, dir: &Path, found: &[Recovered]) {
        for object in found {
            let bytes = fs::read(dir.join(path(object.id))).expect("its file");
            for &(index, len, crc) in &object.slices {
                let start = index as usize * SLICE as usize;
                let slice = &bytes[start..start + len as usize];
                assert_eq!(crc32c::crc32c(slice), crc);
                assert!(slice == content(object.id, index, len), "bytes of another object");
            }
        }
        swept(keeper);
        assert_eq!(files(dir), found.iter().map(|object| object.id).collect());
    }

    fn names(found: &[Recovered]) -> Vec<String> {
        found.iter().map(|object| String::from_utf8(object.key.clone()).unwrap()).collect()
    }

    #[test]
    fn what_is_stored_is_there_after_a_restart_and_what_is_removed_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let dir = &dir.path().join("made/cache");
        let (keeper, found) = open(dir);
        assert!(found.is_empty() && keeper.counts().persistent.load(Relaxed));
        let (a, b) = (store(&keeper, dir, "a", 3), store(&keeper, dir, "b", 1));
        let c = store(&keeper, dir, "c", 0);
        keeper.record(Record::Meta { id: a, size: Some(3 * 4096), meta: b"second".to_vec() });
        keeper.remove(b);
        keeper.record(Record::Slice { id: b, index: 1, len: 1, crc: 1 });
        keeper.record(Record::Gone { id: c });
        assert!(keeper.flush());
        assert!(!dir.join(path(b)).exists() && !dir.join(path(c)).exists());
        assert_eq!(keeper.counts().unlinked.load(Relaxed), 2);
        let last = keeper.next_id();
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["a"]);
        assert_eq!((found[0].size, &found[0].meta[..], found[0].slices.len()), (Some(3 * 4096), &b"second"[..], 3));
        assert!(keeper.next_id() > last, "ids of an earlier run come up again");
        verify(&keeper, dir, &found);
    }

    #[test]
    fn other_peoples_directories_are_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |dir: &Path| Keeper::open(dir, KeeperOptions::default()).err().expect("refused").to_string();
        let full = dir.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("thesis.tex"), "years").unwrap();
        let told = refused(&full);
        assert!(told.contains("not a cache (it holds \"thesis.tex\"") && told.contains("--cache"), "{told}");
        assert_eq!(fs::read_dir(&full).unwrap().count(), 1, "not even a lock is left there");

        let newer = dir.path().join("newer");
        fs::create_dir(&newer).unwrap();
        fs::write(newer.join("version"), "ringway cache 7\n").unwrap();
        assert!(refused(&newer).contains("another version (ringway cache 7)"));

        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refused(&file).contains("EEXIST"), "{}", refused(&file));

        let begun = dir.path().join("begun");
        fs::create_dir_all(begun.join("lost+found")).unwrap();
        fs::write(begun.join("lock"), "").unwrap();
        let (keeper, _) = open(&begun);
        let told = refused(&begun);
        assert!(told.contains(&format!("process {} is using it", std::process::id())), "{told}");
        drop(keeper);
        open(&begun);
    }

    #[test]
    fn files_and_records_that_do_not_match_are_swept_and_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (keeper, _) = open(dir);
        let good = store(&keeper, dir, "good", 2);
        let (missing, short) = (store(&keeper, dir, "missing", 1), store(&keeper, dir, "short", 2));
        let beyond = store(&keeper, dir, "beyond", 2);
        keeper.record(Record::Meta { id: beyond, size: Some(5000), meta: Vec::new() });
        let folder = store(&keeper, dir, "a link", 1);
        keeper.flush();
        drop(keeper);
        fs::remove_file(dir.join(path(missing))).unwrap();
        OpenOptions::new().write(true).open(dir.join(path(short))).unwrap().set_len(8191).unwrap();
        fs::remove_file(dir.join(path(folder))).unwrap();
        std::os::unix::fs::symlink(dir.join(path(good)), dir.join(path(folder))).unwrap();
        // Nobody's, and one that is in the wrong folder.
        fs::write(dir.join(path(u64::MAX >> 20)), vec![1; 100_000]).unwrap();
        fs::write(dir.join("data/00").join(format!("{good:016x}.part")), "x").unwrap();
        fs::write(dir.join("journal.new"), "half").unwrap();
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["good"]);
        verify(&keeper, dir, &found);
        let counts = keeper.counts();
        assert_eq!(counts.dropped.load(Relaxed), 4);
        assert_eq!(counts.swept_files.load(Relaxed), 5, "short, beyond, the link, and two of nobody");
        assert!(counts.swept_bytes.load(Relaxed) >= 100_000);
        assert!(keeper.next_id() > u64::MAX >> 20, "ids of files count, too");
        assert!(!dir.join("journal.new").exists());
        keeper.flush();
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!((names(&found), keeper.counts().dropped.load(Relaxed)), (vec!["good".to_owned()], 0));
    }

    #[test]
    fn a_torn_journal_is_cut_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (keeper, _) = open(dir);
        store(&keeper, dir, "before", 1);
        let torn = store(&keeper, dir, "torn", 1);
        keeper.flush();
        drop(keeper);
        let journal = fs::read(dir.join("journal")).unwrap();
        fs::write(dir.join("journal"), &journal[..journal.len() - 3]).unwrap();
        let (keeper, found) = open(dir);
        assert_eq!((found.len(), found[1].slices.len()), (2, 0));
        assert!(keeper.counts().torn_bytes.load(Relaxed) > 0);
        let bytes = content(torn, 0, SLICE);
        keeper.record(Record::Slice { id: torn, index: 0, len: SLICE, crc: crc32c::crc32c(&bytes) });
        store(&keeper, dir, "after", 1);
        keeper.flush();
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["before", "torn", "after"]);
        assert!(found.iter().all(|object| object.slices.len() == 1));
        verify(&keeper, dir, &found);
    }

    /// Puts a device that is always full in the journal's place; returns the journal.
    fn fill_up(keeper: &Keeper) -> File {
        swap(keeper, OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"))
    }

    fn swap(keeper: &Keeper, file: File) -> File {
        let (answer, journal) = sync_channel(1);
        keeper.send(Message::Swap(file, answer));
        journal.recv().unwrap()
    }

    #[test]
    fn a_journal_that_is_full_for_a_while_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (keeper, _) = open(dir);
        store(&keeper, dir, "before", 1);
        assert!(keeper.flush());
        let journal = fill_up(&keeper);
        let gone = store(&keeper, dir, "gone", 1);
        store(&keeper, dir, "during", 1);
        keeper.remove(gone);
        assert!(!keeper.flush());
        let counts = keeper.counts();
        assert!(counts.enospc.load(Relaxed) > 0 && !counts.persistent.load(Relaxed));
        let (answer, settled) = sync_channel(1);
        keeper.settle(move |synced| answer.send(synced).unwrap());
        assert_eq!(settled.recv(), Ok(false));
        swap(&keeper, journal);
        until("written again", || counts.persistent.load(Relaxed));
        let (answer, settled) = sync_channel(1);
        keeper.settle(move |synced| answer.send(synced).unwrap());
        assert_eq!((settled.recv(), counts.lost.load(Relaxed)), (Ok(true), 0));
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["before", "during"]);
        verify(&keeper, dir, &found);
    }

    #[test]
    fn a_journal_that_stays_full_starts_anew_and_old_metas_are_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let options = KeeperOptions { pending_most: 10_000, keep_free: 0, ..Default::default() };
        let (keeper, _) = Keeper::open(dir, options).unwrap();
        let before = store(&keeper, dir, "before", 1);
        assert!(keeper.flush());
        let journal = fill_up(&keeper);
        for round in 0..1000 {
            keeper.record(Record::Meta { id: before, size: None, meta: format!("replaced {round}").into_bytes() });
        }
        assert!(!keeper.flush());
        let counts = keeper.counts();
        until("given up", || counts.lost.load(Relaxed) > 0);
        assert!(!keeper.flush());
        swap(&keeper, journal);
        assert!(keeper.flush());
        assert_eq!((counts.resets.load(Relaxed), counts.persistent.load(Relaxed)), (1, true));
        // Known no more, so not even this is written.
        keeper.record(Record::Slice { id: before, index: 1, len: 1, crc: 1 });
        store(&keeper, dir, "after", 1);
        assert!(keeper.flush());
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["after"]);
        verify(&keeper, dir, &found);
        assert_eq!(keeper.counts().swept_files.load(Relaxed), 1);
    }

    #[test]
    fn a_full_queue_blocks_nobody_and_removes_get_through() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (keeper, _) =
            Keeper::open(dir, KeeperOptions { queue_most: 50, keep_free: 0, ..Default::default() }).unwrap();
        let (a, b) = (store(&keeper, dir, "a", 1), store(&keeper, dir, "b", 1));
        assert!(keeper.flush());
        let (go, wait) = sync_channel::<()>(1);
        keeper.settle(move |_| _ = wait.recv());
        for _ in 0..1000 {
            keeper.record(Record::Meta { id: a, size: None, meta: b"newer".to_vec() });
        }
        keeper.remove(b);
        let counts = keeper.counts();
        assert!(counts.depth.load(Relaxed) <= 52 && counts.lost.load(Relaxed) >= 949, "{counts:?}");
        assert!(!counts.persistent.load(Relaxed));
        go.send(()).unwrap();
        until("caught up", || counts.persistent.load(Relaxed));
        assert_eq!(counts.resets.load(Relaxed), 1);
        store(&keeper, dir, "c", 1);
        assert!(keeper.flush());
        assert!(!dir.join(path(b)).exists());
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(names(&found), ["c"], "what replaced the meta of a was lost");
        verify(&keeper, dir, &found);
    }

    #[test]
    fn an_object_whose_new_meta_is_too_long_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (keeper, _) = open(dir);
        let a = store(&keeper, dir, "a", 1);
        keeper.record(Record::Meta { id: a, size: None, meta: vec![0; journal::META_MOST + 1] });
        assert!(keeper.flush());
        assert_eq!(keeper.counts().lost.load(Relaxed), 1);
        drop(keeper);
        assert!(open(dir).1.is_empty());
    }

    #[test]
    fn a_journal_of_mostly_dead_records_is_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let options = KeeperOptions { compact_from: 10_000, keep_free: 0, ..Default::default() };
        let (keeper, _) = Keeper::open(dir, options).unwrap();
        let kept: Vec<_> = (0..20).map(|name| store(&keeper, dir, &format!("kept {name}"), 2)).collect();
        for round in 0..100 {
            let id = store(&keeper, dir, "passing", 1);
            keeper.record(Record::Meta {
                id: kept[round % 20],
                size: None,
                meta: format!("{round:0300}").into_bytes(),
            });
            keeper.remove(id);
            if round % 10 == 0 {
                keeper.flush();
                std::thread::sleep(2 * BATCH_TIME);
            }
        }
        keeper.flush();
        keeper.record(Record::Meta { id: kept[0], size: None, meta: b"last".to_vec() });
        until("compacted", || keeper.counts().compactions.load(Relaxed) > 0);
        keeper.flush();
        let written = keeper.counts().journal_bytes.load(Relaxed);
        let length = fs::metadata(dir.join("journal")).unwrap().len();
        println!("{} compactions, {written} bytes written, {length} left", keeper.counts().compactions.load(Relaxed));
        assert!(length < written / 2);
        drop(keeper);
        let (keeper, found) = open(dir);
        assert_eq!(found.iter().map(|object| object.id).collect::<Vec<_>>(), kept);
        assert_eq!(found[0].meta, b"last");
        assert_eq!(found[1].meta, format!("{:0300}", 81).into_bytes());
        verify(&keeper, dir, &found);
    }

    #[test]
    fn free_space_is_told_and_writing_counts_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, _) = open(dir.path());
        let free = keeper.free_bytes();
        assert!(free > 0 && !keeper.is_low());
        let common = &keeper.0.common;
        common.written.store(0, Relaxed);
        keeper.wrote(LOOK_BYTES / 2);
        let told = keeper.free_bytes();
        until("looked again", || common.written.load(Relaxed) == 0);
        assert!(told <= common.free.load(Relaxed).max(free), "{told} {free}");
        drop(keeper);
        let low = |options| Keeper::open(dir.path(), options).unwrap().0.is_low();
        assert!(low(KeeperOptions { keep_free: u64::MAX, ..Default::default() }));
        assert!(!low(KeeperOptions { keep_free: 1, keep_inodes: 1, ..Default::default() }));
    }

    #[test]
    fn dropped_at_any_moment_it_believes_a_beginning_of_what_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut recovered = 0;
        for round in 0..20u32 {
            let (keeper, found) = open(dir);
            verify(&keeper, dir, &found);
            recovered += found.len();
            let mut stored = BTreeMap::new();
            for name in 0..30 {
                let id = store(&keeper, dir, &format!("{round}/{name}"), name % 4);
                stored.insert(id, name);
                if name % 3 == 2 {
                    keeper.remove(stored.pop_first().unwrap().0);
                }
                if name == round {
                    keeper.flush();
                }
            }
            for object in found {
                keeper.remove(object.id);
            }
            std::thread::sleep(Duration::from_millis(u64::from(round) * 5));
            keeper.0.common.killed.store(true, Relaxed);
        }
        println!("{recovered} objects recovered over 19 restarts");
        assert!(recovered > 100);
    }

    /// The other process of the test below: stores and removes until it is killed.
    fn store_until_killed(dir: &Path) {
        let (keeper, mut found) = open(dir);
        let (start, mut ids) = (Instant::now(), Vec::new());
        while start.elapsed().as_secs() < 5 {
            ids.push(store(&keeper, dir, "child", ids.len() as u32 % 5));
            if ids.len() > 40 {
                keeper.remove(ids.swap_remove(ids[0] as usize % 40));
            }
            if let Some(old) = found.pop() {
                keeper.remove(old.id);
            }
            if ids.len() % 8 == 0 {
                keeper.record(Record::Meta { id: ids[0], size: None, meta: b"child".to_vec() });
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_killed_process_leaves_nothing_wrong() {
        const CHILD: &str = "RINGWAY_TEST_KEEPER_CHILD";
        if let Some(dir) = std::env::var_os(CHILD) {
            return store_until_killed(Path::new(&dir));
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (mut recovered, mut swept) = (0, 0);
        for round in 0..25u64 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cache::keeper::tests::a_killed_process_leaves_nothing_wrong"])
                .env(CHILD, dir)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let after = std::hash::RandomState::new().build_hasher().finish() % (10 + 15 * round);
            std::thread::sleep(Duration::from_millis(after));
            child.kill().unwrap();
            child.wait().unwrap();
            let (keeper, found) = open(dir);
            verify(&keeper, dir, &found);
            recovered += found.len();
            swept += keeper.counts().swept_files.load(Relaxed);
        }
        println!("killed 25 times: {recovered} objects recovered and right, {swept} files swept");
        assert!(recovered > 0 && swept > 0, "{recovered} {swept}");
    }

    #[test]
    fn a_disk_that_is_really_full_is_counted_and_survived() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("mount");
        fs::create_dir(&mount).unwrap();
        let run = |program: &str, args: &[&str]| {
            std::process::Command::new(program).args(args).arg(&mount).output().is_ok_and(|done| done.status.success())
        };
        if !run("mount", &["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]) {
            println!("skipped: a_disk_that_is_really_full_is_counted_and_survived: cannot mount a small file system");
            return;
        }
        let survived = std::panic::catch_unwind(|| {
            let (keeper, _) =
                Keeper::open(&mount, KeeperOptions { keep_free: 64 << 10, ..Default::default() }).unwrap();
            assert!(!keeper.is_low());
            let before = store(&keeper, &mount, "before", 4);
            assert!(keeper.flush());
            // Somebody else takes all of it.
            let mut filler = File::create(mount.join("lost+found")).unwrap();
            while filler.write(&[7; 4096]).is_ok() {}
            until("low", || keeper.is_low());
            for round in 0..200 {
                keeper.record(Record::Meta { id: before, size: None, meta: format!("{round:0100}").into_bytes() });
            }
            assert!(!keeper.flush());
            assert!(keeper.counts().enospc.load(Relaxed) > 0, "{:?}", keeper.counts());
            // Eviction makes room, and the journal goes on where it was.
            filler.set_len(0).unwrap();
            assert!(keeper.flush());
            until("no longer low", || !keeper.is_low());
            drop(keeper);
            let (keeper, found) = open(&mount);
            assert_eq!(names(&found), ["before"]);
            assert_eq!(found[0].meta, format!("{:0100}", 199).into_bytes());
            verify(&keeper, &mount, &found);
        });
        assert!(run("umount", &[]), "unmounts");
        survived.unwrap();
    }

    #[test]
    fn a_hundred_thousand_objects_open_within_two_seconds() {
        const OBJECTS: u64 = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        drop(open(dir));
        let mut journal = Vec::new();
        for id in 1..=OBJECTS {
            let key = format!("http://origin.example:9000/bucket/folder/object-{id}").into_bytes();
            let object = Record::Object { id, key, size: Some(0), slice: SLICE, meta: vec![b'm'; 200] };
            assert!(journal::encode(&object, &mut journal));
            assert!(journal::encode(&Record::Slice { id, index: 0, len: 0, crc: 0 }, &mut journal));
            File::create(dir.join(path(id))).unwrap();
        }
        fs::write(dir.join("journal"), &journal).unwrap();
        let (start, wall) = (on_cpu(), Instant::now());
        let (_keeper, found) = open(dir);
        let (took, wall) = (on_cpu() - start, wall.elapsed());
        println!("{OBJECTS} objects: {took:?} of CPU time, {wall:?} with everything else on the machine");
        assert_eq!(found.len() as u64, OBJECTS);
        // Without optimisation only the order of growth shows.
        let most = if cfg!(debug_assertions) { 20.0 } else { 2.0 };
        assert!(took.as_secs_f64() < most, "{took:?}");
    }
}
