//! Content in a worker's slots: checked after reads, made before writes.
//!
//! Slots in a GPU's memory are looked after there, by kernels on a stream of this
//! worker's: several slots in one launch, and a slot belongs to its task until
//! the device has done it. Where there is no NVRTC the host reads back and writes
//! through a buffer, and says so.

#![allow(unsafe_code, reason = "slots seen as bytes once their I/O is over")]

use forebay_io::{
    monotonic_now, ContentChecker, ContentFiller, ContentFinding, ContentLists, ContentRange, Cuda,
    CudaDevice, CudaEvent, CudaStream, Mem,
};
use forebay_model::content;
use forebay_model::fio_blocks;
use forebay_model::job::{Blend, Blender, JobSpec};
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches under way at once. More tasks wait, and go together when one has ended.
const BATCHES: usize = 4;
/// A batch that should have ended by now is asked for again after this long.
const AGAIN: Duration = Duration::from_micros(25);
/// Duration of an empty launch, and the rate at which content is checked or made: the first guess of a launch's end.
const LAUNCH: Duration = Duration::from_micros(10);
const BYTES_PER_US: u64 = 1_000_000;

const SCATTERED: &str =
    "content is checked and generated in contiguous buffers, and this memory is scattered";
pub(crate) const FIO_ON_HOST: &str = "fio's checksums are computed by the host";

/// File and part of it whose content a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub seed: u64,
    /// `content::file_id` of its name.
    pub file: u64,
    pub offset: u64,
    pub len: u32,
}

/// Work on the content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyTask {
    Check,
    Fill,
}

/// A task that ended. A text is why content isn't what it should be, or couldn't be made.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub tag: u32,
    pub task: VerifyTask,
    pub result: Result<(), String>,
}

pub struct Contents {
    // Field order is drop order: the stream runs dry before the slots go.
    gpu: Option<OnDevice>,
    device: Option<Arc<CudaDevice>>,
    name_of: NameOf,
    scratch: Vec<u8>,
    /// Content of writes that isn't verified.
    blender: Option<Blender>,
    /// Rule that reads are checked against, where fio wrote the data.
    fio: Option<fio_blocks::Rule>,
}

/// Function that names the file to which a content claims to belong, where it is known.
pub type NameOf = Box<dyn Fn(u64) -> Option<String> + Send>;

impl Contents {
    /// For a worker whose slots are in the memory of `device`, if any. The text is why content there is looked after
    /// by the host.
    pub fn open(
        job: &JobSpec,
        worker: u32,
        name_of: NameOf,
        device: Option<&Arc<CudaDevice>>,
        depth: usize,
    ) -> Result<(Contents, Option<String>), Error> {
        let blend = job.content.as_deref().map(Blend::parse).transpose()?;
        let blender = blend.map(|blend| Blender::new(blend, job.seed, worker));
        let fio = job.parsed_verify_fio()?;
        let wanted = blender.is_none() && (job.verify || (job.refill && job.writes()));
        let (gpu, why_not) = match device.filter(|_| wanted).map(|d| OnDevice::open(d, depth)) {
            None => (None, (fio.is_some() && device.is_some()).then(|| FIO_ON_HOST.into())),
            Some(Ok(gpu)) => (Some(gpu), None),
            Some(Err(why)) => (None, Some(why.found)),
        };
        Ok((Contents { gpu, device: device.cloned(), name_of, scratch: Vec::new(), blender, fio }, why_not))
    }

    /// Returns whether a task on this memory runs on the GPU: begun by `start`, ended in `reap`.
    pub fn is_on_gpu(&self, mem: Mem) -> bool {
        self.gpu.is_some() && matches!(mem, Mem::Device { .. })
    }

    /// Takes a task for the next launch. The slot is the task's until it ends.
    pub fn start(&mut self, tag: u32, task: VerifyTask, mem: Mem, part: Part) {
        let range = range_of(mem, part);
        if let Some(gpu) = &mut self.gpu {
            gpu.waiting.push(Job { tag, task, mem, part, range });
        }
    }

    /// Returns whether a GPU makes and checks what lies in its memory.
    #[inline]
    pub fn has_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Launches what waits, as far as there is room.
    #[inline]
    pub fn submit(&mut self) {
        if let Some(gpu) = &mut self.gpu {
            gpu.submit();
        }
    }

