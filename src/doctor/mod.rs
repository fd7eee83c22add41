//! Says what of this machine stands in ringway's way, what each thing means, and what to do about it.
//!
//! `host` judges what /proc and /sys say beneath a root that tests may fake, `living` tries things out (rings, pipes,
//! ports, directories). Nothing here changes the machine. A FAIL is what `serve` cannot start with; a WARN costs
//! throughput or will be met as a limit later.

pub mod host;
pub mod living;

use crate::config::{Config, Source};
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// As it should be.
    Pass,
    /// Serves, but worse than it could.
    Warn,
    /// Does not serve.
    Fail,
}

impl Level {
    /// As printed.
    pub fn text(self) -> &'static str {
        match self {
            Level::Pass => "PASS",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        }
    }
}

/// What to do, by how the server is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remedy {
    /// In a shell of the machine.
    pub host: String,
    /// In the unit file.
    pub systemd: String,
    /// In the command line of a container.
    pub docker: String,
    /// In the pod, or on its node.
    pub kubernetes: String,
}

impl Remedy {
    /// One text each.
    pub fn new(
        host: impl Into<String>,
        systemd: impl Into<String>,
        docker: impl Into<String>,
        kubernetes: impl Into<String>,
    ) -> Self {
        Self { host: host.into(), systemd: systemd.into(), docker: docker.into(), kubernetes: kubernetes.into() }
    }

    /// The same whatever runs it.
    pub fn everywhere(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::new(text.clone(), text.clone(), text.clone(), text)
    }

    /// A sysctl of the whole machine.
    pub fn sysctl(key: &str, value: impl std::fmt::Display) -> Self {
        let set = format!("sysctl -w {key}={value}, and a line `{key} = {value}` in /etc/sysctl.d/90-ringway.conf");
        Self::new(
            set.clone(),
            set.clone(),
            format!("on the host: {set}"),
            format!("on every node: {set} (or a privileged initContainer that does)"),
        )
    }

    /// A sysctl that every network namespace has for itself.
    pub fn net_sysctl(key: &str, value: impl std::fmt::Display) -> Self {
        Self {
            docker: format!("docker run --sysctl {key}={value}, or with --network host as on bare metal"),
            kubernetes: format!(
                "securityContext.sysctls: [{{name: {key}, value: \"{value}\"}}] where the kubelet allows it, or on the node with hostNetwork"
            ),
            ..Self::sysctl(key, value)
        }
    }

    fn parts(&self) -> [(&'static str, &str); 4] {
        [
            ("bare metal", &self.host),
            ("systemd", &self.systemd),
            ("Docker", &self.docker),
            ("Kubernetes", &self.kubernetes),
        ]
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What, in one word.
    pub name: &'static str,
    /// How bad.
    pub level: Level,
    /// What was seen.
    pub seen: String,
    /// What it means; empty where all is well.
    pub meaning: String,
    /// What to do.
    pub remedy: Option<Remedy>,
}

impl Finding {
    /// All is well.
    pub fn pass(name: &'static str, seen: impl Into<String>) -> Self {
        Self { name, level: Level::Pass, seen: seen.into(), meaning: String::new(), remedy: None }
    }

    /// Worse than it could be.
    pub fn warn(name: &'static str, seen: impl Into<String>, meaning: impl Into<String>, remedy: Remedy) -> Self {
        Self { level: Level::Warn, meaning: meaning.into(), remedy: Some(remedy), ..Self::pass(name, seen) }
    }

    /// Does not serve.
    pub fn fail(name: &'static str, seen: impl Into<String>, meaning: impl Into<String>, remedy: Remedy) -> Self {
        Self { level: Level::Fail, ..Self::warn(name, seen, meaning, remedy) }
    }
}

/// What the configuration asks of the machine.
#[derive(Clone, Debug)]
pub struct Plan {
    /// CPUs of the ring threads.
    pub cores: Vec<usize>,
    /// Bytes registered by all of them.
    pub locked_bytes: u64,
    /// Descriptors with every limit reached.
    pub descriptors: u64,
    /// Descriptors before the first client; fewer are refused at the start.
    pub least_descriptors: u64,
    /// Connections of all cores.
    pub connections: u64,
    /// Pipes of all cores.
    pub pipes: u64,
    /// Bytes wanted of each.
    pub pipe_bytes: usize,
    /// Threads, io-wq workers included.
    pub threads: u64,
    /// Accept queue wanted.
    pub backlog: u32,
    /// TCP_CONGESTION, if any.
    pub congestion: Option<String>,
    /// Addresses to serve on.
    pub listen: Vec<SocketAddr>,
    /// Directories that are served.
    pub roots: Vec<PathBuf>,
}

/// Descriptors that are neither connections nor pipes nor files, of one core: ring, event, listeners.
const CORE_DESCRIPTORS: u64 = 8;
/// Descriptors of the process itself: standard ones, control plane, roots, journal.
const PROCESS_DESCRIPTORS: u64 = 32;
/// Queues and receive rings of one core, which are locked too.
const RING_BYTES: u64 = 256 << 10;

impl Plan {
    /// From a configuration.
    pub fn of(config: &Config) -> Self {
        let cores = config.cores.len() as u64;
        let limits = &config.limits;
        let directories = config.routes.iter().filter_map(|route| match &route.source {
            Source::Directory(path) => Some(path.clone()),
            Source::Origin(_) => None,
        });
        let origins = config.routes.len() as u64 - directories.clone().count() as u64;
        let each = limits.connections_per_core as u64
            + 2 * limits.pipes_per_core as u64
            + limits.open_files_per_core as u64
            + origins * limits.origin_connections_per_core as u64
            + CORE_DESCRIPTORS
            + config.listen.len() as u64;
        let mut roots: Vec<PathBuf> = directories.collect();
        roots.dedup();
        Self {
            cores: config.cores.clone(),
            locked_bytes: cores * (limits.arena_bytes_per_core as u64 + RING_BYTES),
            descriptors: cores * each + PROCESS_DESCRIPTORS,
            least_descriptors: config.least_descriptors(),
            connections: cores * limits.connections_per_core as u64,
            pipes: cores * limits.pipes_per_core as u64,
            pipe_bytes: limits.pipe_bytes,
            threads: cores * (1 + u64::from(limits.workers_bounded) + u64::from(limits.workers_unbounded)) + 4,
            backlog: limits.backlog,
            congestion: config.congestion.clone(),
            listen: config.listen.clone(),
            roots,
        }
    }
}

/// Everything that was looked at.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order it was looked at.
    pub findings: Vec<Finding>,
}

/// Looks at everything.
pub fn examine(config: &Config) -> Report {
    let plan = Plan::of(config);
    let mut findings = living::ring(&plan);
    findings.extend(host::all(Path::new("/"), &plan, &living::offloads));
    findings.extend(living::pipe(&plan));
    findings.extend(living::directories(&plan));
    findings.extend(living::ports(config));
    Report { findings }
}

impl Report {
    /// 0: all is well, 1: something is worse than it could be, 2: `serve` would not start.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.level).max() {
            Some(Level::Fail) => 2,
            Some(Level::Warn) => 1,
            _ => 0,
        }
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// For people: worst last, so that it is what remains on the screen.
    pub fn text(&self) -> String {
        let mut sorted: Vec<&Finding> = self.findings.iter().collect();
        sorted.sort_by_key(|finding| finding.level);
        let mut out: String = sorted.iter().map(|finding| paragraph(finding)).collect();
        let [pass, warn, fail] = [Level::Pass, Level::Warn, Level::Fail].map(|level| self.count(level));
        out.push_str(&format!("{pass} passed, {warn} warnings, {fail} failures\n"));
        out
    }

