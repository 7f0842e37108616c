//! Decoders of `forebay-nvme`: structures, log pages, names, keys, I/O commands.

use crate::input::Input;
use forebay_nvme::auth::{psk::ConfiguredPsk, Secret};
use forebay_nvme::command::{io, Sgl, Sqe};
use forebay_nvme::discovery::{self, Reader};
use forebay_nvme::fabrics::{self, PropertyGet, PropertySet};
use forebay_nvme::feature::{AsyncEvent, GetFeatures, SetFeatures};
use forebay_nvme::identify::{self, Identify};
use forebay_nvme::log::{AnaLog, AnaState, ChangedNamespaces, GetLogPage};
use forebay_nvme::mdns;
use forebay_nvme::nqn::Nqn;
use forebay_nvme::nvm::{self, Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::text::Text;
use zerocopy::{FromBytes, IntoBytes};

/// Reads what a host reads of a controller: Identify, log pages, names. The first byte says which.
pub fn nvme_wire(data: &[u8]) {
    let Some((which, data)) = data.split_first() else { return };
    match which % 8 {
        0 => controller(data),
        1 => namespace(data),
        2 => descriptors(data),
        3 => ana(data),
        4 => names(data),
        5 => commands(data),
        6 => lists(data),
        _ => keys(data),
    }
}

fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let n = data.len().min(N);
    bytes[..n].copy_from_slice(&data[..n]);
    bytes
}

fn controller(data: &[u8]) {
    let bytes = padded(data);
    let controller = identify::Controller::from_bytes(&bytes);
    assert!(controller.transfer_bytes_max(4096).is_none_or(|bytes| bytes >= 8192));
    assert!(controller.in_capsule_bytes_max() == 0 || controller.icdoff.get() == 0);
    for text in [controller.sn.text(), controller.mn.text(), controller.fr.text()] {
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }
    for field in identify::Controller::FIELDS {
        assert!(field.offset + field.bytes <= 4096);
        field.number(data);
    }
}

fn namespace(data: &[u8]) {
    let bytes = padded(data);
    let namespace = identify::Namespace::from_bytes(&bytes);
    if let Some(block_bytes) = namespace.block_bytes() {
        assert!(block_bytes.is_power_of_two() && block_bytes >= 512);
    }
}

fn descriptors(data: &[u8]) {
    let found: Vec<_> = identify::parse_descriptors(data).collect();
    assert!(found.len() * 5 <= data.len());
    if found.len() <= 200 {
        let again = identify::descriptors(&found);
        assert!(identify::parse_descriptors(&again).eq(found));
    }
}

fn ana(data: &[u8]) {
    let Ok(log) = AnaLog::parse(data) else { return };
    assert!(log.groups.iter().map(|group| 32 + 4 * group.nsids.len()).sum::<usize>() + 16 <= data.len());
    assert_eq!(AnaLog::parse(&log.to_bytes(false)), Ok(log));
}

fn names(data: &[u8]) {
    let field = padded(data);
    let Ok(nqn) = Nqn::from_field(&field) else { return };
    assert!(nqn.as_str().len() <= 223 && !nqn.as_str().contains(char::is_control));
    assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
}

/// A command as it comes in says the same when it goes out again.
fn commands(data: &[u8]) {
    let sqe = Sqe::read_from_bytes(&padded::<64>(data)).expect("64 bytes are a command");
    let identify = Identify::parse(&sqe);
    assert_eq!(Identify::parse(&identify.to_sqe()), identify);
    let log = GetLogPage::parse(&sqe);
    assert_eq!(GetLogPage::parse(&log.to_sqe()), log);
    if let Some(part) = log.part(data) {
        assert!(part.len() as u64 <= log.bytes);
    }
    let set = SetFeatures::parse(&sqe);
    assert_eq!(SetFeatures::parse(&set.to_sqe()), set);
    let get = GetFeatures::parse(&sqe);
    assert!(get.select.is_none() || GetFeatures::parse(&get.to_sqe()) == get);
    for property in
        [PropertyGet::from_sqe(&sqe).property(), PropertySet::from_sqe(&sqe).property()].into_iter().flatten()
    {
        assert_eq!(PropertyGet::new(property).property(), Some(property));
    }
    fabrics::command_type(&sqe);
    let event = AsyncEvent::from_result(sqe.mptr.get());
    assert_eq!(AsyncEvent::from_result(event.to_result()), event);
    let status = Status::from_bits(sqe.cid.get());
    assert_eq!(Status::from_bits(status.to_bits()), status);
}

