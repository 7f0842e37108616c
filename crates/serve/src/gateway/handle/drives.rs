//! Controllers of a gateway that are emulated drives: each has a thread, and its I/O queues are the workers'.

use super::describe::health;
use super::registry::{no_controller, no_namespace, Drive, Registry, SharedRegistry, Subsystem};
use crate::gateway::config;
use crate::gateway::controller::{Call, ControllerThread, Parts, Tally};
use crate::gateway::controller_shared::{ControllerEvent, ControllerShared, Lent, Options};
use crate::gateway::gateway_shared::GatewayShared;
use crate::gateway::handover::state::QueueKept;
use crate::gateway::shm::QUEUES_MAX;
use crate::gateway::supervisor::{Link, Supervisor};
use crate::gateway::vfio_user::socket::Listener;
use crate::gateway::worker::{Report, WorkerMessage, STOP};
use crate::target::inbox::Inbox;
use crate::target::thread_pool::{self, join_by, spawn};
use forebay_io::{monotonic_now, Waker};
use forebay_model::Error;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::Duration;

/// A thread that doesn't answer within this time is left out.
const REPLY: Duration = Duration::from_secs(5);

pub(super) struct Drives {
    pub shared: Arc<GatewayShared>,
    pub registry: SharedRegistry,
    pub workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    /// Their clients come by it, where there is one.
    pub supervisor: Option<Arc<Supervisor>>,
}

impl Drives {
    /// Makes a drive's socket and starts its thread.
    pub(super) fn create(&self, nqn: &str, given: &config::Controller) -> Result<(), Error> {
        let queues = given.queues.unwrap_or(config::QUEUES);
        if queues > QUEUES_MAX {
            let asked = format!("queues = {queues} of {}", given.name);
            return Err(Error::request(
                asked,
                "there are more than doorbells",
                format!("at most {QUEUES_MAX}"),
            ));
        }
        let mut registry = self.registry.lock();
        registry.name_is_free(&given.name)?;
        let id = registry.next_id();
        let subsystem = registry.subsystem_mut(nqn)?;
        let ids: BTreeSet<u32> = subsystem.namespaces.keys().copied().collect();
        given.attached(&ids)?;
        let listener = Listener::bind(Path::new(given.socket.as_deref().unwrap_or_default()))?;
        let cntlid = subsystem.ids.take().ok_or_else(|| {
            Error::request(&given.name, "no controller identifier is left", "another subsystem")
        })?;
        let lent = Lent::new(self.shared.threads)?;
        let link = match &self.supervisor {
            None => None,
            Some(supervisor) => Some(supervisor.adopt(&given.name, nqn, &listener, sheets(given))?),
        };
        let parts = self.parts(id, cntlid, given, subsystem, (listener, link), lent)?;
        let (shared, calls) = (parts.shared.clone(), parts.calls.clone());
        let controller = ControllerThread::new(parts);
        self.start(&mut registry, nqn, given, (cntlid, shared, calls), controller)?;
        let socket = given.socket.clone().unwrap_or_default();
        self.shared.say("listening", &[("controller", given.name.clone().into()), ("socket", socket.into())]);
        Ok(())
    }

    /// Returns the parts that a drive's thread and the workers need.
    pub(super) fn parts(
        &self,
        id: u64,
        cntlid: u16,
        given: &config::Controller,
        subsystem: &Subsystem,
        (listener, link): (Listener, Option<Link>),
        lent: Lent,
    ) -> Result<Parts, Error> {
        let failed = |e: std::io::Error| Error::machine(&given.name, e.to_string(), "ulimit -n 65536");
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let events: Arc<Inbox<ControllerEvent>> = Arc::new(Inbox::new(waker.clone()));
        let options = Options {
            id,
            name: given.name.clone(),
            threads: self.shared.threads,
            vectors: given.queues.unwrap_or(config::QUEUES) + 1,
            poll: given.poll,
            transfer_bytes_max: given.max_transfer.0 as u32,
            view: subsystem.view(given),
        };
        let shared = Arc::new(ControllerShared::new(options, lent, events));
        let counted = shared.clone();
        Ok(Parts {
            gateway: self.shared.clone(),
            workers: self.workers.clone(),
            shared,
            calls: Arc::new(Inbox::new(waker.clone())),
            waker,
            listener,
            link,
            subsystem: subsystem.seen_by(given),
            cntlid,
            suspended: given.suspended,
            health: Box::new(move || health(&counted)),
        })
    }

    /// Has a drive run on a thread of its own from now on.
    pub(super) fn start(
        &self,
        registry: &mut Registry,
        nqn: &str,
        given: &config::Controller,
        (cntlid, shared, calls): (u16, Arc<ControllerShared>, Arc<Inbox<Call>>),
        controller: ControllerThread,
    ) -> Result<(), Error> {
        let thread = spawn(&format!("ctl-{}", given.name), move || controller.run())?;
        let drive = Drive { given: given.clone(), nqn: nqn.into(), cntlid, shared, calls, thread };
        registry.drives.insert(given.name.clone(), drive);
        Ok(())
    }

