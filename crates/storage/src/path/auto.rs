//! The decision of `--path auto`: which paths are possible for a target, given what is known about it, and which of
//! them to take, given the results of short trials. Nothing is opened or measured here.

use super::{DataPath, Ends, PATHS};
use crate::source::file::FileTarget;
use forebay_io::{GdsVerdict, VerdictAnswer};
use forebay_model::job::{Cache, PathKind, Prefer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// From this share of cached data on, the page cache is faster than the drive.
const HALF_WARM_SHARE: f64 = 0.5;
/// Paths within this share of the best rate count as equally fast.
const ALIKE: f64 = 0.96;
/// Numbers of workers within this share of the best rate count as equal; of these, the smallest is chosen.
const WORKERS_ALIKE: f64 = 0.98;

/// A path, with or without the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathChoice {
    pub path: PathKind,
    pub cached: bool,
}

impl fmt::Display for PathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goes_either_way = super::Paths::find(self.path).is_some_and(|path| path.cached().is_none());
        let name = super::Paths::name_of(self.path);
        match (goes_either_way, self.cached) {
            (false, _) => f.write_str(name),
            (true, true) => write!(f, "{name} from the page cache"),
            (true, false) => write!(f, "{name} bypassing the page cache"),
        }
    }
}

/// Facts about a target before it is used.
#[derive(Clone, Debug)]
pub struct Situation {
    pub gpu: bool,
    pub writes: bool,
    pub bytes: u64,
    pub io_bytes: u64,
    pub is_random: bool,
    /// More than one path will be tried before any is taken.
    pub tried: bool,
    /// All of the job's data may stay registered with a GPU at a time.
    pub may_stay: bool,
    /// Share of its pages in the page cache; None if unknown.
    pub resident: Option<f64>,
    /// The requested path.
    pub cache: Cache,
    /// It can be opened with O_DIRECT.
    pub direct: bool,
    /// Paths that can't serve it here, each with the reason.
    pub cannot: BTreeMap<PathKind, String>,
    /// True if anything but direct DMA is an error.
    pub require_direct: bool,
}

impl Situation {
    /// Why direct DMA into the GPU isn't possible: what the likeliest path lacks.
    pub fn no_direct(&self) -> Option<String> {
        let could = |path: &&&dyn DataPath| path.ends() == Ends::Gpu && path.may_go_direct();
        let why =
            |path: &&dyn DataPath| Some(format!("{} can't: {}", path.name(), self.cannot.get(&path.kind())?));
        let whys: Option<Vec<String>> = PATHS.iter().rev().filter(could).map(why).collect();
        whys?.into_iter().next()
    }
}

/// Judgement of files by a machine's settings: whoever knows the machine (`doctor`) stands above the paths.
pub(crate) type Judge = fn(&[PathBuf]) -> GdsVerdict;

/// Findings about devices, each examined once.
pub struct Known {
    judge: Judge,
    direct: BTreeMap<u64, Result<(), String>>,
}

impl Known {
    pub fn by(judge: Judge) -> Known {
        Known { judge, direct: BTreeMap::new() }
    }

    /// Checks that cuFile would move the file's bytes by direct DMA; else says why not.
    pub(crate) fn goes_direct(&mut self, file: &FileTarget) -> Result<(), String> {
        let number = |(major, minor)| u64::from(major) << 32 | u64::from(minor);
        let device = file.device().map_or(u64::MAX, number);
        let judge = self.judge;
        let ask = || {
            let verdict = judge(std::slice::from_ref(&file.path));
            match verdict.answer {
                VerdictAnswer::Direct => Ok(()),
                _ => Err(verdict.reason().unwrap_or_else(|| "cuFile wouldn't go direct".into())),
            }
        };
        self.direct.entry(device).or_insert_with(ask).clone()
    }
}

/// The possible paths, at least one, the likeliest first, and the reason so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub ways: Vec<PathChoice>,
    pub because: String,
}

impl Situation {
    /// The possible paths of a target. Host memory isn't one if there is a GPU.
    pub fn open(&self) -> Open {
        let (cached, because) = page_cache(self);
        let fits = |path: &&&dyn DataPath| {
            path.cached().is_none_or(|only| only == cached)
                && !self.cannot.contains_key(&path.kind())
                && path.is_open(self)
        };
        let mut open: Vec<&dyn DataPath> = PATHS.iter().rev().filter(fits).copied().collect();
        if self.require_direct && open.iter().any(|path| path.may_go_direct()) {
            open.retain(|path| path.may_go_direct());
        }
        let ways = open.into_iter().map(|path| PathChoice { path: path.kind(), cached }).collect();
        Open { ways, because }
    }
}

