//! What is sent, and how the receiver knows that it got it: blocks with their CRC32C, in the order they come.
//!
//! Payload is a cycle: the same bytes over and over, from memory or from one file or many. A receiver that was told the
//! cycle's blocks checks every one at line rate. A block that is missing, doubled, moved or changed is wrong.

use crate::error::{Error, Kind, Result};
use crate::sys;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Bytes of a block; the last one of a file is shorter.
pub const BLOCK: usize = 64 << 10;
/// Files of a directory at most.
const FILES_MOST: usize = 100_000;
/// Bytes whose blocks are told to the receiver at most: their sums are one frame of the control protocol.
const VERIFY_MOST: u64 = 16 << 30;

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Bytes.
    pub len: u32,
    /// Their CRC32C.
    pub crc: u32,
}

/// What is sent.
#[derive(Debug)]
pub struct Payload {
    /// Files, in the order they are sent; empty where memory is sent.
    pub files: Vec<(PathBuf, File, u64)>,
    /// The cycle in memory, where memory is sent.
    pub memory: Vec<u8>,
}

impl Payload {
    /// `bytes` of memory filled from `seed`.
    pub fn memory(bytes: usize, seed: u64) -> Self {
        Self { files: Vec::new(), memory: fill(bytes, seed) }
    }

    /// A file in memory of `bytes`, filled from `seed`.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn memory_file(bytes: u64, seed: u64) -> Result<Self> {
        let failed = |error: &std::io::Error| {
            Error::os(format!("make a file of {bytes} bytes in memory"), error)
                .remedy("use a smaller --size, or --file")
        };
        let fd: OwnedFd = sys::memory_file(c"ringway-blast").map_err(|error| failed(&error))?;
        let mut file = File::from(fd);
        let chunk = fill(1 << 20, seed);
        let mut left = bytes;
        let mut number = 0u64;
        let mut part = chunk.clone();
        while left > 0 {
            // Every mebibyte begins with its number, so that no two are alike.
            part[..8].copy_from_slice(&number.to_le_bytes());
            let now = left.min(part.len() as u64) as usize;
            file.write_all(&part[..now]).map_err(|error| failed(&error))?;
            left -= now as u64;
            number += 1;
        }
        Ok(Self { files: vec![(PathBuf::from("memory"), file, bytes)], memory: Vec::new() })
    }

    /// One file.
    ///
    /// # Errors
    /// It cannot be read, is no regular file, or is empty.
    pub fn file(path: &Path) -> Result<Self> {
        let tried = || format!("send {}", path.display());
        let file = File::open(path).map_err(|error| Error::os(tried(), &error).kind_is(Kind::Config))?;
        let meta = file.metadata().map_err(|error| Error::os(tried(), &error))?;
        if !meta.is_file() {
            return Err(
                Error::new(Kind::Config, tried(), "it is not a regular file").remedy("for a directory use --files")
            );
        }
        if meta.len() == 0 {
            return Err(Error::new(Kind::Config, tried(), "it is empty"));
        }
        Ok(Self { files: vec![(path.to_owned(), file, meta.len())], memory: Vec::new() })
    }

    /// Every regular file of a directory that is not empty, by name.
    ///
    /// # Errors
    /// It cannot be read, or has no such file, or too many.
    pub fn directory(path: &Path) -> Result<Self> {
        let tried = || format!("send the files of {}", path.display());
        let entries = std::fs::read_dir(path).map_err(|error| Error::os(tried(), &error).kind_is(Kind::Config))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::os(tried(), &error))?;
            if entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
                names.push(entry.path());
            }
            if names.len() > FILES_MOST {
                return Err(Error::new(Kind::Config, tried(), format!("there are more than {FILES_MOST}")));
            }
        }
        if names.is_empty() {
            return Err(Error::new(Kind::Config, tried(), "there is no file in it that has bytes"));
        }
        names.sort();
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            files.append(&mut Self::file(&name)?.files);
        }
        Ok(Self { files, memory: Vec::new() })
    }

    /// Bytes of the cycle.
    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64 + self.files.iter().map(|(_, _, len)| len).sum::<u64>()
    }

    /// The blocks of the cycle.
    ///
    /// # Errors
    /// A file cannot be read, or they are too many to be told.
    pub fn blocks(&self) -> Result<Vec<Block>> {
        if self.bytes() > VERIFY_MOST {
            return Err(Error::new(
                Kind::Usage,
                "verify the payload",
                format!("its {} GiB are more than {} GiB", self.bytes() >> 30, VERIFY_MOST >> 30),
            ));
        }
        let mut blocks: Vec<Block> = self.memory.chunks(BLOCK).map(block).collect();
        let mut bytes = vec![0; BLOCK];
        for (path, file, len) in &self.files {
            let mut left = *len;
            let mut at = 0;
            while left > 0 {
                let now = left.min(BLOCK as u64) as usize;
                std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes[..now], at)
                    .map_err(|error| Error::os(format!("read {}", path.display()), &error))?;
                blocks.push(block(&bytes[..now]));
                left -= now as u64;
                at += now as u64;
            }
        }
        Ok(blocks)
    }

    /// Reads every file once, so that what is measured is not the disk.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn warm(&self) -> Result<()> {
        let mut bytes = vec![0; 1 << 20];
        for (path, file, _) in &self.files {
            let mut file = file;
            std::io::Seek::rewind(&mut file).map_err(|error| Error::os(format!("read {}", path.display()), &error))?;
            while file.read(&mut bytes).map_err(|error| Error::os(format!("read {}", path.display()), &error))? > 0 {}
        }
        Ok(())
    }
}

