//! Request of `emulate datagen`, and the files that it comes to: DLIO's names, DLIO's sizes.

use crate::format::write::{Column, FileShape, WriteSpec, Writer, PAGE_BYTES_MAX};
use crate::format::{self, FormatRow};
use forebay_model::request::Kind::*;
use forebay_model::request::{check_bounds, flag, switch};
use forebay_model::wording::named;
use forebay_model::Error;

const FILES_MAX: u32 = 1 << 26;
const WORKERS_MAX: u32 = 1024;
const IO_BYTES_MAX: u64 = 64 << 20;
/// O_DIRECT wants whole blocks.
const IO_BYTES_STEP: u64 = 4096;
const SUBFOLDERS_MAX: u32 = 1 << 20;

forebay_model::request! {
    /// A data set to be made. Lengths are bytes.
    pub struct DatagenSpec;
    /// A folder, or the URI of a source that takes the files one after another.
    data: String = String::new(),
        flag("data", Text, "DIR|URI", "A folder (created if missing), or a source to write the files to.").needed();
    /// Name of the workload that it is for; kept in the manifest.
    workload: String = String::new();
    /// Name of a row of `FORMATS`.
    format: String = String::new();
    files: u32 = 0,
        flag("files", Integer, "N",
            "Number of files. Default: the workload's; see forebay emulate datasize for what the rules require.")
            .within(1.0, FILES_MAX as f64, "is not between 1 and 67,108,864", "8");
    samples_per_file: u32 = 0;
    /// Both sides of a sample, file by file, as DLIO draws them; one pair stands for all files.
    dimensions: Vec<[u32; 2]> = Vec::new();
    /// Side of a record's nominal mean.
    dimension: u32 = 0;
    /// Nominal mean and standard deviation of a sample; kept in the manifest.
    record_bytes: f64 = 0.0;
    record_bytes_stdev: f64 = 0.0;
    /// Columns of Parquet, and samples in a row group; 0: all of a file's.
    columns: Vec<Column> = Vec::new();
    row_group: u32 = 0;
    /// Seed of the content.
    seed: u64 = 0,
        flag("seed", Seed, "N", "Seed for the content. File sizes don't depend on it.");
    /// Folders that the files are dealt out to; 0 or 1: none.
    subfolders: u32 = 0,
        flag("subfolders", Integer, "N", "Distribute the files over N folders. Default: a DLIO file's, else none.")
            .within(0.0, SUBFOLDERS_MAX as f64, "is not between 0 and 1,048,576", "10");
    prefix: String = "img".into();
    /// Threads; None: twice the processors, at least 4.
    workers: Option<u32> = None,
        flag("workers", Integer, "N", "Threads. Default: twice the number of CPUs, at least 4.")
            .within(1.0, WORKERS_MAX as f64, "is not between 1 and 1,024", "8");
    io_bytes: u64 = 1 << 20,
        flag("io-size", Size, "SIZE", "Bytes per write, a multiple of 4096. Default: 1m.")
            .within(IO_BYTES_STEP as f64, IO_BYTES_MAX as f64, "is not between 4k and 64m", "1m");
    /// Reads everything back and checks it.
    check: bool = false,
        switch("check", "Read everything back, and check framing and checksums.");
    /// Says what would be made, and makes nothing.
    dry_run: bool = false,
        switch("dry-run", "Show what would be created, and create nothing.");
    /// Devices, namespaces and files whose content may be lost.
    overwrite: Vec<String> = Vec::new(),
        flag("overwrite-device", Words, "NAME", "A device, namespace or file whose content may be lost.");
}

impl DatagenSpec {
    pub fn from_json(text: &str) -> Result<DatagenSpec, Error> {
        let spec: DatagenSpec = serde_json::from_str(text).map_err(|e| {
            Error::request("the data set's settings", e.to_string(), "forebay emulate datagen --help")
        })?;
        spec.check()?;
        Ok(spec)
    }

    pub fn check(&self) -> Result<(), Error> {
        self.row()?;
        check_bounds(Self::FIELDS, self, named)?;
        if self.samples_per_file == 0 {
            return Err(Error::request("samples per file 0", "must be 1 or more", "samples_per_file = 1"));
        }
        if self.io_bytes % IO_BYTES_STEP != 0 {
            let asked = format!("‹io_bytes› {}", self.io_bytes);
            return Err(Error::request(asked, "is not a multiple of 4096", "‹io_bytes› 1m"));
        }
        let given = self.dimensions.len();
        if given != 1 && given != self.files as usize {
            let found = format!("{given} dimensions were given for {} files", self.files);
            return Err(Error::request("the data set's settings", found, "one for each file, or one"));
        }
        if self.dimensions.iter().flatten().any(|side| *side == 0) {
            return Err(Error::request("the data set's settings", "a sample without bytes", "1 or more"));
        }
        if self.prefix.is_empty() || self.prefix.contains(['/', '\0']) || self.prefix.starts_with('.') {
            let asked = format!("--prefix {}", self.prefix);
            return Err(Error::request(asked, "can't be the beginning of a file name", "--prefix img"));
        }
        if matches!(self.format.as_str(), "jpeg" | "png") && self.samples_per_file != 1 {
            let asked = format!("{} samples in a {} file", self.samples_per_file, self.format);
            return Err(Error::request(asked, "an image is one sample", "samples_per_file = 1"));
        }
        self.check_columns()?;
        let total = self.total_bytes()?;
        if total > i64::MAX as u64 {
            return Err(Error::request("the data set", "is longer than 2^63 bytes", "fewer ‹files›"));
        }
        Ok(())
    }

