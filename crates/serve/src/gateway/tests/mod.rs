//! The gateway against a small client: what works, and what a hostile or dying client may do.

mod client;
mod drive;
mod hostile;
mod interrupts;
mod limits;
mod raw;

use super::config::{self, Config};
use super::Gateway;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.io.example:gateway";

/// A gateway over these sources, its socket in a folder of its own.
pub(crate) struct Rig {
    pub gateway: Gateway,
    pub dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new(sources: &[&str]) -> Rig {
        Rig::with(sources, |_| {})
    }

    pub(crate) fn with(sources: &[&str], change: impl Fn(&mut Config)) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let namespace = |source: &&str| config::Namespace {
            source: source.to_string(),
            writable: true,
            ..config::Namespace::default()
        };
        let mut namespaces: Vec<config::Namespace> = sources.iter().map(namespace).collect();
        (1..).zip(&mut namespaces).for_each(|(nsid, n)| n.nsid = nsid);
        let controller = config::Controller {
            name: "drive".into(),
            socket: Some(dir.path().join("s").display().to_string()),
            queues: Some(4),
            queue_depth: Some(64),
            ..config::Controller::default()
        };
        let subsystem = config::Subsystem {
            nqn: NQN.into(),
            namespaces,
            controllers: vec![controller],
            ..config::Subsystem::default()
        };
        let mut config = Config { threads: 2, subsystems: vec![subsystem], ..Config::default() };
        change(&mut config);
        let sink = Box::new(|entry: &crate::target::log::Entry| eprintln!("{}", entry.to_line()));
        Rig { gateway: Gateway::start(&config, sink).unwrap(), dir }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }
}

/// A file of so many bytes, each of which tells its place.
pub(crate) fn file(dir: &Path, bytes: usize) -> (String, Vec<u8>) {
    let content: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let path = dir.join("file");
    std::fs::write(&path, &content).unwrap();
    (path.display().to_string(), content)
}

/// A thread whose ring may be entered no more serves nobody: who runs the gateway learns it.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_fails_the_gateway() {
    let run = || {
        // Threads that this one begins have the filter, too.
        forebay_rigs::seccomp::forbid_waiting(libc::EPERM);
        let rig = Rig::new(&["nil:?size=1m"]);
        let until = Instant::now() + Duration::from_secs(60);
        while rig.gateway.failure().is_none() {
            assert!(Instant::now() < until, "nobody is told");
            std::thread::sleep(Duration::from_millis(1));
        }
        let failure = rig.gateway.failure().unwrap();
        assert!(failure.found.contains("refuses io_uring_enter"), "{failure}");
        rig.gateway.stop();
    };
    std::thread::spawn(run).join().unwrap();
}
