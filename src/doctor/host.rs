//! What /proc and /sys say, judged against the plan. Every check takes the root they stand beneath, so that tests can
//! fake a machine; what is not there (a container that hides it, an older kernel) is no finding, never a guess.

use super::living::{memlock, nofile};
use super::{Finding, Plan, Remedy};
use crate::config::{parse_cpu_list, write_cpu_list};
use crate::sys::socket::Offloads;
use std::path::{Path, PathBuf};

/// A machine seen through its files.
struct Host<'a> {
    root: &'a Path,
    capabilities: u64,
}

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

impl Host<'_> {
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn may(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }

    fn status(&self, field: &str) -> Option<String> {
        let status = self.read("proc/self/status")?;
        status.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
    }

    /// Soft and hard limit as /proc/self/limits has them; `None` for unlimited.
    fn limit(&self, name: &str) -> Option<(Option<u64>, Option<u64>)> {
        let limits = self.read("proc/self/limits")?;
        let mut words = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
        let mut next = || words.next().map(|word| word.parse().ok());
        Some((next()?, next()?))
    }
}

/// All checks. `offloads` asks a driver by the interface's name.
pub fn all(root: &Path, plan: &Plan, offloads: &dyn Fn(&str) -> Option<Offloads>) -> Vec<Finding> {
    let mut host = Host { root, capabilities: 0 };
    let effective = host.status("CapEff").and_then(|bits| u64::from_str_radix(&bits, 16).ok());
    host.capabilities = effective.unwrap_or(0);
    let mut all = Vec::new();
    all.extend(kernel(&host));
    all.extend(disabled(&host));
    all.extend(seccomp(&host));
    all.extend(locked(&host, plan));
    all.extend(descriptors(&host, plan));
    all.extend(pipes(&host, plan));
    all.extend(threads(&host, plan));
    all.extend(quota(&host, plan));
    all.extend(cpuset(&host, plan));
    all.extend(backlog(&host, plan));
    all.extend(congestion(&host, plan));
    all.extend(clocksource(&host));
    all.extend(huge_pages(&host));
    all.extend(file_systems(&host, plan));
    for device in devices(&host) {
        all.extend(placement(&host, plan, &device));
        all.extend(queues(&host, plan, &device));
        all.extend(interrupts(&host, &device));
        all.extend(offloads(&device).map(|found| segments(&device, found)));
    }
    all
}

fn kernel(host: &Host<'_>) -> Option<Finding> {
    let release = host.read("proc/sys/kernel/osrelease")?;
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next()?, parts.next().unwrap_or(0));
    Some(if version >= (6, 1) {
        Finding::pass("kernel", format!("Linux {release}"))
    } else {
        let meaning = "ringway is made for Linux 6.1 or newer; what works here is what the probes above found";
        Finding::warn(
            "kernel",
            format!("Linux {release}"),
            meaning,
            Remedy::everywhere("a newer kernel on the machine"),
        )
    })
}

fn disabled(host: &Host<'_>) -> Option<Finding> {
    let value = host.number("proc/sys/kernel/io_uring_disabled")?;
    let seen = format!("kernel.io_uring_disabled is {value}");
    let remedy = || Remedy::sysctl("kernel.io_uring_disabled", 0);
    let group = host.read("proc/sys/kernel/io_uring_group").unwrap_or_else(|| "-1".to_owned());
    let member = || {
        let ids = [host.status("Gid"), host.status("Groups")].into_iter().flatten().collect::<Vec<_>>().join(" ");
        ids.split_whitespace().any(|id| id == group)
    };
    Some(match value {
        0 => Finding::pass("io_uring_disabled", seen),
        1 if host.may(CAP_SYS_ADMIN) || member() => {
            Finding::pass("io_uring_disabled", format!("{seen}, and this process is excepted"))
        }
        1 => {
            let meaning = format!(
                "only CAP_SYS_ADMIN and members of kernel.io_uring_group ({group}) may set up rings, and this user is neither"
            );
            let mut remedy = remedy();
            remedy.host.push_str("; or put this user into that group");
            remedy.systemd.push_str("; or SupplementaryGroups= with that group");
            Finding::fail("io_uring_disabled", seen, meaning, remedy)
        }
        _ => Finding::fail("io_uring_disabled", seen, "nobody may set up rings on this machine", remedy()),
    })
}

