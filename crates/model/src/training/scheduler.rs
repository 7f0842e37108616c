//! Scheduler of reads and computations: which accelerator reads next, and when each computes. Pure: threads, files and
//! clocks are others'; time comes in as ns since the run began.
//!
//! Accelerators step together. Step k begins for all of them when the slowest has
//! ended step k-1; each waits until its batch k is whole, computes, and waits for the
//! others. All of that is arithmetic on the times at which batches became whole: a
//! timer that fires late moves no step, and nobody sleeps for an accelerator. When a
//! step begins its batch is taken, which lets one more batch be read: never more than
//! `prefetch` batches are whole or under way.

use super::lockstep::Lockstep;
use super::rules::Steps;
use super::trace::Stream;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Properties that all accelerators of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub ranks: u32,
    /// Samples per batch.
    pub batch: u32,
    /// Batches that may be whole or under way and aren't taken.
    pub prefetch: u32,
    /// Streams that one rank may read at a time.
    pub read_threads: u32,
    /// Steps of an epoch.
    pub steps: u32,
    pub compute_ns: u64,
    /// Steps end when somebody else says so (`passed`): accelerators of other hosts take part.
    pub awaits_others: bool,
}

pub type RankStreams = Box<dyn Iterator<Item = Stream> + Send>;

/// A stream that a worker holds, to be read until `upto` of its samples are whole. `W` is what reading it needs; it
/// is nobody's while the stream waits, and goes on to the next stream after this one.
#[derive(Debug)]
pub struct Grant<W> {
    /// Epoch in which it was granted, as counted by `Scheduler::begun`.
    pub epoch: u32,
    pub rank: u32,
    pub slot: u32,
    pub stream: Stream,
    /// Samples of the stream that are whole.
    pub done: u32,
    pub upto: u32,
    /// None: it is to be begun, and no worker has one to spare.
    pub work: Option<W>,
    /// It is to be begun.
    pub is_new: bool,
}

struct OpenStream<W> {
    stream: Stream,
    done: u32,
    upto: u32,
    held: bool,
    queued: bool,
    begun: bool,
    work: Option<W>,
}

struct Rank<W> {
    streams: RankStreams,
    slots: Vec<Option<OpenStream<W>>>,
    /// Batches taken, which is the step that it hasn't begun.
    taken: u32,
    /// Samples missing of the batches `taken`, `taken + 1`, …
    missing: VecDeque<u32>,
}

/// Source of the durations of each rank's next computation, in ns.
pub type Lengths = Box<dyn FnMut(u32) -> u64 + Send>;

pub struct Scheduler<W> {
    plan: Plan,
    /// Epochs that began.
    begun: u32,
    /// None: as long as the plan says.
    varying: Option<Lengths>,
    ranks: Vec<Rank<W>>,
    /// (number of the sample that comes next, rank, slot) of streams that wait for a worker: ranks get on side by side,
    /// as they would with readers of their own.
    todo: BinaryHeap<Reverse<(u64, u32, u32)>>,
    spare: Vec<W>,
    step: u32,
    lockstep: Lockstep,
    /// When the step begins is known.
    is_known: bool,
    /// True once those whose batch was whole by then have begun.
    opened: bool,
    waited_ns: u64,
    /// Lengths of steps that ended since they were last asked for.
    lengths: Vec<u64>,
}

impl<W> Scheduler<W> {
    /// Nothing is to be read before `begin`.
    pub fn new(plan: Plan) -> Scheduler<W> {
        Scheduler {
            plan,
            begun: 0,
            varying: None,
            ranks: Vec::new(),
            todo: BinaryHeap::new(),
            spare: Vec::new(),
            step: plan.steps,
            lockstep: Lockstep::begin(plan.ranks, plan.compute_ns, 0),
            is_known: false,
            opened: false,
            waited_ns: 0,
            lengths: Vec::new(),
        }
    }

