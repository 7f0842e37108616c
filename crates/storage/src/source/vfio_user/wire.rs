//! Messages of vfio-user as bytes, in the machine's own order of bytes, as both
//! ends are on one machine. Numbers are those of the vfio-user specification
//! (libvfio-user, docs/vfio-user.rst) and of linux/vfio.h.

use rustix::fd::OwnedFd;
use std::sync::Arc;

pub(crate) const HEADER_BYTES: usize = 16;

/// Flags of a header: the type in bits 3:0 (0 a request, 1 an answer), then these.
const TYPE: u32 = 0xf;
const ANSWER: u32 = 1;
const NO_ANSWER: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Regions and interrupts of a PCI device (linux/vfio.h).
pub(crate) const REGION_BAR0: u32 = 0;
pub(crate) const REGION_CONFIG: u32 = 7;
pub(crate) const IRQ_MSIX: u32 = 2;
pub(crate) const IRQ_DATA_EVENTFD: u32 = 1 << 2;
pub(crate) const IRQ_ACTION_TRIGGER: u32 = 1 << 5;
const DEVICE_PCI: u32 = 1 << 1;
/// DMA_MAP: the device may read and write.
const DMA_READ_WRITE: u32 = 0b11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    RegionInfo = 5,
    RegionIoFds = 6,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
}

impl Command {
    /// As the specification calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Command::Version => "VFIO_USER_VERSION",
            Command::DmaMap => "VFIO_USER_DMA_MAP",
            Command::DmaUnmap => "VFIO_USER_DMA_UNMAP",
            Command::DeviceInfo => "VFIO_USER_DEVICE_GET_INFO",
            Command::RegionInfo => "VFIO_USER_DEVICE_GET_REGION_INFO",
            Command::RegionIoFds => "VFIO_USER_DEVICE_GET_REGION_IO_FDS",
            Command::IrqInfo => "VFIO_USER_DEVICE_GET_IRQ_INFO",
            Command::SetIrqs => "VFIO_USER_DEVICE_SET_IRQS",
            Command::RegionRead => "VFIO_USER_REGION_READ",
            Command::RegionWrite => "VFIO_USER_REGION_WRITE",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub id: u16,
    pub command: u16,
    /// Length of the whole message.
    pub bytes: u32,
    pub flags: u32,
    pub errno: u32,
}

impl Header {
    pub(crate) fn request(id: u16, command: Command, body_bytes: usize) -> Header {
        Header { id, command: command as u16, bytes: (HEADER_BYTES + body_bytes) as u32, flags: 0, errno: 0 }
    }

    /// The answer to this request that says no.
    pub(crate) fn refusal(&self, errno: i32) -> Header {
        Header { bytes: HEADER_BYTES as u32, flags: ANSWER | ERROR, errno: errno as u32, ..*self }
    }

    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Header {
        Header {
            id: u16::from_ne_bytes([bytes[0], bytes[1]]),
            command: u16::from_ne_bytes([bytes[2], bytes[3]]),
            bytes: word(bytes, 4).unwrap_or(0),
            flags: word(bytes, 8).unwrap_or(0),
            errno: word(bytes, 12).unwrap_or(0),
        }
    }

    /// The whole message.
    pub(crate) fn before(&self, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend(self.id.to_ne_bytes());
        message.extend(self.command.to_ne_bytes());
        message.extend(numbers(&[self.bytes, self.flags, self.errno]));
        message.extend_from_slice(body);
        message
    }

    /// Some servers mark an error, and not that it is an answer.
    pub(crate) fn is_answer(&self) -> bool {
        self.flags & TYPE == ANSWER || self.flags & ERROR != 0
    }

    pub(crate) fn wants_no_answer(&self) -> bool {
        self.flags & NO_ANSWER != 0
    }

    /// An error without a number is some error.
    pub(crate) fn error(&self) -> Option<i32> {
        (self.flags & ERROR != 0)
            .then(|| i32::try_from(self.errno).ok().filter(|e| *e > 0).unwrap_or(libc::EIO))
    }
}

