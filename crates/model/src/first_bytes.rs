//! What a file is by its first bytes, where it isn't what its name says.

/// First bytes that are enough to tell.
pub const ENOUGH: usize = 64;

/// A kind of file that often lies under the name of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Names of the formats that begin like this rightly.
    pub formats: &'static [&'static str],
    /// Completes "it is …".
    pub what: &'static str,
    /// What to do about it.
    pub next: &'static str,
}

const BEGINNINGS: &[(&[u8], Seen)] = &[
    (
        b"version https://git-lfs",
        Seen { formats: &[], what: "a pointer of git-lfs, without the data", next: "git lfs pull" },
    ),
    (b"\x1f\x8b", packed("gzip", "gunzip it first: compressed files aren't read here")),
    (b"\x28\xb5\x2f\xfd", packed("zstd", "unzstd it first: compressed files aren't read here")),
    (b"BZh", packed("bzip2", "bunzip2 it first: compressed files aren't read here")),
    (b"\xfd7zXZ\0", packed("xz", "unxz it first: compressed files aren't read here")),
    (
        b"PK\x03\x04",
        Seen {
            formats: &["npz"],
            what: "a zip (an .npz, or a checkpoint of PyTorch)",
            next: "the format that it is, or unzip it first",
        },
    ),
    (b"\x89PNG\r\n\x1a\n", image("png", &["png"])),
    (b"\xff\xd8\xff", image("jpeg", &["jpeg"])),
    (b"GIF8", image("gif", &[])),
    (
        b"\x89HDF\r\n\x1a\n",
        Seen { formats: &["hdf5"], what: "an HDF5 file", next: "format = \"hdf5\" in the workload" },
    ),
    (
        b"PAR1",
        Seen { formats: &["parquet"], what: "a Parquet file", next: "format = \"parquet\" in the workload" },
    ),
    (
        b"\x93NUMPY",
        Seen {
            formats: &["npy"],
            what: "an array of NumPy's (.npy)",
            next: "format = \"npy\" in the workload",
        },
    ),
];

const fn packed(what: &'static str, next: &'static str) -> Seen {
    Seen { formats: &[], what, next }
}

const fn image(what: &'static str, formats: &'static [&'static str]) -> Seen {
    Seen { formats, what, next: "the format that it is, or other images" }
}

/// Returns what a file that begins like this is; None where nothing says.
pub fn recognise(head: &[u8]) -> Option<Seen> {
    if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        return Some(image("webp", &[]));
    }
    let text: Vec<u8> = head.iter().take(ENOUGH).map(u8::to_ascii_lowercase).collect();
    let text = text.trim_ascii_start();
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") {
        let next = "download it again: a server answered with a page, usually of an error or a login";
        return Some(Seen { formats: &[], what: "a page of HTML", next });
    }
    BEGINNINGS.iter().find(|(start, _)| head.starts_with(start)).map(|(_, seen)| *seen)
}

/// As `recognise`, of a file that should be of this format: None where it is.
pub fn is_other(head: &[u8], format: &str) -> Option<Seen> {
    recognise(head).filter(|seen| !seen.formats.contains(&format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_beginning_is_recognised_and_its_own_format_is_no_other() {
        for (start, seen) in BEGINNINGS {
            let head = [start, &[0u8; 40][..]].concat();
            assert_eq!(recognise(&head), Some(*seen));
            assert!(is_other(&head, "tfrecord").is_some());
            assert!(seen.formats.iter().all(|format| is_other(&head, format).is_none()));
        }
        assert_eq!(recognise(b"RIFF\0\0\0\0WEBPVP8 ").map(|s| s.what), Some("webp"));
        assert_eq!(recognise(b"\n <!DOCTYPE html>").map(|s| s.what), Some("a page of HTML"));
        assert_eq!((recognise(b""), recognise(b"PK"), recognise(&[0; 64])), (None, None, None));
    }
}
