//! The messages, from bytes and to bytes. Numbers are big-endian, texts have their length in two bytes before them.

use culvert_wire::{DecodeError, Host, Reader, Target};

/// The version that the client's first byte names.
pub const VERSION: u8 = 3;
/// Longest hello of a client: longer passwords are refused.
pub const MAX_CLIENT_HELLO: usize = 1 + 8 + 8 + 2 + MAX_TEXT;
/// Longest message of a server, text included.
pub const MAX_MESSAGE: usize = 1 + 8 + 8 + 2 + MAX_TEXT;
/// Longest request.
pub const MAX_REQUEST: usize = 1 + 2 + MAX_HOST + 2;
/// Bytes of a datagram's head besides the host.
pub const HEAD: usize = 14;

/// Longest text of a message that is read; longer ones are cut when they are written.
const MAX_TEXT: usize = 2048;
/// Longest host.
const MAX_HOST: usize = 255;

/// What a client begins its first stream with.
#[derive(Clone, Eq, PartialEq)]
pub struct ClientHello {
    /// Bytes per second that it wants to send.
    pub send: u64,
    /// Bytes per second that it can receive.
    pub receive: u64,
    /// Its password.
    pub auth: Vec<u8>,
}

/// What the server answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerHello {
    /// Whether the client may go on.
    pub ok: bool,
    /// Bytes per second that the server sends at most.
    pub send: u64,
    /// Bytes per second that it can receive.
    pub receive: u64,
    /// Why not.
    pub message: String,
}

/// What every further stream begins with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// An association, which lasts as long as the stream.
    pub udp: bool,
    /// Where to; of an association, where the first datagram goes, if that is said.
    pub target: Option<Target>,
}

/// What the server answers to that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Response {
    /// Whether it is connected.
    pub ok: bool,
    /// The number of the association.
    pub session: u32,
    /// Why not.
    pub message: String,
}

/// What a datagram begins with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    /// The association.
    pub session: u32,
    /// Where it goes, or comes from.
    pub peer: Target,
    /// The number of the packet.
    pub packet: u16,
    /// Which part of it this is, from 0.
    pub index: u8,
    /// In how many parts it comes.
    pub total: u8,
    /// Bytes that follow.
    pub len: u16,
}

/// Without the password.
impl std::fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHello").field("send", &self.send).field("receive", &self.receive).finish()
    }
}

impl ClientHello {
    /// Reads one, the version included.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION], "version")?;
        let (send, receive) = (r.u64()?, r.u64()?);
        if send == 0 || receive == 0 {
            return Err(DecodeError::Invalid("speed"));
        }
        let auth = text(r, MAX_TEXT)?.to_vec();
        Ok(Self { send, receive, auth })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.send.to_be_bytes());
        out.extend(self.receive.to_be_bytes());
        put(&self.auth, MAX_TEXT, &mut out);
        out
    }
}

impl ServerHello {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let ok = r.u8()? != 0;
        let (send, receive) = (r.u64()?, r.u64()?);
        let message = words(text(r, MAX_TEXT)?);
        if ok && (send == 0 || receive == 0) {
            return Err(DecodeError::Invalid("speed"));
        }
        Ok(Self { ok, send, receive, message })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.ok.into()];
        out.extend(self.send.to_be_bytes());
        out.extend(self.receive.to_be_bytes());
        put(self.message.as_bytes(), MAX_TEXT, &mut out);
        out
    }
}

impl Request {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let udp = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Invalid("kind of request")),
        };
        let target = target(r)?;
        if target.is_none() && !udp {
            return Err(DecodeError::Invalid("target"));
        }
        Ok(Self { udp, target })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.udp.into()];
        match &self.target {
            Some(target) => put_target(target, &mut out),
            None => out.extend([0; 4]),
        }
        out
    }
}

impl Response {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { ok: r.u8()? != 0, session: r.u32()?, message: words(text(r, MAX_TEXT)?) })
    }

    /// Puts its bytes at the end of `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.ok.into());
        out.extend(self.session.to_be_bytes());
        put(self.message.as_bytes(), MAX_TEXT, out);
    }
}

impl Head {
    /// Reads one. What follows must be exactly the part.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let session = r.u32()?;
        let peer = target(r)?.ok_or(DecodeError::Invalid("peer"))?;
        let (packet, index, total, len) = (r.u16()?, r.u8()?, r.u8()?, r.u16()?);
        if r.rest().len() != usize::from(len) {
            return Err(DecodeError::Invalid("length"));
        }
        Ok(Self { session, peer, packet, index, total, len })
    }

    /// Puts its bytes at the end of `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.session.to_be_bytes());
        put_target(&self.peer, out);
        out.extend(self.packet.to_be_bytes());
        out.extend([self.index, self.total]);
        out.extend(self.len.to_be_bytes());
    }
}

/// Bytes with their length before them.
fn text<'a>(r: &mut Reader<'a>, most: usize) -> Result<&'a [u8], DecodeError> {
    let len = usize::from(r.u16()?);
    if len > most {
        return Err(DecodeError::Invalid("length"));
    }
    r.take(len)
}

fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn put(text: &[u8], most: usize, out: &mut Vec<u8>) {
    let text = &text[..text.len().min(most)];
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text);
}

/// A host and a port; none where the host is empty.
fn target(r: &mut Reader<'_>) -> Result<Option<Target>, DecodeError> {
    let host = text(r, MAX_HOST)?;
    let port = r.u16()?;
    if host.is_empty() {
        return Ok(None);
    }
    let host = Host::from_bytes(host).map_err(|_| DecodeError::Invalid("host"))?;
    Ok(Some(Target { host, port }))
}

