//! Devices as their daemon sees them: made, described, started, taken over, stopped, deleted. The commands go through
//! a trait, so that a test can be the kernel.

use super::options::{OnDeath, Options};
use super::request::Limits;
use super::uapi::{
    self, attribute, feature, state, Basic, ControlCommand, DeviceInfo, Discard, Parameters, SECTOR,
};
use crate::namespace::volume::Volume;
use forebay_io::{is_process_gone, monotonic_now};
use forebay_model::units::GIB;
use forebay_model::Error;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Time for a daemon that died to be gone from its device.
const RELEASE: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The kernel's own bounds of a command that waits for nobody.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Partitions are read before a device is there.
const START: Duration = Duration::from_secs(60);
/// Discards and zeroings come in pieces of at most this.
const PIECE_BYTES: u64 = GIB;

/// One command to the control device: `command.addr` and `len` are set to `buffer` by whoever carries it out.
///
/// # Errors
/// The errno; ETIMEDOUT where the kernel didn't answer in time, and then `buffer` was given up to it.
pub(super) trait Control {
    fn call(
        &mut self,
        op: u32,
        command: ControlCommand,
        buffer: &mut [u8],
        within: Duration,
    ) -> Result<i32, i32>;
}

/// A command about no queue.
fn about(dev_id: u32) -> ControlCommand {
    ControlCommand { dev_id, queue_id: u16::MAX, ..ControlCommand::default() }
}

