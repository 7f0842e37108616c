//! The size of the workers' buffers: one rule for planning, checking and allocating them.

use super::{Beside, DataPath, Ends, Paths};
use crate::source::Target;
use forebay_io::last_level_cache_bytes;
use forebay_model::job::{JobSpec, PathKind, DEPTH_MAX};

const PAGE: u64 = 4096;

/// The properties of a target that determine memory.
#[derive(Clone, Copy)]
pub struct Under {
    pub path: &'static dyn DataPath,
    pub moves_bytes: bool,
    /// Its I/Os complete in `submit`.
    pub at_once: bool,
    /// They pass through the path's own slots.
    pub tight: bool,
    /// Its queues take rows.
    pub takes_rows: bool,
}

impl Under {
    /// For an opened target whose path is decided.
    pub fn from_target(target: &Target) -> Under {
        let path = Paths::by_kind(target.route.path);
        let at_once = path.ends_at_once(target);
        let tight = at_once && path.copies_on() && target.align() == 1;
        let takes_rows = path.takes_rows(target);
        Under { path, moves_bytes: target.moves_bytes(), at_once, tight, takes_rows }
    }
}

/// The buffers of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Number of slots, and how many of their I/Os sources execute at a time; the data of the others is being copied.
    pub slots: u32,
    pub at_work: u32,
    /// Reads of the job that are one such I/O (`Queue::push_rows`); None where each is one.
    pub rows: Option<u32>,
    /// Bytes per slot: whole pages, except for short I/Os that are copied to a GPU together (`tight`); 0 if nothing
    /// moves bytes.
    pub slot_bytes: u64,
    pub in_gpu: bool,
    /// Slots of the paths' own, in host memory, in the order of `PATHS`.
    pub beside: Vec<(PathKind, Beside)>,
}

impl Buffers {
    /// Returns the buffers of a worker on some of these targets, by the numbers that `used` gives.
    pub fn for_targets(job: &JobSpec, all: &[Under], used: &[Under], into_gpu: bool) -> Buffers {
        if let Some(rows) = rows_of(job, all, into_gpu) {
            return Buffers::of_rows(job, all, rows);
        }
        let at_work = at_work(job, used, into_gpu);
        let slots = at_work + in_copy(job, used, into_gpu);
        Buffers { at_work, ..Buffers::with_slots(job, all, slots, into_gpu) }
    }

    /// Returns the buffers of a worker whose I/Os are `rows` of the job's each, on their way into a GPU.
    fn of_rows(job: &JobSpec, all: &[Under], rows: u32) -> Buffers {
        let (depth, io_bytes) = (job.depth / rows, job.io_bytes * u64::from(rows));
        let whole = JobSpec { depth, io_bytes, batch: None, ..job.clone() };
        let slots = at_work(&whole, all, true);
        let mut buffers = Buffers { rows: Some(rows), ..Buffers::with_slots(&whole, all, slots, true) };
        // What can't be had together comes row by row.
        for (_, beside) in buffers.beside.iter_mut().filter(|(kind, _)| !Paths::by_kind(*kind).copies_on()) {
            let bytes_each = job.io_bytes.next_multiple_of(PAGE);
            let count = u64::from(beside.count).max(BESIDE_ROWS_BYTES / bytes_each).min(rows.max(4).into());
            *beside = Beside { count: count as u32, bytes_each };
        }
        buffers
    }

    /// For a worker with this many I/Os in flight, whatever its targets.
    pub fn with_slots(job: &JobSpec, all: &[Under], slots: u32, into_gpu: bool) -> Buffers {
        let wanted = job.verify || all.iter().any(|u| u.moves_bytes || u.path.ends() != Ends::Host);
        let largest = job.io_bytes_largest();
        let unit = if into_gpu && all.iter().all(|u| u.tight) && largest < PAGE { largest } else { PAGE };
        let slot_bytes = if wanted { largest.next_multiple_of(unit) } else { 0 };
        let goes = |path: &&&dyn DataPath| wanted && all.iter().any(|u| u.path.kind() == path.kind());
        let own =
            |path: &&'static dyn DataPath| Some((path.kind(), path.beside(slots, slot_bytes, into_gpu)?));
        let beside = super::PATHS.iter().filter(goes).filter_map(own).collect();
        Buffers { slots, at_work: slots, rows: None, slot_bytes, in_gpu: into_gpu, beside }
    }

