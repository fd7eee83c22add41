//! One fetch for every missing byte, however many ask, on however many cores; and what happens when they leave.

use crate::support::origin::{Comparer, Object, Origin};
use crate::support::{Client, Server, eventually, load, process, tree};
use crate::{alone, beside, cached, compare, get, get_range, relay};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SLICE: u64 = 64 * 1024;

/// 200 clients, one cold object of 1 GiB. Each compares every byte with the origin's content, and what is equal byte for
/// byte has the same SHA-256; one client computes it too.
#[test]
fn two_hundred_clients_cost_the_origin_one_gibibyte() {
    let _alone = alone();
    const CLIENTS: usize = 200;
    let origin = Origin::start();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let first_byte = Duration::from_millis(1000);
    let object = Object::new(11, tree::GIB).fresh(6000).delay(first_byte);
    origin.put("/large", &object);
    let server = relay(&origin).with("--cache", folder.path().display()).spawn();
    let (address, barrier, hash) = (server.address(), Barrier::new(CLIENTS + 1), object.hash());
    let (firsts, took) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let (object, barrier, hash) = (&object, &barrier, &hash);
                scope.spawn(move || {
                    let mut client = Client::connect(address);
                    barrier.wait();
                    let start = Instant::now();
                    client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
                    let head = client.head();
                    assert_eq!((head.status, head.length()), (200, Some(object.size)));
                    let (mut first, mut comparer) = (None, Comparer::new(&object.content, 0));
                    let (begin, rest) = (1, object.size - 1);
                    assert_eq!(client.read_body(begin, |bytes| comparer.take(bytes)), begin);
                    first.get_or_insert(start.elapsed());
                    if index == 0 {
                        use sha2::{Digest, Sha256};
                        let mut sum = Sha256::new_with_prefix(object.content.range(0, 1));
                        let count = client.read_body(rest, |bytes| {
                            sum.update(bytes);
                            comparer.take(bytes);
                        });
                        assert_eq!(count, rest);
                        assert_eq!(crate::support::client::hex(&sum.finalize()), *hash);
                    } else {
                        assert_eq!(client.read_body(rest, |bytes| comparer.take(bytes)), rest, "client {index}");
                    }
                    assert_eq!(comparer.wrong, None, "client {index}: first wrong byte");
                    first.unwrap()
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let firsts: Vec<Duration> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        (firsts, start.elapsed())
    });
    let served = CLIENTS as u64 * object.size;
    let firsts = load::Times::of(firsts);
    println!(
        "{} GiB to {CLIENTS} clients in {took:?}, {:.2} GB/s; first byte p50 {:?}, last {:?}; origin sent {} bytes",
        served / tree::GIB,
        served as f64 / took.as_secs_f64() / 1e9,
        firsts.percentile(0.5),
        firsts.percentile(1.0),
        origin.body_bytes("/large"),
    );
    assert!(origin.body_bytes("/large") <= object.size + 8 * tree::MIB, "{} bytes", origin.body_bytes("/large"));
    assert!(
        firsts.percentile(1.0) <= 2 * first_byte,
        "the last client's first byte after {:?}",
        firsts.percentile(1.0)
    );
    let metrics = server.metrics();
    assert_eq!(metrics.sum("ringway_sent_bytes_total", &[("part", "body")]) as u64, served);
    assert_eq!(metrics.sum("ringway_cache_served_bytes_total", &[]) as u64, served);
    assert_eq!(metrics.sum("ringway_cache_fill_bytes_total", &[]) as u64, object.size);
    assert_eq!(metrics.sum("ringway_upstream_received_bytes_total", &[]) as u64, origin.body_bytes("/large"));
}

#[test]
fn clients_that_join_a_fill_get_what_is_there_at_once() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 40 * SLICE + 7).fresh(6000);
    origin.put("/a", &object);
    let half = 20 * SLICE + 5000;
    origin.hold("/a", half);
    let server = cached(&origin, folder.path()).spawn();
    let mut clients: Vec<Client> = (0..24).map(|_| server.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().length(), Some(object.size));
        let mut comparer = Comparer::new(&object.content, 0);
        // Up to the last byte the origin has sent, in the middle of a slice.
        assert_eq!(client.read_body(half, |bytes| comparer.take(bytes)), half, "client {index}");
        assert_eq!(comparer.wrong, None, "client {index}");
    }
    eventually("waiters are counted", Duration::from_secs(3), || {
        server.metrics().sum("ringway_cache_coalesced_waiters", &[]) >= 24.0
    });
    assert!(server.metrics().sum("ringway_cache_fills_in_flight", &[]) >= 1.0);
    origin.release("/a");
    for client in &mut clients {
        let mut comparer = Comparer::new(&object.content, half);
        assert_eq!(client.read_body(object.size - half, |bytes| comparer.take(bytes)), object.size - half);
        assert_eq!(comparer.wrong, None);
    }
    assert_eq!((origin.body_bytes("/a"), origin.sent_twice("/a")), (object.size, 0), "{}", origin.asked("/a"));
    eventually("no fill and nobody who waits", Duration::from_secs(3), || {
        let metrics = server.metrics();
        metrics.sum("ringway_cache_coalesced_waiters", &[]) == 0.0
            && metrics.sum("ringway_cache_fills_in_flight", &[]) == 0.0
    });
}