/// Decides whether to use the page cache, with the reason.
fn page_cache(s: &Situation) -> (bool, String) {
    let share = s.resident.unwrap_or(0.0);
    let reported = match s.resident {
        Some(share) => format!("{:.0} % cached", 100.0 * share),
        None => "it is unknown what is cached".into(),
    };
    match s.cache {
        _ if !s.direct => (true, format!("{reported}; O_DIRECT isn't available")),
        Cache::Drop => (true, "‹cache› drop".into()),
        Cache::Allow => (true, reported),
        Cache::Warm => (true, "‹cache› warm".into()),
        Cache::Auto if s.writes => (false, "writes bypass the page cache".into()),
        Cache::Auto | Cache::Bypass if s.require_direct => match s.no_direct() {
            None => (false, "‹require_direct›".into()),
            Some(why) => (false, why),
        },
        Cache::Bypass => (false, "‹cache› bypass".into()),
        Cache::Auto => (share >= HALF_WARM_SHARE, reported),
    }
}

/// The result of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Gave {
    pub gib_s: f64,
    pub cpu_s_per_gib: Option<f64>,
}

/// The results of a way's trials.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    pub way: PathChoice,
    pub gave: Gave,
    /// Result of passes after the first, where those differ and were tried.
    pub later: Option<Gave>,
}

/// Number of times that a job reads the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    /// From its first I/O to its last.
    pub all: f64,
    /// Passes before anything is measured.
    pub unmeasured: f64,
}

impl Tried {
    /// Extrapolates short trials to a job of this many passes: `mapped`, whose first trial is a first pass, keeps its
    /// registrations, so that only what is measured of the first pass is slower and dearer than what was tried later.
    pub fn foretold(tried: &[Tried], passes: Passes) -> Vec<Gave> {
        let all = if passes.all.is_finite() { passes.all.max(1.0) } else { 1.0 };
        let measured = (all - passes.unmeasured.max(0.0)).max(f64::MIN_POSITIVE);
        let first = (1.0 - passes.unmeasured.max(0.0)).clamp(0.0, 1.0).min(measured);
        // A first pass over few bytes may be over before its cost can be told; where others follow, the dearest will do.
        let dearest = tried.iter().filter_map(|t| t.gave.cpu_s_per_gib).reduce(f64::max);
        let foretell = |t: &Tried| match t.later {
            Some(later) if t.gave.gib_s > 0.0 && later.gib_s > 0.0 => {
                let rest = measured - first;
                let paid = t.gave.cpu_s_per_gib.or(dearest.filter(|_| rest > 0.0));
                let cost = paid.zip(later.cpu_s_per_gib.or(paid));
                Gave {
                    gib_s: measured / (first / t.gave.gib_s + rest / later.gib_s),
                    cpu_s_per_gib: cost.map(|(paid, later)| (first * paid + rest * later) / measured),
                }
            }
            _ => t.gave,
        };
        tried.iter().map(foretell).collect()
    }
}

impl Gave {
    /// The path to take: of those that are fast enough, the one with the least CPU time.
    pub fn pick(tried: &[Gave], prefer: Prefer) -> usize {
        let best = tried.iter().map(|t| t.gib_s).fold(0.0, f64::max);
        let cost = |t: &Gave| t.cpu_s_per_gib.unwrap_or(f64::INFINITY);
        let enough = prefer.rate_share_min(ALIKE) * best;
        let fast =
            (0..tried.len()).filter(|i| tried[*i].gib_s >= enough && (best == 0.0 || tried[*i].gib_s > 0.0));
        fast.min_by(|a, b| cost(&tried[*a]).total_cmp(&cost(&tried[*b]))).unwrap_or(0)
    }
}

impl PathChoice {
    /// The smallest number of workers that is about as fast as the best: (workers, GiB/s) of each trial.
    pub fn fewest(tried: &[(u32, f64)]) -> Option<u32> {
        let best = tried.iter().map(|t| t.1).fold(0.0, f64::max);
        tried.iter().filter(|t| t.1 >= WORKERS_ALIKE * best).map(|t| t.0).min()
    }

