//! The ground that data moves over: memory that is lent, rings, streams, GPUs; and clocks and meters, which say what that took.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod arena;
mod auth;
mod build;
mod client;
mod clock;
mod copy;
mod crc;
mod gpu;
mod identity;
mod machine;
mod meter;
mod multicast;
mod process;
mod queue;
mod rate;
mod rdma;
mod reactor;
mod record;
mod scarce;
mod stream;
mod threads;
mod tls;

pub use forebay_model::{Error, Kind};

// The process, its threads, and what it was built from.
pub use build::{current_build, set_build_commit};
pub use clock::{monotonic_now, rfc3339, wall_seconds};
pub use identity::{name_taken, new_id, Identity as FileIdentity};
pub use process::{is_process_gone, process_id, settle_in_process, PerProcess};
pub use record::start_record;
pub use scarce::{announce_scarcity, Allocator};
pub use threads::{
    allowed_cpus, cpus_of_node, named_cpus, named_numa_nodes, numa_nodes, online_cpus, settle_thread_as,
    settle_thread_in, settle_thread_near,
};

// Memory that I/Os move, and copies of it.
pub use arena::{aligned_place, map_shared_memory, sealed_memfd, Arena, Mem, Piece, PieceList};
pub use copy::{
    copy_memory, guarded_copy, guarded_row_copy, guarded_word_copy, has_copy_guard, install_copy_guard,
    prefetch_ahead, system_copy_waits, Choice as CopyChoice, Stores as CopyStores, GUARDED_COPIES,
};
pub use crc::crc32c;

// Queues, the ring under them, and who issues I/Os.
pub use client::{
    Client, Completion as ClientCompletion, End as CompletionEnd, InFlight, Late as LateIo, Patience,
    Submission, CLIENT_GRACE,
};
pub use queue::{Done, Fault, Full, Geometry, Io, Op, Queue, Travelled, Via};
pub use rate::Rate;
pub use reactor::memlock::{
    memlock_limit, memlock_refusal, memlock_shortage, retry_for_memlock, MEMLOCK_LEFT_BYTES,
};
pub use reactor::{
    is_nothing_yet, ring_refusal, ring_refused, room_for_rings, Completion as RingCompletion, Glance,
    Reactor, RingOptions, Waker,
};

// Connections: streams over TCP and TLS, RDMA, multicast, and secrets.
pub use auth::{
    auth_random, generate_secret, host_secrets, host_tls_key, DHCHAP_SECRET_VARIABLE, TLS_KEY_VARIABLE,
};
pub use multicast::{
    join_multicast, local_address_for, multicast_addresses, multicast_asker, multicast_listener,
    send_multicast,
};
pub use rdma::{
    rdma_library, require_rdma, Buffer as RdmaBuffer, Channel as RdmaChannel, Completed as RdmaCompleted,
    CompletionQueue as RdmaCompletionQueue, DmaBuf, Domain as RdmaDomain, Domains as RdmaDomains,
    Event as RdmaEvent, Happened as RdmaHappened, Id as RdmaId, Lent as RdmaLent, Post as RdmaPost,
    Region as RdmaRegion, Room as RdmaRoom, Send as RdmaSend, Sge as RdmaSge, Span as RdmaSpan,
    Terms as RdmaTerms, Watched as RdmaWatched, Watches as RdmaWatches, RDMA_INSTALL, RDMA_MAKE_DEVICE,
    RDMA_SHOW_DEVICE,
};
pub use stream::{
    fill_memory, keep_unpaced, stream_digest, stream_index, Options as StreamOptions,
    Received as StreamReceived, Stream,
};
pub use tls::bridge::{Arrival as TlsArrival, Bridge as TlsBridge, Client as TlsClient};
pub use tls::openssl::Context as TlsContext;

