//! What users ask for, and when: a function of seed, rank and user alone.
//!
//! A user doesn't wait for answers: it thinks, asks, and thinks again. How fast storage is changes when a request is
//! served, never which requests there are.

use super::python::Python;
use super::KvSpec;
use crate::random::{derive, mix, Below, Xoshiro256};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Chance of a request to begin another conversation.
const NEW_CONVERSATION: f64 = 0.2;
/// Chance of a request to begin with a system prompt, and the words of the three that there are: the reference takes each
/// for a token.
const SYSTEM_PROMPT: f64 = 0.2;
const PROMPT_TOKENS: [u32; 3] = [5, 8, 6];
/// A conversation is over after so many turns.
pub const TURNS_MAX: u32 = 50;
/// Conversations that a rank remembers.
const CONVERSATIONS_MAX: usize = 1000;
/// Contexts from here on are only written, never read by the request that wrote them.
pub const PREFILL_ONLY: u32 = 10_000;
/// Users up to these shares are interactive, and responsive; all others are batch.
const INTERACTIVE: f64 = 0.15;
const RESPONSIVE: f64 = 0.5;
/// A think time varies by this share to either side.
const JITTER: f64 = 0.2;

/// Quality of service that a user is promised; the first is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    Interactive,
    Responsive,
    Batch,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Interactive, Class::Responsive, Class::Batch];

    pub fn name(self) -> &'static str {
        match self {
            Class::Interactive => "interactive",
            Class::Responsive => "responsive",
            Class::Batch => "batch",
        }
    }

    /// P95 that the reference promises, ms.
    pub fn target_p95_ms(self) -> f64 {
        match self {
            Class::Interactive => 50.0,
            Class::Responsive => 100.0,
            Class::Batch => 1000.0,
        }
    }
}

/// Ranges of one type of user: tokens of context, tokens of output, seconds of thinking.
struct Type {
    context: (u32, u32),
    output: (u32, u32),
    think_s: (f64, f64),
}

/// Chatbot, coding, document.
const TYPES: [Type; 3] = [
    Type { context: (512, 4096), output: (50, 200), think_s: (0.1, 0.5) },
    Type { context: (4096, 25_000), output: (100, 500), think_s: (0.2, 1.0) },
    Type { context: (4096, 16_384), output: (200, 800), think_s: (0.3, 1.5) },
];

/// Requests of one user in a second, the mean of the three types' at their mean think times.
pub const USER_RATE: f64 = (1.0 / 0.3 + 1.0 / 0.6 + 1.0 / 0.9) / 3.0;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Since the run began, ns.
    pub arrives_ns: u64,
    pub user: u32,
    pub class: Class,
    /// Both count from 1.
    pub conversation: u32,
    pub turn: u32,
    /// Tokens that are written: the prompt's words are taken off.
    pub context: u32,
    pub output: u32,
    /// One of the system prompts begins it.
    pub prompt: Option<u8>,
}

impl Request {
    /// Its entry is written, and not read again by itself.
    pub fn is_prefill_only(&self) -> bool {
        // The reference decides before it takes the prompt off.
        self.context + self.prompt_tokens() >= PREFILL_ONLY
    }

    fn prompt_tokens(&self) -> u32 {
        self.prompt.map_or(0, |which| PROMPT_TOKENS[usize::from(which) % PROMPT_TOKENS.len()])
    }

    fn words(&self) -> [u64; 5] {
        [
            self.arrives_ns,
            u64::from(self.context) << 32 | u64::from(self.output),
            u64::from(self.conversation) << 32 | u64::from(self.turn),
            self.class as u64,
            self.prompt.map_or(0, |which| u64::from(which) + 1),
        ]
    }
}

/// A user, and the requests that it has still to make.
#[derive(Clone, Debug)]
pub struct User {
    number: u32,
    key: u64,
    class: Class,
    context_max: u32,
    output_max: u32,
    think_ns: f64,
    /// Requests so far, when the last one came, and where its conversation stood.
    made: u64,
    last_ns: u64,
    conversation: u32,
    turn: u32,
    /// Of all requests that were handed out.
    hash: u64,
}

