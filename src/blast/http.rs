//! A client that drives any HTTP/1.1 server and throws the bodies away: MSG_TRUNC where nobody looks at the bytes.
//!
//! Closed loop: a connection asks again when it has its answer. Open schedule (`--rate`): every request has a time when
//! it is due, whatever became of the one before, and its latency counts from then (no coordinated omission). A body that
//! is shorter than announced, of another hash, or of a status that is no success is an error, never a request.

use super::channel::Heard;
use super::core::{Core, Cores, Task};
use super::flows::{self, Wanted};
use super::latency::{Latencies, Looked};
use super::measure::{Meter, Snapshot, utilization};
use super::output::Output;
use super::plan::{Common, FLOWS_MOST, LONGEST, Until, Via, bytes_of_flow};
use super::receive::readable;
use super::report::{CoreInterval, End, Interval, Report, Start, Sum, Test, rate};
use super::session::repeat_of;
use super::{assertion, interrupt, machine, sample};
use crate::clock::{Clock, Nanos};
use crate::config::OriginUrl;
use crate::error::{Error, Kind, Result, describe};
use crate::http::chunked::ChunkedBody;
use crate::http::response::{self, BodyLength, Parse, ResponseLimits};
use crate::ring::op::Op;
use crate::shard::patience::Patience;
use crate::sys;
use sha2::{Digest, Sha256};
use socket2::{SockAddr, SockRef};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a server may be silent within a response.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rest after a failed request: a server in trouble is not asked in a circle.
const REST: Duration = Duration::from_millis(100);
/// Most bytes of a head, and of one receive that is looked at.
const HEAD: usize = 64 << 10;
/// Most bytes of one receive that throws away.
const CHUNK: usize = 1 << 20;
/// How long responses under way may take once the run is over.
const ENDING: Duration = Duration::from_secs(1);

/// A run against an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpPlan {
    /// What both kinds of run have.
    pub common: Common,
    /// Where the server is, by name.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Request as it is sent.
    pub request: Vec<u8>,
    /// SHA-256 that every body must have; `None`: with `verify`, that of the first.
    pub sha256: Option<[u8; 32]>,
}

/// The request for a URL with further header lines (`Name: value`).
///
/// # Errors
/// In words: it is no http URL, or a header is malformed.
pub fn request(url: &str, headers: &[String]) -> std::result::Result<(OriginUrl, Vec<u8>), String> {
    if url.starts_with("https://") {
        return Err("TLS is not spoken; use the server's http:// address".to_owned());
    }
    let rest = url.strip_prefix("http://").ok_or("it does not begin with http://")?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let origin = crate::config::origin_url(&format!("http://{}", &rest[..at]))?;
    let target = if rest[at..].starts_with('/') { rest[at..].to_owned() } else { format!("/{}", &rest[at..]) };
    let target = target.split('#').next().unwrap_or("/");
    if target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err("its path has a space or control character; encode it as %20".to_owned());
    }
    let mut lines = String::new();
    let mut has_host = false;
    for header in headers {
        let (name, value) = header.split_once(':').ok_or_else(|| format!("`{header}` is not `Name: value`"))?;
        let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !token || value.bytes().any(|byte| byte < b' ' && byte != b'\t') {
            return Err(format!("`{header}` is not `Name: value`"));
        }
        has_host |= name.eq_ignore_ascii_case("host");
        lines.push_str(&format!("{name}: {}\r\n", value.trim()));
    }
    let host = if has_host { String::new() } else { format!("Host: {}\r\n", origin.authority()) };
    let agent = concat!("User-Agent: ringway/", env!("CARGO_PKG_VERSION"), "\r\n");
    Ok((origin, format!("GET {target} HTTP/1.1\r\n{host}{agent}Accept: */*\r\n{lines}\r\n").into_bytes()))
}

/// 64 hexadecimal digits.
///
/// # Errors
/// It is not that.
pub fn digest(text: &str) -> std::result::Result<[u8; 32], String> {
    let mut out = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("it is not a SHA-256 of 64 hexadecimal digits".to_owned());
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap_or(0);
    }
    Ok(out)
}

