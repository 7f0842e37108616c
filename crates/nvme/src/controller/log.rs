//! Get Log Page (base, section 5.16).

use super::association::Association;
use super::errors::Errors;
use super::features::supported;
use super::subsystem::{Kind, Namespace, Subsystem, ANA_GROUPS_MAX, NAMESPACES_MAX};
use super::{Health, Mishap};
use crate::command::{admin, io};
use crate::feature::AsyncEvent;
use crate::identify::csi;
use crate::log::{
    data_units, effect, lid, AnaGroup, AnaLog, ChangedNamespaces, CommandEffects, FirmwareSlots, GetLogPage,
    Smart, SupportedLogPages, ANA_GROUPS_ONLY,
};
use crate::status::Code;
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::little_endian::U32;
use zerocopy::IntoBytes;

/// Feature Identifiers Supported and Effects, and NVMe-MI Commands Supported and Effects (base, sections 5.16.1.18
/// and 5.16.1.19); both come with Supported Log Pages.
const FEATURES: u8 = 0x12;
const MANAGEMENT_COMMANDS: u8 = 0x13;

const NVM_PAGES: &[u8] = &[
    lid::SUPPORTED_LOG_PAGES,
    lid::ERROR_INFORMATION,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::ANA,
    FEATURES,
    MANAGEMENT_COMMANDS,
];
/// Log pages of a PCIe function: it has no ANA.
const FUNCTION_PAGES: &[u8] = &[
    lid::SUPPORTED_LOG_PAGES,
    lid::ERROR_INFORMATION,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    FEATURES,
    MANAGEMENT_COMMANDS,
];
const DISCOVERY_PAGES: &[u8] = &[
    lid::SUPPORTED_LOG_PAGES,
    lid::ERROR_INFORMATION,
    lid::COMMAND_EFFECTS,
    FEATURES,
    MANAGEMENT_COMMANDS,
    lid::DISCOVERY,
];

/// Scope of a command or feature (base, figures 211 and 246): a namespace, the controller.
const NAMESPACE_SCOPE: u32 = 1 << 20;
const CONTROLLER_SCOPE: u32 = 1 << 21;

/// Greatest size of the ANA log (base, section 5.16.1.13): its header, all groups, all namespaces.
const ANA_BYTES: usize = 16 + 32 * ANA_GROUPS_MAX as usize + 4 * NAMESPACES_MAX as usize;

/// Longest part of a page at once, bytes, where MDTS sets no limit.
const PART_MAX: u64 = 1 << 20;

/// The logs of one controller.
#[derive(Debug, Default)]
pub(super) struct Logs {
    errors: Errors,
    ana: AnaCounts,
    health: Health,
    /// Namespaces that changed since the host read their list.
    changed: BTreeSet<u32>,
}

impl Logs {
    /// What a function keeps over the life of its gateway: all but what its driver tells anew.
    pub(super) fn state(&self) -> (Errors, AnaCounts, BTreeSet<u32>) {
        (self.errors.clone(), self.ana.clone(), self.changed.clone())
    }

    pub(super) fn restore(&mut self, errors: Errors, ana: AnaCounts, changed: BTreeSet<u32>) {
        (self.errors, self.ana, self.changed) = (errors, ana, changed);
    }

    /// A command failed; the number of its entry.
    pub(super) fn record(&mut self, mishap: Mishap, of: &Association) -> u64 {
        self.errors.add(mishap, of.transport)
    }

    pub(super) fn critical_warning(&self) -> u8 {
        self.health.critical_warning
    }

    /// Returns the critical warnings that there were before.
    pub(super) fn set_health(&mut self, health: Health) -> u8 {
        std::mem::replace(&mut self.health, health).critical_warning
    }

    /// The subsystem was `old` and is the association's now. Returns the events that this is.
    pub(super) fn follow(&mut self, old: &Subsystem, of: &Association) -> Vec<AsyncEvent> {
        let new = &*of.subsystem;
        let changed = differing(old, new);
        let differ = !changed.is_empty();
        self.changed.extend(changed);
        self.ana.count(old, new);
        let others = !old.offers_to(&of.host_nqn).eq(new.offers_to(&of.host_nqn));
        [
            (differ, AsyncEvent::NAMESPACE_CHANGED),
            (reached_otherwise(old, new), AsyncEvent::ANA_CHANGED),
            (others, AsyncEvent::DISCOVERY_CHANGED),
        ]
        .into_iter()
        .filter_map(|(happened, event)| happened.then_some(event))
        .collect()
    }

