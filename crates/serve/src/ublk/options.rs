//! Options of a device, and its behaviour without a daemon.

use super::uapi::{feature, IO_BYTES_MAX};
use crate::namespace::volume::NAMESPACE_QUEUE_DEPTH;
use crate::target::config::Size;
use forebay_model::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Hardware queues where the configuration doesn't say.
const QUEUES_MAX: usize = 8;
/// Device numbers are minors of one major (UBLK_MINORS).
const ID_MAX: u32 = (1 << 20) - 1;
/// More than any kernel gives; a device has one queue per processor at most.
const QUEUES_ASKED_MAX: u16 = 4096;
const SPIN_US_MAX: u32 = 1_000_000;
const TIMEOUT_S_MAX: f64 = 86_400.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// N of /dev/ublkbN. None: the lowest that is free.
    pub id: Option<u32>,
    /// Hardware queues. 0: one per processor, at most 8. The kernel gives no more than it has processors.
    pub queues: u16,
    /// Threads that serve them, each with a queue of the source. 0: one per hardware queue.
    pub threads: u16,
    /// Requests that a hardware queue may hold: 1 to 256.
    pub depth: u16,
    /// Longest request, 4k to 32m; longer ones come in pieces.
    pub max_transfer: Size,
    /// Time for which a thread polls before it sleeps, in microseconds.
    pub spin_us: u32,
    pub on_death: OnDeath,
    pub attach: Attach,
    /// A request that the source holds longer than this fails with ETIMEDOUT. 0: none does.
    pub io_timeout_s: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            id: None,
            queues: 0,
            threads: 0,
            depth: 64,
            max_transfer: Size(1 << 20),
            spin_us: 0,
            on_death: OnDeath::Wait,
            attach: Attach::Auto,
            io_timeout_s: 0.0,
        }
    }
}

/// Outcome of requests while no daemon serves the device. Linux has one answer for reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeath {
    /// All wait for the next daemon. It is given again what the last one had: a write may be carried out twice.
    #[default]
    Wait,
    /// Requests of the daemon fail with EIO; all others wait.
    WaitError,
    /// All fail with EIO until a daemon is back. Linux 6.13.
    Fail,
    /// The device goes with its daemon.
    Remove,
}

impl OnDeath {
    /// UBLK_F_USER_RECOVERY and its kin.
    pub fn flags(self) -> u64 {
        match self {
            OnDeath::Wait => feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE,
            OnDeath::WaitError => feature::USER_RECOVERY,
            OnDeath::Fail => feature::USER_RECOVERY | feature::USER_RECOVERY_FAIL_IO,
            OnDeath::Remove => 0,
        }
    }

    /// Returns the behaviour that a device was made with.
    pub fn from_flags(flags: u64) -> OnDeath {
        let has = |flag| flags & flag != 0;
        match (has(feature::USER_RECOVERY), has(feature::USER_RECOVERY_REISSUE)) {
            (false, _) => OnDeath::Remove,
            (true, true) => OnDeath::Wait,
            (true, false) if has(feature::USER_RECOVERY_FAIL_IO) => OnDeath::Fail,
            (true, false) => OnDeath::WaitError,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            OnDeath::Wait => "wait",
            OnDeath::WaitError => "wait_error",
            OnDeath::Fail => "fail",
            OnDeath::Remove => "remove",
        }
    }
}

/// Policy where /dev/ublkcN exists already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// Takes it over if it waits for a daemon; makes it if it isn't there.
    #[default]
    Auto,
    /// It must not be there.
    New,
    /// It must be there, and wait for a daemon.
    Recover,
}

