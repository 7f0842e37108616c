//! The metadata phases on a real file system.

use forebay_bench::{run_files, FilesProgress};
use forebay_io::CpuTimes;
use forebay_model::files::{Cache, FilesRecord, FilesSpec, Phase};
use forebay_model::{Kind, Latency};
use forebay_rigs::seccomp::forbid_threads;
use std::fs;
use std::path::Path;

fn spec(directory: &Path) -> FilesSpec {
    FilesSpec {
        directory: directory.display().to_string(),
        files: 101,
        file_bytes: 5000,
        workers: 4,
        ..FilesSpec::default()
    }
}

fn quietly(spec: &FilesSpec) -> FilesRecord {
    run_files(spec, "0123456789abcdef", &mut |_| true).unwrap()
}

#[test]
fn each_phase_touches_every_file_once_and_nothing_is_left() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("precious"), "mine").unwrap();
    let record = quietly(&spec(home.path()));
    assert_eq!(record.failure, None);
    assert_eq!(record.left, None);
    let phases: Vec<_> = record.phases.iter().map(|p| (p.phase, p.files, p.bytes, p.complete)).collect();
    let moved = 101 * 5000;
    let wanted = [
        (Phase::Create, 101, moved, true),
        (Phase::Stat, 101, 0, true),
        (Phase::Read, 101, moved, true),
        (Phase::Delete, 101, 0, true),
    ];
    assert_eq!(phases, wanted);
    for phase in &record.phases {
        assert_eq!(Latency::decode(&phase.histogram).unwrap().count(), 101);
        assert!(phase.ops_s > 0.0 && phase.latency_us.p50 > 0.0 && phase.seconds > 0.0);
        // The histogram rounds up, and one call may have taken nearly all of the time.
        assert!(phase.latency_us.max / 1e6 <= phase.seconds * 1.01);
    }
    assert_eq!(fs::read_to_string(home.path().join("precious")).unwrap(), "mine");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

// promise: BEN-22
#[test]
fn mkdir_makes_as_many_directories_as_files_and_nothing_is_left() {
    for phases in [
        vec![Phase::Mkdir],
        vec![Phase::Mkdir, Phase::Create, Phase::Stat],
        vec![Phase::Create, Phase::Mkdir],
    ] {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("forebay-files-0123456789abcdef");
        let mut most = 0;
        let spec = FilesSpec { phases: phases.clone(), ..spec(home.path()) };
        let record = run_files(&spec, "0123456789abcdef", &mut |p: &FilesProgress| {
            if p.phase == "cleanup" && p.done == 0 {
                let parents = fs::read_dir(&root).unwrap().map(|d| d.unwrap().path());
                let made = parents.flat_map(|d| fs::read_dir(d).unwrap().map(|e| e.unwrap().path()));
                most = most.max(made.filter(|path| path.is_dir()).count());
            }
            true
        });
        let record = record.unwrap();
        assert_eq!((record.failure, record.left), (None, None));
        let mkdir = record.phases.iter().find(|p| p.phase == Phase::Mkdir).unwrap();
        assert_eq!((mkdir.files, mkdir.bytes, mkdir.complete, mkdir.throughput_gib_s), (101, 0, true, None));
        assert_eq!(Latency::decode(&mkdir.histogram).unwrap().count(), 101);
        assert_eq!(most, 101, "as cleaning up found them");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}

// promise: BEN-22
#[test]
fn what_somebody_put_into_a_directory_of_mkdirs_stays() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("forebay-files-0123456789abcdef");
    let theirs = root.join("d0001").join("m00000001").join("precious");
    let spec = FilesSpec { phases: vec![Phase::Mkdir], ..spec(home.path()) };
    let record = run_files(&spec, "0123456789abcdef", &mut |p: &FilesProgress| {
        if p.phase == "cleanup" && !theirs.exists() {
            fs::write(&theirs, "mine").unwrap();
        }
        true
    });
    let record = record.unwrap();
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
    assert!(record.left.is_some_and(|left| left.contains("forebay-files-")));
}

