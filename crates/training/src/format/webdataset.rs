//! Shards of WebDataset: tar archives in which neighbours whose names are alike up to the first dot are one sample.

use super::bounded::Gather;
use super::tar::{self, Header, Kind, Records, BLOCK_BYTES};
use super::{Damage, ParseSpec, Parser, NOT_READ};

/// Longest name, and longest records of a pax header, that are kept in memory.
const NAME_BYTES_MAX: u64 = 64 << 10;
const RECORDS_BYTES_MAX: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

#[derive(Clone, Copy)]
enum WebDatasetState {
    Head,
    /// Content that goes by, and how much of it is left.
    Content {
        left: u64,
        of_sample: bool,
    },
    /// A long name, or records, of which all is gathered.
    About {
        kind: Kind,
        left: u64,
    },
    Padding {
        left: u64,
    },
    /// A block of zeroes was seen, or the second one.
    Zeroes {
        blocks: u64,
    },
}

/// A file of a sample in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: Vec<u8>,
    /// Bytes of the name that its sample's files share.
    pub key_bytes: usize,
    pub offset: u64,
    pub bytes: u64,
}

pub(crate) struct WebDataset {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    state: WebDatasetState,
    gather: Gather,
    /// Where this member begins, its own headers before it included.
    member_start: u64,
    members: u64,
    /// What headers before it say of the next member.
    long_name: Option<Vec<u8>>,
    records: Records,
    about: Vec<u8>,
    /// Key of the sample that isn't known to be complete.
    key: Vec<u8>,
    is_open: bool,
    samples: u64,
    payload: u64,
    /// Files of samples so far, where somebody asked for them.
    listed: Option<Vec<Member>>,
}

impl WebDataset {
    pub(crate) fn new(spec: &ParseSpec) -> WebDataset {
        WebDataset {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            state: WebDatasetState::Head,
            gather: Gather::default(),
            member_start: 0,
            members: 0,
            long_name: None,
            records: Records::default(),
            about: Vec::new(),
            key: Vec::new(),
            is_open: false,
            samples: 0,
            payload: 0,
            listed: None,
        }
    }

    /// Has the files of samples listed.
    pub(super) fn listing() -> WebDataset {
        WebDataset { listed: Some(Vec::new()), ..WebDataset::new(&ParseSpec::default()) }
    }

    pub(super) fn into_listed(self) -> Vec<Member> {
        self.listed.unwrap_or_default()
    }

