//! What can only be known by trying: rings, pipes, ports, the served directories. Each try is bounded and leaves nothing.

use super::{Finding, Plan, Remedy};
use crate::config::{AdminAddress, Config};
use crate::error::describe;
use crate::sys::probe::{self, SplicePages};
use crate::sys::socket::{self, Listen, Offloads};
use std::net::SocketAddr;
use std::path::Path;

/// Whether io_uring works, and which of its features.
pub fn ring(plan: &Plan) -> Vec<Finding> {
    let found = match probe::run(plan.pipe_bytes) {
        Ok(found) => found,
        Err(failed) => {
            let why = probe::why_denied(&failed.error);
            let seen = format!("cannot {}: {}", failed.step, describe(&failed.error));
            let meaning = format!("ringway serves through io_uring only; {why}");
            let remedy = match failed.error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => nofile(plan.descriptors),
                Some(libc::ENOMEM) => memlock(plan.locked_bytes),
                _ => denied(),
            };
            return vec![Finding::fail("io_uring", seen, meaning, remedy)];
        }
    };
    let mut all = vec![Finding::pass("io_uring", "set up, multishot receive with provided buffers works")];
    let newer = || Remedy::everywhere("a newer kernel gives it; ringway goes on without");
    all.push(match (found.send_zc, found.zc_reports) {
        (true, true) => Finding::pass("send_zc", "works and reports whether it copied"),
        (true, false) => Finding::warn("send_zc", "works, without reports", "copies are not seen (Linux 6.2)", newer()),
        _ => Finding::warn("send_zc", "does not work", "cold pages are sent by copying", newer()),
    });
    all.push(if found.splice {
        Finding::pass("splice", "works through the ring, a full socket gives EAGAIN")
    } else {
        Finding::warn("splice", "not usable through the ring", "that engine is not chosen", newer())
    });
    all.push(if found.cachestat && found.nowait_read {
        Finding::pass("residency", "cachestat and RWF_NOWAIT tell warm pages from cold ones")
    } else {
        let seen = format!("cachestat {}, RWF_NOWAIT {}", found.cachestat, found.nowait_read);
        Finding::warn("residency", seen, "warm pages cannot always be told from cold ones (Linux 6.5)", newer())
    });
    all
}

fn denied() -> Remedy {
    const THREE: &str = "io_uring_setup, io_uring_enter and io_uring_register";
    Remedy::new(
        "sysctl -w kernel.io_uring_disabled=0; Linux 6.1 or newer, built with CONFIG_IO_URING",
        format!("no SystemCallFilter= that leaves these out: SystemCallFilter={THREE}"),
        format!("--security-opt seccomp=PROFILE, Docker's default profile with {THREE} allowed"),
        format!("seccompProfile: {{type: Localhost, localhostProfile: PROFILE}} that allows {THREE}"),
    )
}

/// More descriptors.
pub(super) fn nofile(want: u64) -> Remedy {
    Remedy::new(
        format!("ulimit -Hn {want} before the start, or `* hard nofile {want}` in /etc/security/limits.conf"),
        format!("LimitNOFILE={want}"),
        format!("--ulimit nofile={want}:{want}"),
        format!("a pod cannot set it: LimitNOFILE={want} for the container runtime on the node"),
    )
}

/// More locked memory.
pub(super) fn memlock(want: u64) -> Remedy {
    let kib = want.div_ceil(1024);
    Remedy::new(
        format!("ulimit -l {kib} before the start, or `* hard memlock {kib}` in /etc/security/limits.conf"),
        "LimitMEMLOCK=infinity, or AmbientCapabilities=CAP_IPC_LOCK",
        "--ulimit memlock=-1, or --cap-add IPC_LOCK",
        "securityContext.capabilities.add: [IPC_LOCK]",
    )
}

/// Whether a pipe of the wanted size is granted now.
pub fn pipe(plan: &Plan) -> Vec<Finding> {
    let granted = crate::sys::pipe()
        .and_then(|(_read, write)| crate::sys::size_pipe(std::os::fd::AsFd::as_fd(&write), plan.pipe_bytes));
    let want = plan.pipe_bytes >> 10;
    let pages = plan.pipes * plan.pipe_bytes as u64 / 4096;
    let finding = match granted {
        Ok(bytes) if bytes >= plan.pipe_bytes => Finding::pass("pipe", format!("a pipe of {want} KiB is granted")),
        Ok(bytes) => {
            let seen = format!("{} KiB granted where {want} KiB were asked for", bytes >> 10);
            let meaning = "this user's pipe budget is used up or too small: splice moves less at a time, and below \
                           64 KiB is not used at all";
            let mut remedy = Remedy::sysctl("fs.pipe-user-pages-soft", pages);
            remedy.host.push_str("; pipe-max-size bounds each pipe");
            remedy.systemd.push_str(", or AmbientCapabilities=CAP_SYS_RESOURCE");
            remedy.docker.push_str(", or --cap-add SYS_RESOURCE");
            Finding::warn("pipe", seen, meaning, remedy)
        }
        Err(error) => {
            Finding::warn("pipe", describe(&error), "no pipe can be made: no splice", nofile(plan.descriptors))
        }
    };
    vec![finding]
}

