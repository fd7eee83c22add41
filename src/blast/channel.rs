//! One control connection: messages out with a deadline, messages in by a thread that listens for this end's one ear.

use super::wire::{self, HELLO, Hello, Message, NoHello, Purpose, VERSION};
use crate::error::describe;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long the peer may take for an answer.
pub const PATIENCE: Duration = Duration::from_millis(1800);

/// What the controlling thread of an end hears.
#[derive(Debug)]
pub enum Heard {
    /// A message on control connection `.0`.
    Message(usize, Message),
    /// Control connection `.0` is gone, and why.
    Lost(usize, String),
    /// Somebody has connected and said hello (sink).
    Arrived(TcpStream, Hello, SocketAddr),
    /// ^C or SIGTERM.
    Interrupted,
}

/// One control connection.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    /// Its number in what is heard.
    pub number: usize,
    /// The peer, for messages to people.
    pub peer: String,
}

impl Channel {
    /// Takes over a connection whose hellos are done; `ear` hears what comes.
    ///
    /// # Errors
    /// The connection is gone already, or there is no thread for it.
    pub fn open(stream: TcpStream, number: usize, peer: String, ear: Sender<Heard>) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut reading = stream.try_clone()?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            loop {
                let heard = match wire::receive(&mut reading) {
                    Ok(message) => Heard::Message(number, message),
                    Err(error) => Heard::Lost(number, lost(&error)),
                };
                let over = matches!(heard, Heard::Lost(..));
                if ear.send(heard).is_err() || over {
                    break;
                }
            }
        })?;
        Ok(Self { stream, number, peer })
    }

    /// Says something. Where that fails the listening thread tells that the peer is lost.
    pub fn say(&self, message: &Message) {
        if wire::send(&mut &self.stream, message).is_err() {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // What was said still arrives; the listening thread ends.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn lost(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it closed the control connection".to_owned(),
        _ => describe(error),
    }
}

/// Says hello as the side that connects and reads the sink's.
///
/// # Errors
/// In words: no answer in time, another version, or something that is no sink.
pub fn greet(stream: &mut TcpStream) -> std::result::Result<Hello, String> {
    let hello = Hello { version: VERSION, purpose: Purpose::Control, flow: 0, cookie: [0; 16] };
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| describe(&error))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(|error| describe(&error))?;
    stream.write_all(&hello.encode()).map_err(|error| describe(&error))?;
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            format!("it did not answer within {} s; is it a ringway sink?", PATIENCE.as_secs_f64())
        }
        std::io::ErrorKind::UnexpectedEof => "it closed the connection; is it a ringway sink?".to_owned(),
        _ => format!("{}; is it a ringway sink?", describe(&error)),
    })?;
    match Hello::decode(&bytes) {
        Ok(hello) => Ok(hello),
        Err(NoHello::Version(theirs)) => Err(other_version(theirs)),
        Err(NoHello::NotOurs) => {
            Err("it does not speak this protocol; for an HTTP server use http://HOST/PATH".to_owned())
        }
    }
}

/// What to say of a peer of another version.
pub fn other_version(theirs: u16) -> String {
    format!("it speaks version {theirs} of the control protocol, this is {VERSION}; use the same ringway at both ends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer(bytes: &'static [u8]) -> std::result::Result<Hello, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("address");
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("accept");
            let mut hello = [0; HELLO];
            peer.read_exact(&mut hello).expect("hello");
            peer.write_all(bytes).expect("answer");
        });
        let told = greet(&mut TcpStream::connect(address).expect("connect"));
        server.join().expect("server");
        told
    }

    #[test]
    fn who_is_no_sink_is_told_apart() {
        let rows: [(&'static [u8], &str); 3] = [
            (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n", "http://HOST/PATH"),
            (b"SSH-2.0", "closed the connection"),
            (b"RWBLAST\n\0\x63----------------------", "version 99"),
        ];
        for (bytes, wanted) in rows {
            let told = answer(bytes).expect_err("no sink");
            assert!(told.contains(wanted), "{told}");
        }
    }
}
