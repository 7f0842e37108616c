//! A namespace as a source, whoever is its host: what a draft of it is, and what is
//! open of it.

use super::Host;
use crate::source::nvme_tcp::Remote;
use crate::source::vfio_user::Drive;
use crate::source::{Backing, Drafted, Loan, MadeOf, Open, OpenFile, QueueNeeds};
use forebay_io::arena::Arena;
use forebay_io::queue::Queue;
use forebay_io::reactor::Reactor;
use forebay_model::Error;
use serde_json::json;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A host's connection to a namespace.
pub trait Namespace: Deref<Target = Host> + fmt::Debug + Send + Sync + 'static {
    /// `kind` of documents.
    const KIND: &'static str;

    fn scheme(&self) -> &'static str;

    fn made_of(&self) -> MadeOf;

    fn engine(&self) -> &'static str;

    /// The name that its seeded content carries.
    fn content_name(&self) -> String;

    fn queue(self: &Arc<Self>, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error>;

    fn lend(self: &Arc<Self>, arena: &Arena) -> Result<Option<Loan>, Error>;

    fn as_remote(self: &Arc<Self>) -> Option<&Arc<Remote>> {
        None
    }

    fn as_drive(self: &Arc<Self>) -> Option<&Arc<Drive>> {
        None
    }
}

/// Connected to already: only the controller knows what it is.
#[derive(Debug)]
pub struct NamespaceDraft<N> {
    pub namespace: Arc<N>,
    pub bytes: u64,
}

impl<N: Namespace> Drafted for NamespaceDraft<N> {
    fn label(&self) -> String {
        self.namespace.name.clone()
    }

    fn content_name(&self) -> String {
        self.namespace.content_name()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn open(&self, _: &dyn Open) -> Result<Arc<dyn Backing>, Error> {
        Ok(Arc::new(NamespaceBacking(self.namespace.clone())))
    }

    fn document(&self) -> serde_json::Value {
        json!({"kind": N::KIND, "uri": self.label(), "bytes": self.bytes})
    }
}

#[derive(Debug)]
pub struct NamespaceBacking<N>(pub Arc<N>);

impl<N: Namespace> Backing for NamespaceBacking<N> {
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

    fn remote(&self) -> Option<&Arc<Remote>> {
        self.0.as_remote()
    }

    fn drive(&self) -> Option<&Arc<Drive>> {
        self.0.as_drive()
    }

    fn align(&self) -> u32 {
        self.0.block_bytes()
    }

    fn boundary(&self, bytes: u64) -> Option<(&'static str, u64)> {
        Some(("‹file_bytes›", bytes))
    }

    fn lend(&self, arena: &Arena) -> Result<Option<Loan>, Error> {
        self.0.lend(arena)
    }
}
