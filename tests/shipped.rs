//! What a package ships beside the binary, made by the binary itself: completions a shell takes, pages `man` can show.

mod support;

use std::process::Command;

/// What the binary says.
fn said(words: &[&str]) -> String {
    String::from_utf8(support::output(Command::new(support::BINARY).args(words))).expect("UTF-8")
}

#[test]
fn bash_takes_its_completions() {
    if !support::has("bash") {
        return;
    }
    let script = said(&["completions", "bash"]);
    let ask = format!(
        "{script}\nCOMP_WORDS=(ringway serve --drain-t) COMP_CWORD=2; _ringway ringway --drain-t serve; echo \"${{COMPREPLY[@]}}\""
    );
    let replies = support::output(Command::new("bash").args(["--norc", "-c", &ask]));
    assert_eq!(String::from_utf8_lossy(&replies).trim(), "--drain-timeout");
}

#[test]
fn an_unknown_shell_is_told_which_there_are() {
    let done = Command::new(support::BINARY).args(["completions", "tcsh"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{told}");
    assert!(told.contains("bash") && told.contains("zsh"), "{told}");
}

#[test]
fn the_pages_are_good_roff() {
    if !support::has("mandoc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    said(&["man", folder.path().to_str().expect("UTF-8")]);
    let mut pages = 0;
    for page in std::fs::read_dir(folder.path()).expect("the folder").flatten() {
        pages += 1;
        let lint = Command::new("mandoc").args(["-Tlint", "-Werror"]).arg(page.path()).output().expect("mandoc runs");
        assert!(lint.status.success(), "{:?}: {}", page.file_name(), String::from_utf8_lossy(&lint.stdout));
        let shown = support::output(Command::new("mandoc").args(["-Tutf8"]).arg(page.path()));
        assert!(shown.len() > 200, "{:?}", page.file_name());
    }
    assert!(pages > 6, "{pages} pages");
}
