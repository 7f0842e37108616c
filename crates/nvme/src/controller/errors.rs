//! The Error Information log: commands that failed, the newest kept (base, section 5.16.1.2).

use super::function::Transport;
use super::Mishap;
use crate::discovery::trtype;
use crate::log::ErrorEntry;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Entries that are kept (ELPE + 1).
pub(super) const ENTRIES_MAX: usize = 64;
/// Parameter Error Location: not specific to a field.
const NO_LOCATION: u16 = 0xffff;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Errors {
    #[serde(with = "dwords")]
    entries: VecDeque<ErrorEntry>,
    /// Number of the newest entry, over the controller's life.
    count: u64,
}

impl Errors {
    /// Adds a command that failed, of a controller of that transport; the number of its entry.
    pub(super) fn add(&mut self, mishap: Mishap, transport: Transport) -> u64 {
        let trtype = match (transport.is_pcie(), transport.is_keyed()) {
            // Nothing is to say of it.
            (true, _) => 0,
            (false, true) => trtype::RDMA,
            (false, false) => trtype::TCP,
        };
        self.count += 1;
        self.entries.truncate(ENTRIES_MAX - 1);
        self.entries.push_front(ErrorEntry {
            ecnt: self.count.into(),
            sqid: mishap.sqid.into(),
            cid: mishap.cid.into(),
            status: mishap.status.to_bits().into(),
            pel: NO_LOCATION.into(),
            lba: mishap.lba.into(),
            nsid: mishap.nsid.into(),
            trtype,
            ..ErrorEntry::default()
        });
        self.count
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The page: all of its entries, those that are free zero.
    pub(super) fn page(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.entries.iter().flat_map(|entry| entry.as_bytes()).copied().collect();
        page.resize(ENTRIES_MAX * size_of::<ErrorEntry>(), 0);
        page
    }
}

/// Entries as lists of dwords.
mod dwords {
    use super::{ErrorEntry, ENTRIES_MAX};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::VecDeque;
    use zerocopy::{FromBytes, IntoBytes};

    type Dwords = [u32; size_of::<ErrorEntry>() / 4];

    pub fn serialize<S: Serializer>(entries: &VecDeque<ErrorEntry>, to: S) -> Result<S::Ok, S::Error> {
        let dwords = |entry: &ErrorEntry| Dwords::read_from_bytes(entry.as_bytes()).unwrap_or_default();
        entries.iter().map(|entry| dwords(entry).to_vec()).collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VecDeque<ErrorEntry>, D::Error> {
        let all = Vec::<Vec<u32>>::deserialize(from)?;
        let entry = |dwords: &Vec<u32>| ErrorEntry::read_from_bytes(dwords.as_bytes()).ok();
        let entries: Option<VecDeque<ErrorEntry>> = all.iter().take(ENTRIES_MAX).map(entry).collect();
        entries.ok_or_else(|| serde::de::Error::custom("an entry of another length"))
    }
}
