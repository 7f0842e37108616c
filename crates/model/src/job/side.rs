//! A job's relation to others on the machine: its priority, and its share of I/Os among runs with the same flow file.

use crate::Error;
use std::path::PathBuf;

/// A priority of the kernel's I/O scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    class: u8,
    level: u8,
}

impl Priority {
    /// `idle`, `be/0` to `be/7`, `rt/0` to `rt/7`; without a level, 4.
    fn parse(text: &str) -> Option<Priority> {
        let (class, level) = text.split_once('/').map_or((text, "4"), |(class, level)| (class, level));
        let level = level.parse().ok().filter(|level| *level < 8)?;
        match class {
            "rt" => Some(Priority { class: 1, level }),
            "be" => Some(Priority { class: 2, level }),
            "idle" if text == class => Some(Priority { class: 3, level: 0 }),
            _ => None,
        }
    }

    /// The value that system calls and submissions take.
    pub fn bits(self) -> u16 {
        u16::from(self.class) << 13 | u16::from(self.level)
    }
}

/// `idle`, of all I/Os; `20=rt/0`, of one in five; `idle,20=rt/0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    pub all: Option<Priority>,
    /// Per cent of the I/Os, and theirs.
    pub some: Option<(u8, Priority)>,
}

impl Priorities {
    /// # Errors
    /// `Request`, naming the part that isn't one.
    pub fn parse(text: &str) -> Result<Priorities, Error> {
        let refused = |part: &str| {
            let found =
                format!("'{part}' is not one of idle, be/0 to be/7, rt/0 to rt/7, or PCT=one of these");
            Error::request(format!("‹priority› {text}"), found, "‹priority› idle,20=rt/0")
        };
        let mut found = Priorities::default();
        for part in text.split(',') {
            let taken = match part.split_once('=') {
                Some((pct, of)) => {
                    let pct = pct.parse().ok().filter(|pct| (1..=100).contains(pct));
                    let some = pct.zip(Priority::parse(of)).ok_or_else(|| refused(part))?;
                    found.some.replace(some).is_some()
                }
                None => found.all.replace(Priority::parse(part).ok_or_else(|| refused(part))?).is_some(),
            };
            if taken {
                return Err(refused(part));
            }
        }
        Ok(found)
    }
}

/// `8@FILE`: each worker has eight parts of the I/Os of all that name this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub weight: u32,
    pub file: PathBuf,
}

impl Flow {
    pub const WEIGHT_MAX: u32 = 1000;

    /// # Errors
    /// `Request`: it has no weight, or names no file.
    pub fn parse(text: &str) -> Result<Flow, Error> {
        let (weight, file) = text.split_once('@').unwrap_or((text, ""));
        let weight = weight.parse().ok().filter(|weight| (1..=Flow::WEIGHT_MAX).contains(weight));
        match weight {
            Some(weight) if !file.is_empty() && !file.contains('\0') => {
                Ok(Flow { weight, file: file.into() })
            }
            _ => {
                let found = "is not a weight of 1 to 1000 and a file that all runs name";
                Err(Error::request(format!("‹flow› {text}"), found, "‹flow› 2@/dev/shm/flow"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_of_all_ios_or_of_some() {
        let bits = |text: &str| {
            let found = Priorities::parse(text).unwrap();
            (found.all.map(Priority::bits), found.some.map(|(pct, priority)| (pct, priority.bits())))
        };
        assert_eq!(bits("idle"), (Some(3 << 13), None));
        assert_eq!(bits("be/7,20=rt/0"), (Some(2 << 13 | 7), Some((20, 1 << 13))));
        assert_eq!(bits("100=rt"), (None, Some((100, 1 << 13 | 4))));
        for wrong in ["", "idle/3", "be/8", "rt/x", "0=rt", "101=rt", "20=", "idle,be/1", "1=rt,2=be"] {
            assert_eq!(Priorities::parse(wrong).unwrap_err().asked, format!("‹priority› {wrong}"));
        }
    }

    #[test]
    fn a_flow_is_a_weight_and_a_file() {
        assert_eq!(Flow::parse("8@/dev/shm/f").unwrap(), Flow { weight: 8, file: "/dev/shm/f".into() });
        for wrong in ["", "8", "8@", "0@/f", "1001@/f", "-1@/f", "x@/f", "1@/f\0"] {
            assert!(Flow::parse(wrong).is_err(), "{wrong}");
        }
    }
}
