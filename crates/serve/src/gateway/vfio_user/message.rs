//! Messages of the vfio-user protocol (the specification in QEMU's docs/interop/vfio-user.rst, "Protocol Specification"):
//! bytes to requests, answers to bytes. All numbers are in the machine's own order.

/// Bytes of the header that precedes every message.
pub const HEADER_BYTES: usize = 16;
/// Longest payload of one access, as negotiated (`max_data_xfer_size`).
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Longest message that is read: an access of the longest payload, and what is before it.
pub(crate) const MESSAGE_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + 64;
/// Descriptors that come with one message at most (`max_msg_fds`). QEMU refuses a server that names more
/// (VFIO_USER_MAX_MAX_FDS).
pub(crate) const DESCRIPTORS_MAX: usize = 16;

/// Header flags: bits 3:0 are the type, of which a command is 0.
mod flags {
    pub(super) const TYPE: u32 = 0xf;
    pub(super) const REPLY: u32 = 1;
    pub(super) const NO_REPLY: u32 = 1 << 4;
    pub(super) const ERROR: u32 = 1 << 5;
}

/// Regions of a PCI function (linux/vfio.h, VFIO_PCI_*_REGION_INDEX).
pub enum Region {}

impl Region {
    pub const BAR0: u32 = 0;
    pub(crate) const BAR4: u32 = 4;
    pub const CONFIG: u32 = 7;
    pub const COUNT: u32 = 9;
}

/// Kinds of interrupts (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX).
pub(crate) enum Irq {}

impl Irq {
    pub(crate) const MSIX: u32 = 2;
    pub(crate) const COUNT: u32 = 5;
}

/// Effects of an entry of SET_IRQS (linux/vfio.h, VFIO_IRQ_SET_*).
pub enum IrqSet {}

impl IrqSet {
    pub const DATA_NONE: u32 = 1 << 0;
    pub const DATA_BOOL: u32 = 1 << 1;
    pub const DATA_EVENTFD: u32 = 1 << 2;
    pub const MASK: u32 = 1 << 3;
    pub const UNMASK: u32 = 1 << 4;
    pub const TRIGGER: u32 = 1 << 5;
    pub const DATA: u32 = Self::DATA_NONE | Self::DATA_BOOL | Self::DATA_EVENTFD;
    pub const ACTION: u32 = Self::MASK | Self::UNMASK | Self::TRIGGER;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Length of the whole message, bytes.
    pub size: u32,
    pub flags: u32,
    pub error: u32,
}

impl Header {
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Header {
        let mut fields = Fields(bytes);
        let mut word = || fields.u32().unwrap_or(0);
        let first = word();
        Header { id: first as u16, command: (first >> 16) as u16, size: word(), flags: word(), error: word() }
    }

