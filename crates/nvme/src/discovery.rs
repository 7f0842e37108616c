//! The discovery log (LID 70h; base, section 5.16.1.23): the subsystems of a discovery service, and its referrals.

use crate::layout::layout;
use crate::log::{lid, GetLogPage};
use crate::nqn::{Nqn, NqnError, NqnField};
use crate::text::Text;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

layout! {
    /// Head of the log (base, figure "Discovery Log Page").
    Header, 1024 bytes {
        /// Generation Counter: another number whenever the log changed.
        0 genctr: U64,
        /// Number of Records.
        8 numrec: U64,
        /// Record Format, 0.
        16 recfmt: U16,
        18 reserved_18: [u8; 1006],
    }
}

layout! {
    /// Discovery Log Page Entry (base, figure of that name).
    Entry, 1024 bytes {
        /// Transport Type: `trtype`.
        0 trtype: u8,
        /// Address Family: `adrfam`.
        1 adrfam: u8,
        /// Subsystem Type: `subtype`.
        2 subtype: u8,
        /// Transport Requirements: bits 1:0, secure channel not specified (0), required (1), not required (2).
        3 treq: u8,
        /// Port ID.
        4 portid: U16,
        /// Controller ID; FFFFh: dynamic.
        6 cntlid: U16,
        /// Admin Max SQ Size, entries.
        8 asqsz: U16,
        /// Entry Flags: bit 0, duplicate returned information; bit 1, explicit persistent connection supported.
        10 eflags: U16,
        12 reserved_12: [u8; 20],
        /// Transport Service Identifier; a port number in decimal.
        32 trsvcid: Text<32>,
        64 reserved_64: [u8; 192],
        256 subnqn: NqnField,
        /// Transport Address.
        512 traddr: Text<256>,
        /// Transport Specific Address Subtype; TCP: byte 0 is SECTYPE, `sectype` (tcp, section 3.1). RDMA: `RDMA_TSAS`.
        768 tsas: [u8; 256],
    }
}

/// Transport types, and their names in `nvme` and in URIs.
pub mod trtype {
    pub const RDMA: u8 = 1;
    pub const FC: u8 = 2;
    pub const TCP: u8 = 3;
    pub const LOOP: u8 = 254;

    pub const NAMES: &[(u8, &str)] = &[(RDMA, "rdma"), (FC, "fc"), (TCP, "tcp"), (LOOP, "loop")];
}

/// Address families.
pub mod adrfam {
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const INFINIBAND: u8 = 3;
    pub const FC: u8 = 4;

    pub const NAMES: &[(u8, &str)] =
        &[(IPV4, "ipv4"), (IPV6, "ipv6"), (INFINIBAND, "infiniband"), (FC, "fc")];
}

/// Subsystem types.
pub mod subtype {
    /// A referral to another discovery service.
    pub const REFERRAL: u8 = 1;
    pub const NVM: u8 = 2;
    /// The discovery subsystem that was asked.
    pub const CURRENT: u8 = 3;

    pub const NAMES: &[(u8, &str)] = &[
        (REFERRAL, "discovery subsystem"),
        (NVM, "nvm subsystem"),
        (CURRENT, "current discovery subsystem"),
    ];
}

/// Secure channel of TREQ, bits 1:0.
pub mod treq {
    pub const REQUIRED: u8 = 1;
    pub const NOT_REQUIRED: u8 = 2;

    pub const NAMES: &[(u8, &str)] =
        &[(0, "not specified"), (REQUIRED, "required"), (NOT_REQUIRED, "not required")];
}

/// Entry flags.
pub mod eflags {
    /// DUPRETINFO: the same subsystem is told of by other entries of this log.
    pub const DUPLICATE: u16 = 1 << 0;
    /// EPCSD: a connection may be kept to hear of changes.
    pub const PERSISTENT: u16 = 1 << 1;
}

/// SECTYPE of TCP (tcp, section 3.1).
pub mod sectype {
    pub const NONE: u8 = 0;
    pub const TLS_1_2: u8 = 1;
    pub const TLS_1_3: u8 = 2;

    pub const NAMES: &[(u8, &str)] = &[(NONE, "none"), (TLS_1_2, "tls"), (TLS_1_3, "tls13")];
}

