//! The pure part of Forebay: the requested job, the record of a run, latency histograms, and models of drives. It
//! uses no clock, thread, file or socket: time and bytes are arguments, so that everything here can be tested by
//! arithmetic.

#![forbid(unsafe_code)]

pub mod cached;
pub mod checkpoint;
pub mod content;
pub mod cpu;
pub mod crc32c;
pub mod device;
mod error;
pub mod feed;
pub mod files;
pub mod fio_blocks;
pub mod first_bytes;
pub mod glob;
pub mod histogram;
pub mod iolog;
pub mod job;
pub mod kvcache;
pub mod merge;
pub mod pattern;
pub mod prometheus;
pub mod random;
pub mod reading;
pub mod record;
pub mod request;
pub mod safetensors;
pub mod schema;
pub mod series;
pub mod simulate;
mod soonest;
pub mod stats;
pub mod training;
pub mod units;
pub mod warnings;
pub mod wording;

pub use error::{Error, Kind};
pub use histogram::Latency;
pub use job::JobSpec;
pub use record::RunRecord;
