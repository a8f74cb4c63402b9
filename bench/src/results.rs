//! What a run found: plain data, written and read as JSON. Every output (terminal, Markdown, HTML) is made from it, so
//! that an old file can be shown again and joined with newer ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::machine::Machine;
use crate::programs::Program;
use crate::stats::{Spread, paired_ratios};

/// Key of the metric that says what other programs took of the processors, in percent.
pub(crate) const FOREIGN: &str = "foreign";
/// From here on they disturb.
pub(crate) const DISTURBED_PERCENT: f64 = 5.0;

/// The format's number; a file with another is refused.
const FORMAT: u32 = 1;

/// One run of one sub-command.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Run {
    pub(crate) format: u32,
    /// The sub-command.
    pub(crate) scenario: String,
    /// The command line, for those who want to repeat it.
    pub(crate) command: Vec<String>,
    /// Version of this program.
    pub(crate) bench_version: String,
    /// Seconds since 1970 when the run began.
    pub(crate) began: u64,
    /// How long it took, in seconds.
    pub(crate) took: f64,
    /// Streams, rounds, times and the like, by name.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) machine: Machine,
    pub(crate) programs: Vec<Program>,
    /// What the samples mean, in the order of the columns.
    pub(crate) metrics: Vec<Metric>,
    pub(crate) rows: Vec<Row>,
    /// Configuration files that were used, by protocol and end. Ports and addresses are examples.
    pub(crate) configs: BTreeMap<String, Value>,
}

/// One measured quantity.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Metric {
    /// The samples' key.
    pub(crate) key: String,
    /// Column heading, unit included.
    pub(crate) title: String,
    pub(crate) better: Better,
    pub(crate) decimals: usize,
    pub(crate) weight: Weight,
}

impl Metric {
    pub(crate) fn new(key: &str, title: &str, better: Better, decimals: usize) -> Self {
        Self { key: key.into(), title: title.into(), better, decimals, weight: Weight::Normal }
    }

    pub(crate) fn main(self) -> Self {
        Self { weight: Weight::Main, ..self }
    }

    pub(crate) fn detail(self) -> Self {
        Self { weight: Weight::Detail, ..self }
    }
}

/// How much room a metric gets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Weight {
    /// Only where there is room: not on the terminal.
    Detail,
    Normal,
    /// With lowest, highest and ratio everywhere, and a chart.
    Main,
}

/// Which way a metric wins.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
    /// Context, not a contest.
    Neither,
}

/// Like with like: the same work done by each contender.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Stable name, by which files are joined: `socks/down`.
    pub(crate) id: String,
    /// What people read.
    pub(crate) title: String,
    /// The first one is the baseline of the ratios.
    pub(crate) entries: Vec<Entry>,
}

/// One contender's rounds of one row.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Entry {
    pub(crate) contender: String,
    /// Whether it only shows what is possible, and so neither wins nor loses.
    #[serde(default)]
    pub(crate) reference: bool,
    /// Values by metric key, one per round, in the order of the rounds.
    pub(crate) samples: BTreeMap<String, Vec<f64>>,
    /// Why the numbers must not be used. Nothing is shown but this when it is set.
    pub(crate) invalid: Option<String>,
    /// What the program's build leaves out, so that it takes no part.
    #[serde(default)]
    pub(crate) absent: Option<String>,
}

impl Entry {
    pub(crate) fn new(contender: &str) -> Self {
        Self {
            contender: contender.to_owned(),
            reference: false,
            samples: BTreeMap::new(),
            invalid: None,
            absent: None,
        }
    }

    /// Takes it out for this reason.
    pub(crate) fn take_out(&mut self, failure: &Failure) {
        match failure.left_out_of_build() {
            Some(what) => self.absent = Some(what.to_owned()),
            None => self.invalid = Some(failure.to_string()),
        }
    }

