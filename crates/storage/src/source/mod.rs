//! Sources named by URI, and the targets they resolve to.

pub(crate) mod at_once;
mod controller;
pub(crate) mod fault;
pub(crate) mod file;
mod model;
mod nil;
pub(crate) mod nvme;
pub(crate) mod nvme_tcp;
mod plan;
mod shared_drive;
pub(crate) mod stripe;
pub(crate) mod uri;
pub(crate) mod vfio_user;

pub use controller::{Accepted, ControllerReport, Discovered, Inquiry};
pub use file::OpenFileSource;
pub use model::OpenModel;
pub use nil::OpenNil;
pub use nvme::OpenNamespace;
pub use plan::{Action, Examiner, FilePlan, Found, Open, Source, SourcePlan, Timing, Uri, Workers};
pub use shared_drive::SharedDrive;
pub use stripe::OpenStripe;

use file::FileTarget;
use forebay_io::{Arena, CudaDevice, DeviceMemory, Queue, Reactor};
use forebay_model::device::DriveModel;
use forebay_model::job::{Engine, PathKind};
use forebay_model::Error;
use nvme::{Connection, SourceReport};
use nvme_tcp::Transport;
use serde::Serialize;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Asks the host of that name which sources of a kind it offers.
type Discover = fn(&str, &Inquiry) -> Result<Discovered, Error>;

/// One kind of source, for help, docs and the contract suite.
pub struct SourceRow {
    pub scheme: &'static str,
    pub example: &'static str,
    pub what: &'static str,
    /// Reads what stands behind `scheme:`.
    pub parse: fn(uri::Text) -> Result<Uri, Error>,
    /// Availability in this version, or what it waits for.
    pub available: Result<(), &'static str>,
    /// Names that may stand behind `scheme:`, where these are known.
    pub names: fn() -> Vec<&'static str>,
    /// What readers read in its place, which take only the names of files and block devices.
    pub instead: &'static str,
    /// Asks a host, by its name or as these sources name it, which of them it offers; None: hosts offer none.
    pub discover: Option<Discover>,
}

impl SourceRow {
    /// The row of the scheme that a text begins with; that of files, where it names none.
    pub fn for_text(text: &str) -> &'static SourceRow {
        uri::named(text).map_or(&SOURCES[0], |(row, _)| row)
    }

    /// What readers read in the place of a URI of any kind, also one that names no source; None for the name of a file.
    pub fn instead_of(text: &str) -> Option<&'static str> {
        match (uri::named(text), text.split_once(':')) {
            (Some((row, _)), _) => Some(row.instead),
            (None, Some((_, rest))) if rest.starts_with("//") => {
                Some("a file, also of a network file system that is mounted")
            }
            _ => None,
        }
    }

    /// The source that its example names.
    pub fn named(&self) -> Result<Uri, Error> {
        Uri::recognise(self.example.split(", ").next().unwrap_or_default())
    }
}

pub const SOURCES: &[SourceRow] = &[
    SourceRow {
        scheme: "file",
        example: "/mnt/data, file:/dev/nvme0n1",
        what: "a file, a directory of files, a block device",
        parse: file::parse,
        available: Ok(()),
        names: Vec::new,
        instead: "the path without file:",
        discover: None,
    },
    SourceRow {
        scheme: "stripe",
        example: "stripe:?chunk=512k&m=/mnt/a/f&m=/mnt/b/f",
        what: "RAID0 over 1 to 64 sources",
        parse: stripe::parse,
        available: Ok(()),
        names: Vec::new,
        instead: "forebay.open([…], stripe_bytes=…) with the names of its members",
        discover: None,
    },
    SourceRow {
        scheme: "nil",
        example: "nil:?size=64g",
        what: "completes at once: the cost of our own loop",
        parse: nil::parse,
        available: Ok(()),
        names: Vec::new,
        instead: "a file; forebay bench runs on nil:",
        discover: None,
    },
    SourceRow {
        scheme: "model",
        example: "model:d7-ps1010?drives=4",
        what: "a timed model of a drive; over=PATH gives it content",
        parse: model::parse,
        available: Ok(()),
        names: DriveModel::names,
        instead: "a file; forebay bench runs on model:",
        discover: None,
    },
    SourceRow {
        scheme: "nvme+tcp",
        example: "nvme+tcp://host:4420/NQN?nsid=1&queues=8",
        what: "a namespace over NVMe/TCP",
        parse: |text| nvme_tcp::parse(text, Transport::Tcp),
        available: Ok(()),
        names: Vec::new,
        instead: "the namespace as a block device: nvme connect -t tcp …, then /dev/nvme1n1",
        discover: Some(nvme_tcp::discover),
    },
    SourceRow {
        scheme: "nvme+rdma",
        example: "nvme+rdma://host:4420/NQN?nsid=1&queues=8",
        what: "a namespace over NVMe/RDMA",
        parse: |text| nvme_tcp::parse(text, Transport::Rdma),
        available: Ok(()),
        names: Vec::new,
        instead: "the namespace as a block device: nvme connect -t rdma …, then /dev/nvme1n1",
        discover: Some(nvme_tcp::discover),
    },
    SourceRow {
        scheme: "vfio-user",
        example: "vfio-user:/run/forebay.sock?nsid=1&queues=8",
        what: "an emulated NVMe drive",
        parse: vfio_user::parse,
        available: Ok(()),
        names: Vec::new,
        instead: r#"the drive as a block device: front = "ublk" in the file of forebay snap, then /dev/ublkb0"#,
        discover: None,
    },
];