    /// Goes past content without having seen it: how far.
    pub(super) fn pass_content(&mut self) -> u64 {
        let WebDatasetState::Content { left, of_sample } = self.state else { return 0 };
        self.at += left;
        self.payload += if of_sample { left } else { 0 };
        let padding = tar::padding(self.at);
        self.content_ended(padding);
        self.at += padding;
        self.goes_on_behind(0);
        left + padding
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.members, self.member_start, what)
    }

    /// A block where a header, or the end, is due.
    fn head(&mut self) -> Result<(), Damage> {
        let block = self.gather.bytes();
        if block.iter().all(|byte| *byte == 0) {
            if self.long_name.is_some() || self.records != Records::default() {
                return Err(self.damage("the archive ends behind a header that tells of another member"));
            }
            self.state = WebDatasetState::Zeroes { blocks: 1 };
            self.sample_ends();
            return Ok(());
        }
        let header = tar::header(block).map_err(|what| self.damage(what))?;
        match header.kind {
            Kind::LongName | Kind::LongLink | Kind::Pax | Kind::Global => self.about_next(&header),
            _ => self.member(header),
        }
    }

    /// A header of what tells of the next member, or of all.
    fn about_next(&mut self, header: &Header) -> Result<(), Damage> {
        let (most, what) = match header.kind {
            Kind::LongName | Kind::LongLink => (NAME_BYTES_MAX, "a name"),
            _ => (RECORDS_BYTES_MAX, "a pax header"),
        };
        let bytes = header.bytes;
        if bytes > most {
            return Err(self.damage(format!("{what} of {bytes} bytes {NOT_READ}: {most} are the most")));
        }
        self.fits(bytes)?;
        self.about.clear();
        self.state = WebDatasetState::About { kind: header.kind, left: bytes };
        if bytes == 0 {
            self.about_ended(header.kind)?;
        }
        Ok(())
    }

    fn about_ended(&mut self, kind: Kind) -> Result<(), Damage> {
        let content = std::mem::take(&mut self.about);
        match kind {
            Kind::LongName => {
                self.long_name = Some(content.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
            }
            Kind::Pax | Kind::Global => {
                let records = tar::records(&content).map_err(|what| self.damage(what))?;
                if kind == Kind::Pax {
                    self.records = records;
                } else if records != Records::default() {
                    let what = "a global pax header gives all members one name or one size";
                    return Err(self.damage(format!("{what}, which {NOT_READ}")));
                }
            }
            _ => {}
        }
        let padding = tar::padding(content.len() as u64);
        self.about = content;
        self.goes_on_behind(padding);
        Ok(())
    }

    fn member(&mut self, header: Header) -> Result<(), Damage> {
        let records = std::mem::take(&mut self.records);
        let name = records.name.or(self.long_name.take()).unwrap_or(header.name);
        let bytes = match header.kind {
            Kind::Bare => 0,
            _ => records.bytes.unwrap_or(header.bytes),
        };
        self.fits(bytes)?;
        let key = if header.kind == Kind::File { key(&name) } else { None };
        let of_sample = key.is_some();
        if let (Some(listed), Some(key)) = (&mut self.listed, key) {
            listed.push(Member { name: name.clone(), key_bytes: key.len(), offset: self.at, bytes });
        }
        if let Some(key) = key.filter(|key| !self.is_open || *key != &self.key[..]) {
            self.sample_ends();
            self.is_open = true;
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.state = WebDatasetState::Content { left: bytes, of_sample };
        if bytes == 0 {
            self.content_ended(0);
        }
        Ok(())
    }

    /// Refuses content that goes beyond the file's end.
    fn fits(&self, bytes: u64) -> Result<(), Damage> {
        let rest = self.file_bytes.saturating_sub(self.at);
        match bytes.checked_add(tar::padding(bytes % BLOCK)) {
            Some(all) if all <= rest => Ok(()),
            _ => Err(self.damage(format!("the member says {bytes} bytes, and the file ends after {rest}"))),
        }
    }

    fn content_ended(&mut self, padding: u64) {
        self.members += 1;
        self.member_start = self.at + padding;
        self.goes_on_behind(padding);
    }

    fn goes_on_behind(&mut self, padding: u64) {
        self.state = WebDatasetState::Padding { left: padding };
        if padding == 0 {
            self.next_head();
        }
    }

    fn next_head(&mut self) {
        self.state = WebDatasetState::Head;
        self.gather.start(BLOCK_BYTES);
    }

    fn sample_ends(&mut self) {
        self.samples += u64::from(std::mem::take(&mut self.is_open));
    }

    /// Takes as much as belongs together from the front of `bytes`.
    fn some(&mut self, bytes: &mut &[u8]) -> Result<(), Damage> {
        match self.state {
            WebDatasetState::Head => {
                if self.gather.fill_at(bytes, &mut self.at) {
                    self.head()?;
                }
            }
            WebDatasetState::Content { left, of_sample } => {
                let now = at_hand(bytes, left).len() as u64;
                self.at += now;
                self.payload += if of_sample { now } else { 0 };
                self.state = WebDatasetState::Content { left: left - now, of_sample };
                if left == now {
                    self.content_ended(tar::padding(self.at));
                }
            }
            WebDatasetState::About { kind, left } => {
                let now = at_hand(bytes, left);
                self.at += now.len() as u64;
                self.about.extend_from_slice(now);
                let left = left - now.len() as u64;
                self.state = WebDatasetState::About { kind, left };
                if left == 0 {
                    self.about_ended(kind)?;
                }
            }
            WebDatasetState::Padding { left } => {
                let now = at_hand(bytes, left).len() as u64;
                self.at += now;
                self.goes_on_behind(left - now);
            }
            WebDatasetState::Zeroes { blocks } => {
                let now = at_hand(bytes, BLOCK - self.at % BLOCK);
                if let Some(place) = now.iter().position(|byte| *byte != 0) {
                    let offset = self.at + place as u64;
                    let what = match blocks {
                        1 => format!("a single block of zeroes stands between members, which {NOT_READ}"),
                        _ => format!("bytes follow the archive's end, which {NOT_READ}"),
                    };
                    return Err(Damage::new(self.members, offset, what));
                }
                self.at += now.len() as u64;
                self.state = WebDatasetState::Zeroes { blocks: blocks + u64::from(self.at % BLOCK == 0) };
            }
        }
        Ok(())
    }
}

impl Parser for WebDataset {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
        self.member_start = 0;
        self.members = 0;
        self.long_name = None;
        self.records = Records::default();
        self.is_open = false;
        self.samples = 0;
        self.payload = 0;
        self.next_head();
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            self.some(&mut bytes)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        let ended =
            matches!(self.state, WebDatasetState::Zeroes { blocks } if blocks >= 2) && self.at % BLOCK == 0;
        if !ended {
            let got = self.at - self.member_start;
            let what = match got {
                0 => "the file ends without the two blocks of zeroes that end an archive".into(),
                _ => format!("the file ends {got} bytes into the member, or into the archive's end"),
            };
            return Err(self.damage(what));
        }
        if self.samples_per_file > 0 && self.samples != self.samples_per_file {
            let what = format!("the shard holds {} samples, not {}", self.samples, self.samples_per_file);
            return Err(Damage::new(self.members, self.at, what));
        }
        Ok(())
    }

    fn samples(&self) -> u64 {
        self.samples
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }
}

/// Takes at most so many bytes from the front.
fn at_hand<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let (now, rest) = bytes.split_at(most.min(bytes.len() as u64) as usize);
    *bytes = rest;
    now
}

/// What names of one sample share: all up to the first dot behind the last slash. None for what readers of WebDataset pass by:
/// names without a dot or with nothing before it, and `__anything__` at the top.
fn key(name: &[u8]) -> Option<&[u8]> {
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = name[base..].iter().position(|byte| *byte == b'.')?;
    let top = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    let is_meta = top.len() >= 4 && top.starts_with(b"__") && top.ends_with(b"__");
    (dot > 0 && !is_meta).then(|| &name[..base + dot])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_convention() {
        for (name, expected) in [
            ("000.jpg", Some("000")),
            ("000.seg.png", Some("000")),
            ("a.b/000.left.jpg", Some("a.b/000")),
            ("./000.jpg", Some("./000")),
            ("README", None),
            ("a.b/README", None),
            (".hidden.jpg", None),
            ("a/.hidden", None),
            ("__meta__.json", Some("__meta__")),
            ("__worker__/1.txt", None),
            ("__x__", None),
            ("", None),
        ] {
            assert_eq!(key(name.as_bytes()), expected.map(str::as_bytes), "{name}");
        }
    }
}
