//! The handshake, driven through the unbuffered API of rustls. This is the only file that knows this API.
//!
//! The library is given the bytes of the handshake and no byte more: what comes behind stays ours to open, so records are
//! shown to it one by one. Once it is
//! done, its secrets and sequence numbers go into our [record layer](crate::record), and it is dropped. Two of its
//! own goods are taken along: traffic secrets, told by its key log, from which keys are updated later; and on the side
//! of a client its maker of sessions, for the tickets of TLS 1.3 that come after the handshake.
//!
//! What nobody waits for is not written here: a client's last flight leaves together with its first data (or when it
//! reads or flushes), the ticket of a server of TLS 1.3 together with its first data (or when it flushes).

use std::io;
use std::sync::Arc;

use culvert_core::BoxStream;
use culvert_core::conn::{read_chain, write_chain};
use culvert_wire::{Buf, BufChain, Room};
use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    AlertDescription, CommonState, ConnectionTrafficSecrets, Error, ExtractedSecrets, HandshakeKind,
    PeerIncompatible, ProtocolVersion,
};
use zeroize::Zeroizing;

use crate::conn::{Handover, TlsConn};
use crate::error::TlsFault;
use crate::fragment;
use crate::hello;
use crate::notes::{self, Notes};
use crate::provider::iana_name;
use crate::record::{Cipher, HEADER, Opener, Sealer, Secret, TrafficSecret};
use crate::settings::{Fragment, Version};
use crate::tickets::Tickets;

/// More than any handshake has on its way at once: two messages of the largest size the library takes.
const MAX_PENDING: usize = 256 << 10;

/// Longest record that may come, without its header (RFC 5246 section 6.2.3).
const MAX_RECORD: u16 = (1 << 14) + 2048;

/// What was agreed on in a handshake.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Facts {
    /// The version.
    pub version: Version,
    /// The suite, as IANA names it.
    pub cipher_suite: String,
    /// The application protocol, if both sides named one.
    pub alpn: Option<String>,
    /// The name that the client asked for; known to a server only.
    pub server_name: Option<String>,
    /// Whether an earlier session was taken up again.
    pub resumed: bool,
}

/// A handshake that did not succeed, with the name the client asked for, if that is known.
pub(crate) struct Failure {
    pub(crate) fault: TlsFault,
    pub(crate) server_name: Option<String>,
}

impl<E: Into<TlsFault>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { fault: error.into(), server_name: None }
    }
}

/// Shakes hands as a client.
pub(crate) async fn connect(
    mut conn: BoxStream,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    fragment: Fragment,
) -> Result<(TlsConn, Facts), Failure> {
    let machine = UnbufferedClientConnection::new(config, name).map_err(TlsFault::from)?;
    let mut handshake = Handshake::new(Machine::Client(Box::new(machine)));
    let result = handshake.run(&mut conn, fragment).await;
    handshake.finish(conn, result).await
}

/// Shakes hands as a server. With `other`, clients that offer this protocol and no other are served by that
/// configuration.
pub(crate) async fn accept(
    mut conn: BoxStream,
    mut config: Arc<ServerConfig>,
    other: Option<(&[u8], Arc<ServerConfig>)>,
) -> Result<(TlsConn, Facts), Failure> {
    let mut incoming = Vec::new();
    if let Some((protocol, other)) = other {
        while !hello::is_whole(&incoming) {
            receive(&mut conn, &mut incoming).await?;
        }
        if hello::offers_only(&incoming, protocol) {
            config = other;
        }
    }
    let machine = UnbufferedServerConnection::new(config).map_err(TlsFault::from)?;
    let mut handshake = Handshake { incoming, ..Handshake::new(Machine::Server(Box::new(machine))) };
    let result = handshake.run(&mut conn, Fragment::default()).await;
    handshake.finish(conn, result).await
}

struct Handshake {
    machine: Machine,
    notes: Notes,
    /// Read and not yet digested.
    incoming: Vec<u8>,
    /// How much of that the library has been shown: whole records.
    shown: usize,
    /// Encoded and not yet written.
    outgoing: Vec<u8>,
}

impl Handshake {
    fn new(machine: Machine) -> Self {
        Self { machine, notes: Notes::default(), incoming: Vec::new(), shown: 0, outgoing: Vec::new() }
    }

