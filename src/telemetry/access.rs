//! The access log: one line per answered request, written by a thread of its own.
//!
//! A core puts a record (numbers and the client's own words, nothing formatted) into its [`Lane`], a ring of fixed size
//! with one writer and one reader; it never waits. The log's thread takes the records out, makes lines and writes them:
//! a disk or a pipe that stalls costs records, which are counted, and nothing else. May import: `error`, `config`,
//! `clock` and the tally.
//!
//! | lane | who |
//! |---|---|
//! | `put` | its core alone |
//! | `take` | the log's thread alone |

use super::tally::Tally;
use crate::config::{AccessLog, AccessLogFormat};
use crate::error::{Error, Kind, Result, describe};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The thread looks so often while its lanes are nearly empty.
const PAUSE: Duration = Duration::from_millis(20);
/// Lines are written when so many bytes of them are ready, and at the end of each look.
const WRITE: usize = 256 << 10;
/// The last lines get so long to be written when the server ends.
const LAST: Duration = Duration::from_secs(2);
/// Words of a record before its text.
const FIXED: usize = 8;
/// Most bytes of each text: method, target, host, referer, user agent. Longer ones are cut.
const CLIP: [usize; 5] = [32, 8 << 10, 256, 2 << 10, 1 << 10];

/// A request in the client's own words; one per connection, filled again for each request.
#[derive(Clone, Debug, Default)]
pub struct Words {
    text: Vec<u8>,
    ends: [u16; 5],
    /// HTTP/1.0 rather than 1.1.
    old: bool,
}

impl Words {
    /// Takes method, target, host, referer and user agent.
    pub fn set(&mut self, old: bool, words: [&[u8]; 5]) {
        self.text.clear();
        self.old = old;
        for ((word, most), end) in words.iter().zip(CLIP).zip(&mut self.ends) {
            self.text.extend_from_slice(&word[..word.len().min(most)]);
            // All of CLIP together is below 64 KiB.
            *end = self.text.len() as u16;
        }
    }

    /// Forgets them: what was said could not be understood, or has been logged. An idle connection keeps no buffer.
    pub fn clear(&mut self) {
        if self.text.capacity() > 512 {
            self.text = Vec::new();
        }
        self.text.clear();
        self.ends = [0; 5];
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Wall-clock nanoseconds of its end.
    pub unix_ns: u64,
    /// Nanoseconds from its head to its last byte.
    pub took_ns: u64,
    /// Body bytes that the socket took.
    pub bytes: u64,
    /// Status.
    pub status: u16,
    /// The client.
    pub peer: Option<IpAddr>,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Position(AtomicUsize);

/// One core's way to the log's thread.
#[derive(Debug)]
pub struct Lane {
    words: Box<[AtomicU64]>,
    /// Words ever put.
    head: Position,
    /// Words ever taken.
    tail: Position,
    core: usize,
    tally: Arc<Tally>,
}

impl Lane {
    /// A lane of `bytes` bytes, rounded up to a power of two.
    pub fn new(core: usize, bytes: usize, tally: Arc<Tally>) -> Self {
        let words = (bytes / 8).next_power_of_two();
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { words, head: Position::default(), tail: Position::default(), core, tally }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // A power of two long.
        &self.words[at & (self.words.len() - 1)]
    }

    /// Puts a record in, or counts it as dropped where there is no room; only the owning core may call this.
    pub fn put(&self, words: &Words, outcome: &Outcome) {
        let head = self.head.0.load(Ordering::Relaxed);
        let len = FIXED + words.text.len().div_ceil(8);
        if self.words.len() - head.wrapping_sub(self.tail.0.load(Ordering::Acquire)) < len {
            self.tally.log_dropped.add(1);
            return;
        }
        let peer = outcome.peer.map_or(0, |peer| match peer {
            IpAddr::V4(peer) => peer.to_ipv6_mapped().to_bits(),
            IpAddr::V6(peer) => peer.to_bits(),
        });
        let ends = words.ends.map(u64::from);
        let fixed = [
            u64::from(outcome.status) | u64::from(words.old) << 16 | u64::from(outcome.peer.is_some()) << 17,
            outcome.unix_ns,
            outcome.took_ns,
            outcome.bytes,
            (peer >> 64) as u64,
            peer as u64,
            ends[0] | ends[1] << 16 | ends[2] << 32 | ends[3] << 48,
            ends[4],
        ];
        for (at, word) in fixed.iter().enumerate() {
            self.word(head.wrapping_add(at)).store(*word, Ordering::Relaxed);
        }
        for (at, bytes) in words.text.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.word(head.wrapping_add(FIXED + at)).store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        self.head.0.store(head.wrapping_add(len), Ordering::Release);
    }

    /// Takes the oldest record out; only the log's thread may call this.
    fn take(&self, into: &mut Words) -> Option<Outcome> {
        let tail = self.tail.0.load(Ordering::Relaxed);
        if self.head.0.load(Ordering::Acquire) == tail {
            return None;
        }
        let read = |at: usize| self.word(tail.wrapping_add(at)).load(Ordering::Relaxed);
        let flags = read(0);
        let peer = Ipv6Addr::from_bits(u128::from(read(4)) << 64 | u128::from(read(5)));
        let outcome = Outcome {
            unix_ns: read(1),
            took_ns: read(2),
            bytes: read(3),
            status: flags as u16,
            peer: (flags >> 17 & 1 == 1).then(|| peer.to_canonical()),
        };
        let (ends, last) = (read(6), read(7));
        into.old = flags >> 16 & 1 == 1;
        into.ends = [ends as u16, (ends >> 16) as u16, (ends >> 32) as u16, (ends >> 48) as u16, last as u16];
        let len = usize::from(into.ends[4]);
        into.text.clear();
        for at in 0..len.div_ceil(8) {
            into.text.extend_from_slice(&read(FIXED + at).to_le_bytes());
        }
        into.text.truncate(len);
        self.tail.0.store(tail.wrapping_add(FIXED + len.div_ceil(8)), Ordering::Release);
        Some(outcome)
    }

    /// More than a quarter is waiting.
    fn is_busy(&self) -> bool {
        let waiting = self.head.0.load(Ordering::Relaxed).wrapping_sub(self.tail.0.load(Ordering::Relaxed));
        waiting > self.words.len() / 4
    }
}

/// Where lines go.
#[derive(Debug)]
enum Sink {
    Stdout(std::io::Stdout),
    File(File, PathBuf),
}

impl Sink {
    fn open(path: &Path) -> std::io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Sink::Stdout(std::io::stdout()));
        }
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
        Ok(Sink::File(options.append(true).create(true).open(path)?, path.to_owned()))
    }

    fn write(&mut self, lines: &[u8]) -> std::io::Result<()> {
        match self {
            Sink::Stdout(out) => out.write_all(lines).and_then(|()| out.flush()),
            Sink::File(file, _) => file.write_all(lines),
        }
    }

    /// Opens the path again: the old file was renamed by whoever rotates logs.
    fn reopen(&mut self) {
        let Sink::File(_, path) = self else { return };
        match Self::open(path) {
            Ok(sink) => {
                tracing::info!("SIGUSR1: the access log {} is open again", path.display());
                *self = sink;
            }
            Err(error) => tracing::warn!(
                "SIGUSR1: the access log {} cannot be opened again ({}); the old file is kept",
                path.display(),
                describe(&error)
            ),
        }
    }
}

