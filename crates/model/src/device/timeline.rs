//! The completion time of each I/O on a modelled drive, calculated when the I/O is submitted.

use super::{DriveModel, Rate};
use crate::job::Op;
use crate::random::{derive, Xoshiro256};
use crate::soonest::Soonest;

/// Shares of the mean latency that are fixed and that are spread exponentially:
/// 99 % of commands on an idle drive stay under twice the mean.
const FIXED: f64 = 0.75;
const SPREAD: f64 = 1.0 - FIXED;

/// The state of a model's drives. Feed it I/Os in the order of their submission.
///
/// The bandwidth server comes before the latency, the reverse of silicon: in a
/// closed network throughput doesn't depend on the order, and only this way is an
/// I/O's completion known when it starts. Service times vary exponentially, as a
/// stand-in for collisions inside the drive; throughput then follows mean value
/// analysis at any depth, whatever the spread of the latency.
#[derive(Clone, Debug)]
pub struct Timeline {
    command_bytes: u64,
    /// By `Op`, in the order of its variants.
    rates: [Rate; 4],
    drives: Vec<Drive>,
    spread: Exponential,
    random: Xoshiro256,
    /// All times inside are nanoseconds since this one, in doubles: exact to a fraction of a ns for weeks.
    epoch_ns: Option<u64>,
    busy_ns: f64,
}

#[derive(Clone, Debug)]
struct Drive {
    /// When the bandwidth server has done what it was given.
    free_ns: f64,
    channels: Option<Channels>,
}

impl Timeline {
    pub fn new(model: &DriveModel, seed: u64) -> Self {
        let drive = Drive { free_ns: 0.0, channels: model.channels.map(Channels::new) };
        Timeline {
            drives: vec![drive; model.drives.max(1) as usize],
            spread: Exponential::new(),
            random: Xoshiro256::new(derive(seed, 0x7469_6D65)),
            epoch_ns: None,
            busy_ns: 0.0,
            command_bytes: model.command_bytes,
            rates: [Op::Read, Op::Write, Op::RandRead, Op::RandWrite].map(|op| model.rate(op)),
        }
    }

    /// When an I/O submitted at `now_ns` completes, on the same clock. `now_ns`
    /// should not fall from one call to the next; if it does, the I/O queues behind the earlier ones.
    ///
    /// An operation that `DriveModel::check` refuses is timed with the constants that are known.
    pub fn complete_at(&mut self, now_ns: u64, op: Op, offset: u64, len: u64) -> u64 {
        let epoch = *self.epoch_ns.get_or_insert(now_ns);
        let now = now_ns.saturating_sub(epoch) as f64;
        let mut done = now;
        let (mut at, mut rest) = (offset, len);
        loop {
            let bytes = self.command(at, rest);
            done = done.max(self.command_done(now, op, at, bytes));
            rest -= bytes;
            at = at.wrapping_add(bytes);
            if rest == 0 {
                break;
            }
        }
        epoch.saturating_add(done.ceil() as u64).max(now_ns)
    }

