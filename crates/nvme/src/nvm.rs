//! The NVM Command Set (nvm, section 3): I/O commands, checked against their namespace on the target, and built on the
//! host.
//!
//! `Request::parse` checks in this order, and answers the first that fails: opcode, flags, namespace, its ANA state,
//! write protection, range, transfer size, SGL. What passes needs no check later: every byte is within the namespace.

use crate::command::{io, Sgl, Sqe};
use crate::controller::subsystem;
use crate::layout::layout;
use crate::log::AnaState;
use crate::status::{Code, Status};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Geometry that a command is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A power of two, 512 at least.
    pub block_bytes: u32,
    pub blocks: u64,
    pub read_only: bool,
    /// Longest transfer, bytes (MDTS). None: no limit.
    pub transfer_bytes_max: Option<u32>,
    pub ana: AnaState,
}

impl Geometry {
    pub fn new(namespace: &subsystem::Namespace, ana: AnaState, transfer_bytes_max: Option<u32>) -> Geometry {
        Geometry {
            block_bytes: namespace.block_bytes,
            blocks: namespace.blocks,
            read_only: namespace.read_only,
            transfer_bytes_max,
            ana,
        }
    }

    /// Returns the bytes of `blocks` from `slba` on: (offset, length). They may be none.
    pub fn range(&self, slba: u64, blocks: u64) -> Result<(u64, u64), Status> {
        let out = Status::fatal(Code::LBA_OUT_OF_RANGE);
        let end = slba.checked_add(blocks).filter(|end| *end <= self.blocks).ok_or(out)?;
        let block_bytes = u64::from(self.block_bytes);
        end.checked_mul(block_bytes).ok_or(out)?;
        Ok((slba * block_bytes, blocks * block_bytes))
    }

    /// Base, section 8.1.3: what commands get while the path has lost its access.
    fn reachable(&self) -> Result<(), Status> {
        match self.ana {
            AnaState::Optimized | AnaState::NonOptimized => Ok(()),
            AnaState::Inaccessible => Err(Status::again(Code::ANA_INACCESSIBLE)),
            AnaState::PersistentLoss => Err(Status::again(Code::ANA_PERSISTENT_LOSS)),
            AnaState::Change => Err(Status::again(Code::ANA_TRANSITION)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Read,
    Write,
    /// Compare the namespace with what comes.
    Compare,
    /// Read, and tell only whether it went well.
    Verify,
    /// `deallocate`: DEAC, the blocks may be deallocated, as long as they read as zeros.
    WriteZeroes {
        deallocate: bool,
    },
    Flush,
    /// Dataset Management; `ranges` of them come as data. Without `deallocate` they are hints.
    DatasetManagement {
        ranges: u16,
        deallocate: bool,
    },
}

/// Bytes that travel with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    None,
    ToHost(u32),
    /// Has come with the command.
    InCapsule(u32),
    /// Is to be asked for.
    FromHost(u32),
}

impl Transfer {
    pub fn bytes(self) -> u32 {
        match self {
            Transfer::None => 0,
            Transfer::ToHost(bytes) | Transfer::InCapsule(bytes) | Transfer::FromHost(bytes) => bytes,
        }
    }
}

/// An I/O command that may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    /// Offset in the namespace on which it acts, bytes. Flush and Dataset Management: 0.
    pub offset: u64,
    pub bytes: u64,
    /// Complete only once it is durable (FUA). Reads: what is read must be durable.
    pub fua: bool,
    pub transfer: Transfer,
}

/// Flags of a command (base, figure 87): FUSE.
const FUSE: u8 = 0b11;
/// PSDT, bits 7:6: 00b is PRPs, which fabrics don't have, and 11b is reserved.
fn has_sgl(flags: u8) -> bool {
    matches!(flags >> 6, 0b01 | 0b10)
}

/// CDW12 of Read, Write and their like (nvm, sections 3.2.1 to 3.2.8).
mod cdw12 {
    pub const FUA: u32 = 1 << 30;
    /// Write Zeroes: DEAC.
    pub const DEALLOCATE: u32 = 1 << 25;
}

/// CDW11 of Dataset Management (nvm, section 3.2.3): AD, Attribute – Deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// Most ranges of a Dataset Management command.
pub const RANGES_MAX: usize = 256;

impl Request {
    /// `geometry`: of the namespace that the command names, None where there is none. `in_capsule`: bytes of data that
    /// came with the command. Err: complete it with that.
    pub fn parse(sqe: &Sqe, geometry: Option<&Geometry>, in_capsule: u32) -> Result<Request, Status> {
        Request::by(sqe, geometry, &Pointer::Capsule { in_capsule })
    }

