//! Names by which threads speak of each other's connections.

/// A connection, as other threads name it. `serial` is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId {
    pub thread: usize,
    pub index: u32,
    pub serial: u64,
}
