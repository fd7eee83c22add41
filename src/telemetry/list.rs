//! The table of metrics for people and programs: `ringway --list-metrics` and grafana/METRICS.md.

use super::names::{ALL, Group};
use std::fmt::Write;

/// How the table is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One line each: name, type, unit, labels.
    Text,
    /// An array of objects.
    Json,
    /// A page with one table a group.
    Markdown,
}

/// The table.
pub fn list(format: Format) -> String {
    match format {
        Format::Text => ALL.iter().fold(String::new(), |text, family| {
            let labels = family.labels.join(",");
            text + &format!("{}\t{}\t{}\t{labels}\n", family.name, family.kind.text(), family.unit)
        }),
        Format::Json => {
            let rows: Vec<_> = ALL
                .iter()
                .map(|family| {
                    serde_json::json!({
                        "name": family.name,
                        "group": family.group.text(),
                        "type": family.kind.text(),
                        "unit": family.unit,
                        "labels": family.labels,
                        "help": family.help,
                    })
                })
                .collect();
            format!("{:#}\n", serde_json::Value::Array(rows))
        }
        Format::Markdown => markdown(),
    }
}

fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\nMade by `ringway --list-metrics=markdown`; a test holds the two together. Every series of the server's \
         own is there from the start (interfaces come and go, events appear with their first one). \
         `/metrics?collect[]=GROUP` answers with some groups only. `core` is a worker's index: `ringway_core_info` has its \
         CPU. Histograms have an `le` label too.\n",
    );
    for group in Group::ALL {
        // Writing into a String cannot fail.
        let _ =
            write!(page, "\n## {}\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n", group.text());
        for family in ALL.iter().filter(|family| family.group == *group) {
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind, unit, help) = (family.name, family.kind.text(), family.unit, family.help);
            let _ = writeln!(page, "| `{name}` | {kind} | {unit} | {} | {help} |", labels.join(", "));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_grafana_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/grafana/METRICS.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, list(Format::Markdown)).expect("write");
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(page == list(Format::Markdown), "{path} is old: run this test with UPDATE=1");
    }

    #[test]
    fn every_family_is_listed_in_every_format() {
        let json: serde_json::Value = serde_json::from_str(&list(Format::Json)).expect("JSON");
        let names: Vec<_> = json.as_array().expect("an array").iter().map(|row| row["name"].clone()).collect();
        assert_eq!(names, ALL.iter().map(|family| family.name).collect::<Vec<_>>());
        for format in [Format::Text, Format::Markdown] {
            let text = list(format);
            assert!(ALL.iter().all(|family| text.contains(family.name)));
        }
    }
}
