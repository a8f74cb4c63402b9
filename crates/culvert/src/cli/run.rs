//! `culvert run`

use std::time::{Duration, Instant};

use culvert_config::{Loaded, Source};
use culvert_core::{Chain, timeouts};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use super::{Failure, Global, refused, report, sources};
use crate::instance::{Instance, InstanceError};
use crate::log;

/// What runs when nothing is configured.
const DEFAULT: &str = include_str!("default.json");

pub(super) fn execute(global: &Global) -> Result<(), Failure> {
    let begun = Instant::now();
    culvert_os::process::tune_allocator();
    let open_files = culvert_os::process::raise_open_files_limit().unwrap_or(1024);
    // Asked once: a file that is gone for a moment at a reload must not mean that nothing was ever configured.
    let built_in = sources::is_nothing_given(global);
    let loaded = load(global, built_in)?;
    configure_log(&loaded)?;
    let runtime = runtime().map_err(|error| Failure(format!("start runtime: {error}")))?;
    runtime.block_on(serve(global, built_in, loaded, open_files, begun))
}

/// Workers as there are cores; a single core needs no second thread.
fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(cores).enable_all().build()
}

fn load(global: &Global, built_in: bool) -> Result<Loaded, Failure> {
    let sources = if built_in {
        vec![Source::new("built-in configuration", DEFAULT.as_bytes())]
    } else {
        sources::read(global)?
    };
    culvert_config::load(&sources).map_err(|findings| refused(&findings))
}

fn configure_log(loaded: &Loaded) -> Result<(), Failure> {
    log::configure(&loaded.options.log)
        .map_err(|error| Failure(format!("open log file {}: {error}", loaded.options.log.output)))?;
    report(&loaded.warnings);
    Ok(())
}

async fn start(loaded: &Loaded, open_files: u64) -> Result<Instance, InstanceError> {
    let mut instance = Instance::build(&loaded.options, open_files)?;
    instance.start().await?;
    Ok(instance)
}

/// Runs until it is told to stop, through any number of reloads.
async fn serve(
    global: &Global,
    built_in: bool,
    mut loaded: Loaded,
    open_files: u64,
    begun: Instant,
) -> Result<(), Failure> {
    let failed = |error| Failure(format!("handle signals: {error}"));
    let mut reload = signal(SignalKind::hangup()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut instance = start(&loaded, open_files).await.map_err(|error| start_failure(&error))?;
    if built_in {
        let places: Vec<_> = instance.listening().iter().map(|(_, address)| address.to_string()).collect();
        info!("no configuration given: serving SOCKS and HTTP on {}, straight out", places.join(" and "));
    }
    info!("culvert started ({:.2}s)", begun.elapsed().as_secs_f64());
    if loaded.options.log.disabled {
        log::silence();
    }
    loop {
        tokio::select! {
            _ = reload.recv() => {
                let Some(next) = load_again(global, built_in) else { continue };
                // No grace: the addresses are wanted again, and a user who was taken out must not stay connected.
                instance.close(Duration::ZERO).await;
                (instance, loaded) = replace(loaded, next, open_files).await?;
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    instance.close(timeouts::SHUTDOWN).await;
    Ok(())
}

/// The configuration as it now is, if it is any good.
fn load_again(global: &Global, built_in: bool) -> Option<Loaded> {
    let next = load(global, built_in).and_then(|next| {
        // Whatever can be known without opening sockets is known before the running instance is touched.
        match Instance::build(&next.options, u64::MAX) {
            Ok(_) => Ok(next),
            Err(errors) => Err(Failure::new(errors)),
        }
    });
    match next {
        Ok(next) => Some(next),
        Err(Failure(message)) => {
            error!("reload service: {message}; the running configuration stays");
            None
        }
    }
}

/// Starts the new configuration, or else the old one again.
async fn replace(old: Loaded, next: Loaded, open_files: u64) -> Result<(Instance, Loaded), Failure> {
    let started = match configure_log(&next) {
        Ok(()) => start(&next, open_files).await.map_err(|error| start_failure(&error)),
        Err(failure) => Err(failure),
    };
    match started {
        Ok(instance) => {
            info!("culvert reloaded");
            if next.options.log.disabled {
                log::silence();
            }
            Ok((instance, next))
        }
        Err(Failure(message)) => {
            configure_log(&old)?;
            error!("reload service: {message}; going back to the configuration before");
            let instance = start(&old, open_files).await.map_err(|error| start_failure(&error))?;
            Ok((instance, old))
        }
    }
}

/// Every reason a line, then the FATAL one.
fn start_failure(error: &InstanceError) -> Failure {
    match error {
        InstanceError::Build(errors) if errors.len() > 1 => {
            errors.iter().for_each(|reason| error!("{reason}"));
            Failure(format!("start service: {} things stand in the way", errors.len()))
        }
        error => Failure(format!("start service: {}", Chain(error))),
    }
}
