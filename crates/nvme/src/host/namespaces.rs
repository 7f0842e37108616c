//! The namespaces of a controller, and the scan for them and their properties (base, section 5.17; nvm, section 4.1.5).

use super::{ControllerInfo, Event, Failure, NamespaceInfo};
use crate::identify::{cns, parse_descriptors, Controller, Descriptor, Namespace, NamespaceList, BYTES};
use crate::log::{
    lid, AnaGroupHeader, AnaHeader, AnaLog, AnaState, ChangedNamespaces, GetLogPage, ANA_GROUPS_ONLY,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Namespaces of one controller that are looked at.
const NAMESPACES_MAX: usize = 4096;
/// Longest ANA log that is read, bytes.
const ANA_LOG_MAX: usize = 64 << 10;

/// Step of a scan: an Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanStep {
    /// Which namespaces above this one are active.
    List {
        after: u32,
    },
    Namespace(u32),
    Descriptors(u32),
}

impl ScanStep {
    /// Description for failures.
    pub(super) fn name(self) -> String {
        match self {
            ScanStep::List { .. } => LIST.into(),
            ScanStep::Namespace(nsid) => format!("Identify of namespace {nsid}"),
            ScanStep::Descriptors(nsid) => format!("Identify of the descriptors of namespace {nsid}"),
        }
    }

    /// CNS and NSID.
    pub(super) fn identify(self) -> (u8, u32) {
        match self {
            ScanStep::List { after } => (cns::ACTIVE_NAMESPACES, after),
            ScanStep::Namespace(nsid) => (cns::NAMESPACE, nsid),
            ScanStep::Descriptors(nsid) => (cns::NAMESPACE_DESCRIPTORS, nsid),
        }
    }
}

const LIST: &str = "Identify of the active namespaces";

/// A scan that is under way.
#[derive(Debug, Default)]
struct Scan {
    active: BTreeSet<u32>,
    /// Namespaces that are known to have changed; None: any may have.
    changed: Option<BTreeSet<u32>>,
    /// To be identified.
    pending: VecDeque<u32>,
    /// Identified; its descriptors are still to come.
    found: Option<NamespaceInfo>,
}

/// Namespaces as they were last looked at. Each call that takes an answer says what to look at next.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    /// The only one that is looked at; None: all.
    only: Option<u32>,
    known: BTreeMap<u32, NamespaceInfo>,
    ana: AnaLog,
    scan: Scan,
    /// All were looked at once: changes are told of.
    watched: bool,
    news: Vec<Event>,
}

impl Namespaces {
    pub(super) fn new(only: Option<u32>) -> Namespaces {
        Namespaces { only, ..Namespaces::default() }
    }

    pub(super) fn known(&self) -> &BTreeMap<u32, NamespaceInfo> {
        &self.known
    }

    /// Changes are told of from here on.
    pub(super) fn watch(&mut self) {
        self.watched = true;
    }

