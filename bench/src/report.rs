//! The HTML report: one self-contained page without scripts, of one run or of several joined into a history.
//!
//! Runs of one scenario are joined row by row (by row id). Each row becomes a card: per main metric a bar for each
//! contender, from its lowest to its highest round, with the median marked; who wins by how much stands beside it.
//! Below follow the same numbers as tables and, folded, the raw rounds and all that a reader needs to repeat them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::results::{Better, Entry, Metric, Run, Weight};
use crate::stats::Spread;
use crate::table;

const STYLE: &str = include_str!("report.css");

/// Makes the page. The order of `runs` is the order of the columns; each scenario gets a section.
pub(crate) fn html(runs: &[Run]) -> String {
    let mut scenarios: Vec<&str> = Vec::new();
    for run in runs {
        if !scenarios.contains(&run.scenario.as_str()) {
            scenarios.push(&run.scenario);
        }
    }
    let title = format!("culvert-bench: {}", scenarios.join(", "));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p class=\"legend\">Bars reach from the lowest to the highest round, the mark is the median. A percentage is the \
         difference over the other’s value. Grey shows what is possible here without a proxy core.</p>\n",
        title = escape(&title),
    );
    for scenario in scenarios {
        let runs: Vec<&Run> = runs.iter().filter(|run| run.scenario == scenario).collect();
        section(&mut page, scenario, &Joined::of(&runs));
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Runs of one scenario, side by side.
struct Joined<'a> {
    runs: Vec<&'a Run>,
    metrics: Vec<&'a Metric>,
    rows: Vec<JoinedRow<'a>>,
}

struct JoinedRow<'a> {
    id: &'a str,
    title: &'a str,
    cells: Vec<Cell<'a>>,
}

/// One contender of one run.
struct Cell<'a> {
    /// The contender, told apart by version or run where its name alone would not do.
    label: String,
    entry: &'a Entry,
    color: usize,
}

impl<'a> Joined<'a> {
    fn of(runs: &[&'a Run]) -> Self {
        let mut metrics: Vec<&Metric> = Vec::new();
        let mut rows: Vec<JoinedRow<'_>> = Vec::new();
        let mut labels: Vec<String> = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            for metric in table::measured(run) {
                if !metrics.iter().any(|known| known.key == metric.key) {
                    metrics.push(metric);
                }
            }
            for row in &run.rows {
                let at = rows.iter().position(|known| known.id == row.id).unwrap_or_else(|| {
                    rows.push(JoinedRow { id: &row.id, title: &row.title, cells: Vec::new() });
                    rows.len() - 1
                });
                for entry in &row.entries {
                    let label = label(run, number, runs.len(), entry);
                    let color = labels.iter().position(|known| *known == label).unwrap_or_else(|| {
                        labels.push(label.clone());
                        labels.len() - 1
                    });
                    rows[at].cells.push(Cell { label, entry, color });
                }
            }
        }
        Self { runs: runs.to_vec(), metrics, rows }
    }
}

/// In a history the program's own version says which column is which; the run's number settles the rest.
fn label(run: &Run, number: usize, runs: usize, entry: &Entry) -> String {
    if runs == 1 {
        return entry.contender.clone();
    }
    let program = run.programs.iter().find(|program| program.name == entry.contender);
    let version = program.and_then(|program| {
        let words = program.short_version().split_ascii_whitespace();
        words.last().map(|version| format!(" {version}"))
    });
    format!("{}{} (run {})", entry.contender, version.unwrap_or_default(), number + 1)
}

fn section(page: &mut String, scenario: &str, joined: &Joined<'_>) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(scenario));
    let machines: BTreeSet<String> = joined.runs.iter().map(|run| run.machine.summary()).collect();
    if machines.len() > 1 {
        page.push_str(
            "<p class=\"warning\">These runs were made on different machines: compare only what one run holds.</p>\n",
        );
    }
    for machine in &machines {
        let _ = writeln!(page, "<p class=\"machine\">{}</p>", escape(machine));
    }
    for warning in joined.runs.iter().flat_map(|run| run.warnings()) {
        let _ = writeln!(page, "<p class=\"warning\">Disturbed: {}</p>", escape(&warning));
    }
    let charted: Vec<&Metric> =
        joined.metrics.iter().copied().filter(|metric| metric.weight == Weight::Main).collect();
    for row in &joined.rows {
        card(page, row, &charted);
    }
    for metric in &joined.metrics {
        metric_table(page, joined, metric);
    }
    for (number, run) in joined.runs.iter().enumerate() {
        facts(page, number, run);
    }
    page.push_str("</section>\n");
}

