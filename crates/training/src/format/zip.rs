//! The headers of a zip archive, as APPNOTE 6.3.10 lays them out: sections 4.3.7 (local header), 4.3.9 (data
//! descriptor), 4.3.12 (directory), 4.3.14 to 4.3.16 (its end, with and without zip64), 4.5.3 (the zip64 field).

use super::bounded::{u16_at, u32_at, u64_at};
use super::NOT_READ;

pub(crate) const LOCAL: u32 = 0x0403_4B50;
pub(crate) const DESCRIPTOR: u32 = 0x0807_4B50;
pub(crate) const DIRECTORY: u32 = 0x0201_4B50;
pub(crate) const END64: u32 = 0x0606_4B50;
pub(crate) const LOCATOR64: u32 = 0x0706_4B50;
pub(crate) const END: u32 = 0x0605_4B50;

pub(crate) const LOCAL_BYTES: usize = 30;
pub(crate) const DIRECTORY_BYTES: usize = 46;
/// Length of the fixed part; its own length field says whether more follows.
pub(crate) const END64_BYTES: usize = 56;
pub(crate) const LOCATOR64_BYTES: usize = 20;
pub(crate) const END_BYTES: usize = 22;

pub(crate) const STORED: u16 = 0;
pub(crate) const DEFLATED: u16 = 8;

/// Sizes and checksum follow the data.
pub(crate) const FLAG_DESCRIPTOR: u16 = 1 << 3;
/// Encrypted, patched, strongly encrypted, with a masked header.
const FLAGS_UNKNOWN: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;

const ZIP64_FIELD: u16 = 1;
/// In a 32-bit field: look in the zip64 field.
const SEE_ZIP64: u32 = u32::MAX;

/// Fields that a local header and a directory entry share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub flags: u16,
    pub method: u16,
    pub crc: u32,
    pub packed_bytes: u64,
    pub bytes: u64,
    /// Offset of its local header.
    pub offset: u64,
    pub zip64: bool,
}

/// Bytes of name, extra fields and comment behind a local header's fixed part.
pub(crate) fn local_rest(head: &[u8]) -> usize {
    usize::from(u16_at(head, 26)) + usize::from(u16_at(head, 28))
}

/// Likewise of a directory entry.
pub(crate) fn directory_rest(head: &[u8]) -> usize {
    usize::from(u16_at(head, 28)) + usize::from(u16_at(head, 30)) + usize::from(u16_at(head, 32))
}

/// A local header and its name. `head` holds all of it.
pub(crate) fn local(head: &[u8], offset: u64) -> Result<(Entry, &[u8]), String> {
    let name_ends = LOCAL_BYTES + usize::from(u16_at(head, 26));
    let mut entry = Entry {
        flags: u16_at(head, 6),
        method: u16_at(head, 8),
        crc: u32_at(head, 14),
        packed_bytes: u64::from(u32_at(head, 18)),
        bytes: u64::from(u32_at(head, 22)),
        offset,
        zip64: false,
    };
    widen(&mut entry, &head[name_ends..], false)?;
    usable(&entry)?;
    Ok((entry, &head[LOCAL_BYTES..name_ends]))
}

/// A directory entry and its name. `head` holds all of it.
pub(crate) fn directory(head: &[u8]) -> Result<(Entry, &[u8]), String> {
    let name_ends = DIRECTORY_BYTES + usize::from(u16_at(head, 28));
    let extra_ends = name_ends + usize::from(u16_at(head, 30));
    let mut entry = Entry {
        flags: u16_at(head, 8),
        method: u16_at(head, 10),
        crc: u32_at(head, 16),
        packed_bytes: u64::from(u32_at(head, 20)),
        bytes: u64::from(u32_at(head, 24)),
        offset: u64::from(u32_at(head, 42)),
        zip64: false,
    };
    widen(&mut entry, &head[name_ends..extra_ends], true)?;
    Ok((entry, &head[DIRECTORY_BYTES..name_ends]))
}

