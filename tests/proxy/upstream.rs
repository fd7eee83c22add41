//! Connections to origins: kept, limited, queued for, retried, balanced; and what an origin that misbehaves is called.

use crate::support::origin::{Blackhole, Fault, Object, Origin};
use crate::support::{Client, Start, eventually, process, tree};
use crate::{Got, beside, get, relay};
use std::time::{Duration, Instant};

/// One core, so that one pool is looked at.
fn single(origin: &Origin) -> Start {
    relay(origin).core(process::cpus()[0])
}

#[test]
fn one_connection_serves_many_requests_and_is_closed_when_idle() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 70_000);
    origin.put("/a", &object);
    let server = single(&origin).with("--origin-idle-timeout", "400ms").spawn();
    for _ in 0..20 {
        get(&mut server.client(), "/a").expect(&object, "a kept connection");
    }
    assert_eq!(origin.accepted(), 1, "twenty requests in a row need one connection");
    assert!(server.metrics().sum("ringway_upstream_connection_reuses_total", &[]) >= 19.0);
    let start = Instant::now();
    eventually("closed when idle", Duration::from_secs(5), || origin.open() == 0);
    assert!(start.elapsed() > Duration::from_millis(250), "closed after {:?}", start.elapsed());
    get(&mut server.client(), "/a").expect(&object, "a new connection");
    assert_eq!(origin.accepted(), 2);
}

#[test]
fn no_more_idle_connections_are_kept_than_allowed() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 100_000);
    origin.put("/a", &object);
    origin.hold("/a", 50_000);
    let server = single(&origin).with("--origin-idle-connections", 3).spawn();
    let mut clients: Vec<Client> = (0..12).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    eventually("twelve at once", Duration::from_secs(5), || origin.peak("/a") == 12);
    origin.release("/a");
    for client in &mut clients {
        assert!(client.reply().body == object.bytes());
    }
    eventually("three are kept", Duration::from_secs(5), || origin.open() == 3);
    assert_eq!(server.metrics().sum("ringway_upstream_connections", &[("state", "idle")]), 3.0);
}

#[test]
fn beyond_the_limit_requests_queue_and_then_fail() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 100_000);
    origin.put("/a", &object);
    origin.hold("/a", 50_000);
    let server = single(&origin)
        .with("--origin-connections-per-core", 2)
        .with("--origin-queue", 3)
        .with("--origin-queue-timeout", "700ms")
        .spawn();
    let ask = || {
        let mut client = server.client();
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
        client
    };
    let mut inside = [ask(), ask()];
    eventually("two inside", Duration::from_secs(3), || origin.peak("/a") == 2);
    let start = Instant::now();
    let mut queued = [ask(), ask(), ask()];
    std::thread::sleep(Duration::from_millis(150));
    // One more than may wait is told at once.
    finish(ask()).expect_error(503, "the queue is full");
    assert!(start.elapsed() < Duration::from_millis(600), "told after {:?}", start.elapsed());
    for client in queued.iter_mut() {
        let head = client.head();
        assert_eq!(head.status, 503, "waited too long");
        client.body(&head);
    }
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(600) && waited < Duration::from_secs(3), "{waited:?}");
    // Who waits less than the limit is served when somebody else is done.
    let mut patient = [ask(), ask()];
    std::thread::sleep(Duration::from_millis(100));
    origin.release("/a");
    for client in inside.iter_mut().chain(patient.iter_mut()) {
        assert!(client.reply().body == object.bytes());
    }
    assert_eq!(origin.peak("/a"), 2);
    let metrics = server.metrics();
    assert!(metrics.sum("ringway_limit_hits_total", &[("limit", "origin_queue")]) >= 1.0);
    assert!(metrics.sum("ringway_limit_hits_total", &[("limit", "origin_queue_timeout")]) >= 3.0);
}

fn finish(mut client: Client) -> Got {
    let head = client.head();
    let mut body = Vec::new();
    let whole = client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes));
    Got { head, body, whole }
}

