//! Lists of I/Os that are replayed (`‹read_iolog›`): what one is about, read once before the run, and its player, which reads it
//! again line by line as it goes, so that its length costs no memory.

use forebay_model::iolog::{Io, Kind, Line, Parser, Recast, LINE_BYTES_MAX};
use forebay_model::job::{JobSpec, Op};
use forebay_model::units::format_bytes;
use forebay_model::Error;
use forebay_storage::SourcePlan;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 256 << 10;

/// A list, line by line.
struct List {
    path: String,
    reader: BufReader<File>,
    line: Vec<u8>,
    parser: Parser,
}

impl List {
    fn open(path: &str) -> Result<List, Error> {
        let refused = |found: String| {
            Error::request(format!("‹read_iolog› {path}"), found, "a list that fio or ‹write_iolog› wrote")
        };
        // A pipe would keep `open` waiting, and can't be read again.
        let meta = std::fs::metadata(path).map_err(|e| refused(e.to_string()))?;
        if !meta.is_file() {
            return Err(refused("isn't a plain file".into()));
        }
        let file = File::open(path).map_err(|e| refused(e.to_string()))?;
        Ok(List {
            path: path.into(),
            reader: BufReader::with_capacity(BUFFER_BYTES, file),
            line: Vec::new(),
            parser: List::parser(path),
        })
    }

    fn parser(path: &str) -> Parser {
        Parser::new(format!("‹read_iolog› {path}"))
    }

    /// None behind the last line.
    fn next(&mut self) -> Result<Option<Line>, Error> {
        self.line.clear();
        let mut most = (&mut self.reader).take(LINE_BYTES_MAX as u64 + 2);
        let read = most.read_until(b'\n', &mut self.line).map_err(|e| self.unreadable(&e))?;
        match read {
            0 => Ok(None),
            _ => self.parser.read(&self.line).map(Some),
        }
    }

    fn again(&mut self) -> Result<(), Error> {
        self.parser = List::parser(&self.path);
        self.reader.seek(SeekFrom::Start(0)).map(drop).map_err(|e| self.unreadable(&e))
    }

    fn unreadable(&self, e: &std::io::Error) -> Error {
        Error::run(format!("‹read_iolog› {}", self.path), e.to_string(), "dmesg | tail")
    }
}

fn recast_of(job: &JobSpec) -> Result<Recast, Error> {
    Recast::new(job.replay_scale, job.replay_align, job.replay_skip.as_deref())
}

/// A job whose I/Os come from lists, with all that these say of it.
pub(crate) struct Replay {
    pub job: JobSpec,
    files: Vec<Extent>,
}

/// Last byte of a file that a list has, and its line.
struct Extent {
    name: String,
    end: u64,
    from: String,
}

#[derive(Default)]
struct Sums {
    files: Vec<Extent>,
    reads: u64,
    writes: u64,
    least: u64,
    most: u64,
    /// Of offsets and lengths: what all are multiples of.
    unit: u64,
}

/// The job as its lists make it; None where it has none.
///
/// # Errors
/// `Request`: a malformed line, by its number, or lists without reads and writes.
pub(crate) fn prepare(job: &JobSpec) -> Result<Option<Replay>, Error> {
    let Some(lists) = &job.read_iolog else { return Ok(None) };
    if job.sources.len() > 1 {
        let asked = format!("‹read_iolog› {lists} with {} sources", job.sources.len());
        return Err(Error::request(
            asked,
            "all I/Os go to one",
            "one SOURCE, or none: the files that the list names",
        ));
    }
    let recast = recast_of(job)?;
    let mut sums = Sums { least: u64::MAX, ..Sums::default() };
    for path in lists.split(':') {
        sums.add(&mut List::open(path)?, &recast)?;
    }
    let mut job = job.clone();
    (job.op, job.read_pct) = match (sums.reads, sums.writes) {
        (reads, 0) if reads > 0 => (Op::Read, None),
        (0, _) => (Op::Write, None),
        (reads, writes) => (Op::Read, Some((100 * reads / (reads + writes)).clamp(1, 99) as u8)),
    };
    job.io_bytes = sums.least;
    // With it comes the step, which says how offsets are aligned.
    job.io_bytes_max = (sums.most > sums.least || sums.unit < sums.least).then_some(sums.most);
    job.io_bytes_step = job.io_bytes_max.map(|_| sums.unit);
    job.clones = true;
    job.align_bytes = None;
    if job.duration_s.is_none() && !job.ends_by_count() {
        job.passes = Some(1);
    }
    if job.sources.is_empty() {
        let uri = |file: &Extent| match file.name.contains(':') {
            true => format!("file:{}", file.name),
            false => file.name.clone(),
        };
        job.sources = sums.files.iter().map(uri).collect();
    }
    if job.may_make() && job.file_bytes.is_none() {
        job.file_bytes = sums.files.iter().map(|file| file.end).max();
    }
    Ok(Some(Replay { job, files: sums.files }))
}

