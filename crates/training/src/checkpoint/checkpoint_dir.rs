//! The folder that checkpoints are written to: what is there already, whose it is, whether there is room, and what is
//! taken away again.

use crate::opened::file::{align_of, CreatedFile, Refused, RunFile};
use forebay_io::{cache_residency, drop_cached};
use forebay_model::checkpoint::layout::scaled;
use forebay_model::checkpoint::{folder, CheckpointSpec};
use forebay_model::job::{Cache, JobSpec};
use forebay_model::units::readable_bytes;
use forebay_model::Error;
use forebay_storage::{
    has_rings, FileAccess, FileTarget, HeldManifest, ManifestContent, OpenFileSource, Route, Target,
    KEEP_FREE_BYTES,
};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for another host that writes the same list of files.
const LIST_WAIT: Duration = Duration::from_secs(20);
const LIST_AGAIN: Duration = Duration::from_millis(20);

/// Folder of a run's checkpoints.
pub(crate) struct CheckpointDir {
    spec: CheckpointSpec,
    dir: PathBuf,
    /// Seeds of the checkpoints that were there already and are read; the run's own where it writes them.
    seeds: Vec<u64>,
    /// Checkpoints that this run wrote to their end.
    noted: Vec<u32>,
    /// The folder itself is this run's.
    made_dir: bool,
    in_memory: bool,
}

/// The files of one rank, in the order in which it writes or reads them.
pub(crate) fn places(spec: &CheckpointSpec, step: u32, rank: u64) -> Vec<RunFile> {
    let folder = folder(step);
    let at = Path::new(&spec.dir).join(&folder);
    let place = |file: forebay_model::checkpoint::layout::FilePlan| RunFile {
        path: at.join(&file.name),
        content: format!("{folder}/{}", file.name),
        bytes: scaled(file.bytes, spec.scale),
    };
    spec.cut().files_of(rank).into_iter().map(place).collect()
}

impl CheckpointDir {
    /// Examines the folder without changing anything.
    pub(crate) fn examine(spec: &CheckpointSpec) -> Result<CheckpointDir, Error> {
        let dir = PathBuf::from(&spec.dir);
        let asked = || format!("--dir {}", spec.dir);
        match std::fs::metadata(&dir) {
            Ok(meta) if !meta.is_dir() => {
                return Err(Error::request(asked(), "is not a folder", "--dir FOLDER"));
            }
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && spec.writes > 0 => {
                let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                if !parent.is_dir() {
                    let next = format!("mkdir -p {}", parent.display());
                    return Err(Error::request(asked(), "the folder above it isn't there", next));
                }
            }
            Err(e) => return Err(Error::request(asked(), e.to_string(), "ls -ld; another folder")),
        }
        let mut checkpoint_dir = CheckpointDir {
            dir,
            seeds: vec![spec.seed; spec.writes.max(spec.reads) as usize],
            noted: Vec::new(),
            made_dir: false,
            in_memory: false,
            spec: spec.clone(),
        };
        if spec.writes > 0 {
            (1..=spec.writes).try_for_each(|step| checkpoint_dir.look_at_old(step))?;
        } else {
            checkpoint_dir.look_at_what_is_read()?;
        }
        Ok(checkpoint_dir)
    }

    pub(crate) fn seed(&self, step: u32) -> u64 {
        self.seeds[step as usize - 1]
    }

    pub(crate) fn folder_of(&self, step: u32) -> PathBuf {
        self.dir.join(folder(step))
    }

    /// Refuses an existing checkpoint, unless it is Forebay's and may be replaced.
    fn look_at_old(&self, step: u32) -> Result<(), Error> {
        let at = self.folder_of(step);
        let Ok(old) = entries(&at) else {
            // A file or a link of that name.
            return if std::fs::symlink_metadata(&at).is_ok() {
                let found = "exists and is not a readable folder";
                Err(Error::request(format!("write {}", at.display()), found, "another --dir"))
            } else {
                Ok(())
            };
        };
        HeldManifest::check(&at)?;
        let Some(any) = old.first() else { return Ok(()) };
        let asked = format!("write {}", at.display());
        let held = HeldManifest::shared(&at)?;
        if let Some(foreign) = old.iter().find(|path| held.entry(path).is_none() && path.exists()) {
            let found = format!("{} is there, and Forebay didn't write it", foreign.display());
            return Err(Error::request(asked, found, "another --dir"));
        }
        if !self.spec.replace {
            let found = format!("a checkpoint is there already, as {}", any.display());
            return Err(Error::request(asked, found, "--replace to remove it first; another --dir"));
        }
        Ok(())
    }

