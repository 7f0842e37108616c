//! The NVMe/TCP target as hosts meet it: over sockets, with content, faults and bad manners.

#[path = "serve/abort.rs"]
mod abort;
#[path = "serve/ana.rs"]
mod ana;
#[path = "serve/client.rs"]
pub mod client;
#[path = "serve/hostile.rs"]
mod hostile;
#[path = "serve/rig.rs"]
pub mod rig;
#[path = "serve/service.rs"]
mod service;

use client::{Digests, Host};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use rig::{pattern, Rig};

const PLAIN: Digests = Digests(false, false);

// promise: TGT-1
#[test]
fn what_is_read_is_what_the_file_holds() {
    let content = pattern(3 << 20, 1);
    let rig = Rig::over_file(&content, "");
    for digests in [PLAIN, Digests(true, false), Digests(true, true)] {
        let host = Host::up(rig.address(), digests);
        let mut queue = host.queue(1, 33);
        for (first, blocks) in [(0u64, 1u32), (1, 8), (7, 255), (100, 2048), (6143, 1)] {
            let len = blocks * 512;
            let (cqe, data) = queue.call(nvm::read(1, first, blocks), Data::In { len }, vec![]);
            assert_eq!(cqe.status().code, Code::SUCCESS, "{first} {blocks}");
            let at = first as usize * 512;
            assert!(data == content[at..at + len as usize], "{first} {blocks}");
        }
        let past = queue.code(nvm::read(1, 6143, 2), Data::In { len: 1024 }, vec![]);
        assert_eq!(past, Code::LBA_OUT_OF_RANGE);
        let unknown = queue.code(nvm::read(2, 0, 1), Data::In { len: 512 }, vec![]);
        assert_eq!(unknown, Code::INVALID_NAMESPACE);
    }
}

// promise: TGT-1
#[test]
fn many_commands_in_flight_are_each_answered_with_their_own_data() {
    let content = pattern(4 << 20, 2);
    let rig = Rig::over_file(&content, "");
    let host = Host::up(rig.address(), PLAIN);
    let mut queues: Vec<_> = (1..=3).map(|qid| host.queue(qid, 33)).collect();
    for round in 0..8u64 {
        let mut waits = Vec::new();
        for (q, queue) in queues.iter_mut().enumerate() {
            for i in 0..32u64 {
                let first = (round * 977 + i * 131 + q as u64 * 17) % 8000;
                let blocks = 1 + (i as u32 * 7) % 128;
                let sqe = nvm::read(1, first, blocks);
                let handle = queue.submit(sqe, Data::In { len: blocks * 512 }, vec![]);
                waits.push((q, handle, first, blocks));
            }
            queue.push().unwrap();
        }
        for (q, handle, first, blocks) in waits {
            let (cqe, data) = queues[q].wait(handle);
            assert_eq!(cqe.status().code, Code::SUCCESS);
            let at = first as usize * 512;
            assert!(data == content[at..at + blocks as usize * 512], "{q} {first} {blocks}");
        }
    }
    let stats = rig.server.stats();
    let namespace = &stats.subsystems[0].namespaces[0];
    assert_eq!(namespace.counts.reads, 8 * 32 * 3);
    assert_eq!(namespace.read_latency.count, 8 * 32 * 3);
    assert_eq!(stats.controllers[0].queues.len(), 4);
}

// promise: TGT-1
#[test]
fn writes_arrive_whether_in_the_capsule_or_asked_for() {
    for digests in [PLAIN, Digests(true, true)] {
        let rig = Rig::over_file(&vec![0; 4 << 20], "writable = true");
        let host = Host::up(rig.address(), digests);
        let mut queue = host.queue(1, 33);
        let mut expected = vec![0; 4 << 20];
        let mut waits = Vec::new();
        let mut first = 0u64;
        for (i, blocks) in [1u32, 8, 16, 32, 33, 256, 2048, 1, 700].into_iter().enumerate() {
            let data = pattern(blocks as usize * 512, i as u64 + 10);
            expected[first as usize * 512..][..data.len()].copy_from_slice(&data);
            let sqe = nvm::write(1, first, blocks, i % 3 == 0);
            waits.push(queue.submit(sqe, Data::Out { len: blocks * 512 }, data));
            first += u64::from(blocks);
        }
        for handle in waits {
            assert_eq!(queue.wait(handle).0.status().code, Code::SUCCESS);
        }
        assert_eq!(queue.code(nvm::flush(1), Data::None, vec![]), Code::SUCCESS);
        assert_eq!(queue.code(nvm::flush(u32::MAX), Data::None, vec![]), Code::SUCCESS);
        assert!(std::fs::read(rig.file()).unwrap() == expected);
        let (_, data) = queue.call(nvm::read(1, 0, 2048), Data::In { len: 1 << 20 }, vec![]);
        assert!(data == expected[..1 << 20]);
    }
}

