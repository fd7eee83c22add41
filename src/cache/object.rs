//! One generation of one stored response: its head, which of its slices are there, and who waits for the others.
//!
//! A slice is absent, being filled by one task of the whole process (with a watermark that readers may read up to), there,
//! or recovered from before a restart and not checked yet.
//!
//! | slice | `look` says | leaves by |
//! |---|---|---|
//! | absent | `Missing` | `claim` → filling |
//! | unchecked | `Unchecked` | `claim` → filling (its filler reads it back), `complete` or `release` |
//! | filling | `Ready` up to the watermark, then `Wait` | `complete` → there; `release` → absent |
//! | there | `Ready` | with the object |
//!
//! Invariants: a slice has at most one filler; bytes of two versions never share an object (`pin`); the lock is held for a
//! few instructions and never across anything that waits.

use super::policy::{Pin, Times};
use crate::http::Status;
use crate::http::headers::Headers;
use crate::http::response::{self, Parse, ResponseLimits};
use crate::ring::TaskId;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The length is not known yet: the response comes in chunks, or until its connection ends.
pub const UNKNOWN: u64 = u64::MAX;

/// What a stored response is answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Status of the whole.
    pub status: u16,
    /// End-to-end fields, without those that frame the body.
    pub headers: Headers,
    /// For how long it is good.
    pub times: Times,
    /// Lower-case names it varies by.
    pub vary: Vec<String>,
    /// The values those had.
    pub secondary: Vec<u8>,
    /// The origin answers ranges of it.
    pub ranges: bool,
}

impl Meta {
    /// As it stands in the journal.
    pub fn encode(&self) -> Vec<u8> {
        let Times { born, lifetime, stale_while_revalidate, stale_if_error, no_cache, must_revalidate } = self.times;
        let mut out = vec![1, u8::from(no_cache) | u8::from(must_revalidate) << 1 | u8::from(self.ranges) << 2];
        for time in [born, lifetime, stale_while_revalidate, stale_if_error] {
            out.extend_from_slice(&time.to_le_bytes());
        }
        let vary = self.vary.join(",");
        for bytes in [vary.as_bytes(), &self.secondary] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        out.extend_from_slice(format!("HTTP/1.1 {} x\r\n", self.status).as_bytes());
        self.headers.write(&mut out);
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Read back; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, flags], mut rest) = bytes.split_first_chunk::<2>()?;
        let mut times = [0; 4];
        for time in &mut times {
            let (number, after) = rest.split_first_chunk::<8>()?;
            (*time, rest) = (u64::from_le_bytes(*number), after);
        }
        let mut texts = [[].as_slice(); 2];
        for text in &mut texts {
            let (length, after) = rest.split_first_chunk::<4>()?;
            (*text, rest) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        }
        let limits = ResponseLimits { head_bytes: usize::MAX, header_count: crate::http::head::HEADERS_MAX };
        let Parse::Done { head, .. } = response::parse(rest, false, &limits) else { return None };
        let vary = std::str::from_utf8(texts[0]).ok()?;
        (version == 1).then(|| Self {
            status: head.status,
            headers: head.headers,
            times: Times {
                born: times[0],
                lifetime: times[1],
                stale_while_revalidate: times[2],
                stale_if_error: times[3],
                no_cache: flags & 1 != 0,
                must_revalidate: flags & 2 != 0,
            },
            vary: vary.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            secondary: texts[1].to_vec(),
            ranges: flags & 4 != 0,
        })
    }
}

/// A task that waits, on its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The core.
    pub core: usize,
    /// Its task.
    pub task: TaskId,
}

/// Why a fill ended without its slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The origin failed: what to tell a client that has got nothing yet.
    Origin(Status, Cow<'static, str>),
    /// The disk, or the budget: the origin has the bytes, they cannot be kept.
    Disk,
    /// The origin has another version now.
    Changed,
}

/// What a reader finds at a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// Bytes up to here (exclusive) can be read now.
    Ready(u64),
    /// They are on their way.
    Wait,
    /// This slice is absent: claim it.
    Missing(u32),
    /// This slice is from before a restart: claim it and read it back.
    Unchecked(u32),
    /// The object ends here.
    End,
}

#[derive(Debug)]
struct Filling {
    slice: u32,
    /// Position in the object up to which its bytes are in the file.
    at: u64,
}