impl User {
    /// The users of a rank, whose seed is the run's plus the rank: those that the reference has for this seed.
    pub fn all(seed: u64, count: u32) -> impl Iterator<Item = User> {
        let mut random = Python::new(seed);
        (0..count).map(move |number| User::drawn(seed, number, &mut random))
    }

    fn drawn(seed: u64, number: u32, random: &mut Python) -> User {
        let Type { context, output, think_s } = &TYPES[random.below(TYPES.len() as u32) as usize];
        let class = match random.uniform() {
            share if share < INTERACTIVE => Class::Interactive,
            share if share < RESPONSIVE => Class::Responsive,
            _ => Class::Batch,
        };
        User {
            number,
            key: derive(seed, u64::from(number)),
            class,
            context_max: random.between(*context),
            output_max: random.between(*output),
            think_ns: 1e9 * (think_s.0 + (think_s.1 - think_s.0) * random.uniform()),
            made: 0,
            last_ns: 0,
            conversation: 0,
            turn: 0,
            hash: mix(derive(seed, u64::from(number))),
        }
    }

    /// The next request, and moves on to the one after it.
    pub fn ask(&mut self) -> Request {
        let mut random = Xoshiro256::new(derive(self.key, self.made));
        self.made += 1;
        let factor = 1.0 - JITTER + 2.0 * JITTER * random.next_f64();
        self.last_ns = self.last_ns.saturating_add((self.think_ns * factor).max(1.0) as u64);
        let begins = random.next_f64() < NEW_CONVERSATION;
        if begins || self.conversation == 0 || self.turn >= TURNS_MAX {
            self.conversation += 1;
            self.turn = 0;
        }
        self.turn += 1;
        let context = between(&mut random, (self.context_max / 4).max(1), self.context_max);
        let output = between(&mut random, (self.output_max / 4).max(1), self.output_max);
        let prompt = (random.next_f64() < SYSTEM_PROMPT)
            .then(|| Below::new(PROMPT_TOKENS.len() as u64).draw(&mut random) as u8);
        let mut request = Request {
            arrives_ns: self.last_ns,
            user: self.number,
            class: self.class,
            conversation: self.conversation,
            turn: self.turn,
            context,
            output,
            prompt,
        };
        request.context = context.saturating_sub(request.prompt_tokens());
        request
    }

    /// Tokens of the entry that it has before the first request, where requests only read.
    pub fn stock(&self) -> u32 {
        let mut random = Xoshiro256::new(derive(self.key, u64::MAX));
        between(&mut random, (self.context_max / 4).max(1), self.context_max)
    }

    /// Tokens of its largest entry.
    pub fn context_max(&self) -> u32 {
        self.context_max
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Takes note that `request` was made.
    pub fn made(&mut self, request: &Request) {
        self.hash = request.words().into_iter().fold(self.hash, |hash, word| mix(hash ^ word));
    }

    /// The request after `request`, which has been made.
    pub fn next_after(&mut self, request: &Request) -> Request {
        self.made(request);
        self.ask()
    }

    /// Stands for all requests that were made so far, in their order.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Conversations whose earlier turns are known: those that the last requests belonged to. A request that waited until its
/// own is forgotten reads none of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    /// When each was last asked in, by count.
    last: HashMap<(u32, u32), u64>,
    order: BTreeMap<u64, (u32, u32)>,
    touched: u64,
}

impl Remembered {
    pub(super) fn touch(&mut self, user: u32, conversation: u32) {
        self.touched += 1;
        if let Some(before) = self.last.insert((user, conversation), self.touched) {
            self.order.remove(&before);
        } else if self.last.len() > CONVERSATIONS_MAX {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.last.remove(&oldest);
            }
        }
        self.order.insert(self.touched, (user, conversation));
    }

    pub(super) fn has(&self, user: u32, conversation: u32) -> bool {
        self.last.contains_key(&(user, conversation))
    }
}

/// Uniform, both ends included.
fn between(random: &mut Xoshiro256, least: u32, most: u32) -> u32 {
    least + Below::new(u64::from(most - least) + 1).draw(random) as u32
}

