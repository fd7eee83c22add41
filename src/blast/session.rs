//! The sending end: talks to its sinks, connects, sends for a measured window, and makes one report of both ends.
//!
//! A sink that is known by two addresses is one sink: its hello carries a cookie of its own. Every wait has an end, and
//! whatever ends a run early leaves a report that says so.

use super::channel::{Channel, Heard, PATIENCE, greet};
use super::core::{Core, Cores};
use super::flows::{self, Flow, Wanted};
use super::measure::{Meter, Snapshot, merge, utilization};
use super::output::Output;
use super::payload::{Block, Payload};
use super::plan::{Common, FLOWS_MOST, LONGEST, Plan, Until, bytes_of_flow};
use super::report::{
    CoreInterval, End, Interval, Machine, Repeat, Report, Side, Start, Sum, Test, Via, ViaInterval, rate,
};
use super::send::{self, Sending};
use super::wire::{self, Cookie, Message, Received, Setup};
use super::{assertion, interrupt, machine, sample};
use crate::clock::{Clock, Nanos};
use crate::error::{Error, Kind, Result};
use crate::sys;
use std::net::TcpStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long flows may take to end once they are told to.
const ENDING: Duration = Duration::from_secs(5);
/// How often buffers are looked at, with at most [`LOOKED_AT`] flows.
const LOOK: Duration = Duration::from_millis(100);
const LOOKED_AT: usize = 1000;

/// Why a run ended before its time.
#[derive(Debug)]
pub enum Early {
    /// ^C.
    Interrupted,
    /// In words: a peer is lost, payload was wrong, a flow broke.
    Failed(String),
}

impl Early {
    fn words(&self) -> String {
        match self {
            Self::Interrupted => "interrupted at the sender".to_owned(),
            Self::Failed(why) => why.clone(),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => interrupt::EXIT,
            Self::Failed(_) => 1,
        }
    }
}

struct Sink {
    channel: Channel,
    cookie: Cookie,
    /// Indices of the targets that lead to it.
    targets: Vec<usize>,
    /// Flows of this run, by their number in the whole run.
    flows: Vec<usize>,
    session: Cookie,
    machine: Machine,
    receive: String,
    tick: Option<(u64, f64)>,
    figures: Option<(Side, Vec<Received>)>,
}

struct Session<'a> {
    plan: &'a Plan,
    out: &'a mut Output,
    cores: &'a Cores,
    meter: Meter,
    heard: Receiver<Heard>,
    sinks: Vec<Sink>,
    payload: Arc<Payload>,
    blocks: Vec<Block>,
    early: Option<Early>,
    warnings: Vec<String>,
}

/// One measured window.
#[derive(Default)]
struct Window {
    flows: Vec<Flow>,
    intervals: Vec<Interval>,
    begin: Option<Snapshot>,
    end: Option<Snapshot>,
    devices: Vec<[(u64, u64); 2]>,
}

/// Runs it: the exit code is 0, 1 where the run failed, 3 where an assertion did not hold, 130 after ^C.
///
/// # Errors
/// A target does not answer or is no sink, payload or cores cannot be had, or the report cannot be written.
pub fn run(plan: &Plan, asserts: &[assertion::Wanted], out: &mut Output) -> Result<u8> {
    sys::raise_nofile().map_err(|error| Error::os("raise RLIMIT_NOFILE", &error))?;
    let common = &plan.common;
    if common.flows == 0 || common.flows > FLOWS_MOST {
        let cause = format!("{} is not between 1 and {FLOWS_MOST}", common.flows);
        return Err(Error::new(Kind::Usage, "use --flows", cause));
    }
    let (ear, heard) = channel();
    interrupt::listen(ear.clone())?;
    // Who cannot be reached is told before anything costly is made.
    let mut sinks: Vec<Sink> = Vec::new();
    for (at, address) in plan.addresses.iter().enumerate() {
        let name = &common.targets[at];
        let failed = |why: String| Error::new(Kind::Runtime, format!("run against {name}"), why);
        let mut stream = TcpStream::connect_timeout(address, PATIENCE)
            .map_err(|error| failed(flows::refused(*address, &error)).remedy("start `ringway sink` there"))?;
        let hello = greet(&mut stream).map_err(failed)?;
        match sinks.iter_mut().find(|sink| sink.cookie == hello.cookie) {
            Some(sink) => sink.targets.push(at),
            None => {
                let number = sinks.len();
                let channel = Channel::open(stream, number, name.clone(), ear.clone())
                    .map_err(|error| Error::os(format!("talk to {name}"), &error))?;
                sinks.push(Sink {
                    channel,
                    cookie: hello.cookie,
                    targets: vec![at],
                    flows: Vec::new(),
                    session: [0; 16],
                    machine: Machine::default(),
                    receive: String::new(),
                    tick: None,
                    figures: None,
                });
            }
        }
    }
    for flow in 0..common.flows {
        let target = common.target_of(flow);
        if let Some(sink) = sinks.iter_mut().find(|sink| sink.targets.contains(&target)) {
            sink.flows.push(flow);
        }
    }
    sinks.retain(|sink| !sink.flows.is_empty());
    let payload = Arc::new(plan.from.payload()?);
    let blocks = if common.verify { payload.blocks()? } else { Vec::new() };
    let cores = Cores::start(&common.cpus, Clock::start())?;
    let meter = Meter::new(&cores);
    let warnings = cores.warnings.clone();
    let mut session = Session { plan, out, cores: &cores, meter, heard, sinks, payload, blocks, early: None, warnings };
    session.run(asserts)
}

