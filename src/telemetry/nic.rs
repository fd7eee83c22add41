//! What the kernel says of network interfaces and of its receive path: wire bytes, link speed, drops.
//!
//! Read at a scrape only. Bounded: interfaces with hardware come first, and at most [`MOST`] are told. The two roots are
//! parameters.

use std::path::Path;

/// Interfaces told.
pub const MOST: usize = 32;

/// One interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nic {
    /// Name.
    pub device: String,
    /// Kernel driver; empty for virtual interfaces.
    pub driver: String,
    /// NUMA node of its bus; empty where it has none.
    pub numa_node: String,
    /// Largest packet in bytes.
    pub mtu: String,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Packets dropped on their way out.
    pub sent_drops: u64,
    /// Packets dropped or missed on their way in.
    pub received_drops: u64,
    /// Bytes a second of its link, if the driver knows.
    pub speed: Option<u64>,
}

/// The interfaces under `sys` (/sys/class/net but in tests), by name, those with hardware first.
pub fn interfaces(sys: &Path) -> Vec<Nic> {
    let entries = std::fs::read_dir(sys).into_iter().flatten().flatten();
    let mut names: Vec<(bool, String)> = entries
        .filter_map(|entry| Some((!entry.path().join("device").exists(), entry.file_name().into_string().ok()?)))
        .collect();
    names.sort();
    names.truncate(MOST);
    names.into_iter().filter_map(|(_, device)| read(&sys.join(&device), device)).collect()
}

/// `None` where it went away meanwhile, or is no interface (`bonding_masters` lies there too).
fn read(path: &Path, device: String) -> Option<Nic> {
    let text = |name: &str| std::fs::read_to_string(path.join(name)).ok().map(|text| text.trim().to_owned());
    let count = |name: &str| text(&format!("statistics/{name}"))?.parse::<u64>().ok();
    let driver = std::fs::read_link(path.join("device/driver")).ok();
    Some(Nic {
        device,
        driver: driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned())).unwrap_or_default(),
        numa_node: text("device/numa_node").filter(|node| node != "-1").unwrap_or_default(),
        mtu: text("mtu").unwrap_or_default(),
        sent: count("tx_bytes")?,
        received: count("rx_bytes")?,
        sent_drops: count("tx_dropped").unwrap_or(0),
        received_drops: count("rx_dropped").unwrap_or(0) + count("rx_missed_errors").unwrap_or(0),
        // Megabits; -1 or an error where nobody knows.
        speed: text("speed")
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|speed| *speed > 0)
            .map(|mb| mb * 125_000),
    })
}

/// Dropped and squeezed of one CPU, from the text of /proc/net/softnet_stat.
pub fn parse_softnet(text: &str, cpu: usize) -> Option<(u64, u64)> {
    let number = |field: &str| u64::from_str_radix(field, 16).ok();
    text.lines().enumerate().find_map(|(row, line)| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Newer kernels name the CPU; older ones leave offline CPUs out and do not say which.
        let of = fields.get(12).and_then(|field| number(field)).unwrap_or(row as u64);
        (of == cpu as u64).then(|| Some((number(fields.get(1)?)?, number(fields.get(2)?)?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(root: &Path, name: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root.join(name).join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
            std::fs::write(path, text).expect("write");
        }
    }

    #[test]
    fn hardware_comes_first_and_unknown_speeds_are_left_out() {
        let root = tempfile::tempdir().expect("directory");
        let root = root.path();
        let counts = [("statistics/tx_bytes", "5\n"), ("statistics/rx_bytes", "6\n"), ("speed", "-1\n")];
        interface(root, "a", &counts);
        interface(root, "z", &counts);
        let hardware = [("speed", "25000\n"), ("device/numa_node", "1\n"), ("mtu", "9000\n")];
        interface(root, "z", &hardware);
        interface(root, "z", &[("statistics/rx_dropped", "2\n"), ("statistics/rx_missed_errors", "3\n")]);
        std::os::unix::fs::symlink("/sys/bus/pci/drivers/mlx5_core", root.join("z/device/driver")).expect("link");
        std::fs::write(root.join("bonding_masters"), "").expect("write");
        let nics = interfaces(root);
        assert_eq!(nics.iter().map(|nic| &*nic.device).collect::<Vec<_>>(), ["z", "a"]);
        assert_eq!((nics[0].speed, nics[1].speed), (Some(3_125_000_000), None));
        assert_eq!((nics[0].sent, nics[0].received, nics[0].received_drops), (5, 6, 5));
        assert_eq!((&*nics[0].driver, &*nics[0].numa_node, &*nics[0].mtu), ("mlx5_core", "1", "9000"));
    }

    #[test]
    fn there_are_never_more_than_the_most() {
        let root = tempfile::tempdir().expect("directory");
        for at in 0..MOST + 5 {
            let counts = [("statistics/tx_bytes", "1"), ("statistics/rx_bytes", "1")];
            interface(root.path(), &format!("veth{at}"), &counts);
        }
        assert_eq!(interfaces(root.path()).len(), MOST);
    }

    #[test]
    fn softnet_is_read_by_cpu_where_the_kernel_names_it() {
        let text = "0000002a 00000001 00000002 0 0 0 0 0 0 0 0 00000000 00000004 0 0\n";
        assert_eq!(parse_softnet(text, 4), Some((1, 2)));
        assert_eq!(parse_softnet(text, 0), None);
        assert_eq!(parse_softnet("1 2 3 0 0 0 0 0 0 0\n4 5 f 0 0 0 0 0 0 0\n", 1), Some((5, 15)));
    }
}
