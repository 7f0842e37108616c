//! The discovery services that tell of themselves by multicast DNS on the networks of this machine.

use crate::Error;
use forebay_io::{monotonic_now, multicast_addresses, multicast_asker};
use forebay_nvme::mdns::{self, Finder, Found, GROUP, MESSAGE_BYTES_MAX, PORT};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// When the question is asked again: one message may be lost.
const AGAIN: Duration = Duration::from_millis(700);

/// One that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Announced {
    /// The name that it goes by.
    pub title: String,
    /// Addresses on which it listens, with its port, in its order.
    pub addresses: Vec<String>,
    /// `tcp`; null: it says none.
    pub protocol: Option<String>,
    pub nqn: Option<String>,
}

/// Asks all networks of this machine, and its loopback, and listens for so long.
///
/// # Errors
/// `Machine`: nothing can be sent to any of them.
pub fn browse(wait: Duration) -> Result<Vec<Announced>, Error> {
    let until = monotonic_now() + wait;
    let mut links = Vec::new();
    let mut why = None;
    for from in multicast_addresses(GROUP).into_iter().chain([Ipv4Addr::LOCALHOST]) {
        let asked = multicast_asker(from).map_err(std::io::Error::from).and_then(|socket| {
            ask(&socket)?;
            Ok(socket)
        });
        match asked {
            Ok(socket) => links.push(socket),
            Err(e) => why = Some(format!("{from}: {e}")),
        }
    }
    if links.is_empty() {
        let found = why.unwrap_or_default();
        return Err(Error::machine("multicast DNS", found, "forebay discover HOST, or ip -brief address"));
    }
    let mut finder = Finder::default();
    let again = until.min(monotonic_now() + AGAIN);
    listen(&links, &mut finder, again);
    links.iter().for_each(|link| drop(ask(link)));
    listen(&links, &mut finder, until);
    Ok(finder.found().into_iter().map(announced).collect())
}

fn ask(link: &UdpSocket) -> std::io::Result<()> {
    link.send_to(&mdns::query(), (GROUP, PORT)).map(|_| ())
}

fn listen(links: &[UdpSocket], finder: &mut Finder, until: Instant) {
    let mut message = [0; MESSAGE_BYTES_MAX];
    loop {
        let left = until.saturating_duration_since(monotonic_now());
        let Some(wait) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else { return };
        let mut all: Vec<PollFd<'_>> = links.iter().map(|link| PollFd::new(link, PollFlags::IN)).collect();
        if poll(&mut all, Some(&wait)).is_err() {
            continue;
        }
        for link in links {
            // From another port it isn't by who answers for the group (RFC 6762, section 6).
            if let Ok((bytes, SocketAddr::V4(from))) = link.recv_from(&mut message) {
                if from.port() == PORT {
                    finder.take(&message[..bytes]);
                }
            }
        }
    }
}

fn announced(found: Found) -> Announced {
    let at = |ip: IpAddr| SocketAddr::new(ip, found.port).to_string();
    Announced {
        addresses: found.addresses.iter().copied().map(at).collect(),
        title: found.title,
        protocol: found.protocol,
        nqn: found.nqn,
    }
}
