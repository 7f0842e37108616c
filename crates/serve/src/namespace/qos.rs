//! Limits on what a namespace or a controller may do, in bytes and in commands per
//! second.
//!
//! Each queue pair has a `Share` of every limit that concerns it, and asks before a
//! command starts. Shares draw credit from the limit a quantum at a time, each
//! waiting for its place in one line; so queues that all have something to do get
//! equal parts of the limit, however long or many their commands are (deficit round
//! robin). Nothing runs by itself: a time to look again comes out only where a
//! command waits, and a limit that is changed holds at once.

use forebay_io::Rate;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A quantum lasts this long: the shorter, the finer the queues' turns; the longer, the fewer wake-ups.
const QUANTUM_NS: u64 = 1_000_000;
/// Bytes and commands of a quantum, at least and at most.
const QUANTA: [(u64, u64); 2] = [(4096, 256 << 10), (1, 64)];
/// A waiting command is looked at again after this long, whatever the rate: that may have been changed.
const WAIT_NS_MAX: u64 = 100_000_000;

/// None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub bytes_per_s: Option<u64>,
    pub iops: Option<u64>,
}

/// One namespace's or controller's limits, for all its queues.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// Rates of bytes and of commands.
    rates: [Rate; 2],
    /// Counts changes: what was drawn before one doesn't count after it.
    changes: AtomicU64,
    /// Commands that had to wait.
    held_back: AtomicU64,
}

impl Limiter {
    pub(crate) fn new(limits: Limits) -> Arc<Limiter> {
        let rates = [Rate::new(limits.bytes_per_s), Rate::new(limits.iops)];
        Arc::new(Limiter { rates, ..Limiter::default() })
    }

    #[cfg(test)]
    pub(crate) fn limits(&self) -> Limits {
        Limits { bytes_per_s: self.rates[0].get(), iops: self.rates[1].get() }
    }

    /// Other limits from now on. Commands that wait are looked at again within 100 ms.
    pub(crate) fn set(&self, limits: Limits, now_ns: u64) {
        self.rates[0].set(limits.bytes_per_s, now_ns);
        self.rates[1].set(limits.iops, now_ns);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns whether there is no limit.
    pub(crate) fn is_open(&self) -> bool {
        self.rates.iter().all(|rate| rate.get().is_none())
    }

    /// One more command waits.
    pub(crate) fn held_back(&self) {
        self.held_back.fetch_add(1, Ordering::Relaxed);
    }

    /// As many waited before, under another process.
    pub(crate) fn add_held_back(&self, commands: u64) {
        self.held_back.fetch_add(commands, Ordering::Relaxed);
    }

    /// Commands that had to wait.
    pub(crate) fn commands_held_back(&self) -> u64 {
        self.held_back.load(Ordering::Relaxed)
    }

    /// A queue's part of it.
    pub(crate) fn share(self: &Arc<Limiter>) -> Share {
        Share { limiter: self.clone(), changes: 0, drawn: [Drawn::default(); 2] }
    }
}

/// Share's use of one rate.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    credit: u64,
    /// A quantum that comes in its turn: how much, and when (ns).
    next: Option<(u64, u64)>,
}

/// One queue's part of a limit.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    limiter: Arc<Limiter>,
    /// Changes of the limits that this has seen.
    changes: u64,
    /// Drawn bytes and commands.
    drawn: [Drawn; 2],
}

impl Share {
    pub(crate) fn is_of(&self, limiter: &Arc<Limiter>) -> bool {
        Arc::ptr_eq(&self.limiter, limiter)
    }

    /// The time until which a command must wait; None: it may go, if others agree.
    fn ready(&mut self, amounts: [u64; 2], now_ns: u64) -> Option<u64> {
        let changes = self.limiter.changes.load(Ordering::Acquire);
        if changes != self.changes {
            (self.changes, self.drawn) = (changes, Default::default());
        }
        let rates = self.limiter.rates.iter().zip(&mut self.drawn).zip(QUANTA).zip(amounts);
        rates.filter_map(|(((rate, drawn), quantum), amount)| drawn.draw(rate, quantum, amount, now_ns)).max()
    }

    fn spend(&mut self, amounts: [u64; 2]) {
        for (drawn, amount) in self.drawn.iter_mut().zip(amounts) {
            drawn.credit = drawn.credit.saturating_sub(amount);
        }
    }
}

