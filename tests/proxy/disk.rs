//! A file system that is full: a small ext4 in a loop device, made and removed here.

use crate::support::origin::{Object, Origin};
use crate::support::{Server, has, is_root, output, tree};
use crate::{beside, cached, get};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system of 64 MiB.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    fn new() -> Option<Self> {
        if !is_root() || !["mkfs.ext4", "mount", "umount"].into_iter().all(has) {
            return None;
        }
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(64 * tree::MIB).unwrap();
        output(Command::new(crate::support::which("mkfs.ext4").unwrap()).args(["-q", "-F", "-m", "0"]).arg(&image));
        let place = folder.path().join("mounted");
        std::fs::create_dir(&place).unwrap();
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place).output().unwrap();
        if !mounted.status.success() {
            crate::support::skip(&format!("a loop device ({})", String::from_utf8_lossy(&mounted.stderr).trim()));
            return None;
        }
        Some(Self { folder })
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.place()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.place()).status();
    }
}

fn fill(origin: &Origin, server: &Server, objects: u64, size: u64) {
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for index in (worker..objects).step_by(2) {
                    let object = Object::new(index, size).fresh(6000);
                    origin.put(&format!("/{index}"), &object);
                    get(&mut client, &format!("/{index}")).expect(&object, &format!("object {index} on a full disk"));
                }
            });
        }
    });
}

fn after(origin: &Origin, server: Server, place: &Path, objects: u64, size: u64) {
    for index in 0..objects {
        let object = Object::new(index, size).fresh(6000);
        get(&mut server.client(), &format!("/{index}")).expect(&object, &format!("object {index} once more"));
    }
    server.stop();
    let server = cached(origin, place).with("--cache-free-bytes", 0).spawn();
    for index in 0..objects {
        let object = Object::new(index, size).fresh(6000);
        get(&mut server.client(), &format!("/{index}")).expect(&object, &format!("object {index} after a restart"));
    }
    server.stop();
}

#[test]
fn a_full_disk_serves_from_the_origin_and_says_so() {
    let _beside = beside();
    let Some(disk) = Disk::new() else { return };
    let origin = Origin::start();
    // Somebody else has most of it.
    let other = disk.place().join("other");
    std::fs::write(&other, vec![1; 40 * tree::MIB as usize]).unwrap();
    let place = disk.place().join("cache");
    let server = cached(&origin, &place).with("--cache-free-bytes", 0).spawn();
    fill(&origin, &server, 12, 4 * tree::MIB + 5);
    let metrics = server.metrics();
    let failures = metrics.sum("ringway_cache_store_failures_total", &[("reason", "enospc")]);
    assert!(failures >= 1.0, "a full disk is counted");
    assert!(std::fs::read(&other).unwrap() == vec![1; 40 * tree::MIB as usize], "nobody else is harmed");
    // There is room again: it is used.
    std::fs::remove_file(&other).unwrap();
    let object = Object::new(99, tree::MIB).fresh(6000);
    origin.put("/99", &object);
    crate::support::eventually("kept again", std::time::Duration::from_secs(10), || {
        let got = get(&mut server.client(), "/99");
        got.expect(&object, "with room again");
        got.is_hit()
    });
    after(&origin, server, &place, 12, 4 * tree::MIB + 5);
}

#[test]
fn free_space_is_left_free() {
    let _beside = beside();
    let Some(disk) = Disk::new() else { return };
    let origin = Origin::start();
    let place = disk.place().join("cache");
    let server = cached(&origin, &place).with("--cache-free-bytes", "24MiB").spawn();
    fill(&origin, &server, 20, 4 * tree::MIB + 5);
    let free = disk.free();
    // The guard looks now and then; what is in flight meanwhile may go over.
    assert!(free >= 14 * tree::MIB, "{free} bytes left free");
    let metrics = server.metrics();
    let guarded = metrics.sum("ringway_limit_hits_total", &[("limit", "cache_free_bytes")])
        + metrics.sum("ringway_cache_store_failures_total", &[("reason", "low_space")])
        + metrics.sum("ringway_cache_evictions_total", &[]);
    assert!(guarded >= 1.0, "the guard is counted");
    after(&origin, server, &place, 20, 4 * tree::MIB + 5);
}

#[test]
fn a_disk_that_runs_out_of_inodes_serves_all_the_same() {
    let _beside = beside();
    let Some(disk) = Disk::new() else { return };
    let origin = Origin::start();
    let place = disk.place().join("cache");
    let server = cached(&origin, &place).with("--cache-free-bytes", 0).spawn();
    // Somebody else takes all the inodes.
    let other = disk.place().join("other");
    std::fs::create_dir(&other).unwrap();
    let taken = (0..200_000).take_while(|index| std::fs::File::create(other.join(index.to_string())).is_ok()).count();
    assert!(taken > 1000, "{taken} inodes");
    fill(&origin, &server, 6, 200_000);
    let failures = server.metrics().sum("ringway_cache_store_failures_total", &[]);
    assert!(failures >= 1.0, "counted");
    std::fs::remove_dir_all(&other).unwrap();
    after(&origin, server, &place, 6, 200_000);
}
