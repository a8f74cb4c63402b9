//! Names encrypted in the hellos of browsers, with sing-box as the server.

use crate::site::{ENDS_TOGETHER, Site};
use crate::table::{behind_tls, in_tls};
use crate::{Side, run};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_testkit::Result;
use serde_json::json;

/// A configuration whose public name is `public.example.com`, and its key; of the sheet that the unit tests have too.
const CONFIG: &str = "fe0d00490000200020e71005922e7a0c986d20aa0b2ffab97b4bad9a4940f8ca81551f4318bc135351000c000100010001000200010003\
                      00127075626c69632e6578616d706c652e636f6d0000";
const KEY: &str = "fede35a3ecf5ccd4f4664fbddcfa311899de6f7f68a6a7c74af63287bbc3c4e1";

#[test]
fn browsers_hide_names_from_all_but_sing_box() {
    run(async {
        for fingerprint in ["chrome", "firefox", "hellochrome_120"] {
            pairing(fingerprint).await.map_err(|error| format!("{fingerprint}: {error}"))?;
        }
        Ok(())
    });
}

async fn pairing(fingerprint: &str) -> Result {
    let (Some(client), Some(server)) = (Side::Culvert.program(), Side::SingBox.program()) else {
        return Ok(());
    };
    let mut outbound = in_tls(json!({ "type": "trojan", "password": "secret" }));
    outbound["tls"]["utls"] = json!({ "enabled": true, "fingerprint": fingerprint });
    let list = [&[0, 77][..], &hex(CONFIG)].concat();
    outbound["tls"]["ech"] = json!({ "enabled": true, "config": pem("ECH CONFIGS", &list) });
    let mut inbound = behind_tls(json!({ "type": "trojan", "users": [{ "password": "secret" }] }));
    let keys = [&[0, 32][..], &hex(KEY), &[0, 77], &hex(CONFIG)].concat();
    inbound["tls"]["ech"] = json!({ "enabled": true, "key": pem("ECH KEYS", &keys) });
    let site = Site::linked_by(outbound, inbound, ENDS_TOGETHER, &client, &server).await?;
    crate::checks::all(site.lightly()).await
}

fn pem(label: &str, content: &[u8]) -> [String; 3] {
    [format!("-----BEGIN {label}-----"), STANDARD.encode(content), format!("-----END {label}-----")]
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}
