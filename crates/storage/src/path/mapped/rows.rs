//! Rows of an I/O that the device fetches together, by one launch, out of the windows that they lie in. A row of which a window
//! isn't registered goes its own way, as a piece like any other.

use super::copies::Copies;
use super::file::Phase;
use super::flights::{ended_early, Flights, PieceState};
use super::windows::Windows;
use crate::path::buffers::parts_of_row;
use forebay_io::{monotonic_now, CopyRoom, FetchedCopy, Io, Via, ROW_ELSEWHERE};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval at which room for a launch is checked.
const POLL_INTERVAL: Duration = Duration::from_micros(15);

/// Knowledge of a window while rows are laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    NotYet,
    Held,
    Closed,
}

/// An I/O of rows, by the piece that stands for its launch.
#[derive(Default)]
struct Together {
    id: u32,
    /// Bytes at each offset: a row, or a part of a long one.
    row_bytes: u32,
    /// `ELSEWHERE` for those that aren't fetched with the others, once it is known.
    offsets: Vec<u64>,
    /// By number of the window, while rows are laid.
    seen: Vec<Seen>,
    /// Windows that stay registered until it has ended.
    held: Vec<u32>,
}

impl Together {
    fn release(&self, windows: &Windows) {
        self.held.iter().for_each(|window| windows.window(*window).release());
    }

    /// Returns whether the window may be read; it is held then.
    #[inline]
    fn may_read(&mut self, windows: &Windows, window: u32) -> bool {
        let seen = self.seen[window as usize];
        if seen != Seen::NotYet {
            return seen == Seen::Held;
        }
        let ready = windows.window(window).hold() == Phase::Ready;
        if ready {
            self.held.push(window);
        } else {
            windows.window(window).release();
        }
        self.seen[window as usize] = if ready { Seen::Held } else { Seen::Closed };
        ready
    }
}

/// Rows that one launch doesn't fetch.
#[derive(Default)]
struct Others {
    rows: Vec<(u32, u64)>,
}

/// I/Os of rows, each fetched by one launch, which holds the windows that it reads.
pub(super) struct Launches {
    /// Bytes of the file.
    bytes: u64,
    /// Those that wait for their launch, and those that are being fetched.
    waiting: VecDeque<Together>,
    launched: Vec<Together>,
    spare: Vec<Together>,
}

impl Launches {
    pub(super) fn new(bytes: u64) -> Launches {
        Launches { bytes, waiting: VecDeque::new(), launched: Vec::new(), spare: Vec::new() }
    }

    /// Takes an I/O of rows that begin at these offsets.
    pub(super) fn add(&mut self, io: Io, rows: &[u64], flights: &mut Flights) {
        let mut together = self.spare.pop().unwrap_or_default();
        together.id = flights.begin_rows(io);
        let row_bytes = io.len / rows.len() as u32;
        let parts = parts_of_row(row_bytes);
        together.row_bytes = row_bytes / parts;
        let part_bytes = u64::from(together.row_bytes);
        together.offsets.clear();
        let parts_at = |row: u64| (0..u64::from(parts)).map(move |part| row + part * part_bytes);
        together.offsets.extend(rows.iter().copied().flat_map(parts_at));
        self.waiting.push_back(together);
    }

    /// Launches what waits, as far as there is room.
    pub(super) fn launch(&mut self, flights: &mut Flights, windows: &Windows, copies: &mut Copies) {
        while let Some(rows) = self.waiting.pop_front() {
            match copies.room_for(rows.offsets.len()) {
                CopyRoom::Later => return self.waiting.push_front(rows),
                CopyRoom::There => self.fetch(rows, flights, windows, copies),
                CopyRoom::Never => self.go_one_by_one(rows, flights, windows),
            }
        }
    }

