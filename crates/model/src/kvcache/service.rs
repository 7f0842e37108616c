//! One rank: which request is served when, what it reads and writes, who waits for whom.
//!
//! Requests queue by class and arrival; as many are served at once as there are users, at most 500. Each reads the
//! earlier turns of its conversation, writes its own entry once it is admitted, and reads that again for every 32
//! tokens of output. Time is an argument: whoever plays the service moves the bytes, in whatever time that takes.

use super::cache::{Reserved, Tier, Tiers};
use super::script::{EndedIo, Player, Replayed};
use super::users::{rank_hash, Class, Remembered, Request, User};
use super::{KvSpec, Phase, JOIN_NS};
use crate::{Error, Latency};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use super::act::{Act, Ended};
pub use super::cache::Key;
pub use super::tally::{Counts, Occupied, Served, TierCount, Traced};

/// Tokens of output for each of which the entry is read again.
const TOKENS_A_READ: u32 = 32;
/// Completed requests that are listed one by one.
const LISTED_MAX: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Reads this earlier turn next.
    Earlier(u32),
    Admit,
    Place,
    /// Reads its own entry next, for the first time.
    Own,
    Again(u32),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Admission,
    Entry(Key),
    Reads(Key, u64),
    Writes(u64),
    Demotes(Key),
}

#[derive(Clone, Debug)]
struct Running {
    served: Served,
    /// Its own entry.
    own: Key,
    phase: Step,
    doing: Doing,
    since_ns: u64,
    /// Its entry was evicted before it could be read, and is written once more.
    writes_again: bool,
}

/// A rank's state. Feed it time (`advance`) and what came of its acts (`ended`).
pub struct Service {
    rank: u32,
    token_bytes: u64,
    window_ns: u64,
    admission: u32,
    users: Vec<User>,
    /// Each user's next request, by arrival.
    arrivals: BinaryHeap<Reverse<(u64, u32)>>,
    upcoming: Vec<Request>,
    queue: BinaryHeap<Reverse<(Class, u64, u32, Waiting)>>,
    slots: Vec<Option<Running>>,
    /// When each place was last left.
    left_ns: Vec<u64>,
    /// What the reference counts, read and written, and what of it once the window is over, and when.
    begun: [u64; 2],
    counted_late: Vec<(u64, [u64; 2])>,
    free: Vec<u32>,
    /// Slots that go on.
    ready: VecDeque<u32>,
    waits_for_admission: VecDeque<u32>,
    remembered: Remembered,
    admitted: u32,
    tiers: Tiers,
    /// States now, and their integral up to `marked_ns`.
    now: [u32; 5],
    integral: [f64; 6],
    marked_ns: u64,
    now_ns: u64,
    pub counts: Counts,
    pub read: Latency,
    pub written: Latency,
    pub served: Vec<Served>,
    pub trace: Vec<Traced>,
    /// In place of the users.
    replay: Option<Player>,
    spec: KvSpec,
}

/// What a queued request carries beside its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    conversation: u32,
    turn: u32,
    context: u32,
    output: u32,
    prompt: Option<u8>,
}

// Places in `Service::now`.
const SERVING: usize = 0;
const ADMISSION: usize = 1;
const ENTRY: usize = 2;
const READING: usize = 3;
const WRITING: usize = 4;
const FULL: usize = 5;

/// A user's entry where requests only read.
fn stock_of(user: u32) -> Key {
    Key { user, conversation: 0, turn: 0 }
}

