//! The controller that a URI names, asked over an admin queue with no I/O queues beside it.

use super::probe::probe;
use super::resolve::{first, resolve};
use super::{Address, Link, Options, Tls, Transport};
use crate::source::controller::{Accepted, ControllerReport, Inquiry};
use crate::Error;
use forebay_io::NvmeHostIdentity;
use forebay_nvme::host::{self, Session};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Connects, asks, and leaves. `one`: of its namespaces, for the one that the options name.
pub(super) fn identify(options: &Options, inquiry: &Inquiry, one: bool) -> Result<ControllerReport, Error> {
    let wanted = one.then_some(options.nsid);
    let ask =
        Ask { asked: options, wanted, identity: options.identity_by(inquiry)?, within: inquiry.timeout };
    if options.transport == Transport::Rdma {
        return ask.by_rdma();
    }
    let tls = Tls::from_options(options, &ask.identity.nqn)?;
    let Address { host, port } = &options.addresses[0];
    let addresses = resolve(host, *port, inquiry.timeout)?;
    first(&addresses, |address| ask.by_tcp(address, tls.clone()))
}

/// Subject of an examination, and the host that asks.
struct Ask<'a> {
    asked: &'a Options,
    /// This namespace alone.
    wanted: Option<u32>,
    identity: NvmeHostIdentity,
    within: Duration,
}

impl Ask<'_> {
    fn by_tcp(&self, address: SocketAddr, tls: Option<Arc<Tls>>) -> Result<ControllerReport, Error> {
        let mut link = Link::open(tls, address, &self.identity.nqn, &self.asked.nqn, self.within)?;
        link.secret_files = (self.asked.secret_file.clone(), self.asked.ctrl_secret_file.clone());
        let mut session = self.session(link.now_ms());
        link.bring_up(&mut session)?;
        let found = self.report(&session, address, link.accepted);
        link.shut_down(&mut session);
        found
    }

    fn by_rdma(&self) -> Result<ControllerReport, Error> {
        let session = |now| self.session(now);
        let probed = probe(self.asked, &self.identity.nqn, self.within, session)?;
        let found = self.report(probed.session(), probed.at(), Accepted::default());
        probed.shut_down();
        found
    }

    fn session(&self, now_ms: u64) -> Session {
        let options = host::Options {
            host_nqn: self.identity.nqn.clone(),
            host_id: self.identity.id,
            subsystem_nqn: self.asked.nqn.clone(),
            queues: u16::MAX,
            queue_entries: u16::MAX,
            keep_alive_ms: 0,
            timeout_ms: self.within.as_millis() as u64,
            namespace: self.wanted,
        };
        Session::new(options, now_ms)
    }

    /// Describes a session that is ready.
    fn report(
        &self,
        session: &Session,
        address: SocketAddr,
        accepted: Accepted,
    ) -> Result<ControllerReport, Error> {
        let base = self.asked.base();
        if let Some(missing) = self.wanted.filter(|wanted| !session.namespaces().contains_key(wanted)) {
            let found = format!("{} at {address} has none that this host may use", self.asked.nqn);
            let next = format!("forebay identify {base}");
            return Err(Error::request(format!("namespace {missing}"), found, next));
        }
        Ok(ControllerReport {
            uri: base,
            address: address.to_string(),
            host_nqn: self.identity.nqn.clone(),
            accepted,
            controller: session.controller().clone(),
            namespaces: session.namespaces().values().cloned().collect(),
        })
    }
}
