//! A controller as the threads of a server share it. Its admin queue is one thread's, its I/O queues may be others'.

use super::access;
use super::host::Host;
use super::ids::ConnectionId;
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::controller::subsystem::AnaState;
use forebay_nvme::controller::Controller;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// From the Connect of its admin queue until that ends, and then until the last I/O queue has let go of it.
pub(crate) struct ControllerEntry {
    /// CNTLID.
    pub id: u16,
    /// Number of its subsystem.
    pub subsystem: usize,
    pub host: Arc<Host>,
    pub admin: ConnectionId,
    /// The address of ours that its host came to.
    pub local: SocketAddr,
    /// Some of its namespaces can't be reached (ANA).
    lossy: AtomicBool,
    controller: Mutex<Controller>,
    queues: Mutex<BTreeMap<u16, ConnectionId>>,
    /// I/O commands came since the keep-alive timer was last looked at.
    traffic: AtomicBool,
    /// The host hasn't switched it off, whether or not a namespace has one yet: one that comes later may.
    pub write_cache: AtomicBool,
    /// It ended: no more queues may join. Changed under the lock of `queues`.
    gone: AtomicBool,
}

/// Role of a connection, known once its Connect was admitted.
#[derive(Clone)]
pub(super) enum Role {
    New,
    Admin(Arc<ControllerEntry>),
    Io { entry: Arc<ControllerEntry>, qid: u16 },
}

impl Role {
    #[inline]
    pub(super) fn entry(&self) -> Option<&Arc<ControllerEntry>> {
        match self {
            Role::New => None,
            Role::Admin(entry) | Role::Io { entry, .. } => Some(entry),
        }
    }
}

/// What a look at a controller's keep-alive timer found.
pub(super) enum KeepAlive {
    /// The host kept silent for too long.
    Expired,
    /// To be looked at again then, ms since the server began.
    LookAgain(u64),
    Off,
}

impl ControllerEntry {
    pub(super) fn new(
        subsystem: usize,
        host: Arc<Host>,
        (admin, local): (ConnectionId, SocketAddr),
        controller: Controller,
    ) -> ControllerEntry {
        ControllerEntry {
            local,
            lossy: AtomicBool::new(access::is_lossy(controller.subsystem())),
            id: controller.id(),
            subsystem,
            host,
            admin,
            write_cache: AtomicBool::new(true),
            controller: Mutex::new(controller),
            queues: Mutex::default(),
            traffic: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<u16, ConnectionId>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is its I/O queue `qid` from now on, if `joins` agrees. False: it ended meanwhile.
    pub(super) fn join<E>(
        &self,
        qid: u16,
        connection: ConnectionId,
        joins: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut queues = self.queues();
        if self.gone.load(Ordering::Relaxed) {
            return Ok(false);
        }
        joins()?;
        queues.insert(qid, connection);
        Ok(true)
    }

    /// The connection of an I/O queue ended.
    pub(super) fn leave(&self, qid: u16) {
        self.controller().disconnect_io(qid);
        self.queues().remove(&qid);
        self.host.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// An I/O command came.
    #[inline]
    pub(super) fn note_traffic(&self) {
        // Read first: the line stays with every thread that has a queue.
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn check_keep_alive(&self, now_ms: u64) -> KeepAlive {
        let mut controller = self.controller();
        let due = controller.deadline_ms().is_some_and(|deadline| deadline <= now_ms);
        if due && controller.tick(self.traffic.swap(false, Ordering::Relaxed), now_ms) {
            return KeepAlive::Expired;
        }
        controller.deadline_ms().map_or(KeepAlive::Off, KeepAlive::LookAgain)
    }

    /// Shows its host another subsystem.
    pub(super) fn update(&self, subsystem: Arc<nvme::Subsystem>) {
        let mut controller = self.controller();
        self.lossy.store(access::is_lossy(&subsystem), Ordering::Release);
        controller.update(subsystem);
    }

    /// Returns the state of a namespace for its host. Costs a lock only where some can't be reached.
    #[inline]
    pub(super) fn reaches(&self, nsid: u32) -> AnaState {
        if !self.lossy.load(Ordering::Acquire) {
            return AnaState::Optimized;
        }
        let controller = self.controller();
        let subsystem = controller.subsystem();
        let namespace = subsystem.namespace(nsid);
        namespace.map_or(AnaState::Optimized, |namespace| subsystem.ana_state(namespace.ana_group))
    }

    /// The groups that its host reaches by other than the best way, by name of their state.
    pub(super) fn states(&self) -> BTreeMap<u32, &'static str> {
        match &self.controller().subsystem().kind {
            nvme::Kind::Nvm { ana, .. } => ana
                .iter()
                .filter(|(_, state)| **state != AnaState::Optimized)
                .map(|(group, state)| (*group, state.name()))
                .collect(),
            nvme::Kind::Discovery { .. } => BTreeMap::new(),
        }
    }

    /// The connections of its I/O queues.
    pub(super) fn io_queues(&self) -> Vec<ConnectionId> {
        self.queues().values().copied().collect()
    }

    /// The connection that is its I/O queue `sqid`.
    pub(super) fn io_queue(&self, sqid: u16) -> Option<ConnectionId> {
        self.queues().get(&sqid).copied()
    }

    /// Its admin queue ended, and so does it: no more queues join. Returns those that it has.
    pub(super) fn end(&self) -> Vec<ConnectionId> {
        let queues = self.queues();
        self.gone.store(true, Ordering::Relaxed);
        self.host.connections.fetch_sub(1, Ordering::Relaxed);
        queues.values().copied().collect()
    }
}
