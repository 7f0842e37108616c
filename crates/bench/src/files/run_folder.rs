//! The directory of a run: its layout, the calls on one file, and what errors there mean.

use forebay_io::{cache_resident, drop_cached, FileIdentity};
use forebay_model::files::FilesSpec;
use forebay_model::random::Xoshiro256;
use forebay_model::units::format_bytes;
use forebay_model::{Error, Kind};
use forebay_storage::Outputs;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Content is written and read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Files whose residency stands for all of them.
const SAMPLE: u64 = 64;

/// Folder of a run of the metadata phases, with its files.
pub(crate) struct RunFolder {
    /// Made by this run and by nothing else.
    pub root: PathBuf,
    pub files: u64,
    pub workers: u32,
    file_bytes: u64,
    directories: u64,
    sync: bool,
    seed: u64,
    /// Files that each worker has begun to create; cleaning up looks no further.
    begun: Vec<AtomicU64>,
    /// The same of the directories that the mkdir phase makes.
    begun_directories: Vec<AtomicU64>,
    /// Inode of each file that we made, 0 before: another file that took its name since is not removed.
    made: Vec<AtomicU64>,
    /// Held for as long as the run has the folder: who finds it free may remove what a killed run left.
    _lock: Option<File>,
}

impl RunFolder {
    /// Makes `DIR/forebay-files-ID` and the directories in it.
    pub(crate) fn make(spec: &FilesSpec, id: &str) -> Result<RunFolder, Error> {
        let parent = Path::new(&spec.directory);
        let asked = format!("files in {}", parent.display());
        if !parent.is_dir() {
            return Err(match parent.exists() {
                true => Error::request(asked, "it is a file; files are made in a directory", "a directory"),
                false => {
                    let next = format!("mkdir -p {}", parent.display());
                    Error::request(asked, "there is no such directory", next)
                }
            });
        }
        room(parent, spec, &asked)?;
        let mut folder = RunFolder {
            root: parent.join(format!("forebay-files-{id}")),
            files: spec.files,
            workers: spec.workers,
            file_bytes: spec.file_bytes,
            directories: u64::from(spec.directories()).min(spec.files),
            sync: spec.sync,
            seed: spec.seed,
            begun: (0..spec.workers).map(|_| AtomicU64::new(0)).collect(),
            begun_directories: (0..spec.workers).map(|_| AtomicU64::new(0)).collect(),
            made: (0..spec.files).map(|_| AtomicU64::new(0)).collect(),
            _lock: None,
        };
        fs::create_dir(&folder.root).map_err(|e| folder.explain_directory(&e))?;
        folder._lock = File::open(&folder.root).ok();
        if let Some(folder) = &folder._lock {
            // A file system without locks keeps its folders from being taken for left ones, too.
            let _ = rustix::fs::flock(folder, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        }
        for number in 0..folder.directories {
            if let Err(error) = fs::create_dir(folder.directory(number)) {
                let _ = folder.remove_directories();
                return Err(folder.explain_directory(&error));
            }
        }
        Ok(folder)
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.root.join(format!("d{number:04}"))
    }

    pub(crate) fn path(&self, file: u64) -> PathBuf {
        self.directory(file % self.directories).join(format!("f{file:08}"))
    }

    /// The directory that the mkdir phase makes in the place of a file.
    pub(crate) fn path_of_directory(&self, file: u64) -> PathBuf {
        self.directory(file % self.directories).join(format!("m{file:08}"))
    }

    /// Notes that a worker is about to create its next file, or directory.
    pub(crate) fn begin(&self, worker: u32, directory: bool) {
        self.begun_of(directory)[worker as usize].fetch_add(1, Relaxed);
    }

    /// Files, or directories, of a worker that may exist.
    pub(crate) fn begun(&self, worker: u32, directory: bool) -> usize {
        self.begun_of(directory)[worker as usize].load(Relaxed) as usize
    }

    /// Returns whether the mkdir phase may have made any.
    pub(crate) fn has_begun_directories(&self) -> bool {
        self.begun_directories.iter().any(|begun| begun.load(Relaxed) > 0)
    }

    fn begun_of(&self, directory: bool) -> &[AtomicU64] {
        if directory {
            &self.begun_directories
        } else {
            &self.begun
        }
    }

    /// Bytes written, and the time that went into remembering which file this is: no program's create has that.
    pub(crate) fn create(&self, path: &Path, number: u64, content: &[u8]) -> io::Result<(u64, Duration)> {
        let mut file = Outputs::create(path)?;
        let aside = Instant::now();
        self.made[number as usize].store(FileIdentity::from_metadata(&file.metadata()?).digest(), Relaxed);
        let aside = aside.elapsed();
        let mut left = self.file_bytes as usize;
        while left > 0 {
            let piece = left.min(content.len());
            file.write_all(&content[..piece])?;
            left -= piece;
        }
        if self.sync {
            file.sync_all()?;
        }
        Ok((self.file_bytes, aside))
    }

    /// Returns whether the name leads to the file that we made, or nowhere.
    pub(crate) fn is_ours(&self, path: &Path, number: u64) -> bool {
        let made = self.made[number as usize].load(Relaxed);
        match fs::symlink_metadata(path) {
            Ok(meta) => FileIdentity::from_metadata(&meta).digest() == made,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    pub(crate) fn read(&self, path: &Path, space: &mut [u8]) -> io::Result<u64> {
        let mut file = File::open(path)?;
        let mut bytes = 0;
        while bytes < self.file_bytes {
            match file.read(space) {
                Ok(0) => {
                    let found = format!("ends after {bytes} of {} bytes", self.file_bytes);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, found));
                }
                Ok(read) => bytes += read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Writes all of this file system's dirty pages back. An error shows when the pages are dropped.
    pub(crate) fn flush(&self) {
        if let Ok(root) = File::open(&self.root) {
            let _ = rustix::fs::syncfs(&root);
        }
    }

    pub(crate) fn drop_pages(&self, path: &Path) -> io::Result<()> {
        if self.file_bytes == 0 {
            return Ok(());
        }
        drop_cached(&File::open(path)?, 0, 0).map(|_| ()).map_err(io::Error::other)
    }

    /// Share of the files' pages in the page cache, over a sample spread evenly.
    pub(crate) fn resident_share(&self) -> Result<f64, String> {
        let mut pages = 0;
        let mut of = 0;
        let sample = self.files.min(SAMPLE);
        for number in 0..sample {
            let path = self.path(number * self.files / sample);
            let file = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let found = cache_resident(&file, 0, 0)?;
            pages += found.pages;
            of += found.of;
        }
        if of == 0 {
            return Err("the files are empty".into());
        }
        Ok(pages as f64 / of as f64)
    }

    /// Removes the run's directories, which must be empty: anything that someone else put there stays.
    pub(crate) fn remove_directories(&self) -> io::Result<()> {
        for number in 0..self.directories {
            match fs::remove_dir(self.directory(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_dir(&self.root)
    }

    /// An error on one file as the user meets it.
    pub(crate) fn explain(&self, phase: &str, path: &Path, error: &io::Error) -> Error {
        let asked = format!("{phase} of {}", path.display());
        let parent = self.root.parent().unwrap_or(&self.root).display();
        match error.raw_os_error() {
            Some(libc::ENOSPC) => {
                let inodes = rustix::fs::statvfs(&self.root).is_ok_and(|s| s.f_files > 0 && s.f_favail == 0);
                let found =
                    if inodes { "the file system has no inodes left" } else { "the file system is full" };
                Error::run(asked, found, format!("df -h {parent}; df -i {parent}; fewer ‹files›"))
            }
            Some(libc::EDQUOT) => Error::run(asked, "the quota is used up", "quota; fewer ‹files›"),
            Some(libc::EMFILE) => {
                Error::run(asked, "too many open files", format!("ulimit -n; ‹workers› {}", self.workers / 2))
            }
            Some(libc::EIO) => Error::run(asked, "I/O error", "dmesg | tail"),
            _ => Error::run(asked, error.to_string(), format!("ls -ld {parent}")),
        }
    }

    fn explain_directory(&self, error: &io::Error) -> Error {
        let asked = format!("make {}", self.root.display());
        let parent = self.root.parent().unwrap_or(&self.root).display();
        match error.kind() {
            io::ErrorKind::AlreadyExists => Error::request(asked, "it exists already", "another --id"),
            io::ErrorKind::PermissionDenied => {
                Error::request(asked, "no permission", format!("chmod u+w {parent}"))
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                Error::request(asked, "the file system is read-only", format!("findmnt -T {parent}"))
            }
            _ => {
                Error::new(Kind::Machine, asked, error.to_string(), format!("df -h {parent}; df -i {parent}"))
            }
        }
    }
}

/// Refuses what can't fit: a run that fills a disk disturbs everyone on it.
fn room(parent: &Path, spec: &FilesSpec, asked: &str) -> Result<(), Error> {
    let needed = spec.file_bytes.saturating_mul(spec.files);
    let Ok(found) = rustix::fs::statvfs(parent) else { return Ok(()) };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if needed > free {
        let found = format!("{needed} bytes are needed and {free} are free");
        let next = match free / 2 / spec.file_bytes.max(1) {
            0 => {
                format!("a smaller ‹file_bytes› than {}, or another directory", format_bytes(spec.file_bytes))
            }
            files => {
                format!("‹files› {files}, or a smaller ‹file_bytes› than {}", format_bytes(spec.file_bytes))
            }
        };
        let next = if free == 0 { "a directory on a file system with room".into() } else { next };
        return Err(Error::machine(asked, found, next));
    }
    Ok(())
}

/// A thread's bytes: random, so that neither compression nor deduplication flatters the storage.
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub(crate) fn new(folder: &RunFolder, needed: bool, worker: u32) -> Buffer {
        if !needed || folder.file_bytes == 0 {
            return Buffer(Vec::new());
        }
        let piece = PIECE_BYTES.min(folder.file_bytes as usize);
        let mut random = Xoshiro256::new(folder.seed ^ (u64::from(worker) << 32));
        let mut words = vec![[0; 8]; (2 * piece).div_ceil(8)];
        for word in &mut words {
            *word = random.next_u64().to_le_bytes();
        }
        Buffer(words.into_flattened())
    }

    /// A piece of content that differs from file to file.
    pub(crate) fn content(&self, file: u64) -> &[u8] {
        let piece = self.0.len() / 2;
        let at = (file.wrapping_mul(4093) % (piece.max(1) as u64)) as usize;
        &self.0[at..at + piece]
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