#[derive(Debug, Default)]
struct Slices {
    there: Vec<u64>,
    /// Length and checksum of slices that are not checked yet.
    unchecked: HashMap<u32, (u32, u32), RandomState>,
    filling: Vec<Filling>,
    waiters: Vec<Waiter>,
    count: u32,
    /// The last trouble of a slice, and the epoch it began; gone when the slice is claimed again.
    troubles: Vec<(u32, u64, Trouble)>,
}

impl Slices {
    /// Neither there, nor to be checked, nor somebody's.
    fn is_absent(&self, slice: u32) -> bool {
        !bit(&self.there, slice)
            && !self.unchecked.contains_key(&slice)
            && !self.filling.iter().any(|filling| filling.slice == slice)
    }

    /// A filler begins with a slice of `bytes`: what went wrong with it before is over.
    fn begin(&mut self, slice: u32, bytes: u64) {
        self.troubles.retain(|(other, _, _)| *other != slice);
        self.filling.push(Filling { slice, at: u64::from(slice) * bytes });
    }
}

fn bit(bits: &[u64], at: u32) -> bool {
    bits.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

/// One generation.
#[derive(Debug)]
pub struct Object {
    /// Names its file; never used again.
    pub id: u64,
    /// The primary key.
    pub key: Arc<[u8]>,
    /// Bytes of a slice.
    pub slice: u64,
    /// What all its bytes have in common.
    pub pin: Pin,
    size: AtomicU64,
    meta: RwLock<Arc<Meta>>,
    /// Replaced, purged or evicted: nobody finds it any more, who has it may finish.
    dead: AtomicBool,
    complete: AtomicBool,
    readers: AtomicUsize,
    /// Fills that ended in trouble.
    epoch: AtomicU64,
    /// Heads it has had.
    version: AtomicU64,
    stream: AtomicBool,
    /// Bytes booked for it in the cache's budget.
    pub booked: AtomicU64,
    /// Used since the hand of the eviction last met it.
    used: AtomicBool,
    /// Revalidation is on its way.
    pub refreshing: AtomicBool,
    slices: Mutex<Slices>,
}

impl Object {
    /// A new generation, nothing of it there.
    pub fn new(id: u64, key: Arc<[u8]>, slice: u64, size: u64, meta: Meta) -> Self {
        Self {
            id,
            key,
            slice,
            pin: Pin::of(&meta.headers),
            size: AtomicU64::new(size),
            dead: AtomicBool::new(false),
            complete: AtomicBool::new(size == 0),
            readers: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            version: AtomicU64::new(0),
            stream: AtomicBool::new(!meta.ranges),
            refreshing: AtomicBool::new(false),
            booked: AtomicU64::new(0),
            used: AtomicBool::new(false),
            slices: Mutex::default(),
            meta: RwLock::new(Arc::new(meta)),
        }
    }

    fn slices(&self) -> MutexGuard<'_, Slices> {
        // A panic aborts the process in release builds; in tests the state is as good as it was.
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is answered with now.
    pub fn meta(&self) -> Arc<Meta> {
        Arc::clone(&self.meta.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a new head (after a 304).
    pub fn set_meta(&self, meta: Meta) {
        self.stream.store(!meta.ranges, Ordering::Release);
        *self.meta.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(meta);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Grows with every new head, so that a copy of one can be told to be old without a lock.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Bytes of the whole, or [`UNKNOWN`].
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether its origin does no parts: one stream from the beginning brings all.
    pub fn is_stream(&self) -> bool {
        self.stream.load(Ordering::Acquire)
    }

    /// Slices of the whole, where its size is known.
    pub fn slice_count(&self) -> u32 {
        u32::try_from(self.size().div_ceil(self.slice)).unwrap_or(u32::MAX)
    }

    /// Whether it was taken out of the cache.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Takes it out; true the first time.
    pub fn kill(&self) -> bool {
        !self.dead.swap(true, Ordering::AcqRel)
    }

    /// Whether every byte is there and checked.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Whether somebody reads or fills it.
    pub fn is_busy(&self) -> bool {
        self.readers() > 0 || !self.slices().filling.is_empty()
    }

    /// A request was answered from it. A flag that every core reads and, once set, none writes.
    #[inline]
    pub fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was last asked.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Clients that are answered from it now.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Acquire)
    }

    /// Slices there, checked or not.
    pub fn stored(&self) -> u32 {
        let slices = self.slices();
        slices.count + slices.unchecked.len() as u32
    }

    /// Fills that ended in trouble so far; see [`Object::trouble`].
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The trouble that came since `epoch` over what a reader at `at` waits for: its slice, or the stream that brings all.
    pub fn trouble(&self, at: u64, epoch: u64) -> Option<Trouble> {
        if self.epoch() == epoch { None } else { self.troubled(&self.slices(), at, epoch).cloned() }
    }

    fn troubled<'s>(&self, slices: &'s Slices, at: u64, epoch: u64) -> Option<&'s Trouble> {
        let own = (at / self.slice) as u32;
        let any = self.is_stream();
        let found = slices.troubles.iter().rev().find(|(slice, since, _)| *since > epoch && (any || *slice == own));
        found.map(|(_, _, trouble)| trouble)
    }

    /// What can be read at `at`.
    pub fn look(&self, at: u64) -> Look {
        if self.is_complete() {
            let size = self.size();
            return if at >= size { Look::End } else { Look::Ready(size) };
        }
        self.find(&self.slices(), at)
    }

    fn find(&self, slices: &Slices, at: u64) -> Look {
        let size = self.size();
        if at >= size {
            return Look::End;
        }
        let mut slice = (at / self.slice) as u32;
        let mut end = at;
        while end < size && bit(&slices.there, slice) {
            end = ((u64::from(slice) + 1) * self.slice).min(size);
            slice += 1;
        }
        let filling = slices.filling.iter().find(|filling| filling.slice == slice);
        if let Some(filling) = filling {
            end = end.max(filling.at);
        }
        match filling {
            _ if end > at => Look::Ready(end),
            Some(_) => Look::Wait,
            // It comes from the beginning or not at all: who wants what is further on waits for it.
            None if self.is_stream() && !slices.filling.is_empty() => Look::Wait,
            None if slices.unchecked.contains_key(&slice) => Look::Unchecked(slice),
            None => Look::Missing(slice),
        }
    }

    /// Registers a waiter unless there is something to see at `at` by now, or trouble since `epoch`; true if it waits.
    pub fn wait(&self, at: u64, epoch: u64, waiter: Waiter) -> bool {
        let mut slices = self.slices();
        if self.troubled(&slices, at, epoch).is_some() || self.find(&slices, at) != Look::Wait {
            return false;
        }
        if !slices.waiters.contains(&waiter) {
            slices.waiters.push(waiter);
        }
        true
    }

    /// Makes the caller the one filler of a slice; false if it is there or somebody else's.
    pub fn claim(&self, slice: u32) -> bool {
        let mut slices = self.slices();
        if bit(&slices.there, slice) || slices.filling.iter().any(|filling| filling.slice == slice) {
            return false;
        }
        if self.is_stream() && !slices.filling.is_empty() && !slices.unchecked.contains_key(&slice) {
            return false;
        }
        slices.begin(slice, self.slice);
        true
    }

    /// Claims a run of absent slices from `first` on, at most `most` and before `end` (a position); how many. Zero: the
    /// first is not to be had.
    pub fn claim_run(&self, first: u32, most: u32, end: u64) -> u32 {
        if !self.claim(first) {
            return 0;
        }
        let mut slices = self.slices();
        let mut count = 1;
        while count < most {
            let next = first + count;
            let begins = u64::from(next) * self.slice;
            if begins >= end.min(self.size()) || !slices.is_absent(next) {
                break;
            }
            slices.begin(next, self.slice);
            count += 1;
        }
        count
    }

    /// The first slice that is neither there nor to be checked.
    pub fn first_absent(&self) -> u32 {
        let slices = self.slices();
        (0..self.slice_count())
            .find(|slice| !bit(&slices.there, *slice) && !slices.unchecked.contains_key(slice))
            .unwrap_or(0)
    }

    /// Length and checksum that an unchecked slice was stored with.
    pub fn expected(&self, slice: u32) -> Option<(u32, u32)> {
        self.slices().unchecked.get(&slice).copied()
    }

    /// The filler of `slice` has written up to `at`; who waits is to be woken.
    #[must_use = "the waiters must be woken"]
    pub fn advance(&self, slice: u32, at: u64) -> Vec<Waiter> {
        let mut slices = self.slices();
        if let Some(filling) = slices.filling.iter_mut().find(|filling| filling.slice == slice) {
            filling.at = at;
        }
        std::mem::take(&mut slices.waiters)
    }

    /// The length is known now: the body ended here.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// All bytes of a slice are in the file.
    #[must_use = "the waiters must be woken"]
    pub fn complete(&self, slice: u32) -> Vec<Waiter> {
        self.complete_and_claim(slice, None).0
    }

    /// The same, and the filler goes on to the next slice if that is absent: in one step, or a reader that is woken on
    /// another core would claim it in between, and the origin be asked twice. True if it does.
    #[must_use = "the waiters must be woken"]
    pub fn complete_and_claim(&self, slice: u32, next: Option<u32>) -> (Vec<Waiter>, bool) {
        let mut slices = self.slices();
        slices.filling.retain(|filling| filling.slice != slice);
        slices.unchecked.remove(&slice);
        let word = slice as usize / 64;
        if slices.there.len() <= word {
            slices.there.resize(word + 1, 0);
        }
        if !bit(&slices.there, slice) {
            slices.there[word] |= 1 << (slice % 64);
            slices.count += 1;
        }
        self.settle(&slices);
        let goes_on = next.filter(|next| slices.is_absent(*next));
        if let Some(next) = goes_on {
            slices.begin(next, self.slice);
        }
        (std::mem::take(&mut slices.waiters), goes_on.is_some())
    }

    /// Whether an object whose size just became known is complete.
    pub fn settle_size(&self) {
        self.settle(&self.slices());
    }

    fn settle(&self, slices: &Slices) {
        if self.size() != UNKNOWN && slices.count == self.slice_count() {
            self.complete.store(true, Ordering::Release);
        }
    }

    /// The filler gives up; a slice that was not checked, or not right, is absent now.
    #[must_use = "the waiters must be woken"]
    pub fn release(&self, slice: u32, trouble: Option<Trouble>) -> Vec<Waiter> {
        let mut slices = self.slices();
        slices.filling.retain(|filling| filling.slice != slice);
        slices.unchecked.remove(&slice);
        if let Some(trouble) = trouble {
            let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
            slices.troubles.retain(|(other, _, _)| *other != slice);
            slices.troubles.push((slice, epoch, trouble));
        }
        std::mem::take(&mut slices.waiters)
    }

    /// A slice from before a restart.
    pub fn recover(&self, slice: u32, len: u32, crc: u32) {
        self.slices().unchecked.insert(slice, (len, crc));
    }
}

