//! Limits of namespaces: kept, in nobody else's way, and changed while commands wait.

use super::client::{Client, Driver, BASE, BYTES, DATA};
use super::{Rig, NQN};
use crate::gateway::config::{Config, Qos, Size};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use std::cell::Cell;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn limited(qos: Qos) -> Rig {
    let change = |config: &mut Config| config.subsystems[0].namespaces[0].qos = qos;
    Rig::with(&["nil:?size=1g", "nil:?size=1g"], change)
}

fn iops(iops: u64) -> Qos {
    Qos { iops: Some(iops), ..Qos::default() }
}

/// Submits so many reads of a namespace by one queue.
fn reads(driver: &mut Driver, queue: usize, nsid: u32, count: u32, bytes: u32) -> Vec<u16> {
    (0..count).map(|_| driver.submit(queue, nvm::read(nsid, 0, bytes / 512), DATA, bytes)).collect()
}

// promise: GWY-5
#[test]
fn a_configured_limit_on_commands_is_kept_and_holds_up_no_other_namespace() {
    let rig = limited(iops(8));
    let mut driver = Driver::new(Client::new(&rig.socket()), 2);
    let began = Instant::now();
    let slow = reads(&mut driver, 0, 1, 24, 4096);
    let quick = reads(&mut driver, 0, 2, 24, 4096);
    let mut order = Vec::new();
    while order.len() < 48 {
        let cqe = driver.reap(0, LONG).expect("each command ends");
        assert!(cqe.status().is_success());
        order.push((cqe.cid.get(), began.elapsed()));
    }
    let last_quick = order.iter().rposition(|(cid, _)| quick.contains(cid)).unwrap();
    assert!(last_quick < 36, "{last_quick}: those behind waited for those with a limit");
    let last = order.iter().filter(|(cid, _)| slow.contains(cid)).map(|(_, at)| *at).max().unwrap();
    // 24 at 8 a second, but for a burst of 50 ms and a quantum.
    assert!(last >= Duration::from_secs(2), "{last:?}");
    let namespaces = &rig.gateway.stats().subsystems[0].namespaces;
    assert!(namespaces[0].held_back >= 12, "{}", namespaces[0].held_back);
    assert_eq!((namespaces[1].held_back, namespaces[0].qos.iops), (0, Some(8)));
}

// promise: GWY-5
#[test]
fn a_limit_on_bytes_is_set_and_lifted_while_it_runs_for_all_queues_together() {
    let rig = limited(Qos::default());
    let mut driver = Driver::new(Client::new(&rig.socket()), 2);
    reads(&mut driver, 0, 1, 8, 1 << 20).iter().for_each(|_| assert!(driver.reap(0, LONG).is_some()));
    rig.gateway.namespace_set_qos(NQN, 1, Qos { rate: Some(Size(8 << 20)), iops: None }).unwrap();
    let began = Instant::now();
    for queue in 0..2 {
        reads(&mut driver, queue, 1, 4, 1 << 20);
    }
    for queue in 0..2 {
        (0..4).for_each(|_| assert!(driver.reap(queue, LONG).expect("it ends").status().is_success()));
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(600), "8 MiB at 8 MiB/s took {took:?}");
    rig.gateway.namespace_set_qos(NQN, 1, iops(1)).unwrap();
    reads(&mut driver, 0, 1, 20, 4096);
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    rig.gateway.namespace_set_qos(NQN, 1, Qos::default()).unwrap();
    (0..20).for_each(|_| assert!(driver.reap(0, LONG).is_some()));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?} for 20 commands that waited for 1 a second");
}

// promise: GWY-5
#[test]
fn commands_that_wait_go_with_their_memory_their_abort_their_client_and_their_namespace() {
    let rig = limited(iops(1));
    let mut client = Client::connect(&rig.socket());
    client.greet();
    let memory = client.memory.try_clone().unwrap();
    client.dma_map(BASE, DATA - BASE, 0, Some(&memory)).unwrap();
    client.dma_map(DATA, BASE + BYTES - DATA, DATA - BASE, Some(&memory)).unwrap();
    let mut driver = Driver::new(client, 1);
    let cids = reads(&mut driver, 0, 1, 20, 4096);
    std::thread::sleep(Duration::from_millis(50));
    // They hold on to no memory, and what waits finds none afterwards.
    driver.client.dma_unmap(DATA, BASE + BYTES - DATA).unwrap();
    // The last of them would wait for 18 s.
    driver.host.abort(1, cids[19]);
    let steps = Cell::new(0);
    driver.until(|_| steps.replace(steps.get() + 1) > 50);
    let code = |driver: &mut Driver| {
        let cqe = driver.reap(0, LONG).expect("it ends");
        (cqe.cid.get(), cqe.status().code)
    };
    let mut ends = vec![code(&mut driver)];
    while ends.last() != Some(&(cids[19], Code::ABORT_REQUESTED)) {
        assert!(ends.len() < 15, "{ends:?}");
        ends.push(code(&mut driver));
    }
    rig.gateway.namespace_set_qos(NQN, 1, Qos::default()).unwrap();
    ends.extend((ends.len()..20).map(|_| code(&mut driver)).collect::<Vec<_>>());
    let reached = ends.iter().filter(|(_, code)| *code == Code::DATA_TRANSFER_ERROR).count();
    assert!(reached >= 5, "{ends:?}");
    rig.gateway.namespace_set_qos(NQN, 1, iops(1)).unwrap();
    reads(&mut driver, 0, 1, 20, 4096);
    std::thread::sleep(Duration::from_millis(50));
    // Its client dies: nobody waits for what waited.
    drop(driver);
    let began = Instant::now();
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    assert!(driver.run(0, nvm::read(2, 0, 8), DATA, 4096).status().is_success());
    assert!(began.elapsed() < Duration::from_secs(15));
    reads(&mut driver, 0, 1, 20, 4096);
    std::thread::sleep(Duration::from_millis(50));
    rig.gateway.namespace_set_qos(NQN, 1, iops(8)).unwrap();
    rig.gateway.namespace_destroy(NQN, 1).unwrap();
    let last = (0..20).map(|_| code(&mut driver).1).last();
    assert_eq!(last, Some(Code::INVALID_NAMESPACE));
}
