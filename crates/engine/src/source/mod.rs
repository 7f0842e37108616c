//! Where bytes come from: sources named by URI, and the targets they resolve to.

pub(crate) mod at_once;
pub mod fault;
pub mod file;
mod model;
mod nil;
pub mod stripe;
mod uri;

pub use model::{ModelQueue, SharedDrive};
pub use nil::NilQueue;
pub use uri::Uri;

use crate::queue::Queue;
use crate::reactor::Reactor;
use file::FileTarget;
use forebay_model::job::{Engine, PathKind};
use forebay_model::Error;
use stripe::StripeQueue;

/// One kind of source, for help, docs and the contract suite.
pub struct SourceRow {
    pub scheme: &'static str,
    pub example: &'static str,
    pub what: &'static str,
    /// Whether this version can open it, or what it waits for.
    pub available: Result<(), &'static str>,
}

pub const SOURCES: &[SourceRow] = &[
    SourceRow {
        scheme: "file",
        example: "/mnt/data, file:/dev/nvme0n1",
        what: "a file, a directory of files, a block device",
        available: Ok(()),
    },
    SourceRow {
        scheme: "stripe",
        example: "stripe:?chunk=512k&m=/mnt/a/f&m=/mnt/b/f",
        what: "RAID0 over 1 to 64 sources",
        available: Ok(()),
    },
    SourceRow {
        scheme: "nil",
        example: "nil:?size=64g",
        what: "completes at once: the cost of our own loop",
        available: Ok(()),
    },
    SourceRow {
        scheme: "model",
        example: "model:d7-ps1010?drives=4",
        what: "a timed model of a drive; over=PATH gives it content",
        available: Ok(()),
    },
    SourceRow {
        scheme: "nvme+tcp",
        example: "nvme+tcp://host:4420/NQN?nsid=1&queues=8",
        what: "a namespace over NVMe/TCP",
        available: Err("the NVMe/TCP host"),
    },
    SourceRow {
        scheme: "vfio-user",
        example: "vfio-user:/run/forebay.sock",
        what: "an emulated NVMe drive",
        available: Err("the vfio-user host driver"),
    },
];

/// An address space that workers open queues on.
#[derive(Clone, Debug)]
pub struct Target {
    /// As named in records and messages.
    pub label: String,
    /// Which file the seeded content says it is: `content::file_id` of the file's name.
    pub content_id: u64,
    /// Bytes that the job uses, from offset 0.
    pub bytes: u64,
    pub backing: Backing,
    pub route: Route,
}

/// How a target's bytes reach their destination: the job's path and GPUs, or what `auto` and pairs made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub path: PathKind,
    /// The pair that alone uses it, by its number in the job.
    pub pair: Option<u32>,
}

impl Default for Route {
    fn default() -> Route {
        Route { path: PathKind::Host, pair: None }
    }
}

#[derive(Clone, Debug)]
pub enum Backing {
    File { target: FileTarget, engine: Engine },
    Stripe { chunk: u64, members: Vec<Target> },
    Nil,
    Model { drive: SharedDrive, over: Option<Box<Target>> },
}

/// What a queue must carry.
#[derive(Clone, Copy, Debug)]
pub struct QueueNeeds {
    pub depth: u32,
    pub io_bytes_max: u64,
    /// What was read is copied on at once (`bounce`), so it should lie in the processor's cache.
    pub then_copied: bool,
}

/// Opens the queue of one file, for a path that puts its own over or in place of the engine's.
pub type OpenFile<'a> =
    &'a mut dyn FnMut(&FileTarget, Engine, QueueNeeds, &mut Reactor) -> Result<Box<dyn Queue>, Error>;

impl Target {
    pub fn queue(&self, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        self.queue_over(needs, reactor, &mut |file, engine, needs, reactor| {
            file.queue(engine, needs, reactor)
        })
    }

    /// `queue`, with each file below opened by `open`.
    pub fn queue_over(
        &self,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        match &self.backing {
            Backing::File { target, engine } => open(target, *engine, needs, reactor),
            Backing::Nil => Ok(Box::new(NilQueue::new(self.bytes, needs.depth))),
            Backing::Stripe { chunk, members } => {
                let inner = QueueNeeds {
                    depth: self.member_depth(needs),
                    io_bytes_max: needs.io_bytes_max.min(*chunk),
                    ..needs
                };
                let queues = members
                    .iter()
                    .map(|m| m.queue_over(inner, reactor, open))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(Box::new(StripeQueue::new(queues, *chunk, needs.depth)))
            }
            Backing::Model { drive, over } => {
                let inner = over.as_ref().map(|t| t.queue_over(needs, reactor, open)).transpose()?;
                Ok(Box::new(ModelQueue::new(drive.clone(), inner, self.bytes, needs.depth)))
            }
        }
    }

    fn member_depth(&self, needs: QueueNeeds) -> u32 {
        match &self.backing {
            Backing::Stripe { chunk, members } => {
                StripeQueue::member_depth(needs.depth, needs.io_bytes_max, *chunk, members.len())
            }
            _ => needs.depth,
        }
    }

    /// Submissions that the worker's ring must carry for one queue of this target.
    pub fn ring_depth(&self, needs: QueueNeeds) -> u32 {
        match &self.backing {
            Backing::Stripe { members, .. } => self.member_depth(needs).saturating_mul(members.len() as u32),
            _ => needs.depth,
        }
    }

    /// This target and all below it, depth first.
    pub fn walk(&self) -> Vec<&Target> {
        let mut all = vec![self];
        match &self.backing {
            Backing::Stripe { members, .. } => all.extend(members.iter().flat_map(Target::walk)),
            Backing::Model { over: Some(t), .. } => all.extend(t.walk()),
            _ => {}
        }
        all
    }

    /// The files below, each with its engine.
    pub fn files(&self) -> Vec<(&FileTarget, Engine)> {
        self.walk()
            .into_iter()
            .filter_map(|t| match &t.backing {
                Backing::File { target, engine } => Some((target, *engine)),
                _ => None,
            })
            .collect()
    }

    /// Bytes come from somewhere, so that I/Os need memory.
    pub fn moves_bytes(&self) -> bool {
        self.walk()
            .iter()
            .any(|t| !matches!(t.backing, Backing::Nil | Backing::Model { .. } | Backing::Stripe { .. }))
    }

    /// Alignment of offsets and lengths: the greatest below.
    pub fn align(&self) -> u32 {
        self.files().iter().map(|(f, _)| f.align).max().unwrap_or(1)
    }

    /// Every I/O finishes in `submit`, so that more than one in flight has no meaning.
    pub fn is_inline(&self) -> bool {
        matches!(&self.backing, Backing::File { engine: Engine::Map | Engine::Inline, .. })
    }

    /// A modelled drive is part of it.
    pub fn is_simulated(&self) -> bool {
        self.walk().iter().any(|t| matches!(t.backing, Backing::Model { .. }))
    }
}
