//! Straight to the target.

use async_trait::async_trait;
use culvert_core::conn::write_chain;
use culvert_core::{BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Session, Tag};
use culvert_wire::BufChain;

/// Connects to the targets themselves.
pub(super) struct Direct {
    tag: Tag,
    dialer: Dialer,
    /// The same without TCP Fast Open, for sessions that have nothing to send in the opening packet: with it, nothing
    /// at all would be sent until the client speaks, and with some protocols the server speaks first.
    patient: Dialer,
}

impl Direct {
    pub(super) fn new(tag: Tag, dialer: Dialer) -> Self {
        let mut patient = dialer.clone();
        patient.tcp.fast_open = false;
        Self { tag, dialer, patient }
    }
}

#[async_trait]
impl Outbound for Direct {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        if early.is_empty() {
            return self.patient.connect(session, &session.target).await;
        }
        let mut conn = self.dialer.connect(session, &session.target).await?;
        if self.dialer.tcp.fast_open {
            // The first write makes the connection, so its failure is one of the dial.
            write_chain(&mut conn, early)
                .await
                .map_err(|source| DialError::Connect { target: session.target.clone(), source })?;
        }
        Ok(conn)
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        if session.network == Network::Icmp {
            return self.dialer.pings(&session.target).await;
        }
        self.dialer.packets(session, &session.target).await
    }
}
