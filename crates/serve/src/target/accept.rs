//! The thread that accepts connections, and gives each to the thread that has the fewest.

use super::log::Level;
use super::message::{HostTransport, Message, NewConnection};
use super::shared::TargetShared;
use super::tls::Gate;
use super::worker::keep_alive;
use forebay_io::{keep_unpaced, monotonic_now};
use forebay_model::Error;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{self, sockopt, AddressFamily, SocketFlags, SocketType};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that may wait for us to accept them.
const BACKLOG: i32 = 4096;
/// Accepted in a row from one listener.
const ACCEPTED_MAX: u32 = 256;
/// The same complaint is said again after this.
const COMPLAINT_EVERY: Duration = Duration::from_secs(10);

/// Why a connection more isn't taken.
pub(crate) const FULL: &str = "the limit on connections is reached (connections)";

/// `field`: of the configuration, that names it.
///
/// # Errors
/// `Request`: the address is in use, not ours, or not allowed.
pub(crate) fn bind(field: &str, address: SocketAddr) -> Result<TcpListener, Error> {
    let asked = format!("{field} = \"{address}\"");
    let bound = open(address).map_err(|e| match e.raw_os_error() {
        libc::EADDRINUSE => {
            let next = format!("another port (port 0: any), or ss -ltnp 'sport = :{}'", address.port());
            Error::request(&asked, "the address is already in use", next)
        }
        libc::EADDRNOTAVAIL => {
            Error::request(&asked, "this machine has no such address", "ip -brief address, or 0.0.0.0")
        }
        libc::EACCES => Error::request(&asked, "permission denied", "a port above 1023"),
        libc::EMFILE | libc::ENFILE => Error::machine(&asked, "too many open files", "ulimit -n 65536"),
        _ => Error::machine(&asked, std::io::Error::from(e).to_string(), "ip -brief address"),
    })?;
    Ok(TcpListener::from(bound))
}

fn open(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // So that 0.0.0.0 and [::] can be listened on side by side.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    // What is accepted has it from here.
    keep_unpaced(&socket, address.ip());
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(crate) struct Acceptor {
    shared: Arc<TargetShared>,
    listeners: Vec<TcpListener>,
    /// Readable once the thread should end.
    stop: Arc<OwnedFd>,
    /// Given up for a moment where the process has no descriptor left, to take a connection and close it.
    spare: Option<File>,
    complained: Option<Instant>,
    /// Entrance for TLS, where a host has a TLS key.
    gate: Option<Gate>,
}

/// The processor that took the connection's last packets.
fn incoming_cpu(socket: &TcpStream) -> Option<u32> {
    rustix::net::sockopt::socket_incoming_cpu(socket).ok()
}

impl Acceptor {
    /// # Errors
    /// `Machine`: a host has a TLS key, and there is no OpenSSL.
    pub(crate) fn new(
        shared: Arc<TargetShared>,
        listeners: Vec<TcpListener>,
        stop: Arc<OwnedFd>,
    ) -> Result<Acceptor, Error> {
        let gate = Gate::from_config(&shared.config)?;
        Ok(Acceptor { shared, listeners, stop, spare: File::open("/dev/null").ok(), complained: None, gate })
    }

    /// Until `stop` is readable.
    pub(crate) fn run(mut self) {
        loop {
            let stop = PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&*self.stop), PollFlags::IN);
            let listeners = self.listeners.iter().map(|l| PollFd::new(l, PollFlags::IN));
            let mut all: Vec<PollFd<'_>> = std::iter::once(stop).chain(listeners).collect();
            let ready = match poll(&mut all, None) {
                Ok(_) => all.iter().map(|p| !p.revents().is_empty()).collect::<Vec<_>>(),
                Err(_) => continue,
            };
            if ready[0] {
                return;
            }
            for (at, _) in ready[1..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.accept_all(at);
            }
        }
    }

    fn accept_all(&mut self, at: usize) {
        for _ in 0..ACCEPTED_MAX {
            match self.listeners[at].accept() {
                Ok((socket, peer)) => self.give(socket, peer),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        self.turn_away(at);
                        return;
                    }
                    Some(libc::ENOBUFS | libc::ENOMEM) => {
                        self.complain("the system is out of memory");
                        std::thread::sleep(Duration::from_millis(50));
                        return;
                    }
                    // A connection that failed before we took it.
                    Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
                    _ => return,
                },
            }
        }
    }

    /// Without a descriptor the connection would stay in the backlog and the poll return at once, for ever.
    fn turn_away(&mut self, at: usize) {
        self.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
        self.complain("the process has no descriptor left (ulimit -n)");
        if self.spare.take().is_some() {
            drop(self.listeners[at].accept());
        } else {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.spare = File::open("/dev/null").ok();
    }

    fn complain(&mut self, why: &'static str) {
        let now = monotonic_now();
        if self.complained.is_none_or(|last| now.duration_since(last) >= COMPLAINT_EVERY) {
            self.complained = Some(now);
            self.shared.log.say(Level::Error, "connection refused", &[("why", why.into())]);
        }
    }

    fn give(&mut self, socket: TcpStream, peer: SocketAddr) {
        if !self.shared.has_room() {
            return self.complain(FULL);
        }
        let Ok(local) = socket.local_addr() else { return };
        keep_alive(&socket);
        let Some(inbox) = self.shared.thread_for(incoming_cpu(&socket)) else { return };
        match &self.gate {
            Some(gate) => gate.receive(socket.into(), peer, local, inbox.clone(), self.shared.clone()),
            None => {
                let way = HostTransport::Tcp(socket.into());
                inbox.post(Message::Adopt(NewConnection { way, peer, local, client: None }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion(of: &TcpStream) -> String {
        sockopt::tcp_congestion(of).unwrap()
    }

    // promise: TGT-15
    #[test]
    fn connections_of_loopback_are_not_paced_and_others_are_the_systems() {
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        for (listen, expected) in [("127.0.0.1:0", "reno"), ("[::1]:0", "reno"), ("0.0.0.0:0", system.trim())]
        {
            let Ok(listener) = bind("listen", listen.parse().unwrap()) else {
                assert!(listen.starts_with('['), "{listen}");
                continue;
            };
            let to = listener.local_addr().unwrap();
            let to = if to.ip().is_unspecified() { ([127, 0, 0, 1], to.port()).into() } else { to };
            let _host = TcpStream::connect(to).unwrap();
            poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
            assert_eq!(congestion(&listener.accept().unwrap().0), expected, "{listen}");
        }
    }
}
