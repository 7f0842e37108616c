//! The thread that hears which hosts ask for connections over RDMA, and gives each to the thread that has the fewest.
//! From then on the connection's events come to that thread.

use super::accept::FULL;
use super::log::Level;
use super::message::{HostTransport, Message, NewConnection};
use super::rdma::Asked;
use super::shared::TargetShared;
use forebay_io::{require_rdma, RdmaChannel, RdmaEvent, RdmaId, RDMA_MAKE_DEVICE};
use forebay_model::Error;
use forebay_nvme::transport::rdma::connect::Refusal;
use rustix::event::{poll, PollFd, PollFlags};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Connections that may wait for us to answer them.
const BACKLOG: u32 = 1024;

/// All that listens over RDMA, on one channel.
pub(super) struct Listeners {
    channel: Arc<RdmaChannel>,
    /// Kept, so that they listen.
    ids: Vec<RdmaId>,
}

impl Listeners {
    /// None where nothing is to listen.
    ///
    /// # Errors
    /// `Machine`: RDMA isn't there. `Request`: the address is in use, not ours, or no card's.
    pub(super) fn bind(addresses: &[SocketAddr]) -> Result<Option<Listeners>, Error> {
        let Some(first) = addresses.first() else { return Ok(None) };
        let library = require_rdma(&asked_for(*first))?;
        let channel = RdmaChannel::open(library).map_err(|e| unusable(*first, &e))?;
        let listen = |at: &SocketAddr| {
            let id = RdmaId::new(&channel)?;
            id.listen(*at, BACKLOG)?;
            Ok(id)
        };
        let ids = addresses.iter().map(|at| listen(at).map_err(|e| unusable(*at, &e)));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Listeners { channel, ids }))
    }

    /// With the ports that were free.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.ids.iter().filter_map(RdmaId::local).collect()
    }

    /// Until `stop` is readable.
    pub(super) fn run(self, shared: &TargetShared, stop: &OwnedFd) {
        loop {
            let mut all =
                [stop.as_fd(), self.channel.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut all, None).is_err() {
                continue;
            }
            if !all[0].revents().is_empty() {
                return;
            }
            loop {
                match self.channel.next() {
                    Ok(Some(event)) => take(shared, event),
                    Ok(None) => break,
                    Err(e) => {
                        let fields = [("why", e.to_string().into())];
                        return shared.log.say(Level::Error, "no more connections over RDMA", &fields);
                    }
                }
            }
        }
    }
}

/// Events of connections that somebody asked for and gave up before we answered need nothing.
fn take(shared: &TargetShared, event: RdmaEvent) {
    let Some(mut id) = event.request else { return };
    let nowhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
    let (peer, local) = (id.peer().unwrap_or(nowhere), id.local().unwrap_or(nowhere));
    let refuse = |id: &RdmaId, why: String| {
        let _ = id.reject(Refusal::Resources.reject().as_bytes());
        let fields = [("peer", peer.to_string().into()), ("why", why.into())];
        shared.log.say(Level::Error, "connection refused", &fields);
    };
    if !shared.has_room() {
        return refuse(&id, FULL.into());
    }
    let moved = RdmaChannel::open(id.channel().library).and_then(|channel| id.migrate(&channel));
    if let Err(e) = moved {
        return refuse(&id, format!("a channel of its own: {e} (ulimit -n)"));
    }
    let Some(inbox) = shared.thread_for(None) else { return };
    let way = HostTransport::Rdma(Box::new(Asked { id, private: event.private }));
    inbox.post(Message::Adopt(NewConnection { way, peer, local, client: None }));
}

fn asked_for(at: SocketAddr) -> String {
    format!("listen_rdma = \"{at}\"")
}

fn unusable(at: SocketAddr, e: &io::Error) -> Error {
    let asked = asked_for(at);
    match e.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            Error::request(asked, "the address is already in use", "another port; rdma resource show cm_id")
        }
        Some(libc::EADDRNOTAVAIL) => {
            Error::request(asked, "this machine has no such address", "ip -brief address, or 0.0.0.0")
        }
        Some(libc::ENODEV) => Error::request(asked, "no RDMA device has that address", RDMA_MAKE_DEVICE),
        Some(libc::EACCES) => Error::request(asked, "permission denied", "a port above 1023"),
        _ => Error::machine(asked, e.to_string(), "rdma link show; forebay doctor"),
    }
}