/// What all connections of a run share.
struct Shared {
    to: SocketAddr,
    request: Vec<u8>,
    /// What bodies must hash to, where that is checked.
    hash: Option<OnceLock<[u8; 32]>>,
    congestion: Option<String>,
    receive_buffer: u64,
    /// Connections.
    flows: usize,
    rate: Option<f64>,
    /// When the schedule begins.
    began: Nanos,
    stop: AtomicBool,
    running: AtomicU64,
    /// The first failure of a request.
    first: Mutex<Option<String>>,
}

struct Connection {
    shared: Arc<Shared>,
    number: usize,
    via: Option<Via>,
    /// Requests it makes; `None`: until told to stop.
    count: Option<u64>,
    socket: Option<OwnedFd>,
}

/// Why a request came to nothing, in words.
struct Failed(String);

fn failed(why: impl Into<String>) -> Failed {
    Failed(why.into())
}

fn start(core: &Rc<Core>, mut connection: Connection) -> Task {
    let core = Rc::clone(core);
    Box::pin(async move {
        if let Err(gone) = connection.run(&core).await {
            core.counts.fail(gone);
        }
        connection.shared.running.fetch_sub(1, Ordering::AcqRel);
    })
}

impl Connection {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    async fn run(&mut self, core: &Rc<Core>) -> std::result::Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let patience = core.deadlines.patience(PATIENCE);
        let mut kept = self.socket.take().map(Rc::new);
        let mut buffer = vec![0; HEAD];
        let mut number = 0u64;
        while self.count.is_none_or(|count| number < count) && !self.stopped() {
            let due = shared.rate.map(|rate| {
                let place = self.number as f64 + number as f64 * shared.flows as f64;
                shared.began.after(Duration::from_secs_f64(place / rate))
            });
            if let Some(due) = due {
                core.sleep_until(due).await;
                if self.stopped() {
                    break;
                }
            }
            number += 1;
            let from = due.unwrap_or_else(|| core.now());
            patience.renew(PATIENCE);
            let reused = kept.is_some();
            let socket = match kept.take() {
                Some(socket) => socket,
                None => match self.connect(core, &patience).await {
                    Ok(socket) => Rc::new(socket),
                    Err(why) => return Err(why),
                },
            };
            let mut began = false;
            let mut asked = self.exchange(core, &socket, &patience, &mut buffer, &mut began).await;
            // A kept connection may be closed by the server just as we ask (RFC 9112 section 9.3.1).
            if reused && !began && asked.is_err() && !self.stopped() {
                drop(socket);
                let fresh = Rc::new(self.connect(core, &patience).await?);
                patience.renew(PATIENCE);
                asked = self.exchange(core, &fresh, &patience, &mut buffer, &mut began).await;
                kept = asked.as_ref().is_ok_and(|keep| *keep).then_some(fresh);
            } else {
                kept = asked.as_ref().is_ok_and(|keep| *keep).then_some(socket);
            }
            match asked {
                Ok(_) => {
                    core.counts.requests.add(1);
                    core.counts.latencies.add(core.now().since(from).as_nanos() as u64);
                }
                Err(_) if self.stopped() => break,
                Err(Failed(why)) => {
                    core.counts.errors.add(1);
                    if let Ok(mut first) = shared.first.lock() {
                        first.get_or_insert(why);
                    }
                    core.sleep_until(core.now().after(REST)).await;
                }
            }
            core.mover.give_way().await;
        }
        Ok(())
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            to: self.shared.to,
            session: None,
            via: self.via.as_ref(),
            core: 0,
            congestion: self.shared.congestion.as_deref(),
            send_buffer: 0,
            receive_buffer: self.shared.receive_buffer,
            notsent_lowat: 0,
        }
    }

    async fn connect(&self, core: &Rc<Core>, patience: &Patience) -> std::result::Result<OwnedFd, String> {
        let made = flows::socket_for(&self.wanted())?;
        let to = self.shared.to;
        made.set_nonblocking(true).map_err(|error| describe(&error))?;
        match made.connect(&SockAddr::from(to)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(flows::refused(to, &error)),
            _ => {}
        }
        let socket = Rc::new(OwnedFd::from(made));
        let poll = Op::Poll { fd: Rc::clone(&socket), events: libc::POLLOUT as u32 };
        if patience.within(core.ring.submit(poll)).await.is_err() {
            return Err(format!("{to} does not answer within {} s", PATIENCE.as_secs()));
        }
        if let Ok(Some(error)) = SockRef::from(&*socket).take_error() {
            return Err(flows::refused(to, &error));
        }
        // The operation that shared it is over.
        Rc::try_unwrap(socket).or_else(|shared| shared.try_clone()).map_err(|error| describe(&error))
    }

    async fn wait(
        &self,
        core: &Rc<Core>,
        socket: &Rc<OwnedFd>,
        patience: &Patience,
    ) -> std::result::Result<(), Failed> {
        patience.renew(PATIENCE);
        let waited = patience.within(readable(core, socket)).await;
        waited.map_err(|_| failed(format!("the server was silent for {} s", PATIENCE.as_secs())))
    }

    async fn receive(
        &self,
        core: &Rc<Core>,
        socket: &Rc<OwnedFd>,
        patience: &Patience,
        into: &mut [u8],
    ) -> std::result::Result<usize, Failed> {
        loop {
            let at = core.now();
            match sys::receive(socket.as_fd(), into) {
                Ok(n) => {
                    core.counts.calls.add(1);
                    core.counts.call_ns.add(core.now().since(at).as_nanos() as u64);
                    core.counts.received.add(n as u64);
                    return Ok(n);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    core.counts.again.add(1);
                    self.wait(core, socket, patience).await?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(describe(&error))),
            }
        }
    }

    /// One request and its response; whether the connection may be used again. `began`: a byte of the response came.
    async fn exchange(
        &self,
        core: &Rc<Core>,
        socket: &Rc<OwnedFd>,
        patience: &Patience,
        buffer: &mut [u8],
        began: &mut bool,
    ) -> std::result::Result<bool, Failed> {
        let request = &self.shared.request;
        let mut sent = 0;
        while sent < request.len() {
            match sys::send(socket.as_fd(), &request[sent..], false) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let poll = Op::Poll { fd: Rc::clone(socket), events: libc::POLLOUT as u32 };
                    let room = patience.within(core.ring.submit(poll)).await;
                    room.map_err(|_| failed("the server takes no request"))?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(describe(&error))),
            }
        }
        let limits = ResponseLimits { head_bytes: HEAD, header_count: 100 };
        let mut have = 0;
        // The answer is not there yet: to try would be a call for nothing.
        self.wait(core, socket, patience).await?;
        let (head, used) = loop {
            let n = self.receive(core, socket, patience, &mut buffer[have..]).await?;
            if n == 0 {
                return Err(failed("the server closed the connection without an answer"));
            }
            *began = true;
            have += n;
            match response::parse(&buffer[..have], false, &limits) {
                Parse::Done { head, used } => break (head, used),
                Parse::Partial if have < buffer.len() => {}
                Parse::Partial => return Err(failed("the response's head is longer than 64 KiB")),
                Parse::Bad(why) => return Err(failed(format!("not a response: {why}"))),
            }
        };
        let mut body = Body { core, hash: self.shared.hash.as_ref().map(|_| Sha256::new()), len: 0 };
        let rest = have - used;
        buffer.copy_within(used..have, 0);
        match head.body {
            BodyLength::None => {
                if rest > 0 {
                    return Err(failed("bytes behind a response without a body"));
                }
            }
            BodyLength::Exact(len) => {
                if rest as u64 > len {
                    return Err(failed("more bytes than Content-Length"));
                }
                body.take(&buffer[..rest]);
                self.exact(core, socket, patience, buffer, &mut body, len).await?;
            }
            BodyLength::Chunked => self.chunked(core, socket, patience, buffer, &mut body, rest).await?,
            BodyLength::UntilClose => {
                body.take(&buffer[..rest]);
                loop {
                    let n = self.receive(core, socket, patience, buffer).await?;
                    if n == 0 {
                        break;
                    }
                    body.take(&buffer[..n]);
                }
            }
        }
        if !(200..300).contains(&head.status) {
            return Err(failed(format!("the server answered {}", head.status)));
        }
        if let (Some(expected), Some(hash)) = (&self.shared.hash, body.hash.take()) {
            let got: [u8; 32] = hash.finalize().into();
            let wanted = expected.get_or_init(|| got);
            if *wanted != got {
                return Err(failed(format!("a body's SHA-256 is {}, wanted is {}", hex(&got), hex(wanted))));
            }
            core.counts.verified.add(1);
        }
        Ok(head.keep_alive() && head.body != BodyLength::UntilClose)
    }

    async fn exact(
        &self,
        core: &Rc<Core>,
        socket: &Rc<OwnedFd>,
        patience: &Patience,
        buffer: &mut [u8],
        body: &mut Body<'_>,
        len: u64,
    ) -> std::result::Result<(), Failed> {
        let short = |have| failed(format!("a body ended after {have} of {len} bytes"));
        while body.len < len {
            let left = usize::try_from(len - body.len).unwrap_or(usize::MAX);
            if body.hash.is_some() {
                let most = left.min(buffer.len());
                let n = self.receive(core, socket, patience, &mut buffer[..most]).await?;
                if n == 0 {
                    return Err(short(body.len));
                }
                body.take(&buffer[..n]);
                continue;
            }
            let at = core.now();
            match sys::socket::receive_truncated(socket.as_fd(), left.min(CHUNK)) {
                Ok(0) => return Err(short(body.len)),
                Ok(n) => {
                    core.counts.calls.add(1);
                    core.counts.call_ns.add(core.now().since(at).as_nanos() as u64);
                    core.counts.received.add(n as u64);
                    core.counts.body.add(n as u64);
                    body.len += n as u64;
                    if body.len < len && n < CHUNK {
                        core.counts.short.add(1);
                        self.wait(core, socket, patience).await?;
                    } else if body.len < len {
                        core.mover.give_way().await;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    core.counts.again.add(1);
                    self.wait(core, socket, patience).await?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(describe(&error))),
            }
        }
        Ok(())
    }

    async fn chunked(
        &self,
        core: &Rc<Core>,
        socket: &Rc<OwnedFd>,
        patience: &Patience,
        buffer: &mut [u8],
        body: &mut Body<'_>,
        mut have: usize,
    ) -> std::result::Result<(), Failed> {
        let mut framing = ChunkedBody::new();
        loop {
            let mut at = 0;
            while at < have {
                let fed =
                    framing.feed(&buffer[at..have]).map_err(|bad| failed(format!("a chunked body: {}", bad.reason)))?;
                if let Some(data) = fed.data {
                    body.take(&buffer[at + data.start..at + data.end]);
                }
                at += fed.consumed;
                if fed.done {
                    return if at == have { Ok(()) } else { Err(failed("bytes behind a chunked body")) };
                }
            }
            have = self.receive(core, socket, patience, buffer).await?;
            if have == 0 {
                return Err(failed("a chunked body ended early"));
            }
        }
    }
}

