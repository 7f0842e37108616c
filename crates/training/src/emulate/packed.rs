//! A data set in one address space (a block device, a stripe, a remote namespace, a
//! file): its manifest, then the files one after another.

use super::manifest::{Manifest, FILE_ALIGN, TEXT_BYTES_MAX};
use super::reading::Opened;
use forebay_io::{
    monotonic_now, ring_refusal, Arena, Client, CompletionEnd, Op, Reactor, RingOptions, Submission,
};
use forebay_model::job::Pages;
use forebay_model::training::EmulateSpec;
use forebay_model::units::format_bytes;
use forebay_model::Error;
use forebay_storage::{examine, Purpose, QueueNeeds, Target};
use std::path::Path;
use std::time::Duration;

/// The manifest is read in pieces of this.
const PIECE_BYTES: u64 = 1 << 20;
/// A source that says nothing for so long has no manifest to give.
const PATIENCE: Duration = Duration::from_secs(30);

/// Files of an address space, by where they begin.
#[derive(Debug)]
pub(crate) struct Packed {
    pub target: Target,
    begins: Vec<u64>,
    bytes: Vec<u64>,
}

impl Packed {
    pub(crate) fn open(spec: &EmulateSpec, workers: u32) -> Result<Packed, Error> {
        let purpose = Purpose {
            sources: spec.data.clone(),
            cache: spec.cache,
            engine: spec.engine,
            workers,
            workers_most: workers,
            seed: spec.seed,
            units: vec![("the manifest's reads", PIECE_BYTES)],
            ..Purpose::default()
        };
        let opened = examine(&purpose)?.open(&purpose, &mut Purpose::fills_nothing)?;
        let [target] = opened.targets.as_slice() else {
            return Err(Error::request(
                format!("--data {}", spec.data.join(" ")),
                "is neither folders of files nor a single source",
                "--data DIR, or one block device, stripe or namespace",
            ));
        };
        let manifest = read_manifest(target)?;
        manifest.fits(spec, Path::new(&target.label))?;
        let begins = lay_out(&manifest, target.bytes).map_err(|found| bad(target, found))?;
        Ok(Packed { target: target.clone(), begins, bytes: manifest.file_bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn name(&self, file: u32) -> String {
        format!("file {file} of {}, at {}", self.target.label, self.begins[file as usize])
    }

    pub(crate) fn opened(&self, file: u32) -> Opened {
        let file = file as usize;
        Opened { file: None, held: None, base: self.begins[file], bytes: self.bytes[file], index: None }
    }
}

fn bad(target: &Target, found: String) -> Error {
    let next = "forebay emulate datagen --data URI, which packs a data set there";
    Error::request(format!("--data {}", target.label), found, next)
}

/// Returns the offset of each file.
///
/// # Errors
/// What in the manifest can't be.
pub(crate) fn lay_out(manifest: &Manifest, bytes: u64) -> Result<Vec<u64>, String> {
    if manifest.file_bytes.len() as u64 != manifest.files {
        let listed = manifest.file_bytes.len();
        return Err(format!("its manifest says {} files and lists {listed}", manifest.files));
    }
    if manifest.data_begin % FILE_ALIGN != 0 {
        return Err(format!("its manifest says that files begin at {}", manifest.data_begin));
    }
    let mut end = manifest.data_begin;
    let mut begins = Vec::with_capacity(manifest.file_bytes.len());
    for file in &manifest.file_bytes {
        begins.push(end);
        let next = file.checked_next_multiple_of(FILE_ALIGN).and_then(|padded| end.checked_add(padded));
        end = next.ok_or("its manifest lists files that no address space has room for")?;
    }
    if end > bytes {
        let (wants, has) = (format_bytes(end), format_bytes(bytes));
        return Err(format!("its manifest lists files up to {wants}, and it has {has}"));
    }
    Ok(begins)
}

/// The text at the begin, up to its NUL.
fn read_manifest(target: &Target) -> Result<Manifest, Error> {
    let needs = QueueNeeds::new(1, PIECE_BYTES).then_copied();
    let options = RingOptions { depth: target.ring_depth(needs).max(8), ..RingOptions::default() };
    let mut reactor = Reactor::with_ring(options).unwrap_or_else(|_| Reactor::without_ring());
    let mut arena = match target.maps_slots() {
        true => Arena::shared(1, PIECE_BYTES as usize, Pages::Auto)?,
        false => Arena::new(1, PIECE_BYTES as usize, Pages::Auto)?,
    };
    let lent = target.lend(&arena)?;
    let mut client = Client::new(1, false, (), |slot| arena.slot(slot));
    let queue = client.add(target.queue(needs, &mut reactor)?);
    let mut text: Vec<u8> = Vec::new();
    let result = loop {
        let at = text.len() as u64;
        let len = PIECE_BYTES.min(target.bytes.saturating_sub(at)) / FILE_ALIGN * FILE_ALIGN;
        if len == 0 || at >= TEXT_BYTES_MAX {
            break Err(bad(target, "there is no manifest of a data set at its beginning".into()));
        }
        let submission =
            Submission { queue, op: Op::Read, offset: at, len: len as u32, want: len as u32, owner: () };
        match read_piece(&mut client, &mut reactor, submission) {
            Ok(()) => {}
            Err(found) => {
                break Err(Error::run(
                    format!("read {}", target.label),
                    found,
                    "dmesg | tail; forebay doctor",
                ))
            }
        }
        let piece = &arena.slot_bytes_mut(0)[..len as usize];
        let end = piece.iter().position(|byte| *byte == 0);
        text.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if at == 0 && !text.starts_with(b"{") {
            break Err(bad(target, "there is no manifest of a data set at its beginning".into()));
        }
        if end.is_some() {
            let text = String::from_utf8_lossy(&text);
            break Manifest::parse(&text).map_err(|found| bad(target, format!("its manifest: {found}")));
        }
    };
    if client.in_flight() > 0 {
        // The device may still write there.
        std::mem::forget((client, reactor, arena, lent));
    } else {
        client.close(&mut reactor);
    }
    result
}

fn read_piece(
    client: &mut Client<()>,
    reactor: &mut Reactor,
    submission: Submission<()>,
) -> Result<(), String> {
    let tag = client.begin(submission, monotonic_now()).expect("nothing is under way");
    client.push(tag, reactor);
    let mut ended = None;
    let drained = client.drain(reactor, monotonic_now() + PATIENCE, |client, over| {
        client.release(over.tag);
        ended = Some(over.end);
    });
    match ended.filter(|_| drained) {
        None => Err(match reactor.refused() {
            Some(why) => ring_refusal(&why),
            None => "it didn't answer for 30 s".into(),
        }),
        Some(CompletionEnd::Whole) => Ok(()),
        Some(CompletionEnd::Early) => Err("it ends before its manifest does".into()),
        Some(CompletionEnd::Failed(fault) | CompletionEnd::GivenUp(fault)) => Err(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn manifest(data_begin: u64, file_bytes: Vec<u64>) -> Manifest {
        Manifest { files: file_bytes.len() as u64, data_begin, file_bytes, ..Manifest::default() }
    }

    proptest! {
        /// Files lie behind each other on blocks, inside the address space, or the manifest is refused.
        // promise: TRA-13
        #[test]
        fn files_never_overlap(begin in 0u64..1 << 21, sizes in prop::collection::vec(any::<u64>(), 0..40), bits in 0u32..64, bytes: u64) {
            let sizes: Vec<u64> = sizes.iter().map(|size| size >> bits).collect();
            let Ok(begins) = lay_out(&manifest(begin / 4096 * 4096, sizes.clone()), bytes) else { return Ok(()) };
            for (i, begin) in begins.iter().enumerate() {
                let end = begin + sizes[i];
                prop_assert!(begin % 4096 == 0 && end <= bytes);
                prop_assert!(begins.get(i + 1).is_none_or(|next| *next >= end));
            }
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_is_refused() {
        let refused = |manifest: Manifest| lay_out(&manifest, 1 << 30).unwrap_err();
        assert!(refused(manifest(100, vec![1])).contains("begin at 100"));
        assert!(refused(manifest(4096, vec![u64::MAX])).contains("no address space"));
        assert!(refused(manifest(4096, vec![1 << 30])).contains("up to"));
        let miscounted = Manifest { files: 3, ..manifest(4096, vec![1]) };
        assert!(refused(miscounted).contains("says 3 files and lists 1"));
    }
}
