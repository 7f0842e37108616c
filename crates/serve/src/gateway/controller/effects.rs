//! Effects of admin commands, registers and messages of workers.

use super::{Answer, Controller, Suspension, Waiting};
use crate::gateway::controller_shared::ControllerEvent;
use crate::gateway::worker::WorkerMessage;
use crate::target::log::Level;
use forebay_nvme::transport::pcie::device::Effect;
use forebay_nvme::transport::pcie::registers::Doorbell;
use std::sync::atomic::Ordering;

impl Controller {
    /// Executes admin commands, and carries out what comes of it.
    pub(super) fn pump(&mut self) {
        loop {
            self.carry_out_all();
            self.tell_burst();
            if self.held.is_some() || !matches!(self.suspension, Suspension::Running) {
                return;
            }
            let (map, now_ms) = (self.shared.dma.map_now(), self.now_ms());
            let more = self.device.work(&*map, now_ms);
            self.tell_burst();
            match self.device.next_effect() {
                Some(effect) => self.carry_out(effect),
                None if !more => return,
                None => {}
            }
        }
    }

    /// Tells the workers the Arbitration Burst of the host's last Set Features, or of a reset.
    fn tell_burst(&self) {
        let burst = self.device.controller().arbitration_burst().unwrap_or(u32::MAX);
        self.shared.burst.store(burst, Ordering::Relaxed);
    }

    pub(super) fn carry_out_all(&mut self) {
        while let Some(effect) = self.device.next_effect() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, mut effect: Effect) {
        self.note_effect(&mut effect);
        let controller = self.shared.id;
        let owner =
            |controller: &Controller, cqid: u16| controller.workers[controller.worker_of(cqid)].clone();
        match effect {
            Effect::OpenCompletion(cq) => {
                let cqid = cq.id();
                self.shared.page_bytes.store(self.device.page_bytes(), Ordering::Relaxed);
                self.completions.insert(cqid, self.worker_of(cqid));
                owner(self, cqid).post(WorkerMessage::OpenCompletion(controller, cq));
            }
            Effect::OpenSubmission { cqid, queue } => {
                self.submissions.insert(queue.id(), self.worker_of(cqid));
                owner(self, cqid).post(WorkerMessage::OpenSubmission { controller, cqid, queue });
            }
            Effect::CloseSubmission { cqid, sqid } => {
                self.submissions.remove(&sqid);
                owner(self, cqid).post(WorkerMessage::CloseSubmission { controller, cqid, sqid });
            }
            Effect::CloseCompletion { cqid } => {
                self.completions.remove(&cqid);
                owner(self, cqid).post(WorkerMessage::CloseCompletion { controller, cqid });
            }
            Effect::CloseQueues => {
                self.submissions.clear();
                self.completions.clear();
                self.closing = self.workers.len();
                self.post_all(|| WorkerMessage::CloseQueues(controller));
            }
            Effect::Abort { cqid, sqid, cid } => {
                owner(self, cqid).post(WorkerMessage::Abort { controller, cqid, sqid, cid });
            }
            Effect::Ring { cqid, doorbell, value } => {
                let worker = self.worker_of(cqid);
                self.shared.doorbells.set(doorbell, value);
                self.shared.rung[worker].store(true, Ordering::Release);
                self.workers[worker].wake();
            }
            Effect::Shadow(shadow) => self.post_all(|| WorkerMessage::Shadow(controller, shadow)),
            Effect::Coalescing(coalescing) => {
                self.post_all(|| WorkerMessage::Coalescing(controller, coalescing.clone()))
            }
            // Its queues are gone, so any worker may flush for all.
            Effect::ShutDown => self.workers[0].post(WorkerMessage::Flush(controller)),
            Effect::WriteCache { enabled } => self.shared.write_cache.store(enabled, Ordering::Relaxed),
            Effect::Interrupt(vector) => {
                self.tally.admin_interrupts += 1;
                self.shared.vectors.signal(vector);
            }
            Effect::Fatal(why) => {
                self.say(Level::Error, "fatal status", &why);
                self.tally.fatal = Some(why);
            }
        }
    }

    /// A worker, or a caller of the gateway.
    pub(super) fn hear(&mut self, word: ControllerEvent) {
        if !matches!(word, ControllerEvent::Call(_)) {
            self.touch();
        }
        match word {
            // The next queue of that number begins at 0. Later would be too late: its host may ring at once.
            ControllerEvent::SubmissionClosed(sqid) => {
                self.clear_doorbell(Some(Doorbell::Submission(sqid)));
                self.link
                    .iter_mut()
                    .flat_map(|link| link.made.values_mut())
                    .for_each(|made| made.closed(sqid));
                self.device.submission_closed(sqid);
            }
            ControllerEvent::CompletionClosed(cqid) => {
                self.clear_doorbell(Some(Doorbell::Completion(cqid)));
                self.link.iter_mut().for_each(|link| drop(link.made.remove(&cqid)));
                self.device.completion_closed(cqid);
            }
            ControllerEvent::Aborted { sqid, cid, aborted } => self.device.aborted(sqid, cid, aborted),
            ControllerEvent::Mishap(mishap) => self.device.record(mishap),
            ControllerEvent::Fault(fault) => {
                self.device.fault(fault);
                self.shared.faulted.store(false, Ordering::Release);
            }
            ControllerEvent::Flushed => self.device.shut_down_complete(),
            ControllerEvent::QueuesClosed => self.queues_closed(),
            ControllerEvent::Quiet => self.quiet(),
            ControllerEvent::Call(call) => call(self),
        }
        self.pump();
    }

    fn queues_closed(&mut self) {
        self.closing = self.closing.saturating_sub(1);
        if self.closing > 0 {
            return;
        }
        self.clear_doorbell(None);
        self.link.iter_mut().for_each(|link| link.made.clear());
        self.device.queues_closed();
        match self.waiting.take() {
            Some(Waiting::Reset { header, answer }) => {
                if let Err(ended) = self.answer(&header, Answer::Payload(answer)) {
                    self.end_session(&ended);
                }
            }
            Some(Waiting::Predecessor) | None => {}
            other => self.waiting = other,
        }
    }

    fn quiet(&mut self) {
        if let Some(left) = &mut self.held {
            *left = left.saturating_sub(1);
            return;
        }
        self.suspension = match std::mem::take(&mut self.suspension) {
            Suspension::Suspending(left, reply) if left > 1 => Suspension::Suspending(left - 1, reply),
            Suspension::Suspending(_, reply) => {
                let _ = reply.send(());
                Suspension::Suspended
            }
            other => other,
        };
    }
}
