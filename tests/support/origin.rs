//! An HTTP/1.1 origin that does what it is told, well or badly: one thread per connection, content made on the fly (an
//! object of 5 GiB needs no memory), every request written down, every byte counted when the socket has taken it.
//!
//! It follows RFC 9110 where no fault says otherwise, so that a wrong answer behind a proxy is the proxy's.

use super::client::hex;
use super::s3;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

const BLOCK: usize = 32 * 1024;
const CHUNK: usize = 256 * 1024;

/// Endless content that no other seed gives and that may be read anywhere: a random block, keyed anew for each place.
#[derive(Clone)]
pub struct Content {
    seed: u64,
    block: Arc<[u64]>,
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Content {
    pub fn new(seed: u64) -> Self {
        let base = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let block = (0..BLOCK as u64 / 8).map(|at| mix(base ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        Self { seed, block }
    }

    /// The bytes from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (block, inside) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let count = (BLOCK - inside).min(out.len() - done);
            let key = mix(self.seed ^ block.wrapping_mul(0xd6e8_feb8_6659_fd93));
            let part = &mut out[done..done + count];
            // Whole words fast, the ragged ends byte by byte.
            let lead = (8 - inside % 8) % 8;
            let lead = lead.min(count);
            for (index, byte) in part[..lead].iter_mut().enumerate() {
                *byte = (self.block[(inside + index) / 8] ^ key).to_le_bytes()[(inside + index) % 8];
            }
            let words = &self.block[(inside + lead) / 8..];
            let mut chunks = part[lead..].chunks_exact_mut(8);
            for (chunk, word) in chunks.by_ref().zip(words) {
                chunk.copy_from_slice(&(word ^ key).to_le_bytes());
            }
            let rest = chunks.into_remainder();
            let rest_at = inside + count - rest.len();
            for (index, byte) in rest.iter_mut().enumerate() {
                *byte = (self.block[(rest_at + index) / 8] ^ key).to_le_bytes()[(rest_at + index) % 8];
            }
            done += count;
        }
    }

    pub fn range(&self, first: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).expect("fits memory")];
        self.fill(first, &mut bytes);
        bytes
    }

    /// SHA-256 of the first `length` bytes.
    pub fn hash(&self, length: u64) -> String {
        let (mut hash, mut at, mut buffer) = (Sha256::new(), 0, vec![0; CHUNK]);
        while at < length {
            let count = usize::try_from((length - at).min(CHUNK as u64)).unwrap();
            self.fill(at, &mut buffer[..count]);
            hash.update(&buffer[..count]);
            at += count as u64;
        }
        hex(&hash.finalize())
    }
}

/// Compares a body with what it should be as it comes, without keeping it: byte for byte, so more than a checksum.
pub struct Comparer {
    content: Content,
    at: u64,
    buffer: Vec<u8>,
    /// Offset of the first wrong block, if any.
    pub wrong: Option<u64>,
}

impl Comparer {
    pub fn new(content: &Content, first: u64) -> Self {
        Self { content: content.clone(), at: first, buffer: vec![0; CHUNK], wrong: None }
    }

    pub fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(CHUNK) {
            self.content.fill(self.at, &mut self.buffer[..piece.len()]);
            if self.wrong.is_none() && self.buffer[..piece.len()] != *piece {
                let inside = self.buffer.iter().zip(piece).position(|(a, b)| a != b).unwrap_or_default();
                self.wrong = Some(self.at + inside as u64);
            }
            self.at += piece.len() as u64;
        }
    }

    /// Offset behind the last byte taken.
    pub fn at(&self) -> u64 {
        self.at
    }
}

/// How a body's end is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    Length,
    /// Chunks of this size, some with an extension, and a trailer.
    Chunked(usize),
    /// HTTP/1.0 style: the body ends with the connection.
    Close,
}

/// One object of the origin.
#[derive(Clone)]
pub struct Object {
    pub content: Content,
    pub size: u64,
    pub status: u16,
    pub etag: Option<String>,
    pub modified: Option<SystemTime>,
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
    pub ranges: bool,
    /// From the request to the first byte of the head.
    pub delay: Duration,
    /// Bytes of body per second.
    pub rate: Option<u64>,
    /// Another content for each value of this request header, and `Vary` says so.
    pub vary: Option<String>,
    /// The head comes byte by byte.
    pub drip: bool,
    /// Takes POST and PUT: answers with length and SHA-256 of the body. At most so many bytes of it per second.
    pub upload: Option<u64>,
    /// `Connection: close` on every response.
    pub close: bool,
}

