//! Content of a directory that a read measures: what is there, nested folders included, always in the same order.

use super::{manifest, Purpose};
use forebay_model::glob::Glob;
use forebay_model::job::FILE_NAME_DEFAULT;
use forebay_model::units::{format_bytes, GIB};
use forebay_model::Error;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// More can't be open at once on most machines.
const ENTRIES_MAX: usize = 1_000_000;
const DEPTH_MAX: usize = 64;
/// Of the extensions that are there where no file matches.
const EXTENSIONS_SHOWN: usize = 8;
const NO_EXTENSION: &str = "without an extension";
/// Below a data set, but not of it: what sweeps and tune made there, which has our list, and the file system's own.
const NOT_OF_THE_DATA: [&str; 3] = ["forebay-sweep", "forebay-tune", "lost+found"];

/// The files that match --glob; without one, those called --file-name if there are any, else, where no name was given,
/// all files below `dir`.
pub(crate) fn files_of(dir: &Path, purpose: &Purpose) -> Result<Vec<PathBuf>, Error> {
    let most = purpose.files.map_or(usize::MAX, |n| n as usize);
    let chooses = !purpose.globs.is_empty();
    let mut files = if chooses { Vec::new() } else { numbered(dir, &purpose.file_name, most) };
    if files.is_empty() && purpose.file_name == FILE_NAME_DEFAULT {
        let found = below(dir, &purpose.globs, most, ENTRIES_MAX)?;
        if found.files.is_empty() && !found.others.is_empty() {
            return Err(no_match(dir, purpose, &found.others));
        }
        files = found.files;
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

/// Tells what is there instead: files by extension, the most frequent first.
fn no_match(dir: &Path, purpose: &Purpose, others: &BTreeMap<String, u64>) -> Error {
    let globs: Vec<String> = purpose.globs.iter().map(|glob| format!("‹glob› '{glob}'")).collect();
    let mut by_count: Vec<_> = others.iter().collect();
    by_count.sort_by_key(|(_, count)| Reverse(**count));
    let listed: Vec<String> =
        by_count.iter().take(EXTENSIONS_SHOWN).map(|(name, count)| format!("{count} {name}")).collect();
    let more = match by_count.len().saturating_sub(EXTENSIONS_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} other kinds"),
    };
    let next = match by_count[0].0.as_str() {
        NO_EXTENSION => "‹glob› '*'".to_string(),
        extension => format!("‹glob› '*{extension}'"),
    };
    Error::request(
        format!("read {} {}", dir.display(), globs.join(" ")),
        format!("no file matches; files with data in it and below it: {}{more}", listed.join(", ")),
        next,
    )
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

/// The first `most` files with data that match: those of a folder by name, then those of the folders in it.
fn below(root: &Path, globs: &[Glob], most: usize, entries_max: usize) -> Result<Found, Error> {
    let (seen, found) = (HashSet::new(), Found::default());
    let mut walk = Walk { root, globs, most, entries_left: entries_max, entries_max, seen, found };
    walk.folder(root, 0)?;
    Ok(walk.found)
}

#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Files with data that don't match, by extension.
    others: BTreeMap<String, u64>,
}

struct Walk<'a> {
    root: &'a Path,
    globs: &'a [Glob],
    most: usize,
    entries_max: usize,
    entries_left: usize,
    /// Device and inode: a file under several names is read once.
    seen: HashSet<(u64, u64)>,
    found: Found,
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
            if self.found.files.len() >= self.most {
                break;
            }
            self.folder(&folder, depth + 1)?;
        }
        Ok(())
    }

    /// A link to a file is that file; one to a folder isn't followed, since it may lead in a circle.
    fn file(&mut self, file: PathBuf) {
        let Ok(meta) = file.metadata() else { return };
        if !meta.is_file() || meta.len() == 0 || self.found.files.len() >= self.most {
            return;
        }
        if !self.is_chosen(&file) {
            let extension = file.extension().map(|e| format!(".{}", e.to_string_lossy()));
            *self.found.others.entry(extension.unwrap_or_else(|| NO_EXTENSION.into())).or_default() += 1;
        } else if self.seen.insert((meta.dev(), meta.ino())) {
            self.found.files.push(file);
        }
    }

    fn is_chosen(&self, file: &Path) -> bool {
        let inside = file.strip_prefix(self.root).unwrap_or(file).as_os_str().as_bytes();
        self.globs.is_empty() || self.globs.iter().any(|glob| glob.matches(inside))
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
        let found = |most| names(home.path(), below(home.path(), &[], most, 100).unwrap().files);
        assert_eq!(found(usize::MAX), ["another-2", "z", "a/x/deep", "b/1"]);
        assert_eq!(found(3), ["another-2", "z", "a/x/deep"]);
        let own = home.path().join("forebay-tune");
        assert_eq!(below(&own, &[], 9, 100).unwrap().files, [own.join("forebay.0")], "it was named");
    }

    // promise: BEN-50
    #[test]
    fn patterns_choose_files_and_where_none_match_what_is_there_is_listed() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["b/2.jpg", "b/1.JPG", "b/3.JPG", "z.png", "forebay.0", "plain", ".hidden.jpg"]);
        symlink("b/2.jpg", home.path().join("c.jpg")).unwrap();
        let of = |globs: &[&str], files| {
            let globs = globs.iter().map(|text| Glob::parse(text).unwrap()).collect();
            files_of(home.path(), &Purpose { globs, files, ..Purpose::default() })
        };
        let found = |globs: &[&str], files| names(home.path(), of(globs, files).unwrap());
        assert_eq!(found(&["*.jpg"], None), ["c.jpg"], "the link's file is read once");
        assert_eq!(found(&["*.png", "b/*.[jJ]*"], None), ["z.png", "b/1.JPG", "b/2.jpg", "b/3.JPG"]);
        assert_eq!(found(&["*"], Some(2)), ["c.jpg", "forebay.0"], "a pattern stands before our own names");
        assert_eq!(found(&[], None), ["forebay.0"]);
        let error = of(&["*.tar", "*.tgz"], None).unwrap_err();
        assert!(error.asked.ends_with("‹glob› '*.tar' ‹glob› '*.tgz'"), "{error}");
        let listed = "below it: 2 .JPG, 2 .jpg, 1 .0, 1 .png, 1 without an extension";
        assert!(error.found.ends_with(listed), "{error}");
        assert_eq!(error.next, "‹glob› '*.JPG'");
        let error = of(&["*.JPG"], Some(3)).unwrap_err();
        assert!(error.found.contains("there are 2"), "{error}");
    }

    // promise: FLT-30
    #[test]
    fn a_folder_of_the_users_is_data_whatever_it_is_called() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["forebay-tune/measured", "forebay-sweep/measured"]);
        let found = names(home.path(), below(home.path(), &[], usize::MAX, 100).unwrap().files);
        assert_eq!(found, ["forebay-sweep/measured", "forebay-tune/measured"]);
    }

    // promise: BEN-11
    #[test]
    fn a_tree_without_end_is_refused_with_what_to_type() {
        let home = tempfile::tempdir().unwrap();
        made(home.path(), &["a/1", "a/2", "b/1"]);
        let error = below(home.path(), &[], usize::MAX, 4).err().unwrap();
        assert!(error.found.contains("more than 4 files") && error.next.contains("‹files›"), "{error}");
        assert_eq!(below(home.path(), &[], usize::MAX, 5).unwrap().files.len(), 3);
        let deep = home.path().join(vec!["d"; DEPTH_MAX + 1].join("/"));
        fs::create_dir_all(deep).unwrap();
        let error = below(home.path(), &[], usize::MAX, 1000).err().unwrap();
        assert!(error.found.contains("64 levels") && !error.next.is_empty(), "{error}");
    }
}