    /// A page of Parquet is a column of a row group.
    fn check_columns(&self) -> Result<(), Error> {
        if self.format != "parquet" {
            return Ok(());
        }
        let rows = if self.row_group == 0 {
            self.samples_per_file
        } else {
            self.row_group.min(self.samples_per_file)
        };
        let refused = |name: &str, found: String, next: &str| {
            Err(Error::request(format!("column {name} of the data set"), found, next))
        };
        for column in &self.columns {
            let Some(bytes) = column.value_bytes() else {
                return refused(
                    &column.name,
                    format!("type {} is not known", column.kind),
                    "float32, int64, uint8",
                );
            };
            let page = u128::from(bytes) * u128::from(column.values) * u128::from(rows);
            if page > u128::from(PAGE_BYTES_MAX) || page == 0 {
                let found = format!("a page of it would have {page} bytes, and 1 to {PAGE_BYTES_MAX} can be");
                return refused(&column.name, found, "a smaller row_group");
            }
        }
        let largest = self.dimensions.iter().map(|[a, b]| u128::from(*a) * u128::from(*b)).max().unwrap_or(0);
        if self.columns.is_empty() && largest * u128::from(rows) > u128::from(PAGE_BYTES_MAX) {
            return refused("data", "its pages would be longer than 2 GiB".into(), "a smaller row_group");
        }
        Ok(())
    }

    pub fn row(&self) -> Result<&'static FormatRow, Error> {
        format::row(&self.format).ok_or_else(|| {
            let known: Vec<&str> = format::FORMATS.iter().map(|row| row.name).collect();
            Error::request(format!("format {}", self.format), "is not known", known.join(", "))
        })
    }

    /// The writer of files, one for each thread.
    pub fn writer(&self) -> Result<Writer, Error> {
        let spec = WriteSpec {
            seed: self.seed,
            samples_per_file: self.samples_per_file,
            dimension: self.dimension,
            columns: self.columns.clone(),
            row_group: self.row_group,
        };
        Ok(Writer::new((self.row()?.layout)(&spec), self.seed))
    }

    pub fn shape(&self, number: u32) -> FileShape {
        let at = if self.dimensions.len() == 1 { 0 } else { number as usize };
        let [rows, columns] = self.dimensions[at];
        FileShape { number, rows, columns }
    }

    /// Length of each file.
    pub fn file_bytes(&self) -> Result<Vec<u64>, Error> {
        let writer = self.writer()?;
        if self.dimensions.len() == 1 {
            return Ok(vec![writer.file_bytes(self.shape(0)); self.files as usize]);
        }
        Ok((0..self.files).map(|number| writer.file_bytes(self.shape(number))).collect())
    }

    fn total_bytes(&self) -> Result<u64, Error> {
        // Before any format multiplies them in 64 bits.
        let largest = self.dimensions.iter().map(|[a, b]| u128::from(*a) * u128::from(*b)).max().unwrap_or(0);
        if largest * u128::from(self.samples_per_file) > 1 << 62 {
            return Err(Error::request(
                "the data set",
                "has a file longer than 2^62 bytes",
                "smaller samples",
            ));
        }
        Ok(self.file_bytes()?.iter().fold(0, |all: u64, bytes| all.saturating_add(*bytes)))
    }

    pub fn workers(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        self.workers.unwrap_or_else(|| (2 * cores).clamp(4, 64)).min(self.files)
    }

    /// Name of a file below the data set's folder: `train/img_07_of_24.npz`.
    pub fn name(&self, number: u32, extension: &str) -> String {
        let width = self.files.to_string().len();
        let (prefix, files) = (&self.prefix, self.files);
        let name = format!("{prefix}_{number:0width$}_of_{files}.{extension}");
        match self.subfolder(number % self.subfolders.max(1)) {
            Some(folder) => format!("{folder}/{name}"),
            None => format!("train/{name}"),
        }
    }

    /// Below the data set's folder; None where files lie side by side.
    pub(crate) fn subfolder(&self, index: u32) -> Option<String> {
        let width = self.subfolders.to_string().len();
        (self.subfolders > 1).then(|| format!("train/{index:0width$}"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn spec(format: &str, files: u32) -> DatagenSpec {
        DatagenSpec {
            data: "unused".into(),
            workload: "test".into(),
            format: format.into(),
            files,
            samples_per_file: 2,
            dimensions: (0..files).map(|n| [40 + n, 50]).collect(),
            dimension: 45,
            record_bytes: 2025.0,
            seed: 7,
            prefix: "img".into(),
            io_bytes: 4096,
            ..DatagenSpec::default()
        }
    }

    #[test]
    fn names_are_those_of_dlio() {
        let mut spec = spec("npz", 24);
        assert_eq!(spec.name(7, "npz"), "train/img_07_of_24.npz");
        spec.subfolders = 10;
        assert_eq!(spec.name(17, "npz"), "train/07/img_17_of_24.npz");
        assert_eq!(spec.subfolder(3).as_deref(), Some("train/03"));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let bad: [fn(&mut DatagenSpec); 9] = [
            |s| s.format = "zip".into(),
            |s| s.files = 0,
            |s| s.samples_per_file = 0,
            |s| s.dimensions = vec![[1, 1], [2, 2]],
            |s| s.dimensions = vec![[0, 1]],
            |s| s.dimensions = vec![[u32::MAX, u32::MAX]],
            |s| s.io_bytes = 5000,
            |s| s.prefix = "../x".into(),
            |s| s.workers = Some(0),
        ];
        spec("npz", 3).check().expect("good");
        for (index, change) in bad.iter().enumerate() {
            let mut spec = spec("npz", 3);
            change(&mut spec);
            let error = spec.check().expect_err("bad");
            assert_eq!(error.kind, forebay_model::Kind::Request, "{index}: {error}");
        }
    }
}
