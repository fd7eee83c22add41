//! Names: decoded once, never outside the root, never a device that blocks.

use crate::support::{Server, Start, eventually, is_root};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SECRET: &str = "the secret outside";

/// `outer/secret.txt` and `outer/root/`, which is served.
fn site() -> (tempfile::TempDir, Server) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(outer.path().join("secret.txt"), SECRET).unwrap();
    std::fs::write(root.join("a.txt"), "inside").unwrap();
    std::fs::write(root.join("sub/b.txt"), "deeper").unwrap();
    std::fs::write(root.join("with space & more+.txt"), "odd").unwrap();
    std::fs::write(root.join("%2e%2e"), "literal").unwrap();
    std::fs::write(root.join("..."), "three dots").unwrap();
    std::fs::write(root.join("back\\slash"), "backslash").unwrap();
    std::fs::write(root.join(OsStr::from_bytes(b"caf\xe9")), "latin").unwrap();
    symlink("a.txt", root.join("inside-link")).unwrap();
    symlink("sub", root.join("inside-folder")).unwrap();
    symlink("../secret.txt", root.join("outside-link")).unwrap();
    symlink("..", root.join("outside-folder")).unwrap();
    symlink(outer.path().join("secret.txt"), root.join("absolute-link")).unwrap();
    symlink("/etc", root.join("etc")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    let server = Start::new(&root).spawn();
    (outer, server)
}

#[test]
fn odd_names_are_served_decoded_once() {
    let (_outer, server) = site();
    let mut client = server.client();
    for (path, body) in [
        ("/a.txt", "inside"),
        ("/%61.txt", "inside"),
        ("/%61%2Etxt", "inside"),
        ("/sub/b.txt", "deeper"),
        ("/with%20space%20&%20more+.txt", "odd"),
        ("/caf%E9", "latin"),
        ("/caf%e9", "latin"),
        ("/%252e%252e", "literal"),
        ("/...", "three dots"),
        ("/back%5Cslash", "backslash"),
        ("/./a.txt", "inside"),
    ] {
        let reply = client.get(path);
        if path.contains("/./") && reply.status != 200 {
            assert!(matches!(reply.status, 400 | 404), "{path}: {}", reply.status);
            continue;
        }
        assert_eq!((reply.status, String::from_utf8_lossy(&reply.body).as_ref()), (200, body), "{path}");
    }
}

#[test]
fn nothing_leads_out_of_the_root() {
    let (_outer, server) = site();
    for path in [
        "/../secret.txt",
        "/sub/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2E%2E/secret.txt",
        "/.%2e/secret.txt",
        "/..%2fsecret.txt",
        "/..%2Fsecret.txt",
        "/sub%2f..%2f..%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "/%252e%252e%252fsecret.txt",
        "/..%5csecret.txt",
        "/..\\secret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/..;/secret.txt",
        "//../secret.txt",
        "/./../secret.txt",
        "/sub/%2e%2e/%2e%2e/secret.txt",
        "/../../../../../../etc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/magic/etc/passwd",
        "/outside-link",
        "/outside-folder/secret.txt",
        "/absolute-link",
        "/loop",
        "/..",
        "/sub/..%00/a.txt",
    ] {
        let reply = server.client().get(path);
        assert!(matches!(reply.status, 400 | 403 | 404), "{path}: {}", reply.status);
        let body = String::from_utf8_lossy(&reply.body);
        assert!(!body.contains(SECRET) && !body.contains("root:"), "{path} leads out");
    }
}

#[test]
fn bad_escapes_are_refused() {
    let (_outer, server) = site();
    for path in ["/%00", "/a.txt%00", "/a.txt%00.html", "/%", "/%4", "/%zz", "/a%2", "/%2fa.txt", "/sub%2fb.txt"] {
        let reply = server.client().get(path);
        if crate::support::against_nginx() {
            continue;
        }
        assert_eq!(reply.status, 400, "{path}");
    }
}

#[test]
fn links_inside_the_root_work() {
    let (_outer, server) = site();
    let mut client = server.client();
    assert_eq!(client.get("/inside-link").body, b"inside");
    assert_eq!(client.get("/inside-folder/b.txt").body, b"deeper");
}

#[test]
fn a_folder_swapped_for_a_link_never_leads_out() {
    let (outer, server) = site();
    let root = outer.path().join("root");
    std::fs::create_dir(root.join("swap")).unwrap();
    std::fs::write(root.join("swap/secret.txt"), "harmless").unwrap();
    symlink("..", root.join("swap-link")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // RENAME_EXCHANGE: the name is now the folder, now the link, and never missing.
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    root.join("swap"),
                    rustix::fs::CWD,
                    root.join("swap-link"),
                    flags,
                )
                .expect("exchange");
            }
        });
        let start = Instant::now();
        let mut client = server.client();
        let mut told = None;
        while start.elapsed() < Duration::from_millis(700) && told.is_none() {
            let reply = client.get("/swap/secret.txt");
            if reply.body == SECRET.as_bytes() {
                told = Some(reply);
            } else if reply.closes() {
                client = server.client();
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(told.is_none(), "the link led out: {told:?}");
    });
}

#[test]
fn what_is_no_file_is_not_found_and_blocks_nobody() {
    let (outer, server) = site();
    let root = outer.path().join("root");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).expect("mkfifo");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket file");
    let mut names = vec!["/fifo", "/socket"];
    if is_root() {
        let device = rustix::fs::makedev(1, 5); // /dev/zero: reading it never ends
        rustix::fs::mknodat(rustix::fs::CWD, root.join("zero"), rustix::fs::FileType::CharacterDevice, mode, device)
            .expect("mknod");
        names.push("/zero");
    }
    let mut bystander = server.client();
    for name in names {
        let start = Instant::now();
        let mut client = server.client();
        let reply = client.get(name);
        assert_eq!(reply.status, 404, "{name}");
        assert_eq!(client.get(&format!("{name}/")).status, 404, "{name}/");
        assert_eq!(bystander.get("/a.txt").body, b"inside");
        assert!(start.elapsed() < Duration::from_secs(2), "{name} blocked");
    }
}

#[test]
fn unreadable_files_are_forbidden() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return;
    }
    // As another user: root reads everything.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("shut.txt"), "x").unwrap();
    std::fs::set_permissions(root.join("shut.txt"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(root.join("open.txt"), "x").unwrap();
    let binary = folder.path().join("ringway");
    std::fs::copy(crate::support::BINARY, &binary).unwrap();
    if crate::support::against_nginx() {
        return;
    }
    let server = Start::new(&root).binary(&binary).user(65534).spawn();
    let mut client = server.client();
    assert_eq!(client.get("/shut.txt").status, 403);
    assert_eq!(client.get("/open.txt").status, 200);
}

#[test]
fn a_name_that_was_missing_appears_in_time() {
    let (outer, server) = site();
    let mut client = server.client();
    assert_eq!(client.get("/later.txt").status, 404);
    std::fs::write(outer.path().join("root/later.txt"), "here").unwrap();
    eventually("a new file is served", Duration::from_secs(3), || client.get("/later.txt").status == 200);
    std::fs::remove_file(outer.path().join("root/later.txt")).unwrap();
    eventually("a removed file is gone", Duration::from_secs(3), || client.get("/later.txt").status == 404);
}
