//! Slots that reads land in, and one queue for reads of many files: opening a file
//! costs it nothing.

#![allow(unsafe_code, reason = "the ring's entries name buffers by address")]

use forebay_io::{Arena, Done, Fault, Full, Geometry, Io, Mem, Op, Queue, Reactor, RingCompletion, Via};
use forebay_model::job::Pages;
use forebay_model::Error;
use io_uring::{opcode, types};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

/// A worker's memory. A slot is lent to the kernel, or read here, never both.
pub(crate) struct Slots {
    arena: Arena,
    lent: Vec<bool>,
}

impl Slots {
    /// `shared`: devices in other processes write to them.
    pub(crate) fn new(count: u32, bytes_each: usize, shared: bool) -> Result<Slots, Error> {
        let arena = match shared {
            true => Arena::shared(count as usize, bytes_each, Pages::Auto)?,
            false => Arena::new(count as usize, bytes_each, Pages::Auto)?,
        };
        Ok(Slots { arena, lent: vec![false; count as usize] })
    }

    /// Returns the kind of pages that hold the buffers.
    pub(crate) fn pages(&self) -> &'static str {
        self.arena.got().name()
    }

    /// Returns the memory of a slot, for whoever it will be lent to.
    pub(crate) fn mem(&self, tag: usize) -> Mem {
        self.arena.slot(tag)
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    pub(crate) fn count(&self) -> u32 {
        self.lent.len() as u32
    }

    /// From now on somebody else writes to it.
    pub(crate) fn lend(&mut self, tag: u32) -> Mem {
        self.lent[tag as usize] = true;
        self.arena.slot(tag as usize)
    }

    pub(crate) fn is_back(&mut self, tag: u32) {
        self.lent[tag as usize] = false;
    }

    pub(crate) fn any_lent(&self) -> bool {
        self.lent.contains(&true)
    }

    pub(crate) fn bytes(&self, tag: u32) -> &[u8] {
        assert!(!self.lent[tag as usize], "slot {tag} is somebody else's");
        let at = self.arena.slot(tag as usize).host_ptr();
        // SAFETY: the slot is that long, initialised when the arena was made, and nobody writes to it.
        unsafe { std::slice::from_raw_parts(at, self.arena.slot_bytes()) }
    }
}

/// By tag, the file that an I/O reads: open until its tag reads another.
pub(crate) type Reading = Rc<RefCell<Vec<Option<Arc<File>>>>>;

/// Reads of many files; an I/O's offset is one of the file that `Reading` has for its tag. Through the worker's ring,
/// under one token, or by pread in `submit`.
pub(crate) struct Files {
    of: Reading,
    /// None: by pread.
    token: Option<u32>,
    pushed: Vec<Io>,
    completions: Vec<RingCompletion>,
    done: Vec<Done>,
    in_flight: u32,
}

impl Files {
    /// `reactor`: whose ring reads them; None where they are read by pread.
    pub(crate) fn new(of: Reading, reactor: Option<&mut Reactor>) -> Files {
        let token = reactor.map(|reactor| reactor.token());
        let (pushed, completions, done) = (Vec::new(), Vec::new(), Vec::new());
        Files { of, token, pushed, completions, done, in_flight: 0 }
    }

    fn start(&self, token: u32, io: Io, reactor: &mut Reactor) {
        let Mem::Host { at, piece } = io.mem else { unreachable!("slots lie in the host") };
        let of = self.of.borrow();
        let file = of[io.tag as usize].as_ref().expect("a file that is read is open");
        let fd = types::Fd(file.as_raw_fd());
        let entry = match piece {
            Mem::UNREGISTERED => opcode::Read::new(fd, at.as_ptr(), io.len).offset(io.offset).build(),
            piece => opcode::ReadFixed::new(fd, at.as_ptr(), io.len, piece).offset(io.offset).build(),
        };
        // SAFETY: its memory belongs to the queue until the completion was taken, and the file stays open as long.
        unsafe { reactor.push(token, io.tag, entry) };
    }

    fn read(&self, io: &Io) -> Result<u32, Fault> {
        let Mem::Host { at, .. } = io.mem else { unreachable!("slots lie in the host") };
        let of = self.of.borrow();
        let file = of[io.tag as usize].as_ref().expect("a file that is read is open");
        // SAFETY: the memory of an I/O is that long, initialised when its arena was made, and the queue's until it is reaped.
        let into = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), io.len as usize) };
        loop {
            match rustix::io::pread(file, &mut *into, io.offset) {
                Ok(got) => return Ok(got as u32),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Fault::errno(e.raw_os_error())),
            }
        }
    }
}

fn done(tag: u32, result: Result<u32, Fault>) -> Done {
    Done { tag, result, via: Via::Nothing, copy_ns: 0 }
}

impl Queue for Files {
    fn geometry(&self) -> Geometry {
        let depth = self.of.borrow().len() as u32;
        Geometry { bytes: u64::MAX, align: 1, mem_align: 1, io_bytes_max: u32::MAX, depth }
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        assert!(io.op == Op::Read, "files of a data set are read");
        match self.token {
            Some(token) => self.start(token, io, reactor),
            None => self.pushed.push(io),
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self, _: &mut Reactor) {
        for io in std::mem::take(&mut self.pushed) {
            let result = self.read(&io);
            self.done.push(done(io.tag, result));
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, into: &mut Vec<Done>) {
        if let Some(token) = self.token {
            reactor.take(token, &mut self.completions);
            let result = |c: &RingCompletion| match c.result {
                failed if failed < 0 => Err(Fault::errno(-failed)),
                got => Ok(got as u32),
            };
            self.done.extend(self.completions.drain(..).map(|c| done(c.tag, result(&c))));
        }
        self.in_flight -= self.done.len() as u32;
        into.append(&mut self.done);
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        if let Some(token) = self.token {
            reactor.cancel(token, tag);
        }
    }
}
