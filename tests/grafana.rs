//! The dashboards, rules and their runbook in `grafana/`: made from one source, in step with the table of metrics, clean
//! by the rules of dashboard-linter, and answered with data by a Prometheus that scrapes a server under load.
//!
//! `UPDATE=1 cargo test --test grafana` rewrites the files; without it a difference is a failure.

#[path = "grafana/live.rs"]
mod live;
#[path = "grafana/model.rs"]
mod model;
#[path = "grafana/panels.rs"]
mod panels;
#[path = "grafana/rules.rs"]
mod rules;
#[path = "support/mod.rs"]
mod support;

use model::{Kind, Steps, written};
use ringway::telemetry::names::{self, Type};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana")
}

/// Every generated file, by its place in `grafana/`.
fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = panels::all()
        .iter()
        .map(|board| {
            let text = serde_json::to_string_pretty(&board.json()).expect("JSON") + "\n";
            (format!("dashboards/{}.json", board.uid), text)
        })
        .collect();
    files.push(("alerts/ringway.rules.yml".into(), rules::rules()));
    files.push(("alerts/ringway.test.yml".into(), rules::proofs()));
    files.push(("ALERTS.md".into(), rules::runbook()));
    files
}

#[test]
fn the_files_are_what_the_source_says() {
    for (name, text) in files() {
        let path = folder().join(&name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("grafana/");
            std::fs::write(&path, &text).expect("a file of grafana/");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == text, "grafana/{name} differs from tests/grafana/: run UPDATE=1 cargo test --test grafana");
    }
    for folder in ["dashboards", "alerts"].map(|name| folder().join(name)) {
        for entry in std::fs::read_dir(folder).expect("grafana/").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(files().iter().any(|(file, _)| file.ends_with(&name)), "nothing makes {name}: remove it");
        }
    }
}

/// Names of metrics in an expression, each with what stands before and behind it.
fn metrics_in(expr: &str) -> Vec<(&str, &str, &str)> {
    let mut found = Vec::new();
    for start in ["ringway_", "process_"] {
        for (at, _) in expr.match_indices(start) {
            let inside = expr[..at].ends_with(|letter: char| letter.is_alphanumeric() || "_:".contains(letter));
            let length = expr[at..].find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let (name, rest) = expr[at..].split_at(length.unwrap_or(expr.len() - at));
            if !inside {
                found.push((name, &expr[..at], rest));
            }
        }
    }
    found
}

/// What is wrong with the names of an expression: unknown, a histogram without its part, a counter without a rate.
fn misuse(expr: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, before, rest) in metrics_in(expr) {
        let base = name.strip_suffix("_bucket").unwrap_or(name);
        let Some(family) = names::ALL.iter().find(|family| family.name == base) else {
            wrong.push(format!("{name} is no metric"));
            continue;
        };
        if (family.kind == Type::Histogram) != name.ends_with("_bucket") {
            wrong.push(format!("{name} is a {}", family.kind.text()));
        }
        let rated = ["rate(", "increase("].iter().any(|function| before.ends_with(function));
        if rated != (family.kind != Type::Gauge) && !before.ends_with("changes(") {
            wrong.push(format!("{name} is a {}: rates are for counters and only for them", family.kind.text()));
        }
        let range = rest.trim_start_matches(|letter| letter != '}').starts_with("}[") || rest.starts_with('[');
        if rated && !range {
            wrong.push(format!("{name}: a rate without its range"));
        }
    }
    wrong
}

#[test]
fn a_misused_metric_is_noticed() {
    assert_eq!(misuse("sum(rate(ringway_sent_bytes_total{$S}[$R]))"), [""; 0]);
    for wrong in [
        "ringway_sent_bytes_total{$S}",
        "rate(ringway_ready{$S}[$R])",
        "rate(ringway_http_ttfb_seconds{$S}[$R])",
        "rate(ringway_sent_bytes_total{$S})",
    ] {
        assert!(!misuse(wrong).is_empty(), "{wrong}");
    }
}

