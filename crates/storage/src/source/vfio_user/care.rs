//! The thread that cares for a drive: it connects, brings the controller up,
//! maps memory into it, and connects again when it went away.

use super::function::{wait, words, Ended, Function, ANSWER_WITHIN};
use super::maps::Entry;
use super::{Live, Shared};
use crate::source::nvme::{Attempts, Cause, Episode, Standing};
use forebay_io::monotonic_now;
use forebay_nvme::host::Event;
use forebay_nvme::transport::pcie::host::Step;
use rustix::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for shutting a controller down before its connection is just closed.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) enum DriveState {
    /// Why it isn't there, where it was tried or was there. `clean`: the device that was there touches memory no more.
    Connecting {
        why: Option<String>,
        clean: bool,
    },
    Live(Arc<Live>),
    /// Given up.
    Lost {
        why: String,
        clean: bool,
    },
}

impl DriveState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            DriveState::Connecting { .. } => "connecting",
            DriveState::Live(_) => "live",
            DriveState::Lost { .. } => "lost",
        }
    }

    pub(crate) fn standing(&self, cause: Cause) -> Standing {
        match self {
            DriveState::Live(live) => Standing::Up(live.queues),
            DriveState::Connecting { why: Some(why), .. } | DriveState::Lost { why, .. } => {
                Standing::Failed(why.clone(), cause)
            }
            DriveState::Connecting { why: None, .. } => Standing::Trying,
        }
    }

    pub(crate) fn why(&self) -> Option<&str> {
        match self {
            DriveState::Connecting { why, .. } => why.as_deref(),
            DriveState::Live(_) => None,
            DriveState::Lost { why, .. } => Some(why),
        }
    }
}

/// The life of a drive's thread.
pub(super) fn care(shared: &Shared) {
    let mut attempts = Attempts::new(monotonic_now());
    loop {
        let (ended, episode) = associate(shared);
        if shared.stops() {
            return;
        }
        let (now, longest) = (monotonic_now(), shared.options.reconnect_delay);
        attempts.ended(episode, longest, now);
        super::lock(&shared.inner).cause = ended.cause;
        let too_late = attempts.too_late(shared.options.ctrl_loss, now);
        if ended.for_good || too_late {
            let late = if too_late && !ended.for_good { "; ctrl_loss_tmo has passed" } else { "" };
            shared.host.notes.note(ended.why.clone());
            return shared
                .change(DriveState::Lost { why: format!("{}{late}", ended.why), clean: ended.clean });
        }
        // The same again and again would push what matters out of the notes.
        if attempts.failures() < 2 {
            shared.host.notes.note(ended.why.clone());
        }
        shared.change(DriveState::Connecting { why: Some(ended.why), clean: ended.clean });
        shared.pause(attempts.wait(longest));
    }
}

/// One connection from its first message to its end, and from when it was up.
fn associate(shared: &Shared) -> (Ended, Option<Episode>) {
    match Function::open(
        &shared.options,
        shared.host.shares.queues,
        shared.host.shares.queues,
        Some(shared.options.nsid),
        ANSWER_WITHIN,
    ) {
        Ok(function) => {
            let number = u64::from(shared.connects.load(Ordering::Relaxed)) + 1;
            let mut up = Up { shared, function, number, episode: None };
            let mut ended = match up.run() {
                Ok(()) => Ended { cause: Cause::Other, why: "closed".into(), for_good: true, clean: true },
                Err(ended) => ended,
            };
            // Nothing is in flight where no worker had a queue.
            ended.clean |= up.episode.is_none() || up.function.quiesce();
            up.check_progress();
            (ended, up.episode)
        }
        Err(ended) => (Ended { clean: true, ..ended }, None),
    }
}

struct Up<'a> {
    shared: &'a Shared,
    function: Function,
    number: u64,
    /// Since it is live.
    episode: Option<Episode>,
}