fn seccomp(host: &Host<'_>) -> Option<Finding> {
    let mode = host.status("Seccomp")?;
    let text = match mode.as_str() {
        "0" => "no filter".to_owned(),
        "2" => "a filter is active (the probe of io_uring says whether it lets that through)".to_owned(),
        other => format!("mode {other}"),
    };
    Some(Finding::pass("seccomp", text))
}

fn locked(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let (soft, _) = host.limit("Max locked memory")?;
    let want = plan.locked_bytes;
    let need = want.div_ceil(1024);
    Some(match soft {
        _ if host.may(CAP_IPC_LOCK) => Finding::pass("memlock", format!("CAP_IPC_LOCK; {need} KiB are planned")),
        None => Finding::pass("memlock", format!("unlimited; {need} KiB are planned")),
        Some(soft) if soft >= want => Finding::pass("memlock", format!("{} KiB for {need} KiB planned", soft / 1024)),
        Some(soft) => Finding::warn(
            "memlock",
            format!("RLIMIT_MEMLOCK is {} KiB, {need} KiB are planned", soft / 1024),
            "less memory is registered: zero-copy sends and cold reads go in smaller pieces, or by copying",
            memlock(want),
        ),
    })
}

fn descriptors(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let (_, hard) = host.limit("Max open files")?;
    let (want, least) = (plan.descriptors, plan.least_descriptors);
    let Some(hard) = hard else { return Some(Finding::pass("nofile", format!("unlimited; {want} are planned"))) };
    let seen = format!("RLIMIT_NOFILE is {hard} (hard; serve raises its soft limit to it), {want} are planned");
    let shared = plan.descriptors - plan.connections;
    Some(if hard >= want {
        Finding::pass("nofile", seen)
    } else if hard < least {
        let meaning = format!("not even a start with {} cores is possible with fewer than {least}", plan.cores.len());
        Finding::fail("nofile", seen, meaning, nofile(want))
    } else {
        let meaning = format!(
            "{} connections, {shared} for pipes, files and the rest: beyond about {} clients connections are refused",
            plan.connections,
            hard.saturating_sub(shared).max(1)
        );
        let mut remedy = nofile(want);
        remedy.host.push_str("; or a smaller --connections-per-core");
        Finding::warn("nofile", seen, meaning, remedy)
    })
}

fn pipes(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let soft = host.number("proc/sys/fs/pipe-user-pages-soft")?;
    let most = host.number("proc/sys/fs/pipe-max-size").unwrap_or(u64::MAX);
    let want = plan.pipes * plan.pipe_bytes as u64 / 4096;
    let free = host.may(CAP_SYS_RESOURCE) || host.may(CAP_SYS_ADMIN);
    let seen = format!("{} pipes of {} KiB are {want} pages", plan.pipes, plan.pipe_bytes >> 10);
    Some(if free || soft == 0 {
        Finding::pass("pipe pages", format!("{seen}; not limited"))
    } else if plan.pipe_bytes as u64 > most {
        let meaning = "no pipe gets the size asked for";
        Finding::warn(
            "pipe pages",
            format!("{seen}; fs.pipe-max-size is {most}"),
            meaning,
            Remedy::sysctl("fs.pipe-max-size", plan.pipe_bytes),
        )
    } else if want > soft {
        let meaning = "pipes made after this user's share is used up are of one page: those splices are slow";
        Finding::warn(
            "pipe pages",
            format!("{seen}; fs.pipe-user-pages-soft is {soft}"),
            meaning,
            Remedy::sysctl("fs.pipe-user-pages-soft", want.next_power_of_two()),
        )
    } else {
        Finding::pass("pipe pages", format!("{seen}, {soft} are allowed"))
    })
}

