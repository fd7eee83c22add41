//! Requests and replies of 8 KiB over UDP, one at a time, as file servers of old spoke.
//!
//! Both ends are pinned threads of this process with blocking sockets; a reply that does not come in time is counted as
//! lost and the next request is made.

use super::ends::Interrupted;
use super::place::{self, Place};
use super::table::{Chart, Table};
use super::{Outcome, Settings};
use crate::blast::latency::{Latencies, Looked};
use crate::blast::report::{Latency, service_demand};
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::sys::affinity;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a request and of a reply.
const BYTES: usize = 8192;
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Bytes of replies a second.
    pub bytes_per_second: f64,
    /// Round trips a second.
    pub trips_per_second: f64,
    /// CPU microseconds per KiB of replies, asking end.
    pub client_demand: f64,
    /// The same of the answering end.
    pub server_demand: f64,
    /// Requests without a reply.
    pub lost: u64,
    /// Of round trips.
    pub latency: Latency,
}

/// CPU nanoseconds of the calling thread so far (schedstat, exact).
fn thread_cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn pin(cpu: Option<usize>) -> std::io::Result<()> {
    cpu.map_or(Ok(()), affinity::pin)
}

fn answer(socket: &UdpSocket, cpu: Option<usize>, stop: &AtomicBool) -> std::io::Result<u64> {
    pin(cpu)?;
    let begun = thread_cpu();
    let mut buffer = vec![0; BYTES + 1];
    while !stop.load(Ordering::Acquire) {
        match socket.recv_from(&mut buffer) {
            // The number in front goes back, so that a late reply is not taken for the next.
            Ok((bytes, peer)) if bytes == BYTES => drop(socket.send_to(&buffer[..BYTES], peer)?),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(thread_cpu() - begun)
}

struct Asked {
    cpu: u64,
    lost: u64,
    trips: u64,
    seconds: f64,
    latencies: Latencies,
}

fn ask(to: SocketAddr, cpu: Option<usize>, settings: &Settings, interrupted: &Interrupted) -> std::io::Result<Asked> {
    pin(cpu)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let clock = Clock::start();
    let mut buffer = vec![0u8; BYTES + 1];
    let mut asked = Asked { cpu: 0, lost: 0, trips: 0, seconds: 0.0, latencies: Latencies::default() };
    let mut number = 0u64;
    let mut begun = (thread_cpu(), clock.now());
    let mut warm = !settings.omit.is_zero();
    loop {
        let now = clock.now();
        let since = now.since(begun.1);
        if warm && since >= settings.omit {
            warm = false;
            asked = Asked { cpu: 0, lost: 0, trips: 0, seconds: 0.0, latencies: Latencies::default() };
            begun = (thread_cpu(), now);
        } else if (!warm && since >= settings.time) || interrupted.is_asked() {
            asked.cpu = thread_cpu() - begun.0;
            asked.seconds = since.as_secs_f64();
            return Ok(asked);
        }
        number += 1;
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        socket.send(&buffer[..BYTES])?;
        loop {
            match socket.recv(&mut buffer) {
                Ok(bytes) if bytes == BYTES && buffer[..8] == number.to_le_bytes() => {
                    asked.trips += 1;
                    asked.latencies.add(clock.now().since(now).as_nanos() as u64);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    asked.lost += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// One run.
///
/// # Errors
/// A CPU cannot be had, a socket fails, no reply came at all, or it was interrupted.
pub fn measure(settings: &Settings, place: &Place, interrupted: &Interrupted) -> Result<Figures> {
    let failed = |error: std::io::Error| Error::os("exchange datagrams over loopback", &error);
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    socket.set_read_timeout(Some(Duration::from_millis(20))).map_err(failed)?;
    let to = socket.local_addr().map_err(failed)?;
    let stop = Arc::new(AtomicBool::new(false));
    let server = {
        let (stop, cpu) = (Arc::clone(&stop), place.receiver);
        std::thread::spawn(move || answer(&socket, cpu, &stop))
    };
    let client = {
        let (settings, interrupted, cpu) = (settings.clone(), interrupted.clone(), place.sender);
        std::thread::spawn(move || ask(to, cpu, &settings, &interrupted))
    };
    let ended = |what: &str| Error::new(Kind::Runtime, "exchange datagrams over loopback", format!("the {what} ended"));
    let asked = client.join().map_err(|_| ended("client"));
    stop.store(true, Ordering::Release);
    let answered = server.join().map_err(|_| ended("server"))?.map_err(failed)?;
    let asked = asked?.map_err(failed)?;
    let whole =
        Looked::at(std::iter::once(&asked.latencies)).since(&Looked::at(std::iter::once(&Latencies::default())));
    let Some(latency) = whole else {
        return Err(Error::new(Kind::Runtime, "exchange datagrams over loopback", "no reply came"));
    };
    let bytes = asked.trips * BYTES as u64;
    // The server also worked in the warm-up: its share of the whole time is taken.
    let share = settings.time.as_secs_f64() / (settings.time + settings.omit).as_secs_f64();
    Ok(Figures {
        bytes_per_second: bytes as f64 / asked.seconds.max(1e-9),
        trips_per_second: asked.trips as f64 / asked.seconds.max(1e-9),
        client_demand: service_demand(asked.cpu as f64 / 1e9, bytes),
        server_demand: service_demand(answered as f64 / 1e9 * share, bytes),
        lost: asked.lost,
        latency,
    })
}

/// The profile: every placement of this machine.
///
/// # Errors
/// As [`measure`].
pub fn profile(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let (places, missing) = place::all(Path::new("/"));
    let mut outcome = Outcome { warnings: missing, ..Outcome::default() };
    outcome.tables.push(Table::published(
        "Published, February 2001: NFS over UDP, 8 KiB, localhost, two 500 MHz Pentium II; KB/s",
        &["placement", "2.4.1", "2.4.1 zero copy"],
        &[&["none", "25600", "25000"], &["separate", "27800", "25700"], &["same", "23300", "22100"]],
    ));
    let mut table = Table::new(
        "Measured: 8 KiB request and 8 KiB reply, one at a time; bytes are those of replies",
        &[
            "placement",
            "KB/s",
            "round trips/s",
            "mean us",
            "p99 us",
            "max us",
            "client us/KiB",
            "server us/KiB",
            "lost",
        ],
    );
    let mut rates = Vec::new();
    for place in &places {
        let found = measure(settings, place, interrupted)?;
        table.row(vec![
            place.name.to_owned(),
            format!("{:.0}", found.bytes_per_second / 1e3),
            format!("{:.0}", found.trips_per_second),
            format!("{:.1}", found.latency.mean * 1e6),
            format!("{:.1}", found.latency.p99 * 1e6),
            format!("{:.1}", found.latency.max * 1e6),
            format!("{:.3}", found.client_demand),
            format!("{:.3}", found.server_demand),
            found.lost.to_string(),
        ]);
        rates.push(Some(found.trips_per_second));
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "8 KiB requests and replies over UDP".into(),
        x: "placement of the two ends".into(),
        y: "round trips a second (more is better)".into(),
        categories: places.iter().map(|place| place.name.to_owned()).collect(),
        series: vec![("round trips".into(), rates)],
        lines: false,
    });
    Ok(outcome)
}
