//! Interface between ublk's driver and its daemons: Linux, include/uapi/linux/ublk_cmd.h, by the names there. Numbers
//! are the machine's own byte order; layouts are checked when compiled.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Device that takes commands about devices.
pub(super) const CONTROL: &str = "/dev/ublk-control";

/// `_IOR('u', nr, …)` and `_IOWR('u', nr, …)` (asm-generic/ioctl.h): direction, size, type and number.
const fn ioc(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

const fn of_control(direction: u32, number: u32) -> u32 {
    ioc(direction, number, size_of::<ControlCommand>())
}

const fn of_io(number: u32) -> u32 {
    ioc(READ_WRITE, number, size_of::<IoCommand>())
}

// UBLK_U_CMD_*: commands to the control device. Those before 0x13 have forms without a size, which newer kernels
// may be built without.
pub(super) const GET_DEV_INFO: u32 = of_control(READ, 0x02);
pub(super) const ADD_DEV: u32 = of_control(READ_WRITE, 0x04);
pub(super) const DEL_DEV: u32 = of_control(READ_WRITE, 0x05);
pub(super) const START_DEV: u32 = of_control(READ_WRITE, 0x06);
pub(super) const STOP_DEV: u32 = of_control(READ_WRITE, 0x07);
pub(super) const SET_PARAMS: u32 = of_control(READ_WRITE, 0x08);
pub(super) const GET_PARAMS: u32 = of_control(READ, 0x09);
pub(super) const START_USER_RECOVERY: u32 = of_control(READ_WRITE, 0x10);
pub(super) const END_USER_RECOVERY: u32 = of_control(READ_WRITE, 0x11);
/// Since Linux 6.5.
pub(super) const GET_FEATURES: u32 = of_control(READ, 0x13);

// UBLK_U_IO_*: commands to a device's character device, one for each request.
pub(super) const FETCH_REQ: u32 = of_io(0x20);
pub(super) const COMMIT_AND_FETCH_REQ: u32 = of_io(0x21);

/// UBLK_IO_RES_OK, what such a command completes with when its request is there. UBLK_IO_RES_ABORT, -ENODEV: no
/// request comes this way any more. Others: the command is refused.
pub(super) const RES_OK: i32 = 0;

/// UBLK_MAX_QUEUE_DEPTH.
pub(super) const DEPTH_MAX: u16 = 4096;
/// UBLK_IO_BUF_BITS: 32 MiB.
pub(super) const IO_BYTES_MAX: u32 = 1 << 25;
/// Block devices count in these.
pub(super) const SECTOR: u64 = 512;

/// UBLK_F_*: what a device is made with, as far as the kernel has it.
pub(super) mod feature {
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Linux 6.13.
    pub(crate) const USER_RECOVERY_FAIL_IO: u64 = 1 << 9;

    const NAMES: [(u64, &str); 13] = [
        (1 << 0, "zero_copy"),
        (USER_RECOVERY, "user_recovery"),
        (USER_RECOVERY_REISSUE, "user_recovery_reissue"),
        (1 << 5, "unprivileged"),
        (CMD_IOCTL_ENCODE, "ioctl_encode"),
        (1 << 7, "user_copy"),
        (1 << 8, "zoned"),
        (USER_RECOVERY_FAIL_IO, "user_recovery_fail_io"),
        (1 << 10, "update_size"),
        (1 << 11, "auto_buf_reg"),
        (1 << 12, "quiesce"),
        (1 << 13, "per_io_daemon"),
        (1 << 15, "batch_io"),
    ];

    /// Returns the names of known features.
    pub(crate) fn names(flags: u64) -> Vec<&'static str> {
        NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
    }
}

/// struct ublksrv_ctrl_cmd, in the second half of a 128-byte submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub dev_id: u32,
    /// u16::MAX where the command isn't about a queue.
    pub queue_id: u16,
    /// Length of the buffer at `addr`, which the command reads or fills.
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub dev_path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}
const _: () = assert!(size_of::<ControlCommand>() == 32);

/// struct ublksrv_ctrl_dev_info.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub nr_hw_queues: u16,
    pub queue_depth: u16,
    /// UBLK_S_DEV_*.
    pub state: u16,
    pub pad0: u16,
    pub max_io_buf_bytes: u32,
    pub dev_id: u32,
    /// The daemon's process; -1 where there is none.
    pub ublksrv_pid: i32,
    pub pad1: u32,
    /// `feature`.
    pub flags: u64,
    /// The daemon's own, kept by the driver as long as the device lives.
    pub ublksrv_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved1: u64,
    pub reserved2: u64,
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// UBLK_S_DEV_*.
pub(super) mod state {
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    pub(crate) const QUIESCED: u16 = 2;
    pub(crate) const FAIL_IO: u16 = 3;
}

