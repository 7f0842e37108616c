//! Tells the local network by multicast DNS where the discovery service is (`forebay_nvme::mdns`).
//!
//! One socket, bound to the group: what is sent to this machine alone, from wherever, isn't read. A question is answered
//! for the address that its asker is reached from.

use super::log::{Level, Log};
use forebay_io::{
    join_multicast, local_address_for, monotonic_now, multicast_addresses, multicast_listener, send_multicast,
};
use forebay_model::Error;
use forebay_nvme::mdns::{Service, GROUP, MESSAGE_BYTES_MAX, PORT};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Between the two announcements (RFC 6762, section 8.3), and between two equal messages to all (section 6).
const AGAIN: Duration = Duration::from_secs(1);
/// Equal messages that are remembered for that.
const SAID_MAX: usize = 64;

pub(super) struct Announcer {
    socket: UdpSocket,
    services: Vec<(Ipv4Addr, Service)>,
    /// Recent multicast answers, with their time and link.
    said: Vec<(Ipv4Addr, Vec<u8>, Instant)>,
}

impl Announcer {
    /// For the addresses that are listened on: of `0.0.0.0` those that this machine has now, but loopback's.
    ///
    /// # Errors
    /// `Machine`: the socket can't be had, or there is no IPv4 address to announce.
    pub(super) fn open(listening: &[SocketAddr], log: &Log) -> Result<Announcer, Error> {
        let asked = "mdns = true";
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let socket = multicast_listener(GROUP, PORT).map_err(|e| {
            Error::machine(asked, e.to_string(), format!("ss -lunp 'sport = :{PORT}', for who has it alone"))
        })?;
        let mut services: Vec<(Ipv4Addr, Service)> = Vec::new();
        for address in listening {
            let IpAddr::V4(ip) = address.ip() else {
                let why = "multicast DNS is over IPv4 here";
                let fields = [("address", address.to_string().into()), ("why", why.into())];
                log.say(Level::Warning, "not announced", &fields);
                continue;
            };
            let here = if ip.is_unspecified() { multicast_addresses(GROUP) } else { vec![ip] };
            services.extend(here.into_iter().map(|ip| (ip, Service::new(&machine, ip, address.port()))));
        }
        let mut joined = Vec::new();
        services.retain(|(ip, _)| {
            if joined.contains(ip) {
                return true;
            }
            match join_multicast(&socket, GROUP, *ip) {
                Ok(()) => joined.push(*ip),
                Err(e) => {
                    let fields = [("address", ip.to_string().into()), ("why", e.to_string().into())];
                    log.say(Level::Warning, "not announced", &fields);
                }
            }
            joined.contains(ip)
        });
        if services.is_empty() {
            let found = "no listener has an IPv4 address on a network that carries multicast";
            return Err(Error::machine(asked, found, "ip -brief address, then listen on one of those"));
        }
        Ok(Announcer { socket, services, said: Vec::new() })
    }

    /// Until `stop` is readable.
    pub(super) fn run(mut self, stop: &OwnedFd) {
        let mut again = Some(monotonic_now() + AGAIN);
        self.announce(Service::announcement);
        let mut message = [0; MESSAGE_BYTES_MAX];
        loop {
            let wait = again.map(|at| at.saturating_duration_since(monotonic_now()));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            let mut both = [PollFd::new(stop, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut both, wait.as_ref()) {
                Ok(0) => {
                    again = None;
                    self.announce(Service::announcement);
                }
                Ok(_) if !both[0].revents().is_empty() => break,
                Ok(_) => {
                    if let Ok((bytes, SocketAddr::V4(from))) = self.socket.recv_from(&mut message) {
                        self.hear(&message[..bytes], from.into());
                    }
                }
                Err(_) => {}
            }
        }
        self.announce(Service::farewell);
    }

    fn announce(&self, message: impl Fn(&Service) -> Vec<u8>) {
        for (ip, service) in &self.services {
            // Who doesn't hear it asks.
            let _ = send_multicast(&self.socket, &message(service), GROUP, PORT, *ip);
        }
    }

    fn hear(&mut self, message: &[u8], from: SocketAddr) {
        let near = local_address_for(from);
        let known = self.services.iter().any(|(ip, _)| Some(*ip) == near);
        let now = monotonic_now();
        self.said.retain(|(_, _, at)| now.duration_since(*at) < AGAIN);
        for (ip, service) in &self.services {
            // Of an address that none is reached from, such as a second one of an interface, all are told.
            if known && Some(*ip) != near {
                continue;
            }
            let Some(answer) = service.answer(message, from.port()) else { continue };
            if answer.alone {
                let _ = self.socket.send_to(&answer.bytes, from);
            } else if !self.said.iter().any(|(on, bytes, _)| on == ip && *bytes == answer.bytes) {
                let _ = send_multicast(&self.socket, &answer.bytes, GROUP, PORT, *ip);
                if self.said.len() < SAID_MAX {
                    self.said.push((*ip, answer.bytes, now));
                }
            }
        }
    }
}