/// An address space that workers open queues on.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in records and messages.
    pub label: String,
    /// Identity of the file in seeded content: `content::file_id` of its name.
    pub content_id: u64,
    /// Bytes that the job uses, from offset 0.
    pub bytes: u64,
    pub source: Arc<dyn OpenSource>,
    pub route: Route,
}

/// Way of a target's bytes to their destination: the job's path and GPUs, or the choice of `auto` and pairs.
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

/// Opened origin of a target's bytes. Each kind of source has one, in its own file; whoever uses a target asks it what
/// it needs to know, and never which kind it is.
pub trait OpenSource: fmt::Debug + Send + Sync {
    /// Returns the scheme of its row in `SOURCES`.
    fn scheme(&self) -> &'static str;

    /// Returns the name of what moves its bytes, as in records. None where the parts have engines of their own.
    fn engine(&self) -> Option<&'static str>;

    fn made_of(&self) -> MadeOf;

    /// The queue of a target of so many bytes, with each file below opened by `open`.
    fn queue(
        &self,
        bytes: u64,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error>;

    /// Submissions that the worker's ring must carry for one queue of it.
    fn ring_depth(&self, needs: QueueNeeds) -> u32 {
        needs.depth
    }

    /// Targets that it is made of.
    fn parts(&self) -> &[Target] {
        &[]
    }

    /// Returns the part that has the byte at `offset`, and the offset there. None where its bytes aren't dealt out to
    /// parts.
    fn part_at(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    /// The same of other parts: as many, in the same order. None where it has none.
    fn of_parts(&self, _parts: Vec<Target>) -> Option<Arc<dyn OpenSource>> {
        None
    }

    /// The open file whose descriptor a path may read by itself, and what reads it else.
    fn descriptor(&self) -> Option<(&FileTarget, Engine)> {
        None
    }

    /// The connection by which its bytes come, where it has one.
    fn connection(&self) -> Option<&dyn Connection> {
        None
    }

    /// Alignment of offsets and lengths, without that of its parts.
    fn align(&self) -> u32 {
        1
    }

    /// A length of a target of so many bytes at which I/Os are cut, so that it must be aligned, and what sets it.
    fn boundary(&self, _bytes: u64) -> Option<(&'static str, u64)> {
        None
    }

    /// It waits as a modelled drive would.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Moves bytes by itself, out of memory that it was given before.
    fn lend(&self, _arena: &Arena) -> Result<Option<MemoryRegistration>, Error> {
        Ok(None)
    }

    /// As `lend`, of a GPU's memory.
    ///
    /// # Errors
    /// Why it can't be had.
    fn lend_device(&self, _memory: &DeviceMemory) -> Result<MemoryRegistration, String> {
        Err("no RDMA card moves its bytes".into())
    }
}

/// Kind of a source, with all that a path asks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeOf {
    /// A file or block device of this machine's.
    File,
    /// A namespace that a network card moves to and from memory by itself.
    Card,
    /// Bytes that come another way.
    Elsewhere,
    /// Its parts, which pass through it as they come.
    Parts,
    /// Its parts, which it holds back as a modelled drive would.
    Timed,
    /// No bytes: an I/O moves nothing.
    Nothing,
}

/// Composition of a source, with all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceMedium {
    pub whole: MadeOf,
    /// All that isn't `Parts`, depth first.
    pub below: Vec<MadeOf>,
}