/// A client that is answered from an object: while it lives, the object is not evicted, and its fills have a reason.
#[derive(Debug)]
pub struct Reading(pub Arc<Object>);

impl Reading {
    /// One reader more.
    pub fn new(object: &Arc<Object>) -> Self {
        object.readers.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(object))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 100;

    fn meta() -> Meta {
        let mut headers = Headers::new();
        headers.push(b"ETag", b"\"a\"");
        headers.push(b"X-Long", &[b'x'; 300]);
        Meta {
            status: 200,
            headers,
            times: Times { born: 1, lifetime: 2, stale_while_revalidate: 3, stale_if_error: 4, ..Times::default() },
            vary: vec!["a".to_owned(), "b".to_owned()],
            secondary: b"\nx\ny".to_vec(),
            ranges: true,
        }
    }

    fn object(size: u64) -> Object {
        Object::new(1, Arc::from(b"k".as_slice()), S, size, meta())
    }

    #[test]
    fn a_head_comes_back_from_the_journal_as_it_was_and_a_cut_one_not_at_all() {
        let bytes = meta().encode();
        assert_eq!(Meta::decode(&bytes), Some(meta()));
        for end in 0..bytes.len() {
            assert_eq!(Meta::decode(&bytes[..end]), None, "{end}");
        }
        let plain = Meta { vary: vec![], secondary: vec![], ranges: false, ..meta() };
        assert_eq!(Meta::decode(&plain.encode()), Some(plain));
    }

