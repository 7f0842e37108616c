//! `mapped`: page cache to GPU without a copy by the CPU. The file is mapped, a
//! window of it is registered with the driver, and the device reads the pages
//! where they lie. What isn't cached, or isn't worth registering, goes through
//! `bounce`, and counts as staged.

mod bounced;
mod copies;
mod direct;
mod file;
mod flights;
mod identity;
mod map;
mod policy;
mod registry;
mod relays;
mod row;
mod rows;
mod turns;
mod windows;

pub(crate) use bounced::Staging;
pub use file::{MappedFile, Phase};
pub use map::{DevicePinner, Mapping, Pin, Pinner, MADV_POPULATE_READ};
pub use policy::window_bytes;
pub use registry::{Limits, Registry, Wakeup};
pub use row::Mapped;

use super::Copier;
use crate::source::file::FileTarget;
use bounced::Bounced;
use copies::Copies;
use flights::{Flights, PieceState};
use forebay_io::{monotonic_now, Done, Fault, Full, Geometry, Io, Op, Queue, Reactor, Via};
use forebay_model::Error;
use relays::{LeftOut, Relays};
use rows::Launches;
use std::sync::Arc;
use std::time::Instant;
use windows::{WindowUse, Windows};

/// The queue of a mapped file: says which way each piece of its I/Os goes, and leaves it to who carries it.
pub(crate) struct MappedQueue {
    // Field order is drop order: copies end before anything that they point to goes.
    copies: Copies,
    bounced: Bounced,
    windows: Windows,
    left_out: LeftOut,
    launches: Launches,
    flights: Flights,
    geometry: Geometry,
    in_flight: u32,
    /// Pieces that find no window, after all.
    away: Vec<u32>,
}

impl MappedQueue {
    /// `bounce` takes I/Os under the numbers of `staging`'s slots, up to their length, into the same memory.
    pub(crate) fn new(
        target: &FileTarget,
        depth: u32,
        registry: Arc<Registry>,
        copier: Box<dyn Copier>,
        bounce: Box<dyn Queue>,
        staging: Staging,
        reactor: &mut Reactor,
    ) -> Result<MappedQueue, Error> {
        let windows = Windows::new(registry, target, reactor)?;
        let geometry = Geometry { align: 1, mem_align: 1, ..target.geometry(depth) };
        Ok(MappedQueue {
            copies: Copies::new(copier),
            bounced: Bounced::new(bounce, staging),
            windows,
            left_out: LeftOut::new(None),
            launches: Launches::new(geometry.bytes),
            flights: Flights::new(depth),
            geometry,
            in_flight: 0,
            away: Vec::new(),
        })
    }

    /// With relays, for windows that are left out when the file is first read.
    fn with_relays(mut self, relays: Option<Relays>) -> MappedQueue {
        self.left_out = LeftOut::new(relays);
        self
    }

    /// Decides for each piece that isn't on its way whether it is copied, waits, or goes another way.
    fn route(&mut self, reactor: &mut Reactor) {
        self.launches.launch(&mut self.flights, &self.windows, &mut self.copies);
        for _ in 0..self.flights.unrouted() {
            let Some(id) = self.flights.next_unrouted() else { break };
            match self.windows.way_of(self.flights.piece_mut(id)) {
                WindowUse::Copy => self.copies.add(id),
                WindowUse::Wait => self.flights.put_off(id),
                WindowUse::Another => self.go_another_way(id),
            }
        }
        self.copies.queue(&mut self.flights, &self.windows, &mut self.away);
        let mut away = std::mem::take(&mut self.away);
        away.drain(..).for_each(|id| self.go_another_way(id));
        self.away = away;
        self.left_out.relay(&mut self.flights, &self.windows, &mut self.bounced);
        self.bounced.stage(&mut self.flights, reactor);
    }

    /// A piece that no window serves is read through `bounce`, or by a relay, unless its file is no longer what was opened.
    fn go_another_way(&mut self, id: u32) {
        if let Err(fault) = self.windows.look_again() {
            return self.flights.end(id, Err(fault), Via::Nothing, 0);
        }
        let phase = self.windows.window(self.flights.piece(id).window).phase();
        let most = self.bounced.slot_bytes();
        match self.left_out.takes(phase) {
            true => self.flights.cut(id, most, |part| self.left_out.add(part)),
            false => self.flights.cut(id, most, |part| self.bounced.add(part)),
        }
    }
}

impl Queue for MappedQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        self.in_flight += 1;
        let answer = match io.op {
            Op::Read if io.mem.is_scattered() => Err(super::scattered()),
            Op::Read => {
                self.windows.follow(&io);
                let bytes = self.geometry.bytes.saturating_sub(io.offset).min(u64::from(io.len)) as u32;
                self.flights.begin(io, bytes, self.windows.cuts(io.offset, bytes));
                return Ok(());
            }
            Op::Flush => Ok(0),
            _ => Err(Fault::note(libc::EROFS, "the mapped path only reads; ‹path› bounce writes")),
        };
        self.flights.answer(io.tag, answer);
        Ok(())
    }

    fn takes_rows(&self) -> bool {
        true
    }

    fn push_rows(&mut self, io: Io, rows: &[u64], _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth || rows.is_empty() || io.op != Op::Read {
            return Err(Full(io));
        }
        self.in_flight += 1;
        self.windows.jump();
        self.launches.add(io, rows, &mut self.flights);
        Ok(())
    }

    fn staged_of(&self, tag: u32) -> u32 {
        self.flights.staged_of(tag)
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.route(reactor);
        self.bounced.submit(reactor);
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        let (launches, windows) = (&mut self.launches, &self.windows);
        self.copies.reap(&mut self.flights, windows, |id| launches.end(id, windows));
        self.left_out.reap(&mut self.flights);
        self.bounced.reap(&mut self.flights, reactor);
        self.in_flight -= self.flights.hand_on(done);
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        while let Some(id) = self.flights.take_unrouted(tag) {
            let piece = self.flights.piece(id);
            if piece.place == PieceState::Waiting {
                self.windows.window(piece.window).release();
            }
            self.flights.cancel(id);
        }
        self.left_out.abandon(tag, &mut self.flights);
        self.launches.abandon(tag, &mut self.flights);
        self.bounced.abandon(tag, &mut self.flights, reactor);
    }

    fn next_due(&self) -> Option<Instant> {
        if self.flights.has_done() || self.bounced.can_stage() {
            return Some(monotonic_now());
        }
        let each = [
            self.bounced.next_due(),
            self.copies.next_due(),
            self.left_out.next_due(),
            self.launches.next_due(),
        ];
        each.into_iter().flatten().min()
    }
}

impl Drop for MappedQueue {
    /// Copies under way end before their windows may go.
    fn drop(&mut self) {
        self.copies.finish();
        self.left_out.finish();
        for piece in self.flights.out() {
            if matches!(piece.place, PieceState::Waiting | PieceState::Copying(_)) {
                self.windows.window(piece.window).release();
            }
        }
        self.launches.release(&self.windows);
        self.windows.answered();
    }
}
