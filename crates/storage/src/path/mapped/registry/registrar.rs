//! The thread that registers windows with the GPU, and lets go of them.

use super::super::file::MappedFile;
use super::super::file::Phase;
use super::super::map::Pin;
use super::super::policy::Key;
use super::super::policy::Verdict;
use super::super::turns::Turns;
use super::add;
use super::page_up;
use super::Refusal;
use super::RegistryState;
use super::Request;
use super::Shared;
use super::POLL_INTERVAL;
use super::REST_MAX;
use super::WAY;
use forebay_io::monotonic_now;
use std::sync::atomic::Ordering;
use std::sync::MutexGuard;
use std::time::Duration;

/// Next step of the registrar for a request.
pub(super) enum Step {
    Register,
    Unregister(Vec<Key>),
    Decline,
    /// Windows that stand in the way are in use.
    Later,
}

impl Shared {
    pub(super) fn serve(&self) {
        let mut state = self.lock();
        while !state.stop {
            state = self.let_go(state);
            state = self.unregister_doomed(state);
            let Some(request) = state.prepared.pop_front() else {
                state = self.idle(state);
                continue;
            };
            let Some(file) = state.files.get(&request.key.file).cloned() else { continue };
            let window = file.window(request.key.window);
            match self.next_step(&mut state, &file, &request) {
                Step::Decline => Self::decide(&mut state, request.key, window, Phase::Declined, &self.turns),
                Step::Register => {
                    let gently = request.gently && !state.waiting.contains_key(&request.key);
                    drop(state);
                    let began = monotonic_now();
                    state = self.register(&file, request.key);
                    let took = began.elapsed();
                    drop(state);
                    self.turns.give_way(WAY);
                    if gently {
                        std::thread::sleep(took.min(REST_MAX));
                    }
                    state = self.lock();
                }
                Step::Unregister(keys) => {
                    state.prepared.push_front(request);
                    add(&self.counts.eviction_batches, 1);
                    add(&self.counts.evictions, keys.len() as u64);
                    state = self.unregister(state, &keys);
                }
                // Nobody waits for it: it can be asked for again.
                Step::Later if window.users() == 0 => {
                    Self::decide(&mut state, request.key, window, Phase::Cold, &self.turns);
                }
                Step::Later => {
                    state.prepared.push_front(request);
                    state = self.wait(state, POLL_INTERVAL);
                }
            }
        }
    }

