//! The origin itself, asked directly: a test whose origin lies proves nothing.

use crate::support::origin::{Content, Fault, Framing, Object, Origin};
use crate::support::{Client, s3, sha256};
use std::time::{Duration, Instant};

#[test]
fn content_is_the_same_from_wherever_it_is_read() {
    let content = Content::new(7);
    let whole = content.range(0, 200_000);
    for (first, length) in [(0, 1), (1, 7), (3, 5), (32_765, 11), (32_768, 8), (65_529, 70_001), (199_999, 1)] {
        assert!(content.range(first, length) == whole[first as usize..][..length as usize], "{length} at {first}");
    }
    assert_eq!(content.hash(200_000), sha256(&whole));
    assert!(Content::new(8).range(0, 64) != whole[..64] && content.range(1 << 32, 64) != whole[..64]);
}

#[test]
fn ranges_conditions_and_methods_follow_the_rfc() {
    let origin = Origin::start();
    let object = Object::new(1, 100_000).modified_ago(1000).fresh(60);
    origin.put("/a", &object);
    let mut client = Client::connect(origin.address());
    let whole = client.get("/a");
    assert_eq!((whole.status, whole.header("etag")), (200, Some("\"v1\"")));
    assert!(whole.body == object.bytes());
    let modified = whole.header("last-modified").unwrap().to_owned();
    let table = [
        ("Range: bytes=10-19\r\n", 206),
        ("Range: bytes=10-19\r\nIf-Range: \"v1\"\r\n", 206),
        ("Range: bytes=10-19\r\nIf-Range: \"v2\"\r\n", 200),
        ("Range: bytes=100000-\r\n", 416),
        ("If-None-Match: W/\"v1\"\r\n", 304),
        ("If-None-Match: \"v2\"\r\n", 200),
        ("If-Match: \"v2\"\r\n", 412),
        ("If-Match: \"v1\"\r\n", 200),
    ];
    for (headers, status) in table {
        let reply = client.get_with("/a", headers);
        assert_eq!(reply.status, status, "{headers}");
        if status == 206 {
            assert!(reply.body == object.content.range(10, 10), "{headers}");
            assert_eq!(reply.header("content-range"), Some("bytes 10-19/100000"));
        }
    }
    for (date, status) in [(modified.as_str(), 304), ("Thu, 01 Jan 1970 00:00:01 GMT", 200)] {
        assert_eq!(client.get_with("/a", &format!("If-Modified-Since: {date}\r\n")).status, status);
    }
    assert_eq!(client.get_with("/a", "Range: bytes=-5\r\n").body, object.content.range(99_995, 5));
    assert_eq!(client.head_of("/a").length(), Some(100_000));
    assert_eq!(client.get("/none").status, 404);
    assert_eq!(origin.accepted(), 1);
    assert_eq!(origin.log().last().map(|request| request.number), Some(13));
    assert_eq!(origin.body_bytes("/a"), 500_025);
    assert_eq!(origin.sent_twice("/a"), origin.body_bytes("/a") - 100_000);
}

#[test]
fn faults_happen_where_they_were_told_to() {
    let origin = Origin::start();
    let object = Object::new(1, 100_000);
    origin.put("/a", &object);
    let cut = |client: &mut Client| {
        client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.head();
        let mut body = Vec::new();
        client.read_body(head.length().unwrap(), |bytes| body.extend_from_slice(bytes));
        assert!(object.bytes().starts_with(&body));
        body.len()
    };
    for fault in [Fault::Die(50_000), Fault::Reset(50_000)] {
        origin.fault("/a", fault, 1);
        assert_eq!(cut(&mut Client::connect(origin.address())), 50_000);
        assert_eq!(cut(&mut Client::connect(origin.address())), 100_000);
    }
    origin.fault("/a", Fault::Change(50_000, Box::new(Object::new(2, 70_000))), 1);
    let mut client = Client::connect(origin.address());
    assert_eq!(cut(&mut client), 100_000);
    assert!(client.get("/a").body == Object::new(2, 70_000).bytes());
    origin.fault("/a", Fault::ResetEarly, 1);
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_head().unwrap().is_none());
    let mut client = Client::connect(origin.address());
    client.get("/a");
    crate::support::eventually("it waits, alone", Duration::from_secs(3), || {
        origin.open() == 1 && origin.close_idle() == 1
    });
    assert!(client.ends_within(Duration::from_secs(3)));
    let mut client = Client::connect(origin.address());
    client.get("/a");
    origin.drop_reused(1);
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_head().unwrap().is_none());
    origin.put("/c", &Object::new(3, 10_000).framing(Framing::Chunked(999)));
    let mut client = Client::connect(origin.address());
    assert!(client.get("/c").body == Object::new(3, 10_000).bytes());
}

#[test]
fn rates_delays_and_ends() {
    let mut origin = Origin::start();
    origin.put("/slow", &Object::new(1, 50_000).rate(200_000).delay(Duration::from_millis(100)));
    let start = Instant::now();
    Client::connect(origin.address()).get("/slow");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(330) && took < Duration::from_secs(3), "{took:?}");
    origin.kill();
    assert!(std::net::TcpStream::connect(origin.address()).is_err());
    origin.revive();
    assert_eq!(Client::connect(origin.address()).get("/slow").status, 200);
}

#[test]
fn the_signature_check_agrees_with_the_published_example() {
    let (credentials, request) = s3::example();
    assert_eq!(credentials.verify(&request), Ok(()));
    // RFC 4231, test case 2.
    let known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    assert_eq!(crate::support::client::hex(&s3::hmac(b"Jefe", b"what do ya want for nothing?")), known);
    let mut wrong = request.clone();
    wrong.target = "/test.tx".to_owned();
    assert!(credentials.verify(&wrong).unwrap_err().contains("signature"));
    let mut wrong = request;
    wrong.headers.push(("x-amz-meta".to_owned(), "unsigned".to_owned()));
    assert!(credentials.verify(&wrong).unwrap_err().contains("not signed"));
}
