//! No byte of one response ever reaches another: distinguishable files, clients that vanish in the middle, and others
//! that take their place (a pipe, an arena slot, a descriptor number that was not clean would show here).

use crate::support::{Client, ENGINES, Start, tree};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const FILES: u64 = 8;

fn length(file: u64) -> u64 {
    // Around the sizes where engines take another path, and large enough to be cut in the middle.
    [300_000, 65_537, 1_200_001, 4_097, 2_500_000, 700_003, 131_072, 3_000_017][file as usize]
}

fn bytes_stay_apart_after_disconnects(engine: &str) {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<Vec<u8>> =
        (0..FILES).map(|file| tree::put(folder.path(), &format!("{file}"), 1000 + file, length(file))).collect();
    // One core, so that all of them share one pool of everything; few pipes, so that each is soon used again.
    let server = Start::new(folder.path()).engine(engine).core(crate::support::process::cpus()[0]).spawn();
    let (address, stop, cuts) = (server.address(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..3u64 {
            let (contents, stop, cuts) = (&contents, &stop, &cuts);
            scope.spawn(move || {
                let mut random = worker.wrapping_mul(0x9e37_79b9) | 1;
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let file = (random >> 33) % FILES;
                    let taken = (random >> 40) % length(file);
                    let mut client = Client::connect_small(address);
                    client.send(format!("GET /{file} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
                    let head = client.head();
                    let mut at = 0;
                    client.read_body(taken, |bytes| {
                        let expected = &contents[file as usize][at..at + bytes.len()];
                        assert!(bytes == expected, "{engine}: foreign bytes in file {file} behind {at}, {head:?}");
                        at += bytes.len();
                    });
                    cuts.fetch_add(1, Ordering::Relaxed);
                    // Half vanish with a reset, half with unread data and a close, which resets a little later.
                    if random & (1 << 20) == 0 {
                        client.reset();
                    }
                }
            });
        }
        // Set even if an assertion below unwinds: the scope waits for its threads.
        let _stop = StopOnDrop(&stop);
        let mut keep = Client::connect(address);
        for round in 0..60 {
            for file in [round % FILES, (round * 5 + 3) % FILES] {
                let expected = &contents[file as usize];
                let reply = keep.get(&format!("/{file}"));
                assert!(reply.body == *expected, "{engine}: kept connection, round {round}, file {file}");
                let reply = Client::connect(address).get(&format!("/{file}"));
                assert!(reply.body == *expected, "{engine}: new connection, round {round}, file {file}");
            }
        }
    });
    assert!(cuts.load(Ordering::Relaxed) > 20, "{engine}: only {cuts:?} responses were cut");
    // Everything borrowed has come home.
    if !crate::support::against_nginx() {
        crate::support::eventually("nothing is busy after the storm", std::time::Duration::from_secs(5), || {
            let metrics = server.metrics();
            metrics.sum("ringway_pipes", &[("state", "busy")]) == 0.0
                && metrics.sum("ringway_connections", &[("state", "writing")]) == 0.0
        });
        let aborted = server.metrics().sum("ringway_http_aborted_responses_total", &[]);
        assert!(aborted > 0.0, "cut responses are counted");
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn auto_keeps_responses_apart() {
    bytes_stay_apart_after_disconnects("auto");
}

#[test]
fn send_keeps_responses_apart() {
    bytes_stay_apart_after_disconnects("send");
}

#[test]
fn send_zc_keeps_responses_apart() {
    bytes_stay_apart_after_disconnects("send-zc");
}

#[test]
fn splice_keeps_responses_apart() {
    bytes_stay_apart_after_disconnects("splice");
}

#[test]
fn sendfile_keeps_responses_apart() {
    bytes_stay_apart_after_disconnects("sendfile");
}

#[test]
fn two_clients_that_interleave_get_their_own_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<Vec<u8>> =
        (0..4).map(|file| tree::put(folder.path(), &format!("{file}"), 2000 + file, tree::MIB)).collect();
    for engine in ENGINES {
        let server = Start::new(folder.path()).engine(engine).spawn();
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect_small(server.address())).collect();
        for (file, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /{file} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
            assert_eq!(client.head().length(), Some(tree::MIB));
        }
        // A sip of each in turn: all four are always in the middle of something.
        for step in 0..64usize {
            for (file, client) in clients.iter_mut().enumerate() {
                let mut at = step * 16 * 1024;
                client.read_body(16 * 1024, |bytes| {
                    assert!(bytes == &contents[file][at..at + bytes.len()], "{engine}: file {file} behind {at}");
                    at += bytes.len();
                });
                assert_eq!(at, (step + 1) * 16 * 1024, "{engine}: file {file} ended early");
            }
        }
    }
}
