//! This process and its forks; other processes of this machine, as /proc tells of them.

#![allow(unsafe_code, reason = "starting a process, its signals, and descriptors that one was started with")]

use std::fs::read_to_string;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU8, Ordering};

/// Number of this process, asked of the system once: a call for each of what a short request asks takes longer than all else.
pub fn process_id() -> u32 {
    static OWN: AtomicU32 = AtomicU32::new(0);
    /// Whether a child is told to ask anew: nobody has seen to it yet, somebody is about to, it is.
    static REPORTED: AtomicU8 = AtomicU8::new(0);
    extern "C" fn forked() {
        OWN.store(0, Ordering::Relaxed);
    }
    let known = OWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    if REPORTED.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: a function that lives as long as the program does, and does in a child what any thread may.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(forked)) } != 0;
        REPORTED.store(if refused { 1 } else { 2 }, Ordering::Release);
    }
    let own = std::process::id();
    if REPORTED.load(Ordering::Acquire) == 2 {
        OWN.store(own, Ordering::Relaxed);
    }
    own
}

/// State that a forked child begins anew. A fork copies locks as they are, but none of the threads that would unlock them: a
/// child that shares a lock with its parent's threads may wait for it for ever.
pub struct PerProcess<T>(AtomicPtr<(u32, T)>);

impl<T: Default> PerProcess<T> {
    #[allow(clippy::new_without_default)] // A static's initial value must be const.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T: Default + Send + Sync> Deref for PerProcess<T> {
    type Target = T;

    /// Returns this process's own value. What its parent had is never freed: threads of the parent may have been
    /// changing it.
    fn deref(&self) -> &T {
        let process = process_id();
        loop {
            let at = self.0.load(Ordering::Acquire);
            // SAFETY: what was stored stays until this is dropped.
            if let Some((_, own)) = unsafe { at.as_ref() }.filter(|(owner, _)| *owner == process) {
                return own;
            }
            let new = Box::into_raw(Box::new((process, T::default())));
            if self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody else saw it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let at = *self.0.get_mut();
        // SAFETY: stored by `deref`, and no reference outlives this.
        if unsafe { at.as_ref() }.is_some_and(|(owner, _)| *owner == process_id()) {
            // SAFETY: as above; nobody else has it.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

/// Sharp naps, and signals left to the program's own threads; but for those that a fault of our own raises.
pub fn settle_in_process() {
    // SAFETY: prctl with integers; a signal set on this frame, for this thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000u64, 0u64, 0u64, 0u64);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for own in [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, own);
        }
        // Whoever started the thread may have blocked those, too.
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// No such process, or one that has ended and that nobody has waited for.
pub fn is_process_gone(pid: i32) -> bool {
    let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // pid (name) state …: the name may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    pid <= 0 || matches!(state, None | Some('Z' | 'X' | 'x'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    #[test]
    fn a_child_has_a_number_of_its_own() {
        assert_eq!((process_id(), process_id()), (std::process::id(), std::process::id()));
        // SAFETY: the child does nothing but compare, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = process_id() == std::process::id();
            // SAFETY: as above.
            unsafe { libc::_exit(if own { 0 } else { 1 }) };
        }
        let mut status = 1;
        // SAFETY: our own child, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_child_has_a_lock_of_its_own_though_its_parent_held_it() {
        let state: PerProcess<Mutex<Vec<Arc<()>>>> = PerProcess::new();
        let kept = Arc::new(());
        state.lock().unwrap().push(kept.clone());
        let held = state.lock().unwrap();
        // SAFETY: the child takes a lock, compares and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = state.try_lock().is_ok_and(|own| own.is_empty());
            // SAFETY: ends the child, whatever else it has.
            unsafe { libc::_exit(if own { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child found its parent's state");
        drop(held);
        assert_eq!((state.lock().unwrap().len(), Arc::strong_count(&kept)), (1, 2));
        drop(state);
        assert_eq!(Arc::strong_count(&kept), 1, "freed where it was made");
    }

    #[test]
    fn who_has_ended_is_gone_though_nobody_has_waited_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_process_gone(pid) && !is_process_gone(std::process::id() as i32));
        child.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !is_process_gone(pid) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_process_gone(pid), "it has ended");
        child.wait().unwrap();
        assert!(is_process_gone(pid) && is_process_gone(0) && is_process_gone(-1));
    }
}
