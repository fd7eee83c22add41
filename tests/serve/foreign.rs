//! Clients nobody here wrote: curl, wget, Python's http.client, ureq.

use crate::support::{Start, has, output, sha256, tree};
use std::process::Command;

#[test]
fn curl_gets_every_size_and_resumes() {
    if !has("curl") {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    for size in tree::SIZES {
        let body =
            output(Command::new("curl").args(["-sSf", "--max-time", "60", &server.url(&format!("/{size}.bin"))]));
        assert_eq!(sha256(&body), tree::hash_of(size), "{size}");
    }
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("part");
    let size = tree::MIB + 1;
    std::fs::write(&part, &tree::content(size, size)[..700_001]).unwrap();
    output(
        Command::new("curl")
            .args(["-sSf", "--max-time", "60", "-C", "-", "-o"])
            .arg(&part)
            .arg(server.url(&format!("/{size}.bin"))),
    );
    assert_eq!(sha256(&std::fs::read(&part).unwrap()), tree::hash_of(size), "resumed");
}

#[test]
fn curl_reuses_one_connection() {
    if !has("curl") {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let urls: Vec<String> = ["/4095.bin", "/65537.bin", "/1.bin", "/0.bin", "/"].map(|path| server.url(path)).into();
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60", "-w", "%{num_connects} %{http_code} %{size_download}\n"]);
    for url in &urls {
        command.args(["-o", "/dev/null"]).arg(url);
    }
    let told = String::from_utf8(output(&mut command)).unwrap();
    let connects: usize = told.lines().map(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!(connects, 1, "{told}");
    assert!(told.lines().all(|line| line.contains(" 200 ")), "{told}");
}

#[test]
fn wget_mirrors_a_file_with_its_time() {
    if !has("wget") {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let folder = tempfile::tempdir().unwrap();
    let size = 64 * tree::MIB;
    output(
        Command::new("wget")
            .args(["-q", "--tries=1", "--timeout=60", "-P"])
            .arg(folder.path())
            .arg(server.url(&format!("/{size}.bin"))),
    );
    let got = folder.path().join(tree::name_of(size));
    assert_eq!(sha256(&std::fs::read(&got).unwrap()), tree::hash_of(size));
    // wget sets the file's time from Last-Modified, which has whole seconds.
    let seconds = |file: &std::path::Path| {
        file.metadata().unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
    };
    assert_eq!(seconds(&got), seconds(&tree::shared().join(tree::name_of(size))), "Last-Modified");
}

#[test]
fn python_http_client_keeps_a_connection_alive() {
    if !has("python3") {
        return;
    }
    let server = Start::new(tree::shared()).spawn();
    let program = "
import hashlib, http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
connection.connect()
first = connection.sock
for size in sys.argv[2:]:
    connection.request('HEAD', f'/{size}.bin')
    reply = connection.getresponse()
    assert reply.read() == b'' and reply.headers['Content-Length'] == size, reply.headers
    connection.request('GET', f'/{size}.bin')
    reply = connection.getresponse()
    print(reply.status, size, hashlib.sha256(reply.read()).hexdigest())
    assert connection.sock is first, 'a new connection'
";
    let sizes: Vec<String> = tree::SIZES.iter().map(ToString::to_string).collect();
    let told = output(Command::new("python3").args(["-c", program, &server.address().to_string()]).args(&sizes));
    let expected: String = tree::SIZES.iter().map(|size| format!("200 {size} {}\n", tree::hash_of(*size))).collect();
    assert_eq!(String::from_utf8(told).unwrap(), expected);
}

#[test]
fn ureq_gets_every_size() {
    let server = Start::new(tree::shared()).spawn();
    let agent = ureq::Agent::new_with_defaults();
    for size in tree::SIZES {
        let mut reply = agent.get(server.url(&format!("/{size}.bin"))).call().expect("ureq");
        let body = reply.body_mut().with_config().limit(u64::MAX).read_to_vec().expect("a body");
        assert_eq!(sha256(&body), tree::hash_of(size), "{size}");
    }
    match agent.get(server.url("/none")).call() {
        Err(ureq::Error::StatusCode(404)) => {}
        other => panic!("not 404: {other:?}"),
    }
}
