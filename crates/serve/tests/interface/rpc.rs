//! The verbs over a gateway that only keeps its configuration: what is asked, how it is answered, what is refused.

use forebay_model::Error;
use forebay_serve::{
    answer_rpc, call_gateway, parse_rpc, run_rpc, ControllerState, ControllerStats, GatewayConfig,
    GatewayController, GatewayNamespace, GatewayStats, GatewaySubsystem, Qos, RpcControl, RpcRequest,
    RpcServer, RPC_VERBS,
};
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keeps what it is told, and says what it is told.
#[derive(Default)]
struct Kept {
    config: Mutex<GatewayConfig>,
    states: Mutex<BTreeMap<String, ControllerState>>,
}

impl Kept {
    fn subsystem<T>(&self, nqn: &str, change: impl FnOnce(&mut GatewaySubsystem) -> T) -> Result<T, Error> {
        let mut config = self.config.lock().unwrap();
        let found = config.subsystems.iter_mut().find(|s| s.nqn == nqn);
        found.map(change).ok_or_else(|| Error::request(nqn, "there is no such subsystem", "another"))
    }

    fn controller<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut GatewayController) -> T,
    ) -> Result<T, Error> {
        let mut config = self.config.lock().unwrap();
        let found = config.subsystems.iter_mut().flat_map(|s| &mut s.controllers).find(|c| c.name == name);
        found.map(change).ok_or_else(|| Error::request(name, "there is no such controller", "another"))
    }
}

impl RpcControl for Kept {
    fn config(&self) -> GatewayConfig {
        self.config.lock().unwrap().clone()
    }

    fn stats(&self) -> GatewayStats {
        let states = self.states.lock().unwrap();
        let config = self.config();
        let controllers = config.controllers().map(|(s, c)| ControllerStats {
            name: c.name.clone(),
            subsystem: s.nqn.clone(),
            state: states.get(&c.name).copied().unwrap_or_default(),
            namespaces: c.namespaces.clone().unwrap_or_default(),
            ..ControllerStats::default()
        });
        GatewayStats { controllers: controllers.collect(), ..GatewayStats::default() }
    }

    fn subsystem_create(&self, subsystem: &GatewaySubsystem) -> Result<(), Error> {
        self.config.lock().unwrap().subsystems.push(subsystem.clone());
        Ok(())
    }

    fn subsystem_destroy(&self, nqn: &str) -> Result<(), Error> {
        if self.subsystem(nqn, |s| s.controllers.len())? > 0 {
            return Err(Error::request(nqn, "has controllers", "force"));
        }
        self.config.lock().unwrap().subsystems.retain(|s| s.nqn != nqn);
        Ok(())
    }

    fn namespace_create(&self, nqn: &str, namespace: &GatewayNamespace) -> Result<u32, Error> {
        self.subsystem(nqn, |s| {
            let nsid = if namespace.nsid == 0 { s.namespaces.len() as u32 + 1 } else { namespace.nsid };
            s.namespaces.push(GatewayNamespace { nsid, ..namespace.clone() });
            nsid
        })
    }

    fn namespace_destroy(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        self.subsystem(nqn, |s| s.namespaces.retain(|n| n.nsid != nsid))
    }

    fn namespace_set_source(&self, nqn: &str, nsid: u32, new: &GatewayNamespace) -> Result<(), Error> {
        self.subsystem(nqn, |s| {
            s.namespaces.iter_mut().filter(|n| n.nsid == nsid).for_each(|n| *n = new.clone());
        })
    }

    fn namespace_set_qos(&self, nqn: &str, nsid: u32, qos: Qos) -> Result<(), Error> {
        self.subsystem(nqn, |s| {
            s.namespaces.iter_mut().filter(|n| n.nsid == nsid).for_each(|n| n.qos = qos);
        })
    }

    fn controller_create(&self, nqn: &str, controller: &GatewayController) -> Result<(), Error> {
        self.subsystem(nqn, |s| s.controllers.push(controller.clone()))
    }

    fn controller_destroy(&self, name: &str, force: bool) -> Result<(), Error> {
        if !force && self.states.lock().unwrap().contains_key(name) {
            return Err(Error::request(name, "a host uses it", "force"));
        }
        let mut config = self.config.lock().unwrap();
        config.subsystems.iter_mut().for_each(|s| s.controllers.retain(|c| c.name != name));
        Ok(())
    }

