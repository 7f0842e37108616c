//! Commands of an I/O queue that the host wants given up.
//!
//! An Abort comes to the admin queue's thread, which tells the one that has the command. A command that waits for its
//! turn or for its data ends at once. One that the source is at ends when the source lets go of its memory, or as it
//! would have. The Abort is answered when its command is.

use forebay_nvme::transport::tcp::Handle;

/// Each with the tag of the Abort that asks for it.
#[derive(Default)]
pub(super) struct Aborts(Vec<(Handle, u16)>);

impl Aborts {
    pub(super) fn ask(&mut self, at: Handle, tag: u16) {
        self.0.push((at, tag));
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn contain(&self, at: Handle) -> bool {
        self.0.iter().any(|(given_up, _)| *given_up == at)
    }

    /// Has the Aborts of those commands answered, each by its tag, and forgets them.
    pub(super) fn answer(&mut self, whose: impl Fn(Handle) -> bool, mut answer: impl FnMut(u16)) {
        self.0.retain(|(at, tag)| {
            let over = whose(*at);
            if over {
                answer(*tag);
            }
            !over
        });
    }
}
