//! A relay: it opens no more than whom a connection is for, and passes everything else on as it is.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::{Dispatch, Handshake, Incoming, Io, ServeError, Session, StreamServer};
use culvert_wire::{Buf, BufChain, Target};

use super::cipher::{BLOCK, Blocks};
use super::codec::open_identity;
use super::key::Secret;
use super::server::read_more;
use crate::stranger::Stranger;

/// A server that a relay passes connections on to.
pub(super) struct Destination {
    pub(super) name: Arc<str>,
    pub(super) server: Target,
    /// Under the server's key.
    pub(super) blocks: Blocks,
}

/// The servers that a relay passes connections on to, by the hashes of their keys.
#[derive(Default)]
pub(super) struct Destinations(HashMap<[u8; BLOCK], Destination>);

impl Destinations {
    /// Adds one. Of several with one key the last counts. Whether the key is one.
    pub(super) fn add(&mut self, name: Arc<str>, server: Target, key: &Secret) -> bool {
        let Some(blocks) = Blocks::new(key.bytes()) else { return false };
        self.0.insert(key.hash(), Destination { name, server, blocks });
        true
    }

    pub(super) fn by_hash(&self, hash: &[u8; BLOCK]) -> Option<&Destination> {
        self.0.get(hash)
    }
}

/// The server of streams.
pub(super) struct Relay {
    pub(super) key: Arc<Secret>,
    pub(super) destinations: Arc<Destinations>,
}

impl Relay {
    /// Finds out whom the first segment is for, and takes that part out of it.
    fn read(&self, first: &mut BufChain) -> Result<&Destination, ServeError> {
        let salt_len = self.key.bytes().len();
        if first.len() < salt_len + BLOCK {
            return Err(ServeError::Denied("less than a header in the first segment"));
        }
        first.contiguous();
        let mut piece = first.pop_front().ok_or(ServeError::Left)?;
        let (salt, rest) = piece.split_at(salt_len);
        let block = *rest.first_chunk().ok_or(ServeError::Left)?;
        let hash = open_identity(&self.key, salt, block);
        let salt = Buf::copied(salt);
        piece.advance(salt_len + BLOCK);
        first.push_front(piece);
        first.push_front(salt);
        hash.and_then(|hash| self.destinations.by_hash(&hash))
            .ok_or(ServeError::Denied("unknown destination"))
    }
}

#[async_trait]
impl StreamServer for Relay {
    async fn serve(
        &self,
        conn: culvert_core::BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut stranger = Stranger::new(conn);
        let mut early = read_more(stranger.conn()?).await?;
        let destination = self.read(&mut early)?;
        let conn = stranger.known()?;
        drop(handshake);
        session.target = destination.server.clone();
        session.user = Some(Arc::clone(&destination.name));
        let io = Io::Stream(conn);
        dispatch.submit(Incoming { session, io, early, reply: None, udp_timeout: None });
        Ok(())
    }
}
