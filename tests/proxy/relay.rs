//! Without a cache: what passes, what is stripped, what is added, and how bodies of every framing end.

use crate::support::origin::{Fault, Framing, Object, Origin};
use crate::support::{Client, ENGINES, Start, eventually, process, sha256, tree};
use crate::{Random, beside, compare, get, get_range, get_with, relay, routed};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn bodies_of_every_size(engine: &str) {
    let _beside = beside();
    let origin = Origin::start();
    let server = relay(&origin).engine(engine).spawn();
    let mut client = server.client();
    let sizes = [0, 1, 4095, 4096, 65_535, 65_536, 65_537, tree::MIB, tree::MIB + 1, 16 * tree::MIB + 3];
    for (seed, size) in sizes.into_iter().enumerate() {
        let (path, object) = (format!("/{size}"), Object::new(seed as u64, size));
        origin.put(&path, &object);
        let got = get(&mut client, &path);
        got.expect(&object, &format!("{engine}, {size} bytes"));
        assert_eq!(got.length(), Some(size));
        assert_eq!(client.head_of(&path).length(), Some(size));
        if size > 100 {
            get_range(&mut client, &path, size / 2, 50).expect_range(&object, size / 2, 50, engine);
        }
    }
    let body = client.body_bytes;
    eventually("bytes are counted", Duration::from_secs(3), || {
        let metrics = server.metrics();
        metrics.sum("ringway_sent_bytes_total", &[("part", "body")]) as u64 == body
            && metrics.sum("ringway_upstream_received_bytes_total", &[]) as u64 == origin.all_body_bytes()
    });
}

#[test]
fn bodies_of_every_size_by_auto() {
    bodies_of_every_size("auto");
}

#[test]
fn bodies_of_every_size_by_send() {
    bodies_of_every_size("send");
}

#[test]
fn bodies_of_every_size_by_send_zc() {
    bodies_of_every_size("send-zc");
}

#[test]
fn bodies_of_every_size_by_splice() {
    bodies_of_every_size("splice");
}

#[test]
fn bodies_of_every_size_by_sendfile() {
    bodies_of_every_size("sendfile");
}

#[test]
fn a_large_body_goes_through_pipes_and_is_counted_so() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(5, 256 * tree::MIB);
    origin.put("/large", &object);
    let server = relay(&origin).spawn();
    compare(&mut server.client(), "/large", &object, "256 MiB");
    eventually("carried by splice", Duration::from_secs(3), || {
        let bytes = server.metrics().sum("ringway_sent_bytes_total", &[("engine", "splice"), ("part", "body")]);
        bytes > 0.9 * object.size as f64
    });
    eventually("no pipe is busy", Duration::from_secs(3), || {
        server.metrics().sum("ringway_pipes", &[("state", "busy")]) == 0.0
    });
}

#[test]
fn conditions_and_ranges_are_the_origins_to_answer() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 200_000).modified_ago(5000);
    origin.put("/a", &object);
    let server = relay(&origin).spawn();
    let mut client = server.client();
    let modified = get(&mut client, "/a").header("last-modified").unwrap().to_owned();
    let table = [
        ("If-None-Match: \"v1\"\r\n".to_owned(), 304),
        ("If-None-Match: \"v2\"\r\n".to_owned(), 200),
        (format!("If-Modified-Since: {modified}\r\n"), 304),
        ("If-Match: \"v2\"\r\n".to_owned(), 412),
        ("Range: bytes=100-199\r\nIf-Range: \"v1\"\r\n".to_owned(), 206),
        ("Range: bytes=100-199\r\nIf-Range: \"v2\"\r\n".to_owned(), 200),
        ("Range: bytes=-7\r\n".to_owned(), 206),
        ("Range: bytes=199999-\r\n".to_owned(), 206),
        ("Range: bytes=200000-\r\n".to_owned(), 416),
    ];
    for (headers, status) in table {
        let got = get_with(&mut client, "/a", &headers);
        assert_eq!(got.status, status, "{headers}");
        assert!(got.whole);
        match status {
            200 => got.expect(&object, &headers),
            206 => {
                let range = got.header("content-range").unwrap();
                let first: u64 = range["bytes ".len()..range.find('-').unwrap()].parse().unwrap();
                assert!(got.body == object.content.range(first, got.body.len() as u64), "{headers}");
            }
            416 => assert_eq!(got.header("content-range"), Some("bytes */200000")),
            _ => {}
        }
    }
    assert_eq!(get(&mut client, "/none").status, 404);
}

