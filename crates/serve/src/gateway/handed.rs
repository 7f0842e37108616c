//! What goes from one process to another: bytes, and descriptors beside a state that names them by number.

use forebay_model::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
        found.ok_or_else(|| broken(&format!("descriptor {} is missing or named twice", fd.0)))
    }
}

/// Bytes as text of base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        to.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        use base64::Engine as _;
        let text = String::deserialize(from)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        bytes.map(Bytes).map_err(serde::de::Error::custom)
    }
}

/// Nothing came of it, and why.
pub(crate) fn broken(found: &str) -> Error {
    Error::run("the hand-over of a gateway", found, "the log of the one that runs; it serves on")
}
