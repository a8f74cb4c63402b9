//! `culvert check`

use std::path::Path;

use clap::Args;
use culvert_config::{Diagnostic, Diagnostics, Loaded, Source, place_of};
use tracing::warn;

use super::run::{path_in, placed};
use super::{Failure, Global, refused, sources};
use crate::instance::Instance;

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Take warnings for errors.
    #[arg(long)]
    strict: bool,
}

/// What is said of a finding that does not refuse the configuration here, as sing-box's `check` takes it.
const REFUSED: &str = "`run` will refuse this";

/// Reports everything that is wrong, a line each, its place first. Silent where nothing is.
///
/// What is right but has no engine yet is told too: `run` will refuse it.
pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let sources = sources::read(global)?;
    let loaded = culvert_config::load(&sources).map_err(|findings| refused(&findings))?;
    // Objects may note the runtime they are to live in; nothing is started.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("start runtime: {error}")))?;
    let _guard = runtime.enter();
    let reasons = match Instance::build(&loaded.options, u64::MAX) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(str::to_owned).collect(),
    };
    let mut lines = findings(&loaded.warnings, &reasons, &sources);
    lines.extend(missing_log_folder(&loaded, &sources));
    lines.iter().for_each(|line| warn!("{line}"));
    match lines.len() {
        1.. if arguments.strict => {
            let s = if lines.len() == 1 { "" } else { "s" };
            Err(Failure(format!("{} warning{s}, which are errors with --strict", lines.len())))
        }
        _ => Ok(()),
    }
}

/// The warnings, and the reasons why the configuration would not run: one line for each fault, though both may see it.
fn findings(warnings: &Diagnostics, reasons: &[String], sources: &[Source]) -> Vec<String> {
    let mut lines: Vec<_> = warnings.iter().map(|warning| (warning.to_string(), false)).collect();
    for reason in reasons {
        match warnings.iter().position(|warning| is_same(reason, warning)) {
            Some(index) => lines[index].1 = true,
            None => lines.push((placed(reason, sources), true)),
        }
    }
    let told = |(line, is_refused)| if is_refused { format!("{line}; {REFUSED}") } else { line };
    lines.into_iter().map(told).collect()
}

/// Whether a reason such as `outbounds[3] "jp": server: it is missing` speaks of the option of that very object which a
/// warning names.
fn is_same(reason: &str, warning: &Diagnostic) -> bool {
    let Some(path) = path_in(reason) else { return false };
    let Some((_, rest)) = reason.split_once(path).filter(|_| warning.path.starts_with(path)) else {
        return false;
    };
    // Behind the tag in quotes, which may hold anything.
    let rest = rest.rsplit_once("\": ").map_or(rest, |(_, rest)| rest).trim_start_matches(": ");
    let option = rest.split(':').next().unwrap_or_default();
    warning.path.ends_with(&format!(".{option}")) || warning.message.contains(&format!("`{option}`"))
}

/// A log file in a folder that does not exist: the one thing that stops `run` before it has built anything.
fn missing_log_folder(loaded: &Loaded, sources: &[Source]) -> Option<String> {
    let output = &loaded.options.log.output;
    if matches!(output.as_str(), "" | "stderr" | "stdout") {
        return None;
    }
    let folder = Path::new(output).parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let place = place_of(sources, "log.output").map(|place| format!("{place}: ")).unwrap_or_default();
    (!folder.is_dir())
        .then(|| format!("{place}log.output: the folder {} does not exist; {REFUSED}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_told_once() {
        let text = "{\n  \"outbounds\": [\n    {\"type\": \"socks\", \"tag\": \"a: b\", \"server_port\": 1},\n    {\"type\": \"tor\"}\n  ]\n}";
        let sources = [Source::new("c.json", text.as_bytes())];
        let loaded = culvert_config::load(&sources).unwrap();
        let reasons = [
            "outbounds[0] \"a: b\": server: it is missing",
            "outbound type `tor` (outbounds[1] \"1\") is not built yet",
        ];
        let lines = findings(&loaded.warnings, &reasons.map(str::to_owned), &sources);
        assert_eq!(
            lines,
            [
                "c.json:3:5: outbounds[0] \"a: b\": `server` is missing: there is nothing to connect to; `run` will refuse this",
                "c.json:4:5: outbound type `tor` (outbounds[1] \"1\") is not built yet; `run` will refuse this",
            ]
        );
    }
}
