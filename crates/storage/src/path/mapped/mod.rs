//! `mapped`: page cache to GPU without a copy by the CPU. The file is mapped, a
//! window of it is registered with the driver, and the device reads the pages
//! where they lie. What isn't cached, or isn't worth registering, goes through
//! `bounce`, and counts as staged.

mod copies;
mod file;
mod identity;
mod map;
mod policy;
mod registry;
mod relays;
mod row;
mod rows;
mod straight;
mod turns;

pub use copies::Staging;
pub use file::{MappedFile, Phase, Window};
pub use map::{DevicePinner, Mapping, Pin, Pinner};
pub use policy::{window_bytes, Key, Policy, Verdict};
pub use registry::{Limits, Registry, Wakeup, LEAST_BYTES};
pub use row::{limits, Mapped};

use super::Copier;
use crate::source::file::FileTarget;
use forebay_io::clock;
use forebay_io::queue::{Done, Fault, Full, Geometry, Io, Op, Queue, Via};
use forebay_io::reactor::Reactor;
use forebay_model::Error;
use relays::{Relayed, Relays};
use rows::Together;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Copies go out together up to this many bytes: fewer, and the device waits between them; more, and it waits for
/// the first.
const SEND_BYTES: u32 = 1 << 20;
/// Shorter pieces that are ready go by one launch, however many they are.
const SHORT_BYTES: u32 = 64 << 10;
/// A piece at least this long waits for its window even where its reader jumps about.
const WAITS_BYTES: u32 = 1 << 20;
/// Breaks that a reader in order may have, and still count as one.
const STREAK_MAX: u32 = 64;

/// Location of a part of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not looked at yet.
    Fresh,
    /// Holds its window, which is `Pending`.
    Waiting,
    /// Holds its window; its copy was queued when the file was of this generation.
    Copying(u64),
    /// Waits for a staging slot.
    Unstaged,
    /// In this staging slot.
    Staged(u32),
    /// On its way by a relay.
    Relayed,
    /// Rows that were fetched together from windows that are held, as of this generation.
    Fetching(u64),
}

/// Part of an I/O that lies in one window, and in one staging slot if it goes that way.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tag: u32,
    window: u32,
    /// Offsets in the I/O and in the file.
    at: u32,
    offset: u64,
    len: u32,
    place: Place,
}

/// An I/O of which pieces are out.
#[derive(Clone, Debug)]
struct Flight {
    io: Io,
    pieces_left: u32,
    /// Bytes that can be had, and then those that were.
    bytes: u32,
    fault: Option<Fault>,
    via: Via,
    copy_ns: u32,
    /// It is of rows.
    rows: bool,
    /// Bytes of its pieces that were staged.
    staged: u32,
}

impl Flight {
    /// With so many bytes to come, in pieces that are still to be counted.
    fn of(io: Io, bytes: u32) -> Flight {
        Flight {
            io,
            pieces_left: 0,
            bytes,
            fault: None,
            via: Via::Nothing,
            copy_ns: 0,
            rows: false,
            staged: 0,
        }
    }
}

