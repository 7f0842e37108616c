//! A data set in one address space (a block device, a stripe, a namespace): the manifest, then the files one after
//! another, each from a multiple of 4096 on.

use super::manifest::{self, Manifest, FILE_ALIGN};
use super::pump::{Halt, Pump, Shared};
use super::spec::DatagenSpec;
use super::{checked, damaged, parser, phase, record_of, DatagenRecord, Observe, Work};
use forebay_io::{ring_refused, Reactor, RingOptions};
use forebay_model::units::readable_bytes;
use forebay_model::Error;
use forebay_storage::{examine, MadeOf, Purpose, QueueNeeds, Target, Uri};
use std::sync::atomic::Ordering;

/// The first file begins at a multiple of this.
const BEGIN_ALIGN: u64 = 1 << 20;
/// I/Os under way for each thread, and threads: enough for a remote namespace, few enough for its queues.
const DEPTH: u32 = 4;
const WORKERS_MAX: u32 = 8;

/// Anything but a folder, or the name of one to be made.
pub(crate) fn is_source(data: &str) -> bool {
    match Uri::parse(data) {
        Ok(uri) => uri.path().is_none_or(|path| path.exists() && !path.is_dir()),
        Err(_) => false,
    }
}

pub(crate) fn run(spec: &DatagenSpec, observe: Observe) -> Result<DatagenRecord, Error> {
    let uri = Uri::parse(&spec.data)?;
    if matches!(uri.medium().whole, MadeOf::Timed | MadeOf::Nothing) {
        let found = "it keeps no bytes of its own";
        return Err(Error::request(
            &spec.data,
            found,
            "the PATH that stands in model:NAME?over=PATH, or a folder",
        ));
    }
    let bytes = spec.file_bytes()?;
    let (manifest, text) = manifest_of(spec, &bytes)?;
    let mut record = record_of(spec, &bytes, 0);
    record.workers = record.workers.min(WORKERS_MAX);
    let purpose = purpose_of(spec, record.workers);
    if spec.dry_run {
        return Ok(record);
    }
    let opened = examine(&purpose)?.open(&purpose, &mut Purpose::fills_nothing)?;
    let target = opened.targets.first().ok_or_else(|| {
        Error::request(&spec.data, "is not a single source", "a block device, a stripe or a namespace")
    })?;
    let packed = PackedFiles::new(spec, target, &bytes, manifest.data_begin, record.workers)?;
    packed.put(&[0; FILE_ALIGN as usize])?;
    let all: Vec<u32> = (0..spec.files).collect();
    let spec_of_phase = DatagenSpec { workers: Some(record.workers), ..spec.clone() };
    let made = phase("make", &spec_of_phase, &all, &bytes, observe, &|work| packed.make(work))?;
    if made.files < u64::from(spec.files) {
        let found =
            format!("was interrupted after {} of {} files; the data set isn't whole", made.files, spec.files);
        return Err(Error::run(
            format!("create a data set on {}", spec.data),
            found,
            "the same command again",
        ));
    }
    packed.put(&text)?;
    record.add(&made);
    record.direct = target.files().iter().all(|(file, _)| file.direct);
    if spec.check {
        let read = phase("check", &spec_of_phase, &all, &bytes, observe, &|work| packed.check(work))?;
        record.check = Some(checked(&read, spec.files)?);
    }
    opened.close(false)?;
    Ok(record)
}

fn purpose_of(spec: &DatagenSpec, workers: u32) -> Purpose {
    Purpose {
        sources: vec![spec.data.clone()],
        reads: false,
        writes: true,
        makes: true,
        workers,
        workers_most: workers,
        overwrite: spec.overwrite.clone(),
        overwrite_devices: spec.overwrite.clone(),
        units: vec![("‹io_bytes›", spec.io_bytes)],
        ..Purpose::default()
    }
}

/// The manifest, and the bytes before the first file: its text, a NUL, zeroes.
fn manifest_of(spec: &DatagenSpec, bytes: &[u64]) -> Result<(Manifest, Vec<u8>), Error> {
    let mut manifest =
        Manifest { file_bytes: bytes.to_vec(), data_begin: u64::MAX, ..manifest::describe(spec, bytes) };
    let longest = manifest::text(&manifest)?.len() as u64;
    if longest > manifest::TEXT_BYTES_MAX {
        let found = format!("a list of {} files is longer than 64 MiB", spec.files);
        return Err(Error::request(format!("create a data set on {}", spec.data), found, "fewer ‹files›"));
    }
    manifest.data_begin = (longest + 1).next_multiple_of(BEGIN_ALIGN);
    let mut text = manifest::text(&manifest)?.into_bytes();
    text.resize(manifest.data_begin as usize, 0);
    Ok((manifest, text))
}

