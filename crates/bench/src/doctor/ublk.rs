//! ublk: whether this machine can have block devices whose requests Forebay answers.

use forebay_io::{Check, CheckArea, CheckState, Roots};
use rustix::fs::{access, Access};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ublk {
    /// /dev/ublk-control is there, and this process may open it.
    Usable,
    /// It is there, for root.
    Forbidden,
    /// A module of the running kernel, not loaded.
    Available,
    #[default]
    Absent,
}

pub(crate) fn facts(roots: &Roots, release: &str) -> Ublk {
    let control = roots.dev.join("ublk-control");
    if control.exists() {
        return match access(&control, Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => Ublk::Usable,
            Err(_) => Ublk::Forbidden,
        };
    }
    // Compressed as the distribution likes: .ko.xz, .ko.zst.
    let modules = roots.root.join("lib/modules").join(release).join("kernel/drivers/block");
    match Roots::names(&modules).iter().any(|name| name.starts_with("ublk_drv.ko")) {
        true => Ublk::Available,
        false => Ublk::Absent,
    }
}

pub(crate) fn checks(found: Ublk) -> Vec<Check> {
    let check = |state, found: &str| {
        Check::new(CheckArea::Fabric, "ublk", "block devices by Forebay (ublk)", state, found)
    };
    vec![match found {
        Ublk::Usable => check(CheckState::Works, "/dev/ublk-control is there: any source can be a /dev/ublkbN"),
        // Nothing amiss in these two: who wants a device here types that.
        Ublk::Forbidden => check(CheckState::Works, "/dev/ublk-control is there, for root: sudo makes a /dev/ublkbN"),
        Ublk::Available => check(CheckState::Works, "can be loaded, for /dev/ublkbN: sudo modprobe ublk_drv"),
        Ublk::Absent => check(
            CheckState::NotApplicable,
            "no ublk_drv module for this kernel (Linux 6.5 with CONFIG_BLK_DEV_UBLK); a guest can have vfio-user",
        ),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_there_to_be_loaded_or_absent() {
        let machine = tempfile::tempdir().unwrap();
        let roots = Roots::under(machine.path());
        assert_eq!(facts(&roots, "6.12.1"), Ublk::Absent);
        let modules = machine.path().join("lib/modules/6.12.1/kernel/drivers/block");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("ublk_drv.ko.xz"), "").unwrap();
        assert_eq!(facts(&roots, "6.12.1"), Ublk::Available);
        assert_eq!(facts(&roots, "6.12.2"), Ublk::Absent);
        std::fs::create_dir_all(&roots.dev).unwrap();
        std::fs::write(roots.dev.join("ublk-control"), "").unwrap();
        assert_eq!(facts(&roots, "6.12.2"), Ublk::Usable);
    }

    // promise: UBL-5
    #[test]
    fn each_says_what_to_type_and_none_is_amiss() {
        for (found, said) in [
            (Ublk::Usable, "/dev/ublkbN"),
            (Ublk::Forbidden, "sudo"),
            (Ublk::Available, "sudo modprobe ublk_drv"),
            (Ublk::Absent, "CONFIG_BLK_DEV_UBLK"),
        ] {
            let check = checks(found).remove(0);
            assert!(check.found.contains(said) && !check.wants_action(), "{check:?}");
        }
    }
}
