//! Where a thread gets messages from others.

use forebay_io::Waker;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Messages for one thread, which is woken by each.
pub(crate) struct Inbox<L> {
    waker: Arc<Waker>,
    messages: Mutex<Vec<L>>,
    pending: AtomicBool,
    /// Connections that the thread has, or is about to get.
    pub load: AtomicU32,
}

impl<L> Inbox<L> {
    pub(crate) fn new(waker: Arc<Waker>) -> Inbox<L> {
        Inbox {
            waker,
            messages: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            load: AtomicU32::new(0),
        }
    }

    fn messages(&self) -> MutexGuard<'_, Vec<L>> {
        self.messages.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn post(&self, message: L) {
        self.messages().push(message);
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<L> {
        if !self.pending.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.messages())
    }

    /// Wakes the thread without a message.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}
