//! The event loop, until the end of the simulated time.

mod end;

use super::crew::{Crew, Errand};
use super::pool::{Pool, Table};
use super::saving::Turn;
use super::Fault;
use super::Fleet;
use super::Outcome;
use super::Point;
use super::Work;
use crate::random::derive;
use crate::Error;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events after which the caller is asked whether to go on.
const QUESTION_EVENTS: u64 = 1 << 14;

/// In the order of their time, and of their making where that is the same.
type Due = Reverse<(u64, u64, Event)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A read from this pool is whole, unless its rates have changed since.
    Read {
        pool: u32,
        stamp: u32,
    },
    /// The last request of a batch came.
    Whole {
        job: u32,
        generation: u32,
        host: u32,
        stream_slot: u32,
        upto: u32,
    },
    Barrier {
        job: u32,
        generation: u32,
    },
    Start {
        job: u32,
    },
    /// The next checkpoint is written, or read.
    Round {
        job: u32,
        generation: u32,
    },
    Stop {
        job: u32,
    },
    Fault {
        index: u32,
    },
    Back {
        job: u32,
        host: u32,
    },
    Without {
        job: u32,
        host: u32,
    },
    Point,
    End,
}

/// Plays it. The same outcome for the same fleet. `goes_on` is told the share that is done now and then; false ends the
/// play with what came until then.
pub fn play(fleet: &Fleet, goes_on: &mut dyn FnMut(f64) -> bool) -> Result<Outcome, Error> {
    fleet.check()?;
    let mut world = World::new(fleet)?;
    let mut interrupted = false;
    while let Some(Reverse((at, _, event))) = world.due.pop() {
        world.now = at;
        if event == Event::End {
            break;
        }
        world.happen(event);
        world.share();
        world.events += 1;
        if world.events % QUESTION_EVENTS == 0 && !goes_on(world.now as f64 / 1e9 / fleet.duration_s) {
            interrupted = true;
            break;
        }
    }
    Ok(world.finish(interrupted))
}

