//! The list of the I/Os that a worker started (`‹write_iolog›`), as fio's version 3 has it: microseconds, file, action, offset,
//! length.

use forebay_model::iolog::{HEADER, NAME_BYTES_MAX};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use forebay_storage::{Outputs, Target};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const BUFFER_BYTES: usize = 256 << 10;

pub(crate) struct IoList {
    out: BufWriter<File>,
    path: String,
    /// Of each target.
    names: Vec<String>,
    begin: Instant,
    failed: Option<std::io::Error>,
}

impl IoList {
    /// The list of worker number `index`, in a file that isn't there yet; None if none was asked for.
    pub(crate) fn open(
        job: &JobSpec,
        index: u32,
        targets: &[Target],
        now: Instant,
    ) -> Result<Option<Box<IoList>>, Error> {
        let Some(asked) = &job.write_iolog else { return Ok(None) };
        let path = if job.workers > 1 { format!("{asked}.{}", index + 1) } else { asked.clone() };
        let names = targets.iter().map(name_of).collect::<Result<Vec<_>, _>>()?;
        let file = Outputs::create(Path::new(&path)).map_err(|e| {
            let next = match e.kind() {
                std::io::ErrorKind::AlreadyExists => "another name: lists aren't overwritten",
                _ => "a name in a folder that can be written to",
            };
            Error::request(format!("‹write_iolog› {asked}"), format!("{path}: {e}"), next)
        })?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut list = IoList { out, path, names, begin: now, failed: None };
        keep_first(writeln!(list.out, "{HEADER}"), &mut list.failed);
        for what in ["add", "open"] {
            list.of_files(now, what);
        }
        Ok(Some(Box::new(list)))
    }

    fn of_files(&mut self, now: Instant, what: &str) {
        let us = now.saturating_duration_since(self.begin).as_micros();
        for name in &self.names {
            keep_first(writeln!(self.out, "{us} {name} {what}"), &mut self.failed);
        }
    }

    /// An I/O that starts: `read`, `write`, `trim` or `datasync`.
    pub(crate) fn note(&mut self, now: Instant, target: u32, what: &str, offset: u64, len: u32) {
        let us = now.saturating_duration_since(self.begin).as_micros();
        let wrote = writeln!(self.out, "{us} {} {what} {offset} {len}", self.names[target as usize]);
        keep_first(wrote, &mut self.failed);
    }

    pub(crate) fn finish(&mut self, now: Instant) {
        self.of_files(now, "close");
        keep_first(self.out.flush(), &mut self.failed);
    }

    /// Why lines are missing from it; told once.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        let why = self.failed.take()?;
        let asked = format!("‹write_iolog›: {}", self.path);
        Some(Error::run(asked, why.to_string(), "a disk with room for it"))
    }
}

/// A file's path, or what the source is called: one word, as short as fio's names.
fn name_of(target: &Target) -> Result<String, Error> {
    let path = target.source.descriptor().map(|(file, _)| file.path.display().to_string());
    let name = path.unwrap_or_else(|| target.label.clone());
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_whitespace) {
        let found = format!("fio's lists hold names of up to {NAME_BYTES_MAX} bytes without spaces");
        return Err(Error::request(
            format!("‹write_iolog› of {name}"),
            found,
            "a file of another name, or a link to it",
        ));
    }
    Ok(name)
}

fn keep_first(wrote: std::io::Result<()>, failed: &mut Option<std::io::Error>) {
    if let (Err(why), None) = (wrote, &failed) {
        *failed = Some(why);
    }
}
