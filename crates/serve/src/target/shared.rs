//! State that the threads of one server share: its configuration, its subsystems and through them controllers and hosts. None of it is on the way of an I/O but
//! for a number that says whether something changed, and a host's limits where it has any.

use super::config::Config;
use super::controller::ControllerEntry;
use super::ids::ConnectionId;
use super::inbox::Inbox;
use super::log::Log;
use super::message::Message;
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
    pub inboxes: OnceLock<Vec<Arc<Inbox<Message>>>>,
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

    pub(crate) fn inboxes(&self) -> &[Arc<Inbox<Message>>] {
        self.inboxes.get().map_or(&[], |m| m)
    }

    /// Tells the thread that has the connection.
    pub(crate) fn post(&self, to: ConnectionId, message: Message) {
        self.inboxes()[to.thread].post(message);
    }

    /// Has threads end connections.
    pub(super) fn close(&self, all: Vec<ConnectionId>, why: &'static str) {
        all.into_iter().for_each(|id| self.post(id, Message::Close(id, why)));
    }

    /// Has the admin queue's thread apply what waits at the controller.
    pub(super) fn have_effects_applied(&self, entry: &ControllerEntry) {
        self.post(entry.admin, Message::Effects(entry.admin));
    }

    /// On the admin queue's thread: whoever has the I/O queue is asked to give a command up.
    pub(super) fn ask_to_abort(&self, entry: &Arc<ControllerEntry>, tag: u16, sqid: u16, cid: u16) {
        match entry.io_queue(sqid) {
            Some(id) => self.post(id, Message::Abort { id, entry: entry.clone(), cid, tag }),
            None => entry.controller().aborted(tag, false),
        }
    }

    /// What came of the Abort with that tag; the admin queue's thread answers it.
    pub(super) fn aborted(&self, entry: &ControllerEntry, tag: u16, aborted: bool) {
        entry.controller().aborted(tag, aborted);
        self.have_effects_applied(entry);
    }

    /// A controller's admin queue ended, and so does the controller: its identifier may come again.
    pub(super) fn end_controller(&self, entry: &ControllerEntry) {
        self.close(entry.end(), "its admin queue is gone");
        self.subsystems[entry.subsystem].remove_controller(entry.id);
    }

    /// A connection of that thread's is gone.
    pub(crate) fn left(&self, inbox: &Inbox<Message>) {
        inbox.load.fetch_sub(1, Ordering::Relaxed);
        self.totals.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// One connection more may be. Counts it as refused where not.
    pub(crate) fn has_room(&self) -> bool {
        let full = self.totals.connections.load(Ordering::Relaxed) >= u64::from(self.config.connections);
        self.totals.refused.fetch_add(full.into(), Ordering::Relaxed);
        !full
    }

    /// The thread that a connection goes to, which has one more from now on. `near`: the processor that takes its packets.
    pub(crate) fn thread_for(&self, near: Option<u32>) -> Option<&Arc<Inbox<Message>>> {
        let loads: Vec<u32> = self.inboxes().iter().map(|m| m.load.load(Ordering::Relaxed)).collect();
        let inbox = &self.inboxes()[thread_pool::choose(&loads, &self.cpus, near)?];
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.totals.accepted.fetch_add(1, Ordering::Relaxed);
        inbox.load.fetch_add(1, Ordering::Relaxed);
        Some(inbox)
    }
}
