//! The addresses behind a host's name, for those that ask a target with no job.

use crate::Error;
use forebay_io::with_time_limit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// The addresses that a name stands for. A resolver's own time-outs are longer than ours.
pub(super) fn resolve(host: &str, port: u16, timeout: Duration) -> Result<Vec<SocketAddr>, Error> {
    let name = host.to_string();
    let asked = || format!("host '{host}'");
    let next = || format!("getent hosts {host}");
    let found = with_time_limit(timeout, move || {
        (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    });
    match found {
        Some(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Some(Err(e)) => Err(Error::machine(asked(), format!("doesn't resolve: {e}"), next())),
        _ => Err(Error::machine(asked(), "doesn't resolve: no name server answered in time", next())),
    }
}

/// The first of several addresses that answers; else what the last one said.
pub(super) fn first<T>(
    addresses: &[SocketAddr],
    mut open: impl FnMut(SocketAddr) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut last = Err(Error::machine("the host", "has no address", "getent hosts HOST"));
    for address in addresses {
        last = open(*address);
        if last.is_ok() {
            return last;
        }
    }
    last
}
