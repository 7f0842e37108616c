//! What reads bytes from outside, one function each: any input is understood or refused, never a panic,
//! and what was understood survives a round trip.

mod formats;

pub use formats::formats;

use forebay_engine::source::fault::FaultPlan;
use forebay_engine::source::Uri;
use forebay_model::device::DriveModel;
use forebay_model::safetensors::Header;
use forebay_model::{record, units, JobSpec, Latency};

/// The histogram of a record: HdrHistogram V2, base64.
pub fn histogram(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(latency) = Latency::decode(text) else { return };
    let again = Latency::decode(&latency.encode()).expect("what we encode, we decode");
    assert_eq!(again.buckets(), latency.buckets());
    assert!(latency.percentile_ns(50.0) <= latency.percentile_ns(100.0));
}

/// A job as JSON, as it comes from the command line's front and from records.
pub fn job(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(job) = JobSpec::from_json(text) else { return };
    let written = serde_json::to_string(&job).expect("a checked job holds no NaN");
    assert_eq!(JobSpec::from_json(&written).expect("what was accepted stays acceptable"), job);
}

/// A record of this or an older schema.
pub fn record(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(run) = record::read(text) else { return };
    assert_eq!(run.schema, record::SCHEMA);
    let written = serde_json::to_string(&run).expect("a record is JSON");
    record::read(&written).expect("what was read can be read again");
}

/// A size as people type it.
pub fn units(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(bytes) = units::parse_bytes(text) else { return };
    assert_eq!(units::parse_bytes(&units::format_bytes(bytes)).expect("what we print, we read"), bytes);
}

/// A source URI. A nested one is bounded in depth and length.
pub fn source(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(uri) = Uri::parse(text) else { return };
    assert_eq!(Uri::parse(text).expect("the same text reads the same"), uri);
}

/// What stands after `model:`. Figures stay finite, and times are never negative.
pub fn drive(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(drive) = DriveModel::parse(text) else { return };
    for seconds in [drive.read_latency_s, drive.write_latency_s, drive.command_overhead_s] {
        assert!(seconds.is_finite() && seconds >= 0.0, "{text}: {seconds} s");
    }
    assert!(drive.read_bandwidth_bytes_s.is_finite() && drive.read_bandwidth_bytes_s > 0.0);
}

/// `--faults`. Shares stay between 0 and 1.
pub fn faults(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = FaultPlan::parse(text) else { return };
    assert!([plan.error, plan.short, plan.stall].iter().all(|share| (0.0..=1.0).contains(share)));
}

/// A safetensors header; its first two bytes say how much data follows it. Tensors cover that, and nothing else.
pub fn safetensors(data: &[u8]) {
    let Some((length, json)) = data.split_first_chunk::<2>() else { return };
    let data_bytes = u64::from(u16::from_le_bytes(*length));
    let Ok(header) = Header::parse(json, data_bytes) else { return };
    let end = header.tensors.iter().fold(0, |at, tensor| {
        assert!(tensor.begin == at && tensor.end >= at, "{}: a gap or an overlap", tensor.name);
        tensor.end
    });
    assert_eq!(end, data_bytes);
}
