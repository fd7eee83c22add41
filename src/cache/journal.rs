//! What the cache knows of its files, as an append-only journal of records, pure.
//!
//! A record is its payload's length (u32), CRC32C over that length and the payload (u32), and the payload: a tag and its
//! fields, integers little-endian. Replay stops at the first byte that is not the whole, unharmed next record: a torn
//! tail, zeros and old blocks after a power loss, a bit that turned. What it yields is what was written before.
//!
//! Invariant: `replay` of any damaged journal equals `replay` of some undamaged beginning of it. Records of an object that
//! is not known (any more) say nothing, so a lost record makes less known, never something wrong.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Longest key (64 KiB): an object with a longer one is not recorded.
pub const KEY_MOST: usize = 64 << 10;
/// Longest meta (256 KiB).
pub const META_MOST: usize = 256 << 10;
/// Longest payload that is believed.
const PAYLOAD_MOST: usize = KEY_MOST + META_MOST + 64;
/// Length and checksum before each payload.
const FRAME: usize = 8;

const OBJECT: u8 = 1;
const META: u8 = 2;
const SLICE: u8 = 3;
const GONE: u8 = 4;

/// One thing to remember.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A new object: one generation of one key, one file.
    Object {
        /// Its file; never used for another object.
        id: u64,
        /// What was asked for.
        key: Vec<u8>,
        /// Bytes of the whole object where known.
        size: Option<u64>,
        /// Bytes of a slice.
        slice: u32,
        /// Validators, freshness, heads: opaque here.
        meta: Vec<u8>,
    },
    /// Size and meta of an object are now these.
    Meta {
        /// Which object.
        id: u64,
        /// Bytes of the whole object where known.
        size: Option<u64>,
        /// Replaces the one before.
        meta: Vec<u8>,
    },
    /// A slice is complete in the file.
    Slice {
        /// Which object.
        id: u64,
        /// Which slice; it starts at this times the slice's size.
        index: u32,
        /// Its bytes (fewer than a slice at the end of the object).
        len: u32,
        /// CRC32C of its bytes.
        crc: u32,
    },
    /// The object is no more.
    Gone {
        /// Which object.
        id: u64,
    },
}

impl Record {
    /// The object it is about.
    pub fn id(&self) -> u64 {
        match self {
            Record::Object { id, .. } | Record::Meta { id, .. } | Record::Slice { id, .. } | Record::Gone { id } => *id,
        }
    }
}

/// An object as the journal tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Its file.
    pub id: u64,
    /// What was asked for.
    pub key: Vec<u8>,
    /// Bytes of the whole object where known.
    pub size: Option<u64>,
    /// Bytes of a slice.
    pub slice: u32,
    /// The newest meta.
    pub meta: Vec<u8>,
    /// Complete slices: index, bytes, CRC32C; by index, each once.
    pub slices: Vec<(u32, u32, u32)>,
}

impl Recovered {
    /// Bytes of its records in a compacted journal.
    pub fn journal_bytes(&self) -> u64 {
        let object = FRAME + 9 + 9 + 4 + 4 + self.key.len() + self.meta.len();
        (object + self.slices.len() * (FRAME + 9 + 12)) as u64
    }
}

/// What a journal says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replay {
    /// Objects that are not gone, in the order they were first recorded.
    pub objects: Vec<Recovered>,
    /// Bytes up to the first torn or bad record: where writing goes on.
    pub used: usize,
    /// Records in those bytes.
    pub records: usize,
    /// Records that a compacted journal would not have.
    pub dead: usize,
    /// The highest id in any record, gone ones too.
    pub highest: Option<u64>,
}

