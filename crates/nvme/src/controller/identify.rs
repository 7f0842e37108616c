//! Identify (base, section 5.17): the data structures of the controller and its namespaces.

use super::association::Association;
use super::events::{events_of, HEALTH_WARNINGS};
use super::features::WRITE_PROTECTION_CAPABILITIES;
use super::property::VERSION;
use super::subsystem::{Limits, Namespace, ANA_GROUPS_MAX, NAMESPACES_MAX};
use super::{errors, Function};
use crate::identify::{
    self as layout, anacap, cmic, cns, cntrltype, csi, ctratt, lpa, nsfeat, oacs, oncs, sgls, vwc,
    Descriptor, Identify, NamespaceList,
};
use crate::status::Code;
use crate::text::Text;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Time that a normal shutdown may take, µs (RTD3E): caches are written back in it.
const SHUTDOWN_US: u32 = 30_000_000;
/// Seconds that an ANA group may stay in the state "change" (ANATT).
const ANA_TRANSITION_S: u8 = 10;
/// Aborts at once, 0's based (ACL).
pub(super) const ABORTS: u8 = 3;
/// A single firmware slot, read-only (FRMW).
const ONE_FIRMWARE_SLOT: u8 = 0b11;

/// The data structure that was asked for.
pub(super) fn identify(of: &Association, asked: &Identify) -> Result<Vec<u8>, Code> {
    let Some(all) = of.subsystem.namespaces() else {
        let known = asked.cns == cns::CONTROLLER;
        return if known { Ok(identify_discovery(of)) } else { Err(Code::INVALID_FIELD) };
    };
    let specific = matches!(
        asked.cns,
        cns::COMMAND_SET_NAMESPACE | cns::COMMAND_SET_CONTROLLER | cns::COMMAND_SET_ACTIVE_NAMESPACES
    );
    if specific && asked.csi != csi::NVM {
        return Err(Code::INVALID_FIELD);
    }
    Ok(match asked.cns {
        cns::CONTROLLER => identify_nvm(of, all),
        cns::NAMESPACE => match named(all, asked.nsid)? {
            Some(namespace) => alone(of, describe(namespace)).as_bytes().to_vec(),
            None => blank(),
        },
        cns::ACTIVE_NAMESPACES | cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            // FFFFFFFEh and FFFFFFFFh are not to be listed from (base, section 5.17.2.2).
            if asked.nsid >= u32::MAX - 1 {
                return Err(Code::INVALID_NAMESPACE);
            }
            NamespaceList::new(asked.nsid, all.keys().copied()).as_bytes().to_vec()
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let namespace = named(all, asked.nsid)?.ok_or(Code::INVALID_NAMESPACE)?;
            layout::descriptors(&identifiers(namespace)).to_vec()
        }
        cns::COMMAND_SET_NAMESPACE => named(all, asked.nsid).map(|_| blank())?,
        cns::COMMAND_SET_CONTROLLER => blank(),
        cns::INDEPENDENT_NAMESPACE => match named(all, asked.nsid)? {
            Some(namespace) => alone_independent(of, describe_independent(namespace)).as_bytes().to_vec(),
            None => blank(),
        },
        cns::COMMAND_SETS => layout::CommandSets::nvm().as_bytes().to_vec(),
        _ => return Err(Code::INVALID_FIELD),
    })
}

/// The fields that both kinds of controller have in common.
fn common(of: &Association) -> layout::Controller {
    let subsystem = &*of.subsystem;
    let limits = &subsystem.limits;
    let moves = if of.transport.is_keyed() { sgls::KEYED } else { sgls::TRANSPORT };
    let mut subnqn = [0; 256];
    let name = &subsystem.nqn.as_bytes()[..subsystem.nqn.len().min(223)];
    subnqn[..name.len()].copy_from_slice(name);
    layout::Controller {
        sn: Text::new(&subsystem.serial),
        mn: Text::new(&subsystem.model),
        fr: Text::new(&subsystem.firmware),
        mdts: limits.transfer_exponent(),
        cntlid: of.id.into(),
        ver: VERSION.0.into(),
        rtd3e: SHUTDOWN_US.into(),
        ctratt: (ctratt::HOST_ID_128 | ctratt::TRAFFIC_BASED_KEEP_ALIVE).into(),
        acl: ABORTS,
        aerl: limits.async_events.max(1) - 1,
        frmw: ONE_FIRMWARE_SLOT,
        lpa: lpa::COMMAND_EFFECTS | lpa::EXTENDED_DATA | lpa::SUPPORTED_LOG_PAGES,
        elpe: (errors::ENTRIES_MAX - 1) as u8,
        kas: limits.keep_alive_units().into(),
        maxcmd: of.queue_entries.into(),
        sgls: (sgls::SUPPORTED | sgls::OFFSET | moves).into(),
        subnqn,
        ioccsz: in_sixteens(limits).into(),
        iorcsz: 1.into(),
        msdbd: 1,
        ofcs: 1.into(),
        ..layout::Controller::default()
    }
}

