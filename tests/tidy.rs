//! The repository as data: who may import whom, where unsafe may live, who may ask what time it is, who may spell a metric.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder or file of `src/` and what of ours it may use. Arrows point only downwards: a name further up never appears in
/// the list of one further down. A file entry (`cache::fill`) overrides its folder's.
const MAY_USE: &[(&str, &[&str])] = &[
    ("main", &["cli", "doctor", "top", "config", "serve", "bench", "blast", "control", "telemetry", "error", "clock"]),
    ("tune", &["config", "error"]),
    ("top", &["control", "telemetry", "config", "error", "clock"]),
    ("doctor", &["config", "error", "sys"]),
    ("cli", &["bench", "blast", "top", "tune", "config", "error", "sys", "telemetry"]),
    ("control", &["http", "shard", "telemetry", "config", "error", "clock", "sys"]),
    (
        "serve",
        &[
            "http",
            "store",
            "transfer",
            "upstream",
            "cache",
            "shard",
            "ring",
            "sys",
            "telemetry",
            "control",
            "config",
            "error",
            "clock",
        ],
    ),
    ("blast", &["http", "transfer", "store", "shard", "ring", "sys", "telemetry", "config", "error", "clock"]),
    ("bench", &["blast", "config", "error", "clock", "sys"]),
    ("upstream", &["http", "shard", "ring", "sys", "telemetry", "config", "error", "clock"]),
    ("upstream::pool", &["http", "clock"]),
    ("upstream::hop", &["http", "clock"]),
    ("cache", &["http", "transfer", "store", "shard", "ring", "sys", "telemetry", "config", "error", "clock"]),
    ("cache::key", &["http", "clock"]),
    ("cache::policy", &["http", "clock"]),
    ("cache::index", &["http", "clock"]),
    ("cache::journal", &[]),
    ("cache::keeper", &["sys", "error", "clock"]),
    ("transfer", &["store", "shard", "ring", "sys", "telemetry", "config", "error", "clock"]),
    ("transfer::plan", &["sys", "config", "clock", "telemetry::tally"]),
    ("transfer::pump", &["sys", "clock", "telemetry::tally"]),
    ("store", &["transfer::plan", "ring", "shard", "http", "sys", "telemetry", "config", "error", "clock"]),
    ("store::resolve", &["http", "config"]),
    ("shard", &["ring", "sys", "clock", "telemetry", "config", "error"]),
    ("ring", &["sys", "error", "clock", "telemetry::tally"]),
    ("sys", &["error"]),
    ("telemetry", &["error", "config", "clock"]),
    // The renderer and the process collector read what cores publish; nothing below them reads these two.
    ("telemetry::render", &["shard", "sys", "error", "config", "clock"]),
    ("telemetry::publish", &["shard", "sys", "error", "config", "clock"]),
    ("telemetry::process", &["sys", "error", "clock"]),
    ("telemetry::names", &[]),
    ("telemetry::tally", &[]),
    ("config", &["error"]),
    ("http", &[]),
    ("clock", &[]),
    ("error", &[]),
];

/// Folders that may contain unsafe code.
const UNSAFE: &[&str] = &["sys", "ring"];

struct File {
    path: PathBuf,
    /// `transfer::plan`, `ring`, `clock`.
    module: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, each: &mut dyn FnMut(PathBuf)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_symlink() || name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            walk(&path, each);
        } else {
            each(path);
        }
    }
}

/// Every source file without its comments.
fn sources() -> Vec<File> {
    let src = root().join("src");
    let mut files = Vec::new();
    walk(&src, &mut |path| {
        if path.extension().is_none_or(|extension| extension != "rs") {
            return;
        }
        let relative = path.strip_prefix(&src).unwrap().with_extension("");
        let mut parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if parts.len() > 1 && parts.last().is_some_and(|last| last == "mod") {
            parts.pop();
        }
        let text = std::fs::read_to_string(&path).expect("source is UTF-8");
        files.push(File { path, module: parts.join("::"), text: without_comments(&text) });
    });
    assert!(files.len() > 5, "no source found");
    files.sort_by(|a, b| a.module.cmp(&b.module));
    files
}

/// Line comments become empty; the count of lines stays. (A `//` inside a string ends that line here, which only hides
/// what is behind a URL.)
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn rule_of(module: &str) -> Option<&'static [&'static str]> {
    let mut name = module;
    loop {
        if let Some((_, allowed)) = MAY_USE.iter().find(|(folder, _)| *folder == name) {
            return Some(allowed);
        }
        name = name.rsplit_once("::")?.0;
    }
}

/// Names behind `crate::` (or `ringway::` in main), `telemetry` or `telemetry::tally`, groups taken apart, each with its
/// line.
fn imports(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for prefix in ["crate::", "ringway::"] {
        for (at, _) in text.match_indices(prefix) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
                continue;
            }
            let line = text[..at].matches('\n').count() + 1;
            let rest = text[at + prefix.len()..].trim_start();
            let word = |text: &str| {
                let single =
                    |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
                let first = single(text);
                let second = text[first.len()..].strip_prefix("::").map(single).unwrap_or_default();
                if second.is_empty() { first } else { format!("{first}::{second}") }
            };
            if let Some(group) = rest.strip_prefix('{') {
                // The first words of the group's members at depth one.
                let (mut depth, mut member) = (0, String::new());
                for letter in group.chars() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            found.push((line, word(member.trim_start())));
                            member.clear();
                            continue;
                        }
                        _ => {}
                    }
                    member.push(letter);
                }
                found.push((line, word(member.trim_start())));
            } else {
                found.push((line, word(rest)));
            }
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

