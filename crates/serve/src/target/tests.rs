//! Recorder of what reaches the source, and when: a power cut may come between any two of these.

#[allow(dead_code, reason = "shared with the tests of the whole target")]
#[path = "../../tests/serve/client.rs"]
mod client;

use super::config::Namespace;
use super::{Config, Server};
use client::{Digests, Host, Queue, SUBSYSTEM};
use forebay_io::Op;
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use forebay_rigs::seccomp::forbid_waiting;
use std::time::{Duration, Instant};

struct Rig {
    server: Server,
    _dir: tempfile::TempDir,
}

impl Rig {
    /// Over a file whose I/Os take a while.
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("content");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let namespace = format!(
            "source = \"{}\"\nwritable = true\nfaults = \"delay_us=20000,reorder=1\"",
            path.display()
        );
        Rig { server: target("", &namespace), _dir: dir }
    }

    fn take(&self) -> Vec<(Op, bool)> {
        self.server.shared.subsystems[0].volumes()[&1].recorded.take()
    }
}

/// A target of one subsystem that any host may use: these lines at the top, this namespace.
fn target(top: &str, namespace: &str) -> Server {
    started(top, namespace).unwrap()
}

fn started(top: &str, namespace: &str) -> Result<Server, forebay_model::Error> {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 1\nbuffers = \"16m\"\n{top}\n[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\n\
         allow_any_host = true\n[[subsystems.namespaces]]\n{namespace}"
    );
    Server::start(Config::from_toml(&config).unwrap(), Box::new(|_| {}))
}

fn write(queue: &mut Queue, fua: bool) {
    let code = queue.code(nvm::write(1, 0, 8, fua), Data::Out { len: 4096 }, vec![1; 4096]);
    assert_eq!(code, Code::SUCCESS);
}

// promise: TGT-3
#[test]
fn what_is_acknowledged_as_durable_was_made_durable_before() {
    const PLAIN: Op = Op::Write { durable: false };
    const DURABLE: Op = Op::Write { durable: true };
    let rig = Rig::new();
    let mut host = Host::up(rig.server.addresses()[0], Digests(false, false));
    let mut queue = host.queue(1, 33);
    write(&mut queue, false);
    assert_eq!(rig.take(), [(PLAIN, true)]);
    write(&mut queue, true);
    assert_eq!(rig.take(), [(DURABLE, true)], "FUA");
    assert_eq!(queue.code(nvm::flush(1), Data::None, vec![]), Code::SUCCESS);
    assert_eq!(rig.take(), [(Op::Flush, true)]);
    assert_eq!(queue.code(nvm::flush(u32::MAX), Data::None, vec![]), Code::SUCCESS);
    assert_eq!(rig.take(), [(Op::Flush, true)], "of all namespaces");
    assert_eq!(queue.code(nvm::write_zeroes(1, 0, 8, false, true), Data::None, vec![]), Code::SUCCESS);
    assert!(
        matches!(
            rig.take()[..],
            [(Op::WriteZeroes, true), (Op::Flush, true)] | [(Op::WriteZeroes, true), (DURABLE, true)]
        ),
        "zeroed by the source and flushed, or written durably"
    );
    // With the volatile write cache switched off every write is durable (base, section 5.27.1.4).
    let off = Sqe { opcode: 0x09, cdw10: 0x06.into(), cdw11: 0.into(), ..Sqe::default() };
    assert_eq!(host.admin.code(off, Data::None, vec![]), Code::SUCCESS);
    write(&mut queue, false);
    assert_eq!(rig.take(), [(DURABLE, true)], "the cache is off");
}

// promise: TGT-3
#[test]
fn a_flush_comes_after_every_write_that_was_acknowledged() {
    let rig = Rig::new();
    let host = Host::up(rig.server.addresses()[0], Digests(false, false));
    let mut queue = host.queue(1, 33);
    for _ in 0..5 {
        let writes: Vec<_> = (0..16)
            .map(|i| {
                queue.submit(nvm::write(1, i * 8, 8, false), Data::Out { len: 4096 }, vec![i as u8; 4096])
            })
            .collect();
        for handle in writes {
            assert_eq!(queue.wait(handle).0.status().code, Code::SUCCESS);
        }
        let before = rig.take();
        assert!(before.len() == 16 && before.iter().all(|(_, done)| *done), "acknowledged is finished");
        assert_eq!(queue.code(nvm::flush(1), Data::None, vec![]), Code::SUCCESS);
        assert_eq!(rig.take(), [(Op::Flush, true)]);
    }
}

// promise: TGT-6
#[test]
fn a_keep_alive_timeout_that_is_changed_later_stays_within_the_same_bounds() {
    const KEEP_ALIVE: u32 = 0x0f;
    let server =
        target("keep_alive = {min_s = 600, max_s = 7200, required = true}", "source = \"nil:?size=1m\"");
    let mut host = Host::up(server.addresses()[0], Digests(false, false));
    let mut of_timer = |opcode, value: u32| {
        let sqe = Sqe { opcode, cdw10: KEEP_ALIVE.into(), cdw11: value.into(), ..Sqe::default() };
        let (cqe, _) = host.admin.call(sqe, Data::None, vec![]);
        assert_eq!(cqe.status().code, Code::SUCCESS);
        cqe.result.get()
    };
    for (asked, granted) in [(1000, 600_000), (900_000, 900_000), (90_000_000, 7_200_000), (0, 7_200_000)] {
        of_timer(0x09, asked);
        assert_eq!(of_timer(0x0a, 0), granted, "{asked} ms");
    }
}

// promise: TGT-3
#[test]
fn a_namespace_that_comes_after_the_host_has_its_cache_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let server = target("", "source = \"nil:?size=1m\"");
    let host = Host::up(server.addresses()[0], Digests(false, false));
    let mut queue = host.queue(1, 9);
    let later = Namespace { source: path.display().to_string(), writable: true, ..Namespace::default() };
    assert_eq!(server.add_namespace(SUBSYSTEM, &later).unwrap(), 2);
    let written = |queue: &mut Queue| {
        let write = nvm::write(2, 0, 8, false);
        let code = queue.code(write, Data::Out { len: 4096 }, vec![1; 4096]);
        assert_eq!(code, Code::SUCCESS);
    };
    written(&mut queue);
    let recorded = server.shared.subsystems[0].volumes()[&2].recorded.take();
    assert_eq!(recorded, [(Op::Write { durable: false }, true)]);
}

/// A thread whose ring may be entered no more serves nobody: who runs the server learns it, and what was counted. And a host
/// says so, not that nobody answers.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_fails_a_target_and_a_host() {
    let there = target("", "source = \"nil:?size=1m\"");
    let remote = format!("source = \"nvme+tcp://{}/{SUBSYSTEM}\"", there.addresses()[0]);
    let run = move || {
        // Threads that this one begins have the filter, too.
        forbid_waiting(libc::EPERM);
        let error = started("", &remote).map(drop).unwrap_err();
        assert!(error.to_string().contains("refuses io_uring_enter"), "{error}");
        let server = target("", "source = \"nil:?size=1m\"");
        let until = Instant::now() + Duration::from_secs(60);
        while server.failure().is_none() {
            assert!(Instant::now() < until, "nobody is told");
            std::thread::sleep(Duration::from_millis(1));
        }
        let failure = server.failure().unwrap();
        assert_eq!(failure.kind, forebay_model::Kind::Run);
        assert!(failure.found.contains("Operation not permitted"), "{failure}");
        server.stop();
    };
    std::thread::spawn(run).join().unwrap();
    assert!(there.failure().is_none());
}
