//! Requests of a driver to its controller's session, discovery session, or single command.

use super::discovery::Discovery;
use super::{Action, Failure, RequestId, Session};
use crate::command::Cqe;

pub trait Care {
    fn next(&mut self, now_ms: u64) -> Result<Action, Failure>;
    fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64);
    fn authenticated(&mut self, now_ms: u64);
}

impl Care for Session {
    fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
        Session::next(self, now_ms)
    }
    fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64) {
        Session::completed(self, request_id, cqe, data, now_ms);
    }
    fn authenticated(&mut self, now_ms: u64) {
        Session::authenticated(self, now_ms);
    }
}

impl Care for Discovery {
    fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
        Discovery::next(self, now_ms)
    }
    fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64) {
        Discovery::completed(self, request_id, cqe, data, now_ms);
    }
    fn authenticated(&mut self, now_ms: u64) {
        Discovery::authenticated(self, now_ms);
    }
}
