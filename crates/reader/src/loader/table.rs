//! Files as one table of samples, and the requests that bring some of them.

use crate::by_cufile::ByCufile;
use crate::devices;
use crate::file::{Reader, Stamp};
use crate::place::{Address, Range};
use crate::request::{changed, Request};
use crate::rows::{append, Ordered};
use crate::{Layout, Opening};
use forebay_io::{CudaEvent, ROW_ELSEWHERE};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::ops::Range as Span;
use std::path::PathBuf;
use std::sync::Arc;

/// Files that are asked for rows by number at a time, where samples of several make up a batch; of more files, each is asked for
/// ranges.
const BY_NUMBER_MAX: usize = 4;
/// Columns begin at a page, so that long ones may be read there directly.
const COLUMN_ALIGN: usize = 4096;

/// A file, or what it has of the table.
#[derive(Clone, Debug)]
pub struct Part {
    /// None: nothing is read, and batches are memory as it is.
    pub path: Option<PathBuf>,
    pub rows: u64,
    /// Where each column of its first row begins.
    pub begins: Vec<u64>,
}

/// Bytes of each row that are read together: `bytes`, `step` behind those of the row before.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub bytes: usize,
    pub step: u64,
}

struct Open {
    reader: Option<Arc<Reader>>,
    /// As it was opened: rows of a file that changed meanwhile would be of two data sets.
    stamp: Option<Stamp>,
    begins: Vec<u64>,
    /// Number of its first row.
    first: u64,
}

impl Open {
    /// Its reader, where the file is as it was opened.
    fn unchanged(&self) -> Result<Option<&Arc<Reader>>, Error> {
        let (Some(reader), Some(stamp)) = (&self.reader, self.stamp) else { return Ok(None) };
        let now = reader.stamp()?;
        if now != stamp {
            return Err(changed(&reader.path.display().to_string(), stamp.bytes, now.bytes));
        }
        if reader.is_replaced(stamp, now) {
            let found = "another file has taken its name since it was opened";
            return Err(Error::run(
                format!("read {}", reader.path.display()),
                found,
                "a new Loader of the files as they are",
            ));
        }
        Ok(Some(reader))
    }
}

pub(super) struct Table {
    files: Vec<Open>,
    columns: Vec<Column>,
    rows: u64,
}

impl Table {
    pub(super) fn open(parts: Vec<Part>, columns: Vec<Column>, opening: Opening) -> Result<Table, Error> {
        let mut table = Table { files: Vec::with_capacity(parts.len()), columns, rows: 0 };
        // Of a file whose rows lie in several places each place is a part.
        let mut before: Option<(PathBuf, Arc<Reader>)> = None;
        for part in parts.into_iter().filter(|part| part.rows > 0) {
            let reader = match (&part.path, before.take()) {
                (Some(path), Some((opened, reader))) if *path == opened => Some(reader),
                (Some(path), _) => Some(Arc::new(Reader::open(path, opening)?)),
                (None, _) => None,
            };
            before = part.path.clone().zip(reader.clone());
            if let Some(reader) = &reader {
                table.check(&part, reader)?;
            }
            let stamp = reader.as_ref().map(|reader| reader.stamp()).transpose()?;
            table.files.push(Open { reader, stamp, begins: part.begins, first: table.rows });
            table.rows += part.rows;
        }
        if table.rows == 0 {
            return Err(Error::request(
                "a Loader",
                "the files have no sample",
                "files with at least one whole row",
            ));
        }
        Ok(table)
    }

