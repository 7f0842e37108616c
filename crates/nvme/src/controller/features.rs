//! Set Features and Get Features (base, sections 5.27 and 5.15).
//!
//! Nothing is saved over resets: a feature's saved value is its default. Features
//! of the controller are the same under every NSID that a host may name.

use super::function::{Interrupts, COALESCING_DISABLE};
use super::identify::DISCOVERY_EVENTS;
use super::subsystem::NAMESPACES_MAX;
use super::{Answer, Controller, Effect};
use crate::command::{Cqe, Sqe};
use crate::feature::{
    capability, error_recovery, fid, write_protection, GetFeatures, Queues, Select, SetFeatures,
    TemperatureThreshold, DISABLE_NORMAL, EXTENDED_HOST_ID, WRITE_CACHE_ENABLE,
};
use crate::status::{Code, Status};
use serde::{Deserialize, Serialize};

/// NWPC: namespaces may be write protected; here by their configuration.
pub(super) const WRITE_PROTECTION_CAPABILITIES: u8 = 1;
/// Bits of Arbitration that have a meaning: AB, and three weights.
const ARBITRATION_BITS: u32 = 0xffff_ff07;
/// AB (base, section 5.27.1.1): no limit.
const NO_BURST_LIMIT: u32 = 0b111;

/// Operations on a feature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feature {
    pub changeable: bool,
    pub namespace_specific: bool,
}

const CHANGEABLE: Feature = Feature { changeable: true, namespace_specific: false };
const FIXED: Feature = Feature { changeable: false, namespace_specific: false };

/// Current values, where they aren't kept elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Features {
    /// AB in bits 2:0; the weights behind it are of an arbitration that CAP doesn't offer.
    arbitration: u32,
    temperature_over: u16,
    temperature_under: u16,
    error_recovery: u32,
    write_atomicity: u32,
    pub(super) async_events: u32,
    pub(super) write_cache: bool,
    pub(super) interrupts: Interrupts,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            arbitration: NO_BURST_LIMIT,
            temperature_over: u16::MAX,
            temperature_under: 0,
            error_recovery: 0,
            write_atomicity: 0,
            async_events: 0,
            write_cache: true,
            interrupts: Interrupts::default(),
        }
    }
}

impl Features {
    fn threshold(&self, dword: u32) -> Result<u32, Code> {
        let asked = TemperatureThreshold::from_dword(dword);
        match (asked.sensor, asked.kind) {
            (0, 0) => Ok(self.temperature_over.into()),
            (0, 1) => Ok(self.temperature_under.into()),
            _ => Err(Code::INVALID_FIELD),
        }
    }

    fn set_threshold(&mut self, dword: u32) -> Result<(), Code> {
        let asked = TemperatureThreshold::from_dword(dword);
        match (asked.sensor, asked.kind) {
            (0 | 0xf, 0) => self.temperature_over = asked.kelvin,
            (0 | 0xf, 1) => self.temperature_under = asked.kelvin,
            _ => return Err(Code::INVALID_FIELD),
        }
        Ok(())
    }
}

/// Milliseconds since 1970, as the host set them, and counted on (base, section 5.27.1.10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Timestamp {
    value_ms: u64,
    at_ms: u64,
    by_host: bool,
}

impl Timestamp {
    pub(super) fn new(now_ms: u64) -> Timestamp {
        Timestamp { value_ms: 0, at_ms: now_ms, by_host: false }
    }

    /// Six bytes of it; then where it comes from: bits 3:1, 1 where a host set it.
    fn bytes(&self, now_ms: u64) -> [u8; 8] {
        let value_ms = self.value_ms.wrapping_add(now_ms.saturating_sub(self.at_ms)) & 0xffff_ffff_ffff;
        (value_ms | u64::from(self.by_host) << 49).to_le_bytes()
    }

    fn set(&mut self, data: &[u8], now_ms: u64) -> Result<(), Code> {
        let data: &[u8; 8] = data.first_chunk().ok_or(Code::DATA_SGL_LENGTH_INVALID)?;
        let value_ms = u64::from_le_bytes(*data) & 0xffff_ffff_ffff;
        *self = Timestamp { value_ms, at_ms: now_ms, by_host: true };
        Ok(())
    }
}