#[test]
fn a_refused_connection_is_502_and_none_in_time_is_504() {
    let _beside = beside();
    let mut origin = Origin::start();
    let object = Object::new(1, 1000);
    origin.put("/a", &object);
    let server = single(&origin).spawn();
    origin.kill();
    let start = Instant::now();
    get(&mut server.client(), "/a").expect_error(502, "refused");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // It is not forgotten.
    origin.revive();
    eventually("asked again once it is back", Duration::from_secs(8), || get(&mut server.client(), "/a").status == 200);

    let hole = Blackhole::new();
    let server = Start::new(format!("http://{}", hole.address)).with("--origin-connect-timeout", "300ms").spawn();
    let start = Instant::now();
    get(&mut server.client(), "/a").expect_error(504, "neither refused nor accepted");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(250) && took < Duration::from_secs(3), "{took:?}");
    let metrics = server.metrics();
    assert!(metrics.sum("ringway_limit_hits_total", &[("limit", "origin_connect_timeout")]) >= 1.0);
    assert!(metrics.sum("ringway_upstream_connects_total", &[("result", "timeout")]) >= 1.0);
}

#[test]
fn no_first_byte_in_time_is_504() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 1000).delay(Duration::from_millis(1500));
    origin.put("/late", &object);
    origin.put("/soon", &Object::new(1, 1000).delay(Duration::from_millis(200)));
    let server = single(&origin).with("--origin-first-byte-timeout", "500ms").with("--origin-retries", 0).spawn();
    let start = Instant::now();
    let mut client = server.client();
    get(&mut client, "/late").expect_error(504, "too late");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(450) && took < Duration::from_millis(1400), "{took:?}");
    get(&mut client, "/soon").expect(&Object::new(1, 1000), "in time");
    // The late answer reached nobody else: its connection is not used again.
    std::thread::sleep(Duration::from_millis(1200));
    get(&mut client, "/soon").expect(&Object::new(1, 1000), "behind a late answer");
    assert!(server.metrics().sum("ringway_limit_hits_total", &[("limit", "origin_first_byte_timeout")]) >= 1.0);
}

