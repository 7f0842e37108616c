//! numpy's `.npz`: a zip of `.npy` members, read front to back. Local headers lead from member to member, each one's
//! CRC-32 is held against its data, and the directory at the end against both.

use super::bounded::{u16_at, u32_at, u64_at, Gather};
use super::npy::{self, Array};
use super::sums::crc32;
use super::zip::{self, DirectoryEnd, Entry};
use super::{Damage, Lost, ParseSpec, Parser};
use flate2::{Decompress, FlushDecompress, Status};

const SIGNATURE_BYTES: usize = 4;
const MEMBERS_MAX: usize = 1 << 16;
/// Bytes of an inflated member at a time: they stay in L1 while their checksum is taken.
const INFLATED_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum NpzState {
    Signature,
    /// The part of a header that has a fixed length, by its signature.
    Fixed(u32),
    /// The rest.
    Whole(u32),
    Stored {
        left: u64,
    },
    Deflated,
    Comment {
        left: u64,
    },
    Done,
}

struct Member {
    entry: Entry,
    /// CRC-32 of it: names are compared, not kept.
    name_crc: u32,
}

/// The member whose data is coming.
#[derive(Default)]
struct Content {
    is_npy: bool,
    is_x: bool,
    head: npy::Head,
    array: Option<Array>,
    crc: u32,
    bytes: u64,
    /// Unexpected contents of its header. A wrong checksum explains it better, so it waits for that.
    odd: Option<String>,
}

impl Content {
    fn begin(&mut self, name: &[u8]) {
        self.is_npy = name.ends_with(b".npy");
        self.is_x = name == b"x.npy";
        self.head.start();
        self.array = None;
        self.crc = 0;
        self.bytes = 0;
        self.odd = None;
    }

    fn take(&mut self, mut bytes: &[u8]) {
        self.crc = crc32(self.crc, bytes);
        self.bytes += bytes.len() as u64;
        if self.is_npy && self.array.is_none() && self.odd.is_none() {
            match self.head.take(&mut bytes) {
                Ok(array) => self.array = array,
                Err(odd) => self.odd = Some(odd),
            }
        }
    }

    /// Why the member isn't a valid array; None if it is.
    fn odd(&mut self) -> Option<String> {
        if !self.is_npy || self.odd.is_some() {
            return self.odd.take();
        }
        let Some(array) = &self.array else { return Some("ends inside its .npy header".into()) };
        match array.file_bytes() {
            Some(bytes) if bytes == self.bytes => None,
            None if array.item_bytes.is_none() => None,
            Some(bytes) => {
                Some(format!("its .npy header says {bytes} bytes in all, and it has {}", self.bytes))
            }
            None => Some("its .npy header has a shape with more bytes than any file".into()),
        }
    }
}

pub(crate) struct Npz {
    samples_per_file: u64,
    /// A member whose data is damaged is passed over.
    skips: bool,
    lost: Vec<Lost>,
    /// Lost array that holds samples.
    lost_array: Option<usize>,
    file_bytes: u64,
    at: u64,
    state: NpzState,
    gather: Gather,
    /// Start of the header that is gathered, or of the member whose data comes.
    start: u64,
    members: Vec<Member>,
    content: Content,
    inflate: Decompress,
    inflated: Vec<u8>,
    /// Directory entries that have come, and where the first of them lies.
    listed: usize,
    directory_start: u64,
    wide: Option<(u64, DirectoryEnd)>,
    /// Deflated data has ended, and its checksum and lengths are still to come.
    awaits_descriptor: bool,
    /// Samples and bytes of the array that holds them: `x`, or the first one.
    array: Option<(u64, u64)>,
    ended: bool,
}