    /// Disconnects its client and removes its socket.
    ///
    /// # Errors
    /// Without `force`: a host has it enabled.
    pub(super) fn destroy(&self, name: &str, force: bool) -> Result<(), Error> {
        if !force && self.ask(name, |c| c.is_in_use())? {
            let next = "force, or shut the host down first";
            return Err(Error::request(name, "a host has it enabled", next));
        }
        let mut registry = self.registry.lock();
        let drive = registry.drives.remove(name).ok_or_else(|| no_controller(name))?;
        if let Some(subsystem) = registry.subsystems.get_mut(&drive.nqn) {
            subsystem.ids.give_back(drive.cntlid);
        }
        drop(registry);
        end(drive);
        self.shared.say("controller removed", &[("controller", name.into())]);
        Ok(())
    }

    /// Shows a namespace, or hides it.
    pub(super) fn show(&self, name: &str, nsid: u32, shown: bool) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let Registry { drives, subsystems, .. } = &mut *registry;
        let drive = drives.get_mut(name).ok_or_else(|| no_controller(name))?;
        let subsystem = subsystems.get(&drive.nqn).ok_or_else(|| no_controller(name))?;
        if !subsystem.namespaces.contains_key(&nsid) {
            return Err(no_namespace(&drive.nqn, nsid));
        }
        let all = || subsystem.namespaces.keys().copied().collect();
        let mut list: Vec<u32> = drive.given.namespaces.clone().unwrap_or_else(all);
        if list.contains(&nsid) == shown {
            let found = if shown { "it is attached" } else { "it isn't attached" };
            return Err(Error::request(format!("nsid {nsid} of {name}"), found, "nvme_controller_list"));
        }
        list.retain(|other| *other != nsid);
        if shown {
            list.push(nsid);
            list.sort_unstable();
        }
        drive.given.namespaces = Some(list);
        registry.announce_to(name);
        Ok(())
    }

    /// As of `Gateway::suspend`.
    pub(super) fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error> {
        let (done, quiet) = sync_channel(1);
        self.ask(name, move |c| c.suspend(done))?;
        if quiet.recv_timeout(timeout).is_ok() {
            return Ok(());
        }
        self.resume(name)?;
        let found = format!("I/O was still under way after {:.1} s", timeout.as_secs_f64());
        Err(Error::run(format!("suspend {name}"), found, "a longer timeout, or look at its source"))
    }

    pub(super) fn resume(&self, name: &str) -> Result<(), Error> {
        self.ask(name, ControllerThread::resume)
    }

    /// Has a drive's thread do something, and waits for it.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        name: &str,
        what: impl FnOnce(&mut ControllerThread) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let calls = {
            let registry = self.registry.lock();
            let drive = registry.drives.get(name).ok_or_else(|| no_controller(name))?;
            drive.calls.clone()
        };
        let (reply, answer) = sync_channel(1);
        calls.post(Box::new(move |controller| {
            let _ = reply.send(what(controller));
        }));
        answer.recv_timeout(REPLY).map_err(|_| {
            Error::run(name, "its thread does not respond", "the gateway's log says what it is doing")
        })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.registry.lock().drives.keys().cloned().collect()
    }

    /// What each has to tell of itself, but for those that don't answer.
    pub(super) fn tallies(&self) -> BTreeMap<String, Tally> {
        let asked = self.names().into_iter().map(|name| (self.ask(&name, |c| c.tally()), name));
        asked.filter_map(|(tally, name)| Some((name, tally.ok()?))).collect()
    }

    /// Counters of the workers.
    pub(super) fn reports(&self) -> Vec<Report> {
        thread_pool::ask(&self.workers, WorkerMessage::Report, REPLY)
    }

    /// The queues of a drive that is held, of all workers.
    pub(super) fn kept_queues(&self, name: &str, id: u64) -> Result<Vec<QueueKept>, Error> {
        let parts = thread_pool::ask(&self.workers, |to| WorkerMessage::Keep(id, to), REPLY);
        if parts.len() != self.workers.len() {
            let next = "the gateway's log says what it is doing";
            return Err(Error::run(name, "a thread does not respond", next));
        }
        Ok(parts.into_iter().flatten().collect())
    }

    /// Limits of namespaces changed: commands that wait for them are looked at again.
    pub(super) fn limits_changed(&self) {
        self.workers.iter().for_each(|worker| worker.post(WorkerMessage::Recheck));
    }

    /// The gateway ends, and so do they.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut self.registry.lock().drives);
        all.into_values().for_each(end);
    }

    /// Lets go of them, which another process has now.
    pub(super) fn part(&self) {
        let all = std::mem::take(&mut self.registry.lock().drives);
        for Drive { calls, thread, .. } in all.into_values() {
            calls.post(Box::new(ControllerThread::part));
            join_by(thread, monotonic_now() + STOP);
        }
    }
}

/// Numbers of queues and entries of a queue that a supervisor's paper has room for.
pub(super) fn sheets(given: &config::Controller) -> (u16, u16) {
    (given.queues.unwrap_or(config::QUEUES), given.entries_max())
}

fn end(drive: Drive) {
    drive.calls.post(Box::new(|controller| controller.leave(STOP)));
    join_by(drive.thread, monotonic_now() + STOP * 2);
}
