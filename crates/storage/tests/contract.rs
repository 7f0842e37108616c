//! The contract of `Queue`, held against every source under every path that can
//! serve it: the two tables, `SOURCES` and `PATHS`, decide what runs. A pair that
//! can't run is skipped with its reason, and skips are counted. Paths that feed a
//! GPU run a second time, into the memory of one: a stand-in's, or with
//! FOREBAY_TEST_GPU=1 a real one's.

#[path = "contract/arena.rs"]
mod arena;
#[path = "contract/cases.rs"]
mod cases;
#[path = "contract/equal.rs"]
mod equal;
#[path = "contract/mapped.rs"]
mod mapped;
#[path = "contract/model.rs"]
#[allow(dead_code)] // shared with the tests of faults, which use all of both
mod model;
#[path = "contract/paths.rs"]
mod paths;
#[path = "contract/rig.rs"]
#[allow(dead_code)]
mod rig;
#[path = "contract/arena/scattered.rs"]
mod scattered;
#[path = "contract/served.rs"]
mod served;

use arena::untouched;
use cases::{is_writable, noise, truth};
use forebay_io::{Full, Io, Op, Queue, Reactor, Via};
use forebay_model::job::{self, Engine, JobSpec, PathKind};
use forebay_rigs::gpu::Scenario;
use forebay_storage::{DataPath, Ends, FaultPlan, FaultQueue, Paths, QueueNeeds, Target, PATHS, SOURCES};
use mapped::is_opened_for;
use rig::{plain, Layer, Request, Rig, PATIENCE};
use std::io::Write;
use std::time::{Duration, Instant};

const IO_BYTES: usize = 16 << 10;

/// Runs `check` on every case of the tables: with host memory as the destination, then with a GPU's.
fn each_case(what: &str, check: impl Fn(&Target, PathKind)) {
    if forebay_rigs::gpu::is_inside() {
        return cases_of(what, |path| path.ends() != Ends::Host, check);
    }
    // The host can play a GPU that reads the page cache, and none that something else writes to.
    cases_of(what, |path| path.ends() != Ends::Gpu || path.cached() == Some(true), &check);
    // The check's type is named after the test that it stands in.
    let test = std::any::type_name_of_val(&check).split("::").nth(1).expect("a closure of a test");
    let books = Scenario::new(test).run(|| unreachable!("it runs in a process of its own"));
    let streams = books.map(|books| books.calls("cuStreamCreate"));
    assert!(streams.is_none_or(|n| n > 5), "{test}: the GPU had {streams:?} streams, so few queues fed it");
}

/// Queues meet half of the layers, since they wait for each other most of the time; all of them in `make test-long`.
fn is_short() -> bool {
    !forebay_rigs::gpu::on_real_gpu() && std::env::var_os("FOREBAY_TEST_ALL").is_none()
}

/// Says how many ran and which didn't.
fn cases_of(what: &str, runs: impl Fn(&dyn DataPath) -> bool, check: impl Fn(&Target, PathKind)) {
    let (mut ran, mut skipped) = (0, Vec::new());
    let paths = PATHS.iter().filter(|path| runs(**path));
    for (path, source) in paths.flat_map(|path| SOURCES.iter().map(move |source| (path, source))) {
        let pair = format!("{}: under {}", source.scheme, path.name());
        if let Err(lacking) = source.available {
            skipped.push(format!("{pair}: {lacking} isn't there yet"));
            continue;
        }
        if !path.accepts(&source.named().unwrap().medium()) {
            skipped.push(format!("{pair}: it can only serve {}", path.serves()));
            continue;
        }
        let home = cases::home();
        let (targets, missing) = cases::targets_of(source.scheme, home.path());
        skipped.extend(missing.iter().map(|(what, why)| format!("{pair}: {what}: {why}")));
        for target in targets.iter().step_by(if is_short() && forebay_rigs::gpu::is_inside() { 2 } else { 1 })
        {
            if !path.accepts(&target.medium()) || !is_opened_for(*path, target) {
                skipped.push(format!("{pair}: what isn't read as it reads, or is no file"));
                continue;
            }
            check(target, path.kind());
            ran += 1;
        }
        let labels: Vec<String> = targets.iter().map(|target| target.label.clone()).collect();
        drop(targets);
        served::end(&labels);
    }
    say(what, ran, skipped);
    assert!(ran > 20, "{what}: only {ran} cases ran");
}

