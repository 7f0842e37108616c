//! The admin queue from the driver's side: what the session asks for, and the I/O queues' commands.

use super::{gone, no_memory, place, queue, Bar, Host, HostQueue, Purpose, Starting, Step, Wanted};
use super::{point, DATA_BYTES, PAGE_BYTES};
use crate::command::{admin, Cqe, Sqe, FABRICS};
use crate::fabrics::{self, fctype, Cap, Cc, Csts, Property, PropertyGet, PropertySet};
use crate::host::{expect_success, Action, Data, Event, Failure, Request, RequestId, ADMIN_ENTRIES};
use crate::identify::{oacs, Controller};
use crate::status::{Code, Status};
use crate::transport::pcie::data;
use crate::transport::pcie::memory::HostMemory;
use crate::transport::pcie::registers::{offset, Aqa};
use crate::transport::pcie::shadow::Shadow;

/// Interval at which CSTS is read while the controller is being disabled.
const POLL_MS: u64 = 10;
/// PC and IEN of Create I/O Completion Queue; PC of Create I/O Submission Queue.
const CONTIGUOUS: u32 = 1 << 0;
const INTERRUPTS: u32 = 1 << 1;

impl Host {
    /// Does what can be done now. A failure is the end of it: `Failure::retry` says whether a new `Host` may fare better.
    pub fn next<B: Bar + ?Sized, M: HostMemory + ?Sized>(
        &mut self,
        bar: &mut B,
        memory: &M,
        now_ms: u64,
    ) -> Result<Step, Failure> {
        loop {
            self.reap(bar, memory, now_ms)?;
            self.start_jobs(memory, now_ms)?;
            if let Some(step) = self.steps.pop_front() {
                return Ok(step);
            }
            self.start(bar, now_ms)?;
            match self.session.next(now_ms)? {
                Action::Submit(request) => self.submit(bar, memory, request, now_ms)?,
                Action::Event(Event::Ready) => self.ready(),
                Action::Event(event) => return Ok(Step::Event(event)),
                Action::Authenticate { .. } => {
                    return Err(Failure::protocol("Connect", "a function wants authentication"))
                }
                Action::Wait { until_ms } if self.jobs.is_empty() => {
                    self.ring(bar, memory)?;
                    return self.wait(until_ms, now_ms);
                }
                Action::Wait { .. } if self.admin.is_none() => {
                    return Err(gone("an I/O queue", "the controller is not enabled".into()));
                }
                // Jobs wait for room in the admin queue.
                Action::Wait { until_ms } if self.admin.as_ref().is_some_and(|admin| admin.room() == 0) => {
                    self.ring(bar, memory)?;
                    return self.wait(until_ms, now_ms);
                }
                Action::Wait { .. } => {}
            }
        }
    }

    fn wait(&self, until_ms: u64, now_ms: u64) -> Result<Step, Failure> {
        let late = self.out.values().filter_map(|(purpose, deadline)| deadline.map(|at| (at, purpose)));
        let first = late.min_by_key(|(at, _)| *at);
        if let Some((_, purpose)) = first.filter(|(at, _)| *at <= now_ms) {
            let found = format!("no answer came within {} ms", self.timeout_ms);
            return Err(Failure::again(purpose.name(), found));
        }
        let poll = self.starting.map(|_| now_ms + POLL_MS);
        let times = [Some(until_ms), first.map(|(at, _)| at), poll];
        Ok(Step::Wait { until_ms: times.into_iter().flatten().min().unwrap_or(until_ms) })
    }

    /// Creates an I/O queue pair: `Step::Queue` gives it. `qid` from 1, at most as many as the session was granted;
    /// `entries` at most `ControllerInfo::queue_entries`; `address`: of `queue_bytes(entries)`, zeroed. `vector`: of MSI-X;
    /// None: it is polled.
    pub fn create_queue(&mut self, qid: u16, entries: u16, address: u64, vector: Option<u16>) {
        self.wanted.insert(qid, Wanted { entries, address, vector });
        self.jobs.push_back(Purpose::CreateCompletion(qid));
    }

    /// Deletes both queues of a pair; `Step::Deleted` says when they are. Commands in flight end aborted.
    pub fn delete_queue(&mut self, qid: u16) {
        self.jobs.push_back(Purpose::DeleteSubmission(qid));
    }

