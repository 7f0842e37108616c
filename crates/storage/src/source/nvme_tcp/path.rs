//! One path to a namespace: an address, the controller there, and the thread
//! that connects to it, cares for it, and connects again.

use super::association::{self, Association, Ended, Peer, COMMAND_WITHIN};
use super::options::{Address, CONNECT_WITHIN};
use super::Shared;
use crate::source::nvme::{lock, Attempts, Cause, Episode, Standing};
use forebay_io::{monotonic_now, Waker};
use forebay_nvme::host::{ControllerInfo, Event, NamespaceInfo, Options, Request, Session};
use forebay_nvme::log::AnaState;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Interval at which the thread looks around though nothing happens.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for shutting a controller down before its connection is just closed.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(1);
const SHUT_DOWN_POLL: Duration = Duration::from_millis(20);

/// A controller that is up.
#[derive(Debug)]
pub(super) struct Live {
    /// Counts the associations of a path: queues belong to one.
    pub number: u64,
    /// Address at which it was reached.
    pub to: SocketAddr,
    pub controller: ControllerInfo,
    /// None: it went away.
    pub namespace: Option<NamespaceInfo>,
    /// The Connect of each I/O queue, from the first.
    pub connects: Vec<Request>,
}

impl Live {
    pub(crate) fn ana(&self) -> Option<AnaState> {
        self.namespace.as_ref().map(|n| if n.ana_group == 0 { AnaState::Optimized } else { n.ana_state })
    }
}

#[derive(Clone, Debug)]
pub(super) enum PathState {
    /// Why the last attempt failed, where there was one.
    Connecting(Option<String>),
    Live(Arc<Live>),
    /// Given up.
    Lost(String),
}

impl PathState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            PathState::Connecting(_) => "connecting",
            PathState::Live(_) => "live",
            PathState::Lost(_) => "lost",
        }
    }
}

struct Inner {
    state: PathState,
    /// Cause of the last end of an association.
    cause: Cause,
    /// A worker saw the association of this number fail.
    trouble: Option<(u64, String)>,
    /// Commands to abort: association, queue, identifier.
    aborts: Vec<(u64, u16, u16)>,
    waker: Option<Arc<Waker>>,
    stop: bool,
}

pub(super) struct Path {
    pub address: Address,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Goes up with each change of the state.
    generation: AtomicU64,
    pub attempts: AtomicU32,
    /// Associations that came up.
    pub connects: AtomicU32,
    /// I/O queues that take commands.
    pub queues_up: Arc<AtomicU32>,
    /// Connections of I/O queues that came to nothing, once it was clear that they weren't just early.
    pub refused: AtomicU32,
}

