//! Starting: the line that tells it, systemd's READY, and every refusal with its code, its errno and its remedy.

use crate::support::{BINARY, Client, Start, against_nginx, has, is_root, process, tree};
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[test]
fn the_line_tells_addresses_cores_and_kernel_features() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).listen(&["127.0.0.1:0", "127.0.0.2:0"]).spawn();
    assert_eq!(server.addresses.len(), 2, "{}", server.ready);
    assert!(server.admin.is_some(), "{}", server.ready);
    assert!(server.ready.contains("core"), "{}", server.ready);
    for address in &server.addresses {
        assert_ne!(address.port(), 0);
        assert_eq!(Client::connect(*address).get("/1.bin").status, 200, "{address}");
    }
    assert_eq!(Client::connect(server.admin.unwrap()).get("/healthz").status, 200);
    server.stop();
}

#[test]
fn the_line_is_one_json_object_if_asked() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).with("--log-format", "json").spawn();
    let line: serde_json::Value = serde_json::from_str(&server.ready).expect("one JSON object");
    assert!(line.is_object());
    assert_eq!(server.client().get("/1.bin").status, 200);
    server.term();
    let text = {
        let mut server = server;
        assert!(server.end(Duration::from_secs(10)).is_some());
        server.log.finish()
    };
    for line in text.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "not JSON: {line}");
    }
}

#[test]
fn admin_can_be_off() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).admin("off").spawn();
    assert_eq!(server.admin, None, "{}", server.ready);
    assert_eq!(server.client().get("/1.bin").status, 200);
    server.stop();
}

#[test]
fn ipv6_is_served() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        crate::support::skip("IPv6");
        return;
    }
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).listen(&["[::1]:0", "127.0.0.1:0"]).spawn();
    assert_eq!(server.addresses.len(), 2, "{}", server.ready);
    assert!(server.addresses.iter().any(std::net::SocketAddr::is_ipv6), "{}", server.ready);
    for address in &server.addresses {
        let (_, _, hash) = Client::connect(*address).hash("/65537.bin");
        assert_eq!(hash, tree::hash_of(65537), "{address}");
    }
}

#[test]
fn one_pinned_thread_serves_each_core() {
    if against_nginx() {
        return;
    }
    let cpus = process::cpus();
    let list = cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let server = Start::new(tree::shared()).with("--cores", list).spawn();
    let mut pinned: Vec<String> = std::fs::read_dir(format!("/proc/{}/task", server.pid()))
        .unwrap()
        .flatten()
        .filter(|task| !std::fs::read_to_string(task.path().join("comm")).unwrap_or_default().starts_with("iou-"))
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|status| {
            let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list"))?;
            Some(line.split_whitespace().nth(1)?.to_owned())
        })
        .filter(|allowed| allowed.parse::<usize>().is_ok())
        .collect();
    pinned.sort();
    pinned.dedup();
    let expected: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    assert!(expected.iter().all(|cpu| pinned.contains(cpu)), "pinned to {pinned:?}, wanted {expected:?}");
    // Connections reach every core: with as many as this, one core that never accepts is no accident.
    let mut clients: Vec<Client> = (0..64).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/1.bin").status, 200);
    }
    for core in 0..cpus.len() {
        let accepted = server.metrics().sum("ringway_connections_accepted_total", &[("core", &core.to_string())]);
        assert!(accepted > 0.0, "core {core} accepted nothing");
    }
}

#[test]
fn systemd_is_told_when_it_is_ready() {
    if against_nginx() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let server = Start::new(tree::shared()).env("NOTIFY_SOCKET", &path).spawn();
    let mut told = String::new();
    while !told.lines().any(|line| line == "READY=1") {
        let mut bytes = [0; 4096];
        let count = socket.recv(&mut bytes).expect("READY=1 in time");
        told.push_str(&String::from_utf8_lossy(&bytes[..count]));
        told.push('\n');
    }
    assert_eq!(server.client().get("/1.bin").status, 200);
    server.stop();
}