    /// What changed since this was asked for last.
    pub(super) fn take_news(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.news)
    }

    fn tell(&mut self, event: Event) {
        if self.watched {
            self.news.push(event);
        }
    }

    /// Begins a scan; `changed`: namespaces that are known to have changed, None where any may have.
    pub(super) fn begin(&mut self, changed: Option<BTreeSet<u32>>) -> ScanStep {
        self.scan = Scan { changed, ..Scan::default() };
        ScanStep::List { after: 0 }
    }

    /// Begins a scan of those that the Changed Namespace List names.
    pub(super) fn changes_came(&mut self, bytes: &[u8; BYTES]) -> ScanStep {
        let page = ChangedNamespaces::read(bytes).copied().unwrap_or_default();
        let changed = page.changed().map(|nsids| nsids.collect());
        self.begin(changed)
    }

    /// A list of at most 1024 active namespaces above `after`, in order.
    pub(super) fn listed(&mut self, after: u32, bytes: &[u8; BYTES]) -> Result<Option<ScanStep>, Failure> {
        let list = NamespaceList::read(bytes).copied().unwrap_or_default();
        let mut last = after;
        for nsid in list.iter() {
            if nsid <= last {
                let found = format!("namespace {nsid} comes behind namespace {last}, which is out of order");
                return Err(Failure::protocol(LIST, found));
            }
            last = nsid;
            self.scan.active.insert(nsid);
        }
        if self.scan.active.len() > NAMESPACES_MAX {
            let found = format!("there are more than {NAMESPACES_MAX} of them");
            return Err(Failure::refused(LIST, found));
        }
        if list.is_full() && last < u32::MAX - 1 {
            return Ok(Some(ScanStep::List { after: last }));
        }
        self.end_of_list()
    }

    fn end_of_list(&mut self) -> Result<Option<ScanStep>, Failure> {
        let active = std::mem::take(&mut self.scan.active);
        if let Some(nsid) = self.only.filter(|nsid| !self.watched && !active.contains(nsid)) {
            let all: Vec<String> = active.iter().take(20).map(u32::to_string).collect();
            let found = match all.is_empty() {
                true => "the subsystem has no namespaces for this host".into(),
                false => format!("it is not there; there are: {}", all.join(", ")),
            };
            return Err(Failure::refused(format!("namespace {nsid}"), found));
        }
        let gone: Vec<u32> = self.known.keys().filter(|nsid| !active.contains(nsid)).copied().collect();
        gone.into_iter().for_each(|nsid| self.forget(nsid));
        let wanted = |nsid: &u32| self.only.is_none_or(|only| only == *nsid);
        let changed = |nsid: &u32| self.scan.changed.as_ref().is_none_or(|changed| changed.contains(nsid));
        let news = |nsid: &u32| changed(nsid) || !self.known.contains_key(nsid);
        self.scan.pending = active.into_iter().filter(|nsid| wanted(nsid) && news(nsid)).collect();
        Ok(self.scan_on())
    }

    fn scan_on(&mut self) -> Option<ScanStep> {
        self.scan.pending.pop_front().map(ScanStep::Namespace)
    }

    fn forget(&mut self, nsid: u32) {
        if self.known.remove(&nsid).is_some() {
            self.tell(Event::Gone(nsid));
        }
    }

    /// Identify Namespace came. True: the state of its ANA group may be unknown.
    pub(super) fn described(
        &mut self,
        nsid: u32,
        bytes: &[u8; BYTES],
    ) -> Result<(Option<ScanStep>, bool), Failure> {
        let namespace = Namespace::from_bytes(bytes);
        if namespace.is_inactive() {
            self.forget(nsid);
            return Ok((self.scan_on(), false));
        }
        let info = self.read_namespace(nsid, namespace, bytes);
        if let Some(why) = info.unusable.filter(|_| self.only == Some(nsid) && !self.watched) {
            return Err(Failure::refused(format!("namespace {nsid}"), why));
        }
        // The state of a group is told of only while it has namespaces.
        let known = self.known.get(&nsid).is_some_and(|known| known.ana_group == info.ana_group);
        self.scan.found = Some(info);
        Ok((Some(ScanStep::Descriptors(nsid)), !known))
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
    pub(super) fn named(&mut self, nsid: u32, data: &[u8]) -> Option<ScanStep> {
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
            if self.known.get(&nsid) != Some(&info) {
                self.tell(Event::Changed(nsid));
            }
            self.known.insert(nsid, info);
        }
        self.scan_on()
    }

    /// Takes the ANA log.
    pub(super) fn set_ana(&mut self, log: AnaLog) {
        self.ana = log;
        let mut changed = false;
        let states: Vec<(u32, AnaState)> =
            self.known.values().map(|info| (info.nsid, self.ana_state(info.ana_group))).collect();
        for (nsid, state) in states {
            if let Some(info) = self.known.get_mut(&nsid) {
                changed |= std::mem::replace(&mut info.ana_state, state) != state;
            }
        }
        if changed {
            self.tell(Event::Ana);
        }
    }

    /// A group that no log names can be reached as well as any.
    fn ana_state(&self, group: u32) -> AnaState {
        let known = self.ana.groups.iter().find(|known| known.id == group);
        known.map_or(AnaState::Optimized, |known| known.state)
    }
}

/// Request for the ANA log: all groups with their namespaces, or, where that is longer than may be read at once, the groups alone:
/// namespaces name their group themselves.
pub(super) fn ana_page(info: &ControllerInfo) -> Option<GetLogPage> {
    let controller = Controller::read(&info.raw)?;
    let groups = controller.nanagrpid.get().min(2048) as usize;
    let namespaces = match controller.mnan.get() {
        0 => controller.nn.get(),
        most => most,
    };
    let heads = size_of::<AnaHeader>() + groups * size_of::<AnaGroupHeader>();
    let whole = heads + 4 * (namespaces as usize).min(NAMESPACES_MAX);
    let limit = info.transfer_bytes.map_or(ANA_LOG_MAX, |most| ANA_LOG_MAX.min(most as usize));
    let (bytes, lsp) = if whole <= limit { (whole, 0) } else { (heads.min(limit), ANA_GROUPS_ONLY) };
    Some(GetLogPage { lsp, ..GetLogPage::new(lid::ANA, 0, bytes as u32) })
}