impl Session<'_> {
    fn run(&mut self, asserts: &[assertion::Wanted]) -> Result<u8> {
        let common = &self.plan.common;
        let mut report = Report::default();
        let mut repeats = Vec::new();
        for number in 0..common.repeats.max(1) {
            let window = self.window(number == 0);
            // What never began has nothing to report.
            if window.begin.is_none()
                && let Some(Early::Failed(why)) = &self.early
            {
                return Err(Error::new(
                    Kind::Runtime,
                    format!("run against {}", common.targets.join(", ")),
                    why.clone(),
                ));
            }
            (report.end, report.intervals) = (self.end(&window), window.intervals);
            repeats.push(repeat_of(&report.end));
            self.judge(&report.end);
            let sure = common.confidence.and_then(|(level, width)| sample::confidence(&repeats, level, width));
            let enough = repeats.len() >= 3 && sure.is_some_and(|sure| sure.met);
            report.confidence = sure;
            if self.early.is_some() || enough {
                break;
            }
        }
        if common.repeats > 1 && report.confidence.is_none() {
            let (level, width) = common.confidence.unwrap_or((95.0, 5.0));
            report.confidence = sample::confidence(&repeats, level, width);
        }
        if let (Some(sure), true) = (report.confidence, common.confidence.is_some())
            && !sure.met
        {
            self.warnings.push(format!(
                "the confidence asked for was not reached in {} repeats: at {} % the width is {:.1} % of the throughput and \
                 {:.1} % of the service demand, wanted {} %",
                repeats.len(),
                sure.level,
                sure.throughput_percent,
                sure.service_demand_percent,
                sure.wanted_percent
            ));
        }
        report.repeats = repeats;
        report.start = self.start();
        report.partial = self.early.as_ref().map(Early::words);
        report.warnings = std::mem::take(&mut self.warnings);
        report.warnings.dedup();
        report.asserts = asserts.iter().map(|wanted| wanted.judge(&report)).collect();
        self.out.report(&report);
        match &self.early {
            None => {
                let message = Message::Report(Box::new(report.clone()));
                self.sinks.iter().for_each(|sink| sink.channel.say(&message));
            }
            Some(early) => self.abort(&early.words()),
        }
        self.out.done()?;
        if let Some(early) = &self.early {
            eprintln!("ringway: {}", early.words());
            return Ok(early.exit_code());
        }
        Ok(if report.asserts.iter().all(|assertion| assertion.held) { 0 } else { 3 })
    }

    fn abort(&self, why: &str) {
        self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Abort { why: why.to_owned() }));
    }

    fn fail(&mut self, why: impl Into<String>) {
        self.early.get_or_insert(Early::Failed(why.into()));
    }

    fn now(&self) -> Nanos {
        self.cores.clock.now()
    }

    /// Hears until `until`, or until `enough` says so. `false`: the run is over early.
    fn hear(&mut self, until: Nanos, enough: impl Fn(&Self) -> bool) -> bool {
        while self.early.is_none() && !enough(self) {
            let left = until.since(self.now());
            if left.is_zero() {
                break;
            }
            match self.heard.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok(heard) => self.take(heard),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.fail("the control threads have ended"),
            }
        }
        self.early.is_none()
    }

    fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Interrupted => {
                self.early.get_or_insert(Early::Interrupted);
            }
            Heard::Arrived(..) => {}
            Heard::Lost(number, why) => {
                let name = self.sinks.iter().find(|sink| sink.channel.number == number);
                // A sink that leaves after its figures is no loss; an address that led to a known sink is no sink.
                if let Some(sink) = name {
                    let why = format!("the sink {} is gone: {why}", sink.channel.peer);
                    self.fail(why);
                }
            }
            Heard::Message(number, message) => {
                let Some(sink) = self.sinks.iter_mut().find(|sink| sink.channel.number == number) else { return };
                let peer = sink.channel.peer.clone();
                match message {
                    Message::Ready { cookie, machine, receive } => {
                        sink.machine = *machine;
                        sink.receive = receive.name().to_owned();
                        match wire::unhex(&cookie) {
                            Some(cookie) => sink.session = cookie,
                            None => self.fail(format!("{peer} sent a cookie that is none")),
                        }
                    }
                    Message::Refused { why } => self.fail(format!("{peer} does not take the run: {why}")),
                    Message::Have { flows } => {
                        if flows as usize == sink.flows.len() {
                            sink.tick = Some((0, 0.0));
                        } else {
                            let wanted = sink.flows.len();
                            self.fail(format!(
                                "only {flows} of {wanted} flows reached {peer}; is its limit of descriptors too small?"
                            ));
                        }
                    }
                    Message::Tick { bytes, cpu_seconds } => sink.tick = Some((bytes, cpu_seconds)),
                    Message::Final { side, flows, wrong } => {
                        sink.figures = Some((*side, flows));
                        if let Some(wrong) = wrong {
                            self.fail(format!("{peer}: {wrong}"));
                        }
                    }
                    Message::Abort { why } => self.fail(format!("{peer} ended the run: {why}")),
                    _ => self.fail(format!("{peer} said something out of turn")),
                }
            }
        }
    }

    /// Waits for something of every sink; who does not come up with it ends the run.
    fn await_all(&mut self, what: &str, patience: Duration, has: impl Fn(&Sink) -> bool) -> bool {
        let until = self.now().after(patience);
        if !self.hear(until, |this| this.sinks.iter().all(&has)) {
            return false;
        }
        if let Some(sink) = self.sinks.iter().find(|sink| !has(sink)) {
            let why = format!("{} gave no {what} within {} s", sink.channel.peer, patience.as_secs_f64());
            self.fail(why);
        }
        self.early.is_none()
    }

    fn seconds_most(&self) -> u64 {
        let common = &self.plan.common;
        let window = match common.until {
            Until::Time(time) => time,
            _ => LONGEST,
        };
        (common.omit + window + ENDING).as_secs() + 1
    }

    fn window(&mut self, first: bool) -> Window {
        let mut window = Window::default();
        let plan = self.plan;
        let common = &plan.common;
        self.cores.all().iter().for_each(|core| core.counts.forgive());
        let seconds_most = self.seconds_most();
        for sink in &mut self.sinks {
            (sink.session, sink.tick, sink.figures) = ([0; 16], None, None);
            let setup = Setup {
                program: format!("ringway {}", env!("CARGO_PKG_VERSION")),
                flows: sink.flows.len() as u32,
                receive: plan.receive,
                receive_buffer: common.receive_buffer,
                seconds_most,
                warms_up: !common.omit.is_zero(),
                blocks: self.blocks.clone(),
            };
            sink.channel.say(&Message::Setup(setup));
        }
        if !self.await_all("answer", PATIENCE, |sink| sink.session != [0; 16]) {
            return window;
        }
        match self.connect() {
            Ok(flows) => window.flows = flows,
            Err(why) => {
                self.fail(why);
                return window;
            }
        }
        self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Connected));
        if !self.await_all("count of its flows", PATIENCE * 2, |sink| sink.tick.is_some()) {
            return window;
        }
        if first {
            let start = self.start();
            self.out.start(&start);
        }
        let stop = Arc::new(AtomicBool::new(false));
        if common.omit.is_zero() {
            self.begin(&mut window);
        }
        self.give(&window.flows, &stop);
        self.measure(&mut window);
        let ended = window.flows.iter().all(|flow| flow.count.ended.load(Ordering::Acquire));
        if self.early.is_none() {
            self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Stop { ended }));
        }
        window.end = Some(self.meter.snap(self.cores));
        window.flows.iter_mut().for_each(Flow::end);
        self.look_at_devices(&mut window.devices, 1);
        stop.store(true, Ordering::Release);
        self.cores.wake();
        if self.early.is_none() {
            let until = self.now().after(ENDING);
            let flows = &window.flows;
            let over = || flows.iter().all(|flow| flow.count.ended.load(Ordering::Acquire));
            while self.early.is_none() && !over() && self.now() < until {
                let soon = self.now().after(Duration::from_millis(5));
                self.hear(soon, |_| over());
            }
            if self.early.is_none() && !over() {
                self.fail(format!("flows did not end within {} s of being told", ENDING.as_secs()));
            }
        }
        if self.early.is_none() {
            self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Done));
            self.await_all("figures", ENDING + PATIENCE, |sink| sink.figures.is_some());
        }
        if self.early.is_none() {
            self.look_for_losses(&window.flows);
        }
        self.cores.clear();
        window
    }

    fn connect(&self) -> std::result::Result<Vec<Flow>, String> {
        let common = &self.plan.common;
        let wanted: Vec<Wanted<'_>> = (0..common.flows)
            .filter_map(|flow| {
                let sink = self.sinks.iter().find(|sink| sink.flows.contains(&flow))?;
                let number = sink.flows.iter().position(|one| *one == flow)? as u32;
                Some(Wanted {
                    to: self.plan.addresses[common.target_of(flow)],
                    session: Some((sink.session, number)),
                    via: common.via_of(flow).map(|(_, via)| via),
                    core: common.core_of(flow),
                    congestion: common.congestion.as_deref(),
                    send_buffer: self.plan.send_buffer,
                    receive_buffer: 0,
                    notsent_lowat: self.plan.notsent_lowat,
                })
            })
            .collect();
        flows::connect(&wanted)
    }

    fn give(&self, flows: &[Flow], stop: &Arc<AtomicBool>) {
        let plan = self.plan;
        let count = flows.len();
        for (number, flow) in flows.iter().enumerate() {
            let Ok(socket) = flow.socket.try_clone() else { continue };
            let sending = Sending {
                socket,
                payload: Arc::clone(&self.payload),
                engine: plan.engine,
                message: plan.message,
                bytes: match plan.common.until {
                    Until::Bytes(bytes) => Some(bytes_of_flow(bytes, count, number)),
                    _ => None,
                },
                every: plan.common.rate.map(|rate| Duration::from_secs_f64(count as f64 / rate)),
                stop: Arc::clone(stop),
                count: Arc::clone(&flow.count),
            };
            self.cores.give(flow.core, Box::new(move |core: &Rc<Core>| send::start(core, sending)));
        }
    }

    /// The warm-up and the window, interval by interval.
    fn measure(&mut self, window: &mut Window) {
        let common = &self.plan.common;
        let began = self.now();
        let mut line = self.meter.snap(self.cores);
        let mut base = began.after(common.omit);
        let mut ticks: Vec<(u64, f64)> = self.sinks.iter().map(|_| (0, 0.0)).collect();
        let mut devices = vec![[(0, 0); 2]; common.vias.len()];
        self.look_at_devices(&mut devices, 0);
        let mut retransmits: u64 = window.flows.iter_mut().map(|flow| flow.look().retransmits).sum();
        let mut vias: Vec<u64> = vec![0; common.vias.len()];
        if let Some(begin) = &window.begin {
            (base, line) = (begin.at, begin.clone());
        }
        loop {
            let marked = window.begin.is_some();
            let end = match common.until {
                _ if !marked => base,
                Until::Time(time) => base.after(time),
                _ => base.after(LONGEST),
            };
            let boundary = line.at.after(common.interval).min(end);
            // A short rest before the end is not worth a line of its own.
            let boundary = if end.since(boundary) < common.interval / 10 { end } else { boundary };
            let over = self.until_boundary(window, boundary);
            if self.early.is_some() {
                return;
            }
            let snap = self.meter.snap(self.cores);
            self.sinks.iter_mut().for_each(|sink| sink.tick = None);
            self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Sample));
            if !self.await_all("sign of life", PATIENCE, |sink| sink.tick.is_some()) {
                return;
            }
            let interval =
                self.interval(window, &line, &snap, base, &mut ticks, &mut devices, &mut retransmits, &mut vias);
            self.out.interval(&interval);
            window.intervals.push(interval);
            line = snap;
            if !marked && self.now() >= base {
                window.intervals.clear();
                self.begin(window);
                base = window.begin.as_ref().map_or(base, |begin| begin.at);
                if let Some(begin) = &window.begin {
                    line = begin.clone();
                }
            } else if over || (marked && self.now() >= end) {
                return;
            }
        }
    }

    fn begin(&mut self, window: &mut Window) {
        if !self.plan.common.omit.is_zero() {
            self.sinks.iter().for_each(|sink| sink.channel.say(&Message::Mark));
        }
        window.flows.iter_mut().for_each(Flow::begin);
        window.devices = vec![[(0, 0); 2]; self.plan.common.vias.len()];
        self.look_at_devices(&mut window.devices, 0);
        window.begin = Some(self.meter.snap(self.cores));
    }

    /// Hears and looks until the interval's end; `true`: every flow has ended.
    fn until_boundary(&mut self, window: &mut Window, boundary: Nanos) -> bool {
        while self.early.is_none() && self.now() < boundary {
            let soon = self.now().after(LOOK).min(boundary);
            let flows = &window.flows;
            let over = || flows.iter().all(|flow| flow.count.ended.load(Ordering::Acquire));
            self.hear(soon, |_| over());
            if let Some(trouble) = self.cores.all().iter().find_map(|core| core.counts.trouble()) {
                // A sink that is gone says better why.
                let soon = self.now().after(Duration::from_millis(200));
                self.hear(soon, |_| false);
                self.fail(trouble);
            }
            if over() {
                // A flow that broke says so before it ends: one that broke since the look above is not taken for whole.
                if let Some(trouble) = self.cores.all().iter().find_map(|core| core.counts.trouble()) {
                    self.fail(trouble);
                }
                return true;
            }
            if window.flows.len() <= LOOKED_AT {
                window.flows.iter_mut().for_each(Flow::look_at_buffer);
            }
        }
        false
    }

    #[allow(clippy::too_many_arguments)]
    fn interval(
        &self,
        window: &mut Window,
        from: &Snapshot,
        to: &Snapshot,
        base: Nanos,
        ticks: &mut [(u64, f64)],
        devices: &mut [[(u64, u64); 2]],
        retransmits: &mut u64,
        vias: &mut [u64],
    ) -> Interval {
        let common = &self.plan.common;
        let seconds = to.at.since(from.at).as_secs_f64();
        let position =
            |at: Nanos| if at >= base { at.since(base).as_secs_f64() } else { -base.since(at).as_secs_f64() };
        let bytes = to.sent() - from.sent();
        let mut interval = Interval {
            start: position(from.at),
            end: position(to.at),
            omitted: window.begin.is_none(),
            bytes,
            bits_per_second: rate(bytes, seconds),
            requests: to.requests() - from.requests(),
            cpu_seconds: to.cpu() - from.cpu(),
            ..Interval::default()
        };
        let (sent, cpu) = (to.sent_by_core(), to.cpu_by_core());
        let (sent_before, cpu_before) = (from.sent_by_core(), from.cpu_by_core());
        interval.cores = (0..sent.len())
            .map(|core| CoreInterval {
                core: core as u64,
                bytes: sent[core] - sent_before[core],
                cpu_seconds: (cpu[core] - cpu_before[core]).max(0.0),
            })
            .collect();
        for (sink, before) in self.sinks.iter().zip(ticks) {
            let now = sink.tick.unwrap_or(*before);
            interval.received_bytes += now.0.saturating_sub(before.0);
            interval.remote_cpu_seconds += (now.1 - before.1).max(0.0);
            *before = now;
        }
        let count = window.flows.len().max(1) as u64;
        let (mut again, mut cwnd, mut rtt) = (0, 0, 0);
        for flow in &mut window.flows {
            let info = flow.look();
            again += info.retransmits;
            cwnd += info.cwnd_bytes;
            rtt += u64::from(info.rtt_us);
            interval.notsent_bytes += u64::from(info.notsent_bytes);
        }
        interval.retransmits = again.saturating_sub(*retransmits);
        *retransmits = again;
        (interval.snd_cwnd, interval.rtt) = (cwnd / count, rtt as f64 / count as f64);
        if !common.vias.is_empty() {
            self.look_at_devices(devices, 1);
            for (at, via) in common.vias.iter().enumerate() {
                let sent: u64 = window
                    .flows
                    .iter()
                    .enumerate()
                    .filter(|(flow, _)| common.via_of(*flow).is_some_and(|(mine, _)| mine == at))
                    .map(|(_, flow)| flow.count.sent.get())
                    .sum();
                interval.vias.push(ViaInterval {
                    via: via.name.clone(),
                    bytes: sent - vias[at],
                    wire_bytes: devices[at][1].0.saturating_sub(devices[at][0].0),
                });
                vias[at] = sent;
                devices[at][0] = devices[at][1];
            }
        }
        interval
    }

    /// Bytes and drops of the vias' interfaces, into the first or second place.
    fn look_at_devices(&self, devices: &mut [[(u64, u64); 2]], place: usize) {
        if devices.is_empty() {
            return;
        }
        let table = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
        for (via, device) in self.plan.common.vias.iter().zip(devices) {
            device[place] = machine::transmitted(&table, &via.device).unwrap_or_default();
        }
    }

    /// Every byte that a socket took must have come out of the other.
    fn look_for_losses(&mut self, flows: &[Flow]) {
        let mut lost = None;
        for sink in &self.sinks {
            let Some((_, received)) = &sink.figures else { continue };
            for one in received {
                let Some(flow) = sink.flows.get(one.flow as usize).and_then(|flow| flows.get(*flow)) else { continue };
                let sent = flow.count.sent.get();
                if sent != one.total {
                    lost.get_or_insert(format!("flow {}: {sent} bytes were sent, {} received", one.flow, one.total));
                }
            }
        }
        if let Some(lost) = lost {
            self.fail(lost);
        }
    }

    fn start(&self) -> Start {
        let (plan, common) = (self.plan, &self.plan.common);
        let devices: Vec<String> = common.vias.iter().map(|via| via.device.clone()).collect();
        let congestion = common.congestion.clone();
        Start {
            version: format!("ringway {}", env!("CARGO_PKG_VERSION")),
            timestamp: self.cores.clock.unix().as_secs(),
            test_start: Test {
                protocol: "tcp".into(),
                targets: common.targets.clone(),
                engine: plan.engine_name.clone(),
                receive: self.sinks.first().map(|sink| sink.receive.clone()).unwrap_or_default(),
                num_streams: common.flows as u64,
                blksize: plan.message as u64,
                file_bytes: if self.payload.files.is_empty() { 0 } else { self.payload.bytes() },
                files: self.payload.files.len() as u64,
                duration: if let Until::Time(time) = common.until { time.as_secs_f64() } else { 0.0 },
                omit: common.omit.as_secs_f64(),
                verify: common.verify,
                congestion: congestion.unwrap_or_else(machine::congestion),
                notsent_lowat: u64::from(plan.notsent_lowat),
                send_buffer: plan.send_buffer,
                receive_buffer: common.receive_buffer,
                rate: common.rate.unwrap_or(0.0),
            },
            local: machine::read(Path::new("/"), &common.cpus, &devices),
            remote: self.sinks.first().map(|sink| sink.machine.clone()),
        }
    }

    fn end(&self, window: &Window) -> End {
        let (Some(begin), Some(end)) = (&window.begin, &window.end) else { return End::default() };
        let common = &self.plan.common;
        let mut sender = self.meter.side(self.cores, begin, end, true);
        // The sockets' own count, which the flows keep, is what bytes mean everywhere.
        let seconds = sender.seconds;
        let mut streams: Vec<_> =
            window.flows.iter().enumerate().map(|(number, flow)| flow.stream(number, seconds)).collect();
        sender.bytes = streams.iter().map(|stream| stream.bytes).sum();
        let mut receiver: Option<Side> = None;
        let mut verified = 0;
        for sink in &self.sinks {
            let Some((side, received)) = &sink.figures else { continue };
            match &mut receiver {
                Some(all) => merge(all, side.clone()),
                None => receiver = Some(side.clone()),
            }
            for one in received {
                verified += one.verified;
                let number = sink.flows.get(one.flow as usize).copied().unwrap_or(usize::MAX);
                if let Some(stream) = streams.get_mut(number) {
                    (stream.received_bytes, stream.rcvbuf_actual) = (one.bytes, one.rcvbuf);
                }
            }
        }
        let sum = Sum {
            requests: end.requests() - begin.requests(),
            errors: end.errors() - begin.errors(),
            retransmits: streams.iter().map(|stream| stream.retransmits).sum(),
            ..Sum::new(sender.bytes, seconds)
        };
        let received = receiver.as_ref().map_or_else(Sum::default, |side| Sum::new(side.bytes, side.seconds));
        let vias = vias_of(common, window, seconds);
        End {
            cpu_utilization_percent: utilization(&sender, receiver.as_ref()),
            sum_sent: sum,
            sum_received: Sum { verified_blocks: verified, ..received },
            streams,
            sender,
            receiver,
            latency: None,
            vias,
        }
    }

    /// What a reader must know.
    fn judge(&mut self, end: &End) {
        let plan = self.plan;
        let mut warn = |text: String| {
            if !self.warnings.contains(&text) {
                self.warnings.push(text);
            }
        };
        if let Some(share) = end.sender.zero_copy_copied_share
            && share > 0.01
        {
            warn(format!("the kernel copied {:.0} % of the zero-copy bytes", share * 100.0));
        }
        for (side, name) in [(Some(&end.sender), "sending"), (end.receiver.as_ref(), "receiving")] {
            let Some(side) = side else { continue };
            let stolen: f64 = side.host.iter().map(|cpu| cpu.steal).sum();
            let whole = side.seconds * side.host.len().max(1) as f64;
            if whole > 0.0 && stolen / whole > 0.01 {
                warn(format!("{:.1} % of the {name} CPUs' time was stolen by the hypervisor", 100.0 * stolen / whole));
            }
            if side.seconds > 0.0 && side.cores.iter().any(|core| core.run_delay_seconds / side.seconds > 0.1) {
                warn(format!("a core of the {name} end waited more than 10 % of the time for its CPU"));
            }
        }
        for (core, wanted) in end.sender.cores.iter().zip(&plan.common.cpus) {
            if let Some(wanted) = wanted
                && core.cpu != Some(*wanted as u64)
            {
                warn(format!("core {} is not pinned to CPU {wanted} as asked", core.core));
            }
        }
        let congestion = plan.common.congestion.clone().unwrap_or_else(machine::congestion);
        let qdisc = std::fs::read_to_string("/proc/sys/net/core/default_qdisc").unwrap_or_default();
        if congestion == "bbr" && qdisc.trim() != "fq" {
            warn("congestion control is bbr and the default qdisc is not fq: pacing by timers can cost 3 to 6 times the CPU; \
                  compare with --congestion cubic"
                .to_owned());
        }
    }
}

