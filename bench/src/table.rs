//! Tables of a run, for the terminal and for Markdown.
//!
//! A cell is `median (lowest–highest)`, and for the main metrics of all but the baseline `×ratio`: the median of the
//! rounds' ratios to the baseline.

use std::fmt::Write as _;

use crate::results::{Entry, Metric, Row, Run, Weight};
use crate::stats::Spread;

/// What the figures mean, below every table.
pub(crate) const LEGEND: &str = "median (lowest–highest round); × is the median of the ratios to the first program, \
                                 round by round";

/// Aligned columns under headings, as wide as they must be.
pub(crate) fn terminal(run: &Run) -> String {
    let lines = lines(run, Room::Little);
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line.get(column).map_or(0, |cell| width(cell))).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(padded, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", padded.trim_end());
    }
    for reason in invalid(run) {
        let _ = writeln!(text, "INVALID {reason}");
    }
    for reason in absent(run) {
        let _ = writeln!(text, "left out: {reason}");
    }
    for warning in run.warnings() {
        let _ = writeln!(text, "DISTURBED {warning}");
    }
    let _ = writeln!(text, "\n{LEGEND}");
    let _ = writeln!(text, "{}", run.machine.summary());
    for program in &run.programs {
        let _ = writeln!(text, "{}: {}", program.name, program.short_version());
    }
    text
}

/// The same with what a reader needs to repeat it.
pub(crate) fn markdown(run: &Run) -> String {
    let mut text = format!("### {}\n\n", run.scenario);
    let lines = lines(run, Room::Much);
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if number == 0 {
            let rule: Vec<&str> =
                (0..line.len()).map(|column| if column < 2 { "---" } else { "---:" }).collect();
            let _ = writeln!(text, "| {} |", rule.join(" | "));
        }
    }
    let _ = writeln!(text);
    for reason in invalid(run) {
        let _ = writeln!(text, "- **Invalid:** {}", reason.replace('\n', "  \n"));
    }
    for reason in absent(run) {
        let _ = writeln!(text, "- Not in its build: {reason}.");
    }
    for warning in run.warnings() {
        let _ = writeln!(text, "- **Disturbed:** {warning}.");
    }
    let settings: Vec<String> = run.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = writeln!(text, "- Cells: {LEGEND}.");
    let _ = writeln!(text, "- Settings: {}.", settings.join("; "));
    let _ = writeln!(text, "- Machine: {}.", run.machine.summary());
    for program in &run.programs {
        let _ = writeln!(text, "- `{}`: {}.", program.name, program.short_version());
    }
    text
}

/// A number with the metric's decimals.
pub(crate) fn number(metric: &Metric, value: f64) -> String {
    format!("{value:.*}", metric.decimals)
}

/// `median (lowest–highest)`.
pub(crate) fn spread(metric: &Metric, spread: Spread) -> String {
    let show = |value| number(metric, value);
    if spread.low == spread.high {
        show(spread.median)
    } else {
        format!("{} ({}–{})", show(spread.median), show(spread.low), show(spread.high))
    }
}

/// The metrics that at least one entry has.
pub(crate) fn measured(run: &Run) -> Vec<&Metric> {
    let entries = || run.rows.iter().flat_map(|row| &row.entries);
    run.metrics
        .iter()
        .filter(|metric| entries().any(|entry| entry.samples.contains_key(&metric.key)))
        .collect()
}

/// How wide a table may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Room {
    /// No details, and lowest and highest only of the main metrics.
    Little,
    Much,
}

/// Headings and body.
fn lines(run: &Run, room: Room) -> Vec<Vec<String>> {
    let mut metrics = measured(run);
    metrics.retain(|metric| room == Room::Much || metric.weight > Weight::Detail);
    let headings = ["row", "program"].into_iter().chain(metrics.iter().map(|metric| metric.title.as_str()));
    let mut lines = vec![headings.map(str::to_owned).collect::<Vec<_>>()];
    for row in &run.rows {
        for (number, entry) in row.entries.iter().enumerate() {
            let title = if number == 0 { row.title.clone() } else { String::new() };
            let cells = metrics.iter().enumerate().map(|(number, metric)| {
                let verdict = entry.verdict().filter(|_| number == 0);
                verdict.map_or_else(|| cell(row, entry, metric, room), str::to_owned)
            });
            lines.push([title, entry.contender.clone()].into_iter().chain(cells).collect());
        }
    }
    lines
}

fn cell(row: &Row, entry: &Entry, metric: &Metric, room: Room) -> String {
    let Some(values) = entry.spread(&metric.key) else { return "–".into() };
    let main = metric.weight == Weight::Main;
    let mut text =
        if main || room == Room::Much { spread(metric, values) } else { number(metric, values.median) };
    let baseline = &row.entries[0];
    if main
        && !std::ptr::eq(entry, baseline)
        && let Some(ratio) = entry.ratio(baseline, &metric.key)
    {
        let _ = write!(text, " ×{:.2}", ratio.median);
    }
    text
}

/// Why entries have no numbers, once per contender and reason: of invalid ones, or of those that a build leaves out.
fn reasons(run: &Run, why: impl Fn(&Entry) -> Option<&String>) -> Vec<String> {
    let mut reasons: Vec<(Vec<&str>, &str, &str)> = Vec::new();
    for row in &run.rows {
        for entry in &row.entries {
            let Some(reason) = why(entry) else { continue };
            let told = reasons
                .iter_mut()
                .find(|(_, name, told)| *name == entry.contender && *told == reason.as_str());
            match told {
                Some((titles, ..)) => titles.push(&row.title),
                None => reasons.push((vec![&row.title], &entry.contender, reason)),
            }
        }
    }
    reasons.iter().map(|(titles, name, reason)| format!("{}, {name}: {reason}", titles.join("; "))).collect()
}

fn invalid(run: &Run) -> Vec<String> {
    reasons(run, |entry| entry.invalid.as_ref())
}

fn absent(run: &Run) -> Vec<String> {
    reasons(run, |entry| entry.absent.as_ref())
}

/// Columns on a terminal. Every character that tables use is one column wide.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    #[test]
    fn terminal_table_aligns_and_names_what_is_invalid() {
        let text = terminal(&example());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("socks → direct, down  a "), "{text}");
        assert!(lines[2].contains("13.75 (12.50–15.00) ×1.25"), "{text}");
        assert!(lines[2].contains("0.188 (0.125–0.250) ×0.50"), "{text}");
        assert!(text.contains("INVALID direct, down, b: b did not start"), "{text}");
        let column = |line: &str| line.chars().collect::<Vec<_>>().iter().position(|c| *c == '(');
        assert!(column(lines[1]).is_some());
    }

    #[test]
    fn markdown_rows_have_as_many_cells_as_headings() {
        let text = markdown(&example());
        let cells = |line: &str| line.matches(" |").count();
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 6);
        assert!(table.iter().all(|line| cells(line) == cells(table[0])), "{text}");
    }
}
