//! Questions to remote drives that need no job: which discovery services announce themselves, what one offers, and what a controller and its
//! namespaces say of themselves.

mod browse;
mod discover;
mod identify;

pub use browse::browse;
pub use discover::discover;
pub use identify::identify;
