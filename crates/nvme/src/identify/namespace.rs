//! Identify data structures of namespaces, and namespace lists.

use super::{csi, BYTES};
use crate::layout::layout;
use zerocopy::little_endian::{U128, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// LBA Format (nvm, figure 98).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size, bytes.
    pub ms: U16,
    /// LBA Data Size, a power of two; below 9: not used.
    pub lbads: u8,
    /// Relative Performance, bits 1:0; 0 is best.
    pub rp: u8,
}
const _: () = assert!(size_of::<LbaFormat>() == 4);

layout! {
    /// Identify Namespace, NVM Command Set (CNS 00h; nvm, figure 97).
    Namespace, 4096 bytes {
        /// Namespace Size, blocks.
        0 nsze: U64,
        /// Namespace Capacity, blocks.
        8 ncap: U64,
        /// Namespace Utilization, blocks.
        16 nuse: U64,
        /// Namespace Features: `nsfeat`.
        24 nsfeat: u8,
        /// Number of LBA Formats, 0's based.
        25 nlbaf: u8,
        /// Formatted LBA Size: which format, bits 3:0 and 6:5; bit 4, metadata at the end of the data.
        26 flbas: u8,
        27 mc: u8,
        28 dpc: u8,
        29 dps: u8,
        /// Namespace Multi-path and Sharing: bit 0, shared.
        30 nmic: u8,
        31 rescap: u8,
        32 fpi: u8,
        /// Deallocate Logical Block Features: `dlfeat`.
        33 dlfeat: u8,
        34 nawun: U16,
        36 nawupf: U16,
        38 nacwu: U16,
        40 nabsn: U16,
        42 nabo: U16,
        44 nabspf: U16,
        /// Namespace Optimal I/O Boundary, blocks.
        46 noiob: U16,
        /// NVM Capacity, bytes.
        48 nvmcap: U128,
        /// Namespace Preferred Write Granularity, blocks, 0's based; as the three that follow.
        64 npwg: U16,
        66 npwa: U16,
        68 npdg: U16,
        70 npda: U16,
        72 nows: U16,
        74 mssrl: U16,
        76 mcl: U32,
        80 msrc: u8,
        81 reserved_81: [u8; 11],
        /// ANA Group Identifier.
        92 anagrpid: U32,
        96 reserved_96: [u8; 3],
        /// Namespace Attributes: bit 0, write protected.
        99 nsattr: u8,
        100 nvmsetid: U16,
        102 endgid: U16,
        /// Namespace Globally Unique Identifier.
        104 nguid: [u8; 16],
        /// IEEE Extended Unique Identifier.
        120 eui64: [u8; 8],
        128 lbaf: [LbaFormat; 64],
        384 vs: [u8; 3712],
    }
}

/// Namespace Features.
pub mod nsfeat {
    pub const THIN: u8 = 1 << 0;
    /// NAWUN, NAWUPF and NACWU hold for this namespace.
    pub const ATOMICS: u8 = 1 << 1;
    /// Deallocated or unwritten blocks fail to be read.
    pub const DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NGUID and EUI64 are never used again.
    pub const IDS_NEVER_REUSED: u8 = 1 << 3;
    /// NPWG, NPWA, NPDG, NPDA and NOWS are given.
    pub const OPTIMAL_SIZES: u8 = 1 << 4;
}

/// Deallocate Logical Block Features.
pub mod dlfeat {
    /// Bits 2:0: what a deallocated block reads as.
    pub const READS_ZEROES: u8 = 0b001;
    pub const READS_FFS: u8 = 0b010;
    /// Write Zeroes heeds its Deallocate bit (DEAC).
    pub const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
}

/// Namespace Attributes: currently write protected.
pub const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;
/// Namespace Multi-path and Sharing: may be attached to several controllers.
pub const NMIC_SHARED: u8 = 1 << 0;

impl Namespace {
    pub fn from_bytes(bytes: &[u8; BYTES]) -> &Namespace {
        zerocopy::transmute_ref!(bytes)
    }

    /// The format in use. None: FLBAS names one that isn't there.
    pub fn format(&self) -> Option<LbaFormat> {
        let high = if self.nlbaf >= 16 { self.flbas >> 5 & 0b11 } else { 0 };
        let index = self.flbas & 0xf | high << 4;
        (index <= self.nlbaf).then(|| self.lbaf.get(usize::from(index)).copied()).flatten()
    }