fn say(what: &str, ran: usize, mut skipped: Vec<String>) {
    let mut err = std::io::stderr().lock();
    skipped.sort();
    skipped.dedup();
    for line in &skipped {
        writeln!(err, "skipped {what}: {line}").unwrap();
    }
    writeln!(err, "{what}: {ran} cases ran, {} kinds skipped", skipped.len()).unwrap();
}

/// A queue between that does nothing but delay and reorder.
fn shaken(queue: Box<dyn Queue>) -> Box<dyn Queue> {
    let plan = FaultPlan { seed: 5, delay_us: 200, reorder: true, ..FaultPlan::default() };
    Box::new(FaultQueue::new(queue, plan, 0))
}

/// Payload goes to host memory as its source brings it.
fn passes_on(path: &dyn DataPath) -> bool {
    path.ends() == Ends::Host && !path.copies_on()
}

/// The same check at depth 1 and more, on registered slots and others, plain and through a fault queue; and where
/// payload goes no further than host memory, with memory that is scattered.
fn each_rig(target: &Target, path: PathKind, check: impl Fn(&mut Rig, &Target)) {
    let layers: [(Layer, u32, bool); 4] =
        [(&plain, 1, false), (&plain, 8, true), (&shaken, 1, true), (&shaken, 7, false)];
    let every = if is_short() { 2 } else { 1 };
    for (layer, depth, registered) in layers.into_iter().rev().step_by(every) {
        let mut rig = Rig::open(target, path, depth, IO_BYTES, registered, layer);
        check(&mut rig, target);
    }
    if !passes_on(Paths::by_kind(path)) {
        return;
    }
    for (layer, depth, registered) in
        [(&shaken as Layer, 2, false), (&plain, 6, true)].into_iter().step_by(every)
    {
        check(&mut Rig::open(target, path, depth, IO_BYTES, registered, layer).scatter(depth.into()), target);
    }
}

/// Offsets of `count` aligned I/Os of `len` bytes, spread over the target.
fn spread(target: &Target, count: u64, len: u64) -> impl Iterator<Item = u64> {
    let room = target.bytes / len;
    (0..count).map(move |i| i * 7 % room * len)
}

fn assert_read(rig: &Rig, request: &Request, answer: &rig::Answer, truth: Option<&[u8]>) {
    let wanted = truth.map_or(request.len as usize, |t| {
        t.len().saturating_sub(request.offset as usize).min(request.len as usize)
    });
    assert_eq!(answer.moved(), &Ok(wanted as u32), "{}: {request:?}", rig.name);
    let Some(truth) = truth else { return };
    let from = request.offset as usize;
    if answer.bytes[..wanted] != truth[from.min(truth.len())..][..wanted] {
        let wrong = (0..wanted).filter(|i| answer.bytes[*i] != truth[from + i]).collect::<Vec<_>>();
        panic!(
            "{}: {} wrong bytes from {:?} to {:?}, the first {:?}, for {:?} {}+{}",
            rig.name,
            wrong.len(),
            wrong.first(),
            wrong.last(),
            wrong.first().map(|i| (answer.bytes[*i], truth[from + i])),
            request.op,
            request.offset,
            request.len
        );
    }
    let padded = (request.len as usize).next_multiple_of(4096);
    assert!(untouched(&answer.bytes[padded..]), "{}: {request:?} wrote behind its end", rig.name);
}

// promise: ENG-1
#[test]
fn geometry_says_what_the_queue_takes_and_a_queue_can_be_dropped_unused() {
    each_case("geometry", |target, path| {
        each_rig(target, path, |rig, target| {
            let g = rig.queue.geometry();
            assert_eq!(g.bytes, target.bytes, "{}", rig.name);
            assert!(g.align.is_power_of_two() && g.mem_align.is_power_of_two() && g.mem_align <= 4096);
            assert!(g.io_bytes_max as usize >= IO_BYTES);
            assert_eq!(rig.queue.in_flight(), 0);
            assert!(rig.queue.next_due().is_none(), "{}: an idle queue is due", rig.name);
        });
    });
}