    fn fetch(&mut self, mut rows: Together, flights: &mut Flights, windows: &Windows, copies: &mut Copies) {
        let others = self.lay(&mut rows, windows);
        // What is ready after the look was registered in this generation.
        let looked = windows.current_generation();
        let ready = |window: &u32| windows.window(*window).phase() == Phase::Ready;
        let generation = match looked {
            Ok(generation) if rows.held.iter().all(ready) => generation,
            // Some of them changed just now: all rows are looked at one by one.
            Ok(_) => {
                rows.release(windows);
                for (at, offset) in &others.rows {
                    rows.offsets[(at / rows.row_bytes) as usize] = *offset;
                }
                return self.go_one_by_one(rows, flights, windows);
            }
            Err(fault) => {
                rows.release(windows);
                flights.end(rows.id, Err(fault), Via::Nothing, 0);
                return self.spare.push(rows);
            }
        };
        let elsewhere = self.split_others(&rows, &others, flights, windows);
        let piece = flights.piece_mut(rows.id);
        piece.len -= elsewhere;
        if piece.len == 0 {
            rows.release(windows);
            flights.end(rows.id, Ok(0), Via::Nothing, 0);
            return self.spare.push(rows);
        }
        piece.place = PieceState::Fetching(generation);
        let base = windows.address(0).as_ptr();
        let (row_bytes, to) = (rows.row_bytes, flights.mem_of(rows.id));
        copies.fetch(rows.id, FetchedCopy { base, offsets: &rows.offsets, row_bytes, to }, windows);
        self.launched.push(rows);
    }

    /// Holds the windows of rows that may be read; the others, each with its place in the I/O.
    fn lay(&self, rows: &mut Together, windows: &Windows) -> Others {
        let (file, last) = (windows.file(), u64::from(rows.row_bytes) - 1);
        rows.held.clear();
        rows.seen.clear();
        rows.seen.resize(file.windows() as usize, Seen::NotYet);
        let mut others = Others::default();
        // A file that is registered as a whole: nothing is looked up for a row.
        let whole = (0..file.windows()).all(|window| rows.may_read(windows, window));
        if whole && rows.offsets.iter().all(|offset| offset + last < self.bytes) {
            return others;
        }
        for i in 0..rows.offsets.len() {
            let offset = rows.offsets[i];
            let end = offset + last;
            let (first, until) = (file.window_of(offset), file.window_of(end));
            let inside = end < self.bytes;
            if inside && (first..=until).all(|window| rows.may_read(windows, window)) {
                continue;
            }
            others.rows.push((i as u32 * rows.row_bytes, offset));
            rows.offsets[i] = ROW_ELSEWHERE;
        }
        others
    }

    /// Makes pieces of the rows that aren't fetched with the others; their bytes.
    fn split_others(
        &self,
        rows: &Together,
        others: &Others,
        flights: &mut Flights,
        windows: &Windows,
    ) -> u32 {
        let tag = flights.piece(rows.id).tag;
        for (at, offset) in &others.rows {
            let here = self.bytes.saturating_sub(*offset).min(rows.row_bytes.into()) as u32;
            flights.add(tag, *at, windows.cuts(*offset, here));
            if here < rows.row_bytes {
                flights.fail(tag, ended_early);
            }
        }
        others.rows.len() as u32 * rows.row_bytes
    }

    /// Every row as a piece of its own.
    fn go_one_by_one(&mut self, rows: Together, flights: &mut Flights, windows: &Windows) {
        let places = (0u32..).map(|i| i * rows.row_bytes);
        let others = Others { rows: places.zip(rows.offsets.iter().copied()).collect() };
        self.split_others(&rows, &others, flights, windows);
        flights.piece_mut(rows.id).len = 0;
        flights.end(rows.id, Ok(0), Via::Nothing, 0);
        self.spare.push(rows);
    }

    /// A launch has ended: its windows may go.
    pub(super) fn end(&mut self, id: u32, windows: &Windows) {
        let at = self.launched.iter().position(|rows| rows.id == id).expect("it was launched");
        let rows = self.launched.swap_remove(at);
        rows.release(windows);
        self.spare.push(rows);
    }

    /// Ends an I/O that isn't launched, if it is here.
    pub(super) fn abandon(&mut self, tag: u32, flights: &mut Flights) {
        let Some(at) = self.waiting.iter().position(|rows| flights.piece(rows.id).tag == tag) else { return };
        if let Some(rows) = self.waiting.remove(at) {
            flights.cancel(rows.id);
            self.spare.push(rows);
        }
    }

    /// Lets go of the windows of all launches, none of which is under way.
    pub(super) fn release(&self, windows: &Windows) {
        self.launched.iter().for_each(|rows| rows.release(windows));
    }

    /// What else uses the lists that rows wait for need not be ours.
    pub(super) fn next_due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| monotonic_now() + POLL_INTERVAL)
    }
}
