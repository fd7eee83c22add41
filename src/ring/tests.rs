//! The six rules, over the simulated kernel by seed and over the real one.

use super::buffers::{Arena, RecvPool};
use super::kernel::Kernel;
use super::op::{Op, SharedFd};
use super::pipes::PipePool;
use super::sim::{Faults, Sim};
use super::slot::Completion;
use super::{Event, Ring, TaskId};
use crate::clock::Clock;

use crate::telemetry::tally::Tally;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

fn null() -> SharedFd {
    Rc::new(OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null")))
}

fn simulated(seed: u64, faults: Faults, ops: usize) -> (Ring, Arc<Tally>, Rc<RecvPool>) {
    let tally = Arc::new(Tally::new(1));
    let pool = RecvPool::new(8, Arc::clone(&tally)).expect("pool");
    let sim = Sim::new(seed, faults, Some(Rc::clone(&pool)));
    (Ring::simulated(sim, ops, Some(Rc::clone(&pool)), Arc::clone(&tally), Clock::start()), tally, pool)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Turns the ring until the operation is done.
fn wait_for(ring: &Ring, op: Op) -> Completion {
    let mut future = pin!(ring.submit(op));
    for _ in 0..10_000 {
        if let Poll::Ready(completion) = poll(future.as_mut()) {
            return completion;
        }
        ring.enter(Some(Duration::from_millis(50))).expect("enter");
        ring.reap();
    }
    panic!("an operation never completed");
}

fn turn(ring: &Ring) -> Vec<Event> {
    ring.enter(None).expect("enter");
    ring.reap();
    std::iter::from_fn(|| ring.next_event()).collect()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// R1, R3: whatever is dropped whenever, every buffer comes home and the bytes on the wire are those that were owned.
#[test]
fn dropped_futures_free_nothing_the_simulated_kernel_still_touches() {
    for seed in 0..200 {
        let (ring, tally, _pool) = simulated(seed, Faults::MANY, 64);
        let arena = Arena::new(4 * super::buffers::ARENA_BUFFER, Arc::clone(&tally)).expect("arena");
        let (socket, file) = (null(), null());
        ring.with_sim(|sim| {
            sim.files.insert(file.as_raw_fd(), vec![b'f'; 100_000]);
            sim.peers.entry(socket.as_raw_fd()).or_default().room = 50_000;
        });
        let mut random = seed;
        for step in 0..60u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(step);
            let Some(mut lease) = arena.lease() else {
                turn(&ring);
                continue;
            };
            lease.bytes_mut(1000).fill(b'z');
            let op = match random >> 60 {
                0..6 => Op::ReadFixed { file: Rc::clone(&file), lease, len: 1000, offset: 0 },
                6..11 => Op::SendZc { socket: Rc::clone(&socket), lease, len: 1000, from: 0, route: 0, reports: true },
                _ => Op::SendLease { socket: Rc::clone(&socket), lease, len: 1000, from: 0 },
            };
            {
                let mut future = pin!(ring.submit(op));
                for _ in 0..(random >> 32) % 4 {
                    if poll(future.as_mut()).is_ready() {
                        break;
                    }
                    turn(&ring);
                }
                // Dropped here, done or not.
            }
        }
        assert!(ring.drain(Duration::from_secs(5)), "SIM_SEED={seed}: the table did not drain");
        assert_eq!(arena.idle(), 4, "SIM_SEED={seed}: a buffer did not come home");
        let taken = ring.with_sim(|sim| sim.peers[&socket.as_raw_fd()].taken.clone());
        assert!(taken.iter().all(|byte| *byte == b'z'), "SIM_SEED={seed}: a buffer changed while it was being sent");
    }
}

/// R4: the notification's high bit is no error, and a result that nobody has read survives its notification.
#[test]
fn notifications_may_come_before_or_after_the_result_is_read() {
    for seed in 0..100 {
        let (ring, tally, _pool) = simulated(seed, Faults { late: 128, copied: 128, ..Faults::NONE }, 8);
        let arena = Arena::new(super::buffers::ARENA_BUFFER, Arc::clone(&tally)).expect("arena");
        let socket = null();
        ring.with_sim(|sim| sim.peers.entry(socket.as_raw_fd()).or_default().room = 1 << 20);
        let lease = arena.lease().expect("lease");
        let mut future = pin!(ring.submit(Op::SendZc {
            socket: Rc::clone(&socket),
            lease,
            len: 500,
            from: 0,
            route: 3,
            reports: true
        }));
        assert!(poll(future.as_mut()).is_pending());
        let mut notified = None;
        // Turn until both have come, read the result only then.
        while notified.is_none() || !ring.has_ready() {
            for event in turn(&ring) {
                if let Event::Notified { route, bytes, copied, .. } = event {
                    assert_eq!((route, bytes), (3, 500), "SIM_SEED={seed}");
                    notified = copied;
                }
            }
        }
        assert!(notified.is_some());
        let Poll::Ready(done) = poll(future.as_mut()) else { panic!("SIM_SEED={seed}: no result") };
        assert_eq!(done.result, Ok(500));
        drop(done);
        assert_eq!((arena.idle(), ring.in_flight()), (1, 0), "SIM_SEED={seed}");
    }
}

/// R2: a full table makes the next operation wait, and it runs when a slot is free.
#[test]
fn a_full_table_means_wait() {
    let (ring, _tally, _pool) = simulated(1, Faults::NONE, 1);
    let socket = null();
    let blocked = Op::Poll { fd: Rc::clone(&socket), events: libc::POLLOUT as u32 };
    ring.set_current(TaskId(1));
    let mut first = pin!(ring.submit(blocked));
    assert!(poll(first.as_mut()).is_pending());
    ring.set_current(TaskId(2));
    let mut second = pin!(ring.submit(Op::Nop));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(ring.in_flight(), 1);
    turn(&ring);
    assert!(!ring.has_ready(), "nothing to do yet");
    ring.with_sim(|sim| sim.peers.entry(socket.as_raw_fd()).or_default().room = 1);
    turn(&ring);
    assert!(poll(first.as_mut()).is_ready());
    let woken: Vec<TaskId> = std::iter::from_fn(|| ring.next_ready()).collect();
    // The slot is free only once its result was taken: that is what wakes the second.
    assert_eq!(woken, [TaskId(1), TaskId(2)]);
    assert!(poll(second.as_mut()).is_pending(), "it is in the table now");
    turn(&ring);
    assert!(poll(second.as_mut()).is_ready());
}

/// R3: a descriptor that arrives for nobody is closed.
#[test]
fn an_opened_descriptor_nobody_waits_for_is_closed() {
    let (ring, _tally, _pool) = simulated(7, Faults { late: 200, cancel_loses: 255, ..Faults::NONE }, 64);
    let before = open_descriptors();
    for _ in 0..40 {
        let how = Box::new(io_uring::types::OpenHow::new());
        let mut future = pin!(ring.submit(Op::OpenAt { root: null(), path: c"x".to_owned(), how }));
        assert!(poll(future.as_mut()).is_pending());
        turn(&ring);
    }
    assert!(ring.drain(Duration::from_secs(5)));
    assert!(open_descriptors() <= before + 8, "descriptors leaked");
}

/// The buffer named by any completion comes back, whatever became of the receive.
#[test]
fn every_provided_buffer_comes_home() {
    for seed in 0..100 {
        let (ring, _tally, pool) = simulated(seed, Faults { nobufs: 60, late: 60, ..Faults::NONE }, 8);
        let socket = null();
        let fd = socket.as_raw_fd();
        ring.with_sim(|sim| {
            let peer = sim.peers.entry(fd).or_default();
            peer.input = (0..30u8).map(|n| vec![n; 10 + n as usize]).collect();
            peer.ended = true;
        });
        let mut armed = ring.stream(Op::Recv { socket: Rc::clone(&socket) }, 5).expect("room");
        let (mut seen, mut ended) = (Vec::new(), false);
        while !ended {
            for event in turn(&ring) {
                let Event::Stream { tag, result, buffer, more } = event else { continue };
                assert_eq!(tag, 5);
                if let Some(buffer) = buffer {
                    seen.extend_from_slice(buffer.bytes());
                }
                ended = result == Ok(0);
                if !more && !ended {
                    armed = ring.stream(Op::Recv { socket: Rc::clone(&socket) }, 5).expect("room");
                }
            }
        }
        let _ = armed;
        let sent: Vec<u8> = (0..30u8).flat_map(|n| vec![n; 10 + n as usize]).collect();
        assert_eq!(seen, sent, "SIM_SEED={seed}: bytes in order, once");
        assert_eq!(pool.available(), 8, "SIM_SEED={seed}");
    }
}

fn real(ops: usize) -> Option<(Ring, Arc<Tally>, Rc<RecvPool>, Rc<Arena>)> {
    let kernel = match Kernel::with_entries(64, 256) {
        Ok(kernel) => kernel,
        Err(error) => {
            eprintln!("skipped: needs io_uring: {error}");
            return None;
        }
    };
    let tally = Arc::new(Tally::new(1));
    let pool = RecvPool::new(4, Arc::clone(&tally)).expect("pool");
    let arena = Arena::new(1 << 20, Arc::clone(&tally)).expect("arena");
    kernel.register_recv_pool(&pool).expect("provided buffers");
    if let Err(error) = kernel.register_arena(&arena) {
        eprintln!("the arena is not registered here: {error}");
    }
    let ring = Ring::new(kernel, ops, Some(Rc::clone(&pool)), Arc::clone(&tally), Clock::start());
    Some((ring, tally, pool, arena))
}

fn tcp() -> (SharedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let theirs = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (ours, _) = listener.accept().expect("accept");
    ours.set_nonblocking(true).expect("nonblocking");
    (Rc::new(OwnedFd::from(ours)), theirs)
}

fn file_of(bytes: &[u8]) -> SharedFd {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(bytes).expect("write");
    Rc::new(OwnedFd::from(file))
}

#[test]
fn a_chain_moves_a_file_through_a_pipe_to_a_real_socket() {
    let Some((ring, tally, ..)) = real(16) else { return };
    let pipes = PipePool::new(1, 64 << 10, tally).expect("pipes");
    let bytes: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    let (socket, mut client) = tcp();
    let chain = |poll, len| Op::Chain {
        socket: Rc::clone(&socket),
        file: file_of(&bytes),
        pipe: pipes.lease().expect("pipe"),
        offset: 0,
        len,
        poll,
    };
    let done = wait_for(&ring, chain(true, 50_000));
    assert_eq!((done.result, done.filled), (Ok(50_000), None));
    let mut seen = vec![0; 50_000];
    client.read_exact(&mut seen).expect("read");
    assert_eq!(seen, bytes);
    drop(done);
    // Past the end of the file the first hop is short: it says so, and the second still runs (hard link).
    let done = wait_for(&ring, chain(false, 65_536));
    assert_eq!((done.result, done.filled), (Ok(50_000), Some(Ok(50_000))));
    client.read_exact(&mut seen).expect("read");
    assert_eq!(seen, bytes);
}

#[test]
fn a_chain_on_a_full_real_socket_says_again_and_its_pipe_is_emptied() {
    let Some((ring, tally, ..)) = real(16) else { return };
    let pipes = PipePool::new(1, 64 << 10, Arc::clone(&tally)).expect("pipes");
    let (socket, _client) = tcp();
    let filler = std::fs::File::from(socket.try_clone().expect("dup"));
    while (&filler).write(&[0; 65536]).is_ok() {}
    let op = Op::Chain {
        socket: Rc::clone(&socket),
        file: file_of(&[9; 4096]),
        pipe: pipes.lease().expect("pipe"),
        offset: 0,
        len: 4096,
        poll: false,
    };
    let done = wait_for(&ring, op);
    assert!(done.result.is_err_and(|errno| errno.is_again()), "{:?}", done.result);
    drop(done);
    assert_eq!(tally.pipe_discarded_bytes.get(), 4096);
    assert_eq!(pipes.lease().expect("the same pipe").held().expect("held"), 0);
}

#[test]
fn a_dropped_chain_that_waits_for_room_is_cancelled_for_real() {
    let Some((ring, tally, ..)) = real(16) else { return };
    let pipes = PipePool::new(1, 64 << 10, tally).expect("pipes");
    let (socket, _client) = tcp();
    let filler = std::fs::File::from(socket.try_clone().expect("dup"));
    while (&filler).write(&[0; 65536]).is_ok() {}
    {
        let pipe = pipes.lease().expect("pipe");
        let op =
            Op::Chain { socket: Rc::clone(&socket), file: file_of(&[9; 4096]), pipe, offset: 0, len: 4096, poll: true };
        let mut future = pin!(ring.submit(op));
        assert!(poll(future.as_mut()).is_pending());
        turn(&ring);
        assert!(pipes.lease().is_none(), "the chain has the only pipe");
    }
    for _ in 0..200 {
        if ring.in_flight() == 0 {
            break;
        }
        ring.enter(Some(Duration::from_millis(10))).expect("enter");
        ring.reap();
    }
    assert_eq!(ring.in_flight(), 0, "the orphan was cancelled");
    assert!(pipes.lease().is_some(), "and gave its pipe back");
}

#[test]
fn zero_copy_to_a_real_socket_keeps_its_buffer_until_the_notification() {
    let Some((ring, _tally, _pool, arena)) = real(16) else { return };
    let (socket, mut client) = tcp();
    let idle = arena.idle();
    let mut lease = arena.lease().expect("lease");
    lease.bytes_mut(10_000).fill(b'q');
    let done = wait_for(&ring, Op::SendZc { socket, lease, len: 10_000, from: 0, route: 1, reports: true });
    if done.result.is_err_and(|errno| errno.0 == libc::EINVAL || errno.0 == libc::EOPNOTSUPP) {
        eprintln!("skipped: needs SEND_ZC");
        return;
    }
    assert_eq!(done.result, Ok(10_000));
    // On loopback the notification may come with the result; else the kernel still owns the buffer.
    let mut verdict = None;
    if done.op.is_none() {
        assert_eq!(arena.idle(), idle - 1);
    }
    drop(done);
    let mut seen = vec![0; 10_000];
    client.read_exact(&mut seen).expect("read");
    assert!(seen.iter().all(|byte| *byte == b'q'));
    for _ in 0..200 {
        ring.enter(Some(Duration::from_millis(10))).expect("enter");
        ring.reap();
        while let Some(event) = ring.next_event() {
            if let Event::Notified { copied, bytes, route, .. } = event {
                assert_eq!((bytes, route), (10_000, 1));
                verdict = copied;
            }
        }
        if verdict.is_some() {
            break;
        }
    }
    assert_eq!(verdict, Some(true), "loopback copies, and the kernel says so");
    assert_eq!(arena.idle(), idle);
}

#[test]
fn a_multishot_receive_runs_dry_and_goes_on() {
    let Some((ring, _tally, pool, _arena)) = real(16) else { return };
    let (socket, mut client) = tcp();
    ring.stream(Op::Recv { socket: Rc::clone(&socket) }, 9).expect("room");
    ring.enter(None).expect("enter");
    let sent: Vec<u8> = (0..40_000u32).map(|n| (n / 7) as u8).collect();
    client.write_all(&sent).expect("write");
    let (mut seen, mut held, mut dry) = (Vec::new(), Vec::new(), 0);
    for _ in 0..500 {
        ring.enter(Some(Duration::from_millis(10))).expect("enter");
        ring.reap();
        while let Some(event) = ring.next_event() {
            let Event::Stream { result, buffer, more, .. } = event else { continue };
            if let Some(buffer) = buffer {
                seen.extend_from_slice(buffer.bytes());
                held.push(buffer);
            }
            if !more {
                assert!(result.is_err_and(|errno| errno.0 == libc::ENOBUFS), "{result:?}");
                dry += 1;
                assert_eq!(pool.available(), 0);
                held.clear();
                ring.stream(Op::Recv { socket: Rc::clone(&socket) }, 9).expect("room");
            }
        }
        if seen.len() == sent.len() {
            break;
        }
    }
    assert_eq!(seen, sent);
    assert!(dry > 0, "four buffers of 4 KiB cannot hold 40 kB");
}

#[test]
fn more_operations_than_the_submission_queue_holds_all_run() {
    let Some((ring, tally, ..)) = real(1000) else { return };
    let mut futures: Vec<_> = (0..500).map(|_| Box::pin(ring.submit(Op::Nop))).collect();
    for future in &mut futures {
        assert!(poll(future.as_mut()).is_pending());
    }
    for _ in 0..20 {
        ring.enter(None).expect("enter");
        ring.reap();
    }
    for future in &mut futures {
        assert!(poll(future.as_mut()).is_ready());
    }
    assert!(tally.ring_sq_full.get() > 0);
    assert_eq!(tally.ring_cqes.get(), 500);
}
