//! The Debian package: built, judged by lintian, installed into a clean Debian, started there as its unit would, stopped,
//! removed.

use crate::support::confined::deploy;
use crate::support::{Client, has, is_root, output, process, server::Log};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A minimal Debian with systemd's tools in a folder of its own; made once and kept in target/ as an archive.
fn debian(into: &Path) {
    let archive = root().join("target/debian-root.tar");
    if !archive.is_file() {
        let part = archive.with_extension("part.tar");
        output(
            Command::new("timeout")
                .args(["300", "mmdebstrap", "--quiet", "--variant=essential", "--include=systemd", "bookworm"])
                .arg(&part),
        );
        std::fs::rename(&part, &archive).unwrap();
    }
    output(Command::new("tar").args(["--numeric-owner", "-xf"]).arg(&archive).arg("-C").arg(into));
}

/// Runs words in that Debian; what is mounted there is gone with them.
fn inside(debian: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", "mount -t proc proc \"$0/proc\"; exec chroot \"$0\" \"$@\""]).arg(debian);
    command
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[test]
fn the_package_installs_serves_stops_and_leaves() {
    let tools = ["cargo-deb", "lintian", "mmdebstrap", "dpkg-deb", "unshare"];
    if !tools.iter().all(|tool| has(tool)) || !is_root() {
        return;
    }
    output(Command::new("timeout").arg("600").arg(deploy("debian/build")).args([
        "--quiet",
        "-o",
        "target/debian/test.deb",
    ]));
    let package = root().join("target/debian/test.deb");
    // Errors fail it; warnings it shows.
    let lint = Command::new("lintian").args(["--allow-root", "--fail-on", "error"]).arg(&package).output().unwrap();
    assert!(
        lint.status.success(),
        "{}{}",
        String::from_utf8_lossy(&lint.stdout),
        String::from_utf8_lossy(&lint.stderr)
    );

    let folder = tempfile::tempdir().unwrap();
    let debian_root = folder.path();
    debian(debian_root);
    std::fs::copy(&package, debian_root.join("ringway.deb")).unwrap();
    output(&mut inside(debian_root, &["dpkg", "--install", "/ringway.deb"]));
    for file in ["usr/share/man/man1/ringway.1.gz", "usr/share/bash-completion/completions/ringway"] {
        assert!(debian_root.join(file).is_file(), "{file} is not in the package");
    }
    let unit = debian_root.join("usr/lib/systemd/system/ringway.service");
    let unit = std::fs::read_to_string(unit).expect("the unit is installed");

    // As the unit does it: its check, then its command, as its user, with its one capability.
    let line = |key: &str| -> Vec<String> {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    let as_user = |words: &[String]| {
        let mut all = vec!["setpriv", "--reuid=ringway", "--regid=ringway", "--clear-groups", "--no-new-privs"];
        all.extend(["--inh-caps=-all", "--bounding-set=-all"]);
        all.extend(words.iter().map(String::as_str));
        inside(debian_root, &all)
    };
    output(&mut as_user(&line("ExecStartPre=")));
    std::fs::write(debian_root.join("var/lib/ringway/www/index.html"), "from a package").unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = as_user(&line("ExecStart="))
        .env("RINGWAY_LISTEN", listen.to_string())
        .env("RINGWAY_ADMIN", "off")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::follow(&mut child);
    let serves = log.wait_for("listening on http://", Duration::from_secs(20));
    let body = serves.is_some().then(|| Client::connect(listen).get("/").body);
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
    let ended = process::wait(&mut child, Duration::from_secs(20));
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(body.as_deref(), Some(&b"from a package"[..]), "{}", log.text());
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{}", log.text());

    output(&mut inside(debian_root, &["dpkg", "--purge", "ringway"]));
    for gone in ["usr/bin/ringway", "etc/ringway", "var/cache/ringway"] {
        assert!(!debian_root.join(gone).exists(), "{gone} stayed behind");
    }
    assert!(debian_root.join("var/lib/ringway/www/index.html").is_file(), "the operator's files stay");
}

#[test]
fn scripts_are_good() {
    if !has("shellcheck") {
        return;
    }
    let mut scripts = vec![root().join("tests/run"), root().join(".ci/run")];
    scripts.extend(["build", "postinst", "postrm"].map(|name| deploy(&format!("debian/{name}"))));
    let found = Command::new("shellcheck").args(["--severity=warning"]).args(&scripts).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}
