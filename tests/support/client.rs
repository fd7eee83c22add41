//! A client that writes exactly the bytes it is given and counts every byte it gets, heads and bodies apart.

use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A test fails rather than hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A response head.
#[derive(Debug, Clone)]
pub struct Head {
    pub version: String,
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Bytes on the wire, the empty line included.
    pub wire_bytes: u64,
}

impl Head {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("a response head is text");
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let mut words = status_line.splitn(3, ' ');
        let version = words.next().unwrap_or_default().to_owned();
        assert!(version.starts_with("HTTP/1."), "not a response: {status_line:?}");
        let status = words.next().and_then(|word| word.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {status_line:?}"));
        let headers = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("not a header: {line:?} in {text}"));
                assert!(!name.contains(' '), "space in a header name: {line:?}");
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        Self { version, status, headers, wire_bytes: bytes.len() as u64 }
    }

    /// The value of a header; one that is there twice is a failure.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {:?}", self.headers);
        value
    }

    pub fn length(&self) -> Option<u64> {
        self.header("content-length").map(|value| value.parse().unwrap_or_else(|_| panic!("length {value}")))
    }

    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// A whole response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub head: Head,
    pub body: Vec<u8>,
}

impl std::ops::Deref for Reply {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    pending: Vec<u8>,
    /// Bytes of heads received.
    pub head_bytes: u64,
    /// Bytes of bodies received.
    pub body_bytes: u64,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        Self::over(stream)
    }

    /// With a small receive buffer, so that little of a body can hide in the kernel; but larger than two segments of
    /// loopback (64 KiB each), below which a sender may have to wait 200 ms for the window, whatever the server does.
    pub fn connect_small(address: SocketAddr) -> Self {
        Self::over(small_socket(address, 128 * 1024))
    }

    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, pending: Vec::new(), head_bytes: 0, body_bytes: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send a request");
    }

    fn fill(&mut self) -> std::io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let count = self.stream.read(&mut chunk)?;
        self.pending.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    /// The next head; `None` where the connection ends instead.
    pub fn try_head(&mut self) -> std::io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.pending.windows(4).position(|window| window == b"\r\n\r\n") {
                let bytes: Vec<u8> = self.pending.drain(..end + 4).collect();
                self.head_bytes += bytes.len() as u64;
                return Ok(Some(Head::parse(&bytes)));
            }
            match self.fill() {
                Ok(0) if self.pending.is_empty() => return Ok(None),
                Ok(0) => panic!("the connection ended inside a head: {:?}", String::from_utf8_lossy(&self.pending)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    pub fn head(&mut self) -> Head {
        self.try_head().expect("a response head in time").expect("a response head before the end")
    }

    /// Reads exactly `length` bytes of body, or as many as come before the end; returns how many came.
    pub fn read_body(&mut self, length: u64, mut each: impl FnMut(&[u8])) -> u64 {
        let mut left = length;
        let waiting = left.min(self.pending.len() as u64);
        let waiting_bytes: Vec<u8> = self.pending.drain(..usize::try_from(waiting).unwrap()).collect();
        each(&waiting_bytes);
        left -= waiting;
        let mut chunk = vec![0; 256 * 1024];
        while left > 0 {
            let want = usize::try_from(left.min(chunk.len() as u64)).unwrap();
            match self.stream.read(&mut chunk[..want]) {
                Ok(0) => break,
                Ok(count) => {
                    each(&chunk[..count]);
                    left -= count as u64;
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{left} of {length} bytes missing: {error}"),
            }
        }
        self.body_bytes += length - left;
        length - left
    }

    /// The body that belongs to a head, complete.
    pub fn body(&mut self, head: &Head) -> Vec<u8> {
        let mut body = Vec::new();
        if matches!(head.status, 100..=199 | 204 | 304) {
            return body;
        }
        let complete = self.body_to_its_end(head, |bytes| body.extend_from_slice(bytes));
        assert!(complete, "body of {head:?} ended early, after {} bytes", body.len());
        body
    }

    /// Takes a body (length, chunks, or up to the close) in pieces: true if it ended as its framing says, false where
    /// the connection ended before.
    pub fn body_to_its_end(&mut self, head: &Head, mut each: impl FnMut(&[u8])) -> bool {
        if head.header("transfer-encoding").is_some() {
            assert_eq!(head.header("transfer-encoding"), Some("chunked"));
            assert_eq!(head.length(), None, "a length and chunks: {head:?}");
            return self.chunks(each);
        }
        if let Some(length) = head.length() {
            return self.read_body(length, each) == length;
        }
        assert!(head.closes() || head.version == "HTTP/1.0", "neither a length nor a close: {head:?}");
        let mut chunk = std::mem::take(&mut self.pending);
        loop {
            self.body_bytes += chunk.len() as u64;
            each(&chunk);
            chunk.resize(256 * 1024, 0);
            match self.stream.read(&mut chunk) {
                Ok(0) => return true,
                Ok(count) => chunk.truncate(count),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("no end of a body: {error}"),
            }
        }
    }

    /// The bytes up to CRLF; `None` where the connection ends instead.
    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.pending.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).expect("chunk sizes and trailers are text"));
            }
            match self.fill() {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("half a line of a chunked body: {error}"),
            }
        }
    }

    fn chunks(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        loop {
            let Some(line) = self.line() else { return false };
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("not a chunk size: {line:?}"));
            if size == 0 {
                break;
            }
            if self.read_body(size, &mut each) < size {
                return false;
            }
            match self.line() {
                Some(line) => assert!(line.is_empty(), "{line:?} behind a chunk"),
                None => return false,
            }
        }
        loop {
            match self.line() {
                Some(line) if line.is_empty() => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    pub fn reply(&mut self) -> Reply {
        let head = self.head();
        let body = self.body(&head);
        Reply { head, body }
    }

    /// Sends raw bytes and reads one whole response.
    pub fn exchange(&mut self, request: &[u8]) -> Reply {
        self.send(request);
        self.reply()
    }

    /// GET with more header lines (each ended by CRLF).
    pub fn get_with(&mut self, path: &str, headers: &str) -> Reply {
        self.exchange(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n").as_bytes())
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.get_with(path, "")
    }

    /// HEAD: a head and nothing behind it.
    pub fn head_of(&mut self, path: &str) -> Head {
        self.send(format!("HEAD {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        self.head()
    }

    /// GET whose body is hashed as it comes: head, bytes, hash.
    pub fn hash(&mut self, path: &str) -> (Head, u64, String) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        let head = self.head();
        let (count, hash) = self.hash_body(head.length().expect("a length"));
        (head, count, hash)
    }

    pub fn hash_body(&mut self, length: u64) -> (u64, String) {
        let mut hash = Sha256::new();
        let count = self.read_body(length, |bytes| hash.update(bytes));
        (count, hex(&hash.finalize()))
    }

    /// True if the connection is closed within `limit`, with nothing more on it.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        self.stream.set_read_timeout(Some(limit)).unwrap();
        let mut byte = [0];
        let ended = match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ended
    }

    /// Ends the connection with a reset, as a client that crashes or is cut off does.
    pub fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}

/// A connected socket that holds little: asked for before the handshake, so that the window stays small.
pub fn small_socket(address: SocketAddr, bytes: usize) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(bytes).unwrap();
    socket.connect(&address.into()).unwrap_or_else(|error| panic!("connect to {address}: {error}"));
    socket.into()
}
