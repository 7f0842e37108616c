//! The workload on a modelled drive, in virtual time: the same requests, served by the same rules.
//!
//! Entries are hundreds of MiB, so the drive is a fluid: all entries that are read share its read bandwidth evenly, as
//! deep queues do, and all that are written share its write bandwidth. Latency of one I/O is added once to each entry.

use super::record::{Circumstance, KvCache, Moved};
use super::{Act, Ended, KvSpec, Service};
use crate::device::DriveModel;
use crate::job::Op;
use crate::Error;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What virtual time takes for granted, beside what no run could read in the reference.
const OF_MODEL: [&str; 3] = [
    "reads and writes don't slow each other down: PCIe carries both ways at once, and a data sheet gives no mixed rate",
    "the host costs no time: content, copies and checks are free",
    "entries that are moved at the same time share the drive evenly",
];

/// Assumptions of every run: what the reference's sources that could be read don't say.
pub const OF_REFERENCE: [&str; 3] = [
    "a conversation ends after 50 turns, and a rank remembers the 1,000 that were asked in last",
    "each rank has as many places to serve a request as users, at most 500",
    "a request counts from its arrival to its end; nothing is generated between reads",
];

/// Bytes on a drive's way to the host for each byte that it fetches from there. PCIe's request for 512 bytes, the largest by
/// default, takes 24 with its frame; each completion of 256 that arrives is acknowledged by 8, as its timer asks for where
/// the link isn't full.
const REQUESTED: f64 = 24.0 / 512.0 + 8.0 / 256.0;
/// Nanoseconds between two looks at whether to go on.
const POLL_NS: u64 = 1_000_000_000;
/// At most, of a trace that took months.
const LOOKS: u64 = 100;

/// Whose transfer it is: rank and slot.
type Of = (u32, u32);
type Soonest<T> = BinaryHeap<Reverse<T>>;

/// A run that was simulated.
pub struct Simulated {
    pub kvcache: KvCache,
    pub ranks: Vec<Service>,
    pub moved: Moved,
    pub interrupted: bool,
    /// Bytes a second at the end of each second of the run: reads, writes.
    pub series: Vec<[f64; 2]>,
}

/// The drive: entries that are under way, all at the same rate, so that neither direction exceeds its bandwidth.
struct Stage {
    /// Reads, writes.
    bytes_per_ns: [f64; 2],
    latency_ns: [u64; 2],
    active: [u64; 2],
    /// Bytes that an entry has moved which was there all the time.
    share: f64,
    at_ns: f64,
    /// When each ends, on the scale of `share`: direction, rank and slot.
    ends: Soonest<(u64, u64, usize, Of)>,
    count: u64,
    moved: [f64; 2],
}

impl Stage {
    /// Bytes a nanosecond of each entry.
    fn rate(&self) -> f64 {
        let [reads, writes] = self.active.map(|n| n as f64);
        (self.bytes_per_ns[0] / (reads + writes * REQUESTED)).min(self.bytes_per_ns[1] / writes)
    }

    /// When the first entry is through.
    fn next_ns(&self) -> Option<f64> {
        let Reverse((end, ..)) = self.ends.peek()?;
        Some(self.at_ns + (f64::from_bits(*end) - self.share).max(0.0) / self.rate())
    }

    fn move_to(&mut self, now_ns: f64) {
        let span = (now_ns - self.at_ns).max(0.0);
        if !self.ends.is_empty() {
            let each = span * self.rate();
            self.share += each;
            for (moved, active) in self.moved.iter_mut().zip(self.active) {
                *moved += each * active as f64;
            }
        }
        self.at_ns = self.at_ns.max(now_ns);
    }

    fn add(&mut self, way: usize, bytes: u64, of: Of) {
        self.count += 1;
        self.active[way] += 1;
        let end = self.share + bytes as f64;
        self.ends.push(Reverse((end.to_bits(), self.count, way, of)));
    }

    /// Takes the first entry, which is through: its latency, rank and slot.
    fn take(&mut self) -> Option<(u64, Of)> {
        let Reverse((end, _, way, of)) = self.ends.pop()?;
        self.share = self.share.max(f64::from_bits(end));
        self.active[way] -= 1;
        Some((self.latency_ns[way], of))
    }
}

/// What the reference counts of all ranks.
pub fn counted(ranks: &[Service]) -> [u64; 2] {
    ranks.iter().map(Service::counted).fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
}