struct Body<'a> {
    core: &'a Core,
    hash: Option<Sha256>,
    len: u64,
}

impl Body<'_> {
    fn take(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        self.len += bytes.len() as u64;
        self.core.counts.body.add(bytes.len() as u64);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs it: the exit code is 0, 1 where nothing succeeded or the server is gone, 3 where an assertion did not hold, 130
/// after ^C.
///
/// # Errors
/// The server cannot be reached, cores cannot be had, or the report cannot be written.
pub fn run(plan: &HttpPlan, asserts: &[assertion::Wanted], out: &mut Output) -> Result<u8> {
    sys::raise_nofile().map_err(|error| Error::os("raise RLIMIT_NOFILE", &error))?;
    let common = &plan.common;
    let target = common.targets.join(", ");
    let fail = |why: String| Error::new(Kind::Runtime, format!("run against {target}"), why);
    if common.flows == 0 || common.flows > FLOWS_MOST {
        return Err(Error::new(Kind::Usage, "use --flows", format!("it is not between 1 and {FLOWS_MOST}")));
    }
    let (ear, heard) = channel();
    interrupt::listen(ear)?;
    let mut found = (plan.host.as_str(), plan.port).to_socket_addrs().map_err(|error| fail(describe(&error)))?;
    let to = found.next().ok_or_else(|| fail("its name has no address".to_owned()))?;
    let cores = Cores::start(&common.cpus, Clock::start())?;
    let mut client =
        Client { plan, out, cores: &cores, meter: Meter::new(&cores), heard, to, early: None, first: None };
    let mut report = Report::default();
    report.warnings.clone_from(&cores.warnings);
    let mut repeats = Vec::new();
    for number in 0..common.repeats.max(1) {
        let (end, intervals) = client.window(number == 0).map_err(fail)?;
        repeats.push(repeat_of(&end));
        (report.end, report.intervals) = (end, intervals);
        report.confidence = common.confidence.and_then(|(level, width)| sample::confidence(&repeats, level, width));
        if client.early.is_some() || (repeats.len() >= 3 && report.confidence.is_some_and(|sure| sure.met)) {
            break;
        }
    }
    if report.confidence.is_some_and(|sure| !sure.met) || (common.confidence.is_some() && report.confidence.is_none()) {
        report.warnings.push(format!("the confidence asked for was not reached in {} repeats", repeats.len()));
    }
    report.repeats = repeats;
    report.start = client.start();
    let (partial, mut code) = match &client.early {
        Some((why, code)) => (Some(why.clone()), *code),
        None => (None, 0),
    };
    report.partial = partial;
    if let Some(why) = client.first.clone() {
        report.warnings.push(format!("{} requests failed, the first: {why}", report.end.sum_sent.errors.max(1)));
        if report.end.sum_sent.requests == 0 && code == 0 {
            code = 1;
        }
    }
    report.asserts = asserts.iter().map(|wanted| wanted.judge(&report)).collect();
    client.out.report(&report);
    client.out.done()?;
    if let Some(why) = &report.partial {
        eprintln!("ringway: {why}");
    } else if code != 0 {
        eprintln!("ringway: no request succeeded: {}", client.first.as_deref().unwrap_or_default());
    }
    Ok(if code == 0 && report.asserts.iter().any(|assertion| !assertion.held) { 3 } else { code })
}

struct Client<'a> {
    plan: &'a HttpPlan,
    out: &'a mut Output,
    cores: &'a Cores,
    meter: Meter,
    heard: Receiver<Heard>,
    to: SocketAddr,
    early: Option<(String, u8)>,
    /// The first request that failed.
    first: Option<String>,
}

