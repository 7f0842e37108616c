//! A worker's connections when it begins.

use super::{Lane, NvmeTcpQueue};
use forebay_io::clock;
use forebay_io::queue::Queue;
use forebay_io::reactor::Reactor;
use forebay_model::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time for which opening waits for the queues of paths that are up, further time for those that were refused, and the
/// interval at which it checks these.
const OPEN_WITHIN: Duration = Duration::from_secs(1);
const TRIED_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

impl NvmeTcpQueue {
    /// Waits a moment for the queues of paths that are up: what isn't there by then comes later.
    ///
    /// # Errors
    /// `Machine`: the controller of a path that is up doesn't take them all.
    pub(super) fn connect(&mut self, reactor: &mut Reactor) -> Result<(), Error> {
        let until = clock::now() + OPEN_WITHIN;
        let mut none = Vec::new();
        loop {
            self.turn(reactor, &mut none);
            let mut missing =
                self.lanes.iter().filter(|l| !l.is_live() && self.views[l.path].live.is_some()).peekable();
            let now = clock::now();
            // Whether a queue that was refused just comes early is known soon.
            let tried = missing.clone().any(|lane| lane.refusal().is_some()) && now < until + TRIED_WITHIN;
            if missing.peek().is_none() || now >= until && !tried {
                return Ok(());
            }
            if let Some(lane) = missing.find(|lane| lane.is_refused()) {
                return Err(self.refused(lane));
            }
            let due = self.next_due().unwrap_or(until);
            reactor.wait(1, due.min(until.max(now + LOOK)), Duration::ZERO);
        }
    }

    /// Fewer queues than asked for.
    fn refused(&self, lane: &Lane) -> Error {
        let (shared, path) = (&self.remote.shared, &self.remote.shared.paths[lane.path]);
        let (up, all) = (path.queues_up.load(Ordering::Relaxed), shared.host.shares.taken());
        let why = lane.refusal().unwrap_or_default();
        let next = match up {
            0 => "a higher limit on connections at the target, and its log".into(),
            _ => format!("queues={up} in the URI, at most {up} ‹workers›, or a higher limit on connections at the target"),
        };
        let found = format!("{}: {up} of {all} I/O queues are connected; {why}", path.address);
        Error::machine(shared.host.name.clone(), found, next)
    }
}