    /// Bytes that this host's checkpoints need, and those there are for them; None where the file system doesn't say.
    pub(crate) fn room(&self) -> (u64, Option<u64>) {
        if self.spec.writes == 0 {
            return (0, None);
        }
        let sizes = self.spec.sizes_here();
        // A file's last block, and its place in the folder.
        let each = sizes.bytes().saturating_add(sizes.files.saturating_mul(8192));
        let wanted = each.saturating_mul(u64::from(self.spec.writes)).saturating_add(KEEP_FREE_BYTES);
        let at =
            if self.dir.is_dir() { self.dir.as_path() } else { self.dir.parent().unwrap_or(Path::new(".")) };
        let at = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        let freed: u64 = if self.spec.replace { self.old_bytes() } else { 0 };
        let free = rustix::fs::statvfs(at).ok().map(|s| s.f_bavail.saturating_mul(s.f_frsize));
        (wanted, free.map(|free| free.saturating_add(freed)))
    }

    pub(crate) fn check_room(&self) -> Result<(), Error> {
        let (wanted, Some(free)) = self.room() else { return Ok(()) };
        if wanted > free {
            let each = readable_bytes(self.spec.sizes_here().bytes());
            return Err(Error::machine(
                format!("write {} checkpoints of {each} to {}", self.spec.writes, self.spec.dir),
                format!("{} are needed, and {} are free there", readable_bytes(wanted), readable_bytes(free)),
                "a smaller --scale, fewer --writes, fewer --ranks, or another --dir",
            ));
        }
        Ok(())
    }

    fn old_bytes(&self) -> u64 {
        let sizes = |step| entries(&self.folder_of(step)).unwrap_or_default();
        let files = (1..=self.spec.writes).flat_map(sizes);
        files.filter_map(|path| std::fs::metadata(path).ok()).map(|m| m.len()).sum()
    }

    /// Checkpoints of an earlier run, all there and of the right size.
    fn look_at_what_is_read(&mut self) -> Result<(), Error> {
        for step in 1..=self.spec.reads {
            let held = HeldManifest::shared(&self.folder_of(step))?;
            let ranks: Vec<u64> = self.spec.ranks_here().map(|rank| self.spec.reads_as(rank)).collect();
            for place in ranks.into_iter().flat_map(|rank| places(&self.spec, step, rank)) {
                let asked = format!("read checkpoint {step} in {}", self.spec.dir);
                let next = "the --workload, --ranks and --scale that it was written with; fewer --reads";
                let found = match std::fs::metadata(&place.path) {
                    Err(e) => format!("{}: {e}", place.path.display()),
                    Ok(meta) if meta.len() != place.bytes => format!(
                        "{} has {} bytes, and the workload says {}",
                        place.path.display(),
                        meta.len(),
                        place.bytes
                    ),
                    Ok(_) => match held.made_as(&place.path).and_then(|entry| entry.seed) {
                        Some(seed) => {
                            self.seeds[step as usize - 1] = seed;
                            continue;
                        }
                        None if !self.spec.verify => continue,
                        None => format!("the expected content of {} isn't known", place.path.display()),
                    },
                };
                return Err(Error::request(asked, found, next));
            }
        }
        Ok(())
    }

    /// The folder as a target, for what bench wants to know of one: engine, alignment, device. Makes the folder,
    /// and removes what is to be replaced.
    pub(crate) fn target(&mut self, job: &JobSpec) -> Result<Target, Error> {
        if self.spec.writes > 0 {
            self.make_folder(&self.dir.clone())?.then(|| self.made_dir = true);
            for step in 1..=self.spec.writes {
                self.remove_folder(step);
            }
        }
        let file = self.look_at_one_file(job)?;
        self.in_memory = file.in_memory;
        if job.io_bytes % u64::from(file.align) != 0 {
            return Err(FileAccess::misaligned(&self.dir, "‹io_bytes›", job.io_bytes, file.align));
        }
        let rings = has_rings(job.engine, job.sqpoll, job.iopoll, job.workers)?.is_ok();
        let engine = file.choose(job.engine, false, false, rings);
        Ok(Target {
            label: self.spec.dir.clone(),
            content_id: 0,
            bytes: self.spec.sizes_here().bytes(),
            source: Arc::new(OpenFileSource { target: file, engine }),
            route: Route { path: job.path, pair: None },
        })
    }

