//! The folder that entries are kept in. Each run has one of its own below it, which nobody else writes to and which is
//! gone when the run is over.

use super::extents::{self, Extents};
use super::job_of;
use crate::opened::file::{align_of, CreatedFile, RunFile};
use forebay_io::{new_id, FileIdentity};
use forebay_model::job::{Cache, JobSpec};
use forebay_model::kvcache::service::{Ended, Key};
use forebay_model::kvcache::KvSpec;
use forebay_model::{Error, Kind};
use forebay_storage::{has_rings, FileAccess, FileTarget, HeldManifest, OpenFileSource, Route, Target};
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A run's own folder begins with it.
const PREFIX: &str = "forebay-kv-";
/// Share of the free bytes that entries may take, as in the reference.
const OF_FREE: f64 = 0.95;

pub(super) struct Folder {
    spec: KvSpec,
    /// In place of files, where the entries lie in a source that has none.
    extents: Option<Extents>,
    dir: PathBuf,
    own: PathBuf,
    free_bytes: Option<u64>,
    made_dir: bool,
    held: Option<HeldManifest>,
    pub in_memory: bool,
    entries: HashMap<(u32, Key), CreatedFile>,
    /// Folders of runs that were killed.
    pub left: Vec<PathBuf>,
    /// Rank and entry that was the first to be gone or damaged when it was read.
    pub lost: Option<(u32, Key)>,
}

impl Folder {
    /// Examines the folder, or the source, without changing anything.
    pub(super) fn examine(spec: &KvSpec) -> Result<Folder, Error> {
        let dir = PathBuf::from(&spec.dir);
        if extents::is_source(spec)? {
            let extents = Extents::examine(spec, &job_of(spec))?;
            return Ok(Folder { extents: Some(extents), ..Folder::new(spec, dir, None) });
        }
        let asked = || format!("--dir {}", spec.dir);
        let there = match std::fs::metadata(&dir) {
            Ok(meta) if !meta.is_dir() => {
                return Err(Error::request(asked(), "is not a folder", "--dir FOLDER, or model:DRIVE"));
            }
            Ok(_) => dir.clone(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                if !parent.is_dir() {
                    let next = format!("mkdir -p {}", parent.display());
                    return Err(Error::request(asked(), "the folder above it isn't there", next));
                }
                parent.to_path_buf()
            }
            Err(e) => return Err(Error::request(asked(), e.to_string(), "ls -ld; another folder")),
        };
        let free_bytes = rustix::fs::statvfs(&there).ok().map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        let mut folder = Folder::new(spec, dir, free_bytes);
        folder.look_for_others()?;
        Ok(folder)
    }

    fn new(spec: &KvSpec, dir: PathBuf, free_bytes: Option<u64>) -> Folder {
        Folder {
            extents: None,
            own: dir.join(format!("{PREFIX}{}", new_id())),
            dir,
            free_bytes,
            made_dir: false,
            held: None,
            in_memory: false,
            entries: HashMap::new(),
            left: Vec::new(),
            lost: None,
            spec: spec.clone(),
        }
    }

    /// Another run of this command in the same folder is refused: each would measure the other.
    fn look_for_others(&mut self) -> Result<(), Error> {
        let Ok(all) = std::fs::read_dir(&self.dir) else { return Ok(()) };
        let asked = || format!("--dir {}", self.spec.dir);
        let another = || Error::machine(asked(), "another run keeps its cache there", "another --dir");
        for at in all.filter_map(Result::ok).map(|entry| entry.path()) {
            let is_ours = at.file_name().is_some_and(|n| n.to_string_lossy().starts_with(PREFIX));
            if is_ours && is_held_store(&at) {
                return Err(another());
            }
            if !is_ours || !at.join(".forebay.json").is_file() {
                continue;
            }
            match HeldManifest::shared(&at) {
                // Ranks of one run under MPI share the folder on purpose.
                Err(e) if e.kind == Kind::Machine && self.spec.hosts == 1 => return Err(another()),
                Err(_) => {}
                Ok(_) => self.left.push(at),
            }
        }
        Ok(())
    }

