//! The process that a supervisor runs, and the signals that the supervisor gets.

#![allow(unsafe_code, reason = "starting a process, its signals, and descriptors that one was started with")]

use super::VARIABLE;
use crate::gateway::handover::wire::Line;
use forebay_model::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

/// A gateway that runs.
pub(super) struct Running {
    process: Child,
    /// Readable once it has ended.
    pub ended: OwnedFd,
    pub line: Option<Line>,
    pub life: Life,
    pub served_since: Option<Instant>,
}

/// A pipe whose other end a process and its rings have: it ends when nothing of them is under way any more.
pub(super) struct Life(pub OwnedFd);

impl Life {
    pub(super) fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().contains(PollFlags::HUP))
    }
}

impl Running {
    /// # Errors
    /// `Machine`: no descriptor, no process.
    pub(super) fn start(words: &[OsString], again: bool) -> Result<Running, Error> {
        let failed = |e: std::io::Error| {
            let asked = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
            Error::machine(asked, e.to_string(), "ulimit -n 65536, ulimit -u")
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (life, lives) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let Some((program, rest)) = words.split_first() else {
            return Err(Error::request(
                "a gateway to keep",
                "has no command",
                "forebay snap --keep CONFIG.toml",
            ));
        };
        let given = [theirs.as_raw_fd(), lives.as_raw_fd()];
        let way = if again { "again" } else { "first" };
        let mut command = Command::new(program);
        command.args(rest).env(VARIABLE, format!("{}:{}:{way}", given[0], given[1]));
        // A terminal's signals come to the supervisor, which passes them on.
        command.process_group(0);
        // SAFETY: calls that are safe between fork and exec, on plain values.
        unsafe { command.pre_exec(move || prepare(given)) };
        let process = command.spawn().map_err(failed)?;
        let id = Pid::from_child(&process);
        let ended = pidfd_open(id, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        Ok(Running {
            process,
            ended,
            line: Some(Line::new(ours, PATIENCE)?),
            life: Life(life),
            served_since: None,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It has ended: then nobody has its number yet, for it wasn't waited for.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap_or(ExitStatus::from_raw(0))
    }
}

/// In the child, before the gateway's program is there.
fn prepare(given: [i32; 2]) -> std::io::Result<()> {
    // SAFETY: an empty set is made by the call itself; all else are numbers.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // Without its supervisor its clients are gone.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        for fd in given {
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// A descriptor that this process was started with.
pub(super) fn adopted(number: RawFd) -> Option<OwnedFd> {
    if number <= 2 {
        return None;
    }
    // SAFETY: it is borrowed for one call, which fails where it isn't open.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(open, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and was given to this process for this alone.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Describes the end of a process.
pub(super) fn reported(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(libc::SIGKILL)) => "it was killed (SIGKILL)".into(),
        (None, Some(libc::SIGABRT)) => "it panicked (SIGABRT)".into(),
        (None, signal) => format!("it was ended by signal {}", signal.unwrap_or(0)),
    }
}

/// SIGINT, SIGTERM and SIGHUP of this process, as something to wait for. What they did before is so again afterwards.
pub(super) struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// # Errors
    /// `Machine`: no descriptor.
    pub(super) fn new() -> Result<Signals, Error> {
        // SAFETY: the sets are made by the calls that are given them; the descriptor is fresh.
        unsafe {
            let (mut ours, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut ours);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut ours, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &ours, &mut before);
            let fd = libc::signalfd(-1, &ours, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                let found = std::io::Error::last_os_error().to_string();
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                return Err(Error::machine("signals", found, "ulimit -n 65536"));
            }
            Ok(Signals { fd: OwnedFd::from_raw_fd(fd), before })
        }
    }

    /// The next one that came.
    pub(super) fn take(&self) -> Option<Signal> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.fd, &mut info).ok()?;
        let number = info.first_chunk::<4>().filter(|_| read == info.len())?;
        Signal::from_named_raw(u32::from_ne_bytes(*number) as i32)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set that `new` was given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
