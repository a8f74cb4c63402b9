//! The server fields of outbounds.

use culvert_config::options::dial::ServerOptions;
use culvert_wire::{Host, Target};

use crate::BuildError;

/// Where `options` say the server is.
///
/// # Errors
/// [`BuildError::Invalid`] for a server that is no address and no name.
pub fn server(options: &ServerOptions) -> Result<Target, BuildError> {
    if options.server.is_empty() {
        return Err(BuildError::Invalid { option: "server", reason: "it is missing".into() });
    }
    let host = Host::parse(&options.server)
        .map_err(|error| BuildError::Invalid { option: "server", reason: error.to_string() })?;
    Ok(Target { host, port: options.server_port })
}
