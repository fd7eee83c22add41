//! What is kept and how it is found again: hits, slices, ranges, validators, budgets, restarts.

use crate::support::origin::{Fault, Framing, Object, Origin};
use crate::support::{Client, ENGINES, Server, Start, eventually, process, tree};
use crate::{allocated, beside, cached, compare, files, get, get_range, get_with, routed};
use std::time::{Duration, Instant};

const SLICE: u64 = 64 * 1024;

#[test]
fn the_second_request_is_a_file() {
    let _beside = beside();
    let origin = Origin::start();
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let server = cached(&origin, folder.path()).engine(engine).spawn();
        for (seed, size) in [0, 1, 4096, SLICE - 1, SLICE, SLICE + 1, 3 * tree::MIB + 17].into_iter().enumerate() {
            let path = format!("/{engine}/{size}");
            let object = Object::new(seed as u64, size).fresh(600).header("Content-Type", "text/x-test");
            origin.put(&path, &object);
            let what = format!("{engine}, {size} bytes");
            let mut client = server.client();
            let first = get(&mut client, &path);
            first.expect(&object, &format!("{what}: miss"));
            assert!(!first.is_hit() && first.cache_status().contains("fwd="), "{what}: {:?}", first.cache_status());
            let (asked, sent) = (origin.log().len(), origin.body_bytes(&path));
            assert_eq!(sent, size, "{what}: every byte once");
            for _ in 0..2 {
                let second = get(&mut client, &path);
                second.expect(&object, &format!("{what}: hit"));
                assert!(second.is_hit(), "{what}: {:?}", second.head);
                assert!(second.age().is_some_and(|age| age < 60), "{what}: Age {:?}", second.age());
                for name in ["content-type", "etag", "cache-control", "content-length", "accept-ranges"] {
                    assert_eq!(first.header(name), second.header(name), "{what}: {name}");
                }
                let head = client.head_of(&path);
                assert_eq!((head.status, head.length()), (200, Some(size)), "{what}: HEAD");
            }
            assert_eq!(origin.log().len(), asked, "{what}: the origin is not asked again");
        }
        let metrics = server.metrics();
        assert_eq!(metrics.sum("ringway_cache_requests_total", &[("result", "hit")]), 28.0, "{engine}");
        assert_eq!(metrics.sum("ringway_cache_requests_total", &[("result", "miss")]), 7.0, "{engine}");
        assert_eq!(metrics.sum("ringway_cache_objects", &[]), 7.0, "{engine}");
        assert!(metrics.sum("ringway_cache_fill_bytes_total", &[]) >= (3 * tree::MIB) as f64, "{engine}");
    }
}

#[test]
fn ranges_fetch_the_slices_they_touch_and_no_others() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(3, 40 * SLICE + 123).fresh(600);
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).spawn();
    let mut client = server.client();
    let mut expected = 0;
    // First and length of the range, slices that are new with it.
    let table = [
        (10 * SLICE + 5, 100, 1),
        (10 * SLICE + 500, 1000, 0),
        (11 * SLICE - 10, 20, 1),
        (20 * SLICE, 3 * SLICE, 3),
        (19 * SLICE + 1, 5 * SLICE, 3),
        (0, 1, 1),
    ];
    for (first, length, slices) in table {
        get_range(&mut client, "/a", first, length).expect_range(
            &object,
            first,
            length,
            &format!("{length} at {first}"),
        );
        expected += slices * SLICE;
        assert_eq!(origin.body_bytes("/a"), expected, "after {length} at {first}");
        assert_eq!(origin.sent_twice("/a"), 0);
    }
    // The end of the object, by suffix and by an open range.
    let last = object.size - 10;
    get_with(&mut client, "/a", "Range: bytes=-10\r\n").expect_range(&object, last, 10, "suffix");
    let sent = origin.body_bytes("/a");
    assert!(sent <= expected + SLICE, "a suffix fetched {} bytes", sent - expected);
    get_with(&mut client, "/a", &format!("Range: bytes={last}-\r\n")).expect_range(&object, last, 10, "open");
    assert_eq!(origin.body_bytes("/a"), sent);
    assert_eq!(get_with(&mut client, "/a", &format!("Range: bytes={}-\r\n", object.size)).status, 416);
    // The whole: what is missing, and every byte once.
    get(&mut client, "/a").expect(&object, "the whole");
    assert_eq!((origin.body_bytes("/a"), origin.sent_twice("/a")), (object.size, 0));
    // Every fetch behind the first one is tied to the validator.
    for request in origin.requests("/a").iter().skip(1) {
        let tied = request.header("if-range").or_else(|| request.header("if-match"));
        assert_eq!(tied.as_deref(), Some("\"v3\""), "{request:?}");
    }
    // Several ranges from the cache.
    let got = get_with(&mut client, "/a", "Range: bytes=0-9,100000-100009\r\n");
    if got.status == 206 {
        let text = &got.body;
        for first in [0, 100_000] {
            let part = object.content.range(first, 10);
            assert!(text.windows(10).any(|window| window == part), "the part at {first}");
        }
    } else {
        got.expect(&object, "several ranges may be answered with the whole");
    }
}