    /// A command of a PCIe function's queue: its data are where its PRPs or its SGL say (`transport::pcie::data`), which
    /// nobody has looked at yet. `transfer` says how many bytes they must be.
    pub fn parse_pcie(sqe: &Sqe, geometry: Option<&Geometry>) -> Result<Request, Status> {
        Request::by(sqe, geometry, &Pointer::Memory)
    }

    fn by(sqe: &Sqe, geometry: Option<&Geometry>, pointer: &Pointer) -> Result<Request, Status> {
        let command = Command::from_opcode(sqe.opcode).ok_or(Status::fatal(Code::INVALID_OPCODE))?;
        if sqe.flags & FUSE != 0 || command.moves_data() && !pointer.fits(sqe.flags) {
            return Err(Status::fatal(Code::INVALID_FIELD));
        }
        let geometry = geometry.ok_or(Status::fatal(Code::INVALID_NAMESPACE))?;
        geometry.reachable()?;
        let op = command.op(sqe);
        if geometry.read_only && op.changes() {
            return Err(Status::fatal(Code::NAMESPACE_WRITE_PROTECTED));
        }
        let (offset, bytes) = match command {
            Command::Flush | Command::DatasetManagement => (0, 0),
            _ => geometry.range(slba(sqe), u64::from(sqe.cdw12.get() & 0xffff) + 1)?,
        };
        let transfer = match op {
            Op::Flush | Op::Verify | Op::WriteZeroes { .. } => Transfer::None,
            Op::DatasetManagement { ranges, .. } => pointer.ranges(&sqe.sgl, ranges)?,
            Op::Read | Op::Write | Op::Compare => {
                if geometry.transfer_bytes_max.is_some_and(|max| bytes > u64::from(max)) {
                    return Err(Status::fatal(Code::INVALID_FIELD));
                }
                pointer.data(&sqe.sgl, op == Op::Read, bytes)?
            }
        };
        let fua = sqe.cdw12.get() & cdw12::FUA != 0 && bytes > 0;
        Ok(Request { op, offset, bytes, fua, transfer })
    }
}

impl Op {
    /// Returns whether it may change what is stored.
    pub fn changes(self) -> bool {
        match self {
            Op::Write | Op::WriteZeroes { .. } => true,
            Op::DatasetManagement { deallocate, .. } => deallocate,
            Op::Read | Op::Compare | Op::Verify | Op::Flush => false,
        }
    }

    /// Returns the length of its data where they list ranges, rather than being moved; 0 where they don't.
    pub fn list_bytes(self) -> usize {
        match self {
            Op::DatasetManagement { ranges, .. } => usize::from(ranges) * size_of::<Range>(),
            _ => 0,
        }
    }

    /// Returns the ranges that its data list, as of `ranges`.
    pub fn ranges<'a>(
        self,
        data: &'a [u8],
        geometry: &'a Geometry,
    ) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
        ranges(data, (self.list_bytes() / size_of::<Range>()) as u16, geometry)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Flush,
    Write,
    Read,
    Compare,
    WriteZeroes,
    DatasetManagement,
    Verify,
}

impl Command {
    fn from_opcode(opcode: u8) -> Option<Command> {
        Some(match opcode {
            io::FLUSH => Command::Flush,
            io::WRITE => Command::Write,
            io::READ => Command::Read,
            io::COMPARE => Command::Compare,
            io::WRITE_ZEROES => Command::WriteZeroes,
            io::DATASET_MANAGEMENT => Command::DatasetManagement,
            io::VERIFY => Command::Verify,
            _ => return None,
        })
    }

    fn moves_data(self) -> bool {
        !matches!(self, Command::Flush | Command::WriteZeroes | Command::Verify)
    }