    /// As it came.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Bytes::with_capacity(HEADER_BYTES);
        bytes.u16(self.id).u16(self.command).u32(self.size).u32(self.flags).u32(self.error);
        bytes.0
    }

    /// Bytes behind the header. None: no message has that size, and where the next one begins isn't known.
    pub fn body_bytes(&self) -> Option<usize> {
        let size = (HEADER_BYTES as u32..=MESSAGE_BYTES_MAX).contains(&self.size).then_some(self.size)?;
        Some(size as usize - HEADER_BYTES)
    }

    pub(crate) fn is_command(&self) -> bool {
        self.flags & flags::TYPE == 0
    }

    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & flags::NO_REPLY == 0
    }

    /// The answer to this command: its header, and the payload behind it.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        self.answer(flags::REPLY, 0, payload)
    }

    pub fn refuse(&self, errno: i32) -> Vec<u8> {
        self.answer(flags::REPLY | flags::ERROR, errno as u32, &[])
    }

    fn answer(&self, flags: u32, error: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Bytes::with_capacity(HEADER_BYTES + payload.len());
        bytes.u16(self.id).u16(self.command).u32((HEADER_BYTES + payload.len()) as u32).u32(flags).u32(error);
        bytes.extend(payload);
        bytes.0
    }
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Version { major: u16, minor: u16, data: &'a [u8] },
    DmaMap { flags: u32, offset: u64, address: u64, bytes: u64 },
    DmaUnmap { flags: u32, address: u64, bytes: u64 },
    DeviceInfo,
    RegionInfo { argsz: u32, index: u32 },
    RegionIoFds { argsz: u32, index: u32 },
    IrqInfo { index: u32 },
    SetIrqs { flags: u32, index: u32, start: u32, count: u32, data: &'a [u8] },
    RegionRead(Access),
    RegionWrite(Access, &'a [u8]),
    Reset,
    WriteMulti(Vec<(Access, [u8; 8])>),
}

/// A range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub region: u32,
    pub offset: u64,
    pub count: u32,
}

/// Flags of DMA_MAP.
pub(crate) const DMA_READABLE: u32 = 1;
pub(crate) const DMA_WRITABLE: u32 = 2;
/// Flag of DMA_UNMAP: everything there is (VFIO_DMA_UNMAP_FLAG_ALL).
pub(crate) const DMA_UNMAP_ALL: u32 = 2;

impl<'a> Request<'a> {
    /// Err: the errno of the refusal. The stream stays in step: the whole message was read before.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Request<'a>, i32> {
        let mut f = Fields(body);
        let request = match header.command {
            1 => Request::Version { major: f.u16()?, minor: f.u16()?, data: f.rest() },
            2 => {
                f.argsz(32)?;
                let flags = f.u32()?;
                Request::DmaMap { flags, offset: f.u64()?, address: f.u64()?, bytes: f.u64()? }
            }
            3 => {
                f.argsz(24)?;
                Request::DmaUnmap { flags: f.u32()?, address: f.u64()?, bytes: f.u64()? }
            }
            4 => {
                f.argsz(16)?;
                Request::DeviceInfo
            }
            5 => {
                let argsz = f.argsz(32)?;
                let _flags = f.u32()?;
                Request::RegionInfo { argsz, index: f.u32()? }
            }
            6 => {
                let argsz = f.argsz(16)?;
                let _flags = f.u32()?;
                Request::RegionIoFds { argsz, index: f.u32()? }
            }
            7 => {
                f.argsz(16)?;
                let _flags = f.u32()?;
                Request::IrqInfo { index: f.u32()? }
            }
            8 => {
                f.argsz(20)?;
                let (flags, index, start, count) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                Request::SetIrqs { flags, index, start, count, data: f.rest() }
            }
            9 => Request::RegionRead(f.access()?),
            10 => {
                let access = f.access()?;
                let data = f.rest();
                // Exactly what it says: more would be a client that counts otherwise.
                if data.len() != access.count as usize {
                    return Err(libc::EINVAL);
                }
                Request::RegionWrite(access, data)
            }
            13 => Request::Reset,
            15 => Request::WriteMulti(f.writes()?),
            _ => return Err(libc::ENOTSUP),
        };
        Ok(request)
    }
}

/// Takes numbers off the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], i32> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(libc::EINVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, i32> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, i32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, i32> {
        self.take().map(u64::from_ne_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The size of the structure, or of the answer that the client has room for: at least what is fixed.
    fn argsz(&mut self, least: u32) -> Result<u32, i32> {
        self.u32().and_then(|argsz| if argsz < least { Err(libc::EINVAL) } else { Ok(argsz) })
    }

    fn access(&mut self) -> Result<Access, i32> {
        let (offset, region, count) = (self.u64()?, self.u32()?, self.u32()?);
        if count > TRANSFER_BYTES_MAX || offset.checked_add(count.into()).is_none() {
            return Err(libc::EINVAL);
        }
        Ok(Access { region, offset, count })
    }

    fn writes(&mut self) -> Result<Vec<(Access, [u8; 8])>, i32> {
        let count = self.u64()?;
        // Each takes 24 bytes of the message, so there are no more than came.
        if count != (self.0.len() / 24) as u64 {
            return Err(libc::EINVAL);
        }
        let mut all = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let access = self.access()?;
            if access.count > 8 {
                return Err(libc::EINVAL);
            }
            all.push((access, self.take()?));
        }
        Ok(all)
    }
}

