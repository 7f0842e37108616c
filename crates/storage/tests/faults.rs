//! Queues between faults: what was reported moved is right, nothing is done twice
//! or lost, and a seed brings the same faults again.

#[path = "contract/arena.rs"]
mod arena;
#[path = "contract/cases.rs"]
#[allow(dead_code)] // shared with the contract suite, which uses more of it
mod cases;
#[path = "contract/mapped.rs"]
#[allow(dead_code)]
mod mapped;
#[path = "contract/model.rs"]
mod model;
#[path = "contract/rig.rs"]
#[allow(dead_code)]
mod rig;
#[path = "contract/arena/scattered.rs"]
#[allow(dead_code)]
mod scattered;
#[path = "contract/served.rs"]
#[allow(dead_code)]
mod served;
#[path = "contract/watched.rs"]
mod watched;

use cases::{lacking, noise, striped, truth, ENGINES};
use forebay_io::{Op, Queue};
use forebay_model::job::{Engine, PathKind};
use forebay_storage::{FaultPlan, FaultQueue, QueueNeeds, StripeQueue, Target};
use model::{batches, Flat, Shape};
use proptest::prelude::*;
use rig::{Answer, Request, Rig};
use std::cell::Cell;
use watched::{Awaited, Watched};

const UNIT: u64 = 4096;

