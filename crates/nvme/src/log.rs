//! Get Log Page (base, section 5.16) and the pages, but for discovery's (`discovery`).

use crate::command::{admin, Sqe};
use crate::layout::layout;
use crate::text::Text;
use zerocopy::little_endian::{U128, U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Log Page Identifiers (base, figure 202).
pub mod lid {
    pub const SUPPORTED_LOG_PAGES: u8 = 0x00;
    pub const ERROR_INFORMATION: u8 = 0x01;
    pub const SMART: u8 = 0x02;
    pub const FIRMWARE_SLOT: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const COMMAND_EFFECTS: u8 = 0x05;
    pub const ANA: u8 = 0x0c;
    pub const DISCOVERY: u8 = 0x70;
}

/// Get Log Page command (base, section 5.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetLogPage {
    pub nsid: u32,
    pub lid: u8,
    /// Log Specific Field, 7 bits.
    pub lsp: u8,
    /// Retain Asynchronous Event.
    pub rae: bool,
    /// Bytes wanted: NUMD, converted from 0's based dwords.
    pub bytes: u64,
    /// From byte; a multiple of 4 (LPOL, LPOU).
    pub offset: u64,
    /// The offset counts entries (OT).
    pub offset_is_index: bool,
    pub csi: u8,
}

impl GetLogPage {
    /// `bytes` of the page from `offset`; both multiples of 4, `bytes` at least 4.
    pub fn new(lid: u8, offset: u64, bytes: u32) -> GetLogPage {
        GetLogPage { lid, offset, bytes: bytes.into(), ..GetLogPage::default() }
    }

    pub fn parse(sqe: &Sqe) -> GetLogPage {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        let dwords = u64::from(cdw10 >> 16 | (cdw11 & 0xffff) << 16) + 1;
        GetLogPage {
            nsid: sqe.nsid.get(),
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8 & 0x7f) as u8,
            rae: cdw10 & 1 << 15 != 0,
            bytes: dwords * 4,
            offset: u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32,
            offset_is_index: cdw14 & 1 << 23 != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// The SGL is the transport's to fill in.
    pub fn to_sqe(self) -> Sqe {
        let numd = (self.bytes / 4).saturating_sub(1) as u32;
        Sqe {
            opcode: admin::GET_LOG_PAGE,
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.lid)
                | u32::from(self.lsp & 0x7f) << 8
                | u32::from(self.rae) << 15
                | (numd & 0xffff) << 16)
                .into(),
            cdw11: (numd >> 16).into(),
            cdw12: (self.offset as u32).into(),
            cdw13: ((self.offset >> 32) as u32).into(),
            cdw14: (u32::from(self.offset_is_index) << 23 | u32::from(self.csi) << 24).into(),
            ..Sqe::default()
        }
    }

    /// The part of a page that was asked for: empty from the page's end on, and None from beyond it (Invalid Field;
    /// base, section 5.16). What is asked past the end reads as zero.
    pub fn part<'a>(&self, page: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.offset).ok().filter(|start| *start <= page.len())?;
        let end = usize::try_from(self.bytes)
            .map_or(page.len(), |bytes| page.len().min(start.saturating_add(bytes)));
        Some(&page[start..end])
    }
}

layout! {
    /// Supported Log Pages (LID 00h; base, section 5.16.1.1): bit 0 of a LID's dword, it is supported.
    SupportedLogPages, 1024 bytes {
        0 lids: [U32; 256],
    }
}

impl SupportedLogPages {
    pub fn new(lids: &[u8]) -> SupportedLogPages {
        let mut page = SupportedLogPages::default();
        for lid in lids {
            page.lids[usize::from(*lid)] = 1.into();
        }
        page
    }

    pub fn supports(&self, lid: u8) -> bool {
        self.lids[usize::from(lid)].get() & 1 != 0
    }
}

