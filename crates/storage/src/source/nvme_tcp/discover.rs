//! The discovery log page of a target, record by record.

use super::probe::probe;
use super::resolve::{first, resolve};
use super::{Address, Link, Options, Tls, Transport};
use crate::source::controller::{Discovered, Inquiry, Record};
use crate::source::uri::{decode, encode, query_once};
use crate::Error;
use forebay_io::NvmeHostIdentity;
use forebay_nvme::discovery::{adrfam, name_of, sectype, subtype, treq, trtype, Endpoint};
use forebay_nvme::host::discovery::Discovery;
use forebay_nvme::nqn;
use std::net::SocketAddr;
use std::sync::Arc;

/// Ports on which targets answer for discovery: the one that subsystems share with it, then IANA's for it alone, which
/// is one of TCP.
const PORTS: [u16; 2] = [4420, 8009];

/// As `SourceRow::discover`.
pub(crate) fn discover(text: &str, inquiry: &Inquiry) -> Result<Discovered, Error> {
    let (options, port) = asked(text)?;
    let identity = options.identity_by(inquiry)?;
    if options.transport == Transport::Rdma {
        return by_rdma(&options, &identity, inquiry);
    }
    let tls = Tls::from_options(&options, &identity.nqn)?;
    let mut last = None;
    for address in addresses(&options.addresses[0].host, port, inquiry)? {
        match first(&address, |a| by_tcp(a, tls.clone(), &options, &identity, inquiry)) {
            Ok(found) => return Ok(found),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.expect("there is an address"))
}

/// The addresses to try, port by port.
fn addresses(host: &str, port: Option<u16>, inquiry: &Inquiry) -> Result<Vec<Vec<SocketAddr>>, Error> {
    let ports = port.map_or(PORTS.to_vec(), |p| vec![p]);
    ports.into_iter().map(|p| resolve(host, p, inquiry.timeout)).collect()
}

/// Parses what was typed: options, and the port if one is named.
fn asked(text: &str) -> Result<(Options, Option<u16>), Error> {
    let next = "HOST, HOST:4420, [ADDRESS]:4420, or 'nvme+tcp://HOST:4420?tls=1'";
    let wrong = |found: &str| Error::request(format!("host '{text}'"), found, next);
    let of = |t: Transport| Some((t, text.strip_prefix(t.scheme())?.strip_prefix("://")?));
    let (transport, place, keys) = match of(Transport::Tcp).or_else(|| of(Transport::Rdma)) {
        None => (Transport::Tcp, text, ""),
        Some((transport, rest)) => {
            let (place, keys) = rest.split_once('?').unwrap_or((rest, ""));
            let (place, subsystem) = place.split_once('/').unwrap_or((place, ""));
            if !subsystem.is_empty() && decode(subsystem) != nqn::DISCOVERY {
                let found = "names a subsystem, and a discovery service tells of all that there are";
                let next = format!("{}://{place}; or forebay identify with that URI", transport.scheme());
                return Err(Error::request(format!("host '{text}'"), found, next));
            }
            (transport, place, keys)
        }
    };
    let (host, port) = split(place).map_err(wrong)?;
    let address = Address { host, port: port.unwrap_or(PORTS[0]) };
    let mut options = Options { transport, ..Options::new(address, nqn::DISCOVERY) };
    for (key, value) in query_once(keys, "path").map_err(|why| wrong(&why))? {
        options.set(&key, &value).map_err(|why| wrong(&why))?;
    }
    Ok((options, port))
}

/// `HOST`, `HOST:PORT`, `ADDRESS` of IPv6 with or without brackets, `[ADDRESS]:PORT`.
fn split(host: &str) -> Result<(String, Option<u16>), &'static str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, tail) = rest.split_once(']').ok_or("has no ]")?;
            (name, tail.strip_prefix(':').or(if tail.is_empty() { None } else { Some(tail) }))
        }
        None if host.matches(':').count() > 1 => (host, None),
        None => host.split_once(':').map_or((host, None), |(n, p)| (n, Some(p))),
    };
    let port = port.map(|p| p.parse().map_err(|_| "its port isn't a number up to 65535")).transpose()?;
    if name.is_empty() || name.contains(['/', '?', ' ', '\0']) {
        return Err("is neither a name nor an address");
    }
    Ok((name.into(), port))
}

