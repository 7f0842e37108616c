//! Abort of I/O commands that wait: for their backend, their data, their turn.

use super::client::{Host, Queue};
use super::rig::{eventually, pattern, Rig};
use super::PLAIN;
use forebay_nvme::command::{admin, Sqe};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use forebay_nvme::transport::tcp::Handle;
use std::time::Duration;

const NOT_ABORTED: u64 = 1;

fn abort(sqid: u16, cid: u16) -> Sqe {
    let names = u32::from(sqid) | u32::from(cid) << 16;
    Sqe { opcode: admin::ABORT, cdw10: names.into(), ..Sqe::default() }
}

/// Asks for an Abort and waits for its answer: its status, and bit 0 of its result.
fn aborted(host: &mut Host, sqid: u16, cid: u16) -> (Code, u64) {
    let (cqe, _) = host.admin.call(abort(sqid, cid), Data::None, vec![]);
    (cqe.status().code, cqe.result.get())
}

fn in_flight(rig: &Rig, qid: u16) -> u16 {
    let stats = rig.server.stats();
    stats.controllers.iter().flat_map(|c| &c.queues).filter(|q| q.qid == qid).map(|q| q.in_flight).sum()
}

fn reads(queue: &mut Queue, n: u64) -> Vec<Handle> {
    let handles =
        (0..n).map(|i| queue.submit(nvm::read(1, i * 8, 8), Data::In { len: 4096 }, vec![])).collect();
    queue.push().unwrap();
    handles
}

// promise: TGT-12
#[test]
fn a_command_whose_backend_never_answers_is_aborted_and_the_rest_goes_on() {
    // The second I/O of each thread reaches the source and is never told of.
    let rig = Rig::over_file(&pattern(1 << 20, 1), "faults = \"stall=1\"");
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let handles = reads(&mut queue, 3);
    eventually("they are in flight", || in_flight(&rig, 1) == 3);
    for handle in [handles[1], handles[0], handles[2]] {
        let cid = queue.cid(handle);
        assert_eq!(aborted(&mut host, 1, cid), (Code::SUCCESS, 0));
        assert_eq!(queue.wait(handle).0.status().code, Code::ABORT_REQUESTED);
        assert_eq!(aborted(&mut host, 1, cid), (Code::SUCCESS, NOT_ABORTED), "it is over");
    }
    assert_eq!(aborted(&mut host, 7, 0), (Code::SUCCESS, NOT_ABORTED), "no such queue");
    assert_eq!(in_flight(&rig, 1), 0);
    assert_eq!(rig.heard("disconnected"), 0);
}

// promise: TGT-12
#[test]
fn a_write_that_waits_for_its_data_is_aborted_and_changes_nothing() {
    let content = pattern(1 << 20, 2);
    let rig = Rig::over_file(&content, "writable = true");
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let other = pattern(256 << 10, 3);
    let handle = queue.submit(nvm::write(1, 0, 512, false), Data::Out { len: 256 << 10 }, other.clone());
    // The capsule goes; what R2T then asks for doesn't yet.
    queue.push().unwrap();
    eventually("it waits for data", || in_flight(&rig, 1) == 1);
    let cid = queue.cid(handle);
    assert_eq!(aborted(&mut host, 1, cid), (Code::SUCCESS, 0));
    assert_eq!(queue.wait(handle).0.status().code, Code::ABORT_REQUESTED);
    assert!(std::fs::read(rig.file()).unwrap() == content, "it was never written");
    let (cqe, _) = queue.call(nvm::write(1, 0, 512, false), Data::Out { len: 256 << 10 }, other.clone());
    assert_eq!(cqe.status().code, Code::SUCCESS, "the queue and the memory are none the worse");
    assert!(std::fs::read(rig.file()).unwrap()[..other.len()] == other);
}

