//! The thread pool on host memory; what needs a GPU's driver is tested through Python.

use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// Bytes that repeat after a prime number of them, so that no page is like another.
fn content(bytes: usize) -> Vec<u8> {
    static PERIOD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..65_521u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    });
    let mut content = PERIOD.repeat(bytes.div_ceil(PERIOD.len()));
    content.truncate(bytes);
    content
}

fn written(dir: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = dir.join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&content(bytes)).unwrap();
    file.sync_all().unwrap();
    path
}

fn open(path: &Path, direct: Option<bool>) -> Arc<Reader> {
    Arc::new(Reader::open(path, Opening { direct, ..Opening::default() }).unwrap())
}

/// Reads (offset, bytes) pairs, each to its own place in one buffer with a gap before it.
fn read(
    reader: &Arc<Reader>,
    ranges: &[(u64, usize)],
) -> Result<(Vec<Vec<u8>>, Report), forebay_model::Error> {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|r| vec![0xee; r.1]).collect();
    let asked: Vec<Range> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|(&(offset, bytes), to)| Range {
            file: 0,
            offset,
            bytes,
            to: Address::Host(to.as_mut_ptr() as u64),
        })
        .collect();
    let request = Request::of_file(reader, &asked, Vec::new(), threads())?;
    submit(&request)?;
    request.wait(None);
    request.outcome().map(|report| (buffers, report))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    // promise: PYT-2
    #[test]
    fn every_way_of_reading_gives_the_same_bytes(
        ranges in prop::collection::vec((0u64..3_000_000, 0usize..1_500_000), 1..30),
        direct in prop::option::of(any::<bool>()), cold: bool,
    ) {
        let dir = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let bytes = 4_500_123;
        let path = written(dir.path(), "a", bytes);
        let reader = match Reader::open(&path, Opening { direct, ..Opening::default() }) {
            Ok(reader) => Arc::new(reader),
            // This file system takes no O_DIRECT.
            Err(e) => { prop_assert!(direct == Some(true), "{}", e); return Ok(()); }
        };
        if cold {
            forebay_io::drop_cached(&std::fs::File::open(&path).unwrap(), 0, 0).unwrap();
        }
        let all = content(bytes);
        let (buffers, report) = read(&reader, &ranges).unwrap();
        for ((offset, bytes), got) in ranges.iter().zip(&buffers) {
            prop_assert!(got[..] == all[*offset as usize..*offset as usize + bytes], "{} bytes from {}", bytes, offset);
        }
        prop_assert_eq!(report.bytes, report.staged_bytes + report.mapped_bytes + report.direct_bytes);
        if direct == Some(true) {
            prop_assert_eq!(report.uncached_bytes, report.bytes);
        }
        if direct == Some(false) {
            prop_assert_eq!(report.uncached_bytes, 0);
        }
    }
}

#[test]
fn a_range_beyond_the_end_is_refused_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open(&written(dir.path(), "a", 1000), None);
    let error = read(&reader, &[(0, 10), (990, 11)]).unwrap_err();
    assert_eq!(error.kind, forebay_model::Kind::Request);
    assert!(error.found.contains("1000 bytes"), "{error}");
    assert!(read(&reader, &[(u64::MAX, 1)]).is_err());
    assert_eq!(read(&reader, &[(1000, 0)]).unwrap().1.bytes, 0);
}

// promise: PYT-5
#[test]
fn a_file_that_is_cut_or_written_to_between_the_stamps_fails_the_read() {
    let dir = tempfile::tempdir().unwrap();
    for cut in [true, false] {
        let path = written(dir.path(), "a", 9 << 20);
        let reader = open(&path, None);
        let mut buffer = vec![0u8; 9 << 20];
        let to = Address::Host(buffer.as_mut_ptr() as u64);
        let request =
            Request::of_file(&reader, &[Range { file: 0, offset: 0, bytes: 9 << 20, to }], Vec::new(), 2)
                .unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        if cut {
            file.set_len(5 << 20).unwrap();
        } else {
            // Time stamps of some kernels tick every few milliseconds.
            std::thread::sleep(std::time::Duration::from_millis(20));
            (&file).write_all(b"new").unwrap();
        }
        submit(&request).unwrap();
        request.wait(None);
        let error = request.outcome().unwrap_err();
        assert_eq!(error.kind, forebay_model::Kind::Run);
        assert!(error.found.contains("while it was read"), "{error}");
    }
}

