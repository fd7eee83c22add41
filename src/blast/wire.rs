//! What the two ends tell each other: a small, versioned control protocol.
//!
//! Every connection begins with a [`Hello`] of 32 bytes from the side that connected; the sink answers one on a control
//! connection. What follows on a control connection are frames: four bytes of length (big endian), then a [`Message`] as
//! JSON. What follows on a data connection is payload and nothing else. A sink takes data only on connections that show the
//! cookie of a control session that is under way.

use super::payload::Block;
use super::report::{Machine, Report, Side};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Version of the protocol. Ends of different versions do not talk.
pub const VERSION: u16 = 1;
/// Bytes of a hello.
pub const HELLO: usize = 32;
/// Bytes of a frame at most: a final report of ten thousand flows fits.
pub const FRAME_MOST: usize = 16 << 20;
const MAGIC: [u8; 8] = *b"RWBLAST\n";

/// 16 random bytes that name a session or a sink.
pub type Cookie = [u8; 16];

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Messages.
    Control,
    /// Payload of one flow.
    Data,
}

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Of the protocol.
    pub version: u16,
    /// What for.
    pub purpose: Purpose,
    /// Which flow, on a data connection.
    pub flow: u32,
    /// The session, on a data connection; the sink itself, in a sink's answer.
    pub cookie: Cookie,
}

/// Why bytes are no hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHello {
    /// They do not begin as one does: something else is speaking.
    NotOurs,
    /// They are of another version.
    Version(u16),
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_be_bytes());
        bytes[10] = u8::from(self.purpose == Purpose::Data);
        bytes[12..16].copy_from_slice(&self.flow.to_be_bytes());
        bytes[16..].copy_from_slice(&self.cookie);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are not a hello, or one of another version.
    pub fn decode(bytes: &[u8; HELLO]) -> Result<Self, NoHello> {
        if bytes[..8] != MAGIC {
            return Err(NoHello::NotOurs);
        }
        let version = u16::from_be_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(NoHello::Version(version));
        }
        let purpose = match bytes[10] {
            0 => Purpose::Control,
            1 => Purpose::Data,
            _ => return Err(NoHello::NotOurs),
        };
        let flow = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        let mut cookie = [0; 16];
        cookie.copy_from_slice(&bytes[16..]);
        Ok(Self { version, purpose, flow, cookie })
    }
}

/// How a receiver takes bytes out of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Receive {
    /// recv(2) of 64 KiB into memory.
    #[default]
    Copy,
    /// recv(2) with MSG_TRUNC: thrown away in the kernel, nothing copied.
    Trunc,
    /// splice(2) into a pipe and on to /dev/null.
    Splice,
}

impl Receive {
    /// As it is given.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Trunc => "trunc",
            Self::Splice => "splice",
        }
    }

    /// From what was given.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Copy, Self::Trunc, Self::Splice].into_iter().find(|mode| mode.name() == text)
    }
}

/// What a run asks of its sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// `ringway 0.1.0`.
    pub program: String,
    /// Data connections that will come.
    pub flows: u32,
    /// How to receive; the sink's own choice wins where it was given one.
    pub receive: Receive,
    /// SO_RCVBUF; 0 leaves autotuning.
    pub receive_buffer: u64,
    /// Seconds after which the sink ends the run by itself, whatever the sender says.
    pub seconds_most: u64,
    /// There is a warm-up: the measured window begins with [`Message::Mark`]. Else it begins with the first byte.
    pub warms_up: bool,
    /// Check payload against these blocks, which come in this order over and over; empty: do not.
    pub blocks: Vec<Block>,
}

