//! Rows of an I/O that the device fetches together, by one launch, out of the windows that they lie in. A row of which a window
//! isn't registered goes its own way, as a piece like any other.

use super::file::{MappedFile, Phase};
use super::{Flight, MappedQueue, Piece, Place, Via};
use crate::path::buffers::parts_of_row;
use forebay_io::gpu::kernels::ELSEWHERE;
use forebay_io::gpu::{Fetched, Room};
use forebay_io::queue::{Fault, Io};
use std::time::Duration;

/// Interval at which room for a launch is checked.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(15);

/// Knowledge of a window while rows are laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    NotYet,
    Held,
    Closed,
}

/// An I/O of rows, by the piece that stands for its launch.
#[derive(Default)]
pub(super) struct Together {
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
    pub(super) fn release(&self, file: &MappedFile) {
        self.held.iter().for_each(|window| file.window(*window).release());
    }

    /// Returns whether the window may be read; it is held then.
    #[inline]
    fn may_read(&mut self, file: &MappedFile, window: u32) -> bool {
        let seen = self.seen[window as usize];
        if seen != Seen::NotYet {
            return seen == Seen::Held;
        }
        let ready = file.window(window).hold() == Phase::Ready;
        if ready {
            self.held.push(window);
        } else {
            file.window(window).release();
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

/// A row lies beyond what is left of the file.
pub(super) fn ended_early() -> Fault {
    Fault::note(libc::EIO, "the data ended early: the file is shorter than it was when the run began")
}

impl MappedQueue {
    pub(super) fn take_rows(&mut self, io: Io, rows: &[u64]) {
        let fresh = Flight { pieces_left: 1, rows: true, ..Flight::of(io, io.len) };
        self.flights[io.tag as usize] = Some(fresh);
        // Random ones: nobody reads ahead of them.
        (self.expected, self.streak) = (None, 0);
        let place = Place::Fresh;
        let id = self.add_piece(Piece { tag: io.tag, window: 0, at: 0, offset: 0, len: io.len, place });
        let mut together = self.spare.pop().unwrap_or_default();
        together.id = id;
        let row_bytes = io.len / rows.len() as u32;
        let parts = parts_of_row(row_bytes);
        together.row_bytes = row_bytes / parts;
        let part_bytes = u64::from(together.row_bytes);
        together.offsets.clear();
        let parts_at = |row: u64| (0..u64::from(parts)).map(move |part| row + part * part_bytes);
        together.offsets.extend(rows.iter().copied().flat_map(parts_at));
        self.together.push_back(together);
    }

    /// Launches what waits, as far as there is room.
    pub(super) fn fetch_together(&mut self) {
        while let Some(rows) = self.together.pop_front() {
            match self.copier.room_for(rows.offsets.len()) {
                Room::Later => return self.together.push_front(rows),
                Room::There => self.fetch_rows(rows),
                Room::Never => self.go_one_by_one(rows),
            }
        }
    }

    fn fetch_rows(&mut self, mut rows: Together) {
        let others = self.lay(&mut rows);
        // What is ready after the look was registered in this generation.
        let looked = self.registry.look(&self.file);
        let ready = |window: &u32| self.file.window(*window).phase() == Phase::Ready;
        let generation = match looked {
            Ok(generation) if rows.held.iter().all(ready) => generation,
            // Some of them changed just now: all rows are looked at one by one.
            Ok(_) => {
                rows.release(&self.file);
                for (at, offset) in &others.rows {
                    rows.offsets[(at / rows.row_bytes) as usize] = *offset;
                }
                return self.go_one_by_one(rows);
            }
            Err(fault) => {
                rows.release(&self.file);
                self.end_piece(rows.id, Err(fault), Via::Nothing, 0);
                return self.spare.push(rows);
            }
        };
        let elsewhere = self.split_others(&rows, &others);
        let piece = &mut self.pieces[rows.id as usize];
        piece.len -= elsewhere;
        if piece.len == 0 {
            rows.release(&self.file);
            self.end_piece(rows.id, Ok(0), Via::Nothing, 0);
            return self.spare.push(rows);
        }
        piece.place = Place::Fetching(generation);
        let tag = piece.tag;
        self.copying += 1;
        let to = self.flight(tag).io.mem;
        let base = self.file.address(0).as_ptr();
        let fetched = Fetched { base, offsets: &rows.offsets, row_bytes: rows.row_bytes, to };
        {
            let registry = self.registry.clone();
            let _turn = registry.turns().enter();
            self.copier.fetch(rows.id, fetched);
        }
        self.launched.push(rows);
    }

    /// Holds the windows of rows that may be read; the others, each with its place in the I/O.
    fn lay(&mut self, rows: &mut Together) -> Others {
        let (file, last) = (&self.file, u64::from(rows.row_bytes) - 1);
        rows.held.clear();
        rows.seen.clear();
        rows.seen.resize(file.windows() as usize, Seen::NotYet);
        let mut others = Others::default();
        // A file that is registered as a whole: nothing is looked up for a row.
        let whole = (0..file.windows()).all(|window| rows.may_read(file, window));
        if whole && rows.offsets.iter().all(|offset| offset + last < self.geometry.bytes) {
            return others;
        }
        for i in 0..rows.offsets.len() {
            let offset = rows.offsets[i];
            let end = offset + last;
            let (first, until) = (file.window_of(offset), file.window_of(end));
            let inside = end < self.geometry.bytes;
            if inside && (first..=until).all(|window| rows.may_read(file, window)) {
                continue;
            }
            others.rows.push((i as u32 * rows.row_bytes, offset));
            rows.offsets[i] = ELSEWHERE;
        }
        others
    }

    /// Makes pieces of the rows that aren't fetched with the others; their bytes.
    fn split_others(&mut self, rows: &Together, others: &Others) -> u32 {
        let tag = self.pieces[rows.id as usize].tag;
        for (at, offset) in &others.rows {
            let here = self.geometry.bytes.saturating_sub(*offset).min(rows.row_bytes.into()) as u32;
            let pieces = self.split(tag, *at, *offset, here);
            let flight = self.flight(tag);
            flight.pieces_left += pieces;
            if here < rows.row_bytes {
                flight.fault.get_or_insert_with(ended_early);
            }
        }
        others.rows.len() as u32 * rows.row_bytes
    }

    /// Every row as a piece of its own.
    fn go_one_by_one(&mut self, rows: Together) {
        let places = (0u32..).map(|i| i * rows.row_bytes);
        let others = Others { rows: places.zip(rows.offsets.iter().copied()).collect() };
        self.split_others(&rows, &others);
        self.pieces[rows.id as usize].len = 0;
        self.end_piece(rows.id, Ok(0), Via::Nothing, 0);
        self.spare.push(rows);
    }

    /// A launch has ended: its windows may go.
    pub(super) fn end_fetch(&mut self, id: u32) {
        let at = self.launched.iter().position(|rows| rows.id == id).expect("it was launched");
        let rows = self.launched.swap_remove(at);
        rows.release(&self.file);
        self.spare.push(rows);
    }

    /// Lets go of an I/O of rows that isn't launched, if that is where it is.
    pub(super) fn cancel_rows(&mut self, tag: u32) {
        let of = |queue: &MappedQueue, rows: &Together| queue.pieces[rows.id as usize].tag == tag;
        let Some(at) = self.together.iter().position(|rows| of(self, rows)) else { return };
        if let Some(rows) = self.together.remove(at) {
            self.end_piece(rows.id, Err(Fault::errno(libc::ECANCELED)), Via::Nothing, 0);
            self.spare.push(rows);
        }
    }
}