fn lists(data: &[u8]) {
    let bytes: [u8; 4096] = padded(data);
    let list = identify::NamespaceList::read(&bytes).expect("4096 bytes");
    assert!(list.iter().all(|nsid| nsid != 0));
    let changed = ChangedNamespaces::read(&bytes).expect("4096 bytes");
    assert!(changed.changed().is_none_or(|nsids| nsids.count() <= 1024));
    let text = Text::<16>(padded(data)).text();
    assert_eq!(Text::<16>::new(&text).text(), text);
}

fn keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(secret) = Secret::parse(text) {
        let again = Secret::parse(&secret.to_text()).expect("what we print, we read");
        assert_eq!(*again.to_text(), *secret.to_text());
    }
    if let Ok(psk) = ConfiguredPsk::parse(text) {
        let again = ConfiguredPsk::parse(&psk.to_text()).expect("what we print, we read");
        assert_eq!(*again.to_text(), *psk.to_text());
    }
}

/// Messages of a network, cut out of the input, to who looks for services and to who answers: what is answered can be read,
/// and says nothing new the second time.
pub fn nvme_mdns(data: &[u8]) {
    let mut input = Input::new(data);
    let service = mdns::Service::new("host", [192, 0, 2, 1].into(), 4420);
    let mut finder = mdns::Finder::default();
    for _ in 0..16 {
        let (port, length) = (input.u16(), input.u16());
        let message = input.bytes(usize::from(length));
        finder.take(message);
        let found = finder.found();
        finder.take(message);
        assert_eq!(finder.found().len(), found.len(), "the same message again");
        if let Some(answer) = service.answer(message, port) {
            assert!(answer.bytes.len() <= mdns::MESSAGE_BYTES_MAX, "{} bytes", answer.bytes.len());
            let mut one = mdns::Finder::default();
            one.take(&answer.bytes);
            assert!(one.found().len() <= 1);
        }
    }
}

/// A discovery log as a hostile service tells it: pieces of the input, of the length that was asked for or less.
pub fn nvme_discovery(data: &[u8]) {
    let mut input = Input::new(data);
    let mut reader = Reader::new(input.u32());
    let mut turns = 0;
    while let Some(get) = reader.next_command() {
        turns += 1;
        assert!(get.offset % 1024 == 0 && (1024..=64 << 10).contains(&get.bytes), "{get:?}");
        assert!(turns <= 10 * (discovery::ENTRIES_MAX + 2), "a log that never ends");
        let mut page = match input.u8() % 8 {
            0 => input.bytes(1024).to_vec(),
            _ => {
                let mut page = vec![0; get.bytes as usize];
                let piece = input.u16();
                let piece = input.bytes(usize::from(piece));
                let n = piece.len().min(page.len());
                page[..n].copy_from_slice(&piece[..n]);
                page
            }
        };
        if get.offset == 0 && page.len() >= 18 {
            let count = input.near(&[0, 1, 2, 9, 64]);
            page[8..16].copy_from_slice(&u64::from(count).to_le_bytes());
            page[16..18].copy_from_slice(&u16::from(input.u8() == 7).to_le_bytes());
        }
        if reader.take(&page).is_err() {
            return;
        }
    }
    let log = reader.into_log();
    assert!(log.endpoints.len() + log.malformed.len() <= discovery::ENTRIES_MAX as usize);
    let again = discovery::log(log.generation, &log.endpoints);
    assert_eq!(again.len(), 1024 * (log.endpoints.len() + 1));
}

const OPCODES: [u8; 7] =
    [io::READ, io::WRITE, io::FLUSH, io::COMPARE, io::VERIFY, io::WRITE_ZEROES, io::DATASET_MANAGEMENT];
