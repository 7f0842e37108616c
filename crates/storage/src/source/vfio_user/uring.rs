//! Interrupts and doorbells as entries of the worker's ring: a doorbell is then
//! rung by the call of the kernel that waits.

#![allow(unsafe_code, reason = "the ring's entries name buffers by address")]

use forebay_io::Reactor;
use io_uring::{opcode, types};
use rustix::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Value that signals an eventfd once.
static ONE: u64 = 1;

/// The eventfd of a queue's vector, read by the ring while the queue sleeps.
#[derive(Debug)]
pub(super) struct Interrupt {
    fd: Arc<OwnedFd>,
    count: Box<u64>,
    armed: bool,
}

impl Interrupt {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Interrupt {
        Interrupt { fd, count: Box::new(0), armed: false }
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// From now on the next interrupt, or one that came before, completes under this tag.
    pub(crate) fn arm(&mut self, reactor: &mut Reactor, token: u32, tag: u32) {
        if self.armed {
            return;
        }
        let count: *mut u64 = &mut *self.count;
        let read = opcode::Read::new(types::Fd(self.fd.as_raw_fd()), count.cast(), 8).build();
        // SAFETY: the counter is boxed, and left to the kernel if it is dropped while armed; one read is out at a time.
        unsafe { reactor.push(token, tag, read) };
        self.armed = true;
    }

    /// It completed.
    pub(crate) fn fired(&mut self) {
        self.armed = false;
    }

    pub(crate) fn cancel(&mut self, reactor: &mut Reactor, token: u32, tag: u32) {
        if self.armed {
            reactor.cancel(token, tag);
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if self.armed {
            std::mem::forget(std::mem::take(&mut self.count));
        }
    }
}

/// Signals an eventfd with the ring's next call of the kernel.
pub(super) fn signal(fd: &OwnedFd, reactor: &mut Reactor, token: u32, tag: u32) {
    let at = std::ptr::addr_of!(ONE).cast();
    let write = opcode::Write::new(types::Fd(fd.as_raw_fd()), at, 8).build();
    // SAFETY: it points to a static.
    unsafe { reactor.push_soon(token, tag, write, true) };
}