impl Path {
    pub(crate) fn new(address: Address) -> Path {
        let state = PathState::Connecting(None);
        let inner =
            Inner { state, cause: Cause::Other, trouble: None, aborts: Vec::new(), waker: None, stop: false };
        Path {
            address,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            attempts: AtomicU32::new(0),
            connects: AtomicU32::new(0),
            queues_up: Arc::default(),
            refused: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> PathState {
        self.lock().state.clone()
    }

    pub(crate) fn standing(&self) -> Standing {
        let inner = self.lock();
        match &inner.state {
            PathState::Live(live) => Standing::Up(live.connects.len() as u16),
            PathState::Connecting(Some(why)) | PathState::Lost(why) => {
                Standing::Failed(why.clone(), inner.cause)
            }
            PathState::Connecting(None) => Standing::Trying,
        }
    }

    /// From a worker: association `number` doesn't work any more. The path is connected anew.
    pub(crate) fn trouble(&self, number: u64, why: &str) {
        let mut inner = self.lock();
        if matches!(&inner.state, PathState::Live(live) if live.number == number) && inner.trouble.is_none() {
            inner.trouble = Some((number, why.into()));
            inner.waker.iter().for_each(|w| w.wake());
        }
    }

    /// From a worker: association `number` is asked to give up on command `cid` of I/O queue `qid`.
    pub(crate) fn abort(&self, number: u64, qid: u16, cid: u16) {
        let mut inner = self.lock();
        inner.aborts.push((number, qid, cid));
        inner.waker.iter().for_each(|w| w.wake());
    }

    pub(crate) fn stop(&self) {
        let mut inner = self.lock();
        inner.stop = true;
        inner.waker.iter().for_each(|w| w.wake());
        self.changed.notify_all();
    }

    fn stops(&self) -> bool {
        self.lock().stop
    }

    fn change(&self, shared: &Shared, state: PathState) {
        self.lock().state = state;
        self.generation.fetch_add(1, Ordering::Release);
        shared.changed();
    }

    /// Waits unless it is to stop.
    fn pause(&self, how_long: Duration) {
        let until = monotonic_now() + how_long;
        let mut inner = self.lock();
        while !inner.stop {
            let left = until.saturating_duration_since(monotonic_now());
            if left.is_zero() {
                return;
            }
            inner = match self.changed.wait_timeout(inner, left) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// The life of a path's thread.
pub(super) fn care(shared: &Shared, index: usize) {
    let path = &shared.paths[index];
    let mut attempts = Attempts::new(monotonic_now());
    loop {
        let (ended, episode) = associate(shared, path, index);
        if path.stops() {
            return;
        }
        let (now, longest) = (monotonic_now(), shared.options.reconnect_delay);
        attempts.ended(episode, longest, now);
        shared.host.notes.note(format!("{}: {}", path.address, ended.why));
        path.lock().cause = ended.cause;
        let too_late = attempts.too_late(shared.options.ctrl_loss, now);
        // Somebody who opens it wants to know at once.
        if ended.for_good || too_late {
            let late = if too_late { "; ctrl_loss_tmo has passed" } else { "" };
            path.change(shared, PathState::Lost(format!("{}{late}", ended.why)));
            return;
        }
        path.change(shared, PathState::Connecting(Some(ended.why)));
        path.pause(attempts.wait(longest));
    }
}

/// One association from its first packet to its end, and from when it was up.
fn associate(shared: &Shared, path: &Path, index: usize) -> (Ended, Option<Episode>) {
    let ended = match Up::open(shared, path, index) {
        Ok(mut up) => {
            let ended = up.run();
            up.check_progress();
            path.lock().waker = None;
            // Queues close theirs before the controller's memory of them goes.
            if matches!(path.state(), PathState::Live(_)) {
                path.change(shared, PathState::Connecting(Some(ended.why.clone())));
            }
            up.association.close();
            (ended, up.episode)
        }
        Err(ended) => (ended, None),
    };
    path.attempts.fetch_add(1, Ordering::Relaxed);
    ended
}

struct Up<'a> {
    shared: &'a Shared,
    path: &'a Path,
    index: usize,
    association: Association<Session>,
    number: u64,
    episode: Option<Episode>,
}

impl<'a> Up<'a> {
    fn open(shared: &'a Shared, path: &'a Path, index: usize) -> Result<Up<'a>, Ended> {
        let for_good =
            |e: forebay_model::Error| Ended { cause: Cause::Other, why: e.to_string(), for_good: true };
        let options = Options {
            host_nqn: shared.host_nqn.clone(),
            host_id: shared.host_id,
            subsystem_nqn: shared.options.nqn.clone(),
            queues: shared.host.shares.queues,
            queue_entries: shared.options.depth.saturating_add(1),
            keep_alive_ms: shared.options.keep_alive.as_millis().min(u128::from(u32::MAX)) as u32,
            timeout_ms: COMMAND_WITHIN.as_millis() as u64,
            namespace: Some(shared.options.nsid),
        };
        let (header, data) = (shared.options.header_digest, shared.options.data_digest);
        let mut reactor = association::reactor().map_err(for_good)?;
        path.lock().waker = Some(reactor.waker().map_err(for_good)?);
        let session = |now| Session::new(options, now);
        let stops = || path.stops();
        let peer = Peer { address: &path.address, way: shared.way(0), within: CONNECT_WITHIN, stops: &stops };
        let association =
            Association::open(&peer, header, data, shared.credentials.clone(), reactor, session)?;
        let number = u64::from(path.connects.load(Ordering::Relaxed)) + 1;
        Ok(Up { shared, path, index, association, number, episode: None })
    }

    /// Checks that commands complete.
    fn check_progress(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.note(self.shared.host.notes.commands(self.index), monotonic_now());
        }
    }

    /// Until it ends, or is to.
    fn run(&mut self) -> Ended {
        loop {
            self.check_progress();
            let event = match self.association.step(monotonic_now() + POLL_INTERVAL) {
                Ok(event) => event,
                Err(ended) => return ended,
            };
            if let Some(event) = event {
                if let Err(ended) = self.act(&event) {
                    return ended;
                }
            }
            let mut inner = self.path.lock();
            if inner.stop {
                drop(inner);
                return self.shut_down();
            }
            if let Some((_, why)) = inner.trouble.take().filter(|(number, _)| *number == self.number) {
                return Ended { cause: Cause::Other, why, for_good: false };
            }
            let aborts = std::mem::take(&mut inner.aborts);
            drop(inner);
            for (_, qid, cid) in aborts.into_iter().filter(|(number, ..)| *number == self.number) {
                self.association.session.abort(qid, cid);
            }
        }
    }

    fn act(&mut self, event: &Event) -> Result<(), Ended> {
        match event {
            Event::Ready => {
                let live = self.live()?;
                let nsid = self.shared.options.nsid;
                self.shared.host.identity.check(nsid, live.namespace.as_ref(), &live.controller)?;
                self.path.connects.fetch_add(1, Ordering::Relaxed);
                let before = self.shared.host.notes.commands(self.index);
                self.episode = Some(Episode::new(before, monotonic_now()));
                let what = if self.number > 1 { "connected again" } else { "connected" };
                self.shared
                    .host
                    .notes
                    .note(format!("{}: {what}, controller {}", self.path.address, live.controller.cntlid));
                self.path.change(self.shared, PathState::Live(Arc::new(live)));
            }
            Event::Changed(_) | Event::Gone(_) | Event::Ana => {
                let live = self.live()?;
                if let Some(state) = live.ana() {
                    self.shared.host.notes.note(format!(
                        "{}: the namespace is {}",
                        self.path.address,
                        state.name()
                    ));
                } else {
                    self.shared.host.notes.note(format!("{}: the namespace is gone", self.path.address));
                }
                self.path.change(self.shared, PathState::Live(Arc::new(live)));
            }
            Event::Warning(result) => {
                self.shared
                    .host
                    .notes
                    .note(format!("{}: the controller warns, event {result:#x}", self.path.address));
            }
        }
        Ok(())
    }

    fn live(&self) -> Result<Live, Ended> {
        let session = &self.association.session;
        let controller = session.controller().clone();
        let least = self.shared.host.shares.least;
        // One that grants fewer than the first did still serves those workers whose queues it has.
        if controller.queues < least && self.number == 1 {
            let granted = controller.queues;
            let why = format!("it grants {granted} I/O queues, {least} are needed");
            return Err(Ended { cause: Cause::Few(granted), why, for_good: true });
        }
        Ok(Live {
            number: self.number,
            to: self.association.to,
            namespace: session.namespaces().get(&self.shared.options.nsid).cloned(),
            connects: (1..=self.shared.host.shares.queues.min(controller.queues))
                .map(|qid| session.connect_io(qid))
                .collect::<Result<_, _>>()?,
            controller,
        })
    }

    fn shut_down(&mut self) -> Ended {
        let until = monotonic_now() + SHUT_DOWN_WITHIN;
        let now = self.association.now_ms();
        self.association.session.shut_down(now);
        while !self.association.session.is_shut_down() && monotonic_now() < until {
            if let Err(ended) = self.association.step(monotonic_now() + SHUT_DOWN_POLL) {
                return ended;
            }
        }
        Ended { cause: Cause::Other, why: "closed".into(), for_good: true }
    }
}

/// Waits for a change, at most until then.
pub(super) fn wait_for(changes: &(Mutex<u64>, Condvar), seen: u64, until: Instant) -> u64 {
    let mut now = lock(&changes.0);
    while *now == seen {
        let left = until.saturating_duration_since(monotonic_now());
        if left.is_zero() {
            break;
        }
        now = match changes.1.wait_timeout(now, left) {
            Ok((now, _)) => now,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    *now
}
