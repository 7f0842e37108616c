//! Messages between threads of a server.

use super::controller::ControllerEntry;
use super::rdma::Asked;
use super::shared::{ConnectionId, Totals};
use super::stats::{ControllerStats, HostStats, NamespaceStats, QueueStats};
use forebay_io::reactor::Waker;
use forebay_io::tls::bridge::Client;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

/// Transport by which a host comes.
pub(crate) enum Way {
    Tcp(OwnedFd),
    Rdma(Box<Asked>),
}

pub(crate) struct NewConnection {
    pub way: Way,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Proven identity of a client that came over TLS.
    pub client: Option<Client>,
}

pub(crate) enum Message {
    /// A connection that was accepted.
    Adopt(NewConnection),
    Close(ConnectionId, &'static str),
    /// The admin queue's controller has effects to apply.
    Effects(ConnectionId),
    /// Gives up that connection's command `cid`; the Abort that asks for it is command `tag` of the controller's admin
    /// queue.
    Abort {
        id: ConnectionId,
        entry: Arc<ControllerEntry>,
        cid: u16,
        tag: u16,
    },
    Report(SyncSender<Report>),
    /// Namespaces came or went.
    Changed,
    Drain,
    Stop,
}

/// Counters of one thread, by subsystem.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub namespaces: Vec<(usize, NamespaceStats)>,
    pub hosts: Vec<(usize, HostStats)>,
    pub controllers: Vec<ControllerStats>,
    /// Queues of controllers whose admin queue another thread may have.
    pub queues: Vec<(usize, u16, QueueStats)>,
}

/// Messages for one thread, which is woken by each.
pub(crate) struct Inbox<L = Message> {
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

    /// A connection is gone.
    pub(crate) fn leave(&self, totals: &Totals) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        totals.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