#[test]
fn targets_arrive_as_they_were_sent_behind_the_prefix() {
    let _beside = beside();
    let origin = Origin::start();
    let server = Start::new(origin.url("/bucket")).spawn();
    let mut client = server.client();
    let object = Object::new(1, 100);
    for target in ["/a", "/a%20b/%C3%A9", "/a?x=%2F&y=a+b", "/a;p=1/~x", "/dir/", "/a%2Fb"] {
        let there = format!("/bucket{target}");
        origin.put(there.split('?').next().unwrap(), &object);
        let got = get(&mut client, target);
        assert_eq!(origin.log().last().map(|request| request.target.clone()), Some(there), "{target}");
        got.expect(&object, target);
    }
    // Nothing outside the prefix can be reached, however it is spelled.
    origin.clear_log();
    for target in ["/../secret", "/a/../../secret", "/%2e%2e/secret", "/..%2fsecret", "/a/%2E%2E/%2e%2e/secret"] {
        let mut client = server.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes());
        let head = client.head();
        assert!(matches!(head.status, 400 | 403 | 404), "{target}: {head:?}");
    }
    for request in origin.log() {
        assert!(request.target.starts_with("/bucket/") && !request.target.contains(".."), "{}", request.target);
    }
}

#[test]
fn hop_by_hop_headers_stay_on_their_hop() {
    let _beside = beside();
    let origin = Origin::start();
    let mut object = Object::new(1, 1000)
        .header("Connection", "X-Private, keep-alive")
        .header("X-Private", "secret")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Authenticate", "Basic")
        .header("Upgrade", "h2c")
        .header("X-Public", "a,  b")
        .header("Set-Cookie", "a=1")
        .header("Content-Type", "text/x-test; charset=utf-8");
    object.headers.push(("Set-Cookie".to_owned(), "b=2".to_owned()));
    origin.put("/a", &object);
    let server = relay(&origin).spawn();
    let mut client = server.client();
    let got = get_with(
        &mut client,
        "/a",
        "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eDp5\r\nUpgrade: h2c\r\nX-End: 2\r\nCookie: c=1\r\nAuthorization: Basic YTpi\r\n",
    );
    got.expect(&object, "a body");
    for gone in ["x-private", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(got.header(gone), None, "{gone} reached the client");
    }
    assert_eq!(got.header("x-public").map(|value| value.replace("  ", " ")), Some("a, b".to_owned()));
    assert_eq!(got.header("content-type"), Some("text/x-test; charset=utf-8"));
    let cookies: Vec<&str> =
        got.headers.iter().filter(|(name, _)| name == "set-cookie").map(|(_, value)| value.as_str()).collect();
    assert_eq!(cookies, ["a=1", "b=2"]);
    let asked = &origin.log()[0];
    for gone in ["x-hop", "keep-alive", "te", "proxy-connection", "proxy-authorization", "upgrade"] {
        assert_eq!(asked.header(gone), None, "{gone} reached the origin: {:?}", asked.headers);
    }
    assert_eq!(asked.header("x-end").as_deref(), Some("2"));
    assert_eq!(asked.header("cookie").as_deref(), Some("c=1"));
    assert_eq!(asked.header("authorization").as_deref(), Some("Basic YTpi"));
}

