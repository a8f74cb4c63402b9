//! `rule-set` and `explain`: the first beside sing-box's, file by file.

use crate::{culvert, run};
use culvert_testkit::peer::{Finished, Program};
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::json;
use std::path::Path;

const SOURCE: &str = r#"{"version": 3, "rules": [
    {"domain": ["a.test", "b.test"], "domain_suffix": [".c.test"], "ip_cidr": ["10.0.0.0/8", "2001:db8::1"]},
    {"type": "logical", "mode": "and", "rules": [{"port": [80, 443]}, {"domain_keyword": "x"}], "invert": true},
    {"domain_regex": "^z", "network": "tcp", "source_port_range": "1000:2000"}
]}"#;
const OLD: &str = r#"{"version": 1, "rules": [{"domain": "old.test"}]}"#;
const LIST: &str =
    "! a comment\n||ads.test^\n@@||good.ads.test^\n/banner[0-9]/\n||x.test^$important\n##.class\n";

async fn finished(program: &Program, directory: &Path, arguments: &[&str]) -> Result<Finished> {
    let arguments = arguments.iter().copied().chain(["--disable-color"]);
    program.launch(arguments).directory(directory).run().await
}

#[test]
fn rule_set_files_are_those_of_sing_box() {
    run(async {
        let (Some(ours), Some(theirs)) = (culvert(), Program::sing_box()) else { return Ok(()) };
        let (here, there) = (TempDir::new()?, TempDir::new()?);
        for directory in [&here, &there] {
            directory.write("s.json", SOURCE)?;
            directory.write("old.json", OLD)?;
            directory.write("list.txt", LIST)?;
            directory.write("broken.json", r#"{"version": 3, "rules": [{}]}"#)?;
        }
        let commands: [(&[&str], &[&str]); 12] = [
            (&["compile", "s.json"], &["s.srs"]),
            (&["compile", "s.json", "-o", "named"], &["named"]),
            (&["decompile", "s.srs", "-o", "back.json"], &["back.json"]),
            (&["format", "s.json"], &[]),
            (&["format", "s.json", "-w"], &["s.json"]),
            (&["upgrade", "old.json"], &[]),
            (&["upgrade", "s.json"], &[]),
            (&["convert", "-t", "adguard", "list.txt"], &["list.srs"]),
            (&["merge", "all.json", "-c", "s.json", "-c", "old.json"], &["all.json"]),
            (&["decompile", "list.srs"], &[]),
            (&["compile", "none.json"], &[]),
            (&["decompile", "s.json", "-o", "no.json"], &[]),
        ];
        for (arguments, files) in commands {
            let arguments: Vec<_> = ["rule-set"].into_iter().chain(arguments.iter().copied()).collect();
            let our = finished(&ours, here.path(), &arguments).await?;
            let their = finished(&theirs, there.path(), &arguments).await?;
            ensure!(
                our.code == their.code && our.stdout == their.stdout,
                "{arguments:?}\nours: {our:?}\ntheirs: {their:?}"
            );
            for file in files {
                let (our, their) =
                    (std::fs::read(here.path().join(file))?, std::fs::read(there.path().join(file))?);
                // Compressors differ in their choices, so each reads what the other has written below.
                let is_packed = our.starts_with(b"SRS") && their.starts_with(b"SRS");
                ensure!(our == their || is_packed, "{arguments:?}: {file} differs: {our:?} {their:?}");
            }
        }
        for file in ["s.srs", "list.srs"] {
            let (our, their) =
                (std::fs::read(here.path().join(file))?, std::fs::read(there.path().join(file))?);
            here.write(file, their)?;
            there.write(file, our)?;
        }
        for text in [
            "ads.test",
            "x.ads.test",
            "good.ads.test",
            "banner1",
            "a.test",
            "x.c.test",
            "10.1.2.3",
            "2001:db8::1",
            "zz",
            "z",
            "xyz",
            "192.0.2.1",
        ] {
            for (file, form) in [("s.json", "source"), ("s.srs", "binary"), ("list.srs", "binary")] {
                let arguments = ["rule-set", "match", file, text, "-f", form];
                let our = finished(&ours, here.path(), &arguments).await?;
                let their = finished(&theirs, there.path(), &arguments).await?;
                ensure!(
                    our.code == their.code && our.stderr == their.stderr,
                    "{arguments:?}\nours: {our:?}\ntheirs: {their:?}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn explain_names_rules_sets_and_the_chain() {
    run(async {
        let Some(program) = culvert() else { return Ok(()) };
        let directory = TempDir::new()?;
        let config = json!({
            "outbounds": [
                { "type": "direct", "tag": "out" },
                { "type": "selector", "tag": "outer", "outbounds": ["inner"] },
                { "type": "selector", "tag": "inner", "outbounds": ["out"] }
            ],
            "route": {
                "rule_set": [{ "tag": "set", "rules": [{ "domain_suffix": "test" }] }],
                "rules": [
                    { "port": 80, "action": "reject" },
                    { "rule_set": "set", "outbound": "outer" }
                ]
            }
        });
        directory.write("config.json", config.to_string())?;
        let finished = finished(&program, directory.path(), &["explain", "a.test:443"]).await?;
        let expected = "tcp connection to a.test:443\n\
                        route.rules[0] port=80 => reject: no\n    port=80: no\n\
                        route.rules[1] rule_set=set => route(outer): yes\n    \
                        rule-set set, merged into this rule\n        domain_suffix=test: yes\n    \
                        rule-set set: yes\n    rule_set=set: yes\n\
                        decided by: rule_set=set => route(outer)\n\
                        chain: outer -> inner -> out\n    \
                        outer has inner, unless another was chosen (by the API, or in the cache file)\n    \
                        inner has out, unless another was chosen (by the API, or in the cache file)\n\
                        outbound direct[out] dials a.test:443\n";
        ensure!(finished.code == Some(0) && finished.stdout == expected, "{finished:?}");
        Ok(())
    });
}

#[test]
fn explain_tells_what_a_name_resolves_to() {
    run(async {
        let Some(program) = culvert() else { return Ok(()) };
        let directory = TempDir::new()?;
        let names = json!({ "a.test": ["10.0.0.7", "2001:db8::7"] });
        let config = json!({
            "dns": {
                "servers": [
                    { "type": "udp", "tag": "none", "server": "127.0.0.1", "server_port": 9 },
                    { "type": "hosts", "tag": "known", "path": "/nonexistent", "predefined": names }
                ],
                "rules": [
                    { "domain": "b.test", "server": "none" },
                    { "domain_suffix": "test", "server": "known" }
                ]
            },
            "outbounds": [{ "type": "direct", "tag": "out" }],
            "route": {
                "rules": [{ "action": "resolve" }, { "ip_cidr": "2001:db8::/32", "action": "reject" }]
            }
        });
        directory.write("config.json", config.to_string())?;
        let finished = finished(&program, directory.path(), &["explain", "a.test:443"]).await?;
        let said: Vec<_> = finished.stdout.lines().collect();
        ensure!(said.len() == 15 && said[1].starts_with("route.rules[0]"), "{finished:?}");
        for family in ["A", "AAAA"] {
            for (number, end) in [(0, "route(none): no"), (1, "route(known): yes")] {
                let start = format!("    dns.rules[{number}] for a.test {family}:");
                let told = said[2..10].iter().any(|line| line.starts_with(&start) && line.ends_with(end));
                ensure!(told, "{start} {end}: {finished:?}");
            }
        }
        ensure!(said[10].starts_with("    a.test is at ") && said[10].contains("10.0.0.7"), "{finished:?}");
        ensure!(said[11].starts_with("route.rules[1]") && said[11].ends_with(": yes"), "{finished:?}");
        Ok(())
    });
}
