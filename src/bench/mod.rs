//! `ringway bench`: the experiments that ask what it costs to move bytes to a socket, each one command on one machine.
//!
//! Both ends are processes of their own, `ringway sink` and `ringway blast`, told what to do by their command line and
//! read by their JSON: what is measured is what anybody can run by hand, between machines too. Where a figure was once
//! published for the experiment, it is printed beside today's; machines differ by orders of magnitude, so shapes and
//! ratios are compared.

/// A line on standard error; a reader that has gone (a closed pipe) is no reason to panic.
macro_rules! note {
    ($($word:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($word)*);
    }};
}
pub(crate) use note;

pub mod cli;
pub mod ends;
pub mod network;
pub mod place;
pub mod profiles;
pub mod rpc;
pub mod soak;
pub mod svg;
pub mod table;

use crate::blast::machine;
use crate::blast::report::{Machine, Report};
use crate::error::{Error, Kind, Result, describe};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{Chart, Table};

/// What is to be done.
#[derive(Debug)]
pub struct Plan {
    /// Profiles in their order.
    pub profiles: Vec<&'static profiles::Profile>,
    /// How.
    pub settings: Settings,
    /// A JSON document instead of text.
    pub json: bool,
    /// Where charts go; with several profiles their names are put before the extension.
    pub svg: Option<PathBuf>,
}

/// How each run of a profile is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Measured time of one run.
    pub time: Duration,
    /// Warm-up before it.
    pub omit: Duration,
    /// Repeats where the profile repeats.
    pub repeats: u32,
    /// Fewer rows, for a first look.
    pub quick: bool,
    /// Congestion control of every flow, alike for all.
    pub congestion: String,
}

/// What a profile came to.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Which.
    pub profile: String,
    /// What it asks.
    pub about: String,
    /// Tables: what was published and what was measured.
    pub tables: Vec<Table>,
    /// Statements about the shape, and whether they held here.
    pub verdicts: Vec<Verdict>,
    /// What a reader must know.
    pub warnings: Vec<String>,
    /// Every run, whole.
    pub runs: Vec<Run>,
    /// How it is drawn.
    #[serde(skip)]
    pub chart: Option<Chart>,
}

/// One statement.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// In words, with the figure wanted.
    pub text: String,
    /// The figure measured.
    pub measured: f64,
    /// It holds.
    pub held: bool,
}

/// One run of a profile.
#[derive(Debug, Serialize)]
pub struct Run {
    /// Which row it is.
    pub label: String,
    /// As blast reported it.
    pub report: Box<Report>,
}

#[derive(Serialize)]
struct Document<'a> {
    version: String,
    machine: &'a Machine,
    congestion: &'a str,
    seconds: f64,
    profiles: &'a [Outcome],
}

impl Outcome {
    /// Keeps a run and its warnings.
    pub fn keep(&mut self, label: &str, report: &Report) {
        for warning in &report.warnings {
            // What each row shows by itself need not be said of each.
            let shown = warning.contains("zero-copy bytes")
                || (label.starts_with("same ") && warning.contains("waited more than"));
            if !shown && !self.warnings.iter().any(|known| known.ends_with(warning.as_str())) {
                self.warnings.push(format!("{label}: {warning}"));
            }
        }
        self.runs.push(Run { label: label.to_owned(), report: Box::new(report.clone()) });
    }

    /// Judges a statement.
    pub fn judge(&mut self, text: String, measured: f64, held: bool) {
        self.verdicts.push(Verdict { text, measured, held });
    }
}

/// Runs it: 0, 1 where a profile failed, 130 after ^C.
///
/// # Errors
/// A profile's name is none, or what it found cannot be written.
pub fn run(plan: &Plan) -> Result<u8> {
    let interrupted = ends::Interrupted::listen()?;
    let machine = machine::read(Path::new("/"), &[], &[]);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut code = 0;
    let written = |error: std::io::Error| Error::new(Kind::Runtime, "write the report", describe(&error));
    let mut out = std::io::stdout();
    if !plan.json {
        write!(out, "{}", heading(&machine, &plan.settings)).map_err(written)?;
    }
    for profile in &plan.profiles {
        crate::bench::note!("bench {}: {}", profile.name, profile.about);
        match (profile.run)(&plan.settings, &interrupted) {
            Ok(mut outcome) => {
                (outcome.profile, outcome.about) = (profile.name.to_owned(), profile.about.to_owned());
                if !plan.json {
                    write!(out, "{}", table::outcome(&outcome)).map_err(written)?;
                    out.flush().map_err(written)?;
                }
                if let (Some(path), Some(chart)) = (&plan.svg, &outcome.chart) {
                    let path = svg_path(path, profile.name, plan.profiles.len() > 1);
                    let drawn = svg::draw(chart);
                    std::fs::write(&path, drawn)
                        .map_err(|error| Error::os(format!("write {}", path.display()), &error))?;
                    crate::bench::note!("bench {}: drawn in {}", profile.name, path.display());
                }
                outcomes.push(outcome);
            }
            Err(error) if interrupted.is_asked() => {
                crate::bench::note!("ringway: interrupted: {error}");
                code = crate::blast::interrupt::EXIT;
                break;
            }
            Err(error) => {
                crate::bench::note!("ringway: bench {}: {error}", profile.name);
                code = 1;
            }
        }
    }
    if plan.json {
        let document = Document {
            version: format!("ringway {}", env!("CARGO_PKG_VERSION")),
            machine: &machine,
            congestion: &plan.settings.congestion,
            seconds: plan.settings.time.as_secs_f64(),
            profiles: &outcomes,
        };
        let text = serde_json::to_string_pretty(&document)
            .map_err(|error| Error::new(Kind::Runtime, "write the report", error.to_string()))?;
        writeln!(out, "{text}").map_err(written)?;
    }
    Ok(code)
}

fn heading(machine: &Machine, settings: &Settings) -> String {
    let mut text = format!(
        "ringway {} · Linux {} · {} · {} CPUs · {} · {} s a run after {} s of warm-up · congestion control {}\n",
        env!("CARGO_PKG_VERSION"),
        machine.kernel,
        machine.cpu,
        machine.cpus,
        machine.hypervisor,
        settings.time.as_secs_f64(),
        settings.omit.as_secs_f64(),
        settings.congestion,
    );
    for (fact, value) in &machine.facts {
        text.push_str(&format!("  {fact}: {value}\n"));
    }
    text
}

fn svg_path(path: &Path, profile: &str, several: bool) -> PathBuf {
    if !several {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{profile}.svg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_charts_have_several_files() {
        assert_eq!(svg_path(Path::new("a/b.svg"), "nics", true), Path::new("a/b-nics.svg"));
        assert_eq!(svg_path(Path::new("a/b.svg"), "nics", false), Path::new("a/b.svg"));
    }
}
