//! One test per bug that was found by reading or by somebody's use, named by what was wrong.

use super::{Got, beside, cached, get, get_range, get_with, relay};
use crate::support::origin::{Fault, Framing, Object, Origin};
use crate::support::{Client, Server, eventually};
use std::net::Shutdown;
use std::time::Duration;

const SLICE: u64 = 64 * 1024;

fn ask(server: &Server, path: &str) -> Client {
    let mut client = server.client();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
    client
}

fn rest(mut client: Client) -> Got {
    let head = client.head();
    let mut body = Vec::new();
    let whole = client.body_to_its_end(&head, |bytes| body.extend_from_slice(bytes));
    Got { head, body, whole }
}

/// Files of the cache that the server still has open though they are gone.
fn deleted(server: &Server) -> usize {
    let folder = format!("/proc/{}/fd", server.pid());
    let links = std::fs::read_dir(folder).expect("/proc").flatten();
    let gone = |path: std::path::PathBuf| path.to_string_lossy().ends_with("(deleted)");
    links.filter(|link| std::fs::read_link(link.path()).is_ok_and(gone)).count()
}

#[test]
fn a_half_closed_client_that_reads_on_gets_all_of_a_slow_body() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 400_000).rate(100_000);
    origin.put("/a", &object);
    let server = relay(&origin).spawn();
    let client = ask(&server, "/a");
    client.stream.shutdown(Shutdown::Write).expect("half a close");
    let got = rest(client);
    assert!(got.whole && got.body == object.bytes(), "cut after {} bytes", got.body.len());
}

#[test]
fn clients_that_leave_the_queue_leave_their_place() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 1000);
    origin.put("/a", &object);
    origin.hold("/a", 10);
    let server = relay(&origin)
        .core(crate::support::process::cpus()[0])
        .with("--origin-connections-per-core", 1)
        .with("--origin-queue", 2)
        .with("--origin-queue-timeout", "20s")
        .spawn();
    let inside = ask(&server, "/a");
    eventually("one inside", Duration::from_secs(3), || origin.peak("/a") == 1);
    for _ in 0..6 {
        let waiting = ask(&server, "/a");
        eventually("it waits", Duration::from_secs(3), || {
            server.metrics().sum("ringway_http_requests_in_flight", &[]) == 2.0
        });
        waiting.reset();
        eventually("it left", Duration::from_secs(3), || {
            server.metrics().sum("ringway_http_requests_in_flight", &[]) == 1.0
        });
    }
    let last = ask(&server, "/a");
    origin.release("/a");
    assert!(rest(inside).body == object.bytes());
    let got = rest(last);
    assert!(got.head.status == 200 && got.body == object.bytes(), "{:?}", got.head);
}

#[test]
fn what_is_purged_gives_its_disk_back() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 20 * SLICE).fresh(600);
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).with("--admin-token", "t").spawn();
    for _ in 0..8 {
        get(&mut server.client(), "/a").expect(&object, "filled and hit");
    }
    let mut admin = Client::connect(server.admin.expect("an admin address"));
    admin.send(
        b"POST /cache/purge?url=/a HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer t\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(admin.reply().head.status, 200);
    eventually("no core has it open", Duration::from_secs(5), || deleted(&server) == 0);
}

#[test]
fn a_stored_response_whose_successor_is_not_to_be_kept_goes() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Object::new(1, 1000), Object::new(2, 1000).header("Cache-Control", "no-store"));
    origin.put("/a", &old.clone().header("Cache-Control", "max-age=0"));
    let server = cached(&origin, folder.path()).spawn();
    get(&mut server.client(), "/a").expect(&old, "kept, and to be asked for again");
    origin.put("/a", &new);
    get(&mut server.client(), "/a").expect(&new, "the new one");
    assert_eq!(server.metrics().sum("ringway_cache_objects", &[]), 0.0, "the old one is of no use to anybody");
}

#[test]
fn a_slice_that_fails_ends_only_those_who_wait_for_it() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 40 * SLICE).fresh(600);
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).with("--origin-retries", 0).spawn();
    get_range(&mut server.client(), "/a", 0, 10).expect_range(&object, 0, 10, "known");
    origin.hold("/a", 10 * SLICE + 5);
    let mut waiting = server.client();
    waiting.send(
        format!("GET /a HTTP/1.1\r\nHost: test\r\nRange: bytes={}-{}\r\n\r\n", 10 * SLICE, 11 * SLICE - 1).as_bytes(),
    );
    assert_eq!(waiting.head().status, 206);
    origin.fault("/a", Fault::Status(500), 1);
    assert_eq!(get_range(&mut server.client(), "/a", 30 * SLICE, 10).status, 502, "the other slice");
    origin.release("/a");
    let mut body = Vec::new();
    assert_eq!(waiting.read_body(SLICE, |bytes| body.extend_from_slice(bytes)), SLICE, "cut by another's failure");
    assert!(body == object.content.range(10 * SLICE, SLICE));
}

