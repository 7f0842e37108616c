//! A process that runs many jobs holds no more after the last than after the first.

use super::runs::{file, go, home, job};
use super::scenario::Scenario;
use forebay_bench::run;
use forebay_io::gpu::cuda::Device;
use forebay_model::job::{JobSpec, PathKind};
use forebay_storage::path::legal;
use forebay_storage::source::Made;

/// Resources that a process may leak: open descriptors, mappings, threads, GPU memory.
#[derive(Debug)]
struct Held {
    descriptors: Vec<String>,
    threads: usize,
    gpu_bytes_used: u64,
    locked_kib: u64,
}

fn held() -> Held {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    let (free, total) = Device::open(0).unwrap().memory_info().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| std::fs::read_link(fd.unwrap().path()));
    let mut descriptors: Vec<String> = open.flatten().map(|to| to.to_string_lossy().into_owned()).collect();
    descriptors.sort();
    Held {
        descriptors,
        threads: count("/proc/self/task"),
        gpu_bytes_used: total - free,
        locked_kib: locked.trim().trim_end_matches(" kB").parse().unwrap(),
    }
}

impl Held {
    /// The driver's own threads and memory come and go: fewer than before is no leak.
    fn is_within(&self, before: &Held) -> bool {
        self.descriptors.len() <= before.descriptors.len()
            && self.threads <= before.threads
            && self.gpu_bytes_used <= before.gpu_bytes_used
            && self.locked_kib <= before.locked_kib
    }
}

/// Threads end a moment after what they did, and on a real GPU other tests hold memory meanwhile.
fn assert_no_more_than(first: &Held, what: PathKind) {
    let mut now = held();
    for _ in 0..3000 {
        if now.is_within(first) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        now = held();
    }
    panic!("{what:?}: {now:?} after, {first:?} before");
}

const WARM_UPS: u32 = 4;

fn paths() -> impl Iterator<Item = PathKind> {
    let all = [PathKind::Bounce, PathKind::Mapped, PathKind::Gds];
    all.into_iter().filter(|path| legal(*path, &"a file", &Made::file()).is_ok())
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

// promise: TRA-37
#[test]
#[ignore = "ten seconds of processor time: make test-long, make test-gpu"]
fn emulated_runs_give_back_all_that_they_took() {
    Scenario::new("leaks::emulated_runs_give_back_all_that_they_took").run(|| {
        for path in paths() {
            let once = || super::emulate_ways::once(path);
            // A real driver opens some descriptors when it first has so many threads at once, and keeps them.
            (0..WARM_UPS).for_each(|_| once());
            let first = held();
            (0..2 * WARM_UPS).for_each(|_| once());
            assert_no_more_than(&first, path);
        }
    });
}

// promise: FLT-20
#[test]
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
                let outcome = run(&wanted, vec!["test".into()], &mut super::runs::Quiet);
                failed += usize::from(!outcome.is_ok_and(|o| o.failure.is_none()));
            }
            assert_no_more_than(&first, path);
        }
        assert!(failed >= 3, "only {failed} runs failed");
    });
}