/// Puts numbers behind each other.
#[derive(Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn with_capacity(bytes: usize) -> Bytes {
        Bytes(Vec::with_capacity(bytes))
    }

    pub fn extend(&mut self, bytes: &[u8]) -> &mut Bytes {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u16(&mut self, n: u16) -> &mut Bytes {
        self.extend(&n.to_ne_bytes())
    }

    pub fn u32(&mut self, n: u32) -> &mut Bytes {
        self.extend(&n.to_ne_bytes())
    }

    pub fn u64(&mut self, n: u64) -> &mut Bytes {
        self.extend(&n.to_ne_bytes())
    }
}

/// VERSION's answer: the minor version that both have, and what we can.
pub(crate) fn version(minor: u16) -> Vec<u8> {
    let capabilities = serde_json::json!({ "capabilities": {
        "max_msg_fds": DESCRIPTORS_MAX,
        "max_data_xfer_size": TRANSFER_BYTES_MAX,
        "max_dma_maps": crate::gateway::dma::MAPPINGS_MAX,
        "pgsizes": crate::gateway::dma::PAGE,
        "write_multiple": true,
    }});
    let mut bytes = Bytes::default();
    bytes.u16(0).u16(minor.min(1)).extend(capabilities.to_string().as_bytes()).extend(&[0]);
    bytes.0
}

/// Returns whether the version data are valid: nothing, or JSON in a string of C.
pub fn is_version_data(data: &[u8]) -> bool {
    let Some((0, text)) = data.split_last() else { return data.is_empty() };
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}

/// DEVICE_GET_INFO's answer: a PCI function that can be reset.
pub(crate) fn device_info() -> Vec<u8> {
    const RESET: u32 = 1;
    const PCI: u32 = 2;
    let mut bytes = Bytes::default();
    bytes.u32(16).u32(RESET | PCI).u32(Region::COUNT).u32(Irq::COUNT);
    bytes.0
}

/// A region as DEVICE_GET_REGION_INFO describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    pub bytes: u64,
    /// A part that may be mapped: where in the region, how long. It lies at the same place of the descriptor's file.
    pub mapped: Option<(u64, u64)>,
}

impl RegionInfo {
    /// For a client with room for `argsz` bytes; and whether the descriptor goes with it. A client with less room learns
    /// how much it takes, and of no capabilities: QEMU refuses an answer that has the flag and not where they lie.
    pub(crate) fn answer(&self, index: u32, argsz: u32) -> (Vec<u8>, bool) {
        const FIXED: u32 = 32;
        const READ_WRITE: u32 = 0b11;
        const MMAP: u32 = 1 << 2;
        const CAPS: u32 = 1 << 3;
        const SPARSE_MMAP: u16 = 1;
        let needed = FIXED + if self.mapped.is_some() { 32 } else { 0 };
        let shown = self.mapped.filter(|_| argsz >= needed);
        let access = if self.bytes > 0 { READ_WRITE } else { 0 };
        let extra = if self.mapped.is_some() { MMAP } else { 0 } | if shown.is_some() { CAPS } else { 0 };
        let mut bytes = Bytes::default();
        bytes.u32(needed).u32(access | extra).u32(index).u32(if shown.is_some() { FIXED } else { 0 });
        bytes.u64(self.bytes).u64(0);
        if let Some((offset, len)) = shown {
            bytes.u16(SPARSE_MMAP).u16(1).u32(0).u32(1).u32(0).u64(offset).u64(len);
        }
        (bytes.0, shown.is_some())
    }
}

/// DEVICE_GET_REGION_IO_FDS's answer: an eventfd for each doorbell, by its place among the descriptors. Where the
/// client has room for less, only how much it needs.
pub(crate) fn io_fds(index: u32, argsz: u32, doorbells: &[(u64, u32)]) -> Vec<u8> {
    const EACH: usize = 40;
    let needed = 16 + EACH * doorbells.len();
    let shown = if argsz as usize >= needed { doorbells } else { &[] };
    let mut bytes = Bytes::with_capacity(needed);
    bytes.u32(needed as u32).u32(0).u32(index).u32(shown.len() as u32);
    for (offset, descriptor) in shown {
        // Type 0 is an eventfd; no flags, no value to match.
        bytes.u64(*offset).u64(4).u32(*descriptor).u32(0).u32(0).u32(0).u64(0);
    }
    bytes.0
}

