//! Messages between threads of a target.

use super::controller::ControllerEntry;
use super::ids::ConnectionId;
use super::rdma::Asked;
use super::stats::{ControllerStats, HostStats, NamespaceStats, QueueStats};
use forebay_io::TlsClient;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;

/// Transport by which a host comes.
pub(crate) enum HostTransport {
    Tcp(OwnedFd),
    Rdma(Box<Asked>),
}

pub(crate) struct NewConnection {
    pub way: HostTransport,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Proven identity of a client that came over TLS.
    pub client: Option<TlsClient>,
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