impl Client<'_> {
    fn start(&self) -> Start {
        let common = &self.plan.common;
        let devices: Vec<String> = common.vias.iter().map(|via| via.device.clone()).collect();
        Start {
            version: format!("ringway {}", env!("CARGO_PKG_VERSION")),
            timestamp: self.cores.clock.unix().as_secs(),
            test_start: Test {
                protocol: "http".into(),
                targets: common.targets.clone(),
                engine: "http".into(),
                receive: if common.verify { "copy" } else { "trunc" }.into(),
                num_streams: common.flows as u64,
                duration: if let Until::Time(time) = common.until { time.as_secs_f64() } else { 0.0 },
                omit: common.omit.as_secs_f64(),
                verify: common.verify,
                congestion: common.congestion.clone().unwrap_or_else(machine::congestion),
                receive_buffer: common.receive_buffer,
                rate: common.rate.unwrap_or(0.0),
                ..Test::default()
            },
            local: machine::read(Path::new("/"), &common.cpus, &devices),
            remote: None,
        }
    }

    /// One window. `Err`: it could not begin.
    fn window(&mut self, first: bool) -> std::result::Result<(End, Vec<Interval>), String> {
        let common = &self.plan.common;
        self.cores.all().iter().for_each(|core| core.counts.forgive());
        let hash = common.verify.then(|| self.plan.sha256.map_or_else(OnceLock::new, OnceLock::from));
        let wanted: Vec<Wanted<'_>> = (0..common.flows)
            .map(|flow| Wanted {
                to: self.to,
                session: None,
                via: common.via_of(flow).map(|(_, via)| via),
                core: common.core_of(flow),
                congestion: common.congestion.as_deref(),
                send_buffer: 0,
                receive_buffer: common.receive_buffer,
                notsent_lowat: 0,
            })
            .collect();
        let flows = flows::connect(&wanted)?;
        if first {
            let start = self.start();
            self.out.start(&start);
        }
        let mut begin = self.meter.snap(self.cores);
        let mut looked = self.look();
        let shared = Arc::new(Shared {
            to: self.to,
            request: self.plan.request.clone(),
            hash,
            congestion: common.congestion.clone(),
            receive_buffer: common.receive_buffer,
            flows: common.flows,
            rate: common.rate,
            began: self.cores.clock.now(),
            stop: AtomicBool::new(false),
            running: AtomicU64::new(common.flows as u64),
            first: Mutex::new(None),
        });
        for (number, flow) in flows.into_iter().enumerate() {
            let core = flow.core;
            let connection = Connection {
                shared: Arc::clone(&shared),
                number,
                via: common.via_of(number).map(|(_, via)| via.clone()),
                count: match common.until {
                    Until::Count(count) => Some(bytes_of_flow(count, common.flows, number)),
                    _ => None,
                },
                socket: Some(flow.socket),
            };
            self.cores.give(core, Box::new(move |core: &Rc<Core>| start(core, connection)));
        }
        let mut intervals = Vec::new();
        let mut marked = common.omit.is_zero();
        let mut base = if marked { begin.at } else { shared.began.after(common.omit) };
        let mut line = begin.clone();
        loop {
            let end = match common.until {
                _ if !marked => base,
                Until::Time(time) => base.after(time),
                _ => base.after(LONGEST),
            };
            let boundary = line.at.after(common.interval).min(end);
            let boundary = if end.since(boundary) < common.interval / 10 { end } else { boundary };
            let over = self.until_boundary(&shared, boundary, &begin);
            let snap = self.meter.snap(self.cores);
            let interval = interval_of(&line, &snap, base, !marked);
            self.out.interval(&interval);
            intervals.push(interval);
            line = snap;
            if self.early.is_some() || over || (marked && self.cores.clock.now() >= end) {
                break;
            }
            if !marked && self.cores.clock.now() >= base {
                marked = true;
                intervals.clear();
                begin = line.clone();
                base = begin.at;
                looked = self.look();
            }
        }
        let latency = self.look().since(&looked);
        shared.stop.store(true, Ordering::Release);
        self.cores.wake();
        let until = self.cores.clock.now().after(ENDING);
        while shared.running.load(Ordering::Acquire) > 0 && self.cores.clock.now() < until && self.early.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.cores.clear();
        if let Ok(mut first) = shared.first.lock()
            && let Some(first) = first.take()
        {
            self.first.get_or_insert(first);
        }
        Ok((self.end(&begin, &line, latency), intervals))
    }

    fn look(&self) -> Looked {
        let all: Vec<&Latencies> = self.cores.all().iter().map(|core| &core.counts.latencies).collect();
        Looked::at(all.into_iter())
    }

    fn until_boundary(&mut self, shared: &Shared, boundary: Nanos, begin: &Snapshot) -> bool {
        loop {
            let left = boundary.since(self.cores.clock.now());
            if left.is_zero() || self.early.is_some() {
                return false;
            }
            match self.heard.recv_timeout(left.min(Duration::from_millis(10))) {
                Ok(Heard::Interrupted) => self.early = Some(("interrupted".to_owned(), interrupt::EXIT)),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.early = Some(("the signal thread has ended".to_owned(), 1));
                }
            }
            if let Some(gone) = self.cores.all().iter().find_map(|core| core.counts.trouble()) {
                self.early = Some((gone, 1));
            }
            if let Until::Bytes(bytes) = self.plan.common.until {
                let bodies: u64 = self.cores.all().iter().map(|core| core.counts.body.get()).sum();
                if bodies - begin.bodies() >= bytes {
                    return true;
                }
            }
            if shared.running.load(Ordering::Acquire) == 0 {
                return true;
            }
        }
    }

    fn end(&self, begin: &Snapshot, end: &Snapshot, latency: Option<super::report::Latency>) -> End {
        let client = self.meter.side(self.cores, begin, end, false);
        let bodies = Sum {
            requests: end.requests() - begin.requests(),
            errors: end.errors() - begin.errors(),
            verified_blocks: end.verified() - begin.verified(),
            ..Sum::new(end.bodies() - begin.bodies(), client.seconds)
        };
        End {
            streams: Vec::new(),
            sum_sent: bodies,
            sum_received: bodies,
            cpu_utilization_percent: utilization(&client, None),
            sender: client,
            receiver: None,
            latency,
            vias: Vec::new(),
        }
    }
}