    /// Computations take as long as this says from now on.
    pub fn vary(&mut self, lengths: Lengths) {
        self.varying = Some(lengths);
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sets the plan for the next epoch and later ones.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Begins an epoch: step 0 begins now, with nothing read.
    pub fn begin(&mut self, now: u64, streams: &mut dyn FnMut(u32) -> RankStreams) {
        let plan = self.plan;
        self.begun += 1;
        self.spare.extend(self.ranks.drain(..).flat_map(|r| r.slots).flatten().filter_map(|l| l.work));
        self.todo.clear();
        (self.step, self.is_known, self.opened) = (0, true, false);
        self.lockstep = Lockstep::begin(plan.ranks, plan.compute_ns, now);
        for rank in 0..plan.ranks {
            self.ranks.push(Rank {
                streams: streams(rank),
                slots: Vec::new(),
                taken: 0,
                missing: (0..plan.prefetch).map(|_| plan.batch).collect(),
            });
            self.refill(rank);
        }
    }

    /// The stream whose samples are needed first.
    pub fn take(&mut self) -> Option<Grant<W>> {
        let Reverse((_, rank, at)) = self.todo.pop()?;
        let slot = self.ranks[rank as usize].slots[at as usize].as_mut().expect("a queued slot is open");
        (slot.queued, slot.held) = (false, true);
        let is_new = !std::mem::replace(&mut slot.begun, true);
        let work = slot.work.take().or_else(|| self.spare.pop());
        // No further than its batch, though more may be read: another rank's batch may be needed sooner.
        let batch = u64::from(self.plan.batch);
        let next = slot.stream.position + u64::from(slot.done) * u64::from(slot.stream.stride);
        let upto = slot.upto.min(samples_before(&slot.stream, (next / batch + 1) * batch));
        Some(Grant {
            epoch: self.begun,
            rank,
            slot: at,
            stream: slot.stream,
            done: slot.done,
            upto,
            work,
            is_new,
        })
    }

    /// Streams that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.todo.len()
    }

    /// Epochs that began. Whoever still holds a stream of an earlier one, whose samples were all taken, is to `drop_off`
    /// what it read with: its place is another stream's by now.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Takes back the resources with which a stream of an earlier epoch was read.
    pub fn drop_off(&mut self, work: W) {
        self.spare.push(work);
    }

    /// Reports that so many samples of a stream that a worker holds are whole.
    pub fn report(&mut self, rank: u32, slot: u32, done: u32, now: u64) {
        let batch = u64::from(self.plan.batch);
        let of = &mut self.ranks[rank as usize];
        let Some(slot) = of.slots[slot as usize].as_mut() else { return };
        let Stream { position, stride, .. } = slot.stream;
        let first = u64::from(of.taken);
        let mut from = slot.done;
        slot.done = done.clamp(from, slot.upto);
        while from < slot.done {
            let number = (position + u64::from(from) * u64::from(stride)) / batch;
            let to = slot.done.min(samples_before(&slot.stream, (number + 1) * batch));
            of.missing[(number - first) as usize] -= to - from;
            from = to;
        }
        // Once the step is open nobody looks at this rank again, even where another worker's clock was read later.
        if self.begins().is_some_and(|begins| self.opened || now >= begins) {
            self.try_begin(rank, now);
        }
        self.advance(now);
    }

    /// A worker has finished a grant, and reported all of it.
    pub fn give_back(&mut self, rank: u32, slot: u32, work: W) {
        let of = &mut self.ranks[rank as usize];
        let held = of.slots[slot as usize].as_mut().expect("a held slot is open");
        held.held = false;
        if held.done == held.stream.samples {
            of.slots[slot as usize] = None;
            self.spare.push(work);
            self.refill(rank);
        } else {
            held.work = Some(work);
            self.queue(rank, slot);
        }
    }

    /// Begins steps whose time has come.
    pub fn advance(&mut self, now: u64) {
        while let Some(begins) = self.due().filter(|begins| *begins <= now) {
            self.opened = true;
            let step = self.step;
            for rank in 0..self.plan.ranks {
                if self.step == step {
                    self.try_begin(rank, begins);
                }
            }
        }
    }

    /// When `advance` has something to do though nobody reports anything.
    pub fn due(&self) -> Option<u64> {
        self.begins().filter(|_| !self.opened && !self.is_over())
    }

    /// When the step begins.
    fn begins(&self) -> Option<u64> {
        self.is_known.then(|| self.lockstep.asked_ns())
    }

    /// All steps of the epoch were begun by all; the last one ends when `end_ns` says.
    pub fn is_over(&self) -> bool {
        self.step == self.plan.steps
    }

    /// The local end of a step that others must pass, too.
    pub fn awaits_others(&self) -> Option<u64> {
        self.lockstep.barrier_ns().filter(|_| self.plan.awaits_others)
    }

