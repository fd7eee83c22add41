//! The sending end's data connections: made by a few threads with a deadline, and looked at while others use them.

use super::channel::PATIENCE;
use super::count::FlowCount;
use super::plan::Via;
use super::report::Stream;
use super::wire::{Cookie, Hello, Purpose, VERSION};
use crate::error::describe;
use crate::sys::socket::{self, TcpInfo};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that connect.
const CONNECTORS: usize = 16;

/// Where one flow goes and how its socket is set.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// To whom.
    pub to: SocketAddr,
    /// The session that it belongs to and its number there; none for a server that is not ours.
    pub session: Option<(Cookie, u32)>,
    /// From where.
    pub via: Option<&'a Via>,
    /// Core it will run on.
    pub core: usize,
    /// TCP_CONGESTION.
    pub congestion: Option<&'a str>,
    /// SO_SNDBUF; 0 leaves autotuning.
    pub send_buffer: u64,
    /// SO_RCVBUF; 0 leaves autotuning.
    pub receive_buffer: u64,
    /// TCP_NOTSENT_LOWAT; 0 leaves the system's.
    pub notsent_lowat: u32,
}

/// A connected flow, as the controlling thread keeps it.
#[derive(Debug)]
pub struct Flow {
    /// Its socket; the core has a duplicate.
    pub socket: OwnedFd,
    /// Core it runs on.
    pub core: usize,
    /// As `via` was named; empty where none.
    pub via: String,
    /// What it counts.
    pub count: Arc<FlowCount>,
    local: String,
    remote: String,
    sndbuf: u64,
    max_notsent: u64,
    max_held: u64,
    /// Bytes and retransmissions where the window began and where it ended.
    begin: (u64, u64),
    end: Option<(u64, TcpInfo)>,
}

/// A TCP socket with every option that must be set before it connects.
///
/// # Errors
/// In words, with what was tried.
pub fn socket_for(wanted: &Wanted<'_>) -> Result<Socket, String> {
    let at = |step: &'static str| move |error: std::io::Error| format!("{step}: {}", describe(&error));
    let made =
        Socket::new(Domain::for_address(wanted.to), Type::STREAM, Some(Protocol::TCP)).map_err(at("make a socket"))?;
    made.set_tcp_nodelay(true).map_err(at("set TCP_NODELAY"))?;
    if let Some(name) = wanted.congestion {
        made.set_tcp_congestion(name.as_bytes()).map_err(|error| {
            format!(
                "use --congestion {name}: {}; see /proc/sys/net/ipv4/tcp_available_congestion_control",
                describe(&error)
            )
        })?;
    }
    if wanted.send_buffer > 0 {
        made.set_send_buffer_size(wanted.send_buffer as usize).map_err(at("set SO_SNDBUF"))?;
    }
    if wanted.receive_buffer > 0 {
        made.set_recv_buffer_size(wanted.receive_buffer as usize).map_err(at("set SO_RCVBUF"))?;
    }
    if wanted.notsent_lowat > 0 {
        socket::limit_unsent(made.as_fd(), wanted.notsent_lowat).map_err(at("set TCP_NOTSENT_LOWAT"))?;
    }
    if let Some(via) = wanted.via {
        if via.device != "lo" {
            made.bind_device(Some(via.device.as_bytes()))
                .map_err(|error| format!("bind a flow to the interface {}: {}", via.device, describe(&error)))?;
        }
        made.bind(&SockAddr::from(SocketAddr::new(via.address, 0)))
            .map_err(|error| format!("bind a flow to {}: {}", via.address, describe(&error)))?;
    }
    Ok(made)
}

fn connect_one(wanted: &Wanted<'_>) -> Result<Flow, String> {
    let made = socket_for(wanted)?;
    made.connect_timeout(&SockAddr::from(wanted.to), PATIENCE).map_err(|error| refused(wanted.to, &error))?;
    if let Some((cookie, flow)) = wanted.session {
        let hello = Hello { version: VERSION, purpose: Purpose::Data, flow, cookie };
        made.set_write_timeout(Some(PATIENCE)).map_err(|error| describe(&error))?;
        (&made).write_all(&hello.encode()).map_err(|error| format!("greet {}: {}", wanted.to, describe(&error)))?;
    }
    made.set_nonblocking(true).map_err(|error| describe(&error))?;
    let sndbuf = made.send_buffer_size().unwrap_or(0) as u64;
    let stream = TcpStream::from(made);
    let name = |address: std::io::Result<SocketAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    Ok(Flow {
        core: wanted.core,
        via: wanted.via.map(|via| via.name.clone()).unwrap_or_default(),
        count: Arc::default(),
        local: name(stream.local_addr()),
        remote: name(stream.peer_addr()),
        socket: OwnedFd::from(stream),
        sndbuf,
        max_notsent: 0,
        max_held: 0,
        begin: (0, 0),
        end: None,
    })
}

