//! Rows of a table that lies in host memory, fetched by the device itself.

use super::{kernel, ROWS, THREADS, WARPS};
use crate::gpu::cuda::{Cuda, Device, Function, Stream};
use forebay_model::feed::Permutation;
use forebay_model::Error;
use std::sync::Arc;

/// In place of a number: this row comes another way.
pub const ROW_ELSEWHERE: u64 = u64::MAX;
/// Bytes that a lane reads at once.
const WORD_BYTES: u64 = 16;
const LANES: u64 = 32;
/// Blocks of threads for each multiprocessor, of which short rows need all on their way.
const BLOCKS_EACH: u32 = 2;
/// Rows that keep every lane's reads under way (`AHEAD` in rows.cu) fill the link with an eighth of the blocks. More would wait
/// for it on every multiprocessor, beside the kernels of who computes meanwhile.
const LONG_ROW_BYTES: u64 = 8 * LANES * WORD_BYTES;
const OF_BLOCKS_IF_LONG: u64 = 8;
/// Blocks that fill the link with one piece; more of them gain nothing, and take multiprocessors from others.
const PULL_BLOCKS_MAX: u64 = 8;

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
        Ok(Rows { kernel, blocks_max: blocks_max(device) })
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
        let (lanes, blocks) = grid(rows, row_bytes, blocks_of(row_bytes, self.blocks_max));
        let arguments = [base as u64, step, numbers, to, rows, row_bytes, lanes];
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.kernel, blocks, THREADS, &arguments) }
    }
}

/// Blocks at most that fetch rows of this length.
fn blocks_of(row_bytes: u64, blocks_max: u64) -> u64 {
    if row_bytes < LONG_ROW_BYTES {
        return blocks_max;
    }
    (blocks_max / OF_BLOCKS_IF_LONG).max(PULL_BLOCKS_MAX).min(blocks_max)
}

/// Lanes that take a row together, and blocks of threads.
fn grid(rows: u64, row_bytes: u64, blocks_max: u64) -> (u64, u32) {
    let lanes = row_bytes.div_ceil(WORD_BYTES).next_power_of_two().clamp(1, LANES);
    let warps = rows.div_ceil(LANES / lanes);
    (lanes, warps.div_ceil(u64::from(WARPS)).clamp(1, blocks_max) as u32)
}

fn blocks_max(device: &Device) -> u64 {
    (device.multiprocessors().map_or(16, |n| n.max(1) as u32) * BLOCKS_EACH).into()
}

/// Memory of the host that the device may read, and where its bytes go: an entry of a list, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

pub const ROW_PIECE_BYTES: usize = size_of::<Piece>();
const _: () = assert!(ROW_PIECE_BYTES == 24);

/// Kernel that takes many short pieces to their places by one launch.
#[derive(Clone)]
pub struct Scatter {
    kernel: Function,
    blocks_max: u64,
}

impl Scatter {
    /// As `Rows::open`.
    ///
    /// # Errors
    /// As of `Rows::open`.
    pub fn open(device: &Arc<Device>) -> Result<Scatter, Error> {
        Ok(Scatter { kernel: kernel(device, &ROWS, "rows_scatter")?, blocks_max: blocks_max(device) })
    }

    /// Queues `count` pieces, none of them longer than `longest` bytes by much. `list` is a device address.
    ///
    /// # Safety
    /// As for `Rows::queue`, of each piece; the list is the launch's until the stream has passed.
    pub unsafe fn queue(&self, stream: &Stream, list: u64, count: u64, longest: u64) -> Cuda<()> {
        let (lanes, blocks) = grid(count, longest, self.blocks_max);
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.kernel, blocks, THREADS, &[list, count, lanes]) }
    }
}

/// Kernel that takes one contiguous piece to its place.
#[derive(Clone)]
pub(crate) struct Pull(Function);

impl Pull {
    /// Unit of a piece's places and length.
    pub(crate) const UNIT: usize = WORD_BYTES as usize;

    /// As `Rows::open`.
    ///
    /// # Errors
    /// As of `Rows::open`.
    pub(crate) fn open(device: &Arc<Device>) -> Result<Pull, Error> {
        Ok(Pull(kernel(device, &ROWS, "rows_pull")?))
    }

