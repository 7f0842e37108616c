//! Scatter Gather Lists (base, section 4.1.2): descriptors of any length, in segments.
//!
//! A walk ends: over all segments it reads `DESCRIPTORS_MAX` descriptors at most.

use super::memory::HostMemory;
use super::merged::{unreachable_data, Merged, DESCRIPTORS_MAX};
use crate::command::Sgl;
use crate::status::{Code, Status};
use zerocopy::IntoBytes;

/// Types of descriptors, in bits 7:4 of their last byte (base, figure 93). The subtype below is 0: an address.
mod kind {
    pub const DATA_BLOCK: u8 = 0x00;
    pub const SEGMENT: u8 = 0x20;
    pub const LAST_SEGMENT: u8 = 0x30;
}

const DESCRIPTOR_BYTES: u32 = size_of::<Sgl>() as u32;
/// Descriptors that are read at once.
const AT_ONCE: u32 = 64;

/// Exactly `bytes`: SGLS doesn't say that an SGL may be longer than its data.
pub(super) fn walk<M: HostMemory + ?Sized>(
    memory: &M,
    first: &Sgl,
    bytes: u32,
    merged: &mut Merged<'_>,
) -> Result<(), Status> {
    let mut walk = Walk { memory, left: bytes, read: 0, merged };
    let mut segment = match first.kind {
        kind::DATA_BLOCK => {
            walk.data(first)?;
            None
        }
        kind::SEGMENT | kind::LAST_SEGMENT => Some(*first),
        _ => return Err(Status::fatal(Code::SGL_TYPE_INVALID)),
    };
    while let Some(here) = segment {
        segment = walk.segment(&here)?;
    }
    if walk.left > 0 {
        return Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID));
    }
    Ok(())
}

struct Walk<'a, 'b, M: ?Sized> {
    memory: &'a M,
    /// Bytes of data that are still to come.
    left: u32,
    /// Descriptors that were read.
    read: u32,
    merged: &'a mut Merged<'b>,
}

impl<M: HostMemory + ?Sized> Walk<'_, '_, M> {
    fn data(&mut self, descriptor: &Sgl) -> Result<(), Status> {
        let bytes = descriptor.length.get();
        self.left = self.left.checked_sub(bytes).ok_or(Status::fatal(Code::DATA_SGL_LENGTH_INVALID))?;
        match bytes {
            // It describes nothing, and its address means nothing.
            0 => Ok(()),
            _ => self.merged.push(descriptor.address.get(), bytes),
        }
    }

    /// Goes through a segment; the descriptor of the next one, where there is one.
    fn segment(&mut self, segment: &Sgl) -> Result<Option<Sgl>, Status> {
        let invalid = Status::fatal(Code::INVALID_SGL_SEGMENT);
        let bytes = segment.length.get();
        if bytes == 0 || bytes % DESCRIPTOR_BYTES != 0 {
            return Err(invalid);
        }
        let (count, is_last) = (bytes / DESCRIPTOR_BYTES, segment.kind == kind::LAST_SEGMENT);
        self.read = self.read.saturating_add(count);
        if self.read > DESCRIPTORS_MAX {
            return Err(Status::fatal(Code::SGL_DESCRIPTOR_COUNT_INVALID));
        }
        let mut descriptors = [Sgl::default(); AT_ONCE as usize];
        let mut at = 0;
        while at < count {
            let some = &mut descriptors[..AT_ONCE.min(count - at) as usize];
            let from = u64::from(at * DESCRIPTOR_BYTES);
            let address = segment.address.get().checked_add(from).ok_or(unreachable_data())?;
            self.memory.read(address, some.as_mut_bytes()).map_err(|_| unreachable_data())?;
            at += some.len() as u32;
            let ends = at == count;
            let (last, others) = some.split_last().expect("there is one at least");
            others.iter().try_for_each(|descriptor| self.inner(descriptor))?;
            match last.kind {
                kind::SEGMENT | kind::LAST_SEGMENT if ends && !is_last => return Ok(Some(*last)),
                // A segment that isn't the last one ends with the way to the next.
                kind::DATA_BLOCK if ends && !is_last => return Err(invalid),
                _ => self.inner(last)?,
            }
        }
        Ok(None)
    }

    /// A descriptor that isn't the last of its segment, or is one of the last segment.
    fn inner(&mut self, descriptor: &Sgl) -> Result<(), Status> {
        match descriptor.kind {
            kind::DATA_BLOCK => self.data(descriptor),
            kind::SEGMENT | kind::LAST_SEGMENT => Err(Status::fatal(Code::INVALID_SGL_SEGMENT)),
            _ => Err(Status::fatal(Code::SGL_TYPE_INVALID)),
        }
    }
}
