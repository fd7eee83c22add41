//! `ringway tune` from outside, on a tree that looks like /proc and /sys: what it shows, exactly what it writes, what it
//! takes back, and what it does when a file will not be written.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use support::BINARY;

/// A machine with four CPUs and two interfaces, one of them without hardware.
fn machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, text).expect("a file");
    };
    file("sys/devices/system/cpu/online", "0-3\n");
    for (name, value) in [
        ("net/core/somaxconn", "4096"),
        ("net/ipv4/tcp_max_syn_backlog", "65536"),
        ("net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
        ("net/core/default_qdisc", "pfifo_fast"),
        ("net/core/rps_sock_flow_entries", "0"),
        ("kernel/io_uring_disabled", "0"),
    ] {
        file(&format!("proc/sys/{name}"), &format!("{value}\n"));
    }
    let pci = "sys/devices/pci0/0000:00:03.0";
    file(&format!("{pci}/virtio2/vendor"), "0x1af4\n");
    for irq in [37, 38, 39, 40, 41] {
        file(&format!("{pci}/msi_irqs/{irq}"), "msix\n");
        file(&format!("proc/irq/{irq}/smp_affinity_list"), "0-3\n");
    }
    file(
        "proc/interrupts",
        "           CPU0       CPU1\n \
         37:  0 0 PCI-MSIX-0000:00:03.0 0-edge virtio2-config\n \
         38:  0 0 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\n \
         39:  0 0 PCI-MSIX-0000:00:03.0 2-edge virtio2-output.0\n \
         40:  0 0 PCI-MSIX-0000:00:03.0 3-edge virtio2-input.1\n \
         41:  0 0 PCI-MSIX-0000:00:03.0 4-edge virtio2-output.1\n\
         NMI:  0 0 Non-maskable interrupts\n",
    );
    file("proc/77/comm", "irqbalance\n");
    file("sys/class/net/lo/operstate", "unknown\n");
    file("sys/class/net/eth0/operstate", "up\n");
    for queue in [0, 1] {
        file(&format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "0\n");
        file(&format!("sys/class/net/eth0/queues/rx-{queue}/rps_flow_cnt"), "0\n");
        file(&format!("sys/class/net/eth0/queues/tx-{queue}/xps_cpus"), "0\n");
    }
    std::os::unix::fs::symlink(root.join(pci).join("virtio2"), root.join("sys/class/net/eth0/device")).expect("a link");
    std::fs::create_dir(root.join("run")).expect("a folder");
    folder
}

