//! A file of the registry: its mapping, its windows, and what it was when they
//! were registered. Workers meet here without a lock while all goes well.

use super::identity::{stale, Identity};
use super::map::Mapping;
use crate::source::file::FileTarget;
use forebay_io::Fault;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not asked for yet.
    Cold,
    /// The registrar was told of it.
    Pending,
    /// The device may read it.
    Ready,
    /// It isn't cached, or the system wouldn't pin it, or it isn't worth a place: its bytes go another way.
    Declined,
    /// It is about to be unregistered.
    Retiring,
    /// It wasn't registered the first time, so that processors copy it meanwhile.
    Left,
}

const PHASES: [Phase; 6] =
    [Phase::Cold, Phase::Pending, Phase::Ready, Phase::Declined, Phase::Retiring, Phase::Left];
const PHASE_SHIFT: u32 = 28;
const USERS: u32 = (1 << PHASE_SHIFT) - 1;

/// A part of a file that is registered as a whole. Its phase, and how many pieces of I/Os wait for it or are
/// being copied from it, change together.
#[derive(Debug, Default)]
pub struct Window {
    state: AtomicU32,
    /// Bytes that were asked for while it wasn't registered.
    asked_bytes: AtomicU64,
}

fn phase_of(state: u32) -> Phase {
    PHASES[(state >> PHASE_SHIFT) as usize]
}

fn bits_of(phase: Phase) -> u32 {
    let at = PHASES.iter().position(|p| *p == phase).expect("every phase is listed");
    (at as u32) << PHASE_SHIFT
}

impl Window {
    pub fn phase(&self) -> Phase {
        phase_of(self.state.load(Ordering::Acquire))
    }

    pub fn users(&self) -> u32 {
        self.state.load(Ordering::Acquire) & USERS
    }

    /// One more piece depends on it: it isn't evicted before `release`. Answers with the phase.
    pub fn hold(&self) -> Phase {
        phase_of(self.state.fetch_add(1, Ordering::AcqRel))
    }

    pub fn release(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & USERS > 0, "released more often than held");
    }

    pub(super) fn set(&self, phase: Phase) {
        let to = |state: u32| Some((state & USERS) | bits_of(phase));
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, to);
    }

    /// From `Ready` to `Retiring`, if nobody holds it.
    pub(super) fn retire_if_idle(&self) -> bool {
        let (from, to) = (bits_of(Phase::Ready), bits_of(Phase::Retiring));
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// From `Ready` to `Retiring`, whoever holds it.
    pub(super) fn doom(&self) -> bool {
        let to = |s: u32| (phase_of(s) == Phase::Ready).then_some((s & USERS) | bits_of(Phase::Retiring));
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, to).is_ok()
    }

    /// Counts bytes that go another way; whether there were more than `enough` since that was last so.
    pub(super) fn was_asked(&self, bytes: u64, enough: u64) -> bool {
        let paid = self.asked_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > enough;
        if paid {
            self.asked_bytes.store(0, Ordering::Relaxed);
        }
        paid
    }
}

/// Identity of the file when its windows were registered, and the number of changes since.
struct Watch {
    /// None: its path doesn't lead to all of it any more.
    adopted: Option<Identity>,
    generation: u64,
    /// The last change, in words.
    words: &'static str,
}

/// Result of a look at the file.
pub struct Seen {
    /// Registrations of another generation may hold old bytes.
    pub generation: Result<u64, Fault>,
    /// It changed since the last look.
    pub changed: bool,
}

pub struct MappedFile {
    pub target: FileTarget,
    pub(super) number: u32,
    window_bytes: u64,
    windows: Vec<Window>,
    mapping: OnceLock<Result<Arc<Mapping>, String>>,
    watch: Mutex<Watch>,
    /// As in `watch`: nothing of it is to be delivered.
    lost: AtomicBool,
}

