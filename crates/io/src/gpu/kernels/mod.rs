//! Our kernels: checking and filling seeded content, and CRC32C, in device memory
//! and at its speed; and rows of a table in host memory, at the link's.
//!
//! They are plain C (`*.cu`), compiled for the device at hand by NVRTC when they
//! are first used. Work is queued on the caller's stream.

mod content;
mod crc32c;
mod rows;

pub use content::{Checker, Filler, Finding, Lists, Range};
pub use crc32c::{Crc32c, Sums};
pub(crate) use rows::Pull;
pub use rows::{Numbers, Ordered, Piece, Rows, Scatter, ROW_ELSEWHERE, ROW_PIECE_BYTES};

use super::cuda::{Device, Function};
use super::nvrtc;
use forebay_model::Error;
use std::sync::Arc;

/// Threads of a block: eight warps.
const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;

/// A source and its name.
struct Code {
    name: &'static str,
    source: &'static str,
}

const CONTENT: Code =
    Code { name: "content", source: concat!(include_str!("prelude.cu"), include_str!("content.cu")) };
const CRC32C: Code =
    Code { name: "crc32c", source: concat!(include_str!("prelude.cu"), include_str!("crc32c.cu")) };
const ROWS: Code =
    Code { name: "rows", source: concat!(include_str!("prelude.cu"), include_str!("rows.cu")) };

/// A kernel of a source, ready to be launched.
fn kernel(device: &Arc<Device>, code: &Code, name: &str) -> Result<Function, Error> {
    nvrtc::module(device, code.name, code.source)?.function(name).map_err(|why| {
        Error::machine(
            format!("kernel {name} on GPU {}", device.index()),
            why.to_string(),
            "report this: it is a bug in Forebay",
        )
    })
}

/// Blocks of threads that fill the device a few times over, so that it never waits for the last of a wave.
fn blocks_max(device: &Device) -> u32 {
    device.multiprocessors().map_or(128, |n| n.max(1) as u32).saturating_mul(16)
}
