//! Errors in the data, by file: the error ends the run, or the file is excluded.

use super::super::Shared;
use crate::format::{Damage, Fault};
use forebay_model::training::OnError;
use forebay_model::Error;
use std::sync::Arc;

pub(super) struct ReadErrors {
    shared: Arc<Shared>,
}

impl ReadErrors {
    pub(super) fn new(shared: Arc<Shared>) -> ReadErrors {
        ReadErrors { shared }
    }

    /// A file that can't be opened.
    pub(super) fn unreadable(&self, file: u32, e: &std::io::Error) {
        let name = self.shared.data.name(file);
        let (found, next) = match e.raw_os_error() {
            Some(libc::ENOENT) => {
                ("the file is gone since the run began".into(), "forebay emulate datagen to create it again")
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                ("too many open files".into(), "ulimit -n 1048576, or fewer --read-threads")
            }
            _ => (e.to_string(), "ls -l, dmesg | tail"),
        };
        self.wrong(format!("{name}: {found}"), Error::run(format!("read {name}"), found, next));
    }

    /// Reports why a file can't be read, for the reader that was to read it.
    pub(super) fn refused(&self, file: u32, error: Error) {
        self.forget(file);
        self.wrong(format!("{}: {}", self.shared.data.name(file), error.found), error);
    }

    /// Forgets a file: its next opening finds what it has become.
    fn forget(&self, file: u32) {
        if let Some(direct_reads) = &self.shared.direct_reads {
            direct_reads.forget(file);
        }
    }

    /// A file that isn't what it should be.
    pub(super) fn damaged(&self, file: u32, damage: &Damage) {
        self.forget(file);
        let name = self.shared.data.name(file);
        if let Some(seen) = self.shared.data.is_other(file, &self.shared.spec.workload.format) {
            let found = format!("it is {}", seen.what);
            return self
                .wrong(format!("{name}: {found}"), Error::run(format!("read {name}"), found, seen.next));
        }
        let next = match (damage.fault(), self.shared.data.is_made(file)) {
            (Fault::Unsupported, _) => "--level bytes to read it without parsing; or --on-error skip to leave it out",
            (Fault::Misdescribed, false) => {
                "describe the file in a TOML file for --workload; or --level bytes to read it without parsing"
            }
            (_, true) => {
                "--on-error skip to leave it out; or rm that file, and forebay emulate datagen creates it again"
            }
            (_, false) => {
                "--on-error skip to leave it out; --level bytes to read without parsing; or a --workload that describes the file"
            }
        };
        let error = Error::run(format!("read {name}"), damage.to_string(), next);
        self.wrong(format!("{name}: {damage}"), error);
    }

    /// A record that was damaged between others that weren't.
    pub(super) fn lost(&self, file: u32, damage: &Damage, samples: u32) {
        let example = format!("{}: {damage}", self.shared.data.name(file));
        self.shared.run_state.lock().skipped.add(samples.into(), example);
    }

    fn wrong(&self, example: String, error: Error) {
        match self.shared.spec.on_error {
            OnError::Fail => self.shared.run_state.fail(error),
            OnError::Skip => self.shared.run_state.lock().skipped.add(0, example),
        }
    }
}
