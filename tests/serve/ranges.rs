//! Byte ranges and conditional requests: the rows at which other servers broke.

use crate::support::{Server, Start, tree};

const FILE: &[u8] = b"hello";

fn site() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("five.txt"), FILE).unwrap();
    std::fs::write(folder.path().join("empty.txt"), "").unwrap();
    let server = Start::new(folder.path()).spawn();
    (folder, server)
}

#[test]
fn single_ranges_give_their_bytes() {
    let (_folder, server) = site();
    let mut client = server.client();
    for (range, expected, told) in [
        ("bytes=0-4", "hello", "bytes 0-4/5"),
        ("bytes=0-0", "h", "bytes 0-0/5"),
        ("bytes=1-3", "ell", "bytes 1-3/5"),
        ("bytes=3-", "lo", "bytes 3-4/5"),
        ("bytes=4-", "o", "bytes 4-4/5"),
        ("bytes=-1", "o", "bytes 4-4/5"),
        ("bytes=-5", "hello", "bytes 0-4/5"),
        // Past the end is cut, not refused.
        ("bytes=0-9", "hello", "bytes 0-4/5"),
        ("bytes=2-99999999999", "llo", "bytes 2-4/5"),
        ("bytes=-6", "hello", "bytes 0-4/5"),
        ("bytes=-9223372036854775807", "hello", "bytes 0-4/5"),
    ] {
        let reply = client.get_with("/five.txt", &format!("Range: {range}\r\n"));
        assert_eq!(reply.status, 206, "{range}");
        assert_eq!(reply.header("content-range"), Some(told), "{range}");
        assert_eq!(reply.length(), Some(expected.len() as u64), "{range}: a length, never chunked");
        assert_eq!(reply.body, expected.as_bytes(), "{range}");
    }
}

#[test]
fn unsatisfiable_ranges_are_told_the_size() {
    let (_folder, server) = site();
    let mut client = server.client();
    for range in ["bytes=5-", "bytes=5-9", "bytes=99-100", "bytes=-0"] {
        let reply = client.get_with("/five.txt", &format!("Range: {range}\r\n"));
        assert_eq!(reply.status, 416, "{range}");
        assert_eq!(reply.header("content-range"), Some("bytes */5"), "{range}");
    }
}

#[test]
fn nonsense_ranges_harm_nothing() {
    let (_folder, server) = site();
    let mut client = server.client();
    for range in [
        "bytes=",
        "bytes=,,,",
        "bytes=-",
        "bytes=a-b",
        "bytes=3-1",
        "bytes 0-1",
        "bytes",
        "lines=0-1",
        "bytes=0-1-2",
        "bytes=99999999999999999999999-",
        "bytes=0x0-0x1",
        "bytes=-9223372036854775808",
        "bytes=-18446744073709551616",
        "bytes=0-18446744073709551615",
        "bytes=+0-1",
        "bytes= 0 - 1",
    ] {
        let reply = client.get_with("/five.txt", &format!("Range: {range}\r\n"));
        match reply.status {
            200 => assert_eq!(reply.body, FILE, "{range}"),
            206 => assert_eq!(reply.length(), Some(reply.body.len() as u64)),
            416 => {}
            other => panic!("{range}: {other}"),
        }
        assert!(reply.status == 416 || !reply.body.is_empty(), "{range}");
        assert_eq!(client.get("/five.txt").body, FILE, "after {range}");
    }
}

#[test]
fn a_range_of_an_empty_file_does_not_hang() {
    let (_folder, server) = site();
    let mut client = server.client();
    for range in ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=-5"] {
        let reply = client.get_with("/empty.txt", &format!("Range: {range}\r\n"));
        match reply.status {
            200 => assert_eq!(reply.length(), Some(0)),
            416 => assert_eq!(reply.header("content-range"), Some("bytes */0")),
            other => panic!("{range}: {other}"),
        }
    }
    assert_eq!(client.get("/five.txt").body, FILE);
}

#[test]
fn many_ranges_give_the_file_once() {
    let size = tree::MIB;
    let server = Start::new(tree::shared()).spawn();
    let mut client = server.client();
    let thousand = vec!["0-"; 1000].join(",");
    let long = vec!["1-2"; 2000].join(",");
    for range in ["0-1,3-4", "-9223372036854775000,-1", "0-,0-,0-", "5-6,", thousand.as_str(), long.as_str()] {
        let reply = client.get_with(&format!("/{size}.bin"), &format!("Range: bytes={range}\r\n"));
        assert!(matches!(reply.status, 200 | 206 | 416 | 431), "{}: {}", &range[..range.len().min(20)], reply.status);
        assert!(reply.body.len() as u64 <= size + 1024, "amplified: {} bytes", reply.body.len());
        if !crate::support::against_nginx() && reply.status == 200 {
            assert_eq!(crate::support::sha256(&reply.body), tree::hash_of(size));
        }
        if reply.closes() {
            client = server.client();
        }
    }
}

