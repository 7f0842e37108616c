//! One controller and its namespaces: every field of Identify by its name in the specification, and what matters
//! of them in units that can be used.

use crate::source::{Accepted, Inquiry, Uri};
use crate::Error;
use forebay_io::show_uuid;
use forebay_nvme::host::{ControllerInfo, NamespaceInfo};
use forebay_nvme::identify;
use forebay_nvme::layout::{Field, Shape};
use forebay_nvme::log::AnaState;
use serde::Serialize;
use serde_json::{Map, Value};

/// Schema `forebay.identify/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Identified {
    pub schema: &'static str,
    pub uri: String,
    /// Address that answered.
    pub address: String,
    pub host_nqn: String,
    /// The properties that determine how it is best used.
    pub summary: Summary,
    /// Identify Controller: field → value.
    pub controller: Map<String, Value>,
    pub namespaces: Vec<Namespace>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub nqn: String,
    pub model: String,
    pub serial: String,
    pub firmware: String,
    /// `2.0.0`.
    pub version: String,
    pub cntlid: u16,
    /// I/O queues that it grants to one host's controller.
    pub queues: u16,
    /// Commands in flight that one I/O queue takes.
    pub queue_depth: u16,
    /// Longest transfer of one command; null: no limit.
    pub max_transfer_bytes: Option<u32>,
    /// Data of a write that may travel with its command.
    pub in_capsule_bytes: u32,
    /// Longest PDU of write data (MAXH2CDATA); 0: there are none but over TCP.
    pub max_h2c_bytes: u32,
    /// True if it agrees to header digests where a host asks; those of TCP.
    pub header_digest: bool,
    pub data_digest: bool,
    pub keep_alive_granularity_ms: u32,
    pub volatile_write_cache: bool,
    /// Asymmetric namespace access is reported.
    pub ana: bool,
    /// Optional commands, by name.
    pub commands: Vec<&'static str>,
    /// Asynchronous events that it can report, by name.
    pub events: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Namespace {
    pub nsid: u32,
    pub bytes: u64,
    pub block_bytes: u32,
    pub read_only: bool,
    pub uuid: Option<String>,
    pub nguid: Option<String>,
    pub eui64: Option<String>,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss`, `change`; null where it isn't reported.
    pub ana_state: Option<&'static str>,
    pub ana_group: u32,
    /// Source URI to type.
    pub uri: String,
    /// Identify Namespace: field → value.
    pub identify: Map<String, Value>,
}

/// ONCS (base, figure 275).
const COMMANDS: [(u16, &str); 9] = [
    (0, "compare"),
    (1, "write uncorrectable"),
    (2, "dataset management"),
    (3, "write zeroes"),
    (4, "save and select in features"),
    (5, "reservations"),
    (6, "timestamp"),
    (7, "verify"),
    (8, "copy"),
];

/// OAES (base, figure 275).
const EVENTS: [(u16, &str); 5] = [
    (8, "namespaces changed"),
    (9, "firmware activation"),
    (11, "ANA changed"),
    (14, "endurance group"),
    (31, "discovery log changed"),
];

/// Connects to the subsystem that `text` names, asks, and leaves. With `nsid=` in it, for that namespace alone.
///
/// # Errors
/// `Request`: no source with an NVMe controller behind it, or the target refuses this host. `Machine`: nothing answers there.
/// `Run`: what answers doesn't keep to the protocol.
pub fn identify(text: &str, inquiry: &Inquiry) -> Result<Identified, Error> {
    let uri = Uri::recognise(text)?;
    let report = uri.identify(inquiry, text.contains("nsid=")).unwrap_or_else(|| {
        let found = "is neither a nvme+tcp:, a nvme+rdma: nor a vfio-user: URI";
        let next = "nvme+tcp://HOST:4420/NQN (forebay discover HOST shows them), or vfio-user:SOCKET";
        Err(Error::request(format!("'{text}'"), found, next))
    })?;
    let namespaces =
        report.namespaces.iter().map(|n| namespace(n, &report.uri, &report.controller)).collect();
    Ok(Identified {
        schema: "forebay.identify/1",
        address: report.address,
        host_nqn: report.host_nqn,
        summary: summary(&report.controller, report.accepted),
        controller: fields(identify::Controller::FIELDS, &report.controller.raw),
        namespaces,
        uri: report.uri,
    })
}

fn summary(info: &ControllerInfo, accepted: Accepted) -> Summary {
    let version = info.version;
    Summary {
        nqn: info.subsystem_nqn.clone(),
        model: info.model.clone(),
        serial: info.serial.clone(),
        firmware: info.firmware.clone(),
        version: format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff),
        cntlid: info.cntlid,
        queues: info.queues,
        queue_depth: info.queue_entries.saturating_sub(1),
        max_transfer_bytes: info.transfer_bytes,
        in_capsule_bytes: info.in_capsule_bytes,
        max_h2c_bytes: accepted.max_h2c_bytes,
        header_digest: accepted.header_digest,
        data_digest: accepted.data_digest,
        keep_alive_granularity_ms: info.keep_alive_granularity_ms,
        volatile_write_cache: info.volatile_write_cache,
        ana: info.ana,
        commands: set(&COMMANDS, info.optional_commands.into()),
        events: set(&EVENTS, info.events),
    }
}

/// Names of the bits that are set.
fn set(names: &[(u16, &'static str)], bits: u32) -> Vec<&'static str> {
    names.iter().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, name)| *name).collect()
}

fn namespace(info: &NamespaceInfo, base: &str, controller: &ControllerInfo) -> Namespace {
    Namespace {
        nsid: info.nsid,
        bytes: info.blocks.saturating_mul(info.block_bytes.into()),
        block_bytes: info.block_bytes,
        read_only: info.read_only,
        uuid: info.uuid.map(|u| show_uuid(&u)),
        nguid: info.nguid.map(|n| hex(&n)),
        eui64: info.eui64.map(|e| hex(&e)),
        ana_state: controller.ana.then(|| ana(info.ana_state)),
        ana_group: info.ana_group,
        uri: format!("{base}?nsid={}", info.nsid),
        identify: fields(identify::Namespace::FIELDS, &info.raw),
    }
}

fn ana(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non-optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent-loss",
        AnaState::Change => "change",
    }
}

/// Numbers as numbers (as text above 64 bits), text as text, short byte strings in hexadecimal. Reserved and
/// vendor-specific parts, and tables (power states, LBA formats), are left out.
fn fields(table: &[Field], raw: &[u8]) -> Map<String, Value> {
    let kept = table.iter().filter(|f| !f.is_reserved());
    kept.filter_map(|field| Some((field.name.to_string(), value(field, raw)?))).collect()
}

fn value(field: &Field, raw: &[u8]) -> Option<Value> {
    let bytes = raw.get(field.offset..field.offset + field.bytes)?;
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim_end().to_string()
    };
    match field.shape {
        Shape::Number => {
            let number = field.number(raw)?;
            Some(u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from))
        }
        Shape::Text => Some(text(bytes).into()),
        Shape::Bytes if field.name == "subnqn" => Some(text(bytes).into()),
        Shape::Bytes if field.bytes <= 16 => Some(hex(bytes).into()),
        Shape::Bytes => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_bear_the_specifications_names() {
        let table = identify::Controller::FIELDS;
        let mut raw = vec![0; identify::BYTES];
        let mut put = |name: &str, bytes: &[u8]| {
            let at = table.iter().find(|f| f.name == name).unwrap().offset;
            raw[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put("mdts", &[5]);
        put("sn", b"S1                  ");
        put("subnqn", b"nqn.x");
        put("tnvmcap", &(1u128 << 100).to_le_bytes());
        put("ieee", &[1, 2, 3]);
        let found = fields(table, &raw);
        assert_eq!(found["mdts"], 5);
        assert_eq!(found["sn"], "S1");
        assert_eq!(found["subnqn"], "nqn.x");
        assert_eq!(found["tnvmcap"], (1u128 << 100).to_string());
        assert_eq!(found["ieee"], "010203");
        assert!(!found.contains_key("psd") && !found.keys().any(|k| k.starts_with("reserved")));
        assert!(fields(identify::Controller::FIELDS, &[]).is_empty());
    }

    #[test]
    fn bits_are_named() {
        assert_eq!(set(&COMMANDS, 0b1000_1101), ["compare", "dataset management", "write zeroes", "verify"]);
        assert_eq!(set(&EVENTS, 1 << 8 | 1 << 31), ["namespaces changed", "discovery log changed"]);
    }

    #[test]
    fn what_is_no_remote_source_is_refused() {
        let inquiry = Inquiry { host_nqn: None, timeout: std::time::Duration::from_millis(100) };
        for text in ["nil:", "/tmp", "nvme+tcp:x"] {
            assert_eq!(identify(text, &inquiry).unwrap_err().kind, crate::Kind::Request, "{text}");
        }
    }
}
