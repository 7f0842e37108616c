//! The signals of a service: end, reload. Waits for them without turning a wheel.

use forebay_model::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub struct Signals {
    bell: UnixStream,
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// From here on SIGINT and SIGTERM ask for the end, SIGHUP for a reload. After the first SIGINT or SIGTERM both have
    /// their default effect.
    pub fn listen() -> Result<Signals, Error> {
        let (end, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let heard = || -> std::io::Result<UnixStream> {
            let (bell, ring) = UnixStream::pair()?;
            for signal in [SIGINT, SIGTERM] {
                // In this order: the first signal only sets the flag, the second one finds it set.
                flag::register_conditional_default(signal, end.clone())?;
                flag::register(signal, end.clone())?;
            }
            flag::register(SIGHUP, reload.clone())?;
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                pipe::register(signal, ring.try_clone()?)?;
            }
            Ok(bell)
        };
        let bell = heard().map_err(|e| Error::machine("signals", e.to_string(), "ulimit -n 65536"))?;
        Ok(Signals { bell, end, reload })
    }

    pub fn end_asked(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Waits for a signal, at most this long.
    pub fn wait(&mut self, within: Duration) {
        let _ = self.bell.set_read_timeout(Some(within));
        let _ = self.bell.read(&mut [0; 64]);
    }
}
