//! One origin as every core sees it: its addresses, looked up again and again, and whether it is fit to be asked.
//!
//! Cores report what they met (passive checks); one thread of its own looks names up and performs active checks, with
//! blocking calls that no core ever waits for. Invariant: everything here is shared and cheap to read: cores take no
//! lock that is held across a system call.

use crate::clock::{Clock, Nanos};
use crate::config::{HostRule, OriginRoute, OriginUrl};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

/// Failures in a row after which an origin is left alone for a while.
const FAILURES: u32 = 3;
/// The first such while; each further failure doubles it.
const OUT_FIRST: Duration = Duration::from_secs(1);
/// The longest.
const OUT_MOST: Duration = Duration::from_secs(30);
/// Active checks that must agree before an origin is called down or up.
const AGREE: u32 = 2;
/// Bytes of a health response that are looked at.
const HEALTH_BYTES: usize = 512;

/// One origin.
#[derive(Debug)]
pub struct Origin {
    /// Where it is.
    pub url: OriginUrl,
    /// Its name in metrics and messages: host and port.
    pub name: String,
    addresses: RwLock<Vec<SocketAddr>>,
    turn: AtomicUsize,
    failures: AtomicU32,
    out_until: AtomicU64,
    /// Active checks say that it is down.
    down: AtomicBool,
    /// Active checks so far.
    pub checks: AtomicU64,
    /// Active checks that failed.
    pub checks_failed: AtomicU64,
    /// Lookups of the name that failed.
    pub lookups_failed: AtomicU64,
}

impl Origin {
    /// An origin without addresses yet.
    pub fn new(url: OriginUrl) -> Self {
        let name = match url.host.contains(':') {
            true => format!("[{}]:{}", url.host, url.port),
            false => format!("{}:{}", url.host, url.port),
        };
        Self {
            url,
            name,
            addresses: RwLock::default(),
            turn: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            out_until: AtomicU64::new(0),
            down: AtomicBool::new(false),
            checks: AtomicU64::new(0),
            checks_failed: AtomicU64::new(0),
            lookups_failed: AtomicU64::new(0),
        }
    }

    /// The next of its addresses, one after the other; `None` while its name is unknown.
    pub fn address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.read().ok()?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        addresses.get(turn % addresses.len().max(1)).copied()
    }

    /// Addresses it has now.
    pub fn address_count(&self) -> usize {
        self.addresses.read().map_or(0, |addresses| addresses.len())
    }

    /// Whether it should be asked.
    pub fn is_up(&self, now: Nanos) -> bool {
        !self.down.load(Ordering::Relaxed) && self.out_until.load(Ordering::Relaxed) <= now.0
    }

    /// It did not answer, or not like an HTTP server.
    pub fn failed(&self, now: Nanos) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= FAILURES {
            let doubled = OUT_FIRST.saturating_mul(1 << (failures - FAILURES).min(10));
            self.out_until.store(now.after(doubled.min(OUT_MOST)).0, Ordering::Relaxed);
        }
    }

    /// It answered.
    pub fn worked(&self) {
        // Read first: the line stays shared between cores while all is well.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.out_until.store(0, Ordering::Relaxed);
        }
    }

    /// Looks its name up, blocking; old addresses stay where that fails.
    pub fn look_up(&self) -> Result<(), String> {
        match (self.url.host.as_str(), self.url.port).to_socket_addrs() {
            Ok(found) => {
                let found: Vec<SocketAddr> = found.collect();
                if found.is_empty() {
                    return self.unknown("the name has no address");
                }
                if let Ok(mut addresses) = self.addresses.write()
                    && *addresses != found
                {
                    *addresses = found;
                }
                Ok(())
            }
            Err(error) => self.unknown(&crate::error::describe(&error)),
        }
    }

    fn unknown(&self, why: &str) -> Result<(), String> {
        self.lookups_failed.fetch_add(1, Ordering::Relaxed);
        Err(format!("the address of {} could not be found: {why}", self.name))
    }

    /// Asks for `path` and says whether the answer was 2xx or 3xx, blocking for at most `patience` per step.
    fn check(&self, path: &str, host: &str, patience: Duration) -> bool {
        let ask = || -> std::io::Result<bool> {
            let address = self.address().ok_or(std::io::ErrorKind::NotFound)?;
            let mut stream = TcpStream::connect_timeout(&address, patience)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            let agent = concat!("ringway/", env!("CARGO_PKG_VERSION"), " health");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n")?;
            let mut head = Vec::new();
            let mut piece = [0; HEALTH_BYTES];
            while head.len() < b"HTTP/1.1 200".len() {
                match stream.read(&mut piece)? {
                    0 => break,
                    n => head.extend_from_slice(&piece[..n]),
                }
            }
            Ok(head.starts_with(b"HTTP/1.") && matches!(head.get(9), Some(b'2' | b'3')))
        };
        ask().unwrap_or(false)
    }
}

/// One route's origins and how they are watched.
#[derive(Debug)]
pub struct Watched {
    /// The origins.
    pub origins: Vec<Arc<Origin>>,
    /// The route's configuration.
    pub route: OriginRoute,
}

