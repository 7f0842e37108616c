//! Flow control of a submission queue by its completions, on any transport.

use crate::command::Cqe;

/// Flow control by SQHD (base, section 3.3.3.2; Connect response).
#[derive(Debug)]
pub(super) enum Flow {
    /// Before Connect, and where it fails.
    None,
    On {
        entries: u16,
        head: u16,
    },
    /// Flow control is off, and the response to Connect has yet to say so.
    Off {
        reported: bool,
    },
}

impl Flow {
    /// Once Connect said how many entries the queue has, and whether flow control is on.
    pub fn new(entries: u16, flow_control: bool) -> Flow {
        match flow_control {
            true => Flow::On { entries, head: 0 },
            false => Flow::Off { reported: false },
        }
    }

    /// SQHD of the next completion.
    pub fn head(&mut self) -> u16 {
        match self {
            Flow::None => 0,
            Flow::On { entries, head } => {
                *head = (*head + 1) % *entries;
                *head
            }
            // FFFFh in Connect's response says that flow control is off; reserved from then on.
            Flow::Off { reported } => {
                if std::mem::replace(reported, true) {
                    0
                } else {
                    u16::MAX
                }
            }
        }
    }

    /// Only where SQHD needn't be told, and nothing else (tcp, section 3.3.2).
    pub fn may_say_success(&self, cqe: &Cqe) -> bool {
        matches!(self, Flow::Off { reported: true }) && cqe.status.get() == 0 && cqe.result.get() == 0
    }
}
