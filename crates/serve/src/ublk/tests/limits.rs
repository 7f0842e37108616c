//! Limits of a namespace, which a device's threads share with all other frontends; of a request's time; and a thread's end.

use super::*;
use crate::namespace::qos::{Limiter, Limits};
use std::time::Instant;

/// A device under limits, and those limits.
fn limited(limits: Limits) -> (Rig, Arc<Limiter>, Instant) {
    let (limiter, began) = (Limiter::new(limits), forebay_io::monotonic_now());
    let throttle = Throttle { limiter: limiter.clone(), began };
    (Rig::throttled(volume("nil:?size=1m", true, None), None, Some(throttle)), limiter, began)
}

fn iops(iops: u64) -> Limits {
    Limits { iops: Some(iops), ..Limits::default() }
}

// promise: GWY-7
#[test]
fn requests_keep_to_a_limit_that_others_use_up_too() {
    let (rig, limiter, began) = limited(iops(40));
    // Another frontend has its part of it: a command for each 25 ms, which comes off what is left for the device.
    let mut elsewhere = limiter.share();
    let until = began + ANSWER;
    let other = std::thread::spawn(move || {
        let mut went = 0;
        while went < 12 && forebay_io::monotonic_now() < until {
            let now_ns = began.elapsed().as_nanos() as u64;
            went += u32::from(crate::namespace::qos::enter(&mut [&mut elsewhere], 4096, now_ns).is_ok());
            std::thread::sleep(Duration::from_millis(1));
        }
        went
    });
    for _ in 0..2 {
        (0..DEPTH).for_each(|tag| rig.ask(tag, READ, 0, 4096, &[]));
        (0..DEPTH).for_each(|_| assert_eq!(rig.answer().result, 4096));
    }
    assert_eq!(other.join().unwrap(), 12);
    // 28 at 40 a second, but for a burst of 50 ms and a quantum of each.
    assert!(began.elapsed() >= Duration::from_millis(550), "{:?}", began.elapsed());
    assert!(limiter.commands_held_back() > 0, "{}", limiter.commands_held_back());
    assert_eq!(rig.stop().queues[0].counts.reads, 16);
}

// promise: GWY-7
#[test]
fn a_limit_that_is_lifted_lets_all_through_that_wait() {
    let (rig, limiter, began) = limited(Limits { bytes_per_s: Some(1), iops: None });
    (0..DEPTH).for_each(|tag| rig.ask(tag, READ, 0, 4096, &[]));
    let early = std::iter::from_fn(|| rig.answers.recv_timeout(Duration::from_millis(200)).ok()).count();
    assert!(early <= 1, "{early} of 4096 bytes at a byte per second");
    limiter.set(Limits::default(), began.elapsed().as_nanos() as u64);
    rig.inbox.post(Message::LimitsChanged);
    (early..usize::from(DEPTH)).for_each(|_| assert_eq!(rig.answer().result, 4096));
    rig.stop();
}

// promise: GWY-7
#[test]
fn requests_that_wait_are_suspended_given_up_and_left_like_others() {
    let never = Limits { bytes_per_s: Some(1), iops: None };
    let (rig, ..) = limited(never);
    (0..DEPTH).for_each(|tag| rig.ask(tag, READ, 0, 65536, &[]));
    rig.until_taken();
    rig.suspend().recv_timeout(ANSWER).expect("those that wait are not in the source");
    rig.inbox.post(Message::Resume);
    let (to, from) = sync_channel(1);
    rig.inbox.post(Message::Report(to));
    assert_eq!(from.recv_timeout(ANSWER).unwrap().queues[0].in_flight, u32::from(DEPTH));
    rig.inbox.post(Message::GiveUp);
    (0..DEPTH).for_each(|_| assert_eq!(rig.answer().result, -libc::EIO));
    rig.stop();

    let (rig, ..) = limited(never);
    (0..DEPTH).for_each(|tag| rig.ask(tag, READ, 0, 65536, &[]));
    rig.until_taken();
    let began = forebay_io::monotonic_now();
    rig.inbox.post(Message::Leave);
    assert!(
        rig.thread.join().unwrap().open && began.elapsed() < Duration::from_secs(4),
        "nothing is waited for"
    );
    assert!(rig.answers.try_recv().is_err(), "the next daemon is given them");
}

// promise: UBL-3
#[test]
fn a_request_that_the_source_keeps_is_given_up_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, Some("stall=1")), Some(Duration::from_millis(200)));
    (0..DEPTH).for_each(|tag| rig.ask(tag, READ, 0, 4096, &[]));
    for _ in 0..DEPTH {
        assert_eq!(rig.answer().result, -libc::ETIMEDOUT);
    }
    rig.stop();
}

/// Tests a device whose queues nobody serves: its thread ends, and its owner learns why.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_ends_the_thread() {
    let run = || {
        forebay_rigs::seccomp::forbid_waiting(libc::EPERM);
        let rig = Rig::new(volume("nil:?size=1m", false, None), None);
        let report = rig.thread.join().unwrap();
        assert!(report.open, "the driver wasn't told of an end");
        let failure = rig.failure.get().expect("it is told why");
        assert!(failure.found.contains("refuses io_uring_enter"), "{failure}");
    };
    std::thread::spawn(run).join().unwrap();
}
