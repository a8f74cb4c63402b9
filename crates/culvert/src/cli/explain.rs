//! `culvert explain`: what the rules make of a connection, and why.

use std::net::{Ipv4Addr, SocketAddr};

use clap::{Args, ValueEnum};
use culvert_core::{Network, Session, SessionId, Sniffed, Tag};
use culvert_rules::rule::Process;
use culvert_rules::sniff::Protocol;
use culvert_wire::{Domain, Target};

use super::{Failure, Global, print, refused, sources};
use crate::instance::{BuildErrors, Parts};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Where the connection goes, as `host:port`.
    destination: String,
    /// What is carried.
    #[arg(short, long, default_value = "tcp")]
    network: Carried,
    /// Tag of the inbound it comes in by.
    #[arg(short, long, default_value = "")]
    inbound: String,
    /// The client, as `address:port`.
    #[arg(short, long)]
    source: Option<SocketAddr>,
    /// The user it has authenticated as.
    #[arg(short, long)]
    user: Option<String>,
    /// What sniffing tells of it.
    #[arg(short, long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// The name that sniffing finds; needs --protocol.
    #[arg(long, requires = "protocol")]
    sniffed_domain: Option<String>,
    /// Path of the program that opens it, as if that had been found out.
    #[arg(long)]
    process_path: Option<String>,
    /// Name of that program's user.
    #[arg(long)]
    process_user: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Carried {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
}

fn protocol(name: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|one| one.as_str() == name);
    found.ok_or_else(|| "not a protocol that sniffing knows".to_owned())
}

/// Runs the rules of the data path over a connection that does not exist. Nothing is dialled for it; names are looked up
/// where a rule asks for it, and remote rule-sets are fetched.
pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let loaded = culvert_config::load(&sources::read(global)?).map_err(|findings| refused(&findings))?;
    let session = session(arguments)?;
    let mut errors = BuildErrors::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::new)?;
    let lines = runtime.block_on(async {
        let parts = Parts::build(&loaded.options, &mut errors);
        if let Some(parts) = parts.as_ref().filter(|_| errors.is_empty()) {
            parts.fetch_rule_sets(&loaded.options, &mut errors).await;
        }
        match parts {
            Some(parts) if errors.is_empty() => Ok(parts.router.explain(session, process(arguments)).await),
            _ => Err(Failure::new(&errors)),
        }
    })?;
    print((lines.join("\n") + "\n").as_bytes())
}

fn process(arguments: &Arguments) -> Option<Process> {
    let Arguments { process_path, process_user, .. } = arguments;
    (process_path.is_some() || process_user.is_some()).then(|| Process {
        path: process_path.clone().unwrap_or_default(),
        user: process_user.clone().unwrap_or_default(),
        ..Process::default()
    })
}

fn session(arguments: &Arguments) -> Result<Session, Failure> {
    let wrong = || Failure(format!("`{}` is not of the form host:port", arguments.destination));
    let domain = match &arguments.sniffed_domain {
        Some(name) => Some(Domain::new(name).map_err(Failure::new)?),
        None => None,
    };
    Ok(Session {
        id: SessionId::next(),
        network: match arguments.network {
            Carried::Tcp => Network::Tcp,
            Carried::Udp => Network::Udp,
        },
        inbound: Tag::new("explain", arguments.inbound.as_str()),
        user: arguments.user.as_deref().map(Into::into),
        source: arguments.source.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into()),
        target: Target::parse(&arguments.destination, None).ok_or_else(wrong)?,
        sniffed: arguments.protocol.map(|protocol| Sniffed {
            protocol: protocol.as_str(),
            domain,
            client: None,
        }),
        alpn: None,
    })
}
