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
