//! Messages of DNS (RFC 1035, section 4), as far as multicast DNS uses them.

use super::MESSAGE_BYTES_MAX;

const HEADER: usize = 12;
/// QR: a response. AA: from who knows; set in every response (RFC 6762, section 18.4).
const RESPONSE: u16 = 1 << 15;
const AUTHORITATIVE: u16 = 1 << 10;
const OPCODE: u16 = 0b1111 << 11;
/// Top bit of a class: in a question, an answer to the asker alone will do; in a record, it replaces what caches hold.
const TOP: u16 = 1 << 15;
/// The Internet, and any class.
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;
/// A pointer within a message, in place of a label's length.
const POINTER: u8 = 0b1100_0000;
const NAME_BYTES_MAX: usize = 255;
/// Questions and records of one message that are read.
const PARTS_MAX: usize = 512;

/// The type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub u16);

impl Kind {
    pub const A: Kind = Kind(1);
    pub const PTR: Kind = Kind(12);
    pub const TXT: Kind = Kind(16);
    pub const AAAA: Kind = Kind(28);
    pub const SRV: Kind = Kind(33);
    pub const ANY: Kind = Kind(255);
}

/// Labels from the left. Letters of ASCII are the same in both cases.
#[derive(Clone, Debug, Eq)]
pub struct Name(Vec<Vec<u8>>);

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        let same = |(a, b): (&Vec<u8>, &Vec<u8>)| a.eq_ignore_ascii_case(b);
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

impl Name {
    pub fn from_labels(labels: &[&str]) -> Name {
        Name(labels.iter().map(|label| label.as_bytes().to_vec()).collect())
    }

    pub fn under(mut self, labels: &[&str]) -> Name {
        self.0.append(&mut Name::from_labels(labels).0);
        self
    }

    pub fn is_under(&self, labels: &[&str]) -> bool {
        self.0.len() == labels.len() + 1 && Name(self.0[1..].to_vec()) == Name::from_labels(labels)
    }

    /// Its first label, for people.
    pub fn title(&self) -> String {
        self.0.first().map_or_else(String::new, |label| String::from_utf8_lossy(label).into_owned())
    }

    /// Each label with its length, and the empty one.
    pub fn write(&self, into: &mut Vec<u8>) {
        for label in &self.0 {
            into.push(label.len() as u8);
            into.extend(label);
        }
        into.push(0);
    }