struct World<'a> {
    fleet: &'a Fleet,
    now: u64,
    events: u64,
    pools: Vec<Pool>,
    stamps: Vec<u32>,
    /// Pools whose readers have changed at this moment.
    changed: Vec<u32>,
    /// By slot: each job's, and behind them those of jobs that write.
    tables: Vec<Table>,
    /// The job of each slot.
    slots: Vec<u32>,
    crews: Vec<Crew>,
    due: BinaryHeap<Due>,
    made: u64,
    series: Vec<Point>,
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl<'a> World<'a> {
    fn new(fleet: &'a Fleet) -> Result<World<'a>, Error> {
        let crews: Result<Vec<Crew>, Error> = fleet
            .jobs
            .iter()
            .zip(1..)
            .map(|(job, number)| Crew::new(job, number as u32 - 1, derive(fleet.seed, number)))
            .collect();
        let mut tables: Vec<Table> = fleet.jobs.iter().map(|job| Table::new(&job.way)).collect();
        let mut slots: Vec<u32> = (0..fleet.jobs.len() as u32).collect();
        for (number, job) in (0..).zip(&fleet.jobs) {
            if let Work::Checkpoint(of) = &job.work {
                tables.push(Table::new(&of.write_way));
                slots.push(number);
            }
        }
        let mut world = World {
            fleet,
            now: 0,
            events: 0,
            pools: fleet.pools.iter().map(|drives| Pool::new(*drives, tables.len())).collect(),
            stamps: vec![0; fleet.pools.len()],
            changed: Vec::new(),
            tables,
            slots,
            crews: crews?,
            due: BinaryHeap::new(),
            made: 0,
            series: Vec::new(),
        };
        world.expect(ns(fleet.duration_s), Event::End);
        world.expect(ns(fleet.interval_s), Event::Point);
        for (index, fault) in (0..).zip(&fleet.faults) {
            world.expect(ns(fault.at_s()), Event::Fault { index });
        }
        for (job, of) in (0..).zip(&fleet.jobs) {
            world.expect(ns(of.start_s), Event::Start { job });
            if let Some(stop_s) = of.stop_s {
                world.expect(ns(stop_s), Event::Stop { job });
            }
        }
        Ok(world)
    }

    #[inline]
    fn expect(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.due.push(Reverse((at, self.made, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read { pool, stamp } => self.read(pool, stamp),
            Event::Whole { job, generation, host, stream_slot, upto } => {
                if self.is_valid(job, generation) {
                    self.whole(job, host, stream_slot, upto);
                    self.hand_out(job);
                }
            }
            Event::Barrier { job, generation } => {
                if self.is_valid(job, generation) {
                    self.pass(job);
                }
            }
            Event::Start { job } => self.start(job),
            Event::Round { job, generation } => {
                if self.is_valid(job, generation) {
                    self.round(job);
                }
            }
            Event::Stop { job } => self.stop(job),
            Event::Fault { index } => self.fault(self.fleet.faults[index as usize]),
            Event::Back { job, host } => self.back(job, host),
            Event::Without { job, host } => self.without(job, host),
            Event::Point => self.point(),
            Event::End => {}
        }
    }

    fn is_valid(&self, job: u32, generation: u32) -> bool {
        let crew = &self.crews[job as usize];
        crew.is_running && crew.generation == generation
    }

    /// A pool up to now, and to be shared anew.
    #[inline]
    fn touch(&mut self, pool: u32) -> &mut Pool {
        self.pools[pool as usize].advance(self.now);
        if self.changed.last() != Some(&pool) {
            self.changed.push(pool);
        }
        &mut self.pools[pool as usize]
    }

    /// Shares what has changed, and expects the next read that is whole.
    #[inline]
    fn share(&mut self) {
        while let Some(pool) = self.changed.pop() {
            let stamp = self.stamps[pool as usize].wrapping_add(1);
            self.stamps[pool as usize] = stamp;
            if let Some(at) = self.pools[pool as usize].share(&self.tables) {
                self.expect(at, Event::Read { pool, stamp });
            }
        }
    }

    fn read(&mut self, pool: u32, stamp: u32) {
        if self.stamps[pool as usize] != stamp {
            return;
        }
        self.touch(pool);
        while let Some((slot, host)) = self.pools[pool as usize].whole() {
            let job = self.slots[slot as usize];
            if self.crews[job as usize].saving.is_some() {
                self.part(job, host);
                continue;
            }
            self.batch(job, host, pool);
            self.hand_out(job);
        }
    }

    /// The bytes of a batch have come, all but those of its last requests.
    fn batch(&mut self, job: u32, host: u32, pool: u32) {
        let crew = &mut self.crews[job as usize];
        let Some(class) = crew.class.as_mut() else { return };
        let of = &mut crew.hosts[host as usize];
        let Some(errand) = of.finish() else { return };
        if let Some(next) = of.reading {
            self.pools[pool as usize].begin(job, host, Some(next.bytes));
        }
        match class.tail_ns(self.pools[pool as usize].rate(job)) {
            0 => self.whole(job, host, errand.stream_slot, errand.upto),
            tail => {
                let Errand { stream_slot, upto, .. } = errand;
                let generation = crew.generation;
                self.expect(self.now + tail, Event::Whole { job, generation, host, stream_slot, upto });
            }
        }
    }

    #[inline]
    fn whole(&mut self, job: u32, host: u32, stream_slot: u32, upto: u32) {
        let now = self.now;
        if let Some(class) = self.crews[job as usize].class.as_mut() {
            class.whole(host, stream_slot, upto, now);
        }
    }

    /// Sets hosts out on what may be read now, and expects the barrier once it is known.
    #[inline]
    fn hand_out(&mut self, job: u32) {
        let crew = &mut self.crews[job as usize];
        let (generation, Some(class)) = (crew.generation, crew.class.as_mut()) else { return };
        let barrier = class.barrier_at();
        while let Some((host, errand)) = self.crews[job as usize].class.as_mut().and_then(|c| c.grant()) {
            let crew = &mut self.crews[job as usize];
            let of = &mut crew.hosts[host as usize];
            let pool = of.pool;
            if of.take(errand) {
                self.touch(pool).begin(job, host, Some(errand.bytes));
            }
        }
        if let Some(at) = barrier {
            self.expect(at.max(self.now), Event::Barrier { job, generation });
        }
    }

    /// All have come to the barrier. Where one is away it is held up.
    fn pass(&mut self, job: u32) {
        let now = self.now;
        let crew = &mut self.crews[job as usize];
        if crew.hosts.iter().any(|host| host.is_away) {
            crew.is_held = true;
            return;
        }
        let Some(class) = crew.class.as_mut() else { return };
        if class.pass(now) {
            class.next_epoch(now);
        }
        self.hand_out(job);
    }

    fn start(&mut self, job: u32) {
        let now = self.now;
        let crew = &mut self.crews[job as usize];
        crew.is_running = true;
        if let Some(class) = crew.class.as_mut() {
            class.begin_epoch(now);
            return self.hand_out(job);
        }
        if crew.saving.is_some() {
            return self.round(job);
        }
        for host in 0..self.crews[job as usize].hosts.len() as u32 {
            let of = &self.crews[job as usize].hosts[host as usize];
            let (pool, is_away) = (of.pool, of.is_away);
            if !is_away {
                self.touch(pool).begin(job, host, None);
            }
        }
    }

    /// The pool slot of a job's writes.
    fn write_slot(&self, job: u32) -> Option<u32> {
        (self.fleet.jobs.len()..self.slots.len()).find(|s| self.slots[*s] == job).map(|s| s as u32)
    }

    /// All hosts of a job set out on their parts of the next checkpoint; one that is away, once it is back.
    fn round(&mut self, job: u32) {
        let (now, write) = (self.now, self.write_slot(job));
        let crew = &mut self.crews[job as usize];
        let hosts = crew.hosts.len() as u32;
        let Some(saving) = crew.saving.as_mut() else { return };
        let Some(turn) = saving.turn() else { return };
        let bytes = saving.begin(hosts, now);
        crew.slot = if turn == Turn::Write { write.unwrap_or(job) } else { job };
        let slot = crew.slot;
        for host in 0..hosts {
            let of = &mut self.crews[job as usize].hosts[host as usize];
            let pool = of.pool;
            if of.take(Errand { stream_slot: 0, upto: 0, bytes }) {
                self.touch(pool).begin(slot, host, Some(bytes));
            }
        }
    }

    /// A host is through with its part.
    fn part(&mut self, job: u32, host: u32) {
        let now = self.now;
        let crew = &mut self.crews[job as usize];
        crew.hosts[host as usize].finish();
        let generation = crew.generation;
        if let Some(pause) = crew.saving.as_mut().and_then(|saving| saving.through(now)) {
            self.expect(now + pause, Event::Round { job, generation });
        }
    }

    fn stop(&mut self, job: u32) {
        self.halt(job);
        let now = self.now;
        let crew = &mut self.crews[job as usize];
        crew.is_running = false;
        let seconds = now as f64 / 1e9 - self.fleet.jobs[job as usize].start_s;
        crew.ended = Some((seconds, crew.class.as_mut().map(|class| class.finish(now))));
    }

    /// Takes all hosts of a job from their pools, and forgets what they were to read.
    fn halt(&mut self, job: u32) {
        for host in 0..self.crews[job as usize].hosts.len() as u32 {
            self.leave(job, host);
            self.crews[job as usize].hosts[host as usize].clear();
        }
        self.crews[job as usize].generation += 1;
    }

    /// Removes a host from its pool, if it reads there.
    fn leave(&mut self, job: u32, host: u32) {
        let crew = &self.crews[job as usize];
        let of = &crew.hosts[host as usize];
        let (pool, slot) = (of.pool, crew.slot);
        let reads = crew.is_running && !of.is_away && (of.reading.is_some() || crew.only_reads());
        if reads {
            let left = self.touch(pool).leave(slot, host);
            self.crews[job as usize].hosts[host as usize].left = left;
        }
    }

    /// Returns the place of a host in its job now. None: the job went on without it.
    fn rank(&self, job: u32, id: u32) -> Option<u32> {
        self.crews[job as usize].hosts.iter().position(|host| host.id == id).map(|rank| rank as u32)
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Drives { pool, drives, .. } => self.touch(pool).set_drives(drives),
            Fault::Host { job, host: id, back_s, without_s, .. } => {
                let Some(host) = self.rank(job, id) else { return };
                if self.crews[job as usize].hosts[host as usize].is_away {
                    return;
                }
                self.leave(job, host);
                self.crews[job as usize].hosts[host as usize].is_away = true;
                if let Some(at) = back_s {
                    self.expect(ns(at), Event::Back { job, host: id });
                }
                if let Some(at) = without_s {
                    self.expect(ns(at), Event::Without { job, host: id });
                }
            }
        }
    }

    /// A host comes again: it reads on, and computes anew what it was at.
    fn back(&mut self, job: u32, id: u32) {
        let now = self.now;
        let Some(host) = self.rank(job, id) else { return };
        let crew = &mut self.crews[job as usize];
        let of = &mut crew.hosts[host as usize];
        of.is_away = false;
        if !crew.is_running {
            return;
        }
        let (pool, left) = (of.pool, of.left.take());
        let resumes = of.resume() || (crew.class.is_none() && crew.saving.is_none());
        let bytes = left.or(of.reading.map(|errand| errand.bytes));
        let generation = crew.generation;
        let held = std::mem::take(&mut crew.is_held);
        let again = crew.class.as_ref().map_or(0, |c| c.compute_ns());
        let slot = crew.slot;
        if resumes {
            self.touch(pool).begin(slot, host, bytes);
        }
        if held {
            self.expect(now + again, Event::Barrier { job, generation });
        }
    }

    /// The others begin again without a host, with nothing read ahead.
    fn without(&mut self, job: u32, id: u32) {
        let now = self.now;
        let Some(host) = self.rank(job, id) else { return };
        if !self.crews[job as usize].is_running || self.crews[job as usize].hosts.len() < 2 {
            return;
        }
        self.halt(job);
        let crew = &mut self.crews[job as usize];
        crew.hosts.remove(host as usize);
        crew.is_held = false;
        let hosts = crew.hosts.len() as u32;
        match crew.class.as_mut() {
            Some(class) => {
                class.begin_again(hosts, now);
                self.hand_out(job);
            }
            None => self.start(job),
        }
    }
}