pub(crate) struct MappedQueue {
    // Field order is drop order: copies end before anything that they point to goes.
    copier: Box<dyn Copier>,
    bounce: Box<dyn Queue>,
    staging: Staging,
    registry: Arc<Registry>,
    file: Arc<MappedFile>,
    wakeup: Arc<Wakeup>,
    geometry: Geometry,
    flights: Vec<Option<Flight>>,
    pieces: Vec<Piece>,
    free: Vec<u32>,
    /// Pieces that aren't copied yet, in order of arrival: fresh and waiting ones.
    unrouted: VecDeque<u32>,
    ready: Vec<u32>,
    unstaged: VecDeque<u32>,
    /// Pieces that wait for a relay, and those that have one.
    left: VecDeque<u32>,
    relayed: Vec<Relayed>,
    relays: Option<Relays>,
    /// Piece that each of our staging slots holds.
    staged: Vec<Option<u32>>,
    copying: u32,
    /// I/Os of rows that wait for their launch, and those that are being fetched.
    together: VecDeque<Together>,
    launched: Vec<Together>,
    spare: Vec<Together>,
    /// By tag, of the last I/O of rows.
    staged_of: Vec<u32>,
    done: Vec<Done>,
    copies: Vec<(u32, Option<Fault>)>,
    below: Vec<Done>,
    in_flight: u32,
    /// Next offset of a reader in order; None before the first I/O.
    expected: Option<u64>,
    streak: u32,
    /// The window that `streams` was last asked for.
    reached: Option<u32>,
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
        let file = registry.file(target).map_err(|fault| {
            Error::run(format!("map {}", target.path.display()), fault.to_string(), "‹path› bounce")
        })?;
        let waker = reactor.waker()?;
        let slots = bounce.geometry().depth as usize;
        Ok(MappedQueue {
            copier,
            bounce,
            staging,
            registry,
            wakeup: Wakeup::new(move || waker.wake()),
            geometry: Geometry { align: 1, mem_align: 1, ..target.geometry(depth) },
            file,
            flights: vec![None; depth as usize],
            pieces: Vec::new(),
            free: Vec::new(),
            unrouted: VecDeque::new(),
            ready: Vec::new(),
            unstaged: VecDeque::new(),
            left: VecDeque::new(),
            relayed: Vec::new(),
            relays: None,
            staged: vec![None; slots],
            copying: 0,
            together: VecDeque::new(),
            launched: Vec::new(),
            spare: Vec::new(),
            staged_of: vec![0; depth as usize],
            done: Vec::new(),
            copies: Vec::new(),
            below: Vec::new(),
            in_flight: 0,
            expected: None,
            streak: 0,
            reached: None,
        })
    }

    /// With relays, for windows that are left out when the file is first read.
    fn with_relays(mut self, relays: Option<Relays>) -> MappedQueue {
        self.relays = relays;
        self
    }

    /// Returns whether the reader goes through the file in order, by and large.
    fn streams(&mut self, io: &Io) -> bool {
        let in_order = self.expected.is_none_or(|at| at == io.offset);
        self.expected = Some(io.offset + u64::from(io.len));
        self.streak = if in_order { (self.streak + 1).min(STREAK_MAX) } else { self.streak / 4 };
        self.streak > 0
    }

    fn add_piece(&mut self, piece: Piece) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.pieces[id as usize] = piece;
                id
            }
            None => {
                self.pieces.push(piece);
                (self.pieces.len() - 1) as u32
            }
        }
    }

    /// Cuts `bytes` at the windows' edges: those of an I/O that begin at `at` in it, and at `offset` in the file.
    fn split(&mut self, tag: u32, at: u32, offset: u64, bytes: u32) -> u32 {
        let (mut done, mut count) = (0, 0);
        while done < bytes {
            let offset = offset + u64::from(done);
            let window = self.file.window_of(offset);
            let (from, len) = self.file.span(window);
            let len = (from + len - offset).min(u64::from(bytes - done)) as u32;
            let piece = Piece { tag, window, at: at + done, offset, len, place: Place::Fresh };
            let id = self.add_piece(piece);
            self.unrouted.push_back(id);
            done += len;
            count += 1;
        }
        count
    }

    fn flight(&mut self, tag: u32) -> &mut Flight {
        self.flights[tag as usize].as_mut().expect("a piece belongs to an I/O in flight")
    }

    /// Books a piece that has ended: `moved` bytes of it came.
    fn end_piece(&mut self, id: u32, result: Result<u32, Fault>, via: Via, copy_ns: u32) {
        let piece = self.pieces[id as usize];
        self.free.push(id);
        let flight = self.flight(piece.tag);
        flight.pieces_left -= 1;
        flight.copy_ns = flight.copy_ns.saturating_add(copy_ns);
        if via == Via::Staged {
            flight.staged += piece.len;
        }
        match result {
            // What lies behind a short piece doesn't count as moved.
            Ok(moved) if moved < piece.len => flight.bytes = flight.bytes.min(piece.at + moved),
            Ok(_) => {}
            Err(fault) => drop(flight.fault.get_or_insert(fault)),
        }
        if via == Via::Staged || flight.via == Via::Nothing {
            flight.via = via;
        }
        if flight.pieces_left == 0 {
            self.end_flight(piece.tag);
        }
    }

    fn end_flight(&mut self, tag: u32) {
        let flight = self.flights[tag as usize].take().expect("it was in flight");
        let mut result = flight.fault.map_or(Ok(flight.bytes), Err);
        let moved = result.as_ref().is_ok_and(|bytes| *bytes > 0);
        let mut via = if moved { flight.via } else { Via::Nothing };
        if flight.rows {
            self.staged_of[tag as usize] = flight.staged;
            via = if moved { Via::Mapped } else { via };
            if flight.bytes < flight.io.len && result.is_ok() {
                result = Err(rows::ended_early());
            }
        }
        self.done.push(Done { tag, result, via, copy_ns: flight.copy_ns });
    }

    /// Decides for each piece that isn't on its way whether it is copied, waits, or goes another way.
    fn route(&mut self, reactor: &mut Reactor) {
        self.fetch_together();
        for _ in 0..self.unrouted.len() {
            let Some(id) = self.unrouted.pop_front() else { break };
            self.route_one(id);
        }
        self.copy_ready();
        self.relay();
        self.stage(reactor);
    }

    fn route_one(&mut self, id: u32) {
        let piece = self.pieces[id as usize];
        let file = self.file.clone();
        let window = file.window(piece.window);
        if piece.place == Place::Waiting {
            match window.phase() {
                Phase::Ready => return self.ready.push(id),
                Phase::Pending => return self.unrouted.push_back(id),
                _ => window.release(),
            }
            return self.go_another_way(id);
        }
        let streams = self.streak > 0;
        let arrives = streams && self.reached != Some(piece.window);
        let mut phase = window.phase();
        if arrives || !matches!(phase, Phase::Ready | Phase::Pending) {
            self.reached = Some(piece.window);
            if phase == Phase::Ready || self.registry.pays(&file, piece.window, u64::from(piece.len), streams)
            {
                phase = self.registry.ask(&file, piece.window, streams, None);
            }
        }
        if phase == Phase::Pending && (streams || piece.len >= WAITS_BYTES) {
            return self.await_window(id);
        }
        match window.hold() {
            Phase::Ready => self.ready.push(id),
            _ => {
                window.release();
                self.go_another_way(id);
            }
        }
    }

    /// Holds the window until it is decided on; the wake-up is sent then.
    fn await_window(&mut self, id: u32) {
        let piece = &mut self.pieces[id as usize];
        piece.place = Place::Waiting;
        let window = piece.window;
        self.file.window(window).hold();
        // Asked again under the lock: should it have been decided on just now, no wake-up would ring.
        match self.registry.ask(&self.file, window, false, Some(&self.wakeup)) {
            Phase::Pending => self.unrouted.push_back(id),
            _ => self.route_one(id),
        }
    }

    /// A piece that no window serves is read through `bounce`, unless its file is no longer what was opened.
    fn go_another_way(&mut self, id: u32) {
        if self.file.is_lost() {
            if let Err(fault) = self.registry.look(&self.file) {
                return self.end_piece(id, Err(fault), Via::Nothing, 0);
            }
        }
        let mut piece = self.pieces[id as usize];
        piece.place = Place::Unstaged;
        let is_left = self.relays.is_some() && self.file.window(piece.window).phase() == Phase::Left;
        let most = self.staging.slot_bytes;
        while piece.len > most {
            let part = self.add_piece(Piece { len: most, ..piece });
            self.flight(piece.tag).pieces_left += 1;
            if is_left { &mut self.left } else { &mut self.unstaged }.push_back(part);
            piece.at += most;
            piece.offset += u64::from(most);
            piece.len -= most;
        }
        self.pieces[id as usize] = piece;
        if is_left { &mut self.left } else { &mut self.unstaged }.push_back(id);
    }

    /// Lets go of a piece that isn't on its way to the device, if that is where it is.
    fn cancel(&mut self, id: u32) {
        let piece = self.pieces[id as usize];
        if piece.place == Place::Waiting {
            self.file.window(piece.window).release();
        }
        self.end_piece(id, Err(Fault::errno(libc::ECANCELED)), Via::Nothing, 0);
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
                self.streams(&io);
                let bytes = self.geometry.bytes.saturating_sub(io.offset).min(u64::from(io.len)) as u32;
                self.flights[io.tag as usize] = Some(Flight::of(io, bytes));
                let pieces = self.split(io.tag, 0, io.offset, bytes);
                self.flight(io.tag).pieces_left = pieces;
                if pieces == 0 {
                    self.end_flight(io.tag);
                }
                return Ok(());
            }
            Op::Flush => Ok(0),
            _ => Err(Fault::note(libc::EROFS, "the mapped path only reads; ‹path› bounce writes")),
        };
        self.done.push(Done { tag: io.tag, result: answer, via: Via::Nothing, copy_ns: 0 });
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
        self.take_rows(io, rows);
        Ok(())
    }

    fn staged_of(&self, tag: u32) -> u32 {
        self.staged_of[tag as usize]
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.route(reactor);
        self.bounce.submit(reactor);
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.reap_copies();
        self.reap_relayed();
        self.reap_bounced(reactor);
        self.in_flight -= self.done.len() as u32;
        done.append(&mut self.done);
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        let ours = |pieces: &[Piece], id: u32| pieces[id as usize].tag == tag;
        let pieces = &self.pieces;
        let idle: Vec<u32> = self
            .unrouted
            .iter()
            .chain(&self.unstaged)
            .chain(&self.left)
            .copied()
            .filter(|id| ours(pieces, *id))
            .collect();
        let slots: Vec<u32> = (0..self.staged.len() as u32)
            .filter(|slot| self.staged[*slot as usize].is_some_and(|id| ours(pieces, id)))
            .collect();
        self.unrouted.retain(|id| !idle.contains(id));
        self.unstaged.retain(|id| !idle.contains(id));
        self.left.retain(|id| !idle.contains(id));
        idle.into_iter().for_each(|id| self.cancel(id));
        self.cancel_rows(tag);
        slots.into_iter().for_each(|slot| self.bounce.abandon(slot, reactor));
    }

    fn next_due(&self) -> Option<Instant> {
        let can_stage = !self.unstaged.is_empty() && !self.staging.free.borrow().is_empty();
        if !self.done.is_empty() || can_stage {
            return Some(clock::now());
        }
        // What else uses the lists that rows wait for need not be ours.
        let waits = (!self.together.is_empty()).then(|| clock::now() + rows::LOOK_AGAIN);
        [self.bounce.next_due(), self.copier.next_due(), self.relays_due(), waits].into_iter().flatten().min()
    }
}

impl Drop for MappedQueue {
    /// Copies under way end before their windows may go.
    fn drop(&mut self) {
        self.copier.finish();
        self.end_relayed();
        let mut out = vec![true; self.pieces.len()];
        self.free.iter().for_each(|id| out[*id as usize] = false);
        for (piece, _) in self.pieces.iter().zip(out).filter(|(_, out)| *out) {
            if matches!(piece.place, Place::Waiting | Place::Copying(_)) {
                self.file.window(piece.window).release();
            }
        }
        self.launched.iter().for_each(|rows| rows.release(&self.file));
        self.registry.answered(&self.wakeup);
    }
}
