//! What every black-box test stands on: the built binary started on free ports, a client that sees every byte, trees of
//! known content, and the server's own words when something fails.
//!
//! Nothing here sleeps to synchronise: readiness is a line the server prints, an end is a pidfd that becomes readable.
//! `RINGWAY_TEST_SERVER=nginx` serves the same trees with nginx instead, which tells a wrong client from a wrong server.
#![allow(dead_code, unused_imports)] // each test binary uses its own part

pub mod client;
pub mod confined;
pub mod load;
pub mod metrics;
pub mod nginx;
pub mod origin;
pub mod process;
pub mod s3;
pub mod server;
pub mod tree;

pub use client::{Client, sha256};
pub use server::{Server, Start};

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The engines that can be forced, and `auto`.
pub const ENGINES: [&str; 5] = ["auto", "send", "send-zc", "splice", "sendfile"];

/// How an engine is named in metric labels.
pub fn engine_label(engine: &str) -> String {
    engine.replace('-', "_")
}

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_ringway");

/// True where the same tests run against nginx (to debug the tests themselves).
pub fn against_nginx() -> bool {
    std::env::var("RINGWAY_TEST_SERVER").is_ok_and(|name| name == "nginx")
}

/// Whether a program is in PATH (or in the sbin folders, where Debian keeps servers).
pub fn which(tool: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).map(|folder| Path::new(folder).join(tool)).find(|file| file.is_file())
}

/// Says that a test is skipped, by name, with what it needs; under CI that is a failure.
/// Written past the test harness's capture, so that the runner can count it.
pub fn skip(needs: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nskipped: {name} needs {needs}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    assert!(std::env::var_os("CI").is_none(), "{name} needs {needs}, and under CI nothing may be skipped");
}

/// True if `tool` is here; otherwise the test is skipped by name.
pub fn has(tool: &str) -> bool {
    let found = which(tool).is_some();
    if !found {
        skip(tool);
    }
    found
}

/// True if this process may do what root may; otherwise the test is skipped by name.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("root");
    }
    root
}

/// Asks until it is so, at most `limit`; for facts that no event announces (a counter that follows a completed send).
pub fn eventually(what: &str, limit: Duration, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a foreign client and returns its standard output; a failure shows its standard error.
pub fn output(command: &mut std::process::Command) -> Vec<u8> {
    let told = format!("{command:?}");
    let result = command.output().unwrap_or_else(|error| panic!("cannot run {told}: {error}"));
    assert!(
        result.status.success(),
        "{told} ended with {}: {}{}",
        result.status,
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
    result.stdout
}
