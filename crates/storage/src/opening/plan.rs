//! From sources to what exactly would be opened, made or overwritten. Looks, and touches nothing.

use super::found;
use super::manifest::HeldManifest;
use super::{mounts, Examined, Purpose};
use crate::source::file::FileAccess;
use crate::source::{Action, Examiner, FilePlan, Found, Source, SourcePlan, Uri, Workers};
use forebay_model::device::DriveModel;
use forebay_model::job::Op;
use forebay_model::units::{format_bytes, GIB};
use forebay_model::Error;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Size of files that are made where nobody said.
const FILE_BYTES_DEFAULT: u64 = GIB;

/// Directories whose manifests a plan looked into.
#[derive(Default)]
pub(crate) struct Manifests(pub BTreeMap<PathBuf, HeldManifest>);

impl Manifests {
    fn manifest_of(&mut self, file: &Path) -> Result<&HeldManifest, Error> {
        let dir = parent_of(file);
        if !self.0.contains_key(&dir) {
            self.0.insert(dir.clone(), HeldManifest::shared(&dir)?);
        }
        Ok(&self.0[&dir])
    }
}

pub(crate) fn parent_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Everything that the sources stand for.
pub fn examine(purpose: &Purpose) -> Result<Examined, Error> {
    let sources = &purpose.sources;
    let mut manifests = Manifests::default();
    let uris = sources.iter().map(|source| Uri::parse(source)).collect::<Result<Vec<_>, _>>()?;
    has_directory_for_files(purpose, &uris)?;
    let mut planner = Planner { purpose, manifests: &mut manifests };
    let (mut plans, mut pair_of) = (Vec::new(), Vec::new());
    for (n, uri) in uris.into_iter().enumerate() {
        match uri.path().filter(|path| path.is_dir()) {
            Some(dir) => {
                for (file, size) in files_in(dir, purpose)? {
                    plans.push(planner.sized(&file, size)?.into());
                }
            }
            None => plans.push(uri.examine(&mut planner, purpose.file_bytes)?),
        }
        pair_of.resize(plans.len(), purpose.by_pairs.then_some(n as u32));
    }
    distinct(purpose, &plans)?;
    plans.iter().try_for_each(|p| spare_members(purpose, p))?;
    if plans.iter().any(SourcePlan::is_virtual) && !plans.iter().all(SourcePlan::is_virtual) {
        return Err(Error::request(
            sources.join(" "),
            "a model in virtual time can't run beside sources in real time",
            "model:NAME?time=real",
        ));
    }
    let used = plans.iter().map(|p| p.bytes.saturating_sub(purpose.start_bytes)).fold(0, u64::saturating_add);
    if used == 0 {
        return Err(Error::request(
            sources.join(" "),
            "there is no data in it (from ‹start_bytes› on)",
            "‹file_bytes› 1g, or a smaller ‹start_bytes›",
        ));
    }
    Ok(Examined { plans, pair_of, manifests })
}

/// Content is made for a target as a whole: what it would write over must be ours, or named by the user.
fn spare_members(purpose: &Purpose, plan: &SourcePlan) -> Result<(), Error> {
    let files = plan.files();
    if !purpose.reads || !files.iter().any(|f| f.action == Action::Make && f.ours) {
        return Ok(());
    }
    let named = |f: &FilePlan| {
        named_in(&f.path, if f.is_device { &purpose.overwrite_devices } else { &purpose.overwrite })
    };
    match files.iter().find(|f| !f.ours && !named(f)) {
        Some(file) => Err(Error::request(
            format!("create the missing members of {}", plan.label),
            format!("that would overwrite {}, which Forebay didn't create", file.path.display()),
            "members that all exist, or new names for all of them",
        )),
        None => Ok(()),
    }
}

/// One file or device under two names would write over itself.
fn distinct(purpose: &Purpose, plans: &[SourcePlan]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for file in plans.iter().flat_map(SourcePlan::files) {
        let path = std::fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
        if !seen.insert(path) {
            return Err(Error::request(
                file.path.display().to_string(),
                "is named twice in this job",
                "a different file for each source and each m=",
            ));
        }
    }
    let mut known: BTreeMap<(u64, u64), &Path> = BTreeMap::new();
    let files = || plans.iter().flat_map(SourcePlan::files);
    let writes = purpose.writes || files().any(|f| f.action == Action::Make);
    for file in files().filter(|_| writes) {
        let Ok(meta) = std::fs::metadata(&file.path) else { continue };
        // No file system has the number 0.
        let identity = if file.is_device { (0, meta.rdev()) } else { (meta.dev(), meta.ino()) };
        if let Some(other) = known.insert(identity, &file.path).filter(|other| *other != file.path) {
            return Err(Error::request(
                format!("write to {}", file.path.display()),
                format!("it is the same as {}, which this job names too", other.display()),
                "a different file for each source and each m=",
            ));
        }
    }
    Ok(())
}

