//! A run in lines for people, near iperf3's: pure functions from the report's parts to text.

use super::report::{Interval, Report, Side, Start};
use std::fmt::Write;

/// Bytes with a binary unit.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.2} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2} TiB")
}

/// Bits a second with a decimal unit.
pub fn rate(bits: f64) -> String {
    match bits {
        bits if bits >= 1e9 => format!("{:.2} Gb/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mb/s", bits / 1e6),
        bits if bits >= 1e3 => format!("{:.1} Kb/s", bits / 1e3),
        bits => format!("{bits:.0} b/s"),
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        long if long >= 1.0 => format!("{long:.2} s"),
        short if short >= 1e-3 => format!("{:.2} ms", short * 1e3),
        tiny => format!("{:.1} us", tiny * 1e6),
    }
}

fn flows(count: u64) -> String {
    if count == 1 { "1 flow".to_owned() } else { format!("{count} flows") }
}

/// What is run.
pub fn start(start: &Start) -> String {
    let test = &start.test_start;
    let mut out = String::new();
    let what = match test.protocol.as_str() {
        "http" => format!("{} connections to {}", test.num_streams, test.targets.join(", ")),
        _ if test.engine == "sink" => {
            format!("{} from {}, receive {}", flows(test.num_streams), test.targets.join(", "), test.receive)
        }
        _ => format!(
            "{} to {}, engine {}, receive {}, congestion control {}",
            flows(test.num_streams),
            test.targets.join(", "),
            test.engine,
            test.receive,
            test.congestion
        ),
    };
    let _ = writeln!(out, "{what}");
    let cores = |cores: &[u64]| match cores {
        [] => "not pinned".to_owned(),
        list => format!("CPUs {}", list.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
    };
    let _ = writeln!(
        out,
        "{} · Linux {} · {} · {}",
        start.version,
        start.local.kernel,
        start.local.cpu,
        cores(&start.local.cores)
    );
    if let Some(remote) = &start.remote {
        let _ = writeln!(out, "sink {} · Linux {} · {}", remote.host, remote.kernel, cores(&remote.cores));
    }
    let _ =
        write!(out, "    interval          bytes        rate          retr  cwnd        rtt       cpu     remote cpu");
    out
}

/// One line.
pub fn interval(interval: &Interval) -> String {
    let span = interval.end - interval.start;
    let percent = |cpu: f64| if span > 0.0 { 100.0 * cpu / span } else { 0.0 };
    let moved = if interval.bytes > 0 { interval.bytes } else { interval.received_bytes };
    let mut line = format!(
        "{:6.2}-{:<6.2}s {:>12}  {:>12}  {:>5}  {:>10}  {:>8}  {:5.1} %  {:5.1} %",
        interval.start + 0.0,
        interval.end + 0.0,
        bytes(moved),
        rate(interval.bits_per_second),
        interval.retransmits,
        bytes(interval.snd_cwnd),
        seconds(interval.rtt / 1e6),
        percent(interval.cpu_seconds),
        percent(interval.remote_cpu_seconds),
    );
    if interval.requests > 0 {
        let _ = write!(line, "  {} requests", interval.requests);
    }
    if interval.omitted {
        line.push_str("  (omitted)");
    }
    for via in &interval.vias {
        let _ = write!(line, "\n      via {:<16} {:>12}", via.via, rate(super::report::rate(via.bytes, span)));
    }
    line
}

fn side(out: &mut String, name: &str, side: &Side) {
    let _ = writeln!(
        out,
        "{name}: {} in {:.2} s, CPU {:.2} s user {:.2} s system ({:.1} % of one), service demand {:.3} us/KiB",
        bytes(side.bytes),
        side.seconds,
        side.user_seconds,
        side.system_seconds,
        if side.seconds > 0.0 { 100.0 * (side.user_seconds + side.system_seconds) / side.seconds } else { 0.0 },
        side.service_demand,
    );
    let _ = writeln!(
        out,
        "    with softirq {:.3} us/KiB; {} calls of {}; {} short, {} found no room or nothing, {} waits; {} enters, {} ops",
        side.service_demand_with_softirq,
        side.calls,
        seconds(side.seconds_per_call),
        side.short,
        side.again,
        side.waits,
        side.enters,
        side.ops,
    );
    let _ = writeln!(
        out,
        "    context switches {} voluntary, {} involuntary; io-wq {:.3} s, control {:.3} s",
        side.voluntary_switches, side.involuntary_switches, side.iowq_seconds, side.control_seconds,
    );
    if !side.engines.is_empty() {
        let list: Vec<String> =
            side.engines.iter().map(|(engine, moved)| format!("{engine} {}", bytes(*moved))).collect();
        let _ = write!(out, "    by engine: {}", list.join(", "));
        match side.zero_copy_copied_share {
            Some(share) => {
                let _ = writeln!(out, "; the kernel copied {:.1} % of the zero-copy bytes", share * 100.0);
            }
            None => out.push('\n'),
        }
    }
    for core in &side.cores {
        let place = core.cpu.map_or_else(|| "not pinned".to_owned(), |cpu| format!("CPU {cpu}"));
        let _ = writeln!(
            out,
            "    core {} ({place}): {}, {:.2} s user, {:.2} s system, {:.2} s io-wq, {:.2} s waiting for its CPU, {:.3} us/KiB",
            core.core,
            bytes(core.bytes),
            core.user_seconds,
            core.system_seconds,
            core.iowq_seconds,
            core.run_delay_seconds,
            core.service_demand,
        );
    }
    for cpu in &side.host {
        let _ = writeln!(
            out,
            "    CPU {}: user {:.2} system {:.2} irq {:.2} softirq {:.2} steal {:.2} iowait {:.2} idle {:.2} s",
            cpu.cpu, cpu.user, cpu.system, cpu.irq, cpu.softirq, cpu.steal, cpu.iowait, cpu.idle,
        );
    }
}

/// Flows that get a line of their own.
const STREAMS_MOST: usize = 16;

/// The end of a run.
pub fn report(report: &Report) -> String {
    let mut out = String::from("- - - - - - - - - - - - - - - - - - - -\n");
    let end = &report.end;
    for stream in end.streams.iter().take(STREAMS_MOST) {
        let via = if stream.via.is_empty() { String::new() } else { format!(" via {}", stream.via) };
        let _ = writeln!(
            out,
            "flow {:>3} core {}{via}: {:>12} {:>12}  retr {}  rtt {}  held {}  unsent {}",
            stream.socket,
            stream.core,
            bytes(stream.bytes),
            rate(stream.bits_per_second),
            stream.retransmits,
            seconds(stream.rtt / 1e6),
            bytes(stream.max_held_bytes),
            bytes(stream.max_notsent_bytes),
        );
    }
    if end.streams.len() > STREAMS_MOST {
        let _ = writeln!(out, "... {} flows in all", end.streams.len());
    }
    for via in &end.vias {
        let link = if via.link_bits_per_second > 0.0 {
            format!(
                " of {}, {:.0} %",
                rate(via.link_bits_per_second),
                100.0 * via.wire_bits_per_second / via.link_bits_per_second
            )
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "via {} ({}): {} of payload, {} on the wire{link}, {} drops",
            via.via,
            via.device,
            rate(via.bits_per_second),
            rate(via.wire_bits_per_second),
            via.drops
        );
    }
    if end.sender.seconds > 0.0 {
        side(&mut out, if report.start.test_start.protocol == "http" { "client" } else { "sender" }, &end.sender);
    }
    if let Some(receiver) = &end.receiver {
        side(&mut out, "receiver", receiver);
    }
    if end.sum_received.verified_blocks > 0 {
        let what = if report.start.test_start.protocol == "http" { "bodies" } else { "blocks" };
        let _ = writeln!(out, "verified: {} {what}, all right", end.sum_received.verified_blocks);
    }
    if end.sum_sent.requests > 0 || end.sum_sent.errors > 0 {
        let per_second =
            if end.sum_sent.seconds > 0.0 { end.sum_sent.requests as f64 / end.sum_sent.seconds } else { 0.0 };
        let _ = writeln!(
            out,
            "requests: {} ({per_second:.1} a second), {} failed",
            end.sum_sent.requests, end.sum_sent.errors
        );
    }
    if let Some(latency) = &end.latency {
        let _ = writeln!(
            out,
            "latency: mean {} p50 {} p90 {} p99 {} p99.9 {} max {}",
            seconds(latency.mean),
            seconds(latency.p50),
            seconds(latency.p90),
            seconds(latency.p99),
            seconds(latency.p999),
            seconds(latency.max)
        );
    }
    if report.repeats.len() > 1 {
        for (number, repeat) in report.repeats.iter().enumerate() {
            let _ = writeln!(
                out,
                "repeat {}: {} at {:.3} us/KiB (remote {:.3}), {} calls of {}",
                number + 1,
                rate(repeat.bits_per_second),
                repeat.service_demand,
                repeat.remote_service_demand,
                repeat.calls,
                seconds(repeat.seconds_per_call)
            );
        }
    }
    if let Some(sure) = &report.confidence {
        let _ = writeln!(
            out,
            "confidence: at {} % the interval of the throughput is {:.1} % wide, of the service demand {:.1} %",
            sure.level, sure.throughput_percent, sure.service_demand_percent
        );
    }
    for assertion in &report.asserts {
        let verdict = if assertion.held { "held" } else { "DID NOT HOLD" };
        let _ = writeln!(out, "assert {}: {verdict} (measured {:.6})", assertion.expression, assertion.measured);
    }
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if let Some(why) = &report.partial {
        let _ = writeln!(out, "PARTIAL: {why}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let rows = [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (5 << 30, "5.00 GiB"), (3 << 40, "3.00 TiB")];
        for (count, wanted) in rows {
            assert_eq!(bytes(count), wanted);
        }
        assert_eq!((rate(1.5e9).as_str(), rate(2e6).as_str(), rate(5.0).as_str()), ("1.50 Gb/s", "2.0 Mb/s", "5 b/s"));
        assert_eq!(
            (seconds(1.0).as_str(), seconds(0.002).as_str(), seconds(5e-6).as_str()),
            ("1.00 s", "2.00 ms", "5.0 us")
        );
    }

    #[test]
    fn a_partial_report_with_a_failed_assertion_says_both() {
        let mut partial = Report { partial: Some("the sink is gone".into()), ..Report::default() };
        partial.asserts.push(super::super::report::Assertion {
            expression: "throughput>=9".into(),
            measured: 1.0,
            held: false,
        });
        let told = report(&partial);
        assert!(told.contains("PARTIAL: the sink is gone") && told.contains("DID NOT HOLD"), "{told}");
    }
}