impl Drawn {
    /// Draws what is missing, quantum by quantum; when the next one comes, if that isn't now.
    fn draw(&mut self, rate: &Rate, (least, most): (u64, u64), amount: u64, now_ns: u64) -> Option<u64> {
        let Some(per_second) = rate.get() else {
            *self = Drawn::default();
            return None;
        };
        while self.credit < amount {
            let (quantum, due) = *self.next.get_or_insert_with(|| {
                let quantum = (per_second / (1_000_000_000 / QUANTUM_NS)).clamp(least, most);
                (quantum, rate.reserve(quantum, now_ns))
            });
            if due > now_ns {
                return Some(due);
            }
            self.credit += quantum;
            self.next = None;
        }
        None
    }
}

/// Lets a command of `bytes` through all of these, or says when to ask again, in ns of the same clock as `now_ns`.
/// Without limits it costs three loads per share.
///
/// # Errors
/// The time to ask again. Nothing was spent, but the queue has its place in the lines that it waits in.
pub(crate) fn enter(shares: &mut [&mut Share], bytes: u64, now_ns: u64) -> Result<(), u64> {
    let amounts = [bytes, 1];
    let waits = shares.iter_mut().filter_map(|share| share.ready(amounts, now_ns)).max();
    if let Some(until) = waits {
        return Err(until.min(now_ns + WAIT_NS_MAX));
    }
    shares.iter_mut().for_each(|share| share.spend(amounts));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::Rate;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// A queue pair that always has a command of this length waiting.
    struct Queue {
        shares: Vec<Share>,
        len: u64,
        looks_at: u64,
        bytes: u64,
        commands: u64,
    }

    impl Queue {
        fn new(limiters: &[&Arc<Limiter>], len: u64, from: u64) -> Queue {
            let shares = limiters.iter().map(|l| l.share()).collect();
            Queue { shares, len, looks_at: from, bytes: 0, commands: 0 }
        }

        /// Starts all that it may at `now`.
        fn start_due(&mut self, now: u64, late: u64, most: u64) {
            for _ in 0..most {
                let mut shares: Vec<&mut Share> = self.shares.iter_mut().collect();
                match enter(&mut shares, self.len, now) {
                    Ok(()) => (self.bytes, self.commands) = (self.bytes + self.len, self.commands + 1),
                    Err(until) => {
                        assert!(until > now && until <= now + WAIT_NS_MAX);
                        self.looks_at = until + late;
                        return;
                    }
                }
            }
            self.looks_at = now + 1000;
        }
    }

    /// Virtual time: whoever looks next has its turn. How often anybody looked.
    fn run(queues: &mut [Queue], from: u64, until: u64, late: u64) -> u64 {
        let mut looks = 0;
        loop {
            let next = queues.iter_mut().min_by_key(|q| q.looks_at).expect("there are queues");
            let now = next.looks_at.max(from);
            if now >= until {
                return looks;
            }
            next.start_due(now, late, 100_000);
            looks += 1;
        }
    }

    fn quantum(rate: u64, (least, most): (u64, u64)) -> u64 {
        (rate / 1000).clamp(least, most)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

        /// However many queues ask for whatever, together they get the limit: no more than a burst and a quantum each
        /// above it, no less than what they were late.
        // promise: GWY-5
        #[test]
        fn a_limit_on_bytes_is_kept_and_used(
            rate in 1_000_000u64..1_000_000_000, lens in prop::collection::vec(1u64..257, 1..9), late in 0u64..200_000,
        ) {
            let limiter = Limiter::new(Limits { bytes_per_s: Some(rate), iops: None });
            let mut queues: Vec<Queue> =
                lens.iter().map(|pages| Queue::new(&[&limiter], pages * 4096, SECOND)).collect();
            run(&mut queues, SECOND, 3 * SECOND, late);
            let bytes: u64 = queues.iter().map(|q| q.bytes).sum();
            let burst = (u128::from(rate) * u128::from(Rate::BURST_NS) / u128::from(SECOND)) as u64;
            let slack = queues.len() as u64 * (quantum(rate, QUANTA[0]) + 1);
            prop_assert!(bytes <= 2 * rate + burst + slack + rate / 1000, "{} of {}", bytes, 2 * rate);
            // What a queue has drawn for a command that didn't start yet.
            let held: u64 = queues.iter().map(|q| q.len).sum();
            prop_assert!(bytes + held + slack + rate / 100 >= 2 * rate, "{} of {}", bytes, 2 * rate);
        }

        /// Queues that always have something to do get equal bytes, whether by long commands or by short ones.
        // promise: GWY-5
        #[test]
        fn queues_get_equal_parts(
            rate in 50_000_000u64..500_000_000, lens in prop::collection::vec(1u64..65, 2..7),
        ) {
            let limiter = Limiter::new(Limits { bytes_per_s: Some(rate), iops: None });
            let mut queues: Vec<Queue> =
                lens.iter().map(|pages| Queue::new(&[&limiter], pages * 4096, SECOND)).collect();
            // The burst goes to whoever comes first.
            run(&mut queues, SECOND, 2 * SECOND, 0);
            let before: Vec<u64> = queues.iter().map(|q| q.bytes).collect();
            run(&mut queues, 2 * SECOND, 4 * SECOND, 0);
            let got: Vec<u64> = queues.iter().zip(before).map(|(q, before)| q.bytes - before).collect();
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            let grain = 2 * (quantum(rate, QUANTA[0]) + 64 * 4096);
            prop_assert!(most - least <= grain + most / 100, "{:?} by {:?}", got, lens);
        }

        /// Both limits hold, of the namespace and of the controller, and the tighter one decides.
        #[test]
        fn the_tightest_limit_decides(iops in 100u64..20_000, rate in 10_000_000u64..200_000_000, pages in 1u64..33) {
            let namespace = Limiter::new(Limits { bytes_per_s: Some(rate), iops: None });
            let controller = Limiter::new(Limits { bytes_per_s: None, iops: Some(iops) });
            let mut queues: Vec<Queue> =
                (0..3).map(|_| Queue::new(&[&namespace, &controller], pages * 4096, SECOND)).collect();
            run(&mut queues, SECOND, 3 * SECOND, 0);
            let commands: u64 = queues.iter().map(|q| q.commands).sum();
            let wanted = 2.0 * (iops as f64).min(rate as f64 / (pages * 4096) as f64);
            let got = commands as f64;
            prop_assert!(got <= wanted * 1.03 + 3.0 * 66.0 && got >= wanted * 0.97 - 10.0, "{} of {}", got, wanted);
        }
    }

    #[test]
    fn a_change_holds_at_once_and_forgives_what_went_before() {
        let limiter = Limiter::new(Limits { bytes_per_s: Some(1), iops: None });
        let mut queues = [Queue::new(&[&limiter], 4096, SECOND)];
        run(&mut queues, SECOND, 2 * SECOND, 0);
        let before = queues[0].commands;
        assert!(before <= 1, "4096 bytes at a byte per second: {before}");
        limiter.set(Limits { bytes_per_s: Some(4096 * 1000), iops: None }, 2 * SECOND);
        run(&mut queues, 2 * SECOND, 3 * SECOND, 0);
        let after = queues[0].commands - before;
        assert!((890..=1060).contains(&after), "{after} in a second that began at most 100 ms late");
        limiter.set(Limits::default(), 3 * SECOND);
        assert_eq!(limiter.limits(), Limits::default());
        queues[0].looks_at = 3 * SECOND;
        queues[0].start_due(3 * SECOND, 0, 1_000_000);
        assert_eq!(queues[0].commands - before - after, 1_000_000);
        limiter.set(Limits { bytes_per_s: None, iops: Some(10) }, 4 * SECOND);
        let before = queues[0].commands;
        run(&mut queues, 4 * SECOND, 6 * SECOND, 0);
        assert!((20..=22).contains(&(queues[0].commands - before)));
    }

    #[test]
    fn nobody_looks_while_nothing_waits_and_seldom_while_it_does() {
        let limiter = Limiter::new(Limits { bytes_per_s: Some(100_000_000), iops: None });
        let mut share = limiter.share();
        // Half the limit: no command waits, so there is no time to look again.
        for i in 0..10_000u64 {
            assert_eq!(enter(&mut [&mut share], 4096, SECOND + i * 81_920), Ok(()));
        }
        let mut queues: Vec<Queue> = (0..8).map(|_| Queue::new(&[&limiter], 4096, 9 * SECOND)).collect();
        let looks = run(&mut queues, 9 * SECOND, 10 * SECOND, 0);
        assert!(looks <= 1100, "{looks} wake-ups in a second of eight queues that wait");
    }

    #[test]
    fn threads_share_one_limit() {
        let limiter = Limiter::new(Limits { bytes_per_s: None, iops: Some(1000) });
        let through = |share: &mut Share| {
            (0..1000u64).filter(|i| enter(&mut [share], 0, SECOND + i * 1_000_000).is_ok()).count()
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let mut share = limiter.share();
                    scope.spawn(move || through(&mut share))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert!((900..=1056).contains(&total), "{total} of 1000 and a burst of 50");
    }
}
