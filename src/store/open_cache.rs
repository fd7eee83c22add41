//! Policy of the open-file cache, pure: bounded, stale after a time, second chance on eviction. Times are arguments.
//!
//! One entry per route and path. An entry is fresh for the time its lookup allows, then stale: whoever finds it stale
//! confirms it or replaces it. Negative answers are entries like others.

use crate::clock::Nanos;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use std::cell::Cell;
use std::hash::BuildHasher;
use std::time::Duration;

/// Outcome of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<'c, V> {
    /// Known and recent enough.
    Fresh(&'c V),
    /// Known, but older than allowed.
    Stale(&'c V),
    /// Not known.
    Miss,
}

#[derive(Debug)]
struct Entry<V> {
    route: usize,
    path: Box<[u8]>,
    value: V,
    checked: Nanos,
    /// Asked for since the hand last passed.
    used: Cell<bool>,
}

/// The cache.
#[derive(Debug)]
pub struct OpenCache<V> {
    table: HashTable<usize>,
    entries: Slab<Entry<V>>,
    hasher: RandomState,
    most: usize,
    hand: usize,
}

impl<V> OpenCache<V> {
    /// An empty cache of at most `most` entries (at least 1).
    pub fn new(most: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Slab::new(),
            hasher: RandomState::default(),
            most: most.max(1),
            hand: 0,
        }
    }

    fn hash(&self, route: usize, path: &[u8]) -> u64 {
        self.hasher.hash_one((route, path))
    }

    fn index(&self, route: usize, path: &[u8]) -> Option<usize> {
        self.table
            .find(self.hash(route, path), |&at| {
                let entry = &self.entries[at];
                entry.route == route && *entry.path == *path
            })
            .copied()
    }

    /// Looks a name up; an entry checked longer than `fresh_for` ago is stale.
    #[inline]
    pub fn find(&self, route: usize, path: &[u8], now: Nanos, fresh_for: Duration) -> Lookup<'_, V> {
        let Some(at) = self.index(route, path) else { return Lookup::Miss };
        let entry = &self.entries[at];
        entry.used.set(true);
        if now.since(entry.checked) < fresh_for { Lookup::Fresh(&entry.value) } else { Lookup::Stale(&entry.value) }
    }

    /// What is known of a name, however old.
    pub fn peek(&self, route: usize, path: &[u8]) -> Option<&V> {
        self.index(route, path).map(|at| &self.entries[at].value)
    }

    /// Puts a name in or replaces it, checked `now`; `gone` sees what was replaced (false) or had to go (true).
    pub fn insert(&mut self, route: usize, path: &[u8], value: V, now: Nanos, mut gone: impl FnMut(V, bool)) {
        if let Some(at) = self.index(route, path) {
            let entry = &mut self.entries[at];
            entry.checked = now;
            gone(std::mem::replace(&mut entry.value, value), false);
            return;
        }
        while self.entries.len() >= self.most {
            gone(self.evict(), true);
        }
        let hash = self.hash(route, path);
        let at = self.entries.insert(Entry { route, path: path.into(), value, checked: now, used: Cell::new(false) });
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.table.insert_unique(hash, at, |&at| hasher.hash_one((entries[at].route, &*entries[at].path)));
    }

    /// Takes out what `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(&V) -> bool, mut gone: impl FnMut(V)) {
        let unwanted: Vec<usize> =
            self.entries.iter().filter(|(_, entry)| !keep(&entry.value)).map(|(at, _)| at).collect();
        for at in unwanted {
            gone(self.remove_at(at));
        }
    }

    /// Takes a name out.
    pub fn remove(&mut self, route: usize, path: &[u8]) -> Option<V> {
        self.index(route, path).map(|at| self.remove_at(at))
    }

    fn remove_at(&mut self, at: usize) -> V {
        let hash = self.hash(self.entries[at].route, &self.entries[at].path);
        if let Ok(found) = self.table.find_entry(hash, |&other| other == at) {
            found.remove();
        }
        self.entries.remove(at).value
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The hand passes over entries not asked for since it last passed, until `visit` says enough (false) or it has
    /// been round twice.
    pub fn sweep(&mut self, mut visit: impl FnMut(&V) -> bool) {
        for _ in 0..2 * self.entries.capacity().max(1) {
            let at = self.step();
            if let Some(entry) = self.entries.get(at)
                && !entry.used.replace(false)
                && !visit(&entry.value)
            {
                return;
            }
        }
    }

    fn step(&mut self) -> usize {
        self.hand = if self.hand + 1 >= self.entries.capacity().max(1) { 0 } else { self.hand + 1 };
        self.hand
    }

    fn evict(&mut self) -> V {
        loop {
            let at = self.step();
            if self.entries.get(at).is_some_and(|entry| !entry.used.replace(false)) {
                return self.remove_at(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_entry_is_fresh_then_stale_then_fresh_again() {
        let mut cache = OpenCache::new(8);
        cache.insert(0, b"/a", 1, Nanos(0), |_, _| {});
        assert_eq!(cache.find(0, b"/a", Nanos(999_999_999), SECOND), Lookup::Fresh(&1));
        assert_eq!(cache.find(0, b"/a", Nanos(1_000_000_000), SECOND), Lookup::Stale(&1));
        cache.insert(0, b"/a", 2, Nanos(1_000_000_000), |_, _| {});
        assert_eq!(cache.find(0, b"/a", Nanos(1_000_000_001), SECOND), Lookup::Fresh(&2));
        assert_eq!(cache.find(1, b"/a", Nanos(0), SECOND), Lookup::Miss, "another route is another name");
    }

    #[test]
    fn what_is_asked_for_outlives_what_is_not() {
        let mut cache = OpenCache::new(4);
        for name in 0u8..4 {
            cache.insert(0, &[name], name, Nanos(0), |_, _| {});
        }
        for scan in 10u8..100 {
            assert_eq!(cache.find(0, &[2], Nanos(0), SECOND), Lookup::Fresh(&2), "after {scan}");
            cache.insert(0, &[scan], scan, Nanos(0), |_, _| {});
            assert!(cache.len() <= 4);
        }
    }

    #[test]
    fn what_is_not_wanted_goes_and_the_rest_is_found() {
        let mut cache = OpenCache::new(100);
        for name in 0u8..50 {
            cache.insert(0, &[name], name, Nanos(0), |_, _| {});
        }
        let mut gone = Vec::new();
        cache.retain(|value| value % 3 != 0, |value| gone.push(value));
        assert_eq!((gone.len(), cache.len()), (17, 33));
        assert!((0u8..50).all(|name| cache.peek(0, &[name]).is_some() == (name % 3 != 0)));
    }

    proptest! {
        #[test]
        fn it_never_holds_too_much_nor_tells_a_wrong_value(
            most in 1usize..20,
            acts in proptest::collection::vec((0u8..40, 0u8..3), 0..400),
        ) {
            let mut cache = OpenCache::new(most);
            let mut truth = HashMap::new();
            for (step, (name, act)) in acts.into_iter().enumerate() {
                match act {
                    0 => { cache.insert(0, &[name], step, Nanos(0), |_, _| {}); truth.insert(name, step); }
                    1 => { cache.remove(0, &[name]); truth.remove(&name); }
                    _ => if let Some(value) = cache.peek(0, &[name]) {
                        prop_assert_eq!(Some(value), truth.get(&name));
                    }
                }
                prop_assert!(cache.len() <= most);
            }
        }
    }
}
