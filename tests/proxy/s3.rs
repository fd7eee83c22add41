//! An origin that wants signed requests, checked by a verifier of its own (`support::s3`).

use crate::support::origin::{Object, Origin};
use crate::support::s3::Credentials;
use crate::support::{Start, eventually};
use crate::{beside, get, get_range};

const SLICE: u64 = 64 * 1024;

fn credentials() -> Credentials {
    Credentials {
        access_key: "AKIDEXAMPLE".to_owned(),
        secret_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
        session_token: None,
        region: "eu-central-1".to_owned(),
        clock: None,
    }
}

const KEYS: &str = "s3_access_key = \"AKIDEXAMPLE\"\ns3_secret_key = \"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY\"";

fn front(origin: &Origin, cache: Option<&std::path::Path>, url: &str, route: &str) -> Start {
    let cache =
        cache.map_or(String::new(), |folder| format!("cache = \"{}\"\ncache_slice = \"64KiB\"\n", folder.display()));
    Start::configured(&format!(
        "congestion = \"cubic\"\n{cache}[[route]]\npath = \"/\"\nsource = \"{}{url}\"\ns3_region = \"eu-central-1\"\n{route}\n",
        origin.url("")
    ))
}

fn refusals(origin: &Origin) {
    assert!(origin.refusals().is_empty(), "refused: {:#?}", origin.refusals());
}

#[test]
fn every_request_of_a_route_is_signed() {
    let _beside = beside();
    for cache in [false, true] {
        let origin = Origin::s3(credentials());
        let folder = tempfile::tempdir().unwrap();
        let object = Object::new(1, 10 * SLICE + 5).fresh(600);
        origin.put("/bucket/a", &object);
        let server = front(&origin, cache.then_some(folder.path()), "/bucket", KEYS).spawn();
        let mut client = server.client();
        let what = if cache { "cached" } else { "relayed" };
        get_range(&mut client, "/a", 3 * SLICE, 100).expect_range(&object, 3 * SLICE, 100, what);
        get(&mut client, "/a").expect(&object, what);
        assert_eq!(client.head_of("/a").length(), Some(object.size));
        assert_eq!(get(&mut client, "/none").status, 404, "an error of S3 passes");
        refusals(&origin);
        assert!(origin.log().len() >= if cache { 3 } else { 4 });
        for request in origin.log() {
            let signed = request.header("authorization").unwrap();
            assert!(signed.contains("/eu-central-1/s3/aws4_request"), "{signed}");
            // The secret itself never travels.
            assert!(!format!("{request:?}").contains("MDENG"), "{request:?}");
        }
    }
}

#[test]
fn names_and_queries_of_every_kind_are_signed_right() {
    let _beside = beside();
    let origin = Origin::s3(credentials());
    let server = front(&origin, None, "/bucket", KEYS).spawn();
    let mut client = server.client();
    let object = Object::new(1, 100);
    let targets = [
        "/plain",
        "/with%20space",
        "/%C3%BC/%E2%82%AC",
        "/a+b",
        "/a=b&c",
        "/star*",
        "/tilde~x_y-z.1",
        "/(paren)!'$,;:@",
        "/q?list-type=2&prefix=a%2Fb&marker=",
        "/q?b=2&a=1&a=0",
        "/q?flag",
        "/q?x=a+b%20c",
        "/dir/",
        "/percent%25",
    ];
    for target in targets {
        origin.put(&format!("/bucket{}", target.split('?').next().unwrap()), &object);
        let got = get(&mut client, target);
        refusals(&origin);
        got.expect(&object, target);
    }
}

