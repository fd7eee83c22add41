//! RFC 9111 from the outside: what may be kept, for how long, and what happens behind that time.

use crate::support::origin::{Fault, Object, Origin};
use crate::support::{Server, eventually};
use crate::{beside, cached, get, get_with, routed};
use std::time::{Duration, Instant, SystemTime};

fn site() -> (Origin, tempfile::TempDir, Server) {
    let (origin, folder) = (Origin::start(), tempfile::tempdir().unwrap());
    let server = cached(&origin, folder.path()).spawn();
    (origin, folder, server)
}

/// A time as HTTP writes it, so many seconds from now.
fn date(seconds: i64) -> String {
    let now = SystemTime::now();
    let shift = Duration::from_secs(seconds.unsigned_abs());
    httpdate::fmt_http_date(if seconds < 0 { now - shift } else { now + shift })
}

#[test]
fn what_may_be_kept_is_kept_and_nothing_else() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let new = || Object::new(1, 1000);
    // Name, object, headers of the request, requests that reach the origin for three of the client's.
    let table = [
        ("max-age", new().fresh(600), "", 1),
        ("s-maxage", new().header("Cache-Control", "max-age=0, s-maxage=600"), "", 1),
        ("public with Expires", new().header("Cache-Control", "public").header("Expires", date(600)), "", 1),
        ("Expires in the past", new().header("Expires", date(-600)), "", 3),
        ("Expires is no date", new().header("Expires", "0"), "", 3),
        ("max-age wins over Expires", new().fresh(600).header("Expires", date(-600)), "", 1),
        ("no-store", new().header("Cache-Control", "no-store, max-age=600"), "", 3),
        ("private", new().header("Cache-Control", "private, max-age=600"), "", 3),
        ("no-cache", new().header("Cache-Control", "no-cache, max-age=600"), "", 3),
        ("quoted and in capitals", new().header("Cache-Control", "X=\"no-store, private\", MAX-AGE=\"600\""), "", 1),
        ("already old", new().fresh(600).header("Age", 601), "", 3),
        ("Vary: *", new().fresh(600).header("Vary", "*"), "", 3),
        ("Authorization", new().fresh(600), "Authorization: Basic YTpi\r\n", 3),
        (
            "Authorization, public",
            new().header("Cache-Control", "public, max-age=600"),
            "Authorization: Basic YTpi\r\n",
            1,
        ),
        ("the client says no-store", new().fresh(600), "Cache-Control: no-store\r\n", 3),
        ("the client says no-cache", new().fresh(600), "Cache-Control: no-cache\r\n", 3),
        ("the client says Pragma", new().fresh(600), "Pragma: no-cache\r\n", 3),
        ("the client wants max-age=0", new().fresh(600), "Cache-Control: max-age=0\r\n", 3),
    ];
    for (index, (what, object, headers, requests)) in table.into_iter().enumerate() {
        let path = format!("/{index}");
        origin.put(&path, &object);
        let mut client = server.client();
        for round in 0..3 {
            let got = get_with(&mut client, &path, headers);
            got.expect(&object, &format!("{what}, round {round}"));
            assert!(!got.is_hit() || requests == 1, "{what}: {:?}", got.cache_status());
        }
        assert_eq!(origin.requests(&path).len(), requests, "{what}");
    }
}

#[test]
fn revalidation_of_what_did_not_change_costs_no_body() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let mut client = server.client();
    let objects = [
        ("/etag", Object::new(1, 300_000).fresh(1)),
        ("/date", Object::new(2, 300_000).etag(None).modified_ago(86_400).fresh(1)),
        ("/nocache", Object::new(3, 300_000).header("Cache-Control", "no-cache")),
    ];
    for (path, object) in &objects {
        origin.put(path, object);
        get(&mut client, path).expect(object, path);
        assert_eq!(origin.body_bytes(path), object.size, "{path}");
    }
    std::thread::sleep(Duration::from_millis(2100));
    for (path, object) in &objects {
        let asked = origin.requests(path).len();
        let got = get(&mut client, path);
        got.expect(object, &format!("{path}: stale, revalidated"));
        assert_eq!(origin.body_bytes(path), object.size, "{path}: 304 costs no body");
        let last = origin.requests(path).pop().unwrap();
        assert_eq!(origin.requests(path).len(), asked + 1, "{path}");
        assert!(
            last.header("if-none-match").is_some() || last.header("if-modified-since").is_some(),
            "{path}: {last:?}"
        );
        if *path != "/nocache" {
            // Fresh again for a second.
            let got = get(&mut client, path);
            assert!(got.is_hit(), "{path}: {:?}", got.cache_status());
            assert!(got.age().is_some_and(|age| age <= 1), "{path}: Age {:?}", got.age());
            assert_eq!(origin.requests(path).len(), asked + 1, "{path}");
        }
    }
    assert!(server.metrics().sum("ringway_cache_requests_total", &[("result", "revalidated")]) >= 3.0);
    // What did change is fetched, whole and new.
    let new = Object::new(9, 250_000).fresh(1);
    origin.put("/etag", &new);
    std::thread::sleep(Duration::from_millis(2100));
    get(&mut client, "/etag").expect(&new, "a new version");
    get(&mut client, "/etag").expect(&new, "a new version, kept");
}