/// What to say where a connection is not made.
pub fn refused(to: SocketAddr, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => format!("nothing listens at {to} (ECONNREFUSED)"),
        std::io::ErrorKind::TimedOut => format!("{to} does not answer within {} s", PATIENCE.as_secs_f64()),
        _ => format!("connect to {to}: {}", describe(error)),
    }
}

/// Connects all of them, in their order.
///
/// # Errors
/// The first that failed, in words; the others are closed.
pub fn connect(wanted: &[Wanted<'_>]) -> Result<Vec<Flow>, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut mine = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = wanted.get(at) else { return Ok(mine) };
            match connect_one(one) {
                Ok(flow) => mine.push((at, flow)),
                Err(why) => {
                    // The others need not go on.
                    next.store(wanted.len(), Ordering::Relaxed);
                    return Err(why);
                }
            }
        }
    };
    let parts: Vec<Result<Vec<(usize, Flow)>, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTORS.min(wanted.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread ended".to_owned()))).collect()
    });
    let mut flows = Vec::with_capacity(wanted.len());
    for part in parts {
        flows.append(&mut part?);
    }
    flows.sort_by_key(|(at, _)| *at);
    Ok(flows.into_iter().map(|(_, flow)| flow).collect())
}

impl Flow {
    /// The kernel's own figures now; nothing of a connection that is gone.
    pub fn look(&mut self) -> TcpInfo {
        let info = socket::tcp_info(self.socket.as_fd()).unwrap_or_default();
        self.max_notsent = self.max_notsent.max(u64::from(info.notsent_bytes));
        info
    }

    /// Looks at what its socket holds.
    pub fn look_at_buffer(&mut self) {
        self.max_notsent = self.max_notsent.max(socket::unsent_bytes(self.socket.as_fd()).unwrap_or(0));
        self.max_held = self.max_held.max(socket::held_bytes(self.socket.as_fd()).unwrap_or(0));
        self.sndbuf = SockRef::from(&self.socket).send_buffer_size().map_or(self.sndbuf, |bytes| bytes as u64);
    }

    /// The measured window begins.
    pub fn begin(&mut self) {
        (self.max_notsent, self.max_held) = (0, 0);
        self.begin = (self.count.sent.get(), self.look().retransmits);
        self.look_at_buffer();
    }

    /// The measured window ends.
    pub fn end(&mut self) {
        self.look_at_buffer();
        let info = self.look();
        self.end = Some((self.count.sent.get(), info));
    }

    /// Bytes in the window.
    pub fn bytes(&self) -> u64 {
        self.end.map_or(0, |(sent, _)| sent - self.begin.0)
    }

    /// As the report has it; the receiving end's part is filled in by its own word.
    pub fn stream(&self, number: usize, seconds: f64) -> Stream {
        let info = self.end.map(|(_, info)| info).unwrap_or_default();
        let share = |part: u64| if info.busy_us == 0 { 0.0 } else { part as f64 / info.busy_us as f64 };
        Stream {
            socket: number as u64,
            core: self.core as u64,
            via: self.via.clone(),
            local: self.local.clone(),
            remote: self.remote.clone(),
            bytes: self.bytes(),
            bits_per_second: super::report::rate(self.bytes(), seconds),
            retransmits: info.retransmits.saturating_sub(self.begin.1),
            rtt: f64::from(info.rtt_us),
            snd_cwnd: info.cwnd_bytes,
            max_notsent_bytes: self.max_notsent,
            max_held_bytes: self.max_held,
            sndbuf_actual: self.sndbuf,
            rwnd_limited: share(info.rwnd_limited_us),
            sndbuf_limited: share(info.sndbuf_limited_us),
            ..Stream::default()
        }
    }

    /// Its remote address, without the port.
    pub fn remote_address(&self) -> Option<IpAddr> {
        self.remote.parse::<SocketAddr>().ok().map(|address| address.ip())
    }
}