    /// What stands in a table instead of numbers.
    pub(crate) fn verdict(&self) -> Option<&'static str> {
        match (&self.invalid, &self.absent) {
            (Some(_), _) => Some("invalid"),
            (None, Some(_)) => Some("not in its build"),
            (None, None) => None,
        }
    }

    /// Adds one round.
    pub(crate) fn add(&mut self, values: &[(&str, f64)]) {
        for (key, value) in values {
            self.samples.entry((*key).to_owned()).or_default().push(*value);
        }
    }

    /// What a metric came to; `None` where it was not measured or the row is invalid.
    pub(crate) fn spread(&self, key: &str) -> Option<Spread> {
        if self.invalid.is_some() {
            return None;
        }
        Spread::of(self.samples.get(key)?)
    }

    /// This entry over `baseline`, paired by rounds.
    pub(crate) fn ratio(&self, baseline: &Self, key: &str) -> Option<Spread> {
        if self.invalid.is_some() || baseline.invalid.is_some() {
            return None;
        }
        paired_ratios(self.samples.get(key)?, baseline.samples.get(key)?)
    }
}

impl Run {
    /// An empty run of a scenario that begins now.
    pub(crate) fn begin(scenario: &str, programs: &[Program], metrics: Vec<Metric>) -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            format: FORMAT,
            scenario: scenario.to_owned(),
            command: std::iter::once("culvert-bench".to_owned()).chain(std::env::args().skip(1)).collect(),
            bench_version: env!("CARGO_PKG_VERSION").to_owned(),
            began: since_epoch.map_or(0, |time| time.as_secs()),
            took: 0.0,
            settings: BTreeMap::new(),
            machine: Machine::this(),
            programs: programs.to_vec(),
            metrics,
            rows: Vec::new(),
            configs: BTreeMap::new(),
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.insert(name.to_owned(), value.to_string());
    }

    /// Whether any row must not be used.
    pub(crate) fn has_invalid(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.entries).any(|entry| entry.invalid.is_some())
    }

    /// What a reader must know before believing the numbers; empty after a run on a quiet machine.
    pub(crate) fn warnings(&self) -> Vec<String> {
        /// Beyond so many, single rows say no more than their number.
        const SINGLE: usize = 5;
        let mut disturbed = Vec::new();
        let mut measured = 0;
        for row in &self.rows {
            for entry in &row.entries {
                let Some(spread) = entry.spread(FOREIGN) else { continue };
                measured += 1;
                if spread.median > DISTURBED_PERCENT {
                    disturbed.push((row, entry, spread.median));
                }
            }
        }
        if disturbed.len() > SINGLE {
            let most = disturbed.iter().map(|(.., percent)| *percent).fold(0.0, f64::max);
            return vec![format!(
                "in {} of {measured} measurements other programs took more than {DISTURBED_PERCENT:.0} % of the processors, \
                 {most:.0} % at most",
                disturbed.len()
            )];
        }
        let tell = |(row, entry, percent): &(&Row, &Entry, f64)| {
            format!(
                "{}, {}: other programs took {percent:.0} % of the processors",
                row.title, entry.contender
            )
        };
        disturbed.iter().map(tell).collect()
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Failure::Usage(error.to_string()))?;
        fs::write(path, text + "\n").map_err(Failure::file("cannot write", path))
    }

    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(Failure::file("cannot read", path))?;
        let refuse = |reason: String| Failure::Usage(format!("{}: {reason}", path.display()));
        let run: Self = serde_json::from_str(&text)
            .map_err(|error| refuse(format!("no result of this program: {error}")))?;
        if run.format != FORMAT {
            return Err(refuse(format!("format {}, this program reads {FORMAT}", run.format)));
        }
        Ok(run)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small run with two programs, one valid row and one that fell out.
    pub(crate) fn example() -> Run {
        let program = |name: &str, version: &str| Program {
            name: name.into(),
            path: format!("/opt/{name}").into(),
            kind: crate::programs::Kind::SingBox,
            server: None,
            arguments: Vec::new(),
            version: version.into(),
        };
        let metrics = vec![
            Metric::new("gbit", "Gbit/s", Better::Higher, 2).main(),
            Metric::new("cpu", "CPU-s/GB", Better::Lower, 3).main(),
            Metric::new("note", "load generator CPU-s/GB", Better::Neither, 3),
        ];
        let mut run = Run::begin("matrix", &[program("a", "a 1.0"), program("b", "b 2.0")], metrics);
        run.set("rounds", 3);
        let (mut a, mut b) = (Entry::new("a"), Entry::new("b"));
        for (gbit, cpu) in [(10.0, 0.5), (12.0, 0.25), (11.0, 0.375)] {
            a.add(&[("gbit", gbit), ("cpu", cpu), ("note", 0.125)]);
            b.add(&[("gbit", gbit * 1.25), ("cpu", cpu * 0.5), ("note", 0.125)]);
        }
        let mut broken = Entry::new("b");
        broken.invalid = Some("b did not start: <no> \"idea\" & more\n    | last words".into());
        run.rows = vec![
            Row {
                id: "socks/down".into(),
                title: "socks → direct, down".into(),
                entries: vec![a.clone(), b],
            },
            Row { id: "direct/down".into(), title: "direct, down".into(), entries: vec![a, broken] },
        ];
        run.configs.insert("socks/client".into(), serde_json::json!({ "inbounds": [] }));
        run
    }

    #[test]
    fn json_gives_back_what_was_written() {
        let path = std::env::temp_dir().join(format!("culvert-bench-test-{}.json", std::process::id()));
        let run = example();
        run.write(&path).unwrap();
        assert_eq!(Run::read(&path).unwrap(), run);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn disturbed_rows_are_told_about() {
        let mut run = example();
        assert_eq!(run.warnings(), Vec::<String>::new());
        run.rows[0].entries[1].add(&[(FOREIGN, 40.0)]);
        assert_eq!(run.warnings(), ["socks → direct, down, b: other programs took 40 % of the processors"]);
    }

    #[test]
    fn many_disturbed_rows_are_told_in_one_line() {
        let mut run = example();
        run.rows.truncate(1);
        run.rows[0].entries[1].add(&[(FOREIGN, 40.0)]);
        let row = run.rows[0].clone();
        run.rows.extend(vec![row; 5]);
        let told = "in 6 of 6 measurements other programs took more than 5 % of the processors, 40 % at most";
        assert_eq!(run.warnings(), [told]);
    }

    #[test]
    fn what_a_build_leaves_out_is_no_failure() {
        let failure = |log: &str| Failure::Start { program: "a".into(), reason: "r".into(), log: log.into() };
        let mut entry = Entry::new("a");
        entry.take_out(&failure("one\nx: uTLS is not included in this build, rebuild"));
        assert_eq!((entry.verdict(), entry.invalid.as_ref()), (Some("not in its build"), None));
        entry.take_out(&failure("a bad port"));
        assert_eq!(entry.verdict(), Some("invalid"));
    }

    #[test]
    fn another_format_is_refused() {
        let path =
            std::env::temp_dir().join(format!("culvert-bench-test-format-{}.json", std::process::id()));
        Run { format: 99, ..example() }.write(&path).unwrap();
        let message = Run::read(&path).unwrap_err().to_string();
        assert!(message.ends_with("format 99, this program reads 1"), "{message}");
        fs::write(&path, "{}").unwrap();
        assert!(Run::read(&path).unwrap_err().to_string().contains("no result of this program"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn ratios_are_paired_and_invalid_entries_have_no_numbers() {
        let run = example();
        let [a, b] = &run.rows[0].entries[..] else { panic!("two entries") };
        assert_eq!(b.ratio(a, "gbit").unwrap().median, 1.25);
        let broken = &run.rows[1].entries[1];
        assert_eq!(broken.spread("gbit"), None);
        assert_eq!(broken.ratio(a, "gbit"), None);
        assert!(run.has_invalid());
    }
}
