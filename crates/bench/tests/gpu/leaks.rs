//! A process that runs many jobs holds no more after the last than after the first.

use super::runs::{file, go, home, job};
use forebay_bench::run_job;
use forebay_model::job::{JobSpec, PathKind};
use forebay_rigs::gpu::Scenario;
use forebay_rigs::leaks::{assert_no_more_than, held};
use forebay_storage::{Paths, SourceMedium};

fn paths() -> impl Iterator<Item = PathKind> {
    let all = [PathKind::Bounce, PathKind::Mapped, PathKind::Gds];
    all.into_iter().filter(|path| Paths::check(*path, &"a file", &SourceMedium::file()).is_ok())
}

// promise: FLT-20
#[test]
fn runs_give_back_all_that_they_took() {
    Scenario::new("leaks::runs_give_back_all_that_they_took").run(|| {
        let home = home();
        let source = file(&home, "f", 8 << 20);
        for path in paths() {
            let wanted = JobSpec { path, workers: 2, verify: true, allow_compat: true, ..job(&source) };
            go(&wanted);
            let first = held();
            (0..4).for_each(|_| drop(go(&wanted)));
            assert_no_more_than(&first, path);
        }
    });
}

// promise: FLT-20
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn runs_that_fail_give_back_all_that_they_took() {
    let settings = "fail=cuStreamCreate:9:2,fail=cuMemAlloc_v2:9:2,fail=cuMemHostRegister_v2:9:2,fail=cuEventCreate:40:2";
    Scenario::new("leaks::runs_that_fail_give_back_all_that_they_took").settings(settings).run(|| {
        let home = home();
        let source = file(&home, "f", 4 << 20);
        let mut failed = 0;
        for path in paths() {
            let wanted = JobSpec { path, workers: 2, allow_compat: true, ..job(&source) };
            go(&wanted);
            let first = held();
            // Some of these fail, whichever meets the ninth of something.
            for _ in 0..12 {
                let outcome = run_job(&wanted, vec!["test".into()], &mut super::runs::Quiet);
                failed += usize::from(!outcome.is_ok_and(|o| o.failure.is_none()));
            }
            assert_no_more_than(&first, path);
        }
        assert!(failed >= 3, "only {failed} runs failed");
    });
}
