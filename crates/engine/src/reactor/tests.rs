//! What ends a wait, what a ring keeps, and what becomes of one that is refused.

use super::*;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// A filter of system calls as a container's: the calling thread, and it alone, may not enter a ring from here on.
pub(crate) fn forbid_entering() {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_enter as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let whole = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: integers, and a program that lives until both calls have returned.
    let answers = unsafe {
        let first = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64);
        (first, libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &whole))
    };
    assert_eq!(answers, (0, 0), "{}", std::io::Error::last_os_error());
}

/// However much is pushed, and however long a wait may last.
#[test]
fn a_ring_that_may_not_be_entered_any_more_says_why_and_holds_nobody_up() {
    let all = std::thread::spawn(|| {
        let options = RingOptions { depth: 8, ..RingOptions::default() };
        let Ok(mut reactor) = Reactor::with_ring(options) else { return };
        let token = reactor.token();
        reactor.flush();
        assert!(reactor.refused().is_none());
        forbid_entering();
        for tag in 0..100 {
            // SAFETY: it points to nothing.
            unsafe { reactor.push(token, tag, io_uring::opcode::Nop::new().build()) };
            reactor.cancel(token, tag);
        }
        reactor.wait(1, clock::now() + Duration::from_secs(3600), Duration::ZERO);
        assert_eq!(reactor.refused().and_then(|e| e.raw_os_error()), Some(libc::EPERM));
        assert!(refused(&reactor.refused().unwrap()).found.contains("Operation not permitted"));
    });
    all.join().unwrap();
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
