//! `--metrics ADDR`: the run's own numbers for Prometheus while it goes on.
//!
//! One thread answers one scrape at a time from a text that the controlling thread renews with every interval; cores are
//! not asked.

use super::report::{Interval, Start};
use crate::error::{Error, Result};
use crate::telemetry::tester::Tester;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long one scrape may take to ask and to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request at most.
const REQUEST_MOST: usize = 8 << 10;

/// What is shown.
#[derive(Debug)]
pub struct Live {
    tester: Tester,
    text: Arc<Mutex<String>>,
}

impl Live {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::os(format!("listen for scrapes at {address}"), &error).remedy("use another address with --metrics")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let live = Self {
            tester: Tester { end: "none", sent: vec![0], received: vec![0], ..Tester::default() },
            text: Arc::default(),
        };
        let text = Arc::clone(&live.text);
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let now = text.lock().map(|text| text.clone()).unwrap_or_default();
                // A scraper that leaves is no concern of the run.
                let _ = answer(stream, &now);
            }
        };
        std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        eprintln!("metrics on http://{bound}/metrics");
        live.show();
        Ok(live)
    }

    fn show(&self) {
        if let Ok(mut text) = self.text.lock() {
            *text = self.tester.render();
        }
    }

    /// A run begins.
    pub fn start(&mut self, start: &Start) {
        let test = &start.test_start;
        self.tester.end = match (test.engine.as_str(), test.protocol.as_str()) {
            ("sink", _) => "receiver",
            (_, "http") => "client",
            _ => "sender",
        };
        self.tester.engine = if self.tester.end == "sender" { &test.engine } else { &test.receive }.clone();
        self.tester.streams = test.num_streams;
        self.show();
    }

    /// An interval is over.
    pub fn interval(&mut self, interval: &Interval) {
        let tester = &mut self.tester;
        let cores = if tester.end == "sender" { &mut tester.sent } else { &mut tester.received };
        cores.resize(cores.len().max(interval.cores.len()), 0);
        for core in &interval.cores {
            cores[core.core as usize] += core.bytes;
        }
        for via in &interval.vias {
            match tester.vias.iter_mut().find(|(name, _)| *name == via.via) {
                Some((_, bytes)) => *bytes += via.bytes,
                None => tester.vias.push((via.via.clone(), via.bytes)),
            }
        }
        tester.cpu[0] += interval.cpu_seconds;
        tester.cpu[1] += interval.remote_cpu_seconds;
        tester.requests += interval.requests;
        tester.retransmits += interval.retransmits;
        (tester.unsent, tester.cwnd, tester.rtt) = (interval.notsent_bytes, interval.snd_cwnd, interval.rtt / 1e6);
        self.show();
    }

    /// The run is over.
    pub fn end(&mut self) {
        self.tester.streams = 0;
        self.show();
    }
}

fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MOST {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let asked = [&b"GET /metrics "[..], b"GET /metrics?"].iter().any(|line| request.starts_with(line));
    let (status, body) = if asked { ("200 OK", text) } else { ("404 Not Found", "try /metrics\n") };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