fn put_target(target: &Target, out: &mut Vec<u8>) {
    put(target.host.to_string().as_bytes(), MAX_HOST, out);
    out.extend(target.port.to_be_bytes());
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_messages(bytes: &[u8]) {
    if let Ok(hello) = ClientHello::decode(&mut Reader::new(bytes)) {
        assert_eq!(ClientHello::decode(&mut Reader::new(&hello.bytes())), Ok(hello));
    }
    if let Ok(hello) = ServerHello::decode(&mut Reader::new(bytes))
        && !hello.message.contains('\u{fffd}')
    {
        assert_eq!(ServerHello::decode(&mut Reader::new(&hello.bytes())), Ok(hello));
    }
    if let Ok(request) = Request::decode(&mut Reader::new(bytes)) {
        assert_eq!(Request::decode(&mut Reader::new(&request.bytes())), Ok(request));
    }
    if let Ok(response) = Response::decode(&mut Reader::new(bytes))
        && !response.message.contains('\u{fffd}')
    {
        let mut out = Vec::new();
        response.encode(&mut out);
        assert_eq!(Response::decode(&mut Reader::new(&out)), Ok(response));
    }
    let mut reader = Reader::new(bytes);
    if let Ok(head) = Head::decode(&mut reader) {
        let mut out = Vec::new();
        head.encode(&mut out);
        out.extend(reader.rest());
        assert_eq!(Head::decode(&mut Reader::new(&out)), Ok(head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn peer(host: &str, port: u16) -> Target {
        Target { host: Host::parse(host).unwrap(), port }
    }

    /// Decodes the whole, and sees that no part of it decodes.
    fn decoded<T: std::fmt::Debug>(bytes: &[u8], decode: fn(&mut Reader<'_>) -> Result<T, DecodeError>) -> T {
        for cut in 0..bytes.len() {
            assert_eq!(
                decode(&mut Reader::new(&bytes[..cut])).unwrap_err(),
                DecodeError::Incomplete,
                "{cut}"
            );
        }
        decode(&mut Reader::new(bytes)).unwrap()
    }

    #[test]
    fn messages_are_those_of_the_vectors() {
        let hello = ClientHello { send: 12_500_000, receive: 12_500_000, auth: b"hy1pw".to_vec() };
        let bytes = hex("030000000000bebc200000000000bebc2000056879317077");
        assert_eq!(hello.bytes(), bytes);
        assert_eq!(decoded(&bytes, ClientHello::decode), hello);

        let hello = ServerHello { ok: true, send: 12_500_000, receive: 12_500_000, message: String::new() };
        let bytes = hex("010000000000bebc200000000000bebc200000");
        assert_eq!(hello.bytes(), bytes);
        assert_eq!(decoded(&bytes, ServerHello::decode), hello);

        for (udp, target, bytes) in [
            (false, peer("example.com", 80), "00000b6578616d706c652e636f6d0050"),
            (true, peer("127.0.0.1", 53), "0100093132372e302e302e310035"),
            (false, peer("2001:db8::1", 1), "00000b323030313a6462383a3a310001"),
        ] {
            let request = Request { udp, target: Some(target) };
            assert_eq!(request.bytes(), hex(bytes));
            assert_eq!(decoded(&hex(bytes), Request::decode), request);
        }
        assert_eq!(decoded(&hex("0100000000"), Request::decode), Request { udp: true, target: None });

        for (session, bytes) in [(0, "01000000000000"), (1, "01000000010000")] {
            let response = Response { ok: true, session, message: String::new() };
            let mut out = Vec::new();
            response.encode(&mut out);
            assert_eq!(out, hex(bytes));
            assert_eq!(decoded(&out, Response::decode), response);
        }

        let head = Head { session: 1, peer: peer("127.0.0.1", 53), packet: 1, index: 0, total: 1, len: 5 };
        let bytes = hex("0000000100093132372e302e302e3100350001000100057175657279");
        let mut out = Vec::new();
        head.encode(&mut out);
        assert_eq!(out, bytes[..bytes.len() - 5]);
        let mut reader = Reader::new(&bytes);
        assert_eq!(Head::decode(&mut reader), Ok(head));
        assert_eq!(reader.rest(), b"query");
    }

    #[test]
    fn what_is_none_is_refused() {
        let zero = hex("0300000000000000000000000000bebc200000");
        assert!(ClientHello::decode(&mut Reader::new(&zero)).is_err(), "no speed");
        for bytes in ["02", "0300000000000000010000000000000001ffff"] {
            let read = ClientHello::decode(&mut Reader::new(&hex(bytes)));
            assert!(matches!(read, Err(DecodeError::Invalid(_))), "{bytes}");
        }
        for bytes in ["02", "0000000050", "000100", "000003202020"] {
            let read = Request::decode(&mut Reader::new(&hex(&format!("{bytes}0050"))));
            assert!(matches!(read, Err(DecodeError::Invalid(_))), "{bytes}");
        }
        let long = "00000001 0001 61 0035 0001 00 01 0006 7175657279".replace(' ', "");
        assert!(Head::decode(&mut Reader::new(&hex(&long))).is_err(), "a length that does not fit");
        for bytes in [&b""[..], b"\x03", &[0xff; 100], &[0; 100], &[1; 100]] {
            fuzz_messages(bytes);
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let response = Response { ok: false, session: 0, message: "x".repeat(70_000) };
        let mut out = Vec::new();
        response.encode(&mut out);
        assert_eq!(Response::decode(&mut Reader::new(&out)).unwrap().message.len(), MAX_TEXT);
    }
}