/// The folders of this process's control group, innermost first, for a v2 hierarchy (empty name) or a v1 controller.
fn groups(host: &Host<'_>, controller: &str) -> Vec<PathBuf> {
    let Some(told) = host.read("proc/self/cgroup") else { return Vec::new() };
    let path = told.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        let ours =
            if controller.is_empty() { names.is_empty() } else { names.split(',').any(|name| name == controller) };
        ours.then(|| path.to_owned())
    });
    let Some(path) = path else { return Vec::new() };
    let base = PathBuf::from("sys/fs/cgroup").join(controller);
    let inner = base.join(path.trim_start_matches('/'));
    inner.ancestors().take_while(|folder| folder.starts_with(&base)).map(Path::to_owned).collect()
}

fn threads(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let read = |folder: &PathBuf| {
        let most = host.number(&folder.join("pids.max").to_string_lossy())?;
        let now = host.number(&folder.join("pids.current").to_string_lossy()).unwrap_or(0);
        Some((most, now))
    };
    let folders = [groups(host, ""), groups(host, "pids")].concat();
    let (most, now) = folders.iter().filter_map(read).min()?;
    let want = plan.threads;
    let seen = format!("pids.max is {most}, {now} in use, up to {want} threads are planned (io-wq workers count)");
    if now + want <= most {
        return Some(Finding::pass("threads", seen));
    }
    Some(Finding::warn(
        "threads",
        seen,
        "kernel workers cannot be made: splices and cold reads fail or wait",
        Remedy::new(
            format!("echo {} > pids.max of the group", want + now),
            format!("TasksMax={}", want + 16),
            format!("--pids-limit {}", want + 16),
            format!("podPidsLimit of the kubelet, at least {}", want + 16),
        ),
    ))
}

