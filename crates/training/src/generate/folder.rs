//! A data set in a folder: what is there already, whether the rest fits, and how each file comes to its name.
//!
//! A file is made under a name of its own and renamed once it is whole, so that what has its name is finished. The
//! manifest bears another name, too, for as long as files are missing.

use super::manifest::{self, Manifest};
use super::spec::DatagenSpec;
use super::PhaseResult;
use crate::format::write::{Beside, BesidePlace, Writer};
use forebay_model::units::readable_bytes;
use forebay_model::Error;
use forebay_storage::{Outputs, KEEP_FREE_BYTES};
use rustix::fs::{flock, FallocateFlags, FlockOperation};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const UNFINISHED: &str = ".forebay-dataset.json.part";
const SAME: &str = "the same command again: it continues where this one ended";

/// A folder that nobody else fills meanwhile.
pub(crate) struct Folder {
    root: PathBuf,
    extension: &'static str,
    /// Locked for as long as it is open.
    _lock: Option<File>,
    /// By number: it is there, and whole.
    finished: Vec<bool>,
}

impl Folder {
    /// Looks at what is there and whether the rest fits, then makes the folders and the unfinished manifest, unless this is
    /// a dry run. Whatever is refused leaves everything as it was.
    pub(crate) fn open(spec: &DatagenSpec, bytes: &[u64]) -> Result<Folder, Error> {
        let root = PathBuf::from(spec.data.strip_prefix("file:").unwrap_or(&spec.data));
        let mut folder = Folder {
            root,
            extension: spec.row()?.extension,
            _lock: None,
            finished: vec![false; bytes.len()],
        };
        let writer = spec.writer()?;
        if !spec.dry_run && folder.root.exists() {
            folder._lock = Some(folder.lock()?);
        }
        folder.examine(spec, bytes, &writer)?;
        if spec.dry_run {
            return Ok(folder);
        }
        folder.make_folders(spec)?;
        if folder._lock.is_none() {
            folder._lock = Some(folder.lock()?);
            // Another process may have made it meanwhile, and filled it.
            folder.examine(spec, bytes, &writer)?;
        }
        folder.mend_indexes(spec, &writer)?;
        if folder.finished.contains(&false) {
            folder.announce(spec, bytes)?;
        }
        Ok(folder)
    }

    fn examine(&mut self, spec: &DatagenSpec, bytes: &[u64], writer: &Writer) -> Result<(), Error> {
        self.compare_manifest(spec)?;
        self.find_finished(spec, bytes)?;
        self.look_beside(spec, writer)?;
        self.check_room(bytes, writer.beside(spec.shape(0)).len() as u64)
    }

    pub(crate) fn is_finished(&self, number: u32) -> bool {
        self.finished[number as usize]
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished.iter().filter(|finished| **finished).count()
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.root.join(manifest::NAME)
    }

    fn make_folders(&self, spec: &DatagenSpec) -> Result<(), Error> {
        let subfolders = (0..spec.subfolders).filter_map(|index| spec.subfolder(index));
        for name in ["train".to_string(), "valid".to_string()].into_iter().chain(subfolders) {
            std::fs::create_dir_all(self.root.join(name)).map_err(|e| self.cannot_make(&e))?;
        }
        Ok(())
    }

