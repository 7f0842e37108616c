//! I/Os in flight, and the pieces that they were cut into. An I/O has ended when its last piece has, with what came of all.

use forebay_io::{Done, Fault, Io, Mem, Via};
use std::collections::VecDeque;

/// Location of a part of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceState {
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
pub(super) struct Piece {
    pub tag: u32,
    pub window: u32,
    /// Offsets in the I/O and in the file.
    pub at: u32,
    pub offset: u64,
    pub len: u32,
    pub place: PieceState,
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
    fn new(io: Io, bytes: u32) -> Flight {
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

/// A row lies beyond what is left of the file.
pub(super) fn ended_early() -> Fault {
    Fault::note(libc::EIO, "the data ended early: the file is shorter than it was when the run began")
}

pub(super) struct Flights {
    /// By tag.
    flights: Vec<Option<Flight>>,
    pieces: Vec<Piece>,
    free: Vec<u32>,
    /// Pieces that are on no way yet, in order of arrival: fresh and waiting ones.
    unrouted: VecDeque<u32>,
    /// By tag, of the last I/O of rows: bytes that were staged.
    staged_of: Vec<u32>,
    done: Vec<Done>,
}

impl Flights {
    pub(super) fn new(depth: u32) -> Flights {
        Flights {
            flights: vec![None; depth as usize],
            pieces: Vec::new(),
            free: Vec::new(),
            unrouted: VecDeque::new(),
            staged_of: vec![0; depth as usize],
            done: Vec::new(),
        }
    }

    /// Takes an I/O of which `bytes` can be had, in `cuts`: window, offset in the file and length of each piece.
    pub(super) fn begin(&mut self, io: Io, bytes: u32, cuts: impl Iterator<Item = (u32, u64, u32)>) {
        self.flights[io.tag as usize] = Some(Flight::new(io, bytes));
        if self.add(io.tag, 0, cuts) == 0 {
            self.end_flight(io.tag);
        }
    }

    /// Takes an I/O of rows; the number of the one piece that stands for those that are fetched together.
    pub(super) fn begin_rows(&mut self, io: Io) -> u32 {
        self.flights[io.tag as usize] =
            Some(Flight { pieces_left: 1, rows: true, ..Flight::new(io, io.len) });
        let (tag, len) = (io.tag, io.len);
        self.place(Piece { tag, window: 0, at: 0, offset: 0, len, place: PieceState::Fresh })
    }

    /// Ends an I/O that has no pieces.
    pub(super) fn answer(&mut self, tag: u32, result: Result<u32, Fault>) {
        self.done.push(Done { tag, result, via: Via::Nothing, copy_ns: 0 });
    }

    /// Adds pieces, unrouted, to an I/O in flight, the first of which begins at `at` in it; how many they are.
    pub(super) fn add(&mut self, tag: u32, at: u32, cuts: impl Iterator<Item = (u32, u64, u32)>) -> u32 {
        let (mut count, mut at) = (0, at);
        for (window, offset, len) in cuts {
            let id = self.place(Piece { tag, window, at, offset, len, place: PieceState::Fresh });
            self.unrouted.push_back(id);
            at += len;
            count += 1;
        }
        self.flight(tag).pieces_left += count;
        count
    }

    fn place(&mut self, piece: Piece) -> u32 {
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

    /// Cuts a piece, which is to be staged, into pieces of `most` bytes at most, and hands on each.
    pub(super) fn cut(&mut self, id: u32, most: u32, mut each: impl FnMut(u32)) {
        let mut piece = self.pieces[id as usize];
        piece.place = PieceState::Unstaged;
        while piece.len > most {
            let part = self.place(Piece { len: most, ..piece });
            self.flight(piece.tag).pieces_left += 1;
            each(part);
            piece.at += most;
            piece.offset += u64::from(most);
            piece.len -= most;
        }
        self.pieces[id as usize] = piece;
        each(id);
    }

    pub(super) fn piece(&self, id: u32) -> Piece {
        self.pieces[id as usize]
    }

    pub(super) fn piece_mut(&mut self, id: u32) -> &mut Piece {
        &mut self.pieces[id as usize]
    }

    /// The memory that a piece is to end in.
    pub(super) fn mem_of(&self, id: u32) -> Mem {
        let piece = self.pieces[id as usize];
        let flight = self.flights[piece.tag as usize].as_ref();
        flight.expect("a piece belongs to an I/O in flight").io.mem.after(piece.at as usize)
    }

    fn flight(&mut self, tag: u32) -> &mut Flight {
        self.flights[tag as usize].as_mut().expect("a piece belongs to an I/O in flight")
    }

    /// Pieces that are on no way now.
    pub(super) fn unrouted(&self) -> usize {
        self.unrouted.len()
    }

    pub(super) fn next_unrouted(&mut self) -> Option<u32> {
        self.unrouted.pop_front()
    }

    /// Puts off a piece that waits for its window.
    pub(super) fn put_off(&mut self, id: u32) {
        self.unrouted.push_back(id);
    }

    /// Takes an I/O's pieces out of those that are on no way; the first of them.
    pub(super) fn take_unrouted(&mut self, tag: u32) -> Option<u32> {
        let at = self.unrouted.iter().position(|id| self.pieces[*id as usize].tag == tag)?;
        self.unrouted.remove(at)
    }

    /// Fails an I/O in flight, whatever its pieces bring.
    pub(super) fn fail(&mut self, tag: u32, fault: impl FnOnce() -> Fault) {
        self.flight(tag).fault.get_or_insert_with(fault);
    }

    /// Ends a piece that was let go of.
    pub(super) fn cancel(&mut self, id: u32) {
        self.end(id, Err(Fault::errno(libc::ECANCELED)), Via::Nothing, 0);
    }

    /// Ends those of an I/O out of pieces that wait.
    pub(super) fn cancel_of(&mut self, tag: u32, waiting: &mut VecDeque<u32>) {
        waiting.retain(|id| {
            let is_other = self.pieces[*id as usize].tag != tag;
            if !is_other {
                self.cancel(*id);
            }
            is_other
        });
    }

    /// Books a piece that has ended: so many bytes of it came.
    pub(super) fn end(&mut self, id: u32, result: Result<u32, Fault>, via: Via, copy_ns: u32) {
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
                result = Err(ended_early());
            }
        }
        self.done.push(Done { tag, result, via, copy_ns: flight.copy_ns });
    }

    pub(super) fn staged_of(&self, tag: u32) -> u32 {
        self.staged_of[tag as usize]
    }

    /// Returns whether an I/O has ended and wasn't handed on.
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Hands on the I/Os that have ended; how many they are.
    pub(super) fn hand_on(&mut self, done: &mut Vec<Done>) -> u32 {
        let count = self.done.len() as u32;
        done.append(&mut self.done);
        count
    }

    /// Pieces that have not ended.
    pub(super) fn out(&self) -> impl Iterator<Item = &Piece> {
        let mut out = vec![true; self.pieces.len()];
        self.free.iter().for_each(|id| out[*id as usize] = false);
        self.pieces.iter().zip(out).filter_map(|(piece, out)| out.then_some(piece))
    }
}
