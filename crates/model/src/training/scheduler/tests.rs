use super::*;
use crate::training::{EmulateSpec, Loader, RuleSet, Trace, Workload};
use proptest::prelude::*;
use std::collections::HashMap;

/// Storage that delivers samples one after the other, and time in the test's hand.
struct World {
    scheduler: Scheduler<u32>,
    plan: Plan,
    now: u64,
    /// (rank, sample number of the epoch) → times it was delivered.
    delivered: HashMap<(u32, u64), u32>,
    works: u32,
}

impl World {
    fn new(plan: Plan, trace: &Trace, epoch: u32) -> World {
        let mut scheduler = Scheduler::new(plan);
        scheduler.begin(0, &mut |rank| Box::new(trace.streams(epoch, rank)));
        World { scheduler, plan, now: 0, delivered: HashMap::new(), works: 0 }
    }

    /// Reads a grant to its end, a sample each `sample_ns`; what is read must have been allowed.
    fn read(&mut self, grant: Grant<u32>, sample_ns: u64) {
        let work = grant.work.unwrap_or_else(|| {
            self.works += 1;
            self.works
        });
        for done in grant.done..grant.upto {
            let number = grant.stream.position + u64::from(done) * u64::from(grant.stream.stride);
            let taken = self.scheduler.ranks[grant.rank as usize].taken;
            let batch = number / u64::from(self.plan.batch);
            assert!(batch < u64::from(taken + self.plan.prefetch), "batch {batch}, {taken} taken");
            assert!(batch < u64::from(self.plan.steps));
            *self.delivered.entry((grant.rank, number)).or_default() += 1;
            self.now += sample_ns;
            self.scheduler.report(grant.rank, grant.slot, done + 1, self.now);
        }
        self.scheduler.give_back(grant.rank, grant.slot, work);
    }

    fn held(&self, rank: u32) -> usize {
        self.scheduler.ranks[rank as usize].slots.iter().flatten().count()
    }

    /// One worker that reads whatever is to be read, until the epoch is over.
    fn play(&mut self, sample_ns: u64) -> Steps {
        while !self.scheduler.is_over() {
            for rank in 0..self.plan.ranks {
                assert!(self.held(rank) <= self.plan.read_threads as usize);
            }
            match self.scheduler.take() {
                Some(grant) => self.read(grant, sample_ns),
                None => {
                    self.now = self.scheduler.due().expect("nothing to read, so a step is due").max(self.now);
                    self.scheduler.advance(self.now);
                }
            }
        }
        self.scheduler.epoch()[0]
    }
}

fn spec(loader: Loader, ranks: u32, batch: u32, samples_per_file: u32, read_threads: u32) -> EmulateSpec {
    EmulateSpec {
        workload: Workload {
            name: "test".into(),
            loader,
            batch,
            samples_per_file,
            record_bytes: 1000.0,
            compute_s: 1e-3,
            ..Workload::default()
        },
        rules: RuleSet::V10,
        accelerators: ranks,
        ranks,
        read_threads,
        ..EmulateSpec::default()
    }
}

fn plan(spec: &EmulateSpec, trace: &Trace, prefetch: u32) -> Plan {
    Plan {
        ranks: spec.ranks,
        batch: spec.workload.batch,
        prefetch,
        read_threads: spec.read_threads,
        steps: trace.steps(),
        compute_ns: spec.workload.compute_ns(),
        awaits_others: false,
    }
}

proptest! {
    /// Whatever the shape: the epoch ends, each sample is read once, none before its batch may be, and no rank reads
    /// more streams at a time than it may.
    // promise: TRA-6
    #[test]
    fn every_sample_is_read_once_and_none_too_early(
        tensorflow: bool, ranks in 1u32..6, batch in 1u32..9, samples_per_file in 1u32..20, files in 1u32..40,
        read_threads in 1u32..5, prefetch in 1u32..4, sample_ns in 0u64..2_000_000, seed: u64,
    ) {
        let loader = if tensorflow { Loader::TensorFlow } else { Loader::PyTorch };
        let spec = EmulateSpec { seed, ..spec(loader, ranks, batch, samples_per_file, read_threads) };
        let Ok(trace) = Trace::new(&spec, files) else { return Ok(()) };
        let mut world = World::new(plan(&spec, &trace, prefetch), &trace, 0);
        let marks = world.play(sample_ns);
        prop_assert_eq!(marks.steps, trace.steps());
        let samples = u64::from(ranks) * trace.samples_per_rank();
        prop_assert_eq!(world.delivered.len() as u64, samples);
        prop_assert!(world.delivered.values().all(|times| *times == 1));
        // All that passed is computing, waiting for batches or waiting for the others.
        let steps = u64::from(trace.steps());
        for epoch in world.scheduler.epoch() {
            prop_assert_eq!(epoch.end_ns - epoch.start_ns, epoch.wait_ns + epoch.compute_ns + epoch.barrier_ns);
            prop_assert_eq!((epoch.steps, epoch.end_ns), (trace.steps(), marks.end_ns));
        }
        let shortest = (steps * world.plan.compute_ns).max(samples.saturating_sub(u64::from(ranks * prefetch * batch)) * sample_ns);
        prop_assert!(marks.end_ns >= shortest);
    }
}

