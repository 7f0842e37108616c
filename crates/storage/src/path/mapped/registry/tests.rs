//! The registry against a driver that only keeps books.

use super::*;
use crate::source::file::FileAccess;
use forebay_io::CudaError;
use forebay_io::{drop_cached, warm_cache};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

const WINDOW: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes pinned now, and at most so far.
#[derive(Default)]
struct Books {
    now: AtomicUsize,
    most: AtomicUsize,
    made: AtomicUsize,
    /// Pins above this many bytes are refused; 0: none are.
    limit: usize,
    /// Time that a pin takes.
    slow_by: Duration,
    /// Times at which pins were begun and made.
    times: Mutex<Vec<(Instant, Instant)>>,
    /// Called before each pin.
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct FakePinner(Arc<Books>);
struct FakePin(Arc<Books>, usize);

impl Pin for FakePin {}

impl Drop for FakePin {
    fn drop(&mut self) {
        self.0.now.fetch_sub(self.1, Ordering::SeqCst);
    }
}

impl Pinner for FakePinner {
    fn pin(&self, at: NonNull<u8>, bytes: usize) -> Result<Box<dyn Pin>, CudaError> {
        assert_eq!((at.as_ptr() as usize % 4096, bytes % 4096), (0, 0), "whole pages");
        let began = Instant::now();
        if let Some(act) = self.0.before.lock().unwrap().take() {
            act();
        }
        if self.0.slow_by > Duration::ZERO {
            std::thread::sleep(self.0.slow_by);
        }
        if self.0.limit > 0 && self.0.now.load(Ordering::SeqCst) + bytes > self.0.limit {
            return Err(CudaError::out_of_memory());
        }
        let now = self.0.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        self.0.made.fetch_add(1, Ordering::SeqCst);
        self.0.times.lock().unwrap().push((began, Instant::now()));
        Ok(Box::new(FakePin(self.0.clone(), bytes)))
    }
}

struct Bench {
    registry: Option<Registry>,
    books: Arc<Books>,
    path: PathBuf,
    _home: tempfile::TempDir,
}

impl Bench {
    fn new(windows: u64, cap_windows: u64, books: Books) -> Bench {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::File::create(&path).unwrap().write_all(&vec![7; (windows * WINDOW) as usize]).unwrap();
        let books = Arc::new(books);
        let limits =
            Limits { cap_bytes: cap_windows * WINDOW, window_bytes: WINDOW, least_bytes: 1, relays: 0 };
        let registry = Registry::new(Box::new(FakePinner(books.clone())), limits).unwrap();
        Bench { registry: Some(registry), books, path, _home: home }
    }

    fn registry(&self) -> &Registry {
        self.registry.as_ref().unwrap()
    }

    fn open(&self) -> Arc<MappedFile> {
        let target = FileTarget::open(&self.path, FileAccess { write: false, direct: false }).unwrap();
        self.registry().file(&target).unwrap()
    }

    /// Asks until it is decided, and says how.
    fn phase_of(&self, file: &MappedFile, window: u32, streams: bool) -> Phase {
        let began = Instant::now();
        let mut phase = Phase::Cold;
        while began.elapsed() < PATIENCE {
            // Asked once, unless it was evicted or dropped meanwhile: a refusal counts.
            if matches!(phase, Phase::Cold | Phase::Retiring) {
                phase = self.registry().ask(file, window, streams, None);
            }
            if matches!(phase, Phase::Ready | Phase::Declined) {
                return phase;
            }
            std::thread::sleep(Duration::from_micros(200));
            phase = file.window(window).phase();
        }
        panic!("window {window} stays undecided")
    }

    fn pinned(&self) -> usize {
        self.books.now.load(Ordering::SeqCst)
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.registry.take());
        if !std::thread::panicking() {
            assert_eq!(self.pinned(), 0, "registrations return to zero");
        }
    }
}

fn write_to(path: &Path) -> std::fs::File {
    // Kernels before 6.13 tell times apart by the tick.
    std::thread::sleep(Duration::from_millis(12));
    std::fs::OpenOptions::new().write(true).open(path).unwrap()
}

#[test]
fn windows_that_nobody_waits_for_are_registered_with_rests_between_them() {
    let took = Duration::from_millis(2);
    let bench = Bench::new(4, 8, Books { slow_by: took, ..Books::default() });
    let file = bench.open();
    (0..4).for_each(|window| bench.registry().ask_gently(&file, window));
    bench.until("all are registered", || (0..4).all(|w| file.window(w).phase() == Phase::Ready));
    let times = bench.books.times.lock().unwrap();
    for (before, after) in times.iter().zip(&times[1..]) {
        assert!(after.0 - before.1 >= took, "it rests as long as the window took");
    }
}