/// Plays `spec` on `model`. `go_on` is asked about once a second of virtual time.
///
/// # Errors
/// `Request`: a setting is out of bounds, or the drive's write bandwidth isn't known.
pub fn simulate(
    spec: &KvSpec,
    model: &DriveModel,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Simulated, Error> {
    spec.check()?;
    model.check(Op::Write)?;
    let capacity = spec.capacity_bytes.unwrap_or(u64::MAX);
    let ranks = spec.ranks_of_process().map(|rank| Service::new(spec, rank, capacity));
    let mut ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    for rank in &mut ranks {
        rank.stock().into_iter().for_each(|(key, bytes)| rank.is_stocked(key, bytes));
    }
    let in_flight = f64::from(spec.depth) * f64::from(spec.workers.unwrap_or(WORKERS));
    let written = model.write_bandwidth_bytes_s.unwrap_or(model.read_bandwidth_bytes_s);
    let latency_s = [model.read_latency_s, model.write_latency_s];
    let bytes_per_ns = [0, 1].map(|way| {
        let bandwidth = [model.read_bandwidth_bytes_s, written][way];
        // Little's law: no more than what is in flight can arrive in one round trip.
        let io = spec.io_bytes as f64;
        let most = in_flight * io / (latency_s[way] + io / bandwidth);
        most.min(bandwidth * f64::from(model.drives)) / 1e9
    });
    let stage = Stage {
        bytes_per_ns,
        latency_ns: latency_s.map(|s| (s * 1e9) as u64),
        active: [0; 2],
        share: 0.0,
        at_ns: 0.0,
        ends: BinaryHeap::new(),
        count: 0,
        moved: [0.0; 2],
    };
    let mut play = Play {
        spec,
        ranks,
        stage,
        late: BinaryHeap::new(),
        acts: Vec::new(),
        now_ns: 0,
        last_ns: 0,
        in_window: None,
        series: Vec::new(),
    };
    let drained = play.run(go_on);
    Ok(play.end(drained))
}

/// Threads that virtual time takes for granted.
const WORKERS: u32 = 4;

struct Play<'a> {
    spec: &'a KvSpec,
    ranks: Vec<Service>,
    stage: Stage,
    /// Transfers whose bytes have moved, and when they answer: rank and slot.
    late: Soonest<(u64, u64, Of)>,
    acts: Vec<Act>,
    now_ns: u64,
    last_ns: u64,
    in_window: Option<[f64; 2]>,
    series: Vec<[f64; 2]>,
}

