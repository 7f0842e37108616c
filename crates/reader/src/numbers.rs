//! Row numbers in host memory: copied from the caller, and checked while they are copied.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use forebay_io::ROW_ELSEWHERE;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Numbers that are checked right after they were copied, while a core's first cache holds them.
const CHUNK: usize = 2048;
/// Room that was used before needs no page fault for each 512 numbers, which take longer than their copy.
const SPARE_MAX: usize = 4;
/// Numbers that kept room has space for: shorter ones cost little, longer ones would keep too much memory.
const KEPT: std::ops::RangeInclusive<usize> = 16 << 10..=8 << 20;

static SPARE: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

/// None where another thread has it, or had it when this process was forked: then room is made anew, and freed.
fn spare() -> Option<MutexGuard<'static, Vec<Vec<u64>>>> {
    match SPARE.try_lock() {
        Ok(spare) => Some(spare),
        Err(TryLockError::Poisoned(spare)) => Some(spare.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Frees what is kept for the next call.
pub(super) fn release() {
    if let Some(mut spare) = spare() {
        spare.clear();
    }
}

/// Numbers of rows, copied.
pub struct Copied {
    numbers: Vec<u64>,
    rows: usize,
    last: Option<u64>,
}

impl Copied {
    /// Copies so many numbers at an address, which the caller holds meanwhile.
    pub fn from_address(address: usize, count: usize) -> Copied {
        let mut copied = Copied { numbers: room(count), rows: 0, last: None };
        for first in (0..count).step_by(CHUNK) {
            let some = CHUNK.min(count - first);
            // SAFETY: Python's caller holds an array of as many for the length of the call, and there is room for all. Another
            // thread may write to the array, which gives other numbers: what is looked at is the copy.
            unsafe {
                let from = (address as *const u64).add(first);
                std::ptr::copy_nonoverlapping(from, copied.numbers.as_mut_ptr().add(first), some);
                copied.numbers.set_len(first + some);
            }
            copied.count_rows(first);
        }
        copied
    }

    /// Counts the rows among those from `first` on.
    fn count_rows(&mut self, first: usize) {
        let numbers = &self.numbers[first..];
        let (mut rows, mut last) = (numbers.len(), greatest(numbers));
        if last == Some(ROW_ELSEWHERE) {
            let here = || numbers.iter().copied().filter(|number| *number != ROW_ELSEWHERE);
            (rows, last) = (here().count(), here().max());
        }
        self.rows += rows;
        self.last = self.last.max(last);
    }

    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Counts the numbers that are rows of the file: all but `ELSEWHERE`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The greatest of those.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Returns whether every number is below `limit`.
    pub fn are_below(&self, limit: u64) -> bool {
        self.rows == self.numbers.len() && self.last.is_none_or(|last| last < limit)
    }
}

impl From<Vec<u64>> for Copied {
    fn from(numbers: Vec<u64>) -> Copied {
        let mut copied = Copied { numbers, rows: 0, last: None };
        copied.count_rows(0);
        copied
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let mut numbers = std::mem::take(&mut self.numbers);
        if !KEPT.contains(&numbers.capacity()) {
            return;
        }
        if let Some(mut spare) = spare().filter(|spare| spare.len() < SPARE_MAX) {
            numbers.clear();
            spare.push(numbers);
        }
    }
}

/// Empty, with room for so many.
fn room(count: usize) -> Vec<u64> {
    let kept = KEPT.contains(&count).then(spare).flatten().and_then(|mut spare| {
        let fits = spare.iter().position(|numbers| numbers.capacity() >= count);
        fits.map(|at| spare.swap_remove(at))
    });
    kept.unwrap_or_else(|| Vec::with_capacity(count))
}

/// Four at a time: each comparison of one chain waits for the one before.
fn greatest(numbers: &[u64]) -> Option<u64> {
    let mut most = [0u64; 4];
    let fours = numbers.chunks_exact(4);
    let rest = fours.remainder();
    for four in fours {
        for (most, number) in most.iter_mut().zip(four) {
            *most = (*most).max(*number);
        }
    }
    (!numbers.is_empty()).then(|| most.iter().chain(rest).copied().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_numbers(numbers: &[u64]) -> Copied {
        Copied::from_address(numbers.as_ptr() as usize, numbers.len())
    }

    #[test]
    fn copies_hold_every_number_and_tell_rows_from_places_to_leave() {
        for count in [0, 1, 3, CHUNK - 1, CHUNK, 2 * CHUNK + 5] {
            let numbers: Vec<u64> = (0..count as u64).map(|i| i.wrapping_mul(7919) % 100_003).collect();
            let most = numbers.iter().copied().max();
            for copied in [from_numbers(&numbers), numbers.clone().into()] {
                assert_eq!((copied.numbers(), copied.rows(), copied.last()), (&numbers[..], count, most));
                assert!(copied.are_below(most.map_or(0, |most| most + 1)));
                assert_eq!(copied.are_below(most.unwrap_or(0)), count == 0);
            }
        }
        // Wherever one stands: at either end of a chunk, beyond the last four, alone.
        for at in [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 4] {
            let mut numbers = vec![5u64; 2 * CHUNK + 5];
            numbers[at] = ROW_ELSEWHERE;
            let copied = from_numbers(&numbers);
            assert_eq!((copied.rows(), copied.last()), (numbers.len() - 1, Some(5)), "{at}");
            assert!(!copied.are_below(u64::MAX));
            numbers[at] = 9;
            assert_eq!(from_numbers(&numbers).last(), Some(9), "{at}");
        }
        let none = from_numbers(&[ROW_ELSEWHERE; 3]);
        assert_eq!((none.rows(), none.last(), none.are_below(u64::MAX)), (0, None, false));
    }

    #[test]
    fn room_that_was_used_before_holds_nothing_of_it() {
        let count = *KEPT.start();
        for turn in 0..SPARE_MAX as u64 + 2 {
            let numbers = vec![turn; count + turn as usize];
            let copied = from_numbers(&numbers);
            assert_eq!((copied.numbers(), copied.last()), (&numbers[..], Some(turn)));
        }
        release();
    }
}
