//! The end of a process that the system refuses memory where no error can be returned: the standard library aborts there,
//! and libraries of others exit with a code of their own. Instead of that, a message and the code for a machine that can't.

#![allow(unsafe_code, reason = "a global allocator, and handlers that end the process")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Limit of what can be mapped below which an abort is put down to memory, if no allocation is known to have failed.
const SCARCE_BYTES: usize = 32 << 20;
const SPARE_BYTES: usize = 2 << 20;
const EXIT_CODE: i32 = 3;
const MEMORY: &str =
    "forebay: memory: the system refuses this process more of it, and it ends here\n  try: ulimit -v \
     unlimited; a larger memory limit of the container; fewer workers, a smaller depth\n";
const LIBRARY: &str =
    "forebay: a library that this command uses ended it, as said above\n  try: ulimit -v unlimited; \
     ulimit -n 65536; OPENBLAS_NUM_THREADS=1 before the command; --no-charts, of reports\n";

/// Bytes of the latest allocation that the system refused; 0: none was.
static REFUSED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Address space that is given back with the first refusal: what says so takes some memory itself, and the C library
/// ends a thread without any by a code of its own.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Returns whether `exit` is the process's own end.
static IS_OWN_END: OnceLock<fn() -> bool> = OnceLock::new();

/// The system's allocator, which notes what it can't serve.
pub struct Allocator;

fn noted(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        REFUSED_BYTES.store(bytes, Ordering::Relaxed);
        let spare = SPARE.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if !spare.is_null() {
            // SAFETY: a mapping that nobody was given, taken once.
            unsafe { libc::munmap(spare.cast(), SPARE_BYTES) };
        }
    }
    memory
}

// SAFETY: every call is System's, with what the caller gave and what it returned.
unsafe impl GlobalAlloc for Allocator {
    // SAFETY: as its caller promises the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        noted(unsafe { System.alloc(layout) }, layout.size())
    }

    // SAFETY: as its caller promises the system's allocator.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        noted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    // SAFETY: as its caller promises the system's allocator.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's.
        noted(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }

    // SAFETY: as its caller promises the system's allocator.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

// SAFETY: glibc's.
unsafe extern "C" {
    fn on_exit(heard: extern "C" fn(i32, *mut libc::c_void), with: *mut libc::c_void) -> i32;
}

/// From here on, a process that is aborted for want of memory, or ended by a library, says so and ends with exit code 3.
/// For programs, not for libraries: it is the process that they end. `is_own_end`: whether an `exit` is the program's.
pub fn announce_scarcity(is_own_end: fn() -> bool) {
    if IS_OWN_END.set(is_own_end).is_err() {
        return;
    }
    if let Some(spare) = mapped(SPARE_BYTES) {
        SPARE.store(spare.cast(), Ordering::Relaxed);
    }
    // SAFETY: handlers that only write and end the process, each valid for good.
    unsafe {
        libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t);
        // The engine of scripts that draws charts has no other end where it can't reserve its address space.
        libc::signal(libc::SIGTRAP, trapped as *const () as libc::sighandler_t);
        on_exit(exited, std::ptr::null_mut());
    }
}

/// The handler of SIGABRT. Where memory isn't the reason, the process ends as if it weren't there.
extern "C" fn aborted(number: i32) {
    if REFUSED_BYTES.load(Ordering::Relaxed) > 0 || is_scarce() {
        end(MEMORY);
    }
    again(number);
}

extern "C" fn trapped(number: i32) {
    if is_limited() {
        end(LIBRARY);
    }
    again(number);
}

/// Has the signal come again, with its default effect, once its handler has returned.
fn again(number: i32) {
    // SAFETY: integers.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

/// Whether the address space of this process has a limit.
fn is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a struct on the stack.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) == 0 && limit.rlim_cur != libc::RLIM_INFINITY }
}

extern "C" fn exited(code: i32, _with: *mut libc::c_void) {
    if code == 1 && IS_OWN_END.get().is_some_and(|is_own| !is_own()) {
        end(LIBRARY);
    }
}

fn is_scarce() -> bool {
    // SAFETY: a mapping that nobody was given.
    mapped(SCARCE_BYTES).is_none_or(|memory| unsafe { libc::munmap(memory, SCARCE_BYTES) } != 0)
}

/// A new mapping of so many bytes.
fn mapped(bytes: usize) -> Option<*mut libc::c_void> {
    let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, libc::PROT_READ);
    // SAFETY: a new mapping, anywhere.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

fn end(text: &str) -> ! {
    // SAFETY: bytes of that length; both calls may be made in a handler of signals.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::_exit(EXIT_CODE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    const ACT: &str = "FOREBAY_TEST_SCARCE";

    /// This test again, in a process of its own, which does what `ACT` says.
    fn apart(act: &str) -> Output {
        let name = "scarce::tests::a_process_without_memory_says_so_and_ends_with_3";
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"]).env(ACT, act).output().unwrap()
    }

    #[test]
    fn a_process_without_memory_says_so_and_ends_with_3() {
        if let Ok(act) = std::env::var(ACT) {
            announce_scarcity(|| false);
            match act.as_str() {
                "refused" => REFUSED_BYTES.store(1, Ordering::Relaxed),
                // SAFETY: it ends the process.
                "exit" => unsafe { libc::exit(1) },
                _ => {}
            }
            // SAFETY: it ends the process.
            unsafe { libc::abort() }
        }
        let (refused, exit, other) = (apart("refused"), apart("exit"), apart("other"));
        let said = |done: &Output| String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(refused.status.code() == Some(3) && said(&refused).contains("forebay: memory: "));
        assert!(exit.status.code() == Some(3) && said(&exit).contains("a library that this command uses"));
        assert_eq!(other.status.signal(), Some(libc::SIGABRT));
    }
}
