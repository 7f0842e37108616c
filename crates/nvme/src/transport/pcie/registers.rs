//! The registers of BAR0 (base, section 3.1.3, figure 35; pcie, section 3.1.2) and the doorbells behind them.

/// Offsets of the registers, bytes.
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u64 = 0x00;
    /// Version.
    pub const VS: u64 = 0x08;
    /// Interrupt Mask Set, and Clear: for pins and MSI, not for MSI-X.
    pub const INTMS: u64 = 0x0c;
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration.
    pub const CC: u64 = 0x14;
    /// Controller Status.
    pub const CSTS: u64 = 0x1c;
    /// NVM Subsystem Reset.
    pub const NSSR: u64 = 0x20;
    /// Admin Queue Attributes.
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue Base Address, 8 bytes.
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue Base Address, 8 bytes.
    pub const ACQ: u64 = 0x30;
    /// Controller Ready Timeouts.
    pub const CRTO: u64 = 0x68;
}

/// Offset of the doorbells (pcie, section 3.1.2).
pub const DOORBELLS: u64 = 0x1000;

/// Value that is written to NSSR: "NVMe" (base, section 3.1.3.7).
pub const SUBSYSTEM_RESET: u32 = 0x4e56_4d65;

/// CSTS.NSSRO: a subsystem reset occurred (base, section 3.1.3.6).
pub const SUBSYSTEM_RESET_OCCURRED: u32 = 1 << 4;

/// Admin Queue Attributes (base, section 3.1.3.8): entries of both queues, converted from 0's based.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aqa(pub u32);

impl Aqa {
    pub fn new(submission_entries: u16, completion_entries: u16) -> Aqa {
        let half = |entries: u16| u32::from(entries.clamp(1, 4096) - 1);
        Aqa(half(submission_entries) | half(completion_entries) << 16)
    }

    pub fn submission_entries(self) -> u16 {
        (self.0 & 0xfff) as u16 + 1
    }

    pub fn completion_entries(self) -> u16 {
        (self.0 >> 16 & 0xfff) as u16 + 1
    }
}

/// A doorbell, by the queue whose it is; queue 0 is the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doorbell {
    /// Tail of a submission queue.
    Submission(u16),
    /// Head of a completion queue.
    Completion(u16),
}

impl Doorbell {
    /// Doorbells before this one.
    pub(super) fn index(self) -> u64 {
        match self {
            Doorbell::Submission(qid) => u64::from(qid) * 2,
            Doorbell::Completion(qid) => u64::from(qid) * 2 + 1,
        }
    }

    /// The doorbell at this offset of BAR0 (pcie, sections 3.1.2.1 and 3.1.2.2). `stride`: CAP.DSTRD, 0 to 15. None:
    /// none begins there.
    pub fn at(offset: u64, stride: u8) -> Option<Doorbell> {
        let from_first = offset.checked_sub(DOORBELLS)?;
        let bytes = 4u64 << stride.min(15);
        let index = from_first / bytes;
        let qid = u16::try_from(index / 2).ok().filter(|_| from_first % bytes == 0)?;
        Some(if index % 2 == 0 { Doorbell::Submission(qid) } else { Doorbell::Completion(qid) })
    }

    /// Its offset in BAR0.
    pub fn offset(self, stride: u8) -> u64 {
        DOORBELLS + (self.index() << (2 + stride.min(15)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_found_where_they_are() {
        for stride in [0, 1, 4, 15] {
            for doorbell in [0, 1, 7, 65_535].map(Doorbell::Submission) {
                assert_eq!(Doorbell::at(doorbell.offset(stride), stride), Some(doorbell));
                assert_eq!(Doorbell::at(doorbell.offset(stride) + 1, stride), None);
            }
        }
        assert_eq!(Doorbell::Completion(1).offset(0), 0x100c);
        assert_eq!(Doorbell::at(0x1004, 0), Some(Doorbell::Completion(0)));
        assert_eq!((Doorbell::at(0xffc, 0), Doorbell::at(u64::MAX, 0)), (None, None));
    }

    #[test]
    fn admin_queues_have_up_to_4096_entries() {
        let aqa = Aqa::new(32, 4096);
        assert_eq!((aqa.0, aqa.submission_entries(), aqa.completion_entries()), (0x0fff_001f, 32, 4096));
    }
}