#[test]
fn heads_that_are_none_are_502() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 5);
    origin.put("/a", &object);
    let server = single(&origin).with("--origin-head-bytes", "4KiB").with("--origin-retries", 0).spawn();
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 5\r\n\r\nhello", "x".repeat(5000));
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(20_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "A: b\r\n".repeat(300));
    let table = [
        ("no HTTP", "SSH-2.0-OpenSSH_9\r\n\r\n"),
        ("garbage", "\0\u{1}\u{2}\r\n\r\n"),
        ("no status", "HTTP/1.1\r\n\r\n"),
        ("status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
        ("status 99999", "HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n"),
        ("HTTP/2", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
        (
            "both lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        ("no number", "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello"),
        ("negative", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
        ("too large a number", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello"),
        ("unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: zip\r\n\r\nhello"),
        ("space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello"),
        ("a folded header", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length : 5\r\n\r\nhello"),
        ("no colon", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\nhello"),
        ("NUL in a value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello"),
        ("CR alone in a value", "HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 5\r\n\r\nhello"),
        ("half a head", "HTTP/1.1 200 OK\r\nContent-Le"),
        ("nothing", ""),
        ("too long", &long),
        ("endless", &endless),
        ("too many headers", &many),
        ("101 that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    ];
    for (what, raw) in table {
        // A passive health check may turn the origin away for a while; another server is cheaper than waiting.
        let server = if what == "garbage" { &single(&origin).with("--origin-retries", 0).spawn() } else { &server };
        origin.fault("/a", Fault::Raw(raw.as_bytes().to_vec()), 1);
        eventually("asked", Duration::from_secs(10), || {
            let got = get(&mut server.client(), "/a");
            let asked = origin.faults_left("/a") == 0;
            // A close without a byte may be a kept connection's idle timeout, and is tried again.
            if asked && !(what == "nothing" && got.status == 200) {
                got.expect_error(502, what);
            }
            asked
        });
        eventually("the next one is right", Duration::from_secs(10), || {
            let got = get(&mut server.client(), "/a");
            if got.status == 200 {
                got.expect(&object, what);
            }
            got.status == 200
        });
    }
    // Bad chunks are found out in the body: a cut, never an end.
    for chunks in ["zz\r\nhello\r\n0\r\n\r\n", "5\r\nhelloXX\r\n0\r\n\r\n", "ffffffffffffffffff\r\n", "5\r\nhel"] {
        let raw = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        origin.fault("/a", Fault::Raw(raw.into_bytes()), 1);
        eventually("asked", Duration::from_secs(10), || {
            let got = get(&mut server.client(), "/a");
            let asked = origin.faults_left("/a") == 0;
            assert!(!asked || got.status == 502 || !got.whole, "{chunks:?} made {got:?}");
            asked
        });
    }
}

#[test]
fn a_closed_idle_connection_is_not_noticed() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 10_000);
    origin.put("/a", &object);
    let server = single(&origin).spawn();
    let mut client = server.client();
    for round in 0..5 {
        get(&mut client, "/a").expect(&object, "before");
        eventually("idle", Duration::from_secs(3), || origin.close_idle() == 1);
        get(&mut client, "/a").expect(&object, &format!("round {round}, closed before"));
        // The close crosses the request: every kept connection is dead, and that counts as no try.
        origin.drop_reused(1);
        get(&mut client, "/a").expect(&object, &format!("round {round}, closed on arrival"));
        assert_eq!(origin.drops_left(), 0);
    }
    assert_eq!(client.head_of("/a").status, 200);
}

#[test]
fn a_reset_before_the_head_is_tried_once_more() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 10_000);
    origin.put("/a", &object);
    let server = single(&origin).spawn();
    for fault in [Fault::ResetEarly, Fault::CloseEarly] {
        origin.fault("/a", fault.clone(), 1);
        let mut fresh = server.client();
        get(&mut fresh, "/a").expect(&object, "one failure, one retry");
        let asked = origin.requests("/a").len();
        eventually("no kept connection", Duration::from_secs(3), || {
            origin.close_idle();
            origin.open() == 0
        });
        origin.fault("/a", fault, 2);
        get(&mut fresh, "/a").expect_error(502, "two failures, one retry");
        assert_eq!(origin.requests("/a").len() - asked, 2, "one retry and no more");
        origin.clear_faults("/a");
        eventually("well again", Duration::from_secs(8), || get(&mut fresh, "/a").status == 200);
    }
    assert!(server.metrics().sum("ringway_upstream_retries_total", &[]) >= 2.0);
}

#[test]
fn one_byte_too_many_ends_the_connection_and_not_the_body() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 300_000);
    origin.put("/a", &object);
    for engine in crate::support::ENGINES {
        let server = single(&origin).engine(engine).spawn();
        let mut client = server.client();
        for extra in [1, 100, 5000] {
            origin.fault("/a", Fault::Extra(extra), 1);
            get(&mut client, "/a").expect(&object, &format!("{engine}: {extra} bytes more"));
            get(&mut client, "/a").expect(&object, &format!("{engine}: behind {extra} bytes more"));
        }
        // The same while the connection is idle in the pool: it is not used again either.
        origin.fault("/a", Fault::ExtraLate, 1);
        get(&mut client, "/a").expect(&object, &format!("{engine}: a late byte"));
        std::thread::sleep(Duration::from_millis(150));
        get(&mut client, "/a").expect(&object, &format!("{engine}: behind a late byte"));
        let last = origin.requests("/a");
        assert!(last.iter().rev().take(6).filter(|request| request.number == 0).count() >= 3, "{engine}: not reused");
    }
    // Bytes where no body may be: behind the head of HEAD and of 304.
    let server = single(&origin).spawn();
    let mut client = server.client();
    let raw = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec();
    origin.fault("/a", Fault::Raw(raw), 1);
    assert_eq!(client.head_of("/a").length(), Some(5));
    get(&mut client, "/a").expect(&object, "behind a HEAD with a body");
}

#[test]
fn a_stall_is_ended_by_the_progress_timeout_and_slowness_is_not() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 600_000);
    origin.put("/a", &object);
    origin.put("/slow", &object.clone().rate(300_000));
    for engine in ["auto", "send", "splice"] {
        let server = single(&origin).engine(engine).with("--origin-progress-timeout", "500ms").spawn();
        origin.fault("/a", Fault::Stall(200_000), 1);
        let start = Instant::now();
        let got = get(&mut server.client(), "/a");
        let took = start.elapsed();
        got.expect_cut(&object, engine);
        assert!(took > Duration::from_millis(450) && took < Duration::from_secs(4), "{engine}: {took:?}");
        assert!(server.metrics().sum("ringway_limit_hits_total", &[("limit", "origin_progress_timeout")]) >= 1.0);
        get(&mut server.client(), "/slow").expect(&object, &format!("{engine}: slow, two seconds in all"));
        // A client that reads slowly is not the origin's fault.
        let mut client = Client::connect_small(server.address());
        origin.put("/big", &Object::new(2, 8 * tree::MIB));
        client.send(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n");
        let head = client.head();
        std::thread::sleep(Duration::from_millis(1200));
        let mut body = Vec::new();
        assert!(client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes)), "{engine}: a slow client");
        assert!(body == Object::new(2, 8 * tree::MIB).bytes());
    }
}