fn expect_refusal(start: Start, code: i32, words: &[&str]) {
    let (status, said) = start.refused();
    assert_eq!(status, Some(code), "{said}");
    for word in words {
        assert!(said.to_lowercase().contains(&word.to_lowercase()), "{word} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_port_in_use_is_told_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    expect_refusal(Start::new(tree::shared()).listen(&[&address]), 1, &["EADDRINUSE", &address]);
    expect_refusal(Start::new(tree::shared()).admin(&address), 1, &["EADDRINUSE", &address]);
}

#[test]
fn a_second_server_does_not_share_the_port_silently() {
    if against_nginx() {
        return;
    }
    // SO_REUSEPORT lets two processes of one user take the same port; half of all requests would go astray.
    let server = Start::new(tree::shared()).spawn();
    let address = server.address().to_string();
    expect_refusal(Start::new(tree::shared()).listen(&[&address]), 1, &["EADDRINUSE", &address]);
}

#[test]
fn a_missing_folder_is_told_by_name() {
    let (status, said) = Start::new("/nonexistent/folder").refused();
    assert!(matches!(status, Some(1 | 78)), "{status:?} {said}");
    assert!(said.contains("ENOENT") && said.contains("/nonexistent/folder"), "{said}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let (status, said) = Start::new(file.path()).refused();
    assert!(matches!(status, Some(1 | 78)), "{status:?} {said}");
    assert!(said.contains("ENOTDIR"), "{said}");
}

#[test]
fn an_address_that_is_not_here_is_told_by_name() {
    expect_refusal(Start::new(tree::shared()).listen(&["192.0.2.1:8080"]), 1, &["EADDRNOTAVAIL", "192.0.2.1"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for words in [&["serve"][..], &["serve", ".", "--engine", "warp"], &["serve", ".", "--no-such-flag"], &["nonsense"]]
    {
        let result = Command::new(BINARY).args(words).output().unwrap();
        assert_eq!(result.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&result.stderr));
        assert!(!result.stderr.is_empty());
    }
    for words in [&["--help"][..], &["--version"], &["serve", "--help"]] {
        let result = Command::new(BINARY).args(words).output().unwrap();
        assert_eq!(result.status.code(), Some(0), "{words:?}");
        assert!(!result.stdout.is_empty());
    }
}

#[test]
fn a_core_that_does_not_exist_is_refused() {
    let (status, said) = Start::new(tree::shared()).with("--cores", 9999).refused();
    assert!(matches!(status, Some(2 | 78)), "{status:?} {said}");
    assert!(said.contains("9999"), "{said}");
}

#[test]
fn an_unknown_congestion_control_is_refused() {
    let (status, said) = Start::new(tree::shared()).with("--congestion", "warp9").refused();
    assert!(matches!(status, Some(1 | 78)), "{status:?} {said}");
    assert!(said.contains("warp9") && said.contains("ENOENT"), "{said}");
}

/// A tree and a copy of the binary that anybody may use.
fn for_anybody() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    tree::put(&root, "file", 6, 3 * tree::MIB);
    let binary = folder.path().join("ringway");
    std::fs::copy(BINARY, &binary).unwrap();
    (folder, root, binary)
}

/// Locked memory is counted per user over all its processes, so the test with little of it has a user of its own.
const NOBODY: u32 = 65534;

#[test]
fn a_low_port_needs_permission() {
    if !is_root() {
        return;
    }
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if first.trim().parse::<u32>().is_ok_and(|first| first <= 81) {
        crate::support::skip("a machine where port 81 is privileged");
        return;
    }
    let (_folder, root, binary) = for_anybody();
    expect_refusal(
        Start::new(root).binary(binary).user(NOBODY).listen(&["127.0.0.1:81"]),
        77,
        &["EACCES", "127.0.0.1:81"],
    );
}

#[test]
fn little_lockable_memory_is_a_warning() {
    if !is_root() || against_nginx() {
        return;
    }
    let (_folder, root, binary) = for_anybody();
    let server = Start::new(&root)
        .binary(binary)
        .user(NOBODY)
        .through(&["sh", "-c", "ulimit -l 64; exec \"$0\" \"$@\""])
        .spawn();
    let mut client = server.client();
    assert!(client.get("/file").body == tree::content(6, 3 * tree::MIB));
    let said = server.log.text().to_lowercase();
    assert!(said.contains("memlock"), "a warning that names the limit: {said}");
    server.stop();
}

#[test]
fn every_engine_serves_without_privileges() {
    if !is_root() || against_nginx() {
        return;
    }
    let (_folder, root, binary) = for_anybody();
    for engine in crate::support::ENGINES {
        let server = Start::new(&root)
            .binary(&binary)
            .user(NOBODY - 1)
            .engine(engine)
            .through(&["sh", "-c", "ulimit -l 64; exec \"$0\" \"$@\""])
            .spawn();
        assert!(server.client().get("/file").body == tree::content(6, 3 * tree::MIB), "{engine}");
    }
}

/// Runs what follows with a system call denied, as container runtimes do it: a seccomp filter that answers EPERM.
const DENY: &str = r"
import ctypes, os, struct, sys
denied = [int(word) for word in sys.argv[1].split(',')]
# BPF: load the call's number; for each denied one return ERRNO(EPERM); otherwise allow.
code = [struct.pack('HBBI', 0x20, 0, 0, 0)]
for number in denied:
    code.append(struct.pack('HBBI', 0x15, 0, 1, number))
    code.append(struct.pack('HBBI', 0x06, 0, 0, 0x00050000 | 1))
code.append(struct.pack('HBBI', 0x06, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(b''.join(code))
class Filter(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
filter = Filter(len(code), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, 'no_new_privs'
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_sandbox_that_denies_io_uring_is_told_with_its_remedy() {
    if !has("python3") {
        return;
    }
    // io_uring_setup is 425 on every architecture.
    let start = Start::new(tree::shared()).through(&["python3", "-c", DENY, "425"]);
    expect_refusal(start, 77, &["io_uring", "EPERM", "seccomp"]);
}

#[test]
fn the_environment_is_heard() {
    if against_nginx() {
        return;
    }
    let server = Start::new(tree::shared()).env("RINGWAY_ENGINE", "send").spawn();
    let mut client = server.client();
    let (_, _, hash) = client.hash("/1048577.bin");
    assert_eq!(hash, tree::hash_of(tree::MIB + 1));
    crate::support::eventually("the engine of the environment carried it", Duration::from_secs(3), || {
        server.metrics().sum("ringway_sent_bytes_total", &[("engine", "send"), ("part", "body")]) as u64
            == tree::MIB + 1
    });
}

#[test]
fn quiet_still_tells_that_it_serves_or_at_least_serves() {
    if against_nginx() {
        return;
    }
    // READY=1 is the other way to know; the port is fixed here, since --quiet may hold the line back.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = Command::new(BINARY)
        .args([
            "serve",
            &tree::shared().display().to_string(),
            "--listen",
            &address.to_string(),
            "--admin",
            "off",
            "--quiet",
        ])
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let ready = socket.recv(&mut [0; 4096]).is_ok();
    let status = ready.then(|| Client::connect(address).get("/1.bin").status);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(status, Some(200));
}

#[test]
fn the_fixture_path_exists() {
    assert!(Path::new(BINARY).is_file());
    assert!(tree::shared().join("index.html").is_file());
}
