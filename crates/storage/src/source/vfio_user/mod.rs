//! `vfio-user:` — an emulated NVMe drive, by a driver of our own: no VM, no
//! kernel. The drive is a process behind a Unix socket; queues, shadow doorbells
//! and payload lie in memory that both share, so a busy drive needs no message.
//!
//! A thread cares for the drive: it connects, brings the controller up, maps
//! memory into it, and connects again when it went away. Each worker's queue
//! has its share of the I/O queues. Payload goes directly to and from slots
//! that are mapped into the device (`Arena::shared`); other memory is staged,
//! which the record counts. What a lost device left unfinished is read again; a
//! write in that place fails, and says why.

mod care;
mod client;
mod function;
mod maps;
mod options;
mod probe;
mod queue;
mod queue_pair;
mod shm;
mod stage;
mod uring;
mod wire;

pub use options::Options;
pub(crate) use queue::VfioUserQueue;

use super::controller::{ControllerReport, Inquiry};
use super::nvme::query::{instead, Keys};
use super::nvme::{
    await_end, examine, lock, open, Cause, Connection, Host, Namespace, PathReport, SourceReport, Standing,
};
use super::plan::{Examiner, Open, Source, SourcePlan, Uri};
use super::uri::{decode, query_once, Text};
use super::{MadeOf, MemoryRegistration, OpenSource, QueueNeeds};
use care::DriveState;
use forebay_io::{monotonic_now, Arena, Check, CheckArea, CheckState, Queue, Reactor, Roots};
use forebay_model::record::FabricRan;
use forebay_model::Error;
use forebay_nvme::host::ControllerInfo;
use maps::Table;
use queue_pair::PairParts;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;
use serde_json::json;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest path of a Unix socket's address.
const SOCKET_BYTES_MAX: usize = 107;
/// Longest time for mapping memory into the device, or out of it.
const MAP_WITHIN: Duration = Duration::from_secs(10);

/// A controller that is up.
#[derive(Debug)]
struct Live {
    /// Counts the connections: queues belong to one.
    number: u64,
    controller: ControllerInfo,
    /// I/O queues that it granted.
    queues: u16,
    /// It takes SGLs.
    sgl: bool,
    /// Queues that no worker has taken yet.
    pairs: Mutex<BTreeMap<u16, PairParts>>,
}

struct Inner {
    state: DriveState,
    /// A worker saw the connection of this number fail.
    trouble: Option<(u64, String)>,
    /// Commands to abort: connection, queue, identifier.
    aborts: Vec<(u64, u16, u16)>,
    stop: bool,
    /// Cause of the last end of a connection.
    cause: Cause,
}

/// State that the thread, the workers' queues and the record share.
struct Shared {
    options: Options,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Goes up with each change of the state.
    generation: AtomicU64,
    /// Ends the thread's wait.
    wake: OwnedFd,
    maps: Table,
    host: Host,
    /// Connections that came up.
    connects: AtomicU32,
}

/// An emulated drive's namespace, connected to. It stays so until the last handle is dropped.
pub struct Drive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.options)
    }
}

impl Deref for Drive {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.shared.host
    }
}

const KEYS: Keys = &[
    ("nsid", "1"),
    ("queues", "8"),
    ("depth", "64"),
    ("spin_us", "50"),
    ("io_timeout", "30"),
    ("reconnect_delay", "2"),
    ("ctrl_loss_tmo", "600"),
    ("fast_io_fail_tmo", "20"),
    ("replay_writes", "1"),
    ("content", "NAME"),
];

