//! `.forebay.json`: which files of a directory Forebay made, and what they hold.
//! What isn't in it is somebody else's, and isn't written to unless named.
//!
//! The same file carries the lock that keeps two writing runs apart. Runs of one command that write side by side share it,
//! and each puts what it knows of its own files into the list that is there.

use crate::outputs::Outputs;
use forebay_io::{monotonic_now, name_taken, FileIdentity};
use forebay_model::Error;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) const NAME: &str = ".forebay.json";
const SCHEMA: &str = "forebay.manifest/1";
/// Its name before, which the metadata phases' record has too.
const SCHEMA_BEFORE: &str = "forebay.files/1";
/// Two million files.
const BYTES_MAX: u64 = 256 << 20;

/// Set where other runs of the same command use folders at the same time: the files that more than one of them writes.
static BESIDE: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

impl HeldManifest {
    /// From now on this process is one of several that share their folders. `written`: files that it isn't alone in writing,
    /// of which nobody can say what they hold afterwards. The first call holds.
    pub fn run_beside_others(written: &[PathBuf]) {
        let whole = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let _ = BESIDE.set(written.iter().map(whole).collect());
    }
}

fn is_written_by_others(file: &Path) -> bool {
    let whole = || std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    BESIDE.get().is_some_and(|written| !written.is_empty() && written.contains(&whole()))
}

/// Holds a list for the moment in which it is read or written, where several runs share the folder's lock. A lock of another
/// kind, which doesn't meet the folder's.
struct Turn(OwnedFd);

impl Turn {
    /// To read. A list that can't be locked so (on NFS) isn't shared either.
    fn to_read(list: &File) -> Option<Turn> {
        Turn::take(list, FlockOperation::NonBlockingLockShared).ok()
    }

    fn to_write(list: &File) -> std::io::Result<Turn> {
        Turn::take(list, FlockOperation::NonBlockingLockExclusive)
    }

