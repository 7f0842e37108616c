use super::*;
use forebay_bench::Progress;
use forebay_model::checkpoint::{folder, Model};
use forebay_model::content;
use forebay_model::job::{Cache, Engine};
use forebay_model::Kind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two stages of two tensor ranks and two copies, at stage 1: layer files, and ranks that write only the optimizer.
fn small() -> Model {
    Model {
        layers: 3,
        hidden: 129,
        ffn_hidden: 257,
        heads: 3,
        kv_heads: 1,
        vocab: 1001,
        model_type_bytes: 2,
        optimizer_type_bytes: 4,
        tensor: 2,
        pipeline: 2,
        data: 2,
        zero_stage: 1,
    }
}

fn spec(dir: &Path) -> CheckpointSpec {
    CheckpointSpec {
        workload: "small".into(),
        model: small(),
        dir: dir.display().to_string(),
        writes: 2,
        reads: 2,
        between_s: 0.0,
        io_bytes: 64 << 10,
        depth: 3,
        workers: Some(2),
        path: PathKind::Host,
        interval_ms: 10,
        ..CheckpointSpec::default()
    }
}

/// Ends the run once this is there, if it is anything.
struct Until(Option<PathBuf>);

impl Observer for Until {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        self.0.as_ref().is_some_and(|path| path.exists())
    }
}

fn play(spec: &CheckpointSpec) -> Result<Outcome, Error> {
    run_checkpoint(spec, Vec::new(), &mut Until(None), None)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().is_some_and(|n| n != ".forebay.json") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the files of a checkpoint according to its layout, by path below the folder.
fn planned(spec: &CheckpointSpec, step: u32) -> Vec<(PathBuf, u64)> {
    let all = (0..spec.ranks()).flat_map(|rank| checkpoint_dir::places(spec, step, rank));
    let mut all: Vec<_> = all.map(|p| (p.path, p.bytes)).collect();
    all.sort();
    all
}

// promise: CKP-2
#[test]
fn every_file_has_its_bytes_and_holds_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { keep: true, ..spec(dir.path()) };
    let Outcome { record, failure } = play(&spec).unwrap();
    assert!(failure.is_none(), "{failure:?}");
    let both: Vec<(PathBuf, u64)> = [planned(&spec, 1), planned(&spec, 2)].concat();
    let found = files(dir.path());
    assert_eq!(found, both.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>());
    for (path, bytes) in both {
        let held = std::fs::read(&path).unwrap();
        assert_eq!(held.len() as u64, bytes, "{}", path.display());
        let name = path.strip_prefix(dir.path()).unwrap().display().to_string();
        content::check(&held, spec.seed, content::file_id(&name), 0)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let whole = spec.sizes().bytes();
    let part = record.checkpoint.unwrap();
    let (write, read) = (part.write.unwrap(), part.read.unwrap());
    assert_eq!((write.checkpoints.len(), read.checkpoints.len()), (2, 2));
    assert!(write
        .checkpoints
        .iter()
        .chain(&read.checkpoints)
        .all(|c| c.bytes == whole && c.duration_s > 0.0));
    assert_eq!((record.result.write_bytes, record.result.read_bytes), (2 * whole, 2 * whole));
    assert_eq!((read.verified_bytes, write.verified_bytes), (2 * whole, 0));
    assert!(write.fsync_us.is_some() && read.fsync_us.is_none());
    assert_eq!(record.result.repeats.len(), 4);
}

// promise: CKP-4
#[test]
fn files_of_ours_go_after_the_last_read_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    assert!(play(&spec(dir.path())).unwrap().failure.is_none());
    assert_eq!(files(dir.path()), [dir.path().join("notes.txt")]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

// promise: CKP-4
#[test]
fn what_is_there_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { reads: 0, ..spec(dir.path()) };
    play(&spec).unwrap();
    let error = play(&spec).unwrap_err();
    assert_eq!((error.kind, error.next.contains("--replace")), (Kind::Request, true), "{error}");
    let again = CheckpointSpec { replace: true, seed: 8, ..spec.clone() };
    play(&again).unwrap();
    let foreign = dir.path().join(folder(2)).join("thesis.doc");
    std::fs::write(&foreign, "mine").unwrap();
    let error = play(&again).unwrap_err();
    assert!(error.found.contains("thesis.doc") && error.kind == Kind::Request, "{error}");
    assert_eq!(std::fs::read(&foreign).unwrap(), b"mine");
}

#[test]
fn a_later_run_reads_what_an_earlier_one_wrote_and_knows_its_seed() {
    let dir = tempfile::tempdir().unwrap();
    let write = CheckpointSpec { reads: 0, seed: 99, ..spec(dir.path()) };
    play(&write).unwrap();
    let read = CheckpointSpec { writes: 0, seed: 7, ..spec(dir.path()) };
    let Outcome { record, failure } = play(&read).unwrap();
    assert!(failure.is_none(), "{failure:?}");
    assert_eq!(record.result.verified_bytes, 2 * read.sizes().bytes());
    assert_eq!(record.result.errors.verify_failed, 0);
    assert_eq!(files(dir.path()).len() as u64, 2 * read.sizes().files, "an earlier run's files stay");
    let other = CheckpointSpec { scale: 0.5, ..read.clone() };
    assert!(play(&other).unwrap_err().found.contains("the workload says"));
    let more = CheckpointSpec { reads: 3, ..read };
    assert_eq!(play(&more).unwrap_err().kind, Kind::Request);
}

// promise: CKP-2
#[test]
fn a_damaged_byte_is_named_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = CheckpointSpec { reads: 0, ..spec(dir.path()) };
    play(&write).unwrap();
    let (path, _) = planned(&write, 2)[1].clone();
    let mut held = std::fs::read(&path).unwrap();
    held[5000] ^= 1;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &held, 0).unwrap();
    let read = CheckpointSpec { writes: 0, ..spec(dir.path()) };
    let record = play(&read).unwrap().record;
    let errors = record.result.errors;
    assert_eq!(errors.verify_failed, 1);
    let name = path.strip_prefix(dir.path()).unwrap().display().to_string();
    assert!(
        errors.examples[0].contains(&name) && errors.examples[0].contains("5000"),
        "{:?}",
        errors.examples
    );
}