fn block(bytes: &[u8]) -> Block {
    Block { len: bytes.len() as u32, crc: crc32c::crc32c(bytes) }
}

/// Bytes from a seed (SplitMix64), so that a stale or foreign payload has other sums.
fn fill(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Checks a stream as it comes, in pieces of any size.
#[derive(Debug)]
pub struct Checker {
    blocks: std::sync::Arc<[Block]>,
    at: usize,
    crc: u32,
    seen: u32,
    done: u64,
    offset: u64,
}

/// Payload that is not what was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// First byte of the wrong block in the stream.
    pub offset: u64,
    /// What it should sum to.
    pub wanted: u32,
    /// What it sums to.
    pub got: u32,
}

impl Checker {
    /// A checker for these blocks, at least one, over and over.
    pub fn new(blocks: std::sync::Arc<[Block]>) -> Self {
        Self { blocks, at: 0, crc: 0, seen: 0, done: 0, offset: 0 }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// A block does not have its sum.
    pub fn take(&mut self, mut bytes: &[u8]) -> std::result::Result<(), Wrong> {
        while !bytes.is_empty() {
            let Some(block) = self.blocks.get(self.at) else { return Ok(()) };
            let now = bytes.len().min((block.len - self.seen) as usize);
            self.crc = crc32c::crc32c_append(self.crc, &bytes[..now]);
            self.seen += now as u32;
            bytes = &bytes[now..];
            if self.seen == block.len {
                if self.crc != block.crc {
                    return Err(Wrong { offset: self.offset, wanted: block.crc, got: self.crc });
                }
                self.offset += u64::from(block.len);
                self.done += 1;
                (self.crc, self.seen) = (0, 0);
                self.at = (self.at + 1) % self.blocks.len();
            }
        }
        Ok(())
    }

    /// Blocks that were right.
    pub fn verified(&self) -> u64 {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn a_file_in_memory_has_no_two_mebibytes_alike() {
        let payload = Payload::memory_file((2 << 20) + 100, 1).expect("made");
        let blocks = payload.blocks().expect("read");
        assert_eq!(blocks.len(), 33);
        assert_eq!(blocks[32].len, 100);
        assert_ne!(blocks[0].crc, blocks[16].crc);
        assert_eq!(blocks[1].crc, blocks[17].crc);
        assert_eq!(payload.bytes(), (2 << 20) + 100);
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        let folder = tempfile::tempdir().expect("folder");
        let told = |result: Result<Payload>| result.expect_err("refused").to_string();
        assert!(told(Payload::directory(folder.path())).contains("no file in it"));
        assert!(told(Payload::file(folder.path())).contains("--files"));
        assert!(told(Payload::file(&folder.path().join("x"))).contains("ENOENT"));
        std::fs::write(folder.path().join("empty"), b"").expect("write");
        assert!(told(Payload::file(&folder.path().join("empty"))).contains("empty"));
        std::fs::write(folder.path().join("b"), b"22").expect("write");
        std::fs::write(folder.path().join("a"), b"1").expect("write");
        let payload = Payload::directory(folder.path()).expect("two files");
        assert_eq!(payload.files.iter().map(|(_, _, len)| *len).collect::<Vec<_>>(), [1, 2]);
    }

    proptest! {
        #[test]
        fn any_cut_of_the_right_stream_is_right_and_a_flipped_bit_is_not(
            cuts in proptest::collection::vec(1usize..100_000, 1..12), bytes in 1usize..200_000, flip in any::<u64>(),
        ) {
            let payload = Payload::memory(bytes, 42);
            let blocks: Arc<[Block]> = payload.blocks().expect("memory").into();
            let total: usize = cuts.iter().sum();
            let mut stream: Vec<u8> = payload.memory.iter().copied().cycle().take(total).collect();
            let check = |stream: &[u8]| {
                let mut checker = Checker::new(Arc::clone(&blocks));
                let mut at = 0;
                for cut in &cuts {
                    checker.take(&stream[at..at + cut])?;
                    at += cut;
                }
                Ok::<u64, Wrong>(checker.verified())
            };
            let verified = check(&stream);
            prop_assert!(verified.is_ok());
            // A flip in a block that came whole is seen.
            let whole: usize = (0..verified.unwrap_or(0) as usize).map(|at| blocks[at % blocks.len()].len as usize).sum();
            if whole > 0 {
                let at = (flip % whole as u64) as usize;
                stream[at] ^= 1;
                prop_assert!(check(&stream).is_err());
            }
        }
    }
}
