//! The scan for namespaces and their properties (base, section 5.17; nvm, section 4.1.5).

use super::steps::{Job, Step};
use super::{Event, Failure, NamespaceInfo, Session};
use crate::discovery::ReadError;
use crate::identify::{cns, parse_descriptors, Controller, Descriptor, Namespace, NamespaceList, BYTES};
use crate::log::{
    lid, AnaGroupHeader, AnaHeader, AnaLog, AnaState, ChangedNamespaces, GetLogPage, ANA_GROUPS_ONLY,
};
use std::collections::{BTreeSet, VecDeque};

/// Namespaces of one controller that are looked at.
const NAMESPACES_MAX: usize = 4096;
/// Longest ANA log that is read, bytes.
const ANA_LOG_MAX: usize = 64 << 10;

/// A look at the namespaces that is under way.
#[derive(Debug, Default)]
pub(super) struct Scan {
    active: BTreeSet<u32>,
    /// Namespaces that are known to have changed; None: any may have.
    changed: Option<BTreeSet<u32>>,
    /// To be identified.
    pending: VecDeque<u32>,
    /// Identified; its descriptors are still to come.
    found: Option<NamespaceInfo>,
}

impl Session {
    pub(super) fn begin_scan(&mut self, changed: Option<BTreeSet<u32>>, now_ms: u64) {
        self.scan = Scan { changed, ..Scan::default() };
        self.identify(Step::ActiveNamespaces { after: 0 }, cns::ACTIVE_NAMESPACES, 0, now_ms);
    }

    /// A list of at most 1024 active namespaces above `after`, in order.
    pub(super) fn listed(&mut self, after: u32, bytes: &[u8; BYTES], now_ms: u64) -> Result<(), Failure> {
        let asked = "Identify of the active namespaces";
        let list = NamespaceList::read(bytes).copied().unwrap_or_default();
        let mut last = after;
        for nsid in list.iter() {
            if nsid <= last {
                let found = format!("namespace {nsid} comes behind namespace {last}, which is out of order");
                return Err(Failure::protocol(asked, found));
            }
            last = nsid;
            self.scan.active.insert(nsid);
        }
        if self.scan.active.len() > NAMESPACES_MAX {
            let found = format!("there are more than {NAMESPACES_MAX} of them");
            return Err(Failure::refused(asked, found));
        }
        if list.is_full() && last < u32::MAX - 1 {
            self.identify(Step::ActiveNamespaces { after: last }, cns::ACTIVE_NAMESPACES, last, now_ms);
            return Ok(());
        }
        self.end_of_list(now_ms)
    }

    fn end_of_list(&mut self, now_ms: u64) -> Result<(), Failure> {
        let active = std::mem::take(&mut self.scan.active);
        if let Some(nsid) = self.options.namespace.filter(|nsid| !self.ready && !active.contains(nsid)) {
            let all: Vec<String> = active.iter().take(20).map(u32::to_string).collect();
            let found = match all.is_empty() {
                true => "the subsystem has no namespaces for this host".into(),
                false => format!("it is not there; there are: {}", all.join(", ")),
            };
            return Err(Failure::refused(format!("namespace {nsid}"), found));
        }
        let gone: Vec<u32> = self.namespaces.keys().filter(|nsid| !active.contains(nsid)).copied().collect();
        gone.into_iter().for_each(|nsid| self.forget(nsid));
        let wanted = |nsid: &u32| self.options.namespace.is_none_or(|only| only == *nsid);
        let changed = |nsid: &u32| self.scan.changed.as_ref().is_none_or(|changed| changed.contains(nsid));
        let news = |nsid: &u32| changed(nsid) || !self.namespaces.contains_key(nsid);
        self.scan.pending = active.into_iter().filter(|nsid| wanted(nsid) && news(nsid)).collect();
        self.scan_on(now_ms);
        Ok(())
    }

    fn scan_on(&mut self, now_ms: u64) {
        if let Some(nsid) = self.scan.pending.pop_front() {
            self.identify(Step::Namespace(nsid), cns::NAMESPACE, nsid, now_ms);
        }
    }

    fn forget(&mut self, nsid: u32) {
        if self.namespaces.remove(&nsid).is_some() && self.ready {
            self.events.push_back(Event::Gone(nsid));
        }
    }

    pub(super) fn described(&mut self, nsid: u32, bytes: &[u8; BYTES], now_ms: u64) -> Result<(), Failure> {
        let namespace = Namespace::of(bytes);
        if namespace.is_inactive() {
            self.forget(nsid);
            self.scan_on(now_ms);
            return Ok(());
        }
        let info = self.read_namespace(nsid, namespace, bytes);
        if let Some(why) = info.unusable.filter(|_| self.options.namespace == Some(nsid) && !self.ready) {
            return Err(Failure::refused(format!("namespace {nsid}"), why));
        }
        // The state of a group is told of only while it has namespaces.
        let known = self.namespaces.get(&nsid).is_some_and(|known| known.ana_group == info.ana_group);
        if self.info.ana && !known {
            self.add_job(Job::Ana);
        }
        self.scan.found = Some(info);
        self.identify(Step::Descriptors(nsid), cns::NAMESPACE_DESCRIPTORS, nsid, now_ms);
        Ok(())
    }

