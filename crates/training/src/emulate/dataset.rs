//! Input of a run: the files of a data set, listed once by name and opened when their turn comes. Half a million names
//! are held side by side in one text.

use super::manifest::Manifest;
use super::packed::Packed;
use super::reading::Opened;
use crate::format::pick::{RecordIndex, ENTRY_BYTES, INDEXED, LENGTHS, OFFSETS};
use forebay_model::device::DriveModel;
use forebay_model::first_bytes::{self, Seen};
use forebay_model::glob::Glob;
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use forebay_storage::{FileAccess, FileTarget, SharedDrive, Target, Uri};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Subfolder of a data folder that holds training files.
const TRAIN: &str = "train";
/// Folders within folders.
const NESTING_MAX: u32 = 8;

/// Names in order, without a string of its own for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    text: String,
    ends: Vec<u32>,
}

impl Names {
    fn push(&mut self, name: &str) -> Result<(), Error> {
        self.text.push_str(name);
        let end = u32::try_from(self.text.len()).map_err(|_| {
            Error::request("--data", "the files' names together are longer than 4 GiB", "a smaller data set")
        })?;
        self.ends.push(end);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, index: usize) -> &str {
        let from = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[from..self.ends[index] as usize]
    }
}

/// Input of a run.
#[derive(Debug)]
pub(crate) enum DataSet {
    Folder(Folder),
    Packed(Packed),
}

