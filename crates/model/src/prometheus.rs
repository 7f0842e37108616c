//! Prometheus's text format, version 0.0.4: the samples of one name together, below its help and its type.

use std::fmt::{Display, Write as _};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Appends a family of samples, each with its labels; nothing where there are none. `help` may be empty.
pub fn family<L: AsRef<str>, V: Display>(
    out: &mut String,
    (name, kind, help): (&str, &str, &str),
    samples: impl Iterator<Item = (L, V)>,
) {
    for (at, (labels, value)) in samples.enumerate() {
        if at == 0 {
            head(out, (name, kind, help));
        }
        sample(out, name, labels.as_ref(), value);
    }
}

/// Appends the lines that announce a family.
pub fn head(out: &mut String, (name, kind, help): (&str, &str, &str)) {
    if !help.is_empty() {
        let _ = writeln!(out, "# HELP {name} {help}");
    }
    let _ = writeln!(out, "# TYPE {name} {kind}");
}

/// Appends one sample. `labels` as `labels` makes them, or empty.
pub fn sample(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

/// Joins names and values as they stand between the braces of a sample.
pub fn labels<N: Display, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> String {
    let written = |(name, value): (N, V)| format!("{name}=\"{}\"", escaped(value.as_ref()));
    pairs.into_iter().map(written).collect::<Vec<_>>().join(",")
}

/// Escapes a label's value: hosts choose their names.
pub fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_announced_once_and_labels_are_escaped() {
        let mut out = String::new();
        let odd = labels([("host", "a \"b\"\\\n"), ("op", "read")]);
        family(&mut out, ("x_total", "counter", "Things."), [(odd.as_str(), "1.5"), ("", "2")].into_iter());
        family(&mut out, ("y", "gauge", ""), std::iter::empty::<(&str, u64)>());
        family(&mut out, ("z", "gauge", ""), [("", 3)].into_iter());
        let expected = "# HELP x_total Things.\n# TYPE x_total counter\n\
                        x_total{host=\"a \\\"b\\\"\\\\\\n\",op=\"read\"} 1.5\nx_total 2\n# TYPE z gauge\nz 3\n";
        assert_eq!(out, expected);
    }
}
