//! The end of a job of the fleet.

use super::super::JobOutcome;
use super::super::Outcome;
use super::super::Point;
use super::super::Saved;
use super::ns;
use super::Event;
use super::World;

impl<'a> World<'a> {
    pub(super) fn point(&mut self) {
        let now = self.now;
        self.pools.iter_mut().for_each(|pool| pool.advance(now));
        let bytes = (0..self.crews.len()).map(|job| self.total(job).0).collect();
        let steps = self.crews.iter().map(|c| c.class.as_ref().map_or(0, |class| class.steps())).collect();
        self.series.push(Point { t_s: now as f64 / 1e9, bytes, steps });
        self.expect(now + ns(self.fleet.interval_s).max(1), Event::Point);
    }

    /// A job's bytes, and host-seconds of reading.
    pub(super) fn total(&self, job: usize) -> (f64, f64) {
        let slots = (0..self.slots.len()).filter(|slot| self.slots[*slot] as usize == job);
        slots.map(|slot| self.of_slot(slot)).fold((0.0, 0.0), |sum, (b, t)| (sum.0 + b, sum.1 + t))
    }

    pub(super) fn of_slot(&self, slot: usize) -> (f64, f64) {
        let read = self.pools.iter().map(|pool| pool.read(slot));
        read.fold((0.0, 0.0), |sum, (b, t)| (sum.0 + b, sum.1 + t / 1e9))
    }

    /// The results of a job's checkpoints.
    pub(super) fn saved(&self, job: usize) -> Option<Saved> {
        let saving = self.crews[job].saving.as_ref()?;
        let written = self.write_slot(job as u32).map_or(0.0, |slot| self.of_slot(slot as usize).0);
        Some(saving.finish(written))
    }

    pub(super) fn finish(mut self, interrupted: bool) -> Outcome {
        let now = self.now;
        self.pools.iter_mut().for_each(|pool| pool.advance(now));
        let mut jobs = Vec::new();
        for (index, of) in self.fleet.jobs.iter().enumerate() {
            let ((bytes, reading_s), checkpoint) = (self.total(index), self.saved(index));
            let crew = &mut self.crews[index];
            let (seconds, training) = match crew.ended.take() {
                Some(ended) => ended,
                None if !crew.is_running => (0.0, None),
                None => (now as f64 / 1e9 - of.start_s, crew.class.as_mut().map(|class| class.finish(now))),
            };
            let hosts = of.hosts.len() as u32;
            jobs.push(JobOutcome {
                name: of.name.clone(),
                hosts,
                seconds,
                bytes,
                reading_s,
                training,
                checkpoint,
            });
        }
        Outcome {
            seconds: now as f64 / 1e9,
            interrupted,
            events: self.events,
            jobs,
            drive_s: self.pools.iter().map(|pool| pool.drive_ns() / 1e9).sum(),
            series: self.series,
        }
    }
}
