//! State that the threads of one server share: its configuration, its subsystems and through them controllers and hosts. None of it is on the way of an I/O but
//! for a number that says whether something changed, and a host's limits where it has any.

use super::config::Config;
use super::inbox::{Inbox, Message};
use super::log::Log;
use super::refusals::Refusals;
use super::subsystem::SubsystemEntry;
use super::thread_pool::{self, Failure};
use forebay_model::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub(crate) struct TargetShared {
    pub config: Config,
    /// Number of threads that serve.
    pub threads: usize,
    /// CPUs that they stay on, in turn; none: anywhere.
    pub cpus: Vec<u32>,
    pub log: Log,
    pub began: Instant,
    /// The last is the discovery subsystem.
    pub subsystems: Vec<Arc<SubsystemEntry>>,
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

/// A connection, as other threads name it. `serial` is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId {
    pub thread: usize,
    pub index: u32,
    pub serial: u64,
}

impl TargetShared {
    /// Opens every source; touches no socket.
    pub(crate) fn open(config: Config, log: Log, began: Instant) -> Result<TargetShared, Error> {
        let cpus = super::config::cpus(&config.cpus)?;
        let threads = thread_pool::threads(config.threads, &cpus);
        let given = config.subsystems.iter().enumerate();
        let subsystems =
            given.map(|(index, given)| SubsystemEntry::open(index, &config, given, threads as u32));
        let mut subsystems = subsystems.collect::<Result<Vec<_>, _>>()?;
        subsystems.push(SubsystemEntry::discovery(subsystems.len(), &config));
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

    pub(crate) fn subsystem(&self, nqn: &str) -> Option<&Arc<SubsystemEntry>> {
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
