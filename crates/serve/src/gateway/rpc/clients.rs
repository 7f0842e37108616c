//! Clients of the RPC socket: so many at once, and none that only waits keeps another out.

use forebay_model::Error;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const CONNECTIONS_MAX: usize = 16;
/// A client that has asked for nothing yet has this long before it counts as idle.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which refusals are logged again.
const COMPLAINT_EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Clients(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    all: BTreeMap<u64, Client>,
    next: u64,
    complained: Option<Instant>,
}

struct Client {
    stream: Arc<UnixStream>,
    /// None: what it asked for is being done.
    idle_since: Option<Instant>,
    has_asked: bool,
}

impl Clients {
    pub(super) const FULL: &str = "at most 16 connections at once";

    /// Its number; and where the one that was idle longest was closed for it, how long that was.
    ///
    /// # Errors
    /// `Run`: there are as many as may be, and all are busy.
    pub(super) fn enter(
        &self,
        stream: &Arc<UnixStream>,
        now: Instant,
    ) -> Result<(u64, Option<Duration>), Error> {
        let mut inside = self.inside();
        let mut closed = None;
        if inside.all.len() >= CONNECTIONS_MAX {
            let idle = inside.all.iter().filter_map(|(id, client)| {
                let idle = now.saturating_duration_since(client.idle_since?);
                (client.has_asked || idle >= GRACE).then_some((idle, *id))
            });
            let (idle, id) = idle.max().ok_or_else(|| {
                let found = format!("the gateway's RPC socket takes {}, and all are busy", Clients::FULL);
                Error::run("an RPC", found, "again, once one has ended; ss -xp shows who is connected")
            })?;
            let gone = inside.all.remove(&id).expect("it was just found");
            let _ = gone.stream.shutdown(Shutdown::Both);
            closed = Some(idle);
        }
        let id = inside.next;
        inside.next += 1;
        let client = Client { stream: stream.clone(), idle_since: Some(now), has_asked: false };
        inside.all.insert(id, client);
        Ok((id, closed))
    }

    pub(super) fn is_busy(&self, id: u64) {
        if let Some(client) = self.inside().all.get_mut(&id) {
            (client.idle_since, client.has_asked) = (None, true);
        }
    }

    pub(super) fn is_idle(&self, id: u64, now: Instant) {
        if let Some(client) = self.inside().all.get_mut(&id) {
            client.idle_since = Some(now);
        }
    }

    pub(super) fn leave(&self, id: u64) {
        self.inside().all.remove(&id);
    }

    /// Returns whether it is time to log once more that a client was turned away.
    pub(super) fn may_complain(&self, now: Instant) -> bool {
        let mut inside = self.inside();
        let due = inside.complained.is_none_or(|last| now.saturating_duration_since(last) >= COMPLAINT_EVERY);
        if due {
            inside.complained = Some(now);
        }
        due
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::monotonic_now;
    use std::io::Read;

    fn stream() -> (Arc<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(ours), theirs)
    }

    // promise: SNP-3
    #[test]
    fn the_one_that_was_idle_longest_makes_room_and_no_busy_or_new_one() {
        let (clients, began) = (Clients::default(), monotonic_now());
        let mut ends = Vec::new();
        let mut enter = |after_ms| {
            let (ours, theirs) = stream();
            ends.push(theirs);
            clients.enter(&ours, began + Duration::from_millis(after_ms))
        };
        for id in 0..16 {
            assert_eq!(enter(0).unwrap(), (id, None));
        }
        let full = enter(999).unwrap_err();
        assert!(full.found.contains("16 connections"), "{full}");
        (0..15).for_each(|id| clients.is_busy(id));
        assert_eq!(enter(1500).unwrap(), (16, Some(Duration::from_millis(1500))));
        assert!(enter(1600).is_err(), "the one that is idle has just come");
        for (id, ms) in [(7, 1000), (3, 1200)] {
            clients.is_idle(id, began + Duration::from_millis(ms));
        }
        assert_eq!(enter(1700).unwrap().1, Some(Duration::from_millis(700)));
        clients.leave(5);
        assert_eq!(enter(1700).unwrap().1, None, "one has gone by itself");
        assert_eq!(ends[15].read(&mut [0]).unwrap(), 0, "it was closed");
        assert_eq!(ends[8 - 1].read(&mut [0]).unwrap(), 0);
    }
}