    /// Bytes of a block's data. None: no format, or a size that no namespace has (below 512 B, above 2 GiB).
    pub fn block_bytes(&self) -> Option<u32> {
        let format = self.format()?;
        (9..=31).contains(&format.lbads).then(|| 1 << format.lbads)
    }

    /// Nothing is attached under the NSID that was asked for (nvm, section 4.1.5.1: all fields are 0).
    pub fn is_inactive(&self) -> bool {
        self.nsze.get() == 0 && self.ncap.get() == 0
    }

    /// One format of `block_bytes` (a power of two, 512 or more) without metadata; `blocks` of them.
    pub fn new(block_bytes: u32, blocks: u64) -> Namespace {
        let mut namespace = Namespace {
            nsze: blocks.into(),
            ncap: blocks.into(),
            nuse: blocks.into(),
            nvmcap: (u128::from(blocks) * u128::from(block_bytes)).into(),
            ..Namespace::default()
        };
        namespace.lbaf[0].lbads = block_bytes.trailing_zeros() as u8;
        namespace
    }
}

layout! {
    /// I/O Command Set specific Identify Namespace, NVM Command Set (CNS 05h; nvm, section 4.1.5.2).
    NvmNamespace, 4096 bytes {
        /// Logical Block Storage Tag Mask.
        0 lbstm: U64,
        /// Protection Information Capabilities.
        8 pic: u8,
        9 reserved_9: [u8; 3],
        /// Extended LBA Formats.
        12 elbaf: [U32; 64],
        268 reserved_268: [u8; 3828],
    }
}

layout! {
    /// I/O Command Set specific Identify Controller, NVM Command Set (CNS 06h; nvm, section 4.1.5.4). Sizes are powers
    /// of two in units of CAP.MPSMIN; 0: no limit.
    NvmController, 4096 bytes {
        /// Verify Size Limit.
        0 vsl: u8,
        /// Write Zeroes Size Limit.
        1 wzsl: u8,
        /// Write Uncorrectable Size Limit.
        2 wusl: u8,
        /// Dataset Management Ranges Limit.
        3 dmrl: u8,
        /// Dataset Management Range Size Limit, blocks.
        4 dmrsl: U32,
        /// Dataset Management Size Limit, blocks.
        8 dmsl: U64,
        16 reserved_16: [u8; 4080],
    }
}

layout! {
    /// I/O Command Set Independent Identify Namespace (CNS 08h; base, figure 280).
    IndependentNamespace, 4096 bytes {
        0 nsfeat: u8,
        1 nmic: u8,
        2 rescap: u8,
        3 fpi: u8,
        4 anagrpid: U32,
        8 nsattr: u8,
        9 reserved_9: u8,
        10 nvmsetid: U16,
        12 endgid: U16,
        /// Namespace Status: bit 0, ready.
        14 nstat: u8,
        15 reserved_15: [u8; 4081],
    }
}

layout! {
    /// Active Namespace ID list (CNS 02h; base, section 5.17.2.2): ascending, zeros behind the last.
    NamespaceList, 4096 bytes {
        0 nsids: [U32; 1024],
    }
}

impl NamespaceList {
    /// The first 1024 above `after` of `nsids`, which ascend.
    pub fn new(after: u32, nsids: impl IntoIterator<Item = u32>) -> NamespaceList {
        let mut list = NamespaceList::default();
        for (place, nsid) in list.nsids.iter_mut().zip(nsids.into_iter().filter(|nsid| *nsid > after)) {
            *place = nsid.into();
        }
        list
    }

    /// Up to the first zero. A full list may go on: ask again above its last.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }

    pub fn is_full(&self) -> bool {
        self.nsids[1023].get() != 0
    }
}

layout! {
    /// Identify I/O Command Set data structure (CNS 1Ch; base, section 5.17.2.21, figures 289 and 290): combinations that may be enabled
    /// together, each a bit per CSI.
    CommandSets, 4096 bytes {
        0 vectors: [U64; 512],
    }
}

impl CommandSets {
    /// The NVM Command Set alone.
    pub fn nvm() -> CommandSets {
        let mut sets = CommandSets::default();
        sets.vectors[0] = (1 << csi::NVM).into();
        sets
    }
}

