//! Runs on a thread of their own, so that observers can't delay them. The run only publishes its progress; the
//! observer is called from the thread that requested the run, with the latest state. A terminal that accepts no
//! output (Ctrl-S, a stuck ssh) delays neither the meters nor the next repeat.

use super::Observer;
use forebay_model::Error;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// How often the observer is asked whether to continue while there is no news.
const POLL: Duration = Duration::from_millis(50);

/// Does `work` on a thread of its own, and shows its progress to `observer`. Returns when the work is over and the
/// observer's last call has returned.
pub fn with<W: Clone + Send, T: Send>(
    observer: &mut dyn Observer<W>,
    work: impl FnOnce(&mut dyn Observer<W>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let (desk, flag) = (Desk::new(), observer.stop_flag());
    thread::scope(|scope| {
        let body = || {
            let _over = Over(&desk);
            work(&mut Word { desk: &desk, flag })
        };
        let running = thread::Builder::new().name("run".into()).spawn_scoped(scope, body).map_err(|e| {
            Error::machine("a thread for the run", format!("the system refuses it: {e}"), "ulimit -u")
        })?;
        desk.show(observer);
        running.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// The progress that the run publishes.
struct Desk<W> {
    left: Mutex<Left<W>>,
    changed: Condvar,
    stop: AtomicBool,
}

struct Left<W> {
    /// Not yet shown.
    word: Option<W>,
    over: bool,
}

impl<W> Desk<W> {
    fn new() -> Desk<W> {
        Desk {
            left: Mutex::new(Left { word: None, over: false }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    fn leave(&self, change: impl FnOnce(&mut Left<W>)) {
        change(&mut self.left.lock().expect("no thread panics while it leaves word"));
        self.changed.notify_one();
    }

    fn show(&self, observer: &mut dyn Observer<W>) {
        // Whatever ends this, the run doesn't go on unwatched.
        let _stop = Stop(&self.stop);
        let mut over = false;
        while !over {
            let left = self.left.lock().expect("no thread panics while it leaves word");
            let nothing = |left: &mut Left<W>| left.word.is_none() && !left.over;
            let (mut left, _) = self.changed.wait_timeout_while(left, POLL, nothing).expect("as above");
            let word = left.word.take();
            over = left.over;
            drop(left);
            if let Some(progress) = word {
                observer.progress(&progress);
            }
            if observer.stop() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// The run's side: an observer that never blocks.
struct Word<'a, W> {
    desk: &'a Desk<W>,
    flag: Option<&'static AtomicBool>,
}

impl<W: Clone> Observer<W> for Word<'_, W> {
    fn progress(&mut self, progress: &W) {
        self.desk.leave(|left| left.word = Some(progress.clone()));
    }

    fn stop(&mut self) -> bool {
        let set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        set(&self.desk.stop) || self.flag.is_some_and(set)
    }
}

/// Reports the end of the run, even after a panic.
struct Over<'a, W>(&'a Desk<W>);

impl<W> Drop for Over<'_, W> {
    fn drop(&mut self) {
        self.0.leave(|left| left.over = true);
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Phase, Progress};
    use super::*;
    use std::sync::mpsc::{channel, Receiver, Sender};

    fn at(t_s: f64) -> Progress {
        Progress {
            phase: Phase::Measure,
            repeat: 0,
            repeats: 1,
            t_s,
            duration_s: None,
            gib_s: 0.0,
            iops: 0.0,
            bytes: 0,
            ios: 0,
            interval_bytes: 0,
            latency_us_mean: None,
            latency_us_p50: None,
            latency_us_p99: None,
            latency_us_p999: None,
            cores_busy: None,
            workers: Vec::new(),
            targets: Vec::new(),
            message: None,
        }
    }

    static FLAG: AtomicBool = AtomicBool::new(false);

    /// Says when it is called, and doesn't come back before it may.
    struct Slow {
        called: Sender<()>,
        may_return: Receiver<()>,
        shown: Vec<f64>,
        asks_to_stop: bool,
    }

    impl Observer for Slow {
        fn progress(&mut self, progress: &Progress) {
            self.shown.push(progress.t_s);
            let _ = self.called.send(());
            let _ = self.may_return.recv();
        }

        fn stop(&mut self) -> bool {
            self.asks_to_stop
        }

        fn stop_flag(&self) -> Option<&'static AtomicBool> {
            Some(&FLAG)
        }
    }

    fn slow() -> (Slow, Receiver<()>, Sender<()>) {
        let ((called, was_called), (go, may_return)) = (channel(), channel());
        (Slow { called, may_return, shown: Vec::new(), asks_to_stop: false }, was_called, go)
    }

    #[test]
    fn a_run_goes_on_while_its_observer_is_held_up_and_shows_it_the_latest_alone() {
        let (mut observer, was_called, go) = slow();
        let done = with(&mut observer, move |word| {
            word.progress(&at(1.0));
            was_called.recv().unwrap();
            assert!(!word.stop());
            // The flag is seen though nobody can ask the observer.
            FLAG.store(true, Ordering::Relaxed);
            assert!(word.stop());
            (2..100).for_each(|t| word.progress(&at(f64::from(t))));
            drop(go);
            Ok(7)
        });
        assert_eq!((done.unwrap(), observer.shown), (7, vec![1.0, 99.0]));
    }

    #[test]
    fn an_observer_that_says_stop_is_heard() {
        let (mut observer, ..) = slow();
        observer.asks_to_stop = true;
        let heard = with(&mut observer, |word| {
            while !word.stop() {
                thread::yield_now();
            }
            Ok(())
        });
        assert!(heard.is_ok());
    }

    #[test]
    #[should_panic(expected = "the run's own")]
    fn a_panic_of_the_run_comes_through() {
        let (mut observer, ..) = slow();
        let _ = with(&mut observer, |_| -> Result<(), Error> { panic!("the run's own") });
    }
}