pub(super) fn features(control: &mut dyn Control) -> Result<u64, i32> {
    let mut bytes = [0; 8];
    control.call(uapi::GET_FEATURES, about(u32::MAX), &mut bytes, AT_ONCE)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// None: there is no such device.
pub(super) fn info(control: &mut dyn Control, id: u32) -> Result<Option<DeviceInfo>, i32> {
    let mut info = DeviceInfo::default();
    match control.call(uapi::GET_DEV_INFO, about(id), info.as_mut_bytes(), AT_ONCE) {
        Ok(_) => Ok(Some(info)),
        Err(libc::ENODEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(super) fn add(control: &mut dyn Control, asked: DeviceInfo) -> Result<DeviceInfo, i32> {
    let mut info = asked;
    control.call(uapi::ADD_DEV, about(asked.dev_id), info.as_mut_bytes(), AT_ONCE)?;
    Ok(info)
}

pub(super) fn set_parameters(control: &mut dyn Control, id: u32, parameters: &Parameters) -> Result<(), i32> {
    let mut bytes = [0; size_of::<Parameters>()];
    bytes.copy_from_slice(parameters.as_bytes());
    control.call(uapi::SET_PARAMS, about(id), &mut bytes, AT_ONCE).map(drop)
}

pub(super) fn parameters(control: &mut dyn Control, id: u32) -> Result<Parameters, i32> {
    let mut bytes = [0; size_of::<Parameters>()];
    bytes[..4].copy_from_slice(&(size_of::<Parameters>() as u32).to_ne_bytes());
    control.call(uapi::GET_PARAMS, about(id), &mut bytes, AT_ONCE)?;
    Ok(Parameters::read_from_bytes(&bytes).expect("as long as it is"))
}

/// Shows /dev/ublkbN, once all queues ask for requests.
pub(super) fn start(control: &mut dyn Control, id: u32, recovers: bool) -> Result<(), i32> {
    let op = if recovers { uapi::END_USER_RECOVERY } else { uapi::START_DEV };
    let command = ControlCommand { data: std::process::id().into(), ..about(id) };
    control.call(op, command, &mut [], START).map(drop)
}

pub(super) fn stop(control: &mut dyn Control, id: u32, within: Duration) -> Result<(), i32> {
    control.call(uapi::STOP_DEV, about(id), &mut [], within).map(drop)
}

pub(super) fn delete(control: &mut dyn Control, id: u32, within: Duration) -> Result<(), i32> {
    control.call(uapi::DEL_DEV, about(id), &mut [], within).map(drop)
}

/// Makes a device ready for the next daemon, once the last one is gone from it.
pub(super) fn begin_recovery(control: &mut dyn Control, id: u32) -> Result<(), i32> {
    let until = monotonic_now() + RELEASE;
    loop {
        match control.call(uapi::START_USER_RECOVERY, about(id), &mut [], AT_ONCE) {
            Err(libc::EBUSY) if monotonic_now() < until => std::thread::sleep(POLL_INTERVAL),
            answer => return answer.map(drop),
        }
    }
}

/// Waits for a device whose daemon died to notice that.
pub(super) fn settled(control: &mut dyn Control, id: u32) -> Result<Option<DeviceInfo>, i32> {
    let until = monotonic_now() + RELEASE;
    loop {
        match info(control, id)? {
            Some(found)
                if found.state == state::LIVE
                    && is_process_gone(found.ublksrv_pid)
                    && monotonic_now() < until =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            found => return Ok(found),
        }
    }
}

/// Returns a volume's identity, which is kept in the device, so that no other volume is put in its place.
pub(crate) fn identity(volume: &Volume) -> u64 {
    let (high, low) = volume.uuid.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    number(high) ^ number(low).rotate_left(1)
}

/// Returns the parameters requested of the kernel.
pub(super) fn wanted(options: &Options, volume: &Volume) -> DeviceInfo {
    DeviceInfo {
        nr_hw_queues: options.queues_asked(),
        queue_depth: options.depth,
        max_io_buf_bytes: options.max_transfer.0 as u32,
        dev_id: options.id.unwrap_or(u32::MAX),
        ublksrv_pid: std::process::id() as i32,
        flags: options.on_death.flags() | feature::CMD_IOCTL_ENCODE,
        ublksrv_flags: identity(volume),
        ..DeviceInfo::default()
    }
}

/// The source's geometry, as the block layer wants it.
pub(super) fn described(volume: &Volume, transfer_bytes: u32) -> Parameters {
    let block_shift = volume.block_bytes.trailing_zeros() as u8;
    let physical_shift = block_shift.max(12);
    let mut attrs = if volume.writable { 0 } else { attribute::READ_ONLY };
    if volume.write_cache {
        attrs |= attribute::VOLATILE_CACHE | attribute::FUA;
    }
    let pieces = (PIECE_BYTES / SECTOR) as u32;
    let discards = if volume.writable && volume.as_namespace().deallocate { pieces } else { 0 };
    Parameters {
        len: size_of::<Parameters>() as u32,
        types: uapi::TYPE_BASIC | uapi::TYPE_DISCARD,
        basic: Basic {
            attrs,
            logical_bs_shift: block_shift,
            physical_bs_shift: physical_shift,
            io_opt_shift: physical_shift,
            io_min_shift: physical_shift,
            max_sectors: transfer_bytes / SECTOR as u32,
            chunk_sectors: 0,
            dev_sectors: volume.bytes() / SECTOR,
            virt_boundary_mask: 0,
        },
        discard: Discard {
            discard_alignment: 0,
            discard_granularity: 1 << physical_shift,
            max_discard_sectors: discards,
            max_write_zeroes_sectors: if volume.writable { pieces } else { 0 },
            max_discard_segments: 1,
            reserved0: 0,
        },
        pad: 0,
    }
}

pub(super) fn limits(volume: &Volume, transfer_max: u32, piece_max: u32) -> Limits {
    Limits {
        bytes: volume.bytes(),
        writable: volume.writable,
        transfer_max,
        piece_max,
        write_cache: volume.write_cache,
    }
}

/// Checks that a volume may take the place of the device's last one.
///
/// # Errors
/// What differs, with both values: a file system on the device would take it for its own.
pub(super) fn may_follow(volume: &Volume, info: &DeviceInfo, there: &Parameters) -> Result<(), Error> {
    let device = format!("/dev/ublkb{}", info.dev_id);
    let wanted = described(volume, info.max_io_buf_bytes);
    let refuse = |found: String| {
        let next = format!("the source that it had, or delete it first and let all that use {device} go");
        Err(Error::request(format!("recover {device} over {}", volume.source), found, next))
    };
    if info.ublksrv_flags != identity(volume) {
        return refuse("the device was created over another namespace".into());
    }
    let (was, is) = (there.basic, wanted.basic);
    if was.dev_sectors != is.dev_sectors {
        return refuse(format!("the device has {} sectors, the source {}", was.dev_sectors, is.dev_sectors));
    }
    if was.logical_bs_shift != is.logical_bs_shift {
        let bytes = |shift: u8| 1u32 << shift.min(31);
        let (was, is) = (bytes(was.logical_bs_shift), bytes(is.logical_bs_shift));
        return refuse(format!("the device has blocks of {was} bytes, the source of {is}"));
    }
    let read_only = |attrs: u32| attrs & attribute::READ_ONLY != 0;
    if read_only(was.attrs) != read_only(is.attrs) {
        let says = |attrs| if read_only(attrs) { "read-only" } else { "writable" };
        return refuse(format!("the device is {}, the source {}", says(was.attrs), says(is.attrs)));
    }
    // The page cache above flushes only a device that said it has a cache.
    let cached = |attrs: u32| attrs & attribute::VOLATILE_CACHE != 0;
    if !cached(was.attrs) && cached(is.attrs) {
        return refuse("the device promised that writes are durable, the source has a cache".into());
    }
    Ok(())
}

/// Checks the device's behaviour without a daemon: it can't be changed, and some kernels can't do all of it.
pub(super) fn check_death(asked: OnDeath, features: u64) -> Result<(), Error> {
    let missing = asked.flags() & !features;
    if missing == 0 {
        return Ok(());
    }
    Err(Error::machine(
        format!("on_death = \"{}\"", asked.name()),
        format!("this kernel's ublk lacks {}", feature::names(missing).join(" and ")),
        "on_death = \"wait\", or Linux 6.13 for \"fail\"",
    ))
}
