//! What one host and one subsystem have agreed: by Connect, or, for a PCIe function, by configuration. What a controller
//! supports follows from it and from nothing else.

use super::connect::{Admitted, Connect, Refusal, HOSTID, HOSTNQN, QID, SUBNQN};
use super::function::{Function, Transport};
use super::subsystem::{HostSettings, Subsystem};
use crate::fabrics::{css, Cap};
use crate::status::Code;
use std::sync::Arc;

/// CAP.CRMS: Controller Ready With Media Support.
const READY_WITH_MEDIA: u64 = 1 << 59;

#[derive(Debug)]
pub(super) struct Association {
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) transport: Transport,
    pub(super) id: u16,
    /// The name that the host used: a discovery subsystem also has the well-known name.
    subsystem_nqn: String,
    pub(super) host_nqn: String,
    pub(super) host_id: [u8; 16],
    /// I/O queues that this host may have, and entries of each.
    pub(super) queues: u16,
    pub(super) queue_entries: u16,
    /// The host has to authenticate, and has done so or needn't.
    pub(super) authentication: bool,
    pub(super) authenticated: bool,
}

impl Association {
    pub(super) fn new(
        subsystem: Arc<Subsystem>,
        connect: &Connect,
        settings: &HostSettings,
        transport: Transport,
        id: u16,
    ) -> Association {
        let limits = &subsystem.limits;
        Association {
            id,
            transport,
            subsystem_nqn: connect.subsystem_nqn.clone(),
            host_nqn: connect.host_nqn.clone(),
            host_id: connect.host_id,
            queues: subsystem.queues_of(settings),
            queue_entries: settings
                .queue_entries
                .map_or(limits.queue_entries, |n| n.min(limits.queue_entries)),
            authentication: settings.authentication,
            authenticated: !settings.authentication,
            subsystem,
        }
    }

    pub(super) fn is_pcie(&self) -> bool {
        self.transport.is_pcie()
    }

    pub(super) fn function(&self) -> Option<Function> {
        self.transport.function()
    }

    pub(super) fn has_write_cache(&self) -> bool {
        self.subsystem.namespaces().is_some_and(|all| all.values().any(|one| one.volatile_write_cache))
    }

    /// CAP, as both kinds of controller have it.
    pub(super) fn capabilities(&self, timeout_ms: u32) -> Cap {
        let cap = Cap::new(self.queue_entries.into(), timeout_ms).0;
        Cap(cap | READY_WITH_MEDIA | u64::from(css::IO_COMMAND_SETS) << 37)
    }

    /// CAP of a function: all of its memory pages are at least 4 KiB, at most 64 KiB.
    pub(super) fn function_capabilities(&self, timeout_ms: u32, stride: u8) -> Cap {
        const SUBSYSTEM_RESET: u64 = 1 << 36;
        const PAGE_MAX_64K: u64 = 4 << 52;
        let both = self.capabilities(timeout_ms).0;
        Cap(both | SUBSYSTEM_RESET | PAGE_MAX_64K | u64::from(stride & 0xf) << 32)
    }

    /// Fewer I/O queues than the host's settings allow (or, later, more again); never less than one, the least that can be
    /// granted.
    pub(super) fn limit_queues(&mut self, most: u16) {
        let own = self.subsystem.settings(&self.host_nqn);
        if let Some(allowed) = own.map(|own| self.subsystem.queues_of(own)) {
            self.queues = allowed.min(most.max(1));
        }
    }

    /// Checks the Connect of an I/O queue to a controller that is `ready`, as far as it is not a matter of its other queues.
    pub(super) fn check_io(&self, connect: &Connect, ready: bool) -> Result<(), Refusal> {
        self.check_owner(connect)?;
        if !self.authenticated {
            return Err(Refusal::plain(
                Code::AUTHENTICATION_REQUIRED,
                "the admin queue is not authenticated",
            ));
        }
        if !ready {
            return Err(Refusal::plain(Code::COMMAND_SEQUENCE_ERROR, "the controller is not enabled"));
        }
        if connect.qid == 0 || connect.qid > self.queues {
            let what = format!("queue {}, where I/O queues are 1 to {}", connect.qid, self.queues);
            return Err(Refusal::invalid(QID, what));
        }
        if connect.entries > self.queue_entries {
            return Err(Refusal::queue_size(connect.entries - 1, self.queue_entries));
        }
        Ok(())
    }

    /// An I/O queue belongs to the host and the subsystem that the admin queue named.
    fn check_owner(&self, connect: &Connect) -> Result<(), Refusal> {
        if connect.cntlid != self.id {
            return Err(connect.no_controller());
        }
        if connect.subsystem_nqn != self.subsystem_nqn {
            let what = format!("controller {} is of {}", self.id, self.subsystem_nqn);
            return Err(Refusal::invalid(SUBNQN, what));
        }
        if connect.host_nqn != self.host_nqn {
            return Err(Refusal::invalid(HOSTNQN, format!("controller {} is another host's", self.id)));
        }
        if connect.host_id != self.host_id {
            return Err(Refusal::invalid(HOSTID, "its host identifier is not that of the admin queue"));
        }
        Ok(())
    }

    /// The answer to a Connect that is let in.
    pub(super) fn admitted(&self, connect: &Connect) -> Admitted {
        connect.admitted(self.id, self.authentication)
    }
}
