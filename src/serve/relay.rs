//! A body from an origin's socket to a client's, not stored on the way.
//!
//! Long bodies go socket -> pipe -> socket by splice(2), called on the ring thread when the ring says that there is
//! something to move: both ends are non-blocking, so a call cannot wait, and a splice submitted to the ring would always
//! be handed to a kernel worker. Short ones, chunks and what has no pipe go through a buffer.
//!
//! EAGAIN from a splice means "the pipe is full" or "the socket is empty". Here a pipe is filled only when it is empty,
//! so that EAGAIN while filling is always the origin's socket, and EAGAIN while draining always the client's.
//!
//! Invariants: `filled == drained + in_pipe` for every pipe; what an origin sent is never thrown away (unlike a file it
//! cannot be read again), so a pipe is given back only when it is empty. A client that does not read holds at most one
//! pipe, and only while pipes are not scarce: else what it did not take is moved into memory of its exact size.

use super::connection::Conn;
use super::core::Core;
use crate::config::EngineChoice;
use crate::ring::op::Op;
use crate::ring::pipes::Pipe;
use crate::sys;
use crate::telemetry::tally::{AbortReason, Engine, SpliceResult, SpliceStage};
use crate::transfer::drive::{Abort, CORK_FROM, lost, lost_io};
use crate::transfer::plan::{self, Plan};
use crate::upstream::exchange::{Cut, Incoming};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;

/// The first splice asks for so much; each that the client takes whole doubles it.
const QUANTUM_FIRST: usize = 256 << 10;
/// Below this a call costs more than its bytes.
const QUANTUM_LEAST: usize = 64 << 10;
/// A waiting client keeps its pipe while at least one in so many is free.
const SCARCE: u64 = 4;

/// Sends the whole body, as chunks or as it is; counts it by engine.
///
/// # Errors
/// The response is incomplete and its connection must end.
pub async fn body(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    incoming: &mut Incoming,
    chunked: bool,
    choice: EngineChoice,
) -> Result<(), Abort> {
    let corked = incoming.left().is_some_and(|left| left >= CORK_FROM) && choice != EngineChoice::SendZc;
    if corked {
        sys::socket::cork(conn.flow.socket.as_fd(), true);
    }
    let sent = pump(core, conn, incoming, chunked, choice).await;
    if corked {
        sys::socket::cork(conn.flow.socket.as_fd(), false);
    }
    sent
}

async fn pump(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    incoming: &mut Incoming,
    chunked: bool,
    choice: EngineChoice,
) -> Result<(), Abort> {
    let mut last = None;
    let mut quantum = QUANTUM_FIRST;
    while !incoming.is_done() {
        // What was received with the head is in a buffer already.
        let left = incoming.left().filter(|_| !chunked && incoming.at_hand() == 0);
        let facts = core.mover.relay_facts(&conn.flow, choice, left);
        let Plan { engine, reason } = plan::relay(&facts);
        core.mover.count_switch(last, engine, reason);
        last = Some(engine);
        if engine == Engine::Splice {
            splice(core, conn, incoming, &mut quantum).await?;
        } else {
            let Some(piece) = received(core, conn, incoming).await? else { break };
            let left = incoming.left().unwrap_or(u64::MAX);
            if chunked {
                send_chunk(core, conn, incoming, piece).await?;
            } else if engine == Engine::SendZc && piece.start == 0 && left > 0 && incoming.at_hand() == 0 {
                // The buffer goes with the send, so nothing else may be in it.
                send_without_copy(core, conn, incoming, piece).await?;
            } else {
                send_piece(core, conn, incoming, piece).await?;
            }
        }
        incoming.used();
        if !incoming.is_done() {
            core.mover.give_way().await;
        }
    }
    // An empty piece is the end of a body of unknown length, and lets the connection go home.
    match received(core, conn, incoming).await? {
        None => {}
        Some(_) => return Err(Abort(AbortReason::Upstream)),
    }
    if chunked {
        let end = b"0\r\n\r\n".to_vec();
        let (_, sent) = core.mover.send_head(&conn.flow, end, false).await;
        sent?;
    }
    Ok(())
}

