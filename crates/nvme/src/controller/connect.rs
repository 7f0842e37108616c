//! The Connect command, and access control (base, section 6.3).

use super::subsystem::{HostSettings, Subsystem};
use crate::command::{Cqe, Sqe, FABRICS};
use crate::fabrics::{self, cattr, fctype, Connect as Command, ConnectData, Connected, InvalidParameter};
use crate::nqn::{self, NqnField};
use crate::status::{Code, Status};
use std::mem::offset_of;
use std::ops::RangeInclusive;

pub(super) const QID: InvalidParameter = InvalidParameter::Command(offset_of!(Command, qid) as u16);
const SQSIZE: InvalidParameter = InvalidParameter::Command(offset_of!(Command, sqsize) as u16);
pub(super) const HOSTID: InvalidParameter = InvalidParameter::Data(offset_of!(ConnectData, hostid) as u16);
const CNTLID: InvalidParameter = InvalidParameter::Data(offset_of!(ConnectData, cntlid) as u16);
pub(super) const SUBNQN: InvalidParameter = InvalidParameter::Data(offset_of!(ConnectData, subnqn) as u16);
pub(super) const HOSTNQN: InvalidParameter = InvalidParameter::Data(offset_of!(ConnectData, hostnqn) as u16);

/// Entries that an admin queue may always have, however few an I/O queue has.
pub const ADMIN_ENTRIES_MAX: u16 = 128;

/// A Connect command, its strings checked for form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// 0: the admin queue.
    pub qid: u16,
    /// SQSIZE + 1.
    pub entries: u16,
    /// CATTR.
    pub attributes: u8,
    /// Keep Alive Timeout; 0: off. Of the admin queue only.
    pub keep_alive_ms: u32,
    pub host_id: [u8; 16],
    /// 0xffff: to be given by the subsystem. Of an I/O queue: whose it is.
    pub cntlid: u16,
    pub subsystem_nqn: String,
    /// Empty: a host without a name, such as SPDK's tools unless they are given one. No list of hosts has it.
    pub host_nqn: String,
    /// Its transport has the host name memory by keys (RDMA). The driver says so; nothing on the wire does.
    pub keyed: bool,
}

/// A queue that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub qid: u16,
    /// Entries of its submission queue.
    pub entries: u16,
    /// The host wants no flow control by SQHD (CATTR bit 2).
    pub no_flow_control: bool,
    /// The queue must authenticate first.
    pub authentication: bool,
    /// Result of the Connect command's completion: CNTLID, AUTHREQ.
    pub result: u64,
}

/// Why a Connect is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    pub status: Status,
    /// Result of the completion: where the wrong field is (IPO, IATTR).
    pub result: u64,
    /// Description for the log.
    pub what: String,
}

/// How people are told of a host of that name.
pub fn host_name(nqn: &str) -> &str {
    if nqn.is_empty() {
        "(without a name)"
    } else {
        nqn
    }
}

impl Connect {
    /// The first command of a queue, and its 1024 bytes of data. Anything but a Connect is a Command Sequence Error.
    pub fn parse(sqe: &Sqe, data: &[u8]) -> Result<Connect, Refusal> {
        if sqe.opcode != FABRICS || fabrics::command_type(sqe) != fctype::CONNECT {
            let what = format!("opcode {:#04x} came before Connect", sqe.opcode);
            return Err(Refusal::plain(Code::COMMAND_SEQUENCE_ERROR, what));
        }
        let command = Command::from_sqe(sqe);
        let Some(data) = ConnectData::read(data) else {
            let what = format!("Connect came with {} bytes of data, not 1024", data.len());
            return Err(Refusal::plain(Code::DATA_SGL_LENGTH_INVALID, what));
        };
        if command.recfmt.get() != 0 {
            let what = format!("Connect has record format {}, not 0", command.recfmt);
            return Err(Refusal::plain(Code::INCOMPATIBLE_FORMAT, what));
        }
        let entries = match command.sqsize.get() {
            0 | u16::MAX => return Err(Refusal::queue_size(command.sqsize.get(), u16::MAX)),
            entries => entries + 1,
        };
        Ok(Connect {
            qid: command.qid.get(),
            entries,
            attributes: command.cattr,
            keep_alive_ms: command.kato.get(),
            host_id: data.hostid,
            cntlid: data.cntlid.get(),
            subsystem_nqn: name(&data.subnqn)
                .filter(|name| !name.is_empty())
                .ok_or_else(|| Refusal::invalid(SUBNQN, "SUBNQN is no name"))?,
            host_nqn: name(&data.hostnqn).ok_or_else(|| Refusal::invalid(HOSTNQN, "HOSTNQN is no name"))?,
            keyed: false,
        })
    }

