//! What to write, and why; pure.
//!
//! Invariant: a change is only planned where the file's value means something else than what is wanted, so that a plan
//! made after its own application is empty.

use super::machine::{Machine, Nic, queue_of};
use std::collections::BTreeMap;

/// The settings with their reasons: the file that is also shipped as an example for /etc/sysctl.d.
const SETTINGS: &str = include_str!("../../deploy/sysctl/90-ringway.conf");
/// Flows that receive flow steering remembers, all queues together.
const FLOWS: u64 = 32_768;
/// Where they are told to the kernel.
const FLOWS_SETTING: &str = "net/core/rps_sock_flow_entries";

/// One file to write.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// Below the root.
    pub path: String,
    /// What it holds.
    pub from: String,
    /// What it shall hold.
    pub to: String,
    /// What it is good for.
    pub why: String,
}

/// Changes, and what cannot be done by writing files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order they are written.
    pub changes: Vec<Change>,
    /// For people.
    pub notes: Vec<String>,
}

/// A line of the settings: path below /proc/sys, value, reason.
struct Setting {
    name: String,
    value: String,
    why: String,
}

fn settings() -> Vec<Setting> {
    let (mut all, mut why): (Vec<Setting>, String) = (Vec::new(), String::new());
    let mut was_comment = false;
    for line in SETTINGS.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            if !was_comment {
                why.clear();
            }
            why.push_str(comment);
        } else if let Some((name, value)) = line.trim_start_matches('-').split_once('=') {
            let sentence = why.trim().split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned();
            let name = name.trim().replace('.', "/");
            all.push(Setting { name, value: value.trim().to_owned(), why: sentence });
        }
        was_comment = line.starts_with('#');
    }
    all
}

/// The settings a machine is asked for.
pub fn wanted_settings() -> Vec<String> {
    settings().into_iter().map(|setting| setting.name).chain([FLOWS_SETTING.to_owned()]).collect()
}

/// What a setting should be, given what it is; none: it is good.
fn better(name: &str, is: &str, wanted: &str) -> Option<String> {
    let numbers = |text: &str| text.split_whitespace().map(|word| word.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let value = match (name, numbers(is), numbers(wanted)) {
        // 1 admits a group, which somebody has chosen.
        ("kernel/io_uring_disabled", ..) if is != "2" => is.to_owned(),
        ("kernel/io_uring_disabled" | "net/ipv4/tcp_slow_start_after_idle" | "net/core/default_qdisc", ..) => {
            wanted.to_owned()
        }
        // Wider, at both ends.
        ("net/ipv4/ip_local_port_range", Some(is), Some(wanted)) if is.len() == 2 && wanted.len() == 2 => {
            format!("{} {}", is[0].min(wanted[0]), is[1].max(wanted[1]))
        }
        // Limits are raised and never lowered. 0 of this one means none.
        ("fs/pipe-user-pages-soft", ..) if is == "0" => is.to_owned(),
        (_, Some(is), Some(wanted)) if is.len() == wanted.len() => {
            let most: Vec<String> = is.iter().zip(&wanted).map(|(is, wanted)| is.max(wanted).to_string()).collect();
            most.join(" ")
        }
        // Not what this kernel has there.
        _ => return None,
    };
    (value != is).then_some(value)
}

/// CPUs as the kernel writes masks: words of 32 bits in hexadecimal, the highest first.
pub fn mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(1, |most| most / 32 + 1);
    let mut bits = vec![0u32; words];
    for cpu in cpus {
        bits[cpu / 32] |= 1 << (cpu % 32);
    }
    let mut text = format!("{:x}", bits[words - 1]);
    for word in bits[..words - 1].iter().rev() {
        text.push_str(&format!(",{word:08x}"));
    }
    text
}

/// Whether two texts are the same value to the kernel: leading zeros of masks and the spelling of lists aside.
pub fn same(path: &str, one: &str, other: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    if path.ends_with("_cpus") {
        let bare = |text: &str| text.replace(',', "").trim().trim_start_matches('0').to_ascii_lowercase();
        return bare(one) == bare(other);
    }
    if path.ends_with("_list") {
        let sorted = |text: &str| {
            let mut cpus = crate::config::parse_cpu_list(text.trim()).unwrap_or_default();
            cpus.sort_unstable();
            cpus
        };
        return sorted(one) == sorted(other);
    }
    words(one) == words(other)
}

