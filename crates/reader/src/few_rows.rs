//! Few cached rows for a caller in host memory, copied at once: making a request of them would take longer than their copy.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::file::Reader;
use super::load;
use super::place::Address;
use super::request::Report;
use super::rows::Layout;
use forebay_io::{guarded_row_copy, has_copy_guard};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a thread that only waits for them copies by itself: as many as take others no less processor time.
pub(super) const COPIED_WAITING_MAX: u64 = 2 << 20;
/// Numbers of rows that are copied to the stack at a time: what is checked there is what is used.
const NUMBERS: usize = 256;

impl Reader {
    /// Copies rows that are cached to `to`, on this thread. None where it isn't as simple as that, or one of them isn't in the
    /// file: a `Request` does it then, or says why not. Nothing is written for a row that isn't there.
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
        if bytes == 0 || bytes > COPIED_WAITING_MAX || !has_copy_guard() {
            return None;
        }
        let began = Instant::now();
        self.partly_resident()?;
        self.copied_for(Address::Host(to as u64), count, layout.row_bytes)?;
        let _reading = self.reading();
        let (mut held, mut mapped) = ([0u64; NUMBERS], 0);
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
                    mapped += self.copy_cached(some, layout, to.wrapping_add(first * layout.row_bytes))?;
                }
            }
        }
        if !self.last_seen.is_still(self.stamp().ok()?) {
            return None;
        }
        let seconds = began.elapsed().as_secs_f64();
        Some(Report { bytes, staged_bytes: mapped * layout.row_bytes as u64, seconds, ..Report::default() })
    }

    /// Copies rows to `to`, out of the mapping where their surroundings are cached, else by a read that doesn't wait. Returns
    /// how many came out of the mapping; None where a row isn't cached.
    fn copy_cached(&self, numbers: &[u64], layout: Layout, to: *mut u8) -> Option<u64> {
        let row_bytes = layout.row_bytes;
        let copy = |base: *const u8, to: *mut u8, some: &[u64]| {
            let base = base.wrapping_add(layout.start as usize);
            // SAFETY: the caller has room for all rows, each of which lies in the mapping, as it has seen.
            let left = unsafe { guarded_row_copy(to, base, (some, layout.step), row_bytes) };
            (left == 0).then_some(some.len() as u64)
        };
        if let Some(base) = self.whole() {
            return copy(base, to, numbers);
        }
        let base = self.partly_resident()?;
        let is_here = |number: &u64| self.resident(layout.offset(*number), row_bytes).is_some();
        let (mut done, mut mapped) = (0, 0);
        for some in numbers.chunk_by(|a, b| is_here(a) == is_here(b)) {
            let to = to.wrapping_add(done * row_bytes);
            if is_here(&some[0]) {
                mapped += copy(base, to, some)?;
            } else {
                for (i, number) in some.iter().enumerate() {
                    let (offset, to) = (layout.offset(*number), to.wrapping_add(i * row_bytes));
                    // SAFETY: as above.
                    unsafe { load::cached(self.fd(), offset, to, row_bytes) }.ok()??;
                }
            }
            done += some.len();
        }
        Some(mapped)
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;
