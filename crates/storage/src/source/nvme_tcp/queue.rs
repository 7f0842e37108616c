//! A worker's queue over its share of every path's I/O queues.

mod late;

use super::options::{Policy, Transport};
use super::path::{Live, Path, PathState};
use super::queue_pair::{Finished, QueuePair};
use super::report::Unsent;
use super::Remote;
use crate::source::nvme::{Outcome, Work, REST};
use crate::source::QueueNeeds;
use forebay_io::{
    monotonic_now, stream_index, Done, Fault, Full, Geometry, Io, Mem, Op, Queue, Reactor, RingCompletion,
};
use forebay_model::Error;
use forebay_nvme::command::Sqe;
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::Range;
use forebay_nvme::transport::tcp::host::Data;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which opening waits for the queues of paths that are up, further time for those that were refused, and the
/// interval at which it checks these.
const OPEN_WITHIN: Duration = Duration::from_secs(1);
const TRIED_WITHIN: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which closing waits for the kernel to let go of what it was given.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Time in which an abandoned command may still complete before its connection is cut, which frees its memory.
const ABANDON_AFTER: Duration = Duration::from_millis(200);
/// Time for a late command after the controller was asked to abort it; then its connection is cut.
const ABORT_WITHIN: Duration = Duration::from_secs(5);

/// Commands that go to one connection before the next one has its turn, where a worker has more connections than its
/// depth fills: what is sent and received together costs one call and one wake-up of the other end.
const TOGETHER: u32 = 16;
/// A worker with fewer commands in flight spreads them over four connections at least: each may be another thread of the
/// target's. With more, two are enough to keep both ends busy.
const DEEP: u32 = 32;

/// Further state of a command.
#[derive(Default)]
struct Own {
    /// The data of Dataset Management.
    range: Option<Box<Range>>,
    /// Since when the controller is asked to abort it.
    asked: Option<Instant>,
}

/// State of a path as this queue last saw it.
#[derive(Default)]
struct View {
    generation: u64,
    live: Option<Arc<Live>>,
    /// Why it was given up.
    lost: Option<String>,
    rests_until: Option<Instant>,
}

impl View {
    fn refresh(&mut self, path: &Path, now: Instant) {
        let generation = path.generation();
        if generation == self.generation && self.rests_until.is_some_and(|until| now >= until) {
            self.rests_until = None;
        }
        if generation != self.generation || self.live.is_none() && self.lost.is_none() {
            (self.live, self.lost) = match path.state() {
                PathState::Live(live) => (Some(live), None),
                PathState::Lost(why) => (None, Some(why)),
                PathState::Connecting(_) => (None, None),
            };
            (self.generation, self.rests_until) = (generation, None);
        }
    }

    /// The state that it takes commands in.
    fn usable(&self) -> Option<AnaState> {
        let ana = self.live.as_ref().and_then(|live| live.ana());
        ana.filter(|a| {
            matches!(a, AnaState::Optimized | AnaState::NonOptimized) && self.rests_until.is_none()
        })
    }
}

pub(crate) struct NvmeTcpQueue {
    remote: Arc<Remote>,
    work: Work<Own>,
    token: u32,
    watch: u64,
    share: Vec<u16>,
    views: Vec<View>,
    pairs: Vec<QueuePair>,
    /// Since when commands wait for a path: until one of them completes.
    stranded: Option<Instant>,
    /// When abandoned I/Os cost their connection.
    cut: Option<Instant>,
    /// When to look for commands that take too long.
    look_at: Option<Instant>,
    /// Pairs that aren't where their path is, or paths that rest.
    unsettled: bool,
    turn: usize,
    /// Commands that the pair whose turn it is has had.
    run: u32,
    completions: Vec<RingCompletion>,
    finished: Vec<Finished>,
    gone: Vec<u32>,
}

impl NvmeTcpQueue {
    pub(crate) fn open(
        remote: Arc<Remote>,
        needs: QueueNeeds,
        reactor: &mut Reactor,
    ) -> Result<NvmeTcpQueue, Error> {
        if !reactor.has_ring() {
            return Err(Error::machine(
                remote.options().to_string(),
                "io_uring is disabled or missing on this system",
                "forebay doctor for the reason",
            ));
        }
        let waker = reactor.waker()?;
        match remote.shared.options.spin {
            Some(spin) => reactor.spin(spin),
            None => reactor.poll_where_it_pays(),
        }
        let share = remote.shared.host.shares.take(needs.worker)?;
        let paths = 0..remote.shared.paths.len();
        // One of each path, then the next of each: neighbours are on different paths.
        let pairs: Vec<QueuePair> = share
            .iter()
            .flat_map(|qid| paths.clone().map(move |path| (path, *qid)))
            .enumerate()
            .map(|(index, (path, qid))| QueuePair::new(path, qid, index as u32, &remote.shared))
            .collect();
        let nsid = remote.options().nsid;
        let mut queue = NvmeTcpQueue {
            work: Work::new(
                &remote.shared.host.identity,
                nsid,
                needs.depth,
                1,
                remote.options().transport.via(),
            ),
            token: reactor.token(),
            watch: remote.shared.host.wakers.watch(waker),
            views: paths.map(|_| View::default()).collect(),
            pairs,
            share,
            stranded: None,
            cut: None,
            look_at: None,
            unsettled: true,
            turn: 0,
            run: 0,
            completions: Vec::new(),
            finished: Vec::new(),
            gone: Vec::new(),
            remote,
        };
        if queue.remote.options().transport == Transport::Rdma {
            queue.work.move_by_card();
        }
        if let Err(refusal) = queue.connect(reactor) {
            Queue::close(&mut queue, reactor);
            return Err(refusal);
        }
        Ok(queue)
    }