/// Appends a record. False, and nothing appended, where its key or meta is too long.
pub fn encode(record: &Record, into: &mut Vec<u8>) -> bool {
    let (key, meta) = match record {
        Record::Object { key, meta, .. } => (key.len(), meta.len()),
        Record::Meta { meta, .. } => (0, meta.len()),
        Record::Slice { .. } | Record::Gone { .. } => (0, 0),
    };
    if key > KEY_MOST || meta > META_MOST {
        return false;
    }
    let start = into.len();
    into.extend_from_slice(&[0; FRAME]);
    let size = |into: &mut Vec<u8>, size: &Option<u64>| {
        into.push(u8::from(size.is_some()));
        into.extend_from_slice(&size.unwrap_or(0).to_le_bytes());
    };
    let head = |into: &mut Vec<u8>, tag: u8, id: &u64| {
        into.push(tag);
        into.extend_from_slice(&id.to_le_bytes());
    };
    match record {
        Record::Object { id, key, size: whole, slice, meta } => {
            head(into, OBJECT, id);
            size(into, whole);
            into.extend_from_slice(&slice.to_le_bytes());
            into.extend_from_slice(&(key.len() as u32).to_le_bytes());
            into.extend_from_slice(key);
            into.extend_from_slice(meta);
        }
        Record::Meta { id, size: whole, meta } => {
            head(into, META, id);
            size(into, whole);
            into.extend_from_slice(meta);
        }
        Record::Slice { id, index, len, crc } => {
            head(into, SLICE, id);
            for field in [index, len, crc] {
                into.extend_from_slice(&field.to_le_bytes());
            }
        }
        Record::Gone { id } => head(into, GONE, id),
    }
    let payload = into.len() - start - FRAME;
    let len = (payload as u32).to_le_bytes();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&len), &into[start + FRAME..]);
    into[start..start + 4].copy_from_slice(&len);
    into[start + 4..start + FRAME].copy_from_slice(&crc.to_le_bytes());
    true
}

/// A record whose bytes stay in the journal.
enum Borrowed<'j> {
    Object { id: u64, key: &'j [u8], size: Option<u64>, slice: u32, meta: &'j [u8] },
    Meta { id: u64, size: Option<u64>, meta: &'j [u8] },
    Slice { id: u64, index: u32, len: u32, crc: u32 },
    Gone { id: u64 },
}

/// Takes fields off the front of a payload.
struct Fields<'j>(&'j [u8]);

impl<'j> Fields<'j> {
    fn bytes(&mut self, len: usize) -> Option<&'j [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    fn size(&mut self) -> Option<Option<u64>> {
        let known = self.bytes(1)?[0];
        let size = self.u64()?;
        match known {
            0 if size == 0 => Some(None),
            1 => Some(Some(size)),
            _ => None,
        }
    }
    fn rest(&mut self) -> &'j [u8] {
        std::mem::take(&mut self.0)
    }
}

/// The record at the beginning of `bytes` and its length; `None` where none is whole and unharmed.
fn decode(bytes: &[u8]) -> Option<(Borrowed<'_>, usize)> {
    let mut frame = Fields(bytes);
    let len = frame.bytes(4)?;
    let crc = frame.u32()?;
    let payload = u32::from_le_bytes(len.try_into().ok()?) as usize;
    if payload > PAYLOAD_MOST {
        return None;
    }
    let payload = frame.bytes(payload)?;
    if crc32c::crc32c_append(crc32c::crc32c(len), payload) != crc {
        return None;
    }
    let mut fields = Fields(payload);
    let tag = fields.bytes(1)?[0];
    let id = fields.u64()?;
    let record = match tag {
        OBJECT => {
            let (size, slice) = (fields.size()?, fields.u32()?);
            let key = fields.u32()? as usize;
            Borrowed::Object { id, key: fields.bytes(key)?, size, slice, meta: fields.rest() }
        }
        META => Borrowed::Meta { id, size: fields.size()?, meta: fields.rest() },
        SLICE => Borrowed::Slice { id, index: fields.u32()?, len: fields.u32()?, crc: fields.u32()? },
        GONE => Borrowed::Gone { id },
        _ => return None,
    };
    // Bytes too many are a record of another make.
    fields.0.is_empty().then_some((record, FRAME + payload.len()))
}