impl DataSet {
    /// Folders of files, or one source that holds them all; and the modelled drive whose time files take.
    pub(crate) fn open(
        spec: &EmulateSpec,
        extension: &str,
        workers: u32,
    ) -> Result<(DataSet, Option<SharedDrive>), Error> {
        let uris = uris_of(spec)?;
        if let Some((drive, folder)) = paced_folder(&uris) {
            let folder = Folder::open(spec, &[folder.to_path_buf()], extension)?;
            let drive = SharedDrive::new(&DriveModel::parse(drive)?, spec.seed, false);
            return Ok((DataSet::Folder(folder), Some(drive)));
        }
        if is_one_space(&uris) {
            return Ok((DataSet::Packed(Packed::open(spec, workers)?), None));
        }
        let folders: Vec<PathBuf> = uris
            .iter()
            .map(|uri| match uri.path() {
                Some(path) => Ok(path.to_path_buf()),
                None => {
                    let found = "is given with others: a source that holds a data set must be the only one";
                    Err(Error::request(format!("--data {uri}"), found, "--data DIR [DIR …], or one source"))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok((DataSet::Folder(Folder::open(spec, &folders, extension)?), None))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            DataSet::Folder(folder) => folder.len(),
            DataSet::Packed(packed) => packed.len(),
        }
    }

    /// As messages call the file.
    pub(crate) fn name(&self, file: u32) -> String {
        match self {
            DataSet::Folder(folder) => folder.path(file).display().to_string(),
            DataSet::Packed(packed) => packed.name(file),
        }
    }

    /// Returns what a file is by its first bytes, where that isn't this format.
    pub(crate) fn is_other(&self, file: u32, format: &str) -> Option<Seen> {
        match self {
            DataSet::Folder(folder) => {
                let path = folder.path(file);
                let head = read_first(&path, first_bytes::ENOUGH as u64).ok()?;
                let behind = || (format == "hdf5" && has_user_block(&path)).then_some(USER_BLOCK);
                first_bytes::is_other(&head, format).or_else(behind)
            }
            DataSet::Packed(_) => None,
        }
    }

    /// Returns whether a manifest says that Forebay made the file: only then is removing it advised.
    pub(crate) fn is_made(&self, file: u32) -> bool {
        match self {
            DataSet::Folder(folder) => folder.is_made(file),
            DataSet::Packed(_) => false,
        }
    }

    pub(crate) fn open_file(&self, file: u32, direct: bool) -> std::io::Result<Opened> {
        match self {
            DataSet::Folder(folder) => {
                let (open, bytes) = folder.open_file(file, direct)?;
                let index = folder.indexes.get(file as usize).cloned().flatten();
                Ok(Opened { file: Some(Arc::new(open)), held: None, base: place_of(file), bytes, index })
            }
            DataSet::Packed(packed) => Ok(packed.opened(file)),
        }
    }

    /// The address space that holds all files, where there is one.
    pub(crate) fn target(&self) -> Option<&Target> {
        match self {
            DataSet::Folder(_) => None,
            DataSet::Packed(packed) => Some(&packed.target),
        }
    }
}

fn uris_of(spec: &EmulateSpec) -> Result<Vec<Uri>, Error> {
    spec.data.iter().map(|text| Uri::parse(text)).collect()
}

/// Returns whether one source holds all files, rather than folders.
fn is_one_space(uris: &[Uri]) -> bool {
    let is_folder = |path: &Path| !path.exists() || path.is_dir();
    match uris {
        [uri] => uri.path().map_or(paced_folder(uris).is_none(), |path| !is_folder(path)),
        _ => false,
    }
}

/// A modelled drive, by its name and settings, and the folder whose files take its time.
fn paced_folder(uris: &[Uri]) -> Option<(&str, &Path)> {
    let [uri] = uris else { return None };
    let drive = uri.timed()?;
    let folder = uri.parts().first()?.path().filter(|path| path.is_dir())?;
    Some((drive, folder))
}

fn globs_of(spec: &EmulateSpec) -> Result<Vec<Glob>, Error> {
    spec.glob.iter().map(|text| Glob::parse(text)).collect()
}

/// Refuses patterns of files where there are none.
pub(crate) fn check_globs(spec: &EmulateSpec) -> Result<(), Error> {
    globs_of(spec)?;
    let uris = uris_of(spec)?;
    let is_folder = |uri: &Uri| uri.path().is_some_and(|path| !path.exists() || path.is_dir());
    match spec.glob.first().filter(|_| paced_folder(&uris).is_none() && !uris.iter().all(is_folder)) {
        Some(glob) => Err(Error::request(
            format!("--data {} ‹glob› '{glob}'", spec.data.join(" ")),
            "‹glob› chooses files of a folder, and this is none",
            "--data DIR, or no ‹glob›",
        )),
        None => Ok(()),
    }
}

/// Returns whether the data set is files that have to be read, or one space that is read as itself.
pub(crate) fn is_files(spec: &EmulateSpec) -> Result<bool, Error> {
    let uris = uris_of(spec)?;
    let has_content = !matches!(uris.as_slice(), [uri] if uri.timed().is_some() && uri.parts().is_empty());
    Ok(!(has_content && is_one_space(&uris)))
}

/// Models of drives want a place for each file.
pub(crate) fn place_of(file: u32) -> u64 {
    u64::from(file) << 36
}

/// Files below folders.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Each with the number of files before it.
    roots: Vec<(PathBuf, usize)>,
    names: Names,
    /// Positions of records, for formats that keep them in files of their own.
    indexes: Vec<Option<RecordIndex>>,
    pub manifest: Option<Manifest>,
}

impl Folder {
    /// Lists the files of the workload's format.
    pub(crate) fn open(spec: &EmulateSpec, folders: &[PathBuf], extension: &str) -> Result<Folder, Error> {
        let mut folder =
            Folder { roots: Vec::new(), names: Names::default(), indexes: Vec::new(), manifest: None };
        let globs = globs_of(spec)?;
        for given in folders {
            if let Some(manifest) = Manifest::beside(given)? {
                manifest.fits(spec, given)?;
                folder.manifest = Some(manifest);
            }
            folder.list(given, extension, &globs)?;
        }
        if let (Some(manifest), [given], []) = (&folder.manifest, folders, &*globs) {
            manifest.has_all(folder.names.len(), given)?;
        }
        if spec.workload.format == INDEXED {
            folder.read_indexes(spec.workload.samples_per_file)?;
        }
        Ok(folder)
    }

