//! Blocks that fio wrote with `verify=…`, told by their headers and checksums: `--verify-fio`.
//!
//! fio cuts what it writes into blocks, usually one per I/O. A block begins with a header (magic, kind of checksum, length,
//! offset, time, job, and a CRC32C of these), the checksum of the rest follows, then the rest. Since fio 3.41 the header is
//! longer by a version. All of it is in the byte order of the machine that wrote it; here that is little-endian. What only
//! fio's own job can know isn't compared: the seed, and the number of the I/O.

mod sums;

use crate::units::{format_bytes, parse_bytes};

const MAGIC: u16 = 0xACCA;
const VERSION: u8 = 0x81;
/// Bytes of a header, and of what its own checksum covers, before and since it has a version.
const UNVERSIONED: (usize, usize) = (40, 36);
const VERSIONED: (usize, usize) = (48, 44);
/// A header and the longest checksum after it.
const HEAD_MAX: usize = VERSIONED.0 + 8;
const INTERVAL_MAX: u64 = 1 << 30;
const PATTERN_MAX: usize = 512;

/// Kind of what follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whatever the header says.
    Any,
    /// A header alone, perhaps before a pattern.
    Meta,
    /// A pattern, without a header.
    Pattern,
    Crc32c,
    Crc32,
    Crc64,
    Crc16,
    Crc7,
    XxHash,
}

/// A kind's name, the numbers that headers have for it, the bytes of its checksum, and how it is computed.
struct Row(&'static str, Kind, &'static [u8], usize, fn(&[u8]) -> u64);

fn nothing(_: &[u8]) -> u64 {
    0
}

static KINDS: [Row; 9] = [
    Row("any", Kind::Any, &[], 0, nothing),
    Row("meta", Kind::Meta, &[1, 17], 0, nothing),
    Row("pattern", Kind::Pattern, &[], 0, nothing),
    Row("crc32c", Kind::Crc32c, &[5, 6], 4, sums::crc32c),
    Row("crc32", Kind::Crc32, &[4], 4, sums::crc32),
    Row("crc64", Kind::Crc64, &[3], 8, sums::crc64),
    Row("crc16", Kind::Crc16, &[7], 2, sums::crc16),
    Row("crc7", Kind::Crc7, &[8], 1, sums::crc7),
    Row("xxhash", Kind::XxHash, &[15], 4, sums::xxhash),
];

/// Names of the checks that fio writes and nobody here computes.
const UNKNOWN: [(u8, &str); 9] = [
    (2, "md5"),
    (9, "sha256"),
    (10, "sha512"),
    (11, "sha3-224"),
    (12, "sha3-256"),
    (13, "sha3-384"),
    (14, "sha3-512"),
    (16, "sha1"),
    (19, "null"),
];

/// `crc32c,interval=4k,offset=512,pattern=0xdeadbeef`: which blocks a file is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub kind: Kind,
    /// Bytes from one header to the next. None: what the headers say.
    pub interval: Option<u32>,
    /// Offset of the header in its block, where it replaces data.
    pub offset: u32,
    /// Pattern that the data repeats from the start of each I/O; empty: any data.
    pub pattern: Vec<u8>,
}

impl Rule {
    /// # Errors
    /// What is wrong, naming the part.
    pub fn parse(text: &str) -> Result<Rule, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let Some(Row(_, kind, ..)) = KINDS.iter().find(|row| row.0 == name) else {
            let known: Vec<_> = KINDS.iter().map(|row| row.0).collect();
            return Err(format!("'{name}' is none of {}", known.join(", ")));
        };
        let mut rule = Rule { kind: *kind, interval: None, offset: 0, pattern: Vec::new() };
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let bytes = || parse_bytes(value).ok().filter(|bytes| *bytes <= INTERVAL_MAX);
            let least = HEAD_MAX as u64;
            match key {
                "interval" => rule.interval = bytes().filter(|n| *n > least).map(|n| n as u32),
                "offset" => {
                    rule.offset = bytes().filter(|n| *n == 0 || *n >= least).unwrap_or(u64::MAX) as u32
                }
                "pattern" => rule.pattern = pattern(value).unwrap_or_default(),
                _ => return Err(format!("'{key}' is none of interval, offset, pattern")),
            }
            let held = match key {
                "interval" => rule.interval.is_some(),
                "offset" => rule.offset != u32::MAX,
                _ => !rule.pattern.is_empty(),
            };
            if !held {
                let must = match key {
                    "interval" => format!("more than {least} bytes, and at most 1 GiB"),
                    "offset" => format!("0, or {least} bytes (the longest header) to 1 GiB"),
                    _ => format!("1 to {PATTERN_MAX} bytes in hexadecimal"),
                };
                return Err(format!("'{part}': must be {must}"));
            }
        }
        if rule.offset > 0 && rule.interval.is_none() {
            return Err("where headers lie in their blocks is found by the interval; interval=4k".into());
        }
        match rule.kind {
            Kind::Pattern if rule.pattern.is_empty() => Err("it needs a pattern".into()),
            Kind::Meta | Kind::Pattern => Ok(rule),
            _ if rule.pattern.is_empty() => Ok(rule),
            _ => Err("a checksum says what the data is; pattern goes with meta and pattern".into()),
        }
    }
}

