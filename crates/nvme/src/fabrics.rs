//! Fabrics commands (base, section 6) and the controller's properties (base, section 3.1.3).

use crate::command::{Sgl, Sqe, FABRICS};
use crate::layout::layout;
use crate::nqn::{Nqn, NqnField};
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
            pub fn of(sqe: &Sqe) -> &$name {
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
    /// What comes with Connect (base, section 6.3, figure 382).
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

/// The properties that controllers on fabrics have (base, section 3.1.3, figure 35).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Property {
    /// Controller Capabilities, 8 bytes.
    Cap = 0x00,
    /// Version.
    Vs = 0x08,
    /// Controller Configuration.
    Cc = 0x14,
    /// Controller Status.
    Csts = 0x1c,
    /// NVM Subsystem Reset.
    Nssr = 0x20,
    /// Controller Ready Timeouts.
    Crto = 0x68,
}

impl Property {
    pub const ALL: [Property; 6] =
        [Property::Cap, Property::Vs, Property::Cc, Property::Csts, Property::Nssr, Property::Crto];

    pub fn offset(self) -> u32 {
        self as u32
    }

    pub fn bytes(self) -> usize {
        if self == Property::Cap {
            8
        } else {
            4
        }
    }

    /// ATTRIB's size field.
    fn attrib(self) -> u8 {
        u8::from(self.bytes() == 8)
    }

    fn at(offset: u32, attrib: u8) -> Option<Property> {
        Property::ALL.into_iter().find(|p| p.offset() == offset && p.attrib() == attrib & 0b111)
    }
}

/// Controller Capabilities (base, section 3.1.3.1, figure 36).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Entries that a queue may have (MQES, converted from 0's based).
    pub fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// Contiguous Queues Required.
    pub fn cqr(self) -> bool {
        self.0 & 1 << 16 != 0
    }

    /// How long CSTS.RDY may take to follow CC.EN, ms (TO, of 500 ms each).
    pub fn timeout_ms(self) -> u32 {
        (self.0 >> 24 & 0xff) as u32 * 500
    }

    /// Doorbell Stride (DSTRD): doorbells are 4 << this bytes apart.
    pub fn doorbell_stride(self) -> u8 {
        (self.0 >> 32 & 0xf) as u8
    }

    /// NVM Subsystem Reset Supported.
    pub fn nssrs(self) -> bool {
        self.0 & 1 << 36 != 0
    }

    /// Command Sets Supported: `css`.
    pub fn css(self) -> u8 {
        (self.0 >> 37) as u8
    }

    /// Smallest memory page, bytes: the unit of MDTS.
    pub fn page_bytes_min(self) -> u32 {
        1 << (12 + (self.0 >> 48 & 0xf))
    }

    pub fn page_bytes_max(self) -> u32 {
        1 << (12 + (self.0 >> 52 & 0xf))
    }

    /// Controller Ready Modes Supported.
    pub fn crms(self) -> u8 {
        (self.0 >> 59 & 0b11) as u8
    }

    /// What a controller on fabrics that serves the NVM Command Set says: `queue_entries_max` at least 2, pages of
    /// 4 KiB, `timeout_ms` rounded up to 500.
    pub fn new(queue_entries_max: u32, timeout_ms: u32) -> Cap {
        let mqes = u64::from(queue_entries_max.clamp(2, 1 << 16) - 1);
        let to = u64::from(timeout_ms.div_ceil(500).clamp(1, 0xff));
        Cap(mqes | 1 << 16 | to << 24 | u64::from(css::NVM) << 37)
    }
}

/// Command sets supported (CAP.CSS; base, section 3.1.3.1).
pub mod css {
    pub const NVM: u8 = 1 << 0;
    /// One or more I/O command sets (CNS 1Ch tells which).
    pub const IO_COMMAND_SETS: u8 = 1 << 6;
    pub const NO_IO_COMMAND_SET: u8 = 1 << 7;
}

