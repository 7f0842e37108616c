//! Doorbells: registers, or shadow doorbells in memory.

use super::super::memory::HostMemory;
use super::super::memory::Unmapped;
use super::super::registers::Doorbell;
use super::super::shadow::Shadow;
use super::submission::SubmissionQueue;
use super::CompletionQueue;
use super::InvalidDoorbell;
use super::QueueFault;

impl CompletionQueue {
    /// The admin queue's: without shadow doorbells.
    pub(crate) fn open_plain(&mut self, queue: SubmissionQueue) {
        self.submissions.push(queue);
    }

    /// A new queue's shadow doorbell starts at 0, whatever a queue of that number left behind.
    pub(crate) fn begin_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
    ) -> Result<(), Unmapped> {
        self.own_shadow = shadow.of(Doorbell::Completion(self.id));
        if let Some((doorbell, event_index)) = self.own_shadow {
            memory.store(doorbell, 0)?;
            memory.store(event_index, self.ring.previous(0).into())?;
        }
        Ok(())
    }

    /// A submission queue of this completion queue was created. The host may have put commands into it by now.
    pub fn open<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        queue: SubmissionQueue,
    ) -> Result<(), QueueFault> {
        self.submissions.push(queue);
        self.poll(memory)
    }

    pub(super) fn at(&self, sqid: u16) -> Option<usize> {
        self.submissions.iter().position(|queue| queue.id == sqid)
    }

    /// A doorbell register was written. Err: it changed nothing, and the host is to be told. The value of a queue with
    /// a shadow doorbell is the one there: the write only says that there is something to see (`poll`).
    pub fn ring(&mut self, doorbell: Doorbell, value: u32) -> Result<(), InvalidDoorbell> {
        let wrong = |known| InvalidDoorbell { doorbell, value, known };
        match doorbell {
            Doorbell::Completion(cqid) if cqid != self.id => Err(wrong(false)),
            Doorbell::Completion(_) if self.own_shadow.is_some() => {
                if self.own_fresh {
                    self.move_head(value);
                }
                Ok(())
            }
            Doorbell::Completion(_) => self.move_head(value).then_some(()).ok_or(wrong(true)),
            Doorbell::Submission(sqid) => {
                let at = self.at(sqid).ok_or(wrong(false))?;
                let queue = &mut self.submissions[at];
                if queue.shadow.is_some() || queue.closing {
                    if queue.fresh && !queue.closing {
                        queue.ring.move_tail(value);
                    }
                    return Ok(());
                }
                queue.ring.move_tail(value).then_some(()).ok_or(wrong(true))
            }
        }
    }

    pub(super) fn move_head(&mut self, value: u32) -> bool {
        let moved = self.ring.move_head(value);
        if let (true, Some(book)) = (moved, &self.book) {
            book.set_head(self.ring.head());
        }
        moved
    }

    /// Looks at the shadow doorbells of the submission queues. Nothing to do where there are none.
    pub fn poll<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), QueueFault> {
        for queue in &mut self.submissions {
            let Some((doorbell, _)) = queue.shadow.filter(|_| !queue.closing) else { continue };
            let value = memory.load(doorbell)?;
            if value == queue.seen {
                continue;
            }
            if let (true, Some(book)) = (queue.fresh, &self.book) {
                book.set_submission_heard(queue.id, true);
            }
            (queue.seen, queue.fresh) = (value, false);
            if !queue.ring.move_tail(value) {
                let doorbell = Doorbell::Submission(queue.id);
                return Err(QueueFault::Doorbell(InvalidDoorbell { doorbell, value, known: true }));
            }
        }
        Ok(())
    }
}
