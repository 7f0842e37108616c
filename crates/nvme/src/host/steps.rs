//! The steps of a session, one command after the other: bringing a controller up (base, section 3.5.1), and what its
//! events ask for later.

mod text;

use super::admin::{expect_success, spelled, Asked};
use super::discovery::Reading;
use super::namespaces::{ana_page, ScanStep};
use super::{Data, Event, Failure, Options, Session, NOT_LET_IN};
use crate::command::{admin, Cqe, Sqe};
use crate::fabrics::{
    cattr, css, Cap, Cc, Connect, ConnectData, Connected, Csts, InvalidParameter, Property, PropertyGet,
    PropertySet,
};
use crate::feature::{event_mask, event_type, fid, AsyncEvent, Queues, SetFeatures};
use crate::identify::{cmic, cns, vwc, Controller, Identify, BYTES};
use crate::log::{lid, AnaLog, GetLogPage};
use crate::status::Code;
use text::{field, parameter, text, whole};
use zerocopy::IntoBytes;

/// Interval at which CSTS is read while it is to change.
const POLL_MS: u64 = 20;
/// Events that are asked for: namespaces, ANA states, critical warnings. Discovery: changes of its log.
const EVENTS: u32 = event_mask::NAMESPACE_ATTRIBUTES | event_mask::ANA_CHANGE;
const WARNINGS: u32 = 0b1_1111;

/// Step of a session: the command that is out, or the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: the next job begins.
    Idle,
    Connect,
    Authenticate {
        secure_channel: bool,
        reported: bool,
    },
    Capabilities,
    Version,
    Enable,
    /// CSTS is read at this time.
    PollReady {
        at_ms: u64,
        until_ms: u64,
    },
    AwaitReady {
        until_ms: u64,
    },
    IdentifyController,
    Queues,
    Events {
        bits: u32,
    },
    Scan(ScanStep),
    Ana,
    ChangedNamespaces,
    /// A log page that is read only so that its events come again.
    Clear(u8),
    Discovery,
    StartShutdown,
    PollShutdown {
        at_ms: u64,
        until_ms: u64,
    },
    AwaitShutdown {
        until_ms: u64,
    },
    ShutDown,
}

impl Step {
    /// When it goes on by itself.
    pub(super) fn time_ms(self) -> Option<u64> {
        match self {
            Step::PollReady { at_ms, .. } | Step::PollShutdown { at_ms, .. } => Some(at_ms),
            _ => None,
        }
    }

    fn is_shutting_down(self) -> bool {
        matches!(
            self,
            Step::StartShutdown | Step::PollShutdown { .. } | Step::AwaitShutdown { .. } | Step::ShutDown
        )
    }

    /// Description for failures.
    fn name(self) -> String {
        match self {
            Step::Connect => "Connect of the admin queue".into(),
            Step::Authenticate { .. } => "authentication".into(),
            Step::Capabilities => "Property Get of CAP".into(),
            Step::Version => "Property Get of VS".into(),
            Step::Enable => "Property Set of CC, to enable the controller".into(),
            Step::PollReady { .. } | Step::AwaitReady { .. } => "CSTS.RDY, to become 1".into(),
            Step::IdentifyController => "Identify of the controller".into(),
            Step::Queues => "Set Features, Number of Queues".into(),
            Step::Events { .. } => "Set Features, Asynchronous Event Configuration".into(),
            Step::Scan(step) => step.name(),
            Step::Ana => "Get Log Page, Asymmetric Namespace Access".into(),
            Step::ChangedNamespaces => "Get Log Page, Changed Namespace List".into(),
            Step::Clear(lid) => format!("Get Log Page {lid:#04x}"),
            Step::Discovery => "Get Log Page, Discovery".into(),
            Step::StartShutdown => "Property Set of CC, to shut the controller down".into(),
            Step::PollShutdown { .. } | Step::AwaitShutdown { .. } => "CSTS.SHST, to become 2".into(),
            Step::Idle | Step::ShutDown => "nothing".into(),
        }
    }
}

/// Job that is still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Look at all namespaces again.
    Scan,
    /// Read which namespaces changed, then look at those.
    Changes,
    Ana,
    Discovery,
    /// Read this log page, so that its events come again.
    Clear(u8),
    /// All of the bring-up is done.
    Ready,
}

