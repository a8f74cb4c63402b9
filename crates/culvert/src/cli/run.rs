//! `culvert run`

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_config::{Loaded, Source};
use culvert_core::{Chain, Inbound, timeouts};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use super::{Failure, Global, refused, report, sources};
use crate::instance::{BuildErrors, Instance, InstanceError};
use crate::log;

/// What runs when nothing is configured.
const DEFAULT: &str = include_str!("default.json");

pub(super) fn execute(global: &Global) -> Result<(), Failure> {
    // Asked once: a file that is gone for a moment at a reload must not mean that nothing was ever configured.
    let origin = if sources::is_nothing_given(global) {
        Origin::Text { name: "built-in configuration", text: DEFAULT }
    } else {
        Origin::Files(global)
    };
    execute_origin(&origin)
}

/// Runs a configuration that was made up.
pub(super) fn execute_text(name: &str, text: &str) -> Result<(), Failure> {
    execute_origin(&Origin::Text { name, text })
}

/// Where a configuration comes from, each time that it is read.
enum Origin<'a> {
    Files(&'a Global),
    Text { name: &'a str, text: &'a str },
}

fn execute_origin(origin: &Origin<'_>) -> Result<(), Failure> {
    let begun = Instant::now();
    culvert_os::process::tune_allocator();
    let open_files = culvert_os::process::raise_open_files_limit().unwrap_or(1024);
    let config = Config::load(origin)?;
    configure_log(&config.loaded)?;
    report(&config.loaded.warnings);
    let runtime = runtime().map_err(|error| Failure(format!("start runtime: {error}")))?;
    runtime.block_on(serve(origin, config, open_files, begun))
}

/// Workers as there are cores; a single core needs no second thread.
pub(super) fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(cores).enable_all().build()
}

/// A configuration, with the text it was read from as long as places in it may have to be named.
pub(super) struct Config {
    pub(super) loaded: Loaded,
    pub(super) sources: Vec<Source>,
}

impl Config {
    fn load(origin: &Origin<'_>) -> Result<Self, Failure> {
        Self::read(match origin {
            Origin::Text { name, text } => vec![Source::new(*name, text.as_bytes())],
            Origin::Files(global) => sources::read(global)?,
        })
    }

    /// Reads all of it; mistakes are shown, every one.
    pub(super) fn read(sources: Vec<Source>) -> Result<Self, Failure> {
        let loaded = culvert_config::load(&sources).map_err(|findings| refused(&findings))?;
        Ok(Self { loaded, sources })
    }

    /// Makes all objects.
    fn build(&self, open_files: u64) -> Result<Instance, Failure> {
        let built = Instance::build(&self.loaded.options, open_files);
        built.map_err(|errors| Failure(format!("start service: {}", self.tell(&errors))))
    }

    /// Makes all objects and opens their sockets. What stands in the way is told, every reason a line.
    async fn start(&self, open_files: u64) -> Result<Instance, Failure> {
        self.start_with(open_files, None).await
    }

    /// The same with one more inbound.
    pub(super) async fn start_with(
        &self,
        open_files: u64,
        more: Option<Arc<dyn Inbound>>,
    ) -> Result<Instance, Failure> {
        let mut instance = self.build(open_files)?;
        instance.extend(more);
        instance.start().await.map_err(|error| not_started(&error))?;
        Ok(instance)
    }

    /// Logs all reasons, if there are several, and sums them up.
    fn tell(&self, errors: &BuildErrors) -> String {
        let mut reasons: Vec<_> = errors.iter().map(|reason| placed(reason, &self.sources)).collect();
        match &mut *reasons {
            [only] => std::mem::take(only),
            _ => {
                reasons.iter().for_each(|reason| error!("{reason}"));
                format!("{} things stand in the way", reasons.len())
            }
        }
    }
}

fn not_started(error: &InstanceError) -> Failure {
    Failure(format!("start service: {}", Chain(error)))
}

pub(super) fn configure_log(loaded: &Loaded) -> Result<(), Failure> {
    let configured = log::configure(&loaded.options.log);
    configured.map_err(|error| Failure(format!("open log file {}: {error}", loaded.options.log.output)))
}