    /// Bytes in host memory.
    pub fn host_bytes(&self) -> u64 {
        let beside = self.beside.iter().map(|(_, b)| u64::from(b.count).saturating_mul(b.bytes_each));
        let own = if self.in_gpu { 0 } else { self.payload_bytes() };
        beside.fold(own, u64::saturating_add)
    }

    /// Bytes in a GPU's memory.
    pub fn gpu_bytes(&self) -> u64 {
        if self.in_gpu {
            self.payload_bytes()
        } else {
            0
        }
    }

    fn payload_bytes(&self) -> u64 {
        u64::from(self.slots).saturating_mul(self.slot_bytes)
    }
}

/// Longer reads are copied by processors one by one as fast.
pub(crate) const ROW_BYTES_MAX: u64 = 128 << 10;
/// Longer reads take the copy engine one by one as little time as a launch for several takes them.
pub(crate) const LAUNCHED_ROW_BYTES_MAX: u64 = 1 << 20;
/// Part of a longer row that a warp takes: long rows come in too few launches for each to be one warp's alone.
const ROW_PART_BYTES: u32 = 64 << 10;
/// Limit on a batch of rows in a GPU's memory, and in the host's.
const ROWS_BYTES_MAX: u64 = 256 << 20;
/// Rows that aren't a batch's, but fill a worker's slots by themselves, are one I/O from this many on, or where they are longer
/// than this together.
const ROWS_MIN: u32 = 16;
const LONG_ROWS_BYTES: u64 = 1 << 20;
/// Default of a worker's short reads under way: of rows, and of what is copied.
const ROWS_BYTES: u64 = 16 << 20;
const COPIES_BYTES: u64 = 4 << 20;
const SHORT_BYTES_MAX: u64 = 256 << 10;
/// Slots for rows that can't be had together.
const BESIDE_ROWS_BYTES: u64 = 1 << 20;

impl Buffers {
    /// Returns the depth per worker at which short reads of cached data keep a GPU busy: some I/Os of rows, or copies of
    /// several reads. None where fewer do: of long ones, and of writes.
    pub fn depth_of_short(job: &JobSpec) -> Option<u32> {
        let longest = job.io_bytes_largest();
        let rows = job.op.is_random() && longest <= LAUNCHED_ROW_BYTES_MAX;
        let bytes = if rows { ROWS_BYTES } else { COPIES_BYTES };
        let depth = (bytes / longest.max(1)).min(DEPTH_MAX.into());
        ((rows || longest <= SHORT_BYTES_MAX) && !job.writes()).then_some(depth as u32)
    }
}

/// In how many parts a row of so many bytes is fetched by a launch. Parts of a row begin at multiples of 512 bytes in it.
pub(crate) fn parts_of_row(row_bytes: u32) -> u32 {
    let parts = row_bytes.div_ceil(ROW_PART_BYTES).max(1);
    if row_bytes % (parts * 512) == 0 {
        parts
    } else {
        1
    }
}

/// Short random reads that come and go together anyway are one I/O, so that what an I/O costs isn't paid for each: those of a
/// batch, those that end in `submit` while others are copied on, and those that the device fetches by itself. None where something is asked about, or of, each.
fn rows_of(job: &JobSpec, all: &[Under], into_gpu: bool) -> Option<u32> {
    let [only] = all else { return None };
    let each_alone = job.verify
        || job.writes()
        || !job.op.is_random()
        || job.no_repeat
        || job.io_bytes_max.is_some()
        || job.faults.is_some()
        || job.think_s.is_some()
        || job.flow.is_some()
        || job.rate_iops.is_some()
        || job.rate_gib_s.is_some();
    if !into_gpu || !only.takes_rows || each_alone || job.io_bytes > only.path.row_bytes_max() {
        return None;
    }
    let rows = match job.batch {
        Some(batch) => batch,
        None => (job.depth / 2).min((only.path.rows_bytes() / job.io_bytes.max(1)) as u32),
    };
    let are_long = job.io_bytes * u64::from(rows) > LONG_ROWS_BYTES;
    let least = if job.batch.is_some() || are_long { 2 } else { ROWS_MIN };
    (rows >= least && rows <= job.depth && job.io_bytes * u64::from(rows) <= ROWS_BYTES_MAX).then_some(rows)
}

