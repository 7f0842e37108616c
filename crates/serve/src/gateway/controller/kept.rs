//! A controller whose client's messages come by a keeper, which is told how things are (`gateway::keeper`).

use super::{Controller, Peer, Waiting};
use crate::gateway::handed::Given;
use crate::gateway::handover::state::{KeptState, QueueKept};
use crate::gateway::keeper::link::Arrived;
use crate::gateway::keeper::Ends;
use crate::gateway::stats::SubmissionTally;
use crate::gateway::vfio_user::message::{region, Request};
use crate::gateway::vfio_user::socket::{Ended, Session};
use crate::target::log::Level;
use forebay_nvme::transport::pcie::device::Effect;
use forebay_nvme::transport::pcie::queue::QueueState;
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use std::os::fd::OwnedFd;

impl Controller {
    /// Marks a change by a thread that wasn't asked for by the client: the next note has it.
    pub(super) fn touch(&mut self) {
        self.link.iter_mut().for_each(|link| link.dirty = true);
    }

    /// Takes what the keeper has of the client. It gives one thing at a time.
    pub(super) fn read_kept(&mut self) {
        loop {
            let Some(link) = &mut self.link else { return };
            match link.receive() {
                Ok(None) => return,
                Ok(Some(arrived)) => self.arrived(arrived),
                Err(e) => return self.lose_keeper(&e.to_string()),
            }
            self.note();
        }
    }

    fn lose_keeper(&mut self, why: &str) {
        self.say(Level::Error, "keeper gone", why);
        self.link = None;
        if self.peer.is_some() {
            self.end_session(&Ended::Closed);
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Client => {
                self.touch();
                self.meet(None);
            }
            Arrived::Refused => {
                self.touch();
                self.refuse_client();
            }
            Arrived::Gone(why) => {
                self.touch();
                if self.peer.is_some() {
                    self.end_session(&why.map_or(Ended::Closed, Ended::Broken));
                }
            }
            // Of a client that was sent away.
            Arrived::Message(_) if self.peer.is_none() => {}
            Arrived::Message(message) => {
                let asks = changes_nothing(&Request::parse(&message.header, &message.body));
                match &mut self.link {
                    Some(link) if asks => link.heard.iter_mut().for_each(|heard| heard.1 = true),
                    _ => self.touch(),
                }
                if let Err(ended) = self.handle(message) {
                    self.end_session(&ended);
                    self.link.iter_mut().for_each(|link| link.ends_client = true);
                    self.touch();
                }
            }
        }
    }

    /// At the end of each round: answers what was asked, and has the keeper know how things are before anybody hears of it.
    pub(super) fn note(&mut self) {
        loop {
            let (still, waits) = (self.is_noteworthy(), self.waiting.is_some());
            let Some(link) = &mut self.link else { return };
            let heard = if waits { None } else { link.heard.take() };
            let noted = (link.dirty || self.device.has_held_back()) && still;
            if heard.is_none() && !noted {
                return;
            }
            let ends = if std::mem::take(&mut link.ends_client) { Ends::Client } else { Ends::Nothing };
            let state = match noted.then(|| self.kept_state()).transpose() {
                Ok(state) => state,
                Err(why) => return self.lose_keeper(&why),
            };
            let Some(link) = &mut self.link else { return };
            if let Err(e) = link.say(heard, state, ends) {
                return self.lose_keeper(&e.to_string());
            }
            if !noted {
                return;
            }
            link.dirty = false;
            self.noted();
        }
    }

    /// Sends what waited for the note.
    pub(super) fn noted(&mut self) {
        let cleared = self.link.as_mut().map(|link| std::mem::take(&mut link.cleared)).unwrap_or_default();
        for one in cleared {
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
        self.waiting.is_none() && self.closing == 0 && self.device.is_calm()
    }

    fn kept_state(&mut self) -> Result<(String, Vec<OwnedFd>), String> {
        let Some(link) = &self.link else { return Err("there is none".into()) };
        let (nqn, paper) = (link.nqn.clone(), link.paper.clone());
        let queues = link.made.values().map(as_made).collect();
        let mut given = Given::default();
        let greeted = self.peer.as_ref().map(|peer| peer.greeted);
        let state = self.keep(nqn, queues, &mut given).and_then(|mut state| {
            state.kept = Some(KeptState { greeted, paper: given.add(paper.fd())? });
            Ok(state)
        });
        let text = serde_json::to_string(&state.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        Ok((text, given.0))
    }

    /// A doorbell of a queue that is gone is 0, at once or once that is noted: until then a queue that goes on after all
    /// must find what its host rang.
    pub(super) fn clear_doorbell(&mut self, doorbell: Option<Doorbell>) {
        if doorbell.is_none() {
            self.admin_seen = [0; 2];
        }
        match (&mut self.link, doorbell) {
            (Some(link), _) => link.cleared.push(doorbell),
            (None, Some(doorbell)) => self.shared.doorbells.set(doorbell, 0),
            (None, None) => self.shared.doorbells.clear(),
        }
    }

    /// Queues write into the keeper's paper from their first command on, and how they were made is noted.
    pub(super) fn note_effect(&mut self, effect: &mut Effect) {
        let Some(link) = &mut self.link else { return };
        match effect {
            Effect::OpenCompletion(cq) => {
                cq.note_in(link.paper.book(cq.id()));
                link.made.insert(cq.id(), cq.state());
            }
            Effect::OpenSubmission { cqid, queue } => {
                link.paper.book(*cqid).begin_submission(queue.id(), queue.has_shadow());
                link.made.entry(*cqid).and_modify(|made| made.opened(queue));
            }
            Effect::Shadow(shadow) => link.made.values_mut().for_each(|made| made.set_shadow(*shadow)),
            Effect::Coalescing(coalescing) => {
                link.made.values_mut().for_each(|made| made.set_coalescing(coalescing.clone()));
            }
            _ => {}
        }
        if !matches!(effect, Effect::Interrupt(_)) {
            link.dirty = true;
        }
    }

    /// A client, whose connection may be its keeper's.
    pub(super) fn meet(&mut self, session: Option<Session>) {
        self.tally.connections += 1;
        self.say(Level::Info, "client connected", "");
        self.peer = Some(Peer { session, greeted: false });
        self.waiting = (self.closing > 0).then_some(Waiting::Predecessor);
    }

    pub(super) fn refuse_client(&mut self) {
        self.tally.protocol_errors += 1;
        self.say(Level::Warning, "client refused", "another client has the controller");
    }

    /// The drive ends with this controller, and not with the process.
    pub(super) fn leave_keeper(&mut self) {
        if let Some(link) = &mut self.link {
            let _ = link.say(None, None, Ends::Drive);
        }
    }
}

/// A queue as it was made: all that moved since stands in its book. All its doorbells are to be heard.
fn as_made(queue: &QueueState) -> QueueKept {
    let tallies =
        queue.submissions().map(|sqid| SubmissionTally { sqid, ..SubmissionTally::default() }).collect();
    QueueKept {
        queue: queue.clone(),
        interrupts: 0,
        head_seen: u32::MAX,
        tails_seen: queue.submissions().map(|sqid| (sqid, u32::MAX)).collect(),
        tallies,
    }
}

/// Returns whether a message only asks, or rings a doorbell whose value stands in memory that the keeper holds.
fn changes_nothing(request: &Result<Request, i32>) -> bool {
    match request {
        Ok(Request::RegionWrite(access, _)) => {
            // From the first I/O queue's on: the admin queue's are registers like others.
            access.region == region::BAR0 && access.offset >= DOORBELLS + 8
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