pub(crate) fn parse(text: Text) -> Result<Uri, Error> {
    let wrong = |found: &str| text.wrong(found, "vfio-user:/run/forebay.sock?nsid=1&queues=8");
    let (socket, tail) = text.rest.split_once('?').unwrap_or((text.rest, ""));
    let socket = decode(socket.strip_prefix("//").unwrap_or(socket));
    if socket.is_empty() {
        return Err(wrong("names no socket"));
    }
    if socket.len() > SOCKET_BYTES_MAX {
        return Err(wrong("names a socket by more than 107 bytes"));
    }
    let mut options = Options::new(socket.into());
    for (key, value) in query_once(tail, "").map_err(|why| wrong(&why))? {
        options.set(&key, &value).map_err(|why| {
            text.wrong(&why, &instead(text.whole, &key, KEYS, "vfio-user:/run/forebay.sock?nsid=1&queues=8"))
        })?;
    }
    Ok(options.into())
}

impl Source for Options {
    fn scheme(&self) -> &'static str {
        "vfio-user"
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Elsewhere
    }

    fn is_same(&self, other: &dyn Source) -> bool {
        (other as &dyn Any).downcast_ref().is_some_and(|other| Options::is_same(self, other))
    }

    fn reported(&self) -> Option<serde_json::Value> {
        Some(json!({"kind": "vfio_user", "socket": self.socket}))
    }

    fn checks(&self, _: &Roots) -> Vec<Check> {
        vec![about_socket(&self.socket)]
    }

    fn identify(&self, inquiry: &Inquiry, one: bool) -> Option<Result<ControllerReport, Error>> {
        Some(probe::identify(self, inquiry, one))
    }

    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        examine(self, examiner, wanted, |options, workers| {
            Drive::open_for(options, workers.now, workers.most)
        })
    }

    fn open(&self, plan: &SourcePlan, _: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        Ok(open(plan))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        json!({"kind": "vfio_user", "uri": plan.label, "bytes": plan.bytes})
    }
}

impl Connection for Drive {
    fn host(&self) -> &Host {
        &self.shared.host
    }

    fn report(&self) -> FabricRan {
        Drive::report(self)
    }

    fn now(&self) -> SourceReport {
        SourceReport::new(self.report(), vec![self.path()])
    }

    /// One client at a time.
    fn is_shared(&self) -> bool {
        false
    }

    fn maps_slots(&self) -> bool {
        true
    }
}

impl Namespace for Drive {
    fn scheme(&self) -> &'static str {
        "vfio-user"
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Elsewhere
    }

    fn engine(&self) -> &'static str {
        "vfio-user"
    }

    fn content_name(&self) -> String {
        self.options().content.clone().unwrap_or_else(|| self.name.clone())
    }

    fn queue(self: &Arc<Drive>, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        Drive::queue(self, needs, reactor)
    }

    fn lend(self: &Arc<Drive>, arena: &Arena) -> Result<Option<MemoryRegistration>, Error> {
        Ok(Drive::lend(self, arena)?.map(MemoryRegistration::keeping))
    }
}

/// Memory stays mapped into the device as long as this lives; drop it before the memory.
pub struct Mapping {
    drive: Arc<Drive>,
    id: u64,
}

impl Drive {
    /// Connects to the drive. `workers`: queues that will be opened at once, at most.
    ///
    /// # Errors
    /// Nobody answers at the socket, what does is no NVMe controller, or it has no such namespace, or too few queues.
    pub fn open(options: &Options, workers: u32) -> Result<Arc<Drive>, Error> {
        Drive::open_for(options, workers, workers)
    }