    /// One that is read, or one that is made for the purpose and has no name any more.
    fn look_at_one_file(&self, job: &JobSpec) -> Result<FileTarget, Error> {
        let access = access(&self.spec, self.spec.writes > 0);
        let mut first = self.spec.ranks_here().flat_map(|r| places(&self.spec, 1, self.spec.reads_as(r)));
        let target = match self.spec.writes {
            0 => FileTarget::open(&first.next().map_or(self.dir.clone(), |p| p.path), access),
            _ => {
                let path =
                    self.dir.join(format!(".forebay-look-{}-{}", std::process::id(), self.spec.first_rank));
                let made = forebay_storage::Outputs::create(&path);
                let made = made.map_err(|e| cannot_make(&path, &e))?;
                let sized = made.set_len(job.io_bytes).map_err(|e| cannot_make(&path, &e));
                let opened = sized.and_then(|()| FileTarget::open(&path, access));
                let _ = std::fs::remove_file(&path);
                opened
            }
        };
        let target = target.map_err(|e| match e.next.contains("--buffered") {
            true => Error {
                next: "‹cache› drop: through the page cache, which is emptied before reading".into(),
                ..e
            },
            false => e,
        })?;
        let align = align_of(&target, super::settled(&self.spec).0);
        Ok(FileTarget { path: self.dir.clone(), align, ..target })
    }

    /// Makes a folder that isn't there; true if it wasn't.
    fn make_folder(&self, at: &Path) -> Result<bool, Error> {
        match DirBuilder::new().mode(0o755).create(at) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(cannot_make(at, &e)),
        }
    }

    /// The folder of a checkpoint that is about to be written, and the names of its files in its list: a run that is killed
    /// leaves what the next one knows.
    pub(crate) fn begin(&self, step: u32) -> Result<(), Error> {
        let at = self.folder_of(step);
        let made = self.make_folder(&at)?;
        let noted = self.expect_files(step);
        if noted.is_err() && made {
            let _ = std::fs::remove_dir(at);
        }
        noted
    }

    fn expect_files(&self, step: u32) -> Result<(), Error> {
        let mut held = self.list_of(step)?;
        for place in self.places_here(step) {
            held.expect(&place.path, &place.content);
        }
        held.save().inspect_err(|_| {
            self.places_here(step).for_each(|place| held.remove(&place.path));
            held.remove_if_empty();
        })
    }

    fn places_here(&self, step: u32) -> impl Iterator<Item = RunFile> + '_ {
        self.spec.ranks_here().flat_map(move |rank| places(&self.spec, step, rank))
    }

    /// The list of a checkpoint's files, to be written. Hosts that share the folder take turns.
    fn list_of(&self, step: u32) -> Result<HeldManifest, Error> {
        let at = self.folder_of(step);
        let until = forebay_io::monotonic_now() + LIST_WAIT;
        loop {
            match HeldManifest::alone(&at) {
                Err(e) if e.kind == forebay_model::Kind::Machine && forebay_io::monotonic_now() < until => {
                    std::thread::sleep(LIST_AGAIN);
                }
                held => return held,
            }
        }
    }

    /// Adds what was written to the list of Forebay's files.
    pub(crate) fn note(&mut self, step: u32, made: &[CreatedFile]) -> Result<(), Error> {
        let mut held = self.list_of(step)?;
        let seed = self.spec.verify.then_some(self.spec.seed);
        for CreatedFile(place, identity) in made {
            held.leave(&place.path, *identity, &ManifestContent { seed, name: &place.content })?;
        }
        held.save()?;
        self.noted.push(step);
        Ok(())
    }

    /// Removes the files of a checkpoint that wasn't completed.
    pub(crate) fn take_away(&self, step: u32, made: &[CreatedFile]) {
        made.iter().for_each(|CreatedFile(place, identity)| drop(identity.remove(&place.path)));
        if let Ok(mut held) = self.list_of(step) {
            self.places_here(step).for_each(|place| held.remove(&place.path));
            let _ = held.save();
            held.remove_if_empty();
        }
        let _ = std::fs::remove_dir(self.folder_of(step));
    }

    /// Takes what this process is about to read out of the page cache. Answers with the share of pages that is still
    /// there; None where that can't be told.
    pub(crate) fn clear_cache(&self) -> Result<Option<f64>, Error> {
        if self.in_memory {
            return Ok(Some(1.0));
        }
        let (mut resident, mut bytes) = (0.0, 0.0);
        for step in 1..=self.spec.reads {
            let ranks = self.spec.ranks_here().map(|rank| self.spec.reads_as(rank));
            for place in ranks.flat_map(|rank| places(&self.spec, step, rank)) {
                let asked = || format!("read {}", place.path.display());
                let file = std::fs::File::open(&place.path)
                    .map_err(|e| Error::run(asked(), e.to_string(), "the same command again"))?;
                if self.spec.cache != Cache::Allow {
                    let dropped = drop_cached(&file, 0, place.bytes);
                    dropped.map_err(|why| Error::machine(asked(), why, "‹cache› bypass"))?;
                }
                let Ok(share) = cache_residency(&file, 0, place.bytes) else { return Ok(None) };
                resident += share * place.bytes as f64;
                bytes += place.bytes as f64;
            }
        }
        Ok(Some(if bytes > 0.0 { resident / bytes } else { 0.0 }))
    }

    /// After the last checkpoint: what was written stays where it is to be read later, or where that was asked for.
    pub(crate) fn close(&self) {
        if self.spec.keep || self.spec.reads == 0 {
            return;
        }
        for step in &self.noted {
            self.remove_own(*step);
        }
        if self.made_dir {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }

    /// The files of this process's ranks that are still as it left them, and the list with its last entry.
    fn remove_own(&self, step: u32) {
        let at = self.folder_of(step);
        if let Ok(mut held) = self.list_of(step) {
            for place in self.places_here(step) {
                if let Some(made) = held.identity(&place.path) {
                    let _ = made.remove(&place.path);
                }
                held.remove(&place.path);
            }
            let _ = held.save();
            held.remove_if_empty();
        }
        let _ = std::fs::remove_dir(&at);
    }

    /// A whole checkpoint of ours, which `examine` has found to be that.
    fn remove_folder(&self, step: u32) {
        let at = self.folder_of(step);
        let Ok(mut held) = (if at.is_dir() { HeldManifest::alone(&at).map(Some) } else { Ok(None) }) else {
            return;
        };
        if let Some(held) = &mut held {
            for path in entries(&at).unwrap_or_default() {
                let made = held.identity(&path);
                if made.is_some_and(|made| made.remove(&path).is_ok()) {
                    held.remove(&path);
                }
            }
            let _ = held.save();
        }
        if let Some(held) = held {
            held.remove_if_empty();
        }
        let _ = std::fs::remove_dir(&at);
    }
}