    /// Share of the time from the first I/O to `until_ns` that the bandwidth servers
    /// were busy, 0 to 1. No I/O may have been submitted after `until_ns`.
    pub fn utilisation(&self, until_ns: u64) -> f64 {
        let span = until_ns.saturating_sub(self.epoch_ns.unwrap_or(until_ns)) as f64;
        // What a server still has to do then, it does without a pause.
        let after: f64 = self.drives.iter().map(|drive| (drive.free_ns - span).max(0.0)).sum();
        let whole = span * self.drives.len() as f64;
        if whole > 0.0 {
            ((self.busy_ns - after) / whole).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// Bytes of the next command. Behind a stripe, commands end where its chunks do.
    fn command(&self, at: u64, rest: u64) -> u64 {
        let most = self.command_bytes;
        rest.min(if self.drives.len() == 1 { most } else { most - at % most })
    }

    #[inline]
    fn command_done(&mut self, now: f64, op: Op, at: u64, bytes: u64) -> f64 {
        let index = match self.drives.len() {
            1 => 0,
            n => ((at / self.command_bytes) % n as u64) as usize,
        };
        let rate = &self.rates[op as usize];
        let service = rate.service_s(bytes) * 1e9 * self.spread.draw(&mut self.random);
        let latency = rate.latency_s * 1e9 * (FIXED + SPREAD * self.spread.draw(&mut self.random));
        self.busy_ns += service;
        let drive = &mut self.drives[index];
        drive.free_ns = drive.free_ns.max(now) + service;
        match &mut drive.channels {
            // Writes end in the drive's buffer and hold no channel.
            Some(channels) if !op.is_write() => channels.pass(drive.free_ns, latency),
            _ => drive.free_ns + latency,
        }
    }
}

/// Servers of which any free one may be taken: when each falls free, as the bits of a
/// double, whose order is that of the numbers where none is negative.
#[derive(Clone, Debug)]
struct Channels(Soonest);

impl Channels {
    fn new(count: u32) -> Self {
        Channels(Soonest::new((0..count.max(1)).map(|channel| (0, channel))))
    }

    /// Takes the channel that is free first, at `from_ns` or later, for `hold_ns`. Returns when it ends.
    #[inline]
    fn pass(&mut self, from_ns: f64, hold_ns: f64) -> f64 {
        let (free, channel) = self.0.first();
        let done = f64::from_bits(free).max(from_ns) + hold_ns;
        self.0.replace_first((done.to_bits(), channel));
        done
    }
}

/// Exponential variates of mean 1, from a table of equally likely values: the mean
/// of each 1024th of the distribution, so that the mean is exact.
#[derive(Clone, Debug)]
struct Exponential(Vec<f64>);

impl Exponential {
    const STEPS: usize = 1024;

    fn new() -> Self {
        // -ln of a uniform; x - x ln x is the integral of -ln x.
        let integral = |x: f64| if x == 0.0 { 0.0 } else { x - x * libm::log(x) };
        let steps = Self::STEPS as f64;
        Exponential(
            (0..Self::STEPS)
                .map(|i| (integral((i + 1) as f64 / steps) - integral(i as f64 / steps)) * steps)
                .collect(),
        )
    }

    #[inline]
    fn draw(&self, random: &mut Xoshiro256) -> f64 {
        self.0[(random.next_u64() >> 54) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> DriveModel {
        DriveModel::parse(text).unwrap()
    }

    #[test]
    fn the_table_has_the_moments_of_its_distribution() {
        let Exponential(values) = Exponential::new();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!((mean - 1.0).abs() < 1e-12 && (square - 2.0).abs() < 0.01, "{mean} {square}");
    }

    #[test]
    fn channels_serve_first_come_on_whichever_is_free() {
        let mut channels = Channels::new(2);
        let done: Vec<f64> = [(0.0, 10.0), (1.0, 4.0), (2.0, 1.0), (3.0, 10.0), (30.0, 1.0)]
            .map(|(from, hold)| channels.pass(from, hold))
            .to_vec();
        assert_eq!(done, [10.0, 5.0, 6.0, 16.0, 31.0]);
    }

    #[test]
    fn equal_seeds_give_equal_times() {
        let run = |seed| {
            let mut timeline = Timeline::new(&model("d7-ps1010?drives=3"), seed);
            (0..1000u64).map(|i| timeline.complete_at(5_000 + i * 700, Op::Read, i << 18, 1 << 18)).collect()
        };
        let (a, b, c): (Vec<u64>, Vec<u64>, Vec<u64>) = (run(1), run(1), run(2));
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn an_idle_drive_takes_latency_and_transfer_on_the_mean() {
        let mut timeline = Timeline::new(&model("d7-ps1010"), 1);
        let total: u64 = (0..20_000u64)
            .map(|i| timeline.complete_at(i * 1_000_000, Op::Read, 0, 4096) - i * 1_000_000)
            .sum();
        let mean_us = total as f64 / 20_000.0 / 1e3;
        assert!((mean_us - 75.28).abs() < 0.5, "{mean_us}");
    }

    #[test]
    fn large_ios_spread_over_the_stripe() {
        let alone = |drives: u32| {
            let text = format!("d7-ps1010?drives={drives}");
            let mut timeline = Timeline::new(&model(&text), 1);
            (0..500u64).map(|i| timeline.complete_at(i << 30, Op::Read, 0, 16 << 20) - (i << 30)).sum::<u64>()
        };
        // Less than 4: the last of four drives is waited for, and the latency stays.
        let ratio = alone(1) as f64 / alone(4) as f64;
        assert!((2.5..4.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn odd_arguments_neither_panic_nor_go_back_in_time() {
        let mut timeline = Timeline::new(&model("gen5-ideal?drives=3"), 1);
        let cases = [(100, 0, 0), (50, u64::MAX, 1), (u64::MAX, u64::MAX - 5, 1 << 20), (0, 1, 3)];
        for (now, offset, len) in cases {
            assert!(timeline.complete_at(now, Op::RandWrite, offset, len) >= now);
        }
    }
}
