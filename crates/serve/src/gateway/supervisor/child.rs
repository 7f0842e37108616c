//! A gateway's side: how it finds its supervisor, and what it tells it.

use super::link::Link;
use super::process::adopted;
use super::shm::Paper;
use super::{Past, SupervisorNotice, VARIABLE};
use crate::gateway::handed::broken;
use crate::gateway::handover::wire::Line;
use forebay_model::Error;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A supervisor is at work on little else.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process that started this one, and outlives it.
pub struct Supervisor {
    line: Mutex<Line>,
    life: Arc<File>,
    again: bool,
}

impl Supervisor {
    /// None: nobody keeps this process. To be asked once, by a process that is to be a gateway: where a thread panics from
    /// here on, all of it ends, for then another takes its place.
    ///
    /// # Errors
    /// `Request`: what the environment says can't be.
    pub fn here() -> Result<Option<Supervisor>, Error> {
        let Ok(reported) = std::env::var(VARIABLE) else { return Ok(None) };
        let wrong = || {
            Error::request(
                format!("{VARIABLE}={reported}"),
                "only a supervisor sets it",
                format!("unset {VARIABLE}"),
            )
        };
        let mut parts = reported.split(':');
        let mut descriptor = || parts.next()?.parse::<RawFd>().ok().and_then(adopted);
        let (Some(line), Some(life)) = (descriptor(), descriptor()) else { return Err(wrong()) };
        let again = match parts.next() {
            Some("first") => false,
            Some("again") => true,
            _ => return Err(wrong()),
        };
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            // The next gateway goes on with all that there is: half of this one would serve half of its hosts.
            #[allow(clippy::disallowed_methods)]
            std::process::abort();
        }));
        let line = Mutex::new(Line::new(UnixStream::from(line), PATIENCE)?);
        Ok(Some(Supervisor { line, life: Arc::new(life.into()), again }))
    }

    /// It takes the place of a gateway that was killed.
    pub(crate) fn is_again(&self) -> bool {
        self.again
    }

    /// Returns a file that rings hold until nothing of them is under way: the supervisor sees when nobody holds it any
    /// more.
    pub fn life(&self) -> Arc<File> {
        self.life.clone()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(in crate::gateway) fn tell(&self, reported: &SupervisorNotice, fds: &[OwnedFd]) -> Result<(), Error> {
        let text = serde_json::to_vec(reported).map_err(|e| broken(&e.to_string()))?;
        self.line().send_text(&text, fds)
    }

    /// Returns the state of the last gateway.
    pub(in crate::gateway) fn past(&self) -> Result<(Past, Vec<OwnedFd>), Error> {
        let (text, fds) = self.line().receive_text()?;
        Ok((serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()))?, fds))
    }

    /// The next drive of it.
    pub(in crate::gateway) fn drive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
        self.line().receive_text()
    }

    /// A new drive's line, once the supervisor has its socket.
    ///
    /// # Errors
    /// `Machine`: no descriptor, no memory.
    pub(in crate::gateway) fn adopt(
        &self,
        name: &str,
        nqn: &str,
        listener: &impl AsFd,
        (queues, entries): (u16, u16),
    ) -> Result<Link, Error> {
        let scarce = |e: std::io::Error| Error::machine(name, e.to_string(), "ulimit -n 65536");
        let paper = Arc::new(Paper::new(queues, entries)?);
        let (ours, theirs) = UnixStream::pair().map_err(scarce)?;
        let listener = listener.as_fd().try_clone_to_owned().map_err(scarce)?;
        self.tell(&SupervisorNotice::Drive { name: name.into() }, &[listener, theirs.into()])?;
        Link::new(ours, nqn, paper)
    }
}
