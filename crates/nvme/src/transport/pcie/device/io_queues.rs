//! I/O queues as the device knows them, which others own, and the commands that wait for their ends.

use crate::status::Code;
use crate::transport::pcie::queue::QueueState;
use crate::transport::pcie::registers::Doorbell;
use std::collections::{BTreeMap, BTreeSet};

/// Aborts that may wait at once (ACL + 1, as the controller's Identify says).
const ABORTS_MAX: usize = 4;

#[derive(Debug)]
struct Submission {
    cqid: u16,
    /// The Delete command that waits for its end.
    deletion: Option<u16>,
}

#[derive(Debug)]
struct Completion {
    submissions: BTreeSet<u16>,
    deletion: Option<u16>,
}

/// An Abort that waits for its command to end.
#[derive(Clone, Copy, Debug)]
struct Abort {
    slot: u16,
    sqid: u16,
    cid: u16,
}

/// Queues that the host has created; at most so many of each kind as the controller says, `most`.
#[derive(Debug, Default)]
pub(super) struct IoQueues {
    submissions: BTreeMap<u16, Submission>,
    completions: BTreeMap<u16, Completion>,
    aborts: Vec<Abort>,
    /// Commands whose time has come, by slot, with their result.
    late: Vec<(u16, u64)>,
}

/// A queue identifier that a queue may have (base, section 5.4).
fn may_be_queue(qid: u16, most: u16) -> bool {
    (1..=most).contains(&qid)
}

impl IoQueues {
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// Nothing waits for an end.
    pub fn is_calm(&self) -> bool {
        let deleted = self.submissions.values().any(|queue| queue.deletion.is_some())
            || self.completions.values().any(|queue| queue.deletion.is_some());
        !deleted && self.aborts.is_empty() && self.late.is_empty()
    }

