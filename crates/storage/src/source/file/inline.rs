//! A file read and written by the worker itself: for data that is in memory
//! already, where a ring or a thread would only add a detour.

use super::{sync, FileTarget};
use crate::source::at_once::AtOnce;
use forebay_io::{Done, Io};

pub(super) struct Inline {
    target: FileTarget,
    list: Vec<libc::iovec>,
}

impl Inline {
    pub(crate) fn new(target: FileTarget) -> Self {
        Inline { target, list: Vec::new() }
    }
}

impl AtOnce for Inline {
    fn perform(&mut self, io: &Io) -> Done {
        sync::perform(&self.target, io, &mut self.list)
    }
}