impl SourceMedium {
    fn combined(whole: MadeOf, parts: impl Iterator<Item = SourceMedium>) -> SourceMedium {
        let own = (whole != MadeOf::Parts).then_some(whole);
        SourceMedium { whole, below: own.into_iter().chain(parts.flat_map(|part| part.below)).collect() }
    }

    pub fn file() -> SourceMedium {
        SourceMedium::combined(MadeOf::File, std::iter::empty())
    }

    /// It is that, or has it for parts, and nothing else.
    pub(crate) fn is_all(&self, of: MadeOf) -> bool {
        self.below.iter().all(|medium| *medium == of)
    }

    pub fn has(&self, of: MadeOf) -> bool {
        self.below.contains(&of)
    }

    /// Bytes come from somewhere, so that I/Os need memory.
    pub fn moves_bytes(&self) -> bool {
        [MadeOf::File, MadeOf::Card, MadeOf::Elsewhere].into_iter().any(|of| self.has(of))
    }
}

/// GPU memory that a card is offered to find out whether it takes any: as much as the GPU's pages have.
const TRIED_BYTES: usize = 2 << 20;

/// Memory that a drive or a network card reaches by itself as long as this lives; drop it before the memory.
pub struct MemoryRegistration {
    _kept: Box<dyn Any>,
}

impl MemoryRegistration {
    pub(crate) fn keeping(kept: impl Any) -> MemoryRegistration {
        MemoryRegistration { _kept: Box::new(kept) }
    }
}

/// Requirements of a queue: those of `QueueNeeds::new`, and what else its user says.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QueueNeeds {
    pub depth: u32,
    pub io_bytes_max: u64,
    /// Data is copied on at once (`bounce`), so it should be in the CPU cache.
    pub then_copied: bool,
    /// The worker's number: those of one run get the same queues of a drive in each run.
    pub worker: u32,
}

impl QueueNeeds {
    /// Of a lone worker, whose data stay where they are put.
    pub fn new(depth: u32, io_bytes_max: u64) -> QueueNeeds {
        QueueNeeds { depth, io_bytes_max, then_copied: false, worker: 0 }
    }

    pub fn then_copied(self) -> QueueNeeds {
        QueueNeeds { then_copied: true, ..self }
    }

    pub fn with_worker(self, worker: u32) -> QueueNeeds {
        QueueNeeds { worker, ..self }
    }
}

/// Opens the queue of one file, for a path that puts its own over or in place of the engine's.
pub(crate) type OpenFile<'a> =
    &'a mut dyn FnMut(&FileTarget, Engine, QueueNeeds, &mut Reactor) -> Result<Box<dyn Queue>, Error>;

impl Target {
    /// One that no seeded content is known of, on its way to host memory.
    pub fn new(label: impl Into<String>, bytes: u64, source: impl OpenSource + 'static) -> Target {
        let (label, source) = (label.into(), Arc::new(source));
        Target { label, content_id: 0, bytes, source, route: Route::default() }
    }

    pub fn queue(&self, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        self.queue_over(needs, reactor, &mut |file, engine, needs, reactor| {
            file.queue(engine, needs, reactor)
        })
    }

    /// `queue`, with each file below opened by `open`.
    pub(crate) fn queue_over(
        &self,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        self.source.queue(self.bytes, needs, reactor, open)
    }

    /// Submissions that the worker's ring must carry for one queue of this target.
    pub fn ring_depth(&self, needs: QueueNeeds) -> u32 {
        self.source.ring_depth(needs)
    }

    pub fn medium(&self) -> SourceMedium {
        SourceMedium::combined(self.source.made_of(), self.source.parts().iter().map(Target::medium))
    }

