//! Row of `gds` in the table of paths, its part of a worker, and the names of its bytes once cuFile has said how they
//! went.

use super::direct::CufileMeans;
use super::{Base, CuFileWorker, Duty, Session, PAGE};
use crate::path::auto::Known;
use crate::path::direct::Means;
use crate::path::mapped::Limits;
use crate::path::{
    About, DataPath, Destination, Ends, Layer, QueueFactory, Readers, Refusal, Settled, WorkerContext,
};
use crate::source::file::FileTarget;
use crate::source::{MadeOf, OpenFileSource, SourceMedium, Target, Uri};
use forebay_io::{
    cuda_devices, Check, CheckState, CuFileBuffer, CudaDevice, Queue, Reactor, VerdictAnswer, Verdicts,
};
use forebay_model::job::{CuFileMode, Engine, JobSpec, PathKind, Sync};
use forebay_model::record::{Cufile, PathRan};
use forebay_model::Error;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct Gds;

/// Only network cards move bytes, and nothing goes through cuFile.
fn by_card(job: &JobSpec) -> Result<bool, Error> {
    let is_card = |source: &String| Uri::parse(source).map(|uri| uri.medium().whole == MadeOf::Card);
    let sources = job.source_uris()?.iter().map(is_card).collect::<Result<Vec<_>, _>>()?;
    Ok(sources.into_iter().all(|card| card))
}

fn has_cufile_options(job: &JobSpec) -> bool {
    job.cufile != CuFileMode::Sync || job.cufile_batch.is_some() || job.cufile_unregistered
}

