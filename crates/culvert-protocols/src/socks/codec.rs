//! The messages of SOCKS 4, 4a and 5, from bytes and to bytes.
//!
//! Each `decode` reads from a [`Reader`] and takes nothing from the caller's buffer: after `Incomplete` it is simply
//! asked again with more bytes. What a message holds beyond what anybody needs is read over.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use culvert_wire::{AddressCodec, DecodeError, Host, Reader, Target};

/// Longest message of a handshake: a SOCKS 4a request with two full strings.
pub const MAX_MESSAGE: usize = 1024;

/// First byte of all messages of version 5.
pub const VERSION_5: u8 = 5;
/// First byte of requests of versions 4 and 4a.
pub const VERSION_4: u8 = 4;
/// First byte of the messages of RFC 1929.
const AUTH_VERSION: u8 = 1;
/// Longest string in a SOCKS 4 request.
const MAX_STRING: usize = 255;

/// A way to log in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Method {
    /// None needed.
    None = 0,
    /// Name and password (RFC 1929).
    Password = 2,
    /// The server takes none of those offered.
    Unacceptable = 0xff,
}

/// The client's first message: which methods it can use. Others than these two are of no interest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Greeting {
    /// Whether [`Method::None`] is among them.
    pub none: bool,
    /// Whether [`Method::Password`] is among them.
    pub password: bool,
}

impl Greeting {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION_5], "SOCKS version")?;
        let count = r.u8()?;
        let methods = r.take(count.into())?;
        Ok(Self {
            none: methods.contains(&(Method::None as u8)),
            password: methods.contains(&(Method::Password as u8)),
        })
    }

    /// Writes a greeting that offers a single method.
    pub fn encode_one(method: Method, out: &mut Vec<u8>) {
        out.extend([VERSION_5, 1, method as u8]);
    }
}

/// Reads the server's choice.
///
/// # Errors
/// [`DecodeError::Invalid`] for a method that no greeting of ours offers.
pub fn decode_method(r: &mut Reader<'_>) -> Result<Method, DecodeError> {
    r.expect(&[VERSION_5], "SOCKS version")?;
    match r.u8()? {
        0 => Ok(Method::None),
        2 => Ok(Method::Password),
        0xff => Ok(Method::Unacceptable),
        _ => Err(DecodeError::Invalid("method")),
    }
}

/// The server's choice.
#[must_use]
pub fn encode_method(method: Method) -> [u8; 2] {
    [VERSION_5, method as u8]
}

/// Name and password, 0 to 255 bytes each.
#[derive(Clone, Eq, PartialEq)]
pub struct Login {
    /// The name.
    pub user: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

impl Login {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[AUTH_VERSION], "version of the login")?;
        let len = r.u8()?;
        let user = r.take(len.into())?.to_vec();
        let len = r.u8()?;
        let password = r.take(len.into())?.to_vec();
        Ok(Self { user, password })
    }

    /// Writes one; both have at most 255 bytes, which building the outbound has checked.
    pub fn encode(user: &[u8], password: &[u8], out: &mut Vec<u8>) {
        debug_assert!(user.len() <= 255 && password.len() <= 255);
        out.extend([AUTH_VERSION, user.len() as u8]);
        out.extend(user);
        out.push(password.len() as u8);
        out.extend(password);
    }
}

/// Shows nothing of what is in it.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

/// Reads whether the login was accepted. Any status but 0 means that it was not.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_login_status(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    r.expect(&[AUTH_VERSION], "version of the login")?;
    r.u8().map(|status| status == 0)
}

/// Whether the login was accepted.
#[must_use]
pub fn encode_login_status(accepted: bool) -> [u8; 2] {
    [AUTH_VERSION, u8::from(!accepted)]
}

/// What a client wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// A connection to the target.
    Connect,
    /// A connection from the target.
    Bind,
    /// Datagrams, to and from anywhere.
    UdpAssociate,
    /// Something no RFC defines.
    Unknown(u8),
}

impl From<u8> for Command {
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Connect,
            2 => Self::Bind,
            3 => Self::UdpAssociate,
            other => Self::Unknown(other),
        }
    }
}

impl From<Command> for u8 {
    fn from(command: Command) -> Self {
        match command {
            Command::Connect => 1,
            Command::Bind => 2,
            Command::UdpAssociate => 3,
            Command::Unknown(other) => other,
        }
    }
}

/// A request of version 5.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What is wanted.
    pub command: Command,
    /// The target; of [`Command::UdpAssociate`] the address the client thinks it will send from, where a name that is
    /// none is let pass.
    pub target: Option<Target>,
}

