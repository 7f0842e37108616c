//! Requests to storage, and their ends: what players and the service tell those who move bytes, and are told by them.

use super::cache::Key;

/// What is to be done on storage. Each read and write is answered by `Service::ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read all of an entry.
    Read { slot: u32, key: Key, bytes: u64 },
    /// Write all of it, so that it has reached storage.
    Write { slot: u32, key: Key, bytes: u64 },
    /// Remove it. It comes before the write that needs the room.
    Remove { key: Key },
}

/// What came of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Whole,
    /// The entry isn't there any more, or isn't whole.
    Lost,
    /// Storage has no room for it.
    Full,
}
