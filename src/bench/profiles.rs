//! The profiles: each one experiment, its runs, its table beside the published one, and what its shape must be.

use super::ends::{self, Interrupted, Sink};
use super::place::{self, Place};
use super::table::{Chart, Table};
use super::{Outcome, Settings, network, rpc, soak};
use crate::blast::report::{Report, Side};
use crate::error::{Error, Result};
use std::path::Path;

/// One experiment.
#[derive(Debug)]
pub struct Profile {
    /// As it is asked for.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
    /// Does it.
    pub run: fn(&Settings, &Interrupted) -> Result<Outcome>,
}

/// All of them, in the order of `all`.
pub const ALL: &[Profile] = &[
    Profile {
        name: "pinning",
        about: "files against copied sends, both ends on one CPU, two, or anywhere",
        run: pinning,
    },
    Profile { name: "ttcp", about: "8 KiB sends against sendfile, into a receiver that copies nothing", run: ttcp },
    Profile {
        name: "send-buffer",
        about: "throughput and CPU of both ends by the size of the send buffer",
        run: send_buffer,
    },
    Profile {
        name: "notsent-lowat",
        about: "wake-ups and bytes held per socket by TCP_NOTSENT_LOWAT, 1 and 200 flows",
        run: notsent_lowat,
    },
    Profile { name: "nics", about: "four limited links at once: each full, none starved", run: network::nics },
    Profile { name: "fairness", about: "many flows of one core: who gets how much", run: fairness },
    Profile {
        name: "spare-cpu",
        about: "what is left of the CPUs for other work, counted by doing it",
        run: spare_cpu,
    },
    Profile { name: "rpc", about: "8 KiB requests and replies over UDP", run: rpc::profile },
    Profile { name: "engines", about: "engine by size by receiver", run: engines },
];

/// Files of the 2001 working set, and bytes of each.
const FILES: usize = 60;
const FILE_BYTES: usize = 300_000;

/// Words of a command line.
pub fn words(text: &str) -> Vec<String> {
    text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// One run of both ends on this machine.
///
/// # Errors
/// An end fails, or it was interrupted.
pub fn run(settings: &Settings, place: &Place, more: &[String], interrupted: &Interrupted) -> Result<Report> {
    run_through(settings, place, more, &[], interrupted)
}

/// The same with words in front of both commands that lead them somewhere.
fn run_through(
    settings: &Settings,
    place: &Place,
    more: &[String],
    through: &[String],
    interrupted: &Interrupted,
) -> Result<Report> {
    let listen = words(&format!("--listen 127.0.0.1:0 --cores {}", Place::cores(place.receiver)));
    let sink = Sink::start(&listen, through)?;
    let mut all = vec![sink.address.clone()];
    all.extend(blast_words(settings, place.sender));
    all.extend_from_slice(more);
    let report = ends::blast(&all, through, (settings.time + settings.omit) * settings.repeats.max(1), interrupted)?;
    sink.finish();
    verify_pinning(place, &report)?;
    Ok(report)
}

/// What every blast of a bench is told.
pub fn blast_words(settings: &Settings, cpu: Option<usize>) -> Vec<String> {
    let (time, omit) = (settings.time.as_secs_f64(), settings.omit.as_secs_f64());
    words(&format!("--cores {} --time {time} --omit {omit} --congestion {}", Place::cores(cpu), settings.congestion))
}

/// Pinning is read back from the kernel by both ends; a run that was not where it should be is none.
fn verify_pinning(place: &Place, report: &Report) -> Result<()> {
    let wrong = |end: &str, wanted: Option<usize>, side: &Side| {
        let found: Vec<Option<u64>> = side.cores.iter().map(|core| core.cpu).collect();
        let right = found.iter().all(|cpu| *cpu == wanted.map(|cpu| cpu as u64));
        (!right).then(|| format!("the {end} ran on {found:?}, wanted {wanted:?}"))
    };
    let sender = wrong("sender", place.sender, &report.end.sender);
    let receiver = report.end.receiver.as_ref().and_then(|side| wrong("receiver", place.receiver, side));
    match sender.or(receiver) {
        Some(why) => Err(Error::new(crate::error::Kind::Runtime, format!("place the ends `{}`", place.name), why)),
        None => Ok(()),
    }
}

/// MB/s, as the old tables have it.
fn megabytes(report: &Report) -> f64 {
    received(report).bits_per_second / 8e6
}

fn received(report: &Report) -> crate::blast::report::Sum {
    if report.end.receiver.is_some() { report.end.sum_received } else { report.end.sum_sent }
}

fn demand(side: Option<&Side>) -> f64 {
    side.map_or(0.0, |side| side.service_demand)
}

fn three(value: f64) -> String {
    format!("{value:.3}")
}

fn percent(side: Option<&Side>) -> String {
    side.map_or_else(String::new, |side| {
        let used = side.user_seconds + side.system_seconds;
        format!("{:.1}", if side.seconds > 0.0 { 100.0 * used / side.seconds } else { 0.0 })
    })
}

fn copied(report: &Report) -> String {
    report.end.sender.zero_copy_copied_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}", share * 100.0))
}

