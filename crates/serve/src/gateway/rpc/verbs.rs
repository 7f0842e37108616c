//! The verbs: their names and parameters, and what each does. Names are those of SNAP-4 where it has one.

use super::arguments::{Arguments, Kind, Parameter, Verb};
use super::show;
use super::Control;
use crate::gateway::config::{
    free_name, rpc_path, runtime_directory, Caching, Controller, Frontend, Namespace, Qos, Size, Subsystem,
    WhenDown,
};
use crate::target::log::Level;
use forebay_model::Error;
use serde_json::{json, Value};
use std::path::Path;
use std::time::Duration;

pub(super) fn unknown(method: &str) -> Error {
    let shown: String = method.escape_debug().take(80).collect();
    Error::request(shown, "there is no such verb", "rpc_get_methods for the list")
}

const fn text(name: &'static str, also: &'static [&'static str], help: &'static str) -> Parameter {
    Parameter { name, also, kind: Kind::Text, required: false, help }
}

const fn number(name: &'static str, also: &'static [&'static str], help: &'static str) -> Parameter {
    Parameter { name, also, kind: Kind::Number, required: false, help }
}

const fn flag(name: &'static str, help: &'static str) -> Parameter {
    Parameter { name, also: &[], kind: Kind::Flag, required: false, help }
}

const fn needed(mut parameter: Parameter) -> Parameter {
    parameter.required = true;
    parameter
}

const NQN: Parameter = text("nqn", &["-s"], "The subsystem's NVMe qualified name.");
const NSID: Parameter = number("nsid", &["-n"], "The namespace's number.");
const CTRL: Parameter = text("ctrl", &["ctrl_id", "-c"], "The controller's name.");
const SOURCE: Parameter =
    text("bdev_name", &["source", "-b"], "Source that backs it, e.g. nvme+tcp://HOST:PORT/NQN.");
const RATE: Parameter = Parameter { kind: Kind::Size, ..text("rate", &[], "Maximum bytes per second.") };
const IOPS: Parameter = number("iops", &[], "Maximum I/O commands per second.");

pub const VERBS: &[Verb] = &[
    Verb {
        name: "nvme_subsystem_create",
        snap: true,
        help: "Create a subsystem, to which namespaces and controllers belong.",
        parameters: &[
            needed(NQN),
            text(
                "serial_number",
                &["sn", "-sn"],
                "Serial number, at most 20 characters. Default: derived from the NQN.",
            ),
            text("model_number", &["mn", "-mn"], "Model number, at most 40 characters. Default: Forebay."),
        ],
        call: subsystem_create,
    },
    Verb {
        name: "nvme_subsystem_destroy",
        snap: true,
        help: "Remove a subsystem and its namespaces.",
        parameters: &[needed(NQN), flag("force", "Remove its controllers, too, even those in use.")],
        call: subsystem_destroy,
    },
    Verb {
        name: "nvme_subsystem_list",
        snap: true,
        help: "List subsystems, with their namespaces and controllers.",
        parameters: &[NQN],
        call: |control, given| show::subsystems(&control.config(), &control.stats(), given.text("nqn")),
    },
    Verb {
        name: "nvme_namespace_create",
        snap: true,
        help: "Open a source as a namespace; controllers show it only after nvme_controller_attach_ns.",
        parameters: &[
            needed(NQN),
            needed(SOURCE),
            number("nsid", &["-n"], "Its number. Default: the lowest that is free."),
            text("uuid", &["-u"], "Identifies its content. Default: derived from NQN and nsid."),
            flag("writable", "Hosts may write; it is read-only otherwise."),
            number("block_size", &[], "Logical block: 512 or 4096. Default: depends on the source."),
            text("cache", &[], "Page cache: auto, bypass (O_DIRECT) or allow. Default: auto."),
            RATE,
            IOPS,
        ],
        call: namespace_create,
    },
    Verb {
        name: "nvme_namespace_destroy",
        snap: true,
        help: "Close a namespace, and detach it from all controllers.",
        parameters: &[needed(NQN), needed(NSID)],
        call: |control, given| {
            control.namespace_destroy(given.the("nqn"), nsid_of(given)?)?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_namespace_list",
        snap: true,
        help: "List namespaces.",
        parameters: &[NQN],
        call: |control, given| show::namespaces(&control.config(), &control.stats(), given.text("nqn")),
    },
    Verb {
        name: "nvme_namespace_set_source",
        snap: false,
        help: "Replace a namespace's source by another of the same size, while hosts use it.",
        parameters: &[needed(NQN), needed(NSID), needed(SOURCE)],
        call: namespace_set_source,
    },
    Verb {
        name: "nvme_namespace_set_qos",
        snap: false,
        help: "Set a namespace's limits; a limit that isn't given is removed.",
        parameters: &[needed(NQN), needed(NSID), RATE, IOPS],
        call: |control, given| {
            control.namespace_set_qos(given.the("nqn"), nsid_of(given)?, qos_of(given)?)?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_create",
        snap: true,
        help: "Create a controller (a drive for one host), without namespaces.",
        parameters: &[
            needed(NQN),
            text("ctrl", &["ctrl_id", "-c"], "Its name. Default: NVMeCtrl and the lowest free number."),
            text(
                "front",
                &[],
                "vfio-user (a PCI function for a VMM) or ublk (a block device). Default: vfio-user.",
            ),
            text("socket", &[], "vfio-user: path of its socket. Default: NAME.sock beside the RPC socket."),
            number("device", &[], "ublk: N of /dev/ublkbN. Default: the lowest that is free."),
            number("num_queues", &["-n"], "I/O queue pairs, 1 to 1024. Default: 31."),
            number("queue_depth", &[], "Entries of a queue. Default: 1024, of ublk 64."),
            number(
                "mdts",
                &["-m"],
                "Longest transfer: 4 KiB times two to the power of this, 1 to 10. Default: 8.",
            ),
            flag("poll", "Poll doorbells continuously: lowest latency, at the cost of a core."),
            text("when_down", &[], "ublk: what I/O does while no gateway runs: wait or fail. Default: wait."),
            flag("suspended", "Keep it hidden until nvme_controller_resume."),
        ],
        call: controller_create,
    },
    Verb {
        name: "nvme_controller_destroy",
        snap: true,
        help: "Remove a controller.",
        parameters: &[needed(CTRL), flag("force", "Even while a host uses it.")],
        call: |control, given| {
            control.controller_destroy(given.the("ctrl"), given.flag("force"))?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_list",
        snap: true,
        help: "List controllers, with their state and namespaces.",
        parameters: &[NQN, CTRL],
        call: |control, given| {
            show::controllers(&control.config(), &control.stats(), given.text("nqn"), given.text("ctrl"))
        },
    },
    Verb {
        name: "nvme_controller_attach_ns",
        snap: true,
        help: "Attach a namespace of its subsystem to a controller, and notify the host.",
        parameters: &[needed(CTRL), needed(NSID)],
        call: |control, given| {
            control.attach(given.the("ctrl"), nsid_of(given)?)?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_detach_ns",
        snap: true,
        help: "Detach a namespace from a controller, and notify the host.",
        parameters: &[needed(CTRL), needed(NSID)],
        call: |control, given| {
            control.detach(given.the("ctrl"), nsid_of(given)?)?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_suspend",
        snap: true,
        help: "Stop taking commands from the host's queues, and wait until none is in flight.",
        parameters: &[
            needed(CTRL),
            number(
                "timeout_ms",
                &["-t"],
                "If it takes longer, the controller continues as before. Default: 10000.",
            ),
        ],
        call: |control, given| {
            let timeout_ms = given.number("timeout_ms").unwrap_or(SUSPEND_MS).min(SUSPEND_MS_MAX);
            control.suspend(given.the("ctrl"), Duration::from_millis(timeout_ms))?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_resume",
        snap: true,
        help: "Resume a suspended controller.",
        parameters: &[needed(CTRL)],
        call: |control, given| {
            control.resume(given.the("ctrl"))?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "nvme_controller_dbg_io_stats_get",
        snap: true,
        help: "Show the counters of each queue of a controller.",
        parameters: &[needed(CTRL)],
        call: |control, given| show::queues(&control.stats(), given.the("ctrl")),
    },
    Verb {
        name: "nvme_controller_dbg_debug_stats_get",
        snap: true,
        help: "Show where each queue of a controller is: heads, tails, commands in flight.",
        parameters: &[needed(CTRL)],
        call: |control, given| show::debug(&control.stats(), given.the("ctrl")),
    },
    Verb {
        name: "emulation_function_list",
        snap: true,
        help: "List the PCI functions that hosts may find.",
        parameters: &[flag("all", "Include block devices of this machine.")],
        call: |control, given| Ok(show::functions(&control.config(), &control.stats(), given.flag("all"))),
    },
    Verb {
        name: "snap_log_level_set",
        snap: true,
        help: "Set what is logged, until the gateway ends.",
        parameters: &[needed(number(
            "level",
            &["-l"],
            "0 or 1: errors; 2: warnings, too; 3 to 5: everything.",
        ))],
        call: log_level_set,
    },
    Verb {
        name: "snap_stats_get",
        snap: false,
        help: "Show all counters.",
        parameters: &[],
        call: |control, _| Ok(json!(control.stats())),
    },
    Verb {
        name: "snap_config_get",
        snap: false,
        help: "Print the current configuration as a file that the gateway can start from.",
        parameters: &[],
        call: |control, _| Ok(json!(control.config())),
    },
    Verb {
        name: "snap_hand_over",
        snap: false,
        help: "Hand everything over to another gateway; used by forebay snap --take-over.",
        parameters: &[
            needed(text("socket", &[], "Socket on which the other gateway listens.")),
            needed(number("format", &[], "Format of the state that it reads.")),
        ],
        call: |control, given| {
            let format = given.number("format").unwrap_or(0);
            control.hand_over(Path::new(given.the("socket")), format)?;
            Ok(json!(true))
        },
    },
    Verb {
        name: "rpc_get_methods",
        snap: true,
        help: "List the verbs.",
        parameters: &[],
        call: |_, _| Ok(VERBS.iter().map(|v| v.name).collect()),
    },
];

/// Default of a suspension's limit, and the greatest one, in milliseconds.
const SUSPEND_MS: u64 = 10_000;
pub(super) const SUSPEND_MS_MAX: u64 = 600_000;

fn nsid_of(given: &Arguments) -> Result<u32, Error> {
    Ok(given.fit("nsid")?.expect("required"))
}

fn qos_of(given: &Arguments) -> Result<Qos, Error> {
    let qos = Qos { rate: given.number("rate").map(Size), iops: given.number("iops") };
    qos.check().map(|()| qos)
}

fn subsystem_create(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let subsystem = Subsystem {
        nqn: given.the("nqn").into(),
        serial: given.text("serial_number").unwrap_or_default().into(),
        model: given.text("model_number").unwrap_or_default().into(),
        ..Subsystem::default()
    };
    subsystem.check()?;
    control.subsystem_create(&subsystem)?;
    Ok(json!({ "nqn": subsystem.nqn }))
}

fn subsystem_destroy(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let nqn = given.the("nqn");
    if given.flag("force") {
        let config = control.config();
        let all = config.controllers().filter(|(subsystem, _)| subsystem.nqn == nqn);
        for (_, controller) in all {
            control.controller_destroy(&controller.name, true)?;
        }
    }
    control.subsystem_destroy(nqn)?;
    Ok(json!(true))
}

fn namespace_create(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let cache = match given.text("cache") {
        None | Some("auto") => Caching::Auto,
        Some("bypass") => Caching::Bypass,
        Some("allow") => Caching::Allow,
        Some(other) => return Err(none_of("cache", other, "auto, bypass, allow")),
    };
    let namespace = Namespace {
        nsid: given.fit("nsid")?.unwrap_or(0),
        source: given.the("bdev_name").into(),
        writable: given.flag("writable"),
        block_bytes: given.fit("block_size")?,
        uuid: given.text("uuid").map(Into::into),
        cache,
        faults: None,
        qos: qos_of(given)?,
    };
    namespace.check()?;
    let nsid = control.namespace_create(given.the("nqn"), &namespace)?;
    Ok(json!({ "nqn": given.the("nqn"), "nsid": nsid }))
}

fn namespace_set_source(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let (nqn, nsid) = (given.the("nqn"), nsid_of(given)?);
    let config = control.config();
    let there = config.subsystems.iter().find(|s| s.nqn == nqn).map(|s| &s.namespaces);
    let Some(old) = there.and_then(|all| all.iter().find(|n| n.nsid == nsid)) else {
        let asked = format!("nsid {nsid} of {nqn}");
        return Err(Error::request(asked, "there is no such namespace", "nvme_namespace_list"));
    };
    let new = Namespace { source: given.the("bdev_name").into(), ..old.clone() };
    new.check()?;
    control.namespace_set_source(nqn, nsid, &new)?;
    Ok(json!(true))
}

fn controller_create(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let config = control.config();
    let taken = |name: &str| config.controllers().any(|(_, c)| c.name == name);
    let name = given.text("ctrl").map_or_else(|| free_name(taken), Into::into);
    let frontend = match given.text("front") {
        None | Some("vfio-user") => Frontend::VfioUser,
        Some("ublk") => Frontend::Ublk,
        Some(other) => return Err(none_of("front", other, "vfio-user, ublk")),
    };
    let when_down = match given.text("when_down") {
        None | Some("wait") => WhenDown::Wait,
        Some("fail") => WhenDown::Fail,
        Some(other) => return Err(none_of("when_down", other, "wait, fail")),
    };
    let rpc = rpc_path(config.rpc.as_deref());
    let folder = rpc.and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_else(runtime_directory);
    let beside = || folder.join(format!("{name}.sock")).display().to_string();
    let socket = given.text("socket").map(Into::into);
    let max_transfer = match given.number("mdts") {
        None => Controller::default().max_transfer,
        Some(power @ 1..=10) => Size(4096 << power),
        Some(other) => return Err(none_of("mdts", &other.to_string(), "1 to 10 (8 KiB to 4 MiB)")),
    };
    let controller = Controller {
        socket: if frontend == Frontend::VfioUser { socket.or_else(|| Some(beside())) } else { socket },
        name,
        frontend,
        device: given.fit("device")?,
        queues: given.fit("num_queues")?,
        queue_depth: given.fit("queue_depth")?,
        max_transfer,
        poll: given.flag("poll"),
        namespaces: Some(Vec::new()),
        suspended: given.flag("suspended"),
        when_down,
    };
    controller.check()?;
    control.controller_create(given.the("nqn"), &controller)?;
    Ok(json!({ "ctrl_id": controller.name, "socket": controller.socket }))
}

fn log_level_set(control: &dyn Control, given: &Arguments) -> Result<Value, Error> {
    let level = match given.number("level").expect("required") {
        0 | 1 => Level::Error,
        2 => Level::Warning,
        3..=5 => Level::Info,
        other => return Err(none_of("level", &other.to_string(), "0 to 5")),
    };
    let Some(log) = control.log() else {
        return Err(Error::request(
            "snap_log_level_set",
            "nothing is logged here",
            "forebay snap CONFIG.toml",
        ));
    };
    log.set_least(level);
    Ok(json!(true))
}

fn none_of(what: &str, given: &str, all: &str) -> Error {
    let shown: String = given.escape_debug().take(80).collect();
    Error::request(format!("{what} {shown}"), "there is no such", all)
}
