//! Lists of a gateway, under SNAP's names where it has one.

use crate::gateway::config::{Config, Controller, Frontend, Namespace, Subsystem};
use crate::gateway::stats::{ControllerStats, NamespaceStats, QueueStats, Stats};
use forebay_model::Error;
use serde_json::{json, Value};

/// # Errors
/// `Request`, of all lists: one was asked for by name, and there is none.
pub(super) fn subsystems(config: &Config, stats: &Stats, nqn: Option<&str>) -> Result<Value, Error> {
    let shown = asked(config, nqn)?.into_iter().map(|subsystem| {
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
    Ok(shown.collect())
}

pub(super) fn namespaces(config: &Config, stats: &Stats, nqn: Option<&str>) -> Result<Value, Error> {
    let all = asked(config, nqn)?.into_iter();
    Ok(all.flat_map(|s| s.namespaces.iter().map(|n| namespace(s, n, stats))).collect())
}

pub(super) fn controllers(
    config: &Config,
    stats: &Stats,
    nqn: Option<&str>,
    name: Option<&str>,
) -> Result<Value, Error> {
    let all = asked(config, nqn)?.into_iter().flat_map(|s| s.controllers.iter().map(move |c| (s, c)));
    let named = all.filter(|(_, c)| name.is_none_or(|name| c.name == name));
    let shown: Vec<Value> = named.map(|(s, c)| controller(s, c, stats)).collect();
    match name {
        Some(name) if shown.is_empty() => Err(no_controller(stats, name)),
        _ => Ok(shown.into()),
    }
}

pub(super) fn queues(stats: &Stats, name: &str) -> Result<Value, Error> {
    match stats.controllers.iter().find(|c| c.name == name) {
        Some(found) => Ok(json!(found)),
        None => Err(no_controller(stats, name)),
    }
}

/// Returns the state of each queue: requests of a host, and their answers.
pub(super) fn debug(stats: &Stats, name: &str) -> Result<Value, Error> {
    let found = stats.controllers.iter().find(|c| c.name == name);
    let found = found.ok_or_else(|| no_controller(stats, name))?;
    let queue = |q: &QueueStats| {
        let mut shown = json!({
            "sqid": q.qid,
            "thread": q.thread,
            "sq_entries": q.entries,
            "in_flight": q.in_flight,
            "shadow": q.shadow,
        });
        if let (Some(shown), Ok(Value::Object(ends))) = (shown.as_object_mut(), serde_json::to_value(q.ends))
        {
            shown.extend(ends);
        }
        shown
    };
    Ok(json!({
        "ctrl_id": found.name,
        "state": found.state,
        "why": found.why,
        "mapped_bytes": found.mapped_bytes,
        "mappings": found.mappings,
        "queues": found.queues.iter().map(queue).collect::<Vec<_>>(),
    }))
}

/// Returns the functions that hosts may find on a bus. `all`: block devices of this machine, too.
pub(super) fn functions(config: &Config, stats: &Stats, all: bool) -> Value {
    let shown = config.controllers().filter(|(_, c)| all || c.frontend == Frontend::VfioUser);
    let one = |(subsystem, given): (&Subsystem, &Controller)| {
        let found = stats.controllers.iter().find(|c| c.name == given.name);
        json!({
            "emulation_type": if given.frontend == Frontend::VfioUser { "NVME" } else { "BLOCK" },
            "ctrl_id": given.name,
            "nqn": subsystem.nqn,
            "cntlid": found.map(|c| c.cntlid),
            "place": found.map(|c| c.place.clone()),
            "state": found.map(|c| c.state),
        })
    };
    shown.map(one).collect()
}

/// The subsystem of that name, or all.
fn asked<'a>(config: &'a Config, nqn: Option<&str>) -> Result<Vec<&'a Subsystem>, Error> {
    let found: Vec<_> = config.subsystems.iter().filter(|s| nqn.is_none_or(|nqn| s.nqn == nqn)).collect();
    match nqn {
        Some(nqn) if found.is_empty() => {
            let all: Vec<&str> = config.subsystems.iter().map(|s| s.nqn.as_str()).collect();
            let shown: String = nqn.escape_debug().take(80).collect();
            let next = if all.is_empty() { "nvme_subsystem_create".into() } else { all.join(", ") };
            Err(Error::request(shown, "there is no such subsystem", next))
        }
        _ => Ok(found),
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
        "front": given.frontend,
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
