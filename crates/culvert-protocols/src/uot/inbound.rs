//! The server's part: answer, read the request, and go on as an association.

use std::io;

use culvert_core::conn::write_chain;
use culvert_core::handshake::read_message;
use culvert_core::{DialOutcome, Dispatch, Incoming, Io, Network, ServeError, timeouts};
use culvert_wire::{BufChain, Reader, Target};

use super::codec::{MAX_REQUEST, Request, decode_head};
use super::{UotConn, Version};

/// Turns a stream whose target is the sign of `version` into an association and submits that.
///
/// The client is told that it is connected, as it sends nothing before.
///
/// # Errors
/// Those of the stream, or what it sends is no UDP over TCP.
pub async fn serve(version: Version, mut incoming: Incoming, dispatch: &Dispatch) -> Result<(), ServeError> {
    let Io::Stream(mut conn) = incoming.io else {
        dispatch.submit(incoming);
        return Ok(());
    };
    let reply = incoming.reply.take();
    let mut early = incoming.early;
    let reading = async {
        if let Some(reply) = reply {
            let mut bytes = Vec::new();
            reply(&DialOutcome::Connected(conn.local_addr()), &mut bytes);
            write_chain(&mut conn, &mut BufChain::copied(&bytes)).await?;
        }
        match version {
            Version::V1 => {
                let target = read_message(&mut conn, &mut early, MAX_REQUEST, peek_peer).await?;
                Ok(Request { connect: false, target })
            }
            Version::V2 => read_message(&mut conn, &mut early, MAX_REQUEST, Request::decode).await,
        }
    };
    let request = tokio::time::timeout(timeouts::HANDSHAKE, reading).await;
    let request = request.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
    incoming.session.network = Network::Udp;
    incoming.session.target = request.target.clone();
    let connected = request.connect.then_some(request.target);
    dispatch.submit(Incoming {
        io: Io::Packets(Box::new(UotConn::server(conn, early, connected))),
        early: BufChain::new(),
        ..incoming
    });
    Ok(())
}

/// Where the first packet goes; it stays where it is.
fn peek_peer(r: &mut Reader<'_>) -> Result<Target, culvert_wire::DecodeError> {
    let (peer, _) = decode_head(&mut r.clone(), false)?;
    peer.ok_or(culvert_wire::DecodeError::Invalid("packet without an address"))
}
