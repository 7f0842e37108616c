//! What a thread's connections use of it, each in its turn. Nothing of it is another thread's, but for `shared`.

use super::memory::CommandMemory;
use super::namespace_queues::NamespaceQueues;
use super::ready::Ready;
use super::shared::TargetShared;
use super::timers::Timers;
use forebay_io::Reactor;
use forebay_nvme::transport::tcp::Handle;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct ThreadResources {
    pub shared: Arc<TargetShared>,
    pub reactor: Reactor,
    pub memory: CommandMemory,
    pub queues: NamespaceQueues,
    pub ready: Ready,
    pub timers: Timers,
    /// As it was when the round began, or when something finished.
    pub now: Instant,
    /// Connections end once nothing is under way on them.
    pub draining: bool,
    /// Empty between uses.
    pub released: Vec<Handle>,
}

impl ThreadResources {
    /// Since the server began.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now.saturating_duration_since(self.shared.began).as_nanos() as u64
    }

    /// As `now_ns`, the clock of controllers.
    pub(super) fn now_ms(&self) -> u64 {
        self.now.saturating_duration_since(self.shared.began).as_millis() as u64
    }
}
