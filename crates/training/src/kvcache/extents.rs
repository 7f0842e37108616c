//! Entries on a source without files (a device, a namespace over a fabric, an emulated drive, a stripe of any of them):
//! extents, and a log of them at the source's beginning, so that what lies where can be read from the source alone. The
//! layout is written down in docs/kvcache.md.

use super::claim::{Claim, Pulse, CLAIM_BYTES, WATCHED};
use crate::generate::pump::{Halt, Pump, Shared};
use forebay_io::{monotonic_now, new_id, ring_refused, wall_seconds, Reactor, RingOptions};
use forebay_model::content;
use forebay_model::job::JobSpec;
use forebay_model::kvcache::service::Key;
use forebay_model::kvcache::KvSpec;
use forebay_model::Error;
use forebay_storage::{examine, Opened, Paths, Purpose, QueueNeeds, Target, Uri};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Bytes of a record, and the unit of extents. No source has larger blocks.
const UNIT: u64 = 4096;
const MAGIC: &[u8; 8] = b"FBEXTENT";
const VERSION: u32 = 1;
/// A record for each MiB of the source, within these bounds: no more entries are there at once.
const RECORDS: std::ops::RangeInclusive<u64> = 64..=65_536;
const BYTES_A_RECORD: u64 = 1 << 20;
/// Extents begin at a multiple of it.
const BEGIN_ALIGN: u64 = 1 << 20;
/// Interval at which another run's claim is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// An entry's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub at: u64,
    bytes: u64,
    /// Number of its record.
    number: u64,
}

pub(super) struct Extents {
    spec: KvSpec,
    opened: Option<Opened>,
    pump: Option<Pump>,
    free: Free,
    held: HashMap<(u32, Key), Extent>,
    /// Records that no entry has.
    spare: Vec<u64>,
    records: u64,
    sequence: u64,
    run: String,
    pulse: Option<Pulse>,
}

/// The source isn't a folder that is there or can be made.
pub(super) fn is_source(spec: &KvSpec) -> Result<bool, Error> {
    let uri = Uri::parse(&spec.dir)?;
    Ok(uri.path().is_none_or(|path| path.exists() && !path.is_dir()))
}

impl Extents {
    pub(super) fn examine(spec: &KvSpec, job: &JobSpec) -> Result<Extents, Error> {
        let purpose = purpose_of(spec, job);
        Paths::check(job.path, &spec.dir, &Uri::parse(&spec.dir)?.medium())?;
        let rehearsed = examine(&purpose)?.rehearsed(&purpose)?;
        let target = only(spec, &rehearsed)?;
        let (bytes, align) = (target.bytes, u64::from(target.align().max(1)));
        let asked = || format!("--dir {}", spec.dir);
        if UNIT % align != 0 || spec.io_bytes % align != 0 {
            let found = format!("it needs multiples of {align} bytes");
            return Err(Error::request(asked(), found, "‹io_bytes› 1m, and blocks of up to 4096 bytes"));
        }
        let records = (bytes / BYTES_A_RECORD).clamp(*RECORDS.start(), *RECORDS.end());
        let begin = (records * UNIT).next_multiple_of(BEGIN_ALIGN);
        if begin + UNIT > bytes {
            let found = format!("it has {bytes} bytes; a log of extents and an entry take more");
            return Err(Error::request(asked(), found, "a larger source"));
        }
        if spec.hosts > 1 {
            let found = "a source without files belongs to one process";
            return Err(Error::request(asked(), found, "--ranks N in one process, without mpirun"));
        }
        Ok(Extents {
            spec: spec.clone(),
            opened: None,
            pump: None,
            free: Free::new(begin, bytes / UNIT * UNIT),
            held: HashMap::new(),
            // The first is the claim.
            spare: (1..records).rev().collect(),
            records,
            sequence: 0,
            run: new_id(),
            pulse: None,
        })
    }

