//! Whole jobs by `mapped` into a GPU: what they put there, what stays registered, and files that change meanwhile.

use super::runs::{file, go, job, refused};
use forebay_bench::{run_job, Observer, Progress};
use forebay_io::drop_cached;
use forebay_model::job::{Cache, JobSpec, Op, PathKind};
use forebay_model::record::{MappedRan, RunRecord};
use forebay_rigs::gpu::{on_real_gpu, Scenario};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Acts once every byte was read twice, and ends the run when nothing has been read for a while.
struct AtWork<'a> {
    twice: u64,
    act: &'a dyn Fn(),
    bytes: u64,
    /// Since when, after the act.
    silent: Option<Instant>,
    /// A run that goes on after it, with bytes that are whole again, ends here.
    enough: u64,
}

impl Observer for AtWork<'_> {
    fn progress(&mut self, progress: &Progress) {
        if self.silent.is_none() && progress.bytes >= self.twice {
            (self.act)();
            self.silent = Some(Instant::now());
            self.enough = progress.bytes + 4 * self.twice;
        }
        if progress.bytes > self.bytes {
            self.silent = self.silent.map(|_| Instant::now());
        }
        self.bytes = progress.bytes;
    }

    fn stop(&mut self) -> bool {
        self.silent.is_some_and(|since| since.elapsed() > Duration::from_secs(1) || self.bytes >= self.enough)
    }
}

/// One pass over what is cached, each byte checked.
fn mapped(source: &Path) -> JobSpec {
    JobSpec { path: PathKind::Mapped, cache: Cache::Warm, io_bytes: MIB, verify: true, ..job(source) }
}

/// A system that gives memory back takes pages out of the cache at any time: of several runs one is let alone.
fn undisturbed(job: &JobSpec) -> RunRecord {
    (0..5).map(|_| go(job)).find(|r| r.path.staged_bytes == 0).expect("one without staging")
}

fn ran(record: &RunRecord) -> &MappedRan {
    record.path.mapped.as_ref().expect("mapped ran")
}

// promise: ENG-12, GPU-8
#[test]
fn later_repeats_find_what_the_first_registered() {
    Scenario::new("mapped::later_repeats_find_what_the_first_registered").run(|| {
        let home = forebay_rigs::gpu::home();
        // Ends inside a page.
        let source = file(&home, "f", 40 * MIB + 777);
        let job = JobSpec { repeat: 3, passes: Some(2), workers: 2, ..mapped(&source) };
        let bytes = 6 * (40 * MIB + 777);
        let record = undisturbed(&job);
        assert_eq!((record.result.verified_bytes, record.path.mapped_bytes), (bytes, bytes));
        assert_eq!(record.path.reason.as_deref(), None);
        let ran = ran(&record);
        assert_eq!((ran.windows, ran.registrations, ran.evictions, ran.stale), (3, 3, 0, 0));
        assert_eq!(ran.registered_bytes_peak, (40 * MIB + 777).next_multiple_of(4096));
    });
}

#[test]
fn a_stripe_over_files_is_mapped() {
    Scenario::new("mapped::a_stripe_over_files_is_mapped").run(|| {
        let home = forebay_rigs::gpu::home();
        let members: Vec<String> =
            (0..3).map(|i| format!("m={}", home.path().join(format!("{i}")).display())).collect();
        let source = format!("stripe:?chunk=256k&{}", members.join("&"));
        let wanted = JobSpec {
            sources: vec![source],
            create: true,
            file_bytes: Some(12 * MIB),
            ..mapped(home.path())
        };
        let record = undisturbed(&wanted);
        assert_eq!((record.result.verified_bytes, record.path.mapped_bytes), (12 * MIB, 12 * MIB));
        assert_eq!(ran(&record).windows, 3);
    });
}

// promise: ENG-12
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn no_more_is_registered_than_the_limit() {
    Scenario::new("mapped::no_more_is_registered_than_the_limit").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 64 * MIB);
        for op in [Op::Read, Op::RandRead] {
            let wanted = JobSpec {
                op,
                pin_limit_bytes: Some(16 * MIB),
                workers: 2,
                passes: Some(2),
                ..mapped(&source)
            };
            let record = go(&wanted);
            let ran = ran(&record);
            let bytes = record.result.bytes;
            assert!(bytes >= 128 * MIB && record.result.verified_bytes == bytes, "{:?}", record.result);
            assert_eq!(record.path.mapped_bytes + record.path.staged_bytes, bytes);
            assert!(ran.registered_bytes_peak <= 16 * MIB && ran.window_bytes == 2 * MIB, "{ran:?}");
            if op == Op::Read {
                assert!(ran.evictions > 0 && record.path.mapped_bytes > 100 * MIB, "{ran:?}");
            }
        }
    });
}

