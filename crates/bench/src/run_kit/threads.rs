//! Threads that own what they work on: started one by one, held back by a gate, joined at the end.

use super::Gate;
use forebay_model::Error;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Stack of a worker's thread, in bytes: less than the system's default, since there may be thousands of them.
pub(super) const STACK_BYTES: usize = 1 << 20;

/// Threads of one run. If they are dropped instead of joined, those behind the gate end, and none is waited for.
pub struct Threads {
    name: &'static str,
    /// Number of threads that the run asks for.
    asked: u32,
    threads: Vec<(u32, JoinHandle<()>)>,
    gate: Arc<Gate>,
    stack_bytes: usize,
}

impl Threads {
    /// Returns a set of `asked` threads, none of them started. Each is named `name`, a hyphen and its number.
    pub fn new(name: &'static str, asked: u32) -> Threads {
        Threads { name, asked, threads: Vec::new(), gate: Arc::default(), stack_bytes: STACK_BYTES }
    }

    /// Starts thread `number`.
    ///
    /// # Errors
    /// `Machine`: the system refuses it. The threads that were started before go on.
    pub fn start(&mut self, number: u32, body: impl FnOnce(&Gate) + Send + 'static) -> Result<(), Error> {
        let gate = self.gate.clone();
        let builder = Builder::new().name(format!("{}-{number}", self.name)).stack_size(self.stack_bytes);
        let thread =
            builder.spawn(move || body(&gate)).map_err(|e| refused(self.asked, self.threads.len(), &e))?;
        self.threads.push((number, thread));
        Ok(())
    }

    /// Number of started threads that haven't been joined.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Whether no thread has been started, or all have been joined.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// The gate that each thread was given.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Ends the threads that wait at the gate, and joins all.
    pub(crate) fn call_off(&mut self) {
        self.gate.call_off();
        self.join();
    }

    /// Waits for all threads to end.
    pub fn join(&mut self) {
        self.join_all_but(|_| false);
    }

    /// Waits for all threads to end except those that are lost, which are left behind: a thread with an I/O that the
    /// kernel won't give back can't end.
    pub(crate) fn join_all_but(&mut self, is_lost: impl Fn(u32) -> bool) {
        for (number, thread) in self.threads.drain(..) {
            if !is_lost(number) {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.gate.call_off();
    }
}

/// Error for a thread that the system refuses, where `asked` are needed and `started` are there.
pub(super) fn refused(asked: u32, started: usize, why: &io::Error) -> Error {
    let found = format!("the system refuses more than {started} threads: {why}");
    let next = "fewer ‹workers›; ulimit -u; a container's pids limit";
    Error::machine(format!("‹workers› {asked}"), found, next)
}

/// Calls `work`. A panic in it becomes an error of `who`: the run ends with that, and what was measured is kept.
pub fn guarded<T>(who: impl Into<String>, work: impl FnOnce() -> T) -> Result<T, Error> {
    // What a panic leaves half done is used by nobody: the run ends.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let found = format!("a bug in Forebay ended it: {text}");
        Error::run(who, found, "report it, with the command that was typed")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Kind;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn threads_start_with_the_gate_and_are_joined_but_for_lost_ones() {
        let mut threads = Threads::new("worker", 3);
        let (sender, begun) = channel();
        let (release, held) = channel::<()>();
        for number in 0..2 {
            let sender = sender.clone();
            threads.start(number, move |gate| sender.send(gate.pass()).expect("it is heard")).unwrap();
        }
        threads.start(2, move |_| assert!(held.recv().is_err())).unwrap();
        let begin = Instant::now();
        assert!(begun.try_recv().is_err());
        threads.gate().open(begin);
        threads.join_all_but(|number| number == 2);
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [Some(begin); 2]);
        assert!(threads.is_empty());
        drop(release);
    }

    #[test]
    fn threads_that_are_called_off_or_dropped_have_no_start() {
        let (sender, begun) = channel();
        for is_dropped in [true, false] {
            let (mut threads, sender) = (Threads::new("worker", 1), sender.clone());
            threads.start(0, move |gate| sender.send(gate.pass()).expect("it is heard")).unwrap();
            if !is_dropped {
                threads.call_off();
            }
        }
        drop(sender);
        assert_eq!(begun.iter().collect::<Vec<_>>(), [None; 2]);
    }

    #[test]
    fn a_refused_thread_is_an_error_that_says_what_to_type() {
        // No address space has room for such a stack.
        let mut threads = Threads::new("worker", 7);
        threads.stack_bytes = 1 << 60;
        let error = threads.start(0, |_| unreachable!("it isn't started")).unwrap_err();
        assert_eq!((error.kind, error.asked.as_str()), (Kind::Machine, "‹workers› 7"));
        assert!(
            error.found.contains("refuses more than 0 threads") && error.next.contains("ulimit -u"),
            "{error:?}"
        );
        threads.call_off();
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_text() {
        let error = guarded("worker 3", || -> u32 { panic!("on purpose, {}", 3) }).unwrap_err();
        assert_eq!((error.kind, error.asked.as_str()), (Kind::Run, "worker 3"));
        assert!(error.found.contains("on purpose, 3"), "{error:?}");
        assert_eq!(guarded("worker 3", || 7).unwrap(), 7);
    }
}