/// A separate-CPUs placement, or the best this machine has.
fn apart() -> Place {
    let (places, _) = place::all(Path::new("/"));
    places.iter().find(|place| place.name == "separate").or_else(|| places.last()).cloned().unwrap_or(Place {
        name: "none",
        sender: None,
        receiver: None,
    })
}

fn working_set() -> Result<(tempfile::TempDir, String)> {
    let failed = |error: std::io::Error| Error::os("make the working set of files", &error);
    let folder = tempfile::tempdir().map_err(failed)?;
    for number in 0..FILES {
        // Bytes that no two files share.
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| ((at * 31 + number * 7919) >> 3) as u8).collect();
        std::fs::write(folder.path().join(format!("{number:02}")), bytes).map_err(failed)?;
    }
    let path = folder.path().display().to_string();
    Ok((folder, path))
}

fn pinning(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let (_folder, path) = working_set()?;
    let (places, missing) = place::all(Path::new("/"));
    let methods = [
        ("sendfile", format!("--engine sendfile --files {path}")),
        ("splice", format!("--engine splice --files {path}")),
        ("send-zc", format!("--engine send-zc --files {path}")),
        ("send 8 KiB", "--engine send --message 8K".to_owned()),
    ];
    let mut outcome = Outcome { warnings: missing, ..Outcome::default() };
    outcome.tables.push(Table::published(
        "Published, February 2001: two 500 MHz Pentium II, 60 files of about 300 KB; KB/s",
        &["placement", "kernel", "sendfile", "send 8k", "NFS/UDP 8k"],
        &[
            &["none", "2.4.1", "66600", "70000", "25600"],
            &["none", "2.4.1 zero copy", "208000", "69000", "25000"],
            &["separate", "2.4.1", "66700", "68000", "27800"],
            &["separate", "2.4.1 zero copy", "213047", "66000", "25700"],
            &["same", "2.4.1", "56000", "57000", "23300"],
            &["same", "2.4.1 zero copy", "176000", "55000", "22100"],
        ],
    ));
    let mut table = Table::new(
        "Measured: the same working set; the receiver reads 64 KiB and throws it away",
        &[
            "placement",
            "method",
            "KB/s",
            "sender us/KiB",
            "receiver us/KiB",
            "% CPU sender",
            "% CPU receiver",
            "kernel copied %",
        ],
    );
    let mut series: Vec<(String, Vec<Option<f64>>)> =
        methods.iter().map(|(method, _)| ((*method).to_owned(), Vec::new())).collect();
    for place in &places {
        let mut demands = Vec::new();
        for (at, (method, said)) in methods.iter().enumerate() {
            let report = run(settings, place, &words(said), interrupted)?;
            let label = format!("{} {method}", place.name);
            outcome.keep(&label, &report);
            let sender = report.end.sender.service_demand;
            table.row(vec![
                place.name.to_owned(),
                (*method).to_owned(),
                format!("{:.0}", megabytes(&report) * 1e3),
                three(sender),
                three(demand(report.end.receiver.as_ref())),
                percent(Some(&report.end.sender)),
                percent(report.end.receiver.as_ref()),
                copied(&report),
            ]);
            series[at].1.push(Some(sender));
            demands.push(sender);
        }
        let rpc = rpc::measure(settings, place, interrupted)?;
        table.row(vec![
            place.name.to_owned(),
            "UDP 8 KiB request and reply".to_owned(),
            format!("{:.0}", rpc.bytes_per_second / 1e3),
            three(rpc.client_demand),
            three(rpc.server_demand),
            String::new(),
            String::new(),
            "-".to_owned(),
        ]);
        for (at, name) in [(0, "sendfile"), (1, "ring splice")] {
            let ratio = demands[at] / demands[3];
            let text = format!("{}: {name} needs at most 0.5 x the sender's CPU per KiB of 8 KiB sends", place.name);
            outcome.judge(text, ratio, ratio <= 0.5);
        }
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "CPU of the sending end by placement".into(),
        x: "placement of the two ends".into(),
        y: "CPU microseconds per KiB (less is better)".into(),
        categories: places.iter().map(|place| place.name.to_owned()).collect(),
        series,
        lines: false,
    });
    Ok(outcome)
}