/// Exit code, output, errors.
fn tune(root: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let done = Command::new(BINARY).arg("tune").arg("--root").arg(root).args(words).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// Every file below, with its words.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(folder).expect("below").display().to_string();
                let text = std::fs::read_to_string(&path).expect("text");
                // The kernel writes tabs between several values and takes any space.
                all.insert(name, text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    all
}

/// What differs, as `path value`.
fn changed(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let differs = |(path, text): &(&String, &String)| before.get(*path) != Some(*text);
    after.iter().filter(differs).map(|(path, text)| format!("{path} {text}")).collect()
}

const WRITTEN: &[&str] = &[
    "proc/irq/38/smp_affinity_list 0",
    "proc/irq/39/smp_affinity_list 0",
    "proc/irq/40/smp_affinity_list 1",
    "proc/irq/41/smp_affinity_list 1",
    "proc/sys/net/core/default_qdisc fq",
    "proc/sys/net/core/rps_sock_flow_entries 32768",
    "proc/sys/net/core/somaxconn 16384",
    "proc/sys/net/ipv4/tcp_wmem 4096 65536 16777216",
    "sys/class/net/eth0/queues/rx-0/rps_cpus 5",
    "sys/class/net/eth0/queues/rx-0/rps_flow_cnt 16384",
    "sys/class/net/eth0/queues/rx-1/rps_cpus a",
    "sys/class/net/eth0/queues/rx-1/rps_flow_cnt 16384",
    "sys/class/net/eth0/queues/tx-0/xps_cpus 5",
    "sys/class/net/eth0/queues/tx-1/xps_cpus a",
];

#[test]
fn a_plan_is_shown_and_nothing_is_written() {
    let root = machine();
    let before = files(root.path());
    let (code, text, errors) = tune(root.path(), &[]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for line in [
        "/proc/sys/net/core/somaxconn: 4096 -> 16384",
        "# Connections waiting to be accepted, per listener: the cap of ringway's `backlog` (4096)",
        "/proc/irq/40/smp_affinity_list: 0-3 -> 1",
        "nothing was written: ringway tune --apply does it",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(text.contains("note: irqbalance runs") && text.contains("--banirq=38 --banirq=39"), "{text}");
    assert!(text.contains("tc qdisc replace dev eth0 root fq") && !text.contains("lo:"), "{text}");
    assert_eq!(files(root.path()), before);
}

#[test]
fn what_is_applied_is_exact_and_comes_back() {
    let root = machine();
    let before = files(root.path());
    let (code, text, errors) = tune(root.path(), &["--apply"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(text.contains("14 files written"), "{text}");
    let mut after = files(root.path());
    assert!(after.remove("run/ringway-tune.json").is_some(), "what was is kept");
    assert_eq!(changed(&before, &after), WRITTEN);

    // Done is done: nothing more to plan, and what was is not written over.
    let (code, text, _) = tune(root.path(), &[]);
    assert!(code == Some(0) && text.starts_with("nothing to change\n"), "{text}");
    std::fs::write(root.path().join("proc/sys/net/core/somaxconn"), "128\n").expect("written");
    let (code, _, errors) = tune(root.path(), &["--apply"]);
    assert!(code == Some(1) && errors.contains("ringway tune --restore first"), "{errors}");

    // Somebody changed one since: it is theirs.
    let (code, text, errors) = tune(root.path(), &["--restore"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(text.contains("/proc/sys/net/core/somaxconn: left at 128"), "{text}");
    assert_eq!(changed(&before, &files(root.path())), ["proc/sys/net/core/somaxconn 128"]);
    let (code, _, errors) = tune(root.path(), &["--restore"]);
    assert!(code == Some(1) && errors.contains("nothing was applied"), "{errors}");
}

#[test]
fn a_failure_takes_everything_back_and_says_so() {
    // One that cannot be written, and one that does not keep what is written.
    for (target, why) in [("/proc/sys/kernel/ostype", "E"), ("/dev/null", "the kernel kept")] {
        let root = machine();
        let last = root.path().join("sys/class/net/eth0/queues/rx-1/rps_cpus");
        std::fs::remove_file(&last).expect("removed");
        std::os::unix::fs::symlink(target, &last).expect("a link");
        let before = files(root.path());
        let (code, text, errors) = tune(root.path(), &["--apply"]);
        assert_eq!((code, text.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.contains("cannot write a to /sys/class/net/eth0/queues/rx-1/rps_cpus"), "{errors}");
        assert!(errors.contains(why) && errors.contains("the 10 writes before it were taken back"), "{errors}");
        assert_eq!(files(root.path()), before);
    }
}

#[test]
fn interfaces_and_cores_can_be_named() {
    let root = machine();
    let before = files(root.path());
    let (code, _, errors) = tune(root.path(), &["--nic", "eth0", "--cores", "2,3", "--apply"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let queues: Vec<String> = changed(&before, &files(root.path()))
        .into_iter()
        .filter(|line| line.starts_with("proc/irq") || line.starts_with("sys"))
        .collect();
    assert_eq!(
        queues,
        [
            "proc/irq/38/smp_affinity_list 2",
            "proc/irq/39/smp_affinity_list 2",
            "proc/irq/40/smp_affinity_list 3",
            "proc/irq/41/smp_affinity_list 3",
            "sys/class/net/eth0/queues/tx-0/xps_cpus 4",
            "sys/class/net/eth0/queues/tx-1/xps_cpus 8",
        ]
    );
    for (words, why) in [
        (&["--nic", "eth7"] as &[&str], "there is no such interface; there are: eth0, lo"),
        (&["--nic", "../eth0"], "there is no such interface"),
        (&["--cores", "4"], "CPU 4 is not online"),
        (&["--cores", "x"], "is not a list of CPUs"),
        (&["--apply", "--restore"], "cannot be used with"),
    ] {
        let (code, _, errors) = tune(root.path(), words);
        assert!(code == Some(2) && errors.contains(why), "{words:?}: {errors}");
    }
}

#[test]
fn a_record_that_names_other_files_is_refused() {
    let root = machine();
    for path in ["etc/passwd", "proc/sys/../../etc/passwd"] {
        let record = format!(r#"[{{"path":"{path}","from":"a","to":"b","why":"c"}}]"#);
        std::fs::write(root.path().join("run/ringway-tune.json"), record).expect("written");
        let (code, _, errors) = tune(root.path(), &["--restore"]);
        assert!(code == Some(1) && errors.contains("which is not ours"), "{errors}");
    }
}