#[test]
fn conditions_are_judged_as_the_standard_says() {
    let (_folder, server) = site();
    let mut client = server.client();
    let plain = client.get("/five.txt");
    let tag = plain.header("etag").unwrap().to_owned();
    let date = plain.header("last-modified").unwrap().to_owned();
    let (old, new) = ("Mon, 01 Jan 1990 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT");
    for (headers, status) in [
        (format!("If-None-Match: {tag}\r\n"), 304),
        (format!("If-None-Match: W/{tag}\r\n"), 304),
        (format!("If-None-Match: \"x\", {tag}\r\n"), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200),
        (format!("If-Modified-Since: {date}\r\n"), 304),
        (format!("If-Modified-Since: {old}\r\n"), 200),
        ("If-Modified-Since: yesterday\r\n".to_owned(), 200),
        // If-None-Match silences If-Modified-Since.
        (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {date}\r\n"), 200),
        (format!("If-None-Match: {tag}\r\nIf-Modified-Since: {old}\r\n"), 304),
        (format!("If-Match: {tag}\r\n"), 200),
        ("If-Match: *\r\n".to_owned(), 200),
        (format!("If-Match: \"x\", {tag}\r\n"), 200),
        ("If-Match: \"x\"\r\n".to_owned(), 412),
        (format!("If-Match: W/{tag}\r\n"), 412),
        (format!("If-Unmodified-Since: {date}\r\n"), 200),
        (format!("If-Unmodified-Since: {new}\r\n"), 200),
        (format!("If-Unmodified-Since: {old}\r\n"), 412),
        // If-Match silences If-Unmodified-Since.
        (format!("If-Match: {tag}\r\nIf-Unmodified-Since: {old}\r\n"), 200),
        // A matching If-Match on a range is no 412.
        (format!("If-Match: {tag}\r\nRange: bytes=1-2\r\n"), 206),
        ("If-Match: \"x\"\r\nRange: bytes=1-2\r\n".to_owned(), 412),
        (format!("If-None-Match: {tag}\r\nRange: bytes=1-2\r\n"), 304),
    ] {
        let reply = client.get_with("/five.txt", &headers);
        assert_eq!(reply.status, status, "{headers:?}");
        match status {
            200 => assert_eq!(reply.body, FILE),
            206 => assert_eq!(reply.body, &FILE[1..=2]),
            304 => assert_eq!(reply.header("etag"), Some(tag.as_str()), "304 tells the tag"),
            _ => {}
        }
    }
}

#[test]
fn if_range_compares_strongly() {
    let (_folder, server) = site();
    let mut client = server.client();
    let plain = client.get("/five.txt");
    let tag = plain.header("etag").unwrap().to_owned();
    let date = plain.header("last-modified").unwrap().to_owned();
    let reply = client.get_with("/five.txt", &format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n"));
    assert_eq!((reply.status, reply.body.as_slice()), (206, &FILE[1..=2]));
    let another = "Mon, 01 Jan 1990 00:00:01 GMT";
    for condition in ["\"stale\"", &format!("W/{tag}"), another, "nonsense", &date.replace(" 20", " 19")] {
        let reply = client.get_with("/five.txt", &format!("Range: bytes=1-2\r\nIf-Range: {condition}\r\n"));
        assert_eq!((reply.status, reply.body.as_slice()), (200, FILE), "If-Range: {condition}");
    }
    // A date that equals Last-Modified may count only if it is a strong validator; both answers are whole.
    let reply = client.get_with("/five.txt", &format!("Range: bytes=1-2\r\nIf-Range: {date}\r\n"));
    assert!(matches!(reply.status, 200 | 206));
}

#[test]
fn validators_are_the_same_on_200_206_304_and_head() {
    let (_folder, server) = site();
    let mut client = server.client();
    let full = client.get("/five.txt");
    let tag = full.header("etag").unwrap().to_owned();
    let part = client.get_with("/five.txt", "Range: bytes=0-1\r\n");
    let none = client.get_with("/five.txt", &format!("If-None-Match: {tag}\r\n"));
    let head = client.head_of("/five.txt");
    for other in [&part.head, &none.head, &head] {
        assert_eq!(other.header("etag"), Some(tag.as_str()), "{other:?}");
        assert!(other.header("date").is_some());
    }
    assert_eq!(part.header("last-modified"), full.header("last-modified"));
    assert_eq!(part.header("content-type"), full.header("content-type"));
    assert!(none.body.is_empty());
}