fn ttcp(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let repeats = 5;
    let settings = Settings { repeats, ..settings.clone() };
    let place = apart();
    let mut outcome = Outcome::default();
    outcome.tables.push(Table::published(
        "Published, 2001: two dual Pentium II 450, gigabit, 9000-byte MTU, 8192-byte writes for 15 s, receiver with MSG_TRUNC",
        &["method", "MB/s", "% CPU sender", "% CPU receiver", "calls", "ms per call"],
        &[&["copying", "99", "87", "22", "182000", "0.08"], &["sendfile", "86", "100", "17", "78", "199"]],
    ));
    let mut table = Table::new(
        "Measured: loopback, five repeats, receiver with MSG_TRUNC; calls are of one repeat",
        &[
            "method",
            "MB/s mean",
            "width of the 95 % interval, %",
            "% CPU sender",
            "% CPU receiver",
            "calls",
            "us per call",
            "sender us/KiB",
        ],
    );
    let (mut names, mut rates, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for (method, said) in [
        ("send 8 KiB", "--engine send --message 8K"),
        ("send-zc 8 KiB", "--engine send-zc --message 8K"),
        ("sendfile", "--engine sendfile --size 16M"),
        ("splice", "--engine splice --size 16M"),
    ] {
        let mut all = words(said);
        all.extend(words(&format!("--receive trunc --repeats {repeats}")));
        let report = run(&settings, &place, &all, interrupted)?;
        outcome.keep(method, &report);
        let count = report.repeats.len() as f64;
        let mean = report.repeats.iter().map(|one| one.bits_per_second).sum::<f64>() / count / 8e6;
        let cost = report.repeats.iter().map(|one| one.service_demand).sum::<f64>() / count;
        table.row(vec![
            method.to_owned(),
            format!("{mean:.0}"),
            report.confidence.map_or_else(String::new, |sure| format!("{:.1}", sure.throughput_percent)),
            percent(Some(&report.end.sender)),
            percent(report.end.receiver.as_ref()),
            report.end.sender.calls.to_string(),
            format!("{:.1}", report.end.sender.seconds_per_call * 1e6),
            three(cost),
        ]);
        names.push(method.to_owned());
        rates.push(Some(mean));
        costs.push(cost);
    }
    let ratio = costs[2] / costs[0];
    outcome.judge("sendfile needs at most 0.5 x the sender's CPU per KiB of 8 KiB sends".into(), ratio, ratio <= 0.5);
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "A receiver that copies nothing".into(),
        x: "method".into(),
        y: "MB/s, mean of five repeats (more is better)".into(),
        categories: names,
        series: vec![("throughput".into(), rates)],
        lines: false,
    });
    Ok(outcome)
}