/// An object of which only the slices were copied.
struct Live<'j> {
    id: u64,
    key: &'j [u8],
    size: Option<u64>,
    slice: u32,
    meta: &'j [u8],
    slices: Vec<(u32, u32, u32)>,
}

struct Story<'j> {
    objects: Vec<Live<'j>>,
    used: usize,
    records: usize,
    highest: Option<u64>,
}

/// Puts the records of a journal together without copying keys and metas.
fn read(journal: &[u8]) -> Story<'_> {
    let mut story = Story { objects: Vec::new(), used: 0, records: 0, highest: None };
    let mut known: HashMap<u64, usize, RandomState> = HashMap::default();
    let mut objects: Vec<Option<Live<'_>>> = Vec::new();
    while let Some((record, len)) = decode(&journal[story.used..]) {
        story.used += len;
        story.records += 1;
        let id = match record {
            Borrowed::Object { id, key, size, slice, meta } => {
                // An id is used once; whoever breaks that gets the newer object without slices of the older.
                if let Some(at) = known.insert(id, objects.len()) {
                    objects[at] = None;
                }
                objects.push(Some(Live { id, key, size, slice, meta, slices: Vec::new() }));
                id
            }
            Borrowed::Meta { id, size, meta } => {
                if let Some(live) = known.get(&id).and_then(|&at| objects[at].as_mut()) {
                    (live.size, live.meta) = (size, meta);
                }
                id
            }
            Borrowed::Slice { id, index, len, crc } => {
                if let Some(live) = known.get(&id).and_then(|&at| objects[at].as_mut()) {
                    live.slices.push((index, len, crc));
                }
                id
            }
            Borrowed::Gone { id } => {
                if let Some(at) = known.remove(&id) {
                    objects[at] = None;
                }
                id
            }
        };
        story.highest = story.highest.max(Some(id));
    }
    story.objects = objects.into_iter().flatten().collect();
    for live in &mut story.objects {
        newest_by_index(&mut live.slices);
    }
    story
}

/// Sorted by index; of several with one index, the last recorded.
fn newest_by_index(slices: &mut Vec<(u32, u32, u32)>) {
    if slices.is_sorted_by(|a, b| a.0 < b.0) {
        return;
    }
    // The sort is stable: the last of equals is the newest. `dedup_by` keeps the first, so it gets the newer's fields.
    slices.sort_by_key(|slice| slice.0);
    slices.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            *kept = *later;
        }
        same
    });
}

/// What the journal says, up to its first torn or bad record.
pub fn replay(journal: &[u8]) -> Replay {
    let story = read(journal);
    let live: usize = story.objects.iter().map(|live| 1 + live.slices.len()).sum();
    let own = |live: Live<'_>| Recovered {
        id: live.id,
        key: live.key.to_vec(),
        size: live.size,
        slice: live.slice,
        meta: live.meta.to_vec(),
        slices: live.slices,
    };
    Replay {
        used: story.used,
        records: story.records,
        dead: story.records - live,
        highest: story.highest,
        objects: story.objects.into_iter().map(own).collect(),
    }
}

