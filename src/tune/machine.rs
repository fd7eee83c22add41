//! What there is to tune, read from files below a root.

use crate::error::{Error, Kind, Result, describe};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Queues of an interface that are looked at.
const QUEUES_MOST: usize = 1024;

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// `rps_cpus` of each receive queue.
    pub rps: Vec<String>,
    /// `rps_flow_cnt` of each receive queue.
    pub flows: Vec<String>,
    /// `xps_cpus` of each sending queue; empty where it has one queue or cannot choose.
    pub xps: Vec<String>,
    /// Interrupts of its queues: number, name, `smp_affinity_list`.
    pub irqs: Vec<(u32, String, String)>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Values by path below /proc/sys, for the settings asked for that exist.
    pub settings: BTreeMap<String, String>,
    /// Interfaces in the order asked for, or by name.
    pub nics: Vec<Nic>,
    /// CPUs that are online.
    pub online: Vec<usize>,
    /// A daemon that moves interrupts runs.
    pub irqbalance: bool,
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Machine {
    /// Reads what is below `root`: these settings (paths below /proc/sys), these interfaces or all that have hardware.
    ///
    /// # Errors
    /// An interface that was asked for is not there, or the CPUs cannot be read.
    pub fn read(root: &Path, settings: &[String], nics: &[String]) -> Result<Self> {
        let values = settings.iter().filter_map(|name| Some((name.clone(), read(&root.join("proc/sys").join(name))?)));
        let online = root.join("sys/devices/system/cpu/online");
        let online = std::fs::read_to_string(&online)
            .map_err(|error| Error::new(Kind::Runtime, format!("read {}", online.display()), describe(&error)))
            .and_then(|text| {
                crate::config::parse_cpu_list(text.trim())
                    .map_err(|why| Error::new(Kind::Runtime, format!("read {}", online.display()), why))
            })?;
        let class = root.join("sys/class/net");
        let wanted = if nics.is_empty() {
            // Bridges, tunnels and the loopback have no device; what is down carries nothing.
            let real = |name: &String| {
                class.join(name).join("device").exists()
                    && read(&class.join(name).join("operstate")).is_none_or(|state| state != "down")
            };
            names(&class).into_iter().filter(real).collect()
        } else {
            nics.to_vec()
        };
        let interrupts = interrupts(&std::fs::read_to_string(root.join("proc/interrupts")).unwrap_or_default());
        let nics = wanted.into_iter().map(|name| nic(root, name, &interrupts)).collect::<Result<_>>()?;
        let irqbalance = names(&root.join("proc"))
            .iter()
            .filter(|name| name.bytes().all(|letter| letter.is_ascii_digit()))
            .any(|name| read(&root.join("proc").join(name).join("comm")).is_some_and(|comm| comm == "irqbalance"));
        Ok(Self { settings: values.collect(), nics, online, irqbalance })
    }
}

/// Number and name of every interrupt of /proc/interrupts.
fn interrupts(text: &str) -> BTreeMap<u32, String> {
    let line = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        Some((number.parse().ok()?, rest.split_whitespace().next_back()?.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn nic(root: &Path, name: String, interrupts: &BTreeMap<u32, String>) -> Result<Nic> {
    let place = root.join("sys/class/net").join(&name);
    if name.is_empty() || name.contains('/') || name.starts_with('.') || !place.exists() {
        let all = names(&root.join("sys/class/net")).join(", ");
        return Err(Error::new(Kind::Usage, format!("tune {name}"), "there is no such interface")
            .remedy(format!("there are: {all}")));
    }
    let queue = |kind: &str, file: &str| -> Vec<String> {
        let queues = (0..QUEUES_MOST).map(|at| place.join("queues").join(format!("{kind}-{at}")));
        queues.take_while(|folder| folder.exists()).map_while(|folder| read(&folder.join(file))).collect()
    };
    // Of a virtio interface the interrupts belong to the PCI device above it.
    let device: Option<PathBuf> = std::fs::canonicalize(place.join("device")).ok();
    let folders = device.iter().flat_map(|device| [Some(device.as_path()), device.parent()]).flatten();
    let own: Vec<u32> = folders
        .map(|folder| names(&folder.join("msi_irqs")))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
        .iter()
        .filter_map(|number| number.parse().ok())
        .collect();
    let mut irqs: Vec<(u32, String, String)> = own
        .into_iter()
        .filter_map(|irq| {
            let action = interrupts.get(&irq).filter(|action| queue_of(action).is_some())?;
            Some((irq, action.clone(), read(&root.join(format!("proc/irq/{irq}/smp_affinity_list")))?))
        })
        .collect();
    irqs.sort_by_key(|(irq, ..)| *irq);
    Ok(Nic {
        rps: queue("rx", "rps_cpus"),
        flows: queue("rx", "rps_flow_cnt"),
        xps: queue("tx", "xps_cpus"),
        irqs,
        name,
    })
}

/// The queue an interrupt belongs to, by its name (`virtio2-input.0`, `eth0-TxRx-3`, `mlx5_comp7@pci:...`); none for
/// those of links, configuration and errors.
pub fn queue_of(action: &str) -> Option<usize> {
    let name = action.split('@').next().unwrap_or_default();
    let digits = name.len() - name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (word, number) = name.split_at(name.len() - digits);
    let word = word.to_ascii_lowercase();
    let kinds = ["input", "output", "rx", "tx", "comp", "queue", "q", "fp", "txrx"];
    let last = word.trim_end_matches(['.', '-', '_']);
    kinds.iter().any(|kind| last.ends_with(kind)).then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_of_queues_are_told_from_the_others() {
        for (action, queue) in [
            ("virtio2-input.0", Some(0)),
            ("virtio2-output.11", Some(11)),
            ("virtio2-config", None),
            ("eth0-TxRx-3", Some(3)),
            ("eth0-rx-1", Some(1)),
            ("eth0", None),
            ("mlx5_comp7@pci:0000:00:05.0", Some(7)),
            ("mlx5_async0@pci:0000:00:05.0", None),
            ("ice-eth0-TxRx-15", Some(15)),
            ("nvme0q1", Some(1)),
        ] {
            assert_eq!(queue_of(action), queue, "{action}");
        }
        let text =
            "           CPU0       CPU1\n 38:  0  13886 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\nNMI: 0\n";
        assert_eq!(interrupts(text), BTreeMap::from([(38, "virtio2-input.0".to_owned())]));
    }
}
