//! Files that are opened, moved whole and closed again while a run goes on: those of checkpoints, and the entries of a
//! key-value cache. `resources`: what one thread works with; `file`: one of them.

pub(crate) mod file;
pub(crate) mod resources;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}