async fn received(core: &Rc<Core>, conn: &Rc<Conn>, incoming: &mut Incoming) -> Result<Option<Range<usize>>, Abort> {
    conn.hold(core, incoming.piece(u64::MAX)).await?.map_err(|_| Abort(AbortReason::Upstream))
}

/// Counts body bytes that the client's socket took.
fn took(core: &Core, conn: &Conn, engine: Engine, bytes: usize) {
    core.tally().body_bytes[engine as usize].add(bytes as u64);
    conn.flow.sent.set(conn.flow.sent.get() + bytes as u64);
    conn.flow.progressed.set(core.clock().now());
}

/// Sends a piece: at once what the socket takes; the rest is copied out, so that no buffer waits for a slow client.
async fn send_piece(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    incoming: &mut Incoming,
    piece: Range<usize>,
) -> Result<(), Abort> {
    let bytes = incoming.bytes(&piece);
    let now = send_now(core, conn, bytes, 0)?;
    if now == bytes.len() {
        return Ok(());
    }
    let rest = bytes[now..].to_vec();
    incoming.let_go();
    send_rest(core, conn, rest, 0).await
}

/// What the socket takes without waiting; the last `framing` bytes are no body.
fn send_now(core: &Rc<Core>, conn: &Rc<Conn>, bytes: &[u8], framing: usize) -> Result<usize, Abort> {
    let now = match sys::send(conn.flow.socket.as_fd(), bytes, false) {
        Ok(n) => n,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
        Err(error) => return Err(lost_io(&error)),
    };
    count(core, conn, now, bytes.len(), framing);
    Ok(now)
}

/// Bytes of its own, all of them, by the ring.
async fn send_rest(core: &Rc<Core>, conn: &Rc<Conn>, bytes: Vec<u8>, framing: usize) -> Result<(), Abort> {
    let want = bytes.len();
    let done = core.ring.submit(Op::Send { socket: Rc::clone(&conn.flow.socket), bytes, more: false }).await;
    count(core, conn, done.result.unwrap_or(0) as usize, want, framing);
    match done.result {
        Ok(n) if n as usize == want => Ok(()),
        Ok(_) => Err(Abort(AbortReason::ClientReset)),
        Err(errno) => Err(lost(errno)),
    }
}

/// Of `of` bytes, the last `framing` of which are no body, the socket took `n`.
fn count(core: &Core, conn: &Conn, n: usize, of: usize, framing: usize) {
    let body = n.min(of.saturating_sub(framing));
    took(core, conn, Engine::Send, body);
    core.tally().head_bytes.add((n - body) as u64);
}

/// Sends a chunk: its size, its bytes, its end.
async fn send_chunk(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    incoming: &mut Incoming,
    piece: Range<usize>,
) -> Result<(), Abort> {
    let bytes = incoming.bytes(&piece);
    let size = format!("{:x}\r\n", bytes.len());
    let mut chunk = Vec::with_capacity(bytes.len() + 2);
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    incoming.let_go();
    let (_, sent) = core.mover.send_head(&conn.flow, size.into_bytes(), true).await;
    sent?;
    match send_now(core, conn, &chunk, 2)? {
        now if now == chunk.len() => Ok(()),
        // What is left of the two bytes of framing is still the end of it.
        now => send_rest(core, conn, chunk.split_off(now), 2).await,
    }
}

/// Sends a piece in place; what the socket does not take follows by copy.
async fn send_without_copy(
    core: &Rc<Core>,
    conn: &Rc<Conn>,
    incoming: &mut Incoming,
    piece: Range<usize>,
) -> Result<(), Abort> {
    // A zero-copy buffer stays with the kernel until it is acknowledged, so the rest is copied out before.
    let Some(lease) = incoming.take() else { return Err(Abort(AbortReason::Upstream)) };
    let whole = lease.bytes(piece.end).to_vec();
    match core.mover.send_without_copy(&conn.flow, lease, 0, piece.end as u32).await {
        Ok(n) => {
            took(core, conn, Engine::SendZc, n as usize);
            match n as usize == piece.end {
                true => Ok(()),
                false => send_rest(core, conn, whole[n as usize..].to_vec(), 0).await,
            }
        }
        Err(errno) if errno.is_again() || matches!(errno.0, libc::ENOMEM | libc::ENOBUFS) => {
            send_rest(core, conn, whole, 0).await
        }
        Err(errno) => Err(lost(errno)),
    }
}