    /// Waits a moment for the queues of paths that are up: what isn't there by then comes later.
    ///
    /// # Errors
    /// `Machine`: the controller of a path that is up doesn't take them all.
    fn connect(&mut self, reactor: &mut Reactor) -> Result<(), Error> {
        let until = monotonic_now() + OPEN_WITHIN;
        let mut none = Vec::new();
        loop {
            self.turn(reactor, &mut none);
            let mut missing =
                self.pairs.iter().filter(|l| !l.is_live() && self.views[l.path].live.is_some()).peekable();
            let now = monotonic_now();
            // Whether a queue that was refused just comes early is known soon.
            let tried = missing.clone().any(|pair| pair.refusal().is_some()) && now < until + TRIED_WITHIN;
            if missing.peek().is_none() || now >= until && !tried {
                return Ok(());
            }
            if let Some(pair) = missing.find(|pair| pair.is_refused()) {
                return Err(self.refused(pair));
            }
            let due = self.next_due().unwrap_or(until);
            reactor.wait(1, due.min(until.max(now + POLL_INTERVAL)), Duration::ZERO);
        }
    }

    /// Fewer queues than asked for.
    fn refused(&self, pair: &QueuePair) -> Error {
        let (shared, path) = (&self.remote.shared, &self.remote.shared.paths[pair.path]);
        let (up, all) = (path.queues_up.load(Ordering::Relaxed), shared.host.shares.taken());
        let why = pair.refusal().unwrap_or_default();
        let next = match up {
            0 => "a higher limit on connections at the target, and its log".into(),
            _ => format!("queues={up} in the URI, at most {up} ‹workers›, or a higher limit on connections at the target"),
        };
        let found = format!("{}: {up} of {all} I/O queues are connected; {why}", path.address);
        Error::machine(shared.host.name.clone(), found, next)
    }

    /// All that there is to do: what completed, what changed, what can be sent.
    fn turn(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        reactor.take(self.token, &mut self.completions);
        let mut finished = std::mem::take(&mut self.finished);
        let mut last = usize::MAX;
        for completion in self.completions.drain(..) {
            let index = stream_index(completion);
            self.pairs[index].completed(completion);
            // Those of one pair come one after the other, most of the time.
            if last != index && last != usize::MAX {
                self.unsettled |= !self.pairs[last].drive(&self.remote.shared, reactor, &mut finished);
            }
            last = index;
        }
        if let Some(pair) = self.pairs.get_mut(last) {
            self.unsettled |= !pair.drive(&self.remote.shared, reactor, &mut finished);
        }
        let now = monotonic_now();
        finished.drain(..).for_each(|f| self.book(f, now, done));
        self.finished = finished;
        if self.unsettled || self.changed() {
            self.follow_paths(reactor, now, done);
        }
        self.dispatch(reactor, now);
        self.give_up(reactor, now, done);
    }

    fn changed(&self) -> bool {
        self.views
            .iter()
            .zip(&self.remote.shared.paths)
            .any(|(view, path)| view.generation != path.generation())
    }

    /// Brings pairs to where their paths are.
    fn follow_paths(&mut self, reactor: &mut Reactor, now: Instant, done: &mut Vec<Done>) {
        let shared = &self.remote.shared;
        for (view, path) in self.views.iter_mut().zip(&shared.paths) {
            view.refresh(path, now);
        }
        let mut gone = std::mem::take(&mut self.gone);
        self.unsettled = false;
        for pair in &mut self.pairs {
            pair.finish_close(shared, &mut gone);
            let live = self.views[pair.path].live.as_deref();
            pair.follow(live, shared, self.token, now, reactor);
            if pair.finish_close(shared, &mut gone) {
                pair.follow(live, shared, self.token, now, reactor);
            }
            self.unsettled |= !(pair.is_live() || pair.is_down() && live.is_none());
        }
        self.unsettled |= self.views.iter().any(|v| v.rests_until.is_some());
        // The last ones first, so that they stand in order.
        for command in gone.drain(..).rev() {
            self.lost(command, done);
        }
        self.gone = gone;
    }

