//! Slots that reads land in, and reads of many files through a worker's ring: one
//! token for all of them, so that opening a file costs the ring nothing.

use crate::arena::{Arena, Mem, UNREGISTERED};
use crate::reactor::{Completion, Reactor};
use forebay_model::job::Pages;
use forebay_model::Error;
use io_uring::{opcode, types};
use std::fs::File;
use std::os::fd::AsRawFd;

/// A worker's memory. A slot is lent to the kernel, or read here, never both.
pub struct Slots {
    arena: Arena,
    lent: Vec<bool>,
    free: Vec<u32>,
}

impl Slots {
    /// `shared`: devices in other processes write to them.
    pub fn new(count: u32, bytes_each: usize, shared: bool) -> Result<Slots, Error> {
        let arena = match shared {
            true => Arena::shared(count as usize, bytes_each, Pages::Auto)?,
            false => Arena::new(count as usize, bytes_each, Pages::Auto)?,
        };
        Ok(Slots { arena, lent: vec![false; count as usize], free: (0..count).rev().collect() })
    }

    /// Which pages they lie in.
    pub fn pages(&self) -> &'static str {
        self.arena.got().name()
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    pub fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    pub fn count(&self) -> u32 {
        self.lent.len() as u32
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The one that was free last: it is still in the processor's cache.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn give(&mut self, tag: u32) {
        debug_assert!(!self.lent[tag as usize]);
        self.free.push(tag);
    }

    /// From now on somebody else writes to it.
    pub fn lend(&mut self, tag: u32) -> Mem {
        self.lent[tag as usize] = true;
        self.arena.slot(tag as usize)
    }

    pub fn is_back(&mut self, tag: u32) {
        self.lent[tag as usize] = false;
    }

    pub fn is_lent(&self, tag: u32) -> bool {
        self.lent[tag as usize]
    }

    pub fn any_lent(&self) -> bool {
        self.lent.contains(&true)
    }

    pub fn bytes(&self, tag: u32) -> &[u8] {
        assert!(!self.lent[tag as usize], "slot {tag} is somebody else's");
        let at = self.arena.slot(tag as usize).host_ptr();
        // SAFETY: the slot is that long, initialised when the arena was made, and nobody writes to it.
        unsafe { std::slice::from_raw_parts(at, self.arena.slot_bytes()) }
    }

    pub fn bytes_mut(&mut self, tag: u32) -> &mut [u8] {
        assert!(!self.lent[tag as usize], "slot {tag} is somebody else's");
        self.arena.slot_bytes_mut(tag as usize)
    }
}

/// `len` bytes from the file's byte `offset` on, to the slot's byte `at`.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub offset: u64,
    pub at: usize,
    pub len: u32,
}

/// The worker's part of the ring.
pub struct Ring {
    token: u32,
    completions: Vec<Completion>,
}

impl Ring {
    pub fn new(reactor: &mut Reactor) -> Ring {
        Ring { token: reactor.token(), completions: Vec::new() }
    }

    /// Reads into a slot. The file stays open until the slot is back.
    pub fn push(&mut self, reactor: &mut Reactor, slots: &mut Slots, tag: u32, file: &File, read: Read) {
        let Read { offset, at, len } = read;
        assert!(at + len as usize <= slots.arena.slot_bytes(), "a slot holds the read");
        let Mem::Host { at: base, piece } = slots.lend(tag).after(at) else {
            unreachable!("slots lie in the host")
        };
        let fd = types::Fd(file.as_raw_fd());
        let entry = match piece {
            UNREGISTERED => opcode::Read::new(fd, base.as_ptr(), len).offset(offset).build(),
            piece => opcode::ReadFixed::new(fd, base.as_ptr(), len, piece).offset(offset).build(),
        };
        // SAFETY: the slot has room for it, and is lent until the completion was taken; so the file is open.
        unsafe { reactor.push(self.token, tag, entry) };
    }

    /// What completed: (tag, bytes or errno).
    pub fn reap(
        &mut self,
        reactor: &mut Reactor,
        slots: &mut Slots,
        mut each: impl FnMut(u32, Result<u32, i32>),
    ) {
        reactor.take(self.token, &mut self.completions);
        for done in self.completions.drain(..) {
            slots.is_back(done.tag);
            each(done.tag, if done.result < 0 { Err(-done.result) } else { Ok(done.result as u32) });
        }
    }

    pub fn cancel(&self, reactor: &mut Reactor, tag: u32) {
        reactor.cancel(self.token, tag);
    }
}
