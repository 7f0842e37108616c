//! The PDUs of NVMe/TCP as typed layouts (tcp, section 3.6.2).

use super::{Fatal, FatalStatus};
use crate::command::{Cqe, Sqe};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PDU-Type (tcp, section 3.6.1).
pub mod kind {
    pub const IC_REQ: u8 = 0x00;
    pub const IC_RESP: u8 = 0x01;
    pub const H2C_TERM_REQ: u8 = 0x02;
    pub const C2H_TERM_REQ: u8 = 0x03;
    pub const CAPSULE_CMD: u8 = 0x04;
    pub const CAPSULE_RESP: u8 = 0x05;
    pub const H2C_DATA: u8 = 0x06;
    pub const C2H_DATA: u8 = 0x07;
    pub const R2T: u8 = 0x09;
}

/// FLAGS of the common header (tcp, section 3.6.2.1 and each PDU's own).
pub mod flag {
    /// HDGSTF: a header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// LAST_PDU of H2CData and C2HData.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS of C2HData: no response capsule follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// DGST of ICReq and ICResp: which digests are wanted, or enabled.
pub mod digest {
    pub const HEADER: u8 = 1 << 0;
    pub const DATA: u8 = 1 << 1;

    /// The byte of a connection that uses these.
    pub fn used(header: bool, data: bool) -> u8 {
        (u8::from(header) * HEADER) | (u8::from(data) * DATA)
    }
}

/// Length of a header or data digest (CRC32C, little-endian).
pub const DIGEST_LEN: usize = 4;
/// Longest header that a termination request quotes (tcp, section 3.6.2.4).
pub const QUOTE_MAX: usize = 128;
/// A controller's MAXH2CDATA is at least this (tcp, section 3.6.2.3), and a multiple of 4.
pub const MAX_H2C_LEAST: u32 = 4096;
/// No PDU of ours carries more, so that PLEN can't overflow.
pub(super) const DATA_MAX: u32 = 1 << 30;
/// Largest HPDA and CPDA: PDU data aligned to 128 bytes (tcp, section 3.6.2.2).
pub const PDA_MAX: u8 = 31;

/// The common header, CH (tcp, section 3.6.2.1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommonHeader {
    pub kind: u8,
    pub flags: u8,
    /// HLEN: header length, without its digest.
    pub hlen: u8,
    /// PDO: where the data start, from the PDU's start.
    pub pdo: u8,
    /// PLEN: length of the whole PDU, digests and padding included.
    pub plen: U32,
}
const _: () = assert!(size_of::<CommonHeader>() == 8);

/// Offsets within the common header, as FEI names them.
pub mod at {
    pub const KIND: u32 = 0;
    pub const FLAGS: u32 = 1;
    pub const HLEN: u32 = 2;
    pub const PDO: u32 = 3;
    pub const PLEN: u32 = 4;
}

/// ICReq (tcp, section 3.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcReq {
    pub ch: CommonHeader,
    /// PFV: 0.
    pub format: U16,
    /// HPDA: what the host wants C2HData's data aligned to, in dwords, 0's based.
    pub hpda: u8,
    pub digests: u8,
    /// MAXR2T: R2Ts that a command may have outstanding, 0's based.
    pub max_r2t: U32,
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcReq>() == 128);

/// ICResp (tcp, section 3.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcResp {
    pub ch: CommonHeader,
    pub format: U16,
    /// CPDA: what the controller wants the data of capsules and H2CData aligned to.
    pub cpda: u8,
    pub digests: u8,
    /// MAXH2CDATA: longest data of one H2CData, bytes.
    pub max_h2c: U32,
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcResp>() == 128);

/// H2CTermReq and C2HTermReq (tcp, sections 3.6.2.4 and 3.6.2.5); the quoted header follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TermReq {
    pub ch: CommonHeader,
    /// FES.
    pub status: U16,
    /// FEI.
    pub field: U32,
    pub reserved: [u8; 10],
}
const _: () = assert!(size_of::<TermReq>() == 24);