    #[test]
    fn a_slice_has_one_filler_and_its_readers_follow_the_watermark() {
        let object = object(250);
        let waiter = Waiter { core: 0, task: TaskId(7) };
        assert_eq!(object.look(120), Look::Missing(1));
        assert!(object.claim(1) && !object.claim(1));
        assert_eq!(object.look(120), Look::Wait);
        assert!(object.wait(120, 0, waiter) && object.wait(120, 0, waiter));
        assert_eq!(object.advance(1, 130), [waiter], "woken once");
        assert_eq!((object.look(120), object.look(130)), (Look::Ready(130), Look::Wait));
        assert!(!object.wait(120, 0, waiter), "there is something to see");
        assert!(object.complete(1).is_empty());
        assert_eq!((object.look(120), object.look(200)), (Look::Ready(200), Look::Missing(2)));
        assert!(object.claim(2) && object.claim(0));
        let _ = object.advance(2, 210);
        assert_eq!(object.look(150), Look::Ready(210), "across a slice's end");
        assert!(!object.is_complete());
        assert!(object.complete(2).is_empty() && object.complete(0).is_empty());
        assert!(object.is_complete());
        assert_eq!((object.look(0), object.look(250)), (Look::Ready(250), Look::End));
    }

    #[test]
    fn trouble_is_told_to_those_who_waited_and_not_to_those_who_come_later() {
        let object = object(250);
        let waiter = Waiter { core: 1, task: TaskId(1) };
        assert!(object.claim(0));
        let epoch = object.epoch();
        assert!(object.wait(0, epoch, waiter));
        assert_eq!(object.release(0, Some(Trouble::Disk)), [waiter]);
        assert_eq!(object.trouble(0, epoch), Some(Trouble::Disk));
        assert_eq!(object.trouble(S, epoch), None, "another slice's readers go on");
        assert_eq!(object.trouble(0, object.epoch()), None);
        assert!(!object.wait(0, epoch, waiter));
        assert_eq!(object.look(0), Look::Missing(0));
        assert!(object.claim(0) && object.release(0, None).is_empty());
        assert_eq!(object.trouble(0, object.epoch()), None, "given up without trouble");
    }

