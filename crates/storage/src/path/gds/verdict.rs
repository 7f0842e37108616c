//! Did the bytes go direct? Judged after the run from cuFile's own counters; the
//! route that each file showed before it only says how a mixture divides.

use forebay_io::CuFileStats;

/// Payload of the measured time by the route of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByRoute {
    pub direct: u64,
    pub compat: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub direct_bytes: u64,
    pub compat_bytes: u64,
    /// `gds`, `gds-compat` or `gds-mixed`.
    pub ran: &'static str,
    pub reason: String,
}

/// `reported`: the counters' growth over the run, or why there are none. `no_fallback`: cuFile wasn't allowed its
/// compatibility mode. `able`: cuFile names storage that can go direct.
pub(super) fn judge(
    bytes: ByRoute,
    reported: Result<&CuFileStats, &str>,
    no_fallback: bool,
    able: bool,
) -> Verdict {
    let total = bytes.direct + bytes.compat;
    let counted = reported.map(Counted::from_stats);
    let (direct, reason) = match counted {
        Ok(c) if c.direct() + c.astray() > 0 => (c.direct_share(bytes), c.words()),
        silent => {
            let why = silent.err().unwrap_or("cuFile's counters didn't move");
            match (no_fallback, able) {
                (true, _) => (total, format!("{why}; cuFile wasn't allowed its compatibility mode")),
                (false, false) => (0, format!("{why}; cuFile names no storage that can go direct")),
                (false, true) => (0, format!("{why}, so that direct DMA can't be proven")),
            }
        }
    };
    let ran = match direct {
        d if d == total => "gds",
        0 => "gds-compat",
        _ => "gds-mixed",
    };
    Verdict { direct_bytes: direct, compat_bytes: total - direct, ran, reason }
}

struct Counted {
    p2p: u64,
    nvfs: u64,
    posix: u64,
    /// Over another GPU or the host's memory. They may be among those above.
    rerouted: u64,
    what: &'static str,
}

impl Counted {
    /// Per GPU, else by batches: a library may count batches in one place only.
    fn from_stats(stats: &CuFileStats) -> Counted {
        let (calls, b) = (stats.calls(), &stats.batches);
        let rerouted = calls.rerouted;
        if calls.p2p + calls.nvfs + calls.posix > 0 {
            return Counted { p2p: calls.p2p, nvfs: calls.nvfs, posix: calls.posix, rerouted, what: "calls" };
        }
        // A mixed batch shows that some of it fell back.
        let posix = b.aio + b.io_uring + b.mixed + b.posix_entries;
        Counted { p2p: b.p2p, nvfs: b.nvfs, posix, rerouted, what: "batches" }
    }

    /// From a drive into the GPU that the bytes were for.
    fn direct(&self) -> u64 {
        (self.p2p + self.nvfs).saturating_sub(self.rerouted)
    }

    fn astray(&self) -> u64 {
        self.posix + self.rerouted
    }

    /// Counters count calls, not bytes: a mixture is divided by the routes of the files where these differ, else
    /// by calls.
    fn direct_share(&self, bytes: ByRoute) -> u64 {
        let total = bytes.direct + bytes.compat;
        match (self.direct(), self.astray()) {
            (_, 0) => total,
            (0, _) => 0,
            _ if self.rerouted == 0 && bytes.direct > 0 && bytes.compat > 0 => bytes.direct,
            // Rounded down, and never all.
            (direct, astray) => {
                let share = u128::from(total) * u128::from(direct) / u128::from(direct + astray);
                (share as u64).min(total.saturating_sub(1))
            }
        }
    }

