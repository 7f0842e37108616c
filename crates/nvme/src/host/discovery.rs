//! Queries of a discovery service (base, section 3.1.2.3).

use super::{Action, ControllerInfo, Failure, Options, RequestId, Session};
use crate::command::Cqe;
use crate::discovery::{Log, ReadError, Reader};
use crate::log::GetLogPage;
use crate::nqn;

/// Bytes of the log that are asked for at once.
const PART_BYTES: u32 = 4096;

/// The log as it is being read, and as it was read last.
#[derive(Debug)]
pub(super) struct Reading {
    reader: Reader,
    log: Log,
}

impl Reading {
    pub(super) fn new() -> Reading {
        Reading { reader: Reader::new(PART_BYTES), log: Log::default() }
    }

    /// The next part to ask for. None: all of it is here, and the next reading begins at its start.
    pub(super) fn next(&mut self) -> Option<GetLogPage> {
        let page = self.reader.next_command();
        if page.is_none() {
            self.log = std::mem::replace(&mut self.reader, Reader::new(PART_BYTES)).into_log();
        }
        page
    }

    /// Takes the part that came.
    pub(super) fn take(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.reader.take(data).map_err(|why| match why {
            ReadError::Unsteady => Failure::again("Get Log Page, Discovery", why.to_string()),
            why => Failure::protocol("Get Log Page, Discovery", why.to_string()),
        })
    }
}

/// A session with a discovery controller, driven like `Session`. At `Event::Ready` its log is read. With a keep alive
/// timeout it may be kept: `Event::Ready` comes again each time the log has changed and was read anew.
#[derive(Debug)]
pub struct Discovery {
    session: Session,
}

impl Discovery {
    /// Asks the well-known discovery subsystem, once.
    pub fn new(host_nqn: String, host_id: [u8; 16], timeout_ms: u64, now_ms: u64) -> Discovery {
        let options = Options {
            host_nqn,
            host_id,
            subsystem_nqn: nqn::DISCOVERY.into(),
            queues: 0,
            queue_entries: 2,
            keep_alive_ms: 0,
            timeout_ms,
            namespace: None,
        };
        Discovery::with_options(options, now_ms)
    }

    /// Asks the discovery subsystem that the options name.
    pub fn with_options(options: Options, now_ms: u64) -> Discovery {
        Discovery { session: Session::begin(options, Some(Reading::new()), now_ms) }
    }

    pub fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
        self.session.next(now_ms)
    }

    pub fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64) {
        self.session.completed(request_id, cqe, data, now_ms);
    }

    pub fn authenticated(&mut self, now_ms: u64) {
        self.session.authenticated(now_ms);
    }

    pub fn controller(&self) -> &ControllerInfo {
        self.session.controller()
    }

    /// The log as last read; empty before the first `Event::Ready`.
    pub fn log(&self) -> &Log {
        static EMPTY: Log = Log { generation: 0, endpoints: Vec::new(), malformed: Vec::new() };
        self.session.discovery.as_ref().map_or(&EMPTY, |reading| &reading.log)
    }
}
