//! A controller's regions: what its client reads and writes there.

use super::super::shm;
use super::super::vfio_user::config_space;
use super::super::vfio_user::message;
use super::super::vfio_user::message::region;
use super::super::vfio_user::message::Access;
use super::super::vfio_user::message::Header;
use super::super::vfio_user::message::RegionInfo;
use super::Answer;
use super::Controller;
use super::Waiting;
use super::POLL_RARELY;
use crate::gateway::controller_shared::{POLL_AWAKE, POLL_EVERY};
use forebay_io::clock;
use forebay_nvme::transport::pcie::registers::Doorbell;
use forebay_nvme::transport::pcie::registers::DOORBELLS;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Controller {
    pub(super) fn region_info(&self, argsz: u32, index: u32) -> Answer {
        let doorbells = self.shared.is_polled().then_some((DOORBELLS, shm::PAGE_BYTES));
        let info = match index {
            region::BAR0 => RegionInfo { bytes: shm::BAR0_BYTES, mapped: doorbells },
            region::BAR4 => RegionInfo { bytes: config_space::BAR4_BYTES, mapped: None },
            region::CONFIG => RegionInfo { bytes: config_space::BYTES as u64, mapped: None },
            index if index < region::COUNT => RegionInfo::default(),
            _ => return Answer::Refused(libc::EINVAL),
        };
        match info.answer(index, argsz) {
            (payload, true) => Answer::With(payload, vec![self.shared.doorbells.fd().clone()]),
            (payload, false) => Answer::Payload(payload),
        }
    }

    /// Returns the eventfds of BAR 0: one for each doorbell, that of the worker which will own the queue.
    pub(super) fn region_io_fds(&self, argsz: u32, index: u32) -> Answer {
        if index != region::BAR0 {
            return Answer::Refused(if index < region::COUNT { libc::ENOTSUP } else { libc::EINVAL });
        }
        let queues = self.shared.vectors.count() as u16 - 1;
        let all = (1..=queues).flat_map(|qid| {
            let worker = self.worker_of(qid) as u32;
            [Doorbell::Submission(qid), Doorbell::Completion(qid)].map(|bell| (bell.offset(0), worker))
        });
        let fds = self.shared.kicks.iter().take(message::DESCRIPTORS_MAX).cloned().collect::<Vec<_>>();
        let all: Vec<(u64, u32)> = all.filter(|(_, worker)| (*worker as usize) < fds.len()).collect();
        Answer::With(message::io_fds(index, argsz, &all), fds)
    }

    pub(super) fn region_read(&mut self, access: Access) -> Answer {
        let bytes = match access.region {
            region::BAR0 => shm::BAR0_BYTES,
            region::BAR4 => config_space::BAR4_BYTES,
            region::CONFIG => config_space::BYTES as u64,
            _ => 0,
        };
        // `Access` has seen that the sum doesn't overflow.
        if access.offset + u64::from(access.count) > bytes {
            return Answer::Refused(libc::EINVAL);
        }
        let mut answer = message::accessed(access);
        let head = answer.0.len();
        answer.0.resize(head + access.count as usize, 0);
        let into = &mut answer.0[head..];
        match access.region {
            region::BAR0 => self.device.read(access.offset, into),
            region::BAR4 => self.read_msix(access.offset, into),
            _ => self.space.read(access.offset, into),
        }
        Answer::Payload(answer.0)
    }

    /// MSI-X's table, as it was written, and the pending bits.
    pub(super) fn read_msix(&self, offset: u64, into: &mut [u8]) {
        for (byte, at) in into.iter_mut().zip(offset..) {
            *byte = match at.checked_sub(config_space::PENDING_OFFSET) {
                Some(at) => {
                    self.shared.vectors.pending((at / 8 * 64) as u32).to_le_bytes()[(at % 8) as usize]
                }
                None => self.msix_table.get(at as usize).copied().unwrap_or(0),
            };
        }
    }

    pub(super) fn region_write(&mut self, header: &Header, access: Access, data: &[u8]) -> Answer {
        match self.write_region(access, data) {
            Err(errno) => Answer::Refused(errno),
            Ok(false) => Answer::Payload(message::accessed(access).0),
            Ok(true) => self.after_reset(*header, message::accessed(access).0),
        }
    }

    /// True: the function is being reset.
    pub(super) fn write_region(&mut self, access: Access, data: &[u8]) -> Result<bool, i32> {
        let end = access.offset + data.len() as u64;
        match access.region {
            region::BAR0 if end <= shm::BAR0_BYTES => {
                self.write_registers(access.offset, data);
                Ok(false)
            }
            region::BAR4 if end <= config_space::BAR4_BYTES => {
                for (byte, at) in data.iter().zip(access.offset..) {
                    self.msix_table.get_mut(at as usize).into_iter().for_each(|place| *place = *byte);
                }
                Ok(false)
            }
            region::CONFIG if end <= config_space::BYTES as u64 => {
                let written = self.space.write(access.offset, data);
                if written.function_reset {
                    self.reset();
                }
                Ok(written.function_reset)
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Rings for queue 0 what a client wrote to its doorbells in memory, which wakes nobody.
    pub(super) fn look_at_admin_doorbells(&mut self) {
        if !self.looks_at_doorbells() {
            return;
        }
        for (at, doorbell) in [Doorbell::Completion(0), Doorbell::Submission(0)].into_iter().enumerate() {
            let value = self.shared.doorbells.get(doorbell);
            if std::mem::replace(&mut self.admin_seen[at], value) != value {
                self.stirred_at = clock::now();
                self.touch();
                self.write_registers(doorbell.offset(0), &value.to_le_bytes());
            }
        }
    }

    pub(super) fn looks_at_doorbells(&self) -> bool {
        self.shared.is_polled() && self.device.ready() && self.held.is_none()
    }

    /// How long it may sleep without looking at the doorbells of queue 0.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let lately = clock::now().saturating_duration_since(self.stirred_at) < POLL_AWAKE;
        self.looks_at_doorbells().then_some(if lately { POLL_EVERY } else { POLL_RARELY })
    }

    pub(super) fn after_reset(&mut self, header: Header, answer: Vec<u8>) -> Answer {
        if self.closing == 0 {
            return Answer::Payload(answer);
        }
        self.waiting = Some(Waiting::Reset { header, answer });
        Answer::Later
    }

    pub(super) fn write_registers(&mut self, offset: u64, data: &[u8]) {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        let doorbell = Doorbell::at(offset, 0).filter(|_| self.device.ready());
        let worker = match doorbell {
            Some(Doorbell::Submission(sqid)) => self.submissions.get(&sqid).copied(),
            Some(Doorbell::Completion(cqid)) => self.completions.get(&cqid).copied(),
            None => None,
        };
        if let Some(Doorbell::Submission(sqid)) = doorbell {
            self.shared.rang(sqid);
        }
        // The doorbell of an I/O queue: its worker is told, and nobody else.
        if let (Ok(value), Some(doorbell), Some(worker)) = (value, doorbell, worker) {
            self.shared.doorbells.set(doorbell, value);
            self.shared.rung[worker].store(true, Ordering::Release);
            return self.workers[worker].wake();
        }
        if doorbell == Some(Doorbell::Submission(0)) {
            self.device.set_health((self.health)());
        }
        let map = self.shared.dma.map_now();
        let was_ready = self.device.ready();
        self.device.write(&*map, offset, data);
        if was_ready && !self.device.ready() {
            self.tally.resets += 1;
        }
        drop(map);
        self.pump();
    }
}
