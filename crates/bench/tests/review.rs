//! Findings of a hostile reading of the engine, each as a run through the public face.

use forebay_bench::{run_job, Observer, Outcome, Progress};
use forebay_model::job::{Cache, JobSpec, Op};
use forebay_model::{Error, Kind};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

struct Quiet;

impl Observer for Quiet {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

fn go(job: &JobSpec) -> Result<Outcome, Error> {
    run_job(job, vec!["test".into()], &mut Quiet)
}

/// One pass over the source, through the page cache, so that any file system will do.
fn job(source: impl AsRef<Path>) -> JobSpec {
    JobSpec {
        sources: vec![source.as_ref().display().to_string()],
        io_bytes: 64 << 10,
        depth: 2,
        passes: Some(1),
        cache: Cache::Allow,
        ..JobSpec::default()
    }
}

/// Much longer than anything here takes, and much shorter than what it must not wait for.
const SOON: Duration = Duration::from_secs(60);

/// A folder in memory. None, with the reason printed, where there is no such place.
fn in_memory() -> Option<tempfile::TempDir> {
    let made = tempfile::tempdir_in("/dev/shm");
    made.map_err(|e| eprintln!("SKIPPED: no folder in memory: /dev/shm: {e}")).ok()
}

// promise: FLT-11
#[test]
fn making_a_stripes_missing_member_never_writes_over_the_users_own() {
    let home = tempfile::tempdir().unwrap();
    let (mine, new) = (home.path().join("mine"), home.path().join("new"));
    let precious = vec![7u8; 1 << 20];
    fs::write(&mine, &precious).unwrap();
    let stripe = format!("stripe:?chunk=64k&m={}&m={}", mine.display(), new.display());
    let error = go(&JobSpec { create: true, file_bytes: Some(2 << 20), ..job(&stripe) }).unwrap_err();
    assert_eq!(fs::read(&mine).unwrap(), precious);
    assert_eq!(error.kind, Kind::Request);
    assert!(error.found.contains("mine") && !error.next.is_empty(), "{error}");
    assert!(!new.exists());
}

// promise: FLT-11, FLT-30
#[test]
fn a_file_that_took_the_inode_of_ours_is_not_ours() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("f");
    go(&JobSpec { file_bytes: Some(1 << 20), op: Op::Write, ..job(&file) }).unwrap();
    // File systems give a number that fell free to the next file. Should this one not, the list is made to say so.
    use std::os::unix::fs::MetadataExt;
    let list = home.path().join(".forebay.json");
    let before = fs::metadata(&file).unwrap().ino();
    fs::remove_file(&file).unwrap();
    fs::write(&file, vec![7u8; 1 << 20]).unwrap();
    let now = fs::metadata(&file).unwrap().ino();
    let text = fs::read_to_string(&list).unwrap();
    fs::write(&list, text.replace(&before.to_string(), &now.to_string())).unwrap();
    let error = go(&JobSpec { op: Op::Write, ..job(&file) }).unwrap_err();
    assert!(error.next.contains("‹overwrite›"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), vec![7u8; 1 << 20]);
}

/// Gives our file's name to another as soon as files are being made, and may end the run there.
struct Moving<'a> {
    users: &'a Path,
    ours: &'a Path,
    ends: bool,
}

impl Observer for Moving<'_> {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        if self.users.exists() && self.ours.exists() {
            fs::rename(self.users, self.ours).unwrap();
        }
        self.ends
    }
}

/// Tests a file moved under our name while we make ours: it is neither measured, claimed, nor removed.
// promise: FLT-30
#[test]
fn a_file_moved_under_our_name_while_files_are_made_stays_the_users() {
    for ends in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let (users, ours) = (home.path().join("users"), home.path().join("ours"));
        let precious = vec![7u8; 2 << 20];
        fs::write(&users, &precious).unwrap();
        // Long enough in the making for whoever moves it: a thread that looks every now and then.
        let wanted = JobSpec { create: true, file_bytes: Some(128 << 20), ..job(&ours) };
        let mut moving = Moving { users: &users, ours: &ours, ends };
        let error = run_job(&wanted, vec!["test".into()], &mut moving).unwrap_err();
        assert!(!users.exists(), "it was moved: {error}");
        assert!(fs::read(&ours).unwrap() == precious, "the user's file is as it was");
        if !ends {
            assert!(error.found.contains("another file") && error.next.contains("ls -li"), "{error}");
        }
        let error = go(&JobSpec { op: Op::Write, ..job(&ours) }).unwrap_err();
        assert!(error.next.contains("‹overwrite›"), "it isn't claimed: {error}");
        assert!(fs::read(&ours).unwrap() == precious);
    }
}

