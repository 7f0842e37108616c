//! Steps of a running command, by its progress.

use super::fault::{is_unsupported, status_of};
use forebay_io::{Fault, Mem};
use forebay_nvme::nvm::{Geometry, Op, Request};
use forebay_nvme::status::{Code, Status};

/// Next request of a command to the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub op: forebay_io::Op,
    pub offset: u64,
    pub len: u32,
    pub mem: Mem,
}

/// Verify reads this much at a time.
const VERIFIED_BYTES: u64 = 128 << 10;

pub(crate) const FLUSH: Step = Step { op: forebay_io::Op::Flush, offset: 0, len: 0, mem: Mem::None };

/// The step that makes what was written durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flush {
    #[default]
    NotYet,
    Begun,
    Done,
}

/// Progress of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes of it (of Deallocate: over all ranges) that are done.
    pub moved: u64,
    /// Write Zeroes: the source can't, so zeros are written.
    pub by_hand: bool,
    pub flush: Flush,
}

/// Memory of a command's bytes.
pub(crate) trait Places {
    /// Its data.
    fn data(&self) -> Mem;
    /// Returns the buffer of `scratch_bytes`.
    fn scratch(&self) -> Mem;
    /// Zeros to write from, and how many there are.
    fn blank(&self) -> (Mem, usize);
    /// Returns whether Compare read what came with the command.
    fn is_same(&self, len: usize) -> bool;
    /// Returns the ranges that its data list, in bytes: (offset, length). Err: one is outside.
    fn ranges<'a>(
        &'a self,
        op: Op,
        geometry: &'a Geometry,
    ) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status>;
}

/// Bounds that a source sets to the steps on it.
pub(crate) struct Bounds<'a> {
    pub geometry: &'a Geometry,
    /// Longest piece of Write Zeroes and Deallocate.
    pub piece_max: u32,
    /// What is completed as written may not be durable yet.
    pub write_cache: bool,
}

pub(crate) enum Next {
    Step(Step),
    Done(Status),
}

/// Consequence of a step's end for its command.
pub(crate) enum After {
    /// On to the next step.
    Next,
    Done,
    Failed(Fault),
}

impl Progress {
    /// The source is done with a step.
    pub(crate) fn moved(&mut self, request: &Request, result: Result<u32, Fault>) -> After {
        match result {
            Ok(_) if self.flush == Flush::Begun => {
                self.flush = Flush::Done;
                After::Next
            }
            Ok(0) => After::Failed(Fault::note(libc::ENODATA, "the source ends before the namespace does")),
            Ok(bytes) => {
                self.moved += u64::from(bytes);
                After::Next
            }
            Err(fault) => match request.op {
                Op::WriteZeroes { .. }
                    if !self.by_hand && self.flush == Flush::NotYet && is_unsupported(fault.errno) =>
                {
                    self.by_hand = true;
                    After::Next
                }
                // Deallocation is advice.
                Op::DatasetManagement { .. } if is_unsupported(fault.errno) => After::Done,
                _ => After::Failed(fault),
            },
        }
    }
}

/// Returns the length of the buffer that a request reads into for itself.
pub(crate) fn scratch_bytes(request: &Request) -> u64 {
    match request.op {
        Op::Compare => request.bytes,
        Op::Verify => request.bytes.min(VERIFIED_BYTES),
        _ => 0,
    }
}

/// Returns whether a request may be repeated after a part of it was done: it changes only the requester's own memory.
pub(crate) fn is_repeatable(request: &Request) -> bool {
    !request.op.changes() && request.op.list_bytes() == 0
}

/// Returns the status of a fault for the host that sent the request.
pub(crate) fn failure(request: &Request, fault: &Fault) -> Status {
    status_of(fault.errno, request.op)
}

/// `write_cache`: writes may be completed before they are durable.
pub(crate) fn next(
    request: &Request,
    progress: &Progress,
    places: &impl Places,
    bounds: &Bounds<'_>,
    write_cache: bool,
) -> Next {
    let left = request.bytes.saturating_sub(progress.moved);
    let offset = request.offset + progress.moved.min(request.bytes);
    let step = |op, most: u64, mem| Next::Step(Step { op, offset, len: left.min(most) as u32, mem });
    let durable = request.fua || !write_cache;
    let not_flushed = progress.flush == Flush::NotYet;
    let data = || places.data().after(progress.moved as usize);
    match request.op {
        Op::Flush if not_flushed => Next::Step(FLUSH),
        // What is read with FUA is durable first (nvm, section 3.2.4).
        Op::Read if request.fua && bounds.write_cache && not_flushed => Next::Step(FLUSH),
        Op::Read if left > 0 => step(forebay_io::Op::Read, left, data()),
        Op::Write if left > 0 => step(forebay_io::Op::Write { durable }, left, data()),
        Op::Compare if left > 0 => {
            step(forebay_io::Op::Read, left, places.scratch().after(progress.moved as usize))
        }
        Op::Compare => Next::Done(match places.is_same(request.bytes as usize) {
            true => Status::SUCCESS,
            false => Status::fatal(Code::COMPARE_FAILURE),
        }),
        Op::Verify if left > 0 => step(forebay_io::Op::Read, VERIFIED_BYTES, places.scratch()),
        Op::WriteZeroes { .. } if left > 0 && progress.by_hand => {
            let (mem, bytes) = places.blank();
            step(forebay_io::Op::Write { durable }, bytes as u64, mem)
        }
        Op::WriteZeroes { .. } if left > 0 => {
            step(forebay_io::Op::WriteZeroes, bounds.piece_max.into(), Mem::None)
        }
        // Zeroed by the source, not yet durable.
        Op::WriteZeroes { .. } if durable && !progress.by_hand && not_flushed => Next::Step(FLUSH),
        Op::DatasetManagement { .. } => deallocated(request.op, progress, places, bounds),
        Op::Flush | Op::Read | Op::Write | Op::Verify | Op::WriteZeroes { .. } => Next::Done(Status::SUCCESS),
    }
}

/// `moved` counts over all ranges: each range's bytes come one after the other.
fn deallocated(op: Op, progress: &Progress, places: &impl Places, bounds: &Bounds<'_>) -> Next {
    let mut before = 0;
    match places.ranges(op, bounds.geometry) {
        Err(status) => Next::Done(status),
        Ok(mut all) => {
            let here = all.find_map(|(offset, bytes)| {
                let begin = before;
                before += bytes;
                let moved = progress.moved;
                (moved < before).then(|| (offset + moved - begin, before - moved))
            });
            here.map_or(Next::Done(Status::SUCCESS), |(offset, left)| {
                let len = left.min(bounds.piece_max.into()) as u32;
                Next::Step(Step { op: forebay_io::Op::Deallocate, offset, len, mem: Mem::None })
            })
        }
    }
}
