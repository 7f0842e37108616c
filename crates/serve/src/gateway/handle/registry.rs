//! What a gateway has: subsystems, their namespaces, and controllers of both kinds, by name.

use super::block::Block;
use crate::gateway::config::{self, Qos};
use crate::gateway::controller::Call;
use crate::gateway::controller_shared::{ControllerShared, Shown, View};
use crate::namespace::qos::{Limiter, Limits};
use crate::namespace::volume::Volume;
use crate::target::inbox::Inbox;
use crate::target::subsystem::{free_nsid, serial};
use forebay_model::Error;
use forebay_nvme::controller::connect::Ids;
use forebay_nvme::controller::subsystem as nvme;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A namespace: what was asked for, and what it is.
#[derive(Clone)]
pub(super) struct Namespace {
    pub given: config::Namespace,
    pub volume: Arc<Volume>,
    pub limiter: Arc<Limiter>,
}

pub(super) struct Subsystem {
    /// Without namespaces and controllers, which have their own places.
    pub given: config::Subsystem,
    pub namespaces: BTreeMap<u32, Namespace>,
    pub ids: Ids,
}

impl Subsystem {
    pub(super) fn new(given: &config::Subsystem) -> Subsystem {
        Subsystem {
            given: config::Subsystem { namespaces: Vec::new(), controllers: Vec::new(), ..given.clone() },
            namespaces: BTreeMap::new(),
            ids: Ids::new(nvme::Limits::default().controllers),
        }
    }

    /// The nsid of a namespace more: the one that was asked for, or the lowest that is free.
    pub(super) fn free_nsid(&self, asked: u32) -> Result<u32, Error> {
        let taken = |nsid: &u32| self.namespaces.contains_key(nsid);
        match asked {
            0 => free_nsid(&taken),
            nsid if taken(&nsid) => {
                let found = format!("{} has it already", self.given.nqn);
                Err(Error::request(format!("nsid = {nsid}"), found, "another nsid, or 0"))
            }
            nsid => Ok(nsid),
        }
    }

    /// The namespaces that a drive shows.
    pub(super) fn view(&self, given: &config::Controller) -> View {
        let shown = |nsid: &u32| given.namespaces.as_ref().is_none_or(|list| list.contains(nsid));
        let all = self.namespaces.iter().filter(|(nsid, _)| shown(nsid));
        let shown = |n: &Namespace| Shown { volume: n.volume.clone(), limiter: n.limiter.clone() };
        all.map(|(nsid, namespace)| (*nsid, shown(namespace))).collect()
    }

    /// As a drive's host sees it.
    pub(super) fn seen_by(&self, given: &config::Controller) -> Arc<nvme::Subsystem> {
        let config::Subsystem { nqn, serial: number, model, .. } = &self.given;
        let view = self.view(given);
        let namespaces = view.iter().map(|(nsid, shown)| (*nsid, shown.volume.as_namespace())).collect();
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
}

/// A controller that is an emulated drive, and runs on its thread.
pub(super) struct Drive {
    pub given: config::Controller,
    pub nqn: String,
    pub cntlid: u16,
    pub shared: Arc<ControllerShared>,
    pub calls: Arc<Inbox<Call>>,
    pub thread: JoinHandle<()>,
}

#[derive(Default)]
pub(super) struct Registry {
    pub subsystems: BTreeMap<String, Subsystem>,
    pub drives: BTreeMap<String, Drive>,
    /// Controllers that are block devices.
    pub blocks: BTreeMap<String, Arc<Block>>,
    next_id: u64,
}

/// For all parts of a gateway. The lock is held for moments: never while a source is opened, or a thread is asked.
#[derive(Clone, Default)]
pub(super) struct SharedRegistry(Arc<Mutex<Registry>>);

impl SharedRegistry {
    pub(super) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    pub(super) fn subsystem(&self, nqn: &str) -> Result<&Subsystem, Error> {
        self.subsystems.get(nqn).ok_or_else(|| self.no_subsystem(nqn))
    }

    pub(super) fn subsystem_mut(&mut self, nqn: &str) -> Result<&mut Subsystem, Error> {
        let missing = self.no_subsystem(nqn);
        self.subsystems.get_mut(nqn).ok_or(missing)
    }

    fn no_subsystem(&self, nqn: &str) -> Error {
        let all: Vec<&str> = self.subsystems.keys().map(String::as_str).collect();
        let next = if all.is_empty() { "nvme_subsystem_create".into() } else { all.join(", ") };
        Error::request(nqn, "there is no such subsystem", next)
    }

    pub(super) fn namespace(&self, nqn: &str, nsid: u32) -> Result<&Namespace, Error> {
        self.subsystem(nqn)?.namespaces.get(&nsid).ok_or_else(|| no_namespace(nqn, nsid))
    }

    pub(super) fn namespace_mut(&mut self, nqn: &str, nsid: u32) -> Result<&mut Namespace, Error> {
        self.subsystem_mut(nqn)?.namespaces.get_mut(&nsid).ok_or_else(|| no_namespace(nqn, nsid))
    }

    pub(super) fn drives_of<'a>(&'a self, nqn: &'a str) -> impl Iterator<Item = &'a String> {
        self.drives.iter().filter(move |(_, c)| c.nqn == nqn).map(|(name, _)| name)
    }

    pub(super) fn blocks_of<'a>(&'a self, nqn: &'a str) -> impl Iterator<Item = &'a String> {
        self.blocks.iter().filter(move |(_, b)| b.nqn == nqn).map(|(name, _)| name)
    }

    pub(super) fn name_is_free(&self, name: &str) -> Result<(), Error> {
        if self.drives.contains_key(name) || self.blocks.contains_key(name) {
            return Err(Error::request(name, "this controller already exists", "another name"));
        }
        Ok(())
    }

    /// nsids that a drive shows.
    pub(super) fn shown(&self, drive: &Drive) -> Vec<u32> {
        let subsystem = self.subsystems.get(&drive.nqn);
        subsystem.map_or(Vec::new(), |s| s.view(&drive.given).iter().map(|(nsid, _)| *nsid).collect())
    }

    /// Tells a subsystem's drives what it has now.
    pub(super) fn announce(&self, nqn: &str) {
        self.drives_of(nqn).for_each(|name| self.announce_to(name));
    }

    pub(super) fn announce_to(&self, name: &str) {
        let Some(drive) = self.drives.get(name) else { return };
        let Some(subsystem) = self.subsystems.get(&drive.nqn) else { return };
        let (described, view) = (subsystem.seen_by(&drive.given), subsystem.view(&drive.given));
        drive.calls.post(Box::new(move |controller| controller.update(described, view)));
    }

    /// Never given twice.
    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

pub(super) fn limits(qos: Qos) -> Limits {
    Limits { bytes_per_s: qos.rate.map(|rate| rate.0), iops: qos.iops }
}

pub(super) fn no_controller(name: &str) -> Error {
    Error::request(name, "there is no such controller", "nvme_controller_list for those that are there")
}

pub(super) fn no_namespace(nqn: &str, nsid: u32) -> Error {
    let found = format!("{nqn} has no such namespace");
    Error::request(format!("nsid = {nsid}"), found, "nvme_namespace_list for those that are there")
}
