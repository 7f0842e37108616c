//! The keep-alive timer (base, section 3.9).

use super::subsystem::{Limits, Subsystem};

/// A discovery controller without a keep-alive timer may end an association on which nothing comes for two minutes
/// (base, section 3.1.2.3).
const DISCOVERY_IDLE_MS: u64 = 120_000;

#[derive(Debug)]
pub(super) struct KeepAlive {
    /// As granted; 0: off.
    timeout_ms: u32,
    /// `timeout_ms` in whole units of KAS, or what else ends an association. None: nothing does.
    patience_ms: Option<u64>,
    idle_ms: Option<u64>,
    since_ms: u64,
}

impl KeepAlive {
    pub(super) fn new(subsystem: &Subsystem, asked_ms: u32, now_ms: u64) -> KeepAlive {
        let idle_ms = subsystem.is_discovery().then_some(DISCOVERY_IDLE_MS);
        let mut timer = KeepAlive { timeout_ms: 0, patience_ms: None, idle_ms, since_ms: now_ms };
        timer.set(&subsystem.limits, asked_ms, now_ms);
        timer
    }

    /// A function's: its host is there as long as it has power.
    pub(super) fn off() -> KeepAlive {
        KeepAlive { timeout_ms: 0, patience_ms: None, idle_ms: None, since_ms: 0 }
    }

    pub(super) fn set(&mut self, limits: &Limits, asked_ms: u32, now_ms: u64) {
        let unit = u64::from(limits.keep_alive_units()) * 100;
        self.timeout_ms = limits.keep_alive(asked_ms);
        self.patience_ms = match self.timeout_ms {
            0 => self.idle_ms,
            ms => Some(u64::from(ms).div_ceil(unit) * unit),
        };
        self.restart(now_ms);
    }

    pub(super) fn asked_ms(&self) -> u32 {
        self.timeout_ms
    }

    pub(super) fn restart(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.patience_ms.map(|patience| self.since_ms.saturating_add(patience))
    }
}
