//! The command lines of `blast` and `sink`: what was said becomes a plan, or an error that names what is wrong.

use super::http::{self, HttpPlan};
use super::live::Live;
use super::output::{Form, Output};
use super::plan::{self, Common, From, Plan, REPEATS_MOST, Until};
use super::send::Engine;
use super::sink::SinkPlan;
use super::wire::Receive;
use super::{assertion, core, sample, session, sink};
use crate::config::{size, time};
use crate::error::{Error, Kind, Result, describe};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one of the two commands is to do.
#[derive(Debug)]
pub enum Run {
    /// Send to sinks.
    Blast(Box<Plan>, Vec<assertion::Wanted>, Shown),
    /// Ask an HTTP server.
    Http(Box<HttpPlan>, Vec<assertion::Wanted>, Shown),
    /// Receive.
    Sink(Box<SinkPlan>, Shown),
}

/// How a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// In which form.
    pub form: Form,
    /// Where Prometheus may ask.
    pub metrics: Option<SocketAddr>,
}

impl Shown {
    fn output(self) -> Result<Output> {
        Ok(Output::new(self.form).live(self.metrics.map(Live::open).transpose()?))
    }
}

impl Run {
    /// Does it: the exit code.
    ///
    /// # Errors
    /// As [`session::run`] and [`sink::run`].
    pub fn run(self) -> Result<u8> {
        match self {
            Self::Blast(plan, asserts, shown) => session::run(&plan, &asserts, &mut shown.output()?),
            Self::Http(plan, asserts, shown) => http::run(&plan, &asserts, &mut shown.output()?),
            Self::Sink(plan, shown) => sink::run(*plan, &mut shown.output()?),
        }
    }
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help).action(ArgAction::Set)
}

fn list(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    option(name, value, help).action(ArgAction::Append)
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

fn forms() -> [Arg; 4] {
    [
        option("metrics", "ADDR", "Show the same numbers to Prometheus while it runs, such as 127.0.0.1:9881"),
        switch("json", "One JSON document at the end, keys near iperf3's").conflicts_with_all(["json-lines", "quiet"]),
        switch("json-lines", "One JSON object per event").conflicts_with("quiet"),
        switch("quiet", "Say only what went wrong"),
    ]
}

const CODES: &str = "Exit codes: 0 ok, 1 the run failed or is partial, 2 usage, 3 an assertion did not hold, 77 not \
                     permitted, 78 a file cannot be sent, 130 interrupted.";

/// The grammar of `blast`.
pub fn blast_command() -> Command {
    Command::new("blast")
        .about("Saturate sinks, or an HTTP server, and report CPU per KiB")
        .after_help(CODES)
        .arg(
            Arg::new("TARGET")
                .required(true)
                .action(ArgAction::Append)
                .help("Sinks: HOST or HOST:PORT [default port: 5209]; or one http://HOST/PATH"),
        )
        .arg(option(
            "engine",
            "NAME",
            "auto, send, send-zc, splice, splice2 or sendfile [default: auto for files, send]",
        ))
        .arg(option("file", "FILE", "Send this file over and over").conflicts_with_all(["size", "files"]))
        .arg(option("size", "BYTES", "Send a file in memory of this size over and over").conflicts_with("files"))
        .arg(option("files", "DIR", "Send every file of a directory that has bytes, over and over (no subdirectories)"))
        .arg(option("message", "BYTES", "Bytes of one send from memory [default: 128K]"))
        .arg(option("flows", "N", "Connections [default: 1]"))
        .arg(option("time", "SECONDS", "Measured time [default: 10s]").conflicts_with("bytes"))
        .arg(option("omit", "SECONDS", "Warm-up before it [default: 0s]"))
        .arg(option("bytes", "BYTES", "End after so many bytes instead of a time"))
        .arg(option("count", "N", "HTTP: end after so many requests").conflicts_with_all(["time", "bytes"]))
        .arg(list("header", "LINE", "HTTP: a further header, such as 'Range: bytes=0-99'"))
        .arg(option("sha256", "HEX", "HTTP: what every body must hash to, with --verify"))
        .arg(option("cores", "LIST", "CPUs to run on, or none: not pinned [default: as many as flows, the first]"))
        .arg(option("receive", "HOW", "How sinks receive: copy, trunc or splice [default: copy]"))
        .arg(list("via", "ADDR=CPUS", "Leave by this source address, from these CPUs").conflicts_with("nic"))
        .arg(list("nic", "DEV", "Leave by this interface, from the CPUs its interrupts come to"))
        .arg(option("congestion", "NAME", "TCP_CONGESTION of every flow"))
        .arg(option("notsent-lowat", "BYTES", "TCP_NOTSENT_LOWAT"))
        .arg(option("send-buffer", "BYTES", "SO_SNDBUF"))
        .arg(option("receive-buffer", "BYTES", "SO_RCVBUF of the sink's sockets"))
        .arg(option("rate", "N", "Messages, files or requests a second in all, on a schedule"))
        .arg(switch("verify", "Check what arrives: every block's CRC32C, every HTTP body's SHA-256"))
        .arg(option("interval", "SECONDS", "Between lines [default: 1s]"))
        .arg(list("assert", "EXPR", "Such as 'throughput>=9Gb/s'; exit code 3 where it does not hold"))
        .arg(option("confidence", "L,W", "Repeat until the level-L interval is at most W % wide, such as 99,5"))
        .arg(option("repeats", "N", "Repeats, at most with --confidence [default: 1, with --confidence 10]"))
        .args(forms())
}

/// The grammar of `sink`.
pub fn sink_command() -> Command {
    Command::new("sink")
        .about("Receive from blast and throw it away")
        .after_help(CODES)
        .arg(list("listen", "ADDR", "ADDRESS:PORT [default: 0.0.0.0:5209 and [::]:5209]"))
        .arg(option("receive", "HOW", "copy, trunc or splice, whatever the sender asks"))
        .arg(option("cores", "LIST", "CPUs to run on, or none: not pinned [default: one core, the last CPU]"))
        .arg(switch("once", "End after one session"))
        .args(forms())
}

fn shown(said: &Said<'_>) -> Result<Shown> {
    let given = said.0;
    let metrics = said.read("metrics", |text| {
        text.parse().map_err(|_| "it is not ADDRESS:PORT, such as 127.0.0.1:9881".to_owned())
    })?;
    let form = match (given.get_flag("json"), given.get_flag("json-lines"), given.get_flag("quiet")) {
        (true, ..) => Form::Json,
        (_, true, _) => Form::JsonLines,
        (.., true) => Form::Quiet,
        _ => Form::Text,
    };
    Ok(Shown { form, metrics })
}

/// What was given for one flag, with its name for the error.
struct Said<'a>(&'a ArgMatches);

