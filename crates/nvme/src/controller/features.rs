//! Set Features and Get Features (base, sections 5.27 and 5.15).
//!
//! Nothing is saved over resets: a feature's saved value is its default. Features
//! of the controller are the same under every NSID that a host may name.

use super::association::Association;
use super::events::events_of;
use super::keep_alive::KeepAlive;
use super::subsystem::NAMESPACES_MAX;
use crate::feature::{
    capability, error_recovery, fid, write_protection, Coalescing, GetFeatures, Queues, Select, SetFeatures,
    TemperatureThreshold, DISABLE_NORMAL, EXTENDED_HOST_ID, WRITE_CACHE_ENABLE,
};
use crate::status::Code;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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

/// Interrupt features of a function (base, sections 5.27.1.6 and 5.27.1.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Interrupts {
    /// THR in bits 7:0, TIME in bits 15:8.
    coalescing: u32,
    /// Vectors with Coalescing Disable.
    excepted: BTreeSet<u16>,
}

/// Interrupt Vector Configuration: CD, Coalescing Disable.
const COALESCING_DISABLE: u32 = 1 << 16;

impl Interrupts {
    /// Interrupt Vector Configuration.
    fn configure(&mut self, vector: u16, value: u32) {
        match value & COALESCING_DISABLE {
            0 => self.excepted.remove(&vector),
            _ => self.excepted.insert(vector),
        };
    }
}

/// Values that the host sets, and that a reset takes back to where they began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Values {
    /// AB in bits 2:0; the weights behind it are of an arbitration that CAP doesn't offer.
    arbitration: u32,
    temperature_over: u16,
    temperature_under: u16,
    error_recovery: u32,
    write_atomicity: u32,
    async_events: u32,
    write_cache: bool,
    interrupts: Interrupts,
}

