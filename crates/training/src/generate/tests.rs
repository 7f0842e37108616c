use super::manifest::Manifest;
use super::spec::tests::spec;
use super::*;
use forebay_io::RingOptions;
use forebay_rigs::seccomp::{forbid_entering, forbid_threads};
use std::path::PathBuf;

fn run_all(spec: &DatagenSpec) -> Result<DatagenRecord, Error> {
    generate_data(spec, &mut |_| true)
}

fn in_folder(format: &str, files: u32, dir: &Path) -> DatagenSpec {
    DatagenSpec { data: dir.display().to_string(), check: true, ..spec(format, files) }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    found.sort();
    found
}

// promise: EMU-22
#[test]
fn each_format_is_made_and_checked() {
    for row in crate::format::FORMATS {
        let dir = tempfile::tempdir().expect("a folder");
        let mut spec = in_folder(row.name, 5, dir.path());
        if matches!(row.name, "jpeg" | "png") {
            spec.samples_per_file = 1;
        }
        let record = run_all(&spec).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        assert_eq!((record.files_made, record.files_found), (5, 0), "{}", row.name);
        assert_eq!(record.check.expect("checked").bytes, record.bytes);
        let lengths = files_below(&dir.path().join("train"))
            .iter()
            .map(|f| f.metadata().expect("a file").len())
            .sum::<u64>();
        assert!(lengths >= record.bytes, "{}", row.name);
        assert!(dir.path().join(".forebay-dataset.json").exists());
    }
}

#[test]
fn what_is_finished_stays_and_the_rest_is_made_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = in_folder("npz", 6, dir.path());
    run_all(&spec).expect("all");
    let files = files_below(&dir.path().join("train"));
    let before: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).expect("a file")).collect();
    std::fs::remove_file(&files[2]).expect("removed");
    std::fs::write(dir.path().join("train/.img_2_of_6.npz.part"), "half").expect("written");
    let refused = run_all(&spec).expect_err("nothing says that it is ours");
    assert!(refused.asked.contains(".img_2_of_6.npz.part"), "{refused}");
    // As a run leaves it that was killed.
    let manifest = dir.path().join(".forebay-dataset.json");
    std::fs::rename(&manifest, manifest.with_extension("json.part")).expect("renamed");
    let record = run_all(&spec).expect("again");
    assert_eq!((record.files_made, record.files_found), (1, 5));
    let after: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).expect("a file")).collect();
    assert!(before == after, "the same bytes");
    assert_eq!(files_below(&dir.path().join("train")), files);
}

#[test]
fn an_interrupted_run_keeps_what_it_finished() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut spec = in_folder("tfrecord", 40, dir.path());
    spec.dimensions = vec![[512, 512]];
    (spec.workers, spec.check) = (Some(1), false);
    let error = generate_data(&spec, &mut |p| p.files == 0).expect_err("interrupted");
    assert!(error.found.contains("of 40 files are finished"), "{error}");
    assert!(!dir.path().join(".forebay-dataset.json").exists());
    let record = run_all(&spec).expect("the rest");
    assert!(record.files_found > 0 && record.files_found + record.files_made == 40);
}

// promise: EMU-23
#[test]
fn another_data_set_in_the_folder_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = in_folder("npz", 3, dir.path());
    run_all(&first).expect("all");
    type Change = fn(&mut DatagenSpec);
    let changes: [(Change, &str); 4] = [
        (|s| s.format = "tfrecord".into(), "format npz instead of tfrecord"),
        (|s| s.seed = 8, "seed 7 instead of 8"),
        (
            |s| {
                s.files = 2;
                s.dimensions.pop();
            },
            "files 3 instead of 2",
        ),
        (|s| s.samples_per_file = 3, "samples per file 2 instead of 3"),
    ];
    for (change, words) in changes {
        let mut spec = first.clone();
        change(&mut spec);
        let error = run_all(&spec).expect_err("another one");
        assert!(error.kind == forebay_model::Kind::Request && error.found.contains(words), "{error}");
    }
    std::fs::write(dir.path().join("train/other.npz"), "x").expect("written");
    assert!(run_all(&first).expect_err("a stranger").found.contains("would be taken for part"));
}

#[test]
fn a_damaged_file_is_found_and_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = in_folder("tfrecord", 3, dir.path());
    run_all(&spec).expect("all");
    let path = dir.path().join("train/img_1_of_3.tfrecord");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[3000] ^= 4;
    std::fs::write(&path, bytes).expect("written");
    let error = run_all(&spec).expect_err("damage");
    assert_eq!(error.kind, forebay_model::Kind::Check);
    assert!(error.asked.contains("img_1_of_3") && error.found.contains("masked CRC32C"), "{error}");
}

#[test]
fn more_than_fits_is_refused_and_makes_no_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    for below in ["", "new", "a/b"] {
        let data = dir.path().join(below);
        let mut spec = in_folder("npz", 1 << 20, &data);
        (spec.dimensions, spec.samples_per_file) = (vec![[1 << 20, 1 << 20]], 1);
        let error = run_all(&spec).expect_err("too much");
        assert_eq!(error.kind, forebay_model::Kind::Machine, "{error}");
        assert!(error.asked.contains("1048576 files, 1024.0 PiB in all"), "{error}");
        assert!(error.found.contains("iB are free there"), "{error}");
        assert!(files_below(dir.path()).is_empty(), "{below}");
    }
}

