//! Identity of the file that a name leads to: kept when we make one, and compared before that name is written or
//! removed; and the identity of a run.
//!
//! Anybody may give our file's name to another while we work. Device and inode tell the two apart, and the time
//! of birth does where the inode fell free and went to the next file.

use crate::clock;
use forebay_model::Error;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// 16 hexadecimal digits that no other run has.
pub fn new_id() -> String {
    let mut bytes = [0u8; 8];
    // A short answer leaves zeroes, which the time below mixes.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    format!("{:016x}", u64::from_ne_bytes(bytes) ^ clock::wall_seconds())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds since the epoch; None where the file system doesn't say.
    pub born_ns: Option<u64>,
}

impl Identity {
    pub fn from_metadata(meta: &Metadata) -> Identity {
        let born = meta.created().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        let born_ns = born.and_then(|since| u64::try_from(since.as_nanos()).ok());
        Identity { device: meta.dev(), inode: meta.ino(), born_ns }
    }

    /// Returns whether the name leads to this file itself: a link to it is another.
    pub fn is_at(self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|meta| Identity::from_metadata(&meta) == self)
    }

    /// Refuses what was opened by our file's name and isn't our file.
    pub fn check(self, path: &Path, opened: &File) -> Result<(), Error> {
        match opened.metadata() {
            Ok(meta) if Identity::from_metadata(&meta) == self => Ok(()),
            Ok(_) => Err(name_taken(path)),
            Err(e) => Err(Error::run(format!("look at {}", path.display()), e.to_string(), "dmesg | tail")),
        }
    }

    /// Removes the name if it leads to this file. False: it leads nowhere, or to somebody else's, which stays.
    pub fn remove(self, path: &Path) -> io::Result<bool> {
        if !self.is_at(path) {
            return Ok(false);
        }
        std::fs::remove_file(path).map(|()| true)
    }

    /// All of it in eight bytes, for those who keep millions. Never 0.
    pub fn digest(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// The error where another file has the name of ours.
pub fn name_taken(path: &Path) -> Error {
    let shown = path.display();
    Error::run(
        format!("use {shown}"),
        "another file has taken the name of the one that Forebay created, and was left as it is",
        format!("ls -li {shown}; the same command again, with nothing else writing there"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    // promise: FLT-30
    #[test]
    fn only_the_very_file_is_removed_and_a_link_to_it_is_another() {
        let home = tempfile::tempdir().unwrap();
        let (ours, users) = (home.path().join("ours"), home.path().join("users"));
        fs::write(&ours, "ours").unwrap();
        fs::write(&users, "precious").unwrap();
        let identity = Identity::from_metadata(&fs::metadata(&ours).unwrap());
        identity.check(&ours, &File::open(&ours).unwrap()).unwrap();
        fs::rename(&users, &ours).unwrap();
        let error = identity.check(&ours, &File::open(&ours).unwrap()).unwrap_err();
        assert!(error.found.contains("left as it is") && error.next.contains("ls -li"), "{error}");
        assert!(!identity.remove(&ours).unwrap());
        assert_eq!(fs::read_to_string(&ours).unwrap(), "precious");
        let (made, link) = (home.path().join("made"), home.path().join("link"));
        fs::write(&made, "").unwrap();
        std::os::unix::fs::symlink(&made, &link).unwrap();
        let identity = Identity::from_metadata(&fs::metadata(&made).unwrap());
        assert!(!identity.remove(&link).unwrap() && identity.remove(&made).unwrap());
        assert!(!made.exists() && fs::symlink_metadata(&link).is_ok());
    }
}
