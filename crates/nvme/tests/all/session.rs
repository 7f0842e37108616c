//! A host's session against a target's controller, with nothing between them but this test, which owns time.

mod discovery;
mod peers;

use forebay_nvme::command::{admin, Cqe, Sqe, FABRICS};
use forebay_nvme::controller::connect::{Connect, Ids};
use forebay_nvme::controller::subsystem::{HostSettings, Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::controller::{data_out, Answer, Controller, Effect};
use forebay_nvme::fabrics::fctype;
use forebay_nvme::host::discovery::Discovery;
use forebay_nvme::host::{Action, Data, Event, Failure, FailureKind, Options, Request, RequestId, Session};
use forebay_nvme::log::AnaState;
use forebay_nvme::status::{Code, Status};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const NQN: &str = "nqn.2014-08.org.example:disks";
const HOST: &str = "nqn.2014-08.org.example:host1";
const OTHER: &str = "nqn.2014-08.org.example:host2";

fn namespace(blocks: u64) -> Namespace {
    Namespace {
        block_bytes: 4096,
        blocks,
        read_only: false,
        volatile_write_cache: false,
        deallocate: false,
        uuid: Some([7; 16]),
        nguid: None,
        eui64: None,
        ana_group: 1,
        optimal: Optimal::default(),
    }
}

fn subsystem(namespaces: impl IntoIterator<Item = (u32, Namespace)>) -> Subsystem {
    let namespaces = namespaces.into_iter().collect();
    Subsystem {
        nqn: NQN.into(),
        serial: "F0REBAY".into(),
        model: "Forebay".into(),
        firmware: "1.0".into(),
        kind: Kind::Nvm { namespaces, ana: BTreeMap::new() },
        hosts: Hosts::Any(HostSettings::default()),
        limits: Limits::default(),
    }
}

fn with_ana(mut subsystem: Subsystem, states: &[(u32, AnaState)]) -> Subsystem {
    if let Kind::Nvm { ana, .. } = &mut subsystem.kind {
        ana.extend(states.iter().copied());
    }
    subsystem
}

fn options() -> Options {
    Options {
        host_nqn: HOST.into(),
        host_id: [9; 16],
        subsystem_nqn: NQN.into(),
        queues: 4,
        queue_entries: 129,
        keep_alive_ms: 5000,
        timeout_ms: 2000,
        namespace: None,
    }
}

/// Either kind of session.
trait Driven {
    fn next(&mut self, now_ms: u64) -> Result<Action, Failure>;
    fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64);
}

macro_rules! driven {
    ($($kind:ty)*) => { $(impl Driven for $kind {
        fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
            <$kind>::next(self, now_ms)
        }
        fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64) {
            <$kind>::completed(self, request_id, cqe, data, now_ms)
        }
    })* };
}
driven!(Session Discovery);

/// Answer to a command in the controller's place.
type Fault = dyn FnMut(&Sqe) -> Option<(Cqe, Vec<u8>)>;

/// The target, and what lies between it and the host.
struct Target {
    subsystem: Arc<Subsystem>,
    controller: Option<Controller>,
    now_ms: u64,
    /// Commands that are not answered yet, by tag.
    parked: HashMap<u16, RequestId>,
    /// Fault that the test injects: this answer in place of the controller's.
    fault: Option<Box<Fault>>,
    commands: usize,
    effects: Vec<Effect>,
}

impl Target {
    fn new(subsystem: Subsystem) -> Target {
        Target {
            subsystem: Arc::new(subsystem),
            controller: None,
            now_ms: 1000,
            parked: HashMap::new(),
            fault: None,
            commands: 0,
            effects: Vec::new(),
        }
    }

    fn controller(&mut self) -> &mut Controller {
        self.controller.as_mut().expect("connected")
    }

