//! Files that Forebay makes, finishes and renames: nothing that somebody else made is replaced, and no link is followed.
//!
//! The only place that opens a file to create it, and the only one that renames (`tests/test_house.py`). What exists is
//! judged by whoever asks, before its first byte; what appears meanwhile is an error here, and stays as it is.

use rustix::fs::{renameat_with, RenameFlags, CWD};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error as IoError, ErrorKind, Result as IoResult, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Until it is whole, a file is named `.NAME.part`.
const PART: &str = ".part";

/// Makes, finishes and renames files.
#[derive(Debug)]
pub enum Outputs {}

impl Outputs {
    /// A new, empty file. `AlreadyExists` where anything has the name: a file, a link that leads nowhere, a pipe.
    pub fn create(path: &Path) -> IoResult<File> {
        options().create_new(true).open(path)
    }

    /// A file that is there, for writing: a plain one with no other name, since its content would change under that one, too.
    pub fn reopen(path: &Path) -> IoResult<File> {
        let file = options().open(path)?;
        let meta = file.metadata()?;
        if meta.is_file() && meta.nlink() == 1 {
            return Ok(file);
        }
        let what = if meta.is_file() {
            "it has another name, whose content would change, too"
        } else {
            "it isn't a plain file"
        };
        Err(IoError::new(ErrorKind::AlreadyExists, what))
    }

    /// A small file of our own that several processes share, to be read and written: made if nothing has the name. What it is has to be
    /// looked at by whoever asks.
    pub fn share(path: &Path, mode: u32) -> IoResult<File> {
        options().read(true).create(true).truncate(false).mode(mode).open(path)
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    options
}

impl Outputs {
    /// Returns what has the name, itself and not the end of a link; None where nothing has it.
    pub fn there(path: &Path) -> IoResult<Option<Metadata>> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(meta)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The name of a file until it is whole.
    pub fn part_of(path: &Path) -> PathBuf {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        path.with_file_name(format!(".{name}{PART}"))
    }

    /// Returns the name of the finished file, if this is the name of an unfinished one.
    pub fn whole_of(name: &str) -> Option<&str> {
        name.strip_prefix('.')?.strip_suffix(PART)
    }

    /// A new file with this content, which has its name once it is whole. Where that fails nothing is left.
    pub fn write_new(path: &Path, content: &[u8]) -> IoResult<()> {
        let part = Outputs::part_of(path);
        let made = Outputs::create(&part)?;
        let named = fill(made, content).and_then(|()| Outputs::give_name(&part, path));
        named.inspect_err(|_| drop(std::fs::remove_file(&part)))
    }

    /// A small file of our own that says something else from now on: the old one, or nothing, is there until the new one is whole. A
    /// link of that name is replaced itself.
    pub fn renew(path: &Path, content: &[u8]) -> IoResult<()> {
        let part = Outputs::part_of(path);
        let made = Outputs::create(&part)?;
        let named = fill(made, content).and_then(|()| std::fs::rename(&part, path));
        named.inspect_err(|_| drop(std::fs::remove_file(&part)))
    }
}

fn fill(mut file: File, content: &[u8]) -> IoResult<()> {
    file.write_all(content)
}

impl Outputs {
    /// Gives a file its final name. `AlreadyExists` where something has it; both stay as they are then.
    pub fn give_name(from: &Path, to: &Path) -> IoResult<()> {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems can't: a second name can't replace one either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match std::fs::hard_link(from, to) {
                Ok(()) => std::fs::remove_file(from),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(e),
                // Nor can these have two names.
                Err(_) if Outputs::there(to)?.is_none() => std::fs::rename(from, to),
                Err(_) => Err(IoError::from(ErrorKind::AlreadyExists)),
            },
            named => named.map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A folder with something of every kind under names that are to be ours, and what it looks like.
    fn planted() -> (tempfile::TempDir, Vec<&'static str>) {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("precious"), "precious").unwrap();
        fs::write(at("file"), "mine").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        fs::hard_link(at("precious"), at("twin")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        (home, vec!["file", "link", "dangling", "twin", "folder"])
    }

    fn untouched(home: &Path) {
        assert_eq!(fs::read_to_string(home.join("precious")).unwrap(), "precious");
        assert_eq!(fs::read_to_string(home.join("file")).unwrap(), "mine");
        assert!(!home.join("nothing").exists());
        let left: Vec<_> = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(PART)), "{left:?}");
    }

    // promise: TRA-44
    #[test]
    fn nothing_that_is_there_is_replaced_or_written_through() {
        let (home, names) = planted();
        for name in names {
            let path = home.path().join(name);
            assert_eq!(Outputs::create(&path).unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
            assert!(Outputs::write_new(&path, b"ours").is_err(), "{name}");
            let new = home.path().join("new");
            fs::write(&new, "ours").unwrap();
            assert_eq!(
                Outputs::give_name(&new, &path).unwrap_err().kind(),
                ErrorKind::AlreadyExists,
                "{name}"
            );
            assert_eq!(fs::read_to_string(&new).unwrap(), "ours");
            fs::remove_file(&new).unwrap();
            untouched(home.path());
        }
    }

    #[test]
    fn only_a_plain_file_with_one_name_is_reopened() {
        let (home, names) = planted();
        for name in names {
            assert_eq!(Outputs::reopen(&home.path().join(name)).is_ok(), name == "file", "{name}");
        }
        untouched(home.path());
    }

    #[test]
    fn what_is_new_is_whole_and_what_is_renewed_replaces_the_name_alone() {
        let (home, _) = planted();
        let path = home.path().join("new");
        Outputs::write_new(&path, b"one").unwrap();
        Outputs::renew(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        Outputs::renew(&home.path().join("link"), b"ours").unwrap();
        assert_eq!(fs::read(home.path().join("link")).unwrap(), b"ours");
        untouched(home.path());
        // A planted name of the unfinished file stops it, and stays.
        symlink(home.path().join("precious"), Outputs::part_of(&path)).unwrap();
        assert!(Outputs::renew(&path, b"three").is_err() && Outputs::part_of(&path).is_symlink());
        assert_eq!((Outputs::whole_of(".a.part"), Outputs::whole_of("a.part")), (Some("a"), None));
        assert_eq!(fs::read(home.path().join("precious")).unwrap(), b"precious");
    }
}