impl Default for Values {
    fn default() -> Values {
        Values {
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

impl Values {
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

/// A value as Get Features returns it: in its completion, or as data.
pub(super) enum Value {
    Dword(u32),
    Bytes(Vec<u8>),
}

/// What setting a feature means beyond its value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    WriteCache {
        enabled: bool,
    },
    /// The host now asks for events that it didn't ask for: bits of the Asynchronous Event Configuration.
    Events {
        fresh: u32,
    },
}

/// The features of one controller.
#[derive(Debug)]
pub(super) struct Features {
    values: Values,
    timestamp: Timestamp,
    pub(super) keep_alive: KeepAlive,
}

impl Features {
    pub(super) fn new(keep_alive: KeepAlive, now_ms: u64) -> Features {
        Features { values: Values::default(), timestamp: Timestamp::new(now_ms), keep_alive }
    }

    /// What a function keeps over the life of its gateway.
    pub(super) fn state(&self) -> (Values, Timestamp) {
        (self.values.clone(), self.timestamp.clone())
    }

    pub(super) fn restore(&mut self, values: Values, timestamp: Timestamp) {
        (self.values, self.timestamp) = (values, timestamp);
    }

    /// The controller was reset.
    pub(super) fn reset(&mut self) {
        self.values = Values::default();
    }

    pub(super) fn write_cache(&self) -> bool {
        self.values.write_cache
    }

    /// The Asynchronous Event Configuration.
    pub(super) fn async_events(&self) -> u32 {
        self.values.async_events
    }

    /// Commands that may be fetched from one submission queue before others have their turn (Arbitration Burst). None:
    /// as many as it has.
    pub(super) fn arbitration_burst(&self) -> Option<u32> {
        let exponent = self.values.arbitration & NO_BURST_LIMIT;
        (exponent != NO_BURST_LIMIT).then_some(1 << exponent)
    }

    pub(super) fn coalescing(&self) -> Coalescing {
        let interrupts = &self.values.interrupts;
        let (threshold, time) = (interrupts.coalescing & 0xff, interrupts.coalescing >> 8 & 0xff);
        Coalescing {
            completions: threshold as u16 + 1,
            time_us: time * 100,
            excepted: interrupts.excepted.iter().copied().collect(),
        }
    }

    pub(super) fn get(&self, asked: &GetFeatures, of: &Association, now_ms: u64) -> Result<Value, Code> {
        let feature = feature(of, asked.fid).ok_or(Code::INVALID_FIELD)?;
        let value = match asked.select.ok_or(Code::INVALID_FIELD)? {
            Select::Capabilities => {
                let specific = if feature.namespace_specific { capability::NAMESPACE_SPECIFIC } else { 0 };
                return Ok(Value::Dword(
                    specific | if feature.changeable { capability::CHANGEABLE } else { 0 },
                ));
            }
            Select::Current => self.value(asked, &self.values, of)?,
            Select::Default | Select::Saved => self.value(asked, &Values::default(), of)?,
        };
        Ok(match asked.fid {
            fid::HOST_IDENTIFIER => Value::Bytes(of.host_id.to_vec()),
            fid::TIMESTAMP => Value::Bytes(self.timestamp.bytes(now_ms).to_vec()),
            _ => Value::Dword(value),
        })
    }

    fn value(&self, asked: &GetFeatures, values: &Values, of: &Association) -> Result<u32, Code> {
        Ok(match asked.fid {
            fid::ARBITRATION => values.arbitration,
            fid::TEMPERATURE_THRESHOLD => values.threshold(asked.cdw11)?,
            fid::ERROR_RECOVERY => values.error_recovery,
            fid::VOLATILE_WRITE_CACHE => values.write_cache.into(),
            fid::NUMBER_OF_QUEUES => Queues::both(of.queues.into()).to_dword(),
            fid::INTERRUPT_COALESCING => values.interrupts.coalescing,
            fid::INTERRUPT_VECTOR_CONFIG => {
                let vector = vector(of, asked.cdw11)?;
                let excepted = values.interrupts.excepted.contains(&vector);
                u32::from(vector) | if excepted { COALESCING_DISABLE } else { 0 }
            }
            fid::WRITE_ATOMICITY => values.write_atomicity,
            fid::ASYNC_EVENT_CONFIG => values.async_events,
            fid::KEEP_ALIVE_TIMER => self.keep_alive.asked_ms(),
            // Only identifiers of 128 bits, over fabrics (base, section 5.27.1.25).
            fid::HOST_IDENTIFIER if asked.cdw11 & EXTENDED_HOST_ID == 0 => return Err(Code::INVALID_FIELD),
            fid::NAMESPACE_WRITE_PROTECTION => write_protection(of, asked.nsid)?,
            _ => 0,
        })
    }

    /// Returns the result of the completion, and what else follows.
    pub(super) fn set(
        &mut self,
        asked: &SetFeatures,
        data: &[u8],
        of: &Association,
        has_io_queues: bool,
        now_ms: u64,
    ) -> Result<(u32, Option<Change>), Code> {
        feature(of, asked.fid).ok_or(Code::INVALID_FIELD)?;
        if asked.save {
            return Err(Code::FEATURE_NOT_SAVEABLE);
        }
        let values = &mut self.values;
        let value = asked.cdw11;
        match asked.fid {
            fid::ARBITRATION if of.is_pcie() => {
                values.arbitration = value & ARBITRATION_BITS;
            }
            // There is one power state, and one combination of command sets: number 0.
            fid::POWER_MANAGEMENT if value & 0x1f != 0 => return Err(Code::INVALID_FIELD),
            fid::POWER_MANAGEMENT => {}
            fid::COMMAND_SET_PROFILE if value & 0x1ff != 0 => return Err(Code::INVALID_FIELD),
            fid::COMMAND_SET_PROFILE => {}
            fid::TEMPERATURE_THRESHOLD => values.set_threshold(value)?,
            fid::ERROR_RECOVERY if value & error_recovery::DEALLOCATED_ERROR != 0 => {
                return Err(Code::INVALID_FIELD)
            }
            fid::ERROR_RECOVERY => values.error_recovery = value & 0xffff,
            fid::VOLATILE_WRITE_CACHE => {
                let enabled = value & WRITE_CACHE_ENABLE != 0;
                let old = std::mem::replace(&mut values.write_cache, enabled);
                return Ok((0, (old != enabled).then_some(Change::WriteCache { enabled })));
            }
            fid::NUMBER_OF_QUEUES => return Ok((granted_queues(of, value, has_io_queues)?, None)),
            fid::INTERRUPT_COALESCING => values.interrupts.coalescing = value & 0xffff,
            fid::INTERRUPT_VECTOR_CONFIG => values.interrupts.configure(vector(of, value)?, value),
            fid::WRITE_ATOMICITY => values.write_atomicity = value & DISABLE_NORMAL,
            fid::ASYNC_EVENT_CONFIG if value & !events_of(of) != 0 => return Err(Code::INVALID_FIELD),
            fid::ASYNC_EVENT_CONFIG => {
                let old = std::mem::replace(&mut values.async_events, value);
                return Ok((0, Some(Change::Events { fresh: value & !old })));
            }
            fid::TIMESTAMP => self.timestamp.set(data, now_ms)?,
            fid::KEEP_ALIVE_TIMER => self.keep_alive.set(&of.subsystem.limits, value, now_ms),
            // It came with Connect, and stays (base, section 5.27.1.25).
            fid::HOST_IDENTIFIER => return Err(Code::COMMAND_SEQUENCE_ERROR),
            fid::NAMESPACE_WRITE_PROTECTION if value & 0b111 == write_protection(of, asked.nsid)? => {}
            _ => return Err(Code::FEATURE_NOT_CHANGEABLE),
        }
        Ok((0, None))
    }
}

/// The features that a controller has.
pub(super) fn supported(of: &Association) -> impl Iterator<Item = (u8, Feature)> + '_ {
    (0..=u8::MAX).filter_map(|fid| feature(of, fid).map(|feature| (fid, feature)))
}

fn feature(of: &Association, fid: u8) -> Option<Feature> {
    let of_nvm = !of.subsystem.is_discovery();
    Some(match fid {
        fid::ASYNC_EVENT_CONFIG => CHANGEABLE,
        fid::INTERRUPT_COALESCING | fid::INTERRUPT_VECTOR_CONFIG if of.is_pcie() => CHANGEABLE,
        // A function's host neither keeps alive nor introduces itself.
        fid::KEEP_ALIVE_TIMER | fid::HOST_IDENTIFIER if of.is_pcie() => return None,
        fid::KEEP_ALIVE_TIMER => CHANGEABLE,
        fid::HOST_IDENTIFIER => FIXED,
        _ if !of_nvm => return None,
        // Over fabrics each queue has a connection of its own, and nothing to arbitrate.
        fid::ARBITRATION if !of.is_pcie() => FIXED,
        fid::ARBITRATION
        | fid::POWER_MANAGEMENT
        | fid::TEMPERATURE_THRESHOLD
        | fid::ERROR_RECOVERY
        | fid::NUMBER_OF_QUEUES
        | fid::TIMESTAMP
        | fid::WRITE_ATOMICITY => CHANGEABLE,
        fid::VOLATILE_WRITE_CACHE if of.has_write_cache() => CHANGEABLE,
        fid::COMMAND_SET_PROFILE => FIXED,
        fid::NAMESPACE_WRITE_PROTECTION => Feature { changeable: false, namespace_specific: true },
        _ => return None,
    })
}

/// Number of Queues: what is granted doesn't depend on what is asked for, but it may only be asked before there are I/O
/// queues.
fn granted_queues(of: &Association, value: u32, has_io_queues: bool) -> Result<u32, Code> {
    if value & 0xffff == 0xffff || value >> 16 == 0xffff {
        return Err(Code::INVALID_FIELD);
    }
    if has_io_queues {
        return Err(Code::COMMAND_SEQUENCE_ERROR);
    }
    Ok(Queues::both(of.queues.into()).to_dword())
}

fn write_protection(of: &Association, nsid: u32) -> Result<u32, Code> {
    match of.subsystem.namespace(nsid) {
        Some(namespace) if namespace.read_only => Ok(write_protection::PROTECT),
        Some(_) => Ok(write_protection::NONE),
        None if (1..=NAMESPACES_MAX).contains(&nsid) => Err(Code::INVALID_FIELD),
        None => Err(Code::INVALID_NAMESPACE),
    }
}

/// The interrupt vector that CDW11 names.
fn vector(of: &Association, value: u32) -> Result<u16, Code> {
    let vectors = of.function().map_or(0, |function| function.vectors);
    Some(value as u16).filter(|vector| *vector < vectors).ok_or(Code::INVALID_FIELD)
}
