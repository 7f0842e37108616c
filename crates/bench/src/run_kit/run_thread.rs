//! Runs on a thread of their own, so that observers can't delay them. The run only publishes its progress; the
//! observer is called from the thread that requested the run, with the latest state. A terminal that accepts no
//! output (Ctrl-S, a stuck ssh) delays neither the meters nor the next repeat.

use super::Observer;
use forebay_model::Error;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// Interval at which the observer is asked whether to continue while there is no news. Each time costs some 50 µs of
/// the CPU time that the record counts.
const POLL: Duration = Duration::from_millis(200);

/// Does `work` on a thread of its own, and shows its progress to `observer`. Returns when the work is over and the
/// observer's last call has returned.
pub fn with_run_thread<W: Clone + Send, T: Send>(
    observer: &mut dyn Observer<W>,
    work: impl FnOnce(&mut dyn Observer<W>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let (latest, stop) = (Mutex::new(None), AtomicBool::new(false));
    let (news, heard) = sync_channel(1);
    let mut run_observer = RunObserver { latest: &latest, news, stop: &stop, flag: observer.stop_flag() };
    thread::scope(|scope| {
        let body = move || work(&mut run_observer);
        let running = thread::Builder::new().name("run".into()).spawn_scoped(scope, body).map_err(|e| {
            Error::machine(
                "a thread for the run",
                format!("the system refuses it: {e}"),
                "ulimit -u; ulimit -v; a container's pids limit",
            )
        })?;
        show(observer, &latest, &heard, &stop);
        running.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// The run's side: an observer that never blocks. Its end, even by a panic, is the end of the news.
struct RunObserver<'a, W> {
    /// Not yet shown.
    latest: &'a Mutex<Option<W>>,
    news: SyncSender<()>,
    stop: &'a AtomicBool,
    flag: Option<&'static AtomicBool>,
}

impl<W: Clone> Observer<W> for RunObserver<'_, W> {
    fn progress(&mut self, progress: &W) {
        *self.latest.lock().expect("no thread panics while it has it") = Some(progress.clone());
        // Full: there is news already that wasn't heard.
        let _ = self.news.try_send(());
    }

    fn stop(&mut self) -> bool {
        let set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        set(self.stop) || self.flag.is_some_and(set)
    }
}

/// Shows the observer the latest progress until the run is over.
fn show<W>(
    observer: &mut dyn Observer<W>,
    latest: &Mutex<Option<W>>,
    heard: &Receiver<()>,
    stop: &AtomicBool,
) {
    // Whatever ends this, the run doesn't go on unwatched.
    let _stop = Stop(stop);
    loop {
        let over = heard.recv_timeout(POLL) == Err(RecvTimeoutError::Disconnected);
        let progress = latest.lock().expect("no thread panics while it has it").take();
        if let Some(progress) = progress {
            observer.progress(&progress);
        }
        if observer.stop() {
            stop.store(true, Ordering::Relaxed);
        }
        if over {
            return;
        }
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
    use std::sync::mpsc::{channel, Sender};

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

    // promise: REC-8
    #[test]
    fn a_run_goes_on_while_its_observer_is_held_up_and_shows_it_the_latest_alone() {
        let (mut observer, was_called, go) = slow();
        let done = with_run_thread(&mut observer, move |observer| {
            observer.progress(&at(1.0));
            was_called.recv().unwrap();
            assert!(!observer.stop());
            // The flag is seen though nobody can ask the observer.
            FLAG.store(true, Ordering::Relaxed);
            assert!(observer.stop());
            (2..100).for_each(|t| observer.progress(&at(f64::from(t))));
            drop(go);
            Ok(7)
        });
        assert_eq!((done.unwrap(), observer.shown), (7, vec![1.0, 99.0]));
    }

    #[test]
    fn an_observer_that_says_stop_is_heard() {
        let (mut observer, ..) = slow();
        observer.asks_to_stop = true;
        let heard = with_run_thread(&mut observer, |observer| {
            while !observer.stop() {
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
        let _ = with_run_thread(&mut observer, |_| -> Result<(), Error> { panic!("the run's own") });
    }
}
