//! The transport of a controller's commands: Fabrics, or a PCIe function (base, section 3.1.2; pcie), whose registers and queues
//! are `transport::pcie::device`'s.

use super::connect::Connect;
use super::subsystem::Subsystem;
use crate::fabrics;

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

/// Errors that an asynchronous event tells of (base, figure 146).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorEvent {
    /// A doorbell of a queue that there is not.
    InvalidDoorbellRegister = 0x00,
    InvalidDoorbellValue = 0x01,
    PersistentInternalError = 0x03,
}

impl Function {
    /// The Connect that the host of a function would have sent: none introduces itself, and the one that may use it is
    /// named by its configuration.
    pub(super) fn connect(subsystem: &Subsystem, host: (&str, [u8; 16])) -> Connect {
        Connect {
            qid: 0,
            entries: 2,
            attributes: 0,
            keep_alive_ms: 0,
            host_id: host.1,
            cntlid: fabrics::CNTLID_DYNAMIC,
            subsystem_nqn: subsystem.nqn.clone(),
            host_nqn: host.0.to_owned(),
            keyed: false,
        }
    }
}