impl Request {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION_5], "SOCKS version")?;
        let command = Command::from(r.u8()?);
        let _reserved = r.u8()?;
        let (host, port) = decode_loose_address(r)?;
        match host {
            None if command == Command::Connect => Err(DecodeError::Invalid("domain name")),
            host => Ok(Self { command, target: host.map(|host| Target { host, port }) }),
        }
    }

    /// Writes one.
    pub fn encode(command: Command, target: &Target, out: &mut Vec<u8>) {
        out.extend([VERSION_5, command.into(), 0]);
        AddressCodec::SOCKS.encode(target, out);
    }
}

/// How a server of version 5 answers a request. Codes that no RFC assigns are let through: they mean "no".
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplyCode(pub u8);

impl ReplyCode {
    /// Done.
    pub const SUCCEEDED: Self = Self(0);
    /// It went wrong, and no other code says how.
    pub const FAILURE: Self = Self(1);
    /// The rules of the server forbid it.
    pub const NOT_ALLOWED: Self = Self(2);
    /// No route to the network.
    pub const NETWORK_UNREACHABLE: Self = Self(3);
    /// No route to the host.
    pub const HOST_UNREACHABLE: Self = Self(4);
    /// Nothing listens there.
    pub const REFUSED: Self = Self(5);
    /// Time to live expired.
    pub const EXPIRED: Self = Self(6);
    /// The server does not know the command.
    pub const COMMAND: Self = Self(7);
    /// The server does not know the type of address.
    pub const ADDRESS_TYPE: Self = Self(8);

    /// The system error that comes nearest.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::NOT_ALLOWED => io::ErrorKind::PermissionDenied,
            Self::NETWORK_UNREACHABLE => io::ErrorKind::NetworkUnreachable,
            Self::HOST_UNREACHABLE => io::ErrorKind::HostUnreachable,
            Self::REFUSED => io::ErrorKind::ConnectionRefused,
            Self::EXPIRED => io::ErrorKind::TimedOut,
            Self::COMMAND | Self::ADDRESS_TYPE => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        }
    }
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::SUCCEEDED => "succeeded",
            Self::FAILURE => "general failure",
            Self::NOT_ALLOWED => "not allowed by its rules",
            Self::NETWORK_UNREACHABLE => "network unreachable",
            Self::HOST_UNREACHABLE => "host unreachable",
            Self::REFUSED => "connection refused",
            Self::EXPIRED => "time to live expired",
            Self::COMMAND => "command not supported",
            Self::ADDRESS_TYPE => "address type not supported",
            Self(other) => return write!(f, "reply code {other:#04x}"),
        };
        f.write_str(text)
    }
}

/// A reply of version 5.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// How it went.
    pub code: ReplyCode,
    /// The bound address: where the server dials from, or takes datagrams. `None` where it is a name that is none.
    pub host: Option<Host>,
    /// The bound port.
    pub port: u16,
}

impl Reply {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION_5], "SOCKS version")?;
        let code = ReplyCode(r.u8()?);
        let _reserved = r.u8()?;
        if code != ReplyCode::SUCCEEDED {
            // Some servers end a refusal here.
            return Ok(Self { code, host: None, port: 0 });
        }
        let (host, port) = decode_loose_address(r)?;
        Ok(Self { code, host, port })
    }

    /// Writes one; `bound` is `0.0.0.0:0` where there is nothing to tell.
    pub fn encode(code: ReplyCode, bound: Option<SocketAddr>, out: &mut Vec<u8>) {
        let bound = bound.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        out.extend([VERSION_5, code.0, 0]);
        AddressCodec::SOCKS.encode(&Target::from(bound), out);
    }
}

/// An address of which the name may be nonsense: whoever reads it often does not need it. `None` is such a name.
fn decode_loose_address(r: &mut Reader<'_>) -> Result<(Option<Host>, u16), DecodeError> {
    const NAME: u8 = 3;
    if r.rest().first() == Some(&NAME) {
        r.u8()?;
        let len = r.u8()?;
        let name = r.take(len.into())?;
        return Ok((Host::from_bytes(name).ok(), r.u16()?));
    }
    let target = AddressCodec::SOCKS.decode(r)?;
    Ok((Some(target.host), target.port))
}

/// A request of version 4 or 4a.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request4 {
    /// What is wanted.
    pub command: Command,
    /// Where to.
    pub target: Target,
    /// Who asks, without proof.
    pub user: Vec<u8>,
}

