//! Physical Region Pages (base, section 4.1.1): a page each; more than two are in lists.
//!
//! A walk ends: every list but the first starts at a page, so each has at least one page of data.

use super::memory::HostMemory;
use super::merged::{unreachable_data, Merged};
use crate::status::{Code, Status};
use zerocopy::little_endian::U64;
use zerocopy::IntoBytes;

/// Entries that are read at once.
const AT_ONCE: usize = 512;

pub(super) fn walk<M: HostMemory + ?Sized>(
    memory: &M,
    prp1: u64,
    prp2: u64,
    bytes: u32,
    page_bytes: u32,
    merged: &mut Merged<'_>,
) -> Result<(), Status> {
    let within = u64::from(page_bytes) - 1;
    if prp1 & 0b11 != 0 {
        return Err(Status::fatal(Code::PRP_OFFSET_INVALID));
    }
    let first = bytes.min(page_bytes - (prp1 & within) as u32);
    merged.push(prp1, first)?;
    match bytes - first {
        0 => Ok(()),
        rest if rest <= page_bytes => {
            page(prp2, within)?;
            merged.push(prp2, rest)
        }
        rest => lists(memory, prp2, rest, page_bytes, merged),
    }
}

/// An entry of a list, and a pointer to the next one, have no offset.
fn page(entry: u64, within: u64) -> Result<(), Status> {
    if entry & within != 0 {
        return Err(Status::fatal(Code::PRP_OFFSET_INVALID));
    }
    Ok(())
}

fn lists<M: HostMemory + ?Sized>(
    memory: &M,
    mut list: u64,
    mut rest: u32,
    page_bytes: u32,
    merged: &mut Merged<'_>,
) -> Result<(), Status> {
    let within = u64::from(page_bytes) - 1;
    if list & 0b111 != 0 {
        return Err(Status::fatal(Code::PRP_OFFSET_INVALID));
    }
    let mut entries = [U64::ZERO; AT_ONCE];
    loop {
        // What the page holds from here on; the last of it points on, where it can't be all.
        let here = (page_bytes - (list & within) as u32) / 8;
        let pages = rest.div_ceil(page_bytes);
        let (mut data, points_on) = if pages <= here { (pages, false) } else { (here - 1, true) };
        while data > 0 {
            let some = &mut entries[..AT_ONCE.min(data as usize)];
            memory.read(list, some.as_mut_bytes()).map_err(|_| unreachable_data())?;
            for entry in &*some {
                page(entry.get(), within)?;
                let bytes = rest.min(page_bytes);
                merged.push(entry.get(), bytes)?;
                rest -= bytes;
            }
            data -= some.len() as u32;
            list += some.len() as u64 * 8;
        }
        if !points_on {
            return Ok(());
        }
        let mut next = U64::ZERO;
        memory.read(list, next.as_mut_bytes()).map_err(|_| unreachable_data())?;
        page(next.get(), within)?;
        list = next.get();
    }
}
