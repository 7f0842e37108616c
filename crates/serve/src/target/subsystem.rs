//! A subsystem as the threads of a server share it: its namespaces, its controllers, and the hosts that have come.

use super::access::Access;
use super::config::{self, Config};
use super::controller::ControllerEntry;
use super::host::Host;
use super::ids::ConnectionId;
use super::refusals;
use super::stats::{Counts, HostStats, SubsystemStats};
use crate::namespace::volume::Volume;
use forebay_model::random::derive;
use forebay_model::Error;
use forebay_nvme::controller::connect::{Admitted, Connect, Ids, Refusal};
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::controller::Controller;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Hosts that came and went are remembered up to this many: whoever connects chooses the name.
const HOSTS_KEPT: usize = 1024;

/// By nsid.
pub(super) type Volumes = BTreeMap<u32, Arc<Volume>>;

/// Whoever changes its namespaces or their ANA states is told which connections may have events to send.
pub(crate) struct SubsystemEntry {
    pub nqn: String,
    /// Among the server's, and in its configuration.
    pub index: usize,
    state: Mutex<SubsystemState>,
    /// Held while namespaces come or go.
    changing: Mutex<()>,
}

struct SubsystemState {
    /// As hosts see it but for ANA states, which depend on where they came to: `access`.
    nvme: Arc<nvme::Subsystem>,
    access: Access,
    volumes: Arc<Volumes>,
    ids: Ids,
    controllers: BTreeMap<u16, Arc<ControllerEntry>>,
    hosts: BTreeMap<String, Arc<Host>>,
}

/// Why there is no controller more.
pub(super) enum NoController {
    /// A limit is reached.
    LimitReached(String),
    Refused(Refusal),
}

impl SubsystemEntry {
    /// Opens its sources.
    pub(super) fn open(
        index: usize,
        config: &Config,
        given: &config::Subsystem,
        threads: u32,
    ) -> Result<Arc<SubsystemEntry>, Error> {
        let mut volumes = Volumes::new();
        for namespace in &given.namespaces {
            let named = |nsid: u32| given.namespaces.iter().any(|n| n.nsid == nsid);
            let taken = |nsid: &u32| volumes.contains_key(nsid) || named(*nsid);
            let nsid = if namespace.nsid == 0 { free_nsid(&taken)? } else { namespace.nsid };
            volumes.insert(nsid, Arc::new(Volume::open(&given.nqn, nsid, namespace, threads)?));
        }
        let namespaces = volumes.iter().map(|(nsid, v)| (*nsid, v.as_namespace())).collect();
        let kind = nvme::Kind::Nvm { namespaces, ana: BTreeMap::new() };
        let access = Access::new(&given.nqn, &given.ana)?;
        Ok(SubsystemEntry::new(index, describe(config, given, kind), access, volumes))
    }

    /// The discovery subsystem.
    pub(super) fn discovery(index: usize, config: &Config) -> Arc<SubsystemEntry> {
        let given =
            config::Subsystem { nqn: DISCOVERY.into(), allow_any_host: true, ..config::Subsystem::default() };
        let kind = nvme::Kind::Discovery { entries: Vec::new(), generation: 0 };
        SubsystemEntry::new(index, describe(config, &given, kind), Access::default(), Volumes::new())
    }

