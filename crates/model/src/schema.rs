//! Tables of record fields: each field of a part of a record is a row that says its meaning, its type, its unit, and how the
//! values of several hosts become one. Structs, the merging of records, and the tables of docs/records.md are made of it.

use serde::Serialize;

/// A part of a record: an object of its JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Part {
    pub name: &'static str,
    pub fields: &'static [Field],
}

/// A field of such a part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Field {
    pub name: &'static str,
    /// Of a job's settings: the flag by which it is set, without dashes; empty: its own.
    pub flag: &'static str,
    /// Its unit or the form of its value. Empty: its fields lie beside the others.
    pub unit: &'static str,
    #[serde(serialize_with = "trimmed")]
    pub what: &'static str,
}

/// A doc comment's lines each begin with a blank.
fn trimmed<S: serde::Serializer>(text: &&str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text.trim())
}

/// Values of which the greatest or the least of several hosts stands for all.
pub(crate) trait Extreme: Copy + Default {
    fn most(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
}

impl Extreme for f64 {
    fn most(self, other: f64) -> f64 {
        self.max(other)
    }

    fn least(self, other: f64) -> f64 {
        self.min(other)
    }
}

impl Extreme for u64 {
    fn most(self, other: u64) -> u64 {
        self.max(other)
    }

    fn least(self, other: u64) -> u64 {
        self.min(other)
    }
}

/// A host that doesn't say takes no part.
impl<T: Extreme> Extreme for Option<T> {
    fn most(self, other: Option<T>) -> Option<T> {
        self.into_iter().chain(other).reduce(T::most)
    }

    fn least(self, other: Option<T>) -> Option<T> {
        self.into_iter().chain(other).reduce(T::least)
    }
}

/// Makes parts of a record. A row: the field's meaning; its name and type, its unit; in brackets, what serde is to do otherwise
/// than with the others; and how hosts' values become one, `sum`, `most`, `least`, `any` or `all` (lists one after the other).
/// Where there is no such word, whoever merges works the field out. `[Default by hand]` behind a part's name: what fields that a
/// record lacks stand for isn't always zero or empty.
macro_rules! record {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident $([$by_hand:ident by hand])? {
            $(
                $(#[doc = $what:literal])+
                pub $field:ident: $type:ty = $unit:literal $([$($serde:tt)*])? $(, $merge:ident)?;
            )*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $( $(#[doc = $what])+ $(#[serde($($serde)*)])? pub $field: $type, )*
        }

        $crate::schema::default_of!($name [$($by_hand)?] $($field)*);

        impl $name {
            /// Its table.
            pub const PART: $crate::schema::Part = $crate::schema::Part {
                name: stringify!($name),
                fields: &[ $( $crate::schema::Field {
                    name: stringify!($field),
                    flag: "",
                    unit: $unit,
                    what: concat!($($what),+),
                }, )* ],
            };

            /// Gives the fields whose row says how hosts' values become one what `parts` come to.
            #[allow(dead_code, unused_variables, reason = "most parts of one host stand beside those of others")]
            pub(crate) fn merge(&mut self, parts: &[&$name]) {
                $( $( self.$field = $crate::schema::merged_field!($merge parts $field); )? )*
            }

            /// Merges those fields; the others have their defaults.
            #[allow(dead_code, reason = "as above")]
            pub(crate) fn merged(parts: &[&$name]) -> $name {
                let mut all = $name::default();
                all.merge(parts);
                all
            }
        }
    )*};
}

macro_rules! default_of {
    ($name:ident [Default] $($field:ident)*) => {};
    ($name:ident [] $($field:ident)*) => {
        impl Default for $name {
            fn default() -> $name {
                $name { $( $field: Default::default(), )* }
            }
        }
    };
}

macro_rules! merged_field {
    (sum $parts:ident $field:ident) => {
        $parts.iter().map(|part| part.$field).sum()
    };
    (any $parts:ident $field:ident) => {
        $parts.iter().any(|part| part.$field)
    };
    (all $parts:ident $field:ident) => {
        $parts.iter().flat_map(|part| part.$field.clone()).collect()
    };
    (most $parts:ident $field:ident) => {
        $parts.iter().map(|part| part.$field).fold(Default::default(), $crate::schema::Extreme::most)
    };
    (least $parts:ident $field:ident) => {
        $parts.iter().map(|part| part.$field).fold(Default::default(), $crate::schema::Extreme::least)
    };
}

pub(crate) use {default_of, merged_field, record};

#[cfg(test)]
mod tests {
    record! {
        /// A part.
        pub struct Example {
            /// Sum of
            /// all.
            pub count: u64 = "count", sum;
            /// Longest.
            pub seconds: f64 = "s", most;
            /// Least that is known.
            pub limit: Option<f64> = "cores, or null", least;
            /// Whether one was.
            pub ended: bool = "true or false" [skip_serializing_if = "std::ops::Not::not"], any;
            /// Of each.
            pub names: Vec<String> = "list of texts", all;
            /// Each host's own.
            pub share: f64 = "share, 0 to 1";
        }
    }

    #[test]
    fn rows_become_a_struct_a_table_and_a_way_to_merge() {
        let a = Example {
            count: 1,
            seconds: 2.0,
            limit: Some(4.0),
            names: vec!["a".into()],
            share: 0.5,
            ..Default::default()
        };
        let b =
            Example { count: 2, seconds: 1.0, ended: true, names: vec!["b".into()], ..Default::default() };
        let both = Example::merged(&[&a, &b]);
        assert_eq!(
            (both.count, both.seconds, both.limit, both.ended, both.share),
            (3, 2.0, Some(4.0), true, 0.0)
        );
        assert_eq!(both.names, ["a", "b"]);
        assert_eq!(Example::PART.fields[0].what.trim(), "Sum of all.");
        assert!(!serde_json::to_string(&a).unwrap().contains("ended"));
    }
}