// promise: ENG-1, ENG-6, ENG-11, ENG-15, RHO-1, VUD-1
#[test]
fn reads_bring_what_the_files_hold() {
    each_case("reads", |target, path| {
        let truth = truth(target);
        each_rig(target, path, |rig, target| {
            let reads: Vec<Request> = spread(target, 40, IO_BYTES as u64)
                .map(|at| Request::read(at, IO_BYTES as u32))
                .chain(spread(target, 20, 4096).map(|at| Request::read(at, 4096)))
                .collect();
            let answers = rig.all(&reads);
            for (request, answer) in reads.iter().zip(&answers) {
                assert_read(rig, request, answer, truth.as_deref());
            }
        });
    });
}

#[test]
fn a_read_is_short_where_the_data_ends_and_empty_behind_it() {
    each_case("ends", |target, path| {
        let truth = truth(target);
        each_rig(target, path, |rig, target| {
            let end = target.bytes;
            let last = (end - 1) / 4096 * 4096;
            let tail = Request::read(last, (end - last) as u32);
            let over = Request::read(last, IO_BYTES as u32);
            let behind = Request::read(end.next_multiple_of(4096) + 8192, 4096);
            let nothing = Request::read(0, 0);
            for request in [&tail, &over, &behind, &nothing] {
                let answer = rig.one(request.clone());
                let wanted = end.saturating_sub(request.offset).min(u64::from(request.len)) as u32;
                assert_eq!(answer.moved(), &Ok(wanted), "{}: {request:?}", rig.name);
                if truth.is_some() {
                    assert_read(rig, request, &answer, truth.as_deref());
                }
            }
        });
    });
}

// promise: ENG-4
#[test]
fn a_full_queue_hands_the_io_back_and_loses_nothing() {
    each_case("full", |target, path| {
        let truth = truth(target);
        each_rig(target, path, |rig, target| {
            for _ in 0..3 {
                let depth = rig.queue.geometry().depth;
                let reads: Vec<Request> =
                    spread(target, u64::from(depth), 4096).map(|at| Request::read(at, 4096)).collect();
                for (id, request) in reads.iter().enumerate() {
                    assert!(rig.push(id, request).is_some(), "{}: full at {id} of {depth}", rig.name);
                }
                let mem = rig.slots.mem(0);
                let more = Io { tag: 0, op: Op::Read, offset: 8192, len: 512, mem };
                for _ in 0..2 {
                    let Err(Full(back)) = rig.queue.push(more, &mut rig.reactor) else {
                        panic!("{}: took more than its depth", rig.name)
                    };
                    assert_eq!((back.tag, back.offset, back.len, back.mem), (0, 8192, 512, mem));
                    assert_eq!(rig.queue.in_flight(), depth, "{}", rig.name);
                }
                let answers = rig.finish();
                assert_eq!(answers.len(), depth as usize, "{}", rig.name);
                for (id, answer) in &answers {
                    assert_read(rig, &reads[*id], answer, truth.as_deref());
                }
            }
        });
    });
}

