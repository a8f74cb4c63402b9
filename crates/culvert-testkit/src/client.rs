//! Clients of a proxy, written from the RFCs: SOCKS4 and 4a, SOCKS5 (RFC 1928, RFC 1929), HTTP `CONNECT` (RFC 9110).
//!
//! The `*_bytes` functions give the exact bytes of a message, for tests that send them in odd pieces.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Where a client wants to go, as it says it to the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An address.
    Address(SocketAddr),
    /// A name that the proxy looks up, and a port.
    Name(String, u16),
}

impl Target {
    /// A named target.
    pub fn name(name: impl Into<String>, port: u16) -> Self {
        Self::Name(name.into(), port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// A user's name and password.
pub type Credentials<'a> = Option<(&'a str, &'a str)>;

/// Why a proxy did not open a tunnel.
#[derive(Debug)]
pub enum ClientError {
    /// The connection to the proxy failed or ended.
    Io(io::Error),
    /// The proxy refused the credentials, or wants some.
    Denied,
    /// The proxy answered with this SOCKS reply code or HTTP status.
    Refused(u16),
    /// The proxy's answer is not in the protocol.
    Malformed(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connection to the proxy: {error}"),
            Self::Denied => f.write_str("the proxy refused the credentials"),
            Self::Refused(code) => write!(f, "the proxy answered {code}"),
            Self::Malformed(what) => write!(f, "not in the protocol: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The protocol in which a client asks for a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// SOCKS4: IPv4 addresses only; the credentials' name is the user id.
    Socks4,
    /// SOCKS4a: names too.
    Socks4a,
    /// SOCKS5.
    Socks5,
    /// HTTP `CONNECT`.
    Http,
}

/// Opens a tunnel to the target through the proxy.
///
/// # Errors
/// What went wrong, with the proxy's code where it gave one.
pub async fn connect(
    protocol: Protocol,
    proxy: SocketAddr,
    credentials: Credentials<'_>,
    target: &Target,
) -> Result<TcpStream, ClientError> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    match protocol {
        Protocol::Socks4 | Protocol::Socks4a => {
            let user = credentials.map_or("", |(user, _)| user);
            stream.write_all(&socks4_request_bytes(user.as_bytes(), target)).await?;
            socks4_reply(&mut stream).await?;
        }
        Protocol::Socks5 => {
            socks5_authenticate(&mut stream, credentials).await?;
            stream.write_all(&socks5_request_bytes(CONNECT, target)).await?;
            socks5_reply(&mut stream).await?;
        }
        Protocol::Http => {
            stream.write_all(&http_connect_bytes(credentials, target)).await?;
            http_connect_reply(&mut stream).await?;
        }
    }
    Ok(stream)
}

/// SOCKS command: open a TCP connection.
pub const CONNECT: u8 = 1;
/// SOCKS command: relay datagrams.
pub const UDP_ASSOCIATE: u8 = 3;

/// A SOCKS4 request, or 4a when the target is not an IPv4 address.
#[must_use]
pub fn socks4_request_bytes(user: &[u8], target: &Target) -> Vec<u8> {
    let (address, name) = match target {
        Target::Address(SocketAddr::V4(address)) => (*address.ip(), None),
        Target::Address(SocketAddr::V6(address)) => {
            (Ipv4Addr::new(0, 0, 0, 1), Some(address.ip().to_string()))
        }
        Target::Name(name, _) => (Ipv4Addr::new(0, 0, 0, 1), Some(name.clone())),
    };
    let mut bytes = vec![4, CONNECT];
    bytes.extend(target.port().to_be_bytes());
    bytes.extend(address.octets());
    bytes.extend(user);
    bytes.push(0);
    if let Some(name) = name {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes
}

/// Reads the reply to a SOCKS4 request.
///
/// # Errors
/// [`ClientError::Refused`] with any code but 90.
pub async fn socks4_reply(stream: &mut (impl AsyncRead + Unpin)) -> Result<SocketAddr, ClientError> {
    // The code decides before the rest is read: some servers cut a refusal short.
    let [version, code] = take(stream).await?;
    if version != 0 {
        return Err(ClientError::Malformed(format!("SOCKS4 reply version {version}")));
    }
    if code != 90 {
        return Err(ClientError::Refused(code.into()));
    }
    let [p1, p2, a, b, c, d] = take(stream).await?;
    Ok((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p1, p2])).into())
}

/// A SOCKS5 greeting that offers the method which the credentials call for.
#[must_use]
pub fn socks5_greeting_bytes(credentials: Credentials<'_>) -> [u8; 3] {
    [5, 1, if credentials.is_some() { 2 } else { 0 }]
}

/// The user name and password message of RFC 1929.
#[must_use]
pub fn socks5_password_bytes(user: &str, password: &str) -> Vec<u8> {
    let mut bytes = vec![1];
    for text in [user, password] {
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// A SOCKS5 request.
#[must_use]
pub fn socks5_request_bytes(command: u8, target: &Target) -> Vec<u8> {
    let mut bytes = vec![5, command, 0];
    bytes.extend(socks5_address_bytes(target));
    bytes
}

/// Address type, address and port, as in requests and datagrams.
#[must_use]
pub fn socks5_address_bytes(target: &Target) -> Vec<u8> {
    let mut bytes = Vec::new();
    match target {
        Target::Address(SocketAddr::V4(address)) => {
            bytes.push(1);
            bytes.extend(address.ip().octets());
        }
        Target::Name(name, _) => {
            bytes.extend([3, name.len() as u8]);
            bytes.extend(name.as_bytes());
        }
        Target::Address(SocketAddr::V6(address)) => {
            bytes.push(4);
            bytes.extend(address.ip().octets());
        }
    }
    bytes.extend(target.port().to_be_bytes());
    bytes
}

/// Greets the proxy and, where it asks, says who we are.
///
/// # Errors
/// [`ClientError::Denied`] when no method is acceptable or the password is wrong.
pub async fn socks5_authenticate(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: Credentials<'_>,
) -> Result<(), ClientError> {
    stream.write_all(&socks5_greeting_bytes(credentials)).await?;
    match (take(stream).await?, credentials) {
        ([5, 0], _) => Ok(()),
        ([5, 2], Some((user, password))) => {
            stream.write_all(&socks5_password_bytes(user, password)).await?;
            match take(stream).await? {
                [1, 0] => Ok(()),
                [1, _] => Err(ClientError::Denied),
                other => Err(ClientError::Malformed(format!("SOCKS5 password reply {other:?}"))),
            }
        }
        ([5, 0xff], _) => Err(ClientError::Denied),
        (other, _) => Err(ClientError::Malformed(format!("SOCKS5 method reply {other:?}"))),
    }
}

/// Reads the reply to a SOCKS5 request: the bound address.
///
/// # Errors
/// [`ClientError::Refused`] with any code but 0.
pub async fn socks5_reply(stream: &mut (impl AsyncRead + Unpin)) -> Result<Target, ClientError> {
    let [version, code, reserved] = take(stream).await?;
    if version != 5 || reserved != 0 {
        return Err(ClientError::Malformed(format!("SOCKS5 reply {version} {code} {reserved}")));
    }
    let bound = socks5_address(stream).await?;
    if code == 0 { Ok(bound) } else { Err(ClientError::Refused(code.into())) }
}

async fn socks5_address(stream: &mut (impl AsyncRead + Unpin)) -> Result<Target, ClientError> {
    let [kind] = take(stream).await?;
    let name = match kind {
        1 => Ok(IpAddr::from(take::<4>(stream).await?)),
        3 => {
            let [length] = take(stream).await?;
            let mut name = vec![0; length.into()];
            stream.read_exact(&mut name).await?;
            Err(String::from_utf8_lossy(&name).into_owned())
        }
        4 => Ok(IpAddr::from(take::<16>(stream).await?)),
        other => return Err(ClientError::Malformed(format!("SOCKS5 address type {other}"))),
    };
    let port = u16::from_be_bytes(take(stream).await?);
    Ok(match name {
        Ok(address) => Target::Address((address, port).into()),
        Err(name) => Target::Name(name, port),
    })
}

/// An HTTP `CONNECT` request.
#[must_use]
pub fn http_connect_bytes(credentials: Credentials<'_>, target: &Target) -> Vec<u8> {
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some((user, password)) = credentials {
        head +=
            &format!("Proxy-Authorization: Basic {}\r\n", base64(format!("{user}:{password}").as_bytes()));
    }
    head += "\r\n";
    head.into_bytes()
}

/// Reads the response to `CONNECT`, not a byte more.
///
/// # Errors
/// [`ClientError::Denied`] for 407, [`ClientError::Refused`] for any other status but 200.
pub async fn http_connect_reply(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), ClientError> {
    let head = read_head(stream).await?;
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5)?.parse().ok())
        .ok_or_else(|| ClientError::Malformed(head.clone()))?;
    match status {
        200 => Ok(()),
        407 => Err(ClientError::Denied),
        other => Err(ClientError::Refused(other)),
    }
}

/// Reads a head up to and with its empty line, byte by byte, so that what follows stays in the stream.
///
/// # Errors
/// When the stream ends first or the head is over 64 KiB.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        if head.len() > 65_536 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "head without an end"));
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Base64 with the standard alphabet and padding (RFC 4648, section 4).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * index)) as usize & 63];
            text.push(if index <= chunk.len() { digit.into() } else { '=' });
        }
    }
    text
}