#[test]
fn the_bucket_stands_in_the_path_or_in_the_host() {
    let _beside = beside();
    let origin = Origin::s3(credentials());
    let object = Object::new(1, 1000);
    let route = format!("{KEYS}\ns3_bucket = \"data\"\ns3_style = \"path\"");
    origin.put("/data/a", &object);
    let server = front(&origin, None, "", &route).spawn();
    get(&mut server.client(), "/a").expect(&object, "path-style");
    refusals(&origin);
    assert_eq!(origin.log()[0].header("host"), Some(origin.address().to_string()));
    // In the host name, where there is a name; an address has no room for a bucket, and that is said at the start.
    let route = format!("{KEYS}\ns3_bucket = \"data\"\ns3_style = \"host\"");
    let (code, said) = front(&origin, None, "", &route).refused();
    assert!(code.is_some_and(|code| code != 0) && said.contains("path"), "{said}");
    origin.clear_log();
    origin.put("/a", &object);
    let port = origin.address().port();
    let server = Start::configured(&format!(
        "[[route]]\npath = \"/\"\nsource = \"http://localhost:{port}\"\ns3_region = \"eu-central-1\"\n{route}\n"
    ))
    .spawn();
    let got = get(&mut server.client(), "/a");
    refusals(&origin);
    got.expect(&object, "host-style");
    assert_eq!(origin.log()[0].header("host"), Some(format!("data.localhost:{port}")));
}

#[test]
fn credentials_come_from_the_route_a_file_or_the_environment() {
    let _beside = beside();
    let object = Object::new(1, 1000);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let keys = credentials();
    std::fs::write(
        &file,
        format!(
            "# of the team\n[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
            keys.access_key, keys.secret_key
        ),
    )
    .unwrap();
    let origin = Origin::s3(keys.clone());
    origin.put("/bucket/a", &object);
    let server = front(&origin, None, "/bucket", &format!("s3_credentials_file = \"{}\"", file.display())).spawn();
    get(&mut server.client(), "/a").expect(&object, "from a file");
    let token = Credentials { session_token: Some("FwoGZXIvYXdzEXAMPLE//token==".to_owned()), ..keys.clone() };
    let origin = Origin::s3(token);
    origin.put("/bucket/a", &object);
    let server = front(&origin, None, "/bucket", "")
        .env("AWS_ACCESS_KEY_ID", &keys.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret_key)
        .env("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEXAMPLE//token==")
        .spawn();
    let got = get(&mut server.client(), "/a");
    refusals(&origin);
    got.expect(&object, "from the environment, with a session token");
    drop(server);
    // None at all is said at the start, with what to do.
    let (code, said) = front(&origin, None, "/bucket", "")
        .env("AWS_ACCESS_KEY_ID", "")
        .env("AWS_SECRET_ACCESS_KEY", "")
        .env("HOME", folder.path())
        .refused();
    assert!(code.is_some_and(|code| code != 0), "{said}");
    assert!(said.to_ascii_lowercase().contains("access_key"), "{said}");
}

#[test]
fn wrong_credentials_are_an_answer_and_nothing_is_stored() {
    let _beside = beside();
    let origin = Origin::s3(credentials());
    let folder = tempfile::tempdir().unwrap();
    let object = Object::new(1, 1000).fresh(600);
    origin.put("/bucket/a", &object);
    let keys = KEYS.replace("wJalr", "xJalr");
    let server = front(&origin, Some(folder.path()), "/bucket", &keys).spawn();
    for _ in 0..2 {
        let got = get(&mut server.client(), "/a");
        assert_eq!(got.status, 403, "{:?}", got.head);
    }
    assert_eq!(origin.refusals().len(), 2, "a 403 is not kept");
    assert!(!server.log.text().contains("xJalr"), "the secret is in no log");
    // What a client sends as Authorization is not what signs.
    let server = front(&origin, Some(folder.path()).filter(|_| false), "/bucket", KEYS).spawn();
    let got =
        crate::get_with(&mut server.client(), "/a", "Authorization: AWS4-HMAC-SHA256 nonsense\r\nX-Amz-Date: 1\r\n");
    got.expect(&object, "a client's own signature is replaced");
    eventually("counted", std::time::Duration::from_secs(3), || {
        server.metrics().sum("ringway_upstream_requests_total", &[("code", "2xx")]) >= 1.0
    });
}
