//! I/Os on their way: each is cut into commands that the controller takes, and is done when its last command is.

use super::status::{fault, verdict, Verdict};
use super::Identity;
use forebay_io::{monotonic_now, Done, Fault, Full, Geometry, Io, Mem, Op, Via};
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm::{self, Range};
use forebay_nvme::status::Status;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of attempts for a command that fails for a reason that may pass.
const TRIES: u32 = 4;
/// Time for which a controller that can't serve now is left alone, unless it says otherwise before.
pub(crate) const REST: Duration = Duration::from_millis(100);
/// Optional commands (base, figure 312: ONCS).
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;

/// An I/O while its commands are out.
#[derive(Clone, Debug, Default)]
struct Whole {
    left: u32,
    bytes: u32,
    fault: Option<Fault>,
    staged: bool,
    moves: bool,
    abandoned: bool,
}

/// One command; `own` is what its transport keeps for it.
pub(crate) struct Command<X> {
    pub tag: u32,
    pub op: Op,
    pub offset: u64,
    pub len: u32,
    pub mem: Mem,
    pub tries: u32,
    pub started: Instant,
    pub own: X,
}

/// Outcome of a command that failed.
pub(crate) enum Outcome {
    End(Fault),
    /// The same again may succeed.
    Again,
    /// Fails here for now; another path, or the same a little later, may serve it.
    Elsewhere,
}

pub(crate) struct Work<X> {
    geometry: Geometry,
    /// Longest transfer of a command.
    transfer_max: u32,
    nsid: u32,
    /// ONCS.
    optional: u16,
    /// Way of payload that is not staged.
    via: Via,
    /// A command's payload lies in one place: what names it has one address.
    by_card: bool,
    /// A time before any command.
    began: Instant,
    whole: Vec<Whole>,
    pub commands: Vec<Command<X>>,
    free: Vec<u32>,
    /// Commands for which there was no room or nobody to take them, in order.
    pub pending: VecDeque<u32>,
    in_flight: u32,
    /// Finished without a command.
    ready: Vec<Done>,
}

impl<X: Default> Work<X> {
    /// `depth` I/Os at once, to and from memory aligned to `mem_align` bytes.
    pub(crate) fn new(identity: &Identity, nsid: u32, depth: u32, mem_align: u32, via: Via) -> Work<X> {
        let geometry = Geometry {
            bytes: identity.bytes(),
            align: identity.block_bytes(),
            mem_align,
            io_bytes_max: 1 << 30,
            depth,
        };
        let depth = depth as usize;
        Work {
            geometry,
            transfer_max: identity.transfer_bytes(),
            nsid,
            optional: identity.controller().optional_commands,
            via,
            by_card: false,
            began: monotonic_now(),
            whole: vec![Whole::default(); depth],
            commands: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            pending: VecDeque::with_capacity(depth),
            in_flight: 0,
            ready: Vec::new(),
        }
    }

    /// A card moves payload by itself. From now on no command's is scattered: where an I/O's is, it takes more commands.
    /// And it may lie in a GPU.
    pub(crate) fn move_by_card(&mut self) {
        self.by_card = true;
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// I/Os that were pushed and not yet reaped.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight + self.ready.len() as u32
    }