    #[test]
    fn what_is_recovered_is_not_read_before_it_was_checked() {
        let object = object(150);
        object.recover(0, 100, 5);
        object.recover(1, 50, 6);
        assert_eq!((object.look(0), object.stored()), (Look::Unchecked(0), 2));
        assert!(object.claim(0));
        assert_eq!((object.look(0), object.expected(0)), (Look::Wait, Some((100, 5))));
        assert!(object.complete(0).is_empty());
        assert_eq!(object.look(0), Look::Ready(100));
        assert!(object.claim(1) && object.release(1, None).is_empty());
        assert_eq!(object.look(100), Look::Missing(1), "found wrong: fetched again");
    }

    #[test]
    fn a_filler_goes_on_before_anybody_else_can_claim_what_follows() {
        let object = object(350);
        assert!(object.claim(0) && object.claim(2));
        assert!(object.complete_and_claim(0, Some(1)).1);
        assert!(!object.claim(1), "it is the filler's");
        assert!(!object.complete_and_claim(1, Some(2)).1, "somebody else's");
        object.recover(3, 50, 1);
        assert!(!object.complete_and_claim(2, Some(3)).1, "to be checked, not fetched");
    }

    #[test]
    fn a_run_ends_where_somebody_elses_begins() {
        let object = object(1000);
        assert!(object.claim(5));
        assert_eq!(object.claim_run(5, 4, 1000), 0);
        assert_eq!(object.claim_run(2, 9, 1000), 3);
        assert_eq!(object.claim_run(6, 9, 750), 2, "no further than wanted");
        assert_eq!(object.claim_run(0, 1, 1000), 1);
        assert_eq!(object.claim_run(8, 9, u64::MAX), 2, "no further than there is");
    }

    #[test]
    fn of_a_stream_there_is_one() {
        let object = Object::new(1, Arc::from(b"k".as_slice()), S, 350, Meta { ranges: false, ..meta() });
        assert_eq!(object.look(250), Look::Missing(2));
        assert!(object.claim(0) && !object.claim(2));
        assert_eq!(object.look(250), Look::Wait);
        assert!(object.release(0, None).is_empty());
        assert_eq!(object.look(250), Look::Missing(2));
    }

    #[test]
    fn a_length_that_becomes_known_completes_the_object() {
        let object = object(UNKNOWN);
        assert!(object.claim(0));
        let _ = object.advance(0, 60);
        assert_eq!((object.look(0), object.look(60)), (Look::Ready(60), Look::Wait));
        object.set_size(60);
        let _ = object.complete(0);
        assert!(object.is_complete());
        assert_eq!(object.look(60), Look::End);
        assert!(super::Object::new(1, Arc::from(b"".as_slice()), S, 0, meta()).is_complete());
    }
}
