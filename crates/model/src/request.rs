//! Tables of requests: each field of one is a row that says its type, its default, its flag, its help and its bounds, and for a
//! job its meaning for comparisons of runs. Structs, command lines, settings and checks are made of it.

use crate::Error;
use serde::Serialize;

/// No greatest value; of `between`, any finite one.
pub const ANY: f64 = f64::INFINITY;

/// Form of the value on a command line, in a setting or in a TOML file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The name of a data path, or `auto`.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words, with commas between.
    Names(&'static [&'static str]),
    Text,
    /// Text that is given once for each entry, and may be a list in itself.
    List,
    /// As `List`, of texts that may hold commas.
    Words,
    /// Given or not.
    Flag,
    /// As `Flag`, where what is given says no: `--no-fsync`.
    Off,
    /// A whole number of 32 bits.
    Integer,
    Integers,
    /// A whole number of 63 bits.
    Whole,
    /// A whole number of 64 bits.
    Seed,
    /// An `Integer`, or `auto`.
    Workers,
    Number,
    /// Per cent, whole.
    Share,
    Percent,
    Seconds,
    /// Typed as milliseconds, kept as seconds.
    Milliseconds,
    /// Bytes, as `64k`.
    Size,
    SignedSize,
    /// `MIN[:MAX[:STEP]]`.
    Sizes,
}

/// Bound of a number, whatever the other fields are.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// Null: none, as of `most`.
    pub least: f64,
    pub most: f64,
    /// Whether these two are allowed themselves.
    pub with_least: bool,
    pub with_most: bool,
    pub must: &'static str,
    /// A good value, as it is typed.
    pub example: &'static str,
}

impl Bound {
    /// False for what isn't a number.
    pub fn holds(&self, value: f64) -> bool {
        let above = if self.with_least { value >= self.least } else { value > self.least };
        let below = if self.with_most { value <= self.most } else { value < self.most };
        above && below
    }
}

/// A field of the request `R` that users can set.
#[derive(Debug, Serialize)]
#[serde(bound = "")]
pub struct Field<R> {
    /// Its name in the request, and so in records.
    pub key: &'static str,
    /// Its name on a command line, without the dashes.
    pub flag: &'static str,
    pub kind: Kind,
    /// Placeholder for the value in `--help`; empty for `Kind::Flag`.
    pub metavar: &'static str,
    /// A line of `--help`. `{paths}` stands for the names of the data paths.
    pub help: &'static str,
    /// Runs that differ in it are different runs, and no repeats of one.
    pub tells: bool,
    /// It ends a run by what was moved, and not by time.
    pub ends: bool,
    /// A trial of the job keeps it. What ends, paces or checks a run isn't what a trial is about.
    #[serde(skip)]
    pub tried: bool,
    pub bound: Option<Bound>,
    /// Nothing can be done without it.
    pub needed: bool,
    /// Its value, if it is a number and was set.
    #[serde(skip)]
    pub number: fn(&R) -> Option<f64>,
    /// Gives it its default.
    #[serde(skip)]
    pub reset: fn(&mut R),
}

pub const fn flag<R>(flag: &'static str, kind: Kind, metavar: &'static str, help: &'static str) -> Field<R> {
    let number: fn(&R) -> Option<f64> = |_| None;
    let reset: fn(&mut R) = |_| ();
    Field {
        key: "",
        flag,
        kind,
        metavar,
        help,
        tells: true,
        ends: false,
        tried: true,
        bound: None,
        needed: false,
        number,
        reset,
    }
}

pub const fn switch<R>(name: &'static str, help: &'static str) -> Field<R> {
    flag(name, Kind::Flag, "", help)
}

/// A switch that sets its field to false.
pub const fn switch_off<R>(name: &'static str, help: &'static str) -> Field<R> {
    flag(name, Kind::Off, "", help)
}