    pub fn reap(&mut self, ended: &mut Vec<Ended>) {
        let Some(gpu) = &mut self.gpu else { return };
        let mut done = std::mem::take(&mut gpu.done);
        gpu.reap(&mut done);
        for (job, result) in done.drain(..) {
            let result = match result {
                Ok(Some(finding)) if !finding.is_good() => Err(self.diagnose(&job, finding)),
                Ok(_) => Ok(()),
                Err(why) => Err(why),
            };
            ended.push(Ended { tag: job.tag, task: job.task, result });
        }
        if let Some(gpu) = &mut self.gpu {
            gpu.done = done;
        }
    }

    /// When there may next be something to reap.
    pub fn next_due(&self) -> Option<Instant> {
        self.gpu.as_ref().and_then(OnDevice::next_due)
    }

    /// Checks with the host's hands.
    pub fn check(&mut self, mem: Mem, part: Part) -> Result<(), String> {
        let len = part.len as usize;
        match mem {
            Mem::Host { at, .. } => {
                // SAFETY: the I/O has been reaped, so the slot is ours again; it holds at least len bytes.
                let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
                self.compare(bytes, part)
            }
            Mem::Device { at, .. } => self.read_back_and_compare(at, part),
            Mem::Pieces { .. } => Err(SCATTERED.into()),
            Mem::None => Ok(()),
        }
    }

    /// Makes content with the host's hands.
    pub fn fill(&mut self, mem: Mem, part: Part) -> Result<(), String> {
        let part = match &mut self.blender {
            Some(blender) => Part { seed: blender.next_seed(), file: 0, offset: 0, ..part },
            None => part,
        };
        let Part { seed, file, .. } = part;
        let thin = |bytes: &mut [u8]| self.blender.iter().for_each(|blender| blender.blend.thin(bytes));
        match mem {
            Mem::Host { at, .. } => {
                // SAFETY: the slot is free, ours, and holds the longest I/O.
                let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), part.len as usize) };
                content::fill(bytes, seed, file, part.offset);
                thin(bytes);
            }
            Mem::Device { at, .. } => {
                self.scratch.resize(part.len as usize, 0);
                content::fill(&mut self.scratch, seed, file, part.offset);
                thin(&mut self.scratch);
                let device = self.device.as_ref().ok_or("the buffer's GPU isn't open")?;
                device
                    .write(at, &self.scratch)
                    .map_err(|why| format!("writing content to GPU memory: {why}"))?;
            }
            Mem::Pieces { .. } => return Err(SCATTERED.into()),
            Mem::None => {}
        }
        Ok(())
    }

    fn read_back_and_compare(&mut self, at: u64, part: Part) -> Result<(), String> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.resize(part.len as usize, 0);
        let device = self.device.as_ref().ok_or("the buffer's GPU isn't open")?;
        let read = device.read_back(at, &mut bytes);
        let result = read
            .map_err(|why| format!("reading back GPU memory to verify it: {why}"))
            .and_then(|()| self.compare(&bytes, part));
        self.scratch = bytes;
        result
    }

    fn compare(&self, bytes: &[u8], part: Part) -> Result<(), String> {
        if let Some(rule) = &self.fio {
            let name = || (self.name_of)(part.file).unwrap_or_else(|| "the file".into());
            return fio_blocks::check(bytes, part.offset, rule).map_err(|wrong| wrong.describe(&name()));
        }
        content::check(bytes, part.seed, part.file, part.offset)
            .map_err(|mismatch| mismatch.describe(&self.name_of))
    }

    /// Describes the difference in the host's words: the slot is still the task's, so its bytes are what the GPU saw.
    fn diagnose(&mut self, job: &Job, finding: ContentFinding) -> String {
        let Mem::Device { gpu, at } = job.mem else { return String::new() };
        let first = finding.first_bad.unwrap_or(0);
        match self.read_back_and_compare(at, job.part) {
            Err(text) => text,
            Ok(()) => format!(
                "GPU {gpu} found {} wrong blocks in its memory, the first at {first} of {}; read back by the host \
                 they are right",
                finding.blocks_bad,
                (self.name_of)(job.part.file).unwrap_or_default()
            ),
        }
    }
}

fn range_of(mem: Mem, part: Part) -> ContentRange {
    let at = if let Mem::Device { at, .. } = mem { at } else { 0 };
    ContentRange { at, bytes: u64::from(part.len), seed: part.seed, file: part.file, offset: part.offset }
}