    fn execute(&mut self, mut request: Request) -> Answer {
        self.commands += 1;
        request.sqe.cid = (request.request_id.0 ^ 0x5000).into();
        let data = match &request.data {
            Data::Out(data) => &data[..],
            _ => &[],
        };
        let length = match &request.data {
            Data::Out(data) => data.len() as u32,
            Data::In(bytes) => *bytes,
            Data::None => 0,
        };
        request.sqe.sgl = forebay_nvme::command::Sgl::transport(length);
        assert_eq!(data_out(&request.sqe), Ok(data.len() as u32));
        if let Some((cqe, data)) = self.fault.as_mut().and_then(|fault| fault(&request.sqe)) {
            return if data.is_empty() { Answer::Complete(cqe) } else { Answer::Data { data, cqe } };
        }
        match &mut self.controller {
            Some(controller) => controller.execute(request.request_id.0, &request.sqe, data, self.now_ms),
            None => {
                let connect = Connect::parse(&request.sqe, data).expect("a Connect");
                match Controller::connect(self.subsystem.clone(), &connect, 17, self.now_ms) {
                    Ok((controller, admitted)) => {
                        self.controller = Some(controller);
                        Answer::Complete(admitted.completion(request.sqe.cid.get()))
                    }
                    Err(refusal) => Answer::Complete(refusal.completion(request.sqe.cid.get())),
                }
            }
        }
    }

    /// Runs until the session waits with nothing under way but events.
    fn run_until_quiet(&mut self, session: &mut impl Driven) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        for _ in 0..100_000 {
            self.deliver(session);
            match session.next(self.now_ms)? {
                Action::Submit(request) => {
                    let request_id = request.request_id;
                    match self.execute(request) {
                        Answer::Complete(cqe) => session.completed(request_id, &cqe, &[], self.now_ms),
                        Answer::Data { data, cqe } => session.completed(request_id, &cqe, &data, self.now_ms),
                        Answer::Parked => assert!(self.parked.insert(request_id.0, request_id).is_none()),
                        other => panic!("{other:?}"),
                    }
                }
                Action::Event(event) => events.push(event),
                Action::Authenticate { .. } => return Ok(events),
                Action::Wait { until_ms } if until_ms <= self.now_ms + 100 => self.now_ms = until_ms,
                Action::Wait { .. } => return Ok(events),
            }
        }
        panic!("it never settles")
    }

    fn deliver(&mut self, session: &mut impl Driven) {
        let Some(controller) = &mut self.controller else { return };
        while let Some(effect) = controller.next_effect() {
            match effect {
                Effect::Complete { tag, cqe } => {
                    let request_id = self.parked.remove(&tag).expect("it was parked");
                    assert_eq!(cqe.cid.get(), request_id.0 ^ 0x5000);
                    session.completed(request_id, &cqe, &[], self.now_ms);
                }
                other => self.effects.push(other),
            }
        }
    }

    fn update(&mut self, subsystem: Subsystem) {
        self.subsystem = Arc::new(subsystem);
        let subsystem = self.subsystem.clone();
        self.controller().update(subsystem);
    }
}

fn up(subsystem: Subsystem, options: Options) -> (Target, Session) {
    let mut target = Target::new(subsystem);
    let mut session = Session::new(options, target.now_ms);
    assert_eq!(target.run_until_quiet(&mut session), Ok(vec![Event::Ready]));
    (target, session)
}

#[test]
fn a_session_learns_the_controller_and_its_namespaces() {
    let small = Namespace { block_bytes: 512, read_only: true, ana_group: 3, ..namespace(77) };
    let subsystem =
        with_ana(subsystem([(1, namespace(1 << 20)), (900, small)]), &[(3, AnaState::NonOptimized)]);
    let (_, session) = up(subsystem, options());
    let info = session.controller();
    assert_eq!((info.cntlid, info.queues, info.queue_entries), (17, 4, 129));
    assert_eq!((info.transfer_bytes, info.in_capsule_bytes), (Some(1 << 20), 16 << 10));
    assert_eq!((&info.serial[..], &info.model[..], &info.firmware[..]), ("F0REBAY", "Forebay", "1.0"));
    assert_eq!((&info.subsystem_nqn[..], info.version, info.ana), (NQN, 0x20000, true));
    let found = session.namespaces();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 900]);
    assert_eq!((found[&1].block_bytes, found[&1].blocks, found[&1].read_only), (4096, 1 << 20, false));
    assert_eq!((found[&1].uuid, found[&1].ana_state), (Some([7; 16]), AnaState::Optimized));
    assert_eq!((found[&900].block_bytes, found[&900].read_only), (512, true));
    assert_eq!((found[&900].ana_group, found[&900].ana_state), (3, AnaState::NonOptimized));
}

#[test]
fn limits_of_both_sides_meet() {
    let mut small = subsystem([(1, namespace(8))]);
    small.limits = Limits {
        queues: 2,
        queue_entries: 32,
        in_capsule_bytes: 0,
        transfer_bytes: None,
        ..Limits::default()
    };
    let (_, session) = up(small, options());
    let info = session.controller();
    assert_eq!(
        (info.queues, info.queue_entries, info.transfer_bytes, info.in_capsule_bytes),
        (2, 32, None, 0)
    );
}

