//! Reading records from files: of this or an older schema, complete or without fields that their writer didn't know.

use crate::record::{RunRecord, SCHEMA};
use crate::{warnings, Error};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The reason for a default: the file that was read doesn't have the field.
pub const ABSENT: &str = "the record has no such field";
/// Optional parts of a record. The last two are created when it is read.
const OPTIONAL: [&str; 16] = [
    "cufile",
    "training",
    "checkpoint",
    "feed",
    "kvcache",
    "train",
    "infer",
    "path.mapped",
    "path.fabric",
    "result.batch",
    "result.queries",
    "result.read",
    "result.write",
    "result.flush",
    "missing",
    "warnings",
];

/// Reads a record of this or an older schema. An older one is converted; a newer one is refused. A missing field gets
/// its default, which `missing` lists; a record without `warnings` is judged.
pub fn read(text: &str) -> Result<RunRecord, Error> {
    let bad = |found: String| Error::request("the record", found, "a file that forebay wrote");
    let mut value: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    migrate(&mut value).map_err(bad)?;
    let mut record: RunRecord = serde_json::from_value(value.clone()).map_err(|e| bad(e.to_string()))?;
    let whole = serde_json::to_value(&record).map_err(|e| bad(e.to_string()))?;
    note_absent("", &value, &whole, &mut record.missing);
    if value.get("warnings").is_none() {
        warnings::add(&mut record);
    }
    Ok(record)
}

/// Notes what of `whole` isn't in `value`; of a list whatever one of its entries lacks, as `result.repeats[].ios`.
fn note_absent(at: &str, value: &Value, whole: &Value, missing: &mut BTreeMap<String, String>) {
    match (value, whole) {
        (Value::Object(value), Value::Object(whole)) => {
            for (key, part) in whole {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                match value.get(key) {
                    Some(found) => note_absent(&path, found, part, missing),
                    None if OPTIONAL.contains(&path.as_str()) => {}
                    None => {
                        missing.entry(path).or_insert_with(|| ABSENT.into());
                    }
                }
            }
        }
        (Value::Array(value), Value::Array(whole)) => {
            let path = format!("{at}[]");
            value.iter().zip(whole).for_each(|(value, whole)| note_absent(&path, value, whole, missing));
        }
        _ => {}
    }
}

/// Converts a record to `SCHEMA` in place. Version 0 was what pre-release builds wrote: rates in `gib_per_s`, no
/// `warnings`, no `missing`.
pub fn migrate(value: &mut Value) -> Result<(), String> {
    let object = value.as_object_mut().ok_or("not a JSON object")?;
    let schema = object.get("schema").and_then(Value::as_str).unwrap_or("").to_string();
    match schema.as_str() {
        SCHEMA => Ok(()),
        "forebay.run/0" => {
            from_0(object);
            Ok(())
        }
        "" => Err("has no schema".into()),
        other => Err(format!("has schema '{other}'; this version reads up to '{SCHEMA}'")),
    }
}

