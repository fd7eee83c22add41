//! Trees of known content: pseudo-random bytes that depend on name and offset, so that a byte out of place shows.

use super::sha256;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// Sizes at which some boundary lies: empty, a page, a default pipe, a large pipe or an arena slot.
pub const SIZES: [u64; 12] = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, MIB - 1, MIB, MIB + 1, 64 * MIB];

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * 1024;
pub const GIB: u64 = 1024 * MIB;

/// `length` bytes that no other seed gives (xorshift64*, one word at a time).
pub fn content(seed: u64, length: u64) -> Vec<u8> {
    let length = usize::try_from(length).expect("fits memory");
    let mut bytes = vec![0; length];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        word.copy_from_slice(&random[..word.len()]);
    }
    bytes
}

/// Writes a file of known content and returns the content.
pub fn put(folder: &Path, name: &str, seed: u64, length: u64) -> Vec<u8> {
    let bytes = content(seed, length);
    std::fs::write(folder.join(name), &bytes).expect("write a test file");
    bytes
}

/// Writes a file that is mostly a hole, with marks around the offsets where 32-bit arithmetic breaks.
pub fn put_sparse(path: &Path, length: u64) {
    let file = File::create(path).expect("create a sparse file");
    file.set_len(length).expect("a file system with holes");
    for around in [0, 2 * GIB - 4096, 2 * GIB, 4 * GIB - 4096, 4 * GIB, length - 4096] {
        if around + 4096 <= length {
            file.write_all_at(&content(around + 7, 4096), around).expect("write a mark");
        }
    }
}

/// Name and length of the 5 GiB sparse file of the shared tree.
pub const SPARSE: (&str, u64) = ("sparse.bin", 5 * GIB);

/// The name of the file of this size in the shared tree.
pub fn name_of(size: u64) -> String {
    format!("{size}.bin")
}

/// One tree with a file of every size, made once per build folder and shared by all tests that only read.
pub fn shared() -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let ready = parent.join("tree-1");
        if !ready.is_dir() {
            // Made beside and renamed: another test binary never sees half a tree.
            let making = tempfile::tempdir_in(parent).expect("a scratch folder");
            for size in SIZES.into_iter().chain([KIB, 16 * MIB, 256 * MIB]) {
                put(making.path(), &name_of(size), size, size);
            }
            put_sparse(&making.path().join(SPARSE.0), SPARSE.1);
            std::fs::write(making.path().join("index.html"), "<!doctype html><title>index</title>\n").unwrap();
            let made = making.keep();
            if std::fs::rename(&made, &ready).is_err() {
                std::fs::remove_dir_all(&made).expect("another test was faster");
            }
        }
        ready
    })
}

/// SHA-256 of a file of the shared tree, computed once, from the generator where it fits memory.
pub fn hash_of(size: u64) -> String {
    static HASHES: OnceLock<Mutex<HashMap<u64, String>>> = OnceLock::new();
    let mut hashes = HASHES.get_or_init(Mutex::default).lock().unwrap();
    let compute = || {
        if size == SPARSE.1 { hash_file(&shared().join(SPARSE.0)) } else { sha256(&content(size, size)) }
    };
    hashes.entry(size).or_insert_with(compute).clone()
}

fn hash_file(path: &Path) -> String {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path).expect("a test file"), &mut HashWriter(&mut hash)).expect("read a test file");
    super::client::hex(&hash.finalize())
}

/// Hashes what is written.
pub struct HashWriter<'a>(pub &'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
