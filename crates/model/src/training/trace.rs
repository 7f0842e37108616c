//! Order in which each accelerator takes its samples: a pure function of the spec and of the number of files. A run
//! and a simulation play the same trace.
//!
//! The two loaders follow what MLPerf Storage's tool does with `torch.utils.data` and
//! `tf.data`:
//!
//! - **PyTorch** numbers all samples file by file and gives each rank a range of equal
//!   length. By v1.0 the whole data set is shuffled before it is cut; later editions cut
//!   first, so that a rank reads the same files in every epoch, and shuffle inside.
//!   What is shuffled is files; single samples only where a format has an index of them.
//! - **TensorFlow** deals files to ranks in turn. A rank reads `read_threads` of its files
//!   side by side, a record from each in turn, and then the next ones. A rank that got
//!   a file less than others begins again where it needs to. With fewer files than ranks,
//!   every rank goes through all files and takes each `ranks`-th record.
//!
//! The tool's second version loses the shuffle that its workloads ask for: there it reads in
//! order. A shuffle makes storage's work harder, never easier, so it is kept here.

use super::spec::{EmulateSpec, Loader, RuleSet, Workload};
use crate::pattern::permutation::Permutation;
use crate::random::derive;
use crate::Error;

/// Samples that one accelerator takes from one file, in file order.
///
/// Its j-th sample is record `first + j * every` of the file, and the accelerator's sample number
/// `position + j * stride` of the epoch, so it belongs to batch `(position + j * stride) / batch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub file: u32,
    pub first: u32,
    /// Records between two that count; 1 unless there are fewer files than ranks.
    pub every: u32,
    /// Records that count, at least 1.
    pub samples: u32,
    pub position: u64,
    pub stride: u32,
}

/// The order of a run's samples.
#[derive(Clone, Debug)]
pub struct Trace {
    loader: Loader,
    files: u32,
    ranks: u32,
    batch: u32,
    samples_per_file: u32,
    /// Samples that stay together: those of a file, unless the format gives each its place.
    unit: u32,
    /// Files that a TensorFlow rank reads side by side.
    side_by_side: u32,
    steps: u32,
    shuffle: Shuffle,
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shuffle {
    None,
    /// All files (or samples) of the data set; then each rank takes its share.
    Whole,
    /// Each rank's share.
    Share,
}

impl Trace {
    /// The trace of `spec` over `files` files. Refuses a data set that gives no rank a full batch.
    pub fn new(spec: &EmulateSpec, files: u32) -> Result<Trace, Error> {
        let workload = &spec.workload;
        let samples = u64::from(files) * u64::from(workload.samples_per_file);
        let steps = samples / u64::from(workload.batch) / u64::from(spec.ranks);
        let steps = steps.min(u64::from(spec.steps_max.unwrap_or(u32::MAX))) as u32;
        let trace = Trace {
            loader: workload.loader,
            files,
            ranks: spec.ranks,
            batch: workload.batch,
            samples_per_file: workload.samples_per_file,
            unit: unit_of(workload),
            side_by_side: spec.read_threads.max(1),
            steps,
            shuffle: shuffle_of(spec.rules, workload),
            seed: spec.seed,
        };
        if steps == 0 || (trace.loader == Loader::TensorFlow && trace.full(spec.ranks - 1) == 0) {
            let needed = trace.files_needed();
            return Err(Error::request(
                format!("--accelerators {} with {files} files", spec.ranks),
                format!(
                    "an accelerator would get less than a batch: {} samples of {} per file",
                    trace.batch, trace.samples_per_file
                ),
                format!("{needed} files or more (forebay emulate datasize), or fewer accelerators"),
            ));
        }
        Ok(trace)
    }

    /// Steps of an epoch, the same for every rank. A last batch that isn't full is dropped.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Samples that each rank takes in an epoch.
    pub fn samples_per_rank(&self) -> u64 {
        u64::from(self.steps) * u64::from(self.batch)
    }

    /// Returns the samples of `rank` of all ranks in `epoch` (from 0), by position. Takes no memory that grows with
    /// the data.
    pub fn streams(&self, epoch: u32, rank: u32) -> Streams {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let part = match self.loader {
            Loader::PyTorch => Part::Range(self.range(epoch, rank)),
            Loader::TensorFlow => Part::Dealt(self.dealt(epoch, rank)),
        };
        Streams { trace: self.clone(), rank, part, left: self.samples_per_rank() }
    }

