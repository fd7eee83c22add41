//! Where two ends may stand on one machine: on the same CPU, on two, on siblings of one core, on two nodes, anywhere.

use crate::config::{allowed_cpus, parse_cpu_list};
use std::path::Path;

/// One placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// `none`, `separate`, `same`, `sibling`, `node`.
    pub name: &'static str,
    /// CPU of the sender; `None`: not pinned.
    pub sender: Option<usize>,
    /// CPU of the receiver.
    pub receiver: Option<usize>,
}

impl Place {
    /// `--cores` of an end.
    pub fn cores(cpu: Option<usize>) -> String {
        cpu.map_or_else(|| "none".to_owned(), |cpu| cpu.to_string())
    }
}

/// The placements this machine has, and what it has not, in words.
pub fn all(root: &Path) -> (Vec<Place>, Vec<String>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    among(root, &allowed_cpus(&status))
}

fn among(root: &Path, cpus: &[usize]) -> (Vec<Place>, Vec<String>) {
    let first = cpus.first().copied().unwrap_or(0);
    let others = || cpus.iter().copied().filter(|cpu| *cpu != first);
    let base = root.join("sys/devices/system/cpu").join(format!("cpu{first}"));
    let list = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        parse_cpu_list(text.trim()).unwrap_or_default()
    };
    let siblings = list(&base.join("topology/thread_siblings_list"));
    let sibling = others().find(|cpu| siblings.contains(cpu));
    let node = |cpu: usize| {
        let entries = std::fs::read_dir(root.join("sys/devices/system/cpu").join(format!("cpu{cpu}"))).ok()?;
        entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<usize>().ok())
    };
    let home = node(first);
    // Two cores of one node, where there are such: else any two CPUs.
    let near = others().find(|cpu| !siblings.contains(cpu) && node(*cpu) == home).or_else(|| others().next());
    let far = others().find(|cpu| home.is_some() && node(*cpu) != home);
    let mut places = vec![Place { name: "none", sender: None, receiver: None }];
    let mut missing = Vec::new();
    let mut add = |name, cpu: Option<usize>, lacks: &str| match cpu {
        Some(cpu) => places.push(Place { name, sender: Some(first), receiver: Some(cpu) }),
        None => missing.push(format!("no placement `{name}`: {lacks}")),
    };
    add("separate", near, "this process may use one CPU only");
    add("same", Some(first), "");
    add("sibling", sibling, "no two of the CPUs are threads of one core, as far as this machine says");
    add("node", far, "all the CPUs are of one NUMA node");
    (places, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_everything_and_one_with_little() {
        let root = tempfile::tempdir().expect("folder");
        for (cpu, siblings, node) in [(0, "0,2", 0), (1, "1,3", 0), (2, "0,2", 0), (3, "1,3", 1)] {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}"));
            std::fs::create_dir_all(folder.join("topology")).expect("folder");
            std::fs::create_dir_all(folder.join(format!("node{node}"))).expect("folder");
            std::fs::write(folder.join("topology/thread_siblings_list"), siblings).expect("file");
        }
        let pairs = |cpus: &[usize]| {
            among(root.path(), cpus).0.into_iter().map(|place| (place.name, place.receiver)).collect::<Vec<_>>()
        };
        let whole = [("none", None), ("separate", Some(1)), ("same", Some(0)), ("sibling", Some(2)), ("node", Some(3))];
        assert_eq!(pairs(&[0, 1, 2, 3]), whole);
        assert_eq!(pairs(&[0]), [("none", None), ("same", Some(0))]);
        assert_eq!(among(root.path(), &[0]).1.len(), 3);
    }
}
