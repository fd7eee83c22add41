//! A live view of a running server, from its admin address: `scrape` reads, `frame` shows, this asks and draws.
//!
//! One thread asks, so that a server that hangs does not keep the terminal; the terminal is restored on every way out.

pub mod frame;
pub mod scrape;

use crate::clock::Clock;
use crate::config::AdminAddress;
use crate::control::client;
use crate::error::{Error, Kind, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use scrape::{Scrape, View};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// What is to be watched, and how.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Where.
    pub admin: AdminAddress,
    /// Between two scrapes.
    pub interval: Duration,
    /// Print one interval and end.
    pub once: bool,
    /// As a JSON object, with `once`.
    pub json: bool,
}

/// How often keys, signals and news are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Columns of `--once`, wide enough for every line.
const ONCE_COLUMNS: usize = 100;

fn ask(admin: &AdminAddress) -> Result<Scrape> {
    let (code, text) = client::ask(admin, "GET", "/metrics", "")?;
    let scrape = Scrape::parse(&text);
    if code != 200 || !scrape.is_ours() {
        let why = format!("what answers there (status {code}) is not a ringway");
        return Err(Error::new(Kind::Runtime, "read /metrics", why).remedy("name the admin address, see serve --admin"));
    }
    Ok(scrape)
}

/// One interval as text.
///
/// # Errors
/// Nobody answers there, or it is not a ringway.
pub fn once(watch: &Watch) -> Result<String> {
    let clock = Clock::start();
    let (began, old) = (clock.now(), ask(&watch.admin)?);
    std::thread::sleep(watch.interval);
    let (ended, new) = (clock.now(), ask(&watch.admin)?);
    let view = View::between(&old, &new, ended.since(began).as_secs_f64());
    if watch.json {
        return Ok(format!("{}\n", view.json()));
    }
    let lines = frame::lines(&view, ONCE_COLUMNS, usize::MAX);
    Ok(lines.iter().map(|line| format!("{}\n", line.strip_prefix("== ").unwrap_or(line).trim_end())).collect())
}

/// Shows it until `q`, ^C or a signal.
///
/// # Errors
/// Standard output is no terminal, or cannot be drawn on.
pub fn live(watch: &Watch) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        return Err(Error::new(Kind::Usage, "draw", "standard output is no terminal").remedy("use --once"));
    }
    let failed = |error: std::io::Error| Error::os("draw on the terminal", &error);
    let end = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&end)).map_err(failed)?;
    }
    // Its panic hook restores the terminal first.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let done = run(&mut terminal, watch, &end).map_err(failed);
    ratatui::restore();
    done
}

fn run(terminal: &mut ratatui::DefaultTerminal, watch: &Watch, end: &AtomicBool) -> std::io::Result<()> {
    let (tell, told) = mpsc::channel();
    let (admin, interval) = (watch.admin.clone(), watch.interval);
    // It ends with the process, or when nobody listens any more.
    std::thread::spawn(move || {
        let clock = Clock::start();
        while tell.send((clock.now(), ask(&admin))).is_ok() {
            std::thread::sleep(interval);
        }
    });
    let (mut last, mut view, mut note) = (None, None, "asking ...".to_owned());
    let mut fresh = true;
    while !end.load(Ordering::Relaxed) {
        while let Ok((at, answer)) = told.try_recv() {
            fresh = true;
            match answer {
                Ok(new) => {
                    if let Some((before, old)) = &last {
                        view = Some(View::between(old, &new, crate::clock::Nanos::since(at, *before).as_secs_f64()));
                    }
                    last = Some((at, new));
                    note = format!("every {:.1} s; q quits", interval.as_secs_f64());
                }
                Err(error) => {
                    // What was shown is of the past.
                    (last, view) = (None, None);
                    note = format!("{error}; trying again every {:.1} s, q quits", interval.as_secs_f64());
                }
            }
        }
        if std::mem::take(&mut fresh) {
            terminal.draw(|frame| frame::draw(frame, view.as_ref(), &note))?;
        }
        if !event::poll(LOOK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if control => return Ok(()),
                    _ => {}
                }
            }
            Event::Resize(..) => fresh = true,
            _ => {}
        }
    }
    Ok(())
}