/// The served directories: readable, how splice and O_DIRECT do there.
pub fn directories(plan: &Plan) -> Vec<Finding> {
    let mut all = Vec::new();
    for root in &plan.roots {
        let told = root.display();
        match std::fs::read_dir(root) {
            Ok(_) => all.push(Finding::pass("root", format!("{told} can be read"))),
            Err(error) => {
                let uid = crate::sys::user();
                all.push(Finding::fail(
                    "root",
                    format!("cannot read the directory {told}: {}", describe(&error)),
                    format!("nothing can be served from it by this user (uid {uid})"),
                    Remedy::new(
                        format!("name a directory that is there and give uid {uid} r-x on it and on all above it"),
                        "User= one that may read it, or ReadOnlyPaths=/BindReadOnlyPaths= that show it",
                        format!("--volume DIR:{told}:ro, and --user one that may read it"),
                        "volumeMounts that bring it, and securityContext.runAsUser or fsGroup that may read it",
                    ),
                ));
                continue;
            }
        }
        all.push(pages(root));
        all.push(match probe::direct_read(root) {
            Some(true) => Finding::pass("o_direct", format!("works in {told}")),
            Some(false) => Finding::pass("o_direct", format!("not in {told}; ringway reads through the page cache")),
            None => Finding::pass("o_direct", format!("not known in {told}: it cannot be written, and need not be")),
        });
    }
    all
}

fn pages(root: &Path) -> Finding {
    let told = root.display();
    match probe::splice_pages_in(root) {
        SplicePages::Shares => Finding::pass("splice pages", format!("shared in {told}: zero copy")),
        SplicePages::Copies => Finding::warn(
            "splice pages",
            format!("copied in {told}"),
            "splice and sendfile copy every byte on this kernel or file system; CPU per KiB is that of send",
            Remedy::everywhere(
                "a file system with a page cache of its own (ext4, xfs, btrfs), if the kernel shares there",
            ),
        ),
        SplicePages::Unknown => {
            Finding::pass("splice pages", format!("not known in {told}: it cannot be written, and need not be"))
        }
    }
}

/// Whether every address can be had.
pub fn ports(config: &Config) -> Vec<Finding> {
    let mut wanted: Vec<(SocketAddr, &str)> = config.listen.iter().map(|address| (*address, "--listen")).collect();
    if let Some(AdminAddress::Tcp(address)) = &config.admin {
        wanted.push((*address, "--admin"));
    }
    wanted.into_iter().map(|(address, flag)| port(address, flag)).collect()
}

fn port(address: SocketAddr, flag: &str) -> Finding {
    let want = Listen { address, backlog: 1, congestion: None, notsent_lowat: 0, reuse_port: false };
    let failed = match socket::listen(&want) {
        Ok(_) => return Finding::pass("port", format!("{address} ({flag}) is free and permitted")),
        Err(failed) => failed,
    };
    let seen = format!("cannot listen on {address} ({flag}; {}): {}", failed.step, describe(&failed.error));
    let number = address.port();
    let (meaning, remedy) = match failed.error.raw_os_error() {
        Some(libc::EADDRINUSE) => (
            "another program, perhaps another ringway, listens there",
            Remedy::new(
                format!("ss -ltnp 'sport = :{number}' tells which: stop it, or use another {flag}"),
                format!("systemctl status shows whether the unit runs already; or another {flag}"),
                format!("another container of the host network has it: stop it, or use another {flag}"),
                format!("with hostNetwork one pod per node can have it: use another {flag}"),
            ),
        ),
        Some(libc::EACCES) => (
            "ports below net.ipv4.ip_unprivileged_port_start are privileged",
            Remedy::new(
                format!("setcap cap_net_bind_service=+ep on the binary, or a higher port for {flag}"),
                "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                "--cap-add NET_BIND_SERVICE, or --sysctl net.ipv4.ip_unprivileged_port_start=0",
                "securityContext.capabilities.add: [NET_BIND_SERVICE], or a sysctl net.ipv4.ip_unprivileged_port_start",
            ),
        ),
        Some(libc::EADDRNOTAVAIL) => (
            "no interface here has this address",
            Remedy::everywhere(format!(
                "an address that `ip address` shows, or 0.0.0.0:{number} or [::]:{number}, for {flag}"
            )),
        ),
        _ => ("the kernel does not give it", Remedy::everywhere(format!("another {flag}"))),
    };
    Finding::fail("port", seen, meaning, remedy)
}

/// What the driver of an interface does in the card or late in the stack; `None` where it does not tell.
pub fn offloads(device: &str) -> Option<Offloads> {
    socket::offloads(device).ok()
}