#[test]
fn io_queues_connect_to_their_controller() {
    let (mut target, session) = up(subsystem([(1, namespace(8))]), options());
    let connect = |target: &mut Target, qid: u16| {
        let request = session.connect_io(qid).unwrap();
        let Data::Out(data) = &request.data else { panic!("Connect has data") };
        let connect = Connect::parse(&request.sqe, data).unwrap();
        let cqe = match target.controller().connect_io(&connect, 0) {
            Ok(admitted) => {
                assert_eq!((admitted.qid, admitted.entries), (qid, 129));
                admitted.completion(5)
            }
            Err(refusal) => refusal.completion(5),
        };
        session.connected_io(qid, &cqe)
    };
    for qid in 1..=4 {
        assert_eq!(connect(&mut target, qid), Ok(None));
    }
    let twice = connect(&mut target, 2).unwrap_err();
    assert_eq!(twice.status.unwrap().code, Code::COMMAND_SEQUENCE_ERROR);
    target.controller().disconnect_io(2);
    assert_eq!(connect(&mut target, 2), Ok(None));
    let beyond = connect(&mut target, 129).unwrap_err();
    assert!(beyond.to_string().contains("queue identifier"), "{beyond}");
}

// promise: NCT-1
#[test]
fn a_host_that_is_not_listed_is_told_so() {
    let mut closed = subsystem([(1, namespace(8))]);
    closed.hosts = Hosts::Listed([(OTHER.to_string(), HostSettings::default())].into());
    let mut target = Target::new(closed);
    let mut session = Session::new(options(), 0);
    let failure = target.run_until_quiet(&mut session).unwrap_err();
    assert_eq!((failure.kind, failure.retry()), (FailureKind::Refused, false));
    assert!(failure.to_string().contains(HOST) && failure.to_string().contains(NQN), "{failure}");
    let mut target = Target::new(subsystem([]));
    let mut session =
        Session::new(Options { subsystem_nqn: "nqn.2014-08.org.example:no".into(), ..options() }, 0);
    let failure = target.run_until_quiet(&mut session).unwrap_err();
    assert!(failure.to_string().contains("nqn.2014-08.org.example:no"), "{failure}");
}

#[test]
fn a_namespace_that_is_not_there_is_named_beside_those_that_are() {
    let mut target = Target::new(subsystem([(1, namespace(8)), (5, namespace(8))]));
    let mut session = Session::new(Options { namespace: Some(2), ..options() }, 0);
    let failure = target.run_until_quiet(&mut session).unwrap_err();
    assert_eq!(failure.to_string(), "namespace 2: it is not there; there are: 1, 5");
    let (_, session) =
        up(subsystem([(1, namespace(8)), (5, namespace(9))]), Options { namespace: Some(5), ..options() });
    assert_eq!(session.namespaces().keys().copied().collect::<Vec<_>>(), [5]);
}

// promise: NCT-4
#[test]
fn namespaces_that_come_and_go_are_heard_of() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8)), (2, namespace(8))]), options());
    target.update(subsystem([(2, namespace(16)), (3, namespace(4))]));
    let events = target.run_until_quiet(&mut session).unwrap();
    assert_eq!(events, [Event::Gone(1), Event::Changed(2), Event::Changed(3)]);
    assert_eq!(session.namespaces()[&2].blocks, 16);
    // Each change is heard of, not only the first.
    for blocks in 20..30 {
        target.update(subsystem([(2, namespace(blocks)), (3, namespace(4))]));
        assert_eq!(target.run_until_quiet(&mut session).unwrap(), [Event::Changed(2)]);
        assert_eq!(session.namespaces()[&2].blocks, blocks);
    }
}

// promise: NCT-4
#[test]
fn changes_between_two_looks_are_not_lost() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8))]), options());
    target.update(subsystem([(1, namespace(9))]));
    target.update(subsystem([(1, namespace(10)), (4, namespace(1))]));
    target.update(subsystem([(1, namespace(11))]));
    assert_eq!(target.run_until_quiet(&mut session).unwrap(), [Event::Changed(1)]);
    assert_eq!((session.namespaces().len(), session.namespaces()[&1].blocks), (1, 11));
}

