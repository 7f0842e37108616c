//! Set Features and Get Features (base, sections 5.27 and 5.15), and asynchronous events (base, section 5.2).

use crate::command::{admin, Sqe};
use serde::{Deserialize, Serialize};

/// Feature Identifiers (base, section 5.27.1, figure "Feature Identifiers"; nvm, section 4.1.3).
pub mod fid {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    pub const INTERRUPT_VECTOR_CONFIG: u8 = 0x09;
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    pub const TIMESTAMP: u8 = 0x0e;
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    pub const HOST_BEHAVIOR: u8 = 0x16;
    pub const COMMAND_SET_PROFILE: u8 = 0x19;
    pub const HOST_IDENTIFIER: u8 = 0x81;
    pub const NAMESPACE_WRITE_PROTECTION: u8 = 0x84;
}

/// Features by FID, as people call them.
pub const NAMES: &[(u8, &str)] = &[
    (fid::ARBITRATION, "arbitration"),
    (fid::POWER_MANAGEMENT, "power management"),
    (fid::TEMPERATURE_THRESHOLD, "temperature threshold"),
    (fid::ERROR_RECOVERY, "error recovery"),
    (fid::VOLATILE_WRITE_CACHE, "volatile write cache"),
    (fid::NUMBER_OF_QUEUES, "number of queues"),
    (fid::INTERRUPT_COALESCING, "interrupt coalescing"),
    (fid::INTERRUPT_VECTOR_CONFIG, "interrupt vector configuration"),
    (fid::WRITE_ATOMICITY, "write atomicity"),
    (fid::ASYNC_EVENT_CONFIG, "asynchronous event configuration"),
    (fid::TIMESTAMP, "timestamp"),
    (fid::KEEP_ALIVE_TIMER, "keep alive timer"),
    (fid::HOST_BEHAVIOR, "host behavior support"),
    (fid::COMMAND_SET_PROFILE, "I/O command set profile"),
    (fid::HOST_IDENTIFIER, "host identifier"),
    (fid::NAMESPACE_WRITE_PROTECTION, "namespace write protection"),
];

/// Set Features command (base, section 5.27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFeatures {
    pub nsid: u32,
    pub fid: u8,
    /// Save over power cycles and resets.
    pub save: bool,
    /// CDW11 to CDW13 and CDW15, whose meaning is the feature's.
    pub cdw11: u32,
    pub cdw12: u32,
    pub cdw13: u32,
    pub cdw15: u32,
}

/// Interrupt Coalescing (base, section 5.27.1.6), and the vectors that are excepted from it (section 5.27.1.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Completions for which to interrupt at once; 0 and 1: each.
    pub completions: u16,
    /// Longest time for which a completion waits for others; 0: not at all.
    pub time_us: u32,
    pub excepted: Vec<u16>,
}

impl SetFeatures {
    pub fn new(fid: u8, value: u32) -> SetFeatures {
        SetFeatures { fid, cdw11: value, ..SetFeatures::default() }
    }

    pub fn parse(sqe: &Sqe) -> SetFeatures {
        SetFeatures {
            nsid: sqe.nsid.get(),
            fid: sqe.cdw10.get() as u8,
            save: sqe.cdw10.get() & 1 << 31 != 0,
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            cdw13: sqe.cdw13.get(),
            cdw15: sqe.cdw15.get(),
        }
    }

    pub fn to_sqe(self) -> Sqe {
        Sqe {
            opcode: admin::SET_FEATURES,
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.fid) | u32::from(self.save) << 31).into(),
            cdw11: self.cdw11.into(),
            cdw12: self.cdw12.into(),
            cdw13: self.cdw13.into(),
            cdw15: self.cdw15.into(),
            ..Sqe::default()
        }
    }
}

/// Selected value of a feature (SEL; base, section 5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Select {
    #[default]
    Current = 0,
    Default = 1,
    Saved = 2,
    /// `capability`, as the result.
    Capabilities = 3,
}

/// Answers of Get Features to `Select::Capabilities` (base, section 5.15).
pub mod capability {
    pub const SAVEABLE: u32 = 1 << 0;
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Get Features command (base, section 5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetFeatures {
    pub nsid: u32,
    pub fid: u8,
    /// None: a reserved value (Invalid Field).
    pub select: Option<Select>,
    pub cdw11: u32,
}

impl GetFeatures {
    pub fn new(fid: u8, select: Select) -> GetFeatures {
        GetFeatures { fid, select: Some(select), ..GetFeatures::default() }
    }

    pub fn parse(sqe: &Sqe) -> GetFeatures {
        let select = match sqe.cdw10.get() >> 8 & 0b111 {
            0 => Some(Select::Current),
            1 => Some(Select::Default),
            2 => Some(Select::Saved),
            3 => Some(Select::Capabilities),
            _ => None,
        };
        GetFeatures { nsid: sqe.nsid.get(), fid: sqe.cdw10.get() as u8, select, cdw11: sqe.cdw11.get() }
    }

    pub fn to_sqe(self) -> Sqe {
        let select = self.select.unwrap_or_default() as u32;
        Sqe {
            opcode: admin::GET_FEATURES,
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.fid) | select << 8).into(),
            cdw11: self.cdw11.into(),
            ..Sqe::default()
        }
    }
}

/// Number of Queues (base, section 5.27.1.5): counts of I/O queues, each 0's based in its half of the dword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// I/O submission queues, 1 to 65536; 65536 is not a request that may be made.
    pub submission: u32,
    pub completion: u32,
}

impl Queues {
    pub fn both(queues: u32) -> Queues {
        Queues { submission: queues, completion: queues }
    }

