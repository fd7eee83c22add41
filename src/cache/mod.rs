//! Bytes of an origin kept on disk: what is there, what goes first, and what is still believed after a restart.
//!
//! Shared by all cores: a map from keys to objects behind short locks, an index of what was used, and the keeper's thread
//! that owns the directory. Cores read and write the files themselves, through their rings. One fill per missing slice in
//! the whole process: whoever claims it fills it, everybody else reads behind its watermark.
//!
//! Lock order: a map's shard, then the stock; an object's own lock is a leaf. None is held across anything that waits.

pub mod index;
pub mod journal;
pub mod keeper;
pub mod key;
pub mod object;
pub mod policy;
pub mod status;

use crate::config::CacheConfig;
use crate::error::Result;
use crate::http::Status;
use crate::telemetry::tally::{CacheCounts, Eviction, StoreFailure};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use index::Index;
use journal::Record;
use keeper::{Keeper, KeeperOptions};
use object::{Meta, Object, UNKNOWN, Waiter};
use policy::{CacheControl, NoStore, Pin, Reuse};
use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks of the map.
const SHARDS: usize = 64;
/// Stored responses of one key that vary; the oldest goes.
const VARIANTS_MOST: usize = 16;
/// A key whose response cannot be kept is not queued for again for so long, in seconds.
const PASS_FOR: u64 = 10;
/// Entries of a shard that only say "pass" before they are looked through.
const PASSES_MOST: usize = 4096;

/// What became of the first request for a key.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is kept: read it from here. True if the origin was asked and said that it is as it was.
    Object(Arc<Object>, bool),
    /// It is not kept.
    Pass(NoStore),
    /// The origin failed.
    Failed(Status, Cow<'static, str>),
}

/// A request on its way to the origin, and who waits for what it learns.
#[derive(Debug, Default)]
pub struct Pending {
    state: Mutex<(Option<Outcome>, Vec<Waiter>)>,
}

impl Pending {
    fn state(&self) -> MutexGuard<'_, (Option<Outcome>, Vec<Waiter>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it came to, or the waiter is registered.
    pub fn outcome(&self, waiter: Waiter) -> Option<Outcome> {
        let mut state = self.state();
        if state.0.is_none() && !state.1.contains(&waiter) {
            state.1.push(waiter);
        }
        state.0.clone()
    }
}

/// What is known of a key.
#[derive(Debug)]
pub enum Found {
    /// Usable as it is.
    Fresh(Arc<Object>),
    /// Usable, and to be asked for again meanwhile.
    Stale(Arc<Object>),
    /// Usable once the origin has been asked.
    Old(Arc<Object>),
    /// Not kept, as was seen a moment ago.
    Pass(NoStore),
    /// Nothing; true if there are stored responses for other values of what it varies by.
    Nothing(bool),
}

#[derive(Debug, Default)]
struct Entry {
    /// The latest last.
    variants: Vec<Arc<Object>>,
    pending: Option<Arc<Pending>>,
    pass: Option<(u64, NoStore)>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.variants.is_empty() && self.pending.is_none() && self.pass.is_none()
    }
}

#[derive(Debug, Default)]
struct Map {
    entries: HashMap<Arc<[u8]>, Entry, RandomState>,
    passes: usize,
}

struct Stock {
    index: Index,
    objects: HashMap<u64, Arc<Object>, RandomState>,
}

/// The cache.
pub struct Cache {
    /// Its configuration.
    pub config: CacheConfig,
    /// The thread that owns the directory.
    pub keeper: Keeper,
    /// What it counts.
    pub counts: Arc<CacheCounts>,
    maps: Vec<Mutex<Map>>,
    stock: Mutex<Stock>,
    hasher: RandomState,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("dir", &self.config.dir).finish_non_exhaustive()
    }
}

/// One object, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// Bytes of the whole, if known.
    pub size: Option<u64>,
    /// Slices there.
    pub slices: u32,
    /// Slices of the whole.
    pub of: u32,
    /// Status.
    pub status: u16,
    /// Seconds of freshness left.
    pub ttl: i64,
    /// Clients reading now.
    pub readers: usize,
}

