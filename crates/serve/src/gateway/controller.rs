//! The thread of one controller: its socket, its registers and admin queue, its client's memory. I/O is the workers'.

mod admin_doorbells;
mod client;
mod function;
mod keep;
mod queue_owners;
mod standstill;

use super::controller_shared::{ControllerEvent, ControllerShared, View};
use super::dma::Asked;
use super::gateway_shared::GatewayShared;
use super::shm;
use super::supervisor::Link;
use super::vfio_user::config_space;
use super::vfio_user::message::{self, Access, Bytes, Header, Irq, Region, Request};
use super::vfio_user::socket::{Ended, Listener, Message, Session};
use super::worker::WorkerMessage;
use crate::target::inbox::Inbox;
use crate::target::log::Level;
use admin_doorbells::AdminDoorbells;
use client::{Answer, Client, Unmapping};
use forebay_io::{monotonic_now, Waker};
use forebay_nvme::controller::subsystem::Subsystem;
use forebay_nvme::controller::Health;
use forebay_nvme::transport::pcie::device::{Admin, Device, Effect, Settings};
use forebay_nvme::transport::pcie::registers::Doorbell;
use function::{PciFunction, NAMES};
use queue_owners::QueueOwners;
use standstill::Standstill;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of a client in a row, before the workers are heard.
const MESSAGES: u32 = 64;

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

/// What a caller of the gateway has the thread do.
pub(super) type Call = Box<dyn FnOnce(&mut ControllerThread) + Send>;

/// It hears three: its client, the workers, and callers of the gateway. What it does for them is done by its parts; the
/// device, which is pure, says what comes of it by its effects.
pub(super) struct ControllerThread {
    gateway: Arc<GatewayShared>,
    shared: Arc<ControllerShared>,
    waker: Arc<Waker>,
    calls: Arc<Inbox<Call>>,
    /// Registers and admin queue.
    device: Device,
    function: PciFunction,
    queues: QueueOwners,
    client: Client,
    admin_doorbells: AdminDoorbells,
    standstill: Standstill,
    health: Box<dyn Fn() -> Health + Send>,
    tally: Tally,
    /// It ends once its queues are gone, or at that time.
    leaving: Option<Instant>,
    /// Another process has it.
    parted: bool,
}

pub(super) struct Parts {
    pub gateway: Arc<GatewayShared>,
    pub workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    pub shared: Arc<ControllerShared>,
    /// Of both its inboxes.
    pub waker: Arc<Waker>,
    pub calls: Arc<Inbox<Call>>,
    pub listener: Listener,
    pub link: Option<Link>,
    pub subsystem: Arc<Subsystem>,
    pub cntlid: u16,
    pub suspended: bool,
    /// Health counters of its namespaces.
    pub health: Box<dyn Fn() -> Health + Send>,
}

impl ControllerThread {
    pub(super) fn new(parts: Parts) -> ControllerThread {
        let mut device = Device::new(parts.subsystem, settings(parts.cntlid, &parts.shared), 0);
        if parts.link.is_some() {
            device.hold_back();
        }
        ControllerThread {
            device,
            function: PciFunction::new(parts.shared.clone()),
            queues: QueueOwners::new(parts.shared.clone(), parts.workers),
            client: Client::new(parts.listener, parts.link),
            admin_doorbells: AdminDoorbells::new(monotonic_now()),
            standstill: Standstill::new(parts.suspended),
            gateway: parts.gateway,
            shared: parts.shared,
            waker: parts.waker,
            calls: parts.calls,
            health: parts.health,
            tally: Tally::default(),
            leaving: None,
            parted: false,
        }
    }

    /// Serves until it is told to leave.
    pub(super) fn run(mut self) {
        self.queues.post_all(|_| WorkerMessage::Attach(self.shared.clone()));
        loop {
            self.wait();
            self.waker.drain();
            for event in self.shared.events.take() {
                self.hear(event);
            }
            for call in self.calls.take() {
                call(&mut self);
                self.pump();
            }
            self.look_at_admin_doorbells();
            self.look_at_unmapping();
            if self.parted {
                break;
            }
            if !self.standstill.is_held() {
                match self.client.link {
                    Some(_) => self.read_kept(),
                    None => self.read(),
                }
                self.welcome();
                self.note();
            }
            let over = |by| !self.queues.are_closing() || monotonic_now() >= by;
            if self.leaving.is_some_and(over) {
                break;
            }
        }
        if !self.parted {
            self.leave_supervisor();
        }
        self.queues.post_all(WorkerMessage::Detach);
    }

