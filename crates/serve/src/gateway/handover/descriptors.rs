//! Descriptors beside a state that names them by number.

use forebay_model::Error;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

/// A descriptor, by its place among those that are sent along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fd(pub u32);

/// Descriptors to be sent: copies, so that nothing is lost where sending fails.
#[derive(Debug, Default)]
pub struct Given(pub Vec<OwnedFd>);

impl Given {
    /// # Errors
    /// `Machine`: no descriptor is left.
    pub fn add(&mut self, fd: &impl AsFd) -> Result<Fd, Error> {
        let copy = fd.as_fd().try_clone_to_owned().map_err(|e| {
            Error::machine("a copy of each descriptor, to hand it over", e.to_string(), "ulimit -n 65536")
        })?;
        self.0.push(copy);
        Ok(Fd(self.0.len() as u32 - 1))
    }
}

/// Descriptors that came.
#[derive(Debug, Default)]
pub struct Received(Vec<Option<OwnedFd>>);

impl Received {
    pub fn new(fds: Vec<OwnedFd>) -> Received {
        Received(fds.into_iter().map(Some).collect())
    }

    /// # Errors
    /// `Run`: there is not one of that number, or it was taken before.
    pub fn take(&mut self, fd: Fd) -> Result<OwnedFd, Error> {
        let found = self.0.get_mut(fd.0 as usize).and_then(Option::take);
        found.ok_or_else(|| super::wire::broken(&format!("descriptor {} is missing or named twice", fd.0)))
    }
}
