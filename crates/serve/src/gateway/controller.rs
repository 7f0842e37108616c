//! The thread of one controller: its socket, its registers and admin queue, its client's memory. I/O is the workers'.

mod effects;
mod keep;
mod kept;
mod region;
mod requests;

use super::controller_shared::{ControllerShared, View};
use super::dma::Retired;
use super::gateway_shared::GatewayShared;
use super::io_queue::Taken;
use super::keeper::Link;
use super::shm;
use super::vfio_user::config_space::ConfigSpace;
use super::vfio_user::config_space::Names;
use super::vfio_user::message::Header;
use super::vfio_user::socket::Ended;
use super::vfio_user::socket::Listener;
use super::vfio_user::socket::Session;
use super::worker::WorkerMessage;
use crate::target::inbox::Inbox;
use crate::target::log::Level;
use forebay_io::clock;
use forebay_io::reactor::Waker;
use forebay_nvme::controller::subsystem::Subsystem;
use forebay_nvme::controller::Health;
use forebay_nvme::transport::pcie::device::{Admin, Device, Settings};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of a client in a row, before the workers are heard.
const MESSAGES: u32 = 64;
/// Interval at which an unmapping checks whether the last I/O has released the memory.
const LOOK: Duration = Duration::from_micros(200);
/// After this long the sources are asked to give up on what is in flight.
const GIVE_UP: Duration = Duration::from_secs(1);
/// And after this long the client is told that it is still in use. (QEMU waits for 5 s.)
const BUSY: Duration = Duration::from_secs(4);
/// Interval at which the doorbells of queue 0 are looked at, where a client may ring in memory and hasn't for a while.
const POLL_RARELY: Duration = Duration::from_millis(1);
/// PCI identifiers: none is registered for Forebay. Drivers go by the class.
const NAMES: Names = Names { vendor: 0xf0eb, device: 0x0001 };

/// Request that its client waits for; nothing more is read from it meanwhile.
enum Waiting {
    /// The last I/O into memory that it takes away.
    Unmap { header: Header, answer: Vec<u8>, retired: Retired, since: Instant, gave_up: bool },
    /// The end of a reset; then this answer goes.
    Reset { header: Header, answer: Vec<u8> },
    /// State left by the client before it.
    Predecessor,
}

#[derive(Default)]
enum Suspension {
    #[default]
    Running,
    /// Number of workers that have yet to say that they are quiet.
    Suspending(usize, SyncSender<()>),
    Suspended,
}

/// For `Gateway::stats`.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub connections: u64,
    pub resets: u64,
    pub protocol_errors: u64,
    pub connected: bool,
    pub ready: bool,
    pub suspended: bool,
    pub fatal: Option<String>,
    pub mapped_bytes: u64,
    pub mappings: u64,
    /// State of the admin queue.
    pub admin: Admin,
    pub admin_interrupts: u64,
}

struct Peer {
    /// None: its keeper has it.
    session: Option<Session>,
    /// VERSION was exchanged.
    greeted: bool,
}

pub(super) struct Controller {
    gateway: Arc<GatewayShared>,
    workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    shared: Arc<ControllerShared>,
    waker: Arc<Waker>,
    pub device: Device,
    space: ConfigSpace,
    fresh: ConfigSpace,
    msix_table: Vec<u8>,
    listener: Listener,
    /// Its client comes by a keeper, which outlives this process.
    link: Option<Link>,
    peer: Option<Peer>,
    waiting: Option<Waiting>,
    /// Workers that have yet to let go of its queues.
    closing: usize,
    suspension: Suspension,
    /// By queue: the worker that owns its completion queue.
    submissions: BTreeMap<u16, usize>,
    completions: BTreeMap<u16, usize>,
    health: Box<dyn Fn() -> Health + Send>,
    tally: Tally,
    /// It ends once its queues are gone, or at that time.
    leaving: Option<Instant>,
    /// Another process is to have it: so many workers have yet to say that they are quiet.
    held: Option<usize>,
    /// Another process has it.
    parted: bool,
    /// Queues of another process's that no worker has yet.
    taken: Vec<Taken>,
    /// Doorbells of queue 0 in memory as they were last seen: completion, submission.
    admin_seen: [u32; 2],
    /// The last message of its client, or doorbell of queue 0 in memory.
    stirred_at: Instant,
}

