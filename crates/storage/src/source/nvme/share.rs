//! I/O queues, divided among the workers; and who is woken when something changed.

use super::lock;
use forebay_io::Waker;
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The I/O queues that no worker has.
#[derive(Debug)]
pub struct Shares {
    /// As it is named in errors.
    source: String,
    /// As the URI says.
    wanted: Option<u16>,
    /// To ask for, and the fewest that will do.
    pub queues: u16,
    pub least: u16,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    qids: VecDeque<u16>,
    /// Number of queues, with those that workers have.
    all: u16,
    /// Number that the workers take together.
    taken: u16,
    /// Queues of each worker, and the number of workers with one more.
    each: u16,
    more: u16,
}

impl Shares {
    /// For `workers` at least, up to `most`, each with one queue at least. `wanted`: as the URI says, all of which are
    /// then needed, and divided among those workers that there are.
    ///
    /// # Errors
    /// Fewer are wanted than there are workers.
    pub fn divide(source: String, wanted: Option<u16>, workers: u32, most: u32) -> Result<Shares, Error> {
        let most = most.max(workers).clamp(1, u32::from(u16::MAX)) as u16;
        let workers = workers.clamp(1, u32::from(u16::MAX)) as u16;
        let queues = wanted.unwrap_or(most);
        if queues < workers {
            return Err(Error::request(
                format!("queues={queues} of {source}"),
                format!("each of {workers} workers needs one at least"),
                format!("queues={workers}, or ‹workers› {queues}"),
            ));
        }
        let free = Free { qids: (1..=queues).collect(), all: queues, taken: 0, each: 1, more: 0 };
        let shares =
            Shares { source, wanted, queues, least: wanted.unwrap_or(workers), free: Mutex::new(free) };
        shares.among(u32::from(workers));
        Ok(shares)
    }

    /// From the next one on, so many workers take shares at once; none has one now. Queues that nobody asked for by
    /// their number are one for each.
    pub fn among(&self, workers: u32) {
        let workers = workers.clamp(1, u32::from(u16::MAX)) as u16;
        let mut free = lock(&self.free);
        (free.taken, free.each, free.more) = match self.wanted {
            Some(_) if free.all >= workers => (free.all, free.all / workers, free.all % workers),
            _ => (workers, 1, 0),
        };
    }

    /// The most workers that can each have a queue.
    pub fn workers_most(&self) -> u32 {
        u32::from(lock(&self.free).all)
    }

    /// Returns the number that the workers take together.
    pub fn taken(&self) -> u16 {
        lock(&self.free).taken
    }

    /// The controller grants so many and no more.
    pub fn keep(&self, granted: u16) {
        let mut free = lock(&self.free);
        free.all = free.all.min(granted);
        free.qids.retain(|qid| *qid <= granted);
    }

    /// A worker's share: its own by its number (`worker`) where all get as many and it is free, so that who pins threads
    /// at both ends has the same ones meet in each run.
    pub fn take(&self, worker: u32) -> Result<Vec<u16>, Error> {
        let mut free = lock(&self.free);
        let more = usize::from(free.more > 0);
        let wanted = usize::from(free.each) + more;
        if free.qids.len() < wanted {
            return Err(Error::request(
                format!("another worker on {}", self.source),
                format!("all {} I/O queues are in use", free.all),
                format!("fewer ‹workers›, or queues={}", u32::from(free.all) + 1),
            ));
        }
        free.more -= more as u16;
        let own = |qid: &u16| u32::from(qid - 1) / wanted as u32 == worker;
        if more == 0 && free.qids.iter().filter(|qid| own(qid)).count() == wanted {
            let (mine, rest) = free.qids.drain(..).partition(own);
            free.qids = rest;
            return Ok(Vec::from(mine));
        }
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
    /// Number of workers ever.
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

    pub(crate) fn unwatch(&self, id: u64) {
        lock(&self.0).on.retain(|(other, _)| *other != id);
    }

    pub fn wake(&self) {
        lock(&self.0).on.iter().for_each(|(_, waker)| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(wanted: Option<u16>, workers: u32, most: u32) -> Shares {
        Shares::divide("here".into(), wanted, workers, most).unwrap()
    }

    fn taken(shares: &Shares, workers: u32) -> Vec<usize> {
        shares.among(workers);
        let all: Vec<Vec<u16>> = (0..workers).map(|worker| shares.take(worker).unwrap()).collect();
        all.iter().for_each(|share| shares.give_back(share));
        all.iter().map(Vec::len).collect()
    }

    // promise: RHO-18
    #[test]
    fn queues_that_were_asked_for_are_all_the_workers_however_many_there_are() {
        let asked = shares(Some(8), 1, 8);
        assert_eq!((asked.queues, asked.least), (8, 8), "fewer won't do");
        assert_eq!(asked.take(0).unwrap().len(), 8, "where nobody says more of them than the job");
        asked.give_back(&[1, 2, 3, 4, 5, 6, 7, 8]);
        for (workers, each) in [(1, vec![8]), (3, vec![3, 3, 2]), (8, vec![1; 8]), (2, vec![4, 4])] {
            assert_eq!(taken(&asked, workers), each);
        }
    }

    // promise: RHO-18
    #[test]
    fn workers_have_one_each_where_nobody_asked() {
        let own = shares(None, 2, 8);
        assert_eq!((own.queues, own.least), (8, 2));
        for workers in [1, 2, 8] {
            assert_eq!(taken(&own, workers), vec![1; workers as usize]);
        }
        own.keep(4);
        assert_eq!((own.workers_most(), taken(&own, 4)), (4, vec![1; 4]));
        let all: Vec<_> = (0..4).map(|worker| own.take(worker).unwrap()).collect();
        let error = own.take(4).unwrap_err().to_string();
        assert!(all.len() == 4 && error.contains("all 4 I/O queues"), "{error}");
    }
    // promise: RHO-18
    #[test]
    fn each_worker_has_its_own_queues_whichever_comes_first() {
        let asked = shares(Some(6), 3, 8);
        asked.among(3);
        let later: Vec<_> = [2, 0, 1].map(|worker| asked.take(worker).unwrap()).into();
        assert_eq!(later, [vec![5, 6], vec![1, 2], vec![3, 4]]);
        later.iter().for_each(|share| asked.give_back(share));
        assert_eq!(asked.take(1).unwrap(), [3, 4], "also of those that were given back");
        // Another run's first worker.
        assert_eq!(asked.take(1).unwrap().len(), 2, "what is free, where its own are taken");
        let uneven = shares(Some(5), 2, 8);
        uneven.among(2);
        let mut all = [1, 0].map(|worker| uneven.take(worker).unwrap()).concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
    }
}
