//! Rule-sets that are fetched: at the start, and from time to time.
//!
//! What a rule-set begins with, first come first served: the copy in the cache file; the file of `initial_path`; what the
//! server has, which is waited for a while. Whatever goes wrong later leaves the last good copy in use, and another try
//! follows. Without any copy the rule-set is empty, which is said aloud, and the program starts all the same.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_cache::{CacheFile, SavedRuleSet};
use culvert_config::options::rule_set::{RemoteRuleSet, RuleSet as RuleSetOptions, RuleSetKind};
use culvert_core::Chain;
use culvert_http::http::{HeaderMap, Uri};
use culvert_http::{Client, Fetched, HttpError, Limits, Validator};
use culvert_rules::rule::{RuleSet, RuleSetId};
use culvert_rules::ruleset::Format;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::RuleSetStore;
use super::rule_sets::{format, parse};

/// Longest file, and longest time for it.
const LIMITS: Limits = Limits { body: 128 << 20, total: Duration::from_secs(300) };
/// How long the start waits for rule-sets of which there is no copy.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time between updates where the options say nothing (sing-box 1.14.4).
const INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Time to the first try after one that failed, and the longest; each is twice the one before.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// All remote rule-sets.
#[derive(Default)]
pub(crate) struct Remotes(Vec<Remote>);

/// A remote rule-set.
struct Remote {
    id: RuleSetId,
    tag: String,
    url: Uri,
    format: Format,
    initial: Option<PathBuf>,
    interval: Duration,
    client: Client,
    store: Arc<RuleSetStore>,
}

/// What is known of the copy in use.
#[derive(Clone, Debug, Default)]
struct Known {
    validator: Validator,
    /// When the next update is due; at once if absent.
    fetched: Option<SystemTime>,
    /// Tries that have failed since.
    failed: u32,
}

impl Remotes {
    /// All of those in the options. `client` makes the HTTP client of one; `place` is where it is.
    pub(crate) fn build(
        options: &[RuleSetOptions],
        store: &Arc<RuleSetStore>,
        mut client: impl FnMut(&RemoteRuleSet, &str) -> Option<Client>,
        mut invalid: impl FnMut(&str, String),
    ) -> Self {
        let mut remotes = Vec::new();
        for (index, one) in options.iter().enumerate() {
            let RuleSetKind::Remote(remote) = &one.kind else { continue };
            let place = format!("route.rule_set[{index}]");
            let Some(client) = client(remote, &place) else { continue };
            for tag in one.tags.iter() {
                let Some(id) = store.id(tag) else { continue };
                let url = remote.url.replace("{tag}", tag);
                let url = match url.parse::<Uri>() {
                    Ok(parsed) if matches!(parsed.scheme_str(), Some("http" | "https")) => parsed,
                    _ => {
                        invalid(&place, format!("url: `{url}` is no URL of http or https"));
                        continue;
                    }
                };
                let initial = Some(remote.initial_path.replace("{tag}", tag)).filter(|path| !path.is_empty());
                remotes.push(Remote {
                    id,
                    tag: tag.clone(),
                    url,
                    format: format(remote.format),
                    initial: initial.map(PathBuf::from),
                    interval: remote.update_interval.or(INTERVAL),
                    client: client.clone(),
                    store: Arc::clone(store),
                });
            }
        }
        Self(remotes)
    }

    /// Takes what copies there are, and waits a while for the others; then keeps all up to date for as long as the result
    /// is held.
    pub(crate) async fn start(self, cache: Option<&Arc<CacheFile>>) -> JoinSet<()> {
        let (mut updates, mut first) = (JoinSet::new(), JoinSet::new());
        for remote in self.0 {
            let cache = cache.cloned();
            let known = remote.begin(cache.as_deref()).await;
            match known {
                Some(known) => drop(updates.spawn(remote.keep_up(known, cache))),
                None => drop(first.spawn(remote.fetch_first(cache))),
            }
        }
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !first.is_empty() {
            match tokio::time::timeout_at(deadline, first.join_next()).await {
                Ok(Some(Ok((remote, known, cache)))) => drop(updates.spawn(remote.keep_up(known, cache))),
                Ok(Some(Err(_)) | None) => {}
                Err(_) => break,
            }
        }
        if !first.is_empty() {
            warn!(
                "{} rule-sets could not be fetched within {} s; they are empty until then",
                first.len(),
                PATIENCE.as_secs()
            );
            updates.spawn(async move {
                let mut later = JoinSet::new();
                while let Some(Ok((remote, known, cache))) = first.join_next().await {
                    later.spawn(remote.keep_up(known, cache));
                }
                later.join_all().await;
            });
        }
        updates
    }
}

