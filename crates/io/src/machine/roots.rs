//! Locations where the kernel describes the machine, and bounded ways to read them.
//!
//! Every parser of this module tree takes a `Roots`, so that a test can hand
//! it a machine made of plain files: drives, switches and GPUs that the test
//! host hasn't got.

use forebay_model::units::parse_cpu_list;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// More than any file that is read here holds on a real machine; a bound
/// against one that doesn't end.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Entries of one directory that are looked at.
const ENTRIES_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub struct Roots {
    pub sys: PathBuf,
    pub proc: PathBuf,
    pub dev: PathBuf,
    pub run: PathBuf,
    pub etc: PathBuf,
    /// For what lies elsewhere: `/usr`, `/boot`, `/.dockerenv`.
    pub root: PathBuf,
}

impl Roots {
    /// This machine.
    pub fn host() -> Roots {
        Roots::under("/")
    }

    /// A machine whose `/sys`, `/proc` … lie under `root`.
    pub fn under(root: impl Into<PathBuf>) -> Roots {
        let root = root.into();
        Roots {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
            run: root.join("run"),
            etc: root.join("etc"),
            root,
        }
    }

    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sys.join(path)
    }

    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.proc.join(path)
    }

    /// The first MiB of a file; None where it can't be read.
    pub fn bytes(path: &Path) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        File::open(path).ok()?.take(TEXT_BYTES_MAX).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// The first MiB of a file as text; bytes that aren't UTF-8 are replaced.
    pub fn text(path: &Path) -> Option<String> {
        Roots::bytes(path).map(|content| String::from_utf8_lossy(&content).into_owned())
    }

    /// The first line, trimmed; None where there is none or it is empty.
    pub fn line(path: &Path) -> Option<String> {
        let content = Roots::text(path)?;
        let first = content.lines().next()?.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!first.is_empty()).then(|| first.to_string())
    }

    /// The first line as a number.
    pub fn number<T: FromStr>(path: &Path) -> Option<T> {
        Roots::line(path)?.parse().ok()
    }

    /// Names in a directory, sorted; empty where it can't be read.
    pub fn names(path: &Path) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .take(ENTRIES_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The value after `key` and a colon in lines such as `MemTotal:  1234 kB`.
    pub fn field<'a>(content: &'a str, key: &str) -> Option<&'a str> {
        content.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
    }
}

/// A field of `/proc/meminfo` in bytes.
pub(crate) fn kib_field(content: &str, key: &str) -> Option<u64> {
    Roots::field(content, key)?.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Numbers in a list such as `0-3,8,10-11`; none where it is no list.
pub(crate) fn cpu_list(text: &str) -> Vec<u32> {
    parse_cpu_list(text).unwrap_or_default()
}

impl Roots {
    /// Numbers as the kernel lists them: `[0, 1, 2, 5]` → `0-2,5`.
    pub fn show_list(numbers: &[u32]) -> String {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for &n in numbers {
            match parts.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
                _ => parts.push((n, n)),
            }
        }
        let show = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
        parts.iter().map(show).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_of_processors_goes_both_ways() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(Roots::show_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert!(cpu_list("0-4294967295").is_empty() && cpu_list("").is_empty());
    }

    #[test]
    fn an_endless_file_is_cut() {
        assert_eq!(Roots::bytes(Path::new("/dev/zero")).unwrap().len() as u64, TEXT_BYTES_MAX);
        assert_eq!(Roots::line(Path::new("/dev/zero")), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in ".{0,200}") {
            let _ = (cpu_list(&text), Roots::field(&text, "a"), kib_field(&text, "MemTotal"));
        }

        #[test]
        fn lists_survive_a_round_trip(set in proptest::collection::btree_set(0u32..4096, 0..64)) {
            let numbers: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(cpu_list(&Roots::show_list(&numbers)), numbers);
        }
    }
}
