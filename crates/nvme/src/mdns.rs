//! Discovery services on the local network, told and found by multicast DNS (RFC 6762) and DNS-SD (RFC 6763), as
//! hosts look for them (NVMe technical proposal 8009): `_nvme-disc._tcp`, with the protocol and the NQN in its text.
//!
//! Names of ours hold the address and the port that they stand for, which nobody else on the link has: they need no
//! probing (RFC 6762, section 8.1), and don't meet those of another responder on the machine.

mod find;
mod message;
#[cfg(test)]
mod tests;

pub use find::{query, Finder, Found};

use crate::nqn;
use core::net::Ipv4Addr;
use message::{Kind, Message, Name, Record, Writer};

/// Multicast group of all speakers, IPv4.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
pub const PORT: u16 = 5353;
/// Longest message that is read or written.
pub const MESSAGE_BYTES_MAX: usize = 9000;

const SERVICE: [&str; 3] = ["_nvme-disc", "_tcp", "local"];
/// Name under which the types of services are listed (RFC 6763, section 9).
const TYPES: [&str; 4] = ["_services", "_dns-sd", "_udp", "local"];
/// Seconds that an answer holds: of what names a host, and of the rest (RFC 6762, section 10).
const HOST_S: u32 = 120;
const OTHER_S: u32 = 4500;
/// To who asked from another port, and thus listens only once (RFC 6762, section 6.7).
const LEGACY_S: u32 = 10;
const LABEL_BYTES_MAX: usize = 63;

/// One listener of a discovery service over TCP, at an address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    address: Ipv4Addr,
    port: u16,
    instance: Name,
    host: Name,
}

/// Answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub bytes: Vec<u8>,
    /// To the asker alone; else to all.
    pub alone: bool,
}

impl Service {
    /// `machine`: its name, for people to read.
    pub fn new(machine: &str, address: Ipv4Addr, port: u16) -> Service {
        let at = format!(" {address}:{port}");
        let mut title = format!("NVMe discovery on {machine}");
        while title.len() + at.len() > LABEL_BYTES_MAX {
            title.pop();
        }
        let [a, b, c, d] = address.octets();
        Service {
            address,
            port,
            instance: Name::from_labels(&[&format!("{title}{at}")]).under(&SERVICE),
            host: Name::from_labels(&[&format!("forebay-{a}-{b}-{c}-{d}-{port}"), "local"]),
        }
    }

    /// Said unasked: that it is there.
    pub fn announcement(&self) -> Vec<u8> {
        self.response(0, &[], self.all(), Vec::new(), None)
    }

    /// Returns the farewell: each record with no time to live.
    pub fn farewell(&self) -> Vec<u8> {
        let mut all = self.all();
        all.iter_mut().for_each(|record| record.seconds = 0);
        self.response(0, &[], all, Vec::new(), None)
    }

    fn all(&self) -> Vec<Record> {
        vec![self.pointer(), self.place(), self.text(), self.address()]
    }

    /// Returns the answer to a message; None: nothing. `from_port`: the port of who asks.
    pub fn answer(&self, message: &[u8], from_port: u16) -> Option<Answer> {
        let asked = Message::read(message)?;
        if asked.is_response {
            return None;
        }
        let (mut answers, mut besides) = (Vec::new(), Vec::new());
        for question in &asked.questions {
            self.reply(&question.name, question.kind, &mut answers, &mut besides);
        }
        // The asker's list of what it knows, half of whose time at least is left.
        let knows = |own: &Record| {
            asked.answers.iter().any(|known| known.is(own) && known.seconds >= own.seconds.div_ceil(2))
        };
        answers.retain(|record| !knows(record));
        besides.retain(|record| !answers.contains(record));
        if answers.is_empty() {
            return None;
        }
        let legacy = from_port != PORT;
        let alone = legacy || asked.questions.iter().all(|question| question.alone);
        let (id, echoed) = if legacy { (asked.id, &asked.questions[..]) } else { (0, &[][..]) };
        let bytes = self.response(id, echoed, answers, besides, legacy.then_some(LEGACY_S));
        Some(Answer { bytes, alone })
    }

    fn reply(&self, name: &Name, kind: Kind, answers: &mut Vec<Record>, besides: &mut Vec<Record>) {
        let mut offer = |record: Record| {
            let fits = record.name == *name && (kind == Kind::ANY || kind == record.kind);
            if fits && !answers.contains(&record) {
                answers.push(record);
            }
            fits
        };
        let listed = offer(self.pointer());
        offer(Record::pointer(Name::from_labels(&TYPES), &Name::from_labels(&SERVICE), OTHER_S));
        let placed = offer(self.place()) | offer(self.text());
        offer(self.address());
        // Who finds the service wants to know these next.
        if listed {
            besides.extend([self.place(), self.text()]);
        }
        if listed || placed {
            besides.push(self.address());
        }
    }

    fn pointer(&self) -> Record {
        Record::pointer(Name::from_labels(&SERVICE), &self.instance, OTHER_S)
    }

    /// SRV: no priority, no weight, the port, the host.
    fn place(&self) -> Record {
        let mut data = [0; 4].to_vec();
        data.extend(self.port.to_be_bytes());
        self.host.write(&mut data);
        Record::own(self.instance.clone(), Kind::SRV, HOST_S, data)
    }

    fn text(&self) -> Record {
        let mut data = Vec::new();
        for text in ["p=tcp".to_string(), format!("nqn={}", nqn::DISCOVERY)] {
            data.push(text.len() as u8);
            data.extend(text.as_bytes());
        }
        Record::own(self.instance.clone(), Kind::TXT, OTHER_S, data)
    }

    fn address(&self) -> Record {
        Record::own(self.host.clone(), Kind::A, HOST_S, self.address.octets().to_vec())
    }

    /// `at_most`: of each record's seconds; such an asker knows nothing of caches that are to be flushed, either.
    fn response(
        &self,
        id: u16,
        questions: &[message::Question],
        answers: Vec<Record>,
        besides: Vec<Record>,
        at_most: Option<u32>,
    ) -> Vec<u8> {
        let mut writer = Writer::response(id);
        questions.iter().for_each(|question| writer.question(question));
        for (mut record, answers) in
            answers.into_iter().map(|r| (r, true)).chain(besides.into_iter().map(|r| (r, false)))
        {
            if let Some(most) = at_most {
                record.seconds = record.seconds.min(most);
                record.flush = false;
            }
            writer.record(&record, answers);
        }
        writer.bytes
    }
}
