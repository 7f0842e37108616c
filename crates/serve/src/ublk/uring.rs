//! The kernel behind both seams: commands to the control device on a ring of long submissions, and a hardware queue on
//! its thread's reactor.

#![allow(unsafe_code, reason = "the ring's entries name buffers by address")]

use super::arena::Slots;
use super::control::Control;
use super::map::Descriptors;
use super::port::{Arrival, HardwareQueue};
use super::uapi::{self, ControlCommand, Descriptor, IoCommand, COMMIT_AND_FETCH_REQ, CONTROL, FETCH_REQ};
use forebay_io::{is_nothing_yet, memlock_refusal, monotonic_now, Mem, Reactor, RingCompletion};
use forebay_model::Error;
use io_uring::{cqueue, opcode, squeue, types, IoUring};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

pub(super) struct Kernel {
    device: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    serial: u64,
}

impl Kernel {
    /// # Errors
    /// `Machine`: no module, no right to use it, no io_uring; each with what to type.
    pub(super) fn open() -> Result<Kernel, Error> {
        Kernel::open_at(Path::new(CONTROL))
    }

    pub(super) fn open_at(path: &Path) -> Result<Kernel, Error> {
        let device = OpenOptions::new().read(true).write(true).open(path);
        let device = device.map_err(|e| refused(path, &e))?;
        let ring = IoUring::builder().build(8).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock_refusal("a ublk device", &e, next)
        })?;
        Ok(Kernel { device, ring, serial: 0 })
    }
}

fn refused(path: &Path, e: &std::io::Error) -> Error {
    let asked = "a ublk device";
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::machine(
            asked,
            format!("{} isn't there: the ublk driver isn't loaded, or this kernel has none", path.display()),
            "sudo modprobe ublk_drv; forebay doctor says whether this kernel has it. A guest can have vfio-user",
        ),
        Some(libc::EACCES | libc::EPERM) => Error::machine(
            asked,
            format!("{} can only be opened by root, which this process isn't", path.display()),
            "sudo, or a service with CAP_SYS_ADMIN (deploy/). A guest can have vfio-user without",
        ),
        _ => Error::machine(asked, format!("{}: {e}", path.display()), "forebay doctor"),
    }
}

impl Control for Kernel {
    fn call(
        &mut self,
        op: u32,
        command: ControlCommand,
        buffer: &mut [u8],
        within: Duration,
    ) -> Result<i32, i32> {
        let mut lent = buffer.to_vec();
        let addr = if lent.is_empty() { 0 } else { lent.as_mut_ptr() as u64 };
        let command = ControlCommand { addr, len: lent.len() as u16, ..command };
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        self.serial += 1;
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), op).cmd(bytes).build();
        // SAFETY: the entry points to `lent`, which lives until its completion, or for ever if none comes in time.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(self.serial)) };
        pushed.map_err(|_| libc::EBUSY)?;
        let result = match self.answer(self.serial, within) {
            Ok(result) => result,
            Err(errno) => {
                std::mem::forget(lent);
                return Err(errno);
            }
        };
        buffer.copy_from_slice(&lent);
        if result < 0 {
            return Err(-result);
        }
        Ok(result)
    }
}

impl Kernel {
    /// Waits for the completion of a command; answers to others, whose time was over, are dropped.
    ///
    /// # Errors
    /// ETIMEDOUT, or what the kernel refuses calls for the ring with: the command may still be carried out.
    fn answer(&mut self, serial: u64, within: Duration) -> Result<i32, i32> {
        let until = monotonic_now() + within;
        loop {
            let answers: Vec<(u64, i32)> =
                self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
            if let Some((_, result)) = answers.into_iter().find(|(of, _)| *of == serial) {
                return Ok(result);
            }
            let left = until.saturating_duration_since(monotonic_now());
            if left.is_zero() {
                return Err(libc::ETIMEDOUT);
            }
            let timeout = types::Timespec::from(left);
            let args = types::SubmitArgs::new().timespec(&timeout);
            match self.ring.submitter().submit_with_args(1, &args).map_err(|e| e.raw_os_error()) {
                Err(Some(errno)) if !is_nothing_yet(errno) => return Err(errno),
                _ => {}
            }
        }
    }
}

/// One hardware queue of a device.
pub(super) struct DevicePort {
    device: Arc<File>,
    fixed: Option<u32>,
    token: u32,
    queue: u16,
    depth: u16,
    descriptors: Descriptors,
    slots: Slots,
    completions: Vec<RingCompletion>,
}