impl Controller {
    /// The features that this controller has.
    pub(super) fn supported_features(&self) -> impl Iterator<Item = (u8, Feature)> + '_ {
        (0..=u8::MAX).filter_map(|fid| self.feature(fid).map(|feature| (fid, feature)))
    }

    fn feature(&self, fid: u8) -> Option<Feature> {
        let of_nvm = !self.subsystem.is_discovery();
        Some(match fid {
            fid::ASYNC_EVENT_CONFIG => CHANGEABLE,
            fid::INTERRUPT_COALESCING | fid::INTERRUPT_VECTOR_CONFIG if self.transport.is_pcie() => {
                CHANGEABLE
            }
            // A function's host neither keeps alive nor introduces itself.
            fid::KEEP_ALIVE_TIMER | fid::HOST_IDENTIFIER if self.transport.is_pcie() => return None,
            fid::KEEP_ALIVE_TIMER => CHANGEABLE,
            fid::HOST_IDENTIFIER => FIXED,
            _ if !of_nvm => return None,
            // Over fabrics each queue has a connection of its own, and nothing to arbitrate.
            fid::ARBITRATION if !self.transport.is_pcie() => FIXED,
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::TEMPERATURE_THRESHOLD
            | fid::ERROR_RECOVERY
            | fid::NUMBER_OF_QUEUES
            | fid::TIMESTAMP
            | fid::WRITE_ATOMICITY => CHANGEABLE,
            fid::VOLATILE_WRITE_CACHE if self.has_write_cache() => CHANGEABLE,
            fid::COMMAND_SET_PROFILE => FIXED,
            fid::NAMESPACE_WRITE_PROTECTION => Feature { changeable: false, namespace_specific: true },
            _ => return None,
        })
    }

    /// Commands that may be fetched from one submission queue before others have their turn (Arbitration Burst). None:
    /// as many as it has.
    pub fn arbitration_burst(&self) -> Option<u32> {
        let exponent = self.features.arbitration & NO_BURST_LIMIT;
        (exponent != NO_BURST_LIMIT).then_some(1 << exponent)
    }

    pub(super) fn has_write_cache(&self) -> bool {
        self.subsystem.namespaces().is_some_and(|all| all.values().any(|one| one.volatile_write_cache))
    }

    pub(super) fn get_features(&self, sqe: &Sqe, now_ms: u64) -> Answer {
        let asked = GetFeatures::parse(sqe);
        match (self.value(&asked), asked.fid) {
            (Err(code), _) => Answer::refuse(sqe, code),
            (Ok(_), fid::HOST_IDENTIFIER) if asked.select != Some(Select::Capabilities) => {
                Answer::data(sqe, self.host_id.to_vec())
            }
            (Ok(_), fid::TIMESTAMP) if asked.select != Some(Select::Capabilities) => {
                Answer::data(sqe, self.timestamp.bytes(now_ms).to_vec())
            }
            (Ok(value), _) => Answer::Complete(Cqe::new(sqe.cid.get(), Status::SUCCESS, value.into())),
        }
    }

    fn value(&self, asked: &GetFeatures) -> Result<u32, Code> {
        let feature = self.feature(asked.fid).ok_or(Code::INVALID_FIELD)?;
        let defaults = Features::default();
        match asked.select.ok_or(Code::INVALID_FIELD)? {
            Select::Capabilities => {
                let specific = if feature.namespace_specific { capability::NAMESPACE_SPECIFIC } else { 0 };
                Ok(specific | if feature.changeable { capability::CHANGEABLE } else { 0 })
            }
            Select::Current => self.current(asked, &self.features),
            Select::Default | Select::Saved => self.current(asked, &defaults),
        }
    }

    fn current(&self, asked: &GetFeatures, features: &Features) -> Result<u32, Code> {
        Ok(match asked.fid {
            fid::ARBITRATION => features.arbitration,
            fid::TEMPERATURE_THRESHOLD => features.threshold(asked.cdw11)?,
            fid::ERROR_RECOVERY => features.error_recovery,
            fid::VOLATILE_WRITE_CACHE => features.write_cache.into(),
            fid::NUMBER_OF_QUEUES => Queues::both(self.queues.into()).to_dword(),
            fid::INTERRUPT_COALESCING => features.interrupts.coalescing,
            fid::INTERRUPT_VECTOR_CONFIG => {
                let vector = self.vector(asked.cdw11)?;
                let excepted = features.interrupts.excepted.contains(&vector);
                u32::from(vector) | if excepted { COALESCING_DISABLE } else { 0 }
            }
            fid::WRITE_ATOMICITY => features.write_atomicity,
            fid::ASYNC_EVENT_CONFIG => features.async_events,
            fid::KEEP_ALIVE_TIMER => self.keep_alive.asked_ms(),
            // Only identifiers of 128 bits, over fabrics (base, section 5.27.1.25).
            fid::HOST_IDENTIFIER if asked.cdw11 & EXTENDED_HOST_ID == 0 => return Err(Code::INVALID_FIELD),
            fid::NAMESPACE_WRITE_PROTECTION => self.write_protection(asked.nsid)?,
            _ => 0,
        })
    }

    fn write_protection(&self, nsid: u32) -> Result<u32, Code> {
        match self.subsystem.namespace(nsid) {
            Some(namespace) if namespace.read_only => Ok(write_protection::PROTECT),
            Some(_) => Ok(write_protection::NONE),
            None if (1..=NAMESPACES_MAX).contains(&nsid) => Err(Code::INVALID_FIELD),
            None => Err(Code::INVALID_NAMESPACE),
        }
    }

    pub(super) fn set_features(&mut self, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        match self.set(&SetFeatures::parse(sqe), data, now_ms) {
            Ok(result) => Answer::Complete(Cqe::new(sqe.cid.get(), Status::SUCCESS, result.into())),
            Err(code) => Answer::refuse(sqe, code),
        }
    }

    fn set(&mut self, asked: &SetFeatures, data: &[u8], now_ms: u64) -> Result<u32, Code> {
        self.feature(asked.fid).ok_or(Code::INVALID_FIELD)?;
        if asked.save {
            return Err(Code::FEATURE_NOT_SAVEABLE);
        }
        let value = asked.cdw11;
        match asked.fid {
            fid::ARBITRATION if self.transport.is_pcie() => {
                self.features.arbitration = value & ARBITRATION_BITS;
            }
            // There is one power state, and one combination of command sets: number 0.
            fid::POWER_MANAGEMENT if value & 0x1f != 0 => return Err(Code::INVALID_FIELD),
            fid::POWER_MANAGEMENT => {}
            fid::COMMAND_SET_PROFILE if value & 0x1ff != 0 => return Err(Code::INVALID_FIELD),
            fid::COMMAND_SET_PROFILE => {}
            fid::TEMPERATURE_THRESHOLD => self.features.set_threshold(value)?,
            fid::ERROR_RECOVERY if value & error_recovery::DEALLOCATED_ERROR != 0 => {
                return Err(Code::INVALID_FIELD)
            }
            fid::ERROR_RECOVERY => self.features.error_recovery = value & 0xffff,
            fid::VOLATILE_WRITE_CACHE => self.set_write_cache(value & WRITE_CACHE_ENABLE != 0),
            fid::NUMBER_OF_QUEUES => return self.set_queues(value),
            fid::INTERRUPT_COALESCING => self.set_coalescing(value)?,
            fid::INTERRUPT_VECTOR_CONFIG => self.set_vector(value)?,
            fid::WRITE_ATOMICITY => self.features.write_atomicity = value & DISABLE_NORMAL,
            fid::ASYNC_EVENT_CONFIG => self.set_async_events(value)?,
            fid::TIMESTAMP => self.timestamp.set(data, now_ms)?,
            fid::KEEP_ALIVE_TIMER => self.keep_alive.set(&self.subsystem.limits, value, now_ms),
            // It came with Connect, and stays (base, section 5.27.1.25).
            fid::HOST_IDENTIFIER => return Err(Code::COMMAND_SEQUENCE_ERROR),
            fid::NAMESPACE_WRITE_PROTECTION if value & 0b111 == self.write_protection(asked.nsid)? => {}
            _ => return Err(Code::FEATURE_NOT_CHANGEABLE),
        }
        Ok(0)
    }

    fn set_write_cache(&mut self, enabled: bool) {
        if self.features.write_cache != enabled {
            self.features.write_cache = enabled;
            self.effects.push_back(Effect::WriteCache { enabled });
        }
    }

    /// Sets the number of queues: what is granted doesn't depend on what is asked for, but it may only be asked before
    /// there are I/O queues.
    fn set_queues(&mut self, value: u32) -> Result<u32, Code> {
        if value & 0xffff == 0xffff || value >> 16 == 0xffff {
            return Err(Code::INVALID_FIELD);
        }
        if !self.io_queues.is_empty() {
            return Err(Code::COMMAND_SEQUENCE_ERROR);
        }
        Ok(Queues::both(self.queues.into()).to_dword())
    }

    /// Fewer I/O queues than its settings allow (or, later, more again), while it has none: what the driver can still take.
    /// Never less than one, the least that can be granted.
    pub fn limit_queues(&mut self, most: u16) {
        let allowed = self.subsystem.settings(&self.host_nqn).map(|own| self.subsystem.queues_of(own));
        if let Some(allowed) = allowed.filter(|_| self.io_queues.is_empty()) {
            self.queues = allowed.min(most.max(1));
        }
    }

    fn set_async_events(&mut self, value: u32) -> Result<(), Code> {
        let known = if self.subsystem.is_discovery() { DISCOVERY_EVENTS } else { self.nvm_events() };
        if value & !known != 0 {
            return Err(Code::INVALID_FIELD);
        }
        let old = std::mem::replace(&mut self.features.async_events, value);
        // Warnings that are there already are news to a host that only now asks for them.
        let (warnings, fresh) = (self.health.critical_warning, (value & !old) as u8);
        self.raise_warnings(warnings & !fresh, warnings);
        Ok(())
    }
}