/// Refuses the first number that lies out of its bounds, by the name that `name_of` gives its field.
pub fn check_bounds<R>(
    fields: &[Field<R>],
    request: &R,
    name_of: impl Fn(&Field<R>) -> String,
) -> Result<(), Error> {
    for (field, bound) in fields.iter().filter_map(|field| Some((field, field.bound?))) {
        if let Some(value) = (field.number)(request).filter(|value| !bound.holds(*value)) {
            let name = name_of(field);
            return Err(Error::request(
                format!("{name} {value}"),
                bound.must,
                format!("{name} {}", bound.example),
            ));
        }
    }
    Ok(())
}

impl<R> Field<R> {
    /// Its name in texts about a job, of which it is a field: `‹io_bytes›`.
    pub fn marked(&self) -> String {
        format!("‹{}›", self.key)
    }

    pub const fn within(self, least: f64, most: f64, must: &'static str, example: &'static str) -> Self {
        Field { bound: Some(Bound { least, most, with_least: true, with_most: true, must, example }), ..self }
    }

    /// As `within`, without the two themselves.
    pub const fn between(self, least: f64, most: f64, must: &'static str, example: &'static str) -> Self {
        Field {
            bound: Some(Bound { least, most, with_least: false, with_most: false, must, example }),
            ..self
        }
    }

    /// As `within`, without `least` itself.
    pub const fn above(self, least: f64, most: f64, must: &'static str, example: &'static str) -> Self {
        Field {
            bound: Some(Bound { least, most, with_least: false, with_most: true, must, example }),
            ..self
        }
    }

    pub const fn saying(self, help: &'static str) -> Self {
        Field { help, ..self }
    }

    pub const fn needed(self) -> Self {
        Field { needed: true, ..self }
    }

    pub const fn ending(self) -> Self {
        Field { ends: true, tried: false, ..self }
    }

    /// A trial leaves it at its default.
    pub const fn untried(self) -> Self {
        Field { tried: false, ..self }
    }

    /// Runs that differ in it may be repeats of one.
    pub const fn not_shown(self) -> Self {
        Field { tells: false, ..self }
    }
}

/// The value of a field as a number; None of what isn't one.
pub trait AsNumber {
    fn as_number(&self) -> Option<f64> {
        None
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl AsNumber for $number {
            fn as_number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )* };
}
numbers!(u8, u32, u64, i64, f64);

/// Types of fields that are no numbers.
#[macro_export]
macro_rules! no_numbers {
    ($($other:ty),*) => { $( impl $crate::request::AsNumber for $other {} )* };
}
no_numbers!(bool, String);

impl<T: AsNumber> AsNumber for Option<T> {
    fn as_number(&self) -> Option<f64> {
        self.as_ref().and_then(AsNumber::as_number)
    }
}

impl<T> AsNumber for Vec<T> {}

/// A request with its defaults, and its table `FIELDS`, out of one row for each field. One without a row after its default isn't
/// for users to set. A request that records hold has, behind each type, the field's unit, and the flag by which it is set if
/// that is another's; in braces stands an attribute.
#[macro_export]
macro_rules! request {
    (
        $(#[$outer:meta])* pub struct $name:ident;
        $(
            $(#[doc = $what:literal])*
            $key:ident: $type:ty $([$unit:literal $(, $by:literal)?])? $({$attribute:meta})? = $default:expr $(, $row:expr)?;
        )*
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $what])* $(#[$attribute])? pub $key: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $key: $default, )* }
            }
        }

        impl $name {
            /// The fields that users can set, in the order in which `--help` lists them.
            pub const FIELDS: &'static [$crate::request::Field<$name>] = &[ $( $(
                $crate::request::Field {
                    key: stringify!($key),
                    number: |request: &$name| $crate::request::AsNumber::as_number(&request.$key),
                    reset: |request: &mut $name| request.$key = $default,
                    ..$row
                },
            )? )* ];
            /// Its table in records, if they hold it.
            pub const PART: $crate::schema::Part = $crate::schema::Part {
                name: stringify!($name),
                fields: &[ $( $crate::schema::Field {
                    name: stringify!($key),
                    flag: concat!($( $( $by )? )?),
                    unit: concat!($( $unit )?),
                    what: concat!($( $what ),*),
                }, )* ],
            };
        }
    };
}
