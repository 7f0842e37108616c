//! Sizes and rates as people type them. Sizes are binary: `64k` is 65,536 bytes.

use crate::Error;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// The same, for rates.
pub const BYTES_PER_GIB: f64 = GIB as f64;
/// The largest I/O.
pub const IO_BYTES_MAX: u64 = GIB;

/// Processors of one list: the kernel's own bound on their numbers is far below.
const CPUS_MAX: u32 = 65_536;

/// `0-3,8` → 0 1 2 3 8, as `--cpus` and the kernel list processors. An error says which part is none.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |t: &str| {
            let number = t.trim().parse::<u32>().ok().filter(|n| *n < CPUS_MAX);
            number.ok_or_else(|| format!("'{part}' is not a range of CPUs"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("'{part}' runs backwards"));
        }
        if cpus.len() + (last - first) as usize >= CPUS_MAX as usize {
            return Err(format!("it names more than {CPUS_MAX} CPUs"));
        }
        cpus.extend(first..=last);
    }
    if cpus.is_empty() {
        return Err("it names no CPU".into());
    }
    Ok(cpus)
}

/// `4096`, `64k`, `64K`, `1MiB`, `2g`, `1.5m`: bytes, the last one cut off. Refuses what doesn't fit in 63 bits.
pub fn parse_bytes(text: &str) -> Result<u64, Error> {
    let bad = |found: &str| {
        Error::request(
            format!("size '{text}'"),
            found,
            "a number with k, m, g or t, e.g. 128k or 1GiB (binary units)",
        )
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(bad("has no such unit")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(1u64 << shift)
            .filter(|v| *v <= i64::MAX as u64)
            .ok_or_else(|| bad("overflows (more than 8 EiB)"));
    }
    // No more digits than any size has, and some behind a point.
    if number.split('.').any(|digits| digits.len() > 30) {
        return Err(bad("is not a number"));
    }
    let value = number.parse::<f64>().map_err(|_| bad("is not a number"))? * (1u64 << shift) as f64;
    if value >= (1u64 << 63) as f64 {
        return Err(bad("overflows (more than 8 EiB)"));
    }
    if shift == 0 && value.fract() != 0.0 {
        return Err(bad("has a part of a byte"));
    }
    Ok(value as u64)
}

/// The shortest exact binary form: `65536` → `64k`.
pub fn format_bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
        if bytes != 0 && bytes % (1u64 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// For reading, to a tenth: `23.5 GiB`, `512 KiB`, `640 B`.
pub fn readable_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        return format!("{value:.0} {}", UNITS[unit]);
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_parse() {
        assert_eq!(parse_cpu_list("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        let endless = vec!["0-65535"; 1 << 10].join(",");
        for bad in ["3-1", "a", "0-99999", "0-4294967295", "-1", "", ",", "\n", &endless] {
            assert!(parse_cpu_list(bad).is_err(), "{bad}");
        }
    }

    // promise: CMD-8
    #[test]
    fn sizes_are_binary_in_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65536),
            ("64KiB", 65536),
            ("64KB", 65536),
            ("1M", MIB),
            ("1.5g", 3 * GIB / 2),
            (".5g", GIB / 2),
            ("1.k", 1024),
            ("2GiB", 2 * GIB),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text_that_was_typed() {
        for text in [
            "",
            "k",
            "12x",
            "1.2.3k",
            "-4k",
            "99999999999999999999g",
            "9223372036854775808",
            "64kibib",
            ".k",
            ".",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.asked.contains(text) && error.kind == crate::Kind::Request);
        }
    }

    // promise: CMD-8
    #[test]
    fn formatting_is_exact() {
        for bytes in [0, 1, 512, 65536, MIB, 3 * MIB / 2, GIB, 5 * GIB] {
            assert_eq!(parse_bytes(&format_bytes(bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn sizes_read_as_people_say_them() {
        let shown: Vec<String> =
            [0, 640, 4096, 1 << 19, 3 << 29, u64::MAX].iter().map(|b| readable_bytes(*b)).collect();
        assert_eq!(shown, ["0 B", "640 B", "4 KiB", "512 KiB", "1.5 GiB", "16384 PiB"]);
    }
}
