//! Names of a job's fields in texts: the key between `‹` and `›`, as in `a smaller ‹depth›`. Nothing here knows how it
//! was typed: whoever shows a text says each field in its own words, of a command line or of another tool's.

use crate::request::Field;
use crate::{Error, JobSpec};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::borrow::Cow;
use std::fmt;

/// Shown as the command line speaks.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, found, next) = (as_flags(&self.asked), as_flags(&self.found), as_flags(&self.next));
        let advice = if next.is_empty() { "" } else { "\n  try: " };
        write!(f, "{asked}: {found}{advice}{next}")
    }
}

impl std::error::Error for Error {}

/// Written out as it is shown.
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Error", 4)?;
        fields.serialize_field("kind", &self.kind)?;
        fields.serialize_field("asked", &as_flags(&self.asked))?;
        fields.serialize_field("found", &as_flags(&self.found))?;
        fields.serialize_field("next", &as_flags(&self.next))?;
        fields.end()
    }
}

/// `text`, with `word` of each field that it names. What stands between the marks and is no field's key stays as it is.
pub fn said(text: &str, word: impl Fn(&Field<JobSpec>) -> String) -> Cow<'_, str> {
    let mut rest = text;
    let mut out = String::new();
    while let Some((before, behind)) = rest.split_once('‹') {
        out.push_str(before);
        let named = behind.split_once('›').and_then(|(key, after)| Some((field(key)?, after)));
        rest = match named {
            Some((field, after)) => {
                out.push_str(&word(field));
                after
            }
            None => {
                out.push('‹');
                behind
            }
        };
    }
    match rest.len() == text.len() {
        true => Cow::Borrowed(text),
        false => Cow::Owned(out + rest),
    }
}

/// Names fields as the command line and records do: `--io-size`.
pub fn as_flags(text: &str) -> Cow<'_, str> {
    said(text, |field| format!("--{}", field.flag))
}

/// The name of a field in an error: marked where it is one of a job's; else its flag.
pub fn named<R>(field: &Field<R>) -> String {
    match JobSpec::FIELDS.iter().any(|of_job| (of_job.key, of_job.flag) == (field.key, field.flag)) {
        true => field.marked(),
        false => format!("--{}", field.flag),
    }
}

fn field(key: &str) -> Option<&'static Field<JobSpec>> {
    JobSpec::FIELDS.iter().find(|field| field.key == key)
}

/// Returns the word of `known` that somebody who typed `word` may have meant: within a third of its letters.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    let reported =
        known.into_iter().map(|one| (changes(word, one), one)).min_by_key(|(changes, _)| *changes)?;
    (reported.0 <= most).then_some(reported.1)
}

/// Letters to put in, leave out or exchange, to make `b` of `a`.
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let least = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_said_in_the_words_of_who_shows_it() {
        let text = "a smaller ‹depth›, ‹workers› or ‹io_bytes›; ‹depth› 4";
        assert_eq!(as_flags(text), "a smaller --depth, --workers or --io-size; --depth 4");
        assert_eq!(
            said(text, |field| field.key.to_uppercase()),
            "a smaller DEPTH, WORKERS or IO_BYTES; DEPTH 4"
        );
        for field in JobSpec::FIELDS {
            assert_eq!(as_flags(&format!("‹{}›", field.key)), format!("--{}", field.flag));
        }
    }

    #[test]
    fn what_is_no_field_stays() {
        for text in ["", "--depth 4", "/data/‹mine›", "‹", "›‹", "‹depth", "‹‹x›"] {
            assert_eq!(as_flags(text), text);
        }
        assert_eq!(as_flags("‹‹depth›"), "‹--depth");
    }

    #[test]
    fn an_error_that_is_shown_names_flags() {
        let error = Error::request("‹depth› 0", "must be 1 to 4096", "‹depth› 32, or no ‹batch›");
        assert_eq!(error.to_string(), "--depth 0: must be 1 to 4096\n  try: --depth 32, or no --batch");
        let document = serde_json::to_value(&error).unwrap();
        assert_eq!(
            (&document["asked"], &document["next"]),
            (&"--depth 0".into(), &"--depth 32, or no --batch".into())
        );
    }
}
