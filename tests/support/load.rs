//! Load without a load tool: discarding downloaders, stalled clients, one quick client, idle connections.
//! Bounded in count and time by their callers; loopback only.

use super::client::{Client, small_socket};
use rustix::event::epoll;
use rustix::net::{RecvFlags, recv};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Durations in order, for percentiles.
#[derive(Debug, Default, Clone)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest time that `share` (0 to 1) of all do not exceed.
    pub fn percentile(&self, share: f64) -> Duration {
        if self.0.is_empty() {
            return Duration::ZERO;
        }
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }
}

/// Round trips of one keep-alive connection, one request at a time, `pause` between them.
pub fn round_trips(address: SocketAddr, path: &str, length: u64, count: usize, pause: Duration) -> Times {
    let mut client = Client::connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        client.send(request.as_bytes());
        let head = client.head();
        assert_eq!((head.status, head.length()), (200, Some(length)), "{path}");
        assert_eq!(client.read_body(length, |_| ()), length, "{path} is whole");
        times.push(start.elapsed());
    }
    Times::of(times)
}

/// Connections that asked for `path`, took `taken` bytes, and read no more. Their windows are small, as those of a
/// client that fell asleep are.
pub fn stalled(address: SocketAddr, path: &str, count: usize, taken: usize) -> Vec<TcpStream> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut bytes = vec![0; taken];
    (0..count)
        .map(|_| {
            let mut stream = small_socket(address, 128 * 1024);
            stream.set_read_timeout(Some(super::client::PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).expect("send a request");
            stream.read_exact(&mut bytes).expect("the beginning of a response");
            assert!(bytes.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&bytes[..taken.min(200)]));
            stream
        })
        .collect()
}

/// Connections that made one request and now wait: what an idle keep-alive client is.
pub fn idle(address: SocketAddr, path: &str, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|_| {
            let mut client = Client::connect(address);
            assert_eq!(client.get(path).status, 200);
            client.stream
        })
        .collect()
}

/// What downloaders count while they run.
#[derive(Default)]
pub struct Counted {
    pub bytes: AtomicU64,
    pub requests: AtomicU64,
    /// From each request to the last byte of its response.
    times: Mutex<Vec<Duration>>,
    stop: AtomicBool,
}

/// Keep-alive connections that download one path over and over and discard it inside the kernel (MSG_TRUNC).
pub struct Downloaders {
    pub counted: Arc<Counted>,
    thread: Option<JoinHandle<()>>,
}

impl Downloaders {
    /// Starts `connections` of them on one thread (pinned to `cpu`), each verifying status and length of each response.
    pub fn start(address: SocketAddr, path: &str, length: u64, connections: usize, cpu: Option<usize>) -> Self {
        let counted = Arc::new(Counted::default());
        let shared = Arc::clone(&counted);
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes();
        let thread = std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                super::process::pin(cpu);
            }
            download(address, &request, length, connections, &shared);
        });
        Self { counted, thread: Some(thread) }
    }

    pub fn bytes(&self) -> u64 {
        self.counted.bytes.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.counted.requests.load(Ordering::Relaxed)
    }

    /// Takes the times of the responses that ended since the last call.
    pub fn take_times(&self) -> Times {
        Times::of(std::mem::take(&mut *self.counted.times.lock().unwrap()))
    }

    /// False once a wrong response has ended them.
    pub fn alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops them; a wrong response met meanwhile fails here.
    pub fn stop(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.counted.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a downloader got a wrong response");
        }
    }
}

impl Drop for Downloaders {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Download {
    stream: TcpStream,
    head: Vec<u8>,
    left: u64,
    since: Instant,
}

fn download(address: SocketAddr, request: &[u8], length: u64, connections: usize, counted: &Counted) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let mut all: Vec<Download> = (0..connections)
        .map(|index| {
            let mut stream = TcpStream::connect(address).expect("connect");
            stream.set_nodelay(true).unwrap();
            stream.write_all(request).expect("send a request");
            stream.set_nonblocking(true).unwrap();
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN).unwrap();
            Download { stream, head: Vec::new(), left: 0, since: Instant::now() }
        })
        .collect();
    // MSG_TRUNC discards TCP data in the kernel; the buffer only says how much.
    let mut nowhere = vec![0; 1024 * 1024];
    let mut events = Vec::with_capacity(connections);
    let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while !counted.stop.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
        for event in &events {
            let data = event.data;
            let one = &mut all[usize::try_from(data.u64()).unwrap()];
            one.turn(request, length, &mut nowhere, counted);
        }
    }
}

impl Download {
    fn turn(&mut self, request: &[u8], length: u64, nowhere: &mut [u8], counted: &Counted) {
        if self.left > 0 {
            let want = usize::try_from(self.left.min(nowhere.len() as u64)).unwrap();
            match recv(&self.stream, &mut nowhere[..want], RecvFlags::TRUNC) {
                Ok((_, 0)) => panic!("the connection ended {} bytes early", self.left),
                Ok((_, count)) => {
                    self.left -= count as u64;
                    counted.bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(error) => panic!("{} bytes missing: {error}", self.left),
            }
            if self.left > 0 {
                return;
            }
        } else {
            let mut chunk = [0; 4096];
            let count = match (&self.stream).read(&mut chunk) {
                Ok(0) => panic!("the connection ended instead of a response"),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("no response: {error}"),
            };
            self.head.extend_from_slice(&chunk[..count]);
            let Some(end) = self.head.windows(4).position(|window| window == b"\r\n\r\n") else { return };
            let text = String::from_utf8_lossy(&self.head[..end]).to_ascii_lowercase();
            assert!(text.starts_with("http/1.1 200"), "{text}");
            assert!(text.contains(&format!("\r\ncontent-length: {length}")), "{text}");
            let body = (self.head.len() - end - 4) as u64;
            counted.bytes.fetch_add(body, Ordering::Relaxed);
            self.left = length.checked_sub(body).expect("no more than one response");
            self.head.clear();
            if self.left > 0 {
                return;
            }
        }
        counted.requests.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        counted.times.lock().unwrap().push(now - std::mem::replace(&mut self.since, now));
        // A request fits the send buffer of a connection that has nothing else to send.
        (&self.stream).write_all(request).expect("send a request");
    }
}
