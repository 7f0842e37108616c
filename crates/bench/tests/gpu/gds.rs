//! `gds` by each of cuFile's interfaces, in direct, compatibility and mixed mode,
//! and with what goes wrong there.

use forebay_bench::{Observer, Outcome, Progress};
use forebay_model::job::{CuFileMode, JobSpec, Op, PathKind};
use forebay_model::record::RunRecord;
use forebay_model::{content, Error, Kind};
use forebay_rigs::gpu::{home, on_real_gpu, Books, Scenario};
use std::path::{Path, PathBuf};

struct Nobody;

impl Observer for Nobody {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

const STUB: &str = "FOREBAY_STUB_CUFILE";
const MODES: [CuFileMode; 4] =
    [CuFileMode::Sync, CuFileMode::Stream, CuFileMode::Batch, CuFileMode::BatchStream];

/// A job that reads `source` once and checks every byte; the file is made first.
fn reading(source: &str) -> JobSpec {
    JobSpec {
        sources: vec![source.into()],
        path: PathKind::Gds,
        io_bytes: 64 << 10,
        workers: 2,
        depth: 4,
        passes: Some(1),
        verify: true,
        timeout_s: 5.0,
        ..JobSpec::default()
    }
}

fn run(job: &JobSpec) -> Result<Outcome, Error> {
    forebay_bench::run_job(job, Vec::new(), &mut Nobody)
}

fn record(job: &JobSpec) -> RunRecord {
    let outcome = run(job).unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome.record
}

fn made(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    let mut data = vec![0; bytes as usize];
    content::fill(&mut data, 7, content::file_id(name), 0);
    std::fs::write(&path, data).unwrap();
    path
}

/// The same content without the list of files that `--verify` wants.
fn unverified(path: &Path) -> JobSpec {
    JobSpec { verify: false, ..reading(path.to_str().unwrap()) }
}

/// `name` is the test's own; the stand-in of cuFile runs with `settings`. None where only it could.
fn scenario(name: &'static str, settings: &'static str) -> Option<Scenario> {
    if on_real_gpu() && !settings.is_empty() && std::env::var_os("FOREBAY_GPU_SCENARIO").is_none() {
        eprintln!("skipped {name}: a mode that only the stand-in has ({settings})");
        return None;
    }
    Some(Scenario::new(name).variable(STUB, settings))
}

fn with(name: &'static str, settings: &'static str, body: impl FnOnce()) -> Option<Books> {
    scenario(name, settings)?.run(body)
}

// promise: ENG-1, GPU-4
#[test]
fn each_interface_brings_every_byte_and_says_that_it_went_direct() {
    let books =
        with("gds::each_interface_brings_every_byte_and_says_that_it_went_direct", "mode=p2p", || {
            let dir = home();
            for mode in MODES {
                for depth in [1, 4] {
                    let source = dir.path().to_str().unwrap();
                    let wanted = JobSpec { create: true, file_bytes: Some(1 << 20), ..reading(source) };
                    let job = JobSpec { cufile: mode, depth, ..wanted };
                    let record = record(&JobSpec { require_direct: true, ..job });
                    let (path, bytes) = (&record.path, record.result.bytes);
                    assert_eq!((path.ran.as_str(), path.engine.as_str()), ("gds", "cufile"));
                    assert_eq!((bytes, record.result.verified_bytes), (2 << 20, 2 << 20));
                    assert_eq!((path.direct_bytes, path.compat_bytes, path.staged_bytes), (bytes, 0, 0));
                    let cufile = record.cufile.unwrap();
                    assert_eq!(
                        (cufile.mode.as_str(), cufile.version.as_deref()),
                        (mode.name(), Some("1.15"))
                    );
                    assert!(cufile.buffers_registered && cufile.allow_compat_mode == Some(false));
                    let gpus = cufile.gpus.unwrap();
                    let counted: u64 = gpus.iter().map(|g| g.reads.p2p).sum();
                    assert_eq!(counted, record.result.ios, "{gpus:?}");
                    assert_eq!(cufile.batch.is_some(), mode.batches());
                    assert_eq!(cufile.batches.unwrap().p2p > 0, mode == CuFileMode::Batch);
                }
            }
        });
    if let Some(books) = books {
        // What the check of the content brings along is all.
        assert!(books.to_device(0) < 1 << 20, "the bytes went through a copy");
    }
}

// promise: GPU-5, GPU-22
#[test]
fn compatibility_mode_is_refused_unless_allowed_and_never_called_direct() {
    with("gds::compatibility_mode_is_refused_unless_allowed_and_never_called_direct", "mode=compat", || {
        let dir = home();
        let path = made(dir.path(), "a", 1 << 20);
        for job in
            [unverified(&path), JobSpec { require_direct: true, allow_compat: true, ..unverified(&path) }]
        {
            let refused = run(&job).unwrap_err();
            assert_eq!(refused.kind, Kind::Machine, "{refused}");
            assert!(refused.next.contains("‹allow_compat›") && refused.next.contains("doctor"), "{refused}");
        }
        for mode in MODES {
            let record = record(&JobSpec { allow_compat: true, cufile: mode, ..unverified(&path) });
            let path = &record.path;
            assert_eq!((path.requested.as_str(), path.ran.as_str()), ("gds", "gds-compat"));
            assert!(record.result.targets.iter().all(|target| target.path == "gds-compat"));
            assert_eq!((path.direct_bytes, path.compat_bytes), (0, record.result.bytes));
            assert!(path.reason.as_ref().unwrap().contains("in compatibility mode"), "{:?}", path.reason);
            let cufile = record.cufile.unwrap();
            assert_eq!((cufile.routes[0].route.as_str(), cufile.allow_compat_mode), ("compat", Some(true)));
            assert!(record.warnings.iter().any(|w| w.id == "gds_compat"));
        }
    });
}

// promise: GPU-3
#[test]
fn a_mixture_is_named_and_divided() {
    with("gds::a_mixture_is_named_and_divided", "mode=mixed", || {
        let dir = home();
        let path = made(dir.path(), "a", 4 << 20);
        let mixed = record(&JobSpec { allow_compat: true, ..unverified(&path) });
        assert_eq!(mixed.path.ran, "gds-mixed");
        assert!(mixed.path.direct_bytes > 0 && mixed.path.compat_bytes > 0);
        assert_eq!(mixed.path.direct_bytes + mixed.path.compat_bytes, mixed.result.bytes);
    });
}

// promise: GPU-3
#[test]
fn reads_that_cufile_rerouted_are_not_called_direct() {
    with("gds::reads_that_cufile_rerouted_are_not_called_direct", "mode=p2p,reroute=4", || {
        let dir = home();
        let path = made(dir.path(), "a", 4 << 20);
        let record = record(&JobSpec { allow_compat: true, ..unverified(&path) });
        assert_eq!(record.path.ran, "gds-mixed");
        assert!(record.path.compat_bytes > 0 && record.path.direct_bytes < record.result.bytes);
        assert!(record.path.reason.unwrap().contains("rerouted"));
        let gpus = record.cufile.unwrap().gpus.unwrap();
        assert!(gpus.iter().map(|g| g.reads.rerouted).sum::<u64>() > 0, "{gpus:?}");
    });
}

// promise: GPU-5
#[test]
fn a_cufile_that_falls_back_unasked_fails_the_check_and_keeps_the_record() {
    let name = "gds::a_cufile_that_falls_back_unasked_fails_the_check_and_keeps_the_record";
    with(name, "mode=mixed,fail=cuFileSetParameterBool:1+:5022", || {
        let dir = home();
        let path = made(dir.path(), "a", 4 << 20);
        for require_direct in [false, true] {
            // The look beforehand is one read, which the stand-in sends direct every other time.
            let (outcome, refused) = match run(&JobSpec { require_direct, ..unverified(&path) }) {
                Ok(outcome) => (Some(outcome), None),
                Err(refused) => (None, Some(refused)),
            };
            if let Some(refused) = refused {
                assert_eq!(refused.kind, Kind::Machine, "{refused}");
                continue;
            }
            let outcome = outcome.unwrap();
            let failure = outcome.failure.unwrap();
            assert!(failure.kind == Kind::Check && failure.found.contains("went direct"), "{failure}");
            assert_eq!(
                (outcome.record.result.bytes, outcome.record.path.ran.as_str()),
                (4 << 20, "gds-mixed")
            );
        }
    });
}

#[test]
fn what_falls_back_after_the_look_fails_the_run_and_keeps_its_record() {
    // The look reads whole blocks, and direct. The run then asks for sizes that the stand-in can only read by POSIX, of
    // a cuFile that can't be told not to.
    let name = "gds::what_falls_back_after_the_look_fails_the_run_and_keeps_its_record";
    with(name, "mode=nvfs,fail=cuFileSetParameterBool:1+:5022", || {
        let dir = home();
        let path = made(dir.path(), "a", (1 << 20) + 4096);
        let job = JobSpec {
            io_bytes: 4096,
            io_bytes_max: Some(12288),
            io_bytes_step: Some(4000),
            ..unverified(&path)
        };
        let allowed = record(&JobSpec { allow_compat: true, ..job.clone() });
        assert_eq!(allowed.path.ran, "gds-mixed");
        for require_direct in [false, true] {
            let outcome = run(&JobSpec { require_direct, ..job.clone() }).unwrap();
            let failure = outcome.failure.unwrap();
            assert!(failure.kind == Kind::Check && failure.found.contains("went direct"), "{failure}");
            let (ran, result) = (&outcome.record.path, &outcome.record.result);
            assert_eq!((ran.ran.as_str(), result.bytes), ("gds-mixed", allowed.result.bytes));
            assert!(ran.direct_bytes > 0 && ran.compat_bytes > 0, "{ran:?}");
            assert_eq!(outcome.record.cufile.unwrap().routes[0].route, "direct");
        }
    });
}

// promise: GPU-4
#[test]
fn unaligned_heads_and_tails_small_files_and_ends_come_whole_and_counted() {
    with("gds::unaligned_heads_and_tails_small_files_and_ends_come_whole_and_counted", "mode=compat", || {
        let dir = home();
        for (bytes, io_bytes, mode) in [
            (100_001, 9_999, CuFileMode::Sync),
            (1, 65536, CuFileMode::Stream),
            (70_000, 4096, CuFileMode::Batch),
        ] {
            let sub = dir.path().join(format!("{bytes}"));
            std::fs::create_dir(&sub).unwrap();
            let job = JobSpec {
                create: true,
                file_bytes: Some(bytes),
                io_bytes,
                cufile: mode,
                allow_compat: true,
                ..reading(sub.to_str().unwrap())
            };
            let record = record(&job);
            assert_eq!((record.result.bytes, record.result.verified_bytes), (2 * bytes, 2 * bytes));
            assert!(record.cufile.unwrap().unaligned_ios > 0);
        }
    });
}

// promise: GPU-6
#[test]
fn a_stripe_goes_direct_in_user_space() {
    with("gds::a_stripe_goes_direct_in_user_space", "mode=p2p", || {
        let dir = home();
        let [a, b] = ["a", "b"].map(|n| made(dir.path(), n, 1 << 20));
        let source = format!("stripe:?chunk=16k&m={}&m={}", a.display(), b.display());
        for mode in MODES {
            let record = record(&JobSpec { cufile: mode, verify: false, ..reading(&source) });
            assert_eq!((record.path.ran.as_str(), record.path.direct_bytes), ("gds", 2 << 20));
        }
    });
}

// promise: GPU-4, GPU-11
#[test]
fn writes_from_gpu_memory_hold_what_was_there() {
    with("gds::writes_from_gpu_memory_hold_what_was_there", "mode=p2p", || {
        let dir = home();
        for mode in MODES {
            let sub = dir.path().join(mode.name());
            std::fs::create_dir(&sub).unwrap();
            let job = JobSpec {
                op: Op::Write,
                cufile: mode,
                file_bytes: Some(1 << 20),
                verify: false,
                sync: forebay_model::job::Sync::End,
                ..reading(sub.to_str().unwrap())
            };
            let record = record(&job);
            assert_eq!((record.path.direct_bytes, record.result.write_bytes), (2 << 20, 2 << 20));
            let written = std::fs::read(sub.join("forebay.0")).unwrap();
            let zeroes = written.iter().filter(|b| **b == 0).count();
            assert!(written.len() == 1 << 20 && zeroes < 1 << 14, "{zeroes} bytes of nothing");
        }
    });
}

// promise: GPU-4
#[test]
fn short_calls_are_finished_and_counted() {
    with("gds::short_calls_are_finished_and_counted", "mode=compat,io_max=20000", || {
        let dir = home();
        for mode in MODES {
            let sub = dir.path().join(mode.name());
            std::fs::create_dir(&sub).unwrap();
            let job = JobSpec {
                create: true,
                file_bytes: Some(1 << 19),
                cufile: mode,
                allow_compat: true,
                ..reading(sub.to_str().unwrap())
            };
            let record = record(&job);
            assert_eq!(record.result.verified_bytes, 1 << 20);
            assert!(record.result.errors.short > 0);
        }
    });
}

// promise: GPU-5
#[test]
fn without_udev_5027_says_so() {
    with("gds::without_udev_5027_says_so", "mode=compat,fail=cuFileHandleRegister:1+:5027", || {
        let dir = home();
        let path = made(dir.path(), "a", 1 << 16);
        let refused = run(&JobSpec { allow_compat: true, ..unverified(&path) }).unwrap_err();
        assert_eq!(refused.kind, Kind::Machine);
        assert!(refused.found.contains("5027") && refused.found.contains("udev"), "{refused}");
    });
}

// promise: GPU-1
#[test]
fn a_failed_call_is_a_failed_io_in_cufiles_words() {
    for settings in [
        "mode=compat,fail=cuFileRead:3:5",
        "mode=compat,fail=async:3:5030",
        "mode=compat,fail=cuFileReadAsync:3:5038",
        "mode=compat,fail=batch:3:5044",
        "mode=compat,fail=cuFileBatchIOSubmit:1:5040",
    ] {
        with("gds::a_failed_call_is_a_failed_io_in_cufiles_words", settings, || {
            let mode = match std::env::var(STUB).unwrap() {
                s if s.contains("cuFileRead:") => CuFileMode::Sync,
                s if s.to_lowercase().contains("async") => CuFileMode::Stream,
                _ => CuFileMode::Batch,
            };
            let dir = home();
            let path = made(dir.path(), "a", 1 << 20);
            let outcome = run(&JobSpec { cufile: mode, allow_compat: true, ..unverified(&path) }).unwrap();
            let (errors, failure) = (&outcome.record.result.errors, outcome.failure.unwrap());
            assert!(errors.failed >= 1, "{errors:?}");
            assert_eq!(failure.kind, Kind::Run);
            assert!(failure.found.contains("cuFile"), "{failure}");
        });
        if std::env::var_os("FOREBAY_GPU_SCENARIO").is_some() {
            return;
        }
    }
}

#[test]
fn buffers_that_cant_be_registered_are_a_warning_and_work() {
    with(
        "gds::buffers_that_cant_be_registered_are_a_warning_and_work",
        "mode=compat,fail=cuFileBufRegister:1+:5036",
        || {
            let dir = home();
            let path = made(dir.path(), "a", 1 << 20);
            let job = JobSpec { allow_compat: true, ..unverified(&path) };
            let registered = record(&job);
            assert!(
                registered.warnings.iter().any(|w| w.id == "cufile_unregistered"),
                "{:?}",
                registered.warnings
            );
            assert!(!registered.cufile.unwrap().buffers_registered);
            let asked = record(&JobSpec { cufile_unregistered: true, ..job });
            assert!(
                !asked.cufile.unwrap().buffers_registered
                    && asked.warnings.iter().all(|w| w.id != "cufile_unregistered")
            );
        },
    );
}

// promise: GPU-20
#[test]
fn batches_are_kept_to_what_compatibility_mode_survives() {
    let books = with(
        "gds::batches_are_kept_to_what_compatibility_mode_survives",
        "mode=compat,batch_hang=64,delay_us=0",
        || {
            let dir = home();
            let path = made(dir.path(), "a", 16 << 20);
            let job = JobSpec {
                cufile: CuFileMode::Batch,
                depth: 128,
                workers: 1,
                allow_compat: true,
                ..unverified(&path)
            };
            let record = record(&job);
            assert_eq!(record.cufile.unwrap().batch, Some(64));
            assert!(record.warnings.iter().any(|w| w.id == "cufile_batch_bounded"), "{:?}", record.warnings);
            let crowded = run(&JobSpec { workers: 65, depth: 1, ..job }).unwrap_err();
            assert!(
                crowded.kind == Kind::Machine && crowded.next.contains("posix_pool_slab_count"),
                "{crowded}"
            );
        },
    );
    drop(books);
}

// promise: GPU-20
#[test]
fn a_batch_that_never_ends_times_out_is_cancelled_and_named() {
    with(
        "gds::a_batch_that_never_ends_times_out_is_cancelled_and_named",
        "mode=compat,batch_stall=3",
        || {
            let dir = home();
            let path = made(dir.path(), "a", 4 << 20);
            let job = JobSpec {
                cufile: CuFileMode::Batch,
                workers: 1,
                timeout_s: 0.5,
                allow_compat: true,
                ..unverified(&path)
            };
            let begun = std::time::Instant::now();
            let outcome = run(&job).unwrap();
            assert!(begun.elapsed().as_secs() < 8);
            let failure = outcome.failure.unwrap();
            assert!(outcome.record.result.errors.timed_out > 0);
            assert!(failure.kind == Kind::Run && failure.found.contains("timed out"), "{failure}");
        },
    );
}

/// The bound is for the pool that cuFile tells of; this stand-in hangs far below it.
// promise: GPU-20
#[test]
fn a_batch_that_hangs_when_it_is_submitted_times_out_and_the_run_ends() {
    let name = "gds::a_batch_that_hangs_when_it_is_submitted_times_out_and_the_run_ends";
    // What hangs is left behind: its books can't be balanced.
    let caught = std::panic::catch_unwind(|| {
        with(name, "mode=compat,batch_hang=2", || {
            let dir = home();
            let path = made(dir.path(), "a", 1 << 20);
            let job = JobSpec {
                cufile: CuFileMode::Batch,
                cufile_batch: Some(4),
                workers: 1,
                timeout_s: 0.5,
                allow_compat: true,
                ..unverified(&path)
            };
            let begun = std::time::Instant::now();
            let outcome = run(&job).unwrap();
            assert!(begun.elapsed().as_secs() < 8);
            let failure = outcome.failure.unwrap();
            assert!(failure.found.contains("timed out") && failure.next.contains("posix_pool"), "{failure}");
        })
    });
    if let Err(panic) = caught {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("left behind"), "{text}");
    }
}

