//! A device's node in /dev: made, waited for, taken away.

use super::super::control;
use super::super::control::Control;
use super::super::options::Attach;
use super::super::options::Options;
use super::super::uapi::feature;
use super::super::uapi::state;
use super::super::uapi::DeviceInfo;
use super::super::uring::Kernel;
use super::text;
use super::DELETE;
use super::NODE;
use super::POLL_INTERVAL;
use crate::namespace::volume::Volume;
use forebay_io::monotonic_now;
use forebay_model::Error;
use forebay_storage::mounted_as;
use std::fs::File;
use std::fs::OpenOptions;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

/// The device that waits to be taken over, ready for it; None where one is to be made.
pub(crate) fn claim(
    kernel: &mut dyn Control,
    volume: &Volume,
    options: &Options,
) -> Result<Option<DeviceInfo>, Error> {
    let Some(id) = options.id else { return Ok(None) };
    let device = format!("/dev/ublkb{id}");
    let refuse = |found: &str, next: &str| Err(Error::request(&device, found, next));
    let failed =
        |errno| Error::run(&device, format!("the driver doesn't say what it is: {}", text(errno)), "dmesg");
    let there = control::settled(kernel, id).map_err(failed)?;
    let Some(info) = there else {
        if options.attach == Attach::Recover {
            return refuse("there is no such device to recover", "attach = \"auto\"");
        }
        return Ok(None);
    };
    match (info.state, options.attach) {
        (_, Attach::New) => refuse("it is there already", "another id, none at all, or attach = \"auto\""),
        (state::QUIESCED | state::FAIL_IO, _) => {
            let there = control::parameters(kernel, id).map_err(failed)?;
            control::may_follow(volume, &info, &there)?;
            control::begin_recovery(kernel, id).map_err(|errno| {
                let found = format!("its last daemon still holds it: {}", text(errno));
                Error::run(
                    format!("recover {device}"),
                    found,
                    "wait a moment, or end the process that has it open",
                )
            })?;
            Ok(Some(info))
        }
        (state::LIVE, _) => {
            let found = format!("process {} serves it", info.ublksrv_pid);
            refuse(&found, "another id, or stop that one first")
        }
        // Never started, or its daemon went and it was made to go with it: what is left has no disk.
        _ if info.ublksrv_flags == control::identity(volume) && options.attach == Attach::Auto => {
            control::delete(kernel, id, DELETE).map_err(failed)?;
            Ok(None)
        }
        _ => refuse("a dead device has that number", "another id, or `forebay snap rpc` to delete it"),
    }
}

pub(crate) fn make(
    kernel: &mut dyn Control,
    volume: &Volume,
    options: &Options,
) -> Result<DeviceInfo, Error> {
    let wanted = control::wanted(options, volume);
    let info = control::add(kernel, wanted).map_err(|errno| match errno {
        libc::EPERM | libc::EACCES => {
            let next = "sudo, or a service with CAP_SYS_ADMIN (deploy/)";
            Error::machine(
                "a ublk device",
                "creating one needs CAP_SYS_ADMIN, which this process lacks",
                next,
            )
        }
        libc::EEXIST => {
            let id = options.id.unwrap_or(0);
            Error::request(format!("/dev/ublkb{id}"), "it is there already", "another id, or none at all")
        }
        libc::ENOMEM => {
            let next = "a smaller depth or fewer queues";
            Error::machine("a ublk device", "the kernel has no memory for its queues", next)
        }
        _ => Error::run(
            "a ublk device",
            format!("the driver refuses to create one: {}", text(errno)),
            "dmesg | tail",
        ),
    })?;
    let described = control::described(volume, info.max_io_buf_bytes);
    let missing = wanted.flags & !info.flags;
    let set = match missing {
        0 => control::set_parameters(kernel, info.dev_id, &described).map_err(|errno| {
            let found = format!("the driver refuses the source's geometry: {}", text(errno));
            Error::run(format!("a ublk device over {}", volume.source), found, "block_bytes = 512 or 4096")
        }),
        missing => {
            let found = format!("this kernel's ublk lacks {}", feature::names(missing).join(" and "));
            Err(Error::machine("a ublk device", found, "on_death = \"remove\""))
        }
    };
    match set {
        Ok(()) => Ok(info),
        Err(e) => {
            let _ = control::delete(kernel, info.dev_id, DELETE);
            Err(e)
        }
    }
}

/// Waits for a stop that was asked for before.
pub(super) fn stopped(kernel: &mut dyn Control, id: u32, within: Duration) -> Result<(), i32> {
    let until = monotonic_now() + within;
    loop {
        match control::info(kernel, id) {
            Ok(Some(info)) if info.state != state::DEAD && monotonic_now() < until => {
                std::thread::sleep(POLL_INTERVAL)
            }
            Ok(Some(info)) if info.state != state::DEAD => return Err(libc::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Deletes a device that no process serves.
///
/// # Errors
/// `Request`: there is none, a process serves it, or something uses it and `force` isn't given.
pub fn delete_ublk(id: u32, force: bool) -> Result<(), Error> {
    let mut kernel = Kernel::open()?;
    let device = PathBuf::from(format!("/dev/ublkb{id}"));
    let shown = device.display().to_string();
    let failed = |errno| Error::run(format!("delete {shown}"), text(errno), "dmesg | tail");
    let Some(info) = control::settled(&mut kernel, id).map_err(failed)? else {
        return Err(Error::request(&shown, "there is no such device", "ls /dev/ublkb*"));
    };
    if info.state == state::LIVE {
        let found = format!("process {} serves it", info.ublksrv_pid);
        return Err(Error::request(format!("delete {shown}"), found, "stop it there"));
    }
    if !force {
        check_unused(&device)?;
    }
    control::delete(&mut kernel, id, DELETE).map_err(failed)
}

pub(super) fn check_unused(device: &Path) -> Result<(), Error> {
    match mounted_as(device) {
        Some(why) => Err(Error::request(
            format!("stop {}", device.display()),
            why,
            format!("umount {} first; with force, its users see errors", device.display()),
        )),
        None => Ok(()),
    }
}

/// Writes what the page cache holds for a device.
pub(super) fn written_back(device: &Path) -> Result<(), Error> {
    match File::open(device).and_then(|file| file.sync_all()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::run(
            format!("stop {}", device.display()),
            format!("what is cached for it can't be written: {e}"),
            "force, which loses that",
        )),
        _ => Ok(()),
    }
}

/// The character device, which is another daemon's until that one is gone, and udev's for a moment.
pub(super) fn open_node(path: &Path) -> Result<File, Error> {
    let until = monotonic_now() + NODE;
    loop {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => return Ok(file),
            Err(_) if monotonic_now() < until => std::thread::sleep(POLL_INTERVAL),
            Err(e) => {
                let next =
                    "a /dev that the kernel keeps (devtmpfs): in a container, --device or --privileged";
                return Err(Error::machine(path.display().to_string(), e.to_string(), next));
            }
        }
    }
}

pub(super) fn await_node(path: &Path) -> Result<(), Error> {
    let until = monotonic_now() + NODE;
    while !path.exists() {
        if monotonic_now() >= until {
            let next = "a /dev that the kernel keeps (devtmpfs): in a container, --device or --privileged";
            return Err(Error::machine(path.display().to_string(), "no node appears for it", next));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