/// The hash of every request that `spec` makes in its window, by the ranks of this process, without a run.
pub fn stream_hash(spec: &KvSpec) -> u64 {
    let end_ns = spec.window_ns();
    spec.ranks_of_process().fold(0, |all, rank| {
        let seed = spec.seed_of(rank);
        let users = User::all(seed, spec.users).map(|mut user| loop {
            let request = user.ask();
            if request.arrives_ns >= end_ns {
                return user.hash();
            }
            user.made(&request);
        });
        all.wrapping_add(rank_hash(spec, rank, users))
    })
}

/// One rank's hash of its users' hashes. Those of several ranks are added up, in whatever order they come.
pub(super) fn rank_hash(spec: &KvSpec, rank: u32, users: impl Iterator<Item = u64>) -> u64 {
    let begin = mix(u64::from(rank) ^ spec.token_bytes().unwrap_or(0) << 20);
    users.fold(begin, |hash, user| mix(hash ^ user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_of_the_three_types_and_the_three_classes() {
        let users: Vec<User> = User::all(42, 20_000).collect();
        let share = |of: &dyn Fn(&User) -> bool| {
            users.iter().filter(|user| of(user)).count() as f64 / users.len() as f64
        };
        assert!((share(&|u| u.class == Class::Interactive) - 0.15).abs() < 0.01);
        assert!((share(&|u| u.class == Class::Responsive) - 0.35).abs() < 0.015);
        assert!((share(&|u| u.output_max < 100) - 50.0 / 151.0 / 3.0).abs() < 0.01);
        assert!(users.iter().all(|u| (512..=25_000).contains(&u.context_max)));
        assert!(users.iter().all(|u| (1e8..=1.5e9).contains(&u.think_ns)));
    }

    #[test]
    fn a_request_lies_in_its_users_ranges_and_turns_follow_each_other() {
        let mut user = User::all(42, 4).last().unwrap();
        let mut before = user.ask();
        assert_eq!((before.conversation, before.turn), (1, 1));
        let mut begun = 0;
        for _ in 0..20_000 {
            let request = user.ask();
            let gap = (request.arrives_ns - before.arrives_ns) as f64;
            assert!(gap >= 0.79 * user.think_ns && gap <= 1.21 * user.think_ns);
            let goes_on = request.conversation == before.conversation && request.turn == before.turn + 1;
            let begins = request.conversation == before.conversation + 1 && request.turn == 1;
            assert!(goes_on != begins, "{before:?} {request:?}");
            begun += u32::from(begins);
            let least = user.context_max / 4;
            assert!(request.context + 8 >= least && request.context <= user.context_max);
            assert!(request.output >= user.output_max / 4 && request.output <= user.output_max);
            before = request;
        }
        assert!((f64::from(begun) / 20_000.0 - 0.2).abs() < 0.01, "{begun}");
    }

    // promise: KVC-2
    #[test]
    fn the_stream_depends_on_seed_rank_user_and_model_and_on_nothing_else() {
        let spec = KvSpec { users: 20, duration_s: 30.0, ..KvSpec::default() };
        let hash = stream_hash(&spec);
        let same = KvSpec { depth: 3, workers: Some(5), dir: "/x".into(), admission: 1, ..spec.clone() };
        assert_eq!(stream_hash(&same), hash);
        for other in [
            KvSpec { seed: 43, ..spec.clone() },
            KvSpec { users: 21, ..spec.clone() },
            KvSpec { first_rank: 1, ranks: 2, ..spec.clone() },
            KvSpec { model: "qwen3-32b".into(), ..spec.clone() },
            KvSpec { duration_s: 31.0, ..spec.clone() },
        ] {
            assert_ne!(stream_hash(&other), hash, "{other:?}");
        }
        // Two ranks of one process, or of two.
        let both = KvSpec { ranks: 2, ranks_here: Some(2), ..spec.clone() };
        let apart =
            [0, 1].map(|first_rank| KvSpec { ranks: 2, first_rank, ranks_here: Some(1), ..spec.clone() });
        assert_eq!(stream_hash(&both), stream_hash(&apart[0]).wrapping_add(stream_hash(&apart[1])));
    }
}
