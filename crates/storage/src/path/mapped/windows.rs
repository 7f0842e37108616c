//! The windows of a queue's file, as its reader comes to them: which pieces are copied out of them, which wait, and which go
//! another way.

use super::file::{MappedFile, Phase, Window};
use super::flights::{Piece, PieceState};
use super::registry::{Registry, Wakeup};
use super::turns::Turn;
use crate::source::file::FileTarget;
use forebay_io::{Fault, Io, Reactor};
use forebay_model::Error;
use std::ptr::NonNull;
use std::sync::Arc;

/// A piece at least this long waits for its window even where its reader jumps about.
const WAITS_BYTES: u32 = 1 << 20;
/// Breaks that a reader in order may have, and still count as one.
const STREAK_MAX: u32 = 64;

/// Way of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowUse {
    /// Its window is held, and may be read.
    Copy,
    /// Its window is held, and is decided on later; the queue is woken then.
    Wait,
    /// No window serves it.
    Another,
}

pub(super) struct Windows {
    registry: Arc<Registry>,
    file: Arc<MappedFile>,
    wakeup: Arc<Wakeup>,
    /// Next offset of a reader in order; None before the first I/O.
    expected: Option<u64>,
    streak: u32,
    /// The window that the registry was last asked for as the reader came to it.
    reached: Option<u32>,
}

impl Windows {
    pub(super) fn new(
        registry: Arc<Registry>,
        target: &FileTarget,
        reactor: &mut Reactor,
    ) -> Result<Windows, Error> {
        let file = registry.file(target).map_err(|fault| {
            Error::run(format!("map {}", target.path.display()), fault.to_string(), "‹path› bounce")
        })?;
        let waker = reactor.waker()?;
        let wakeup = Wakeup::new(move || waker.wake());
        Ok(Windows { registry, file, wakeup, expected: None, streak: 0, reached: None })
    }

    pub(super) fn file(&self) -> &MappedFile {
        &self.file
    }

    pub(super) fn window(&self, number: u32) -> &Window {
        self.file.window(number)
    }

    /// The device's address of the byte at `offset`, in a window that is ready.
    pub(super) fn address(&self, offset: u64) -> NonNull<u8> {
        self.file.address(offset)
    }

    /// Cuts `bytes` from `offset` on at the windows' edges: window, offset and length of each part.
    pub(super) fn cuts(&self, offset: u64, bytes: u32) -> impl Iterator<Item = (u32, u64, u32)> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            (done < bytes).then(|| {
                let offset = offset + u64::from(done);
                let window = self.file.window_of(offset);
                let (from, len) = self.file.span(window);
                let len = (from + len - offset).min(u64::from(bytes - done)) as u32;
                done += len;
                (window, offset, len)
            })
        })
    }

    /// Notes whether the reader goes through the file in order, by and large.
    pub(super) fn follow(&mut self, io: &Io) {
        let in_order = self.expected.is_none_or(|at| at == io.offset);
        self.expected = Some(io.offset + u64::from(io.len));
        self.streak = if in_order { (self.streak + 1).min(STREAK_MAX) } else { self.streak / 4 };
    }

    /// Notes that it doesn't: nobody reads ahead of it.
    pub(super) fn jump(&mut self) {
        (self.expected, self.streak) = (None, 0);
    }

    /// Decides on a piece that is fresh or waiting. Unless it goes another way, it holds its window from now on.
    pub(super) fn way_of(&mut self, piece: &mut Piece) -> WindowUse {
        if piece.place == PieceState::Waiting {
            return self.way_of_waiting(piece.window);
        }
        let window = self.file.window(piece.window);
        let streams = self.streak > 0;
        let arrives = streams && self.reached != Some(piece.window);
        let mut phase = window.phase();
        if arrives || !matches!(phase, Phase::Ready | Phase::Pending) {
            self.reached = Some(piece.window);
            let bytes = u64::from(piece.len);
            if phase == Phase::Ready || self.registry.pays(&self.file, piece.window, bytes, streams) {
                phase = self.registry.ask(&self.file, piece.window, streams, None);
            }
        }
        if phase == Phase::Pending && (streams || piece.len >= WAITS_BYTES) {
            piece.place = PieceState::Waiting;
            window.hold();
            // Asked again under the lock: should it have been decided on just now, no wake-up would ring.
            return match self.registry.ask(&self.file, piece.window, false, Some(&self.wakeup)) {
                Phase::Pending => WindowUse::Wait,
                _ => self.way_of_waiting(piece.window),
            };
        }
        match window.hold() {
            Phase::Ready => WindowUse::Copy,
            _ => self.let_go(piece.window),
        }
    }

    fn way_of_waiting(&self, window: u32) -> WindowUse {
        match self.file.window(window).phase() {
            Phase::Ready => WindowUse::Copy,
            Phase::Pending => WindowUse::Wait,
            _ => self.let_go(window),
        }
    }

    fn let_go(&self, window: u32) -> WindowUse {
        self.file.window(window).release();
        WindowUse::Another
    }

    /// Looks whether the file is what it was: the generation of its registrations.
    pub(super) fn current_generation(&self) -> Result<u64, Fault> {
        self.registry.current_generation(&self.file)
    }

    /// As `current_generation`, where the file was found to be another before.
    pub(super) fn look_again(&self) -> Result<(), Fault> {
        match self.file.is_lost() {
            true => self.current_generation().map(drop),
            false => Ok(()),
        }
    }

    /// The fault of a read whose copy belongs to a generation that has passed.
    pub(super) fn outdated(&self) -> Fault {
        self.file.outdated()
    }

    /// A turn with the driver, while it lasts.
    pub(super) fn turn(&self) -> Turn<'_> {
        self.registry.turns().enter()
    }

    /// Withdraws the wake-up that the registrar promised.
    pub(super) fn answered(&self) {
        self.registry.answered(&self.wakeup);
    }
}