impl Service {
    /// `capacity_bytes`: room for entries on storage.
    ///
    /// # Errors
    /// `Request`: the model is unknown.
    pub fn new(spec: &KvSpec, rank: u32, capacity_bytes: u64) -> Result<Service, Error> {
        let seed = spec.seed_of(rank);
        let mut users: Vec<User> = User::all(seed, spec.users).collect();
        let upcoming: Vec<Request> = users.iter_mut().map(User::ask).collect();
        let arrivals = (0..).zip(&upcoming).map(|(user, r)| Reverse((r.arrives_ns, user))).collect();
        Ok(Service {
            rank,
            token_bytes: spec.token_bytes()?,
            window_ns: spec.window_ns(),
            admission: spec.admission,
            users,
            arrivals,
            upcoming,
            queue: BinaryHeap::new(),
            slots: vec![None; spec.served_at_once() as usize],
            left_ns: vec![0; spec.served_at_once() as usize],
            begun: [0; 2],
            counted_late: Vec::new(),
            free: (0..spec.served_at_once()).rev().collect(),
            ready: VecDeque::new(),
            waits_for_admission: VecDeque::new(),
            remembered: Remembered::default(),
            admitted: 0,
            tiers: Tiers::new(spec.host_tier_bytes, capacity_bytes),
            now: [0; 5],
            integral: [0.0; 6],
            marked_ns: 0,
            now_ns: 0,
            counts: Counts::default(),
            read: Latency::default(),
            written: Latency::default(),
            served: Vec::new(),
            trace: Vec::new(),
            replay: spec.replay.clone().map(|script| Player::new(script, spec.served_at_once())),
            spec: spec.clone(),
        })
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Entries that are to be there before the first request: with their bytes.
    pub fn stock(&self) -> Vec<(Key, u64)> {
        let users = self.users.iter().filter(|_| self.spec.phase == Phase::Decode);
        users.map(|user| (stock_of(user.number()), u64::from(user.stock()) * self.token_bytes)).collect()
    }

    /// One of them is there.
    pub fn is_stocked(&mut self, key: Key, bytes: u64) {
        self.tiers.reserve_storage(bytes, &mut Vec::new());
        self.tiers.add(key, bytes, (bytes / self.token_bytes.max(1)) as u32, Tier::Storage);
    }

    /// When the next request comes; None once the window has no more.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        if let Some(player) = &self.replay {
            return player.next_arrival_ns();
        }
        self.arrivals.peek().map(|next| next.0 .0).filter(|at| *at < self.window_ns)
    }

    /// Nothing is being served, and nothing will be.
    pub fn is_over(&self, now_ns: u64) -> bool {
        if let Some(player) = &self.replay {
            return now_ns >= self.window_ns && player.is_over();
        }
        now_ns >= self.window_ns && self.free.len() == self.slots.len()
    }

    /// Requests that came and haven't been taken up.
    pub fn queued(&self) -> u64 {
        self.replay.as_ref().map_or(self.queue.len() as u64, Player::queued)
    }

    /// Outcome of a recorded trace so far.
    pub fn replayed(&self) -> Option<&Replayed> {
        self.replay.as_ref().map(|player| &player.done)
    }

    /// Stands for every request that was made so far.
    pub fn hash(&self) -> u64 {
        rank_hash(&self.spec, self.rank, self.users.iter().map(User::hash))
    }

    /// Moves time on: requests come, and are taken up where a place is free. What is to be done is added to `acts`.
    pub fn advance(&mut self, now_ns: u64, acts: &mut Vec<Act>) {
        self.mark(now_ns);
        if let Some(player) = &mut self.replay {
            return player.advance(now_ns, acts);
        }
        while let Some(at) = self.next_arrival_ns().filter(|at| *at <= now_ns) {
            let Some(Reverse((_, user))) = self.arrivals.pop() else { break };
            let next = self.users[user as usize].next_after(&self.upcoming[user as usize]);
            let request = std::mem::replace(&mut self.upcoming[user as usize], next);
            self.arrivals.push(Reverse((next.arrives_ns, user)));
            self.counts.offered += 1;
            self.remembered.touch(request.user, request.conversation);
            let Request { class, conversation, turn, context, output, prompt, .. } = request;
            self.queue.push(Reverse((
                class,
                at,
                user,
                Waiting { conversation, turn, context, output, prompt },
            )));
        }
        while now_ns < self.window_ns && !self.queue.is_empty() {
            let Some(slot) = self.free.pop() else { break };
            self.take_up(slot, now_ns);
        }
        self.go_on(now_ns, acts);
    }

    /// The read or write of `slot` is over.
    pub fn ended(&mut self, slot: u32, ended: Ended, now_ns: u64, acts: &mut Vec<Act>) {
        self.mark(now_ns);
        if let Some(player) = &mut self.replay {
            let over = player.ended(slot, ended, now_ns, acts);
            return over.into_iter().for_each(|over| self.count_replayed(over));
        }
        let Some(run) = &mut self.slots[slot as usize] else { return };
        let took = now_ns.saturating_sub(run.since_ns);
        let doing = std::mem::replace(&mut run.doing, Doing::Nothing);
        run.served.storage_ns += took;
        match doing {
            Doing::Reads(key, bytes) => self.has_read(slot, key, bytes, took, ended),
            Doing::Writes(bytes) => self.has_written(slot, bytes, took, ended, acts),
            Doing::Demotes(key) => self.has_demoted(slot, key, took, ended, acts),
            Doing::Nothing | Doing::Admission | Doing::Entry(_) => return,
        }
        self.go_on(now_ns, acts);
    }

    /// Counts states up to now, as far as the window goes.
    fn mark(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        let until = now_ns.min(self.window_ns);
        let span = until.saturating_sub(self.marked_ns) as f64;
        self.marked_ns = self.marked_ns.max(until);
        for (sum, count) in self.integral.iter_mut().zip(self.now) {
            *sum += span * f64::from(count);
        }
        if self.admitted >= self.admission {
            self.integral[FULL] += span;
        }
    }

    /// Bytes, read and written, that the reference counts: once the window is over it waits for each of its threads in
    /// turn, for 2 s at most, and then takes its sums. A read counts from its start, a write from its end.
    pub fn counted(&self) -> [u64; 2] {
        let wait = |now: u64, left: &u64| now.max((*left).min(now + JOIN_NS));
        let at = self.left_ns.iter().fold(self.window_ns, wait);
        let late = self.counted_late.iter().filter(|(when, _)| *when > at);
        late.fold(self.begun, |all, (_, bytes)| [all[0] - bytes[0], all[1] - bytes[1]])
    }

    fn count(&mut self, now_ns: u64, bytes: [u64; 2]) {
        self.begun = [self.begun[0] + bytes[0], self.begun[1] + bytes[1]];
        if now_ns > self.window_ns {
            self.counted_late.push((now_ns, bytes));
        }
    }

    fn note(&mut self, is_write: bool, tier: Tier, key: Key, bytes: u64, phase: &'static str) {
        if self.spec.trace && self.trace.len() < LISTED_MAX {
            let (at_ns, on_storage) = (self.now_ns, tier == Tier::Storage);
            self.trace.push(Traced { at_ns, is_write, on_storage, bytes, key, phase });
        }
    }

    /// Averages over the window so far.
    pub fn occupied(&self) -> Occupied {
        let mean = |state: usize| self.integral[state] / (self.marked_ns.max(1)) as f64;
        Occupied {
            serving: mean(SERVING),
            admission: mean(ADMISSION),
            entry: mean(ENTRY),
            reading: mean(READING),
            writing: mean(WRITING),
            full: mean(FULL),
        }
    }

    /// The counters, with what the tiers hold now.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for (count, tier) in [(&mut counts.host, Tier::Host), (&mut counts.storage, Tier::Storage)] {
            count.entries = self.tiers.count(tier);
            count.used_bytes = self.tiers.used[tier as usize];
        }
        counts.evicted = self.tiers.evicted;
        counts
    }

    fn take_up(&mut self, slot: u32, now_ns: u64) {
        let Some(Reverse((class, arrives_ns, user, waiting))) = self.queue.pop() else { return };
        let Waiting { conversation, turn, context, output, prompt } = waiting;
        let request = Request { arrives_ns, user, class, conversation, turn, context, output, prompt };
        if prompt.is_some() {
            // The reference looks a system prompt up and never writes one.
            self.counts.prompts += 1;
            self.counts.misses += 1;
        }
        let own = match self.spec.phase {
            Phase::Decode => stock_of(user),
            Phase::Both | Phase::Prefill => Key { user, conversation, turn },
        };
        let first = match self.spec.phase {
            Phase::Both if self.remembered.has(user, conversation) => Step::Earlier(1),
            Phase::Both | Phase::Prefill => Step::Admit,
            Phase::Decode => Step::Own,
        };
        let served = Served {
            request,
            started_ns: now_ns,
            ended_ns: 0,
            storage_ns: 0,
            prefill_ns: 0,
            decode_ns: 0,
            admission_ns: 0,
            entry_ns: 0,
        };
        self.slots[slot as usize] = Some(Running {
            served,
            own,
            phase: first,
            doing: Doing::Nothing,
            since_ns: now_ns,
            writes_again: false,
        });
        self.now[SERVING] += 1;
        self.ready.push_back(slot);
    }

    fn go_on(&mut self, now_ns: u64, acts: &mut Vec<Act>) {
        while let Some(slot) = self.ready.pop_front() {
            while self.step(slot, now_ns, acts) {}
        }
    }

    /// One step of a request; false where it waits for something, or is over.
    fn step(&mut self, slot: u32, now_ns: u64, acts: &mut Vec<Act>) -> bool {
        let Some(run) = &mut self.slots[slot as usize] else { return false };
        if let Doing::Entry(key) = run.doing {
            run.doing = Doing::Nothing;
            run.served.entry_ns += now_ns.saturating_sub(run.since_ns);
            self.now[ENTRY] -= 1;
            return self.read_entry(slot, key, now_ns, acts);
        }
        let Request { turn, output, .. } = run.served.request;
        let own = run.own;
        let reads = match self.spec.phase {
            Phase::Both => !run.served.request.is_prefill_only(),
            Phase::Prefill => false,
            Phase::Decode => true,
        };
        match run.phase {
            Step::Earlier(earlier) if earlier >= turn => {
                run.phase = Step::Admit;
                true
            }
            Step::Earlier(earlier) => {
                run.phase = Step::Earlier(earlier + 1);
                self.read_entry(slot, Key { turn: earlier, ..own }, now_ns, acts)
            }
            Step::Admit => self.admit(slot, own, now_ns),
            Step::Place => self.place(slot, own, now_ns, acts),
            Step::Own if run.writes_again || !reads => {
                run.phase = Step::Ended;
                true
            }
            Step::Own if self.tiers.get(own).is_none() => {
                self.counts.misses += 1;
                let writes = self.spec.phase == Phase::Both;
                (run.writes_again, run.phase) = (true, if writes { Step::Admit } else { Step::Ended });
                true
            }
            Step::Own => {
                run.phase = Step::Again(output.div_ceil(TOKENS_A_READ).max(1));
                self.read_entry(slot, own, now_ns, acts)
            }
            Step::Again(0) => {
                run.phase = Step::Ended;
                true
            }
            Step::Again(left) => {
                run.phase = Step::Again(left - 1);
                self.read_entry(slot, own, now_ns, acts)
            }
            Step::Ended => self.finish(slot, now_ns),
        }
    }

    fn finish(&mut self, slot: u32, now_ns: u64) -> bool {
        let Some(run) = self.slots[slot as usize].take() else { return false };
        let served = Served { ended_ns: now_ns, ..run.served };
        self.left_ns[slot as usize] = now_ns;
        self.now[SERVING] -= 1;
        self.counts.output_tokens += u64::from(served.request.output);
        self.counts.context_tokens += u64::from(served.request.context);
        self.counts.in_window += u64::from(now_ns <= self.window_ns);
        if self.served.len() < LISTED_MAX {
            self.served.push(served);
        }
        if now_ns < self.window_ns && !self.queue.is_empty() {
            self.take_up(slot, now_ns);
        } else {
            self.free.push(slot);
        }
        false
    }

    /// True where the request goes on at once: there is no such entry, or it lies in memory.
    fn read_entry(&mut self, slot: u32, key: Key, now_ns: u64, acts: &mut Vec<Act>) -> bool {
        let Some(run) = &mut self.slots[slot as usize] else { return false };
        let is_own = key == run.own;
        let Some(entry) = self.tiers.get_mut(key) else {
            self.counts.misses += 1;
            self.counts.earlier_misses += u64::from(!is_own);
            return true;
        };
        run.since_ns = now_ns;
        if entry.is_locked {
            entry.waiting.push_back(slot);
            run.doing = Doing::Entry(key);
            self.now[ENTRY] += 1;
            return false;
        }
        let (bytes, tier) = (entry.bytes, entry.tier);
        let on_storage = tier == Tier::Storage;
        entry.is_locked = on_storage;
        self.tiers.touch(key);
        self.counts.hits += 1;
        *(if is_own { &mut self.counts.own_hits } else { &mut self.counts.earlier_hits }) += 1;
        let count = if on_storage { &mut self.counts.storage } else { &mut self.counts.host };
        count.reads += 1;
        if !on_storage {
            count.read_bytes += bytes;
            self.note(false, Tier::Host, key, bytes, "Decode");
            self.pass_on(key);
            return true;
        }
        run.doing = Doing::Reads(key, bytes);
        self.now[READING] += 1;
        acts.push(Act::Read { slot, key, bytes });
        self.count(now_ns, [bytes, 0]);
        false
    }

    /// The next of those that wait for an entry may have it.
    fn pass_on(&mut self, key: Key) {
        if let Some(next) = self.tiers.get_mut(key).and_then(|entry| entry.waiting.pop_front()) {
            self.ready.push_back(next);
        }
    }

    fn unlock(&mut self, key: Key) {
        if let Some(entry) = self.tiers.get_mut(key) {
            entry.is_locked = false;
        }
        self.pass_on(key);
    }

    /// Removes an entry that turned out to be none; whoever waits for it finds that out.
    fn lose(&mut self, key: Key) {
        if let Some(entry) = self.tiers.remove(key) {
            self.ready.extend(entry.waiting);
        }
        self.counts.lost += 1;
    }

    fn has_read(&mut self, slot: u32, key: Key, bytes: u64, took: u64, ended: Ended) {
        self.now[READING] -= 1;
        if ended == Ended::Whole {
            self.counts.storage.read_bytes += bytes;
            self.counts.storage_tokens += self.tiers.get(key).map_or(0, |entry| u64::from(entry.tokens));
            self.read.record(took);
            self.note(false, Tier::Storage, key, bytes, "Decode");
            self.unlock(key);
        } else {
            self.lose(key);
        }
        if let Some(run) = &mut self.slots[slot as usize] {
            if key == run.own {
                run.served.decode_ns += took;
            }
        }
        self.ready.push_back(slot);
    }

    fn admit(&mut self, slot: u32, own: Key, now_ns: u64) -> bool {
        let Some(run) = &mut self.slots[slot as usize] else { return false };
        if run.doing == Doing::Admission {
            // Its turn has come; the place was passed on to it.
            run.doing = Doing::Nothing;
            run.served.admission_ns += now_ns.saturating_sub(run.since_ns);
            self.now[ADMISSION] -= 1;
        } else if self.tiers.get(own).is_some() {
            run.phase = Step::Own;
            return true;
        } else if self.admitted >= self.admission {
            (run.doing, run.since_ns) = (Doing::Admission, now_ns);
            self.now[ADMISSION] += 1;
            self.waits_for_admission.push_back(slot);
            return false;
        } else {
            self.admitted += 1;
        }
        run.phase = Step::Place;
        true
    }

    /// The write of a request is over: another may write.
    fn dismiss(&mut self) {
        match self.waits_for_admission.pop_front() {
            Some(next) => self.ready.push_back(next),
            None => self.admitted -= 1,
        }
    }

    fn place(&mut self, slot: u32, own: Key, now_ns: u64, acts: &mut Vec<Act>) -> bool {
        let Some(run) = &mut self.slots[slot as usize] else { return false };
        let tokens = run.served.request.context;
        let bytes = u64::from(tokens) * self.token_bytes;
        run.since_ns = now_ns;
        if self.tiers.host_takes(bytes) {
            match self.tiers.reserve_host(bytes) {
                Reserved::Yes => {
                    run.phase = Step::Own;
                    self.tiers.add(own, bytes, tokens, Tier::Host);
                    self.counts.host.writes += 1;
                    self.counts.host.written_bytes += bytes;
                    self.counts.entry_bytes.push(bytes);
                    self.note(true, Tier::Host, own, bytes, "Prefill");
                    self.dismiss();
                    return true;
                }
                Reserved::After(key) => {
                    run.doing = Doing::Demotes(key);
                    self.start_demotion(slot, key, acts);
                    return false;
                }
                Reserved::No => {}
            }
        }
        run.doing = Doing::Writes(bytes);
        self.now[WRITING] += 1;
        self.start_write(slot, own, bytes, acts);
        false
    }

    fn start_demotion(&mut self, slot: u32, key: Key, acts: &mut Vec<Act>) {
        let Some(entry) = self.tiers.get_mut(key) else { return };
        entry.is_locked = true;
        let bytes = entry.bytes;
        self.now[WRITING] += 1;
        self.start_write(slot, key, bytes, acts);
    }

    fn start_write(&mut self, slot: u32, key: Key, bytes: u64, acts: &mut Vec<Act>) {
        let mut gone = Vec::new();
        self.tiers.reserve_storage(bytes, &mut gone);
        acts.extend(gone.into_iter().map(|key| Act::Remove { key }));
        acts.push(Act::Write { slot, key, bytes });
    }

    /// Storage had no room: makes some and writes again. False where nothing more may go.
    fn make_room(&mut self, slot: u32, key: Key, bytes: u64, acts: &mut Vec<Act>) -> bool {
        let mut gone = Vec::new();
        if !self.tiers.is_full(&mut gone) {
            self.tiers.give_back(Tier::Storage, bytes);
            self.counts.given_up += 1;
            return false;
        }
        acts.extend(gone.into_iter().map(|key| Act::Remove { key }));
        acts.push(Act::Write { slot, key, bytes });
        true
    }

    fn count_replayed(&mut self, over: EndedIo) {
        let EndedIo { is_write, bytes, took_ns } = over;
        if is_write {
            self.counts.entry_bytes.push(bytes);
            return self.count_written(bytes, took_ns);
        }
        self.count(self.now_ns, [bytes, 0]);
        self.counts.storage.reads += 1;
        self.counts.storage.read_bytes += bytes;
        self.read.record(took_ns);
    }

    fn count_written(&mut self, bytes: u64, took: u64) {
        self.count(self.now_ns, [0, bytes]);
        self.counts.storage.writes += 1;
        self.counts.storage.written_bytes += bytes;
        self.counts.storage_tokens += bytes / self.token_bytes.max(1);
        self.written.record(took);
    }

    fn has_written(&mut self, slot: u32, bytes: u64, took: u64, ended: Ended, acts: &mut Vec<Act>) {
        let Some(run) = &mut self.slots[slot as usize] else { return };
        let (own, context) = (run.own, run.served.request.context);
        if ended == Ended::Full {
            run.doing = Doing::Writes(bytes);
            run.since_ns += took;
            if self.make_room(slot, own, bytes, acts) {
                return;
            }
        }
        let Some(run) = &mut self.slots[slot as usize] else { return };
        (run.doing, run.phase) =
            (Doing::Nothing, if ended == Ended::Whole { Step::Own } else { Step::Ended });
        run.served.prefill_ns += took;
        self.now[WRITING] -= 1;
        match ended {
            Ended::Whole => {
                self.tiers.add(own, bytes, context, Tier::Storage);
                self.count_written(bytes, took);
                self.counts.entry_bytes.push(bytes);
                self.note(true, Tier::Storage, own, bytes, "Prefill");
            }
            Ended::Lost => {
                self.tiers.give_back(Tier::Storage, bytes);
                self.counts.lost += 1;
            }
            Ended::Full => {}
        }
        self.dismiss();
        self.ready.push_back(slot);
    }

    fn has_demoted(&mut self, slot: u32, key: Key, took: u64, ended: Ended, acts: &mut Vec<Act>) {
        let bytes = self.tiers.get(key).map_or(0, |entry| entry.bytes);
        if ended == Ended::Full {
            if let Some(run) = &mut self.slots[slot as usize] {
                run.doing = Doing::Demotes(key);
                run.since_ns += took;
            }
            if self.make_room(slot, key, bytes, acts) {
                return;
            }
        }
        if let Some(run) = &mut self.slots[slot as usize] {
            run.doing = Doing::Nothing;
            run.served.prefill_ns += took;
        }
        self.now[WRITING] -= 1;
        match ended {
            Ended::Whole => {
                self.tiers.demote(key);
                self.counts.demoted += 1;
                self.count_written(bytes, took);
                self.note(false, Tier::Host, key, bytes, "Evict");
                self.note(true, Tier::Storage, key, bytes, "Evict");
                self.unlock(key);
            }
            Ended::Lost => {
                self.tiers.give_back(Tier::Storage, bytes);
                self.lose(key);
            }
            Ended::Full => self.lose(key),
        }
        self.ready.push_back(slot);
    }
}