/// What others may ask of the log's thread.
#[derive(Debug, Default)]
pub struct Wishes {
    /// Open the file again.
    pub reopen: AtomicBool,
    finish: AtomicBool,
}

/// The running log.
#[derive(Debug)]
pub struct Log {
    /// What the thread is to do.
    pub wishes: Arc<Wishes>,
    thread: std::thread::Thread,
    done: std::sync::mpsc::Receiver<()>,
}

impl Log {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not started.
    pub fn start(config: &AccessLog, lanes: Vec<Arc<Lane>>) -> Result<Self> {
        let mut sink = Sink::open(&config.path).map_err(|error| {
            Error::os(format!("open the access log {}", config.path.display()), &error)
                .kind_is(Kind::Config)
                .remedy("its directory must exist and this user must be able to write there; - is standard output")
        })?;
        let (wishes, format) = (Arc::new(Wishes::default()), config.format);
        let (ended, done) = std::sync::mpsc::channel();
        let wanted = Arc::clone(&wishes);
        let run = move || {
            let mut writer = Writer { format, lines: Vec::new(), counts: vec![0; lanes.len()], ill: false };
            loop {
                // Asked first: what is put before the wish is then taken below.
                let last = wanted.finish.load(Ordering::Acquire);
                if wanted.reopen.swap(false, Ordering::AcqRel) {
                    sink.reopen();
                }
                writer.drain(&lanes, &mut sink);
                if last {
                    break;
                }
                if !lanes.iter().any(|lane| lane.is_busy()) {
                    std::thread::park_timeout(PAUSE);
                }
            }
            // Whoever waits may have gone already.
            let _ = ended.send(());
        };
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(run)
            .map_err(|error| Error::os("start the thread of the access log", &error))?;
        Ok(Self { wishes, thread: thread.thread().clone(), done })
    }

