//! A drive's interrupt vectors, and who hears them.

use forebay_serve::{InterruptVectors, VfioIrqSet};
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;

const ASSIGN: u32 = VfioIrqSet::DATA_EVENTFD | VfioIrqSet::TRIGGER;

fn pair() -> (OwnedFd, OwnedFd) {
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    (fd.try_clone().unwrap(), fd)
}

fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

#[test]
fn a_vector_that_nobody_hears_is_signalled_once_somebody_does() {
    let vectors = InterruptVectors::new(4);
    vectors.signal(1);
    vectors.signal(9);
    assert_eq!(vectors.pending(0), 0b10);
    let (ours, theirs) = pair();
    vectors.set(ASSIGN, 1, 1, &[], vec![theirs]).unwrap();
    assert_eq!((count(&ours), vectors.pending(0)), (1, 0));
    vectors.set(VfioIrqSet::DATA_NONE | VfioIrqSet::MASK, 0, 4, &[], vec![]).unwrap();
    vectors.signal(1);
    assert_eq!(count(&ours), 0);
    vectors.set(VfioIrqSet::DATA_BOOL | VfioIrqSet::UNMASK, 0, 4, &[0, 1, 0, 0], vec![]).unwrap();
    assert_eq!(count(&ours), 1);
    vectors.set(ASSIGN, 1, 1, &[], vec![]).unwrap();
    vectors.signal(1);
    assert_eq!((count(&ours), vectors.pending(0)), (0, 0b10));
    // All of them are taken away and given again.
    vectors.set(VfioIrqSet::DATA_NONE | VfioIrqSet::TRIGGER, 0, 0, &[], vec![]).unwrap();
    assert_eq!(vectors.pending(0), 0b10);
    vectors.set(ASSIGN, 1, 1, &[], vec![ours.try_clone().unwrap()]).unwrap();
    assert_eq!((count(&ours), vectors.pending(0)), (1, 0));
    vectors.signal(2);
    vectors.clear();
    assert_eq!(vectors.pending(0), 0, "nobody is left to hear it");
}

#[test]
fn what_can_not_be_a_vector_is_refused() {
    let vectors = InterruptVectors::new(4);
    let eventfds = |n: usize| (0..n).map(|_| pair().1).collect::<Vec<_>>();
    let pipe = rustix::pipe::pipe().unwrap().1;
    for (flags, start, count, fds) in [
        (ASSIGN, 0, 5, eventfds(5)),
        (ASSIGN, u32::MAX, 2, eventfds(2)),
        (ASSIGN, 0, 2, eventfds(1)),
        (ASSIGN, 0, 1, vec![pipe]),
        (VfioIrqSet::DATA_EVENTFD | VfioIrqSet::MASK, 0, 1, eventfds(1)),
        (VfioIrqSet::DATA_BOOL | VfioIrqSet::TRIGGER, 0, 1, vec![]),
        (ASSIGN | VfioIrqSet::DATA_NONE, 0, 1, eventfds(1)),
        (0, 0, 1, vec![]),
    ] {
        assert_eq!(vectors.set(flags, start, count, &[], fds), Err(libc::EINVAL), "{flags:#x} {start}");
    }
}

// promise: GWY-3
#[test]
fn a_full_counter_holds_nobody_up_whatever_its_owner_makes_of_it() {
    let vectors = std::sync::Arc::new(InterruptVectors::new(1));
    let (ours, theirs) = pair();
    vectors.set(ASSIGN, 0, 1, &[], vec![theirs]).unwrap();
    vectors.signal(0);
    assert_eq!(count(&ours), 1);
    rustix::io::write(&ours, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    // A write would wait now, and does so again whenever the client takes this flag back.
    let flags = rustix::fs::fcntl_getfl(&ours).unwrap();
    rustix::fs::fcntl_setfl(&ours, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    let (done, signalled) = std::sync::mpsc::channel();
    let signals = vectors.clone();
    std::thread::spawn(move || {
        (0..3).for_each(|_| signals.signal(0));
        done.send(()).unwrap();
    });
    signalled.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for the client");
    assert!(count(&ours) >= u64::MAX - 1);
    vectors.signal(0);
    assert_eq!(count(&ours), 1, "and is heard again");
}