fn pattern(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let whole = digits.is_ascii() && digits.len() % 2 == 0 && digits.len() <= 2 * PATTERN_MAX;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    whole.then(|| (0..digits.len()).step_by(2).map(byte).collect()).flatten()
}

/// A block that isn't what fio wrote there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Offset of the block in the file.
    pub at: u64,
    pub found: String,
    /// Wrong blocks in all of the buffer, as far as their lengths are known.
    pub blocks: u64,
}

impl Wrong {
    pub fn describe(&self, file: &str) -> String {
        let Wrong { at, found, blocks } = self;
        let what = format!("block at {at} of {file} {found}");
        match blocks {
            0 | 1 => what,
            n => format!("{what}; {n} blocks of this read are wrong"),
        }
    }
}

/// Compares what was read from byte `at` of a file with what its blocks say of themselves.
pub fn check(bytes: &[u8], at: u64, rule: &Rule) -> Result<(), Wrong> {
    if rule.kind == Kind::Pattern {
        return repeats(bytes, 0, &rule.pattern).map_err(|found| Wrong { at, found, blocks: 1 });
    }
    let mut first: Option<Wrong> = None;
    let mut blocks = 0;
    let mut inside = 0;
    while inside < bytes.len() {
        let rest = &bytes[inside..];
        let place = at.wrapping_add(inside as u64);
        // As fio: one block where the I/O is shorter than the interval.
        let asked = rule.interval.map(|n| if n as usize > bytes.len() { bytes.len() } else { n as usize });
        let (len, result) = block(rest, place, inside, asked, rule);
        if let Err(found) = result {
            blocks += 1;
            first.get_or_insert(Wrong { at: place, found, blocks });
        }
        match len {
            Some(len) => inside += len,
            None => break,
        }
    }
    first.map_or(Ok(()), |first| Err(Wrong { blocks, ..first }))
}

/// The length of the block that begins here, if known, and what is wrong with it.
fn block(
    rest: &[u8],
    place: u64,
    inside: usize,
    asked: Option<usize>,
    rule: &Rule,
) -> (Option<usize>, Result<(), String>) {
    match (asked.map(|len| len.min(rest.len())), rule.offset) {
        (Some(len), 1..) => match turned_back(&rest[..len], rule.offset as usize) {
            Ok(turned) => plain(&turned, place, inside, Some(len), rule),
            Err(found) => (Some(len), Err(found)),
        },
        (asked, _) => plain(rest, place, inside, asked, rule),
    }
}

/// A block whose header lies at `offset`, with the header in front and the data where it would be without.
fn turned_back(block: &[u8], offset: usize) -> Result<Vec<u8>, String> {
    let head = block.get(offset..).unwrap_or_default();
    let len = Header::read(head)?.head_bytes();
    if len > head.len() {
        return Err(torn(head));
    }
    let mut turned = block.to_vec();
    turned[offset..offset + len].copy_from_slice(&block[..len]);
    turned[..len].copy_from_slice(&head[..len]);
    Ok(turned)
}

fn plain(
    rest: &[u8],
    place: u64,
    inside: usize,
    asked: Option<usize>,
    rule: &Rule,
) -> (Option<usize>, Result<(), String>) {
    let header = match Header::read(rest) {
        Ok(header) => header,
        Err(found) => return (asked, Err(found)),
    };
    let len = header.len as usize;
    let fits = header.head_bytes() < len && len <= rest.len();
    let next = asked.or(fits.then_some(len));
    let result = if let Some(asked) = asked.filter(|asked| *asked != len) {
        Err(format!("has {len} bytes by its header, not {asked}"))
    } else if header.offset != place {
        Err(format!("holds the block that belongs at {}", header.offset))
    } else if len > rest.len() {
        let next = format_bytes(len as u64);
        Err(format!("has {len} bytes, of which {} were read; I/Os of {next}", rest.len()))
    } else if !fits {
        Err(format!("is no longer than its header ({len} bytes)"))
    } else {
        header.holds(&rest[..len], inside, rule)
    };
    (next, result)
}