#[test]
fn modules_import_only_downwards() {
    let mut wrong = Vec::new();
    for file in sources() {
        if file.module == "lib" {
            continue;
        }
        let folder = file.module.split("::").next().unwrap();
        // A folder's tests may look at more than the folder itself.
        if file.module.ends_with("::tests") {
            continue;
        }
        let Some(allowed) = rule_of(&file.module) else {
            wrong.push(format!("{}: no rule for {}; add it to the table", file.path.display(), file.module));
            continue;
        };
        // Unit tests, last in each file, may build what they test from further up.
        for (line, name) in imports(file.text.split("#[cfg(test)]").next().unwrap()) {
            let first = name.split("::").next().unwrap();
            let ours = MAY_USE.iter().any(|(folder, _)| *folder == first);
            if ours && first != folder && !allowed.contains(&first) && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}:{line}: {} may not use {name}", file.path.display(), file.module));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_table_itself_points_downwards() {
    // Folders may use each other in one direction only; otherwise the picture has a circle.
    let folders: BTreeMap<&str, &[&str]> =
        MAY_USE.iter().filter(|(name, _)| !name.contains("::")).map(|(name, allowed)| (*name, *allowed)).collect();
    for (name, allowed) in &folders {
        for used in *allowed {
            let back = folders.get(used).is_some_and(|theirs| theirs.contains(name));
            assert!(!back, "{name} and {used} may use each other");
        }
    }
}

#[test]
fn unsafe_lives_in_two_folders() {
    let mut wrong = Vec::new();
    for file in sources() {
        if UNSAFE.contains(&file.module.split("::").next().unwrap()) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let is_word = |word: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word);
            if is_word("unsafe") || (line.contains("allow(") && line.contains("unsafe_code")) {
                wrong.push(format!("{}:{}: {}", file.path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "unsafe outside of src/sys and src/ring:\n{}", wrong.join("\n"));
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    assert!(lib.contains("#![deny(unsafe_code)]"), "the fence stands in lib.rs");
}

#[test]
fn the_clock_is_read_in_one_place() {
    for file in sources() {
        if file.module == "clock" {
            continue;
        }
        for what in ["Instant::now(", "SystemTime::now("] {
            // Tests may measure themselves; they are last in each file. The control plane's runtime has its own clock.
            let text =
                file.text.split("#[cfg(test)]").next().unwrap().replace("tokio::time::Instant", "tokio::time::Own");
            if let Some(at) = text.find(what) {
                let line = text[..at].matches('\n').count() + 1;
                panic!("{}:{line}: {what}) belongs into clock.rs", file.path.display());
            }
        }
    }
}

#[test]
fn metric_names_are_spelled_in_one_place() {
    let names = root().join("src/telemetry/names.rs");
    if !names.exists() {
        return;
    }
    for file in sources() {
        if file.path == names {
            continue;
        }
        let text = file.text.split("#[cfg(test)]").next().unwrap();
        if let Some(at) = text.find("\"ringway_") {
            let line = text[..at].matches('\n').count() + 1;
            panic!("{}:{line}: a metric is named outside of telemetry/names.rs", file.path.display());
        }
    }
}

#[test]
fn every_metric_in_tests_and_documents_exists() {
    let names = root().join("src/telemetry/names.rs");
    let Ok(table) = std::fs::read_to_string(&names) else { return };
    let mut wrong = Vec::new();
    walk(root(), &mut |path| {
        let kind = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let relative = path.strip_prefix(root()).unwrap().to_owned();
        if !["rs", "md", "json", "yml", "yaml"].contains(&kind) || relative.starts_with("src") {
            return;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for (at, _) in text.match_indices("ringway_") {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
                continue;
            }
            let name: String =
                text[at..].chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
            let base = ["_count", "_sum", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            let known = |name: &str| {
                table.contains(&format!("\"{name}\""))
                    || table.contains(&format!("\"{}\"", name.trim_start_matches("ringway_")))
            };
            if name.len() > "ringway_".len() && !known(&name) && !known(base) {
                wrong.push(format!("{}: {name}", relative.display()));
            }
        }
    });
    assert!(wrong.is_empty(), "names that no metric has:\n{}", wrong.join("\n"));
}

#[test]
fn nothing_names_a_place_on_one_machine() {
    // Built from parts, so that this file does not name them either.
    let places: Vec<String> =
        ["work/shared", "work/main", "tmp/wt", "root/", "home/"].iter().map(|place| format!("/{place}")).collect();
    let mut wrong = Vec::new();
    walk(root(), &mut |path| {
        let Ok(text) = std::fs::read_to_string(&path) else { return };
        if path.ends_with("Cargo.lock") {
            return;
        }
        for (number, line) in text.lines().enumerate() {
            for place in &places {
                let found = line.match_indices(place.as_str()).any(|(at, _)| {
                    // The beginning of a path, not a part of a longer one such as `{root}/root/`.
                    line[..at].chars().next_back().is_none_or(|before| " \"'`(=:<".contains(before))
                });
                if found {
                    wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
        }
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn source_files_say_what_they_are() {
    let src = root().join("src");
    walk(&src, &mut |path| {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//!"), "{} begins with what it is and why", path.display());
        }
    });
}

#[test]
fn the_two_scripts_can_be_run() {
    use std::os::unix::fs::PermissionsExt;
    for script in ["tests/run", ".ci/run"] {
        let path = root().join(script);
        let mode = path.metadata().unwrap_or_else(|error| panic!("{script}: {error}")).permissions().mode();
        assert!(mode & 0o111 != 0, "{script} is not executable");
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("#!/usr/bin/env bash"), "{script}");
    }
}