    /// Completion queues.
    pub fn ids(&self) -> impl Iterator<Item = u16> + '_ {
        self.completions.keys().copied()
    }

    /// The completion queue whose owner a doorbell concerns. None: no such queue.
    pub fn owner_of(&self, doorbell: Doorbell) -> Option<u16> {
        match doorbell {
            Doorbell::Submission(sqid) => self.submissions.get(&sqid).map(|queue| queue.cqid),
            Doorbell::Completion(cqid) => self.completions.contains_key(&cqid).then_some(cqid),
        }
    }

    /// # Errors
    /// No completion queue may be created by that number.
    pub fn check_completion(&self, cqid: u16, most: u16) -> Result<(), Code> {
        match may_be_queue(cqid, most) && !self.completions.contains_key(&cqid) {
            true => Ok(()),
            false => Err(Code::INVALID_QUEUE_ID),
        }
    }

    /// # Errors
    /// No submission queue may be created by that number, or not for that completion queue.
    pub fn check_submission(&self, sqid: u16, cqid: u16, most: u16) -> Result<(), Code> {
        if !may_be_queue(sqid, most) || self.submissions.contains_key(&sqid) || !may_be_queue(cqid, most) {
            return Err(Code::INVALID_QUEUE_ID);
        }
        match self.completions.get(&cqid).is_none_or(|queue| queue.deletion.is_some()) {
            true => Err(Code::COMPLETION_QUEUE_INVALID),
            false => Ok(()),
        }
    }

    /// A completion queue was created.
    pub fn open_completion(&mut self, cqid: u16) {
        self.completions.insert(cqid, Completion { submissions: BTreeSet::new(), deletion: None });
    }

    /// A submission queue was created.
    pub fn open_submission(&mut self, sqid: u16, cqid: u16) {
        self.submissions.insert(sqid, Submission { cqid, deletion: None });
        self.completions.entry(cqid).and_modify(|queue| {
            queue.submissions.insert(sqid);
        });
    }

    /// The command in `slot` deletes a submission queue; its completion queue. It ends with `submission_closed`.
    ///
    /// # Errors
    /// There is none, or it is being deleted.
    pub fn delete_submission(&mut self, slot: u16, sqid: u16) -> Result<u16, Code> {
        let queue = self.submissions.get_mut(&sqid).filter(|queue| queue.deletion.is_none());
        let queue = queue.ok_or(Code::INVALID_QUEUE_ID)?;
        queue.deletion = Some(slot);
        Ok(queue.cqid)
    }

    /// Its owner has let go of a submission queue: whatever waits for that ends.
    pub fn submission_closed(&mut self, sqid: u16) {
        let Some(&Submission { cqid, deletion: Some(slot) }) = self.submissions.get(&sqid) else { return };
        self.submissions.remove(&sqid);
        self.completions.entry(cqid).and_modify(|queue| {
            queue.submissions.remove(&sqid);
        });
        while let Some(abort) = self.aborts.iter().find(|abort| abort.sqid == sqid).copied() {
            self.aborted(sqid, abort.cid, false);
        }
        self.late.push((slot, 0));
    }

    /// The command in `slot` deletes a completion queue. It ends with `completion_closed`.
    ///
    /// # Errors
    /// There is none, it is being deleted, or has submission queues: they go first.
    pub fn delete_completion(&mut self, slot: u16, cqid: u16) -> Result<(), Code> {
        let queue = self.completions.get_mut(&cqid).filter(|queue| queue.deletion.is_none());
        let queue = queue.ok_or(Code::INVALID_QUEUE_ID)?;
        if !queue.submissions.is_empty() {
            return Err(Code::INVALID_QUEUE_DELETION);
        }
        queue.deletion = Some(slot);
        Ok(())
    }

    /// Its owner has let go of a completion queue. False: nobody deleted it.
    pub fn completion_closed(&mut self, cqid: u16) -> bool {
        let Some(&Completion { deletion: Some(slot), .. }) = self.completions.get(&cqid) else {
            return false;
        };
        self.completions.remove(&cqid);
        self.late.push((slot, 0));
        true
    }

    /// The Abort in `slot` waits for a command of a submission queue; that one's completion queue. None: there is no such
    /// queue, and the command was not aborted.
    ///
    /// # Errors
    /// Too many wait.
    pub fn abort(&mut self, slot: u16, sqid: u16, cid: u16) -> Result<Option<u16>, Code> {
        let Some(queue) = self.submissions.get(&sqid) else { return Ok(None) };
        if self.aborts.len() >= ABORTS_MAX {
            return Err(Code::ABORT_LIMIT);
        }
        self.aborts.push(Abort { slot, sqid, cid });
        Ok(Some(queue.cqid))
    }

    /// The command ended: aborted, or as it would have.
    pub fn aborted(&mut self, sqid: u16, cid: u16, aborted: bool) {
        let Some(at) = self.aborts.iter().position(|one| (one.sqid, one.cid) == (sqid, cid)) else { return };
        let Abort { slot, .. } = self.aborts.remove(at);
        self.late.push((slot, (!aborted).into()));
    }

    /// Commands whose time has come, by slot, with their result.
    pub fn take_late(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.late)
    }

    /// The admin queue is gone, and with it what waits.
    pub fn forget_commands(&mut self) {
        self.aborts.clear();
        self.late.clear();
    }

    /// All queues are gone.
    pub fn clear(&mut self) {
        self.completions.clear();
        self.submissions.clear();
        self.aborts.clear();
    }

    /// A queue that somebody else has, which another process made; of interrupt vectors below `vectors`.
    ///
    /// # Errors
    /// It can't be.
    pub fn adopt(&mut self, queue: &QueueState, most: u16, vectors: u16) -> Result<(), &'static str> {
        let cqid = queue.id();
        if self.check_completion(cqid, most).is_err() {
            return Err("a completion queue that cannot be, or is there twice");
        }
        if queue.vector().is_some_and(|vector| vector >= vectors) {
            return Err("an interrupt vector that is not there");
        }
        self.open_completion(cqid);
        for sqid in queue.submissions() {
            if self.check_submission(sqid, cqid, most).is_err() {
                return Err("a submission queue that cannot be, or is there twice");
            }
            self.open_submission(sqid, cqid);
        }
        Ok(())
    }
}
