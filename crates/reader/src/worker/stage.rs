//! Equipment of a worker: its slots and its GPUs.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::super::thread_pool;
use super::super::SLOTS;
use super::copy_failed;
use super::Outlet;
use super::Stage;
use super::Worker;
use super::SLOT_BYTES_TRIED;
use forebay_io::arena::Arena;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::Arc;
use std::sync::Mutex;

impl Worker {
    /// `read`: the device doesn't read it any more.
    pub(super) fn give_slot_back(&mut self, slot: usize, read: bool) {
        let stage = self.stage.as_mut().expect("it gave the slot");
        if read {
            stage.free.push(slot);
        } else {
            stage.lost = true;
        }
    }

    /// After a failure: some copies of the slot may be under way.
    pub(super) fn give_slot_up(&mut self, outlet: usize, slot: usize) {
        let ended = self.outlets[outlet].stream.lock().expect("no holder panics").synchronize().is_ok();
        self.give_slot_back(slot, ended);
    }

    pub(super) fn outlet(&mut self, gpu: u32) -> Result<usize, Error> {
        if let Some(at) = self.outlets.iter().position(|o| o.device.index() == gpu) {
            return Ok(at);
        }
        let device = thread_pool::device(gpu)?;
        let stream = device.stream().map_err(|why| copy_failed(gpu, &why))?;
        self.outlets.push(Outlet {
            device,
            stream: Arc::new(Mutex::new(stream)),
            spare: Vec::new(),
            numbers: None,
        });
        Ok(self.outlets.len() - 1)
    }

    pub(super) fn free_slot_bytes(&mut self, outlet: usize) -> Result<usize, Error> {
        self.set_stage(Some(outlet))?;
        Ok(self.stage.as_ref().expect("just set").arena.slot_bytes())
    }

    pub(super) fn slot_at(&self, slot: usize) -> *mut u8 {
        self.stage.as_ref().expect("it gave the slot").arena.slot(slot).host_ptr()
    }

    /// A slot that nothing is copied from, and its size.
    pub(super) fn free_slot(&mut self, outlet: Option<usize>) -> Result<(usize, usize), Error> {
        self.set_stage(outlet)?;
        loop {
            let stage = self.stage.as_mut().expect("just set");
            if let Some(slot) = stage.free.pop() {
                return Ok((slot, stage.arena.slot_bytes()));
            }
            if self.flights.is_empty() {
                // All were lost to failures.
                self.stage.take().expect("just set").give_back();
                self.set_stage(outlet)?;
            }
            self.reap(true);
        }
    }

    /// Makes the slots, and pins them for a GPU: smaller ones where the system refuses.
    pub(super) fn set_stage(&mut self, outlet: Option<usize>) -> Result<(), Error> {
        let device = outlet.map(|o| self.outlets[o].device.clone());
        let ready = self.stage.as_ref().is_some_and(|s| s.pinned.is_some() || device.is_none());
        if ready {
            return Ok(());
        }
        let mut refused = None;
        for slot_bytes in SLOT_BYTES_TRIED {
            let arena = match self.stage.take() {
                Some(stage) if stage.arena.slot_bytes() == slot_bytes => stage.arena,
                _ => Arena::new(SLOTS, slot_bytes, Pages::Thp)?,
            };
            let free = (0..SLOTS).collect();
            let Some(device) = &device else {
                self.stage = Some(Stage { pinned: None, arena, free, lost: false });
                return Ok(());
            };
            let (at, bytes) = arena.whole();
            // SAFETY: the arena goes after its registration, by the order of Stage's fields.
            match unsafe { device.register(at.as_ptr(), bytes, false) } {
                Ok(pinned) => {
                    self.stage = Some(Stage { pinned: Some(pinned), arena, free, lost: false });
                    return Ok(());
                }
                Err(why) => refused = Some((bytes, why)),
            }
        }
        let (bytes, why) = refused.expect("every size was refused");
        Err(Error::machine(
            format!("pin {bytes} bytes of host memory"),
            why.to_string(),
            "ulimit -l unlimited; or free GPU memory that other programs hold",
        ))
    }
}