/// CapsuleCmd (tcp, section 3.6.2.6).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleCmd {
    pub ch: CommonHeader,
    pub sqe: Sqe,
}
const _: () = assert!(size_of::<CapsuleCmd>() == 72);

/// CapsuleResp (tcp, section 3.6.2.7).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleResp {
    pub ch: CommonHeader,
    pub cqe: Cqe,
}
const _: () = assert!(size_of::<CapsuleResp>() == 24);

/// H2CData, C2HData and R2T share their shape (tcp, sections 3.6.2.8 to 3.6.2.10).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Transfer {
    pub ch: CommonHeader,
    /// CCCID: the command's identifier.
    pub cid: U16,
    /// TTAG: the controller's name for it; reserved in C2HData.
    pub tag: U16,
    /// DATAO, R2TO: offset within the command's data.
    pub offset: U32,
    /// DATAL, R2TL.
    pub len: U32,
    pub reserved: [u8; 4],
}
const _: () = assert!(size_of::<Transfer>() == 24);

/// Offsets of PDU specific fields, as FEI names them.
pub mod field {
    /// PFV of ICReq and ICResp.
    pub const FORMAT: u32 = 8;
    /// HPDA, CPDA.
    pub const PDA: u32 = 10;
    pub const DIGESTS: u32 = 11;
    /// MAXH2CDATA.
    pub const MAX_H2C: u32 = 12;
    /// CID of the completion in a CapsuleResp.
    pub const RESP_CID: u32 = 20;
    /// CCCID of H2CData, C2HData and R2T.
    pub const CID: u32 = 8;
    pub const TAG: u32 = 10;
    pub const LEN: u32 = 16;
}

/// Rules that both ends agreed on for incoming PDUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    pub header_digest: bool,
    pub data_digest: bool,
    /// PDO is a multiple of this: (HPDA or CPDA + 1) dwords.
    pub align: u32,
}

/// Kind of data that a PDU of some type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    Nothing,
    Perhaps,
    Data,
}

/// A PDU's parts, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Header and its digest.
    pub header: usize,
    /// Between them and the data.
    pub pad: u32,
    pub data: u32,
    pub data_digest: bool,
}

impl CommonHeader {
    /// The header of a PDU to send: `data` bytes, which start at a multiple of `rules.align`.
    pub(super) fn new(kind: u8, hlen: usize, data: u32, rules: &Rules) -> CommonHeader {
        let mut flags = 0;
        let mut plen = hlen as u32;
        let mut pdo = 0;
        if rules.header_digest {
            flags |= flag::HEADER_DIGEST;
            plen += DIGEST_LEN as u32;
        }
        if data > 0 {
            pdo = plen.next_multiple_of(rules.align);
            plen = pdo + data;
            if rules.data_digest {
                flags |= flag::DATA_DIGEST;
                plen += DIGEST_LEN as u32;
            }
        }
        CommonHeader { kind, flags, hlen: hlen as u8, pdo: pdo as u8, plen: plen.into() }
    }

    /// ICReq, ICResp and the termination requests: no digests.
    pub(super) fn plain(kind: u8, hlen: usize, data: usize) -> CommonHeader {
        CommonHeader { kind, flags: 0, hlen: hlen as u8, pdo: 0, plen: ((hlen + data) as u32).into() }
    }

