//! Requests of the block layer as the executor carries them out, and how they end.

use super::uapi::{op, Descriptor, FUA, SECTOR};
use crate::namespace::steps::{Flush, Places, Progress};
use forebay_io::{Fault, Mem};
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::Status;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub bytes: u64,
    pub writable: bool,
    /// Length of a slot.
    pub transfer_max: u32,
    /// Longest step without payload.
    pub piece_max: u32,
    /// Writes may be completed before they are durable.
    pub write_cache: bool,
}

/// Returns the request of a descriptor. `fua`: durable once it completes.
///
/// # Errors
/// The errno that the request fails with. The driver checks all of it; nothing here relies on that.
pub(super) fn parse(descriptor: &Descriptor, limits: &Limits) -> Result<Request, i32> {
    let op = match descriptor.op_flags as u8 {
        op::READ => Op::Read,
        op::WRITE => Op::Write,
        op::FLUSH => Op::Flush,
        op::DISCARD => Op::DatasetManagement { ranges: 1, deallocate: true },
        op::WRITE_ZEROES => Op::WriteZeroes { deallocate: false },
        _ => return Err(libc::EOPNOTSUPP),
    };
    if op == Op::Flush {
        return Ok(Request { op, offset: 0, bytes: 0, fua: false, transfer: Transfer::None });
    }
    if op.changes() && !limits.writable {
        return Err(libc::EROFS);
    }
    let bytes = u64::from(descriptor.nr_sectors) * SECTOR;
    let offset = descriptor.start_sector.checked_mul(SECTOR).ok_or(libc::EINVAL)?;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= limits.bytes);
    let fits = bytes <= u64::from(limits.transfer_max);
    let moves = matches!(op, Op::Read | Op::Write);
    if bytes == 0 || !inside || (moves && !fits) {
        return Err(libc::EINVAL);
    }
    // What is read needn't be durable.
    let fua = op.changes() && (descriptor.op_flags & FUA != 0 || !limits.write_cache);
    Ok(Request { op, offset, bytes, fua, transfer: Transfer::None })
}

/// The slot of a request.
pub(super) struct Slot {
    pub mem: Mem,
    /// Its length, of zeros where they are written by hand.
    pub bytes: u32,
    /// Range of a Discard: (offset, length).
    pub range: (u64, u64),
}

impl Places for Slot {
    fn data(&self) -> Mem {
        self.mem
    }

    fn scratch(&self) -> Mem {
        Mem::None
    }

    fn blank(&self) -> (Mem, usize) {
        (self.mem, self.bytes as usize)
    }

    /// The block layer compares nothing.
    fn is_same(&self, _: usize) -> bool {
        false
    }

    fn ranges<'a>(&'a self, _: Op, _: &'a Geometry) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
        Ok(std::iter::once(self.range))
    }
}

/// How a request ends: 0, or an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub i32);

impl From<Status> for Errno {
    fn from(status: Status) -> Errno {
        Errno(if status.is_success() { 0 } else { libc::EIO })
    }
}

/// Returns a step's result as the block layer is told of it: no errno says that the source ends before the device.
pub(super) fn of_source(result: Result<u32, Fault>, progress: &Progress) -> Result<u32, Fault> {
    match result {
        Ok(0) if progress.flush != Flush::Begun => Err(Fault::errno(libc::EIO)),
        result => result,
    }
}

