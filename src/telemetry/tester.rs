//! What a run of the saturation tester shows to Prometheus while it goes on: sums of its intervals.

use super::names;
use super::render::Text;

/// Sums and last values of a run.
#[derive(Clone, Debug, Default)]
pub struct Tester {
    /// `sender`, `receiver` or `client`.
    pub end: &'static str,
    /// Engine, or how bytes are received.
    pub engine: String,
    /// Flows or connections; 0 between runs.
    pub streams: u64,
    /// Bytes sent by core.
    pub sent: Vec<u64>,
    /// Bytes received by core.
    pub received: Vec<u64>,
    /// CPU seconds of this end and of the other.
    pub cpu: [f64; 2],
    /// Bytes sent by way out.
    pub vias: Vec<(String, u64)>,
    /// Finished requests or whole files.
    pub requests: u64,
    /// TCP retransmissions.
    pub retransmits: u64,
    /// Bytes in sockets not sent yet.
    pub unsent: u64,
    /// Mean congestion window in bytes.
    pub cwnd: u64,
    /// Mean round trip in seconds.
    pub rtt: f64,
}

impl Tester {
    /// As text for a scrape.
    pub fn render(&self) -> String {
        let mut text = Text::new();
        text.family(&names::TESTER_RUN);
        text.line(names::TESTER_RUN.name, "", &[("end", self.end), ("engine", &self.engine)], 1);
        text.one(&names::TESTER_STREAMS, self.streams);
        for (family, cores) in [(&names::TESTER_SENT, &self.sent), (&names::TESTER_RECEIVED, &self.received)] {
            text.family(family);
            for (core, bytes) in cores.iter().enumerate() {
                text.line(family.name, "", &[("core", &core.to_string())], bytes);
            }
        }
        text.family(&names::TESTER_VIA);
        for (via, bytes) in &self.vias {
            text.line(names::TESTER_VIA.name, "", &[("via", via)], bytes);
        }
        text.family(&names::TESTER_CPU);
        for (side, seconds) in ["local", "remote"].into_iter().zip(self.cpu) {
            text.line(names::TESTER_CPU.name, "", &[("side", side)], seconds);
        }
        text.one(&names::TESTER_REQUESTS, self.requests);
        text.one(&names::TESTER_RETRANSMITS, self.retransmits);
        text.one(&names::TESTER_UNSENT, self.unsent);
        text.one(&names::TESTER_CWND, self.cwnd);
        text.one(&names::TESTER_RTT, self.rtt);
        text.into_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::names::{ALL, Group};

    #[test]
    fn every_family_of_the_group_is_there() {
        let text = Tester { sent: vec![7], vias: vec![("eth0".into(), 1)], ..Tester::default() }.render();
        for family in ALL.iter().filter(|family| family.group == Group::Tester) {
            assert!(text.contains(&format!("# TYPE {} ", family.name)), "{}", family.name);
        }
        assert!(text.contains("sent_bytes_total{core=\"0\"} 7\n"), "{text}");
    }
}
