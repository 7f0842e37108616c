//! Emulated training: data sets and their formats, runs that read them as accelerators would, checkpoints, and key-value caches.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod checkpoint;
mod emulate;
mod format;
mod generate;
mod kvcache;
mod opened;

pub use forebay_model::{Error, Kind};

// Formats of data sets: what parses them, finds the samples that a batch wants, and lists them.
pub use format::decode::Decoder;
pub use format::index::{
    index_archive, index_data_sets, index_plain_columns, index_records, index_shard, ArchiveArray, ReadAt,
};
pub use format::pick::{pick_from_memory, PickSpec, Picker, RecordIndex, Wanted};
pub use format::sums::masked_crc32c;
pub use format::{Damage, FormatRow, ParseSpec, Parser, FORMATS};

// Data sets to train on.
pub use generate::{generate_data, DatagenProgress, DatagenSpec};

// Runs: emulated training, checkpoints, and a serving engine's cache.
pub use checkpoint::{plan_checkpoint, run_checkpoint};
pub use emulate::{check_emulation, run_emulation, EmulateOutcome, EmulateProgress, StepBarrier};
pub use kvcache::{plan_kvcache, run_kvcache};

/// Barrier for the hosts of a run: of a cache before its first request, of ranks before each checkpoint.
pub trait Barrier: Send {
    /// Returns once all are there: false where one has ended the run instead.
    fn pass(&mut self) -> Result<bool, Error>;
}
