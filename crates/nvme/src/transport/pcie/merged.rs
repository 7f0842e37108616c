//! Parts of a command's data as PRPs or an SGL name them, neighbours put together.

use super::memory::Unmapped;
use crate::status::{Code, Status};

/// A part of a command's data, in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub bytes: u32,
}

/// SGL descriptors that a command may have, over all segments. PRPs end by themselves: each covers a page.
pub const DESCRIPTORS_MAX: u32 = 4096;

/// Pieces on their way to the sink, the last one held back for its neighbour.
pub(super) struct Merged<'a> {
    sink: &'a mut dyn FnMut(Piece) -> Result<(), Unmapped>,
    last: Option<Piece>,
}

impl<'a> Merged<'a> {
    pub(super) fn into(sink: &'a mut dyn FnMut(Piece) -> Result<(), Unmapped>) -> Merged<'a> {
        Merged { sink, last: None }
    }

    pub(super) fn push(&mut self, address: u64, bytes: u32) -> Result<(), Status> {
        // The last byte of the address space may be part of it.
        address.checked_add(u64::from(bytes.max(1)) - 1).ok_or(unreachable_data())?;
        if let Some(last) = &mut self.last {
            let end = last.address.checked_add(last.bytes.into());
            match last.bytes.checked_add(bytes).filter(|_| end == Some(address)) {
                Some(both) => {
                    last.bytes = both;
                    return Ok(());
                }
                None => (self.sink)(*last).map_err(|_| unreachable_data())?,
            }
        }
        self.last = Some(Piece { address, bytes });
        Ok(())
    }

    pub(super) fn end(mut self) -> Result<(), Status> {
        match self.last.take() {
            Some(last) => (self.sink)(last).map_err(|_| unreachable_data()),
            None => Ok(()),
        }
    }
}

/// The data, or a list of where they are, aren't in the host's memory.
pub(super) fn unreachable_data() -> Status {
    Status::fatal(Code::DATA_TRANSFER_ERROR)
}