impl Up<'_> {
    /// Checks that commands complete.
    fn check_progress(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.note(self.shared.host.notes.commands(0), monotonic_now());
        }
    }

    /// Until it ends (Err), or is to (Ok).
    fn run(&mut self) -> Result<(), Ended> {
        loop {
            self.check_progress();
            match self.function.step()? {
                Step::Event(event) => self.act(&event)?,
                Step::Queue(queue) => {
                    if self.function.created(queue) {
                        self.publish()?;
                    }
                }
                Step::Deleted(_) | Step::Aborted { .. } => {}
                Step::Wait { until_ms } => {
                    wait(
                        &mut self.function,
                        until_ms,
                        Some(self.shared.wake.as_fd()),
                        self.episode.is_none(),
                    )?;
                }
            }
            if self.shared.stops() {
                return self.shut_down();
            }
            if let Some(why) = self.shared.take_trouble(self.number) {
                return Err(Ended { cause: Cause::Other, why, for_good: false, clean: false });
            }
            for (qid, cid) in self.shared.take_aborts(self.number) {
                self.function.host.abort(qid, cid);
            }
            if self.episode.is_some() {
                self.map_all()?;
            }
        }
    }

    fn act(&mut self, event: &Event) -> Result<(), Ended> {
        if let Some(text) = words(event) {
            self.shared.host.notes.note(text);
        }
        match event {
            Event::Ready => {
                let (nsid, session) = (self.shared.options.nsid, self.function.host.session());
                self.shared.host.identity.check(
                    nsid,
                    session.namespaces().get(&nsid),
                    session.controller(),
                )?;
                let (granted, least) = (self.function.create_queues(), self.shared.host.shares.least);
                // One that grants fewer than the first did still serves those workers whose queues it has.
                if granted < least && self.number == 1 {
                    let why = format!("it grants {granted} I/O queues, {least} are needed");
                    return Err(Ended { cause: Cause::Few(granted), why, for_good: true, clean: true });
                }
                Ok(())
            }
            // I/O to a namespace that went or shrank is answered as such by the device.
            Event::Changed(_) | Event::Gone(_) | Event::Ana | Event::Warning(_) => Ok(()),
        }
    }

    /// All queues are there: workers may have them.
    fn publish(&mut self) -> Result<(), Ended> {
        self.map_all()?;
        let live = self.function.live(self.number);
        self.episode = Some(Episode::new(self.shared.host.notes.commands(0), monotonic_now()));
        self.shared.connects.fetch_add(1, Ordering::Relaxed);
        let what = if self.number > 1 { "connected again" } else { "connected" };
        self.shared
            .host
            .notes
            .note(format!("{what}, controller {}, {} I/O queues", live.controller.cntlid, live.queues));
        self.shared.change(DriveState::Live(Arc::new(live)));
        Ok(())
    }

    /// Tells the device of memory that came and went.
    fn map_all(&mut self) -> Result<(), Ended> {
        while let Some(Entry { id, span, fd, mapped_on, ended, .. }) = self.shared.maps.next(self.number) {
            if ended {
                if mapped_on == Some(self.number) {
                    self.function.client.unmap(span.begin, span.bytes())?;
                }
                self.shared.maps.remove(id);
            } else {
                let outcome = self.function.client.map(fd.as_fd(), span.begin, span.bytes());
                let refused =
                    matches!(&outcome, Err(t) if matches!(t.wrong, super::client::Wrong::Refused(_)));
                match outcome {
                    Err(trouble) if !refused => return Err(trouble.into()),
                    outcome => {
                        self.shared.maps.mapped(id, outcome.map(|()| self.number).map_err(|t| t.to_string()))
                    }
                }
            }
            self.shared.tell();
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), Ended> {
        let until: Instant = monotonic_now() + SHUT_DOWN_WITHIN;
        let now = self.function.now_ms();
        self.function.host.shut_down(now);
        while !self.function.host.is_shut_down() && monotonic_now() < until {
            match self.function.step()? {
                Step::Wait { until_ms } => wait(&mut self.function, until_ms, None, true)?,
                Step::Event(_) | Step::Queue(_) | Step::Deleted(_) | Step::Aborted { .. } => {}
            }
        }
        Ok(())
    }
}
