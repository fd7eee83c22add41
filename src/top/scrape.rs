//! Pure: the text of /metrics to samples, and two of them to what happens per second.

use crate::telemetry::names::{self, Family};
use serde_json::{Value, json};

/// One sample.
#[derive(Clone, PartialEq, Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// One scrape.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scrape {
    samples: Vec<Sample>,
}

impl Scrape {
    /// Reads the text format; lines that are none of it are left out.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// Whether it is one of ringway's.
    pub fn is_ours(&self) -> bool {
        self.samples.iter().any(|sample| sample.name == names::BUILD_INFO.name)
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(label, value): &(&str, &str)| sample.label(label) == Some(value);
            sample.name == name && labels.iter().all(has)
        })
    }

    fn sum(&self, family: &Family, labels: &[(&str, &str)]) -> f64 {
        self.matching(family.name, labels).map(|sample| sample.value).sum()
    }

    /// The values of a label, in the order they were told.
    fn values(&self, name: &str, label: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for sample in self.matching(name, &[]) {
            let Some(value) = sample.label(label) else { continue };
            if !all.iter().any(|seen| seen == value) {
                all.push(value.to_owned());
            }
        }
        all
    }
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = series.split_once('{') else {
        return Some(Sample { name: series.to_owned(), labels: Vec::new(), value });
    };
    let mut labels = Vec::new();
    let mut rest = rest.strip_suffix('}')?;
    while let Some((label, tail)) = rest.split_once("=\"") {
        let (mut text, mut end, mut letters) = (String::new(), tail.len(), tail.char_indices());
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => text.extend(letters.next().map(|(_, next)| if next == 'n' { '\n' } else { next })),
                '"' => {
                    end = at + 1;
                    break;
                }
                other => text.push(other),
            }
        }
        labels.push((label.trim_start_matches(',').to_owned(), text));
        rest = &tail[end..];
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

/// One core.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Core {
    /// Index.
    pub core: String,
    /// CPU it is pinned to.
    pub cpu: String,
    /// Share of wall time its loop worked, 0 to 1.
    pub busy: f64,
    /// CPUs used, its kernel workers included.
    pub cpus: f64,
    /// Requests per second.
    pub requests: f64,
    /// Bytes per second to clients.
    pub sent: f64,
    /// Connections now.
    pub connections: f64,
    /// Ring operations in flight now.
    pub inflight: f64,
}

/// Something with a name and a figure.
pub type Named = (String, f64);

/// One origin.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Origin {
    /// Its URL.
    pub name: String,
    /// It is asked.
    pub healthy: bool,
    /// Connections in use now.
    pub busy: f64,
    /// Kept connections now.
    pub idle: f64,
    /// Requests per second.
    pub requests: f64,
    /// Failed exchanges per second.
    pub errors: f64,
    /// Body bytes per second.
    pub received: f64,
}

/// One network interface.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Bytes per second out.
    pub sent: f64,
    /// Bytes per second in.
    pub received: f64,
}

/// What happens, per second where it is a rate.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct View {
    /// Version of the server.
    pub version: String,
    /// Seconds between the two scrapes.
    pub seconds: f64,
    /// /readyz says yes.
    pub ready: bool,
    /// It drains.
    pub draining: bool,
    /// Every core.
    pub cores: Vec<Core>,
    /// Bytes per second by engine.
    pub engines: Vec<Named>,
    /// Connections by state, now.
    pub connections: Vec<Named>,
    /// Accepted per second.
    pub accepted: f64,
    /// Not served, per second.
    pub rejected: f64,
    /// Limits of the configuration met, per second.
    pub limits: f64,
    /// Origins.
    pub origins: Vec<Origin>,
    /// Requests to cached routes per second by result.
    pub cache: Vec<Named>,
    /// Bytes stored now.
    pub cache_size: f64,
    /// Bytes that may be stored; 0 without a cache.
    pub cache_capacity: f64,
    /// Objects stored now.
    pub cache_objects: f64,
    /// Interfaces; empty where the server does not tell of any.
    pub nics: Vec<Nic>,
}

/// The family whose name ends so, where this server has one.
fn ending(end: &str) -> Option<&'static Family> {
    names::ALL.iter().find(|family| family.name.ends_with(end))
}