// promise: ENG-1, ENG-11
#[test]
fn writes_zeroes_and_holes_land_where_they_belong() {
    each_case("writes", |target, path| {
        let write = JobSpec { op: job::Op::Write, ..JobSpec::default() };
        if !is_writable(target) || Paths::by_kind(path).refuses(&write).unwrap().is_some() {
            return;
        }
        each_rig(target, path, |rig, target| {
            let before = truth(target);
            let data = noise(99, 8192);
            let ops = [
                Request::write(0, data.clone()),
                Request { op: Op::Write { durable: true }, ..Request::write(12288, data[..4096].to_vec()) },
                Request::zeroes(Op::WriteZeroes, 20480, 4096),
                Request::zeroes(Op::Deallocate, 28672, 4096),
            ];
            let answers = rig.all(&ops);
            for (request, answer) in ops.iter().zip(&answers) {
                assert_eq!(answer.moved(), &Ok(request.len), "{}: {:?}", rig.name, request.op);
            }
            let flush = rig.one(Request::bare(Op::Flush, 0, 0));
            assert!(flush.moved().is_ok() && flush.done.via == Via::Nothing, "{}: {flush:?}", rig.name);
            let Some(mut wanted) = before else { return };
            wanted[..8192].copy_from_slice(&data);
            wanted[12288..16384].copy_from_slice(&data[..4096]);
            wanted[20480..24576].fill(0);
            wanted[28672..32768].fill(0);
            assert!(truth(target).unwrap() == wanted, "{}: the files hold something else", rig.name);
        });
    });
}

#[test]
fn the_map_engine_refuses_to_write_and_leaves_the_file_alone() {
    let home = cases::home();
    let target = cases::file(&home.path().join("f"), &noise(1, 65536), Engine::Map, false);
    let mut rig = Rig::open(&target, PathKind::Host, 2, IO_BYTES, false, &plain);
    for request in [Request::write(0, vec![1; 4096]), Request::bare(Op::WriteZeroes, 0, 4096)] {
        let answer = rig.one(request);
        assert_eq!(answer.moved().as_ref().unwrap_err().errno, libc::EROFS);
    }
    assert_eq!(truth(&target).unwrap(), noise(1, 65536));
}

#[test]
fn what_is_lent_holds_the_data_and_a_read_into_it_moves_nothing() {
    let home = cases::home();
    let map =
        |name: &str, seed| cases::file(&home.path().join(name), &noise(seed, 1 << 20), Engine::Map, false);
    let targets = [
        map("a", 1),
        cases::model(Some(map("b", 2))),
        cases::striped(64 << 10, vec![map("c", 3), map("d", 4), map("e", 5)]),
    ];
    let needs = QueueNeeds::new(1, IO_BYTES as u64);
    for target in &targets {
        let wanted = truth(target).unwrap();
        let mut reactor = Reactor::without_ring();
        let mut queue = target.queue(needs, &mut reactor).unwrap();
        for offset in spread(target, 40, IO_BYTES as u64) {
            let (from, len) = (offset as usize, IO_BYTES as u32);
            let mem = queue.lend(offset, len).expect("it lies in memory");
            let lent = arena::bytes_at(mem, IO_BYTES);
            assert!(lent[..] == wanted[from..from + IO_BYTES], "{} at {offset}", target.label);
            queue.push(Io { tag: 0, op: Op::Read, offset, len, mem }, &mut reactor).unwrap();
            queue.submit(&mut reactor);
            let mut done = Vec::new();
            while done.is_empty() {
                queue.reap(&mut reactor, &mut done);
            }
            assert_eq!(done[0].result, Ok(len), "{} at {offset}", target.label);
        }
        assert_eq!(queue.lend(target.bytes - 512, 1024), None, "{}: behind the end", target.label);
        assert_eq!(queue.lend(u64::MAX, 1), None);
    }
    let mut queue = targets[2].queue(needs, &mut Reactor::without_ring()).unwrap();
    assert_eq!(queue.lend(60 << 10, 8 << 10), None, "it lies on two members");
}

// promise: ENG-7, ENG-8
#[test]
fn bytes_travel_as_the_queue_says() {
    each_case("via", |target, path| {
        // As the source has it, where the path adds nothing.
        let own = passes_on(Paths::by_kind(path));
        let wanted = match (target.source.descriptor(), path) {
            (Some(_), PathKind::Bounce) => Via::Staged,
            (Some(_), PathKind::Mapped) => Via::Mapped,
            // As the stand-in does unless it is told otherwise.
            (Some(_), PathKind::Gds) => Via::Compat,
            (Some((_, Engine::Map)), _) if own => Via::Mapped,
            (Some((file, _)), _) if own && file.direct => Via::Direct,
            (Some(_), _) if own => Via::Staged,
            (None, PathKind::Host) if target.source.scheme() == "nil" => Via::Nothing,
            _ => return,
        };
        let mut rig = Rig::open(target, path, 2, IO_BYTES, true, &plain);
        let answer = rig.one(Request::read(0, 4096));
        assert_eq!(answer.done.via, wanted, "{}", rig.name);
        if path == PathKind::Host {
            assert_eq!(answer.done.copy_ns, 0);
        }
    });
}

