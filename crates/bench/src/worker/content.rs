//! Content of a worker's I/Os: generated before a write, verified after a read, by the host at once or by the GPU in a while.

use super::{InFlight, Issued};
use crate::run_kit::Shared;
use crate::verify::{Contents, Ended, NameOf, Part, VerifyTask};
use forebay_model::Error;
use std::sync::Arc;
use std::time::Instant;

/// What became of a slot's content. A text is why it isn't what it should be, or couldn't be made.
pub(super) enum Step {
    Done(Result<(), String>),
    /// The GPU works on it, and `reap` tells when it has.
    OnGpu,
}

pub(super) struct SlotContent {
    contents: Contents,
    shared: Arc<Shared>,
    /// Kept, so that it is allocated once.
    ended: Vec<Ended>,
}

impl SlotContent {
    /// For worker number `index`, with `slots`. The text is why the host does what the GPU was to do.
    pub(super) fn open(
        shared: &Arc<Shared>,
        index: u32,
        slots: u32,
    ) -> Result<(SlotContent, Option<String>), Error> {
        let device = shared.destination.device_of(index);
        let names = names_of(shared);
        let (contents, why_not) = Contents::open(&shared.job, index, names, device, slots as usize)?;
        Ok((SlotContent { contents, shared: shared.clone(), ended: Vec::new() }, why_not))
    }

    /// Writes get content of their own, rather than what their slot holds.
    #[inline]
    pub(super) fn makes(&self) -> bool {
        self.shared.job.verify || self.shared.job.refill
    }

    /// Makes the content of a write.
    pub(super) fn fill(&mut self, tag: u32, pending: &InFlight) -> Step {
        let part = self.part_of(pending);
        if self.is_on_gpu(tag, VerifyTask::Fill, pending, part) {
            return Step::OnGpu;
        }
        Step::Done(self.contents.fill(pending.mem, part))
    }

    /// Checks the content of a finished read.
    pub(super) fn check(&mut self, tag: u32, pending: &InFlight) -> Step {
        let part = self.part_of(pending);
        if self.is_on_gpu(tag, VerifyTask::Check, pending, part) {
            return Step::OnGpu;
        }
        Step::Done(self.contents.check(pending.mem, part))
    }

    /// Leaves the slot to the GPU for a while, where that has it.
    fn is_on_gpu(&mut self, tag: u32, task: VerifyTask, pending: &InFlight, part: Part) -> bool {
        let is_on_gpu = self.contents.is_on_gpu(pending.mem);
        if is_on_gpu {
            self.contents.start(tag, task, pending.mem, part);
        }
        is_on_gpu
    }

    /// Has the GPU begin with what waits for it.
    #[inline]
    pub(super) fn submit(&mut self) {
        self.contents.submit();
    }

    /// Returns whether the GPU makes or checks content, so that there may be something to reap.
    #[inline]
    pub(super) fn is_made_aside(&self) -> bool {
        self.contents.has_gpu()
    }

    /// What the GPU has done; `spare` gives the list back.
    pub(super) fn reap(&mut self) -> Vec<Ended> {
        let mut ended = std::mem::take(&mut self.ended);
        self.contents.reap(&mut ended);
        ended
    }

    pub(super) fn spare(&mut self, ended: Vec<Ended>) {
        self.ended = ended;
    }

    /// When there may next be something to reap.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.contents.next_due()
    }

    fn part_of(&self, pending: &InFlight) -> Part {
        let Issued { target, .. } = pending.submission.owner;
        let (seed, file) =
            (self.shared.content_seeds[target as usize], self.shared.targets[target as usize].content_id);
        Part { seed, file, offset: pending.submission.offset, len: pending.submission.len }
    }
}

/// The names that content may carry: those of the run's targets.
fn names_of(shared: &Arc<Shared>) -> NameOf {
    let shared = shared.clone();
    Box::new(move |id| shared.targets.iter().find(|t| t.content_id == id).map(|t| t.label.clone()))
}
