//! `host`: storage to host memory only, through the source's own queue.

use super::{About, DataPath, Ends, Layer, QueueFactory, Refusal, WorkerContext};
use crate::source::Target;
use forebay_io::{Check, CheckState, Queue, Reactor, Verdicts};
use forebay_model::job::{JobSpec, PathKind};
use forebay_model::Error;

pub(crate) struct Host;

impl DataPath for Host {
    fn about(&self) -> &'static About {
        &About {
            kind: PathKind::Host,
            name: "host",
            what: "storage to host memory, and no further",
            needs: "nothing",
            serves: "every source",
            ends: Ends::Host,
            may_go_direct: true,
        }
    }

    fn examined(&self, _: &Verdicts) -> Check {
        Check::of_path(self.name(), CheckState::Works, "storage to host memory")
    }

    fn refuses(&self, job: &JobSpec) -> Result<Option<Refusal>, Error> {
        let refusal =
            ("‹gpus› with ‹path› host", "that path ends in host memory", "‹path› bounce, or no ‹gpus›");
        Ok((!job.gpus.is_empty()).then_some(refusal))
    }

    fn equip(&self, _: &WorkerContext, _: &mut Reactor) -> Result<Box<dyn QueueFactory>, Error> {
        Ok(Box::new(HostFactory))
    }
}

struct HostFactory;

impl QueueFactory for HostFactory {
    fn ran(&self) -> &'static str {
        Host.name()
    }

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        context: &WorkerContext,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        Ok(layer(target.queue(context.needs, reactor)?))
    }
}
