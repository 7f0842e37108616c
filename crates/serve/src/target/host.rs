//! A host as one subsystem knows it: what it may do, and what it has under way over all its connections there.

use super::config::HostLimits;
use super::stats::Counts;
use forebay_io::Rate;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One host at one subsystem.
#[derive(Debug)]
pub(crate) struct Host {
    pub nqn: String,
    pub limits: HostLimits,
    pub connections: AtomicU32,
    pub bytes_in_flight: AtomicU64,
    /// Rates of bytes and of commands; in ns since the server began.
    rates: [Rate; 2],
    past: Mutex<Counts>,
}

impl Host {
    pub(super) fn new(nqn: &str, limits: HostLimits) -> Host {
        Host {
            nqn: nqn.into(),
            limits,
            connections: AtomicU32::new(0),
            bytes_in_flight: AtomicU64::new(0),
            rates: [Rate::new(limits.rate.map(|s| s.0)), Rate::new(limits.iops)],
            past: Mutex::default(),
        }
    }

    /// Lets a command through, or says in how many ns to ask again. What was let in is given back by `leave`.
    pub(crate) fn enter(&self, bytes: u64, now_ns: u64) -> Result<(), u64> {
        const SOON_NS: u64 = 1_000_000;
        if let Some(most) = self.limits.bytes_in_flight {
            let room = |held: u64| (held == 0 || held + bytes <= most.0).then_some(held + bytes);
            let taken = self.bytes_in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
            taken.map_err(|_| SOON_NS)?;
        }
        let [of_bytes, of_commands] = &self.rates;
        let spent = of_bytes.spend(bytes, now_ns).and_then(|()| {
            // What goes no further has cost nothing.
            of_commands.spend(1, now_ns).inspect_err(|_| of_bytes.give_back(bytes))
        });
        spent.inspect_err(|_| self.leave(bytes))
    }

    /// Counts a command that can't be kept waiting; those that come later wait for it.
    pub(crate) fn charge(&self, bytes: u64, now_ns: u64) {
        if self.limits.bytes_in_flight.is_some() {
            self.bytes_in_flight.fetch_add(bytes, Ordering::Relaxed);
        }
        for (rate, amount) in self.rates.iter().zip([bytes, 1]) {
            rate.reserve(amount, now_ns);
        }
    }

    /// One connection more, where its limit allows that.
    pub(crate) fn joins(&self) -> bool {
        let most = self.limits.connections.unwrap_or(u32::MAX);
        let more = |n: u32| (n < most).then_some(n + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn past(&self) -> MutexGuard<'_, Counts> {
        self.past.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, bytes: u64) {
        if self.limits.bytes_in_flight.is_some() {
            self.bytes_in_flight.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::config::Size;

    // promise: TGT-7
    #[test]
    fn a_rate_is_kept_and_a_pause_gives_a_burst_only() {
        let limits = HostLimits { rate: Some(Size(1_000_000)), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        let (mut now, mut bytes) = (10_000_000_000, 0u64);
        let end = now + 1_000_000_000;
        while now < end {
            match host.enter(10_000, now) {
                Ok(()) => bytes += 10_000,
                Err(wait) => now += wait.max(1),
            }
        }
        assert!((1_000_000..=1_070_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_command_that_one_limit_keeps_back_costs_the_other_nothing() {
        let limits = HostLimits { rate: Some(Size(1_000_000)), iops: Some(10), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        let (mut now, mut commands) = (10_000_000_000, 0);
        let end = now + 2_000_000_000;
        while now < end {
            match host.enter(50_000, now) {
                Ok(()) => commands += 1,
                Err(_) => now += 1_000_000,
            }
        }
        assert!((20..=22).contains(&commands), "{commands}");
    }

    #[test]
    fn one_command_always_fits_and_what_left_makes_room() {
        let limits = HostLimits { bytes_in_flight: Some(Size(4096)), ..HostLimits::default() };
        let host = Host::new("nqn.h", limits);
        assert_eq!(host.enter(8192, 0), Ok(()), "alone, though it is longer");
        assert!(host.enter(512, 0).is_err());
        host.leave(8192);
        assert_eq!(host.enter(4096, 0), Ok(()));
    }
}
