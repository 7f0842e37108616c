//! The controller's registers, which Fabrics calls properties: enabling, resetting and shutting down (base, sections 3.1.3 and
//! 3.6).

use super::association::Association;
use crate::command::{Cqe, Sqe};
use crate::fabrics::{Cc, Csts, Property, PropertyGet, PropertySet, Version};
use crate::status::{Code, Status};

/// Limit on CSTS.RDY, ms: it follows at once, but hosts take 0 for "no time at all".
pub(crate) const READY_MS: u32 = 500;
/// The version of the base specification that is spoken here.
pub(crate) const VERSION: Version = Version::V2_0;

#[derive(Debug)]
pub(super) struct Registers {
    configuration: Cc,
    status: Csts,
}

/// What the host has asked for by writing CC, both of which may be asked for at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub reset: bool,
    pub shut_down: bool,
}

impl Registers {
    /// After a reset: neither enabled nor ready.
    pub(super) fn new() -> Registers {
        Registers { configuration: Cc(0), status: Csts(0) }
    }

    /// CC.EN and CSTS.RDY are set, and no shutdown has been asked for.
    pub(super) fn ready(&self) -> bool {
        self.status.ready() && !self.is_shut_down()
    }

    /// A shutdown has been asked for, and may be complete.
    pub(super) fn is_shut_down(&self) -> bool {
        self.status.shutdown() != 0
    }

    /// CSTS as a function keeps it over the life of its gateway.
    pub(super) fn status(&self) -> u32 {
        self.status.0
    }

    pub(super) fn restore(&mut self, status: u32) {
        self.status = Csts(status);
    }

    pub(super) fn get(&self, sqe: &Sqe, of: &Association) -> Cqe {
        let Some(property) = PropertyGet::from_sqe(sqe).property() else {
            return Cqe::new(sqe.cid.get(), Status::fatal(Code::INVALID_FIELD), 0);
        };
        let value = match property {
            Property::Cap => of.capabilities(READY_MS).0,
            Property::Vs => VERSION.0.into(),
            Property::Cc => self.configuration.0.into(),
            Property::Csts => self.status.0.into(),
            Property::Nssr => 0,
            Property::Crto => (READY_MS / 500).into(),
        };
        Cqe::new(sqe.cid.get(), Status::SUCCESS, value)
    }

    /// Only CC can be written.
    pub(super) fn set(&mut self, sqe: &Sqe, of: &Association) -> (Cqe, Asked) {
        let command = PropertySet::from_sqe(sqe);
        if command.property() != Some(Property::Cc) {
            return (Cqe::new(sqe.cid.get(), Status::fatal(Code::INVALID_FIELD), 0), Asked::default());
        }
        let asked = self.configure(Cc(command.value.get() as u32), of);
        (Cqe::new(sqe.cid.get(), Status::SUCCESS, 0), asked)
    }

    fn configure(&mut self, new: Cc, of: &Association) -> Asked {
        let old = std::mem::replace(&mut self.configuration, new);
        match (old.enable(), new.enable()) {
            (false, true) if is_acceptable(new, of) => self.enabled(),
            (false, true) => self.status = Csts(Csts::FATAL),
            _ => {}
        }
        Asked { reset: old.enable() && !new.enable(), shut_down: new.shn() != 0 && old.shn() == 0 }
    }

    pub(super) fn enabled(&mut self) {
        self.status = Csts(Csts::READY);
    }

    /// CSTS.SHST says that it is under way until all is durable.
    pub(super) fn shut_down_begins(&mut self) {
        self.status = Csts(self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_OCCURRING);
    }

    pub(super) fn shut_down_ends(&mut self) {
        if self.status.shutdown() == 1 {
            self.status = Csts(self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_COMPLETE);
        }
    }
}

/// Returns whether CC is acceptable: entries of 64 and 16 bytes, 4 KiB pages, round robin, the NVM Command Set. A
/// discovery controller has no I/O queues, and looks at none of it.
fn is_acceptable(cc: Cc, of: &Association) -> bool {
    let queues = (cc.iosqes(), cc.iocqes()) == (6, 4) || of.subsystem.is_discovery();
    queues && cc.page_bytes() == 4096 && cc.ams() == 0 && matches!(cc.css(), 0 | 6)
}