    /// The name that stands at `at`, and where what follows it begins. Pointers lead backwards only, so that each name
    /// has an end.
    pub fn read(message: &[u8], mut at: usize) -> Option<(Name, usize)> {
        let (mut labels, mut behind, mut bytes) = (Vec::new(), None, 0);
        let mut below = at;
        loop {
            let length = *message.get(at)?;
            match length & POINTER {
                0 if length == 0 => return Some((Name(labels), behind.unwrap_or(at + 1))),
                0 => {
                    let label = message.get(at + 1..at + 1 + usize::from(length))?;
                    bytes += label.len() + 1;
                    if bytes > NAME_BYTES_MAX {
                        return None;
                    }
                    labels.push(label.to_vec());
                    at += 1 + label.len();
                }
                POINTER => {
                    let to = usize::from(u16_at(message, at)? & 0x3fff);
                    behind = behind.or(Some(at + 2));
                    if to >= below {
                        return None;
                    }
                    (at, below) = (to, to);
                }
                _ => return None,
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub name: Name,
    pub kind: Kind,
    /// An answer to the asker alone will do.
    pub alone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: Name,
    pub kind: Kind,
    /// It is the only one of its name and kind: caches drop what they hold.
    pub flush: bool,
    /// Time to live.
    pub seconds: u32,
    /// Names in it are whole: no pointers.
    pub data: Vec<u8>,
}

impl Record {
    /// One of several that may have the name.
    pub fn pointer(name: Name, to: &Name, seconds: u32) -> Record {
        let mut data = Vec::new();
        to.write(&mut data);
        Record { name, kind: Kind::PTR, flush: false, seconds, data }
    }

    pub fn own(name: Name, kind: Kind, seconds: u32, data: Vec<u8>) -> Record {
        Record { name, kind, flush: true, seconds, data }
    }

    /// The same, but for its time. Only in names letters are the same in both cases.
    pub fn is(&self, other: &Record) -> bool {
        let same = match self.kind {
            Kind::PTR | Kind::SRV => self.data.eq_ignore_ascii_case(&other.data),
            _ => self.data == other.data,
        };
        self.name == other.name && self.kind == other.kind && same
    }

    /// The name in its data, from there on.
    pub fn target(&self, at: usize) -> Option<Name> {
        Name::read(&self.data, at).map(|(name, _)| name)
    }
}

#[derive(Debug, Default)]
pub struct Message {
    pub id: u16,
    pub is_response: bool,
    pub questions: Vec<Question>,
    /// Answers that the asker of a query knows already.
    pub answers: Vec<Record>,
    /// Authority records aren't among them.
    pub additional: Vec<Record>,
}

impl Message {
    /// None: it isn't one, or none of ours. Questions and records of other classes are left out.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let word = |at| u16_at(bytes, at);
        let flags = word(2)?;
        let counts = [word(4)?, word(6)?, word(8)?, word(10)?].map(usize::from);
        if bytes.len() > MESSAGE_BYTES_MAX || flags & OPCODE != 0 || counts.iter().sum::<usize>() > PARTS_MAX
        {
            return None;
        }
        let mut message = Message { id: word(0)?, is_response: flags & RESPONSE != 0, ..Message::default() };
        let mut at = HEADER;
        for _ in 0..counts[0] {
            let (name, end) = Name::read(bytes, at)?;
            let (kind, class) = (Kind(word(end)?), word(end + 2)?);
            at = end + 4;
            if matches!(class & !TOP, CLASS_IN | CLASS_ANY) {
                message.questions.push(Question { name, kind, alone: class & TOP != 0 });
            }
        }
        for (section, count) in counts[1..].iter().enumerate() {
            for _ in 0..*count {
                let (record, end) = read_record(bytes, at)?;
                at = end;
                match (record, section) {
                    (Some(record), 0) => message.answers.push(record),
                    (Some(record), 2) => message.additional.push(record),
                    _ => {}
                }
            }
        }
        Some(message)
    }
}

/// A record, and where the next one begins. None within: of another class.
fn read_record(bytes: &[u8], at: usize) -> Option<(Option<Record>, usize)> {
    let (name, at) = Name::read(bytes, at)?;
    let (kind, class) = (Kind(u16_at(bytes, at)?), u16_at(bytes, at + 2)?);
    let seconds = u32::from_be_bytes(bytes.get(at + 4..at + 8)?.try_into().ok()?);
    let from = at + 10;
    let end = from + usize::from(u16_at(bytes, at + 8)?);
    let raw = bytes.get(from..end)?;
    // Names in the data may be pointers into the message.
    let data = match kind {
        Kind::PTR => whole(bytes, from, &[]),
        Kind::SRV => whole(bytes, from + 6, raw.get(..6)?),
        _ => Some(raw.to_vec()),
    }?;
    let record = Record { name, kind, flush: class & TOP != 0, seconds, data };
    Some(((class & !TOP == CLASS_IN).then_some(record), end))
}

fn whole(bytes: &[u8], at: usize, lead: &[u8]) -> Option<Vec<u8>> {
    let (name, _) = Name::read(bytes, at)?;
    let mut data = lead.to_vec();
    name.write(&mut data);
    Some(data)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn response(id: u16) -> Writer {
        Writer::new(id, RESPONSE | AUTHORITATIVE)
    }

    pub fn query() -> Writer {
        Writer::new(0, 0)
    }

    fn new(id: u16, flags: u16) -> Writer {
        let mut bytes = vec![0; HEADER];
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        Writer { bytes }
    }

    /// One more in the section whose count stands there.
    fn count(&mut self, at: usize) {
        let count = u16_at(&self.bytes, at).unwrap_or(0) + 1;
        self.bytes[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }

    /// Before any record.
    pub fn question(&mut self, question: &Question) {
        self.count(4);
        question.name.write(&mut self.bytes);
        self.bytes.extend(question.kind.0.to_be_bytes());
        let class = CLASS_IN | if question.alone { TOP } else { 0 };
        self.bytes.extend(class.to_be_bytes());
    }

    /// `answers`: it answers the question; else it goes along, after all that do.
    pub fn record(&mut self, record: &Record, answers: bool) {
        self.count(if answers { 6 } else { 10 });
        record.name.write(&mut self.bytes);
        self.bytes.extend(record.kind.0.to_be_bytes());
        let class = CLASS_IN | if record.flush { TOP } else { 0 };
        self.bytes.extend(class.to_be_bytes());
        self.bytes.extend(record.seconds.to_be_bytes());
        self.bytes.extend((record.data.len() as u16).to_be_bytes());
        self.bytes.extend(&record.data);
    }
}