    fn files_needed(&self) -> u64 {
        let batches = u64::from(self.batch) * u64::from(self.ranks);
        let files = batches.div_ceil(u64::from(self.samples_per_file));
        match self.loader {
            Loader::PyTorch => files,
            // A whole number of files for each rank, once there are as many files as ranks.
            Loader::TensorFlow if files > u64::from(self.ranks) => {
                files.next_multiple_of(u64::from(self.ranks))
            }
            Loader::TensorFlow => files,
        }
    }

    fn permutation(&self, count: u64, epoch: u32, stream: u64) -> Option<Permutation> {
        (self.shuffle != Shuffle::None && count > 0)
            .then(|| Permutation::new(count, derive(derive(self.seed, u64::from(epoch)), stream)))
    }

    fn range(&self, epoch: u32, rank: u32) -> Range {
        let total = u64::from(self.files) * u64::from(self.samples_per_file);
        let share = total / u64::from(self.ranks);
        let start = u64::from(rank) * share;
        let unit = u64::from(self.unit);
        let first_unit = start / unit;
        let units = (start + share).div_ceil(unit) - first_unit;
        let order = match self.shuffle {
            Shuffle::None => None,
            Shuffle::Whole => self.permutation(total / unit, epoch, 0),
            Shuffle::Share => self.permutation(units, epoch, 1 + u64::from(rank)),
        };
        Range { start, end: start + share, first_unit, units, order, next: 0, position: 0 }
    }

    fn dealt(&self, epoch: u32, rank: u32) -> Dealt {
        // All ranks shuffle alike, or two of them could be dealt the same file.
        let order = self.permutation(u64::from(self.files), epoch, 0);
        let group = Vec::new();
        Dealt { order, pass: 0, next: 0, files: self.files_of(rank), full: self.full(rank), group }
    }

    fn sharded_by_record(&self) -> bool {
        self.files < self.ranks
    }

    /// Files that a TensorFlow rank goes through.
    fn files_of(&self, rank: u32) -> u32 {
        if self.sharded_by_record() {
            self.files
        } else {
            (self.files - rank).div_ceil(self.ranks)
        }
    }

    /// Samples in full batches that a TensorFlow rank gets when it has gone through its files once.
    fn full(&self, rank: u32) -> u64 {
        let through = u64::from(self.files_of(rank)) * u64::from(self.samples_per_file);
        let own = if self.sharded_by_record() {
            through.saturating_sub(u64::from(rank)).div_ceil(u64::from(self.ranks))
        } else {
            through
        };
        own - own % u64::from(self.batch)
    }
}

fn unit_of(workload: &Workload) -> u32 {
    if workload.sample_shuffle && workload.format.ends_with("indexed_binary") {
        1
    } else {
        workload.samples_per_file
    }
}

fn shuffle_of(rules: RuleSet, workload: &Workload) -> Shuffle {
    let asked = workload.file_shuffle || workload.sample_shuffle;
    match (workload.loader, rules) {
        // v1.0 lists TensorFlow's files in random order, asked or not.
        (Loader::TensorFlow, RuleSet::V10) => Shuffle::Whole,
        _ if !asked => Shuffle::None,
        (Loader::TensorFlow, _) | (Loader::PyTorch, RuleSet::V10) => Shuffle::Whole,
        (Loader::PyTorch, _) => Shuffle::Share,
    }
}

/// An iterator over a rank's streams of an epoch.
#[derive(Clone, Debug)]
pub struct Streams {
    trace: Trace,
    rank: u32,
    part: Part,
    /// Samples not yet handed out.
    left: u64,
}

#[derive(Clone, Debug)]
enum Part {
    Range(Range),
    Dealt(Dealt),
}

/// A PyTorch rank's range of samples, cut where units end.
#[derive(Clone, Debug)]
struct Range {
    start: u64,
    end: u64,
    first_unit: u64,
    units: u64,
    order: Option<Permutation>,
    next: u64,
    position: u64,
}

/// A TensorFlow rank's files.
#[derive(Clone, Debug)]
struct Dealt {
    order: Option<Permutation>,
    /// Times that the rank has gone through its files.
    pass: u64,
    /// Next of the rank's files.
    next: u32,
    files: u32,
    full: u64,
    /// Streams that are read side by side and not yet handed out, the last by position first.
    group: Vec<Stream>,
}

impl Iterator for Streams {
    type Item = Stream;