    /// Exchanges flights until the handshake is done. What is left in `outgoing` is the last one.
    async fn run(&mut self, conn: &mut BoxStream, fragment: Fragment) -> Result<(), TlsFault> {
        loop {
            match self.step()? {
                Step::Again => {}
                Step::Done => return Ok(()),
                Step::Wait => {
                    self.send(conn, fragment).await?;
                    receive(conn, &mut self.incoming).await?;
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, TlsFault> {
        let Self { machine, notes, incoming, shown, outgoing } = self;
        // Once the handshake is done, what comes is not for the library any more.
        let digestible = if machine.common().is_handshaking() { &mut incoming[..*shown] } else { &mut [] };
        let (used, step) = notes::during(notes, || machine.step(digestible, outgoing));
        let step = step.map_err(|error| self.fault(error));
        self.incoming.drain(..used);
        self.shown = self.shown.saturating_sub(used);
        match step {
            // A message may go on in the next record.
            Ok(Step::Wait) if self.show_more() => Ok(Step::Again),
            other => other,
        }
    }

    /// Shows the library one more record, if it has come whole. What is none it is shown too, to say so.
    fn show_more(&mut self) -> bool {
        let rest = &self.incoming[self.shown..];
        let end = match *rest {
            [] | [20..=23] | [20..=23, 3] | [20..=23, 3, _] | [20..=23, 3, _, _] => return false,
            [20..=23, 3, _, high, low, ..] if u16::from_be_bytes([high, low]) <= MAX_RECORD => {
                HEADER + usize::from(u16::from_be_bytes([high, low]))
            }
            _ => rest.len(),
        };
        let whole = end <= rest.len();
        if whole {
            self.shown += end;
        }
        whole
    }

    async fn send(&mut self, conn: &mut BoxStream, fragment: Fragment) -> Result<(), TlsFault> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let flight = std::mem::take(&mut self.outgoing);
        fragment::write(conn, &flight, fragment).await.map_err(TlsFault::Io)
    }

    /// Hands over to our record layer, or tells the peer why not.
    async fn finish(
        mut self,
        mut conn: BoxStream,
        result: Result<(), TlsFault>,
    ) -> Result<(TlsConn, Facts), Failure> {
        let server_name = self.notes.server_name.clone();
        let fail = |fault| Failure { fault, server_name: server_name.clone() };
        if let Err(fault) = result {
            self.send_alert(&mut conn).await;
            return Err(fail(fault));
        }
        let facts = self.machine.facts(server_name.clone()).ok_or_else(|| fail(incomplete()))?;
        let is_client = matches!(self.machine, Machine::Client(_));
        let (secrets, tickets) = self.machine.extract().map_err(|error| fail(error.into()))?;
        let halves = halves(secrets, self.notes, is_client, facts.version);
        let (sealer, opener) = halves.ok_or_else(|| fail(incomplete()))?;
        let raw = if self.incoming.is_empty() { BufChain::new() } else { Buf::copied(&self.incoming).into() };
        let mut last_flight = BufChain::copied(&self.outgoing);
        if !is_client && facts.version == Version::Tls12 {
            // Here the server has the last word, and the client waits for it before it says anything.
            write_chain(&mut conn, &mut last_flight).await.map_err(|error| fail(error.into()))?;
        }
        let handover = Handover { opener, sealer, raw, last_flight, awaited: is_client, tickets };
        Ok((TlsConn::new(conn, handover), facts))
    }

    /// Writes the alert that the library has ready after an error. The peer may be gone, and that is no news.
    async fn send_alert(&mut self, conn: &mut BoxStream) {
        // As long as there is something to encode, the library does that and looks at nothing that came.
        while self.machine.common().wants_write() {
            let (used, _) = self.machine.step(&mut self.incoming, &mut self.outgoing);
            self.incoming.drain(..used);
        }
        if !self.outgoing.is_empty() {
            let _ = write_chain(conn, &mut BufChain::copied(&self.outgoing)).await;
        }
    }

    fn fault(&mut self, error: Error) -> TlsFault {
        if let Some(fault) = self.notes.fault.take() {
            return TlsFault::Certificate(fault);
        }
        match error {
            Error::InvalidMessage(_) if !looks_like_tls(&self.incoming) => {
                TlsFault::NotTls(printable(&self.incoming))
            }
            other => other.into(),
        }
    }
}

/// Reads what comes next.
pub(crate) async fn receive(conn: &mut BoxStream, incoming: &mut Vec<u8>) -> Result<(), TlsFault> {
    let more = read_chain(conn, Room::NONE).await.map_err(TlsFault::Io)?;
    if more.is_empty() {
        return Err(TlsFault::Closed);
    }
    more.iter().for_each(|piece| incoming.extend_from_slice(piece));
    if incoming.len() > MAX_PENDING {
        return Err(TlsFault::Protocol("the handshake is too long".to_owned()));
    }
    Ok(())
}

/// Whether the bytes begin as a record does.
pub(crate) fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, ..])
}

/// The first words of what should have been TLS.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const MOST: usize = 24;
    let text = bytes.iter().take(MOST).take_while(|byte| (b' '..=b'~').contains(byte));
    text.map(|byte| char::from(*byte)).collect()
}

fn incomplete() -> TlsFault {
    TlsFault::Protocol("the handshake is not complete".to_owned())
}

enum Step {
    /// There is more to do at once.
    Again,
    /// The peer is to have what is encoded, and its answer is to come.
    Wait,
    Done,
}