/// The plan for a machine whose server runs on `cores`.
pub fn plan(machine: &Machine, cores: &[usize]) -> Plan {
    let mut plan = Plan::default();
    for setting in settings() {
        let Some(is) = machine.settings.get(&setting.name) else { continue };
        if let Some(to) = better(&setting.name, is, &setting.value) {
            plan.add(format!("proc/sys/{}", setting.name), is, to, &setting.why);
        }
    }
    let mut steered = false;
    for nic in &machine.nics {
        steered |= interface(&mut plan, nic, cores);
    }
    if steered && let Some(is) = machine.settings.get(FLOWS_SETTING) {
        let to = is.parse::<u64>().unwrap_or(0).max(FLOWS).to_string();
        plan.add(format!("proc/sys/{FLOWS_SETTING}"), is, to, "Flows that receive flow steering remembers");
    }
    if machine.irqbalance {
        let irqs: Vec<String> =
            machine.nics.iter().flat_map(|nic| &nic.irqs).map(|(irq, ..)| format!("--banirq={irq}")).collect();
        plan.notes.push(format!(
            "irqbalance runs and will move interrupts again: stop it, or start it with {}",
            irqs.join(" ")
        ));
    }
    for nic in &machine.nics {
        let name = &nic.name;
        plan.notes.push(format!(
            "{name}: what exists keeps its queueing discipline; where `tc qdisc show dev {name}` has no fq and congestion \
             control is bbr: tc qdisc replace dev {name} root fq"
        ));
        plan.notes.push(format!(
            "{name}: no files for these, look with ethtool: -k (tso, gso, gro on), -g (rings at their maximum), \
             -c (adaptive-rx on), -l (as many queues as cores: {})",
            cores.len()
        ));
    }
    plan
}

impl Plan {
    fn add(&mut self, path: String, from: &str, to: String, why: &str) {
        if !same(&path, from, &to) {
            self.changes.push(Change { path, from: from.to_owned(), to, why: why.to_owned() });
        }
    }
}

/// Plans for an interface; true: packets are steered by flow.
fn interface(plan: &mut Plan, nic: &Nic, cores: &[usize]) -> bool {
    if cores.is_empty() {
        return false;
    }
    let queues = format!("sys/class/net/{}/queues", nic.name);
    for (irq, action, is) in &nic.irqs {
        let core = cores[queue_of(action).unwrap_or_default() % cores.len()];
        let why = format!("{action}: one core answers each queue of {}", nic.name);
        plan.add(format!("proc/irq/{irq}/smp_affinity_list"), is, core.to_string(), &why);
    }
    // Cores beyond the queues share them; queues beyond the cores are shared out as well.
    let share = |at: usize, count: usize| -> Vec<usize> {
        if count >= cores.len() {
            return vec![cores[at % cores.len()]];
        }
        cores.iter().copied().enumerate().filter(|(core, _)| core % count == at).map(|(_, cpu)| cpu).collect()
    };
    if nic.xps.len() > 1 {
        for (at, is) in nic.xps.iter().enumerate() {
            let why = "A core sends through its own queue, without the others' lock";
            plan.add(format!("{queues}/tx-{at}/xps_cpus"), is, mask(&share(at, nic.xps.len())), why);
        }
    }
    let spread = !nic.rps.is_empty() && nic.rps.len() < cores.len();
    for (at, is) in nic.rps.iter().enumerate() {
        let (cpus, why) = if spread {
            (share(at, nic.rps.len()), "Fewer queues than cores: their packets are spread over the cores in software")
        } else {
            (Vec::new(), "A queue for each core: spreading in software would only cost")
        };
        plan.add(format!("{queues}/rx-{at}/rps_cpus"), is, mask(&cpus), why);
    }
    let flows = if spread { FLOWS / nic.rps.len() as u64 } else { 0 };
    for (at, is) in nic.flows.iter().enumerate() {
        let why = "Steers a connection's packets to the core that reads it";
        plan.add(format!("{queues}/rx-{at}/rps_flow_cnt"), is, flows.to_string(), why);
    }
    spread && !nic.flows.is_empty()
}