layout! {
    /// Error Information Log Entry (LID 01h; base, section 5.16.1.2, figure 206). The newest comes first; a count of 0 is no
    /// entry.
    ErrorEntry, 64 bytes {
        /// Error Count.
        0 ecnt: U64,
        8 sqid: U16,
        10 cid: U16,
        /// Status field, with the phase tag in bit 0.
        12 status: U16,
        /// Parameter Error Location: byte in bits 7:0, bit in bits 10:8.
        14 pel: U16,
        16 lba: U64,
        24 nsid: U32,
        28 vsia: u8,
        29 trtype: u8,
        30 reserved_30: [u8; 2],
        32 csinfo: U64,
        40 ttsi: U16,
        42 reserved_42: [u8; 22],
    }
}

layout! {
    /// SMART / Health Information (LID 02h; base, section 5.16.1.3, figure 207).
    Smart, 512 bytes {
        /// Critical Warning.
        0 cw: u8,
        /// Composite Temperature, kelvin.
        1 ctemp: U16,
        /// Available Spare, per cent.
        3 avsp: u8,
        /// Available Spare Threshold, per cent.
        4 avspt: u8,
        /// Percentage Used; may exceed 100.
        5 pused: u8,
        6 egcws: u8,
        7 reserved_7: [u8; 25],
        /// Data Units Read, of 1000 × 512 bytes, rounded up.
        32 dur: U128,
        /// Data Units Written.
        48 duw: U128,
        /// Host Read Commands.
        64 hrc: U128,
        /// Host Write Commands.
        80 hwc: U128,
        /// Controller Busy Time, minutes.
        96 cbt: U128,
        /// Power Cycles.
        112 pwrc: U128,
        /// Power On Hours.
        128 poh: U128,
        /// Unsafe Shutdowns.
        144 upl: U128,
        /// Media and Data Integrity Errors.
        160 mdie: U128,
        /// Number of Error Information Log Entries.
        176 neile: U128,
        /// Warning Composite Temperature Time, minutes.
        192 wctt: U32,
        /// Critical Composite Temperature Time, minutes.
        196 cctt: U32,
        /// Temperature Sensors, kelvin; 0: not there.
        200 tsen: [U16; 8],
        216 tmt1tc: U32,
        220 tmt2tc: U32,
        224 ttmt1: U32,
        228 ttmt2: U32,
        232 reserved_232: [u8; 280],
    }
}

/// Data units (`dur`, `duw`): thousands of 512 bytes, rounded up.
pub fn data_units(bytes: u128) -> u128 {
    bytes.div_ceil(512_000)
}

layout! {
    /// Firmware Slot Information (LID 03h; base, section 5.16.1.4).
    FirmwareSlots, 512 bytes {
        /// Active Firmware Info: slot in use, bits 2:0; slot after the next reset, bits 6:4.
        0 afi: u8,
        1 reserved_1: [u8; 7],
        8 frs: [Text<8>; 7],
        64 reserved_64: [u8; 448],
    }
}

impl FirmwareSlots {
    /// One slot, and this in it.
    pub fn one(revision: Text<8>) -> FirmwareSlots {
        let mut page = FirmwareSlots { afi: 1, ..FirmwareSlots::default() };
        page.frs[0] = revision;
        page
    }
}

layout! {
    /// Changed Namespace List (LID 04h; base, section 5.16.1.5): ascending, zeros behind the last.
    ChangedNamespaces, 4096 bytes {
        0 nsids: [U32; 1024],
    }
}

impl ChangedNamespaces {
    /// `nsids` ascend. More than 1024: FFFFFFFFh first, then zeros.
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> ChangedNamespaces {
        let mut page = ChangedNamespaces::default();
        for (index, nsid) in nsids.into_iter().enumerate() {
            match page.nsids.get_mut(index) {
                Some(place) => *place = nsid.into(),
                None => return ChangedNamespaces::too_many(),
            }
        }
        page
    }

    fn too_many() -> ChangedNamespaces {
        let mut page = ChangedNamespaces::default();
        page.nsids[0] = u32::MAX.into();
        page
    }

    /// None: more than the list can say, look at all of them.
    pub fn changed(&self) -> Option<impl Iterator<Item = u32> + '_> {
        let nsids = self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0);
        (self.nsids[0].get() != u32::MAX).then_some(nsids)
    }
}