enum Machine {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

impl Machine {
    fn common(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    /// Digests from the front of `incoming`, encodes to the end of `outgoing`. Returns how many bytes were used up.
    fn step(&mut self, incoming: &mut [u8], outgoing: &mut Vec<u8>) -> (usize, Result<Step, Error>) {
        let (used, step) = match self {
            Self::Client(client) => advance(client.process_tls_records(incoming), outgoing),
            Self::Server(server) => advance(server.process_tls_records(incoming), outgoing),
        };
        let step = step.map(|step| match step {
            // The library also says so where one direction is open only.
            Step::Done if self.common().is_handshaking() => Step::Wait,
            other => other,
        });
        (used, step)
    }

    fn facts(&self, server_name: Option<String>) -> Option<Facts> {
        let common = self.common();
        Some(Facts {
            version: match common.protocol_version()? {
                ProtocolVersion::TLSv1_3 => Version::Tls13,
                ProtocolVersion::TLSv1_2 => Version::Tls12,
                _ => return None,
            },
            cipher_suite: iana_name(common.negotiated_cipher_suite()?.suite()),
            alpn: common.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
            server_name,
            resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }

    fn extract(self) -> Result<(ExtractedSecrets, Option<Tickets>), Error> {
        match self {
            Self::Client(client) => {
                let is_tls13 = client.protocol_version() == Some(ProtocolVersion::TLSv1_3);
                let (secrets, rest) = client.dangerous_into_kernel_connection()?;
                Ok((secrets, is_tls13.then(|| Tickets(Box::new(rest)))))
            }
            Self::Server(server) => Ok((server.dangerous_into_kernel_connection()?.0, None)),
        }
    }
}

fn advance<D>(status: UnbufferedStatus<'_, '_, D>, outgoing: &mut Vec<u8>) -> (usize, Result<Step, Error>) {
    let step = match status.state {
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = outgoing.len();
            if let Err(EncodeError::InsufficientSize(missing)) = data.encode(&mut []) {
                outgoing.resize(start + missing.required_size, 0);
            }
            match data.encode(&mut outgoing[start..]) {
                Ok(_) => Ok(Step::Again),
                Err(error) => Err(Error::General(error.to_string())),
            }
        }
        // It is written before the next thing is read, which is soon enough.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Wait),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            Err(Error::AlertReceived(AlertDescription::CloseNotify))
        }
        Ok(other) => Err(Error::General(format!("unexpected state of the handshake: {other:?}"))),
        Err(error) => Err(error),
    };
    (status.discard, step)
}

/// Makes our record layer of the library's secrets: what seals and what opens.
fn halves(
    secrets: ExtractedSecrets,
    notes: Notes,
    is_client: bool,
    version: Version,
) -> Option<(Sealer, Opener)> {
    let (ours, theirs) = if is_client {
        (notes.client_secret, notes.server_secret)
    } else {
        (notes.server_secret, notes.client_secret)
    };
    let ExtractedSecrets { tx, rx } = secrets;
    let sealer = Sealer::new(secret(tx.1, ours, version)?, tx.0)?;
    let opener = Opener::new(secret(rx.1, theirs, version)?, rx.0)?;
    Some((sealer, opener))
}

fn secret(
    keys: ConnectionTrafficSecrets,
    noted: Option<Zeroizing<Vec<u8>>>,
    version: Version,
) -> Option<Secret> {
    let (cipher, key, iv) = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::ChaCha20Poly1305, key, iv),
        _ => return None,
    };
    match version {
        Version::Tls13 => TrafficSecret::new(cipher, &noted?).map(Secret::Tls13),
        Version::Tls12 => {
            let key = Zeroizing::new(key.as_ref().to_vec());
            Some(Secret::Tls12 { cipher, key, iv: iv.as_ref().try_into().ok()? })
        }
    }
}

impl From<Error> for TlsFault {
    fn from(error: Error) -> Self {
        match error {
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Closed,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
                Self::Alpn
            }
            Error::AlertReceived(description) => Self::Alert(description.into()),
            Error::NoCertificatesPresented => Self::Certificate(crate::fault::CertificateFault::Missing),
            Error::PeerIncompatible(PeerIncompatible::ServerRejectedEncryptedClientHello(retry)) => {
                Self::EchRejected { retry: retry.map(|configs| encode_ech(&configs)) }
            }
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The list as it goes into a configuration. The library gives it out as values only, and the way to encode them is one
/// it does not promise to keep.
fn encode_ech(configs: &[rustls::internal::msgs::handshake::EchConfigPayload]) -> Vec<u8> {
    use rustls::internal::msgs::codec::Codec;
    let mut list = vec![0, 0];
    configs.iter().for_each(|config| config.encode(&mut list));
    let len = (list.len() - 2) as u16;
    list[..2].copy_from_slice(&len.to_be_bytes());
    list
}

impl From<io::Error> for TlsFault {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}