    fn read_namespace(&self, nsid: u32, namespace: &Namespace, bytes: &[u8; BYTES]) -> NamespaceInfo {
        let format = namespace.format().unwrap_or_default();
        let block_bytes = namespace.block_bytes();
        let unusable = match block_bytes {
            None => Some("its logical blocks have no size that a namespace may have"),
            Some(_) if format.ms.get() != 0 => Some("its blocks have metadata, which this host doesn't move"),
            Some(bytes) if namespace.nsze.get().checked_mul(bytes.into()).is_none() => {
                Some("its size in bytes takes more than 64 bits")
            }
            Some(_) => None,
        };
        let given = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        let optimal = namespace.nsfeat & crate::identify::nsfeat::OPTIMAL_SIZES != 0;
        let ana_group = namespace.anagrpid.get();
        NamespaceInfo {
            nsid,
            block_bytes: block_bytes.unwrap_or(0),
            blocks: namespace.nsze.get(),
            read_only: namespace.nsattr & crate::identify::NSATTR_WRITE_PROTECTED != 0,
            uuid: None,
            nguid: Some(namespace.nguid).filter(|id| given(id)),
            eui64: Some(namespace.eui64).filter(|id| given(id)),
            ana_group,
            ana_state: self.ana_state(ana_group),
            optimal_write_blocks: if optimal { namespace.nows.get().saturating_add(1) } else { 0 },
            boundary_blocks: namespace.noiob.get(),
            unusable,
            raw: bytes.to_vec(),
        }
    }

    /// The descriptors of the namespace that was just identified; empty where the controller has none.
    pub(super) fn named(&mut self, nsid: u32, data: &[u8], now_ms: u64) {
        if let Some(mut info) = self.scan.found.take().filter(|info| info.nsid == nsid) {
            for descriptor in parse_descriptors(data) {
                match descriptor {
                    Descriptor::Uuid(id) => info.uuid = Some(id),
                    Descriptor::Nguid(id) => info.nguid = Some(id),
                    Descriptor::Eui64(id) => info.eui64 = Some(id),
                    Descriptor::Csi(0) => {}
                    Descriptor::Csi(_) => info.unusable = Some("it isn't of the NVM Command Set"),
                }
            }
            let new = self.namespaces.get(&nsid) != Some(&info);
            self.namespaces.insert(nsid, info);
            if new && self.ready {
                self.events.push_back(Event::Changed(nsid));
            }
        }
        self.scan_on(now_ms);
    }

    pub(super) fn changes_came(&mut self, bytes: &[u8; BYTES], now_ms: u64) {
        let page = ChangedNamespaces::read(bytes).copied().unwrap_or_default();
        let changed = page.changed().map(|nsids| nsids.collect());
        self.begin_scan(changed, now_ms);
    }

    /// All groups with their namespaces, or, where that is longer than may be read at once, the groups alone:
    /// namespaces name their group themselves.
    pub(super) fn read_ana(&mut self, now_ms: u64) {
        let Some(controller) = Controller::read(&self.info.raw) else { return };
        let groups = controller.nanagrpid.get().min(2048) as usize;
        let namespaces = match controller.mnan.get() {
            0 => controller.nn.get(),
            most => most,
        };
        let heads = size_of::<AnaHeader>() + groups * size_of::<AnaGroupHeader>();
        let whole = heads + 4 * (namespaces as usize).min(NAMESPACES_MAX);
        let limit = self.info.transfer_bytes.map_or(ANA_LOG_MAX, |most| ANA_LOG_MAX.min(most as usize));
        let (bytes, lsp) = if whole <= limit { (whole, 0) } else { (heads.min(limit), ANA_GROUPS_ONLY) };
        let page = GetLogPage { lsp, ..GetLogPage::new(lid::ANA, 0, bytes as u32) };
        self.read(Step::Ana, page, now_ms);
    }

    pub(super) fn ana_came(&mut self, data: &[u8]) -> Result<(), Failure> {
        let log = AnaLog::parse(data)
            .map_err(|e| Failure::protocol("Get Log Page, Asymmetric Namespace Access", e.to_string()))?;
        self.ana = log;
        let mut changed = false;
        let states: Vec<(u32, AnaState)> =
            self.namespaces.values().map(|info| (info.nsid, self.ana_state(info.ana_group))).collect();
        for (nsid, state) in states {
            if let Some(info) = self.namespaces.get_mut(&nsid) {
                changed |= std::mem::replace(&mut info.ana_state, state) != state;
            }
        }
        if changed && self.ready {
            self.events.push_back(Event::Ana);
        }
        Ok(())
    }

    /// A group that no log names can be reached as well as any.
    fn ana_state(&self, group: u32) -> AnaState {
        let known = self.ana.groups.iter().find(|known| known.id == group);
        known.map_or(AnaState::Optimized, |known| known.state)
    }

    pub(super) fn read_discovery(&mut self, now_ms: u64) {
        let Some(reading) = &mut self.discovery else { return };
        match reading.reader.next_command() {
            Some(page) => self.read(Step::Discovery, page, now_ms),
            None => reading.complete(),
        }
    }

    pub(super) fn discovery_came(&mut self, data: &[u8], now_ms: u64) -> Result<(), Failure> {
        if let Some(reading) = &mut self.discovery {
            reading.reader.take(data).map_err(|why| match why {
                ReadError::Unsteady => Failure::again("Get Log Page, Discovery", why.to_string()),
                why => Failure::protocol("Get Log Page, Discovery", why.to_string()),
            })?;
        }
        self.read_discovery(now_ms);
        Ok(())
    }
}