impl Session {
    /// Work that depends on time: late commands, keep alive, polls; then the next job.
    pub(super) fn work(&mut self, now_ms: u64) {
        if let Some(late) = self.admin.late(now_ms) {
            return self.too_late(late);
        }
        if self.keep_alive.due(now_ms) && !self.admin.is_out(Asked::KeepAlive) {
            let sqe = Sqe { opcode: admin::KEEP_ALIVE, ..Sqe::default() };
            self.admin.submit(Asked::KeepAlive, sqe, Data::None, now_ms);
        }
        if self.event_pace.due(now_ms) {
            let sqe = Sqe { opcode: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
            self.admin.submit(Asked::Event, sqe, Data::None, now_ms);
        }
        self.send_aborts(now_ms);
        match self.step {
            Step::PollReady { at_ms, until_ms } if at_ms <= now_ms => {
                self.get(Step::AwaitReady { until_ms }, Property::Csts, now_ms);
            }
            Step::PollShutdown { at_ms, until_ms } if at_ms <= now_ms => {
                self.get(Step::AwaitShutdown { until_ms }, Property::Csts, now_ms);
            }
            Step::Idle => self.next_job(now_ms),
            _ => {}
        }
    }

    fn too_late(&mut self, late: Asked) {
        if self.step.is_shutting_down() {
            self.step = Step::ShutDown;
            return self.admin.forget();
        }
        let asked = match late {
            Asked::Step => self.step.name(),
            Asked::KeepAlive | Asked::Event => "Keep Alive".into(),
            Asked::Abort => "Abort".into(),
        };
        let found = format!("no answer came within {} ms", self.admin.timeout_ms());
        self.failure = Some(Failure::again(asked, found));
    }

    /// Abort (base, section 5.1), as many at once as the controller takes.
    fn send_aborts(&mut self, now_ms: u64) {
        while !self.aborts.is_empty() && self.admin.count(Asked::Abort) < usize::from(self.info.aborts) {
            let Some((sqid, cid)) = self.aborts.pop_front() else { return };
            let names = u32::from(sqid) | u32::from(cid) << 16;
            let sqe = Sqe { opcode: admin::ABORT, cdw10: names.into(), ..Sqe::default() };
            self.admin.submit(Asked::Abort, sqe, Data::None, now_ms);
        }
    }

    pub(super) fn add_job(&mut self, job: Job) {
        if !self.jobs.contains(&job) {
            self.jobs.push_back(job);
        }
    }

    fn next_job(&mut self, now_ms: u64) {
        let Some(job) = self.jobs.pop_front() else { return };
        match job {
            Job::Scan => {
                let first = self.namespaces.begin(None);
                self.continue_scan(Some(first), now_ms);
            }
            Job::Changes => {
                self.read(Step::ChangedNamespaces, GetLogPage::new(lid::CHANGED_NAMESPACES, 0, 4096), now_ms)
            }
            Job::Ana => self.read_ana(now_ms),
            Job::Discovery => self.read_discovery(now_ms),
            Job::Clear(lid) => self.read(Step::Clear(lid), GetLogPage::new(lid, 0, 512), now_ms),
            Job::Ready => {
                self.ready = true;
                self.namespaces.watch();
                self.events.push_back(Event::Ready);
            }
        }
    }

    pub(super) fn ask(&mut self, step: Step, sqe: Sqe, data: Data, now_ms: u64) {
        self.step = step;
        self.admin.submit(Asked::Step, sqe, data, now_ms);
    }

    fn get(&mut self, step: Step, property: Property, now_ms: u64) {
        self.ask(step, PropertyGet::new(property).to_sqe(), Data::None, now_ms);
    }

    pub(super) fn read(&mut self, step: Step, page: GetLogPage, now_ms: u64) {
        // Pages of the controller as a whole are named by all ones.
        let nsid = if page.lid == lid::SMART { u32::MAX } else { 0 };
        let bytes = page.bytes as u32;
        self.ask(step, GetLogPage { nsid, ..page }.to_sqe(), Data::In(bytes), now_ms);
    }

    pub(super) fn identify(&mut self, step: Step, cns: u8, nsid: u32, now_ms: u64) {
        let sqe = Identify { cns, nsid, ..Identify::default() }.to_sqe();
        self.ask(step, sqe, Data::In(BYTES as u32), now_ms);
    }

    /// The command in hand is over.
    pub(super) fn advance(&mut self, cqe: &Cqe, data: &[u8], now_ms: u64) -> Result<(), Failure> {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        let name = step.name();
        // A controller need not have events, nor descriptors, nor pages that are only read to hear of their events again.
        if !matches!(
            step,
            Step::Connect | Step::Events { .. } | Step::Scan(ScanStep::Descriptors(_)) | Step::Clear(_)
        ) {
            expect_success(&name, cqe)?;
        }
        match step {
            Step::Connect => self.connected(&name, cqe, now_ms)?,
            Step::Capabilities => {
                self.capabilities = Cap(cqe.result.get());
                self.get(Step::Version, Property::Vs, now_ms);
            }
            Step::Version => {
                self.info.version = cqe.result.get() as u32;
                self.enable(now_ms);
            }
            Step::Enable => self.await_ready(now_ms),
            Step::AwaitReady { until_ms } => self.check_ready(cqe, until_ms, now_ms)?,
            Step::IdentifyController => self.identified(whole(&name, data)?, now_ms),
            Step::Queues => self.granted(cqe, now_ms),
            Step::Events { bits } if !cqe.status().is_success() && bits & WARNINGS != 0 => {
                self.configure_events(bits & !WARNINGS, now_ms);
            }
            Step::Events { .. } => self.configured(now_ms),
            Step::Scan(step) => self.take_scan_step(step, cqe, data, now_ms)?,
            Step::Ana => {
                let log = AnaLog::parse(data).map_err(|e| Failure::protocol(name, e.to_string()))?;
                self.namespaces.set_ana(log);
                self.continue_scan(None, now_ms);
            }
            Step::ChangedNamespaces => {
                let first = self.namespaces.changes_came(whole(&name, data)?);
                self.continue_scan(Some(first), now_ms);
            }
            Step::Discovery => self.discovery_came(data, now_ms)?,
            Step::StartShutdown => {
                let until_ms = now_ms.saturating_add(self.admin.timeout_ms());
                self.step = Step::PollShutdown { at_ms: now_ms, until_ms };
            }
            Step::AwaitShutdown { until_ms } => self.check_shutdown(cqe, until_ms, now_ms),
            Step::Clear(_) | Step::Idle => {}
            Step::Authenticate { .. }
            | Step::PollReady { .. }
            | Step::PollShutdown { .. }
            | Step::ShutDown => {
                self.step = step;
            }
        }
        Ok(())
    }

    /// A look of the scan for namespaces is answered.
    fn take_scan_step(&mut self, step: ScanStep, cqe: &Cqe, data: &[u8], now_ms: u64) -> Result<(), Failure> {
        let next = match step {
            ScanStep::List { after } => self.namespaces.listed(after, whole(&step.name(), data)?)?,
            ScanStep::Namespace(nsid) => {
                let (next, new_group) = self.namespaces.described(nsid, whole(&step.name(), data)?)?;
                if self.info.ana && new_group {
                    self.add_job(Job::Ana);
                }
                next
            }
            ScanStep::Descriptors(nsid) => {
                self.namespaces.named(nsid, if cqe.status().is_success() { data } else { &[] })
            }
        };
        self.continue_scan(next, now_ms);
        Ok(())
    }

    /// Tells what was seen, and looks on.
    fn continue_scan(&mut self, next: Option<ScanStep>, now_ms: u64) {
        self.events.extend(self.namespaces.take_news());
        if let Some(step) = next {
            let (cns, nsid) = step.identify();
            self.identify(Step::Scan(step), cns, nsid, now_ms);
        }
    }

    fn read_ana(&mut self, now_ms: u64) {
        if let Some(page) = ana_page(&self.info) {
            self.read(Step::Ana, page, now_ms);
        }
    }

    fn read_discovery(&mut self, now_ms: u64) {
        if let Some(page) = self.discovery.as_mut().and_then(Reading::next) {
            self.read(Step::Discovery, page, now_ms);
        }
    }

    fn discovery_came(&mut self, data: &[u8], now_ms: u64) -> Result<(), Failure> {
        self.discovery.as_mut().map_or(Ok(()), |reading| reading.take(data))?;
        self.read_discovery(now_ms);
        Ok(())
    }

    /// The Connect command of a queue, and its data.
    pub(super) fn connect(&self, qid: u16, entries: u16, cntlid: u16) -> Result<(Sqe, Data), Failure> {
        let kato = if qid == 0 { self.options.keep_alive_ms } else { 0 };
        let data = ConnectData {
            hostid: self.options.host_id,
            cntlid: cntlid.into(),
            subnqn: field(&self.options.subsystem_nqn)?,
            hostnqn: field(&self.options.host_nqn)?,
            ..ConnectData::default()
        };
        // The transport keeps fewer commands in flight than there are entries, so SQHD tells it nothing; and without
        // it a read may end with its last data PDU, no response behind.
        let cattr = cattr::DISABLE_SQ_FLOW_CONTROL;
        let connect = Connect { cattr, ..Connect::new(qid, entries, kato) };
        Ok((connect.to_sqe(), Data::Out(data.as_bytes().to_vec())))
    }

    pub(super) fn check_connected(&self, asked: &str, cqe: &Cqe) -> Result<Connected, Failure> {
        let status = cqe.status();
        if status.is_success() {
            return Ok(Connected::from_result(cqe.result.get()));
        }
        let Options { host_nqn, subsystem_nqn, .. } = &self.options;
        let found = match status.code {
            Code::CONNECT_INVALID_HOST => {
                format!("{subsystem_nqn} {NOT_LET_IN} {host_nqn} in: {}", spelled(status))
            }
            Code::CONNECT_INVALID_PARAMETERS => {
                let what =
                    parameter(InvalidParameter::from_result(cqe.result.get()), subsystem_nqn, host_nqn);
                format!("the controller refuses {what}: {}", spelled(status))
            }
            _ => format!("the controller answered {}", spelled(status)),
        };
        Err(Failure::of_status(asked, status, found))
    }

    fn connected(&mut self, name: &str, cqe: &Cqe, now_ms: u64) -> Result<(), Failure> {
        let connected = self.check_connected(name, cqe)?;
        self.info.cntlid = connected.cntlid;
        if connected.authentication_required || connected.secure_channel_required {
            self.step =
                Step::Authenticate { secure_channel: connected.secure_channel_required, reported: false };
        } else {
            self.begin_setup(now_ms);
        }
        Ok(())
    }

    pub(super) fn begin_setup(&mut self, now_ms: u64) {
        self.keep_alive.start(now_ms);
        self.get(Step::Capabilities, Property::Cap, now_ms);
    }

    /// The NVM Command Set where it can be chosen by itself; the smallest pages there are.
    fn enable(&mut self, now_ms: u64) {
        let by_itself = self.capabilities.css() & css::NVM != 0;
        let all = self.capabilities.css() & css::IO_COMMAND_SETS != 0;
        let css = if all && !by_itself { 6 << 4 } else { 0 };
        let pages = self.capabilities.page_bytes_min().trailing_zeros() - 12;
        self.configuration = Cc(Cc::enabled().0 | css | pages << 7);
        let sqe = PropertySet::new(Property::Cc, self.configuration.0.into()).to_sqe();
        self.ask(Step::Enable, sqe, Data::None, now_ms);
    }

    fn await_ready(&mut self, now_ms: u64) {
        let patience = match self.capabilities.timeout_ms() {
            0 => self.admin.timeout_ms(),
            ms => ms.into(),
        };
        self.step = Step::PollReady { at_ms: now_ms, until_ms: now_ms.saturating_add(patience) };
    }

    fn check_ready(&mut self, cqe: &Cqe, until_ms: u64, now_ms: u64) -> Result<(), Failure> {
        let status = Csts(cqe.result.get() as u32);
        if status.fatal() {
            return Err(Failure::again("enabling the controller", "it reports a fatal status (CSTS.CFS)"));
        }
        if status.ready() {
            self.identify(Step::IdentifyController, cns::CONTROLLER, 0, now_ms);
        } else if now_ms >= until_ms {
            return Err(Failure::again("CSTS.RDY, to become 1", "it is 0 after the time that CAP.TO allows"));
        } else {
            self.step = Step::PollReady { at_ms: now_ms + POLL_MS, until_ms };
        }
        Ok(())
    }

    fn identified(&mut self, bytes: &[u8; BYTES], now_ms: u64) {
        let controller = Controller::from_bytes(bytes);
        let most = u32::from(self.options.queue_entries).min(self.capabilities.queue_entries_max());
        // MAXCMD commands at once take a queue with one entry more.
        let most = match controller.maxcmd.get() {
            0 => most,
            commands => most.min(u32::from(commands) + 1),
        };
        let info = &mut self.info;
        info.serial = controller.sn.text();
        info.model = controller.mn.text();
        info.firmware = controller.fr.text();
        info.subsystem_nqn = text(&controller.subnqn);
        info.transfer_bytes = controller.transfer_bytes_max(self.capabilities.page_bytes_min());
        info.in_capsule_bytes = controller.in_capsule_bytes_max();
        info.queue_entries = most.clamp(2, u16::MAX.into()) as u16;
        info.keep_alive_granularity_ms = controller.keep_alive_granularity_ms().unwrap_or(0);
        info.optional_commands = controller.oncs.get();
        info.volatile_write_cache = controller.vwc & vwc::PRESENT != 0;
        info.multiple_controllers = controller.cmic & cmic::MULTIPLE_CONTROLLERS != 0;
        info.ana = controller.cmic & cmic::ANA_REPORTING != 0;
        info.events = controller.oaes.get();
        info.aborts = u16::from(controller.acl) + 1;
        info.raw = bytes.to_vec();
        if info.keep_alive_granularity_ms == 0 {
            self.keep_alive.stop();
        }
        let changes = self.info.events & event_mask::DISCOVERY_CHANGE;
        if self.discovery.is_some() && changes != 0 && self.options.keep_alive_ms > 0 {
            self.configure_events(changes, now_ms);
        } else if self.discovery.is_some() {
            self.add_job(Job::Discovery);
            self.add_job(Job::Ready);
        } else {
            let wanted = Queues::both(self.options.queues.max(1).into()).to_dword();
            let sqe = SetFeatures::new(fid::NUMBER_OF_QUEUES, wanted).to_sqe();
            self.ask(Step::Queues, sqe, Data::None, now_ms);
        }
    }

    fn granted(&mut self, cqe: &Cqe, now_ms: u64) {
        let granted = Queues::from_dword(cqe.result.get() as u32);
        let most = granted.submission.min(granted.completion).min(self.options.queues.max(1).into());
        self.info.queues = most as u16;
        self.configure_events(self.info.events & EVENTS | WARNINGS, now_ms);
    }

    /// A controller that doesn't know some of them refuses them all: then again without the warnings.
    fn configure_events(&mut self, bits: u32, now_ms: u64) {
        let sqe = SetFeatures::new(fid::ASYNC_EVENT_CONFIG, bits).to_sqe();
        self.ask(Step::Events { bits }, sqe, Data::None, now_ms);
    }

    /// Events are heard from here on, so that nothing changes unseen behind the scan.
    fn configured(&mut self, now_ms: u64) {
        self.event_pace.start(now_ms);
        if self.discovery.is_some() {
            self.add_job(Job::Discovery);
        } else {
            self.add_job(Job::Scan);
        }
        if self.info.ana {
            self.add_job(Job::Ana);
        }
        self.add_job(Job::Ready);
    }

    /// An Asynchronous Event Request completed. One that failed is not sent again: the controller is about to go.
    pub(super) fn event_came(&mut self, cqe: &Cqe, now_ms: u64) -> Result<(), Failure> {
        if !cqe.status().is_success() || self.step.is_shutting_down() {
            return Ok(());
        }
        let event = AsyncEvent::from_result(cqe.result.get());
        match event {
            AsyncEvent::NAMESPACE_CHANGED => self.add_job(Job::Changes),
            AsyncEvent::ANA_CHANGED => self.add_job(Job::Ana),
            AsyncEvent::DISCOVERY_CHANGED if self.discovery.is_some() => {
                self.add_job(Job::Discovery);
                self.add_job(Job::Ready);
            }
            AsyncEvent { kind: event_type::ERROR | event_type::SMART, lid, .. } => {
                self.warn(cqe.result.get() as u32);
                if matches!(lid, lid::ERROR_INFORMATION | lid::SMART) {
                    self.add_job(Job::Clear(lid));
                }
            }
            _ => {}
        }
        self.event_pace.event(now_ms);
        Ok(())
    }

    /// A controller that reports more than its driver listens to fills no memory.
    fn warn(&mut self, result: u32) {
        let warning = Event::Warning(result);
        if !self.events.contains(&warning) {
            self.events.push_back(warning);
        }
    }

    pub(super) fn begin_shutdown(&mut self, now_ms: u64) {
        if self.step.is_shutting_down() {
            return;
        }
        let enabled = self.configuration.enable();
        self.jobs.clear();
        self.keep_alive.stop();
        self.event_pace.stop();
        self.admin.forget();
        if !enabled || self.failure.is_some() {
            self.step = Step::ShutDown;
            return;
        }
        let sqe = PropertySet::new(Property::Cc, self.configuration.with_shn(1).0.into()).to_sqe();
        self.ask(Step::StartShutdown, sqe, Data::None, now_ms);
    }

    fn check_shutdown(&mut self, cqe: &Cqe, until_ms: u64, now_ms: u64) {
        let done = Csts(cqe.result.get() as u32).shutdown() == 2 || now_ms >= until_ms;
        self.step =
            if done { Step::ShutDown } else { Step::PollShutdown { at_ms: now_ms + POLL_MS, until_ms } };
    }
}