// promise: CKP-2
#[test]
fn a_checkpoint_read_in_place_of_another_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let write = CheckpointSpec { reads: 0, ..spec(dir.path()) };
    play(&write).unwrap();
    for ((one, _), (two, _)) in planned(&write, 1).iter().zip(&planned(&write, 2)) {
        let held = std::fs::read(one).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(two).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &held, 0).unwrap();
    }
    let record = play(&CheckpointSpec { writes: 0, ..spec(dir.path()) }).unwrap().record;
    assert!(record.result.errors.verify_failed > 0);
    assert!(
        record.result.errors.examples[0].contains("global_epoch1_step1"),
        "{:?}",
        record.result.errors.examples
    );
}

#[test]
fn short_and_late_and_reordered_io_changes_nothing() {
    for faults in ["seed=3,short=0.2,reorder=1", "seed=4,delay_us=300,reorder=1"] {
        let dir = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { faults: Some(faults.into()), ..spec(dir.path()) };
        let Outcome { record, failure } = play(&spec).unwrap();
        assert!(failure.is_none(), "{faults}: {failure:?}");
        assert_eq!(record.result.verified_bytes, 2 * spec.sizes().bytes(), "{faults}");
        assert!(faults.contains("delay") || record.result.errors.short > 0, "{faults}");
    }
}

// promise: CKP-6
#[test]
fn an_io_that_fails_ends_the_run_and_takes_its_checkpoint_away() {
    let dir = tempfile::tempdir().unwrap();
    // Some checkpoints come to their end before one meets the fault: what they were is kept.
    let spec = CheckpointSpec {
        faults: Some("seed=5,error=0.002".into()),
        writes: 200,
        reads: 0,
        ..spec(dir.path())
    };
    let Outcome { record, failure } = play(&spec).unwrap();
    let failure = failure.expect("one in 500 fails");
    assert_eq!(failure.kind, Kind::Run);
    assert!(failure.asked.contains("global_epoch1_step") && failure.asked.contains("rank"), "{failure}");
    let part = record.checkpoint.unwrap();
    let done = part.write.map_or(0, |w| w.checkpoints.len() as u32);
    assert!(done < 200);
    assert!((1..=done).all(|step| dir.path().join(folder(step)).is_dir()));
    assert!(!dir.path().join(folder(done + 1)).exists());
    assert_eq!(record.result.errors.failed, 1);
    assert_eq!(part.rules.iter().find(|r| r.id == "checkpoint.complete").unwrap().ok, Some(false));
}

// promise: CKP-6
#[test]
fn an_io_that_never_ends_is_given_up_on() {
    let dir = tempfile::tempdir().unwrap();
    let spec =
        CheckpointSpec { faults: Some("seed=5,stall=0.05".into()), timeout_s: 0.2, ..spec(dir.path()) };
    let Outcome { record, failure } = play(&spec).unwrap();
    assert!(failure.unwrap().found.contains("‹timeout_s› 0.2"));
    assert!(record.result.errors.timed_out > 0);
}

#[test]
fn an_interrupted_run_keeps_the_checkpoints_that_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { between_s: 0.1, writes: 50, reads: 50, ..spec(dir.path()) };
    let mut second = Until(Some(dir.path().join(folder(2))));
    let Outcome { record, failure } = run_checkpoint(&spec, Vec::new(), &mut second, None).unwrap();
    assert!(failure.is_none() && record.result.interrupted);
    let done = record.checkpoint.unwrap().write.unwrap().checkpoints.len();
    assert!((1..50).contains(&done), "{done}");
    assert_eq!(files(dir.path()), [] as [PathBuf; 0], "they would have gone after the reads");
}