/// Runs until it is told to stop, through any number of reloads.
async fn serve(origin: &Origin<'_>, config: Config, open_files: u64, begun: Instant) -> Result<(), Failure> {
    let failed = |error| Failure(format!("handle signals: {error}"));
    let mut reload = signal(SignalKind::hangup()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    // Some send it to all daemons alike, to have their logs opened again; without a handler it would kill this one.
    let mut ignored = signal(SignalKind::user_defined1()).map_err(failed)?;
    let mut instance = config.start(open_files).await?;
    let Config { mut loaded, sources: _ } = config;
    if matches!(origin, Origin::Text { text: DEFAULT, .. }) {
        let places: Vec<_> = instance.listening().iter().map(|(_, address)| address.to_string()).collect();
        info!("no configuration given: serving SOCKS and HTTP on {}, straight out", places.join(" and "));
    }
    info!("culvert started ({:.2}s)", begun.elapsed().as_secs_f64());
    // Nobody needs the code that reads configurations for now.
    culvert_os::process::release_program_pages();
    if loaded.options.log.disabled {
        log::silence();
    }
    let stopping = loop {
        tokio::select! {
            _ = reload.recv() => {
                let Some(next) = load_again(origin) else { continue };
                if next.loaded.options == loaded.options {
                    // Whoever moves log files away wants new ones all the same.
                    if let Err(Failure(message)) = configure_log(&loaded) {
                        error!("reload service: {message}");
                    }
                    info!("culvert not reloaded: the configuration is unchanged");
                } else {
                    (instance, loaded) = replace((instance, loaded), next, open_files).await?;
                }
                if loaded.options.log.disabled {
                    log::silence();
                }
            }
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            _ = ignored.recv() => {}
        }
    };
    info!("culvert stops ({stopping})");
    instance.close(timeouts::SHUTDOWN).await;
    Ok(())
}

/// The configuration as it now is, if it is any good.
fn load_again(origin: &Origin<'_>) -> Option<Config> {
    match Config::load(origin) {
        Ok(next) => Some(next),
        Err(Failure(message)) => {
            error!("reload service: {message}; {STAYS}");
            None
        }
    }
}

/// What is said of a reload that failed before anything was touched.
const STAYS: &str = "the running configuration stays, with all its connections";

/// Starts the new configuration and then ends the old one, which goes on if the new one cannot start.
///
/// Whatever can be known without touching the running instance is known first: the objects are made, and all sockets are
/// open, those with an address that stays being the very same ones. Then the new instance is started beside the old one. Only
/// where both change the system in a way that can be done once (a TUN device, a WireGuard endpoint) the old one has to end
/// before, and is started again if the new one cannot.
async fn replace(
    (mut instance, old): (Instance, Loaded),
    next: Config,
    open_files: u64,
) -> Result<(Instance, Loaded), Failure> {
    let prepared = configure_log(&next.loaded).and_then(|()| {
        report(&next.loaded.warnings);
        next.build(open_files)
    });
    let prepared = match prepared {
        Ok(built) => built.open_after(&instance).map(|()| built).map_err(|error| not_started(&error)),
        Err(failure) => Err(failure),
    };
    let started = match prepared {
        Err(failure) => Err(failure),
        Ok(mut built) if built.can_run_beside(&instance) => {
            let started = built.start_beside(&mut instance).await;
            started.map(|()| built).map_err(|error| not_started(&error))
        }
        Ok(mut built) => {
            // No grace: a user who was taken out must not stay connected.
            instance.close(Duration::ZERO).await;
            return match built.start().await {
                Ok(()) => {
                    info!("culvert reloaded");
                    Ok((built, next.loaded))
                }
                Err(error) => {
                    let Failure(message) = not_started(&error);
                    configure_log(&old)?;
                    error!("reload service: {message}; going back to the configuration before");
                    let old = Config { loaded: old, sources: Vec::new() };
                    let instance = old.start(open_files).await?;
                    warn!("culvert runs the configuration before again; its connections have ended");
                    Ok((instance, old.loaded))
                }
            };
        }
    };
    match started {
        Ok(built) => {
            instance.close(Duration::ZERO).await;
            info!("culvert reloaded");
            Ok((built, next.loaded))
        }
        Err(Failure(message)) => {
            configure_log(&old)?;
            error!("reload service: {message}; {STAYS}");
            Ok((instance, old))
        }
    }
}

/// `reason` behind the file, line and column of the object it speaks of, which it names by its path: `outbounds[3]`, or in
/// the beginning and in backticks `experimental.clash_api`.
pub(super) fn placed(reason: &str, sources: &[Source]) -> String {
    let quoted = || reason.strip_prefix('`')?.split_once('`').map(|(path, _)| path);
    let place = path_in(reason).or_else(quoted).and_then(|path| culvert_config::place_of(sources, path));
    place.map_or_else(|| reason.to_owned(), |place| format!("{place}: {reason}"))
}

/// The first path to an item of a list.
pub(super) fn path_in(reason: &str) -> Option<&str> {
    reason.match_indices('[').find_map(|(at, _)| {
        let is_key = |char: char| char.is_ascii_lowercase() || matches!(char, '_' | '.');
        let start = reason[..at].trim_end_matches(is_key).len();
        let digits = reason[at + 1..].find(']').filter(|&length| length > 0)?;
        let is_index = reason[at + 1..at + 1 + digits].bytes().all(|byte| byte.is_ascii_digit());
        (start < at && is_index).then(|| &reason[start..at + digits + 2])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_get_the_place_of_what_they_speak_of() {
        let text = b"{\n  \"inbounds\": [\n    {\"type\": \"tun\"}\n  ]\n}";
        let sources = [Source::new("c.json", text)];
        let told = |reason| placed(reason, &sources);
        assert_eq!(told("inbounds[0] \"a[1]\": no"), "c.json:3:5: inbounds[0] \"a[1]\": no");
        assert_eq!(told("type `tun` (inbounds[0]) no"), "c.json:3:5: type `tun` (inbounds[0]) no");
        for placeless in ["inbounds[7]: no", "`ntp` is not built yet", "[0] [] a[x]", ""] {
            assert_eq!(told(placeless), placeless);
        }
        assert_eq!(told("`inbounds` is not built yet"), "c.json:2:15: `inbounds` is not built yet");
    }
}