#[test]
fn a_small_range_of_a_large_object_costs_one_slice() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(4, 5 * tree::GIB).fresh(600).rate(8 * tree::MIB);
    origin.put("/large", &object);
    // The default slice of 8 MiB.
    let server = crate::relay(&origin).with("--cache", folder.path().display()).spawn();
    let mut client = server.client();
    let slice = 8 * tree::MIB;
    // At 8 MiB/s the slice takes a second; its first bytes are there at once.
    let first = 300 * slice + 5000;
    let start = Instant::now();
    get_range(&mut client, "/large", first, 100).expect_range(&object, first, 100, "100 bytes");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(600), "the first bytes of a slice after {took:?}");
    // On the same connection, while the fill runs.
    let start = Instant::now();
    get_range(&mut client, "/large", first - 5000, 4000).expect_range(&object, first - 5000, 4000, "beside a fill");
    let took = start.elapsed();
    let sent = origin.body_bytes("/large");
    assert!(sent < slice, "the fill still runs");
    assert!(took < Duration::from_millis(150), "bytes that are there, after {took:?} beside a fill");
    eventually("the slice is complete", Duration::from_secs(5), || origin.body_bytes("/large") >= slice);
    std::thread::sleep(Duration::from_millis(300));
    assert!(origin.body_bytes("/large") <= slice, "{} bytes for a 100-byte range", origin.body_bytes("/large"));
    get_range(&mut client, "/large", first + 5 * tree::MIB, 999).expect_range(
        &object,
        first + 5 * tree::MIB,
        999,
        "later in the slice",
    );
    assert_eq!(origin.body_bytes("/large"), slice);
    // The file is sparse.
    assert!(allocated(folder.path()) < 3 * slice, "{} bytes on disk", allocated(folder.path()));
}

