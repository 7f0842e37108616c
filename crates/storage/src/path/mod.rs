//! Data paths: how bytes reach their destination. Each path is one file, which defines what it accepts, its memory,
//! how it creates queues and what ran, and one row of `PATHS`. No other code depends on which path it is.

pub(crate) mod auto;
mod bounce;
mod buffers;
mod copiers;
mod destination;
pub(crate) mod direct;
pub(crate) mod gds;
mod host;
pub(crate) mod mapped;
mod worker_context;

pub(crate) use bounce::BounceQueue;
pub use buffers::{Buffers, Under};
pub use copiers::{Copiers, HostCopier};
pub use destination::Destination;
pub(crate) use forebay_io::Copier;
pub(crate) use worker_context::Layer;
pub use worker_context::{QueueFactory, WorkerContext};

use crate::source::file::FileTarget;
use crate::source::{OpenFileSource, SourceMedium, SourceRow, Target, SOURCES};
use auto::{Known, Situation};
use direct::Means;
use forebay_io::{Check, CudaDevice, Fault, Verdicts};
use forebay_model::job::{JobSpec, PathKind};
use forebay_model::Error;
use mapped::Limits;
use std::fmt::Display;
use std::sync::Arc;

/// Error of a path that copies payload when it is given scattered memory. This never happens, because its
/// destinations are slots.
fn scattered() -> Fault {
    Fault::note(
        libc::EINVAL,
        "this path copies into contiguous memory, and the payload is scattered; ‹path› host",
    )
}

/// In increasing order of `auto`'s preference: it takes the last one that is possible.
pub static PATHS: &[&dyn DataPath] = &[&host::Host, &bounce::Bounce, &mapped::Mapped, &gds::Gds];

/// Destination of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Host,
    /// In a GPU if there is one, else in host memory.
    GpuIfAny,
    Gpu,
}

/// A refusal: the request, why it isn't possible, what to type next.
pub(crate) type Refusal = (&'static str, &'static str, &'static str);

/// A path that a target could take instead of the requested one, and why; or why neither is possible.
pub(crate) type Settled = Result<(PathKind, Option<String>), Error>;

/// A path's own slots, in addition to the destination slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    pub count: u32,
    pub bytes_each: u64,
}

/// Defaults of an emulated run on a path, where they differ from those of other paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readers {
    pub workers_max: Option<u32>,
    /// Bytes per read: as many as the files have, within these bounds.
    pub io_bytes: Option<(u64, u64)>,
    pub depth: Option<u32>,
}

/// Constant properties of a path.
pub struct About {
    pub kind: PathKind,
    /// Name on the command line and in records.
    pub name: &'static str,
    pub what: &'static str,
    pub needs: &'static str,
    /// The sources that it serves, as text.
    pub serves: &'static str,
    pub ends: Ends,
    /// True if bytes may go from a device to their destination without a copy by a CPU.
    pub may_go_direct: bool,
}

/// A data path.
pub trait DataPath: Sync {
    fn about(&self) -> &'static About;

    fn kind(&self) -> PathKind {
        self.about().kind
    }

