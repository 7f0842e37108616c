//! A drive that works.

use super::client::{Client, Driver, BASE, DATA};
use super::{file, Rig};
use forebay_nvme::nvm;
use forebay_nvme::status::{Code, Status};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

// promise: GWY-1
#[test]
fn a_driver_finds_the_namespaces_and_reads_and_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(dir.path(), 4 << 20);
    let rig = Rig::new(&["nil:?size=1g", &path]);
    let mode = std::fs::metadata(rig.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut driver = Driver::new(Client::new(&rig.socket()), 2);
    for (queue, address, bytes) in [(0, DATA, 4096), (1, DATA, 64 << 10), (0, DATA + 512, 1 << 20)] {
        let cqe = driver.run(queue, nvm::read(2, 8, bytes / 512), address, bytes);
        assert!(cqe.status().is_success(), "{cqe:?}");
        assert_eq!(driver.client.bytes(address, bytes as usize), content[4096..4096 + bytes as usize]);
    }
    let written: Vec<u8> = (0..128 << 10).map(|i| (i / 512) as u8 ^ 0x5a).collect();
    driver.client.fill(DATA, &written);
    assert!(driver.run(1, nvm::write(2, 100, 256, false), DATA, 128 << 10).status().is_success());
    assert!(driver.run(1, nvm::flush(2), 0, 0).status().is_success());
    let stored = std::fs::read(&path).unwrap();
    assert_eq!(stored[51200..51200 + written.len()], written);
    assert_eq!(
        (&stored[..51200], &stored[51200 + written.len()..]),
        (&content[..51200], &content[51200 + written.len()..])
    );
    driver.client.fill(DATA, &[0xff; 4096]);
    assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
    assert_eq!(driver.client.bytes(DATA, 4096), [0; 4096], "nothing was ever written there");
    let stats = rig.gateway.stats();
    assert_eq!(stats.staged_bytes, 0);
    let file = &stats.subsystems[0].namespaces[1];
    let counts = &file.counted.counts;
    assert_eq!((counts.reads, counts.writes, counts.flushes), (3, 1, 1));
}

// promise: GWY-15
#[test]
fn a_client_that_rings_in_memory_alone_is_heard_whether_or_not_the_controller_polls() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(dir.path(), 1 << 20);
    for (poll, says) in [(true, true), (true, false), (false, false)] {
        let rig = Rig::with(&[&path], |config| config.subsystems[0].controllers[0].poll = poll);
        let mut driver = Driver::new(Client::mapping(&rig.socket(), says), 2);
        for _ in 0..2 {
            for block in 0..80 {
                let queue = block as usize % 2;
                assert!(driver.run(queue, nvm::read(1, block, 8), DATA, 4096).status().is_success());
                let at = block as usize * 512;
                assert_eq!(driver.client.bytes(DATA, 4096), content[at..at + 4096]);
            }
            // Once more from the beginning, by a reset of the controller.
            let client = driver.client;
            client.fill(BASE, &[0; (DATA - BASE) as usize]);
            driver = Driver::new(client, 2);
        }
        // The next client begins anew, and is told by messages again.
        drop(driver);
        let mut next = Client::new(&rig.socket());
        assert_eq!(next.offered().is_some(), poll, "only who polls hears a store");
        let mut driver = Driver::new(next, 1);
        assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
    }
}