fn several(origins: &[&Origin], route: &str) -> Start {
    let urls: Vec<String> = origins.iter().map(|origin| format!("\"{}\"", origin.url(""))).collect();
    let urls = urls.join(", ");
    Start::configured(&format!("congestion = \"cubic\"\n[[route]]\npath = \"/\"\norigins = [{urls}]\n{route}\n"))
        .core(process::cpus()[0])
}

#[test]
fn round_robin_spreads_evenly() {
    let _beside = beside();
    let origins = [Origin::start(), Origin::start(), Origin::start()];
    for origin in &origins {
        origin.put("/a", &Object::new(1, 100));
    }
    let server = several(&[&origins[0], &origins[1], &origins[2]], "").spawn();
    for _ in 0..30 {
        get(&mut server.client(), "/a").expect(&Object::new(1, 100), "round robin");
    }
    let counts: Vec<usize> = origins.iter().map(|origin| origin.log().len()).collect();
    assert!(counts.iter().all(|count| (9..=11).contains(count)), "{counts:?}");
}

#[test]
fn least_in_flight_avoids_the_busy_one() {
    let _beside = beside();
    let origins = [Origin::start(), Origin::start()];
    for origin in &origins {
        origin.put("/a", &Object::new(1, 100));
        origin.put("/held", &Object::new(2, 200_000));
        origin.hold("/held", 100_000);
    }
    let server = several(&[&origins[0], &origins[1]], "balance = \"least-in-flight\"").spawn();
    // Four that hang are spread two and two; then one of the two is relieved.
    let mut held: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (index, client) in held.iter_mut().enumerate() {
        client.send(b"GET /held HTTP/1.1\r\nHost: test\r\n\r\n");
        eventually("it hangs", Duration::from_secs(3), || {
            origins.iter().map(|origin| origin.requests("/held").len()).sum::<usize>() == index + 1
        });
    }
    eventually("two and two", Duration::from_secs(3), || {
        [origins[0].peak("/held"), origins[1].peak("/held")] == [2, 2]
    });
    origins[0].release("/held");
    eventually("one is relieved", Duration::from_secs(5), || {
        server.metrics().sum("ringway_upstream_connections", &[("state", "busy")]) == 2.0
    });
    for _ in 0..10 {
        get(&mut server.client(), "/a").expect(&Object::new(1, 100), "least in flight");
    }
    assert_eq!([origins[0].requests("/a").len(), origins[1].requests("/a").len()], [10, 0]);
}

#[test]
fn hash_keeps_a_path_with_its_origin() {
    let _beside = beside();
    let mut origins = vec![Origin::start(), Origin::start(), Origin::start()];
    let paths: Vec<String> = (0..60).map(|index| format!("/dir/{index}")).collect();
    for origin in &origins {
        for path in &paths {
            origin.put(path, &Object::new(1, 100));
        }
    }
    let server = several(&[&origins[0], &origins[1], &origins[2]], "balance = \"hash\"").spawn();
    let homes = |origins: &[Origin]| -> Vec<Option<usize>> {
        for origin in origins {
            origin.clear_log();
        }
        for path in &paths {
            get(&mut server.client(), path).expect(&Object::new(1, 100), path);
        }
        paths.iter().map(|path| origins.iter().position(|origin| !origin.requests(path).is_empty())).collect()
    };
    let first = homes(&origins);
    assert_eq!(first, homes(&origins), "the same path goes to the same origin");
    for index in 0..3 {
        let share = first.iter().filter(|home| **home == Some(index)).count();
        assert!(share >= 5, "origin {index} has {share} of 60 paths");
    }
    // One leaves: its paths find another, those of the others stay where they were.
    origins[2].kill();
    eventually("the dead one is known", Duration::from_secs(8), || {
        paths.iter().all(|path| get(&mut server.client(), path).status == 200)
    });
    let second = homes(&origins);
    for (path, (before, after)) in paths.iter().zip(first.iter().zip(&second)) {
        assert!(*before == Some(2) || before == after, "{path} moved from {before:?} to {after:?}");
    }
}

