//! The beginning of each record: what is known of a run before anything is measured.

use crate::{build, clock, identity, machine};
use forebay_model::record::{RunRecord, SCHEMA};
use std::path::PathBuf;

/// A record of a run that `command` began at that second, of what lies at `paths`. `origin` as in the record.
pub fn start_record(command: Vec<String>, started: u64, origin: &str, paths: &[PathBuf]) -> RunRecord {
    RunRecord {
        schema: SCHEMA.into(),
        id: identity::new_id(),
        started: clock::rfc3339(started),
        command,
        origin: origin.into(),
        forebay: build::current_build(),
        environment: machine::environment::gather_environment(paths),
        ..RunRecord::default()
    }
}