// promise: GPU-3
#[test]
fn an_older_cufile_has_no_counters_which_is_null_with_the_reason() {
    let old = forebay_rigs::gpu::stubs().join("libcufile-1.14.so");
    let name = "gds::an_older_cufile_has_no_counters_which_is_null_with_the_reason";
    let Some(scenario) = scenario(name, "mode=p2p,version=1140") else { return };
    scenario.variable("FOREBAY_LIBCUFILE", old.to_str().unwrap()).run(|| {
        let dir = home();
        let path = made(dir.path(), "a", 1 << 20);
        // cuFile may not fall back, and the reads succeeded.
        let strict = record(&unverified(&path));
        assert_eq!((strict.path.ran.as_str(), strict.path.direct_bytes), ("gds", 1 << 20));
        assert!(strict.cufile.unwrap().gpus.is_none());
        assert!(strict.missing["cufile.gpus"].contains("cuFileGetStatsL3"), "{:?}", strict.missing);
        // Where it may, nothing proves that it didn't.
        let lax = record(&JobSpec { allow_compat: true, ..unverified(&path) });
        assert_eq!((lax.path.ran.as_str(), lax.path.direct_bytes), ("gds-compat", 0));
        assert!(lax.path.reason.unwrap().contains("can't be proven"));
    });
}