    /// Asks the controller to give up on a command; `Step::Aborted` says whether it did.
    pub fn abort(&mut self, sqid: u16, cid: u16) {
        self.jobs.push_back(Purpose::Abort { sqid, cid });
    }

    /// Shuts the controller down: `next` does so, until `is_shut_down`.
    pub fn shut_down(&mut self, now_ms: u64) {
        self.jobs.clear();
        self.session.shut_down(now_ms);
    }

    pub fn is_shut_down(&self) -> bool {
        self.session.is_shut_down()
    }

    /// The controller is up: shadow doorbells come before its driver hears of it.
    fn ready(&mut self) {
        let offers = Controller::read(&self.session.controller().raw)
            .is_some_and(|controller| controller.oacs.get() & oacs::DOORBELL_BUFFER_CONFIG != 0);
        match offers && self.shadow.is_none() {
            true => self.jobs.push_back(Purpose::ShadowDoorbells),
            false => self.steps.push_back(Step::Event(Event::Ready)),
        }
    }

    fn submit<B: Bar + ?Sized, M: HostMemory + ?Sized>(
        &mut self,
        bar: &mut B,
        memory: &M,
        request: Request,
        now_ms: u64,
    ) -> Result<(), Failure> {
        let Request { request_id, sqe, data } = request;
        if sqe.opcode == FABRICS {
            return self.register(bar, request_id, &sqe, now_ms);
        }
        let at = self.address + place::DATA;
        let (bytes, purpose) = match &data {
            Data::None => (0, Purpose::Session(request_id, 0)),
            Data::In(bytes) => (*bytes, Purpose::Session(request_id, *bytes)),
            Data::Out(bytes) => {
                memory.write(at, bytes).map_err(no_memory)?;
                (bytes.len() as u32, Purpose::Session(request_id, 0))
            }
        };
        if u64::from(bytes) > DATA_BYTES {
            let found = format!("{bytes} bytes, where there is room for {DATA_BYTES}");
            return Err(Failure::protocol("an admin command's data", found));
        }
        let list = self.address + place::LIST;
        let sqe = match bytes {
            0 => sqe,
            bytes => point(memory, sqe, at, bytes, false, list).map_err(no_memory)?,
        };
        self.push(memory, sqe, purpose, None)
    }

