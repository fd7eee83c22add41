//! Purging and looking into the cache, by the admin address and by the command.

use crate::support::origin::{Object, Origin};
use crate::support::{BINARY, Client, Server, eventually, tree};
use crate::{allocated, beside, cached, get};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const TOKEN: &str = "s3cret-token";

fn site(more: &[(&str, &str)]) -> (Origin, tempfile::TempDir, Server) {
    let (origin, folder) = (Origin::start(), tempfile::tempdir().unwrap());
    let mut start = cached(&origin, &folder.path().join("cache"));
    for (option, value) in more {
        start = start.with(option, value);
    }
    let server = start.spawn();
    for (seed, path) in ["/a/1", "/a/2", "/b/1"].into_iter().enumerate() {
        origin.put(path, &object(seed));
    }
    warm(&origin, &server);
    (origin, folder, server)
}

fn object(seed: usize) -> Object {
    Object::new(seed as u64, tree::MIB).fresh(6000)
}

fn warm(origin: &Origin, server: &Server) {
    for (seed, path) in ["/a/1", "/a/2", "/b/1"].into_iter().enumerate() {
        get(&mut server.client(), path).expect(&object(seed), "warm");
    }
    origin.clear_log();
}

/// Which of the three are still kept: asks for each and looks whether the origin was asked.
fn kept(origin: &Origin, server: &Server) -> [bool; 3] {
    origin.clear_log();
    let kept = [("/a/1", 0), ("/a/2", 1), ("/b/1", 2)].map(|(path, seed)| {
        get(&mut server.client(), path).expect(&object(seed), path);
        origin.requests(path).is_empty()
    });
    origin.clear_log();
    kept
}

fn admin(server: &Server, request: &str, token: Option<&str>) -> crate::support::client::Reply {
    let mut client = Client::connect(server.admin.expect("an admin address"));
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    client.exchange(
        format!("{request} HTTP/1.1\r\nHost: admin\r\nContent-Length: 0\r\n{token}Connection: close\r\n\r\n")
            .as_bytes(),
    )
}

fn url(server: &Server, path: &str) -> String {
    server.url(path)
}

#[test]
fn a_token_purges_by_url_and_by_prefix() {
    let _beside = beside();
    let (origin, folder, server) = site(&[("--admin-token", TOKEN)]);
    assert_eq!(kept(&origin, &server), [true; 3]);
    for (token, what) in
        [(None, "none"), (Some("wrong"), "a wrong one"), (Some(""), "an empty one"), (Some("s3cret-toke"), "half")]
    {
        let reply = admin(&server, &format!("POST /cache/purge?url={}", url(&server, "/a/1")), token);
        assert!(matches!(reply.status, 401 | 403), "{what}: {:?}", reply.head);
    }
    assert_eq!(kept(&origin, &server), [true; 3], "nothing was purged without the token");
    let reply = admin(&server, &format!("GET /cache/purge?url={}", url(&server, "/a/1")), Some(TOKEN));
    assert!(matches!(reply.status, 404 | 405), "GET purges nothing: {:?}", reply.head);
    let reply = admin(&server, &format!("POST /cache/purge?url={}", url(&server, "/a/1")), Some(TOKEN));
    assert!(matches!(reply.status, 200 | 204), "{:?} {}", reply.head, String::from_utf8_lossy(&reply.body));
    assert_eq!(kept(&origin, &server), [false, true, true]);
    let reply = admin(&server, &format!("POST /cache/purge?prefix={}", url(&server, "/a/")), Some(TOKEN));
    assert!(matches!(reply.status, 200 | 204), "{:?}", reply.head);
    assert_eq!(kept(&origin, &server), [false, false, true]);
    for wrong in ["", "?url=", "?url=%", "?prefix=", "?url=/a&prefix=/b", "?x=1"] {
        let reply = admin(&server, &format!("POST /cache/purge{wrong}"), Some(TOKEN));
        assert_eq!(reply.status, 400, "{wrong}: {:?}", reply.head);
    }
    // A URL that is not there is no error of the caller.
    let reply = admin(&server, &format!("POST /cache/purge?url={}", url(&server, "/none")), Some(TOKEN));
    assert!(matches!(reply.status, 200 | 204 | 404), "{:?}", reply.head);
    // The space comes back.
    admin(&server, &format!("POST /cache/purge?prefix={}", url(&server, "/")), Some(TOKEN));
    eventually("the space is free", Duration::from_secs(5), || allocated(folder.path()) < 512 * 1024);
    assert_eq!(server.metrics().sum("ringway_cache_size_bytes", &[]), 0.0);
    assert!(server.metrics().sum("ringway_cache_evictions_total", &[("reason", "purge")]) >= 4.0);
}

#[test]
fn without_a_token_nobody_purges_over_tcp() {
    let _beside = beside();
    let (origin, _folder, server) = site(&[]);
    for token in [None, Some(""), Some("x")] {
        let reply = admin(&server, &format!("POST /cache/purge?url={}", url(&server, "/a/1")), token);
        assert!(matches!(reply.status, 401 | 403), "{:?}", reply.head);
    }
    assert_eq!(kept(&origin, &server), [true; 3]);
}