    /// The last row of each column lies in the file.
    fn check(&self, part: &Part, reader: &Reader) -> Result<(), Error> {
        let bytes = reader.bytes()?;
        for (column, begin) in self.columns.iter().zip(&part.begins) {
            let layout = Layout { start: *begin, step: column.step, row_bytes: column.bytes };
            if layout.end(part.rows - 1).is_none_or(|end| end > bytes) {
                return Err(layout.outside(part.rows - 1, &reader.path, bytes));
            }
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Its rows lie in one file and are read whole.
    pub(super) fn is_for_gpu(&self) -> bool {
        self.files.len() == 1 && self.columns.len() == 1 && self.files[0].reader.is_some()
    }

    /// The one file and the layout of its rows, where there is one.
    ///
    /// # Errors
    /// `Run`: it changed.
    pub(super) fn alone(&self) -> Result<Option<(&Arc<Reader>, Layout)>, Error> {
        let ([file], [column]) = (&self.files[..], &self.columns[..]) else { return Ok(None) };
        let layout = Layout { start: file.begins[0], step: column.step, row_bytes: column.bytes };
        Ok(file.unchanged()?.map(|reader| (reader, layout)))
    }

    /// Has all files read through cuFile into the memory of this GPU.
    pub(super) fn read_through_cufile(&self, gpu: u32) -> Result<Arc<ByCufile>, Error> {
        let cufile = ByCufile::open(&devices::device(gpu)?)?;
        self.files().try_for_each(|reader| reader.read_through(&cufile))?;
        cufile.begin();
        Ok(cufile)
    }

    /// Each file once.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Reader>> {
        let mut before: Option<&Arc<Reader>> = None;
        let readers = self.files.iter().filter_map(|file| file.reader.as_ref());
        readers.filter(move |reader| before.replace(*reader).is_none_or(|b| !Arc::ptr_eq(b, *reader)))
    }

    /// Block devices below the files.
    pub(super) fn devices(&self) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = self.files().filter_map(|reader| reader.device()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Bytes of a sample that are read.
    pub(super) fn sample_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.bytes as u64).sum()
    }

    /// Where each column begins in a slot of so many rows.
    pub(super) fn begins(&self, rows: u64) -> Vec<usize> {
        let mut at = 0;
        let begin = |column: &Column| {
            let begin = at;
            at = (at + column.bytes * rows as usize).next_multiple_of(COLUMN_ALIGN);
            begin
        };
        self.columns.iter().map(begin).collect()
    }

