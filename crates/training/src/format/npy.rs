//! numpy's `.npy`: magic, version, length of the header, a Python dictionary with the type, the order and the shape,
//! then the array (numpy/lib/format.py).

use super::bounded::{u16_at, u32_at, Gather};
use super::{Damage, ParseSpec, Parser};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// numpy itself refuses longer ones by default.
const HEADER_BYTES_MAX: usize = 64 << 10;
const DIMENSIONS_MAX: usize = 64;

/// Contents of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub shape: Vec<u64>,
    /// None: a type of several fields, or of Python objects.
    pub item_bytes: Option<u64>,
    /// From the start of the file to the array's first byte.
    pub header_bytes: u64,
}

impl Array {
    /// Length of the whole file, if the type has a fixed size.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        let items = self.shape.iter().try_fold(1u64, |all, n| all.checked_mul(*n))?;
        items.checked_mul(self.item_bytes?)?.checked_add(self.header_bytes)
    }

    /// DLIO lays the samples of a file along the last of three axes; any other array is one sample.
    pub(crate) fn samples(&self) -> u64 {
        match self.shape.as_slice() {
            [_, _, samples] => *samples,
            _ => 1,
        }
    }
}

/// Gathers a header as bytes come by.
#[derive(Default)]
pub(crate) struct Head {
    gather: Gather,
    /// Length of the part before the dictionary; 0 until the version has come.
    fixed: usize,
}

impl Head {
    pub(crate) fn start(&mut self) {
        self.gather.start(MAGIC.len() + 2);
        self.fixed = 0;
    }

    /// Takes from the front of `bytes`; the array once its header is complete.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Array>, String> {
        loop {
            if !self.gather.fill(bytes) {
                return Ok(None);
            }
            let head = self.gather.bytes();
            if self.fixed == 0 {
                self.fixed = fixed_bytes(head)?;
                self.gather.extend(self.fixed - head.len());
            } else if head.len() == self.fixed {
                let length_bytes = self.fixed - MAGIC.len() - 2;
                let text =
                    if length_bytes == 2 { u16_at(head, 8) as usize } else { u32_at(head, 8) as usize };
                if text > HEADER_BYTES_MAX || text == 0 {
                    return Err(format!("the .npy header says that it has {text} bytes"));
                }
                self.gather.extend(text);
            } else {
                return parse(&head[self.fixed..], head.len() as u64).map(Some);
            }
        }
    }
}

/// Length of the part before the dictionary: magic, version, length.
fn fixed_bytes(head: &[u8]) -> Result<usize, String> {
    if &head[..6] != MAGIC {
        return Err("the .npy magic is missing".into());
    }
    match head[6] {
        1 => Ok(10),
        2 | 3 => Ok(12),
        version => Err(format!("the .npy header has version {version}, and 1 to 3 are known")),
    }
}

fn parse(text: &[u8], header_bytes: u64) -> Result<Array, String> {
    let text = std::str::from_utf8(text).map_err(|_| "the .npy header is not text")?;
    let bad = |key: &str| format!("the .npy header has no usable '{key}'");
    let order = value(text, "fortran_order").ok_or_else(|| bad("fortran_order"))?;
    if !order.starts_with("True") && !order.starts_with("False") {
        return Err(bad("fortran_order"));
    }
    let descr = value(text, "descr").ok_or_else(|| bad("descr"))?;
    let shape = value(text, "shape").and_then(shape).ok_or_else(|| bad("shape"))?;
    Ok(Array { shape, item_bytes: item_bytes(descr), header_bytes })
}

/// The text after `'key':`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let at = quoted.iter().find_map(|q| text.find(q.as_str()).map(|at| at + q.len()))?;
    Some(text[at..].trim_start().strip_prefix(':')?.trim_start())
}

/// `(3, 4,)`, `()`.
fn shape(text: &str) -> Option<Vec<u64>> {
    let inside = text.strip_prefix('(')?.split_once(')')?.0;
    let parts = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    let shape = parts.map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?;
    (shape.len() <= DIMENSIONS_MAX).then_some(shape)
}

/// `'<f4'`, `'|u1'`, `'<U10'`, `'<M8[ns]'`.
fn item_bytes(descr: &str) -> Option<u64> {
    let name = descr.strip_prefix(['\'', '"'])?.split(['\'', '"']).next()?;
    let name = name.strip_prefix(['<', '>', '|', '=']).unwrap_or(name);
    let mut letters = name.chars();
    let kind = letters.next()?;
    let digits = letters.as_str().split('[').next()?;
    let count: u64 = digits.parse().ok()?;
    match kind {
        'O' => None,
        'U' => count.checked_mul(4),
        _ => Some(count),
    }
}

/// A file of one array.
pub(crate) struct Npy {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    head: Head,
    array: Option<Array>,
    samples: u64,
}

impl Npy {
    pub(crate) fn new(spec: &ParseSpec) -> Npy {
        Npy {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            head: Head::default(),
            array: None,
            samples: 0,
        }
    }

    fn fits(&self, array: &Array) -> Result<(), Damage> {
        match array.file_bytes() {
            Some(bytes) if bytes != self.file_bytes => {
                let what =
                    format!("its header says {bytes} bytes in all, and the file has {}", self.file_bytes);
                return Err(Damage::new(0, 0, what));
            }
            None if array.item_bytes.is_some() => {
                return Err(Damage::new(0, 0, "the shape in the .npy header has more bytes than any file"));
            }
            _ => {}
        }
        expected(array.samples(), self.samples_per_file).map_err(|what| Damage::new(0, 0, what))
    }
}

/// Checks that the file holds as many samples as it should; 0: any number.
pub(super) fn expected(found: u64, asked: u64) -> Result<(), String> {
    if asked > 0 && found != asked {
        return Err(format!("the array holds {found} samples, not {asked}"));
    }
    Ok(())
}

impl Parser for Npy {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
        self.samples = 0;
        self.array = None;
        self.head.start();
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        self.at += bytes.len() as u64;
        if self.array.is_none() {
            let found = self.head.take(&mut bytes).map_err(|what| Damage::new(0, 0, what))?;
            if let Some(array) = found {
                self.fits(&array)?;
                self.array = Some(array);
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        let Some(array) = &self.array else {
            return Err(Damage::new(0, self.at, "the file ends inside the .npy header"));
        };
        if self.at != self.file_bytes {
            let what = format!("the file ends after {} of {} bytes", self.at, self.file_bytes);
            return Err(Damage::new(0, self.at, what));
        }
        self.samples = array.samples();
        Ok(())
    }

    fn samples(&self) -> u64 {
        self.samples
    }

    fn payload_bytes(&self) -> u64 {
        self.array.as_ref().map_or(0, |array| self.at - array.header_bytes)
    }
}