    fn attach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.controller(name, |c| c.namespaces.get_or_insert_default().push(nsid))
    }

    fn detach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.controller(name, |c| c.namespaces.get_or_insert_default().retain(|n| *n != nsid))
    }

    fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error> {
        if timeout < Duration::from_millis(10) {
            return Err(Error::run(name, "3 commands were still in flight", "a longer timeout_ms"));
        }
        self.states.lock().unwrap().insert(name.into(), ControllerState::Suspended);
        Ok(())
    }

    fn resume(&self, name: &str) -> Result<(), Error> {
        self.states.lock().unwrap().remove(name);
        self.controller(name, |_| ())
    }
}

const NQN: &str = "nqn.2026-11.io.example:a";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(Into::into).collect()
}

/// As a command line would have it, without the socket.
fn said(control: &dyn RpcControl, line: &str) -> Result<Value, Error> {
    let RpcRequest::Call { method, params, .. } = parse_rpc(&words(line))? else {
        panic!("{line} asks for help")
    };
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut answer = answer_rpc(request.to_string().as_bytes(), control).unwrap();
    match answer.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(serde_json::from_value(answer["error"]["data"].take()).unwrap()),
    }
}

/// A script made for SNAP, with sources in place of SPDK's block devices.
// promise: SNP-2
#[test]
fn a_script_of_snap_runs_as_it_is() {
    let gateway = Kept::default();
    let script = format!(
        "nvme_subsystem_create -s {NQN} -sn SNAPNODE3 -mn BlueField3
         nvme_namespace_create -s {NQN} -b nil:?size=1g -n 1 --uuid 3d9c3b54-5c31-410a-b4f0-7cf2afd9e100
         nvme_controller_create --nqn {NQN} --ctrl SnapCtrl0 --mdts 6 --num_queues 31 --suspended
         nvme_controller_attach_ns -c SnapCtrl0 -n 1
         nvme_controller_resume -c SnapCtrl0
         nvme_controller_suspend --ctrl SnapCtrl0 --timeout_ms 600"
    );
    for line in script.lines() {
        said(&gateway, line).unwrap();
    }
    let listed = said(&gateway, "nvme_subsystem_list").unwrap();
    assert_eq!(
        (&listed[0]["nqn"], &listed[0]["sn"], &listed[0]["mn"]),
        (&json!(NQN), &json!("SNAPNODE3"), &json!("BlueField3"))
    );
    let namespace = &listed[0]["namespaces"][0];
    assert_eq!((&namespace["nsid"], &namespace["bdev"]), (&json!(1), &json!("nil:?size=1g")));
    assert_eq!(namespace["controllers"], json!(["SnapCtrl0"]));
    let drive = &said(&gateway, "nvme_controller_list -c SnapCtrl0").unwrap()[0];
    assert_eq!(
        (&drive["state"], &drive["mdts"], &drive["num_queues"]),
        (&json!("suspended"), &json!(6), &json!(31))
    );
    let functions = said(&gateway, "emulation_function_list").unwrap();
    assert_eq!(
        (functions.as_array().unwrap().len(), &functions[0]["ctrl_id"], &functions[0]["emulation_type"]),
        (1, &json!("SnapCtrl0"), &json!("NVME"))
    );
    said(&gateway, "nvme_controller_detach_ns -c SnapCtrl0 -n 1").unwrap();
    said(&gateway, "nvme_controller_destroy -c SnapCtrl0 --force").unwrap();
    said(&gateway, &format!("nvme_namespace_destroy --nqn {NQN} --nsid 1")).unwrap();
    said(&gateway, &format!("nvme_subsystem_destroy --nqn {NQN}")).unwrap();
    assert_eq!(gateway.config(), GatewayConfig::default());
}

// promise: SNP-2
#[test]
fn limits_and_sources_change_while_it_runs() {
    let gateway = Kept::default();
    said(&gateway, &format!("nvme_subsystem_create --nqn {NQN}")).unwrap();
    let made =
        said(&gateway, &format!("nvme_namespace_create --nqn {NQN} --source nil: --rate 1g --writable"))
            .unwrap();
    assert_eq!(made["nsid"], 1);
    let now = || gateway.config().subsystems[0].namespaces[0].clone();
    assert_eq!((now().qos.rate.unwrap().0, now().writable), (1 << 30, true));
    said(&gateway, &format!("nvme_namespace_set_qos --nqn {NQN} --nsid 1 --iops 500")).unwrap();
    assert_eq!((now().qos.rate, now().qos.iops), (None, Some(500)));
    said(&gateway, &format!("nvme_namespace_set_source --nqn {NQN} --nsid=1 --source nil:?size=2g")).unwrap();
    assert_eq!((&*now().source, now().writable), ("nil:?size=2g", true));
    let config = said(&gateway, "snap_config_get").unwrap();
    let again = GatewayConfig::from_json(&config.to_string()).unwrap();
    assert_eq!(again.subsystems[0].namespaces, gateway.config().subsystems[0].namespaces);
}