/// One row: a chart for each main metric, and what fell out.
fn card(page: &mut String, row: &JoinedRow<'_>, metrics: &[&Metric]) {
    let _ = writeln!(page, "<article>\n<h3>{}</h3>\n<div class=\"charts\">", escape(row.title));
    for metric in metrics {
        chart(page, row, metric);
    }
    page.push_str("</div>\n");
    for cell in &row.cells {
        if let Some(reason) = &cell.entry.invalid {
            let _ = writeln!(
                page,
                "<p class=\"warning\">{}: invalid</p>\n<pre>{}</pre>",
                escape(&cell.label),
                escape(reason)
            );
        }
        if let Some(what) = &cell.entry.absent {
            let _ = writeln!(
                page,
                "<p class=\"legend\">{} takes no part: {}</p>",
                escape(&cell.label),
                escape(what)
            );
        }
    }
    page.push_str("</article>\n");
}

fn chart(page: &mut String, row: &JoinedRow<'_>, metric: &Metric) {
    let spreads: Vec<(&Cell<'_>, Spread)> =
        row.cells.iter().filter_map(|cell| Some((cell, cell.entry.spread(&metric.key)?))).collect();
    let highest = spreads.iter().map(|(_, spread)| spread.high).fold(0.0, f64::max);
    if spreads.is_empty() || highest <= 0.0 {
        return;
    }
    let _ = write!(page, "<figure>\n<figcaption>{}", escape(&metric.title));
    if let Some(verdict) = verdict(row, metric) {
        let _ = write!(page, " <span class=\"verdict\">{}</span>", escape(&verdict));
    }
    page.push_str("</figcaption>\n");
    for (cell, spread) in spreads {
        let percent = |value: f64| value / highest * 100.0;
        let _ = writeln!(
            page,
            "<div class=\"bar {color}\"><span class=\"name\">{name}</span>\
             <span class=\"track\"><span class=\"range\" style=\"left:{left:.2}%;width:{width:.2}%\"></span>\
             <span class=\"median\" style=\"left:{median:.2}%\"></span></span>\
             <span class=\"value\">{value}</span></div>",
            color = color(cell),
            name = escape(&cell.label),
            left = percent(spread.low),
            width = percent(spread.high) - percent(spread.low),
            median = percent(spread.median),
            value = table::number(metric, spread.median),
        );
    }
    page.push_str("</figure>\n");
}

/// All rows of one metric, a column for each contender and one for the winner.
fn metric_table(page: &mut String, joined: &Joined<'_>, metric: &Metric) {
    let mut labels: Vec<&str> = Vec::new();
    for cell in joined.rows.iter().flat_map(|row| &row.cells) {
        if !labels.contains(&cell.label.as_str()) {
            labels.push(&cell.label);
        }
    }
    let open = if metric.weight == Weight::Main { " open" } else { "" };
    let _ = write!(
        page,
        "<details{open}>\n<summary>{}</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>row</th>",
        escape(&metric.title)
    );
    for label in &labels {
        let _ = write!(page, "<th>{}</th>", escape(label));
    }
    page.push_str("<th>winner</th></tr></thead>\n<tbody>\n");
    for row in &joined.rows {
        let _ = write!(page, "<tr><th>{}</th>", escape(row.title));
        for label in &labels {
            let cell = row.cells.iter().find(|cell| cell.label == *label);
            let text = match cell.map(|cell| cell.entry) {
                Some(entry) => match entry.verdict() {
                    Some(verdict) => verdict.into(),
                    None => entry.spread(&metric.key).map_or("–".into(), |it| table::spread(metric, it)),
                },
                None => "–".into(),
            };
            let _ = write!(page, "<td>{}</td>", escape(&text));
        }
        let _ = writeln!(page, "<td>{}</td></tr>", escape(&verdict(row, metric).unwrap_or_default()));
    }
    page.push_str("</tbody>\n</table></div>\n</details>\n");
}

/// What one run was: versions, settings, command, configurations, raw rounds.
fn facts(page: &mut String, number: usize, run: &Run) {
    let _ = writeln!(
        page,
        "<details>\n<summary>Run {}: {}</summary>\n<dl>",
        number + 1,
        escape(&date(run.began))
    );
    let mut fact = |name: &str, value: &str| {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    };
    fact("command", &run.command.join(" "));
    fact("machine", &run.machine.summary());
    fact("took", &format!("{:.0} s", run.took));
    for program in &run.programs {
        fact(&program.name, &program.version);
    }
    for (name, value) in &run.settings {
        fact(name, value);
    }
    page.push_str("</dl>\n");
    for (name, config) in &run.configs {
        let _ = writeln!(
            page,
            "<details><summary>configuration {}</summary><pre>{}</pre></details>",
            escape(name),
            escape(&format!("{config:#}"))
        );
    }
    raw_rounds(page, run);
    page.push_str("</details>\n");
}

fn raw_rounds(page: &mut String, run: &Run) {
    page.push_str(
        "<details><summary>raw rounds</summary><div class=\"scroll\"><table>\n\
         <thead><tr><th>row</th><th>program</th><th>metric</th><th>rounds</th></tr></thead>\n<tbody>\n",
    );
    for row in &run.rows {
        for entry in &row.entries {
            for metric in &run.metrics {
                let Some(values) = entry.samples.get(&metric.key) else { continue };
                let values: Vec<String> = values.iter().map(|value| table::number(metric, *value)).collect();
                let cells = [&row.title, &entry.contender, &metric.title].map(|text| escape(text));
                let _ = writeln!(
                    page,
                    "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
                    cells[0],
                    cells[1],
                    cells[2],
                    values.join(" ")
                );
            }
        }
    }
    page.push_str("</tbody>\n</table></div></details>\n");
}

/// Who wins a row, and by what part of the next one's value. Says when the rounds of the two overlap, since then more
/// rounds might turn it around. `None` without two contenders or a contest.
fn verdict(row: &JoinedRow<'_>, metric: &Metric) -> Option<String> {
    let mut contest: Vec<(&str, Spread)> = row
        .cells
        .iter()
        .filter(|cell| !cell.entry.reference)
        .filter_map(|cell| Some((cell.label.as_str(), cell.entry.spread(&metric.key)?)))
        .collect();
    let ascending = |a: &(&str, Spread), b: &(&str, Spread)| a.1.median.total_cmp(&b.1.median);
    match metric.better {
        Better::Higher => contest.sort_by(|a, b| ascending(b, a)),
        Better::Lower => contest.sort_by(ascending),
        Better::Neither => return None,
    }
    let [(winner, best), (_, next), ..] = &contest[..] else { return None };
    if next.median == 0.0 {
        return None;
    }
    let percent = (best.median - next.median) / next.median * 100.0;
    if percent.abs() < 0.5 {
        return Some("even".into());
    }
    let sign = if percent < 0.0 { "−" } else { "+" };
    let overlap = best.low <= next.high && next.low <= best.high;
    let doubt = if overlap { ", rounds overlap" } else { "" };
    Some(format!("{winner} {sign}{:.0} %{doubt}", percent.abs()))
}

fn color(cell: &Cell<'_>) -> String {
    if cell.entry.reference { "reference".into() } else { format!("c{}", cell.color % 6) }
}

/// Text for inside elements and attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// `2026-11-30 16:05 UTC` of seconds since 1970 (the days-to-date method of Howard Hinnant's "chrono-Compatible
/// Low-Level Date Algorithms").
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::tests::example;

    /// Elements without an end tag.
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];

    /// Fails at the first tag that does not nest, and at any bare `<` or `&`.
    fn assert_well_formed(page: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page;
        while let Some(at) = rest.find(['<', '&']) {
            rest = &rest[at..];
            if let Some(entity) = rest.strip_prefix('&') {
                assert!(entity.split_once(';').is_some_and(|(name, _)| name.len() < 6), "bare &: {rest:.60}");
                rest = entity;
                continue;
            }
            let (tag, after) = rest[1..].split_once('>').expect("a tag ends");
            rest = after;
            let name = tag.split([' ', '\n']).next().unwrap();
            if let Some(closed) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed), "before {rest:.60}");
            } else if !VOID.contains(&name) {
                assert!(!name.is_empty() && name.chars().all(char::is_alphanumeric), "bare <: {tag}");
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape(r#"<a href="x">&'"#), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn a_run_makes_a_well_formed_page_without_scripts() {
        let page = html(&[example()]);
        assert_well_formed(&page);
        assert!(!page.contains("<script"));
        assert!(!page.contains("http://") && !page.contains("https://"), "nothing is loaded from elsewhere");
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(
            page.contains("&lt;no&gt; &quot;idea&quot; &amp; more"),
            "the reason of an invalid row is shown"
        );
    }

    #[test]
    fn a_winner_is_named_with_the_difference_over_the_others_value() {
        let run = example();
        let joined = Joined::of(&[&run]);
        let verdicts = |metric: usize| verdict(&joined.rows[0], joined.metrics[metric]);
        assert_eq!(verdicts(0).as_deref(), Some("b +25 %"));
        assert_eq!(verdicts(1).as_deref(), Some("b −50 %, rounds overlap"));
        assert_eq!(verdicts(2), None, "not a contest");
        assert_eq!(verdict(&joined.rows[1], joined.metrics[0]), None, "the other is invalid");
    }

    #[test]
    fn references_do_not_win() {
        let mut run = example();
        run.rows[0].entries[1].reference = true;
        let joined = Joined::of(&[&run]);
        assert_eq!(verdict(&joined.rows[0], joined.metrics[0]), None);
    }

    #[test]
    fn several_runs_join_by_row_and_tell_versions_apart() {
        let (first, mut second) = (example(), example());
        second.programs[0].version = "a 1.1".into();
        second.machine = Machine { cpu: "another".into(), ..Machine::default() };
        let joined = Joined::of(&[&first, &second]);
        assert_eq!(joined.rows.len(), 2);
        let labels: Vec<&str> = joined.rows[0].cells.iter().map(|cell| cell.label.as_str()).collect();
        assert_eq!(labels, ["a 1.0 (run 1)", "b 2.0 (run 1)", "a 1.1 (run 2)", "b 2.0 (run 2)"]);
        let page = html(&[first, second]);
        assert_well_formed(&page);
        assert!(page.contains("different machines"));
    }

    #[test]
    fn dates_are_calendar_dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_796_054_700), "2026-11-30 16:05 UTC");
    }
}