/// The name, the inode and the birth of a file that `cp` wrote over are those of ours. What it holds isn't.
// promise: FLT-30
#[test]
fn what_was_copied_over_a_file_of_ours_is_the_users() {
    let home = tempfile::tempdir().unwrap();
    let (file, users) = (home.path().join("f"), home.path().join("users"));
    fs::write(&users, vec![7u8; 1 << 20]).unwrap();
    let write = JobSpec { op: Op::Write, ..job(&file) };
    go(&JobSpec { file_bytes: Some(1 << 20), ..write.clone() }).unwrap();
    go(&write).expect("nobody touched it");
    go(&job(&file)).unwrap();
    go(&write).expect("reading it changes nothing");
    // The length is the same: only the times tell.
    fs::copy(&users, &file).unwrap();
    let error = go(&write).unwrap_err();
    assert_eq!(error.kind, Kind::Request);
    assert!(error.next.contains("‹overwrite›"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), vec![7u8; 1 << 20]);
    let larger = JobSpec { create: true, file_bytes: Some(2 << 20), ..job(&file) };
    assert!(go(&larger).unwrap_err().found.contains("has changed since Forebay wrote it"));
    assert_eq!(fs::read(&file).unwrap(), vec![7u8; 1 << 20]);
    // Named, it is written to, and stays the user's.
    let named = JobSpec { overwrite: vec![file.display().to_string()], ..write.clone() };
    go(&named).unwrap();
    assert!(go(&write).unwrap_err().next.contains("‹overwrite›"));
}

// promise: FLT-30
#[test]
fn a_run_that_was_killed_leaves_files_that_serve_the_next() {
    let home = tempfile::tempdir().unwrap();
    let (file, list) = (home.path().join("f"), home.path().join(".forebay.json"));
    let write = JobSpec { op: Op::Write, file_bytes: Some(1 << 20), ..job(&file) };
    go(&write).unwrap();
    // As a kill leaves the list: begun, and never closed.
    let mut begun: serde_json::Value = serde_json::from_str(&fs::read_to_string(&list).unwrap()).unwrap();
    begun["files"]["f"].as_object_mut().unwrap().remove("left").expect("it says how the file was left");
    fs::write(&list, begun.to_string()).unwrap();
    fs::write(&file, vec![1u8; 1 << 20]).unwrap();
    go(&write).unwrap();
}

#[test]
fn the_list_of_files_is_not_written_through_a_link() {
    let home = tempfile::tempdir().unwrap();
    let elsewhere = home.path().join("elsewhere");
    let dir = home.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.join(".forebay.json")).unwrap();
    let error = go(&JobSpec { file_bytes: Some(1 << 20), op: Op::Write, ..job(dir.join("f")) }).unwrap_err();
    assert!(!error.next.is_empty(), "{error}");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "");
}

#[test]
fn writing_to_a_named_file_leaves_nothing_beside_it() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("mine");
    fs::write(&file, vec![7u8; 1 << 20]).unwrap();
    let overwrite = vec![file.display().to_string()];
    go(&JobSpec { op: Op::Write, overwrite, ..job(&file) }).unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

/// Creates what the plan called new, and never opens it: a link to nowhere looks new and is there all the same.
// promise: FLT-11
#[test]
fn what_should_be_new_is_never_opened() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("dangling");
    std::os::unix::fs::symlink(home.path().join("away/there"), &target).unwrap();
    let error = go(&JobSpec { create: true, file_bytes: Some(1 << 20), ..job(&target) }).unwrap_err();
    assert!(error.next.contains("ls -l"), "{error}");
}

/// A folder on a disk, where there is one: `/tmp` may lie in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file of 4 MiB that isn't in the page cache; what was read of it directly.
fn read_direct(file: &Path) -> Option<Outcome> {
    let open = fs::File::options().read(true).write(true).open(file).unwrap();
    forebay_io::drop_cached(&open, 0, 0).unwrap();
    let direct = JobSpec { require_direct: true, cache: Cache::Bypass, ..job(file) };
    go(&direct).map_err(|e| eprintln!("SKIPPED: direct I/O on the build's disk: {e}")).ok()
}

