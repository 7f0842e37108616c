//! A namespace as a source, whoever is its host: what is planned of it, and what is
//! open of it.

use super::{Host, SourceReport};
use crate::source::plan::{Examiner, Found, Source, SourcePlan, Workers};
use crate::source::{MadeOf, MemoryRegistration, OpenFile, OpenSource, QueueNeeds};
use forebay_io::{Arena, DeviceMemory, Queue, Reactor};
use forebay_model::record::FabricRan;
use forebay_model::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A host's connection to a namespace, as those who use its source see it.
pub trait Connection {
    fn host(&self) -> &Host;

    /// All of it, for a record.
    fn report(&self) -> FabricRan;

    /// The same while it is in use.
    fn now(&self) -> SourceReport;

    /// Has payload go directly to and from its place, where it would pass a buffer of the connection's; before queues
    /// are opened.
    fn keep_direct(&self) {}

    /// Returns whether others may be connected to the namespace meanwhile.
    fn is_shared(&self) -> bool;

    /// Returns whether slots that have a descriptor of their own can be mapped into it.
    fn maps_slots(&self) -> bool;
}

/// Implementation of a connection.
pub trait Namespace: Connection + Deref<Target = Host> + fmt::Debug + Send + Sync + 'static {
    fn scheme(&self) -> &'static str;

    fn made_of(&self) -> MadeOf;

    fn engine(&self) -> &'static str;

    /// The name that its seeded content carries.
    fn content_name(&self) -> String;

    fn queue(self: &Arc<Self>, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error>;

    fn lend(self: &Arc<Self>, arena: &Arena) -> Result<Option<MemoryRegistration>, Error>;

    fn lend_device(&self, _: &DeviceMemory) -> Result<MemoryRegistration, String> {
        Err("no RDMA card moves its bytes".into())
    }
}

/// Plans a namespace: connected to at once, for only the controller knows what it is.
pub(crate) fn examine<S: Source + Clone, N: Namespace>(
    source: &S,
    examiner: &mut dyn Examiner,
    wanted: Option<u64>,
    connect: impl FnOnce(&S, Workers) -> Result<Arc<N>, Error>,
) -> Result<SourcePlan, Error> {
    let workers = examiner.may_connect(source)?;
    let namespace = connect(source, workers)?;
    let found = Found { bytes: namespace.bytes(), read_only: namespace.namespace().read_only };
    let bytes = examiner.part_of(source, found, wanted)?;
    let plan = SourcePlan::new(source.clone(), namespace.name.clone(), bytes);
    let content_name = namespace.content_name();
    Ok(SourcePlan { content_name, connected: Some(Arc::new(OpenNamespace(namespace))), ..plan })
}

/// Opens what was planned.
pub(crate) fn open(plan: &SourcePlan) -> Arc<dyn OpenSource> {
    plan.connected.clone().expect("each plan of a namespace is connected to it")
}

#[derive(Debug)]
pub struct OpenNamespace<N>(pub Arc<N>);

impl<N: Namespace> OpenSource for OpenNamespace<N> {
    fn scheme(&self) -> &'static str {
        self.0.scheme()
    }

    fn engine(&self) -> Option<&'static str> {
        Some(self.0.engine())
    }

    fn made_of(&self) -> MadeOf {
        self.0.made_of()
    }

    fn queue(
        &self,
        _: u64,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        _: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        self.0.queue(needs, reactor)
    }

    fn connection(&self) -> Option<&dyn Connection> {
        Some(&*self.0)
    }

    fn align(&self) -> u32 {
        self.0.block_bytes()
    }

    fn boundary(&self, bytes: u64) -> Option<(&'static str, u64)> {
        Some(("‹file_bytes›", bytes))
    }

    fn lend(&self, arena: &Arena) -> Result<Option<MemoryRegistration>, Error> {
        self.0.lend(arena)
    }

    fn lend_device(&self, memory: &DeviceMemory) -> Result<MemoryRegistration, String> {
        self.0.lend_device(memory)
    }
}