#[test]
fn clients_validate_against_the_cache() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(5, 200_000).fresh(600).modified_ago(10_000);
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).spawn();
    let mut client = server.client();
    let first = get(&mut client, "/a");
    first.expect(&object, "a miss");
    let modified = first.header("last-modified").unwrap().to_owned();
    let asked = origin.log().len();
    let table = [
        ("If-None-Match: \"v5\"\r\n".to_owned(), 304),
        ("If-None-Match: W/\"v5\"\r\n".to_owned(), 304),
        ("If-None-Match: \"x\", \"v5\"\r\n".to_owned(), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200),
        (format!("If-Modified-Since: {modified}\r\n"), 304),
        (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {modified}\r\n"), 200),
        ("If-Match: \"x\"\r\n".to_owned(), 412),
        ("If-Match: \"v5\"\r\n".to_owned(), 200),
        ("Range: bytes=5-104\r\nIf-Range: \"v5\"\r\n".to_owned(), 206),
        (format!("Range: bytes=5-104\r\nIf-Range: {modified}\r\n"), 206),
        ("Range: bytes=5-104\r\nIf-Range: \"x\"\r\n".to_owned(), 200),
        ("Range: bytes=5-104\r\nIf-Range: W/\"v5\"\r\n".to_owned(), 200),
    ];
    for (headers, status) in table {
        let got = get_with(&mut client, "/a", &headers);
        assert_eq!(got.status, status, "{headers}");
        match status {
            200 => got.expect(&object, &headers),
            206 => got.expect_range(&object, 5, 100, &headers),
            304 => assert!(got.body.is_empty() && got.header("etag") == Some("\"v5\""), "{headers}"),
            _ => {}
        }
    }
    assert_eq!(origin.log().len(), asked, "all of it from the cache");
    // A condition of a client never decides what is stored for others: a cold 304 or 206 does not poison the object.
    origin.put("/b", &object);
    let got = get_with(&mut client, "/b", "If-None-Match: \"v5\"\r\n");
    assert!(matches!(got.status, 200 | 304), "{got:?}");
    get(&mut client, "/b").expect(&object, "behind a cold 304");
    get(&mut client, "/b").expect(&object, "and again");
}

#[test]
fn query_strings_are_part_of_the_name() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let objects = [Object::new(1, 1000).fresh(600), Object::new(2, 2000).fresh(600), Object::new(3, 3000).fresh(600)];
    for (target, object) in ["/a", "/a?x=1", "/a?x=2"].iter().zip(&objects) {
        origin.put(target, object);
    }
    let server = cached(&origin, folder.path()).spawn();
    for round in 0..2 {
        for (target, object) in ["/a", "/a?x=1", "/a?x=2"].iter().zip(&objects) {
            get(&mut server.client(), target).expect(object, &format!("{target}, round {round}"));
        }
    }
    assert_eq!(origin.log().len(), 3);
}

#[test]
fn an_origin_without_ranges_fills_in_one_stream() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = cached(&origin, folder.path()).spawn();
    let mut client = server.client();
    let object = Object::new(6, 20 * SLICE + 77).fresh(600).no_ranges();
    origin.put("/a", &object);
    let first = 12 * SLICE + 9;
    get_range(&mut client, "/a", first, 200).expect_range(&object, first, 200, "a range from one stream");
    get_range(&mut client, "/a", 5, 200).expect_range(&object, 5, 200, "before it");
    get(&mut client, "/a").expect(&object, "the whole");
    assert!(origin.body_bytes("/a") <= object.size, "for {} bytes {}", object.size, origin.asked("/a"));
    let asked = origin.log().len();
    assert!(get(&mut client, "/a").is_hit());
    assert_eq!(origin.log().len(), asked);
}

#[test]
fn bodies_of_unknown_length_arrive_whole_and_are_kept_only_whole() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = cached(&origin, folder.path()).spawn();
    for (seed, framing) in [Framing::Chunked(5000), Framing::Close].into_iter().enumerate() {
        let path = format!("/{seed}");
        let object = Object::new(seed as u64, 5 * SLICE + 1).fresh(600).framing(framing).no_ranges();
        origin.put(&path, &object);
        origin.fault(&path, Fault::Reset(2 * SLICE + 5), 1);
        let cut = get(&mut server.client(), &path);
        assert!(cut.status != 200 || !cut.whole, "{framing:?}: a reset is no end");
        for round in 0..3 {
            get(&mut server.client(), &path).expect(&object, &format!("{framing:?}, round {round}"));
        }
        get_range(&mut server.client(), &path, SLICE, 10).expect_range(&object, SLICE, 10, "a range of it");
    }
}

