//! One file, open: made at its full length, filled by I/Os in order, cut to its bytes, flushed, closed.

use super::resources::WorkerResources;
use super::Direction;
use forebay_io::{monotonic_now, FileIdentity};
use forebay_model::content;
use forebay_model::job::PathKind;
use forebay_model::Error;
use forebay_storage::{FileAccess, FileTarget, Outputs, Paths};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// A file of a run: where it is, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFile {
    pub path: PathBuf,
    /// The name that its content carries.
    pub content: String,
    pub bytes: u64,
}

impl RunFile {
    pub(crate) fn content_id(&self) -> u64 {
        content::file_id(&self.content)
    }
}

/// A file that this run made, and which one it is: anybody may give its name to another.
#[derive(Clone, Debug)]
pub(crate) struct CreatedFile(pub RunFile, pub FileIdentity);

/// Why a file couldn't be opened.
pub(crate) enum Refused {
    /// It couldn't be made.
    Make(RunFile, io::Error),
    /// It is shorter than it was written: its bytes.
    Short(RunFile, u64),
    Other(Error),
}

/// A file that is being written or read.
pub(crate) struct OpenFile {
    pub place: RunFile,
    pub id: u64,
    /// What it belongs to, by its place in the worker's list.
    pub flow: usize,
    /// Its number at the client.
    pub queue: u32,
    /// None where it lies in a source that has no files, from `base` on.
    target: Option<FileTarget>,
    pub base: u64,
    align: u32,
    way: Direction,
    /// Offset of the next I/O.
    next: u64,
    /// I/Os that haven't completed, including the flush.
    pub in_flight: u32,
    /// When the flush was asked for.
    pub flush_from: Option<Instant>,
    pub is_flushed: bool,
}

/// One I/O's part of a file: `len` of it are the file's, `io_len` are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u64,
    pub len: u32,
    pub io_len: u32,
}

impl OpenFile {
    /// Opens the file, creating it for a write; what it creates is added to `made`, even if a later step fails.
    pub(crate) fn open<P: Copy>(
        access: FileAccess,
        place: RunFile,
        flow: usize,
        resources: &mut WorkerResources<P>,
        made: &mut Vec<CreatedFile>,
    ) -> Result<OpenFile, Refused> {
        let ours = match access.write.then(|| make(&place, resources.align())).transpose() {
            Ok(ours) => ours,
            Err(e) => return Err(Refused::Make(place, e)),
        };
        made.extend(ours.map(|identity| CreatedFile(place.clone(), identity)));
        let target = FileTarget::open(&place.path, access)?;
        if let Some(identity) = ours {
            identity.check(&place.path, &target.file)?;
        }
        if !access.write && target.bytes < place.bytes {
            return Err(Refused::Short(place, target.bytes));
        }
        let align = resources.align();
        let target = FileTarget { align, ..target };
        let queue = resources.queue(&target)?;
        let way = if access.write { Direction::Write } else { Direction::Read };
        Ok(OpenFile { target: Some(target), ..OpenFile::new(place, flow, queue, way, 0, align) })
    }

    /// An entry of a source without files, from `base` on.
    pub(crate) fn extent<P: Copy>(
        place: RunFile,
        base: u64,
        way: Direction,
        flow: usize,
        resources: &mut WorkerResources<P>,
    ) -> Result<OpenFile, Error> {
        let queue = resources.whole()?;
        Ok(OpenFile::new(place, flow, queue, way, base, resources.align()))
    }

    fn new(place: RunFile, flow: usize, queue: u32, way: Direction, base: u64, align: u32) -> OpenFile {
        OpenFile {
            id: place.content_id(),
            place,
            flow,
            queue,
            target: None,
            base,
            align: align.max(1),
            way,
            next: 0,
            in_flight: 0,
            flush_from: None,
            is_flushed: false,
        }
    }

    /// The next part; None when all of the file is on its way. What ends with the file is as long as O_DIRECT wants it:
    /// a file that was written so is cut afterwards, and a read brings what there is.
    pub(crate) fn take(&mut self, io_bytes: u64) -> Option<Span> {
        let left = self.place.bytes - self.next;
        if left == 0 {
            return None;
        }
        let len = left.min(io_bytes) as u32;
        let span = Span { offset: self.next, len, io_len: len.next_multiple_of(self.align) };
        self.next += u64::from(len);
        Some(span)
    }

    pub(crate) fn handle(&self) -> Option<&std::fs::File> {
        self.target.as_ref().map(|target| &*target.file)
    }

    pub(crate) fn is_all_asked_for(&self) -> bool {
        self.next == self.place.bytes
    }

    /// All bytes have been moved, and no I/O is in flight.
    pub(crate) fn is_moved(&self) -> bool {
        self.is_all_asked_for() && self.in_flight == 0
    }

    /// Truncates the file to its length, which the last, aligned write may have exceeded.
    pub(crate) fn cut(&self) -> Result<(), Error> {
        let Some(target) = &self.target else { return Ok(()) };
        if self.way == Direction::Read || self.place.bytes % u64::from(self.align) == 0 {
            return Ok(());
        }
        let cut = target.file.set_len(self.place.bytes);
        cut.map_err(|e| Error::run(format!("cut {}", self.place.path.display()), e.to_string(), "df -h"))
    }

    pub(crate) fn flushes(&mut self) {
        self.flush_from = Some(monotonic_now());
    }

    /// Closes the file, and removes its registration from the ring.
    pub(crate) fn close<P: Copy>(self, resources: &mut WorkerResources<P>) {
        // The queue of a whole source is its worker's.
        let Some(target) = self.target else { return };
        let mut queue = resources.client.remove(self.queue);
        queue.close(&mut resources.reactor);
        resources.forget(&target);
        drop(queue);
        drop(target);
        resources.reactor.forget_files();
    }
}

/// Unit of a file's writes. cuFile's are whole pages: it has no direct way for others.
pub(crate) fn align_of(target: &FileTarget, path: PathKind) -> u32 {
    Paths::by_kind(path).unit(target.align)
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Other(error)
    }
}

/// Creates the file, never opening what somebody else made, and reserves its blocks: writes then lengthen nothing, and
/// a full file system shows before the first of them.
fn make(place: &RunFile, align: u32) -> io::Result<FileIdentity> {
    let handle = Outputs::create(&place.path)?;
    let identity = FileIdentity::from_metadata(&handle.metadata()?);
    let bytes = place.bytes.next_multiple_of(u64::from(align));
    let kept = rustix::fs::fallocate(&handle, rustix::fs::FallocateFlags::empty(), 0, bytes);
    let kept = match kept {
        Err(rustix::io::Errno::OPNOTSUPP) => handle.set_len(bytes),
        kept => kept.map_err(Into::into),
    };
    kept.map(|()| identity).inspect_err(|_| drop(identity.remove(&place.path)))
}
