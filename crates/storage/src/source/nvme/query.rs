//! Values of a source URI's query.

use std::time::Duration;

/// A count from 1 to `most`.
pub(crate) fn count(key: &str, value: &str, most: u32) -> Result<u32, String> {
    match value.parse::<u32>() {
        Ok(n) if n > 0 && n <= most => Ok(n),
        _ => Err(format!("{key}={value} is not a whole number up to {most}")),
    }
}

/// 1 or 0; the key alone is 1.
pub(crate) fn switch(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("{key}={value} is neither 0 nor 1")),
    }
}

/// Seconds, or -1 for none.
pub(crate) fn seconds(key: &str, value: &str) -> Result<Option<Duration>, String> {
    const MOST: f64 = 1e7;
    match value.parse::<f64>() {
        Ok(-1.0) => Ok(None),
        Ok(s) if (0.0..=MOST).contains(&s) => Ok(Some(Duration::from_secs_f64(s))),
        _ => Err(format!("{key}={value} is neither seconds nor -1")),
    }
}

/// As `seconds`, of a time in which something must be able to happen.
pub(crate) fn seconds_above_zero(key: &str, value: &str) -> Result<Option<Duration>, String> {
    match seconds(key, value)? {
        Some(Duration::ZERO) => Err(format!("{key}={value} leaves no time: seconds above 0")),
        some => Ok(some),
    }
}

/// Parses the time for which a worker polls before it sleeps.
pub(crate) fn spin(key: &str, value: &str) -> Result<Duration, String> {
    // A second of looking: longer is no different from always.
    const MOST: u32 = 1_000_000;
    match value.parse::<u32>() {
        Ok(us) if us <= MOST => Ok(Duration::from_micros(us.into())),
        _ => Err(format!("{key}={value} is not a number of microseconds up to {MOST}")),
    }
}
