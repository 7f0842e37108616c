//! Tests of waits, of rings, and of refused rings.

// Not by way of the crate of rigs: it stands on this one, and a program can't hold the guarded copy's labels twice.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../rigs/src/seccomp.rs"]
mod seccomp;

use super::*;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use seccomp::{forbid_entering, forbid_waiting_on};
use std::io::Write;
use std::os::unix::net::UnixStream;

/// However much is pushed, and however long a wait may last.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_says_why_and_holds_nobody_up() {
    let all = std::thread::spawn(|| {
        let options = RingOptions { depth: 8, ..RingOptions::default() };
        let Ok(mut reactor) = Reactor::with_ring(options) else { return };
        let token = reactor.token();
        reactor.flush();
        assert!(reactor.refused().is_none());
        forbid_entering(libc::EPERM);
        for tag in 0..100 {
            // SAFETY: it points to nothing.
            unsafe { reactor.push(token, tag, io_uring::opcode::Nop::new().build()) };
            reactor.cancel(token, tag);
        }
        reactor.wait(1, clock::monotonic_now() + Duration::from_secs(3600), Duration::ZERO);
        assert_eq!(reactor.refused().and_then(|e| e.raw_os_error()), Some(libc::EPERM));
        assert!(ring_refused(&reactor.refused().unwrap()).found.contains("Operation not permitted"));
    });
    all.join().unwrap();
}

/// Tests the errors that io_uring_enter(2) names: after some a wait ends, and the next one asks again. After the
/// others nothing comes any more.
// promise: ENG-6
#[test]
fn errors_of_a_wait_that_pass_are_told_from_those_that_stay() {
    let passing = [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM, libc::ETIME];
    let staying = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EBADR, libc::EBADFD, libc::EOWNERDEAD];
    for errno in passing.into_iter().chain(staying) {
        let run = move || {
            let Ok(mut reactor) = Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() })
            else {
                return;
            };
            let (token, mut came) = (reactor.token(), Vec::new());
            forbid_waiting_on(errno);
            reactor.wait(1, clock::monotonic_now() + Duration::from_secs(3600), Duration::ZERO);
            let found = reactor.refused().and_then(|e| e.raw_os_error());
            assert_eq!(found, staying.contains(&errno).then_some(errno));
            // A call that hands something over is allowed.
            // SAFETY: it points to nothing.
            unsafe { reactor.push(token, 3, io_uring::opcode::Nop::new().build()) };
            reactor.wait(1, clock::monotonic_now() + Duration::from_secs(3600), Duration::ZERO);
            reactor.take(token, &mut came);
            assert_eq!(came.len(), 1, "errno {errno}");
        };
        std::thread::spawn(run).join().unwrap();
    }
    let lost = ring_refused(&std::io::Error::from_raw_os_error(libc::EBADR));
    assert!(lost.found.contains("no memory") && lost.next.contains("memory"), "{lost}");
}

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
// promise: GWY-9
#[test]
fn a_call_that_was_collected_before_the_wait_ends_it() {
    let options = RingOptions { depth: 8, sqpoll: false, iopoll: false, one_by_one: false };
    let Ok(mut reactor) = Reactor::with_ring(options) else { return };
    let (waker, token) = (reactor.waker().unwrap(), reactor.token());
    let mut none = Vec::new();
    for spin in [Duration::ZERO, Duration::from_millis(20)] {
        reactor.spin(spin);
        // The first wait has the kernel listen.
        reactor.wait(1, clock::monotonic_now() + Duration::from_millis(1), Duration::ZERO);
        waker.wake();
        reactor.flush();
        reactor.take(token, &mut none);
        let began = clock::monotonic_now();
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(clock::monotonic_now() - began < Duration::from_secs(60), "lost, spinning {spin:?}");
        // A signal may end one, too.
        let lasts = |_| {
            let began = clock::monotonic_now();
            reactor.wait(1, began + Duration::from_millis(50), Duration::ZERO);
            clock::monotonic_now() - began >= Duration::from_millis(50)
        };
        assert!((0..3).any(lasts), "it ends one wait, not all");
        let late = waker.clone();
        let caller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            late.wake();
        });
        let began = clock::monotonic_now();
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(
            clock::monotonic_now() - began < Duration::from_secs(60),
            "lost while it looked, spinning {spin:?}"
        );
        caller.join().unwrap();
        // Who looks by itself leaves the call to the wait behind it.
        waker.wake();
        let began = clock::monotonic_now();
        assert!(
            reactor.poll_for(Duration::from_secs(120), began + Duration::from_secs(120)),
            "it saw no call"
        );
        reactor.wait(1, began + Duration::from_secs(120), Duration::ZERO);
        assert!(
            clock::monotonic_now() - began < Duration::from_secs(60),
            "lost to a look, spinning {spin:?}"
        );
    }
    assert!(none.is_empty());
}

/// A timer that rings between two waits has rung for neither: what relies on it must not wait for ever.
#[test]
fn a_wait_ends_in_time_where_the_timer_that_all_share_rang_before_it() {
    let options = RingOptions { depth: 8, sqpoll: false, iopoll: false, one_by_one: false };
    let Ok(mut reactor) = Reactor::with_ring(options) else { return };
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let token = reactor.token();
    let send = |reactor: &mut Reactor, tag| {
        let entry = io_uring::opcode::Send::new(types::Fd(ours.as_raw_fd()), c"".as_ptr().cast(), 1).build();
        // SAFETY: it points to a byte that is always there.
        unsafe { reactor.push_soon(token, tag, entry, true) };
    };
    // One that starts the timer, and ends before it.
    theirs.write_all(&[0]).unwrap();
    reactor.watch(token, 0, ours.as_fd());
    send(&mut reactor, 1);
    reactor.wait(1, clock::monotonic_now() + Duration::from_secs(60), Duration::ZERO);
    let mut ended = Vec::new();
    reactor.take(token, &mut ended);
    assert_eq!(ended.len(), 2, "{ended:?}");
    std::thread::sleep(2 * SOON_WITHIN);
    // A full socket takes sends late.
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 4096]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let rescue = std::thread::spawn(move || {
        let _ = is_over.recv_timeout(Duration::from_secs(20));
        drop(theirs);
    });
    (2..6).for_each(|tag| send(&mut reactor, tag));
    let (began, until) = (clock::monotonic_now(), clock::monotonic_now() + Duration::from_millis(200));
    while clock::monotonic_now() < until {
        reactor.wait(1, until, Duration::ZERO);
    }
    let took = clock::monotonic_now() - began;
    drop(over);
    rescue.join().unwrap();
    assert!(took < Duration::from_secs(10), "it went on for {took:?}");
}
