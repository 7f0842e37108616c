//! What bytes come from and how they travel: sources, the paths that read them, and what it takes to open both.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod inspect;
pub mod opening;
pub mod outputs;
pub mod path;
pub mod source;

pub use forebay_model::{Error, Kind};
