//! Kinds of a path that can be a source.

use super::FileAccess;
use forebay_model::Error;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

impl FileAccess {
    /// `/dev/null` or `/dev/zero`, whatever its name: it takes what is written, and gives zeroes or nothing.
    pub fn is_endless(meta: &Metadata) -> bool {
        let number = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        meta.file_type().is_char_device() && [(1, 3), (1, 5)].contains(&number)
    }

    /// A file, a folder, or what can be read at any offset.
    pub fn is_source(meta: &Metadata) -> bool {
        let kind = meta.file_type();
        kind.is_file() || kind.is_dir() || kind.is_block_device() || FileAccess::is_endless(meta)
    }

    /// A socket, a pipe, a terminal.
    pub fn is_neither(path: &Path) -> Error {
        let found = "is neither a file, a directory nor a block device";
        Error::request(path.display().to_string(), found, "a path to one of these")
    }
}