/// The same journal without its dead records: replay yields the same objects. (Nobody's `highest` but theirs is in it.)
///
/// `keep` sees each object's id; `each` gets the records of one object after another, the first error ends it.
pub fn compact<E>(
    journal: &[u8],
    keep: impl Fn(u64) -> bool,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut records = Vec::new();
    for live in read(journal).objects {
        let (id, size, slice) = (live.id, live.size, live.slice);
        if !keep(id) {
            continue;
        }
        records.clear();
        encode(&Record::Object { id, key: live.key.to_vec(), size, slice, meta: live.meta.to_vec() }, &mut records);
        for (index, len, crc) in live.slices {
            encode(&Record::Slice { id, index, len, crc }, &mut records);
        }
        each(id, &records)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// Time this thread had a CPU: what else runs on the machine does not count.
    pub fn on_cpu() -> Duration {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
        Duration::from_nanos(stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds"))
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = 0u64..6;
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        let size = proptest::option::of(any::<u64>());
        prop_oneof![
            3 => (id.clone(), bytes(), size.clone(), any::<u32>(), bytes())
                .prop_map(|(id, key, size, slice, meta)| Record::Object { id, key, size, slice, meta }),
            2 => (id.clone(), size, bytes()).prop_map(|(id, size, meta)| Record::Meta { id, size, meta }),
            6 => (id.clone(), 0u32..4, any::<u32>(), any::<u32>())
                .prop_map(|(id, index, len, crc)| Record::Slice { id, index, len, crc }),
            1 => id.prop_map(|id| Record::Gone { id }),
        ]
    }

    /// The same story, told in the plainest way.
    fn truth(records: &[Record]) -> BTreeMap<u64, Recovered> {
        let mut known = BTreeMap::new();
        for record in records.iter().cloned() {
            match record {
                Record::Object { id, key, size, slice, meta } => {
                    known.insert(id, Recovered { id, key, size, slice, meta, slices: Vec::new() });
                }
                Record::Meta { id, size, meta } => {
                    if let Some(object) = known.get_mut(&id) {
                        (object.size, object.meta) = (size, meta);
                    }
                }
                Record::Slice { id, index, len, crc } => {
                    if let Some(object) = known.get_mut(&id) {
                        object.slices.retain(|slice| slice.0 != index);
                        object.slices.push((index, len, crc));
                        object.slices.sort();
                    }
                }
                Record::Gone { id } => drop(known.remove(&id)),
            }
        }
        known
    }

    /// The journal and where each record ends.
    fn written(records: &[Record]) -> (Vec<u8>, Vec<usize>) {
        let (mut journal, mut ends) = (Vec::new(), Vec::new());
        for record in records {
            assert!(encode(record, &mut journal));
            ends.push(journal.len());
        }
        (journal, ends)
    }

    fn check(replay: &Replay, records: &[Record]) {
        let mut truth = truth(records);
        assert_eq!(replay.records, records.len());
        assert_eq!(replay.highest, records.iter().map(Record::id).max());
        let live: usize = truth.values().map(|object| 1 + object.slices.len()).sum();
        assert_eq!(replay.dead, records.len() - live);
        for object in &replay.objects {
            assert_eq!(Some(object), truth.remove(&object.id).as_ref());
        }
        assert!(truth.is_empty(), "lost: {truth:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_cut_yields_exactly_the_records_before_it(records in proptest::collection::vec(record(), 0..24)) {
            let (journal, ends) = written(&records);
            for cut in 0..=journal.len() {
                let whole = ends.iter().take_while(|end| **end <= cut).count();
                let replay = replay(&journal[..cut]);
                prop_assert_eq!(replay.used, whole.checked_sub(1).map_or(0, |last| ends[last]));
                check(&replay, &records[..whole]);
            }
        }

        #[test]
        fn a_turned_bit_anywhere_yields_exactly_the_records_before_it(
            records in proptest::collection::vec(record(), 1..10),
        ) {
            let (mut journal, ends) = written(&records);
            for bit in 0..journal.len() * 8 {
                journal[bit / 8] ^= 1 << (bit % 8);
                let whole = ends.iter().take_while(|end| **end <= bit / 8).count();
                check(&replay(&journal), &records[..whole]);
                journal[bit / 8] ^= 1 << (bit % 8);
            }
        }

        #[test]
        fn noise_and_old_blocks_behind_the_end_are_not_believed(
            records in proptest::collection::vec(record(), 0..10),
            zeros in 0usize..200,
            noise in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (mut journal, ends) = written(&records);
            journal.resize(journal.len() + zeros, 0);
            if zeros > 0 {
                journal.extend_from_slice(&noise);
            }
            let replay = replay(&journal);
            prop_assert_eq!(replay.used, ends.last().copied().unwrap_or(0));
            check(&replay, &records);
        }

        #[test]
        fn a_compacted_journal_tells_the_same(
            records in proptest::collection::vec(record(), 0..40),
            dropped in 0u64..8,
        ) {
            let (journal, _) = written(&records);
            let mut compacted = Vec::new();
            compact(&journal, |id| id != dropped, |_, piece| {
                compacted.extend_from_slice(piece);
                Ok::<_, ()>(())
            }).unwrap();
            let (before, after) = (replay(&journal), replay(&compacted));
            prop_assert_eq!((after.dead, after.used), (0, compacted.len()));
            let told: u64 = after.objects.iter().map(Recovered::journal_bytes).sum();
            prop_assert_eq!(told, compacted.len() as u64);
            let kept: Vec<_> = before.objects.into_iter().filter(|object| object.id != dropped).collect();
            prop_assert_eq!(after.objects, kept);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_what_is_just_not_is_read() {
        let object = |key: usize, meta: usize| {
            let (id, size, slice) = (1, Some(u64::MAX), 1);
            Record::Object { id, key: vec![7; key], size, slice, meta: vec![8; meta] }
        };
        let mut journal = Vec::new();
        assert!(!encode(&object(KEY_MOST + 1, 0), &mut journal));
        assert!(!encode(&object(0, META_MOST + 1), &mut journal));
        assert!(!encode(&Record::Meta { id: 1, size: None, meta: vec![0; META_MOST + 1] }, &mut journal));
        assert!(journal.is_empty());
        assert!(encode(&object(KEY_MOST, META_MOST), &mut journal));
        assert_eq!(replay(&journal).objects[0].meta.len(), META_MOST);
    }

    #[test]
    fn a_whole_record_of_another_make_ends_the_story() {
        let framed = |payload: &[u8]| {
            let len = (payload.len() as u32).to_le_bytes();
            let crc = crc32c::crc32c_append(crc32c::crc32c(&len), payload).to_le_bytes();
            [&len[..], &crc[..], payload].concat()
        };
        let gone = [&[GONE][..], &9u64.to_le_bytes()].concat();
        assert_eq!(replay(&framed(&gone)).records, 1);
        let meta = |known: u8, size: u64| [&[META][..], &9u64.to_le_bytes(), &[known], &size.to_le_bytes()].concat();
        assert_eq!(replay(&framed(&meta(0, 0))).records, 1);
        let rows: &[(&str, Vec<u8>)] = &[
            ("empty", Vec::new()),
            ("unknown tag", [&[9u8][..], &9u64.to_le_bytes()].concat()),
            ("half an id", gone[..5].to_vec()),
            ("a byte too many", [&gone[..], &[0]].concat()),
            ("neither known nor unknown size", meta(2, 0)),
            ("an unknown size that is told", meta(0, 5)),
            ("a key longer than its record", [&[OBJECT][..], &[0; 8], &[0; 9], &[1; 4], &[255; 4], b"key"].concat()),
        ];
        for (name, payload) in rows {
            assert_eq!(replay(&framed(payload)).used, 0, "{name}");
        }
    }

    #[test]
    fn a_hundred_thousand_objects_replay_within_two_seconds() {
        let mut journal = Vec::new();
        for id in 0..100_000u64 {
            let key = format!("http://origin.example:9000/bucket/folder/object-{id}").into_bytes();
            encode(
                &Record::Object { id, key, size: Some(1 << 25), slice: 8 << 20, meta: vec![b'm'; 200] },
                &mut journal,
            );
            for index in 0..4 {
                encode(&Record::Slice { id, index, len: 8 << 20, crc: index }, &mut journal);
            }
        }
        let start = on_cpu();
        let replay = replay(&journal);
        let took = on_cpu() - start;
        println!("{} MiB, {} records: {took:?}", journal.len() >> 20, replay.records);
        assert_eq!((replay.objects.len(), replay.records, replay.dead), (100_000, 500_000, 0));
        // Without optimisation only the order of growth shows.
        let most = if cfg!(debug_assertions) { 20.0 } else { 2.0 };
        assert!(took.as_secs_f64() < most, "{took:?}");
    }
}
