//! Identify (base, section 5.17): the properties of a controller and its namespaces. Fields have the specification's
//! names in lower case.

mod namespace;

pub use namespace::{
    descriptors, dlfeat, nsfeat, parse_descriptors, CommandSets, Descriptor, IndependentNamespace, LbaFormat,
    Namespace, NamespaceList, NvmController, NvmNamespace, NMIC_SHARED, NSATTR_WRITE_PROTECTED,
};

use crate::command::{admin, Sqe};
use crate::layout::layout;
use crate::nqn::NqnField;
use crate::text::Text;
use zerocopy::little_endian::{U128, U16, U32};

/// Every Identify data structure has this many bytes.
pub const BYTES: usize = 4096;

/// Controller or Namespace Structure: the requested data structure (base, figure 273).
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces above CDW1's NSID, in order.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// The parts that belong to an I/O command set (CSI in CDW11).
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// I/O Command Set Independent Identify Namespace.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const CONTROLLERS_OF_NAMESPACE: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Command Set Identifier (base, section 3.1.2; figure 274).
pub mod csi {
    pub const NVM: u8 = 0x00;
}

/// The NSID that stands for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// The parameters of an Identify command (base, section 5.17.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    pub nsid: u32,
    pub cns: u8,
    /// CNTID, for lists of controllers: the first one wanted.
    pub cntid: u16,
    pub csi: u8,
}

impl Identify {
    pub fn parse(sqe: &Sqe) -> Identify {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Identify {
            nsid: sqe.nsid.get(),
            cns: cdw10 as u8,
            cntid: (cdw10 >> 16) as u16,
            csi: (cdw11 >> 24) as u8,
        }
    }

    /// The transport fills in the SGL; the response has `BYTES`.
    pub fn to_sqe(self) -> Sqe {
        Sqe {
            opcode: admin::IDENTIFY,
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.cns) | u32::from(self.cntid) << 16).into(),
            cdw11: (u32::from(self.csi) << 24).into(),
            ..Sqe::default()
        }
    }
}

layout! {
    /// Power State Descriptor (base, figure 276).
    PowerState, 32 bytes {
        /// Maximum power; of 0.01 W, or 0.0001 W where `flags` bit 0 (MXPS) says so.
        0 mp: U16,
        2 reserved_2: u8,
        /// MXPS bit 0, NOPS bit 1.
        3 flags: u8,
        /// Entry latency, µs.
        4 enlat: U32,
        /// Exit latency, µs.
        8 exlat: U32,
        12 rrt: u8,
        13 rrl: u8,
        14 rwt: u8,
        15 rwl: u8,
        16 idlp: U16,
        18 ips: u8,
        19 reserved_19: u8,
        20 actp: U16,
        22 apw: u8,
        23 reserved_23: [u8; 9],
    }
}