    fn op(self, sqe: &Sqe) -> Op {
        match self {
            Command::Flush => Op::Flush,
            Command::Write => Op::Write,
            Command::Read => Op::Read,
            Command::Compare => Op::Compare,
            Command::Verify => Op::Verify,
            Command::WriteZeroes => Op::WriteZeroes { deallocate: sqe.cdw12.get() & cdw12::DEALLOCATE != 0 },
            Command::DatasetManagement => Op::DatasetManagement {
                ranges: (sqe.cdw10.get() & 0xff) as u16 + 1,
                deallocate: sqe.cdw11.get() & ATTRIBUTE_DEALLOCATE != 0,
            },
        }
    }
}

fn slba(sqe: &Sqe) -> u64 {
    u64::from(sqe.cdw10.get()) | u64::from(sqe.cdw11.get()) << 32
}

/// Returns the blocks that travel with a command, whose length isn't checked yet.
pub fn payload_blocks(sqe: &Sqe) -> u64 {
    match Command::from_opcode(sqe.opcode) {
        Some(Command::Read | Command::Write | Command::Compare) => u64::from(sqe.cdw12.get() & 0xffff) + 1,
        _ => 0,
    }
}

/// Target of a command's data pointer.
enum Pointer {
    /// Data of a capsule, of which so many bytes came along, or what the transport brings.
    Capsule { in_capsule: u32 },
    /// The host's memory.
    Memory,
}

impl Pointer {
    fn fits(&self, flags: u8) -> bool {
        match self {
            Pointer::Capsule { .. } => has_sgl(flags),
            Pointer::Memory => flags >> 6 != 0b11,
        }
    }

    fn data(&self, sgl: &Sgl, to_host: bool, bytes: u64) -> Result<Transfer, Status> {
        let length = u32::try_from(bytes).map_err(|_| Status::fatal(Code::INVALID_FIELD));
        match (self, to_host) {
            (Pointer::Capsule { in_capsule }, _) => data_transfer(sgl, to_host, bytes, *in_capsule),
            (Pointer::Memory, true) => length.map(Transfer::ToHost),
            (Pointer::Memory, false) => length.map(Transfer::FromHost),
        }
    }

    fn ranges(&self, sgl: &Sgl, ranges: u16) -> Result<Transfer, Status> {
        match self {
            Pointer::Capsule { in_capsule } => ranges_transfer(sgl, ranges, *in_capsule),
            Pointer::Memory => Ok(Transfer::FromHost(u32::from(ranges) * size_of::<Range>() as u32)),
        }
    }
}

/// Returns the transfer that the SGL describes (base, section 4.1.2; tcp, section 3.3.2): in the capsule, from its
/// data's first byte on, or as the transport brings them.
fn sgl_transfer(sgl: &Sgl, to_host: bool, in_capsule: u32) -> Result<Transfer, Status> {
    let length = sgl.length.get();
    match (sgl.kind, to_host) {
        (Sgl::TRANSPORT, true) => Ok(Transfer::ToHost(length)),
        (Sgl::TRANSPORT, false) if in_capsule == 0 => Ok(Transfer::FromHost(length)),
        (Sgl::TRANSPORT, false) => Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)),
        (Sgl::IN_CAPSULE, false) if sgl.address.get() != 0 => Err(Status::fatal(Code::SGL_OFFSET_INVALID)),
        (Sgl::IN_CAPSULE, false) if length == in_capsule => Ok(Transfer::InCapsule(length)),
        (Sgl::IN_CAPSULE, false) => Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)),
        _ => Err(Status::fatal(Code::SGL_TYPE_INVALID)),
    }
}

/// Exactly `bytes`: SGLS doesn't say that an SGL may be longer than its data.
fn data_transfer(sgl: &Sgl, to_host: bool, bytes: u64, in_capsule: u32) -> Result<Transfer, Status> {
    let transfer = sgl_transfer(sgl, to_host, in_capsule)?;
    if u64::from(transfer.bytes()) != bytes {
        return Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID));
    }
    Ok(transfer)
}

