//! Threads that borrow what they work on, and the calling thread, which leads them.

use super::threads::{refused, STACK_BYTES};
use super::{guarded, Gate};
use forebay_model::Error;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// End of work that threads share: by request, or by the first error of any of them.
#[derive(Debug, Default)]
pub struct Stop {
    is_set: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Stop {
    /// Whether to start nothing more.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Ends the work of all threads.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Ends the work of all threads with this error, unless there was one before.
    pub fn fail(&self, error: Error) {
        self.set();
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Removes and returns the error that came first.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Threads over borrowed data. Errors and panics of any of them end the work of all.
pub struct Team<'a> {
    name: &'static str,
    threads: u32,
    /// Number of ‹workers› that was asked for.
    asked: u32,
    stop: &'a Stop,
    takes_fewer: bool,
    stack_bytes: fn(u32) -> usize,
}

impl<'a> Team<'a> {
    /// Returns a team of threads, none of them started. Each is named `name`, a hyphen and its number.
    pub fn new(name: &'static str, threads: u32, stop: &'a Stop) -> Team<'a> {
        Team { name, threads, asked: threads, stop, takes_fewer: false, stack_bytes: |_| STACK_BYTES }
    }

    /// Sets the number that an error names, where more ‹workers› were asked for than there is work.
    pub fn of_workers(self, asked: u32) -> Team<'a> {
        Team { asked, ..self }
    }

    /// Makes do with fewer threads if `yes` and the system refuses more: the leader does the part of `Lead::missing`
    /// ones. Otherwise that is an error, and the threads that were started are stopped.
    pub(crate) fn or_fewer(self, yes: bool) -> Team<'a> {
        Team { takes_fewer: yes, ..self }
    }

    /// Runs `work` on each thread, given its number and the gate, and `lead` on the calling thread meanwhile. Returns
    /// when both are over, with the results of those threads that returned one; errors are the `Stop`'s. Threads that
    /// wait at the gate when `lead` returns have no start.
    pub fn run<T: Send, R>(
        &self,
        work: impl Fn(u32, &Gate) -> Result<T, Error> + Sync,
        lead: impl FnOnce(&Lead) -> R,
    ) -> (R, Vec<T>) {
        let gate = &Gate::default();
        let one = |number: u32| {
            let done = guarded(format!("worker {number}"), || work(number, gate)).and_then(|done| done);
            let done = done.map_err(|e| self.stop.fail(e)).ok();
            gate.one_ended();
            done
        };
        let one = &one;
        thread::scope(|scope| {
            let (mut threads, mut lead_on) = (Vec::new(), Lead { team: self, gate, started: 0 });
            for number in 0..self.threads {
                let name = format!("{}-{number}", self.name);
                let builder = Builder::new().name(name).stack_size((self.stack_bytes)(number));
                match builder.spawn_scoped(scope, move || one(number)) {
                    Ok(thread) => threads.push(thread),
                    Err(e) if !self.takes_fewer => {
                        self.stop.fail(refused(self.asked, threads.len(), &e));
                        break;
                    }
                    Err(_) => break,
                }
                lead_on.started += 1;
            }
            let led = lead(&lead_on);
            drop(lead_on);
            (led, threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect())
        })
    }
}

/// The leader's view of a team while its threads work.
pub struct Lead<'a> {
    team: &'a Team<'a>,
    gate: &'a Gate,
    started: u32,
}

impl Lead<'_> {
    /// Numbers of threads that the system refused.
    pub fn missing(&self) -> Range<u32> {
        self.started..self.team.threads
    }

    /// The gate that each thread was given.
    pub fn gate(&self) -> &Gate {
        self.gate
    }

    /// Opens the gate once all threads have come to it. The start is what `begin` returns, which is called right before.
    pub(crate) fn open_gate(&self, begin: impl FnOnce() -> Instant) {
        self.gate.await_arrival(self.started);
        self.gate.open(begin());
    }

    /// Whether any thread hasn't ended.
    pub(crate) fn is_working(&self) -> bool {
        self.gate.has_any_of(self.started)
    }

    /// Waits until all threads have ended, for at most `time`.
    pub fn rest(&self, time: Duration) {
        self.gate.await_end(self.started, time);
    }

    /// Asks `go_on` once per interval, until all threads have ended; its no stops them. Returns whether it said no.
    pub fn watch(&self, interval: Duration, go_on: &mut dyn FnMut() -> bool) -> bool {
        let mut interrupted = false;
        while self.is_working() {
            self.rest(interval);
            if !go_on() {
                interrupted = true;
                self.team.stop.set();
            }
        }
        interrupted
    }
}