    /// Books a command that completed.
    fn book(&mut self, finished: Finished, now: Instant, done: &mut Vec<Done>) {
        let Finished { command, cqe, received, copied, .. } = finished;
        let (status, c) = (cqe.status(), &self.work.commands[command as usize]);
        let pair = &self.pairs[finished.pair];
        pair.traffic.took(now.saturating_duration_since(c.started));
        let (len, short) = (c.len, c.op == Op::Read && received != c.len);
        if copied {
            self.work.staged(command);
        }
        if status.is_success() {
            let result = if short {
                Err(Fault::note(libc::EIO, format!("{received} of {len} bytes came, with success")))
            } else {
                Ok(())
            };
            self.stranded = None;
            return self.work.end(command, result, done);
        }
        match self.work.outcome(command, status) {
            Outcome::End(fault) => {
                self.stranded = None;
                self.work.end(command, Err(fault), done);
            }
            Outcome::Elsewhere => {
                self.views[pair.path].rests_until = Some(now + REST);
                self.unsettled = true;
                self.work.pending.push_front(command);
            }
            Outcome::Again => {
                pair.traffic.retries.fetch_add(1, Ordering::Relaxed);
                self.work.pending.push_front(command);
            }
        }
    }

    /// Sends what is pending where it can go.
    fn dispatch(&mut self, reactor: &mut Reactor, now: Instant) {
        let best = self.best_ana();
        if self.work.pending.is_empty() {
            // What a path took and didn't complete goes on waiting.
            let waits = |_: &Instant| best.is_none() || self.work.has_commands();
            self.stranded = self.stranded.filter(waits);
            return;
        }
        let Some(best) = best else {
            self.stranded.get_or_insert(now);
            return;
        };
        let run = self.run_of(best);
        while let Some(command) = self.work.pending.front().copied() {
            let Some(pair) = self.choose(best, run) else { break };
            self.work.pending.pop_front();
            let (sqe, data, mem) = self.put(command);
            let c = &mut self.work.commands[command as usize];
            (c.tries, c.started, c.own.asked) = (c.tries + 1, now, None);
            match self.pairs[pair].submit(command, sqe, data, mem) {
                Ok(()) => {}
                Err(Unsent::Unfit(fault)) => {
                    let mut done = Vec::new();
                    self.work.end(command, Err(fault), &mut done);
                    self.work.keep(done);
                }
                Err(Unsent::Busy) => {
                    self.work.pending.push_front(command);
                    break;
                }
            }
        }
        self.pairs.iter_mut().for_each(|l| l.send(reactor));
        if self.look_at.is_none() {
            self.look_at = self.remote.options().io_timeout.map(|most| now + most);
        }
    }

    /// The best state that a path with a queue is in; None: no path takes commands.
    fn best_ana(&self) -> Option<AnaState> {
        let live = self.pairs.iter().filter(|l| l.is_live());
        live.filter_map(|l| self.views[l.path].usable()).min_by_key(|a| *a as u8)
    }

    /// Commands wait, and no path takes them now.
    fn is_stranded(&self) -> bool {
        !self.work.pending.is_empty() && self.best_ana().is_none()
    }

    fn takes(&self, pair: &QueuePair, ana: AnaState) -> bool {
        pair.is_live() && self.views[pair.path].usable() == Some(ana)
    }

    /// Returns the number of commands in a row that a pair gets, with as many pairs on paths in this state.
    fn run_of(&self, ana: AnaState) -> u32 {
        let pairs = self.pairs.iter().filter(|pair| self.takes(pair, ana)).count();
        run(pairs as u32, self.views.len() as u32, self.work.geometry().depth)
    }

    /// A pair with room, on a path in this state. Of one path's, the one with the fewest commands: what a pair completed
    /// goes back to it together, and one whose target is held up doesn't pile up what others would carry.
    fn choose(&mut self, ana: AnaState, run: u32) -> Option<usize> {
        let count = self.pairs.len();
        let fits = |i: &usize| self.pairs[*i].has_room() && self.takes(&self.pairs[*i], ana);
        let mut from_turn = (self.turn..self.turn + count).map(|i| i % count).filter(fits);
        let alone = self.views.len() == 1 && run == 1;
        let chosen = match self.remote.options().policy {
            Policy::RoundRobin if !alone => from_turn.next(),
            _ => from_turn.min_by_key(|i| self.pairs[*i].in_flight()),
        }?;
        self.run = if chosen == self.turn { self.run + 1 } else { 1 };
        self.turn = chosen;
        if self.run >= run || self.remote.options().policy == Policy::QueueDepth {
            (self.turn, self.run) = ((chosen + 1) % count, 0);
        }
        Some(chosen)
    }