#[test]
fn age_adds_up_along_the_way() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let object = Object::new(1, 100).fresh(600).header("Age", 100);
    origin.put("/a", &object);
    let mut client = server.client();
    get(&mut client, "/a").expect(&object, "cold");
    std::thread::sleep(Duration::from_millis(1100));
    let got = get(&mut client, "/a");
    assert!(got.age().is_some_and(|age| (101..110).contains(&age)), "{:?}", got.age());
    // A Date in the past counts as age too.
    origin.put("/b", &object.clone().header("Date", date(-300)));
    get(&mut client, "/b");
    let got = get(&mut client, "/b");
    assert!(got.age().is_some_and(|age| (300..310).contains(&age)), "{:?}", got.age());
}

#[test]
fn variants_are_kept_apart() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let object = Object::new(1, 150_000).fresh(600).vary("Accept-Language");
    origin.put("/a", &object);
    let mut client = server.client();
    for round in 0..2 {
        for language in ["de", "en", "fr"] {
            let got = get_with(&mut client, "/a", &format!("Accept-Language: {language}\r\n"));
            got.expect(&object.variant(language), &format!("{language}, round {round}"));
            assert_eq!(got.header("vary"), Some("Accept-Language"));
        }
        get(&mut client, "/a").expect(&object.variant(""), "none");
    }
    assert_eq!(origin.log().len(), 4, "four variants, each fetched once");
    // Ranges of one variant never come from another.
    let got = get_with(&mut client, "/a", "Accept-Language: en\r\nRange: bytes=100000-100099\r\n");
    got.expect_range(&object.variant("en"), 100_000, 100, "a range of a variant");
}

#[test]
fn a_client_may_ask_for_what_is_cached_only() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let object = Object::new(1, 100).fresh(600);
    origin.put("/a", &object);
    let mut client = server.client();
    let got = get_with(&mut client, "/a", "Cache-Control: only-if-cached\r\n");
    assert_eq!(got.status, 504);
    assert!(origin.log().is_empty());
    get(&mut client, "/a");
    get_with(&mut client, "/a", "Cache-Control: only-if-cached\r\n").expect(&object, "only if cached");
}

#[test]
fn stale_while_revalidate_answers_at_once() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    let old = Object::new(1, 100_000).header("Cache-Control", "max-age=1, stale-while-revalidate=60");
    origin.put("/a", &old);
    let mut client = server.client();
    get(&mut client, "/a").expect(&old, "cold");
    let new = Object::new(2, 90_000).fresh(60).delay(Duration::from_millis(600));
    origin.put("/a", &new);
    std::thread::sleep(Duration::from_millis(2100));
    let asked = origin.requests("/a").len();
    let start = Instant::now();
    let got = get(&mut client, "/a");
    let took = start.elapsed();
    got.expect(&old, "stale, at once");
    assert!(took < Duration::from_millis(400), "{took:?}");
    for _ in 0..5 {
        get(&mut client, "/a");
    }
    eventually("the new one is there", Duration::from_secs(5), || {
        let got = get(&mut client, "/a");
        let is_new = got.header("etag") == Some("\"v2\"");
        got.expect(if is_new { &new } else { &old }, "one or the other, whole");
        is_new
    });
    assert!(origin.requests("/a").len() <= asked + 3, "one revalidation for all of them, not one each");
}

#[test]
fn stale_if_error_hides_a_failing_origin() {
    let _beside = beside();
    let (mut origin, _folder, server) = site();
    let object = Object::new(1, 100_000).header("Cache-Control", "max-age=1, stale-if-error=60");
    let strict = Object::new(2, 100_000).header("Cache-Control", "max-age=1, must-revalidate");
    origin.put("/a", &object);
    origin.put("/strict", &strict);
    let mut client = server.client();
    get(&mut client, "/a").expect(&object, "cold");
    get(&mut client, "/strict").expect(&strict, "cold");
    std::thread::sleep(Duration::from_millis(2100));
    origin.fault("/a", Fault::Status(500), 8);
    origin.fault("/strict", Fault::Status(500), 1);
    let got = get(&mut client, "/a");
    got.expect(&object, "stale beside a 500");
    assert!(!got.cache_status().is_empty());
    let got = get(&mut client, "/strict");
    assert!(got.status >= 500, "must-revalidate means it: {:?}", got.head);
    origin.kill();
    get(&mut client, "/a").expect(&object, "stale beside a dead origin");
    let got = get(&mut client, "/strict");
    assert!((502..=504).contains(&got.status), "{:?}", got.head);
    assert!(server.metrics().sum("ringway_cache_requests_total", &[("result", "stale")]) >= 2.0);
    origin.revive();
    origin.clear_faults("/a");
    eventually("well again", Duration::from_secs(8), || get(&mut client, "/strict").status == 200);
}