/// TSAS of RDMA: reliable connections (RDMA_QPTYPE), by no particular provider (RDMA_PRTYPE), which rdma_cm makes
/// (RDMA_CMS).
const RDMA_TSAS: [u8; 3] = [1, 1, 1];

/// A value's name in one of the tables here; None: it has none.
pub fn name_of(names: &[(u8, &'static str)], value: u8) -> Option<&'static str> {
    names.iter().find(|(known, _)| *known == value).map(|(_, name)| *name)
}

/// Endpoint of a subsystem (base, figure 263, Discovery Log Page Entry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// 3: TCP, 1: RDMA.
    pub transport: u8,
    /// 1: IPv4, 2: IPv6.
    pub family: u8,
    /// 1: referral to another discovery service, 2: NVM subsystem, 3: this discovery subsystem.
    pub kind: u8,
    /// TREQ: bits 1:0 secure channel not specified, required, not required.
    pub requirements: u8,
    /// PORTID.
    pub port: u16,
    /// 0xffff: controllers are given dynamically.
    pub controller: u16,
    /// ASQSZ: entries of the admin queue.
    pub admin_entries: u16,
    /// EFLAGS.
    pub flags: u16,
    /// TRSVCID: the port number in decimal.
    pub service: String,
    pub nqn: String,
    /// TRADDR.
    pub address: String,
    /// SECTYPE of TCP's TSAS: 0 none, 2 TLS 1.3.
    pub security: u8,
}

impl Entry {
    /// A name that isn't one is an empty field; addresses are cut to their field.
    pub fn new(endpoint: &Endpoint) -> Entry {
        let mut entry = Entry {
            trtype: endpoint.transport,
            adrfam: endpoint.family,
            subtype: endpoint.kind,
            treq: endpoint.requirements,
            portid: endpoint.port.into(),
            cntlid: endpoint.controller.into(),
            asqsz: endpoint.admin_entries.into(),
            eflags: endpoint.flags.into(),
            trsvcid: Text::new(&endpoint.service),
            subnqn: Nqn::new(&endpoint.nqn).map_or([0; 256], |nqn| nqn.to_field()),
            traddr: Text::new(&endpoint.address),
            ..Entry::default()
        };
        match endpoint.transport {
            trtype::RDMA => entry.tsas[..RDMA_TSAS.len()].copy_from_slice(&RDMA_TSAS),
            _ => entry.tsas[0] = endpoint.security,
        }
        entry
    }

    /// Err: its name is none. Service and address are printable, and no more than that is known of them.
    pub fn endpoint(&self) -> Result<Endpoint, NqnError> {
        Ok(Endpoint {
            transport: self.trtype,
            family: self.adrfam,
            kind: self.subtype,
            requirements: self.treq,
            port: self.portid.get(),
            controller: self.cntlid.get(),
            admin_entries: self.asqsz.get(),
            flags: self.eflags.get(),
            service: self.trsvcid.text(),
            nqn: Nqn::from_field(&self.subnqn)?.as_str().to_owned(),
            address: self.traddr.text(),
            security: if self.trtype == trtype::RDMA { 0 } else { self.tsas[0] },
        })
    }
}

/// The log's bytes: head and entries. `GetLogPage::part` cuts out what a host asked for.
pub fn log<'a>(generation: u64, endpoints: impl IntoIterator<Item = &'a Endpoint>) -> Vec<u8> {
    let mut header = Header { genctr: generation.into(), ..Header::default() };
    let mut bytes = header.as_bytes().to_vec();
    for endpoint in endpoints {
        bytes.extend_from_slice(Entry::new(endpoint).as_bytes());
    }
    header.numrec = (bytes.len() as u64 / 1024 - 1).into();
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    bytes
}

/// Most entries that are read of one log.
pub const ENTRIES_MAX: u64 = 4096;
/// Number of times that a log may change under its reader.
const RESTARTS_MAX: u32 = 8;

/// Content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    pub generation: u64,
    pub endpoints: Vec<Endpoint>,
    /// Entries whose name is none: which, from 0, and why.
    pub malformed: Vec<(u64, NqnError)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("a log of {0} entries, where {ENTRIES_MAX} are read at most")]
    TooMany(u64),
    #[error("record format {0}, where 0 is known")]
    Format(u16),
    #[error("{found} bytes came, where {asked} were asked for")]
    Short { asked: u32, found: usize },
    #[error("the log changed while it was read, {RESTARTS_MAX} times")]
    Unsteady,
}

