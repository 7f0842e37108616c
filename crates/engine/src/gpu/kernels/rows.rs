//! Rows of a table that lies in host memory, fetched by the device itself.

use super::{kernel, ROWS, THREADS, WARPS};
use crate::gpu::cuda::{Cuda, Device, Function, Stream};
use forebay_model::Error;
use std::sync::Arc;

/// In place of a number: this row comes another way.
pub const ELSEWHERE: u64 = u64::MAX;
/// What a lane reads at once, bytes.
const WORD_BYTES: u64 = 16;
const LANES: u64 = 32;
/// Blocks of threads for each multiprocessor. The link is full with an eighth of them where rows are long; short rows
/// need more of them on their way.
const BLOCKS_EACH: u32 = 2;

/// The kernel, for one device.
#[derive(Clone)]
pub struct Rows {
    kernel: Function,
    blocks_max: u64,
}

impl Rows {
    /// Compiles the kernel where this is its first use on the device.
    ///
    /// # Errors
    /// `Machine`: no compiler for it (NVRTC), or a driver that refuses it.
    pub fn open(device: &Arc<Device>) -> Result<Rows, Error> {
        let kernel = kernel(device, &ROWS, "rows_gather")?;
        let blocks_max = device.multiprocessors().map_or(16, |n| n.max(1) as u32) * BLOCKS_EACH;
        Ok(Rows { kernel, blocks_max: blocks_max.into() })
    }

    /// Queues the fetching of `rows` rows of `row_bytes` each: from `base` + `numbers[i]` × `step` to `to` + i ×
    /// `row_bytes`, but for those that are `ELSEWHERE`. `numbers` is a device address.
    ///
    /// # Safety
    /// The device may read the rows (they are registered with it) and write to their places, which are the caller's,
    /// until the stream has passed.
    #[allow(clippy::too_many_arguments)] // they are the kernel's
    pub unsafe fn queue(
        &self,
        stream: &Stream,
        base: *const u8,
        step: u64,
        numbers: u64,
        to: u64,
        rows: u64,
        row_bytes: u64,
    ) -> Cuda<()> {
        let lanes = row_bytes.div_ceil(WORD_BYTES).next_power_of_two().clamp(1, LANES);
        let warps = rows.div_ceil(LANES / lanes);
        let blocks = warps.div_ceil(u64::from(WARPS)).clamp(1, self.blocks_max);
        let arguments = [base as u64, step, numbers, to, rows, row_bytes, lanes];
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.kernel, blocks as u32, THREADS, &arguments) }
    }
}
