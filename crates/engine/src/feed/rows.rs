//! Rows of a file, fetched by a GPU itself out of registered windows: one launch for thousands of them.

use super::request::{Place, Range};
use super::windows::{Gathered, Windows};
use crate::gpu::kernels::{Rows, ELSEWHERE};
use crate::path::mapped::Bell;
use std::sync::Arc;

/// Rows of one launch: enough that it costs nothing beside them, few enough that their offsets fit the smallest slot.
pub(super) const ROWS_PER_PART: usize = 8192;
pub(super) const OFFSETS_BYTES: usize = ROWS_PER_PART * size_of::<u64>();
/// Longer rows are ranges: the copy engine moves them as fast.
pub(super) const ROW_BYTES_MAX: usize = 1 << 20;

/// Rows that one request is for: row i, `row_bytes` from `offsets[i]` of the file on, goes to `to` + i × `row_bytes`.
pub(super) struct Table {
    pub kernel: Rows,
    pub offsets: Vec<u64>,
    pub row_bytes: usize,
    pub to: Place,
}

impl Table {
    pub fn parts(&self) -> usize {
        self.offsets.len().div_ceil(ROWS_PER_PART)
    }

    /// The rows of a part, and where the first of them goes.
    pub fn part(&self, index: usize) -> (&[u64], Place) {
        let first = index * ROWS_PER_PART;
        let end = self.offsets.len().min(first + ROWS_PER_PART);
        (&self.offsets[first..end], self.to.after(first * self.row_bytes))
    }

    pub fn bytes(&self) -> u64 {
        (self.offsets.len() * self.row_bytes) as u64
    }
}

/// What a part's rows need, and what of it may be read.
enum State {
    Unknown,
    /// So many bytes of it are wanted.
    Wanted(u64),
    Held,
    Not,
}

/// Has the windows of these rows registered and holds those that are; `laid` gets each row's offset, or `ELSEWHERE` and
/// a range among the rest. None: nothing may be read that way. `go_on` is asked while the registrar works.
pub(super) fn lay(
    windows: &Windows,
    offsets: &[u64],
    row_bytes: usize,
    to: Place,
    bell: &Arc<Bell>,
    go_on: impl FnMut() -> bool,
    laid: &mut [u64],
) -> (Option<Gathered>, Vec<Range>) {
    let mut states: Vec<State> = (0..windows.count()).map(|_| State::Unknown).collect();
    let of = |offset: u64| {
        let (first, last) = (windows.number_of(offset), windows.number_of(offset + row_bytes as u64 - 1));
        first as usize..=last as usize
    };
    for offset in offsets {
        for window in of(*offset) {
            let before = match states[window] {
                State::Wanted(bytes) => bytes,
                _ => 0,
            };
            states[window] = State::Wanted(before + row_bytes as u64);
        }
    }
    let wanted: Vec<(u32, u64)> = (0u32..)
        .zip(&states)
        .filter_map(|(number, state)| match state {
            State::Wanted(bytes) => Some((number, *bytes)),
            _ => None,
        })
        .collect();
    let held = windows.hold_all(&wanted, bell, go_on);
    for state in &mut states {
        *state = State::Not;
    }
    for number in held.iter().flat_map(|held| &held.numbers) {
        states[*number as usize] = State::Held;
    }
    let mut rest = Vec::new();
    for (i, (offset, place)) in offsets.iter().zip(laid).enumerate() {
        if of(*offset).all(|window| matches!(states[window], State::Held)) {
            *place = *offset;
        } else {
            *place = ELSEWHERE;
            rest.push(Range { file: 0, offset: *offset, bytes: row_bytes, to: to.after(i * row_bytes) });
        }
    }
    (held, rest)
}
