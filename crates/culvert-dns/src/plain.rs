//! One question to one address over plain UDP or TCP, on a socket of its own: a fresh id and a fresh source port each
//! time, as stub resolvers do it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_os::socket::{TcpDial, UdpOptions, tcp_socket, udp_socket};
use culvert_wire::Buf;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpSocket, UdpSocket};

use crate::DnsError;
use crate::message::wire::Malformed;
use crate::message::{NoReply, Query, Reply, random_id};

/// Longest datagram looked at. Servers are told 1232 bytes or nothing; some send more.
pub(crate) const DATAGRAM: usize = 4096;

/// How sockets to name servers are made.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// Options of TCP sockets.
    pub tcp: TcpDial,
    /// Options of UDP sockets.
    pub udp: UdpOptions,
}

/// Asks over UDP, and over TCP if the reply was cut. No limit of time.
pub(crate) async fn exchange(
    sockets: &Sockets,
    query: &Query,
    server: SocketAddr,
) -> Result<Reply, DnsError> {
    let reply = over_udp(sockets, query, server).await?;
    if reply.is_truncated() { over_tcp(sockets, query, server).await } else { Ok(reply) }
}

/// Asks over UDP. What does not answer this question is passed over, as anybody may send it.
pub(crate) async fn over_udp(
    sockets: &Sockets,
    query: &Query,
    server: SocketAddr,
) -> Result<Reply, DnsError> {
    let failed = |source| DnsError::network(server, source);
    let socket = udp_socket(&sockets.udp.towards(server.ip()), unspecified(server))
        .map_err(|error| failed(into_io(error)))?;
    let socket = UdpSocket::from_std(socket).map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    let id = random_id();
    socket.send(&query.encode(id)).await.map_err(failed)?;
    loop {
        readable(&socket).await.map_err(failed)?;
        let mut buf = Buf::new(DATAGRAM, 0, 0);
        match socket.try_recv(buf.spare_mut()) {
            Ok(length) => buf.grow(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(failed(error)),
        }
        match Reply::parse(&buf, query, id) {
            Ok(reply) => return Ok(reply),
            Err(no) => tracing::debug!(%server, %query, ?no, "passing over a datagram"),
        }
    }
}

/// Waits for a datagram or for the news that nobody listens there, which no receive would wait for.
pub(crate) async fn readable(socket: &UdpSocket) -> io::Result<()> {
    let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
    if ready.is_error() {
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        // Already taken: without this the next wait would end at once, for ever.
        let _ = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
    Ok(())
}

/// Asks over TCP.
pub(crate) async fn over_tcp(
    sockets: &Sockets,
    query: &Query,
    server: SocketAddr,
) -> Result<Reply, DnsError> {
    let failed = |source| DnsError::network(server, source);
    let socket = tcp_socket(&sockets.tcp, server).map_err(|error| failed(into_io(error)))?;
    let socket = TcpSocket::from_std_stream(socket.into());
    let mut stream = socket.connect(server).await.map_err(failed)?;
    let id = random_id();
    write_message(&mut stream, &query.encode(id)).await.map_err(failed)?;
    let message = read_message(&mut stream).await.map_err(failed)?;
    Reply::parse(&message, query, id).map_err(|no| {
        let source = match no {
            NoReply::Malformed(malformed) => malformed,
            NoReply::Foreign => Malformed("answers another question"),
        };
        DnsError::Malformed { server: server.to_string().into(), source }
    })
}

/// Writes one message with its length before it, in one piece.
pub(crate) async fn write_message(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let mut framed = Vec::with_capacity(2 + message.len());
    push_framed(&mut framed, message)?;
    stream.write_all(&framed).await
}

/// Adds one message with its length before it.
pub(crate) fn push_framed(out: &mut Vec<u8>, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    out.extend(length.to_be_bytes());
    out.extend(message);
    Ok(())
}

/// Reads one message with its length before it.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Any address of the server's family.
pub(crate) fn unspecified(server: SocketAddr) -> SocketAddr {
    let ip = if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// A socket error as one of the system's kind, with its words kept.
pub(crate) fn into_io(error: culvert_os::socket::SocketError) -> io::Error {
    io::Error::new(error.io().kind(), error)
}
