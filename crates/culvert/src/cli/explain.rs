//! `culvert explain`: what the rules make of a connection, and why.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::{Args, ValueEnum};
use culvert_config::Options;
use culvert_core::{Network, Session, SessionId, Sniffed, Tag};
use culvert_rules::rule::Process;
use culvert_rules::sniff::Protocol;
use culvert_wire::{Domain, Target};

use super::{Failure, Global, print, refused, sources};
use crate::instance::{BuildErrors, Parts};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Where the connection goes: `host:port`, or a URL. Without a port it is 443.
    destination: String,
    /// What is carried.
    #[arg(short, long, default_value = "tcp")]
    network: Carried,
    /// Tag of the inbound it comes in by.
    #[arg(short, long, default_value = "")]
    inbound: String,
    /// The client, as `address:port` or an address alone.
    #[arg(short, long, value_parser = source)]
    source: Option<SocketAddr>,
    /// The user it has authenticated as.
    #[arg(short, long)]
    user: Option<String>,
    /// What sniffing finds, if a rule sniffs.
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

fn source(text: &str) -> Result<SocketAddr, String> {
    let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
    alone.or_else(|_| text.parse()).map_err(|_| "neither address:port nor an address".to_owned())
}

fn protocol(name: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|one| one.as_str() == name);
    found.ok_or_else(|| {
        let known: Vec<_> = Protocol::ALL.into_iter().map(Protocol::as_str).collect();
        format!("not a protocol that sniffing knows: {}", known.join(", "))
    })
}

/// Runs the rules of the data path over a connection that does not exist. Nothing is dialled for it; names are looked up
/// where a rule asks for it, and remote rule-sets are fetched.
pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let loaded = culvert_config::load(&sources::read(global)?).map_err(|findings| refused(&findings))?;
    let session = session(arguments)?;
    check_inbound(&arguments.inbound, &loaded.options)?;
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

/// An inbound that does not exist would simply match no rule.
fn check_inbound(tag: &str, options: &Options) -> Result<(), Failure> {
    let inbounds = options.inbounds.iter().map(|one| &one.tag);
    let tags: Vec<_> = inbounds.chain(options.endpoints.iter().map(|one| &one.tag)).collect();
    if tag.is_empty() || tags.iter().any(|known| *known == tag) {
        return Ok(());
    }
    let known: Vec<_> = tags.iter().map(|tag| tag.as_str()).collect();
    let known = if known.is_empty() {
        "there are none".to_owned()
    } else {
        format!("known are {}", known.join(", "))
    };
    Err(Failure(format!("there is no inbound `{tag}`; {known}")))
}

/// The host and port of what people paste: `a.test`, `a.test:80`, `::1`, `[::1]:80`, `https://me@a.test/path`.
fn destination(text: &str) -> Option<Target> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let port = match scheme {
        "http" | "ws" => 80,
        _ => 443,
    };
    match host.parse::<Ipv6Addr>() {
        Ok(v6) => Some(Target::new(IpAddr::from(v6), port)),
        Err(_) => Target::parse(host, Some(port)),
    }
}

fn session(arguments: &Arguments) -> Result<Session, Failure> {
    let wrong = || Failure(format!("`{}` is neither of the form host:port nor a URL", arguments.destination));
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
        target: destination(&arguments.destination).ok_or_else(wrong)?,
        sniffed: arguments.protocol.map(|protocol| Sniffed {
            protocol: protocol.as_str(),
            domain,
            client: None,
        }),
        alpn: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_taken_as_people_paste_them() {
        for (text, expected) in [
            ("a.test", "a.test:443"),
            ("a.test:80", "a.test:80"),
            ("192.0.2.1", "192.0.2.1:443"),
            ("2001:db8::1", "[2001:db8::1]:443"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            ("https://me:x@a.test/path?q", "a.test:443"),
            ("http://a.test", "a.test:80"),
            ("http://a.test:8080/", "a.test:8080"),
        ] {
            assert_eq!(
                destination(text).map(|target| target.to_string()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        for wrong in ["", "a.test:port", "a b", "https://"] {
            assert_eq!(destination(wrong), None, "{wrong}");
        }
        assert_eq!(source("192.0.2.1").unwrap().port(), 0);
        assert_eq!(source("[::1]:53").unwrap().port(), 53);
        assert!(source("a.test:1").is_err());
    }
}