    fn name(&self) -> &'static str {
        self.about().name
    }

    fn what(&self) -> &'static str {
        self.about().what
    }

    fn needs(&self) -> &'static str {
        self.about().needs
    }

    fn serves(&self) -> &'static str {
        self.about().serves
    }

    fn ends(&self) -> Ends {
        self.about().ends
    }

    fn may_go_direct(&self) -> bool {
        self.about().may_go_direct
    }

    fn accepts(&self, _medium: &SourceMedium) -> bool {
        true
    }

    /// The checks that `doctor` shows for it on this machine.
    fn examined(&self, verdicts: &Verdicts) -> Check;

    /// The first thing in a job on this path that it doesn't support.
    ///
    /// # Errors
    /// The job's sources can't be read.
    fn refuses(&self, _job: &JobSpec) -> Result<Option<Refusal>, Error> {
        Ok(None)
    }

    /// An option that only this path supports; other paths refuse it.
    fn option_of_its_own(&self, _job: &JobSpec) -> Option<Refusal> {
        None
    }

    /// Only through (`Some(true)`) or only bypassing (`Some(false)`) the page cache.
    fn cached(&self) -> Option<bool> {
        None
    }

    /// Returns whether a job on it fails if bytes aren't direct.
    fn insists_on_direct(&self, _allow_compat: bool) -> bool {
        false
    }

    /// Returns whether `auto` may choose it there: paths into host memory where there is no GPU, all others where
    /// there is one.
    fn is_open(&self, situation: &Situation) -> bool {
        situation.gpu == (self.ends() != Ends::Host)
    }

    /// Why the target can't use it here, for `auto`. `known`: what was found out for other targets.
    fn can(&self, _target: &Target, _destination: &Destination, _known: &mut Known) -> Result<(), String> {
        Ok(())
    }

    /// Its set-up for the first pass over the data is reused by later ones.
    fn keeps_what_it_paid_for(&self) -> bool {
        false
    }

    /// Trials find the best number of workers, if the user gave none: where threads copy bytes on to a GPU, by themselves
    /// or by asking it to.
    fn tries_workers(&self) -> bool {
        !self.may_go_direct()
    }

    /// The path that an opened target takes in a job on this one.
    fn resolve(&self, _job: &JobSpec, _target: &Target, _destination: &Destination) -> Settled {
        Ok((self.kind(), None))
    }

    /// Its own method of reading a file, instead of an engine.
    fn opens(&self, _file: &FileTarget) -> Option<OpenFileSource> {
        None
    }

    /// Unit of writes to a file whose file system requires multiples of `align`.
    fn unit(&self, align: u32) -> u32 {
        align
    }

    /// Called before files are created for a job on it.
    fn begin(&self, _job: &JobSpec, _destination: &Destination) -> Result<(), Error> {
        Ok(())
    }

    /// Registers an opened target with the path's library; `pair` of the job, or worker, that feeds its GPU.
    fn attach(&self, _: &JobSpec, _: &Target, _: &Destination, _pair: u32) -> Result<(), Error> {
        Ok(())
    }

    /// Called once the targets of all paths are attached.
    fn attached(&self, _: &Destination) {}

    /// Deregisters a file that is about to be closed.
    fn forget(&self, _: &FileTarget, _: &Destination) {}

    /// Slots that each worker keeps for it, in addition to the `slots` of `slot_bytes` that are the destination.
    fn beside(&self, _slots: u32, _slot_bytes: u64, _into_gpu: bool) -> Option<Beside> {
        None
    }

    /// Payload is copied from its slots, while the source continues with others.
    fn copies_on(&self) -> bool {
        false
    }

    /// The target's I/Os complete in `submit`, so a second one in flight gains nothing.
    fn ends_at_once(&self, target: &Target) -> bool {
        target.is_inline()
    }

    /// Returns whether its queues over the target take rows (`Queue::push_rows`) on their way into a GPU.
    fn takes_rows(&self, _target: &Target) -> bool {
        false
    }

    /// The longest of those rows: others are I/Os of their own.
    fn row_bytes_max(&self) -> u64 {
        buffers::ROW_BYTES_MAX
    }

    /// Returns the limit on rows of one I/O without a requested batch, so that two or more such I/Os stay in the
    /// processor's cache.
    fn rows_bytes(&self) -> u64 {
        1 << 20
    }

    /// Sets up a worker's part of it, after its slots.
    fn equip(
        &self,
        context: &WorkerContext,
        reactor: &mut forebay_io::Reactor,
    ) -> Result<Box<dyn QueueFactory>, Error>;

    /// The means to read many files directly into GPUs, the first of which is `device`; None: the data passes through
    /// the host.
    fn means(
        &self,
        _: &JobSpec,
        _device: &Arc<CudaDevice>,
        _: Limits,
    ) -> Result<Option<Arc<dyn Means>>, Error> {
        Ok(None)
    }

    /// Slots that bytes pass, or end in, are host memory pinned for the GPU.
    fn pins(&self) -> bool {
        true
    }

    fn readers(&self) -> Readers {
        Readers::default()
    }

    /// Bytes of an I/O, and of those that a worker has in flight, by which the path reaches its full rate; None where the usual
    /// ones do.
    fn full_rate(&self, _job: &JobSpec) -> Option<(u64, u64)> {
        None
    }

    /// Returns the manner in which it combines the I/Os of a batch.
    fn brings_together(&self, _job: &JobSpec) -> &'static str {
        "each I/O separately, submitted together"
    }

    /// Hint for I/Os that timed out.
    fn after_timeouts(&self, _job: &JobSpec) -> Option<&'static str> {
        None
    }
}

