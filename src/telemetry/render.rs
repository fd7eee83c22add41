//! Tallies and samples to Prometheus text (format 0.0.4), in a stable order.
//!
//! Runs on the control thread only. Invariant: every family of `names::ALL` but the rare ones is written every time,
//! with every series at zero from the start, so that a rate never misses the first event.

use super::names::{self, Family, Group};
use super::nic::{Nic, parse_softnet};
use super::process::{Sample, parse_cpu_modes};
use super::tally::*;
use crate::config::Config;
use crate::shard::ShardPublic;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is rendered.
#[derive(Debug)]
pub struct View<'a> {
    /// The cores.
    pub shards: &'a [Arc<ShardPublic>],
    /// The configuration, for labels.
    pub config: &'a Config,
    /// Probed features.
    pub capabilities: &'a [(&'static str, bool)],
    /// The last sample of /proc.
    pub sample: &'a Sample,
    /// What /readyz says.
    pub ready: bool,
    /// A drain is in progress.
    pub draining: bool,
    /// Drains that ran into their deadline.
    pub drain_timeouts: u64,
    /// Name and health of every origin, in the order of the tallies' rows.
    pub origins: &'a [(String, bool)],
    /// The cache's own counts, where there is one.
    pub cache: Option<&'a CacheCounts>,
    /// Network interfaces.
    pub nics: &'a [Nic],
    /// The text of /proc/net/softnet_stat.
    pub softnet: &'a str,
    /// Seconds that parts of this scrape took.
    pub collectors: &'a [(&'static str, f64)],
}

/// Text under way.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn into_string(self) -> String {
        self.0
    }

    /// HELP and TYPE of a family.
    pub fn family(&mut self, family: &Family) {
        let Family { name, kind, help, .. } = family;
        // Writing into a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.text());
    }

    /// One sample.
    pub fn line(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        self.0.push_str(suffix);
        if !labels.is_empty() {
            let mut open = '{';
            for (label, text) in labels {
                self.0.push(open);
                open = ',';
                self.0.push_str(label);
                self.0.push_str("=\"");
                for letter in text.chars() {
                    match letter {
                        '\\' => self.0.push_str("\\\\"),
                        '"' => self.0.push_str("\\\""),
                        '\n' => self.0.push_str("\\n"),
                        other => self.0.push(other),
                    }
                }
                self.0.push('"');
            }
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// A family of one sample.
    pub fn one(&mut self, family: &Family, value: impl std::fmt::Display) {
        self.family(family);
        self.line(family.name, "", &[], value);
    }

    /// A histogram summed over several; bounds are divided by `unit`.
    fn histogram<'b, const N: usize>(
        &mut self,
        family: &Family,
        labels: &[(&str, &str)],
        parts: impl Iterator<Item = &'b Buckets<N>>,
        unit: f64,
    ) {
        let (mut counts, mut sum, mut bounds) = ([0u64; 64], 0.0, None);
        for part in parts {
            bounds = Some(part.bounds());
            sum += part.sum() as f64 / unit;
            for (slot, count) in counts.iter_mut().zip(part.counts()) {
                *slot += count;
            }
        }
        let Some(bounds) = bounds else { return };
        let mut all = 0;
        for (at, count) in counts[..=N].iter().enumerate() {
            all += count;
            let le = bounds.get(at).map_or("+Inf".to_owned(), |bound| (*bound as f64 / unit).to_string());
            let mut with = labels.to_vec();
            with.push(("le", &le));
            self.line(family.name, "_bucket", &with, all);
        }
        self.line(family.name, "_sum", labels, sum);
        self.line(family.name, "_count", labels, all);
    }
}

/// The text of a scrape: these groups of families.
pub fn render(view: &View<'_>, groups: &[Group]) -> String {
    let mut text = Text(String::with_capacity(64 << 10));
    for group in Group::ALL.iter().filter(|group| groups.contains(group)) {
        match group {
            Group::Identity => identity(&mut text, view),
            Group::Core => cores(&mut text, view),
            Group::Ring => ring(&mut text, view),
            Group::Engine => engines(&mut text, view),
            Group::Connection => connections(&mut text, view),
            Group::Http => http(&mut text, view),
            Group::File => files(&mut text, view),
            Group::Upstream => upstream(&mut text, view),
            Group::Cache => cache(&mut text, view),
            Group::Nic => nics(&mut text, view),
            Group::Process => process(&mut text, view),
            // Those come from the facade's recorder.
            Group::Events => {}
            // Those are another process's: blast or sink with --metrics.
            Group::Tester => {}
        }
    }
    text.0
}

