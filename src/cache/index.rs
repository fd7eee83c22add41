//! Which object leaves the cache next, pure: S3-FIFO with sizes in bytes.
//!
//! New objects enter a small queue (a tenth of the budget). One that was asked for at least twice while there moves to
//! the main queue; one that was not is evicted, and a ghost remembers its key for about one cache's worth of evicted
//! bytes: whoever comes back within that time goes to the main queue at once. So a scan passes through the small queue
//! and leaves the main one alone. The main queue is a clock with a count of up to three. Every queue is first in, first
//! out: a hit writes one byte and moves nothing (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023).
//!
//! Invariant: an id is in exactly one queue until `remove` or `evict` hands it back; bytes and counts are their sums.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// The small queue's share of the budget is one part in this many.
const SMALL_PART: u64 = 10;
/// Times asked for that move an object from the small queue to the main one.
const PROMOTE_AT: u8 = 2;
/// Most the count of an object can reach: how many turns of the main queue it outlives unasked.
const COUNT_MOST: u8 = 3;
/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    Small,
    Main,
}

struct Node {
    id: u64,
    key_hash: u64,
    bytes: u64,
    /// Towards the next victim; the next free node where this one is free.
    older: u32,
    newer: u32,
    count: u8,
    queue: Queue,
}

/// First in, first out, threaded through the nodes so that any of them can leave.
struct Fifo {
    oldest: u32,
    newest: u32,
    len: usize,
    bytes: u64,
}

impl Fifo {
    const EMPTY: Fifo = Fifo { oldest: NONE, newest: NONE, len: 0, bytes: 0 };
}

/// Keys of objects that left the small queue without having been asked for again.
#[derive(Default)]
struct Ghost {
    /// Key, its bytes when it left, and which entry of `keys` it is (an older one of the same key is void).
    order: VecDeque<(u64, u64, u64)>,
    keys: HashMap<u64, u64, RandomState>,
    bytes: u64,
    stamp: u64,
}

impl Ghost {
    fn remember(&mut self, key_hash: u64, bytes: u64, most_bytes: u64, most_keys: usize) {
        // An empty object takes a place, too.
        let bytes = bytes.max(1);
        self.stamp += 1;
        self.keys.insert(key_hash, self.stamp);
        self.order.push_back((key_hash, bytes, self.stamp));
        self.bytes += bytes;
        while self.bytes > most_bytes || self.order.len() > most_keys {
            let Some((key, bytes, stamp)) = self.order.pop_front() else { break };
            self.bytes -= bytes;
            if self.keys.get(&key) == Some(&stamp) {
                self.keys.remove(&key);
            }
        }
    }

    /// Whether the key is remembered; it is not any more.
    fn recall(&mut self, key_hash: u64) -> bool {
        self.keys.remove(&key_hash).is_some()
    }
}

/// Recency, admission and the two budgets, over object ids. Every call is O(1), `evict` amortised.
pub struct Index {
    budget_bytes: u64,
    budget_objects: usize,
    nodes: Vec<Node>,
    free: u32,
    places: HashMap<u64, u32, RandomState>,
    small: Fifo,
    main: Fifo,
    ghost: Ghost,
    /// Steps of `evict` that led to no victim.
    #[cfg(test)]
    passed: u64,
}

impl Index {
    /// An empty index that is over budget above so many bytes or objects. It never evicts by itself.
    pub fn new(budget_bytes: u64, budget_objects: usize) -> Self {
        Self {
            budget_bytes,
            budget_objects: budget_objects.min(NONE as usize - 1),
            nodes: Vec::new(),
            free: NONE,
            places: HashMap::default(),
            small: Fifo::EMPTY,
            main: Fifo::EMPTY,
            ghost: Ghost::default(),
            #[cfg(test)]
            passed: 0,
        }
    }

    /// A new object without bytes yet. Ids are never reused: one that is known already stays as it is.
    ///
    /// `key_hash` identifies what was asked for over generations (a collision promotes an object too early, no more).
    pub fn insert(&mut self, id: u64, key_hash: u64) {
        let queue = if self.ghost.recall(key_hash) { Queue::Main } else { Queue::Small };
        self.insert_into(queue, id, key_hash);
    }

    /// As `insert`, without probation: objects that survived a restart, and the next generation of an object that
    /// `is_proven`.
    pub fn insert_proven(&mut self, id: u64, key_hash: u64) {
        self.ghost.recall(key_hash);
        self.insert_into(Queue::Main, id, key_hash);
    }

