//! One hardware queue, as the thread that serves it sees it: a seam, so that a test can be the block layer.

use super::uapi::Descriptor;
use forebay_io::{Mem, Reactor};

/// Completion of a tag's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub tag: u16,
    /// A request is there; or none comes this way any more, and why (ENODEV: the device stops).
    pub came: Result<(), i32>,
}

/// The contract: each tag has one command out, `fetch` or `commit`. When it completes with a request, the request's
/// descriptor and slot are the thread's until it commits; a commit also asks for the tag's next request.
pub(super) trait HardwareQueue {
    fn depth(&self) -> u16;

    /// Asks for a tag's first request.
    fn fetch(&mut self, tag: u16, reactor: &mut Reactor);

    /// Ends a tag's request, with its bytes or a negative errno.
    fn commit(&mut self, tag: u16, result: i32, reactor: &mut Reactor);

    /// Appends what came since.
    fn arrivals(&mut self, reactor: &mut Reactor, into: &mut Vec<Arrival>);

    fn descriptor(&self, tag: u16) -> Descriptor;

    /// Memory of a tag's own, as long as the longest request.
    fn slot(&self, tag: u16) -> Mem;

    /// Zeros the beginning of a slot.
    fn clear(&mut self, tag: u16, bytes: usize);

    /// Lets go of the queue though commands are out: slots that the block layer may still look at are left alone.
    fn leave(self);
}
