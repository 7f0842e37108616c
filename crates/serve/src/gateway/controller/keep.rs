//! A controller held still while another process takes it over, and one that was taken over.

use super::super::vfio_user::config_space;
use super::{settings, Controller, Parts, Peer, Suspension, Tally};
use crate::gateway::handed::{broken, Bytes, Fd, Given, Received};
use crate::gateway::handover::state::{ControllerState, MappingState, QueueKept, TallyState};
use crate::gateway::io_queue::Taken;
use crate::gateway::shm;
use crate::gateway::vfio_user::socket::Session;
use crate::gateway::worker::WorkerMessage;
use forebay_model::Error;
use forebay_nvme::transport::pcie::device::Device;
use forebay_nvme::transport::pcie::queue::CompletionQueue;
use forebay_nvme::transport::pcie::registers::Doorbell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Controller {
    /// Hears its client no more, fetches nothing, and lets what is under way end. False: an RPC suspends it just now.
    pub(crate) fn hold(&mut self) -> bool {
        if matches!(self.suspension, Suspension::Suspending(..)) {
            return false;
        }
        self.held = Some(self.workers.len());
        self.post_all(|| WorkerMessage::Hold(self.shared.id));
        true
    }

    /// Sources give up on what may be done again.
    pub(crate) fn withdraw(&self) {
        self.post_all(|| WorkerMessage::Withdraw(self.shared.id));
    }

    /// Nothing is under way any more: `keep` says all there is.
    pub(crate) fn is_still(&mut self) -> bool {
        let map = self.shared.dma.map_now();
        self.device.settle(&*map);
        drop(map);
        self.carry_out_all();
        self.held == Some(0) && self.waiting.is_none() && self.closing == 0 && self.device.is_calm()
    }

    /// Serves on, as if it had not been held.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.post_all(|| WorkerMessage::Release(self.shared.id));
        if matches!(self.suspension, Suspension::Running) {
            self.post_all(|| WorkerMessage::Resume(self.shared.id));
        }
    }

    /// Its thread ends and leaves everything as it is: client, socket, memory are another process's.
    pub(crate) fn part(&mut self) {
        self.parted = true;
        self.listener.leave();
    }

    /// As it is, while it is still. `queues`: of all workers.
    ///
    /// # Errors
    /// `Machine`: no descriptor is left.
    pub(crate) fn keep(
        &mut self,
        nqn: String,
        queues: Vec<QueueKept>,
        given: &mut Given,
    ) -> Result<ControllerState, Error> {
        let mut config_space = vec![0; config_space::BYTES];
        self.space.read(0, &mut config_space);
        let session = self.peer.as_ref().and_then(|peer| Some((peer.session.as_ref()?, peer.greeted)));
        let peer = session.map(|(session, greeted)| session.keep(greeted, given)).transpose()?;
        let kicks = self.shared.kicks.iter().map(|kick| given.add(&**kick)).collect::<Result<_, _>>()?;
        let Tally { connections, resets, protocol_errors, admin_interrupts, ref fatal, .. } = self.tally;
        Ok(ControllerState {
            nqn,
            name: self.shared.name.clone(),
            cntlid: self.device.controller().id(),
            suspended: matches!(self.suspension, Suspension::Suspended),
            listener: given.add(&self.listener)?,
            doorbells: given.add(&**self.shared.doorbells.fd())?,
            kicks,
            rings: (0..self.shared.vectors.count() as u16).map(|sqid| self.shared.rings(sqid)).collect(),
            write_cache: self.shared.write_cache.load(Ordering::Relaxed),
            rung_in_memory: self.shared.is_rung_in_memory(),
            device: self.device.state(),
            config_space: Bytes(config_space),
            msix_table: Bytes(self.msix_table.clone()),
            vectors: self.shared.vectors.keep(given)?,
            mappings: self.keep_mappings(given)?,
            peer,
            tally: TallyState {
                connections,
                resets,
                protocol_errors,
                admin_interrupts,
                fatal: fatal.clone(),
            },
            queues,
            kept: None,
        })
    }

    /// One descriptor for all mappings of a file.
    fn keep_mappings(&self, given: &mut Given) -> Result<Vec<MappingState>, Error> {
        let mut known: BTreeMap<usize, Fd> = BTreeMap::new();
        let mut all = Vec::new();
        for mapping in self.shared.dma.map_now().mappings() {
            let ((address, bytes), (readable, writable)) = (mapping.range(), mapping.allows());
            let file = match mapping.file() {
                None => None,
                Some((file, offset)) => {
                    let at = Arc::as_ptr(file) as usize;
                    let fd = match known.get(&at) {
                        Some(fd) => *fd,
                        None => *known.entry(at).or_insert(given.add(&**file)?),
                    };
                    Some((fd, offset))
                }
            };
            all.push(MappingState { address, bytes, readable, writable, file });
        }
        Ok(all)
    }

    /// Another process's controller, held until `begin`. What is shared has its doorbells, interrupts and memory.
    ///
    /// # Errors
    /// `Run`: what came can't be.
    pub(crate) fn restored(
        parts: Parts,
        state: ControllerState,
        came: &mut Received,
    ) -> Result<Controller, Error> {
        let subsystem = parts.subsystem.clone();
        let settings = settings(parts.cntlid, &parts.shared);
        let mut made = Controller::new(Parts { suspended: state.suspended, ..parts });
        let queues: Vec<_> = state.queues.iter().map(|kept| kept.queue.clone()).collect();
        let device = Device::restore(subsystem, settings, &state.device, &queues);
        made.device = device.map_err(|why| broken(&format!("{}: {why}", state.name)))?;
        made.space.write(0, &state.config_space.0);
        made.msix_table.iter_mut().zip(&state.msix_table.0).for_each(|(to, from)| *to = *from);
        let TallyState { connections, resets, protocol_errors, admin_interrupts, fatal } = state.tally;
        made.tally =
            Tally { connections, resets, protocol_errors, admin_interrupts, fatal, ..Tally::default() };
        made.peer = match state.peer {
            None => None,
            Some(peer) => Some(Peer { greeted: peer.greeted, session: Some(Session::restored(peer, came)?) }),
        };
        if let Some(greeted) = state.kept.as_ref().and_then(|kept| kept.greeted) {
            made.peer = Some(Peer { greeted, session: None });
        }
        if made.link.is_some() {
            made.device.hold_back();
        }
        for kept in state.queues {
            let (cqid, owner) = (kept.queue.id(), made.worker_of(kept.queue.id()));
            made.completions.insert(cqid, owner);
            made.submissions.extend(kept.queue.submissions().map(|sqid| (sqid, owner)));
            let cq = match &mut made.link {
                None => CompletionQueue::restore(&kept.queue),
                Some(link) => {
                    link.made.insert(cqid, kept.queue.clone());
                    CompletionQueue::recover(&kept.queue, link.paper.book(cqid), &*made.shared.dma.map_now())
                }
            };
            let cq = cq.map_err(|why| broken(&format!("{}, queue {cqid}: {why}", state.name)))?;
            made.taken.push(Taken { cq, kept });
        }
        made.shared.page_bytes.store(made.device.page_bytes(), Ordering::Relaxed);
        made.shared.write_cache.store(state.write_cache, Ordering::Relaxed);
        made.shared.set_rung_in_memory(state.rung_in_memory);
        made.held = Some(0);
        Ok(made)
    }

    /// Serves what it was restored to; the socket at this path is this process's.
    pub(crate) fn begin(&mut self, socket: PathBuf) {
        self.held = None;
        if self.link.is_some() {
            // Of queues that are gone, where the last process was killed before it came to it.
            if !self.device.ready() {
                self.shared.doorbells.set(Doorbell::Completion(0), 0);
                self.shared.doorbells.set(Doorbell::Submission(0), 0);
            }
            for qid in (1..=shm::QUEUES_MAX).filter(|qid| !self.completions.contains_key(qid)) {
                self.shared.doorbells.set(Doorbell::Completion(qid), 0);
            }
            for qid in (1..=shm::QUEUES_MAX).filter(|qid| !self.submissions.contains_key(qid)) {
                self.shared.doorbells.set(Doorbell::Submission(qid), 0);
            }
            // What was noted, and may not have been told.
            self.noted();
        }
        self.listener.own(socket);
        if matches!(self.suspension, Suspension::Suspended) {
            self.post_all(|| WorkerMessage::Suspend(self.shared.id));
        }
        for taken in std::mem::take(&mut self.taken) {
            let owner = self.worker_of(taken.kept.queue.id());
            self.workers[owner].post(WorkerMessage::TakeUp(self.shared.id, Box::new(taken)));
        }
    }
}