fn from_0(object: &mut Map<String, Value>) {
    object.insert("schema".into(), SCHEMA.into());
    if let Some(result) = object.get_mut("result").and_then(Value::as_object_mut) {
        if let Some(rate) = result.remove("gib_per_s") {
            result.insert("throughput_gib_s".into(), rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::record::{Checkpoint, Phase, Rule, Turn};
    use crate::histogram::LatencySummary;
    use crate::record::*;
    use crate::series::Point;
    use crate::training::{EmulateSpec, Training};

    /// A record with each of its parts, and an entry in each of its lists.
    fn full() -> RunRecord {
        let mut record =
            RunRecord { schema: SCHEMA.into(), origin: "measured".into(), ..RunRecord::default() };
        let environment = &mut record.environment;
        environment.gpus = vec![Gpu::default()];
        environment.drives = vec![Drive::default()];
        environment.filesystem = Some(Filesystem::default());
        record.path.calibration = vec![Trial::default()];
        record.path.mapped = Some(MappedRan::default());
        record.path.fabric = vec![FabricRan {
            paths: vec![FabricPath::default()],
            queues: vec![FabricQueue::default()],
            events: vec![FabricEvent::default()],
            ..FabricRan::default()
        }];
        record.cufile = Some(Cufile {
            routes: vec![CufileRoute::default()],
            gpus: Some(vec![CufileGpu::default()]),
            batches: Some(CufileBatches::default()),
            ..Cufile::default()
        });
        record.result = RunResult {
            copy_latency_us: Some(LatencySummary::default()),
            batch: Some(BatchResult::default()),
            queries: Some(QueryResult::default()),
            foretold: Some(Foretold::default()),
            power: vec![Power::default()],
            repeats: vec![Repeat { power: vec![Power::default()], ..Repeat::default() }],
            series: vec![Point::default()],
            workers: vec![WorkerResult::default()],
            targets: vec![TargetResult::default()],
            gpus: vec![GpuResult::default()],
            ..RunResult::default()
        };
        let mut training = Training::of_spec(&EmulateSpec::default(), 3, 10);
        training.epochs = vec![Default::default()];
        training.by_rules = vec![Default::default()];
        training.rules = vec![Default::default()];
        training.curve = vec![Default::default()];
        record.training = Some(training);
        let phase = Phase { checkpoints: vec![Turn::default()], ..Phase::default() };
        record.checkpoint = Some(Checkpoint {
            write: Some(phase.clone()),
            read: Some(phase),
            rules: vec![Rule::default()],
            ..Checkpoint::default()
        });
        record.train = Some(Map::new());
        record.infer = Some(Map::new());
        record.warnings = vec![Warning::default()];
        record
    }

    /// Every key below `value`: where it is, and as `missing` spells it.
    fn keys(value: &Value, pointer: &str, name: &str) -> Vec<(String, String)> {
        match value {
            Value::Object(map) => {
                let of = |(key, value): (&String, &Value)| {
                    let dot = if name.is_empty() { "" } else { "." };
                    let own = (format!("{pointer}/{key}"), format!("{name}{dot}{key}"));
                    let below = keys(value, &own.0, &own.1);
                    std::iter::once(own).chain(below).collect::<Vec<_>>()
                };
                map.iter().flat_map(of).collect()
            }
            Value::Array(list) => list
                .first()
                .map(|first| keys(first, &format!("{pointer}/0"), &format!("{name}[]")))
                .unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    fn without(value: &Value, pointer: &str) -> Value {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut value = value.clone();
        value.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
        value
    }

    // promise: REC-32
    #[test]
    fn a_record_without_any_one_field_is_read_and_says_what_is_missing() {
        for schema in [SCHEMA, "forebay.run/0"] {
            let mut whole = serde_json::to_value(full()).unwrap();
            whole["schema"] = schema.into();
            let all = keys(&whole, "", "");
            assert!(all.len() > 350, "{}", all.len());
            // What is converted is at most two keys deep.
            let tried = |pointer: &str| schema == SCHEMA || pointer.matches('/').count() <= 2;
            // One of each part of the record at a time, as reading takes long without optimisation.
            let mut parts: BTreeMap<&str, Vec<&(String, String)>> = BTreeMap::new();
            for key in all.iter().filter(|(pointer, _)| pointer != "/schema" && tried(pointer)) {
                parts.entry(key.0.split('/').nth(1).unwrap()).or_default().push(key);
            }
            let most = parts.values().map(Vec::len).max().unwrap();
            for turn in 0..most {
                let left_out: Vec<_> = parts.values().filter_map(|part| part.get(turn)).collect();
                let rest = left_out.iter().fold(whole.clone(), |rest, (pointer, _)| without(&rest, pointer));
                let record = read(&rest.to_string()).unwrap_or_else(|e| panic!("without {left_out:?}: {e}"));
                for (_, name) in left_out {
                    let said = record.missing.get(name).map(String::as_str);
                    assert_eq!(
                        said,
                        (!OPTIONAL.contains(&name.as_str())).then_some(ABSENT),
                        "without {name}"
                    );
                }
            }
        }
    }

    // promise: REC-32
    #[test]
    fn a_whole_record_is_read_as_it_was_written() {
        let whole = full();
        assert_eq!(read(&serde_json::to_string(&whole).unwrap()).unwrap(), whole);
    }

    // promise: TRN-40
    #[test]
    fn a_part_of_another_command_is_kept_whatever_it_holds_to_the_last_digit() {
        let part = r#"{"model":"toy","samples_per_s":86217.48193059217,"quality":null,"advice":[{"area":"gds"}],"n":18446744073709551615}"#;
        let written = format!(
            r#"{{"schema":"{SCHEMA}","train":{part},"infer":{part},"missing":{{"train.quality":"none"}}}}"#
        );
        let record = read(&written).unwrap();
        assert_eq!(serde_json::to_string(&record.train).unwrap(), part);
        assert_eq!(serde_json::to_string(&record.infer).unwrap(), part);
        assert_eq!(record.missing["train.quality"], "none");
        assert_eq!(read(&serde_json::to_string(&record).unwrap()).unwrap(), record);
        assert!(read(&written.replace(r#""train":{"#, r#""train":[{"#).replace("]},", "]}],")).is_err());
    }

    #[test]
    fn what_a_record_says_of_a_field_stands() {
        let mut value = serde_json::to_value(full()).unwrap();
        value["missing"] = serde_json::json!({"result.power": "no meter"});
        let record = read(&without(&value, "/result/power").to_string()).unwrap();
        assert_eq!(record.missing["result.power"], "no meter");
    }

    #[test]
    fn without_a_schema_nothing_is_guessed_and_a_newer_one_is_refused() {
        let whole = serde_json::to_value(full()).unwrap();
        assert!(read(&without(&whole, "/schema").to_string()).unwrap_err().found.contains("no schema"));
        let newer = whole.to_string().replace(SCHEMA, "forebay.run/99");
        assert!(read(&newer).unwrap_err().found.contains("reads up to 'forebay.run/1'"));
    }
}
