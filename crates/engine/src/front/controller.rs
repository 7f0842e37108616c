//! The thread of one controller: its socket, its registers and admin queue, its client's memory. I/O is the workers'.

mod effects;
mod keep;
mod kept;

use super::dma::{Asked, Retired};
use super::function::Taken;
use super::keeper::Link;
use super::port::{Port, View};
use super::shm;
use super::vfio_user::config_space::{self, ConfigSpace, Names};
use super::vfio_user::message::{self, irq, region, Access, Bytes, Header, RegionInfo, Request};
use super::vfio_user::socket::{Ended, Listener, Message, Session};
use super::worker::{Hub, Letter};
use crate::clock;
use crate::reactor::Waker;
use crate::serve::log::Level;
use crate::serve::mail::Mailbox;
use forebay_nvme::controller::subsystem::Subsystem;
use forebay_nvme::controller::Health;
use forebay_nvme::transport::pcie::device::{Admin, Device, Settings};
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of a client in a row, before the workers are heard.
const MESSAGES: u32 = 64;
/// How often an unmapping looks whether the last I/O has let go.
const LOOK: Duration = Duration::from_micros(200);
/// After this long the sources are asked to give up on what is in flight.
const GIVE_UP: Duration = Duration::from_secs(1);
/// And after this long the client is told that it is still in use. (QEMU waits for 5 s.)
const BUSY: Duration = Duration::from_secs(4);
/// PCI identifiers: none is registered for Forebay. Drivers go by the class.
const NAMES: Names = Names { vendor: 0xf0eb, device: 0x0001 };

/// What its client waits for; nothing more is read from it meanwhile.
enum Waiting {
    /// The last I/O into memory that it takes away.
    Unmap { header: Header, answer: Vec<u8>, retired: Retired, since: Instant, gave_up: bool },
    /// The end of a reset; then this answer goes.
    Reset { header: Header, answer: Vec<u8> },
    /// What the client before it left behind.
    Predecessor,
}

#[derive(Default)]
enum Suspension {
    #[default]
    Running,
    /// So many workers have yet to say that they are quiet.
    Suspending(usize, SyncSender<()>),
    Suspended,
}

/// For `Gateway::stats`.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub connections: u64,
    pub resets: u64,
    pub protocol_errors: u64,
    pub connected: bool,
    pub ready: bool,
    pub suspended: bool,
    pub fatal: Option<String>,
    pub mapped_bytes: u64,
    pub mappings: u64,
    /// Of the admin queue.
    pub admin: Admin,
    pub admin_interrupts: u64,
}

struct Peer {
    /// None: its keeper has it.
    session: Option<Session>,
    /// VERSION was exchanged.
    greeted: bool,
}

pub struct Controller {
    hub: Arc<Hub>,
    workers: Arc<[Arc<Mailbox<Letter>>]>,
    port: Arc<Port>,
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
}

pub struct Parts {
    pub hub: Arc<Hub>,
    pub workers: Arc<[Arc<Mailbox<Letter>>]>,
    pub port: Arc<Port>,
    pub waker: Arc<Waker>,
    pub listener: Listener,
    pub link: Option<Link>,
    pub subsystem: Arc<Subsystem>,
    pub cntlid: u16,
    pub suspended: bool,
    /// What its namespaces counted.
    pub health: Box<dyn Fn() -> Health + Send>,
}

impl Controller {
    pub fn new(parts: Parts) -> Controller {
        let Parts { hub, workers, port, waker, listener, link, subsystem, cntlid, suspended, health } = parts;
        let vectors = port.vectors.count() as u16;
        let mut device = Device::new(subsystem, settings(cntlid, &port), 0);
        if link.is_some() {
            device.hold_back();
        }
        let space = ConfigSpace::new(NAMES, shm::BAR0_BYTES, vectors);
        Controller {
            fresh: space.clone(),
            space,
            msix_table: vec![0; usize::from(vectors) * 16],
            device,
            hub,
            workers,
            port,
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
        }
    }

    /// Serves until it is told to leave.
    pub fn run(mut self) {
        self.post_all(|| Letter::Attach(self.port.clone()));
        loop {
            self.wait();
            self.waker.drain();
            for word in self.port.words.take() {
                self.hear(word);
            }
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
        self.post_all(|| Letter::Detach(self.port.id));
    }

    fn post_all(&self, letter: impl Fn() -> Letter) {
        self.workers.iter().for_each(|worker| worker.post(letter()));
    }

    fn say(&self, level: Level, what: &'static str, why: &str) {
        let fields = [("controller", self.port.name.clone().into()), ("why", why.into())];
        self.hub.log.say(level, what, &fields);
    }

    fn now_ms(&self) -> u64 {
        clock::now().saturating_duration_since(self.hub.began).as_millis() as u64
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
            _ if self.port.words.has_letters() => Some(Duration::ZERO),
            Some(Waiting::Unmap { .. }) => Some(LOOK),
            _ => self.leaving.map(|_| Duration::from_millis(10)),
        };
        let timeout = look.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
        // Interrupted or out of memory: the next round looks again.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Whoever connects: one client at a time.
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
        self.port.words.wake();
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
        self.port.vectors.clear();
        self.reset();
        drop(self.port.dma.unmap_all());
        self.post_all(|| Letter::Look);
    }

