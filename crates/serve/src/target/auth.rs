//! Hosts that must prove who they are: DH-HMAC-CHAP on each of their queues, before it may do anything else (base,
//! section 8.13).

use super::connection::{Connection, Role};
use super::log::Level;
use super::secrets;
use super::worker::Worker;
use forebay_io::auth;
use forebay_nvme::auth::{Failure, Outcome, TargetAuth, MESSAGE_BYTES_MAX};
use forebay_nvme::command::Cqe;
use forebay_nvme::controller::connect::Connect;
use forebay_nvme::controller::Answer;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::Handle;
use std::sync::atomic::Ordering;

impl Worker {
    /// Has a queue that was just admitted prove whose it is, where its host has a key.
    pub(super) fn lock(&mut self, c: &mut Connection, connect: &Connect) {
        let subsystem = self.shared.config.subsystems.iter().find(|s| s.nqn == connect.subsystem_nqn);
        let host = subsystem.and_then(|s| s.hosts.iter().find(|h| h.nqn == connect.host_nqn));
        // The keys were checked with the configuration.
        let credentials =
            host.and_then(|host| secrets::credentials(host, &connect.subsystem_nqn).ok().flatten());
        c.auth = credentials.map(|credentials| Box::new(TargetAuth::new(credentials)));
    }

    /// Answers an Authentication command. The second and third of an exchange take 1 ms of computing with ffdhe2048,
    /// 15 ms with ffdhe8192.
    pub(super) fn authenticate(&mut self, c: &mut Connection, at: Handle) -> Answer {
        let command = &c.commands[at.0 as usize];
        let refuse = |code| Answer::Complete(Cqe::new(command.sqe.cid.get(), Status::fatal(code), 0));
        let Some(auth) = &mut c.auth else { return refuse(Code::INVALID_OPCODE) };
        let Ok(random) = auth::random() else { return refuse(Code::INTERNAL_ERROR) };
        let before = auth.outcome();
        let answer = auth.execute(&command.sqe, command.memory.bytes(&self.pool, MESSAGE_BYTES_MAX), random);
        let outcome = auth.outcome();
        if outcome != before {
            match outcome {
                Outcome::Pending => {}
                Outcome::Authenticated(agreement) => {
                    let fields = [
                        ("hash", agreement.hash.name().into()),
                        ("group", agreement.group.name().into()),
                        ("both_ways", agreement.both_ways.into()),
                    ];
                    self.tell(c, Level::Info, "authenticated", &fields);
                    if let Role::Admin(entry) = &c.role {
                        entry.controller().authenticated();
                    }
                }
                Outcome::Failed(failure) => self.unproven(c, failure),
            }
        }
        answer
    }

    /// The host hears of it by the answer that is on its way; then the connection ends.
    fn unproven(&mut self, c: &mut Connection, failure: Failure) {
        self.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
        self.tell(c, Level::Warning, "authentication failed", &[("why", failure.to_string().into())]);
        c.last_words = true;
    }

    fn tell(
        &self,
        c: &Connection,
        level: Level,
        what: &'static str,
        more: &[(&'static str, serde_json::Value)],
    ) {
        let host = c.role.entry().map_or("", |entry| &entry.host.nqn);
        let mut fields: Vec<(&'static str, serde_json::Value)> =
            vec![("peer", c.peer.to_string().into()), ("host", host.into()), ("qid", c.qid().into())];
        fields.extend_from_slice(more);
        self.shared.log.say(level, what, &fields);
    }
}
