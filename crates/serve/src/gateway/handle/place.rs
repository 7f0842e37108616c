//! A gateway's place: it is there, gives it to another process, or has given it, with the socket of its RPCs.

use crate::gateway::handed::{Fd, Given};
use crate::gateway::rpc::Door;
use forebay_model::Error;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct GatewayPlace {
    stage: AtomicU8,
    door: Mutex<Option<Door>>,
}

const HERE: u8 = 0;
const LEAVING: u8 = 1;
const LEFT: u8 = 2;

impl GatewayPlace {
    fn door(&self) -> MutexGuard<'_, Option<Door>> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The RPC socket, which is handed on with it.
    pub(super) fn set_door(&self, door: Door) {
        *self.door() = Some(door);
    }

    /// Adds the RPC socket to what another process gets. None: there is none.
    pub(super) fn give_door(&self, given: &mut Given) -> Result<Option<Fd>, Error> {
        self.door().as_ref().map(|door| given.add(&door.listener)).transpose()
    }

    /// The socket is another process's: it is closed here, and stays.
    pub(super) fn leave_door(&self) {
        self.door().take().iter().for_each(Door::leave);
    }

    /// Another process has it.
    pub(super) fn has_left(&self) -> bool {
        self.stage.load(Ordering::Acquire) == LEFT
    }

    /// Refuses changes by RPCs while another process is told of the state, and afterwards.
    pub(super) fn may_change(&self) -> Result<(), Error> {
        match self.stage.load(Ordering::Acquire) {
            HERE => Ok(()),
            _ => Err(Error::run(
                "a change of the gateway",
                "it is being handed over to another gateway",
                "try again",
            )),
        }
    }

    /// Gives it away by `give`, which nobody else does meanwhile. Where that fails the gateway is here as before.
    pub(super) fn leave(&self, give: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let alone = self.stage.compare_exchange(HERE, LEAVING, Ordering::AcqRel, Ordering::Acquire);
        if alone.is_err() {
            return self.may_change();
        }
        let given = give();
        self.stage.store(if given.is_ok() { LEFT } else { HERE }, Ordering::Release);
        given
    }
}