impl Request4 {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION_4], "SOCKS version")?;
        let command = Command::from(r.u8()?);
        let port = r.u16()?;
        let ip = Ipv4Addr::from(r.array::<4>()?);
        let user = r.until(0, MAX_STRING, "user id")?.to_vec();
        let host = match ip.octets() {
            // 4a: no address begins with 0.0.0, so a name follows. The address 0.0.0.0 itself is old and stays one.
            [0, 0, 0, last] if last != 0 => {
                let name = r.until(0, MAX_STRING, "domain name")?;
                Host::from_bytes(name).map_err(|_| DecodeError::Invalid("domain name"))?
            }
            _ => Host::Ip(ip.into()),
        };
        Ok(Self { command, target: Target { host, port }, user })
    }

    /// Writes a request to connect, by address.
    pub fn encode(ip: Ipv4Addr, port: u16, user: &[u8], out: &mut Vec<u8>) {
        out.extend([VERSION_4, Command::Connect.into()]);
        out.extend(port.to_be_bytes());
        out.extend(ip.octets());
        out.extend(user);
        out.push(0);
    }

    /// Writes a request to connect, by name (4a). An IPv6 address goes as text.
    pub fn encode_name(host: &Host, port: u16, user: &[u8], out: &mut Vec<u8>) {
        Self::encode(Ipv4Addr::new(0, 0, 0, 1), port, user, out);
        out.extend(host.to_string().bytes());
        out.push(0);
    }
}

/// Reads a reply of version 4: whether the request was granted. The six bytes behind a refusal are not waited for,
/// since some servers do not send them all.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_reply4(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    r.expect(&[0], "SOCKS 4 reply")?;
    let granted = r.u8()? == GRANTED;
    if granted {
        r.take(6)?;
    }
    Ok(granted)
}

/// Reply code of version 4 for success; everything else is a refusal.
const GRANTED: u8 = 0x5a;
const REJECTED: u8 = 0x5b;

/// Writes a reply of version 4, which has room for an IPv4 address only.
pub fn encode_reply4(granted: bool, bound: Option<SocketAddr>, out: &mut Vec<u8>) {
    let bound = match bound.map(|bound| (bound.ip().to_canonical(), bound.port())) {
        Some((IpAddr::V4(ip), port)) => (ip, port),
        _ => (Ipv4Addr::UNSPECIFIED, 0),
    };
    out.extend([0, if granted { GRANTED } else { REJECTED }]);
    out.extend(bound.1.to_be_bytes());
    out.extend(bound.0.octets());
}

/// Reads the head of a datagram and returns where it goes and how long the head is.
///
/// # Errors
/// [`DecodeError`]; a fragment is invalid, too. A datagram for which this fails is dropped.
pub fn decode_datagram(datagram: &[u8]) -> Result<(Target, usize), DecodeError> {
    let mut r = Reader::new(datagram);
    let _reserved = r.u16()?;
    r.expect(&[0], "fragment")?;
    let target = AddressCodec::SOCKS.decode(&mut r)?;
    Ok((target, r.position()))
}

/// Writes the head of a datagram to or from `peer`.
pub fn encode_datagram_head(peer: &Target, out: &mut Vec<u8>) {
    out.extend([0, 0, 0]);
    AddressCodec::SOCKS.encode(peer, out);
}

/// How long [`encode_datagram_head`] is.
#[must_use]
pub fn datagram_head_len(peer: &Target) -> usize {
    3 + AddressCodec::SOCKS.encoded_len(peer)
}

/// Fed with random bytes: what a client may send decodes to what encodes to the same meaning.
pub fn fuzz_client_messages(bytes: &[u8]) {
    let _ = Greeting::decode(&mut Reader::new(bytes));
    if let Ok(login) = Login::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        Login::encode(&login.user, &login.password, &mut out);
        assert_eq!(Login::decode(&mut Reader::new(&out)), Ok(login));
    }
    if let Ok(request @ Request { target: Some(_), .. }) = Request::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        request.target.iter().for_each(|target| Request::encode(request.command, target, &mut out));
        assert_eq!(Request::decode(&mut Reader::new(&out)), Ok(request));
    }
    if let Ok(request) = Request4::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        Request4::encode_name(&request.target.host, request.target.port, &request.user, &mut out);
        let again = Request4::decode(&mut Reader::new(&out)).map(|again| (again.target, again.user));
        assert_eq!(again, Ok((request.target, request.user)));
    }
}

/// The same for what a server may send.
pub fn fuzz_server_messages(bytes: &[u8]) {
    let _ = decode_method(&mut Reader::new(bytes));
    let _ = decode_login_status(&mut Reader::new(bytes));
    let _ = decode_reply4(&mut Reader::new(bytes));
    if let Ok(reply) = Reply::decode(&mut Reader::new(bytes))
        && let Some(IpAddr::V4(ip)) = reply.host.as_ref().and_then(Host::ip)
    {
        let mut out = Vec::new();
        Reply::encode(reply.code, Some(SocketAddr::new(ip.into(), reply.port)), &mut out);
        assert_eq!(Reply::decode(&mut Reader::new(&out)), Ok(reply));
    }
}

/// The same for datagrams.
pub fn fuzz_datagram(bytes: &[u8]) {
    if let Ok((target, len)) = decode_datagram(bytes) {
        assert!(len <= bytes.len());
        let mut out = Vec::new();
        encode_datagram_head(&target, &mut out);
        assert_eq!(out.len(), datagram_head_len(&target));
        assert_eq!(decode_datagram(&out), Ok((target, out.len())));
    }
}
