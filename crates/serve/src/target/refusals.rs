//! Connects that aren't let in: the limits that a host meets, and how often the log says so. A host that is refused tries
//! again for ever.

use super::host::Host;
use super::log::{Level, Log};
use forebay_nvme::controller::Controller;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The same is said again of the same host after this.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Hosts and reasons that are told apart: whoever connects chooses the name.
const REASONS_MAX: usize = 1024;

pub(super) const NO_IDS: &str = "all controller identifiers are in use (cntlid_min, cntlid_max)";

pub(super) fn of_host(host: &Host) -> String {
    let most = host.limits.connections.unwrap_or(u32::MAX);
    format!("the host has all its {most} connections (limits.connections)")
}

/// Grants a controller that has no I/O queues yet as many as its host may still connect.
pub(super) fn limit_queues(controller: &mut Controller, host: &Host) {
    if let Some(most) = host.limits.connections {
        let left = most.saturating_sub(host.connections.load(Ordering::Relaxed));
        controller.limit_queues(left.try_into().unwrap_or(u16::MAX));
    }
}

/// A Connect that wasn't let in, as the log names it.
pub(super) struct Refused<'a> {
    pub peer: SocketAddr,
    /// Empty where it didn't get as far as naming itself.
    pub host: &'a str,
    pub why: &'a str,
}

/// Recent refusals, and how often each has happened since.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<(String, String), (Instant, u64)>>);

impl Refusals {
    /// Says it, unless that was done lately.
    pub(super) fn say(&self, log: &Log, refused: &Refused<'_>, now: Instant) {
        let Refused { peer, host, why } = *refused;
        let address = peer.ip().to_string();
        let whose = if host.is_empty() { &address } else { host };
        let Some(times) = self.due(whose, why, now) else { return };
        let mut fields = vec![("peer", peer.to_string().into())];
        if !host.is_empty() {
            fields.push(("host", host.into()));
        }
        fields.push(("why", why.into()));
        if times > 0 {
            fields.push(("not_logged", times.into()));
        }
        log.say(Level::Warning, "refused", &fields);
    }

    /// None: it was said lately. Else how often it has happened since it was last said.
    fn due(&self, host: &str, why: &str, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SAID_EVERY;
        let mut key = (host.to_owned(), why.to_owned());
        if said.len() >= REASONS_MAX && !said.contains_key(&key) {
            said.retain(|_, (at, _)| is_recent(*at));
            if said.len() >= REASONS_MAX {
                key = Default::default();
            }
        }
        match said.get_mut(&key) {
            Some((at, times)) if is_recent(*at) => {
                *times += 1;
                None
            }
            last => {
                let times = last.map_or(0, |(_, times)| *times);
                said.insert(key, (now, 0));
                Some(times)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::monotonic_now;

    // promise: TGT-7
    #[test]
    fn a_refusal_is_said_once_a_minute_for_each_host_and_reason_with_how_many_were_not() {
        let refusals = Refusals::default();
        let began = monotonic_now();
        let due = |host, why, after_s| refusals.due(host, why, began + Duration::from_secs(after_s));
        assert_eq!(due("a", "full", 0), Some(0));
        assert_eq!([due("a", "full", 1), due("a", "full", 59)], [None, None]);
        assert_eq!([due("b", "full", 1), due("a", "unknown", 1)], [Some(0), Some(0)]);
        assert_eq!(due("a", "full", 60), Some(2));
        assert_eq!([due("a", "full", 61), due("a", "full", 120)], [None, Some(1)]);
    }

    // promise: TGT-7
    #[test]
    fn names_that_nobody_has_twice_neither_fill_memory_nor_the_log() {
        let refusals = Refusals::default();
        let now = monotonic_now();
        let said = (0..10 * REASONS_MAX).filter(|n| refusals.due(&n.to_string(), "x", now).is_some()).count();
        assert_eq!(said, REASONS_MAX + 1);
        let kept = || refusals.0.lock().unwrap().len();
        assert_eq!(kept(), REASONS_MAX + 1);
        assert_eq!(refusals.due("one more", "x", now + SAID_EVERY), Some(0));
        assert_eq!(kept(), 1);
    }
}