    /// Writes what is left, for a bounded time: a reader that does not read is no reason to stay.
    pub fn finish(self) {
        self.wishes.finish.store(true, Ordering::Release);
        self.thread.unpark();
        if self.done.recv_timeout(LAST).is_err() {
            tracing::warn!("the access log could not be written to its end in {LAST:?}");
        }
    }
}

/// Records to lines to the sink.
struct Writer {
    format: AccessLogFormat,
    lines: Vec<u8>,
    /// Lines of each lane that are not written yet.
    counts: Vec<u64>,
    /// The last write failed, and was told of.
    ill: bool,
}

impl Writer {
    fn drain(&mut self, lanes: &[Arc<Lane>], sink: &mut Sink) {
        let mut words = Words::default();
        for (at, lane) in lanes.iter().enumerate() {
            // At most what fits the lane: a busy core does not keep the others from their turn.
            let mut left = lane.words.len() / FIXED;
            while left > 0
                && let Some(outcome) = lane.take(&mut words)
            {
                left -= 1;
                line(&mut self.lines, self.format, lane.core, &words, &outcome);
                self.counts[at] += 1;
                if self.lines.len() >= WRITE {
                    self.write(lanes, sink);
                }
            }
        }
        if !self.lines.is_empty() {
            self.write(lanes, sink);
        }
    }

    fn write(&mut self, lanes: &[Arc<Lane>], sink: &mut Sink) {
        let written = sink.write(&self.lines);
        self.lines.clear();
        for (lane, count) in lanes.iter().zip(&mut self.counts) {
            let cell = if written.is_ok() { &lane.tally.log_written } else { &lane.tally.log_failed };
            cell.add(std::mem::take(count));
        }
        match written {
            Err(error) if !self.ill => {
                tracing::warn!("the access log cannot be written, lines are lost: {}", describe(&error));
                self.ill = true;
            }
            Err(_) => {}
            Ok(()) => self.ill = false,
        }
    }
}

/// One line.
fn line(out: &mut Vec<u8>, format: AccessLogFormat, core: usize, words: &Words, outcome: &Outcome) {
    let mut from = 0;
    let [method, target, host, referer, agent] = words.ends.map(|end| {
        let word = &words.text[from..usize::from(end)];
        from = usize::from(end);
        word
    });
    let version = if words.old { "HTTP/1.0" } else { "HTTP/1.1" };
    let peer = outcome.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
    // `Mon, 07 Dec 2026 11:25:07 GMT`; ASCII of fixed places.
    let time = httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(outcome.unix_ns / 1_000_000_000));
    let (day, month, year, clock) = (&time[5..7], &time[8..11], &time[12..16], &time[17..25]);
    // Writing into a Vec cannot fail.
    let _ = match format {
        AccessLogFormat::Combined => {
            let _ = write!(out, "{peer} - - [{day}/{month}/{year}:{clock} +0000] \"");
            if !method.is_empty() {
                escape(out, method);
                out.push(b' ');
                escape(out, target);
                let _ = write!(out, " {version}");
            }
            let _ = write!(out, "\" {} {} \"", outcome.status, outcome.bytes);
            escape(out, if referer.is_empty() { b"-" } else { referer });
            out.extend_from_slice(b"\" \"");
            escape(out, if agent.is_empty() { b"-" } else { agent });
            out.write_all(b"\"\n")
        }
        AccessLogFormat::Json => {
            const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
            let month = MONTHS.find(month).map_or(0, |at| at / 3 + 1);
            let millis = outcome.unix_ns / 1_000_000 % 1000;
            let text = |word: &[u8]| serde_json::Value::from(String::from_utf8_lossy(word)).to_string();
            let seconds = outcome.took_ns as f64 / 1e9;
            writeln!(
                out,
                "{{\"time\":\"{year}-{month:02}-{day}T{clock}.{millis:03}Z\",\"peer\":\"{peer}\",\"core\":{core},\
                 \"method\":{},\"target\":{},\"host\":{},\"version\":\"{version}\",\"status\":{},\"body_bytes\":{},\
                 \"seconds\":{seconds},\"referer\":{},\"user_agent\":{}}}",
                text(method),
                text(target),
                text(host),
                outcome.status,
                outcome.bytes,
                text(referer),
                text(agent),
            )
        }
    };
}