// promise: TGT-2
#[test]
fn zeroes_deallocate_compare_and_verify_do_what_they_say() {
    let content = pattern(1 << 20, 3);
    let rig = Rig::over_file(&content, "writable = true");
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let compare = |queue: &mut client::Queue, first: u64, data: &[u8]| {
        let blocks = (data.len() / 512) as u32;
        queue.code(nvm::compare(1, first, blocks), Data::Out { len: data.len() as u32 }, data.to_vec())
    };
    assert_eq!(compare(&mut queue, 8, &content[4096..8192]), Code::SUCCESS, "in the capsule");
    assert_eq!(compare(&mut queue, 0, &content[..256 << 10]), Code::SUCCESS, "asked for");
    assert_eq!(compare(&mut queue, 9, &content[4096..8192]), Code::COMPARE_FAILURE);
    assert_eq!(queue.code(nvm::verify(1, 0, 2048), Data::None, vec![]), Code::SUCCESS);
    assert_eq!(queue.code(nvm::write_zeroes(1, 16, 1000, false, true), Data::None, vec![]), Code::SUCCESS);
    assert_eq!(compare(&mut queue, 16, &vec![0; 512 * 500]), Code::SUCCESS);
    let ranges = [nvm::Range::new(0, 8), nvm::Range::new(1200, 0), nvm::Range::new(1016, 8)];
    let (sqe, bytes) = (nvm::deallocate(1, &ranges), nvm::range_bytes(&ranges).to_vec());
    let len = bytes.len() as u32;
    assert_eq!(queue.code(sqe, Data::Out { len }, bytes), Code::SUCCESS);
    let file = std::fs::read(rig.file()).unwrap();
    assert!(file[..4096].iter().all(|b| *b == 0), "deallocated");
    assert!(file[4096..8192] == content[4096..8192], "left alone");
    assert!(file[8192..1024 * 512].iter().all(|b| *b == 0), "zeroed, and deallocated");
    assert!(file[1024 * 512..] == content[1024 * 512..]);
    let beyond = [nvm::Range::new(0, 8), nvm::Range::new(2047, 2)];
    let (sqe, bytes) = (nvm::deallocate(1, &beyond), nvm::range_bytes(&beyond).to_vec());
    assert_eq!(queue.code(sqe, Data::Out { len: 32 }, bytes), Code::LBA_OUT_OF_RANGE);
}

// promise: TGT-2
#[test]
fn what_is_not_writable_stays_as_it_is() {
    let content = pattern(1 << 20, 4);
    let rig = Rig::over_file(&content, "");
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    for len in [4096u32, 256 << 10] {
        let sqe = nvm::write(1, 0, len / 512, false);
        assert_eq!(
            queue.code(sqe, Data::Out { len }, vec![1; len as usize]),
            Code::NAMESPACE_WRITE_PROTECTED
        );
    }
    assert_eq!(
        queue.code(nvm::write_zeroes(1, 0, 8, false, false), Data::None, vec![]),
        Code::NAMESPACE_WRITE_PROTECTED
    );
    assert_eq!(queue.code(nvm::flush(1), Data::None, vec![]), Code::SUCCESS);
    assert!(std::fs::read(rig.file()).unwrap() == content);
}

