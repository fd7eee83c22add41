//! The configuration file: one meaning, and refusals with file, line and the nearest valid key.

use crate::support::{BINARY, Start, against_nginx, tree};
use std::process::Command;

fn check(content: &str, more: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ringway.toml");
    std::fs::write(&file, content).unwrap();
    let result = Command::new(BINARY).args(["check", "--config"]).arg(&file).args(more).output().unwrap();
    (result.status.code(), String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned())
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    let (code, said) = check("# a comment\nlistn = [\"127.0.0.1:0\"]\n", &[]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("ringway.toml") && said.contains('2') && said.contains("listn"), "{said}");
    assert!(said.replace("listn", "").contains("listen"), "the nearest key: {said}");
}

#[test]
fn a_wrong_type_is_refused_with_its_line() {
    let (code, said) = check("\n\nlisten = 7\n", &[]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains('3') && said.contains("listen"), "{said}");
}

#[test]
fn a_broken_file_and_a_missing_file_are_refused() {
    let (code, said) = check("listen = [\n", &[]);
    assert_eq!(code, Some(78), "{said}");
    let result = Command::new(BINARY).args(["check", "--config", "/nonexistent.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.status.code(), Some(78), "{said}");
    assert!(said.contains("ENOENT") && said.contains("/nonexistent.toml"), "{said}");
}

#[test]
fn a_good_file_is_said_to_be_good_and_what_it_means() {
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\nadmin = \"off\"\nengine = \"send\"\nsource = \"{}\"\n",
        tree::shared().display()
    );
    let (code, said) = check(&file, &["--print-effective"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("send") && said.contains("127.0.0.1:0"), "{said}");
}

#[test]
fn flags_win_over_environment_over_file() {
    if against_nginx() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ringway.toml");
    std::fs::write(&file, "engine = \"splice\"\n").unwrap();
    let size = tree::MIB + 1;
    let carried = |start: Start, engine: &str| {
        let server = start.with("--config", file.display()).spawn();
        assert_eq!(server.client().hash(&format!("/{size}.bin")).2, tree::hash_of(size));
        crate::support::eventually(&format!("{engine} carried it"), std::time::Duration::from_secs(3), || {
            server.metrics().sum("ringway_sent_bytes_total", &[("engine", engine), ("part", "body")]) as u64 == size
        });
    };
    carried(Start::new(tree::shared()), "splice");
    carried(Start::new(tree::shared()).env("RINGWAY_ENGINE", "send"), "send");
    carried(Start::new(tree::shared()).env("RINGWAY_ENGINE", "send").with("--engine", "sendfile"), "sendfile");
}