/// --files counts files of a directory and --glob chooses some; neither means anything elsewhere.
fn has_directory_for_files(purpose: &Purpose, uris: &[Uri]) -> Result<(), Error> {
    if uris.iter().any(|uri| uri.path().is_some_and(Path::is_dir)) {
        return Ok(());
    }
    let (flag, value, does) = match (purpose.globs.first(), purpose.files) {
        (Some(glob), _) => ("‹glob›", format!("'{glob}'"), "chooses among"),
        (None, Some(files)) => ("‹files›", files.to_string(), "counts"),
        (None, None) => return Ok(()),
    };
    let source = &purpose.sources[0];
    let (found, next) = match uris[0].path() {
        Some(path) if !path.exists() => {
            ("there is no such directory".into(), format!("mkdir -p {}", path.display()))
        }
        Some(_) => (format!("it is one file, and {flag} {does} those of a directory"), format!("no {flag}")),
        None => (format!("{flag} {does} the files of a directory, and this is none"), format!("no {flag}")),
    };
    Err(Error::request(format!("{flag} {value} of {source}"), found, next))
}

/// A file's size as asked for.
#[derive(Clone, Copy)]
enum Size {
    /// This one, or as found.
    Exactly(Option<u64>),
    /// As found, and no more than this.
    AtMost(Option<u64>),
}

/// Returns the files of a directory: those named by --file-name where they may be made, else what is there.
fn files_in(dir: &Path, purpose: &Purpose) -> Result<Vec<(PathBuf, Size)>, Error> {
    if !purpose.makes {
        let files = found::files_of(dir, purpose)?;
        return Ok(files.into_iter().map(|f| (f, Size::AtMost(purpose.file_bytes))).collect());
    }
    let named = |n: u32| dir.join(purpose.file_name.replace("%d", &n.to_string()));
    let count = purpose.files.unwrap_or(purpose.files_usual);
    Ok((0..count).map(|n| (named(n), Size::Exactly(purpose.file_bytes))).collect())
}

struct Planner<'a> {
    purpose: &'a Purpose,
    manifests: &'a mut Manifests,
}

impl Examiner for Planner<'_> {
    fn file(&mut self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error> {
        match path.is_dir() {
            true => {
                let file = path.join(self.purpose.file_name.replace("%d", "0"));
                self.sized(&file, Size::Exactly(wanted))
            }
            false => self.sized(path, Size::Exactly(wanted)),
        }
    }

    /// Permits it: a namespace is written to as a block device is, only where it was named.
    fn may_connect(&mut self, source: &dyn Source) -> Result<Workers, Error> {
        if self.purpose.writes && !self.is_named(source) {
            return Err(would_be_lost(&source, "namespace"));
        }
        Ok(Workers { now: self.purpose.workers, most: self.purpose.workers_most })
    }

    /// Returns the part of a namespace that is used.
    fn part_of(&mut self, source: &dyn Source, found: Found, wanted: Option<u64>) -> Result<u64, Error> {
        if self.purpose.writes && found.read_only {
            return Err(Error::request(
                format!("write to {source}"),
                "the controller says that the namespace is write protected",
                "a namespace that is writable",
            ));
        }
        let bytes = found.bytes;
        match wanted {
            Some(wanted) if wanted > bytes => {
                Err(too_small(wanted, &source, bytes, format!("the namespace has {bytes} bytes")))
            }
            wanted => Ok(wanted.unwrap_or(bytes)),
        }
    }

    fn model(&mut self, drive: &DriveModel) -> Result<(), Error> {
        let random = self.purpose.random;
        if self.purpose.reads {
            drive.check(if random { Op::RandRead } else { Op::Read })?;
        }
        if self.purpose.writes {
            drive.check(if random { Op::RandWrite } else { Op::Write })?;
        }
        Ok(())
    }
}

