//! What a run came to: one document for both ends, as JSON whose keys stand near iperf3's, and as data for everything
//! that draws, asserts or compares.
//!
//! Units are in the names: seconds, bytes, bits_per_second, microseconds per KiB. Every figure of an end covers its
//! measured window only: the warm-up (`omit`) is cut off.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was run, where.
    pub start: Start,
    /// One entry per interval of the last repeat.
    pub intervals: Vec<Interval>,
    /// Totals of the last repeat.
    pub end: End,
    /// One entry per repeat.
    pub repeats: Vec<Repeat>,
    /// How sure the mean of the repeats is; absent with one repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// Why the run is not whole (interrupted, peer lost); absent when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// What a reader must know before using the figures.
    pub warnings: Vec<String>,
    /// What was asserted, and whether it held.
    pub asserts: Vec<Assertion>,
}

/// What was run, where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// `ringway 0.1.0`.
    pub version: String,
    /// Unix seconds.
    pub timestamp: u64,
    /// What was asked for.
    pub test_start: Test,
    /// The sending end's machine.
    pub local: Machine,
    /// The receiving end's machine; absent for an HTTP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<Machine>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// `tcp` or `http`.
    pub protocol: String,
    /// As given.
    pub targets: Vec<String>,
    /// `auto`, `send`, `send-zc`, `splice`, `splice2` (splice(2) on the ring thread), `sendfile`; `http` for a client.
    pub engine: String,
    /// `copy`, `trunc` or `splice`.
    pub receive: String,
    /// Flows in all.
    pub num_streams: u64,
    /// Bytes of one call by `send` and `send-zc`.
    pub blksize: u64,
    /// Bytes of the file or files that are sent over and over; 0 where nothing but memory is sent.
    pub file_bytes: u64,
    /// Files.
    pub files: u64,
    /// Seconds measured; 0 where bytes or a count end the run.
    pub duration: f64,
    /// Seconds of warm-up before them.
    pub omit: f64,
    /// Payload is checked.
    pub verify: bool,
    /// TCP_CONGESTION of the flows.
    pub congestion: String,
    /// TCP_NOTSENT_LOWAT; 0 is the system's.
    pub notsent_lowat: u64,
    /// SO_SNDBUF asked for; 0 is autotuning.
    pub send_buffer: u64,
    /// SO_RCVBUF asked for; 0 is autotuning.
    pub receive_buffer: u64,
    /// Requests or messages a second in all; 0 is closed loop.
    pub rate: f64,
}

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Model name of the CPUs.
    pub cpu: String,
    /// CPUs online.
    pub cpus: u64,
    /// CPUs the cores are pinned to; empty where they are not.
    pub cores: Vec<u64>,
    /// Bytes of memory.
    pub memory: u64,
    /// `kvm`, `none` ... as far as it can be told.
    pub hypervisor: String,
    /// Facts that change figures: default congestion control and qdisc, tcp_rmem, tcp_wmem, RLIMIT_MEMLOCK, offloads of the
    /// interfaces used, clock source, CPU accounting.
    pub facts: BTreeMap<String, String>,
}

/// Figures of one interval, both ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Seconds since the measured window began; negative in the warm-up.
    pub start: f64,
    /// The same.
    pub end: f64,
    /// In the warm-up.
    pub omitted: bool,
    /// Bytes the sending sockets took.
    pub bytes: u64,
    /// Bytes the receiving sockets gave.
    pub received_bytes: u64,
    /// Of `bytes`.
    pub bits_per_second: f64,
    /// Finished requests (HTTP) or whole files sent.
    pub requests: u64,
    /// TCP retransmissions.
    pub retransmits: u64,
    /// Congestion window of the flows, mean, in bytes.
    pub snd_cwnd: u64,
    /// Smoothed round trip, mean, in microseconds.
    pub rtt: f64,
    /// Bytes in sockets not sent yet, sum.
    pub notsent_bytes: u64,
    /// CPU seconds of the sending end over this interval.
    pub cpu_seconds: f64,
    /// CPU seconds of the receiving end.
    pub remote_cpu_seconds: f64,
    /// One entry per core of the sending end.
    pub cores: Vec<CoreInterval>,
    /// One entry per interface or address named by `--via` or `--nic`.
    pub vias: Vec<ViaInterval>,
}

/// One core in one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreInterval {
    /// Core index.
    pub core: u64,
    /// Bytes its sockets took.
    pub bytes: u64,
    /// CPU seconds, io-wq workers included.
    pub cpu_seconds: f64,
}