impl Cache {
    /// Opens the directory and takes in what is still believed of it; `now` is Unix time in seconds.
    ///
    /// # Errors
    /// The directory cannot be used, is not a cache, or another process has it.
    pub fn open(config: CacheConfig) -> Result<Arc<Self>> {
        let options = KeeperOptions { keep_free: config.free_bytes, ..KeeperOptions::default() };
        let (keeper, recovered) = Keeper::open(&config.dir, options)?;
        let counts = Arc::new(CacheCounts::default());
        counts.capacity_bytes.store(config.bytes, Relaxed);
        let index = Index::new(config.bytes, config.objects);
        let cache = Arc::new(Self {
            keeper,
            counts,
            maps: (0..SHARDS).map(|_| Mutex::default()).collect(),
            stock: Mutex::new(Stock { index, objects: HashMap::default() }),
            hasher: RandomState::default(),
            config,
        });
        for old in recovered {
            let size = old.size.unwrap_or(UNKNOWN);
            let Some(meta) = Meta::decode(&old.meta) else {
                cache.keeper.remove(old.id);
                continue;
            };
            let object = Object::new(old.id, Arc::from(old.key), u64::from(old.slice), size, meta);
            let whole = old.slices.len() as u64 == size.div_ceil(object.slice);
            // Parts without a validator cannot be joined to anything.
            if size == UNKNOWN || object.pin == Pin::None && !whole {
                cache.keeper.remove(old.id);
                continue;
            }
            let mut bytes = 0;
            for (slice, len, crc) in old.slices {
                object.recover(slice, len, crc);
                bytes += u64::from(len);
            }
            cache.enter(&Arc::new(object), bytes);
        }
        while cache.evict(0) {}
        Ok(cache)
    }

    fn map(&self, key: &[u8]) -> MutexGuard<'_, Map> {
        let at = self.hasher.hash_one(key) as usize % SHARDS;
        self.maps[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a key for a request with these fields and directives, at `now`.
    pub fn find<'r>(
        &self,
        key: &[u8],
        fields: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone,
        control: &CacheControl,
        now: u64,
    ) -> Found {
        let map = self.map(key);
        let Some(entry) = map.entries.get(key) else { return Found::Nothing(false) };
        for object in entry.variants.iter().rev() {
            let meta = object.meta();
            if key::secondary(&meta.vary, fields.clone()).as_deref() != Some(&meta.secondary) {
                continue;
            }
            return match meta.times.reuse(control, now) {
                Reuse::Fresh => Found::Fresh(Arc::clone(object)),
                Reuse::StaleWhileRevalidate => Found::Stale(Arc::clone(object)),
                Reuse::Revalidate => Found::Old(Arc::clone(object)),
            };
        }
        match entry.pass {
            Some((until, why)) if now < until => Found::Pass(why),
            _ => Found::Nothing(!entry.variants.is_empty()),
        }
    }

    /// Asks to be the one who asks the origin; true if the caller is, else it waits with the others.
    pub fn lead(&self, key: &Arc<[u8]>) -> (Arc<Pending>, bool) {
        let mut map = self.map(key);
        let entry = map.entries.entry(Arc::clone(key)).or_default();
        match &entry.pending {
            Some(pending) => (Arc::clone(pending), false),
            None => {
                let pending = Arc::new(Pending::default());
                entry.pending = Some(Arc::clone(&pending));
                (pending, true)
            }
        }
    }

    /// Tells everybody who waits what came of it.
    #[must_use = "the waiters must be woken"]
    pub fn settle(&self, key: &[u8], pending: &Arc<Pending>, outcome: Outcome, now: u64) -> Vec<Waiter> {
        let mut map = self.map(key);
        let mut passed = false;
        if let Some(entry) = map.entries.get_mut(key) {
            if entry.pending.as_ref().is_some_and(|current| Arc::ptr_eq(current, pending)) {
                entry.pending = None;
            }
            match outcome {
                Outcome::Pass(why) if why != NoStore::Request => {
                    passed = entry.pass.is_none();
                    entry.pass = Some((now + PASS_FOR, why));
                }
                _ => entry.pass = None,
            }
            if entry.is_empty() {
                map.entries.remove(key);
            }
        }
        map.passes += usize::from(passed);
        if map.passes > PASSES_MOST {
            map.passes = 0;
            map.entries.retain(|_, entry| {
                entry.pass = entry.pass.filter(|(until, _)| now < *until);
                !entry.is_empty()
            });
        }
        drop(map);
        let mut state = pending.state();
        state.0 = Some(outcome);
        std::mem::take(&mut state.1)
    }