/// Returns an errno for which the block layer has a status (Linux, block/blk-core.c, `blk_errors`); it makes EIO of
/// all others. EAGAIN would end a request as one that must not wait.
pub(super) fn errno_of(errno: i32) -> i32 {
    match errno {
        libc::ENOTCONN | libc::ECONNRESET | libc::EHOSTUNREACH | libc::ENODEV | libc::EPIPE => libc::ENOLINK,
        libc::ECANCELED => libc::ETIMEDOUT,
        libc::EDQUOT | libc::EFBIG => libc::ENOSPC,
        libc::EAGAIN | libc::EINTR => libc::EIO,
        errno => errno.abs().max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::steps::{self, next, After, Bounds};
    use crate::target::arena::ScratchBuffer;
    use forebay_nvme::log::AnaState;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        bytes: 1 << 30,
        writable: true,
        transfer_max: 1 << 20,
        piece_max: 1 << 24,
        write_cache: true,
    };

    fn descriptor(op: u8, flags: u32, start_sector: u64, nr_sectors: u32) -> Descriptor {
        Descriptor { op_flags: u32::from(op) | flags, nr_sectors, start_sector, addr: 0 }
    }

    /// A request and how far it is, on a source that does as the test says.
    struct Command {
        request: Request,
        progress: Progress,
        slot: ScratchBuffer,
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Next {
        Step {
            op: forebay_io::Op,
            offset: u64,
            len: u32,
            /// Offset of its payload in the slot.
            at: Option<u32>,
        },
        Done,
        Failed(i32),
    }

    impl Command {
        fn new(request: Request) -> Command {
            let slot = ScratchBuffer::new(LIMITS.transfer_max as usize);
            Command { request, progress: Progress::default(), slot }
        }

        fn next(&mut self) -> Next {
            let Request { offset, bytes, .. } = self.request;
            let slot = Slot { mem: self.slot.mem(), bytes: LIMITS.transfer_max, range: (offset, bytes) };
            let geometry = Geometry {
                block_bytes: 512,
                blocks: LIMITS.bytes / SECTOR,
                read_only: false,
                transfer_bytes_max: None,
                ana: AnaState::Optimized,
            };
            let bounds = Bounds { geometry: &geometry, piece_max: LIMITS.piece_max, write_cache: true };
            match next(&self.request, &self.progress, &slot, &bounds, true) {
                steps::Next::Done(status) if status.is_success() => Next::Done,
                steps::Next::Done(status) => panic!("{status:?}"),
                steps::Next::Step(step) => {
                    if step.op == forebay_io::Op::Flush {
                        self.progress.flush = Flush::Begun;
                    }
                    let from = self.slot.mem().host_ptr() as usize;
                    let at = match step.mem {
                        Mem::None => None,
                        mem => Some((mem.host_ptr() as usize - from) as u32),
                    };
                    Next::Step { op: step.op, offset: step.offset, len: step.len, at }
                }
            }
        }

        fn ended(&mut self, result: Result<u32, Fault>) -> Next {
            let result = of_source(result, &self.progress);
            match self.progress.moved(&self.request, result) {
                After::Next => self.next(),
                After::Done => Next::Done,
                After::Failed(fault) => Next::Failed(errno_of(fault.errno)),
            }
        }
    }

    fn command(op: u8, flags: u32, bytes: u64) -> Command {
        Command::new(parse(&descriptor(op, flags, 8, (bytes / SECTOR) as u32), &LIMITS).unwrap())
    }

    fn step(op: forebay_io::Op, offset: u64, len: u32, at: Option<u32>) -> Next {
        Next::Step { op, offset, len, at }
    }

    // promise: UBL-1
    #[test]
    fn what_lies_outside_or_is_unknown_fails() {
        for (d, errno) in [
            (descriptor(op::READ, 0, (1 << 30) / SECTOR, 1), libc::EINVAL),
            (descriptor(op::READ, 0, u64::MAX, 1), libc::EINVAL),
            (descriptor(op::READ, 0, 0, 0), libc::EINVAL),
            (descriptor(op::WRITE, 0, 0, 4096), libc::EINVAL),
            (descriptor(4, 0, 0, 8), libc::EOPNOTSUPP),
            (descriptor(13, 0, 0, 8), libc::EOPNOTSUPP),
        ] {
            assert_eq!(parse(&d, &LIMITS), Err(errno), "{d:?}");
        }
        let read_only = Limits { writable: false, ..LIMITS };
        for op in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            assert_eq!(parse(&descriptor(op, 0, 0, 8), &read_only), Err(libc::EROFS));
        }
        assert!(parse(&descriptor(op::FLUSH, 0, u64::MAX, 0), &read_only).is_ok());
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_ended() {
        let mut read = command(op::READ, 0, 8192);
        assert_eq!(read.next(), step(forebay_io::Op::Read, 4096, 8192, Some(0)));
        assert_eq!(read.ended(Ok(512)), step(forebay_io::Op::Read, 4608, 7680, Some(512)));
        assert_eq!(read.ended(Ok(7680)), Next::Done);
        let mut ends = command(op::READ, 0, 8192);
        ends.next();
        assert_eq!(ends.ended(Ok(0)), Next::Failed(libc::EIO), "the source ends before the device");
    }

    #[test]
    fn fua_is_durable_and_so_is_everything_without_a_cache() {
        assert!(matches!(
            command(op::WRITE, FUA, 512).next(),
            Next::Step { op: forebay_io::Op::Write { durable: true }, .. }
        ));
        assert!(matches!(
            command(op::WRITE, 0, 512).next(),
            Next::Step { op: forebay_io::Op::Write { durable: false }, .. }
        ));
        let through = Limits { write_cache: false, ..LIMITS };
        let write = parse(&descriptor(op::WRITE, 0, 0, 1), &through).unwrap();
        assert!(write.fua);
    }

    // promise: UBL-2
    #[test]
    fn zeros_are_written_by_hand_where_the_source_has_none() {
        let mut zero = command(op::WRITE_ZEROES, 0, 3 << 20);
        assert_eq!(zero.next(), step(forebay_io::Op::WriteZeroes, 4096, 3 << 20, None));
        let mut next = zero.ended(Err(Fault::errno(libc::EOPNOTSUPP)));
        for piece in 0..3 {
            let wanted =
                step(forebay_io::Op::Write { durable: false }, 4096 + (piece << 20), 1 << 20, Some(0));
            assert_eq!(next, wanted);
            next = zero.ended(Ok(1 << 20));
        }
        assert_eq!(next, Next::Done);
    }

    #[test]
    fn zeros_with_fua_are_flushed() {
        let mut zero = command(op::WRITE_ZEROES, FUA, 4096);
        zero.next();
        assert_eq!(zero.ended(Ok(4096)), step(forebay_io::Op::Flush, 0, 0, None));
        assert_eq!(zero.ended(Ok(0)), Next::Done);
        let mut zero = command(op::WRITE_ZEROES, FUA, 4096);
        zero.next();
        zero.ended(Ok(4096));
        assert_eq!(zero.ended(Err(Fault::errno(libc::EINVAL))), Next::Failed(libc::EINVAL), "not durable");
    }

    #[test]
    fn a_source_that_can_not_discard_does_no_harm() {
        let mut discard = command(op::DISCARD, 0, 1 << 28);
        assert_eq!(discard.next(), step(forebay_io::Op::Deallocate, 4096, 1 << 24, None));
        assert_eq!(discard.ended(Err(Fault::errno(libc::EOPNOTSUPP))), Next::Done);
        let mut discard = command(op::DISCARD, 0, 1 << 28);
        discard.next();
        assert_eq!(discard.ended(Err(Fault::errno(libc::EIO))), Next::Failed(libc::EIO));
    }

    #[test]
    fn faults_become_what_the_block_layer_knows() {
        for (errno, kernel) in [
            (libc::EIO, libc::EIO),
            (libc::EAGAIN, libc::EIO),
            (libc::ENOTCONN, libc::ENOLINK),
            (libc::ECANCELED, libc::ETIMEDOUT),
            (libc::ENOSPC, libc::ENOSPC),
            (0, 1),
        ] {
            let mut read = command(op::READ, 0, 512);
            read.next();
            assert_eq!(read.ended(Err(Fault::errno(errno))), Next::Failed(kernel), "{errno}");
        }
    }

    proptest! {
        /// Whatever the descriptor says and the source answers, steps stay inside, and it ends.
        // promise: UBL-1
        #[test]
        fn steps_stay_inside_and_end(
            op_flags in any::<u32>(), nr_sectors in 0u32..1 << 17, start in 0u64..1 << 22,
            answers in proptest::collection::vec((any::<bool>(), 0u32..1 << 21, 0i32..140), 1..64),
        ) {
            let d = Descriptor { op_flags: op_flags & 0xffff_ff07, nr_sectors, start_sector: start, addr: 0 };
            let Ok(request) = parse(&d, &LIMITS) else { return Ok(()) };
            let mut command = Command::new(request);
            let mut next = command.next();
            for (good, bytes, errno) in answers {
                match next {
                    Next::Step { op, offset, len, at } => {
                        if op != forebay_io::Op::Flush {
                            prop_assert!(len > 0 && offset >= request.offset);
                            prop_assert!(offset + u64::from(len) <= request.offset + request.bytes);
                        }
                        prop_assert!(u64::from(at.unwrap_or(0)) + u64::from(at.map_or(0, |_| len)) <= 1 << 20);
                        let result = if good { Ok(bytes.min(len)) } else { Err(Fault::errno(errno)) };
                        next = command.ended(result);
                    }
                    Next::Done | Next::Failed(_) => return Ok(()),
                }
            }
        }
    }
}
