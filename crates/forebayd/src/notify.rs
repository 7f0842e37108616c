//! Notifications of systemd about a service (sd_notify(3)): datagrams to the socket that NOTIFY_SOCKET names.

use rustix::time::{clock_gettime, ClockId};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Says nothing where nobody asked.
pub struct Systemd {
    address: Option<SocketAddr>,
    watched: bool,
}

impl Systemd {
    pub fn new() -> Systemd {
        let named = std::env::var("NOTIFY_SOCKET").unwrap_or_default();
        let address = match named.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok(),
            None if named.starts_with('/') => SocketAddr::from_pathname(named).ok(),
            None => None,
        };
        Systemd { address, watched: std::env::var_os("WATCHDOG_USEC").is_some() }
    }

    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    pub fn reloading(&self) {
        // Type=notify-reload asks for the time, so that it can tell this reload from an earlier one.
        let now = clock_gettime(ClockId::Monotonic);
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1000));
    }

    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// For WatchdogSec=.
    pub fn alive(&self) {
        if self.watched {
            self.say("WATCHDOG=1");
        }
    }

    /// A service manager that doesn't listen is no reason to stop serving.
    fn say(&self, text: &str) {
        let (Some(address), Ok(socket)) = (&self.address, UnixDatagram::unbound()) else { return };
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.send_to_addr(text.as_bytes(), address);
    }
}