/// Version (base, section 3.1.3.2): major in bits 31:16, minor in 15:8, tertiary in 7:0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    pub const V1_3: Version = Version(0x0001_0300);
    pub const V1_4: Version = Version(0x0001_0400);
    pub const V2_0: Version = Version(0x0002_0000);
    pub const V2_1: Version = Version(0x0002_0100);
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 >> 8 & 0xff)?;
        match self.0 & 0xff {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

/// Controller Configuration (base, section 3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc(pub u32);

impl Cc {
    /// EN.
    pub const ENABLE: u32 = 1;

    /// Enabled, the NVM Command Set, pages of 4 KiB, round robin, entries of 64 and 16 bytes.
    pub fn enabled() -> Cc {
        Cc(Cc::ENABLE | 6 << 16 | 4 << 20)
    }

    pub fn enable(self) -> bool {
        self.0 & Cc::ENABLE != 0
    }

    /// I/O Command Set Selected: 0 NVM, 6 all that are supported, 7 admin only.
    pub fn css(self) -> u8 {
        (self.0 >> 4 & 0b111) as u8
    }

    /// Memory page size, bytes (MPS).
    pub fn page_bytes(self) -> u32 {
        1 << (12 + (self.0 >> 7 & 0xf))
    }

    /// Arbitration mechanism selected.
    pub fn ams(self) -> u8 {
        (self.0 >> 11 & 0b111) as u8
    }

    /// Shutdown notification: 0 none, 1 normal, 2 abrupt.
    pub fn shn(self) -> u8 {
        (self.0 >> 14 & 0b11) as u8
    }

    pub fn with_shn(self, shn: u8) -> Cc {
        Cc(self.0 & !(0b11 << 14) | u32::from(shn & 0b11) << 14)
    }

    /// Submission queue entry, bytes as a power of two.
    pub fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }

    pub fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }
}

/// Controller Status (base, section 3.1.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csts(pub u32);

impl Csts {
    /// RDY.
    pub const READY: u32 = 1;
    /// CFS, Controller Fatal Status.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: shutdown occurs.
    pub const SHUTDOWN_OCCURRING: u32 = 0b01 << 2;
    /// SHST: shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;

    pub fn ready(self) -> bool {
        self.0 & Csts::READY != 0
    }

    pub fn fatal(self) -> bool {
        self.0 & Csts::FATAL != 0
    }

    /// 0 normal, 1 occurring, 2 complete.
    pub fn shutdown(self) -> u8 {
        (self.0 >> 2 & 0b11) as u8
    }
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
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn connect_lies_over_a_submission_queue_entry() {
        let sqe = Connect::new(3, 128, 15_000).to_sqe();
        assert_eq!((sqe.opcode, command_type(&sqe)), (FABRICS, fctype::CONNECT));
        assert_eq!(sqe.as_bytes()[42..52], [3, 0, 127, 0, 0, 0, 0x98, 0x3a, 0, 0]);
        assert_eq!(Connect::of(&sqe).kato.get(), 15_000);
    }

    #[test]
    fn a_property_is_known_by_offset_and_size() {
        for property in Property::ALL {
            assert_eq!(PropertyGet::new(property).property(), Some(property));
            assert_eq!(PropertySet::new(property, 9).property(), Some(property));
        }
        let mut get = PropertyGet::new(Property::Cc);
        get.attrib = 1;
        assert_eq!(get.property(), None, "CC has 4 bytes");
        get.ofst = 4.into();
        assert_eq!(get.property(), None);
    }

    #[test]
    fn results_of_connect_survive_a_round_trip() {
        let asked = Connected { cntlid: 7, authentication_required: true, secure_channel_required: false };
        assert_eq!(asked.to_result(), 0x2_0007);
        assert_eq!(Connected::from_result(asked.to_result()), asked);
        for wrong in [InvalidParameter::Command(44), InvalidParameter::Data(256)] {
            assert_eq!(InvalidParameter::from_result(wrong.to_result()), wrong);
        }
        assert_eq!(InvalidParameter::Data(256).to_result(), 0x1_0100);
    }

    #[test]
    fn capabilities_say_what_was_asked_for() {
        let cap = Cap::new(128, 7_600);
        assert_eq!((cap.queue_entries_max(), cap.timeout_ms(), cap.page_bytes_min()), (128, 8_000, 4096));
        assert!(cap.cqr() && cap.css() == css::NVM);
        assert_eq!(Cc::enabled().0, 0x0046_0001, "what hosts write");
        assert_eq!(Cc::enabled().with_shn(1).shn(), 1);
        assert_eq!((Version::V2_0.to_string(), Version(0x10202).to_string()), ("2.0".into(), "1.2.2".into()));
    }
}
