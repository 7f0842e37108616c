//! Statistics of a gateway, out of what its threads and drives report.

use super::registry::{Drive, Namespace};
use crate::gateway::controller::Tally;
use crate::gateway::controller_shared::ControllerShared;
use crate::gateway::stats::{ControllerState, ControllerStats, NamespaceStats, QueueStats};
use crate::gateway::worker::Report;
use crate::namespace::volume;
use crate::target::stats::Counts;
use forebay_nvme::controller::Health;
use forebay_nvme::transport::pcie::device::Admin;
use std::sync::Arc;

/// Returns the health counters of a controller's namespaces, over all controllers.
pub(super) fn health(shared: &ControllerShared) -> Health {
    volume::health(shared.view().iter().map(|(_, shown)| &*shown.volume))
}

/// `devices`: what block devices over it counted.
pub(super) fn namespace_stats<'a>(
    namespace: &Namespace,
    reports: &[Report],
    devices: impl Iterator<Item = &'a crate::target::stats::NamespaceStats>,
) -> NamespaceStats {
    let volume = &namespace.volume;
    let mut counted = volume.stats();
    let here = Arc::as_ptr(volume) as usize;
    for (_, more) in reports.iter().flat_map(|r| &r.namespaces).filter(|(at, _)| *at == here) {
        counted.add(more);
    }
    devices.for_each(|more| counted.add(more));
    NamespaceStats {
        counted,
        uuid: volume.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        qos: namespace.given.qos,
        held_back: namespace.limiter.commands_held_back(),
    }
}

pub(super) fn controller_stats(drive: &Drive, reports: &[Report], tally: Option<&Tally>) -> ControllerStats {
    let tally = tally.cloned().unwrap_or_default();
    let mine =
        reports.iter().flat_map(|r| &r.queues).filter(|(controller, _)| *controller == drive.shared.id);
    let mut queues: Vec<QueueStats> = mine.map(|(_, q)| q.clone()).collect();
    queues.extend(admin_stats(&tally, &drive.shared));
    queues.sort_by_key(|q| q.qid);
    ControllerStats {
        name: drive.given.name.clone(),
        subsystem: drive.nqn.clone(),
        cntlid: drive.cntlid,
        state: match &tally {
            t if t.suspended => ControllerState::Suspended,
            t if t.fatal.is_some() => ControllerState::Failed,
            t if t.ready => ControllerState::Enabled,
            t if t.connected => ControllerState::Connected,
            _ => ControllerState::Waiting,
        },
        why: tally.fatal,
        place: drive.given.socket.clone().unwrap_or_default(),
        mapped_bytes: tally.mapped_bytes,
        mappings: tally.mappings,
        connections: tally.connections,
        resets: tally.resets,
        protocol_errors: tally.protocol_errors,
        staged_bytes: queues.iter().map(|q| q.staged_bytes).sum(),
        queues,
        ..ControllerStats::default()
    }
}

/// None: its host has not enabled it.
fn admin_stats(tally: &Tally, shared: &ControllerShared) -> Option<QueueStats> {
    let Admin { entries, in_flight, completed, failed } = tally.admin;
    (entries > 0).then(|| QueueStats {
        entries,
        in_flight: in_flight.into(),
        doorbells: shared.rings(0),
        interrupts: tally.admin_interrupts,
        counts: Counts { others: completed, errors: failed, ..Counts::default() },
        ..QueueStats::default()
    })
}