#[test]
fn a_dead_origin_is_left_out_and_comes_back() {
    let _beside = beside();
    let (one, mut other) = (Origin::start(), Origin::start());
    for origin in [&one, &other] {
        origin.put("/a", &Object::new(1, 100));
    }
    let server = several(&[&one, &other], "").spawn();
    get(&mut server.client(), "/a");
    other.kill();
    // Nobody sees it: a refused connection is tried at the other one.
    for round in 0..20 {
        get(&mut server.client(), "/a").expect(&Object::new(1, 100), &format!("request {round} with one dead origin"));
    }
    let errors = server.metrics().sum("ringway_upstream_errors_total", &[("reason", "connect")]);
    assert!((1.0..=10.0).contains(&errors), "{errors} connects to a dead origin for 20 requests");
    other.revive();
    other.clear_log();
    eventually("it is asked again", Duration::from_secs(10), || {
        get(&mut server.client(), "/a").expect(&Object::new(1, 100), "while it comes back");
        !other.log().is_empty()
    });
}

#[test]
fn active_checks_find_a_sick_origin() {
    let _beside = beside();
    let (one, other) = (Origin::start(), Origin::start());
    for origin in [&one, &other] {
        origin.put("/a", &Object::new(1, 100));
        origin.put("/health", &Object::new(2, 2));
    }
    let server = several(&[&one, &other], "health_path = \"/health\"\nhealth_interval = \"100ms\"").spawn();
    eventually("both are checked", Duration::from_secs(5), || {
        [&one, &other].iter().all(|origin| origin.requests("/health").len() >= 3)
    });
    let healthy = || server.metrics().sum("ringway_upstream_peer_healthy", &[]);
    assert_eq!(healthy(), 2.0);
    other.fault("/health", Fault::Status(503), u32::MAX);
    eventually("one is sick", Duration::from_secs(5), || healthy() == 1.0);
    one.clear_log();
    other.clear_log();
    for _ in 0..10 {
        get(&mut server.client(), "/a").expect(&Object::new(1, 100), "from the healthy one");
    }
    assert_eq!([one.requests("/a").len(), other.requests("/a").len()], [10, 0]);
    other.clear_faults("/health");
    eventually("well again", Duration::from_secs(5), || healthy() == 2.0);
    eventually("asked again", Duration::from_secs(5), || {
        get(&mut server.client(), "/a");
        !other.requests("/a").is_empty()
    });
}

#[test]
fn names_are_looked_up() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 1000);
    origin.put("/a", &object);
    let port = origin.address().port();
    let server = Start::new(format!("http://localhost:{port}")).with("--origin-resolve", "200ms").spawn();
    for _ in 0..3 {
        get(&mut server.client(), "/a").expect(&object, "by name");
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(origin.log()[0].header("host"), Some(format!("localhost:{port}")));
    // A name that nobody has: it starts, and says what is wrong when it is asked.
    let server = Start::new("http://no-such-host.invalid:80").spawn();
    let got = get(&mut server.client(), "/a");
    assert!(matches!(got.status, 502..=504), "{got:?}");
    assert!(
        String::from_utf8_lossy(&got.body).contains("no-such-host.invalid"),
        "{}",
        String::from_utf8_lossy(&got.body)
    );
}

#[test]
fn sources_that_are_none_are_refused() {
    for url in [
        "https://a",
        "http://",
        "http://a:0",
        "http://a:99999",
        "http://a/?x",
        "http://a/../b",
        "ftp://a",
        "http://u@a/",
    ] {
        let (code, said) = Start::new(url).refused();
        assert!(matches!(code, Some(2 | 78)), "{url}: {code:?} {said}");
        assert!(said.contains(url), "{url}: {said}");
    }
    for route in
        ["balance = \"random\"", "methods = [\"GE T\"]", "origins = [\"http://a\"]", "s3_style = \"x\"", "ttl = \"x\""]
    {
        let text = format!("[[route]]\npath = \"/\"\nsource = \"http://127.0.0.1:1\"\n{route}\n");
        let (code, said) = Start::configured(&text).refused();
        assert_eq!(code, Some(78), "{route}: {said}");
        assert!(said.contains(route.split(' ').next().unwrap()), "{route}: {said}");
    }
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    for (slice, why) in [("100KiB", "power of two"), ("1KiB", "65536"), ("2GiB", "1")] {
        let (code, said) =
            relay(&origin).with("--cache", folder.path().display()).with("--cache-slice", slice).refused();
        assert!(matches!(code, Some(2 | 78)) && said.contains(why), "{slice}: {code:?} {said}");
    }
}
