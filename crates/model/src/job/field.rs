//! Description of a job's field besides its type: how it is typed, its range, and its meaning for comparisons of runs.

use super::JobSpec;
use serde::{Serialize, Serializer};

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
    Text,
    /// Text that is given once for each entry, and may be a list in itself.
    List,
    /// As `List`, of texts that may hold commas.
    Words,
    /// Given or not.
    Flag,
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
    /// Bytes, as `64k`.
    Size,
    SignedSize,
    /// `MIN[:MAX[:STEP]]`.
    Sizes,
}

/// Bound of a number, whatever the other fields are.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub least: f64,
    pub most: f64,
    /// Neither of the two is allowed itself.
    pub open: bool,
    pub must: &'static str,
    /// A good value, as it is typed.
    pub example: &'static str,
}

impl Bound {
    /// False for what isn't a number.
    pub fn holds(&self, value: f64) -> bool {
        match self.open {
            true => value > self.least && value < self.most,
            false => value >= self.least && value <= self.most,
        }
    }
}

/// A field of the job that users can set.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Field {
    /// Its name in `JobSpec`, and so in records.
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
    #[serde(rename = "example", serialize_with = "example_of")]
    pub bound: Option<Bound>,
    /// Its value, if it is a number and was set.
    #[serde(skip)]
    pub number: fn(&JobSpec) -> Option<f64>,
    /// Gives it its default.
    #[serde(skip)]
    pub reset: fn(&mut JobSpec),
}

fn example_of<S: Serializer>(bound: &Option<Bound>, serializer: S) -> Result<S::Ok, S::Error> {
    bound.map(|bound| bound.example).serialize(serializer)
}

pub const fn flag(flag: &'static str, kind: Kind, metavar: &'static str, help: &'static str) -> Field {
    let number: fn(&JobSpec) -> Option<f64> = |_| None;
    let reset: fn(&mut JobSpec) = |_| ();
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
        number,
        reset,
    }
}

pub const fn switch(name: &'static str, help: &'static str) -> Field {
    flag(name, Kind::Flag, "", help)
}

impl Field {
    pub const fn within(self, least: f64, most: f64, must: &'static str, example: &'static str) -> Field {
        Field { bound: Some(Bound { least, most, open: false, must, example }), ..self }
    }

    /// As `within`, without the two themselves.
    pub const fn between(self, least: f64, most: f64, must: &'static str, example: &'static str) -> Field {
        Field { bound: Some(Bound { least, most, open: true, must, example }), ..self }
    }

    pub const fn ending(self) -> Field {
        Field { ends: true, tried: false, ..self }
    }

    /// A trial leaves it at its default.
    pub const fn untried(self) -> Field {
        Field { tried: false, ..self }
    }

    /// Runs that differ in it may be repeats of one.
    pub const fn untold(self) -> Field {
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

macro_rules! no_numbers {
    ($($other:ty),*) => { $( impl AsNumber for $other {} )* };
}
no_numbers!(bool, String, super::PathKind, super::CuFileMode);
no_numbers!(
    super::Op,
    super::Arrivals,
    super::Cache,
    super::Engine,
    super::FileOrder,
    super::Hint,
    super::Pages,
    super::Prefer,
    super::Sync
);

impl<T: AsNumber> AsNumber for Option<T> {
    fn as_number(&self) -> Option<f64> {
        self.as_ref().and_then(AsNumber::as_number)
    }
}

impl<T> AsNumber for Vec<T> {}

/// `JobSpec` with its defaults, and `FIELDS`, out of one row for each field.
macro_rules! job {
    ($( $(#[$doc:meta])* $key:ident: $type:ty = $default:expr $(, $row:expr)?; )*) => {
        /// A job as asked for. Sizes in bytes, times in seconds.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct JobSpec {
            $( $(#[$doc])* pub $key: $type, )*
        }

        impl Default for JobSpec {
            fn default() -> Self {
                JobSpec { $( $key: $default, )* }
            }
        }

        /// The fields that users can set, in the order in which `--help` lists them.
        pub const FIELDS: &[Field] = &[ $( $(
            Field {
                key: stringify!($key),
                number: |job| job.$key.as_number(),
                reset: |job| job.$key = $default,
                ..$row
            },
        )? )* ];
    };
}
pub(super) use job;