#[test]
fn many_files_arrive_in_order_and_a_wrong_size_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let sizes: Vec<u64> = (0..700).map(|i| (i * 97) % 9000).collect();
    let paths: Vec<PathBuf> =
        sizes.iter().enumerate().map(|(i, n)| written(dir.path(), &i.to_string(), *n as usize)).collect();
    assert_eq!(sizes_of(&paths).unwrap(), sizes);
    let mut buffer = vec![0u8; sizes.iter().sum::<u64>() as usize];
    let mut at = buffer.as_mut_ptr() as u64;
    let mut places = Vec::new();
    for size in &sizes {
        places.push(Address::Host(at));
        at += size;
    }
    let request = read_files(paths.clone(), &sizes, &places, Vec::new()).unwrap();
    request.wait(None);
    assert_eq!(request.outcome().unwrap().bytes, buffer.len() as u64);
    let mut done = 0;
    for size in &sizes {
        assert_eq!(buffer[done..done + *size as usize], content(*size as usize));
        done += *size as usize;
    }

    let mut wrong = sizes.clone();
    wrong[500] -= 1;
    let request = read_files(paths, &wrong, &places, Vec::new()).unwrap();
    request.wait(None);
    assert!(request.outcome().unwrap_err().asked.contains("/500"));
    let absent = read_files(vec![dir.path().join("no")], &[5], &places[..1], Vec::new()).unwrap();
    absent.wait(None);
    assert_eq!(absent.outcome().unwrap_err().kind, forebay_model::Kind::Request);
    assert!(sizes_of(&[dir.path().to_path_buf()]).is_err());
}

#[test]
fn after_a_cancel_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open(&written(dir.path(), "a", 32 << 20), None);
    let ones = vec![1u8; 32 << 20];
    for _ in 0..20 {
        let mut buffer = vec![0u8; 32 << 20];
        let to = Address::Host(buffer.as_mut_ptr() as u64);
        let range = Range { file: 0, offset: 0, bytes: buffer.len(), to };
        let request = Request::of_file(&reader, &[range], Vec::new(), threads()).unwrap();
        submit(&request).unwrap();
        if request.cancel() {
            assert!(request.outcome().unwrap_err().found.contains("cancelled"));
        }
        buffer.fill(1);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(buffer == ones, "something was written");
    }
}

#[test]
fn the_crew_ends_and_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open(&written(dir.path(), "a", 100_000), None);
    for _ in 0..3 {
        assert_eq!(read(&reader, &[(1, 70_000)]).unwrap().0[0], content(100_000)[1..70_001]);
        release();
    }
}

#[test]
fn rows_are_told_apart_where_many_of_them_come_twice() {
    use super::repeats::{repeats_pay, split_repeats};
    let all: Vec<u64> = (0..32 << 10).collect();
    let pairs: Vec<u64> = all.iter().map(|n| n / 2).collect();
    assert!(!repeats_pay(&all) && repeats_pay(&pairs) && repeats_pay(&all[..1024]));
    let (once, again) = split_repeats(&[7, 9, 7]);
    assert_eq!((&once[..2], again[2]), ([7, 9].as_slice(), 0), "the third is where the first is");
}

/// A request of 100 rows, every third of a file of 200,000 bytes, all of which is cached.
fn hundred_rows(path: &Path, to: &mut [u8]) -> Arc<Request> {
    let reader = open(path, None);
    let numbers: Vec<u64> = (0..100).map(|i| i * 3).collect();
    let layout = Layout { start: 7, step: 600, row_bytes: 600 };
    let place = Address::Host(to.as_mut_ptr() as u64);
    Request::of_rows(&reader, numbers, layout, place, Vec::new(), threads()).unwrap()
}

// promise: PYT-28
#[test]
fn few_cached_rows_are_copied_by_the_thread_that_asks() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "a", 200_000);
    let mut to = vec![0xee; 60_001];
    let request = hundred_rows(&path, &mut to);
    if request.table().is_none() {
        eprintln!("skipped: the system doesn't tell what is cached");
        return;
    }
    assert!(!worker::copied_here(&request, 59_999) && !request.is_done(), "more than may be");
    assert!(worker::copied_here(&request, 60_000) && request.is_done());
    let all = content(200_000);
    let rows = (0..100).flat_map(|i| all[7 + i * 1800..][..600].iter().copied());
    assert!(to[..60_000].iter().copied().eq(rows) && to[60_000] == 0xee);
    let report = request.outcome().unwrap();
    assert_eq!((report.bytes, report.staged_bytes, report.uncached_bytes), (60_000, 60_000, 0));
    begin(&hundred_rows(&path, &mut to), false).unwrap();
}

