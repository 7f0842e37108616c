//! The controller of a PCIe function: BAR0 and the admin queue (base, sections 3.1.3, 3.5 and 3.6; pcie, section 3).
//!
//! One thread drives it. I/O queues are made here and handed out as `Effect`s; whoever owns them says when they are
//! gone. A reset is over (CSTS.RDY is 0) only once they are: until then their I/O may still touch the host's memory.
//! A host that breaks the rules gets a status, an asynchronous event, or CSTS.CFS, as the specification has it.

mod admin;
mod reset;
pub mod state;

use super::memory::HostMemory;
use super::queue::{Coalescing, CompletionQueue, Interrupt, InvalidDoorbell, QueueFault, SubmissionQueue};
use super::registers::{self, offset, Aqa, Doorbell};
use super::shadow::Shadow;
use crate::controller::subsystem::Subsystem;
use crate::controller::{Controller, ErrorEvent, Function, Health, Mishap, READY_MS, VERSION};
use crate::fabrics::{Cc, Csts};
use crate::status::{Code, Status};
use reset::Closing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// A submission queue as the device knows it.
#[derive(Debug)]
struct Submission {
    cqid: u16,
    /// The Delete command that waits for its end.
    deletion: Option<u16>,
}

#[derive(Debug)]
struct Completion {
    submissions: BTreeSet<u16>,
    deletion: Option<u16>,
}