/// struct ublksrv_io_desc: one request, in memory that the driver writes and daemons read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Descriptor {
    /// UBLK_IO_OP_* in bits 7:0, UBLK_IO_F_* above.
    pub op_flags: u32,
    pub nr_sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

/// UBLK_IO_OP_*.
pub(super) mod op {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;
}

/// UBLK_IO_F_FUA.
pub(super) const FUA: u32 = 1 << 13;

/// struct ublksrv_io_cmd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoCommand {
    pub q_id: u16,
    pub tag: u16,
    /// Bytes, or a negative errno.
    pub result: i32,
    /// The request's slot in the daemon's memory.
    pub addr: u64,
}
const _: () = assert!(size_of::<IoCommand>() == 16);

/// struct ublk_params, up to what we set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Parameters {
    pub len: u32,
    /// UBLK_PARAM_TYPE_*: which of the following are meant.
    pub types: u32,
    pub basic: Basic,
    pub discard: Discard,
    /// Fills up to a multiple of eight; older kernels know nothing behind `discard`.
    pub pad: u32,
}
const _: () = assert!(size_of::<Parameters>() == 64);

/// UBLK_PARAM_TYPE_*.
pub(super) const TYPE_BASIC: u32 = 1 << 0;
pub(super) const TYPE_DISCARD: u32 = 1 << 1;

/// struct ublk_param_basic. Shifts are logarithms of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Basic {
    /// `attribute`.
    pub attrs: u32,
    pub logical_bs_shift: u8,
    pub physical_bs_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub dev_sectors: u64,
    pub virt_boundary_mask: u64,
}
const _: () = assert!(size_of::<Basic>() == 32);

/// UBLK_ATTR_*.
pub(super) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// struct ublk_param_discard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Discard {
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved0: u16,
}
const _: () = assert!(size_of::<Discard>() == 20);

/// Returns the offset of a queue's descriptors in the character device (UBLKSRV_CMD_BUF_OFFSET and the driver's use of
/// it): each queue has room for the deepest one.
pub(super) fn descriptors_offset(queue: u16, page: usize) -> u64 {
    let most = usize::from(DEPTH_MAX) * size_of::<Descriptor>();
    u64::from(queue) * most.next_multiple_of(page) as u64
}

/// Bytes of the descriptors of one queue: whole pages, exactly.
pub(super) fn descriptors_bytes(depth: u16, page: usize) -> usize {
    (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: UBL-1
    #[test]
    fn commands_are_numbered_as_the_header_has_them() {
        // Worked out by hand: direction 30, size 16, 'u' (0x75) 8.
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(END_USER_RECOVERY, 0xc020_7511);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    // promise: UBL-1
    #[test]
    fn fields_lie_where_the_header_has_them() {
        let info =
            DeviceInfo { dev_id: 7, ublksrv_flags: 9, flags: 3, ublksrv_pid: -1, ..DeviceInfo::default() };
        let bytes = info.as_bytes();
        assert_eq!((bytes[12], bytes[16], bytes[24], bytes[32]), (7, 0xff, 3, 9));
        let basic = Basic { dev_sectors: 5, max_sectors: 6, ..Basic::default() };
        let parameters = Parameters {
            basic,
            discard: Discard { max_discard_segments: 1, ..Discard::default() },
            ..Parameters::default()
        };
        let bytes = parameters.as_bytes();
        assert_eq!((bytes[16], bytes[24], bytes[56]), (6, 5, 1));
    }

    #[test]
    fn descriptors_of_queues_lie_apart_by_the_deepest_one() {
        assert_eq!(descriptors_offset(0, 4096), 0);
        assert_eq!(descriptors_offset(2, 4096), 2 * 98_304);
        assert_eq!(descriptors_bytes(64, 4096), 4096);
        assert_eq!(descriptors_bytes(256, 4096), 8192);
    }

    #[test]
    fn features_have_names() {
        assert_eq!(feature::names(1 << 3 | 1 << 11 | 1 << 63), ["user_recovery", "auto_buf_reg"]);
    }
}
