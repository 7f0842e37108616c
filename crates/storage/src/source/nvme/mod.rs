//! Common parts of the hosts of an NVMe namespace, whatever carries their commands: I/Os cut into commands and put
//! together again, the meaning of a status, I/O queues divided among workers, notes for the record, and the check that
//! what is there again is what was there before.

mod attempts;
mod cause;
mod host;
mod identity;
mod namespace;
mod notes;
pub(crate) mod query;
mod report;
mod share;
pub(crate) mod status;
mod work;

pub(crate) use attempts::{Attempts, Episode};
pub(crate) use cause::Cause;
pub(crate) use host::{Host, Standing};
pub(crate) use identity::{Identity, Stranger};
pub(crate) use namespace::Namespace;
pub(crate) use namespace::{examine, open};
pub use namespace::{Connection, OpenNamespace};
pub(crate) use notes::{Connected, Notes, Traffic};
pub use report::{PathReport, SourceReport};
pub(crate) use share::{Shares, Wakers};
pub(crate) use work::{Command, Outcome, Work, REST};

use forebay_io::monotonic_now;
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time for threads to take leave of their controllers.
const END_WITHIN: Duration = Duration::from_secs(3);
const END_POLL: Duration = Duration::from_millis(1);

/// Waits for threads that were told to end. One that hangs, on a name server or on a device that doesn't answer, ends
/// by itself when it has its answer or its time is up.
pub(crate) fn await_end(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let until = monotonic_now() + END_WITHIN;
    for thread in threads {
        while !thread.is_finished() && monotonic_now() < until {
            std::thread::sleep(END_POLL);
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