    /// Whether a response of `size` bytes may be kept now.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, size: u64) -> std::result::Result<(), NoStore> {
        let countable = size.div_ceil(self.config.slice) <= u64::from(u32::MAX);
        if size != UNKNOWN && (size > self.config.object_bytes || !countable) {
            return Err(NoStore::TooLarge);
        }
        if self.keeper.is_low() {
            self.counts.not_stored(StoreFailure::LowSpace);
            // Others make room for the next one.
            self.evict(size.min(self.config.bytes / 64));
            return Err(NoStore::NoRoom);
        }
        Ok(())
    }

    /// Makes an object, findable from now on; it replaces the stored response of the same key and values. Its file is
    /// there already, and the run `claimed` (first slice, count) is the caller's to fill: a new object is busy from the start, or it could be evicted
    /// before anybody reads it.
    pub fn add(&self, id: u64, key: &Arc<[u8]>, size: u64, meta: Meta, claimed: (u32, u32)) -> Arc<Object> {
        self.keeper.record(Record::Object {
            id,
            key: key.to_vec(),
            size: (size != UNKNOWN).then_some(size),
            slice: self.config.slice as u32,
            meta: meta.encode(),
        });
        let object = Arc::new(Object::new(id, Arc::clone(key), self.config.slice, size, meta));
        if claimed.1 > 0 {
            object.claim_run(claimed.0, claimed.1, UNKNOWN);
        }
        self.enter(&object, 0);
        // An empty one is never booked, and counts all the same.
        while self.evict(0) {}
        object
    }

    /// Whether one object more is one too many.
    pub fn is_full_of_objects(&self) -> bool {
        self.counts.objects.load(Relaxed) as usize >= self.config.objects
    }

    /// Objects that left so far: whoever keeps their files open looks through them when this has grown.
    pub fn buried(&self) -> u64 {
        self.counts.evictions.iter().map(|count| count.load(Relaxed)).sum()
    }

    fn enter(&self, object: &Arc<Object>, bytes: u64) {
        let meta = object.meta();
        let mut gone = Vec::new();
        {
            let mut map = self.map(&object.key);
            let entry = map.entries.entry(Arc::clone(&object.key)).or_default();
            entry.variants.retain(|other| {
                let theirs = other.meta();
                let same = theirs.vary == meta.vary && theirs.secondary == meta.secondary;
                if same {
                    gone.push(Arc::clone(other));
                }
                !same
            });
            if entry.variants.len() >= VARIANTS_MOST {
                gone.push(entry.variants.remove(0));
            }
            entry.variants.push(Arc::clone(object));
            let mut stock = self.stock();
            stock.index.insert(object.id, self.hasher.hash_one(&object.key));
            stock.index.grow(object.id, bytes);
            object.booked.fetch_add(bytes, Relaxed);
            stock.objects.insert(object.id, Arc::clone(object));
            self.count(&stock);
        }
        for old in gone {
            self.bury(&old, Eviction::Changed);
        }
    }

    fn count(&self, stock: &Stock) {
        self.counts.size_bytes.store(stock.index.bytes(), Relaxed);
        self.counts.objects.store(stock.index.len() as u64, Relaxed);
    }

    /// Takes an object out of the cache: nobody finds it any more, its file goes when the last reader has closed it.
    pub fn remove(&self, object: &Object, reason: Eviction) {
        {
            let mut map = self.map(&object.key);
            if let Some(entry) = map.entries.get_mut(&*object.key) {
                entry.variants.retain(|other| other.id != object.id);
                if entry.is_empty() {
                    map.entries.remove(&*object.key);
                }
            }
        }
        self.bury(object, reason);
    }

    fn bury(&self, object: &Object, reason: Eviction) {
        if !object.kill() {
            return;
        }
        self.keeper.remove(object.id);
        let mut stock = self.stock();
        stock.index.remove(object.id);
        stock.objects.remove(&object.id);
        self.count(&stock);
        drop(stock);
        self.counts.evicted(reason);
    }

    /// Books `bytes` for an object, making room by what was not used lately; false if there is none to be had.
    pub fn book(&self, object: &Object, bytes: u64) -> bool {
        if object.is_dead() {
            // It has no budget any more, only the file system's patience.
            return !self.keeper.is_low();
        }
        {
            let mut stock = self.stock();
            stock.index.grow(object.id, bytes);
            object.booked.fetch_add(bytes, Relaxed);
            self.count(&stock);
        }
        self.keeper.wrote(bytes);
        while self.evict(0) {}
        let over = self.stock().index.over_budget();
        if self.keeper.is_low() {
            self.counts.not_stored(StoreFailure::LowSpace);
            self.evict(bytes);
        }
        !over && !self.keeper.is_low()
    }

    /// Takes back what was booked.
    pub fn unbook(&self, object: &Object, bytes: u64) {
        let mut stock = self.stock();
        stock.index.shrink(object.id, bytes);
        object.booked.fetch_sub(bytes, Relaxed);
        self.count(&stock);
    }

    /// One victim out, if the budget is exceeded or `more` bytes are wanted beside; false if there was no need or none.
    fn evict(&self, more: u64) -> bool {
        let mut stock = self.stock();
        if !stock.index.over_budget() && more == 0 {
            return false;
        }
        let Stock { index, objects } = &mut *stock;
        let victim = loop {
            let Some(id) = index.evict(|id| objects.get(&id).is_some_and(|object| object.is_busy())) else {
                return false;
            };
            let victim = objects.get(&id).cloned();
            match &victim {
                // Used since it was last met: it has proven itself and stays. Uses are told by a flag and not as they
                // happen, so that a hit takes no lock.
                Some(object) if object.take_used() => {
                    index.insert_proven(id, self.hasher.hash_one(&object.key));
                    index.grow(id, object.booked.load(Relaxed));
                }
                _ => break victim,
            }
        };
        drop(stock);
        if let Some(victim) = victim {
            self.remove(&victim, Eviction::Capacity);
        }
        true
    }

    /// Takes out what a key has; how many objects that was.
    pub fn purge(&self, key: &[u8]) -> usize {
        let variants: Vec<Arc<Object>> = {
            let mut map = self.map(key);
            let Some(entry) = map.entries.get_mut(key) else { return 0 };
            entry.pass = None;
            std::mem::take(&mut entry.variants)
        };
        for object in &variants {
            self.bury(object, Eviction::Purge);
        }
        variants.len()
    }

    /// Takes out what every key with this beginning has; how many objects that was.
    pub fn purge_prefix(&self, prefix: &[u8]) -> usize {
        let mut gone = Vec::new();
        for map in &self.maps {
            let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, entry) in map.entries.iter_mut().filter(|(key, _)| key.starts_with(prefix)) {
                entry.pass = None;
                gone.append(&mut entry.variants);
            }
            map.entries.retain(|_, entry| !entry.is_empty());
        }
        for object in &gone {
            self.bury(object, Eviction::Purge);
        }
        gone.len()
    }

    /// What is there, by key, at most `most`.
    pub fn list(&self, prefix: &[u8], most: usize, now: u64) -> Vec<Listed> {
        let mut listed = Vec::new();
        for map in &self.maps {
            let map = map.lock().unwrap_or_else(PoisonError::into_inner);
            for object in
                map.entries.iter().filter(|(key, _)| key.starts_with(prefix)).flat_map(|(_, entry)| &entry.variants)
            {
                let meta = object.meta();
                let size = Some(object.size()).filter(|size| *size != UNKNOWN);
                listed.push(Listed {
                    key: String::from_utf8_lossy(&object.key).into_owned(),
                    size,
                    slices: object.stored(),
                    of: if size.is_some() { object.slice_count() } else { 0 },
                    status: meta.status,
                    ttl: meta.times.ttl(now),
                    readers: object.readers(),
                });
            }
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        listed.truncate(most);
        listed
    }

    /// Writes what waits to the disk; for the end of the process.
    pub fn flush(&self) {
        if !self.keeper.flush() {
            tracing::warn!("the cache's journal could not be written: what was stored lately is fetched again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnLeave;
    use crate::http::headers::Headers;
    use policy::Times;
    use std::path::Path;

    fn config(dir: &Path) -> CacheConfig {
        CacheConfig {
            dir: dir.to_owned(),
            bytes: 1 << 20,
            objects: 100,
            free_bytes: 0,
            object_bytes: 1 << 19,
            slice: 64 << 10,
            on_leave: OnLeave::Slice,
        }
    }

    fn meta(vary: &[&str], secondary: &[u8]) -> Meta {
        let mut headers = Headers::new();
        headers.push(b"ETag", b"\"a\"");
        Meta {
            status: 200,
            headers,
            times: Times { born: 100, lifetime: 10, ..Times::default() },
            vary: vary.iter().map(|name| (*name).to_owned()).collect(),
            secondary: secondary.to_vec(),
            ranges: true,
        }
    }

    fn key(text: &str) -> Arc<[u8]> {
        Arc::from(text.as_bytes())
    }

    fn add(cache: &Cache, name: &str, size: u64, meta: Meta) -> Arc<Object> {
        cache.add(cache.keeper.next_id(), &key(name), size, meta, (0, 0))
    }

    fn find(cache: &Cache, name: &str, fields: &[(&'static [u8], &'static [u8])], now: u64) -> Found {
        cache.find(name.as_bytes(), fields.iter().copied(), &CacheControl::default(), now)
    }

    #[test]
    fn what_was_stored_is_found_by_key_and_by_what_it_varies_by() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = Cache::open(config(dir.path())).expect("open");
        assert!(matches!(find(&cache, "a", &[], 105), Found::Nothing(false)));
        let gzip = add(&cache, "a", 10, meta(&["accept-encoding"], b"\ngzip"));
        let plain = add(&cache, "a", 10, meta(&["accept-encoding"], b"\n"));
        let with = find(&cache, "a", &[(b"Accept-Encoding", b"gzip")], 105);
        assert!(matches!(with, Found::Fresh(object) if object.id == gzip.id));
        assert!(matches!(find(&cache, "a", &[], 110), Found::Old(object) if object.id == plain.id));
        assert!(matches!(find(&cache, "a", &[(b"accept-encoding", b"br")], 105), Found::Nothing(true)));
        let again = add(&cache, "a", 10, meta(&["accept-encoding"], b"\n"));
        assert!(plain.is_dead() && !gzip.is_dead());
        assert!(matches!(find(&cache, "a", &[], 105), Found::Fresh(object) if object.id == again.id));
        assert_eq!((cache.purge(b"a"), cache.purge(b"a")), (2, 0));
        assert!(matches!(find(&cache, "a", &[], 105), Found::Nothing(false)));
    }

    #[test]
    fn one_asks_and_the_others_are_told() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = Cache::open(config(dir.path())).expect("open");
        let name = key("a");
        let (pending, first) = cache.lead(&name);
        let (same, second) = cache.lead(&name);
        assert!(first && !second && Arc::ptr_eq(&pending, &same));
        let waiter = Waiter { core: 1, task: crate::ring::TaskId(3) };
        assert!(same.outcome(waiter).is_none());
        assert_eq!(cache.settle(&name, &pending, Outcome::Pass(NoStore::Private), 100), [waiter]);
        assert!(matches!(same.outcome(waiter), Some(Outcome::Pass(NoStore::Private))));
        assert!(matches!(find(&cache, "a", &[], 100 + PASS_FOR - 1), Found::Pass(NoStore::Private)));
        assert!(matches!(find(&cache, "a", &[], 100 + PASS_FOR), Found::Nothing(false)));
        assert!(cache.lead(&name).1, "and the next one asks anew");
    }

    #[test]
    fn the_budget_is_kept_and_what_is_read_stays() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = Cache::open(config(dir.path())).expect("open");
        let read = add(&cache, "read", 1 << 18, meta(&[], b""));
        let _reading = object::Reading::new(&read);
        assert!(cache.book(&read, 1 << 18));
        for name in 0..40 {
            let object = add(&cache, &format!("{name}"), 1 << 16, meta(&[], b""));
            assert!(cache.book(&object, 1 << 16), "{name}");
            assert!(cache.counts.size_bytes.load(Relaxed) <= 1 << 20);
        }
        assert!(!read.is_dead());
        assert!(cache.counts.evictions[Eviction::Capacity as usize].load(Relaxed) >= 20);
    }

    #[test]
    fn a_restart_finds_what_was_complete_and_drops_what_cannot_be_joined() {
        let dir = tempfile::tempdir().expect("directory");
        let store = |cache: &Cache, name: &str, meta: Meta, size: u64| {
            let object = add(cache, name, size, meta);
            std::fs::write(
                dir.path().join(cache.keeper.path(object.id).to_str().expect("ASCII")),
                vec![7; size as usize],
            )
            .expect("write");
            cache.keeper.record(Record::Slice { id: object.id, index: 0, len: size.min(64 << 10) as u32, crc: 1 });
        };
        {
            let cache = Cache::open(config(dir.path())).expect("open");
            store(&cache, "kept", meta(&["x"], b"\ny"), 1000);
            store(&cache, "part", meta(&[], b""), 100_000);
            let mut unpinned = meta(&[], b"");
            unpinned.headers.remove(b"etag");
            store(&cache, "unpinned part", unpinned.clone(), 100_000);
            store(&cache, "unpinned", unpinned, 1000);
            cache.flush();
        }
        let cache = Cache::open(config(dir.path())).expect("open again");
        let names: Vec<String> = cache.list(b"", 10, 105).into_iter().map(|listed| listed.key).collect();
        assert_eq!(names, ["kept", "part", "unpinned"]);
        assert!(matches!(find(&cache, "kept", &[(b"X", b"y")], 105), Found::Fresh(object)
            if object.look(0) == object::Look::Unchecked(0) && object.expected(0) == Some((1000, 1))));
        assert_eq!(cache.counts.size_bytes.load(Relaxed), 1000 + (64 << 10) + 1000);
    }
}
