//! Paths as such: each does something of its own, and says which memory it can't go into.

use super::arena::{untouched, UNTOUCHED};
use super::cases::{self, noise, truth};
use super::rig::{plain, Request, Rig};
use super::{cases_of, passes_on, IO_BYTES};
use forebay_io::{Check, Io, Mem, Op, Piece, Reactor, Verdicts};
use forebay_model::job::{Engine, PathKind};
use forebay_model::Error;
use forebay_rigs::gpu::{is_inside, Scenario};
use forebay_storage::{AboutPath, DataPath, Ends, Paths, QueueFactory, WorkerContext, PATHS};
use std::time::{Duration, Instant};

/// Why the path isn't one of its own: bytes travel as under `host`, whatever it is called.
fn same_as_host(path: &dyn DataPath) -> Option<String> {
    let home = cases::home();
    let past = path.cached() != Some(true);
    let target = cases::file(&home.path().join("f"), &noise(1, 65536), Engine::Pread, past);
    let way = |path: &dyn DataPath| {
        let mut rig = Rig::by(path, &target, 2, IO_BYTES, true, &plain);
        let done = rig.one(Request::read(0, 4096)).done;
        (done.via, matches!(rig.slots.mem(0), Mem::Device { .. }))
    };
    let (host, own) = (way(Paths::by_kind(PathKind::Host)), way(path));
    (host == own && target.files()[0].0.direct == past)
        .then(|| format!("{} does what host does: {own:?}", path.name()))
}

// promise: GPU-22
#[test]
fn a_path_is_more_than_a_name() {
    let others = || PATHS.iter().filter(|path| path.kind() != PathKind::Host);
    if is_inside() {
        return others().for_each(|path| assert_eq!(same_as_host(*path), None));
    }
    let on_host = |path: &&&dyn DataPath| path.ends() != Ends::Gpu || path.cached() == Some(true);
    others().filter(on_host).for_each(|path| assert_eq!(same_as_host(*path), None));
    assert!(same_as_host(&Hollow).is_some(), "a path that has no code of its own passes");
    Scenario::new("paths::a_path_is_more_than_a_name")
        .run(|| unreachable!("it runs in a process of its own"));
}

/// `gds` with the code of `host`.
struct Hollow;

impl DataPath for Hollow {
    fn about(&self) -> &'static AboutPath {
        &AboutPath {
            kind: PathKind::Gds,
            name: "host",
            what: "nothing",
            needs: "nothing",
            serves: "every source",
            ends: Ends::GpuIfAny,
            may_go_direct: true,
        }
    }

    fn examined(&self, verdicts: &Verdicts) -> Check {
        Paths::by_kind(PathKind::Host).examined(verdicts)
    }

    fn equip(&self, context: &WorkerContext, reactor: &mut Reactor) -> Result<Box<dyn QueueFactory>, Error> {
        Paths::by_kind(PathKind::Host).equip(context, reactor)
    }
}

// promise: ENG-15
#[test]
fn a_path_that_copies_on_refuses_scattered_memory() {
    let home = cases::home();
    let data = noise(1, 65536);
    let target = cases::file(&home.path().join("f"), &data, Engine::Inline, false);
    for path in [PathKind::Bounce, PathKind::Mapped] {
        let mut rig = Rig::open(&target, path, 4, IO_BYTES, false, &plain).scatter(3);
        let mut ops = vec![Request::read(0, IO_BYTES as u32), Request::read(4096, IO_BYTES as u32)];
        if path == PathKind::Bounce {
            ops.push(Request::write(0, vec![1; IO_BYTES]));
        }
        for answer in rig.all(&ops) {
            let fault = answer.moved().as_ref().unwrap_err();
            assert_eq!(fault.errno, libc::EINVAL, "{}", rig.name);
            assert!(fault.to_string().contains("scattered"), "{}: {fault}", rig.name);
        }
    }
    assert_eq!(truth(&target).unwrap(), data);
}

// promise: ENG-15
#[test]
fn memory_that_ends_too_early_is_a_fault_of_the_io_and_nothing_else() {
    let mut bytes = vec![UNTOUCHED; 8192];
    let base = bytes.as_mut_ptr();
    let piece = |at: usize, len| Piece { at: std::ptr::NonNull::new(base.wrapping_add(at)).unwrap(), len };
    let list = [piece(4096, 2048), piece(0, 1024)];
    cases_of("short memory", passes_on, |target, path| {
        if truth(target).is_none() {
            return;
        }
        let mut rig = Rig::open(target, path, 2, IO_BYTES, false, &plain);
        let io = Io { tag: 0, op: Op::Read, offset: 0, len: 4096, mem: Mem::pieces(&list) };
        rig.queue.push(io, &mut rig.reactor).unwrap();
        let (mut done, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while done.is_empty() && Instant::now() < until {
            rig.queue.submit(&mut rig.reactor);
            let due = rig.queue.next_due().unwrap_or(until).min(Instant::now() + Duration::from_millis(5));
            rig.queue.reap(&mut rig.reactor, &mut done);
            if done.is_empty() {
                rig.reactor.wait(1, due, Duration::ZERO);
            }
        }
        let fault = done[0].result.as_ref().unwrap_err();
        assert!([libc::EFAULT, libc::EINVAL].contains(&fault.errno), "{}: {fault}", rig.name);
    });
    assert!(untouched(&bytes));
}