#[test]
fn what_is_too_large_streams_through() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = cached(&origin, folder.path()).with("--cache-object-bytes", "1MiB").spawn();
    let (small, large) = (Object::new(1, tree::MIB).fresh(600), Object::new(2, tree::MIB + 1).fresh(600));
    origin.put("/small", &small);
    origin.put("/large", &large);
    for _ in 0..2 {
        get(&mut server.client(), "/small").expect(&small, "small enough");
        get(&mut server.client(), "/large").expect(&large, "too large");
        get_range(&mut server.client(), "/large", 70_000, 100).expect_range(&large, 70_000, 100, "a range of it");
    }
    assert_eq!(origin.body_bytes("/small"), small.size);
    assert!(origin.body_bytes("/large") >= 2 * large.size);
    assert!(allocated(folder.path()) < 2 * tree::MIB, "{} bytes kept", allocated(folder.path()));
    assert!(server.metrics().sum("ringway_limit_hits_total", &[("limit", "cache_object_bytes")]) >= 1.0);
}

fn budget(options: &[(&str, &str)]) -> (Origin, tempfile::TempDir, Server) {
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let mut start = cached(&origin, folder.path()).core(process::cpus()[0]);
    for (option, value) in options {
        start = start.with(option, value);
    }
    let server = start.spawn();
    (origin, folder, server)
}

#[test]
fn the_byte_budget_holds_and_a_scan_does_not_flush_what_is_used() {
    let _beside = beside();
    let (origin, folder, server) = budget(&[("--cache-bytes", "8MiB")]);
    let mut client = server.client();
    let size = 512 * 1024;
    let object = |index: u64| Object::new(index, size).fresh(6000);
    for index in 0..80 {
        origin.put(&format!("/{index}"), &object(index));
    }
    // Six that are used again and again (3 MiB of 8) and a scan of seventy beside them.
    for _ in 0..4 {
        for hot in 0..6 {
            get(&mut client, &format!("/{hot}")).expect(&object(hot), "hot");
        }
    }
    let warm: u64 = (0..6).map(|hot| origin.body_bytes(&format!("/{hot}"))).sum();
    assert_eq!(warm, 6 * size, "the hot ones were fetched once");
    for index in 10..80 {
        get(&mut client, &format!("/{index}")).expect(&object(index), "scan");
        if index % 10 == 0 {
            get(&mut client, &format!("/{}", index / 10 % 6)).expect(&object(index / 10 % 6), "hot");
        }
        let metrics = server.metrics();
        let stored = metrics.sum("ringway_cache_size_bytes", &[]);
        assert!(stored <= (8 * tree::MIB) as f64, "{stored} bytes stored");
    }
    eventually("the disk agrees", Duration::from_secs(5), || allocated(folder.path()) <= 9 * tree::MIB);
    for hot in 0..6 {
        get(&mut client, &format!("/{hot}")).expect(&object(hot), "hot after the scan");
    }
    let again: u64 = (0..6).map(|hot| origin.body_bytes(&format!("/{hot}"))).sum::<u64>() - warm;
    assert!(again <= size, "a scan flushed {} of 6 objects that are used", again / size);
    assert!(server.metrics().sum("ringway_cache_evictions_total", &[("reason", "capacity")]) >= 50.0);
    assert_eq!(server.metrics().sum("ringway_cache_capacity_bytes", &[]) as u64, 8 * tree::MIB);
}

#[test]
fn no_more_objects_are_kept_than_allowed() {
    let _beside = beside();
    let (origin, folder, server) = budget(&[("--cache-objects", "20")]);
    let mut client = server.client();
    for index in 0..100 {
        let object = Object::new(index, 1000).fresh(6000);
        origin.put(&format!("/{index}"), &object);
        get(&mut client, &format!("/{index}")).expect(&object, "one of many");
    }
    eventually("twenty are kept", Duration::from_secs(5), || {
        server.metrics().sum("ringway_cache_objects", &[]) <= 20.0 && files(folder.path()).len() <= 40
    });
}

