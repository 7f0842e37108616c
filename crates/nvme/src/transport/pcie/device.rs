//! The controller of a PCIe function: BAR0 and the admin queue (base, sections 3.1.3, 3.5 and 3.6; pcie, section 3).
//!
//! One thread drives it. I/O queues are made here and handed out as `Effect`s; whoever owns them says when they are
//! gone. A reset is over (CSTS.RDY is 0) only once they are: until then their I/O may still touch the host's memory.
//! A host that breaks the rules gets a status, an asynchronous event, or CSTS.CFS, as the specification has it.

mod admin;
mod admin_queue;
mod io_queues;
mod registers;
pub mod state;

use super::memory::HostMemory;
use super::queue::{CompletionQueue, InvalidDoorbell, QueueFault, QueueState, SubmissionQueue};
use super::registers::{offset, Aqa, Doorbell, DOORBELLS};
use super::shadow::Shadow;
use crate::controller::subsystem::Subsystem;
use crate::controller::{Controller, ErrorEvent, Function, Health, Mishap, READY_MS};
use crate::fabrics::{Cc, Csts};
use crate::feature::Coalescing;
use crate::status::{Code, Status};
use admin_queue::AdminQueue;
use io_queues::IoQueues;
use registers::{Depth, Registers, Written};
use state::DeviceState;
use std::collections::VecDeque;
use std::sync::Arc;

/// Smallest BAR0, bytes.
const BAR_BYTES_MIN: u64 = 1 << 14;

/// Settings of a function, beside its subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub cntlid: u16,
    /// PCI vendor, and that of the subsystem.
    pub vendor: u16,
    pub subsystem_vendor: u16,
    /// MSI-X vectors, at least 1.
    pub vectors: u16,
    /// CAP.DSTRD: 0 to 10.
    pub stride: u8,
    /// Doorbell Buffer Config is supported.
    pub shadow_doorbells: bool,
    /// Whom logs name as the host.
    pub host_nqn: String,
    pub host_id: [u8; 16],
}

impl Default for Settings {
    /// Controller 1, 32 vectors, shadow doorbells.
    fn default() -> Settings {
        Settings {
            cntlid: 1,
            vendor: 0,
            subsystem_vendor: 0,
            vectors: 32,
            stride: 0,
            shadow_doorbells: true,
            host_nqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000".into(),
            host_id: [0; 16],
        }
    }
}

/// Effect that is due outside of the device. Drained after each call.
#[derive(Debug)]
pub enum Effect {
    /// An I/O completion queue was created: give it to whoever will own it.
    OpenCompletion(CompletionQueue),
    /// A submission queue was created: `open` it in its completion queue.
    OpenSubmission { cqid: u16, queue: SubmissionQueue },
    /// A submission queue is being deleted: `close` it, give up on what is in flight, complete all of it, `remove` it;
    /// then `submission_closed`.
    CloseSubmission { cqid: u16, sqid: u16 },
    /// A completion queue is deleted, and has no submission queue any more: drop it, then `completion_closed`.
    CloseCompletion { cqid: u16 },
    /// All I/O queues end without answers: fetch, complete and interrupt no more, give up on what is in flight. Once
    /// nothing touches the host's memory, drop them, then `queues_closed`.
    CloseQueues,
    /// Give up on this command, if it is in flight, and complete it; then `aborted`.
    Abort { cqid: u16, sqid: u16, cid: u16 },
    /// A doorbell register of an I/O queue was written: `ring` it.
    Ring { cqid: u16, doorbell: Doorbell, value: u32 },
    /// For every completion queue: `set_shadow`. Those that come later have it from the start.
    Shadow(Shadow),
    /// For every completion queue: `set_coalescing`, likewise.
    Coalescing(Coalescing),
    /// The host shuts the controller down, and its I/O queues are closed: make durable what was written, then
    /// `shut_down_complete`; the host waits for it.
    ShutDown,
    /// True if writes may be completed before they are durable.
    WriteCache { enabled: bool },
    /// Signal this vector: there are completions in the admin queue.
    Interrupt(u16),
    /// CSTS.CFS was set, and why. The host must reset.
    Fatal(String),
}

/// State of the admin queue. Without entries: the host has not enabled the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    pub entries: u16,
    pub in_flight: u16,
    /// Commands since the function began, by how they ended.
    pub completed: u64,
    pub failed: u64,
}

/// Why the I/O queues are being closed; what comes later in this list includes what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    Fatal,
    ShutDown,
    Reset(Depth),
}

