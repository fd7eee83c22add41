//! The facts of a machine that change its figures, read once per run; a figure without them says little.

use super::report::Machine;
use std::collections::BTreeMap;
use std::path::Path;

/// This machine, for an end whose cores are pinned to `cpus` and whose flows leave by `devices`.
pub fn read(root: &Path, cpus: &[Option<usize>], devices: &[String]) -> Machine {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default().trim().to_owned();
    let cpuinfo = text("proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = text("proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10);
    let flags = field("flags").unwrap_or_default();
    let hypervisor = match text("sys/hypervisor/type") {
        kind if !kind.is_empty() => kind,
        _ if flags.split(' ').any(|flag| flag == "hypervisor") => "virtual machine".to_owned(),
        _ => "none".to_owned(),
    };
    Machine {
        host: text("proc/sys/kernel/hostname"),
        kernel: text("proc/sys/kernel/osrelease"),
        cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
        cpus: text("proc/stat").lines().filter(|line| is_cpu(line)).count() as u64,
        cores: cpus.iter().flatten().map(|cpu| *cpu as u64).collect(),
        memory,
        hypervisor,
        facts: facts(&text, devices),
    }
}

fn is_cpu(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

fn facts(text: &impl Fn(&str) -> String, devices: &[String]) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut keep = |name: &str, value: String| {
        if !value.is_empty() {
            facts.insert(name.to_owned(), value);
        }
    };
    for name in ["tcp_congestion_control", "tcp_rmem", "tcp_wmem", "tcp_notsent_lowat"] {
        keep(name, text(&format!("proc/sys/net/ipv4/{name}")).replace('\t', " "));
    }
    keep("default_qdisc", text("proc/sys/net/core/default_qdisc"));
    keep("clocksource", text("sys/devices/system/clocksource/clocksource0/current_clocksource"));
    keep("transparent_hugepage", chosen(&text("sys/kernel/mm/transparent_hugepage/enabled")));
    keep("mitigations", mitigations(&text("proc/cmdline")));
    let limits = text("proc/self/limits");
    let memlock = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    keep("rlimit_memlock", memlock.and_then(|rest| rest.split_ascii_whitespace().next()).unwrap_or("").to_owned());
    for device in devices {
        let file = |name: &str| text(&format!("sys/class/net/{device}/{name}"));
        keep(&format!("{device} mtu"), file("mtu"));
        keep(&format!("{device} speed Mb/s"), file("speed"));
        keep(&format!("{device} gso_max_size"), file("gso_max_size"));
    }
    facts
}

/// `always [madvise] never` says madvise.
fn chosen(list: &str) -> String {
    list.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name.to_owned()).unwrap_or_default()
}

fn mitigations(cmdline: &str) -> String {
    cmdline.split(' ').find_map(|word| word.strip_prefix("mitigations=")).unwrap_or_default().to_owned()
}

/// The system's congestion control.
pub fn congestion() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}

/// Bytes and drops an interface has transmitted, from the text of `/proc/net/dev`.
pub fn transmitted(table: &str, device: &str) -> Option<(u64, u64)> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let words: Vec<u64> = line.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    Some((*words.get(8)?, *words.get(11)?))
}

/// Bits a second an interface says its link has; 0 where it does not know.
pub fn link_speed(device: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{device}/speed")).unwrap_or_default();
    text.trim().parse::<f64>().map_or(0.0, |megabits| megabits.max(0.0) * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interface_sent() {
        let table = "Inter-| Receive\n face |bytes\n eth1: 1 2 3 4 5 6 7 8 900 10 11 12 0 0 0 0\neth10: 0 0 0 0 0 0 0 0 7 0 0 0 0\n";
        assert_eq!(transmitted(table, "eth1"), Some((900, 12)));
        assert_eq!(transmitted(table, "eth10"), Some((7, 0)));
        assert_eq!(transmitted(table, "eth"), None);
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().expect("folder");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("file");
        };
        put("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU\nflags : fpu hypervisor\n");
        put("proc/stat", "cpu  1\ncpu0 1\ncpu1 1\nintr 1\n");
        put("proc/meminfo", "MemTotal:  1024 kB\n");
        put("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        put("sys/class/net/eth0/mtu", "9000\n");
        let machine = read(root.path(), &[Some(1), None], &["eth0".to_owned()]);
        assert_eq!((machine.cpu.as_str(), machine.cpus, machine.memory), ("Some CPU", 2, 1 << 20));
        assert_eq!((machine.cores, machine.hypervisor.as_str()), (vec![1], "virtual machine"));
        assert_eq!(machine.facts["tcp_rmem"], "4096 131072 6291456");
        assert_eq!(machine.facts["transparent_hugepage"], "madvise");
        assert_eq!(machine.facts["eth0 mtu"], "9000");
    }
}
