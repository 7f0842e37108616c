//! Fabrics commands (base, section 6) and the controller's properties (base, section 3.1.3).

mod property;

use crate::command::{Sgl, Sqe, FABRICS};
use crate::layout::layout;
use crate::nqn::{Nqn, NqnField};
pub use property::{Cap, Cc, Csts, Property, Version};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{transmute, transmute_ref};

/// Fabrics command types: FCTYPE, byte 4 of the command (base, section 6, figure 374).
pub mod fctype {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    pub const DISCONNECT: u8 = 0x08;
}

/// The FCTYPE of a command whose opcode is `FABRICS`.
pub fn command_type(sqe: &Sqe) -> u8 {
    sqe.nsid.get() as u8
}

/// Declares a fabrics command: the common head and SGL, then its own fields from byte 40 on.
macro_rules! fabrics_command {
    ($(#[$meta:meta])* $name:ident, $fctype:path {
        $($(#[$field_meta:meta])* $at:literal $field:ident: $type:ty,)*
    }) => {
        layout! {
            $(#[$meta])*
            $name, 64 bytes {
                0 opcode: u8,
                1 flags: u8,
                2 cid: U16,
                4 fctype: u8,
                5 reserved_5: [u8; 19],
                24 sgl: Sgl,
                $($(#[$field_meta])* $at $field: $type,)*
            }
        }

        impl $name {
            fn blank() -> $name {
                $name { opcode: FABRICS, fctype: $fctype, ..$name::default() }
            }

            /// The same 64 bytes under this command's names. The caller has looked at the opcode and the FCTYPE.
            pub fn from_sqe(sqe: &Sqe) -> &$name {
                transmute_ref!(sqe)
            }

            pub fn to_sqe(self) -> Sqe {
                transmute!(self)
            }
        }
    };
}

impl crate::layout::Shaped for Sgl {
    const SHAPE: crate::layout::Shape = crate::layout::Shape::Bytes;
}

fabrics_command! {
    /// Connect (base, section 6.3, figure 381): makes a queue, and with queue 0 an association.
    Connect, fctype::CONNECT {
        /// Record format; 0.
        40 recfmt: U16,
        /// 0 is the admin queue.
        42 qid: U16,
        /// Entries of the submission queue, 0's based.
        44 sqsize: U16,
        /// Connect attributes: `cattr`.
        46 cattr: u8,
        47 reserved_47: u8,
        /// Keep alive timeout, ms; 0: none. For the admin queue.
        48 kato: U32,
        52 reserved_52: [u8; 12],
    }
}

/// Connect attributes (base, section 6.3).
pub mod cattr {
    /// Bits 1:0, priority class.
    pub const PRIORITY: u8 = 0b11;
    /// The queue does without SQHD.
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;
    pub const IO_QUEUE_DELETION: u8 = 1 << 3;
}

/// A CNTLID by which Connect asks for any controller there is (dynamic model; base, section 6.3).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// … for any static controller.
pub const CNTLID_STATIC: u16 = 0xfffe;

impl Connect {
    /// `entries` of the submission queue, at least 2. The SGL is the transport's to fill in.
    pub fn new(qid: u16, entries: u16, kato_ms: u32) -> Connect {
        Connect {
            qid: qid.into(),
            sqsize: entries.saturating_sub(1).into(),
            kato: kato_ms.into(),
            ..Connect::blank()
        }
    }
}

layout! {
    /// Data of Connect (base, section 6.3, figure 382).
    ConnectData, 1024 bytes {
        0 hostid: [u8; 16],
        /// The controller asked for, or `CNTLID_DYNAMIC`.
        16 cntlid: U16,
        18 reserved_18: [u8; 238],
        256 subnqn: NqnField,
        512 hostnqn: NqnField,
        768 reserved_768: [u8; 256],
    }
}

impl ConnectData {
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &Nqn, hostnqn: &Nqn) -> ConnectData {
        ConnectData {
            hostid,
            cntlid: cntlid.into(),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..ConnectData::default()
        }
    }
}

/// The result of a Connect that succeeded (base, section 6.3, figure 383): CNTLID in bits 15:0, AUTHREQ in bits 31:16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    pub cntlid: u16,
    /// Authentication with a secure channel concatenated is required (ASCR).
    pub secure_channel_required: bool,
    /// In-band authentication is required before anything else (ATR).
    pub authentication_required: bool,
}

impl Connected {
    pub fn to_result(self) -> u64 {
        u64::from(self.cntlid)
            | u64::from(self.authentication_required) << 17
            | u64::from(self.secure_channel_required) << 18
    }

    pub fn from_result(result: u64) -> Connected {
        Connected {
            cntlid: result as u16,
            authentication_required: result & 1 << 17 != 0,
            secure_channel_required: result & 1 << 18 != 0,
        }
    }
}

/// The result that goes with Connect Invalid Parameters (base, section 6.3): where the wrong one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParameter {
    /// Byte of the command.
    Command(u16),
    /// Byte of the Connect data.
    Data(u16),
}

impl InvalidParameter {
    /// IPO in bits 15:0, IATTR in bit 16.
    pub fn to_result(self) -> u64 {
        match self {
            InvalidParameter::Command(at) => u64::from(at),
            InvalidParameter::Data(at) => u64::from(at) | 1 << 16,
        }
    }

    pub fn from_result(result: u64) -> InvalidParameter {
        match result & 1 << 16 {
            0 => InvalidParameter::Command(result as u16),
            _ => InvalidParameter::Data(result as u16),
        }
    }
}

fabrics_command! {
    /// Disconnect (base, section 6.4, figure 385): ends an I/O queue.
    Disconnect, fctype::DISCONNECT {
        40 recfmt: U16,
        42 reserved_42: [u8; 22],
    }
}

impl Disconnect {
    pub fn new() -> Disconnect {
        Disconnect::blank()
    }
}

fabrics_command! {
    /// Property Get (base, section 6.5, figure 387); the value is the completion's result.
    PropertyGet, fctype::PROPERTY_GET {
        /// Bits 2:0: 0 for 4 bytes, 1 for 8.
        40 attrib: u8,
        41 reserved_41: [u8; 3],
        /// Offset of the property: `property`.
        44 ofst: U32,
        48 reserved_48: [u8; 16],
    }
}

fabrics_command! {
    /// Property Set (base, section 6.6, figure 389).
    PropertySet, fctype::PROPERTY_SET {
        /// Bits 2:0: 0 for 4 bytes, 1 for 8.
        40 attrib: u8,
        41 reserved_41: [u8; 3],
        44 ofst: U32,
        48 value: U64,
        56 reserved_56: [u8; 8],
    }
}

impl PropertyGet {
    pub fn new(property: Property) -> PropertyGet {
        PropertyGet { attrib: property.attrib(), ofst: property.offset().into(), ..PropertyGet::blank() }
    }

    /// The property, with the size it was asked for in. None: no property of that offset and size.
    pub fn property(&self) -> Option<Property> {
        Property::at(self.ofst.get(), self.attrib)
    }
}

impl PropertySet {
    pub fn new(property: Property, value: u64) -> PropertySet {
        PropertySet {
            attrib: property.attrib(),
            ofst: property.offset().into(),
            value: value.into(),
            ..PropertySet::blank()
        }
    }

    pub fn property(&self) -> Option<Property> {
        Property::at(self.ofst.get(), self.attrib)
    }
}

/// Command sets supported (CAP.CSS; base, section 3.1.3.1).
pub mod css {
    pub const NVM: u8 = 1 << 0;
    /// One or more I/O command sets (CNS 1Ch tells which).
    pub const IO_COMMAND_SETS: u8 = 1 << 6;
    pub const NO_IO_COMMAND_SET: u8 = 1 << 7;
}

fabrics_command! {
    /// Authentication Send (base, section 6.2, figure 379).
    AuthenticationSend, fctype::AUTHENTICATION_SEND {
        40 reserved_40: u8,
        /// Security protocol specific, low; `SPSP`.
        41 spsp0: u8,
        42 spsp1: u8,
        /// Security protocol; `SECP`.
        43 secp: u8,
        /// Transfer length, bytes.
        44 tl: U32,
        48 reserved_48: [u8; 16],
    }
}

fabrics_command! {
    /// Authentication Receive (base, section 6.1, figure 377).
    AuthenticationReceive, fctype::AUTHENTICATION_RECEIVE {
        40 reserved_40: u8,
        41 spsp0: u8,
        42 spsp1: u8,
        43 secp: u8,
        /// Allocation length, bytes.
        44 al: U32,
        48 reserved_48: [u8; 16],
    }
}

/// SECP that NVMe in-band authentication uses (base, section 8.13.1).
pub const SECP: u8 = 0xe9;
/// SPSP0 and SPSP1 for it.
pub const SPSP: u8 = 0x01;

impl AuthenticationSend {
    pub fn new(bytes: u32) -> AuthenticationSend {
        AuthenticationSend {
            spsp0: SPSP,
            spsp1: SPSP,
            secp: SECP,
            tl: bytes.into(),
            ..AuthenticationSend::blank()
        }
    }

    pub fn is_nvme(&self) -> bool {
        (self.secp, self.spsp0, self.spsp1) == (SECP, SPSP, SPSP)
    }
}

impl AuthenticationReceive {
    pub fn new(bytes: u32) -> AuthenticationReceive {
        AuthenticationReceive {
            spsp0: SPSP,
            spsp1: SPSP,
            secp: SECP,
            al: bytes.into(),
            ..AuthenticationReceive::blank()
        }
    }

    pub fn is_nvme(&self) -> bool {
        (self.secp, self.spsp0, self.spsp1) == (SECP, SPSP, SPSP)
    }
}

#[cfg(test)]
mod tests;
