//! A file through the worker's ring: registered file, registered slots, no copy.

#![allow(unsafe_code, reason = "the ring's entries name buffers by address")]

use super::{scatter, FileTarget};
use forebay_io::{Done, Fault, Full, Geometry, Io, Mem, Op, Queue, Reactor, RingCompletion, Via};
use forebay_model::random::Xoshiro256;
use forebay_model::Error;
use io_uring::{opcode, squeue, types};
use std::os::fd::AsRawFd;

pub(crate) struct UringQueue {
    target: FileTarget,
    geometry: Geometry,
    token: u32,
    fixed: Option<u32>,
    /// Length and operation asked for, by tag.
    asked: Vec<(u32, Op)>,
    in_flight: u32,
    completions: Vec<RingCompletion>,
    /// Finished without the ring.
    ready: Vec<Done>,
    /// Lists of scattered payload, by tag: the kernel may look until it is done.
    lists: Vec<Vec<libc::iovec>>,
    /// Generator that picks the I/Os that carry a priority.
    random: Xoshiro256,
}

/// One submission; `$fd` is a registered place or a descriptor, which are different types.
macro_rules! build {
    ($fd:expr, $io:expr, $len:expr, $flags:expr, $priority:expr) => {{
        let (at, piece) = match $io.mem {
            Mem::Host { at, piece } => (at.as_ptr(), piece),
            _ => (std::ptr::null_mut(), Mem::UNREGISTERED),
        };
        let durable = $flags | if let Op::Write { durable: true } = $io.op { libc::RWF_DSYNC } else { 0 };
        let fallocate =
            |mode| opcode::Fallocate::new($fd, u64::from($io.len)).offset($io.offset).mode(mode).build();
        match ($io.op, piece) {
            (Op::Read, Mem::UNREGISTERED) => {
                opcode::Read::new($fd, at, $len).offset($io.offset).ioprio($priority).build()
            }
            (Op::Read, piece) => {
                opcode::ReadFixed::new($fd, at, $len, piece).offset($io.offset).ioprio($priority).build()
            }
            (Op::Write { .. }, Mem::UNREGISTERED) => opcode::Write::new($fd, at, $len)
                .offset($io.offset)
                .rw_flags(durable)
                .ioprio($priority)
                .build(),
            (Op::Write { .. }, piece) => opcode::WriteFixed::new($fd, at, $len, piece)
                .offset($io.offset)
                .rw_flags(durable)
                .ioprio($priority)
                .build(),
            (Op::Flush, _) => opcode::Fsync::new($fd).flags(types::FsyncFlags::DATASYNC).build(),
            (Op::WriteZeroes, _) => fallocate(libc::FALLOC_FL_ZERO_RANGE),
            (Op::Deallocate, _) => fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
        }
    }};
}

/// `build` for payload that lies in several places.
macro_rules! build_scattered {
    ($fd:expr, $io:expr, $list:expr, $flags:expr, $priority:expr) => {{
        let (list, count) = ($list.as_ptr(), $list.len() as u32);
        match $io.op {
            Op::Write { durable } => {
                let flags = $flags | if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new($fd, list, count)
                    .offset($io.offset)
                    .rw_flags(flags)
                    .ioprio($priority)
                    .build()
            }
            _ => opcode::Readv::new($fd, list, count).offset($io.offset).ioprio($priority).build(),
        }
    }};
}

impl UringQueue {
    pub(crate) fn new(target: FileTarget, depth: u32, reactor: &mut Reactor) -> Result<Self, Error> {
        if !reactor.has_ring() {
            return Err(Error::machine(
                "‹engine› uring",
                "io_uring is disabled or missing on this system",
                "‹engine› pread, or forebay doctor for the reason",
            ));
        }
        let fixed = reactor.register_file(&target.file);
        let token = reactor.token();
        Ok(UringQueue {
            geometry: target.geometry(depth),
            token,
            random: Xoshiro256::new(u64::from(token)),
            fixed,
            asked: vec![(0, Op::Read); depth as usize],
            in_flight: 0,
            completions: Vec::with_capacity(depth as usize),
            ready: Vec::new(),
            lists: vec![Vec::new(); depth as usize],
            target,
        })
    }

