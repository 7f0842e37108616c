//! Files that change or go while emulated runs have them: the run ends and names them, or leaves them out.

use super::*;
use forebay_model::training::OnError;

/// Change of a file in use, and its description.
type Act = (&'static str, fn(&Path));

fn truncate(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(MIB as u64 + 1).unwrap();
}

fn replace(path: &Path) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, content(9, 3 * MIB)).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

fn overwrite(path: &Path) {
    use std::os::unix::fs::FileExt;
    File::options().write(true).open(path).unwrap().write_all_at(b"other", 77).unwrap();
}

const ACTS: [Act; 4] = [
    ("it was truncated", truncate),
    ("another file took its place", replace),
    ("it was written to", overwrite),
    ("it was deleted or renamed", |path| std::fs::remove_file(path).unwrap()),
];

// promise: TRA-37
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn a_file_that_changes_under_its_registration_ends_the_run_and_is_named() {
    let name = "emulate_ways::changes::a_file_that_changes_under_its_registration_ends_the_run_and_is_named";
    Scenario::new(name).settings("hash=0").run(|| {
        for (says, act) in ACTS {
            let home = files(&[3 * MIB; 4]);
            let victim = path_of(home.path(), 2);
            let spec =
                EmulateSpec { cache: Cache::Warm, epochs: 5000, ..spec(home.path(), PathKind::Mapped) };
            let mut is_done = false;
            let outcome = watched(&spec, |progress| {
                if progress.epoch > 2 && !std::mem::replace(&mut is_done, progress.epoch > 2) {
                    act(&victim);
                }
                false
            });
            let outcome = outcome.unwrap();
            assert!(is_done && of_ways(&outcome.record.path) == outcome.record.result.bytes);
            let error = outcome.failure.unwrap();
            assert!(error.asked.contains("002.raw") && error.found.contains(says), "{says}: {error}");
            assert_eq!(error.kind, Kind::Run);
            assert!(outcome.record.path.mapped.unwrap().stale >= 1);
        }
    });
}

// promise: TRA-37
#[test]
fn a_file_that_changes_is_left_out_where_that_was_asked_for_and_found_again() {
    let name =
        "emulate_ways::changes::a_file_that_changes_is_left_out_where_that_was_asked_for_and_found_again";
    Scenario::new(name).settings("hash=0").run(|| {
        let home = files(&[3 * MIB; 4]);
        let victim = path_of(home.path(), 1);
        let spec = EmulateSpec {
            cache: Cache::Warm,
            epochs: 5000,
            on_error: OnError::Skip,
            ..spec(home.path(), PathKind::Mapped)
        };
        let mut replaced_in = None;
        let outcome = watched(&spec, |progress| {
            match replaced_in {
                None if progress.epoch > 2 => {
                    replace(&victim);
                    replaced_in = Some(progress.epoch);
                }
                _ => {}
            }
            replaced_in.is_some_and(|epoch| progress.epoch > epoch + 4)
        });
        let outcome = outcome.unwrap();
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        let skipped = outcome.record.training.unwrap().skipped;
        // Once: whoever opened it next found the new one.
        assert_eq!((skipped.count, skipped.examples.len()), (1, 1), "{skipped:?}");
        assert!(skipped.examples[0].contains("001.raw") && skipped.examples[0].contains("took its place"));
    });
}

// promise: TRA-37
#[test]
fn a_file_that_ends_early_under_cufile_ends_the_run_and_is_named() {
    let name = "emulate_ways::changes::a_file_that_ends_early_under_cufile_ends_the_run_and_is_named";
    Scenario::new(name).run(|| {
        let home = files(&[3 * MIB; 4]);
        let victim = path_of(home.path(), 2);
        let spec = EmulateSpec { epochs: 5000, ..spec(home.path(), PathKind::Gds) };
        let mut is_done = false;
        let outcome = watched(&spec, |progress| {
            if progress.epoch > 2 && !std::mem::replace(&mut is_done, true) {
                std::fs::remove_file(&victim).unwrap();
            }
            false
        });
        let error = failure(outcome);
        assert!(error.asked.contains("002.raw") && error.found.contains("gone"), "{error}");
    });
}