    pub(super) fn idle<'a>(&'a self, state: MutexGuard<'a, RegistryState>) -> MutexGuard<'a, RegistryState> {
        if state.stop {
            state
        } else if state.doomed.is_empty() && state.leaving.is_empty() {
            self.work.wait(state).expect("nothing panics while it holds the registry")
        } else {
            self.wait(state, POLL_INTERVAL)
        }
    }

    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, RegistryState>,
        at_most: Duration,
    ) -> MutexGuard<'a, RegistryState> {
        self.work.wait_timeout(state, at_most).expect("nothing panics while it holds the registry").0
    }

    pub(super) fn next_step(&self, state: &mut RegistryState, file: &MappedFile, request: &Request) -> Step {
        let (_, len) = file.span(request.key.window);
        // An earlier registration of it may still be in use by copies of what the file was.
        if state.pins.contains_key(&request.key) {
            return Step::Later;
        }
        match state.policy.admit(request.key, page_up(len), request.streams) {
            Verdict::Register => Step::Register,
            Verdict::Refuse => Step::Decline,
            Verdict::Evict(keys) => {
                let files = &state.files;
                let idle = |k: &Key| files[&k.file].window(k.window).retire_if_idle();
                let keys: Vec<Key> = keys.into_iter().filter(idle).collect();
                if keys.is_empty() {
                    Step::Later
                } else {
                    Step::Unregister(keys)
                }
            }
        }
    }

    /// Says what became of a window to those who wait for it.
    pub(super) fn decide(
        state: &mut RegistryState,
        key: Key,
        window: &super::super::file::Window,
        phase: Phase,
        turns: &Turns,
    ) {
        window.set(phase);
        Self::tell(state, key, turns);
    }

    pub(super) fn tell(state: &mut RegistryState, key: Key, turns: &Turns) {
        for wakeup in state.waiting.remove(&key).unwrap_or_default() {
            if !wakeup.promised.swap(true, Ordering::SeqCst) {
                turns.promise();
            }
            (wakeup.ring)();
        }
    }

    /// Registers a window that was admitted. Called without the lock, returns with it.
    pub(super) fn register(&self, file: &MappedFile, key: Key) -> MutexGuard<'_, RegistryState> {
        let (from, len) = file.span(key.window);
        let made = self.try_to_register(file, from, len);
        let mut state = self.lock();
        let window = file.window(key.window);
        let generation = match made {
            Ok((pin, generation)) => {
                state.pins.insert(key, pin);
                Some(generation)
            }
            Err(refusal) => {
                state.policy.removed(key);
                self.note(&mut state, refusal);
                None
            }
        };
        match generation {
            Some(generation) if file.make_ready(key.window, generation) => {
                Self::tell(&mut state, key, &self.turns);
            }
            // It changed in the last moment: its pages may be old.
            Some(_) => {
                let pin = state.pins.remove(&key);
                drop(state);
                drop(pin);
                state = self.lock();
                state.policy.removed(key);
                Self::decide(&mut state, key, window, Phase::Declined, &self.turns);
            }
            None => Self::decide(&mut state, key, window, Phase::Declined, &self.turns),
        }
        state
    }

    pub(super) fn try_to_register(
        &self,
        file: &MappedFile,
        from: u64,
        len: u64,
    ) -> Result<(Box<dyn Pin>, u64), Refusal> {
        let before = self.current_generation(file).map_err(|_| Refusal::Changed)?;
        let mapping = file.mapping().map_err(|why| Refusal::Refused(why.to_string(), false))?;
        let began = monotonic_now();
        let pin = self
            .pinner
            .pin(mapping.address(from), page_up(len) as usize)
            .map_err(|why| Refusal::Refused(why.to_string(), why.is_out_of_memory()));
        let took = began.elapsed();
        // A range that was cut off meanwhile is refused too, and that is no fault of the system's.
        let after = self.current_generation(file).map_err(|_| Refusal::Changed)?;
        let pin = pin?;
        if after != before {
            return Err(Refusal::Changed);
        }
        self.rate(len, took);
        add(&self.counts.registrations, 1);
        add(&self.counts.registered_bytes, len);
        add(&self.counts.register_ns, took.as_nanos() as u64);
        Ok((pin, after))
    }

    pub(super) fn note(&self, state: &mut RegistryState, refusal: Refusal) {
        match refusal {
            Refusal::Changed => {}
            Refusal::Uncached => add(&self.counts.uncached, 1),
            Refusal::Refused(why, no_memory) => {
                add(&self.counts.refused, 1);
                state.refusal.get_or_insert(why);
                if no_memory {
                    state.policy.shrink();
                    self.fits.store(state.policy.fits(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Files that left are forgotten once nothing of them is registered.
    pub(super) fn let_go<'a>(
        &'a self,
        mut state: MutexGuard<'a, RegistryState>,
    ) -> MutexGuard<'a, RegistryState> {
        let leaving = std::mem::take(&mut state.leaving);
        for number in leaving {
            let is_its = |key: &Key| key.file == number;
            state.requests.retain(|request| !is_its(&request.key));
            state.prepared.retain(|request| !is_its(&request.key));
            state.waiting.retain(|key, _| !is_its(key));
            let pinned: Vec<Key> = state.pins.keys().filter(|key| is_its(key)).copied().collect();
            if pinned.is_empty() {
                if let Some(file) = state.files.remove(&number) {
                    state.policy.remove_file(file.target.bytes);
                    self.fits.store(state.policy.fits(), Ordering::Relaxed);
                }
                continue;
            }
            state.leaving.push(number);
            let file = state.files[&number].clone();
            for key in pinned {
                file.window(key.window).doom();
                if !state.doomed.contains(&key) {
                    state.doomed.push(key);
                }
            }
        }
        state
    }

    /// Ends the registrations of changed files that nobody uses any more.
    pub(super) fn unregister_doomed<'a>(
        &'a self,
        mut state: MutexGuard<'a, RegistryState>,
    ) -> MutexGuard<'a, RegistryState> {
        if state.doomed.is_empty() {
            return state;
        }
        let doomed = std::mem::take(&mut state.doomed);
        let (idle, busy): (Vec<Key>, Vec<Key>) =
            doomed.into_iter().partition(|k| state.files[&k.file].window(k.window).users() == 0);
        state.doomed = busy;
        if idle.is_empty() {
            state
        } else {
            self.unregister(state, &idle)
        }
    }

    /// Unregisters windows that are `Retiring`, without the lock meanwhile.
    pub(super) fn unregister<'a>(
        &'a self,
        mut state: MutexGuard<'a, RegistryState>,
        keys: &[Key],
    ) -> MutexGuard<'a, RegistryState> {
        let pins: Vec<Box<dyn Pin>> = keys.iter().filter_map(|k| state.pins.remove(k)).collect();
        drop(state);
        drop(pins);
        self.turns.give_way(WAY);
        let mut state = self.lock();
        for key in keys {
            state.policy.removed(*key);
            let file = state.files[&key.file].clone();
            Self::decide(&mut state, *key, file.window(key.window), Phase::Cold, &self.turns);
        }
        state
    }
}
