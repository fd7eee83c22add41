//! The experiments from outside: each runs to its end, says what it must, and leaves nothing behind.
//!
//! Times are too short for figures here; what is judged is what cannot depend on the machine's load.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::{eventually, has, is_root, process, skip};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn bench(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("bench").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn document(words: &[&str]) -> Value {
    let mut all = words.to_vec();
    all.extend(["--quick", "--time", "0.3", "--json"]);
    let out = bench(&all).output().expect("bench runs");
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{words:?}: {errors}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Network namespaces that some process is in, or holds open.
fn namespaces() -> HashSet<String> {
    let mut found = HashSet::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        if let Ok(target) = std::fs::read_link(entry.path().join("ns/net")) {
            found.insert(target.to_string_lossy().into_owned());
        }
    }
    found
}

fn can_make_namespaces() -> bool {
    if !is_root() {
        skip("root, to make network namespaces");
        return false;
    }
    has("unshare") && has("nsenter") && has("ip") && has("tc")
}

#[test]
fn the_table_of_2001_stands_beside_todays() {
    let _alone = alone();
    let told = document(&["pinning"]);
    let profile = &told["profiles"][0];
    assert!(profile["tables"][0]["rows"].to_string().contains("213047"), "what was published");
    let rows = profile["tables"][1]["rows"].as_array().expect("rows");
    let has = |place: &str, method: &str| rows.iter().any(|row| row[0] == place && row[1] == method);
    let places: &[&str] = if process::cpus().len() > 1 { &["none", "separate", "same"] } else { &["none", "same"] };
    for place in places {
        for method in ["sendfile", "splice", "send-zc", "send 8 KiB", "UDP 8 KiB request and reply"] {
            assert!(has(place, method), "{place} {method} in {rows:?}");
        }
    }
    // Loopback copies every zero-copy byte, and the kernel says so.
    for row in rows.iter().filter(|row| row[1] == "send-zc") {
        assert_eq!(row[7], "100", "{row}");
    }
    for run in profile["runs"].as_array().expect("runs") {
        let sent = run["report"]["end"]["sum_sent"]["bytes"].as_u64().expect("bytes");
        assert!(sent > 1 << 20, "{}: {sent}", run["label"]);
    }
    assert!(told["machine"]["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
}

#[test]
fn every_other_profile_on_loopback_comes_to_its_end() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("chart.svg");
    let names = ["ttcp", "send-buffer", "notsent-lowat", "fairness", "spare-cpu", "rpc", "engines"];
    let mut words = names.to_vec();
    let path = svg.to_str().expect("UTF-8");
    words.extend(["--svg", path]);
    let told = document(&words);
    for (at, name) in names.iter().enumerate() {
        let profile = &told["profiles"][at];
        assert_eq!(profile["profile"], *name);
        let measured = profile["tables"].as_array().and_then(|tables| tables.last()).expect("a table");
        assert!(measured["rows"].as_array().is_some_and(|rows| rows.len() >= 2), "{name}: {measured}");
        let drawn = std::fs::read_to_string(folder.path().join(format!("chart-{name}.svg"))).expect("a chart");
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{name}");
    }
    let repeats = told["profiles"][0]["runs"][0]["report"]["repeats"].as_array().map_or(0, Vec::len);
    assert_eq!(repeats, 5, "ttcp has five repeats");
    // Less unsent data is held where less is allowed: a figure that no load changes.
    let level = told["profiles"][2]["verdicts"].as_array().expect("verdicts");
    let falls = level.iter().filter(|verdict| verdict["text"].as_str().is_some_and(|text| text.contains("unsent")));
    for verdict in falls {
        assert_eq!(verdict["held"], true, "{verdict}");
    }
}

#[test]
fn links_between_namespaces_are_measured_and_gone() {
    if !can_make_namespaces() {
        return;
    }
    let _alone = alone();
    let before = namespaces();
    let told = document(&["nics"]);
    let rows = told["profiles"][0]["tables"][0]["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 8, "{rows:?}");
    for row in &rows {
        let wire: f64 = row[4].as_str().and_then(|cell| cell.parse().ok()).expect("Mb/s");
        let limit: f64 = row[2].as_str().and_then(|cell| cell.parse().ok()).expect("Mb/s");
        assert!(wire > 10.0 && wire < 1.1 * limit, "{row}");
    }
    eventually("its namespaces are gone", Duration::from_secs(5), || namespaces().is_subset(&before));
    // However it ends.
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = bench(&["nics", "--time", "30"]).spawn().expect("bench starts");
        eventually("two namespaces are made", Duration::from_secs(10), || namespaces().len() >= before.len() + 2);
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), signal).expect("a signal");
        let status = process::wait(&mut child, Duration::from_secs(5)).expect("it ends");
        if signal != Signal::KILL {
            assert_eq!(status.code(), Some(130), "{signal:?}");
        }
        eventually("its namespaces are gone", Duration::from_secs(10), || namespaces().is_subset(&before));
    }
}

#[test]
fn cutting_segments_is_dear_and_offload_saves_it() {
    if !can_make_namespaces() {
        return;
    }
    let _alone = alone();
    let before = namespaces();
    let told = document(&["send-buffer"]);
    let tables = told["profiles"][0]["tables"].as_array().expect("tables");
    let rows = |table: &Value| table["rows"].as_array().expect("rows").clone();
    let levels: Vec<Value> = tables.iter().flat_map(rows).filter(|row| row[0] == "384K").collect();
    assert_eq!(levels.len(), 3, "the kernel's level, half and an eighth: {levels:?}");
    let offload = tables.iter().find(|table| table["rows"][0][0] == "on").expect("a table of offload");
    let cost = |row: usize| offload["rows"][row][4].as_str().and_then(|cell| cell.parse::<f64>().ok()).expect("us/KiB");
    // One packet of 64 KiB against 45 of 1500 bytes: no load hides that.
    assert!(cost(1) > 1.2 * cost(0), "{offload}");
    eventually("its namespaces are gone", Duration::from_secs(5), || namespaces().is_subset(&before));
}

#[test]
fn what_is_no_profile_is_told() {
    let out = bench(&["warp"]).output().expect("bench runs");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("none of pinning"));
}

#[test]
fn a_reader_that_has_gone_is_no_reason_to_abort() {
    let _alone = alone();
    // Both outputs into a pipe that nobody reads any more.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let errors = writer.try_clone().expect("a second end");
    let status =
        bench(&["rpc", "--quick", "--time", "0.3"]).stdout(writer).stderr(errors).status().expect("bench runs");
    assert_eq!(status.code(), Some(1), "an error, not a panic");
}