impl Npz {
    pub(crate) fn new(spec: &ParseSpec) -> Npz {
        Npz {
            samples_per_file: u64::from(spec.samples_per_file),
            skips: spec.skips,
            lost: Vec::new(),
            lost_array: None,
            file_bytes: 0,
            at: 0,
            state: NpzState::Signature,
            gather: Gather::default(),
            start: 0,
            members: Vec::new(),
            content: Content::default(),
            inflate: Decompress::new(false),
            inflated: Vec::new(),
            listed: 0,
            directory_start: 0,
            wide: None,
            awaits_descriptor: false,
            array: None,
            ended: false,
        }
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.members.len().saturating_sub(1) as u64, self.start, what)
    }

    fn next_header(&mut self) {
        self.start = self.at;
        self.state = NpzState::Signature;
        self.gather.start(SIGNATURE_BYTES);
    }

    /// Completes what was gathered: asks for the next part of the header, or uses it.
    fn gathered(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        match self.state {
            NpzState::Signature => {
                let signature = u32_at(head, 0);
                let bytes = self.fixed_bytes(signature)?;
                self.gather.extend(bytes - SIGNATURE_BYTES);
                self.state = NpzState::Fixed(signature);
                Ok(())
            }
            NpzState::Fixed(signature) => {
                let rest = match signature {
                    zip::LOCAL => zip::local_rest(head),
                    zip::DIRECTORY => zip::directory_rest(head),
                    _ => 0,
                };
                self.state = NpzState::Whole(signature);
                if rest == 0 {
                    return self.header(signature);
                }
                self.gather.extend(rest);
                Ok(())
            }
            NpzState::Whole(signature) => self.header(signature),
            _ => Ok(()),
        }
    }

    /// Length of the fixed part of a header that is valid here, by its signature.
    fn fixed_bytes(&self, signature: u32) -> Result<usize, Damage> {
        let all_listed = self.listed == self.members.len();
        let wide = self.members.last().is_some_and(|m| m.entry.zip64);
        match signature {
            zip::DESCRIPTOR if self.awaits_descriptor => Ok(if wide { 24 } else { 16 }),
            _ if self.awaits_descriptor => Err(self.damage("a member's data descriptor is missing")),
            zip::LOCAL if self.listed == 0 => Ok(zip::LOCAL_BYTES),
            zip::DIRECTORY if !all_listed => Ok(zip::DIRECTORY_BYTES),
            zip::END64 if all_listed && self.wide.is_none() => Ok(zip::END64_BYTES),
            zip::LOCATOR64 if self.wide.is_some() => Ok(zip::LOCATOR64_BYTES),
            zip::END if all_listed => Ok(zip::END_BYTES),
            _ => Err(self.damage(format!("{signature:#010x} is not a valid zip signature here"))),
        }
    }

    fn header(&mut self, signature: u32) -> Result<(), Damage> {
        match signature {
            zip::LOCAL => self.local(),
            zip::DESCRIPTOR => self.descriptor(),
            zip::DIRECTORY => self.listed(),
            zip::END64 => self.end64(),
            zip::LOCATOR64 => self.locator64(),
            _ => self.directory_ended(),
        }
    }

    fn local(&mut self) -> Result<(), Damage> {
        let found = zip::local(self.gather.bytes(), self.start);
        let (entry, name) = found.map_err(|what| Damage::new(self.members.len() as u64, self.start, what))?;
        let announced = entry.flags & zip::FLAG_DESCRIPTOR == 0;
        let rest = self.file_bytes.saturating_sub(self.at);
        let (method, packed_bytes) = (entry.method, entry.packed_bytes);
        self.content.begin(name);
        self.members.push(Member { name_crc: crc32(0, name), entry });
        if self.members.len() > MEMBERS_MAX {
            return Err(self.damage(format!("the zip has more than {MEMBERS_MAX} members")));
        }
        if announced && packed_bytes > rest {
            let what = format!("the member says {packed_bytes} bytes, and the file ends after {rest}");
            return Err(self.damage(what));
        }
        if method == zip::STORED {
            self.state = NpzState::Stored { left: packed_bytes };
            return if packed_bytes == 0 { self.member_ended() } else { Ok(()) };
        }
        self.inflate.reset(false);
        self.inflated.resize(INFLATED_BYTES, 0);
        self.state = NpzState::Deflated;
        Ok(())
    }

    fn stored(&mut self, bytes: &mut &[u8], left: u64) -> Result<(), Damage> {
        let (now, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
        self.content.take(now);
        self.at += now.len() as u64;
        *bytes = rest;
        let left = left - now.len() as u64;
        self.state = NpzState::Stored { left };
        if left > 0 {
            return Ok(());
        }
        self.member_ended()
    }

    /// Inflates until `bytes` or the member end.
    fn deflated(&mut self, bytes: &mut &[u8]) -> Result<(), Damage> {
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(bytes, &mut self.inflated, FlushDecompress::None);
        let status = status.map_err(|e| self.damage(format!("the member doesn't inflate: {e}")))?;
        let used = (self.inflate.total_in() - before_in) as usize;
        let made = (self.inflate.total_out() - before_out) as usize;
        self.content.take(&self.inflated[..made]);
        self.at += used as u64;
        *bytes = &bytes[used..];
        let entry = &self.members[self.members.len() - 1].entry;
        let announced = entry.flags & zip::FLAG_DESCRIPTOR == 0;
        if announced && (self.inflate.total_in() > entry.packed_bytes || self.content.bytes > entry.bytes) {
            return Err(self.damage("the member's data is longer than its header says"));
        }
        if status == Status::StreamEnd {
            if announced {
                return self.member_ended();
            }
            self.next_header_of_member();
        } else if used == 0 && made == 0 {
            return Err(self.damage("the member doesn't inflate: it makes no progress"));
        }
        Ok(())
    }

    fn next_header_of_member(&mut self) {
        let start = self.start;
        self.next_header();
        self.start = start;
        self.awaits_descriptor = true;
    }

    fn descriptor(&mut self) -> Result<(), Damage> {
        self.awaits_descriptor = false;
        let head = self.gather.bytes();
        let crc = u32_at(head, 4);
        let (packed_bytes, bytes) = match head.len() {
            24 => (u64_at(head, 8), u64_at(head, 16)),
            _ => (u64::from(u32_at(head, 8)), u64::from(u32_at(head, 12))),
        };
        if let Some(member) = self.members.last_mut() {
            member.entry = Entry { crc, packed_bytes, bytes, ..member.entry.clone() };
        }
        self.member_ended()
    }

    fn member_ended(&mut self) -> Result<(), Damage> {
        let Some(Member { entry, .. }) = self.members.last() else { return Ok(()) };
        let packed_bytes =
            if entry.method == zip::STORED { self.content.bytes } else { self.inflate.total_in() };
        if entry.bytes != self.content.bytes || entry.packed_bytes != packed_bytes {
            let said = format!("{} bytes and {} packed", entry.bytes, entry.packed_bytes);
            let found = format!("{} and {packed_bytes}", self.content.bytes);
            return Err(self.damage(format!("the member says {said}, and has {found}")));
        }
        let sum = (entry.crc != self.content.crc).then(|| {
            let (record, of) = (self.members.len() as u64 - 1, "the member's data");
            Damage::sum(record, self.start, of, "CRC-32", entry.crc, self.content.crc)
        });
        let odd = self.content.odd();
        let wrong = sum.or_else(|| odd.map(|odd| self.damage(format!("the member {odd}"))));
        let counts = self.content.is_npy && (self.content.is_x || self.array.is_none());
        match wrong {
            // Its lengths were right: the next header stands here. What holds the samples must say how many there are.
            Some(damage) if self.skips && (!counts || self.content.array.is_some()) => {
                self.lost_array = if counts { Some(self.lost.len()) } else { self.lost_array };
                self.lost.push(Lost { damage, first: 0, records: 0 });
            }
            Some(damage) => return Err(damage),
            None if counts => self.lost_array = None,
            None => {}
        }
        if let Some(array) = self.content.array.as_ref().filter(|_| counts) {
            let bytes = self.content.bytes.saturating_sub(array.header_bytes);
            self.array = Some((array.samples(), bytes));
        }
        self.next_header();
        Ok(())
    }

    /// A directory entry: the member that it lists is the one that came in its place.
    fn listed(&mut self) -> Result<(), Damage> {
        let damage = |what: String| Damage::new(self.listed as u64, self.start, what);
        let (entry, name) = zip::directory(self.gather.bytes()).map_err(damage)?;
        let member = &self.members[self.listed];
        let same = |a: &Entry, b: &Entry| {
            (a.method, a.crc, a.packed_bytes, a.bytes, a.offset)
                == (b.method, b.crc, b.packed_bytes, b.bytes, b.offset)
        };
        if !same(&member.entry, &entry) || member.name_crc != crc32(0, name) {
            let (at, crc) = (member.entry.offset, member.entry.crc);
            return Err(damage(format!(
                "the directory lists a member at {} with CRC-32 {:08x}, and the one at {at} has {crc:08x}, or \
                 another name or length",
                entry.offset, entry.crc
            )));
        }
        if self.listed == 0 {
            self.directory_start = self.start;
        }
        self.listed += 1;
        self.next_header();
        Ok(())
    }

    fn end64(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        let follow = u64_at(head, 4).saturating_add(12);
        if follow != zip::END64_BYTES as u64 {
            return Err(self.damage(format!("the zip64 end of directory has {follow} bytes")));
        }
        self.wide = Some((self.start, zip::end64(head)));
        self.next_header();
        Ok(())
    }

    fn locator64(&mut self) -> Result<(), Damage> {
        let said = u64_at(self.gather.bytes(), 8);
        let at = self.wide.map_or(0, |(at, _)| at);
        if said != at {
            return Err(self.damage(format!("the zip64 locator points at {said}, not at {at}")));
        }
        self.next_header();
        Ok(())
    }

    fn directory_ended(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        let said = zip::end(head, self.wide.map(|(_, end)| end));
        let ends = self.wide.map_or(self.start, |(at, _)| at);
        let offset = if self.members.is_empty() { ends } else { self.directory_start };
        let found = DirectoryEnd { entries: self.members.len() as u64, bytes: ends - offset, offset };
        if said != found {
            let say = |end: DirectoryEnd| {
                format!("{} entries in {} bytes at {}", end.entries, end.bytes, end.offset)
            };
            return Err(self.damage(format!(
                "the end of the directory says {}, not {}",
                say(said),
                say(found)
            )));
        }
        let left = u64::from(u16_at(head, 20));
        self.state = if left == 0 { NpzState::Done } else { NpzState::Comment { left } };
        Ok(())
    }

    fn comment(&mut self, bytes: &mut &[u8], left: u64) {
        let (now, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
        self.at += now.len() as u64;
        *bytes = rest;
        let left = left - now.len() as u64;
        self.state = if left == 0 { NpzState::Done } else { NpzState::Comment { left } };
    }
}

impl Parser for Npz {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
        self.members.clear();
        self.listed = 0;
        self.directory_start = 0;
        self.wide = None;
        self.array = None;
        self.awaits_descriptor = false;
        self.ended = false;
        self.lost.clear();
        self.lost_array = None;
        self.next_header();
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            match self.state {
                NpzState::Stored { left } => self.stored(&mut bytes, left)?,
                NpzState::Deflated => self.deflated(&mut bytes)?,
                NpzState::Comment { left } => self.comment(&mut bytes, left),
                NpzState::Done => {
                    let what = format!(
                        "{} bytes follow the end of the zip's directory",
                        self.file_bytes.saturating_sub(self.at)
                    );
                    return Err(Damage::new(self.members.len() as u64, self.at, what));
                }
                NpzState::Signature | NpzState::Fixed(_) | NpzState::Whole(_) => {
                    if self.gather.fill_at(&mut bytes, &mut self.at) {
                        self.gathered()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if self.state != NpzState::Done {
            let inside = self.at - self.start;
            let what = match self.state {
                NpzState::Stored { .. } | NpzState::Deflated => "a member",
                _ => "a header of the zip",
            };
            return Err(self.damage(format!("the file ends {inside} bytes into {what}")));
        }
        let Some((samples, _)) = self.array else {
            return Err(Damage::new(0, 0, "the zip holds no .npy array"));
        };
        npy::expected(samples, self.samples_per_file).map_err(|what| Damage::new(0, 0, what))?;
        if let Some(lost) = self.lost_array.and_then(|at| self.lost.get_mut(at)) {
            // They are interleaved: damage anywhere may be any sample's.
            lost.records = samples;
        }
        self.ended = true;
        Ok(())
    }

    fn samples(&self) -> u64 {
        self.array.filter(|_| self.ended).map_or(0, |(samples, _)| samples)
    }

    fn payload_bytes(&self) -> u64 {
        self.array.map_or(0, |(_, bytes)| bytes)
    }

    /// Nothing before the file has ended: only then is it known which member holds the samples.
    fn lost(&mut self, into: &mut Vec<Lost>) {
        if self.ended {
            into.append(&mut self.lost);
        }
    }
}
