//! Enabling, resets, shutdown, and the fatal status (base, sections 3.5.1, 3.6.1 and 3.7).

use super::{Device, Effect};
use crate::controller::ErrorEvent;
use crate::fabrics::{Cc, Csts};
use crate::transport::pcie::queue::{CompletionQueue, SubmissionQueue};
use crate::transport::pcie::registers::{Aqa, SUBSYSTEM_RESET_OCCURRED};

/// Largest memory page, bytes (CAP.MPSMAX).
const PAGE_BYTES_MAX: u32 = 1 << 16;

/// Why the I/O queues are being closed; what comes later in this list includes what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    Fatal,
    ShutDown,
    /// CC.EN was cleared.
    Controller,
    /// As far as the function goes: the admin queue's registers are reset, too.
    Function,
    /// NSSR was written.
    Subsystem,
}

impl Device {
    pub(super) fn configure(&mut self, new: Cc) {
        let old = std::mem::replace(&mut self.configuration, new);
        match (old.enable(), new.enable()) {
            // A reset that is under way enables when it is over.
            (false, true) if self.closing.is_none() => self.enable(),
            (true, false) => self.reset(Closing::Controller),
            _ => {}
        }
        if new.shn() != 0 && old.shn() == 0 && self.status.shutdown() == 0 {
            self.status.0 |= Csts::SHUTDOWN_OCCURRING;
            self.close(Closing::ShutDown);
        }
    }

    fn enable(&mut self) {
        if let Err(why) = self.acceptable() {
            return self.fail(format!("the host enables the controller with {why}"));
        }
        let (submission, completion) =
            (self.admin_attributes.submission_entries(), self.admin_attributes.completion_entries());
        let mut admin = CompletionQueue::new(0, self.admin_completion, completion, Some(0));
        admin.open_plain(SubmissionQueue::new(0, self.admin_submission, submission));
        if self.holds_back {
            admin.hold_back();
        }
        self.admin = Some(admin);
        self.controller.enabled();
        self.status = Csts(self.status.0 & SUBSYSTEM_RESET_OCCURRED | Csts::READY);
    }

    /// Checks what the host asks for with CC and the admin queue's registers.
    fn acceptable(&self) -> Result<(), String> {
        let (cc, aqa) = (self.configuration, self.admin_attributes);
        let page_bytes = cc.page_bytes();
        let aligned = |address: u64| address % u64::from(page_bytes.max(1)) == 0;
        if page_bytes > PAGE_BYTES_MAX {
            return Err(format!("memory pages of {page_bytes} bytes (CC.MPS)"));
        }
        if cc.ams() != 0 {
            return Err(format!("arbitration {} (CC.AMS)", cc.ams()));
        }
        if !matches!(cc.css(), 0 | 6) {
            return Err(format!("command set {} (CC.CSS)", cc.css()));
        }
        if aqa.submission_entries() < 2 || aqa.completion_entries() < 2 {
            return Err("an admin queue of one entry (AQA)".into());
        }
        if !aligned(self.admin_submission) || !aligned(self.admin_completion) {
            return Err("an admin queue that doesn't begin with a page".into());
        }
        Ok(())
    }

    fn reset(&mut self, depth: Closing) {
        self.admin = None;
        self.aborts.clear();
        self.late.clear();
        self.controller.disabled();
        self.close(depth);
    }

    pub(super) fn subsystem_reset(&mut self) {
        self.configuration = Cc(0);
        self.reset(Closing::Subsystem);
    }

    /// A reset of the function, as PCI has it (FLR): all its registers go back to where they began. It is over when
    /// `CloseQueues`, if it comes, is answered.
    pub fn function_reset(&mut self) {
        self.configuration = Cc(0);
        self.reset(Closing::Function);
    }

    /// Something is wrong that no completion can tell of: CSTS.CFS, and nothing is done until the host resets.
    pub(super) fn fail(&mut self, why: String) {
        if self.status.fatal() {
            return;
        }
        self.controller.raise_error(ErrorEvent::PersistentInternalError);
        self.status.0 |= Csts::FATAL;
        self.effects.push_back(Effect::Fatal(why));
        self.close(Closing::Fatal);
    }

    fn close(&mut self, why: Closing) {
        match self.closing {
            // Of two that take all registers back the later one says whether a subsystem reset is told of (CSTS.NSSRO).
            Some(_) if why >= Closing::Function => self.closing = Some(why),
            Some(already) => self.closing = Some(already.max(why)),
            None if self.completions.is_empty() => self.closed(why),
            None => {
                self.closing = Some(why);
                self.effects.push_back(Effect::CloseQueues);
            }
        }
    }

    /// Completes `Effect::CloseQueues`.
    pub fn queues_closed(&mut self) {
        if let Some(why) = self.closing.take() {
            self.completions.clear();
            self.submissions.clear();
            self.aborts.clear();
            self.controller.has_queues(std::iter::empty());
            self.closed(why);
        }
    }

    fn closed(&mut self, why: Closing) {
        match why {
            Closing::Fatal => {}
            Closing::ShutDown => self.effects.push_back(Effect::ShutDown),
            Closing::Controller | Closing::Function | Closing::Subsystem => self.back_to_start(why),
        }
    }

    fn back_to_start(&mut self, depth: Closing) {
        self.shadow = None;
        self.interrupt_mask = 0;
        let occurred = match depth {
            Closing::Subsystem => SUBSYSTEM_RESET_OCCURRED,
            Closing::Function => 0,
            _ => self.status.0 & SUBSYSTEM_RESET_OCCURRED,
        };
        self.status = Csts(occurred);
        if depth > Closing::Controller {
            self.admin_attributes = Aqa(0);
            (self.admin_submission, self.admin_completion) = (0, 0);
        }
        if self.configuration.enable() {
            self.enable();
        }
    }

    /// Completes `Effect::ShutDown`: the host sees its shutdown complete.
    pub fn shut_down_complete(&mut self) {
        if self.status.shutdown() == 1 {
            self.status.0 = self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_COMPLETE;
        }
    }
}
