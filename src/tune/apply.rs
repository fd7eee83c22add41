//! Writes a plan and takes it back.
//!
//! Invariant: what was is on disk before the first file is written, and stays there until it is back. A write that fails
//! takes the ones before it back. The record lies in /run: like the settings themselves it does not outlive a reboot.

use super::plan::{Change, same};
use crate::error::{Error, Kind, Result, describe};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where the values that were are kept, below the root.
const STATE: &str = "run/ringway-tune.json";

fn state(root: &Path) -> PathBuf {
    root.join(STATE)
}

/// One value into one file of the kernel, read back: some take a value and keep another one.
fn write(root: &Path, path: &str, value: &str) -> std::result::Result<(), String> {
    let file = root.join(path);
    // Truncation means nothing to the kernel's files; a missing one is not made.
    let opened = std::fs::OpenOptions::new().write(true).truncate(true).open(&file);
    opened.and_then(|mut file| file.write_all(value.as_bytes())).map_err(|error| describe(&error))?;
    let is = std::fs::read_to_string(&file).map_err(|error| describe(&error))?;
    if same(path, &is, value) { Ok(()) } else { Err(format!("the kernel kept {}", is.trim())) }
}

/// Writes all changes; on a failure those that were written are taken back.
///
/// # Errors
/// They are applied already, the record cannot be kept, or a write failed: the error says what was taken back.
pub fn apply(root: &Path, changes: &[Change]) -> Result<()> {
    let record = state(root);
    let failed = |error: &std::io::Error| Error::os(format!("keep what was in {}", record.display()), error);
    let text = serde_json::to_string_pretty(changes)
        .map_err(|error| Error::new(Kind::Runtime, "keep what was", error.to_string()))?;
    // Never over an older record: that one has the machine's own values.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&record);
    match made.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all())) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(Error::new(Kind::Runtime, "apply the plan", format!("{} says it was", record.display()))
                .remedy("ringway tune --restore first"));
        }
        done => done.map_err(|error| failed(&error))?,
    }
    for (at, change) in changes.iter().enumerate() {
        let Err(why) = write(root, &change.path, &change.to) else { continue };
        // The failed one too: it may have taken a part.
        let back = take_back(root, &changes[..=at]);
        let told = match back.as_slice() {
            [] => {
                std::fs::remove_file(&record).map_err(|error| failed(&error))?;
                format!("{why}; the {at} writes before it were taken back")
            }
            lost => format!("{why}; could not take back {}: {} has what was", lost.join(", "), record.display()),
        };
        return Err(Error::new(Kind::Runtime, format!("write {} to /{}", change.to, change.path), told));
    }
    Ok(())
}

/// Writes what was, the last one first; those that could not be.
fn take_back(root: &Path, changes: &[Change]) -> Vec<String> {
    let mut lost = Vec::new();
    for change in changes.iter().rev() {
        // A file that refused the new value has the old one still.
        let is = std::fs::read_to_string(root.join(&change.path)).unwrap_or_default();
        if same(&change.path, &is, &change.from) {
            continue;
        }
        if let Err(why) = write(root, &change.path, &change.from) {
            lost.push(format!("/{} ({why})", change.path));
        }
    }
    lost
}

/// Takes back what was applied: what was done, line by line. A file somebody else has changed since is left alone.
///
/// # Errors
/// Nothing was applied, the record cannot be read, or a value could not be written; the record stays then.
pub fn restore(root: &Path) -> Result<String> {
    let record = state(root);
    let tried = || format!("restore from {}", record.display());
    let text = match std::fs::read_to_string(&record) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::new(Kind::Runtime, tried(), "it is not there: nothing was applied since the start"));
        }
        done => done.map_err(|error| Error::os(tried(), &error))?,
    };
    let changes: Vec<Change> =
        serde_json::from_str(&text).map_err(|error| Error::new(Kind::Runtime, tried(), error.to_string()))?;
    let strange = |path: &str| {
        let inside = ["proc/sys/", "proc/irq/", "sys/class/net/"].iter().any(|begin| path.starts_with(begin));
        !inside || path.split('/').any(|part| part == "..")
    };
    if let Some(change) = changes.iter().find(|change| strange(&change.path)) {
        return Err(Error::new(Kind::Runtime, tried(), format!("it names /{}, which is not ours", change.path)));
    }
    let (mut said, mut lost) = (String::new(), Vec::new());
    for change in changes.iter().rev() {
        let is = std::fs::read_to_string(root.join(&change.path)).unwrap_or_default();
        if same(&change.path, &is, &change.from) {
            continue;
        }
        if !same(&change.path, &is, &change.to) {
            said.push_str(&format!("/{}: left at {}, which is not what was applied\n", change.path, is.trim()));
            continue;
        }
        match write(root, &change.path, &change.from) {
            Ok(()) => said.push_str(&format!("/{}: {} -> {}\n", change.path, change.to, change.from)),
            Err(why) => lost.push(format!("/{} ({why})", change.path)),
        }
    }
    if !lost.is_empty() {
        return Err(Error::new(Kind::Runtime, "restore", format!("{}; the others are back", lost.join(", "))));
    }
    std::fs::remove_file(&record).map_err(|error| Error::os(tried(), &error))?;
    Ok(said)
}