// promise: GPU-1
#[test]
fn without_libcufile_it_is_the_machine_that_lacks_it() {
    let name = "gds::without_libcufile_it_is_the_machine_that_lacks_it";
    Scenario::new(name).variable("FOREBAY_LIBCUFILE", "no/such/libcufile.so").run(|| {
        let dir = home();
        let path = made(dir.path(), "a", 1 << 16);
        let lacking = run(&unverified(&path)).unwrap_err();
        assert_eq!(lacking.kind, Kind::Machine);
        assert!(lacking.found.contains("libcufile") && lacking.next.contains("‹path› bounce"), "{lacking}");
    });
}

#[test]
fn what_cant_be_meant_is_refused_on_any_machine() {
    let base = || JobSpec { sources: vec!["nil:".into()], path: PathKind::Gds, ..JobSpec::default() };
    for (flag, job) in [
        ("‹cufile_batch›", JobSpec { cufile_batch: Some(8), ..base() }),
        ("‹cufile_batch›", JobSpec { cufile_batch: Some(0), cufile: CuFileMode::Batch, ..base() }),
        ("‹cufile›", JobSpec { path: PathKind::Host, cufile: CuFileMode::Batch, ..base() }),
        ("‹engine›", JobSpec { engine: forebay_model::job::Engine::Uring, ..base() }),
    ] {
        let refused = forebay_bench::check_job(&job).unwrap_err();
        assert!(refused.kind == Kind::Request && refused.asked.starts_with(flag), "{refused}");
    }
}