/// Returns the mode in which the run opens its files.
pub(crate) fn access(spec: &CheckpointSpec, write: bool) -> FileAccess {
    FileAccess { write, direct: spec.cache == Cache::Bypass }
}

/// The entries of a folder, except the list of Forebay's files.
fn entries(at: &Path) -> std::io::Result<Vec<PathBuf>> {
    let all = std::fs::read_dir(at)?.collect::<Result<Vec<_>, _>>()?;
    Ok(all
        .into_iter()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n != ".forebay.json"))
        .collect())
}

/// Why a checkpoint's file couldn't be opened, in words.
pub(crate) fn refused(why: Refused) -> Error {
    match why {
        Refused::Make(place, e) => cannot_make(&place.path, &e),
        Refused::Short(RunFile { path, bytes, .. }, found) => {
            let found = format!("it has {found} bytes, and {bytes} were written");
            Error::run(format!("read {}", path.display()), found, "the same command again")
        }
        Refused::Other(error) => error,
    }
}

pub(crate) fn cannot_make(path: &Path, e: &std::io::Error) -> Error {
    let asked = format!("make {}", path.display());
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            Error::run(asked, "the file system is full", "df -h; a smaller --scale, or another --dir")
        }
        Some(libc::EROFS) => Error::request(
            asked,
            "the file system is mounted read-only",
            "a folder on a writable file system",
        ),
        Some(libc::EACCES | libc::EPERM) => {
            Error::request(asked, "permission denied", "a folder that you can write to")
        }
        Some(libc::EEXIST) => {
            Error::run(asked, "another process has created it in the meantime", "another --dir")
        }
        Some(libc::EFBIG) => {
            Error::request(asked, "the file system has no room for a file this large", "a smaller --scale")
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            Error::machine(asked, "too many open files", "ulimit -n 1048576, or fewer --ranks")
        }
        _ => Error::run(asked, e.to_string(), "df -h; df -i"),
    }
}