fn send_buffer(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let place = apart();
    let mut outcome = Outcome::default();
    outcome.tables.push(Table::published(
        "Published, September 2006: netperf TCP_SENDFILE, 10 gigabit, send socket and message 393216 bytes",
        &["path", "Mb/s", "% CPU local", "% CPU remote", "us/KB local", "us/KB remote"],
        &[
            &["old, no TSO", "2163.08", "100.00", "19.35", "3.787", "1.466"],
            &["old, TSO", "4367.18", "71.54", "42.07", "1.342", "1.578"],
            &["new, no TSO", "1882.73", "86.15", "18.43", "3.749", "1.604"],
            &["new, TSO", "6961.08", "47.69", "60.11", "0.561", "1.415"],
        ],
    ));
    let mut table = Table::new(
        "Measured: sendfile of 64 MiB over loopback (segments are whole: no interface cuts them)",
        &[
            "SO_SNDBUF asked",
            "refilled when",
            "granted",
            "Mb/s",
            "% CPU local",
            "% CPU remote",
            "us/KiB local",
            "us/KiB remote",
            "waits",
            "us per call",
        ],
    );
    let sizes: &[&str] =
        if settings.quick { &["64K", "384K", "auto"] } else { &["32K", "64K", "128K", "384K", "1M", "4M", "auto"] };
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    let row = |report: &Report, first: [&str; 2]| {
        let receiver = report.end.receiver.as_ref();
        let granted = report.end.streams.first().map_or(0, |stream| stream.sndbuf_actual);
        vec![
            first[0].to_owned(),
            first[1].to_owned(),
            granted.to_string(),
            format!("{:.0}", received(report).bits_per_second / 1e6),
            percent(Some(&report.end.sender)),
            percent(receiver),
            three(report.end.sender.service_demand),
            three(demand(receiver)),
            report.end.sender.waits.to_string(),
            format!("{:.1}", report.end.sender.seconds_per_call * 1e6),
        ]
    };
    for size in sizes {
        let mut all = words("--engine sendfile --size 64M");
        if *size != "auto" {
            all.extend(words(&format!("--send-buffer {size}")));
        }
        let report = run(settings, &place, &all, interrupted)?;
        outcome.keep(size, &report);
        table.row(row(&report, [size, "the kernel says"]));
        local.push(Some(report.end.sender.service_demand));
        remote.push(Some(demand(report.end.receiver.as_ref())));
    }
    // The level of 2006 was half of the buffer; today's is TCP_NOTSENT_LOWAT.
    for (level, bytes) in [("half is unsent", 196_608), ("an eighth is unsent", 49_152)] {
        let all = words(&format!("--engine sendfile --size 64M --send-buffer 384K --notsent-lowat {bytes}"));
        let report = run(settings, &place, &all, interrupted)?;
        outcome.keep(&format!("384K, {level}"), &report);
        table.row(row(&report, ["384K", level]));
    }
    let mut offload = Table::new(
        "Measured: the same with an MTU of 1500; TCP passes 64 KiB whole (on) or cuts it (off); send buffer 384K",
        &["segmentation offload", "Mb/s", "% CPU local", "% CPU remote", "us/KiB local", "us/KiB remote"],
    );
    let mut demands = Vec::new();
    for (name, on) in [("on", true), ("off", false)] {
        let loopback = match network::loopback(on) {
            Ok(loopback) => loopback,
            Err(error) => {
                outcome.warnings.push(format!("segmentation offload was not compared: {error}"));
                break;
            }
        };
        let all = words("--engine sendfile --size 64M --send-buffer 384K");
        let report = run_through(settings, &place, &all, &loopback.enter(), interrupted)?;
        outcome.keep(&format!("offload {name}"), &report);
        let receiver = report.end.receiver.as_ref();
        offload.row(vec![
            name.to_owned(),
            format!("{:.0}", received(&report).bits_per_second / 1e6),
            percent(Some(&report.end.sender)),
            percent(receiver),
            three(report.end.sender.service_demand),
            three(demand(receiver)),
        ]);
        demands.push(report.end.sender.service_demand);
    }
    if let [on, off] = demands[..] {
        let ratio = off / on;
        let text = "without segmentation offload the sender needs at least 1.5 x the CPU per KiB".to_owned();
        outcome.judge(text, ratio, ratio >= 1.5);
    }
    outcome.tables.push(table);
    if !demands.is_empty() {
        outcome.tables.push(offload);
    }
    outcome.chart = Some(Chart {
        title: "CPU by the size of the send buffer, sendfile".into(),
        x: "SO_SNDBUF asked for (the kernel doubles it)".into(),
        y: "CPU microseconds per KiB (less is better)".into(),
        categories: sizes.iter().map(|size| (*size).to_owned()).collect(),
        series: vec![("sender".into(), local), ("receiver".into(), remote)],
        lines: true,
    });
    Ok(outcome)
}