#[test]
fn a_reader_in_order_finds_the_next_windows_registered() {
    let bench = Bench::new(8, 64, Books::default());
    let file = bench.open();
    assert_eq!(bench.phase_of(&file, 0, true), Phase::Ready);
    bench.until("three windows ahead", || (1..=3).all(|w| file.window(w).phase() == Phase::Ready));
    assert_eq!(file.window(4).phase(), Phase::Cold);
    assert_eq!(bench.phase_of(&file, 6, false), Phase::Ready);
    assert_eq!(file.window(7).phase(), Phase::Cold);
    let report = bench.registry().report();
    assert_eq!((report.registrations, report.evictions, report.windows), (5, 0, 8));
    assert_eq!(report.registered_bytes_peak, 5 * WINDOW);
    assert!(report.register_gib_s.unwrap() > 0.0);
}

#[test]
fn a_second_open_of_the_handle_finds_what_the_first_registered() {
    let bench = Bench::new(2, 4, Books::default());
    let target = FileTarget::open(&bench.path, FileAccess { write: false, direct: false }).unwrap();
    let first = bench.registry().file(&target).unwrap();
    assert_eq!(bench.phase_of(&first, 0, true), Phase::Ready);
    let again = bench.registry().file(&target.clone()).unwrap();
    assert!(Arc::ptr_eq(&first, &again) && again.window(0).phase() == Phase::Ready);
}

// promise: ENG-12
#[test]
fn the_cap_is_never_exceeded_and_windows_in_use_stay() {
    let bench = Bench::new(40, 8, Books::default());
    let file = bench.open();
    assert_eq!(bench.phase_of(&file, 0, true), Phase::Ready);
    assert_eq!(file.window(0).hold(), Phase::Ready);
    for _ in 0..3 {
        for w in 1..40 {
            assert_eq!(bench.phase_of(&file, w, true), Phase::Ready, "window {w}");
            assert_eq!(file.window(0).phase(), Phase::Ready, "held");
        }
    }
    file.window(0).release();
    assert!(bench.books.most.load(Ordering::SeqCst) as u64 <= 8 * WINDOW);
    let report = bench.registry().report();
    assert!(report.evictions > 0 && report.eviction_batches <= report.evictions);
}

#[test]
fn a_system_that_pins_no_more_is_taken_at_its_word() {
    let bench = Bench::new(8, 64, Books { limit: 3 * WINDOW as usize, ..Books::default() });
    let file = bench.open();
    let phases: Vec<Phase> = (0..8).map(|w| bench.phase_of(&file, w, false)).collect();
    assert_eq!(phases[..3], [Phase::Ready; 3]);
    assert_eq!(phases[3], Phase::Declined);
    let report = bench.registry().report();
    assert!(report.refused >= 1 && report.refusal.unwrap().contains("memory"));
}

// promise: ENG-14
#[test]
fn what_is_not_cached_is_declined() {
    let bench = Bench::new(2, 8, Books::default());
    let file = bench.open();
    let gone = drop_cached(&file.target.file, 0, 0).unwrap();
    if gone.pages > 0 {
        eprintln!("skipped: pages of this file system stay cached ({gone:?})");
        return;
    }
    assert_eq!(bench.phase_of(&file, 1, true), Phase::Declined);
    assert_eq!((bench.pinned(), bench.registry().report().uncached), (0, 1));
    // Once it was read, it is worth another look.
    warm_cache(&file.target.file).unwrap();
    assert!(!bench.registry().pays(&file, 1, WINDOW, true));
    assert!(bench.registry().pays(&file, 1, 1, true));
    assert_eq!(bench.phase_of(&file, 1, true), Phase::Ready);
}

