//! The data pointer of a command (base, section 4.1): PRPs, or an SGL.

use super::memory::{HostMemory, Unmapped};
pub(super) use super::merged::unreachable_data;
use super::merged::Merged;
pub use super::merged::{Piece, DESCRIPTORS_MAX};
use super::{prp, sgl};
use crate::command::Sqe;
use crate::status::{Code, Status};

/// Tells `sink` of each part of the `bytes` that a command moves, in order; neighbours come as one. `page_bytes`: CC.MPS.
/// `sink` refuses what it can't reach. Err: complete the command with this; what was told until then is to be
/// forgotten. Calls of `sink` are at most one per page and two, or one per descriptor.
pub fn walk<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: &Sqe,
    bytes: u32,
    page_bytes: u32,
    sink: &mut dyn FnMut(Piece) -> Result<(), Unmapped>,
) -> Result<(), Status> {
    let mut merged = Merged::into(sink);
    match sqe.flags >> 6 {
        _ if bytes == 0 => {}
        PSDT_PRP => {
            let [prp1, prp2] = prps(sqe);
            prp::walk(memory, prp1, prp2, bytes, page_bytes, &mut merged)?;
        }
        PSDT_SGL | PSDT_SGL_METADATA => sgl::walk(memory, &sqe.sgl, bytes, &mut merged)?,
        _ => return Err(Status::fatal(Code::INVALID_FIELD)),
    }
    merged.end()
}

/// PSDT, bits 7:6 of a command's flags (base, figure 86).
pub const PSDT_PRP: u8 = 0b00;
pub const PSDT_SGL: u8 = 0b01;
pub const PSDT_SGL_METADATA: u8 = 0b10;

/// PRP Entry 1 and 2 of a command (base, figure 87): the same bytes as its SGL descriptor.
pub fn prps(sqe: &Sqe) -> [u64; 2] {
    let bytes: [u8; 16] = zerocopy::transmute!(sqe.sgl);
    zerocopy::transmute!(bytes)
}

/// The data pointer with these PRPs.
pub fn with_prps(sqe: Sqe, prps: [u64; 2]) -> Sqe {
    let bytes: [u8; 16] = zerocopy::transmute!(prps.map(u64::to_le));
    Sqe { sgl: zerocopy::transmute!(bytes), flags: sqe.flags & 0b11, ..sqe }
}