layout! {
    /// Commands Supported and Effects (LID 05h; base, section 5.16.1.6): a dword per opcode, `effect`.
    CommandEffects, 4096 bytes {
        /// Admin commands.
        0 acs: [U32; 256],
        /// I/O commands of the command set that CSI names.
        1024 iocs: [U32; 256],
        2048 reserved_2048: [u8; 2048],
    }
}

/// A command's effects (base, section 5.16.1.6).
pub mod effect {
    /// CSUPP: supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// LBCC: logical blocks may change.
    pub const CONTENT_CHANGE: u32 = 1 << 1;
    /// NCC: namespace capabilities may change.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;
    /// NIC: namespaces may come or go.
    pub const NAMESPACE_INVENTORY_CHANGE: u32 = 1 << 3;
    /// CCC: controller capabilities may change.
    pub const CONTROLLER_CAPABILITY_CHANGE: u32 = 1 << 4;
}

impl CommandEffects {
    /// Opcodes with their effects.
    pub fn new(admin: &[(u8, u32)], io: &[(u8, u32)]) -> CommandEffects {
        let mut page = CommandEffects::default();
        admin.iter().for_each(|(opcode, effects)| page.acs[usize::from(*opcode)] = (*effects).into());
        io.iter().for_each(|(opcode, effects)| page.iocs[usize::from(*opcode)] = (*effects).into());
        page
    }
}

layout! {
    /// Head of the Asymmetric Namespace Access log (LID 0Ch; base, section 5.16.1.13).
    AnaHeader, 16 bytes {
        /// Change Count.
        0 chgcnt: U64,
        /// Number of ANA Group Descriptors.
        8 nanagrpd: U16,
        10 reserved_10: [u8; 6],
    }
}

layout! {
    /// ANA Group Descriptor, before its NSIDs (base, section 5.16.1.13).
    AnaGroupHeader, 32 bytes {
        0 anagid: U32,
        /// Number of NSID Values.
        4 nnsid: U32,
        8 chgcnt: U64,
        /// ANA State, bits 3:0.
        16 anas: u8,
        17 reserved_17: [u8; 15],
    }
}

/// Log Specific Field of the ANA log: Return Groups Only (RGO), no NSIDs.
pub const ANA_GROUPS_ONLY: u8 = 1 << 0;

/// State of an ANA group's namespaces for a controller (base, section 8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AnaState {
    Optimized = 0x1,
    NonOptimized = 0x2,
    Inaccessible = 0x3,
    PersistentLoss = 0x4,
    Change = 0xf,
}

impl AnaState {
    pub const ALL: [(AnaState, &'static str); 5] = [
        (AnaState::Optimized, "optimized"),
        (AnaState::NonOptimized, "non-optimized"),
        (AnaState::Inaccessible, "inaccessible"),
        (AnaState::PersistentLoss, "persistent-loss"),
        (AnaState::Change, "change"),
    ];

    pub fn from_bits(anas: u8) -> Option<AnaState> {
        AnaState::ALL.iter().find(|(state, _)| *state as u8 == anas & 0xf).map(|(state, _)| *state)
    }

    pub fn name(self) -> &'static str {
        AnaState::ALL.iter().find(|(state, _)| *state == self).map_or("?", |(_, name)| name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    pub id: u32,
    pub change_count: u64,
    pub state: AnaState,
    /// Ascending; empty where groups only were asked for.
    pub nsids: Vec<u32>,
}

/// An ANA log as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    pub change_count: u64,
    pub groups: Vec<AnaGroup>,
}

impl AnaLog {
    pub fn to_bytes(&self, groups_only: bool) -> Vec<u8> {
        let header = AnaHeader {
            chgcnt: self.change_count.into(),
            nanagrpd: (self.groups.len() as u16).into(),
            ..AnaHeader::default()
        };
        let mut bytes = header.as_bytes().to_vec();
        for group in self.groups.iter().take(u16::MAX.into()) {
            let nsids = if groups_only { &[][..] } else { &group.nsids[..] };
            let head = AnaGroupHeader {
                anagid: group.id.into(),
                nnsid: (nsids.len() as u32).into(),
                chgcnt: group.change_count.into(),
                anas: group.state as u8,
                ..AnaGroupHeader::default()
            };
            bytes.extend_from_slice(head.as_bytes());
            nsids.iter().for_each(|nsid| bytes.extend_from_slice(&nsid.to_le_bytes()));
        }
        bytes
    }