/// One flow as the sink saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Which.
    pub flow: u32,
    /// Core it ran on.
    pub core: u32,
    /// Bytes in the measured window.
    pub bytes: u64,
    /// Bytes in all.
    pub total: u64,
    /// SO_RCVBUF the kernel granted.
    pub rcvbuf: u64,
    /// Blocks that were checked and right.
    pub verified: u64,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// The client asks for a session.
    Setup(Setup),
    /// The sink takes it: connect the flows with this cookie.
    Ready {
        /// Of the session.
        cookie: String,
        /// The sink's machine.
        machine: Box<Machine>,
        /// How it will receive.
        receive: Receive,
    },
    /// The sink does not take it.
    Refused {
        /// Why.
        why: String,
    },
    /// All flows are connected: how many has the sink?
    Connected,
    /// So many.
    Have {
        /// Data connections of the session.
        flows: u32,
    },
    /// The measured window begins now.
    Mark,
    /// How is it going?
    Sample,
    /// So.
    Tick {
        /// Bytes since the session began.
        bytes: u64,
        /// CPU seconds since then.
        cpu_seconds: f64,
    },
    /// The measured window ends.
    Stop {
        /// Every flow was ended by the client: the window ends when the sink has their last bytes. Else it ends now.
        ended: bool,
    },
    /// Every flow was ended by the client; no more bytes come.
    Done,
    /// The sink's figures.
    Final {
        /// Of the measured window.
        side: Box<Side>,
        /// Flow by flow.
        flows: Vec<Received>,
        /// Wrong payload: what was wrong first.
        wrong: Option<String>,
    },
    /// The whole report, so that the sink can tell it too.
    Report(Box<Report>),
    /// It ends here.
    Abort {
        /// Why.
        why: String,
    },
}

/// Sends one message.
///
/// # Errors
/// The peer is gone, or does not read within the stream's timeout.
pub fn send(stream: &mut impl Write, message: &Message) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    if json.len() > FRAME_MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message too long to send"));
    }
    let mut frame = Vec::with_capacity(4 + json.len());
    frame.extend_from_slice(&(json.len() as u32).to_be_bytes());
    frame.extend_from_slice(&json);
    stream.write_all(&frame)
}

/// Receives one message.
///
/// # Errors
/// The peer is gone (`UnexpectedEof`), says nothing within the stream's timeout, or sends what is no message.
pub fn receive(stream: &mut impl Read) -> io::Result<Message> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > FRAME_MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame longer than any message"));
    }
    let mut json = vec![0; len];
    stream.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A fresh cookie from the kernel's random numbers.
///
/// # Errors
/// /dev/urandom cannot be read.
pub fn cookie() -> io::Result<Cookie> {
    let mut cookie = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut cookie)?;
    Ok(cookie)
}

/// A cookie as text.
pub fn hex(cookie: &Cookie) -> String {
    cookie.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A cookie from its text.
pub fn unhex(text: &str) -> Option<Cookie> {
    let mut cookie = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in cookie.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_hello_is_told_from_one_of_another_version() {
        let hello = Hello { version: VERSION, purpose: Purpose::Data, flow: 7, cookie: [9; 16] };
        let mut bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        bytes[9] = 99;
        assert_eq!(Hello::decode(&bytes), Err(NoHello::Version(99)));
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n     "), Err(NoHello::NotOurs));
        bytes = hello.encode();
        bytes[10] = 2;
        assert_eq!(Hello::decode(&bytes), Err(NoHello::NotOurs));
    }

    #[test]
    fn messages_cross_and_what_is_none_is_refused() {
        let setup = Message::Setup(Setup { flows: 3, receive: Receive::Trunc, ..Setup::default() });
        let mut wire = Vec::new();
        send(&mut wire, &setup).expect("sent");
        send(&mut wire, &Message::Tick { bytes: 1, cpu_seconds: 0.5 }).expect("sent");
        let mut read = wire.as_slice();
        assert_eq!(receive(&mut read).expect("first"), setup);
        assert_eq!(receive(&mut read).expect("second"), Message::Tick { bytes: 1, cpu_seconds: 0.5 });
        assert_eq!(receive(&mut read).expect_err("end").kind(), io::ErrorKind::UnexpectedEof);
        let long = (FRAME_MOST as u32 + 1).to_be_bytes();
        assert_eq!(receive(&mut long.as_slice()).expect_err("long").kind(), io::ErrorKind::InvalidData);
        let noise = [0, 0, 0, 2, b'{', b'!'];
        assert_eq!(receive(&mut noise.as_slice()).expect_err("noise").kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::array::uniform32(0u8..), text in "[0-9a-fg]{0,40}") {
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            }
            if let Some(cookie) = unhex(&text) {
                prop_assert_eq!(hex(&cookie), text);
            }
        }
    }
}
