//! The threads of what serves hosts, a target's or a gateway's: begun together, asked together, waited for.

use super::inbox::Inbox;
use forebay_io::{monotonic_now, ring_refused, Reactor};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::sync::mpsc::{channel, sync_channel, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default limit on threads, of which there is one per processor: more don't pay before the network is faster than
/// they are.
const THREADS: usize = 8;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Worker of one thread; it is made by its thread, and stays there.
pub(crate) trait PoolWorker {
    type Message: Send + 'static;

    fn inbox(&self) -> Arc<Inbox<Self::Message>>;
    /// Works until it is told to stop.
    fn run(self);
}

/// Threads that work, and the inbox of each.
pub(crate) struct ThreadPool<L> {
    pub inboxes: Vec<Arc<Inbox<L>>>,
    pub threads: Vec<JoinHandle<()>>,
}

/// Why a thread can't go on, that which was first: the service ends with it.
#[derive(Debug, Default)]
pub(crate) struct Failure(OnceLock<Error>);

impl Failure {
    /// Returns whether the thread's ring is refused (`Reactor::refused`): nothing that it waits for comes any more.
    pub(crate) fn heed(&self, reactor: &Reactor) -> bool {
        let Some(why) = reactor.refused() else { return false };
        let _ = self.0.set(ring_refused(&why));
        true
    }

    pub(crate) fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }
}

/// Returns the number of threads to have. `asked`: 0 for one per processor, of those in `cpus` where it names any.
pub(crate) fn threads(asked: u32, cpus: &[u32]) -> usize {
    match asked {
        0 if !cpus.is_empty() => cpus.len().min(crate::namespace::volume::THREADS_MAX),
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(1, THREADS),
        n => n as usize,
    }
}

/// Returns the CPU of one thread.
pub(crate) fn cpu_of(cpus: &[u32], number: usize) -> Option<u32> {
    cpus.get(number % cpus.len().max(1)).copied()
}

/// Connections that a thread may have more than another because their packets come where it runs.
const LEAN: u32 = 2;

/// Chooses the thread of a connection: the one that has the fewest. `near`: the processor that takes its packets. A
/// thread that stays there is preferred, since what it sends and receives is in that processor's cache and no other
/// has to be woken; up to `LEAN` connections, for a card may have all its packets taken by one.
pub(crate) fn choose(loads: &[u32], cpus: &[u32], near: Option<u32>) -> Option<usize> {
    let fewest = (0..loads.len()).min_by_key(|n| loads[*n])?;
    let there = |n: &usize| near.is_some() && cpu_of(cpus, *n) == near;
    let local = (0..loads.len()).filter(there).min_by_key(|n| loads[*n]);
    Some(local.filter(|n| loads[*n] <= loads[fewest] + LEAN).unwrap_or(fewest))
}

/// Begins `threads` threads, called `NAME-0` and so on; returns when all of them work.
///
/// # Errors
/// What `make` says of the first that couldn't be made; `Machine`: the system has no more threads.
pub(crate) fn begin<H: PoolWorker>(
    name: &str,
    threads: usize,
    make: impl Fn(usize) -> Result<H, Error> + Clone + Send + 'static,
) -> Result<ThreadPool<H::Message>, Error> {
    let (tell, reported) = channel();
    let mut begun = Vec::new();
    for number in 0..threads {
        let (make, tell) = (make.clone(), tell.clone());
        let work = move || match make(number) {
            Ok(worker) => {
                let _ = tell.send(Ok((number, worker.inbox())));
                drop(tell);
                worker.run();
            }
            Err(e) => {
                let _ = tell.send(Err(e));
            }
        };
        begun.push(spawn(&format!("{name}-{number}"), work)?);
    }
    drop(tell);
    let inboxes = reported.iter().collect::<Result<BTreeMap<usize, _>, Error>>()?;
    if inboxes.len() < threads {
        return Err(Error::machine("the threads", "one of them has ended", "threads = 1"));
    }
    Ok(ThreadPool { inboxes: inboxes.into_values().collect(), threads: begun })
}

/// Asks all threads for something, and has what came in time.
pub(crate) fn ask<L, A>(
    inboxes: &[Arc<Inbox<L>>],
    message: impl Fn(SyncSender<A>) -> L,
    within: Duration,
) -> Vec<A> {
    let (to, from) = sync_channel(inboxes.len().max(1));
    inboxes.iter().for_each(|inbox| inbox.post(message(to.clone())));
    drop(to);
    let until = monotonic_now() + within;
    let next = || from.recv_timeout(until.saturating_duration_since(monotonic_now())).ok();
    std::iter::from_fn(next).collect()
}

/// Waits until nobody else has it, or until then.
pub(crate) fn await_release<T>(held: &Arc<T>, until: Instant) {
    while Arc::strong_count(held) > 1 && monotonic_now() < until {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits for a thread that was told to end; one that is stuck in the kernel is left behind.
pub(crate) fn join_by(thread: JoinHandle<()>, until: Instant) {
    while !thread.is_finished() && monotonic_now() < until {
        std::thread::sleep(POLL_INTERVAL);
    }
    if thread.is_finished() {
        let _ = thread.join();
    }
}

/// A thread of that name; Linux cuts names off after 15 bytes.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| {
        Error::machine(format!("the thread {name}"), e.to_string(), "ulimit -u, or fewer threads")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::config::cpus;

    // promise: TGT-15
    #[test]
    fn a_connection_goes_where_its_packets_come_unless_that_thread_has_too_many() {
        // Four threads on two processors.
        let cpus = [4, 6];
        assert_eq!(choose(&[0, 0, 0, 0], &cpus, Some(6)), Some(1));
        assert_eq!(choose(&[0, 1, 0, 0], &cpus, Some(6)), Some(3), "of those there, the one that has fewer");
        assert_eq!(choose(&[0, 2, 0, 2], &cpus, Some(6)), Some(1));
        assert_eq!(choose(&[0, 3, 0, 3], &cpus, Some(6)), Some(0), "all packets come to one processor");
        assert_eq!(choose(&[2, 1, 2, 2], &cpus, Some(5)), Some(1), "nobody stays there");
        assert_eq!(choose(&[2, 1], &cpus, None), Some(1));
        assert_eq!(choose(&[1, 0], &[], Some(0)), Some(1), "threads run anywhere");
        assert_eq!(choose(&[], &cpus, Some(4)), None);
    }

    // promise: TGT-15
    #[test]
    fn there_is_a_thread_for_each_processor_that_is_named() {
        assert_eq!((threads(0, &[3, 5, 9]), threads(2, &[3, 5, 9])), (3, 2));
        assert!(threads(0, &[]) >= 1);
        assert_eq!([0, 1, 2, 3].map(|n| cpu_of(&[3, 5, 9], n)), [Some(3), Some(5), Some(9), Some(3)]);
        assert_eq!(cpu_of(&[], 1), None);
        let refused = cpus("7-3").unwrap_err().to_string();
        assert!(refused.contains("cpus 7-3") && refused.contains("backwards"), "{refused}");
    }
}
