//! HTTP/1.1 and 1.0 on the wire: keep-alive, pipelining, methods, bodies nobody wanted, and what must be refused.

use crate::support::{Client, Server, Start, tree};
use std::time::Duration;

fn small_site() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "content of a").unwrap();
    std::fs::write(folder.path().join("b.txt"), "what b says, which is longer").unwrap();
    std::fs::write(folder.path().join("index.html"), "<title>home</title>").unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("sub/index.html"), "<title>sub</title>").unwrap();
    std::fs::create_dir(folder.path().join("bare")).unwrap();
    let server = Start::new(folder.path()).spawn();
    (folder, server)
}

#[test]
fn a_file_has_the_headers_people_rely_on() {
    let (_folder, server) = small_site();
    let reply = server.client().get("/a.txt");
    assert_eq!((reply.status, reply.body.as_slice()), (200, b"content of a".as_slice()));
    assert_eq!(reply.version, "HTTP/1.1");
    assert_eq!(reply.header("accept-ranges"), Some("bytes"));
    let kind = reply.header("content-type").expect("Content-Type").to_ascii_lowercase();
    assert!(kind.starts_with("text/plain") && kind.contains("charset=utf-8"), "{kind}");
    for name in ["date", "last-modified"] {
        let value = reply.header(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(value.len() == 29 && value.ends_with(" GMT"), "{name}: {value}");
    }
    assert!(reply.header("server").is_some());
    let tag = reply.header("etag").expect("ETag");
    assert!(tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2, "a strong tag: {tag}");
    assert!(reply.header("transfer-encoding").is_none());
    assert!(!reply.closes());
}

#[test]
fn the_tag_is_made_of_time_and_size_alone() {
    use std::os::unix::fs::MetadataExt;
    let (folder, server) = small_site();
    let file = folder.path().join("a.txt");
    let before = server.client().get("/a.txt");
    let told = file.metadata().unwrap();
    if !crate::support::against_nginx() {
        let nanoseconds = i128::from(told.mtime()) * 1_000_000_000 + i128::from(told.mtime_nsec());
        let expected = format!("\"{nanoseconds:x}-{:x}\"", told.len());
        assert_eq!(before.header("etag"), Some(expected.as_str()));
    }
    // The same content with the same time in another inode has the same tag: every node of a farm answers alike.
    let twin = folder.path().join("twin.txt");
    std::fs::copy(&file, &twin).unwrap();
    std::fs::File::options().write(true).open(&twin).unwrap().set_modified(told.modified().unwrap()).unwrap();
    assert_eq!(server.client().get("/twin.txt").header("etag"), before.header("etag"));
}

#[test]
fn head_tells_the_length_and_sends_nothing() {
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    for size in tree::SIZES {
        let path = format!("/{size}.bin");
        let head = client.head_of(&path);
        assert_eq!((head.status, head.length()), (200, Some(size)));
        // The same connection, the next byte: were there a body, this head would not parse.
        let mut full = client.get_with(&path, "Range: bytes=0-0\r\n");
        if size > 0 {
            assert_eq!(full.status, 206);
        }
        for name in ["etag", "last-modified", "content-type", "accept-ranges"] {
            if size > 0 && name != "accept-ranges" {
                assert_eq!(head.header(name), full.header(name), "{name}");
            }
        }
        full.body.clear();
    }
}

#[test]
fn a_connection_serves_many_requests_and_closes_when_asked() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    for _ in 0..300 {
        assert_eq!(client.get("/a.txt").body, b"content of a");
        assert_eq!(client.get("/none").status, 404);
        assert_eq!(client.get("/b.txt").body, b"what b says, which is longer");
    }
    let last = client.get_with("/a.txt", "Connection: close\r\n");
    assert!(last.closes(), "the answer says what will happen");
    assert!(client.ends_within(Duration::from_secs(2)));
}

