//! When a completion queue interrupts its driver.

use super::super::memory::HostMemory;
use super::Coalescing;
use super::CompletionQueue;
use super::Interrupt;
use super::QueueFault;
use std::sync::atomic::fence;
use std::sync::atomic::Ordering;

impl CompletionQueue {
    /// Decides whether to interrupt the host for what was completed. Once in each turn of the owner's loop; `Now` is
    /// said once.
    pub fn interrupt(&mut self, now_us: u64) -> Interrupt {
        let Some(vector) = self.vector.filter(|_| self.untold > 0) else {
            self.untold = 0;
            return Interrupt::None;
        };
        let Coalescing { completions, time_us, excepted } = &self.coalescing;
        let since = *self.untold_since_us.get_or_insert(now_us);
        let until = since.saturating_add((*time_us).into());
        let waits = self.untold < *completions && now_us < until && !excepted.contains(&vector);
        if waits {
            return Interrupt::At(until);
        }
        (self.untold, self.untold_since_us) = (0, None);
        Interrupt::Now(vector)
    }

    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
    }

    /// Before its owner sleeps: asks the host to write the doorbell registers, then looks once more. False: there is
    /// something to do.
    pub fn sleep<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<bool, QueueFault> {
        for queue in &self.submissions {
            if let Some((_, event_index)) = queue.shadow {
                memory.store(event_index, queue.ring.tail().into())?;
            }
        }
        // Either the host sees the index, or this end sees what the host wrote before it looked.
        fence(Ordering::SeqCst);
        self.poll(memory)?;
        if self.waiting().is_none() {
            return Ok(true);
        }
        // Commands wait for room in the completion queue.
        if self.has_room(memory)? {
            return Ok(false);
        }
        let Some((_, event_index)) = self.own_shadow else { return Ok(true) };
        memory.store(event_index, self.ring.head().into())?;
        fence(Ordering::SeqCst);
        Ok(!self.has_room(memory)?)
    }
}