layout! {
    /// Identify Controller (CNS 01h; base, figure 275; what only fabrics have from byte 1792 on).
    Controller, 4096 bytes {
        /// PCI Vendor ID.
        0 vid: U16,
        /// PCI Subsystem Vendor ID.
        2 ssvid: U16,
        /// Serial Number.
        4 sn: Text<20>,
        /// Model Number.
        24 mn: Text<40>,
        /// Firmware Revision.
        64 fr: Text<8>,
        /// Recommended Arbitration Burst, commands as a power of two.
        72 rab: u8,
        /// IEEE OUI, least significant byte first.
        73 ieee: [u8; 3],
        /// Controller Multi-Path I/O and Namespace Sharing: `cmic`.
        76 cmic: u8,
        /// Maximum Data Transfer Size: a power of two, in units of CAP.MPSMIN; 0 is no limit.
        77 mdts: u8,
        /// Controller ID.
        78 cntlid: U16,
        /// Version: as the property VS.
        80 ver: U32,
        /// RTD3 Resume Latency, µs.
        84 rtd3r: U32,
        /// RTD3 Entry Latency, µs: how long a normal shutdown may take.
        88 rtd3e: U32,
        /// Optional Asynchronous Events Supported: `feature::event_mask`.
        92 oaes: U32,
        /// Controller Attributes: `ctratt`.
        96 ctratt: U32,
        100 rrls: U16,
        102 reserved_102: [u8; 9],
        /// Controller Type: `cntrltype`.
        111 cntrltype: u8,
        /// FRU Globally Unique Identifier.
        112 fguid: [u8; 16],
        /// Command Retry Delay Times, of 100 ms each.
        128 crdt1: U16,
        130 crdt2: U16,
        132 crdt3: U16,
        134 reserved_134: [u8; 119],
        253 nvmsr: u8,
        254 vwci: u8,
        255 mec: u8,
        /// Optional Admin Command Support.
        256 oacs: U16,
        /// Abort Command Limit, 0's based.
        258 acl: u8,
        /// Asynchronous Event Request Limit, 0's based.
        259 aerl: u8,
        /// Firmware Updates.
        260 frmw: u8,
        /// Log Page Attributes: `lpa`.
        261 lpa: u8,
        /// Error Log Page Entries, 0's based.
        262 elpe: u8,
        /// Number of Power States Support, 0's based.
        263 npss: u8,
        264 avscc: u8,
        265 apsta: u8,
        /// Warning Composite Temperature Threshold, kelvin.
        266 wctemp: U16,
        /// Critical Composite Temperature Threshold, kelvin.
        268 cctemp: U16,
        270 mtfa: U16,
        272 hmpre: U32,
        276 hmmin: U32,
        /// Total NVM Capacity, bytes.
        280 tnvmcap: U128,
        /// Unallocated NVM Capacity, bytes.
        296 unvmcap: U128,
        312 rpmbs: U32,
        316 edstt: U16,
        318 dsto: u8,
        319 fwug: u8,
        /// Keep Alive Support: granularity of the keep alive timer, of 100 ms each; 0: not supported.
        320 kas: U16,
        322 hctma: U16,
        324 mntmt: U16,
        326 mxtmt: U16,
        328 sanicap: U32,
        332 hmminds: U32,
        336 hmmaxd: U16,
        338 nsetidmax: U16,
        340 endgidmax: U16,
        /// ANA Transition Time, s.
        342 anatt: u8,
        /// Asymmetric Namespace Access Capabilities: `anacap`.
        343 anacap: u8,
        /// ANA Group Identifier Maximum.
        344 anagrpmax: U32,
        /// Number of ANA Group Identifiers.
        348 nanagrpid: U32,
        352 pels: U32,
        /// Domain Identifier.
        356 domainid: U16,
        358 reserved_358: [u8; 10],
        368 megcap: U128,
        384 reserved_384: [u8; 2],
        /// Command Quiesce Time, ms (base 2.1).
        386 cqt: U16,
        388 reserved_388: [u8; 124],
        /// Submission Queue Entry Size, powers of two: required in bits 3:0, most in bits 7:4.
        512 sqes: u8,
        /// Completion Queue Entry Size, likewise.
        513 cqes: u8,
        /// Maximum Outstanding Commands; 0: not said.
        514 maxcmd: U16,
        /// Number of Namespaces: greatest NSID.
        516 nn: U32,
        /// Optional NVM Command Support: `oncs`.
        520 oncs: U16,
        /// Fused Operation Support.
        522 fuses: U16,
        /// Format NVM Attributes.
        524 fna: u8,
        /// Volatile Write Cache: `vwc`.
        525 vwc: u8,
        /// Atomic Write Unit Normal, blocks, 0's based.
        526 awun: U16,
        /// Atomic Write Unit Power Fail, blocks, 0's based.
        528 awupf: U16,
        530 icsvscc: u8,
        /// Namespace Write Protection Capabilities: bit 0, write protect can be set.
        531 nwpc: u8,
        /// Atomic Compare & Write Unit, blocks, 0's based.
        532 acwu: U16,
        534 ocfs: U16,
        /// SGL Support: `sgls`.
        536 sgls: U32,
        /// Maximum Number of Allowed Namespaces.
        540 mnan: U32,
        544 maxdna: U128,
        560 maxcna: U32,
        564 reserved_564: [u8; 204],
        /// NVM Subsystem NVMe Qualified Name.
        768 subnqn: NqnField,
        1024 reserved_1024: [u8; 768],
        /// I/O Queue Command Capsule Supported Size, of 16 bytes each: 64 for the command, the rest for data.
        1792 ioccsz: U32,
        /// I/O Queue Response Capsule Supported Size, of 16 bytes each.
        1796 iorcsz: U32,
        /// In Capsule Data Offset, of 16 bytes each, behind the command.
        1800 icdoff: U16,
        /// Fabrics Controller Attributes: bit 0, static controller model.
        1802 fcatt: u8,
        /// Maximum SGL Data Block Descriptors; 0: no limit.
        1803 msdbd: u8,
        /// Optional Fabric Commands Support: bit 0, Disconnect.
        1804 ofcs: U16,
        /// Discovery Controller Type.
        1806 dctype: u8,
        1807 reserved_1807: [u8; 241],
        2048 psd: [PowerState; 32],
        3072 vs: [u8; 1024],
    }
}

