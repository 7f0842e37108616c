//! Book in which a queue's owner notes its state, in memory that outlives it, so that another process goes on where it
//! was killed: at any instruction.
//!
//! The host's memory says what was completed (phase tags), its doorbells say what it asked for. Only this is known to
//! nobody else: how many commands were taken of each submission queue, copies of those that have no completion yet (the
//! host may reuse an entry once any later completion passed it), and how many completions there were. Each step is one
//! store, after what it stands for:
//!
//! - Taken: the copy, then its slot's tag, then the count. A tag beyond the count was not taken.
//! - Completed: the entry in the host's memory, then the tag, then the count. At most one entry lies beyond the count, and
//!   its phase tag tells; whose it is stands in it.

use crate::command::Sqe;
use zerocopy::{FromBytes, IntoBytes};

/// Words of memory that outlives its process. Stores are made in the order of their calls.
pub trait Words: std::fmt::Debug + Send {
    fn load(&self, word: usize) -> u64;
    fn store(&self, word: usize, value: u64);
}

/// Completions that were written and counted.
const COMPLETED: usize = 0;
/// Position of the host's head.
const HEAD: usize = 1;
/// The host has written the completion queue's shadow doorbell.
const HEARD: usize = 2;
/// Position of the submission queues' words, by their number.
const SUBMISSIONS: usize = 8;
/// Flag of a submission queue's word: the host has written its shadow doorbell. Below it: commands that were taken.
const SUBMISSION_HEARD: u64 = 1 << 63;
/// A slot: tag, what it came to, and the command.
const SLOT_WORDS: usize = 2 + SQE_WORDS;
const SQE_WORDS: usize = size_of::<Sqe>() / 8;
/// Shift of the submission queue in a tag. Below: which of its commands, counted from 1.
const POSITION_BITS: u32 = 48;
const POSITION: u64 = (1 << POSITION_BITS) - 1;

/// Words that a completion queue needs at most, with so many slots, where submission queues have numbers up to `queues`.
pub fn words(queues: u16, slots: u16) -> usize {
    SUBMISSIONS + usize::from(queues) + 1 + usize::from(slots) * SLOT_WORDS
}

/// A completion queue's notes.
#[derive(Debug)]
pub struct Book {
    words: Box<dyn Words>,
    queues: u16,
}

/// A command that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub slot: u16,
    pub sqid: u16,
    /// Among those of its submission queue, from 0.
    pub position: u64,
    pub sqe: Sqe,
}

impl Book {
    /// `queues`: the highest number of a submission queue. Words beyond `words(queues, slots)` aren't touched.
    pub fn new(words: Box<dyn Words>, queues: u16) -> Book {
        Book { words, queues }
    }

    /// A new completion queue's.
    pub(super) fn begin(&self, slots: u16, heard: bool) {
        self.words.store(COMPLETED, 0);
        self.words.store(HEAD, 0);
        self.set_heard(heard);
        (0..=self.queues).for_each(|sqid| self.begin_submission(sqid, false));
        (0..slots).for_each(|slot| self.free(slot));
    }

    /// A new submission queue's; before its host hears that it is there. `heard`: its shadow doorbell counts from the
    /// start.
    pub fn begin_submission(&self, sqid: u16, heard: bool) {
        if sqid <= self.queues {
            self.words.store(SUBMISSIONS + usize::from(sqid), if heard { SUBMISSION_HEARD } else { 0 });
        }
    }

    fn submission(&self, sqid: u16) -> u64 {
        match sqid <= self.queues {
            true => self.words.load(SUBMISSIONS + usize::from(sqid)),
            false => 0,
        }
    }

    fn slot(&self, slot: u16) -> usize {
        SUBMISSIONS + usize::from(self.queues) + 1 + usize::from(slot) * SLOT_WORDS
    }

    /// Commands that were taken of a submission queue.
    pub(super) fn taken_of(&self, sqid: u16) -> u64 {
        self.submission(sqid) & !SUBMISSION_HEARD
    }

    pub(super) fn submission_heard(&self, sqid: u16) -> bool {
        self.submission(sqid) & SUBMISSION_HEARD != 0
    }

    pub(super) fn set_submission_heard(&self, sqid: u16, heard: bool) {
        if sqid <= self.queues {
            let flag = if heard { SUBMISSION_HEARD } else { 0 };
            self.words.store(SUBMISSIONS + usize::from(sqid), self.taken_of(sqid) | flag);
        }
    }

    pub(super) fn heard(&self) -> bool {
        self.words.load(HEARD) != 0
    }

    pub(super) fn set_heard(&self, heard: bool) {
        self.words.store(HEARD, heard.into());
    }

    pub(super) fn head(&self) -> u64 {
        self.words.load(HEAD)
    }

    pub(super) fn set_head(&self, head: u16) {
        self.words.store(HEAD, head.into());
    }

    pub(super) fn completed(&self) -> u64 {
        self.words.load(COMPLETED)
    }

    /// One completion more was written.
    pub(super) fn complete(&self) {
        self.words.store(COMPLETED, self.completed().wrapping_add(1));
    }

    /// The next command of a submission queue is in this slot.
    pub(super) fn take(&self, slot: u16, sqid: u16, sqe: &Sqe) {
        let (at, position) = (self.slot(slot), self.taken_of(sqid));
        for (n, word) in (2..).zip(sqe.as_bytes().chunks_exact(8)) {
            self.words.store(at + n, word.try_into().map_or(0, u64::from_le_bytes));
        }
        self.words.store(at + 1, 0);
        self.words.store(at, u64::from(sqid) << POSITION_BITS | (position + 1) & POSITION);
        if sqid <= self.queues {
            self.words.store(SUBMISSIONS + usize::from(sqid), self.submission(sqid) + 1);
        }
    }

    /// Its command is over.
    pub(super) fn free(&self, slot: u16) {
        let at = self.slot(slot);
        if self.words.load(at) != 0 {
            self.words.store(at, 0);
        }
    }

    /// It may have changed something by now.
    pub(super) fn set_begun(&self, slot: u16) {
        self.words.store(self.slot(slot) + 1, 1);
    }

    pub(super) fn is_begun(&self, slot: u16) -> bool {
        self.words.load(self.slot(slot) + 1) != 0
    }

    /// The command in a slot, if it was taken: of a queue that is there, and counted.
    pub(super) fn noted(&self, slot: u16) -> Option<Noted> {
        let at = self.slot(slot);
        let tag = self.words.load(at);
        let (sqid, position) = ((tag >> POSITION_BITS) as u16, (tag & POSITION).checked_sub(1)?);
        if position >= self.taken_of(sqid) {
            return None;
        }
        let mut bytes = [0; size_of::<Sqe>()];
        for (n, to) in (2..).zip(bytes.chunks_exact_mut(8)) {
            to.copy_from_slice(&self.words.load(at + n).to_le_bytes());
        }
        Some(Noted { slot, sqid, position, sqe: Sqe::read_from_bytes(&bytes).ok()? })
    }
}