/// One interface or source address in one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ViaInterval {
    /// Interface or address as named.
    pub via: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Bytes on the wire by the interface's own counter, headers included; 0 where unknown.
    pub wire_bytes: u64,
}

/// Totals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// One per flow; none for an HTTP server, whose connections come and go.
    pub streams: Vec<Stream>,
    /// The sending end's sum; for an HTTP server the bodies received, as in `sum_received`.
    pub sum_sent: Sum,
    /// The receiving end's sum.
    pub sum_received: Sum,
    /// In the manner of iperf3: percent of one CPU.
    pub cpu_utilization_percent: Utilization,
    /// The sending end (the client, for HTTP).
    pub sender: Side,
    /// The receiving end; absent for an HTTP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Side>,
    /// Of HTTP requests, or of messages sent on a schedule; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// One entry per interface or address named by `--via` or `--nic`.
    pub vias: Vec<Via>,
}

/// One flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Flow index.
    pub socket: u64,
    /// Core it ran on.
    pub core: u64,
    /// `via` it was bound to; empty where none.
    pub via: String,
    /// Local address.
    pub local: String,
    /// Remote address.
    pub remote: String,
    /// Bytes its socket took.
    pub bytes: u64,
    /// Bytes the other end received.
    pub received_bytes: u64,
    /// Of `bytes`.
    pub bits_per_second: f64,
    /// Retransmissions.
    pub retransmits: u64,
    /// Smoothed round trip in microseconds, at the end.
    pub rtt: f64,
    /// Congestion window in bytes, at the end.
    pub snd_cwnd: u64,
    /// Largest count of unsent bytes seen in its socket.
    pub max_notsent_bytes: u64,
    /// Largest count of bytes held by its socket (sent and not acknowledged, and unsent), SIOCOUTQ.
    pub max_held_bytes: u64,
    /// SO_SNDBUF the kernel granted.
    pub sndbuf_actual: u64,
    /// SO_RCVBUF the other end was granted.
    pub rcvbuf_actual: u64,
    /// Share of the time with data in flight that the receiver's window was the limit (TCP_INFO).
    pub rwnd_limited: f64,
    /// The same for our send buffer.
    pub sndbuf_limited: f64,
}

/// Bytes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// Seconds.
    pub seconds: f64,
    /// Bytes.
    pub bytes: u64,
    /// Their quotient, times eight.
    pub bits_per_second: f64,
    /// Finished requests or whole files.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Retransmissions.
    pub retransmits: u64,
    /// Blocks (bodies, for HTTP) whose content was checked and right.
    pub verified_blocks: u64,
}

/// Percent of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Utilization {
    pub host_total: f64,
    pub host_user: f64,
    pub host_system: f64,
    pub remote_total: f64,
    pub remote_user: f64,
    pub remote_system: f64,
}

/// One end: where its CPU went and what it did for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Seconds measured.
    pub seconds: f64,
    /// Bytes moved in them.
    pub bytes: u64,
    /// CPU seconds of the whole process in user mode (getrusage).
    pub user_seconds: f64,
    /// CPU seconds of the whole process in the kernel (getrusage).
    pub system_seconds: f64,
    /// CPU microseconds per KiB moved: the process's, io-wq workers included.
    pub service_demand: f64,
    /// The same with the softirq time of the CPUs in use, which no thread is charged for on some kernels.
    pub service_demand_with_softirq: f64,
    /// One per core.
    pub cores: Vec<CoreUse>,
    /// CPU seconds of the io-wq workers.
    pub iowq_seconds: f64,
    /// CPU seconds of the threads that only control.
    pub control_seconds: f64,
    /// Seconds by mode of the CPUs the cores are pinned to (all CPUs where they are not), from /proc/stat.
    pub host: Vec<HostCpu>,
    /// Voluntary context switches of ring threads and workers.
    pub voluntary_switches: u64,
    /// Involuntary ones.
    pub involuntary_switches: u64,
    /// io_uring_enter(2).
    pub enters: u64,
    /// Operations submitted.
    pub ops: u64,
    /// Completions.
    pub completions: u64,
    /// Calls or operations that moved bytes: sends, sendfiles, splices, receives.
    pub calls: u64,
    /// Mean seconds of one: in the call, or from submission to completion.
    pub seconds_per_call: f64,
    /// Calls that moved less than they were asked to.
    pub short: u64,
    /// Calls that found the socket full (or empty).
    pub again: u64,
    /// Times a flow waited for its socket.
    pub waits: u64,
    /// Bytes by engine.
    pub engines: BTreeMap<String, u64>,
    /// Bytes of zero-copy sends by the kernel's own report: `zerocopied`, `copied`, `unreported`.
    pub zero_copy: BTreeMap<String, u64>,
    /// Share of zero-copy bytes that the kernel copied; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy_copied_share: Option<f64>,
}

