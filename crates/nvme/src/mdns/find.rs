//! Search for discovery services: one question, and its answers.

use super::message::{Kind, Message, Name, Question, Record, Writer};
use super::SERVICE;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Services that are kept of what a network says.
const SERVICES_MAX: usize = 256;
const RECORDS_MAX: usize = 4 * SERVICES_MAX;

/// Returns the question for all discovery services. Sent to the group from any port but its own, it is answered to
/// that port.
pub fn query() -> Vec<u8> {
    let mut writer = Writer::query();
    writer.question(&Question { name: Name::from_labels(&SERVICE), kind: Kind::PTR, alone: false });
    writer.bytes
}

/// A discovery service that told of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name, for people.
    pub title: String,
    /// Addresses on which it listens; none, where it told of none.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// `p` of its text, `tcp`; None: it says none.
    pub protocol: Option<String>,
    pub nqn: Option<String>,
}

/// Collects what comes back.
#[derive(Debug, Default)]
pub struct Finder {
    records: Vec<Record>,
}

impl Finder {
    pub fn take(&mut self, message: &[u8]) {
        let Some(message) = Message::read(message).filter(|message| message.is_response) else { return };
        for record in message.answers.into_iter().chain(message.additional) {
            let wanted = matches!(record.kind, Kind::PTR | Kind::SRV | Kind::TXT | Kind::A | Kind::AAAA);
            self.records.retain(|known| !known.is(&record));
            if wanted && record.seconds > 0 && self.records.len() < RECORDS_MAX {
                self.records.push(record);
            }
        }
    }

    /// Returns those whose port is known, in the order in which they came.
    pub fn found(&self) -> Vec<Found> {
        let mut names: Vec<Name> = Vec::new();
        let service = Name::from_labels(&SERVICE);
        let pointers = self.records_of(&service, Kind::PTR);
        for name in pointers.filter_map(|record| record.target(0)).filter(|name| name.is_under(&SERVICE)) {
            if !names.contains(&name) && names.len() < SERVICES_MAX {
                names.push(name);
            }
        }
        names.iter().filter_map(|name| self.service(name)).collect()
    }

    fn records_of<'a>(&'a self, name: &'a Name, kind: Kind) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.kind == kind && record.name == *name)
    }

    fn service(&self, name: &Name) -> Option<Found> {
        let place = self.records_of(name, Kind::SRV).next()?;
        let port = u16::from_be_bytes(place.data.get(4..6)?.try_into().ok()?);
        let host = place.target(6)?;
        let v4 = self.records_of(&host, Kind::A).filter_map(|record| {
            Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&record.data[..]).ok()?)))
        });
        let v6 = self.records_of(&host, Kind::AAAA).filter_map(|record| {
            Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&record.data[..]).ok()?)))
        });
        let text = |key| self.records_of(name, Kind::TXT).find_map(|record| value(&record.data, key));
        let addresses = v4.chain(v6).collect();
        Some(Found { title: name.title(), addresses, port, protocol: text("p"), nqn: text("nqn") })
    }
}

/// Returns a text's value of a key, whose case doesn't matter (RFC 6763, section 6.4).
fn value(mut text: &[u8], key: &str) -> Option<String> {
    while let Some((length, rest)) = text.split_first() {
        let (entry, behind) = rest.split_at_checked(usize::from(*length))?;
        let at = entry.iter().position(|byte| *byte == b'=').unwrap_or(entry.len());
        if entry[..at].eq_ignore_ascii_case(key.as_bytes()) {
            return String::from_utf8(entry.get(at + 1..)?.to_vec()).ok();
        }
        text = behind;
    }
    None
}