#[test]
fn http_1_0_closes_unless_asked_to_stay() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    let reply = client.exchange(b"GET /a.txt HTTP/1.0\r\n\r\n");
    assert_eq!((reply.status, reply.body.as_slice()), (200, b"content of a".as_slice()));
    assert!(client.ends_within(Duration::from_secs(2)), "1.0 without keep-alive");
    let mut client = server.client();
    for _ in 0..3 {
        let reply = client.exchange(b"GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(reply.body, b"content of a");
        let answer = reply.header("connection").unwrap_or_default().to_ascii_lowercase();
        assert_eq!(answer, "keep-alive", "a 1.0 client must be told");
    }
}

const THREE: &[u8] = b"GET /a.txt HTTP/1.1\r\nHost: test\r\n\r\n\
    GET /sub/ HTTP/1.1\r\nHost: test\r\nX-Long: some more bytes\r\n\r\n\
    GET /b.txt HTTP/1.1\r\nHost: test\r\n\r\n";

fn expect_three(client: &mut Client, when: &str) {
    assert_eq!(client.reply().body, b"content of a", "{when}");
    assert_eq!(client.reply().body, b"<title>sub</title>", "{when}");
    assert_eq!(client.reply().body, b"what b says, which is longer", "{when}");
}

#[test]
fn pipelined_requests_may_be_split_at_every_byte() {
    let (_folder, server) = small_site();
    for split in 0..=THREE.len() {
        let mut client = server.client();
        client.send(&THREE[..split]);
        // Where the first part holds whole requests, their answers come before the rest is sent: the split is real.
        let whole = THREE[..split].windows(4).filter(|window| *window == b"\r\n\r\n").count();
        let mut early = Vec::new();
        for _ in 0..whole {
            early.push(client.reply().body);
        }
        client.send(&THREE[split..]);
        while early.len() < 3 {
            early.push(client.reply().body);
        }
        let expected: [&[u8]; 3] = [b"content of a", b"<title>sub</title>", b"what b says, which is longer"];
        assert_eq!(early, expected, "split at {split}");
    }
}

#[test]
fn requests_may_come_byte_by_byte() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    for byte in THREE {
        client.send(std::slice::from_ref(byte));
    }
    expect_three(&mut client, "byte by byte");
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    client.send(&THREE.repeat(60));
    for round in 0..60 {
        expect_three(&mut client, &format!("round {round}"));
    }
}