    fn push<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        sqe: Sqe,
        purpose: Purpose,
        deadline_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let full = || gone("the admin queue", "it is full".into());
        let admin = self.admin.as_mut().ok_or_else(full)?;
        let cid = admin.push(memory, sqe).map_err(no_memory)?.ok_or_else(full)?;
        self.out.insert(cid, (purpose, deadline_ms));
        Ok(())
    }

    /// A Fabrics command of the session's, in registers.
    fn register<B: Bar + ?Sized>(
        &mut self,
        bar: &mut B,
        request_id: RequestId,
        sqe: &Sqe,
        now_ms: u64,
    ) -> Result<(), Failure> {
        let lost = |found| gone("a register of the controller", found);
        let answered = match fabrics::command_type(sqe) {
            fctype::CONNECT => return self.disable(bar, request_id, now_ms),
            fctype::PROPERTY_GET => match PropertyGet::from_sqe(sqe).property() {
                Some(property) => {
                    let bytes = property.bytes();
                    let value = bar.read(property.offset().into(), bytes).map_err(lost)?;
                    if property == Property::Cap {
                        self.capabilities = Cap(value);
                    }
                    Cqe::new(0, Status::SUCCESS, value)
                }
                None => Cqe::new(0, Status::fatal(Code::INVALID_FIELD), 0),
            },
            fctype::PROPERTY_SET => match PropertySet::from_sqe(sqe).property() {
                Some(property) => {
                    let value = PropertySet::from_sqe(sqe).value.get();
                    bar.write(property.offset().into(), property.bytes(), value).map_err(lost)?;
                    Cqe::new(0, Status::SUCCESS, 0)
                }
                None => Cqe::new(0, Status::fatal(Code::INVALID_FIELD), 0),
            },
            _ => Cqe::new(0, Status::fatal(Code::INVALID_OPCODE), 0),
        };
        self.session.completed(request_id, &answered, &[], now_ms);
        Ok(())
    }

    /// Whatever the controller was doing: it stops, and its admin queue is set up anew (base, section 3.5.1).
    fn disable<B: Bar + ?Sized>(
        &mut self,
        bar: &mut B,
        request_id: RequestId,
        now_ms: u64,
    ) -> Result<(), Failure> {
        let lost = |found| gone("a register of the controller", found);
        let configuration = Cc(bar.read(offset::CC, 4).map_err(lost)? as u32);
        if configuration.enable() {
            let disabled = configuration.0 & !Cc::ENABLE;
            bar.write(offset::CC, 4, disabled.into()).map_err(lost)?;
        }
        let capabilities = Cap(bar.read(offset::CAP, 8).map_err(lost)?);
        let patience = u64::from(capabilities.timeout_ms()).max(500);
        self.capabilities = capabilities;
        self.starting = Some(Starting { request_id, until_ms: now_ms.saturating_add(patience) });
        self.start(bar, now_ms)
    }

    fn start<B: Bar + ?Sized>(&mut self, bar: &mut B, now_ms: u64) -> Result<(), Failure> {
        let Some(Starting { request_id, until_ms }) = self.starting else { return Ok(()) };
        let lost = |found| gone("a register of the controller", found);
        if Csts(bar.read(offset::CSTS, 4).map_err(lost)? as u32).ready() {
            return match now_ms >= until_ms {
                true => {
                    Err(gone("CSTS.RDY, to become 0", "it is 1 after the time that CAP.TO allows".into()))
                }
                false => Ok(()),
            };
        }
        let (submission, completion) = (self.address + place::SUBMISSION, self.address + place::COMPLETION);
        let aqa = Aqa::new(ADMIN_ENTRIES, ADMIN_ENTRIES);
        bar.write(offset::AQA, 4, aqa.0.into()).map_err(lost)?;
        bar.write(offset::ASQ, 8, submission).map_err(lost)?;
        bar.write(offset::ACQ, 8, completion).map_err(lost)?;
        let stride = self.capabilities.doorbell_stride();
        self.admin = Some(HostQueue::new(0, submission, completion, ADMIN_ENTRIES, stride, None));
        self.starting = None;
        self.session.completed(request_id, &Cqe::new(0, Status::SUCCESS, 0), &[], now_ms);
        Ok(())
    }

    fn ring<B: Bar + ?Sized, M: HostMemory + ?Sized>(
        &mut self,
        bar: &mut B,
        memory: &M,
    ) -> Result<(), Failure> {
        let Some(admin) = &mut self.admin else { return Ok(()) };
        let rung = [admin.ring(memory).map_err(no_memory)?, admin.release(memory).map_err(no_memory)?];
        for bell in rung.into_iter().flatten() {
            bar.write(bell.offset, 4, bell.value.into()).map_err(|found| gone("a doorbell", found))?;
        }
        Ok(())
    }

    fn reap<B: Bar + ?Sized, M: HostMemory + ?Sized>(
        &mut self,
        bar: &mut B,
        memory: &M,
        now_ms: u64,
    ) -> Result<(), Failure> {
        // No more at once than can be in flight.
        for _ in 0..ADMIN_ENTRIES {
            let Some(admin) = &mut self.admin else { return Ok(()) };
            let Some(cqe) = admin.reap(memory).map_err(no_memory)? else { break };
            let Some((purpose, _)) = self.out.remove(&cqe.cid.get()) else { continue };
            self.completed(memory, purpose, &cqe, now_ms)?;
        }
        self.ring(bar, memory)
    }

    fn completed<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        purpose: Purpose,
        cqe: &Cqe,
        now_ms: u64,
    ) -> Result<(), Failure> {
        match purpose {
            Purpose::Session(request_id, bytes) => {
                let mut data = vec![0; bytes as usize];
                memory.read(self.address + place::DATA, &mut data).map_err(no_memory)?;
                self.session.completed(request_id, cqe, &data, now_ms);
                return Ok(());
            }
            // Without them doorbells are registers.
            Purpose::ShadowDoorbells => {
                self.shadow = cqe.status().is_success().then(|| self.shadow_place());
                self.steps.push_back(Step::Event(Event::Ready));
                return Ok(());
            }
            Purpose::Abort { sqid, cid } => {
                let aborted = cqe.status().is_success() && cqe.result.get() & 1 == 0;
                self.steps.push_back(Step::Aborted { sqid, cid, aborted });
                return Ok(());
            }
            _ => expect_success(&purpose.name(), cqe)?,
        }
        match purpose {
            Purpose::CreateCompletion(qid) => self.jobs.push_back(Purpose::CreateSubmission(qid)),
            Purpose::DeleteSubmission(qid) => self.jobs.push_back(Purpose::DeleteCompletion(qid)),
            Purpose::CreateSubmission(qid) => self.created(qid),
            Purpose::DeleteCompletion(qid) => {
                self.wanted.remove(&qid);
                self.steps.push_back(Step::Deleted(qid));
            }
            _ => {}
        }
        Ok(())
    }

    fn created(&mut self, qid: u16) {
        let Some(&Wanted { entries, address, .. }) = self.wanted.get(&qid) else { return };
        let completions = address + queue::completion_offset(entries);
        let stride = self.capabilities.doorbell_stride();
        let queue = HostQueue::new(qid, address, completions, entries, stride, self.shadow);
        self.steps.push_back(Step::Queue(queue));
    }

    fn shadow_place(&self) -> Shadow {
        Shadow {
            doorbells: self.address + place::DOORBELLS,
            event_indices: self.address + place::EVENT_INDICES,
            stride: self.capabilities.doorbell_stride(),
            page_bytes: PAGE_BYTES,
        }
    }

    /// Sends what waits, as long as there is room.
    fn start_jobs<M: HostMemory + ?Sized>(&mut self, memory: &M, now_ms: u64) -> Result<(), Failure> {
        while self.admin.as_ref().is_some_and(|admin| admin.room() > 0) {
            let Some(job) = self.jobs.pop_front() else { return Ok(()) };
            let Some(sqe) = self.command(job) else { continue };
            let deadline_ms = now_ms.saturating_add(self.timeout_ms);
            self.push(memory, sqe, job, Some(deadline_ms))?;
        }
        Ok(())
    }

    /// None: the queue that it is about isn't wanted any more.
    fn command(&self, job: Purpose) -> Option<Sqe> {
        let of = |opcode, cdw10: u32, cdw11: u32| Sqe {
            opcode,
            cdw10: cdw10.into(),
            cdw11: cdw11.into(),
            ..Sqe::default()
        };
        let size = |wanted: &Wanted, qid: u16| u32::from(wanted.entries - 1) << 16 | u32::from(qid);
        Some(match job {
            Purpose::Session(..) => return None,
            Purpose::CreateCompletion(qid) => {
                let wanted = self.wanted.get(&qid)?;
                let interrupts = wanted.vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16);
                let sqe = of(admin::CREATE_COMPLETION_QUEUE, size(wanted, qid), CONTIGUOUS | interrupts);
                data::with_prps(sqe, [wanted.address + queue::completion_offset(wanted.entries), 0])
            }
            Purpose::CreateSubmission(qid) => {
                let wanted = self.wanted.get(&qid)?;
                let completion = u32::from(qid) << 16;
                let sqe = of(admin::CREATE_SUBMISSION_QUEUE, size(wanted, qid), CONTIGUOUS | completion);
                data::with_prps(sqe, [wanted.address, 0])
            }
            Purpose::DeleteSubmission(qid) => of(admin::DELETE_SUBMISSION_QUEUE, qid.into(), 0),
            Purpose::DeleteCompletion(qid) => of(admin::DELETE_COMPLETION_QUEUE, qid.into(), 0),
            Purpose::ShadowDoorbells => {
                let shadow = self.shadow_place();
                let sqe = of(admin::DOORBELL_BUFFER_CONFIG, 0, 0);
                data::with_prps(sqe, [shadow.doorbells, shadow.event_indices])
            }
            Purpose::Abort { sqid, cid } => of(admin::ABORT, u32::from(sqid) | u32::from(cid) << 16, 0),
        })
    }
}

impl Purpose {
    /// In words, for failures.
    fn name(self) -> String {
        match self {
            Purpose::Session(..) => "an admin command".into(),
            Purpose::CreateCompletion(qid) => format!("Create I/O Completion Queue {qid}"),
            Purpose::CreateSubmission(qid) => format!("Create I/O Submission Queue {qid}"),
            Purpose::DeleteSubmission(qid) => format!("Delete I/O Submission Queue {qid}"),
            Purpose::DeleteCompletion(qid) => format!("Delete I/O Completion Queue {qid}"),
            Purpose::ShadowDoorbells => "Doorbell Buffer Config".into(),
            Purpose::Abort { sqid, cid } => format!("Abort of command {cid} of queue {sqid}"),
        }
    }
}
