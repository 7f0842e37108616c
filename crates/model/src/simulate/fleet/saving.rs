//! A checkpoint's rounds: the completed ones with their durations, and the next one.

use super::{Checkpoint, Saved};

/// Next step of its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Write,
    Read,
}

/// A job that writes checkpoints and reads them again, in play.
#[derive(Clone, Debug)]
pub struct Saving {
    spec: Checkpoint,
    began_ns: u64,
    /// Hosts that aren't through with this round. 0: between two.
    left: u32,
    found: Saved,
}

impl Saving {
    pub fn new(spec: &Checkpoint) -> Saving {
        Saving { spec: spec.clone(), began_ns: 0, left: 0, found: Saved::default() }
    }

    /// None: all are done.
    pub fn turn(&self) -> Option<Turn> {
        let done = |times: &[f64], of: u32| times.len() as u64 >= u64::from(of);
        if !done(&self.found.write_s, self.spec.writes) {
            return Some(Turn::Write);
        }
        (!done(&self.found.read_s, self.spec.reads)).then_some(Turn::Read)
    }

    /// A round begins on so many hosts, each of which has so many bytes to do.
    pub fn begin(&mut self, hosts: u32, now: u64) -> f64 {
        (self.left, self.began_ns) = (hosts, now);
        self.spec.bytes
    }

    /// A host is through: nanoseconds to the next round, if it was the last one and there is a next.
    pub fn through(&mut self, now: u64) -> Option<u64> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        let took = (now - self.began_ns) as f64 / 1e9;
        match self.turn()? {
            Turn::Write => self.found.write_s.push(took),
            Turn::Read => self.found.read_s.push(took),
        }
        self.turn().map(|_| (self.spec.pause_s * 1e9).round() as u64)
    }

    /// The result.
    pub fn finish(&self, written_bytes: f64) -> Saved {
        Saved { written_bytes, ..self.found.clone() }
    }
}