// promise: CKP-6
#[test]
fn a_full_file_system_is_refused_beforehand() {
    let dir = tempfile::tempdir().unwrap();
    let huge = Model { hidden: 65_536, ffn_hidden: 200_000, layers: 1000, heads: 8, ..small() };
    let error = play(&CheckpointSpec { model: huge, ..spec(dir.path()) }).unwrap_err();
    assert_eq!((error.kind, error.next.contains("--scale")), (Kind::Machine, true), "{error}");
    assert_eq!(files(dir.path()).len(), 0);
}

// promise: CKP-7
#[test]
fn many_ranks_share_few_slots_and_threads() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model { data: 256, pipeline: 1, tensor: 1, zero_stage: 3, ..small() };
    let spec = CheckpointSpec { model, writes: 1, reads: 1, buffer_bytes: 512 << 10, ..spec(dir.path()) };
    let Outcome { record, failure } = play(&spec).unwrap();
    assert!(failure.is_none(), "{failure:?}");
    assert_eq!(record.job.spec.depth, 4);
    assert!(record.path.reason.unwrap().contains("take turns"));
    assert_eq!(record.checkpoint.unwrap().read.unwrap().checkpoints[0].bytes, spec.sizes().bytes());
}

#[test]
fn every_engine_and_cache_policy_writes_the_same_bytes() {
    for (engine, cache) in
        [(Engine::Uring, Cache::Drop), (Engine::Pread, Cache::Bypass), (Engine::Inline, Cache::Allow)]
    {
        let dir = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { engine, cache, ..spec(dir.path()) };
        let Outcome { record, failure } = play(&spec).unwrap();
        assert!(failure.is_none(), "{engine:?}: {failure:?}");
        assert_eq!(record.result.verified_bytes, 2 * spec.sizes().bytes(), "{engine:?}");
    }
}

/// Two processes of one run, with a barrier between them; each reads what the other wrote.
// promise: CKP-8
#[test]
fn two_hosts_meet_before_each_checkpoint_and_read_each_others_files() {
    struct Meets(Arc<std::sync::Barrier>, u32);
    impl Barrier for Meets {
        fn pass(&mut self) -> Result<bool, Error> {
            self.0.wait();
            self.1 += 1;
            Ok(true)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(std::sync::Barrier::new(2));
    let host = |n: u64| {
        let half = CheckpointSpec {
            first_rank: 4 * n,
            ranks_here: Some(4),
            hosts: 2,
            shift: true,
            keep: true,
            ..spec(dir.path())
        };
        let mut meets = Meets(gate.clone(), 0);
        move || {
            let outcome = run_checkpoint(&half, Vec::new(), &mut Until(None), Some(&mut meets)).unwrap();
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
            assert_eq!(meets.1, 2 + 1 + 2);
            outcome.record
        }
    };
    let (one, two) = (std::thread::spawn(host(0)), host(1)());
    let one = one.join().unwrap();
    let whole = spec(dir.path()).sizes().bytes();
    let read = |r: &forebay_model::RunRecord| r.result.verified_bytes;
    assert_eq!(read(&one) + read(&two), 2 * whole);
    assert_ne!(one.result.write_bytes, one.result.read_bytes, "the halves differ, and each read the other's");
    let merged = forebay_model::merge::merge(vec![one, two]).unwrap();
    let part = merged.checkpoint.unwrap();
    assert_eq!(part.write.unwrap().checkpoints[1].bytes, whole);
    assert_eq!(files(dir.path()).len() as u64, 2 * spec(dir.path()).sizes().files);
}

// promise: REC-8
#[test]
fn checkpoints_go_on_while_their_observer_is_held_up() {
    const WRITES: u32 = 6;
    struct Counts(Arc<AtomicU32>);
    impl Barrier for Counts {
        fn pass(&mut self) -> Result<bool, Error> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(true)
        }
    }
    /// As by a terminal that takes nothing, until another checkpoint has begun.
    struct HeldUp(Arc<AtomicU32>, u32);
    impl Observer for HeldUp {
        fn progress(&mut self, _: &Progress) {
            self.1 += 1;
            let begun = self.0.load(Ordering::SeqCst);
            let until = monotonic_now() + Duration::from_secs(60);
            while begun < WRITES && self.0.load(Ordering::SeqCst) == begun {
                assert!(monotonic_now() < until, "the run waits for its observer");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        fn stop(&mut self) -> bool {
            false
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let faults = Some("seed=5,delay_us=5000".into());
    let spec =
        CheckpointSpec { writes: WRITES, reads: 0, keep: true, interval_ms: 10, faults, ..spec(dir.path()) };
    let passed = Arc::new(AtomicU32::new(0));
    let mut observer = HeldUp(passed.clone(), 0);
    let Outcome { record, failure } =
        run_checkpoint(&spec, Vec::new(), &mut observer, Some(&mut Counts(passed))).unwrap();
    assert!(failure.is_none() && observer.1 > 0, "{failure:?}");
    assert_eq!(record.checkpoint.unwrap().write.unwrap().checkpoints.len() as u32, WRITES);
}