/// The plan as people read it.
pub fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for change in &plan.changes {
        // Said once: queues repeat theirs.
        if *reasons.entry(&change.why).and_modify(|times| *times += 1).or_insert(1) == 1 {
            text.push_str(&format!("# {}\n", change.why));
        }
        text.push_str(&format!("/{}: {} -> {}\n", change.path, change.from, change.to));
    }
    if plan.changes.is_empty() {
        text.push_str("nothing to change\n");
    }
    for note in &plan.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_never_lowered() {
        for (name, is, wanted, to) in [
            ("net/core/somaxconn", "4096", "16384", Some("16384")),
            ("net/core/somaxconn", "65535", "16384", None),
            ("net/ipv4/tcp_wmem", "4096 16384 4194304", "4096 65536 16777216", Some("4096 65536 16777216")),
            ("net/ipv4/tcp_wmem", "4096 99999 99999999", "4096 65536 16777216", None),
            ("net/ipv4/ip_local_port_range", "32768 60999", "10240 65535", Some("10240 65535")),
            ("net/ipv4/ip_local_port_range", "1024 65000", "10240 65535", Some("1024 65535")),
            ("net/core/default_qdisc", "pfifo_fast", "fq", Some("fq")),
            ("net/core/default_qdisc", "fq", "fq", None),
            ("net/ipv4/tcp_slow_start_after_idle", "1", "0", Some("0")),
            ("kernel/io_uring_disabled", "2", "0", Some("0")),
            ("kernel/io_uring_disabled", "1", "0", None),
            ("fs/pipe-user-pages-soft", "0", "262144", None),
            ("net/core/somaxconn", "many", "16384", None),
        ] {
            assert_eq!(better(name, is, wanted).as_deref(), to, "{name} {is}");
        }
    }

    #[test]
    fn every_setting_has_a_reason() {
        let all = settings();
        assert!(all.len() > 10, "the file is read");
        for setting in all {
            assert!(setting.why.len() > 20 && !setting.why.contains('='), "{}: {}", setting.name, setting.why);
            assert!(!setting.name.contains(' ') && !setting.value.is_empty());
        }
    }

    #[test]
    fn masks_are_those_of_the_kernel() {
        assert_eq!([mask(&[]), mask(&[0]), mask(&[1, 3]), mask(&[4, 5])], ["0", "1", "a", "30"]);
        assert_eq!([mask(&[31]), mask(&[32]), mask(&[0, 64])], ["80000000", "1,00000000", "1,00000000,00000001"]);
        assert!(same("x/rps_cpus", "00000000,0000000A", "a") && same("x/rps_cpus", "0", "00"));
        assert!(!same("x/rps_cpus", "1,00000000", "1"));
        assert!(same("irq/1/smp_affinity_list", "0-2", "0,1,2") && !same("irq/1/smp_affinity_list", "0", "1"));
    }

    fn nic(queues: usize) -> Nic {
        Nic {
            name: "eth0".to_owned(),
            rps: vec!["0".to_owned(); queues],
            flows: vec!["0".to_owned(); queues],
            xps: vec!["0".to_owned(); queues],
            irqs: (0..queues).map(|at| (30 + at as u32, format!("eth0-TxRx-{at}"), "0-7".to_owned())).collect(),
        }
    }

    fn writes(queues: usize, cores: &[usize]) -> Vec<String> {
        let settings = BTreeMap::from([(FLOWS_SETTING.to_owned(), "0".to_owned())]);
        let machine = Machine { nics: vec![nic(queues)], settings, ..Machine::default() };
        let short = |path: &str| path.replace("sys/class/net/eth0/queues/", "").replace("proc/irq/", "");
        plan(&machine, cores).changes.iter().map(|change| format!("{} {}", short(&change.path), change.to)).collect()
    }

    #[test]
    fn a_queue_for_each_core() {
        assert_eq!(
            writes(2, &[4, 6]),
            ["30/smp_affinity_list 4", "31/smp_affinity_list 6", "tx-0/xps_cpus 10", "tx-1/xps_cpus 40",]
        );
    }

    #[test]
    fn fewer_queues_than_cores_are_spread_in_software() {
        assert_eq!(
            writes(2, &[0, 1, 2]),
            [
                "30/smp_affinity_list 0",
                "31/smp_affinity_list 1",
                "tx-0/xps_cpus 5",
                "tx-1/xps_cpus 2",
                "rx-0/rps_cpus 5",
                "rx-1/rps_cpus 2",
                "rx-0/rps_flow_cnt 16384",
                "rx-1/rps_flow_cnt 16384",
                "proc/sys/net/core/rps_sock_flow_entries 32768",
            ]
        );
        assert_eq!(
            writes(1, &[0, 1]),
            [
                "30/smp_affinity_list 0",
                "rx-0/rps_cpus 3",
                "rx-0/rps_flow_cnt 32768",
                "proc/sys/net/core/rps_sock_flow_entries 32768",
            ]
        );
    }

    #[test]
    fn more_queues_than_cores_are_shared_out() {
        assert_eq!(
            writes(3, &[0, 1]),
            [
                "30/smp_affinity_list 0",
                "31/smp_affinity_list 1",
                "32/smp_affinity_list 0",
                "tx-0/xps_cpus 1",
                "tx-1/xps_cpus 2",
                "tx-2/xps_cpus 1",
            ]
        );
    }
}
