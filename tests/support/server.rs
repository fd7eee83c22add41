//! The server under test as a child process: started on free ports, waited for by its own line, killed on drop.

use super::{BINARY, metrics::Metrics, nginx, process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// What will be started.
pub struct Start {
    root: PathBuf,
    binary: PathBuf,
    listen: Vec<String>,
    admin: String,
    options: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    launcher: Vec<OsString>,
    user: Option<u32>,
    engine: String,
    pin: Option<usize>,
    scratch: Option<tempfile::TempDir>,
}

impl Start {
    /// Without SOURCE: this configuration file says everything but the addresses.
    pub fn configured(text: &str) -> Self {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let file = scratch.path().join("ringway.toml");
        std::fs::write(&file, text).expect("a configuration file");
        Self { scratch: Some(scratch), ..Self::new("") }.with("--config", file.display())
    }

    /// SOURCE is a directory or a URL.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self {
            root: root.as_ref().to_owned(),
            binary: BINARY.into(),
            listen: vec!["127.0.0.1:0".to_owned()],
            admin: "127.0.0.1:0".to_owned(),
            options: Vec::new(),
            environment: Vec::new(),
            launcher: Vec::new(),
            user: None,
            engine: "auto".to_owned(),
            pin: None,
            scratch: None,
        }
    }

    /// One more option with its value.
    pub fn with(mut self, option: &str, value: impl ToString) -> Self {
        self.options.push(option.into());
        self.options.push(value.to_string().into());
        self
    }

    /// One more option without a value.
    pub fn flag(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    pub fn engine(mut self, engine: &str) -> Self {
        self.engine = engine.to_owned();
        self.with("--engine", engine)
    }

    /// On this CPU only.
    pub fn core(mut self, cpu: usize) -> Self {
        self.pin = Some(cpu);
        self.with("--cores", cpu)
    }

    pub fn listen(mut self, addresses: &[&str]) -> Self {
        self.listen = addresses.iter().map(ToString::to_string).collect();
        self
    }

    pub fn admin(mut self, address: &str) -> Self {
        self.admin = address.to_owned();
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Another copy of the binary (one that another user may execute).
    pub fn binary(mut self, path: impl AsRef<Path>) -> Self {
        self.binary = path.as_ref().to_owned();
        self
    }

    /// Started through these words, which end by executing what follows them.
    pub fn through(mut self, words: &[&str]) -> Self {
        self.launcher = words.iter().map(OsString::from).collect();
        self
    }

    /// As this user and group.
    pub fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    fn command(&self) -> Command {
        let mut words = self.launcher.clone();
        words.extend(super::confined::asked_for());
        words.push(self.binary.clone().into());
        words.push("serve".into());
        if !self.root.as_os_str().is_empty() {
            words.push(self.root.clone().into());
        }
        for address in &self.listen {
            words.push("--listen".into());
            words.push(address.into());
        }
        words.push("--admin".into());
        words.push((&self.admin).into());
        words.extend(self.options.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("NOTIFY_SOCKET");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RINGWAY_") {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(id) = self.user {
            command.uid(id).gid(id);
        }
        command
    }

    /// Starts it and waits until it says that it serves.
    pub fn spawn(self) -> Server {
        if super::against_nginx() {
            let sendfile = self.engine != "send";
            return nginx::Nginx { root: self.root.clone(), sendfile, pin: self.pin, log: None }.spawn();
        }
        let mut child = self.command().spawn().expect("the built binary starts");
        let log = Log::follow(&mut child);
        let Some(ready) = log.wait_for("listening on http://", START_LIMIT) else {
            let _ = child.kill();
            let status = child.wait();
            panic!("the server did not say that it serves ({status:?}):\n{}", log.text());
        };
        let (mut addresses, mut admin) = (Vec::new(), None);
        for (at, _) in ready.match_indices("http://") {
            let word = &ready[at + 7..];
            let end = word.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c))).unwrap_or(word.len());
            let Ok(address) = word[..end].trim_end_matches(['.', ':']).parse() else { continue };
            let before = &ready[at.saturating_sub(24)..at];
            if before.rfind("admin").is_some_and(|admin_at| !before[admin_at..].contains("listen")) {
                admin = Some(address);
            } else if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        assert!(!addresses.is_empty(), "no address in the start-up line: {ready}");
        Server { child, addresses, admin, log, ready, ended: None, scratch: self.scratch }
    }

    /// Starts it where it should refuse: its exit code and what it said.
    pub fn refused(self) -> (Option<i32>, String) {
        let mut child = self.command().spawn().expect("the built binary starts");
        let log = Log::follow(&mut child);
        let Some(status) = process::wait(&mut child, START_LIMIT) else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the server runs where it should have refused to start:\n{}", log.text());
        };
        (status.code(), log.finish())
    }
}