    /// As `open`, for a number of workers that isn't known yet: as many queues as the controller grants up to
    /// `workers_most`, and one for each of `workers` at least.
    pub(crate) fn open_for(options: &Options, workers: u32, workers_most: u32) -> Result<Arc<Drive>, Error> {
        let host = Host::new(options, options.queues, workers, workers_most)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags)
            .map_err(|e| Error::machine(host.name.clone(), e.to_string(), "ulimit -n; ulimit -u"))?;
        let state = DriveState::Connecting { why: None, clean: true };
        let shared = Arc::new(Shared {
            options: options.clone(),
            inner: Mutex::new(Inner {
                state,
                trouble: None,
                aborts: Vec::new(),
                stop: false,
                cause: Cause::Other,
            }),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            wake,
            maps: Table::default(),
            host,
            connects: AtomicU32::new(0),
        });
        let cared = shared.clone();
        let thread = shared.host.spawn("vfio-admin", move || care::care(&cared))?;
        let drive = Drive { shared, thread: Some(thread) };
        let granted = drive.shared.first()?;
        drive.shares.keep(granted);
        Ok(Arc::new(drive))
    }

    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Maps a worker's slots into the device, so that nothing need be staged. None: they can't be (`Arena::new`).
    ///
    /// # Errors
    /// The device refuses it, or doesn't answer.
    pub fn lend(self: &Arc<Drive>, arena: &Arena) -> Result<Option<Mapping>, Error> {
        let Some(mapping) = self.lend_soon(arena) else { return Ok(None) };
        let (shared, until) = (&self.shared, monotonic_now() + MAP_WITHIN);
        let settled = || match shared.maps.get(mapping.id) {
            // A device that isn't there gets it when it comes.
            Some(entry) => entry.mapped_on.is_some() || entry.refused.is_some() || !shared.is_live(),
            None => true,
        };
        let (_, bytes) = arena.whole();
        let asked = || format!("map {bytes} bytes of buffers into {}", shared.options);
        if !shared.wait_until(settled, until) {
            return Err(Error::machine(asked(), "the device doesn't respond", "the gateway's log"));
        }
        match mapping.refusal() {
            Some(why) => Err(Error::machine(asked(), why, "the gateway's log; fewer ‹workers›")),
            None => Ok(Some(mapping)),
        }
    }

    /// As `lend`, without waiting: workers' queues are woken when the device has it.
    fn lend_soon(self: &Arc<Drive>, arena: &Arena) -> Option<Mapping> {
        let id = self.shared.maps.add(arena)?;
        self.shared.wake();
        Some(Mapping { drive: self.clone(), id })
    }

    /// Opens a worker's share of the I/O queues, on the worker's thread.
    pub fn queue(
        self: &Arc<Drive>,
        needs: QueueNeeds,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(VfioUserQueue::open(self.clone(), needs, reactor)?))
    }

    /// Its only path, the socket.
    fn path(&self) -> PathReport {
        let (shared, state) = (&self.shared, self.shared.state());
        PathReport {
            address: shared.options.socket.display().to_string(),
            state: state.name(),
            why: state.why().map(Into::into),
            ana: None,
            reconnects: shared.connects.load(Ordering::Relaxed).saturating_sub(1),
            queues: shared.host.connected(0),
            refused: 0,
        }
    }

    /// All of it, for a record.
    pub fn report(&self) -> FabricRan {
        self.report_on(vec![self.path().ended()])
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        lock(&self.shared.inner).stop = true;
        self.shared.changed.notify_all();
        self.shared.wake();
        await_end(self.thread.take());
    }
}

impl Mapping {
    fn refusal(&self) -> Option<String> {
        self.drive.shared.maps.get(self.id).and_then(|entry| entry.refused)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let shared = &self.drive.shared;
        shared.maps.end(self.id);
        shared.wake();
        let settled = || shared.maps.get(self.id).is_none() || !shared.is_live();
        shared.wait_until(settled, monotonic_now() + MAP_WITHIN);
        if !shared.is_live() {
            shared.maps.remove(self.id);
        }
    }
}

impl Shared {
    fn state(&self) -> DriveState {
        lock(&self.inner).state.clone()
    }

    fn is_live(&self) -> bool {
        matches!(lock(&self.inner).state, DriveState::Live(_))
    }

    fn stops(&self) -> bool {
        lock(&self.inner).stop
    }

    fn change(&self, state: DriveState) {
        lock(&self.inner).state = state;
        self.generation.fetch_add(1, Ordering::Release);
        self.tell();
    }