#[test]
fn via_forwarded_and_host_say_who_asks() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/a", &Object::new(1, 10).header("Via", "1.1 inner"));
    let ask = |route: &str| {
        let server = routed(&origin, None, route).spawn();
        let mut client = server.client();
        client.send(
            b"GET /a HTTP/1.1\r\nHost: example.org\r\nVia: 1.0 before\r\nX-Forwarded-For: 192.0.2.7\r\n\
              Forwarded: for=192.0.2.7\r\nX-Forwarded-Proto: https\r\n\r\n",
        );
        let reply = client.reply();
        assert_eq!(reply.status, 200);
        let via: Vec<&str> =
            reply.headers.iter().filter(|(name, _)| name == "via").map(|(_, value)| value.as_str()).collect();
        assert_eq!(via.join(", "), "1.1 inner, 1.1 ringway");
        origin.log().pop().unwrap()
    };
    let asked = ask("");
    let via = asked.header("via").unwrap();
    assert!(via.starts_with("1.0 before, 1.1 ") && via.contains("ringway"), "{via}");
    assert_eq!(asked.header("x-forwarded-for").as_deref(), Some("192.0.2.7, 127.0.0.1"));
    let forwarded = asked.header("forwarded").unwrap();
    assert!(forwarded.starts_with("for=192.0.2.7") && forwarded.contains("127.0.0.1"), "{forwarded}");
    assert_eq!(asked.header("host"), Some(origin.address().to_string()), "the origin's own name by default");
    assert_eq!(asked.all("host").count(), 1);

    let asked = ask("forwarded = \"replace\"\nhost_header = \"client\"");
    assert_eq!(asked.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert!(!asked.header("forwarded").unwrap_or_default().contains("192.0.2.7"));
    assert_eq!(asked.header("host").as_deref(), Some("example.org"));

    let asked = ask("forwarded = \"off\"\nhost_header = \"www.example.net\"");
    assert_eq!(asked.header("x-forwarded-for").as_deref(), Some("192.0.2.7"));
    assert_eq!(asked.header("forwarded").as_deref(), Some("for=192.0.2.7"));
    assert_eq!(asked.header("host").as_deref(), Some("www.example.net"));
}

#[test]
fn chunked_and_close_delimited_bodies_arrive_whole() {
    let _beside = beside();
    let origin = Origin::start();
    for engine in ["auto", "send", "splice"] {
        let server = relay(&origin).engine(engine).spawn();
        for (seed, size) in [0, 1, 5000, 65_536, 3 * tree::MIB + 5].into_iter().enumerate() {
            for framing in [Framing::Chunked(1), Framing::Chunked(7000), Framing::Chunked(200_000), Framing::Close] {
                if framing == Framing::Chunked(1) && size > 5000 {
                    continue;
                }
                let what = format!("{engine}, {size} bytes, {framing:?}");
                let object = Object::new(seed as u64, size).framing(framing);
                origin.put("/a", &object);
                let mut client = server.client();
                let got = get(&mut client, "/a");
                got.expect(&object, &what);
                if let Framing::Chunked(_) = framing {
                    get(&mut client, "/a").expect(&object, &format!("{what}, the connection goes on"));
                }
                // A client that knows no chunks gets the same, up to the close.
                let mut old = server.client();
                old.send(b"GET /a HTTP/1.0\r\nHost: test\r\n\r\n");
                let head = old.head();
                assert_eq!(head.header("transfer-encoding"), None, "{what}");
                let mut body = Vec::new();
                assert!(old.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes)), "{what}");
                assert!(body == object.bytes(), "{what}: for HTTP/1.0");
                let head = server.client().head_of("/a");
                assert_eq!(head.status, 200, "{what}: HEAD");
            }
        }
    }
}

#[test]
fn a_close_with_bytes_still_on_the_way_loses_none() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(3, 6 * tree::MIB).framing(Framing::Close);
    origin.put("/close", &object);
    let whole = Object { close: true, ..Object::new(4, 6 * tree::MIB) };
    origin.put("/length", &whole);
    for engine in ENGINES {
        let server = relay(&origin).engine(engine).spawn();
        for (path, object) in [("/close", &object), ("/length", &whole)] {
            // A client that begins to read when the origin has long finished and gone.
            let mut client = Client::connect_small(server.address());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
            std::thread::sleep(Duration::from_millis(150));
            let head = client.head();
            let mut body = Vec::new();
            assert!(client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes)), "{engine} {path}");
            assert!(body == object.bytes(), "{engine} {path}");
        }
    }
}

