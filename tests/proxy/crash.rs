//! kill -9 while fills run, fifty times at random points: no wrong byte afterwards, and no space that nobody owns.

use crate::support::origin::{Object, Origin};
use crate::support::{Client, eventually, tree};
use crate::{Random, allocated, beside, files, get, get_range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ROUNDS: u64 = 50;
const OBJECTS: u64 = 6;
const SLICE: u64 = 128 * 1024;

fn object(index: u64, version: u64) -> Object {
    // Some end on a slice, most do not.
    Object::new(index * 1000 + version, 20 * SLICE + index * 7001).fresh(6000)
}

#[test]
fn fifty_kills_during_fills_leave_no_wrong_byte_and_no_lost_space() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let start = || {
        crate::relay(&origin)
            .with("--cache", folder.path().display())
            .with("--cache-slice", SLICE)
            .with("--cache-on-leave", "finish")
            .spawn()
    };
    // Which versions an object has had: a client may get any that is still fresh, and never two in one.
    let mut versions: Vec<u64> = vec![0; OBJECTS as usize];
    for index in 0..OBJECTS {
        origin.put(&format!("/{index}"), &object(index, 0).rate(8 * tree::MIB));
    }
    let mut random = Random(20_261_201);
    let (responses, hits) = (AtomicU64::new(0), AtomicU64::new(0));
    for round in 0..ROUNDS {
        let server = start();
        let address = server.address();
        let stop = AtomicBool::new(false);
        let delay = Duration::from_millis(random.below(60));
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (versions, stop, responses, hits) = (&versions, &stop, &responses, &hits);
                scope.spawn(move || {
                    let mut random = Random(round * 10 + worker);
                    while !stop.load(Ordering::Relaxed) {
                        let index = random.below(OBJECTS);
                        if let Some(hit) = one(address, index, versions[index as usize], &mut random, round) {
                            responses.fetch_add(1, Ordering::Relaxed);
                            hits.fetch_add(u64::from(hit), Ordering::Relaxed);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20) + delay);
            // Killed while they run; what they see of it is an end, and no wrong byte.
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        // Now and then an object gets a new version or the cache is emptied of what it holds of it.
        if round % 7 == 3 {
            let index = random.below(OBJECTS);
            versions[index as usize] += 1;
            let new = object(index, versions[index as usize]).rate(8 * tree::MIB);
            origin.put(&format!("/{index}"), &new);
        }
    }
    let server = start();
    let mut client = server.client();
    let mut live = 0;
    for index in 0..OBJECTS {
        origin.put(&format!("/{index}"), &object(index, versions[index as usize]));
        let mut got = get(&mut client, &format!("/{index}"));
        let mut version = version_of(index, got.header("etag"), versions[index as usize]);
        if !got.whole {
            // Parts of an old version were kept and the rest is gone from the origin: the next one has the new version.
            assert!(version < versions[index as usize], "object {index} after {ROUNDS} kills: cut");
            got.expect_cut(&object(index, version), &format!("object {index} after {ROUNDS} kills"));
            client = server.client();
            got = get(&mut client, &format!("/{index}"));
            version = versions[index as usize];
        }
        got.expect(&object(index, version), &format!("object {index} after {ROUNDS} kills"));
        live += got.body.len() as u64;
    }
    println!(
        "{} responses between the kills, {} of them hits; the origin sent {} MiB",
        responses.load(Ordering::Relaxed),
        hits.load(Ordering::Relaxed),
        origin.all_body_bytes() / tree::MIB
    );
    assert!(hits.load(Ordering::Relaxed) > 0, "something survived a kill");
    // The sweep: what no object owns is gone from the disk.
    let most = live + live / 10 + tree::MIB;
    eventually("no leaked space", Duration::from_secs(10), || allocated(folder.path()) <= most);
    let stored = server.metrics().sum("ringway_cache_size_bytes", &[]) as u64;
    assert!(stored <= most, "{stored} bytes on the books for {live} bytes of objects");
    assert!(files(folder.path()).len() as u64 <= 3 * OBJECTS + 16, "{:?}", files(folder.path()));
    let sent = origin.all_body_bytes();
    server.stop();
    let server = start();
    for index in 0..OBJECTS {
        let got = get(&mut server.client(), &format!("/{index}"));
        let version = version_of(index, got.header("etag"), versions[index as usize]);
        got.expect(&object(index, version), &format!("object {index} after a clean restart"));
    }
    assert_eq!(origin.all_body_bytes(), sent, "all of it was kept");
}

fn version_of(index: u64, etag: Option<&str>, latest: u64) -> u64 {
    let found = (0..=latest).find(|version| object(index, *version).etag.as_deref() == etag);
    found.unwrap_or_else(|| panic!("object {index} never had the tag {etag:?}"))
}

/// One request of a client that may be cut at any point. `Some(hit)` for a whole answer, all of it checked.
fn one(address: std::net::SocketAddr, index: u64, latest: u64, random: &mut Random, round: u64) -> Option<bool> {
    let stream = std::net::TcpStream::connect(address).ok()?;
    let mut client = Client::over(stream);
    let size = object(index, 0).size;
    let whole = random.below(3) == 0;
    let first = if whole { 0 } else { random.below(size) };
    let length = if whole { size } else { (1 + random.below(2 * SLICE)).min(size - first) };
    let range = if whole { String::new() } else { format!("Range: bytes={first}-{}\r\n", first + length - 1) };
    let request = format!("GET /{index} HTTP/1.1\r\nHost: test\r\n{range}\r\n");
    std::io::Write::write_all(&mut client.stream, request.as_bytes()).ok()?;
    let head = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.try_head())).ok()?.ok()??;
    let what = format!("round {round}, object {index}, {length} at {first}: {head:?}");
    if !matches!(head.status, 200 | 206) {
        // A version that changed under a fill.
        assert!(matches!(head.status, 502..=504), "{what}");
        return None;
    }
    let mut body = Vec::new();
    let count = client.read_body(length, |bytes| body.extend_from_slice(bytes));
    let version = version_of(index, head.header("etag"), latest);
    assert!(body == object(index, version).content.range(first, count), "{what}: wrong bytes");
    let hit = head.header("cache-status").is_some_and(|value| value.contains("hit"));
    (count == length).then_some(hit)
}

#[test]
fn a_kill_in_the_middle_of_a_slice_keeps_the_slices_before_it() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let object = object(1, 0);
    origin.put("/a", &object);
    origin.hold("/a", 9 * SLICE + 777);
    let start = || crate::relay(&origin).with("--cache", folder.path().display()).with("--cache-slice", SLICE).spawn();
    let server = start();
    let mut client = server.client();
    client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    assert_eq!(client.read_body(9 * SLICE + 777, |_| ()), 9 * SLICE + 777);
    // Complete slices become durable in the background; give that a moment, as a crash would.
    std::thread::sleep(Duration::from_millis(1500));
    server.kill();
    origin.release("/a");
    let server = start();
    get_range(&mut server.client(), "/a", 0, 1000).expect_range(&object, 0, 1000, "the first slice");
    get(&mut server.client(), "/a").expect(&object, "the whole");
    // As the second server counts it: the origin may still have sent to the first one, which is dead.
    let again = server.metrics().sum("ringway_upstream_received_bytes_total", &[]) as u64;
    println!("{again} of {} bytes were fetched again; nine slices were complete; {}", object.size, origin.asked("/a"));
    assert!(again <= object.size - 8 * SLICE, "{again} of {} bytes were fetched again", object.size);
}
