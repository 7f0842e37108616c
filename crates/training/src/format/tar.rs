//! Tar archives: blocks of 512 bytes, a header before each member, two blocks of zeroes at the end (POSIX.1-2017, pax, "ustar
//! Interchange Format" and "pax Header Block"; the GNU tar manual, "Basic Tar Format").
//!
//! This module knows headers; `webdataset` reads archives of samples by them.

use super::NOT_READ;

pub(crate) const BLOCK_BYTES: usize = 512;
/// Archives are padded to this by tar and by Python's tarfile.
pub(crate) const RECORD_BYTES: u64 = 20 * BLOCK_BYTES as u64;

/// Offsets and lengths of a header's fields.
pub(crate) const NAME: (usize, usize) = (0, 100);
pub(crate) const MODE: (usize, usize) = (100, 8);
pub(crate) const USER: (usize, usize) = (108, 8);
pub(crate) const GROUP: (usize, usize) = (116, 8);
pub(crate) const SIZE: (usize, usize) = (124, 12);
pub(crate) const TIME: (usize, usize) = (136, 12);
pub(crate) const SUM: (usize, usize) = (148, 8);
pub(crate) const KIND: usize = 156;
pub(crate) const MAGIC: (usize, usize) = (257, 8);
const PREFIX: (usize, usize) = (345, 155);

pub(crate) const USTAR: &[u8; 8] = b"ustar\x0000";
/// GNU's archives have other things where ustar has the prefix of a name.
const GNU: &[u8; 8] = b"ustar  \0";

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file's content.
    File,
    /// A member without content: a folder, a link, a device, a pipe.
    Bare,
    /// Of a kind that isn't known here; its content is passed by.
    Other,
    /// GNU's: the name of the next member, which is too long for its header.
    LongName,
    /// GNU's: the target of the next member, a link.
    LongLink,
    /// Records for the next member.
    Pax,
    /// Records for all members from here on.
    Global,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub name: Vec<u8>,
    /// Of what follows, without its padding.
    pub bytes: u64,
}

/// Bytes from an end to the next block.
pub(crate) fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes
}

pub(crate) fn field(block: &[u8], (at, bytes): (usize, usize)) -> &[u8] {
    &block[at..at + bytes]
}

/// Up to its first zero.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A block whose checksum holds. `block` has all of it, and isn't zeroes alone.
pub(crate) fn header(block: &[u8]) -> Result<Header, String> {
    check_sum(block)?;
    let magic = field(block, MAGIC);
    let mut name = text(field(block, NAME)).to_vec();
    let prefix = text(field(block, PREFIX));
    if magic == USTAR && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let kind = match block[KIND] {
        // Before ustar a folder was a file whose name ends so.
        0 if name.ends_with(b"/") => Kind::Bare,
        0 | b'0' | b'7' => Kind::File,
        b'1'..=b'6' => Kind::Bare,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'x' | b'X' => Kind::Pax,
        b'g' => Kind::Global,
        b'S' if magic == GNU => return Err(format!("the member is sparse (GNU's header), which {NOT_READ}")),
        b'M' if magic == GNU => {
            return Err(format!("the member goes on from another archive (multi-volume), which {NOT_READ}"))
        }
        _ => Kind::Other,
    };
    let bytes = match kind {
        Kind::Bare => 0,
        _ => number(field(block, SIZE)).ok_or("the header's size is no number")?,
    };
    Ok(Header { kind, name, bytes })
}

/// Sum over a header with spaces in place of its own field; and as old programs did it, of signed bytes.
pub(crate) fn sums(block: &[u8]) -> (u64, i64) {
    let (at, bytes) = SUM;
    let mut spaced = block.to_vec();
    spaced[at..at + bytes].fill(b' ');
    let all = || spaced.iter().copied();
    (all().map(u64::from).sum(), all().map(|byte| i64::from(byte as i8)).sum())
}

