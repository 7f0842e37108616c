//! Every seed and every input that once broke something, replayed without a fuzzer.

use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).expect("the target has seeds") {
        let path = entry.expect("a readable folder").path();
        println!("{}", path.display());
        run(&std::fs::read(path).expect("a readable seed"));
        seeds += 1;
    }
    assert!(seeds > 0, "{} is empty", folder.display());
}

#[test]
fn histogram_seeds() {
    replay("histogram", forebay_fuzz::histogram);
}

#[test]
fn job_seeds() {
    replay("job", forebay_fuzz::job);
}

#[test]
fn record_seeds() {
    replay("record", forebay_fuzz::record);
}

#[test]
fn units_seeds() {
    replay("units", forebay_fuzz::units);
}

#[test]
fn source_seeds() {
    replay("source", forebay_fuzz::source);
}

#[test]
fn drive_seeds() {
    replay("drive", forebay_fuzz::drive);
}

#[test]
fn faults_seeds() {
    replay("faults", forebay_fuzz::faults);
}

#[test]
fn formats_seeds() {
    replay("formats", forebay_fuzz::formats);
}

#[test]
fn safetensors_seeds() {
    replay("safetensors", forebay_fuzz::safetensors);
}
