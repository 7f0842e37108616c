//! The PCI function that a client sees: its regions, its configuration space, its MSI-X table. Registers are the device's.

use super::client::Answer;
use crate::gateway::controller_shared::ControllerShared;
use crate::gateway::handed::Bytes;
use crate::gateway::shm;
use crate::gateway::vfio_user::config_space::{self, ConfigSpace, Names, Written};
use crate::gateway::vfio_user::message::{self, Access, Region, RegionInfo};
use forebay_nvme::transport::pcie::device::Device;
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use std::sync::Arc;

/// PCI identifiers: none is registered for Forebay. Drivers go by the class.
pub(super) const NAMES: Names = Names { vendor: 0xf0eb, device: 0x0001 };

pub(super) struct PciFunction {
    shared: Arc<ControllerShared>,
    space: ConfigSpace,
    /// As it is after a reset.
    fresh: ConfigSpace,
    msix_table: Vec<u8>,
}

impl PciFunction {
    pub(super) fn new(shared: Arc<ControllerShared>) -> PciFunction {
        let vectors = shared.vectors.count() as u16;
        let space = ConfigSpace::new(NAMES, shm::BAR0_BYTES, vectors);
        PciFunction { shared, fresh: space.clone(), space, msix_table: vec![0; usize::from(vectors) * 16] }
    }

    pub(super) fn reset(&mut self) {
        self.space.reset(&self.fresh);
        self.msix_table.fill(0);
    }

    pub(super) fn region_info(&self, argsz: u32, index: u32) -> Answer {
        let doorbells = self.shared.is_polled().then_some((DOORBELLS, shm::PAGE_BYTES));
        let info = match index {
            Region::BAR0 => RegionInfo { bytes: shm::BAR0_BYTES, mapped: doorbells },
            Region::BAR4 => RegionInfo { bytes: config_space::BAR4_BYTES, mapped: None },
            Region::CONFIG => RegionInfo { bytes: config_space::BYTES as u64, mapped: None },
            index if index < Region::COUNT => RegionInfo::default(),
            _ => return Answer::Refused(libc::EINVAL),
        };
        match info.answer(index, argsz) {
            (payload, true) => Answer::With(payload, vec![self.shared.doorbells.fd().clone()]),
            (payload, false) => Answer::Payload(payload),
        }
    }

    /// Returns the eventfds of BAR 0: one for each doorbell, that of the worker which will own the queue.
    pub(super) fn region_io_fds(&self, argsz: u32, index: u32, worker_of: impl Fn(u16) -> usize) -> Answer {
        if index != Region::BAR0 {
            return Answer::Refused(if index < Region::COUNT { libc::ENOTSUP } else { libc::EINVAL });
        }
        let queues = self.shared.vectors.count() as u16 - 1;
        let all = (1..=queues).flat_map(|qid| {
            let worker = worker_of(qid) as u32;
            [Doorbell::Submission(qid), Doorbell::Completion(qid)].map(|bell| (bell.offset(0), worker))
        });
        let fds = self.shared.kicks.iter().take(message::DESCRIPTORS_MAX).cloned().collect::<Vec<_>>();
        let all: Vec<(u64, u32)> = all.filter(|(_, worker)| (*worker as usize) < fds.len()).collect();
        Answer::With(message::io_fds(index, argsz, &all), fds)
    }

    pub(super) fn read(&self, access: Access, device: &Device) -> Answer {
        let bytes = match access.region {
            Region::BAR0 => shm::BAR0_BYTES,
            Region::BAR4 => config_space::BAR4_BYTES,
            Region::CONFIG => config_space::BYTES as u64,
            _ => 0,
        };
        // `Access` has seen that the sum doesn't overflow.
        if access.offset + u64::from(access.count) > bytes {
            return Answer::Refused(libc::EINVAL);
        }
        let mut answer = message::access_answer(access);
        let head = answer.0.len();
        answer.0.resize(head + access.count as usize, 0);
        let into = &mut answer.0[head..];
        match access.region {
            Region::BAR0 => device.read(access.offset, into),
            Region::BAR4 => self.read_msix(access.offset, into),
            _ => self.space.read(access.offset, into),
        }
        Answer::Payload(answer.0)
    }

    /// MSI-X's table, as it was written, and the pending bits.
    fn read_msix(&self, offset: u64, into: &mut [u8]) {
        for (byte, at) in into.iter_mut().zip(offset..) {
            *byte = match at.checked_sub(config_space::PENDING_OFFSET) {
                Some(at) => {
                    self.shared.vectors.pending((at / 8 * 64) as u32).to_le_bytes()[(at % 8) as usize]
                }
                None => self.msix_table.get(at as usize).copied().unwrap_or(0),
            };
        }
    }

    pub(super) fn write_msix(&mut self, offset: u64, data: &[u8]) {
        for (byte, at) in data.iter().zip(offset..) {
            self.msix_table.get_mut(at as usize).into_iter().for_each(|place| *place = *byte);
        }
    }

    pub(super) fn write_config(&mut self, offset: u64, data: &[u8]) -> Written {
        self.space.write(offset, data)
    }

    /// Its configuration space and its MSI-X table.
    pub(super) fn keep(&self) -> (Bytes, Bytes) {
        let mut config_space = vec![0; config_space::BYTES];
        self.space.read(0, &mut config_space);
        (Bytes(config_space), Bytes(self.msix_table.clone()))
    }

    /// As they were in another process.
    pub(super) fn restore(&mut self, config_space: &Bytes, msix_table: &Bytes) {
        self.space.write(0, &config_space.0);
        self.write_msix(0, &msix_table.0);
    }
}
