//! Reads that go straight into a GPU, past the worker's slots: a queue for each stream,
//! over what the worker has for all of them.

use super::super::dataset::place_of;
use super::super::reading::Opened;
use super::super::Shared;
use super::{Active, Worker};
use forebay_io::arena::Mem;
use forebay_io::reactor::Reactor;
use forebay_model::Error;
use forebay_storage::path::straight::Lanes;

/// Returns the lanes that the worker's streams share; None if everything goes through the slots.
pub(super) fn lanes(
    shared: &Shared,
    depth: u32,
    reactor: &mut Reactor,
) -> Result<Option<Box<dyn Lanes>>, Error> {
    let (Some(straight), Some(to)) = (&shared.straight, &shared.board.destination) else {
        return Ok(None);
    };
    Ok(Some(straight.lanes(to, &shared.how, depth, reactor)?))
}

impl Worker {
    /// Opens a file whose turn has come, and has it known where it is to go straight. None: it can't be, which was
    /// dealt with.
    pub(super) fn open_file(&self, file: u32, rank: u32) -> std::io::Result<Option<Opened>> {
        let shared = &self.shared;
        let Some(straight) = &shared.straight else {
            return shared.data.open_file(file, shared.how.direct).map(Some);
        };
        if let Some(held) = straight.kept(file) {
            let (bytes, base) = (held.target.bytes, place_of(file));
            let open = Some(held.target.file.clone());
            return Ok(Some(Opened { file: open, held: Some(held), base, bytes, index: None }));
        }
        let mut opened = shared.data.open_file(file, shared.how.direct)?;
        let (Some(open), Some(to)) = (&opened.file, &shared.board.destination) else {
            return Ok(Some(opened));
        };
        if opened.bytes == 0 {
            return Ok(Some(opened));
        }
        let path = shared.data.name(file).into();
        match straight.hold(file, path, open, opened.bytes, to.turn_of(rank)) {
            Ok(held) => {
                opened.held = held;
                Ok(Some(opened))
            }
            Err(error) => {
                self.refused(file, error);
                Ok(None)
            }
        }
    }

    /// Gives the stream a queue of its own, where its file goes straight. False where it can't have one.
    pub(super) fn go_straight(&mut self, active: &mut Active) -> bool {
        let (Some(lanes), Some(held)) = (&self.lanes, &active.reading.held) else { return true };
        let turn = self.shared.board.destination.as_ref().map_or(0, |to| to.turn_of(active.rank));
        match lanes.queue(&held.target, turn, &mut self.reactor) {
            Ok(queue) => active.straight = Some(self.client.add(queue)),
            Err(error) => {
                self.refused(active.file, error);
                return false;
            }
        }
        true
    }

    /// Returns the destination of the next read of the stream, if it goes straight there. None: there is no room,
    /// which ends the run.
    pub(super) fn place_for(&mut self, index: usize) -> Option<Option<Mem>> {
        let active = self.actives[index].as_mut().expect("it was chosen");
        let Some(to) = self.shared.board.destination.as_ref().filter(|_| active.straight.is_some()) else {
            return Some(None);
        };
        match to.take(to.turn_of(active.rank)) {
            Ok(piece) => Some(Some(piece)),
            Err(error) => {
                active.goal = active.pushed;
                self.shared.board.fail(error);
                None
            }
        }
    }

    /// Why the read failed, in words.
    pub(super) fn note_of(&mut self, tag: u32) -> Option<Box<str>> {
        let at = self.notes.iter().position(|(of, _)| *of == tag)?;
        Some(self.notes.swap_remove(at).1)
    }
}