/// Questions to the table of paths.
#[derive(Debug)]
pub enum Paths {}

impl Paths {
    /// The path; None for `auto`, which isn't one until it is decided.
    pub fn find(kind: PathKind) -> Option<&'static dyn DataPath> {
        PATHS.iter().find(|path| path.kind() == kind).copied()
    }

    /// The path of a target, once decided.
    pub fn by_kind(kind: PathKind) -> &'static dyn DataPath {
        Paths::find(kind).expect("every path has a row, and `auto` was settled")
    }

    pub fn name_of(kind: PathKind) -> &'static str {
        Paths::find(kind).map_or("auto", |path| path.name())
    }

    /// Checks that the path can serve a source made of these parts. `auto` serves whatever any path does.
    pub fn check(kind: PathKind, source: &dyn Display, medium: &SourceMedium) -> Result<(), Error> {
        let Some(path) = Paths::find(kind) else { return Ok(()) };
        if path.accepts(medium) {
            return Ok(());
        }
        Err(Error::request(
            format!("‹path› {} from {source}", path.name()),
            format!("it can only serve {}", path.serves()),
            "‹path› host",
        ))
    }

    /// Schemes of the sources that the path serves, in the order of their table.
    pub fn schemes(path: &dyn DataPath) -> Vec<&'static str> {
        let served = |row: &&SourceRow| row.named().is_ok_and(|uri| path.accepts(&uri.medium()));
        SOURCES.iter().filter(served).map(|row| row.scheme).collect()
    }

    /// The first thing in the job that its path refuses, including options of other paths.
    pub fn refusal(job: &JobSpec) -> Result<Option<Refusal>, Error> {
        let Some(path) = Paths::find(job.path) else { return Ok(None) };
        let others = PATHS.iter().filter(|other| other.kind() != path.kind());
        let foreign = others.filter_map(|other| other.option_of_its_own(job)).next();
        Ok(path.refuses(job)?.or(foreign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Uri;

    // promise: GPU-22
    #[test]
    fn every_path_has_one_row_under_the_name_that_is_typed() {
        for kind in PathKind::ALL.into_iter().filter(|kind| *kind != PathKind::Auto) {
            let rows: Vec<_> = PATHS.iter().filter(|path| path.kind() == kind).collect();
            assert_eq!(rows.len(), 1, "{kind:?}");
            assert_eq!(serde_json::to_value(kind).unwrap(), rows[0].name());
            assert_eq!(PathKind::named(rows[0].name()), Some(kind));
            let path = rows[0];
            assert_eq!(kind.ends_in_host(), path.ends() == Ends::Host, "{kind:?}");
            assert_eq!(kind.bypasses_host(), path.ends() == Ends::Gpu, "{kind:?}");
            assert_eq!(kind.needs_page_cache(), path.cached() == Some(true), "{kind:?}");
            assert_eq!(
                kind.may_go_direct() && path.ends() == Ends::Gpu,
                path.cached() == Some(false),
                "{kind:?}"
            );
        }
        assert_eq!(PATHS.len() + 1, PathKind::ALL.len());
    }

    // promise: DOC-5
    #[test]
    fn a_path_takes_what_its_source_is_made_of() {
        let check = |kind, text: &str| Paths::check(kind, &text, &Uri::parse(text).unwrap().medium());
        let files = ["/a", "stripe:?m=/a&m=/b", "stripe:?m=/a&m=stripe:%3Fm=/b%26m=/c"];
        let others = ["nil:", "stripe:?m=/a&m=nil:", "model:d7-ps1010?over=/a", "nvme+tcp://h:1/nqn.x"];
        for kind in [PathKind::Mapped, PathKind::Gds] {
            files.iter().for_each(|source| check(kind, source).unwrap());
            for source in others {
                let error = check(kind, source).unwrap_err();
                assert!(error.found.contains("can only serve files"), "{error}");
            }
        }
        let card = "nvme+rdma://h:1/nqn.x";
        check(PathKind::Gds, card).unwrap();
        check(PathKind::Mapped, card).unwrap_err();
        check(PathKind::Gds, "stripe:?m=nvme%2Brdma://h:1/nqn.x").unwrap_err();
        for kind in [PathKind::Host, PathKind::Bounce, PathKind::Auto] {
            files.iter().chain(&others).chain([&card]).for_each(|source| check(kind, source).unwrap());
        }
    }
}