pub(super) struct Parts {
    pub gateway: Arc<GatewayShared>,
    pub workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    pub shared: Arc<ControllerShared>,
    pub waker: Arc<Waker>,
    pub listener: Listener,
    pub link: Option<Link>,
    pub subsystem: Arc<Subsystem>,
    pub cntlid: u16,
    pub suspended: bool,
    /// Health counters of its namespaces.
    pub health: Box<dyn Fn() -> Health + Send>,
}

impl Controller {
    pub(super) fn new(parts: Parts) -> Controller {
        let Parts { gateway, workers, shared, waker, listener, link, subsystem, cntlid, suspended, health } =
            parts;
        let vectors = shared.vectors.count() as u16;
        let mut device = Device::new(subsystem, settings(cntlid, &shared), 0);
        if link.is_some() {
            device.hold_back();
        }
        let space = ConfigSpace::new(NAMES, shm::BAR0_BYTES, vectors);
        Controller {
            fresh: space.clone(),
            space,
            msix_table: vec![0; usize::from(vectors) * 16],
            device,
            gateway,
            workers,
            shared,
            waker,
            listener,
            link,
            peer: None,
            waiting: None,
            closing: 0,
            suspension: if suspended { Suspension::Suspended } else { Suspension::Running },
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            health,
            tally: Tally::default(),
            leaving: None,
            held: None,
            parted: false,
            taken: Vec::new(),
            admin_seen: [0; 2],
            stirred_at: clock::now(),
        }
    }

    /// Serves until it is told to leave.
    pub(super) fn run(mut self) {
        self.post_all(|| WorkerMessage::Attach(self.shared.clone()));
        loop {
            self.wait();
            self.waker.drain();
            for word in self.shared.events.take() {
                self.hear(word);
            }
            self.look_at_admin_doorbells();
            self.look_at_unmapping();
            if self.parted {
                break;
            }
            if self.held.is_none() {
                match self.link {
                    Some(_) => self.read_kept(),
                    None => self.read(),
                }
                self.welcome();
                self.note();
            }
            if self.leaving.is_some_and(|by| self.closing == 0 || clock::now() >= by) {
                break;
            }
        }
        if !self.parted {
            self.leave_keeper();
        }
        self.post_all(|| WorkerMessage::Detach(self.shared.id));
    }

    fn post_all(&self, message: impl Fn() -> WorkerMessage) {
        self.workers.iter().for_each(|worker| worker.post(message()));
    }

    fn say(&self, level: Level, what: &'static str, why: &str) {
        let fields = [("controller", self.shared.name.clone().into()), ("why", why.into())];
        self.gateway.log.say(level, what, &fields);
    }

