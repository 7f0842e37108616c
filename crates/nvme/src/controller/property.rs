//! The controller's properties: enabling, resetting and shutting down (base, sections 3.1.3 and 3.6).

use super::{Controller, Effect};
use crate::command::{Cqe, Sqe};
use crate::fabrics::{css, Cap, Cc, Csts, Property, PropertyGet, PropertySet, Version};
use crate::status::{Code, Status};

/// Limit on CSTS.RDY, ms: it follows at once, but hosts take 0 for "no time at all".
pub(crate) const READY_MS: u32 = 500;
/// CAP.CRMS: Controller Ready With Media Support.
const READY_WITH_MEDIA: u64 = 1 << 59;
/// The version of the base specification that is spoken here.
pub(crate) const VERSION: Version = Version::V2_0;

impl Controller {
    pub(super) fn property_get(&self, sqe: &Sqe) -> Cqe {
        let Some(property) = PropertyGet::of(sqe).property() else {
            return Cqe::new(sqe.cid.get(), Status::fatal(Code::INVALID_FIELD), 0);
        };
        let value = match property {
            Property::Cap => self.capabilities(),
            Property::Vs => VERSION.0.into(),
            Property::Cc => self.configuration.0.into(),
            Property::Csts => self.status.0.into(),
            Property::Nssr => 0,
            Property::Crto => (READY_MS / 500).into(),
        };
        Cqe::new(sqe.cid.get(), Status::SUCCESS, value)
    }

    fn capabilities(&self) -> u64 {
        let cap = Cap::new(self.queue_entries.into(), READY_MS).0 | READY_WITH_MEDIA;
        cap | u64::from(css::IO_COMMAND_SETS) << 37
    }

    /// Only CC can be written.
    pub(super) fn property_set(&mut self, sqe: &Sqe) -> Cqe {
        let command = PropertySet::of(sqe);
        if command.property() != Some(Property::Cc) {
            return Cqe::new(sqe.cid.get(), Status::fatal(Code::INVALID_FIELD), 0);
        }
        self.configure(Cc(command.value.get() as u32));
        Cqe::new(sqe.cid.get(), Status::SUCCESS, 0)
    }

    fn configure(&mut self, new: Cc) {
        let old = std::mem::replace(&mut self.configuration, new);
        match (old.enable(), new.enable()) {
            (false, true) if self.acceptable(new) => self.status = Csts(Csts::READY),
            (false, true) => self.status = Csts(Csts::FATAL),
            (true, false) => self.reset(),
            _ => {}
        }
        if new.shn() != 0 && old.shn() == 0 {
            self.shut_down();
        }
    }

    /// Returns whether CC is acceptable: entries of 64 and 16 bytes, 4 KiB pages, round robin, the NVM Command Set. A
    /// discovery controller has no I/O queues, and looks at none of it.
    fn acceptable(&self, cc: Cc) -> bool {
        let queues = (cc.iosqes(), cc.iocqes()) == (6, 4) || self.subsystem.is_discovery();
        queues && cc.page_bytes() == 4096 && cc.ams() == 0 && matches!(cc.css(), 0 | 6)
    }

    /// Controller level reset by CC.EN (base, section 3.7.2): queues and features go back to where they began.
    pub(super) fn reset(&mut self) {
        self.status = Csts(0);
        self.configuration = Cc(0);
        self.drop_queues();
        let code = Code::ABORTED_SQ_DELETION;
        let answers = self.events.drain().map(|request| request.answer(Status::again(code), 0));
        self.effects.extend(answers);
        self.features = Default::default();
        self.effects.push_back(Effect::CloseIoQueues);
    }

    /// CSTS.SHST says that it is under way until the driver has made everything durable. Event requests stay, unanswered:
    /// SPDK's host has given them up before, and takes an answer for a violation of the protocol.
    fn shut_down(&mut self) {
        self.status = Csts(self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_OCCURRING);
        self.drop_queues();
        self.effects.push_back(Effect::ShutDown);
    }

    /// Completes `Effect::ShutDown`: the host sees its shutdown complete.
    pub fn shut_down_complete(&mut self) {
        if self.status.shutdown() == 1 {
            self.status = Csts(self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_COMPLETE);
        }
    }

    fn drop_queues(&mut self) {
        self.io_queues.clear();
        // Their commands go with their queues, unanswered.
        self.effects.extend(self.aborts.drain(..).map(|abort| abort.answer(Status::SUCCESS, 1)));
    }
}