    fn new(index: usize, nvme: nvme::Subsystem, access: Access, volumes: Volumes) -> Arc<SubsystemEntry> {
        let state = SubsystemState {
            ids: Ids::new(nvme.limits.controllers.clone()),
            volumes: Arc::new(volumes),
            controllers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            access,
            nvme: Arc::new(nvme),
        };
        Arc::new(SubsystemEntry {
            nqn: state.nvme.nqn.clone(),
            index,
            state: Mutex::new(state),
            changing: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, SubsystemState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY
    }

    pub(super) fn nvme(&self) -> Arc<nvme::Subsystem> {
        self.state().nvme.clone()
    }

    // Namespaces.

    pub(super) fn volumes(&self) -> Arc<Volumes> {
        self.state().volumes.clone()
    }

    /// Alone, as long as the guard is kept: for whoever adds or removes a namespace.
    pub(super) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One namespace more, under its nsid, which is free.
    pub(super) fn add(&self, volume: Volume) -> Vec<ConnectionId> {
        let mut state = self.state();
        let mut volumes = (*state.volumes).clone();
        volumes.insert(volume.nsid, Arc::new(volume));
        state.replace(volumes)
    }

    /// Commands that arrive once the threads have followed find no such namespace.
    pub(super) fn remove(&self, nsid: u32) -> Result<(Arc<Volume>, Vec<ConnectionId>), Error> {
        let mut state = self.state();
        let mut volumes = (*state.volumes).clone();
        let Some(removed) = volumes.remove(&nsid) else {
            let found = format!("{} has no such namespace", self.nqn);
            let there = volumes.keys().map(u32::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::request(format!("nsid = {nsid}"), found, format!("one of: {there}")));
        };
        Ok((removed, state.replace(volumes)))
    }

    /// Puts other ANA states in place of those of its groups.
    pub(super) fn set_access(&self, access: Access) -> Vec<ConnectionId> {
        let mut state = self.state();
        state.access = access;
        state.show()
    }

    // Controllers.

    /// A controller for a host whose admin queue is connection `admin`, at our address `local`. `seen`: what its host sees in
    /// the place of this.
    pub(super) fn add_controller(
        &self,
        connect: &Connect,
        (admin, local): (ConnectionId, SocketAddr),
        seen: Option<Arc<nvme::Subsystem>>,
        (config, now_ms): (&Config, u64),
    ) -> Result<(Arc<ControllerEntry>, Admitted), NoController> {
        let mut state = self.state();
        let cntlid = state.ids.take().ok_or_else(|| NoController::LimitReached(refusals::NO_IDS.into()))?;
        let nvme = seen.unwrap_or_else(|| state.access.seen_from(local, &state.nvme));
        let (mut controller, admitted) =
            Controller::connect(nvme, connect, cntlid, now_ms).map_err(|refusal| {
                state.ids.give_back(cntlid);
                NoController::Refused(refusal)
            })?;
        let host = state.host(&connect.host_nqn, || {
            let own = config.subsystems.get(self.index).into_iter().flat_map(|s| &s.hosts);
            let own = own.clone().find(|h| h.nqn == connect.host_nqn);
            own.and_then(|h| h.limits).unwrap_or(config.host_limits)
        });
        if !host.joins() {
            state.ids.give_back(cntlid);
            return Err(NoController::LimitReached(refusals::of_host(&host)));
        }
        refusals::limit_queues(&mut controller, &host);
        let entry = Arc::new(ControllerEntry::new(self.index, host, (admin, local), controller));
        state.controllers.insert(cntlid, entry.clone());
        Ok((entry, admitted))
    }

    pub(super) fn controller(&self, cntlid: u16) -> Option<Arc<ControllerEntry>> {
        self.state().controllers.get(&cntlid).cloned()
    }

    /// It ended: its identifier may come again.
    pub(super) fn remove_controller(&self, cntlid: u16) {
        let mut state = self.state();
        state.controllers.remove(&cntlid);
        state.ids.give_back(cntlid);
    }

    /// Its namespaces and hosts; what threads have counted since is theirs to add.
    pub(super) fn stats(&self) -> SubsystemStats {
        let state = self.state();
        let past = |nqn: &String, counts: Counts| HostStats { nqn: nqn.clone(), connections: 0, counts };
        SubsystemStats {
            nqn: self.nqn.clone(),
            namespaces: state.volumes.values().map(|v| v.stats()).collect(),
            hosts: state.hosts.iter().map(|(nqn, host)| past(nqn, *host.past())).collect(),
        }
    }
}

impl SubsystemState {
    /// Puts other namespaces in place of those that are there.
    fn replace(&mut self, volumes: Volumes) -> Vec<ConnectionId> {
        let namespaces = volumes.iter().map(|(nsid, v)| (*nsid, v.as_namespace())).collect();
        let nvme::Kind::Nvm { ana, .. } = &self.nvme.kind else { return Vec::new() };
        let kind = nvme::Kind::Nvm { namespaces, ana: ana.clone() };
        self.nvme = Arc::new(nvme::Subsystem { kind, ..(*self.nvme).clone() });
        self.volumes = Arc::new(volumes);
        self.show()
    }

    /// Shows each controller the subsystem as it is now.
    fn show(&self) -> Vec<ConnectionId> {
        for entry in self.controllers.values() {
            entry.update(self.access.seen_from(entry.local, &self.nvme));
        }
        self.controllers.values().map(|entry| entry.admin).collect()
    }

    /// The host's entry, made when it first comes.
    fn host(&mut self, nqn: &str, limits: impl FnOnce() -> config::HostLimits) -> Arc<Host> {
        if self.hosts.len() >= HOSTS_KEPT && !self.hosts.contains_key(nqn) {
            self.hosts.retain(|_, host| Arc::strong_count(host) > 1);
        }
        self.hosts.entry(nqn.into()).or_insert_with(|| Arc::new(Host::new(nqn, limits()))).clone()
    }
}

/// The lowest identifier that isn't taken.
pub(crate) fn free_nsid(taken: &dyn Fn(&u32) -> bool) -> Result<u32, Error> {
    (1..=nvme::NAMESPACES_MAX).find(|nsid| !taken(nsid)).ok_or_else(|| {
        let found = format!("all {} namespace identifiers are taken", nvme::NAMESPACES_MAX);
        Error::request("a namespace more", found, "another subsystem")
    })
}

/// As hosts see it.
fn describe(config: &Config, given: &config::Subsystem, kind: nvme::Kind) -> nvme::Subsystem {
    let settings = |host: Option<&config::Host>| nvme::HostSettings {
        authentication: host.is_some_and(|h| h.dhchap_key.is_some()),
        queues: host.and_then(|h| h.limits).unwrap_or(config.host_limits).queues,
        queue_entries: None,
    };
    let listed = || given.hosts.iter().map(|h| (h.nqn.clone(), settings(Some(h)))).collect();
    nvme::Subsystem {
        nqn: given.nqn.clone(),
        serial: if given.serial.is_empty() { serial(&given.nqn) } else { given.serial.clone() },
        model: if given.model.is_empty() { "Forebay".into() } else { given.model.clone() },
        firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
        kind,
        hosts: if given.allow_any_host {
            nvme::Hosts::Any(settings(None))
        } else {
            nvme::Hosts::Listed(listed())
        },
        limits: nvme::Limits {
            queues: config.queues,
            queue_entries: config.queue_depth,
            in_capsule_bytes: config.in_capsule.0 as u32,
            transfer_bytes: Some(config.max_transfer.0 as u32),
            keep_alive_ms: config.keep_alive.range_ms(),
            keep_alive_required: config.keep_alive.required,
            controllers: given.cntlids().expect("the configuration was checked"),
            ..nvme::Limits::default()
        },
    }
}

/// Sixteen hexadecimal digits, the same for the same NQN.
pub(crate) fn serial(nqn: &str) -> String {
    format!("{:016X}", nqn.bytes().fold(0, |seed, byte| derive(seed, byte.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: TGT-6
    #[test]
    fn keep_alive_has_the_bounds_that_were_given_shorter_and_longer_than_usual() {
        let text = "keep_alive = {min_s = 0.5, max_s = 7200, required = true}\n\
                    [[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"\nallow_any_host = true";
        let config = Config::from_toml(text).unwrap();
        let kind = nvme::Kind::Nvm { namespaces: BTreeMap::new(), ana: BTreeMap::new() };
        let limits = describe(&config, &config.subsystems[0], kind).limits;
        let granted = [0, 100, 5000, 90_000_000].map(|asked| limits.keep_alive(asked));
        assert_eq!(granted, [7_200_000, 500, 5000, 7_200_000]);
    }
}
