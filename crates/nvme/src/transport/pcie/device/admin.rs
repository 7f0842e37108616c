//! The admin queue: commands for queues are carried out here, all others by the controller.

use super::{Device, Effect};
use crate::command::{admin, Cqe, Sgl, Sqe};
use crate::controller::{Answer, Effect as ControllerEffect};
use crate::feature::fid;
use crate::log::GetLogPage;
use crate::status::{Code, Status};
use crate::transport::pcie::data::{self, Piece};
use crate::transport::pcie::memory::{HostMemory, Unmapped};
use crate::transport::pcie::queue::{CompletionQueue, Fetched, SubmissionQueue};
use crate::transport::pcie::shadow::Shadow;

/// Commands in one call of `work`.
const COMMANDS_AT_ONCE: u32 = 64;
/// Entries of queues, bytes as a power of two (CC.IOSQES, CC.IOCQES).
const SQE_POWER: u8 = 6;
const CQE_POWER: u8 = 4;
/// PC of Create I/O Submission and Completion Queue: physically contiguous.
const CONTIGUOUS: u32 = 1 << 0;
/// IEN of Create I/O Completion Queue.
const INTERRUPTS: u32 = 1 << 1;

/// Outcome of a command: its result, or None where it ends later.
type Outcome = Result<Option<u64>, Code>;

impl Device {
    /// Executes admin commands, some at a time; true: there may be more. To be called after everything that can move the
    /// admin queue: a doorbell, an answer to an effect, an event of the controller's. `now_ms`: any clock that never goes
    /// back.
    pub fn work<M: HostMemory + ?Sized>(&mut self, memory: &M, now_ms: u64) -> bool {
        let mut executed = 0;
        while executed < COMMANDS_AT_ONCE && self.ready() {
            match self.admin.fetch(memory) {
                Ok(Some(fetched)) => self.execute(memory, &fetched, now_ms),
                Ok(None) => break,
                Err(fault) => self.fault(fault),
            }
            executed += 1;
        }
        self.answer_ended(memory);
        executed == COMMANDS_AT_ONCE
    }

    /// Answers what is over, and fetches nothing.
    pub fn answer_ended<M: HostMemory + ?Sized>(&mut self, memory: &M) {
        self.answer_parked(memory);
        self.effects.extend(self.admin.interrupt().map(Effect::Interrupt));
    }

    /// Answers what was put off: parked commands whose event came, deletions and aborts that are over.
    fn answer_parked<M: HostMemory + ?Sized>(&mut self, memory: &M) {
        while let Some(effect) = self.controller.next_effect() {
            match effect {
                ControllerEffect::Complete { tag, cqe } => self.complete(memory, tag, &cqe),
                ControllerEffect::WriteCache { enabled } => {
                    self.effects.push_back(Effect::WriteCache { enabled });
                }
                // The registers and queues are the device's, and so is Abort.
                ControllerEffect::CloseIoQueues
                | ControllerEffect::ShutDown
                | ControllerEffect::Abort { .. } => {}
            }
        }
        for (slot, result) in self.queues.take_late() {
            self.complete(memory, slot, &Cqe::new(0, Status::SUCCESS, result));
        }
    }

    fn complete<M: HostMemory + ?Sized>(&mut self, memory: &M, slot: u16, cqe: &Cqe) {
        if let Err(fault) = self.admin.complete(memory, slot, cqe) {
            self.fault(fault);
        }
    }

