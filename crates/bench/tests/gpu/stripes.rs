//! Stripes over members on unlike devices into a GPU: the disk of the build, and memory.

use super::runs::{go, job};
use forebay_bench::{run_job, Observer, Progress};
use forebay_model::job::{Cache, JobSpec, PathKind};
use forebay_model::Kind;
use forebay_rigs::gpu::{on_real_gpu, Scenario};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const MEMBER: u64 = 4 * MIB;

/// One member on each device; None where memory has no file system of its own.
struct Members {
    _disk: tempfile::TempDir,
    _memory: tempfile::TempDir,
    on_disk: PathBuf,
    in_memory: PathBuf,
}

impl Members {
    fn new() -> Option<Members> {
        let disk = forebay_rigs::gpu::home();
        let memory = tempfile::tempdir_in("/dev/shm").ok()?;
        let device = |path: &Path| std::os::unix::fs::MetadataExt::dev(&path.metadata().unwrap());
        if device(disk.path()) == device(memory.path()) {
            eprintln!("skipped: /dev/shm is on the device of the build");
            return None;
        }
        let (on_disk, in_memory) = (disk.path().join("a"), memory.path().join("b"));
        Some(Members { _disk: disk, _memory: memory, on_disk, in_memory })
    }

    /// The paths that can be tried over both. cuFile registers no file on a device that udev has no entry for, as is
    /// usual for memory.
    fn paths(&self) -> Vec<PathKind> {
        let wanted = JobSpec { passes: Some(1), ..self.job(PathKind::Gds) };
        match run_job(&wanted, vec!["test".into()], &mut super::runs::Quiet) {
            Err(refused)
                if refused.found.contains("5027")
                    && refused.asked.ends_with(&*self.in_memory.to_string_lossy()) =>
            {
                eprintln!("skipped: stripes over memory by gds: {refused}");
                vec![PathKind::Bounce]
            }
            _ => vec![PathKind::Bounce, PathKind::Gds],
        }
    }

    /// A job over both by a path, its files made where they aren't there.
    fn job(&self, path: PathKind) -> JobSpec {
        let source = format!("stripe:?chunk=64k&m={}&m={}", self.on_disk.display(), self.in_memory.display());
        JobSpec {
            sources: vec![source],
            create: true,
            file_bytes: Some(2 * MEMBER),
            io_bytes: MIB,
            path,
            allow_compat: path == PathKind::Gds,
            cache: if path == PathKind::Gds { Cache::Auto } else { Cache::Allow },
            ..job(&self.on_disk)
        }
    }
}

/// As on a machine where udev has an entry for the disk alone.
#[test]
fn where_udev_knows_nothing_of_memory_only_bounce_is_tried_over_it() {
    let name = "stripes::where_udev_knows_nothing_of_memory_only_bounce_is_tried_over_it";
    let settings = "mode=p2p,fail=cuFileHandleRegister:2+:5027";
    if on_real_gpu() {
        eprintln!("skipped {name}: a mode that only the stand-in has ({settings})");
        return;
    }
    Scenario::new(name).variable("FOREBAY_STUB_CUFILE", settings).run(|| {
        let Some(members) = Members::new() else { return };
        assert_eq!(members.paths(), [PathKind::Bounce]);
    });
}

/// Acts once, when all was read twice.
struct Once<'a> {
    act: Option<&'a dyn Fn()>,
}

impl Observer for Once<'_> {
    fn progress(&mut self, progress: &Progress) {
        if progress.bytes >= 4 * MEMBER {
            if let Some(act) = self.act.take() {
                act();
            }
        }
    }

    fn stop(&mut self) -> bool {
        false
    }
}

// promise: FLT-3
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn members_on_unlike_devices_come_whole_and_one_that_fails_is_named_alone() {
    let name = "stripes::members_on_unlike_devices_come_whole_and_one_that_fails_is_named_alone";
    Scenario::new(name).variable("FOREBAY_STUB_CUFILE", "mode=p2p").run(|| {
        let Some(members) = Members::new() else { return };
        let paths = members.paths();
        assert!(paths.len() == 2 || on_real_gpu(), "{paths:?}");
        for &path in &paths {
            let record = go(&JobSpec { verify: true, passes: Some(2), ..members.job(path) });
            assert_eq!(record.result.verified_bytes, 4 * MEMBER, "{path:?}");
            assert!(record.path.destination.starts_with("gpu:"), "{}", record.path.destination);
            if let Some(cufile) = record.cufile {
                // Each device was looked at: one tells nothing of the other.
                let routes: Vec<&str> = cufile.routes.iter().map(|route| route.target.as_str()).collect();
                assert_eq!(routes.len(), 2, "{routes:?}");
            }
        }
        for path in paths {
            let cut = || {
                let file = std::fs::File::options().write(true).open(&members.in_memory).unwrap();
                file.set_len(0).unwrap();
            };
            let wanted = JobSpec {
                passes: None,
                duration_s: Some(60.0),
                warmup_s: Some(0.0),
                interval_ms: 20,
                ..members.job(path)
            };
            let outcome = run_job(&wanted, vec!["test".into()], &mut Once { act: Some(&cut) }).unwrap();
            let failure = outcome.failure.expect("a member is gone");
            assert_eq!(failure.kind, Kind::Run, "{failure}");
            let errors = &outcome.record.result.errors;
            assert!(errors.failed > 0 && outcome.record.result.bytes >= 4 * MEMBER, "{path:?}: {errors:?}");
            // Behind the stripe's own name, which has both.
            let blames = |member: &Path| {
                let words = format!(": {}", member.display());
                errors.examples.iter().filter(|example| example.contains(&words)).count()
            };
            let found = (blames(&members.on_disk), blames(&members.in_memory));
            assert_eq!(found, (0, errors.examples.len()), "{path:?}: {:?}", errors.examples);
            std::fs::remove_file(&members.in_memory).unwrap();
            std::fs::remove_file(&members.on_disk).unwrap();
            // Made again, it is whole again: nothing of the failure stays.
            let record = go(&JobSpec { verify: true, passes: Some(1), ..members.job(path) });
            assert_eq!(record.result.verified_bytes, 2 * MEMBER);
        }
    });
}