    /// As DLIO's readers do, before anything is measured. Files without an index have records of one length.
    fn read_indexes(&mut self, samples: u32) -> Result<(), Error> {
        for file in 0..self.len() as u32 {
            let path = self.path(file);
            let bad = |found: String| {
                let next = "forebay emulate datagen to create the data set again";
                Error::request(path.display().to_string(), found, next)
            };
            let beside = |ending: &str| {
                let mut name = path.clone().into_os_string();
                name.push(ending);
                match read_first(Path::new(&name), u64::from(samples) * ENTRY_BYTES as u64) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(bad(format!("its {ending}: {e}"))),
                }
            };
            let index = match (beside(OFFSETS)?, beside(LENGTHS)?) {
                (Some(offsets), Some(lengths)) => {
                    let bytes = path.metadata().map_err(|e| bad(e.to_string()))?.len();
                    Some(RecordIndex::read(&offsets, &lengths, samples, bytes).map_err(bad)?)
                }
                (None, None) => None,
                (Some(_), None) => return Err(bad(format!("it has {OFFSETS} next to it, but no {LENGTHS}"))),
                (None, Some(_)) => return Err(bad(format!("it has {LENGTHS} next to it, but no {OFFSETS}"))),
            };
            self.indexes.push(index);
        }
        Ok(())
    }

    fn list(&mut self, given: &Path, extension: &str, globs: &[Glob]) -> Result<(), Error> {
        let below = given.join(TRAIN);
        // Patterns choose among all that is there.
        let root = if globs.is_empty() && below.is_dir() { below } else { given.to_path_buf() };
        let mut found = Listing { extension, globs, names: Vec::new(), others: BTreeMap::new() };
        found.walk(&root, "", 0)?;
        if found.names.is_empty() {
            return Err(found.nothing(&root));
        }
        found.names.sort_unstable();
        self.roots.push((root, self.names.len()));
        found.names.iter().try_for_each(|name| self.names.push(name))
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn path(&self, file: u32) -> PathBuf {
        let file = file as usize;
        let root = self.roots.iter().rev().find(|(_, before)| *before <= file);
        let (root, _) = root.expect("a file lies below one of the folders");
        root.join(self.names.get(file))
    }

    /// Returns whether the manifest of its folder covers the file, by its name: `img_07_of_24.npz` of 24.
    fn is_made(&self, file: u32) -> bool {
        let path = self.path(file);
        let root = self.roots.iter().rev().find(|(_, before)| *before <= file as usize);
        let manifest = root.and_then(|(root, _)| {
            let given = if root.ends_with(TRAIN) { root.parent()? } else { root };
            Manifest::beside(given).ok().flatten()
        });
        let numbers = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| {
            let (rest, of) = stem.rsplit_once("_of_")?;
            Some((rest.rsplit_once('_')?.1.parse::<u64>().ok()?, of.parse::<u64>().ok()?))
        });
        let covers = |manifest: Manifest, (number, of): (u64, u64)| of == manifest.files && number < of;
        manifest.zip(numbers).is_some_and(|(manifest, numbers)| covers(manifest, numbers))
    }

    /// One of the files, with all that is to be known of where they lie.
    pub(crate) fn probe(&self, file: u32, direct: bool) -> Result<FileTarget, Error> {
        FileTarget::open(&self.path(file), FileAccess { write: false, direct })
    }

    /// Opens a file whose turn has come. A pipe in its place doesn't make us wait for a writer.
    pub(crate) fn open_file(&self, file: u32, direct: bool) -> std::io::Result<(File, u64)> {
        let flags =
            libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | if direct { libc::O_DIRECT } else { 0 };
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(self.path(file))?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        Ok((file, meta.len()))
    }
}

/// A file's first bytes, as many as there are.
fn read_first(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    File::open(path)?.take(bytes).read_to_end(&mut found)?;
    Ok(found)
}