#[test]
fn a_truncated_body_is_never_complete() {
    let _beside = beside();
    let origin = Origin::start();
    let size = tree::MIB;
    for engine in ENGINES {
        let server = relay(&origin).engine(engine).spawn();
        for framing in [Framing::Length, Framing::Chunked(10_000)] {
            for (name, fault) in [("FIN", Fault::Die as fn(u64) -> Fault), ("reset", Fault::Reset)] {
                for at in [1, 60_000, size / 2, size - 1] {
                    let what = format!("{engine}: {name} at {at} of {framing:?}");
                    let object = Object::new(6, size).framing(framing);
                    origin.put("/a", &object);
                    origin.clear_faults("/a");
                    origin.fault("/a", fault(at), 1);
                    let mut client = server.client();
                    client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
                    // If nothing was sent yet, the failure may still become a 502.
                    let Some(head) = client.try_head().unwrap() else { continue };
                    if head.status == 502 {
                        client.body(&head);
                        continue;
                    }
                    let mut body = Vec::new();
                    let whole = client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes));
                    assert!(!whole, "{what}: complete after {} bytes: {head:?}", body.len());
                    assert!(body == object.content.range(0, body.len() as u64), "{what}: wrong bytes");
                    get(&mut server.client(), "/a").expect(&object, &format!("{what}: the next one"));
                }
            }
        }
        // A close-delimited body that ends with a reset.
        origin.put("/a", &Object::new(6, size).framing(Framing::Close));
        origin.fault("/a", Fault::Reset(size / 2), 1);
        let got = get(&mut server.client(), "/a");
        assert!(!got.whole, "{engine}: a reset is no end");
        eventually("aborted responses are counted", Duration::from_secs(3), || {
            server.metrics().sum("ringway_http_aborted_responses_total", &[("reason", "upstream")]) >= 5.0
        });
    }
}

#[test]
fn interim_responses_and_slow_heads_are_no_obstacle() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object { drip: true, ..Object::new(1, 70_000) };
    origin.put("/a", &object);
    let server = relay(&origin).spawn();
    let interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
    origin.fault("/a", Fault::Before(interim.to_vec()), 1);
    let mut client = server.client();
    client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = loop {
        let head = client.head();
        if head.status >= 200 {
            break head;
        }
    };
    assert_eq!(head.status, 200);
    assert!(client.body(&head) == object.bytes());
    get(&mut client, "/a").expect(&object, "a head byte by byte");
    // 204 and 304 have no body, whatever their headers say.
    for status in [204, 304] {
        let raw = format!(
            "HTTP/1.1 {status} X\r\nETag: \"x\"\r\n{}\r\n",
            if status == 304 { "Content-Length: 99\r\n" } else { "" }
        );
        origin.fault("/a", Fault::Raw(raw.into_bytes()), 1);
        let got = get_with(&mut client, "/a", "If-None-Match: \"x\"\r\n");
        assert_eq!(got.status, status);
        get(&mut client, "/a").expect(&object, "behind it");
    }
}

#[test]
fn other_methods_pass_only_where_the_route_allows_them() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/up", &Object { upload: Some(u64::MAX), ..Object::new(1, 10) });
    let server = relay(&origin).spawn();
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"] {
        let mut client = server.client();
        let target = if method == "CONNECT" { "test:80" } else { "/up" };
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").as_bytes());
        let head = client.head();
        assert!(matches!(head.status, 400 | 405 | 501), "{method}: {head:?}");
        if head.status == 405 {
            let allow = head.header("allow").expect("405 has Allow");
            assert!(allow.contains("GET") && allow.contains("HEAD") && !allow.contains(method), "{allow}");
        }
    }
    assert!(origin.log().is_empty(), "none of them reached the origin");
}

fn upload_route(origin: &Origin) -> Start {
    routed(origin, None, "methods = [\"GET\", \"HEAD\", \"POST\", \"PUT\"]")
}

