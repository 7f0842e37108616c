//! cuFile's own counters: by which way its calls went, per GPU. In libcufile
//! since 1.15; before that there is no telling from within.

use super::calls::{Calls, GpuStats, StatsLevel1, StatsLevel3, STATS_GPUS_MAX};
use super::{error, Cu, Driver};
use forebay_model::record::{CufileBatches, CufileCalls, CufileGpu};

/// Per-GPU counters are its third level.
const PER_GPU: i32 = 3;

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub gpus: Vec<CufileGpu>,
    pub batches: CufileBatches,
}

/// Asked before the driver opens and, with `start`, after: either may be what counts.
pub(super) fn set_level(calls: &Calls) {
    // SAFETY: a plain value.
    unsafe { calls.set_stats_level.map(|set| set(PER_GPU)) };
}

pub(super) fn start(calls: &Calls) {
    set_level(calls);
    // SAFETY: no arguments.
    unsafe { calls.stats_start.map(|start| start()) };
}

impl Stats {
    /// The counters, or why there are none.
    pub fn read(driver: &Driver) -> Cu<Stats> {
        let cufile = driver.cufile();
        let get = cufile.calls.stats.ok_or_else(|| cufile.missing("cuFileGetStatsL3"))?;
        // SAFETY: all zeroes are valid for numbers.
        let mut reported: Box<StatsLevel3> = unsafe { Box::new(std::mem::zeroed()) };
        // SAFETY: fills the structure, behind which there is room.
        error::check("cuFileGetStatsL3", unsafe { get(&mut *reported) })?;
        let count = (reported.gpus as usize).min(STATS_GPUS_MAX);
        Ok(Stats {
            gpus: reported.per_gpu[..count].iter().map(gpu).collect(),
            batches: batches(&reported.basic),
        })
    }
}

fn gpu(s: &GpuStats) -> CufileGpu {
    CufileGpu {
        uuid: uuid(&s.uuid),
        reads: CufileCalls {
            bytes: s.read_bytes,
            total: s.reads,
            p2p: s.p2p_reads,
            nvfs: s.nvfs_reads,
            posix: s.posix_reads,
            unaligned: s.unaligned_reads,
            rerouted: s.rerouted_reads,
            errors: s.failed_reads,
        },
        writes: CufileCalls {
            bytes: s.write_bytes,
            total: s.writes,
            p2p: s.p2p_writes,
            nvfs: s.nvfs_writes,
            posix: s.posix_writes,
            unaligned: s.unaligned_writes,
            rerouted: s.rerouted_writes,
            errors: s.failed_writes,
        },
    }
}

fn batches(s: &StatsLevel1) -> CufileBatches {
    CufileBatches {
        submitted: s.batch_total.ok,
        p2p: s.batch_p2p.ok,
        nvfs: s.batch_nvfs.ok,
        aio: s.batch_aio.ok,
        io_uring: s.batch_io_uring.ok,
        mixed: s.batch_mixed.ok,
        posix_entries: s.batch_posix_enqueued.ok,
    }
}

/// `GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427`
fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    format!("GPU-{}", parts.map(hex).join("-"))
}

impl Stats {
    /// Returns the counts since `before`.
    pub fn since(&self, before: &Stats) -> Stats {
        let gpu = |now: &CufileGpu| {
            let then = before.gpus.iter().find(|g| g.uuid == now.uuid).cloned().unwrap_or_default();
            CufileGpu {
                uuid: now.uuid.clone(),
                reads: calls_since(&now.reads, &then.reads),
                writes: calls_since(&now.writes, &then.writes),
            }
        };
        let (now, then) = (&self.batches, &before.batches);
        Stats {
            gpus: self.gpus.iter().map(gpu).collect(),
            batches: CufileBatches {
                submitted: now.submitted.saturating_sub(then.submitted),
                p2p: now.p2p.saturating_sub(then.p2p),
                nvfs: now.nvfs.saturating_sub(then.nvfs),
                aio: now.aio.saturating_sub(then.aio),
                io_uring: now.io_uring.saturating_sub(then.io_uring),
                mixed: now.mixed.saturating_sub(then.mixed),
                posix_entries: now.posix_entries.saturating_sub(then.posix_entries),
            },
        }
    }

    /// Reads and writes of all GPUs together.
    pub fn calls(&self) -> CufileCalls {
        self.gpus.iter().flat_map(|g| [&g.reads, &g.writes]).fold(CufileCalls::default(), |a, b| {
            CufileCalls {
                bytes: a.bytes + b.bytes,
                total: a.total + b.total,
                p2p: a.p2p + b.p2p,
                nvfs: a.nvfs + b.nvfs,
                posix: a.posix + b.posix,
                unaligned: a.unaligned + b.unaligned,
                rerouted: a.rerouted + b.rerouted,
                errors: a.errors + b.errors,
            }
        })
    }
}

fn calls_since(now: &CufileCalls, then: &CufileCalls) -> CufileCalls {
    CufileCalls {
        bytes: now.bytes.saturating_sub(then.bytes),
        total: now.total.saturating_sub(then.total),
        p2p: now.p2p.saturating_sub(then.p2p),
        nvfs: now.nvfs.saturating_sub(then.nvfs),
        posix: now.posix.saturating_sub(then.posix),
        unaligned: now.unaligned.saturating_sub(then.unaligned),
        rerouted: now.rerouted.saturating_sub(then.rerouted),
        errors: now.errors.saturating_sub(then.errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_since_a_moment_and_by_gpu() {
        let one = |uuid: &str, posix| CufileGpu {
            uuid: uuid.into(),
            reads: CufileCalls { posix, total: posix, bytes: posix << 20, ..CufileCalls::default() },
            writes: CufileCalls::default(),
        };
        let before = Stats { gpus: vec![one("a", 10)], ..Stats::default() };
        let after = Stats { gpus: vec![one("a", 14), one("b", 3)], ..Stats::default() };
        let since = after.since(&before);
        assert_eq!(since.gpus, [one("a", 4), one("b", 3)]);
        assert_eq!((since.calls().posix, since.calls().bytes), (7, 7 << 20));
    }

    #[test]
    fn a_uuid_is_spelled_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid(&bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
