//! Many-file metadata phases: the request and its results. Schema `forebay.files/1`.

use crate::cpu::Cpu;
use crate::histogram::LatencySummary;
use crate::no_numbers;
use crate::record::Warning;
use crate::request::Kind::*;
use crate::request::{check_bounds, flag, switch};
use crate::units::format_bytes;
use crate::wording::named;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: &str = "forebay.files/1";
pub const FILES_MAX: u64 = 100_000_000;
pub const WORKERS_MAX: u32 = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Make an empty directory for each file, beside the files. Removed at the end, untimed.
    Mkdir,
    #[default]
    /// Open anew, write the content, fsync where asked, close.
    Create,
    /// One stat by path.
    Stat,
    /// Open, read all of it, close.
    Read,
    /// Unlink.
    Delete,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Mkdir => "mkdir",
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Read => "read",
            Phase::Delete => "delete",
        }
    }
}

/// State of the page cache when the read phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// The files' pages are written back and dropped first.
    Drop,
    /// Whatever the create phase left there.
    Allow,
}

/// Names of all phases.
const PHASES: &[&str] = &["mkdir", "create", "stat", "read", "delete"];

no_numbers!(Cache);

crate::request! {
    /// Phases over many files, as asked for.
    pub struct FilesSpec;
    /// Directory in which the run creates its own directory.
    directory: String = String::new();
    /// Files of all workers together.
    files: u64 = 10_000,
        flag("files", Whole, "N", "Files of all workers together.")
            .within(1.0, FILES_MAX as f64, "must be 1 to 100,000,000", "10000");
    /// Bytes in each file; 0 makes empty ones.
    file_bytes: u64 = 64 << 10,
        flag("file-size", Size, "SIZE", "Bytes in each file; 0 makes empty ones.");
    /// Threads; file number i belongs to worker i mod `workers`.
    workers: u32 = 8,
        flag("workers", Integer, "N", "Threads.").within(1.0, WORKERS_MAX as f64, "must be 1 to 1024", "8");
    /// In the order given; but for `mkdir`, the first is `create`. What no `delete` removed is removed at the end, untimed.
    phases: Vec<Phase> = vec![Phase::Create, Phase::Stat, Phase::Read, Phase::Delete],
        flag("phases", Names(PHASES), "LIST", "Phases in order: create comes first; mkdir may be anywhere.");
    /// Directories that the files are spread over. None: one per worker.
    directories: Option<u32> = None,
        flag("directories", Integer, "N", "Directories to spread the files over. Default: one per worker.")
            .within(1.0, 1e6, "must be 1 to 1,000,000", "8");
    /// fsync each file before it is closed.
    sync: bool = false,
        switch("sync", "fsync each file before it is closed.");
    cache: Cache = Cache::Drop,
        flag("cache", Choice(&["drop", "allow"]), "POLICY",
            "Page cache before reading: drop the files' pages, or allow them.");
    seed: u64 = 7,
        flag("seed", Seed, "N", "Seed for the content.");
}

impl FilesSpec {
    pub fn from_json(text: &str) -> Result<FilesSpec, Error> {
        let spec: FilesSpec = serde_json::from_str(text)
            .map_err(|e| Error::request("the job of many files", e.to_string(), "forebay files --help"))?;
        spec.check()?;
        Ok(spec)
    }

    pub fn directories(&self) -> u32 {
        self.directories.unwrap_or(self.workers)
    }

    /// Everything that is wrong on any machine.
    pub fn check(&self) -> Result<(), Error> {
        let refuse =
            |asked: String, found: &str, next: &str| Err(Error::request(asked, found.to_string(), next));
        if self.directory.is_empty() {
            return refuse("DIR".into(), "no directory was given", "forebay files DIR");
        }
        check_bounds(Self::FIELDS, self, named)?;
        if self.file_bytes.checked_mul(self.files).is_none_or(|all| all > i64::MAX as u64) {
            let asked = format!("‹file_bytes› {} × ‹files› {}", format_bytes(self.file_bytes), self.files);
            return refuse(asked, "overflows (more than 8 EiB)", "‹file_bytes› 64k");
        }
        self.check_phases()
    }