    fn words(&self) -> String {
        let rerouted = match self.rerouted {
            0 => String::new(),
            n => format!(", {n} of them rerouted over another GPU or the host's memory"),
        };
        format!(
            "cuFile counted {} {} by P2PDMA, {} by nvidia-fs, {} in compatibility mode{rerouted}",
            self.p2p, self.what, self.nvfs, self.posix
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::record::{CufileBatches, CufileCalls, CufileGpu};

    fn stats(p2p: u64, nvfs: u64, posix: u64) -> CuFileStats {
        let reads = CufileCalls { p2p, nvfs, posix, ..CufileCalls::default() };
        let gpus = vec![CufileGpu { reads, ..CufileGpu::default() }];
        CuFileStats { gpus, batches: CufileBatches::default() }
    }

    fn all(direct: u64, compat: u64) -> ByRoute {
        ByRoute { direct, compat }
    }

    // promise: GPU-3
    #[test]
    fn counters_come_before_what_was_seen_beforehand() {
        let v = judge(all(0, 100), Ok(&stats(7, 0, 0)), false, true);
        assert_eq!((v.ran, v.direct_bytes, v.compat_bytes), ("gds", 100, 0));
        let v = judge(all(100, 0), Ok(&stats(0, 0, 7)), true, true);
        assert_eq!((v.ran, v.direct_bytes, v.compat_bytes), ("gds-compat", 0, 100));
        assert!(v.reason.contains("7 in compatibility mode"), "{}", v.reason);
    }

    // promise: GPU-3
    #[test]
    fn a_mixture_divides_by_file_or_else_by_call_and_is_never_all() {
        let v = judge(all(60, 40), Ok(&stats(0, 10, 90)), false, true);
        assert_eq!((v.ran, v.direct_bytes, v.compat_bytes), ("gds-mixed", 60, 40));
        let v = judge(all(100, 0), Ok(&stats(0, 75, 25)), false, true);
        assert_eq!((v.ran, v.direct_bytes), ("gds-mixed", 75));
        let v = judge(all(1000, 0), Ok(&stats(u64::MAX >> 1, 0, 1)), false, true);
        assert_eq!((v.ran, v.compat_bytes), ("gds-mixed", 1));
    }

    // promise: GPU-3
    #[test]
    fn what_was_rerouted_is_never_direct() {
        let routed = |p2p, rerouted| {
            let mut stats = stats(p2p, 0, 0);
            stats.gpus[0].reads.rerouted = rerouted;
            judge(all(100, 0), Ok(&stats), true, true)
        };
        assert_eq!((routed(4, 1).ran, routed(4, 1).direct_bytes), ("gds-mixed", 75));
        assert!(routed(4, 1).reason.contains("1 of them rerouted"), "{}", routed(4, 1).reason);
        assert_eq!((routed(4, 4).ran, routed(4, 4).direct_bytes), ("gds-compat", 0));
        assert_eq!(routed(0, 4).ran, "gds-compat", "also where a library counts them nowhere else");
        assert_eq!(routed(u64::MAX >> 1, 1).compat_bytes, 1);
    }

    // promise: GPU-3
    #[test]
    fn without_counters_only_a_cufile_that_may_not_fall_back_is_believed() {
        assert_eq!(judge(all(100, 0), Err("too old"), true, true).ran, "gds");
        assert_eq!(judge(all(100, 0), Err("too old"), false, true).ran, "gds-compat");
        assert_eq!(judge(all(100, 0), Ok(&stats(0, 0, 0)), false, false).ran, "gds-compat");
        assert!(judge(all(100, 0), Err("too old"), false, true).reason.contains("can't be proven"));
    }

    #[test]
    fn batches_are_judged_by_their_own_counters() {
        let batches = |nvfs, mixed| CuFileStats {
            batches: CufileBatches { nvfs, mixed, submitted: nvfs + mixed, ..CufileBatches::default() },
            ..CuFileStats::default()
        };
        assert_eq!(judge(all(100, 0), Ok(&batches(5, 0)), false, true).ran, "gds");
        assert_eq!(judge(all(100, 0), Ok(&batches(5, 1)), false, true).ran, "gds-mixed");
    }
}
