//! The interface that everything that moves bytes implements: a `Queue` accepts I/Os, starts them, and returns them
//! when they have completed. It never blocks; only the worker's `Reactor` waits. A composite queue (a stripe, a
//! bounce, a fault injector) accepts all of an I/O or none of it.

use crate::arena::Mem;
use crate::reactor::Reactor;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    /// `durable`: the data and the metadata needed to read it back survive a power failure once it completes (FUA).
    Write {
        durable: bool,
    },
    /// Everything that completed before is durable.
    Flush,
    WriteZeroes,
    Deallocate,
}

/// One request. `offset` and `len` count bytes of the queue's address space.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// The caller's identifier; unique among the I/Os in flight and less than the queue's depth.
    pub tag: u32,
    pub op: Op,
    pub offset: u64,
    pub len: u32,
    /// Destination or origin of the payload: at least `len` bytes, and for a read up to the end of the data, `len`
    /// rounded up to the alignment. Unused by Flush, WriteZeroes, Deallocate. It may be scattered (`Mem::pieces`):
    /// then each piece begins at a multiple of `mem_align`, its length is a multiple of `align`, and a source moves
    /// bytes directly to and from the pieces; a source that doesn't support that fails the I/O with a note.
    pub mem: Mem,
}

/// The queue had no room for all of the I/O, which is returned unchanged.
#[derive(Debug)]
pub struct Full(pub Io);

/// Path of one I/O's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// DMA directly into its destination.
    Direct,
    /// By cuFile in its compatibility mode, or not provably without it.
    Compat,
    /// Through memory that a CPU copied from (page cache, bounce buffer).
    Staged,
    /// Copied once, by the GPU, from a mapping of the page cache.
    Mapped,
    /// Copied once, by the kernel, between a socket and its destination.
    Fabric,
    /// No payload moved.
    Nothing,
}

/// Payload bytes by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Travelled {
    pub direct: u64,
    pub staged: u64,
    pub mapped: u64,
    pub compat: u64,
    pub fabric: u64,
}

impl Travelled {
    #[inline]
    pub fn add(&mut self, via: Via, bytes: u64) {
        match via {
            Via::Direct => self.direct += bytes,
            Via::Staged => self.staged += bytes,
            Via::Mapped => self.mapped += bytes,
            Via::Compat => self.compat += bytes,
            Via::Fabric => self.fabric += bytes,
            Via::Nothing => {}
        }
    }

    pub fn total(&self) -> u64 {
        self.direct + self.staged + self.mapped + self.compat + self.fabric
    }
}

/// Why an I/O failed: an errno, and a text if the number isn't enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub errno: i32,
    pub note: Option<Box<str>>,
}

impl Fault {
    pub fn errno(errno: i32) -> Fault {
        Fault { errno, note: None }
    }

    pub fn note(errno: i32, note: impl Into<Box<str>>) -> Fault {
        Fault { errno, note: Some(note.into()) }
    }

    /// With the part of a source that it occurred in, where that is known.
    #[must_use]
    pub fn in_part(self, part: Option<&String>) -> Fault {
        match part {
            Some(part) => Fault::note(self.errno, format!("{part}: {self}")),
            None => self,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.note {
            Some(note) => f.write_str(note),
            None => std::io::Error::from_raw_os_error(self.errno).fmt(f),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Done {
    pub tag: u32,
    /// Bytes moved; fewer than requested is a short transfer, 0 for a read is the end of the data.
    pub result: Result<u32, Fault>,
    pub via: Via,
    /// Nanoseconds in the second stage (the copy of `bounce`); 0 elsewhere.
    pub copy_ns: u32,
}

/// Limits of the I/Os that a queue accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes that can be addressed.
    pub bytes: u64,
    /// Offsets and lengths are multiples of this.
    pub align: u32,
    /// Memory addresses are multiples of this.
    pub mem_align: u32,
    /// Longest single I/O in bytes.
    pub io_bytes_max: u32,
    /// I/Os in flight.
    pub depth: u32,
}

/// A submission queue over an address space, owned by one worker.
///
/// The contract, which `tests/contract.rs` checks for every implementation:
/// - `push` either accepts the whole I/O or returns it in `Full`. It has no other effect that the caller could observe.
/// - `submit` starts the pushed I/Os. It may complete those that don't have to wait.
/// - Every accepted I/O is reaped exactly once, in any order, whatever happens to the device.
/// - Until an I/O is reaped, its memory belongs to the queue.
/// - None of the calls blocks on the device.
pub trait Queue {
    fn geometry(&self) -> Geometry;

    /// Number of I/Os that were pushed and not yet reaped.
    fn in_flight(&self) -> u32;

    /// False if an I/O would certainly be returned as `Full`, so that the caller needn't prepare one.
    fn takes_more(&self) -> bool {
        true
    }

    /// Address of these bytes if they are in memory already, for a caller that only reads them; valid as long as the
    /// queue exists. A read into that address moves nothing. Only the kernel may read there: if the file is truncated
    /// in the meantime, the kernel returns EFAULT, whereas a user-space read dies of SIGBUS. None: a read needs
    /// memory of its own.
    fn lend(&mut self, _offset: u64, _len: u32) -> Option<Mem> {
        None
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full>;

    /// Returns whether it takes rows (`push_rows`).
    fn takes_rows(&self) -> bool {
        false
    }

    /// Takes reads of as many bytes each as one I/O: one begins at each of `rows`, and they come one behind the other into
    /// `io.mem`, `io.len` bytes in all. `io.offset` means nothing, and the I/O ends whole or fails.
    fn push_rows(&mut self, io: Io, _rows: &[u64], _reactor: &mut Reactor) -> Result<(), Full> {
        Err(Full(io))
    }

    /// Returns the staged bytes of an I/O of rows that was reaped, and whose tag wasn't used since, though `Done`
    /// names another way.
    fn staged_of(&self, _tag: u32) -> u32 {
        0
    }

    fn submit(&mut self, reactor: &mut Reactor);

    /// Appends completed I/Os. Call it after `Reactor::wait`, or at any time for I/Os that completed inline.
    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>);

    /// Asks the device to cancel an I/O. It is still reaped, as completed or with ECANCELED, once the device has
    /// released its memory.
    fn abandon(&mut self, tag: u32, reactor: &mut Reactor);

    /// The next time at which the queue has something to reap although no external event will wake the reactor.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// One completion of the ring can complete several I/Os, so the reactor mustn't wait for more than one
    /// completion.
    fn wakes_at_first(&self) -> bool {
        false
    }

    /// Called last, with nothing in flight: takes back everything that the ring still holds. It may wait briefly.
    fn close(&mut self, _reactor: &mut Reactor) {}
}
