//! Tests of early ends: commands that are aborted, queues that are deleted, controllers that are reset or shut down.

use super::*;

// promise: PCI-3
#[test]
fn aborted_commands_end_before_their_abort_does() {
    for seed in 0..4 {
        let mut pair = Pair::new(settings(seed % 2 == 0), true, 20 + seed);
        pair.bring_up();
        for round in 0..120 {
            pair.world.stalled = round % 4 != 0;
            pair.round();
            let some = pair.drivers[&1].asked.keys().next().copied();
            if let Some(cid) = some.filter(|_| pair.random.rarely(2)) {
                pair.host.abort(1, cid);
            }
            pair.host.abort(3, 9999);
        }
        pair.world.stalled = false;
        pair.run_until_quiet();
        for _ in 0..2000 {
            pair.world.turn();
            while let Some(step) = pair.care() {
                pair.step(step);
            }
        }
        let (aborted, answered) = pair.aborts;
        assert!(aborted > 5 && answered >= 120, "{aborted} of {answered}");
    }
}

// promise: PCI-3
#[test]
fn queues_are_deleted_with_commands_in_flight_and_made_anew() {
    let mut pair = Pair::new(settings(true), false, 31);
    pair.bring_up();
    for _ in 0..25 {
        pair.world.stalled = true;
        for _ in 0..6 {
            pair.round();
        }
        pair.host.delete_queue(2);
        let mut left = pair.drivers.remove(&2).unwrap();
        pair.until(|step| matches!(step, Step::Deleted(2)));
        // Whatever was fetched has a completion; the rest never was.
        let memory = pair.world.memory.clone();
        while let Some(cqe) = left.queue.reap(&memory).unwrap() {
            let asked = left.asked.remove(&cqe.cid.get()).unwrap();
            if cqe.status().is_success() && asked.write {
                let blocks = asked.slba..asked.slba + u64::from(asked.blocks);
                pair.written.extend(blocks.map(|block| (block, asked.pattern)));
            }
        }
        assert!(left.asked.values().all(|asked| !asked.aborted));
        pair.world.stalled = false;
        pair.run_until_quiet();
        // What ended without a word may have been carried out or not: written anew before it is read.
        pair.written = pair.reread();
        pair.create(2);
    }
    pair.run_until_quiet();
    assert!(pair.checked > 200);
}

// promise: PCI-3
#[test]
fn a_reset_at_any_time_leaves_a_controller_that_works() {
    for seed in 0..6 {
        let mut pair = Pair::new(settings(seed % 2 == 0), seed % 3 == 0, 40 + seed);
        pair.bring_up();
        for _ in 0..8 {
            for _ in 0..pair.random.below(12) {
                pair.round();
            }
            pair.restart();
        }
        for _ in 0..30 {
            pair.round();
        }
        pair.run_until_quiet();
        assert!(pair.checked > 100);
        assert_eq!(pair.world.fatal, Vec::<String>::new());
    }
}

// promise: PCI-3
#[test]
fn a_shutdown_waits_for_what_was_written() {
    let mut pair = Pair::new(settings(true), true, 50);
    pair.bring_up();
    for _ in 0..20 {
        pair.round();
    }
    pair.run_until_quiet();
    let now_ms = pair.world.now_ms();
    pair.host.shut_down(now_ms);
    for _ in 0..20_000 {
        if pair.host.is_shut_down() {
            break;
        }
        let _ = pair.care();
        pair.world.turn();
    }
    assert!(pair.host.is_shut_down());
    assert_eq!((pair.world.flushed, pair.world.queues(), pair.world.device.status().shutdown()), (1, 0, 2));
    pair.restart();
    for _ in 0..20 {
        pair.round();
    }
    pair.run_until_quiet();
}