fn notsent_lowat(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let place = apart();
    let mut outcome = Outcome::default();
    outcome.tables.push(Table::published(
        "Published, July 2013: netperf TCP_SENDFILE, 10 gigabit, 20 s",
        &["notsent_lowat", "Mb/s", "us/KB sender", "context switches"],
        &[&["unlimited", "9372.56", "0.355", "16188"], &["131072", "9408.33", "0.366", "714395"]],
    ));
    let mut table = Table::new(
        "Measured: sendfile of 64 MiB; bytes held and unsent are the largest seen in a socket, mean over the flows",
        &[
            "flows",
            "notsent_lowat",
            "Mb/s",
            "us/KiB sender",
            "context switches/s",
            "waits/s",
            "unsent per socket",
            "held per socket",
        ],
    );
    let levels: &[&str] =
        if settings.quick { &["unlimited", "128K", "16K"] } else { &["unlimited", "1M", "512K", "128K", "64K", "16K"] };
    let mut series = Vec::new();
    for flows in [1usize, 200] {
        let (mut waits, mut unsent) = (Vec::new(), Vec::new());
        for level in levels {
            let mut all = words(&format!("--engine sendfile --size 64M --flows {flows}"));
            if *level != "unlimited" {
                all.extend(words(&format!("--notsent-lowat {level}")));
            }
            let report = run(settings, &place, &all, interrupted)?;
            outcome.keep(&format!("{flows} flows {level}"), &report);
            let sender = &report.end.sender;
            let seconds = sender.seconds.max(1e-9);
            let count = report.end.streams.len().max(1) as u64;
            let mean = |pick: fn(&crate::blast::report::Stream) -> u64| {
                report.end.streams.iter().map(pick).sum::<u64>() / count
            };
            let (kept, held) = (mean(|stream| stream.max_notsent_bytes), mean(|stream| stream.max_held_bytes));
            let switches = (sender.voluntary_switches + sender.involuntary_switches) as f64 / seconds;
            let waited = sender.waits as f64 / seconds;
            table.row(vec![
                flows.to_string(),
                (*level).to_owned(),
                format!("{:.0}", received(&report).bits_per_second / 1e6),
                three(sender.service_demand),
                format!("{switches:.0}"),
                format!("{waited:.0}"),
                kept.to_string(),
                held.to_string(),
            ]);
            waits.push(waited);
            unsent.push(kept as f64);
        }
        let (first, last) = (0, levels.len() - 1);
        let rise = waits[last] / waits[first].max(1.0);
        outcome.judge(format!("{flows} flows: waits for the socket rise from unlimited to 16K"), rise, rise > 1.0);
        let fall = unsent[last] / unsent[first].max(1.0);
        outcome.judge(
            format!("{flows} flows: unsent bytes held per socket fall from unlimited to 16K"),
            fall,
            fall < 1.0,
        );
        series.push((
            format!("{flows} flow{}", if flows == 1 { "" } else { "s" }),
            waits.into_iter().map(Some).collect(),
        ));
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "Waits for the socket by TCP_NOTSENT_LOWAT, sendfile".into(),
        x: "TCP_NOTSENT_LOWAT".into(),
        y: "waits a second".into(),
        categories: levels.iter().map(|level| (*level).to_owned()).collect(),
        series,
        lines: true,
    });
    Ok(outcome)
}