    /// Returns whether more workers brought no gain twice in a row: (workers, GiB/s) of each trial, in order.
    pub fn is_flat(tried: &[(u32, f64)]) -> bool {
        let Some(before) = tried.len().checked_sub(2).filter(|n| *n > 0) else { return false };
        let best = tried[..before].iter().map(|t| t.1).fold(0.0, f64::max);
        tried[before..].iter().all(|t| t.1 * WORKERS_ALIKE <= best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cold() -> Situation {
        Situation {
            gpu: true,
            writes: false,
            bytes: 1 << 30,
            io_bytes: 1 << 20,
            is_random: false,
            tried: true,
            may_stay: true,
            resident: Some(0.0),
            cache: Cache::Auto,
            direct: true,
            cannot: [(PathKind::Gds, "no nvidia-fs".to_string())].into(),
            require_direct: false,
        }
    }

    fn without(path: PathKind) -> BTreeMap<PathKind, String> {
        [(path, "no".to_string())].into()
    }

    fn warm() -> Situation {
        Situation { resident: Some(1.0), ..cold() }
    }

    const GDS: PathChoice = PathChoice { path: PathKind::Gds, cached: false };
    const MAPPED: PathChoice = PathChoice { path: PathKind::Mapped, cached: true };
    const PAST: PathChoice = PathChoice { path: PathKind::Bounce, cached: false };
    const FROM: PathChoice = PathChoice { path: PathKind::Bounce, cached: true };

    // promise: GPU-10
    #[test]
    fn each_situation_has_its_ways() {
        let gds = BTreeMap::new;
        let table: Vec<(&str, Situation, Vec<PathChoice>)> = vec![
            ("cold", cold(), vec![PAST]),
            ("cold, direct DMA", Situation { cannot: gds(), ..cold() }, vec![GDS, PAST]),
            ("nobody tells", Situation { resident: None, ..cold() }, vec![PAST]),
            ("a little cached", Situation { resident: Some(0.3), ..cold() }, vec![PAST]),
            ("mostly cached", Situation { resident: Some(0.8), ..cold() }, vec![FROM]),
            ("cached", warm(), vec![MAPPED, FROM]),
            ("cached, direct DMA", Situation { cannot: gds(), ..warm() }, vec![MAPPED, FROM]),
            ("cached, rows", Situation { io_bytes: 4096, is_random: true, ..warm() }, vec![MAPPED, FROM]),
            ("cached, short I/Os untried", Situation { io_bytes: 4096, tried: false, ..warm() }, vec![FROM]),
            (
                "cached, more rows than may be registered",
                Situation { io_bytes: 4096, is_random: true, may_stay: false, ..warm() },
                vec![FROM],
            ),
            (
                "cached, more than may be registered",
                Situation { may_stay: false, ..warm() },
                vec![MAPPED, FROM],
            ),
            ("cached, a short file", Situation { bytes: 1 << 20, ..warm() }, vec![FROM]),
            (
                "cached, can't be mapped",
                Situation { cannot: without(PathKind::Mapped), ..warm() },
                vec![FROM],
            ),
            ("a file system in memory", Situation { direct: false, ..warm() }, vec![MAPPED, FROM]),
            ("no O_DIRECT, not cached", Situation { direct: false, ..cold() }, vec![FROM]),
            ("cached, ‹cache› bypass", Situation { cache: Cache::Bypass, ..warm() }, vec![PAST]),
            (
                "cached, ‹cache› drop",
                Situation { cache: Cache::Drop, resident: Some(0.0), ..warm() },
                vec![FROM],
            ),
            ("‹cache› warm", Situation { cache: Cache::Warm, ..warm() }, vec![MAPPED, FROM]),
            ("‹cache› allow, cold", Situation { cache: Cache::Allow, ..cold() }, vec![FROM]),
            ("written, cached", Situation { writes: true, ..warm() }, vec![PAST]),
            ("written, direct DMA", Situation { writes: true, cannot: gds(), ..warm() }, vec![GDS, PAST]),
            ("only direct DMA", Situation { require_direct: true, cannot: gds(), ..warm() }, vec![GDS]),
            ("only direct DMA, none", Situation { require_direct: true, ..warm() }, vec![PAST]),
        ];
        for (name, situation, ways) in table {
            assert_eq!(situation.open().ways, ways, "{name}");
        }
        let host = |situation: Situation| Situation::open(&Situation { gpu: false, ..situation }).ways;
        assert_eq!(host(cold()), [PathChoice { path: PathKind::Host, cached: false }]);
        assert_eq!(host(warm()), [PathChoice { path: PathKind::Host, cached: true }]);
    }

    #[test]
    fn the_least_cpu_decides_among_ways_that_are_alike() {
        let gave = |gib_s, cpu| Gave { gib_s, cpu_s_per_gib: Some(cpu) };
        use Prefer::{Balance, Cpu, Rate};
        for (cheap, by_balance, by_rate) in [(49.0, 0, 0), (40.0, 0, 1), (34.0, 0, 1), (33.0, 1, 1)] {
            let tried = [gave(cheap, 0.02), gave(50.0, 0.10)];
            let found = [Gave::pick(&tried, Balance), Gave::pick(&tried, Rate), Gave::pick(&tried, Cpu)];
            assert_eq!(found, [by_balance, by_rate, 0], "{cheap}");
        }
        assert_eq!(Gave::pick(&[gave(0.0, 0.0), gave(0.0, 0.1)], Balance), 0);
        assert_eq!(Gave::pick(&[gave(0.0, 0.0), gave(1.0, 0.1)], Cpu), 1, "nothing came of the first");
    }

    #[test]
    fn what_stays_registered_counts_for_as_many_passes_as_there_are() {
        let gave = |gib_s, cpu| Gave { gib_s, cpu_s_per_gib: Some(cpu) };
        let bounce = Tried { way: FROM, gave: gave(50.0, 0.1), later: None };
        let mapped =
            |first, later| [bounce, Tried { way: MAPPED, gave: first, later: Some(gave(later, 0.01)) }];
        let takes = |tried: &[Tried], all, unmeasured| {
            tried[Gave::pick(&Tried::foretold(tried, Passes { all, unmeasured }), Prefer::Rate)].way
        };
        let tried = mapped(gave(40.0, 0.09), 51.0);
        assert_eq!(takes(&tried, 1.0, 0.0), FROM, "the first pass is slower than by bounce");
        assert_eq!(takes(&tried, 30.0, 0.0), MAPPED, "and thirty are as fast, for less");
        assert_eq!(takes(&tried, 2.0, 0.0), FROM);
        assert_eq!(takes(&tried, 2.0, 1.0), MAPPED, "only the second is measured");
        assert_eq!(takes(&tried, f64::NAN, 0.0), FROM);
        assert_eq!(takes(&mapped(gave(40.0, 0.09), 13.0), 30.0, 5.0), FROM, "what was tried later is slow");
        let unreported = mapped(Gave { gib_s: 40.0, cpu_s_per_gib: None }, 51.0);
        let found = (takes(&unreported, 1.0, 0.0), takes(&unreported, 30.0, 0.0));
        assert_eq!(found, (FROM, MAPPED), "a pass that was too short to tell its cost");
    }

    // promise: GPU-17
    #[test]
    fn the_fewest_workers_that_do_are_taken() {
        let tried = [(1, 9.0), (2, 18.0), (4, 35.0), (6, 49.5), (8, 50.0), (12, 50.2), (16, 48.0)];
        assert_eq!(PathChoice::fewest(&tried), Some(6));
        assert_eq!(PathChoice::fewest(&[]), None);
        assert!(!PathChoice::is_flat(&tried[..5]));
        assert!(PathChoice::is_flat(&tried[..6]), "6 was as good as 8 and 12");
    }

    proptest! {
        /// Never below what the preference allows, whatever was measured.
        // promise: GPU-10
        #[test]
        fn what_is_picked_is_never_much_worse_than_the_best(rates in proptest::collection::vec((0.0f64..60.0, 0.0f64..1.0), 1..6)) {
            let tried: Vec<Gave> = rates.iter().map(|(r, c)| Gave { gib_s: *r, cpu_s_per_gib: Some(*c) }).collect();
            let best = tried.iter().map(|t| t.gib_s).fold(0.0, f64::max);
            prop_assert!(tried[Gave::pick(&tried, Prefer::Rate)].gib_s >= 0.95 * best);
            prop_assert!(tried[Gave::pick(&tried, Prefer::Balance)].gib_s >= 0.66 * best);
        }

        #[test]
        fn there_is_always_a_way(resident in proptest::option::of(0.0f64..=1.0), bits in 0u32..128, cache in 0usize..5) {
            let on = |bit: u32| bits & (1 << bit) != 0;
            let situation = Situation {
                gpu: on(0),
                writes: on(1),
                bytes: if on(2) { 1 << 30 } else { 4096 },
                io_bytes: if on(3) { 1 << 20 } else { 4096 },
                is_random: on(3) != on(4),
                tried: on(0) != on(5),
                may_stay: on(1) != on(2),
                resident,
                cache: [Cache::Auto, Cache::Bypass, Cache::Drop, Cache::Allow, Cache::Warm][cache],
                direct: on(4),
                cannot: [(5, PathKind::Mapped), (6, PathKind::Gds)]
                    .into_iter()
                    .filter(|(bit, _)| on(*bit))
                    .map(|(_, path)| (path, "no".to_string()))
                    .collect(),
                require_direct: false,
            };
            let ways = situation.open().ways;
            prop_assert!(!ways.is_empty());
            prop_assert!(situation.direct || ways.iter().all(|w| w.cached));
            prop_assert!(ways.iter().all(|w| (w.path == PathKind::Host) != situation.gpu));
            prop_assert!(!situation.writes || ways.iter().all(|w| w.path != PathKind::Mapped));
        }
    }
}
