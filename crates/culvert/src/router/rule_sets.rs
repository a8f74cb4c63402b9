//! The rule-sets of a configuration: read once, replaced as a whole when a file changes or another copy is fetched.
//!
//! Files are looked at every few seconds, by size, time and number; nothing needs to be watched by the kernel. A file
//! that cannot be read leaves the last good copy in use and is reported once for each state it is found in.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use culvert_config::options::rule_set::{RuleSet as RuleSetOptions, RuleSetFormat, RuleSetKind};
use culvert_protocols::table::Networks;
use culvert_rules::ip::{IpSet, IpSetBuilder};
use culvert_rules::rule::{RuleSet, RuleSetId, RuleSets};
use culvert_rules::ruleset::{self, CURRENT_VERSION, Format, RuleSetFile};
use tokio::sync::watch;
use tracing::{info, warn};

use super::condition::rule_options;
use crate::instance::BuildErrors;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(2);

/// All rule-sets.
#[derive(Default)]
pub(crate) struct RuleSetStore {
    ids: HashMap<String, RuleSetId>,
    current: RwLock<Arc<RuleSets>>,
    files: Vec<File>,
    /// Whether any of them looks at the program behind a connection.
    needs_process: AtomicBool,
    changes: watch::Sender<()>,
}

/// A rule-set in a file.
struct File {
    id: RuleSetId,
    tag: String,
    path: PathBuf,
    format: Format,
    /// The state last read, whether it was any good or not.
    seen: Mutex<Option<Stamp>>,
}

/// What shows that a file has changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stamp {
    size: u64,
    modified: Option<SystemTime>,
    number: u64,
}

impl RuleSetStore {
    /// Reads all rule-sets. What is not built yet or cannot be read is noted in `errors`.
    pub(crate) fn build(options: &[RuleSetOptions], errors: &mut BuildErrors) -> Self {
        let (mut store, mut sets) = (Self::default(), Vec::new());
        for (index, one) in options.iter().enumerate() {
            for tag in one.tags.iter() {
                let place = format!("route.rule_set[{index}] \"{tag}\"");
                let id = RuleSetId(u32::try_from(sets.len()).unwrap_or(u32::MAX));
                let set = match &one.kind {
                    RuleSetKind::Inline(inline) => {
                        let rules = inline.rules.iter().map(rule_options).collect();
                        build(tag, RuleSetFile { version: CURRENT_VERSION, rules })
                    }
                    RuleSetKind::Local(local) => {
                        let path = PathBuf::from(local.path.replace("{tag}", tag));
                        let format = format(local.format);
                        let file = File { id, tag: tag.clone(), path, format, seen: Mutex::default() };
                        let set = file.read();
                        store.files.push(file);
                        set
                    }
                    // Empty until `Remotes` fills it.
                    RuleSetKind::Remote(_) => Ok(RuleSet::new(tag, Vec::new())),
                };
                let set = set.unwrap_or_else(|reason| {
                    errors.invalid(place, reason);
                    RuleSet::new(tag, Vec::new())
                });
                store.ids.insert(tag.clone(), id);
                sets.push(Arc::new(set));
            }
        }
        store.current = RwLock::new(Arc::new(RuleSets(sets)));
        store.note_needs();
        store
    }

    /// The rule-set with this tag.
    pub(crate) fn id(&self, tag: &str) -> Option<RuleSetId> {
        self.ids.get(tag).copied()
    }

    /// All of them as they are at this moment; one decision uses one snapshot.
    pub(crate) fn snapshot(&self) -> Arc<RuleSets> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether any of them looks at the program behind a connection.
    pub(crate) fn needs_process(&self) -> bool {
        self.needs_process.load(Ordering::Relaxed)
    }

    fn note_needs(&self) {
        let looks =
            |set: &Arc<RuleSet>| set.rules().iter().any(|rule| rule.needs(&RuleSets::default()).process);
        self.needs_process.store(self.snapshot().0.iter().any(looks), Ordering::Relaxed);
    }

    /// Puts `set` in the place of the one with this id.
    pub(super) fn replace(&self, id: RuleSetId, set: RuleSet) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut sets = RuleSets::clone(&current);
        if let Some(place) = sets.0.get_mut(id.0 as usize) {
            *place = Arc::new(set);
        }
        *current = Arc::new(sets);
        drop(current);
        self.note_needs();
        self.changes.send_replace(());
    }

    /// Reads files again when they change, for as long as it is polled. Ends at once if there are none.
    pub(crate) async fn watch(self: Arc<Self>) {
        while !self.files.is_empty() {
            tokio::time::sleep(LOOK).await;
            let store = Arc::clone(&self);
            // Large sets take their time to build; that must not hold up connections.
            let _ = tokio::task::spawn_blocking(move || store.look()).await;
        }
    }

    /// One look at all files.
    fn look(&self) {
        for file in &self.files {
            if !file.has_changed() {
                continue;
            }
            match file.read() {
                Ok(set) => {
                    self.replace(file.id, set);
                    info!("rule-set {} reloaded from {}", file.tag, file.path.display());
                }
                Err(reason) => warn!(
                    "rule-set {}: {}: {reason}; the copy read before stays in use",
                    file.tag,
                    file.path.display()
                ),
            }
        }
    }
}

