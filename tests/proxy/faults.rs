//! What an origin can do to a cached route, and what must come of it. Behind each of them: nothing wrong is stored.

use crate::support::origin::{Fault, Object, Origin};
use crate::support::{Client, Server, eventually, process, tree};
use crate::{beside, cached, get, get_range};
use std::time::{Duration, Instant};

const SLICE: u64 = 64 * 1024;
/// Eight slices and a bit.
const SIZE: u64 = 8 * SLICE + 1001;
const HALF: u64 = 4 * SLICE + 100;

struct Site {
    origin: Origin,
    folder: tempfile::TempDir,
    server: Server,
    object: Object,
}

fn site(options: &[(&str, &str)]) -> Site {
    let (origin, folder) = (Origin::start(), tempfile::tempdir().unwrap());
    let mut start = cached(&origin, folder.path()).core(process::cpus()[0]);
    for (option, value) in options {
        start = start.with(option, value);
    }
    let server = start.spawn();
    let object = Object::new(1, SIZE).fresh(6000);
    origin.put("/a", &object);
    Site { origin, folder, server, object }
}

impl Site {
    fn client(&self) -> Client {
        self.server.client()
    }

    /// Without faults the whole right object comes, from the origin, from the cache, and after a restart.
    fn nothing_wrong_is_stored(self, what: &str) {
        let Self { origin, folder, server, object } = self;
        origin.clear_faults("/a");
        origin.release("/a");
        // One more may find out that what is there does not fit what the origin has now; then all is well.
        let mut cuts = 0;
        eventually("it is whole again", Duration::from_secs(10), || {
            let got = get(&mut server.client(), "/a");
            if got.status == 200 && got.whole {
                got.expect(&object, &format!("{what}: afterwards"));
            } else if got.status == 200 {
                cuts += 1;
                assert!(cuts <= 1, "{what}: cut again and again after {} bytes: {:?}", got.body.len(), got.head);
            }
            got.status == 200 && got.whole
        });
        // What a fault left behind may take a fetch or two to be replaced.
        let hit = (0..4).any(|_| {
            let got = get(&mut server.client(), "/a");
            got.expect(&object, &format!("{what}: from the cache"));
            got.is_hit()
        });
        assert!(hit, "{what}: never a hit; {}", origin.asked("/a"));
        let sent = origin.body_bytes("/a");
        server.stop();
        let server = cached(&origin, folder.path()).spawn();
        get(&mut server.client(), "/a").expect(&object, &format!("{what}: after a restart"));
        assert_eq!(origin.body_bytes("/a"), sent, "{what}: nothing was fetched again");
    }
}

#[test]
fn an_object_that_changes_between_slices_is_never_mixed() {
    let _beside = beside();
    for (what, new) in [
        ("same length", Object::new(2, SIZE).fresh(6000)),
        ("longer", Object::new(2, 2 * SIZE).fresh(6000)),
        ("shorter", Object::new(2, HALF / 2).fresh(6000)),
    ] {
        let mut site = site(&[]);
        // In one slice that is there, in a fetch behind it, the object is another one.
        get_range(&mut site.client(), "/a", 0, 10).expect_range(&site.object, 0, 10, what);
        get_range(&mut site.client(), "/a", 5 * SLICE, 10).expect_range(&site.object, 5 * SLICE, 10, what);
        site.origin.put("/a", &new);
        let got = get(&mut site.client(), "/a");
        if got.header("etag") == Some("\"v1\"") {
            got.expect_cut(&site.object, what);
        } else if got.status == 200 {
            // Noticed before anything was sent.
            got.expect(&new, what);
        } else {
            assert_eq!(got.status, 502, "{what}: {:?}", got.head);
        }
        get(&mut site.client(), "/a").expect(&new, &format!("{what}: the next request has the new one whole"));
        let range = get_range(&mut site.client(), "/a", 100, 50);
        range.expect_range(&new, 100, 50, &format!("{what}: a range of the new one"));
        site.object = new;
        site.nothing_wrong_is_stored(what);
    }
}

