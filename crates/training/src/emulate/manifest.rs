//! A data set's manifest: whether it belongs to the workload, and whether the data set is complete.

pub(crate) use crate::generate::manifest::{Manifest, FILE_ALIGN, NAME, TEXT_BYTES_MAX};
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use std::path::Path;

impl Manifest {
    /// The one beside files in a folder, if there is one.
    pub(crate) fn beside(folder: &Path) -> Result<Option<Manifest>, Error> {
        let path = folder.join(NAME);
        Manifest::read(&path).map_err(|found| {
            let next = "forebay emulate datagen to create the data set again, or remove that file";
            Error::request(path.display().to_string(), found, next)
        })
    }

    /// Checks that the data set is one for the workload.
    pub(crate) fn fits(&self, spec: &EmulateSpec, at: &Path) -> Result<(), Error> {
        let workload = &spec.workload;
        let differs = |what: &str, has: String, wants: String| {
            Err(Error::request(
                format!("--data {} for {}", at.display(), workload.name),
                format!("it was made for {}, with {what} {has} instead of {wants}", self.workload),
                format!("forebay emulate datagen {} --data DIR, and that DIR; or the workload that it was made for", spec.asked()),
            ))
        };
        if self.format != workload.format {
            return differs("format", self.format.clone(), workload.format.clone());
        }
        if self.samples_per_file != workload.samples_per_file {
            let (has, wants) = (self.samples_per_file, workload.samples_per_file);
            return differs("samples per file", has.to_string(), wants.to_string());
        }
        if (self.record_bytes - workload.record_bytes).abs() > 0.01 * workload.record_bytes {
            let (has, wants) = (self.record_bytes, workload.record_bytes);
            return differs("bytes per sample", has.to_string(), wants.to_string());
        }
        Ok(())
    }

    /// Files that were made and are gone.
    pub(crate) fn has_all(&self, found: usize, at: &Path) -> Result<(), Error> {
        if found as u64 >= self.files {
            return Ok(());
        }
        Err(Error::request(
            format!("--data {}", at.display()),
            format!("{} files were created there, and {found} are there now", self.files),
            "forebay emulate datagen with the same flags: it creates what is missing",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::manifest::SCHEMA;
    use forebay_model::training::Workload;

    fn made() -> Manifest {
        Manifest {
            schema: SCHEMA.into(),
            workload: "resnet50".into(),
            format: "tfrecord".into(),
            files: 4,
            samples_per_file: 1251,
            record_bytes: 114_660.07,
            ..Manifest::default()
        }
    }

    fn spec(change: fn(&mut Workload)) -> EmulateSpec {
        let mut workload = Workload {
            name: "wanted".into(),
            format: "tfrecord".into(),
            samples_per_file: 1251,
            record_bytes: 114_660.0,
            ..Workload::default()
        };
        change(&mut workload);
        EmulateSpec { workload, ..EmulateSpec::default() }
    }

    // promise: TRA-8
    #[test]
    fn a_data_set_for_another_workload_is_refused_and_named() {
        let at = Path::new("/data");
        made().fits(&spec(|_| {}), at).unwrap();
        type Case = (fn(&mut Workload), &'static str);
        let cases: [Case; 3] = [
            (|w| w.format = "npz".into(), "format tfrecord instead of npz"),
            (|w| w.samples_per_file = 1, "samples per file 1251 instead of 1"),
            (|w| w.record_bytes = 2.8e6, "bytes per sample 114660.07 instead of 2800000"),
        ];
        for (change, words) in cases {
            let error = made().fits(&spec(change), at).unwrap_err();
            assert!(error.found.contains("resnet50") && error.found.contains(words), "{error}");
        }
    }

    #[test]
    fn files_that_went_missing_are_counted() {
        let error = made().has_all(3, Path::new("/data")).unwrap_err();
        assert!(
            error.found.contains("4 files were created") && error.found.contains("3 are there"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_manifest_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::beside(dir.path()).unwrap(), None);
        for text in ["{", "{\"schema\": \"forebay.dataset/9\"}", "[]"] {
            std::fs::write(dir.path().join(NAME), text).unwrap();
            assert!(Manifest::beside(dir.path()).unwrap_err().asked.ends_with(NAME));
        }
        let text = serde_json::to_string(&made()).unwrap();
        std::fs::write(dir.path().join(NAME), text).unwrap();
        assert_eq!(Manifest::beside(dir.path()).unwrap(), Some(made()));
    }
}
