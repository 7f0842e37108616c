//! The times of a modelled drive, which queues of several workers keep together.

use forebay_io::{monotonic_now, Io, Op};
use forebay_model::device::{DriveModel, Timeline};
use forebay_model::job;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A modelled drive that several workers use at once: its channels and its bandwidth are shared.
#[derive(Clone, Debug)]
pub struct SharedDrive {
    timeline: Arc<Mutex<Timeline>>,
    began: Instant,
    random: bool,
}

impl SharedDrive {
    /// `random`: the job draws its offsets, and the drive serves it at its random rates.
    pub fn new(model: &DriveModel, seed: u64, random: bool) -> SharedDrive {
        SharedDrive {
            timeline: Arc::new(Mutex::new(Timeline::new(model, seed))),
            began: monotonic_now(),
            random,
        }
    }

    /// When a read that begins now would be done.
    pub fn ready_at(&self, offset: u64, bytes: u64) -> Instant {
        let op = if self.random { job::Op::RandRead } else { job::Op::Read };
        let mut timeline = self.timeline.lock().expect("no thread panics while it holds the timeline");
        self.began + Duration::from_nanos(timeline.complete_at(self.since(), op, offset, bytes))
    }

    /// The time of so many ns since it began.
    pub(super) fn time_of(&self, ns: u64) -> Instant {
        self.began + Duration::from_nanos(ns)
    }

    pub(super) fn since(&self) -> u64 {
        monotonic_now().duration_since(self.began).as_nanos() as u64
    }

    pub(super) fn complete_at(&self, io: &Io) -> u64 {
        let op = match (io.op, self.random) {
            (Op::Read, false) => job::Op::Read,
            (Op::Read, true) => job::Op::RandRead,
            (_, false) => job::Op::Write,
            (_, true) => job::Op::RandWrite,
        };
        let mut timeline = self.timeline.lock().expect("no thread panics while it holds the timeline");
        timeline.complete_at(self.since(), op, io.offset, u64::from(io.len))
    }
}