// promise: GWY-2
#[test]
fn commands_for_what_is_not_there_get_the_status_that_says_so() {
    let rig = Rig::new(&["nil:?size=1m"]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    for (sqe, code) in [
        (nvm::read(9, 0, 8), Code::INVALID_NAMESPACE),
        (nvm::read(1, 2048, 8), Code::LBA_OUT_OF_RANGE),
        (nvm::read(1, u64::MAX, 8), Code::LBA_OUT_OF_RANGE),
    ] {
        assert_eq!(driver.run(0, sqe, DATA, 4096).status().code, code);
    }
    let outside = driver.run(0, nvm::read(1, 0, 8), 0x7000_0000, 4096);
    assert_eq!(outside.status().code, Code::DATA_TRANSFER_ERROR);
    assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
}

// promise: GWY-1
#[test]
fn compare_write_zeroes_and_deallocate_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(dir.path(), 1 << 20);
    let rig = Rig::new(&[&path]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    driver.client.fill(DATA, &content[..8192]);
    assert!(driver.run(0, nvm::compare(1, 0, 16), DATA, 8192).status().is_success());
    driver.client.fill(DATA + 8191, &[!content[8191]]);
    let differs = driver.run(0, nvm::compare(1, 0, 16), DATA, 8192);
    assert_eq!(differs.status(), Status::fatal(Code::COMPARE_FAILURE));
    assert!(driver.run(0, nvm::write_zeroes(1, 0, 8, false, false), 0, 0).status().is_success());
    let ranges = [nvm::Range::new(16, 8)];
    driver.client.fill(DATA, nvm::range_bytes(&ranges));
    assert!(driver.run(0, nvm::deallocate(1, &ranges), DATA, 16).status().is_success());
    assert!(driver.run(0, nvm::verify(1, 0, 2048), 0, 0).status().is_success());
    let stored = std::fs::read(&path).unwrap();
    assert_eq!(stored[..4096], [0; 4096]);
    assert_eq!(stored[4096..8192], content[4096..8192]);
}

// promise: GWY-1
#[test]
fn many_commands_in_flight_each_come_back_once_with_their_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(dir.path(), 2 << 20);
    let rig = Rig::new(&[&path]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 4);
    for round in 0..20u64 {
        let mut waiting = Vec::new();
        for n in 0..32u64 {
            let (queue, block) = ((n % 4) as usize, (round * 37 + n * 101) % 4000);
            let cid = driver.submit(queue, nvm::read(1, block, 8), DATA + n * 4096, 4096);
            waiting.push((queue, cid, block, DATA + n * 4096));
        }
        while !waiting.is_empty() {
            for queue in 0..4 {
                let Some(cqe) = driver.reap(queue, Duration::ZERO) else { continue };
                let is = |w: &(usize, u16, u64, u64)| (w.0, w.1) == (queue, cqe.cid.get());
                let at = waiting.iter().position(is).expect("it was asked for, and not answered yet");
                let (_, _, block, address) = waiting.remove(at);
                assert!(cqe.status().is_success());
                let from = block as usize * 512;
                assert_eq!(driver.client.bytes(address, 4096), content[from..from + 4096]);
            }
        }
    }
}

// promise: GWY-16
#[test]
fn payload_lies_anywhere_whatever_its_source_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(dir.path(), 1 << 20);
    let rig = Rig::new(&[&path]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    for (shift, bytes) in [(4, 4096), (64, 16384), (2052, 64 << 10), (512, 8192), (0, 4096)] {
        let address = DATA + shift;
        assert!(driver.run(0, nvm::read(1, 8, bytes / 512), address, bytes).status().is_success());
        assert_eq!(driver.client.bytes(address, bytes as usize), content[4096..4096 + bytes as usize]);
        let written: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8 ^ shift as u8).collect();
        driver.client.fill(address, &written);
        assert!(driver.run(0, nvm::write(1, 1024, bytes / 512, false), address, bytes).status().is_success());
        assert_eq!(std::fs::read(&path).unwrap()[512 << 10..][..bytes as usize], written);
    }
}

// promise: GWY-6
#[test]
fn each_submission_queue_is_counted_the_admin_queue_too_and_what_was_staged() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 1 << 20);
    let rig = Rig::with(&["nil:?size=1g", &path], |config| {
        // Its bytes come out of the page cache, by a CPU.
        config.subsystems[0].namespaces[1].cache = crate::target::config::Caching::Allow;
    });
    let mut driver = Driver::new(Client::new(&rig.socket()), 2);
    for _ in 0..3 {
        assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
    }
    assert!(driver.run(1, nvm::write(1, 0, 16, false), DATA, 8192).status().is_success());
    assert!(!driver.run(1, nvm::read(9, 0, 8), DATA, 4096).status().is_success());
    assert_eq!(rig.gateway.stats().staged_bytes, 0);
    assert!(driver.run(1, nvm::read(2, 0, 8), DATA, 4096).status().is_success());
    let stats = rig.gateway.stats();
    let [admin, first, second] = &stats.controllers[0].queues[..] else { panic!("{:?}", stats.controllers) };
    assert_eq!((admin.qid, first.qid, second.qid), (0, 1, 2));
    assert!(admin.counts.others >= 6 && admin.doorbells >= 6 && admin.entries > 1, "{admin:?}");
    assert_eq!((admin.thread, first.thread, second.thread), (None, Some(0), Some(1)));
    assert_eq!((first.counts.reads, first.counts.read_bytes, first.read_latency.count), (3, 3 * 4096, 3));
    assert_eq!((first.counts.errors, first.staged_bytes, first.entries, first.in_flight), (0, 0, 64, 0));
    assert_eq!((second.counts.writes, second.counts.write_bytes, second.write_latency.count), (1, 8192, 1));
    assert_eq!((second.counts.errors, second.counts.reads), (1, 1));
    // It rings as EventIdx has it, by messages: nobody looks without being told.
    assert!((1..=3).contains(&first.doorbells), "{first:?}");
    assert_eq!(
        (second.staged_bytes, stats.controllers[0].staged_bytes, stats.staged_bytes),
        (4096, 4096, 4096)
    );
}