    /// Parses the log that a peer sent. A group whose state is unknown counts as changing. Err: which byte is missing
    /// or wrong.
    pub fn parse(bytes: &[u8]) -> Result<AnaLog, Malformed> {
        let short = |rest: &[u8]| Malformed { at: bytes.len() - rest.len() };
        let (header, mut rest) = AnaHeader::read_from_prefix(bytes).map_err(|_| Malformed { at: 0 })?;
        let mut log = AnaLog { change_count: header.chgcnt.get(), groups: Vec::new() };
        for _ in 0..header.nanagrpd.get() {
            let (head, tail) = AnaGroupHeader::read_from_prefix(rest).map_err(|_| short(rest))?;
            let (nsids, tail) = <[U32]>::ref_from_prefix_with_elems(tail, head.nnsid.get() as usize)
                .map_err(|_| short(tail))?;
            rest = tail;
            log.groups.push(AnaGroup {
                id: head.anagid.get(),
                change_count: head.chgcnt.get(),
                state: AnaState::from_bits(head.anas).unwrap_or(AnaState::Change),
                nsids: nsids.iter().map(|nsid| nsid.get()).collect(),
            });
        }
        Ok(log)
    }
}

/// A page that ends before what it says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log page ends before what should follow at byte {at}")]
pub struct Malformed {
    pub at: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_what_it_was_built_for() {
        let get = GetLogPage {
            rae: true,
            lsp: 0x5,
            csi: 3,
            nsid: 9,
            ..GetLogPage::new(lid::ANA, 1 << 40, 1 << 20)
        };
        assert_eq!(GetLogPage::parse(&get.to_sqe()), get);
        let most = Sqe { cdw10: u32::MAX.into(), cdw11: u32::MAX.into(), ..Sqe::default() };
        assert_eq!(GetLogPage::parse(&most).bytes, 1 << 34);
    }

    #[test]
    fn a_part_of_a_page_ends_with_it() {
        let page = [7; 100];
        let part = |offset, bytes| GetLogPage::new(lid::SMART, offset, bytes).part(&page).map(<[u8]>::len);
        assert_eq!((part(0, 4), part(96, 8), part(100, 4), part(104, 4)), (Some(4), Some(4), Some(0), None));
        assert_eq!(part(u64::MAX, 4), None);
    }

    #[test]
    fn an_ana_log_survives_a_round_trip_and_a_cut() {
        let group = |id, state, nsids: &[u32]| AnaGroup { id, change_count: 5, state, nsids: nsids.to_vec() };
        let groups = vec![group(1, AnaState::Optimized, &[1, 2, 9]), group(2, AnaState::Inaccessible, &[])];
        let log = AnaLog { change_count: 77, groups };
        let bytes = log.to_bytes(false);
        assert_eq!(bytes.len(), 16 + 32 + 12 + 32);
        assert_eq!(AnaLog::parse(&bytes), Ok(log.clone()));
        for end in 0..bytes.len() {
            assert!(AnaLog::parse(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(AnaLog::parse(&log.to_bytes(true))
            .unwrap()
            .groups
            .iter()
            .all(|group| group.nsids.is_empty()));
        let mut lying = bytes;
        lying[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(AnaLog::parse(&lying), Err(Malformed { at: 48 }));
    }

    #[test]
    fn a_list_of_changes_that_overflows_says_so() {
        assert_eq!(ChangedNamespaces::new([3, 5]).changed().unwrap().collect::<Vec<_>>(), [3, 5]);
        assert_eq!(ChangedNamespaces::new(1..=1024).changed().unwrap().count(), 1024);
        assert!(ChangedNamespaces::new(1..=1025).changed().is_none());
    }

    #[test]
    fn units_round_up() {
        assert_eq!((data_units(0), data_units(1), data_units(512_000), data_units(512_001)), (0, 1, 1, 2));
    }
}
