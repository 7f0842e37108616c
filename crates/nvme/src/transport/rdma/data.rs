//! Place of a command capsule's data: behind the command, or in the host's memory under a key (base, section 4.1.2.2,
//! Keyed SGL Data Block descriptor).

use crate::command::{Sgl, Sqe};
use crate::status::{Code, Status};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Keyed descriptors that one command may have: MSDBD of a controller that says so.
pub const KEYED_MAX: usize = 16;
/// Longest stretch that one of them names: its length has three bytes.
pub const KEYED_BYTES_MAX: u32 = (1 << 24) - 1;

/// Types and subtypes of descriptors, as `Sgl::kind` has them.
pub mod kind {
    /// Keyed SGL Data Block, Address subtype.
    pub const KEYED: u8 = 0x40;
    /// The same, whose key the controller invalidates with its response (subtype Fh, the transport's own).
    pub const KEYED_INVALIDATE: u8 = 0x4f;
    /// SGL Last Segment, Offset subtype: descriptors behind the command, in the capsule.
    pub const SEGMENT_IN_CAPSULE: u8 = 0x31;
}

const SQE_BYTES: usize = size_of::<Sqe>();
const DESCRIPTOR_BYTES: usize = size_of::<Sgl>();

/// Memory of the host's, as it registered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keyed {
    pub address: u64,
    /// At most `KEYED_BYTES_MAX`.
    pub bytes: u32,
    pub key: u32,
    /// The controller invalidates the key with its response.
    pub invalidate: bool,
}

impl Keyed {
    /// Its descriptor: the length's three bytes, then the key's four, stand where others have length and reserved.
    pub fn to_sgl(self) -> Sgl {
        let [k0, k1, k2, k3] = self.key.to_le_bytes();
        let length = (self.bytes & KEYED_BYTES_MAX) | u32::from(k0) << 24;
        let kind = if self.invalidate { kind::KEYED_INVALIDATE } else { kind::KEYED };
        Sgl { address: self.address.into(), length: length.into(), reserved: [k1, k2, k3], kind }
    }

    /// None: it is a descriptor of another type.
    pub fn from_sgl(sgl: &Sgl) -> Option<Keyed> {
        let invalidate = match sgl.kind {
            kind::KEYED => false,
            kind::KEYED_INVALIDATE => true,
            _ => return None,
        };
        let [k1, k2, k3] = sgl.reserved;
        let length = sgl.length.get();
        let key = u32::from_le_bytes([(length >> 24) as u8, k1, k2, k3]);
        Some(Keyed { address: sgl.address.get(), bytes: length & KEYED_BYTES_MAX, key, invalidate })
    }
}

/// Place of a command's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// It has none.
    None,
    /// In these bytes of its capsule.
    InCapsule(Range<usize>),
    /// Places in the list.
    Keyed,
}

/// Up to `KEYED_MAX` stretches of the host's memory, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyedList {
    list: [Keyed; KEYED_MAX],
    count: usize,
}

impl KeyedList {
    pub fn as_slice(&self) -> &[Keyed] {
        &self.list[..self.count]
    }

    /// Returns the bytes of all stretches together.
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|keyed| u64::from(keyed.bytes)).sum()
    }

    /// The key that the response invalidates: one response can do one.
    pub fn invalidates(&self) -> Option<u32> {
        self.as_slice().iter().find(|keyed| keyed.invalidate).map(|keyed| keyed.key)
    }

    fn clear(&mut self) {
        self.count = 0;
    }

    fn push(&mut self, keyed: Keyed) -> Result<(), Status> {
        let place = self.list.get_mut(self.count).ok_or(Status::fatal(Code::SGL_DESCRIPTOR_COUNT_INVALID))?;
        *place = keyed;
        self.count += 1;
        Ok(())
    }
}

/// Returns the place of the `bytes` of data of a command that came as `capsule`. `to_host`: the controller writes
/// them. The list is filled again for each command.
///
/// # Errors
/// The status that the specification has for what is wrong with the capsule's SGL.
pub fn of_capsule(capsule: &[u8], bytes: u32, to_host: bool, list: &mut KeyedList) -> Result<Data, Status> {
    list.clear();
    let Ok((sqe, behind)) = Sqe::read_from_prefix(capsule) else {
        return Err(Status::fatal(Code::INVALID_FIELD));
    };
    if bytes == 0 {
        return Ok(Data::None);
    }
    // PSDT: an SGL, whatever metadata have.
    if !matches!(sqe.flags >> 6, 1 | 2) {
        return Err(Status::fatal(Code::INVALID_FIELD));
    }
    let data = named(&sqe, behind, to_host, list)?;
    let named = match &data {
        Data::InCapsule(range) => range.len() as u64,
        _ => list.bytes(),
    };
    match named == u64::from(bytes) {
        true => Ok(data),
        false => Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)),
    }
}