fn identity(text: &mut Text, view: &View<'_>) {
    text.family(&names::BUILD_INFO);
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    text.line(names::BUILD_INFO.name, "", &[("version", env!("CARGO_PKG_VERSION")), ("target", &target)], 1);
    text.family(&names::CAPABILITY);
    for (name, on) in view.capabilities {
        text.line(names::CAPABILITY.name, "", &[("capability", name)], u8::from(*on));
    }
    text.one(&names::READY, u8::from(view.ready));
    text.one(&names::DRAINING, u8::from(view.draining));
    text.family(&names::CORE_INFO);
    for shard in view.shards {
        let labels = [("core", shard.core.to_string()), ("cpu", shard.cpu.to_string())];
        text.line(names::CORE_INFO.name, "", &[(labels[0].0, &labels[0].1), (labels[1].0, &labels[1].1)], 1);
    }
    text.one(&names::MEMLOCK_LIMIT, view.sample.process.memlock.map_or(-1, |bytes| bytes as i64));
}

/// One line per origin, all cores together.
fn per_origin(text: &mut Text, view: &View<'_>, family: &Family, read: impl Fn(&OriginTally) -> u64) {
    text.family(family);
    for (at, (name, _)) in view.origins.iter().enumerate() {
        let sum: u64 = view.shards.iter().filter_map(|shard| shard.tally.origins.get(at)).map(&read).sum();
        text.line(family.name, "", &[("upstream", name)], sum);
    }
}

/// One line per origin and label value, all cores together.
fn per_origin_by(
    text: &mut Text,
    view: &View<'_>,
    family: &Family,
    label: &str,
    values: &[&str],
    read: impl Fn(&OriginTally, usize) -> u64,
) {
    text.family(family);
    for (at, (name, _)) in view.origins.iter().enumerate() {
        for (value, word) in values.iter().enumerate() {
            let rows = view.shards.iter().filter_map(|shard| shard.tally.origins.get(at));
            let sum: u64 = rows.map(|row| read(row, value)).sum();
            text.line(family.name, "", &[("upstream", name), (label, word)], sum);
        }
    }
}

fn upstream(text: &mut Text, view: &View<'_>) {
    per_origin_by(text, view, &names::UPSTREAM_CONNECTIONS, "state", &["idle", "busy", "connecting"], |row, at| {
        [&row.idle, &row.busy, &row.connecting][at].get()
    });
    let results = labels(ConnectResult::ALL, ConnectResult::label);
    per_origin_by(text, view, &names::UPSTREAM_CONNECTS, "result", &results, |row, at| row.connects[at].get());
    per_origin(text, view, &names::UPSTREAM_REUSES, |row| row.reuses.get());
    let codes = labels(UpstreamCode::ALL, UpstreamCode::label);
    per_origin_by(text, view, &names::UPSTREAM_REQUESTS, "code", &codes, |row, at| row.requests[at].get());
    let reasons = labels(UpstreamError::ALL, UpstreamError::label);
    per_origin_by(text, view, &names::UPSTREAM_ERRORS, "reason", &reasons, |row, at| row.errors[at].get());
    per_origin(text, view, &names::UPSTREAM_RETRIES, |row| row.retries.get());
    for (family, read) in [
        (&names::UPSTREAM_TTFB, (|row| &row.ttfb) as fn(&OriginTally) -> &Buckets<17>),
        (&names::UPSTREAM_POOL_WAIT, |row| &row.pool_wait),
    ] {
        text.family(family);
        for (at, (name, _)) in view.origins.iter().enumerate() {
            let rows = view.shards.iter().filter_map(|shard| shard.tally.origins.get(at)).map(read);
            text.histogram(family, &[("upstream", name)], rows, 1e9);
        }
    }
    per_origin(text, view, &names::UPSTREAM_RECEIVED, |row| row.received.get());
    text.family(&names::UPSTREAM_HEALTHY);
    for (name, healthy) in view.origins {
        text.line(names::UPSTREAM_HEALTHY.name, "", &[("upstream", name), ("peer", name)], u8::from(*healthy));
    }
}

