//! SOCKS and DNS clients, as small as the tests allow.

use culvert_testkit::Result;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One connection that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) source: Ipv4Addr,
    pub(crate) user: Option<&'static str>,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Sent as soon as the proxy says that it is connected.
    pub(crate) payload: Vec<u8>,
}

impl Flow {
    pub(crate) fn to(host: &str, port: u16) -> Self {
        let source = Ipv4Addr::LOCALHOST;
        Self { source, user: None, host: host.into(), port, payload: Vec::new() }
    }
}

/// Asks the proxy for the connection. Returns what the exit said, or `refused`, and the open stream.
pub(crate) async fn connect(proxy: SocketAddr, flow: &Flow) -> Result<(String, Option<TcpStream>)> {
    match tokio::time::timeout(PATIENCE, attempt(proxy, flow)).await {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(_)) => Ok(("refused".to_owned(), None)),
        Err(_) => Ok(("silence".to_owned(), None)),
    }
}

/// What the exit said, or `refused`.
pub(crate) async fn verdict(proxy: SocketAddr, flow: &Flow) -> Result<String> {
    Ok(connect(proxy, flow).await?.0)
}

async fn attempt(proxy: SocketAddr, flow: &Flow) -> Result<(String, Option<TcpStream>)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((flow.source, 0).into())?;
    let mut stream = socket.connect(proxy).await?;
    let method = if flow.user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method]).await?;
    let mut two = [0; 2];
    stream.read_exact(&mut two).await?;
    if two[1] != method {
        return Err("no common method".into());
    }
    if let Some(user) = flow.user {
        let mut login = vec![1, user.len() as u8];
        login.extend(user.as_bytes());
        login.extend([2, b'p', b'w']);
        stream.write_all(&login).await?;
        stream.read_exact(&mut two).await?;
    }
    let mut request = vec![5, 1, 0];
    match flow.host.parse() {
        Ok(IpAddr::V4(ip)) => {
            request.push(1);
            request.extend(ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            request.push(4);
            request.extend(ip.octets());
        }
        Err(_) => {
            request.extend([3, flow.host.len() as u8]);
            request.extend(flow.host.as_bytes());
        }
    }
    request.extend(flow.port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).await?;
    if reply[1] != 0 {
        return Err("refused".into());
    }
    let mut bound = vec![0; if reply[3] == 4 { 18 } else { 6 }];
    stream.read_exact(&mut bound).await?;
    stream.write_all(&flow.payload).await?;
    let mut said = Vec::new();
    while !said.ends_with(b"\n") {
        said.push(stream.read_u8().await?);
    }
    Ok((String::from_utf8_lossy(&said).trim().to_owned(), Some(stream)))
}

/// What a DNS server answered.
#[derive(Debug, Clone, Eq, PartialEq)]
pub(crate) struct Reply {
    pub(crate) rcode: u8,
    /// Address and TTL, sorted.
    pub(crate) addresses: Vec<(IpAddr, u32)>,
}

/// Asks for the addresses of `name` of one type. `None` is silence.
pub(crate) async fn ask(
    server: SocketAddr,
    source: Ipv4Addr,
    name: &str,
    kind: u16,
    patience: Duration,
) -> Result<Option<Reply>> {
    let socket = UdpSocket::bind((source, 0)).await?;
    socket.connect(server).await?;
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    socket.send(&query).await?;
    let mut reply = vec![0; 4096];
    match tokio::time::timeout(patience, socket.recv(&mut reply)).await {
        Err(_) => Ok(None),
        Ok(received) => {
            reply.truncate(received?);
            Ok(Some(parse(&reply, query.len()).ok_or("malformed reply")?))
        }
    }
}

fn parse(reply: &[u8], mut at: usize) -> Option<Reply> {
    let word = |at: usize| Some(u16::from_be_bytes([*reply.get(at)?, *reply.get(at + 1)?]));
    let mut addresses = Vec::new();
    for _ in 0..word(6)? {
        // Names are pointers or written out.
        loop {
            match *reply.get(at)? {
                0 => break at += 1,
                length if length >= 0xc0 => break at += 2,
                length => at += 1 + usize::from(length),
            }
        }
        let (kind, ttl) = (word(at)?, u32::from(word(at + 4)?) << 16 | u32::from(word(at + 6)?));
        let length = usize::from(word(at + 8)?);
        let data = reply.get(at + 10..at + 10 + length)?;
        match kind {
            1 => addresses.push((Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into(), ttl)),
            28 => addresses.push((Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into(), ttl)),
            _ => {}
        }
        at += 10 + length;
    }
    addresses.sort();
    Some(Reply { rcode: reply.get(3)? & 15, addresses })
}
