//! One queue's connection as its driver sees it, whatever carries it: commands
//! go in with the memory of their data, and come out completed.

use super::rdma::Rdma;
use super::report::{Broken, Report, Unsent};
use super::tcp::Tcp;
use super::tls::Tls;
use forebay_io::{Mem, RdmaDomains, Reactor, RingCompletion};
use forebay_nvme::command::Sqe;
use forebay_nvme::transport::tcp::host::{Data, Options};
use forebay_nvme::transport::tcp::Handle;
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;

/// Why a connection over TLS may come to nothing.
pub(crate) const OVER_TLS: &str = " (over TLS: as happens where keys differ, or there is none at that port)";

/// Way to the controller.
#[derive(Clone, Copy)]
pub(super) enum ConnectVia<'a> {
    Tcp(Option<&'a Tls>),
    /// The queue says its number while it connects.
    Rdma(&'a Arc<RdmaDomains>, u16),
}

impl ConnectVia<'_> {
    /// A frequent cause of connections that come to nothing.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            ConnectVia::Tcp(Some(_)) => OVER_TLS,
            _ => "",
        }
    }
}

pub(super) enum Connection {
    Tcp(Box<Tcp>),
    Rdma(Box<Rdma>),
}

impl Connection {
    pub(crate) fn open(
        to: SocketAddr,
        options: Options,
        token: u32,
        index: u32,
        way: ConnectVia,
        reactor: &mut Reactor,
    ) -> io::Result<Connection> {
        Ok(match way {
            ConnectVia::Tcp(tls) => {
                Connection::Tcp(Box::new(Tcp::open(to, options, token, index, tls, reactor)?))
            }
            ConnectVia::Rdma(domains, qid) => Connection::Rdma(Box::new(Rdma::open(
                to,
                qid,
                options.depth,
                domains,
                (token, index),
                reactor,
            )?)),
        })
    }

    /// For commands after Connect on an I/O queue.
    pub(crate) fn set_in_capsule_max(&mut self, bytes: u32) {
        match self {
            Connection::Tcp(tcp) => tcp.set_in_capsule_max(bytes),
            Connection::Rdma(rdma) => rdma.set_in_capsule_max(bytes),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Connection::Tcp(tcp) => tcp.is_ready(),
            Connection::Rdma(rdma) => rdma.is_ready(),
        }
    }

    /// Queues a command; `send` or `drive` starts it. `mem` is the connection's until it is reported as completed,
    /// or until the connection was closed and is quiet.
    pub(crate) fn submit(&mut self, sqe: Sqe, data: Data, mem: Mem) -> Result<Handle, Unsent> {
        match self {
            Connection::Tcp(tcp) => tcp.submit(sqe, data, mem).map_err(|_| Unsent::Busy),
            Connection::Rdma(rdma) => rdma.submit(sqe, data, mem),
        }
    }

    /// The identifier that a command in flight has on the wire.
    pub(crate) fn cid(&mut self, command: Handle) -> u16 {
        match self {
            Connection::Tcp(tcp) => tcp.cid(command),
            // There handles are identifiers.
            Connection::Rdma(_) => command.0,
        }
    }

    pub(crate) fn send(&mut self, reactor: &mut Reactor) {
        match self {
            Connection::Tcp(tcp) => tcp.send(reactor),
            Connection::Rdma(rdma) => rdma.send(),
        }
    }

    pub(crate) fn completed(&mut self, completion: RingCompletion) {
        match self {
            Connection::Tcp(tcp) => tcp.completed(completion),
            Connection::Rdma(rdma) => rdma.completed(completion),
        }
    }

    /// Takes all that has come, and sends what there is to send.
    pub(crate) fn drive(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        match self {
            Connection::Tcp(tcp) => tcp.drive(reactor, reports),
            Connection::Rdma(rdma) => rdma.drive(reactor, reports),
        }
    }

    /// Ends the connection: commands in flight are never reported.
    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        match self {
            Connection::Tcp(tcp) => tcp.close(reactor),
            Connection::Rdma(rdma) => rdma.close(reactor),
        }
    }

    /// Once closed: the memory of its commands is free.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Connection::Tcp(tcp) => tcp.is_quiet(),
            Connection::Rdma(rdma) => rdma.is_quiet(),
        }
    }
}

/// Returns the memory of a buffer. It stays there while it is in flight: only its owner moves.
pub(super) fn memory_of(data: &mut [u8]) -> Mem {
    match NonNull::new(data.as_mut_ptr()) {
        Some(at) if !data.is_empty() => Mem::Host { at, piece: Mem::UNREGISTERED },
        _ => Mem::None,
    }
}
