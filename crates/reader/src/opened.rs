//! The files of a request of many, as one worker opens them.

use super::place::Range;
use super::request::{changed, Source};
use forebay_model::Error;
use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(super) fn size_of(path: &Path) -> Result<u64, Error> {
    let meta = std::fs::metadata(path).map_err(|e| cannot_open(path, &e))?;
    regular(path, &meta)
}

fn regular(path: &Path, meta: &Metadata) -> Result<u64, Error> {
    if meta.is_file() {
        return Ok(meta.len());
    }
    Err(Error::request(
        format!("read {}", path.display()),
        "it is not a regular file",
        "files only; forebay.open() reads block devices",
    ))
}

pub(super) fn path_of(source: &Source, file: u32) -> &Path {
    match source {
        Source::One { reader, .. } => &reader.path,
        Source::Many(files) => &files[file as usize].0,
        Source::Apart { .. } => unreachable!("its own worker reads it"),
    }
}

/// The files of one slot, open until it is filled.
#[derive(Default)]
pub(super) struct Opened(Vec<(u32, File, i64, i64)>);

impl Opened {
    pub(crate) fn fd(&mut self, files: &[(PathBuf, u64)], piece: &Range) -> Result<RawFd, Error> {
        if let Some((_, file, ..)) = self.0.last().filter(|(number, ..)| *number == piece.file) {
            return Ok(file.as_raw_fd());
        }
        let (path, bytes) = &files[piece.file as usize];
        // A pipe in its place must not make us wait for a writer.
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        let file = opened.map_err(|e| cannot_open(path, &e))?;
        let meta = file.metadata().map_err(|e| cannot_open(path, &e))?;
        let now = regular(path, &meta)?;
        if now != *bytes {
            return Err(Error::run(
                format!("read {} bytes of {}", bytes, path.display()),
                format!("it has {now} bytes"),
                "its actual size, or no sizes at all: the system is then asked",
            ));
        }
        let fd = file.as_raw_fd();
        self.0.push((piece.file, file, meta.mtime(), meta.mtime_nsec()));
        Ok(fd)
    }

    /// After the bytes were read: what is still as it was when it was opened.
    pub(crate) fn check_unchanged(self, source: &Source) -> Result<(), Error> {
        let Source::Many(files) = source else { return Ok(()) };
        for (number, file, seconds, nanoseconds) in self.0 {
            let (path, bytes) = &files[number as usize];
            let now = file.metadata().map_err(|e| cannot_open(path, &e))?;
            if (now.len(), now.mtime(), now.mtime_nsec()) != (*bytes, seconds, nanoseconds) {
                return Err(changed(&path.display().to_string(), *bytes, now.len()));
            }
        }
        Ok(())
    }
}

fn cannot_open(path: &Path, why: &std::io::Error) -> Error {
    let asked = format!("read {}", path.display());
    match why.raw_os_error() {
        Some(libc::ENOENT) => Error::request(asked, "there is no such file", "a path that exists"),
        Some(libc::EACCES | libc::EPERM) => {
            Error::request(asked, "permission denied", "files that you may read")
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            Error::machine(asked, "too many open files", "ulimit -n 1048576")
        }
        _ => Error::run(asked, why.to_string(), "forebay doctor"),
    }
}
