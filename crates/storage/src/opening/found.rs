//! Content of a directory that a read measures: what is there, nested folders included, always in the same order.

use super::{manifest, Purpose};
use forebay_model::job::FILE_NAME_DEFAULT;
use forebay_model::units::{format_bytes, GIB};
use forebay_model::Error;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// More can't be open at once on most machines.
const ENTRIES_MAX: usize = 1_000_000;
const DEPTH_MAX: usize = 64;
/// Below a data set, but not of it: what sweeps and tune made there, which has our list, and the file system's own.
const NOT_OF_THE_DATA: [&str; 3] = ["forebay-sweep", "forebay-tune", "lost+found"];

/// The files called --file-name if there are any; else, where no name was given, all files below `dir`.
pub(crate) fn files_of(dir: &Path, purpose: &Purpose) -> Result<Vec<PathBuf>, Error> {
    let most = purpose.files.map_or(usize::MAX, |n| n as usize);
    let mut files = numbered(dir, &purpose.file_name, most);
    if files.is_empty() && purpose.file_name == FILE_NAME_DEFAULT {
        files = below(dir, most, ENTRIES_MAX)?;
    }
    if files.is_empty() {
        let found = match purpose.file_name.as_str() {
            FILE_NAME_DEFAULT => "there is no file with data in it or below it".to_string(),
            // Its first: nobody has typed the pattern where a fio job file gave it.
            name => format!("there is no file called {} in it", name.replace("%d", "0")),
        };
        let next = or_make(purpose, "another directory", "files");
        return Err(Error::request(format!("read {}", dir.display()), found, next));
    }
    match purpose.files {
        Some(count) if files.len() < most => Err(Error::request(
            format!("read {count} files of {}", dir.display()),
            format!("there are {}, the first of them {}", files.len(), files[0].display()),
            or_make(purpose, &format!("‹files› {}", files.len()), "the others"),
        )),
        _ => Ok(files),
    }
}

/// Returns the advice: `this`, or the flags that have `what` made, unless the job refuses them.
pub(crate) fn or_make(purpose: &Purpose, this: &str, what: &str) -> String {
    if !purpose.could_make {
        return this.into();
    }
    let size = format_bytes(purpose.file_bytes.unwrap_or(GIB));
    format!("{this}, or ‹create› ‹file_bytes› {size} to have {what} made")
}

/// NAME.0, NAME.1 … as far as they go without a gap.
fn numbered(dir: &Path, name: &str, most: usize) -> Vec<PathBuf> {
    (0..u32::MAX)
        .map(|n| dir.join(name.replace("%d", &n.to_string())))
        .take_while(|p| p.metadata().is_ok_and(|m| !m.is_dir()))
        .take(most)
        .collect()
}

/// The first `most` files with data: those of a folder by name, then those of the folders in it.
fn below(root: &Path, most: usize, entries_max: usize) -> Result<Vec<PathBuf>, Error> {
    let mut walk =
        Walk { root, most, entries_left: entries_max, entries_max, seen: HashSet::new(), found: Vec::new() };
    walk.folder(root, 0)?;
    Ok(walk.found)
}

struct Walk<'a> {
    root: &'a Path,
    most: usize,
    entries_max: usize,
    entries_left: usize,
    /// Device and inode: a file under several names is read once.
    seen: HashSet<(u64, u64)>,
    found: Vec<PathBuf>,
}

impl Walk<'_> {
    fn folder(&mut self, dir: &Path, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(self.too_much(format!("more than {DEPTH_MAX} levels of folders are below it")));
        }
        let refused = |e: std::io::Error| {
            Error::request(
                format!("read {}", dir.display()),
                e.to_string(),
                format!("ls -ld {}", dir.display()),
            )
        };
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(dir).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let left = self.entries_left.checked_sub(1);
            self.entries_left = left.ok_or_else(|| {
                self.too_much(format!("more than {} files and folders are below it", self.entries_max))
            })?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type().map_err(refused)?.is_dir() {
                if !NOT_OF_THE_DATA.iter().any(|n| name == *n) || is_the_users(&entry.path()) {
                    folders.push(entry.path());
                }
            } else {
                files.push(entry.path());
            }
        }
        files.sort();
        folders.sort();
        files.into_iter().for_each(|file| self.file(file));
        for folder in folders {
            if self.found.len() >= self.most {
                break;
            }
            self.folder(&folder, depth + 1)?;
        }
        Ok(())
    }

    /// A link to a file is that file; one to a folder isn't followed, since it may lead in a circle.
    fn file(&mut self, file: PathBuf) {
        let Ok(meta) = file.metadata() else { return };
        let has_data = meta.is_file() && meta.len() > 0;
        if has_data && self.found.len() < self.most && self.seen.insert((meta.dev(), meta.ino())) {
            self.found.push(file);
        }
    }

    fn too_much(&self, found: String) -> Error {
        let asked = format!("read {}", self.root.display());
        Error::request(asked, found, "‹files› 1000 for the first of them, or a folder further down")
    }
}

/// A name that we use as well makes a folder none of ours.
fn is_the_users(folder: &Path) -> bool {
    !folder.ends_with("lost+found") && !folder.join(manifest::NAME).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn made(home: &Path, names: &[&str]) {
        for name in names {
            let file = home.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "data").unwrap();
        }
    }

    fn names(home: &Path, found: Vec<PathBuf>) -> Vec<String> {
        found.iter().map(|f| f.strip_prefix(home).unwrap().display().to_string()).collect()
    }

    // promise: BEN-11
    #[test]
    fn files_below_are_found_in_order_each_once() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["b/2", "b/1", "a/x/deep", "z", ".hidden", ".git/object", "lost+found/part"]);
        for own in ["forebay-tune", "forebay-sweep"] {
            made(&home.path().join(own), &["forebay.0", manifest::NAME]);
        }
        fs::write(home.path().join("empty"), "").unwrap();
        symlink("b/2", home.path().join("another-2")).unwrap();
        symlink("..", home.path().join("b/up")).unwrap();
        symlink("nowhere", home.path().join("b/dangling")).unwrap();
        let found = |most| names(home.path(), below(home.path(), most, 100).unwrap());
        assert_eq!(found(usize::MAX), ["another-2", "z", "a/x/deep", "b/1"]);
        assert_eq!(found(3), ["another-2", "z", "a/x/deep"]);
        let own = home.path().join("forebay-tune");
        assert_eq!(below(&own, 9, 100).unwrap(), [own.join("forebay.0")], "it was named");
    }

    // promise: FLT-30
    #[test]
    fn a_folder_of_the_users_is_data_whatever_it_is_called() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["forebay-tune/measured", "forebay-sweep/measured"]);
        let found = names(home.path(), below(home.path(), usize::MAX, 100).unwrap());
        assert_eq!(found, ["forebay-sweep/measured", "forebay-tune/measured"]);
    }

    // promise: BEN-11
    #[test]
    fn a_tree_without_end_is_refused_with_what_to_type() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["a/1", "a/2", "b/1"]);
        let error = below(home.path(), usize::MAX, 4).unwrap_err();
        assert!(error.found.contains("more than 4 files") && error.next.contains("‹files›"), "{error}");
        assert_eq!(below(home.path(), usize::MAX, 5).unwrap().len(), 3);
        let deep = home.path().join(vec!["d"; DEPTH_MAX + 1].join("/"));
        fs::create_dir_all(deep).unwrap();
        let error = below(home.path(), usize::MAX, 1000).unwrap_err();
        assert!(error.found.contains("64 levels") && !error.next.is_empty(), "{error}");
    }
}
