//! Storage for other machines and guests: an NVMe over Fabrics target, a gateway of emulated drives, and Linux block devices.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod gateway;
mod namespace;
mod target;
mod ublk;

pub use forebay_model::{Error, Kind};

// What target and gateway share: namespaces on any source, their counts, and the log.
pub use target::config::{Caching, Namespace, Size};
pub use target::log::{log_to_stderr, Entry as LogEntry, Sink as LogSink};
pub use target::stats::{Counts, NamespaceStats};

// The NVMe over Fabrics target.
pub use target::config::{Ana, Host as AllowedHost, Subsystem as TargetSubsystem};
pub use target::reload::{apply_changes, config_changes, number_namespaces, Changes as ConfigChanges};
pub use target::{Config as TargetConfig, Server as TargetServer, Stats as TargetStats};

// Linux block devices.
pub use ublk::{delete_ublk, ublk_devices, Options as UblkOptions, Ublk};

// The gateway: drives for virtual machines, what keeps them while it ends, and its remote procedure calls.
pub use gateway::config::{
    Config as GatewayConfig, Controller as GatewayController, Frontend, Namespace as GatewayNamespace, Qos,
    Subsystem as GatewaySubsystem,
};
pub use gateway::handover::wire::{parse_handover, Line as HandoverLine};
pub use gateway::handover::Message as HandoverMessage;
pub use gateway::rpc::client::{call_gateway, parse_rpc, rpc_flags, run_rpc, Asked as RpcRequest};
pub use gateway::rpc::{
    answer_rpc, Broken as BrokenFrame, Control as RpcControl, Frames as RpcFrames, Server as RpcServer,
    VERBS as RPC_VERBS,
};
pub use gateway::service::Service as GatewayService;
pub use gateway::stats::{ControllerState, ControllerStats, Stats as GatewayStats};
pub use gateway::supervisor::{supervise, Supervisor};
pub use gateway::Gateway;

// Its protocol towards a virtual machine, vfio-user: what comes from outside, for tests of its own.
pub use gateway::vfio_user::config_space::{ConfigSpace, Names as FunctionNames, Written as ConfigWrite};
pub use gateway::vfio_user::interrupts::Vectors as InterruptVectors;
pub use gateway::vfio_user::message::{
    access_answer, is_version_data, Header as VfioUserHeader, IrqSet as VfioIrqSet, Region as VfioRegion,
    Request as VfioUserRequest, HEADER_BYTES as VFIO_USER_HEADER_BYTES,
    TRANSFER_BYTES_MAX as VFIO_USER_TRANSFER_BYTES_MAX,
};