const ANA: [AnaState; 4] =
    [AnaState::Optimized, AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible];

/// An I/O command against a namespace of any size: what passes lies within it, by arithmetic that can't overflow.
pub fn nvme_command(data: &[u8]) {
    let mut input = Input::new(data);
    let geometry = Geometry {
        block_bytes: 512 << (input.u8() % 8),
        blocks: match input.u8() % 3 {
            0 => u64::from(input.u16()),
            1 => u64::MAX - u64::from(input.u8()),
            _ => input.u64(),
        },
        read_only: input.u8() % 8 == 0,
        transfer_bytes_max: [None, Some(128 << 10), Some(1 << 20)][usize::from(input.u8() % 3)],
        ana: input.pick(&ANA),
    };
    let (sqe, in_capsule) = io_command(&mut input, &geometry);
    let Ok(request) = Request::parse(&sqe, Some(&geometry), in_capsule) else { return };
    assert!(!geometry.read_only || !request.op.changes());
    let capacity = u128::from(geometry.blocks) * u128::from(geometry.block_bytes);
    assert!(u128::from(request.offset) + u128::from(request.bytes) <= capacity);
    match request.op {
        Op::Read | Op::Write | Op::Compare => {
            assert_eq!(u64::from(request.transfer.bytes()), request.bytes);
            assert!(geometry.transfer_bytes_max.is_none_or(|max| request.bytes <= u64::from(max)));
        }
        Op::DatasetManagement { ranges, .. } => {
            assert!(request.transfer.bytes() <= 4096 && request.transfer.bytes() >= u32::from(ranges) * 16);
            dataset_ranges(input.rest(), ranges, &geometry, capacity);
        }
        Op::Flush | Op::Verify | Op::WriteZeroes { .. } => assert_eq!(request.transfer, Transfer::None),
    }
}

fn dataset_ranges(data: &[u8], ranges: u16, geometry: &Geometry, capacity: u128) {
    match nvm::ranges(data, ranges, geometry) {
        Ok(found) => found.for_each(|(offset, bytes)| {
            assert!(bytes > 0 && u128::from(offset) + u128::from(bytes) <= capacity);
        }),
        Err(status) => {
            assert!([Code::LBA_OUT_OF_RANGE, Code::DATA_SGL_LENGTH_INVALID].contains(&status.code));
        }
    }
}

/// A command near the truth, and the bytes that come with it.
fn io_command(input: &mut Input<'_>, geometry: &Geometry) -> (Sqe, u32) {
    let opcode = if input.u8() < 240 { input.pick(&OPCODES) } else { input.u8() };
    let slba = match input.u8() % 4 {
        0 => input.u64(),
        1 => geometry.blocks.wrapping_sub(u64::from(input.u8())),
        _ => u64::from(input.u16()),
    };
    let cdw12 = input.near(&[0, 1, 7, 31, 255, 0xffff, 1 << 30, 1 << 25 | 3, 0x4000_0007]);
    let data_bytes = ((cdw12 & 0xffff) + 1).wrapping_mul(geometry.block_bytes);
    let length = input.near(&[data_bytes, data_bytes, 4096, 16, 0, data_bytes.wrapping_add(1)]);
    let kind = input.near(&[Sgl::TRANSPORT.into(), Sgl::IN_CAPSULE.into(), 0]) as u8;
    let in_capsule = input.near(&[0, length, length, 8192]);
    let address = if input.u8() == 9 { input.u64() } else { 0 };
    let flags = input.near(&[0x40, 0x40, 0x80, 0]) as u8;
    let cdw11 = if opcode == io::DATASET_MANAGEMENT { input.near(&[4, 0]) } else { (slba >> 32) as u32 };
    let sqe = Sqe {
        opcode,
        flags,
        nsid: 1.into(),
        sgl: Sgl { address: address.into(), length: length.into(), kind, ..Sgl::default() },
        cdw10: (slba as u32).into(),
        cdw11: cdw11.into(),
        cdw12: cdw12.into(),
        ..Sqe::default()
    };
    assert_eq!(sqe.as_bytes().len(), 64);
    (sqe, in_capsule)
}
