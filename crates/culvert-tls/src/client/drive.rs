//! The handshake over a stream.

use culvert_core::BoxStream;
use culvert_core::conn::write_chain;
use culvert_wire::{Buf, BufChain};

use super::{Client, Refusal, Verdict};
use crate::conn::{Handover, TlsConn};
use crate::engine::{Facts, looks_like_tls, printable, receive};
use crate::error::TlsFault;
use crate::fragment;
use crate::settings::Fragment;

/// Shakes hands. As with the library the last flight leaves with the first data, a read or a flush.
pub(crate) async fn connect(
    mut conn: BoxStream,
    mut client: Client,
    fragment: Fragment,
) -> Result<(TlsConn, Facts, Verdict), TlsFault> {
    let mut incoming = Vec::new();
    fragment::write(&mut conn, &client.take_outgoing(), fragment).await.map_err(TlsFault::Io)?;
    loop {
        if let Err(refusal) = digest(&mut client, &mut incoming) {
            // The server may be gone, and that is no news.
            let _ = write_chain(&mut conn, &mut BufChain::copied(&client.take_outgoing())).await;
            return Err(refusal.fault);
        }
        let outgoing = client.take_outgoing();
        if client.is_done() {
            let done = client.finish().expect("it is done");
            let raw = if incoming.is_empty() { BufChain::new() } else { Buf::copied(&incoming).into() };
            let handover = Handover {
                opener: done.opener,
                sealer: done.sealer,
                raw,
                last_flight: BufChain::copied(&outgoing),
                awaited: true,
                tickets: None,
            };
            return Ok((TlsConn::new(conn, handover), done.facts, done.verdict));
        }
        if !outgoing.is_empty() {
            write_chain(&mut conn, &mut BufChain::copied(&outgoing)).await.map_err(TlsFault::Io)?;
        }
        receive(&mut conn, &mut incoming).await?;
    }
}

/// Gives the client the whole records that have come. What is behind the handshake stays.
pub(super) fn digest(client: &mut Client, incoming: &mut Vec<u8>) -> Result<(), Refusal> {
    while !client.is_done() {
        let len = match Client::record_len(incoming) {
            Ok(Some(len)) if len <= incoming.len() => len,
            Ok(_) => return Ok(()),
            Err(_) if !looks_like_tls(incoming) => {
                return Err(Refusal { alert: None, fault: TlsFault::NotTls(printable(incoming)) });
            }
            Err(refusal) => return Err(refusal),
        };
        let mut record: Vec<u8> = incoming.drain(..len).collect();
        client.record(&mut record)?;
    }
    Ok(())
}