    fn cannot_make(&self, e: &std::io::Error) -> Error {
        let asked = format!("make {}", self.root.display());
        match e.kind() {
            ErrorKind::PermissionDenied => {
                Error::request(asked, "permission denied", "a folder that you can write to")
            }
            ErrorKind::StorageFull => Error::machine(asked, "the file system is full", "df -h; df -i"),
            ErrorKind::ReadOnlyFilesystem => {
                Error::request(asked, "the file system is mounted read-only", "a folder on a writable one")
            }
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                Error::request(asked, "a file is in the way", "the name of a folder")
            }
            _ => Error::machine(asked, e.to_string(), "ls -ld; df -h; df -i"),
        }
    }

    fn lock(&self) -> Result<File, Error> {
        let dir = File::open(&self.root).map_err(|e| self.cannot_make(&e))?;
        flock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let asked = format!("create a data set in {}", self.root.display());
            Error::request(asked, "another forebay process is filling it", "wait for it, or another --data")
        })?;
        Ok(dir)
    }

    /// Refuses a data set that was started or finished here with other settings.
    fn compare_manifest(&self, spec: &DatagenSpec) -> Result<(), Error> {
        for name in [manifest::NAME, UNFINISHED] {
            let path = self.root.join(name);
            // Before it is replaced or removed, it has to be what we write: a plain file.
            let odd =
                Outputs::there(&path).map_err(|e| self.cannot_make(&e))?.is_some_and(|meta| !meta.is_file());
            if odd || Outputs::there(&Outputs::part_of(&path)).map_err(|e| self.cannot_make(&e))?.is_some() {
                let path = if odd { path } else { Outputs::part_of(&path) };
                return Err(self.in_the_way(&path));
            }
            let found = Manifest::read(&path).map_err(|found| {
                let next = "rm that file, if it isn't Forebay's; or another --data";
                Error::request(path.display().to_string(), found, next)
            })?;
            let Some(found) = found else { continue };
            if let Some(differs) = found.differs(spec) {
                return Err(Error::request(
                    format!("create a data set for {} in {}", spec.workload, self.root.display()),
                    format!("it already holds one for {}, with {differs}", found.workload),
                    "another --data, or rm -r that folder",
                ));
            }
        }
        Ok(())
    }

    /// Finds what is finished; takes away what an earlier run left half made.
    fn find_finished(&mut self, spec: &DatagenSpec, bytes: &[u64]) -> Result<(), Error> {
        let folders: Vec<PathBuf> = match spec.subfolders {
            0 | 1 => vec![self.root.join("train")],
            all => (0..all).filter_map(|i| spec.subfolder(i)).map(|name| self.root.join(name)).collect(),
        };
        for folder in folders {
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(self.cannot_make(&e)),
            };
            for entry in entries.flatten() {
                self.look_at(spec, bytes, &entry.path())?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, spec: &DatagenSpec, bytes: &[u64], path: &Path) -> Result<(), Error> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        if let Some(whole) = Outputs::whole_of(name) {
            if self.number_of(spec, whole).is_none() {
                return Ok(());
            }
            // Ours, if we said so before we made any.
            if !self.root.join(UNFINISHED).exists() {
                return Err(self.in_the_way(path));
            }
            if !spec.dry_run {
                let _ = std::fs::remove_file(path);
            }
            return Ok(());
        }
        let number = self.number_of(spec, name).filter(|n| self.path(spec, *n) == path);
        let Some(number) = number else {
            if !name.ends_with(self.extension) || name.starts_with('.') {
                return Ok(());
            }
            return Err(Error::request(
                format!("create {} files in {}", spec.files, self.root.display()),
                format!("{} already exists, and would be taken for part of the data set", path.display()),
                "another --data, or rm that file",
            ));
        };
        let found = path.metadata().map_or(0, |meta| meta.len());
        let wanted = bytes[number as usize];
        if found != wanted {
            return Err(Error::request(
                format!("make {}", path.display()),
                format!("it already exists, with {found} bytes instead of {wanted}"),
                "another --data, or rm that file",
            ));
        }
        self.finished[number as usize] = true;
        Ok(())
    }

    /// Refuses what has the name of a file that is to lie beside a sample's, unless it is that very file.
    fn look_beside(&self, spec: &DatagenSpec, writer: &Writer) -> Result<(), Error> {
        for number in 0..spec.files {
            for file in writer.beside(spec.shape(number)) {
                let path = self.path_beside(spec, number, file.place);
                let part = Outputs::part_of(&path);
                let there = |path: &Path| Outputs::there(path).map_err(|e| self.cannot_make(&e));
                match there(&path)? {
                    Some(meta)
                        if meta.is_file() && std::fs::read(&path).is_ok_and(|found| found == file.bytes) => {}
                    Some(_) => return Err(self.in_the_way(&path)),
                    None => {}
                }
                match there(&part)? {
                    Some(_) if !self.root.join(UNFINISHED).exists() => return Err(self.in_the_way(&part)),
                    Some(_) if !spec.dry_run => drop(std::fs::remove_file(&part)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn in_the_way(&self, path: &Path) -> Error {
        Error::request(
            format!("make {}", path.display()),
            "something else already has that name",
            "another --data, or another name for what is there",
        )
    }

    /// Number of the file with this name: `img_07_of_24.npz`.
    fn number_of(&self, spec: &DatagenSpec, name: &str) -> Option<u32> {
        let middle = name.strip_prefix(&spec.prefix)?.strip_prefix('_')?;
        let number: u32 = middle.split('_').next()?.parse().ok()?;
        let whole = (number < spec.files).then(|| spec.name(number, self.extension))?;
        (whole.rsplit('/').next() == Some(name)).then_some(number)
    }

    pub(crate) fn path(&self, spec: &DatagenSpec, number: u32) -> PathBuf {
        self.root.join(spec.name(number, self.extension))
    }

    /// Path of a file until it is complete.
    fn part(&self, spec: &DatagenSpec, number: u32) -> PathBuf {
        Outputs::part_of(&self.path(spec, number))
    }

    /// `beside`: small files that belong to each.
    fn check_room(&self, bytes: &[u64], beside: u64) -> Result<(), Error> {
        let missing = bytes.iter().zip(&self.finished).filter(|(_, finished)| !**finished);
        let (files, wanted) = missing.fold((0u64, 0u64), |(files, sum), (bytes, _)| {
            (files + 1, sum.saturating_add(bytes.next_multiple_of(4096)))
        });
        // A relative name may consist of folders that are yet to be made.
        let root = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        let known = root.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok());
        let Some(known) = known.filter(|_| files > 0) else { return Ok(()) };
        let free = known.f_bavail.saturating_mul(known.f_frsize);
        let asked =
            || format!("create {files} files, {} in all, in {}", readable_bytes(wanted), self.root.display());
        if wanted.saturating_add(KEEP_FREE_BYTES) > free {
            let (free, kept) = (readable_bytes(free), readable_bytes(KEEP_FREE_BYTES));
            let found = format!("{free} are free there, and {kept} must stay free");
            return Err(Error::machine(asked(), found, "fewer ‹files›, or another --data"));
        }
        // File systems that make inodes as they go say 0.
        if known.f_files > 0 && files.saturating_mul(1 + beside).saturating_add(8) > known.f_favail {
            let found = format!("{} inodes are free there (df -i)", known.f_favail);
            return Err(Error::machine(asked(), found, "fewer ‹files›, or another --data"));
        }
        Ok(())
    }

    fn announce(&self, spec: &DatagenSpec, bytes: &[u64]) -> Result<(), Error> {
        let text = manifest::text(&manifest::describe(spec, bytes))?;
        let path = self.root.join(UNFINISHED);
        let written = Outputs::renew(&path, text.as_bytes());
        written.map_err(|e| self.cannot_make(&e))?;
        match std::fs::remove_file(self.manifest()) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(self.cannot_make(&e)),
            _ => Ok(()),
        }
    }

    /// An empty file with room for `bytes`, under the name that it has until it is whole.
    pub(crate) fn begin(&self, spec: &DatagenSpec, number: u32, bytes: u64) -> Result<PathBuf, Error> {
        let path = self.part(spec, number);
        let file = Outputs::create(&path).map_err(|e| self.broke(&path, &e))?;
        let room = bytes.next_multiple_of(4096);
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, room) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(room).map_err(|e| self.broke(&path, &e))?,
            Err(e) => {
                let _ = std::fs::remove_file(&path);
                return Err(self.broke(&path, &e.into()));
            }
        }
        Ok(path)
    }

    /// Files that were finished without what belongs to them.
    fn mend_indexes(&self, spec: &DatagenSpec, writer: &Writer) -> Result<(), Error> {
        for number in (0..spec.files).filter(|number| self.is_finished(*number)) {
            let beside = writer.beside(spec.shape(number));
            let is_there = |file: &Beside| self.path_beside(spec, number, file.place).exists();
            if !beside.iter().all(is_there) {
                self.put_beside(spec, number, &beside)?;
            }
        }
        Ok(())
    }

    /// Writes what belongs to a file: before the file has its name, so that none is without.
    pub(crate) fn put_beside(&self, spec: &DatagenSpec, number: u32, beside: &[Beside]) -> Result<(), Error> {
        for file in beside {
            let path = self.path_beside(spec, number, file.place);
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            // One that was there is the same: `look_beside` compared it.
            let written = made.and_then(|()| match path.exists() {
                true => Ok(()),
                false => Outputs::write_new(&path, &file.bytes),
            });
            written.map_err(|e| self.broke(&path, &e))?;
        }
        Ok(())
    }

    fn path_beside(&self, spec: &DatagenSpec, number: u32, place: BesidePlace) -> PathBuf {
        let path = self.path(spec, number);
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        match place {
            BesidePlace::Ending(ending) => path.with_file_name(format!("{name}{ending}")),
            BesidePlace::IndexFolder => self.root.join("index/train").join(format!("{name}.idx")),
        }
    }

    /// Gives a file its length and its name.
    pub(crate) fn finish(&self, spec: &DatagenSpec, number: u32, bytes: u64) -> Result<(), Error> {
        let part = self.part(spec, number);
        let cut = Outputs::reopen(&part).and_then(|file| file.set_len(bytes));
        let named = cut.and_then(|()| Outputs::give_name(&part, &self.path(spec, number)));
        named.map_err(|e| self.broke(&part, &e))
    }

    /// Removes an incomplete file.
    pub(crate) fn forget(&self, spec: &DatagenSpec, number: u32) {
        let _ = std::fs::remove_file(self.part(spec, number));
    }

    pub(crate) fn broke(&self, path: &Path, e: &std::io::Error) -> Error {
        let asked = format!("make {}", path.display());
        match e.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => {
                let found = "the file system is full; finished files are kept";
                Error::run(asked, found, format!("make room, then {SAME}"))
            }
            Some(libc::EFBIG) => {
                Error::request(asked, "the file system has no room for a file this large", "another --data")
            }
            _ => Error::run(asked, e.to_string(), "df -h; df -i; dmesg | tail"),
        }
    }

    pub(crate) fn interrupted(&self, made: &PhaseResult, files: u32) -> Error {
        let done = self.finished() as u64 + made.files;
        let found = format!("was interrupted; {done} of {files} files are finished, and are kept");
        Error::run(format!("create a data set in {}", self.root.display()), found, SAME)
    }

    /// All files are there: what they are made of is on the device, and then the manifest has its name.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let unfinished = self.root.join(UNFINISHED);
        let asked = |e: std::io::Error| self.broke(&unfinished, &e);
        let root = File::open(&self.root).map_err(asked)?;
        rustix::fs::syncfs(&root).map_err(|e| asked(e.into()))?;
        if unfinished.exists() {
            Outputs::give_name(&unfinished, &self.manifest()).map_err(asked)?;
            rustix::fs::syncfs(&root).map_err(|e| asked(e.into()))?;
        }
        Ok(())
    }
}