    fn insert_into(&mut self, queue: Queue, id: u64, key_hash: u64) {
        if self.places.contains_key(&id) {
            return;
        }
        let node = Node { id, key_hash, bytes: 0, older: NONE, newer: NONE, count: 0, queue };
        let place = if self.free == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let place = self.free;
            self.free = self.nodes[place as usize].older;
            self.nodes[place as usize] = node;
            place
        };
        self.places.insert(id, place);
        self.link(place, queue);
    }

    /// Adds bytes to an object as they are stored.
    pub fn grow(&mut self, id: u64, bytes: u64) {
        if let Some(&place) = self.places.get(&id) {
            let node = &mut self.nodes[place as usize];
            node.bytes += bytes;
            let queue = node.queue;
            self.queue(queue).bytes += bytes;
        }
    }

    /// Takes bytes from an object that turned out not to have them (a slice whose checksum failed).
    pub fn shrink(&mut self, id: u64, bytes: u64) {
        if let Some(&place) = self.places.get(&id) {
            let node = &mut self.nodes[place as usize];
            let less = bytes.min(node.bytes);
            node.bytes -= less;
            let queue = node.queue;
            self.queue(queue).bytes -= less;
        }
    }

    /// The object was asked for again. Once per request and object, not per range of one download: many ranges of one
    /// reader say nothing about popularity.
    pub fn touch(&mut self, id: u64) {
        if let Some(&place) = self.places.get(&id) {
            let node = &mut self.nodes[place as usize];
            node.count = (node.count + 1).min(COUNT_MOST);
        }
    }

    /// Forgets an object that is gone for another reason (purged, replaced); true if it was known.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
        self.unlink(place);
        self.release(place);
        true
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// Objects.
    pub fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// Without objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the id is in here.
    pub fn contains(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    /// Whether the object has passed probation.
    pub fn is_proven(&self, id: u64) -> bool {
        self.places.get(&id).is_some_and(|&place| self.nodes[place as usize].queue == Queue::Main)
    }

    /// Bytes and objects of (the small queue, the main queue), and keys in the ghost.
    pub fn queues(&self) -> [(u64, usize); 3] {
        [
            (self.small.bytes, self.small.len),
            (self.main.bytes, self.main.len),
            (self.ghost.bytes, self.ghost.order.len()),
        ]
    }

    /// More bytes or objects than the budgets allow.
    pub fn over_budget(&self) -> bool {
        self.bytes() > self.budget_bytes || self.len() > self.budget_objects
    }

    /// The next victim that is not busy, taken out of the index; `None` where every object is busy.
    ///
    /// Works below the budget, too (a disk that others fill). A busy one goes to the young end of its queue, so the next
    /// call does not meet it again soon; only where nearly all are busy does a call walk the queues.
    pub fn evict(&mut self, busy: impl Fn(u64) -> bool) -> Option<u64> {
        // The small queue while it has too much, then the main one for as many turns as a count outlives, then what is
        // left of the small one: nobody is asked twice, and nobody who could go is overlooked.
        let mut small_left = self.small.len;
        let mut main_left = self.len() * (usize::from(COUNT_MOST) + 1);
        loop {
            let from_small = self.small_is_over() || self.main.len == 0 || main_left == 0;
            if from_small && small_left > 0 {
                small_left -= 1;
                let place = self.small.oldest;
                let Node { id, key_hash, bytes, count, .. } = self.nodes[place as usize];
                if count >= PROMOTE_AT && main_left > 0 {
                    self.requeue(place, Queue::Main, 0);
                } else if busy(id) {
                    self.requeue(place, Queue::Small, count);
                } else {
                    self.ghost.remember(key_hash, bytes, self.budget_bytes, self.budget_objects);
                    self.remove(id);
                    return Some(id);
                }
            } else if self.main.len > 0 && main_left > 0 {
                main_left -= 1;
                let place = self.main.oldest;
                let Node { id, count, .. } = self.nodes[place as usize];
                if count > 0 {
                    self.requeue(place, Queue::Main, count - 1);
                } else if busy(id) {
                    self.requeue(place, Queue::Main, 0);
                } else {
                    self.remove(id);
                    return Some(id);
                }
            } else if small_left > 0 {
                main_left = 0;
            } else {
                return None;
            }
        }
    }

    /// The small queue has more than its share of what the cache may hold (or holds, where that is less).
    fn small_is_over(&self) -> bool {
        let share = |whole: u64| whole / SMALL_PART;
        self.small.bytes > share(self.bytes().min(self.budget_bytes))
            || (self.len() > self.budget_objects && self.small.len as u64 > share(self.budget_objects as u64))
    }

    fn queue(&mut self, queue: Queue) -> &mut Fifo {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    fn requeue(&mut self, place: u32, queue: Queue, count: u8) {
        #[cfg(test)]
        {
            self.passed += 1;
        }
        self.unlink(place);
        self.nodes[place as usize].count = count;
        self.link(place, queue);
    }

    fn link(&mut self, place: u32, queue: Queue) {
        let newest = self.queue(queue).newest;
        let node = &mut self.nodes[place as usize];
        (node.older, node.newer, node.queue) = (newest, NONE, queue);
        let bytes = node.bytes;
        if newest != NONE {
            self.nodes[newest as usize].newer = place;
        }
        let fifo = self.queue(queue);
        fifo.newest = place;
        if fifo.oldest == NONE {
            fifo.oldest = place;
        }
        fifo.len += 1;
        fifo.bytes += bytes;
    }

    fn unlink(&mut self, place: u32) {
        let Node { older, newer, bytes, queue, .. } = self.nodes[place as usize];
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        let fifo = self.queue(queue);
        if fifo.oldest == place {
            fifo.oldest = newer;
        }
        if fifo.newest == place {
            fifo.newest = older;
        }
        fifo.len -= 1;
        fifo.bytes -= bytes;
    }

    fn release(&mut self, place: u32) {
        self.nodes[place as usize].older = self.free;
        self.free = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// What the index must agree with: sizes, and plain LRU to compare with.
    struct Lru {
        budget: u64,
        bytes: u64,
        clock: u64,
        by_time: std::collections::BTreeMap<u64, u64>,
        known: HashMap<u64, (u64, u64)>,
    }

    impl Lru {
        fn new(budget: u64) -> Self {
            Lru { budget, bytes: 0, clock: 0, by_time: Default::default(), known: HashMap::new() }
        }
        fn ask(&mut self, key: u64, size: u64) -> bool {
            self.clock += 1;
            let known = self.known.insert(key, (self.clock, size));
            self.by_time.insert(self.clock, key);
            match known {
                Some((time, _)) => drop(self.by_time.remove(&time)),
                None => self.bytes += size,
            }
            while self.bytes > self.budget {
                let (_, key) = self.by_time.pop_first().unwrap();
                self.bytes -= self.known.remove(&key).unwrap().1;
            }
            known.is_some()
        }
    }

    /// A cache in front of an endless origin: ids are new each time, keys come back.
    struct Cache {
        index: Index,
        ids: HashMap<u64, u64>,
        keys: HashMap<u64, u64>,
        next: u64,
    }

    impl Cache {
        fn new(bytes: u64) -> Self {
            Cache { index: Index::new(bytes, 1 << 20), ids: HashMap::new(), keys: HashMap::new(), next: 0 }
        }
        fn ask(&mut self, key: u64, size: u64) -> bool {
            if let Some(&id) = self.ids.get(&key) {
                self.index.touch(id);
                return true;
            }
            self.next += 1;
            self.index.insert(self.next, key);
            self.index.grow(self.next, size);
            self.ids.insert(key, self.next);
            self.keys.insert(self.next, key);
            while self.index.over_budget() {
                let gone = self.index.evict(|_| false).unwrap();
                self.ids.remove(&self.keys.remove(&gone).unwrap());
            }
            false
        }
    }

    /// A small generator of our own: the figures below must not change with a crate.
    fn random(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Keys by popularity 1/rank, sizes from 1 to 64 that depend on the key only.
    fn popular(state: &mut u64, keys: u64) -> (u64, u64) {
        let key = ((keys as f64).powf(random(state)) as u64).min(keys - 1);
        (key, 1 + key.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 64)
    }

    #[test]
    fn one_scan_does_not_flush_what_is_asked_for() {
        const BUDGET: u64 = 32_000;
        let (mut cache, mut lru, mut state) = (Cache::new(BUDGET), Lru::new(BUDGET), 42);
        for _ in 0..50_000 {
            let (key, size) = popular(&mut state, 10_000);
            cache.ask(key, size);
            lru.ask(key, size);
        }
        let hits = |cache: &mut Cache, lru: &mut Lru, state: &mut u64| {
            let mut hits = [0u32; 2];
            for _ in 0..2_000 {
                let (key, size) = popular(state, 10_000);
                hits[0] += u32::from(cache.ask(key, size));
                hits[1] += u32::from(lru.ask(key, size));
            }
            hits
        };
        let before = hits(&mut cache, &mut lru, &mut state);
        // Ten caches full of objects that nobody asks for twice.
        for key in 1_000_000..1_010_000 {
            cache.ask(key, 32);
            lru.ask(key, 32);
        }
        let mut alone = state;
        let kept = (0..10_000).filter(|key| cache.ids.contains_key(key)).count();
        let kept_lru = (0..10_000).filter(|key| lru.known.contains_key(key)).count();
        let after = hits(&mut cache, &mut lru, &mut alone);
        println!("of 2000: S3-FIFO {} then {}, LRU {} then {}", before[0], after[0], before[1], after[1]);
        println!("kept over the scan: S3-FIFO {kept}, LRU {kept_lru}");
        assert_eq!(kept_lru, 0, "the scan is long enough to flush LRU");
        assert!(before[0] >= before[1], "no worse than LRU without a scan: {before:?}");
        assert!(after[0] * 100 >= before[0] * 95, "a scan costs at most 5 % of the hits: {before:?} {after:?}");
        assert!(after[0] * 10 > after[1] * 12, "LRU pays for it: {after:?}");
    }

    #[test]
    fn scans_mixed_into_the_load_cost_less_than_with_lru() {
        const BUDGET: u64 = 32_000;
        let (mut cache, mut lru, mut state) = (Cache::new(BUDGET), Lru::new(BUDGET), 7);
        let (mut asked, mut hits) = (0u32, [0u32; 2]);
        for step in 0..200_000u64 {
            if step % 2 == 0 {
                cache.ask((1 << 40) + step, 32);
                lru.ask((1 << 40) + step, 32);
                continue;
            }
            let (key, size) = popular(&mut state, 10_000);
            let hit = [cache.ask(key, size), lru.ask(key, size)];
            if step > 100_000 {
                asked += 1;
                hits[0] += u32::from(hit[0]);
                hits[1] += u32::from(hit[1]);
            }
        }
        let percent = hits.map(|hits| f64::from(hits) * 100.0 / f64::from(asked));
        println!("hit ratio with every second request a scan: S3-FIFO {:.1} %, LRU {:.1} %", percent[0], percent[1]);
        assert!(percent[0] > percent[1] + 5.0, "{percent:?}");
    }

    #[test]
    fn who_comes_back_after_eviction_is_proven_and_a_purged_one_is_not() {
        let mut index = Index::new(100, 100);
        index.insert(1, 0xA);
        index.grow(1, 60);
        index.insert(2, 0xB);
        index.grow(2, 60);
        assert_eq!(index.evict(|_| false), Some(1), "the oldest unasked");
        index.insert(3, 0xA);
        assert!(index.is_proven(3) && !index.is_proven(2));
        assert!(index.remove(2) && !index.remove(2));
        index.insert(4, 0xB);
        assert!(!index.is_proven(4), "a removed object leaves no ghost");
    }

    #[test]
    fn twice_asked_moves_to_the_main_queue_and_once_does_not() {
        let mut index = Index::new(30, 100);
        for id in 1..=4 {
            index.insert(id, id);
            index.grow(id, 10);
        }
        index.touch(1);
        index.touch(1);
        index.touch(2);
        assert_eq!(index.evict(|_| false), Some(2));
        assert!(index.is_proven(1));
        assert_eq!(
            [index.evict(|_| false), index.evict(|_| false), index.evict(|_| false)],
            [Some(3), Some(4), Some(1)]
        );
        assert_eq!(index.evict(|_| false), None);
    }

    #[test]
    fn a_failed_slice_gives_its_bytes_back_and_no_more() {
        let mut index = Index::new(30, 100);
        index.insert(1, 1);
        index.grow(1, 10);
        index.shrink(1, 4);
        assert_eq!(index.bytes(), 6);
        index.shrink(1, 40);
        index.grow(9, 10);
        assert_eq!((index.bytes(), index.len()), (0, 1));
    }

    #[test]
    fn the_ghost_is_bounded_by_bytes_and_keys() {
        let mut index = Index::new(1000, 50);
        for id in 0..10_000 {
            index.insert(id, id);
            index.grow(id, id % 70);
            while index.over_budget() {
                index.evict(|_| false);
            }
            let [_, _, (bytes, keys)] = index.queues();
            assert!(bytes <= 1000 && keys <= 50 && index.ghost.keys.len() <= keys);
        }
        assert!(index.nodes.len() <= 52, "places are used again");
    }

    #[test]
    fn steps_stay_few_on_average() {
        let mut cache = Cache::new(100_000);
        let (mut state, mut evicted, mut asked) = (3, 0u64, 0u64);
        while evicted < 50_000 {
            let (key, size) = popular(&mut state, 100_000);
            cache.ask(key, size);
            asked += 1;
            // The youngest are busy, as fills are.
            let next = cache.next;
            if cache.index.len() > 1000
                && let Some(gone) = cache.index.evict(|id| id + 64 > next)
            {
                evicted += 1;
                cache.ids.remove(&cache.keys.remove(&gone).unwrap());
            }
        }
        let passed = cache.index.passed;
        println!("{asked} requests, {evicted} evictions, {passed} passed over");
        // Every object passed over paid for it with a request before.
        assert!(passed > 0 && passed < asked, "{passed} of {asked}");
    }

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u64, bool),
        Grow(usize, u64),
        Shrink(usize, u64),
        Touch(usize),
        Remove(usize),
        Evict,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0u64..40, any::<bool>()).prop_map(|(key, proven)| Act::Insert(key, proven)),
            4 => (0usize..60, 0u64..50).prop_map(|(which, bytes)| Act::Grow(which, bytes)),
            1 => (0usize..60, 0u64..50).prop_map(|(which, bytes)| Act::Shrink(which, bytes)),
            4 => (0usize..60).prop_map(Act::Touch),
            1 => (0usize..60).prop_map(Act::Remove),
            2 => Just(Act::Evict),
        ]
    }

    proptest! {
        #[test]
        fn budgets_are_kept_and_nothing_is_lost(
            bytes in 0u64..400,
            objects in 0usize..30,
            busy in proptest::collection::hash_set(0u64..200, 0..60),
            acts in proptest::collection::vec(act(), 0..400),
        ) {
            let mut index = Index::new(bytes, objects);
            let (mut truth, mut ids): (HashMap<u64, u64>, Vec<u64>) = (HashMap::new(), Vec::new());
            for act in acts {
                let pick = |which: usize| ids.get(which % ids.len().max(1)).copied().unwrap_or(999);
                match act {
                    Act::Insert(key, proven) => {
                        let id = ids.len() as u64;
                        if proven { index.insert_proven(id, key) } else { index.insert(id, key) }
                        ids.push(id);
                        truth.insert(id, 0);
                    }
                    Act::Grow(which, more) => {
                        index.grow(pick(which), more);
                        if let Some(bytes) = truth.get_mut(&pick(which)) { *bytes += more; }
                    }
                    Act::Shrink(which, less) => {
                        index.shrink(pick(which), less);
                        if let Some(bytes) = truth.get_mut(&pick(which)) { *bytes = bytes.saturating_sub(less); }
                    }
                    Act::Touch(which) => index.touch(pick(which)),
                    Act::Remove(which) => {
                        prop_assert_eq!(index.remove(pick(which)), truth.remove(&pick(which)).is_some());
                    }
                    Act::Evict => match index.evict(|id| busy.contains(&id)) {
                        Some(id) => {
                            prop_assert!(!busy.contains(&id));
                            prop_assert!(truth.remove(&id).is_some(), "{} twice", id);
                        }
                        None => prop_assert!(truth.keys().all(|id| busy.contains(id)), "somebody could have gone"),
                    },
                }
                prop_assert_eq!(index.len(), truth.len());
                prop_assert_eq!(index.bytes(), truth.values().sum::<u64>());
                prop_assert_eq!(index.over_budget(), index.bytes() > bytes || index.len() > objects);
            }
            // Under budget again, or only busy ones are left.
            while index.over_budget() {
                match index.evict(|id| busy.contains(&id)) {
                    Some(id) => prop_assert!(truth.remove(&id).is_some()),
                    None => break,
                }
            }
            prop_assert!(!index.over_budget() || truth.keys().all(|id| busy.contains(id)));
            // Nobody busy: everybody comes out, once.
            let mut out = HashSet::new();
            while let Some(id) = index.evict(|_| false) {
                prop_assert!(out.insert(id));
            }
            prop_assert_eq!(out, truth.keys().copied().collect::<HashSet<_>>());
            prop_assert_eq!((index.len(), index.bytes()), (0, 0));
        }
    }
}
