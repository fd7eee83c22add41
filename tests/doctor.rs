//! What goes wrong on other people's machines, made here: `doctor` and `serve` each say what it is and what to do.

mod support;

use serde_json::Value;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use support::{BINARY, has, is_root};

/// Users of these tests' own: locked memory and pipe pages are counted by user.
const LOCKED: u32 = 65_501;
const PIPES: u32 = 65_502;
const STRANGER: u32 = 65_503;

/// A served folder and the binary, where any user may use them.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("mode");
        std::fs::create_dir(folder.path().join("site")).expect("a folder");
        std::fs::copy(BINARY, folder.path().join("ringway")).expect("a copy");
        Self { folder }
    }

    fn site(&self) -> PathBuf {
        self.folder.path().join("site")
    }

    /// `words` of the binary behind `launcher`, as a user.
    fn run(&self, launcher: &[&str], user: Option<u32>, words: &[&str]) -> Output {
        let binary = self.folder.path().join("ringway");
        let binary = binary.to_str().expect("UTF-8");
        // A start that succeeds by mistake ends in time.
        let all = [&["timeout", "-k", "1", "20"], launcher, &[binary], words].concat();
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).current_dir("/").env_remove("NOTIFY_SOCKET");
        if let Some(id) = user {
            command.uid(id).gid(id);
        }
        command.output().unwrap_or_else(|error| panic!("{all:?}: {error}"))
    }

    /// The findings of `doctor --json`, its exit code in accord with them.
    fn doctor(&self, launcher: &[&str], user: Option<u32>, words: &[&str]) -> Vec<Value> {
        let site = self.site();
        let words = [&["doctor", "--json", site.to_str().expect("UTF-8")], words].concat();
        let done = self.run(launcher, user, &words);
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(!said.contains("panicked"), "{said}");
        let json: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        let findings = json["findings"].as_array().expect("findings").clone();
        let has = |level: &str| findings.iter().any(|finding| finding["level"] == level);
        let code = if has("FAIL") { 2 } else { i32::from(has("WARN")) };
        assert_eq!(done.status.code(), Some(code), "{said}");
        findings
    }

    /// What `serve` says where it refuses to start, with its code.
    fn refusal(&self, launcher: &[&str], user: Option<u32>, words: &[&str]) -> (Option<i32>, String) {
        let site = self.site();
        let words = [&["serve", site.to_str().expect("UTF-8"), "--admin", "off"], words].concat();
        let done = self.run(launcher, user, &words);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!said.contains("panicked"), "{said}");
        (done.status.code(), said)
    }
}

/// The finding of that name and level, which must name these words somewhere.
fn expect<'a>(findings: &'a [Value], name: &str, level: &str, words: &[&str]) -> &'a Value {
    let found = findings.iter().find(|finding| finding["name"] == name && finding["level"] == level);
    let found = found.unwrap_or_else(|| panic!("no {level} {name} in {findings:#?}"));
    let text = found.to_string();
    for word in words {
        assert!(text.contains(word), "{word} is not in {found:#}");
    }
    for place in ["host", "systemd", "docker", "kubernetes"] {
        assert!(found["remedy"][place].as_str().is_some_and(|text| !text.is_empty()), "no remedy: {found:#}");
    }
    found
}

fn expect_words(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }
}

/// Free ports, so that only what a test is about can be wrong.
const FREE: [&str; 4] = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

