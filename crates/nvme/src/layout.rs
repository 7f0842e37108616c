//! Structures as the specification lays them out: every field with its offset, checked when compiled.

/// Interpretation of a field's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Little-endian.
    Number,
    Bytes,
    /// ASCII, padded with spaces.
    Text,
}

/// One field of a structure, by the specification's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    /// From the start of the structure, bytes.
    pub offset: usize,
    pub bytes: usize,
    pub shape: Shape,
}

impl Field {
    /// Its value out of the structure's bytes, where it is a number. None: the bytes end before it does.
    pub fn number(&self, structure: &[u8]) -> Option<u128> {
        let bytes = structure.get(self.offset..self.offset + self.bytes)?;
        if self.shape != Shape::Number {
            return None;
        }
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte)))
    }

    pub fn is_reserved(&self) -> bool {
        self.name.starts_with("reserved")
    }
}

/// Types that may stand in a structure.
pub(crate) trait Shaped {
    const SHAPE: Shape;
}

macro_rules! numbers {
    ($($type:ty)*) => { $(impl Shaped for $type { const SHAPE: Shape = Shape::Number; })* };
}
numbers!(u8 zerocopy::little_endian::U16 zerocopy::little_endian::U32 zerocopy::little_endian::U64
         zerocopy::little_endian::U128);

impl<T, const N: usize> Shaped for [T; N] {
    const SHAPE: Shape = Shape::Bytes;
}

/// Declares a structure of so many bytes. Each line: offset, name, type.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident, $bytes:literal bytes {
        $($(#[$field_meta:meta])* $at:literal $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        const _: () = {
            assert!(size_of::<$name>() == $bytes);
            $(assert!(std::mem::offset_of!($name, $field) == $at);)*
        };

        impl $name {
            /// Every field, reserved ones too, in order.
            pub const FIELDS: &'static [$crate::layout::Field] = &[$($crate::layout::Field {
                name: stringify!($field),
                offset: $at,
                bytes: size_of::<$type>(),
                shape: <$type as $crate::layout::Shaped>::SHAPE,
            },)*];

            /// The structure at the start of `bytes`; None where they are fewer.
            pub fn read(bytes: &[u8]) -> Option<&$name> {
                use zerocopy::FromBytes;
                $name::ref_from_prefix(bytes).ok().map(|(structure, _)| structure)
            }
        }

        /// All zero.
        impl Default for $name {
            fn default() -> $name {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
pub(crate) use layout;
