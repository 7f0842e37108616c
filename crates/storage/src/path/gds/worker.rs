//! Resources of a worker for cuFile: its memory, and the threads or streams that its queues share.

use super::batch::batch_by_batch;
use super::inline::InlineGds;
use super::session::PAGE;
use super::stream::{StreamGds, StreamWay, Streams};
use super::thread_pool::{call_by_call, Body, ThreadPool, THREADS_MAX};
use super::{Base, Session};
use crate::source::at_once::AtOnceQueue;
use crate::source::file::FileTarget;
use forebay_io::{CudaDevice, Queue, Reactor};
use forebay_model::job::{CuFileMode, JobSpec};
use forebay_model::Error;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

enum Means {
    /// The worker calls cuFile itself.
    Inline,
    ThreadPool(Arc<ThreadPool>),
    Streams {
        streams: Rc<RefCell<Streams>>,
        together: u32,
        /// The worker waits for the stream itself.
        waits: bool,
    },
}

/// A worker's end of a session: its registered memory, and the threads or streams of its calls.
pub(crate) struct CuFileWorker {
    session: Arc<Session>,
    base: Base,
    means: Means,
}

/// Duty of one worker in a job.
pub(crate) struct Duty<'a> {
    pub job: &'a JobSpec,
    /// I/Os in flight on all of the worker's queues together, pieces of a stripe counted.
    pub depth: u32,
    /// One file each time, and not a stripe's piece of one, on the GPU whose context is current.
    pub plain: bool,
}

impl CuFileWorker {
    /// Returns whether cuFile should register the worker's memory. Not for its stream calls: into a registered buffer,
    /// libcufile 1.15.1 in compatibility mode moves bytes to and from its beginning, whatever offset in it the call
    /// names.
    pub(crate) fn registers(job: &JobSpec) -> bool {
        !job.cufile_unregistered && matches!(job.cufile, CuFileMode::Sync | CuFileMode::Batch)
    }

    /// `base`: what cuFile knows of the worker's memory.
    pub(crate) fn open(
        session: &Arc<Session>,
        device: &Arc<CudaDevice>,
        base: Base,
        duty: &Duty,
        reactor: &mut Reactor,
    ) -> Result<CuFileWorker, Error> {
        let job = duty.job;
        let pool = |bodies: Vec<Body>, reactor: &mut Reactor| {
            ThreadPool::new(session.clone(), device, base.clone(), bodies, reactor)
                .map(|pool| Means::ThreadPool(Arc::new(pool)))
        };
        let together = per_batch(job, duty.depth);
        let streams = |count: u32| Streams::new(device, count);
        let means = match job.cufile {
            CuFileMode::Sync if duty.depth == 1 && duty.plain => Means::Inline,
            CuFileMode::Sync => {
                pool((0..duty.depth.clamp(1, THREADS_MAX)).map(|_| call_by_call()).collect(), reactor)?
            }
            CuFileMode::Batch => pool(batches(session, job, duty.depth)?, reactor)?,
            CuFileMode::Stream => {
                let waits = duty.depth == 1 && duty.plain;
                Means::Streams { streams: streams(duty.depth)?, together: 1, waits }
            }
            CuFileMode::BatchStream => {
                session.batches_of(together);
                Means::Streams { streams: streams(duty.depth.div_ceil(together))?, together, waits: false }
            }
        };
        Ok(CuFileWorker { session: session.clone(), base, means })
    }

    pub(crate) fn queue(&self, target: &FileTarget, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let file = self.session.file(target)?;
        let geometry = target.geometry(depth);
        let (session, base) = (self.session.clone(), self.base.clone());
        Ok(match &self.means {
            Means::Inline => Box::new(AtOnceQueue::new(InlineGds { session, file, base }, geometry)),
            Means::ThreadPool(pool) => Box::new(pool.queue(file, geometry)),
            Means::Streams { streams, together, waits } => {
                let way = StreamWay { together: *together, waits: *waits };
                Box::new(StreamGds::new(session, file, base, geometry, streams.clone(), way))
            }
        })
    }
}

/// I/Os per batch: those of a request, or else two share the depth where nobody said, so that one is filled while the
/// other is under way.
fn per_batch(job: &JobSpec, depth: u32) -> u32 {
    job.cufile_batch.or(job.batch).unwrap_or(depth.div_ceil(2)).clamp(1, depth.max(1))
}