    /// All other hosts have finished the step.
    pub fn passed(&mut self, now: u64) {
        if let Some(ends) = self.awaits_others() {
            self.end_step(now.max(ends));
            self.advance(now);
        }
    }

    /// Steps that ended, or will when the time that is known for it has come.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// When the last of them ends; the epoch's begin where there is none.
    pub fn end_ns(&self) -> u64 {
        self.lockstep.asked_ns()
    }

    /// Each rank's epoch as the formulas want it: the steps that ended, whatever is under way besides.
    pub fn epoch(&self) -> &[Steps] {
        self.lockstep.steps()
    }

    /// Total time that all ranks waited for batches since the last call.
    pub fn take_waited_ns(&mut self) -> u64 {
        std::mem::take(&mut self.waited_ns)
    }

    /// Takes the durations of steps that ended since the last call.
    pub fn take_lengths(&mut self) -> std::vec::Drain<'_, u64> {
        self.lengths.drain(..)
    }

    /// Ranks whose step has begun without them, the first `most`.
    pub fn late(&self, now: u64, most: usize) -> Vec<u32> {
        if self.begins().is_none_or(|begins| begins >= now) || self.is_over() {
            return Vec::new();
        }
        let late = self.ranks.iter().enumerate().filter(|(_, r)| r.taken == self.step);
        late.map(|(rank, _)| rank as u32).take(most).collect()
    }

    /// Takes the batch of the step that begins, if it is whole.
    fn try_begin(&mut self, rank: u32, at: u64) {
        let (step, over) = (self.step, self.is_over());
        let of = &mut self.ranks[rank as usize];
        if of.taken != step || over || of.missing[0] > 0 {
            return;
        }
        of.taken += 1;
        of.missing.pop_front();
        of.missing.push_back(self.plan.batch);
        let asked = self.lockstep.asked_ns();
        let takes_ns = self.varying.as_mut().map_or(self.plan.compute_ns, |lengths| lengths(rank));
        self.waited_ns += self.lockstep.start_for(rank, at, takes_ns) - asked;
        self.refill(rank);
        if let Some(ends) = self.lockstep.barrier_ns() {
            self.is_known = false;
            if !self.plan.awaits_others {
                self.end_step(ends);
            }
        }
    }

    fn end_step(&mut self, at: u64) {
        self.lengths.push(at - self.lockstep.asked_ns());
        self.lockstep.pass(at);
        self.step += 1;
        (self.is_known, self.opened) = (true, false);
    }

    /// Grants a rank as much reading as it is allowed.
    fn refill(&mut self, rank: u32) {
        let plan = self.plan;
        let of = &mut self.ranks[rank as usize];
        let batches = of.taken.saturating_add(plan.prefetch).min(plan.steps);
        let limit = u64::from(batches) * u64::from(plan.batch);
        for slot in of.slots.iter_mut().flatten() {
            slot.upto = samples_before(&slot.stream, limit);
        }
        let mut open = of.slots.iter().flatten().count();
        // One that may not be read yet is harmless, and those of a group needn't come in the order of their samples.
        while open < plan.read_threads as usize {
            let Some(stream) = of.streams.next() else { break };
            let upto = samples_before(&stream, limit);
            let slot =
                OpenStream { stream, done: 0, upto, held: false, queued: false, begun: false, work: None };
            match of.slots.iter().position(Option::is_none) {
                Some(at) => of.slots[at] = Some(slot),
                None => of.slots.push(Some(slot)),
            }
            open += 1;
        }
        for slot in 0..of.slots.len() as u32 {
            self.queue(rank, slot);
        }
    }

    /// Queues the rank for a worker, if it has something that may be read.
    fn queue(&mut self, rank: u32, at: u32) {
        let Some(slot) = self.ranks[rank as usize].slots[at as usize].as_mut() else { return };
        if slot.held || slot.queued || slot.done >= slot.upto {
            return;
        }
        slot.queued = true;
        let next = slot.stream.position + u64::from(slot.done) * u64::from(slot.stream.stride);
        self.todo.push(Reverse((next, rank, at)));
    }
}

/// Samples of a stream whose number in the epoch is below `limit`.
fn samples_before(stream: &Stream, limit: u64) -> u32 {
    let room = limit.saturating_sub(stream.position).div_ceil(u64::from(stream.stride));
    room.min(u64::from(stream.samples)) as u32
}

#[cfg(test)]
mod tests;
