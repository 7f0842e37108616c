//! The driver's side of a PCIe function: bringing it up, its I/O queues, and caring for it.
//!
//! `Host` lets `host::Session` speak: what that asks for as Fabrics commands (Connect, properties) are registers here, all
//! else goes over the admin queue. I/O queues are values of their own (`HostQueue`), for threads of their own. Which
//! memory the function may reach is the driver's to say; `Host` is given some of it.

mod admin;
mod queue;

use super::memory::Unmapped;
use super::shadow::Shadow;
use crate::fabrics::Cap;
use crate::host::{Event, Failure, FailureKind, Options, RequestId, Session};
pub use queue::{point, queue_bytes, HostQueue, Rung};
use std::collections::{BTreeMap, VecDeque};

/// BAR0 of a function. Err, in words: it can't be reached any more.
pub trait Bar {
    /// 4 or 8 bytes.
    fn read(&mut self, offset: u64, bytes: usize) -> Result<u64, String>;

    fn write(&mut self, offset: u64, bytes: usize, value: u64) -> Result<(), String>;
}

/// Memory page that is used, bytes (CC.MPS 0).
pub const PAGE_BYTES: u32 = 4096;
/// Data of an admin command, bytes, at most. The session has one command with data out at a time.
const DATA_BYTES: u64 = 256 << 10;

/// Offsets in the memory that `Host` is given.
mod place {
    use super::{DATA_BYTES, PAGE_BYTES};

    const PAGE: u64 = PAGE_BYTES as u64;
    pub const SUBMISSION: u64 = 0;
    pub const COMPLETION: u64 = PAGE;
    pub const DOORBELLS: u64 = 2 * PAGE;
    pub const EVENT_INDICES: u64 = 3 * PAGE;
    /// A PRP list, then the data that it names.
    pub const LIST: u64 = 4 * PAGE;
    pub const DATA: u64 = 5 * PAGE;
    pub const END: u64 = DATA + DATA_BYTES;
}

/// Memory that `Host` needs, bytes: zeroed, contiguous for the function, at the start of a page.
pub const MEMORY_BYTES: u64 = place::END;

/// Action to take, or event to wait for.
#[derive(Debug)]
pub enum Step {
    Event(Event),
    /// This I/O queue was created.
    Queue(HostQueue),
    /// The queue pair was deleted: its memory is free.
    Deleted(u16),
    /// An Abort was answered. `aborted`: the function gave up on the command; else it ends as it would have.
    Aborted {
        sqid: u16,
        cid: u16,
        aborted: bool,
    },
    /// Call `next` again at an interrupt of vector 0, and at this time.
    Wait {
        until_ms: u64,
    },
}

/// A queue that is being created or deleted.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    entries: u16,
    address: u64,
    vector: Option<u16>,
}

/// The controller is being disabled, before the admin queue is set up; this ticket waits for it.
#[derive(Clone, Copy, Debug)]
struct Starting {
    request_id: RequestId,
    until_ms: u64,
}

/// Purpose of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// With so many bytes of data to come.
    Session(RequestId, u32),
    CreateCompletion(u16),
    CreateSubmission(u16),
    DeleteSubmission(u16),
    DeleteCompletion(u16),
    ShadowDoorbells,
    Abort {
        sqid: u16,
        cid: u16,
    },
}

/// A function's controller, from its driver's side.
#[derive(Debug)]
pub struct Host {
    session: Session,
    timeout_ms: u64,
    address: u64,
    capabilities: Cap,
    admin: Option<HostQueue>,
    /// Purposes of the commands in flight, by identifier, and the times by which they should end.
    out: BTreeMap<u16, (Purpose, Option<u64>)>,
    steps: VecDeque<Step>,
    /// Purposes of commands to come.
    jobs: VecDeque<Purpose>,
    wanted: BTreeMap<u16, Wanted>,
    starting: Option<Starting>,
    shadow: Option<Shadow>,
}

impl Host {
    /// `address`: of `MEMORY_BYTES`. Of `options`, the names and the keep-alive time mean nothing to a function, but that
    /// the names must be well-formed.
    pub fn new(options: Options, address: u64, now_ms: u64) -> Host {
        Host {
            timeout_ms: options.timeout_ms,
            session: Session::new(options, now_ms),
            address,
            capabilities: Cap(0),
            admin: None,
            out: BTreeMap::new(),
            steps: VecDeque::new(),
            jobs: VecDeque::new(),
            wanted: BTreeMap::new(),
            starting: None,
            shadow: None,
        }
    }

    /// Returns the findings: the controller, its namespaces.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// CAP; once the session is ready.
    pub fn capabilities(&self) -> Cap {
        self.capabilities
    }

    /// Shadow doorbells, where the controller has them.
    pub fn shadow(&self) -> Option<Shadow> {
        self.shadow
    }
}

fn gone(asked: &str, found: String) -> Failure {
    Failure { kind: FailureKind::Again, asked: asked.into(), found, status: None }
}

fn no_memory(unmapped: Unmapped) -> Failure {
    gone("the queues' memory", unmapped.to_string())
}