impl Drop for Lead<'_> {
    /// The leader leaves: no thread waits for it, and after a panic none goes on.
    fn drop(&mut self) {
        self.gate.call_off();
        if thread::panicking() {
            self.team.stop.set();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Kind;

    /// No address space has room for the third thread's stack.
    fn two_of(asked: u32, stop: &Stop) -> Team<'_> {
        Team {
            stack_bytes: |number| if number < 2 { STACK_BYTES } else { 1 << 60 },
            ..Team::new("test", asked, stop)
        }
    }

    fn until_stopped(stop: &Stop) -> Result<(), Error> {
        while !stop.is_set() {
            thread::yield_now();
        }
        Ok(())
    }

    #[test]
    fn threads_work_on_borrowed_data_from_the_start_that_the_leader_gives() {
        let (stop, numbers, begin) = (Stop::default(), [1, 2, 3], Instant::now());
        let work = |number: u32, gate: &Gate| Ok((numbers[number as usize], gate.pass()));
        let (led, done) = Team::new("test", 3, &stop).run(work, |lead| {
            lead.open_gate(|| begin);
            lead.rest(Duration::from_secs(60));
            (lead.is_working(), lead.missing())
        });
        assert_eq!(led, (false, 3..3));
        assert_eq!(done, numbers.map(|number| (number, Some(begin))));
        assert!(!stop.is_set() && stop.take_failure().is_none());
    }

    #[test]
    fn a_panic_in_a_thread_is_an_error_and_stops_the_others() {
        let stop = Stop::default();
        let work = |number, _: &Gate| if number == 1 { panic!("on purpose") } else { until_stopped(&stop) };
        let (interrupted, done) =
            Team::new("test", 3, &stop).run(work, |lead| lead.watch(Duration::from_secs(60), &mut || true));
        let error = stop.take_failure().expect("it says so");
        assert_eq!(
            (interrupted, done.len(), error.kind, error.asked.as_str()),
            (false, 2, Kind::Run, "worker 1")
        );
        assert!(error.found.contains("on purpose"), "{error:?}");
    }

    #[test]
    fn a_thread_that_panics_before_the_gate_holds_up_nobody() {
        let stop = Stop::default();
        let work = |number, gate: &Gate| if number == 0 { panic!("on purpose") } else { Ok(gate.pass()) };
        let ((), done) = Team::new("test", 2, &stop).run(work, |lead| lead.open_gate(Instant::now));
        assert!(done.len() == 1 && done[0].is_some() && stop.take_failure().is_some());
    }

    #[test]
    fn a_refused_thread_is_an_error_and_stops_the_others() {
        let stop = Stop::default();
        let (_, done) =
            two_of(7, &stop).run(|_, _| until_stopped(&stop), |lead| assert_eq!(lead.missing(), 2..7));
        let error = stop.take_failure().expect("it says so");
        assert_eq!((done.len(), error.kind, error.asked.as_str()), (2, Kind::Machine, "‹workers› 7"));
        assert!(
            error.found.contains("refuses more than 2 threads") && error.next.contains("ulimit -u"),
            "{error:?}"
        );
    }

    #[test]
    fn a_team_that_takes_fewer_goes_on_without_the_refused_threads() {
        let stop = Stop::default();
        let (missing, done) =
            two_of(7, &stop).or_fewer(true).run(|number, _| Ok(number), |lead| lead.missing());
        assert_eq!((missing, done, stop.is_set()), (2..7, vec![0, 1], false));
    }

    #[test]
    fn a_leader_that_says_no_or_panics_stops_the_threads() {
        let stop = Stop::default();
        let work = |_, _: &Gate| until_stopped(&stop);
        let said_no =
            Team::new("test", 2, &stop).run(work, |lead| lead.watch(Duration::ZERO, &mut || false)).0;
        let stop = Stop::default();
        let work = |_, gate: &Gate| {
            assert_eq!(gate.pass(), None);
            until_stopped(&stop)
        };
        let panicked =
            guarded("the leader", || Team::new("test", 2, &stop).run(work, |_| -> u32 { panic!("oh") }).0);
        assert!(said_no && panicked.unwrap_err().found.contains("oh"));
    }
}
