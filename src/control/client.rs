//! The other end of the admin address: one request, blocking, for the command line.

use crate::config::AdminAddress;
use crate::error::{Error, Kind, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes of an answer that are read; a list is cut by its own limit long before.
const ANSWER_MOST: u64 = 256 << 20;
/// For each step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a running server; its status and its text.
///
/// # Errors
/// Nobody answers there, or not like an HTTP server.
pub fn ask(admin: &AdminAddress, method: &str, target: &str, token: &str) -> Result<(u16, String)> {
    let place = match admin {
        AdminAddress::Tcp(address) => address.to_string(),
        AdminAddress::Unix(path) => format!("unix:{}", path.display()),
    };
    let failed = |error: &std::io::Error| {
        Error::os(format!("ask the admin address {place}"), error).remedy("is the server running? see --admin")
    };
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request =
        format!("{method} {target} HTTP/1.1\r\nHost: ringway\r\n{token}Content-Length: 0\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let done = match admin {
        AdminAddress::Tcp(address) => TcpStream::connect_timeout(address, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            stream.take(ANSWER_MOST).read_to_end(&mut answer)
        }),
        AdminAddress::Unix(path) => UnixStream::connect(path).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            stream.take(ANSWER_MOST).read_to_end(&mut answer)
        }),
    };
    done.map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&answer);
    let parsed = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        let code = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some((code, body.to_owned()))
    });
    parsed.ok_or_else(|| {
        Error::new(Kind::Runtime, format!("ask the admin address {place}"), "what answers there does not speak HTTP")
    })
}
