//! Feeding memory that somebody else owns (an array, a tensor) from files: what
//! Python's `forebay.open` stands on.
//!
//! One pool of threads serves the whole process, so that its pinned slots and
//! streams are paid for once. A `Request` is a list of ranges with their places;
//! it is cut into parts, and whichever worker is free takes the next part (a
//! source that is no file has a worker of its own: `source`). The
//! caller sleeps, or goes on and asks later.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod by_cufile;
mod choice;
mod devices;
mod few_rows;
mod file;
mod gpu_numbers;
mod host_memory;
mod kept;
mod layout;
mod leaving;
mod load;
mod loader;
mod many;
mod map;
mod numbers;
mod opened;
mod order_hash;
mod pages;
mod place;
mod processors;
mod relays;
mod repeats;
mod request;
mod room;
mod rows;
mod source;
mod staged;
mod thread_pool;
mod windows;
mod worker;

pub use choice::preference;
pub use devices::{device, device_of};
pub use file::{Opening, ReadPath, Reader};
pub use gpu_numbers::{Given, GpuNumbers};
pub use host_memory::HostMemory;
pub use kept::KeptMemory;
pub use loader::{Batch, CacheUse, Column, Elsewhere, Lease, Loader, Memory, Next, Part, RecordFacts, Spec};
pub use many::{read_files, sizes_of};
pub use numbers::Copied;
pub use pages::Blocks;
pub use place::{Address, Range};
pub use processors::threads;
pub use request::{Report, Request};
pub use rows::Layout;
pub use source::SourceReader;
pub use thread_pool::{begin, release, submit};

/// Size of slots that the thread pool reads into and copies from: large enough for the link, small enough that all of
/// them stay in the last-level cache.
const SLOT_BYTES: usize = 4 << 20;
/// One is filled while another is copied and a third waits its turn.
const SLOTS: usize = 3;
/// Bytes of long reads past the page cache that are under way together on their way to GPUs, of which the memory that is free may
/// allow less; and of the ranges of a request that is read so. As many as Run:ai's streamer has (`bench/infer.py --gpu --only llama
/// --parts beside --caches cold`). Some hosts' drives bring no more of them than of 32 MiB, others 1.6 times as much; no command
/// compares these.
const QUEUED_BYTES_MAX: usize = 512 << 20;
const OF_FREE_MEMORY: usize = 16;
const QUEUED_FROM_BYTES: usize = 64 << 20;
/// A third relay brings little, and all of it would take half of the processor time that the safetensors library does.
const RELAYS_MAX: usize = 2;
/// With one worker nothing is copied while windows are registered.
const MIXED_WORKERS_MIN: usize = 2;
/// Windows that are registered while CPUs copy: a call to the driver waits for one at most. Of a file that is read one time,
/// both sides end at about the same time.
const BESIDE_COPIES_WINDOW_BYTES: u64 = 64 << 20;
/// Windows that are registered while a model computes: its launches wait for several of them, and a step is a few milliseconds.
const BESIDE_A_MODEL_WINDOW_BYTES: u64 = 16 << 20;
/// Share of the time that registering takes, after which it begins where a loader reads.
const AHEAD_SOONER: u64 = 4;
/// Sub-ranges that one part gathers at most.
const PIECES_PER_PART: usize = 256;
/// Ranges longer than this may be read by the GPU itself, out of windows that are registered; shorter ones cost as much to hand
/// out one by one as a slot of them.
const WINDOWED_BYTES_MIN: usize = SLOT_BYTES + 1;
/// Ranges at least this long have windows registered for them.
const REGISTERED_FOR_BYTES_MIN: usize = 64 << 20;
/// And from the first reading on where there are this many: a thread that registers is worth starting then.
const WINDOWED_AT_ONCE_BYTES_MIN: usize = 256 << 20;
/// O_DIRECT's usual unit, and the page: where slots and direct reads begin.
const PAGE: usize = 4096;

/// As `QUEUED_BYTES_MAX`, here and now.
fn queued_bytes_max() -> usize {
    let free = forebay_io::memory_free_bytes().map_or(usize::MAX, |bytes| bytes as usize / OF_FREE_MEMORY);
    QUEUED_BYTES_MAX.min(free)
}

#[cfg(test)]
mod tests;