/// Returns whether a name's end stands for the format that this extension does, in any usual spelling.
fn is_spelled(format: &str, extension: &str) -> bool {
    let extension = extension.to_ascii_lowercase();
    let others: &[&str] = match format {
        "jpeg" => &["jpg", "jpe", "jfif"],
        "hdf5" => &["h5", "he5", "hdf"],
        "tfrecord" => &["tfrecords", "tfrec"],
        "parquet" => &["parq", "pq"],
        _ => &[],
    };
    extension == format || others.contains(&extension.as_str())
}

const USER_BLOCK: Seen = Seen {
    formats: &["hdf5"],
    what: "an HDF5 file behind a user block (as MATLAB writes it), which isn't read here",
    next: "h5unjam -i IN -o OUT, which takes the block away",
};

/// Returns whether HDF5 begins later in the file: at 512 bytes, 1024, 2048 and so on.
fn has_user_block(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut found = [0; 8];
    (9..=20).any(|power| file.read_exact_at(&mut found, 1 << power).is_ok() && found == *b"\x89HDF\r\n\x1a\n")
}

struct Listing<'a> {
    extension: &'a str,
    globs: &'a [Glob],
    names: Vec<String>,
    /// Other extensions that were seen, and how often.
    others: BTreeMap<String, u64>,
}