    fn wait(&self) {
        let look = || {
            let leaving = self.leaving.map(|_| Duration::from_millis(10));
            leaving.or_else(|| self.looks_at_doorbells().then(|| self.admin_doorbells.pause(monotonic_now())))
        };
        let timeout = match self.shared.events.has_messages() || self.calls.has_messages() {
            true => Some(Duration::ZERO),
            false => self.client.pause().or_else(look),
        };
        self.client.poll(&self.waker, !self.standstill.is_held(), timeout);
    }

    fn say(&self, level: Level, what: &'static str, why: &str) {
        let fields = [("controller", self.shared.name.clone().into()), ("why", why.into())];
        self.gateway.log.say(level, what, &fields);
    }

    fn now_ms(&self) -> u64 {
        monotonic_now().saturating_duration_since(self.gateway.began).as_millis() as u64
    }

    // The client comes and goes.

    /// Accepts clients: one at a time.
    fn welcome(&mut self) {
        while let Some(fd) = self.client.accept() {
            if self.client.is_gone() {
                self.end_session(&Ended::Closed);
            }
            if self.client.is_there() || self.leaving.is_some() {
                self.refuse_client();
            } else {
                self.meet(Some(Session::new(fd)));
            }
        }
    }

    /// A client, whose connection may be its supervisor's.
    fn meet(&mut self, session: Option<Session>) {
        self.tally.connections += 1;
        self.say(Level::Info, "client connected", "");
        self.client.meet(session, self.queues.are_closing());
    }

    fn refuse_client(&mut self) {
        self.tally.protocol_errors += 1;
        self.say(Level::Warning, "client refused", "another client has the controller");
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
        self.client.part();
        self.shared.set_rung_in_memory(false);
        self.shared.vectors.clear();
        self.reset();
        drop(self.shared.dma.unmap_all());
        self.queues.post_all(|_| WorkerMessage::Recheck);
    }

    // What the client asks for.

