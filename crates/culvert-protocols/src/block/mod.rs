//! `block`: an outbound that refuses everything.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::outbound::direct::BlockOutbound;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
use culvert_wire::BufChain;

use crate::table::{BuildOutbound, outbound};
use crate::{BuildError, OutboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol =
    Protocol { name: "block", inbound: None, outbound: outbound::<BlockOutbound>(), fuzz: &[] };

impl BuildOutbound for BlockOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        None
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        Ok(Arc::new(Block::new(cx.tag)))
    }
}

/// Refuses.
pub struct Block {
    tag: Tag,
}

impl Block {
    /// An outbound of this tag.
    #[must_use]
    pub fn new(tag: Tag) -> Self {
        Self { tag }
    }
}

#[async_trait]
impl Outbound for Block {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, _session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        Err(DialError::Rejected("the block outbound"))
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Rejected("the block outbound"))
    }
}