impl Networks for RuleSetStore {
    fn of(&self, tags: &[String]) -> IpSet {
        let sets = self.snapshot();
        let mut all = IpSetBuilder::default();
        let named = tags.iter().filter_map(|tag| sets.0.get(self.id(tag)?.0 as usize));
        for (first, last) in named.flat_map(|set| set.ip_sets()).flat_map(IpSet::ranges) {
            // Both ends come from a set, so they are in order and of one family.
            let _ = all.add_range(first, last);
        }
        all.build()
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

impl File {
    fn has_changed(&self) -> bool {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.stamp().ok() != seen
    }

    /// Reads the file and builds its rules. Its state is taken first, so that a change meanwhile is seen by the next
    /// look.
    fn read(&self) -> Result<RuleSet, String> {
        let stamp = self.stamp();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = stamp.as_ref().ok().copied();
        stamp.map_err(|error| error.to_string())?;
        let data = std::fs::read(&self.path).map_err(|error| error.to_string())?;
        parse(&self.tag, self.format, &data)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let data = std::fs::metadata(&self.path)?;
        Ok(Stamp { size: data.len(), modified: data.modified().ok(), number: data.ino() })
    }
}

/// The form of a file.
pub(super) fn format(option: RuleSetFormat) -> Format {
    match option {
        RuleSetFormat::Binary => Format::Binary,
        RuleSetFormat::Source | RuleSetFormat::Unset => Format::Source,
    }
}

/// The rules in a file.
pub(super) fn parse(tag: &str, format: Format, data: &[u8]) -> Result<RuleSet, String> {
    let file = match format {
        Format::Source => ruleset::read_source(data).map_err(|error| error.to_string()),
        Format::Binary => ruleset::read_binary(data).map_err(|error| error.to_string()),
    };
    build(tag, file?)
}

/// Builds the rules.
fn build(tag: &str, file: RuleSetFile) -> Result<RuleSet, String> {
    ruleset::build(tag, file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use culvert_config::options::rule_set::LocalRuleSet;
    use culvert_rules::rule::Facts;
    use culvert_testkit::temp::TempDir;

    use super::*;

    fn matches(store: &RuleSetStore, domain: &str) -> bool {
        let facts = Facts { domain: Some(domain), ..Facts::default() };
        store.snapshot().0[0].matches(&facts)
    }

    fn local(path: String, format: RuleSetFormat) -> RuleSetOptions {
        let mut options = RuleSetOptions::default();
        options.tags.0 = vec!["s".into()];
        options.kind = RuleSetKind::Local(LocalRuleSet { format, path }.into());
        options
    }

    #[test]
    fn changed_files_are_read_again_and_broken_ones_leave_the_last_good_copy() {
        let directory = TempDir::new().unwrap();
        let source = |domain: &str| format!(r#"{{"version": 3, "rules": [{{"domain": ["{domain}"]}}]}}"#);
        let path = directory.write("s.json", source("a.test")).unwrap();
        let mut errors = BuildErrors::default();
        let options = [local(path.display().to_string(), RuleSetFormat::Source)];
        let store = RuleSetStore::build(&options, &mut errors);
        assert!(errors.is_empty(), "{errors}");
        let before = store.snapshot();
        assert!(matches(&store, "a.test"));
        assert!(!store.files[0].has_changed());
        directory.write("s.json", source("other.test")).unwrap();
        store.look();
        assert!(matches(&store, "other.test") && !matches(&store, "a.test"));
        let facts = Facts { domain: Some("a.test"), ..Facts::default() };
        assert!(before.0[0].matches(&facts), "a decision under way keeps its snapshot");
        directory.write("s.json", "{").unwrap();
        store.look();
        assert!(matches(&store, "other.test"));
        assert!(!store.files[0].has_changed(), "a broken file is reported once");
        std::fs::remove_file(&path).unwrap();
        store.look();
        assert!(matches(&store, "other.test"));
        directory.write("s.json", source("a.test")).unwrap();
        store.look();
        assert!(matches(&store, "a.test"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let directory = TempDir::new().unwrap();
        let path = directory.write("s.srs", "no rule-set").unwrap();
        let refused = |path: String, format| {
            let mut errors = BuildErrors::default();
            RuleSetStore::build(&[local(path, format)], &mut errors);
            errors.to_string()
        };
        assert!(
            refused(path.display().to_string(), RuleSetFormat::Binary).contains("route.rule_set[0] \"s\"")
        );
        assert!(refused("/nonexistent".into(), RuleSetFormat::Source).contains("No such file"));
    }
}