impl Said<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get_one::<String>(name).map(String::as_str)
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.0.get_many::<String>(name).unwrap_or_default().cloned().collect()
    }

    fn read<T>(&self, name: &str, parse: impl Fn(&str) -> std::result::Result<T, String>) -> Result<Option<T>> {
        self.text(name).map(|text| parse(text).map_err(|why| wrong(name, text, why))).transpose()
    }

    fn size(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>> {
        self.read(name, |text| {
            let bytes = size(text).map_err(|why| format!("it {why}"))?;
            if (least..=most).contains(&bytes) {
                Ok(bytes)
            } else {
                Err(format!("it is not between {least} and {most} bytes"))
            }
        })
    }

    fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &self,
        name: &str,
        least: T,
        most: T,
    ) -> Result<Option<T>> {
        self.read(name, |text| match text.parse::<T>() {
            Ok(number) if number >= least && number <= most => Ok(number),
            _ => Err(format!("it is not a number between {least} and {most}")),
        })
    }

    /// Bare numbers are seconds.
    fn time(&self, name: &str, least: Duration, most: Duration) -> Result<Option<Duration>> {
        self.read(name, |text| {
            let long = match text.parse::<f64>() {
                Ok(seconds) if (0.0..1e9).contains(&seconds) => Duration::from_secs_f64(seconds),
                _ => time(text).map_err(|why| format!("it {why}"))?,
            };
            if long < least || long > most {
                return Err(format!("it is not between {} and {} s", least.as_secs_f64(), most.as_secs_f64()));
            }
            Ok(long)
        })
    }
}

fn wrong(name: &str, text: &str, why: impl Into<String>) -> Error {
    Error::new(Kind::Usage, format!("use --{name} {text}"), why)
}

fn receive(said: &Said<'_>) -> Result<Option<Receive>> {
    said.read("receive", |text| Receive::parse(text).ok_or_else(|| "it is none of copy, trunc, splice".to_owned()))
}