#[test]
fn every_metric_exists_and_is_used_as_its_type_wants() {
    let mut wrong = Vec::new();
    for board in panels::all() {
        for panel in board.panels() {
            for (expr, _) in &panel.queries {
                wrong.extend(misuse(expr).into_iter().map(|why| format!("{}: {}: {why}", board.uid, panel.title)));
            }
        }
    }
    let ratios: Vec<String> = rules::WINDOWS.iter().map(|window| rules::error_ratio(window)).collect();
    let rules = rules::RECORDS.iter().map(|(_, expr)| *expr).chain(rules::ALERTS.iter().map(|alert| alert.expr));
    for expr in rules.chain(ratios.iter().map(String::as_str)) {
        wrong.extend(misuse(expr).into_iter().map(|why| format!("{expr}: {why}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_linters_rules_hold() {
    const UNITS: &[&str] = &["short", "percentunit", "bps", "Bps", "bytes", "reqps", "ops", "s", "ns", "bool_yes_no"];
    let mut wrong = Vec::new();
    let mut uids = BTreeSet::new();
    for board in panels::all() {
        let json = board.json();
        let mut say = |what: String| wrong.push(format!("{}: {what}", board.uid));
        assert!(uids.insert(board.uid), "two dashboards called {}", board.uid);
        if json["editable"] != false || json["schemaVersion"] != 42 || !json["id"].is_null() {
            say("is not editable, schema 42, without an id".into());
        }
        let list = json["templating"]["list"].as_array().expect("variables");
        for (name, label) in [("datasource", "Data source"), ("job", "Job"), ("instance", "Instance")] {
            let found: Vec<_> = list.iter().filter(|variable| variable["name"] == name).collect();
            if found.len() != 1 || found[0]["label"] != label {
                say(format!("one variable {name}, labelled {label}"));
            }
        }
        for variable in list.iter().filter(|variable| variable["type"] == "query") {
            let good = variable["multi"] == true && variable["allValue"] == ".+" && variable["refresh"] == 2;
            if !good || variable["datasource"]["uid"] != "$datasource" {
                say(format!("variable {} is multi, .+ for all, read again when the time changes", variable["name"]));
            }
        }
        let (mut ids, mut cells, mut titles) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for panel in json["panels"].as_array().expect("panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{}: an id stands twice", board.uid);
            let place = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
            for (x, y) in (place("x")..place("x") + place("w"))
                .flat_map(|x| (place("y")..place("y") + place("h")).map(move |y| (x, y)))
            {
                if x >= 24 || !cells.insert((x, y)) {
                    say(format!("{} overlaps or leaves the grid", panel["title"]));
                    break;
                }
            }
            if panel["type"] != "row" && panel["datasource"]["uid"] != "${datasource}" {
                say(format!("{} names its data source", panel["title"]));
            }
        }
        for panel in board.panels() {
            if !titles.insert(panel.title) {
                say(format!("{} stands twice", panel.title));
            }
            if panel.title.is_empty()
                || !panel.about.ends_with('.')
                || panel.queries.is_empty()
                || panel.queries.len() > 6
            {
                say(format!("{}: title, a description of whole sentences, one to six queries", panel.title));
            }
            if !UNITS.contains(&panel.unit) || (panel.steps == Steps::Load && panel.unit != "percentunit") {
                say(format!("{}: unit {}", panel.title, panel.unit));
            }
            for (expr, legend) in &panel.queries {
                let text = written(expr);
                let selectors = metrics_in(&text).len() + text.matches("ALERTS{").count();
                if text.matches("job=~\"$job\",instance=~\"$instance\"").count() != selectors {
                    say(format!("{}: every selector has job and instance: {expr}", panel.title));
                }
                if text.matches('[').count() != text.matches("[$__rate_interval]").count() || text.contains("$S") {
                    say(format!("{}: ranges are $__rate_interval: {expr}", panel.title));
                }
                let labels = expr.matches(" by (").count() > 0 || !expr.contains("sum(") || panel.kind == Kind::Table;
                if legend.is_empty() || (legend.contains("{{") && !labels) {
                    say(format!("{}: legend {legend} of {expr}", panel.title));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn promtool(words: &[&str]) {
    if !support::has("promtool") {
        return;
    }
    support::output(Command::new("promtool").current_dir(folder()).args(words));
}

#[test]
fn the_rules_are_good_and_every_alert_fires_and_does_not() {
    for alert in rules::ALERTS {
        assert!(
            !alert.fires.is_empty() && !alert.quiet.is_empty() && alert.fires != alert.quiet,
            "{}: no proof",
            alert.name
        );
        assert!(!alert.summary.is_empty() && !alert.remedy.is_empty(), "{} says what to do", alert.name);
    }
    promtool(&["check", "rules", "--lint-fatal", "alerts/ringway.rules.yml"]);
    promtool(&["test", "rules", "alerts/ringway.test.yml"]);
}

#[test]
fn the_example_configuration_is_one() {
    promtool(&["check", "config", "--lint-fatal", "prometheus.yml"]);
}