    /// Room for entries of each rank.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.free.bytes / u64::from(self.spec.ranks.max(1))
    }

    /// Opens the source. From here on it is written over.
    pub(super) fn open(&mut self, job: &JobSpec) -> Result<Target, Error> {
        let purpose = purpose_of(&self.spec, job);
        let opened = examine(&purpose)?.open(&purpose, &mut Purpose::fills_nothing)?;
        let target = only(&self.spec, &opened.targets)?.clone();
        self.opened = Some(opened);
        let needs = QueueNeeds::new(1, UNIT).with_worker(job.workers);
        let depth = target.ring_depth(needs);
        let reactor = Reactor::with_ring(RingOptions { depth, ..RingOptions::default() });
        let mut pump = Pump::new(reactor.unwrap_or_else(|_| Reactor::without_ring()), 1, UNIT)?;
        let queue = target.queue(needs, &mut pump.reactor)?;
        pump.take_on(queue);
        self.pump = Some(pump);
        self.claim()?;
        Ok(target)
    }

    /// Refuses a source that another run has, and says that this one has it.
    fn claim(&mut self) -> Result<(), Error> {
        let begun = monotonic_now();
        let found = self.claimed()?.filter(|claim| claim.beat > 0 && !claim.is_dead());
        while let Some(before) = &found {
            match self.claimed()? {
                Some(now) if now.beat > 0 && now != *before => {
                    return Err(now.refusal(&self.spec.dir, wall_seconds()));
                }
                // It was killed, where its count stands still.
                Some(now) if now == *before && monotonic_now() < begun + WATCHED => std::thread::sleep(LOOK),
                _ => break,
            }
        }
        let claim = Claim::new(&self.run, wall_seconds());
        self.put(0, &claim.to_bytes())?;
        self.pulse = Some(Pulse::new(claim, monotonic_now()));
        Ok(())
    }

    fn claimed(&mut self) -> Result<Option<Claim>, Error> {
        let Some(pump) = self.pump.as_mut() else { return Ok(None) };
        let read = pump.get_at(0, CLAIM_BYTES, &Shared::default());
        let record = read.map_err(|halt| failed(&self.spec.dir, 0, halt))?;
        Ok(Claim::parse(&record))
    }

    fn put(&mut self, at: u64, record: &[u8]) -> Result<(), Error> {
        let Some(pump) = self.pump.as_mut() else { return Ok(()) };
        pump.put_at(at, record, &Shared::default()).map_err(|halt| failed(&self.spec.dir, at, halt))
    }

    /// Counts the claim up, where that is due. Err: another run has taken the source over.
    pub(super) fn renew(&mut self, now: Instant) -> Result<(), Error> {
        if !self.pulse.as_mut().is_some_and(|pulse| pulse.is_due(now)) {
            return Ok(());
        }
        if let Some(other) = self.claimed()?.filter(|claim| claim.run != self.run) {
            self.pulse = None;
            return Err(other.taken_over(&self.spec.dir));
        }
        let Some(pulse) = &mut self.pulse else { return Ok(()) };
        pulse.claim.beat += 1;
        let record = pulse.claim.to_bytes();
        self.put(0, &record)
    }

    /// A place for an entry; none where there is no run of free bytes as long, or no record.
    pub(super) fn reserve(&mut self, rank: u32, key: Key, bytes: u64) -> Option<Extent> {
        self.remove(rank, key);
        let number = self.spare.pop()?;
        let whole = bytes.next_multiple_of(UNIT);
        let Some(at) = self.free.take(whole) else {
            self.spare.push(number);
            return None;
        };
        let extent = Extent { at, bytes: whole, number };
        self.held.insert((rank, key), extent);
        Some(extent)
    }

    pub(super) fn extent(&self, rank: u32, key: Key) -> Option<Extent> {
        self.held.get(&(rank, key)).copied()
    }

    pub(super) fn remove(&mut self, rank: u32, key: Key) {
        if let Some(extent) = self.held.remove(&(rank, key)) {
            self.spare.push(extent.number);
            self.free.give(extent.at, extent.bytes);
        }
    }

    /// Writes the record of an entry that is there whole, durably.
    pub(super) fn log(&mut self, rank: u32, key: Key, bytes: u64, name: &str) -> Result<(), Error> {
        let Some(extent) = self.held.get(&(rank, key)).copied() else { return Ok(()) };
        self.sequence += 1;
        let words = [self.sequence, extent.at, bytes, content::file_id(name), self.spec.seed];
        let small = [rank, key.user, key.conversation, key.turn, self.records as u32];
        let mut body = self.run.as_bytes().to_vec();
        body.extend(words.into_iter().flat_map(u64::to_le_bytes));
        body.extend(small.into_iter().flat_map(u32::to_le_bytes));
        body.resize(UNIT as usize - 16, 0);
        let mut record = MAGIC.to_vec();
        record.extend(VERSION.to_le_bytes());
        record.extend(crc32c::crc32c(&body).to_le_bytes());
        record.extend(body);
        self.put(extent.number * UNIT, &record)
    }

    /// Lets go of the source. What was written stays on it.
    pub(super) fn close(&mut self) {
        if let Some(Pulse { mut claim, .. }) = self.pulse.take() {
            // Another run needn't watch it. Where this fails, it does.
            if matches!(self.claimed(), Ok(Some(found)) if found.run == self.run) {
                claim.beat = 0;
                let _ = self.put(0, &claim.to_bytes());
            }
        }
        if let Some(mut pump) = self.pump.take() {
            pump.let_go();
        }
        if let Some(opened) = self.opened.take() {
            let _ = opened.close(false);
        }
    }
}