// promise: SNP-2
#[test]
fn what_is_wrong_is_named_and_changes_nothing() {
    let gateway = Kept::default();
    said(&gateway, &format!("nvme_subsystem_create --nqn {NQN}")).unwrap();
    said(&gateway, &format!("nvme_controller_create --nqn {NQN} -c c")).unwrap();
    let before = gateway.config();
    for (line, found) in [
        ("nvme_subsystem_make", "no such verb"),
        ("--socket", "no value"),
        ("nvme_subsystem_create", "--nqn"),
        ("nvme_subsystem_create --nqn", "no value"),
        ("nvme_subsystem_create --nqn disk", "qualified name"),
        ("nvme_subsystem_create --nqn nqn.2026-11.io.example:b --nqn x", "twice"),
        ("nvme_subsystem_create --nqn nqn.2026-11.io.example:b --serial x", "--serial"),
        ("nvme_subsystem_create nqn.2026-11.io.example:b", "no such flag"),
        ("nvme_subsystem_destroy --nqn nqn.2026-11.io.example:a", "has controllers"),
        ("nvme_subsystem_destroy --nqn nqn.2026-11.io.example:a --force=1", "no value"),
        ("nvme_namespace_create --nqn nqn.2026-11.io.example:a --source ftp://h/f", "ftp"),
        ("nvme_namespace_create --nqn nqn.2026-11.io.example:a --source nil: --nsid one", "not a number"),
        (
            "nvme_namespace_create --nqn nqn.2026-11.io.example:a --source nil: --nsid 99999999999",
            "too large",
        ),
        ("nvme_namespace_create --nqn nqn.2026-11.io.example:a --source nil: --rate 0", "0 would block"),
        ("nvme_namespace_create --nqn nqn.2026-11.io.example:a --source nil: --rate x", "rate"),
        (
            "nvme_namespace_create --nqn nqn.2026-11.io.example:a --source nil: --cache none",
            "auto, bypass, allow",
        ),
        (
            "nvme_namespace_set_source --nqn nqn.2026-11.io.example:a --nsid 4 --source nil:",
            "no such namespace",
        ),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --mdts 11", "1 to 10"),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --mdts 0", "1 to 10"),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --num_queues 2000", "1 to 1024"),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --front nbd", "vfio-user, ublk"),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --socket a", "absolute"),
        ("nvme_controller_create --nqn nqn.2026-11.io.example:a --device 1", "another front"),
        ("nvme_controller_list --ctrl none", "no such controller"),
        ("nvme_controller_suspend --ctrl c --timeout_ms 1", "in flight"),
        ("nvme_controller_dbg_io_stats_get --ctrl x", "no such controller"),
        ("nvme_controller_dbg_debug_stats_get --ctrl x", "no such controller"),
        ("snap_log_level_set", "--level"),
        ("snap_log_level_set -l 6", "0 to 5"),
        ("snap_log_level_set -l 2", "nothing is logged"),
        ("emulation_function_list --some", "--some"),
    ] {
        let error = said(&gateway, line).expect_err(line);
        assert!(error.to_string().contains(found), "{line}: {error}");
        assert!(!error.next.is_empty(), "{line}: what to type next is missing");
    }
    assert_eq!(gateway.config(), before);
    said(&gateway, &format!("nvme_subsystem_destroy --nqn {NQN} --force")).unwrap();
    assert_eq!(gateway.config(), GatewayConfig::default());
}

