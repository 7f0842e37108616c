//! Whether a controller stands still: because an RPC suspends it, or because another process takes it over.

use std::sync::mpsc::SyncSender;

#[derive(Default)]
enum Suspension {
    #[default]
    Running,
    /// Number of workers that have yet to say that they are quiet.
    Suspending(usize, SyncSender<()>),
    Suspended,
}

pub(super) struct Standstill {
    suspension: Suspension,
    /// Another process is to have it: so many workers have yet to say that they are quiet.
    held: Option<usize>,
}

impl Standstill {
    pub(super) fn new(suspended: bool) -> Standstill {
        let suspension = if suspended { Suspension::Suspended } else { Suspension::Running };
        Standstill { suspension, held: None }
    }

    /// Of another process's, held until `release`.
    pub(super) fn taken_over(suspended: bool) -> Standstill {
        Standstill { held: Some(0), ..Standstill::new(suspended) }
    }

    /// Nothing keeps it from executing commands.
    pub(super) fn is_running(&self) -> bool {
        self.held.is_none() && matches!(self.suspension, Suspension::Running)
    }

    /// Another process is to have it: its client isn't heard.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// It is held, and no worker has anything of it under way.
    pub(super) fn is_held_still(&self) -> bool {
        self.held == Some(0)
    }

    pub(super) fn is_suspending(&self) -> bool {
        matches!(self.suspension, Suspension::Suspending(..))
    }

    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.suspension, Suspension::Suspended)
    }

    /// An RPC doesn't suspend it, and hasn't.
    pub(super) fn is_not_suspended(&self) -> bool {
        matches!(self.suspension, Suspension::Running)
    }

    /// True: so many workers are to be told, and `reply` is sent once all are quiet. Else it was, at once.
    pub(super) fn suspend(&mut self, workers: usize, reply: SyncSender<()>) -> bool {
        if self.is_suspended() {
            let _ = reply.send(());
            return false;
        }
        self.suspension = Suspension::Suspending(workers, reply);
        true
    }

    pub(super) fn resume(&mut self) {
        self.suspension = Suspension::Running;
    }

    pub(super) fn hold(&mut self, workers: usize) {
        self.held = Some(workers);
    }

    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// A worker has nothing of it under way.
    pub(super) fn quiet(&mut self) {
        if let Some(left) = &mut self.held {
            *left = left.saturating_sub(1);
            return;
        }
        self.suspension = match std::mem::take(&mut self.suspension) {
            Suspension::Suspending(left, reply) if left > 1 => Suspension::Suspending(left - 1, reply),
            Suspension::Suspending(_, reply) => {
                let _ = reply.send(());
                Suspension::Suspended
            }
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn it_is_suspended_once_the_last_worker_is_quiet() {
        let mut still = Standstill::new(false);
        let (reply, reported) = sync_channel(2);
        assert!(still.suspend(2, reply.clone()));
        still.quiet();
        assert!(reported.try_recv().is_err() && still.is_suspending() && !still.is_running());
        still.quiet();
        assert!(reported.try_recv().is_ok() && still.is_suspended());
        assert!(!still.suspend(2, reply) && reported.try_recv().is_ok(), "it was already");
        still.resume();
        assert!(still.is_running());
    }

    #[test]
    fn what_another_process_is_to_have_stands_still_whether_or_not_it_was_suspended() {
        let mut still = Standstill::new(true);
        still.hold(1);
        assert!(still.is_held() && !still.is_held_still());
        still.quiet();
        assert!(still.is_held_still());
        still.release();
        assert!(still.is_suspended() && !still.is_running());
    }
}