    /// Checks lengths and flags of a PDU that came (tcp, sections 3.3.1 and 3.6.2.1).
    pub(super) fn parts(&self, hlen: usize, carries: Carries, rules: &Rules) -> Result<Parts, Fatal> {
        if usize::from(self.hlen) != hlen {
            return Err(invalid(at::HLEN, "HLEN isn't that of its PDU type"));
        }
        if (self.flags & flag::HEADER_DIGEST != 0) != rules.header_digest {
            return Err(invalid(at::FLAGS, "HDGSTF isn't what was agreed on"));
        }
        let header = hlen + if rules.header_digest { DIGEST_LEN } else { 0 };
        let plen = self.plen.get();
        if plen == header as u32 && carries != Carries::Data {
            return Ok(Parts { header, pad: 0, data: 0, data_digest: false });
        }
        if plen <= header as u32 || carries == Carries::Nothing {
            return Err(invalid(at::PLEN, "PLEN isn't that of its PDU type"));
        }
        self.data_parts(header, rules)
    }

    fn data_parts(&self, header: usize, rules: &Rules) -> Result<Parts, Fatal> {
        if (self.flags & flag::DATA_DIGEST != 0) != rules.data_digest {
            return Err(invalid(at::FLAGS, "DDGSTF isn't what was agreed on"));
        }
        let pdo = u32::from(self.pdo);
        if pdo < header as u32 || pdo % rules.align != 0 {
            return Err(invalid(at::PDO, "PDO lies in the header or isn't aligned"));
        }
        let around = pdo + if rules.data_digest { DIGEST_LEN as u32 } else { 0 };
        let plen = self.plen.get();
        if plen <= around {
            return Err(invalid(at::PLEN, "PLEN leaves no room for data"));
        }
        let pad = pdo - header as u32;
        Ok(Parts { header, pad, data: plen - around, data_digest: rules.data_digest })
    }
}

/// Compares the digest behind a header with what it should be (tcp, section 3.3.1.1).
pub(super) fn check_header_digest(header: &[u8], hlen: usize) -> Result<(), Fatal> {
    let came = U32::read_from_prefix(&header[hlen..]).map_or(0, |(digest, _)| digest.get());
    if came == crc32c::crc32c(&header[..hlen]) {
        return Ok(());
    }
    Err(Fatal::new(FatalStatus::HeaderDigest, came, "the header's digest is wrong"))
}

pub(super) fn invalid(field: u32, what: &'static str) -> Fatal {
    Fatal::new(FatalStatus::InvalidHeaderField, field, what)
}

/// A layout from the start of a header that is long enough.
pub(super) fn read<T: FromBytes>(header: &[u8]) -> T {
    match T::read_from_prefix(header) {
        Ok((layout, _)) => layout,
        Err(_) => unreachable!("the header was found to be long enough"),
    }
}

/// Returns the error of a termination request.
pub(super) fn ended_by_peer(term: &TermReq) -> Fatal {
    let (status, what) = match term.status.get() {
        1 => (
            FatalStatus::InvalidHeaderField,
            "the peer found an invalid PDU header field and ended the connection",
        ),
        2 => (FatalStatus::SequenceError, "the peer found a PDU out of sequence and ended the connection"),
        3 => (FatalStatus::HeaderDigest, "the peer found a wrong header digest and ended the connection"),
        4 => (FatalStatus::DataOutOfRange, "the peer found data out of range and ended the connection"),
        5 => (
            FatalStatus::LimitExceeded,
            "the peer found its R2T or data limit exceeded and ended the connection",
        ),
        6 => (
            FatalStatus::UnsupportedParameter,
            "the peer doesn't support a parameter and ended the connection",
        ),
        _ => (FatalStatus::InvalidHeaderField, "the peer ended the connection for a reason with no name"),
    };
    Fatal { status, field: term.field.get(), what, by_peer: true }
}

/// The termination request for `fatal`, which quotes the header that was wrong.
pub(super) fn term_req(kind: u8, fatal: &Fatal, quote: &[u8]) -> Vec<u8> {
    let quote = &quote[..quote.len().min(QUOTE_MAX)];
    let term = TermReq {
        ch: CommonHeader::plain(kind, size_of::<TermReq>(), quote.len()),
        status: (fatal.status as u16).into(),
        field: fatal.field.into(),
        reserved: [0; 10],
    };
    [term.as_bytes(), quote].concat()
}