fn cache(text: &mut Text, view: &View<'_>) {
    let results = labels(CacheResult::ALL, CacheResult::label);
    per_core_by(text, view, &names::CACHE_REQUESTS, "result", &results, |shard, at| {
        shard.tally.cache_requests[at].get()
    });
    per_core_by(text, view, &names::CACHE_SERVED, "result", &results, |shard, at| shard.tally.cache_served[at].get());
    per_core(text, view, &names::CACHE_FILL_BYTES, |shard| shard.tally.cache_fill_bytes.get());
    let results = labels(FillResult::ALL, FillResult::label);
    per_core_by(text, view, &names::CACHE_FILLS, "result", &results, |shard, at| shard.tally.cache_fills[at].get());
    per_core(text, view, &names::CACHE_IN_FLIGHT, |shard| shard.tally.cache_fills_in_flight.get());
    per_core(text, view, &names::CACHE_WAITERS, |shard| shard.tally.cache_waiters.get());
    let none = CacheCounts::default();
    let counts = view.cache.unwrap_or(&none);
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    text.one(&names::CACHE_SIZE, read(&counts.size_bytes));
    text.one(&names::CACHE_CAPACITY, read(&counts.capacity_bytes));
    text.one(&names::CACHE_OBJECTS, read(&counts.objects));
    text.family(&names::CACHE_EVICTIONS);
    for reason in Eviction::ALL {
        let count = read(&counts.evictions[*reason as usize]);
        text.line(names::CACHE_EVICTIONS.name, "", &[("reason", reason.label())], count);
    }
    text.family(&names::CACHE_STORE_FAILURES);
    for reason in StoreFailure::ALL {
        let count = read(&counts.store_failures[*reason as usize]);
        text.line(names::CACHE_STORE_FAILURES.name, "", &[("reason", reason.label())], count);
    }
    text.one(&names::CACHE_VERIFIED, read(&counts.verified));
    text.one(&names::CACHE_VERIFY_FAILURES, read(&counts.verify_failures));
}

/// One line per core.
fn per_core<T: std::fmt::Display>(
    text: &mut Text,
    view: &View<'_>,
    family: &Family,
    value: impl Fn(&ShardPublic) -> T,
) {
    text.family(family);
    for shard in view.shards {
        text.line(family.name, "", &[("core", &shard.core.to_string())], value(shard));
    }
}

/// One line per core and label value.
fn per_core_by<T: std::fmt::Display>(
    text: &mut Text,
    view: &View<'_>,
    family: &Family,
    label: &str,
    values: &[&str],
    value: impl Fn(&ShardPublic, usize) -> T,
) {
    text.family(family);
    for shard in view.shards {
        let core = shard.core.to_string();
        for (at, name) in values.iter().enumerate() {
            text.line(family.name, "", &[("core", &core), (label, name)], value(shard, at));
        }
    }
}

/// One line per label value, summed over cores.
fn summed(
    text: &mut Text,
    view: &View<'_>,
    family: &Family,
    label: &str,
    values: &[&str],
    cell: impl Fn(&Tally, usize) -> u64,
) {
    text.family(family);
    for (at, name) in values.iter().enumerate() {
        let sum: u64 = view.shards.iter().map(|shard| cell(&shard.tally, at)).sum();
        text.line(family.name, "", &[(label, name)], sum);
    }
}