#[test]
fn clients_of_what_is_purged_finish() {
    let _beside = beside();
    let (origin, _folder, server) = site(&[("--admin-token", TOKEN)]);
    let large = Object::new(50, 24 * tree::MIB).fresh(6000);
    origin.put("/large", &large);
    get(&mut server.client(), "/large").expect(&large, "warm");
    let mut slow = Client::connect_small(server.address());
    slow.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = slow.head();
    let mut body = Vec::new();
    slow.read_body(100_000, |bytes| body.extend_from_slice(bytes));
    admin(&server, &format!("POST /cache/purge?prefix={}", url(&server, "/")), Some(TOKEN));
    let left = head.length().unwrap() - 100_000;
    assert_eq!(slow.read_body(left, |bytes| body.extend_from_slice(bytes)), left);
    assert!(body == large.bytes(), "a purge under a transfer");
    // A purge under a fill: the client finishes or is cut, and what comes next is whole.
    origin.hold("/large", 5 * tree::MIB);
    let mut client = server.client();
    client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    client.read_body(4 * tree::MIB, |_| ());
    admin(&server, &format!("POST /cache/purge?url={}", url(&server, "/large")), Some(TOKEN));
    let new = Object::new(51, 20 * tree::MIB).fresh(6000);
    origin.put("/large", &new);
    origin.release("/large");
    get(&mut server.client(), "/large").expect(&new, "behind a purge, the new one");
    get(&mut server.client(), "/large").expect(&new, "and again");
}

fn ringway(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(BINARY);
    command.args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGWAY_") {
            command.env_remove(name);
        }
    }
    let done = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn the_command_lists_counts_and_purges() {
    let _beside = beside();
    let (origin, _folder, server) = site(&[("--admin-token", TOKEN)]);
    let address = server.admin.unwrap().to_string();
    let (code, said, wrong) = ringway(&["cache", "ls", "--admin", &address]);
    assert_eq!(code, Some(0), "{said}{wrong}");
    for path in ["/a/1", "/a/2", "/b/1"] {
        assert!(said.lines().any(|line| line.contains(path)), "{path} in {said}");
    }
    let (code, said, wrong) = ringway(&["cache", "ls", "--prefix", &url(&server, "/b/"), "--admin", &address]);
    assert_eq!(code, Some(0), "{wrong}");
    assert!(said.contains("/b/1") && !said.contains("/a/1"), "{said}");
    let (code, said, wrong) = ringway(&["cache", "stat", "--admin", &address]);
    assert_eq!(code, Some(0), "{wrong}");
    assert!(said.contains('3'), "three objects: {said}");
    let (code, said, wrong) = ringway(&["cache", "purge", &url(&server, "/a/1"), "--admin", &address]);
    assert!(code != Some(0), "without a token: {said}{wrong}");
    assert!(wrong.contains("token"), "it says what is missing: {wrong}");
    let (code, said, wrong) =
        ringway(&["cache", "purge", &url(&server, "/a/1"), "--admin", &address, "--token", TOKEN]);
    assert_eq!(code, Some(0), "{said}{wrong}");
    assert_eq!(kept(&origin, &server), [false, true, true]);
    let prefix = url(&server, "/");
    let (code, said, wrong) = ringway(&["cache", "purge", "--prefix", &prefix, "--admin", &address, "--token", TOKEN]);
    assert_eq!(code, Some(0), "{said}{wrong}");
    assert_eq!(kept(&origin, &server), [false; 3]);
    let (code, _, wrong) = ringway(&["cache", "stat", "--admin", "127.0.0.1:1"]);
    assert!(code.is_some_and(|code| code != 0) && wrong.contains("127.0.0.1:1"), "nobody there: {wrong}");
}

#[test]
fn who_may_open_the_unix_socket_may_purge() {
    let _beside = beside();
    let (origin, folder) = (Origin::start(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("admin.sock");
    let address = format!("unix:{}", socket.display());
    let server = cached(&origin, &folder.path().join("cache")).admin(&address).spawn();
    for (seed, path) in ["/a/1", "/a/2", "/b/1"].into_iter().enumerate() {
        origin.put(path, &object(seed));
    }
    warm(&origin, &server);
    let mut stream = UnixStream::connect(&socket).expect("the admin socket");
    let request = format!(
        "POST /cache/purge?url={} HTTP/1.1\r\nHost: admin\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        url(&server, "/a/1")
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200") || said.starts_with("HTTP/1.1 204"), "{said}");
    assert_eq!(kept(&origin, &server), [false, true, true]);
    let (code, said, wrong) = ringway(&["cache", "purge", "--prefix", &url(&server, "/b/"), "--admin", &address]);
    assert_eq!(code, Some(0), "{said}{wrong}");
    assert_eq!(kept(&origin, &server), [true, true, false]);
    // Others may not open it.
    use std::os::unix::fs::PermissionsExt;
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "mode {mode:o}");
    server.stop();
}
