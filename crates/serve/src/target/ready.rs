//! Which of a thread's connections have something to receive or to send.

/// One connection's marks: it stands in a list once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub readable: bool,
    pub dirty: bool,
}

/// Connections that have something to do before the thread sleeps, by index: each once.
#[derive(Default)]
pub(super) struct Ready {
    readable: Vec<u32>,
    dirty: Vec<u32>,
}

impl Ready {
    /// Something came, or may be received.
    pub(super) fn mark_readable(&mut self, index: u32, marks: &mut Marks) {
        if !std::mem::replace(&mut marks.readable, true) {
            self.readable.push(index);
        }
    }

    /// Something is to be sent.
    pub(super) fn mark_dirty(&mut self, index: u32, marks: &mut Marks) {
        if !std::mem::replace(&mut marks.dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Puts those that may receive in the place of `into`, which is empty and serves for the next.
    pub(super) fn take_readable(&mut self, into: &mut Vec<u32>) {
        std::mem::swap(&mut self.readable, into);
    }

    /// As `take_readable`, of those that send.
    pub(super) fn take_dirty(&mut self, into: &mut Vec<u32>) {
        std::mem::swap(&mut self.dirty, into);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.readable.is_empty() && self.dirty.is_empty()
    }
}