    /// The bytes that were asked for: zeros from the page's end on.
    pub(super) fn get(&self, asked: &GetLogPage, of: &Association) -> Result<Vec<u8>, Code> {
        let longest = of.subsystem.limits.transfer_bytes.map_or(PART_MAX, u64::from);
        if asked.bytes > longest || asked.offset % 4 != 0 || asked.offset_is_index {
            return Err(Code::INVALID_FIELD);
        }
        let page = self.page(asked, of)?;
        let mut part = asked.part(&page).ok_or(Code::INVALID_FIELD)?.to_vec();
        part.resize(asked.bytes as usize, 0);
        Ok(part)
    }

    fn page(&self, asked: &GetLogPage, of: &Association) -> Result<Vec<u8>, Code> {
        let pages = pages_of(of);
        if !pages.contains(&asked.lid) {
            return Err(Code::INVALID_LOG_PAGE);
        }
        Ok(match asked.lid {
            lid::SUPPORTED_LOG_PAGES => SupportedLogPages::new(pages).as_bytes().to_vec(),
            lid::ERROR_INFORMATION => self.errors.page(),
            // Kept of the controller as a whole (LPA bit 0 is 0).
            lid::SMART if asked.nsid != 0 && asked.nsid != u32::MAX => return Err(Code::INVALID_FIELD),
            lid::SMART => self.smart().as_bytes().to_vec(),
            lid::FIRMWARE_SLOT => FirmwareSlots::one(Text::new(&of.subsystem.firmware)).as_bytes().to_vec(),
            lid::CHANGED_NAMESPACES => {
                ChangedNamespaces::new(self.changed.iter().copied()).as_bytes().to_vec()
            }
            // nvme-cli asks for other command sets, too: none of their I/O commands is supported.
            lid::COMMAND_EFFECTS => {
                let has_io = asked.csi == csi::NVM && !of.subsystem.is_discovery();
                effects_log(of, has_io).as_bytes().to_vec()
            }
            lid::ANA => {
                let mut page = self.ana.log(&of.subsystem).to_bytes(asked.lsp & ANA_GROUPS_ONLY != 0);
                // Hosts read in parts what it may come to, by Identify Controller, and not what it is.
                page.resize(page.len().max(ANA_BYTES), 0);
                page
            }
            FEATURES => feature_effects(of),
            lid::DISCOVERY => discovery_log(of),
            _ => vec![0; 4096],
        })
    }

    /// The host has read it, RAE cleared.
    pub(super) fn was_read(&mut self, lid: u8) {
        if lid == lid::CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    fn smart(&self) -> Smart {
        let health = &self.health;
        Smart {
            cw: health.critical_warning,
            ctemp: health.temperature.into(),
            avsp: 100,
            dur: data_units(health.bytes_read).into(),
            duw: data_units(health.bytes_written).into(),
            hrc: health.reads.into(),
            hwc: health.writes.into(),
            cbt: health.busy_minutes.into(),
            poh: health.power_on_hours.into(),
            mdie: health.media_errors.into(),
            neile: u128::from(self.errors.count()).into(),
            ..Smart::default()
        }
    }
}

fn pages_of(of: &Association) -> &'static [u8] {
    match (of.subsystem.is_discovery(), of.is_pcie()) {
        (true, _) => DISCOVERY_PAGES,
        (false, true) => FUNCTION_PAGES,
        (false, false) => NVM_PAGES,
    }
}

/// FSUPP and scope of each feature.
fn feature_effects(of: &Association) -> Vec<u8> {
    let mut page = [U32::ZERO; 256];
    for (fid, feature) in supported(of) {
        let scope = if feature.namespace_specific { NAMESPACE_SCOPE } else { CONTROLLER_SCOPE };
        page[usize::from(fid)] = (effect::SUPPORTED | scope).into();
    }
    page.as_bytes().to_vec()
}

/// Returns the commands that are executed, as the controller's `dispatch` and `nvm` have them, and as a function's
/// device does.
fn effects_log(of: &Association, has_io: bool) -> CommandEffects {
    let queues = [
        admin::DELETE_SUBMISSION_QUEUE,
        admin::CREATE_SUBMISSION_QUEUE,
        admin::DELETE_COMPLETION_QUEUE,
        admin::CREATE_COMPLETION_QUEUE,
        admin::DOORBELL_BUFFER_CONFIG,
    ];
    match of.function() {
        None => effects(&[admin::KEEP_ALIVE], has_io),
        Some(function) if function.shadow_doorbells => effects(&queues, has_io),
        Some(_) => effects(&queues[..4], has_io),
    }
}

