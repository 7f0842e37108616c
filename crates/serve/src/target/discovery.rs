//! Discovery log: every listener with each subsystem, and other services, as a host may see them.

use super::config::{self, PORT};
use super::shared::TargetShared;
use super::subsystem::DISCOVERY;
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::discovery::{adrfam, eflags, sectype, subtype, treq, trtype, Endpoint};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A host may do without flow control of its submission queues (TREQ, bit 2; base, figure of the log's entry).
const NO_FLOW_CONTROL: u8 = 1 << 2;
/// Entries of an admin queue (ASQSZ).
const ADMIN_ENTRIES: u16 = 32;
/// Controllers are given to hosts as they come (CNTLID).
const DYNAMIC: u16 = 0xffff;

/// A listener as the log tells of it.
#[derive(Clone, Copy)]
struct Port {
    transport: u8,
    at: SocketAddr,
    /// PORTID.
    number: u16,
}

impl TargetShared {
    /// The discovery subsystem as who connected to `local` sees it: our listeners by addresses that lead here.
    pub(crate) fn discovery_at(&self, local: SocketAddr) -> Arc<nvme::Subsystem> {
        let discovery = self.subsystems.last().expect("the discovery subsystem is always there");
        let mut entries = Vec::new();
        let listeners = self.addresses.get().into_iter().flat_map(|all| {
            let tcp = all.tcp.iter().map(|at| (trtype::TCP, at));
            tcp.chain(all.rdma.iter().map(|at| (trtype::RDMA, at)))
        });
        for (number, (transport, listener)) in (1..).zip(listeners) {
            let Some(ip) = reachable(listener.ip(), local.ip()) else { continue };
            let port = Port { transport, at: SocketAddr::new(ip, listener.port()), number };
            self.config.subsystems.iter().for_each(|given| entries.extend(offers(port, given)));
            let here = port.endpoint(subtype::CURRENT, DISCOVERY);
            // A host may keep its connection (EPCSD).
            let endpoint = Endpoint { flags: eflags::PERSISTENT, ..here };
            entries.push(nvme::Offer { endpoint, hosts: None });
        }
        entries.extend(self.config.referrals.iter().filter_map(referral));
        let base = discovery.nvme();
        Arc::new(nvme::Subsystem {
            kind: nvme::Kind::Discovery { entries, generation: 0 },
            ..(*base).clone()
        })
    }
}

/// A subsystem at a port: hosts that have a key for TLS are told that they need it, and where they can't use it,
/// nothing.
fn offers(port: Port, given: &config::Subsystem) -> impl Iterator<Item = nvme::Offer> {
    let plain = port.endpoint(subtype::NVM, &given.nqn);
    let required = plain.requirements & NO_FLOW_CONTROL | treq::REQUIRED;
    let secure = Endpoint { requirements: required, security: sectype::TLS_1_3, ..plain.clone() };
    let listed = |keyed: bool| -> BTreeSet<String> {
        given.hosts.iter().filter(|h| h.tls_key.is_some() == keyed).map(|h| h.nqn.clone()).collect()
    };
    let (keyed, others) = (listed(true), listed(false));
    let by_tls = (port.transport == trtype::TCP && !keyed.is_empty())
        .then_some(nvme::Offer { endpoint: secure, hosts: Some(keyed) });
    let hosts = (!given.allow_any_host).then_some(others);
    let without = hosts.as_ref().is_none_or(|hosts| !hosts.is_empty());
    by_tls.into_iter().chain(without.then_some(nvme::Offer { endpoint: plain, hosts }))
}

/// None: its address is none, which a configuration that was checked doesn't have.
fn referral(given: &config::Referral) -> Option<nvme::Offer> {
    let at = config::address("referral", &given.address, Ipv4Addr::LOCALHOST.into(), PORT).ok()?;
    let nqn = if given.nqn.is_empty() { DISCOVERY } else { &given.nqn };
    let port = Port { transport: trtype::TCP, at, number: 0 };
    Some(nvme::Offer { endpoint: port.endpoint(subtype::REFERRAL, nqn), hosts: None })
}

/// Returns the address of a listener for a host that reached us at `local`.
fn reachable(listener: IpAddr, local: IpAddr) -> Option<IpAddr> {
    match listener.is_unspecified() {
        true => (listener.is_ipv4() == local.is_ipv4()).then_some(local),
        false => Some(listener),
    }
}

impl Port {
    fn endpoint(self, kind: u8, nqn: &str) -> Endpoint {
        Endpoint {
            transport: self.transport,
            family: if self.at.is_ipv4() { adrfam::IPV4 } else { adrfam::IPV6 },
            kind,
            requirements: treq::NOT_REQUIRED | NO_FLOW_CONTROL,
            port: self.number,
            controller: DYNAMIC,
            admin_entries: ADMIN_ENTRIES,
            flags: 0,
            service: self.at.port().to_string(),
            nqn: nqn.into(),
            address: self.at.ip().to_string(),
            security: sectype::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::config::Config;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    fn port(transport: u8) -> Port {
        Port { transport, at: "10.0.0.1:4420".parse().unwrap(), number: 1 }
    }

    /// Requirements and security of each offer, and to whom it is made.
    fn reported(transport: u8, hosts: &str) -> Vec<(u8, u8, Option<Vec<String>>)> {
        let text = format!("[[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"\n{hosts}");
        let config = Config::from_toml(&text).unwrap();
        let shown = |o: nvme::Offer| {
            (o.endpoint.requirements, o.endpoint.security, o.hosts.map(|h| h.into_iter().collect()))
        };
        offers(port(transport), &config.subsystems[0]).map(shown).collect()
    }

    // promise: TGT-5
    #[test]
    fn a_host_with_a_key_is_told_that_it_needs_tls_and_others_that_they_do_not() {
        let names = ["nqn.2026-11.io.example:k", "nqn.2026-11.io.example:p"].map(String::from);
        let keyed = format!("hosts = [{{nqn = \"{}\", tls_key = \"{KEY}\"}}]", names[0]);
        let both =
            format!("hosts = [{{nqn = \"{}\", tls_key = \"{KEY}\"}}, {{nqn = \"{}\"}}]", names[0], names[1]);
        let (secure, plain) = ((0b101, 2), (0b110, 0));
        let [k, p] = names.map(|n| Some(vec![n]));
        assert_eq!(reported(trtype::TCP, "allow_any_host = true"), [(plain.0, plain.1, None)]);
        assert_eq!(reported(trtype::TCP, &keyed), [(secure.0, secure.1, k.clone())]);
        assert_eq!(reported(trtype::TCP, &both), [(secure.0, secure.1, k), (plain.0, plain.1, p.clone())]);
        assert_eq!(reported(trtype::RDMA, &both), [(plain.0, plain.1, p)], "there is no TLS over RDMA");
        assert_eq!(reported(trtype::RDMA, &keyed), []);
    }

    #[test]
    fn listeners_are_offered_by_addresses_that_lead_here() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(reachable(ip("0.0.0.0"), ip("10.0.0.1")), Some(ip("10.0.0.1")));
        assert_eq!(reachable(ip("::"), ip("10.0.0.1")), None);
        assert_eq!(reachable(ip("10.0.0.9"), ip("10.0.0.1")), Some(ip("10.0.0.9")));
    }
}