// promise: SNP-2
#[test]
fn answers_are_those_of_json_rpc() {
    let gateway = Kept::default();
    let sent = |text: &str| answer_rpc(text.as_bytes(), &gateway);
    let code = |text: &str| sent(text).unwrap()["error"]["code"].as_i64().unwrap();
    assert_eq!(code("{"), -32700);
    assert_eq!(code("[]"), -32600);
    assert_eq!(code("{}"), -32600);
    assert_eq!(code(r#"{"jsonrpc":"1.0","method":"snap_stats_get","id":1}"#), -32600);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":1,"id":1}"#), -32600);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":"snap_stats_get","id":{}}"#), -32600);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":"bdev_malloc_create","id":1}"#), -32601);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":"snap_stats_get","params":[1],"id":1}"#), -32602);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":"snap_stats_get","params":{"a":1},"id":1}"#), -32602);
    assert_eq!(code(r#"{"jsonrpc":"2.0","method":"nvme_subsystem_list","params":{"nqn":1},"id":1}"#), -32602);
    // A flag of the command line is no name.
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","method":"nvme_subsystem_list","params":{"-s":"n"},"id":1}"#),
        -32602
    );
    let twice =
        r#"{"jsonrpc":"2.0","method":"nvme_controller_list","params":{"ctrl":"a","ctrl_id":"a"},"id":1}"#;
    assert_eq!(code(twice), -32602);
    assert_eq!(sent(r#"{"jsonrpc":"2.0","method":"snap_config_get"}"#), None, "a notification");
    let named = sent(r#"{"jsonrpc":"2.0","method":"rpc_get_methods","id":"x"}"#).unwrap();
    assert_eq!(named["id"], "x");
    assert_eq!(named["result"].as_array().unwrap().len(), RPC_VERBS.len());
    let batch = r#"[1,{"jsonrpc":"2.0","method":"nvme_subsystem_list","params":null,"id":7},{"jsonrpc":"2.0","method":"snap_config_get"}]"#;
    let answers = sent(batch).unwrap();
    assert_eq!(answers.as_array().unwrap().len(), 2);
    assert_eq!(
        (&answers[0]["error"]["code"], &answers[1]["id"], &answers[1]["result"]),
        (&json!(-32600), &json!(7), &json!([]))
    );
    assert!(code(&format!("[{}]", vec!["1"; 300].join(","))) == -32600, "too large a batch");
}

#[test]
fn help_names_every_verb_and_flag() {
    let RpcRequest::Help(all) = parse_rpc(&[]).unwrap() else { panic!() };
    assert!(RPC_VERBS.iter().all(|v| all.contains(v.name)));
    for verb in RPC_VERBS {
        let RpcRequest::Help(one) = parse_rpc(&words(&format!("{} --help", verb.name))).unwrap() else {
            panic!()
        };
        assert!(verb.parameters.iter().all(|p| one.contains(&p.flag())), "{one}");
        let mut names: Vec<&str> =
            verb.parameters.iter().flat_map(|p| p.also.iter().chain([&p.name])).copied().collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before, "{}: two parameters have one name", verb.name);
    }
}

struct Rig {
    gateway: Arc<Kept>,
    server: Option<RpcServer>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snap.sock");
        let gateway = Arc::new(Kept::default());
        let server = Some(RpcServer::start(&path, gateway.clone()).unwrap());
        Rig { gateway, server, path, _dir: dir }
    }

    fn call(&self, method: &str) -> Result<Value, Error> {
        call_gateway(&self.path, method, &Map::new())
    }

    /// Returns the answer to `bytes`, until the server closes.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }
}

// promise: SNP-3
#[test]
fn a_client_asks_and_is_answered_and_the_socket_goes_with_its_server() {
    let mut rig = Rig::new();
    let mut params = Map::new();
    params.insert("nqn".into(), NQN.into());
    call_gateway(&rig.path, "nvme_subsystem_create", &params).unwrap();
    assert_eq!(rig.gateway.config().subsystems[0].nqn, NQN);
    let refused = call_gateway(&rig.path, "nvme_subsystem_create", &Map::new()).unwrap_err();
    assert_eq!((refused.kind, &*refused.found), (forebay_model::Kind::Request, "is missing"));
    let listed =
        run_rpc(&words(&format!("-s {} nvme_subsystem_list", rig.path.display())), &mut || true).unwrap();
    assert!(listed.starts_with("[\n") && listed.contains(NQN), "{listed}");
    assert_eq!(rig.call("none").unwrap_err().kind, forebay_model::Kind::Request);
    drop(rig.server.take());
    assert!(!rig.path.exists());
    let nobody = rig.call("nvme_subsystem_list").unwrap_err();
    assert_eq!(nobody.kind, forebay_model::Kind::Machine);
    assert!(nobody.next.contains("forebay snap"), "{nobody}");
}

// promise: SNP-3
#[test]
fn nonsense_ends_its_connection_and_no_other() {
    let rig = Rig::new();
    let mut calm = UnixStream::connect(&rig.path).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"]", b"{\"a\":\xff}", &[b'['; 4096]] {
        let text = rig.raw(bytes);
        assert!(text.contains("-32700"), "{text}");
    }
    assert!(rig.raw(b"{\"jsonrpc\":").is_empty(), "half a request asks for nothing");
    let mut long = b"{\"a\":\"".to_vec();
    long.resize(3 << 20, b'x');
    rig.raw(&long);
    let one = br#"{"jsonrpc":"2.0","method":"nvme_subsystem_list","id":1}"#;
    calm.write_all(&one.repeat(3)).unwrap();
    calm.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    calm.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
}

// promise: SNP-3
#[test]
fn idle_clients_make_room_and_a_crowd_that_is_busy_is_told_so() {
    let rig = Rig::new();
    rig.gateway
        .config
        .lock()
        .unwrap()
        .subsystems
        .push(GatewaySubsystem { nqn: NQN.into(), ..Default::default() });
    let sent = |mut client: UnixStream, method: &str| {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "ctrl": "a" } });
        client.write_all(request.to_string().as_bytes()).map(|()| client)
    };
    let ask = |method: &str| sent(UnixStream::connect(&rig.path)?, method);
    let idle = |_| {
        let mut client = ask("nvme_controller_list").unwrap();
        assert!(client.read(&mut [0; 4096]).unwrap() > 0, "it is answered, and stays");
        client
    };
    let mut crowd: Vec<UnixStream> = (0..16).map(idle).collect();
    for _ in 0..3 {
        rig.call("nvme_subsystem_list").unwrap();
    }
    // Which of them counts as idle first is decided by threads that mark it after they have answered.
    let until = forebay_io::monotonic_now() + Duration::from_secs(60);
    let mut is_closed = |client: &mut UnixStream| {
        client.set_nonblocking(true).unwrap();
        client.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    };
    while !crowd.iter_mut().any(&mut is_closed) {
        assert!(forebay_io::monotonic_now() < until, "none was closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    let held = rig.gateway.states.lock().unwrap();
    crowd.clear();
    // Each is busy once its thread has taken its request, and may have to make room before; the next one after 16 is one too
    // many.
    crowd.extend((0..16).filter_map(|_| ask("nvme_controller_resume").ok()));
    loop {
        let mut next = UnixStream::connect(&rig.path).unwrap();
        next.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut reported = [0; 4096];
        let reported = next.read(&mut reported).map(|n| String::from_utf8_lossy(&reported[..n]).into_owned());
        if reported.is_ok_and(|reported| reported.contains("16 connections") && reported.contains("busy")) {
            break;
        }
        assert!(forebay_io::monotonic_now() < until, "nobody was turned away");
        // It stays: were it closed, its place would come free after another was turned away.
        crowd.extend(sent(next, "nvme_controller_resume").ok());
    }
    let refused = rig.call("nvme_subsystem_list").unwrap_err();
    assert_eq!(refused.kind, forebay_model::Kind::Run);
    assert!(refused.found.contains("16 connections") && refused.next.contains("ss -xp"), "{refused}");
    drop(held);
    drop(crowd);
    while rig.call("nvme_subsystem_list").is_err() {
        assert!(forebay_io::monotonic_now() < until, "nobody is served any more");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// promise: SNP-2
#[test]
fn a_controllers_socket_is_beside_that_of_the_rpcs() {
    let kept = Kept::default();
    said(&kept, &format!("nvme_subsystem_create --nqn {NQN}")).unwrap();
    kept.config.lock().unwrap().rpc = Some("/tmp/x/snap.sock".into());
    let made = said(&kept, &format!("nvme_controller_create --nqn {NQN} --ctrl C2")).unwrap();
    assert_eq!(made["socket"], "/tmp/x/C2.sock");
}

// promise: SNP-2
#[test]
fn a_list_of_a_subsystem_that_is_not_there_is_refused_with_those_that_are() {
    let kept = Kept::default();
    let list = |what: &str| said(&kept, &format!("nvme_{what}_list --nqn nqn.x"));
    assert!(list("namespace").unwrap_err().next.contains("nvme_subsystem_create"));
    said(&kept, &format!("nvme_subsystem_create --nqn {NQN}")).unwrap();
    for what in ["subsystem", "namespace", "controller"] {
        let refused = list(what).unwrap_err();
        assert_eq!((refused.kind, &*refused.next), (forebay_model::Kind::Request, NQN), "{what}");
    }
    for what in ["namespace", "controller"] {
        let empty = said(&kept, &format!("nvme_{what}_list --nqn {NQN}")).unwrap();
        assert_eq!(empty, json!([]), "{what}");
    }
}
