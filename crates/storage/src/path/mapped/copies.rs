//! Copies by the device out of windows that it may read. A piece that is here, or is being copied, holds its window until it
//! has ended.

use super::file::Phase;
use super::flights::{Flights, PieceState};
use super::windows::Windows;
use super::Copier;
use forebay_io::{CopyRoom, Fault, FetchedCopy, Mem, Via};
use std::time::Instant;

/// Copies go out together up to this many bytes: fewer, and the device waits between them; more, and it waits for
/// the first.
const SEND_BYTES: u32 = 1 << 20;
/// Shorter pieces that are ready go by one launch, however many they are.
const SHORT_BYTES: u32 = 64 << 10;

pub(super) struct Copies {
    copier: Box<dyn Copier>,
    /// Pieces whose windows may be read.
    ready: Vec<u32>,
    under_way: u32,
    ended: Vec<(u32, Option<Fault>)>,
}

impl Copies {
    pub(super) fn new(copier: Box<dyn Copier>) -> Copies {
        Copies { copier, ready: Vec::new(), under_way: 0, ended: Vec::new() }
    }

    pub(super) fn add(&mut self, id: u32) {
        self.ready.push(id);
    }

    /// Queues the copies of the pieces that are ready, if the file is still what it was when their windows were registered.
    /// Those whose windows aren't ready any more go `away`, without them.
    pub(super) fn queue(&mut self, flights: &mut Flights, windows: &Windows, away: &mut Vec<u32>) {
        if self.ready.is_empty() {
            return windows.answered();
        }
        match windows.current_generation() {
            Ok(generation) => self.queue_ready(flights, windows, generation, away),
            Err(fault) => {
                for id in &self.ready {
                    windows.window(flights.piece(*id).window).release();
                    flights.end(*id, Err(fault.clone()), Via::Nothing, 0);
                }
            }
        }
        windows.answered();
        self.ready.clear();
    }

    fn queue_ready(
        &mut self,
        flights: &mut Flights,
        windows: &Windows,
        generation: u64,
        away: &mut Vec<u32>,
    ) {
        let _turn = windows.turn();
        let (mut unsent, mut last) = (0, None);
        for id in &self.ready {
            let piece = flights.piece(*id);
            let window = windows.window(piece.window);
            // What is ready after the look was registered in this generation.
            if window.phase() != Phase::Ready {
                window.release();
                away.push(*id);
                continue;
            }
            if last.replace(piece.window).is_some_and(|w| w != piece.window) {
                self.copier.cut();
            }
            flights.piece_mut(*id).place = PieceState::Copying(generation);
            self.under_way += 1;
            let from = Mem::Host { at: windows.address(piece.offset), piece: Mem::UNREGISTERED };
            self.copier.start(*id, from, flights.mem_of(*id), piece.len as usize);
            unsent += piece.len;
            if unsent >= SEND_BYTES && piece.len >= SHORT_BYTES {
                self.copier.submit();
                unsent = 0;
            }
        }
        self.copier.submit();
    }

    /// Returns whether the device can fetch so many rows now.
    pub(super) fn room_for(&self, rows: usize) -> CopyRoom {
        self.copier.room_for(rows)
    }

    /// Has the device fetch rows, as the piece `id`, whose windows are held.
    pub(super) fn fetch(&mut self, id: u32, fetched: FetchedCopy, windows: &Windows) {
        self.under_way += 1;
        let _turn = windows.turn();
        self.copier.fetch(id, fetched);
    }

    /// Ends the pieces whose copies have; `fetched` lets go of the windows of those that were rows.
    pub(super) fn reap(&mut self, flights: &mut Flights, windows: &Windows, mut fetched: impl FnMut(u32)) {
        if self.under_way > 0 {
            let _turn = windows.turn();
            self.copier.reap(&mut self.ended);
        }
        if self.ended.is_empty() {
            return;
        }
        // One look for all: it comes after the last of them.
        let seen = windows.current_generation();
        for (id, fault) in self.ended.drain(..) {
            let piece = flights.piece(id);
            match piece.place {
                PieceState::Fetching(_) => fetched(id),
                _ => windows.window(piece.window).release(),
            }
            self.under_way -= 1;
            let now =
                |generation: &u64| [PieceState::Copying(*generation), PieceState::Fetching(*generation)];
            let result = match (fault, &seen) {
                (Some(fault), _) => Err(fault),
                (None, Err(fault)) => Err(fault.clone()),
                (None, Ok(generation)) if now(generation).contains(&piece.place) => Ok(piece.len),
                (None, Ok(_)) => Err(windows.outdated()),
            };
            flights.end(id, result, Via::Mapped, 0);
        }
    }

    /// Waits until the device reads nothing any more.
    pub(super) fn finish(&mut self) {
        self.copier.finish();
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.copier.next_due()
    }
}