#[test]
fn ranges_of_many_clients_fetch_each_slice_once() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(2, 64 * SLICE + 100).fresh(6000).delay(Duration::from_millis(3));
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).spawn();
    std::thread::scope(|scope| {
        for worker in 0..12 {
            let (server, object) = (&server, &object);
            scope.spawn(move || {
                let mut random = crate::Random(worker);
                let mut client = server.client();
                for _ in 0..40 {
                    let first = random.below(object.size - 1);
                    let length = (1 + random.below(3 * SLICE)).min(object.size - first);
                    let got = get_range(&mut client, "/a", first, length);
                    got.expect_range(object, first, length, &format!("worker {worker}: {length} at {first}"));
                }
            });
        }
    });
    get(&mut server.client(), "/a").expect(&object, "the whole");
    assert_eq!((origin.body_bytes("/a"), origin.sent_twice("/a")), (object.size, 0), "{}", origin.asked("/a"));
}

#[test]
fn the_first_to_leave_does_not_stop_the_others() {
    let _beside = beside();
    for policy in ["stop", "slice", "finish"] {
        let origin = Origin::start();
        let folder = tempfile::tempdir().unwrap();
        let object = Object::new(3, 30 * SLICE).fresh(6000);
        origin.put("/a", &object);
        origin.hold("/a", 10 * SLICE + 10);
        let server = cached(&origin, folder.path()).with("--cache-on-leave", policy).spawn();
        let ask = |server: &Server| {
            let mut client = server.client();
            client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
            let head = client.head();
            assert_eq!(head.status, 200);
            client.read_body(10 * SLICE, |_| ());
            client
        };
        let first = ask(&server);
        let mut second = ask(&server);
        first.reset();
        std::thread::sleep(Duration::from_millis(100));
        origin.release("/a");
        let mut comparer = Comparer::new(&object.content, 10 * SLICE);
        assert_eq!(second.read_body(20 * SLICE, |bytes| comparer.take(bytes)), 20 * SLICE, "{policy}");
        assert_eq!(comparer.wrong, None, "{policy}");
        assert_eq!(origin.sent_twice("/a"), 0, "{policy}: one fetch; {}", origin.asked("/a"));
    }
}

#[test]
fn the_last_to_leave_stops_the_fill_or_not_by_policy() {
    let _beside = beside();
    // 1 MiB/s: a slice of 256 KiB takes a quarter of a second.
    let (slice, size) = (256 * 1024, 8 * 256 * 1024);
    let leave = |policy: &str| {
        let origin = Origin::start();
        let folder = tempfile::tempdir().unwrap();
        let object = Object::new(4, size).fresh(6000).rate(tree::MIB);
        origin.put("/a", &object);
        let server = relay(&origin)
            .with("--cache", folder.path().display())
            .with("--cache-slice", "256KiB")
            .with("--cache-on-leave", policy)
            .spawn();
        let mut client = server.client();
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
        client.head();
        client.read_body(slice + slice / 3, |_| ());
        client.reset();
        let quiet = || {
            let before = origin.body_bytes("/a");
            std::thread::sleep(Duration::from_millis(250));
            origin.body_bytes("/a") == before
        };
        eventually("the fill has ended", Duration::from_secs(8), quiet);
        let sent = origin.body_bytes("/a");
        let stored = server.metrics().sum("ringway_cache_fill_bytes_total", &[]) as u64;
        eventually("no fill is left", Duration::from_secs(3), || {
            server.metrics().sum("ringway_cache_fills_in_flight", &[]) == 0.0
        });
        // Whatever was kept is right, and is not fetched again.
        origin.put("/a", &Object { rate: None, ..object.clone() });
        get(&mut server.client(), "/a").expect(&object, policy);
        println!("{policy}: {sent} sent, {stored} stored; {}", origin.asked("/a"));
        (sent, stored, origin.body_bytes("/a") - sent)
    };
    let (sent, stored, more) = leave("stop");
    // What is on the way in two socket buffers was sent; at this rate that is little.
    assert!(sent < 2 * slice + slice / 2, "stop: {sent} bytes sent");
    assert!(stored < 2 * slice && more <= size - slice, "stop: {stored} stored, {more} fetched later");
    let (sent, stored, more) = leave("slice");
    assert!(stored >= 2 * slice && sent <= 3 * slice, "slice: {sent} sent, {stored} stored");
    assert!(more <= size - 2 * slice, "slice: {more} fetched later");
    let (sent, stored, more) = leave("finish");
    assert_eq!((sent, stored, more), (size, size, 0), "finish");
}

