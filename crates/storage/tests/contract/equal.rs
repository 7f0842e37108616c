//! Equal means equal: whatever the engine, and however many members a stripe has,
//! the same I/Os bring the same bytes and leave the same files. Proptest prints
//! the case that fails, its seed among it.

use super::cases::{self, lacking, noise, striped, truth, ENGINES};
use super::model::{batches, Flat, Shape};
use super::rig::{plain, Request, Rig};
use forebay_io::Op;
use forebay_model::job::{Engine, PathKind};
use forebay_storage::Target;
use proptest::prelude::*;

const UNIT: u64 = 4096;

fn few() -> ProptestConfig {
    // Regression files would be written beside the sources; the printed case is enough to come back to it.
    let cases = if std::env::var_os("FOREBAY_TEST_ALL").is_some() { 24 } else { 6 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Runs the batches on the target and the model, comparing each read. Returns the model.
pub fn run_beside_model(target: &Target, path: PathKind, depth: u32, work: &[Vec<Request>]) -> Flat {
    let io_bytes = work.iter().flatten().map(|r| r.len).max().unwrap_or(1) as usize;
    beside_model(Rig::open(target, path, depth, io_bytes, depth % 2 == 0, &plain), target, work)
}

fn beside_model(mut rig: Rig, target: &Target, work: &[Vec<Request>]) -> Flat {
    let mut flat = Flat::new(truth(target).unwrap());
    for batch in work {
        let answers = rig.all(batch);
        for (request, answer) in batch.iter().zip(answers) {
            assert_eq!(answer.moved(), &Ok(request.len), "{}: {:?}", rig.name, request.op);
            flat.apply(request, request.len as usize);
            if request.op == Op::Read {
                let got = &answer.bytes[..request.len as usize];
                assert_eq!(
                    flat.differs(request.offset, got),
                    None,
                    "{}: a read at {}",
                    rig.name,
                    request.offset
                );
            }
        }
    }
    rig.one(Request::bare(Op::Flush, 0, 0)).moved().as_ref().unwrap();
    flat
}

proptest! {
    #![proptest_config(few())]

    /// uring == pread == inline == map, direct and through the page cache, at any depth.
    // promise: ENG-2
    #[test]
    fn every_engine_reads_the_same_bytes(seed: u64, depth in 1u32..17, tail in 0usize..4096, bounce: bool) {
        let home = cases::home();
        let data = noise(seed, (60 << 10) + tail);
        let path = if bounce { PathKind::Bounce } else { PathKind::Host };
        let shape = Shape { bytes: data.len() as u64, unit: UNIT, units_max: 6, writes: false };
        let mut reads = batches(seed, 60, shape).concat();
        let last = data.len() as u64 / UNIT * UNIT;
        reads.push(Request::read(last, (data.len() as u64 - last) as u32));
        for (name, engine) in ENGINES.iter().filter(|e| lacking(e.1).is_none()) {
            for direct in [true, false] {
                let target = cases::file(&home.path().join(name), &data, *engine, direct);
                let mut rig = Rig::open(&target, path, depth, 6 * UNIT as usize, true, &plain);
                let answers = rig.all(&reads);
                for (request, answer) in reads.iter().zip(answers) {
                    prop_assert_eq!(answer.moved(), &Ok(request.len), "{}", rig.name);
                    let at = request.offset as usize;
                    let len = request.len as usize;
                    prop_assert!(answer.bytes[..len] == data[at..at + len], "{}: at {}", rig.name, at);
                }
            }
        }
    }

    /// Whatever is written, zeroed and punched, each engine leaves the file that a vector of bytes would be.
    // promise: ENG-2
    #[test]
    fn every_engine_leaves_the_same_file(seed: u64, depth in 1u32..17, direct: bool, bounce: bool) {
        let home = cases::home();
        let data = noise(seed, 128 << 10);
        let path = if bounce { PathKind::Bounce } else { PathKind::Host };
        let unit = if direct { UNIT } else { 1000 };
        let shape = Shape { bytes: data.len() as u64, unit, units_max: 8, writes: true };
        let work = batches(seed, 60, shape);
        for (name, engine) in ENGINES.iter().filter(|e| e.1 != Engine::Map && lacking(e.1).is_none()) {
            let target = cases::file(&home.path().join(name), &data, *engine, direct);
            let flat = run_beside_model(&target, path, depth, &work);
            let now = std::fs::read(home.path().join(name)).unwrap();
            prop_assert!(now.len() == flat.bytes.len(), "{} changed the file's size", name);
            prop_assert_eq!(flat.differs(0, &now), None, "{}", target.label);
        }
    }

    /// However payload is scattered, each source moves the bytes that contiguous memory would have got and given.
    // promise: ENG-15
    #[test]
    fn scattered_memory_is_as_good_as_contiguous(
        seed: u64, depth in 1u32..9, kind in 0usize..6, direct: bool, members in 1usize..4,
    ) {
        let home = cases::home();
        let one = |i: u64, engine| {
            cases::file(&home.path().join(i.to_string()), &noise(seed ^ i, 256 << 10), engine, direct)
        };
        let engine = ENGINES[kind % 3].1;
        prop_assume!(lacking(engine).is_none() && lacking(Engine::Uring).is_none());
        let target = match kind {
            0..=2 => one(0, engine),
            3 => striped(4096 * members as u64, (0..members as u64).map(|i| one(i, engine)).collect()),
            4 => cases::model(Some(one(0, engine))),
            _ => {
                let more = ["queues=3", "queues=6&ddgst=1&hdgst=1", "bulk=16384"][members - 1];
                crate::served::target(noise(seed, 256 << 10), more)
            }
        };
        let shape = Shape { bytes: target.bytes, unit: UNIT, units_max: 40, writes: true };
        let work = batches(seed, 40, shape);
        let io_bytes = work.iter().flatten().map(|r| r.len).max().unwrap_or(1) as usize;
        let rig = Rig::open(&target, PathKind::Host, depth, io_bytes, depth % 2 == 0, &plain).scatter(seed);
        let flat = beside_model(rig, &target, &work);
        prop_assert_eq!(flat.differs(0, &truth(&target).unwrap()), None, "{}", target.label);
    }

    /// A stripe is one file: bytes written through it read back flat, and lie on its members as RAID0 lays them.
    // promise: ENG-3
    #[test]
    fn a_stripe_is_one_file(
        seed: u64, members in 1usize..6, chunk in prop::sample::select(vec![4096u64, 8192, 12288, 65536]),
        depth in 1u32..9, engine in 0usize..3, direct: bool, bounce: bool,
    ) {
        let (_, engine) = ENGINES[engine];
        prop_assume!(lacking(engine).is_none());
        let home = cases::home();
        let path = if bounce { PathKind::Bounce } else { PathKind::Host };
        let rows = 3;
        let parts = (0..members)
            .map(|i| {
                let data = noise(seed + i as u64, (chunk * rows) as usize + 512 * i);
                cases::file(&home.path().join(i.to_string()), &data, engine, direct)
            })
            .collect();
        let stripe = striped(chunk, parts);
        prop_assert_eq!(stripe.bytes, chunk * rows * members as u64);
        let shape = Shape { bytes: stripe.bytes, unit: UNIT, units_max: 40, writes: true };
        let flat = run_beside_model(&stripe, path, depth, &batches(seed, 40, shape));
        prop_assert_eq!(flat.differs(0, &truth(&stripe).unwrap()), None, "{}", stripe.label);
        // What lies behind the stripe's end on a longer member is outside the stripe.
        for i in 0..members {
            let now = std::fs::read(home.path().join(i.to_string())).unwrap();
            let was = noise(seed + i as u64, (chunk * rows) as usize + 512 * i);
            let end = (chunk * rows) as usize;
            prop_assert!(now.len() == was.len() && now[end..] == was[end..], "member {}", i);
        }
    }
}