#[test]
fn pipelined_large_and_small_bodies_stay_in_order() {
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    let sizes = [tree::MIB + 1, 1, 65537, 0, tree::MIB, 4096];
    for size in sizes {
        client.send(format!("GET /{size}.bin HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
    }
    for size in sizes {
        let head = client.head();
        assert_eq!(head.length(), Some(size));
        assert_eq!(client.hash_body(size).1, tree::hash_of(size), "{size}");
    }
}

#[test]
fn a_client_that_sends_fin_behind_its_request_gets_its_answer() {
    let server = Start::new(tree::shared()).spawn();
    for size in [1, 65537, 16 * tree::MIB] {
        let mut client = server.client();
        client.send(format!("GET /{size}.bin HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let head = client.head();
        assert_eq!(client.hash_body(head.length().unwrap()), (size, tree::hash_of(size)), "{size}");
    }
}

#[test]
fn methods_are_told_apart() {
    let (_folder, server) = small_site();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        let mut client = server.client();
        let reply =
            client.exchange(format!("{method} /a.txt HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").as_bytes());
        assert_eq!(reply.status, 405, "{method}");
        if !crate::support::against_nginx() {
            let allow = reply.header("allow").unwrap_or_else(|| panic!("Allow is missing for {method}"));
            assert!(allow.contains("GET") && allow.contains("HEAD"), "{allow}");
        }
    }
    for method in ["BREW", "GETX", "get"] {
        let reply = server.client().exchange(format!("{method} /a.txt HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        assert!(matches!(reply.status, 501), "{method}: {}", reply.status);
    }
}

#[test]
fn a_directory_has_an_index_or_a_redirect_or_nothing() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    assert_eq!(client.get("/").body, b"<title>home</title>");
    let kind = client.get("/");
    assert!(kind.header("content-type").unwrap().starts_with("text/html"), "{kind:?}");
    let moved = client.get("/sub");
    assert_eq!(moved.status, 301);
    let to = moved.header("location").expect("Location");
    assert!(to == "/sub/" || to.ends_with("/sub/"), "{to}");
    assert_eq!(client.get("/sub/").body, b"<title>sub</title>");
    assert!(matches!(client.get("/bare/").status, 403 | 404));
    assert_eq!(client.get("/a.txt/").status, 404, "a file is no directory");
    let asked = client.get("/sub?x=1");
    assert_eq!(asked.status, 301);
    // A redirect never leads to another host, however the path begins.
    let odd = client.get("//sub");
    if odd.status == 301 {
        assert!(!odd.header("location").unwrap().starts_with("//"), "{odd:?}");
    }
}

#[test]
fn queries_do_not_name_files() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    assert_eq!(client.get("/a.txt?download=1&x=%2e%2e").body, b"content of a");
    assert_eq!(client.get("/?").body, b"<title>home</title>");
}

#[test]
fn absolute_form_is_understood() {
    let (_folder, server) = small_site();
    let reply = server.client().exchange(b"GET http://test/a.txt HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!((reply.status, reply.body.as_slice()), (200, b"content of a".as_slice()));
}

#[test]
fn unwanted_bodies_are_never_the_next_request() {
    let (_folder, server) = small_site();
    // Bodies that look like requests: whoever reads them as such answers once too often.
    let bodies: [&[u8]; 3] = [b"hello", b"GET /b.txt HTTP/1.1\r\nHost: test\r\n\r\n", b""];
    for method in ["GET", "HEAD", "POST"] {
        for body in bodies {
            let with_length = [
                format!("{method} /a.txt HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
                body,
            ]
            .concat();
            let mut chunked =
                format!("{method} /a.txt HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
            for piece in body.chunks(3) {
                chunked.extend_from_slice(format!("{:x};ext=1\r\n", piece.len()).as_bytes());
                chunked.extend_from_slice(piece);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\nTrailer: yes\r\n\r\n");
            for (form, request) in [("length", with_length), ("chunked", chunked)] {
                let mut client = server.client();
                client.send(&request);
                client.send(b"GET /sub/ HTTP/1.1\r\nHost: test\r\n\r\n");
                let head = client.head();
                if method != "HEAD" {
                    client.body(&head);
                }
                let expected: &[u16] = if method == "POST" { &[405] } else { &[200, 400, 413] };
                assert!(expected.contains(&head.status), "{method} {form}: {head:?}");
                // Either the connection ends, or the next answer is the next request's.
                match client.try_head().unwrap() {
                    None => assert!(head.closes(), "closed without a word: {method} {form} {head:?}"),
                    Some(next) => {
                        assert!(!head.closes());
                        assert_eq!(client.body(&next), b"<title>sub</title>", "{method} {form}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_body_split_at_every_byte_is_still_no_request() {
    let (_folder, server) = small_site();
    let request = b"GET /a.txt HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nGET /\r\n3\r\n\r\n\r\r\n0\r\n\r\n";
    for split in 1..request.len() {
        let mut client = server.client();
        client.send(&request[..split]);
        client.send(&request[split..]);
        let reply = client.reply();
        if reply.status == 200 && !reply.closes() {
            assert_eq!(client.get("/b.txt").body, b"what b says, which is longer", "split at {split}");
        }
    }
}

#[test]
fn ambiguous_framing_is_refused_and_the_connection_ends() {
    let (_folder, server) = small_site();
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        " Folded: yes\r\n",
        "X: a\r\n b\r\n",
        "X\0Y: 1\r\n",
        "X: a\0b\r\n",
        "X: a\rb\r\n",
        "no colon here\r\n",
        ": empty name\r\n",
    ] {
        let mut client = server.client();
        // The tail would be a second request to whoever misjudges the first.
        let request = format!(
            "POST /a.txt HTTP/1.1\r\nHost: test\r\n{headers}\r\n0\r\n\r\nGET /b.txt HTTP/1.1\r\nHost: test\r\n\r\n"
        );
        client.send(request.as_bytes());
        let reply = client.reply();
        assert!(matches!(reply.status, 400 | 413 | 501), "{headers:?}: {}", reply.status);
        assert!(client.ends_within(Duration::from_secs(5)), "{headers:?}: something behind a refusal");
    }
}

#[test]
fn chunked_in_http_1_0_is_refused() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    let request = b"GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
        GET /b.txt HTTP/1.1\r\nHost: test\r\n\r\n";
    client.send(request);
    let reply = client.reply();
    // RFC 9112 6.1: the framing is faulty; whatever is answered, the connection must end.
    assert!(matches!(reply.status, 200 | 400 | 501), "{}", reply.status);
    assert!(client.ends_within(Duration::from_secs(5)));
}

#[test]
fn bad_chunks_end_the_connection() {
    let (_folder, server) = small_site();
    for body in [
        "z\r\nhello\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "ffffffffffffffffff\r\n",
        "-1\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
    ] {
        let mut client = server.client();
        let head = "GET /a.txt HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{body}GET /b.txt HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        if let Some(head) = client.try_head().unwrap() {
            client.body(&head);
            assert!(client.ends_within(Duration::from_secs(5)), "{body:?}: something behind a bad chunk");
        }
    }
}

#[test]
fn a_request_needs_one_host() {
    let (_folder, server) = small_site();
    for headers in ["", "Host: a\r\nHost: b\r\n", "Host: a b\r\n"] {
        let reply = server.client().exchange(format!("GET /a.txt HTTP/1.1\r\n{headers}\r\n").as_bytes());
        assert_eq!(reply.status, 400, "{headers:?}");
    }
}

#[test]
fn broken_request_lines_are_refused() {
    let (_folder, server) = small_site();
    for (line, allowed) in [
        ("GET /a.txt HTTP/2.0", &[505][..]),
        ("GET /a.txt HTTP/3.1", &[505]),
        ("GET /a.txt HTTP/0.9", &[400, 505]),
        ("GET /a.txt HTTP/1.1.1", &[400, 505]),
        ("GET /a.txt http/1.1", &[400]),
        ("GET  /a.txt HTTP/1.1", &[400]),
        ("GET /a b.txt HTTP/1.1", &[400, 505]),
        ("GET a.txt HTTP/1.1", &[400]),
        ("/a.txt", &[400]),
        ("\x16\x03\x01\x02", &[400]),
    ] {
        let mut client = server.client();
        client.send(format!("{line}\r\nHost: test\r\n\r\n").as_bytes());
        let reply = client.reply();
        assert!(allowed.contains(&reply.status), "{line:?}: {}", reply.status);
        assert!(client.ends_within(Duration::from_secs(5)), "{line:?}: refused, and closed");
    }
    // And the server goes on.
    assert_eq!(server.client().get("/a.txt").status, 200);
}

#[test]
fn empty_lines_before_a_request_are_forgiven() {
    let (_folder, server) = small_site();
    // RFC 9112 2.2: at least one, for old clients that end a body with one too many.
    let reply = server.client().exchange(b"\r\nGET /a.txt HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(reply.status, 200);
}

#[test]
fn expectations_do_not_stop_the_answer() {
    let (_folder, server) = small_site();
    let mut client = server.client();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut head = client.head();
    if head.status == 100 {
        client.send(b"hello");
        head = client.head();
    }
    assert!(matches!(head.status, 200 | 413 | 417), "{head:?}");
}

#[test]
fn a_refusal_has_a_short_plain_body() {
    let (_folder, server) = small_site();
    let reply = server.client().get("/none");
    assert_eq!(reply.status, 404);
    assert!(!reply.body.is_empty() && reply.body.len() < 1024, "{}", reply.body.len());
    if !crate::support::against_nginx() {
        assert!(reply.header("content-type").unwrap().starts_with("text/plain"));
    }
}
