//! End of queues, controllers and commands at a thread of the gateway.

use super::super::controller_queues::ControllerQueues;
use super::super::controller_shared::ControllerEvent;
use super::Owner;
use super::Worker;
use crate::namespace::lane::Lane;
use forebay_io::queue::Fault;

impl Worker {
    /// The kernel watches the controller's eventfd no longer, once that completes.
    pub(crate) fn forget_kick(&mut self, at: u32) {
        self.reactor.cancel(self.token, at);
    }

    /// Stops fetching from a submission queue that is deleted, and asks sources to give up on what it has.
    pub(super) fn close_submission(&mut self, f: &mut ControllerQueues, at: u32, cqid: u16, sqid: u16) {
        let Some(queue) = f.queues.iter().position(|q| q.cq.id() == cqid) else {
            return f.shared.say(ControllerEvent::SubmissionClosed(sqid));
        };
        let q = &mut f.queues[queue];
        q.cq.close(sqid);
        q.forget_doorbell(sqid);
        q.closing.push(sqid);
        let slots: Vec<u16> = q.cq.in_flight_of(sqid).collect();
        let here = (at, queue as u32);
        let whose = |owner: &Owner| (owner.controller, owner.queue) == here && slots.contains(&owner.slot);
        self.turn_away(f, at, whose);
        self.give_up(f, whose);
    }

    /// The controller is reset: nothing is fetched or completed any more.
    pub(super) fn close_queues(&mut self, f: &mut ControllerQueues, at: u32) {
        f.closing = true;
        self.turn_away(f, at, |_| true);
        self.give_up(f, |owner| owner.controller == at && owner.slot != Owner::SHUTDOWN);
    }

    /// Asks the sources to give up on commands; those that they hadn't got are over.
    pub(crate) fn give_up(&mut self, f: &mut ControllerQueues, whose: impl Fn(&Owner) -> bool) {
        let mut over = Vec::new();
        for lane in self.lanes.iter_mut().flatten() {
            over.extend(lane.abandon(&whose, &mut self.reactor));
        }
        for owner in over {
            self.moved(f, owner, Err(Fault::errno(libc::ECANCELED)));
        }
    }

    pub(super) fn abort(&mut self, f: &mut ControllerQueues, at: u32, cqid: u16, sqid: u16, cid: u16) {
        let queue = f.queues.iter().position(|q| q.cq.id() == cqid);
        let found = queue.and_then(|queue| f.queues[queue].cq.find(sqid, cid).map(|slot| (queue, slot)));
        let Some((queue, slot)) = found else {
            return f.shared.say(ControllerEvent::Aborted { sqid, cid, aborted: false });
        };
        f.queues[queue].commands[usize::from(slot)].abort = true;
        let owner = Owner { controller: at, queue: queue as u32, slot };
        self.turn_away(f, at, |other| *other == owner);
        self.give_up(f, |other| *other == owner);
    }

    /// Everything that was written to its namespaces is made durable.
    pub(super) fn flush(&mut self, f: &mut ControllerQueues, at: u32) {
        let view = f.view.clone();
        for (nsid, _) in view.iter().filter(|(_, shown)| shown.volume.write_cache) {
            if let Ok(Some(lane)) = self.lane(f, *nsid) {
                let owner = Owner { controller: at, queue: 0, slot: Owner::SHUTDOWN };
                let lane = self.lanes[lane as usize].as_mut().expect("it was just found");
                lane.start(owner, crate::namespace::steps::FLUSH, &mut self.reactor);
                f.flushes += 1;
            }
        }
        if f.flushes == 0 {
            f.shared.say(ControllerEvent::Flushed);
        }
    }

    /// Lanes of namespaces that no controller shows any more finish what they have, and go.
    pub(super) fn retire_lanes(&mut self) {
        if !std::mem::take(&mut self.views_changed) && !self.lanes.iter().flatten().any(|lane| lane.retired) {
            return;
        }
        for at in 0..self.lanes.len() {
            let mut controllers = self.controllers.iter().flatten();
            let used = controllers.any(|f| f.lanes.iter().any(|(_, lane)| *lane as usize == at));
            let Some(lane) = &mut self.lanes[at] else { continue };
            lane.retired = !used;
            if !used && lane.is_idle() {
                lane.end(self.number);
                self.lanes[at] = None;
                self.reactor.forget_files();
            }
        }
    }

    /// Memory that the kernel or a device may still write to is left to it.
    pub(super) fn let_go(self) {
        let quiet = self.lanes.iter().flatten().all(Lane::is_idle);
        self.lanes.iter().flatten().for_each(|lane| lane.end(self.number));
        let Worker { lanes, controllers, reactor, blank, .. } = self;
        if quiet {
            drop((lanes, reactor));
            drop((controllers, blank));
        } else {
            std::mem::forget((lanes, controllers, blank));
            drop(reactor);
        }
    }
}
