//! Looking at targets of NVMe over TCP and RDMA: what a discovery service offers, and what a controller and its namespaces say of
//! themselves.

mod browse;
mod discover;
mod identify;

pub use browse::browse;
pub use discover::discover;
pub use identify::identify;

use crate::source::nvme_tcp::Options;
use crate::Error;
use forebay_io::{with_time_limit, NvmeHostIdentity};
use forebay_nvme::nqn::Nqn;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Identity of the host that looks, and its time limit.
#[derive(Clone, Debug)]
pub struct Looking {
    /// None: this host's own.
    pub host_nqn: Option<String>,
    pub timeout: Duration,
}

impl Looking {
    /// Returns the identity that this host claims.
    ///
    /// # Errors
    /// `Request`: by a name that is no NQN.
    fn identity(&self) -> Result<NvmeHostIdentity, Error> {
        let Some(named) = &self.host_nqn else { return Ok(NvmeHostIdentity::of_this_machine()) };
        Nqn::new(named).map_err(|e| {
            let next = "--hostnqn nqn.2014-08.org.example:host";
            Error::request(format!("--hostnqn {named}"), e.to_string(), next)
        })?;
        Ok(NvmeHostIdentity::named(named))
    }

    /// The same where a URI's keys may say it.
    fn identity_by(&self, options: &Options) -> Result<NvmeHostIdentity, Error> {
        let identity = match (&self.host_nqn, &options.host_nqn) {
            (None, Some(named)) => NvmeHostIdentity::named(named),
            _ => self.identity()?,
        };
        Ok(NvmeHostIdentity { id: options.host_id.unwrap_or(identity.id), ..identity })
    }
}

/// The addresses that a name stands for. A resolver's own time-outs are longer than ours.
fn resolve(host: &str, port: u16, timeout: Duration) -> Result<Vec<SocketAddr>, Error> {
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
fn first<T>(
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