pub(crate) fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Version 0.1 and what we take: a C string of JSON.
pub(crate) fn version() -> Vec<u8> {
    let mut body = [0u16, 1].iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>();
    body.extend_from_slice(br#"{"capabilities":{"max_msg_fds":64,"max_data_xfer_size":1048576}}"#);
    body.push(0);
    body
}

/// Returns the number of descriptors that the server takes with a message. Some servers leave out the outer object.
pub(crate) fn read_version(body: &[u8]) -> Result<usize, String> {
    let major =
        body.get(..2).map(|b| u16::from_ne_bytes([b[0], b[1]])).ok_or("a version that is too short")?;
    if major != 0 {
        return Err(format!("version {major}, where 0 was asked for"));
    }
    let text = body.get(4..).unwrap_or(&[]).split(|b| *b == 0).next().unwrap_or(&[]);
    if text.is_empty() {
        return Ok(1);
    }
    let all: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| format!("capabilities that aren't JSON: {e}"))?;
    let own = all.get("capabilities").unwrap_or(&all);
    Ok(own.get("max_msg_fds").and_then(serde_json::Value::as_u64).unwrap_or(1) as usize)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub is_pci: bool,
    pub regions: u32,
    pub irqs: u32,
}

impl DeviceInfo {
    pub(crate) fn read(body: &[u8]) -> Option<DeviceInfo> {
        Some(DeviceInfo {
            is_pci: word(body, 4)? & DEVICE_PCI != 0,
            regions: word(body, 8)?,
            irqs: word(body, 12)?,
        })
    }
}

/// A region; only its size matters to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub bytes: u64,
}

pub(crate) fn region_info(index: u32) -> Vec<u8> {
    let mut body = numbers(&[32, 0, index, 0]);
    body.resize(32, 0);
    body
}

