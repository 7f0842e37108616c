//! State that every host of a namespace keeps, whatever leads to its controllers.

use super::{Cause, Identity, Notes, Shares, Wakers};
use forebay_io::monotonic_now;
use forebay_model::record::{FabricPath, FabricRan};
use forebay_model::Error;
use forebay_nvme::host::{ControllerInfo, NamespaceInfo};
use std::fmt::Display;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which opening waits for the first controller.
const OPEN_WITHIN: Duration = Duration::from_secs(15);

/// The state of a path to a namespace's controller, while opening waits for the first.
pub enum Standing {
    /// It is up, with so many I/O queues.
    Up(u16),
    /// The last attempt failed, and why.
    Failed(String, Cause),
    /// The first attempt hasn't ended.
    Trying,
}

pub struct Host {
    /// Its URI.
    pub name: String,
    pub identity: Identity,
    pub wakers: Wakers,
    pub shares: Shares,
    pub notes: Notes,
}

impl Host {
    /// Returns a host of the namespace at this URI, for so many workers at least and at most, by as many I/O queues as
    /// the URI wants.
    ///
    /// # Errors
    /// Fewer are wanted than there are workers.
    pub fn new(uri: &dyn Display, wanted: Option<u16>, workers: u32, most: u32) -> Result<Host, Error> {
        let name = uri.to_string();
        Ok(Host {
            shares: Shares::divide(name.clone(), wanted, workers, most)?,
            identity: Identity::default(),
            wakers: Wakers::default(),
            notes: Notes::default(),
            name,
        })
    }

    /// Starts a thread that looks after a controller.
    ///
    /// # Errors
    /// The system refuses more threads.
    pub fn spawn(&self, name: &str, care: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(care)
            .map_err(|e| Error::machine(format!("a thread for {}", self.name), e.to_string(), "ulimit -u"))
    }

    /// Waits for the first of the `paths` that is up, and says how many I/O queues it grants. `wait` returns when one
    /// has changed, at that time at the latest. Each path has a prefix for what is said of it. `next`: what to type.
    ///
    /// # Errors
    /// Each was tried and none is up, or none came up in time. `Request`: another request would do.
    pub fn first(
        &self,
        paths: impl Fn() -> Vec<(String, Standing)>,
        mut wait: impl FnMut(Instant),
        next: impl Fn(Cause) -> String,
    ) -> Result<u16, Error> {
        let until = monotonic_now() + OPEN_WITHIN;
        loop {
            let paths = paths();
            for (_, path) in &paths {
                if let Standing::Up(queues) = path {
                    return Ok(*queues);
                }
            }
            if monotonic_now() >= until || paths.iter().all(|(_, path)| matches!(path, Standing::Failed(..)))
            {
                let cause = |(_, path): &(String, Standing)| match path {
                    Standing::Failed(_, cause) => *cause,
                    Standing::Up(_) | Standing::Trying => Cause::Other,
                };
                let first = paths.first().map_or(Cause::Other, cause);
                let by_request = paths.iter().map(cause).all(Cause::is_request);
                let said = |(prefix, path): (String, Standing)| match path {
                    Standing::Failed(why, _) => prefix + &why,
                    Standing::Up(_) | Standing::Trying => prefix + "no answer yet",
                };
                let found: Vec<String> = paths.into_iter().map(said).collect();
                let error = if by_request { Error::request } else { Error::machine };
                return Err(error(self.name.clone(), found.join("; "), next(first)));
            }
            wait(until);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.identity.bytes()
    }

    pub fn block_bytes(&self) -> u32 {
        self.identity.block_bytes()
    }

    /// As the first controller described it.
    pub fn namespace(&self) -> &NamespaceInfo {
        self.identity.namespace()
    }

    pub fn controller(&self) -> &ControllerInfo {
        self.identity.controller()
    }

    /// Longest transfer of one command, bytes, a multiple of the block.
    pub fn transfer_bytes(&self) -> u32 {
        self.identity.transfer_bytes()
    }

    /// I/O queues of each path.
    pub fn queues(&self) -> u16 {
        self.shares.queues
    }

    /// Returns the changes with their times since it was opened, and the number of those that weren't kept.
    pub fn notes(&self) -> (Vec<(Duration, String)>, u64) {
        self.notes.kept()
    }

    /// Returns the traffic of each I/O queue so far.
    pub fn traffic(&self) -> Vec<Arc<super::Traffic>> {
        self.notes.all_traffic()
    }

    /// All of it, for a record, without digests.
    pub(crate) fn report_on(&self, paths: Vec<FabricPath>) -> FabricRan {
        let (events, events_dropped) = self.notes.events();
        FabricRan {
            uri: self.name.clone(),
            model: self.controller().model.clone(),
            firmware: self.controller().firmware.clone(),
            block_bytes: self.block_bytes(),
            transfer_bytes: self.transfer_bytes(),
            header_digest: false,
            data_digest: false,
            queues: self.notes.queues(|path| paths[path].address.clone()),
            paths,
            events,
            events_dropped,
        }
    }
}
