//! `culvert version`

use clap::Args;

use super::{Failure, print};

/// The bare version.
pub(super) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// The sing-box version whose configuration and behaviour this version follows.
const FOLLOWS: &str = "1.14.4";

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Print the version alone.
    #[arg(short, long)]
    name: bool,
}

pub(super) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.name {
        return print(format!("{SHORT}\n").as_bytes());
    }
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let link = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    // What a configuration can name as a type; the others are parts of several protocols.
    let has_type = |protocol: &&&culvert_protocols::table::Protocol| {
        protocol.inbound.is_some() || protocol.outbound.is_some()
    };
    let protocols: Vec<_> =
        culvert_protocols::TABLE.iter().filter(has_type).map(|protocol| protocol.name).collect();
    let text = format!(
        "culvert version {SHORT}\n\nEnvironment: {os}/{arch} {link}\nFollows: sing-box {FOLLOWS}\nProtocols: {}\n",
        protocols.join(",")
    );
    print(text.as_bytes())
}