/// Reads a log piece by piece: head, entries, and the head again, which says whether it was one log all the time; if
/// not, from the start.
#[derive(Clone, Debug)]
pub struct Reader {
    chunk_bytes: u32,
    state: ReaderState,
    log: Log,
    restarts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Head,
    /// The next entry, and how many there are.
    Entries {
        next: u64,
        count: u64,
    },
    /// `short`: a piece that came short, by which the log may tell that it shrank.
    HeadAgain {
        count: u64,
        short: Option<ReadError>,
    },
    Done,
}

impl Reader {
    /// `transfer_bytes`: longest transfer that the controller takes.
    pub fn new(transfer_bytes: u32) -> Reader {
        let chunk_bytes = (transfer_bytes / 1024).clamp(1, 64) * 1024;
        Reader { chunk_bytes, state: ReaderState::Head, log: Log::default(), restarts: 0 }
    }

    /// The next command to send. None: everything was read, see `log`.
    pub fn next_command(&self) -> Option<GetLogPage> {
        match self.state {
            ReaderState::Head | ReaderState::HeadAgain { .. } => {
                Some(GetLogPage::new(lid::DISCOVERY, 0, 1024))
            }
            ReaderState::Entries { next, count } => {
                let bytes = u64::from(self.chunk_bytes).min((count - next) * 1024);
                Some(GetLogPage::new(lid::DISCOVERY, (next + 1) * 1024, bytes as u32))
            }
            ReaderState::Done => None,
        }
    }