fn torn(bytes: &[u8]) -> String {
    format!("is torn: {} bytes are left, less than a header", bytes.len())
}

/// Checks that `data`, which begins `phase` bytes into its I/O, repeats the pattern.
fn repeats(data: &[u8], phase: usize, pattern: &[u8]) -> Result<(), String> {
    let due = pattern.iter().cycle().skip(phase % pattern.len().max(1));
    let wrong = data.iter().zip(due).enumerate().find(|(_, (found, due))| found != due);
    match wrong {
        None => Ok(()),
        Some((n, (found, due))) => {
            Err(format!("holds {found:#04x} where the pattern has {due:#04x}, {n} bytes on"))
        }
    }
}

struct Header {
    /// Length of the header alone.
    bytes: usize,
    kind: u8,
    len: u32,
    offset: u64,
}

impl Header {
    /// The header that these bytes begin with, or why they don't.
    fn read(bytes: &[u8]) -> Result<Header, String> {
        let Some(first) = bytes.get(..UNVERSIONED.0) else {
            return Err(torn(bytes));
        };
        let magic = u16::from_le_bytes([first[0], first[1]]);
        if magic != MAGIC {
            return Err(stranger(bytes, magic));
        }
        let (size, covered) = if first[2] & 0x80 == 0 { UNVERSIONED } else { VERSIONED };
        if size == VERSIONED.0 && first[2] != VERSION {
            return Err(format!("has a header of fio's version {:#04x}; {VERSION:#04x} is known", first[2]));
        }
        let Some(sum) = bytes.get(covered..covered + 4) else {
            return Err(torn(bytes));
        };
        if sums::crc32c(&bytes[..covered]) as u32 != number(sum) as u32 {
            return Err("has a damaged header: its checksum isn't that of its bytes".into());
        }
        let kind = if size == VERSIONED.0 { first[3] } else { first[2] };
        Ok(Header { bytes: size, kind, len: number(&first[4..8]) as u32, offset: number(&first[16..24]) })
    }

    fn row(&self) -> Option<&'static Row> {
        KINDS.iter().find(|row| row.2.contains(&self.kind))
    }

    /// Bytes up to the data.
    fn head_bytes(&self) -> usize {
        self.bytes + self.row().map_or(0, |row| row.3)
    }

    /// Checks the data after this header, at `inside` of its I/O.
    fn holds(&self, block: &[u8], inside: usize, rule: &Rule) -> Result<(), String> {
        let Some(Row(name, kind, _, bytes, sum)) = self.row() else {
            let name = UNKNOWN.iter().find(|(number, _)| *number == self.kind).map(|(_, name)| *name);
            let name = name.map_or(format!("number {}", self.kind), str::to_owned);
            return Err(format!("was written with verify={name}, which isn't computed here"));
        };
        let asked = KINDS.iter().find(|row| row.1 == rule.kind).map_or("any", |row| row.0);
        if rule.kind != Kind::Any && rule.kind != *kind {
            return Err(format!("was written with verify={name}, not {asked}"));
        }
        let (head, data) = block.split_at(self.head_bytes());
        if !rule.pattern.is_empty() {
            return repeats(data, inside + head.len(), &rule.pattern);
        }
        let (due, found) = (number(&head[self.bytes..]), sum(data));
        if due == found {
            return Ok(());
        }
        let digits = 2 * bytes;
        Err(format!("has {name} {found:0digits$x} where its header says {due:0digits$x}"))
    }
}

/// Little-endian, of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Describes a block that doesn't begin with fio's magic.
fn stranger(bytes: &[u8], magic: u16) -> String {
    if bytes.starts_with(b"FOREBAY1") {
        return "holds Forebay's own content".into();
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return "holds only zeroes (never written?)".into();
    }
    if magic == MAGIC.swap_bytes() {
        return "was written on a machine of the other byte order".into();
    }
    format!("has no header of fio's (it begins with {magic:#06x})")
}

#[cfg(test)]
mod tests;