impl Sums {
    fn add(&mut self, list: &mut List, recast: &Recast) -> Result<(), Error> {
        let before = self.reads + self.writes;
        let mut numbers: Vec<usize> = Vec::new();
        while let Some(line) = list.next()? {
            let Line::Io(io) = line else { continue };
            let Some(io) = recast.apply(io).filter(|io| io.kind != Kind::Sync) else { continue };
            while numbers.len() <= io.file as usize {
                numbers.push(self.number_of(&list.parser.names()[numbers.len()]));
            }
            let (len, end) = (u64::from(io.len), io.offset + u64::from(io.len));
            let file = &mut self.files[numbers[io.file as usize]];
            if end > file.end {
                (file.end, file.from) = (end, format!("{} line {}", list.path, list.parser.line()));
            }
            self.unit = gcd(gcd(self.unit, io.offset), len);
            if io.kind == Kind::Trim {
                self.writes += 1;
                continue;
            }
            (self.least, self.most) = (self.least.min(len), self.most.max(len));
            *if io.kind == Kind::Read { &mut self.reads } else { &mut self.writes } += 1;
        }
        if self.reads + self.writes == before || self.most == 0 {
            let asked = format!("‹read_iolog› {}", list.path);
            return Err(Error::request(
                asked,
                "has no reads and no writes",
                "a list with I/Os, and less ‹replay_skip›",
            ));
        }
        Ok(())
    }