/// Jain's index: 1 where all get the same, 1/n where one gets everything.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

fn fairness(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let place = apart();
    let mut outcome = Outcome::default();
    let mut table = Table::new(
        "Measured: flows of one core, each with the same endless file of 256 MiB",
        &["engine", "flows", "Mb/s in all", "Jain's index", "slowest / mean", "fastest / mean", "us/KiB sender"],
    );
    let engines = ["send", "send-zc", "splice", "sendfile"];
    let counts: &[usize] = if settings.quick { &[16] } else { &[2, 16, 100] };
    let mut series = Vec::new();
    for engine in engines {
        let mut drawn = Vec::new();
        for flows in counts {
            let all = words(&format!("--engine {engine} --size 256M --flows {flows}"));
            let report = run(settings, &place, &all, interrupted)?;
            outcome.keep(&format!("{engine} {flows} flows"), &report);
            let shares: Vec<f64> = report.end.streams.iter().map(|stream| stream.received_bytes as f64).collect();
            let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
            let index = jain(&shares);
            let ratio = |value: f64| if mean > 0.0 { format!("{:.2}", value / mean) } else { String::new() };
            table.row(vec![
                engine.to_owned(),
                flows.to_string(),
                format!("{:.0}", received(&report).bits_per_second / 1e6),
                three(index),
                ratio(shares.iter().copied().fold(f64::INFINITY, f64::min)),
                ratio(shares.iter().copied().fold(0.0, f64::max)),
                three(report.end.sender.service_demand),
            ]);
            if *flows == 16 {
                outcome.judge(format!("{engine}, 16 flows: Jain's index is at least 0.9"), index, index >= 0.9);
            }
            drawn.push(Some(index));
        }
        series.push((engine.to_owned(), drawn));
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "Fairness between flows of one core".into(),
        x: "flows".into(),
        y: "Jain's index (1: all get the same)".into(),
        categories: counts.iter().map(usize::to_string).collect(),
        series,
        lines: false,
    });
    Ok(outcome)
}