    pub(super) fn admitted(&self, cntlid: u16, authentication: bool) -> Admitted {
        let connected =
            Connected { cntlid, secure_channel_required: false, authentication_required: authentication };
        Admitted {
            qid: self.qid,
            entries: self.entries,
            no_flow_control: self.attributes & cattr::DISABLE_SQ_FLOW_CONTROL != 0,
            authentication,
            result: connected.to_result(),
        }
    }

    /// Refuses an unknown subsystem NQN.
    pub fn no_subsystem(&self) -> Refusal {
        Refusal::invalid(SUBNQN, format!("there is no subsystem {}", self.subsystem_nqn))
    }

    /// Refuses an unknown controller identifier (I/O queue).
    pub fn no_controller(&self) -> Refusal {
        Refusal::invalid(CNTLID, format!("there is no controller {}", self.cntlid))
    }

    /// No controller identifier is left, or a limit on connections is reached: the host may try again.
    pub fn busy(&self, what: impl Into<String>) -> Refusal {
        Refusal { status: Status::again(Code::CONTROLLER_BUSY), result: 0, what: what.into() }
    }
}

impl Admitted {
    pub fn completion(&self, cid: u16) -> Cqe {
        Cqe::new(cid, Status::SUCCESS, self.result)
    }
}

impl Refusal {
    pub(super) fn plain(code: Code, what: impl Into<String>) -> Refusal {
        Refusal { status: Status::fatal(code), result: 0, what: what.into() }
    }

    pub(super) fn invalid(parameter: InvalidParameter, what: impl Into<String>) -> Refusal {
        let status = Status::fatal(Code::CONNECT_INVALID_PARAMETERS);
        Refusal { status, result: parameter.to_result(), what: what.into() }
    }

    pub(super) fn queue_size(sqsize: u16, entries_max: u16) -> Refusal {
        let entries = u32::from(sqsize) + 1;
        Refusal::invalid(SQSIZE, format!("a queue of {entries} entries, where 2 to {entries_max} may be"))
    }

    pub fn completion(&self, cid: u16) -> Cqe {
        Cqe::new(cid, self.status, self.result)
    }
}

/// A name out of its field, which may be empty. Not every host keeps to the form of an NQN, so any text that is safe to
/// log is a name.
fn name(field: &NqnField) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&field[..end]).ok()?;
    let fits = name.len() <= nqn::BYTES_MAX && !name.chars().any(char::is_control);
    fits.then(|| name.to_string())
}

/// Decides whether the Connect of an admin queue is let in, and by which settings.
pub(super) fn admit<'a>(subsystem: &'a Subsystem, connect: &Connect) -> Result<&'a HostSettings, Refusal> {
    let well_known = subsystem.is_discovery() && connect.subsystem_nqn == nqn::DISCOVERY;
    if connect.subsystem_nqn != subsystem.nqn && !well_known {
        return Err(connect.no_subsystem());
    }
    if connect.qid != 0 {
        return Err(Refusal::invalid(QID, format!("queue {} came before the admin queue", connect.qid)));
    }
    let Some(settings) = subsystem.settings(&connect.host_nqn) else {
        let what = format!("host {} is not on the list of {}", host_name(&connect.host_nqn), subsystem.nqn);
        return Err(Refusal {
            result: HOSTNQN.to_result(),
            ..Refusal::plain(Code::CONNECT_INVALID_HOST, what)
        });
    };
    if connect.cntlid != fabrics::CNTLID_DYNAMIC {
        let what = format!("controller {} was asked for; they are given out (0xffff)", connect.cntlid);
        return Err(Refusal::invalid(CNTLID, what));
    }
    let entries_max = subsystem.limits.queue_entries.max(ADMIN_ENTRIES_MAX);
    if connect.entries > entries_max {
        return Err(Refusal::queue_size(connect.entries - 1, entries_max));
    }
    Ok(settings)
}

/// Controller identifiers of a subsystem, given out in turn so that a lately used one isn't used again soon.
#[derive(Clone, Debug)]
pub struct Ids {
    range: RangeInclusive<u16>,
    next: u16,
    taken: std::collections::BTreeSet<u16>,
}

impl Ids {
    pub fn new(range: RangeInclusive<u16>) -> Ids {
        let next = *range.start();
        Ids { range, next, taken: Default::default() }
    }

    /// None: all are taken.
    pub fn take(&mut self) -> Option<u16> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let id = (self.next..=last).chain(first..self.next).find(|id| !self.taken.contains(id))?;
        self.next = if id == last { first } else { id + 1 };
        self.taken.insert(id);
        Some(id)
    }

    /// Takes this one. False: it is taken, or isn't one to be given out.
    pub fn take_this(&mut self, id: u16) -> bool {
        self.range.contains(&id) && self.taken.insert(id)
    }

    pub fn give_back(&mut self, id: u16) {
        self.taken.remove(&id);
    }
}