/// A source that completes each I/O in `submit` gains nothing from a second slot, and loses cache hits. Copies to a
/// GPU run concurrently, so feeding a GPU takes as many slots as fit into the last-level cache.
fn at_work(job: &JobSpec, used: &[Under], into_gpu: bool) -> u32 {
    if !used.iter().all(|u| u.at_once) || job.faults.is_some() {
        job.depth
    } else if into_gpu {
        job.depth.min(whole_batches(job, slots_in_cache(job)))
    } else {
        job.batch.unwrap_or(1)
    }
}

/// This many slots, or as many as complete batches need: two batches, so that one can be in flight while the next is
/// read.
fn whole_batches(job: &JobSpec, slots: u32) -> u32 {
    job.batch.map_or(slots, |batch| batch.saturating_mul((slots / batch).max(2)))
}

/// Slots in addition to those that the source works on: their data is being copied to the GPU, so that the source
/// keeps its full depth. None below a depth of four, where an I/O is in flight from the start of its read to the end
/// of its copy.
fn in_copy(job: &JobSpec, used: &[Under], into_gpu: bool) -> u32 {
    const FROM_DEPTH: u32 = 4;
    // 0.3 ms of copying at 50 GiB/s.
    const BYTES_MAX: u64 = 16 << 20;
    if !into_gpu
        || job.depth < FROM_DEPTH
        || job.batch.is_some()
        || !used.iter().all(|u| u.path.copies_on() && !u.at_once)
    {
        return 0;
    }
    let fitting = (BYTES_MAX / job.io_bytes_largest()).clamp(1, u64::from(DEPTH_MAX)) as u32;
    (job.depth / 2).min(fitting)
}