fn check_sum(block: &[u8]) -> Result<(), String> {
    let (found, signed) = sums(block);
    match number(field(block, SUM)) {
        Some(stored) if stored == found || i64::try_from(stored) == Ok(signed) => Ok(()),
        Some(stored) => Err(format!("the header has checksum {found:o}, and {stored:o} is stored in it")),
        None => Err(format!("the header has checksum {found:o}, and none is stored in it")),
    }
}

/// Octal digits between spaces and zeroes; or, behind a set first bit, 63 bits and more, of which 64 are taken. None: neither,
/// a negative one, or none that fits.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let digits = std::iter::once(field[0] & 0x3f).chain(field[1..].iter().copied());
        let mut digits = digits.map(u64::from);
        let whole = digits.try_fold(0u64, |all, byte| Some(all.checked_mul(256)? | byte));
        return whole.filter(|_| !negative);
    }
    let digits = text(field).trim_ascii();
    // An empty field is how some write zero.
    digits.iter().try_fold(0u64, |all, byte| match byte {
        b'0'..=b'7' => all.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// What records say of a member, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub name: Option<Vec<u8>>,
    pub bytes: Option<u64>,
}

/// The content of a pax header: `LENGTH KEY=VALUE\n`, again and again.
pub(crate) fn records(mut content: &[u8]) -> Result<Records, String> {
    let mut found = Records::default();
    // Some writers fill up with zeroes.
    while content.first().is_some_and(|byte| *byte != 0) {
        let record = first_record(content).ok_or("its pax header has a record whose length is wrong")?;
        content = &content[record.all..];
        if record.key.starts_with(b"GNU.sparse.") {
            return Err(format!("the member is sparse (GNU's records), which {NOT_READ}"));
        }
        match record.key {
            b"path" => found.name = Some(record.value.to_vec()),
            b"size" => {
                let digits = std::str::from_utf8(record.value).ok().and_then(|text| text.parse().ok());
                found.bytes = Some(digits.ok_or("its pax header's size is no number")?);
            }
            _ => {}
        }
    }
    Ok(found)
}

struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    all: usize,
}

fn first_record(content: &[u8]) -> Option<Record<'_>> {
    let digits = content.iter().position(|byte| *byte == b' ')?;
    let all: usize = std::str::from_utf8(&content[..digits]).ok()?.parse().ok()?;
    let rest = content.get(digits + 1..all)?.strip_suffix(b"\n")?;
    let equals = rest.iter().position(|byte| *byte == b'=')?;
    Some(Record { key: &rest[..equals], value: &rest[equals + 1..], all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        let of = |text: &[u8]| number(text);
        assert_eq!(
            (of(b"0000644\0"), of(b" 644 \0  "), of(b"\0\0\0\0"), of(b"777 ")),
            (Some(420), Some(420), Some(0), Some(511))
        );
        assert_eq!((of(b"0000648\0"), of(b"-644\0"), of(b"0x1\0")), (None, None, None));
        let wide = [&[0x80u8, 0, 0, 0][..], &(9u64 << 30).to_be_bytes()].concat();
        assert_eq!(of(&wide), Some(9 << 30));
        assert_eq!((of(&[0xff; 12]), of(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])), (None, None));
        assert_eq!(of(b"777777777777"), Some((1 << 36) - 1));
    }

    #[test]
    fn records_have_the_length_that_they_say() {
        let good = b"20 path=a/b.jpg\xc3\xa9=1\n12 size=012\n9 mtime=\n\0\0\0";
        let found = records(good).unwrap();
        assert_eq!((found.name.as_deref(), found.bytes), (Some(&b"a/b.jpg\xc3\xa9=1"[..]), Some(12)));
        for bad in [
            &b"7 path=a/b\n"[..],
            b"99 path=a\n",
            b"0 a=b\n",
            b"path=a\n",
            b"8 patha\n\n",
            b"11 path=abc",
            b"13 size=1x\n\n",
        ] {
            assert!(records(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(records(b"22 GNU.sparse.major=1\n").unwrap_err().contains("sparse"));
    }
}
