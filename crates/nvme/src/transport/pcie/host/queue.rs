//! An I/O queue pair from the driver's side (base, section 3.3.1): one thread owns it.

use super::PAGE_BYTES;
use crate::command::{Cqe, Sgl, Sqe};
use crate::transport::pcie::data::{self, PSDT_SGL};
use crate::transport::pcie::memory::{HostMemory, Unmapped};
use crate::transport::pcie::registers::Doorbell;
use crate::transport::pcie::ring::Ring;
use crate::transport::pcie::shadow::{passes, Shadow};
use std::sync::atomic::{fence, Ordering};
use zerocopy::IntoBytes;

const SQE_BYTES: u64 = size_of::<Sqe>() as u64;
const CQE_BYTES: u64 = size_of::<Cqe>() as u64;

/// Memory that a queue pair of so many entries needs, bytes: zeroed, contiguous for the function, at the start of a page.
pub fn queue_bytes(entries: u16) -> u64 {
    completion_offset(entries) + (u64::from(entries) * CQE_BYTES).next_multiple_of(PAGE_BYTES.into())
}

/// Returns the offset of its completion queue from the submission queue's start.
pub(super) fn completion_offset(entries: u16) -> u64 {
    (u64::from(entries) * SQE_BYTES).next_multiple_of(PAGE_BYTES.into())
}

/// A doorbell register that is to be written: 4 bytes at this offset of BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    pub offset: u64,
    pub value: u32,
}

/// One of a queue's two doorbells.
#[derive(Clone, Copy, Debug)]
struct Bell {
    offset: u64,
    /// Its shadow, and EventIdx.
    shadow: Option<(u64, u64)>,
    /// As the function was told last.
    reported: u16,
}

impl Bell {
    fn new(doorbell: Doorbell, stride: u8, shadow: Option<Shadow>) -> Bell {
        Bell {
            offset: doorbell.offset(stride),
            shadow: shadow.and_then(|shadow| shadow.addresses_of(doorbell)),
            reported: 0,
        }
    }

    /// Tells the function. None: nothing new, or its shadow is enough.
    fn tell<M: HostMemory + ?Sized>(&mut self, memory: &M, value: u16) -> Result<Option<Rung>, Unmapped> {
        let old = std::mem::replace(&mut self.reported, value);
        if old == value {
            return Ok(None);
        }
        if let Some((doorbell, event_index)) = self.shadow {
            memory.store(doorbell, value.into())?;
            // Either this end sees the function's index, or the function sees the doorbell.
            fence(Ordering::SeqCst);
            if !passes(memory.load(event_index)? as u16, old, value) {
                return Ok(None);
            }
        }
        Ok(Some(Rung { offset: self.offset, value: value.into() }))
    }
}

/// A submission queue and its completion queue.
#[derive(Debug)]
pub struct HostQueue {
    id: u16,
    address: u64,
    completions: u64,
    submission: Ring,
    /// Next entry of the completion queue, and its phase tag.
    head: u16,
    phase: bool,
    free: Vec<u16>,
    /// By command identifier: in flight.
    taken: Vec<bool>,
    tail_bell: Bell,
    head_bell: Bell,
}