impl MappedFile {
    /// `mapping`: of all of the file, where it is mapped already. Page tables that are filled there needn't be again.
    pub(super) fn new(
        target: FileTarget,
        number: u32,
        window_bytes: u64,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<MappedFile, Fault> {
        let identity = Identity::read(&target.file, &target.path, target.is_device)?;
        let count = target.bytes.div_ceil(window_bytes).max(1);
        let adopted = identity.is_whole(target.bytes).then_some(identity);
        Ok(MappedFile {
            number,
            window_bytes,
            windows: (0..count).map(|_| Window::default()).collect(),
            mapping: mapping.map_or_else(OnceLock::new, |mapping| Ok(mapping).into()),
            lost: AtomicBool::new(adopted.is_none()),
            watch: Mutex::new(Watch {
                adopted,
                generation: 0,
                words: "it was replaced, or truncated, since it was opened",
            }),
            target,
        })
    }

    pub fn window(&self, number: u32) -> &Window {
        &self.windows[number as usize]
    }

    pub fn windows(&self) -> u32 {
        self.windows.len() as u32
    }

    /// Returns the window of a byte.
    pub fn window_of(&self, offset: u64) -> u32 {
        (offset / self.window_bytes) as u32
    }

    /// First byte, and length up to the end of the data.
    pub fn span(&self, window: u32) -> (u64, u64) {
        let from = u64::from(window) * self.window_bytes;
        (from, self.window_bytes.min(self.target.bytes.saturating_sub(from)))
    }

    /// The mapping; made when it is first needed.
    pub(super) fn mapping(&self) -> Result<&Mapping, &str> {
        let made = self
            .mapping
            .get_or_init(|| Mapping::new(&self.target).map(Arc::new).map_err(|e| format!("mmap: {e}")));
        made.as_deref().map_err(String::as_str)
    }

    /// Returns the device address of the byte at `offset` of a window that is ready.
    pub fn address(&self, offset: u64) -> NonNull<u8> {
        self.mapping().expect("a window is ready only if its file is mapped").address(offset)
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Looks whether the file is what it was. If it isn't, its registrations are as good as gone when this returns:
    /// no window that was ready before is ready after, and copies queued before belong to an older generation.
    pub fn examine(&self) -> Seen {
        let now = match Identity::read(&self.target.file, &self.target.path, self.target.is_device) {
            Ok(now) => now,
            Err(fault) => return Seen { generation: Err(fault), changed: false },
        };
        let mut watch = self.watch.lock().expect("nothing panics while it holds the watch");
        if watch.adopted == Some(now) {
            return Seen { generation: Ok(watch.generation), changed: false };
        }
        let before = watch.adopted.take();
        let changed = before.is_some();
        if let Some(before) = before {
            watch.words = before.change(&now);
            watch.generation += 1;
            for window in &self.windows {
                window.doom();
            }
        }
        watch.adopted = now.is_whole(self.target.bytes).then_some(now);
        self.lost.store(watch.adopted.is_none(), Ordering::Release);
        let good_again = !changed && watch.adopted.is_some();
        let generation =
            if good_again { Ok(watch.generation) } else { Err(stale(&self.target.path, watch.words)) };
        Seen { generation, changed }
    }

    /// The fault of a read whose copy belongs to a generation that has passed.
    pub(crate) fn outdated(&self) -> Fault {
        let watch = self.watch.lock().expect("nothing panics while it holds the watch");
        stale(&self.target.path, watch.words)
    }

    /// Marks a window ready, unless the file changed since `generation`.
    pub(super) fn make_ready(&self, window: u32, generation: u64) -> bool {
        let watch = self.watch.lock().expect("nothing panics while it holds the watch");
        let same = watch.generation == generation && watch.adopted.is_some();
        if same {
            self.windows[window as usize].set(Phase::Ready);
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_and_users_change_apart() {
        let window = Window::default();
        assert_eq!((window.phase(), window.users()), (Phase::Cold, 0));
        window.set(Phase::Ready);
        assert_eq!(window.hold(), Phase::Ready);
        assert!(!window.retire_if_idle(), "somebody copies from it");
        assert!(window.doom() && !window.doom());
        assert_eq!((window.phase(), window.users()), (Phase::Retiring, 1));
        window.release();
        window.set(Phase::Ready);
        assert!(window.retire_if_idle());
    }

    #[test]
    fn asking_often_enough_pays_and_starts_anew() {
        let window = Window::default();
        let answers: Vec<bool> = (0..6).map(|_| window.was_asked(4, 8)).collect();
        assert_eq!(answers, [false, false, true, false, false, true]);
    }
}