// GPUs: CUDA, cuFile, kernels, copies to and from their memory, and where NVIDIA's libraries are.
pub use gpu::cuda::{
    cuda_devices, Cuda, CudaError, Device as CudaDevice, DeviceMemory, Event as CudaEvent,
    HostCopies as CudaHostCopies, Pinned as PinnedMemory, Registered as RegisteredMemory,
    Stream as CudaStream,
};
pub use gpu::cufile::{
    cufile, Batch as CuFileBatch, BatchIo as CuFileBatchIo, Buffer as CuFileBuffer, CuFileError,
    Driver as CuFileDriver, Event as CuFileEvent, FileHandle as CuFileHandle, Stats as CuFileStats,
    StreamIo as CuFileStreamIo,
};
pub use gpu::kernels::{
    Checker as ContentChecker, Crc32c as GpuCrc32c, Filler as ContentFiller, Finding as ContentFinding,
    Lists as ContentLists, Numbers as RowNumbers, Ordered as OrderedRows, Piece as RowPiece,
    Range as ContentRange, Rows as GpuRows, Scatter as RowScatter, Sums as GpuSums, ROW_ELSEWHERE,
    ROW_PIECE_BYTES,
};
pub use gpu::library::{python_packages, search_python_packages};
pub use gpu::nvrtc::find_nvrtc;
pub use gpu::places::Places as CudaPlaces;
pub use gpu::relay::{Fill as RelayFill, Memory as RelayMemory, Relay};
pub use gpu::{
    Copier, CudaCopier, Fetched as FetchedCopy, Pulling, Room as CopyRoom, Scattering,
    Summed as SummedRanges, Summer as GpuSummer,
};

// Facts about the machine, and what doctor finds.
pub use machine::drives::DriveFacts;
pub use machine::environment::{card_of_device, gather_environment};
pub use machine::filesystem::{direct_alignment, filesystem_facts};
pub use machine::finding::{counted, Area as CheckArea, Check, CheckState};
pub use machine::gpu::{GpuDevice, GpuFacts};
pub use machine::host::Host as HostFacts;
pub use machine::kernel::{has_kernel_option, kernel_config};
pub use machine::memory::{HugetlbPool, Locked, Memory as MemoryFacts};
pub use machine::nvme_host::{parse_uuid, show_uuid, Identity as NvmeHostIdentity};
pub use machine::nvml::Nvml;
pub use machine::pageable::{Pageable as PageableMemory, PageableGpu};
pub use machine::pci::{
    is_pci_bridge, pci_ancestry, pci_class, pci_directory, pci_numa_node, pci_redirects_peers,
    Link as PciLink,
};
pub use machine::roots::Roots;
pub use machine::verdict::{
    Answer as VerdictAnswer, Cause as VerdictCause, GdsVerdict, Through as GdsThrough, Usable as UsableGds,
    Verdicts,
};
pub use machine::{last_level_cache_bytes, memory_free_bytes, numa_node_of, temperature_c, with_time_limit};

// Meters: processors, page cache, drives, noise, and power.
pub use meter::cache::{cache_residency, cache_resident, drop_cached, warm_cache, warm_cache_while};
pub use meter::cpu::{Clock as CpuClock, CpuReading, Times as CpuTimes};
pub use meter::disk::{
    disk_name, disk_stack, disks_behind, Counters as DiskCounters, Traffic as DiskTraffic,
};
pub use meter::is_astray;
pub use meter::noise::{cv_pct, Guard as NoiseGuard, ThrottleCounters};
pub use meter::power::ipmi::{ipmi_program, open_ipmi};
pub use meter::power::nvml::{open_nvml, NVML_LIBRARY};
pub use meter::power::rapl::open_rapl;
pub use meter::power::redfish::{
    Address as RedfishAddress, Login as RedfishLogin, PASSWORD_ENV as REDFISH_PASSWORD_ENV,
    USER_ENV as REDFISH_USER_ENV,
};
pub use meter::power::{
    open_power_meters, Found as FoundMeters, Meter as PowerMeter, Name as PowerMeterName, Pace as PowerPace,
    Sample as PowerSample, Sampler as PowerSampler,
};
pub use meter::waits::Waits;