fn spare_cpu(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let place = apart();
    let cpus: Vec<usize> = [place.sender, place.receiver].into_iter().flatten().collect();
    let mut outcome = Outcome::default();
    let alone = soak::Soaker::start(&cpus)?.after(settings.time, interrupted)?;
    let mut table = Table::new(
        "Measured at 4 Gb/s and as fast as it goes; spare by doing work at idle priority on both ends' CPUs, and by accounting",
        &[
            "method",
            "asked",
            "Mb/s",
            "spare by work %",
            "spare by accounting %",
            "hidden from accounting, points",
            "us/KiB both ends by work",
        ],
    );
    let mut series: Vec<(String, Vec<Option<f64>>)> =
        vec![("by work done".into(), vec![]), ("by accounting".into(), vec![])];
    let mut names = Vec::new();
    // 500 messages of 1 MiB a second are 4.2 Gb/s.
    for (asked, pace) in [("4.2 Gb/s", "--rate 500"), ("all", "")] {
        for (method, said) in [
            ("send", "--engine send --size 1M"),
            ("send-zc", "--engine send-zc --size 1M"),
            ("splice", "--engine splice --size 1M"),
            ("sendfile", "--engine sendfile --size 1M"),
        ] {
            let soaker = soak::Soaker::start(&cpus)?;
            let before = soaker.look();
            let report = run(settings, &place, &words(&format!("{said} {pace}")), interrupted)?;
            let during = soaker.look().since(before);
            drop(soaker);
            outcome.keep(&format!("{method} {asked}"), &report);
            // The soaker also ran while the ends started: the share of its pace over its whole time is what counts.
            let by_work = 100.0 * during.pace() / alone.pace();
            let (sender, receiver) = (&report.end.sender, report.end.receiver.as_ref());
            let used = |side: &Side| (side.user_seconds + side.system_seconds) / side.seconds.max(1e-9);
            let busy = used(sender) + receiver.map_or(0.0, used);
            let by_accounting = 100.0 * (1.0 - busy / cpus.len().max(1) as f64);
            let kib = received(&report).bits_per_second / 8.0 / 1024.0;
            let cost = if kib > 0.0 { (1.0 - by_work / 100.0).max(0.0) * cpus.len() as f64 * 1e6 / kib } else { 0.0 };
            table.row(vec![
                method.to_owned(),
                asked.to_owned(),
                format!("{:.0}", received(&report).bits_per_second / 1e6),
                format!("{by_work:.1}"),
                format!("{by_accounting:.1}"),
                format!("{:.1}", by_accounting - by_work),
                three(cost),
            ]);
            names.push(if pace.is_empty() { format!("{method}, all") } else { method.to_owned() });
            series[0].1.push(Some(by_work));
            series[1].1.push(Some(by_accounting));
        }
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "What is left of both ends' CPUs, at 4.2 Gb/s and flat out".into(),
        x: "method".into(),
        y: "spare CPU, percent (more is better)".into(),
        categories: names,
        series,
        lines: false,
    });
    Ok(outcome)
}

fn engines(settings: &Settings, interrupted: &Interrupted) -> Result<Outcome> {
    let place = apart();
    let mut outcome = Outcome::default();
    let mut table = Table::new(
        "Measured: one flow on a CPU of its own, files in memory sent over and over",
        &["engine", "size", "receiver", "Mb/s", "us/KiB sender", "us/KiB receiver", "us per call", "kernel copied %"],
    );
    let sizes: &[&str] = if settings.quick { &["1M"] } else { &["16K", "1M", "64M"] };
    let receivers: &[&str] = if settings.quick { &["copy", "trunc"] } else { &["copy", "trunc", "splice"] };
    let mut series = Vec::new();
    for engine in ["send", "send-zc", "splice", "splice2", "sendfile"] {
        let mut drawn = Vec::new();
        for size in sizes {
            for receive in receivers {
                let all = words(&format!("--engine {engine} --size {size} --receive {receive}"));
                let report = run(settings, &place, &all, interrupted)?;
                outcome.keep(&format!("{engine} {size} {receive}"), &report);
                table.row(vec![
                    engine.to_owned(),
                    (*size).to_owned(),
                    (*receive).to_owned(),
                    format!("{:.0}", received(&report).bits_per_second / 1e6),
                    three(report.end.sender.service_demand),
                    three(demand(report.end.receiver.as_ref())),
                    format!("{:.1}", report.end.sender.seconds_per_call * 1e6),
                    copied(&report),
                ]);
                if *receive == "copy" {
                    drawn.push(Some(report.end.sender.service_demand));
                }
            }
        }
        series.push((engine.to_owned(), drawn));
    }
    outcome.tables.push(table);
    outcome.chart = Some(Chart {
        title: "CPU of the sending end by engine and file size (receiver copies)".into(),
        x: "bytes of a file".into(),
        y: "CPU microseconds per KiB (less is better)".into(),
        categories: sizes.iter().map(|size| (*size).to_owned()).collect(),
        series,
        lines: false,
    });
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index() {
        assert!((jain(&[1.0, 1.0, 1.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[]), 0.0);
    }
}
