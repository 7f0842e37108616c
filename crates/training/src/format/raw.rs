//! Files without checksums, and level `bytes` of any format: every byte is read, and samples are counted by position.

use super::{Damage, ParseSpec, Parser};

/// Counts bytes. The samples of a file lie evenly over it, and the last one ends where the file does.
pub(crate) struct CountOnly {
    samples_per_file: u64,
    record_bytes: u64,
    file_bytes: u64,
    at: u64,
}

impl CountOnly {
    pub(crate) fn new(spec: &ParseSpec) -> CountOnly {
        CountOnly {
            samples_per_file: u64::from(spec.samples_per_file),
            record_bytes: spec.record_bytes,
            file_bytes: 0,
            at: 0,
        }
    }

    /// Number of samples in the whole file.
    fn samples_max(&self) -> u64 {
        match (self.samples_per_file, self.record_bytes) {
            (0, 0) => 1,
            (0, record) => self.file_bytes / record,
            (samples, _) => samples,
        }
    }
}

impl Parser for CountOnly {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if self.at != self.file_bytes {
            let what = format!("the file ends after {} of {} bytes", self.at, self.file_bytes);
            return Err(Damage::new(self.samples(), self.at, what));
        }
        Ok(())
    }

    fn samples(&self) -> u64 {
        let samples = self.samples_max();
        if self.at >= self.file_bytes {
            return samples;
        }
        (u128::from(samples) * u128::from(self.at) / u128::from(self.file_bytes)) as u64
    }

    fn payload_bytes(&self) -> u64 {
        self.at
    }
}
