//! Options of a `vfio-user:` URI.

use crate::source::nvme::query::{count, seconds, seconds_above_zero, spin, switch};
use crate::source::plan::Uri;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Commands in flight per queue, where nothing is said.
const DEPTH: u16 = 128;
const DEPTH_MAX: u32 = 65535;
const QUEUES_MAX: u32 = 511;

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub socket: PathBuf,
    pub nsid: u32,
    /// I/O queues; None: one per worker.
    pub queues: Option<u16>,
    /// Commands in flight per queue.
    pub depth: u16,
    /// Time for which a worker polls for completions before it sleeps.
    pub spin: Duration,
    /// Time of a command after which the controller is reset. None: for ever.
    pub io_timeout: Option<Duration>,
    /// Longest wait between two attempts to connect; the first comes at once, the next ones ever later.
    pub reconnect_delay: Duration,
    /// Time after which attempts end and the drive is given up. None: for ever.
    pub ctrl_loss: Option<Duration>,
    /// Time for which I/Os wait for the drive to come back before they fail. None: as long as there is hope.
    pub fast_io_fail: Option<Duration>,
    /// Writes whose outcome a lost device left unknown are sent again, instead of failing.
    pub replay_writes: bool,
    /// The name that seeded content carries, where it was made under another one: a file's name at the gateway.
    pub content: Option<String>,
}

impl Options {
    pub fn new(socket: PathBuf) -> Options {
        Options {
            socket,
            nsid: 1,
            queues: None,
            depth: DEPTH,
            spin: Duration::ZERO,
            io_timeout: Some(Duration::from_secs(30)),
            reconnect_delay: Duration::from_secs(2),
            ctrl_loss: Some(Duration::from_secs(600)),
            fast_io_fail: Some(Duration::from_secs(20)),
            replay_writes: false,
            content: None,
        }
    }

    /// Takes one key of the query. Err: what is wrong with it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "nsid" => self.nsid = count(key, value, u32::MAX - 1)?,
            "queues" => self.queues = Some(count(key, value, QUEUES_MAX)? as u16),
            "depth" => self.depth = count(key, value, DEPTH_MAX)? as u16,
            "spin_us" => self.spin = spin(key, value)?,
            "io_timeout" => self.io_timeout = seconds_above_zero(key, value)?,
            "reconnect_delay" => {
                self.reconnect_delay = seconds_above_zero(key, value)?.ok_or(format!("{key} can't be off"))?
            }
            "ctrl_loss_tmo" => self.ctrl_loss = seconds(key, value)?,
            "fast_io_fail_tmo" => self.fast_io_fail = seconds(key, value)?,
            "replay_writes" => self.replay_writes = switch(key, value)?,
            "content" => self.content = Some(value.into()),
            _ => return Err(format!("'{key}' is not a key of vfio-user:")),
        }
        Ok(())
    }

    /// Options of such a URI; None: it is another source's.
    pub fn from_uri(uri: &Uri) -> Option<&Options> {
        uri.of_kind()
    }

    /// Returns whether both name the same namespace.
    pub fn is_same(&self, other: &Options) -> bool {
        self.socket == other.socket && self.nsid == other.nsid
    }
}

/// Its socket and its namespace.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vfio-user:{}", self.socket.display())?;
        if self.nsid == 1 {
            return Ok(());
        }
        write!(f, "?nsid={}", self.nsid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_taken() {
        let mut all = Options::new("/run/x.sock".into());
        for (key, value) in [
            ("nsid", "2"),
            ("queues", "31"),
            ("depth", "64"),
            ("spin_us", "50"),
            ("io_timeout", "2.5"),
            ("reconnect_delay", "0.5"),
            ("ctrl_loss_tmo", "-1"),
            ("fast_io_fail_tmo", "2"),
            ("replay_writes", "1"),
            ("content", "a.dat"),
        ] {
            all.set(key, value).unwrap();
        }
        assert_eq!((all.nsid, all.queues, all.depth), (2, Some(31), 64));
        assert_eq!(
            (all.spin, all.io_timeout),
            (Duration::from_micros(50), Some(Duration::from_millis(2500)))
        );
        assert_eq!((all.ctrl_loss, all.fast_io_fail), (None, Some(Duration::from_secs(2))));
        assert!(all.replay_writes);
        assert_eq!(all.to_string(), "vfio-user:/run/x.sock?nsid=2");
    }

    #[test]
    fn what_is_wrong_is_refused_and_named() {
        for (key, value) in [
            ("nsid", "0"),
            ("queues", "512"),
            ("depth", "65536"),
            ("spin_us", "x"),
            ("io_timeout", "-2"),
            ("io_timeout", "0"),
            ("reconnect_delay", "0"),
            ("reconnect_delay", "-1"),
            ("replay_writes", "2"),
            ("kato", "1"),
        ] {
            let why = Options::new("/s".into()).set(key, value).unwrap_err();
            assert!(why.contains(key), "{key}={value}: {why}");
        }
    }
}