impl Remote {
    /// Takes the copy in the cache file or that of `initial_path` into use, if there is one.
    async fn begin(&self, cache: Option<&CacheFile>) -> Option<Known> {
        let saved = cache.and_then(|cache| cache.rule_set(&self.tag));
        if let Some(saved) = saved.filter(|saved| self.url == *saved.url) {
            let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let validator = Validator { etag: text(&saved.etag), last_modified: text(&saved.last_modified) };
            match self.parse(saved.content).await {
                Ok(set) => {
                    self.store.replace(self.id, set);
                    return Some(Known { validator, fetched: Some(saved.fetched), failed: 0 });
                }
                Err(reason) => warn!("rule-set {}: copy in the cache file: {reason}", self.tag),
            }
        }
        let path = self.initial.as_ref()?;
        let read = match tokio::fs::read(path).await {
            Ok(data) => self.parse(data).await,
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(set) => {
                self.store.replace(self.id, set);
                Some(Known::default())
            }
            Err(reason) => {
                warn!("rule-set {}: {}: {reason}", self.tag, path.display());
                None
            }
        }
    }

    async fn fetch_first(self, cache: Option<Arc<CacheFile>>) -> (Self, Known, Option<Arc<CacheFile>>) {
        let mut known = Known::default();
        self.update(&mut known, cache.as_deref()).await;
        if known.failed > 0 {
            warn!("rule-set {} is empty until it can be fetched", self.tag);
        }
        (self, known, cache)
    }

    /// Updates when the time has come, for as long as it is polled.
    async fn keep_up(self, mut known: Known, cache: Option<Arc<CacheFile>>) {
        loop {
            tokio::time::sleep(self.pause(&known)).await;
            self.update(&mut known, cache.as_deref()).await;
        }
    }

    /// Time to the next update.
    fn pause(&self, known: &Known) -> Duration {
        if known.failed > 0 {
            let (first, longest) = RETRY;
            let doubled = first.saturating_mul(1 << known.failed.saturating_sub(1).min(16));
            return doubled.min(longest).min(self.interval.max(first));
        }
        let Some(fetched) = known.fetched else { return Duration::ZERO };
        // A clock that was put back makes the copy look as if it came from the future: it is then fetched now.
        let age = SystemTime::now().duration_since(fetched).unwrap_or(self.interval);
        self.interval.saturating_sub(age)
    }

    async fn update(&self, known: &mut Known, cache: Option<&CacheFile>) {
        match self.fetch(known, cache).await {
            Ok(()) => known.failed = 0,
            Err(reason) => {
                known.failed += 1;
                warn!("rule-set {}: {reason}; what there was stays in use", self.tag);
            }
        }
    }

    async fn fetch(&self, known: &mut Known, cache: Option<&CacheFile>) -> Result<(), String> {
        let fetched = self.client.fetch(&self.url, &known.validator, &HeaderMap::new(), LIMITS).await;
        let fetched = fetched.map_err(|error: HttpError| Chain(&error).to_string())?;
        let now = SystemTime::now();
        match fetched {
            Fetched::Unchanged => {
                debug!("rule-set {} is unchanged", self.tag);
                let saved = cache.and_then(|cache| cache.rule_set(&self.tag));
                if let (Some(cache), Some(saved)) = (cache, saved) {
                    cache.set_rule_set(&self.tag, &SavedRuleSet { fetched: now, ..saved });
                }
            }
            Fetched::New { body, validator } => {
                let set = self.parse(body.to_vec()).await?;
                self.store.replace(self.id, set);
                info!("rule-set {} updated", self.tag);
                if let Some(cache) = cache {
                    let saved = SavedRuleSet {
                        url: self.url.to_string(),
                        etag: validator.etag.clone().unwrap_or_default(),
                        last_modified: validator.last_modified.clone().unwrap_or_default(),
                        fetched: now,
                        content: body.to_vec(),
                    };
                    cache.set_rule_set(&self.tag, &saved);
                }
                known.validator = validator;
            }
        }
        known.fetched = Some(now);
        Ok(())
    }

    /// Builds the rules; large sets take their time, which must not hold up connections.
    async fn parse(&self, data: Vec<u8>) -> Result<RuleSet, String> {
        let (tag, format) = (self.tag.clone(), self.format);
        let built = tokio::task::spawn_blocking(move || parse(&tag, format, &data)).await;
        built.map_err(|error| error.to_string())?
    }
}