#[test]
fn a_chunked_body_for_an_old_client_without_copies_kills_nobody() {
    let _beside = beside();
    let origin = Origin::start();
    let object = Object::new(1, 3_000_000).framing(Framing::Chunked(70_000));
    origin.put("/a", &object);
    let server = relay(&origin).engine("send-zc").spawn();
    for round in 0..4 {
        let mut client = server.client();
        client.send(b"GET /a HTTP/1.0\r\nHost: test\r\n\r\n");
        assert!(rest(client).body == object.bytes(), "round {round}");
    }
    assert!(get(&mut server.client(), "/a").body == object.bytes());
}

#[test]
fn a_field_that_connection_names_chooses_no_variant() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 1000).fresh(600).vary("x-kind");
    origin.put("/a", &object);
    let server = cached(&origin, folder.path()).spawn();
    let hidden = get_with(&mut server.client(), "/a", "Connection: X-Kind\r\nX-Kind: b\r\n");
    assert_eq!(hidden.status, 200);
    let shown = get_with(&mut server.client(), "/a", "X-Kind: b\r\n");
    assert!(shown.body == object.variant("b").bytes(), "what the origin did not see was taken for what it answered");
}

#[test]
fn an_idle_connection_is_as_old_as_its_last_response() {
    let _beside = beside();
    let origin = Origin::start();
    origin.put("/slow", &Object::new(1, 150_000).rate(100_000));
    origin.put("/a", &Object::new(2, 1000));
    let server = relay(&origin).core(crate::support::process::cpus()[0]).with("--origin-idle-timeout", "1s").spawn();
    let mut client = server.client();
    assert!(get(&mut client, "/slow").whole && get(&mut client, "/a").whole);
    assert_eq!(server.metrics().sum("ringway_upstream_connection_reuses_total", &[]), 1.0);
}

#[test]
fn a_304_that_nobody_asked_for_is_not_kept() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    origin.put("/a", &Object::new(1, 0).status(304).fresh(600));
    let server = cached(&origin, folder.path()).spawn();
    for _ in 0..2 {
        assert!(!get(&mut server.client(), "/a").is_hit());
    }
    assert_eq!(server.metrics().sum("ringway_cache_objects", &[]), 0.0);
}

#[test]
fn a_drain_waits_for_a_fill_that_another_core_reads() {
    let _beside = beside();
    for round in 0..4 {
        let origin = Origin::start();
        let folder = tempfile::tempdir().unwrap();
        let object = Object::new(1, 40 * SLICE).fresh(600);
        origin.put("/a", &object);
        origin.hold("/a", 10 * SLICE);
        let mut server = cached(&origin, folder.path()).spawn();
        let mut first = ask(&server, "/a");
        first.head();
        assert_eq!(first.read_body(10 * SLICE, |_| ()), 10 * SLICE);
        let others: Vec<Client> = (0..3)
            .map(|_| {
                let mut client = ask(&server, "/a");
                client.head();
                // What is there is read, so that it is the fill that they wait for and not their own sockets.
                assert_eq!(client.read_body(10 * SLICE, |_| ()), 10 * SLICE);
                client
            })
            .collect();
        eventually("all wait", Duration::from_secs(3), || {
            server.metrics().sum("ringway_cache_coalesced_waiters", &[]) == 4.0
        });
        first.reset();
        server.term();
        eventually("it drains", Duration::from_secs(3), || std::net::TcpStream::connect(server.address()).is_err());
        // The core whose client has left has nothing to do but the fill now.
        eventually("the first one is gone", Duration::from_secs(3), || {
            server.metrics().sum("ringway_cache_coalesced_waiters", &[]) == 3.0
        });
        origin.release("/a");
        for (index, mut client) in others.into_iter().enumerate() {
            let mut body = Vec::new();
            client.read_body(30 * SLICE, |bytes| body.extend_from_slice(bytes));
            assert!(body == object.content.range(10 * SLICE, 30 * SLICE), "round {round}, client {index}");
        }
        assert!(server.end(Duration::from_secs(5)).is_some_and(|status| status.success()));
    }
}

#[test]
fn many_empty_objects_keep_to_the_limit_of_objects() {
    let _beside = beside();
    let origin = Origin::start();
    let folder = tempfile::tempdir().unwrap();
    let server = cached(&origin, folder.path()).with("--cache-objects", 8).spawn();
    let mut client = server.client();
    for index in 0..40 {
        let path = format!("/{index}");
        origin.put(&path, &Object::new(index, 0).fresh(600));
        assert_eq!(get(&mut client, &path).status, 200);
        assert!(server.metrics().sum("ringway_cache_objects", &[]) <= 8.0, "after {index}");
    }
    assert!(server.metrics().sum("ringway_limit_hits_total", &[("limit", "cache_objects")]) >= 1.0);
}