#[test]
fn a_changed_file_loses_its_registrations_and_says_so_once() {
    let bench = Bench::new(4, 64, Books::default());
    let file = bench.open();
    for w in 0..4 {
        assert_eq!(bench.phase_of(&file, w, false), Phase::Ready);
    }
    let before = bench.registry().current_generation(&file).unwrap();
    write_to(&bench.path).write_all_at(b"new", 5).unwrap();
    let fault = bench.registry().current_generation(&file).unwrap_err();
    assert_eq!(fault.errno, libc::ESTALE);
    assert!(fault.to_string().contains("it was written to"), "{fault}");
    assert!((0..4).all(|w| file.window(w).phase() != Phase::Ready));
    // Its size and place are the same, so it is read again, under another generation.
    assert!(bench.registry().current_generation(&file).unwrap() > before);
    bench.until("old registrations go", || bench.pinned() == 0);
    assert_eq!(bench.phase_of(&file, 2, false), Phase::Ready);
    assert_eq!(bench.registry().report().stale, 1);
}

// promise: ENG-13
#[test]
fn a_truncated_replaced_or_deleted_file_is_lost_until_it_is_whole_again() {
    let replace = |p: &Path| {
        std::fs::write(p.with_extension("new"), vec![8; 4 * WINDOW as usize]).unwrap();
        std::fs::rename(p.with_extension("new"), p).unwrap();
    };
    let truncate = |p: &Path| write_to(p).set_len(WINDOW).unwrap();
    type Act<'a> = (&'static str, &'a dyn Fn(&Path));
    let acts: [Act; 3] = [
        ("it was truncated", &truncate),
        ("another file took its place", &replace),
        ("it was deleted or renamed", &|p: &Path| std::fs::remove_file(p).unwrap()),
    ];
    for (words, act) in acts {
        let bench = Bench::new(4, 64, Books::default());
        let file = bench.open();
        assert_eq!(bench.phase_of(&file, 0, false), Phase::Ready);
        act(&bench.path);
        for _ in 0..2 {
            let fault = bench.registry().current_generation(&file).unwrap_err();
            assert!(fault.errno == libc::ESTALE && fault.to_string().contains(words), "{fault}");
        }
        assert!(file.is_lost());
        assert_eq!(bench.phase_of(&file, 0, false), Phase::Declined);
        bench.until("old registrations go", || bench.pinned() == 0);
    }
    let bench = Bench::new(4, 64, Books::default());
    let file = bench.open();
    truncate(&bench.path);
    bench.registry().current_generation(&file).unwrap_err();
    write_to(&bench.path).set_len(4 * WINDOW).unwrap();
    bench.registry().current_generation(&file).unwrap();
    assert!(!file.is_lost());
}

// promise: ENG-13
#[test]
fn a_registration_that_a_change_overtakes_is_never_ready() {
    let books = Books::default();
    let bench = Bench::new(4, 64, books);
    let file = bench.open();
    let path = bench.path.clone();
    let act = move || write_to(&path).write_all_at(b"new", 5).unwrap();
    *bench.books.before.lock().unwrap() = Some(Box::new(act));
    assert_eq!(bench.phase_of(&file, 0, false), Phase::Declined);
    assert_eq!(bench.pinned(), 0);
    assert_eq!(bench.registry().report().stale, 1);
    assert_eq!(bench.phase_of(&file, 0, false), Phase::Ready);
}

// promise: ENG-12
#[test]
fn a_thousand_readers_share_a_small_cap() {
    let bench = Bench::new(64, 16, Books::default());
    let file = bench.open();
    let read = |reader: u32| {
        for i in 0..4 {
            let window = (reader * 7 + i * 3) % 64;
            if bench.registry().ask(&file, window, true, None) == Phase::Retiring {
                continue;
            }
            let w = file.window(window);
            let (began, mut rest) = (Instant::now(), Duration::from_micros(300));
            w.hold();
            while w.phase() == Phase::Pending {
                assert!(began.elapsed() < PATIENCE, "reader {reader} waits for window {window}");
                std::thread::sleep(rest);
                // A thousand that all asked so often would keep a busy machine from anything else.
                rest = (2 * rest).min(Duration::from_millis(40));
            }
            if w.phase() == Phase::Ready {
                let _turn = bench.registry().turns().enter();
                std::hint::black_box(file.address(u64::from(window) * WINDOW));
            }
            w.release();
        }
    };
    std::thread::scope(|scope| {
        for reader in 0..1000 {
            let read = &read;
            std::thread::Builder::new()
                .stack_size(128 << 10)
                .spawn_scoped(scope, move || read(reader))
                .unwrap();
        }
    });
    assert!((0..64).all(|w| file.window(w).users() == 0));
    assert!(bench.books.most.load(Ordering::SeqCst) as u64 <= 16 * WINDOW);
    assert!(bench.books.made.load(Ordering::SeqCst) > 0);
}
