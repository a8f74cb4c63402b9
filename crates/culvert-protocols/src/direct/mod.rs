//! `direct`: an outbound that connects straight to the target, and an inbound that sends all that comes to one port
//! to one target.
//!
//! The inbound takes the address its client connected to as the target and replaces what `override_address` and
//! `override_port` say. Without either, the target is the inbound itself; that is of use where a rule decides by the
//! inbound alone, to answer DNS say.

mod inbound;
mod outbound;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::direct::DirectInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::direct::DirectOutbound;
use culvert_core::{Inbound, Outbound};
use culvert_wire::Host;

use self::inbound::{Listener, Override};
use self::outbound::Direct;
use crate::fields::listen::listen;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "direct",
    inbound: inbound::<DirectInbound>(),
    outbound: outbound::<DirectOutbound>(),
    fuzz: &[],
};

impl BuildInbound for DirectInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let host = match self.override_address.as_str() {
            "" => None,
            address => {
                let host = Host::parse(address);
                let invalid =
                    |error| BuildError::Invalid { option: "override_address", reason: format!("{error}") };
                Some(host.map_err(invalid)?)
            }
        };
        let port = Some(self.override_port).filter(|port| *port != 0);
        let networks = [self.network.tcp(), self.network.udp()];
        Ok(Arc::new(Listener::new(cx.tag, listen(&self.listen, true)?, networks, Override { host, port })))
    }
}

impl BuildOutbound for DirectOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(Direct::new(cx.tag, cx.dialer)))
    }
}