/// What every run has; `targets` are given.
fn common(said: &Said<'_>, targets: Vec<String>, ipv6: bool) -> Result<Common> {
    let count = said.number("count", 1, u64::MAX)?;
    let until = match (said.size("bytes", 1, 1 << 50)?, said.time("time", Duration::from_millis(100), plan::LONGEST)?) {
        (Some(bytes), _) => Until::Bytes(bytes),
        (None, _) if count.is_some() => Until::Count(count.unwrap_or(1)),
        (None, time) => Until::Time(time.unwrap_or(Duration::from_secs(10))),
    };
    let flows = said.number("flows", 1, plan::FLOWS_MOST)?.unwrap_or(1);
    let mut vias = Vec::new();
    for text in said.all("via") {
        vias.push(plan::via(&text)?);
    }
    for device in said.all("nic") {
        vias.push(plan::nic(&device, ipv6, Path::new("/"))?);
    }
    let confidence = said.read("confidence", sample::parse)?;
    let repeats = said.number("repeats", 1, REPEATS_MOST)?;
    let given = said.text("cores");
    let mut common = Common {
        targets,
        flows,
        until,
        omit: said.time("omit", Duration::ZERO, plan::LONGEST)?.unwrap_or_default(),
        interval: said.time("interval", Duration::from_millis(100), plan::LONGEST)?.unwrap_or(Duration::from_secs(1)),
        cpus: plan::cpus(given, flows, false)?,
        vias,
        congestion: said.text("congestion").map(str::to_owned),
        receive_buffer: said.size("receive-buffer", 1, 1 << 30)?.unwrap_or(0),
        rate: said.number("rate", 0.001, 1e9)?,
        verify: said.0.get_flag("verify"),
        repeats: repeats.unwrap_or(if confidence.is_some() { 10 } else { 1 }),
        confidence,
    };
    common.adopt_cpus(given.is_some());
    Ok(common)
}

fn asserts(said: &Said<'_>) -> Result<Vec<assertion::Wanted>> {
    said.all("assert").iter().map(|text| assertion::parse(text).map_err(|why| wrong("assert", text, why))).collect()
}