/// One entry of the Namespace Identification Descriptor list (CNS 03h; base, figure 277).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    Eui64([u8; 8]),
    Nguid([u8; 16]),
    Uuid([u8; 16]),
    /// Command set identifier.
    Csi(u8),
}

impl Descriptor {
    /// NIDT and the identifier.
    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Descriptor::Eui64(id) => (1, id),
            Descriptor::Nguid(id) => (2, id),
            Descriptor::Uuid(id) => (3, id),
            Descriptor::Csi(id) => (4, std::slice::from_ref(id)),
        }
    }

    fn new(nidt: u8, id: &[u8]) -> Option<Descriptor> {
        Some(match nidt {
            1 => Descriptor::Eui64(id.try_into().ok()?),
            2 => Descriptor::Nguid(id.try_into().ok()?),
            3 => Descriptor::Uuid(id.try_into().ok()?),
            4 => Descriptor::Csi(*id.first().filter(|_| id.len() == 1)?),
            _ => return None,
        })
    }
}

/// The list's bytes. Zeros end it. More than fit are left out (160 of the longest do).
pub fn descriptors(of: &[Descriptor]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut at = 0;
    for descriptor in of {
        let (nidt, id) = descriptor.parts();
        let Some(place) = bytes.get_mut(at..at + 4 + id.len()) else { break };
        place[0] = nidt;
        place[1] = id.len() as u8;
        place[4..].copy_from_slice(id);
        at += 4 + id.len();
    }
    bytes
}

/// The descriptors that are known and of their right length; others are passed over. A length of 0, or one that
/// runs past the end, ends the list.
pub fn parse_descriptors(bytes: &[u8]) -> impl Iterator<Item = Descriptor> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || loop {
        let (&[nidt, nidl, _, _], tail) = rest.split_first_chunk::<4>()?;
        if nidl == 0 || usize::from(nidl) > tail.len() {
            rest = &[];
            return None;
        }
        let (id, tail) = tail.split_at(nidl.into());
        rest = tail;
        if let Some(descriptor) = Descriptor::new(nidt, id) {
            return Some(descriptor);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_blocks_it_was_made_of() {
        let namespace = Namespace::new(4096, 1000);
        assert_eq!((namespace.block_bytes(), namespace.nvmcap.get()), (Some(4096), 4_096_000));
        let mut odd = namespace;
        odd.flbas = 1;
        assert_eq!(odd.block_bytes(), None, "a format that isn't there");
        odd = namespace;
        odd.lbaf[0].lbads = 32;
        assert_eq!(odd.block_bytes(), None);
        odd = namespace;
        (odd.nlbaf, odd.flbas) = (63, 0x6f);
        odd.lbaf[63].lbads = 9;
        assert_eq!(odd.block_bytes(), Some(512), "formats above 16 take bits 6:5");
    }

    #[test]
    fn lists_of_namespaces_go_on_where_the_last_ended() {
        let list = NamespaceList::new(0, 1..=1500);
        assert!(list.is_full());
        assert_eq!(list.iter().last(), Some(1024));
        let rest: Vec<u32> = NamespaceList::new(1024, 1..=1500).iter().collect();
        assert_eq!((rest.len(), rest[0], rest[475]), (476, 1025, 1500));
    }

    #[test]
    fn descriptors_survive_a_round_trip_and_strange_ones_are_passed_over() {
        let all = [
            Descriptor::Eui64([1; 8]),
            Descriptor::Nguid([2; 16]),
            Descriptor::Uuid([3; 16]),
            Descriptor::Csi(0),
        ];
        let mut bytes = descriptors(&all);
        assert_eq!(parse_descriptors(&bytes).collect::<Vec<_>>(), all);
        bytes[0] = 9;
        assert_eq!(parse_descriptors(&bytes).collect::<Vec<_>>(), all[1..]);
        bytes[1] = 7;
        assert!(parse_descriptors(&bytes).count() <= 3, "a wrong length is no panic");
        assert_eq!(parse_descriptors(&[3, 16, 0]).count(), 0);
        assert_eq!(parse_descriptors(&[3, 16, 0, 0, 1]).count(), 0);
    }
}