    /// Queues the fetching of `bytes` from `from` to the device address `to`.
    ///
    /// # Safety
    /// As for `Rows::queue`, of the piece; all three are multiples of `UNIT`.
    pub(crate) unsafe fn queue(&self, stream: &Stream, from: *const u8, to: u64, bytes: u64) -> Cuda<()> {
        let blocks = bytes.div_ceil(u64::from(THREADS) * WORD_BYTES).clamp(1, PULL_BLOCKS_MAX);
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.0, blocks as u32, THREADS, &[from as u64, to, bytes]) }
    }
}

/// Kernel that checks row numbers in device memory, and copies them.
pub struct Numbers {
    kernel: Function,
    blocks_max: u64,
}

impl Numbers {
    /// As `Rows::open`.
    ///
    /// # Errors
    /// As of `Rows::open`.
    pub fn open(device: &Arc<Device>) -> Result<Numbers, Error> {
        Ok(Numbers { kernel: kernel(device, &ROWS, "rows_numbers")?, blocks_max: blocks_max(device) })
    }

    /// Queues the copying of `count` integers of a kind (bytes of each, whether they have a sign) from `given`, an address
    /// that is a multiple of their length, to words behind the first of `out`; that one grows by one for each that is
    /// negative, or `limit` or more.
    ///
    /// # Safety
    /// Both lie in device memory, with room for the words, and are the caller's until the stream has passed.
    pub unsafe fn queue(
        &self,
        stream: &Stream,
        given: u64,
        (bytes_each, signed): (usize, bool),
        count: usize,
        limit: u64,
        out: u64,
    ) -> Cuda<()> {
        let warps = (count as u64).div_ceil(LANES);
        let blocks = warps.div_ceil(u64::from(WARPS)).clamp(1, self.blocks_max);
        let arguments = [given, bytes_each as u64, signed.into(), count as u64, limit, out];
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.kernel, blocks as u32, THREADS, &arguments) }
    }
}

/// Kernel that computes which samples come at some positions of an order, so that no number crosses the link.
#[derive(Clone)]
pub struct Ordered {
    kernel: Function,
    blocks_max: u64,
}

impl Ordered {
    /// As `Rows::open`.
    ///
    /// # Errors
    /// As of `Rows::open`.
    pub fn open(device: &Arc<Device>) -> Result<Ordered, Error> {
        Ok(Ordered { kernel: kernel(device, &ROWS, "rows_order")?, blocks_max: blocks_max(device) })
    }

    /// Queues the samples at `count` positions from `first` on, as words behind the first of `out`; the word at `sum` grows by
    /// their hash, with `hash_keys` as of `Order::hash_keys`.
    ///
    /// # Safety
    /// Both addresses are of device memory with room for them, and are the caller's until the stream has passed.
    #[allow(clippy::too_many_arguments)] // they are the kernel's
    pub unsafe fn queue(
        &self,
        stream: &Stream,
        of: &Permutation,
        (first, count): (u64, u64),
        hash_keys: (u64, u64),
        out: u64,
        sum: u64,
    ) -> Cuda<()> {
        let pair = |round: usize| u64::from(of.keys[2 * round]) | u64::from(of.keys[2 * round + 1]) << 32;
        let blocks = count.div_ceil(LANES).div_ceil(u64::from(WARPS)).clamp(1, self.blocks_max);
        let (low, high) = (of.low_bits.into(), of.high_bits.into());
        let (identity, key) = hash_keys;
        let arguments = [of.n, low, high, pair(0), pair(1), pair(2), first, count, identity, key, out, sum];
        // SAFETY: the kernel takes these; the rest is the caller's promise.
        unsafe { stream.launch(&self.kernel, blocks as u32, THREADS, &arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: PYT-13
    #[test]
    fn long_rows_leave_most_multiprocessors_to_others() {
        let h200 = 132 * u64::from(BLOCKS_EACH);
        let blocks = |rows, row_bytes| grid(rows, row_bytes, blocks_of(row_bytes, h200)).1;
        assert_eq!(blocks(1_000_000, 512), 264);
        assert_eq!(blocks(1_000_000, LONG_ROW_BYTES - 1), 264);
        // A batch of DLRM, in pieces; and one short of them.
        assert_eq!(blocks(1024, 7695), 33);
        assert_eq!(blocks(16, 7695), 16 / WARPS);
        assert_eq!(blocks_of(LONG_ROW_BYTES, 4), 4);
        assert_eq!(blocks_of(LONG_ROW_BYTES, 32), PULL_BLOCKS_MAX);
    }
}
