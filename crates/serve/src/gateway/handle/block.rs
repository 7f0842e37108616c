//! One controller that is a block device of this machine: a namespace behind a `/dev/ublkbN`, or none yet.

use crate::gateway::config;
use crate::gateway::stats::{ControllerState, ControllerStats, QueueStats};
use crate::target::stats::NamespaceStats;
use crate::ublk::{self, Ublk};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct Block {
    pub nqn: String,
    /// Devices come and go one change at a time; what it is now can be asked meanwhile.
    turn: Mutex<()>,
    now: Mutex<Now>,
}

pub(super) struct Now {
    pub given: config::Controller,
    pub suspended: bool,
    /// The namespace that it shows, and its device.
    pub shown: Option<(u32, Arc<Ublk>)>,
}

impl Block {
    pub(super) fn new(nqn: &str, given: config::Controller) -> Block {
        let now = Now { suspended: given.suspended, given, shown: None };
        Block { nqn: nqn.into(), turn: Mutex::default(), now: Mutex::new(now) }
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn given(&self) -> config::Controller {
        self.now().given.clone()
    }

    pub(super) fn name(&self) -> String {
        self.now().given.name.clone()
    }

    pub(super) fn shown(&self) -> Option<(u32, Arc<Ublk>)> {
        self.now().shown.clone()
    }

    pub(super) fn device_of(&self, nsid: u32) -> Option<Arc<Ublk>> {
        self.shown().filter(|(shown, _)| *shown == nsid).map(|(_, device)| device)
    }

    pub(super) fn choose(&self, nsid: Option<u32>) {
        self.now().given.namespaces = Some(nsid.into_iter().collect());
    }

    pub(super) fn stats(&self) -> BlockStats {
        let (given, suspended, shown) = {
            let now = self.now();
            (now.given.clone(), now.suspended, now.shown.clone())
        };
        let mut stats = ControllerStats {
            name: given.name,
            subsystem: self.nqn.clone(),
            state: if suspended { ControllerState::Suspended } else { ControllerState::Waiting },
            place: given.device.map(|n| format!("/dev/ublkb{n}")).unwrap_or_default(),
            namespaces: given.namespaces.unwrap_or_default(),
            ..ControllerStats::default()
        };
        let mut moved = NamespaceStats::default();
        if let Some((_, device)) = shown {
            let reported = device.stats();
            describe(&reported, &mut stats);
            moved = counted(&reported);
        }
        BlockStats { shown: stats, counted: moved }
    }
}

/// Adds the device's own statistics.
fn describe(device: &ublk::Stats, stats: &mut ControllerStats) {
    stats.place = device.path.clone();
    stats.recovered = device.recovered;
    stats.staged_bytes = device.staged_bytes;
    stats.copied_bytes = device.copied_bytes;
    stats.fabric.clone_from(&device.fabric);
    stats.state = match device.state {
        ublk::DeviceState::Live => ControllerState::Enabled,
        ublk::DeviceState::Suspended => ControllerState::Suspended,
        ublk::DeviceState::Stopped => ControllerState::Failed,
    };
    if device.state == ublk::DeviceState::Stopped {
        stats.why = Some("somebody else stopped its device".into());
    }
    stats.queues = device
        .queues
        .iter()
        .map(|q| QueueStats {
            // As an emulated drive has them: I/O queues begin with 1.
            qid: q.queue + 1,
            thread: Some(q.thread),
            entries: device.depth,
            in_flight: q.in_flight,
            staged_bytes: q.staged_bytes,
            counts: q.counts,
            read_latency: q.read_latency.clone(),
            write_latency: q.write_latency.clone(),
            ..QueueStats::default()
        })
        .collect();
}

/// A block device among the statistics.
pub(super) struct BlockStats {
    pub shown: ControllerStats,
    pub counted: NamespaceStats,
}

impl BlockStats {
    pub(super) fn is_of(&self, nqn: &str, nsid: u32) -> bool {
        self.shown.subsystem == nqn && self.shown.namespaces.contains(&nsid)
    }
}

/// As a namespace counts.
pub(super) fn counted(device: &ublk::Stats) -> NamespaceStats {
    NamespaceStats {
        counts: device.counts,
        read_latency: device.read_latency.clone(),
        write_latency: device.write_latency.clone(),
        ..NamespaceStats::default()
    }
}
