//! What the load generator's two ends say to each other, and the SOCKS5 words its client end says first.
//!
//! ```text
//! +-----+----+----------+------------+------------+
//! | "CB"| op | reserved | stream u32 | length u64 |   16 bytes, big-endian, client to target
//! +-----+----+----------+------------+------------+
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;
/// Bytes of a whole [`Op::Request`], header included.
pub(crate) const REQUEST: usize = 128;
/// What the target answers where one byte is enough.
pub(crate) const READY: u8 = b'!';

/// What the target is asked to do with a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Op {
    /// Say [`READY`] and close.
    Ping,
    /// Send until the client has enough.
    Down,
    /// Receive and discard.
    Up,
    /// Read [`REQUEST`] bytes, answer `length` bytes, close.
    Request,
    /// Say [`READY`] and keep the connection open, idle.
    Hold,
    /// Send back every `length` bytes as they come.
    Echo,
    /// Both directions at once: `length` bytes of a known pattern, checked at both ends.
    Verify,
}

const OPS: [Op; 7] = [Op::Ping, Op::Down, Op::Up, Op::Request, Op::Hold, Op::Echo, Op::Verify];

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) op: Op,
    /// Which of the client's streams this is.
    pub(crate) stream: u32,
    /// Bytes, where the operation has a length.
    pub(crate) length: u64,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let op = OPS.iter().position(|op| *op == self.op).unwrap_or_default();
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(b"CB");
        bytes[2] = op as u8;
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// `None` for anything that is no header.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let [b'C', b'B', op, _, s0, s1, s2, s3, length @ ..] = *bytes else { return None };
        Some(Self {
            op: *OPS.get(usize::from(op))?,
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            length: u64::from_be_bytes(length),
        })
    }
}

/// Asks the SOCKS5 server at the other end for a connection to `target`, each step after the answer to the last.
pub(crate) fn socks_connect(stream: &mut TcpStream, target: SocketAddr) -> io::Result<()> {
    socks_ask(stream, &socks_request(target))
}

/// As [`socks_connect`], for a target that is told by its name.
pub(crate) fn socks_connect_name(stream: &mut TcpStream, name: &str, port: u16) -> io::Result<()> {
    let request = [&[5, 1, 0, 3, name.len() as u8], name.as_bytes(), &port.to_be_bytes()].concat();
    socks_ask(stream, &request)
}

fn socks_ask(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(&[5, 1, 0])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice)?;
    if choice != [5, 0] {
        return Err(io::Error::other(format!("SOCKS server chose method {choice:?}")));
    }
    stream.write_all(request)?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply)?;
    if reply[1] != 0 {
        return Err(io::Error::other(format!("SOCKS server refused with code {}", reply[1])));
    }
    let address = match reply[3] {
        1 => 4,
        3 => {
            let mut length = [0];
            stream.read_exact(&mut length)?;
            usize::from(length[0])
        }
        4 => 16,
        other => return Err(io::Error::other(format!("SOCKS reply has address type {other}"))),
    };
    let mut bound = [0; 257];
    stream.read_exact(&mut bound[..address + 2])
}

/// What a SOCKS5 client wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocksCommand {
    Connect,
    Associate,
}

/// Is a SOCKS5 server that says yes to everything; datagrams go to `datagrams`.
pub(crate) fn socks_accept(stream: &mut TcpStream, datagrams: SocketAddr) -> io::Result<SocksCommand> {
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting)?;
    let mut methods = vec![0; usize::from(greeting[1])];
    stream.read_exact(&mut methods)?;
    stream.write_all(&[5, 0])?;
    let mut request = [0; 5];
    stream.read_exact(&mut request)?;
    // The address without its first byte, and the port.
    let rest = match request[3] {
        1 => 3 + 2,
        3 => usize::from(request[4]) + 2,
        _ => 15 + 2,
    };
    stream.read_exact(&mut vec![0; rest])?;
    let command = match request[1] {
        1 => SocksCommand::Connect,
        3 => SocksCommand::Associate,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let mut reply = socks_request(datagrams);
    reply[1] = 0;
    stream.write_all(&reply)?;
    Ok(command)
}

fn socks_request(target: SocketAddr) -> Vec<u8> {
    let mut request = vec![5, 1, 0];
    match target {
        SocketAddr::V4(v4) => {
            request.push(1);
            request.extend_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            request.push(4);
            request.extend_from_slice(&v6.ip().octets());
        }
    }
    request.extend_from_slice(&target.port().to_be_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        for op in OPS {
            let header = Header { op, stream: 0x0102_0304, length: 1 << 40 };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
    }

    #[test]
    fn foreign_bytes_are_no_header() {
        assert_eq!(Header::decode(b"GET / HTTP/1.1\r\n"), None);
        let mut unknown_op = Header { op: Op::Ping, stream: 0, length: 0 }.encode();
        unknown_op[2] = 200;
        assert_eq!(Header::decode(&unknown_op), None);
    }

    #[test]
    fn socks_request_for_both_families() {
        let v4 = socks_request(SocketAddr::from(([127, 0, 0, 1], 0x1234)));
        assert_eq!(v4, [5, 1, 0, 1, 127, 0, 0, 1, 0x12, 0x34]);
        let v6 = socks_request(SocketAddr::from(([0u16, 0, 0, 0, 0, 0, 0, 1], 80)));
        assert_eq!(v6.len(), 22);
        assert_eq!(v6[3], 4);
    }

    #[test]
    fn the_socks_client_and_the_server_understand_each_other() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            [(); 2].map(|()| socks_accept(&mut listener.accept().unwrap().0, address).unwrap())
        });
        let connect = || TcpStream::connect(address).unwrap();
        socks_connect(&mut connect(), SocketAddr::from(([198, 19, 0, 1], 80))).unwrap();
        socks_connect_name(&mut connect(), "example.org", 80).unwrap();
        assert_eq!(server.join().unwrap(), [SocksCommand::Connect; 2]);
    }
}
