//! The control device's part: how a device is described, made, taken over from another daemon, and cleared away.

use super::super::control::{self, Control};
use super::super::device::{claim, make};
use super::super::options::{Attach, OnDeath, Options};
use super::super::uapi::{self, state, ControlCommand, DeviceInfo, Parameters};
use super::{file, volume, NQN};
use crate::namespace::volume::Volume;
use crate::target::config::Namespace;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

// The control device ------------------------------------------------------------------------------

/// Remembers devices, and refuses what the driver refuses.
#[derive(Default)]
struct FakeKernel {
    device: Option<DeviceInfo>,
    parameters: Parameters,
    /// Features of the driver.
    features: u64,
    /// As often START_USER_RECOVERY finds the last daemon there.
    busy: u32,
    /// Answers in place of the driver's, by command.
    refusal: Option<(u32, i32)>,
    calls: Vec<u32>,
}

impl Control for FakeKernel {
    fn call(&mut self, op: u32, c: ControlCommand, buffer: &mut [u8], _: Duration) -> Result<i32, i32> {
        self.calls.push(op);
        assert_eq!(c.queue_id, u16::MAX);
        if let Some((_, errno)) = self.refusal.filter(|(of, _)| *of == op) {
            return Err(errno);
        }
        if op == uapi::ADD_DEV {
            let mut info = DeviceInfo::read_from_bytes(buffer).unwrap();
            assert_eq!(info.dev_id, c.dev_id, "as the driver wants it");
            info.dev_id = if info.dev_id == u32::MAX { 5 } else { info.dev_id };
            info.flags &= self.features;
            info.nr_hw_queues = info.nr_hw_queues.min(2);
            self.device = Some(info);
            buffer.copy_from_slice(info.as_bytes());
            return Ok(0);
        }
        let info = self.device.filter(|d| d.dev_id == c.dev_id).ok_or(libc::ENODEV)?;
        match op {
            uapi::GET_DEV_INFO => buffer.copy_from_slice(info.as_bytes()),
            uapi::SET_PARAMS => self.parameters = Parameters::read_from_bytes(buffer).unwrap(),
            uapi::GET_PARAMS => {
                assert_eq!(buffer[..4], (size_of::<Parameters>() as u32).to_ne_bytes());
                buffer.copy_from_slice(self.parameters.as_bytes());
            }
            uapi::START_USER_RECOVERY if self.busy > 0 => {
                self.busy -= 1;
                return Err(libc::EBUSY);
            }
            uapi::DEL_DEV => self.device = None,
            _ => {}
        }
        Ok(0)
    }
}

fn kernel() -> FakeKernel {
    FakeKernel { features: u64::MAX, ..FakeKernel::default() }
}

/// A device as a daemon left it.
fn left(volume: &Volume, state: u16) -> FakeKernel {
    let mut kernel = kernel();
    let options = Options { id: Some(5), ..Options::default() };
    make(&mut kernel, volume, &options).unwrap();
    let device = kernel.device.as_mut().unwrap();
    (device.state, device.ublksrv_pid) = (state, -1);
    kernel.calls.clear();
    kernel
}

fn recover() -> Options {
    Options { id: Some(5), ..Options::default() }
}

#[test]
fn a_device_is_described_by_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let mut kernel = kernel();
    let volume = volume(&path, true, None);
    let options = Options { queues: 4, depth: 32, ..Options::default() };
    let info = make(&mut kernel, &volume, &options).unwrap();
    assert_eq!((info.dev_id, info.nr_hw_queues, info.queue_depth), (5, 2, 32));
    assert_eq!(info.ublksrv_flags, control::identity(&volume));
    assert_eq!(kernel.calls, [uapi::ADD_DEV, uapi::SET_PARAMS]);
    let Parameters { basic, discard, types, len, .. } = kernel.parameters;
    assert_eq!((len, types), (64, 3));
    assert_eq!(basic.dev_sectors, 2048);
    assert_eq!(1 << basic.logical_bs_shift, volume.block_bytes);
    assert_eq!(basic.attrs, 4 | 8, "a volatile cache, with FUA");
    assert_eq!((basic.max_sectors, discard.max_discard_segments), (2048, 1));
    assert!(discard.max_discard_sectors > 0 && discard.max_write_zeroes_sectors > 0);
}

#[test]
fn a_read_only_source_makes_a_read_only_device() {
    let mut kernel = kernel();
    make(&mut kernel, &volume("nil:?size=1m", false, None), &Options::default()).unwrap();
    assert_eq!(kernel.parameters.basic.attrs, 1);
    assert_eq!(kernel.parameters.discard.max_write_zeroes_sectors, 0);
}

