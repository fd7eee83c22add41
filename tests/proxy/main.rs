//! Black box, in front of an origin that does what it is told: relay, cache, faults, crashes, full disks. Every body is
//! compared byte for byte with what the origin has.

#[path = "../support/mod.rs"]
mod support;

mod cache;
mod coalesce;
mod crash;
mod disk;
mod faults;
mod freshness;
mod origin;
mod purge;
mod regress;
mod relay;
mod s3;
mod upstream;

use std::path::Path;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use support::client::Head;
use support::origin::{Comparer, Object, Origin};
use support::{Client, Start};

static MACHINE: RwLock<()> = RwLock::new(());

/// Held by tests that share the machine with each other...
fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// ... and by those that need it for themselves.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A relay.
fn relay(origin: &Origin) -> Start {
    // Where the system's default paces with timers (bbr without fq), the timers are what would be measured.
    Start::new(origin.url("")).with("--congestion", "cubic")
}

/// With a cache of small slices.
fn cached(origin: &Origin, folder: &Path) -> Start {
    relay(origin).with("--cache", folder.display()).with("--cache-slice", "64KiB")
}

/// The same as one `[[route]]`, with more keys for it.
fn routed(origin: &Origin, folder: Option<&Path>, route: &str) -> Start {
    let cache =
        folder.map_or(String::new(), |folder| format!("cache = \"{}\"\ncache_slice = \"64KiB\"\n", folder.display()));
    let url = origin.url("");
    Start::configured(&format!("congestion = \"cubic\"\n{cache}[[route]]\npath = \"/\"\nsource = \"{url}\"\n{route}\n"))
}

/// What came of one GET.
#[derive(Debug)]
struct Got {
    head: Head,
    body: Vec<u8>,
    /// The body ended where its framing says.
    whole: bool,
}

impl std::ops::Deref for Got {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Got {
    /// `hit`, `stale`, `fwd=uri-miss` and so on: the parameters of `Cache-Status: ringway`.
    fn cache_status(&self) -> String {
        let value = self.header("cache-status").unwrap_or_default();
        let ours = value.split(',').next_back().unwrap_or_default().trim();
        ours.strip_prefix("ringway").unwrap_or_default().trim_start_matches([';', ' ']).to_owned()
    }

    fn is_hit(&self) -> bool {
        self.cache_status().split(';').any(|part| part.trim() == "hit")
    }

    fn age(&self) -> Option<u64> {
        self.header("age").map(|age| age.parse().expect("Age is a number"))
    }

    /// 200, whole, and exactly this object.
    fn expect(&self, object: &Object, what: &str) {
        assert_eq!(
            self.status,
            200,
            "{what}: {:?} {}",
            self.head,
            String::from_utf8_lossy(&self.body[..self.body.len().min(300)])
        );
        assert!(self.whole, "{what}: ended early after {} bytes: {:?}", self.body.len(), self.head);
        assert_eq!(self.body.len() as u64, object.size, "{what}: {:?}", self.head);
        assert!(self.body == object.bytes(), "{what}: wrong bytes");
        if let (Some(ours), Some(theirs)) = (self.header("etag"), &object.etag) {
            assert_eq!(ours, theirs, "{what}");
        }
    }

    /// 206 with exactly these bytes of the object.
    fn expect_range(&self, object: &Object, first: u64, length: u64, what: &str) {
        assert_eq!(self.status, 206, "{what}: {:?}", self.head);
        assert!(self.whole, "{what}: ended early after {} bytes", self.body.len());
        let range = format!("bytes {first}-{}/{}", first + length - 1, object.size);
        assert_eq!(self.header("content-range"), Some(range.as_str()), "{what}");
        assert!(self.body == object.content.range(first, length), "{what}: wrong bytes");
    }

    /// Not whole, but what came is the beginning of this object.
    fn expect_cut(&self, object: &Object, what: &str) {
        assert!(!self.whole, "{what}: {} bytes as if they were whole: {:?}", self.body.len(), self.head);
        assert_eq!(self.status, 200, "{what}");
        assert!((self.body.len() as u64) < object.size, "{what}: all bytes, and no end");
        assert!(self.body == object.content.range(0, self.body.len() as u64), "{what}: wrong bytes");
    }

    /// An error with this status whose last line says why.
    fn expect_error(&self, status: u16, what: &str) {
        let said = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{what}: {:?} {said}", self.head);
        assert!(self.whole, "{what}");
        let why = said.trim_end().lines().last().unwrap_or_default();
        assert!(why.len() > 12 && !why.starts_with(&status.to_string()), "{what}: says why in a line: {said:?}");
    }
}

/// GET with more header lines.
fn get_with(client: &mut Client, path: &str, headers: &str) -> Got {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n").as_bytes());
    let head = client.head();
    let mut body = Vec::new();
    let bodyless = matches!(head.status, 204 | 304);
    let whole = bodyless || client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes));
    Got { head, body, whole }
}

fn get(client: &mut Client, path: &str) -> Got {
    get_with(client, path, "")
}

fn get_range(client: &mut Client, path: &str, first: u64, length: u64) -> Got {
    get_with(client, path, &format!("Range: bytes={first}-{}\r\n", first + length - 1))
}

/// GET of a large object: compared as it comes; panics unless it is whole and right.
fn compare(client: &mut Client, path: &str, object: &Object, what: &str) {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
    let head = client.head();
    assert_eq!((head.status, head.length()), (200, Some(object.size)), "{what}");
    let mut comparer = Comparer::new(&object.content, 0);
    let whole = client.body_to_its_end(&head, |bytes| comparer.take(bytes));
    assert_eq!(comparer.wrong, None, "{what}: first wrong byte");
    assert!(whole && comparer.at() == object.size, "{what}: {} of {} bytes", comparer.at(), object.size);
}

/// A number sequence that is the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Bytes that a folder holds on its file system, holes not counted.
fn allocated(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        sum += if metadata.is_dir() { allocated(&entry.path()) } else { metadata.blocks() * 512 };
    }
    sum
}

/// All files below a folder with their lengths.
fn files(folder: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push((entry.path(), metadata.len()));
        }
    }
    found
}