impl Planner<'_> {
    /// Returns whether the user named that namespace as one to write to.
    fn is_named(&self, source: &dyn Source) -> bool {
        self.purpose
            .overwrite_devices
            .iter()
            .any(|name| Uri::parse(name).is_ok_and(|uri| uri.is_same(source)))
    }

    fn sized(&mut self, path: &Path, size: Size) -> Result<FilePlan, Error> {
        let wanted = |have: u64| match size {
            Size::Exactly(bytes) => bytes,
            Size::AtMost(bytes) => bytes.map(|b| b.min(have)),
        };
        match std::fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => self.block_device(path, wanted(u64::MAX)),
            Ok(meta) if FileAccess::is_endless(&meta) => self.endless(path, wanted(u64::MAX)),
            Ok(meta) if meta.is_file() => self.existing(path, meta.len(), wanted(meta.len())),
            Ok(_) => Err(FileAccess::is_neither(path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.new_file(path, wanted(u64::MAX)),
            Err(e) => Err(Error::request(
                format!("look at {}", path.display()),
                e.to_string(),
                format!("ls -ld {}", path.display()),
            )),
        }
    }

    fn existing(&mut self, path: &Path, have: u64, wanted: Option<u64>) -> Result<FilePlan, Error> {
        let held = self.manifests.manifest_of(path)?;
        let entry = held.entry(path).cloned();
        let whose = if held.is_changed(path) {
            "it has changed since Forebay wrote it"
        } else {
            "Forebay didn't create it"
        };
        let ours = entry.is_some();
        let shown = path.display();
        if self.purpose.writes && !ours && !named_in(path, &self.purpose.overwrite) {
            return Err(Error::request(
                format!("write to {shown}"),
                format!("it exists ({have} bytes), and {whose}"),
                format!("‹overwrite› {shown} to let it be overwritten, or another name"),
            ));
        }
        let bytes = wanted.unwrap_or(have);
        let action = if bytes <= have { Action::Use } else { Action::Make };
        if action == Action::Make && !ours && !self.purpose.writes {
            return Err(too_small(bytes, &shown, have, format!("it has {have} bytes, and {whose}")));
        }
        if action == Action::Make && !self.purpose.makes {
            let larger =
                if self.purpose.could_make { ", or ‹create› to have it made larger" } else { "" };
            let next = format!("‹file_bytes› {have}{larger}");
            return Err(Error { next, ..too_small(bytes, &shown, have, format!("it has {have} bytes")) });
        }
        if bytes == 0 {
            return Err(Error::request(
                shown.to_string(),
                "is empty",
                found::or_make(self.purpose, "a file with data", "one of another name"),
            ));
        }
        Ok(FilePlan {
            path: path.into(),
            action,
            is_new: false,
            bytes,
            is_device: false,
            seed: entry.and_then(|e| e.seed),
            ours,
        })
    }

    fn new_file(&self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error> {
        let shown = path.display();
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(Error::request(format!("use {shown}"), "there is no such device", "lsblk"));
        }
        if !self.purpose.makes {
            return Err(Error::request(
                format!("read {shown}"),
                "there is no such file",
                found::or_make(self.purpose, "a path that exists", "it"),
            ));
        }
        let dir = parent_of(path);
        if !dir.is_dir() {
            return Err(Error::request(
                format!("make {shown}"),
                format!("there is no directory {}", dir.display()),
                format!("mkdir -p {}", dir.display()),
            ));
        }
        Ok(FilePlan {
            path: path.into(),
            action: Action::Make,
            is_new: true,
            bytes: wanted.unwrap_or(FILE_BYTES_DEFAULT),
            is_device: false,
            seed: None,
            ours: true,
        })
    }

    /// `/dev/null` and `/dev/zero` are as long as one says.
    fn endless(&self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error> {
        let shown = path.display();
        if self.purpose.reads && path.ends_with("null") {
            return Err(Error::request(format!("read {shown}"), "it holds nothing", "/dev/zero, or nil:"));
        }
        let bytes = wanted.filter(|bytes| *bytes > 0).ok_or_else(|| {
            Error::request(shown.to_string(), "has no size of its own", format!("{shown} ‹file_bytes› 1g"))
        })?;
        Ok(device(path, bytes))
    }

    fn block_device(&self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error> {
        let shown = path.display();
        if self.purpose.writes {
            if let Some(why) = mounts::mounted_as(path) {
                return Err(Error::request(
                    format!("write to {shown}"),
                    why,
                    "a device that nothing uses, or a file on it",
                ));
            }
            if !named_in(path, &self.purpose.overwrite_devices) {
                return Err(would_be_lost(&shown, "block device"));
            }
        }
        let have = mounts::device_bytes(path)?;
        let bytes = wanted.unwrap_or(have);
        if bytes > have {
            return Err(too_small(bytes, &shown, have, format!("the device has {have} bytes")));
        }
        Ok(device(path, bytes))
    }
}

fn device(path: &Path, bytes: u64) -> FilePlan {
    FilePlan {
        path: path.into(),
        action: Action::Use,
        is_new: false,
        bytes,
        is_device: true,
        seed: None,
        ours: false,
    }
}

/// A device is written to only where it was named.
fn would_be_lost(source: &dyn Display, kind: &str) -> Error {
    Error::request(
        format!("write to {source}"),
        format!("it is a {kind}, and what it holds would be lost"),
        format!("‹overwrite_devices› {source} if that is what you want"),
    )
}

/// More was asked for than the `have` bytes that are there.
fn too_small(wanted: u64, source: &dyn Display, have: u64, found: String) -> Error {
    let asked = format!("‹file_bytes› {} of {source}", format_bytes(wanted));
    Error::request(asked, found, format!("‹file_bytes› {have}, or none"))
}

/// Returns whether the user named this very file: by the same path, or another path to it.
fn named_in(path: &Path, names: &[String]) -> bool {
    let same = |name: &String| {
        let named = Path::new(name);
        named == path
            || matches!((std::fs::canonicalize(named), std::fs::canonicalize(path)), (Ok(a), Ok(b)) if a == b)
    };
    names.iter().any(same)
}