impl Options {
    /// # Errors
    /// A field that is out of its bounds, by name.
    pub fn check(&self) -> Result<(), Error> {
        let bounds = |field: &str, holds: bool, found: String, next: &str| match holds {
            true => Ok(()),
            false => Err(Error::request(format!("{field} of a ublk device"), found, next)),
        };
        let id = self.id.unwrap_or(0);
        bounds("id", id <= ID_MAX, format!("is {id}, and the last is {ID_MAX}"), "id = 0")?;
        let recovers = self.attach != Attach::Recover || self.id.is_some();
        bounds("attach", recovers, "\"recover\" needs the device's id".into(), "id = 0")?;
        let Size(most) = self.max_transfer;
        let fits = (4096..=u64::from(IO_BYTES_MAX)).contains(&most) && most % 4096 == 0;
        bounds("max_transfer", fits, format!("is {most}"), "a multiple of 4k from 4k to 32m: 1m")?;
        let depth = u32::from(self.depth);
        let fits = (1..=NAMESPACE_QUEUE_DEPTH).contains(&depth);
        bounds("depth", fits, format!("is {depth}"), &format!("1 to {NAMESPACE_QUEUE_DEPTH}: depth = 64"))?;
        let queues = self.queues.max(self.threads);
        let fits = queues <= QUEUES_ASKED_MAX;
        bounds("queues", fits, format!("are {queues}"), "queues = 0: one per processor, at most 8")?;
        let spin = self.spin_us;
        bounds("spin_us", spin <= SPIN_US_MAX, format!("is {spin}"), "at most 1000000: spin_us = 50")?;
        let patience = self.io_timeout_s;
        let fits = (0.0..=TIMEOUT_S_MAX).contains(&patience);
        bounds("io_timeout_s", fits, format!("is {patience}"), "0, or seconds up to a day: 30")
    }

    /// Hardware queues to ask for.
    pub(crate) fn queues_asked(&self) -> u16 {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        match self.queues {
            0 => processors.clamp(1, QUEUES_MAX) as u16,
            n => n,
        }
    }

    /// Threads, each of which opens a queue of the source, at most.
    pub fn workers(&self) -> u32 {
        match self.threads {
            0 => self.queues_asked().into(),
            n => self.queues_asked().min(n).into(),
        }
    }

    pub fn io_timeout(&self) -> Option<Duration> {
        (self.io_timeout_s > 0.0).then(|| Duration::from_secs_f64(self.io_timeout_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_is_refused_by_name() {
        let ok = Options::default();
        ok.check().unwrap();
        for (options, named) in [
            (Options { id: Some(1 << 20), ..ok.clone() }, "id"),
            (Options { attach: Attach::Recover, ..ok.clone() }, "attach"),
            (Options { max_transfer: Size(5000), ..ok.clone() }, "max_transfer"),
            (Options { max_transfer: Size(64 << 20), ..ok.clone() }, "max_transfer"),
            (Options { depth: 0, ..ok.clone() }, "depth"),
            (Options { depth: 257, ..ok.clone() }, "depth"),
            (Options { queues: u16::MAX, ..ok.clone() }, "queues"),
            (Options { spin_us: u32::MAX, ..ok.clone() }, "spin_us"),
            (Options { io_timeout_s: f64::NAN, ..ok.clone() }, "io_timeout_s"),
            (Options { io_timeout_s: -1.0, ..ok.clone() }, "io_timeout_s"),
        ] {
            let error = options.check().unwrap_err();
            assert!(error.asked.starts_with(named), "{error}");
            assert_eq!(error.kind.exit_code(), 2);
        }
    }

    #[test]
    fn what_death_brings_is_read_back_from_a_device() {
        for on_death in [OnDeath::Wait, OnDeath::WaitError, OnDeath::Fail, OnDeath::Remove] {
            assert_eq!(OnDeath::from_flags(on_death.flags() | feature::CMD_IOCTL_ENCODE), on_death);
        }
    }

    #[test]
    fn a_thread_serves_a_queue_unless_told_otherwise() {
        let options = Options { queues: 6, ..Options::default() };
        assert_eq!(options.workers(), 6);
        assert_eq!(Options { threads: 2, ..options.clone() }.workers(), 2);
        assert_eq!(Options { threads: 9, ..options }.workers(), 6);
    }

    #[test]
    fn options_are_read_as_they_are_written() {
        let text =
            "id = 3\nqueues = 4\nmax_transfer = \"512k\"\non_death = \"wait_error\"\nattach = \"new\"\n";
        let options: Options = toml::from_str(text).unwrap();
        assert_eq!((options.id, options.queues, options.max_transfer), (Some(3), 4, Size(512 << 10)));
        assert_eq!((options.on_death, options.attach), (OnDeath::WaitError, Attach::New));
        let again: Options = serde_json::from_str(&serde_json::to_string(&options).unwrap()).unwrap();
        assert_eq!(again, options);
        assert!(toml::from_str::<Options>("depths = 3").is_err());
    }
}