fn usable(entry: &Entry) -> Result<(), String> {
    if entry.flags & FLAGS_UNKNOWN != 0 {
        return Err(format!("a member has flags {:#06x}: encrypted or patched", entry.flags));
    }
    match entry.method {
        STORED if entry.flags & FLAG_DESCRIPTOR != 0 => {
            Err("a stored member doesn't say how long it is before its data".into())
        }
        STORED if entry.packed_bytes != entry.bytes => {
            Err(format!("a stored member says {} bytes and {} packed", entry.bytes, entry.packed_bytes))
        }
        STORED | DEFLATED => Ok(()),
        method => Err(format!("a member is packed by {}, which {NOT_READ}", method_name(method))),
    }
}

/// What a member went through, if its bytes don't lie in the archive as they are.
pub(crate) fn altered(entry: &Entry) -> Option<String> {
    match entry.method {
        _ if entry.flags & FLAGS_UNKNOWN != 0 => Some("encrypted or patched".into()),
        STORED if entry.packed_bytes != entry.bytes => Some("stored in another length than its own".into()),
        STORED => None,
        method => Some(format!("compressed by {}", method_name(method))),
    }
}

/// As PKWARE's APPNOTE 6.3.10 (4.4.5) names it.
fn method_name(method: u16) -> String {
    match method {
        DEFLATED => "deflate".into(),
        9 => "Deflate64".into(),
        12 => "bzip2".into(),
        14 => "LZMA".into(),
        93 => "Zstandard".into(),
        95 => "XZ".into(),
        other => format!("method {other}"),
    }
}

/// Takes what doesn't fit 32 bits from the zip64 field: length, packed length and, in the directory, offset, each only
/// where the 32-bit field says so.
fn widen(entry: &mut Entry, extra: &[u8], in_directory: bool) -> Result<(), String> {
    let asks = |value: u64| value == u64::from(SEE_ZIP64);
    let mut field = find_field(extra, ZIP64_FIELD);
    entry.zip64 = field.is_some();
    let mut wide = |value: &mut u64| -> Result<(), String> {
        if !asks(*value) {
            return Ok(());
        }
        // Without the field it is a length like any other, in archives that are older than zip64.
        let Some(rest) = field.as_mut() else { return Ok(()) };
        if rest.len() < 8 {
            return Err("a zip64 field is shorter than what it stands for".into());
        }
        *value = u64_at(rest, 0);
        *rest = &rest[8..];
        Ok(())
    };
    wide(&mut entry.bytes)?;
    wide(&mut entry.packed_bytes)?;
    if in_directory {
        wide(&mut entry.offset)?;
    }
    Ok(())
}

/// The extra field of that number; extra fields that break off hold none.
fn find_field(mut extra: &[u8], id: u16) -> Option<&[u8]> {
    while extra.len() >= 4 {
        let (found, bytes) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let field = extra.get(4..4 + bytes)?;
        if found == id {
            return Some(field);
        }
        extra = &extra[4 + bytes..];
    }
    None
}

/// Description of the directory at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryEnd {
    pub entries: u64,
    pub bytes: u64,
    pub offset: u64,
}

pub(crate) fn end64(head: &[u8]) -> DirectoryEnd {
    DirectoryEnd { entries: u64_at(head, 32), bytes: u64_at(head, 40), offset: u64_at(head, 48) }
}

/// With what the zip64 record before it said, which holds where a field here is all ones.
pub(crate) fn end(head: &[u8], wide: Option<DirectoryEnd>) -> DirectoryEnd {
    let narrow = DirectoryEnd {
        entries: u64::from(u16_at(head, 10)),
        bytes: u64::from(u32_at(head, 12)),
        offset: u64::from(u32_at(head, 16)),
    };
    let Some(wide) = wide else { return narrow };
    let pick = |narrow: u64, ones: u64, wide: u64| if narrow == ones { wide } else { narrow };
    DirectoryEnd {
        entries: pick(narrow.entries, u64::from(u16::MAX), wide.entries),
        bytes: pick(narrow.bytes, u64::from(u32::MAX), wide.bytes),
        offset: pick(narrow.offset, u64::from(u32::MAX), wide.offset),
    }
}