/// As nginx does it: quotes, backslashes and what is not printable ASCII become `\xHH`.
fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\x{byte:02X}");
            }
            plain => out.push(*plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1_765_106_707_042_000_000;

    fn outcome(status: u16) -> Outcome {
        let peer = Some("10.1.2.3".parse().expect("an address"));
        Outcome { unix_ns: END, took_ns: 1_500_000, bytes: 1024, status, peer }
    }

    fn lane(bytes: usize) -> Lane {
        Lane::new(0, bytes, Arc::new(Tally::new(1)))
    }

    #[test]
    fn what_was_put_is_taken_out_in_order_around_the_end_of_the_ring() {
        let lane = lane(1 << 10);
        let (mut words, mut out) = (Words::default(), Words::default());
        for round in 0..100u16 {
            let target = format!("/{}", "x".repeat(usize::from(round % 23)));
            words.set(round % 2 == 0, [b"GET", target.as_bytes(), b"h", b"", b"agent"]);
            lane.put(&words, &outcome(round));
            assert_eq!(lane.take(&mut out), Some(outcome(round)));
            assert_eq!((&out.text, out.ends, out.old), (&words.text, words.ends, words.old));
            assert_eq!(lane.take(&mut out), None);
        }
        assert_eq!(lane.tally.log_dropped.get(), 0);
    }

    #[test]
    fn a_full_lane_drops_and_counts_and_goes_on_when_there_is_room() {
        let lane = lane(256);
        let (mut words, mut out) = (Words::default(), Words::default());
        words.set(false, [b"GET", b"/", b"", b"", b""]);
        for status in 0..10 {
            lane.put(&words, &outcome(status));
        }
        // 32 words, nine for each record.
        assert_eq!(lane.tally.log_dropped.get(), 7);
        assert_eq!(lane.take(&mut out).map(|outcome| outcome.status), Some(0));
        lane.put(&words, &outcome(99));
        let rest: Vec<u16> = std::iter::from_fn(|| lane.take(&mut out)).map(|outcome| outcome.status).collect();
        assert_eq!(rest, [1, 2, 99]);
    }

    #[test]
    fn two_threads_agree_on_every_byte() {
        let lane = Arc::new(lane(1 << 10));
        let put = Arc::clone(&lane);
        let writer = std::thread::spawn(move || {
            let mut words = Words::default();
            for number in 0..20_000u64 {
                let text = number.to_string().repeat(number as usize % 5);
                words.set(false, [b"GET", text.as_bytes(), b"", b"", b""]);
                put.put(&words, &Outcome { bytes: number, ..outcome(200) });
            }
        });
        let (mut out, mut taken, mut last) = (Words::default(), 0u64, None);
        loop {
            let ended = writer.is_finished();
            while let Some(outcome) = lane.take(&mut out) {
                let number = outcome.bytes;
                assert!(last.is_none_or(|last| last < number));
                assert_eq!(out.text[3..], *number.to_string().repeat(number as usize % 5).as_bytes());
                last = Some(number);
                taken += 1;
            }
            if ended {
                break;
            }
        }
        writer.join().expect("no panic");
        assert_eq!(taken + lane.tally.log_dropped.get(), 20_000);
        assert!(taken > 0);
    }

    #[test]
    fn long_words_are_cut_and_an_idle_connection_keeps_nothing() {
        let mut words = Words::default();
        let long = vec![b'a'; 100_000];
        words.set(false, [&long; 5]);
        assert_eq!(usize::from(words.ends[4]), CLIP.iter().sum::<usize>());
        words.clear();
        assert_eq!((words.text.capacity(), words.ends), (0, [0; 5]));
    }

    fn made(format: AccessLogFormat, words: &Words, outcome: &Outcome) -> String {
        let mut out = Vec::new();
        line(&mut out, format, 3, words, outcome);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn a_combined_line_is_what_nginx_writes() {
        let mut words = Words::default();
        words.set(false, [b"GET", b"/a\"b\x7f", b"h", b"http://r/", b"curl/8 \\"]);
        assert_eq!(
            made(AccessLogFormat::Combined, &words, &outcome(206)),
            "10.1.2.3 - - [07/Dec/2025:11:25:07 +0000] \"GET /a\\x22b\\x7F HTTP/1.1\" 206 1024 \"http://r/\" \"curl/8 \\x5C\"\n"
        );
        words.clear();
        let unknown = Outcome { peer: None, bytes: 0, ..outcome(400) };
        assert_eq!(
            made(AccessLogFormat::Combined, &words, &unknown),
            "- - - [07/Dec/2025:11:25:07 +0000] \"\" 400 0 \"-\" \"-\"\n"
        );
    }

    #[test]
    fn a_json_line_is_an_object_whatever_the_client_said() {
        let mut words = Words::default();
        words.set(true, [b"GET", b"/\xff\"\n", b"h:80", b"", b"\xc3\xa4"]);
        let line = made(AccessLogFormat::Json, &words, &outcome(200));
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["time"], "2025-12-07T11:25:07.042Z");
        assert_eq!((&value["target"], &value["user_agent"]), (&"/\u{fffd}\"\n".into(), &"ä".into()));
        assert_eq!(
            (&value["seconds"], &value["core"], &value["version"]),
            (&0.0015.into(), &3.into(), &"HTTP/1.0".into())
        );
    }
}