fn purpose_of(spec: &KvSpec, job: &JobSpec) -> Purpose {
    Purpose {
        sources: vec![spec.dir.clone()],
        writes: true,
        could_make: false,
        overwrite: spec.overwrite.clone(),
        overwrite_devices: spec.overwrite_devices.clone(),
        engine: spec.engine,
        cache: spec.cache,
        workers: job.workers + 1,
        workers_most: job.workers + 1,
        units: vec![("‹io_bytes›", spec.io_bytes)],
        ..Purpose::default()
    }
}

fn only<'a>(spec: &KvSpec, targets: &'a [Target]) -> Result<&'a Target, Error> {
    match targets {
        [one] => Ok(one),
        _ => Err(Error::request(
            format!("--dir {}", spec.dir),
            "is not a single source",
            "a folder, a block device, a stripe or a namespace",
        )),
    }
}

fn failed(dir: &str, at: u64, halt: Halt) -> Error {
    let asked = format!("log of extents on {dir}, at {at}");
    match halt {
        Halt::Io { fault, .. } => Error::run(asked, fault.to_string(), "dmesg | tail; forebay doctor"),
        Halt::Refused(why) => ring_refused(&why),
        Halt::Stopped | Halt::Damaged(_) => Error::run(asked, "was interrupted", "the same command again"),
    }
}

/// Runs of free bytes, by their beginning.
struct Free {
    runs: BTreeMap<u64, u64>,
    /// Of all runs at the beginning.
    bytes: u64,
}

impl Free {
    fn new(begin: u64, end: u64) -> Free {
        let bytes = end.saturating_sub(begin);
        Free { runs: BTreeMap::from([(begin, bytes)]), bytes }
    }

    /// The first run that is long enough.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (at, free) = self.runs.iter().find(|(_, free)| **free >= bytes).map(|(at, free)| (*at, *free))?;
        self.runs.remove(&at);
        if free > bytes {
            self.runs.insert(at + bytes, free - bytes);
        }
        Some(at)
    }

    fn give(&mut self, at: u64, bytes: u64) {
        let (mut at, mut bytes) = (at, bytes);
        if let Some(after) = self.runs.remove(&(at + bytes)) {
            bytes += after;
        }
        if let Some((before, free)) = self.runs.range(..at).next_back().map(|(b, f)| (*b, *f)) {
            if before + free == at {
                self.runs.remove(&before);
                (at, bytes) = (before, bytes + free);
            }
        }
        self.runs.insert(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_are_disjoint_join_again_and_are_all_there_at_the_end() {
        let mut free = Free::new(10, 1010);
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut state = 7u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (draw, bytes) = ((state >> 33) as usize, (state >> 20) % 90 + 1);
            match (draw % 3 == 0).then_some(held.len()).filter(|n| *n > 0) {
                Some(count) => {
                    let (at, bytes) = held.swap_remove(draw % count);
                    free.give(at, bytes);
                }
                None => {
                    let Some(at) = free.take(bytes) else { continue };
                    assert!(at >= 10 && at + bytes <= 1010);
                    assert!(held.iter().all(|(other, len)| at + bytes <= *other || other + len <= at));
                    held.push((at, bytes));
                }
            }
            let taken: u64 = held.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(taken + free.runs.values().sum::<u64>(), 1000);
        }
        held.into_iter().for_each(|(at, bytes)| free.give(at, bytes));
        assert_eq!(free.runs, BTreeMap::from([(10, 1000)]));
    }
}