// promise: TGT-4
#[test]
fn a_file_that_was_truncated_gives_an_error_and_nobody_elses_bytes() {
    let content = pattern(1 << 20, 5);
    for cache in ["", "cache = \"allow\""] {
        let rig = Rig::over_file(&content, cache);
        let host = Host::up(rig.address(), PLAIN);
        let mut queue = host.queue(1, 9);
        let read = |queue: &mut client::Queue, first| {
            queue.call(nvm::read(1, first, 64), Data::In { len: 32768 }, vec![])
        };
        assert_eq!(read(&mut queue, 1024).0.status().code, Code::SUCCESS);
        std::fs::OpenOptions::new().write(true).open(rig.file()).unwrap().set_len(513 * 1024).unwrap();
        for first in [1024, 1024 + 64, 1500] {
            let (cqe, data) = read(&mut queue, first);
            assert_eq!(cqe.status().code, Code::UNRECOVERED_READ, "{first}");
            assert!(data.is_empty(), "{first}");
        }
        assert_eq!(read(&mut queue, 0).0.status().code, Code::SUCCESS);
    }
}

// promise: TGT-4
#[test]
fn sources_without_content_read_as_zeros_after_anything() {
    let rig = Rig::over("nil:?size=1g", "writable = true");
    let other = pattern(1 << 20, 6);
    let host = Host::up(rig.address(), Digests(true, true));
    let mut queue = host.queue(1, 9);
    let sqe = nvm::write(1, 0, 256, false);
    assert_eq!(queue.code(sqe, Data::Out { len: 128 << 10 }, other[..128 << 10].to_vec()), Code::SUCCESS);
    for blocks in [8u32, 256, 2048] {
        let (cqe, data) = queue.call(nvm::read(1, 0, blocks), Data::In { len: blocks * 512 }, vec![]);
        assert_eq!(cqe.status().code, Code::SUCCESS);
        assert!(data.len() == blocks as usize * 512 && data.iter().all(|b| *b == 0));
    }
}

// promise: TGT-10
#[test]
fn a_remote_namespace_is_served_on() {
    let content = pattern(2 << 20, 8);
    let far = Rig::over_file(&content, "writable = true");
    let near = Rig::over(
        &format!("nvme+tcp://{}/{}?nsid=1&queues=4", far.address(), client::SUBSYSTEM),
        "writable = true",
    );
    let host = Host::up(near.address(), Digests(true, true));
    let mut queues = [host.queue(1, 17), host.queue(2, 17)];
    for queue in &mut queues {
        for (first, blocks) in [(0u64, 8u32), (100, 2048), (4095, 1)] {
            let len = blocks * 512;
            let (cqe, data) = queue.call(nvm::read(1, first, blocks), Data::In { len }, vec![]);
            assert_eq!(cqe.status().code, Code::SUCCESS);
            assert!(data == content[first as usize * 512..][..len as usize]);
        }
    }
    let sqe = nvm::write(1, 8, 256, true);
    assert_eq!(queues[0].code(sqe, Data::Out { len: 128 << 10 }, vec![5; 128 << 10]), Code::SUCCESS);
    assert!(std::fs::read(far.file()).unwrap()[4096..][..128 << 10].iter().all(|b| *b == 5));
}

// promise: TGT-4
#[test]
fn faults_of_the_source_become_statuses_and_short_transfers_are_made_whole() {
    let content = pattern(1 << 20, 7);
    let rig = Rig::over_file(&content, "faults = \"seed=5,error=0.2,short=0.4,delay_us=300,reorder=1\"");
    let host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 33);
    let (mut good, mut bad) = (0, 0);
    for round in 0..20u64 {
        let waits: Vec<_> = (0..32u64)
            .map(|i| {
                let first = (round * 61 + i * 53) % 1900;
                (first, queue.submit(nvm::read(1, first, 64), Data::In { len: 32768 }, vec![]))
            })
            .collect();
        for (first, handle) in waits {
            let (cqe, data) = queue.wait(handle);
            match cqe.status().code {
                Code::SUCCESS => {
                    good += 1;
                    assert!(data == content[first as usize * 512..][..32768], "{first}");
                }
                code => {
                    bad += 1;
                    assert_eq!(code, Code::UNRECOVERED_READ);
                }
            }
        }
    }
    assert!(good > 200 && bad > 50, "{good} {bad}");
    assert_eq!(rig.server.stats().subsystems[0].namespaces[0].counts.errors, bad);
}
