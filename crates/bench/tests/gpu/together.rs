//! Short reads that are one I/O: what they bring, and what is counted.

use super::runs::{file, go, home, job};
use forebay_io::{Arena, CudaDevice, DeviceMemory, Done, Io, Op, Queue, Reactor, Via};
use forebay_model::job::{Cache, Engine, JobSpec, Op as JobOp, Pages, PathKind};
use forebay_rigs::gpu::Scenario;
use forebay_storage::{
    Copiers, Destination, DevicePinner, FileAccess, FileTarget, MappedLimits, MappedRegistry, OpenFileSource,
    Paths, QueueNeeds, Target, WorkerContext,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const WINDOW: u64 = 64 << 10;
const ROW: usize = 512;
const ROWS: usize = 96;
/// Length at which a launch takes a row in parts, each of which lies in two windows or more.
const LONG_ROW: usize = 128 << 10;
const LONG_ROWS: usize = 6;
const LAUNCH: &str = "cuLaunchKernel";

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

fn registry(gpu: &Arc<CudaDevice>, cap_bytes: u64) -> Arc<MappedRegistry> {
    let limits = MappedLimits { cap_bytes, window_bytes: WINDOW, least_bytes: 1, relays: 0 };
    Arc::new(MappedRegistry::new(Box::new(DevicePinner(gpu.clone())), limits).unwrap())
}

/// A queue of one I/O of rows into a GPU, as a worker has it.
struct Bench {
    // Field order is drop order.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    gpu: Arc<CudaDevice>,
    slot: DeviceMemory,
    _pin: forebay_io::PinnedMemory,
    _beside: Arena,
    row: usize,
    rows: usize,
}

impl Bench {
    fn open(kind: PathKind, source: &Path, cap_bytes: u64) -> Bench {
        Bench::of_rows((ROW, ROWS), kind, source, cap_bytes)
    }

    fn of_rows((row, rows): (usize, usize), kind: PathKind, source: &Path, cap_bytes: u64) -> Bench {
        let gpu = CudaDevice::open(0).unwrap();
        let slot = gpu.slots(1, row * rows).unwrap();
        let (count, each) = if kind == PathKind::Mapped { (8, 4096) } else { (1, row * rows) };
        let beside = Arena::new(count, each, Pages::Small).unwrap();
        let pin = gpu.pin(&beside).unwrap();
        let target = FileTarget::open(source, FileAccess { write: false, direct: false }).unwrap();
        let target = Target::new("rows", BYTES as u64, OpenFileSource { target, engine: Engine::Map });
        let path = Paths::by_kind(kind);
        assert!(path.takes_rows(&target));
        let needs = QueueNeeds::new(1, (row * rows) as u64);
        let copiers = Copiers::new(Some(&gpu), needs).with_rows(rows as u32, row as u64);
        let destination = Destination::on(vec![gpu.clone()]).with(registry(&gpu, cap_bytes));
        let job = JobSpec { path: kind, batch: Some(rows as u32), ..JobSpec::default() };
        let context = WorkerContext {
            job: &job,
            destination: &destination,
            device: Some(&gpu),
            slots: Some(&slot),
            beside: Some(&beside),
            copiers: &copiers,
            targets: &[&target],
            needs,
            at_work: 1,
            layered: false,
        };
        let mut reactor = Reactor::without_ring();
        let factory = path.equip(&context, &mut reactor).unwrap();
        let queue = factory.queue(&target, &|queue| queue, &context, &mut reactor).unwrap();
        assert!(queue.takes_rows());
        Bench { queue, reactor, gpu, slot, _pin: pin, _beside: beside, row, rows }
    }

    /// Fetches rows by one I/O, and returns its end and the bytes of it that were staged.
    fn fetch(&mut self, rows: &[u64]) -> (Done, u32) {
        self.gpu.write(self.slot.address(), &vec![0xEE; self.row * self.rows]).unwrap();
        let len = (self.row * rows.len()) as u32;
        let io = Io { tag: 0, op: Op::Read, offset: 0, len, mem: self.slot.slot(0) };
        self.queue.push_rows(io, rows, &mut self.reactor).unwrap();
        assert!(self.queue.push_rows(io, rows, &mut self.reactor).is_err(), "it has one tag");
        let (until, mut done) = (Instant::now() + PATIENCE, Vec::new());
        while done.is_empty() {
            assert!(Instant::now() < until, "it doesn't end");
            self.queue.submit(&mut self.reactor);
            self.queue.reap(&mut self.reactor, &mut done);
            if done.is_empty() {
                self.reactor.wait(1, Instant::now() + Duration::from_millis(1), Duration::ZERO);
            }
        }
        assert_eq!((done.len(), self.queue.in_flight()), (1, 0));
        (done.remove(0), self.queue.staged_of(0))
    }

    /// Fetches rows, other ones each time, until as many bytes were staged as is wanted; every byte is right each time.
    fn fetch_until(&mut self, content: &[u8], wanted: impl Fn(u32) -> bool) {
        let until = Instant::now() + PATIENCE;
        for seed in 1.. {
            let rows = drawn_of(self.row, self.rows, seed);
            let all = self.row * self.rows;
            let (done, staged) = self.fetch(&rows);
            assert_eq!((done.result, done.via), (Ok(all as u32), Via::Mapped));
            assert!(self.held(all) == expected_of(self.row, content, &rows), "{staged} bytes staged");
            if wanted(staged) {
                return;
            }
            assert!(Instant::now() < until, "{staged} bytes are staged still");
        }
    }

    fn held(&self, bytes: usize) -> Vec<u8> {
        let mut held = vec![0; bytes];
        self.gpu.read_back(self.slot.address(), &mut held).unwrap();
        held
    }
}

/// Rows anywhere, some of them across the edge of a window.
fn drawn(seed: u64) -> Vec<u64> {
    drawn_of(ROW, ROWS, seed)
}

fn drawn_of(row: usize, rows: usize, seed: u64) -> Vec<u64> {
    let places = (BYTES - row) as u64;
    let any = |i: u64| (seed + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) % places;
    let edges = (1..9).map(|window| window * WINDOW - ROW as u64 / 2).filter(|at| *at < places);
    edges.chain((0..).map(any)).take(rows).collect()
}

fn expected(content: &[u8], rows: &[u64]) -> Vec<u8> {
    expected_of(ROW, content, rows)
}

fn expected_of(row: usize, content: &[u8], rows: &[u64]) -> Vec<u8> {
    rows.iter().flat_map(|at| &content[*at as usize..][..row]).copied().collect()
}

// promise: GPU-8
#[test]
fn rows_come_whole_and_in_order_whatever_is_registered() {
    Scenario::new("together::rows_come_whole_and_in_order_whatever_is_registered").run(|| {
        let home = home();
        let source = file(&home, "f", BYTES as u64);
        let content = std::fs::read(&source).unwrap();
        let all = (ROW * ROWS) as u32;
        let mut bounce = Bench::open(PathKind::Bounce, &source, 0);
        let (done, staged) = bounce.fetch(&drawn(1));
        assert_eq!((done.result, done.via, staged), (Ok(all), Via::Staged, 0));
        assert!(bounce.held(ROW * ROWS) == expected(&content, &drawn(1)));
        let mut mapped = Bench::open(PathKind::Mapped, &source, 2 * BYTES as u64);
        mapped.fetch_until(&content, |staged| staged == 0);
        // Fewer than there is room for.
        let (done, _) = mapped.fetch(&[4096, 0, 8]);
        assert_eq!(done.result, Ok(3 * ROW as u32));
        assert!(mapped.held(3 * ROW) == expected(&content, &[4096, 0, 8]));
    });
}

#[test]
fn long_rows_come_in_parts() {
    Scenario::new("together::long_rows_come_in_parts").run(|| long_rows(|staged| staged == 0));
}

#[test]
fn parts_of_long_rows_outside_of_what_is_registered_come_another_way() {
    let name = "together::parts_of_long_rows_outside_of_what_is_registered_come_another_way";
    let some = |staged| staged > 0 && staged < (LONG_ROW * LONG_ROWS) as u32;
    Scenario::new(name).settings("pin=4600k").run(|| long_rows(some));
}

fn long_rows(wanted: impl Fn(u32) -> bool) {
    let home = home();
    let source = file(&home, "f", BYTES as u64);
    let content = std::fs::read(&source).unwrap();
    let mut mapped = Bench::of_rows((LONG_ROW, LONG_ROWS), PathKind::Mapped, &source, 2 * BYTES as u64);
    mapped.fetch_until(&content, wanted);
}

// promise: GPU-8
#[test]
fn rows_outside_of_what_is_registered_come_another_way() {
    // Room for the lists and the slots, 2 MiB each, and for half of the windows.
    let name = "together::rows_outside_of_what_is_registered_come_another_way";
    Scenario::new(name).settings("pin=4600k").run(|| {
        let home = home();
        let source = file(&home, "f", BYTES as u64);
        let content = std::fs::read(&source).unwrap();
        let mut mapped = Bench::open(PathKind::Mapped, &source, 2 * BYTES as u64);
        mapped.fetch_until(&content, |staged| staged > 0 && staged < (ROW * ROWS) as u32);
    });
}

// promise: ENG-13
#[test]
fn rows_of_a_file_that_was_cut_fail() {
    Scenario::new("together::rows_of_a_file_that_was_cut_fail").run(|| {
        let home = home();
        for kind in [PathKind::Bounce, PathKind::Mapped] {
            let source = file(&home, &format!("{kind:?}"), BYTES as u64);
            let mut bench = Bench::open(kind, &source, 2 * BYTES as u64);
            let (until, mut staged) = (Instant::now() + PATIENCE, 1);
            while staged > 0 {
                assert!(Instant::now() < until, "{staged} bytes are staged still");
                staged = bench.fetch(&drawn(7)).1;
            }
            std::fs::OpenOptions::new().write(true).open(&source).unwrap().set_len(4096).unwrap();
            let fault = bench.fetch(&drawn(7)).0.result.unwrap_err();
            assert!(fault.to_string().contains("changed while it was read"), "{kind:?}: {fault}");
        }
    });
}

// promise: BEN-25
#[test]
fn a_job_counts_each_row_of_what_came_together() {
    let books = Scenario::new("together::a_job_counts_each_row_of_what_came_together").run(|| {
        let home = home();
        let source = file(&home, "f", BYTES as u64);
        for (path, engine) in [(PathKind::Mapped, Engine::Auto), (PathKind::Bounce, Engine::Map)] {
            let wanted = JobSpec {
                path,
                engine,
                op: JobOp::RandRead,
                io_bytes: ROW as u64,
                batch: Some(48),
                depth: 96,
                cache: Cache::Warm,
                ..job(&source)
            };
            let record = go(&wanted);
            let (result, batch) = (&record.result, record.result.batch.as_ref().unwrap());
            // 2,048 rows: 42 batches, and 32 rows that are none.
            let counted = (result.ios, result.bytes, batch.ios, batch.count);
            assert_eq!(counted, (2048, BYTES as u64, 48, 42), "{path:?}");
            assert_eq!(record.path.mapped_bytes + record.path.staged_bytes, BYTES as u64, "{path:?}");
            assert_eq!(result.targets.iter().map(|target| target.ios).sum::<u64>(), 2048, "{path:?}");
            let short = go(&JobSpec { passes: None, limit_ios: Some(100), ..wanted });
            assert_eq!((short.result.ios, short.result.bytes), (100, 100 * ROW as u64), "{path:?}");
        }
    });
    if let Some(books) = books {
        assert!(books.calls(LAUNCH) <= 2 * 46, "{} launches for 88 batches", books.calls(LAUNCH));
    }
}