/// A task on its way.
#[derive(Clone, Copy)]
struct Job {
    tag: u32,
    task: VerifyTask,
    mem: Mem,
    part: Part,
    range: ContentRange,
}

/// The checks that complete with one event.
struct Batch {
    list: usize,
    event: CudaEvent,
    jobs: Vec<Job>,
    due: Instant,
}

type Outcome = (Job, Result<Option<ContentFinding>, String>);

/// The kernels, their stream, and what was given to them.
struct OnDevice {
    // Field order is drop order, after `Drop` has waited for the stream.
    batches: VecDeque<Batch>,
    spare: Vec<(usize, CudaEvent, Vec<Job>)>,
    stream: CudaStream,
    lists: ContentLists,
    checker: ContentChecker,
    filler: ContentFiller,
    waiting: Vec<Job>,
    done: Vec<Outcome>,
    failed: Vec<Outcome>,
}

impl OnDevice {
    fn open(device: &Arc<CudaDevice>, depth: usize) -> Result<OnDevice, Error> {
        let (checker, filler) = (ContentChecker::open(device)?, ContentFiller::open(device)?);
        let refused = |why: forebay_io::CudaError| {
            Error::machine(format!("a stream on GPU {}", device.index()), why.to_string(), "nvidia-smi")
        };
        let spare = (0..BATCHES).map(|list| CudaEvent::on(device).map(|event| (list, event, Vec::new())));
        Ok(OnDevice {
            batches: VecDeque::new(),
            spare: spare.collect::<Cuda<_>>().map_err(refused)?,
            stream: CudaStream::on(device).map_err(refused)?,
            lists: ContentLists::new(device, BATCHES, depth)?,
            checker,
            filler,
            waiting: Vec::new(),
            done: Vec::new(),
            failed: Vec::new(),
        })
    }

    fn submit(&mut self) {
        for task in [VerifyTask::Fill, VerifyTask::Check] {
            if self.waiting.iter().any(|job| job.task == task) {
                let Some((list, event, mut jobs)) = self.spare.pop() else { return };
                jobs.extend(self.waiting.iter().filter(|job| job.task == task));
                self.waiting.retain(|job| job.task != task);
                self.launch(Batch { list, event, jobs, due: monotonic_now() }, task);
            }
        }
    }

    fn launch(&mut self, mut batch: Batch, task: VerifyTask) {
        let ranges: Vec<ContentRange> = batch.jobs.iter().map(|job| job.range).collect();
        // SAFETY: the ranges are slots that belong to their tasks, and the list to this batch, until it is reaped.
        let queued = unsafe {
            match task {
                VerifyTask::Check => self.checker.queue(&self.stream, &self.lists, batch.list, &ranges),
                VerifyTask::Fill => self.filler.queue(&self.stream, &self.lists, batch.list, &ranges),
            }
        };
        match queued.and_then(|()| self.stream.record(&batch.event)) {
            Ok(()) => {
                let bytes: u64 = ranges.iter().map(|r| r.bytes).sum();
                batch.due += LAUNCH + Duration::from_micros(bytes / BYTES_PER_US);
                self.batches.push_back(batch);
            }
            Err(why) => {
                // Some of it may have started: the slots are safe again once the stream has run dry.
                let _ = self.stream.synchronize();
                self.failed.extend(batch.jobs.drain(..).map(|job| (job, Err(why.to_string()))));
                self.spare.push((batch.list, batch.event, batch.jobs));
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Outcome>) {
        done.append(&mut self.failed);
        while let Some(batch) = self.batches.front_mut() {
            let passed = match batch.event.is_done() {
                Ok(false) => {
                    batch.due = batch.due.max(monotonic_now() + AGAIN);
                    return;
                }
                Ok(true) => Ok(()),
                Err(why) => Err(why.to_string()),
            };
            let Some(mut batch) = self.batches.pop_front() else { return };
            for (index, job) in batch.jobs.drain(..).enumerate() {
                let finding = (job.task == VerifyTask::Check).then(|| self.lists.finding(batch.list, index));
                done.push((job, passed.clone().map(|()| finding)));
            }
            self.spare.push((batch.list, batch.event, batch.jobs));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        if self.failed.is_empty() {
            self.batches.front().map(|b| b.due)
        } else {
            Some(monotonic_now())
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // Every kernel ends before the slots go.
        let _ = self.stream.synchronize();
    }
}
