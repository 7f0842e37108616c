//! Watches of a connection's two descriptors by a reactor: the manager's, and its completion queue's.

use crate::reactor::{Completion, Reactor};
use crate::stream::{kind_of, tag_of};
use std::os::fd::BorrowedFd;

/// A descriptor of a connection: what completes on the reactor when it has something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    Manager,
    Queue,
}

/// A watch tells once: who was told begins it anew.
pub struct Watches {
    token: u32,
    index: u32,
    on: [bool; 2],
}

impl Watches {
    /// `port`: token at the reactor, and number among the token's connections.
    pub fn new(port: (u32, u32)) -> Watches {
        Watches { token: port.0, index: port.1, on: [false; 2] }
    }

    pub fn on(&self, which: Watched) -> bool {
        self.on[which as usize]
    }

    pub fn watch(&mut self, which: Watched, descriptor: BorrowedFd, reactor: &mut Reactor) {
        if !std::mem::replace(&mut self.on[which as usize], true) {
            reactor.watch(self.token, tag_of(self.index, which as u32), descriptor);
        }
    }

    /// The reactor has told of a descriptor, or has let go of it.
    pub fn completed(&mut self, completion: Completion) {
        if let Some(on) = self.on.get_mut(kind_of(completion) as usize) {
            *on = false;
        }
    }

    /// Has the reactor let go of what it watches, which `completed` is told of.
    pub fn cancel(&self, reactor: &mut Reactor) {
        for which in [Watched::Manager, Watched::Queue] {
            if self.on(which) {
                reactor.cancel(self.token, tag_of(self.index, which as u32));
            }
        }
    }

    /// The reactor holds neither descriptor.
    pub fn are_over(&self) -> bool {
        self.on == [false; 2]
    }
}
