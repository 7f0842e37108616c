//! HDF5 (File Format Specification 3.0), front to back: the superblock, that the file is as long as it says, and what
//! of its data sets can be found from the file's first bytes. What DLIO and h5py write has no checksum over its data.
//! A run goes by `pick::Tree`, which follows the trees of addresses wherever they lead.

pub(super) mod newer;
pub(super) mod walk;

use super::bounded::{u64_at, Gather};
use super::{Damage, ParseSpec, Parser};
use walk::{DataSet, Walk};

/// Beginning of a file.
pub(crate) const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Up to the end-of-file address, of every version.
const HEAD_BYTES: usize = 52;
/// Bytes kept of the file's beginning: h5py puts the descriptions of DLIO's data sets before them.
pub(crate) const FRONT_BYTES: u64 = 64 << 10;
/// The data set that holds samples, as DLIO names it.
pub(crate) const SAMPLES: &str = "records";

pub(crate) struct Hdf5 {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    gather: Gather,
    headed: bool,
    samples: u64,
}

impl Hdf5 {
    pub(crate) fn new(spec: &ParseSpec) -> Hdf5 {
        Hdf5 {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            gather: Gather::default(),
            headed: false,
            samples: 0,
        }
    }

    /// The file's first bytes have come.
    fn head(&mut self) -> Result<(), Damage> {
        let front = self.gather.bytes();
        superblock(front, self.file_bytes).map_err(|what| Damage::new(0, 0, what))?;
        self.samples = self.samples_per_file.max(1);
        let mut walk = Walk::begin(self.file_bytes);
        while let Some((at, bytes)) = walk.asks() {
            let end = at.saturating_add(bytes);
            let Some(found) = front.get(at as usize..end as usize) else { return Ok(()) };
            walk.answer(found).map_err(|(at, what)| Damage::new(0, at, what))?;
        }
        let set = samples_of(&walk, self.samples_per_file).map_err(|what| Damage::new(0, 0, what))?;
        self.samples = set.dims[0];
        Ok(())
    }
}

/// The data set that holds the samples, and as many as there should be; 0: any number.
pub(crate) fn samples_of(walk: &Walk, samples_per_file: u64) -> Result<&DataSet, String> {
    let named = walk.sets.iter().find(|set| set.name == SAMPLES);
    let set = named.ok_or_else(|| format!("it has no data set '{SAMPLES}'"))?;
    match set.dims.first() {
        Some(samples) if samples_per_file == 0 || *samples == samples_per_file => Ok(set),
        found => Err(format!("'{SAMPLES}' holds {} samples, not {samples_per_file}", found.unwrap_or(&0))),
    }
}

/// Parses a superblock of any version: offsets, and where the file ends.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn superblock(head: &[u8], file_bytes: u64) -> Result<(), String> {
    if head.len() < HEAD_BYTES {
        return Err("the file ends inside its superblock".into());
    }
    if &head[..8] != SIGNATURE {
        return Err("it doesn't begin as an HDF5 file does".into());
    }
    let (version, offset_bytes, at) = match head[8] {
        version @ (0 | 1) => (version, head[13], if version == 0 { 40 } else { 44 }),
        version @ (2 | 3) => (version, head[9], 28),
        version => return Err(format!("its superblock has version {version}, and 0 to 3 are known")),
    };
    if offset_bytes != 8 {
        return Err(format!("its offsets have {offset_bytes} bytes, and 8 are known"));
    }
    let end = u64_at(head, at);
    if end > file_bytes || end < at as u64 {
        return Err(format!(
            "its superblock (version {version}) says {end} bytes, and the file has {file_bytes}"
        ));
    }
    Ok(())
}

impl Parser for Hdf5 {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
        self.samples = 0;
        self.headed = false;
        self.gather.start(FRONT_BYTES.min(file_bytes) as usize);
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        self.at += bytes.len() as u64;
        if !self.headed && self.gather.fill(&mut bytes) {
            self.headed = true;
            self.head()?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if !self.headed {
            return Err(Damage::new(0, self.at, "the file ends inside its superblock"));
        }
        if self.at != self.file_bytes {
            let what = format!("the file ends after {} of {} bytes", self.at, self.file_bytes);
            return Err(Damage::new(0, self.at, what));
        }
        Ok(())
    }

    fn samples(&self) -> u64 {
        if self.at == self.file_bytes {
            self.samples
        } else {
            0
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.at
    }
}