/// Understands a parsed command line of `blast`.
///
/// # Errors
/// Something in it is wrong, or a target's name is not known.
pub fn blast(given: &ArgMatches) -> Result<Run> {
    let said = Said(given);
    let targets = said.all("TARGET");
    if targets.iter().any(|target| target.contains("://")) {
        return over_http(&said, targets);
    }
    for name in ["count", "header", "sha256"] {
        if given.value_source(name).is_some() {
            return Err(Error::new(Kind::Usage, format!("use --{name}"), "it is for a target of http://HOST/PATH"));
        }
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for target in &targets {
        addresses.push(plan::resolve(target)?);
    }
    let ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let from = match (said.text("file"), said.size("size", 1, 1 << 40)?, said.text("files")) {
        (Some(file), ..) => From::File(PathBuf::from(file)),
        (_, Some(bytes), _) => From::Size(bytes),
        (.., Some(folder)) => From::Files(PathBuf::from(folder)),
        _ => From::Memory,
    };
    let memory = from == From::Memory;
    let engine_name = said.text("engine").unwrap_or(if memory { "send" } else { "auto" }).to_owned();
    let engine = Engine::parse(&engine_name)
        .ok_or_else(|| wrong("engine", &engine_name, format!("it is none of {}", Engine::NAMES.join(", "))))?;
    if memory && !["auto", "send", "send-zc"].contains(&engine_name.as_str()) {
        return Err(
            wrong("engine", &engine_name, "it sends files, and memory is sent").remedy("add --file, --size or --files")
        );
    }
    let receive = receive(&said)?.unwrap_or_default();
    let common = common(&said, targets, ipv6)?;
    if common.verify && receive != Receive::Copy {
        return Err(wrong("receive", receive.name(), "--verify must see the bytes").remedy("use --receive copy"));
    }
    let plan = Plan {
        common,
        addresses,
        engine,
        engine_name,
        from,
        message: said.size("message", 1, core::MESSAGE_MOST as u64)?.unwrap_or(core::MESSAGE_MOST as u64) as usize,
        receive,
        notsent_lowat: said.size("notsent-lowat", 1, 1 << 30)?.unwrap_or(0) as u32,
        send_buffer: said.size("send-buffer", 1, 1 << 30)?.unwrap_or(0),
    };
    Ok(Run::Blast(Box::new(plan), asserts(&said)?, shown(&said)?))
}

fn over_http(said: &Said<'_>, targets: Vec<String>) -> Result<Run> {
    let [url] = targets.as_slice() else {
        return Err(
            Error::new(Kind::Usage, "use several targets", "with http:// there is one").remedy("run one blast each")
        );
    };
    for name in ["engine", "file", "size", "files", "message", "receive", "notsent-lowat", "send-buffer"] {
        if said.0.value_source(name).is_some() {
            return Err(Error::new(
                Kind::Usage,
                format!("use --{name}"),
                "the HTTP server decides that, not its client",
            ));
        }
    }
    let (origin, request) =
        http::request(url, &said.all("header")).map_err(|why| Error::new(Kind::Usage, format!("use {url}"), why))?;
    let sha256 = said.read("sha256", http::digest)?;
    let ipv6 = origin.host.contains(':');
    let mut common = common(said, targets.clone(), ipv6)?;
    common.verify |= sha256.is_some();
    let plan = HttpPlan { common, host: origin.host.clone(), port: origin.port, request, sha256 };
    Ok(Run::Http(Box::new(plan), asserts(said)?, shown(said)?))
}

/// Understands a parsed command line of `sink`.
///
/// # Errors
/// Something in it is wrong.
pub fn sink(given: &ArgMatches) -> Result<Run> {
    let said = Said(given);
    let mut listen = Vec::new();
    for text in said.all("listen") {
        let bare = || text.parse().map(|address| SocketAddr::new(address, plan::PORT));
        listen.push(
            text.parse()
                .or_else(|_| bare())
                .map_err(|_| wrong("listen", &text, "it is not ADDRESS:PORT, such as 127.0.0.1:5209"))?,
        );
    }
    if listen.is_empty() {
        listen.push(SocketAddr::from(([0, 0, 0, 0], plan::PORT)));
        // A machine without IPv6 has no second one.
        if std::net::TcpListener::bind("[::1]:0").map_err(|error| describe(&error)).is_ok() {
            listen.push(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, plan::PORT)));
        }
    }
    let plan = SinkPlan {
        listen,
        receive: receive(&said)?,
        cpus: plan::cpus(said.text("cores"), 1, true)?,
        once: given.get_flag("once"),
    };
    Ok(Run::Sink(Box::new(plan), shown(&said)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> std::result::Result<Run, String> {
        let words = line.split(' ');
        let given = blast_command().try_get_matches_from(words).map_err(|error| error.to_string())?;
        blast(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rows = [
            ("blast", "TARGET"),
            ("blast 127.0.0.1 --flows 0", "--flows 0"),
            ("blast 127.0.0.1 --engine sendfile", "--file, --size or --files"),
            ("blast 127.0.0.1 --engine warp --size 1M", "none of auto"),
            ("blast 127.0.0.1 --verify --receive trunc", "--receive copy"),
            ("blast 127.0.0.1 --assert x>1", "none of throughput"),
            ("blast 127.0.0.1 --confidence 98,5", "90, 95, 99"),
            ("blast 127.0.0.1 --time 0", "between"),
            ("blast 127.0.0.1 --message 1G", "between 1 and"),
            ("blast 127.0.0.1 --time 1 --bytes 1", "cannot be used with"),
            ("blast 127.0.0.1 --cores 0-x", "list of CPUs"),
            ("blast 127.0.0.1 --count 5", "http://HOST/PATH"),
            ("blast https://127.0.0.1/", "TLS"),
            ("blast http://127.0.0.1/ --engine splice", "server decides"),
            ("blast http://127.0.0.1/ --sha256 12", "64 hexadecimal"),
            ("blast http://127.0.0.1/ 127.0.0.1", "there is one"),
        ];
        for (line, wanted) in rows {
            let told = told(line).expect_err(line);
            assert!(told.contains(wanted), "{line}: {told}");
        }
    }

    #[test]
    fn what_is_right_is_understood() {
        let Ok(Run::Blast(plan, asserts, shown)) =
            told("blast 127.0.0.1 [::1]:7 --size 1M --flows 3 --time 1.5 --assert throughput>1 --json --repeats 2")
        else {
            panic!("understood")
        };
        assert_eq!(plan.addresses[1].to_string(), "[::1]:7");
        assert_eq!((plan.common.flows, plan.common.until), (3, Until::Time(Duration::from_millis(1500))));
        assert_eq!((plan.engine_name.as_str(), asserts.len(), shown.form), ("auto", 1, Form::Json));
        sink_command().debug_assert();
        blast_command().debug_assert();
    }
}
