//! One call at a time, by the worker itself: a thread between would cost two
//! wake-ups per I/O and gain nothing where only one is in flight.

use super::{perform, Base, GdsFile, Session};
use crate::source::at_once::AtOnce;
use forebay_io::{Done, Io};
use std::sync::Arc;

pub(super) struct InlineGds {
    pub session: Arc<Session>,
    pub file: GdsFile,
    pub base: Base,
}

impl AtOnce for InlineGds {
    fn perform(&mut self, io: &Io) -> Done {
        perform(&self.file, &self.base, io)
    }

    fn taken(&mut self, io: &Io) {
        self.session.count(io);
    }
}