// promise: UBL-4
#[test]
fn what_the_kernel_refuses_leaves_no_device() {
    let volume = volume("nil:?size=1m", true, None);
    let mut refuses = FakeKernel { refusal: Some((uapi::SET_PARAMS, libc::EINVAL)), ..kernel() };
    assert_eq!(make(&mut refuses, &volume, &Options::default()).unwrap_err().kind.exit_code(), 4);
    assert!(refuses.device.is_none());
    let mut old = FakeKernel { features: 0, ..kernel() };
    let error = make(&mut old, &volume, &Options::default()).unwrap_err();
    assert!(error.found.contains("user_recovery"), "{error}");
    assert!(old.device.is_none());
    let mut unprivileged = FakeKernel { refusal: Some((uapi::ADD_DEV, libc::EPERM)), ..kernel() };
    let error = make(&mut unprivileged, &volume, &Options::default()).unwrap_err();
    assert!(error.kind.exit_code() == 3 && error.next.contains("sudo"), "{error}");
    let error = control::check_death(OnDeath::Fail, OnDeath::Wait.flags()).unwrap_err();
    assert!(error.found.contains("user_recovery_fail_io"), "{error}");
    control::check_death(OnDeath::Wait, OnDeath::Wait.flags()).unwrap();
}

// promise: UBL-4
#[test]
fn a_device_that_waits_is_taken_over_once_its_daemon_is_gone() {
    let volume = volume("nil:?size=1m", true, None);
    for waiting in [state::QUIESCED, state::FAIL_IO] {
        let mut kernel = FakeKernel { busy: 3, ..left(&volume, waiting) };
        let info = claim(&mut kernel, &volume, &recover()).unwrap().expect("taken over");
        assert_eq!(info.dev_id, 5);
        assert_eq!(kernel.calls.iter().filter(|op| **op == uapi::START_USER_RECOVERY).count(), 4);
    }
}

// promise: UBL-4
#[test]
fn a_device_is_only_taken_over_by_what_it_stood_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let was = volume(&path, true, None);
    let other = {
        let given = Namespace { source: "nil:?size=1m".into(), ..Namespace::default() };
        Volume::open(NQN, 2, &given, 1).unwrap()
    };
    let error = claim(&mut left(&was, state::QUIESCED), &other, &recover()).unwrap_err();
    assert!(error.found.contains("another namespace"), "{error}");
    drop(was);
    for (source, writable, found) in [
        ("nil:?size=2m".to_string(), true, "2048 sectors, the source 4096"),
        ("nil:?size=1m".to_string(), false, "writable, the source read-only"),
    ] {
        let mut kernel = left(&volume(&path, true, None), state::QUIESCED);
        let error = claim(&mut kernel, &volume(&source, writable, None), &recover()).unwrap_err();
        assert!(error.found.contains(found), "{error}");
        assert_eq!(error.kind.exit_code(), 2);
        assert!(!kernel.calls.contains(&uapi::START_USER_RECOVERY), "it still waits");
    }
    let mut kernel = left(&volume("nil:?size=1m", true, None), state::QUIESCED);
    let error = claim(&mut kernel, &volume(&path, true, None), &recover()).unwrap_err();
    assert!(error.found.contains("has a cache"), "{error}");
}

// promise: UBL-4
#[test]
fn a_device_of_another_daemon_is_left_alone() {
    let volume = volume("nil:?size=1m", true, None);
    let mut kernel = left(&volume, state::LIVE);
    kernel.device.as_mut().unwrap().ublksrv_pid = std::process::id() as i32;
    let error = claim(&mut kernel, &volume, &recover()).unwrap_err();
    assert!(error.found.contains(&std::process::id().to_string()), "{error}");
    let new = Options { attach: Attach::New, ..recover() };
    let error = claim(&mut left(&volume, state::QUIESCED), &volume, &new).unwrap_err();
    assert!(error.found.contains("already"), "{error}");
    let must = Options { attach: Attach::Recover, ..recover() };
    let error = claim(&mut self::kernel(), &volume, &must).unwrap_err();
    assert!(error.found.contains("no such device"), "{error}");
    assert_eq!(claim(&mut self::kernel(), &volume, &recover()).unwrap(), None, "it is made");
}

#[test]
fn what_is_left_of_a_device_that_went_with_its_daemon_is_cleared_away() {
    let volume = volume("nil:?size=1m", true, None);
    let mut kernel = left(&volume, state::DEAD);
    assert_eq!(claim(&mut kernel, &volume, &recover()).unwrap(), None);
    assert!(kernel.device.is_none());
    let mut others = left(&volume, state::DEAD);
    others.device.as_mut().unwrap().ublksrv_flags ^= 1;
    assert!(claim(&mut others, &volume, &recover()).unwrap_err().found.contains("dead"));
    assert!(others.device.is_some());
}