struct PackedFiles<'a> {
    spec: &'a DatagenSpec,
    target: &'a Target,
    bytes: &'a [u64],
    /// Offset of each file.
    begins: Vec<u64>,
    align: u32,
}

impl<'a> PackedFiles<'a> {
    fn new(
        spec: &'a DatagenSpec,
        target: &'a Target,
        bytes: &'a [u64],
        begin: u64,
        workers: u32,
    ) -> Result<PackedFiles<'a>, Error> {
        let mut end = begin;
        let begins = bytes
            .iter()
            .map(|bytes| {
                let at = end;
                end = end.saturating_add(bytes.next_multiple_of(FILE_ALIGN));
                at
            })
            .collect();
        if end > target.bytes {
            return Err(Error::machine(
                format!("create a data set of {} on {}", readable_bytes(end), spec.data),
                format!("it has {}", readable_bytes(target.bytes)),
                "fewer ‹files›, or a larger source",
            ));
        }
        let align = target.align();
        if u64::from(align) > FILE_ALIGN || spec.io_bytes % u64::from(align) != 0 {
            let found = format!("it needs multiples of {align} bytes");
            return Err(Error::request(&spec.data, found, "‹io_bytes› 1m, and blocks of up to 4096 bytes"));
        }
        debug_assert!(workers > 0);
        Ok(PackedFiles { spec, target, bytes, begins, align: align.max(1) })
    }

    fn open(&self) -> Result<Pump, Error> {
        let needs = QueueNeeds::new(DEPTH, self.spec.io_bytes);
        let depth = self.target.ring_depth(needs);
        let reactor = Reactor::with_ring(RingOptions { depth, ..RingOptions::default() });
        let mut pump =
            Pump::new(reactor.unwrap_or_else(|_| Reactor::without_ring()), DEPTH, self.spec.io_bytes)?;
        let queue = self.target.queue(needs, &mut pump.reactor)?;
        pump.take_on(queue);
        Ok(pump)
    }

    /// Writes what stands before the files, and has everything so far durable.
    fn put(&self, text: &[u8]) -> Result<(), Error> {
        let mut pump = self.open()?;
        let shared = Shared::default();
        let put = pump.put(text, &shared).and_then(|()| pump.flush(&shared));
        pump.let_go();
        put.map_err(|halt| self.failed("the manifest", halt))
    }

    fn make(&self, work: &Work) -> Result<(), Error> {
        let mut pump = self.open()?;
        let mut writer = self.spec.writer()?;
        let mut made = Ok(());
        while let Some(number) = work.take() {
            let base = self.begins[number as usize];
            let shape = self.spec.shape(number);
            match pump.write(&mut writer, shape, base, self.align, &work.shared) {
                Ok(()) => work.done.fetch_add(1, Ordering::Relaxed),
                Err(Halt::Stopped) => break,
                Err(halt) => {
                    made = Err(self.failed(&format!("file {number}"), halt));
                    break;
                }
            };
        }
        pump.let_go();
        made
    }

    fn check(&self, work: &Work) -> Result<(), Error> {
        let mut pump = self.open()?;
        let mut parser = parser(self.spec)?;
        let mut read = Ok(());
        while let Some(number) = work.take() {
            let (base, bytes) = (self.begins[number as usize], self.bytes[number as usize]);
            match pump.check(&mut *parser, base, bytes, self.align, &work.shared) {
                Ok(()) => work.done.fetch_add(1, Ordering::Relaxed),
                Err(Halt::Stopped) => break,
                Err(halt) => {
                    read = Err(self.failed(&format!("file {number}"), halt));
                    break;
                }
            };
        }
        pump.let_go();
        read
    }

    fn failed(&self, what: &str, halt: Halt) -> Error {
        let name = format!("{what} on {}", self.spec.data);
        match halt {
            Halt::Io { offset, fault } => {
                Error::run(format!("{name}, at {offset}"), fault.to_string(), "dmesg | tail")
            }
            Halt::Damaged(damage) => damaged(&name, &damage),
            Halt::Refused(why) => ring_refused(&why),
            Halt::Stopped => Error::run(name, "was interrupted", "the same command again"),
        }
    }
}
