//! Descriptions of a gateway by its controllers, and statistics of it.

use super::{Namespace, Running, Subsystem};
use crate::gateway::config;
use crate::gateway::controller::Tally;
use crate::gateway::controller_shared::{ControllerShared, Shown, View};
use crate::gateway::stats::{ControllerStats, NamespaceStats, QueueStats, State as Doing};
use crate::gateway::worker::Report;
use crate::namespace::health;
use crate::target::stats::Counts;
use crate::target::subsystem::serial;
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::controller::Health;
use forebay_nvme::transport::pcie::device::Admin;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Namespace {
    fn shown(&self) -> Shown {
        Shown { volume: self.volume.clone(), limiter: self.limiter.clone() }
    }
}

/// The namespaces that a controller shows.
pub(super) fn view(subsystem: &Subsystem, given: &config::Controller) -> View {
    let shown = |nsid: &u32| given.namespaces.as_ref().is_none_or(|list| list.contains(nsid));
    let all = subsystem.namespaces.iter().filter(|(nsid, _)| shown(nsid));
    all.map(|(nsid, namespace)| (*nsid, namespace.shown())).collect()
}

/// A controller's subsystem as its host sees it.
pub(super) fn describe(subsystem: &Subsystem, given: &config::Controller) -> Arc<nvme::Subsystem> {
    let config::Subsystem { nqn, serial: number, model, .. } = &subsystem.given;
    let namespaces =
        view(subsystem, given).iter().map(|(nsid, shown)| (*nsid, shown.volume.as_namespace())).collect();
    Arc::new(nvme::Subsystem {
        nqn: nqn.clone(),
        serial: if number.is_empty() { serial(nqn) } else { number.clone() },
        model: if model.is_empty() { "Forebay".into() } else { model.clone() },
        firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
        kind: nvme::Kind::Nvm { namespaces, ana: BTreeMap::new() },
        hosts: nvme::Hosts::Any(nvme::HostSettings::default()),
        limits: nvme::Limits {
            queues: given.queues.unwrap_or(config::QUEUES),
            queue_entries: given.queue_depth.unwrap_or(config::ENTRIES),
            transfer_bytes: Some(given.max_transfer.0 as u32),
            ..nvme::Limits::default()
        },
    })
}

/// Returns the health counters of a controller's namespaces, over all controllers.
pub(super) fn health(shared: &ControllerShared) -> Health {
    health::of(shared.view().iter().map(|(_, shown)| &*shown.volume))
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

pub(super) fn controller_stats(
    running: &Running,
    reports: &[Report],
    tally: Option<&Tally>,
) -> ControllerStats {
    let tally = tally.cloned().unwrap_or_default();
    let mine =
        reports.iter().flat_map(|r| &r.queues).filter(|(controller, _)| *controller == running.shared.id);
    let mut queues: Vec<QueueStats> = mine.map(|(_, q)| q.clone()).collect();
    queues.extend(admin_stats(&tally, &running.shared));
    queues.sort_by_key(|q| q.qid);
    ControllerStats {
        name: running.given.name.clone(),
        subsystem: running.nqn.clone(),
        cntlid: running.cntlid,
        state: match &tally {
            t if t.suspended => Doing::Suspended,
            t if t.fatal.is_some() => Doing::Failed,
            t if t.ready => Doing::Enabled,
            t if t.connected => Doing::Connected,
            _ => Doing::Waiting,
        },
        why: tally.fatal,
        place: running.given.socket.clone().unwrap_or_default(),
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