    fn execute<M: HostMemory + ?Sized>(&mut self, memory: &M, fetched: &Fetched, now_ms: u64) {
        let (slot, sqe) = (fetched.slot, &fetched.sqe);
        let outcome = match sqe.opcode {
            // No fused commands; the data pointer of an admin command is made of PRPs (base, section 4.1.2).
            _ if sqe.flags != 0 => Err(Code::INVALID_FIELD),
            admin::CREATE_COMPLETION_QUEUE => self.create_completion(memory, sqe),
            admin::CREATE_SUBMISSION_QUEUE => self.create_submission(memory, sqe),
            admin::DELETE_SUBMISSION_QUEUE => self.delete_submission(slot, sqe),
            admin::DELETE_COMPLETION_QUEUE => self.delete_completion(slot, sqe),
            admin::DOORBELL_BUFFER_CONFIG if self.settings.shadow_doorbells => {
                self.configure_doorbells(memory, sqe)
            }
            admin::ABORT => self.abort(slot, sqe),
            _ => return self.execute_by_controller(memory, slot, sqe, now_ms),
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(result)) => self.complete(memory, slot, &Cqe::new(0, Status::SUCCESS, result)),
            Err(code) => self.refuse(memory, slot, sqe, Status::fatal(code)),
        }
    }

    fn refuse<M: HostMemory + ?Sized>(&mut self, memory: &M, slot: u16, sqe: &Sqe, status: Status) {
        let cqe = self.controller.refuse(sqe, status);
        self.complete(memory, slot, &cqe);
    }

    /// Entries and place of a queue to be created, checked.
    fn queue_place<M: HostMemory + ?Sized>(
        &self,
        memory: &M,
        sqe: &Sqe,
        entry_bytes: u64,
    ) -> Result<(u16, u64), Code> {
        // 0's based: a queue of one entry could hold nothing.
        let last = (sqe.cdw10.get() >> 16) as u16;
        if last == 0 || last >= self.controller.queue_entries() {
            return Err(Code::INVALID_QUEUE_SIZE);
        }
        if sqe.cdw11.get() & CONTIGUOUS == 0 {
            return Err(Code::INVALID_FIELD);
        }
        let [address, _] = data::prps(sqe);
        if address % u64::from(self.page_bytes()) != 0 {
            return Err(Code::PRP_OFFSET_INVALID);
        }
        if !memory.contains(address, (u64::from(last) + 1) * entry_bytes) {
            return Err(Code::DATA_TRANSFER_ERROR);
        }
        Ok((last + 1, address))
    }

    /// Create I/O Completion Queue (base, section 5.4).
    fn create_completion<M: HostMemory + ?Sized>(&mut self, memory: &M, sqe: &Sqe) -> Outcome {
        let cqid = sqe.cdw10.get() as u16;
        self.queues.check_completion(cqid, self.controller.queues())?;
        if self.registers.configuration.iocqes() != CQE_POWER {
            return Err(Code::INVALID_QUEUE_SIZE);
        }
        let (entries, address) = self.queue_place(memory, sqe, 1 << CQE_POWER)?;
        let vector = (sqe.cdw11.get() >> 16) as u16;
        if vector >= self.settings.vectors.max(1) {
            return Err(Code::INVALID_INTERRUPT_VECTOR);
        }
        let vector = (sqe.cdw11.get() & INTERRUPTS != 0).then_some(vector);
        let mut queue = CompletionQueue::new(cqid, address, entries, vector);
        queue.set_coalescing(self.controller.coalescing());
        if let Some(shadow) = self.shadow {
            queue.begin_shadow(memory, shadow).map_err(|_| Code::DATA_TRANSFER_ERROR)?;
        }
        self.queues.open_completion(cqid);
        self.effects.push_back(Effect::OpenCompletion(queue));
        self.note_queues();
        Ok(Some(0))
    }

    /// Create I/O Submission Queue (base, section 5.5).
    fn create_submission<M: HostMemory + ?Sized>(&mut self, memory: &M, sqe: &Sqe) -> Outcome {
        let (sqid, cqid) = (sqe.cdw10.get() as u16, (sqe.cdw11.get() >> 16) as u16);
        self.queues.check_submission(sqid, cqid, self.controller.queues())?;
        if self.registers.configuration.iosqes() != SQE_POWER {
            return Err(Code::INVALID_QUEUE_SIZE);
        }
        let (entries, address) = self.queue_place(memory, sqe, 1 << SQE_POWER)?;
        let mut queue = SubmissionQueue::new(sqid, address, entries);
        if let Some(shadow) = self.shadow {
            queue.begin_shadow(memory, shadow).map_err(|_| Code::DATA_TRANSFER_ERROR)?;
        }
        self.queues.open_submission(sqid, cqid);
        self.effects.push_back(Effect::OpenSubmission { cqid, queue });
        Ok(Some(0))
    }

    /// Delete I/O Submission Queue (base, section 5.7): completes once its commands have.
    fn delete_submission(&mut self, slot: u16, sqe: &Sqe) -> Outcome {
        let sqid = sqe.cdw10.get() as u16;
        let cqid = self.queues.delete_submission(slot, sqid)?;
        self.effects.push_back(Effect::CloseSubmission { cqid, sqid });
        Ok(None)
    }

    /// Delete I/O Completion Queue (base, section 5.6): its submission queues go first.
    fn delete_completion(&mut self, slot: u16, sqe: &Sqe) -> Outcome {
        let cqid = sqe.cdw10.get() as u16;
        self.queues.delete_completion(slot, cqid)?;
        self.effects.push_back(Effect::CloseCompletion { cqid });
        Ok(None)
    }

    /// Doorbell Buffer Config (base, section 5.8).
    fn configure_doorbells<M: HostMemory + ?Sized>(&mut self, memory: &M, sqe: &Sqe) -> Outcome {
        let ([doorbells, event_indices], page_bytes) = (data::prps(sqe), self.page_bytes());
        for address in [doorbells, event_indices] {
            if address % u64::from(page_bytes) != 0 {
                return Err(Code::INVALID_FIELD);
            }
            if !memory.contains(address, page_bytes.into()) {
                return Err(Code::DATA_TRANSFER_ERROR);
            }
        }
        let shadow = Shadow { doorbells, event_indices, stride: self.settings.stride, page_bytes };
        self.shadow = Some(shadow);
        self.effects.push_back(Effect::Shadow(shadow));
        Ok(Some(0))
    }

    /// Abort (base, section 5.1): bit 0 of the result says that the command was not aborted.
    fn abort(&mut self, slot: u16, sqe: &Sqe) -> Outcome {
        let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        if sqid == 0 {
            return Ok(Some((!self.controller.abort_event_request(cid)).into()));
        }
        let Some(cqid) = self.queues.abort(slot, sqid, cid)? else { return Ok(Some(1)) };
        self.effects.push_back(Effect::Abort { cqid, sqid, cid });
        Ok(None)
    }

    fn execute_by_controller<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        slot: u16,
        sqe: &Sqe,
        now_ms: u64,
    ) {
        let page_bytes = self.page_bytes();
        let room = match room(memory, sqe, page_bytes, self.controller.transfer_bytes_max()) {
            Ok(room) => room,
            Err(status) => return self.refuse(memory, slot, sqe, status),
        };
        let fid = sqe.cdw10.get() as u8;
        let mut brought = Vec::new();
        if sqe.opcode == admin::SET_FEATURES && fid == fid::TIMESTAMP {
            brought = vec![0; TIMESTAMP_BYTES as usize];
            if let Err(status) = gather(memory, sqe, page_bytes, &mut brought) {
                return self.refuse(memory, slot, sqe, status);
            }
        }
        // The controller knows the host's room from an SGL, as fabrics have it.
        let asked = Sqe { sgl: Sgl::transport(room), ..*sqe };
        match self.controller.execute(slot, &asked, &brought, now_ms) {
            Answer::Complete(cqe) => self.complete(memory, slot, &cqe),
            Answer::Data { data, cqe } => match scatter(memory, sqe, page_bytes, &data) {
                Ok(()) => self.complete(memory, slot, &cqe),
                Err(status) => self.refuse(memory, slot, sqe, status),
            },
            Answer::Parked => {}
            // Only fabrics have these.
            Answer::Authenticate | Answer::Close(_) => {
                self.refuse(memory, slot, sqe, Status::fatal(Code::INVALID_OPCODE));
            }
        }
        let interrupts = matches!(fid, fid::INTERRUPT_COALESCING | fid::INTERRUPT_VECTOR_CONFIG);
        if sqe.opcode == admin::SET_FEATURES && interrupts {
            self.effects.push_back(Effect::Coalescing(self.controller.coalescing()));
        }
    }
}

