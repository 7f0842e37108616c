//! What one thread works with, made once for all checkpoints: its ring, its slots in host or GPU memory, and the way to
//! a queue on a file that is opened later.

use super::ground::places;
use crate::arena::Mem;
use crate::driver::outfit::{self, Copiers, Memory};
use crate::driver::verify::{Contents, NameOf};
use crate::driver::worker::{self, Shared, WorkerSpec};
use crate::path::gds::Station;
use crate::path::BounceQueue;
use crate::queue::Queue;
use crate::reactor::Reactor;
use crate::source::fault::FaultQueue;
use crate::source::file::FileTarget;
use crate::source::{FileBacking, QueueNeeds, Target};
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::content;
use forebay_model::job::{Engine, PathKind};
use forebay_model::pattern::PatternSpec;
use forebay_model::Error;
use std::sync::Arc;

/// The one target of `Shared`: the folder.
const FOLDER: u32 = 0;

pub struct Kit {
    // Field order is drop order: the ring goes before the memory that it points to.
    station: Option<Station>,
    copiers: Copiers,
    reactor: Reactor,
    pub contents: Contents,
    memory: Memory,
    shared: Arc<Shared>,
    index: u32,
    needs: QueueNeeds,
    /// Files that faults were injected into.
    opened: u32,
}

impl Kit {
    pub fn open(
        index: u32,
        shared: &Arc<Shared>,
        spec: &CheckpointSpec,
    ) -> Result<(Kit, worker::Kit), Error> {
        let job = &shared.job;
        let device = shared.destination.device_of(index);
        let needs = QueueNeeds {
            depth: job.depth,
            io_bytes_max: job.io_bytes,
            then_copied: job.path == PathKind::Bounce,
        };
        let mut reactor = outfit::reactor_for(shared, &[FOLDER], needs)?;
        let mut memory = Memory::new(shared, device, job.depth as usize)?;
        let warning = memory.register(&mut reactor);
        let station = outfit::station_for(shared, &[FOLDER], needs, device, &mut memory, &mut reactor)?;
        let (contents, content_on_host) =
            Contents::open(job, names_of(spec.clone()), device, job.depth as usize)?;
        memory.fill_for_writes(job, index)?;
        let (pages, slot_bytes) = memory.pages();
        let told = worker::Kit {
            features: reactor.features().to_vec(),
            pages,
            slot_bytes,
            queues: 0,
            warning,
            content_on_host,
        };
        let copiers = Copiers::new(device);
        let shared = shared.clone();
        Ok((Kit { station, copiers, reactor, contents, memory, shared, index, needs, opened: 0 }, told))
    }

    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.reactor
    }

    pub fn slot(&self, index: usize) -> Mem {
        self.memory.slot(index)
    }

    fn folder(&self) -> &Target {
        &self.shared.targets[FOLDER as usize]
    }

    /// Unit of a file's length while it is written.
    pub fn align(&self) -> u32 {
        self.folder().align()
    }

    /// A queue on a file that was just opened, by the run's path.
    pub fn queue(&mut self, file: &FileTarget) -> Result<Box<dyn Queue>, Error> {
        let mut queue = match &self.station {
            Some(station) => {
                self.attach(file)?;
                station.queue(file, self.needs.depth)?
            }
            None => file.queue(self.engine(), self.needs, &mut self.reactor)?,
        };
        if let Some(plan) = self.shared.faults {
            // Each file meets faults of its own.
            self.opened = self.opened.wrapping_add(1);
            let salt = self.index.wrapping_add(self.opened.wrapping_mul(self.shared.job.workers));
            queue = Box::new(FaultQueue::new(queue, plan, salt));
        }
        let staging = self.memory.staging().filter(|_| self.shared.job.path == PathKind::Bounce);
        Ok(match staging {
            Some(staging) => {
                let inline = self.folder().is_inline() && self.shared.faults.is_none();
                Box::new(BounceQueue::new(queue, inline, self.copiers.next()?, staging))
            }
            None => queue,
        })
    }

    fn engine(&self) -> Engine {
        self.folder().backing.file().map_or(Engine::Auto, |(_, engine)| engine)
    }

    /// Has cuFile know the file.
    fn attach(&self, file: &FileTarget) -> Result<(), Error> {
        let destination = &self.shared.destination;
        let (Some(session), Some(device)) = (destination.cufile(), destination.device_of(self.index)) else {
            return Err(Error::machine("--path gds", "cuFile isn't open", "forebay doctor"));
        };
        let backing = Arc::new(FileBacking { target: file.clone(), engine: Engine::Pread });
        session.attach(&Target { backing, bytes: file.bytes, ..self.folder().clone() }, device)
    }

    /// Before a file is closed: nobody else keeps it open.
    pub fn forget(&mut self, file: &FileTarget) {
        if let Some(session) = self.shared.destination.cufile() {
            session.detach(file);
        }
    }
}

/// Which file of the run a content says it belongs to. Looked for only once something is wrong.
fn names_of(spec: CheckpointSpec) -> NameOf {
    Box::new(move |id| {
        let steps = 1..=spec.writes.max(spec.reads);
        let all = steps.flat_map(|step| (0..spec.ranks()).map(move |rank| (step, rank)));
        all.flat_map(|(step, rank)| places(&spec, step, rank))
            .find(|place| content::file_id(&place.content) == id)
            .map(|place| place.content)
    })
}

/// A worker of the driver's vocabulary; its pattern is never drawn from.
pub fn spec_of(index: u32, cpu: Option<u32>, near: Option<u32>) -> WorkerSpec {
    let pattern = PatternSpec {
        spans: Vec::new(),
        random: false,
        zipf_theta: None,
        no_repeat: false,
        io_bytes: 1,
        io_bytes_max: None,
        io_bytes_step: None,
        align: 1,
        read_pct: 0,
        seed: 0,
    };
    WorkerSpec { index, cpu, near, pattern }
}