fn vias_of(common: &Common, window: &Window, seconds: f64) -> Vec<Via> {
    let via = |(at, via): (usize, &super::plan::Via)| {
        let mine = || {
            let flows = window.flows.iter().enumerate();
            flows.filter(move |(flow, _)| common.via_of(*flow).is_some_and(|(one, _)| one == at)).map(|(_, flow)| flow)
        };
        let bytes = mine().map(Flow::bytes).sum();
        let mut cores: Vec<u64> = mine().map(|flow| flow.core as u64).collect();
        cores.sort_unstable();
        cores.dedup();
        let [(bytes_before, drops_before), (bytes_after, drops_after)] =
            window.devices.get(at).copied().unwrap_or_default();
        let wire_bytes = bytes_after.saturating_sub(bytes_before);
        Via {
            via: via.name.clone(),
            device: via.device.clone(),
            cores,
            bytes,
            bits_per_second: rate(bytes, seconds),
            wire_bytes,
            wire_bits_per_second: rate(wire_bytes, seconds),
            link_bits_per_second: machine::link_speed(&via.device),
            drops: drops_after.saturating_sub(drops_before),
        }
    };
    common.vias.iter().enumerate().map(via).collect()
}

/// One repeat out of its totals.
pub fn repeat_of(end: &End) -> Repeat {
    let sum = if end.receiver.is_some() { end.sum_received } else { end.sum_sent };
    Repeat {
        seconds: sum.seconds,
        bytes: sum.bytes,
        bits_per_second: sum.bits_per_second,
        service_demand: end.sender.service_demand,
        remote_service_demand: end.receiver.as_ref().map_or(0.0, |side| side.service_demand),
        calls: end.sender.calls,
        seconds_per_call: end.sender.seconds_per_call,
        context_switches: end.sender.voluntary_switches + end.sender.involuntary_switches,
        requests: end.sum_sent.requests,
    }
}
