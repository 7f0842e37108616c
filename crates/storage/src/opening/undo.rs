//! Changes made before the first I/O, undone if nothing comes of the run.

use super::manifest::{Entry, HeldManifest};
use super::plan::parent_of;
use super::Locked;
use crate::outputs::Outputs;
use forebay_io::FileIdentity;
use std::path::{Path, PathBuf};

/// Files that were made, made larger, or about to be written.
#[derive(Default)]
pub(super) struct Undo(Vec<Changed>);

struct Changed {
    path: PathBuf,
    file: FileIdentity,
    /// None: it wasn't there.
    before: Option<Before>,
}

#[derive(Default)]
struct Before {
    /// None: as many as now.
    bytes: Option<u64>,
    /// Entry of the list of files.
    entry: Option<Entry>,
}

impl Undo {
    pub(crate) fn made(&mut self, path: &Path, file: FileIdentity) {
        self.0.push(Changed { path: path.into(), file, before: None });
    }

    /// A file of `bytes` is made larger.
    pub(crate) fn extends(&mut self, path: &Path, file: FileIdentity, bytes: u64) {
        self.0.push(Changed {
            path: path.into(),
            file,
            before: Some(Before { bytes: Some(bytes), entry: None }),
        });
    }

    /// Notes that this file's entry in the list is about to change.
    pub(crate) fn begin(&mut self, path: &Path, file: FileIdentity, entry: Option<Entry>) {
        match self.0.iter_mut().find(|c| c.path == path) {
            Some(Changed { before: Some(before), .. }) if before.entry.is_none() => before.entry = entry,
            Some(_) => {}
            None => {
                let before = Some(Before { bytes: None, entry });
                self.0.push(Changed { path: path.into(), file, before });
            }
        }
    }

    /// This file is written from now on: what it held before can't be had back.
    pub(crate) fn forget_content(&mut self, path: &Path) {
        self.0.retain(|c| c.path != path || c.before.is_none());
    }

    /// Every file is written from now on.
    pub(crate) fn forget_contents(&mut self) {
        self.0.retain(|c| c.before.is_none());
    }

    /// `takes_files`: those that were made go, too.
    pub(crate) fn run(self, held: &mut Locked, takes_files: bool) {
        for Changed { path, file, before } in self.0 {
            let list = held.get_mut(&parent_of(&path));
            match before {
                None if takes_files => {
                    let _ = file.remove(&path);
                    list.into_iter().for_each(|list| list.remove(&path));
                }
                None => {}
                Some(before) => before.put_back(&path, file, list),
            }
        }
        for list in held.values_mut() {
            let _ = list.save();
        }
    }
}

impl Before {
    fn put_back(self, path: &Path, file: FileIdentity, list: Option<&mut HeldManifest>) {
        let cut = self.bytes.map(|bytes| {
            let handle = Outputs::reopen(path).ok()?;
            file.check(path, &handle).ok()?;
            handle.set_len(bytes).ok()
        });
        if let (Some(list), Some(entry), false) = (list, self.entry, cut == Some(None)) {
            list.put_back(path, file, entry);
        }
    }
}