/// Controller Type.
pub mod cntrltype {
    pub const IO: u8 = 1;
    pub const DISCOVERY: u8 = 2;
    pub const ADMINISTRATIVE: u8 = 3;
}

/// Controller Multi-Path I/O and Namespace Sharing Capabilities.
pub mod cmic {
    pub const MULTIPLE_PORTS: u8 = 1 << 0;
    pub const MULTIPLE_CONTROLLERS: u8 = 1 << 1;
    pub const ANA_REPORTING: u8 = 1 << 3;
}

/// Controller Attributes.
pub mod ctratt {
    /// Host identifiers of 128 bits.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Traffic Based Keep Alive Support.
    pub const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    pub const EXTENDED_LBA_FORMATS: u32 = 1 << 15;
}

/// Log Page Attributes.
pub mod lpa {
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const COMMAND_EFFECTS: u8 = 1 << 1;
    /// Extended Data: NUMDU and offsets in Get Log Page.
    pub const EXTENDED_DATA: u8 = 1 << 2;
    pub const TELEMETRY: u8 = 1 << 3;
    pub const PERSISTENT_EVENT: u8 = 1 << 4;
    /// Supported Log Pages (and scopes in the effects log).
    pub const SUPPORTED_LOG_PAGES: u8 = 1 << 5;
}

/// Asymmetric Namespace Access Capabilities.
pub mod anacap {
    pub const OPTIMIZED: u8 = 1 << 0;
    pub const NON_OPTIMIZED: u8 = 1 << 1;
    pub const INACCESSIBLE: u8 = 1 << 2;
    pub const PERSISTENT_LOSS: u8 = 1 << 3;
    pub const CHANGE: u8 = 1 << 4;
    /// A namespace keeps its ANA group while it is attached.
    pub const GROUP_STAYS: u8 = 1 << 6;
}

/// Optional Admin Command Support.
pub mod oacs {
    pub const DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;
}

/// Optional NVM Command Support.
pub mod oncs {
    pub const COMPARE: u16 = 1 << 0;
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save and Select in Set and Get Features.
    pub const SAVE: u16 = 1 << 4;
    pub const RESERVATIONS: u16 = 1 << 5;
    pub const TIMESTAMP: u16 = 1 << 6;
    pub const VERIFY: u16 = 1 << 7;
    pub const COPY: u16 = 1 << 8;
}

