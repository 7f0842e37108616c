//! Registers of BAR0, but for doorbells (base, section 3.1.3).

use crate::controller::{READY_MS, VERSION};
use crate::fabrics::{Cc, Csts};
use crate::transport::pcie::registers::{self, offset, Aqa};

/// Largest memory page, bytes (CAP.MPSMAX).
const PAGE_BYTES_MAX: u32 = 1 << 16;
/// Bits of AQA that say something.
const AQA_BITS: u32 = 0x0fff_0fff;
/// Bits of ASQ and ACQ that say nothing: the queues begin with a page.
const WITHIN_PAGE: u64 = 0xfff;

/// Consequence of a write, beside the register's new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Plain,
    /// CC was this before.
    Configuration(Cc),
    /// NSSR got its value.
    SubsystemReset,
}

/// How far a reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// CC.EN was cleared.
    Controller,
    /// As far as the function goes: the admin queue's registers are reset, too.
    Function,
    /// NSSR was written.
    Subsystem,
}

/// What the host wrote, and the status that it reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    pub configuration: Cc,
    pub status: Csts,
    pub admin_attributes: Aqa,
    pub admin_submission: u64,
    pub admin_completion: u64,
    pub interrupt_mask: u32,
}

impl Registers {
    /// Registers that stood so in another process.
    pub fn restored(self) -> Registers {
        Registers {
            admin_attributes: Aqa(self.admin_attributes.0 & AQA_BITS),
            admin_submission: self.admin_submission & !WITHIN_PAGE,
            admin_completion: self.admin_completion & !WITHIN_PAGE,
            ..self
        }
    }

    /// Eight bytes of registers, from a multiple of eight on; CAP is the controller's. What isn't a register is 0.
    pub fn read(&self, at: u64) -> u64 {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match at {
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

    pub fn write(&mut self, offset: u64, value: u32) -> Written {
        let low = |old: u64| (old & !0xffff_ffff | u64::from(value)) & !WITHIN_PAGE;
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            offset::INTMS => self.interrupt_mask |= value,
            offset::INTMC => self.interrupt_mask &= !value,
            offset::CC => {
                return Written::Configuration(std::mem::replace(&mut self.configuration, Cc(value)))
            }
            // Write 1 to clear.
            offset::CSTS => self.status.0 &= !(value & registers::SUBSYSTEM_RESET_OCCURRED),
            offset::NSSR if value == registers::SUBSYSTEM_RESET => return Written::SubsystemReset,
            offset::AQA => self.admin_attributes = Aqa(value & AQA_BITS),
            offset::ASQ => self.admin_submission = low(self.admin_submission),
            0x2c => self.admin_submission = high(self.admin_submission),
            offset::ACQ => self.admin_completion = low(self.admin_completion),
            0x34 => self.admin_completion = high(self.admin_completion),
            _ => {}
        }
        Written::Plain
    }

    /// Checks what the host asks for with CC and the admin queue's registers.
    pub fn acceptable(&self) -> Result<(), String> {
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

    /// The controller is enabled.
    pub fn set_ready(&mut self) {
        self.status = Csts(self.status.0 & registers::SUBSYSTEM_RESET_OCCURRED | Csts::READY);
    }

    /// CSTS.CFS: nothing is done until the host resets.
    pub fn set_fatal(&mut self) {
        self.status.0 |= Csts::FATAL;
    }

    /// CSTS.SHST: the host shuts the controller down.
    pub fn set_shutting_down(&mut self) {
        self.status.0 |= Csts::SHUTDOWN_OCCURRING;
    }

    /// The host sees its shutdown complete, if it asked for one.
    pub fn set_shut_down(&mut self) {
        if self.status.shutdown() == 1 {
            self.status.0 = self.status.0 & !(0b11 << 2) | Csts::SHUTDOWN_COMPLETE;
        }
    }

    /// A reset is over: all but what is asked for with CC goes back to where it began.
    pub fn reset(&mut self, depth: Depth) {
        self.interrupt_mask = 0;
        self.status = Csts(match depth {
            Depth::Subsystem => registers::SUBSYSTEM_RESET_OCCURRED,
            Depth::Function => 0,
            Depth::Controller => self.status.0 & registers::SUBSYSTEM_RESET_OCCURRED,
        });
        if depth > Depth::Controller {
            self.admin_attributes = Aqa(0);
            (self.admin_submission, self.admin_completion) = (0, 0);
        }
    }
}
