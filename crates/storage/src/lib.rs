//! What bytes come from and how they travel: sources, the paths that read them, and what it takes to open both.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod inspect;
mod opening;
mod outputs;
mod path;
mod source;

pub use forebay_model::{Error, Kind};

// Files that runs make.
pub use outputs::Outputs;

// Sources: the table of their kinds, what a URI refers to, and what all of them can be asked.
pub use source::{
    Action as PlanAction, Examiner, FilePlan, Found as FoundSource, MadeOf, MemoryRegistration,
    Open as OpenPlan, OpenSource, QueueNeeds, Route, Source, SourceMedium, SourcePlan, SourceRow, Target,
    Timing as SourceTiming, Uri, Workers as SourceWorkers, SOURCES,
};

// Each kind: files, drives that are modelled or nothing, stripes, faults, and remote drives.
pub use source::fault::{FaultPlan, FaultQueue};
pub use source::file::{FileAccess, FileTarget};
pub use source::nvme::{Connection as NvmeConnection, PathReport, SourceReport};
pub use source::nvme_tcp::{Options as NvmeTcpOptions, Remote as NvmeTcpRemote};
pub use source::stripe::StripeQueue;
pub use source::vfio_user::{Drive as VfioUserDrive, Options as VfioUserOptions};
pub use source::{OpenFileSource, OpenModel, OpenNamespace, OpenNil, OpenStripe, SharedDrive};

// Questions to remote drives that need no job.
pub use inspect::{browse, discover, identify};
pub use source::{Accepted as AcceptedParameters, ControllerReport, Discovered, Inquiry};

// Paths: the table of their kinds, what each needs, and which is chosen.
pub use path::auto::{
    Gave as PathRate, Known as KnownPaths, Open as OpenChoice, Passes as TrialPasses, PathChoice,
    Situation as PathSituation, Tried as PathTrial,
};
pub use path::direct::{Base as DirectBase, DirectNeeds, DirectQueues, Means as DirectMeans};
pub use path::gds::{judge_cufile, judge_gds_run, GdsFile, Session as CuFileSession};
pub use path::mapped::{
    window_bytes, DevicePinner, Limits as MappedLimits, Mapped as MappedPath, MappedFile,
    Mapping as FileMapping, Phase as MappedPhase, Pin as MemoryPin, Pinner as MemoryPinner,
    Registry as MappedRegistry, Wakeup as MappedWakeup, MADV_POPULATE_READ,
};
pub use path::{
    About as AboutPath, Buffers, Copiers, DataPath, Destination, Ends, HostCopier, Paths, QueueFactory,
    Under as BufferNeeds, WorkerContext, PATHS,
};

// Opening: what a job refers to is examined, made where it may be, and opened.
pub use opening::manifest::Content as ManifestContent;
pub use opening::mounts::mounted_as;
pub use opening::{
    allow_descriptors, examine, has_rings, reopened, Examined, HeldManifest, Opened, Purpose, KEEP_FREE_BYTES,
};
