//! Records of a TFRecord file: a header leads from one to the next, and each is held against its checksum.

use super::ReadAt;
use crate::format::bounded::{u32_at, u64_at};
use crate::format::sums::{crc32c, masked_crc32c};
use crate::format::Damage;

const HEAD_BYTES: u64 = 12;
const FOOT_BYTES: u64 = 4;
/// Bytes that are read at a time: as many as this where records are long, and more where several headers lie in them.
const WINDOW_BYTES: u64 = 4 << 10;
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Offset and bytes of the data of each record.
///
/// # Errors
/// A length that isn't the one its checksum is of, or that leads beyond the file.
pub fn index_records(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<Vec<(u64, u64)>, Damage> {
    let mut window = Window { begin: 0, bytes: Vec::new(), next: WINDOW_BYTES };
    let (mut found, mut at) = (Vec::new(), 0);
    while at < file_bytes {
        let wrong = |what: String| Damage::new(found.len() as u64, at, what);
        let rest = file_bytes - at;
        if rest < HEAD_BYTES {
            return Err(wrong(format!("the file ends {rest} bytes into the record")));
        }
        let head = window.at(at, file_bytes, read).map_err(|error| wrong(error.to_string()))?;
        let (bytes, stored, sum) = (u64_at(head, 0), u32_at(head, 8), masked_crc32c(crc32c(0, &head[..8])));
        if stored != sum {
            let of = "the record's length";
            return Err(Damage::sum(found.len() as u64, at, of, "masked CRC32C", stored, sum));
        }
        let begin = at + HEAD_BYTES;
        let end = bytes.checked_add(FOOT_BYTES).and_then(|all| all.checked_add(begin));
        let Some(end) = end.filter(|end| *end <= file_bytes) else {
            return Err(wrong(format!(
                "the record says {bytes} bytes, and the file ends after {}",
                rest - HEAD_BYTES
            )));
        };
        found.push((begin, bytes));
        at = end;
    }
    Ok(found)
}

/// What was read last, for headers that lie close together.
struct Window {
    begin: u64,
    bytes: Vec<u8>,
    next: u64,
}

impl Window {
    /// A header's bytes. The file has them.
    fn at(&mut self, at: u64, file_bytes: u64, read: &mut ReadAt<'_>) -> std::io::Result<&[u8]> {
        let end = self.begin + self.bytes.len() as u64;
        if at < self.begin || at + HEAD_BYTES > end {
            // The next header lies just behind: short records, of which a longer window has many.
            let is_near = at < end + self.next;
            self.next = if is_near { self.next * 2 } else { WINDOW_BYTES }.min(WINDOW_BYTES_MAX);
            self.begin = at;
            self.bytes.resize(self.next.min(file_bytes - at) as usize, 0);
            read(at, &mut self.bytes)?;
        }
        let from = (at - self.begin) as usize;
        Ok(&self.bytes[from..from + HEAD_BYTES as usize])
    }
}