/// The controller of a function.
#[derive(Debug)]
pub struct Device {
    settings: Settings,
    controller: Controller,
    registers: Registers,
    /// Open where enabled, and not fatally wrong.
    admin: AdminQueue,
    queues: IoQueues,
    shadow: Option<Shadow>,
    /// I/O queues are being closed.
    closing: Option<Closing>,
    effects: VecDeque<Effect>,
}

impl Device {
    pub fn new(subsystem: Arc<Subsystem>, settings: Settings, now_ms: u64) -> Device {
        let function = Function {
            vendor: settings.vendor,
            subsystem_vendor: settings.subsystem_vendor,
            vectors: settings.vectors.max(1),
            shadow_doorbells: settings.shadow_doorbells,
        };
        let host = (settings.host_nqn.as_str(), settings.host_id);
        let controller = Controller::of_function(subsystem, function, host, settings.cntlid, now_ms);
        Device {
            settings,
            controller,
            registers: Registers::default(),
            admin: AdminQueue::default(),
            queues: IoQueues::default(),
            shadow: None,
            closing: None,
            effects: VecDeque::new(),
        }
    }

    /// From here on the host is told nothing of the admin queue before `publish`: until then its commands can be carried
    /// out again from an earlier `state`, and nobody knows that they were.
    pub fn hold_back(&mut self) {
        self.admin.hold_back();
    }

    /// The host is to be told of completions in the admin queue.
    pub fn has_held_back(&self) -> bool {
        !self.admin.held_back().is_empty()
    }