/// As `of_capsule`, however many bytes that are, of a command that has data. `behind`: the capsule after the command.
pub(super) fn named(sqe: &Sqe, behind: &[u8], to_host: bool, list: &mut KeyedList) -> Result<Data, Status> {
    list.clear();
    match (sqe.sgl.kind, to_host) {
        (Sgl::IN_CAPSULE, false) => {
            let range = within(behind, sqe.sgl.address.get(), sqe.sgl.length.get())?;
            return Ok(Data::InCapsule(SQE_BYTES + range.start..SQE_BYTES + range.end));
        }
        (kind::SEGMENT_IN_CAPSULE, _) => segment(&sqe.sgl, behind, list)?,
        _ => list.push(Keyed::from_sgl(&sqe.sgl).ok_or(Status::fatal(Code::SGL_TYPE_INVALID))?)?,
    }
    Ok(Data::Keyed)
}

/// The keyed descriptors behind a command.
fn segment(sgl: &Sgl, behind: &[u8], list: &mut KeyedList) -> Result<(), Status> {
    let length = sgl.length.get();
    if length == 0 || length as usize % DESCRIPTOR_BYTES != 0 {
        return Err(Status::fatal(Code::INVALID_SGL_SEGMENT));
    }
    let range = within(behind, sgl.address.get(), length)?;
    for bytes in behind[range].chunks_exact(DESCRIPTOR_BYTES) {
        let descriptor = Sgl::read_from_bytes(bytes).map_err(|_| Status::fatal(Code::INVALID_SGL_SEGMENT))?;
        list.push(Keyed::from_sgl(&descriptor).ok_or(Status::fatal(Code::SGL_TYPE_INVALID))?)?;
    }
    Ok(())
}

/// `length` bytes from `offset` on, of what lies behind the command.
fn within(behind: &[u8], offset: u64, length: u32) -> Result<Range<usize>, Status> {
    let end = offset.checked_add(length.into()).filter(|end| *end <= behind.len() as u64);
    match (usize::try_from(offset), end) {
        (Ok(start), Some(end)) => Ok(start..end as usize),
        _ => Err(Status::fatal(Code::SGL_OFFSET_INVALID)),
    }
}

/// Appends the capsule of a command whose data are in these stretches of our memory: one descriptor stands in the
/// command, several behind it. `sqe` has no data pointer yet.
///
/// # Panics
/// For none, or more than `KEYED_MAX`.
pub fn put_keyed(mut sqe: Sqe, stretches: &[Keyed], capsule: &mut Vec<u8>) {
    assert!((1..=KEYED_MAX).contains(&stretches.len()), "{} stretches of memory", stretches.len());
    sqe.flags = sqe.flags & 0x3f | 1 << 6;
    let behind = match stretches {
        [one] => {
            sqe.sgl = one.to_sgl();
            &[][..]
        }
        several => {
            let length = (several.len() * DESCRIPTOR_BYTES) as u32;
            sqe.sgl = Sgl { length: length.into(), kind: kind::SEGMENT_IN_CAPSULE, ..Sgl::default() };
            several
        }
    };
    capsule.extend_from_slice(sqe.as_bytes());
    behind.iter().for_each(|keyed| capsule.extend_from_slice(keyed.to_sgl().as_bytes()));
}