fn interval_of(from: &Snapshot, to: &Snapshot, base: Nanos, omitted: bool) -> Interval {
    let position =
        |at: Nanos| if at >= base { at.since(base).as_secs_f64() } else { 0.0 - base.since(at).as_secs_f64() };
    let bytes = to.bodies() - from.bodies();
    let (received, cpu) = (to.received_by_core(), to.cpu_by_core());
    let (received_before, cpu_before) = (from.received_by_core(), from.cpu_by_core());
    Interval {
        start: position(from.at),
        end: position(to.at),
        omitted,
        bytes,
        received_bytes: bytes,
        bits_per_second: rate(bytes, to.at.since(from.at).as_secs_f64()),
        requests: to.requests() - from.requests(),
        cpu_seconds: to.cpu() - from.cpu(),
        cores: (0..received.len())
            .map(|core| CoreInterval {
                core: core as u64,
                bytes: received[core] - received_before[core],
                cpu_seconds: (cpu[core] - cpu_before[core]).max(0.0),
            })
            .collect(),
        ..Interval::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_what_is_none() {
        let text = |url: &str, headers: &[&str]| {
            let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
            request(url, &headers).map(|(_, bytes)| String::from_utf8(bytes).expect("ASCII"))
        };
        let plain = text("http://127.0.0.1:8080/a?b=c#d", &["Range: bytes=0-9"]).expect("a request");
        assert!(plain.starts_with("GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"), "{plain}");
        assert!(plain.ends_with("Range: bytes=0-9\r\n\r\n"), "{plain}");
        assert!(text("http://host", &["Host: other"]).expect("a request").starts_with("GET / HTTP/1.1\r\nUser-Agent"));
        for (url, headers, wanted) in [
            ("https://host/", vec![], "TLS"),
            ("ftp://host/", vec![], "http://"),
            ("http://host/a b", vec![], "%20"),
            ("http://host/", vec!["no colon"], "Name: value"),
            ("http://host/", vec!["A: b\r\nC: d"], "Name: value"),
        ] {
            let told = text(url, &headers).expect_err(url);
            assert!(told.contains(wanted), "{url}: {told}");
        }
        assert!(digest(&"ab".repeat(32)).is_ok() && digest("ab").is_err() && digest(&"zz".repeat(32)).is_err());
    }
}
