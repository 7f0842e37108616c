//! The order of a loader, computed by the GPU that its batches go to.

use crate::devices;
use crate::gpu_numbers::GpuNumbers;
use forebay_io::{Cuda, CudaError, CudaEvent, CudaStream, DeviceMemory, OrderedRows};
use forebay_model::feed::EpochOrder;
use forebay_model::Error;

const WORD_BYTES: usize = size_of::<u64>();
/// Sums of batches: more than can be under way, and few enough to be read in a moment.
const WORDS: usize = 4096;

/// The kernel, its stream, and a word for each batch's sum.
pub(super) struct OnGpu {
    kernel: OrderedRows,
    stream: CudaStream,
    words: DeviceMemory,
    next: usize,
    /// Words of batches that were handed out, whose sums haven't been read.
    handed: Vec<usize>,
}

impl OnGpu {
    /// None where there is no compiler for the kernel, or no memory: processors compute the order then.
    pub(super) fn open(gpu: u32) -> Option<OnGpu> {
        let device = devices::device(gpu).ok()?;
        let kernel = OrderedRows::open(&device).ok()?;
        let (stream, words) = (CudaStream::on(&device).ok()?, device.allocate(WORDS * WORD_BYTES).ok()?);
        Some(OnGpu { kernel, stream, words, next: 0, handed: Vec::new() })
    }

    /// The samples at some positions, the event after which they are there, and the word that has their sum by then.
    pub(super) fn take(
        &mut self,
        order: &EpochOrder,
        some: (u64, usize),
    ) -> Result<Option<(GpuNumbers, CudaEvent, usize)>, Error> {
        let word = self.next;
        let sum = self.words.address() + (word * WORD_BYTES) as u64;
        let taken = GpuNumbers::ordered(&self.kernel, &self.stream, order, some, sum)
            .map_err(|why| self.failed(&why))?;
        self.next = (word + 1) % WORDS;
        Ok(taken.map(|(numbers, event)| (numbers, event, word)))
    }

    /// Notes a batch that was handed out; returns sums that had to be read to make room for more.
    pub(super) fn hand_out(&mut self, word: usize) -> Result<u64, Error> {
        self.handed.push(word);
        if self.handed.len() < WORDS / 2 {
            return Ok(0);
        }
        self.read().map_err(|why| self.failed(&why))
    }

    /// The sum over batches that were handed out since the last call.
    pub(super) fn read(&mut self) -> Cuda<u64> {
        if self.handed.is_empty() {
            return Ok(0);
        }
        let mut bytes = vec![0; WORDS * WORD_BYTES];
        self.words.device().read_back(self.words.address(), &mut bytes)?;
        let word = |at: usize| {
            let bytes = &bytes[at * WORD_BYTES..(at + 1) * WORD_BYTES];
            u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
        };
        Ok(self.handed.drain(..).map(word).fold(0, u64::wrapping_add))
    }

    fn failed(&self, why: &CudaError) -> Error {
        let asked = format!("the order of samples on GPU {}", self.words.device().index());
        Error::run(asked, why.to_string(), "if the CUDA context is gone, a new process; forebay doctor")
    }
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        // What is queued writes to the words.
        let _ = self.stream.synchronize();
    }
}
