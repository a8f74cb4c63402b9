//! TCP Brutal: sending at a fixed speed, which both sides agree on over a stream of its own.
//!
//! ```text
//! to the name _BrutalBwExchange, port 0
//! client: bytes per second that it wants to receive: 8
//! server: 1   bytes per second that it wants to receive: 8   |   0   length of text   text
//! ```
//!
//! Each side then sends at the lower of its own speed and what the other wants to receive. The speed is an option of the
//! outermost TCP socket, and takes a kernel module that few systems have.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use culvert_config::options::mux::Brutal as Options;
use culvert_core::handshake::read_message;
use culvert_core::{BoxStream, DialError, ServeError, StreamConn};
use culvert_wire::{BufChain, Domain, Host, Target};

use super::codec::{Agreement, Kind, MAX_TEXT, Request, decode_speed};
use super::conn::Asking;
use crate::handshake::{dial_error, send, write_error};

const NAME: &str = "_brutalbwexchange";
const NAME_ON_THE_WIRE: &[u8] = b"_BrutalBwExchange";
/// The module takes no lower ones.
const SLOWEST: u64 = 65536;
/// How long the agreement may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Speeds in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speeds {
    pub(super) send: u64,
    pub(super) receive: u64,
}

impl Speeds {
    pub(super) fn new(options: Option<&Options>) -> Option<Self> {
        let options = options.filter(|options| options.enabled)?;
        let speed = |mbps: i64| u64::try_from(mbps).unwrap_or(0).saturating_mul(125_000);
        Some(Self { send: speed(options.up_mbps), receive: speed(options.down_mbps) })
    }
}

/// Whether a stream to `target` is for the agreement.
pub(super) fn is_sign(target: &Target) -> bool {
    target.port == 0 && target.host.domain().is_some_and(|name| name.as_str() == NAME)
}

/// The outermost socket of a carrier, kept beside it.
pub(super) struct Socket(Option<OwnedFd>);

impl Socket {
    pub(super) fn of(conn: &dyn StreamConn) -> Self {
        Self(conn.outermost_socket().and_then(|socket| socket.as_fd().try_clone_to_owned().ok()))
    }

    /// Sends at `speed` from here on.
    fn set(&self, speed: u64) -> Result<(), String> {
        let Some(socket) = &self.0 else { return Err("no TCP socket below the connection".to_owned()) };
        if speed < SLOWEST {
            return Err(format!("{speed} bytes per second are too few"));
        }
        culvert_os::socket::set_brutal(socket.as_fd(), speed)
            .map_err(|error| format!("no TCP Brutal on this system: {error}"))
    }
}

/// The client's part. That this system cannot do it is not the server's fault and only logged.
pub(super) async fn agree(conn: BoxStream, speeds: Speeds, socket: &Socket) -> Result<(), DialError> {
    const PHASE: &str = "agreement on speeds";
    let mut conn = Asking::new(conn, &request());
    let exchange = async {
        send(&mut conn, &speeds.receive.to_be_bytes()).await.map_err(write_error(PHASE))?;
        let mut read = BufChain::new();
        let answer = read_message(&mut conn, &mut read, MAX_TEXT + 4, Agreement::decode).await;
        answer.map_err(dial_error(PHASE))
    };
    let answer = tokio::time::timeout(LIMIT, exchange).await;
    let answer = answer.unwrap_or(Err(DialError::Timeout { phase: PHASE, limit: LIMIT }))?;
    match answer {
        Agreement::Refused(reason) => {
            Err(DialError::Refused { reason, kind: std::io::ErrorKind::ConnectionRefused })
        }
        Agreement::Speed(wanted) => {
            if let Err(error) = socket.set(speeds.send.min(wanted)) {
                tracing::warn!("multiplex: brutal: {error}");
            }
            Ok(())
        }
    }
}

/// The request for the stream; our spelling of names would make small letters of it.
fn request() -> Vec<u8> {
    let name = Domain::new(NAME).expect("a constant that is a name");
    let mut request = Vec::new();
    Request { kind: Kind::Tcp, target: Target { host: Host::Domain(name), port: 0 } }.encode(&mut request);
    let start = request.len() - 2 - NAME_ON_THE_WIRE.len();
    request[start..][..NAME_ON_THE_WIRE.len()].copy_from_slice(NAME_ON_THE_WIRE);
    request
}

/// The server's part: reads what the client wants and answers. `early` was read already.
pub(super) async fn answer(
    conn: &mut BoxStream,
    mut early: BufChain,
    own: Option<(Speeds, &Socket)>,
) -> Result<(), ServeError> {
    let wanted = read_message(conn, &mut early, 8, decode_speed).await?;
    let agreement = match own {
        None => Agreement::Refused("brutal is not enabled by the server".to_owned()),
        Some((speeds, socket)) => match socket.set(speeds.send.min(wanted)) {
            Ok(()) => Agreement::Speed(speeds.receive),
            Err(reason) => Agreement::Refused(reason),
        },
    };
    let mut message = vec![0];
    agreement.encode(&mut message);
    send(conn, &message).await?;
    Ok(())
}