#[test]
fn errors_are_kept_as_briefly_as_the_route_says() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = routed(&origin, Some(folder.path()), "negative_ttl = \"1s\"").spawn();
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!(get(&mut client, "/later").status, 404);
    }
    assert_eq!(origin.requests("/later").len(), 1, "a 404 is kept for a second");
    let object = Object::new(1, 1000).fresh(60);
    origin.put("/later", &object);
    eventually("then asked again", Duration::from_secs(5), || {
        let got = get(&mut client, "/later");
        if got.status == 200 {
            got.expect(&object, "there now");
        }
        got.status == 200
    });
    // 500 is never kept, and neither is 404 where nobody says so.
    for status in [500, 502, 503] {
        let path = format!("/{status}");
        origin.fault(&path, Fault::Status(status), 2);
        origin.put(&path, &object);
        let first = get(&mut client, &path);
        assert!(first.status >= 500, "{:?}", first.head);
        eventually("not kept", Duration::from_secs(8), || get(&mut client, &path).status == 200);
    }
    let folder = tempfile::tempdir().unwrap();
    let server = routed(&origin, Some(folder.path()), "negative_ttl = \"0s\"").spawn();
    for _ in 0..3 {
        assert_eq!(get(&mut server.client(), "/never").status, 404);
    }
    assert_eq!(origin.requests("/never").len(), 3);
}

#[test]
fn routes_may_know_better_than_the_origin() {
    let _beside = beside();
    let origin = Origin::start();
    let plain = Object::new(1, 1000);
    origin.put("/plain", &plain);
    let short = Object::new(2, 1000).header("Cache-Control", "max-age=0");
    origin.put("/short", &short);
    let asked = |route: &str, path: &str, object: &Object| {
        let folder = tempfile::tempdir().unwrap();
        let server = routed(&origin, Some(folder.path()), route).spawn();
        origin.clear_log();
        for _ in 0..3 {
            get(&mut server.client(), path).expect(object, route);
        }
        origin.requests(path).len()
    };
    assert_eq!(asked("ttl = \"1h\"", "/plain", &plain), 1, "ttl where the origin says nothing");
    assert_eq!(asked("ttl = \"1h\"", "/short", &short), 3, "ttl does not speak louder than the origin");
    assert_eq!(asked("ttl_override = \"1h\"", "/short", &short), 1, "ttl_override does");
}

#[test]
fn an_unsafe_method_makes_what_is_cached_invalid() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object { upload: Some(u64::MAX), ..Object::new(1, 100_000).fresh(600) };
    origin.put("/a", &object);
    let server = routed(&origin, Some(folder.path()), "methods = [\"GET\", \"HEAD\", \"POST\"]").spawn();
    let mut client = server.client();
    get(&mut client, "/a").expect(&object, "cold");
    assert!(get(&mut client, "/a").is_hit());
    client.send(b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(client.reply().status, 200);
    let new = Object::new(2, 100_000).fresh(600);
    origin.put("/a", &new);
    get(&mut client, "/a").expect(&new, "behind a POST (RFC 9111 section 4.4)");
}

#[test]
fn a_weak_or_missing_validator_never_joins_two_responses() {
    let _beside = beside();
    let (origin, _folder, server) = site();
    for (path, etag) in [("/weak", Some("W/\"w\"")), ("/none", None)] {
        // The same weak tag on two versions: equivalent to a reader, not equal in bytes.
        let old = Object::new(1, 400_000).etag(etag).fresh(600);
        let new = Object::new(2, 400_000).etag(etag).fresh(600);
        origin.put(path, &old);
        let mut client = server.client();
        crate::get_range(&mut client, path, 100, 100).expect_range(&old, 100, 100, path);
        origin.put(path, &new);
        let got = get(&mut client, path);
        assert!(got.whole && got.status == 200, "{path}: {:?}", got.head);
        assert!(got.body == old.bytes() || got.body == new.bytes(), "{path}: bytes of two versions in one body");
        let got = get(&mut client, path);
        assert!(got.body == old.bytes() || got.body == new.bytes(), "{path}: and again");
    }
}