    /// Only what `serve` cannot start with; empty if there is none.
    pub fn failures(&self) -> String {
        self.findings.iter().filter(|finding| finding.level == Level::Fail).map(paragraph).collect()
    }

    /// For programs: `{"exit":N,"findings":[{name, level, seen, meaning, remedy}]}`.
    pub fn json(&self) -> String {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                let remedy = finding.remedy.as_ref().map(|remedy| {
                    json!({
                        "host": remedy.host, "systemd": remedy.systemd,
                        "docker": remedy.docker, "kubernetes": remedy.kubernetes,
                    })
                });
                json!({
                    "name": finding.name, "level": finding.level.text(), "seen": finding.seen,
                    "meaning": finding.meaning, "remedy": remedy,
                })
            })
            .collect();
        format!("{}\n", json!({ "exit": self.exit_code(), "findings": findings }))
    }
}

fn paragraph(finding: &Finding) -> String {
    let mut out = format!("{}  {}: {}\n", finding.level.text(), finding.name, finding.seen);
    if !finding.meaning.is_empty() {
        out.push_str(&format!("      means: {}\n", finding.meaning));
    }
    if let Some(remedy) = &finding.remedy {
        let parts = remedy.parts();
        if parts.iter().all(|(_, text)| *text == parts[0].1) {
            out.push_str(&format!("      remedy: {}\n", parts[0].1));
        } else {
            for (place, text) in parts {
                out.push_str(&format!("      {place}: {text}\n"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_the_worst_in_its_code_and_last_in_its_text() {
        let fail = Finding::fail("b", "seen", "bad", Remedy::sysctl("a.b", 5));
        let warn = Finding::warn("c", "seen", "meh", Remedy::everywhere("do it"));
        let pass = Finding::pass("d", "fine");
        let of = |findings: &[&Finding]| Report { findings: findings.iter().copied().cloned().collect() };
        assert_eq!(of(&[&pass]).exit_code(), 0);
        assert_eq!(of(&[&warn, &pass]).exit_code(), 1);
        let report = of(&[&fail, &warn, &pass]);
        assert_eq!(report.exit_code(), 2);
        let text = report.text();
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word} in\n{text}"));
        assert!(at("PASS  d") < at("WARN  c") && at("WARN  c") < at("FAIL  b"), "{text}");
        assert!(text.contains("      remedy: do it\n") && text.contains("      Kubernetes: on every node: "), "{text}");
        assert!(text.ends_with("1 passed, 1 warnings, 1 failures\n"));
        assert!(report.failures().starts_with("FAIL  b") && !report.failures().contains("WARN"));
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(json["exit"], 2);
        assert_eq!(json["findings"][0]["remedy"]["host"], fail.remedy.expect("one").host);
        assert!(json["findings"][2]["remedy"].is_null());
    }
}
