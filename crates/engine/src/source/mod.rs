//! Where bytes come from: sources named by URI, and the targets they resolve to.

pub(crate) mod at_once;
pub mod fault;
pub mod file;
mod model;
mod nil;
mod nvme;
pub mod nvme_tcp;
pub mod stripe;
mod uri;
pub mod vfio_user;

pub use model::{ModelQueue, SharedDrive};
pub use nil::NilQueue;
pub use uri::Uri;

use crate::arena::Arena;
use crate::gpu::cuda::Device;
use crate::queue::Queue;
use crate::rdma::Lent;
use crate::reactor::Reactor;
use file::FileTarget;
use forebay_model::job::{Engine, PathKind};
use forebay_model::Error;
use nvme_tcp::{Remote, Transport};
use std::sync::Arc;
use stripe::StripeQueue;
use vfio_user::Drive;

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
        available: Ok(()),
    },
    SourceRow {
        scheme: "nvme+rdma",
        example: "nvme+rdma://host:4420/NQN?nsid=1&queues=8",
        what: "a namespace over NVMe/RDMA",
        available: Ok(()),
    },
    SourceRow {
        scheme: "vfio-user",
        example: "vfio-user:/run/forebay.sock?nsid=1&queues=8",
        what: "an emulated NVMe drive",
        available: Ok(()),
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
    NvmeTcp(Arc<Remote>),
    VfioUser(Arc<Drive>),
}

/// GPU memory that a card is offered to find out whether it takes any: as much as the GPU's pages have.
const TRIED_BYTES: usize = 2 << 20;

/// Memory that a drive or a network card reaches by itself as long as this lives; drop it before the memory.
pub enum Loan {
    Drive(vfio_user::Mapping),
    Fabric(Lent),
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
            Backing::NvmeTcp(remote) => remote.queue(needs, reactor),
            Backing::VfioUser(drive) => drive.queue(needs, reactor),
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

    /// The remote namespaces below.
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<Remote>> {
        self.walk().into_iter().filter_map(|t| match &t.backing {
            Backing::NvmeTcp(remote) => Some(remote),
            _ => None,
        })
    }

    /// Has remote namespaces move payload straight to and from its place (`Remote::keep_straight`); before the queues
    /// are opened.
    pub fn keep_straight(&self) {
        self.remotes().for_each(|remote| remote.keep_straight());
    }

    /// The emulated drives below.
    pub fn drives(&self) -> impl Iterator<Item = &Arc<Drive>> {
        self.walk().into_iter().filter_map(|t| match &t.backing {
            Backing::VfioUser(drive) => Some(drive),
            _ => None,
        })
    }

    /// Gives what is below, where it moves bytes by itself, a worker's slots to move them to and from: nothing is staged
    /// then, and nothing registered for each I/O.
    ///
    /// # Errors
    /// `Machine`: a device refuses them, or more would be locked than may be.
    pub fn lend(&self, arena: &Arena) -> Result<Vec<Loan>, Error> {
        let drives = self.drives().map(|drive| drive.lend(arena).map(|lent| lent.map(Loan::Drive)));
        let remotes = self.remotes().map(|remote| remote.lend(arena).map(|lent| lent.map(Loan::Fabric)));
        let loans = drives.chain(remotes).collect::<Result<Vec<_>, Error>>()?;
        Ok(loans.into_iter().flatten().collect())
    }

    /// The namespace whose bytes a network card could move to and from a GPU's memory by itself.
    pub fn by_card(&self) -> Option<&Arc<Remote>> {
        match &self.backing {
            Backing::NvmeTcp(remote) if remote.options().transport == Transport::Rdma => Some(remote),
            _ => None,
        }
    }

    /// Whether the card takes that GPU's memory.
    ///
    /// # Errors
    /// Why not.
    pub fn reaches(&self, device: &Arc<Device>) -> Result<(), String> {
        let remote = self.by_card().ok_or("no RDMA card moves its bytes")?;
        let tried = device.slots(1, TRIED_BYTES).map_err(|e| e.to_string())?;
        remote.lend_device(&tried).map(drop)
    }

    /// Its queues wait for what only a ring brings, whatever engine its files are read with.
    pub fn needs_ring(&self) -> bool {
        self.remotes().next().is_some() || self.drives().next().is_some()
    }

    /// Bytes come from somewhere, so that I/Os need memory.
    pub fn moves_bytes(&self) -> bool {
        self.walk()
            .iter()
            .any(|t| !matches!(t.backing, Backing::Nil | Backing::Model { .. } | Backing::Stripe { .. }))
    }

    /// Alignment of offsets and lengths: the greatest below.
    pub fn align(&self) -> u32 {
        let files = self.files().into_iter().map(|(f, _)| f.align).max();
        let blocks = self.remotes().map(|r| r.block_bytes()).chain(self.drives().map(|d| d.block_bytes()));
        files.into_iter().chain(blocks).max().unwrap_or(1)
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