// promise: NCT-4
#[test]
fn states_of_ana_groups_are_followed() {
    let state = |state| with_ana(subsystem([(1, namespace(8))]), &[(1, state)]);
    let (mut target, mut session) = up(state(AnaState::Optimized), options());
    for next in [AnaState::Inaccessible, AnaState::Change, AnaState::NonOptimized, AnaState::Optimized] {
        target.update(state(next));
        assert_eq!(target.run_until_quiet(&mut session).unwrap(), [Event::Ana], "{next:?}");
        assert_eq!(session.namespaces()[&1].ana_state, next);
    }
}

#[test]
fn a_namespace_of_a_group_that_was_empty_has_the_groups_state_of_today() {
    let moved = |group| Namespace { ana_group: group, ..namespace(8) };
    let (mut target, mut session) =
        up(with_ana(subsystem([(1, namespace(8))]), &[(5, AnaState::Inaccessible)]), options());
    target.update(subsystem([(1, namespace(8))]));
    assert_eq!(target.run_until_quiet(&mut session).unwrap(), [], "no namespace is concerned");
    target.update(with_ana(subsystem([(1, namespace(8)), (2, moved(5))]), &[(5, AnaState::NonOptimized)]));
    target.run_until_quiet(&mut session).unwrap();
    assert_eq!(session.namespaces()[&2].ana_state, AnaState::NonOptimized);
}

// promise: NCT-6
#[test]
fn keep_alive_keeps_it_alive_and_silence_ends_it() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8))]), options());
    for _ in 0..50 {
        let Ok(Action::Wait { until_ms }) = session.next(target.now_ms) else { panic!("it should wait") };
        target.now_ms = until_ms;
        target.run_until_quiet(&mut session).unwrap();
        let now_ms = target.now_ms;
        assert!(!target.controller().tick(false, now_ms), "at {now_ms}");
    }
    assert!(target.now_ms > 100_000);
    let deadline = target.controller().deadline_ms().unwrap();
    assert_eq!(deadline, target.now_ms + 5000);
    assert!(!target.controller().tick(false, deadline - 1));
    assert!(!target.controller().tick(true, deadline), "I/O is a sign of life");
    assert!(!target.controller().tick(false, deadline + 4999));
    assert!(target.controller().tick(false, deadline + 5000));
}

#[test]
fn a_controller_that_reports_without_end_is_heard_out_slowly() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8))]), options());
    let (tag, request_id) = target.parked.drain().next().expect("a request waits");
    assert_eq!(tag, request_id.0);
    let warning = |request_id: RequestId, session: &mut Session, now_ms: u64| {
        session.completed(request_id, &Cqe::new(0, Status::SUCCESS, 0x06_0001), &[], now_ms);
    };
    warning(request_id, &mut session, target.now_ms);
    let (start, mut requests, mut turns) = (target.now_ms, 0, 0);
    while target.now_ms < start + 3000 {
        turns += 1;
        match session.next(target.now_ms).unwrap() {
            Action::Submit(request) if request.sqe.opcode == admin::ASYNC_EVENT_REQUEST => {
                requests += 1;
                warning(request.request_id, &mut session, target.now_ms);
            }
            Action::Submit(request) => {
                session.completed(
                    request.request_id,
                    &Cqe::new(0, Status::SUCCESS, 0),
                    &[0; 4096],
                    target.now_ms,
                );
            }
            Action::Event(event) => assert_eq!(event, Event::Warning(0x06_0001)),
            Action::Wait { until_ms } => target.now_ms = until_ms,
            Action::Authenticate { .. } => panic!("nobody asked for that"),
        }
    }
    assert!((90..=110).contains(&requests) && turns < 400, "{requests} requests, {turns} turns");
}

// promise: RHO-13
#[test]
fn commands_are_aborted_as_many_at_once_as_the_controller_takes() {
    let (mut target, mut session) = up(subsystem([(1, namespace(1000))]), options());
    let connect = session.connect_io(1).unwrap();
    let Data::Out(data) = &connect.data else { panic!("Connect has data") };
    let connect = Connect::parse(&connect.sqe, data).unwrap();
    target.controller().connect_io(&connect, 0).unwrap();
    assert_eq!(session.controller().aborts, 4);
    (100..110).for_each(|cid| session.abort(1, cid));
    let mut asked = Vec::new();
    while asked.len() < 10 {
        assert_eq!(target.run_until_quiet(&mut session), Ok(vec![]));
        let effects = std::mem::take(&mut target.effects);
        assert!((1..=4).contains(&effects.len()), "{effects:?}");
        for effect in effects {
            let Effect::Abort { tag, sqid: 1, cid } = effect else { panic!("{effect:?}") };
            asked.push(cid);
            target.controller().aborted(tag, cid % 2 == 0);
        }
    }
    assert_eq!(asked, (100..110).collect::<Vec<_>>());
    session.abort(9, 1);
    assert_eq!(target.run_until_quiet(&mut session), Ok(vec![]), "one that finds nothing ends nothing");
}