/// What the child says on its standard error, line by line.
pub struct Log {
    shared: Arc<(Mutex<Said>, Condvar)>,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    ended: bool,
}

impl Log {
    pub fn follow(child: &mut Child) -> Self {
        let shared = Arc::new((Mutex::new(Said::default()), Condvar::new()));
        let stderr = child.stderr.take().expect("stderr is piped");
        let said = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                said.0.lock().unwrap().lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                said.1.notify_all();
                line.clear();
            }
            said.0.lock().unwrap().ended = true;
            said.1.notify_all();
        });
        Self { shared }
    }

    /// The first line that contains `text`, if it comes in time.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Option<String> {
        let start = Instant::now();
        let mut said = self.shared.0.lock().unwrap();
        loop {
            if let Some(line) = said.lines.iter().find(|line| line.contains(text)) {
                return Some(line.clone());
            }
            let left = limit.checked_sub(start.elapsed())?;
            if said.ended {
                return None;
            }
            said = self.shared.1.wait_timeout(said, left).unwrap().0;
        }
    }

    pub fn text(&self) -> String {
        self.shared.0.lock().unwrap().lines.join("\n")
    }

    /// Everything said until the end of the stream.
    pub fn finish(&self) -> String {
        let said = self.shared.0.lock().unwrap();
        let said = self.shared.1.wait_timeout_while(said, START_LIMIT, |said| !said.ended).unwrap().0;
        said.lines.join("\n")
    }
}

/// A running server.
pub struct Server {
    pub child: Child,
    pub addresses: Vec<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub log: Log,
    /// The line that told it serves.
    pub ready: String,
    ended: Option<ExitStatus>,
    scratch: Option<tempfile::TempDir>,
}

impl Server {
    /// A server of another make, with the folder that must live as long.
    pub fn foreign(mut child: Child, address: SocketAddr, scratch: tempfile::TempDir) -> Self {
        let log = Log::follow(&mut child);
        let ready = String::new();
        Self { child, addresses: vec![address], admin: None, log, ready, ended: None, scratch: Some(scratch) }
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All processes that do its work (one, or a master with its workers).
    pub fn pids(&self) -> Vec<u32> {
        let mut all = vec![self.pid()];
        all.extend(process::children(self.pid()));
        all
    }

    pub fn client(&self) -> super::Client {
        super::Client::connect(self.address())
    }

    pub fn metrics(&self) -> Metrics {
        Metrics::scrape(self.admin.expect("the admin listener is on"))
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the server still runs");
    }

    pub fn term(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// How it ended, if it does so in time.
    pub fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = process::wait(&mut self.child, limit);
        }
        self.ended
    }

    /// Ends it as a power cut would, without a chance to tidy up.
    pub fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.end(Duration::from_secs(10)).expect("SIGKILL ends it");
    }

    /// Ends it as an operator would and expects a clean end.
    pub fn stop(mut self) {
        self.term();
        let status = self.end(Duration::from_secs(35)).expect("an idle server drains at once");
        assert_eq!(status.code(), Some(0), "exit code after SIGTERM:\n{}", self.log.text());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let died = self.ended.is_none() && self.child.try_wait().ok().flatten().is_some();
        if self.ended.is_none() {
            for pid in process::children(self.pid()) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            println!("--- the server's standard error ---\n{}\n---", self.log.finish());
            return;
        }
        let said = self.log.finish();
        assert!(!died, "the server ended by itself:\n{said}");
        assert!(!said.contains("panicked at"), "the server panicked:\n{said}");
    }
}
