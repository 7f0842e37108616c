//! Values of a source URI's query.

use forebay_model::wording::nearest;
use std::time::Duration;

/// Keys of a scheme, each with a value that it takes.
pub(crate) type Keys = &'static [(&'static str, &'static str)];

/// The URI as it was typed, with a key that exists in the place of one that doesn't, or with a value that the key takes;
/// `usual`, where nothing like the key exists.
pub(crate) fn instead(whole: &str, key: &str, keys: Keys, usual: &str) -> String {
    let known = keys.iter().find(|(name, _)| *name == key);
    let near = nearest(key, keys.iter().map(|(name, _)| *name));
    let Some(at) = ['?', '&'].iter().find_map(|mark| whole.find(&format!("{mark}{key}"))) else {
        return usual.into();
    };
    let (before, typed) = whole.split_at(at + 1);
    let (typed, after) = typed.split_at(typed.find('&').unwrap_or(typed.len()));
    match (known, near) {
        (Some((name, value)), _) => format!("{before}{name}={value}{after}"),
        (None, Some(name)) => format!("{before}{name}{}{after}", &typed[key.len()..]),
        (None, None) => {
            let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
            format!("one of {}", names.join(", "))
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_or_a_value_that_cannot_be_is_answered_with_the_uri_that_was_typed() {
        const KEYS: Keys = &[("hostnqn", "nqn.x"), ("queues", "8")];
        let instead = |whole: &str, key: &str| instead(whole, key, KEYS, "usual");
        assert_eq!(instead("s://h/n?hostnqm=nqn.y&queues=2", "hostnqm"), "s://h/n?hostnqn=nqn.y&queues=2");
        assert_eq!(instead("s://h/n?hostnqn=nqn.y&queues=x", "queues"), "s://h/n?hostnqn=nqn.y&queues=8");
        assert_eq!(instead("s://h/n?zzz=1", "zzz"), "one of hostnqn, queues");
        assert_eq!(instead("s://h/n?%71ueues=x", "queues"), "usual");
    }
}
