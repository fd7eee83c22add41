//! Every engine, every size at which a boundary lies: SHA-256 of the body, and the server's own count of what it sent.

use crate::support::tree::{self, SIZES};
use crate::support::{ENGINES, Start, against_nginx, engine_label, eventually};
use std::time::Duration;

fn every_size_arrives_byte_exact(engine: &str) {
    let server = Start::new(tree::shared()).engine(engine).spawn();
    let mut client = server.client();
    for size in SIZES {
        // Twice: the second may come from a warm descriptor or from the content cache.
        for round in 0..2 {
            let (head, count, hash) = client.hash(&format!("/{}", tree::name_of(size)));
            assert_eq!((head.status, head.length(), count), (200, Some(size), size), "{engine}, round {round}");
            assert_eq!(hash, tree::hash_of(size), "{engine}, {size} bytes, round {round}");
        }
    }
    // Fresh connections too: what the first request of a connection meets differs from what the second does.
    let (mut heads, mut bodies) = (client.head_bytes, client.body_bytes);
    for size in SIZES {
        let mut client = server.client();
        let (_, _, hash) = client.hash(&format!("/{}", tree::name_of(size)));
        assert_eq!(hash, tree::hash_of(size), "{engine}, {size} bytes, new connection");
        heads += client.head_bytes;
        bodies += client.body_bytes;
    }
    if against_nginx() {
        return;
    }
    counts_agree(&server, engine, heads, bodies);
    server.stop();
}

/// `ringway_sent_bytes_total` against what clients received, to the byte.
fn counts_agree(server: &crate::support::Server, engine: &str, heads: u64, bodies: u64) {
    const NAME: &str = "ringway_sent_bytes_total";
    // The last count follows the last send, which the client may have seen already.
    eventually("sent bytes agree with received bytes", Duration::from_secs(3), || {
        let metrics = server.metrics();
        let all = |part| metrics.sum(NAME, &[("part", part)]) as u64;
        all("head") == heads && all("body") == bodies
    });
    let metrics = server.metrics();
    if engine != "auto" {
        let label = engine_label(engine);
        let carried = metrics.sum(NAME, &[("part", "body"), ("engine", label.as_str())]) as u64;
        assert_eq!(carried, bodies, "a forced engine carries every body: {}", sent_lines(&metrics.text));
    }
}

fn sent_lines(text: &str) -> String {
    text.lines().filter(|line| line.starts_with("ringway_sent_bytes_total")).collect::<Vec<_>>().join("\n")
}

#[test]
fn auto_serves_every_size_byte_exact() {
    every_size_arrives_byte_exact("auto");
}

#[test]
fn send_serves_every_size_byte_exact() {
    every_size_arrives_byte_exact("send");
}

#[test]
fn send_zc_serves_every_size_byte_exact() {
    every_size_arrives_byte_exact("send-zc");
}

#[test]
fn splice_serves_every_size_byte_exact() {
    every_size_arrives_byte_exact("splice");
}

#[test]
fn sendfile_serves_every_size_byte_exact() {
    every_size_arrives_byte_exact("sendfile");
}

#[test]
fn ranges_across_every_boundary_are_exact_in_every_engine() {
    let size = 16 * tree::MIB;
    let content = tree::content(size, size);
    let path = format!("/{}", tree::name_of(size));
    for engine in ENGINES {
        let server = Start::new(tree::shared()).engine(engine).spawn();
        let mut client = server.client();
        for (first, last) in [
            (0, 0),
            (1, 4096),
            (4095, 4096),
            (65535, 131_072),
            (65536, 131_071),
            (tree::MIB - 1, 2 * tree::MIB),
            (tree::MIB + 13, 9 * tree::MIB + 7),
            (size - 1, size - 1),
        ] {
            let reply = client.get_with(&path, &format!("Range: bytes={first}-{last}\r\n"));
            assert_eq!(reply.status, 206, "{engine} {first}-{last}");
            assert_eq!(reply.header("content-range"), Some(format!("bytes {first}-{last}/{size}").as_str()));
            let expected = &content[first as usize..=last as usize];
            assert!(reply.body == expected, "{engine}: bytes {first}-{last} differ");
        }
    }
}

#[test]
fn a_slow_reader_gets_every_byte_in_every_engine() {
    let size = 4 * tree::MIB;
    let folder = tempfile::tempdir().unwrap();
    let content = tree::put(folder.path(), "slow.bin", 99, size);
    for engine in ENGINES {
        let server = Start::new(folder.path()).engine(engine).spawn();
        let mut client = crate::support::Client::connect_small(server.address());
        client.send(b"GET /slow.bin HTTP/1.1\r\nHost: test\r\n\r\n");
        let head = client.head();
        assert_eq!(head.length(), Some(size));
        let mut at = 0;
        // Small sips with pauses: the socket is full almost all the time. The pause is the subject, not a wait.
        while at < size {
            let sip = (size - at).min(48 * 1024 + 13);
            let got = client.read_body(sip, |bytes| {
                assert!(bytes == &content[at as usize..at as usize + bytes.len()], "{engine}: differs behind {at}");
                at += bytes.len() as u64;
            });
            assert_eq!(got, sip, "{engine}: ended at {at}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // And the connection is still in step.
        assert_eq!(client.get_with("/slow.bin", "Range: bytes=0-9\r\n").body, &content[..10]);
    }
}

#[test]
fn the_last_bytes_are_not_held_back() {
    // A last segment sent with MSG_MORE or SPLICE_F_MORE waits 200 ms in the kernel.
    for engine in ENGINES {
        let server = Start::new(tree::shared()).engine(engine).spawn();
        for size in [1, 4097, 65537, tree::MIB + 1] {
            let path = format!("/{}", tree::name_of(size));
            let times = crate::support::load::round_trips(server.address(), &path, size, 20, Duration::ZERO);
            let median = times.percentile(0.5);
            assert!(median < Duration::from_millis(40), "{engine}, {size} bytes: half the replies take {median:?}");
        }
    }
}
