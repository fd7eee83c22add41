//! `ringway top` against a running server: once as text and JSON, and on a terminal under load, which it gives back.

mod support;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use support::{BINARY, Start, has, output, tree};

/// Runs `body` while a client asks for a file of 1 MiB over and over.
fn under_load<T>(server: &support::Server, body: impl FnOnce() -> T) -> T {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !end.load(Ordering::Relaxed) {
                assert_eq!(client.get("/1048576.bin").status, 200);
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        end.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn site() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    tree::put(folder.path(), "1048576.bin", 3, tree::MIB);
    folder
}

#[test]
fn one_interval_as_text_and_as_json() {
    let site = site();
    let server = Start::new(site.path()).spawn();
    let url = format!("http://{}", server.admin.expect("admin"));
    let json = under_load(&server, || {
        output(Command::new(BINARY).args(["top", &url, "--once", "--json", "--interval", "500ms"]))
    });
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert!(json["requests_per_second"].as_f64().is_some_and(|rate| rate > 1.0), "{json}");
    assert!(json["sent_bytes_per_second"].as_f64().is_some_and(|rate| rate > 1e6), "{json}");
    let text = output(Command::new(BINARY).args(["top", &url, "--once", "--interval", "200ms"]));
    let text = String::from_utf8(text).expect("UTF-8");
    for word in ["ringway ", " ready: ", "sendfile", "core  cpu  busy"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    server.stop();
}

#[test]
fn a_unix_socket_is_watched_too_and_others_are_refused() {
    let site = site();
    let socket = site.path().join("admin");
    let place = format!("unix:{}", socket.display());
    let server = Start::new(site.path()).admin(&place).spawn();
    let text = output(Command::new(BINARY).args(["top", &place, "--once", "--interval", "100ms"]));
    assert!(String::from_utf8_lossy(&text).contains(" ready: "));
    // The served address is not the admin address.
    let served = server.address().to_string();
    let done = Command::new(BINARY).args(["top", &served, "--once"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{told}");
    assert!(told.contains("is not a ringway"), "{told}");
    let done = Command::new(BINARY).args(["top", &place]).stdout(Stdio::null()).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(2) && told.contains("--once"), "{told}");
    server.stop();
}

/// Runs what follows on a terminal of 80x24, waits for a text (bounded), ends it as told, prints all it wrote.
const PTY: &str = r#"
import os, pty, select, signal, struct, sys, time, fcntl, termios
how, want = sys.argv[1], sys.argv[2].encode()
pid, fd = pty.fork()
if pid == 0: os.execv(sys.argv[3], sys.argv[3:])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

seen, told, limit = b"", False, time.monotonic() + 15
while time.monotonic() < limit:
    if select.select([fd], [], [], 0.1)[0]:
        try: part = os.read(fd, 65536)
        except OSError: break
        if not part: break
        seen += part
    if want in seen and not told:
        told = True
        os.kill(pid, signal.SIGTERM) if how == "term" else os.write(fd, b"\x03" if how == "^C" else b"q")
else:
    os.kill(pid, signal.SIGKILL)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.stdout.write(f"code {code} told {told}\n" + seen.decode(errors="replace"))
"#;

fn on_a_terminal(how: &str, want: &str, url: &str) -> String {
    let words = ["-c", PTY, how, want, BINARY, "top", url, "--interval", "200ms"];
    String::from_utf8(output(Command::new("python3").args(words))).expect("UTF-8")
}

#[test]
fn the_terminal_shows_the_load_and_is_given_back() {
    if !has("python3") {
        return;
    }
    let site = site();
    let server = Start::new(site.path()).spawn();
    let url = server.admin.expect("admin").to_string();
    for how in ["q", "^C", "term"] {
        let seen = under_load(&server, || on_a_terminal(how, "iB/s to clients", &url));
        assert!(seen.starts_with("code 0 told True"), "{how}: {seen}");
        assert!(seen.contains("\x1b[?1049h") && seen.contains("sendfile"), "{how}: {seen}");
        // The alternate screen is left and the cursor shown again.
        let left = seen.rfind("\x1b[?1049l").unwrap_or_else(|| panic!("{how}: not given back: {seen}"));
        assert!(seen.rfind("\x1b[?25h").is_some_and(|at| at > seen.find("\x1b[?1049h").unwrap_or(0)), "{how}: {seen}");
        assert!(!seen[left..].contains("panicked"), "{how}: {seen}");
    }
    server.stop();
}

#[test]
fn a_server_that_is_gone_is_said_and_asked_again() {
    if !has("python3") {
        return;
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address").to_string();
    let seen = on_a_terminal("q", "ECONNREFUSED", &free);
    assert!(seen.starts_with("code 0 told True"), "{seen}");
    let done = Command::new(BINARY).args(["top", &free, "--once"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && told.contains("ECONNREFUSED"), "{told}");
}