/// The thread that looks names up and performs active checks; it ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    /// Looks every name up once, so that the first request finds addresses; returns what could not be found. Then
    /// starts the thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(watched: Vec<Watched>, resolve: Duration, clock: Clock) -> std::io::Result<(Self, Vec<String>)> {
        let warnings: Vec<String> =
            watched.iter().flat_map(|route| &route.origins).filter_map(|origin| origin.look_up().err()).collect();
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let told = Arc::clone(&end);
        let run = move || watch(&watched, resolve, clock, &told);
        let thread = std::thread::Builder::new().name("origins".to_owned()).spawn(run)?;
        Ok((Self { end, thread: Some(thread) }, warnings))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Ok(mut end) = self.end.0.lock() {
            *end = true;
        }
        self.end.1.notify_all();
        // A lookup may block for seconds in the system's resolver; nobody needs its answer any more.
        drop(self.thread.take());
    }
}

fn watch(watched: &[Watched], resolve: Duration, clock: Clock, end: &(Mutex<bool>, Condvar)) {
    let mut looked_up = clock.now();
    let mut checked: Vec<Nanos> = watched.iter().map(|_| Nanos(0)).collect();
    let mut streaks: Vec<Vec<(bool, u32)>> =
        watched.iter().map(|route| route.origins.iter().map(|_| (true, 0)).collect()).collect();
    loop {
        let next = watched.iter().filter(|route| route.route.health_path.is_some());
        let pause = next.map(|route| route.route.health_interval).min().unwrap_or(resolve).min(resolve);
        // Names that are not known yet are tried again soon.
        let unknown = watched.iter().flat_map(|route| &route.origins).any(|origin| origin.address_count() == 0);
        let pause = if unknown { pause.min(Duration::from_secs(1)) } else { pause };
        let Ok(guard) = end.0.lock() else { return };
        match end.1.wait_timeout_while(guard, pause, |end| !*end) {
            Ok((end, _)) if !*end => {}
            _ => return,
        }
        let now = clock.now();
        for origin in watched.iter().flat_map(|route| &route.origins) {
            let due = now.since(looked_up) >= resolve;
            if (due || origin.address_count() == 0)
                && let Err(why) = origin.look_up()
                && due
            {
                // A name that is not known is tried every second and told about with the others.
                tracing::warn!("{why}");
            }
        }
        if now.since(looked_up) >= resolve {
            looked_up = now;
        }
        for (at, route) in watched.iter().enumerate() {
            let Some(path) = &route.route.health_path else { continue };
            if now.since(checked[at]) < route.route.health_interval && checked[at] != Nanos(0) {
                continue;
            }
            checked[at] = now;
            let patience = route.route.health_interval.clamp(Duration::from_millis(100), Duration::from_secs(5));
            for (origin, streak) in route.origins.iter().zip(&mut streaks[at]) {
                let host = match &route.route.host {
                    HostRule::Fixed(name) => name.clone(),
                    _ => origin.url.authority(),
                };
                let target = format!("{}{path}", origin.url.prefix);
                note(origin, origin.check(&target, &host, patience), streak);
            }
        }
    }
}

/// Counts a check; [`AGREE`] in a row change the verdict.
fn note(origin: &Origin, good: bool, streak: &mut (bool, u32)) {
    origin.checks.fetch_add(1, Ordering::Relaxed);
    if !good {
        origin.checks_failed.fetch_add(1, Ordering::Relaxed);
    }
    *streak = if streak.0 == good { (good, streak.1.saturating_add(1)) } else { (good, 1) };
    if streak.1 >= AGREE && origin.down.swap(!good, Ordering::Relaxed) == good {
        match good {
            true => tracing::info!("origin {} is up again", origin.name),
            false => tracing::warn!("origin {} fails its health checks and is not asked", origin.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::origin_url;

    fn origin(url: &str) -> Origin {
        Origin::new(origin_url(url).expect("a URL"))
    }

    #[test]
    fn three_failures_in_a_row_put_an_origin_out_for_a_while_that_doubles() {
        let origin = origin("http://a:1");
        let second = |n: u64| Nanos(n * 1_000_000_000);
        origin.failed(second(0));
        origin.failed(second(0));
        assert!(origin.is_up(second(0)));
        origin.worked();
        origin.failed(second(0));
        origin.failed(second(0));
        assert!(origin.is_up(second(0)), "an answer in between starts the count again");
        origin.failed(second(0));
        assert!(!origin.is_up(second(0)));
        assert!(origin.is_up(second(1)), "it is tried again");
        origin.failed(second(1));
        assert!(!origin.is_up(second(2)) && origin.is_up(second(3)));
        (0..40).for_each(|_| origin.failed(second(3)));
        assert!(!origin.is_up(second(32)) && origin.is_up(second(33)), "and never left alone longer than that");
        origin.worked();
        assert!(origin.is_up(second(3)));
    }

    #[test]
    fn active_checks_must_agree() {
        let origin = origin("http://a:1");
        let mut streak = (true, 0);
        note(&origin, false, &mut streak);
        assert!(origin.is_up(Nanos(0)));
        note(&origin, false, &mut streak);
        assert!(!origin.is_up(Nanos(0)));
        note(&origin, true, &mut streak);
        assert!(!origin.is_up(Nanos(0)));
        note(&origin, true, &mut streak);
        assert!(origin.is_up(Nanos(0)));
        assert_eq!((origin.checks.load(Ordering::Relaxed), origin.checks_failed.load(Ordering::Relaxed)), (4, 2));
    }

    #[test]
    fn a_name_is_looked_up_and_its_addresses_taken_in_turn() {
        let origin = origin("http://127.0.0.1:81/x/");
        assert_eq!(origin.address(), None);
        origin.look_up().expect("an address is its own name");
        assert_eq!(origin.address(), Some("127.0.0.1:81".parse().expect("address")));
        assert_eq!(origin.url.to_string(), "http://127.0.0.1:81/x");
    }
}