#[test]
fn an_object_that_changes_under_a_running_fill_is_never_mixed() {
    let _beside = beside();
    for at in [10, SLICE, HALF, SIZE - 1] {
        let mut site = site(&[]);
        let new = Object::new(2, SIZE + 500).fresh(6000);
        site.origin.fault("/a", Fault::Change(at, Box::new(new.clone())), 1);
        let got = get(&mut site.client(), "/a");
        // One stream brings the old one whole; slices bring its beginning and end there.
        if got.whole {
            got.expect(&site.object, "the old one, whole");
        } else {
            got.expect_cut(&site.object, "the old one, cut");
        }
        // What is fresh may be served for as long as it is; what was cut must not be.
        let next = get(&mut site.client(), "/a");
        if got.whole && next.header("etag") == Some("\"v1\"") {
            next.expect(&site.object, "the old one, fresh and whole");
        } else {
            next.expect(&new, "the new one");
            site.object = new;
        }
        site.nothing_wrong_is_stored(&format!("changed at {at}"));
    }
}

#[test]
fn clients_of_an_old_version_finish_if_its_bytes_are_there() {
    let _beside = beside();
    let (origin, folder) = (Origin::start(), tempfile::tempdir().unwrap());
    let server = cached(&origin, folder.path()).spawn();
    let old = Object::new(1, 16 * tree::MIB).header("Cache-Control", "no-cache");
    origin.put("/a", &old);
    get(&mut server.client(), "/a").expect(&old, "cold");
    // A slow reader of the old one, all of which is stored.
    let mut slow = Client::connect_small(server.address());
    slow.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = slow.head();
    let mut body = Vec::new();
    slow.read_body(100_000, |bytes| body.extend_from_slice(bytes));
    let new = Object::new(2, 8 * tree::MIB).header("Cache-Control", "no-cache");
    origin.put("/a", &new);
    for _ in 0..2 {
        get(&mut server.client(), "/a").expect(&new, "the new one beside a reader of the old");
    }
    let left = head.length().unwrap() - 100_000;
    assert_eq!(slow.read_body(left, |bytes| body.extend_from_slice(bytes)), left, "the old one goes on to its end");
    assert!(body == old.bytes(), "and stays the old one");
}

fn dies(fault: fn(u64) -> Fault, what: &str) {
    let _beside = beside();
    // Once: the rest is asked for by range, and the client sees nothing of it.
    for at in [1, SLICE, HALF, SIZE - 1] {
        let site = site(&[]);
        site.origin.fault("/a", fault(at), 1);
        get(&mut site.client(), "/a").expect(&site.object, &format!("{what} once at {at}"));
        assert_eq!(site.origin.faults_left("/a"), 0);
        assert!(site.origin.body_bytes("/a") <= SIZE + SLICE, "only the rest was fetched again");
        let behind = site.origin.requests("/a");
        let resumed = behind.last().unwrap();
        assert!(resumed.header("if-range").or(resumed.header("if-match")).is_some(), "{what}: tied to the version");
        site.nothing_wrong_is_stored(&format!("{what} once at {at}"));
    }
    // Every time: the response is cut, and what was complete is kept.
    let site = site(&[]);
    site.origin.fault("/a", fault(HALF), u32::MAX);
    get(&mut site.client(), "/a").expect_cut(&site.object, what);
    let got = get_range(&mut site.client(), "/a", SLICE, 100);
    got.expect_range(&site.object, SLICE, 100, &format!("{what}: a slice that is complete"));
    site.nothing_wrong_is_stored(what);
}

#[test]
fn an_origin_that_dies_at_half_is_resumed_or_the_response_is_cut() {
    dies(Fault::Die, "dies");
}

#[test]
fn an_origin_that_resets_at_half_is_resumed_or_the_response_is_cut() {
    dies(Fault::Reset, "resets");
}

#[test]
fn an_origin_that_is_gone_for_good_cuts_the_response_and_keeps_the_slices() {
    let _beside = beside();
    let mut site = site(&[]);
    site.origin.hold("/a", HALF);
    let mut client = site.client();
    client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.head();
    let mut body = Vec::new();
    client.read_body(HALF, |bytes| body.extend_from_slice(bytes));
    site.origin.kill();
    let left = head.length().unwrap() - HALF;
    assert_eq!(client.read_body(left, |bytes| body.extend_from_slice(bytes)), 0, "cut where the origin was");
    assert!(body == site.object.content.range(0, HALF));
    get_range(&mut site.client(), "/a", SLICE, 100).expect_range(&site.object, SLICE, 100, "kept, without an origin");
    let got = get_range(&mut site.client(), "/a", 7 * SLICE, 100);
    assert!(matches!(got.status, 502..=504) || !got.whole, "{:?}", got.head);
    site.origin.revive();
    site.origin.release("/a");
    let sent = site.origin.body_bytes("/a");
    eventually("back", Duration::from_secs(10), || get(&mut site.client(), "/a").whole);
    assert!(site.origin.body_bytes("/a") - sent <= SIZE - 4 * SLICE, "complete slices were not fetched again");
    site.nothing_wrong_is_stored("gone and back");
}

