//! What disguises a client's streams (SIP003). The plugins run inside the program, as in sing-box; nothing is started.

mod obfs_http;
mod obfs_tls;
mod v2ray;

#[cfg(test)]
mod tests;

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::outbound::shadowsocks::{PluginOptions, ShadowsocksPlugin};
use culvert_core::{BoxStream, DialError, Dialer, Session};
use culvert_wire::Target;

use self::obfs_http::ObfsHttp;
use self::obfs_tls::ObfsTls;
use self::v2ray::OneSession;
use crate::carrier::Carrier;
use crate::{BuildError, OutboundCx};

/// A plugin of the options.
pub(super) enum Plugin {
    /// simple-obfs, as HTTP, for this host.
    ObfsHttp(String),
    /// simple-obfs, as TLS, for this host.
    ObfsTls(String),
    /// v2ray-plugin, by this way, with mux.cool or without.
    V2ray(Box<Carrier>, bool),
}

impl Plugin {
    /// The plugin that the options describe.
    pub(super) fn new(
        kind: ShadowsocksPlugin,
        options: &str,
        server: &ServerOptions,
        cx: &OutboundCx,
    ) -> Result<Self, BuildError> {
        let invalid = |reason: String| BuildError::Invalid { option: "plugin_opts", reason };
        let options = PluginOptions::parse(options).map_err(|reason| invalid(reason.to_owned()))?;
        match kind {
            ShadowsocksPlugin::ObfsLocal => {
                let host = options.get("obfs-host").unwrap_or_default().to_owned();
                match options.get("obfs") {
                    None | Some("http") => Ok(Self::ObfsHttp(host)),
                    // The length of the first message counts the host's in 16 bits.
                    Some("tls") if host.len() < 256 => Ok(Self::ObfsTls(host)),
                    Some("tls") => Err(invalid("obfs-host is too long".to_owned())),
                    Some(other) => Err(invalid(format!("unknown obfs mode `{other}`"))),
                }
            }
            ShadowsocksPlugin::V2ray => {
                let (carrier, mux) = v2ray::carrier(&options, server, cx)?;
                Ok(Self::V2ray(Box::new(carrier), mux))
            }
        }
    }

    /// Opens a disguised stream to the server.
    pub(super) async fn connect(
        &self,
        session: &Session,
        dialer: &Dialer,
        server: &Target,
    ) -> Result<BoxStream, DialError> {
        let lower = async || dialer.connect(session, server).await;
        Ok(match self {
            Self::ObfsHttp(host) => Box::new(ObfsHttp::new(lower().await?, host, server.port)),
            Self::ObfsTls(host) => Box::new(ObfsTls::new(lower().await?, host.clone())),
            Self::V2ray(carrier, false) => carrier.connect(session).await?,
            Self::V2ray(carrier, true) => Box::new(OneSession::new(carrier.connect(session).await?)),
        })
    }
}