#[test]
fn a_budget_smaller_than_what_is_in_flight_serves_all_the_same() {
    let _beside = beside();
    let (origin, _folder, server) = budget(&[("--cache-bytes", "2MiB"), ("--cache-object-bytes", "2MiB")]);
    std::thread::scope(|scope| {
        for worker in 0..6u64 {
            let (origin, server) = (&origin, &server);
            scope.spawn(move || {
                for round in 0..6 {
                    let object = Object::new(worker, tree::MIB + worker).fresh(6000);
                    let path = format!("/{worker}");
                    origin.put(&path, &object);
                    get(&mut server.client(), &path).expect(&object, &format!("worker {worker}, round {round}"));
                }
            });
        }
    });
}

/// Starts again on the same folder.
fn again(origin: &Origin, folder: &std::path::Path) -> Server {
    cached(origin, folder).spawn()
}

#[test]
fn complete_slices_survive_a_restart_and_are_verified() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let (whole, part) = (Object::new(1, 10 * SLICE + 5).fresh(6000), Object::new(2, 30 * SLICE).fresh(6000));
    origin.put("/whole", &whole);
    origin.put("/part", &part);
    let server = again(&origin, folder.path());
    get(&mut server.client(), "/whole").expect(&whole, "cold");
    get_range(&mut server.client(), "/part", 7 * SLICE + 5, 3 * SLICE).expect_range(
        &part,
        7 * SLICE + 5,
        3 * SLICE,
        "cold",
    );
    let sent = origin.all_body_bytes();
    server.stop();

    let server = again(&origin, folder.path());
    let got = get(&mut server.client(), "/whole");
    got.expect(&whole, "after a restart");
    assert!(got.is_hit(), "{:?}", got.head);
    get_range(&mut server.client(), "/part", 8 * SLICE, 2 * SLICE).expect_range(&part, 8 * SLICE, 2 * SLICE, "after");
    assert_eq!(origin.all_body_bytes(), sent, "nothing was fetched again");
    assert!(server.metrics().sum("ringway_cache_verified_slices_total", &[]) >= 11.0);
    server.stop();

    // Bytes that changed on disk while nobody looked: found by their checksum and fetched again.
    let largest = |folder: &std::path::Path| {
        let mut all = files(folder);
        all.retain(|(path, _)| {
            // The file that holds the object's bytes.
            std::fs::read(path)
                .is_ok_and(|bytes| bytes.windows(64).any(|window| window == whole.content.range(5 * SLICE, 64)))
        });
        all.pop().expect("the object's file").0
    };
    let file = largest(folder.path());
    let mut bytes = std::fs::read(&file).unwrap();
    let place = bytes.windows(64).position(|window| window == whole.content.range(5 * SLICE, 64)).unwrap();
    bytes[place + 1000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let server = again(&origin, folder.path());
    let got = get(&mut server.client(), "/whole");
    // What is found before anything was sent is repaired; what is found later may only cut.
    if got.whole {
        got.expect(&whole, "one bit changed on disk");
    } else {
        got.expect_cut(&whole, "one bit changed on disk");
    }
    get(&mut server.client(), "/whole").expect(&whole, "repaired");
    assert!(origin.all_body_bytes() > sent, "the broken slice was fetched again");
    assert!(origin.all_body_bytes() <= sent + whole.size, "and no more than the object");
    assert!(server.metrics().sum("ringway_cache_verify_failures_total", &[]) >= 1.0);
    server.stop();

    // A file that lost its end, and files that hold nonsense.
    let file = largest(folder.path());
    let length = file.metadata().unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    std::fs::write(folder.path().join("nonsense"), "not ours").unwrap();
    let server = again(&origin, folder.path());
    let got = get(&mut server.client(), "/whole");
    assert!(!got.whole || got.body == whole.bytes(), "a truncated file");
    get(&mut server.client(), "/whole").expect(&whole, "a truncated file, repaired");
    server.stop();
    for (path, length) in files(folder.path()) {
        // The mark that says whose folder it is stays: without it a start refuses, lest it harm somebody else's files.
        if length > 0 && !path.ends_with("version") && !path.ends_with("lock") {
            std::fs::write(path, vec![0xff; length.min(100_000) as usize]).unwrap();
        }
    }
    let server = again(&origin, folder.path());
    get(&mut server.client(), "/whole").expect(&whole, "every file is nonsense");
    get_range(&mut server.client(), "/part", 8 * SLICE, SLICE).expect_range(&part, 8 * SLICE, SLICE, "nonsense");
    server.stop();
    // A folder that is somebody else's is not touched, and the refusal names it.
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("letter"), "dear all").unwrap();
    let (code, said) = cached(&origin, foreign.path()).refused();
    assert!(code.is_some_and(|code| code != 0), "{said}");
    assert!(said.contains(&foreign.path().display().to_string()), "{said}");
    assert_eq!(std::fs::read(foreign.path().join("letter")).unwrap(), b"dear all");
}