    /// Takes what the client has sent.
    fn read(&mut self) {
        for _ in 0..MESSAGES {
            let handled = match self.client.receive() {
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

    fn handle(&mut self, message: Message) -> Result<(), Ended> {
        self.admin_doorbells.stir(monotonic_now());
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
        self.client.answer(&header, answer)?;
        self.client.recycle(body);
        Ok(())
    }

    /// Err: the session ends.
    fn act(&mut self, header: &Header, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Ended> {
        let greeted = self.client.greeted() == Some(true);
        if greeted == matches!(request, Request::Version { .. }) {
            return Err(Ended::Violated("VERSION is the first message, and comes once"));
        }
        Ok(match request {
            Request::Version { major, minor, data } => {
                if major != 0 || !message::is_version_data(data) {
                    return Err(Ended::Violated("a version that is not ours"));
                }
                self.client.greet();
                // It names no capabilities, as SPDK's initiator, which takes a function only if it can map its doorbells.
                self.shared.set_rung_in_memory(data.is_empty());
                Answer::Payload(message::version(minor))
            }
            Request::DmaMap { flags, offset, address, bytes } => self.map(flags, offset, address, bytes, fds),
            Request::DmaUnmap { flags, address, bytes } => self.unmap(header, flags, address, bytes),
            Request::DeviceInfo => Answer::Payload(message::device_info()),
            Request::RegionInfo { argsz, index } => self.function.region_info(argsz, index),
            Request::RegionIoFds { argsz, index } => {
                self.function.region_io_fds(argsz, index, |qid| self.queues.worker_of(qid))
            }
            Request::IrqInfo { index } if index < Irq::COUNT => {
                let count = if index == Irq::MSIX { self.shared.vectors.count() } else { 0 };
                Answer::Payload(message::irq_info(index, count))
            }
            Request::SetIrqs { flags, index, start, count, data } if index == Irq::MSIX => {
                self.shared.vectors.set(flags, start, count, data, fds).into()
            }
            // Taking interrupts away that there are none of does no harm.
            Request::SetIrqs { index, count: 0, .. } if index < Irq::COUNT => Answer::Payload(Vec::new()),
            Request::RegionRead(access) => self.function.read(access, &self.device),
            Request::RegionWrite(access, data) => match self.write_region(access, data) {
                Err(errno) => Answer::Refused(errno),
                Ok(false) => Answer::Payload(message::access_answer(access).0),
                Ok(true) => self.after_reset(*header, message::access_answer(access).0),
            },
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
        self.shared.dma.map(asked, fds.pop()).into()
    }

    fn unmap(&mut self, header: &Header, flags: u32, address: u64, bytes: u64) -> Answer {
        let retired = match flags {
            0 => self.shared.dma.unmap(address, bytes),
            // Some name a range all the same.
            message::DMA_UNMAP_ALL => Ok(self.shared.dma.unmap_all()),
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
        self.queues.post_all(|_| WorkerMessage::Recheck);
        self.client.wait_for_unmapping(*header, answer.0, retired, monotonic_now());
        Answer::Later
    }

    /// Checks whether the last I/O has released memory that is to go.
    fn look_at_unmapping(&mut self) {
        match self.client.look_at_unmapping(monotonic_now()) {
            None => {}
            Some(Unmapping::GiveUp) => self.queues.post_all(WorkerMessage::Relinquish),
            Some(Unmapping::Answered { header, answer, is_busy }) => {
                if is_busy {
                    let why = "a source holds on to an I/O into it";
                    self.say(Level::Warning, "memory still in use", why);
                }
                self.answer_or_end(&header, answer);
            }
        }
    }

    fn answer_or_end(&mut self, header: &Header, answer: Answer) {
        if let Err(ended) = self.client.answer(header, answer) {
            self.end_session(&ended);
        }
    }

    // Registers.

    /// True: the function is being reset.
    fn write_region(&mut self, access: Access, data: &[u8]) -> Result<bool, i32> {
        let end = access.offset + data.len() as u64;
        match access.region {
            Region::BAR0 if end <= shm::BAR0_BYTES => {
                self.write_registers(access.offset, data);
                Ok(false)
            }
            Region::BAR4 if end <= config_space::BAR4_BYTES => {
                self.function.write_msix(access.offset, data);
                Ok(false)
            }
            Region::CONFIG if end <= config_space::BYTES as u64 => {
                let written = self.function.write_config(access.offset, data);
                if written.function_reset {
                    self.reset();
                }
                Ok(written.function_reset)
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn write_registers(&mut self, offset: u64, data: &[u8]) {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        let doorbell = Doorbell::at(offset, 0).filter(|_| self.device.ready());
        let worker = doorbell.and_then(|doorbell| self.queues.worker_at(doorbell));
        if let Some(Doorbell::Submission(sqid)) = doorbell {
            self.shared.rang(sqid);
        }
        // The doorbell of an I/O queue.
        if let (Ok(value), Some(doorbell), Some(worker)) = (value, doorbell, worker) {
            return self.queues.ring(worker, doorbell, value);
        }
        if doorbell == Some(Doorbell::Submission(0)) {
            self.device.set_health((self.health)());
        }
        let map = self.shared.dma.map_now();
        let was_ready = self.device.ready();
        self.device.write(&*map, offset, data);
        if was_ready && !self.device.ready() {
            self.tally.resets += 1;
        }
        drop(map);
        self.pump();
    }

    /// Rings for queue 0 what a client wrote to its doorbells in memory.
    fn look_at_admin_doorbells(&mut self) {
        if !self.looks_at_doorbells() {
            return;
        }
        for doorbell in AdminDoorbells::BOTH {
            let news = self.admin_doorbells.news(doorbell, &self.shared.doorbells, monotonic_now());
            if let Some(value) = news {
                self.mark_dirty();
                self.write_registers(doorbell.offset(0), &value.to_le_bytes());
            }
        }
    }

    fn looks_at_doorbells(&self) -> bool {
        self.shared.is_polled() && self.device.ready() && !self.standstill.is_held()
    }

    /// Function Level Reset: all is as at the beginning, once the workers have let go.
    fn reset(&mut self) {
        self.tally.resets += 1;
        self.device.function_reset();
        self.function.reset();
        self.pump();
    }

    fn after_reset(&mut self, header: Header, answer: Vec<u8>) -> Answer {
        if !self.queues.are_closing() {
            return Answer::Payload(answer);
        }
        self.client.wait_for_reset(header, answer);
        Answer::Later
    }

    // Admin commands, and what comes of them.

    /// Executes admin commands, and carries out what comes of it.
    fn pump(&mut self) {
        loop {
            self.carry_out_all();
            self.tell_burst();
            if !self.standstill.is_running() {
                return;
            }
            let (map, now_ms) = (self.shared.dma.map_now(), self.now_ms());
            let more = self.device.work(&*map, now_ms);
            self.tell_burst();
            match self.device.next_effect() {
                Some(effect) => self.carry_out(effect),
                None if !more => return,
                None => {}
            }
        }
    }

    /// Tells the workers the Arbitration Burst of the host's last Set Features, or of a reset.
    fn tell_burst(&self) {
        let burst = self.device.controller().arbitration_burst().unwrap_or(u32::MAX);
        self.shared.burst.store(burst, Ordering::Relaxed);
    }

    fn carry_out_all(&mut self) {
        while let Some(effect) = self.device.next_effect() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, mut effect: Effect) {
        if let Some(link) = &mut self.client.link {
            link.note_effect(&mut effect);
        }
        match effect {
            Effect::OpenCompletion(cq) => {
                self.shared.page_bytes.store(self.device.page_bytes(), Ordering::Relaxed);
                self.queues.open_completion(cq);
            }
            Effect::OpenSubmission { cqid, queue } => self.queues.open_submission(cqid, queue),
            Effect::CloseSubmission { cqid, sqid } => self.queues.close_submission(cqid, sqid),
            Effect::CloseCompletion { cqid } => self.queues.close_completion(cqid),
            Effect::CloseQueues => self.queues.close_all(),
            Effect::Abort { cqid, sqid, cid } => self.queues.abort(cqid, sqid, cid),
            Effect::Ring { cqid, doorbell, value } => {
                self.queues.ring(self.queues.worker_of(cqid), doorbell, value);
            }
            Effect::Shadow(shadow) => self.queues.post_all(|id| WorkerMessage::Shadow(id, shadow)),
            Effect::Coalescing(settings) => {
                self.queues.post_all(|id| WorkerMessage::Coalescing(id, settings.clone()));
            }
            // Its queues are gone, so any worker may flush for all.
            Effect::ShutDown => self.queues.post_one(WorkerMessage::Flush),
            Effect::WriteCache { enabled } => self.shared.write_cache.store(enabled, Ordering::Relaxed),
            Effect::Interrupt(vector) => {
                self.tally.admin_interrupts += 1;
                self.shared.vectors.signal(vector);
            }
            Effect::Fatal(why) => {
                self.say(Level::Error, "fatal status", &why);
                self.tally.fatal = Some(why);
            }
        }
    }

    // What workers tell, and callers ask.

    fn hear(&mut self, event: ControllerEvent) {
        self.mark_dirty();
        match event {
            // The next queue of that number begins at 0. Later would be too late: its host may ring at once.
            ControllerEvent::SubmissionClosed(sqid) => {
                self.clear_doorbell(Some(Doorbell::Submission(sqid)));
                self.device.submission_closed(sqid);
            }
            ControllerEvent::CompletionClosed(cqid) => {
                self.clear_doorbell(Some(Doorbell::Completion(cqid)));
                self.device.completion_closed(cqid);
            }
            ControllerEvent::Aborted { sqid, cid, aborted } => self.device.aborted(sqid, cid, aborted),
            ControllerEvent::Mishap(mishap) => self.device.record(mishap),
            ControllerEvent::Fault(fault) => {
                self.device.fault(fault);
                self.shared.faulted.store(false, Ordering::Release);
            }
            ControllerEvent::Flushed => self.device.shut_down_complete(),
            ControllerEvent::QueuesClosed => self.queues_closed(),
            ControllerEvent::Quiet => self.standstill.quiet(),
        }
        self.pump();
    }

    fn queues_closed(&mut self) {
        if !self.queues.closed() {
            return;
        }
        self.clear_doorbell(None);
        self.device.queues_closed();
        if let Some((header, answer)) = self.client.queues_closed() {
            self.answer_or_end(&header, answer);
        }
    }

    /// A doorbell of a queue that is gone is 0, or all are, at once or once that is noted: until then a queue that goes on
    /// after all must find what its host rang.
    fn clear_doorbell(&mut self, doorbell: Option<Doorbell>) {
        if doorbell.is_none() {
            self.admin_doorbells.cleared();
        }
        match (&mut self.client.link, doorbell) {
            (Some(link), _) => link.note_closed(doorbell),
            (None, Some(doorbell)) => self.shared.doorbells.set(doorbell, 0),
            (None, None) => self.shared.doorbells.clear(),
        }
    }

    /// Has the workers fetch no more; `reply` is sent once nothing is under way.
    pub(super) fn suspend(&mut self, reply: SyncSender<()>) {
        self.mark_dirty();
        if self.standstill.suspend(self.queues.workers(), reply) {
            self.queues.post_all(WorkerMessage::Suspend);
        }
    }

    pub(super) fn resume(&mut self) {
        self.mark_dirty();
        self.standstill.resume();
        self.queues.post_all(WorkerMessage::Resume);
    }

    /// Other namespaces, or others' content.
    pub(super) fn update(&mut self, subsystem: Arc<Subsystem>, view: View) {
        self.shared.set_view(view);
        self.queues.post_all(|_| WorkerMessage::Recheck);
        self.mark_dirty();
        self.device.update(subsystem);
    }

    /// Ends: the client is disconnected, and the thread stops once its queues are gone.
    pub(super) fn leave(&mut self, within: Duration) {
        // What is held is another process's, as it is.
        if self.standstill.is_held() {
            return self.part();
        }
        if self.client.is_there() {
            self.end_session(&Ended::Closed);
        }
        self.leaving = Some(monotonic_now() + within);
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.client.is_there() && self.device.ready()
    }

    pub(super) fn tally(&self) -> Tally {
        let map = self.shared.dma.map_now();
        Tally {
            connected: self.client.is_there(),
            ready: self.device.ready(),
            suspended: !self.standstill.is_not_suspended(),
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