/// Both ways of removing: the phase, which fails with what it met, and the cleaning up.
// promise: FLT-30
#[test]
fn a_file_moved_under_a_name_of_ours_is_not_removed() {
    for phases in [vec![Phase::Create, Phase::Delete], vec![Phase::Create]] {
        let home = tempfile::tempdir().unwrap();
        let users = home.path().join("precious");
        fs::write(&users, "mine").unwrap();
        let spec = FilesSpec { phases: phases.clone(), ..spec(home.path()) };
        let root = home.path().join("forebay-files-0123456789abcdef");
        let taken = root.join("d0001").join("f00000001");
        let record = run_files(&spec, "0123456789abcdef", &mut |p: &FilesProgress| {
            if ["delete", "cleanup"].contains(&p.phase) && users.exists() {
                fs::rename(&users, &taken).unwrap();
            }
            true
        });
        let record = record.unwrap();
        assert_eq!(fs::read_to_string(&taken).unwrap(), "mine", "{record:?}");
        assert!(
            record.left.as_ref().is_some_and(|left| left.contains("forebay-files-")),
            "{:?}",
            record.left
        );
        let failed = record.failure.is_some_and(|e| e.found.contains("another file"));
        assert_eq!(failed, phases.len() == 2);
        let left: Vec<_> =
            fs::read_dir(root.join("d0001")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["f00000001"], "all the others are gone");
    }
}

#[test]
fn without_a_delete_phase_the_files_go_all_the_same() {
    let home = tempfile::tempdir().unwrap();
    let record = quietly(&FilesSpec { phases: vec![Phase::Create, Phase::Stat], ..spec(home.path()) });
    assert_eq!(record.phases.len(), 2);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn files_have_the_size_and_spread_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let job =
        FilesSpec { directories: Some(3), files: 600, sync: true, file_bytes: 3000, ..spec(home.path()) };
    // The observer is called before each phase too: it looks at what lies there then.
    run_files(&job, "seen", &mut |p: &FilesProgress| {
        if p.phase == "stat" && p.done == 0 {
            let root = home.path().join("forebay-files-seen");
            let files = fs::read_dir(&root)
                .unwrap()
                .flat_map(|d| fs::read_dir(d.unwrap().path()).unwrap())
                .filter_map(|f| fs::metadata(f.unwrap().path()).ok())
                .filter(|m| m.len() == 3000)
                .count();
            seen.push((fs::read_dir(&root).unwrap().count(), files));
        }
        true
    })
    .unwrap();
    assert_eq!(seen[0], (3, 600));
}