/// At least the ranges that there are, and at most as many as there may be: Linux always sends room for 256.
fn ranges_transfer(sgl: &Sgl, ranges: u16, in_capsule: u32) -> Result<Transfer, Status> {
    let transfer = sgl_transfer(sgl, false, in_capsule)?;
    let bytes = transfer.bytes() as usize;
    if bytes < usize::from(ranges) * size_of::<Range>() || bytes > RANGES_MAX * size_of::<Range>() {
        return Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID));
    }
    Ok(transfer)
}

layout! {
    /// Dataset Management – Range Definition (nvm, section 3.2.3).
    Range, 16 bytes {
        /// Context Attributes: hints.
        0 context: U32,
        /// Length in blocks; 0 is nothing.
        4 nlb: U32,
        /// Starting LBA.
        8 slba: U64,
    }
}

impl Range {
    pub fn new(slba: u64, blocks: u32) -> Range {
        Range { slba: slba.into(), nlb: blocks.into(), ..Range::default() }
    }
}

/// The ranges of a Dataset Management command, in bytes: (offset, length), empty ones left out. All of them are
/// checked before the first comes, so that a command does all of it or nothing.
pub fn ranges<'a>(
    data: &'a [u8],
    ranges: u16,
    geometry: &'a Geometry,
) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
    let (found, _) = <[Range]>::ref_from_prefix_with_elems(data, ranges.into())
        .map_err(|_| Status::fatal(Code::DATA_SGL_LENGTH_INVALID))?;
    let place = |range: &Range| geometry.range(range.slba.get(), range.nlb.get().into());
    found.iter().try_for_each(|range| place(range).map(|_| ()))?;
    Ok(found.iter().filter_map(move |range| place(range).ok()).filter(|(_, bytes)| *bytes > 0))
}

/// A command for `blocks` (1 to 65536) from `slba` on. The transport fills in the identifier and the SGL.
fn on_blocks(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> Sqe {
    debug_assert!((1..=1 << 16).contains(&blocks), "{blocks} blocks");
    Sqe {
        opcode,
        nsid: nsid.into(),
        cdw10: (slba as u32).into(),
        cdw11: ((slba >> 32) as u32).into(),
        cdw12: (blocks.wrapping_sub(1) & 0xffff).into(),
        ..Sqe::default()
    }
}

fn with_cdw12(sqe: Sqe, bit: u32, set: bool) -> Sqe {
    Sqe { cdw12: (sqe.cdw12.get() | if set { bit } else { 0 }).into(), ..sqe }
}

pub fn read(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    on_blocks(io::READ, nsid, slba, blocks)
}

pub fn write(nsid: u32, slba: u64, blocks: u32, fua: bool) -> Sqe {
    with_cdw12(on_blocks(io::WRITE, nsid, slba, blocks), cdw12::FUA, fua)
}

pub fn compare(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    on_blocks(io::COMPARE, nsid, slba, blocks)
}

pub fn verify(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    on_blocks(io::VERIFY, nsid, slba, blocks)
}

pub fn write_zeroes(nsid: u32, slba: u64, blocks: u32, deallocate: bool, fua: bool) -> Sqe {
    let sqe = with_cdw12(on_blocks(io::WRITE_ZEROES, nsid, slba, blocks), cdw12::DEALLOCATE, deallocate);
    with_cdw12(sqe, cdw12::FUA, fua)
}

pub fn flush(nsid: u32) -> Sqe {
    Sqe { opcode: io::FLUSH, nsid: nsid.into(), ..Sqe::default() }
}

/// Deallocates; its data are `range_bytes` of the same ranges, 1 to 256 of them.
pub fn deallocate(nsid: u32, ranges: &[Range]) -> Sqe {
    debug_assert!((1..=RANGES_MAX).contains(&ranges.len()), "{} ranges", ranges.len());
    Sqe {
        opcode: io::DATASET_MANAGEMENT,
        nsid: nsid.into(),
        cdw10: (ranges.len().wrapping_sub(1) as u32 & 0xff).into(),
        cdw11: ATTRIBUTE_DEALLOCATE.into(),
        ..Sqe::default()
    }
}

pub fn range_bytes(ranges: &[Range]) -> &[u8] {
    ranges.as_bytes()
}

#[cfg(test)]
mod tests;
