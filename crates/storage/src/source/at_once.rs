//! A queue whose I/Os the worker does itself, in `submit`: for what ends without
//! waiting, or where a thread between would cost more than it saves.

use forebay_io::{Done, Fault, Full, Geometry, Io, Mem, Queue, Reactor, Via};

/// As far ahead as takes memory to answer while short rows are copied.
pub(crate) const AHEAD: usize = 8;

/// Source that does each I/O at once.
pub(crate) trait AtOnce {
    fn perform(&mut self, io: &Io) -> Done;

    /// Said of an I/O a few before its turn.
    fn ahead(&mut self, _io: &Io) {}

    /// Said of each I/O as it is taken.
    fn taken(&mut self, _io: &Io) {}

    /// `Queue::lend`.
    fn lend(&mut self, _offset: u64, _len: u32) -> Option<Mem> {
        None
    }

    /// Returns whether it reads rows (`read_rows`).
    fn takes_rows(&self) -> bool {
        false
    }

    /// Reads what begins at each of `rows` into the I/O's memory, one behind the other.
    fn read_rows(&mut self, io: &Io, _rows: &[u64]) -> (Result<u32, Fault>, Via) {
        unreachable!("rows for I/O {}, which says that it takes none", io.tag)
    }
}

/// An I/O of rows.
struct Rows {
    io: Io,
    offsets: Vec<u64>,
}

pub(crate) struct AtOnceQueue<W> {
    work: W,
    geometry: Geometry,
    pushed: Vec<Io>,
    rows: Vec<Rows>,
    /// Lists of I/Os that have ended, for the next.
    spare: Vec<Vec<u64>>,
    ready: Vec<Done>,
}

impl<W: AtOnce> AtOnceQueue<W> {
    pub(crate) fn new(work: W, geometry: Geometry) -> Self {
        let room = geometry.depth as usize;
        AtOnceQueue {
            work,
            geometry,
            pushed: Vec::with_capacity(room),
            rows: Vec::new(),
            spare: Vec::new(),
            ready: Vec::with_capacity(room),
        }
    }
}

impl<W: AtOnce> Queue for AtOnceQueue<W> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        (self.pushed.len() + self.rows.len() + self.ready.len()) as u32
    }

    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        self.work.lend(offset, len)
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        self.work.taken(&io);
        self.pushed.push(io);
        Ok(())
    }

    fn takes_rows(&self) -> bool {
        self.work.takes_rows()
    }

    fn push_rows(&mut self, io: Io, rows: &[u64], _reactor: &mut Reactor) -> Result<(), Full> {
        if !self.takes_rows() || self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        let mut offsets = self.spare.pop().unwrap_or_default();
        offsets.clear();
        offsets.extend_from_slice(rows);
        self.rows.push(Rows { io, offsets });
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        for Rows { io, offsets } in self.rows.drain(..) {
            let (result, via) = self.work.read_rows(&io, &offsets);
            self.ready.push(Done { tag: io.tag, result, via, copy_ns: 0 });
            self.spare.push(offsets);
        }
        for (i, io) in self.pushed.iter().enumerate() {
            if let Some(later) = self.pushed.get(i + AHEAD) {
                self.work.ahead(later);
            }
            self.ready.push(self.work.perform(io));
        }
        self.pushed.clear();
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
    }

    /// Nothing is under way between two calls.
    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}