    /// Tells the host what was held back. Twice is as once: another process may have done so, and been killed.
    pub fn publish<M: HostMemory + ?Sized>(&mut self, memory: &M) {
        if let Err(fault) = self.admin.publish(memory) {
            self.fault(fault);
        }
        self.effects.extend(self.admin.signal().map(Effect::Interrupt));
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    pub fn admin(&self) -> Admin {
        self.admin.figures()
    }

    /// CSTS.
    pub fn status(&self) -> Csts {
        self.registers.status
    }

    /// Commands are executed.
    pub fn ready(&self) -> bool {
        let status = self.status();
        status.ready() && !status.fatal() && status.shutdown() == 0 && self.closing.is_none()
    }

    /// Memory page of the host, bytes (CC.MPS).
    pub fn page_bytes(&self) -> u32 {
        self.registers.configuration.page_bytes()
    }

    /// Size of BAR0: registers and doorbells, a power of two.
    pub fn bar_bytes(&self) -> u64 {
        let last = Doorbell::Completion(self.controller.queues());
        (last.offset(self.settings.stride) + 4).next_power_of_two().max(BAR_BYTES_MIN)
    }

    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Reads BAR0. What isn't a register is 0.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, byte) in (0u64..).zip(into) {
            let Some(here) = offset.checked_add(at) else { return };
            *byte = self.register(here & !7).to_le_bytes()[(here & 7) as usize];
        }
    }

    /// Eight bytes of registers, from a multiple of eight on.
    fn register(&self, at: u64) -> u64 {
        match at {
            offset::CAP => self.controller.function_capabilities(READY_MS, self.settings.stride).0,
            _ => self.registers.read(at),
        }
    }

    /// Writes BAR0: 4 bytes, or 8 where two registers stand together, at a multiple of four. Others have no meaning (base,
    /// section 3.1.3) and do nothing.
    pub fn write<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, from: &[u8]) {
        let dword = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        match from.len() {
            _ if offset % 4 != 0 => {}
            4 => self.write_dword(memory, offset, dword(from)),
            8 if offset < DOORBELLS - 4 => {
                self.write_dword(memory, offset, dword(from));
                self.write_dword(memory, offset + 4, dword(&from[4..]));
            }
            _ => {}
        }
    }

    fn write_dword<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, value: u32) {
        if offset >= DOORBELLS {
            return self.doorbell(memory, offset, value);
        }
        match self.registers.write(offset, value) {
            Written::Plain => {}
            Written::Configuration(old) => self.configure(old),
            Written::SubsystemReset => self.reset_with_registers(Depth::Subsystem),
        }
    }

    fn doorbell<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, value: u32) {
        let Some(doorbell) = Doorbell::at(offset, self.settings.stride).filter(|_| self.ready()) else {
            return;
        };
        if matches!(doorbell, Doorbell::Submission(0) | Doorbell::Completion(0)) {
            return self.ring_admin(memory, doorbell, value);
        }
        match self.queues.owner_of(doorbell) {
            Some(cqid) => self.effects.push_back(Effect::Ring { cqid, doorbell, value }),
            None => self.invalid_doorbell(InvalidDoorbell { doorbell, value, known: false }),
        }
    }

    fn ring_admin<M: HostMemory + ?Sized>(&mut self, memory: &M, doorbell: Doorbell, value: u32) {
        match self.admin.ring(doorbell, value) {
            None => {}
            Some(Ok(())) => self.want_admin_doorbells(memory, doorbell, value),
            Some(Err(invalid)) => self.invalid_doorbell(invalid),
        }
    }

    /// Hosts differ in whether shadow doorbells hold for the admin queue. Its registers always do: EventIdx has the
    /// host write them each time.
    fn want_admin_doorbells<M: HostMemory + ?Sized>(&mut self, memory: &M, doorbell: Doorbell, value: u32) {
        let Some((_, event_index)) = self.shadow.and_then(|shadow| shadow.addresses_of(doorbell)) else {
            return;
        };
        if let Err(unmapped) = memory.store(event_index, value) {
            self.fault(QueueFault::Memory(unmapped));
        }
    }

    /// An owner of queues met this (or the admin queue did).
    pub fn fault(&mut self, fault: QueueFault) {
        match fault {
            _ if !self.ready() => {}
            QueueFault::Doorbell(invalid) => self.invalid_doorbell(invalid),
            QueueFault::Memory(unmapped) => self.fail(format!("a queue of the host's: {unmapped}")),
        }
    }

    fn invalid_doorbell(&mut self, invalid: InvalidDoorbell) {
        let sqid = match invalid.doorbell {
            Doorbell::Submission(qid) | Doorbell::Completion(qid) => qid,
        };
        let status = Status::fatal(Code::INVALID_FIELD);
        self.record(Mishap { sqid, cid: u16::MAX, status, nsid: 0, lba: 0 });
        self.controller.raise_error(match invalid.known {
            true => ErrorEvent::InvalidDoorbellValue,
            false => ErrorEvent::InvalidDoorbellRegister,
        });
    }

    /// Puts a failed I/O command into the Error Information log.
    pub fn record(&mut self, mishap: Mishap) {
        self.controller.record(mishap);
    }

    /// Replaces the subsystem, as `Controller::update`. Call `work` afterwards: events may be told.
    pub fn update(&mut self, subsystem: Arc<Subsystem>) {
        self.controller.update(subsystem);
    }

    /// As `Controller::set_health`. Call `work` afterwards.
    pub fn set_health(&mut self, health: Health) {
        self.controller.set_health(health);
    }

    /// CC was written, and was `old` before.
    fn configure(&mut self, old: Cc) {
        let new = self.registers.configuration;
        match (old.enable(), new.enable()) {
            // A reset that is under way enables when it is over.
            (false, true) if self.closing.is_none() => self.enable(),
            (true, false) => self.reset(Depth::Controller),
            _ => {}
        }
        if new.shn() != 0 && old.shn() == 0 && self.status().shutdown() == 0 {
            self.registers.set_shutting_down();
            self.close(Closing::ShutDown);
        }
    }

    fn enable(&mut self) {
        if let Err(why) = self.registers.acceptable() {
            return self.fail(format!("the host enables the controller with {why}"));
        }
        self.admin.open(&self.registers);
        self.controller.enabled();
        self.registers.set_ready();
    }

    fn reset(&mut self, depth: Depth) {
        self.admin.close();
        self.queues.forget_commands();
        self.controller.disabled();
        self.close(Closing::Reset(depth));
    }

    fn reset_with_registers(&mut self, depth: Depth) {
        self.registers.configuration = Cc(0);
        self.reset(depth);
    }

    /// A reset of the function, as PCI has it (FLR): all its registers go back to where they began. It is over when
    /// `CloseQueues`, if it comes, is answered.
    pub fn function_reset(&mut self) {
        self.reset_with_registers(Depth::Function);
    }

    /// Something is wrong that no completion can tell of: CSTS.CFS, and nothing is done until the host resets.
    fn fail(&mut self, why: String) {
        if self.status().fatal() {
            return;
        }
        self.controller.raise_error(ErrorEvent::PersistentInternalError);
        self.registers.set_fatal();
        self.effects.push_back(Effect::Fatal(why));
        self.close(Closing::Fatal);
    }

    fn close(&mut self, why: Closing) {
        match self.closing {
            // Of two that take all registers back the later one says whether a subsystem reset is told of (CSTS.NSSRO).
            Some(_) if why >= Closing::Reset(Depth::Function) => self.closing = Some(why),
            Some(already) => self.closing = Some(already.max(why)),
            None if self.queues.is_empty() => self.closed(why),
            None => {
                self.closing = Some(why);
                self.effects.push_back(Effect::CloseQueues);
            }
        }
    }

    /// Completes `Effect::CloseQueues`.
    pub fn queues_closed(&mut self) {
        if let Some(why) = self.closing.take() {
            self.queues.clear();
            self.note_queues();
            self.closed(why);
        }
    }

    fn closed(&mut self, why: Closing) {
        match why {
            Closing::Fatal => {}
            Closing::ShutDown => self.effects.push_back(Effect::ShutDown),
            Closing::Reset(depth) => {
                self.shadow = None;
                self.registers.reset(depth);
                if self.registers.configuration.enable() {
                    self.enable();
                }
            }
        }
    }

    /// Completes `Effect::ShutDown`: the host sees its shutdown complete.
    pub fn shut_down_complete(&mut self) {
        self.registers.set_shut_down();
    }

    fn note_queues(&mut self) {
        self.controller.has_queues(self.queues.ids());
    }

    /// `Effect::CloseSubmission` is carried out.
    pub fn submission_closed(&mut self, sqid: u16) {
        self.queues.submission_closed(sqid);
    }

    /// `Effect::CloseCompletion` is carried out.
    pub fn completion_closed(&mut self, cqid: u16) {
        if self.queues.completion_closed(cqid) {
            self.note_queues();
        }
    }

    /// `Effect::Abort` is carried out. `aborted`: the command was completed with Command Abort Requested; else it ended as
    /// it would have, or wasn't in flight.
    pub fn aborted(&mut self, sqid: u16, cid: u16, aborted: bool) {
        self.queues.aborted(sqid, cid, aborted);
    }

    /// Nothing is under way that somebody else has yet to answer: `state` is all there is. It becomes so by itself where no
    /// more commands are fetched.
    pub fn is_calm(&self) -> bool {
        let busy = self.closing.is_some() || self.status().shutdown() == 1 || !self.effects.is_empty();
        !busy && self.queues.is_calm()
    }

    /// To be asked for after `answer_ended`, and while it is calm.
    pub fn state(&self) -> DeviceState {
        DeviceState {
            cc: self.registers.configuration.0,
            csts: self.status().0,
            aqa: self.registers.admin_attributes.0,
            asq: self.registers.admin_submission,
            acq: self.registers.admin_completion,
            interrupt_mask: self.registers.interrupt_mask,
            admin: self.admin.state(),
            held_back: self.admin.held_back().to_vec(),
            shadow: self.shadow.map(|shadow| (shadow.doorbells, shadow.event_indices, shadow.page_bytes)),
            completed: self.admin().completed,
            failed: self.admin().failed,
            controller: self.controller.state(),
        }
    }

    /// The function as `state` has it, with these I/O queues, which others own. `settings` and `subsystem` are what they
    /// were. Err: what can't be of it.
    pub fn restore(
        subsystem: Arc<Subsystem>,
        settings: Settings,
        state: &DeviceState,
        queues: &[QueueState],
    ) -> Result<Device, &'static str> {
        let mut device = Device::new(subsystem, settings, 0);
        let registers = Registers {
            configuration: Cc(state.cc),
            status: Csts(state.csts),
            admin_attributes: Aqa(state.aqa),
            admin_submission: state.asq,
            admin_completion: state.acq,
            interrupt_mask: state.interrupt_mask,
        };
        device.registers = registers.restored();
        let (admin, held_back) = (state.admin.as_ref(), &state.held_back);
        device.admin = AdminQueue::restore(admin, held_back, state.completed, state.failed)?;
        device.shadow = state.shadow.map(|places| device.shadow_at(places)).transpose()?;
        let waiting = state.admin.iter().flat_map(QueueState::pending).collect();
        device.controller.restore(&state.controller, waiting)?;
        let (most, vectors) = (device.controller.queues(), device.settings.vectors.max(1));
        queues.iter().try_for_each(|queue| device.queues.adopt(queue, most, vectors))?;
        device.note_queues();
        Ok(device)
    }

    fn shadow_at(
        &self,
        (doorbells, event_indices, page_bytes): (u64, u64, u32),
    ) -> Result<Shadow, &'static str> {
        let beyond = |at: u64| at.checked_add(page_bytes.into()).is_none();
        if beyond(doorbells) || beyond(event_indices) {
            return Err("shadow doorbells beyond all addresses");
        }
        Ok(Shadow { doorbells, event_indices, stride: self.settings.stride, page_bytes })
    }
}