fn few() -> ProptestConfig {
    let cases = if std::env::var_os("FOREBAY_TEST_ALL").is_some() { 24 } else { 6 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Outcome of a run between faults.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    errors: usize,
    short: usize,
    cancelled: usize,
    whole: usize,
}

/// Runs the batches as a client would: the rest of a short transfer is asked for again, a failed I/O isn't.
/// Reads are compared with the model as far as they were reported moved.
fn run_between_faults(rig: &mut Rig, awaited: &Cell<u32>, flat: &mut Flat, work: &[Vec<Request>]) -> Tally {
    let mut tally = Tally::default();
    for batch in work {
        let mut left = batch.clone();
        while !left.is_empty() {
            let answers = rig.all_or_abandon(&left, awaited);
            left = left
                .iter()
                .zip(answers)
                .filter_map(|(request, answer)| book_answer(rig, flat, request, &answer, &mut tally))
                .collect();
        }
    }
    tally
}

/// Books one answer; returns the rest of a short one.
fn book_answer(
    rig: &Rig,
    flat: &mut Flat,
    request: &Request,
    answer: &Answer,
    tally: &mut Tally,
) -> Option<Request> {
    let moved = match answer.moved() {
        Ok(moved) => *moved,
        Err(fault) if fault.errno == libc::ECANCELED => {
            tally.cancelled += 1;
            flat.doubt(request);
            return None;
        }
        Err(fault) => {
            assert_eq!(fault.errno, libc::EIO, "{}: {fault}", rig.name);
            assert!(fault.to_string().contains("injected error"), "{fault}");
            tally.errors += 1;
            // A stripe's other pieces may have gone through.
            flat.doubt(request);
            return None;
        }
    };
    assert!(moved <= request.len, "{}: moved {moved} of {}", rig.name, request.len);
    assert!(moved > 0 || request.len == 0, "{}: nothing moved inside the data", rig.name);
    flat.apply(request, moved as usize);
    if request.op == Op::Read {
        let wrong = flat.differs(request.offset, &answer.bytes[..moved as usize]);
        assert_eq!(wrong, None, "{}: reported moved, and wrong", rig.name);
    }
    if moved == request.len {
        tally.whole += 1;
        return None;
    }
    tally.short += 1;
    let data = request.data.get(moved as usize..).unwrap_or_default().to_vec();
    Some(Request {
        offset: request.offset + u64::from(moved),
        len: request.len - moved,
        op: request.op,
        data,
    })
}

fn plans() -> impl Strategy<Value = FaultPlan> {
    let share = |most: f64| prop_oneof![Just(0.0), 0.0..most];
    (any::<u64>(), share(0.3), share(0.5), share(0.04), prop_oneof![Just(0u64), 0u64..1500], any::<bool>())
        .prop_map(|(seed, error, short, stall, delay_us, reorder)| FaultPlan {
            seed,
            error,
            short,
            stall,
            delay_us,
            reorder,
        })
}

proptest! {
    #![proptest_config(few())]

    /// Each engine under each path, between any mix of faults, beside a vector of bytes.
    // promise: ENG-2
    #[test]
    fn what_is_reported_moved_is_right_on_every_engine(
        plan in plans(), seed: u64, depth in 1u32..9, direct: bool, bounce: bool,
    ) {
        let path = if bounce { PathKind::Bounce } else { PathKind::Host };
        let home = cases::home();
        let data = noise(seed, 128 << 10);
        for (name, engine) in ENGINES.iter().filter(|e| lacking(e.1).is_none()) {
            let target = cases::file(&home.path().join(name), &data, *engine, direct);
            let writes = *engine != Engine::Map;
            let work = batches(seed, 40, Shape { bytes: target.bytes, unit: UNIT, units_max: 6, writes });
            let awaited = Awaited::default();
            let layer = |queue: Box<dyn Queue>| Watched::boxed(queue, plan, 0, &awaited);
            let mut rig = Rig::open(&target, path, depth, 6 * UNIT as usize, true, &layer);
            let mut flat = Flat::new(data.clone());
            let tally = run_between_faults(&mut rig, &awaited, &mut flat, &work);
            prop_assert!(plan.error > 0.0 || tally.errors == 0, "{:?}", tally);
            prop_assert!(plan.short > 0.0 || tally.short == 0, "{:?}", tally);
            prop_assert!(plan.stall > 0.0 || tally.cancelled == 0, "{:?}", tally);
            prop_assert_eq!(flat.differs(0, &truth(&target).unwrap()), None, "{}", target.label);
        }
    }

    /// Faults above a stripe, and below it in each member: the stripe stays one file.
    // promise: ENG-3
    #[test]
    fn a_stripe_between_faults_is_one_file(
        plan in plans(), below: bool, seed: u64, members in 1usize..6, depth in 1u32..6, engine in 0usize..3,
    ) {
        let (_, engine) = ENGINES[engine];
        prop_assume!(lacking(engine).is_none());
        let home = cases::home();
        let chunk = 8192;
        let file = |i: usize| {
            cases::file(&home.path().join(i.to_string()), &noise(seed + i as u64, 48 << 10), engine, true)
        };
        let stripe = striped(chunk, (0..members).map(file).collect());
        let work = batches(seed, 40, Shape { bytes: stripe.bytes, unit: UNIT, units_max: 12, writes: true });
        let io_bytes = 12 * UNIT as usize;
        let awaited = Awaited::default();
        let mut rig = if below {
            let layer = |queue: Box<dyn Queue>, i: u32| Watched::boxed(queue, plan, i, &awaited);
            faulty_members(&stripe, chunk, &layer, depth, io_bytes)
        } else {
            let layer = |queue: Box<dyn Queue>| Watched::boxed(queue, plan, 0, &awaited);
            Rig::open(&stripe, PathKind::Host, depth, io_bytes, true, &layer)
        };
        let mut flat = Flat::new(truth(&stripe).unwrap());
        run_between_faults(&mut rig, &awaited, &mut flat, &work);
        prop_assert_eq!(flat.differs(0, &truth(&stripe).unwrap()), None, "{}", stripe.label);
    }

    /// The same seed, the same faults, in the same order; and the shares come out as asked for.
    #[test]
    fn a_seed_brings_the_same_faults_again(seed: u64, error in 0.05f64..0.4, short in 0.05f64..0.4, depth in 1u32..33) {
        let plan = FaultPlan { seed, error, short, reorder: true, ..FaultPlan::default() };
        let once = |worker: u32| -> Vec<(u64, Result<u32, i32>)> {
            let layer = |queue: Box<dyn Queue>| -> Box<dyn Queue> { Box::new(FaultQueue::new(queue, plan, worker)) };
            let target = cases::nil(1 << 30);
            let mut rig = Rig::open(&target, PathKind::Host, depth, 64, false, &layer);
            let reads: Vec<Request> = (0..600).map(|i| Request::read(i * 65536, 65536)).collect();
            let mut results = Vec::new();
            for batch in reads.chunks(depth as usize) {
                for (id, request) in batch.iter().enumerate() {
                    rig.push(id, request).unwrap();
                }
                // In the order in which they were reported.
                results.extend(rig.finish().into_iter().map(|(id, a)| {
                    (batch[id].offset, a.done.result.map_err(|fault| fault.errno))
                }));
            }
            results
        };
        let first = once(0);
        prop_assert_eq!(&first, &once(0));
        prop_assert_ne!(&first, &once(1), "workers share a plan, not their faults");
        let share = |count: usize| count as f64 / 600.0;
        let errors = share(first.iter().filter(|(_, r)| r.is_err()).count());
        // nil: has an alignment of one byte, so that every short one can be shortened.
        let shorts = share(first.iter().filter(|(_, r)| matches!(r, Ok(n) if *n < 65536)).count());
        prop_assert!((errors - error).abs() < 0.12, "{} of {}", errors, error);
        prop_assert!((shorts - short).abs() < 0.12, "{} of {}", shorts, short);
    }
}

/// A stripe whose members fail, each by its own draw.
fn faulty_members(
    stripe: &Target,
    chunk: u64,
    faulty: &dyn Fn(Box<dyn Queue>, u32) -> Box<dyn Queue>,
    depth: u32,
    io_bytes: usize,
) -> Rig {
    let needs = QueueNeeds::new(depth, io_bytes as u64);
    let members: Vec<Target> = stripe.walk()[1..].iter().map(|t| (*t).clone()).collect();
    let layer = |queue: Box<dyn Queue>| queue;
    let mut rig = Rig::open(stripe, PathKind::Host, depth, io_bytes, true, &layer);
    let member_depth = StripeQueue::member_depth(needs.depth, needs.io_bytes_max, chunk, members.len());
    let needs = QueueNeeds::new(member_depth, needs.io_bytes_max);
    let queues = members
        .iter()
        .enumerate()
        .map(|(i, member)| faulty(member.queue(needs, &mut rig.reactor).unwrap(), i as u32))
        .collect();
    rig.queue = Box::new(StripeQueue::new(queues, chunk, depth));
    rig
}

#[test]
fn an_io_that_is_swallowed_comes_back_once_it_is_abandoned_and_only_then() {
    let plan = FaultPlan { seed: 1, stall: 1.0, ..FaultPlan::default() };
    let home = cases::home();
    for (name, engine) in ENGINES.iter().filter(|e| lacking(e.1).is_none()) {
        let target = cases::file(&home.path().join(name), &noise(1, 65536), *engine, true);
        for path in [PathKind::Host, PathKind::Bounce] {
            let awaited = Awaited::default();
            let layer = |queue: Box<dyn Queue>| Watched::boxed(queue, plan, 0, &awaited);
            let mut rig = Rig::open(&target, path, 4, 4096, true, &layer);
            let reads: Vec<Request> = (0..4).map(|i| Request::read(i * 4096, 4096)).collect();
            for (id, request) in reads.iter().enumerate() {
                rig.push(id, request).unwrap();
            }
            // The device is done with all of them, and nothing is told.
            for _ in 0..3 {
                let reported = rig.run_until_quiet(&awaited);
                assert!(reported.is_empty(), "{}: reported before it was abandoned: {reported:?}", rig.name);
            }
            rig.abandon_all();
            let answers = rig.finish();
            assert_eq!(answers.len(), reads.len(), "{}", rig.name);
            for (_, answer) in &answers {
                assert_eq!(answer.moved().as_ref().unwrap_err().errno, libc::ECANCELED, "{}", rig.name);
            }
        }
    }
}

#[test]
fn a_model_that_takes_an_hour_lets_go_when_it_is_asked_to() {
    use forebay_model::device::DriveModel;
    use forebay_storage::{OpenModel, SharedDrive, Target};
    let drive = DriveModel::parse("d7-ps1010?latency_us=10000000&read_mb_s=0.001").unwrap();
    let source = OpenModel { drive: SharedDrive::new(&drive, 1, false), over: None };
    let target = Target::new("slow", 1 << 20, source);
    let mut rig = Rig::open(&target, PathKind::Host, 2, 65536, false, &|q| q);
    let reads = [Request::read(0, 65536), Request::read(65536, 65536)];
    for (id, request) in reads.iter().enumerate() {
        rig.push(id, request).unwrap();
    }
    rig.queue.submit(&mut rig.reactor);
    rig.abandon_all();
    let answers = rig.finish();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|(_, a)| a.moved().as_ref().is_err_and(|f| f.errno == libc::ECANCELED)));
}