// promise: PYT-5, PYT-28
#[test]
fn a_file_that_is_cut_or_written_to_fails_the_copy_on_the_thread_that_asks() {
    let dir = tempfile::tempdir().unwrap();
    let run = |blocked: bool, cut: bool| {
        let path = written(dir.path(), "a", 200_000);
        let mut to = vec![0; 60_000];
        let request = hundred_rows(&path, &mut to);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        if cut {
            file.set_len(50_000).unwrap();
        } else {
            std::thread::sleep(std::time::Duration::from_millis(20));
            (&file).write_all(b"new").unwrap();
        }
        // Where the signal of a fault is blocked, others copy.
        assert!(!blocked || !worker::copied_here(&request, u64::MAX));
        begin(&request, true).unwrap();
        request.wait(None);
        let error = request.outcome().unwrap_err();
        assert_eq!(error.kind, forebay_model::Kind::Run);
        assert!(error.found.contains("while it was read"), "{error}");
    };
    run(false, true);
    run(false, false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forebay_rigs::signals::block(libc::SIGBUS);
            run(true, true);
        });
    });
}

// promise: FEED-18
#[test]
fn a_file_of_which_something_is_cached_is_asked_part_by_part_and_again_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "rows", 4 << 20);
    let reader = open(&path, None);
    let Some(share) = reader.cached_share(0, 4 << 20).filter(|share| *share > 0.5) else {
        eprintln!("skipped: the system doesn't tell what is cached, or kept nothing of it");
        return;
    };
    assert!(!reader.is_hardly_cached(), "{share}");
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(!(0..1000).any(|_| reader.is_hardly_cached()), "it isn't asked so soon");
    let left = reader.cached_share(0, 4 << 20);
    assert_eq!(reader.is_hardly_cached(), left == Some(0.0), "{left:?}");
}

// promise: FEED-18
#[test]
fn long_rows_that_are_not_cached_are_read_many_at_a_time() {
    const ROW: usize = 128 << 10;
    const ROWS: usize = 80;
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "rows", ROWS * ROW);
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reader = open(&path, None);
    if !reader.is_hardly_cached() {
        eprintln!("skipped: the system doesn't tell what is cached, or kept some of it");
        return;
    }
    let mut to = vec![0u8; ROWS * ROW + PAGE];
    let at = to.as_ptr().align_offset(PAGE);
    let numbers: Vec<u64> = (0..ROWS as u64).rev().collect();
    let layout = Layout { start: 0, step: ROW as u64, row_bytes: ROW };
    let place = Address::Host(to[at..].as_mut_ptr() as u64);
    let request = Request::of_rows(&reader, numbers, layout, place, Vec::new(), 1).unwrap();
    assert_eq!(request.part_count(), 2, "all of them are two parts, each longer than a slot");
    begin(&request, true).unwrap();
    request.wait(None);
    assert_eq!(request.outcome().unwrap().bytes, (ROWS * ROW) as u64);
    assert!(to[at..].chunks(ROW).take(ROWS).rev().flatten().eq(&content(ROWS * ROW)));
    // A range of several reads is one part where it needs no copy, and parts for all workers where it does.
    for (aside, parts) in [(0, 1), (1, 4)] {
        to.fill(0);
        let at = at + aside;
        let range = |offset: usize, bytes| {
            let place = Address::Host(to[at + offset..].as_ptr() as u64);
            super::place::Range { file: 0, offset: offset as u64, bytes, to: place }
        };
        let ranges = [range(0, 8 << 20), range(8 << 20, ROWS * ROW - (8 << 20))];
        let with_a_short_one = Request::of_many(&reader, &ranges, 2).unwrap();
        assert_ne!(with_a_short_one.part_count(), 1);
        let request = Request::of_many(&reader, &ranges[..1], 2).unwrap();
        if !reader.is_hardly_cached() || reader.direct_fd().is_none() {
            eprintln!("skipped: reads were left in the page cache");
            return;
        }
        assert_eq!(request.part_count(), parts);
        begin(&request, true).unwrap();
        request.wait(None);
        assert_eq!(request.outcome().unwrap().bytes, 8 << 20);
        assert!(to[at..].iter().take(8 << 20).eq(&content(8 << 20)));
    }
}

#[test]
fn a_loader_asks_what_is_cached_of_what_it_has_read_once_in_a_while() {
    const BYTES: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "rows", BYTES);
    for ahead in [false, true] {
        let reader =
            Reader::open(&path, Opening { way: ReadPath::Host, ahead, ..Opening::default() }).unwrap();
        assert_eq!(reader.resident_again(0, BYTES), None, "it has read nothing");
        assert_eq!(reader.mapped(0, BYTES), None, "nor is the first reading out of the mapping");
        let again = reader.mapped(0, BYTES);
        let known = reader.cached_share(0, BYTES) == Some(1.0);
        // More than a second may have passed, on a busy machine.
        let found = (0..100).find_map(|_| {
            reader.cached_share(0, BYTES);
            reader.resident_again(0, BYTES)
        });
        assert_eq!(found, again.filter(|_| ahead && known));
    }
}
