//! Submission and completion queue entries (base, section 3.3.3) and opcodes.

use crate::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A submission queue entry (base, figure 87). Fabrics commands lay their own fields over `nsid` and behind
/// (`fabrics`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    pub nsid: U32,
    pub cdw2: U32,
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: one SGL descriptor, on fabrics.
    pub sgl: Sgl,
    pub cdw10: U32,
    pub cdw11: U32,
    pub cdw12: U32,
    pub cdw13: U32,
    pub cdw14: U32,
    pub cdw15: U32,
}
const _: () = assert!(size_of::<Sqe>() == 64);

/// One SGL descriptor (base, figure 92 on). `kind` holds type (bits 7:4) and subtype (bits 3:0).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sgl {
    /// Address, or the offset within the capsule's data.
    pub address: U64,
    pub length: U32,
    pub reserved: [u8; 3],
    pub kind: u8,
}
const _: () = assert!(size_of::<Sgl>() == 16);

impl Sgl {
    /// Data Block descriptor, Address subtype: the data are in the host's memory.
    pub const DATA_BLOCK: u8 = 0x00;
    /// Data Block descriptor, Offset subtype: the data are in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport SGL Data Block descriptor, Transport A subtype: the transport moves the data (tcp, section 3.2).
    pub const TRANSPORT: u8 = 0x5a;

    pub fn in_capsule(length: u32) -> Sgl {
        Sgl { length: length.into(), kind: Sgl::IN_CAPSULE, ..Sgl::default() }
    }

    pub fn data_block(address: u64, length: u32) -> Sgl {
        Sgl { address: address.into(), length: length.into(), ..Sgl::default() }
    }

    pub fn transport(length: u32) -> Sgl {
        Sgl { length: length.into(), kind: Sgl::TRANSPORT, ..Sgl::default() }
    }
}

impl Sqe {
    /// Data transfer direction: the low bits of the opcode, or of a Fabrics command's type (base, section 3.3.3.1).
    pub fn direction(&self) -> u8 {
        0b11 & if self.opcode == FABRICS { self.nsid.as_bytes()[0] } else { self.opcode }
    }
}

/// A completion queue entry (base, figure 90).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// Command specific; property values take all eight bytes.
    pub result: U64,
    /// SQ head pointer.
    pub sqhd: U16,
    pub sqid: U16,
    pub cid: U16,
    /// Status field and phase tag: `Status::to_bits`.
    pub status: U16,
}
const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    pub fn new(cid: u16, status: Status, result: u64) -> Cqe {
        Cqe { result: result.into(), cid: cid.into(), status: status.to_bits().into(), ..Cqe::default() }
    }

    pub fn status(&self) -> Status {
        Status::from_bits(self.status.get())
    }
}

/// Opcodes of the Admin Command Set (base, figure 138).
pub mod admin {
    pub const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
}

/// Opcodes of the NVM Command Set (nvm, section 3.2).
pub mod io {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
}

/// The opcode of every Fabrics command (base, section 6); the fabrics command type (FCTYPE) is in byte 4.
pub const FABRICS: u8 = 0x7f;
