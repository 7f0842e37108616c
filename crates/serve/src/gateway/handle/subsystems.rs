//! Subsystems and namespaces of a gateway: made, changed and taken away.

use super::super::config;
use super::super::config::Front;
use super::super::config::Qos;
use super::super::worker::WorkerMessage;
use super::no_namespace;
use super::state::limits;
use super::Gateway;
use super::Namespace;
use super::Subsystem;
use crate::namespace::qos::Limiter;
use crate::namespace::volume::Volume;
use crate::target::subsystem::free_nsid;
use forebay_model::Error;
use forebay_nvme::controller::connect::Ids;
use forebay_nvme::controller::subsystem as nvme;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Gateway {
    /// A subsystem with its namespaces and controllers; all of it or nothing.
    pub fn subsystem_create(&self, given: &config::Subsystem) -> Result<(), Error> {
        given.check()?;
        let made = Subsystem {
            given: config::Subsystem { namespaces: Vec::new(), controllers: Vec::new(), ..given.clone() },
            namespaces: BTreeMap::new(),
            ids: Ids::new(nvme::Limits::default().controllers),
        };
        let mut state = self.state();
        if state.subsystems.contains_key(&given.nqn) {
            return Err(Error::request(&given.nqn, "this subsystem already exists", "another NQN"));
        }
        state.subsystems.insert(given.nqn.clone(), made);
        drop(state);
        let all = || -> Result<(), Error> {
            for namespace in &given.namespaces {
                self.namespace_create(&given.nqn, namespace)?;
            }
            given.controllers.iter().try_for_each(|c| self.controller_create(&given.nqn, c))
        };
        all().inspect_err(|_| {
            for controller in &given.controllers {
                if controller.front == Front::VfioUser {
                    let _ = self.controller_destroy(&controller.name, true);
                }
            }
            self.blocks_undo(|nqn| nqn == given.nqn);
            self.state().subsystems.remove(&given.nqn);
        })
    }

    /// # Errors
    /// It has controllers, or there is none such.
    pub fn subsystem_destroy(&self, nqn: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.subsystem(nqn)?;
        if let Some(name) = state.controllers_of(nqn).chain(state.blocks_of(nqn)).next() {
            let found = format!("it has the controller {name}");
            return Err(Error::request(nqn, found, format!("nvme_controller_destroy {name} first")));
        }
        state.subsystems.remove(nqn);
        Ok(())
    }

    /// Opens a source and shows it by all controllers that show all. Returns its nsid.
    pub fn namespace_create(&self, nqn: &str, given: &config::Namespace) -> Result<u32, Error> {
        given.check()?;
        let nsid = {
            let state = self.state();
            let subsystem = state.subsystem(nqn)?;
            let taken = |nsid: &u32| subsystem.namespaces.contains_key(nsid);
            match given.nsid {
                0 => free_nsid(&taken)?,
                nsid if taken(&nsid) => {
                    let found = format!("{nqn} has it already");
                    return Err(Error::request(format!("nsid = {nsid}"), found, "another nsid, or 0"));
                }
                nsid => nsid,
            }
        };
        let given = config::Namespace { nsid, ..given.clone() };
        // It may take its time: the state isn't held.
        let mut kept = self.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let locks = kept.remove(&(nqn.to_string(), nsid));
        drop(kept);
        let threads = self.shared.threads as u32;
        let volume = Arc::new(Volume::open_straight_locked(nqn, nsid, &given.served(), threads, locks)?);
        let mut state = self.state();
        let subsystem = state.subsystem_mut(nqn)?;
        if subsystem.namespaces.contains_key(&nsid) {
            return Err(Error::request(format!("nsid = {nsid}"), "another call has just made it", "another"));
        }
        let limiter = Limiter::new(limits(given.qos));
        subsystem.namespaces.insert(nsid, Namespace { given, volume, limiter });
        state.announce(nqn);
        self.say("namespace added", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(nsid)
    }

    /// Commands that come from now on find no such namespace; those in flight finish.
    ///
    /// # Errors
    /// There is none such, or a block device over it is in use.
    pub fn namespace_destroy(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        self.blocks_let_go(nqn, nsid)?;
        let mut state = self.state();
        let removed = state.subsystem_mut(nqn)?.namespaces.remove(&nsid);
        let Some(Namespace { volume, .. }) = removed else { return Err(no_namespace(nqn, nsid)) };
        for running in state.controllers.values_mut().filter(|c| c.nqn == nqn) {
            if let Some(shown) = &mut running.given.namespaces {
                shown.retain(|other| *other != nsid);
            }
        }
        state.announce(nqn);
        drop(state);
        self.await_release(volume);
        self.say("namespace removed", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(())
    }

    /// Puts another source in the place of one; hosts don't notice, but for what they read. I/O in flight ends on the
    /// old one.
    ///
    /// # Errors
    /// Its size or its blocks aren't the same, or it can't be opened.
    pub fn namespace_set_source(&self, nqn: &str, nsid: u32, given: &config::Namespace) -> Result<(), Error> {
        let old = self.state().namespace(nqn, nsid)?.volume.clone();
        let given = config::Namespace { nsid, ..given.clone() };
        given.check()?;
        let volume = Arc::new(Volume::open_straight(nqn, nsid, &given.served(), self.shared.threads as u32)?);
        let shape = |v: &Volume| (v.blocks, v.block_bytes, v.writable);
        if shape(&volume) != shape(&old) {
            let (blocks, bytes, writable) = shape(&volume);
            let found = format!("it has {blocks} blocks of {bytes} bytes (writable: {writable})");
            let (blocks, bytes, writable) = shape(&old);
            let next = format!("a source of {blocks} blocks of {bytes} bytes (writable: {writable})");
            return Err(Error::request(&given.source, found, next));
        }
        self.blocks_replace(nqn, &given, &volume)?;
        let mut state = self.state();
        let there =
            state.subsystem_mut(nqn)?.namespaces.get_mut(&nsid).ok_or_else(|| no_namespace(nqn, nsid))?;
        there.limiter.set(limits(given.qos), self.now_ns());
        (there.given, there.volume) = (given, volume);
        state.announce(nqn);
        drop(state);
        self.await_release(old);
        self.say("source replaced", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(())
    }

    /// Limits of a namespace from now on.
    pub fn namespace_set_qos(&self, nqn: &str, nsid: u32, qos: Qos) -> Result<(), Error> {
        qos.check()?;
        let mut state = self.state();
        let there =
            state.subsystem_mut(nqn)?.namespaces.get_mut(&nsid).ok_or_else(|| no_namespace(nqn, nsid))?;
        there.given.qos = qos;
        there.limiter.set(limits(qos), self.now_ns());
        // Those that wait are looked at again.
        self.workers.iter().for_each(|worker| worker.post(WorkerMessage::Look));
        drop(state);
        self.blocks_look(nqn, nsid);
        Ok(())
    }
}