// promise: ENG-4, ENG-11
#[test]
fn an_abandoned_io_is_reaped_exactly_once() {
    each_case("abandon", |target, path| {
        let truth = truth(target);
        each_rig(target, path, |rig, target| {
            let depth = rig.queue.geometry().depth;
            let reads: Vec<Request> =
                spread(target, u64::from(depth), 4096).map(|at| Request::read(at, 4096)).collect();
            // Nothing in flight, pushed only, and submitted: a queue may be asked at any time.
            rig.queue.abandon(0, &mut rig.reactor);
            for (id, request) in reads.iter().enumerate() {
                rig.push(id, request).unwrap();
            }
            rig.queue.abandon(0, &mut rig.reactor);
            rig.queue.submit(&mut rig.reactor);
            rig.abandon_all();
            rig.abandon_all();
            let answers = rig.finish();
            assert_eq!(answers.len(), depth as usize, "{}", rig.name);
            for (id, answer) in &answers {
                match answer.moved() {
                    Ok(_) => assert_read(rig, &reads[*id], answer, truth.as_deref()),
                    Err(fault) => assert_eq!(fault.errno, libc::ECANCELED, "{}", rig.name),
                }
            }
            // The tags are free again, and an abandonment doesn't stick to them.
            let answers = rig.all(&reads);
            for (request, answer) in reads.iter().zip(&answers) {
                assert_read(rig, request, answer, truth.as_deref());
            }
        });
    });
}

#[test]
fn several_queues_share_a_reactor_and_get_their_own_completions() {
    let home = cases::home();
    if let Some(why) = cases::lacking(Engine::Uring) {
        writeln!(std::io::stderr(), "skipped sharing: {why}").unwrap();
        return;
    }
    let targets: Vec<Target> = (0..3)
        .map(|i| cases::file(&home.path().join(format!("{i}")), &noise(i, 65536), Engine::Uring, i % 2 == 0))
        .collect();
    let truths: Vec<Vec<u8>> = targets.iter().map(|t| truth(t).unwrap()).collect();
    let stripe = cases::striped(4096, targets.clone());
    let needs = forebay_storage::QueueNeeds::new(4, 4096);
    let mut rig = Rig::open(&stripe, PathKind::Host, 12, IO_BYTES, true, &plain);
    let mut queues: Vec<Box<dyn Queue>> =
        targets.iter().map(|t| t.queue(needs, &mut rig.reactor).unwrap()).collect();
    for round in 0..8u64 {
        for (q, queue) in queues.iter_mut().enumerate() {
            for tag in 0..4u32 {
                let mem = rig.slots.mem(q * 4 + tag as usize);
                let offset = (round * 4 + u64::from(tag)) % 16 * 4096;
                queue.push(Io { tag, op: Op::Read, offset, len: 4096, mem }, &mut rig.reactor).unwrap();
            }
            queue.submit(&mut rig.reactor);
        }
        for (q, queue) in queues.iter_mut().enumerate() {
            let mut done = Vec::new();
            let until = Instant::now() + PATIENCE;
            queue.reap(&mut rig.reactor, &mut done);
            while done.len() < 4 && Instant::now() < until {
                let soon = Instant::now() + Duration::from_millis(20);
                rig.reactor.wait(1, soon, Duration::ZERO);
                queue.reap(&mut rig.reactor, &mut done);
            }
            assert_eq!(done.len(), 4, "queue {q} in round {round}");
            for d in done {
                let from = ((round * 4 + u64::from(d.tag)) % 16 * 4096) as usize;
                assert!(
                    rig.slots.get(q * 4 + d.tag as usize)[..4096] == truths[q][from..from + 4096],
                    "queue {q} got another's bytes"
                );
            }
        }
    }
}
