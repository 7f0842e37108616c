//! The log of a worker's I/Os: a line for each, or for each interval and direction.

use forebay_model::job::JobSpec;
use forebay_model::Error;
use forebay_storage::Outputs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

const BUFFER_BYTES: usize = 256 << 10;

/// Lines of `ms, ns, direction, bytes, offset`: when an I/O was done, how long it took, 0 for a read and 1 for a write. Over
/// intervals: their end, the mean, the direction, the sum of bytes, the number of I/Os.
pub(crate) struct IoLog {
    out: Box<dyn Write + Send>,
    path: String,
    /// 0: each I/O.
    every_ns: u64,
    /// Number of the interval of which `sums` are.
    interval: u64,
    sums: [Sum; 2],
    failed: Option<std::io::Error>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    ios: u64,
    bytes: u64,
    ns: u64,
}

/// One I/O that was done.
pub(crate) struct Note {
    /// Since the measured time began.
    pub at: Duration,
    pub took: Duration,
    pub is_read: bool,
    pub bytes: u32,
    pub offset: u64,
}

impl IoLog {
    /// The log of worker number `index`, in a file that isn't there yet; None if none was asked for.
    pub(crate) fn open(job: &JobSpec, index: u32) -> Result<Option<Box<IoLog>>, Error> {
        let Some(prefix) = &job.io_log else { return Ok(None) };
        let path = format!("{prefix}.{}.log", index + 1);
        let asked = || format!("‹io_log› {prefix}");
        let file = Outputs::create(Path::new(&path)).map_err(|e| {
            let next = match e.kind() {
                std::io::ErrorKind::AlreadyExists => "another name: logs aren't overwritten",
                _ => "a name in a folder that can be written to",
            };
            Error::request(asked(), format!("{path}: {e}"), next)
        })?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Some(Box::new(IoLog::over(Box::new(out), path, job.io_log_ms.unwrap_or(0)))))
    }

    fn over(out: Box<dyn Write + Send>, path: String, every_ms: u32) -> IoLog {
        let every_ns = u64::from(every_ms) * 1_000_000;
        IoLog { out, path, every_ns, interval: 0, sums: Default::default(), failed: None }
    }

    pub(crate) fn note(&mut self, note: &Note) {
        let (at_ns, ns) = (note.at.as_nanos() as u64, note.took.as_nanos() as u64);
        let way = u8::from(!note.is_read);
        if self.every_ns == 0 {
            let line = format_args!("{}, {ns}, {way}, {}, {}\n", at_ns / 1_000_000, note.bytes, note.offset);
            return keep_first(self.out.write_fmt(line), &mut self.failed);
        }
        // What could be told only later is of the interval that is under way.
        let interval = (at_ns / self.every_ns).max(self.interval);
        if interval != self.interval {
            self.end_interval((self.interval + 1) * self.every_ns);
            self.interval = interval;
        }
        let sum = &mut self.sums[usize::from(way)];
        *sum = Sum { ios: sum.ios + 1, bytes: sum.bytes + u64::from(note.bytes), ns: sum.ns + ns };
    }

    fn end_interval(&mut self, end_ns: u64) {
        for (way, sum) in std::mem::take(&mut self.sums).iter().enumerate().filter(|(_, sum)| sum.ios > 0) {
            let line = format_args!(
                "{}, {}, {way}, {}, {}\n",
                end_ns / 1_000_000,
                sum.ns / sum.ios,
                sum.bytes,
                sum.ios
            );
            keep_first(self.out.write_fmt(line), &mut self.failed);
        }
    }

    /// Writes what is left, of a run that ended at `end`.
    pub(crate) fn finish(&mut self, end: Duration) {
        let whole = (self.interval + 1) * self.every_ns;
        self.end_interval(whole.min(end.as_nanos() as u64));
        keep_first(self.out.flush(), &mut self.failed);
    }

    /// Why lines are missing from it; told once.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        let why = self.failed.take()?;
        Some(Error::run(
            format!("‹io_log›: {}", self.path),
            why.to_string(),
            "a disk with room for it, or ‹io_log_ms› 1000",
        ))
    }
}

fn keep_first(wrote: std::io::Result<()>, failed: &mut Option<std::io::Error>) {
    if let (Err(why), None) = (wrote, &failed) {
        *failed = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(every_ms: u32, notes: &[(u64, u64, bool)]) -> String {
        let lines = Lines::default();
        let mut log = IoLog::over(Box::new(lines.clone()), "it".into(), every_ms);
        for (at_us, took_us, is_read) in notes {
            let (at, took) = (Duration::from_micros(*at_us), Duration::from_micros(*took_us));
            log.note(&Note { at, took, is_read: *is_read, bytes: 4096, offset: 8192 });
        }
        log.finish(Duration::from_micros(2_500));
        assert!(log.failure().is_none());
        let text = lines.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    // promise: BEN-48
    #[test]
    fn each_io_has_a_line_or_each_interval_and_direction() {
        let notes = [(100, 50, true), (900, 150, true), (950, 7, false), (2_100, 9, true)];
        assert_eq!(
            written(0, &notes),
            "0, 50000, 0, 4096, 8192\n0, 150000, 0, 4096, 8192\n0, 7000, 1, 4096, 8192\n2, 9000, 0, 4096, 8192\n"
        );
        assert_eq!(written(1, &notes), "1, 100000, 0, 8192, 2\n1, 7000, 1, 4096, 1\n2, 9000, 0, 4096, 1\n");
        assert_eq!(written(1, &[]), "");
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::from_raw_os_error(28))
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told_once() {
        let mut log = IoLog::over(Box::new(Full), "it".into(), 0);
        let (at, took) = (Duration::ZERO, Duration::ZERO);
        (0..3).for_each(|_| log.note(&Note { at, took, is_read: true, bytes: 1, offset: 0 }));
        assert!(log.failure().unwrap().found.contains("No space left"));
        assert!(log.failure().is_none());
    }
}