#[test]
fn request_bodies_stream_through() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/up", &Object { upload: Some(u64::MAX), ..Object::new(1, 10) });
    let server = upload_route(&origin).spawn();
    let mut client = server.client();
    for (seed, size) in [0, 1, 4000, 70_000, 20 * tree::MIB].into_iter().enumerate() {
        let body = tree::content(seed as u64, size);
        for (method, chunked) in [("POST", false), ("PUT", true)] {
            let what = format!("{method} {size}");
            let framing =
                if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {size}") };
            client.send(format!("{method} /up?x=1 HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n").as_bytes());
            if chunked {
                for chunk in body.chunks(60_001) {
                    client.send(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
                    client.send(chunk);
                    client.send(b"\r\n");
                }
                client.send(b"0\r\n\r\n");
            } else {
                client.send(&body);
            }
            let reply = client.reply();
            let expected = format!("{method} {size} {}\n", sha256(&body));
            assert_eq!(
                (reply.status, String::from_utf8_lossy(&reply.body).as_ref()),
                (200, expected.as_str()),
                "{what}"
            );
        }
    }
    // Expect: 100-continue: the body is sent once it is asked for.
    client.send(b"POST /up HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head().status, 100);
    client.send(b"hello");
    assert_eq!(String::from_utf8_lossy(&client.reply().body), format!("POST 5 {}\n", sha256(b"hello")));
    // Curl, with what it thinks right.
    if crate::support::has("curl") {
        let folder = tempfile::tempdir().unwrap();
        let body = tree::put(folder.path(), "body", 9, 3 * tree::MIB);
        let said = crate::support::output(
            std::process::Command::new("curl")
                .args(["-sS", "--max-time", "20", "-T"])
                .arg(folder.path().join("body"))
                .arg(server.url("/up")),
        );
        assert_eq!(String::from_utf8_lossy(&said), format!("PUT {} {}\n", body.len(), sha256(&body)));
    }
}

#[test]
fn an_upload_waits_for_the_origin_and_not_in_memory() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/up", &Object { upload: Some(2 * tree::MIB), ..Object::new(1, 10) });
    let server = upload_route(&origin).spawn();
    get(&mut server.client(), "/up");
    let before = process::resident_bytes(&server.pids());
    let mut client = server.client();
    let size = 256 * tree::MIB;
    client.send(format!("POST /up HTTP/1.1\r\nHost: test\r\nContent-Length: {size}\r\n\r\n").as_bytes());
    let (start, chunk, mut sent) = (Instant::now(), vec![7; 256 * 1024], 0);
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while start.elapsed() < Duration::from_millis(1500) {
        match client.stream.write(&chunk) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("an upload that waits was ended: {error}"),
        }
    }
    // The origin took 3 MiB; a proxy without backpressure would have taken all it was given.
    assert!((sent as u64) < 64 * tree::MIB, "{sent} bytes of an upload were taken in advance");
    let grown = process::resident_bytes(&server.pids()).saturating_sub(before);
    assert!(grown < 16 * tree::MIB, "{grown} bytes of memory for one upload");
    client.reset();
    eventually("the origin's connection is gone too", Duration::from_secs(5), || origin.open() <= 1);
}

#[test]
fn an_origin_that_refuses_a_body_early_is_heard() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/up", &Object { upload: Some(u64::MAX), ..Object::new(1, 10) });
    let server = upload_route(&origin).spawn();
    origin.fault("/up", Fault::Refuse(413), 1);
    let mut client = server.client();
    client.send(b"POST /up HTTP/1.1\r\nHost: test\r\nContent-Length: 100000000\r\n\r\n");
    client.send(&[0; 1000]);
    let head = client.head();
    assert_eq!(head.status, 413, "{head:?}");
    // A POST is never sent twice: the used connection that dies under it is a 502.
    let mut client = server.client();
    get(&mut client, "/up");
    let asked = origin.requests("/up").len();
    origin.drop_reused(1);
    client.send(b"POST /up HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nab");
    let reply = client.reply();
    let posts = origin.requests("/up").len() - asked;
    assert!(posts <= 1, "a POST was sent {posts} times");
    // Where a fresh connection is used for it, nothing was dropped.
    assert_eq!(reply.status, if origin.drops_left() == 0 { 502 } else { 200 });
}

#[test]
fn ambiguous_requests_never_reach_the_origin() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/up", &Object { upload: Some(u64::MAX), ..Object::new(1, 10) });
    let server = upload_route(&origin).spawn();
    let table = [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: +3\r\n\r\nabc",
        "Content-Length: 3, 3\r\n\r\nabc",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 18446744073709551616\r\n\r\n",
    ];
    for rest in table {
        let mut client = server.client();
        client.send(format!("POST /up HTTP/1.1\r\nHost: test\r\n{rest}").as_bytes());
        let head = client.head();
        // Equal lengths in a list may be joined into one (RFC 9110 section 8.6).
        assert!(matches!(head.status, 400 | 411 | 413 | 501) || rest.contains("3, 3"), "{rest:?}: {head:?}");
    }
    for bad in ["zz\r\nabc", "5\r\nabcdeXX0\r\n\r\n", "-1\r\n\r\n", "ffffffffffffffffff\r\n"] {
        let mut client = server.client();
        client.send(format!("POST /up HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n{bad}").as_bytes());
        if let Some(head) = client.try_head().unwrap() {
            assert!(head.status >= 400, "{bad:?}: {head:?}");
        }
    }
    assert!(origin.log().iter().all(|request| request.target == "/up"), "{:?}", origin.log());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let _beside = beside();
    let origin = Origin::start();
    let objects: Vec<Object> = (0..6).map(|seed| Object::new(seed, 10_000 * (6 - seed))).collect();
    for (index, object) in objects.iter().enumerate() {
        // The first ones are the slowest.
        let delay = Duration::from_millis(30 - 5 * index as u64);
        origin.put(&format!("/{index}"), &object.clone().delay(delay));
    }
    let server = relay(&origin).spawn();
    let mut client = server.client();
    let requests: String = (0..6).map(|index| format!("GET /{index} HTTP/1.1\r\nHost: test\r\n\r\n")).collect();
    client.send(requests.as_bytes());
    for object in &objects {
        assert!(client.reply().body == object.bytes());
    }
}