    /// Priority of the next I/O; 0: that of its thread.
    fn priority(&mut self) -> u16 {
        let Some((pct, priority)) = self.target.priority else { return 0 };
        let carries = self.random.next_f64() * 100.0 < f64::from(pct);
        if carries {
            priority.bits()
        } else {
            0
        }
    }

    fn entry(&mut self, io: &Io) -> squeue::Entry {
        let (flags, priority) = (self.target.write_flags, self.priority());
        if io.mem.is_scattered() && moves_payload(io.op) {
            let list = &self.lists[io.tag as usize];
            return match self.fixed {
                Some(at) => build_scattered!(types::Fixed(at), io, list, flags, priority),
                None => build_scattered!(types::Fd(self.target.file.as_raw_fd()), io, list, flags, priority),
            };
        }
        let len = self.padded(io);
        match self.fixed {
            Some(at) => build!(types::Fixed(at), io, len, flags, priority),
            None => build!(types::Fd(self.target.file.as_raw_fd()), io, len, flags, priority),
        }
    }

    /// O_DIRECT wants whole blocks even where the file ends inside one: the slot has room for them.
    fn padded(&self, io: &Io) -> u32 {
        if io.op == Op::Read {
            self.target.padded(io.offset, io.len)
        } else {
            io.len
        }
    }

    /// Bytes moved: fallocate and fsync report 0, a padded read more than was asked for.
    fn moved(&self, c: RingCompletion) -> u32 {
        let (asked, op) = self.asked[c.tag as usize];
        match op {
            Op::Read | Op::Write { .. } => (c.result as u32).min(asked),
            _ => asked,
        }
    }

    /// Lists where scattered payload lies, unless that is one place after all. False: it can't be, and is done.
    fn gather(&mut self, io: &mut Io) -> bool {
        let len = self.padded(io);
        io.mem = io.mem.narrow(len as usize);
        if !io.mem.is_scattered() {
            return true;
        }
        let listed = scatter::list(&self.target, io.mem, len, &mut self.lists[io.tag as usize]);
        if let Err(fault) = listed {
            self.ready.push(Done { tag: io.tag, result: Err(fault), via: Via::Nothing, copy_ns: 0 });
            return false;
        }
        true
    }

    /// Reads what is in the page cache already, by one call and without a worker thread of the kernel's.
    fn read_cached(&mut self, io: &Io) -> bool {
        if self.target.direct || io.op != Op::Read {
            return false;
        }
        let one = [libc::iovec { iov_base: io.mem.host_ptr().cast(), iov_len: io.len as usize }];
        let list = if io.mem.is_scattered() { &self.lists[io.tag as usize][..] } else { &one };
        let (list, count) = (list.as_ptr(), list.len() as i32);
        // SAFETY: the memory is io.len bytes long and ours until the I/O is reaped.
        let got = unsafe {
            libc::preadv2(self.target.file.as_raw_fd(), list, count, io.offset as i64, libc::RWF_NOWAIT)
        };
        if got != io.len as isize {
            return false;
        }
        self.ready.push(Done { tag: io.tag, result: Ok(io.len), via: Via::Staged, copy_ns: 0 });
        true
    }
}

fn moves_payload(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write { .. })
}

impl Queue for UringQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, mut io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        self.in_flight += 1;
        self.asked[io.tag as usize] = (io.len, io.op);
        if io.mem.is_scattered() && moves_payload(io.op) && !self.gather(&mut io) {
            return Ok(());
        }
        if !self.read_cached(&io) {
            // SAFETY: the slot belongs to this queue until the I/O is reaped, and the file is held open.
            unsafe { reactor.push(self.token, io.tag, self.entry(&io)) };
        }
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {}

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.in_flight -= self.ready.len() as u32;
        done.append(&mut self.ready);
        let mut completions = std::mem::take(&mut self.completions);
        reactor.take(self.token, &mut completions);
        let via = if self.target.direct { Via::Direct } else { Via::Staged };
        for c in completions.drain(..) {
            self.in_flight -= 1;
            let result = if c.result < 0 { Err(Fault::errno(-c.result)) } else { Ok(self.moved(c)) };
            let moves = moves_payload(self.asked[c.tag as usize].1);
            done.push(Done { tag: c.tag, result, via: if moves { via } else { Via::Nothing }, copy_ns: 0 });
        }
        self.completions = completions;
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        reactor.cancel(self.token, tag);
    }
}