// promise: FLT-31
#[test]
fn require_direct_asks_the_device_whether_it_moved() {
    let home = on_disk();
    let (data, holes) = (home.path().join("data"), home.path().join("holes"));
    fs::write(&data, vec![7u8; 4 << 20]).unwrap();
    let Some(done) = read_direct(&data) else { return };
    assert!(done.failure.is_none(), "{:?} {:?}", done.failure, done.record.cache);
    let unchecked = done.record.warnings.iter().any(|w| w.id == "direct_unchecked");
    assert_eq!(unchecked, done.record.cache.device_bytes.is_none(), "{:?}", done.record.warnings);
    fs::File::create(&holes).unwrap().set_len(64 << 20).unwrap();
    // Others may keep the device busy meanwhile, and its counters tell of them too.
    let begun = Instant::now();
    let done = loop {
        let done = read_direct(&holes).unwrap();
        if done.failure.is_some() || done.record.cache.device_bytes.is_none() || begun.elapsed() > SOON {
            break done;
        }
    };
    assert_eq!(done.record.path.direct_bytes, 64 << 20, "the kernel took all of it for direct");
    if done.record.cache.device_bytes.is_none() {
        return eprintln!("SKIPPED: no device is known below {}", holes.display());
    }
    let error = done.failure.expect("no device has seen these bytes");
    assert!(error.asked == "‹require_direct›" && error.found.contains("the device moved"), "{error}");
    assert!(!error.next.is_empty());
}

/// `--cache drop` is cold once: what the first pass brought into the page cache, the second reads there.
// promise: REC-30
#[test]
fn a_second_pass_after_a_drop_is_told_to_be_memory() {
    let home = on_disk();
    let file = home.path().join("f");
    fs::write(&file, vec![7u8; 8 << 20]).unwrap();
    let dropped = |passes| JobSpec { cache: Cache::Drop, passes: Some(passes), ..job(&file) };
    let record = go(&dropped(2)).unwrap().record;
    if record.cache.policy != "drop" || record.cache.resident_before.is_none() {
        return eprintln!("SKIPPED: nothing tells of the page cache here: {:?}", record.missing);
    }
    // Asked after the drop: it tells what the run began with.
    assert!(record.cache.resident_before < Some(0.5), "{:?}", record.cache);
    // Others may keep the device busy meanwhile, and its counters tell of them too.
    let begun = Instant::now();
    let mut texts = Vec::new();
    while texts.is_empty() && begun.elapsed() < SOON {
        let warnings = go(&dropped(4)).unwrap().record.warnings;
        texts = warnings.into_iter().filter(|w| w.id == "cached").map(|w| w.text).collect();
    }
    assert!(texts.len() == 1 && texts[0].contains("% of the bytes that were read"), "{texts:?}");
}

#[test]
fn files_are_made_beside_directories_that_are_only_read() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (old, new) = (home.path().join("old"), other.path().join("new"));
    go(&JobSpec { create: true, file_bytes: Some(1 << 20), ..job(&old) }).unwrap();
    let sources = vec![old.display().to_string(), new.display().to_string()];
    let both =
        go(&JobSpec { sources, create: true, file_bytes: Some(1 << 20), verify: true, ..job(&old) }).unwrap();
    assert_eq!(both.record.result.verified_bytes, 2 << 20);
}

// promise: FLT-5
#[test]
fn time_outs_do_not_wait_for_a_long_interval() {
    let faults = Some("seed=1,stall=1".to_string());
    let began = Instant::now();
    let stalled = JobSpec { faults, timeout_s: 0.2, interval_ms: 600_000, ..job("nil:?size=1m") };
    let outcome = go(&stalled).unwrap();
    assert!(began.elapsed() < SOON);
    assert_eq!(outcome.record.result.errors.timed_out, 2);
    assert!(outcome.failure.is_some());
}

#[test]
fn an_io_of_more_pieces_than_members_are_deep_still_fits() {
    let one = JobSpec { io_bytes: 16 << 20, file_bytes: Some(64 << 20), ..job("stripe:?chunk=512&m=nil:") };
    assert_eq!(go(&one).unwrap().record.result.bytes, 64 << 20);
    let nested = "stripe:?chunk=64k&m=stripe:%3Fchunk=512%26m=nil:&m=nil:";
    let nested = JobSpec { depth: 64, io_bytes: 1 << 20, file_bytes: Some(64 << 20), ..job(nested) };
    assert_eq!(go(&nested).unwrap().record.result.bytes, 64 << 20);
}

