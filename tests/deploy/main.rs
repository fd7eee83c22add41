//! deploy/ as an operator meets it: each file is read by the program it is written for.

#[path = "../support/mod.rs"]
mod support;

mod docker;
mod manifests;
mod package;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::confined::{self, deploy};
use support::{BINARY, Start, has, is_root, output, tree};

/// A file of deploy/.
fn text(name: &str) -> String {
    std::fs::read_to_string(deploy(name)).unwrap_or_else(|error| panic!("deploy/{name}: {error}"))
}

#[test]
fn the_unit_is_good_and_hardened() {
    if !has("systemd-analyze") {
        return;
    }
    // Where it is installed there is a /usr/bin/ringway; here the built binary stands for it.
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("ringway.service");
    std::fs::write(&unit, text("systemd/ringway.service").replace("/usr/bin/ringway", BINARY)).unwrap();
    let result = Command::new("systemd-analyze").arg("verify").arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr) + String::from_utf8_lossy(&result.stdout);
    assert!(result.status.success() && said.is_empty(), "{said}");
    // An exposure above 2.0 is a failure of the command.
    output(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=20"]).arg(&unit));
}

#[test]
fn the_unit_waits_longer_than_the_packaged_drain() {
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key}"));
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap()
    };
    let stop = value(&text("systemd/ringway.service"), "TimeoutStopSec=");
    assert!(stop > value(&text("ringway.toml"), "drain_timeout = "));
}

#[test]
fn the_unit_allows_what_the_container_profile_allows() {
    if !has("systemd-analyze") {
        return;
    }
    // The suite runs under the container profile (tests/run): with this it need not run under the unit's list too.
    let unit = confined::unit();
    let lacks: Vec<String> = confined::container()
        .into_iter()
        // The first is newer than systemd's list, and done without where it fails.
        .filter(|name| name != "cachestat" && !name.contains('=') && !unit.contains(name))
        .collect();
    assert!(lacks.is_empty(), "the unit's SystemCallFilter lacks {lacks:?}");
    for call in ["mount", "ptrace", "bpf", "init_module", "setuid", "chown", "keyctl", "reboot"] {
        assert!(!unit.contains(call), "the unit allows {call}");
    }
}

#[test]
fn the_profile_names_every_call_of_a_run() {
    if !has("strace") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("calls");
    let trace_name = trace.display().to_string();
    let mut server = Start::new(tree::shared())
        // -D: the server stays our child, so that signals and its exit code are its own.
        .through(&["strace", "-D", "-f", "-qq", "-c", "-U", "name", "-o", &trace_name])
        .spawn();
    for path in ["/1.bin", "/65537.bin", "/1048577.bin", "/", "/none"] {
        assert!(server.client().get(path).status > 0, "{path}");
    }
    assert!(!support::metrics::Metrics::scrape(server.admin.unwrap()).text.is_empty());
    server.term();
    assert_eq!(server.end(Duration::from_secs(20)).and_then(|status| status.code()), Some(0));
    support::eventually("strace wrote its list", Duration::from_secs(10), || {
        std::fs::read_to_string(&trace).is_ok_and(|text| text.contains("total"))
    });
    let allowed: BTreeSet<String> =
        confined::container().iter().map(|name| name.split('=').next().unwrap().to_owned()).collect();
    let told = std::fs::read_to_string(&trace).unwrap();
    let seen: Vec<&str> = told
        .lines()
        .map(str::trim)
        .filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !["syscall", "total"].contains(word))
        .collect();
    assert!(seen.contains(&"io_uring_enter") && seen.len() > 40, "strace saw too little:\n{told}");
    let missing: Vec<&&str> = seen.iter().filter(|name| !allowed.contains(**name)).collect();
    assert!(missing.is_empty(), "deploy/seccomp/ringway.json lacks {missing:?}");
}

#[test]
fn user_and_folders_are_made_in_an_empty_root() {
    if !has("systemd-sysusers") || !has("systemd-tmpfiles") || !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = format!("--root={}", folder.path().display());
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    output(Command::new("systemd-sysusers").arg(&root).arg(deploy("systemd/sysusers.d/ringway.conf")));
    let users = std::fs::read_to_string(folder.path().join("etc/passwd")).unwrap();
    let user = users.lines().find(|line| line.starts_with("ringway:")).expect("the user");
    assert!(user.ends_with("/nologin"), "{user}");
    output(Command::new("systemd-tmpfiles").args([&root, "--create"]).arg(deploy("systemd/tmpfiles.d/ringway.conf")));
    let owner = |path: &str| {
        let meta = std::fs::metadata(folder.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        std::os::unix::fs::MetadataExt::uid(&meta).to_string()
    };
    assert_eq!(owner("var/lib/ringway/www"), "0");
    assert_eq!(owner("var/cache/ringway"), user.split(':').nth(2).unwrap());
}

#[test]
fn every_kernel_setting_exists_and_says_why() {
    let text = text("sysctl/90-ringway.conf");
    let mut count = 0;
    let mut reason = false;
    for line in text.lines() {
        if line.starts_with('#') || line.is_empty() {
            reason = line.starts_with('#');
            continue;
        }
        assert!(reason, "no reason above: {line}");
        reason = false;
        let (name, value) = line.split_once(" = ").unwrap_or_else(|| panic!("not NAME = VALUE: {line}"));
        assert!(!value.is_empty());
        let file = Path::new("/proc/sys").join(name.trim_start_matches('-').replace('.', "/"));
        assert!(name.starts_with('-') || file.is_file(), "this kernel has no {name}");
        count += 1;
    }
    assert!(count >= 10, "only {count} settings");
}

#[test]
fn the_packaged_configuration_is_good() {
    let said = output(Command::new(BINARY).args(["check", "--config"]).arg(deploy("ringway.toml")).env_clear());
    assert!(String::from_utf8_lossy(&said).contains("is good"));
}