// promise: NCT-6
#[test]
fn a_controller_that_falls_silent_is_given_up() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8))]), options());
    let Ok(Action::Wait { until_ms }) = session.next(target.now_ms) else { panic!("it should wait") };
    target.now_ms = until_ms;
    assert!(matches!(session.next(until_ms), Ok(Action::Submit(r)) if r.sqe.opcode == admin::KEEP_ALIVE));
    let Ok(Action::Wait { until_ms: deadline }) = session.next(until_ms) else { panic!("it should wait") };
    assert_eq!(deadline, until_ms + 2000);
    let failure = session.next(deadline).unwrap_err();
    assert_eq!((failure.kind, failure.retry()), (FailureKind::Again, true));
    assert!(failure.to_string().contains("Keep Alive"), "{failure}");
}

#[test]
fn a_shutdown_waits_until_all_is_durable() {
    let (mut target, mut session) = up(subsystem([(1, namespace(8))]), options());
    session.shut_down(target.now_ms);
    for _ in 0..3 {
        let Ok(Action::Submit(request)) = session.next(target.now_ms) else { break };
        let request_id = request.request_id;
        let Answer::Complete(cqe) = target.execute(request) else { panic!("properties have no data") };
        session.completed(request_id, &cqe, &[], target.now_ms);
    }
    let effects: Vec<Effect> = std::iter::from_fn(|| target.controller().next_effect()).collect();
    assert!(effects.contains(&Effect::ShutDown), "{effects:?}");
    // Event requests that are under way stay unanswered.
    assert!(!effects.iter().any(|e| matches!(e, Effect::Complete { cqe, .. } if !cqe.status().is_success())));
    assert!(!session.is_shut_down());
    target.controller().shut_down_complete();
    target.run_until_quiet(&mut session).unwrap();
    assert!(session.is_shut_down());
}

// promise: NCT-1
#[test]
fn a_host_that_must_authenticate_gets_nothing_before() {
    let mut closed = subsystem([(1, namespace(8))]);
    let settings = HostSettings { authentication: true, ..HostSettings::default() };
    closed.hosts = Hosts::Listed([(HOST.to_string(), settings)].into());
    let mut target = Target::new(closed);
    let mut session = Session::new(options(), target.now_ms);
    assert_eq!(target.run_until_quiet(&mut session), Ok(vec![]));
    assert_eq!(target.commands, 1);
    let status = |target: &mut Target, sqe: Sqe| match target.controller().execute(1, &sqe, &[], 0) {
        Answer::Complete(cqe) => Some(cqe.status().code),
        _ => None,
    };
    let identify = Sqe { opcode: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(status(&mut target, identify), Some(Code::AUTHENTICATION_REQUIRED));
    let property = Sqe { opcode: FABRICS, nsid: u32::from(fctype::PROPERTY_GET).into(), ..Sqe::default() };
    assert_eq!(status(&mut target, property), Some(Code::AUTHENTICATION_REQUIRED));
    let send = Sqe { opcode: FABRICS, nsid: u32::from(fctype::AUTHENTICATION_SEND).into(), ..Sqe::default() };
    assert_eq!(target.controller().execute(1, &send, &[], 0), Answer::Authenticate);
    target.controller().authenticated();
    session.authenticated(target.now_ms);
    assert_eq!(target.run_until_quiet(&mut session), Ok(vec![Event::Ready]));
}

#[test]
fn identifiers_of_controllers_come_round_late() {
    let mut ids = Ids::new(5..=8);
    assert_eq!([ids.take(), ids.take()], [Some(5), Some(6)]);
    ids.give_back(5);
    assert_eq!([ids.take(), ids.take(), ids.take()], [Some(7), Some(8), Some(5)]);
    assert_eq!(ids.take(), None);
    ids.give_back(7);
    assert_eq!(ids.take(), Some(7));
}
