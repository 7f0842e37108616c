use super::*;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

#[test]
fn a_file_that_nobody_has_open_any_more_is_let_go_of() {
    let options = RingOptions { depth: 8, sqpoll: false, iopoll: false, one_by_one: false };
    let Ok(mut reactor) = Reactor::with_ring(options) else { return };
    let (read, write) = rustix::pipe::pipe().unwrap();
    let closed = |seconds| {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 10_000_000 };
        poll(&mut [PollFd::new(&read, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    let file = Arc::new(File::from(write));
    let Some(at) = reactor.register_file(&file) else { return };
    reactor.forget_files();
    drop(file);
    assert!(!closed(0), "the ring has it");
    reactor.forget_files();
    assert!(closed(60), "nobody has it");
    let other = Arc::new(File::open("/dev/null").unwrap());
    assert_eq!(reactor.register_file(&other), Some(at), "its place is free again");
}

/// A call that something else collects on its way still ends the next wait: else it would be lost.
#[test]
fn a_call_that_was_collected_before_the_wait_ends_it() {
    let options = RingOptions { depth: 8, sqpoll: false, iopoll: false, one_by_one: false };
    let Ok(mut reactor) = Reactor::with_ring(options) else { return };
    let (waker, token) = (reactor.waker().unwrap(), reactor.token());
    let mut none = Vec::new();
    for spin in [Duration::ZERO, Duration::from_millis(20)] {
        reactor.spin(spin);
        // The first wait has the kernel listen.
        reactor.wait(1, clock::now() + Duration::from_millis(1), Duration::ZERO);
        waker.wake();
        reactor.flush();
        reactor.take(token, &mut none);
        let began = clock::now();
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(clock::now() - began < Duration::from_secs(60), "lost, spinning {spin:?}");
        // A signal may end one, too.
        let lasts = |_| {
            let began = clock::now();
            reactor.wait(1, began + Duration::from_millis(50), Duration::ZERO);
            clock::now() - began >= Duration::from_millis(50)
        };
        assert!((0..3).any(lasts), "it ends one wait, not all");
        let late = waker.clone();
        let caller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            late.wake();
        });
        let began = clock::now();
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(clock::now() - began < Duration::from_secs(60), "lost while it looked, spinning {spin:?}");
        caller.join().unwrap();
        // Who looks by itself leaves the call to the wait behind it.
        waker.wake();
        let began = clock::now();
        assert!(reactor.look(Duration::from_secs(120), began + Duration::from_secs(120)), "it saw no call");
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(clock::now() - began < Duration::from_secs(60), "lost to a look, spinning {spin:?}");
    }
    assert!(none.is_empty());
}
