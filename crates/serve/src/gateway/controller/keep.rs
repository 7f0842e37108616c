//! What of a controller outlives its thread: it is held still while another process takes it over, or its supervisor is told
//! how it stands (`gateway::supervisor`), and it goes on elsewhere as it was.

use super::standstill::Standstill;
use super::{settings, ControllerThread, Parts, Tally};
use crate::gateway::dma::Map;
use crate::gateway::handed::{broken, Fd, Given, Received};
use crate::gateway::handover::state::{ControllerState, KeptState, MappingState, QueueKept, TallyState};
use crate::gateway::io_queue::Taken;
use crate::gateway::shm;
use crate::gateway::supervisor::link::Arrived;
use crate::gateway::supervisor::Ends;
use crate::gateway::vfio_user::message::{Region, Request};
use crate::gateway::vfio_user::socket::Ended;
use crate::gateway::worker::WorkerMessage;
use crate::target::log::Level;
use forebay_model::Error;
use forebay_nvme::transport::pcie::device::Device;
use forebay_nvme::transport::pcie::queue::CompletionQueue;
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl ControllerThread {
    // Another process takes it over.

    /// Hears its client no more, fetches nothing, and lets what is under way end. False: an RPC suspends it just now.
    pub(crate) fn hold(&mut self) -> bool {
        if self.standstill.is_suspending() {
            return false;
        }
        self.standstill.hold(self.queues.workers());
        self.queues.post_all(WorkerMessage::Hold);
        true
    }

    /// Sources give up on what may be done again.
    pub(crate) fn withdraw(&self) {
        self.queues.post_all(WorkerMessage::Withdraw);
    }

    /// Nothing is under way any more: `keep` says all there is.
    pub(crate) fn is_still(&mut self) -> bool {
        let map = self.shared.dma.map_now();
        self.device.answer_ended(&*map);
        drop(map);
        self.carry_out_all();
        self.standstill.is_held_still() && self.is_noteworthy()
    }

    /// Serves on, as if it had not been held.
    pub(crate) fn release(&mut self) {
        self.standstill.release();
        self.queues.post_all(WorkerMessage::Release);
        if self.standstill.is_not_suspended() {
            self.queues.post_all(WorkerMessage::Resume);
        }
    }

    /// Its thread ends and leaves everything as it is: client, socket, memory are another process's.
    pub(crate) fn part(&mut self) {
        self.parted = true;
        self.client.leave_listener();
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
        let (config_space, msix_table) = self.function.keep();
        let peer = self.client.keep(given)?;
        let kicks = self.shared.kicks.iter().map(|kick| given.add(&**kick)).collect::<Result<_, _>>()?;
        let Tally { connections, resets, protocol_errors, admin_interrupts, ref fatal, .. } = self.tally;
        Ok(ControllerState {
            nqn,
            name: self.shared.name.clone(),
            cntlid: self.device.controller().id(),
            suspended: self.standstill.is_suspended(),
            listener: given.add(self.client.listener())?,
            doorbells: given.add(&**self.shared.doorbells.fd())?,
            kicks,
            rings: (0..self.shared.vectors.count() as u16).map(|sqid| self.shared.rings(sqid)).collect(),
            write_cache: self.shared.write_cache.load(Ordering::Relaxed),
            rung_in_memory: self.shared.is_rung_in_memory(),
            device: self.device.state(),
            config_space,
            msix_table,
            vectors: self.shared.vectors.keep(given)?,
            mappings: keep_mappings(&self.shared.dma.map_now(), given)?,
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

    /// Another process's controller, held until `begin`. What is shared has its doorbells, interrupts and memory.
    ///
    /// # Errors
    /// `Run`: what came can't be.
    pub(crate) fn restored(
        parts: Parts,
        state: ControllerState,
        came: &mut Received,
    ) -> Result<ControllerThread, Error> {
        let subsystem = parts.subsystem.clone();
        let settings = settings(parts.cntlid, &parts.shared);
        let mut made = ControllerThread::new(parts);
        let queues: Vec<_> = state.queues.iter().map(|kept| kept.queue.clone()).collect();
        let device = Device::restore(subsystem, settings, &state.device, &queues);
        made.device = device.map_err(|why| broken(&format!("{}: {why}", state.name)))?;
        made.function.restore(&state.config_space, &state.msix_table);
        let TallyState { connections, resets, protocol_errors, admin_interrupts, fatal } = state.tally;
        made.tally =
            Tally { connections, resets, protocol_errors, admin_interrupts, fatal, ..Tally::default() };
        made.client.restore(state.peer, state.kept.and_then(|kept| kept.greeted), came)?;
        if made.client.link.is_some() {
            made.device.hold_back();
        }
        for kept in state.queues {
            let cqid = kept.queue.id();
            let cq = match &mut made.client.link {
                None => CompletionQueue::restore(&kept.queue),
                Some(link) => {
                    link.adopt(&kept.queue);
                    CompletionQueue::recover(&kept.queue, link.paper.book(cqid), &*made.shared.dma.map_now())
                }
            };
            let cq = cq.map_err(|why| broken(&format!("{}, queue {cqid}: {why}", state.name)))?;
            made.queues.adopt(Taken { cq, kept });
        }
        made.shared.page_bytes.store(made.device.page_bytes(), Ordering::Relaxed);
        made.shared.write_cache.store(state.write_cache, Ordering::Relaxed);
        made.shared.set_rung_in_memory(state.rung_in_memory);
        made.standstill = Standstill::taken_over(state.suspended);
        Ok(made)
    }

    /// Serves what it was restored to; the socket at this path is this process's.
    pub(crate) fn begin(&mut self, socket: PathBuf) {
        self.standstill.release();
        if self.client.link.is_some() {
            // Of queues that are gone, where the last process was killed before it came to it.
            if !self.device.ready() {
                self.shared.doorbells.set(Doorbell::Completion(0), 0);
                self.shared.doorbells.set(Doorbell::Submission(0), 0);
            }
            self.queues.clear_other_doorbells(shm::QUEUES_MAX);
            // What was noted, and may not have been told.
            self.noted();
        }
        self.client.own_listener(socket);
        if self.standstill.is_suspended() {
            self.queues.post_all(WorkerMessage::Suspend);
        }
        self.queues.hand_out();
    }

    // Its client comes by a supervisor.

    /// Marks a change by a thread that wasn't asked for by the client: the next note has it.
    pub(super) fn mark_dirty(&mut self) {
        if let Some(link) = &mut self.client.link {
            link.mark_dirty();
        }
    }

    /// Takes what the supervisor has of the client. It gives one thing at a time.
    pub(super) fn read_kept(&mut self) {
        loop {
            let Some(link) = &mut self.client.link else { return };
            match link.receive() {
                Ok(None) => return,
                Ok(Some(arrived)) => self.arrived(arrived),
                Err(e) => return self.lose_supervisor(&e.to_string()),
            }
            self.note();
        }
    }

    fn lose_supervisor(&mut self, why: &str) {
        self.say(Level::Error, "supervisor gone", why);
        self.client.link = None;
        if self.client.is_there() {
            self.end_session(&Ended::Closed);
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Client => {
                self.mark_dirty();
                self.meet(None);
            }
            Arrived::Refused => {
                self.mark_dirty();
                self.refuse_client();
            }
            Arrived::Gone(why) => {
                self.mark_dirty();
                if self.client.is_there() {
                    self.end_session(&why.map_or(Ended::Closed, Ended::Broken));
                }
            }
            // Of a client that was sent away.
            Arrived::Message(_) if !self.client.is_there() => {}
            Arrived::Message(message) => {
                let asks = changes_nothing(&Request::parse(&message.header, &message.body));
                match &mut self.client.link {
                    Some(link) if asks => link.heard.iter_mut().for_each(|heard| heard.1 = true),
                    _ => self.mark_dirty(),
                }
                if let Err(ended) = self.handle(message) {
                    self.end_session(&ended);
                    self.client.link.iter_mut().for_each(|link| link.ends_client = true);
                    self.mark_dirty();
                }
            }
        }
    }

    /// At the end of each round: answers what was asked, and has the supervisor know how things are before anybody hears of it.
    pub(super) fn note(&mut self) {
        loop {
            let (still, waits) = (self.is_noteworthy(), self.client.is_waiting());
            let Some(link) = &mut self.client.link else { return };
            let heard = if waits { None } else { link.heard.take() };
            let noted = (link.dirty || self.device.has_held_back()) && still;
            if heard.is_none() && !noted {
                return;
            }
            let ends = if std::mem::take(&mut link.ends_client) { Ends::Client } else { Ends::Nothing };
            let state = match noted.then(|| self.kept_state()).transpose() {
                Ok(state) => state,
                Err(why) => return self.lose_supervisor(&why),
            };
            let Some(link) = &mut self.client.link else { return };
            if let Err(e) = link.say(heard, state, ends) {
                return self.lose_supervisor(&e.to_string());
            }
            if !noted {
                return;
            }
            link.dirty = false;
            self.noted();
        }
    }

    /// Sends what waited for the note.
    fn noted(&mut self) {
        let link = self.client.link.as_mut();
        for one in link.map(|link| std::mem::take(&mut link.cleared)).unwrap_or_default() {
            match one {
                Some(doorbell) => self.shared.doorbells.set(doorbell, 0),
                None => self.shared.doorbells.clear(),
            }
        }
        let map = self.shared.dma.map_now();
        self.device.publish(&*map);
        drop(map);
        self.carry_out_all();
    }

    /// Its state is all there is: nobody is to answer for a part of it.
    fn is_noteworthy(&self) -> bool {
        !self.client.is_waiting() && !self.queues.are_closing() && self.device.is_calm()
    }

    fn kept_state(&mut self) -> Result<(String, Vec<OwnedFd>), String> {
        let Some(link) = &self.client.link else { return Err("there is none".into()) };
        let (nqn, paper, queues) = (link.nqn.clone(), link.paper.clone(), link.queues());
        let mut given = Given::default();
        let greeted = self.client.greeted();
        let state = self.keep(nqn, queues, &mut given).and_then(|mut state| {
            state.kept = Some(KeptState { greeted, paper: given.add(paper.fd())? });
            Ok(state)
        });
        let text = serde_json::to_string(&state.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        Ok((text, given.0))
    }

    /// The drive ends with this controller, and not with the process.
    pub(super) fn leave_supervisor(&mut self) {
        if let Some(link) = &mut self.client.link {
            let _ = link.say(None, None, Ends::Drive);
        }
    }
}

/// One descriptor for all mappings of a file.
fn keep_mappings(map: &Map, given: &mut Given) -> Result<Vec<MappingState>, Error> {
    let mut known: BTreeMap<usize, Fd> = BTreeMap::new();
    let mut all = Vec::new();
    for mapping in map.mappings() {
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

/// Returns whether a message only asks, or rings a doorbell whose value stands in memory that the supervisor holds.
fn changes_nothing(request: &Result<Request, i32>) -> bool {
    match request {
        Ok(Request::RegionWrite(access, _)) => {
            // From the first I/O queue's on: the admin queue's are registers like others.
            access.region == Region::BAR0 && access.offset >= DOORBELLS + 8
        }
        Ok(
            Request::RegionRead(_)
            | Request::DeviceInfo
            | Request::RegionInfo { .. }
            | Request::RegionIoFds { .. }
            | Request::IrqInfo { .. },
        )
        | Err(_) => true,
        Ok(_) => false,
    }
}