#[test]
fn a_model_lets_go_of_what_is_abandoned() {
    let slow = JobSpec {
        io_bytes: 1 << 20,
        timeout_s: 0.2,
        ..job("model:d7-ps1010?time=real&read_mb_s=0.01&drives=1")
    };
    // What isn't let go is left to the kernel after 2 s, every time; a busy machine is that late once in a while.
    let until = Instant::now() + 2 * SOON;
    loop {
        let began = Instant::now();
        let outcome = go(&slow).unwrap();
        assert_eq!(outcome.record.result.errors.timed_out, 2);
        if began.elapsed() < Duration::from_secs(2) {
            break;
        }
        assert!(Instant::now() < until, "nothing is left to a kernel that has nothing of it");
    }
}

#[test]
fn options_that_can_not_hold_are_refused_before_anything_is_made() {
    use forebay_model::job::{Engine, PathKind, Sync};
    let home = tempfile::tempdir().unwrap();
    let base = || JobSpec {
        create: true,
        file_bytes: Some(1 << 20),
        cache: Cache::Bypass,
        ..job(home.path().join("f"))
    };
    let cases = [
        ("‹sqpoll›", JobSpec { sqpoll: true, engine: Engine::Pread, ..base() }),
        ("‹iopoll›", JobSpec { iopoll: true, cache: Cache::Allow, ..base() }),
        ("‹iopoll›", JobSpec { iopoll: true, op: Op::Write, sync: Sync::End, ..base() }),
        ("‹require_direct›", JobSpec { require_direct: true, path: PathKind::Bounce, ..base() }),
        ("‹require_direct›", JobSpec { require_direct: true, cache: Cache::Warm, ..base() }),
        ("‹gpus›", JobSpec { gpus: vec![0], ..base() }),
        ("‹align_bytes›", JobSpec { align_bytes: Some(512), ..base() }),
        ("‹io_bytes›", JobSpec { io_bytes_step: Some(512), ..base() }),
        ("‹distribution›", JobSpec { distribution: "zipf:1.1".into(), ..base() }),
    ];
    for (flag, wrong) in cases {
        let error = go(&wrong).unwrap_err();
        assert!(error.asked.starts_with(flag) && !error.next.is_empty(), "{flag}: {error}");
        assert_eq!(error.kind, Kind::Request);
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn options_that_the_targets_can_not_honour_are_refused() {
    for wrong in [
        JobSpec { sqpoll: true, ..job("nil:") },
        JobSpec { require_direct: true, cache: Cache::Bypass, ..job("nil:") },
    ] {
        assert_eq!(go(&wrong).unwrap_err().kind, Kind::Request);
    }
    let Some(home) = in_memory() else { return };
    let file = JobSpec {
        create: true,
        file_bytes: Some(1 << 20),
        cache: Cache::Bypass,
        ..job(home.path().join("f"))
    };
    let error = go(&JobSpec { require_direct: true, ..file }).unwrap_err();
    assert_eq!(error.kind, Kind::Machine);
}

#[test]
fn a_mix_on_a_model_needs_both_its_rates() {
    let mixed = JobSpec {
        read_pct: Some(50),
        op: Op::RandRead,
        passes: None,
        ..job("model:d7-p5520?read_iops=1000000")
    };
    assert!(go(&mixed).unwrap_err().next.contains("write_iops"));
}

#[test]
fn a_list_of_files_claims_no_content_that_was_not_written() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("f");
    let list = || fs::read_to_string(home.path().join(".forebay.json")).unwrap();
    let write = |more: JobSpec| {
        go(&JobSpec { op: Op::Write, verify: true, file_bytes: Some(1 << 20), ..more }).unwrap();
    };
    write(JobSpec { start_bytes: 512 << 10, ..job(&file) });
    assert!(list().contains("\"seed\": null"));
    write(job(&file));
    assert!(list().contains("\"seed\": 7"));
    write(JobSpec { seed: 8, start_bytes: 512 << 10, ..job(&file) });
    assert!(list().contains("\"seed\": null"));
}

// promise: BEN-4
#[test]
fn a_run_that_ends_inside_its_warm_up_has_measured_nothing() {
    let outcome = go(&JobSpec { warmup_s: Some(30.0), ..job("nil:?size=1m") }).unwrap();
    let failure = outcome.failure.unwrap();
    assert_eq!((failure.kind, outcome.record.result.ios), (Kind::Run, 0));
    assert!(failure.next.contains("‹warmup_s›"));
}

// promise: FLT-1
#[test]
fn pieces_that_direct_io_can_not_take_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    go(&JobSpec { create: true, file_bytes: Some(1 << 20), ..job(&a) }).unwrap();
    go(&JobSpec { create: true, file_bytes: Some(1 << 20), ..job(&b) }).unwrap();
    let direct = |source: &str| JobSpec { cache: Cache::Bypass, ..job(source) };
    // Where O_DIRECT isn't to be had there is nothing to align.
    let Ok(outcome) = go(&direct(&a.display().to_string())) else { return };
    if !outcome.record.job.direct {
        return;
    }
    let part = JobSpec { create: true, file_bytes: Some(100_001), ..direct(&a.display().to_string()) };
    assert!(go(&part).unwrap_err().asked.contains("‹file_bytes›"));
}