    fn next(&mut self) -> Option<Stream> {
        if self.left == 0 {
            return None;
        }
        let stream = match &mut self.part {
            Part::Range(range) => range.next(&self.trace, self.left)?,
            Part::Dealt(dealt) => dealt.next(&self.trace, self.rank),
        };
        self.left -= u64::from(stream.samples);
        Some(stream)
    }
}

impl Range {
    fn next(&mut self, trace: &Trace, left: u64) -> Option<Stream> {
        if self.next == self.units {
            return None;
        }
        let unit_samples = u64::from(trace.unit);
        // Where in the sequence this unit lies, and which samples of the data set stand there.
        let (place, unit) = match (&self.order, trace.shuffle) {
            (Some(order), Shuffle::Share) => {
                let place = self.first_unit + order.at(self.next);
                (place, place)
            }
            (Some(order), _) => (self.first_unit + self.next, order.at(self.first_unit + self.next)),
            (None, _) => (self.first_unit + self.next, self.first_unit + self.next),
        };
        self.next += 1;
        let from = self.start.max(place * unit_samples) - place * unit_samples;
        let to = self.end.min((place + 1) * unit_samples) - place * unit_samples;
        let sample = unit * unit_samples + from;
        let samples = (to - from).min(left);
        let stream = Stream {
            file: (sample / u64::from(trace.samples_per_file)) as u32,
            first: (sample % u64::from(trace.samples_per_file)) as u32,
            every: 1,
            samples: samples as u32,
            position: self.position,
            stride: 1,
        };
        self.position += samples;
        Some(stream)
    }
}

impl Dealt {
    /// Returns the next stream, which there always is: the caller stops at the end of the epoch.
    fn next(&mut self, trace: &Trace, rank: u32) -> Stream {
        loop {
            if let Some(stream) = self.group.pop() {
                return stream;
            }
            if self.next == self.files {
                self.next = 0;
                self.pass += 1;
            }
            let end = self.files.min(self.next.saturating_add(trace.side_by_side));
            self.group = (self.next..end).filter_map(|index| self.stream(trace, rank, index, end)).collect();
            self.group.sort_unstable_by_key(|stream| std::cmp::Reverse(stream.position));
            self.next = end;
        }
    }