#[test]
fn a_short_body_is_never_complete() {
    let _beside = beside();
    // Says SIZE in one stream and ends clean before it, every time.
    let mut site = site(&[]);
    site.object = site.object.clone().no_ranges();
    site.origin.put("/a", &site.object);
    site.origin.fault("/a", Fault::Die(SIZE - 1), u32::MAX);
    for _ in 0..2 {
        get(&mut site.client(), "/a").expect_cut(&site.object, "one byte short, no ranges");
    }
    let aborted = site.server.metrics().sum("ringway_http_aborted_responses_total", &[("reason", "upstream")]);
    assert!(aborted >= 2.0, "{aborted} aborted responses counted");
    site.nothing_wrong_is_stored("short");
}

#[test]
fn one_byte_too_many_is_not_taken() {
    let _beside = beside();
    for extra in [1, 70_000] {
        let site = site(&[]);
        site.origin.fault("/a", Fault::Extra(extra), 3);
        get(&mut site.client(), "/a").expect(&site.object, "one byte too many");
        site.nothing_wrong_is_stored("one byte too many");
    }
    let site = site(&[]);
    site.origin.fault("/a", Fault::Extra(1), u32::MAX);
    for slice in 0..5 {
        let got = get_range(&mut site.client(), "/a", slice * SLICE, 100);
        got.expect_range(&site.object, slice * SLICE, 100, "slices with one byte too many");
    }
    assert!(site.origin.log().iter().all(|request| request.number == 0), "none of these connections is used again");
    site.nothing_wrong_is_stored("slices with one byte too many");
}

#[test]
fn idle_connections_that_close_are_not_noticed() {
    let _beside = beside();
    let site = site(&[]);
    for slice in 0..8 {
        if slice % 2 == 0 {
            eventually("idle", Duration::from_secs(3), || slice == 0 || site.origin.close_idle() >= 1);
        } else {
            site.origin.drop_reused(1);
        }
        let got = get_range(&mut site.client(), "/a", slice * SLICE, 100);
        got.expect_range(&site.object, slice * SLICE, 100, "an idle connection that closes");
    }
    assert_eq!(site.origin.drops_left(), 0);
    site.nothing_wrong_is_stored("idle connections that close");
}

#[test]
fn a_reset_before_the_head_is_retried() {
    let _beside = beside();
    let site = site(&[]);
    site.origin.fault("/a", Fault::ResetEarly, 1);
    get(&mut site.client(), "/a").expect(&site.object, "one reset");
    site.nothing_wrong_is_stored("one reset");
    let site = self::site(&[]);
    site.origin.fault("/a", Fault::ResetEarly, u32::MAX);
    get(&mut site.client(), "/a").expect_error(502, "nothing but resets");
    site.nothing_wrong_is_stored("nothing but resets");
}

#[test]
fn a_stall_is_ended_in_time_and_resumed() {
    let _beside = beside();
    let site = site(&[("--origin-progress-timeout", "400ms")]);
    site.origin.fault("/a", Fault::Stall(HALF), 1);
    let start = Instant::now();
    get(&mut site.client(), "/a").expect(&site.object, "stalls once");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(350) && took < Duration::from_secs(4), "{took:?}");
    site.nothing_wrong_is_stored("stalls once");
    let site = self::site(&[("--origin-progress-timeout", "400ms")]);
    site.origin.fault("/a", Fault::Stall(HALF), u32::MAX);
    let start = Instant::now();
    get(&mut site.client(), "/a").expect_cut(&site.object, "stalls every time");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    site.nothing_wrong_is_stored("stalls every time");
    let site = self::site(&[("--origin-first-byte-timeout", "400ms"), ("--origin-retries", "0")]);
    site.origin.put("/a", &site.object.clone().delay(Duration::from_secs(2)));
    get(&mut site.client(), "/a").expect_error(504, "no first byte");
    site.origin.put("/a", &site.object);
    site.nothing_wrong_is_stored("no first byte");
}

