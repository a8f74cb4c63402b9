//! Runs a scenario's rounds: for each protocol, round after round, each contender in turn with fresh processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chain::Contender;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::protocols::{Protocol, Setup};
use crate::results::{Entry, Row, Run};
use crate::stats::round_order;

/// Values of one round by metric key.
pub(crate) type Values = Vec<(&'static str, f64)>;

/// What is to be measured.
pub(crate) struct Plan<'a> {
    pub(crate) protocols: &'a [&'static Protocol],
    /// Rows that one round of one protocol yields, as `(id, title)`.
    pub(crate) parts: Vec<(String, String)>,
    pub(crate) contenders: &'a [Contender],
    pub(crate) rounds: usize,
    pub(crate) work_dir: &'a Path,
}

/// One round of one contender: where it works and who takes part.
pub(crate) struct Round<'a> {
    pub(crate) protocol: &'static Protocol,
    pub(crate) contender: &'a Contender,
    /// An empty folder for configurations and logs.
    pub(crate) folder: PathBuf,
}

impl Plan<'_> {
    /// Calls `measure` for every round, which returns the values of each part, and adds the rows to `run`. A contender
    /// that fails is told about at once, marked, and left out of the protocol's remaining rounds.
    pub(crate) fn run(
        &self,
        run: &mut Run,
        mut measure: impl FnMut(&Round<'_>) -> Result<Vec<Values>, Failure>,
    ) -> Result<(), Failure> {
        run.set("rounds", self.rounds);
        let contenders = |protocol: &Protocol| -> Vec<&Contender> {
            self.contenders.iter().filter(|contender| contender.fits(protocol)).collect()
        };
        let per_round: usize = self.protocols.iter().map(|protocol| contenders(protocol).len()).sum();
        let mut progress = Progress::new(per_round * self.rounds);
        for protocol in self.protocols {
            note_configs(run, protocol);
            let contenders = contenders(protocol);
            let entry = |contender: &&Contender| Entry {
                reference: contender.is_reference(),
                ..Entry::new(&contender.name)
            };
            let turns = Turns {
                title: protocol.title,
                parts: self
                    .parts
                    .iter()
                    .map(|(id, title)| {
                        (format!("{}/{id}", protocol.name), format!("{}, {title}", protocol.title))
                    })
                    .collect(),
                entries: contenders.iter().map(entry).collect(),
                rounds: self.rounds,
                work_dir: self.work_dir,
            };
            turns.run(run, &mut progress, |turn| {
                let contender = contenders[turn.entry];
                let values = measure(&Round { protocol, contender, folder: turn.folder.clone() })?;
                Ok(values.into_iter().map(Ok).collect())
            })?;
        }
        Ok(())
    }
}

/// The rounds of some rows that are measured together: everybody in turn, in an order that turns around.
pub(crate) struct Turns<'a> {
    /// What progress shows.
    pub(crate) title: &'a str,
    /// Rows as `(id, title)`.
    pub(crate) parts: Vec<(String, String)>,
    /// Who takes part.
    pub(crate) entries: Vec<Entry>,
    pub(crate) rounds: usize,
    pub(crate) work_dir: &'a Path,
}

/// Somebody's turn in a round.
pub(crate) struct Turn {
    /// Whose.
    pub(crate) entry: usize,
    pub(crate) round: usize,
    /// An empty folder for configurations and logs.
    pub(crate) folder: PathBuf,
}

impl Turns<'_> {
    /// Steps of a progress display that this takes.
    pub(crate) fn steps(&self) -> usize {
        self.entries.len() * self.rounds
    }

    /// Calls `measure` for every turn, which returns the values of each part, and adds the rows to `run`. A part that
    /// fails is told about at once and marked; one who fails as a whole is left out of the remaining rounds.
    pub(crate) fn run(
        self,
        run: &mut Run,
        progress: &mut Progress,
        mut measure: impl FnMut(&Turn) -> Result<Vec<Result<Values, Failure>>, Failure>,
    ) -> Result<(), Failure> {
        let names: Vec<String> = self.entries.iter().map(|entry| entry.contender.clone()).collect();
        let mut parts = vec![self.entries; self.parts.len()];
        let mut out = vec![false; names.len()];
        for round in 0..self.rounds {
            for index in round_order(names.len(), round) {
                if out[index] {
                    continue;
                }
                let name = &names[index];
                progress.step(&format!("{}, {name}, round {}", self.title, round + 1));
                let folder = self.work_dir.join("round");
                fs::create_dir_all(&folder).map_err(Failure::file("cannot create", &folder))?;
                match measure(&Turn { entry: index, round, folder: folder.clone() }) {
                    Ok(values) => {
                        for ((entries, values), (_, title)) in parts.iter_mut().zip(values).zip(&self.parts) {
                            match values {
                                Ok(values) => entries[index].add(&values),
                                Err(failure) => {
                                    note(progress, title, name, &failure);
                                    entries[index].take_out(&failure);
                                }
                            }
                        }
                    }
                    Err(failure) => {
                        note(progress, self.title, name, &failure);
                        progress.skip(self.rounds - round - 1);
                        out[index] = true;
                        for entries in &mut parts {
                            entries[index].take_out(&failure);
                        }
                    }
                }
                fs::remove_dir_all(&folder).map_err(Failure::file("cannot remove", &folder))?;
            }
        }
        for ((id, title), entries) in self.parts.into_iter().zip(parts) {
            run.rows.push(Row { id, title, entries });
        }
        Ok(())
    }
}

/// Tells at once who falls out and why.
pub(crate) fn note(progress: &Progress, title: &str, name: &str, failure: &Failure) {
    progress.note(&match failure.left_out_of_build() {
        Some(what) => format!("left out: {title}, {name}: {what}"),
        None => format!("INVALID {title}, {name}: {failure}"),
    });
}

/// Keeps the configurations with example ports.
pub(crate) fn note_configs(run: &mut Run, protocol: &Protocol) {
    let setup = Setup::example();
    run.configs.insert(format!("{}/client", protocol.name), protocol.client_config(&setup));
    if let Some(server) = protocol.server_config(&setup) {
        run.configs.insert(format!("{}/server", protocol.name), server);
    }
}