    /// Wakes those who wait for a change.
    fn tell(&self) {
        // Taken, so that nobody looks and then sleeps meanwhile.
        drop(lock(&self.inner));
        self.changed.notify_all();
        self.host.wakers.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits for `what`, which is called without a lock held; false: not in time.
    fn wait_until(&self, what: impl Fn() -> bool, until: Instant) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        loop {
            if what() {
                return true;
            }
            let left = until.saturating_duration_since(monotonic_now()).min(POLL_INTERVAL);
            if left.is_zero() {
                return false;
            }
            drop(self.changed.wait_timeout(lock(&self.inner), left));
        }
    }

    /// Waits unless the thread is to stop.
    fn pause(&self, how_long: Duration) {
        self.wait_until(|| self.stops(), monotonic_now() + how_long);
    }

    /// From a worker: connection `number` doesn't work any more. The drive is connected to anew.
    fn trouble(&self, number: u64, why: &str) {
        let mut inner = lock(&self.inner);
        if matches!(&inner.state, DriveState::Live(live) if live.number == number) && inner.trouble.is_none()
        {
            inner.trouble = Some((number, why.into()));
            drop(inner);
            self.wake();
        }
    }

    fn take_trouble(&self, number: u64) -> Option<String> {
        let (of, why) = lock(&self.inner).trouble.take()?;
        (of == number).then_some(why)
    }

    fn abort(&self, number: u64, qid: u16, cid: u16) {
        lock(&self.inner).aborts.push((number, qid, cid));
        self.wake();
    }

    fn take_aborts(&self, number: u64) -> Vec<(u16, u16)> {
        let all = std::mem::take(&mut lock(&self.inner).aborts);
        all.into_iter().filter(|(of, ..)| *of == number).map(|(_, qid, cid)| (qid, cid)).collect()
    }

    /// Waits until the drive is up, and says how many queues it grants.
    fn first(&self) -> Result<u16, Error> {
        let standing = || {
            let inner = lock(&self.inner);
            inner.state.standing(inner.cause)
        };
        let tried = || !matches!(standing(), Standing::Trying);
        let wait = |until| _ = self.wait_until(tried, until);
        self.host.first(|| vec![(String::new(), standing())], wait, |cause| next(&self.options, cause))
    }
}

/// Returns the command to type where a drive doesn't come up.
fn next(options: &Options, cause: Cause) -> String {
    let socket = options.socket.display();
    match cause {
        Cause::Refused | Cause::Unlisted | Cause::Namespace => {
            format!("forebay identify vfio-user:{socket} for its namespaces")
        }
        Cause::Few(granted) => {
            format!("queues={granted} in the URI, at most {granted} ‹workers›, or a drive with more queues")
        }
        Cause::Taken => "forebay snap rpc nvme_controller_list: one client has a drive at a time, and another drive is free".into(),
        Cause::Other | Cause::Unproven => format!("ls -l {socket}, and look at the gateway's log"),
    }
}

/// Checks that a process listens there.
fn about_socket(socket: &std::path::Path) -> Check {
    let check = |state, found: String| {
        Check::new(
            CheckArea::Source,
            format!("source.vfio_user {}", socket.display()),
            "vfio-user socket",
            state,
            found,
        )
    };
    let shown = socket.display();
    match std::fs::metadata(socket) {
        Ok(stat) if stat.file_type().is_socket() => check(CheckState::Works, format!("{shown} is a socket")),
        Ok(_) => check(CheckState::Missing, format!("{shown} isn't a socket"))
            .why("an emulated drive listens on a UNIX socket")
            .next(format!("ls -l {shown}")),
        Err(error) => check(CheckState::Missing, format!("{shown}: {error}"))
            .why("the program that emulates the drive isn't running, or listens elsewhere")
            .next("start it first; then name the socket that it makes"),
    }
}