impl Region {
    pub(crate) fn read(body: &[u8]) -> Option<Region> {
        Some(Region { bytes: long(body, 16)? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IrqInfo {
    /// Vectors.
    pub count: u32,
}

impl IrqInfo {
    pub(crate) fn read(body: &[u8]) -> Option<IrqInfo> {
        Some(IrqInfo { count: word(body, 12)? })
    }
}

pub(crate) fn dma_map(address: u64, bytes: u64) -> Vec<u8> {
    let mut body = numbers(&[32, DMA_READ_WRITE]);
    body.extend([0, address, bytes].iter().flat_map(|n: &u64| n.to_ne_bytes()));
    body
}

pub(crate) fn dma_unmap(address: u64, bytes: u64) -> Vec<u8> {
    let mut body = numbers(&[24, 0]);
    body.extend([address, bytes].iter().flat_map(|n| n.to_ne_bytes()));
    body
}

/// The head of REGION_READ and REGION_WRITE.
pub(crate) fn access(offset: u64, region: u32, count: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&offset.to_ne_bytes());
    head[8..12].copy_from_slice(&region.to_ne_bytes());
    head[12..].copy_from_slice(&count.to_ne_bytes());
    head
}

/// A whole REGION_WRITE of a doorbell that wants no answer; on the stack, as it is on the way of I/Os.
pub(crate) fn doorbell(id: u16, region: u32, offset: u64, value: u32) -> [u8; 36] {
    let mut message = [0; 36];
    message[..2].copy_from_slice(&id.to_ne_bytes());
    message[2..4].copy_from_slice(&(Command::RegionWrite as u16).to_ne_bytes());
    message[4..8].copy_from_slice(&36u32.to_ne_bytes());
    message[8..12].copy_from_slice(&NO_ANSWER.to_ne_bytes());
    message[16..32].copy_from_slice(&access(offset, region, 4));
    message[32..].copy_from_slice(&value.to_ne_bytes());
    message
}

/// A descriptor that rings a doorbell; several doorbells may share one.
#[derive(Debug)]
pub(crate) struct IoFd {
    /// Offset of the doorbell in its region.
    pub offset: u64,
    pub fd: Arc<OwnedFd>,
}

/// One sub-region of the answer to VFIO_USER_DEVICE_GET_REGION_IO_FDS: up to its datamatch. A server of another version
/// may say more behind it.
const IO_FD_BYTES_MIN: usize = 40;

/// `bytes`: of the longest answer that is taken.
pub(crate) fn io_fds(index: u32, bytes: u32) -> Vec<u8> {
    numbers(&[bytes, 0, index, 0])
}

/// An answer without its header.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Returns those that are plain eventfds of four bytes without a condition.
pub(crate) fn read_io_fds(answer: Answer) -> Result<Vec<IoFd>, String> {
    const PLAIN: u32 = 0;
    let Answer { body, fds } = answer;
    let fds: Vec<Arc<OwnedFd>> = fds.into_iter().map(Arc::new).collect();
    let mut found = Vec::new();
    let all = body.get(16..).unwrap_or(&[]);
    // The protocol has the client divide: servers differ.
    let each = word(&body, 12).filter(|n| *n > 0).map_or(0, |count| all.len() / count as usize);
    if each < IO_FD_BYTES_MIN {
        return Ok(found);
    }
    for part in all.chunks_exact(each) {
        let number = |at| word(part, at).unwrap_or(u32::MAX);
        if number(20) != PLAIN || number(24) != 0 || long(part, 8) != Some(4) {
            continue;
        }
        let at = number(16) as usize;
        let fd = fds.get(at).ok_or(format!("descriptor {at} of {} that came", fds.len()))?;
        found.push(IoFd { offset: long(part, 0).unwrap_or(0), fd: fd.clone() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One that isn't found is rung by a message, which costs both ends a wake-up of another thread.
    #[test]
    fn every_doorbell_that_a_server_has_an_eventfd_for_is_found_whatever_it_says_behind() {
        let doorbells: Vec<(u64, u32)> = (0..62).map(|n| (0x1008 + 4 * n, n as u32 / 2 % 3)).collect();
        // As libvfio-user lays it out: argsz, flags, index, count; then offset, size, descriptor, type, flags, padding, datamatch.
        let mut ours: Vec<u8> = [16 + 40 * 62, 0, 0, 62_u32].iter().flat_map(|n| n.to_le_bytes()).collect();
        for (offset, descriptor) in &doorbells {
            ours.extend([offset.to_le_bytes(), 4_u64.to_le_bytes()].concat());
            ours.extend([*descriptor, 0, 0, 0, 0, 0].iter().flat_map(|n| n.to_le_bytes()));
        }
        let longer = |bytes: usize| {
            let parts = ours[16..].chunks_exact(40).flat_map(|part| [part, &vec![0xee; bytes]].concat());
            [&ours[..16], &parts.collect::<Vec<u8>>()].concat()
        };
        for body in [ours.clone(), longer(8), longer(24)] {
            let eventfd = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            let found = read_io_fds(Answer { body, fds: (0..3).map(|_| eventfd()).collect() }).unwrap();
            assert_eq!(
                found.iter().map(|bell| bell.offset).collect::<Vec<_>>(),
                doorbells.iter().map(|d| d.0).collect::<Vec<_>>()
            );
            assert!(Arc::ptr_eq(&found[0].fd, &found[1].fd) && !Arc::ptr_eq(&found[1].fd, &found[2].fd));
        }
    }

    #[test]
    fn a_doorbell_is_a_write_that_wants_no_answer() {
        let message = doorbell(0x8001, 0, 0x1008, 7);
        let header = Header::read(message[..16].try_into().unwrap());
        assert_eq!((header.id, header.command, header.bytes), (0x8001, 10, 36));
        assert!(header.wants_no_answer() && !header.is_answer());
        assert_eq!(message[16..32], access(0x1008, 0, 4));
        assert_eq!(message[32..], 7u32.to_ne_bytes());
    }

    #[test]
    fn an_error_is_an_answer_with_or_without_its_number() {
        let asked = Header::request(3, Command::RegionRead, 8);
        let no = asked.refusal(libc::EINVAL);
        assert_eq!((no.is_answer(), no.error(), no.id), (true, Some(libc::EINVAL), 3));
        let bare = Header { flags: ERROR, errno: 0, ..asked };
        assert_eq!((bare.is_answer(), bare.error()), (true, Some(libc::EIO)));
    }

    #[test]
    fn versions_are_told_with_and_without_the_outer_object() {
        let say = |text: &str| [&[0, 0, 1, 0], text.as_bytes(), &[0]].concat();
        assert_eq!(read_version(&say(r#"{"capabilities":{"max_msg_fds":8}}"#)), Ok(8));
        assert_eq!(read_version(&say(r#"{"max_msg_fds":2}"#)), Ok(2));
        assert_eq!(read_version(&say("")), Ok(1));
        assert!(read_version(&say("{")).is_err());
        assert!(read_version(&[1, 0, 0, 0]).is_err());
        assert!(read_version(&[]).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_version(&body);
            let _ = DeviceInfo::read(&body);
            let _ = Region::read(&body);
            let _ = IrqInfo::read(&body);
            let _ = read_io_fds(Answer { body, fds: Vec::new() });
        }
    }
}
