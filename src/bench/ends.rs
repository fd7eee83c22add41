//! Two processes, a sink and a blast, started, bounded in time, read, and never left behind.

use crate::blast::interrupt;
use crate::blast::report::Report;
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long ends may take beyond the run itself.
const MARGIN: Duration = Duration::from_secs(20);

/// Whether ^C was pressed.
#[derive(Clone, Debug, Default)]
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// Listens from now on.
    ///
    /// # Errors
    /// Signals cannot be heard.
    pub fn listen() -> Result<Self> {
        let asked = Self::default();
        let (ear, heard) = std::sync::mpsc::channel();
        interrupt::listen(ear)?;
        let flag = Arc::clone(&asked.0);
        std::thread::spawn(move || {
            while heard.recv().is_ok() {
                flag.store(true, Ordering::Release);
            }
        });
        Ok(asked)
    }

    /// It was.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A process that does not outlive this value.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // Gone already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program's own binary, in front of it the words that lead it somewhere (`nsenter ...`).
pub fn own(through: &[String]) -> Result<Command> {
    let path = std::env::current_exe().map_err(|error| Error::os("find this program's own binary", &error))?;
    let mut command = match through.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(path);
            command
        }
        None => Command::new(path),
    };
    command.stdin(Stdio::null());
    crate::sys::die_with_parent(&mut command);
    Ok(command)
}

/// A sink that ends with its first session.
#[derive(Debug)]
pub struct Sink {
    process: Owned,
    /// Where it listens.
    pub address: String,
}

impl Sink {
    /// Starts one.
    ///
    /// # Errors
    /// It does not start; its own words are in the error.
    pub fn start(words: &[String], through: &[String]) -> Result<Self> {
        let failed = |cause: String| Error::new(Kind::Runtime, "start a sink", cause);
        let mut command = own(through)?;
        command.arg("sink").args(words).args(["--once", "--quiet"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Owned(command.spawn().map_err(|error| Error::os("start a sink", &error))?);
        let errors = process.0.stderr.take().ok_or_else(|| failed("it has no errors to read".into()))?;
        let mut lines = BufReader::new(errors).lines();
        let mut told = String::new();
        let address = loop {
            match lines.next() {
                Some(Ok(line)) => match line.strip_prefix("listening on ") {
                    Some(address) => break address.to_owned(),
                    None => told.push_str(&line),
                },
                _ => return Err(failed(told)),
            }
        };
        // Its errors go on to ours; its warnings are in the report.
        std::thread::spawn(move || {
            let said = lines.map_while(std::io::Result::ok);
            said.filter(|line| !line.starts_with("listening on ") && !line.contains("warning: "))
                .for_each(|line| crate::bench::note!("sink: {line}"));
        });
        Ok(Self { process, address })
    }

    /// Waits for it to end by itself, a moment.
    pub fn finish(mut self) {
        for _ in 0..200 {
            if !matches!(self.process.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs blast to its end and reads its report.
///
/// # Errors
/// It fails, takes too long, or was interrupted; its own words are in the error.
pub fn blast(words: &[String], through: &[String], longest: Duration, interrupted: &Interrupted) -> Result<Report> {
    let failed = |cause: String| Error::new(Kind::Runtime, format!("run blast {}", words.join(" ")), cause);
    let mut command = own(through)?;
    command.arg("blast").args(words).arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Owned(command.spawn().map_err(|error| Error::os("start a blast", &error))?);
    let read = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut from) = from {
                // What cannot be read is missed below.
                let _ = from.read_to_string(&mut text);
            }
            text
        })
    };
    let out = read(process.0.stdout.take().map(|pipe| Box::new(pipe) as _));
    let errors = read(process.0.stderr.take().map(|pipe| Box::new(pipe) as _));
    let clock = Clock::start();
    let until = clock.now().after(longest + MARGIN);
    let status = loop {
        match process.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(Error::os("wait for blast", &error)),
        }
        if interrupted.is_asked() {
            return Err(failed("interrupted".to_owned()));
        }
        if clock.now() >= until {
            return Err(failed(format!("it did not end within {} s", (longest + MARGIN).as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (out, errors) = (out.join().unwrap_or_default(), errors.join().unwrap_or_default());
    if !status.success() {
        return Err(failed(format!("{status}: {}", errors.trim())));
    }
    serde_json::from_str(&out).map_err(|error| failed(format!("its report is none: {error}")))
}
