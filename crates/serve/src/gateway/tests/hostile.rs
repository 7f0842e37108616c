//! Clients that die, and such that mean harm: they get a refusal, or lose their session; the next one finds a drive.

use super::client::{Client, Driver, BASE, BYTES, DATA};
use super::Rig;
use forebay_nvme::nvm;
use std::io::Write;

/// A new client brings the controller up and reads.
fn works(rig: &Rig) {
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
}

// promise: GWY-3
#[test]
fn a_client_that_dies_in_any_state_leaves_a_drive_behind() {
    let rig = Rig::new(&["nil:?size=1g"]);
    drop(Client::connect(&rig.socket()));
    let mut half = Client::connect(&rig.socket());
    // It may have been sent away, where the one before wasn't seen to go.
    let _ = half.socket.write_all(&[1, 0, 1]);
    drop(half);
    drop(Client::new(&rig.socket()));
    for queues in [0, 1, 4] {
        drop(Driver::new(Client::new(&rig.socket()), queues));
    }
    let mut busy = Driver::new(Client::new(&rig.socket()), 2);
    for queue in [0, 1] {
        for _ in 0..30 {
            busy.submit(queue, nvm::read(1, 0, 2048), DATA, 1 << 20);
        }
    }
    drop(busy);
    works(&rig);
}

// promise: GWY-3
#[test]
fn nonsense_is_refused_and_the_stream_stays_in_step() {
    let rig = Rig::new(&["nil:?size=1g"]);
    let mut client = Client::new(&rig.socket());
    let memory = client.memory.try_clone().unwrap();
    for (address, bytes, offset) in [
        (BASE + 4096, 4096, 0),
        (0, 0, 0),
        (0, u64::MAX, 0),
        (u64::MAX - 4095, 8192, 0),
        (1 << 40, BYTES + 4096, 0),
        (1 << 40, 4096, u64::MAX - 4095),
        (3, 4096, 0),
    ] {
        assert!(client.dma_map(address, bytes, offset, Some(&memory)).is_err(), "{address:#x} {bytes:#x}");
    }
    assert!(client.dma_unmap(BASE, 4096).is_err());
    for command in [0, 6, 11, 12, 14, 16, 17, 18, 99, u16::MAX] {
        assert!(client.call(command, &[0xff; 333], &[]).is_err(), "{command}");
    }
    assert!(client.region_read(0, u64::MAX - 3, 4).is_err());
    assert!(client.region_read(7, 4095, 4).is_err());
    assert!(client.region_read(3, 0, 4).is_err());
    assert!(client.region_write(0, 0x3ffe, &[0; 4]).is_err());
    client.region_write(0, 0x1008, &[0xff; 4]).unwrap();
    assert_eq!(client.region_read(0, 8, 4).unwrap().len(), 4);
}

// promise: GWY-3
#[test]
fn a_second_client_is_sent_away_and_the_first_does_not_notice() {
    let rig = Rig::new(&["nil:?size=1g"]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    let mut second = Client::connect(&rig.socket());
    assert!(second.receive().is_err(), "closed");
    assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
    drop(driver);
    works(&rig);
}

// promise: GWY-3
#[test]
fn garbage_doorbells_are_an_event_and_no_more() {
    let rig = Rig::new(&["nil:?size=1g"]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 2);
    for value in [u32::MAX, 64, 0x1_0001, 1 << 31] {
        for offset in [0x1008u64, 0x100c, 0x1010, 0x1014, 0x1020, 0x3ff8] {
            driver.client.region_write(0, offset, &value.to_le_bytes()).unwrap();
        }
    }
    assert!(driver.run(0, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
    assert!(driver.run(1, nvm::read(1, 0, 8), DATA, 4096).status().is_success());
}

// promise: GWY-4
#[test]
fn memory_that_goes_under_io_is_free_only_once_nothing_touches_it() {
    let rig = Rig::new(&["model:d7-ps1010"]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    let memory = driver.client.memory.try_clone().unwrap();
    // The same pages once more, at another address, for data.
    driver.client.dma_map(1 << 40, BYTES, 0, Some(&memory)).unwrap();
    let map = driver.client.map.clone();
    for n in 0..16u64 {
        // Addressed by PRPs that this end's view of memory needn't know.
        let sqe = nvm::read(1, n * 8, 8);
        let sqe = forebay_nvme::transport::pcie::data::with_prps(sqe, [(1 << 40) + (8 << 20) + n * 4096, 0]);
        driver.queues[0].push(&*map, sqe).unwrap();
    }
    let rung = driver.queues[0].ring(&*map).unwrap();
    if let Some(rung) = rung {
        driver.client.region_write(0, rung.offset, &rung.value.to_le_bytes()).unwrap();
    }
    driver.client.dma_unmap(1 << 40, BYTES).unwrap();
    for _ in 0..16 {
        let cqe = driver.reap(0, std::time::Duration::from_secs(60)).expect("each is answered");
        let _ = cqe.status();
    }
    // Its queues' memory taken away is fatal to the controller alone.
    driver.client.dma_unmap(BASE, BYTES).unwrap();
    driver.client.region_write(0, 0x1008, &9u32.to_le_bytes()).unwrap();
    let fatal = (0..30_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        driver.client.region_read(0, 0x1c, 4).unwrap()[0] & 2 != 0
    });
    assert!(fatal, "CSTS.CFS");
    drop(driver);
    works(&rig);
}

// promise: GWY-3
#[test]
fn truncated_memory_fails_the_command_and_not_the_gateway() {
    let rig = Rig::new(&["nil:?size=1g"]);
    let mut driver = Driver::new(Client::new(&rig.socket()), 1);
    rustix::fs::ftruncate(&driver.client.memory, 8 << 20).unwrap();
    let cqe = driver.run(0, nvm::read(1, 0, 8), BASE + (9 << 20), 4096);
    assert!(!cqe.status().is_success());
    drop(driver);
    works(&rig);
}
