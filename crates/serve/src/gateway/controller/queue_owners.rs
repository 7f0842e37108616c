//! Which worker owns which I/O queue of a controller, and what the workers are told of it.

use crate::gateway::controller_shared::ControllerShared;
use crate::gateway::io_queue::Taken;
use crate::gateway::worker::WorkerMessage;
use crate::target::inbox::Inbox;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, SubmissionQueue};
use forebay_nvme::transport::pcie::registers::Doorbell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A completion queue goes to the workers in turn, and its submission queues with it.
pub(super) struct QueueOwners {
    shared: Arc<ControllerShared>,
    workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    /// By queue: the worker that owns its completion queue.
    submissions: BTreeMap<u16, usize>,
    completions: BTreeMap<u16, usize>,
    /// Workers that have yet to let go of its queues.
    closing: usize,
    /// Queues of another process's that no worker has yet.
    taken: Vec<Taken>,
}

impl QueueOwners {
    pub(super) fn new(
        shared: Arc<ControllerShared>,
        workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    ) -> QueueOwners {
        QueueOwners {
            shared,
            workers,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            closing: 0,
            taken: Vec::new(),
        }
    }

    /// Number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The worker that owns that completion queue, or will.
    pub(super) fn worker_of(&self, cqid: u16) -> usize {
        usize::from(cqid.wrapping_sub(1)) % self.workers.len()
    }

    fn post(&self, cqid: u16, message: WorkerMessage) {
        self.workers[self.worker_of(cqid)].post(message);
    }

    /// Tells every worker. `message`: of the controller's name.
    pub(super) fn post_all(&self, message: impl Fn(u64) -> WorkerMessage) {
        self.workers.iter().for_each(|worker| worker.post(message(self.shared.id)));
    }

    /// Tells one, whichever it is.
    pub(super) fn post_one(&self, message: impl Fn(u64) -> WorkerMessage) {
        self.workers[0].post(message(self.shared.id));
    }

    // Queues come and go.

    pub(super) fn open_completion(&mut self, cq: CompletionQueue) {
        let cqid = cq.id();
        self.completions.insert(cqid, self.worker_of(cqid));
        self.post(cqid, WorkerMessage::OpenCompletion(self.shared.id, cq));
    }

    pub(super) fn open_submission(&mut self, cqid: u16, queue: SubmissionQueue) {
        self.submissions.insert(queue.id(), self.worker_of(cqid));
        let controller = self.shared.id;
        self.post(cqid, WorkerMessage::OpenSubmission { controller, cqid, queue });
    }

    pub(super) fn close_submission(&mut self, cqid: u16, sqid: u16) {
        self.submissions.remove(&sqid);
        let controller = self.shared.id;
        self.post(cqid, WorkerMessage::CloseSubmission { controller, cqid, sqid });
    }

    pub(super) fn close_completion(&mut self, cqid: u16) {
        self.completions.remove(&cqid);
        let controller = self.shared.id;
        self.post(cqid, WorkerMessage::CloseCompletion { controller, cqid });
    }

    /// Has all go; each worker says when it has let go.
    pub(super) fn close_all(&mut self) {
        self.submissions.clear();
        self.completions.clear();
        self.closing = self.workers.len();
        self.post_all(WorkerMessage::CloseQueues);
    }

    /// A worker has let go of all that it had. True: it was the last.
    pub(super) fn closed(&mut self) -> bool {
        self.closing = self.closing.saturating_sub(1);
        self.closing == 0
    }

    /// Workers have yet to let go.
    pub(super) fn are_closing(&self) -> bool {
        self.closing > 0
    }

    pub(super) fn abort(&self, cqid: u16, sqid: u16, cid: u16) {
        let controller = self.shared.id;
        self.post(cqid, WorkerMessage::Abort { controller, cqid, sqid, cid });
    }

    // Doorbells.

    /// The worker that the doorbell concerns, where it is that of an I/O queue that there is.
    pub(super) fn worker_at(&self, doorbell: Doorbell) -> Option<usize> {
        match doorbell {
            Doorbell::Submission(sqid) => self.submissions.get(&sqid).copied(),
            Doorbell::Completion(cqid) => self.completions.get(&cqid).copied(),
        }
    }

    /// The worker is told, and nobody else.
    pub(super) fn ring(&self, worker: usize, doorbell: Doorbell, value: u32) {
        self.shared.doorbells.set(doorbell, value);
        self.shared.rung[worker].store(true, Ordering::Release);
        self.workers[worker].wake();
    }

    /// Doorbells of I/O queues that there aren't are 0.
    pub(super) fn clear_other_doorbells(&self, queues_max: u16) {
        for qid in 1..=queues_max {
            for doorbell in [Doorbell::Completion(qid), Doorbell::Submission(qid)] {
                if self.worker_at(doorbell).is_none() {
                    self.shared.doorbells.set(doorbell, 0);
                }
            }
        }
    }

    // Of another process.

    /// A queue of another process's; its worker gets it by `hand_out`.
    pub(super) fn adopt(&mut self, taken: Taken) {
        let (cqid, queue) = (taken.kept.queue.id(), &taken.kept.queue);
        let owner = self.worker_of(cqid);
        self.completions.insert(cqid, owner);
        self.submissions.extend(queue.submissions().map(|sqid| (sqid, owner)));
        self.taken.push(taken);
    }

    pub(super) fn hand_out(&mut self) {
        for taken in std::mem::take(&mut self.taken) {
            let cqid = taken.kept.queue.id();
            self.post(cqid, WorkerMessage::TakeUp(self.shared.id, Box::new(taken)));
        }
    }
}