    fn check_phases(&self) -> Result<(), Error> {
        let asked =
            format!("--phases {}", self.phases.iter().map(|p| p.name()).collect::<Vec<_>>().join(","));
        let next = "--phases create,stat,read,delete";
        let of_files: Vec<Phase> = self.phases.iter().copied().filter(|p| *p != Phase::Mkdir).collect();
        if self.phases.is_empty() || of_files.first().is_some_and(|p| *p != Phase::Create) {
            let found = "doesn't begin with create, and only files that this run created are touched";
            return Err(Error::request(asked, found, next));
        }
        for (once, found) in [(Phase::Create, "creates twice"), (Phase::Mkdir, "creates directories twice")] {
            if self.phases.iter().filter(|p| **p == once).count() > 1 {
                return Err(Error::request(asked, found, next));
            }
        }
        match of_files.iter().position(|p| *p == Phase::Delete) {
            Some(at) if at + 1 < of_files.len() => {
                Err(Error::request(asked, "has a phase after delete, when no file is left", next))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesRecord {
    pub schema: String,
    pub id: String,
    pub job: FilesSpec,
    /// The directory that was made for the run.
    pub directory: String,
    /// The phases that ran; the last one may be incomplete.
    pub phases: Vec<PhaseResult>,
    pub interrupted: bool,
    /// Why the run ended early.
    pub failure: Option<Error>,
    /// Files that could not be removed, and why.
    pub left: Option<String>,
    /// Full path of a null field → why it is null.
    pub missing: BTreeMap<String, String>,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseResult {
    pub phase: Phase,
    /// Time from the common start until the last worker was done.
    pub seconds: f64,
    /// Files that were done.
    pub files: u64,
    pub bytes: u64,
    pub ops_s: f64,
    /// Null where the phase moves no content.
    pub throughput_gib_s: Option<f64>,
    pub latency_us: LatencySummary,
    /// Nanoseconds; HdrHistogram V2, base64.
    pub histogram: String,
    /// `ns_per_io` is the processor time per file.
    pub cpu: Cpu,
    /// Share of the files' pages in the page cache when reading began, over a sample.
    pub resident_before: Option<f64>,
    /// Bytes that the block devices behind the directory read and wrote meanwhile.
    pub device_read_bytes: Option<u64>,
    pub device_written_bytes: Option<u64>,
    /// All files were done.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> FilesSpec {
        FilesSpec { directory: "/data".into(), ..FilesSpec::default() }
    }

    #[test]
    fn the_default_is_good_and_survives_json() {
        let text = serde_json::to_string(&spec()).unwrap();
        assert_eq!(FilesSpec::from_json(&text).unwrap(), spec());
    }

    #[test]
    fn each_bound_is_refused_by_its_flag() {
        let cases = [
            ("DIR", FilesSpec::default()),
            ("‹files› 0", FilesSpec { files: 0, ..spec() }),
            ("‹workers› 0", FilesSpec { workers: 0, ..spec() }),
            ("--directories 0", FilesSpec { directories: Some(0), ..spec() }),
            ("‹file_bytes›", FilesSpec { file_bytes: 1 << 62, ..spec() }),
        ];
        for (flag, spec) in cases {
            let error = spec.check().unwrap_err();
            assert!(error.asked.starts_with(flag), "{flag}: {error}");
        }
    }

    #[test]
    fn phases_that_could_not_run_are_refused() {
        use Phase::*;
        for phases in [
            vec![],
            vec![Read],
            vec![Stat, Create],
            vec![Create, Create],
            vec![Create, Delete, Stat],
            vec![Mkdir, Read],
            vec![Mkdir, Mkdir],
        ] {
            let error = FilesSpec { phases: phases.clone(), ..spec() }.check().unwrap_err();
            assert!(error.asked.starts_with("--phases"), "{phases:?}: {error}");
        }
        for phases in
            [vec![Create, Read, Read], vec![Mkdir], vec![Mkdir, Create], vec![Create, Delete, Mkdir]]
        {
            FilesSpec { phases, ..spec() }.check().unwrap();
        }
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = FilesSpec::from_json(r#"{"directory":"/a","fils":3}"#).unwrap_err();
        assert!(error.found.contains("fils"), "{error}");
    }
}