    /// This target and all below it, depth first.
    pub fn walk(&self) -> Vec<&Target> {
        let mut all = vec![self];
        all.extend(self.source.parts().iter().flat_map(Target::walk));
        all
    }

    /// The source that has the byte at `offset`: of a stripe a member, else this one.
    pub fn source_at(&self, offset: u64) -> &Target {
        match self.source.part_at(offset) {
            Some((part, offset)) => self.source.parts()[part].source_at(offset),
            None => self,
        }
    }

    /// Sources that a stripe is made of, those of stripes within it included; 0 for any other target.
    pub fn members(&self) -> u32 {
        let striped = self.source.made_of() == MadeOf::Parts;
        let leaves = || self.walk().iter().filter(|target| target.source.parts().is_empty()).count();
        if striped {
            leaves() as u32
        } else {
            0
        }
    }

    /// The files below, each with its engine.
    pub fn files(&self) -> Vec<(&FileTarget, Engine)> {
        self.walk().into_iter().filter_map(|t| t.source.descriptor()).collect()
    }

    /// It is a file itself.
    pub fn is_file(&self) -> bool {
        self.source.descriptor().is_some()
    }

    /// The connections below, by which bytes come.
    pub fn connections(&self) -> impl Iterator<Item = &dyn Connection> {
        self.walk().into_iter().filter_map(|t| t.source.connection())
    }

    /// Has connections move payload directly to and from its place; before the queues are opened.
    pub fn keep_direct(&self) {
        self.connections().for_each(Connection::keep_direct);
    }

    /// The state of all namespaces below that are connected to.
    pub fn reports(&self) -> Vec<SourceReport> {
        self.connections().map(Connection::now).collect()
    }

    /// Returns whether slots can be mapped into something below, so that they need a descriptor: `Arena::shared`.
    pub fn maps_slots(&self) -> bool {
        self.connections().any(Connection::maps_slots)
    }

    /// Divides it among so many workers, which open it next; none has it open.
    pub fn divide_among(&self, workers: u32) {
        self.connections().for_each(|connection| connection.host().shares.among(workers));
    }

    /// The most workers that can have it open at once.
    pub fn workers_most(&self) -> u32 {
        self.connections().map(|connection| connection.host().shares.workers_most()).min().unwrap_or(u32::MAX)
    }

    /// Gives what is below, where it moves bytes by itself, a worker's slots to move them to and from: nothing is staged
    /// then, and nothing registered for each I/O.
    ///
    /// # Errors
    /// `Machine`: a device refuses them, or more would be locked than may be.
    pub fn lend(&self, arena: &Arena) -> Result<Vec<MemoryRegistration>, Error> {
        self.walk().into_iter().filter_map(|t| t.source.lend(arena).transpose()).collect()
    }

    /// A network card could move its bytes to and from a GPU's memory by itself.
    pub fn is_by_card(&self) -> bool {
        self.source.made_of() == MadeOf::Card
    }

    /// Checks that the card takes that GPU's memory.
    ///
    /// # Errors
    /// Why not.
    pub fn reaches(&self, device: &Arc<CudaDevice>) -> Result<(), String> {
        let tried = device.slots(1, TRIED_BYTES).map_err(|e| e.to_string())?;
        self.source.lend_device(&tried).map(drop)
    }

    /// Its queues wait for what only a ring brings, whatever engine its files are read with.
    pub fn needs_ring(&self) -> bool {
        self.connections().next().is_some()
    }

    /// Bytes come from somewhere, so that I/Os need memory.
    pub fn moves_bytes(&self) -> bool {
        self.medium().moves_bytes()
    }

    /// Some of its I/Os move nothing.
    pub fn lacks_bytes(&self) -> bool {
        self.medium().has(MadeOf::Nothing)
    }

    /// Alignment of offsets and lengths: the greatest below.
    pub fn align(&self) -> u32 {
        self.walk().iter().map(|t| t.source.align()).max().unwrap_or(1)
    }

    /// Every I/O finishes in `submit`, so that more than one in flight has no meaning.
    pub fn is_inline(&self) -> bool {
        self.source.descriptor().is_some_and(|(_, engine)| engine.is_inline())
    }

    /// A modelled drive is part of it.
    pub fn is_simulated(&self) -> bool {
        self.walk().iter().any(|t| t.source.is_simulated())
    }
}