impl Play<'_> {
    /// True where all was served to its end.
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let (window, latest) = (self.spec.window_ns(), self.spec.counted_until_ns());
        let each = if self.spec.replay.is_some() { POLL_NS.max(window / LOOKS) } else { POLL_NS };
        let mut next_look = each;
        let mut answers = 0u64;
        loop {
            for index in 0..self.ranks.len() {
                self.ranks[index].advance(self.now_ns, &mut self.acts);
                self.start(index as u32);
            }
            if self.ranks.iter().all(|rank| rank.is_over(self.now_ns)) {
                return true;
            }
            let next = self.next_ns(window).min(next_look).min(latest);
            self.move_to(next, window);
            if next >= next_look {
                self.series.push(self.stage.moved);
                next_look += each;
                if !go_on() {
                    return false;
                }
            }
            if next >= latest {
                return false;
            }
            while self.stage.next_ns().is_some_and(|at| at <= next as f64) {
                let Some((latency_ns, of)) = self.stage.take() else { break };
                answers += 1;
                self.late.push(Reverse((next + latency_ns, answers, of)));
            }
            while let Some(Reverse((_, _, of))) = self.late.peek().copied().filter(|Reverse(l)| l.0 <= next) {
                self.late.pop();
                self.last_ns = next;
                self.ranks[of.0 as usize].ended(of.1, Ended::Whole, next, &mut self.acts);
                self.start(of.0);
            }
        }
    }

    fn next_ns(&self, window: u64) -> u64 {
        let arrivals = self.ranks.iter().filter_map(Service::next_arrival_ns);
        let through = self.stage.next_ns().map(|at| at.ceil() as u64);
        let late = self.late.peek().map(|Reverse((at, ..))| *at);
        let end = (self.now_ns < window).then_some(window);
        arrivals.chain(through).chain(late).chain(end).min().unwrap_or(u64::MAX).max(self.now_ns)
    }

    fn move_to(&mut self, next: u64, window: u64) {
        self.stage.move_to(next as f64);
        self.now_ns = next;
        if next >= window && self.in_window.is_none() {
            self.in_window = Some(self.stage.moved);
        }
    }

    fn start(&mut self, rank: u32) {
        for act in self.acts.drain(..) {
            match act {
                Act::Read { slot, bytes, .. } => self.stage.add(0, bytes, (rank, slot)),
                Act::Write { slot, bytes, .. } => self.stage.add(1, bytes, (rank, slot)),
                Act::Remove { .. } => {}
            }
        }
    }

    fn end(self, drained: bool) -> Simulated {
        let window_ns = self.spec.window_ns();
        let all = if drained {
            let each = self.ranks.iter().map(|rank| &rank.counts.storage);
            each.fold([0, 0], |all, c| [all[0] + c.read_bytes, all[1] + c.written_bytes])
        } else {
            self.stage.moved.map(|bytes| bytes as u64)
        };
        let moved = Moved {
            all,
            counted: counted(&self.ranks),
            in_window: self.in_window.unwrap_or(all.map(|bytes| bytes as f64)),
            last_ns: if drained { self.last_ns } else { self.now_ns },
            window_ns: window_ns.min(self.now_ns),
        };
        let whole_window = self.in_window.is_some();
        let assumptions = OF_REFERENCE.iter().chain(&OF_MODEL).map(|text| text.to_string()).collect();
        let circumstance = Circumstance { whole_window, drained, assumptions, ..Circumstance::default() };
        let kvcache = KvCache::from_ranks(self.spec, &self.ranks, &moved, circumstance);
        let interrupted = !drained && self.now_ns < self.spec.counted_until_ns();
        Simulated { kvcache, ranks: self.ranks, moved, interrupted, series: self.series }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Rates;
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// The whole run, which takes a second without optimisation: once for all tests.
    fn run(option: u32, drive: &'static str) -> Arc<KvCache> {
        static RUNS: Mutex<BTreeMap<(u32, &str), Arc<KvCache>>> = Mutex::new(BTreeMap::new());
        let mut runs = RUNS.lock().unwrap();
        let made = runs.entry((option, drive)).or_insert_with(|| {
            let spec = KvSpec { dir: format!("model:{drive}"), ..KvSpec::of_option(option).unwrap() };
            Arc::new(simulate(&spec, &DriveModel::parse(drive).unwrap(), &mut || true).unwrap().kvcache)
        });
        made.clone()
    }

    /// Published: 14.53 and 14.29 GiB/s of options 1 and 3 on one drive of 14.5 GB/s. The bytes that it really moved lie
    /// between 12.4 and 13.5 GiB/s, and those of a drive of 7.0 GB/s 25 to 35 % below what was published.
    // promise: KVC-5
    #[test]
    fn data_sheets_alone_make_the_published_rates() {
        let one = run(1, "d7-ps1010");
        let Rates { as_published, window, drained } = one.read_gib_s;
        assert!((as_published / 14.53 - 1.0).abs() < 0.05, "{as_published}");
        assert!((12.4..13.5).contains(&drained) && window < 13.51, "{drained} {window}");
        assert!((1.07..1.17).contains(&(as_published / drained)), "{}", as_published / drained);
        let three = run(3, "d7-ps1010").read_gib_s.as_published;
        assert!((three / 14.29 - 1.0).abs() < 0.05, "{three}");
        let slow = run(1, "d5-p5336").read_gib_s;
        assert!((1.25..1.35).contains(&(slow.as_published / slow.drained)), "{slow:?}");
    }

    /// Published: 1,629 requests, 8,996 reads, entries of 607 MiB in the mean and 2,695 at most, 25 interactive users.
    // promise: KVC-6
    #[test]
    fn the_requests_are_those_of_the_published_run() {
        let run = run(1, "d7-ps1010");
        let near = |value: f64, published: f64| (value / published - 1.0).abs() < 0.1;
        assert!(near(run.requests.served as f64, 1629.0), "{:?}", run.requests);
        assert!(near(run.tiers.storage.reads as f64, 8996.0), "{:?}", run.tiers);
        assert!(near(run.entries.bytes_mean / 1048576.0, 607.0), "{:?}", run.entries);
        assert!(near(run.entries.bytes_max as f64 / 1048576.0, 2695.0), "{:?}", run.entries);
        assert!(near(run.classes.interactive.requests as f64, 1445.0), "{:?}", run.classes.interactive);
    }

    #[test]
    fn every_byte_is_somewhere_and_time_adds_up() {
        for option in 1..=3 {
            let run = run(option, "d7-ps1010");
            assert_eq!(run.read_bytes, run.tiers.storage.read_bytes);
            assert_eq!(run.write_bytes, run.tiers.storage.written_bytes);
            assert_eq!(run.requests.offered, run.requests.served + run.requests.left_queued);
            assert_eq!(run.hits.lookups, run.hits.hits + run.hits.misses);
            assert_eq!(
                run.entries.count,
                run.tiers.host.writes + run.tiers.storage.writes - run.entries.demoted
            );
            assert!(run.drained && run.last_s > 300.0 && run.stream_hash.is_some());
            let spread = run.latency_ms.request;
            assert!(spread.p50 <= spread.p95 && spread.p95 <= spread.max, "{spread:?}");
        }
    }

    #[test]
    fn a_run_that_is_stopped_keeps_what_it_has_and_a_small_tier_is_kept_to() {
        let spec = KvSpec { dir: "model:x".into(), ..KvSpec::default() };
        let model = DriveModel::parse("d7-ps1010").unwrap();
        let mut left = 20;
        let stopped = simulate(&spec, &model, &mut || {
            left -= 1;
            left > 0
        });
        let stopped = stopped.unwrap();
        assert!(stopped.interrupted && stopped.kvcache.stream_hash.is_none() && !stopped.kvcache.drained);
        assert!(stopped.kvcache.read_gib_s.window > 10.0, "{:?}", stopped.kvcache.read_gib_s);
        let small = KvSpec { capacity_bytes: Some(100 << 30), ..spec };
        let small = simulate(&small, &model, &mut || true).unwrap().kvcache;
        assert!(
            small.tiers.storage.used_bytes <= 100 << 30 && small.entries.evicted > 100,
            "{:?}",
            small.entries
        );
    }
}