#[test]
fn a_slow_origin_is_streamed_as_it_comes() {
    let _beside = beside();
    let mut site = site(&[("--origin-progress-timeout", "1s")]);
    site.object = site.object.clone().rate(200_000);
    site.origin.put("/a", &site.object);
    let mut client = site.client();
    let start = Instant::now();
    client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.head();
    let mut body = Vec::new();
    client.read_body(1000, |bytes| body.extend_from_slice(bytes));
    let first = start.elapsed();
    assert!(first < Duration::from_millis(300), "the first bytes after {first:?}");
    client.read_body(100_000, |bytes| body.extend_from_slice(bytes));
    let took = start.elapsed();
    assert!(took < Duration::from_millis(1300), "100 KB at 200 KB/s after {took:?}: by watermark, not by slice");
    let left = head.length().unwrap() - body.len() as u64;
    assert_eq!(client.read_body(left, |bytes| body.extend_from_slice(bytes)), left);
    assert!(body == site.object.bytes());
    site.object.rate = None;
    site.origin.put("/a", &site.object);
    site.nothing_wrong_is_stored("slow");
}

#[test]
fn an_error_instead_of_a_slice_is_not_stored() {
    let _beside = beside();
    for status in [500, 503, 404, 403, 204, 304, 200] {
        let site = site(&[("--origin-retries", "0")]);
        get_range(&mut site.client(), "/a", 0, 100).expect_range(&site.object, 0, 100, "the first slice");
        site.origin.fault("/a", Fault::Status(status), u32::MAX);
        let got = get(&mut site.client(), "/a");
        let what = format!("{status} instead of a slice");
        if got.status == 200 && got.header("etag").is_some() {
            got.expect_cut(&site.object, &what);
        } else {
            // Nothing was sent before it was found out: the error as it is, or our own.
            assert!(got.status == status || got.status == 502, "{what}: {:?}", got.head);
        }
        let got = get_range(&mut site.client(), "/a", 5 * SLICE, 100);
        assert!(got.status != 206 || !got.whole, "{what}: as if it were a slice");
        site.nothing_wrong_is_stored(&what);
    }
    // Before anything else, an error passes and is forgotten.
    let site = site(&[("--origin-retries", "0")]);
    site.origin.fault("/a", Fault::Status(500), 1);
    let got = get(&mut site.client(), "/a");
    assert!(matches!(got.status, 500 | 502) && got.whole, "{:?}", got.head);
    site.nothing_wrong_is_stored("a cold 500");
}

#[test]
fn a_wrong_content_range_is_never_believed() {
    let _beside = beside();
    let table = [
        "bytes 0-99/8".to_owned(),
        format!("bytes 1-{}/{SIZE}", SLICE),
        format!("bytes {}-{}/{SIZE}", SLICE, 2 * SLICE - 1),
        format!("bytes 0-{}/{}", SLICE - 1, SIZE + 1),
        format!("bytes 0-{}/*", SLICE - 1),
        "bytes */1000".to_owned(),
        "bytes a-b/c".to_owned(),
        "lines 0-99/100".to_owned(),
        "bytes 18446744073709551615-18446744073709551616/18446744073709551617".to_owned(),
        String::new(),
    ];
    for value in table {
        // For a slice in the middle of an object that is known...
        let site = site(&[("--origin-retries", "0")]);
        get_range(&mut site.client(), "/a", 0, 100).expect_range(&site.object, 0, 100, "the first slice");
        site.origin.fault("/a", Fault::ContentRange(value.clone()), u32::MAX);
        let got = get_range(&mut site.client(), "/a", 5 * SLICE + 9, 100);
        // A value may happen to be right for one slice only: then the bytes must be.
        if got.status == 206 && got.whole {
            got.expect_range(&site.object, 5 * SLICE + 9, 100, &value);
        } else {
            assert!(got.status == 502 || !got.whole, "{value:?}: {:?}", got.head);
        }
        site.nothing_wrong_is_stored(&format!("{value:?} in the middle"));
        // ... and for one that is not.
        let site = self::site(&[("--origin-retries", "0")]);
        site.origin.fault("/a", Fault::ContentRange(value.clone()), u32::MAX);
        let got = get_range(&mut site.client(), "/a", 9, 100);
        if got.whole && matches!(got.status, 200 | 206) {
            assert!(got.body == site.object.content.range(9, 100) || got.body == site.object.bytes(), "{value:?}");
        } else {
            assert!(got.status == 502 || !got.whole, "{value:?}: {:?}", got.head);
        }
        site.nothing_wrong_is_stored(&format!("{value:?} at first"));
    }
}
