//! A target whose process has no descriptor left. Alone in its process, since the limit is the process's.

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "serve/client.rs"]
mod client;
#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "serve/rig.rs"]
mod rig;

use client::{Digests, Host, SUBSYSTEM};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use rig::{eventually, Rig};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::net::TcpStream;
use std::time::Duration;

// promise: TGT-8
#[test]
#[ignore = "judged by the clock: make soak"]
fn without_descriptors_connections_are_refused_and_others_go_on() {
    let rig = Rig::over("nil:?size=1m", "");
    let host = Host::up(rig.address(), Digests(false, false));
    let mut queue = host.queue(1, 9);
    let before = getrlimit(Resource::Nofile);
    // The crowd's own ends count, too: first these, then no descriptor for the server's.
    let crowd: Vec<_> = (0..64).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let mut clients = Vec::new();
    // Room for one descriptor more at a time: a client takes it, and the server has none for its end.
    for more in 0..64 {
        let limit = Rlimit { current: Some(highest + more), maximum: before.maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
        clients.extend(TcpStream::connect(rig.address()));
        std::thread::sleep(Duration::from_millis(20));
        if rig.server.stats().connections_refused > 0 {
            break;
        }
    }
    eventually("some were refused", || rig.server.stats().connections_refused > 0);
    setrlimit(Resource::Nofile, before).unwrap();
    let read = |queue: &mut client::Queue| queue.code(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]);
    assert_eq!(read(&mut queue), Code::SUCCESS);
    drop((crowd, clients));
    eventually("there is room again", || rig.server.stats().connections == 2);
    let again = Host::up_as(rig.address(), SUBSYSTEM, "nqn.2026-11.io.example:b", 0, Digests(false, false));
    assert!(again.is_ok());
    assert!(rig.heard("connection refused") <= 2, "said once in a while, not for each");
}