    /// I/Os with commands.
    pub(crate) fn has_commands(&self) -> bool {
        self.in_flight > 0
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn reap(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
    }

    pub(crate) fn push(&mut self, io: Io) -> Result<(), Full> {
        if self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        let inside = self.geometry.bytes.saturating_sub(io.offset).min(u64::from(io.len)) as u32;
        let result = match self.refusal(&io) {
            Some(fault) => Err(fault),
            None if inside == 0 && io.op != Op::Flush => Ok(0),
            None => {
                self.cut(&io, inside);
                return Ok(());
            }
        };
        self.ready.push(Done { tag: io.tag, result, via: Via::Nothing, copy_ns: 0 });
        Ok(())
    }

    fn refusal(&self, io: &Io) -> Option<Fault> {
        let missing = match io.op {
            Op::WriteZeroes => self.optional & ONCS_WRITE_ZEROES == 0,
            Op::Deallocate => self.optional & ONCS_DATASET_MANAGEMENT == 0,
            _ => false,
        };
        if missing {
            return Some(Fault::note(libc::EOPNOTSUPP, "the controller doesn't have this optional command"));
        }
        let align = self.geometry.align;
        if io.op != Op::Flush && (io.offset % u64::from(align) != 0 || io.len % align != 0) {
            let text =
                format!("offset and length aren't multiples of the namespace's blocks of {align} bytes");
            return Some(Fault::note(libc::EINVAL, text));
        }
        let in_gpu = self.by_card && matches!(io.mem, Mem::Device { .. });
        if moves(io.op) && !in_gpu && !io.mem.holds(io.len as usize) {
            let text = "the payload has no host memory, or less than its length";
            return Some(Fault::note(libc::EFAULT, text));
        }
        None
    }

    /// Its commands, which wait for somebody to take them.
    fn cut(&mut self, io: &Io, inside: u32) {
        let moves = moves(io.op);
        self.whole[io.tag as usize] = Whole { bytes: inside, moves, ..Whole::default() };
        self.in_flight += 1;
        if io.op == Op::Flush {
            return self.start(io, 0, 0, Mem::None);
        }
        let most = if io.op == Op::Deallocate { u32::MAX } else { self.transfer_max };
        let (mut at, mut mem) = (0, io.mem);
        while at < inside {
            let mut len = (inside - at).min(most);
            if let (true, true, Some(first)) = (moves, self.by_card, mem.each(len as usize).next()) {
                len = first.len as u32;
            }
            self.start(io, at, len, mem);
            mem = if moves { mem.after(len as usize) } else { mem };
            at += len;
        }
    }

    /// `mem` is where the command's own payload lies.
    fn start(&mut self, io: &Io, at: u32, len: u32, mem: Mem) {
        let command = Command {
            tag: io.tag,
            op: io.op,
            offset: io.offset + u64::from(at),
            len,
            mem: mem.narrow(len as usize),
            tries: 0,
            started: self.began,
            own: X::default(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.commands[index as usize] = command;
                index
            }
            None => {
                self.commands.push(command);
                self.commands.len() as u32 - 1
            }
        };
        self.whole[io.tag as usize].left += 1;
        self.pending.push_back(index);
    }

    /// The command, and the data of Dataset Management.
    pub(crate) fn sqe(&self, command: u32) -> (Sqe, Option<Range>) {
        let (nsid, block) = (self.nsid, self.geometry.align);
        let c = &self.commands[command as usize];
        let (slba, blocks) = (c.offset / u64::from(block), c.len / block);
        match c.op {
            Op::Read => (nvm::read(nsid, slba, blocks), None),
            Op::Write { durable } => (nvm::write(nsid, slba, blocks, durable), None),
            Op::Flush => (nvm::flush(nsid), None),
            Op::WriteZeroes => (nvm::write_zeroes(nsid, slba, blocks, true, false), None),
            Op::Deallocate => {
                let range = Range::new(slba, blocks);
                (nvm::deallocate(nsid, &[range]), Some(range))
            }
        }
    }

    /// Its payload went, or goes, through other memory.
    pub(crate) fn staged(&mut self, command: u32) {
        self.whole[self.commands[command as usize].tag as usize].staged = true;
    }

    pub(crate) fn is_abandoned(&self, command: u32) -> bool {
        self.whole[self.commands[command as usize].tag as usize].abandoned
    }

    pub(crate) fn outcome(&self, command: u32, status: Status) -> Outcome {
        match verdict(status) {
            _ if self.is_abandoned(command) => Outcome::End(Fault::errno(libc::ECANCELED)),
            Verdict::Fail(fault) => Outcome::End(fault),
            Verdict::OtherPath => Outcome::Elsewhere,
            Verdict::Again if self.commands[command as usize].tries < TRIES => Outcome::Again,
            Verdict::Again => {
                let fault = fault(status);
                Outcome::End(Fault::note(fault.errno, format!("{fault}, {TRIES} times over")))
            }
        }
    }

    /// A command is over, and with the last one its I/O.
    pub(crate) fn end(&mut self, command: u32, result: Result<(), Fault>, done: &mut Vec<Done>) {
        self.free.push(command);
        let tag = self.commands[command as usize].tag;
        let whole = &mut self.whole[tag as usize];
        if let Err(fault) = result {
            whole.fault.get_or_insert(fault);
        }
        whole.left -= 1;
        if whole.left == 0 {
            self.in_flight -= 1;
            done.push(std::mem::take(whole).finish(tag, self.via));
        }
    }

    /// Marks an I/O as given up. Its commands that nobody has yet are no longer pending, and the caller's to end; None
    /// where all of it is over.
    pub(crate) fn abandon(&mut self, tag: u32) -> Option<Vec<u32>> {
        let whole = &mut self.whole[tag as usize];
        if whole.left == 0 {
            return None;
        }
        whole.abandoned = true;
        let waiting: Vec<u32> =
            self.pending.iter().copied().filter(|c| self.commands[*c as usize].tag == tag).collect();
        self.pending.retain(|c| !waiting.contains(c));
        Some(waiting)
    }

    /// Keeps completions found outside of `reap` for the next one.
    pub(crate) fn keep(&mut self, mut done: Vec<Done>) {
        self.ready.append(&mut done);
    }
}

impl Whole {
    fn finish(self, tag: u32, direct: Via) -> Done {
        let via = match () {
            () if !self.moves => Via::Nothing,
            () if self.staged => Via::Staged,
            () => direct,
        };
        let result = match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self.bytes),
        };
        Done { tag, result, via, copy_ns: 0 }
    }
}

