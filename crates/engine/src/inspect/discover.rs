//! The discovery log page of a target, record by record.

use super::link::Link;
use super::{first, resolve, Looking};
use crate::machine::nvme_host::Identity;
use crate::source::uri::encode;
use crate::Error;
use forebay_nvme::controller::subsystem::Endpoint;
use forebay_nvme::discovery::{adrfam, name_of, sectype, subtype, treq, trtype};
use forebay_nvme::host::discovery::Discovery;
use forebay_nvme::nqn;
use serde::Serialize;
use std::net::SocketAddr;

/// Where targets answer for discovery: the port that subsystems share with it, then that of IANA for it alone.
const PORTS: [u16; 2] = [4420, 8009];

/// Schema `forebay.discover/1`: field names as in the specification and in nvme-cli.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Discovered {
    pub schema: &'static str,
    /// Address that answered.
    pub address: String,
    pub host_nqn: String,
    /// Generation counter of the log.
    pub genctr: u64,
    /// Records that can't be read: no name in them.
    pub malformed: u64,
    pub records: Vec<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    pub trtype: String,
    pub adrfam: String,
    pub subtype: String,
    pub treq: String,
    pub portid: u16,
    /// 65535: controllers are given dynamically.
    pub cntlid: u16,
    pub asqsz: u16,
    pub trsvcid: String,
    pub subnqn: String,
    pub traddr: String,
    pub eflags: u16,
    pub sectype: String,
    /// What to type as a source; null where it isn't an NVM subsystem over TCP.
    pub uri: Option<String>,
}

/// Asks `host` (`HOST`, `HOST:PORT`, `[ADDRESS]:PORT`) what it offers to this host.
///
/// # Errors
/// `Request`: no address. `Machine`: nothing answers there. `Run`: what answers doesn't keep to the protocol.
pub fn discover(host: &str, looking: &Looking) -> Result<Discovered, Error> {
    let identity = looking.identity()?;
    let mut last = None;
    for address in addresses(host, looking)? {
        match first(&address, |a| ask(a, &identity, looking)) {
            Ok(found) => return Ok(found),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.expect("there is an address"))
}

/// The addresses to try, port by port.
fn addresses(host: &str, looking: &Looking) -> Result<Vec<Vec<SocketAddr>>, Error> {
    let (name, port) = split(host)?;
    let ports = port.map_or(PORTS.to_vec(), |p| vec![p]);
    ports.into_iter().map(|p| resolve(&name, p, looking.timeout)).collect()
}

/// `HOST`, `HOST:PORT`, `ADDRESS` of IPv6 with or without brackets, `[ADDRESS]:PORT`.
fn split(host: &str) -> Result<(String, Option<u16>), Error> {
    let wrong =
        |found: &str| Error::request(format!("host '{host}'"), found, "HOST, HOST:4420 or [ADDRESS]:4420");
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, tail) = rest.split_once(']').ok_or_else(|| wrong("has no ]"))?;
            (name, tail.strip_prefix(':').or(if tail.is_empty() { None } else { Some(tail) }))
        }
        None if host.matches(':').count() > 1 => (host, None),
        None => host.split_once(':').map_or((host, None), |(n, p)| (n, Some(p))),
    };
    let port =
        port.map(|p| p.parse().map_err(|_| wrong("its port isn't a number up to 65535"))).transpose()?;
    if name.is_empty() || name.contains(['/', '?', ' ', '\0']) {
        return Err(wrong("is neither a name nor an address"));
    }
    Ok((name.into(), port))
}

fn ask(address: SocketAddr, identity: &Identity, looking: &Looking) -> Result<Discovered, Error> {
    let mut link = Link::open(address, &identity.nqn, nqn::DISCOVERY, looking.timeout)?;
    let timeout_ms = looking.timeout.as_millis() as u64;
    let mut session = Discovery::new(identity.nqn.clone(), identity.id, timeout_ms, link.now_ms());
    link.bring_up(&mut session)?;
    let log = session.log();
    Ok(Discovered {
        schema: "forebay.discover/1",
        address: address.to_string(),
        host_nqn: identity.nqn.clone(),
        genctr: log.generation,
        malformed: log.malformed.len() as u64,
        records: log.endpoints.iter().map(record).collect(),
    })
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
    if (endpoint.transport, endpoint.kind) != (trtype::TCP, subtype::NVM) {
        return None;
    }
    let host = match endpoint.address.contains(':') {
        true => format!("[{}]", endpoint.address),
        false => endpoint.address.clone(),
    };
    Some(format!("nvme+tcp://{host}:{}/{}", endpoint.service, encode(&endpoint.nqn)))
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
            assert_eq!(split(text).unwrap_err().kind, crate::Kind::Request, "{text}");
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
        assert_eq!(parsed.fabric().unwrap().nqn, endpoint.nqn);
        assert_eq!(crate::source::Uri::recognise(&parsed.to_string()).unwrap(), parsed);
        endpoint.kind = 3;
        assert_eq!(record(&endpoint).uri, None);
        endpoint.transport = 200;
        assert_eq!(record(&endpoint).trtype, "200");
    }

    proptest! {
        #[test]
        fn no_host_makes_it_panic(text in ".{0,60}") {
            let _ = split(&text);
        }
    }
}
