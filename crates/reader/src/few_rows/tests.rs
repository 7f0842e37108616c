use super::*;
use crate::file::Opening;
use crate::request::Request;
use crate::thread_pool;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

const ROW: usize = 100;
const LAYOUT: Layout = Layout { start: 7, step: 100, row_bytes: ROW };
const FILE_BYTES: usize = 256 << 10;
/// More than are looked at together.
const COUNT: usize = NUMBERS + 3;

fn few(reader: &Arc<Reader>, numbers: &[u64], to: &mut [u8]) -> Option<Report> {
    assert_eq!(to.len(), numbers.len() * ROW);
    reader.copy_few(numbers.as_ptr() as usize, numbers.len(), LAYOUT, to.as_mut_ptr() as usize)
}

/// Has rows read as they usually are until the file is mapped, and its page tables are filled.
fn read_until_few_work(reader: &Arc<Reader>, numbers: &[u64], to: &mut [u8]) {
    for _ in 0..1000 {
        let at = Address::Host(to.as_mut_ptr() as u64);
        let request = Request::of_rows(reader, numbers.to_vec(), LAYOUT, at, Vec::new(), 1).unwrap();
        thread_pool::begin(&request, true).unwrap();
        request.wait(None);
        if few(reader, numbers, to).is_some() {
            return;
        }
    }
    panic!("the file never counts as cached");
}

#[test]
fn few_rows_are_those_of_the_file_as_it_is_now() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..FILE_BYTES).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 23) as u8).collect();
    file.write_all(&content).unwrap();
    let reader = Arc::new(
        Reader::open(file.path(), Opening { way: crate::ReadPath::Host, ..Opening::default() }).unwrap(),
    );
    let rows = (FILE_BYTES - 7) as u64 / 100;
    let numbers: Vec<u64> = (0..COUNT as u64).map(|i| i * 7919 % rows).collect();
    let wanted = |of: &[u8]| -> Vec<u8> {
        numbers.iter().flat_map(|n| &of[7 + *n as usize * ROW..][..ROW]).copied().collect()
    };
    let mut to = vec![0u8; COUNT * ROW];
    read_until_few_work(&reader, &numbers, &mut to);
    to.fill(0);
    let report = few(&reader, &numbers, &mut to).unwrap();
    assert_eq!((report.bytes, report.staged_bytes), (to.len() as u64, to.len() as u64));
    assert!(to == wanted(&content));

    // A row that the file doesn't have, wherever it stands: nothing is written.
    for at in [0, NUMBERS, COUNT - 1] {
        let mut wrong = numbers.clone();
        for number in [rows, u64::MAX] {
            wrong[at] = number;
            to.fill(0xA5);
            assert!(few(&reader, &wrong, &mut to).is_none());
            assert!(to.iter().all(|byte| *byte == 0xA5), "{at}");
        }
    }

    // Written to since the last call: whoever reads it looks again, and then it is as it is.
    let other: Vec<u8> = content.iter().map(|byte| !byte).collect();
    file.as_file().write_all_at(&other, 0).unwrap();
    file.as_file().set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    assert!(few(&reader, &numbers, &mut to).is_none());
    assert!(few(&reader, &numbers, &mut to).is_some());
    assert!(to == wanted(&other));

    // Shorter than it was: whoever reads it says so, and no fault ends the process.
    file.as_file().set_len(4096).unwrap();
    assert!(few(&reader, &numbers, &mut to).is_none());
}

#[test]
fn of_a_file_that_is_cached_in_part_few_rows_are_copied_where_it_is() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..4usize << 20).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 23) as u8).collect();
    file.as_file().write_all_at(&content, 0).unwrap();
    // A hole that nobody has read.
    file.as_file().set_len(12 << 20).unwrap();
    let reader = Arc::new(
        Reader::open(file.path(), Opening { way: crate::ReadPath::Host, ..Opening::default() }).unwrap(),
    );
    let here: Vec<u64> = (0..COUNT as u64).map(|i| i * 7919 % 41_000).collect();
    let mut to = vec![0u8; COUNT * ROW];
    read_until_few_work(&reader, &here, &mut to);
    to.fill(0);
    let report = few(&reader, &here, &mut to).unwrap();
    assert_eq!(report.staged_bytes, to.len() as u64);
    let place = |number: &u64| 7 + *number as usize * ROW;
    assert!(here.iter().flat_map(|n| &content[place(n)..][..ROW]).eq(&to));
    // Of a window that isn't cached as a whole, a row is read that is.
    let mut elsewhere = here.clone();
    elsewhere[COUNT - 1] = 100_000;
    let mut room = [1u8; ROW];
    file.as_file().read_exact_at(&mut room, 7 + 100_000 * ROW as u64).unwrap();
    to.fill(0xA5);
    let report = few(&reader, &elsewhere, &mut to).unwrap();
    assert_eq!((report.bytes, report.staged_bytes), (to.len() as u64, (to.len() - ROW) as u64));
    assert!(to[(COUNT - 1) * ROW..].iter().all(|byte| *byte == 0));
    assert!(elsewhere[..COUNT - 1]
        .iter()
        .flat_map(|n| &content[place(n)..][..ROW])
        .eq(&to[..(COUNT - 1) * ROW]));
}