    /// The file's number among those of all lists. Files without I/Os get none.
    fn number_of(&mut self, name: &str) -> usize {
        if let Some(at) = self.files.iter().position(|file| file.name == name) {
            return at;
        }
        self.files.push(Extent { name: name.into(), end: 0, from: String::new() });
        self.files.len() - 1
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

impl Replay {
    /// Refuses lists that go on behind the end of what they are replayed on.
    pub(crate) fn fits(&self, plans: &[SourcePlan]) -> Result<(), Error> {
        let one = plans.len() == 1;
        if !one && plans.len() != self.files.len() {
            let asked = format!("‹read_iolog› on {}", self.job.sources.join(" "));
            return Err(Error::request(
                asked,
                format!("it is {} files, and all I/Os go to one", plans.len()),
                "a file",
            ));
        }
        for (n, file) in self.files.iter().enumerate() {
            let plan = if one { &plans[0] } else { &plans[n] };
            if file.end > plan.bytes {
                let found = format!(
                    "an I/O ends at {} bytes, and {} has {}",
                    file.end,
                    plan.label,
                    format_bytes(plan.bytes)
                );
                return Err(Error::request(format!("‹read_iolog› {}", file.from), found, "a larger SOURCE"));
            }
        }
        Ok(())
    }
}

/// Next step of a player.
pub(crate) enum Turn {
    Io(Io),
    /// Not yet: it isn't due, or waits for what is in flight.
    Later,
    Ended,
    Broken(Error),
}

/// The list of one worker, as it is played.
pub(crate) struct Player {
    list: List,
    recast: Recast,
    /// Sources of the run, to find files by name; one stands for all.
    sources: Vec<String>,
    /// The target of each file of the list.
    targets: Vec<u32>,
    /// None: times are left out.
    slower: Option<f64>,
    passes: u32,
    next: Option<Io>,
    /// Gaps of lines since the last I/O.
    gap: Duration,
    not_before: Option<Duration>,
    begin: Instant,
    last: Instant,
    /// All before it has to be over first: a sync is under way.
    syncs: bool,
    pass: u32,
    played: u64,
}

impl Player {
    /// The player of worker number `index`; None where the job draws its I/Os.
    pub(crate) fn open(job: &JobSpec, index: u32, now: Instant) -> Result<Option<Box<Player>>, Error> {
        let Some(path) = job.list_of(index) else { return Ok(None) };
        let pct = f64::from(job.replay_time_scale.unwrap_or(100));
        Ok(Some(Box::new(Player {
            list: List::open(path)?,
            recast: recast_of(job)?,
            sources: job.sources.clone(),
            targets: Vec::new(),
            slower: (!job.replay_no_stall).then_some(100.0 / pct),
            passes: job.passes.unwrap_or(u32::MAX),
            next: None,
            gap: Duration::ZERO,
            not_before: None,
            begin: now,
            last: now,
            syncs: false,
            pass: 0,
            played: 0,
        })))
    }

    pub(crate) fn begin(&mut self, at: Instant) {
        (self.begin, self.last) = (at, at);
    }

    /// The next I/O, whose `file` is its target. It stays the next one until `started`.
    pub(crate) fn turn(&mut self, now: Instant, in_flight: u32) -> Turn {
        if self.next.is_none() {
            match self.read() {
                Ok(true) => {}
                Ok(false) => return Turn::Ended,
                Err(why) => return Turn::Broken(why),
            }
        }
        let Some(io) = self.next else { return Turn::Ended };
        if in_flight > 0 && (self.syncs || io.kind == Kind::Sync) || self.due().is_some_and(|due| due > now) {
            return Turn::Later;
        }
        Turn::Io(io)
    }

    pub(crate) fn started(&mut self, now: Instant) {
        self.syncs = self.next.take().is_some_and(|io| io.kind == Kind::Sync);
        (self.last, self.not_before) = (now, None);
        self.played += 1;
    }

    /// When the next I/O may start; None: at once.
    pub(crate) fn due(&self) -> Option<Instant> {
        let slower = self.slower.filter(|_| self.next.is_some())?;
        let gap = self.last + self.gap.mul_f64(slower);
        Some(self.not_before.map_or(gap, |at| gap.max(self.begin + at)))
    }

    /// Reads on up to the next I/O. False behind the last of the last pass.
    fn read(&mut self) -> Result<bool, Error> {
        loop {
            match self.list.next()? {
                Some(Line::Aside) => {}
                Some(Line::Wait { until_ms }) => self.not_before = Some(Duration::from_millis(until_ms)),
                Some(Line::Io(io)) => {
                    if let Some(io) = self.recast.apply(io) {
                        // As in fio, only the gap from the line before counts.
                        self.gap = Duration::from_micros(io.gap_us);
                        self.next = Some(Io { file: self.target_of(io.file)?, ..io });
                        return Ok(true);
                    }
                }
                None => {
                    self.pass += 1;
                    if self.pass >= self.passes {
                        return Ok(false);
                    }
                    if self.played == 0 {
                        return Err(self.changed());
                    }
                    self.list.again()?;
                    self.targets.clear();
                    self.played = 0;
                }
            }
        }
    }

    fn target_of(&mut self, file: u32) -> Result<u32, Error> {
        if self.sources.len() == 1 {
            return Ok(0);
        }
        while self.targets.len() <= file as usize {
            let name = &self.list.parser.names()[self.targets.len()];
            let named = |source: &String| source.strip_prefix("file:").unwrap_or(source) == name;
            // A file without I/Os isn't among the sources.
            self.targets.push(self.sources.iter().position(named).map_or(u32::MAX, |at| at as u32));
        }
        match self.targets[file as usize] {
            u32::MAX => Err(self.changed()),
            target => Ok(target),
        }
    }

    fn changed(&self) -> Error {
        let asked = format!("‹read_iolog› {}", self.list.path);
        Error::run(asked, "has changed since the run began", "the same command again")
    }
}
