//! Files that change while they are served.

use crate::support::{Client, ENGINES, Start, against_nginx, eventually, process, tree};
use std::io::Write;
use std::time::{Duration, Instant};

#[test]
fn a_replaced_file_is_served_new_while_old_transfers_finish_old() {
    let size = 24 * tree::MIB;
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let old = tree::put(folder.path(), "file", 1, size);
        let server = Start::new(folder.path()).engine(engine).with("--revalidate", "300ms").spawn();
        let mut slow = Client::connect_small(server.address());
        slow.send(b"GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
        let head = slow.head();
        let mut got = Vec::new();
        slow.read_body(100_000, |bytes| got.extend_from_slice(bytes));
        let new = tree::put(folder.path(), "file.new", 2, size - 1);
        std::fs::rename(folder.path().join("file.new"), folder.path().join("file")).unwrap();
        let mut client = server.client();
        let start = Instant::now();
        eventually("the new file is served", Duration::from_secs(3), || {
            let reply = client.get_with("/file", "Range: bytes=1000-1999\r\n");
            assert_eq!(reply.status, 206);
            reply.body == new[1000..2000]
        });
        // nginx is told one second; ours was told 300 ms, and a busy machine gets as much again.
        assert!(against_nginx() || start.elapsed() < Duration::from_millis(1300), "{engine}: {:?}", start.elapsed());
        let whole = client.get("/file");
        assert!(whole.body == new, "{engine}: the new file is whole");
        slow.read_body(head.length().unwrap() - got.len() as u64, |bytes| got.extend_from_slice(bytes));
        assert!(got == old, "{engine}: the old transfer finishes with the old content");
        // Its connection may be on another core, whose cache is as stale as it was told; then it gets the new one.
        eventually("the old connection sees the new file", Duration::from_secs(2), || {
            slow.head_of("/file").length() == Some(size - 1)
        });
    }
}

#[test]
fn a_truncated_file_ends_its_transfer_at_once_without_spinning() {
    let size = 64 * tree::MIB;
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let content = tree::put(folder.path(), "file", 3, size);
        let server = Start::new(folder.path()).engine(engine).spawn();
        let mut client = Client::connect_small(server.address());
        client.send(b"GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().length(), Some(size));
        let mut at = 0;
        client.read_body(1_000_000, |bytes| {
            assert!(bytes == &content[at..at + bytes.len()]);
            at += bytes.len();
        });
        std::fs::File::options().write(true).open(folder.path().join("file")).unwrap().set_len(0).unwrap();
        let start = Instant::now();
        let rest = client.read_body(size - 1_000_000, |_| ());
        assert!(rest < size - 1_000_000, "{engine}: bytes that no longer exist");
        assert!(start.elapsed() < Duration::from_secs(2), "{engine}: ended after {:?}", start.elapsed());
        // CPU over a while in which nobody asks for anything; the window is what is measured.
        let pids = server.pids();
        let before = process::Cpu::of(&pids);
        std::thread::sleep(Duration::from_millis(300));
        let used = Duration::from_nanos(process::Cpu::of(&pids).since(before));
        assert!(used < Duration::from_millis(100), "{engine}: {used:?} of CPU in 300 ms");
        if !against_nginx() {
            let aborted = server.metrics().sum("ringway_http_aborted_responses_total", &[]);
            assert!(aborted >= 1.0, "{engine}: counted");
        }
        // The file as it now is: empty.
        eventually("the new length is told", Duration::from_secs(3), || {
            server.client().head_of("/file").length() == Some(0)
        });
    }
}

#[test]
fn a_file_that_grows_between_requests_is_always_consistent() {
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let content = tree::content(5, 200_000);
        std::fs::write(&path, &content[..1000]).unwrap();
        let server = Start::new(folder.path()).engine(engine).spawn();
        let mut client = server.client();
        let mut length = 1000;
        for step in 0..100 {
            let reply = client.get("/log");
            assert_eq!(reply.status, 200, "{engine}, step {step}");
            assert!(reply.body.len() <= length, "{engine}, step {step}");
            assert!(reply.body == content[..reply.body.len()], "{engine}, step {step}: not a prefix");
            let mut file = std::fs::File::options().append(true).open(&path).unwrap();
            file.write_all(&content[length..length + 1777]).unwrap();
            length += 1777;
        }
        eventually("the whole length is served", Duration::from_secs(3), || client.get("/log").body.len() == length);
    }
}

#[test]
fn a_removed_file_still_finishes() {
    let size = 16 * tree::MIB;
    let folder = tempfile::tempdir().unwrap();
    let content = tree::put(folder.path(), "file", 4, size);
    let server = Start::new(folder.path()).spawn();
    let mut client = Client::connect_small(server.address());
    client.send(b"GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.head();
    std::fs::remove_file(folder.path().join("file")).unwrap();
    assert!(client.body(&head) == content);
    eventually("a removed file is gone", Duration::from_secs(3), || server.client().get("/file").status == 404);
}
