//! One request of the block layer: what its descriptor says, and what is to be done about it next.

use super::uapi::{op, Descriptor, FUA, SECTOR};
use forebay_io::queue::{Fault, Op};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub kind: Kind,
    pub offset: u64,
    pub bytes: u64,
    /// Durable once it completes.
    pub durable: bool,
}

impl Request {
    /// # Errors
    /// The errno that the request fails with. The driver checks all of it; nothing here relies on that.
    pub(super) fn parse(descriptor: &Descriptor, limits: &Limits) -> Result<Request, i32> {
        let kind = match descriptor.op_flags as u8 {
            op::READ => Kind::Read,
            op::WRITE => Kind::Write,
            op::FLUSH => Kind::Flush,
            op::DISCARD => Kind::Discard,
            op::WRITE_ZEROES => Kind::WriteZeroes,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let durable = descriptor.op_flags & FUA != 0 || !limits.write_cache;
        if kind == Kind::Flush {
            return Ok(Request { kind, offset: 0, bytes: 0, durable });
        }
        if kind != Kind::Read && !limits.writable {
            return Err(libc::EROFS);
        }
        let bytes = u64::from(descriptor.nr_sectors) * SECTOR;
        let offset = descriptor.start_sector.checked_mul(SECTOR).ok_or(libc::EINVAL)?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= limits.bytes);
        let fits = bytes <= u64::from(limits.transfer_max);
        let moves = matches!(kind, Kind::Read | Kind::Write);
        if bytes == 0 || !inside || (moves && !fits) {
            return Err(libc::EINVAL);
        }
        Ok(Request { kind, offset, bytes, durable })
    }
}

/// A request, and how far it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub request: Request,
    moved: u64,
    flushed: bool,
    /// The source can't zero: zeros are written.
    by_hand: bool,
    under_way: Option<Op>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A step on the source.
    Step {
        op: Op,
        offset: u64,
        len: u32,
        /// Offset of its payload in the slot; None without payload.
        at: Option<u32>,
    },
    /// The slot must hold zeros before `next` is asked again.
    Blank,
    /// It is done.
    Done,
    /// It fails with this errno.
    Failed(i32),
}

impl Command {
    pub(super) fn new(request: Request) -> Command {
        Command { request, moved: 0, flushed: false, by_hand: false, under_way: None }
    }

    /// Returns the next step.
    pub(super) fn next(&mut self, limits: &Limits) -> Next {
        let Request { kind, bytes, durable, .. } = self.request;
        let left = bytes - self.moved;
        match kind {
            Kind::Read if left > 0 => self.step(Op::Read, left, true),
            Kind::Write if left > 0 => self.step(Op::Write { durable }, left, true),
            Kind::Discard if left > 0 => self.step(Op::Deallocate, left.min(limits.piece_max.into()), false),
            Kind::WriteZeroes if left > 0 && self.by_hand => {
                let len = left.min(limits.transfer_max.into()) as u32;
                self.under_way = Some(Op::Write { durable });
                let offset = self.request.offset + self.moved;
                Next::Step { op: Op::Write { durable }, offset, len, at: Some(0) }
            }
            Kind::WriteZeroes if left > 0 => {
                self.step(Op::WriteZeroes, left.min(limits.piece_max.into()), false)
            }
            // What the source zeroed by itself isn't durable yet.
            Kind::WriteZeroes if durable && !self.by_hand && !self.flushed => self.flush(),
            Kind::Flush if !self.flushed => self.flush(),
            _ => Next::Done,
        }
    }

    /// Ends the step that `next` returned.
    pub(super) fn ended(&mut self, result: Result<u32, Fault>, limits: &Limits) -> Next {
        let step = self.under_way.take();
        match result {
            Ok(_) if step == Some(Op::Flush) => self.flushed = true,
            Ok(0) => return Next::Failed(libc::EIO),
            Ok(bytes) => self.moved += u64::from(bytes).min(self.request.bytes - self.moved),
            Err(fault) if is_unsupported(fault.errno) => match step {
                Some(Op::WriteZeroes) => {
                    self.by_hand = true;
                    return Next::Blank;
                }
                // Discarding is advice.
                Some(Op::Deallocate) => return Next::Done,
                _ => return Next::Failed(errno_of(fault.errno)),
            },
            Err(fault) => return Next::Failed(errno_of(fault.errno)),
        }
        self.next(limits)
    }

    fn step(&mut self, op: Op, len: u64, payload: bool) -> Next {
        self.under_way = Some(op);
        let offset = self.request.offset + self.moved;
        Next::Step { op, offset, len: len as u32, at: payload.then_some(self.moved as u32) }
    }

    fn flush(&mut self) -> Next {
        self.under_way = Some(Op::Flush);
        Next::Step { op: Op::Flush, offset: 0, len: 0, at: None }
    }
}

/// The source can't do this at all.
fn is_unsupported(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENOTTY)
}

