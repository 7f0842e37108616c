//! The signals of a verb: end, reload. Waits for them without polling.

use crate::output::{tell, INTERRUPTED};
use forebay_model::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub struct Signals {
    bell: UnixStream,
    ring: UnixStream,
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// From here on SIGINT and SIGTERM ask for the end, SIGHUP for a reload. After the first SIGINT or SIGTERM both have
    /// their default effect.
    ///
    /// # Errors
    /// `Machine`: no descriptor.
    pub fn listen() -> Result<Signals, Error> {
        let (end, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let heard = || -> std::io::Result<(UnixStream, UnixStream)> {
            let (bell, ring) = UnixStream::pair()?;
            for signal in [SIGINT, SIGTERM] {
                // In this order: the first signal only sets the flag, the second one finds it set.
                flag::register_conditional_default(signal, end.clone())?;
                flag::register(signal, end.clone())?;
            }
            flag::register(SIGHUP, reload.clone())?;
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                low_level::pipe::register(signal, ring.try_clone()?)?;
            }
            Ok((bell, ring))
        };
        let (bell, ring) =
            heard().map_err(|e| Error::machine("signals", e.to_string(), "ulimit -n 65536"))?;
        Ok(Signals { bell, ring, end, reload })
    }

    pub(crate) fn end_asked(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    pub(crate) fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Waits for a signal, at most this long.
    pub(crate) fn wait(&mut self, within: Duration) {
        let _ = self.bell.set_read_timeout(Some(within));
        let _ = self.bell.read(&mut [0; 64]);
    }

    /// Does `work`, which starts something. Where a signal asks for the end in the meantime, the process ends, with exit
    /// code 130: nobody uses anything of it yet.
    ///
    /// # Errors
    /// `Machine`: no thread to listen meanwhile.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let over = AtomicBool::new(false);
        let listen = || {
            let _ = self.bell.set_read_timeout(None);
            while !over.load(Ordering::Acquire) {
                if self.end_asked() {
                    interrupted();
                    low_level::exit(INTERRUPTED.into());
                }
                let _ = (&self.bell).read(&mut [0; 64]);
            }
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("signals".into()).spawn_scoped(scope, listen);
            thread.map_err(|e| Error::machine("a thread", e.to_string(), "ulimit -u"))?;
            let _over = EndGuard { over: &over, ring: &self.ring };
            Ok(work())
        })
    }
}

/// Lets the thread that listens go, also where the work panics.
struct EndGuard<'a> {
    over: &'a AtomicBool,
    ring: &'a UnixStream,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = (&mut &*self.ring).write(&[0]);
    }
}

/// Says so on stderr, and returns the exit code.
pub(crate) fn interrupted() -> u8 {
    tell("forebay: interrupted", false);
    INTERRUPTED
}
