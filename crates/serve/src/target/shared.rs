//! State that the threads of one server share: subsystems, controllers, hosts. None of it is on the way of an I/O but
//! for a number that says whether something changed, and a host's limits where it has any.

use super::access::Access;
use super::config::{Config, HostLimits};
use super::controller::ControllerEntry;
use super::inbox::{Inbox, Message};
use super::log::Log;
use super::refusals::Refusals;
use super::stats::Counts;
use super::thread_pool::{self, Failure};
use crate::namespace::volume::Volume;
use forebay_io::rate::Rate;
use forebay_model::random::derive;
use forebay_model::Error;
use forebay_nvme::controller::connect::Ids;
use forebay_nvme::controller::subsystem as nvme;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

pub(crate) type Volumes = BTreeMap<u32, Arc<Volume>>;

pub(crate) struct TargetShared {
    pub config: Config,
    /// Number of threads that serve.
    pub threads: usize,
    /// CPUs that they stay on, in turn; none: anywhere.
    pub cpus: Vec<u32>,
    pub log: Log,
    pub began: Instant,
    /// The last is the discovery subsystem.
    pub subsystems: Vec<Arc<Subsystem>>,
    pub inboxes: OnceLock<Vec<Arc<Inbox>>>,
    /// Addresses that we listen on, with ports as given.
    pub addresses: OnceLock<Addresses>,
    /// Counts changes of namespaces.
    pub generation: AtomicU64,
    pub draining: AtomicBool,
    pub totals: Totals,
    pub refusals: Refusals,
    pub failure: Failure,
}

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub tcp: Vec<SocketAddr>,
    pub rdma: Vec<SocketAddr>,
}

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub connections: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub broken: AtomicU64,
}

pub(crate) struct Subsystem {
    pub nqn: String,
    pub index: usize,
    state: Mutex<State>,
    /// Held while namespaces come or go.
    changing: Mutex<()>,
}

/// Behind the subsystem's lock.
pub(crate) struct State {
    /// As hosts see it but for ANA states, which depend on where they came to: `access`.
    pub nvme: Arc<nvme::Subsystem>,
    pub access: Access,
    pub volumes: Arc<Volumes>,
    pub ids: Ids,
    pub controllers: BTreeMap<u16, Arc<ControllerEntry>>,
    pub hosts: BTreeMap<String, Arc<Host>>,
}

/// A connection, as other threads name it. `serial` is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId {
    pub thread: usize,
    pub index: u32,
    pub serial: u64,
}

/// One host at one subsystem.
#[derive(Debug)]
pub(crate) struct Host {
    pub nqn: String,
    pub limits: HostLimits,
    pub connections: AtomicU32,
    pub bytes_in_flight: AtomicU64,
    /// Rates of bytes and of commands; in ns since the server began.
    rates: [Rate; 2],
    past: Mutex<Counts>,
}

/// Hosts that came and went are remembered up to this many: whoever connects chooses the name.
const HOSTS_KEPT: usize = 1024;

impl Host {
    fn new(nqn: &str, limits: HostLimits) -> Host {
        Host {
            nqn: nqn.into(),
            limits,
            connections: AtomicU32::new(0),
            bytes_in_flight: AtomicU64::new(0),
            rates: [Rate::new(limits.rate.map(|s| s.0)), Rate::new(limits.iops)],
            past: Mutex::default(),
        }
    }

    /// Lets a command through, or says in how many ns to ask again. What was let in is given back by `leave`.
    pub(crate) fn enter(&self, bytes: u64, now_ns: u64) -> Result<(), u64> {
        const SOON_NS: u64 = 1_000_000;
        if let Some(most) = self.limits.bytes_in_flight {
            let room = |held: u64| (held == 0 || held + bytes <= most.0).then_some(held + bytes);
            let taken = self.bytes_in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
            taken.map_err(|_| SOON_NS)?;
        }
        let [of_bytes, of_commands] = &self.rates;
        let spent = of_bytes.spend(bytes, now_ns).and_then(|()| {
            // What goes no further has cost nothing.
            of_commands.spend(1, now_ns).inspect_err(|_| of_bytes.give_back(bytes))
        });
        spent.inspect_err(|_| self.leave(bytes))
    }

