//! Copying out of memory that may vanish: a mapped file that is truncated raises
//! SIGBUS, and the copy then stops and says how much is left.

/// Whether `guarded` can survive a fault on this processor.
pub const GUARDED: bool = cfg!(target_arch = "x86_64");

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::sync::Once;

    // rep movsb keeps its progress in registers, so a fault leaves in rcx exactly what is missing.
    std::arch::global_asm!(
        ".globl forebay_copy_begin",
        ".hidden forebay_copy_begin",
        ".globl forebay_copy_end",
        ".hidden forebay_copy_end",
        ".p2align 6",
        "forebay_copy_begin:",
        "mov rcx, rdx",
        "rep movsb",
        "forebay_copy_end:",
        "mov rax, rcx",
        "ret",
    );

    extern "sysv64" {
        fn forebay_copy_begin(to: *mut u8, from: *const u8, bytes: usize) -> usize;
        fn forebay_copy_end();
    }

    static GUARD: Once = Once::new();
    // SAFETY: an all-zero sigaction is SIG_DFL without flags.
    static mut BEFORE: libc::sigaction = unsafe { std::mem::zeroed() };

    /// Takes SIGBUS once for the process; what isn't ours goes to whoever had it before.
    pub fn install_guard() {
        GUARD.call_once(|| {
            // SAFETY: installs a handler that only touches registers and statics written here, once.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_bus as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(libc::SIGBUS, &action, std::ptr::addr_of_mut!(BEFORE));
            }
        });
    }

    extern "C" fn on_bus(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let (begin, end) = (forebay_copy_begin as *const () as i64, forebay_copy_end as *const () as i64);
        // SAFETY: the kernel passes a valid ucontext; inside our copy, resuming at its end returns rcx to the
        // caller. Elsewhere the former handler is put back and the instruction faults again under it.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let at = registers[libc::REG_RIP as usize];
            if (begin..end).contains(&at) {
                registers[libc::REG_RIP as usize] = end;
            } else {
                libc::sigaction(signal, std::ptr::addr_of!(BEFORE), std::ptr::null_mut());
            }
        }
    }

    /// Copies `bytes`, and returns how many were not copied because their page is gone.
    ///
    /// # Safety
    /// `to` is valid for `bytes`; `from` lies in a mapping at least that long, whose pages may be gone.
    #[inline]
    pub unsafe fn guarded(to: *mut u8, from: *const u8, bytes: usize) -> usize {
        // SAFETY: the caller's promise; a SIGBUS inside is handled by `on_bus`.
        unsafe { forebay_copy_begin(to, from, bytes) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    pub fn install_guard() {}

    /// Never called: `GUARDED` is false, and the map engine says so when it is asked for.
    ///
    /// # Safety
    /// As on x86-64.
    pub unsafe fn guarded(to: *mut u8, from: *const u8, bytes: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        0
    }
}

pub use imp::{guarded, install_guard};

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_truncated_file_stops_the_copy_and_says_what_is_left() {
        super::install_guard();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7u8; 16384]).unwrap();
        // SAFETY: a mapping of our own file, read only through `guarded`.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                16384,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
            .cast::<u8>();
            let mut to = vec![0u8; 16384];
            assert_eq!(super::guarded(to.as_mut_ptr(), map, 16384), 0);
            assert!(to.iter().all(|b| *b == 7));
            file.set_len(8192).unwrap();
            assert_eq!(super::guarded(to.as_mut_ptr(), map, 16384), 8192);
            libc::munmap(map.cast(), 16384);
        }
    }
}
