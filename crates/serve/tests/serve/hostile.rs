//! Peers that lie, stall, vanish or come in crowds: each ends by itself, and nobody else notices.

use super::client::{Host, Queue, HOST, SUBSYSTEM};
use super::rig::{eventually, pattern, Rig, LONG};
use super::PLAIN;
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn works(to: SocketAddr) {
    let host = Host::up_as(to, SUBSYSTEM, HOST, 0, PLAIN).unwrap_or_else(|r| panic!("{:?}", r.0.status()));
    let mut queue = host.queue(1, 9);
    let code = queue.code(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]);
    assert_eq!(code, Code::SUCCESS);
}

fn ended(mut socket: TcpStream) {
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut rest = Vec::new();
    if let Err(e) = socket.read_to_end(&mut rest) {
        assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "it was never ended");
    }
}

// promise: TGT-8
#[test]
fn nonsense_ends_its_connection_and_is_logged_once() {
    let rig = Rig::over("nil:?size=1m", "");
    let mut sockets = Vec::new();
    for seed in 0..24u64 {
        let mut socket = TcpStream::connect(rig.address()).unwrap();
        let mut noise = pattern(4096, seed + 100);
        // Some begin as an ICReq should.
        if seed % 3 == 0 {
            noise[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
        }
        let _ = socket.write_all(&noise);
        sockets.push(socket);
    }
    for socket in sockets {
        ended(socket);
    }
    eventually("all are gone", || rig.server.stats().connections == 0);
    let (violated, broken) = (rig.heard("protocol violated"), rig.server.stats().connections_broken);
    assert!(violated <= 24 && broken <= 24, "{violated} {broken}");
    assert!(violated >= 16, "{violated}");
    works(rig.address());
}

// promise: TGT-8
#[test]
fn whoever_says_nothing_is_let_go() {
    let rig = Rig::with("handshake_s = 2.0", "[[subsystems.namespaces]]\nsource = \"nil:?size=1m\"");
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(rig.address()).unwrap()).collect();
    // One says ICReq and no more.
    let half = Queue::open(rig.address(), 3, PLAIN);
    for socket in silent {
        ended(socket);
    }
    ended(half.socket);
    eventually("all are gone", || rig.server.stats().connections == 0);
    works(rig.address());
}

// promise: TGT-8
#[test]
fn whoever_takes_nothing_is_let_go_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, pattern(8 << 20, 31)).unwrap();
    let namespace = format!(
        "[[subsystems.namespaces]]\nsource = \"{}\"\nwritable = true\nblock_bytes = 512",
        path.display()
    );
    let rig = Rig::with("stall_s = 3.0\nbuffers = \"16m\"", &namespace);
    let host = Host::up(rig.address(), PLAIN);
    let mut greedy = host.queue(1, 128);
    for i in 0..100u64 {
        greedy.submit(nvm::read(1, i % 8 * 2048, 2048), Data::In { len: 1 << 20 }, vec![]);
    }
    greedy.push().unwrap();
    // Another announces data that never come.
    let mut empty = host.queue(2, 33);
    for i in 0..8u64 {
        empty.submit(nvm::write(1, i * 2048, 2048, false), Data::Out { len: 1 << 20 }, vec![1; 1 << 20]);
    }
    empty.push().unwrap();
    for _ in 0..20 {
        works(rig.address());
    }
    eventually("both are broken off", || rig.heard("broken off") == 2);
    works(rig.address());
}

/// Memory that waits for data is others' memory: a host that goes on with reads doesn't keep it for ever.
// promise: TGT-8
#[test]
fn whoever_sends_no_data_is_let_go_whatever_else_it_says() {
    let namespace =
        "[[subsystems.namespaces]]\nsource = \"nil:?size=64m\"\nwritable = true\nblock_bytes = 512";
    let rig = Rig::with("stall_s = 2.0", namespace);
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 128);
    queue.submit(nvm::write(1, 0, 2048, false), Data::Out { len: 1 << 20 }, vec![1; 1 << 20]);
    // It never looks at what comes, so it never learns that its data are asked for.
    for _ in 0..120 {
        if queue.push().is_err() || rig.heard("broken off") > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        queue.submit(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]);
    }
    eventually("it is broken off", || rig.heard("broken off") == 1);
    works(rig.address());
}

// promise: TGT-8
#[test]
fn hosts_that_vanish_leave_nothing_behind() {
    let content = pattern(4 << 20, 30);
    let rig = Rig::over_file(&content, "writable = true\nfaults = \"delay_us=3000\"");
    for round in 0..12u64 {
        let host = Host::up(rig.address(), PLAIN);
        let mut queues: Vec<_> = (1..=3).map(|qid| host.queue(qid, 33)).collect();
        for queue in &mut queues {
            for i in 0..16u64 {
                let first = (i * 512 + round * 64) % 7000;
                let at = first as usize * 512;
                if i % 2 == 0 {
                    queue.submit(nvm::read(1, first, 512), Data::In { len: 256 << 10 }, vec![]);
                } else {
                    // The same as is there: whatever part of it arrives, nothing changes.
                    let payload = content[at..at + (64 << 10)].to_vec();
                    queue.submit(nvm::write(1, first, 128, false), Data::Out { len: 64 << 10 }, payload);
                }
            }
            queue.push().unwrap();
            let _ = queue.turn();
        }
        std::thread::sleep(Duration::from_millis(round * 2));
    }
    eventually("all are gone", || rig.server.stats().connections == 0);
    assert!(std::fs::read(rig.file()).unwrap() == content);
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 33);
    let (cqe, data) = queue.call(nvm::read(1, 0, 2048), Data::In { len: 1 << 20 }, vec![]);
    assert_eq!(cqe.status().code, Code::SUCCESS);
    assert!(data == content[..1 << 20]);
}

// promise: TGT-8
#[test]
fn a_crowd_is_turned_away_and_the_rest_served() {
    let rig = Rig::with("connections = 10", "[[subsystems.namespaces]]\nsource = \"nil:?size=1m\"");
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let crowd: Vec<_> = (0..40).map(|_| TcpStream::connect(rig.address()).unwrap()).collect();
    eventually("most are refused", || rig.server.stats().connections_refused >= 32);
    assert_eq!(queue.code(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]), Code::SUCCESS);
    drop(crowd);
    eventually("there is room again", || rig.server.stats().connections == 2);
    works(rig.address());
}