fn discovery_log(of: &Association) -> Vec<u8> {
    let Kind::Discovery { generation, .. } = of.subsystem.kind else { return Vec::new() };
    crate::discovery::log(generation, of.subsystem.offers_to(&of.host_nqn))
}

/// Added, removed or changed namespaces. A move to another ANA group doesn't count (base, figure 147).
fn differing(old: &Subsystem, new: &Subsystem) -> Vec<u32> {
    let (Some(old), Some(new)) = (old.namespaces(), new.namespaces()) else { return Vec::new() };
    let same = |a: &Namespace, b: &Namespace| *a == Namespace { ana_group: a.ana_group, ..b.clone() };
    let nsids: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    let differs = |nsid: &u32| match (old.get(nsid), new.get(nsid)) {
        (Some(a), Some(b)) => !same(a, b),
        _ => true,
    };
    nsids.into_iter().filter(differs).collect()
}

/// Returns whether a remaining namespace moved to another ANA group, or its group to another state. Added and removed
/// namespaces change the ANA log, too, but are reported as such (base, figure 147).
fn reached_otherwise(old: &Subsystem, new: &Subsystem) -> bool {
    let path = |subsystem: &Subsystem, nsid: u32| {
        subsystem.namespace(nsid).map(|one| (one.ana_group, subsystem.ana_state(one.ana_group)))
    };
    let moved =
        |nsid: &u32| path(new, *nsid).is_some_and(|new| path(old, *nsid).is_some_and(|old| old != new));
    old.namespaces().is_some_and(|all| all.keys().any(moved))
}

/// The commands that all controllers execute, and `more` admin commands.
fn effects(more: &[u8], has_io: bool) -> CommandEffects {
    let whole = effect::SUPPORTED | CONTROLLER_SCOPE;
    let of_namespace = effect::SUPPORTED | NAMESPACE_SCOPE;
    let writes = of_namespace | effect::CONTENT_CHANGE;
    let admin = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
    ];
    let admin: Vec<(u8, u32)> = admin.iter().chain(more).map(|opcode| (*opcode, whole)).collect();
    let io = [
        (io::FLUSH, of_namespace),
        (io::WRITE, writes),
        (io::READ, of_namespace),
        (io::COMPARE, of_namespace),
        (io::WRITE_ZEROES, writes),
        (io::DATASET_MANAGEMENT, writes),
        (io::VERIFY, of_namespace),
    ];
    CommandEffects::new(&admin, if has_io { &io } else { &[] })
}

/// Changes of ANA states, as this controller has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct AnaCounts {
    all: u64,
    by_group: BTreeMap<u32, u64>,
}

impl AnaCounts {
    /// Counts the groups whose state or namespaces differ.
    pub(super) fn count(&mut self, old: &Subsystem, new: &Subsystem) {
        let (old, new) = (groups(old), groups(new));
        let numbers: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
        let changed: Vec<u32> =
            numbers.into_iter().filter(|group| old.get(group) != new.get(group)).collect();
        for group in &changed {
            *self.by_group.entry(*group).or_default() += 1;
        }
        self.all += u64::from(!changed.is_empty());
    }

    fn log(&self, subsystem: &Subsystem) -> AnaLog {
        let groups = groups(subsystem).into_iter().map(|(id, (state, nsids))| AnaGroup {
            id,
            change_count: self.by_group.get(&id).copied().unwrap_or_default(),
            state,
            nsids,
        });
        AnaLog { change_count: self.all, groups: groups.collect() }
    }
}

/// Each ANA group's state and namespaces.
fn groups(subsystem: &Subsystem) -> BTreeMap<u32, (crate::log::AnaState, Vec<u32>)> {
    let mut groups = BTreeMap::new();
    if let Kind::Nvm { namespaces, ana } = &subsystem.kind {
        groups.extend(ana.iter().map(|(group, state)| (*group, (*state, Vec::new()))));
        for (nsid, namespace) in namespaces {
            let state = subsystem.ana_state(namespace.ana_group);
            groups.entry(namespace.ana_group).or_insert((state, Vec::new())).1.push(*nsid);
        }
    }
    groups
}
