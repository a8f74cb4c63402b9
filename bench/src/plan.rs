//! Runs a scenario's rounds: for each protocol, round after round, each contender in turn with fresh processes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::chain::Contender;
use crate::failure::Failure;
use crate::identity::Identity;
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
            let entries: Vec<Entry> = contenders.iter().map(entry).collect();
            let mut parts = vec![entries; self.parts.len()];
            for round in 0..self.rounds {
                for index in round_order(contenders.len(), round) {
                    let contender = contenders[index];
                    if parts[0][index].invalid.is_some() {
                        continue;
                    }
                    progress.step(&format!("{}, {}, round {}", protocol.title, contender.name, round + 1));
                    let folder = self.work_dir.join("round");
                    fs::create_dir_all(&folder).map_err(Failure::file("cannot create", &folder))?;
                    match measure(&Round { protocol, contender, folder: folder.clone() }) {
                        Ok(values) => {
                            for (entries, values) in parts.iter_mut().zip(&values) {
                                entries[index].add(values);
                            }
                        }
                        Err(failure) => {
                            progress
                                .note(&format!("INVALID {}, {}: {failure}", protocol.title, contender.name));
                            progress.skip(self.rounds - round - 1);
                            for entries in &mut parts {
                                entries[index].invalid = Some(failure.to_string());
                            }
                        }
                    }
                    fs::remove_dir_all(&folder).map_err(Failure::file("cannot remove", &folder))?;
                }
            }
            for ((id, title), entries) in self.parts.iter().zip(parts) {
                run.rows.push(Row {
                    id: format!("{}/{id}", protocol.name),
                    title: format!("{}, {title}", protocol.title),
                    entries,
                });
            }
        }
        Ok(())
    }
}

/// Keeps the configurations with example ports.
fn note_configs(run: &mut Run, protocol: &Protocol) {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 9000));
    let identity = Identity::example(Path::new("/tmp/culvert-bench"));
    let setup = Setup { entry_port: 1080, server_port: 8443, target, identity };
    run.configs.insert(format!("{}/client", protocol.name), protocol.client_config(&setup));
    if let Some(server) = protocol.server_config(&setup) {
        run.configs.insert(format!("{}/server", protocol.name), server);
    }
}