fn labels<T: Copy>(all: &[T], label: impl Fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().map(|value| label(*value)).collect()
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn cores(text: &mut Text, view: &View<'_>) {
    text.family(&names::SENT_BYTES);
    for shard in view.shards {
        let core = shard.core.to_string();
        let name = names::SENT_BYTES.name;
        for engine in Engine::ALL {
            let labels = [("core", core.as_str()), ("engine", engine.label()), ("part", "body")];
            text.line(name, "", &labels, shard.tally.body_bytes[*engine as usize].get());
        }
        let labels = [("core", core.as_str()), ("engine", Engine::Send.label()), ("part", "head")];
        text.line(name, "", &labels, shard.tally.head_bytes.get());
    }
    per_core_by(text, view, &names::RECEIVED_BYTES, "source", &["client"], |shard, _| shard.tally.received_bytes.get());
    per_core(text, view, &names::CORE_REQUESTS, |shard| shard.tally.requests.get());
    let times = |shard: &ShardPublic| view.sample.cores.get(shard.core).copied().unwrap_or_default();
    text.family(&names::CORE_CPU);
    for shard in view.shards {
        let core = shard.core.to_string();
        let times = times(shard);
        for (thread, mode, value) in [
            ("worker", "user", times.thread.user),
            ("worker", "system", times.thread.system),
            ("iowq", "user", times.workers.user),
            ("iowq", "system", times.workers.system),
        ] {
            let labels = [("core", core.as_str()), ("thread", thread), ("mode", mode)];
            text.line(names::CORE_CPU.name, "", &labels, value);
        }
    }
    per_core_by(text, view, &names::CORE_LOOP, "state", &["busy", "wait"], |shard, at| {
        seconds([&shard.tally.loop_busy_ns, &shard.tally.loop_wait_ns][at].get())
    });
    text.family(&names::CORE_LOOP_DURATION);
    let all = || view.shards.iter().map(|shard| &*shard.tally);
    text.histogram(&names::CORE_LOOP_DURATION, &[], all().map(|tally| &tally.loop_turn), 1e9);
    per_core(text, view, &names::CORE_LAST_LOOP, |shard| shard.tally.last_turn_unix_ms.get() as f64 / 1e3);
    per_core(text, view, &names::CORE_RUN_DELAY, |shard| times(shard).thread.run_delay);
    per_core_by(text, view, &names::CORE_SWITCHES, "kind", &["voluntary", "involuntary"], |shard, at| {
        [times(shard).thread.voluntary, times(shard).thread.involuntary][at]
    });
    text.family(&names::HOST_CPU);
    for cpu in cpus(view) {
        for (mode, value) in parse_cpu_modes(&view.sample.stat, cpu).into_iter().flatten() {
            text.line(names::HOST_CPU.name, "", &[("cpu", &cpu.to_string()), ("mode", mode)], value);
        }
    }
}

fn ring(text: &mut Text, view: &View<'_>) {
    per_core(text, view, &names::RING_SQES, |shard| shard.tally.ring_sqes.get());
    per_core(text, view, &names::RING_CQES, |shard| shard.tally.ring_cqes.get());
    per_core_by(text, view, &names::RING_ENTERS, "kind", &["submit", "wait"], |shard, at| {
        [&shard.tally.ring_enters_submit, &shard.tally.ring_enters_wait][at].get()
    });
    per_core(text, view, &names::RING_INFLIGHT, |shard| shard.tally.ring_inflight.get());
    text.family(&names::RING_BATCH);
    let all = || view.shards.iter().map(|shard| &*shard.tally);
    text.histogram(&names::RING_BATCH, &[], all().map(|tally| &tally.ring_batch), 1.0);
    per_core(text, view, &names::RING_OVERFLOWS, |shard| shard.tally.ring_overflows.get());
    per_core(text, view, &names::RING_SQ_FULL, |shard| shard.tally.ring_sq_full.get());
    let errnos = labels(RingErrno::ALL, RingErrno::label);
    per_core_by(text, view, &names::RING_ERRORS, "errno", &errnos, |shard, at| shard.tally.ring_errors[at].get());
    per_core(text, view, &names::RING_WORKERS, |shard| {
        view.sample.cores.get(shard.core).map_or(0, |times| times.alive)
    });
    per_core(text, view, &names::RING_BUFFERS, |shard| shard.tally.ring_buffers_available.get());
    per_core(text, view, &names::RING_ORPHANS, |shard| shard.tally.ring_orphans.get());
}

fn engines(text: &mut Text, view: &View<'_>) {
    let results = labels(ZcResult::ALL, ZcResult::label);
    per_core_by(text, view, &names::ZC_SENDS, "result", &results, |shard, at| shard.tally.zc_sends[at].get());
    per_core_by(text, view, &names::ZC_BYTES, "result", &results, |shard, at| shard.tally.zc_bytes[at].get());
    per_core(text, view, &names::ZC_PENDING, |shard| shard.tally.zc_pending_bytes.get());
    text.family(&names::ZC_NOTIFY);
    let all = || view.shards.iter().map(|shard| &*shard.tally);
    text.histogram(&names::ZC_NOTIFY, &[], all().map(|tally| &tally.zc_notify), 1e9);
    text.family(&names::FALLBACKS);
    for from in Engine::ALL {
        for to in Engine::ALL.iter().filter(|to| *to != from) {
            for reason in FallbackReason::ALL {
                let cell = |tally: &Tally| tally.fallbacks[*from as usize][*to as usize][*reason as usize].get();
                let labels = [("from", from.label()), ("to", to.label()), ("reason", reason.label())];
                text.line(names::FALLBACKS.name, "", &labels, all().map(cell).sum::<u64>());
            }
        }
    }
    text.family(&names::SPLICES);
    for shard in view.shards {
        let core = shard.core.to_string();
        for stage in SpliceStage::ALL {
            for result in SpliceResult::ALL {
                let labels = [("core", core.as_str()), ("stage", stage.label()), ("result", result.label())];
                let value = shard.tally.splices[*stage as usize][*result as usize].get();
                text.line(names::SPLICES.name, "", &labels, value);
            }
        }
    }
    per_core(text, view, &names::PIPE_DISCARDED, |shard| shard.tally.pipe_discarded_bytes.get());
    let states = ["idle", "busy"];
    per_core_by(text, view, &names::PIPES, "state", &states, |shard, at| {
        [&shard.tally.pipes_idle, &shard.tally.pipes_busy][at].get()
    });
    per_core(text, view, &names::PIPE_CAPACITY, |shard| shard.tally.pipe_capacity_bytes.get());
    let failures = labels(PipeFailure::ALL, PipeFailure::label);
    per_core_by(text, view, &names::PIPE_FAILURES, "reason", &failures, |shard, at| {
        shard.tally.pipe_failures[at].get()
    });
    per_core_by(text, view, &names::BUFFERS, "state", &states, |shard, at| {
        [&shard.tally.buffers_idle, &shard.tally.buffers_busy][at].get()
    });
    per_core(text, view, &names::BUFFER_POOL, |shard| shard.tally.buffer_pool_bytes.get());
    let engines = labels(Engine::ALL, Engine::label);
    per_core_by(text, view, &names::QUANTA, "engine", &engines, |shard, at| shard.tally.quanta[at].get());
    per_core_by(text, view, &names::QUANTUM_SECONDS, "engine", &engines, |shard, at| {
        seconds(shard.tally.quantum_ns[at].get())
    });
    per_core_by(text, view, &names::QUANTA_SHORT, "engine", &engines, |shard, at| shard.tally.quanta_short[at].get());
    per_core_by(text, view, &names::QUANTA_FULL, "engine", &engines, |shard, at| shard.tally.quanta_full[at].get());
    per_core(text, view, &names::SOCKET_WAITS, |shard| shard.tally.socket_waits.get());
}

fn connections(text: &mut Text, view: &View<'_>) {
    let states = labels(ConnState::ALL, ConnState::label);
    per_core_by(text, view, &names::CONNECTIONS, "state", &states, |shard, at| shard.tally.connections[at].get());
    let listeners: Vec<String> = view.config.listen.iter().take(LISTENERS_MAX).map(ToString::to_string).collect();
    let names: Vec<&str> = (0..listeners.len())
        .map(|at| if at + 1 == LISTENERS_MAX && view.config.listen.len() > at + 1 { "other" } else { &listeners[at] })
        .collect();
    text.family(&names::ACCEPTED);
    for shard in view.shards {
        let core = shard.core.to_string();
        // Two listeners of port 0 have one label: their sum.
        for (at, name) in names.iter().enumerate().filter(|(at, name)| !names[..*at].contains(name)) {
            let same = names.iter().enumerate().skip(at).filter(|(_, other)| other == &name);
            let sum: u64 = same.map(|(other, _)| shard.tally.accepted[other].get()).sum();
            text.line(names::ACCEPTED.name, "", &[("core", &core), ("listener", name)], sum);
        }
    }
    let closed = labels(CloseReason::ALL, CloseReason::label);
    per_core_by(text, view, &names::CLOSED, "reason", &closed, |shard, at| shard.tally.closed[at].get());
    let rejected = labels(RejectReason::ALL, RejectReason::label);
    per_core_by(text, view, &names::REJECTED, "reason", &rejected, |shard, at| shard.tally.rejected[at].get());
    let limits = labels(Limit::ALL, Limit::label);
    summed(text, view, &names::LIMIT_HITS, "limit", &limits, |tally, at| {
        // The deadline of a drain is the control thread's to notice; it is counted once, with the first core.
        let own = std::ptr::eq(tally, &*view.shards[0].tally) && at == Limit::DrainTimeout as usize;
        tally.limit_hits[at].get() + if own { view.drain_timeouts } else { 0 }
    });
}

fn http(text: &mut Text, view: &View<'_>) {
    let rows = view.shards.first().map_or(0, |shard| shard.tally.routes.len());
    let routes: Vec<String> = (0..rows)
        .map(|at| match view.config.routes.get(at) {
            Some(_) if at + 1 == ROUTES_MAX && view.config.routes.len() > ROUTES_MAX => "other".to_owned(),
            Some(route) => format!("{}{}", route.host.as_deref().unwrap_or(""), route.prefix),
            None => "other".to_owned(),
        })
        .collect();
    let all = |at: usize| view.shards.iter().map(move |shard| &shard.tally.routes[at]);
    text.family(&names::HTTP_REQUESTS);
    for (at, route) in routes.iter().enumerate() {
        for method in MethodLabel::ALL {
            for code in CodeClass::ALL {
                let sum: u64 = all(at).map(|row| row.requests[*method as usize][*code as usize].get()).sum();
                let labels = [("route", route.as_str()), ("method", method.label()), ("code", code.label())];
                text.line(names::HTTP_REQUESTS.name, "", &labels, sum);
            }
        }
    }
    per_core(text, view, &names::HTTP_IN_FLIGHT, |shard| shard.tally.requests_in_flight.get());
    text.family(&names::HTTP_TTFB);
    for (at, route) in routes.iter().enumerate() {
        text.histogram(&names::HTTP_TTFB, &[("route", route)], all(at).map(|row| &row.ttfb), 1e9);
    }
    text.family(&names::HTTP_TRANSFER);
    for (at, route) in routes.iter().enumerate() {
        text.histogram(&names::HTTP_TRANSFER, &[("route", route)], all(at).map(|row| &row.transfer), 1e9);
    }
    text.family(&names::HTTP_ABORTED);
    for (at, route) in routes.iter().enumerate() {
        for reason in AbortReason::ALL {
            let sum: u64 = all(at).map(|row| row.aborted[*reason as usize].get()).sum();
            text.line(names::HTTP_ABORTED.name, "", &[("route", route), ("reason", reason.label())], sum);
        }
    }
    text.family(&names::HTTP_RANGES);
    for (at, route) in routes.iter().enumerate() {
        for kind in RangeKind::ALL {
            let sum: u64 = all(at).map(|row| row.ranges[*kind as usize].get()).sum();
            text.line(names::HTTP_RANGES.name, "", &[("route", route), ("kind", kind.label())], sum);
        }
    }
    text.one(&names::LISTEN_OVERFLOWS, view.sample.listen_overflows);
}

fn files(text: &mut Text, view: &View<'_>) {
    let sources = labels(ReadSource::ALL, ReadSource::label);
    per_core_by(text, view, &names::FILE_READ_BYTES, "source", &sources, |shard, at| {
        shard.tally.file_read_bytes[at].get()
    });
    per_core_by(text, view, &names::FILE_READS, "source", &sources, |shard, at| shard.tally.file_reads[at].get());
    text.family(&names::FILE_READ_SECONDS);
    let all = || view.shards.iter().map(|shard| &*shard.tally);
    let cached = all().map(|tally| &tally.file_read_page_cache);
    text.histogram(&names::FILE_READ_SECONDS, &[("source", "page_cache")], cached, 1e9);
    let stored = all().map(|tally| &tally.file_read_storage);
    text.histogram(&names::FILE_READ_SECONDS, &[("source", "storage")], stored, 1e9);
    text.one(&names::STORAGE_READ, view.sample.process.storage_read);
    per_core(text, view, &names::OPEN_FILES, |shard| shard.tally.open_files.get());
    let lookups = labels(FileLookup::ALL, FileLookup::label);
    per_core_by(text, view, &names::FILE_LOOKUPS, "result", &lookups, |shard, at| shard.tally.file_lookups[at].get());
    let lookups = labels(ContentLookup::ALL, ContentLookup::label);
    per_core_by(text, view, &names::CONTENT_LOOKUPS, "result", &lookups, |shard, at| {
        shard.tally.content_lookups[at].get()
    });
    per_core(text, view, &names::CONTENT_BYTES, |shard| shard.tally.content_bytes.get());
    per_core(text, view, &names::CONTENT_OBJECTS, |shard| shard.tally.content_objects.get());
}

fn nics(text: &mut Text, view: &View<'_>) {
    text.family(&names::NIC_INFO);
    for nic in view.nics {
        let labels =
            [("device", &*nic.device), ("driver", &nic.driver), ("numa_node", &nic.numa_node), ("mtu", &nic.mtu)];
        text.line(names::NIC_INFO.name, "", &labels, 1);
    }
    for (family, read) in [
        (&names::NIC_SENT, (|nic| Some(nic.sent)) as fn(&Nic) -> Option<u64>),
        (&names::NIC_RECEIVED, |nic| Some(nic.received)),
        (&names::NIC_SPEED, |nic| nic.speed),
        (&names::NIC_SENT_DROPS, |nic| Some(nic.sent_drops)),
        (&names::NIC_RECEIVED_DROPS, |nic| Some(nic.received_drops)),
    ] {
        text.family(family);
        for nic in view.nics {
            if let Some(value) = read(nic) {
                text.line(family.name, "", &[("device", &nic.device)], value);
            }
        }
    }
    let rows: Vec<_> =
        cpus(view).into_iter().filter_map(|cpu| Some((cpu, parse_softnet(view.softnet, cpu)?))).collect();
    for (family, read) in
        [(&names::SOFTNET_SQUEEZED, (|row| row.1) as fn((u64, u64)) -> u64), (&names::SOFTNET_DROPPED, |row| row.0)]
    {
        text.family(family);
        for (cpu, row) in &rows {
            text.line(family.name, "", &[("cpu", &cpu.to_string())], read(*row));
        }
    }
}

/// The CPUs that carry cores, each once.
fn cpus(view: &View<'_>) -> std::collections::BTreeSet<usize> {
    view.shards.iter().map(|shard| shard.cpu).collect()
}

fn process(text: &mut Text, view: &View<'_>) {
    per_core_by(text, view, &names::LOG_RECORDS, "log", &["access"], |shard, _| shard.tally.log_written.get());
    text.family(&names::LOG_DROPPED);
    for shard in view.shards {
        let core = shard.core.to_string();
        for (reason, cell) in [("full", &shard.tally.log_dropped), ("write", &shard.tally.log_failed)] {
            let labels = [("core", core.as_str()), ("log", "access"), ("reason", reason)];
            text.line(names::LOG_DROPPED.name, "", &labels, cell.get());
        }
    }
    text.family(&names::COLLECTOR_SECONDS);
    for (name, value) in view.collectors {
        text.line(names::COLLECTOR_SECONDS.name, "", &[("collector", name)], value);
    }
    let process = &view.sample.process;
    text.one(&names::PROCESS_CPU, process.cpu);
    text.one(&names::PROCESS_RESIDENT, process.resident);
    text.one(&names::PROCESS_VIRTUAL, process.virtual_);
    text.one(&names::PROCESS_FDS, process.fds);
    text.one(&names::PROCESS_MAX_FDS, process.max_fds);
    text.one(&names::PROCESS_THREADS, process.threads);
    text.one(&names::PROCESS_START, process.start);
}

/// Whether every core accepts and none has ended.
pub fn all_ready(shards: &[Arc<ShardPublic>]) -> bool {
    shards.iter().all(|shard| shard.ready.load(Ordering::Acquire) && !shard.ended.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sayings;
    use crate::shard::mailbox::Mailbox;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicI32};

    fn sample_text() -> String {
        text_of(2, Group::ALL)
    }

    fn text_of(cores: usize, groups: &[Group]) -> String {
        let mut sayings = Sayings::default();
        sayings.source = Some("x".into());
        let config = sayings.understand(&[0, 1]).expect("good");
        let shards: Vec<_> = (0..cores)
            .map(|core| {
                Arc::new(ShardPublic {
                    core,
                    cpu: core,
                    tid: AtomicI32::new(0),
                    ready: AtomicBool::new(true),
                    ended: AtomicBool::new(false),
                    tally: Arc::new(Tally::with_origins(1, 1)),
                    mailbox: Mailbox::new(crate::sys::eventfd().expect("eventfd")),
                })
            })
            .collect();
        shards[0].tally.routes[0].ttfb.record(60_000);
        shards[1].tally.routes[0].ttfb.record(u64::MAX / 2);
        let row = |core: usize| format!("cpu{core} 1 1 1 1 1 1 1 1\n");
        let sample = Sample {
            cores: vec![Default::default(); cores],
            stat: (0..cores).map(row).collect(),
            ..Default::default()
        };
        let softnet = |core: usize| format!("0 1 2 0 0 0 0 0 0 0 0 0 {core:08x}\n");
        let began = std::time::Instant::now();
        let text = render(
            &View {
                shards: &shards,
                config: &config,
                capabilities: &[("splice", true)],
                sample: &sample,
                ready: true,
                draining: false,
                drain_timeouts: 3,
                origins: &[("a:1".to_owned(), true)],
                cache: None,
                nics: &[Nic { device: "eth0".to_owned(), speed: Some(125_000_000), ..Default::default() }],
                softnet: &(0..cores).map(softnet).collect::<String>(),
                collectors: &[("proc", 0.1)],
            },
            groups,
        );
        println!("{cores} cores: {} lines, {} bytes, {:?}", text.lines().count(), text.len(), began.elapsed());
        // The figure that counts is a release build's; one without optimisation takes some ten times that.
        let most = if cfg!(debug_assertions) { 500 } else { 20 };
        assert!(began.elapsed().as_millis() < most, "{cores} cores took {:?}", began.elapsed());
        text
    }

    #[test]
    fn many_cores_are_rendered_in_no_time() {
        let text = text_of(64, Group::ALL);
        assert!(text.contains("ringway_core_requests_total{core=\"63\"} 0\n"));
    }

    /// Family, label names without `le`, of each line.
    fn series(text: &str) -> Vec<(&'static Family, Vec<&str>)> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let name = &line[..line.find(['{', ' ']).expect("a value")];
                let is = |family: &&Family| match name.strip_prefix(family.name) {
                    Some("_bucket" | "_sum" | "_count") => family.kind == names::Type::Histogram,
                    rest => rest == Some(""),
                };
                let family = names::ALL.iter().find(is).unwrap_or_else(|| panic!("{name} is not in the table"));
                let labels = line[name.len()..].rsplit_once(' ').expect("a value").0.trim_matches(['{', '}']);
                let words = labels.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0));
                (family, words.filter(|word| *word != "le").collect())
            })
            .collect()
    }

    #[test]
    fn every_family_is_there_from_the_start_with_its_labels_and_no_other() {
        let text = sample_text();
        let series = series(&text);
        for family in names::ALL {
            let there = series.iter().any(|(other, _)| *other == family);
            let ours = !names::RARE.contains(family) && family.group != Group::Tester;
            assert_eq!(there, ours, "{}", family.name);
        }
        for (family, labels) in series {
            assert_eq!(labels, family.labels, "{}", family.name);
        }
        assert!(text.contains("ringway_limit_hits_total{limit=\"drain_timeout\"} 3\n"));
    }

    #[test]
    fn a_group_is_its_families_in_the_order_of_the_table() {
        // The tester renders its own.
        for group in Group::ALL.iter().filter(|group| **group != Group::Tester) {
            let text = text_of(2, &[*group]);
            let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
            let table = names::ALL.iter().filter(|family| family.group == *group && !names::RARE.contains(family));
            assert_eq!(types.collect::<Vec<_>>(), table.map(|family| family.name).collect::<Vec<_>>());
        }
    }

    #[test]
    fn buckets_are_cumulative_and_summed_over_cores() {
        let text = sample_text();
        assert!(text.contains("ringway_http_ttfb_seconds_bucket{route=\"/\",le=\"0.00005\"} 0\n"), "{text}");
        assert!(text.contains("ringway_http_ttfb_seconds_bucket{route=\"/\",le=\"0.0001\"} 1\n"));
        assert!(text.contains("ringway_http_ttfb_seconds_bucket{route=\"/\",le=\"10\"} 1\n"));
        assert!(text.contains("ringway_http_ttfb_seconds_bucket{route=\"/\",le=\"+Inf\"} 2\n"));
        assert!(text.contains("ringway_http_ttfb_seconds_count{route=\"/\"} 2\n"));
    }

    #[test]
    fn promtool_finds_nothing_to_say() {
        let child = std::process::Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: promtool_finds_nothing_to_say needs promtool");
            return;
        };
        child.stdin.take().expect("piped").write_all(sample_text().as_bytes()).expect("write");
        let done = child.wait_with_output().expect("promtool");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&[done.stdout, done.stderr].concat()));
    }
}
