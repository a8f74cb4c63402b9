//! Rules about the machine around: the program behind a connection, its user, interfaces.

use crate::client::{Flow, verdict};
use crate::exits::Exit;
use crate::single::exit;
use crate::{culvert, run};
use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};

/// Where the connections of this very program go, by both programs.
async fn verdicts(exits: [&Exit; 2], rule: Value, set: Option<Value>) -> Result<Option<[String; 2]>> {
    let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(None) };
    let mut config = json!({
        "log": { "level": "debug" },
        "inbounds": [{ "type": "socks", "tag": "in", "listen": "127.0.0.1" }],
        "outbounds": [exit("a", exits[0]), exit("b", exits[1])],
        "route": { "rules": [rule] }
    });
    config["route"]["rules"][0]["outbound"] = "b".into();
    if let Some(set) = set {
        config["route"]["rule_set"] = json!([{ "tag": "set", "rules": [set] }]);
    }
    let mut said = Vec::new();
    for program in [&ours, &theirs] {
        let port = Port::reserve()?;
        config["inbounds"][0]["listen_port"] = port.number().into();
        let mut peer = program.serve(&config).await?;
        said.push(verdict(port.v4(), &Flow::to("x.test", 1)).await?);
        peer.stop().await?;
    }
    Ok(said.try_into().ok())
}

/// Options about the type of an interface are taken, and change nothing, in both programs.
#[test]
fn strategies_over_interfaces_have_no_effect() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let exit = Exit::start("a").await?;
        for (dial, route) in [
            (json!({ "network_strategy": "hybrid", "network_type": ["wifi"] }), json!({})),
            (json!({ "fallback_network_type": "cellular", "fallback_delay": "1s" }), json!({})),
            (
                json!({}),
                json!({ "rules": [
                    { "port": 1, "action": "route-options", "network_strategy": "fallback", "fallback_delay": 100 }
                ] }),
            ),
        ] {
            for program in [&ours, &theirs] {
                let port = Port::reserve()?;
                let mut out = crate::single::exit("a", &exit);
                for (key, value) in dial.as_object().into_iter().flatten() {
                    out[key] = value.clone();
                }
                let config = json!({
                    "inbounds": [{ "type": "socks", "listen": "127.0.0.1", "listen_port": port.number() }],
                    "outbounds": [out], "route": route
                });
                let mut peer = program.serve(&config).await?;
                let said = verdict(port.v4(), &Flow::to("x.test", 1)).await?;
                ensure!(said == "a x.test:1", "{dial} {route}: {said}");
                peer.stop().await?;
            }
        }
        Ok(())
    });
}

#[test]
fn programs_and_users_are_known_as_sing_box_knows_them() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let path = std::env::current_exe()?;
        let name = path.file_name().ok_or("no name")?.to_string_lossy().into_owned();
        let path = path.to_string_lossy().into_owned();
        let cases = [
            (json!({ "process_name": [name, "other"] }), true),
            (json!({ "process_name": "other" }), false),
            (json!({ "process_path": path }), true),
            (json!({ "process_path": "/bin/other" }), false),
            (json!({ "process_path_regex": "/routing-[0-9a-f]+$" }), true),
            (json!({ "process_path_regex": "^routing" }), false),
            (json!({ "user_id": [0, 7] }), true),
            (json!({ "user_id": 7 }), false),
            (json!({ "user": "root" }), true),
            (json!({ "user": "nobody" }), false),
            (json!({ "process_name": "other", "invert": true }), true),
            (json!({ "interface_address": { "lo": "127.0.0.0/8" } }), true),
            (json!({ "interface_address": { "lo": "192.0.2.0/24" } }), false),
            (json!({ "interface_address": { "none": "127.0.0.0/8" } }), false),
            (json!({ "default_interface_address": "192.0.2.0/24" }), false),
            // Only apps know what kind of network an interface is of.
            (json!({ "network_type": ["wifi", "cellular", "ethernet", "other"] }), false),
            (json!({ "network_is_expensive": true }), false),
            (json!({ "network_is_constrained": true, "invert": true }), true),
            (json!({ "network_interface_address": { "ethernet": "0.0.0.0/0" } }), false),
            (json!({ "wifi_ssid": "home" }), false),
            (json!({ "wifi_ssid": "" }), true),
            (json!({ "wifi_bssid": "00:11:22:33:44:55", "invert": true }), true),
        ];
        for (rule, is_matched) in cases {
            let Some(said) = verdicts([&a, &b], rule.clone(), None).await? else { return Ok(()) };
            let expected = if is_matched { "b x.test:1" } else { "a x.test:1" };
            ensure!(said == [expected; 2], "{rule}: ours {}, theirs {}", said[0], said[1]);
        }
        // A rule-set is enough to make programs be looked for.
        let set = json!({ "process_name": name });
        let Some(said) = verdicts([&a, &b], json!({ "rule_set": "set" }), Some(set)).await? else {
            return Ok(());
        };
        ensure!(said == ["b x.test:1"; 2], "by a rule-set: ours {}, theirs {}", said[0], said[1]);
        Ok(())
    });
}
