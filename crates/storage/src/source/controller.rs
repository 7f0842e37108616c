//! What an NVMe controller or a discovery service says of itself, to a host that asks for that alone.

use forebay_io::NvmeHostIdentity;
use forebay_model::Error;
use forebay_nvme::host::{ControllerInfo, NamespaceInfo};
use forebay_nvme::nqn::Nqn;
use serde::Serialize;
use std::time::Duration;

/// Identity of the host that asks, and its time limit.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// None: this host's own.
    pub host_nqn: Option<String>,
    pub timeout: Duration,
}

impl Inquiry {
    /// Returns the identity that this host claims.
    ///
    /// # Errors
    /// `Request`: by a name that is no NQN.
    pub(super) fn identity(&self) -> Result<NvmeHostIdentity, Error> {
        let Some(named) = &self.host_nqn else { return Ok(NvmeHostIdentity::of_this_machine()) };
        Nqn::new(named).map_err(|e| {
            let next = "--hostnqn nqn.2014-08.org.example:host";
            Error::request(format!("--hostnqn {named}"), e.to_string(), next)
        })?;
        Ok(NvmeHostIdentity::named(named))
    }
}

/// Parameters of a connection that the other end accepted (ICResp); none where there is no such connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accepted {
    /// MAXH2CDATA, bytes.
    pub max_h2c_bytes: u32,
    pub header_digest: bool,
    pub data_digest: bool,
}

/// Answer of a controller that was asked for all that it is.
#[derive(Clone, Debug)]
pub struct ControllerReport {
    /// URI of the subsystem; a namespace's has `nsid=` behind it.
    pub uri: String,
    /// Address that answered.
    pub address: String,
    /// Empty where hosts have no names.
    pub host_nqn: String,
    pub accepted: Accepted,
    pub controller: ControllerInfo,
    pub namespaces: Vec<NamespaceInfo>,
}

/// Schema `forebay.discover/1`: field names as in the specification and in nvme-cli.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Discovered {
    pub schema: &'static str,
    /// Address that answered.
    pub address: String,
    pub host_nqn: String,
    /// Generation counter of the log.
    pub genctr: u64,
    /// Records that can't be read: no name in them.
    pub malformed: u64,
    pub records: Vec<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    pub trtype: String,
    pub adrfam: String,
    pub subtype: String,
    pub treq: String,
    pub portid: u16,
    /// 65535: controllers are given dynamically.
    pub cntlid: u16,
    pub asqsz: u16,
    pub trsvcid: String,
    pub subnqn: String,
    pub traddr: String,
    pub eflags: u16,
    pub sectype: String,
    /// Source URI to type; null where it isn't an NVM subsystem over TCP or RDMA.
    pub uri: Option<String>,
}