    /// CDW11 of Set Features, and the result of both commands: NSQR/NSQA in bits 15:0, NCQR/NCQA in bits 31:16.
    pub fn to_dword(self) -> u32 {
        let half = |queues: u32| queues.clamp(1, 1 << 16) - 1;
        half(self.submission) | half(self.completion) << 16
    }

    pub fn from_dword(dword: u32) -> Queues {
        Queues { submission: (dword & 0xffff) + 1, completion: (dword >> 16) + 1 }
    }
}

/// Volatile Write Cache (base, section 5.27.1.4): WCE, in bit 0.
pub const WRITE_CACHE_ENABLE: u32 = 1 << 0;

/// Write Atomicity Normal (nvm, section 4.1.3.3): DN, Disable Normal.
pub const DISABLE_NORMAL: u32 = 1 << 0;

/// Error Recovery (nvm, section 4.1.3.2): TLER in bits 15:0, of 100 ms each; DULBE in bit 16.
pub mod error_recovery {
    pub const DEALLOCATED_ERROR: u32 = 1 << 16;
}

/// Host Identifier (base, section 5.27.1.25): EXHID, 128 bits.
pub const EXTENDED_HOST_ID: u32 = 1 << 0;

/// Temperature Threshold (base, section 5.27.1.3): CDW11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// TMPTH.
    pub kelvin: u16,
    /// TMPSEL: 0 the composite temperature, 1 to 8 a sensor, Fh all (Set Features only).
    pub sensor: u8,
    /// THSEL: 0 over, 1 under.
    pub kind: u8,
}

impl TemperatureThreshold {
    pub fn from_dword(dword: u32) -> TemperatureThreshold {
        TemperatureThreshold {
            kelvin: dword as u16,
            sensor: (dword >> 16 & 0xf) as u8,
            kind: (dword >> 20 & 0b11) as u8,
        }
    }
}

/// Namespace Write Protection Config (base, section 5.27.1.30): WPS, bits 2:0.
pub mod write_protection {
    pub const NONE: u32 = 0;
    pub const PROTECT: u32 = 1;
    pub const UNTIL_POWER_CYCLE: u32 = 2;
    pub const PERMANENT: u32 = 3;
}

/// Bits of the Asynchronous Event Configuration (base, section 5.27.1.8) and of OAES in Identify Controller. Bits 7:0
/// of the former are SMART's critical warnings.
pub mod event_mask {
    pub const NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    pub const ANA_CHANGE: u32 = 1 << 11;
    pub const NORMAL_SHUTDOWN: u32 = 1 << 15;
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
}

/// Result of an Asynchronous Event Request (base, section 5.2.1): type in bits 2:0, information in bits 15:8, log page
/// to read, which clears the event, in bits 23:16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AsyncEvent {
    pub kind: u8,
    pub information: u8,
    pub lid: u8,
}

/// Asynchronous event types.
pub mod event_type {
    pub const ERROR: u8 = 0;
    pub const SMART: u8 = 1;
    pub const NOTICE: u8 = 2;
    pub const COMMAND_SET: u8 = 6;
    pub const VENDOR: u8 = 7;
}

impl AsyncEvent {
    const fn notice(information: u8, lid: u8) -> AsyncEvent {
        AsyncEvent { kind: event_type::NOTICE, information, lid }
    }

    pub const NAMESPACE_CHANGED: AsyncEvent = AsyncEvent::notice(0x00, crate::log::lid::CHANGED_NAMESPACES);
    pub const ANA_CHANGED: AsyncEvent = AsyncEvent::notice(0x03, crate::log::lid::ANA);
    pub const DISCOVERY_CHANGED: AsyncEvent = AsyncEvent::notice(0xf0, crate::log::lid::DISCOVERY);

    pub fn to_result(self) -> u64 {
        u64::from(self.kind & 0b111) | u64::from(self.information) << 8 | u64::from(self.lid) << 16
    }

    pub fn from_result(result: u64) -> AsyncEvent {
        AsyncEvent {
            kind: (result & 0b111) as u8,
            information: (result >> 8) as u8,
            lid: (result >> 16) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_what_they_were_built_for() {
        let set = SetFeatures {
            save: true,
            nsid: 4,
            cdw15: 9,
            ..SetFeatures::new(fid::NUMBER_OF_QUEUES, 0x1e_001e)
        };
        assert_eq!(SetFeatures::parse(&set.to_sqe()), set);
        let get = GetFeatures::new(fid::KEEP_ALIVE_TIMER, Select::Saved);
        assert_eq!(GetFeatures::parse(&get.to_sqe()), get);
        let reserved = Sqe { cdw10: 0x70f.into(), ..Sqe::default() };
        assert_eq!(GetFeatures::parse(&reserved).select, None);
    }

    #[test]
    fn queue_counts_are_noughts_based_on_the_wire() {
        assert_eq!(Queues::both(31).to_dword(), 0x1e_001e);
        assert_eq!(Queues::from_dword(0x1e_001e), Queues::both(31));
        assert_eq!(Queues::from_dword(u32::MAX), Queues::both(65_536));
        assert_eq!(Queues::both(0).to_dword(), 0);
    }

    #[test]
    fn events_are_told_as_hosts_know_them() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_result(), 0x04_0002);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_result(), 0x70_f002);
        for event in [AsyncEvent::NAMESPACE_CHANGED, AsyncEvent::ANA_CHANGED, AsyncEvent::DISCOVERY_CHANGED] {
            assert_eq!(AsyncEvent::from_result(event.to_result()), event);
        }
    }
}
