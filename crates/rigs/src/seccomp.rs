//! Filters of system calls, as a container has them: rings that the kernel refuses to enter, and threads that it
//! refuses to start.

#![allow(unsafe_code, reason = "a filter of system calls")]

/// Calls of io_uring_enter that a filter refuses.
enum Calls {
    All,
    /// Calls that wait.
    Waiting,
    /// Calls that wait, and hand nothing over.
    WaitingAlone,
}

/// A filter of system calls as a container's: from here on the calling thread, and those that it begins, get `errno`
/// for each call that enters a ring.
pub fn forbid_entering(errno: i32) {
    forbid(errno, Calls::All);
}

/// The same for calls that wait: a ring can be made, and given something to do.
pub fn forbid_waiting(errno: i32) {
    forbid(errno, Calls::Waiting);
}

/// The same for calls that wait and hand nothing over: for what the kernel has already.
pub fn forbid_waiting_on(errno: i32) {
    forbid(errno, Calls::WaitingAlone);
}

/// From here on the calling thread can start no thread: that ends with `errno`, as at a limit on their number.
pub fn forbid_threads(errno: i32) {
    let (clone, clone3) = (libc::SYS_clone as u32, libc::SYS_clone3 as u32);
    filter(vec![load(0), unless(1, 0, clone), unless(0, 1, clone3), refuse(errno), allow()]);
}

fn line(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Loads a word of struct seccomp_data; the first is the call's number.
fn load(at: u32) -> libc::sock_filter {
    line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

/// Skips `jt` lines if the loaded word is `k`, else `jf`.
fn unless(jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k)
}

fn refuse(errno: i32) -> libc::sock_filter {
    line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn allow() -> libc::sock_filter {
    line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW)
}

fn forbid(errno: i32, calls: Calls) {
    // Low words of struct seccomp_data's arguments: what is handed over, and what is waited for.
    let word = |argument: u32| 16 + 8 * argument + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut checks = match calls {
        Calls::All => Vec::new(),
        Calls::Waiting => vec![load(word(2)), unless(1, 0, 0)],
        Calls::WaitingAlone => vec![load(word(1)), unless(0, 3, 0), load(word(2)), unless(1, 0, 0)],
    };
    let other = checks.len() as u8 + 1;
    let mut program = vec![load(0), unless(0, other, libc::SYS_io_uring_enter as u32)];
    program.append(&mut checks);
    program.extend([refuse(errno), allow()]);
    filter(program);
}

/// Installs a filter of system calls for the calling thread.
fn filter(mut program: Vec<libc::sock_filter>) {
    let whole = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: integers, and a program that lives until both calls have returned.
    let answers = unsafe {
        let first = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64);
        (first, libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &whole))
    };
    assert_eq!(answers, (0, 0), "{}", std::io::Error::last_os_error());
}
