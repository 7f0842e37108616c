//! Messages between a device's owner and its threads.

use super::stats::QueueStats;
use crate::namespace::volume::Volume;
use forebay_io::Waker;
use forebay_model::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) enum Message {
    Report(SyncSender<Report>),
    /// Requests are held from now on; the answer comes once none is in the source.
    Suspend(SyncSender<()>),
    Resume,
    /// Limits may have changed.
    LimitsChanged,
    /// Opens a queue of another source, beside the one that there is.
    Prepare(Arc<Volume>, SyncSender<Result<(), Error>>),
    /// Switches to that one. False: the last one isn't idle.
    Switch(SyncSender<bool>),
    /// Every request fails, those that are there among them.
    GiveUp,
    /// Ends the thread; the device stays, if it was made to.
    Leave,
}

/// Counters of one thread.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub queues: Vec<QueueStats>,
    /// Requests may still come.
    pub open: bool,
}

pub(super) struct Inbox {
    waker: Arc<Waker>,
    messages: Mutex<Vec<Message>>,
    pending: AtomicBool,
}

impl Inbox {
    pub(super) fn new(waker: Arc<Waker>) -> Inbox {
        Inbox { waker, messages: Mutex::default(), pending: AtomicBool::new(false) }
    }

    fn messages(&self) -> MutexGuard<'_, Vec<Message>> {
        self.messages.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn post(&self, message: Message) {
        self.messages().push(message);
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn has_messages(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<Message> {
        if !self.pending.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.messages())
    }
}