/// Volatile Write Cache.
pub mod vwc {
    pub const PRESENT: u8 = 1 << 0;
    /// Flush with NSID FFFFFFFFh flushes all namespaces (bits 2:1).
    pub const FLUSH_ALL: u8 = 0b11 << 1;
}

/// SGL Support.
pub mod sgls {
    /// Bits 1:0: SGLs are supported, with no alignment.
    pub const SUPPORTED: u32 = 0b01;
    /// Keyed SGL Data Block descriptors.
    pub const KEYED: u32 = 1 << 2;
    /// An address may be an offset within the capsule.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL Data Block descriptors.
    pub const TRANSPORT: u32 = 1 << 21;
}

impl Controller {
    /// The bytes of a complete Identify response.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> &Controller {
        zerocopy::transmute_ref!(bytes)
    }

    /// Longest transfer, bytes; None: no limit. `page_bytes_min`: CAP.MPSMIN. A power beyond reason is no limit.
    pub fn transfer_bytes_max(&self, page_bytes_min: u32) -> Option<u32> {
        match self.mdts {
            0 => None,
            power => 1u32.checked_shl(power.into()).and_then(|pages| pages.checked_mul(page_bytes_min)),
        }
    }

    /// Bytes of data that a command capsule of an I/O queue may carry. 0 where ICDOFF leaves a gap, which NVMe/TCP
    /// doesn't have (tcp, section 3.3).
    pub fn in_capsule_bytes_max(&self) -> u32 {
        match self.icdoff.get() {
            0 => self.ioccsz.get().saturating_mul(16).saturating_sub(64),
            _ => 0,
        }
    }

    /// Granularity of the keep alive timer, ms. None: no keep alive.
    pub fn keep_alive_granularity_ms(&self) -> Option<u32> {
        match self.kas.get() {
            0 => None,
            kas => Some(u32::from(kas) * 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn what_peers_say_is_read_as_they_mean_it() {
        // Linux 6.12: MDTS 0, IOCCSZ 1028, KAS 10; SPDK: MDTS 5, IOCCSZ 260, KAS 100.
        let linux = Controller { ioccsz: 1028.into(), kas: 10.into(), ..Controller::default() };
        let spdk = Controller { mdts: 5, ioccsz: 260.into(), kas: 100.into(), ..Controller::default() };
        assert_eq!((linux.transfer_bytes_max(4096), spdk.transfer_bytes_max(4096)), (None, Some(128 << 10)));
        assert_eq!((linux.in_capsule_bytes_max(), spdk.in_capsule_bytes_max()), (16 << 10, 4 << 10));
        assert_eq!(linux.keep_alive_granularity_ms(), Some(1_000));
        assert_eq!(spdk.keep_alive_granularity_ms(), Some(10_000));
        let absurd = Controller { mdts: 255, ioccsz: u32::MAX.into(), ..Controller::default() };
        assert_eq!((absurd.transfer_bytes_max(4096), absurd.in_capsule_bytes_max()), (None, u32::MAX - 64));
        assert_eq!(Controller::default().in_capsule_bytes_max(), 0);
    }

    #[test]
    fn numbers_are_found_by_name() {
        let controller =
            Controller { mdts: 5, nn: 77.into(), tnvmcap: (1 << 90).into(), ..Controller::default() };
        let value = |name| {
            let field = Controller::FIELDS.iter().find(|field| field.name == name).unwrap();
            field.number(controller.as_bytes())
        };
        assert_eq!((value("mdts"), value("nn"), value("tnvmcap")), (Some(5), Some(77), Some(1 << 90)));
        assert_eq!(value("sn"), None);
    }

    #[test]
    fn an_identify_command_says_what_it_was_built_for() {
        let identify = Identify { nsid: 9, cns: cns::COMMAND_SET_NAMESPACE, cntid: 0x1234, csi: 2 };
        assert_eq!(Identify::parse(&identify.to_sqe()), identify);
    }
}