    /// Takes the log's bytes; none where the controller refused: the log may be shorter by now.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        let Some(asked) = self.next_command() else { return Ok(()) };
        let asked = asked.bytes as u32;
        let whole = bytes.get(..asked as usize).ok_or(ReadError::Short { asked, found: bytes.len() });
        self.state = match (self.state, whole) {
            (ReaderState::Head, whole) => self.head(whole?)?,
            (ReaderState::Entries { next, count }, Ok(bytes)) => self.entries(bytes, next, count),
            (ReaderState::Entries { count, .. }, Err(short)) => {
                ReaderState::HeadAgain { count, short: Some(short) }
            }
            (ReaderState::HeadAgain { count, short }, whole) => self.head_again(whole?, count, short)?,
            (ReaderState::Done, _) => ReaderState::Done,
        };
        Ok(())
    }

    fn head(&mut self, bytes: &[u8]) -> Result<ReaderState, ReadError> {
        let header = Header::read(bytes).copied().unwrap_or_default();
        if header.recfmt.get() != 0 {
            return Err(ReadError::Format(header.recfmt.get()));
        }
        let count = header.numrec.get();
        if count > ENTRIES_MAX {
            return Err(ReadError::TooMany(count));
        }
        self.log = Log { generation: header.genctr.get(), ..Log::default() };
        Ok(if count == 0 { ReaderState::Done } else { ReaderState::Entries { next: 0, count } })
    }

    fn entries(&mut self, bytes: &[u8], next: u64, count: u64) -> ReaderState {
        let entries = <[Entry]>::ref_from_bytes(bytes).unwrap_or_default();
        for (index, entry) in (next..).zip(entries) {
            match entry.endpoint() {
                Ok(endpoint) => self.log.endpoints.push(endpoint),
                Err(why) => self.log.malformed.push((index, why)),
            }
        }
        match next + entries.len() as u64 {
            next if next < count => ReaderState::Entries { next, count },
            _ => ReaderState::HeadAgain { count, short: None },
        }
    }

    fn head_again(
        &mut self,
        bytes: &[u8],
        count: u64,
        short: Option<ReadError>,
    ) -> Result<ReaderState, ReadError> {
        let header = Header::read(bytes).copied().unwrap_or_default();
        if (header.genctr.get(), header.numrec.get()) == (self.log.generation, count) {
            return short.map_or(Ok(ReaderState::Done), Err);
        }
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            return Err(ReadError::Unsteady);
        }
        self.head(bytes)
    }

    /// Complete once `next_command` is None.
    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn into_log(self) -> Log {
        self.log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(number: u16) -> Endpoint {
        Endpoint {
            transport: trtype::TCP,
            family: adrfam::IPV4,
            kind: if number == 0 { subtype::REFERRAL } else { subtype::NVM },
            requirements: treq::NOT_REQUIRED,
            port: number,
            controller: 0xffff,
            admin_entries: 32,
            flags: eflags::PERSISTENT,
            service: "4420".into(),
            nqn: format!("nqn.2014-08.org.example:disk{number}"),
            address: "192.0.2.1".into(),
            security: sectype::NONE,
        }
    }

    /// Reads all of it; `change` may put another page in place of it before each answer.
    fn read(
        mut page: Vec<u8>,
        transfer: u32,
        mut change: impl FnMut(&mut Vec<u8>),
    ) -> Result<Log, ReadError> {
        let mut reader = Reader::new(transfer);
        while let Some(get) = reader.next_command() {
            assert!(get.bytes <= 64 << 10 && get.bytes.max(1024) <= u64::from(transfer.max(1024)));
            change(&mut page);
            let part = get.part(&page).unwrap_or_default();
            reader.take(part)?;
        }
        Ok(reader.into_log())
    }

    #[test]
    fn a_log_survives_being_read_in_pieces() {
        for count in [0, 1, 7, 200] {
            let endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
            let page = log(9, &endpoints);
            for transfer in [512, 4096, 1 << 20] {
                let found = read(page.clone(), transfer, |_| ()).unwrap();
                assert_eq!(found, Log { generation: 9, endpoints: endpoints.clone(), malformed: vec![] });
            }
        }
    }

    #[test]
    fn a_log_that_changes_is_read_again_and_not_for_ever() {
        let endpoints: Vec<Endpoint> = (0..7).map(endpoint).collect();
        for change_at in 2..5 {
            let mut calls = 0;
            let found = read(log(1, &endpoints), 2048, |page| {
                calls += 1;
                if calls == change_at {
                    *page = log(2, &endpoints[..2]);
                }
            });
            let now = Log { generation: 2, endpoints: endpoints[..2].to_vec(), malformed: vec![] };
            assert_eq!(found, Ok(now), "changed before call {change_at}");
        }
        let mut generation = 0;
        let unsteady = read(log(0, &endpoints), 1 << 20, |page| {
            generation += 1;
            *page = log(generation, &endpoints);
        });
        assert_eq!(unsteady, Err(ReadError::Unsteady));
    }

    #[test]
    fn entries_without_a_name_are_told_and_the_rest_is_read() {
        let mut page = log(1, &[endpoint(1), endpoint(2)]);
        page[1024 + 256] = b'x';
        let found = read(page, 4096, |_| ()).unwrap();
        assert_eq!((found.endpoints, found.malformed), (vec![endpoint(2)], vec![(0, NqnError::Form)]));
    }

    #[test]
    fn a_log_that_lies_is_refused() {
        let header = |change: fn(&mut Header)| {
            let mut header = Header::default();
            change(&mut header);
            read(header.as_bytes().to_vec(), 4096, |_| ())
        };
        assert_eq!(header(|head| head.numrec = u64::MAX.into()), Err(ReadError::TooMany(u64::MAX)));
        assert_eq!(header(|head| head.recfmt = 1.into()), Err(ReadError::Format(1)));
        assert_eq!(header(|head| head.numrec = 1.into()), Err(ReadError::Short { asked: 1024, found: 0 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_to_an_end(
            pages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1024..4096), 1..4),
            counts in prop::collection::vec(0..3u64, 40),
        ) {
            let mut reader = Reader::new(2048);
            for (turn, count) in counts.iter().enumerate() {
                let mut page = pages[turn % pages.len()].clone();
                page[8..16].copy_from_slice(&count.to_le_bytes());
                page[16..18].fill(0);
                if reader.next_command().is_none() || reader.take(&page).is_err() {
                    break;
                }
            }
            prop_assert!(reader.log().endpoints.len() + reader.log().malformed.len() <= 3);
        }
    }
}
