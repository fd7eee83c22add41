//! Tables and charts as data, and tables as text.

use super::Outcome;
use serde::Serialize;
use std::fmt::Write;

/// A table: the first column names the row.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Table {
    /// What it shows, and when and where if it was published.
    pub title: String,
    /// Heads, with units.
    pub columns: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// A row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// One that was published.
    pub fn published(title: &str, columns: &[&str], rows: &[&[&str]]) -> Self {
        let mut table = Self::new(title, columns);
        rows.iter().for_each(|row| table.row(row.iter().map(|cell| (*cell).to_owned()).collect()));
        table
    }
}

/// How a profile is drawn.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// The horizontal axis: what the categories or values are.
    pub x: String,
    /// The vertical axis, with its unit.
    pub y: String,
    /// Names of the categories, in order.
    pub categories: Vec<String>,
    /// Each with one value per category; `None` where it was not measured.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Lines through the categories instead of bars.
    pub lines: bool,
}

/// A table in lines.
pub fn text(table: &Table) -> String {
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column)).chain(table.columns.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut out = String::from(" ");
        for (at, cell) in cells.iter().enumerate() {
            let width = widths.get(at).copied().unwrap_or(0);
            // Names stand left, figures right.
            let _ = if at == 0 { write!(out, " {cell:<width$}") } else { write!(out, "  {cell:>width$}") };
        }
        format!("{}\n", out.trim_end())
    };
    let mut out = format!("{}\n{}", table.title, line(&table.columns));
    table.rows.iter().for_each(|row| out.push_str(&line(row)));
    out
}

/// What a profile came to, in lines.
pub fn outcome(outcome: &Outcome) -> String {
    let mut out = format!("\n== {}: {}\n", outcome.profile, outcome.about);
    for table in &outcome.tables {
        let _ = write!(out, "\n{}", text(table));
    }
    out.push('\n');
    for verdict in &outcome.verdicts {
        let holds = if verdict.held { "holds" } else { "DOES NOT HOLD" };
        let _ = writeln!(out, "{holds}: {} (measured {:.3})", verdict.text, verdict.measured);
    }
    outcome.warnings.iter().for_each(|warning| {
        let _ = writeln!(out, "warning: {warning}");
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let mut table = Table::new("what", &["row", "us/KiB"]);
        table.row(vec!["a long name".into(), "1.5".into()]);
        table.row(vec!["b".into(), "10.25".into()]);
        assert_eq!(text(&table), "what\n  row          us/KiB\n  a long name     1.5\n  b             10.25\n");
    }
}
