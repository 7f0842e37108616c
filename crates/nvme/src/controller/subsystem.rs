//! The configuration of a subsystem: plain data.

use crate::discovery::Endpoint;
pub use crate::log::AnaState;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// An NVM or discovery subsystem as the hosts of one port see it. Where ports differ (ANA states), each has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    pub nqn: String,
    /// Serial number: ASCII, at most 20 bytes.
    pub serial: String,
    /// Model number: ASCII, at most 40 bytes.
    pub model: String,
    /// Firmware revision: ASCII, at most 8 bytes.
    pub firmware: String,
    pub kind: Kind,
    pub hosts: Hosts,
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Nvm {
        /// By namespace identifier (1 to `NAMESPACES_MAX`).
        namespaces: BTreeMap<u32, Namespace>,
        /// States of the ANA groups, by group (from 1). Groups that namespaces name and that aren't here are
        /// optimized.
        ana: BTreeMap<u32, AnaState>,
    },
    Discovery {
        /// GENCTR: goes up with every change of the entries.
        generation: u64,
        entries: Vec<Offer>,
    },
}

/// Highest namespace identifier (NN of Identify Controller).
pub const NAMESPACES_MAX: u32 = 1024;
/// Highest ANA group (ANAGRPMAX of Identify Controller).
pub const ANA_GROUPS_MAX: u32 = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// A power of two, 512 at least.
    pub block_bytes: u32,
    /// Capacity, in blocks.
    pub blocks: u64,
    pub read_only: bool,
    /// Completed writes may be lost by a power cut until a Flush.
    pub volatile_write_cache: bool,
    /// Deallocate (Dataset Management) does something.
    pub deallocate: bool,
    pub uuid: Option<[u8; 16]>,
    pub nguid: Option<[u8; 16]>,
    pub eui64: Option<[u8; 8]>,
    /// ANA group, from 1.
    pub ana_group: u32,
    /// Best granularity and size of reads and writes, in blocks; 0: not said.
    pub optimal: Optimal,
}

/// Hints of Identify Namespace (nvm, figure 97), in blocks (not 0's based); 0: not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Optimal {
    /// NPWG and NPWA: writes are best a multiple of this, and aligned to it.
    pub write_granularity: u16,
    /// NPDG and NPDA: the same of deallocations.
    pub deallocate_granularity: u16,
    /// NOWS: best size of a write.
    pub write: u16,
    /// NOIOB: reads and writes are best not across a multiple of this.
    pub boundary: u16,
}

/// Hosts that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    Any(HostSettings),
    /// By host NQN.
    Listed(BTreeMap<String, HostSettings>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Each queue must authenticate before it may do anything.
    pub authentication: bool,
    /// Less than the subsystem's, where it says so.
    pub queues: Option<u16>,
    pub queue_entries: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// I/O queues per controller.
    pub queues: u16,
    /// Entries per queue: MQES + 1, and MAXCMD.
    pub queue_entries: u16,
    /// Data that a command capsule of an I/O queue may carry, bytes, a multiple of 16 (IOCCSZ).
    pub in_capsule_bytes: u32,
    /// Longest transfer of a command, bytes: a power of two, at least 4096 (MDTS). None: no limit.
    pub transfer_bytes: Option<u32>,
    /// KAS, in milliseconds, a multiple of 100.
    pub keep_alive_granularity_ms: u32,
    /// Keep alive timeouts outside of this are moved to its nearer end.
    pub keep_alive_ms: RangeInclusive<u32>,
    /// A host that asks for no keep alive timeout has the longest.
    pub keep_alive_required: bool,
    /// Asynchronous Event Requests outstanding at once (AERL + 1).
    pub async_events: u8,
    /// Controller identifiers to give out, within 1 to 0xffef.
    pub controllers: RangeInclusive<u16>,
}

impl Default for Limits {
    /// 128 queues of 1024 entries; 16 KiB in a capsule; transfers of 1 MiB.
    fn default() -> Limits {
        Limits {
            queues: 128,
            queue_entries: 1024,
            in_capsule_bytes: 16384,
            transfer_bytes: Some(1 << 20),
            keep_alive_granularity_ms: 100,
            keep_alive_ms: 1000..=3_600_000,
            keep_alive_required: false,
            async_events: 4,
            controllers: 1..=0xffef,
        }
    }
}

/// An entry of the discovery log, and which hosts see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub endpoint: Endpoint,
    /// None: all.
    pub hosts: Option<BTreeSet<String>>,
}

impl Subsystem {
    /// The settings for a host; None if it may not connect.
    pub fn settings(&self, host_nqn: &str) -> Option<&HostSettings> {
        match &self.hosts {
            Hosts::Any(settings) => Some(settings),
            Hosts::Listed(hosts) => hosts.get(host_nqn),
        }
    }

    /// I/O queues of each controller of a host.
    pub(super) fn queues_of(&self, settings: &HostSettings) -> u16 {
        let most = self.limits.queues;
        if self.is_discovery() {
            0
        } else {
            settings.queues.map_or(most, |own| own.min(most))
        }
    }

    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces().and_then(|all| all.get(&nsid))
    }

    /// None: a discovery subsystem.
    pub fn namespaces(&self) -> Option<&BTreeMap<u32, Namespace>> {
        match &self.kind {
            Kind::Nvm { namespaces, .. } => Some(namespaces),
            Kind::Discovery { .. } => None,
        }
    }

    /// The discovery log's entries for a host.
    pub fn offers_to<'a>(&'a self, host_nqn: &'a str) -> impl Iterator<Item = &'a Endpoint> {
        let entries = match &self.kind {
            Kind::Discovery { entries, .. } => &entries[..],
            Kind::Nvm { .. } => &[],
        };
        let seen = |offer: &&Offer| offer.hosts.as_ref().is_none_or(|hosts| hosts.contains(host_nqn));
        entries.iter().filter(seen).map(|offer| &offer.endpoint)
    }

    pub fn is_discovery(&self) -> bool {
        matches!(self.kind, Kind::Discovery { .. })
    }

    /// The state of the ANA group, for the hosts of this port.
    pub fn ana_state(&self, group: u32) -> AnaState {
        match &self.kind {
            Kind::Nvm { ana, .. } => ana.get(&group).copied().unwrap_or(AnaState::Optimized),
            Kind::Discovery { .. } => AnaState::Optimized,
        }
    }
}

impl Limits {
    /// The keep alive timeout that a host gets which asks for this one; 0: none.
    pub fn keep_alive(&self, asked_ms: u32) -> u32 {
        let (least, most) = (*self.keep_alive_ms.start(), *self.keep_alive_ms.end());
        match asked_ms {
            0 if self.keep_alive_required => most,
            0 => 0,
            ms => ms.max(least).min(most).max(1),
        }
    }

    /// KAS, in its units of 100 ms.
    pub fn keep_alive_units(&self) -> u16 {
        u16::try_from(self.keep_alive_granularity_ms.div_ceil(100)).unwrap_or(u16::MAX).max(1)
    }

    /// MDTS: the power of two of 4096-byte pages that a transfer may have; 0: no limit.
    pub fn transfer_exponent(&self) -> u8 {
        self.transfer_bytes.map_or(0, |bytes| (bytes.max(8192).ilog2() - 12) as u8)
    }
}