impl Listing<'_> {
    fn walk(&mut self, root: &Path, below: &str, depth: u32) -> Result<(), Error> {
        let dir = root.join(below);
        let refused = |e: std::io::Error| {
            let next = "a folder that forebay emulate datagen filled";
            Error::request(format!("--data {}", dir.display()), e.to_string(), next)
        };
        for entry in std::fs::read_dir(&dir).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let kind = entry.file_type().map_err(refused)?;
            if name.starts_with('.') {
                continue;
            }
            let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            match path.rsplit_once('.') {
                _ if is_dir && depth < NESTING_MAX => self.walk(root, &path, depth + 1)?,
                _ if is_dir => {}
                _ if self.globs.iter().any(|glob| glob.matches(path.as_bytes())) => self.names.push(path),
                Some((_, extension)) if self.globs.is_empty() && is_spelled(self.extension, extension) => {
                    self.names.push(path)
                }
                Some((_, extension)) => *self.others.entry(extension.into()).or_default() += 1,
                None => {}
            }
        }
        Ok(())
    }

    fn nothing(&self, root: &Path) -> Error {
        if !self.globs.is_empty() {
            let globs: Vec<String> = self.globs.iter().map(|glob| format!("‹glob› '{glob}'")).collect();
            let mut others: Vec<_> = self.others.iter().collect();
            others.sort_by_key(|(_, count)| Reverse(**count));
            let others: Vec<_> =
                others.iter().take(8).map(|(ext, count)| format!("{count} .{ext}")).collect();
            let found = match others.is_empty() {
                true => "no file matches, and there is no other with an extension".into(),
                false => format!("no file matches; files below it: {}", others.join(", ")),
            };
            let asked = format!("--data {} {}", root.display(), globs.join(" "));
            return Error::request(asked, found, "‹glob› '*.jpg', or another --data");
        }
        let most = self.others.iter().max_by_key(|(_, count)| **count);
        let others = most.map_or(String::new(), |(extension, count)| {
            format!("; it holds {count} *.{extension} files, of another format")
        });
        Error::request(
            format!("--data {}", root.display()),
            format!("there is no *.{} file below it{others}", self.extension),
            "forebay emulate datagen --workload NAME --data DIR, or the workload that the files were made for",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::training::Workload;

    fn open(dirs: &[PathBuf]) -> Result<Folder, Error> {
        let workload = Workload { format: "npz".into(), samples_per_file: 1, ..Workload::default() };
        Folder::open(&EmulateSpec { workload, ..EmulateSpec::default() }, dirs, "npz")
    }

    #[test]
    fn files_are_found_in_order_below_train_and_its_folders() {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["train/0", "train/1", "valid"] {
            std::fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        for name in ["train/1/b.npz", "train/0/a.npz", "train/0/.hidden.npz", "train/x.txt", "valid/v.npz"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let folder = open(&[dir.path().into()]).unwrap();
        let names: Vec<_> = (0..folder.len() as u32).map(|f| folder.path(f)).collect();
        assert_eq!(names, [dir.path().join("train/0/a.npz"), dir.path().join("train/1/b.npz")]);
        let (_, bytes) = folder.open_file(1, false).unwrap();
        assert_eq!(bytes, 13);
    }

    // promise: EMU-50
    #[test]
    fn patterns_choose_files_of_any_extension_in_all_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("train")).unwrap();
        for name in ["train/1.tar", "train/0.TAR", "2.tar", "train/a.npz", ".3.tar"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let of = |globs: &[&str]| {
            let glob = globs.iter().map(|text| text.to_string()).collect();
            let spec = EmulateSpec { glob, ..EmulateSpec::default() };
            let folder = Folder::open(&spec, &[dir.path().into()], "raw")?;
            Ok::<_, Error>((0..folder.len() as u32).map(|f| folder.path(f)).collect::<Vec<_>>())
        };
        let at = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
        assert_eq!(of(&["*.tar", "train/*.TAR"]).unwrap(), at(&["2.tar", "train/0.TAR", "train/1.tar"]));
        let error = of(&["*.jpg"]).unwrap_err();
        assert!(error.found.ends_with("2 .tar, 1 .TAR, 1 .npz"), "{error}");
    }

    #[test]
    fn usual_spellings_are_one_format_in_either_case() {
        for (format, names) in [
            ("jpeg", &["a.jpg", "b.JPEG", "c.Jpg"][..]),
            ("hdf5", &["a.h5", "b.hdf5", "c.H5"]),
            ("tfrecord", &["a.tfrec", "b.tfrecord", "c.tfrecords"]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for name in names.iter().chain(&["d.txt"]) {
                std::fs::write(dir.path().join(name), name).unwrap();
            }
            let workload = Workload { format: format.into(), samples_per_file: 1, ..Workload::default() };
            let spec = EmulateSpec { workload, ..EmulateSpec::default() };
            assert_eq!(Folder::open(&spec, &[dir.path().into()], format).unwrap().len(), 3, "{format}");
        }
    }

    #[test]
    fn only_what_a_manifest_covers_was_made_here() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("train")).unwrap();
        for name in ["img_0_of_1.npz", "mine.npz", "img_0_of_2.npz"] {
            std::fs::write(dir.path().join("train").join(name), "").unwrap();
        }
        let made = || {
            let folder = open(&[dir.path().into()]).unwrap();
            let files = 0..folder.len() as u32;
            files.filter(|f| folder.is_made(*f)).map(|f| folder.path(f)).collect::<Vec<_>>()
        };
        assert_eq!(made(), [] as [PathBuf; 0]);
        let text = r#"{"schema": "forebay.dataset/1", "format": "npz", "files": 1, "samples_per_file": 1}"#;
        std::fs::write(dir.path().join(super::super::manifest::NAME), text).unwrap();
        assert_eq!(made(), [dir.path().join("train/img_0_of_1.npz")]);
    }

    #[test]
    fn several_folders_are_one_data_set() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (n, dir) in dirs.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{n}.npz")), "").unwrap();
        }
        let folder = open(&dirs.iter().map(|d| d.path().to_path_buf()).collect::<Vec<_>>()).unwrap();
        assert_eq!(folder.path(0), dirs[0].path().join("0.npz"));
        assert_eq!(folder.path(1), dirs[1].path().join("1.npz"));
    }

    #[test]
    fn a_folder_of_another_format_says_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.tfrecord"), "").unwrap();
        let error = open(&[dir.path().into()]).unwrap_err();
        assert!(error.found.contains("no *.npz") && error.found.contains("1 *.tfrecord"), "{error}");
        let missing = open(&[dir.path().join("gone")]).unwrap_err();
        assert_eq!(missing.kind, forebay_model::Kind::Request);
    }
}
