//! The receiving end: one run at a time, for whoever completed the handshake, until told to stop.
//!
//! A machine of one thread over what it hears. Data connections belong to the run whose cookie they show, all others are
//! closed. What the sender announces is bounded here: flows, seconds, and every wait for it.

use super::channel::{Channel, Heard, PATIENCE};
use super::core::{Core, Cores};
use super::count::FlowCount;
use super::measure::{Meter, Snapshot};
use super::output::Output;
use super::payload::Block;
use super::plan::{FLOWS_MOST, LONGEST};
use super::receive::{self, Receiving};
use super::report::{CoreInterval, End, Interval, Machine, Report, Start, Sum, Test};
use super::wire::{self, Cookie, Hello, Message, Purpose, Receive, Received, Setup};
use super::{door, interrupt, machine};
use crate::clock::{Clock, Nanos};
use crate::error::{Error, Kind, Result, describe};
use crate::sys;
use socket2::SockRef;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Control connections at once.
const CHANNELS_MOST: usize = 64;
/// How long a control connection may be idle outside of a run.
const IDLE: Duration = Duration::from_secs(30);
/// How long the sender may be silent within one.
const SILENCE: Duration = Duration::from_secs(5);
/// How often it looks whether flows have ended, while it waits for that.
const LOOK: Duration = Duration::from_millis(2);

/// What a sink is to be.
#[derive(Debug)]
pub struct SinkPlan {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// How it receives, whatever the sender asks; `None`: as the sender asks.
    pub receive: Option<Receive>,
    /// One core per entry.
    pub cpus: Vec<Option<usize>>,
    /// End after the first session.
    pub once: bool,
}

/// Runs a sink. The exit code: 0, 1 where a run with `once` failed, 130 after ^C.
///
/// # Errors
/// It cannot listen, start its cores, or write what it has to tell.
pub fn run(plan: SinkPlan, out: &mut Output) -> Result<u8> {
    sys::raise_nofile().map_err(|error| Error::os("raise RLIMIT_NOFILE", &error))?;
    let (ear, heard) = channel();
    interrupt::listen(ear.clone())?;
    let cores = Cores::start(&plan.cpus, Clock::start())?;
    for warning in &cores.warnings {
        eprintln!("ringway: warning: {warning}");
    }
    let me = wire::cookie().map_err(|error| Error::os("read /dev/urandom", &error))?;
    for address in door::open(&plan.listen, 0, me, ear.clone())? {
        eprintln!("listening on {address}");
    }
    let meter = Meter::new(&cores);
    let mut sink = Sink {
        plan,
        out,
        ear,
        meter,
        channels: HashMap::new(),
        next: 0,
        run: None,
        failed: false,
        ended: false,
        cores: &cores,
    };
    sink.listen(&heard)
}

struct Sink<'a> {
    plan: SinkPlan,
    out: &'a mut Output,
    ear: Sender<Heard>,
    cores: &'a Cores,
    meter: Meter,
    channels: HashMap<usize, (Channel, Nanos)>,
    next: usize,
    run: Option<Run>,
    failed: bool,
    ended: bool,
}

#[derive(PartialEq, Eq, Clone, Copy, Debug)]
enum Stage {
    /// Waits for data connections.
    Gathering,
    /// The sender says that they are all there.
    Counting,
    /// Bytes flow.
    Flowing,
    /// The window is to end when the flows have.
    Ending,
    /// The window is over.
    Ended,
    /// The flows are to end, and then the figures go out.
    Closing,
    /// The figures are out; the sender's report may come, or another run.
    Told,
}

struct Taken {
    count: Arc<FlowCount>,
    core: usize,
    rcvbuf: u64,
    socket: Option<OwnedFd>,
    /// A duplicate, to read what the kernel granted when it ends.
    watched: Option<OwnedFd>,
    begin: u64,
    end: u64,
}

struct Run {
    channel: usize,
    cookie: Cookie,
    setup: Setup,
    blocks: Arc<[Block]>,
    receive: Receive,
    stage: Stage,
    flows: Vec<Option<Taken>>,
    /// When the sender must have said or done what is waited for.
    deadline: Nanos,
    /// When it ends by itself.
    longest: Nanos,
    begun: Snapshot,
    mark: Option<Snapshot>,
    end: Option<Snapshot>,
    line: Option<Snapshot>,
    intervals: Vec<Interval>,
    peer: String,
    machine: Machine,
    /// The sender says that its flows have ended.
    done: bool,
    reported: bool,
}

impl Run {
    fn have(&self) -> usize {
        self.flows.iter().flatten().count()
    }

    fn all_ended(&self) -> bool {
        self.flows.iter().flatten().all(|flow| flow.count.ended.load(Ordering::Acquire))
    }
}

