use super::*;

const GOOD: &str = r#"
    rpc = "/run/forebay/snap.sock"
    threads = 2
    [[subsystems]]
    nqn = "nqn.2026-11.io.example:a"
    serial = "S1"
    [[subsystems.namespaces]]
    source = "nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.example:far?queues=4"
    [[subsystems.namespaces]]
    source = "nil:?size=1g"
    writable = true
    qos = { rate = "1g", iops = 100000 }
    [[subsystems.controllers]]
    socket = "/run/forebay/a.sock"
    queues = 15
    max_transfer = "256k"
    [[subsystems.controllers]]
    front = "ublk"
    device = 3
    namespaces = [2]
"#;

// promise: SNP-1
#[test]
fn toml_and_json_are_one_structure() {
    let config = Config::from_toml(GOOD).unwrap();
    assert_eq!(Config::from_json(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    let [first, second] = &config.subsystems[0].namespaces[..] else { panic!() };
    assert_eq!((first.nsid, first.writable, second.nsid), (1, false, 2));
    assert_eq!(second.qos, Qos { rate: Some(Size(1 << 30)), iops: Some(100_000) });
    let [drive, device] = &config.subsystems[0].controllers[..] else { panic!() };
    assert_eq!(
        (&*drive.name, drive.frontend, drive.queues_max(), drive.mdts()),
        ("NVMeCtrl1", Frontend::VfioUser, 15, 6)
    );
    assert_eq!((&*device.name, device.frontend, device.device), ("NVMeCtrl2", Frontend::Ublk, Some(3)));
    let all = BTreeSet::from([1, 2]);
    assert_eq!(drive.attached(&all).unwrap(), all);
    assert_eq!(device.attached(&all).unwrap(), BTreeSet::from([2]));
}

// promise: SNP-1
#[test]
fn what_is_wrong_is_named() {
    let edits = [
        ("threads = 2", "threads = 2000", "threads"),
        ("threads = 2", "thread = 2", "thread"),
        ("threads = 2", "spin_us = 2000000", "spin_us"),
        ("\"/run/forebay/snap.sock\"", "\"snap.sock\"", "absolute"),
        ("\"/run/forebay/snap.sock\"", "\"/run/forebay/a.sock\"", "rpc"),
        ("nqn.2026-11.io.example:a", "disk", "qualified name"),
        ("serial = \"S1\"", "serial = \"123456789012345678901\"", "serial"),
        ("writable = true", "writable = true\nblock_bytes = 1000", "512 or 4096"),
        ("writable = true", "writable = true\nnsid = 1025", "1 to 1024"),
        ("source = \"nil:?size=1g\"", "source = \"\"", "empty"),
        ("source = \"nil:?size=1g\"", "source = \"nil:?sise=1g\"", "sise"),
        ("rate = \"1g\"", "rate = 0", "0 would block all I/O"),
        ("queues = 15", "queues = 0", "queues of NVMeCtrl1"),
        ("queues = 15", "queues = 1025", "1 to 1024"),
        ("queues = 15", "queue_depth = 1", "queue_depth of NVMeCtrl1"),
        ("queues = 15", "name = \"a b\"", "letters"),
        (
            "queues = 15",
            "name = \"NVMeCtrl9\"\n[[subsystems.controllers]]\nsocket = \"/a\"\nname = \"NVMeCtrl9\"",
            "two controllers",
        ),
        ("\"256k\"", "\"200k\"", "power of two"),
        ("\"256k\"", "\"8m\"", "8 to 4096"),
        ("\"256k\"", "\"4k\"", "8 to 4096"),
        ("socket = \"/run/forebay/a.sock\"", "", "needs it"),
        ("socket = \"/run/forebay/a.sock\"", "socket = \"/a\"\ndevice = 1", "device of NVMeCtrl1"),
        ("device = 3", "device = 3\nqueue_depth = 512", "2 to 256"),
        ("device = 3", "socket = \"/a\"", "socket of NVMeCtrl2"),
        ("device = 3", "device = 3\npoll = true", "poll of NVMeCtrl2"),
        ("device = 3", "device = 1048576", "1048575"),
        ("namespaces = [2]", "", "one namespace"),
        ("namespaces = [2]", "namespaces = [7]", "no nsid 7"),
        ("front = \"ublk\"", "front = \"nbd\"", "nbd"),
    ];
    serve::assert_each_is_named(GOOD, Config::from_toml, &edits);
    let long = GOOD.replace("/run/forebay/a.sock", &format!("/{}", "x".repeat(107)));
    assert!(Config::from_toml(&long).unwrap_err().to_string().contains("108 bytes"));
}

#[test]
fn a_gateway_may_begin_empty_where_rpcs_can_fill_it() {
    assert_eq!(Config::from_toml("").unwrap(), Config::default());
    assert!(Config::from_toml("rpc = \"off\"").unwrap_err().asked.contains("subsystems"));
    assert_eq!(rpc_path(Some("off")), None);
    assert!(rpc_path(None).unwrap().ends_with("snap.sock"));
}