/// One core of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreUse {
    /// Index.
    pub core: u64,
    /// CPU it is pinned to, read back from the kernel; absent where it is not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// NUMA node of that CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// Bytes moved.
    pub bytes: u64,
    /// CPU seconds of the ring thread in user mode.
    pub user_seconds: f64,
    /// The same in the kernel.
    pub system_seconds: f64,
    /// CPU seconds of its io-wq workers.
    pub iowq_seconds: f64,
    /// Seconds runnable but not running.
    pub run_delay_seconds: f64,
    /// Voluntary context switches, workers included.
    pub voluntary_switches: u64,
    /// Involuntary ones.
    pub involuntary_switches: u64,
    /// CPU microseconds per KiB.
    pub service_demand: f64,
}

/// One CPU by mode, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct HostCpu {
    pub cpu: u64,
    pub user: f64,
    pub system: f64,
    pub irq: f64,
    pub softirq: f64,
    pub steal: f64,
    pub iowait: f64,
    pub idle: f64,
}

/// Seconds from when a request was due (open schedule) or sent (closed loop) to its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// One interface or source address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Via {
    /// As named.
    pub via: String,
    /// The interface behind it.
    pub device: String,
    /// Cores of its flows.
    pub cores: Vec<u64>,
    /// Payload bytes.
    pub bytes: u64,
    /// Of the payload.
    pub bits_per_second: f64,
    /// Bytes on the wire by the interface's counter.
    pub wire_bytes: u64,
    /// Of the wire bytes.
    pub wire_bits_per_second: f64,
    /// Link speed; 0 where the interface does not know.
    pub link_bits_per_second: f64,
    /// Packets the interface dropped (tx_dropped).
    pub drops: u64,
}

/// One repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Seconds measured.
    pub seconds: f64,
    /// Bytes received (sent, where no end of ours received).
    pub bytes: u64,
    /// Of those bytes.
    pub bits_per_second: f64,
    /// CPU microseconds per KiB of the sending end.
    pub service_demand: f64,
    /// The same of the receiving end.
    pub remote_service_demand: f64,
    /// Calls that moved bytes, sending end.
    pub calls: u64,
    /// Mean seconds of one.
    pub seconds_per_call: f64,
    /// Context switches of the sending end, both kinds.
    pub context_switches: u64,
    /// Requests or whole files.
    pub requests: u64,
}

/// How sure the means are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// Level, percent: 99 says the interval holds the true mean 99 times in 100.
    pub level: f64,
    /// Width wanted: the whole interval, percent of the mean.
    pub wanted_percent: f64,
    /// Width reached for throughput, percent of the mean.
    pub throughput_percent: f64,
    /// Width reached for the sender's service demand.
    pub service_demand_percent: f64,
    /// Both are at most what was wanted.
    pub met: bool,
}

/// One assertion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Assertion {
    /// As given.
    pub expression: String,
    /// What was measured, in the assertion's unit.
    pub measured: f64,
    /// It holds.
    pub held: bool,
}

impl Sum {
    /// `bytes` in `seconds`.
    pub fn new(bytes: u64, seconds: f64) -> Self {
        Self { seconds, bytes, bits_per_second: rate(bytes, seconds), ..Self::default() }
    }
}

/// Bits a second; 0 in no time.
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// CPU microseconds per KiB; 0 for no bytes.
pub fn service_demand(cpu_seconds: f64, bytes: u64) -> f64 {
    if bytes == 0 { 0.0 } else { cpu_seconds * 1e6 / (bytes as f64 / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_json() {
        let mut report = Report { partial: Some("interrupted".into()), ..Report::default() };
        report.end.sum_sent = Sum::new(1 << 30, 2.0);
        report.end.sender.engines.insert("sendfile".into(), 1 << 30);
        let text = serde_json::to_string(&report).expect("JSON");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("and back"), report);
        assert!(text.contains("\"bits_per_second\":4294967296.0"));
    }

    #[test]
    fn quotients_of_nothing_are_nothing() {
        assert_eq!((rate(5, 0.0), service_demand(1.0, 0)), (0.0, 0.0));
        assert!((service_demand(0.5, 512 << 20) - 0.953_674_316).abs() < 1e-6);
    }
}
