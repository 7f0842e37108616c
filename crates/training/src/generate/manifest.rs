//! Manifest of a data set, for later readers (schema `forebay.dataset/1`): `.forebay-dataset.json` beside its files,
//! or the same text at the beginning of an address space that holds them one after another.

use super::spec::DatagenSpec;
use forebay_model::Error;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub(crate) const SCHEMA: &str = "forebay.dataset/1";
/// Beside files.
pub(crate) const NAME: &str = ".forebay-dataset.json";
/// Limit on the text, wherever it lies.
pub(crate) const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Packed files begin at multiples of this.
pub(crate) const FILE_ALIGN: u64 = 4096;

/// Written last, when the data set is whole. Keys that aren't known here are others'. Lengths are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    pub schema: String,
    pub workload: String,
    pub format: String,
    pub files: u64,
    pub samples_per_file: u32,
    /// Nominal mean of a sample, and its standard deviation.
    pub record_bytes: f64,
    pub record_bytes_stdev: f64,
    pub seed: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// CRC32C of all files' lengths, as 64-bit little-endian words.
    pub lengths_crc32c: String,
    /// Packed into one address space: where the first file begins.
    #[serde(skip_serializing_if = "is_zero")]
    pub data_begin: u64,
    /// Likewise: each file's length. Each begins at a multiple of 4096.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub file_bytes: Vec<u64>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

pub(crate) fn describe(spec: &DatagenSpec, bytes: &[u64]) -> Manifest {
    let crc = bytes.iter().fold(0, |crc, bytes| crc32c::crc32c_append(crc, &bytes.to_le_bytes()));
    Manifest {
        schema: SCHEMA.into(),
        workload: spec.workload.clone(),
        format: spec.format.clone(),
        files: spec.files.into(),
        samples_per_file: spec.samples_per_file,
        record_bytes: spec.record_bytes,
        record_bytes_stdev: spec.record_bytes_stdev,
        seed: spec.seed,
        bytes: bytes.iter().sum(),
        lengths_crc32c: format!("{crc:08x}"),
        ..Manifest::default()
    }
}

pub(crate) fn text(manifest: &Manifest) -> Result<String, Error> {
    serde_json::to_string_pretty(manifest)
        .map(|text| text + "\n")
        .map_err(|e| Error::run("writing the manifest", e.to_string(), "report this: it is a bug in Forebay"))
}

impl Manifest {
    /// The one of that name, None where there is none; or what is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Option<Manifest>, String> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.len() > TEXT_BYTES_MAX => return Err("is longer than 64 MiB".into()),
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        Manifest::parse(&text).map(Some)
    }

    /// # Errors
    /// What is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match manifest.schema.as_str() {
            SCHEMA => Ok(manifest),
            other => Err(format!("has schema '{other}', and this version reads '{SCHEMA}'")),
        }
    }

    /// The first thing that isn't as asked, in words.
    pub(crate) fn differs(&self, spec: &DatagenSpec) -> Option<String> {
        let pairs = [
            ("format", self.format.clone(), spec.format.clone()),
            ("files", self.files.to_string(), spec.files.to_string()),
            ("samples per file", self.samples_per_file.to_string(), spec.samples_per_file.to_string()),
            ("bytes per sample", self.record_bytes.to_string(), spec.record_bytes.to_string()),
            ("their deviation", self.record_bytes_stdev.to_string(), spec.record_bytes_stdev.to_string()),
            ("seed", self.seed.to_string(), spec.seed.to_string()),
        ];
        let differs = |(what, has, wants): (&str, String, String)| {
            (has != wants).then(|| format!("{what} {has} instead of {wants}"))
        };
        pairs.into_iter().find_map(differs)
    }
}