    pub(super) fn slot_bytes(&self, rows: u64) -> Result<usize, Error> {
        let bytes = |column: &Column| {
            usize::try_from(rows).ok()?.checked_mul(column.bytes)?.checked_next_multiple_of(COLUMN_ALIGN)
        };
        let all = self.columns.iter().try_fold(0usize, |sum, column| sum.checked_add(bytes(column)?));
        all.filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| {
            let found = format!("{} bytes each are more than an address space", self.sample_bytes());
            Error::request(format!("batch_size={rows}"), found, "a smaller batch_size")
        })
    }

    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Every row is of a file.
    pub(super) fn all_are_files(&self) -> bool {
        self.files.iter().all(|file| file.reader.is_some())
    }

    /// Columns that are parts of the same rows, together; each by itself where its rows touch. None where they lie otherwise.
    pub(super) fn groups(&self) -> Vec<Span<usize>> {
        let all = 0..self.columns.len();
        if self.columns.iter().all(|column| column.step == column.bytes as u64) {
            return all.map(|index| index..index + 1).collect();
        }
        let step = self.columns[0].step;
        let is_a_row = |file: &Open| {
            let ends =
                file.begins.iter().zip(&self.columns).map(|(begin, column)| begin + column.bytes as u64);
            let (first, end) = (file.begins.iter().min(), ends.max());
            first.zip(end).is_some_and(|(first, end)| end - first <= step)
        };
        let alike = self.columns.iter().all(|column| column.step == step) && self.files.iter().all(is_a_row);
        if alike {
            vec![all]
        } else {
            Vec::new()
        }
    }

    /// What each file has of consecutive samples: the file, its rows, and their samples.
    pub(super) fn pieces(
        &self,
        samples: Span<u64>,
    ) -> impl Iterator<Item = (usize, Span<u64>, Span<u64>)> + '_ {
        let mut first = samples.start;
        std::iter::from_fn(move || {
            let (file, row) = (first < samples.end).then(|| self.locate(first))?;
            let end = self.files.get(file + 1).map_or(self.rows, |next| next.first).min(samples.end);
            let piece = (file, row..row + (end - first), first..end);
            first = end;
            Some(piece)
        })
    }

    /// Bytes of a file from the first to the last that these columns have of these rows, and where each column begins.
    pub(super) fn extent(&self, file: usize, group: &Span<usize>, rows: &Span<u64>) -> (Span<u64>, Vec<u64>) {
        let layout = |index: usize| {
            let Column { bytes, step } = self.columns[index];
            Layout { start: self.files[file].begins[index], step, row_bytes: bytes }
        };
        let firsts: Vec<u64> = group.clone().map(|index| layout(index).offset(rows.start)).collect();
        let end = group.clone().map(|i| layout(i).offset(rows.end - 1) + self.columns[i].bytes as u64).max();
        let first = firsts.iter().min().copied().unwrap_or(0);
        (first..end.unwrap_or(first), firsts)
    }

    /// The file, as it was opened.
    ///
    /// # Errors
    /// `Run`: it changed.
    pub(super) fn unchanged(&self, file: usize) -> Result<&Arc<Reader>, Error> {
        Ok(self.files[file].unchanged()?.expect("asked of files alone"))
    }

    pub(super) fn close(&mut self) {
        for file in self.files.drain(..) {
            if let Some(reader) = file.reader {
                reader.close();
            }
        }
    }

    /// As `request`, for samples of one file, whose numbers are computed by whoever brings them. False where there are several
    /// files, or nothing to be read.
    pub(super) fn request_ordered(
        &self,
        of: &Ordered,
        places: &[Address],
        workers: usize,
        after: impl Fn() -> Vec<CudaEvent>,
        mut begin: impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let [file] = &self.files[..] else { return Ok(false) };
        let Some(reader) = file.unchanged()? else { return Ok(false) };
        if of.count == 0 {
            return Ok(false);
        }
        for ((column, start), place) in self.columns.iter().zip(&file.begins).zip(places) {
            let layout = Layout { start: *start, step: column.step, row_bytes: column.bytes };
            begin(Request::of_order(reader, of, layout, *place, after(), workers)?)?;
        }
        Ok(true)
    }

    /// Hands over requests that bring these samples to the columns' places, each cut for so many `workers`. `together`: they are
    /// consecutive.
    pub(super) fn request(
        &self,
        samples: &[u64],
        together: bool,
        places: &[Address],
        workers: usize,
        after: impl Fn() -> Vec<CudaEvent>,
        mut begin: impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if samples.is_empty() {
            return Ok(());
        }
        for (index, (column, place)) in self.columns.iter().zip(places).enumerate() {
            let each = |file: usize| Layout {
                start: self.files[file].begins[index],
                step: column.step,
                row_bytes: column.bytes,
            };
            if together && column.step == column.bytes as u64 {
                self.request_run(samples, each, *place, workers, &after, &mut begin)?;
            } else {
                self.request_rows(samples, each, *place, workers, &after, &mut begin)?;
            }
        }
        Ok(())
    }

    /// Share of a sample's first column that the page cache holds; None if the system won't tell.
    pub(super) fn cached_share_of(&self, sample: u64) -> Option<f64> {
        let (file, row) = self.locate(sample);
        let (file, column) = (&self.files[file], self.columns.first()?);
        let at = file.begins[0] + row * column.step;
        file.reader.as_ref()?.cached_share(at, column.bytes)
    }

    /// Requests that bring the samples of several batches to their columns' places, in the order in which they lie in the files.
    pub(super) fn request_together<'a>(
        &self,
        batches: impl Iterator<Item = (&'a [u64], Vec<Address>)>,
        workers: usize,
        mut begin: impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut of_files: BTreeMap<usize, Vec<Range>> = BTreeMap::new();
        for (samples, places) in batches {
            for (index, (column, place)) in self.columns.iter().zip(places).enumerate() {
                for (i, sample) in samples.iter().enumerate() {
                    let (file, row) = self.locate(*sample);
                    let start = self.files[file].begins[index];
                    let layout = Layout { start, step: column.step, row_bytes: column.bytes };
                    append(of_files.entry(file).or_default(), layout.range(i, row, place));
                }
            }
        }
        for (file, mut apart) in of_files {
            apart.sort_unstable_by_key(|range| range.offset);
            let mut ranges = Vec::with_capacity(apart.len());
            apart.into_iter().for_each(|range| append(&mut ranges, range));
            if let Some(reader) = self.files[file].unchanged()? {
                begin(Request::of_many(reader, &ranges, workers)?)?;
            }
        }
        Ok(())
    }

    /// Consecutive samples, that touch: a range of each file.
    fn request_run(
        &self,
        samples: &[u64],
        each: impl Fn(usize) -> Layout,
        place: Address,
        workers: usize,
        after: &impl Fn() -> Vec<CudaEvent>,
        begin: &mut impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < samples.len() {
            let (file, row) = self.locate(samples[done]);
            let end = self.files.get(file + 1).map_or(self.rows, |next| next.first);
            let rows = ((end - samples[done]) as usize).min(samples.len() - done);
            let layout = each(file);
            let bytes = rows * layout.row_bytes;
            let range = Range {
                file: 0,
                offset: layout.offset(row),
                bytes,
                to: place.after(done * layout.row_bytes),
            };
            if let Some(reader) = self.files[file].unchanged()? {
                begin(match place.gpu() {
                    Some(_) => Request::of_file(reader, &[range], after(), workers)?,
                    None => Request::of_many(reader, &[range], workers)?,
                })?;
            }
            done += rows;
        }
        Ok(())
    }

    fn request_rows(
        &self,
        samples: &[u64],
        each: impl Fn(usize) -> Layout,
        place: Address,
        workers: usize,
        after: &impl Fn() -> Vec<CudaEvent>,
        begin: &mut impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.files.len() == 1 {
            let numbers = samples.to_vec();
            let Some(reader) = self.files[0].unchanged()? else { return Ok(()) };
            return begin(Request::of_rows(reader, numbers, each(0), place, after(), workers)?);
        }
        let located: Vec<(usize, u64)> = samples.iter().map(|sample| self.locate(*sample)).collect();
        let mut used: Vec<usize> = located.iter().map(|(file, _)| *file).collect();
        used.sort_unstable();
        used.dedup();
        if used.len() <= BY_NUMBER_MAX {
            for file in used {
                let number = |(of, row): &(usize, u64)| if *of == file { *row } else { ROW_ELSEWHERE };
                let numbers: Vec<u64> = located.iter().map(number).collect();
                if let Some(reader) = self.files[file].unchanged()? {
                    begin(Request::of_rows(reader, numbers, each(file), place, after(), workers)?)?;
                }
            }
            return Ok(());
        }
        let mut ranges: Vec<Vec<Range>> = vec![Vec::new(); used.len()];
        for (i, (file, row)) in located.iter().enumerate() {
            let at = used.binary_search(file).expect("it is used");
            let layout = each(*file);
            append(&mut ranges[at], layout.range(i, *row, place));
        }
        for (file, ranges) in used.iter().zip(ranges) {
            if let Some(reader) = self.files[*file].unchanged()? {
                begin(Request::of_file(reader, &ranges, after(), workers)?)?;
            }
        }
        Ok(())
    }

    /// The file of a sample, and its row there.
    fn locate(&self, sample: u64) -> (usize, u64) {
        let file = self.files.partition_point(|file| file.first <= sample) - 1;
        (file, sample - self.files[file].first)
    }
}