/// A thread per batch in flight.
fn batches(session: &Session, job: &JobSpec, depth: u32) -> Result<Vec<Body>, Error> {
    let asked = per_batch(job, depth);
    let most = match session.properties().batch_max {
        0 => asked,
        most => asked.min(most),
    };
    let pool = (!session.goes_direct()).then(|| staging_buffers(&session.driver().posix_slabs(), job));
    let (entries, threads) = bounded(most, depth, job.workers, pool).ok_or_else(|| {
        let found = format!(
            "in compatibility mode cuFile stages I/Os of this size through {} buffers, fewer than workers, and a batch that lacks one waits forever",
            pool.unwrap_or(0)
        );
        let next = "fewer ‹workers›, ‹cufile› sync, or a larger posix_pool_slab_count in cufile.json";
        Error::machine(format!("‹cufile› batch with ‹workers› {}", job.workers), found, next)
    })?;
    session.batches_of(entries);
    if entries < asked || entries * threads < depth {
        let text = format!(
            "batches are of {entries} I/Os, and {} in flight per worker: cuFile takes {} per batch, and {} in compatibility mode for all workers",
            entries * threads,
            session.properties().batch_max,
            pool.map_or_else(|| "as many".into(), |n| n.to_string()),
        );
        session.note(
            "cufile_batch_bounded",
            text,
            "a larger posix_pool_slab_count or io_batchsize in cufile.json",
        );
    }
    (0..threads)
        .map(|_| {
            let batch = session.driver().batch(entries).map_err(|e| {
                Error::machine("‹cufile› batch", e.to_string(), "‹cufile› sync; a smaller ‹cufile_batch›")
            })?;
            Ok(batch_by_batch(batch, entries as usize))
        })
        .collect()
}

/// (I/Os per batch, batches in flight) of one worker. `pool`: staging buffers of the process; an entry that finds
/// none waits for ever, so there are never more entries than buffers. None where even one each is too many.
fn bounded(entries: u32, depth: u32, workers: u32, pool: Option<u32>) -> Option<(u32, u32)> {
    let share = pool.map_or(u32::MAX, |pool| pool / workers.max(1));
    if share == 0 {
        return None;
    }
    let entries = entries.clamp(1, share);
    Some((entries, (share / entries).clamp(1, depth.div_ceil(entries)).min(THREADS_MAX)))
}

/// Buffers of the smallest size that holds an I/O and what its ends round to.
fn staging_buffers(slabs: &[(u64, u64)], job: &JobSpec) -> u32 {
    let starts = [job.start_bytes, job.start_step_bytes, job.skip_bytes.unsigned_abs()];
    let aligned = [job.io_bytes, job.io_bytes_step.unwrap_or(0)].iter().chain(&starts).all(|n| n % PAGE == 0);
    let bytes = job.io_bytes_largest() + if aligned { 0 } else { 2 * PAGE };
    let count = match slabs.iter().find(|(size, _)| *size >= bytes) {
        Some((_, count)) => *count,
        None => slabs.last().map_or(1, |(size, count)| count / bytes.div_ceil(*size).max(1)),
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: GPU-20
    #[test]
    fn entries_in_flight_never_exceed_the_pool() {
        for (entries, depth, workers, pool) in
            [(128, 128, 1, 64), (16, 64, 2, 64), (3, 9, 4, 30), (1, 1, 64, 64)]
        {
            let (size, threads) = bounded(entries, depth, workers, Some(pool)).unwrap();
            assert!(size * threads * workers <= pool && size >= 1 && threads >= 1);
        }
        assert_eq!(bounded(128, 128, 1, Some(64)), Some((64, 1)));
        assert_eq!(bounded(16, 64, 2, Some(64)), Some((16, 2)));
        assert_eq!(bounded(8, 64, 65, Some(64)), None);
    }

    #[test]
    fn direct_batches_are_bounded_by_depth_alone() {
        assert_eq!(bounded(32, 128, 8, None), Some((32, 4)));
        assert_eq!(bounded(5, 12, 8, None), Some((5, 3)));
    }

    #[test]
    fn the_pool_is_that_of_the_ios_size() {
        let slabs = [(4 << 10, 128), (1 << 20, 64), (16 << 20, 32)];
        let of = |io_bytes| staging_buffers(&slabs, &JobSpec { io_bytes, ..JobSpec::default() });
        assert_eq!((of(4 << 10), of(64 << 10), of(1 << 20), of(4 << 20)), (128, 64, 64, 32));
        // Rounded out at both ends it no longer fits the smallest; longer than the longest it takes several.
        assert_eq!((of(4000), of(64 << 20), of(1 << 30)), (64, 8, 0));
    }
}