    /// Room for entries of each rank: what was asked for, or 95 % of what is free, divided by the ranks of the run.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        let of_free = |free: u64| (free as f64 * OF_FREE) as u64 / u64::from(self.spec.ranks.max(1));
        if let Some(extents) = &self.extents {
            let there = extents.capacity_bytes();
            return Some(self.spec.capacity_bytes.map_or(there, |asked| asked.min(there)));
        }
        self.spec.capacity_bytes.or(self.free_bytes.map(of_free))
    }

    pub(super) fn access(&self, write: bool) -> FileAccess {
        FileAccess { write, direct: self.spec.cache == Cache::Bypass }
    }

    /// Makes the run's own folder, and looks at a file there: engine, alignment, device.
    pub(super) fn target(&mut self, job: &JobSpec) -> Result<Target, Error> {
        if let Some(extents) = &mut self.extents {
            return extents.open(job);
        }
        self.made_dir = make_folder(&self.dir.clone())?;
        make_folder(&self.own.clone())?;
        self.held = Some(HeldManifest::alone(&self.own)?);
        for rank in self.spec.ranks_of_process() {
            make_folder(&self.own.join(format!("rank_{rank}")))?;
        }
        let path = self.own.join("look");
        let cannot = |e: std::io::Error| cannot_make(&path, &e);
        let made = forebay_storage::Outputs::create(&path).map_err(cannot)?;
        let sized = made.set_len(job.io_bytes).map_err(cannot);
        let opened = sized.and_then(|()| FileTarget::open(&path, self.access(true)));
        let _ = std::fs::remove_file(&path);
        let file = opened.map_err(|e| match e.next.contains("--buffered") {
            true => Error {
                next: "‹cache› drop: through the page cache, which is emptied before reading".into(),
                ..e
            },
            false => e,
        })?;
        let file = FileTarget { align: align_of(&file, job.path), path: self.dir.clone(), ..file };
        self.in_memory = file.in_memory;
        if job.io_bytes % u64::from(file.align) != 0 {
            return Err(FileAccess::misaligned(&self.dir, "‹io_bytes›", job.io_bytes, file.align));
        }
        let rings = has_rings(job.engine, job.sqpoll, job.iopoll, job.workers)?.is_ok();
        let engine = file.choose(job.engine, false, false, rings);
        Ok(Target {
            label: self.spec.dir.clone(),
            content_id: 0,
            bytes: 0,
            source: Arc::new(OpenFileSource { target: file, engine }),
            route: Route { path: job.path, pair: None },
        })
    }

    pub(super) fn place(&self, rank: u32, key: Key, bytes: u64) -> RunFile {
        let name = format!("rank_{rank}/{key}");
        RunFile { path: self.own.join(format!("{name}.kv")), content: name, bytes }
    }

    /// A place for an entry that is to be written: of a source without files, where. Err: there is none.
    pub(super) fn reserve(&mut self, rank: u32, key: Key, bytes: u64) -> Result<Option<u64>, ()> {
        let Some(extents) = &mut self.extents else { return Ok(None) };
        extents.reserve(rank, key, bytes).map(|extent| Some(extent.at)).ok_or(())
    }

    /// Where it lies in a source without files.
    pub(super) fn extent(&self, rank: u32, key: Key) -> Option<u64> {
        self.extents.as_ref()?.extent(rank, key).map(|extent| extent.at)
    }

    /// An entry was written whole, or wasn't: of a source without files, its record, or its place for others.
    pub(super) fn was_written(&mut self, rank: u32, key: Key, bytes: u64, ended: Ended) -> Result<(), Error> {
        let name = self.place(rank, key, bytes).content;
        match &mut self.extents {
            Some(extents) if ended == Ended::Whole => extents.log(rank, key, bytes, &name),
            Some(extents) => {
                extents.remove(rank, key);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Says of a source without files that this run still has it. Err: another has taken it over.
    pub(super) fn renew(&mut self, now: Instant) -> Result<(), Error> {
        self.extents.as_mut().map_or(Ok(()), |extents| extents.renew(now))
    }

    /// Which file of ours an entry is; None where it wasn't written.
    pub(super) fn identity(&self, rank: u32, key: Key) -> Option<FileIdentity> {
        self.entries.get(&(rank, key)).map(|CreatedFile(_, identity)| *identity)
    }

    pub(super) fn note(&mut self, rank: u32, key: Key, made: CreatedFile) {
        self.entries.insert((rank, key), made);
    }

    pub(super) fn remove(&mut self, rank: u32, key: Key) {
        if let Some(extents) = &mut self.extents {
            return extents.remove(rank, key);
        }
        if let Some(CreatedFile(place, identity)) = self.entries.remove(&(rank, key)) {
            let _ = identity.remove(&place.path);
        }
    }

    /// Takes away what this run made.
    pub(super) fn close(&mut self) {
        if let Some(extents) = &mut self.extents {
            return extents.close();
        }
        for (_, CreatedFile(place, identity)) in std::mem::take(&mut self.entries) {
            let _ = identity.remove(&place.path);
        }
        for rank in self.spec.ranks_of_process() {
            let _ = std::fs::remove_dir(self.own.join(format!("rank_{rank}")));
        }
        if let Some(held) = self.held.take() {
            held.remove_if_empty();
        }
        let _ = std::fs::remove_dir(&self.own);
        if self.made_dir {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

/// Whether a store of `emulate kvcache run` is there, and in use: it holds a lock on its file.
fn is_held_store(at: &Path) -> bool {
    let is_store = at.extension().is_some_and(|e| e == "kv") && at.is_file();
    let open = || std::fs::File::open(at).ok();
    let held = |file| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared);
    is_store && open().map(held) == Some(Err(rustix::io::Errno::WOULDBLOCK))
}

/// Makes a folder that isn't there; true if it wasn't.
fn make_folder(at: &Path) -> Result<bool, Error> {
    match DirBuilder::new().mode(0o755).create(at) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(cannot_make(at, &e)),
    }
}

pub(super) fn cannot_make(path: &Path, e: &std::io::Error) -> Error {
    let asked = format!("make {}", path.display());
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            Error::run(asked, "the file system is full", "df -h; another --dir")
        }
        Some(libc::EROFS) => Error::request(
            asked,
            "the file system is mounted read-only",
            "a folder on a writable file system",
        ),
        Some(libc::EACCES | libc::EPERM) => {
            Error::request(asked, "permission denied", "a folder that you can write to")
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            Error::machine(asked, "too many open files", "ulimit -n 1048576, or fewer --users")
        }
        _ => Error::run(asked, e.to_string(), "df -h; df -i"),
    }
}
