//! Conversion between a gateway's parts and its transferable state.

use super::super::config;
use super::super::config::Qos;
use super::super::controller_shared::ControllerEvent;
use super::super::worker::STOP;
use super::describe::describe;
use super::describe::view;
use super::Namespace;
use super::Running;
use super::State;
use super::Subsystem;
use crate::namespace::qos::Limits;
use crate::target::thread_pool::join_by;
use forebay_io::clock;
use forebay_model::Error;

impl State {
    pub(super) fn subsystem(&self, nqn: &str) -> Result<&Subsystem, Error> {
        self.subsystems.get(nqn).ok_or_else(|| self.no_subsystem(nqn))
    }

    pub(super) fn subsystem_mut(&mut self, nqn: &str) -> Result<&mut Subsystem, Error> {
        let missing = self.no_subsystem(nqn);
        self.subsystems.get_mut(nqn).ok_or(missing)
    }

    pub(super) fn no_subsystem(&self, nqn: &str) -> Error {
        let all: Vec<&str> = self.subsystems.keys().map(String::as_str).collect();
        let next = if all.is_empty() { "nvme_subsystem_create".into() } else { all.join(", ") };
        Error::request(nqn, "there is no such subsystem", next)
    }

    pub(super) fn namespace(&self, nqn: &str, nsid: u32) -> Result<&Namespace, Error> {
        self.subsystem(nqn)?.namespaces.get(&nsid).ok_or_else(|| no_namespace(nqn, nsid))
    }

    pub(super) fn controllers_of<'a>(&'a self, nqn: &'a str) -> impl Iterator<Item = &'a String> {
        self.controllers.iter().filter(move |(_, c)| c.nqn == nqn).map(|(name, _)| name)
    }

    pub(super) fn blocks_of<'a>(&'a self, nqn: &'a str) -> impl Iterator<Item = &'a String> {
        self.blocks.iter().filter(move |(_, b)| b.nqn == nqn).map(|(name, _)| name)
    }

    pub(super) fn name_is_free(&self, name: &str) -> Result<(), Error> {
        if self.controllers.contains_key(name) || self.blocks.contains_key(name) {
            return Err(Error::request(name, "this controller already exists", "another name"));
        }
        Ok(())
    }

    /// nsids that a controller shows.
    pub(super) fn shown(&self, running: &Running) -> Vec<u32> {
        let subsystem = self.subsystems.get(&running.nqn);
        subsystem.map_or(Vec::new(), |s| view(s, &running.given).iter().map(|(nsid, _)| *nsid).collect())
    }

    /// Tells a subsystem's controllers what it has now.
    pub(super) fn announce(&self, nqn: &str) {
        self.controllers_of(nqn).for_each(|name| self.announce_to(name));
    }

    pub(super) fn announce_to(&self, name: &str) {
        let Some(running) = self.controllers.get(name) else { return };
        let Some(subsystem) = self.subsystems.get(&running.nqn) else { return };
        let (described, view) = (describe(subsystem, &running.given), view(subsystem, &running.given));
        running
            .shared
            .say(ControllerEvent::Call(Box::new(move |controller| controller.update(described, view))));
    }
}

/// Numbers of queues and entries of a queue that a keeper's paper has room for.
pub(super) fn sheets(given: &config::Controller) -> (u16, u16) {
    (given.queues.unwrap_or(config::QUEUES), given.entries_max())
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

pub(super) fn end(running: Running) {
    running.shared.say(ControllerEvent::Call(Box::new(|controller| controller.leave(STOP))));
    join_by(running.thread, clock::now() + STOP * 2);
}
