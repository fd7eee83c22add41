//! Ending: finish what is in flight, refuse what is new, keep the deadline, obey the second signal.

use crate::support::{Client, Start, against_nginx, eventually, tree};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

/// As many downloads as asked for, each in the middle: far more is left than the kernel holds.
fn in_the_middle(address: SocketAddr, path: &str, count: usize) -> Vec<Client> {
    (0..count)
        .map(|_| {
            let mut client = Client::connect_small(address);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
            assert_eq!(client.head().status, 200);
            client
        })
        .collect()
}

#[test]
fn a_hundred_downloads_finish_byte_exact_after_sigterm() {
    if against_nginx() {
        return;
    }
    let size = 16 * tree::MIB;
    for engine in ["auto", "splice"] {
        let mut server = Start::new(tree::shared()).engine(engine).spawn();
        let address = server.address();
        let mut clients = in_the_middle(address, &format!("/{size}.bin"), 100);
        let mut idle = server.client();
        assert_eq!(idle.get("/1.bin").status, 200);
        server.term();
        eventually("new connections are refused", Duration::from_secs(3), || refuses(address));
        assert!(idle.ends_within(Duration::from_secs(3)), "an idle connection ends at once");
        let expected = tree::hash_of(size);
        std::thread::scope(|scope| {
            for part in clients.chunks_mut(25) {
                let expected = &expected;
                scope.spawn(move || {
                    for client in part {
                        assert_eq!(client.hash_body(size), (size, expected.clone()), "{engine}");
                        assert!(client.ends_within(Duration::from_secs(3)), "{engine}: closed when done");
                    }
                });
            }
        });
        let status = server.end(Duration::from_secs(10)).expect("ends when the last download has ended");
        assert_eq!(status.code(), Some(0), "{engine}:\n{}", server.log.text());
    }
}

#[test]
fn a_request_that_was_under_way_is_answered_with_close() {
    if against_nginx() {
        return;
    }
    let mut server = Start::new(tree::shared()).spawn();
    let address = server.address();
    // Something that keeps the drain going meanwhile.
    let mut other = in_the_middle(address, &format!("/{}.bin", 16 * tree::MIB), 1).remove(0);
    let mut half = server.client();
    half.send(b"GET /4096.bin HTTP/1.1\r\nHo");
    // The server has surely seen the half request once it has answered a later connection on every core.
    for _ in 0..8 {
        assert_eq!(server.client().get("/1.bin").status, 200);
    }
    server.term();
    eventually("new connections are refused", Duration::from_secs(3), || refuses(address));
    let _ = std::io::Write::write_all(&mut half.stream, b"st: test\r\n\r\n");
    if let Ok(Some(head)) = half.try_head() {
        assert!(head.closes(), "{head:?}");
        assert_eq!(half.body(&head).len(), 4096);
    }
    assert_eq!(other.hash_body(16 * tree::MIB).1, tree::hash_of(16 * tree::MIB));
    assert_eq!(server.end(Duration::from_secs(10)).and_then(|status| status.code()), Some(0));
}

#[test]
fn an_idle_server_ends_at_once() {
    if against_nginx() {
        return;
    }
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Start::new(tree::shared()).spawn();
        let mut client = server.client();
        assert_eq!(client.get("/1.bin").status, 200);
        let start = Instant::now();
        server.signal(signal);
        let status = server.end(Duration::from_secs(5)).expect("nothing is in flight");
        assert!(start.elapsed() < Duration::from_secs(3));
        assert_eq!(status.code(), Some(0), "{signal:?}");
    }
}

#[test]
fn a_second_signal_stops_at_once() {
    if against_nginx() {
        return;
    }
    for second in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Start::new(tree::shared()).spawn();
        let address = server.address();
        let _stuck = in_the_middle(address, &format!("/{}.bin", 64 * tree::MIB), 3);
        server.term();
        eventually("new connections are refused", Duration::from_secs(3), || refuses(address));
        assert!(server.end(Duration::from_millis(200)).is_none(), "it waits for the downloads");
        let start = Instant::now();
        server.signal(second);
        assert!(server.end(Duration::from_secs(5)).is_some(), "a second signal is obeyed");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[test]
fn the_drain_has_a_deadline() {
    if against_nginx() {
        return;
    }
    for engine in ["auto", "send-zc", "splice"] {
        let mut server = Start::new(tree::shared()).engine(engine).with("--drain-timeout", "1s").spawn();
        let _stuck = in_the_middle(server.address(), &format!("/{}.bin", 64 * tree::MIB), 3);
        let start = Instant::now();
        server.term();
        let status = server.end(Duration::from_secs(10)).expect("ends by its deadline");
        let took = start.elapsed();
        assert!(took > Duration::from_millis(800) && took < Duration::from_secs(4), "{engine}: {took:?}");
        assert!(status.code().is_some(), "{engine}: ended by a signal: {status}");
    }
}

#[test]
fn readiness_ends_with_the_drain() {
    if against_nginx() {
        return;
    }
    let mut server = Start::new(tree::shared()).spawn();
    let admin = server.admin.expect("admin");
    let ask = |path: &str| {
        let stream = TcpStream::connect(admin).ok()?;
        let mut client = Client::over(stream);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").as_bytes());
        client.try_head().ok().flatten().map(|head| head.status)
    };
    assert_eq!((ask("/readyz"), ask("/healthz")), (Some(200), Some(200)));
    let _stuck = in_the_middle(server.address(), &format!("/{}.bin", 64 * tree::MIB), 1);
    server.term();
    eventually("not ready while draining", Duration::from_secs(3), || ask("/readyz") == Some(503));
    assert_eq!(ask("/healthz"), Some(200), "alive while draining");
    server.term();
    assert!(server.end(Duration::from_secs(5)).is_some());
}