fn bytes_stay_apart(engine: &str) {
    let _beside = beside();
    const OBJECTS: u64 = 6;
    let size = |index: u64| [300_000, 65_537, 1_200_001, 4_097, 2_500_000, 131_072][index as usize];
    let origin = Origin::start();
    let objects: Vec<Object> = (0..OBJECTS).map(|index| Object::new(100 + index, size(index))).collect();
    for (index, object) in objects.iter().enumerate() {
        origin.put(&format!("/{index}"), object);
        // Now and then the origin cuts a body too.
        origin.fault(&format!("/{index}"), Fault::Die(object.size / 3), 3);
        origin.fault(&format!("/{index}"), Fault::Reset(object.size / 2), 3);
    }
    let server = relay(&origin).engine(engine).core(process::cpus()[0]).spawn();
    let (address, stop) = (server.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (objects, stop) = (&objects, &stop);
            scope.spawn(move || {
                let mut random = Random(worker);
                while !stop.load(Ordering::Relaxed) {
                    let index = random.below(OBJECTS);
                    let object = &objects[index as usize];
                    let taken = random.below(object.size);
                    let mut client = Client::connect_small(address);
                    client.send(format!("GET /{index} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
                    let Some(head) = client.try_head().unwrap() else { continue };
                    let mut body = Vec::new();
                    client.read_body(taken, |bytes| body.extend_from_slice(bytes));
                    if head.status == 200 {
                        assert!(
                            body == object.content.range(0, body.len() as u64),
                            "{engine}: foreign bytes in {index}"
                        );
                    }
                    if random.below(2) == 0 {
                        client.reset();
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        let start = Instant::now();
        let mut random = Random(77);
        while start.elapsed() < Duration::from_secs(2) {
            let index = random.below(OBJECTS);
            let object = &objects[index as usize];
            let mut client = Client::connect(address);
            client.send(format!("GET /{index} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
            let Some(head) = client.try_head().unwrap() else { continue };
            let mut body = Vec::new();
            let whole = client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes));
            if head.status == 200 {
                assert!(body == object.content.range(0, body.len() as u64), "{engine}: foreign bytes in {index}");
                assert_eq!(whole, body.len() as u64 == object.size, "{engine}");
            }
        }
    });
    eventually("nothing is busy after the storm", Duration::from_secs(5), || {
        let metrics = server.metrics();
        metrics.sum("ringway_pipes", &[("state", "busy")]) == 0.0
            && metrics.sum("ringway_connections", &[("state", "writing")]) == 0.0
            && metrics.sum("ringway_upstream_connections", &[("state", "busy")]) == 0.0
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn bytes_stay_apart_by_auto() {
    bytes_stay_apart("auto");
}

#[test]
fn bytes_stay_apart_by_send() {
    bytes_stay_apart("send");
}

#[test]
fn bytes_stay_apart_by_send_zc() {
    bytes_stay_apart("send-zc");
}

#[test]
fn bytes_stay_apart_by_splice() {
    bytes_stay_apart("splice");
}

#[test]
fn waiting_costs_no_cpu_and_little_memory() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/large", &Object::new(1, 64 * tree::MIB));
    origin.put("/slow", &Object::new(2, 64 * tree::MIB).rate(50_000));
    let server = relay(&origin)
        .core(process::cpus()[0])
        .with("--origin-connections-per-core", 200)
        .with("--send-timeout", "60s")
        .spawn();
    compare(&mut server.client(), "/large", &Object::new(1, 64 * tree::MIB), "warm");
    let before = process::resident_bytes(&server.pids());
    // Clients that stopped reading, and clients whose origin is slow.
    let stalled = crate::support::load::stalled(server.address(), "/large", 80, 300_000);
    let mut waiting: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut waiting {
        client.send(b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().status, 200);
    }
    std::thread::sleep(Duration::from_millis(300));
    let grown = process::resident_bytes(&server.pids()).saturating_sub(before);
    let pipes = server.metrics().sum("ringway_pipes", &[("state", "busy")]);
    let cpu = process::Cpu::of(&server.pids());
    std::thread::sleep(Duration::from_secs(1));
    let used = Duration::from_nanos(process::Cpu::of(&server.pids()).since(cpu));
    println!("{grown} bytes for 100 that wait, {pipes} pipes busy, {used:?} CPU in a second");
    assert!(used < Duration::from_millis(120), "{used:?} of CPU in a second for those that wait");
    assert!(grown < 100 * 1100 * 1024, "{grown} bytes of memory for 100 that wait");
    assert!(pipes <= 64.0, "{pipes} pipes");
    // A quick one beside them.
    let start = Instant::now();
    compare(&mut server.client(), "/large", &Object::new(1, 64 * tree::MIB), "beside them");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?} for 64 MiB beside those that wait", start.elapsed());
    // They wake up, and each gets the rest.
    for stream in stalled.into_iter().take(3) {
        assert_eq!(Client::over(stream).read_body(50 * tree::MIB, |_| ()), 50 * tree::MIB);
    }
}

#[test]
fn a_client_that_leaves_takes_its_origin_connection_along() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/held", &Object::new(1, 4 * tree::MIB));
    origin.hold("/held", 100_000);
    let server = relay(&origin).spawn();
    let mut clients: Vec<Client> = (0..10).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"GET /held HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().status, 200);
        assert_eq!(client.read_body(100_000, |_| ()), 100_000);
    }
    assert_eq!(origin.open(), 10);
    for (index, client) in clients.into_iter().enumerate() {
        if index % 2 == 0 {
            client.reset();
        }
    }
    eventually("the origin is left alone", Duration::from_secs(5), || origin.open() == 0);
    eventually("counted as gone", Duration::from_secs(5), || {
        server.metrics().sum("ringway_upstream_connections", &[]) == 0.0
    });
}

#[test]
fn a_drain_finishes_what_is_relayed() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 3 * tree::MIB);
    origin.put("/held", &object);
    origin.hold("/held", tree::MIB);
    let mut server = relay(&origin).spawn();
    let mut client = server.client();
    client.send(b"GET /held HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.head();
    let mut body = Vec::new();
    client.read_body(tree::MIB, |bytes| body.extend_from_slice(bytes));
    server.term();
    eventually("no new connections", Duration::from_secs(5), || {
        std::net::TcpStream::connect(server.address()).is_err()
    });
    origin.release("/held");
    client.read_body(head.length().unwrap() - tree::MIB, |bytes| body.extend_from_slice(bytes));
    assert!(body == object.bytes());
    assert_eq!(server.end(Duration::from_secs(10)).and_then(|status| status.code()), Some(0));
}

#[test]
fn foreign_clients_get_the_same_bytes() {
    let _beside = beside();
    if !crate::support::has("curl") || !crate::support::has("python3") {
        return;
    }
    let origin = Origin::start();
    let server = relay(&origin).spawn();
    for (framing, name) in [(Framing::Length, "length"), (Framing::Chunked(9999), "chunked"), (Framing::Close, "close")]
    {
        let object = Object::new(8, 3 * tree::MIB + 1).framing(framing);
        origin.put("/a", &object);
        let url = server.url("/a");
        let curl = crate::support::output(std::process::Command::new("curl").args(["-sSf", "--max-time", "20", &url]));
        assert!(curl == object.bytes(), "curl, {name}");
        let script =
            "import sys,urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1],timeout=20).read())";
        let python = crate::support::output(std::process::Command::new("python3").args(["-c", script, &url]));
        assert!(python == object.bytes(), "python, {name}");
        origin.fault("/a", Fault::Reset(tree::MIB), 1);
        let cut =
            std::process::Command::new("curl").args(["-sS", "--max-time", "20", "-o", "/dev/null", &url]).status();
        assert!(!cut.unwrap().success(), "curl calls a truncated body complete, {name}");
    }
}