impl Object {
    /// With a strong ETag made from the seed.
    pub fn new(seed: u64, size: u64) -> Self {
        Self {
            content: Content::new(seed),
            size,
            status: 200,
            etag: Some(format!("\"v{seed}\"")),
            modified: None,
            headers: Vec::new(),
            framing: Framing::Length,
            ranges: true,
            delay: Duration::ZERO,
            rate: None,
            vary: None,
            drip: false,
            upload: None,
            close: false,
        }
    }

    pub fn etag(mut self, etag: Option<&str>) -> Self {
        self.etag = etag.map(str::to_owned);
        self
    }

    /// `Last-Modified`, so many seconds ago.
    pub fn modified_ago(mut self, seconds: u64) -> Self {
        self.modified = Some(SystemTime::now() - Duration::from_secs(seconds));
        self
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// `Cache-Control: max-age=N`.
    pub fn fresh(self, seconds: u32) -> Self {
        self.header("Cache-Control", format!("max-age={seconds}"))
    }

    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    pub fn no_ranges(mut self) -> Self {
        self.ranges = false;
        self
    }

    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    pub fn vary(mut self, header: &str) -> Self {
        self.vary = Some(header.to_owned());
        self
    }

    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub fn hash(&self) -> String {
        self.content.hash(self.size)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.content.range(0, self.size)
    }

    /// The variant for a value of the header named by `vary`.
    pub fn variant(&self, value: &str) -> Self {
        let seed = value.bytes().fold(self.content.seed, |seed, byte| mix(seed ^ u64::from(byte)));
        let etag = self.etag.as_ref().map(|_| format!("\"v{seed:x}\""));
        Self { content: Content::new(seed), etag, ..self.clone() }
    }
}

/// What goes wrong. Offsets are those of the object, not of the response.
#[derive(Clone)]
pub enum Fault {
    /// The connection is closed (FIN) where the body would reach this offset.
    Die(u64),
    /// The same with a reset.
    Reset(u64),
    /// A reset instead of any head.
    ResetEarly,
    /// A close instead of any head.
    CloseEarly,
    /// Silence from this offset on, until the peer leaves.
    Stall(u64),
    /// So many bytes more than were promised, in one write with the last of them; then the connection waits for the next
    /// request.
    Extra(usize),
    /// One byte more than was promised, 50 ms later, when the connection may be idle in somebody's pool.
    ExtraLate,
    /// This status with a line of text.
    Status(u16),
    /// 206 with this Content-Range instead of the right one.
    ContentRange(String),
    /// These bytes instead of the response, then a close.
    Raw(Vec<u8>),
    /// These bytes before the response (interim responses).
    Before(Vec<u8>),
    /// When a body has reached this offset, the object becomes this one; running responses keep what they have.
    Change(u64, Box<Object>),
    /// The object becomes another one before the answer is given.
    ChangeNow(Box<Object>),
    /// `Connection: close` said or not, the connection ends behind the response.
    CloseAfter,
    /// A request with a body is answered (with this status) and closed before its body was read.
    Refuse(u16),
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Instant,
    /// Which connection, from 0.
    pub connection: u64,
    /// Which request on it, from 0.
    pub number: u32,
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// All values of a header, joined as RFC 9110 allows.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.all(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Slot {
    object: Option<Object>,
    faults: Vec<(Fault, u32)>,
    /// No byte from this offset on is sent.
    hold: Option<u64>,
    sent: u64,
    /// First offset and bytes sent of each body.
    spans: Vec<(u64, u64)>,
    active: u32,
    peak: u32,
}

struct Connection {
    stream: TcpStream,
    idle: bool,
}

#[derive(Default)]
struct Shared {
    slots: Mutex<HashMap<String, Slot>>,
    log: Mutex<Vec<Request>>,
    connections: Mutex<HashMap<u64, Connection>>,
    accepted: AtomicU64,
    stop: AtomicBool,
    /// So many requests on used connections are met with a close instead of an answer.
    drop_reused: AtomicU32,
    credentials: Mutex<Option<s3::Credentials>>,
    /// Why requests were refused by the signature check.
    refusals: Mutex<Vec<String>>,
}

/// A running origin.
pub struct Origin {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl Origin {
    pub fn start() -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), Arc::default())
    }

    /// One that answers 403 to whatever is not signed right for these credentials.
    pub fn s3(credentials: s3::Credentials) -> Self {
        let origin = Self::start();
        *origin.shared.credentials.lock().unwrap() = Some(credentials);
        origin
    }

    fn on(address: SocketAddr, shared: Arc<Shared>) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("bind {address}: {error}"));
        let address = listener.local_addr().unwrap();
        shared.stop.store(false, Ordering::SeqCst);
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self { shared, address, acceptor: Some(acceptor) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://ADDRESS` with a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("http://{}{prefix}", self.address)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.shared.slots.lock().unwrap()
    }

    /// Makes or replaces an object; what was counted for its path stays.
    pub fn put(&self, path: &str, object: &Object) {
        self.slots().entry(path.to_owned()).or_default().object = Some(object.clone());
    }

    pub fn remove(&self, path: &str) {
        self.slots().entry(path.to_owned()).or_default().object = None;
    }

    /// The next `times` responses for this path that meet the fault's place have it.
    pub fn fault(&self, path: &str, fault: Fault, times: u32) {
        self.slots().entry(path.to_owned()).or_default().faults.push((fault, times));
    }

    /// Faults that are still to come.
    pub fn faults_left(&self, path: &str) -> u32 {
        self.slots().get(path).map_or(0, |slot| slot.faults.iter().map(|(_, times)| times).sum())
    }

    pub fn clear_faults(&self, path: &str) {
        self.slots().entry(path.to_owned()).or_default().faults.clear();
    }

    /// From now on no byte from this offset on is sent, until `release`.
    pub fn hold(&self, path: &str, offset: u64) {
        self.slots().entry(path.to_owned()).or_default().hold = Some(offset);
    }

    pub fn release(&self, path: &str) {
        self.slots().entry(path.to_owned()).or_default().hold = None;
    }

    /// Bytes of bodies for this path that sockets have taken.
    pub fn body_bytes(&self, path: &str) -> u64 {
        self.slots().get(path).map_or(0, |slot| slot.sent)
    }

    /// Bytes of bodies for all paths.
    pub fn all_body_bytes(&self) -> u64 {
        self.slots().values().map(|slot| slot.sent).sum()
    }

    /// Most bodies for this path that were on their way at once.
    pub fn peak(&self, path: &str) -> u32 {
        self.slots().get(path).map_or(0, |slot| slot.peak)
    }

    /// Bytes that were sent more than once.
    pub fn sent_twice(&self, path: &str) -> u64 {
        let mut spans = self.slots().get(path).map(|slot| slot.spans.clone()).unwrap_or_default();
        spans.sort_unstable();
        let (mut end, mut twice) = (0, 0);
        for (first, count) in spans {
            twice += (first + count).min(end).saturating_sub(first);
            end = end.max(first + count);
        }
        twice
    }

    pub fn log(&self) -> Vec<Request> {
        self.shared.log.lock().unwrap().clone()
    }

    /// Requests for one target.
    pub fn requests(&self, target: &str) -> Vec<Request> {
        self.log().into_iter().filter(|request| request.target == target).collect()
    }

    /// What was asked for a target, in one line each: when a count is wrong, this says why.
    pub fn asked(&self, target: &str) -> String {
        let all = self.requests(target);
        let begin = all.first().map(|request| request.at);
        let mut lines = String::from("asked:\n");
        for request in &all {
            let at = request.at.duration_since(begin.unwrap_or(request.at));
            let [range, condition] =
                [request.header("range"), request.header("if-range").or(request.header("if-match"))];
            lines += &format!(
                "  {at:?} connection {}.{} {} range {range:?} if {condition:?}\n",
                request.connection, request.number, request.method
            );
        }
        lines += &format!("sent (first, bytes): {:?}", self.slots().get(target).map(|slot| slot.spans.clone()));
        lines
    }

    pub fn clear_log(&self) {
        self.shared.log.lock().unwrap().clear();
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.shared.connections.lock().unwrap().len()
    }

    /// Closes the connections that wait for a request; returns how many.
    pub fn close_idle(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        let idle = connections.values().filter(|connection| connection.idle);
        idle.filter(|connection| connection.stream.shutdown(Shutdown::Both).is_ok()).count()
    }

    /// The next `times` requests on used connections are met with a close: an idle timeout that crossed the request.
    pub fn drop_reused(&self, times: u32) {
        self.shared.drop_reused.store(times, Ordering::SeqCst);
    }

    /// How many of them are still to come.
    pub fn drops_left(&self) -> u32 {
        self.shared.drop_reused.load(Ordering::SeqCst)
    }

    /// Why the signature check refused requests.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().unwrap().clone()
    }

    /// Ends: connections are reset, new ones refused.
    pub fn kill(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = acceptor.join();
        for connection in self.shared.connections.lock().unwrap().values() {
            reset(&connection.stream);
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    /// Comes back at the same address with the same objects and counts.
    pub fn revive(&mut self) {
        if self.acceptor.is_none() {
            super::eventually("the old connections are gone", Duration::from_secs(5), || self.open() == 0);
            let revived = Self::on(self.address, Arc::clone(&self.shared));
            self.acceptor = { revived }.acceptor.take();
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.kill();
    }
}

fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept() else { continue };
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        // A pacing default (bbr without fq) is many times slower on loopback.
        let _ = socket2::SockRef::from(&stream).set_tcp_congestion(b"cubic");
        let _ = stream.set_write_timeout(Some(Duration::from_secs(60)));
        let Ok(copy) = stream.try_clone() else { continue };
        shared.connections.lock().unwrap().insert(id, Connection { stream: copy, idle: true });
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let mut one = Serving { shared: &shared, stream, id, pending: Vec::new(), number: 0 };
            while one.turn().is_ok_and(|keep| keep) {}
            // The copy in the table goes first, so that dropping the stream is what ends the connection.
            let copy = shared.connections.lock().unwrap().remove(&id);
            drop(copy);
        });
    }
}