fn quota(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let second = groups(host, "").into_iter().filter_map(|folder| {
        let text = host.read(&folder.join("cpu.max").to_string_lossy())?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    let first = groups(host, "cpu").into_iter().filter_map(|folder| {
        let quota = host.read(&folder.join("cpu.cfs_quota_us").to_string_lossy())?.parse::<f64>().ok()?;
        let period = host.read(&folder.join("cpu.cfs_period_us").to_string_lossy())?.parse::<f64>().ok()?;
        (quota > 0.0).then_some(quota / period)
    });
    let least = second.chain(first).filter(|cpus| cpus.is_finite()).min_by(f64::total_cmp);
    let cores = plan.cores.len();
    let Some(cpus) = least else { return Some(Finding::pass("cpu quota", "none")) };
    let seen = format!("{cpus:.2} CPUs for {cores} cores");
    if cpus >= cores as f64 {
        return Some(Finding::pass("cpu quota", seen));
    }
    let fit = (cpus.floor() as usize).max(1);
    Some(Finding::warn(
        "cpu quota",
        seen,
        "the group's time runs out within each period: every core stops for tens of milliseconds, all clients wait",
        Remedy::new(
            format!("no quota (cpu.max = max), or --cores with {fit}"),
            format!("no CPUQuota=, AllowedCPUs= instead; or --cores with {fit}"),
            format!("--cpuset-cpus instead of --cpus; or --cores with {fit}"),
            "no CPU limit, or whole CPUs with requests = limits under the static CPU manager".to_owned(),
        ),
    ))
}

fn cpuset(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let allowed = parse_cpu_list(&host.status("Cpus_allowed_list")?).ok()?;
    let cores = write_cpu_list(&plan.cores);
    let outside: Vec<usize> = plan.cores.iter().copied().filter(|cpu| !allowed.contains(cpu)).collect();
    let told = write_cpu_list(&allowed);
    if !outside.is_empty() {
        return Some(Finding::fail(
            "cpuset",
            format!("CPUs {} of --cores {cores} are not among those allowed ({told})", write_cpu_list(&outside)),
            "a ring thread cannot be pinned there",
            Remedy::new(
                format!("--cores {told}"),
                format!("AllowedCPUs={cores}, or --cores {told}"),
                format!("--cpuset-cpus {cores}, or --cores {told}"),
                "leave --cores out: the CPUs the static CPU manager gives are taken",
            ),
        ));
    }
    // Two ring threads on the two threads of one core share its execution units.
    let shared = plan.cores.iter().find_map(|cpu| {
        let list = host.read(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))?;
        let twins: Vec<usize> =
            parse_cpu_list(&list).ok()?.into_iter().filter(|twin| plan.cores.contains(twin)).collect();
        (twins.len() > 1).then_some(twins)
    });
    Some(match shared {
        Some(twins) => Finding::pass(
            "cpuset",
            format!("cores {cores} of {told}; CPUs {} are threads of one core and share it", write_cpu_list(&twins)),
        ),
        None => Finding::pass("cpuset", format!("cores {cores} of {told} allowed")),
    })
}

fn backlog(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let most = host.number("proc/sys/net/core/somaxconn")?;
    let want = u64::from(plan.backlog);
    Some(if most >= want {
        Finding::pass("backlog", format!("net.core.somaxconn is {most}, {want} are asked for"))
    } else {
        Finding::warn(
            "backlog",
            format!("net.core.somaxconn is {most}, {want} are asked for"),
            "bursts of new connections are dropped by the kernel sooner",
            Remedy::net_sysctl("net.core.somaxconn", want),
        )
    })
}

fn congestion(host: &Host<'_>, plan: &Plan) -> Option<Finding> {
    let system = host.read("proc/sys/net/ipv4/tcp_congestion_control")?;
    let name = plan.congestion.clone().unwrap_or(system);
    let known = host.read("proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    if !known.is_empty() && !known.split_whitespace().any(|other| other == name) {
        let load = format!("modprobe tcp_{name}");
        return Some(Finding::fail(
            "congestion",
            format!("{name} is not available; this kernel has: {known}"),
            "listeners cannot be given it",
            Remedy::new(
                format!("{load}, or another --congestion"),
                format!("ExecStartPre=+{load}, or another --congestion"),
                format!("on the host: {load}"),
                format!("on the node: {load}"),
            ),
        ));
    }
    let qdisc = host.read("proc/sys/net/core/default_qdisc").unwrap_or_else(|| "unknown".to_owned());
    let seen = format!("{name}, net.core.default_qdisc {qdisc}");
    if name != "bbr" || qdisc == "fq" {
        return Some(Finding::pass("congestion", seen));
    }
    let guest = host.read("proc/cpuinfo").is_some_and(|text| {
        text.lines().any(|line| line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor"))
    });
    let machine = if guest { "this is a virtual machine, where" } else { "on virtual machines" };
    Some(Finding::warn(
        "congestion",
        seen,
        format!(
            "bbr without fq paces with a timer per socket; {machine} that was measured to cost 3 to 6 times the CPU above 1 MiB"
        ),
        Remedy {
            host: "--congestion cubic; or tc qdisc replace dev DEV root fq, and net.core.default_qdisc = fq in \
                   /etc/sysctl.d/90-ringway.conf"
                .to_owned(),
            ..Remedy::everywhere("--congestion cubic; or fq on the interfaces of the host")
        },
    ))
}

fn clocksource(host: &Host<'_>) -> Option<Finding> {
    let now = host.read("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    let fast = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"];
    if fast.contains(&now.as_str()) {
        return Some(Finding::pass("clocksource", now));
    }
    Some(Finding::warn(
        "clocksource",
        now,
        "reading the clock is a system call with this one, and ringway reads it every turn",
        Remedy::everywhere(
            "on the machine: echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource if it is \
             available; clocksource=tsc on the kernel's command line",
        ),
    ))
}

fn huge_pages(host: &Host<'_>) -> Option<Finding> {
    let told = host.read("sys/kernel/mm/transparent_hugepage/enabled")?;
    let now = told.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(told.as_str(), |(word, _)| word);
    let note = if now == "always" {
        "; the arena opts out, because zero-copy sends from huge pages are overcharged"
    } else {
        ""
    };
    Some(Finding::pass("huge pages", format!("transparent huge pages: {now}{note}")))
}

fn file_systems(host: &Host<'_>, plan: &Plan) -> Vec<Finding> {
    let Some(mounts) = host.read("proc/self/mountinfo") else { return Vec::new() };
    let kind_of = |path: &Path| {
        let mounted = mounts.lines().filter_map(|line| {
            let point = line.split(' ').nth(4)?.replace("\\040", " ");
            let kind = line.split_once(" - ")?.1.split(' ').next()?;
            path.starts_with(&point).then(|| (point.len(), kind.to_owned()))
        });
        // Of two at the same place the later one covers the other; max_by_key gives the last.
        mounted.max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
    };
    plan.roots
        .iter()
        .filter_map(|root| {
            let path = std::path::absolute(root).ok()?;
            let path = path.canonicalize().unwrap_or(path);
            let kind = kind_of(&path)?;
            let seen = format!("{} is on {kind}", root.display());
            let far = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs", "lustre"];
            let is_far = far.iter().any(|name| kind == *name || kind.starts_with(&format!("{name}.")));
            Some(if is_far {
                Finding::warn(
                    "file system",
                    seen,
                    "cold pages come over a network or from another process; a server that hangs blocks kernel workers",
                    Remedy::everywhere(
                        "a local file system, or ringway in front of an HTTP origin with --cache on one",
                    ),
                )
            } else {
                Finding::pass("file system", seen)
            })
        })
        .collect()
}

/// Interfaces with a device behind them.
fn devices(host: &Host<'_>) -> Vec<String> {
    let mut names = host.names("sys/class/net");
    names.retain(|name| host.root.join("sys/class/net").join(name).join("device").exists());
    names
}

fn placement(host: &Host<'_>, plan: &Plan, device: &str) -> Option<Finding> {
    let node = host.read(&format!("sys/class/net/{device}/device/numa_node"))?;
    let nodes = host.names("sys/devices/system/node").iter().filter(|name| is_numbered(name, "node")).count();
    if node.starts_with('-') || nodes < 2 {
        return Some(Finding::pass("numa", format!("{device}: one node")));
    }
    let near = parse_cpu_list(&host.read(&format!("sys/devices/system/node/node{node}/cpulist"))?).ok()?;
    let away: Vec<usize> = plan.cores.iter().copied().filter(|cpu| !near.contains(cpu)).collect();
    let cores = write_cpu_list(&near);
    if away.is_empty() {
        return Some(Finding::pass("numa", format!("{device} and all cores are on node {node}")));
    }
    Some(Finding::warn(
        "numa",
        format!("{device} is on node {node} (CPUs {cores}), cores {} are not", write_cpu_list(&away)),
        "every packet of these cores crosses the interconnect",
        Remedy::new(
            format!("--cores {cores}"),
            format!("--cores {cores}; AllowedCPUs={cores} NUMAPolicy=bind NUMAMask={node}"),
            format!("--cpuset-cpus {cores} --cpuset-mems {node}"),
            "topologyManagerPolicy: single-numa-node with the static CPU manager",
        ),
    ))
}

fn is_numbered(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A mask such as `00000000,0000000f` with no bit set.
fn is_empty_mask(text: &str) -> bool {
    text.chars().all(|letter| letter == '0' || letter == ',')
}

fn queues(host: &Host<'_>, plan: &Plan, device: &str) -> Vec<Finding> {
    let folder = format!("sys/class/net/{device}/queues");
    let names = host.names(&folder);
    let of = |word: &str| names.iter().filter(|name| name.starts_with(word)).collect::<Vec<_>>();
    let (receive, send) = (of("rx-"), of("tx-"));
    let cores = plan.cores.len();
    let on_machine = |command: String| {
        Remedy::new(
            command.clone(),
            format!("ExecStartPre=+ with: {command}"),
            format!("on the host: {command}"),
            format!("on the node: {command}"),
        )
    };
    let mut all = Vec::new();
    let mask = |queue: &String, file: &str| host.read(&format!("{folder}/{queue}/{file}"));
    if !receive.is_empty() {
        let seen = format!("{device}: {} receive queues for {cores} cores", receive.len());
        let spread = receive.iter().any(|queue| mask(queue, "rps_cpus").is_some_and(|mask| !is_empty_mask(&mask)));
        all.push(if receive.len() >= cores || spread {
            Finding::pass("receive queues", if spread { format!("{seen}, spread by RPS") } else { seen })
        } else {
            let meaning = "one CPU does the receive work of several cores, and acknowledgements are receive work";
            Finding::warn(
                "receive queues",
                seen,
                meaning,
                on_machine(format!(
                "ethtool -L {device} combined {cores} if the card has them; else the mask of the cores, in hexadecimal, into /sys/class/net/{device}/queues/rx-*/rps_cpus"
            )),
            )
        });
    }
    if send.len() > 1 {
        let unset =
            send.iter().filter(|queue| mask(queue, "xps_cpus").is_some_and(|mask| is_empty_mask(&mask))).count();
        let seen = format!("{device}: {} send queues, {unset} without XPS", send.len());
        all.push(if unset == 0 {
            Finding::pass("send queues", seen)
        } else {
            Finding::warn(
                "send queues",
                seen,
                "cores contend for the lock of one queue",
                on_machine(format!("one core's mask into each /sys/class/net/{device}/queues/tx-*/xps_cpus")),
            )
        });
    }
    all
}

fn interrupts(host: &Host<'_>, device: &str) -> Option<Finding> {
    let numbers = host.names(&format!("sys/class/net/{device}/device/msi_irqs"));
    let at: Vec<String> = numbers
        .iter()
        .filter_map(|number| {
            let effective = host.read(&format!("proc/irq/{number}/effective_affinity_list"));
            effective.or_else(|| host.read(&format!("proc/irq/{number}/smp_affinity_list")))
        })
        .collect();
    let mut different = at.clone();
    different.sort();
    different.dedup();
    let seen = format!("{device}: {} interrupts on CPUs {}", at.len(), different.join(" "));
    match at.len() {
        0 | 1 => None,
        // One of them is usually the card's configuration.
        2 => Some(Finding::pass("interrupts", seen)),
        _ if different.len() > 1 => Some(Finding::pass("interrupts", seen)),
        _ => Some(Finding::warn(
            "interrupts",
            seen,
            "all queues interrupt one CPU, which then is the bottleneck of all cores",
            Remedy::everywhere(
                "on the machine: a CPU of its own into /proc/irq/N/smp_affinity_list of each of them, and no irqbalance that undoes it",
            ),
        )),
    }
}

fn segments(device: &str, found: Offloads) -> Finding {
    let word = |on: bool| if on { "on" } else { "off" };
    let seen = format!("{device}: TSO {}, GSO {}, GRO {}", word(found.tso), word(found.gso), word(found.gro));
    if found.tso && found.gso && found.gro {
        return Finding::pass("offloads", seen);
    }
    Finding::warn(
        "offloads",
        seen,
        "segments are cut or joined one by one on the CPU",
        Remedy::everywhere(format!("on the machine: ethtool -K {device} tso on gso on gro on (where the card can)")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    /// A machine of a few files, and what is found on it.
    fn found(plan: &Plan, files: &[(&str, &str)]) -> Vec<Finding> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        all(folder.path(), plan, &|_| Some(Offloads { tso: true, gso: true, gro: false }))
    }

    fn plan() -> Plan {
        Plan {
            cores: vec![0, 1],
            locked_bytes: 32 << 20,
            descriptors: 10_000,
            least_descriptors: 65,
            connections: 8_000,
            pipes: 128,
            pipe_bytes: 1 << 20,
            threads: 18,
            backlog: 4096,
            congestion: None,
            listen: vec!["127.0.0.1:8080".parse().expect("address")],
            roots: vec!["/".into()],
        }
    }

    const LIMITS: &str = "Limit Soft Hard Units\nMax open files            1024    20000    files\n";

    #[test]
    fn every_check_as_a_table() {
        use Level::{Fail, Pass, Warn};
        let status = "proc/self/status";
        let limits = "proc/self/limits";
        let group = "proc/self/cgroup";
        let cc = "proc/sys/net/ipv4/tcp_congestion_control";
        let qdisc = "proc/sys/net/core/default_qdisc";
        let nic = "sys/class/net/eth9/device/numa_node";
        type Row<'a> = (&'a str, Level, &'a str, &'a [(&'a str, &'a str)]);
        let rows: &[Row<'_>] = &[
            ("kernel", Pass, "6.18.4", &[("proc/sys/kernel/osrelease", "6.18.4-x\n")]),
            ("kernel", Pass, "7.0", &[("proc/sys/kernel/osrelease", "7.0.1\n")]),
            ("kernel", Warn, "5.15", &[("proc/sys/kernel/osrelease", "5.15.0-91-generic\n")]),
            ("io_uring_disabled", Pass, "is 0", &[("proc/sys/kernel/io_uring_disabled", "0\n")]),
            ("io_uring_disabled", Fail, "is 2", &[("proc/sys/kernel/io_uring_disabled", "2\n")]),
            ("io_uring_disabled", Fail, "is 1", &[("proc/sys/kernel/io_uring_disabled", "1\n")]),
            (
                "io_uring_disabled",
                Pass,
                "excepted",
                &[
                    ("proc/sys/kernel/io_uring_disabled", "1\n"),
                    ("proc/sys/kernel/io_uring_group", "77\n"),
                    (status, "Groups:\t5 77\n"),
                ],
            ),
            ("seccomp", Pass, "no filter", &[(status, "Seccomp:\t0\n")]),
            ("memlock", Warn, "64 KiB, 32768 KiB", &[(limits, "Max locked memory   65536  65536 bytes\n")]),
            ("memlock", Pass, "unlimited", &[(limits, "Max locked memory   unlimited  unlimited bytes\n")]),
            (
                "memlock",
                Pass,
                "CAP_IPC_LOCK",
                &[(limits, "Max locked memory   65536  65536 bytes\n"), (status, "CapEff:\t0000000000004000\n")],
            ),
            ("nofile", Pass, "20000", &[(limits, LIMITS)]),
            ("nofile", Warn, "9000", &[(limits, "Max open files 1024 9000 files\n")]),
            ("nofile", Fail, "64", &[(limits, "Max open files 64 64 files\n")]),
            ("pipe pages", Warn, "32768 pages", &[("proc/sys/fs/pipe-user-pages-soft", "16384\n")]),
            ("pipe pages", Pass, "not limited", &[("proc/sys/fs/pipe-user-pages-soft", "0\n")]),
            (
                "pipe pages",
                Warn,
                "pipe-max-size is 65536",
                &[("proc/sys/fs/pipe-user-pages-soft", "16384\n"), ("proc/sys/fs/pipe-max-size", "65536\n")],
            ),
            (
                "threads",
                Warn,
                "pids.max is 20",
                &[(group, "0::/a/b\n"), ("sys/fs/cgroup/a/pids.max", "20\n"), ("sys/fs/cgroup/a/pids.current", "5\n")],
            ),
            ("threads", Pass, "100", &[(group, "3:pids:/\n"), ("sys/fs/cgroup/pids/pids.max", "100\n")]),
            (
                "cpu quota",
                Warn,
                "1.50 CPUs for 2 cores",
                &[(group, "0::/a/b\n"), ("sys/fs/cgroup/a/cpu.max", "150000 100000\n")],
            ),
            ("cpu quota", Pass, "none", &[(group, "0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")]),
            (
                "cpu quota",
                Warn,
                "0.50",
                &[
                    (group, "4:cpu,cpuacct:/x\n"),
                    ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
                    ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
                ],
            ),
            ("cpuset", Pass, "0-1 of 0-3", &[(status, "Cpus_allowed_list:\t0-3\n")]),
            ("cpuset", Fail, "CPUs 0 of", &[(status, "Cpus_allowed_list:\t1-3\n")]),
            (
                "cpuset",
                Pass,
                "threads of one core",
                &[
                    (status, "Cpus_allowed_list:\t0-3\n"),
                    ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
                ],
            ),
            ("backlog", Warn, "128", &[("proc/sys/net/core/somaxconn", "128\n")]),
            ("backlog", Pass, "4096", &[("proc/sys/net/core/somaxconn", "4096\n")]),
            ("congestion", Warn, "bbr", &[(cc, "bbr\n"), (qdisc, "pfifo_fast\n")]),
            ("congestion", Pass, "bbr", &[(cc, "bbr\n"), (qdisc, "fq\n")]),
            ("congestion", Pass, "cubic", &[(cc, "cubic\n"), (qdisc, "pfifo_fast\n")]),
            (
                "congestion",
                Fail,
                "has: reno cubic",
                &[(cc, "bbr\n"), ("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic\n")],
            ),
            (
                "clocksource",
                Warn,
                "hpet",
                &[("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n")],
            ),
            (
                "huge pages",
                Pass,
                "madvise",
                &[("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")],
            ),
            (
                "file system",
                Warn,
                "nfs4",
                &[("proc/self/mountinfo", "22 27 0:21 / / rw - ext4 /dev/x rw\n23 27 0:2 / / rw - nfs4 s:/x rw\n")],
            ),
            ("file system", Pass, "ext4", &[("proc/self/mountinfo", "22 27 0:21 / / rw shared:1 - ext4 /dev/x rw\n")]),
            ("numa", Pass, "one node", &[(nic, "-1\n")]),
            (
                "numa",
                Warn,
                "cores 0 are not",
                &[
                    (nic, "1\n"),
                    ("sys/devices/system/node/node0/cpulist", "0\n"),
                    ("sys/devices/system/node/node1/cpulist", "1\n"),
                ],
            ),
            ("receive queues", Warn, "1 receive", &[(nic, "-1\n"), ("sys/class/net/eth9/queues/rx-0/rps_cpus", "0\n")]),
            ("receive queues", Pass, "RPS", &[(nic, "-1\n"), ("sys/class/net/eth9/queues/rx-0/rps_cpus", "0,3\n")]),
            (
                "send queues",
                Warn,
                "2 send queues, 1 without",
                &[
                    (nic, "-1\n"),
                    ("sys/class/net/eth9/queues/tx-0/xps_cpus", "1\n"),
                    ("sys/class/net/eth9/queues/tx-1/xps_cpus", "00000000,00000000\n"),
                ],
            ),
            (
                "interrupts",
                Warn,
                "3 interrupts on CPUs 0",
                &[
                    ("sys/class/net/eth9/device/msi_irqs/30", ""),
                    ("sys/class/net/eth9/device/msi_irqs/31", ""),
                    ("sys/class/net/eth9/device/msi_irqs/32", ""),
                    ("proc/irq/30/effective_affinity_list", "0\n"),
                    ("proc/irq/31/effective_affinity_list", "0\n"),
                    ("proc/irq/32/smp_affinity_list", "0\n"),
                ],
            ),
            ("offloads", Warn, "GRO off", &[(nic, "-1\n")]),
        ];
        for (name, level, seen, files) in rows {
            let all = found(&plan(), files);
            let finding = all.iter().find(|finding| finding.name == *name);
            let finding = finding.unwrap_or_else(|| panic!("nothing about {name} of {files:?}"));
            assert_eq!(finding.level, *level, "{files:?}: {finding:?}");
            assert!(finding.seen.contains(seen), "{seen}: {finding:?}");
            assert_eq!(finding.remedy.is_some(), *level != Pass, "{finding:?}");
            assert_eq!(finding.meaning.is_empty(), *level == Pass, "{finding:?}");
        }
    }

    #[test]
    fn a_machine_that_says_nothing_gives_no_findings_but_the_quota() {
        let names: Vec<&str> = found(&plan(), &[]).iter().map(|finding| finding.name).collect();
        assert_eq!(names, ["cpu quota"]);
    }

    #[test]
    fn a_congestion_control_of_ours_is_what_counts() {
        let ours = Plan { congestion: Some("cubic".to_owned()), ..plan() };
        let files = [("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n")];
        assert!(found(&ours, &files).iter().any(|found| found.name == "congestion" && found.level == Level::Pass));
    }
}