#[test]
fn a_restart_finds_many_objects_quickly() {
    let _beside = beside();
    const OBJECTS: u64 = 4000;
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = again(&origin, folder.path());
    for index in 0..OBJECTS {
        origin.put(&format!("/{index}"), &Object::new(index, 200).fresh(6000));
    }
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for index in (worker..OBJECTS).step_by(4) {
                    get(&mut client, &format!("/{index}")).expect(&Object::new(index, 200).fresh(6000), "cold");
                }
            });
        }
    });
    server.stop();
    let empty = tempfile::tempdir().unwrap();
    let start = Instant::now();
    again(&origin, empty.path()).stop();
    let nothing = start.elapsed();
    let start = Instant::now();
    let server = again(&origin, folder.path());
    let took = start.elapsed().saturating_sub(nothing);
    println!("{OBJECTS} objects found in {took:?} (an empty cache starts and stops in {nothing:?})");
    // 2 s per 100,000, with room for a busy machine.
    assert!(took < Duration::from_millis(500), "{took:?} to find {OBJECTS} objects");
    eventually("all are there", Duration::from_secs(5), || {
        server.metrics().sum("ringway_cache_objects", &[]) as u64 == OBJECTS
    });
    let asked = origin.log().len();
    let mut client = server.client();
    for index in (0..OBJECTS).step_by(97) {
        assert!(get(&mut client, &format!("/{index}")).is_hit());
    }
    assert_eq!(origin.log().len(), asked);
}

#[test]
fn a_folder_belongs_to_one_process() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = again(&origin, folder.path());
    let (code, said) = cached(&origin, folder.path()).refused();
    assert!(code.is_some_and(|code| code != 0), "{said}");
    assert!(said.contains(&folder.path().display().to_string()), "{said}");
    server.stop();
    again(&origin, folder.path()).stop();
    // A folder that cannot be made or written is said at once.
    let (code, said) = cached(&origin, std::path::Path::new("/proc/none/cache")).refused();
    assert!(code.is_some_and(|code| code != 0) && said.contains("/proc/none"), "{code:?} {said}");
}

#[test]
fn routes_may_do_without() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 1000).fresh(600);
    origin.put("/a", &object);
    let server = routed(&origin, Some(folder.path()), "cache = false").spawn();
    for _ in 0..3 {
        get(&mut server.client(), "/a").expect(&object, "not cached");
    }
    assert_eq!(origin.log().len(), 3);
    assert_eq!(files(folder.path()).iter().filter(|(_, length)| *length >= 1000).count(), 0);
}

#[test]
fn hits_are_plain_files_to_the_engines() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 64 * tree::MIB).fresh(600);
    origin.put("/a", &object);
    let server: Server = {
        let start: Start = crate::relay(&origin).with("--cache", folder.path().display()).engine("splice");
        start.spawn()
    };
    let mut client: Client = server.client();
    compare(&mut client, "/a", &object, "cold");
    compare(&mut client, "/a", &object, "hit");
    let sent = |engine: &str| server.metrics().sum("ringway_sent_bytes_total", &[("engine", engine), ("part", "body")]);
    eventually("the hit went by splice", Duration::from_secs(3), || sent("splice") >= object.size as f64);
    assert_eq!(origin.body_bytes("/a"), object.size);
}