impl DevicePort {
    /// On the thread that serves it. `slot_bytes`: longest request.
    pub(super) fn open(
        device: &Arc<File>,
        queue: u16,
        depth: u16,
        slot_bytes: u32,
        reactor: &mut Reactor,
    ) -> Result<DevicePort, Error> {
        let descriptors = Descriptors::map(device, queue, depth).map_err(|e| {
            let asked = format!("the requests of hardware queue {queue}");
            Error::run(asked, format!("mapping the character device failed: {e}"), "forebay doctor")
        })?;
        Ok(DevicePort {
            fixed: reactor.register_file(device),
            token: reactor.token(),
            device: device.clone(),
            queue,
            depth,
            descriptors,
            slots: Slots::new(depth, slot_bytes)?,
            completions: Vec::with_capacity(depth.into()),
        })
    }

    fn command(&mut self, op: u32, tag: u16, result: i32, reactor: &mut Reactor) {
        let command = IoCommand { q_id: self.queue, tag, result, addr: self.slots.address(tag) };
        let mut bytes = [0; size_of::<IoCommand>()];
        bytes.copy_from_slice(command.as_bytes());
        let entry = match self.fixed {
            Some(at) => opcode::UringCmd16::new(types::Fixed(at), op).cmd(bytes).build(),
            None => opcode::UringCmd16::new(types::Fd(self.device.as_raw_fd()), op).cmd(bytes).build(),
        };
        // SAFETY: the driver reads and writes the tag's slot from here until the command completes; the slots live
        // until the ring is gone, or are left to it.
        unsafe { reactor.push(self.token, tag.into(), entry) };
    }
}

impl HardwareQueue for DevicePort {
    fn depth(&self) -> u16 {
        self.depth
    }

    fn fetch(&mut self, tag: u16, reactor: &mut Reactor) {
        self.command(FETCH_REQ, tag, 0, reactor);
    }

    fn commit(&mut self, tag: u16, result: i32, reactor: &mut Reactor) {
        self.command(COMMIT_AND_FETCH_REQ, tag, result, reactor);
    }

    fn arrivals(&mut self, reactor: &mut Reactor, into: &mut Vec<Arrival>) {
        reactor.take(self.token, &mut self.completions);
        into.extend(self.completions.drain(..).map(|c| Arrival {
            tag: c.tag as u16,
            came: match c.result {
                uapi::RES_OK => Ok(()),
                refused => Err(-refused),
            },
        }));
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.descriptors.get(tag)
    }

    fn slot(&self, tag: u16) -> Mem {
        self.slots.mem(tag)
    }

    fn clear(&mut self, tag: u16, bytes: usize) {
        self.slots.clear(tag, bytes);
    }

    fn leave(self) {
        // The device is closed, which is what its next daemon waits for.
        std::mem::forget(self.slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: UBL-5
    #[test]
    fn without_the_driver_it_says_what_to_type() {
        let error = Kernel::open_at(Path::new("/nonexistent/ublk-control")).err().unwrap();
        assert_eq!(error.kind.exit_code(), 3);
        assert!(error.next.contains("modprobe ublk_drv"), "{error}");
        let error = refused(Path::new(CONTROL), &std::io::Error::from_raw_os_error(libc::EACCES));
        assert!(error.found.contains("root") && error.next.contains("sudo"), "{error}");
    }

    // promise: ENG-6
    #[test]
    fn a_ring_that_may_not_be_entered_any_more_ends_a_command_at_once() {
        let run = || {
            let Ok(mut kernel) = Kernel::open_at(Path::new("/dev/null")) else { return };
            forebay_rigs::seccomp::forbid_entering(libc::EPERM);
            let command = ControlCommand::default();
            let answer = kernel.call(uapi::GET_FEATURES, command, &mut [7; 8], Duration::from_secs(3600));
            assert_eq!(answer, Err(libc::EPERM));
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_command_is_answered_by_whatever_device_it_goes_to() {
        // Since Linux 6.4 /dev/null takes any command and does nothing; before, it has none.
        let Ok(mut kernel) = Kernel::open_at(Path::new("/dev/null")) else { return };
        for _ in 0..20 {
            let mut buffer = [7; 8];
            let answer = kernel.call(
                uapi::GET_FEATURES,
                ControlCommand::default(),
                &mut buffer,
                Duration::from_secs(60),
            );
            assert!(matches!(answer, Ok(0) | Err(libc::EOPNOTSUPP)), "{answer:?}");
            assert_eq!(buffer, [7; 8]);
        }
    }
}