    /// A command as it goes onto the wire.
    fn put(&mut self, command: u32) -> (Sqe, Data, Mem) {
        let (sqe, range) = self.work.sqe(command);
        let c = &mut self.work.commands[command as usize];
        let (data, mem) = match (c.op, range) {
            (Op::Read, _) => (Data::In { len: c.len }, c.mem),
            (Op::Write { .. }, _) => (Data::Out { len: c.len }, c.mem),
            (_, Some(range)) => {
                let range = c.own.range.insert(Box::new(range));
                let mem = Mem::Host { at: NonNull::from(&mut **range).cast(), piece: Mem::UNREGISTERED };
                (Data::Out { len: size_of::<Range>() as u32 }, mem)
            }
            (_, None) => (Data::None, Mem::None),
        };
        (sqe, data, mem)
    }
}

impl Queue for NvmeTcpQueue {
    fn geometry(&self) -> Geometry {
        self.work.geometry()
    }

    fn in_flight(&self) -> u32 {
        self.work.in_flight()
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        self.work.push(io)
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        if !self.work.pending.is_empty() {
            self.dispatch(reactor, monotonic_now());
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.work.reap(done);
        self.turn(reactor, done);
    }

    fn abandon(&mut self, tag: u32, _reactor: &mut Reactor) {
        let Some(waiting) = self.work.abandon(tag) else { return };
        self.cut.get_or_insert(monotonic_now() + ABANDON_AFTER);
        for pair in &mut self.pairs {
            let is_its = |command: &u32| self.work.commands[*command as usize].tag == tag;
            let its: Vec<u32> = pair.commands().filter(is_its).collect();
            its.into_iter().for_each(|command| pair.abort(command, &self.remote.shared));
        }
        // What has no connection yet needn't wait for one.
        let mut done = Vec::new();
        for command in waiting {
            self.work.end(command, Err(Fault::errno(libc::ECANCELED)), &mut done);
        }
        self.work.keep(done);
    }

    fn next_due(&self) -> Option<Instant> {
        if self.work.is_ready() {
            return Some(monotonic_now());
        }
        let stranded = self.stranded.filter(|_| self.is_stranded());
        if !self.unsettled && stranded.is_none() && self.cut.is_none() {
            return self.look_at;
        }
        let pairs = self.pairs.iter().filter_map(QueuePair::due);
        let rests = self.views.iter().filter_map(|v| v.rests_until);
        let patience = self.remote.options().fast_io_fail;
        let stranded = stranded.and_then(|since| since.checked_add(patience?));
        pairs.chain(rests).chain(stranded).chain(self.cut).chain(self.look_at).min()
    }

    fn wakes_at_first(&self) -> bool {
        true
    }

    fn close(&mut self, reactor: &mut Reactor) {
        let until = monotonic_now() + CLOSE_WITHIN;
        self.pairs.iter_mut().for_each(|l| l.close(reactor));
        loop {
            let mut gone = Vec::new();
            self.pairs.iter_mut().for_each(|l| {
                l.finish_close(&self.remote.shared, &mut gone);
            });
            if self.pairs.iter().all(QueuePair::is_down) || monotonic_now() >= until {
                return;
            }
            reactor.wait(1, until, Duration::ZERO);
            reactor.take(self.token, &mut self.completions);
            for completion in self.completions.drain(..) {
                self.pairs[stream_index(completion)].completed(completion);
            }
        }
    }
}

impl Drop for NvmeTcpQueue {
    fn drop(&mut self) {
        self.remote.shared.host.wakers.unwatch(self.watch);
        self.remote.shared.host.shares.give_back(&self.share);
    }
}

/// All of `pairs` have commands at once where `depth` gives each of them as many as go together; else those that get
/// so many, one of each path at least.
fn run(pairs: u32, paths: u32, depth: u32) -> u32 {
    let at_least = if depth < DEEP { 4 } else { 2 }.max(paths);
    let most = (depth / at_least).clamp(1, TOGETHER);
    if pairs * most > depth {
        most
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_together_where_connections_are_more_than_the_depth_fills() {
        assert_eq!(run(1, 1, 32), 1);
        assert_eq!(run(2, 1, 32), 1, "each has 16");
        assert_eq!(run(3, 1, 32), 16);
        assert_eq!(run(7, 1, 128), 1, "each has 18");
        assert_eq!(run(31, 1, 32), 16, "two have 16 each");
        assert_eq!(run(31, 1, 16), 4, "four have four each");
        assert_eq!(run(31, 1, 4), 1);
        assert_eq!(run(16, 8, 64), 8, "each of eight paths has some");
    }
}