/// Relative names end in no folder of theirs, whose file system could be asked.
#[test]
fn more_than_fits_below_a_relative_name_is_refused() {
    let name = format!("forebay-data-set-{}", std::process::id());
    for dry_run in [true, false] {
        let mut spec = DatagenSpec { dry_run, ..in_folder("npz", 1 << 20, Path::new(&name)) };
        (spec.dimensions, spec.samples_per_file) = (vec![[1 << 20, 1 << 20]], 1);
        assert_eq!(run_all(&spec).expect_err("too much").kind, forebay_model::Kind::Machine);
        assert!(!Path::new(&name).exists());
    }
}

#[test]
fn another_data_set_is_refused_and_nothing_is_added_to_it() {
    let dir = tempfile::tempdir().expect("a folder");
    run_all(&in_folder("npz", 3, dir.path())).expect("the first");
    std::fs::remove_dir(dir.path().join("valid")).expect("an empty folder");
    let before = files_below(dir.path());
    let other = DatagenSpec { subfolders: 4, ..in_folder("npz", 5, dir.path()) };
    assert_eq!(run_all(&other).expect_err("another").kind, forebay_model::Kind::Request);
    assert_eq!(files_below(dir.path()), before);
    assert_eq!(files_below(&dir.path().join("train")).len(), 3);
}

#[test]
fn a_folder_below_a_file_is_refused_as_one() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for dry_run in [true, false] {
        let spec = DatagenSpec { dry_run, ..in_folder("npz", 3, &file.path().join("data")) };
        let error = run_all(&spec).expect_err("no folder");
        assert!(error.kind == forebay_model::Kind::Request && error.found.contains("in the way"), "{error}");
    }
}

// promise: EMU-25
#[test]
fn a_packed_data_set_has_its_manifest_first() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("disk");
    std::fs::File::create(&path).and_then(|f| f.set_len(4 << 20)).expect("a file");
    let mut spec = in_folder("npz", 7, &path);
    assert!(run_all(&spec).expect_err("not named").next.contains("‹overwrite›"));
    spec.overwrite = vec![path.display().to_string()];
    let record = run_all(&spec).expect("packed");
    assert_eq!(record.check.expect("checked").files, 7);
    let disk = std::fs::read(&path).expect("a file");
    let end = disk.iter().position(|byte| *byte == 0).expect("a NUL");
    let manifest: Manifest = serde_json::from_slice(&disk[..end]).expect("a manifest");
    assert_eq!((manifest.data_begin, manifest.files), (1 << 20, 7));
    let first = &disk[1 << 20..][..manifest.file_bytes[0] as usize];
    assert!(first.starts_with(b"PK\x03\x04"));
    spec.files = 1000;
    spec.dimensions = vec![[100, 100]];
    assert_eq!(run_all(&spec).expect_err("too much").kind, forebay_model::Kind::Machine);
}

#[test]
fn a_dry_run_makes_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = DatagenSpec { dry_run: true, ..in_folder("npz", 4, &dir.path().join("data")) };
    let record = run_all(&spec).expect("a plan");
    assert_eq!((record.files, record.files_made), (4, 0));
    assert!(files_below(dir.path()).is_empty());
}

/// As by a filter of system calls that is loaded meanwhile: nothing that is under way is ever heard of.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_ends_the_work_with_that() {
    let run = || {
        let options = RingOptions { depth: 2, ..RingOptions::default() };
        // Where the kernel has no ring there is none to be refused.
        let Ok(reactor) = Reactor::with_ring(options) else { return };
        let io_bytes = 64 << 10;
        let mut pump = Pump::new(reactor, 2, io_bytes).expect("two slots");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let access = FileAccess { write: true, direct: false };
        let target = FileTarget::open(file.path(), access).expect("it is ours");
        let needs = QueueNeeds::new(2, io_bytes);
        let queue = target.queue(Engine::Uring, needs, &mut pump.reactor).expect("a queue of the ring");
        pump.take_on(queue);
        let shared = Shared::default();
        pump.put(&[7; 128 << 10], &shared).expect("nothing is forbidden yet");
        forbid_entering(libc::EPERM);
        let refused = pump.put(&[7; 4 << 10], &shared).expect_err("it may not be entered");
        assert!(
            matches!(&refused, Halt::Refused(why) if why.raw_os_error() == Some(libc::EPERM)),
            "{refused:?}"
        );
        pump.let_go();
    };
    std::thread::spawn(run).join().expect("no panic");
}

// promise: FLT-14
#[test]
fn threads_that_the_system_refuses_are_an_error_and_no_file_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let spec = DatagenSpec { workers: Some(3), ..in_folder("npz", 7, dir.path()) };
    let run = move || {
        forbid_threads(libc::EAGAIN);
        run_all(&spec)
    };
    let error = std::thread::spawn(run).join().expect("no panic").expect_err("it has no thread");
    assert_eq!((error.kind, error.asked.as_str()), (forebay_model::Kind::Machine, "‹workers› 3"));
    assert!(error.found.contains("refuses more than 0 threads"), "{error:?}");
    assert!(error.next.contains("fewer ‹workers›; ulimit -u"), "{error:?}");
    assert_eq!(files_below(&dir.path().join("train")), [] as [PathBuf; 0]);
}