fn by_tcp(
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    options: &Options,
    identity: &NvmeHostIdentity,
    inquiry: &Inquiry,
) -> Result<Discovered, Error> {
    let mut link = Link::open(tls, address, &identity.nqn, nqn::DISCOVERY, inquiry.timeout)?;
    link.secret_files = (options.secret_file.clone(), options.ctrl_secret_file.clone());
    let mut session = session(identity, inquiry, link.now_ms());
    link.bring_up(&mut session)?;
    Ok(reported(&session, address, identity))
}

fn by_rdma(options: &Options, identity: &NvmeHostIdentity, inquiry: &Inquiry) -> Result<Discovered, Error> {
    let session = |now| session(identity, inquiry, now);
    let probed = probe(options, &identity.nqn, inquiry.timeout, session)?;
    let found = reported(probed.session(), probed.at(), identity);
    probed.leave();
    Ok(found)
}

fn session(identity: &NvmeHostIdentity, inquiry: &Inquiry, now_ms: u64) -> Discovery {
    Discovery::new(identity.nqn.clone(), identity.id, inquiry.timeout.as_millis() as u64, now_ms)
}

/// Describes a discovery session that is ready.
fn reported(session: &Discovery, address: SocketAddr, identity: &NvmeHostIdentity) -> Discovered {
    let log = session.log();
    Discovered {
        schema: "forebay.discover/1",
        address: address.to_string(),
        host_nqn: identity.nqn.clone(),
        genctr: log.generation,
        malformed: log.malformed.len() as u64,
        records: log.endpoints.iter().map(record).collect(),
    }
}

fn record(endpoint: &Endpoint) -> Record {
    Record {
        trtype: named(trtype::NAMES, endpoint.transport),
        adrfam: named(adrfam::NAMES, endpoint.family),
        subtype: named(subtype::NAMES, endpoint.kind),
        treq: named(treq::NAMES, endpoint.requirements & 0b11),
        portid: endpoint.port,
        cntlid: endpoint.controller,
        asqsz: endpoint.admin_entries,
        trsvcid: endpoint.service.clone(),
        subnqn: endpoint.nqn.clone(),
        traddr: endpoint.address.clone(),
        eflags: endpoint.flags,
        sectype: named(sectype::NAMES, endpoint.security),
        uri: uri(endpoint),
    }
}

