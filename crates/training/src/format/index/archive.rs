//! Arrays of an .npz archive, by the directory at its end.

use super::ReadAt;
use crate::format::bounded::{u32_at, u64_at};
use crate::format::zip::{self, DirectoryEnd};
use crate::format::Damage;

/// Limits: on the comment behind the directory's end, on the directory, on arrays.
const COMMENT_BYTES_MAX: u64 = u16::MAX as u64;
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
const ARRAYS_MAX: usize = 1 << 20;

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveArray {
    /// Name of the member: `x.npy`.
    pub name: String,
    pub offset: u64,
    pub bytes: u64,
    /// What its bytes went through, where they don't lie there as they are.
    pub altered: Option<String>,
}

/// Members of the archive, in the order of its directory.
///
/// # Errors
/// What is no zip archive, or a member that doesn't lie where the directory says.
pub fn index_archive(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<Vec<ArchiveArray>, Damage> {
    let (end, directory_end) = end_of(file_bytes, read)?;
    let wrong = |at: u64, what: String| Damage::new(0, at, what);
    let fits = end.offset.checked_add(end.bytes).is_some_and(|last| last <= directory_end);
    if !fits || end.bytes > DIRECTORY_BYTES_MAX {
        let what = format!(
            "its directory says {} bytes at {}, and it ends at {directory_end}",
            end.bytes, end.offset
        );
        return Err(wrong(directory_end, what));
    }
    let mut directory = vec![0; end.bytes as usize];
    read(end.offset, &mut directory).map_err(|error| wrong(end.offset, error.to_string()))?;
    let (mut rest, mut found) = (&directory[..], Vec::new());
    while !rest.is_empty() {
        let at = end.offset + (directory.len() - rest.len()) as u64;
        let head = rest.get(..zip::DIRECTORY_BYTES).filter(|head| u32_at(head, 0) == zip::DIRECTORY);
        let bytes = head.map(|head| zip::DIRECTORY_BYTES + zip::directory_rest(head));
        let Some(entry) = bytes.and_then(|bytes| rest.get(..bytes)) else {
            return Err(wrong(at, "an entry of its directory is damaged".into()));
        };
        found
            .push(member(entry, end.offset, read).map_err(|what| Damage::new(found.len() as u64, at, what))?);
        if found.len() > ARRAYS_MAX {
            return Err(wrong(at, format!("it has more than {ARRAYS_MAX} members")));
        }
        rest = &rest[entry.len()..];
    }
    if found.len() as u64 != end.entries {
        let what = format!("its directory has {} entries, and its end says {}", found.len(), end.entries);
        return Err(wrong(end.offset, what));
    }
    Ok(found)
}

/// The end of the directory, and the byte at which it begins.
fn end_of(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<(DirectoryEnd, u64), Damage> {
    let least = zip::END_BYTES as u64;
    let begin = file_bytes.saturating_sub(least + COMMENT_BYTES_MAX);
    let mut tail = vec![0; (file_bytes - begin) as usize];
    read(begin, &mut tail).map_err(|error| Damage::new(0, begin, error.to_string()))?;
    let is_end = |at: &usize| u32_at(&tail, *at) == zip::END;
    let last = tail.len().checked_sub(zip::END_BYTES);
    let Some(at) = last.and_then(|last| (0..=last).rev().find(is_end)) else {
        return Err(Damage::new(0, file_bytes, "it doesn't end as a zip archive does"));
    };
    let place = begin + at as u64;
    let head = &tail[at..at + zip::END_BYTES];
    let Some(locator_at) = place.checked_sub(zip::LOCATOR64_BYTES as u64) else {
        return Ok((zip::end(head, None), place));
    };
    let failed = |at: u64| move |error: std::io::Error| Damage::new(0, at, error.to_string());
    let mut locator = [0; zip::LOCATOR64_BYTES];
    read(locator_at, &mut locator).map_err(failed(locator_at))?;
    if u32_at(&locator, 0) != zip::LOCATOR64 {
        return Ok((zip::end(head, None), place));
    }
    let wide_at = u64_at(&locator, 8);
    let mut wide = [0; zip::END64_BYTES];
    if wide_at.checked_add(wide.len() as u64).is_none_or(|end| end > locator_at) {
        return Err(Damage::new(0, locator_at, format!("its zip64 locator points at {wide_at}")));
    }
    read(wide_at, &mut wide).map_err(failed(wide_at))?;
    if u32_at(&wide, 0) != zip::END64 {
        return Err(Damage::new(0, wide_at, "its zip64 end of directory is damaged"));
    }
    Ok((zip::end(head, Some(zip::end64(&wide))), wide_at))
}

/// A member by its entry; its data lies behind its own header, whose names may be of another length.
fn member(entry: &[u8], limit: u64, read: &mut ReadAt<'_>) -> Result<ArchiveArray, String> {
    let (entry, name) = zip::directory(entry)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let mut head = [0; zip::LOCAL_BYTES];
    let begin = entry.offset.checked_add(head.len() as u64).filter(|begin| *begin <= limit);
    let begin =
        begin.ok_or_else(|| format!("member {name} lies at {}, beyond the directory", entry.offset))?;
    read(entry.offset, &mut head).map_err(|error| error.to_string())?;
    if u32_at(&head, 0) != zip::LOCAL {
        return Err(format!("no member begins at {}, where {name} should", entry.offset));
    }
    let offset = begin + zip::local_rest(&head) as u64;
    if offset.checked_add(entry.packed_bytes).is_none_or(|end| end > limit) {
        return Err(format!(
            "member {name} says {} bytes at {offset}, beyond the directory",
            entry.packed_bytes
        ));
    }
    Ok(ArchiveArray { name, offset, bytes: entry.bytes, altered: zip::altered(&entry) })
}
