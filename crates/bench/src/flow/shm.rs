//! A page of counters in a file, which all processes that map it see.

#![allow(unsafe_code, reason = "memory shared with another process")]

use forebay_model::Error;
use forebay_storage::Outputs;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = 4096;
/// The first word, which tells such a file from others.
const MARK: u64 = u64::from_be_bytes(*b"forebay\x01");

pub(crate) struct Sheet {
    at: NonNull<AtomicU64>,
    /// A mapping that outlasts its file would end the process.
    _file: File,
}

// SAFETY: the memory is only accessed as atomics.
unsafe impl Send for Sheet {}

impl Sheet {
    /// The file's counters; a new file's are all 0.
    ///
    /// # Errors
    /// `Request`: it can't be opened, or is somebody's.
    pub(crate) fn open(path: &Path) -> Result<Sheet, Error> {
        let refused = |found: String| {
            Error::request(format!("‹flow› {}", path.display()), found, "a name of its own: /dev/shm/NAME")
        };
        let io = |e: std::io::Error| refused(e.to_string());
        let file = Outputs::share(path, 0o600).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() || ![0, BYTES as u64].contains(&meta.len()) {
            return Err(refused("isn't a file of ‹flow›".into()));
        }
        file.set_len(BYTES as u64).map_err(io)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that is as long.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io(std::io::Error::last_os_error()));
        }
        let sheet = Sheet { at: NonNull::new(at.cast()).expect("mmap gave an address"), _file: file };
        let mark = sheet.word(0).compare_exchange(0, MARK, Ordering::Relaxed, Ordering::Relaxed);
        match mark {
            Ok(_) | Err(MARK) => Ok(sheet),
            Err(_) => Err(refused("isn't a file of ‹flow›".into())),
        }
    }

    pub(crate) fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number < BYTES / 8, "a word of the page");
        // SAFETY: within the mapping, which lives as long as this, and aligned, for a page is.
        unsafe { &*self.at.as_ptr().add(number) }
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        // SAFETY: mapped by us, with this length, and no reference to it outlives this.
        unsafe { libc::munmap(self.at.as_ptr().cast(), BYTES) };
    }
}
