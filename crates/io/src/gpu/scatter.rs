//! Short pieces of pinned memory that go to places apart from each other: one launch for all of them. A copy of the
//! driver's for each costs 20 µs and more of a processor, whatever its length.

use super::cuda::{Cuda, Device, DeviceMemory, Pinned, Stream};
use super::kernels::{Piece, Pull, Rows, Scatter, ROW_PIECE_BYTES};
use crate::arena::Arena;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::cell::RefCell;
use std::sync::Arc;

/// Launches under way at a time.
const LISTS: usize = 8;
/// A copy engine that serves the streams of several workers in turn takes 5 µs from one to the next: as long as 256 KiB take
/// the link. Launches overlap. Below, a launch has too little to do; above, the turn hardly counts.
const PULLED_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=2 << 20;

/// The lists of a worker's launches: pinned, made once, each for one launch at a time.
pub struct Scattering {
    // Field order is drop order: the pin goes before what it pins.
    _pin: Pinned,
    host: Arena,
    device: DeviceMemory,
    kernel: Scatter,
    rows: Rows,
    capacity: usize,
    free: RefCell<Vec<usize>>,
}

impl Scattering {
    /// Lists of at most `capacity` pieces.
    ///
    /// # Errors
    /// `Machine`: the device doesn't read host memory where it lies, or there is no compiler for its kernel.
    pub fn new(device: &Arc<Device>, capacity: usize) -> Result<Scattering, Error> {
        check_reads(device)?;
        let (kernel, rows) = (Scatter::open(device)?, Rows::open(device)?);
        let host = Arena::new(LISTS, capacity.max(1).saturating_mul(ROW_PIECE_BYTES), Pages::Small)?;
        let pin = device.pin(&host)?;
        let memory = device.slots(LISTS, host.slot_bytes())?;
        let free = RefCell::new((0..LISTS).collect());
        Ok(Scattering { _pin: pin, host, device: memory, kernel, rows, capacity, free })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn has_list(&self) -> bool {
        !self.free.borrow().is_empty()
    }

    /// A list that no launch uses; the taker gives it back once its launch has ended.
    pub fn take(&self) -> Option<usize> {
        self.free.borrow_mut().pop()
    }

    pub fn give(&self, list: usize) {
        self.free.borrow_mut().push(list);
    }

    /// Sends the pieces to the device as list `list`, and launches what moves them.
    ///
    /// # Safety
    /// The device may read and write the pieces, and nobody else touches them; the list was taken; both until the stream
    /// has passed.
    pub unsafe fn queue(
        &self,
        stream: &Stream,
        list: usize,
        pieces: impl ExactSizeIterator<Item = Piece>,
    ) -> Cuda<()> {
        let count = pieces.len();
        assert!(count <= self.capacity, "{count} pieces in a list of {}", self.capacity);
        let host = self.host.slot(list).host_ptr().cast::<Piece>();
        let there = self.device.address() + (list * self.host.slot_bytes()) as u64;
        let mut longest = 0;
        for (i, piece) in pieces.enumerate() {
            longest = longest.max(piece.bytes);
            // SAFETY: i < capacity, so the entry lies in the list's slot, which no launch uses.
            unsafe { host.add(i).write(piece) };
        }
        // SAFETY: both lists hold as many entries; the rest is the caller's promise.
        unsafe {
            stream.copy_to_device(there, host.cast(), count * ROW_PIECE_BYTES)?;
            self.kernel.queue(stream, there, count as u64, longest)
        }
    }

    /// Sends where rows begin to the device as list `list`, and launches what fetches them: `row_bytes` each, from `base` +
    /// offset, one behind the other to `to`; it leaves the place of one that is `ELSEWHERE` as it is.
    ///
    /// # Safety
    /// As for `queue`, of each row.
    pub unsafe fn queue_rows(
        &self,
        stream: &Stream,
        list: usize,
        (base, offsets): (*const u8, &[u64]),
        (to, row_bytes): (u64, u64),
    ) -> Cuda<()> {
        let count = offsets.len();
        assert!(count <= self.capacity, "{count} rows in a list of {}", self.capacity);
        let host = self.host.slot(list).host_ptr();
        let there = self.device.address() + (list * self.host.slot_bytes()) as u64;
        // SAFETY: an offset is shorter than a piece, so that they fit the list's slot, which no launch uses.
        unsafe { std::ptr::copy_nonoverlapping(offsets.as_ptr(), host.cast::<u64>(), count) };
        // SAFETY: both lists hold them; the rest is the caller's promise.
        unsafe {
            stream.copy_to_device(there, host, std::mem::size_of_val(offsets))?;
            self.rows.queue(stream, base, 1, there, to, count as u64, row_bytes)
        }
    }
}

fn check_reads(device: &Device) -> Result<(), Error> {
    if device.reads_registered() {
        return Ok(());
    }
    let asked = format!("pieces scattered by GPU {}", device.index());
    Err(Error::machine(asked, "it doesn't read registered memory at the host's addresses", ""))
}

/// Launches that fetch one piece each.
pub struct Pulling(Pull);

impl Pulling {
    /// # Errors
    /// As of `Scattering::new`.
    pub fn new(device: &Arc<Device>) -> Result<Pulling, Error> {
        check_reads(device)?;
        Pull::open(device).map(Pulling)
    }

    /// Pieces of so many bytes are among those that it takes, if they lie well.
    pub fn takes_up_to(bytes: u64) -> bool {
        bytes <= *PULLED_BYTES.end() as u64
    }

    /// Returns whether a launch fetches such a piece sooner than a copy, among those of other workers.
    pub fn takes(from: *const u8, to: u64, bytes: usize) -> bool {
        let fits = |n: usize| n % Pull::UNIT == 0;
        PULLED_BYTES.contains(&bytes) && fits(from as usize) && fits(to as usize) && fits(bytes)
    }

    /// Launches what fetches a piece that it `takes`.
    ///
    /// # Safety
    /// The device may read and write the piece, which nobody else touches until the stream has passed.
    pub unsafe fn queue(&self, stream: &Stream, from: *const u8, to: u64, bytes: usize) -> Cuda<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.queue(stream, from, to, bytes as u64) }
    }
}