// promise: ENG-12
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn pages_that_the_system_does_not_pin_go_through_bounce() {
    Scenario::new("mapped::pages_that_the_system_does_not_pin_go_through_bounce").settings("pin=40m").run(
        || {
            let home = forebay_rigs::gpu::home();
            let record = go(&JobSpec { passes: Some(2), ..mapped(&file(&home, "f", 96 * MIB)) });
            assert_eq!(record.result.verified_bytes, 192 * MIB);
            assert!(record.path.mapped_bytes > 0 && record.path.staged_bytes > 0);
            let reason = record.path.reason.as_deref().unwrap();
            assert!(
                reason.contains("refused to pin") && reason.contains("CUDA_ERROR_OUT_OF_MEMORY"),
                "{reason}"
            );
            assert!(ran(&record).refused > 0);
        },
    );
}

// promise: ENG-14
#[test]
fn what_is_not_cached_is_bounced_and_the_record_says_so() {
    Scenario::new("mapped::what_is_not_cached_is_bounced_and_the_record_says_so").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 32 * MIB);
        if drop_cached(&std::fs::File::open(&source).unwrap(), 0, 0).unwrap().pages > 0 {
            eprintln!("skipped: pages of this file system stay cached");
            return;
        }
        let record = go(&JobSpec { cache: Cache::Allow, ..mapped(&source) });
        assert_eq!(record.result.verified_bytes, 32 * MIB);
        assert!(record.path.staged_bytes >= 16 * MIB, "{:?}", record.path);
        let reason = record.path.reason.as_deref().unwrap();
        assert!(reason.contains("of the bytes were bounced: they weren't in the page cache"), "{reason}");
        assert!(ran(&record).uncached > 0);
    });
}

// promise: ENG-13
#[test]
fn a_file_that_changes_fails_the_run_and_leaves_nothing_registered() {
    // A copy that is under way while its pages change is what this is about, and no slot reused too early.
    let scenario = Scenario::new("mapped::a_file_that_changes_fails_the_run_and_leaves_nothing_registered");
    scenario.variable("FOREBAY_STUB_CUDA", "hash=0").run(|| {
        let rewrite = |p: &Path| {
            let open = std::fs::OpenOptions::new().write(true).open(p).unwrap();
            open.write_all_at(b"new", 5).unwrap();
        };
        let replace = |p: &Path| {
            std::fs::copy(p, p.with_extension("new")).unwrap();
            std::fs::rename(p.with_extension("new"), p).unwrap();
        };
        let truncate =
            |p: &Path| std::fs::OpenOptions::new().write(true).open(p).unwrap().set_len(4096).unwrap();
        type Act<'a> = (&'static str, &'a (dyn Fn(&Path) + Sync));
        let mut acts: Vec<Act> = vec![
            ("it was written to", &rewrite),
            ("another file took its place", &replace),
            ("it was deleted or renamed", &|p: &Path| std::fs::remove_file(p).unwrap()),
        ];
        if on_real_gpu() {
            // The stand-in copies by hand, so that pages that are gone would end it.
            acts.push(("it was truncated", &truncate));
        }
        for (words, act) in acts {
            let home = forebay_rigs::gpu::home();
            let source = file(&home, "f", 32 * MIB);
            let wanted = JobSpec {
                passes: None,
                duration_s: Some(60.0),
                warmup_s: Some(0.0),
                interval_ms: 20,
                verify: false,
                ..mapped(&source)
            };
            let mut at_work =
                AtWork { twice: 64 * MIB, act: &|| act(&source), bytes: 0, silent: None, enough: 0 };
            let outcome = run_job(&wanted, vec!["test".into()], &mut at_work).unwrap();
            let failure = outcome.failure.expect("it changed").to_string();
            assert!(failure.contains(words) && failure.contains("--path bounce"), "{words}: {failure}");
            assert!(outcome.record.result.bytes > 0 && ran(&outcome.record).stale >= 1);
        }
    });
}

#[test]
fn what_contradicts_the_path_is_refused_with_what_to_type() {
    let home = forebay_rigs::gpu::home();
    let source = file(&home, "f", 4 * MIB);
    let cases = [
        (JobSpec { op: Op::Write, verify: false, ..mapped(&source) }, "‹path› bounce"),
        (JobSpec { cache: Cache::Bypass, ..mapped(&source) }, "‹cache› allow"),
        (JobSpec { cache: Cache::Drop, ..mapped(&source) }, "‹cache› allow"),
        (JobSpec { require_direct: true, ..mapped(&source) }, "‹path› gds"),
        (JobSpec { pin_limit_bytes: Some(4096), ..mapped(&source) }, "‹pin_limit_bytes› 1g"),
        (JobSpec { sources: vec!["nil:".into()], ..mapped(&source) }, "‹path› host"),
    ];
    for (wanted, next) in cases {
        let error = refused(&wanted);
        assert_eq!(error.kind, forebay_model::Kind::Request, "{error}");
        assert!(error.next.contains(next), "{error}");
    }
}