    /// Counts a command that can't be kept waiting; those that come later wait for it.
    pub(crate) fn charge(&self, bytes: u64, now_ns: u64) {
        if self.limits.bytes_in_flight.is_some() {
            self.bytes_in_flight.fetch_add(bytes, Ordering::Relaxed);
        }
        for (rate, amount) in self.rates.iter().zip([bytes, 1]) {
            rate.reserve(amount, now_ns);
        }
    }

    /// One connection more, where its limit allows that.
    pub(crate) fn joins(&self) -> bool {
        let most = self.limits.connections.unwrap_or(u32::MAX);
        let more = |n: u32| (n < most).then_some(n + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn past(&self) -> MutexGuard<'_, Counts> {
        self.past.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, bytes: u64) {
        if self.limits.bytes_in_flight.is_some() {
            self.bytes_in_flight.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Subsystem {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Alone, as long as the guard is kept: for whoever adds or removes a namespace.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY
    }

    /// The host's entry, made when it first comes.
    pub(crate) fn host(&self, state: &mut State, nqn: &str, config: &Config) -> Arc<Host> {
        let own = config.subsystems.get(self.index).into_iter().flat_map(|s| &s.hosts).find(|h| h.nqn == nqn);
        let limits = own.and_then(|h| h.limits).unwrap_or(config.host_limits);
        if state.hosts.len() >= HOSTS_KEPT && !state.hosts.contains_key(nqn) {
            state.hosts.retain(|_, host| Arc::strong_count(host) > 1);
        }
        state.hosts.entry(nqn.into()).or_insert_with(|| Arc::new(Host::new(nqn, limits))).clone()
    }

    /// Puts other namespaces in place of those that are there, and tells whoever is connected.
    pub(crate) fn replace(&self, state: &mut State, volumes: Volumes) -> Vec<ConnectionId> {
        let namespaces = volumes.iter().map(|(nsid, v)| (*nsid, v.as_namespace())).collect();
        let nvme::Kind::Nvm { ana, .. } = &state.nvme.kind else { return Vec::new() };
        let kind = nvme::Kind::Nvm { namespaces, ana: ana.clone() };
        state.nvme = Arc::new(nvme::Subsystem { kind, ..(*state.nvme).clone() });
        state.volumes = Arc::new(volumes);
        self.show(state)
    }
}

impl TargetShared {
    /// Opens every source; touches no socket.
    pub(crate) fn open(config: Config, log: Log, began: Instant) -> Result<TargetShared, Error> {
        let cpus = super::config::cpus(&config.cpus)?;
        let threads = thread_pool::threads(config.threads, &cpus);
        let mut subsystems = Vec::new();
        for (index, given) in config.subsystems.iter().enumerate() {
            let mut volumes = Volumes::new();
            for namespace in &given.namespaces {
                let taken = |nsid: &u32| volumes.contains_key(nsid) || named(given, *nsid);
                let nsid = if namespace.nsid == 0 { free_nsid(&taken)? } else { namespace.nsid };
                volumes.insert(nsid, Arc::new(Volume::open(&given.nqn, nsid, namespace, threads as u32)?));
            }
            let namespaces = volumes.iter().map(|(nsid, v)| (*nsid, v.as_namespace())).collect();
            let kind = nvme::Kind::Nvm { namespaces, ana: BTreeMap::new() };
            let nvme = describe(&config, given, kind);
            let access = Access::of(&given.nqn, &given.ana)?;
            subsystems.push(subsystem(index, nvme, access, volumes));
        }
        let discovery = super::config::Subsystem {
            nqn: DISCOVERY.into(),
            allow_any_host: true,
            ..super::config::Subsystem::default()
        };
        let kind = nvme::Kind::Discovery { entries: Vec::new(), generation: 0 };
        let nvme = describe(&config, &discovery, kind);
        subsystems.push(subsystem(subsystems.len(), nvme, Access::default(), Volumes::new()));
        Ok(TargetShared {
            config,
            cpus,
            threads,
            log,
            began,
            subsystems,
            inboxes: OnceLock::new(),
            addresses: OnceLock::new(),
            generation: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            totals: Totals::default(),
            refusals: Refusals::default(),
            failure: Failure::default(),
        })
    }

    pub(crate) fn subsystem(&self, nqn: &str) -> Option<&Arc<Subsystem>> {
        self.subsystems.iter().find(|s| s.nqn == nqn)
    }

    pub(crate) fn inboxes(&self) -> &[Arc<Inbox>] {
        self.inboxes.get().map_or(&[], |m| m)
    }

    /// Tells the thread that has the connection.
    pub(crate) fn post(&self, to: ConnectionId, message: Message) {
        self.inboxes()[to.thread].post(message);
    }

    /// One connection more may be. Counts it as refused where not.
    pub(crate) fn has_room(&self) -> bool {
        let full = self.totals.connections.load(Ordering::Relaxed) >= u64::from(self.config.connections);
        self.totals.refused.fetch_add(full.into(), Ordering::Relaxed);
        !full
    }

    /// The thread that a connection goes to, which has one more from now on. `near`: the processor that takes its packets.
    pub(crate) fn thread_for(&self, near: Option<u32>) -> Option<&Arc<Inbox>> {
        let loads: Vec<u32> = self.inboxes().iter().map(|m| m.load.load(Ordering::Relaxed)).collect();
        let inbox = &self.inboxes()[thread_pool::choose(&loads, &self.cpus, near)?];
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.totals.accepted.fetch_add(1, Ordering::Relaxed);
        inbox.load.fetch_add(1, Ordering::Relaxed);
        Some(inbox)
    }
}

fn named(given: &super::config::Subsystem, nsid: u32) -> bool {
    given.namespaces.iter().any(|n| n.nsid == nsid)
}

/// The lowest identifier that isn't taken.
pub(crate) fn free_nsid(taken: &dyn Fn(&u32) -> bool) -> Result<u32, Error> {
    (1..=nvme::NAMESPACES_MAX).find(|nsid| !taken(nsid)).ok_or_else(|| {
        let found = format!("all {} namespace identifiers are taken", nvme::NAMESPACES_MAX);
        Error::request("a namespace more", found, "another subsystem")
    })
}

fn subsystem(index: usize, nvme: nvme::Subsystem, access: Access, volumes: Volumes) -> Arc<Subsystem> {
    let state = State {
        ids: Ids::new(nvme.limits.controllers.clone()),
        volumes: Arc::new(volumes),
        controllers: BTreeMap::new(),
        hosts: BTreeMap::new(),
        access,
        nvme: Arc::new(nvme),
    };
    Arc::new(Subsystem {
        nqn: state.nvme.nqn.clone(),
        index,
        state: Mutex::new(state),
        changing: Mutex::default(),
    })
}

pub(crate) fn describe(
    config: &Config,
    given: &super::config::Subsystem,
    kind: nvme::Kind,
) -> nvme::Subsystem {
    let settings = |host: Option<&super::config::Host>| nvme::HostSettings {
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
    use crate::target::config::Size;

    // promise: TGT-7
    #[test]
    fn a_rate_is_kept_and_a_pause_gives_a_burst_only() {
        let limits = HostLimits { rate: Some(Size(1_000_000)), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        let (mut now, mut bytes) = (10_000_000_000, 0u64);
        let end = now + 1_000_000_000;
        while now < end {
            match host.enter(10_000, now) {
                Ok(()) => bytes += 10_000,
                Err(wait) => now += wait.max(1),
            }
        }
        assert!((1_000_000..=1_070_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_command_that_one_limit_keeps_back_costs_the_other_nothing() {
        let limits = HostLimits { rate: Some(Size(1_000_000)), iops: Some(10), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        let (mut now, mut commands) = (10_000_000_000, 0);
        let end = now + 2_000_000_000;
        while now < end {
            match host.enter(50_000, now) {
                Ok(()) => commands += 1,
                Err(_) => now += 1_000_000,
            }
        }
        assert!((20..=22).contains(&commands), "{commands}");
    }

    #[test]
    fn one_command_always_fits_and_what_left_makes_room() {
        let limits = HostLimits { bytes_in_flight: Some(Size(4096)), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        assert_eq!(host.enter(8192, 0), Ok(()), "alone, though it is longer");
        assert!(host.enter(512, 0).is_err());
        host.leave(8192);
        assert_eq!(host.enter(4096, 0), Ok(()));
    }

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
