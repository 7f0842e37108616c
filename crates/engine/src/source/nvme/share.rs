//! I/O queues, divided among the workers; and who is woken when something changed.

use super::lock;
use crate::reactor::Waker;
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The I/O queues that no worker has.
#[derive(Debug)]
pub struct Shares {
    /// As it is named in errors.
    source: String,
    /// That are wanted, and the fewest that will do.
    pub queues: u16,
    pub least: u16,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    qids: VecDeque<u16>,
    /// What each of the workers gets, and how many of them one more.
    each: u16,
    more: u16,
}

impl Shares {
    /// For `workers` at least, up to `most`, each with one queue at least. `wanted`: as the URI says.
    ///
    /// # Errors
    /// Fewer are wanted than there are workers.
    pub fn divide(source: String, wanted: Option<u16>, workers: u32, most: u32) -> Result<Shares, Error> {
        let most = most.max(workers).clamp(1, u32::from(u16::MAX)) as u16;
        let workers = workers.clamp(1, u32::from(u16::MAX)) as u16;
        let queues = wanted.unwrap_or(most);
        let users = most.min(queues).max(workers);
        if queues < workers {
            return Err(Error::request(
                format!("queues={queues} of {source}"),
                format!("each of {workers} workers needs one at least"),
                format!("queues={workers}, or ‹workers› {queues}"),
            ));
        }
        let free = Free { qids: (1..=queues).collect(), each: queues / users, more: queues % users };
        let least = if most > workers { workers } else { queues };
        Ok(Shares { source, queues, least, free: Mutex::new(free) })
    }

    /// The controller grants so many and no more.
    pub fn keep(&self, granted: u16) {
        lock(&self.free).qids.retain(|qid| *qid <= granted);
    }

    /// A worker's share.
    pub fn take(&self) -> Result<Vec<u16>, Error> {
        let mut free = lock(&self.free);
        let more = usize::from(free.more > 0);
        let wanted = usize::from(free.each) + more;
        if free.qids.len() < wanted {
            return Err(Error::request(
                format!("another worker on {}", self.source),
                format!("all {} I/O queues are in use", self.queues),
                format!("queues={}", u32::from(self.queues) + 1),
            ));
        }
        free.more -= more as u16;
        Ok(free.qids.drain(..wanted).collect())
    }

    pub fn give_back(&self, share: &[u16]) {
        let mut free = lock(&self.free);
        free.more += u16::from(share.len() > usize::from(free.each));
        free.qids.extend(share);
    }
}

/// Workers that want to know of changes.
#[derive(Default)]
pub struct Wakers(Mutex<Watches>);

#[derive(Default)]
struct Watches {
    /// How many there were ever.
    count: u64,
    /// By number.
    on: Vec<(u64, Arc<Waker>)>,
}

impl Wakers {
    pub fn watch(&self, waker: Arc<Waker>) -> u64 {
        let mut watches = lock(&self.0);
        watches.count += 1;
        let id = watches.count;
        watches.on.push((id, waker));
        id
    }

    pub fn unwatch(&self, id: u64) {
        lock(&self.0).on.retain(|(other, _)| *other != id);
    }

    pub fn wake(&self) {
        lock(&self.0).on.iter().for_each(|(_, waker)| waker.wake());
    }
}