fn moves(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::Piece;
    use forebay_nvme::host::{ControllerInfo, NamespaceInfo};
    use forebay_nvme::log::AnaState;
    use std::ptr::NonNull;

    fn work() -> Work<()> {
        let identity = Identity::default();
        let namespace = NamespaceInfo {
            nsid: 1,
            block_bytes: 512,
            blocks: 1 << 20,
            read_only: false,
            uuid: None,
            nguid: None,
            eui64: None,
            ana_group: 0,
            ana_state: AnaState::Optimized,
            optimal_write_blocks: 0,
            boundary_blocks: 0,
            unusable: None,
            raw: Vec::new(),
        };
        identity.check(1, Some(&namespace), &ControllerInfo::default()).unwrap();
        Work::new(&identity, 1, 4, 1, Via::Direct)
    }

    // promise: RHO-10
    #[test]
    fn a_command_of_one_address_has_its_payload_in_one_place() {
        let bytes = [0u8; 8192];
        let at = |i: usize, len| Piece { at: NonNull::from(&bytes[i]), len };
        let list = [at(4096, 1024), at(0, 512), at(2048, 2048)];
        let io = |tag| Io { tag, op: Op::Read, offset: 512, len: 3584, mem: Mem::pieces(&list) };
        let mut whole = work();
        whole.push(io(0)).unwrap();
        assert_eq!(whole.pending.len(), 1);
        let mut cut = work();
        cut.move_by_card();
        cut.push(io(0)).unwrap();
        let mut places = Vec::new();
        for command in cut.pending.clone() {
            let c = &cut.commands[command as usize];
            places.push((c.offset, c.len, c.mem));
        }
        let host =
            |i: usize| Mem::Host { at: NonNull::from(&bytes[i]), piece: forebay_io::Mem::UNREGISTERED };
        assert_eq!(places, [(512, 1024, host(4096)), (1536, 512, host(0)), (2048, 2048, host(2048))]);
        let mut done = Vec::new();
        for command in cut.pending.clone() {
            assert!(done.is_empty());
            cut.end(command, Ok(()), &mut done);
        }
        assert_eq!(done[0].result, Ok(3584));
    }

    #[test]
    fn payload_in_a_gpu_is_for_cards_alone() {
        let mem = Mem::Device { gpu: 0, at: 1 << 40 };
        let io = Io { tag: 0, op: Op::Read, offset: 0, len: 8192, mem };
        let mut by_card = work();
        by_card.move_by_card();
        by_card.push(io).unwrap();
        let places: Vec<Mem> = by_card.pending.iter().map(|c| by_card.commands[*c as usize].mem).collect();
        assert_eq!(places[0], mem);
        let mut by_socket = work();
        by_socket.push(io).unwrap();
        let mut done = Vec::new();
        by_socket.reap(&mut done);
        assert!(by_socket.pending.is_empty() && done[0].result.is_err());
    }
}