struct Serving<'a> {
    shared: &'a Shared,
    stream: TcpStream,
    id: u64,
    pending: Vec<u8>,
    number: u32,
}

/// A body to be sent.
struct Body<'a> {
    path: &'a str,
    object: &'a Object,
    first: u64,
    length: u64,
    extra: usize,
}

impl Serving<'_> {
    /// One request and its response: true if the connection goes on.
    fn turn(&mut self) -> Result<bool> {
        let Some(request) = self.request()? else { return Ok(false) };
        self.shared.log.lock().unwrap().push(request.clone());
        if request.number > 0 {
            let take = |left: u32| left.checked_sub(1);
            if self.shared.drop_reused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                return Ok(false);
            }
        }
        let keep = self.answer(&request)?;
        if let Some(connection) = self.shared.connections.lock().unwrap().get_mut(&self.id) {
            connection.idle = true;
        }
        Ok(keep && request.header("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close")))
    }

    fn fill(&mut self) -> Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let count = self.stream.read(&mut chunk)?;
        self.pending.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    fn request(&mut self) -> Result<Option<Request>> {
        let end = loop {
            if let Some(end) = self.pending.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if self.fill()? == 0 {
                return Ok(None);
            }
        };
        if let Some(connection) = self.shared.connections.lock().unwrap().get_mut(&self.id) {
            connection.idle = false;
        }
        let head: Vec<u8> = self.pending.drain(..end + 4).collect();
        let text = String::from_utf8_lossy(&head).into_owned();
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (method, target) = (word(), word());
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let number = self.number;
        self.number += 1;
        Ok(Some(Request { at: Instant::now(), connection: self.id, number, method, target, headers }))
    }

    fn simple(&mut self, status: u16, headers: &str, body: &[u8], head_only: bool) -> Result<bool> {
        let reason = reason(status);
        let date = httpdate::fmt_http_date(SystemTime::now());
        let length = body.len();
        let head = format!("HTTP/1.1 {status} {reason}\r\nDate: {date}\r\nContent-Length: {length}\r\n{headers}\r\n");
        self.stream.write_all(head.as_bytes())?;
        if !head_only {
            self.stream.write_all(body)?;
        }
        Ok(true)
    }

    /// Takes the faults whose place is not in a body: those are for `send`.
    fn early_faults(&self, path: &str) -> Vec<Fault> {
        let mut slots = self.shared.slots.lock().unwrap();
        let Some(slot) = slots.get_mut(path) else { return Vec::new() };
        let mut taken = Vec::new();
        for (fault, times) in &mut slot.faults {
            let later = matches!(fault, Fault::Die(_) | Fault::Reset(_) | Fault::Stall(_) | Fault::Change(..));
            if *times > 0 && !later {
                *times -= 1;
                taken.push(fault.clone());
            }
        }
        taken
    }

    fn answer(&mut self, request: &Request) -> Result<bool> {
        let path = request.target.split('?').next().unwrap_or_default();
        let head_only = request.method == "HEAD";
        let signed = self.shared.credentials.lock().unwrap().as_ref().map(|keys| keys.verify(request));
        if let Some(Err(why)) = signed {
            self.shared.refusals.lock().unwrap().push(why.clone());
            let body = format!("<Error><Code>SignatureDoesNotMatch</Code><Message>{why}</Message></Error>");
            return self.simple(403, "Content-Type: application/xml\r\n", body.as_bytes(), head_only);
        }
        let (mut more, mut extra, mut late, mut content_range, mut keep) = (Vec::new(), 0, false, None, true);
        for fault in self.early_faults(path) {
            match fault {
                Fault::ResetEarly => {
                    reset(&self.stream);
                    if let Some(connection) = self.shared.connections.lock().unwrap().get(&self.id) {
                        reset(&connection.stream);
                    }
                    return Ok(false);
                }
                Fault::CloseEarly => return Ok(false),
                Fault::Status(status) => {
                    let body = format!("a fault says {status}\n");
                    return self.simple(status, "Content-Type: text/plain\r\n", body.as_bytes(), head_only);
                }
                Fault::Raw(bytes) => {
                    self.stream.write_all(&bytes)?;
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.drain();
                    return Ok(false);
                }
                Fault::Refuse(status) => {
                    self.simple(status, "Connection: close\r\n", b"refused\n", head_only)?;
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.drain();
                    return Ok(false);
                }
                Fault::Before(bytes) => more = bytes,
                Fault::Extra(count) => extra = count,
                Fault::ExtraLate => late = true,
                Fault::ContentRange(value) => content_range = Some(value),
                Fault::ChangeNow(object) => {
                    self.shared.slots.lock().unwrap().get_mut(path).unwrap().object = Some(*object);
                }
                Fault::CloseAfter => keep = false,
                Fault::Die(_) | Fault::Reset(_) | Fault::Stall(_) | Fault::Change(..) => {}
            }
        }
        let object = {
            let slots = self.shared.slots.lock().unwrap();
            // As it is spelled, else as it reads: an encoded `+` is a `+`.
            let spelled = slots.get(&request.target).or_else(|| slots.get(path));
            let read = || slots.iter().find(|(name, _)| decoded(name) == decoded(path)).map(|(_, slot)| slot);
            spelled.or_else(read).and_then(|slot| slot.object.clone())
        };
        let Some(mut object) = object else {
            return self.simple(404, "Content-Type: text/plain\r\n", b"no such object\n", head_only);
        };
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return self.upload(request, &object);
        }
        if let Some(header) = object.vary.clone() {
            object = object.variant(&request.header(&header).unwrap_or_default());
        }
        if !object.delay.is_zero() {
            std::thread::sleep(object.delay);
        }
        self.stream.write_all(&more)?;
        let keep = self.object(request, path, &object, head_only, content_range, extra)? && keep;
        if late {
            std::thread::sleep(Duration::from_millis(50));
            self.stream.write_all(b"!")?;
        }
        Ok(keep && object.framing != Framing::Close && !object.close)
    }

    fn object(
        &mut self,
        request: &Request,
        path: &str,
        object: &Object,
        head_only: bool,
        content_range: Option<String>,
        extra: usize,
    ) -> Result<bool> {
        let modified = object.modified.map(httpdate::fmt_http_date);
        let mut head = String::new();
        let has = |name: &str| object.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
        if !has("date") {
            head += &format!("Date: {}\r\n", httpdate::fmt_http_date(SystemTime::now()));
        }
        if let Some(etag) = &object.etag {
            head += &format!("ETag: {etag}\r\n");
        }
        if let Some(modified) = &modified {
            head += &format!("Last-Modified: {modified}\r\n");
        }
        if let Some(vary) = &object.vary {
            head += &format!("Vary: {vary}\r\n");
        }
        if object.ranges {
            head += "Accept-Ranges: bytes\r\n";
        }
        for (name, value) in &object.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if object.close || object.framing == Framing::Close {
            head += "Connection: close\r\n";
        }
        match precondition(request, object, modified.as_deref()) {
            304 => {
                let head = format!("HTTP/1.1 304 Not Modified\r\n{head}\r\n");
                return self.stream.write_all(head.as_bytes()).map(|()| true);
            }
            412 => return self.simple(412, &head, b"precondition failed\n", head_only),
            _ => {}
        }
        let range = match wanted(request, object, modified.as_deref()) {
            Some(Err(())) => {
                head += &format!("Content-Range: bytes */{}\r\n", object.size);
                return self.simple(416, &head, b"no such range\n", head_only);
            }
            Some(Ok(range)) => Some(range),
            None => None,
        };
        let (first, length) = range.unwrap_or((0, object.size));
        let mut status = object.status;
        if range.is_some() {
            status = 206;
            let right = format!("bytes {first}-{}/{}", first + length - 1, object.size);
            head += &format!("Content-Range: {}\r\n", content_range.unwrap_or(right));
        }
        let version = if object.framing == Framing::Close { "1.0" } else { "1.1" };
        head = match object.framing {
            Framing::Length => format!("{head}Content-Length: {length}\r\n"),
            Framing::Chunked(_) => format!("{head}Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n"),
            Framing::Close => head,
        };
        let head = format!("HTTP/{version} {status} {}\r\n{head}\r\n", reason(status));
        if object.drip {
            for byte in head.as_bytes() {
                self.stream.write_all(std::slice::from_ref(byte))?;
                std::thread::sleep(Duration::from_micros(300));
            }
        } else {
            self.stream.write_all(head.as_bytes())?;
        }
        if head_only {
            return Ok(true);
        }
        {
            let mut slots = self.shared.slots.lock().unwrap();
            let slot = slots.entry(path.to_owned()).or_default();
            slot.active += 1;
            slot.peak = slot.peak.max(slot.active);
        }
        let mut sent = 0;
        let result = self.send(&Body { path, object, first, length, extra }, &mut sent);
        {
            let mut slots = self.shared.slots.lock().unwrap();
            let slot = slots.entry(path.to_owned()).or_default();
            slot.active -= 1;
            slot.spans.push((first, sent));
        }
        result
    }

    /// Sends a body up to its end or to a fault: true if it is complete. `sent` counts what the socket took.
    fn send(&mut self, body: &Body, sent: &mut u64) -> Result<bool> {
        let Body { path, object, first, length, extra } = *body;
        let start = Instant::now();
        let most = object.rate.map_or(CHUNK, |rate| usize::try_from(rate / 50).unwrap().clamp(512, CHUNK));
        let most = if let Framing::Chunked(size) = object.framing { most.min(size) } else { most };
        let (mut buffer, mut chunks) = (vec![0; most], 0);
        while *sent < length {
            let at = first + *sent;
            // How far until something happens; it happens where the distance is zero.
            let (mut room, mut now) = (length - *sent, None);
            {
                let mut slots = self.shared.slots.lock().unwrap();
                let slot = slots.entry(path.to_owned()).or_default();
                let mut change = None;
                for (fault, times) in slot.faults.iter_mut().filter(|(_, times)| *times > 0) {
                    let (Fault::Die(place) | Fault::Reset(place) | Fault::Stall(place) | Fault::Change(place, _)) =
                        fault
                    else {
                        continue;
                    };
                    let place = *place;
                    if place > at {
                        room = room.min(place - at);
                    } else if let Fault::Change(_, object) = fault {
                        *times -= 1;
                        change = Some((**object).clone());
                    } else if place == at {
                        *times -= 1;
                        now = Some(fault.clone());
                        break;
                    }
                }
                if change.is_some() {
                    slot.object = change;
                }
                if let Some(hold) = slot.hold
                    && now.is_none()
                {
                    if hold > at {
                        room = room.min(hold - at);
                    } else {
                        now = Some(Fault::CloseAfter);
                    }
                }
            }
            match now {
                // Held: look again soon, unless the peer has gone.
                Some(Fault::CloseAfter) => {
                    if self.peer_left() {
                        return Ok(false);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                Some(Fault::Stall(_)) => {
                    while !self.peer_left() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    return Ok(false);
                }
                Some(Fault::Reset(_)) => {
                    // What the peer has not read yet would be lost with a reset, and with it the place of the fault.
                    std::thread::sleep(Duration::from_millis(50));
                    reset(&self.stream);
                    if let Some(connection) = self.shared.connections.lock().unwrap().get(&self.id) {
                        reset(&connection.stream);
                    }
                    return Ok(false);
                }
                Some(_) => return Ok(false),
                None => {}
            }
            let count = usize::try_from(room.min(most as u64)).unwrap();
            object.content.fill(at, &mut buffer[..count]);
            if let Framing::Chunked(_) = object.framing {
                // Extensions are rare, and a limit on all of them together is fair.
                let extension = if chunks % 64 == 0 { ";ext=\"a b\"" } else { "" };
                self.stream.write_all(format!("{count:x}{extension}\r\n").as_bytes())?;
                chunks += 1;
            }
            let mut bytes = &buffer[..count];
            let long: Vec<u8>;
            if extra > 0 && *sent + count as u64 == length {
                long = [bytes, &vec![b'!'; extra]].concat();
                bytes = &long;
            }
            let mut written = 0;
            while written < bytes.len() {
                // Counted before they are written, so that no peer has bytes that are not counted yet; what the socket
                // did not take is given back. Only what belongs to the object counts.
                let offered = (count - written.min(count)) as u64;
                let count_sent = |add: u64, back: u64| {
                    let mut slots = self.shared.slots.lock().unwrap();
                    let slot = slots.entry(path.to_owned()).or_default();
                    slot.sent = slot.sent + add - back;
                };
                count_sent(offered, 0);
                let step = self.stream.write(&bytes[written..]);
                let taken = step.as_ref().map_or(0, |step| (written + step).min(count) - written.min(count)) as u64;
                count_sent(0, offered - taken);
                *sent += taken;
                written += step?;
            }
            if let Framing::Chunked(_) = object.framing {
                self.stream.write_all(b"\r\n")?;
            }
            if let Some(rate) = object.rate {
                let due = Duration::from_secs_f64(*sent as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
        // A change at the very end has happened too (those before it were met above).
        let mut slots = self.shared.slots.lock().unwrap();
        let slot = slots.entry(path.to_owned()).or_default();
        for (fault, times) in slot.faults.iter_mut().filter(|(_, times)| *times > 0) {
            if let Fault::Change(place, object) = fault
                && *place == first + length
            {
                *times -= 1;
                slot.object = Some((**object).clone());
            }
        }
        drop(slots);
        if let Framing::Chunked(_) = object.framing {
            self.stream.write_all(b"0\r\nX-Sum: 1\r\n\r\n")?;
        }
        Ok(true)
    }

    fn peer_left(&self) -> bool {
        if self.shared.stop.load(Ordering::SeqCst) {
            return true;
        }
        let _ = self.stream.set_nonblocking(true);
        let peeked = self.stream.peek(&mut [0]);
        let _ = self.stream.set_nonblocking(false);
        match peeked {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Reads until the peer closes, briefly: closing with unread bytes would reset what was sent.
    fn drain(&mut self) {
        let _ = self.stream.set_read_timeout(Some(Duration::from_secs(1)));
        while self.stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    }

    fn upload(&mut self, request: &Request, object: &Object) -> Result<bool> {
        let Some(rate) = object.upload else {
            self.simple(405, "Allow: GET, HEAD\r\nConnection: close\r\n", b"", false)?;
            let _ = self.stream.shutdown(Shutdown::Write);
            self.drain();
            return Ok(false);
        };
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let (mut hash, mut total, start) = (Sha256::new(), 0u64, Instant::now());
        let mut take = |bytes: &[u8]| {
            hash.update(bytes);
            total += bytes.len() as u64;
            let due = Duration::from_secs_f64(total as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        };
        if request.header("transfer-encoding").is_some() {
            loop {
                let line = self.line()?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(|_| Error::other(format!("chunk size {line}")))?;
                if size == 0 {
                    while !self.line()?.is_empty() {}
                    break;
                }
                self.exactly(size, &mut take)?;
                self.line()?;
            }
        } else if let Some(length) = request.header("content-length") {
            let length = length.parse().map_err(|_| Error::other(format!("length {length}")))?;
            self.exactly(length, &mut take)?;
        }
        let body = format!("{} {total} {}\n", request.method, hex(&hash.finalize()));
        self.simple(200, "Content-Type: text/plain\r\n", body.as_bytes(), false)
    }

    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.pending.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn exactly(&mut self, mut left: u64, take: &mut impl FnMut(&[u8])) -> Result<()> {
        while left > 0 {
            if self.pending.is_empty() && self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let count = usize::try_from(left.min(self.pending.len() as u64)).unwrap();
            let bytes: Vec<u8> = self.pending.drain(..count).collect();
            take(&bytes);
            left -= count as u64;
        }
        Ok(())
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        403 => "Forbidden",
        404 => "Not Found",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Whatever",
    }
}

fn decoded(path: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(path).collect()
}

fn opaque(tag: &str) -> &str {
    tag.trim().trim_start_matches("W/")
}

/// 304, 412, or 0 for none, in the order of RFC 9110 section 13.2.2.
fn precondition(request: &Request, object: &Object, modified: Option<&str>) -> u16 {
    let tag = object.etag.as_deref();
    if let Some(value) = request.header("if-match") {
        let holds = value.trim() == "*"
            || tag.is_some_and(|tag| !tag.starts_with("W/") && value.split(',').any(|one| one.trim() == tag));
        if !holds {
            return 412;
        }
    } else if let (Some(value), Some(modified)) = (request.header("if-unmodified-since"), object.modified)
        && httpdate::parse_http_date(&value).is_ok_and(|date| modified > date + Duration::from_secs(1))
    {
        return 412;
    }
    if let Some(value) = request.header("if-none-match") {
        let same = value.trim() == "*" || tag.is_some_and(|tag| value.split(',').any(|one| opaque(one) == opaque(tag)));
        return if same { 304 } else { 0 };
    }
    match (request.header("if-modified-since"), modified) {
        (Some(value), Some(modified)) => {
            let (since, modified) = (httpdate::parse_http_date(&value), httpdate::parse_http_date(modified));
            if since.is_ok_and(|since| modified.is_ok_and(|modified| modified <= since)) { 304 } else { 0 }
        }
        _ => 0,
    }
}

/// The range to send as first offset and length, `Err` for 416, `None` for the whole object.
fn wanted(request: &Request, object: &Object, modified: Option<&str>) -> Option<std::result::Result<(u64, u64), ()>> {
    let range = request.header("range")?;
    if !object.ranges || object.status != 200 || object.framing == Framing::Close || request.method != "GET" {
        return None;
    }
    if let Some(condition) = request.header("if-range") {
        let same = match object.etag.as_deref() {
            Some(tag) if condition.starts_with('"') => !tag.starts_with("W/") && tag == condition,
            _ => modified == Some(condition.as_str()),
        };
        if !same {
            return None;
        }
    }
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if range.contains(',') {
        return None;
    }
    let size = object.size;
    let (first, end) = if first.is_empty() {
        (size.saturating_sub(last.parse().ok()?), size)
    } else {
        let first = first.parse::<u64>().ok()?;
        (first, if last.is_empty() { size } else { last.parse::<u64>().ok()?.saturating_add(1).min(size) })
    };
    Some(if first < end { Ok((first, end - first)) } else { Err(()) })
}

/// An address at which connections are neither refused nor accepted: a listener whose queue is full.
pub struct Blackhole {
    pub address: SocketAddr,
    _listener: socket2::Socket,
    _fill: Vec<socket2::Socket>,
}

impl Blackhole {
    pub fn new() -> Self {
        use socket2::{Domain, Socket, Type};
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let fill = (0..4)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&address.into());
                socket
            })
            .collect();
        Self { address, _listener: listener, _fill: fill }
    }
}