/// One quantum: fills an empty pipe from the origin, drains it into the client.
async fn splice(core: &Rc<Core>, conn: &Rc<Conn>, incoming: &mut Incoming, quantum: &mut usize) -> Result<(), Abort> {
    let count = |stage: SpliceStage, result| core.tally().splices[stage as usize][result as usize].add(1);
    let upstream = |_| Abort(AbortReason::Upstream);
    let Some(socket) = incoming.socket().map(Rc::clone) else { return Err(Abort(AbortReason::Upstream)) };
    let Some(pipe) = core.mover.stock().try_pipe() else {
        // Lent since the plan was made: the next plan sees it, after somebody else had a turn.
        let piece = received(core, conn, incoming).await?;
        return match piece {
            Some(piece) => send_piece(core, conn, incoming, piece).await,
            None => Ok(()),
        };
    };
    let left = usize::try_from(incoming.left().unwrap_or(0)).unwrap_or(usize::MAX);
    let asked = left.min(*quantum).min(pipe.size()).min(core.mover.turn_bytes() as usize);
    let filled = match sys::splice(socket.as_fd(), None, pipe.write().as_fd(), asked) {
        Ok(0) => {
            incoming.broken(Cut::Short);
            return Err(Abort(AbortReason::Upstream));
        }
        Ok(n) => n,
        // The pipe is empty, so it is the origin that has nothing now; the pipe goes home for the wait.
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            count(SpliceStage::FileToPipe, SpliceResult::Again);
            drop(pipe);
            return conn.hold(core, incoming.wait()).await?.map_err(upstream);
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
        Err(_) => {
            incoming.broken(Cut::Reset);
            return Err(Abort(AbortReason::Upstream));
        }
    };
    count(SpliceStage::FileToPipe, if filled == asked { SpliceResult::Full } else { SpliceResult::Short });
    incoming.spliced(filled as u64);
    drain(core, conn, pipe, filled, quantum).await
}

async fn drain(core: &Rc<Core>, conn: &Rc<Conn>, pipe: Pipe, filled: usize, quantum: &mut usize) -> Result<(), Abort> {
    let count = |result| core.tally().splices[SpliceStage::PipeToSocket as usize][result as usize].add(1);
    let mut held = filled;
    while held > 0 {
        match sys::splice(pipe.read().as_fd(), None, conn.flow.socket.as_fd(), held) {
            Ok(n) => {
                held -= n;
                took(core, conn, Engine::Splice, n);
                count(if held == 0 { SpliceResult::Full } else { SpliceResult::Short });
                if held == 0 && n == filled {
                    *quantum = quantum.saturating_mul(2).min(core.mover.turn_bytes() as usize);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                count(SpliceResult::Again);
                *quantum = (*quantum / 2).max(QUANTUM_LEAST);
                if core.mover.stock().pipes().is_scarce(SCARCE) {
                    return spill(core, conn, pipe, held).await;
                }
                core.mover.room(&conn.flow).await?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(lost_io(&error)),
        }
    }
    Ok(())
}

/// Takes what a slow client did not want out of the pipe, so that somebody else can have it.
async fn spill(core: &Rc<Core>, conn: &Rc<Conn>, pipe: Pipe, held: usize) -> Result<(), Abort> {
    let mut bytes = vec![0; held];
    let mut at = 0;
    while at < held {
        match sys::read(pipe.read().as_fd(), &mut bytes[at..]) {
            Ok(n) if n > 0 => at += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The pipe held fewer bytes than the kernel said went in: nothing that follows could be trusted.
            _ => return Err(Abort(AbortReason::SendError)),
        }
    }
    drop(pipe);
    send_rest(core, conn, bytes, 0).await
}
