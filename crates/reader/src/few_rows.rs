//! Few cached rows for a caller in host memory, copied at once: making a request of them would take longer than their copy.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::file::Reader;
use super::place::Address;
use super::request::Report;
use super::rows::Layout;
use forebay_io::copy;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a thread that only waits for them copies by itself: as many as take others no less processor time.
pub(super) const COPIED_WAITING_MAX: u64 = 2 << 20;
/// Numbers of rows that are copied to the stack at a time: what is checked there is what is used.
const NUMBERS: usize = 256;

impl Reader {
    /// Copies rows of a file that is cached as a whole to `to`, on this thread. None where it isn't as simple as that, or one
    /// of them isn't in the file: a `Request` does it then, or says why not. Nothing is written for a row that isn't there.
    /// `numbers`: the address of so many, which others may write to meanwhile; `to`: that of room for as many rows.
    pub fn copy_few(
        self: &Arc<Reader>,
        numbers: usize,
        count: usize,
        layout: Layout,
        to: usize,
    ) -> Option<Report> {
        let (numbers, to) = (numbers as *const u64, to as *mut u8);
        let bytes = (count as u64).checked_mul(layout.row_bytes as u64)?;
        if bytes == 0 || bytes > COPIED_WAITING_MAX || !copy::is_guarded_here() {
            return None;
        }
        let began = Instant::now();
        let base = self.whole()?.wrapping_add(layout.start as usize);
        self.copied_for(Address::Host(to as u64), count, layout.row_bytes)?;
        let _reading = self.reading();
        let mut held = [0u64; NUMBERS];
        // All are looked at before the first is written: those of several portions once more, since they come anew.
        let turns: &[bool] = if count > NUMBERS { &[false, true] } else { &[true] };
        for copies in turns {
            for first in (0..count).step_by(NUMBERS) {
                let some = &mut held[..NUMBERS.min(count - first)];
                // SAFETY: Python's caller holds both arrays for the length of the call.
                unsafe { std::ptr::copy_nonoverlapping(numbers.add(first), some.as_mut_ptr(), some.len()) };
                let last = some.iter().fold(0, |most, number| (*number).max(most));
                if !layout.end(last).is_some_and(|end| self.was_as_long(end)) {
                    return None;
                }
                if *copies {
                    let to = to.wrapping_add(first * layout.row_bytes);
                    // SAFETY: there is room for all rows, and each of these lies in the mapping.
                    if unsafe { copy::guarded_rows(to, base, (some, layout.step), layout.row_bytes) } > 0 {
                        return None;
                    }
                }
            }
        }
        if !self.last_seen.is_still(self.stamp().ok()?) {
            return None;
        }
        let seconds = began.elapsed().as_secs_f64();
        Some(Report { bytes, staged_bytes: bytes, seconds, ..Report::default() })
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
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
}