    /// The rank's file number `index`, in the group that ends before `end`. None where nothing of it counts.
    fn stream(&self, trace: &Trace, rank: u32, index: u32, end: u32) -> Option<Stream> {
        let side_by_side = end - self.next;
        let per_file = trace.samples_per_file;
        let by_record = trace.sharded_by_record();
        let place = if by_record { index } else { rank + index * trace.ranks };
        let file = self.order.as_ref().map_or(place, |order| order.at(u64::from(place)) as u32);
        // Where the file's first record comes among all records that the rank goes through.
        let begin = u64::from(self.next) * u64::from(per_file) + u64::from(index - self.next);
        let (first, every) = match by_record {
            true => residue(begin, side_by_side, rank, trace.ranks)?,
            false => (0, 1),
        };
        let records = per_file.checked_sub(first)?.div_ceil(every);
        let mut begin = begin + u64::from(first) * u64::from(side_by_side);
        let mut stride = u64::from(side_by_side) * u64::from(every);
        if by_record {
            begin = (begin - u64::from(rank)) / u64::from(trace.ranks);
            stride /= u64::from(trace.ranks);
        }
        let most = self.full.min(trace.samples_per_rank() - self.pass * self.full);
        let samples = u64::from(records).min(most.saturating_sub(begin).div_ceil(stride)) as u32;
        let position = self.pass * self.full + begin;
        (samples > 0).then_some(Stream { file, first, every, samples, position, stride: stride as u32 })
    }
}

/// The least j with `begin + j * step` = `rank` modulo `ranks`, and the distance to the next such j.
fn residue(begin: u64, step: u32, rank: u32, ranks: u32) -> Option<(u32, u32)> {
    let every = ranks / gcd(step, ranks);
    let ranks = u64::from(ranks);
    (0..every)
        .find(|j| (begin + u64::from(*j) * u64::from(step)) % ranks == u64::from(rank))
        .map(|first| (first, every))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(loader: Loader, samples_per_file: u32, batch: u32, ranks: u32, threads: u32) -> EmulateSpec {
        let workload = Workload {
            name: "w".into(),
            loader,
            format: "npz".into(),
            batch,
            record_bytes: 100.0,
            samples_per_file,
            ..Workload::default()
        };
        let data = vec!["/d".into()];
        EmulateSpec {
            workload,
            data,
            accelerators: ranks,
            ranks,
            read_threads: threads,
            ..EmulateSpec::default()
        }
    }

    fn streams(spec: &EmulateSpec, files: u32, rank: u32) -> Vec<Stream> {
        Trace::new(spec, files).unwrap().streams(0, rank).collect()
    }

    #[test]
    fn pytorch_ranks_take_ranges_in_order_where_nothing_is_shuffled() {
        let spec = spec(Loader::PyTorch, 4, 3, 2, 1);
        // 12 samples: 6 each, two batches of 3. The range of each begins or ends inside the second file.
        let of =
            |file, first, samples, position| Stream { file, first, every: 1, samples, position, stride: 1 };
        assert_eq!(streams(&spec, 3, 0), [of(0, 0, 4, 0), of(1, 0, 2, 4)]);
        assert_eq!(streams(&spec, 3, 1), [of(1, 2, 2, 0), of(2, 0, 4, 2)]);
    }

    #[test]
    fn tensorflow_reads_files_side_by_side() {
        let spec = spec(Loader::TensorFlow, 3, 2, 2, 2);
        let of =
            |file, samples, position, stride| Stream { file, first: 0, every: 1, samples, position, stride };
        // Rank 0 has files 0, 2, 4, 6: 0 and 2 side by side, then 4 and 6.
        assert_eq!(streams(&spec, 8, 0), [of(0, 3, 0, 2), of(2, 3, 1, 2), of(4, 3, 6, 2), of(6, 3, 7, 2)]);
        // 7 files: floor(21 / 2 / 2) = 5 steps. Rank 1 has 3 of them, and only 4 full batches: it begins again.
        assert_eq!(
            streams(&spec, 7, 1),
            [of(1, 3, 0, 2), of(3, 3, 1, 2), of(5, 2, 6, 1), of(1, 1, 8, 2), of(3, 1, 9, 2)]
        );
    }

    #[test]
    fn fewer_files_than_ranks_share_records() {
        let spec = spec(Loader::TensorFlow, 8, 1, 4, 2);
        // Records in turn: f0r0 f1r0 f0r1 f1r1 …; rank 3 takes numbers 3, 7, 11, 15, which are odd records of file 1.
        let expected = Stream { file: 1, first: 1, every: 2, samples: 4, position: 0, stride: 1 };
        assert_eq!(streams(&spec, 2, 3), [expected]);
    }

    #[test]
    fn the_numbers_of_the_published_workloads() {
        let unet3d = Trace::new(&spec(Loader::PyTorch, 1, 7, 1, 4), 168).unwrap();
        assert_eq!((unet3d.steps(), unet3d.samples_per_rank()), (24, 168));
        assert_eq!(Trace::new(&spec(Loader::TensorFlow, 1251, 400, 8, 8), 1024).unwrap().steps(), 400);
        let capped = EmulateSpec { steps_max: Some(50), ..spec(Loader::TensorFlow, 1, 1, 1, 4) };
        assert_eq!(Trace::new(&capped, 524_288).unwrap().steps(), 50);
    }

    #[test]
    fn too_few_files_are_refused_with_how_many_it_takes() {
        let error = Trace::new(&spec(Loader::PyTorch, 1, 7, 4, 4), 20).unwrap_err();
        assert!(error.next.starts_with("28 files"), "{error}");
        assert!(Trace::new(&spec(Loader::PyTorch, 1, 7, 4, 4), 28).is_ok());
        assert!(Trace::new(&spec(Loader::PyTorch, 1, 7, 4, 4), 0).is_err());
        // 3 files of 2 for batches of 3 on 2 ranks: one step by the formula, but the second rank has one file.
        let error = Trace::new(&spec(Loader::TensorFlow, 2, 3, 2, 4), 3).unwrap_err();
        assert!(error.next.starts_with("4 files"), "{error}");
        assert!(Trace::new(&spec(Loader::TensorFlow, 2, 3, 2, 4), 4).is_ok());
    }
}