#[test]
fn a_client_that_sleeps_does_not_hold_the_others() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(5, 48 * tree::MIB).fresh(6000);
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).core(process::cpus()[0]).spawn();
    // It is the first one, so the fill was begun for it.
    let sleeper = load::stalled(server.address(), "/a", 1, 50_000);
    let start = Instant::now();
    compare(&mut server.client(), "/a", &object, "beside a sleeper");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for stream in sleeper {
        let mut client = Client::over(stream);
        assert_eq!(client.read_body(40 * tree::MIB, |_| ()), 40 * tree::MIB, "it wakes up");
    }
    assert_eq!(origin.sent_twice("/a"), 0, "{}", origin.asked("/a"));
}

/// 500 clients at 20 KB/s on one cached object of 1 GiB.
#[test]
fn five_hundred_slow_clients_cost_little_and_hold_nobody() {
    let _alone = alone();
    const CLIENTS: usize = 500;
    process::raise_descriptors(CLIENTS as u64 * 2 + 500);
    let origin = Origin::start();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let object = Object::new(12, tree::GIB).fresh(6000);
    origin.put("/large", &object);
    let small = Object::new(13, 1024).fresh(6000);
    origin.put("/small", &small);
    let server = relay(&origin).with("--cache", folder.path().display()).core(process::cpus()[0]).spawn();
    compare(&mut server.client(), "/large", &object, "cold");
    get(&mut server.client(), "/small").expect(&small, "cold");
    let pids = server.pids();
    let quick = |what: &str| {
        let start = Instant::now();
        let mut client = server.client();
        let length = 256 * tree::MIB;
        client.send(format!("GET /large HTTP/1.1\r\nHost: test\r\nRange: bytes=0-{}\r\n\r\n", length - 1).as_bytes());
        assert_eq!(client.head().status, 206, "{what}");
        assert_eq!(client.read_body(length, |_| ()), length, "{what}");
        start.elapsed()
    };
    quick("warm");
    let before_alone = quick("alone").min(quick("alone"));
    let before = process::resident_bytes(&pids);
    let mut crowd = load::stalled(server.address(), "/large", CLIENTS, 100_000);
    let stop = AtomicBool::new(false);
    let (grown, pipes, beside, times) = std::thread::scope(|scope| {
        let (crowd, stop) = (&mut crowd, &stop);
        // 20 KB/s each: 2,000 bytes every 100 ms.
        scope.spawn(move || {
            let mut bytes = [0; 2000];
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                for stream in crowd.iter_mut() {
                    std::io::Read::read_exact(stream, &mut bytes).expect("a slow client gets its bytes");
                }
                std::thread::sleep(Duration::from_millis(100).saturating_sub(start.elapsed()));
            }
        });
        std::thread::sleep(Duration::from_secs(2));
        let grown = process::resident_bytes(&pids).saturating_sub(before) / CLIENTS as u64;
        let pipes = server.metrics().sum("ringway_pipes", &[("state", "busy")]);
        let beside = quick("beside").min(quick("beside"));
        let times = load::round_trips(server.address(), "/small", 1024, 500, Duration::from_millis(1));
        stop.store(true, Ordering::Relaxed);
        (grown, pipes, beside, times)
    });
    let threads = process::threads(&pids);
    println!(
        "{grown} bytes each, {pipes} pipes, {threads} threads; 256 MiB in {before_alone:?} alone, {beside:?} beside them; \
         1 KiB p50 {:?} p99 {:?}",
        times.percentile(0.5),
        times.percentile(0.99)
    );
    assert!(grown < 10 * 1024, "{grown} bytes for each slow client");
    assert!(pipes <= 64.0, "{pipes} pipes");
    assert!(threads <= 1 + 6 + 3, "{threads} threads");
    assert!(times.percentile(0.99) < Duration::from_millis(10), "{:?}", times.percentile(0.99));
    assert!(beside < before_alone * 3 + Duration::from_millis(200), "{before_alone:?} alone, {beside:?} beside them");
    assert_eq!(origin.body_bytes("/large"), object.size);
}