/// The share of the last-level cache that a worker's slots may occupy: a slot that was evicted is written to memory
/// and read back for the copy, and both compete with the reads.
fn slots_in_cache(job: &JobSpec) -> u32 {
    const AT_LEAST: u64 = 3;
    let share = last_level_cache_bytes() / 2 / u64::from(job.workers);
    (share / job.io_bytes_largest()).clamp(AT_LEAST, u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::job::Op;

    fn under(kind: PathKind, moves_bytes: bool) -> Vec<Under> {
        vec![Under {
            path: Paths::by_kind(kind),
            moves_bytes,
            at_once: false,
            tight: false,
            takes_rows: false,
        }]
    }

    fn buffers(job: &JobSpec, kind: PathKind, moves_bytes: bool, into_gpu: bool) -> (u64, u64) {
        let all = under(kind, moves_bytes);
        let buffers = Buffers::for_targets(job, &all, &all, into_gpu);
        (buffers.host_bytes(), buffers.gpu_bytes())
    }

    // promise: BEN-24
    #[test]
    fn slots_are_whole_pages_and_none_where_nothing_moves() {
        let job = JobSpec { io_bytes: 5000, depth: 4, ..JobSpec::default() };
        assert_eq!(buffers(&job, PathKind::Host, true, false), (4 * 8192, 0));
        assert_eq!(buffers(&job, PathKind::Host, false, false), (0, 0), "nil:");
        let verified = JobSpec { verify: true, ..job };
        assert_eq!(buffers(&verified, PathKind::Host, false, false), (4 * 8192, 0));
    }

    #[test]
    fn a_path_s_own_slots_count_and_those_in_a_gpu_aren_t_the_host_s() {
        let job = JobSpec { io_bytes: 1 << 20, depth: 2, ..JobSpec::default() };
        let mib = |n: u64| n << 20;
        assert_eq!(buffers(&job, PathKind::Bounce, true, false), (mib(4), 0), "staged, and where it ends");
        assert_eq!(buffers(&job, PathKind::Bounce, true, true), (mib(2), mib(2)));
        assert_eq!(
            buffers(&job, PathKind::Mapped, true, true),
            (mib(4), mib(2)),
            "four for what isn't cached"
        );
        assert_eq!(buffers(&job, PathKind::Gds, true, true), (0, mib(2)));
    }

    #[test]
    fn short_rows_on_their_way_into_a_gpu_lie_side_by_side() {
        let job = JobSpec { io_bytes: 912, depth: 8, ..JobSpec::default() };
        let bounce = Under { at_once: true, tight: true, ..under(PathKind::Bounce, true)[0] };
        let each = |all: &[Under], into_gpu| Buffers::for_targets(&job, all, all, into_gpu).slot_bytes;
        assert_eq!(each(&[bounce], true), 912);
        assert_eq!(each(&[bounce], false), 4096);
        assert_eq!(
            each(&[bounce, under(PathKind::Bounce, true)[0]], true),
            4096,
            "one of them wants whole pages"
        );
    }

    #[test]
    fn short_random_reads_that_fill_a_worker_go_together() {
        let job = JobSpec { op: Op::RandRead, io_bytes: 4096, ..JobSpec::default() };
        let together = |job: &JobSpec, kind| {
            let all = [Under { takes_rows: true, ..under(kind, true)[0] }];
            let buffers = Buffers::for_targets(job, &all, &all, true);
            (buffers.rows, buffers.slots)
        };
        let of = |depth, kind| together(&JobSpec { depth, ..job.clone() }, kind);
        for kind in [PathKind::Bounce, PathKind::Mapped] {
            assert_eq!(of(16, kind).0, None, "two of eight gain nothing");
            assert_eq!(of(512, kind), (Some(256), 2));
            let verified = JobSpec { depth: 512, verify: true, ..job.clone() };
            assert_eq!(together(&verified, kind).0, None, "each is looked at");
            let long = |io_bytes| together(&JobSpec { depth: 512, io_bytes, ..job.clone() }, kind).0;
            let launched = kind == PathKind::Mapped;
            assert_eq!(long(256 << 10), launched.then_some(16), "else each is a copy of its own");
            assert_eq!((long(1 << 20), long(2 << 20)), (launched.then_some(4), None));
            assert_eq!(
                long(128 << 10),
                launched.then_some(32),
                "eight fit a processor's cache, which gain nothing"
            );
        }
        assert_eq!(of(4096, PathKind::Bounce).0, Some(256), "what stays in a processor's cache");
        assert_eq!(of(4096, PathKind::Mapped), (Some(1024), 4));
    }

    #[test]
    fn short_reads_have_a_depth_of_their_own() {
        let of = |op, io_bytes| Buffers::depth_of_short(&JobSpec { op, io_bytes, ..JobSpec::default() });
        let sizes = [128, 512, 4096, 64 << 10, 256 << 10, 512 << 10];
        let found = sizes.map(|bytes| of(Op::RandRead, bytes));
        assert_eq!(found, [Some(4096), Some(4096), Some(4096), Some(256), Some(64), Some(32)]);
        let found = sizes.map(|bytes| of(Op::Read, bytes));
        assert_eq!(found, [Some(4096), Some(4096), Some(1024), Some(64), Some(16), None]);
        assert_eq!((of(Op::RandWrite, 4096), of(Op::Write, 4096)), (None, None));
        assert_eq!((of(Op::RandRead, 1 << 20), of(Op::RandRead, 2 << 20)), (Some(16), None));
    }

    #[test]
    fn long_rows_are_fetched_in_equal_parts() {
        let sizes = [128, 4096, 64 << 10, 96 << 10, 128 << 10, 256 << 10, 1 << 20];
        assert_eq!(sizes.map(parts_of_row), [1, 1, 1, 2, 2, 4, 16]);
        assert_eq!([100 << 10, 100_000, (128 << 10) + 512].map(parts_of_row), [2, 1, 1]);
    }

    // promise: BEN-25
    #[test]
    fn batches_have_room_as_a_whole() {
        let job =
            JobSpec { io_bytes: 1 << 20, depth: 256, batch: Some(64), workers: 64, ..JobSpec::default() };
        let slots = |job: &JobSpec, at_once, into_gpu| {
            let all = [Under { at_once, ..under(PathKind::Bounce, true)[0] }];
            Buffers::for_targets(job, &all, &all, into_gpu).slots
        };
        assert_eq!(slots(&job, true, false), 64);
        assert_eq!(slots(&job, true, true), 128, "whatever the cache holds");
        assert_eq!(slots(&JobSpec { depth: 64, ..job.clone() }, true, true), 64);
        assert_eq!(slots(&job, false, true), 256);
    }

    #[test]
    fn one_slot_does_where_each_io_ends_in_submit() {
        let job = JobSpec { io_bytes: 4096, depth: 32, ..JobSpec::default() };
        let all = [Under { at_once: true, ..under(PathKind::Host, true)[0] }];
        assert_eq!(Buffers::for_targets(&job, &all, &all, false).slots, 1);
    }
}
