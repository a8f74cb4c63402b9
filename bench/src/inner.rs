//! Streams that carry TLS 1.3 through a protocol: a real handshake, and then what looks like its records.
//!
//! Programs that watch for TLS inside (Vision) see the handshake and the heads of records, and let them pass as they are.
//! Nobody opens those records, so that the load generator needs no cipher of its own:
//!
//! ```text
//! +----------+---------+------------------+
//! | 17 03 03 | len u16 | len bytes, noise |
//! +----------+---------+------------------+
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection};

use crate::identity::OwnTls;
use crate::verify;

/// By this the target knows what comes after the handshake.
pub(crate) const ALPN: &[u8] = b"culvert-bench";

const HEAD: usize = 5;
/// Payload of a full record.
const RECORD: usize = 16 * 1024;
/// Full records of one write.
const RECORDS: usize = 16;
/// Payload of a record that says something: as short as an answer of a real server may be.
const SMALL: usize = 40;

/// Shakes hands and waits for the target's word.
pub(crate) fn connect(stream: &mut TcpStream, config: &Arc<ClientConfig>) -> io::Result<()> {
    let name = OwnTls::server_name().map_err(io::Error::other)?;
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(stream)?;
    }
    let _: [u8; 1] = hear(stream)?;
    Ok(())
}

/// Sends a few bytes in a small record.
pub(crate) fn say(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut record = head(SMALL).to_vec();
    record.extend_from_slice(bytes);
    record.resize(HEAD + SMALL, 0);
    stream.write_all(&record)
}

/// Receives them.
pub(crate) fn hear<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut record = [0; HEAD + SMALL];
    stream.read_exact(&mut record)?;
    if record[..HEAD] != head(SMALL) {
        return Err(io::Error::other("a record came back changed"));
    }
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[HEAD..HEAD + N]);
    Ok(bytes)
}

/// Full records, for sending again and again.
pub(crate) fn records() -> Arc<[u8]> {
    let noise = verify::noise(RECORD);
    let record = [&head(RECORD)[..], &noise].concat();
    record.repeat(RECORDS).into()
}

fn head(len: usize) -> [u8; HEAD] {
    let [high, low] = (len as u16).to_be_bytes();
    [0x17, 3, 3, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use crate::wire::{Header, Op, READY};

    #[test]
    fn a_stream_of_records_begins_after_a_handshake() {
        let target = Target::start(1).unwrap();
        for op in [Op::Up, Op::Down] {
            let mut stream = TcpStream::connect(target.address()).unwrap();
            connect(&mut stream, target.inner_tls()).unwrap();
            say(&mut stream, &Header { op, stream: 0, length: 0 }.encode()).unwrap();
            if op == Op::Up {
                assert_eq!(hear(&mut stream).unwrap(), [READY]);
                stream.write_all(&records()).unwrap();
                while target.received(0) < records().len() as u64 {
                    std::thread::yield_now();
                }
            } else {
                let mut record = vec![0; HEAD + RECORD];
                stream.read_exact(&mut record).unwrap();
                assert_eq!(record, records()[..HEAD + RECORD]);
            }
        }
    }
}
