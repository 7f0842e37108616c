//! Requests of a controller's client.

use super::super::dma::Asked;
use super::super::vfio_user::message;
use super::super::vfio_user::message::irq;
use super::super::vfio_user::message::Bytes;
use super::super::vfio_user::message::Header;
use super::super::vfio_user::message::Request;
use super::super::vfio_user::socket::Ended;
use super::super::vfio_user::socket::Message;
use super::super::worker::WorkerMessage;
use super::done;
use super::Answer;
use super::Controller;
use super::Waiting;
use super::BUSY;
use super::GIVE_UP;
use crate::target::log::Level;
use forebay_io::clock;
use std::os::fd::OwnedFd;

impl Controller {
    pub(super) fn handle(&mut self, message: Message) -> Result<(), Ended> {
        self.stirred_at = clock::now();
        let Message { header, body, fds, too_many } = message;
        if !header.is_command() {
            // We ask nothing of the client, so it has nothing to answer.
            return Err(Ended::Violated("an answer to nothing"));
        }
        let request = match Request::parse(&header, &body) {
            _ if too_many => Err(libc::EINVAL),
            request => request,
        };
        let answer = match request {
            Ok(request) => self.act(&header, request, fds)?,
            Err(errno) => Answer::Refused(errno),
        };
        self.answer(&header, answer)?;
        if let Some(session) = self.peer.as_mut().and_then(|peer| peer.session.as_mut()) {
            session.recycle(body);
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, header: &Header, answer: Answer) -> Result<(), Ended> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        if !header.wants_reply() {
            return Ok(());
        }
        let (bytes, fds) = match answer {
            Answer::Later => return Ok(()),
            Answer::Payload(payload) => (header.reply(&payload), Vec::new()),
            Answer::With(payload, fds) => (header.reply(&payload), fds),
            Answer::Refused(errno) => (header.refuse(errno), Vec::new()),
        };
        match (&mut peer.session, &mut self.link) {
            (Some(session), _) => session.send(bytes, fds),
            (None, Some(link)) => {
                link.answer = Some((bytes, fds));
                Ok(())
            }
            (None, None) => Err(Ended::Closed),
        }
    }

    /// Err: the session ends.
    pub(super) fn act(
        &mut self,
        header: &Header,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Ended> {
        let greeted = self.peer.as_ref().is_some_and(|peer| peer.greeted);
        if greeted == matches!(request, Request::Version { .. }) {
            return Err(Ended::Violated("VERSION is the first message, and comes once"));
        }
        Ok(match request {
            Request::Version { major, minor, data } => {
                if major != 0 || !message::is_version_data(data) {
                    return Err(Ended::Violated("a version that is not ours"));
                }
                self.peer.iter_mut().for_each(|peer| peer.greeted = true);
                // It names no capabilities, as SPDK's initiator, which takes a function only if it can map its doorbells.
                self.shared.set_rung_in_memory(data.is_empty());
                Answer::Payload(message::version(minor))
            }
            Request::DmaMap { flags, offset, address, bytes } => self.map(flags, offset, address, bytes, fds),
            Request::DmaUnmap { flags, address, bytes } => self.unmap(header, flags, address, bytes),
            Request::DeviceInfo => Answer::Payload(message::device_info()),
            Request::RegionInfo { argsz, index } => self.region_info(argsz, index),
            Request::RegionIoFds { argsz, index } => self.region_io_fds(argsz, index),
            Request::IrqInfo { index } if index < irq::COUNT => {
                let count = if index == irq::MSIX { self.shared.vectors.count() } else { 0 };
                Answer::Payload(message::irq_info(index, count))
            }
            Request::SetIrqs { flags, index, start, count, data } if index == irq::MSIX => {
                done(self.shared.vectors.set(flags, start, count, data, fds))
            }
            // Taking interrupts away that there are none of does no harm.
            Request::SetIrqs { index, count: 0, .. } if index < irq::COUNT => Answer::Payload(Vec::new()),
            Request::RegionRead(access) => self.region_read(access),
            Request::RegionWrite(access, data) => self.region_write(header, access, data),
            Request::Reset => {
                self.reset();
                self.after_reset(*header, Vec::new())
            }
            Request::WriteMulti(writes) => {
                let mut count = 0u64;
                for (access, data) in &writes {
                    let written = self.write_region(*access, &data[..access.count as usize]);
                    if written.is_err() {
                        break;
                    }
                    count += 1;
                }
                Answer::Payload(count.to_ne_bytes().to_vec())
            }
            _ => Answer::Refused(libc::EINVAL),
        })
    }

    pub(super) fn map(
        &mut self,
        flags: u32,
        offset: u64,
        address: u64,
        bytes: u64,
        mut fds: Vec<OwnedFd>,
    ) -> Answer {
        if fds.len() > 1 || flags & !(message::DMA_READABLE | message::DMA_WRITABLE) != 0 {
            return Answer::Refused(libc::EINVAL);
        }
        let readable = flags & message::DMA_READABLE != 0;
        let writable = flags & message::DMA_WRITABLE != 0;
        let asked = Asked { address, bytes, offset, readable, writable };
        done(self.shared.dma.map(asked, fds.pop()))
    }

    pub(super) fn unmap(&mut self, header: &Header, flags: u32, address: u64, bytes: u64) -> Answer {
        let retired = match flags {
            0 => self.shared.dma.unmap(address, bytes),
            // Some name a range all the same.
            message::DMA_UNMAP_ALL => Ok(self.shared.dma.unmap_all()),
            _ => Err(libc::ENOTSUP),
        };
        let retired = match retired {
            Ok(retired) => retired,
            Err(errno) => return Answer::Refused(errno),
        };
        let mut answer = Bytes::default();
        answer.u32(24).u32(flags).u64(address).u64(bytes);
        if retired.is_free() {
            return Answer::Payload(answer.0);
        }
        self.post_all(|| WorkerMessage::Look);
        let (since, gave_up) = (clock::now(), false);
        self.waiting = Some(Waiting::Unmap { header: *header, answer: answer.0, retired, since, gave_up });
        Answer::Later
    }

    /// Checks whether the last I/O has released memory that is to go.
    pub(super) fn look_at_unmapping(&mut self) {
        let Some(Waiting::Unmap { header, answer, retired, since, gave_up }) = &mut self.waiting else {
            return;
        };
        let waited = clock::now().saturating_duration_since(*since);
        let header = *header;
        let answer = match retired.is_free() {
            true => Answer::Payload(std::mem::take(answer)),
            false if waited > BUSY => Answer::Refused(libc::EBUSY),
            false => {
                if waited > GIVE_UP && !std::mem::replace(gave_up, true) {
                    let id = self.shared.id;
                    self.post_all(|| WorkerMessage::Relinquish(id));
                }
                return;
            }
        };
        if let Answer::Refused(_) = answer {
            self.say(Level::Warning, "memory still in use", "a source holds on to an I/O into it");
        }
        self.waiting = None;
        if let Err(ended) = self.answer(&header, answer) {
            self.end_session(&ended);
        }
    }
}
