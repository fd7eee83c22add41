//! The image, for real: its own daemon in a folder of its own, built from what was compiled here (no registry is asked),
//! run under the profile that ships and under one that denies io_uring.

use crate::support::confined::deploy;
use crate::support::{Client, eventually, has, is_root, output, process};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A Docker daemon without a network that nobody else knows of; stopped, with all it made, on every path.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("ringway-docker").tempdir_in("/tmp").unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        // `timeout` ends it even if this process is killed.
        let child = Command::new("timeout")
            .args(["--kill-after=10", "240", "dockerd"])
            .args(["--data-root", &path("data"), "--exec-root", &path("run"), "--pidfile", &path("pid")])
            .args(["--host", &format!("unix://{}", path("socket"))])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"])
            .args(["--ip-masq=false", "--userland-proxy=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd starts");
        let mut daemon = Self { child, folder };
        let start = std::time::Instant::now();
        while !daemon.docker(&["version"]).output().is_ok_and(|told| told.status.success()) {
            let ended = daemon.child.try_wait().unwrap();
            let log = std::fs::read_to_string(daemon.folder.path().join("log")).unwrap_or_default();
            assert!(ended.is_none() && start.elapsed() < Duration::from_secs(60), "no dockerd ({ended:?}):\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn docker(&self, words: &[&str]) -> Command {
        // Debian's own client has BuildKit's inside; a newer one in PATH may lack its plugin.
        let own = Path::new("/usr/bin/docker");
        let mut command = Command::new("timeout");
        command.arg("120").arg(if own.is_file() { own } else { Path::new("docker") });
        command.args(words).env("DOCKER_HOST", format!("unix://{}", self.folder.path().join("socket").display()));
        command.env("DOCKER_CONFIG", self.folder.path().join("client")).env("DOCKER_BUILDKIT", "1");
        command
    }

    /// `docker run` as the README of deploy/ says it, on the host's network: here the only one.
    fn run(&self, name: &str, profile: &Path, site: &Path, (listen, admin): (SocketAddr, SocketAddr)) -> Command {
        self.docker(&[
            "run",
            "--rm",
            "--name",
            name,
            "--network=host",
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt",
            &format!("seccomp={}", profile.display()),
            "--env",
            &format!("RINGWAY_LISTEN={listen}"),
            "--env",
            &format!("RINGWAY_ADMIN={admin}"),
            "--volume",
            &format!("{}:/srv:ro", site.display()),
        ])
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.docker(&["ps", "-aq"]).output().map(|told| {
            for id in String::from_utf8_lossy(&told.stdout).split_whitespace() {
                let _ = self.docker(&["rm", "-f", id]).output();
            }
        });
        // `timeout` passes it on.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if process::wait(&mut self.child, Duration::from_secs(20)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // What a daemon that was killed left mounted would keep the folder.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let inside = self.folder.path().display().to_string();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with(&inside)) {
            let _ = Command::new("umount").args(["-l", mount]).output();
        }
    }
}

/// The static binary, compiled as the Dockerfile does from no more than its context has.
fn static_binary() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let context = tempfile::tempdir().unwrap();
    let ignore = std::fs::read_to_string(deploy("docker/Dockerfile.dockerignore")).unwrap();
    for name in ignore.lines().filter_map(|line| line.strip_prefix('!')).filter(|name| !name.starts_with("target/")) {
        output(Command::new("cp").args(["-a", "--parents", name]).arg(context.path()).current_dir(root));
    }
    let target = root.join("target/static");
    output(
        Command::new("timeout")
            .args(["600", "cargo", "build", "--quiet", "--locked", "--release", "--bin", "ringway"])
            .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
            .arg(&target)
            .current_dir(context.path())
            .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
            // It must be right, not fast: this halves the time.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    );
    target.join("x86_64-unknown-linux-gnu/release/ringway")
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn the_image_serves_under_its_profile_and_says_why_it_cannot_under_another() {
    if !cfg!(target_arch = "x86_64") || !has("dockerd") || !has("runc") || !is_root() {
        return;
    }
    let binary = static_binary();
    let elf = output(Command::new("readelf").args(["--program-headers", "--wide"]).arg(&binary));
    assert!(!String::from_utf8_lossy(&elf).contains("INTERP"), "the binary asks for a loader: it is not static");

    let daemon = Daemon::start();
    let root = env!("CARGO_MANIFEST_DIR");
    let file = deploy("docker/Dockerfile").display().to_string();
    output(&mut daemon.docker(&["build", "--build-arg", "BINARY=prebuilt", "-f", &file, "-t", "ringway", root]));
    let told = output(&mut daemon.docker(&["image", "inspect", "--format", "{{.Size}} {{.Config.User}}", "ringway"]));
    let told = String::from_utf8_lossy(&told).into_owned();
    let (size, user) = told.trim().split_once(' ').unwrap();
    assert!(size.parse::<u64>().unwrap() < 16 << 20, "the image has {size} bytes");
    assert_eq!(user, "65532:65532");

    let site = tempfile::tempdir().unwrap();
    std::fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(site.path().join("index.html"), "from a container").unwrap();

    let (listen, admin) = (free(), free());
    let profile = deploy("seccomp/ringway.json");
    let mut run = daemon.run("good", &profile, site.path(), (listen, admin));
    let mut child = run.arg("ringway").stderr(Stdio::piped()).spawn().unwrap();
    eventually("the container serves", Duration::from_secs(30), || {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            let _ = std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut said);
            panic!("the container ended with {status}: {said}");
        }
        std::net::TcpStream::connect(listen).is_ok()
    });
    assert_eq!(Client::connect(listen).get("/").body, b"from a container");
    assert_eq!(Client::connect(admin).get("/readyz").status, 200);
    output(&mut daemon.docker(&["stop", "--time", "20", "good"]));
    let ended = process::wait(&mut child, Duration::from_secs(20)).expect("docker stop ends it");
    assert_eq!(ended.code(), Some(0), "SIGTERM drains and ends well");

    // With the cache on a fresh volume, which the image's user must own.
    let (listen, admin) = (free(), free());
    let mut run = daemon.run("cached", &profile, site.path(), (listen, admin));
    run.args(["--volume", "cache:/var/cache/ringway", "ringway", "serve", "http://127.0.0.1:1/"]);
    let mut child = run.args(["--cache", "/var/cache/ringway"]).stderr(Stdio::null()).spawn().unwrap();
    eventually("the container with a cache serves", Duration::from_secs(30), || {
        assert_eq!(child.try_wait().unwrap(), None, "the container with a cache ended");
        std::net::TcpStream::connect(listen).is_ok()
    });
    assert_eq!(Client::connect(listen).get("/").status, 502, "nothing listens at the origin");
    output(&mut daemon.docker(&["stop", "--time", "20", "cached"]));
    assert_eq!(process::wait(&mut child, Duration::from_secs(20)).and_then(|status| status.code()), Some(0));

    // The same profile without the ring's calls, as container run-times have theirs.
    let mut denying: serde_json::Value = serde_json::from_slice(&std::fs::read(&profile).unwrap()).unwrap();
    let rules = denying["syscalls"].as_array_mut().unwrap();
    let before = rules.len();
    rules.retain(|rule| !rule["names"].as_array().unwrap().iter().any(|name| name == "io_uring_setup"));
    assert_eq!(rules.len(), before - 1);
    let denied = site.path().join("denied.json");
    std::fs::write(&denied, denying.to_string()).unwrap();
    let refused = daemon.run("denied", &denied, site.path(), (free(), free())).arg("ringway").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(77), "{said}");
    for word in ["io_uring", "EPERM", "seccomp"] {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}