/// One rank, one sample per batch and file: a world whose times can be told by hand.
fn single(prefetch: u32, files: u32) -> World {
    let spec = spec(Loader::PyTorch, 1, 1, 1, 1);
    let trace = Trace::new(&spec, files).unwrap();
    World::new(plan(&spec, &trace, prefetch), &trace, 0)
}

#[test]
fn storage_that_is_fast_enough_is_waited_for_once() {
    let mut world = single(2, 10);
    let marks = world.play(400_000);
    assert_eq!((marks.wait_ns, marks.first.wait_ns), (400_000, 400_000));
    assert_eq!(marks.end_ns, 400_000 + 10_000_000);
}

#[test]
fn storage_that_is_too_slow_sets_the_pace() {
    let mut world = single(2, 10);
    let marks = world.play(4_000_000);
    // The tenth sample arrives at 40 ms; its step takes 1 ms.
    assert_eq!(marks.end_ns, 41_000_000);
    assert_eq!(marks.wait_ns, 41_000_000 - 10 * 1_000_000);
    assert_eq!(world.scheduler.take_waited_ns(), marks.wait_ns);
    let lengths: Vec<u64> = world.scheduler.take_lengths().collect();
    assert_eq!((lengths.len(), lengths[0], lengths[9]), (10, 5_000_000, 4_000_000));
}

// promise: TRA-3
#[test]
fn a_timer_that_fires_late_moves_no_step() {
    let mut world = single(2, 4);
    for _ in 0..2 {
        let grant = world.scheduler.take().unwrap();
        world.read(grant, 100_000);
    }
    // Step 0 began at 100 us, so step 1 begins at 1.1 ms; somebody looks at 1.7 ms.
    assert_eq!(world.scheduler.due(), Some(1_100_000));
    world.scheduler.advance(1_700_000);
    assert_eq!(world.scheduler.due(), Some(2_100_000));
    assert_eq!(world.scheduler.epoch()[0].wait_ns, 100_000);
}

/// Two workers: the one that ends a batch read its clock before the other opened the step.
#[test]
fn a_report_that_is_older_than_the_opening_of_its_step_begins_it() {
    let mut world = single(2, 4);
    let Some(first) = world.scheduler.take() else { panic!("a batch is to be read") };
    world.read(first, 10);
    assert_eq!(world.scheduler.ranks[0].taken, 1, "step 0 is computed");
    let begins = world.scheduler.due().expect("step 1 begins when it ends");
    let late = world.scheduler.take().expect("one more batch may be read");
    world.scheduler.advance(begins + 5);
    assert_eq!(world.scheduler.due(), None, "it is open, and waits for its batch");
    world.scheduler.report(late.rank, late.slot, late.upto, begins - 1);
    assert_eq!(world.scheduler.ranks[0].taken, 2);
}

#[test]
fn the_slowest_rank_holds_all_others_at_the_barrier() {
    let spec = spec(Loader::PyTorch, 3, 1, 1, 1);
    let trace = Trace::new(&spec, 30).unwrap();
    let mut world = World::new(plan(&spec, &trace, 2), &trace, 0);
    let marks = world.play(1_000_000);
    // Three samples of 1 ms for a step that computes for 1 ms.
    let lengths: Vec<u64> = world.scheduler.take_lengths().collect();
    assert!(lengths[2..].iter().all(|ns| (2_900_000..=3_100_000).contains(ns)), "{lengths:?}");
    assert_eq!(lengths.iter().sum::<u64>(), marks.end_ns);
}