#[test]
fn a_directory_that_exists_is_refused_and_kept() {
    let home = tempfile::tempdir().unwrap();
    let taken = home.path().join("forebay-files-taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("precious"), "mine").unwrap();
    let error = run_files(&spec(home.path()), "taken", &mut |_| true).unwrap_err();
    assert_eq!(error.kind, Kind::Request);
    assert!(taken.join("precious").exists());
}

#[test]
fn a_missing_directory_is_named_with_what_to_type() {
    let error = run_files(&spec(Path::new("/nowhere/at/all")), "x", &mut |_| true).unwrap_err();
    assert_eq!((error.kind, error.next.as_str()), (Kind::Request, "mkdir -p /nowhere/at/all"));
}

#[test]
fn more_than_the_disk_holds_is_refused_before_anything_is_made() {
    let home = tempfile::tempdir().unwrap();
    let job = FilesSpec { files: 1_000_000, file_bytes: 1 << 40, ..spec(home.path()) };
    let error = run_files(&job, "x", &mut |_| true).unwrap_err();
    assert_eq!(error.kind, Kind::Machine);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Enough for the observer to end it under way, however late it is asked.
fn long(directory: &Path) -> FilesSpec {
    FilesSpec { files: 5_000_000, file_bytes: 0, workers: 2, ..spec(directory) }
}

#[test]
fn stopping_keeps_the_measured_part_and_cleans_up() {
    let home = tempfile::tempdir().unwrap();
    let record = run_files(&long(home.path()), "x", &mut |p| p.phase == "cleanup" || p.done == 0).unwrap();
    assert!(record.interrupted);
    assert_eq!(record.phases.len(), 1);
    assert!(record.phases[0].files > 0 && !record.phases[0].complete);
    assert_eq!(record.left, None);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_no_before_a_phase_begins_keeps_it_from_touching_anything() {
    let home = tempfile::tempdir().unwrap();
    let record = run_files(&spec(home.path()), "x", &mut |p| p.phase != "stat").unwrap();
    assert!(record.interrupted);
    let files: Vec<_> = record.phases.iter().map(|p| (p.phase, p.files)).collect();
    assert_eq!(files, [(Phase::Create, 101), (Phase::Stat, 0)]);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn stopping_the_cleaning_too_names_what_is_left() {
    let home = tempfile::tempdir().unwrap();
    let record = run_files(&long(home.path()), "x", &mut |p| p.phase != "cleanup" && p.done == 0).unwrap();
    let left = record.left.expect("something is left");
    assert!(left.contains("forebay-files-x") && left.contains("interrupted"), "{left}");
}

#[test]
fn what_others_put_there_is_never_removed() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("forebay-files-x");
    let record = run_files(&long(home.path()), "x", &mut |p| {
        fs::write(root.join("d0000/precious"), "mine").unwrap();
        p.phase == "cleanup" || p.done == 0
    })
    .unwrap();
    assert_eq!(fs::read_to_string(root.join("d0000/precious")).unwrap(), "mine");
    assert!(record.left.unwrap().contains("not empty"));
}

#[test]
fn a_file_that_vanishes_ends_the_run_with_its_name() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("forebay-files-x");
    let job = FilesSpec { file_bytes: 1, cache: Cache::Allow, ..spec(home.path()) };
    let record = run_files(&job, "x", &mut |p| {
        if p.phase == "stat" && p.done == 0 {
            fs::remove_file(root.join("d0000/f00000000")).unwrap();
        }
        true
    })
    .unwrap();
    let failure = record.failure.expect("the stat phase misses the file");
    assert_eq!(failure.kind, Kind::Run);
    assert!(failure.asked.contains("stat") && failure.asked.contains("f00000000"), "{failure}");
    assert_eq!(record.left, None);
}

// promise: REC-8
#[test]
fn what_an_observer_does_is_no_cost_of_a_phase() {
    let home = tempfile::tempdir().unwrap();
    let spent = || CpuTimes::of_thread().total_s();
    let record = run_files(&spec(home.path()), "x", &mut |p: &FilesProgress| {
        // As one that is held up, but to be seen: it works.
        let from = spent();
        while p.phase == "stat" && p.done == 0 && spent() < from + 1.0 {}
        true
    });
    let record = record.unwrap();
    let stat = record.phases.iter().find(|p| p.phase == Phase::Stat).unwrap();
    let cost = stat.cpu.user_s.unwrap() + stat.cpu.system_s.unwrap();
    assert!(cost < 1.0, "stat of {} files took {cost} s of processor time", stat.files);
}

/// Runs `spec` where the system refuses threads from the first time on that the phase of this name is observed.
fn without_threads(spec: FilesSpec, from: &'static str) -> FilesRecord {
    let mut is_forbidden = false;
    let mut observe = move |progress: &FilesProgress| {
        if progress.phase == from && !std::mem::replace(&mut is_forbidden, true) {
            forbid_threads(libc::EAGAIN);
        }
        true
    };
    let run = move || run_files(&spec, "0123456789abcdef", &mut observe).unwrap();
    std::thread::spawn(run).join().expect("no panic")
}

// promise: FLT-14
#[test]
fn threads_that_the_system_refuses_end_the_run_and_nothing_is_left() {
    let home = tempfile::tempdir().unwrap();
    let record = without_threads(FilesSpec { files: 3, ..spec(home.path()) }, "create");
    let failure = record.failure.expect("nothing was measured");
    assert_eq!((failure.kind, failure.asked.as_str()), (Kind::Machine, "‹workers› 4"));
    assert!(failure.found.contains("refuses more than 0 threads"), "{failure:?}");
    assert_eq!((record.left, record.phases[0].files), (None, 0));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

// promise: FLT-14
#[test]
fn files_are_removed_by_one_thread_where_the_system_refuses_more() {
    let home = tempfile::tempdir().unwrap();
    let record = without_threads(FilesSpec { phases: vec![Phase::Create], ..spec(home.path()) }, "cleanup");
    assert_eq!((record.failure, record.left, record.phases[0].files), (None, None, 101));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}
