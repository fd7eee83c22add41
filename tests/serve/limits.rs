//! Everything has a limit, and a limit has an answer.

use crate::support::{Client, Server, Start, against_nginx, eventually, tree};
use std::time::{Duration, Instant};

fn site(limits: &[(&str, &str)]) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "inside").unwrap();
    tree::put(folder.path(), "large", 8, 64 * tree::MIB);
    let mut start = Start::new(folder.path());
    for (option, value) in limits {
        start = start.with(option, value);
    }
    let server = start.spawn();
    (folder, server)
}

#[test]
fn a_head_too_large_is_431_and_a_target_too_long_is_414() {
    let (_folder, server) = site(&[("--head-bytes", "4096"), ("--header-count", "32"), ("--target-bytes", "1024")]);
    if against_nginx() {
        return;
    }
    let cases = [
        ("a long header", format!("GET /a.txt HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(8000)), 431),
        ("many headers", format!("GET /a.txt HTTP/1.1\r\nHost: test\r\n{}\r\n", "X: y\r\n".repeat(40)), 431),
        ("a long target", format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "a".repeat(2000)), 414),
    ];
    for (what, request, status) in cases {
        let mut client = server.client();
        let reply = client.exchange(request.as_bytes());
        assert_eq!(reply.status, status, "{what}");
        assert!(client.ends_within(Duration::from_secs(3)), "{what}: closed");
    }
    // A head that never ends, in small pieces, is refused as soon as it is too large.
    let mut client = server.client();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nX: ");
    client.send(&[b'x'; 4096]);
    assert_eq!(client.reply().status, 431);
    // Just below the limit is served.
    let fill = "x".repeat(3900);
    assert_eq!(server.client().get_with("/a.txt", &format!("X: {fill}\r\n")).status, 200);
}

#[test]
fn a_body_too_large_is_413_and_a_small_one_is_dropped() {
    let (_folder, server) = site(&[("--discard-body-bytes", "10000")]);
    if against_nginx() {
        return;
    }
    let mut client = server.client();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nContent-Length: 10001\r\n\r\n");
    let reply = client.reply();
    assert_eq!(reply.status, 413);
    assert!(client.ends_within(Duration::from_secs(3)));
    let mut client = server.client();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nContent-Length: 10000\r\n\r\n");
    client.send(&[b'x'; 10000]);
    assert_eq!(client.reply().status, 200);
    assert_eq!(client.get("/a.txt").status, 200);
    // Chunked says no length before; it is counted as it comes.
    let mut client = server.client();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(b"1000\r\n");
    client.send(&[b'x'; 4096]);
    client.send(b"\r\nffff\r\n");
    client.send(&[b'x'; 60000]);
    if let Some(head) = client.try_head().unwrap() {
        assert!(matches!(head.status, 200 | 413), "{head:?}");
        client.body(&head);
        assert!(client.ends_within(Duration::from_secs(3)));
    }
}

#[test]
fn a_client_that_says_nothing_or_half_is_told_408_or_closed() {
    let (_folder, server) = site(&[("--header-timeout", "400ms")]);
    if against_nginx() {
        return;
    }
    let start = Instant::now();
    let mut silent = server.client();
    let mut half = server.client();
    half.send(b"GET /a.txt HT");
    for (what, client) in [("silent", &mut silent), ("half", &mut half)] {
        if let Some(head) = client.try_head().unwrap() {
            assert_eq!(head.status, 408, "{what}");
            client.body(&head);
            assert!(client.ends_within(Duration::from_secs(2)), "{what}");
        } else {
            assert_eq!(what, "silent", "a half request is answered with 408");
        }
    }
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(350) && waited < Duration::from_secs(3), "{waited:?}");
    // One byte now and then does not extend the deadline.
    let start = Instant::now();
    let mut drip = server.client();
    drip.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let ended = loop {
        use std::io::{Read, Write};
        if drip.stream.write_all(b"G").is_err() {
            break start.elapsed();
        }
        match drip.stream.read(&mut [0; 1000]) {
            Ok(_) => break start.elapsed(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break start.elapsed(),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "a dripping client holds its place");
    };
    assert!(ended < Duration::from_secs(3), "{ended:?}");
}

#[test]
fn an_idle_connection_is_closed_after_the_keepalive_timeout() {
    let (_folder, server) = site(&[("--keepalive-timeout", "400ms"), ("--header-timeout", "10s")]);
    if against_nginx() {
        return;
    }
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").status, 200);
    let start = Instant::now();
    assert!(client.ends_within(Duration::from_secs(5)), "an idle connection stays");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(300) && waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn a_client_that_takes_nothing_is_dropped_after_the_send_timeout() {
    for engine in ["send", "send-zc", "splice", "sendfile"] {
        let (_folder, server) = site(&[("--send-timeout", "600ms"), ("--engine", engine)]);
        if against_nginx() {
            return;
        }
        let _stalled = crate::support::load::stalled(server.address(), "/large", 3, 10_000);
        // A slow client beside them takes longer than the timeout in all, but always makes progress.
        let mut slow = Client::connect_small(server.address());
        slow.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        slow.head();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            assert_eq!(slow.read_body(200_000, |_| ()), 200_000, "{engine}: a slow client was dropped");
            std::thread::sleep(Duration::from_millis(50));
        }
        eventually("the stalled ones are dropped", Duration::from_secs(5), || {
            let metrics = server.metrics();
            metrics.sum("ringway_http_aborted_responses_total", &[]) >= 3.0
                && metrics.sum("ringway_connections", &[("state", "writing")]) <= 1.0
        });
    }
}

#[test]
fn connections_beyond_the_limit_are_turned_away_and_come_back() {
    let (_folder, server) = {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "inside").unwrap();
        let start =
            Start::new(folder.path()).with("--connections-per-core", 8).core(crate::support::process::cpus()[0]);
        (folder, start.spawn())
    };
    if against_nginx() {
        return;
    }
    let mut kept: Vec<Client> = (0..8).map(|_| server.client()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/a.txt").status, 200);
    }
    // The ninth is refused (503 or a close) or left waiting, and harms nobody.
    let mut ninth = server.client();
    ninth.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let _ = std::io::Write::write_all(&mut ninth.stream, b"GET /a.txt HTTP/1.1\r\nHost: test\r\n\r\n");
    match ninth.try_head() {
        Ok(Some(head)) => assert_eq!(head.status, 503),
        Ok(None) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
    }
    for client in &mut kept {
        assert_eq!(client.get("/a.txt").status, 200, "those inside are served");
    }
    drop(ninth);
    kept.truncate(4);
    eventually("a place is free again", Duration::from_secs(5), || {
        let mut client = server.client();
        client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\n\r\n");
        client.try_head().is_ok_and(|head| head.is_some_and(|head| head.status == 200))
    });
}

#[test]
fn a_connection_serves_no_more_requests_than_allowed() {
    let (_folder, server) = site(&[("--keepalive-requests", "3")]);
    if against_nginx() {
        return;
    }
    let mut client = server.client();
    assert!(!client.get("/a.txt").closes());
    assert!(!client.get("/a.txt").closes());
    assert!(client.get("/a.txt").closes(), "the last answer says so");
    assert!(client.ends_within(Duration::from_secs(2)));
}
