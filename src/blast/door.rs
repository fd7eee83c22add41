//! The sink's door: accepts connections, waits a bounded time for their hello, answers those that come to talk.
//!
//! Runs on one thread with its own small runtime, apart from the cores, so that a peer who says nothing costs nothing.

use super::channel::Heard;
use super::wire::{Cookie, HELLO, Hello, NoHello, Purpose, VERSION};
use crate::error::{Error, Kind, Result, describe};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Connections whose hello has not come, at most; more wait in the accept queue.
const STRANGERS_MOST: usize = 256;
/// How long a hello may take.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 4096;

/// Listens at every address and starts the door's thread: who has said hello is heard as [`Heard::Arrived`].
///
/// # Errors
/// An address cannot be had.
pub fn open(addresses: &[SocketAddr], receive_buffer: u64, me: Cookie, ear: Sender<Heard>) -> Result<Vec<SocketAddr>> {
    let failed = |error: std::io::Error| Error::os("open the sink's door", &error);
    let mut listeners = Vec::new();
    let mut bound = Vec::new();
    for address in addresses {
        let listener = listen(*address, receive_buffer).map_err(|error| {
            let remedy = match error.kind() {
                std::io::ErrorKind::AddrInUse => "stop what listens there, or use --listen with another port",
                std::io::ErrorKind::AddrNotAvailable => "use an address of this machine",
                _ => "use --listen with another address",
            };
            Error::os(format!("listen at {address}"), &error).remedy(remedy)
        })?;
        bound.push(listener.local_addr().map_err(failed)?);
        listeners.push(listener);
    }
    if bound.is_empty() {
        return Err(Error::new(Kind::Usage, "open the sink's door", "there is no address to listen at"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    std::thread::Builder::new()
        .name("door".into())
        .spawn(move || {
            runtime.block_on(async {
                let strangers = Arc::new(tokio::sync::Semaphore::new(STRANGERS_MOST));
                let mut doors = tokio::task::JoinSet::new();
                for listener in listeners {
                    if let Ok(listener) = TcpListener::from_std(listener) {
                        doors.spawn(admit(listener, me, ear.clone(), Arc::clone(&strangers)));
                    }
                }
                while doors.join_next().await.is_some() {}
            });
        })
        .map_err(failed)?;
    Ok(bound)
}

fn listen(address: SocketAddr, receive_buffer: u64) -> std::io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if receive_buffer > 0 {
        socket.set_recv_buffer_size(receive_buffer as usize)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn admit(listener: TcpListener, me: Cookie, ear: Sender<Heard>, strangers: Arc<tokio::sync::Semaphore>) {
    loop {
        let Ok(permit) = Arc::clone(&strangers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let ear = ear.clone();
                tokio::spawn(async move {
                    // Who says nothing, or nothing we know, is closed without a word.
                    if let Ok(Some((stream, hello))) = tokio::time::timeout(HELLO_PATIENCE, greet(stream, me)).await {
                        let _ = ear.send(Heard::Arrived(stream, hello, peer));
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                eprintln!("ringway: accept a connection: {}", describe(&error));
                // Out of descriptors, as like as not: some come back when a run ends.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet(mut stream: TcpStream, me: Cookie) -> Option<(std::net::TcpStream, Hello)> {
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes).await.ok()?;
    let answer = Hello { version: VERSION, purpose: Purpose::Control, flow: 0, cookie: me }.encode();
    match Hello::decode(&bytes) {
        Ok(hello) => {
            if hello.purpose == Purpose::Control {
                stream.write_all(&answer).await.ok()?;
            }
            let stream = stream.into_std().ok()?;
            if hello.purpose == Purpose::Control {
                stream.set_nonblocking(false).ok()?;
            }
            Some((stream, hello))
        }
        Err(NoHello::Version(_)) => {
            // The other end reads our version and says so.
            let _ = stream.write_all(&answer).await;
            None
        }
        Err(NoHello::NotOurs) => None,
    }
}
