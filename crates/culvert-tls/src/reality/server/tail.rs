//! The records that a target sends behind its handshake without being asked, such as session tickets. Clients of ours get
//! as many of the same lengths, with nothing in them: without, they could be told from the target's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use culvert_core::BoxStream;
use culvert_core::conn::read_chain;
use culvert_wire::{DecodeError, Host, Room};
use tokio::io::AsyncWriteExt;

use super::hello::Offer;
use crate::browser::Fingerprint;
use crate::error::{SettingsError, TlsError};
use crate::record::{ContentType, HEADER, MAX_DATA};
use crate::settings::{ClientSettings, Trust, Version};
use crate::{Connector, Store};

/// All that are told apart.
pub const OFFERS: [Offer; 3] = [Offer::None, Offer::Http1, Offer::Http2];
/// How long a target is listened to.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most records that are imitated.
const MOST: usize = 8;

/// The whole lengths of these records, for each offer.
#[derive(Debug, Default)]
pub struct Tails(Mutex<[Vec<usize>; 3]>);

impl Tails {
    /// Notes what a target does after this offer.
    pub fn set(&self, offer: Offer, lengths: Vec<usize>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index(offer)] = lengths;
    }

    pub(super) fn of(&self, offer: Offer) -> Vec<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index(offer)].clone()
    }
}

fn index(offer: Offer) -> usize {
    match offer {
        Offer::None => 0,
        Offer::Http1 => 1,
        Offer::Http2 => 2,
    }
}

/// A client that finds out what a target does. Its certificate is of no interest, as nothing is told to it.
///
/// # Errors
/// The name is none.
pub fn visitor(server_name: &str, target: &Host, offer: Offer) -> Result<Connector, SettingsError> {
    let (fingerprint, alpn) = match offer {
        Offer::None => (None, &[][..]),
        Offer::Http1 => (None, &["http/1.1"][..]),
        Offer::Http2 => (Some(Fingerprint::Chrome), &["h2", "http/1.1"][..]),
    };
    let mut settings = ClientSettings { trust: Trust::Anyone, fingerprint, ..ClientSettings::default() };
    settings.server_name = Some(server_name.to_owned()).filter(|name| !name.is_empty());
    settings.parameters.alpn = alpn.iter().map(|&name| name.to_owned()).collect();
    Connector::new(settings, target, &Store::new(Default::default()))
}

/// Shakes hands with a target over `conn` and listens. `None` if it does not speak TLS 1.3.
///
/// # Errors
/// Those of the handshake.
pub async fn listen(visitor: &Connector, conn: BoxStream) -> Result<Option<Vec<usize>>, TlsError> {
    let (mut tls, facts) = visitor.connect(conn).await?;
    if facts.version != Version::Tls13 {
        return Ok(None);
    }
    let mut seen = Vec::new();
    let listening = async {
        tls.flush().await?;
        let (mut lower, _) = tls.into_parts();
        while seen.len() < MOST * MAX_DATA {
            let more = read_chain(&mut lower, Room::NONE).await?;
            if more.is_empty() {
                break;
            }
            seen.extend(more.to_vec());
        }
        std::io::Result::Ok(())
    };
    // That it breaks off at some time is what a site does with somebody who says nothing.
    let _ = tokio::time::timeout(PATIENCE, listening).await;
    Ok(Some(lengths(&seen)))
}

/// The lengths of the whole records with data at the front.
fn lengths(mut seen: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while lengths.len() < MOST
        && let Ok(len) = record_len(seen)
        && len <= seen.len()
    {
        lengths.push(len);
        seen = &seen[len..];
    }
    lengths
}

fn record_len(bytes: &[u8]) -> Result<usize, DecodeError> {
    match bytes {
        [kind, 3, 3, high, low, ..] if *kind == ContentType::Data.byte() => {
            Ok(HEADER + usize::from(u16::from_be_bytes([*high, *low])))
        }
        [] => Err(DecodeError::Incomplete),
        _ => Err(DecodeError::Invalid("a record of another kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_with_data_count() {
        let data = |len: usize| [&[23, 3, 3, 0, len as u8][..], &vec![0; len]].concat();
        assert_eq!(lengths(&[data(20), data(30)].concat()), [25, 35]);
        assert_eq!(lengths(&[data(20), data(30)[..34].to_vec()].concat()), [25]);
        assert_eq!(lengths(&[&[21, 3, 3, 0, 2, 1, 0][..], &data(20)].concat()), [0; 0]);
        assert_eq!(lengths(&data(20).repeat(20)).len(), MOST);
        assert!(lengths(b"").is_empty());
    }
}