    fn take(list: &File, operation: FlockOperation) -> std::io::Result<Turn> {
        const PATIENCE: Duration = Duration::from_secs(20);
        let (held, end) = (list.as_fd().try_clone_to_owned()?, monotonic_now() + PATIENCE);
        loop {
            match rustix::fs::fcntl_lock(&held, operation) {
                Err(Errno::AGAIN | Errno::ACCESS) if monotonic_now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                done => return Ok(done.map(|()| Turn(held))?),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_lock(&self.0, FlockOperation::Unlock);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    schema: String,
    files: BTreeMap<String, Entry>,
}

/// The inode of a file that is expected; no file has it.
const EXPECTED: u64 = 0;
/// Time that a file's birth may be behind the clock: file systems go by the kernel's ticks.
const BIRTH_LAG: std::time::Duration = std::time::Duration::from_millis(50);

/// One file of ours. Inode and time of birth tell it from another that took its name:
/// file systems give an inode that fell free to the next file. Size and times tell whether
/// it still holds what we left in it: `cp` over a file of ours makes it the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub inode: u64,
    /// Nanoseconds since the epoch; null where the file system doesn't say.
    #[serde(default)]
    pub born_ns: Option<u64>,
    pub bytes: u64,
    /// As our last run left it; null while a run makes or writes it, and after one that was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Times>,
    /// Seed of its content; null where it holds no seeded content.
    pub seed: Option<u64>,
    /// Seed of what was written of it, where that is not known to be all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partly: Option<u64>,
    /// Name that the content carries.
    pub content: String,
}

/// When a file's content and its inode last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Nanoseconds since the epoch.
    pub modified_ns: i64,
    /// Time of the last change, which nobody can set: it tells of a copy that brought its own time of modification.
    pub changed_ns: i64,
}

impl Times {
    fn from_metadata(meta: &Metadata) -> Times {
        let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
        Times {
            modified_ns: ns(meta.mtime(), meta.mtime_nsec()),
            changed_ns: ns(meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// The content of a file that Forebay created.
pub struct Content<'a> {
    /// None where it holds no seeded content.
    pub seed: Option<u64>,
    pub name: &'a str,
}

impl Entry {
    fn is_as_left(&self, meta: &Metadata) -> bool {
        self.left.is_none_or(|left| left == Times::from_metadata(meta) && self.bytes == meta.len())
    }
}

/// A directory whose manifest is held: shared by readers, alone by a writer.
pub struct HeldManifest {
    file: Option<File>,
    /// Ours to write.
    alone: bool,
    manifest: Manifest,
    path: PathBuf,
    /// Files that it says something new of.
    touched: BTreeSet<String>,
}

impl HeldManifest {
    /// For reading. A directory without a manifest has none of our files; it isn't touched.
    pub fn shared(dir: &Path) -> Result<HeldManifest, Error> {
        let path = dir.join(NAME);
        let Ok(mut file) = plain().open(&path) else {
            return Ok(HeldManifest::new(None, false, Manifest::default(), path));
        };
        lock(&file, FlockOperation::NonBlockingLockShared, dir)?;
        let manifest = read(&mut file, &path)?;
        Ok(HeldManifest::new(Some(file), false, manifest, path))
    }

    /// Checks, before any file is made, that the directory has a manifest that can be written, or none.
    pub fn check(dir: &Path) -> Result<(), Error> {
        match Outputs::there(&dir.join(NAME)).map_err(|e| cannot_write(dir, &e))? {
            None => Ok(()),
            Some(meta) if meta.is_file() => HeldManifest::shared(dir).map(drop),
            Some(meta) => {
                let errno = if meta.is_symlink() { libc::ELOOP } else { libc::EISDIR };
                Err(cannot_write(dir, &std::io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// For making and writing files.
    pub fn alone(dir: &Path) -> Result<HeldManifest, Error> {
        let path = dir.join(NAME);
        let mut file = loop {
            let opened = Outputs::share(&path, 0o666);
            let file = opened.map_err(|e| cannot_write(dir, &e))?;
            let operation = match BESIDE.get() {
                Some(_) => FlockOperation::NonBlockingLockShared,
                None => FlockOperation::NonBlockingLockExclusive,
            };
            lock(&file, operation, dir)?;
            // A run that ended in between may have removed the very file that is locked now.
            if is_still(&file, &path) {
                break file;
            }
        };
        let manifest = read(&mut file, &path)?;
        Ok(HeldManifest::new(Some(file), true, manifest, path))
    }

    fn new(file: Option<File>, alone: bool, manifest: Manifest, path: PathBuf) -> HeldManifest {
        HeldManifest { file, alone, manifest, path, touched: BTreeSet::new() }
    }

    /// Returns the entry of a file: None if it isn't ours, isn't the file that we made, or was changed since.
    pub fn entry(&self, file: &Path) -> Option<&Entry> {
        Some(self.found(file)?.0)
    }

    /// Returns the entry of the file that we made, changed since or not: for comparing its content.
    pub fn made_as(&self, file: &Path) -> Option<&Entry> {
        Some(self.made(file)?.0)
    }

    /// Returns whether it is the file that we made, and was changed since.
    pub(crate) fn is_changed(&self, file: &Path) -> bool {
        self.made(file).is_some_and(|(entry, meta)| !entry.is_as_left(&meta))
    }

    /// Identity of the file at this path, if it is Forebay's.
    pub fn identity(&self, file: &Path) -> Option<FileIdentity> {
        Some(self.found(file)?.1)
    }

    fn found(&self, file: &Path) -> Option<(&Entry, FileIdentity)> {
        let (entry, meta) = self.made(file)?;
        entry.is_as_left(&meta).then(|| (entry, FileIdentity::from_metadata(&meta)))
    }

    /// The file that lies there, where it is the one that we made.
    fn made(&self, file: &Path) -> Option<(&Entry, Metadata)> {
        let entry = self.manifest.files.get(name_of(file)?)?;
        let meta = std::fs::symlink_metadata(file).ok()?;
        let found = FileIdentity::from_metadata(&meta);
        let is_ours = match (entry.inode, entry.born_ns, found.born_ns) {
            (EXPECTED, Some(from), Some(born)) => meta.is_file() && born >= from,
            (inode, None, _) => inode == found.inode,
            (inode, born, found_born) => inode == found.inode && born == found_born,
        };
        is_ours.then_some((entry, meta))
    }

    /// This run is going to make a file of this name, where none is, in a folder in which nobody else makes any: one that
    /// is born there from now on is ours, should the run be killed before it can say which it was.
    pub fn expect(&mut self, file: &Path, content: &str) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let born_ns = now.saturating_sub(BIRTH_LAG).as_nanos() as u64;
        self.begin(file, FileIdentity { device: 0, inode: EXPECTED, born_ns: Some(born_ns) }, 0, content);
    }

    /// A file of ours is made or written from now on: nobody knows what it holds.
    pub fn begin(&mut self, file: &Path, made: FileIdentity, bytes: u64, content: &str) {
        let Some(name) = name_of(file) else { return };
        let entry = Entry {
            inode: made.inode,
            born_ns: made.born_ns,
            bytes,
            left: None,
            seed: None,
            partly: None,
            content: content.to_string(),
        };
        self.manifest.files.insert(name.to_string(), entry);
        self.touched.insert(name.to_string());
    }

    /// A file that was begun is left as it lies there now. One that took its name isn't claimed: that is the error.
    pub fn leave(&mut self, file: &Path, made: FileIdentity, content: &Content) -> Result<(), Error> {
        let meta =
            std::fs::symlink_metadata(file).ok().filter(|meta| FileIdentity::from_metadata(meta) == made);
        let Some(meta) = meta else {
            self.remove(file);
            return Err(name_taken(file));
        };
        self.begin(file, made, meta.len(), content.name);
        if let Some(entry) = name_of(file).and_then(|name| self.manifest.files.get_mut(name)) {
            entry.left = Some(Times::from_metadata(&meta));
            entry.seed = content.seed.filter(|_| !is_written_by_others(file));
        }
        Ok(())
    }

    /// Nothing was written to a file that was begun: it holds what this entry says.
    pub fn put_back(&mut self, file: &Path, made: FileIdentity, entry: Entry) {
        let meta =
            std::fs::symlink_metadata(file).ok().filter(|meta| FileIdentity::from_metadata(meta) == made);
        let (Some(meta), Some(name)) = (meta, name_of(file)) else { return self.remove(file) };
        let left = entry.left.map(|_| Times::from_metadata(&meta));
        self.manifest.files.insert(name.to_string(), Entry { left, ..entry });
        self.touched.insert(name.to_string());
    }

    /// Parts of a file that `leave` just told of hold seeded content.
    pub(crate) fn note_part(&mut self, file: &Path, seed: u64) {
        if is_written_by_others(file) {
            return;
        }
        if let Some(entry) = name_of(file).and_then(|name| self.manifest.files.get_mut(name)) {
            entry.partly = Some(seed);
        }
    }

    pub fn remove(&mut self, file: &Path) {
        if let Some(name) = name_of(file) {
            self.manifest.files.remove(name);
            self.touched.insert(name.to_string());
        }
    }

    /// Writes it back in place: the lock is on this very file. What is only read stays as it is.
    pub fn save(&mut self) -> Result<(), Error> {
        let Some(file) = self.file.as_mut().filter(|_| self.alone) else { return Ok(()) };
        let refused = |e: std::io::Error| {
            Error::run(format!("write {}", self.path.display()), e.to_string(), "df -h; a local file system")
        };
        let turn = BESIDE.get().map(|_| Turn::to_write(file)).transpose().map_err(refused)?;
        if turn.is_some() {
            file.seek(SeekFrom::Start(0)).map_err(refused)?;
            let mut there = read_unlocked(file, &self.path)?;
            for name in &self.touched {
                match self.manifest.files.remove(name) {
                    Some(entry) => there.files.insert(name.clone(), entry),
                    None => there.files.remove(name),
                };
            }
            self.manifest = there;
        }
        self.manifest.schema = SCHEMA.into();
        let text = serde_json::to_string_pretty(&self.manifest).expect("a manifest is plain data");
        if text.len() as u64 > BYTES_MAX {
            let found = format!("{} files are more than a list holds", self.manifest.files.len());
            return Err(Error::request(format!("write {}", self.path.display()), found, "fewer ‹files›"));
        }
        let mut write = || -> std::io::Result<()> {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write().map_err(|e| Error::run(format!("write {}", self.path.display()), e.to_string(), "df -h"))
    }

    /// Removes the manifest of a directory that holds nothing of ours (any more).
    pub fn remove_if_empty(mut self) {
        // The last of several that leaves has a look.
        let turn = self.file.as_ref().filter(|_| BESIDE.get().is_some()).map(Turn::to_write);
        if let (Some(turn), Some(file)) = (&turn, &mut self.file) {
            let last = rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let there = file.seek(SeekFrom::Start(0)).ok().and_then(|_| read_unlocked(file, &self.path).ok());
            match there.filter(|_| last && turn.is_ok()) {
                Some(there) => self.manifest = there,
                None => return,
            }
        }
        let is_ours = self.file.as_ref().is_some_and(|file| is_still(file, &self.path));
        if self.alone && self.manifest.files.is_empty() && is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A list of files is a plain file: a link isn't followed, and a pipe isn't waited for.
fn plain() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    options
}

fn is_still(file: &File, path: &Path) -> bool {
    let (held, there) = (file.metadata(), std::fs::symlink_metadata(path));
    matches!((held, there), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

fn name_of(file: &Path) -> Option<&str> {
    file.file_name()?.to_str()
}

/// Checks that this user may make files there.
pub(crate) fn may_write(dir: &Path) -> Result<(), Error> {
    use rustix::fs::{access, Access};
    access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| cannot_write(dir, &e.into()))
}

fn cannot_write(dir: &Path, e: &std::io::Error) -> Error {
    let asked = format!("write in {}", dir.display());
    match e.raw_os_error() {
        Some(libc::EROFS) => Error::request(
            asked,
            "the file system is mounted read-only",
            "a directory on a writable file system",
        ),
        Some(libc::EACCES | libc::EPERM) => Error::request(
            asked,
            "permission denied",
            format!("ls -ld {}; a directory that you can write to", dir.display()),
        ),
        Some(libc::ENOENT | libc::ENOTDIR) => {
            Error::request(asked, "there is no such directory", format!("mkdir -p {}", dir.display()))
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            Error::machine(asked, "the file system is full", format!("df -h {}", dir.display()))
        }
        Some(libc::ELOOP) => {
            let found = format!("its {NAME} is a link, and a list of files is not written through one");
            Error::request(asked, found, format!("rm {}", dir.join(NAME).display()))
        }
        Some(libc::EISDIR | libc::ENXIO) => {
            let found = format!("its {NAME} isn't a file, and Forebay lists there which files it created");
            Error::request(asked, found, "another directory")
        }
        _ => Error::run(asked, e.to_string(), "df -h; df -i; dmesg | tail"),
    }
}

fn lock(file: &File, operation: FlockOperation, dir: &Path) -> Result<(), Error> {
    if rustix::fs::flock(file, operation).is_ok() {
        return Ok(());
    }
    let found = if matches!(operation, FlockOperation::NonBlockingLockExclusive) {
        "another Forebay run is using them"
    } else {
        "another Forebay run is writing them"
    };
    Err(Error::machine(
        format!("use the files in {}", dir.display()),
        found,
        "another directory, or wait for that run to end",
    ))
}

fn read(file: &mut File, path: &Path) -> Result<Manifest, Error> {
    let _turn = Turn::to_read(file);
    read_unlocked(file, path)
}

fn read_unlocked(file: &mut File, path: &Path) -> Result<Manifest, Error> {
    let damaged = |why: String| {
        let found = format!("isn't a list of files that Forebay wrote: {why}");
        Error::request(path.display().to_string(), found, format!("mv {0} {0}.bad", path.display()))
    };
    let mut text = String::new();
    Read::by_ref(file).take(BYTES_MAX).read_to_string(&mut text).map_err(|e| damaged(e.to_string()))?;
    if text.is_empty() {
        return Ok(Manifest { schema: SCHEMA.into(), files: BTreeMap::new() });
    }
    let manifest: Manifest = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    if ![SCHEMA, SCHEMA_BEFORE].contains(&manifest.schema.as_str()) {
        return Err(damaged(format!("its schema is '{}'", manifest.schema)));
    }
    Ok(manifest)
}
