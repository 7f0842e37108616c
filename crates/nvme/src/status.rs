//! The status of a completed command (base, section 3.3.3.2.1).

/// Status code type and status code, as one number: `SCT << 8 | SC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub u16);

/// The Status field of a completion, without the phase tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    /// A retry can't succeed (DNR).
    pub do_not_retry: bool,
    /// The Error Information log has more (M).
    pub more: bool,
}

impl Code {
    // Generic command status (base, figure 95).
    pub const SUCCESS: Code = Code(0x000);
    pub const INVALID_OPCODE: Code = Code(0x001);
    pub const INVALID_FIELD: Code = Code(0x002);
    pub const COMMAND_ID_CONFLICT: Code = Code(0x003);
    pub const DATA_TRANSFER_ERROR: Code = Code(0x004);
    pub const INTERNAL_ERROR: Code = Code(0x006);
    pub const ABORT_REQUESTED: Code = Code(0x007);
    pub const ABORTED_SQ_DELETION: Code = Code(0x008);
    pub const INVALID_NAMESPACE: Code = Code(0x00b);
    pub const COMMAND_SEQUENCE_ERROR: Code = Code(0x00c);
    pub const INVALID_SGL_SEGMENT: Code = Code(0x00d);
    pub const SGL_DESCRIPTOR_COUNT_INVALID: Code = Code(0x00e);
    pub const DATA_SGL_LENGTH_INVALID: Code = Code(0x00f);
    pub const SGL_TYPE_INVALID: Code = Code(0x011);
    pub const PRP_OFFSET_INVALID: Code = Code(0x013);
    pub const OPERATION_DENIED: Code = Code(0x015);
    pub const SGL_OFFSET_INVALID: Code = Code(0x016);
    pub const HOST_ID_INCONSISTENT: Code = Code(0x018);
    pub const KEEP_ALIVE_EXPIRED: Code = Code(0x019);
    pub const KEEP_ALIVE_INVALID: Code = Code(0x01a);
    pub const NAMESPACE_WRITE_PROTECTED: Code = Code(0x020);
    pub const TRANSIENT_TRANSPORT_ERROR: Code = Code(0x022);
    // Generic, NVM command set (nvm, section 3).
    pub const LBA_OUT_OF_RANGE: Code = Code(0x080);
    pub const CAPACITY_EXCEEDED: Code = Code(0x081);
    pub const NAMESPACE_NOT_READY: Code = Code(0x082);
    // Command specific (base, figure 96; fabrics, figure 97).
    pub const COMPLETION_QUEUE_INVALID: Code = Code(0x100);
    pub const INVALID_QUEUE_ID: Code = Code(0x101);
    pub const INVALID_QUEUE_SIZE: Code = Code(0x102);
    pub const ABORT_LIMIT: Code = Code(0x103);
    pub const ASYNC_EVENT_LIMIT: Code = Code(0x105);
    pub const INVALID_INTERRUPT_VECTOR: Code = Code(0x108);
    pub const INVALID_LOG_PAGE: Code = Code(0x109);
    pub const INVALID_QUEUE_DELETION: Code = Code(0x10c);
    pub const FEATURE_NOT_SAVEABLE: Code = Code(0x10d);
    pub const FEATURE_NOT_CHANGEABLE: Code = Code(0x10e);
    pub const INCOMPATIBLE_FORMAT: Code = Code(0x180);
    pub const CONTROLLER_BUSY: Code = Code(0x181);
    pub const CONNECT_INVALID_PARAMETERS: Code = Code(0x182);
    pub const CONNECT_RESTART_DISCOVERY: Code = Code(0x183);
    pub const CONNECT_INVALID_HOST: Code = Code(0x184);
    pub const INVALID_QUEUE_TYPE: Code = Code(0x185);
    pub const DISCOVER_RESTART: Code = Code(0x190);
    pub const AUTHENTICATION_REQUIRED: Code = Code(0x191);
    // Media and data integrity (base, figure 98).
    pub const WRITE_FAULT: Code = Code(0x280);
    pub const UNRECOVERED_READ: Code = Code(0x281);
    pub const COMPARE_FAILURE: Code = Code(0x285);
    pub const ACCESS_DENIED: Code = Code(0x286);
    // Path related (base, figure 99).
    pub const INTERNAL_PATH_ERROR: Code = Code(0x300);
    pub const ANA_PERSISTENT_LOSS: Code = Code(0x301);
    pub const ANA_INACCESSIBLE: Code = Code(0x302);
    pub const ANA_TRANSITION: Code = Code(0x303);
    pub const HOST_PATHING_ERROR: Code = Code(0x370);
    pub const HOST_ABORTED: Code = Code(0x371);
}

impl Status {
    pub const SUCCESS: Status = Status { code: Code::SUCCESS, do_not_retry: false, more: false };

    /// An error that a retry can't mend.
    pub const fn fatal(code: Code) -> Status {
        Status { code, do_not_retry: true, more: false }
    }

    /// An error that a retry may mend.
    pub const fn again(code: Code) -> Status {
        Status { code, do_not_retry: false, more: false }
    }

    pub fn is_success(self) -> bool {
        self.code == Code::SUCCESS
    }

    /// The Status field: bit 0 is the phase tag, which fabrics leave 0.
    pub fn to_bits(self) -> u16 {
        ((self.code.0 & 0x7ff) << 1) | u16::from(self.more) << 14 | u16::from(self.do_not_retry) << 15
    }

    pub fn from_bits(bits: u16) -> Status {
        Status {
            code: Code((bits >> 1) & 0x7ff),
            do_not_retry: bits & 1 << 15 != 0,
            more: bits & 1 << 14 != 0,
        }
    }
}
