//! The connections that a thread has.

use super::connection::Connection;
use super::ids::ConnectionId;
use super::message::Report;

/// A table by index. An index is used again once its connection is gone; an identity never is.
pub(super) struct Connections {
    thread: usize,
    table: Vec<Option<Box<Connection>>>,
    vacant: Vec<u32>,
    serial: u64,
}

impl Connections {
    pub(super) fn new(thread: usize) -> Connections {
        Connections { thread, table: Vec::new(), vacant: Vec::new(), serial: 0 }
    }

    /// A place for one more: `insert` fills it, or `remove` gives it back.
    pub(super) fn reserve(&mut self) -> ConnectionId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.table.push(None);
            (self.table.len() - 1) as u32
        });
        self.serial += 1;
        ConnectionId { thread: self.thread, index, serial: self.serial }
    }

    /// In the place that was reserved for it.
    pub(super) fn insert(&mut self, connection: Connection) -> &mut Connection {
        self.table[connection.id.index as usize].insert(Box::new(connection))
    }

    /// Its index may come again.
    pub(super) fn remove(&mut self, index: u32) -> Option<Box<Connection>> {
        self.vacant.push(index);
        self.table[index as usize].take()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.table.get_mut(index as usize)?.as_deref_mut()
    }

    /// All indices that there are, whether or not a connection has them now.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.table.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.len() == self.vacant.len()
    }

    /// Commands of some connection are between two steps on that namespace's queue.
    pub(super) fn use_queue(&self, number: u32) -> bool {
        self.iter().any(|c| c.commands.iter().any(|c| c.io.request.is_some() && c.io.queue == number))
    }

    pub(super) fn add_to(&self, report: &mut Report) {
        self.iter().for_each(|c| c.add_to(report));
    }

    fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.table.iter().flatten().map(|c| &**c)
    }
}