impl View {
    /// From two scrapes `seconds` apart; counters that went back (a restart) count from zero.
    pub fn between(old: &Scrape, new: &Scrape, seconds: f64) -> Self {
        let rate = |family: &Family, labels: &[(&str, &str)]| {
            let (before, now) = (old.sum(family, labels), new.sum(family, labels));
            let grown = if now >= before { now - before } else { now };
            if seconds > 0.0 { grown / seconds } else { 0.0 }
        };
        let by = |family: &'static Family, label: &'static str| {
            new.values(family.name, label).into_iter().map(move |value| (family, label, value))
        };
        let cores = new.matching(names::CORE_INFO.name, &[]).map(|info| {
            let core = info.label("core").unwrap_or_default();
            let only = [("core", core)];
            let busy = rate(&names::CORE_LOOP, &[("core", core), ("state", "busy")]);
            let all = rate(&names::CORE_LOOP, &only);
            Core {
                core: core.to_owned(),
                cpu: info.label("cpu").unwrap_or_default().to_owned(),
                busy: if all > 0.0 { busy / all } else { 0.0 },
                cpus: rate(&names::CORE_CPU, &only),
                requests: rate(&names::CORE_REQUESTS, &only),
                sent: rate(&names::SENT_BYTES, &only),
                connections: new.sum(&names::CONNECTIONS, &only),
                inflight: new.sum(&names::RING_INFLIGHT, &only),
            }
        });
        let origins = new.values(names::UPSTREAM_HEALTHY.name, "upstream").into_iter().map(|name| {
            let only = [("upstream", name.as_str())];
            let state = |state| new.sum(&names::UPSTREAM_CONNECTIONS, &[("upstream", name.as_str()), ("state", state)]);
            Origin {
                healthy: new.sum(&names::UPSTREAM_HEALTHY, &only) > 0.0,
                busy: state("busy"),
                idle: state("idle"),
                requests: rate(&names::UPSTREAM_REQUESTS, &only),
                errors: rate(&names::UPSTREAM_ERRORS, &only),
                received: rate(&names::UPSTREAM_RECEIVED, &only),
                name: name.clone(),
            }
        });
        let nics = ending("nic_transmit_bytes_total").zip(ending("nic_receive_bytes_total")).map(|(sent, received)| {
            let names = new.values(sent.name, "device").into_iter();
            let nic = |name: String| Nic {
                sent: rate(sent, &[("device", &name)]),
                received: rate(received, &[("device", &name)]),
                name,
            };
            names.map(nic).collect()
        });
        let build = new.matching(names::BUILD_INFO.name, &[]).next();
        Self {
            version: build.and_then(|info| info.label("version")).unwrap_or("?").to_owned(),
            seconds,
            ready: new.sum(&names::READY, &[]) > 0.0,
            draining: new.sum(&names::DRAINING, &[]) > 0.0,
            cores: cores.collect(),
            engines: by(&names::SENT_BYTES, "engine")
                .map(|(family, label, value)| (value.clone(), rate(family, &[(label, &value)])))
                .collect(),
            connections: by(&names::CONNECTIONS, "state")
                .map(|(family, label, value)| (value.clone(), new.sum(family, &[(label, &value)])))
                .collect(),
            accepted: rate(&names::ACCEPTED, &[]),
            rejected: rate(&names::REJECTED, &[]),
            limits: rate(&names::LIMIT_HITS, &[]),
            origins: origins.collect(),
            cache: by(&names::CACHE_REQUESTS, "result")
                .map(|(family, label, value)| (value.clone(), rate(family, &[(label, &value)])))
                .collect(),
            cache_size: new.sum(&names::CACHE_SIZE, &[]),
            cache_capacity: new.sum(&names::CACHE_CAPACITY, &[]),
            cache_objects: new.sum(&names::CACHE_OBJECTS, &[]),
            nics: nics.unwrap_or_default(),
        }
    }

    /// Bytes per second to clients.
    pub fn sent(&self) -> f64 {
        self.cores.iter().map(|core| core.sent).sum()
    }

    /// Requests per second.
    pub fn requests(&self) -> f64 {
        self.cores.iter().map(|core| core.requests).sum()
    }

    /// For programs; bytes and seconds, rates per second.
    pub fn json(&self) -> Value {
        let named = |all: &[Named]| -> Value { all.iter().map(|(name, value)| (name.clone(), json!(value))).collect() };
        json!({
            "version": self.version, "seconds": self.seconds, "ready": self.ready, "draining": self.draining,
            "requests_per_second": self.requests(), "sent_bytes_per_second": self.sent(),
            "cores": self.cores.iter().map(|core| json!({
                "core": core.core, "cpu": core.cpu, "busy": core.busy, "cpus": core.cpus,
                "requests_per_second": core.requests, "sent_bytes_per_second": core.sent,
                "connections": core.connections, "inflight": core.inflight,
            })).collect::<Vec<_>>(),
            "engines_bytes_per_second": named(&self.engines),
            "connections": named(&self.connections), "accepted_per_second": self.accepted,
            "rejected_per_second": self.rejected, "limit_hits_per_second": self.limits,
            "origins": self.origins.iter().map(|origin| json!({
                "origin": origin.name, "healthy": origin.healthy, "busy": origin.busy, "idle": origin.idle,
                "requests_per_second": origin.requests, "errors_per_second": origin.errors,
                "received_bytes_per_second": origin.received,
            })).collect::<Vec<_>>(),
            "cache": {
                "requests_per_second": named(&self.cache), "size_bytes": self.cache_size,
                "capacity_bytes": self.cache_capacity, "objects": self.cache_objects,
            },
            "nics": self.nics.iter().map(|nic| json!({
                "device": nic.name, "sent_bytes_per_second": nic.sent, "received_bytes_per_second": nic.received,
            })).collect::<Vec<_>>(),
        })
    }
}