/// In the specification's words; what has none there is shown as a number.
fn named(names: &[(u8, &'static str)], value: u8) -> String {
    name_of(names, value).map_or_else(|| value.to_string(), String::from)
}

fn uri(endpoint: &Endpoint) -> Option<String> {
    let scheme = match (endpoint.transport, endpoint.kind) {
        (trtype::TCP, subtype::NVM) => Transport::Tcp.scheme(),
        (trtype::RDMA, subtype::NVM) => Transport::Rdma.scheme(),
        _ => return None,
    };
    let host = match endpoint.address.contains(':') {
        true => format!("[{}]", endpoint.address),
        false => endpoint.address.clone(),
    };
    Some(format!("{scheme}://{host}:{}/{}", endpoint.service, encode(&endpoint.nqn)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_come_with_and_without_port_and_brackets() {
        for (text, name, port) in [
            ("h", "h", None),
            ("h:1", "h", Some(1)),
            ("10.0.0.1:4420", "10.0.0.1", Some(4420)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:9", "::1", Some(9)),
        ] {
            assert_eq!(split(text).unwrap(), (name.to_string(), port), "{text}");
        }
        for text in ["", ":1", "h:", "h:x", "h:99999", "[::1", "[::1]9x", "a/b", "[]"] {
            assert_eq!(asked(text).unwrap_err().kind, crate::Kind::Request, "{text}");
        }
    }

    // promise: RHO-20
    #[test]
    fn a_host_may_be_named_as_sources_name_it_and_with_their_keys() {
        let at = |text: &str| asked(text).unwrap();
        let (plain, port) = at("[::1]");
        assert_eq!((plain.transport, plain.asks_for_tls(), port), (Transport::Tcp, false, None));
        let (tls, port) = at("nvme+tcp://[::1]:9?tls_key_file=/k&hostnqn=nqn.2026-11.io.example:a");
        assert!(tls.asks_for_tls() && tls.nqn == nqn::DISCOVERY && port == Some(9), "{tls:?}");
        assert_eq!(tls.host_nqn.as_deref(), Some("nqn.2026-11.io.example:a"));
        let (rdma, port) = at("nvme+rdma://h/?dhchap_secret_file=/s");
        assert_eq!((rdma.transport, rdma.addresses[0].to_string().as_str()), (Transport::Rdma, "h:4420"));
        assert!(rdma.secret_file.is_some() && port.is_none(), "{rdma:?}");
        assert_eq!(at("nvme+tcp://h/nqn.2014-08.org.nvmexpress.discovery").0.nqn, nqn::DISCOVERY);
        for (text, said) in [
            ("nvme+rdma://h?tls=1", "tls is for nvme+tcp: alone"),
            ("nvme+tcp://h?tls=2", "tls=2"),
            ("nvme+tcp://h?nr=1", "'nr'"),
            ("nvme+tcp://h?tls=1&tls=1", "twice"),
            ("nvme+tcp://h?tls_key=NVMeTLSkey-1:01:x:", "tls_key_file=PATH"),
            ("nvme+tcp://h/nqn.2026-11.io.example:a?tls=1", "names a subsystem"),
            ("nvme+tcp://", "neither a name nor an address"),
            ("h?tls=1", "neither a name nor an address"),
            ("http://h", "its port"),
        ] {
            let error = asked(text).unwrap_err();
            assert!(error.kind == crate::Kind::Request && error.found.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_offered_says_what_to_type() {
        let mut endpoint = Endpoint {
            transport: 3,
            family: 2,
            kind: 2,
            requirements: 2,
            port: 1,
            controller: 0xffff,
            admin_entries: 32,
            flags: 0,
            service: "4420".into(),
            nqn: "nqn.2026-01.io.example:a".into(),
            address: "::1".into(),
            security: 0,
        };
        let made = record(&endpoint);
        assert_eq!(made.uri.as_deref(), Some("nvme+tcp://[::1]:4420/nqn.2026-01.io.example:a"));
        assert_eq!(
            (made.trtype.as_str(), made.adrfam.as_str(), made.subtype.as_str()),
            ("tcp", "ipv6", "nvm subsystem")
        );
        // What would end the name in a URI.
        endpoint.nqn = "nqn.2026-01.io.example:q?x=1&y=50%#é".into();
        let uri = record(&endpoint).uri.unwrap();
        assert_eq!(uri, "nvme+tcp://[::1]:4420/nqn.2026-01.io.example:q%3Fx=1%26y=50%25%23é");
        let parsed = crate::source::Uri::recognise(&uri).unwrap();
        assert_eq!(Options::from_uri(&parsed).unwrap().nqn, endpoint.nqn);
        assert_eq!(crate::source::Uri::recognise(&parsed.to_string()).unwrap(), parsed);
        endpoint.transport = 1;
        assert!(record(&endpoint).uri.unwrap().starts_with("nvme+rdma://[::1]:4420/nqn."));
        endpoint.kind = 3;
        assert_eq!(record(&endpoint).uri, None);
        endpoint.transport = 200;
        assert_eq!(record(&endpoint).trtype, "200");
    }

    proptest! {
        #[test]
        fn no_host_makes_it_panic(text in ".{0,60}") {
            let _ = asked(&text);
            let _ = asked(&format!("nvme+tcp://{text}"));
        }
    }
}