/// An Abort that waits for its command to end.
#[derive(Clone, Copy, Debug)]
struct Abort {
    slot: u16,
    sqid: u16,
    cid: u16,
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

/// The controller of a function.
#[derive(Debug)]
pub struct Device {
    settings: Settings,
    controller: Controller,
    configuration: Cc,
    status: Csts,
    admin_attributes: Aqa,
    admin_submission: u64,
    admin_completion: u64,
    interrupt_mask: u32,
    /// Enabled, and not fatally wrong.
    admin: Option<CompletionQueue>,
    submissions: BTreeMap<u16, Submission>,
    completions: BTreeMap<u16, Completion>,
    aborts: Vec<Abort>,
    /// Commands whose time has come, by slot, with their result.
    late: Vec<(u16, u64)>,
    shadow: Option<Shadow>,
    /// I/O queues are being closed.
    closing: Option<Closing>,
    effects: VecDeque<Effect>,
    admin_completed: u64,
    admin_failed: u64,
    /// Completions of the admin queue wait for `publish`.
    holds_back: bool,
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
            configuration: Cc(0),
            status: Csts(0),
            admin_attributes: Aqa(0),
            admin_submission: 0,
            admin_completion: 0,
            interrupt_mask: 0,
            admin: None,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            aborts: Vec::new(),
            late: Vec::new(),
            shadow: None,
            closing: None,
            effects: VecDeque::new(),
            admin_completed: 0,
            admin_failed: 0,
            holds_back: false,
        }
    }

    /// From here on the host is told nothing of the admin queue before `publish`: until then its commands can be carried
    /// out again from an earlier `state`, and nobody knows that they were.
    pub fn hold_back(&mut self) {
        self.holds_back = true;
        self.admin.iter_mut().for_each(CompletionQueue::hold_back);
    }

    /// The host is to be told of completions in the admin queue.
    pub fn has_held_back(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| !admin.held_back().is_empty())
    }

    /// Tells the host what was held back. Twice is as once: another process may have done so, and been killed.
    pub fn publish<M: HostMemory + ?Sized>(&mut self, memory: &M) {
        let Some(admin) = &mut self.admin else { return };
        if let Err(fault) = admin.publish(memory) {
            self.fault(fault);
        }
        self.signal();
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    pub fn admin(&self) -> Admin {
        let queue = self.admin.as_ref();
        Admin {
            entries: queue.and_then(|q| q.submissions().next()).map_or(0, SubmissionQueue::entries),
            in_flight: queue.map_or(0, CompletionQueue::in_flight),
            completed: self.admin_completed,
            failed: self.admin_failed,
        }
    }

    /// CSTS.
    pub fn status(&self) -> Csts {
        self.status
    }

    /// Commands are executed.
    pub fn ready(&self) -> bool {
        self.status.ready() && !self.status.fatal() && self.status.shutdown() == 0 && self.closing.is_none()
    }

    /// Memory page of the host, bytes (CC.MPS).
    pub fn page_bytes(&self) -> u32 {
        self.configuration.page_bytes()
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
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match at {
            offset::CAP => self.controller.function_capabilities(READY_MS, self.settings.stride).0,
            offset::VS => two(VERSION.0, self.interrupt_mask),
            offset::INTMC => two(self.interrupt_mask, self.configuration.0),
            0x18 => two(0, self.status.0),
            offset::NSSR => two(0, self.admin_attributes.0),
            offset::ASQ => self.admin_submission,
            offset::ACQ => self.admin_completion,
            offset::CRTO => (READY_MS / 500).into(),
            _ => 0,
        }
    }

    /// Writes BAR0: 4 bytes, or 8 where two registers stand together, at a multiple of four. Others have no meaning (base,
    /// section 3.1.3) and do nothing.
    pub fn write<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, from: &[u8]) {
        let dword = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        match from.len() {
            _ if offset % 4 != 0 => {}
            4 => self.write_dword(memory, offset, dword(from)),
            8 if offset < registers::DOORBELLS - 4 => {
                self.write_dword(memory, offset, dword(from));
                self.write_dword(memory, offset + 4, dword(&from[4..]));
            }
            _ => {}
        }
    }

    fn write_dword<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, value: u32) {
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            offset::INTMS => self.interrupt_mask |= value,
            offset::INTMC => self.interrupt_mask &= !value,
            offset::CC => self.configure(Cc(value)),
            // Write 1 to clear.
            offset::CSTS => self.status.0 &= !(value & registers::SUBSYSTEM_RESET_OCCURRED),
            offset::NSSR if value == registers::SUBSYSTEM_RESET => self.subsystem_reset(),
            offset::AQA => self.admin_attributes = Aqa(value & 0x0fff_0fff),
            // Bits 11:0 are reserved: the queues begin with a page.
            offset::ASQ => self.admin_submission = low(self.admin_submission) & !0xfff,
            0x2c => self.admin_submission = high(self.admin_submission),
            offset::ACQ => self.admin_completion = low(self.admin_completion) & !0xfff,
            0x34 => self.admin_completion = high(self.admin_completion),
            registers::DOORBELLS.. => self.doorbell(memory, offset, value),
            _ => {}
        }
    }

    fn doorbell<M: HostMemory + ?Sized>(&mut self, memory: &M, offset: u64, value: u32) {
        let Some(doorbell) = Doorbell::at(offset, self.settings.stride).filter(|_| self.ready()) else {
            return;
        };
        let cqid = match doorbell {
            Doorbell::Submission(0) | Doorbell::Completion(0) => {
                return self.ring_admin(memory, doorbell, value)
            }
            Doorbell::Submission(sqid) => self.submissions.get(&sqid).map(|queue| queue.cqid),
            Doorbell::Completion(cqid) => self.completions.contains_key(&cqid).then_some(cqid),
        };
        match cqid {
            Some(cqid) => self.effects.push_back(Effect::Ring { cqid, doorbell, value }),
            None => self.invalid_doorbell(InvalidDoorbell { doorbell, value, known: false }),
        }
    }

    fn ring_admin<M: HostMemory + ?Sized>(&mut self, memory: &M, doorbell: Doorbell, value: u32) {
        let Some(admin) = &mut self.admin else { return };
        match admin.ring(doorbell, value) {
            Ok(()) => self.want_admin_doorbells(memory, doorbell, value),
            Err(invalid) => self.invalid_doorbell(invalid),
        }
    }

    /// Hosts differ in whether shadow doorbells hold for the admin queue. Its registers always do: EventIdx has the
    /// host write them each time.
    fn want_admin_doorbells<M: HostMemory + ?Sized>(&mut self, memory: &M, doorbell: Doorbell, value: u32) {
        let Some((_, event_index)) = self.shadow.and_then(|shadow| shadow.of(doorbell)) else { return };
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

    /// Tells of completions in the admin queue.
    fn interrupt(&mut self) {
        if !self.holds_back {
            self.signal();
        }
    }

    fn signal(&mut self) {
        if let Some(Interrupt::Now(vector)) = self.admin.as_mut().map(|admin| admin.interrupt(0)) {
            self.effects.push_back(Effect::Interrupt(vector));
        }
    }
}
