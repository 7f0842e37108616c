//! What a worker's controllers use of it, each in its turn. Nothing of it is another thread's, but for `gateway`.

use super::command::{Owner, Pages};
use super::gateway_shared::GatewayShared;
use crate::namespace::queues::QueueTable;
use crate::target::log::Level;
use forebay_io::Reactor;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct ThreadResources {
    pub gateway: Arc<GatewayShared>,
    pub number: usize,
    pub reactor: Reactor,
    /// The thread's number at the reactor.
    pub token: u32,
    /// Its queues of the namespaces that its controllers use.
    pub queues: QueueTable<Owner>,
    /// Zeros to write from.
    pub blank: Pages,
    /// As it was when the round began, or when something finished.
    pub now: Instant,
    /// Something was done lately: no sleep before this.
    pub busy_until: Instant,
}

impl ThreadResources {
    /// Since the gateway began.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now.saturating_duration_since(self.gateway.began).as_nanos() as u64
    }

    pub(super) fn now_us(&self) -> u64 {
        self.now.saturating_duration_since(self.gateway.began).as_micros() as u64
    }

    /// Something was done just now.
    #[inline]
    pub(super) fn mark_busy(&mut self) {
        self.busy_until = self.now + self.gateway.spin;
    }

    pub(super) fn say(&self, level: Level, what: &'static str, controller: &str, why: String) {
        let fields = [("controller", controller.into()), ("why", why.into())];
        self.gateway.log.say(level, what, &fields);
    }
}
