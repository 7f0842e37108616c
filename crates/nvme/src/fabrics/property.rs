//! The properties of a controller.

use super::css;

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
    pub(super) fn attrib(self) -> u8 {
        u8::from(self.bytes() == 8)
    }

    pub(super) fn at(offset: u32, attrib: u8) -> Option<Property> {
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

    /// Returns the time in which CSTS.RDY follows CC.EN, ms (TO, of 500 ms each).
    pub fn timeout_ms(self) -> u32 {
        (self.0 >> 24 & 0xff) as u32 * 500
    }

    /// Doorbell Stride (DSTRD): doorbells are 4 << this bytes apart.
    pub fn doorbell_stride(self) -> u8 {
        (self.0 >> 32 & 0xf) as u8
    }

    /// Command Sets Supported: `css`.
    pub fn css(self) -> u8 {
        (self.0 >> 37) as u8
    }

    /// Smallest memory page, bytes: the unit of MDTS.
    pub fn page_bytes_min(self) -> u32 {
        1 << (12 + (self.0 >> 48 & 0xf))
    }

    /// Returns the capabilities of a controller on fabrics that serves the NVM Command Set: `queue_entries_max` at
    /// least 2, pages of 4 KiB, `timeout_ms` rounded up to 500.
    pub fn new(queue_entries_max: u32, timeout_ms: u32) -> Cap {
        let mqes = u64::from(queue_entries_max.clamp(2, 1 << 16) - 1);
        let to = u64::from(timeout_ms.div_ceil(500).clamp(1, 0xff));
        Cap(mqes | 1 << 16 | to << 24 | u64::from(css::NVM) << 37)
    }
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
