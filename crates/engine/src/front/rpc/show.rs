//! What the lists show, under SNAP's names where it has one.

use crate::front::config::{Config, Controller, Namespace, Subsystem};
use crate::front::stats::{ControllerStats, NamespaceStats, Stats};
use forebay_model::Error;
use serde_json::{json, Value};

pub fn subsystems(config: &Config, stats: &Stats, nqn: Option<&str>) -> Value {
    let asked = config.subsystems.iter().filter(|s| nqn.is_none_or(|nqn| s.nqn == nqn));
    let shown = asked.map(|subsystem| {
        let namespaces = subsystem.namespaces.iter().map(|n| namespace(subsystem, n, stats));
        let controllers = subsystem.controllers.iter().map(|c| controller(subsystem, c, stats));
        json!({
            "nqn": subsystem.nqn,
            "sn": subsystem.serial,
            "mn": subsystem.model,
            "namespaces": namespaces.collect::<Vec<_>>(),
            "controllers": controllers.collect::<Vec<_>>(),
        })
    });
    shown.collect()
}

pub fn namespaces(config: &Config, stats: &Stats, nqn: Option<&str>) -> Value {
    let asked = config.subsystems.iter().filter(|s| nqn.is_none_or(|nqn| s.nqn == nqn));
    asked.flat_map(|s| s.namespaces.iter().map(|n| namespace(s, n, stats))).collect()
}

/// # Errors
/// `Request`: one was asked for by name, and there is none.
pub fn controllers(
    config: &Config,
    stats: &Stats,
    nqn: Option<&str>,
    name: Option<&str>,
) -> Result<Value, Error> {
    let asked = config
        .controllers()
        .filter(|(s, c)| nqn.is_none_or(|nqn| s.nqn == nqn) && name.is_none_or(|name| c.name == name));
    let shown: Vec<Value> = asked.map(|(s, c)| controller(s, c, stats)).collect();
    match name {
        Some(name) if shown.is_empty() => Err(no_controller(stats, name)),
        _ => Ok(shown.into()),
    }
}

pub fn queues(stats: &Stats, name: &str) -> Result<Value, Error> {
    match stats.controllers.iter().find(|c| c.name == name) {
        Some(found) => Ok(json!(found)),
        None => Err(no_controller(stats, name)),
    }
}

fn no_controller(stats: &Stats, name: &str) -> Error {
    let all: Vec<&str> = stats.controllers.iter().map(|c| c.name.as_str()).collect();
    let shown: String = name.escape_debug().take(80).collect();
    let next = if all.is_empty() { "nvme_controller_create".into() } else { all.join(", ") };
    Error::request(shown, "there is no such controller", next)
}

fn namespace(subsystem: &Subsystem, given: &Namespace, stats: &Stats) -> Value {
    let all = stats.subsystems.iter().filter(|s| s.nqn == subsystem.nqn).flat_map(|s| &s.namespaces);
    let mut counted = all.filter(|n: &&NamespaceStats| n.counted.nsid == given.nsid);
    let counted = counted.next();
    let shown = subsystem.controllers.iter().filter(|c| shows(c, given.nsid, stats));
    json!({
        "nqn": subsystem.nqn,
        "nsid": given.nsid,
        "bdev": given.source,
        "uuid": counted.map(|n| n.uuid.clone()).or_else(|| given.uuid.clone()),
        "bytes": counted.map(|n| n.counted.bytes),
        "block_size": counted.map(|n| n.counted.block_bytes),
        "writable": given.writable,
        "qos": given.qos,
        "controllers": shown.map(|c| c.name.clone()).collect::<Vec<_>>(),
    })
}

fn controller(subsystem: &Subsystem, given: &Controller, stats: &Stats) -> Value {
    let found = stats.controllers.iter().find(|c| c.name == given.name);
    json!({
        "ctrl_id": given.name,
        "nqn": subsystem.nqn,
        "cntlid": found.map(|c| c.cntlid),
        "state": found.map(|c| c.state),
        "why": found.and_then(|c| c.why.clone()),
        "front": given.front,
        "place": found.map(|c| c.place.clone()),
        "num_queues": given.queues_max(),
        "mdts": given.mdts(),
        "when_down": given.when_down,
        "recovered": found.map(|c| c.recovered),
        "namespaces": found.map(|c: &ControllerStats| c.namespaces.clone()),
    })
}

fn shows(controller: &Controller, nsid: u32, stats: &Stats) -> bool {
    let found = stats.controllers.iter().find(|c| c.name == controller.name);
    found.is_some_and(|c| c.namespaces.contains(&nsid))
}