/// Appends the capsule of a command whose data go with it.
pub fn put_in_capsule(mut sqe: Sqe, data: &[u8], capsule: &mut Vec<u8>) {
    sqe.flags = sqe.flags & 0x3f | 1 << 6;
    sqe.sgl = Sgl::in_capsule(data.len() as u32);
    capsule.extend_from_slice(sqe.as_bytes());
    capsule.extend_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvm;
    use proptest::prelude::*;

    fn keyed() -> impl Strategy<Value = Keyed> {
        (any::<u64>(), 0..=KEYED_BYTES_MAX, any::<u32>(), any::<bool>())
            .prop_map(|(address, bytes, key, invalidate)| Keyed { address, bytes, key, invalidate })
    }

    #[test]
    fn a_keyed_descriptor_is_laid_out_as_the_specification_has_it() {
        let keyed =
            Keyed { address: 0x1122_3344_5566_7788, bytes: 0x0a_0b0c, key: 0xdead_beef, invalidate: true };
        let wanted =
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x0c, 0x0b, 0x0a, 0xef, 0xbe, 0xad, 0xde, 0x4f];
        assert_eq!(keyed.to_sgl().as_bytes(), wanted);
    }

    #[test]
    fn what_is_wrong_with_an_sgl_has_its_status() {
        let keyed = Keyed { address: 4096, bytes: 4096, key: 7, invalidate: false };
        let capsule = |change: &dyn Fn(&mut Sqe)| {
            let mut sqe = nvm::write(1, 0, 8, false);
            sqe.flags = 1 << 6;
            sqe.sgl = keyed.to_sgl();
            change(&mut sqe);
            [sqe.as_bytes(), &[0; 8192]].concat()
        };
        let code = |capsule: Vec<u8>, to_host| {
            of_capsule(&capsule, 4096, to_host, &mut KeyedList::default()).unwrap_err().code
        };
        let segment = |length: u32, address: u64| {
            move |sqe: &mut Sqe| {
                sqe.sgl =
                    Sgl { address: address.into(), length: length.into(), kind: 0x31, ..Sgl::default() };
            }
        };
        let in_capsule = |length: u32, address: u64| {
            move |sqe: &mut Sqe| {
                sqe.sgl = Sgl { address: address.into(), ..Sgl::in_capsule(length) };
            }
        };
        assert_eq!(code(capsule(&|_| ()).split_off(1)[..60].to_vec(), true), Code::INVALID_FIELD);
        assert_eq!(code(capsule(&|sqe| sqe.flags = 0), true), Code::INVALID_FIELD);
        assert_eq!(code(capsule(&|sqe| sqe.sgl.kind = 0x5a), true), Code::SGL_TYPE_INVALID);
        assert_eq!(code(capsule(&in_capsule(4096, 0)), true), Code::SGL_TYPE_INVALID);
        assert_eq!(code(capsule(&in_capsule(4096, 4097)), false), Code::SGL_OFFSET_INVALID);
        assert_eq!(code(capsule(&in_capsule(4096, u64::MAX)), false), Code::SGL_OFFSET_INVALID);
        assert_eq!(code(capsule(&in_capsule(2048, 0)), false), Code::DATA_SGL_LENGTH_INVALID);
        assert_eq!(code(capsule(&segment(0, 0)), true), Code::INVALID_SGL_SEGMENT);
        assert_eq!(code(capsule(&segment(24, 0)), true), Code::INVALID_SGL_SEGMENT);
        assert_eq!(code(capsule(&segment(16, 8192)), true), Code::SGL_OFFSET_INVALID);
        assert_eq!(code(capsule(&segment(16, 0)), true), Code::SGL_TYPE_INVALID);
        let mut many = Vec::new();
        let mut sqe = nvm::read(1, 0, 8);
        segment(17 * 16, 0)(&mut sqe);
        sqe.flags = 1 << 6;
        many.extend_from_slice(sqe.as_bytes());
        (0..17).for_each(|_| many.extend_from_slice(keyed.to_sgl().as_bytes()));
        assert_eq!(code(many, true), Code::SGL_DESCRIPTOR_COUNT_INVALID);
    }

    proptest! {
        /// Compares the memory that a host describes in a capsule with what the controller finds.
        // promise: RHO-9
        #[test]
        fn both_ends_mean_the_same_memory(list in prop::collection::vec(keyed(), 1..=KEYED_MAX)) {
            let bytes: u32 = list.iter().map(|k| k.bytes).sum();
            let mut capsule = Vec::new();
            put_keyed(nvm::read(1, 0, 8), &list, &mut capsule);
            let mut found = KeyedList::default();
            match of_capsule(&capsule, bytes, true, &mut found).unwrap() {
                Data::Keyed => {
                    prop_assert_eq!(found.as_slice(), &list[..]);
                    prop_assert_eq!(found.invalidates(), list.iter().find(|k| k.invalidate).map(|k| k.key));
                }
                other => prop_assert_eq!((other, bytes), (Data::None, 0)),
            }
        }

        #[test]
        fn data_in_the_capsule_are_found_there(data in prop::collection::vec(any::<u8>(), 1..500)) {
            let mut capsule = Vec::new();
            put_in_capsule(nvm::write(1, 0, 1, false), &data, &mut capsule);
            let found = of_capsule(&capsule, data.len() as u32, false, &mut KeyedList::default());
            prop_assert_eq!(found, Ok(Data::InCapsule(SQE_BYTES..capsule.len())));
            prop_assert_eq!(&capsule[SQE_BYTES..], &data[..]);
        }

        /// Anything may come; what passes lies in the capsule, and is as long as the data.
        // promise: RHO-9
        #[test]
        fn nonsense_is_survived(mut capsule in prop::collection::vec(any::<u8>(), 0..400), kind in prop::sample::select(vec![0x01u8, 0x31, 0x40, 0x4f, 0x5a]),
            length in 0u32..300, offset in 0u64..300, bytes in 0u32..400, to_host: bool) {
            if capsule.len() >= SQE_BYTES {
                let sgl = Sgl { address: offset.into(), length: length.into(), reserved: [0; 3], kind };
                capsule[1] = 1 << 6;
                capsule[24..40].copy_from_slice(sgl.as_bytes());
                for descriptor in capsule[SQE_BYTES..].chunks_exact_mut(16) {
                    descriptor[15] = 0x40;
                    descriptor[9..11].fill(0);
                }
            }
            let mut list = KeyedList::default();
            match of_capsule(&capsule, bytes, to_host, &mut list) {
                Ok(Data::InCapsule(range)) => {
                    prop_assert!(range.start >= SQE_BYTES && range.end <= capsule.len());
                    prop_assert_eq!(range.len(), bytes as usize);
                }
                Ok(Data::Keyed) => {
                    prop_assert_eq!(list.as_slice().iter().map(|k| k.bytes).sum::<u32>(), bytes);
                }
                Ok(Data::None) => prop_assert_eq!(bytes, 0),
                Err(status) => prop_assert!(status.do_not_retry),
            }
        }
    }
}