/// Data of the feature Timestamp (base, section 5.27.1.10).
const TIMESTAMP_BYTES: u32 = 8;

/// Bytes that the command has room for. That they can be written is known before the command is executed: reading a log
/// clears events.
fn room<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: &Sqe,
    page_bytes: u32,
    most: Option<u32>,
) -> Result<u32, Status> {
    let bytes = match sqe.opcode {
        admin::IDENTIFY => crate::identify::BYTES as u64,
        admin::GET_LOG_PAGE => GetLogPage::parse(sqe).bytes,
        admin::GET_FEATURES if sqe.cdw10.get() as u8 == fid::TIMESTAMP => TIMESTAMP_BYTES.into(),
        _ => 0,
    };
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    // The controller refuses more.
    if bytes <= most.unwrap_or(LOG_BYTES_MAX) {
        pieces(memory, sqe, bytes, page_bytes)?;
    }
    Ok(bytes)
}

/// Longest part of a log page where MDTS sets no limit, bytes.
const LOG_BYTES_MAX: u32 = 1 << 20;

/// Returns the pieces of the command's data, all of it reachable.
fn pieces<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: &Sqe,
    bytes: u32,
    page_bytes: u32,
) -> Result<Vec<Piece>, Status> {
    let mut pieces = Vec::new();
    data::walk(memory, sqe, bytes, page_bytes, &mut |piece| {
        let (address, bytes) = (piece.address, u64::from(piece.bytes));
        if !memory.contains(address, bytes) {
            return Err(Unmapped { address, bytes });
        }
        pieces.push(piece);
        Ok(())
    })?;
    Ok(pieces)
}

/// Writes an answer's data to where the command wants them.
fn scatter<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: &Sqe,
    page_bytes: u32,
    mut from: &[u8],
) -> Result<(), Status> {
    for piece in pieces(memory, sqe, from.len() as u32, page_bytes)? {
        let (here, rest) = from.split_at(piece.bytes as usize);
        memory.write(piece.address, here).map_err(|_| data::unreachable_data())?;
        from = rest;
    }
    Ok(())
}

/// Reads the data that a command brings.
fn gather<M: HostMemory + ?Sized>(
    memory: &M,
    sqe: &Sqe,
    page_bytes: u32,
    mut into: &mut [u8],
) -> Result<(), Status> {
    for piece in pieces(memory, sqe, into.len() as u32, page_bytes)? {
        let (here, rest) = into.split_at_mut(piece.bytes as usize);
        memory.read(piece.address, here).map_err(|_| data::unreachable_data())?;
        into = rest;
    }
    Ok(())
}