impl DataPath for Gds {
    fn about(&self) -> &'static About {
        &About {
            kind: PathKind::Gds,
            name: "gds",
            what: "storage DMAs into GPU memory, through cuFile; or a network card does, by RDMA",
            needs: "libcufile and nvidia-fs or PCI P2PDMA; of nvme+rdma a card that takes dma-bufs",
            serves: "files, stripes of them, and nvme+rdma:",
            ends: Ends::Gpu,
            may_go_direct: true,
        }
    }

    fn accepts(&self, medium: &SourceMedium) -> bool {
        medium.is_all(MadeOf::File) || medium.whole == MadeOf::Card
    }

    fn examined(&self, verdicts: &Verdicts) -> Check {
        let verdict = &verdicts.gds;
        let words = verdict.words();
        let (state, found) = match verdict.answer {
            VerdictAnswer::Direct => return Check::of_path(self.name(), CheckState::Works, words),
            VerdictAnswer::CompatOnly => (CheckState::Limited, "compat only: records say gds-compat"),
            VerdictAnswer::No => (CheckState::Missing, "cuFile can't run here"),
        };
        let mut check = Check::of_path(self.name(), state, found).why(verdict.reason().unwrap_or(words));
        check.next = verdict.next().map(|next| Check::remark(&next, "meanwhile: ‹path› bounce"));
        check
    }

    fn refuses(&self, job: &JobSpec) -> Result<Option<Refusal>, Error> {
        let refusals = [
            (
                has_cufile_options(job) && by_card(job)?,
                "‹cufile› from nvme+rdma:",
                "its network card moves payload, and nothing goes through cuFile",
                "no ‹cufile›",
            ),
            (
                job.engine != Engine::Auto,
                "‹engine› with ‹path› gds",
                "cuFile talks to the kernel itself",
                "no ‹engine›; ‹cufile› sync, stream, batch or batch-stream",
            ),
            (
                job.sync == Sync::Each && job.writes() && job.cufile != CuFileMode::Sync,
                "‹sync› each with ‹cufile› stream or batch",
                "cuFile's asynchronous writes can't be made durable one by one",
                "‹cufile› sync, or ‹sync› end",
            ),
        ];
        Ok(refusals.into_iter().find(|r| r.0).map(|(_, asked, found, next)| (asked, found, next)))
    }

    fn option_of_its_own(&self, job: &JobSpec) -> Option<Refusal> {
        let refusal =
            ("‹cufile› with a path that isn't gds", "no other path goes through cuFile", "‹path› gds");
        has_cufile_options(job).then_some(refusal)
    }

    /// Through the page cache nothing goes direct.
    fn cached(&self) -> Option<bool> {
        Some(false)
    }

    fn insists_on_direct(&self, allow_compat: bool) -> bool {
        !allow_compat
    }

    fn can(&self, target: &Target, destination: &Destination, known: &mut Known) -> Result<(), String> {
        match destination.devices.first() {
            Some(device) if target.is_by_card() => target.reaches(device),
            Some(_) => direct_dma_to(target, known),
            None => Err("no GPU".into()),
        }
    }

    /// Settles the route: what cards can't move into the GPU goes through pinned memory where that is allowed.
    fn resolve(&self, job: &JobSpec, target: &Target, destination: &Destination) -> Settled {
        let Some(device) = destination.devices.first().filter(|_| target.is_by_card()) else {
            return Ok((self.kind(), None));
        };
        match target.reaches(device) {
            Ok(()) => {
                let said = "the card moves payload to and from the GPU's memory, by dma-buf";
                Ok((self.kind(), Some(said.into())))
            }
            Err(why) if job.allow_compat && !job.require_direct => {
                Ok((PathKind::Bounce, Some(format!("through pinned memory: {why}"))))
            }
            Err(why) => Err(Error::machine(
                format!("‹path› gds from {}", target.label),
                why,
                "‹allow_compat›, or ‹path› bounce: through pinned memory",
            )),
        }
    }

    /// cuFile reads the file, by whatever offsets and lengths: it rounds them itself.
    fn opens(&self, file: &FileTarget) -> Option<OpenFileSource> {
        let target = FileTarget { align: 1, mem_align: 1, ..file.clone() };
        Some(OpenFileSource { target, engine: Engine::Pread })
    }

    /// Whole pages: cuFile has no direct way for others.
    fn unit(&self, align: u32) -> u32 {
        align.max(PAGE as u32)
    }

    fn begin(&self, job: &JobSpec, destination: &Destination) -> Result<(), Error> {
        if !by_card(job)? {
            through_cufile(job, destination)?;
        }
        Ok(())
    }

    fn attach(
        &self,
        job: &JobSpec,
        target: &Target,
        destination: &Destination,
        pair: u32,
    ) -> Result<(), Error> {
        if target.is_by_card() {
            return Ok(());
        }
        let session = through_cufile(job, destination)?;
        let device = destination.device_of(pair).expect("cuFile is open, so there is a GPU");
        session.attach(target, device)
    }

    fn attached(&self, destination: &Destination) {
        if let Some(session) = destination.set_up::<Session>() {
            session.begin();
        }
    }

    fn forget(&self, file: &FileTarget, destination: &Destination) {
        if let Some(session) = destination.set_up::<Session>() {
            session.detach(file);
        }
    }

    /// Each read under way is a thread that waits in a call of cuFile's, and many of them spin for each other.
    fn brings_together(&self, job: &JobSpec) -> &'static str {
        match job.cufile {
            CuFileMode::Batch => "cuFile's batches",
            CuFileMode::BatchStream => "cuFile stream calls followed by one event",
            CuFileMode::Sync | CuFileMode::Stream => "one cuFile call for each I/O",
        }
    }

    fn readers(&self) -> Readers {
        Readers { workers_max: Some(4), io_bytes: Some((1 << 20, 1 << 20)), depth: Some(4) }
    }

    fn ends_at_once(&self, _: &Target) -> bool {
        false
    }

    /// A worker, where anything goes through cuFile; the worker's memory is registered once.
    fn equip(&self, context: &WorkerContext, reactor: &mut Reactor) -> Result<Box<dyn QueueFactory>, Error> {
        let session = context.destination.set_up::<Session>();
        let (Some(session), Some(device), Some(slots)) = (session, context.device, context.slots) else {
            return Ok(Box::new(Own { worker: None, buffer: None }));
        };
        device.enter().map_err(|why| Error::machine("‹path› gds", why.to_string(), "nvidia-smi"))?;
        let (base, mut buffer) = (Base::default(), None);
        if CuFileWorker::registers(context.job) {
            match session.driver().register_buffer(slots) {
                Ok(known) => {
                    base.add(slots.address(), slots.bytes() as u64);
                    buffer = Some(known);
                }
                Err(e) => session.stays_unregistered(&e),
            }
        }
        let targets = || context.targets.iter();
        let depth =
            targets().map(|t| t.ring_depth(context.needs)).max().unwrap_or(1).max(context.needs.depth);
        let duty = Duty { job: context.job, depth, plain: targets().all(|t| t.is_file()) };
        let worker = CuFileWorker::open(&session, device, base, &duty, reactor)?;
        Ok(Box::new(Own { worker: Some(worker), buffer }))
    }

    fn means(
        &self,
        job: &JobSpec,
        device: &Arc<CudaDevice>,
        _: Limits,
    ) -> Result<Option<Arc<dyn Means>>, Error> {
        Ok(Some(Arc::new(CufileMeans(Session::open(job, device)?))))
    }

    /// Slots that cuFile or a card reaches are the GPU's own.
    fn pins(&self) -> bool {
        false
    }

    fn after_timeouts(&self, job: &JobSpec) -> Option<&'static str> {
        (job.cufile == CuFileMode::Batch).then_some(
            "‹cufile› sync; or a smaller ‹cufile_batch›, or a larger posix_pool_slab_count in cufile.json",
        )
    }
}