#[test]
fn a_model_faster_than_the_host_is_refused_in_real_time() {
    let op = Op::RandRead;
    let fast = "model:d7-ps1010?drives=1024&latency_us=1&read_iops=1000000000&read_mb_s=1000000&time=real";
    let many = JobSpec { op, io_bytes: 512, depth: 4096, passes: None, duration_s: Some(0.1), ..job(fast) };
    let error = go(&many).unwrap_err();
    assert_eq!(error.kind, Kind::Machine);
    assert!(error.next.contains("time=virtual") && error.found.contains("per second"), "{error}");
    // A rate that the host can keep needs no check.
    assert!(go(&JobSpec { rate_iops: Some(1000.0), ..many }).is_ok());

    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("f");
    go(&JobSpec { create: true, file_bytes: Some(8 << 20), ..job(&file) }).unwrap();
    // 10 000 I/Os per second, which any host is trusted with, of 78 GiB/s, which no core copies.
    let drives = "drives=1024&command=1m&read_mb_s=1000000&latency_us=400";
    let wide = format!("model:d7-ps1010?{drives}&over={}", file.display());
    let error = go(&JobSpec { io_bytes: 8 << 20, depth: 4, ..job(&wide) }).unwrap_err();
    assert!(error.kind == Kind::Machine && error.found.contains("GiB/s"), "{error}");
    // What a busy host copies in the moment for which that is tried may be too little, once in a while.
    let slow = JobSpec { depth: 1, ..job(format!("model:d7-p5520?over={}", file.display())) };
    let until = Instant::now() + 2 * SOON;
    while let Err(refused) = go(&slow) {
        assert!(refused.found.contains("GiB/s") && Instant::now() < until, "{refused}");
    }
}

/// In a process of its own, for the limit is the process's.
#[test]
fn more_files_than_the_soft_limit_are_opened() {
    const INSIDE: &str = "FOREBAY_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(INSIDE).is_none() {
        let me = std::env::current_exe().unwrap();
        let shell = "ulimit -S -n 256; exec \"$0\" --exact review::more_files_than_the_soft_limit_are_opened";
        let status = std::process::Command::new("sh").args(["-c", shell]).arg(me).env(INSIDE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let many = JobSpec {
        files: Some(400),
        create: true,
        file_bytes: Some(4096),
        io_bytes: 4096,
        ..job(home.path())
    };
    assert_eq!(go(&many).unwrap().record.result.ios, 400);
}

#[test]
fn flushing_many_files_in_memory_waits_for_nothing() {
    let Some(home) = in_memory() else { return };
    let began = Instant::now();
    let many =
        JobSpec { files: Some(60), create: true, file_bytes: Some(4096), io_bytes: 4096, ..job(home.path()) };
    go(&many).unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// Keeps what it was told in words.
#[derive(Default)]
struct Listener(Vec<String>);

impl Observer for Listener {
    fn progress(&mut self, progress: &Progress) {
        self.0.extend(progress.message.clone());
    }

    fn stop(&mut self) -> bool {
        false
    }
}

// promise: BEN-18
#[test]
fn whoever_watches_is_told_what_is_waited_for_when_the_time_is_over() {
    let late = JobSpec {
        faults: Some("seed=1,delay_us=900000".into()),
        duration_s: Some(0.1),
        passes: None,
        depth: 8,
        interval_ms: 20,
        ..job("nil:")
    };
    let mut listener = Listener::default();
    let outcome = run_job(&late, Vec::new(), &mut listener).unwrap();
    assert!(outcome.record.result.late > 0);
    assert!(listener.0.iter().any(|said| said.contains("waiting for I/Os")), "{:?}", listener.0);
}
