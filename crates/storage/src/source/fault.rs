//! Faults on purpose: a queue over a queue that fails, shortens, delays, reorders
//! or swallows I/Os, from a seed, so that every way a device can misbehave can be
//! met again.
//!
//! The model: each I/O draws once, in the order of submission. `error` of them
//! complete with EIO without reaching the device. `short` of them reach it and
//! report fewer bytes than moved (a multiple of the alignment, at least one
//! unit). `delay_us` holds every completion back by up to that long. `reorder`
//! hands completions of one reap back in a shuffled order. `stall` of them reach
//! the device and are never reported, until they are abandoned.

use forebay_io::{monotonic_now, Done, Fault, Full, Geometry, Io, Queue, Reactor, Via};
use forebay_model::random::{derive, Xoshiro256};
use forebay_model::Error;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub seed: u64,
    pub error: f64,
    pub short: f64,
    pub stall: f64,
    pub delay_us: u64,
    pub reorder: bool,
}

impl FaultPlan {
    /// `seed=1,error=0.01,short=0.01,stall=0,delay_us=100,reorder=1`.
    pub fn parse(text: &str) -> Result<FaultPlan, Error> {
        let bad = |word: &str, why: &str| {
            let example = "seed=1,error=0.01,short=0.01,stall=0.001,delay_us=100,reorder=1";
            Error::request(format!("‹faults› {text}"), format!("'{word}' {why}"), example)
        };
        let mut plan = FaultPlan { seed: 1, ..FaultPlan::default() };
        for word in text.split(',').filter(|w| !w.is_empty()) {
            let (key, value) = word.split_once('=').ok_or_else(|| bad(word, "has no value"))?;
            let share = || {
                value
                    .parse::<f64>()
                    .ok()
                    .filter(|v| (0.0..=1.0).contains(v))
                    .ok_or_else(|| bad(word, "is not a share between 0 and 1"))
            };
            let whole = || value.parse::<u64>().map_err(|_| bad(word, "is not a whole number"));
            match key {
                "seed" => plan.seed = whole()?,
                "error" => plan.error = share()?,
                "short" => plan.short = share()?,
                "stall" => plan.stall = share()?,
                "delay_us" => plan.delay_us = whole()?.min(60_000_000),
                "reorder" => plan.reorder = whole()? != 0,
                _ => return Err(bad(word, "is not a known fault")),
            }
        }
        Ok(plan)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Well,
    Short,
    Stall,
}

pub struct FaultQueue {
    inner: Box<dyn Queue>,
    plan: FaultPlan,
    random: Xoshiro256,
    fate: Vec<Fate>,
    abandoned: Vec<bool>,
    /// Failed without reaching the device; told at the next reap after `submit`.
    failed: Vec<Done>,
    /// Done below, not yet told above.
    held: Vec<(Instant, Done)>,
    stalled: Vec<Done>,
    scratch: Vec<Done>,
}

impl FaultQueue {
    /// `worker` keeps the faults of workers that share a plan apart.
    pub fn new(inner: Box<dyn Queue>, plan: FaultPlan, worker: u32) -> Self {
        let depth = inner.geometry().depth as usize;
        FaultQueue {
            inner,
            plan,
            random: Xoshiro256::new(derive(plan.seed, u64::from(worker))),
            fate: vec![Fate::Well; depth],
            abandoned: vec![false; depth],
            failed: Vec::new(),
            held: Vec::new(),
            stalled: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// I/Os that are reported only once they are abandoned. Where this is all that is in flight, nothing
    /// more comes by itself.
    pub fn stalled(&self) -> u32 {
        self.stalled.len() as u32
    }

    /// A share of one.
    fn draw(&mut self) -> f64 {
        self.random.next_f64()
    }

    /// A short transfer of at least one aligned unit.
    fn bend(&mut self, mut done: Done) -> Done {
        let unit = self.geometry().align.max(1);
        if let (Fate::Short, Ok(moved)) = (self.fate[done.tag as usize], &done.result) {
            let units = moved / unit;
            if units > 1 {
                let kept = 1 + (self.draw() * f64::from(units - 1)) as u32;
                done.result = Ok(kept * unit);
            }
        }
        done
    }

    fn hold(&mut self, done: Done) {
        let tag = done.tag as usize;
        if self.fate[tag] == Fate::Stall {
            // A slow device may answer after its caller has given up.
            match self.abandoned[tag] {
                true => self.held.push((monotonic_now(), cancelled(done))),
                false => self.stalled.push(done),
            }
            return;
        }
        let delay = Duration::from_micros((self.draw() * self.plan.delay_us as f64) as u64);
        let done = self.bend(done);
        self.held.push((monotonic_now() + delay, done));
    }

    fn shuffle(&mut self, done: &mut [Done]) {
        for i in (1..done.len()).rev() {
            let j = (self.draw() * (i + 1) as f64) as usize;
            done.swap(i, j);
        }
    }
}

fn cancelled(done: Done) -> Done {
    Done { result: Err(Fault::errno(libc::ECANCELED)), ..done }
}

impl Queue for FaultQueue {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight() + (self.failed.len() + self.held.len() + self.stalled.len()) as u32
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight() >= self.geometry().depth {
            return Err(Full(io));
        }
        let tag = io.tag as usize;
        let draw = self.draw();
        let plan = self.plan;
        self.abandoned[tag] = false;
        self.fate[tag] = Fate::Well;
        if draw < plan.error {
            let fault = Fault::note(libc::EIO, format!("injected error at offset {}", io.offset));
            self.failed.push(Done { tag: io.tag, result: Err(fault), via: Via::Nothing, copy_ns: 0 });
            return Ok(());
        }
        if draw < plan.error + plan.short {
            self.fate[tag] = Fate::Short;
        } else if draw < plan.error + plan.short + plan.stall {
            self.fate[tag] = Fate::Stall;
        }
        self.inner.push(io, reactor)
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.inner.submit(reactor);
        for done in std::mem::take(&mut self.failed) {
            self.held.push((monotonic_now(), done));
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        let mut finished = std::mem::take(&mut self.scratch);
        self.inner.reap(reactor, &mut finished);
        for d in finished.drain(..) {
            self.hold(d);
        }
        self.scratch = finished;
        let now = monotonic_now();
        let first = done.len();
        let mut i = 0;
        while i < self.held.len() {
            if self.held[i].0 <= now {
                done.push(self.held.swap_remove(i).1);
            } else {
                i += 1;
            }
        }
        if self.plan.reorder {
            self.shuffle(&mut done[first..]);
        }
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        self.abandoned[tag as usize] = true;
        if let Some(at) = self.stalled.iter().position(|d| d.tag == tag) {
            let done = self.stalled.swap_remove(at);
            self.held.push((monotonic_now(), cancelled(done)));
        } else {
            self.inner.abandon(tag, reactor);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let own = self.held.iter().map(|h| h.0).min();
        [own, self.inner.next_due()].into_iter().flatten().min()
    }

    fn wakes_at_first(&self) -> bool {
        self.inner.wakes_at_first()
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.inner.close(reactor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_what_it_knows_and_names_what_it_does_not() {
        let plan = FaultPlan::parse("seed=3,error=0.5,delay_us=7,reorder=1").unwrap();
        assert_eq!(
            plan,
            FaultPlan { seed: 3, error: 0.5, delay_us: 7, reorder: true, ..FaultPlan::default() }
        );
        for bad in ["error=2", "eror=0.1", "seed", "delay_us=x"] {
            assert!(FaultPlan::parse(bad).unwrap_err().found.contains(bad.split('=').next().unwrap()));
        }
    }
}
