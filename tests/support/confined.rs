//! The lists of system calls that deploy/ ships: what the container profile and the unit allow. The whole black-box suite
//! runs under one of them with `RINGWAY_TEST_CONFINED=container` or `unit`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A file of deploy/.
pub fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// Names the container profile lists; `NAME=ERRNO` where it says how the call fails.
pub fn container() -> Vec<String> {
    let text = std::fs::read_to_string(deploy("seccomp/ringway.json")).expect("the profile");
    let profile: serde_json::Value = serde_json::from_str(&text).expect("the profile is JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let mut all = Vec::new();
    for rule in profile["syscalls"].as_array().expect("rules") {
        // What the run-time does before the program starts is not the program's need.
        if rule["comment"].as_str().is_some_and(|comment| comment.starts_with("the runtime itself")) {
            continue;
        }
        for name in rule["names"].as_array().expect("names") {
            let name = name.as_str().expect("a name");
            all.push(match &rule["errnoRet"] {
                serde_json::Value::Null => name.to_owned(),
                errno => format!("{name}={errno}"),
            });
        }
    }
    all
}

/// A group of systemd's (`@system-service`) with the groups inside it.
fn group(name: &str, into: &mut BTreeSet<String>) {
    let told = super::output(Command::new("systemd-analyze").args(["syscall-filter", name]));
    for word in String::from_utf8_lossy(&told).lines().skip(1).map(str::trim) {
        match word {
            "" => {}
            _ if word.starts_with('#') => {}
            _ if word.starts_with('@') => group(word, into),
            _ => {
                into.insert(word.to_owned());
            }
        }
    }
}

/// Names the unit allows, its lines applied in order as systemd does.
pub fn unit() -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy("systemd/ringway.service")).expect("the unit");
    let mut all = BTreeSet::new();
    // systemd itself adds what every program needs.
    group("@default", &mut all);
    for line in text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (denied, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
        for name in names.split_whitespace() {
            let mut named = BTreeSet::new();
            if name.starts_with('@') {
                group(name, &mut named);
            } else {
                named.insert(name.to_owned());
            }
            if denied {
                all.retain(|call| !named.contains(call));
            } else {
                all.extend(named);
            }
        }
    }
    all
}

/// The words that start what follows them under a list.
pub fn launcher(calls: &str) -> Vec<OsString> {
    // The system's own Python: every user may execute it.
    vec!["/usr/bin/python3".into(), "-c".into(), include_str!("confined.py").into(), calls.into()]
}

/// What stands before the binary, as `RINGWAY_TEST_CONFINED` wants it.
pub fn asked_for() -> Vec<OsString> {
    static CALLS: OnceLock<Option<String>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| match std::env::var("RINGWAY_TEST_CONFINED").ok()?.as_str() {
        "container" => Some(container().join(" ")),
        "unit" => Some(unit().into_iter().collect::<Vec<_>>().join(" ")),
        other => panic!("RINGWAY_TEST_CONFINED is container or unit, not {other}"),
    });
    calls.as_deref().map(launcher).unwrap_or_default()
}