#[test]
fn a_good_machine_has_no_failures() {
    let place = Place::new();
    let findings = place.doctor(&[], None, &FREE);
    let bad: Vec<&Value> = findings.iter().filter(|finding| finding["level"] == "FAIL").collect();
    assert!(bad.is_empty(), "{bad:#?}");
    for name in ["io_uring", "memlock", "nofile", "port", "root", "cpuset", "splice pages"] {
        assert!(findings.iter().any(|finding| finding["name"] == name), "nothing about {name}: {findings:#?}");
    }
    let text = place.run(&[], None, &["doctor", "--listen", "127.0.0.1:0"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    expect_words(&text, &["PASS  io_uring: ", " passed, ", " failures\n"]);
}

/// Denies io_uring_setup with EPERM, as the default profiles of container run-times do, and becomes what follows.
const DENY: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def op(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
# load the number of the call; io_uring_setup is 425 on every architecture; SECCOMP_RET_ERRNO | EPERM; allow
program = op(0x20, 0, 0, 0) + op(0x15, 0, 1, 425) + op(0x06, 0, 0, 0x00050001) + op(0x06, 0, 0, 0x7fff0000)
code = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
filter = Program(4, ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_seccomp_filter_is_named() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let launcher = ["python3", "-c", DENY];
    let findings = place.doctor(&launcher, None, &FREE);
    let words = ["EPERM", "seccomp", "SystemCallFilter=", "--security-opt seccomp=", "seccompProfile"];
    expect(&findings, "io_uring", "FAIL", &words);
    let filter = findings.iter().find(|finding| finding["name"] == "seccomp").expect("a finding");
    assert!(filter["seen"].as_str().is_some_and(|seen| seen.contains("active")), "{filter:#}");
    let (code, said) = place.refusal(&launcher, None, &FREE[..2]);
    assert_eq!(code, Some(77), "{said}");
    // The error itself, and by itself the failing part of the doctor.
    expect_words(&said, &["ringway: cannot set up an io_uring: EPERM", "FAIL  io_uring: ", "Docker: --security-opt"]);
}

#[test]
fn little_lockable_memory_is_weighed_against_the_plan() {
    if !is_root() || !has("prlimit") {
        return;
    }
    let place = Place::new();
    let findings = place.doctor(&["prlimit", "--memlock=65536:65536"], Some(LOCKED), &FREE);
    expect(&findings, "memlock", "WARN", &["64 KiB", "LimitMEMLOCK=", "IPC_LOCK", "--ulimit memlock="]);
}

#[test]
fn few_descriptors_are_weighed_against_the_plan() {
    if !has("prlimit") {
        return;
    }
    let place = Place::new();
    let few = ["prlimit", "--nofile=64:64"];
    // One core starts with 64 and says what it lacks.
    let core = support::process::cpus()[0].to_string();
    let one = [&FREE[..], &["--cores", &core]].concat();
    let findings = place.doctor(&few, None, &one);
    let words = ["RLIMIT_NOFILE is 64", "connections are refused", "LimitNOFILE=", "--ulimit nofile="];
    expect(&findings, "nofile", "WARN", &words);
    let server = support::Start::new(place.site()).with("--cores", &core).through(&few).spawn();
    let said = server.log.text();
    assert!(said.contains("only 64 descriptors allowed: raise RLIMIT_NOFILE"), "{said}");
    server.stop();
    // So few that the start itself would meet EMFILE.
    let fewer = ["prlimit", "--nofile=22:22"];
    let findings = place.doctor(&fewer, None, &one);
    expect(&findings, "nofile", "FAIL", &["RLIMIT_NOFILE is 22", "LimitNOFILE="]);
    let (code, said) = place.refusal(&fewer, None, &["--listen", "127.0.0.1:0", "--cores", &core]);
    assert_eq!(code, Some(77), "{said}");
    expect_words(&said, &["22 descriptors are allowed", "raise RLIMIT_NOFILE", "FAIL  nofile: ", "LimitNOFILE="]);
}

/// Makes pipes until this user's pages are used up, then runs what follows while it holds them.
const HOARD: &str = r#"
import fcntl, os, subprocess, sys
held = []
while True:
    held.append(os.pipe())
    try:
        if fcntl.fcntl(held[-1][1], 1031, 1 << 20) < 1 << 20: break
    except OSError:
        break
    assert len(held) < 400, "no limit"
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"#;

#[test]
fn a_used_up_pipe_budget_is_told() {
    if !is_root() || !has("python3") {
        return;
    }
    let soft = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").unwrap_or_default();
    if !soft.trim().parse::<u64>().is_ok_and(|pages| (1..=65_536).contains(&pages)) {
        support::skip("a machine that bounds the pipe pages of a user");
        return;
    }
    let place = Place::new();
    let findings = place.doctor(&["python3", "-c", HOARD], Some(PIPES), &FREE);
    expect(&findings, "pipe", "WARN", &["1024 KiB were asked for", "fs.pipe-user-pages-soft", "CAP_SYS_RESOURCE"]);
}

#[test]
fn a_port_in_use_is_told_by_both() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let findings = place.doctor(&[], None, &["--listen", &address, "--admin", "off"]);
    expect(&findings, "port", "FAIL", &["EADDRINUSE", &address, "--listen", "ss -ltnp"]);
    let findings = place.doctor(&[], None, &["--listen", "127.0.0.1:0", "--admin", &address]);
    expect(&findings, "port", "FAIL", &["EADDRINUSE", &address, "--admin"]);
    let (code, said) = place.refusal(&[], None, &["--listen", &address]);
    assert_eq!(code, Some(1), "{said}");
    expect_words(&said, &["cannot listen on", "EADDRINUSE", "FAIL  port: ", "ss -ltnp"]);
    let elsewhere = place.doctor(&[], None, &["--listen", "192.0.2.1:8080", "--admin", "off"]);
    expect(&elsewhere, "port", "FAIL", &["EADDRNOTAVAIL", "192.0.2.1"]);
}

#[test]
fn an_unreadable_root_is_told_by_both() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    std::fs::set_permissions(place.site(), PermissionsExt::from_mode(0o700)).expect("mode");
    let findings = place.doctor(&[], Some(STRANGER), &FREE);
    expect(&findings, "root", "FAIL", &["EACCES", "uid 65503", "runAsUser", "--volume"]);
    let (code, said) = place.refusal(&[], Some(STRANGER), &FREE[..2]);
    assert_eq!(code, Some(77), "{said}");
    expect_words(&said, &["EACCES", "FAIL  root: ", "runAsUser"]);
}

#[test]
fn a_configuration_file_is_what_is_examined() {
    let place = Place::new();
    let file = place.folder.path().join("ringway.toml");
    let text = "listen = [\"127.0.0.1:0\"]\nadmin = \"off\"\ncongestion = \"warp9\"\n[[route]]\nsource = \"nowhere\"\n";
    std::fs::write(&file, text).expect("a file");
    let done = place.run(&[], None, &["doctor", "--config", file.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    expect_words(&said, &["FAIL  congestion: warp9 is not available", "modprobe tcp_warp9", "FAIL  root: ", "ENOENT"]);
    let missing = place.run(&[], None, &["doctor", "--config", "/nowhere.toml"]);
    assert_eq!(missing.status.code(), Some(78));
}