/// GET_IRQ_INFO's answer: `count` interrupts, signalled by eventfd.
pub(crate) fn irq_info(index: u32, count: u32) -> Vec<u8> {
    const EVENTFD: u32 = 1;
    let mut bytes = Bytes::default();
    bytes.u32(16).u32(EVENTFD).u32(index).u32(count);
    bytes.0
}

/// The head of the answer to an access: what was asked for, again.
pub fn access_answer(access: Access) -> Bytes {
    let mut bytes = Bytes::with_capacity(16 + access.count as usize);
    bytes.u64(access.offset).u32(access.region).u32(access.count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(command: u16) -> Header {
        Header { id: 7, command, size: 0, flags: 0, error: 0 }
    }

    #[test]
    fn a_header_says_how_long_its_message_is() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&[0x34, 0x12, 9, 0]);
        for (size, body) in [
            (16, Some(0)),
            (32, Some(16)),
            (15, None),
            (0, None),
            (u32::MAX, None),
            (MESSAGE_BYTES_MAX, Some(MESSAGE_BYTES_MAX as usize - 16)),
            (MESSAGE_BYTES_MAX + 1, None),
        ] {
            bytes[4..8].copy_from_slice(&u32::to_ne_bytes(size));
            let header = Header::parse(&bytes);
            assert_eq!((header.id, header.command, header.body_bytes()), (0x1234, 9, body));
        }
    }

    #[test]
    fn an_answer_repeats_the_identifier_and_an_error_has_no_payload() {
        let reply = command(9).reply(&[1, 2, 3]);
        assert_eq!((reply.len(), &reply[..2], reply[8], &reply[16..]), (19, &[7, 0][..], 1, &[1, 2, 3][..]));
        let refusal = command(2).refuse(libc::EEXIST);
        assert_eq!((refusal.len(), refusal[8], refusal[12]), (16, 0x21, 17));
    }

    #[test]
    fn a_write_has_as_much_data_as_it_says() {
        let mut body = access_answer(Access { region: 0, offset: 0x1000, count: 4 });
        body.u32(5);
        let access = Access { region: 0, offset: 0x1000, count: 4 };
        assert_eq!(Request::parse(&command(10), &body.0), Ok(Request::RegionWrite(access, &[5, 0, 0, 0])));
        for wrong in [19, 21] {
            body.0.resize(wrong, 0);
            assert_eq!(Request::parse(&command(10), &body.0), Err(libc::EINVAL));
        }
    }

    #[test]
    fn a_region_that_can_be_mapped_says_where_once_there_is_room() {
        let info = RegionInfo { bytes: 0x4000, mapped: Some((0x1000, 0x1000)) };
        let (short, with_descriptor) = info.answer(0, 32);
        assert!(!with_descriptor);
        assert_eq!((short.len(), short[0], short[4], short[12]), (32, 64, 0b0111, 0));
        let (long, with_descriptor) = info.answer(0, 64);
        assert!(with_descriptor);
        assert_eq!((long.len(), long[4], long[12], long[32], long[40]), (64, 0b1111, 32, 1, 1));
    }

    proptest! {
        /// Whatever comes is a request or a refusal, and takes no more memory than came.
        #[test]
        fn nothing_that_comes_is_more_than_a_refusal(
            number in 0u16..20,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            match Request::parse(&command(number), &body) {
                Ok(Request::RegionRead(access)) => prop_assert!(access.count <= TRANSFER_BYTES_MAX),
                Ok(Request::WriteMulti(all)) => prop_assert_eq!(all.len(), body.len() / 24),
                Ok(_) => {}
                Err(errno) => prop_assert!([libc::EINVAL, libc::ENOTSUP].contains(&errno)),
            }
        }
    }
}
