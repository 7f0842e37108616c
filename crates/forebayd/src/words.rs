//! Numbers as the Python command prints them.

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
        return format!("{} ms", significant(value * 1e3));
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
    fn numbers_read_well() {
        assert_eq!([bytes(512), bytes(65536), bytes(3 << 29)], ["512 B", "64 KiB", "1.50 GiB"]);
        assert_eq!([significant(0.0), significant(1234.4), significant(0.82)], ["0", "1,234", "0.820"]);
        assert_eq!(
            [seconds(0.5), seconds(12.34), seconds(125.0), seconds(7260.0)],
            ["500 ms", "12.3 s", "2 min 05 s", "2 h 01 min"]
        );
        assert_eq!([count(1, "host"), count(1_234_567, "error")], ["1 host", "1,234,567 errors"]);
    }
}
