//! MSI-X vectors: an eventfd of the client for each, that any thread of the gateway signals.

use super::message::IrqSet;
use super::state::VectorState;
use super::uring::Bell;
use crate::gateway::handed::{broken, Given, Received};
use forebay_io::memlock_refusal;
use forebay_model::Error;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
struct Vector {
    bell: Option<Bell>,
    masked: bool,
    /// It was signalled while it could not be heard.
    pending: bool,
}

impl Vector {
    fn signal(&mut self) {
        match &mut self.bell {
            Some(bell) if !self.masked => {
                self.pending = false;
                bell.ring();
            }
            _ => self.pending = true,
        }
    }

    fn release(&mut self) {
        if self.pending {
            self.signal();
        }
    }
}

#[derive(Debug)]
pub struct Vectors(Box<[Mutex<Vector>]>);

impl Vectors {
    pub fn new(count: u16) -> Vectors {
        Vectors((0..count).map(|_| Mutex::default()).collect())
    }

    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    fn at(&self, vector: u32) -> Option<MutexGuard<'_, Vector>> {
        self.0.get(vector as usize).map(|v| v.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn signal(&self, vector: u16) {
        if let Some(mut vector) = self.at(vector.into()) {
            vector.signal();
        }
    }

    /// Clears the listeners.
    pub fn clear(&self) {
        (0..self.count()).filter_map(|at| self.at(at)).for_each(|mut vector| *vector = Vector::default());
    }

    /// The client takes all eventfds away, and may give them again: QEMU does for each further vector that its guest uses.
    /// What is pending stays so.
    fn disable(&self) {
        (0..self.count())
            .filter_map(|at| self.at(at))
            .for_each(|mut vector| (vector.bell, vector.masked) = (None, false));
    }

    /// Bits of the Pending Bit Array (PCI Express base, section 7.7.2.10), as the 64 vectors from `first` on have them.
    pub fn pending(&self, first: u32) -> u64 {
        (0..64)
            .filter(|bit| self.at(first + bit).is_some_and(|vector| vector.pending))
            .fold(0, |bits, bit| bits | 1 << bit)
    }

    /// SET_IRQS: `fds` are those that came with the message.
    ///
    /// # Errors
    /// An errno: EINVAL for a range, flags or descriptors that can't be.
    pub fn set(&self, flags: u32, start: u32, count: u32, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), i32> {
        let end = start.checked_add(count).filter(|end| *end <= self.count()).ok_or(libc::EINVAL)?;
        let one = |bits: u32| bits.is_power_of_two();
        if !one(flags & IrqSet::DATA) || !one(flags & IrqSet::ACTION) {
            return Err(libc::EINVAL);
        }
        match (flags & IrqSet::DATA, flags & IrqSet::ACTION) {
            (IrqSet::DATA_EVENTFD, IrqSet::TRIGGER) => self.assign(start, end, fds),
            // As vfio has it: no vectors at all is an end to all of them.
            (IrqSet::DATA_NONE, IrqSet::TRIGGER) if count == 0 => {
                self.disable();
                Ok(())
            }
            (IrqSet::DATA_EVENTFD, _) => Err(libc::EINVAL),
            (IrqSet::DATA_BOOL, action) => {
                if data.len() < count as usize {
                    return Err(libc::EINVAL);
                }
                let chosen = (start..end).zip(data).filter(|(_, chosen)| **chosen != 0);
                chosen.for_each(|(vector, _)| self.act(vector, action));
                Ok(())
            }
            (_, action) => {
                (start..end).for_each(|vector| self.act(vector, action));
                Ok(())
            }
        }
    }

    /// One descriptor for each vector, or none for all of them.
    fn assign(&self, start: u32, end: u32, fds: Vec<OwnedFd>) -> Result<(), i32> {
        if !fds.is_empty() && fds.len() != (end - start) as usize {
            return Err(libc::EINVAL);
        }
        // All of them, or none.
        let bells = fds.into_iter().map(Bell::new).collect::<Result<Vec<Bell>, i32>>()?;
        let mut bells = bells.into_iter();
        for vector in start..end {
            let mut vector = self.at(vector).ok_or(libc::EINVAL)?;
            vector.bell = bells.next();
            vector.release();
        }
        Ok(())
    }

    /// As they are, for another process.
    ///
    /// # Errors
    /// `Machine`: no descriptor is left.
    pub fn keep(&self, given: &mut Given) -> Result<Vec<VectorState>, Error> {
        let mut all = Vec::new();
        for at in 0..self.count() {
            let Some(vector) = self.at(at) else { continue };
            let bell = vector.bell.as_ref().map(|bell| given.add(bell.eventfd())).transpose()?;
            all.push(VectorState { bell, masked: vector.masked, pending: vector.pending });
        }
        Ok(all)
    }

    /// As another process had them.
    ///
    /// # Errors
    /// `Run`: what came is no eventfd, or they aren't as many. `Machine`: no descriptor or memory for what signals it.
    pub fn restore(&self, all: Vec<VectorState>, came: &mut Received) -> Result<(), Error> {
        if all.len() != self.0.len() {
            return Err(broken(&format!("{} vectors, where there are {}", all.len(), self.0.len())));
        }
        for (at, VectorState { bell, masked, pending }) in (0..).zip(all) {
            let fd = bell.map(|fd| came.take(fd)).transpose()?;
            let refused = |errno| match errno {
                libc::EINVAL => broken("an interrupt that is no eventfd"),
                _ => {
                    let e = std::io::Error::from_raw_os_error(errno);
                    memlock_refusal(
                        "an interrupt of a controller",
                        &e,
                        "ulimit -n 1048576, or forebay doctor",
                    )
                }
            };
            let bell = fd.map(Bell::new).transpose().map_err(refused)?;
            if let Some(mut vector) = self.at(at) {
                *vector = Vector { bell, masked, pending };
            }
        }
        Ok(())
    }

    fn act(&self, vector: u32, action: u32) {
        let Some(mut vector) = self.at(vector) else { return };
        match action {
            IrqSet::MASK => vector.masked = true,
            IrqSet::UNMASK => {
                vector.masked = false;
                vector.release();
            }
            _ => vector.signal(),
        }
    }
}