impl HostQueue {
    /// `address`: of `queue_bytes`, zeroed; the submission queue comes first.
    pub(super) fn new(
        id: u16,
        address: u64,
        completions: u64,
        entries: u16,
        stride: u8,
        shadow: Option<Shadow>,
    ) -> HostQueue {
        let submission = Ring::new(entries);
        let commands = submission.entries() - 1;
        HostQueue {
            id,
            address,
            completions,
            submission,
            head: 0,
            phase: true,
            free: (0..commands).rev().collect(),
            taken: vec![false; commands.into()],
            tail_bell: Bell::new(Doorbell::Submission(id), stride, shadow),
            head_bell: Bell::new(Doorbell::Completion(id), stride, shadow),
        }
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    /// Commands that may be in flight.
    pub fn depth(&self) -> u16 {
        self.taken.len() as u16
    }

    /// Commands that may be pushed now.
    pub fn room(&self) -> u16 {
        self.free.len() as u16
    }

    /// Puts a command into the queue, under the identifier that comes back (below `depth`). None: it is full.
    pub fn push<M: HostMemory + ?Sized>(&mut self, memory: &M, sqe: Sqe) -> Result<Option<u16>, Unmapped> {
        let Some(cid) = self.free.last().copied() else { return Ok(None) };
        let sqe = Sqe { cid: cid.into(), ..sqe };
        let at = self.address + u64::from(self.submission.tail()) * SQE_BYTES;
        memory.write(at, sqe.as_bytes())?;
        self.free.pop();
        self.taken[usize::from(cid)] = true;
        // No more commands are in flight than there is room for, so the head needn't be known.
        self.submission.move_head(self.submission.tail().into());
        self.submission.add();
        Ok(Some(cid))
    }

    /// Tells the function of what was pushed. The register is to be written, or (None) needn't be.
    pub fn ring<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Rung>, Unmapped> {
        self.tail_bell.tell(memory, self.submission.tail())
    }

    /// The next completion. Those of commands that aren't in flight are dropped: the function is wrong.
    pub fn reap<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Cqe>, Unmapped> {
        for _ in 0..self.submission.entries() {
            let at = self.completions + u64::from(self.head) * CQE_BYTES;
            let last = memory.load(at + 12)?;
            if (last >> 16 & 1 != 0) != self.phase {
                return Ok(None);
            }
            let mut cqe = Cqe::default();
            memory.read(at, &mut cqe.as_mut_bytes()[..12])?;
            (cqe.cid, cqe.status) = ((last as u16).into(), ((last >> 16) as u16 & !1).into());
            self.head = self.submission.next(self.head);
            if self.head == 0 {
                self.phase = !self.phase;
            }
            let cid = cqe.cid.get();
            if self.taken.get_mut(usize::from(cid)).is_some_and(std::mem::take) {
                self.free.push(cid);
                return Ok(Some(cqe));
            }
        }
        Ok(None)
    }

    /// Returns the place of the next completion: the address of the entry's last dword, and its expected phase tag
    /// (bit 16). For owners that look before they call `reap`.
    pub fn next_completion(&self) -> (u64, bool) {
        (self.completions + u64::from(self.head) * CQE_BYTES + 12, self.phase)
    }

    /// Tells the function how far it was reaped; after some completions, not after each.
    pub fn release<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Rung>, Unmapped> {
        self.head_bell.tell(memory, self.head)
    }
}

/// Points a command to `bytes` at `address`, which are contiguous for the function: by one SGL descriptor (`sgl`: where the
/// controller has SGLS), or by PRPs, whose list is written to `list`: 8 bytes for each page of the data, at the start of
/// a page.
pub fn point<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: Sqe,
    address: u64,
    bytes: u32,
    sgl: bool,
    list: u64,
) -> Result<Sqe, Unmapped> {
    if sgl {
        let flags = sqe.flags & 0b11 | PSDT_SGL << 6;
        return Ok(Sqe { flags, sgl: Sgl::data_block(address, bytes), ..sqe });
    }
    let page = u64::from(PAGE_BYTES);
    let second = (address & !(page - 1)) + page;
    let end = address + u64::from(bytes);
    match end.saturating_sub(second).div_ceil(page) {
        0 => Ok(data::with_prps(sqe, [address, 0])),
        1 => Ok(data::with_prps(sqe, [address, second])),
        pages => {
            write_list(memory, list, second, pages)?;
            Ok(data::with_prps(sqe, [address, list]))
        }
    }
}

/// A list of consecutive pages; the last entry of each of its own pages but the last points to the next.
fn write_list<M: HostMemory + ?Sized>(memory: &M, list: u64, first: u64, pages: u64) -> Result<(), Unmapped> {
    let (page, per_page) = (u64::from(PAGE_BYTES), u64::from(PAGE_BYTES) / 8);
    let (mut at, mut done) = (list, 0);
    while done < pages {
        let left_here = per_page - at % page / 8;
        let entry = match left_here == 1 && pages - done > 1 {
            true => at + 8,
            false => {
                done += 1;
                first + (done - 1) * page
            }
        };
        memory.write(at, &entry.to_le_bytes())?;
        at += 8;
    }
    Ok(())
}
