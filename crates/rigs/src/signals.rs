//! Signals of the calling thread.

#![allow(unsafe_code, reason = "a set of signals, which is the thread's own")]

/// Blocks a signal on the calling thread, and on those that it starts.
pub fn block(signal: i32) {
    // SAFETY: a set on this frame.
    unsafe {
        let mut one: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut one);
        libc::sigaddset(&mut one, signal);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &one, std::ptr::null_mut()), 0);
    }
}