// promise: TGT-12
#[test]
fn a_write_whose_data_stopped_half_way_is_aborted() {
    let content = pattern(1 << 20, 4);
    let rig = Rig::over_file(&content, "writable = true");
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let other = pattern(256 << 10, 5);
    let handle = queue.submit(nvm::write(1, 0, 512, false), Data::Out { len: 256 << 10 }, other);
    let cid = queue.cid(handle);
    // Up to the R2T, and half of what it asks for: the target is receiving straight into the command's memory.
    let rest = queue.push_half(handle);
    eventually("half of it is there", || in_flight(&rig, 1) == 1);
    std::thread::sleep(Duration::from_millis(50));
    let asked = host.admin.submit(abort(1, cid), Data::None, vec![]);
    host.admin.push().unwrap();
    // Behind the Abort, on the thread of the one queue, and what that has told the thread of the other.
    host.log(0x02, 512);
    eventually("it is told", || in_flight(&rig, 1) == 1);
    queue.push_raw(&rest).unwrap();
    assert_eq!(queue.wait(handle).0.status().code, Code::ABORT_REQUESTED);
    assert_eq!(host.admin.wait(asked).0.result.get(), 0);
    assert!(std::fs::read(rig.file()).unwrap() == content, "it was never written");
    assert_eq!(queue.code(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]), Code::SUCCESS);
}

// promise: TGT-12
#[test]
fn a_command_that_waits_for_its_turn_is_aborted_and_costs_its_host_nothing() {
    let rig = Rig::with(
        "[host_limits]\nbytes_in_flight = \"4k\"",
        "[[subsystems.namespaces]]\nsource = \"nil:?size=1m\"\nfaults = \"stall=1\"",
    );
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 9);
    let handles = reads(&mut queue, 4);
    eventually("they are in flight", || in_flight(&rig, 1) == 4);
    // The first has all that the limit lets through; the others wait.
    for handle in [handles[2], handles[3], handles[1]] {
        let cid = queue.cid(handle);
        assert_eq!(aborted(&mut host, 1, cid), (Code::SUCCESS, 0));
        assert_eq!(queue.wait(handle).0.status().code, Code::ABORT_REQUESTED);
    }
    let more = reads(&mut queue, 1)[0];
    let (first, second) = (queue.cid(handles[0]), queue.cid(more));
    assert_eq!(aborted(&mut host, 1, first), (Code::SUCCESS, 0));
    eventually("the next has its turn", || in_flight(&rig, 1) == 1);
    assert_eq!(aborted(&mut host, 1, second), (Code::SUCCESS, 0));
}

// promise: TGT-12
#[test]
fn as_many_aborts_wait_at_once_as_the_controller_says() {
    let rig = Rig::over_file(&pattern(1 << 20, 6), "faults = \"delay_us=3000000\"");
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 33);
    let handles = reads(&mut queue, 32);
    eventually("they are in flight", || in_flight(&rig, 1) > 16);
    let asked: Vec<_> = handles
        .iter()
        .take(12)
        .map(|handle| host.admin.submit(abort(1, queue.cid(*handle)), Data::None, vec![]))
        .collect();
    let codes: Vec<Code> = asked.into_iter().map(|asked| host.admin.wait(asked).0.status().code).collect();
    // What is done below and only held back can't be aborted: those Aborts wait for it.
    assert!(codes.contains(&Code::ABORT_LIMIT) && codes.contains(&Code::SUCCESS), "{codes:?}");
    for handle in handles {
        let code = queue.wait(handle).0.status().code;
        assert!(matches!(code, Code::SUCCESS | Code::ABORT_REQUESTED), "{code:?}");
    }
}

// promise: TGT-12
#[test]
fn an_abort_is_answered_though_its_commands_connection_ends() {
    let rig = Rig::over_file(&pattern(1 << 20, 7), "faults = \"delay_us=3000000\"");
    let mut host = Host::up(rig.address(), PLAIN);
    let mut queue = host.queue(1, 33);
    let handles = reads(&mut queue, 32);
    eventually("they are in flight", || in_flight(&rig, 1) > 16);
    let asked = host.admin.submit(abort(1, queue.cid(handles[31])), Data::None, vec![]);
    host.admin.push().unwrap();
    drop(queue);
    assert_eq!(host.admin.wait(asked).0.status().code, Code::SUCCESS);
    let mut queue = host.queue(2, 9);
    let _ = reads(&mut queue, 1);
}
