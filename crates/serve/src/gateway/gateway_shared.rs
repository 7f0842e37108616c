//! State that all threads of a gateway share.

use crate::target::log::{Level, Log};
use crate::target::thread_pool::Failure;
use forebay_io::monotonic_now;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct GatewayShared {
    /// Number of workers.
    pub threads: usize,
    /// CPUs that they stay on, in turn; none: anywhere.
    pub cpus: Vec<u32>,
    /// How long a worker looks again before it sleeps.
    pub spin: Duration,
    pub log: Log,
    pub began: Instant,
    /// File by which a supervisor waits for the end of all rings.
    pub life: Option<Arc<File>>,
    pub failure: Failure,
}

impl GatewayShared {
    /// To its log.
    pub(super) fn say(&self, what: &'static str, fields: &[(&'static str, serde_json::Value)]) {
        self.log.say(Level::Info, what, fields);
    }

    /// As the workers count time.
    pub(super) fn now_ns(&self) -> u64 {
        monotonic_now().saturating_duration_since(self.began).as_nanos() as u64
    }
}
