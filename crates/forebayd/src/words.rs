//! Numbers as the Python command prints them: `tests/numbers.json` holds both to the same words.

/// `31.2 GiB`; exact where it is short (`64 KiB`).
pub fn bytes(value: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if value >= 1 << shift {
            let scaled = value as f64 / (1u64 << shift) as f64;
            return match scaled.fract() == 0.0 {
                true => format!("{scaled:.0} {unit}"),
                false => format!("{} {unit}", significant(scaled)),
            };
        }
    }
    format!("{value} B")
}

/// Three significant digits.
pub fn significant(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v >= 1000.0 => grouped(v.round() as u64),
        v => {
            let bounds = [(100.0, 0), (10.0, 1), (1.0, 2), (0.1, 3), (0.01, 4), (0.001, 5)];
            let digits = bounds.iter().find(|(bound, _)| v >= *bound).map_or(6, |(_, digits)| *digits);
            format!("{v:.digits$}")
        }
    }
}

pub fn seconds(value: f64) -> String {
    if value < 0.9995 {
        return match value {
            v if v < 1e-6 => format!("{} ns", significant(v * 1e9)),
            v if v < 1e-3 => format!("{} µs", significant(v * 1e6)),
            v => format!("{} ms", significant(v * 1e3)),
        };
    }
    if value < 100.0 {
        return format!("{value:.1} s");
    }
    let (minutes, rest) = ((value.round() as u64) / 60, (value.round() as u64) % 60);
    match minutes / 60 {
        0 => format!("{minutes} min {rest:02} s"),
        hours => format!("{hours} h {:02} min", minutes % 60),
    }
}

/// `1 host`, `1,200 hosts`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_in_python() {
        let table: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/numbers.json")).unwrap();
        type Show = fn(f64) -> String;
        let shown: [(&str, Show); 4] = [
            ("bytes", |value| bytes(value as u64)),
            ("significant", significant),
            ("seconds", seconds),
            ("count", |value| count(value as u64, "host")),
        ];
        for (kind, show) in shown {
            for row in table[kind].as_array().unwrap() {
                assert_eq!(show(row[0].as_f64().unwrap()), row[1], "{kind}");
            }
        }
        for row in table["times"].as_array().unwrap() {
            let read = crate::asked::seconds(row[0].as_str().unwrap(), "--drain").ok();
            assert_eq!(read.map(|time| time.as_secs_f64()), row[1].as_f64(), "{row}");
        }
    }
}
