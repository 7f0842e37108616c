//! State that a controller's thread and the workers share.

use super::dma::{Map, Table};
use super::shm::Doorbells;
use super::vfio_user::interrupts::Vectors;
use crate::namespace::qos::Limiter;
use crate::namespace::volume::Volume;
use crate::target::inbox::Inbox;
use forebay_nvme::controller::Mishap;
use forebay_nvme::transport::pcie::memory::{HostMemory, Unmapped};
use forebay_nvme::transport::pcie::queue::QueueFault;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A polled controller that was idle for this long is polled less often: once in `POLL_EVERY`, which adds at most that
/// to the latency of its next command, and saves most of a core.
pub(super) const POLL_AWAKE: Duration = Duration::from_secs(1);
pub(super) const POLL_EVERY: Duration = Duration::from_micros(100);

/// A namespace as a controller shows it.
#[derive(Clone)]
pub(super) struct Shown {
    pub volume: Arc<Volume>,
    /// Limiter of all controllers together.
    pub limiter: Arc<Limiter>,
}

/// The namespaces that a controller shows, ascending.
pub(super) type View = Vec<(u32, Shown)>;

/// A controller as its workers see it.
pub(super) struct ControllerShared {
    /// Among all controllers of the gateway; never used twice.
    pub id: u64,
    pub name: String,
    pub dma: Table,
    pub vectors: Vectors,
    pub doorbells: Doorbells,
    /// By submission queue: how often its doorbell came as a message or a wake.
    rings: Box<[AtomicU64]>,
    /// Flags of the workers: something was rung.
    pub rung: Box<[AtomicBool]>,
    /// Descriptors by which a client rings each worker.
    pub kicks: Box<[Arc<OwnedFd>]>,
    /// Doorbells are looked at again and again, whoever the client is.
    poll: bool,
    /// The client that is there rings in memory alone: see `is_polled`.
    rung_in_memory: AtomicBool,
    /// Longest transfer of a command, bytes.
    pub transfer_bytes_max: u32,
    /// CC.MPS in bytes.
    pub page_bytes: AtomicU32,
    pub write_cache: AtomicBool,
    /// Commands that a worker may take from one queue before it looks at the next (Arbitration Burst).
    pub burst: AtomicU32,
    /// A fault of a queue waits to be heard: more of them say nothing new.
    pub faulted: AtomicBool,
    view: Mutex<Arc<View>>,
    view_generation: AtomicU64,
    /// Inbox of the controller's thread.
    pub events: Arc<Inbox<ControllerEvent>>,
}

/// Messages of workers to a controller's thread.
pub(super) enum ControllerEvent {
    SubmissionClosed(u16),
    CompletionClosed(u16),
    /// A worker has nothing of it any more.
    QueuesClosed,
    Aborted {
        sqid: u16,
        cid: u16,
        aborted: bool,
    },
    Fault(QueueFault),
    Mishap(Mishap),
    /// A worker has no I/O of it under way, and fetches none.
    Quiet,
    /// Written data is durable.
    Flushed,
}

/// Resources lent to a client: mappings, events to wait for, registers to write to.
pub(super) struct Lent {
    pub doorbells: Doorbells,
    /// Wake-up descriptors of the workers.
    pub kicks: Vec<OwnedFd>,
}

impl Lent {
    /// # Errors
    /// `Machine`: no descriptor is left.
    pub(super) fn new(threads: usize) -> Result<Lent, forebay_model::Error> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let kicks = (0..threads).map(|_| rustix::event::eventfd(0, flags)).collect::<Result<_, _>>();
        let kicks = kicks.map_err(|e| {
            forebay_model::Error::machine("the controller's doorbells", e.to_string(), "ulimit -n 65536")
        })?;
        Ok(Lent { doorbells: Doorbells::new()?, kicks })
    }
}

pub(super) struct Options {
    pub id: u64,
    pub name: String,
    pub threads: usize,
    pub vectors: u16,
    pub poll: bool,
    pub transfer_bytes_max: u32,
    pub view: View,
}

impl ControllerShared {
    pub(super) fn new(options: Options, lent: Lent, events: Arc<Inbox<ControllerEvent>>) -> ControllerShared {
        let Options { id, name, threads, vectors, poll, transfer_bytes_max, view } = options;
        ControllerShared {
            id,
            name,
            dma: Table::default(),
            vectors: Vectors::new(vectors),
            doorbells: lent.doorbells,
            rings: (0..vectors).map(|_| AtomicU64::new(0)).collect(),
            rung: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            kicks: lent.kicks.into_iter().map(Arc::new).collect(),
            poll,
            rung_in_memory: AtomicBool::new(false),
            transfer_bytes_max,
            page_bytes: AtomicU32::new(4096),
            write_cache: AtomicBool::new(true),
            burst: AtomicU32::new(u32::MAX),
            faulted: AtomicBool::new(false),
            view: Mutex::new(Arc::new(view)),
            view_generation: AtomicU64::new(1),
            events,
        }
    }

    /// Its client may ring in memory, so its doorbells are looked at again and again: because it was configured so, or
    /// because of the client.
    pub(super) fn is_polled(&self) -> bool {
        self.poll || self.is_rung_in_memory()
    }

    pub(super) fn is_rung_in_memory(&self) -> bool {
        self.rung_in_memory.load(Ordering::Relaxed)
    }

    /// Before its client learns of its regions.
    pub(super) fn set_rung_in_memory(&self, alone: bool) {
        self.rung_in_memory.store(alone, Ordering::Relaxed);
    }

    /// Its doorbells' counts, as another process had them.
    pub(super) fn count_rings(&self, counts: &[u64]) {
        self.rings.iter().zip(counts).for_each(|(rings, count)| rings.store(*count, Ordering::Relaxed));
    }

    /// A submission queue's doorbell came, not just its value.
    pub(super) fn rang(&self, sqid: u16) {
        self.rings.get(usize::from(sqid)).into_iter().for_each(|rings| {
            rings.fetch_add(1, Ordering::Relaxed);
        });
    }

    pub(super) fn rings(&self, sqid: u16) -> u64 {
        self.rings.get(usize::from(sqid)).map_or(0, |rings| rings.load(Ordering::Relaxed))
    }

    /// Another queue of that number.
    pub(super) fn forget_rings(&self, sqid: u16) {
        self.rings.get(usize::from(sqid)).into_iter().for_each(|rings| rings.store(0, Ordering::Relaxed));
    }

    pub(super) fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(super) fn view_generation(&self) -> u64 {
        self.view_generation.load(Ordering::Acquire)
    }

    pub(super) fn set_view(&self, view: View) {
        *self.view.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(view);
        self.view_generation.fetch_add(1, Ordering::Release);
    }

    pub(super) fn say(&self, word: ControllerEvent) {
        self.events.post(word);
    }
}

impl HostMemory for Map {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        let bytes = into.len() as u64;
        Map::read(self, address, into).map_err(|_| Unmapped { address, bytes })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        Map::write(self, address, from).map_err(|_| Unmapped { address, bytes: from.len() as u64 })
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        Map::load(self, address).map_err(|_| Unmapped { address, bytes: 4 })
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        Map::store(self, address, value).map_err(|_| Unmapped { address, bytes: 4 })
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        self.covers(address, bytes)
    }
}
