//! PCI configuration space of the emulated function (PCI Express base 5.0, chapter 7): type 0 header, power management,
//! MSI-X and PCI Express capabilities.

/// Bytes of the configuration space, the extended part included.
pub(crate) const BYTES: usize = 4096;
/// MSI-X's table and pending bits lie in BAR 4, at these offsets (NVMe over PCIe 1.0, section 2.4).
pub(crate) const TABLE_OFFSET: u64 = 0;
pub(crate) const PENDING_OFFSET: u64 = 0x8000;
pub(crate) const BAR4_BYTES: u64 = 0x1_0000;

/// Offsets of the type 0 header (section 7.5.1).
mod at {
    pub(super) const COMMAND: usize = 0x04;
    pub(super) const STATUS: usize = 0x06;
    pub(super) const CLASS: usize = 0x08;
    pub(super) const CACHE_LINE: usize = 0x0c;
    pub(super) const BAR0: usize = 0x10;
    pub(super) const BAR4: usize = 0x20;
    pub(super) const SUBSYSTEM: usize = 0x2c;
    pub(super) const CAPABILITIES: usize = 0x34;
    pub(super) const INTERRUPT_LINE: usize = 0x3c;
    pub(super) const POWER: usize = 0x40;
    pub(super) const MSIX: usize = 0x50;
    pub(super) const EXPRESS: usize = 0x60;
}

/// Command register (section 7.5.1.1.3): memory space, bus master; interrupt disable.
const COMMAND_WRITABLE: u16 = 0x0406;
/// Subclass 08h (NVM), interface 02h (NVMe) of mass storage (NVMe over PCIe 1.0, section 2.1.4).
const CLASS_NVME: u32 = 0x01_08_02;

/// Identification of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    pub vendor: u16,
    pub device: u16,
}

#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; BYTES]>,
    /// Bits that a write changes.
    writable: Box<[u8; BYTES]>,
}

/// Request of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Initiate Function Level Reset.
    pub function_reset: bool,
}

impl ConfigSpace {
    /// `bar0_bytes`: a power of two. `vectors`: of MSI-X, 1 to 2048.
    pub fn new(names: Names, bar0_bytes: u64, vectors: u16) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: Box::new([0; BYTES]), writable: Box::new([0; BYTES]) };
        space.set(0, &names.vendor.to_le_bytes());
        space.set(2, &names.device.to_le_bytes());
        space.allow(at::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        // Capabilities List.
        space.set(at::STATUS, &[0x10, 0]);
        space.set(at::CLASS, &(CLASS_NVME << 8).to_le_bytes());
        space.allow(at::CACHE_LINE, &[0xff]);
        space.bar(at::BAR0, bar0_bytes);
        space.bar(at::BAR4, BAR4_BYTES);
        space.set(at::SUBSYSTEM, &names.vendor.to_le_bytes());
        space.set(at::SUBSYSTEM + 2, &names.device.to_le_bytes());
        space.set(at::CAPABILITIES, &[at::POWER as u8]);
        space.allow(at::INTERRUPT_LINE, &[0xff]);
        space.power();
        space.msix(vectors);
        space.express();
        space
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// A 64-bit memory BAR, not prefetchable (section 7.5.1.2.1).
    fn bar(&mut self, at: usize, bytes: u64) {
        self.set(at, &[0b100]);
        self.allow(at, &(!(bytes - 1)).to_le_bytes());
    }

    /// PCI Power Management (section 7.5.2), version 3, No_Soft_Reset: D0 and D3hot, without PME.
    fn power(&mut self) {
        self.set(at::POWER, &[0x01, at::MSIX as u8, 0x03, 0x00, 0x08, 0x00, 0, 0]);
        self.allow(at::POWER + 4, &[0b11]);
    }

    /// MSI-X (section 7.7.2): table and pending bits in BAR 4.
    fn msix(&mut self, vectors: u16) {
        self.set(at::MSIX, &[0x11, at::EXPRESS as u8]);
        self.set(at::MSIX + 2, &(vectors - 1).to_le_bytes());
        // Enable and Function Mask.
        self.allow(at::MSIX + 3, &[0xc0]);
        self.set(at::MSIX + 4, &(TABLE_OFFSET as u32 | 4).to_le_bytes());
        self.set(at::MSIX + 8, &(PENDING_OFFSET as u32 | 4).to_le_bytes());
    }

    /// PCI Express (section 7.5.3), version 2: an endpoint with Function Level Reset, on a link of 16 GT/s x4.
    fn express(&mut self) {
        const ROLE_BASED_ERRORS: u32 = 1 << 15;
        const FUNCTION_LEVEL_RESET: u32 = 1 << 28;
        const LINK: u32 = 4 << 4 | 4;
        let at = at::EXPRESS;
        self.set(at, &[0x10, 0, 0x02, 0]);
        // Max_Payload_Size Supported: 256 bytes.
        self.set(at + 4, &(ROLE_BASED_ERRORS | FUNCTION_LEVEL_RESET | 1).to_le_bytes());
        // Device Control: all but Initiate FLR keeps what is written.
        self.allow(at + 8, &0x7fffu16.to_le_bytes());
        self.set(at + 8, &0x2810u16.to_le_bytes());
        self.set(at + 0xc, &LINK.to_le_bytes());
        self.allow(at + 0x10, &0x0fc3u16.to_le_bytes());
        self.set(at + 0x12, &(LINK as u16).to_le_bytes());
        // Device Capabilities 2: completion timeouts may be disabled; Link Capabilities 2: up to 16 GT/s.
        self.set(at + 0x24, &0x10u32.to_le_bytes());
        self.allow(at + 0x28, &0x001fu16.to_le_bytes());
        self.set(at + 0x2c, &0x1eu32.to_le_bytes());
        self.set(at + 0x30, &4u16.to_le_bytes());
        self.allow(at + 0x30, &0x000fu16.to_le_bytes());
    }

    /// Zeros behind the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let there = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let (known, behind) = into.split_at_mut(into.len().min(there.len()));
        known.copy_from_slice(&there[..known.len()]);
        behind.fill(0);
    }

    /// Changes the bits that may be changed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        let mut written = Written::default();
        let Ok(offset) = usize::try_from(offset) else { return written };
        for (byte, at) in bytes.iter().zip(offset..BYTES) {
            // Bit 15 of Device Control (section 7.5.3.4): it always reads as 0.
            written.function_reset |= at == at::EXPRESS + 9 && byte & 0x80 != 0;
            self.bytes[at] = self.bytes[at] & !self.writable[at] | byte & self.writable[at];
        }
        written
    }

    /// Bus Master Enable: the function may access memory and interrupt.
    pub fn bus_master(&self) -> bool {
        self.bytes[at::COMMAND] & 0b100 != 0
    }

    /// After a function level reset: BARs and all else that can be written are as they were at first.
    pub fn reset(&mut self, fresh: &ConfigSpace) {
        *self = fresh.clone();
    }
}