#[test]
fn a_step_of_several_hosts_begins_when_all_have_passed() {
    let spec = spec(Loader::PyTorch, 1, 1, 1, 1);
    let trace = Trace::new(&spec, 3).unwrap();
    let plan = Plan { awaits_others: true, ..plan(&spec, &trace, 2) };
    let mut world = World::new(plan, &trace, 0);
    let grant = world.scheduler.take().unwrap();
    world.read(grant, 100_000);
    assert_eq!((world.scheduler.awaits_others(), world.scheduler.due()), (Some(1_100_000), None));
    world.scheduler.passed(5_000_000);
    assert_eq!(world.scheduler.awaits_others(), None);
    let grant = world.scheduler.take().unwrap();
    world.now = 5_000_000;
    world.read(grant, 100_000);
    assert_eq!(world.scheduler.awaits_others(), Some(6_100_000));
    let epoch = world.scheduler.epoch()[0];
    assert_eq!((epoch.steps, epoch.end_ns, epoch.first.barrier_ns), (1, 5_000_000, 3_900_000));
}

#[test]
fn who_is_late_is_named() {
    let spec = spec(Loader::PyTorch, 4, 1, 1, 1);
    let trace = Trace::new(&spec, 8).unwrap();
    let mut world = World::new(plan(&spec, &trace, 2), &trace, 0);
    let grant = world.scheduler.take().unwrap();
    assert_eq!(grant.rank, 0);
    world.read(grant, 1000);
    assert_eq!(world.scheduler.late(2000, 8), [1, 2, 3]);
    assert_eq!(world.scheduler.late(2000, 2), [1, 2]);
}

#[test]
fn what_reads_a_stream_goes_on_to_the_next_one() {
    let mut world = single(2, 100);
    world.play(1000);
    assert_eq!(world.works, 1);
}

#[test]
fn an_epoch_that_is_broken_off_counts_the_steps_that_ended() {
    let mut world = single(2, 10);
    for _ in 0..3 {
        if let Some(grant) = world.scheduler.take() {
            world.read(grant, 4_000_000);
        }
    }
    // Samples came at 4, 8 and 12 ms; the third step is under way.
    let epoch = world.scheduler.epoch()[0];
    assert_eq!((epoch.steps, epoch.start_ns, epoch.end_ns), (3, 0, 13_000_000));
    assert_eq!(epoch.wait_ns, 10_000_000);
    assert_eq!((epoch.first.wait_ns, epoch.first.process_ns), (4_000_000, 5_000_000));
    let none = Scheduler::<u32>::new(world.plan);
    assert!(none.is_over() && none.epoch()[0].steps == 0);
}

// promise: TRA-6
#[test]
fn a_batch_that_is_needed_now_comes_before_batches_ahead() {
    // Two ranks, each with one file of all of its samples, which may be read four batches ahead.
    let spec = spec(Loader::TensorFlow, 2, 5, 40, 1);
    let trace = Trace::new(&spec, 2).unwrap();
    let mut world = World::new(plan(&spec, &trace, 4), &trace, 0);
    let order: Vec<(u32, u32, u32)> = (0..4)
        .map(|_| {
            let grant = world.scheduler.take().unwrap();
            let seen = (grant.rank, grant.done, grant.upto);
            world.read(grant, 1000);
            seen
        })
        .collect();
    assert_eq!(order, [(0, 0, 5), (1, 0, 5), (0, 5, 10), (1, 5, 10)]);
}

/// A worker that ends the last batch gives its stream back once the next epoch has begun.
// promise: TRA-12
#[test]
fn a_stream_of_an_earlier_epoch_is_nobodys_in_the_next() {
    let spec = spec(Loader::PyTorch, 1, 1, 1, 1);
    let trace = Trace::new(&spec, 3).unwrap();
    let mut world = World::new(plan(&spec, &trace, 2), &trace, 0);
    let mut last = None;
    while !world.scheduler.is_over() {
        match world.scheduler.take() {
            Some(grant) if grant.stream.position == 2 => {
                world.scheduler.report(grant.rank, grant.slot, grant.upto, world.now);
                last = Some(grant.epoch);
            }
            Some(grant) => world.read(grant, 10),
            None => {
                world.now = world.scheduler.due().expect("a step is due");
                world.scheduler.advance(world.now);
            }
        }
    }
    world.scheduler.begin(world.now, &mut |rank| Box::new(trace.streams(1, rank)));
    assert_ne!(last, Some(world.scheduler.begun()));
    world.scheduler.drop_off(77);
    let next = world.scheduler.take().expect("the next epoch's first stream");
    assert_eq!((next.epoch, next.work, next.is_new), (world.scheduler.begun(), Some(77), true));
}