    fn now_ms(&self) -> u64 {
        clock::now().saturating_duration_since(self.gateway.began).as_millis() as u64
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&*self.waker, PollFlags::IN)];
        match &self.link {
            _ if self.held.is_some() => {}
            Some(link) => fds.push(PollFd::new(link, PollFlags::IN)),
            None => fds.push(PollFd::new(&self.listener, PollFlags::IN)),
        }
        let session = self.peer.as_ref().and_then(|peer| peer.session.as_ref());
        if let Some(session) = session.filter(|_| self.held.is_none()) {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, self.waiting.is_none());
            wanted.set(PollFlags::OUT, session.is_stuck());
            fds.push(PollFd::new(session, wanted));
        }
        let look = match self.waiting {
            _ if self.shared.events.has_messages() => Some(Duration::ZERO),
            Some(Waiting::Unmap { .. }) => Some(LOOK),
            _ => self.leaving.map(|_| Duration::from_millis(10)).or_else(|| self.next_look()),
        };
        let timeout = look.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
        // Interrupted or out of memory: the next round looks again.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Accepts clients: one at a time.
    fn welcome(&mut self) {
        if self.link.is_some() {
            return;
        }
        while let Some(fd) = self.listener.accept() {
            // Who closed its end since it was last read is no client any more.
            let session = self.peer.as_ref().and_then(|peer| peer.session.as_ref());
            if session.is_some_and(Session::is_gone) {
                self.end_session(&Ended::Closed);
            }
            if self.peer.is_some() || self.leaving.is_some() {
                self.refuse_client();
            } else {
                self.meet(Some(Session::new(fd)));
            }
        }
    }

    /// Takes what the client has sent.
    fn read(&mut self) {
        for _ in 0..MESSAGES {
            let session = self.peer.as_mut().and_then(|peer| peer.session.as_mut());
            let Some(session) = session else { return };
            let received = match self.waiting {
                // Only whether it is still there.
                Some(_) if session.is_gone() => Err(Ended::Closed),
                Some(_) => Ok(None),
                None => session.flush().and_then(|()| session.receive()),
            };
            let handled = match received {
                Ok(None) => return,
                Ok(Some(message)) => self.handle(message),
                Err(ended) => Err(ended),
            };
            if let Err(ended) = handled {
                return self.end_session(&ended);
            }
        }
        // There may be more: come back at once.
        self.shared.events.wake();
    }

    /// The client is gone: so are its memory and its interrupts, and with them its queues.
    fn end_session(&mut self, ended: &Ended) {
        let why = match ended {
            Ended::Closed => None,
            Ended::Violated(why) => Some(*why),
            Ended::Broken(why) => Some(why.as_str()),
        };
        self.tally.protocol_errors += u64::from(why.is_some());
        let level = if why.is_some() { Level::Warning } else { Level::Info };
        self.say(level, "client disconnected", why.unwrap_or_default());
        (self.peer, self.waiting) = (None, None);
        self.shared.set_rung_in_memory(false);
        self.shared.vectors.clear();
        self.reset();
        drop(self.shared.dma.unmap_all());
        self.post_all(|| WorkerMessage::Look);
    }

    /// Function Level Reset: all is as at the beginning, once the workers have let go.
    fn reset(&mut self) {
        self.tally.resets += 1;
        self.device.function_reset();
        self.space.reset(&self.fresh);
        self.msix_table.fill(0);
        self.pump();
    }

    /// Queues go to the workers in turn.
    fn worker_of(&self, cqid: u16) -> usize {
        usize::from(cqid.wrapping_sub(1)) % self.workers.len()
    }

    /// Has the workers fetch no more; `reply` is sent once nothing is under way.
    pub(super) fn suspend(&mut self, reply: SyncSender<()>) {
        self.touch();
        if let Suspension::Suspended = self.suspension {
            let _ = reply.send(());
            return;
        }
        self.suspension = Suspension::Suspending(self.workers.len(), reply);
        self.post_all(|| WorkerMessage::Suspend(self.shared.id));
    }

    pub(super) fn resume(&mut self) {
        self.touch();
        self.suspension = Suspension::Running;
        self.post_all(|| WorkerMessage::Resume(self.shared.id));
    }

    /// Other namespaces, or others' content.
    pub(super) fn update(&mut self, subsystem: Arc<Subsystem>, view: View) {
        self.shared.set_view(view);
        self.post_all(|| WorkerMessage::Look);
        self.touch();
        self.device.update(subsystem);
    }

    /// Ends: the client is disconnected, and the thread stops once its queues are gone.
    pub(super) fn leave(&mut self, within: Duration) {
        // What is held is another process's, as it is.
        if self.held.is_some() {
            return self.part();
        }
        if self.peer.is_some() {
            self.end_session(&Ended::Closed);
        }
        self.leaving = Some(clock::now() + within);
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.peer.is_some() && self.device.ready()
    }

    pub(super) fn tally(&self) -> Tally {
        let map = self.shared.dma.map_now();
        Tally {
            connected: self.peer.is_some(),
            ready: self.device.ready(),
            suspended: !matches!(self.suspension, Suspension::Running),
            fatal: self.tally.fatal.clone().filter(|_| self.device.status().fatal()),
            mapped_bytes: map.mappings().iter().map(|m| m.range().1).sum(),
            mappings: map.mappings().len() as u64,
            admin: self.device.admin(),
            ..self.tally.clone()
        }
    }
}

/// Returns the settings of its function, in whichever process it runs.
fn settings(cntlid: u16, shared: &ControllerShared) -> Settings {
    Settings {
        cntlid,
        vendor: NAMES.vendor,
        subsystem_vendor: NAMES.vendor,
        vectors: shared.vectors.count() as u16,
        host_nqn: format!("vfio-user:{}", shared.name),
        ..Settings::default()
    }
}

enum Answer {
    Payload(Vec<u8>),
    With(Vec<u8>, Vec<Arc<OwnedFd>>),
    Refused(i32),
    /// It comes once `Waiting` is over.
    Later,
}

fn done(result: Result<(), i32>) -> Answer {
    match result {
        Ok(()) => Answer::Payload(Vec::new()),
        Err(errno) => Answer::Refused(errno),
    }
}
