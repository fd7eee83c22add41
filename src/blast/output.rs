//! How a run is told: lines for people as it goes, one JSON document at the end, or JSON line by line.
//!
//! Everything goes to one writer; a writer that fails (a full disk, a closed pipe) ends the run with an error instead of
//! a silent loss.

use super::live::Live;
use super::report::{Interval, Report, Start};
use super::text;
use crate::error::{Error, Kind, Result, describe};
use serde::Serialize;
use std::io::Write;

/// In which form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// iperf3-like lines.
    #[default]
    Text,
    /// One document at the end.
    Json,
    /// One object per event: start, interval, end.
    JsonLines,
    /// Nothing but what went wrong.
    Quiet,
}

/// Where it is told.
pub struct Output {
    form: Form,
    to: Box<dyn Write + Send>,
    failed: Option<String>,
    live: Option<Live>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("form", &self.form).finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Event<'a, T> {
    event: &'a str,
    data: &'a T,
}

impl Output {
    /// To standard output.
    pub fn new(form: Form) -> Self {
        Self::into(form, Box::new(std::io::stdout()))
    }

    /// To any writer.
    pub fn into(form: Form, to: Box<dyn Write + Send>) -> Self {
        Self { form, to, failed: None, live: None }
    }

    /// Shows it to Prometheus too.
    pub fn live(mut self, live: Option<Live>) -> Self {
        self.live = live;
        self
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_some() || text.is_empty() {
            return;
        }
        let newline = if text.ends_with('\n') { "" } else { "\n" };
        let done = self.to.write_all(text.as_bytes()).and_then(|()| self.to.write_all(newline.as_bytes()));
        if let Err(error) = done.and_then(|()| self.to.flush()) {
            self.failed = Some(describe(&error));
        }
    }

    fn event<T: Serialize>(&mut self, event: &str, data: &T) {
        match serde_json::to_string(&Event { event, data }) {
            Ok(line) => self.write(&line),
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    /// The run begins.
    pub fn start(&mut self, start: &Start) {
        if let Some(live) = &mut self.live {
            live.start(start);
        }
        match self.form {
            Form::Text => self.write(&text::start(start)),
            Form::JsonLines => self.event("start", start),
            Form::Json | Form::Quiet => {}
        }
    }

    /// One interval is over.
    pub fn interval(&mut self, interval: &Interval) {
        if let Some(live) = &mut self.live {
            live.interval(interval);
        }
        match self.form {
            Form::Text => self.write(&text::interval(interval)),
            Form::JsonLines => self.event("interval", interval),
            Form::Json | Form::Quiet => {}
        }
    }

    /// The run is over.
    pub fn report(&mut self, report: &Report) {
        if let Some(live) = &mut self.live {
            live.end();
        }
        match self.form {
            Form::Text => self.write(&text::report(report)),
            Form::JsonLines => self.event("end", report),
            Form::Json => match serde_json::to_string_pretty(report) {
                Ok(document) => self.write(&document),
                Err(error) => self.failed = Some(error.to_string()),
            },
            // A warning cannot be silenced.
            Form::Quiet => report.warnings.iter().for_each(|warning| eprintln!("ringway: warning: {warning}")),
        }
    }

    /// Whether everything could be written.
    ///
    /// # Errors
    /// The first write that failed.
    pub fn done(&self) -> Result<()> {
        match &self.failed {
            Some(why) => Err(Error::new(Kind::Runtime, "write the report", why.clone())),
            None => Ok(()),
        }
    }
}