struct Own {
    /// None where only cards move bytes.
    worker: Option<CuFileWorker>,
    buffer: Option<CuFileBuffer>,
}

impl QueueFactory for Own {
    fn ran(&self) -> &'static str {
        Gds.name()
    }

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        context: &WorkerContext,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let queue = match &self.worker {
            // Its card knows the slots.
            _ if target.is_by_card() => target.queue(context.needs, reactor)?,
            Some(worker) => target.queue_over(context.needs, reactor, &mut |file, _, needs, _| {
                worker.queue(file, needs.depth)
            })?,
            None => {
                let next = "report this: it is a bug in Forebay";
                return Err(Error::run(&target.label, "it isn't registered with cuFile", next));
            }
        };
        Ok(layer(queue))
    }

    fn kept(self: Box<Self>) -> Option<Box<dyn Any>> {
        self.buffer.map(|buffer| Box::new(buffer) as Box<dyn Any>)
    }
}

/// cuFile, opened if it wasn't.
fn through_cufile(job: &JobSpec, destination: &Destination) -> Result<Arc<Session>, Error> {
    destination.set_up_or(|| {
        let device = destination.devices.first().ok_or_else(|| {
            let why = cuda_devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("‹path› gds", why, "forebay doctor; ‹path› host needs no GPU")
        })?;
        Session::open(job, device)
    })
}

/// Checks that cuFile would move the target's bytes by direct DMA: once for each device.
fn direct_dma_to(target: &Target, known: &mut Known) -> Result<(), String> {
    if target.connections().next().is_some() {
        return Err("it is not a file on this machine".into());
    }
    target.files().iter().try_for_each(|(file, _)| known.goes_direct(file))
}

/// Judges a run on these targets, of which so many bytes were moved, by cuFile's counters, and names its bytes
/// accordingly. `ran`: the path of each target, as its queues said; what went through cuFile is `gds`, `gds-compat` or
/// `gds-mixed` afterwards.
pub fn judge_gds_run(
    destination: &Destination,
    (targets, moved): (&[Target], &[u64]),
    ran: &mut [&'static str],
    path: &mut PathRan,
    missing: &mut BTreeMap<String, String>,
) -> Option<Cufile> {
    let session = destination.set_up::<Session>()?;
    let through = |t: &Target, ran: &str| ran == Gds.name() && !t.is_by_card();
    let alone = targets.iter().zip(ran.iter()).all(|(t, ran)| through(t, ran));
    // Where other paths took part, direct bytes may be theirs too.
    let own = targets.iter().zip(ran.iter()).zip(moved).filter(|((t, ran), _)| through(t, ran));
    let own: u64 = own.map(|(_, bytes)| bytes).sum();
    let direct = match alone {
        true => path.direct_bytes,
        false => path.direct_bytes.min(own.saturating_sub(path.compat_bytes)),
    };
    let (cufile, verdict) = judge_cufile(&session, direct, alone, path, missing);
    let by_cufile = targets.iter().zip(ran.iter_mut()).filter(|(t, ran)| through(t, ran));
    by_cufile.for_each(|(_, ran)| *ran = verdict);
    Some(cufile)
}

/// Calls bytes that went through cuFile what its counters say, and says the path's name for it. `direct`: those that were
/// taken for direct; `alone`: no other path took part.
pub fn judge_cufile(
    session: &Session,
    direct: u64,
    alone: bool,
    path: &mut PathRan,
    missing: &mut BTreeMap<String, String>,
) -> (Cufile, &'static str) {
    let (cufile, verdict, why_null) = session.report(direct, path.compat_bytes);
    missing.extend(why_null);
    path.direct_bytes = path.direct_bytes - direct + verdict.direct_bytes;
    path.compat_bytes = verdict.compat_bytes;
    if alone {
        path.ran = verdict.ran.into();
        path.engine = "cufile".into();
        path.slots_pinned = false;
    }
    let reason = path.reason.take().into_iter().chain([verdict.reason]).collect::<Vec<_>>();
    path.reason = Some(reason.join("; "));
    (cufile, verdict.ran)
}