fn identify_nvm(of: &Association, namespaces: &BTreeMap<u32, Namespace>) -> Vec<u8> {
    let cached = namespaces.values().any(|namespace| namespace.volatile_write_cache);
    let commands = oncs::COMPARE
        | oncs::DATASET_MANAGEMENT
        | oncs::WRITE_ZEROES
        | oncs::SAVE
        | oncs::TIMESTAMP
        | oncs::VERIFY;
    let states = anacap::OPTIMIZED
        | anacap::NON_OPTIMIZED
        | anacap::INACCESSIBLE
        | anacap::PERSISTENT_LOSS
        | anacap::CHANGE;
    let controller = layout::Controller {
        cntrltype: cntrltype::IO,
        cmic: cmic::MULTIPLE_PORTS | cmic::MULTIPLE_CONTROLLERS | cmic::ANA_REPORTING,
        oaes: (events_of(of) & !HEALTH_WARNINGS).into(),
        anatt: ANA_TRANSITION_S,
        anacap: states,
        anagrpmax: ANA_GROUPS_MAX.into(),
        nanagrpid: ANA_GROUPS_MAX.into(),
        sqes: 0x66,
        cqes: 0x44,
        nn: NAMESPACES_MAX.into(),
        mnan: NAMESPACES_MAX.into(),
        oncs: commands.into(),
        vwc: if cached { vwc::PRESENT | vwc::FLUSH_ALL } else { vwc::FLUSH_ALL },
        nwpc: WRITE_PROTECTION_CAPABILITIES,
        ..common(of)
    };
    match of.function() {
        Some(function) => of_function(controller, function).as_bytes().to_vec(),
        None => controller.as_bytes().to_vec(),
    }
}

/// A function's namespace belongs to no other controller, and to no ANA group.
fn alone(of: &Association, namespace: layout::Namespace) -> layout::Namespace {
    match of.is_pcie() {
        true => layout::Namespace { nmic: 0, anagrpid: 0.into(), ..namespace },
        false => namespace,
    }
}

fn alone_independent(
    of: &Association,
    namespace: layout::IndependentNamespace,
) -> layout::IndependentNamespace {
    match of.is_pcie() {
        true => layout::IndependentNamespace { nmic: 0, anagrpid: 0.into(), ..namespace },
        false => namespace,
    }
}

fn identify_discovery(of: &Association) -> Vec<u8> {
    let controller =
        layout::Controller { cntrltype: cntrltype::DISCOVERY, oaes: events_of(of).into(), ..common(of) };
    controller.as_bytes().to_vec()
}

/// IOCCSZ: a command and its data, in units of 16 bytes.
fn in_sixteens(limits: &Limits) -> u32 {
    limits.in_capsule_bytes / 16 + 4
}

/// Recommended Arbitration Burst: 64 commands.
const RECOMMENDED_BURST: u8 = 6;

/// Returns a function's variant of the data: SGLs whose addresses are the host's memory, no capsules, no keep alive,
/// no other controllers.
fn of_function(controller: layout::Controller, function: Function) -> layout::Controller {
    layout::Controller {
        vid: function.vendor.into(),
        rab: RECOMMENDED_BURST,
        ssvid: function.subsystem_vendor.into(),
        cmic: 0,
        ctratt: 0.into(),
        oacs: if function.shadow_doorbells { oacs::DOORBELL_BUFFER_CONFIG.into() } else { 0.into() },
        kas: 0.into(),
        anatt: 0,
        anacap: 0,
        anagrpmax: 0.into(),
        nanagrpid: 0.into(),
        maxcmd: 0.into(),
        sgls: sgls::SUPPORTED.into(),
        ioccsz: 0.into(),
        iorcsz: 0.into(),
        msdbd: 0,
        ofcs: 0.into(),
        ..controller
    }
}

fn blank() -> Vec<u8> {
    vec![0; layout::BYTES]
}

/// The namespace; None: inactive. Err: no namespace can have that identifier.
fn named(all: &BTreeMap<u32, Namespace>, nsid: u32) -> Result<Option<&Namespace>, Code> {
    match nsid {
        1..=NAMESPACES_MAX => Ok(all.get(&nsid)),
        _ => Err(Code::INVALID_NAMESPACE),
    }
}

fn identifiers(namespace: &Namespace) -> Vec<Descriptor> {
    let eui64 = namespace.eui64.map(Descriptor::Eui64);
    let nguid = namespace.nguid.map(Descriptor::Nguid);
    let uuid = namespace.uuid.map(Descriptor::Uuid);
    eui64.into_iter().chain(nguid).chain(uuid).chain([Descriptor::Csi(csi::NVM)]).collect()
}

fn describe(namespace: &Namespace) -> layout::Namespace {
    let optimal = &namespace.optimal;
    let sizes = [optimal.write_granularity, optimal.deallocate_granularity, optimal.write];
    let noughts_based = |blocks: u16| blocks.saturating_sub(1).into();
    layout::Namespace {
        nsfeat: if sizes == [0; 3] { 0 } else { nsfeat::OPTIMAL_SIZES },
        nmic: layout::NMIC_SHARED,
        noiob: optimal.boundary.into(),
        npwg: noughts_based(optimal.write_granularity),
        npwa: noughts_based(optimal.write_granularity),
        npdg: noughts_based(optimal.deallocate_granularity),
        npda: noughts_based(optimal.deallocate_granularity),
        nows: noughts_based(optimal.write),
        anagrpid: namespace.ana_group.into(),
        nsattr: attributes(namespace),
        nguid: namespace.nguid.unwrap_or_default(),
        eui64: namespace.eui64.unwrap_or_default(),
        ..layout::Namespace::new(namespace.block_bytes, namespace.blocks)
    }
}

fn describe_independent(namespace: &Namespace) -> layout::IndependentNamespace {
    layout::IndependentNamespace {
        nmic: layout::NMIC_SHARED,
        anagrpid: namespace.ana_group.into(),
        nsattr: attributes(namespace),
        nstat: 1,
        ..layout::IndependentNamespace::default()
    }
}

fn attributes(namespace: &Namespace) -> u8 {
    if namespace.read_only {
        layout::NSATTR_WRITE_PROTECTED
    } else {
        0
    }
}