/// A SOCKS5 UDP association: the control connection and the socket for datagrams.
#[derive(Debug)]
pub struct Association {
    control: TcpStream,
    socket: UdpSocket,
}

impl Association {
    /// Asks the proxy for an association.
    ///
    /// # Errors
    /// What went wrong, with the proxy's code where it gave one.
    pub async fn open(proxy: SocketAddr, credentials: Credentials<'_>) -> Result<Self, ClientError> {
        let mut control = TcpStream::connect(proxy).await?;
        socks5_authenticate(&mut control, credentials).await?;
        let any = match proxy {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        control.write_all(&socks5_request_bytes(UDP_ASSOCIATE, &any.into())).await?;
        let relay = match socks5_reply(&mut control).await? {
            // "All zeros" leaves the address to the client (RFC 1928 does not say so, servers do).
            Target::Address(bound) if bound.ip().is_unspecified() => {
                SocketAddr::from((proxy.ip(), bound.port()))
            }
            Target::Address(bound) => bound,
            other => return Err(ClientError::Malformed(format!("relay address {other}"))),
        };
        let socket = UdpSocket::bind((control.local_addr()?.ip(), 0)).await?;
        socket.connect(relay).await?;
        Ok(Self { control, socket })
    }

    /// The connection that keeps the association alive.
    pub fn control(&mut self) -> &mut TcpStream {
        &mut self.control
    }

    /// The socket towards the proxy's relay, for datagrams made by hand.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends a datagram to the target.
    ///
    /// # Errors
    /// What the socket says.
    pub async fn send_to(&self, target: &Target, data: &[u8]) -> io::Result<()> {
        let mut datagram = vec![0, 0, 0];
        datagram.extend(socks5_address_bytes(target));
        datagram.extend(data);
        self.socket.send(&datagram).await.map(drop)
    }

    /// Waits for a datagram: whom it is from, and its data.
    ///
    /// # Errors
    /// A datagram that is not in the protocol, or what the socket says.
    pub async fn recv(&self) -> Result<(Target, Vec<u8>), ClientError> {
        let mut buffer = vec![0; 65_536];
        let length = self.socket.recv(&mut buffer).await?;
        let mut rest = &buffer[..length];
        let [reserved, reserved_too, fragment] = take(&mut rest).await?;
        if [reserved, reserved_too, fragment] != [0, 0, 0] {
            return Err(ClientError::Malformed(format!("datagram begins {:?}", &buffer[..3])));
        }
        let from = socks5_address(&mut rest).await?;
        Ok((from, rest.to_vec()))
    }
}

async fn take<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(b"alice:secret"), "YWxpY2U6c2VjcmV0");
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn socks4_requests_are_as_specified() {
        let address = Target::Address("127.0.0.1:80".parse().unwrap());
        assert_eq!(socks4_request_bytes(b"me", &address), b"\x04\x01\x00\x50\x7f\x00\x00\x01me\x00");
        let name = Target::name("example.com", 8080);
        assert_eq!(
            socks4_request_bytes(b"me", &name),
            b"\x04\x01\x1f\x90\x00\x00\x00\x01me\x00example.com\x00"
        );
    }

    #[test]
    fn socks5_messages_are_as_specified() {
        assert_eq!(socks5_greeting_bytes(None), [5, 1, 0]);
        assert_eq!(socks5_password_bytes("u", "p"), [1, 1, b'u', 1, b'p']);
        let request = socks5_request_bytes(CONNECT, &Target::name("example.com", 8080));
        assert_eq!(request, b"\x05\x01\x00\x03\x0bexample.com\x1f\x90");
        let v6 = Target::Address("[::1]:1".parse().unwrap());
        assert_eq!(socks5_address_bytes(&v6), [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
    }

    #[tokio::test]
    async fn replies_are_told_apart() {
        let refused = socks5_reply(&mut &b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"[..]).await;
        assert!(matches!(refused, Err(ClientError::Refused(5))));
        let bound = socks5_reply(&mut &b"\x05\x00\x00\x01\x7f\x00\x00\x01\xe4\x4b"[..]).await.unwrap();
        assert_eq!(bound, Target::Address("127.0.0.1:58443".parse().unwrap()));
        assert!(matches!(socks4_reply(&mut &b"\x00\x5b\x00\x00"[..]).await, Err(ClientError::Refused(91))));
        let mut tunnel = &b"HTTP/1.1 200 OK\r\n\r\nrest"[..];
        http_connect_reply(&mut tunnel).await.unwrap();
        assert_eq!(tunnel, b"rest");
        assert!(matches!(
            http_connect_reply(&mut &b"HTTP/1.1 407 No\r\n\r\n"[..]).await,
            Err(ClientError::Denied)
        ));
    }
}