    /// Function Level Reset: all is as at the beginning, once the workers have let go.
    fn reset(&mut self) {
        self.tally.resets += 1;
        self.device.function_reset();
        self.space.reset(&self.fresh);
        self.msix_table.fill(0);
        self.pump();
    }

    fn handle(&mut self, message: Message) -> Result<(), Ended> {
        let Message { header, body, fds, too_many } = message;
        if !header.is_command() {
            // We ask nothing of the client, so it has nothing to answer.
            return Err(Ended::Violated("an answer to nothing"));
        }
        let request = match Request::parse(&header, &body) {
            _ if too_many => Err(libc::EINVAL),
            request => request,
        };
        let answer = match request {
            Ok(request) => self.act(&header, request, fds)?,
            Err(errno) => Answer::Refused(errno),
        };
        self.answer(&header, answer)?;
        if let Some(session) = self.peer.as_mut().and_then(|peer| peer.session.as_mut()) {
            session.recycle(body);
        }
        Ok(())
    }

    fn answer(&mut self, header: &Header, answer: Answer) -> Result<(), Ended> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        if !header.wants_reply() {
            return Ok(());
        }
        let (bytes, fds) = match answer {
            Answer::Later => return Ok(()),
            Answer::Payload(payload) => (header.reply(&payload), Vec::new()),
            Answer::With(payload, fds) => (header.reply(&payload), fds),
            Answer::Refused(errno) => (header.refuse(errno), Vec::new()),
        };
        match (&mut peer.session, &mut self.link) {
            (Some(session), _) => session.send(bytes, fds),
            (None, Some(link)) => {
                link.answer = Some((bytes, fds));
                Ok(())
            }
            (None, None) => Err(Ended::Closed),
        }
    }

    /// Err: the session ends.
    fn act(&mut self, header: &Header, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Ended> {
        let greeted = self.peer.as_ref().is_some_and(|peer| peer.greeted);
        if greeted == matches!(request, Request::Version { .. }) {
            return Err(Ended::Violated("VERSION is the first message, and comes once"));
        }
        Ok(match request {
            Request::Version { major, minor, data } => {
                if major != 0 || !message::is_version_data(data) {
                    return Err(Ended::Violated("a version that is not ours"));
                }
                self.peer.iter_mut().for_each(|peer| peer.greeted = true);
                Answer::Payload(message::version(minor))
            }
            Request::DmaMap { flags, offset, address, bytes } => self.map(flags, offset, address, bytes, fds),
            Request::DmaUnmap { flags, address, bytes } => self.unmap(header, flags, address, bytes),
            Request::DeviceInfo => Answer::Payload(message::device_info()),
            Request::RegionInfo { argsz, index } => self.region_info(argsz, index),
            Request::RegionIoFds { argsz, index } => self.region_io_fds(argsz, index),
            Request::IrqInfo { index } if index < irq::COUNT => {
                let count = if index == irq::MSIX { self.port.vectors.count() } else { 0 };
                Answer::Payload(message::irq_info(index, count))
            }
            Request::SetIrqs { flags, index, start, count, data } if index == irq::MSIX => {
                done(self.port.vectors.set(flags, start, count, data, fds))
            }
            // Taking interrupts away that there are none of does no harm.
            Request::SetIrqs { index, count: 0, .. } if index < irq::COUNT => Answer::Payload(Vec::new()),
            Request::RegionRead(access) => self.region_read(access),
            Request::RegionWrite(access, data) => self.region_write(header, access, data),
            Request::Reset => {
                self.reset();
                self.after_reset(*header, Vec::new())
            }
            Request::WriteMulti(writes) => {
                let mut count = 0u64;
                for (access, data) in &writes {
                    let written = self.write_region(*access, &data[..access.count as usize]);
                    if written.is_err() {
                        break;
                    }
                    count += 1;
                }
                Answer::Payload(count.to_ne_bytes().to_vec())
            }
            _ => Answer::Refused(libc::EINVAL),
        })
    }

    fn map(&mut self, flags: u32, offset: u64, address: u64, bytes: u64, mut fds: Vec<OwnedFd>) -> Answer {
        if fds.len() > 1 || flags & !(message::DMA_READABLE | message::DMA_WRITABLE) != 0 {
            return Answer::Refused(libc::EINVAL);
        }
        let readable = flags & message::DMA_READABLE != 0;
        let writable = flags & message::DMA_WRITABLE != 0;
        let asked = Asked { address, bytes, offset, readable, writable };
        done(self.port.dma.map(asked, fds.pop()))
    }

    fn unmap(&mut self, header: &Header, flags: u32, address: u64, bytes: u64) -> Answer {
        let retired = match flags {
            0 => self.port.dma.unmap(address, bytes),
            // Some name a range all the same.
            message::DMA_UNMAP_ALL => Ok(self.port.dma.unmap_all()),
            _ => Err(libc::ENOTSUP),
        };
        let retired = match retired {
            Ok(retired) => retired,
            Err(errno) => return Answer::Refused(errno),
        };
        let mut answer = Bytes::default();
        answer.u32(24).u32(flags).u64(address).u64(bytes);
        if retired.is_free() {
            return Answer::Payload(answer.0);
        }
        self.post_all(|| Letter::Look);
        let (since, gave_up) = (clock::now(), false);
        self.waiting = Some(Waiting::Unmap { header: *header, answer: answer.0, retired, since, gave_up });
        Answer::Later
    }

    /// Whether the last I/O has let go of memory that is to go.
    fn look_at_unmapping(&mut self) {
        let Some(Waiting::Unmap { header, answer, retired, since, gave_up }) = &mut self.waiting else {
            return;
        };
        let waited = clock::now().saturating_duration_since(*since);
        let header = *header;
        let answer = match retired.is_free() {
            true => Answer::Payload(std::mem::take(answer)),
            false if waited > BUSY => Answer::Refused(libc::EBUSY),
            false => {
                if waited > GIVE_UP && !std::mem::replace(gave_up, true) {
                    let id = self.port.id;
                    self.post_all(|| Letter::Relinquish(id));
                }
                return;
            }
        };
        if let Answer::Refused(_) = answer {
            self.say(Level::Warning, "memory still in use", "a source holds on to an I/O into it");
        }
        self.waiting = None;
        if let Err(ended) = self.answer(&header, answer) {
            self.end_session(&ended);
        }
    }

    fn region_info(&self, argsz: u32, index: u32) -> Answer {
        let doorbells = self.port.poll.then_some((DOORBELLS, shm::PAGE_BYTES));
        let info = match index {
            region::BAR0 => RegionInfo { bytes: shm::BAR0_BYTES, mapped: doorbells },
            region::BAR4 => RegionInfo { bytes: config_space::BAR4_BYTES, mapped: None },
            region::CONFIG => RegionInfo { bytes: config_space::BYTES as u64, mapped: None },
            index if index < region::COUNT => RegionInfo::default(),
            _ => return Answer::Refused(libc::EINVAL),
        };
        match info.answer(index, argsz) {
            (payload, true) => Answer::With(payload, vec![self.port.doorbells.fd().clone()]),
            (payload, false) => Answer::Payload(payload),
        }
    }

    /// Of BAR 0: an eventfd for each doorbell, that of the worker which will own the queue.
    fn region_io_fds(&self, argsz: u32, index: u32) -> Answer {
        if index != region::BAR0 {
            return Answer::Refused(if index < region::COUNT { libc::ENOTSUP } else { libc::EINVAL });
        }
        let queues = self.port.vectors.count() as u16 - 1;
        let all = (1..=queues).flat_map(|qid| {
            let worker = self.worker_of(qid) as u32;
            [Doorbell::Submission(qid), Doorbell::Completion(qid)].map(|bell| (bell.offset(0), worker))
        });
        let fds = self.port.kicks.iter().take(message::DESCRIPTORS_MAX).cloned().collect::<Vec<_>>();
        let all: Vec<(u64, u32)> = all.filter(|(_, worker)| (*worker as usize) < fds.len()).collect();
        Answer::With(message::io_fds(index, argsz, &all), fds)
    }

    /// Queues go to the workers in turn.
    fn worker_of(&self, cqid: u16) -> usize {
        usize::from(cqid.wrapping_sub(1)) % self.workers.len()
    }

    fn region_read(&mut self, access: Access) -> Answer {
        let bytes = match access.region {
            region::BAR0 => shm::BAR0_BYTES,
            region::BAR4 => config_space::BAR4_BYTES,
            region::CONFIG => config_space::BYTES as u64,
            _ => 0,
        };
        // `Access` has seen that the sum doesn't overflow.
        if access.offset + u64::from(access.count) > bytes {
            return Answer::Refused(libc::EINVAL);
        }
        let mut answer = message::accessed(access);
        let head = answer.0.len();
        answer.0.resize(head + access.count as usize, 0);
        let into = &mut answer.0[head..];
        match access.region {
            region::BAR0 => self.device.read(access.offset, into),
            region::BAR4 => self.read_msix(access.offset, into),
            _ => self.space.read(access.offset, into),
        }
        Answer::Payload(answer.0)
    }

    /// MSI-X's table, as it was written, and the pending bits.
    fn read_msix(&self, offset: u64, into: &mut [u8]) {
        for (byte, at) in into.iter_mut().zip(offset..) {
            *byte = match at.checked_sub(config_space::PENDING_OFFSET) {
                Some(at) => self.port.vectors.pending((at / 8 * 64) as u32).to_le_bytes()[(at % 8) as usize],
                None => self.msix_table.get(at as usize).copied().unwrap_or(0),
            };
        }
    }

    fn region_write(&mut self, header: &Header, access: Access, data: &[u8]) -> Answer {
        match self.write_region(access, data) {
            Err(errno) => Answer::Refused(errno),
            Ok(false) => Answer::Payload(message::accessed(access).0),
            Ok(true) => self.after_reset(*header, message::accessed(access).0),
        }
    }

    /// True: the function is being reset.
    fn write_region(&mut self, access: Access, data: &[u8]) -> Result<bool, i32> {
        let end = access.offset + data.len() as u64;
        match access.region {
            region::BAR0 if end <= shm::BAR0_BYTES => {
                self.write_registers(access.offset, data);
                Ok(false)
            }
            region::BAR4 if end <= config_space::BAR4_BYTES => {
                for (byte, at) in data.iter().zip(access.offset..) {
                    self.msix_table.get_mut(at as usize).into_iter().for_each(|place| *place = *byte);
                }
                Ok(false)
            }
            region::CONFIG if end <= config_space::BYTES as u64 => {
                let written = self.space.write(access.offset, data);
                if written.function_reset {
                    self.reset();
                }
                Ok(written.function_reset)
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn after_reset(&mut self, header: Header, answer: Vec<u8>) -> Answer {
        if self.closing == 0 {
            return Answer::Payload(answer);
        }
        self.waiting = Some(Waiting::Reset { header, answer });
        Answer::Later
    }

    fn write_registers(&mut self, offset: u64, data: &[u8]) {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        let doorbell = Doorbell::at(offset, 0).filter(|_| self.device.ready());
        let worker = match doorbell {
            Some(Doorbell::Submission(sqid)) => self.submissions.get(&sqid).copied(),
            Some(Doorbell::Completion(cqid)) => self.completions.get(&cqid).copied(),
            None => None,
        };
        if let Some(Doorbell::Submission(sqid)) = doorbell {
            self.port.rang(sqid);
        }
        // The doorbell of an I/O queue: its worker is told, and nobody else.
        if let (Ok(value), Some(doorbell), Some(worker)) = (value, doorbell, worker) {
            self.port.doorbells.set(doorbell, value);
            self.port.rung[worker].store(true, Ordering::Release);
            return self.workers[worker].wake();
        }
        if doorbell == Some(Doorbell::Submission(0)) {
            self.device.set_health((self.health)());
        }
        let map = self.port.dma.map_now();
        let was_ready = self.device.ready();
        self.device.write(&*map, offset, data);
        if was_ready && !self.device.ready() {
            self.tally.resets += 1;
        }
        drop(map);
        self.pump();
    }

    /// Has the workers fetch no more; `reply` is sent once nothing is under way.
    pub fn suspend(&mut self, reply: SyncSender<()>) {
        self.touch();
        if let Suspension::Suspended = self.suspension {
            let _ = reply.send(());
            return;
        }
        self.suspension = Suspension::Suspending(self.workers.len(), reply);
        self.post_all(|| Letter::Suspend(self.port.id));
    }

    pub fn resume(&mut self) {
        self.touch();
        self.suspension = Suspension::Running;
        self.post_all(|| Letter::Resume(self.port.id));
    }

    /// Other namespaces, or others' content.
    pub fn update(&mut self, subsystem: Arc<Subsystem>, view: View) {
        self.port.set_view(view);
        self.post_all(|| Letter::Look);
        self.touch();
        self.device.update(subsystem);
    }

    /// Ends: the client is disconnected, and the thread stops once its queues are gone.
    pub fn leave(&mut self, within: Duration) {
        // What is held is another process's, as it is.
        if self.held.is_some() {
            return self.part();
        }
        if self.peer.is_some() {
            self.end_session(&Ended::Closed);
        }
        self.leaving = Some(clock::now() + within);
    }

    pub fn is_in_use(&self) -> bool {
        self.peer.is_some() && self.device.ready()
    }

    pub fn tally(&self) -> Tally {
        let map = self.port.dma.map_now();
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

/// What its function is, whichever process has it.
fn settings(cntlid: u16, port: &Port) -> Settings {
    Settings {
        cntlid,
        vendor: NAMES.vendor,
        subsystem_vendor: NAMES.vendor,
        vectors: port.vectors.count() as u16,
        host_nqn: format!("vfio-user:{}", port.name),
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