impl Sink<'_> {
    fn now(&self) -> Nanos {
        self.cores.clock.now()
    }

    fn listen(&mut self, heard: &Receiver<Heard>) -> Result<u8> {
        loop {
            let wait = match &self.run {
                Some(run) if matches!(run.stage, Stage::Ending | Stage::Closing) => LOOK,
                _ => Duration::from_millis(100),
            };
            match heard.recv_timeout(wait) {
                Ok(Heard::Interrupted) => {
                    self.abandon("interrupted at the sink");
                    self.out.done()?;
                    return Ok(interrupt::EXIT);
                }
                Ok(Heard::Arrived(stream, hello, peer)) => self.arrived(stream, hello, peer),
                Ok(Heard::Message(number, message)) => self.message(number, message),
                Ok(Heard::Lost(number, why)) => self.lost(number, &why),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Kind::Runtime, "listen", "the sink's threads have ended"));
                }
            }
            self.go_on();
            self.out.done()?;
            if self.ended && self.plan.once {
                return Ok(u8::from(self.failed));
            }
        }
    }

    fn arrived(&mut self, stream: TcpStream, hello: Hello, peer: SocketAddr) {
        if hello.purpose == Purpose::Control {
            if self.channels.len() >= CHANNELS_MOST {
                return;
            }
            self.next += 1;
            if let Ok(channel) = Channel::open(stream, self.next, peer.to_string(), self.ear.clone()) {
                self.channels.insert(self.next, (channel, self.now().after(IDLE)));
            }
            return;
        }
        let Some(run) = self.run.as_mut().filter(|run| run.cookie == hello.cookie) else { return };
        let gathering = matches!(run.stage, Stage::Gathering | Stage::Counting);
        let Some(place) = run.flows.get_mut(hello.flow as usize).filter(|place| gathering && place.is_none()) else {
            return;
        };
        let socket = OwnedFd::from(stream);
        let wanted = run.setup.receive_buffer as usize;
        if wanted > 0 {
            // Granted or not is read back and reported.
            let _ = SockRef::from(&socket).set_recv_buffer_size(wanted);
        }
        *place = Some(Taken {
            count: Arc::default(),
            core: hello.flow as usize % self.cores.all().len().max(1),
            rcvbuf: 0,
            watched: socket.try_clone().ok(),
            socket: Some(socket),
            begin: 0,
            end: 0,
        });
    }

    fn message(&mut self, number: usize, message: Message) {
        if let Message::Setup(setup) = message {
            self.setup(number, setup);
            return;
        }
        let now = self.now();
        let Some(run) = self.run.as_mut().filter(|run| run.channel == number) else {
            self.channels.remove(&number);
            return;
        };
        run.deadline = now.after(SILENCE);
        match message {
            Message::Connected if run.stage == Stage::Gathering => {
                run.stage = Stage::Counting;
                run.deadline = now.after(PATIENCE);
            }
            Message::Mark if run.stage == Stage::Flowing => {
                let snap = self.meter.snap(self.cores);
                run.flows.iter_mut().flatten().for_each(|flow| flow.begin = flow.count.received.get());
                run.line = Some(snap.clone());
                run.mark = Some(snap);
                run.intervals.clear();
            }
            Message::Sample => self.sample(number),
            Message::Stop { ended } if run.stage == Stage::Flowing => {
                run.stage = Stage::Ending;
                if !ended {
                    self.end_window();
                }
            }
            // Where the window ends with the flows, their last bytes may still be in the sockets.
            Message::Done if run.stage == Stage::Ending => run.done = true,
            Message::Done if run.stage == Stage::Ended => run.stage = Stage::Closing,
            Message::Report(report) => {
                run.reported = true;
                self.out.report(&report);
                self.failed |= report.partial.is_some();
            }
            Message::Abort { why } => self.over(&why),
            other => {
                let why = format!("the sender said {} out of turn", name_of(&other));
                self.abandon(&why);
            }
        }
    }

    fn say(&self, number: usize, message: &Message) {
        if let Some((channel, _)) = self.channels.get(&number) {
            channel.say(message);
        }
    }

    fn setup(&mut self, number: usize, setup: Setup) {
        let now = self.now();
        // A sender that has given its report is done, even if the end of its connection is not heard yet.
        if self.run.as_ref().is_some_and(|run| run.channel != number && run.stage == Stage::Told && run.reported) {
            self.close();
        }
        let Some((channel, idle)) = self.channels.get_mut(&number) else { return };
        *idle = now.after(IDLE);
        let peer = channel.peer.clone();
        let busy = self.run.as_ref().filter(|run| run.channel != number || run.stage != Stage::Told);
        let refuse = if let Some(run) = busy {
            Some(format!("it is busy with a run of {}", run.peer))
        } else if setup.flows == 0 || setup.flows as usize > FLOWS_MOST {
            Some(format!("{} flows are not between 1 and {FLOWS_MOST}", setup.flows))
        } else if setup.seconds_most > 2 * LONGEST.as_secs() {
            Some(format!("{} s are too long", setup.seconds_most))
        } else {
            None
        };
        if let Some(why) = refuse {
            self.say(number, &Message::Refused { why });
            return;
        }
        let cookie = match wire::cookie() {
            Ok(cookie) => cookie,
            Err(error) => {
                let why = format!("/dev/urandom: {}", describe(&error));
                self.say(number, &Message::Refused { why });
                return;
            }
        };
        let receive = if setup.blocks.is_empty() { self.plan.receive.unwrap_or(setup.receive) } else { Receive::Copy };
        let machine = machine::read(Path::new("/"), &self.plan.cpus, &[]);
        self.cores.all().iter().for_each(|core| core.counts.forgive());
        let mut setup = setup;
        self.run = Some(Run {
            channel: number,
            cookie,
            blocks: std::mem::take(&mut setup.blocks).into(),
            receive,
            stage: Stage::Gathering,
            flows: (0..setup.flows).map(|_| None).collect(),
            deadline: now.after(IDLE),
            longest: now.after(Duration::from_secs(setup.seconds_most) + SILENCE),
            begun: self.meter.snap(self.cores),
            mark: None,
            end: None,
            line: None,
            intervals: Vec::new(),
            peer,
            machine: machine.clone(),
            done: false,
            reported: false,
            setup,
        });
        self.say(number, &Message::Ready { cookie: wire::hex(&cookie), machine: Box::new(machine), receive });
    }

    fn start(&mut self) {
        let Some(run) = self.run.as_mut() else { return };
        run.stage = Stage::Flowing;
        run.deadline = self.cores.clock.now().after(SILENCE);
        run.begun = self.meter.snap(self.cores);
        run.line = Some(run.begun.clone());
        for flow in run.flows.iter_mut().flatten() {
            let Some(socket) = flow.socket.take() else { continue };
            let receiving = Receiving {
                socket,
                mode: run.receive,
                blocks: Arc::clone(&run.blocks),
                count: Arc::clone(&flow.count),
            };
            self.cores.give(flow.core, Box::new(move |core: &Rc<Core>| receive::start(core, receiving)));
        }
        let start = self.head();
        self.out.start(&start);
    }

    fn head(&self) -> Start {
        let Some(run) = &self.run else { return Start::default() };
        Start {
            version: run.setup.program.clone(),
            timestamp: self.cores.clock.unix().as_secs(),
            test_start: Test {
                protocol: "tcp".into(),
                targets: vec![run.peer.clone()],
                engine: "sink".into(),
                receive: run.receive.name().into(),
                num_streams: u64::from(run.setup.flows),
                receive_buffer: run.setup.receive_buffer,
                verify: !run.blocks.is_empty(),
                ..Test::default()
            },
            local: run.machine.clone(),
            remote: None,
        }
    }

    /// One line, where the sender asks how it goes.
    fn sample(&mut self, number: usize) {
        let snap = self.meter.snap(self.cores);
        let Some(run) = self.run.as_mut() else { return };
        if let Some(wrong) = self.cores.all().iter().find_map(|core| core.counts.trouble())
            && run.stage == Stage::Flowing
        {
            self.abandon(&wrong);
            return;
        }
        let from = run.line.replace(snap.clone()).unwrap_or_else(|| run.begun.clone());
        let base = run.mark.as_ref().unwrap_or(&run.begun).at;
        let seconds = snap.at.since(from.at).as_secs_f64();
        let bytes = snap.received() - from.received();
        let interval = Interval {
            start: from.at.since(base).as_secs_f64(),
            end: snap.at.since(base).as_secs_f64(),
            omitted: run.setup.warms_up && run.mark.is_none(),
            bytes,
            received_bytes: bytes,
            bits_per_second: super::report::rate(bytes, seconds),
            cpu_seconds: snap.cpu() - from.cpu(),
            cores: by_core(&from, &snap),
            ..Interval::default()
        };
        let tick =
            Message::Tick { bytes: snap.received() - run.begun.received(), cpu_seconds: snap.cpu() - run.begun.cpu() };
        self.out.interval(&interval);
        run.intervals.push(interval);
        self.say(number, &tick);
    }

    fn end_window(&mut self) {
        let snap = self.meter.snap(self.cores);
        let Some(run) = self.run.as_mut() else { return };
        run.flows.iter_mut().flatten().for_each(|flow| {
            flow.end = flow.count.received.get();
            flow.rcvbuf = flow
                .watched
                .as_ref()
                .and_then(|socket| SockRef::from(socket).recv_buffer_size().ok())
                .map_or(0, |bytes| bytes as u64);
        });
        run.end = Some(snap);
        run.stage = Stage::Ended;
    }

    /// Whatever is due without a word.
    fn go_on(&mut self) {
        let now = self.now();
        self.channels
            .retain(|number, (_, idle)| now < *idle || self.run.as_ref().is_some_and(|run| run.channel == *number));
        let Some(run) = self.run.as_mut() else { return };
        let (stage, channel, have, wanted) = (run.stage, run.channel, run.have(), run.flows.len());
        let late = now >= run.deadline;
        match stage {
            Stage::Counting if have == wanted || late => {
                if have == wanted {
                    self.start();
                }
                self.say(channel, &Message::Have { flows: have as u32 });
            }
            Stage::Ending if run.all_ended() || (run.done && late) => {
                self.end_window();
                if let Some(run) = self.run.as_mut().filter(|run| run.done) {
                    run.stage = Stage::Closing;
                }
            }
            Stage::Closing if run.all_ended() || late => self.tell(),
            Stage::Told if late => self.close(),
            _ if late => self.abandon(&format!("the sender said nothing for {} s", SILENCE.as_secs())),
            _ if now >= run.longest => self.abandon("the run took longer than its sender announced"),
            _ => {}
        }
    }

    /// The figures, to the sender.
    fn tell(&mut self) {
        let Some(run) = self.run.as_mut() else { return };
        let mark = run.mark.as_ref().unwrap_or(&run.begun);
        let Some(end) = &run.end else { return };
        let side = self.meter.side(self.cores, mark, end, false);
        let flows = run.flows.iter().enumerate().filter_map(|(number, flow)| {
            let flow = flow.as_ref()?;
            Some(Received {
                flow: number as u32,
                core: flow.core as u32,
                bytes: flow.end - flow.begin,
                total: flow.count.received.get(),
                rcvbuf: flow.rcvbuf,
                verified: flow.count.verified.get(),
            })
        });
        let flows = flows.collect();
        let wrong = self.cores.all().iter().find_map(|core| core.counts.trouble());
        self.failed |= wrong.is_some();
        run.stage = Stage::Told;
        run.deadline = self.cores.clock.now().after(IDLE);
        run.flows.clear();
        let channel = run.channel;
        self.cores.clear();
        self.say(channel, &Message::Final { side: Box::new(side), flows, wrong });
    }

    fn lost(&mut self, number: usize, why: &str) {
        self.channels.remove(&number);
        let Some(run) = self.run.as_ref().filter(|run| run.channel == number) else { return };
        if run.stage == Stage::Told {
            if !run.reported {
                self.failed = true;
                eprintln!("ringway: the sender left without its report: {why}");
            }
            self.close();
        } else {
            self.over(&format!("the sender is gone: {why}"));
        }
    }

    /// Ends the session well.
    fn close(&mut self) {
        if let Some(run) = self.run.take() {
            self.channels.remove(&run.channel);
            self.ended = true;
        }
        self.cores.clear();
    }

    /// Ends it from this side.
    fn abandon(&mut self, why: &str) {
        if let Some(run) = &self.run {
            self.say(run.channel, &Message::Abort { why: why.to_owned() });
        }
        self.over(why);
    }

    /// The run is over before its time: what there is, is told as partial.
    fn over(&mut self, why: &str) {
        let snap = self.meter.snap(self.cores);
        let head = self.head();
        let Some(run) = self.run.as_ref() else { return };
        self.failed = true;
        if !matches!(run.stage, Stage::Gathering | Stage::Counting | Stage::Told) {
            let side = self.meter.side(self.cores, run.mark.as_ref().unwrap_or(&run.begun), &snap, false);
            let sum = Sum::new(side.bytes, side.seconds);
            let report = Report {
                start: head,
                intervals: run.intervals.clone(),
                end: End { sum_received: sum, receiver: Some(side), ..End::default() },
                partial: Some(why.to_owned()),
                ..Report::default()
            };
            self.out.report(&report);
        }
        eprintln!("ringway: {why}");
        self.close();
    }
}

fn by_core(from: &Snapshot, to: &Snapshot) -> Vec<CoreInterval> {
    let (bytes, cpu) = (to.received_by_core(), to.cpu_by_core());
    let (bytes_before, cpu_before) = (from.received_by_core(), from.cpu_by_core());
    let one = |core: usize| CoreInterval {
        core: core as u64,
        bytes: bytes[core] - bytes_before[core],
        cpu_seconds: (cpu[core] - cpu_before[core]).max(0.0),
    };
    (0..bytes.len()).map(one).collect()
}

fn name_of(message: &Message) -> String {
    let json = serde_json::to_value(message).unwrap_or_default();
    json.get("type").and_then(|name| name.as_str()).unwrap_or("something").to_owned()
}