/// Returns an errno for which the block layer has a status (Linux, block/blk-core.c, `blk_errors`); it makes EIO of
/// all others. EAGAIN would end a request as one that must not wait.
fn errno_of(errno: i32) -> i32 {
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

    fn command(op: u8, flags: u32, bytes: u64) -> Command {
        Command::new(Request::parse(&descriptor(op, flags, 8, (bytes / SECTOR) as u32), &LIMITS).unwrap())
    }

    fn step(op: Op, offset: u64, len: u32, at: Option<u32>) -> Next {
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
            assert_eq!(Request::parse(&d, &LIMITS), Err(errno), "{d:?}");
        }
        let read_only = Limits { writable: false, ..LIMITS };
        for op in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            assert_eq!(Request::parse(&descriptor(op, 0, 0, 8), &read_only), Err(libc::EROFS));
        }
        assert!(Request::parse(&descriptor(op::FLUSH, 0, u64::MAX, 0), &read_only).is_ok());
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_ended() {
        let mut read = command(op::READ, 0, 8192);
        assert_eq!(read.next(&LIMITS), step(Op::Read, 4096, 8192, Some(0)));
        assert_eq!(read.ended(Ok(512), &LIMITS), step(Op::Read, 4608, 7680, Some(512)));
        assert_eq!(read.ended(Ok(7680), &LIMITS), Next::Done);
        let mut ends = command(op::READ, 0, 8192);
        ends.next(&LIMITS);
        assert_eq!(ends.ended(Ok(0), &LIMITS), Next::Failed(libc::EIO), "the source ends before the device");
    }

    #[test]
    fn fua_is_durable_and_so_is_everything_without_a_cache() {
        assert!(matches!(
            command(op::WRITE, FUA, 512).next(&LIMITS),
            Next::Step { op: Op::Write { durable: true }, .. }
        ));
        assert!(matches!(
            command(op::WRITE, 0, 512).next(&LIMITS),
            Next::Step { op: Op::Write { durable: false }, .. }
        ));
        let through = Limits { write_cache: false, ..LIMITS };
        let write = Request::parse(&descriptor(op::WRITE, 0, 0, 1), &through).unwrap();
        assert!(write.durable);
    }

    // promise: UBL-2
    #[test]
    fn zeros_are_written_by_hand_where_the_source_has_none() {
        let mut zero = command(op::WRITE_ZEROES, 0, 3 << 20);
        assert_eq!(zero.next(&LIMITS), step(Op::WriteZeroes, 4096, 3 << 20, None));
        assert_eq!(zero.ended(Err(Fault::errno(libc::EOPNOTSUPP)), &LIMITS), Next::Blank);
        for piece in 0..3 {
            let wanted = step(Op::Write { durable: false }, 4096 + (piece << 20), 1 << 20, Some(0));
            assert_eq!(zero.next(&LIMITS), wanted);
            let after = zero.ended(Ok(1 << 20), &LIMITS);
            assert_eq!(after == Next::Done, piece == 2);
        }
    }

    #[test]
    fn zeros_with_fua_are_flushed() {
        let mut zero = command(op::WRITE_ZEROES, FUA, 4096);
        zero.next(&LIMITS);
        assert_eq!(zero.ended(Ok(4096), &LIMITS), step(Op::Flush, 0, 0, None));
        assert_eq!(zero.ended(Ok(0), &LIMITS), Next::Done);
    }

    #[test]
    fn a_source_that_can_not_discard_does_no_harm() {
        let mut discard = command(op::DISCARD, 0, 1 << 28);
        assert_eq!(discard.next(&LIMITS), step(Op::Deallocate, 4096, 1 << 24, None));
        assert_eq!(discard.ended(Err(Fault::errno(libc::EOPNOTSUPP)), &LIMITS), Next::Done);
        let mut discard = command(op::DISCARD, 0, 1 << 28);
        discard.next(&LIMITS);
        assert_eq!(discard.ended(Err(Fault::errno(libc::EIO)), &LIMITS), Next::Failed(libc::EIO));
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
            read.next(&LIMITS);
            assert_eq!(read.ended(Err(Fault::errno(errno)), &LIMITS), Next::Failed(kernel), "{errno}");
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
            let Ok(request) = Request::parse(&d, &LIMITS) else { return Ok(()) };
            let mut command = Command::new(request);
            let mut next = command.next(&LIMITS);
            for (good, bytes, errno) in answers {
                match next {
                    Next::Step { op, offset, len, at } => {
                        if op != Op::Flush {
                            prop_assert!(len > 0 && offset >= request.offset);
                            prop_assert!(offset + u64::from(len) <= request.offset + request.bytes);
                        }
                        prop_assert!(u64::from(at.unwrap_or(0)) + u64::from(at.map_or(0, |_| len)) <= 1 << 20);
                        let result = if good { Ok(bytes.min(len)) } else { Err(Fault::errno(errno)) };
                        next = command.ended(result, &LIMITS);
                    }
                    Next::Blank => next = command.next(&LIMITS),
                    Next::Done | Next::Failed(_) => return Ok(()),
                }
            }
        }
    }
}
