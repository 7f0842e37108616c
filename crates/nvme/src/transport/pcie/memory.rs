//! Memory of the host, as a function's DMA sees it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use zerocopy::FromZeros;

/// Part of these bytes isn't the function's to touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not in the memory that the host shares")]
pub struct Unmapped {
    pub address: u64,
    pub bytes: u64,
}

/// Memory that the host may write at any time, and may take away. Every access is checked: what isn't wholly mapped is
/// refused, and nothing of it touched.
pub trait HostMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped>;

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped>;

    /// One dword at a multiple of four; what is read after it is at least as new (acquire).
    fn load(&self, address: u64) -> Result<u32, Unmapped>;

    /// One dword at a multiple of four; what was written before it is seen before it (release).
    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped>;

    /// All of it is mapped now.
    fn contains(&self, address: u64, bytes: u64) -> bool;
}

impl<M: HostMemory + ?Sized> HostMemory for &M {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        (**self).read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        (**self).write(address, from)
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        (**self).load(address)
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        (**self).store(address, value)
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        (**self).contains(address, bytes)
    }
}

/// Memory of one process, in dwords, for hosts and functions that live side by side: tests and fuzzing.
#[derive(Clone, Debug)]
pub struct Ram {
    /// Address of its first byte, a multiple of four.
    base: u64,
    words: Arc<Vec<AtomicU32>>,
}

impl Ram {
    /// `bytes`, a multiple of four, of zeros.
    pub fn new(base: u64, bytes: u64) -> Ram {
        debug_assert!(base % 4 == 0 && bytes % 4 == 0, "{base:#x}, {bytes} bytes");
        let words = AtomicU32::new_vec_zeroed((bytes / 4) as usize).expect("as much as the process can have");
        Ram { base, words: Arc::new(words) }
    }

    /// The place of `bytes` from `address` on, counted from the first byte.
    fn place(&self, address: u64, bytes: u64) -> Result<usize, Unmapped> {
        let at = address.checked_sub(self.base);
        let end = at.and_then(|at| at.checked_add(bytes));
        match (at, end) {
            (Some(at), Some(end)) if end <= self.words.len() as u64 * 4 => Ok(at as usize),
            _ => Err(Unmapped { address, bytes }),
        }
    }

    fn word(&self, address: u64) -> Result<&AtomicU32, Unmapped> {
        let at = self.place(address, 4)?;
        if at % 4 != 0 {
            return Err(Unmapped { address, bytes: 4 });
        }
        Ok(&self.words[at / 4])
    }
}

impl HostMemory for Ram {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        let mut at = self.place(address, into.len() as u64)?;
        let mut into = into;
        while !into.is_empty() {
            // Whole words in a loop of their own: most of what a build without optimisation computes is here.
            if at % 4 == 0 && into.len() >= 4 {
                let (here, rest) = into.split_at_mut(into.len() / 4 * 4);
                for (bytes, word) in here.chunks_exact_mut(4).zip(&self.words[at / 4..]) {
                    bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                (at, into) = (at + here.len(), rest);
                continue;
            }
            let word = self.words[at / 4].load(Ordering::Relaxed).to_le_bytes();
            let n = (4 - at % 4).min(into.len());
            let (here, rest) = into.split_at_mut(n);
            here.copy_from_slice(&word[at % 4..][..n]);
            (at, into) = (at + n, rest);
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        let mut at = self.place(address, from.len() as u64)?;
        let mut from = from;
        while !from.is_empty() {
            if at % 4 == 0 && from.len() >= 4 {
                let (here, rest) = from.split_at(from.len() / 4 * 4);
                for (bytes, word) in here.chunks_exact(4).zip(&self.words[at / 4..]) {
                    word.store(
                        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                        Ordering::Relaxed,
                    );
                }
                (at, from) = (at + here.len(), rest);
                continue;
            }
            let n = (4 - at % 4).min(from.len());
            let (here, rest) = from.split_at(n);
            let changed = |old: u32| {
                let mut word = old.to_le_bytes();
                word[at % 4..][..n].copy_from_slice(here);
                Some(u32::from_le_bytes(word))
            };
            let _ = self.words[at / 4].fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
            (at, from) = (at + n, rest);
        }
        Ok(())
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        Ok(self.word(address)?.load(Ordering::Acquire))
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        self.word(address)?.store(value, Ordering::Release);
        Ok(())
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        self.place(address, bytes).is_ok()
    }
}
