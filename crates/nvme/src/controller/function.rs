//! The controller of a PCIe function: the differences from one created by Connect (base, section 3.1.2; pcie).
//!
//! Registers and queues are the function's (`transport::pcie::device`); what is executed here are its admin commands.

use super::keep_alive::KeepAlive;
use super::subsystem::{HostSettings, Subsystem};
use super::{connect::Connect, Controller};
use crate::command::{Cqe, Sqe};
use crate::fabrics::{self, css, Cap, Csts};
use crate::feature::{event_type, AsyncEvent};
use crate::log::lid;
use crate::status::{Code, Status};
use crate::transport::pcie::queue::Coalescing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Transport of a controller's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Fabrics {
        /// Hosts name memory by keys (RDMA).
        keyed: bool,
    },
    Pcie(Function),
}

/// Description of a PCIe function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// PCI vendor, and that of the subsystem.
    pub vendor: u16,
    pub subsystem_vendor: u16,
    /// Interrupt vectors, at least 1.
    pub vectors: u16,
    /// Doorbell Buffer Config is supported.
    pub shadow_doorbells: bool,
}

impl Transport {
    pub(super) fn is_pcie(self) -> bool {
        matches!(self, Transport::Pcie(_))
    }

    pub(super) fn is_keyed(self) -> bool {
        matches!(self, Transport::Fabrics { keyed: true })
    }

    pub(super) fn function(self) -> Option<Function> {
        match self {
            Transport::Fabrics { .. } => None,
            Transport::Pcie(function) => Some(function),
        }
    }
}

/// Interrupt features (base, sections 5.27.1.6 and 5.27.1.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interrupts {
    /// THR in bits 7:0, TIME in bits 15:8.
    pub coalescing: u32,
    /// Vectors with Coalescing Disable.
    pub excepted: BTreeSet<u16>,
}

/// Interrupt Vector Configuration: CD, Coalescing Disable.
pub(super) const COALESCING_DISABLE: u32 = 1 << 16;

/// Errors that an asynchronous event tells of (base, figure 146).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorEvent {
    /// A doorbell of a queue that there is not.
    InvalidDoorbellRegister = 0x00,
    InvalidDoorbellValue = 0x01,
    PersistentInternalError = 0x03,
}

impl Controller {
    /// The controller of a function. No host introduces itself: the one that may use it is named by its configuration.
    pub fn of_function(
        subsystem: Arc<Subsystem>,
        function: Function,
        host: (&str, [u8; 16]),
        cntlid: u16,
        now_ms: u64,
    ) -> Controller {
        let connect = Connect {
            qid: 0,
            entries: 2,
            attributes: 0,
            keep_alive_ms: 0,
            host_id: host.1,
            cntlid: fabrics::CNTLID_DYNAMIC,
            subsystem_nqn: subsystem.nqn.clone(),
            host_nqn: host.0.to_owned(),
            keyed: false,
        };
        let controller = Controller::new(subsystem, &connect, &HostSettings::default(), cntlid, now_ms);
        Controller { transport: Transport::Pcie(function), keep_alive: KeepAlive::off(), ..controller }
    }

    /// CC.EN was set, and what it asks for can be had.
    pub(crate) fn enabled(&mut self) {
        self.status = Csts(Csts::READY);
    }

    /// A reset: parked commands are forgotten, features go back to where they began.
    pub(crate) fn disabled(&mut self) {
        self.reset();
        self.effects.clear();
    }

    pub(crate) fn has_queues(&mut self, queues: impl Iterator<Item = u16>) {
        self.io_queues = queues.collect();
    }

    /// Capabilities of a function (CAP): all of its memory pages are at least 4 KiB, at most 64 KiB.
    pub(crate) fn function_capabilities(&self, timeout_ms: u32, stride: u8) -> Cap {
        const SUBSYSTEM_RESET: u64 = 1 << 36;
        const PAGE_MAX_64K: u64 = 4 << 52;
        const READY_WITH_MEDIA: u64 = 1 << 59;
        let cap = Cap::new(self.queue_entries.into(), timeout_ms).0;
        let all = SUBSYSTEM_RESET | PAGE_MAX_64K | READY_WITH_MEDIA | u64::from(css::IO_COMMAND_SETS) << 37;
        Cap(cap | all | u64::from(stride & 0xf) << 32)
    }

    /// I/O queues that the host may have.
    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    /// Longest transfer, bytes; None: no limit.
    pub(crate) fn transfer_bytes_max(&self) -> Option<u32> {
        self.subsystem.limits.transfer_bytes
    }

    pub(crate) fn queue_entries(&self) -> u16 {
        self.queue_entries
    }

    pub(crate) fn coalescing(&self) -> Coalescing {
        let interrupts = &self.features.interrupts;
        let (threshold, time) = (interrupts.coalescing & 0xff, interrupts.coalescing >> 8 & 0xff);
        Coalescing {
            completions: threshold as u16 + 1,
            time_us: time * 100,
            excepted: interrupts.excepted.iter().copied().collect(),
        }
    }

    /// The completion of a command that failed before it came here: it is in the Error Information log.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, status: Status) -> Cqe {
        match self.note_failure(sqe, super::Answer::Complete(Cqe::new(sqe.cid.get(), status, 0))) {
            super::Answer::Complete(cqe) => cqe,
            _ => Cqe::new(sqe.cid.get(), status, 0),
        }
    }

    /// Tells the host of an error that no completion tells of.
    pub(crate) fn raise_error(&mut self, error: ErrorEvent) {
        let lid = lid::ERROR_INFORMATION;
        self.raise(AsyncEvent { kind: event_type::ERROR, information: error as u8, lid });
    }

    /// Abort of a parked Asynchronous Event Request. False: there is none with that identifier.
    pub(crate) fn abort_parked(&mut self, cid: u16) -> bool {
        self.abort_event_request(cid)
    }

    pub(super) fn set_coalescing(&mut self, value: u32) -> Result<(), Code> {
        self.features.interrupts.coalescing = value & 0xffff;
        Ok(())
    }

    pub(super) fn set_vector(&mut self, value: u32) -> Result<(), Code> {
        let vector = self.vector(value)?;
        let excepted = &mut self.features.interrupts.excepted;
        match value & COALESCING_DISABLE {
            0 => excepted.remove(&vector),
            _ => excepted.insert(vector),
        };
        Ok(())
    }

    /// The vector that CDW11 names.
    pub(super) fn vector(&self, value: u32) -> Result<u16, Code> {
        let vectors = self.transport.function().map_or(0, |function| function.vectors);
        Some(value as u16).filter(|vector| *vector < vectors).ok_or(Code::INVALID_FIELD)
    }
}
