use super::*;

const GOOD: &str = r#"
    listen = ["127.0.0.1:0", "[::1]:4420", "10.0.0.1"]
    metrics = "9420"
    max_transfer = "512k"
    [host_limits]
    connections = 64
    [[subsystems]]
    nqn = "nqn.2026-11.io.example:a"
    [[subsystems.hosts]]
    nqn = "nqn.2026-11.io.example:host"
    dhchap_key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    [[subsystems.namespaces]]
    source = "nil:?size=1g"
    uuid = "0f2d4c1e-0000-4000-8000-000000000001"
"#;

// promise: AUT-5
#[test]
fn toml_and_json_are_one_structure() {
    let config = Config::from_toml(GOOD).unwrap();
    assert_eq!(config.max_transfer, Size(512 << 10));
    assert_eq!(config.addresses().unwrap()[2], "10.0.0.1:4420".parse().unwrap());
    assert_eq!(config.metrics_address().unwrap(), Some("127.0.0.1:9420".parse().unwrap()));
    let json = serde_json::to_string(&config).unwrap();
    assert!(!json.contains("ia6zGodOr4SEG0"), "secrets are never written out");
    assert!(!format!("{config:?}").contains("DHHC"));
    assert!(Config::from_json(&json).is_err(), "a secret that was left out is not taken for one");
    let again = Config::from_json(&json.replace(r#""(secret)""#, "null")).unwrap();
    assert_eq!(again.subsystems[0].namespaces, config.subsystems[0].namespaces);
}

// promise: TGT-17
#[test]
fn what_is_wrong_is_named() {
    let with = |from: &str, to: &str| Config::from_toml(&GOOD.replace(from, to));
    let edits = [
        ("max_transfer = \"512k\"", "max_transfer = \"500k\"", "power of two"),
        ("max_transfer = \"512k\"", "max_transfr = 1", "max_transfr"),
        ("connections = 64", "connections = 0", "connections"),
        ("nqn.2026-11.io.example:a", "example", "qualified name"),
        ("127.0.0.1:0", "localhost:1", "not an IP address"),
        ("0f2d4c1e", "xf2d4c1e", "not a UUID"),
        ("source = \"nil:?size=1g\"", "source = \"\"", "empty"),
        ("uuid", "block_bytes = 1024\nuuid", "neither"),
        ("uuid", "nsid = 1025\nuuid", "1 to 1024"),
        ("uuid", "ana_group = 129\nuuid", "1 to 128"),
        ("[[subsystems.hosts]]", "cntlid_min = 9\ncntlid_max = 8\n[[subsystems.hosts]]", "9 to 65519"),
        (
            "[[subsystems.hosts]]",
            "[[subsystems.ana]]\nstate = \"slow\"\n[[subsystems.hosts]]",
            "non-optimized",
        ),
        (
            "[[subsystems.hosts]]",
            "[[subsystems.ana]]\ngroup = 0\nstate = \"change\"\n[[subsystems.hosts]]",
            "1 to 128",
        ),
    ];
    assert_each_is_named(GOOD, Config::from_toml, &edits);
    assert!(with("uuid", "nsid = 1024\nuuid").is_ok());
    let at = |address: &str| {
        let ana =
            format!("[[subsystems.ana]]\naddress = \"{address}\"\nstate = \"change\"\n[[subsystems.hosts]]");
        with("[[subsystems.hosts]]", &ana).map(drop).map_err(|e| e.found)
    };
    for listened in ["10.0.0.1", "10.0.0.1:4420", "[::1]:4420", "::1", "127.0.0.1", ""] {
        assert_eq!(at(listened), Ok(()), "{listened}");
    }
    assert!(at("10.0.0.1:4421").unwrap_err().contains("no listener"));
    assert!(at("10.0.0.2").unwrap_err().contains("no listener"));
    assert!(at("storage").unwrap_err().contains("not an IP address"));
    let nobody = "[[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"";
    assert!(Config::from_toml(nobody).unwrap_err().found.contains("nobody"));
    assert!(Config::from_toml("listen = [\"1.1.1.1:1\"]").unwrap_err().asked.contains("subsystems"));
}
