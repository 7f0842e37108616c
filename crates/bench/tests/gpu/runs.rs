//! Jobs over files of known content, as the command line would run them.

use forebay_bench::{run_job, Observer, Progress};
use forebay_model::job::{Cache, JobSpec, PathKind};
use forebay_model::record::RunRecord;
use forebay_model::Error;
pub use forebay_rigs::gpu::home;
use std::path::{Path, PathBuf};

pub struct Quiet;

impl Observer for Quiet {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

/// A file of ours with seeded content, made by a run as a user would have it made.
pub fn file(home: &tempfile::TempDir, name: &str, bytes: u64) -> PathBuf {
    let path = home.path().join(name);
    let make = JobSpec {
        path: PathKind::Host,
        create: true,
        file_bytes: Some(bytes),
        power: vec!["none".into()],
        ..job(&path)
    };
    assert_eq!(go(&make).result.bytes, bytes);
    path
}

/// One pass by `bounce`, through the page cache.
pub fn job(source: &Path) -> JobSpec {
    JobSpec {
        sources: vec![source.display().to_string()],
        path: PathKind::Bounce,
        io_bytes: 256 << 10,
        passes: Some(1),
        cache: Cache::Allow,
        power: vec!["none".into()],
        ..JobSpec::default()
    }
}

pub fn go(job: &JobSpec) -> RunRecord {
    let outcome = run_job(job, vec!["test".into()], &mut Quiet).unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome.record
}

/// The error of a job that can't run.
pub fn refused(job: &JobSpec) -> Error {
    run_job(job, vec!["test".into()], &mut Quiet).unwrap_err()
}
